//! The CPU as a device: its options, and its opening.

use super::runner::{CpuRunner, RunnerOptions};
use crate::engine::limits::Limits;
use crate::engine::port::{Opening, Port, Profile};
use crate::engine::pressure::QueueLimits;
use crate::memory::Memory;
use crate::options::{nanos, options};
use std::time::Duration;

/// How a CPU device of one's own is made. Start from the default and change what matters.
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
        }
    }
}

options! { CpuOptions;
    /// Streams: how many independent chains can be under way at once. By default as many as
    /// threads, and at least 2; from 1 to 1024.
    streams: usize;
    /// Whether an awaiting poll may run a small ready step itself (the default), or every step is
    /// run by the device's threads.
    inline: bool;
    /// How much lower the compute threads' priority is than their creator's, in units of `nice`; 8
    /// by default, 0 switches it off. Linux only.
    nice: i32;
    /// Whether a compute thread that another one wakes begins on another core; true by default.
    /// For that the threads' affinity is set, within what it was when they started. Linux only.
    spread: bool;
    /// How long an idle thread stays awake; 100 us by default. Ten times as long while a call of a
    /// region runs.
    linger: Duration;
    /// Longest time that a step is delayed in the hope of fusing with what follows; 50 us by
    /// default, and never more than 2 % of its own estimated time. Zero switches it off.
    fusion_delay: Duration;
    /// A step that runs longer than this ends the device with an error; off by default.
    watchdog: Option<Duration>;
    /// Bytes of values that may be alive at once; an op beyond fails with out-of-memory. No limit
    /// by default.
    bytes_max: usize;
    /// Steps that may be started and not finished; 64 by default.
    in_flight_ops: usize;
    /// Bytes of results that may be started and not finished; 1 GiB by default. A larger step runs
    /// alone.
    in_flight_bytes: usize;
    /// Queued ops up to which `ready` and `admit` let through; 1024 by default.
    queue_ops: usize;
    /// Bytes of queued results up to which `ready` and `admit` let through; 256 MiB by default.
    queue_bytes: usize;
    /// Permits that `admit` and `try_admit` give out at once; 64 by default.
    permits: usize;
    /// Seed of the device's generator; 0 by default.
    seed: u64;
}

impl CpuOptions {
    /// Compute threads; by default one a core. From 1 to 64.
    ///
    /// They call the wakers of what they have run, and drop what came with an op. Where that takes
    /// long, or waits for this very device, and no other of them is free, one more thread takes its
    /// place after some milliseconds.
    pub fn threads(mut self, threads: usize) -> CpuOptions {
        self.threads = threads.clamp(1, 64);
        self.streams = self.threads.max(2);
        self
    }
}

/// Opens one. Its threads start with the first op.
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
