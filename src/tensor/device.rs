//! `Device`: where values live, and the barriers over all values of a device.

use super::barrier::{Admit, Permit, Ready, Shutdown, TrimWait, WaitAll};
use super::future::TensorFuture;
use crate::engine::port::Port;
use crate::host::cpu::{self, CpuOptions};
use crate::memory::{DeviceMemory, PoolMemory};
use crate::sync::plain::{AtomicUsize, OnceLock, Ordering::Relaxed};
use crate::sync::{lock, statics};
use std::any::Any;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

/// Where tensors live and ops run. A device is a handle: clone it freely.
///
/// The CPU device is asynchronous like a GPU: it has streams, a queue and its own threads.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::Device;
/// let device = Device::try_gpu(0);             // the GPU if there is one, otherwise the CPU
/// let x = device.randn([2, 3]);                // queued
/// assert_eq!(x.device(), device);
/// device.waitall().await?;                     // everything that was queued before is done
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct Device {
    pub(crate) port: &'static Port,
    /// Idle threads of the device sleep while a token exists, and end when the last one is dropped.
    _token: Arc<Token>,
}

struct Token(&'static Port);

impl Drop for Token {
    fn drop(&mut self) {
        self.0.runner.abandon();
    }
}

/// Counters of a device. They count ops unless their name says otherwise.
///
/// Of the `enqueued` ops, `started + fused + skipped` have left the queue. Ops that failed at the
/// call were never queued.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Ops that were called and queued.
    pub enqueued: u64,
    /// Steps that were started. A step is a single op or a fused group; a group counts here once.
    pub started: u64,
    /// Started steps that a poll ran itself.
    pub inline: u64,
    /// Ops that ran as part of another op's step.
    pub fused: u64,
    /// Ops that were never run, because they had no observer left.
    pub skipped: u64,
    /// Values that failed, at the call or later.
    pub failed: u64,
    /// Ops that are queued or running.
    pub queued: usize,
    /// Steps that were submitted and have not finished.
    pub in_flight: usize,
    /// Times that one stream had to wait for another.
    pub stream_waits: u64,
    /// Calls of regions that were launched as one CUDA graph.
    pub graphs: u64,
    /// Bytes of values that are stored outside their nodes (values of up to 32 bytes are stored in
    /// the node). On a CPU this includes packed copies of weights: a weight that several products
    /// with few rows have read is also kept packed, if memory allows, which takes its size in
    /// float32 once more. Packed copies are evicted under memory pressure.
    pub bytes_live: usize,
    /// Largest `bytes_live` so far. An allocation that was refused is no part of it.
    pub bytes_peak: usize,
    /// Bytes of freed values that are kept for later values.
    pub bytes_cached: usize,
    /// Bytes copied by ops that change an operand in place
    /// ([`index_copy`](crate::TensorFuture::index_copy), `scatter`,
    /// [`slice_assign`](crate::TensorFuture::slice_assign)), because another handle or op may still
    /// read it. If this count does not grow, every change was made in place.
    pub copied_bytes: u64,
    /// How often memory for a value (on a CPU, of 4 KiB or more) was requested from the system or
    /// the GPU's driver, because no kept memory fitted. If this count does not grow, all steps
    /// reuse memory.
    pub allocations: u64,
    /// Awaits that have completed: of values, of reads, and of `waitall`.
    pub barriers: u64,
    /// Total time that these awaits have waited.
    pub barrier_time: Duration,
}

statics! {
    static CPU: OnceLock<Device> = OnceLock::new();
    static COUNT: AtomicUsize = AtomicUsize::new(0);
}

impl Device {
    /// The CPU device of the process, with one thread per core. Its threads start with the first
    /// op.
    ///
    /// ```
    /// assert_eq!(futensor::Device::cpu(), futensor::Device::cpu());
    /// ```
    pub fn cpu() -> Device {
        CPU.get_or_init(|| Device::of(cpu::open("cpu".into(), &CpuOptions::default()))).clone()
    }

    /// A separate CPU device, with its own threads, streams, limits and counters. The threads end
    /// when the last handle is dropped and all work is done.
    pub fn cpu_with(options: CpuOptions) -> Device {
        Device::of(cpu::open(format!("cpu:{}", COUNT.fetch_add(1, Relaxed) + 1), &options))
    }

    /// A handle on a port's device.
    pub(crate) fn of(port: &'static Port) -> Device {
        let mut slot = lock(&port.life.token);
        let held = slot
            .upgrade()
            .and_then(|token: Arc<dyn Any + Send + Sync>| token.downcast::<Token>().ok());
        let token = held.unwrap_or_else(|| {
            let token = Arc::new(Token(port));
            *slot = Arc::downgrade(&token) as std::sync::Weak<dyn Any + Send + Sync>;
            token
        });
        Device { port, _token: token }
    }

    /// The memory of the device: a GPU's own memory, or the memory of the machine for a CPU.
    ///
    /// ```
    /// let memory = futensor::Device::cpu().memory();
    /// assert!(memory.free.is_none_or(|free| free <= memory.total));
    /// ```
    #[doc(alias = "mem_get_info")]
    pub fn memory(&self) -> DeviceMemory {
        self.port.runner.memory()
    }

    /// How much memory the device has in use, has reserved, and had in use at most, by pool. Does
    /// not wait. A GPU has only the pool of values before its first op.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu_with(Default::default());
    /// let x = (device.ones([1000]) + 1.0).await?;
    /// let [values] = device.pools()[..] else { panic!("one pool") };
    /// assert_eq!(values.name, "values");
    /// assert!(4000 <= values.used && values.used <= values.peak.min(values.reserved));
    /// # drop(x);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[doc(alias("memory_allocated", "memory_reserved", "memory_stats"))]
    pub fn pools(&self) -> Vec<PoolMemory> {
        let bytes = self.port.memory.bytes();
        let (used, reserved) = (bytes.live, bytes.live + bytes.cached);
        let mut all = vec![PoolMemory { name: "values", used, reserved, peak: bytes.peak }];
        all.extend(self.port.runner.pools());
        all
    }

    /// The name of the device: `cpu`, `cpu:1`, `cuda:0`...
    pub fn name(&self) -> &str {
        &self.port.profile.name
    }

    /// The counters of the device. Does not wait.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu_with(Default::default());
    /// let y = device.ones([2, 2]) * 3.0;
    /// device.waitall().await?;
    /// let stats = device.stats();
    /// assert_eq!(stats.started + stats.fused, stats.enqueued);
    /// # drop(y);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[doc(alias("memory_allocated", "memory_stats"))]
    pub fn stats(&self) -> Stats {
        let c = &self.port.counters;
        let bytes = self.port.memory.bytes();
        let queued = self.port.pressure.queued().0;
        let inline = self.port.polls.inline();
        let (fused, skipped) = (c.fused.load(Relaxed), c.skipped.load(Relaxed));
        Stats {
            enqueued: self.port.pressure.came(),
            started: c.started.load(Relaxed) + inline,
            inline,
            fused,
            skipped,
            failed: c.failed.load(Relaxed),
            queued,
            in_flight: c.in_flight.load(Relaxed),
            stream_waits: c.events.load(Relaxed),
            graphs: c.graphs.load(Relaxed),
            bytes_live: bytes.live,
            bytes_peak: bytes.peak,
            bytes_cached: bytes.cached,
            copied_bytes: bytes.copied,
            allocations: bytes.asked,
            barriers: self.port.polls.barriers(),
            barrier_time: Duration::from_nanos(self.port.polls.waited_ns()),
        }
    }

    /// Waits until all work that was enqueued on this device before this call is done: computed,
    /// fused, failed, or skipped because it has no observer. MXNet's `waitall`, PyTorch's
    /// `synchronize`.
    ///
    /// # Errors
    /// The errors of *detached* work that failed since the last `waitall`: see
    /// [`Error::errors`](crate::Error::errors). A value with a live handle keeps its own error; a
    /// dropped value reports none.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the wait; the next `waitall` returns the errors.
    #[doc(alias = "synchronize")]
    #[track_caller]
    pub fn waitall(&self) -> WaitAll {
        WaitAll::on(self.port, Location::caller())
    }

    /// Waits until the queue has room for more work: backpressure for one producer.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// for i in 0..10 {
    ///     device.ready().await;
    ///     (device.ones([100]) * i).detach();
    /// }
    /// # });
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the future gives up the wait.
    pub fn ready(&self) -> Ready {
        Ready::on(self.port)
    }

    /// Waits for a permit: backpressure for many producers, first come, first served. Keep the
    /// permit while your work is queued; dropping it admits the next producer.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the line; a permit that was just granted goes to the next
    /// producer.
    pub fn admit(&self) -> Admit {
        Admit::on(self.port)
    }

    /// A permit, if one is free and the queue has room, without waiting. On `None` a server answers
    /// 503.
    ///
    /// ```
    /// use futensor::{CpuOptions, Device};
    /// let device = Device::cpu_with(CpuOptions::default().permits(1));
    /// let permit = device.try_admit();
    /// assert!(permit.is_some() && device.try_admit().is_none());
    /// ```
    pub fn try_admit(&self) -> Option<Permit> {
        self.port.pressure.try_admit().then(|| Permit::on(self.port))
    }

    /// Shuts the device down in order: waits for all work that was enqueued before, refuses later
    /// work, and ends the threads. Handles stay valid, and still report shape, error and readiness.
    /// A read of more than a few bytes, or from a GPU, is an op itself and is refused, so read what
    /// you need first.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu_with(Default::default());
    /// let x = device.ones([2]) + 1.0;
    /// device.shutdown().await?;
    /// assert!(x.is_ready());  // earlier work is done
    /// assert!((&x + 1.0).await.unwrap_err().is_shutdown());  // later work is refused
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    ///
    /// If `main` returns without a shutdown, queued work does not run.
    ///
    /// # Errors
    /// As [`waitall`](Self::waitall).
    #[track_caller]
    pub fn shutdown(&self) -> Shutdown {
        Shutdown::on(self.port, Location::caller())
    }

    /// Returns memory that is kept for later values to the system; the result is the number of
    /// bytes.
    ///
    /// Freed memory is kept for reuse, since touching new pages costs more than most steps.
    /// [`Stats::bytes_cached`] counts the kept memory; it never exceeds the peak of live memory (or
    /// 64 MiB). Packed weights ([`Stats::bytes_live`]) that no running product reads are freed too;
    /// weights are repacked on their next use.
    ///
    /// The device's threads free large values some time after their last handles are gone.
    /// [`trim_wait`](Self::trim_wait) waits for that first.
    ///
    /// A GPU's thread does it when it comes to it, so 0 is returned: it gives back what the
    /// driver's pool keeps and the memory of graphs ([`Region`](crate::region::Region)), and
    /// unloads kernels that were not used since the last call. What is needed again is made again.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu_with(Default::default());
    /// for _ in 0..3 {
    ///     device.rand([1 << 20]).sum_all().await?;
    /// }
    /// let kept = device.stats().bytes_cached;
    /// assert!(device.trim() >= kept);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[doc(alias = "empty_cache")]
    pub fn trim(&self) -> usize {
        self.port.runner.trim()
    }

    /// Frees what was dropped before this call, and then [trims](Self::trim). When the future ends,
    /// the memory of all dropped values belongs to the system again.
    ///
    /// [`waitall`](Self::waitall) waits for work, not for memory: the device's threads free large
    /// values later. `trim_wait` waits for all work that was queued before the call, as `waitall`
    /// does, and does not report detached errors. Later work does not delay it. On a CPU device a
    /// thread of its own gives the memory back, so that no poll does.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu_with(Default::default());
    /// let values: Vec<_> = (0..10).map(|_| device.rand([1 << 20])).collect();
    /// device.waitall().await?;
    /// drop(values);
    /// device.trim_wait().await?;
    /// let stats = device.stats();
    /// assert_eq!((stats.bytes_live, stats.bytes_cached), (0, 0));
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// Where the wait is denied ([`deny_barriers`](crate::barrier::deny_barriers)).
    ///
    /// # Cancel safety
    /// Dropping the future gives up the wait: what was dropped is freed all the same, and nothing
    /// is trimmed unless that has begun.
    #[doc(alias = "empty_cache")]
    #[track_caller]
    pub fn trim_wait(&self) -> TrimWait {
        TrimWait::on(self.port, Location::caller())
    }
}

/// The device of a value.
impl TensorFuture {
    /// The device of this value, whether or not the value is computed yet.
    pub fn device(&self) -> Device {
        Device::of(self.port())
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Device) -> bool {
        std::ptr::eq(self.port, other.port)
    }
}

impl Eq for Device {}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.name())
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
