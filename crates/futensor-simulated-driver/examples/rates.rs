//! How fast is the simulated driver? Run: `cargo run -p futensor-simulated-driver --example rates`
//!
//! Medians of five runs, after one to warm up, in processor time of all threads, so that a busy
//! machine does not count (the compilation: wall time). The driver is built in the dev profile with
//! `opt-level = 2`.

use cudarc::driver::{CudaContext, CudaFunction, CudaStream, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::{CompileOptions, compile_ptx_with_opts};
use futensor_simulated_driver::harness;
use std::sync::Arc;
use std::time::Instant;

const SOURCE: &str = r#"
extern "C" __global__ void none() {}
extern "C" __global__ void add(float* out, const float* a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = a[i] + 1.0f;
}
extern "C" __global__ void barriers(int times) { for (int i = 0; i < times; i++) __syncthreads(); }
extern "C" __global__ void shuffles(float* out, int times) {
    float v = threadIdx.x;
    for (int i = 0; i < times; i++) v += __shfl_xor_sync(0xffffffffu, v, 1);
    out[threadIdx.x] = v;
}"#;

/// Seconds of processor time that this process has used.
fn processor_time() -> f64 {
    // SAFETY: a plain query into a value of its own.
    let time = unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time);
        time
    };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

fn median(mut run: impl FnMut()) -> f64 {
    run();
    let mut seconds: Vec<f64> = (0..5)
        .map(|_| {
            let start = processor_time();
            run();
            processor_time() - start
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    seconds[2]
}

fn main() {
    if let Err(why) = harness::enter() {
        eprintln!("{why}");
        return;
    }
    let context = CudaContext::new(0).expect("a simulated device");
    // SAFETY: one stream orders everything.
    unsafe { context.disable_event_tracking() };
    let stream: Arc<CudaStream> = context.new_stream().expect("a stream");
    let unique = format!("{SOURCE}\n// {}", std::process::id());
    let start = Instant::now();
    let options = CompileOptions { arch: Some("sm_90"), ..Default::default() };
    let image = compile_ptx_with_opts(unique, options).expect("a compiler");
    println!("compile four kernels       {:8.1} ms", start.elapsed().as_secs_f64() * 1e3);
    let module = context.load_module(image).expect("a module");
    let load = |name: &str| -> CudaFunction { module.load_function(name).expect("a kernel") };
    let shape = |blocks, threads| LaunchConfig {
        grid_dim: (blocks, 1, 1),
        block_dim: (threads, 1, 1),
        shared_mem_bytes: 0,
    };
    let wait = || stream.synchronize().expect("no fault");

    let none = load("none");
    let seconds = median(|| {
        for _ in 0..10_000 {
            // SAFETY: the kernel takes no arguments.
            unsafe { stream.launch_builder(&none).launch(shape(1, 1)) }.expect("a launch");
        }
        wait();
    });
    println!("launch and run nothing     {:8.2} us", seconds / 10_000.0 * 1e6);

    let (n, add) = (1usize << 22, load("add"));
    let a = stream.alloc_zeros::<f32>(n).expect("memory");
    let mut out = stream.alloc_zeros::<f32>(n).expect("memory");
    let seconds = median(|| {
        let count = n as i32;
        // SAFETY: arguments match the kernel.
        unsafe {
            stream
                .launch_builder(&add)
                .arg(&mut out)
                .arg(&a)
                .arg(&count)
                .launch(shape(n as u32 / 256, 256))
        }
        .expect("a launch");
        wait();
    });
    println!("elementwise, a thread      {:8.2} ns", seconds / n as f64 * 1e9);

    let barriers = load("barriers");
    let seconds = median(|| {
        // SAFETY: arguments match the kernel.
        unsafe { stream.launch_builder(&barriers).arg(&1000i32).launch(shape(1, 256)) }
            .expect("a launch");
        wait();
    });
    println!("a thread at a barrier      {:8.2} ns", seconds / 256_000.0 * 1e9);

    let shuffles = load("shuffles");
    let seconds = median(|| {
        // SAFETY: arguments match the kernel.
        unsafe {
            stream.launch_builder(&shuffles).arg(&mut out).arg(&1000i32).launch(shape(1, 256))
        }
        .expect("a launch");
        wait();
    });
    println!("a thread in a shuffle      {:8.2} ns", seconds / 256_000.0 * 1e9);
}
