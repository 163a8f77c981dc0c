//! Doors to other code on the same GPU: tensors without a copy, a stream of somebody else's, calls
//! between an op's launches, ops of a user's in graphs, and what is told of memory.

use super::support::{block_on, until};
use super::{Entry, device, entries};
use futensor::cuda::{CudaArg, CudaGrid, CudaKernel, CudaOptions, CudaRun};
use futensor::custom::{CpuRun, Meta, Operation, Refusal, custom};
use futensor::dlpack::{DlDataType, DlDevice, DlManagedTensor, DlTensor};
use futensor::{DType, Device, TensorFuture};
use futensor_simulated_driver::Simulator;
use std::ffi::{CString, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

pub fn all() -> Vec<Entry> {
    entries![1, false;
        memory_is_told_by_pool
        large_host_data_is_gathered_by_helpers
        products_on_one_lane_tell_the_library_their_stream_once
        a_replayable_op_of_a_users_is_part_of_a_graph
        a_call_gets_the_stream_between_the_launches
        a_call_that_panics_fails_its_value_alone
        a_lent_tensor_stays_until_its_loan_ends
        memory_of_others_is_read_where_it_lies_and_given_back
        a_device_on_a_stream_of_others_is_ordered_with_their_work]
    .to_vec()
}

/// Calls of the driver, as other code of the process makes them.
#[allow(unsafe_code)]
mod driver {
    use super::*;

    fn find(name: &str) -> *mut c_void {
        let name = CString::new(name).unwrap();
        // SAFETY: the library is loaded; the names are the driver's.
        let found = unsafe {
            libc::dlsym(libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW), name.as_ptr())
        };
        assert!(!found.is_null(), "{name:?}");
        found
    }

    macro_rules! calls {
        ($($name:ident = $symbol:literal ($($arg:ident: $Type:ty),*);)*) => {$(
            pub fn $name($($arg: $Type),*) -> u32 {
                // SAFETY: the function has this type; the callers' pointers are as it wants them.
                let f: extern "C" fn($($Type),*) -> u32 =
                    unsafe { std::mem::transmute(find($symbol)) };
                f($($arg),*)
            }
        )*};
    }
    calls! {
        init = "cuInit" (flags: u32);
        retain = "cuDevicePrimaryCtxRetain" (context: *mut usize, device: i32);
        release = "cuDevicePrimaryCtxRelease_v2" (device: i32);
        set_current = "cuCtxSetCurrent" (context: usize);
        allocate = "cuMemAlloc_v2" (at: *mut usize, bytes: usize);
        free = "cuMemFree_v2" (at: usize);
        fill = "cuMemsetD32Async" (at: usize, value: u32, count: usize, stream: usize);
        new_stream = "cuStreamCreate" (stream: *mut usize, flags: u32);
        end_stream = "cuStreamDestroy_v2" (stream: usize);
        sync = "cuStreamSynchronize" (stream: usize);
        new_event = "cuEventCreate" (event: *mut usize, flags: u32);
        end_event = "cuEventDestroy_v2" (event: usize);
        record = "cuEventRecord" (event: usize, stream: usize);
        is_reached = "cuEventQuery" (event: usize);
    }

    /// With the primary context current, as other code has it.
    pub fn within(f: impl FnOnce()) {
        let mut context = 0;
        assert_eq!((init(0), retain(&mut context, 0), set_current(context)), (0, 0, 0));
        f();
        assert_eq!((set_current(0), release(0)), (0, 0));
    }
}

fn memory_is_told_by_pool(_: &Simulator, _: u64) {
    let device = Device::cuda_with(0, CudaOptions::default().pinned_bytes(0)).unwrap();
    assert_eq!(device.pools().iter().map(|pool| pool.name).collect::<Vec<_>>(), ["values"]);
    let x = block_on(device.ones([100_000]) + 1.0).unwrap();
    let told = device.pools();
    let [values, driver, locked] = told[..] else { panic!("{told:?}") };
    assert_eq!([values.name, driver.name, locked.name], ["values", "driver", "page-locked"]);
    assert_eq!(values.used, 400_000);
    assert!(driver.used >= values.used && driver.reserved >= driver.used, "{driver:?}");
    assert!(locked.used <= locked.reserved && locked.reserved == 4 << 20, "{locked:?}");
    block_on(x.to_vec::<f32>()).unwrap();
    drop(x);
    block_on(device.trim_wait()).unwrap();
    let after = device.pools();
    assert!(after[0].used == 0 && after[0].peak >= 400_000, "{after:?}");
    assert!(after[1].used < 100_000 && after[1].peak >= driver.used, "{after:?}");
    assert!(after[2].peak >= 400_000, "{after:?}");
}

/// Nanoseconds that the threads of this name have run.
fn ran(name: &str) -> u64 {
    let of = |thread: std::path::PathBuf| {
        let called = std::fs::read_to_string(thread.join("comm")).ok()?;
        let text = std::fs::read_to_string(thread.join("schedstat")).ok()?;
        let ran: u64 = text.split_whitespace().next()?.parse().ok()?;
        called.starts_with(name).then_some(ran)
    };
    let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    threads.filter_map(|thread| of(thread.path())).sum()
}

fn large_host_data_is_gathered_by_helpers(_: &Simulator, _: u64) {
    let device = device(0);
    let n = 16 << 20;
    let once = |from: f32| {
        let data: Vec<f32> = (0..n).map(|i| from + (i % 1000) as f32).collect();
        let x = device.from_vec(data, [n]).narrow(0, n - 1001, 1001) + 0.0;
        let got = block_on(x.to_vec::<f32>()).unwrap();
        let want = (n - 1001..n).map(|i| from + (i % 1000) as f32);
        assert!(got.into_iter().eq(want));
    };
    once(0.0);
    let before = [ran("futensor-backgr"), ran("futensor-cuda")];
    once(1.0);
    let took = [ran("futensor-backgr") - before[0], ran("futensor-cuda") - before[1]];
    // 64 MiB cannot be copied in a millisecond.
    assert!(took[0] > 1_000_000, "helpers ran {} ns, the device's threads {}", took[0], took[1]);
}

fn products_on_one_lane_tell_the_library_their_stream_once(simulator: &Simulator, _: u64) {
    let device = Device::cuda_with(0, CudaOptions::default().streams(1)).unwrap();
    let x = block_on(device.eye(8) + 0.0).unwrap();
    let chain = || (0..10).fold(x.matmul(&x), |y, _| y.matmul(&x));
    block_on(chain()).unwrap();
    let before = simulator.stats();
    assert_eq!(block_on(chain().sum_all().item::<f32>()).unwrap(), 8.0);
    let after = simulator.stats();
    assert_eq!(after.bindings - before.bindings, 0);
    assert!(before.bindings > 0);
}

/// An op on float32 that does something on a GPU alone.
struct OnGpu<F> {
    meta: Meta,
    is_replayable: bool,
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
    fn is_replayable(&self) -> bool {
        self.is_replayable
    }
    fn run_cpu(&self, _: &mut CpuRun<'_>) -> Result<(), Refusal> {
        Err(Refusal::argument("only on a GPU"))
    }
    fn run_cuda(&self, run: &mut CudaRun<'_>) -> Result<(), Refusal> {
        (self.run)(run)
    }
}

const TWICE: CudaKernel = CudaKernel::new(
    "twice",
    r#"extern "C" __global__ void twice(const float* x, float* out, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) out[i] = 2.0f * x[i];
    }"#,
);

/// Twice the first `n` elements; the others are zeros.
#[allow(unsafe_code)]
fn twice(run: &mut CudaRun<'_>, n: usize) -> Result<(), Refusal> {
    let args = [
        CudaArg::Address(run.inputs()[0].address()),
        CudaArg::Address(run.output().address()),
        CudaArg::I32(n as i32),
    ];
    // SAFETY: the arguments are the kernel's parameters; operand and output have n elements.
    unsafe { run.launch(TWICE, CudaGrid::cover(n, 64), &args) }
}

fn on_gpu(
    x: &TensorFuture,
    is_replayable: bool,
    run: impl Fn(&mut CudaRun<'_>) -> Result<(), Refusal> + Send + Sync + 'static,
) -> TensorFuture {
    let meta = Meta::new(x.dims(), DType::F32);
    custom(OnGpu { meta, is_replayable, run }, &[x])
}

fn a_replayable_op_of_a_users_is_part_of_a_graph(simulator: &Simulator, _: u64) {
    let device = device(0);
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    let made = move |x: &TensorFuture| {
        let counted = counted.clone();
        let half = on_gpu(&(x + 1.0).cumsum(0), true, move |run| {
            counted.fetch_add(1, SeqCst);
            twice(run, 500)
        });
        half.cumsum(0) - 3.0
    };
    let inside = made.clone();
    let region = device.region(move |x: TensorFuture| inside(&x));
    let input = |k: usize| device.arange(k as f64, (k + 1000) as f64, 1.0) * 0.001;
    super::regions::warm(&device, || drop(block_on(region.call(input(0))).unwrap()));
    let before = (simulator.stats().graph_launches, asked.load(SeqCst));
    let mut held = Vec::new();
    for k in 1..5 {
        let x = block_on(input(k)).unwrap();
        let out = region.call(TensorFuture::clone(&x));
        let got = block_on(out.to_vec::<f32>()).unwrap();
        held.push((x, out));
        let x = block_on(held[k - 1].0.to_vec::<f32>()).unwrap();
        let (mut sum, mut total) = (0.0f64, 0.0f64);
        for (i, got) in got.into_iter().enumerate() {
            sum += f64::from(x[i]) + 1.0;
            total += if i < 500 { 2.0 * sum } else { 0.0 };
            let want = total - 3.0;
            assert!(
                (f64::from(got) - want).abs() <= 1e-4 * want.abs().max(1.0),
                "{i}: {got} {want}"
            );
        }
    }
    assert_eq!(simulator.stats().graph_launches - before.0, 4);
    assert_eq!(asked.load(SeqCst), before.1, "a replay asks the op for nothing");
}

#[allow(unsafe_code)]
fn a_call_gets_the_stream_between_the_launches(simulator: &Simulator, _: u64) {
    let device = device(0);
    driver::within(|| {
        let mut event = 0;
        assert_eq!(driver::new_event(&mut event, 2), 0);
        let x = block_on(device.ones([300]) + 0.0).unwrap();
        block_on(on_gpu(&x, false, |run| twice(run, 300))).unwrap();
        simulator.pause();
        let called = Arc::new(AtomicUsize::new(0));
        let seen = called.clone();
        let y = on_gpu(&x, false, move |run| {
            twice(run, 300)?;
            let seen = seen.clone();
            // SAFETY: it records an event, and no more.
            unsafe {
                run.call(move |stream| {
                    assert_eq!(driver::record(event, stream as usize), 0);
                    seen.fetch_add(1, SeqCst);
                })
            };
            Ok(())
        });
        until(|| called.load(SeqCst) == 1);
        assert_eq!(driver::is_reached(event), 600, "the launch before it has not run");
        simulator.resume();
        assert_eq!(block_on(y.to_vec::<f32>()).unwrap(), [2.0; 300]);
        assert_eq!((driver::is_reached(event), called.load(SeqCst)), (0, 1));
        assert_eq!(driver::end_event(event), 0);
    });
}

#[allow(unsafe_code)]
fn a_call_that_panics_fails_its_value_alone(_: &Simulator, _: u64) {
    let device = device(0);
    let x = block_on(device.ones([30]) + 0.0).unwrap();
    let y = on_gpu(&x, false, |run| {
        run.output();
        // SAFETY: it does nothing.
        unsafe { run.call(|_| panic!("no call of mine")) };
        Ok(())
    });
    let error = block_on(y).unwrap_err();
    assert!(error.is_kernel() && error.message().contains("no call of mine"), "{error}");
    assert_eq!(block_on((&x + 1.0).to_vec::<f32>()).unwrap(), [2.0; 30]);
}

#[allow(unsafe_code)]
fn end_loan(lent: NonNull<DlManagedTensor>) {
    // SAFETY: each loan of these tests is ended once.
    unsafe { lent.as_ref().deleter.unwrap()(lent.as_ptr()) }
}

#[allow(unsafe_code)]
fn a_lent_tensor_stays_until_its_loan_ends(_: &Simulator, _: u64) {
    let device = device(0);
    let x = block_on(device.arange(0.0, 600.0, 1.0).reshape([20, 30]).t() + 0.0).unwrap();
    let turned = block_on(x.t()).unwrap();
    let lent = turned.to_dlpack().unwrap();
    // SAFETY: it was just lent.
    let tensor = unsafe { &lent.as_ref().dl_tensor };
    assert_eq!(tensor.device, DlDevice { device_type: 2, device_id: 0 });
    assert_eq!(tensor.dtype, DlDataType { code: 2, bits: 32, lanes: 1 });
    // SAFETY: as many sizes and strides as dimensions.
    let [shape, strides] =
        unsafe { [tensor.shape, tensor.strides].map(|list| std::slice::from_raw_parts(list, 2)) };
    assert_eq!((shape, strides), (&[20, 30][..], &[1, 20][..]));
    // Its last handles are gone, and nobody writes over it.
    drop((x, turned));
    block_on(device.full([600], 7.0) + 1.0).unwrap();
    assert!(device.stats().bytes_live >= 2400);
    // SAFETY: as lent; the other loan goes on.
    let back = unsafe { device.from_dlpack(lent) }.unwrap();
    let more = &back + 1.0;
    drop(back);
    let got = block_on(more.to_vec::<f32>()).unwrap();
    assert!(got.into_iter().enumerate().all(|(i, v)| v == i as f32 + 1.0));
    drop(more);
    until(|| device.stats().bytes_live == 0);
    // What is not on the GPU has no address there.
    let constant = block_on(device.full([3], 1.0)).unwrap();
    assert!(constant.to_dlpack().unwrap_err().is_argument());
    let small = block_on(device.ones([2]) + 0.0).unwrap().to_dlpack().unwrap();
    end_loan(small);
}

/// A tensor of other code's, with what it says of itself; a deleter that counts.
struct Theirs {
    managed: DlManagedTensor,
    shape: [i64; 1],
    ended: Arc<AtomicUsize>,
}

#[allow(unsafe_code)]
unsafe extern "C" fn count(managed: *mut DlManagedTensor) {
    // SAFETY: `theirs` made it.
    let theirs = unsafe { Box::from_raw((*managed).manager_ctx.cast::<Theirs>()) };
    theirs.ended.fetch_add(1, SeqCst);
}

fn theirs(at: usize, n: i64, gpu: i32) -> (NonNull<DlManagedTensor>, Arc<AtomicUsize>) {
    let ended = Arc::new(AtomicUsize::new(0));
    let managed = DlManagedTensor {
        dl_tensor: DlTensor {
            data: at as *mut c_void,
            device: DlDevice { device_type: 2, device_id: gpu },
            ndim: 1,
            dtype: DlDataType { code: 2, bits: 32, lanes: 1 },
            shape: null_mut(),
            strides: null_mut(),
            byte_offset: 400,
        },
        manager_ctx: null_mut(),
        deleter: Some(count),
    };
    let one = Box::leak(Box::new(Theirs { managed, shape: [n], ended: ended.clone() }));
    one.managed.dl_tensor.shape = &raw mut one.shape[0];
    one.managed.manager_ctx = (&raw mut *one).cast();
    (NonNull::from(&mut one.managed), ended)
}

#[allow(unsafe_code)]
fn memory_of_others_is_read_where_it_lies_and_given_back(simulator: &Simulator, _: u64) {
    let device = device(0);
    driver::within(|| {
        let mut at = 0;
        assert_eq!(driver::allocate(&mut at, 4000), 0);
        driver::fill(at, 2.5f32.to_bits(), 1000, 0);
        driver::sync(0);
        let (lent, ended) = theirs(at, 900, 0);
        let copies = simulator.stats().copies;
        // SAFETY: the memory is filled, and stays until the loan has ended.
        let x = unsafe { device.from_dlpack(lent) }.unwrap();
        simulator.pause();
        let y = (&x * 2.0).cumsum(0);
        drop(x);
        until(|| device.stats().in_flight > 0);
        assert_eq!(ended.load(SeqCst), 0);
        simulator.resume();
        block_on(&y).unwrap();
        assert_eq!(simulator.stats().copies, copies, "nothing was copied");
        assert_eq!(block_on(y.narrow(0, 899, 1).to_vec::<f32>()).unwrap(), [4500.0]);
        until(|| ended.load(SeqCst) == 1);
        // Another GPU's is refused, and still the caller's.
        let (other, ended) = theirs(at, 3, 1);
        // SAFETY: as above.
        assert!(unsafe { device.from_dlpack(other) }.unwrap_err().is_argument());
        assert_eq!(ended.load(SeqCst), 0);
        end_loan(other);
        drop(y);
        assert_eq!(driver::free(at), 0);
    });
}

#[allow(unsafe_code)]
fn a_device_on_a_stream_of_others_is_ordered_with_their_work(simulator: &Simulator, _: u64) {
    driver::within(|| {
        let (mut stream, mut at) = (0, 0);
        assert_eq!((driver::new_stream(&mut stream, 1), driver::allocate(&mut at, 4000)), (0, 0));
        // SAFETY: it is destroyed once the device has ended.
        let options = unsafe { CudaOptions::default().stream(stream as *mut c_void) };
        let device = Device::cuda_with(0, options).unwrap();
        let w = block_on(device.eye(30) * 2.0).unwrap();
        block_on(device.ones([900]) + 0.0).unwrap();
        simulator.pause();
        driver::fill(at, 2.5f32.to_bits(), 1000, stream);
        let (lent, ended) = theirs(at, 900, 0);
        // SAFETY: the device's stream is ordered behind the fill.
        let x = unsafe { device.from_dlpack(lent) }.unwrap();
        let y = (&x + 1.0).reshape([30, 30]);
        until(|| device.stats().in_flight > 0);
        simulator.resume();
        assert_eq!(block_on(y.to_vec::<f32>()).unwrap(), [3.5; 900]);
        // Regions and products are launched there as well.
        let region = device.region(move |y: TensorFuture| y.cumsum(0).matmul(&w));
        super::regions::warm(&device, || drop(block_on(region.call(y.clone())).unwrap()));
        let out = block_on(region.call(y.clone()).to_vec::<f32>()).unwrap();
        assert!(out[..30] == [7.0; 30] && out[870..] == [210.0; 30]);
        drop((x, y, region, device));
        until(|| ended.load(SeqCst) == 1 && simulator.stats().live_pools == 0);
        // It is still theirs.
        assert_eq!((driver::sync(stream), driver::end_stream(stream), driver::free(at)), (0, 0, 0));
    });
}
