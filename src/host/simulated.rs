//! The simulated device: its options, and its opening.

use super::simulation::{Faults, Script, SimRunner};
use crate::engine::limits::Limits;
use crate::engine::port::{Opening, Port, Profile};
use crate::engine::pressure::QueueLimits;
use crate::memory::Memory;
use crate::options::{nanos, options};
use crate::sync::plain::{AtomicUsize, Ordering};
use crate::sync::statics;
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
    /// or [`Simulation`](crate::sim::Simulation) does, by hand. By hand is the default.
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

/// Opens one. Nothing happens on it by itself, or a thread of its own runs it.
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

/// Lets one thing happen on a simulated device; false where nothing can, and on any other device.
pub(crate) fn step(port: &'static Port) -> bool {
    let runner = port.runner.as_any().downcast_ref::<SimRunner>();
    runner.is_some_and(|runner| runner.is_by_hand() && runner.step(port))
}
