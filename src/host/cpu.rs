//! The CPU device: its options, and how it is opened.

use super::runner::{CpuRunner, RunnerOptions};
use crate::engine::limits::Limits;
use crate::engine::port::{Opening, Port, Profile};
use crate::engine::pressure::QueueLimits;
use crate::memory::Memory;
use crate::options::{self, nanos, options};
use std::time::Duration;

/// Options for a CPU device of your own. Start from the default and change what you need.
///
/// ```
/// use futensor::{CpuOptions, Device};
/// let device = Device::cpu_with(CpuOptions::default().threads(1).inline(false));
/// assert!(device.name().starts_with("cpu:"));
/// ```
#[derive(Clone, Debug)]
pub struct CpuOptions {
    threads: usize,
    streams: usize,
    inline: bool,
    nice: i32,
    spread: bool,
    linger: Duration,
    fusion_delay: Duration,
    watchdog: Option<Duration>,
    bytes_max: usize,
    in_flight_ops: usize,
    in_flight_bytes: usize,
    queue_ops: usize,
    queue_bytes: usize,
    permits: usize,
    seed: u64,
    check_finite: bool,
}

impl Default for CpuOptions {
    fn default() -> CpuOptions {
        let threads = crate::sync::threads::parallelism().min(64);
        CpuOptions {
            threads,
            streams: threads.max(2),
            inline: true,
            nice: 8,
            spread: true,
            linger: Duration::from_micros(100),
            fusion_delay: Duration::from_micros(50),
            watchdog: None,
            bytes_max: usize::MAX,
            in_flight_ops: 64,
            in_flight_bytes: 1 << 30,
            queue_ops: 1024,
            queue_bytes: 256 << 20,
            permits: 64,
            seed: 0,
            check_finite: options::checks_finite(),
        }
    }
}

options! { CpuOptions;
    /// The number of streams: how many independent chains of ops can be in flight at once. By
    /// default the number of threads, and at least 2; from 1 to 1024.
    streams: usize;
    /// Whether an awaiting poll may run a small ready step itself, unless it was made while a long
    /// operand was not there. True by default; if false, the device's threads run every step.
    inline: bool;
    /// How far the priority of the compute threads is below that of the thread that creates them,
    /// in units of `nice`; 8 by default, 0 leaves the priority unchanged. Linux only.
    nice: i32;
    /// Whether a compute thread that is woken by another one starts on a different core; true by
    /// default. This sets the affinity of the threads, within the affinity that they started with.
    /// Linux only.
    spread: bool;
    /// How long an idle thread stays awake; 100 us by default. Ten times as long while a region
    /// call runs.
    linger: Duration;
    /// The longest time that a step is held back so that it can fuse with later ops; 50 us by
    /// default, and never more than 2 % of the step's own estimated time. Zero disables the delay.
    fusion_delay: Duration;
    /// If a step runs longer than this, the device is lost and its values fail; off by default.
    watchdog: Option<Duration>;
    /// The most bytes of values that may be alive at once; an op that would exceed the limit fails
    /// with an out-of-memory error. No limit by default.
    bytes_max: usize;
    /// The most steps in flight (started and not finished); 64 by default.
    in_flight_ops: usize;
    /// The most bytes of results of steps in flight; 1 GiB by default. A larger step runs
    /// alone.
    in_flight_bytes: usize;
    /// The number of queued ops up to which `ready` and `admit` complete; 1024 by default.
    queue_ops: usize;
    /// The bytes of queued results up to which `ready` and `admit` complete; 256 MiB by default.
    queue_bytes: usize;
    /// The number of permits that `admit` and `try_admit` grant at the same time; 64 by default.
    permits: usize;
    /// The seed of the device's generator; 0 by default.
    seed: u64;
    /// Whether each op is checked: one that makes a NaN or an infinity of operands without fails,
    /// and says its name ([`finite`](crate::finite)). Off by default, on where the environment has
    /// `FUTENSOR_CHECK_FINITE=1`.
    check_finite: bool;
}

impl CpuOptions {
    /// The number of compute threads; one per core by default, from 1 to 64.
    ///
    /// Compute threads call the wakers of completed steps, and drop the captured values of ops. If
    /// such user code takes long or waits for the same device, and no other compute thread is free,
    /// an extra thread takes over after some milliseconds.
    pub fn threads(mut self, threads: usize) -> CpuOptions {
        self.threads = threads.clamp(1, 64);
        self.streams = self.threads.max(2);
        self
    }
}

#[cfg(feature = "serde")]
crate::configuration::configured! { CpuOptions;
    threads: usize;
    streams: usize;
    inline: bool;
    nice: i32;
    spread: bool;
    linger: Duration;
    fusion_delay: Duration;
    watchdog: Option<Duration>;
    bytes_max: usize;
    in_flight_ops: usize;
    in_flight_bytes: usize;
    queue_ops: usize;
    queue_bytes: usize;
    permits: usize;
    seed: u64;
    check_finite: bool;
}

/// Opens a CPU device. Its threads start with the first op.
pub(crate) fn open(name: String, options: &CpuOptions) -> &'static Port {
    let memory = Memory::new(options.bytes_max);
    let runner_options = RunnerOptions {
        threads: options.threads,
        nice: options.nice,
        spread: options.spread,
        linger: options.linger,
        small_ns: 2_000,
        watchdog: options.watchdog,
    };
    Port::open(Opening {
        profile: Profile {
            name,
            inline: options.inline,
            in_memory: true,
            check_finite: options.check_finite,
            limits: Limits {
                streams: options.streams.clamp(1, 1024) as u16,
                depth_max: 1,
                ops_max: options.in_flight_ops.max(1),
                bytes_max: options.in_flight_bytes,
                fusion_delay_max_ns: nanos(options.fusion_delay),
                ahead: false,
                epilogues: true,
            },
        },
        queue: QueueLimits {
            ops_max: options.queue_ops,
            bytes_max: options.queue_bytes,
            permits_max: options.permits.max(1),
        },
        runner: Box::new(CpuRunner::new(runner_options, memory.clone())),
        memory,
        seed: options.seed,
    })
}
