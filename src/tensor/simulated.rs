//! A simulated device: for tests of code that uses futensor, and of futensor itself.

use super::device::{Device, options};
use crate::engine::machine::Limits;
use crate::engine::port::{Opening, Port};
use crate::engine::pressure::{Pressure, QueueLimits};
use crate::host::simulation::{Faults, Script, SimDriver};
use crate::memory::Memory;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// How a simulated device behaves, and what goes wrong on it.
///
/// Steps are counted from 1 in the order in which they begin.
#[derive(Clone, Debug)]
pub struct SimOptions {
    seed: u64,
    streams: usize,
    own_thread: bool,
    kernel_failure_at: Option<u64>,
    device_loss_at: Option<u64>,
    stuck_at: Option<u64>,
    out_of_memory_at: usize,
    bytes_max: usize,
    watchdog: Option<Duration>,
    in_flight_ops: usize,
    queue_ops: usize,
    permits: usize,
}

impl SimOptions {
    /// A device whose events come in the order that this seed chooses, with no faults.
    pub fn new(seed: u64) -> SimOptions {
        SimOptions {
            seed,
            streams: 3,
            own_thread: false,
            kernel_failure_at: None,
            device_loss_at: None,
            stuck_at: None,
            out_of_memory_at: 0,
            bytes_max: usize::MAX,
            watchdog: None,
            in_flight_ops: 16,
            queue_ops: 1024,
            permits: 64,
        }
    }
}

options! { SimOptions;
    /// How many streams it has; 3 by default.
    streams: usize;
    /// Whether a thread of its own runs it as work comes (then the order also depends on timing),
    /// or [`Simulation`] does, by hand. By hand is the default.
    own_thread: bool;
    /// The kernel of this step fails; its value with it, and nothing else.
    kernel_failure_at: Option<u64>;
    /// The device is lost when this step begins, with everything that is pending.
    device_loss_at: Option<u64>;
    /// This step never ends.
    stuck_at: Option<u64>;
    /// This allocation fails, counted from 1; 0 for none.
    out_of_memory_at: usize;
    /// Bytes of values that may be alive at once.
    bytes_max: usize;
    /// Virtual time after which a step that never ends takes the device with it.
    watchdog: Option<Duration>;
    /// Steps that may be submitted and not finished.
    in_flight_ops: usize;
    /// Queued ops up to which `ready` and `admit` let through.
    queue_ops: usize;
    /// Permits given out at once.
    permits: usize;
}

/// The strings of a simulated device that is run by hand.
///
/// ```
/// use futensor::{Device, sim::SimOptions};
/// let (device, simulation) = Device::simulated(SimOptions::new(42));
/// let y = device.ones([2]) + 1.0;
/// assert!(!y.is_ready());                          // nothing happens by itself
/// let values = simulation.block_on(y.to_vec::<f32>()).expect("it ends");
/// assert_eq!(values.unwrap(), [2.0, 2.0]);
/// ```
#[derive(Clone, Debug)]
pub struct Simulation(Device);

impl Device {
    /// A simulated device: the engine is the real one, threads and time are not. Values are
    /// computed.
    pub fn simulated(options: SimOptions) -> (Device, Simulation) {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let memory = Memory::new(options.bytes_max);
        memory.refuse(options.out_of_memory_at);
        let limits = Limits {
            streams: options.streams.clamp(1, 1024) as u16,
            depth_max: 4,
            ops_max: options.in_flight_ops.max(1),
            bytes_max: usize::MAX,
            hold_max_ns: 50_000,
            ahead: true,
            epilogues: true,
        };
        let script = Script {
            seed: options.seed,
            faults: Faults {
                kernel_at: options.kernel_failure_at,
                loss_at: options.device_loss_at,
                stuck_at: options.stuck_at,
            },
            watchdog_ns: options.watchdog.map(|d| d.as_nanos() as u64),
            small: false,
            own_thread: options.own_thread,
        };
        let device = Device::of(Port::open(Opening {
            name: format!("sim:{}", COUNT.fetch_add(1, Ordering::Relaxed)),
            inline: false,
            host: true,
            memory: memory.clone(),
            pressure: Pressure::new(QueueLimits {
                ops_max: options.queue_ops,
                bytes_max: usize::MAX,
                permits_max: options.permits.max(1),
            }),
            driver: Box::new(SimDriver::new(script, limits, memory)),
            seed: options.seed,
        }));
        (device.clone(), Simulation(device))
    }
}

impl Simulation {
    fn driver(&self) -> &SimDriver {
        match self.0.port.driver.as_any().downcast_ref() {
            Some(driver) => driver,
            None => unreachable!("a simulation's device has a simulated driver"),
        }
    }

    /// Lets one thing happen; false where nothing can.
    pub fn step(&self) -> bool {
        self.driver().step(self.0.port)
    }

    /// Lets everything happen that can; how many events that were.
    pub fn run(&self) -> usize {
        let mut events = 0;
        while self.step() {
            events += 1;
        }
        events
    }

    /// Polls a future, letting the device go on in between; `None` where the future still waits
    /// when nothing can happen any more: it hangs.
    pub fn block_on<F: Future>(&self, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        let mut context = Context::from_waker(Waker::noop());
        let mut idle = 0;
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return Some(output);
            }
            // A poll that gave way wakes itself: one more poll is not a hang.
            idle = if self.step() { 0 } else { idle + 1 };
            if idle > 2 {
                return None;
            }
        }
    }
}
