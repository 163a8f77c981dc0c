//! The simulated device: its options, and how it is opened.

use super::simulation::{Faults, Script, SimRunner};
use crate::engine::limits::Limits;
use crate::engine::port::{Opening, Port, Profile};
use crate::engine::pressure::QueueLimits;
use crate::memory::Memory;
use crate::options::{self, nanos, options};
use crate::sync::plain::{AtomicUsize, Ordering};
use crate::sync::statics;
use std::time::Duration;

/// Options for a simulated device, including its faults.
///
/// Steps are numbered from 1 in the order in which they begin.
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
    check_finite: bool,
}

impl SimOptions {
    /// A device without faults whose events run in an order that this seed chooses.
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
            check_finite: options::checks_finite(),
        }
    }
}

options! { SimOptions;
    /// The number of streams; 3 by default.
    streams: usize;
    /// Whether the device has its own thread that runs work as it comes (then the order also
    /// depends on timing). By default [`Simulation`](crate::sim::Simulation) runs it by hand.
    own_thread: bool;
    /// The kernel of this step fails, and with it only the step's values.
    kernel_failure_at: Option<u64>;
    /// The device is lost when this step begins, and all pending work with it.
    device_loss_at: Option<u64>;
    /// This step never ends.
    stuck_at: Option<u64>;
    /// This allocation fails, counted from 1; 0 for none.
    out_of_memory_at: usize;
    /// The most bytes of values that may be alive at once.
    bytes_max: usize;
    /// The virtual time after which a step that does not end makes the device lost.
    watchdog: Option<Duration>;
    /// The most steps in flight (submitted and not finished).
    in_flight_ops: usize;
    /// The number of queued ops up to which `ready` and `admit` complete.
    queue_ops: usize;
    /// The number of permits that are granted at the same time.
    permits: usize;
    /// Whether each op is checked: one that makes a NaN or an infinity of operands without fails,
    /// and says its name ([`finite`](crate::finite)). Off by default, on where the environment has
    /// `FUTENSOR_CHECK_FINITE=1`.
    check_finite: bool;
}

/// Opens a simulated device, which runs by hand or on its own thread.
pub(crate) fn open(options: &SimOptions) -> &'static Port {
    statics! { static COUNT: AtomicUsize = AtomicUsize::new(0); }
    let memory = Memory::new(options.bytes_max);
    memory.refuse(options.out_of_memory_at);
    let script = Script {
        seed: options.seed,
        faults: Faults {
            kernel_at: options.kernel_failure_at,
            loss_at: options.device_loss_at,
            stuck_at: options.stuck_at,
        },
        watchdog_ns: options.watchdog.map(nanos),
        small: false,
        own_thread: options.own_thread,
    };
    Port::open(Opening {
        profile: Profile {
            name: format!("sim:{}", COUNT.fetch_add(1, Ordering::Relaxed)),
            inline: false,
            in_memory: true,
            check_finite: options.check_finite,
            limits: Limits {
                streams: options.streams.clamp(1, 1024) as u16,
                depth_max: 4,
                ops_max: options.in_flight_ops.max(1),
                bytes_max: usize::MAX,
                fusion_delay_max_ns: 50_000,
                ahead: true,
                epilogues: true,
            },
        },
        queue: QueueLimits {
            ops_max: options.queue_ops,
            bytes_max: usize::MAX,
            permits_max: options.permits.max(1),
        },
        runner: Box::new(SimRunner::new(script, memory.clone())),
        memory,
        seed: options.seed,
    })
}

/// Runs one event of a simulated device; false if there is none, and on any other device.
pub(crate) fn step(port: &'static Port) -> bool {
    let runner = port.runner.as_any().downcast_ref::<SimRunner>();
    runner.is_some_and(|runner| runner.is_by_hand() && runner.step(port))
}
