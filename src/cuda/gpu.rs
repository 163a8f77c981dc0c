//! A GPU as a device: its options, and how it is opened.

use crate::cuda::device::driver_context;
use crate::cuda::kernels::halves::HalfProducts;
use crate::cuda::worker::{CudaRunner, Settings};
use crate::engine::limits::Limits;
use crate::engine::port::{Opening, Port, Profile};
use crate::engine::pressure::QueueLimits;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::Memory;
use crate::options::{self, nanos, options};
use crate::tensor::device::Device;
use std::ffi::c_void;
use std::panic::Location;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// The options of a CUDA device. Start from the default and change the options that matter.
///
/// ```
/// use futensor::{Device, cuda::CudaOptions};
/// let limit = std::time::Duration::from_secs(60);
/// let options = CudaOptions::default().streams(2).watchdog(Some(limit));
/// match Device::cuda_with(0, options) {
///     Ok(device) => assert!(device.name().starts_with("cuda:0")),
///     // The error names the missing library, and the places of the search.
///     Err(error) => assert!(error.is_device()),
/// }
/// ```
#[derive(Clone, Debug)]
pub struct CudaOptions {
    /// Of somebody else's, by its handle.
    stream: Option<usize>,
    streams: usize,
    linger: Duration,
    spin: Duration,
    fusion_delay: Duration,
    watchdog: Option<Duration>,
    sync: bool,
    timed: u32,
    graphs: bool,
    nvtx: bool,
    tf32: bool,
    cudnn: bool,
    half_products: HalfProducts,
    warm: bool,
    kept_bytes: usize,
    pinned_bytes: usize,
    bytes_max: usize,
    in_flight_ops: usize,
    in_flight_bytes: usize,
    depth: u64,
    queue_ops: usize,
    queue_bytes: usize,
    permits: usize,
    seed: u64,
    check_finite: bool,
}

impl Default for CudaOptions {
    fn default() -> CudaOptions {
        let spare_cores = std::thread::available_parallelism().is_ok_and(|n| n.get() > 2);
        CudaOptions {
            stream: None,
            streams: 4,
            linger: Duration::from_micros(if spare_cores { 100 } else { 0 }),
            spin: Duration::from_micros(if spare_cores { 40 } else { 0 }),
            fusion_delay: Duration::from_micros(50),
            watchdog: None,
            sync: std::env::var_os("FUTENSOR_SYNC").is_some_and(|v| v != "0" && !v.is_empty()),
            timed: 0,
            graphs: std::env::var_os("FUTENSOR_GRAPHS").is_none_or(|v| v != "never"),
            nvtx: std::env::var_os("FUTENSOR_NVTX").is_some_and(|v| v != "0" && !v.is_empty()),
            tf32: std::env::var_os("FUTENSOR_TF32").is_some_and(|v| v == "1"),
            cudnn: std::env::var_os("FUTENSOR_CUDNN").is_none_or(|v| v != "never"),
            half_products: match std::env::var("FUTENSOR_HALVES").as_deref() {
                Ok("rounded") => HalfProducts::Rounded,
                Ok("exact") => HalfProducts::Exact,
                _ => HalfProducts::Split,
            },
            warm: false,
            kept_bytes: 512 << 20,
            pinned_bytes: 64 << 20,
            bytes_max: usize::MAX,
            in_flight_ops: 256,
            in_flight_bytes: 4 << 30,
            depth: 64,
            queue_ops: 4096,
            queue_bytes: 4 << 30,
            permits: 64,
            seed: 0,
            check_finite: options::checks_finite(),
        }
    }
}

impl CudaOptions {
    /// An existing stream (a `CUstream`, such as PyTorch's `torch.cuda.current_stream()`; null is
    /// the legacy default stream) on which all steps run, in the context that it belongs to: they
    /// are ordered with the work that other code queues on it. Instead of
    /// [`streams`](Self::streams). Copies from the host and urgent steps have streams of their own,
    /// behind which this one waits where it has to.
    ///
    /// Work is queued on the stream by the device's thread, some time after the call of an op. To
    /// queue other work behind a value, await the value, or queue it in a
    /// [`CudaRun::call`](crate::cuda::CudaRun::call).
    ///
    /// # Safety
    /// The stream is one of this GPU, and stays until the device has ended: until its last handle
    /// and value are dropped and its threads are gone. Nobody captures it into a graph meanwhile.
    #[allow(unsafe_code)]
    pub unsafe fn stream(mut self, stream: *mut c_void) -> CudaOptions {
        self.stream = Some(stream.addr());
        self
    }
}

options! { CudaOptions;
    /// The number of streams for steps: how many independent chains of ops can be in flight at
    /// once; 4 by default, from 1 to 64. Copies to the device have one more stream.
    streams: usize;
    /// How long the idle thread stays awake; 100 us by default, or zero on machines with two
    /// cores or fewer.
    linger: Duration;
    /// How long a thread that waits for an awaited value polls before it sleeps; 40 us by default,
    /// or zero on machines with two cores or fewer.
    spin: Duration;
    /// The longest time that a step is held back so that it can fuse with later ops; 50 us by
    /// default.
    fusion_delay: Duration;
    /// If a step runs longer than this, the device is lost and its values fail; off by default.
    watchdog: Option<Duration>;
    /// Whether each step completes before the next one is launched, so that a fault names its op.
    /// Off by default; `FUTENSOR_SYNC=1` in the environment turns it on.
    sync: bool;
    /// The sampling interval of GPU timings in recordings ([`Device::record`]): every nth step is
    /// placed between two timed events, so that the recording has the GPU's own times; 1 times
    /// every step. Nothing waits for the times. 0, the default, turns this off: a recorded step
    /// then begins when it is launched, and ends when the host sees its completion.
    timed: u32;
    /// Whether a repeated region ([`Device::region`]) is launched as one CUDA graph. On by default;
    /// `FUTENSOR_GRAPHS=never` in the environment turns it off, as does `sync`.
    graphs: bool;
    /// Whether each step has an NVTX range for a profiler. The range encloses the launches of the
    /// step on the device's thread; its name is the step's ops and the caller's line (`mul add sum
    /// (src/main.rs:12)`). A region that is launched step by step has a range for each step inside
    /// its own range. Off by default; `FUTENSOR_NVTX=1` in the environment turns it on:
    /// `FUTENSOR_NVTX=1 nsys profile --trace=cuda,nvtx program`. Without a profiler the ranges do
    /// nothing, and nothing has to be installed.
    nvtx: bool;
    /// Whether float32 products and convolutions may round their operands to TF32, like PyTorch's
    /// `allow_tf32`. Off by default; `FUTENSOR_TF32=1` in the environment turns it on.
    tf32: bool;
    /// Whether convolutions use cuDNN (version 9), if it is installed and supports their sizes: on
    /// tensor cores, and without columns in memory. Results are bitwise reproducible either way,
    /// but the last bits differ between the two. On by default; `FUTENSOR_CUDNN=never` in the
    /// environment turns it off.
    cudnn: bool;
    /// How half weights are multiplied: [`HalfProducts::Split`] by default. `rounded` or `exact` in
    /// `FUTENSOR_HALVES` chooses another way.
    half_products: HalfProducts;
    /// Whether the device creates library handles in the background when it opens, so that the
    /// first product does not wait for one (a third of a second on some machines); off by default.
    /// For a block of ops see [`Region::warm`](crate::region::Region::warm).
    warm: bool;
    /// The most bytes of freed memory that streams keep for their next steps instead of returning
    /// it to the driver, which saves two driver calls per op. Blocks above 16 MiB are not kept, and
    /// under memory pressure none are. 512 MiB by default; 0 for none.
    kept_bytes: usize;
    /// Bytes of page-locked host memory for copies to and from the GPU; larger copies are split.
    /// Allocated when the device opens. 64 MiB by default, at least 4 MiB.
    pinned_bytes: usize;
    /// The most bytes of values that may be alive at once; an op that would exceed the limit fails
    /// with an out-of-memory error. By default only the device's memory is a limit.
    bytes_max: usize;
    /// The most steps in flight (started and not finished); 256 by default.
    in_flight_ops: usize;
    /// The most bytes of results of steps in flight; 4 GiB by default. A larger step runs
    /// alone.
    in_flight_bytes: usize;
    /// The most steps in flight on one stream; 64 by default.
    depth: u64;
    /// The number of queued ops up to which `ready` and `admit` complete; 4096 by default.
    queue_ops: usize;
    /// The bytes of queued results up to which `ready` and `admit` complete; 4 GiB by default.
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

/// The GPUs of the process, by number.
static GPUS: Mutex<Vec<(usize, Device)>> = Mutex::new(Vec::new());
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The shared device for a GPU.
pub(crate) fn shared(index: usize) -> Result<Device, String> {
    driver_context::device(index)?;
    let mut gpus = GPUS.lock().unwrap_or_else(|p| p.into_inner());
    if let Some((_, device)) = gpus.iter().find(|(i, _)| *i == index) {
        return Ok(device.clone());
    }
    let device = open(index, format!("cuda:{index}"), CudaOptions::default());
    gpus.push((index, device.clone()));
    Ok(device)
}

pub(crate) fn count() -> usize {
    driver_context::count().unwrap_or(0)
}

fn open(index: usize, name: String, options: CudaOptions) -> Device {
    let memory = Memory::new(options.bytes_max);
    let settings = Settings {
        ordinal: index,
        linger: options.linger,
        spin: options.spin,
        watchdog: options.watchdog,
        sync: options.sync,
        timed: options.timed,
        graphs: options.graphs && !options.sync,
        nvtx: options.nvtx,
        tf32: options.tf32,
        cudnn: options.cudnn,
        half_products: options.half_products,
        warm: options.warm,
        stream: options.stream,
        kept_bytes: options.kept_bytes,
        pinned_bytes: options.pinned_bytes,
    };
    Device::of(Port::open(Opening {
        profile: Profile {
            name,
            inline: false,
            in_memory: false,
            check_finite: options.check_finite,
            limits: Limits {
                streams: if options.stream.is_some() {
                    1
                } else {
                    options.streams.clamp(1, 64) as u16
                },
                depth_max: options.depth.max(1),
                ops_max: options.in_flight_ops.max(1),
                bytes_max: options.in_flight_bytes,
                fusion_delay_max_ns: nanos(options.fusion_delay),
                ahead: true,
                epilogues: false,
            },
        },
        queue: QueueLimits {
            ops_max: options.queue_ops,
            bytes_max: options.queue_bytes,
            permits_max: options.permits.max(1),
        },
        runner: Box::new(CudaRunner::new(settings, memory.clone())),
        memory,
        seed: options.seed,
    }))
}

impl Device {
    /// A separate CUDA device on the GPU with this number, with its own streams, limits and
    /// counters. Its threads end when the last handle is dropped and all work is done. A fault on
    /// the GPU ends every device on it.
    ///
    /// # Errors
    /// As [`Device::cuda`].
    #[track_caller]
    pub fn cuda_with(index: usize, options: CudaOptions) -> Result<Device> {
        let at = Location::caller();
        driver_context::device(index).map_err(|why| {
            let text = format!("cuda:{index} is not available: {why}");
            Error::new(ErrorKind::Device, "cuda", text, at)
        })?;
        Ok(open(index, format!("cuda:{index}/{}", COUNT.fetch_add(1, Relaxed) + 1), options))
    }

    /// A description of the GPU and its software, one line each: the GPU, its driver, the kernel
    /// compiler, and the libraries for products and convolutions, or why a library is not used;
    /// then each set of sizes that cuDNN has declined so far, with its reason. For other devices,
    /// the device's name. The call searches for libraries that have not been needed yet, which
    /// takes a moment.
    ///
    /// ```
    /// use futensor::Device;
    /// assert_eq!(Device::cpu().libraries(), "cpu");
    /// if let Ok(device) = Device::cuda(0) {
    ///     println!("{}", device.libraries());    // ... convolutions: cuDNN 91500
    /// }
    /// ```
    pub fn libraries(&self) -> String {
        let driver = self.port.runner.as_any().downcast_ref::<CudaRunner>();
        driver.map_or_else(|| self.name().to_owned(), CudaRunner::report)
    }

    /// The name of the GPU, such as "NVIDIA H200"; for other devices, the device's name.
    pub fn hardware(&self) -> String {
        let driver = self.port.runner.as_any().downcast_ref::<CudaRunner>();
        let found = driver.and_then(|driver| driver_context::name(driver.ordinal()));
        found.unwrap_or_else(|| self.name().to_owned())
    }
}
