//! One GPU as a device: its options, and how it is opened.

use crate::cuda::device::driver_context;
use crate::cuda::worker::{CudaRunner, Settings};
use crate::engine::limits::Limits;
use crate::engine::port::{Opening, Port, Profile};
use crate::engine::pressure::QueueLimits;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::Memory;
use crate::options::{nanos, options};
use crate::tensor::device::Device;
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
}

impl Default for CudaOptions {
    fn default() -> CudaOptions {
        let spare_cores = std::thread::available_parallelism().is_ok_and(|n| n.get() > 2);
        CudaOptions {
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
        }
    }
}

options! { CudaOptions;
    /// Streams that steps run on: how many independent chains can be under way at once; 4 by
    /// default, from 1 to 64. One more is for copies to the device.
    streams: usize;
    /// How long the idle thread stays awake; 100 us by default, and not at all on machines with two
    /// cores or fewer.
    linger: Duration;
    /// How long a thread that waits for an awaited value asks before it sleeps; 40 us by default,
    /// and not at all on machines with two cores or fewer.
    spin: Duration;
    /// Longest time that a step is delayed in the hope of fusing with what follows; 50 us by
    /// default.
    fusion_delay: Duration;
    /// A step that takes longer than this ends the device with an error; off by default.
    watchdog: Option<Duration>;
    /// Whether each step runs to its end before the next is launched, so that a fault names its op.
    /// Off by default, on where the environment has `FUTENSOR_SYNC=1`.
    sync: bool;
    /// While somebody records ([`Device::record`]), every so many steps stand between two events
    /// that the GPU times, and the recording has the GPU's times of them; 1 times all of them.
    /// Nothing waits for the times. 0 by default: a recorded step then begins when it is launched,
    /// and ends when it is seen to be through.
    timed: u32;
    /// Whether a region ([`Device::region`]) that runs again is launched as one CUDA graph; on by
    /// default, off where the environment has `FUTENSOR_GRAPHS=never`, and while each step runs to
    /// its end (`sync`).
    graphs: bool;
    /// Whether each step has a range for a profiler: an NVTX range, named by the step's ops and the
    /// caller's line (`mul add sum (src/main.rs:12)`), stands around its launches on the device's
    /// thread, and a region that is launched step by step has one for each of these inside its own.
    /// Off by default, on where the environment has `FUTENSOR_NVTX=1`: `FUTENSOR_NVTX=1 nsys
    /// profile --trace=cuda,nvtx program`. Where no profiler is attached nothing is done, and
    /// nothing has to be installed.
    nvtx: bool;
    /// Whether products and convolutions of float32 may round their operands to TF32, as PyTorch's
    /// `allow_tf32` has it; off by default, on where the environment has `FUTENSOR_TF32=1`.
    tf32: bool;
    /// Whether convolutions go through cuDNN (version 9) where it is found and takes them: on
    /// tensor cores, and without columns in memory. Results repeat bit by bit either way, and each
    /// way has its own last bits. On by default, off where the environment has
    /// `FUTENSOR_CUDNN=never`.
    cudnn: bool;
    /// Whether the device has a library's handles made as it opens, in the background, so that the
    /// first product does not wait for one (a third of a second on some machines); off by default.
    /// For a block of ops see [`Region::warm`](crate::region::Region::warm).
    warm: bool;
    /// Bytes of freed memory that streams keep for their next steps, at most, instead of giving
    /// them back to the driver: two calls an op are saved. Pieces above 16 MiB are not kept, and
    /// where memory is short nothing is. 512 MiB by default; 0 for none.
    kept_bytes: usize;
    /// Bytes of page-locked host memory, through which elements go to the GPU and come from it, in
    /// pieces where they are many. It is had when the device opens. 64 MiB by default, 4 at least.
    pinned_bytes: usize;
    /// Bytes of values that may be alive at once; an op beyond fails with out-of-memory. No limit
    /// by default but the device's.
    bytes_max: usize;
    /// Steps that may be started and not finished; 256 by default.
    in_flight_ops: usize;
    /// Bytes of results that may be started and not finished; 4 GiB by default. A larger step runs
    /// alone.
    in_flight_bytes: usize;
    /// Steps that may be started on one stream and not finished; 64 by default.
    depth: u64;
    /// Queued ops up to which `ready` and `admit` let through; 4096 by default.
    queue_ops: usize;
    /// Bytes of queued results up to which `ready` and `admit` let through; 4 GiB by default.
    queue_bytes: usize;
    /// Permits that `admit` and `try_admit` give out at once; 64 by default.
    permits: usize;
    /// Seed of the device's generator; 0 by default.
    seed: u64;
}

/// The process's GPUs, by number.
static GPUS: Mutex<Vec<(usize, Device)>> = Mutex::new(Vec::new());
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The process's device for a GPU.
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
        warm: options.warm,
        kept_bytes: options.kept_bytes,
        pinned_bytes: options.pinned_bytes,
    };
    Device::of(Port::open(Opening {
        profile: Profile {
            name,
            inline: false,
            in_memory: false,
            limits: Limits {
                streams: options.streams.clamp(1, 64) as u16,
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
    /// A CUDA device of its own on the GPU with this number: streams, limits, counters. Its threads
    /// end once its last handle is gone and all its work is done. A fault on the GPU ends every
    /// device on it.
    ///
    /// # Errors
    /// As [`Device::cuda`].
    #[track_caller]
    pub fn cuda_with(index: usize, options: CudaOptions) -> Result<Device> {
        let at = Location::caller();
        driver_context::device(index).map_err(|why| {
            let text = format!("cuda:{index} is not there: {why}");
            Error::new(ErrorKind::Device, "cuda", text, at)
        })?;
        Ok(open(index, format!("cuda:{index}/{}", COUNT.fetch_add(1, Relaxed) + 1), options))
    }

    /// The GPU and its software, a line each: the GPU, its driver, the compiler of kernels, the
    /// libraries for products and for convolutions, or why a library is not asked; then each set of
    /// sizes so far that cuDNN declined, with its reason. The device's own name where it is no GPU.
    /// The call looks for a library that nobody has needed yet, which takes a moment.
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

    /// The name of the GPU, "NVIDIA H200" say; the device's own name where it is none.
    pub fn hardware(&self) -> String {
        let driver = self.port.runner.as_any().downcast_ref::<CudaRunner>();
        let found = driver.and_then(|driver| driver_context::name(driver.ordinal()));
        found.unwrap_or_else(|| self.name().to_owned())
    }
}
