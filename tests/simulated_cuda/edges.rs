//! What is missing, refused or odd: libraries, GPUs, entries of the disk cache, kernels that do not compile, operands
//! that cuBLAS cannot express.
//!
//! What a process reads once (its libraries, its settings) is tried in a process of its own: this program again, with
//! the name of a part to play.

use super::support::block_on;
use super::{Entry, device, entries};
use futensor::{
    CudaArg, CudaGrid, CudaKernel, CudaOptions, CudaRun, DType, Device, Error, Meta, Operation, Refusal,
    TensorFuture, custom,
};
use futensor_simulated_driver::{LAUNCH_OUT_OF_RESOURCES, Simulator};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

pub fn all() -> Vec<Entry> {
    entries![1, false;
        a_gpu_has_a_name_and_memory_and_a_number
        a_library_that_is_missing_is_named_with_where_it_was_looked_for
        a_machine_without_a_gpu_says_so_and_falls_back_to_the_cpu
        settings_of_the_environment_change_no_value
        a_sum_has_the_same_bits_fused_or_not_and_however_its_operand_lies
        a_disk_cache_that_is_damaged_is_as_good_as_none
        a_source_that_does_not_compile_fails_its_value_with_the_compilers_words
        a_kernel_takes_arguments_of_every_kind_and_scratch_memory
        a_custom_op_in_a_region_is_launched_each_time
        products_of_operands_that_no_library_call_expresses_are_right
        a_product_that_is_refused_fails_its_value_alone
        a_reduction_over_every_other_of_many_dimensions_is_right_or_says_so
    ]
    .to_vec()
}

const PART: &str = "FUTENSOR_TEST_PART";

/// Plays a part in a process of its own, where this is one.
pub fn part() -> Option<ExitCode> {
    let part = std::env::var(PART).ok()?;
    match part.as_str() {
        "probe" => match Device::cuda(0) {
            Ok(device) => println!("there: {device}"),
            Err(error) => {
                println!("{error}");
                println!("{} {}", Device::gpu_count(), Device::try_all_gpus().len());
                println!("{}", Device::try_gpu(0));
            }
        },
        "sums" => println!("{:?}", sums()),
        _ => println!("{:?}", values()),
    }
    Some(ExitCode::SUCCESS)
}

/// What this program prints in a part.
fn played(part: &str, change: impl FnOnce(&mut Command) -> &mut Command) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(PART, part);
    let out = change(&mut command).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(
        out.status.success(),
        "{part} ends with {}: {text}{}",
        out.status,
        String::from_utf8_lossy(&out.stderr)
    );
    text
}

/// Bits of values that came through kernels alone, fused kernels, reductions and a product.
fn values() -> Vec<u32> {
    let device = device(0);
    let x = device.arange(0.0, 600.0, 1.0).reshape([20, 30]) / 7.0;
    let mut bits = Vec::new();
    for _ in 0..5 {
        let y = (&x * 2.0 + 1.0).sqrt() - x.sin();
        let read = [block_on(y.to_vec::<f32>()), block_on(y.sum(1).to_vec::<f32>())];
        let product = block_on(x.matmul(x.t()).to_vec::<f32>());
        bits = read.into_iter().chain([product]).flat_map(|v| v.unwrap()).map(f32::to_bits).collect();
    }
    bits
}

/// Bits of sums: of a value in memory, and of the same made on the way, from operands that lie in rows, in columns
/// and in half the bytes. And how many launches it took.
fn sums() -> (Vec<Vec<u32>>, u64) {
    let device = device(0);
    device.seed(3);
    let bits = |x: TensorFuture| -> Vec<u32> {
        block_on(x.to_vec::<f32>()).unwrap().into_iter().map(f32::to_bits).collect()
    };
    let simulator = Simulator::attach().unwrap();
    let mut all = Vec::new();
    let mut launches = 0;
    for shape in [[40, 1000], [100, 64], [3, 9000]] {
        let halves = block_on(device.randn(shape).to_dtype(DType::F16)).unwrap();
        let x = block_on(halves.to_dtype(DType::F32)).unwrap();
        let turned = block_on(x.t().reshape([shape[0] * shape[1]]) + 0.0).unwrap();
        let turned = turned.reshape([shape[1], shape[0]]).t();
        let products = block_on(&x * 1.5 + 0.25).unwrap();
        for dim in [0, 1] {
            let before = simulator.stats().launches;
            let widened = halves.to_dtype(DType::F32).sum(dim);
            let some = [x.sum(dim), turned.sum(dim), widened].map(bits);
            assert!(some.iter().all(|s| *s == some[0]), "{shape:?} over {dim}");
            let made =
                [products.sum(dim), (&x * 1.5 + 0.25).sum(dim), (&turned * 1.5 + 0.25).sum(dim)].map(bits);
            assert!(made.iter().all(|s| *s == made[0]), "{shape:?} over {dim}, made on the way");
            launches += simulator.stats().launches - before;
            all.extend([some[0].clone(), made[0].clone()]);
        }
    }
    (all, launches)
}

fn a_sum_has_the_same_bits_fused_or_not_and_however_its_operand_lies(_: &Simulator, _: u64) {
    let of = |fusion: &str| played("sums", |c| c.env("FUTENSOR_FUSION", fusion));
    let [fused, apart] = ["now", "never"].map(of);
    let split = |text: &str| {
        let (bits, launches) = text.trim_end().rsplit_once(", ").unwrap();
        (bits.to_owned(), launches.trim_end_matches(')').parse::<u64>().unwrap())
    };
    let ((fused, few), (apart, many)) = (split(&fused), split(&apart));
    assert!(few < many, "{few} launches fused, {many} apart");
    assert_eq!(fused, apart);
}

/// A folder of this test's own.
fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("futensor-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// The folder that the simulated libraries lie in.
fn libraries() -> PathBuf {
    let path = std::env::var("LD_LIBRARY_PATH").unwrap();
    PathBuf::from(path.split(':').next().unwrap())
}

fn a_gpu_has_a_name_and_memory_and_a_number(_: &Simulator, _: u64) {
    assert_eq!((Device::gpu_count(), Device::try_all_gpus().len()), (2, 2));
    let error = Device::cuda(7).unwrap_err();
    assert!(error.is_device() && error.message().contains("there is no GPU 7"), "{error}");
    let error = Device::cuda_with(7, CudaOptions::default()).unwrap_err();
    assert!(error.message().contains("cuda:7 is not there"), "{error}");
    let device = device(0);
    assert!(device.hardware().contains("simulated") || !device.hardware().is_empty());
    let before = device.memory();
    assert!(before.free.is_none() && before.total > 1 << 30, "{before:?}");
    let x = block_on(device.ones([1000]) + 1.0).unwrap();
    let open = device.memory();
    assert!(open.free.is_some_and(|free| free > 0 && free < open.total), "{open:?}");
    assert_eq!(open.total, before.total);
    drop(x);
    // The process's own device for a GPU is one, and lives on.
    assert_eq!(Device::cuda(1).unwrap(), Device::try_gpu(1));
}

fn a_library_that_is_missing_is_named_with_where_it_was_looked_for(_: &Simulator, _: u64) {
    let all = libraries();
    let some = folder("libraries");
    let probe = |links: &[&str], missing: &str| {
        for name in links {
            std::os::unix::fs::symlink(all.join(name), some.join(name)).unwrap();
        }
        let text = played("probe", |c| c.env("LD_LIBRARY_PATH", &some));
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].contains(missing) && lines[0].contains("not found"), "{text}");
        assert!(lines[0].contains(some.to_str().unwrap()), "{text}");
        assert_eq!(lines[1..], ["0 0", "cpu"], "{text}");
    };
    // Where the machine has NVIDIA's own, its loader finds them.
    let system = Command::new("ldconfig").arg("-p").output().map(|o| o.stdout).unwrap_or_default();
    if String::from_utf8_lossy(&system).contains("libcuda.so") {
        return;
    }
    probe(&[], "libcuda.so");
    probe(&["libcuda.so", "libcuda.so.1"], "libnvrtc.so");
    probe(&["libnvrtc.so", "libnvrtc.so.13"], "libcublas.so");
    std::fs::remove_dir_all(&some).unwrap();
}

fn a_machine_without_a_gpu_says_so_and_falls_back_to_the_cpu(_: &Simulator, _: u64) {
    let text = played("probe", |c| c.env("FUTENSOR_SIM_DEVICES", "0"));
    assert!(text.contains("no GPU") && text.ends_with("0 0\ncpu\n"), "{text}");
}

fn settings_of_the_environment_change_no_value(_: &Simulator, _: u64) {
    let want = format!("{:?}\n", values());
    let cache = folder("settings");
    let settings: [&[(&str, &str)]; 5] = [
        &[("FUTENSOR_FUSION", "now"), ("FUTENSOR_RELATIVES", "never")],
        &[("FUTENSOR_FUSION", "never"), ("FUTENSOR_TF32", "1")],
        &[("FUTENSOR_RELATIVES", "later")],
        &[("FUTENSOR_CACHE", ""), ("FUTENSOR_GRAPHS", "never")],
        &[("FUTENSOR_SYNC", "1"), ("FUTENSOR_NVTX", "1")],
    ];
    for some in settings {
        let set = |c: &mut Command| {
            c.env("FUTENSOR_CACHE", &cache).envs(some.iter().copied());
        };
        let got = played("values", |c| {
            set(c);
            c
        });
        assert_eq!(got, want, "{some:?}");
    }
    // Where no folder is named it is the user's own.
    let got = played("values", |c| c.env_remove("FUTENSOR_CACHE").env("XDG_CACHE_HOME", &cache));
    assert_eq!(got, want);
    assert!(cache.join("futensor").is_dir());
    let got = played("values", |c| {
        c.env_remove("FUTENSOR_CACHE").env_remove("XDG_CACHE_HOME").env("HOME", cache.join("home"))
    });
    assert_eq!(got, want);
    assert!(cache.join("home/.cache/futensor").is_dir());
    std::fs::remove_dir_all(&cache).unwrap();
}

fn entries_of(folder: &Path) -> Vec<PathBuf> {
    let list = std::fs::read_dir(folder).unwrap().flatten().map(|f| f.path());
    let mut list: Vec<PathBuf> = list.filter(|p| p.extension().is_some_and(|e| e == "cubin")).collect();
    list.sort();
    list
}

fn a_disk_cache_that_is_damaged_is_as_good_as_none(_: &Simulator, _: u64) {
    let cache = folder("cache");
    let run = || played("values", |c| c.env("FUTENSOR_CACHE", &cache).env("FUTENSOR_FUSION", "now"));
    let want = run();
    let whole: Vec<(PathBuf, Vec<u8>)> =
        entries_of(&cache).into_iter().map(|p| (p.clone(), std::fs::read(p).unwrap())).collect();
    assert!(whole.len() > 3, "{whole:?}");
    let damages: [fn(&[u8]) -> Vec<u8>; 4] = [
        |_| Vec::new(),
        |bytes| bytes[..bytes.len() / 2].to_vec(),
        |bytes| bytes.iter().enumerate().map(|(i, &b)| if i == bytes.len() - 9 { b ^ 1 } else { b }).collect(),
        |_| b"what is this".to_vec(),
    ];
    for damage in damages {
        for (path, bytes) in &whole {
            std::fs::write(path, damage(bytes)).unwrap();
        }
        assert_eq!(run(), want);
        for (path, bytes) in &whole {
            assert_eq!(&std::fs::read(path).unwrap(), bytes, "written anew: {}", path.display());
        }
    }
    // A folder that others may write into is not used: what lies there is code.
    use std::os::unix::fs::PermissionsExt;
    entries_of(&cache).iter().for_each(|p| std::fs::remove_file(p).unwrap());
    std::fs::set_permissions(&cache, std::fs::Permissions::from_mode(0o777)).unwrap();
    assert_eq!(run(), want);
    assert_eq!(entries_of(&cache), [] as [PathBuf; 0]);
    std::fs::remove_dir_all(&cache).unwrap();
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
    fn run_cpu(&self, _: &mut futensor::CpuRun<'_>) -> Result<(), Refusal> {
        Err(Refusal::argument("only on a GPU"))
    }
    #[allow(unsafe_code)]
    fn run_cuda(&self, run: &mut CudaRun<'_>) -> Result<(), Refusal> {
        let (x, out) = (run.inputs()[0], run.output());
        let n = out.numel();
        let kernel = CudaKernel::new(self.entry, self.source);
        let mut args =
            vec![CudaArg::Address(x.address()), CudaArg::Address(out.address()), CudaArg::U64(n as u64)];
        let pair: Vec<u8> = [0.5f32.to_ne_bytes(), 0.25f32.to_ne_bytes(), 8f32.to_ne_bytes()].concat();
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
        // SAFETY: the arguments are the parameters of the kernels below, which touch n elements of each.
        unsafe { run.launch(kernel, CudaGrid::cover(n, 64), &args) }
    }
}

const ADD_ONE: &str = r#"extern "C" __global__ void add_one(const float* x, float* out, unsigned long long n) {
    unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i] + 1.0f;
}"#;
const ALL_KINDS: &str = r#"struct Three { float a, b, c; };
extern "C" __global__ void all_kinds(const float* x, float* out, unsigned long long n, float* scratch, int i,
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
    let broken =
        r#"extern "C" __global__ void broken(const float* x, float* out, unsigned long long n) { nonsense; }"#;
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
    let want: Vec<f32> = (0..100).map(|i| 8.0 * i as f32 - 1.0 + 2.0 - 3.0 + 0.5 + 0.25 + 0.5 + 0.25).collect();
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
    let integers =
        |d: &Device| small(d, DType::F32, &[12, 9]).matmul(small(d, DType::F32, &[9, 5])).to_dtype(DType::I64);
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
        Err(error) => assert!(error.is_kernel() && error.message().contains("no CUDA kernel"), "{error}"),
    }
}
