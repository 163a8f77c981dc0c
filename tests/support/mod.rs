//! The common part of the tests of the contract: kinds of devices, gates, deadlines, seeds.
//!
//! A gate is a custom op that waits until its test opens it, so that a test decides what is running
//! and what is queued. Nothing here sleeps in order to be right.

#![allow(dead_code)] // Each test target uses its part.

pub mod browser;
pub mod op_names;

use futensor::cuda::{CudaArg, CudaGrid, CudaKernel, CudaOptions, CudaRun};
use futensor::custom::{CpuRun, Meta, Operation, Refusal, custom};
use futensor::{CpuOptions, Device, TensorFuture};
use std::collections::HashMap;
use std::future::IntoFuture;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// Devices on which a law holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Two threads, and all else as it comes.
    Cpu,
    /// No step is run by a poll.
    CpuWithoutInline,
    /// One thread, so that one step blocks all others.
    CpuOneThread,
    /// Nothing is delayed, and idle threads sleep at once.
    CpuImpatient,
    /// One stream of a simulated GPU: only in a process that has the simulated driver.
    Cuda,
}

/// What a trial panics with where the device has no such thing: it is ignored then.
pub struct NotHere(pub &'static str);

/// Every kind.
pub const ALL: &[Kind] =
    &[Kind::Cpu, Kind::CpuWithoutInline, Kind::CpuOneThread, Kind::CpuImpatient];
/// Those that can be inside two steps at once.
pub const PARALLEL: &[Kind] = &[Kind::Cpu, Kind::CpuWithoutInline, Kind::CpuImpatient];

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Cpu => "cpu",
            Kind::CpuWithoutInline => "cpu_without_inline",
            Kind::CpuOneThread => "cpu_one_thread",
            Kind::CpuImpatient => "cpu_impatient",
            Kind::Cuda => "simulated_cuda",
        }
    }

    pub fn threads(self) -> usize {
        if matches!(self, Kind::CpuOneThread | Kind::Cuda) { 1 } else { 2 }
    }

    pub fn options(self) -> CpuOptions {
        // At the priority of all else: a busy machine is not to look like a hang.
        let options = CpuOptions::default().threads(self.threads()).nice(0);
        match self {
            Kind::Cpu | Kind::CpuOneThread => options,
            Kind::Cuda => std::panic::resume_unwind(Box::new(NotHere("options of a CPU device"))),
            Kind::CpuWithoutInline => options.inline(false),
            Kind::CpuImpatient => options.fusion_delay(Duration::ZERO).linger(Duration::ZERO),
        }
    }

    /// A fresh device of this kind.
    pub fn device(self) -> Device {
        if self == Kind::Cuda {
            return Device::cuda_with(0, Kind::gpu()).expect("a simulated GPU");
        }
        Device::cpu_with(self.options())
    }

    fn gpu() -> CudaOptions {
        CudaOptions::default().streams(1).depth(1).in_flight_ops(1)
    }

    /// One that checks its ops for what is not finite.
    pub fn checked_device(self) -> Device {
        if self == Kind::Cuda {
            let options = Kind::gpu().check_finite(true);
            return Device::cuda_with(0, options).expect("a simulated GPU");
        }
        self.device_with(|options| options.check_finite(true))
    }

    pub fn device_with(self, change: impl FnOnce(CpuOptions) -> CpuOptions) -> Device {
        Device::cpu_with(change(self.options()))
    }

    /// Keeps every thread of the device inside a step, until released.
    pub fn occupy(self, device: &Device) -> Busy {
        let gate = Gate::new();
        let held = (0..self.threads()).map(|_| gate.op(&device.ones([1]))).collect();
        gate.wait_entered(self.threads());
        Busy { gate, held }
    }
}

/// Runs what can be awaited to its end on this thread.
pub fn block_on<F: IntoFuture>(f: F) -> F::Output {
    futures::executor::block_on(f.into_future())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// A device whose threads are all inside a step.
pub struct Busy {
    gate: Gate,
    held: Vec<TensorFuture>,
}

impl Busy {
    pub fn release(self) {
        self.gate.open();
        drop(self.held);
    }
}

#[derive(Default)]
struct Door {
    state: Mutex<(Vec<ThreadId>, bool)>,
    changed: Condvar,
}

impl Door {
    fn pass(&self) {
        let mut state = lock(&self.state);
        state.0.push(std::thread::current().id());
        self.changed.notify_all();
        while !state.1 {
            state = self.changed.wait(state).unwrap_or_else(|p| p.into_inner());
        }
    }
}

/// A gate: ops that have begun stay inside until it opens. Dropping it opens it.
#[derive(Default)]
pub struct Gate(Arc<Door>);

impl Gate {
    pub fn new() -> Gate {
        Gate::default()
    }

    /// The same elements (float32), once the gate is open.
    #[track_caller]
    pub fn op(&self, x: &TensorFuture) -> TensorFuture {
        custom(Gated(self.0.clone()), &[x])
    }

    /// Waits (the test's thread does) until this many ops are or have been inside.
    pub fn wait_entered(&self, n: usize) {
        let mut state = lock(&self.0.state);
        while state.0.len() < n {
            state = self.0.changed.wait(state).unwrap_or_else(|p| p.into_inner());
        }
    }

    /// How many ops have begun.
    pub fn entered(&self) -> usize {
        lock(&self.0.state).0.len()
    }

    /// The threads that were inside.
    pub fn threads(&self) -> Vec<ThreadId> {
        lock(&self.0.state).0.clone()
    }

    pub fn open(&self) {
        lock(&self.0.state).1 = true;
        self.0.changed.notify_all();
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.open();
    }
}

/// An identity on float32 that stays inside until its door opens. On CUDA it keeps the device's
/// thread, which an op must not do: that is what the tests need.
struct Gated(Arc<Door>);

impl Operation for Gated {
    fn name(&self) -> &str {
        "gated"
    }
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        same_meta(inputs)
    }
    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        self.0.pass();
        copy_input(run)
    }
    fn run_cuda(&self, run: &mut CudaRun<'_>) -> Result<(), Refusal> {
        copy_on_gpu(run)?;
        self.0.pass();
        Ok(())
    }
}

/// An identity on float32 that does something as it is taken up.
struct Effect<F>(&'static str, F);

impl<F: Fn() -> Result<(), Refusal> + Send + Sync + 'static> Operation for Effect<F> {
    fn name(&self) -> &str {
        self.0
    }
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        same_meta(inputs)
    }
    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        (self.1)()?;
        copy_input(run)
    }
    fn run_cuda(&self, run: &mut CudaRun<'_>) -> Result<(), Refusal> {
        copy_on_gpu(run)?;
        (self.1)()
    }
}

/// The same elements (float32), after an effect, on every device; a refusal fails it.
#[track_caller]
pub fn identity(
    name: &'static str,
    x: &TensorFuture,
    effect: impl Fn() -> Result<(), Refusal> + Send + Sync + 'static,
) -> TensorFuture {
    custom(Effect(name, effect), &[x])
}

/// A copy of the first input, contiguous float32, by a kernel. Nothing is launched before its op
/// has returned; it is refused while the kernel is being compiled, and the op is asked again.
#[allow(unsafe_code)]
pub fn copy_on_gpu(run: &mut CudaRun<'_>) -> Result<(), Refusal> {
    const COPY: CudaKernel = CudaKernel::new(
        "copy",
        r#"extern "C" __global__ void copy(const float* x, float* out, long long n, int repeated) {
            long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
            if (i < n) out[i] = x[repeated ? 0 : i];
        }"#,
    );
    let (x, out) = (run.inputs()[0], run.output());
    let repeated = x.strides().iter().all(|&s| s == 0);
    assert!(repeated || x.is_contiguous(), "what the tests hand to a gate is simple");
    let n = out.numel();
    let args = [
        CudaArg::Address(x.address()),
        CudaArg::Address(out.address()),
        CudaArg::I64(n as i64),
        CudaArg::I32(repeated as i32),
    ];
    // SAFETY: the arguments are the kernel's parameters; it reads n elements, or one, and writes n.
    unsafe { run.launch(COPY, CudaGrid::cover(n, 128), &args) }
}

/// Writes to an address where nothing is.
struct Stray;

impl Operation for Stray {
    fn name(&self) -> &str {
        "stray"
    }
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        same_meta(inputs)
    }
    fn run_cpu(&self, _: &mut CpuRun<'_>) -> Result<(), Refusal> {
        Err(Refusal::kernel("of a GPU alone"))
    }
    #[allow(unsafe_code)]
    fn run_cuda(&self, run: &mut CudaRun<'_>) -> Result<(), Refusal> {
        let source = r#"extern "C" __global__ void stray(float* out) { out[1ll << 40] = 1; }"#;
        let args = [CudaArg::Address(run.output().address())];
        // SAFETY: what it does wrong is what is asked for, and ends the device.
        unsafe { run.launch(CudaKernel::new("stray", source), CudaGrid::cover(1, 32), &args) }
    }
}

/// An op that ends a GPU.
pub fn stray(x: &TensorFuture) -> TensorFuture {
    custom(Stray, &[x])
}

/// The first input's shape and type.
pub fn same_meta(inputs: &[&Meta]) -> Result<Meta, Refusal> {
    Ok(Meta::clone(inputs[0]))
}

pub fn copy_input(run: &mut CpuRun<'_>) -> Result<(), Refusal> {
    let values = run.inputs()[0].to_vec::<f32>().ok_or_else(|| Refusal::dtype("float32 only"))?;
    run.output().fill_from(values);
    Ok(())
}

/// An identity on float32 that counts its runs and, through `alive`, the ops that exist.
pub struct Counted {
    pub runs: Arc<AtomicUsize>,
    alive: Arc<AtomicUsize>,
    estimate_ns: Option<u64>,
    on_thread: Arc<Mutex<Vec<ThreadId>>>,
}

impl Operation for Counted {
    fn name(&self) -> &str {
        "counted"
    }
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        same_meta(inputs)
    }
    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        lock(&self.on_thread).push(std::thread::current().id());
        self.runs.fetch_add(1, SeqCst);
        copy_input(run)
    }
    fn run_cuda(&self, run: &mut CudaRun<'_>) -> Result<(), Refusal> {
        copy_on_gpu(run)?;
        lock(&self.on_thread).push(std::thread::current().id());
        self.runs.fetch_add(1, SeqCst);
        Ok(())
    }
    fn estimate_ns(&self, inputs: &[&Meta], output: &Meta) -> u64 {
        self.estimate_ns.unwrap_or(10_000 + 2 * (inputs.len() + output.shape.numel()) as u64)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, SeqCst);
    }
}

/// Makes [`Counted`] ops and says how many ran and how many are left.
#[derive(Clone, Default)]
pub struct Counter {
    runs: Arc<AtomicUsize>,
    alive: Arc<AtomicUsize>,
    on_thread: Arc<Mutex<Vec<ThreadId>>>,
}

impl Counter {
    pub fn new() -> Counter {
        Counter::default()
    }

    #[track_caller]
    pub fn op(&self, x: &TensorFuture) -> TensorFuture {
        self.op_of(x, None)
    }

    /// One that says it takes so long.
    #[track_caller]
    pub fn op_of(&self, x: &TensorFuture, estimate_ns: Option<u64>) -> TensorFuture {
        self.alive.fetch_add(1, SeqCst);
        let op = Counted {
            runs: self.runs.clone(),
            alive: self.alive.clone(),
            estimate_ns,
            on_thread: self.on_thread.clone(),
        };
        custom(op, &[x])
    }

    pub fn runs(&self) -> usize {
        self.runs.load(SeqCst)
    }

    pub fn alive(&self) -> usize {
        self.alive.load(SeqCst)
    }

    pub fn threads(&self) -> Vec<ThreadId> {
        lock(&self.on_thread).clone()
    }
}

/// Waits until something that others bring about is so; the deadline of the trial bounds it.
pub fn until(mut so: impl FnMut() -> bool) {
    while !so() {
        std::thread::yield_now();
    }
}

/// What a device may have in hand when its trial is through.
#[derive(Clone)]
pub struct Kept {
    pub device: String,
    pub what: &'static [&'static str],
}

/// What a device keeps that is inside a step for good.
pub const STUCK: &[&str] = &["queued ops", "steps in flight", "live bytes", "entries", "values"];

/// What a lost GPU keeps.
pub const LOST: &[&str] = &["live bytes", "values"];

static KEPT: Mutex<Vec<Kept>> = Mutex::new(Vec::new());

/// Says of a device that it keeps some of what it has for good, as one that is lost or stuck does:
/// counts by the names that [`futensor::in_hand`] has for them.
pub fn keeps(device: &Device, what: &'static [&'static str]) {
    lock(&KEPT).push(Kept { device: device.name().to_owned(), what });
}

/// What this process's trial has told of.
pub fn kept() -> Vec<Kept> {
    lock(&KEPT).clone()
}

/// Longest time that a trial may take.
const DEADLINE: Duration = Duration::from_secs(60);

type Running = Mutex<HashMap<u64, (String, Instant)>>;

/// Ends the process, with the name of the trial, where one does not end. Held while it runs.
pub struct Deadline(u64);

static RUNNING: OnceLock<Running> = OnceLock::new();

fn watch() -> Running {
    std::thread::spawn(|| {
        loop {
            std::thread::sleep(Duration::from_millis(500));
            let running = RUNNING.get_or_init(Running::default);
            let late =
                lock(running).values().find(|(_, since)| since.elapsed() > DEADLINE).cloned();
            if let Some((name, _)) = late {
                eprintln!("\n{name}: not through after {DEADLINE:?}: something waits for ever");
                std::process::exit(101);
            }
        }
    });
    Running::default()
}

impl Deadline {
    pub fn of(name: &str) -> Deadline {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let id = NEXT.fetch_add(1, SeqCst) as u64;
        lock(RUNNING.get_or_init(watch)).insert(id, (name.to_string(), Instant::now()));
        Deadline(id)
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        lock(RUNNING.get_or_init(watch)).remove(&self.0);
    }
}

/// A small generator for tests (splitmix64, Steele, Lea and Flood 2014).
#[derive(Clone, Debug)]
pub struct Rng(pub u64);

impl Rng {
    #[allow(clippy::should_implement_trait)] // It never ends.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// Below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}
