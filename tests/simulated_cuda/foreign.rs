//! Ops from outside on a GPU: they see no memory of others, change a value in place, and end no
//! device.

use super::support::{Gate, block_on, identity, until};
use super::{Entry, device, entries};
use futensor::cuda::{CudaArg, CudaGrid, CudaKernel, CudaRun};
use futensor::custom::{CpuRun, Meta, Operation, Refusal, custom, custom_owned};
use futensor::{DType, Device, TensorFuture};
use futensor_simulated_driver::Simulator;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::task::{Context, Wake, Waker};

pub fn all() -> Vec<Entry> {
    entries![1, false;
        an_op_that_never_asks_for_its_output_fails
        what_an_op_does_not_write_is_zero
        an_op_in_place_has_one_view_with_the_old_elements
        a_key_value_cache_of_a_users_own_copies_nothing
        an_op_in_place_that_found_no_memory_had_launched_nothing
        a_panicking_waker_leaves_no_await_of_its_stream_pending]
    .to_vec()
}

/// An op on float32 that does something on a GPU, and on a GPU alone.
struct OnGpu<F> {
    meta: Meta,
    reuses: Option<usize>,
    run: F,
}

impl<F: Fn(&mut CudaRun<'_>) -> Result<(), Refusal> + Send + Sync + 'static> Operation
    for OnGpu<F>
{
    fn name(&self) -> &str {
        "on_gpu"
    }
    fn infer(&self, _: &[&Meta]) -> Result<Meta, Refusal> {
        Ok(self.meta.clone())
    }
    fn reuses(&self) -> Option<usize> {
        self.reuses
    }
    fn run_cpu(&self, _: &mut CpuRun<'_>) -> Result<(), Refusal> {
        Err(Refusal::argument("only on a GPU"))
    }
    fn run_cuda(&self, run: &mut CudaRun<'_>) -> Result<(), Refusal> {
        (self.run)(run)
    }
}

fn on_gpu(
    x: &TensorFuture,
    (shape, dtype): (&[usize], DType),
    run: impl Fn(&mut CudaRun<'_>) -> Result<(), Refusal> + Send + Sync + 'static,
) -> TensorFuture {
    custom(OnGpu { meta: Meta::new(shape, dtype), reuses: None, run }, &[x])
}

/// Leaves memory behind that holds no zero, and no bool.
fn leave_dirt(device: &Device) {
    for n in [64, 1000, 4096, 40_000] {
        block_on(device.full([n], 199).to_dtype(DType::U8) + 0).unwrap();
    }
}

const SET_FIRST: CudaKernel = CudaKernel::new(
    "set_first",
    r#"extern "C" __global__ void set_first(float* out, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) out[i] = 1.0f;
    }"#,
);

/// Sets the first `n` elements of an address.
#[allow(unsafe_code)]
fn set_first(run: &mut CudaRun<'_>, address: u64, n: usize) -> Result<(), Refusal> {
    let args = [CudaArg::Address(address), CudaArg::I32(n as i32)];
    // SAFETY: the arguments are the kernel's parameters; the callers' outputs have n elements.
    unsafe { run.launch(SET_FIRST, CudaGrid::cover(n, 64), &args) }
}

fn an_op_that_never_asks_for_its_output_fails(_: &Simulator, _: u64) {
    let device = device(0);
    let x = block_on(device.ones([3]) + 0.0).unwrap();
    leave_dirt(&device);
    for dtype in [DType::Bool, DType::F32] {
        let error = block_on(on_gpu(&x, (&[1000], dtype), |_| Ok(()))).unwrap_err();
        assert!(
            error.is_kernel() && error.message().contains("never asked for its output"),
            "{error}"
        );
    }
    assert_eq!(block_on((&x + 1.0).to_vec::<f32>()).unwrap(), [2.0; 3]);
    // Where there are no elements there is nothing to ask for.
    assert_eq!(
        block_on(on_gpu(&x, (&[0], DType::F32), |_| Ok(())).to_vec::<f32>()).unwrap(),
        [0.0; 0]
    );
}

fn what_an_op_does_not_write_is_zero(_: &Simulator, _: u64) {
    let device = device(0);
    let x = block_on(device.ones([3]) + 0.0).unwrap();
    for _ in 0..3 {
        leave_dirt(&device);
        let ask = |run: &mut CudaRun<'_>| {
            let out = run.output();
            assert_eq!((out.shape(), out.dtype()), (&[1000][..], DType::Bool));
            Ok(())
        };
        let nothing = on_gpu(&x, (&[1000], DType::Bool), ask);
        assert_eq!(block_on(nothing.to_vec::<bool>()).unwrap(), [false; 1000]);
        let some = on_gpu(&x, (&[1000], DType::F32), |run| {
            let out = run.output().address();
            set_first(run, out, 600)?;
            // Asked again, it is what it was.
            assert_eq!(run.output().address(), out);
            Ok(())
        });
        let want: Vec<f32> = (0..1000).map(|i| if i < 600 { 1.0 } else { 0.0 }).collect();
        assert_eq!(block_on(some.to_vec::<f32>()).unwrap(), want);
        #[allow(unsafe_code)]
        let all = on_gpu(&x, (&[1000], DType::F32), |run| {
            // SAFETY: the launch writes all of it.
            let out = unsafe { run.output_unwritten() }.address();
            set_first(run, out, 1000)
        });
        assert_eq!(block_on(all.to_vec::<f32>()).unwrap(), [1.0; 1000]);
    }
    // In a region, step by step and once it might be a graph.
    let region = device.region(|x: TensorFuture| {
        on_gpu(&(x * 2.0), (&[1000], DType::F32), |run| {
            let out = run.output().address();
            set_first(run, out, 10)
        })
    });
    for _ in 0..5 {
        leave_dirt(&device);
        let y = block_on(region.call(TensorFuture::clone(&x)).to_vec::<f32>()).unwrap();
        assert!(y[..10] == [1.0; 10] && y[10..].iter().all(|&v| v == 0.0));
    }
}

const ADD_ONE: CudaKernel = CudaKernel::new(
    "add_one_in_place",
    r#"extern "C" __global__ void add_one_in_place(float* x, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) x[i] += 1.0f;
    }"#,
);

#[allow(unsafe_code)]
fn launch_add_one(run: &mut CudaRun<'_>) -> Result<(), Refusal> {
    let out = run.output();
    let args = [CudaArg::Address(out.address()), CudaArg::I32(out.numel() as i32)];
    // SAFETY: the arguments are the kernel's parameters; it touches the output's elements.
    unsafe { run.launch(ADD_ONE, CudaGrid::cover(out.numel(), 64), &args) }
}

fn add_one(x: &TensorFuture, tell: &mpsc::Sender<bool>) -> TensorFuture {
    let tell = tell.clone();
    let run = move |run: &mut CudaRun<'_>| {
        assert_eq!(run.inputs()[0].shape(), run.output().shape());
        let _ = tell.send(run.in_place());
        launch_add_one(run)
    };
    custom(OnGpu { meta: Meta::new(x.dims(), DType::F32), reuses: Some(0), run }, &[x])
}

fn an_op_in_place_has_one_view_with_the_old_elements(_: &Simulator, _: u64) {
    let device = device(0);
    // While its kernel, or one that copies for it, is being compiled it is asked again and again.
    let x = device.arange(0.0, 2.0, 1.0);
    for x in [&x, &x.flip(0)] {
        block_on(add_one(x, &mpsc::channel().0)).unwrap();
    }
    let (tell, told) = mpsc::channel();
    for n in [2usize, 5000] {
        let x = device.arange(0.0, n as f32, 1.0) + 0.0;
        block_on(&x).unwrap();
        let y = add_one(&x, &tell);
        assert!(
            block_on(y.to_vec::<f32>()).unwrap().into_iter().eq((0..n).map(|i| i as f32 + 1.0))
        );
        assert!(block_on(x.to_vec::<f32>()).unwrap().into_iter().eq((0..n).map(|i| i as f32)));
        assert!(!told.recv().unwrap());
        for z in [x.flip(0), device.zeros([n])] {
            let before = block_on(z.to_vec::<f32>()).unwrap();
            let after = block_on(add_one(&z, &tell).to_vec::<f32>()).unwrap();
            assert!(after.into_iter().eq(before.into_iter().map(|v| v + 1.0)));
            assert!(!told.recv().unwrap());
        }
        let gate = Gate::new();
        let _held = gate.op(&device.ones([1]));
        gate.wait_entered(1);
        let last = add_one(&add_one(&x, &tell), &tell);
        drop(x);
        gate.open();
        assert!(
            block_on(last.to_vec::<f32>()).unwrap().into_iter().eq((0..n).map(|i| i as f32 + 2.0))
        );
        let (_, second) = (told.recv().unwrap(), told.recv().unwrap());
        assert!(second, "the last reader may have the memory");
        // The same memory has no second view.
        let look = |run: &mut CudaRun<'_>| {
            run.inputs()[0].address();
            Ok(())
        };
        let z = device.ones([n]) + 0.0;
        let looks =
            custom(OnGpu { meta: Meta::new([n], DType::F32), reuses: Some(0), run: look }, &[&z]);
        let error = block_on(looks).unwrap_err();
        assert!(error.is_kernel() && error.message().contains("are in the output"), "{error}");
        // Read twice by its last reader, it is copied.
        let twice = custom(
            OnGpu {
                meta: Meta::new([n], DType::F32),
                reuses: Some(0),
                run: |run: &mut CudaRun<'_>| {
                    assert!(!run.in_place() && run.inputs()[1].address() != run.output().address());
                    launch_add_one(run)
                },
            },
            &[&z, &z],
        );
        drop(z);
        assert_eq!(block_on(twice.to_vec::<f32>()).unwrap(), vec![2.0; n]);
    }
    let tell = std::sync::Mutex::new(tell);
    let region = device
        .region(move |x: TensorFuture| add_one(&(x * 2.0).cumsum(0), &tell.lock().unwrap()) * 3.0);
    for _ in 0..6 {
        let y = block_on(region.call(device.ones([3]) + 0.0).to_vec::<f32>()).unwrap();
        assert_eq!(y, [9.0, 15.0, 21.0]);
        assert!(told.recv().unwrap(), "a value of the region's own is changed where it lies");
    }
}

const PUT_ROW: CudaKernel = CudaKernel::new(
    "put_row",
    r#"extern "C" __global__ void put_row(float* cache, const float* row, int at, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) cache[(long long)at * n + i] = row[i];
    }"#,
);

#[allow(unsafe_code)]
fn put_row(cache: TensorFuture, row: &TensorFuture, at: usize) -> TensorFuture {
    let run = move |run: &mut CudaRun<'_>| {
        let (row, cache) = (run.inputs()[1], run.output());
        let n = row.numel();
        let args = [
            CudaArg::Address(cache.address()),
            CudaArg::Address(row.address()),
            CudaArg::I32(at as i32),
            CudaArg::I32(n as i32),
        ];
        // SAFETY: the arguments are the kernel's parameters; it reads a row and writes one of the
        // cache's.
        unsafe { run.launch(PUT_ROW, CudaGrid::cover(n, 64), &args) }
    };
    let meta = Meta::new(cache.dims(), DType::F32);
    custom_owned(OnGpu { meta, reuses: Some(0), run }, [cache, TensorFuture::clone(row)])
}

fn a_key_value_cache_of_a_users_own_copies_nothing(_: &Simulator, _: u64) {
    let device = device(0);
    let mut cache = TensorFuture::clone(&block_on(device.zeros([64, 1024]) + 0.0).unwrap());
    let row = block_on(device.arange(0.0, 1024.0, 1.0) + 0.0).unwrap();
    let before = device.stats().bytes_peak;
    for at in 0..64 {
        cache = put_row(cache, &row, at);
    }
    block_on(&cache).unwrap();
    let more = device.stats().bytes_peak - before;
    assert!(more < 64 << 10, "{more} bytes more at the peak: the cache was copied");
    assert_eq!(block_on(cache.i((.., 7)).sum_all().item::<f32>()).unwrap(), 7.0 * 64.0);
}

fn an_op_in_place_that_found_no_memory_had_launched_nothing(simulator: &Simulator, _: u64) {
    // Each piece of memory is asked of the driver, once.
    let device =
        Device::cuda_with(0, futensor::cuda::CudaOptions::default().kept_bytes(0)).unwrap();
    let x = block_on(device.zeros([1000]) + 0.0).unwrap();
    block_on(add_one(&x, &mpsc::channel().0)).unwrap();
    let attempts = Arc::new(AtomicUsize::new(0));
    let (simulator, counted) = (*simulator, attempts.clone());
    let run = move |run: &mut CudaRun<'_>| {
        launch_add_one(run)?;
        if counted.fetch_add(1, SeqCst) == 0 {
            simulator.fail_allocation(1);
        }
        run.scratch(100).map(|_| ())
    };
    let z = device.zeros([1000]) + 5.0;
    let y = custom_owned(OnGpu { meta: Meta::new([1000], DType::F32), reuses: Some(0), run }, [z]);
    assert_eq!(block_on(y.to_vec::<f32>()).unwrap(), [6.0; 1000]);
    assert_eq!(attempts.load(SeqCst), 2);
    assert_eq!(block_on((&x + 1.0).to_vec::<f32>()).unwrap(), [1.0; 1000]);
}

/// Panics when it is woken.
struct Alarm;

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        panic!("a waker of a test panics");
    }
}

fn a_panicking_waker_leaves_no_await_of_its_stream_pending(_: &Simulator, _: u64) {
    let device = Device::cuda_with(0, futensor::cuda::CudaOptions::default().streams(1)).unwrap();
    let x = block_on(device.ones([3000]) + 1.0).unwrap();
    for round in 0..10 {
        let gate = Gate::new();
        let first = gate.op(&x);
        let (y, z) = (&first + 1.0, (&first * 2.0).sum_all());
        let mut wait = pin!(y.wait_to_read());
        let alarm = Waker::from(Arc::new(Alarm));
        assert!(wait.as_mut().poll(&mut Context::from_waker(&alarm)).is_pending());
        gate.open();
        assert_eq!(block_on(z.item::<f32>()).unwrap(), 12_000.0, "round {round}");
        assert_eq!(block_on(y.to_vec::<f32>()).unwrap(), [3.0; 3000]);
        let after = identity("after", &y, || Ok(())) + 1.0;
        assert_eq!(block_on(after.to_vec::<f32>()).unwrap(), [4.0; 3000]);
        block_on(device.waitall()).unwrap();
        until(|| device.stats().in_flight == 0);
    }
}
