//! `Device`: where values live, and the barriers over all of them.

use super::barrier::{Admit, Permit, Ready, Shutdown, WaitAll};
use super::future::TensorFuture;
use crate::engine::port::Port;
use crate::host::cpu::{self, CpuOptions};
use crate::memory::DeviceMemory;
use crate::sync::plain::{AtomicUsize, OnceLock, Ordering::Relaxed};
use crate::sync::{lock, statics};
use std::any::Any;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

/// Where tensors live and ops run. A handle: clone it freely.
///
/// The CPU device is asynchronous like a GPU: it has streams, queued work and threads of its own.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::Device;
/// let device = Device::try_gpu(0);             // a GPU where there is one, else the CPU
/// let x = device.randn([2, 3]);                // queued
/// assert_eq!(x.device(), device);
/// device.waitall().await?;                     // everything that was queued before is done
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct Device {
    pub(crate) port: &'static Port,
    /// While one is left, the device's idle threads sleep; afterwards they end.
    _token: Arc<Token>,
}

struct Token(&'static Port);

impl Drop for Token {
    fn drop(&mut self) {
        self.0.runner.abandon();
    }
}

/// What a device has done, and has in hand. Counts are of ops unless their name says otherwise.
///
/// `started + fused + skipped` is what has been taken up of `enqueued`; ops that failed at the call
/// were never queued.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Ops that were called and queued.
    pub enqueued: u64,
    /// Steps that were started: an op alone, or the first of a fused group.
    pub started: u64,
    /// Of those, how many a poll ran itself.
    pub inline: u64,
    /// Ops that ran as part of another op's step.
    pub fused: u64,
    /// Ops that nobody observed any more, and that were never run.
    pub skipped: u64,
    /// Values that failed, at the call or later.
    pub failed: u64,
    /// Ops that are queued or running.
    pub queued: usize,
    /// Steps that are submitted and not finished.
    pub in_flight: usize,
    /// Times that one stream had to wait for another.
    pub stream_waits: u64,
    /// Calls of regions that a GPU was given as one CUDA graph.
    pub graphs: u64,
    /// Bytes of values outside their nodes (values of up to 32 bytes lie in their node), and on a
    /// CPU of what is kept beside them: a weight that several products with few rows have read is
    /// kept packed as well, where there is room for that, and takes its bytes in float32 once more.
    /// A value that needs the room has it.
    pub bytes_live: usize,
    /// Largest `bytes_live` so far.
    pub bytes_peak: usize,
    /// Bytes of freed values that are kept for the next.
    pub bytes_cached: usize,
    /// Bytes copied by ops that change an operand in place
    /// ([`index_copy`](crate::TensorFuture::index_copy), `scatter`,
    /// [`slice_assign`](crate::TensorFuture::slice_assign)), because somebody else may still read
    /// it. Where it stays what it was, everything was done in place.
    pub copied_bytes: u64,
    /// Times that the system, or a GPU's driver, was asked for memory for a value (on a CPU, of 4
    /// KiB or more), because nothing that is kept fitted. Where it stays what it was, steps run in
    /// memory that is there.
    pub allocations: u64,
    /// Awaits that have ended: values, reads, `waitall`.
    pub barriers: u64,
    /// Time that those which had to wait have waited, added up.
    pub barrier_time: Duration,
}

statics! {
    static CPU: OnceLock<Device> = OnceLock::new();
    static COUNT: AtomicUsize = AtomicUsize::new(0);
}

impl Device {
    /// The process's CPU device, with one thread a core. Its threads start with the first op.
    ///
    /// ```
    /// assert_eq!(futensor::Device::cpu(), futensor::Device::cpu());
    /// ```
    pub fn cpu() -> Device {
        CPU.get_or_init(|| Device::of(cpu::open("cpu".into(), &CpuOptions::default()))).clone()
    }

    /// A CPU device of its own: threads, streams, limits, counters. Its threads end once its last
    /// handle is gone and all its work is done.
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

    /// Memory of the device: of a GPU its own, of the CPU the machine's.
    ///
    /// ```
    /// let memory = futensor::Device::cpu().memory();
    /// assert!(memory.free.is_none_or(|free| free <= memory.total));
    /// ```
    pub fn memory(&self) -> DeviceMemory {
        self.port.runner.memory()
    }

    /// Its name: `cpu`, `cpu:1`...
    pub fn name(&self) -> &str {
        &self.port.profile.name
    }

    /// What it has done and has in hand. Looks, and waits for nothing.
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

    /// Waits until everything that was enqueued on this device before this call is done: computed,
    /// fused, failed, or skipped because nobody observes it. MXNet's `waitall`, PyTorch's
    /// `synchronize`.
    ///
    /// # Errors
    /// The errors of *detached* work that failed since the last `waitall`: see
    /// [`Error::errors`](crate::Error::errors). A value whose handle lives keeps its own error; one
    /// that was dropped is silent.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the wait; the errors stay for the next one.
    #[doc(alias = "synchronize")]
    #[track_caller]
    pub fn waitall(&self) -> WaitAll {
        WaitAll::on(self.port, Location::caller())
    }

    /// Waits until the queue is short enough for more: backpressure for one producer.
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
    /// permit while your work is queued; dropping it lets the next one in.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the line; a permit that was just granted goes to the next.
    pub fn admit(&self) -> Admit {
        Admit::on(self.port)
    }

    /// A permit at once, if one is free and the queue is short enough: else a server answers 503.
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

    /// The orderly end: waits for everything that was enqueued before, refuses what comes after,
    /// and lets the threads end. Handles stay valid, and what they know (shape, error, whether they
    /// are ready) can be asked; but a read is an op of its own where it copies more than a few
    /// bytes, or from a GPU, and is refused then. So read what you need first.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu_with(Default::default());
    /// let x = device.ones([2]) + 1.0;
    /// device.shutdown().await?;
    /// assert!(x.is_ready());  // what came before is done
    /// assert!((&x + 1.0).await.unwrap_err().is_shutdown());  // what comes after is refused
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    ///
    /// A program that returns from `main` without it leaves queued work unrun.
    ///
    /// # Errors
    /// As [`waitall`](Self::waitall).
    #[track_caller]
    pub fn shutdown(&self) -> Shutdown {
        Shutdown::on(self.port, Location::caller())
    }

    /// Gives memory that is kept for later values back to the system; returns how many bytes.
    ///
    /// Freed memory is kept warm, since pages that nobody has touched cost more than most steps;
    /// what is kept stands in [`Stats::bytes_cached`], and is never more than the most that was
    /// live (or 64 MiB). Packed weights ([`Stats::bytes_live`]) that no product reads just now go
    /// too; who is multiplied with again is packed again.
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
    pub fn trim(&self) -> usize {
        self.port.runner.trim()
    }
}

/// The device of a value.
impl TensorFuture {
    /// The device that the value is, or will be, on.
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
