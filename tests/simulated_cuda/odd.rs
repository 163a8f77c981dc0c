//! Extraordinary kernels and operands: sources of a user's, operands that cuBLAS
//! cannot express, many dimensions, constants of a region's own.

use super::support::block_on;
use super::{Entry, device, entries};
use futensor::cuda::{CudaArg, CudaGrid, CudaKernel, CudaOptions, CudaRun};
use futensor::custom::{Meta, Operation, Refusal, custom};
use futensor::{DType, Device, Error, TensorFuture};
use futensor_simulated_driver::{LAUNCH_OUT_OF_RESOURCES, Simulator};

pub fn all() -> Vec<Entry> {
    entries![1, false;
        a_source_that_does_not_compile_fails_its_value_with_the_compilers_words
        a_kernel_takes_arguments_of_every_kind_and_scratch_memory
        a_custom_op_in_a_region_is_launched_each_time
        products_of_operands_that_no_library_call_expresses_are_right
        a_product_that_is_refused_fails_its_value_alone
        a_device_that_spins_and_lingers_gives_the_same_values
        limits_without_end_are_no_limits
        page_locked_memory_that_cannot_be_had_fails_what_needs_it
        a_region_with_constants_of_its_own_replays
        a_reduction_over_every_other_of_many_dimensions_is_right_or_says_so
    ]
    .to_vec()
}

/// An op of one kernel over float32, with what it is launched with.
struct Brought {
    entry: &'static str,
    source: &'static str,
    arguments: bool,
}

impl Operation for Brought {
    fn name(&self) -> &str {
        "brought"
    }
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        Ok(Meta::clone(inputs[0]))
    }
    fn run_cpu(&self, _: &mut futensor::custom::CpuRun<'_>) -> Result<(), Refusal> {
        Err(Refusal::argument("only on a GPU"))
    }
    #[allow(unsafe_code)]
    fn run_cuda(&self, run: &mut CudaRun<'_>) -> Result<(), Refusal> {
        let (x, out) = (run.inputs()[0], run.output());
        let n = out.numel();
        let kernel = CudaKernel::new(self.entry, self.source);
        let mut args = vec![
            CudaArg::Address(x.address()),
            CudaArg::Address(out.address()),
            CudaArg::U64(n as u64),
        ];
        let pair: Vec<u8> =
            [0.5f32.to_ne_bytes(), 0.25f32.to_ne_bytes(), 8f32.to_ne_bytes()].concat();
        let scratch = run.scratch(4 * n)?;
        if self.arguments {
            args.extend([
                CudaArg::Address(scratch),
                CudaArg::I32(-1),
                CudaArg::U32(2),
                CudaArg::I64(-3),
                CudaArg::F32(0.5),
                CudaArg::F64(0.25),
                CudaArg::Bytes(&pair),
            ]);
        }
        // SAFETY: the arguments are the parameters of the kernels below, which touch n elements of
        // each.
        unsafe { run.launch(kernel, CudaGrid::cover(n, 64), &args) }
    }
}

const ADD_ONE: &str = r#"
extern "C" __global__ void add_one(const float* x, float* out, unsigned long long n) {
    unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i] + 1.0f;
}"#;
const ALL_KINDS: &str = r#"struct Three { float a, b, c; };
extern "C" __global__ void all_kinds(
    const float* x, float* out, unsigned long long n, float* scratch, int i,
                                     unsigned u, long long l, float f, double d, Three t) {
    unsigned long long at = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    if (at >= n) return;
    scratch[at] = x[at] * t.c;
    out[at] = scratch[at] + i + u + l + f + (float)d + t.a + t.b;
}"#;

fn a_source_that_does_not_compile_fails_its_value_with_the_compilers_words(_: &Simulator, _: u64) {
    let device = device(0);
    let x = block_on(device.arange(0.0, 100.0, 1.0) + 0.0).unwrap();
    let of = |entry, source| custom(Brought { entry, source, arguments: false }, &[&x]);
    let broken = r#"
        extern "C" __global__ void broken(const float* x, float* out, unsigned long long n) {
            nonsense;
        }"#;
    for _ in 0..2 {
        let error: Error = block_on(of("broken", broken)).unwrap_err();
        assert!(error.is_kernel() && error.message().contains("nonsense"), "{error}");
        let error = block_on(of("another", ADD_ONE)).unwrap_err();
        assert!(error.message().contains("no kernel named another"), "{error}");
    }
    let y = block_on(of("add_one", ADD_ONE).to_vec::<f32>()).unwrap();
    assert_eq!((y[0], y[99]), (1.0, 100.0));
}

fn a_kernel_takes_arguments_of_every_kind_and_scratch_memory(_: &Simulator, _: u64) {
    let device = device(0);
    let x = block_on(device.arange(0.0, 100.0, 1.0) + 0.0).unwrap();
    let y = custom(Brought { entry: "all_kinds", source: ALL_KINDS, arguments: true }, &[&x]);
    let y = block_on(y.to_vec::<f32>()).unwrap();
    let want: Vec<f32> =
        (0..100).map(|i| 8.0 * i as f32 - 1.0 + 2.0 - 3.0 + 0.5 + 0.25 + 0.5 + 0.25).collect();
    assert_eq!(y, want);
}

fn a_custom_op_in_a_region_is_launched_each_time(_: &Simulator, _: u64) {
    let device = device(0);
    let region = device.region(|x: TensorFuture| {
        let y = custom(Brought { entry: "add_one", source: ADD_ONE, arguments: false }, &[&x]);
        y.sqrt() * 2.0
    });
    for round in 0..5 {
        let x = block_on(device.full([40], round as f32) + 0.5).unwrap();
        let y = block_on(region.call(TensorFuture::clone(&x)).to_vec::<f32>()).unwrap();
        assert_eq!(y, vec![2.0 * (round as f32 + 1.5).sqrt(); 40]);
    }
}

/// Elements of a value, by the CPU's and the GPU's device.
fn same_on_both(gpu: &Device, dtype: DType, make: impl Fn(&Device) -> TensorFuture, what: &str) {
    let read = |d: &Device| block_on(make(d).to_dtype(DType::F64).to_vec::<f64>()).unwrap();
    let (got, want) = (read(gpu), read(&Device::cpu()));
    assert_eq!(got.len(), want.len());
    for (a, b) in got.iter().zip(&want) {
        let near = if matches!(dtype, DType::F16 | DType::BF16) { 2e-2 } else { 1e-4 };
        assert!((a - b).abs() <= near * b.abs().max(1.0), "{what} of {dtype}: {a} {b}");
    }
}

fn products_of_operands_that_no_library_call_expresses_are_right(_: &Simulator, _: u64) {
    use futensor::Index;
    let gpu = device(0);
    let small = |d: &Device, dtype, shape: &[usize]| {
        let n: usize = shape.iter().product();
        ((d.arange(0.0, n as f64, 1.0).remainder(13) - 6.0) / 8.0).reshape(shape).to_dtype(dtype)
    };
    let every_other = |x: TensorFuture| x.i((Index::ALL, Index::ALL.step(2)));
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        for n in [9, 110] {
            let gaps = |d: &Device| {
                let a = every_other(small(d, dtype, &[n, 2 * n]));
                let b = every_other(small(d, dtype, &[n, 2 * n]));
                a.matmul(b)
            };
            same_on_both(&gpu, dtype, gaps, "a product with gaps");
            let sum = |d: &Device| {
                let a = every_other(small(d, dtype, &[n, 2 * n]));
                let c = block_on(small(d, dtype, &[n, n]) * 2.0).unwrap();
                c.addmm(a, small(d, dtype, &[n, n]), 1.0, 1.0)
            };
            same_on_both(&gpu, dtype, sum, "a sum with a product");
        }
    }
    // Batches walked backwards, and many of them by turns.
    let batches = |d: &Device| {
        let a = small(d, DType::F32, &[9, 3, 9, 2, 7]).transpose(1, 3).flip(0);
        let b = small(d, DType::F32, &[9, 2, 9, 3, 7]).transpose(3, 4);
        a.matmul(b)
    };
    same_on_both(&gpu, DType::F32, batches, "batches");
    let repeated = |d: &Device| {
        let a = every_other(small(d, DType::F32, &[64, 400]));
        let b = small(d, DType::F32, &[6, 1, 200, 32]).expand([6, 5, 200, 32]);
        a.expand([6, 5, 64, 200]).matmul(b)
    };
    same_on_both(&gpu, DType::F32, repeated, "repeated batches");
    let integers = |d: &Device| {
        small(d, DType::F32, &[12, 9]).matmul(small(d, DType::F32, &[9, 5])).to_dtype(DType::I64)
    };
    same_on_both(&gpu, DType::I64, integers, "integers");
}

fn a_product_that_is_refused_fails_its_value_alone(simulator: &Simulator, _: u64) {
    let device = device(0);
    let x = block_on(device.randn([40, 40])).unwrap();
    block_on(x.matmul(&x)).unwrap();
    simulator.fail_launch(1, LAUNCH_OUT_OF_RESOURCES);
    let error = block_on(x.matmul(&x)).unwrap_err();
    assert!(error.is_kernel() && error.op() == "matmul", "{error}");
    block_on(x.matmul(&x)).unwrap();
    // The handle's first memory cannot be had: tried again once some came free.
    let other = super::device(1);
    let y = block_on(other.randn([40, 40])).unwrap();
    for n in 1..6 {
        simulator.fail_allocation(n);
        block_on(y.matmul(&y)).unwrap();
    }
    simulator.fail_allocation(0);
}

fn a_reduction_over_every_other_of_many_dimensions_is_right_or_says_so(_: &Simulator, _: u64) {
    let gpu = device(0);
    let shape = [2usize; 17];
    let dims = |n: usize| (0..n).map(|d| 2 * d as isize).collect::<Vec<isize>>();
    let values = |d: &Device| d.arange(0.0, 131_072.0, 1.0).remainder(7).reshape(shape);
    let sum = |d: &Device| values(d).transpose(0, 1).transpose(5, 12).sum(dims(6));
    same_on_both(&gpu, DType::F32, sum, "a sum over six of seventeen");
    let all = block_on(values(&gpu).sum(dims(9)));
    match all {
        Ok(sums) => assert_eq!(sums.dims(), [2; 8]),
        Err(error) => {
            assert!(error.is_kernel() && error.message().contains("no CUDA kernel"), "{error}")
        }
    }
}

fn a_device_that_spins_and_lingers_gives_the_same_values(_: &Simulator, _: u64) {
    let some = std::time::Duration::from_millis(2);
    let device = Device::cuda_with(0, CudaOptions::default().spin(some).linger(some)).unwrap();
    let mut x = block_on(device.arange(0.0, 1000.0, 1.0)).unwrap();
    for round in 1..20 {
        x = block_on(&x + 1.0).unwrap();
        assert_eq!(block_on(x.i(0).item::<f32>()).unwrap(), round as f32);
    }
}

fn limits_without_end_are_no_limits(_: &Simulator, _: u64) {
    let (most, longest) = (usize::MAX, std::time::Duration::MAX);
    let options =
        CudaOptions::default().linger(longest).fusion_delay(longest).watchdog(Some(longest));
    let options =
        options.bytes_max(most).kept_bytes(most).in_flight_ops(most).in_flight_bytes(most);
    let options = options.depth(u64::MAX).queue_ops(most).queue_bytes(most).permits(most);
    let device = Device::cuda_with(0, options).unwrap();
    let x = device.arange(0.0, 1000.0, 1.0) + 1.0;
    assert_eq!(block_on((x * 2.0).sum_all().item::<f32>()).unwrap(), 1_001_000.0);
}

fn page_locked_memory_that_cannot_be_had_fails_what_needs_it(_: &Simulator, _: u64) {
    let device = Device::cuda_with(0, CudaOptions::default().pinned_bytes(usize::MAX)).unwrap();
    for n in [100, 1 << 20] {
        let x = device.from_vec(vec![1f32; n], [n]);
        let error = block_on(x + 1.0).unwrap_err();
        assert!(error.is_out_of_memory(), "{n}: {error}");
    }
}

fn a_region_with_constants_of_its_own_replays(_: &Simulator, _: u64) {
    let (gpu, cpu) = (device(0), Device::cpu());
    let of = |device: &Device| {
        let inside = device.clone();
        device.region(move |x: TensorFuture| {
            let bias = inside.from_vec(vec![0.5f32, -1.5, 2.5, 4.0], [4]);
            let weights = inside.arange(0.0, 16.0, 1.0).reshape([4, 4]);
            (&x * &bias).addmm(&x, weights, 1.0, 1.0) + bias
        })
    };
    let (here, there) = (of(&gpu), of(&cpu));
    for round in 0..8 {
        let input = |d: &Device| d.full([4, 4], round as f64) + d.arange(0.0, 4.0, 1.0);
        let read = |x: TensorFuture| block_on(x.to_vec::<f32>()).unwrap();
        assert_eq!(read(here.call(input(&gpu))), read(there.call(input(&cpu))), "round {round}");
    }
}
