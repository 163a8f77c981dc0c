//! Kernels: what g++ and the fibers make of CUDA C.

use crate::Test;
use crate::rig::{code, context, grid, kernel};
use cudarc::driver::{LaunchConfig, PushKernelArg};
use futensor_simulated_driver::Simulator;

pub const TESTS: &[(&str, Test)] = &[
    ("elementwise_kernel_covers_every_element_once", elementwise),
    ("shared_memory_and_barriers_sum_a_block", block_sum),
    ("shuffles_sum_a_warp_and_segments_keep_apart", shuffles),
    ("votes_count_only_lanes_that_are_there", votes),
    ("three_dimensional_grids_number_threads_as_cuda_does", dimensions),
    ("shared_memory_is_not_zero_and_keeps_nothing_of_other_blocks", fresh_shared),
    ("dynamic_shared_memory_has_the_size_asked_for", dynamic_shared),
    ("more_than_48_kib_of_shared_memory_must_be_asked_for", shared_limit),
    ("local_arrays_fit_and_endless_recursion_is_an_illegal_address", recursion),
    ("a_block_beyond_its_kernels_launch_bounds_is_refused", launch_bounds),
    ("atomics_lose_nothing", atomics),
    ("counting_barriers_count", counting_barriers),
    ("a_missing_barrier_is_seen_under_one_of_two_thread_orders", missing_barrier),
    ("a_barrier_that_some_threads_skip_by_returning_is_passed", early_return),
    ("half_a_warp_at_a_barrier_and_half_in_a_shuffle_is_a_deadlock", deadlock),
];

fn elementwise(_: &Simulator) {
    let context = context(0);
    let stream = context.new_stream().unwrap();
    let k = kernel(
        &context,
        r#"extern "C" __global__ void k(
            float* __restrict__ out, const float* __restrict__ a, float s, int n) {
            int i = blockIdx.x * blockDim.x + threadIdx.x;
            if (i < n) out[i] = out[i] + __fmaf_rn(a[i], s, 1.0f);
        }"#,
    );
    let n = 100_003usize;
    let a: Vec<f32> = (0..n).map(|i| i as f32).collect();
    let a_device = stream.clone_htod(&a).unwrap();
    let mut out = stream.alloc_zeros::<f32>(n).unwrap();
    let mut launch = stream.launch_builder(&k);
    // SAFETY: arguments match the kernel.
    unsafe {
        launch.arg(&mut out).arg(&a_device).arg(&2.5f32).arg(&(n as i32)).launch(grid(391, 256))
    }
    .unwrap();
    let got = stream.clone_dtoh(&out).unwrap();
    assert!(got.iter().zip(&a).all(|(&y, &x)| y == x.mul_add(2.5, 1.0)));
}

fn launch_bounds(_: &Simulator) {
    let context = context(0);
    let stream = context.new_stream().unwrap();
    let source = r#"extern "C" __global__ void __launch_bounds__(128, 4) k(int* x) {
        atomicAdd(x, 1);
    }"#;
    let k = kernel(&context, source);
    use cudarc::driver::sys::CUfunction_attribute::*;
    assert_eq!(k.get_attribute(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK).unwrap(), 128);
    assert_eq!(k.get_attribute(CU_FUNC_ATTRIBUTE_NUM_REGS).unwrap(), 128);
    let x = stream.alloc_zeros::<i32>(1).unwrap();
    // SAFETY: the argument matches the kernel.
    let launch = |threads| unsafe { stream.launch_builder(&k).arg(&x).launch(grid(1, threads)) };
    assert_eq!(code(launch(129).map(drop)), 701);
    launch(128).unwrap();
    assert_eq!(stream.clone_dtoh(&x).unwrap(), [128]);
}

fn block_sum(_: &Simulator) {
    let context = context(0);
    let stream = context.new_stream().unwrap();
    let k = kernel(
        &context,
        r#"extern "C" __global__ void __launch_bounds__(256) k(long long* out, const int* a) {
            __shared__ long long part[256];
            int t = threadIdx.x;
            part[t] = a[blockIdx.x * 256 + t];
            __syncthreads();
            for (int step = 128; step > 0; step /= 2) {
                if (t < step) part[t] += part[t + step];
                __syncthreads();
            }
            if (t == 0) out[blockIdx.x] = part[0];
        }"#,
    );
    let a: Vec<i32> = (0..256 * 7).map(|i| (i * i) % 1013).collect();
    let a_device = stream.clone_htod(&a).unwrap();
    let mut out = stream.alloc_zeros::<i64>(7).unwrap();
    // SAFETY: arguments match the kernel.
    unsafe { stream.launch_builder(&k).arg(&mut out).arg(&a_device).launch(grid(7, 256)) }.unwrap();
    let expected: Vec<i64> =
        a.chunks(256).map(|block| block.iter().map(|&x| i64::from(x)).sum()).collect();
    assert_eq!(stream.clone_dtoh(&out).unwrap(), expected);
}

fn shuffles(_: &Simulator) {
    let context = context(0);
    let stream = context.new_stream().unwrap();
    let k = kernel(
        &context,
        r#"extern "C" __global__ void k(float* sums, int* moved) {
            int t = threadIdx.x;
            float v = t;
            for (int d = 16; d > 0; d /= 2) v += __shfl_down_sync(0xffffffffu, v, d);
            if (t % 32 == 0) sums[t / 32] = v;
            moved[t] = __shfl_up_sync(0xffffffffu, t, 1, 8);
            moved[96 + t] = __shfl_xor_sync(0xffffffffu, t, 5);
            moved[192 + t] = __shfl_sync(0xffffffffu, t, 3, 16);
            moved[288 + t] = (int)__shfl_sync(0xffffffffu, (double)t * 4294967296.0, 31) == 0;
        }"#,
    );
    let mut sums = stream.alloc_zeros::<f32>(3).unwrap();
    let mut moved = stream.alloc_zeros::<i32>(96 * 4).unwrap();
    // SAFETY: arguments match the kernel.
    unsafe { stream.launch_builder(&k).arg(&mut sums).arg(&mut moved).launch(grid(1, 96)) }
        .unwrap();
    assert_eq!(stream.clone_dtoh(&sums).unwrap(), [496.0, 496.0 + 1024.0, 496.0 + 2048.0]);
    let moved = stream.clone_dtoh(&moved).unwrap();
    for t in 0..96i32 {
        assert_eq!(moved[t as usize], if t % 8 == 0 { t } else { t - 1 }, "up, thread {t}");
        assert_eq!(moved[96 + t as usize], t ^ 5, "xor, thread {t}");
        assert_eq!(moved[192 + t as usize], t / 16 * 16 + 3, "index, thread {t}");
    }
}

fn votes(_: &Simulator) {
    let context = context(0);
    let stream = context.new_stream().unwrap();
    let k = kernel(
        &context,
        r#"extern "C" __global__ void k(unsigned* out) {
            int t = threadIdx.x;
            unsigned even = __ballot_sync(0xffffffffu, t % 2 == 0);
            int all = __all_sync(0xffffffffu, t < 40), any = __any_sync(0xffffffffu, t == 39);
            if (t % 32 == 0) { 
                out[t / 32 * 3] = even; out[t / 32 * 3 + 1] = all; out[t / 32 * 3 + 2] = any;
            }
            unsigned sum = __reduce_add_sync(__activemask(), (unsigned)t);
            if (t == 0) out[6] = sum;
        }"#,
    );
    let mut out = stream.alloc_zeros::<u32>(7).unwrap();
    // SAFETY: arguments match the kernel.
    unsafe { stream.launch_builder(&k).arg(&mut out).launch(grid(1, 40)) }.unwrap();
    assert_eq!(stream.clone_dtoh(&out).unwrap(), [0x5555_5555, 1, 0, 0x55, 1, 1, 496]);
}

fn dimensions(_: &Simulator) {
    let context = context(0);
    let stream = context.new_stream().unwrap();
    let k = kernel(
        &context,
        r#"extern "C" __global__ void k(int* out) {
            int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
            int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
            __syncthreads();
            atomicAdd(&out[block * 60 + thread], 1 + threadIdx.y);
        }"#,
    );
    let mut out = stream.alloc_zeros::<i32>(24 * 60).unwrap();
    let shape = LaunchConfig { grid_dim: (2, 3, 4), block_dim: (5, 4, 3), shared_mem_bytes: 0 };
    // SAFETY: arguments match the kernel.
    unsafe { stream.launch_builder(&k).arg(&mut out).launch(shape) }.unwrap();
    let got = stream.clone_dtoh(&out).unwrap();
    assert!(got.iter().enumerate().all(|(i, &x)| x == 1 + (i as i32 % 60) / 5 % 4), "{got:?}");
}

fn fresh_shared(_: &Simulator) {
    let context = context(0);
    let stream = context.new_stream().unwrap();
    let k = kernel(
        &context,
        r#"template <class T> __device__ void look(T* out, int i) {
            __shared__ __align__(16) T x[64], y;
            extern __shared__ T z[];
            T seen = x[i] == (T)-1 && y == (T)-1 && z[i] == (T)-1;
            __syncthreads();
            out[i] = seen;
            x[i] = y = z[i] = i;
        }
        extern "C" __global__ void k(int* out) { look<int>(out + blockIdx.x * 64, threadIdx.x); }"#,
    );
    let shape = LaunchConfig { shared_mem_bytes: 256, ..grid(3, 64) };
    for _ in 0..2 {
        let mut out = stream.alloc_zeros::<i32>(192).unwrap();
        // SAFETY: arguments match the kernel.
        unsafe { stream.launch_builder(&k).arg(&mut out).launch(shape) }.unwrap();
        assert_eq!(stream.clone_dtoh(&out).unwrap(), [1; 192]);
    }
}

fn dynamic_shared(_: &Simulator) {
    let context = context(0);
    let stream = context.new_stream().unwrap();
    let k = kernel(
        &context,
        r#"extern "C" __global__ void k(float* out, int n) {
            extern __shared__ __align__(16) float room[];
            for (int i = threadIdx.x; i < n; i += blockDim.x) room[i] = i;
            __syncthreads();
            out[blockIdx.x * blockDim.x + threadIdx.x] = room[n - 1 - threadIdx.x];
        }"#,
    );
    let mut out = stream.alloc_zeros::<f32>(128).unwrap();
    let shape = LaunchConfig { shared_mem_bytes: 12_000 * 4, ..grid(2, 64) };
    // SAFETY: arguments match the kernel.
    unsafe { stream.launch_builder(&k).arg(&mut out).arg(&12_000i32).launch(shape) }.unwrap();
    let got = stream.clone_dtoh(&out).unwrap();
    assert!(got.iter().enumerate().all(|(i, &x)| x == (11_999 - i % 64) as f32));
}

fn shared_limit(_: &Simulator) {
    use cudarc::driver::sys::CUfunction_attribute_enum as Attribute;
    let max = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    let context = context(0);
    let stream = context.new_stream().unwrap();
    let k = kernel(&context, r#"extern "C" __global__ void k() {}"#);
    let launch = |bytes: u32| {
        let shape = LaunchConfig { shared_mem_bytes: bytes, ..grid(1, 1) };
        // SAFETY: the kernel takes no arguments.
        unsafe { stream.launch_builder(&k).launch(shape) }.map(drop)
    };
    launch(48 << 10).unwrap();
    assert_eq!(code(launch((48 << 10) + 1)), 1);
    k.set_attribute(max, 100 << 10).unwrap();
    launch(100 << 10).unwrap();
    assert_eq!(code(launch((100 << 10) + 1)), 1);
    assert_eq!(code(k.set_attribute(max, 228 << 10)), 1);
    stream.synchronize().unwrap();
}

fn recursion(simulator: &Simulator) {
    let source = r#"__device__ __noinline__ int deep(int n) {
            volatile int room[1024];
            room[n & 1023] = n;
            return n == 0 ? 0 : deep(n - 1) + (room[n & 1023] == n);
        }
        extern "C" __global__ void k(int* out, int n) { out[threadIdx.x] = deep(n); }"#;
    for (depth, status) in [(30i32, 0), (100_000, 700)] {
        simulator.reset(1, 1);
        let context = context(0);
        let stream = context.new_stream().unwrap();
        let k = kernel(&context, source);
        let mut out = stream.alloc_zeros::<i32>(2).unwrap();
        // SAFETY: arguments match the kernel; running out of stack is what is tested.
        unsafe { stream.launch_builder(&k).arg(&mut out).arg(&depth).launch(grid(1, 2)) }.unwrap();
        if status == 0 {
            assert_eq!(stream.clone_dtoh(&out).unwrap(), [30, 30]);
        } else {
            assert_eq!(code(stream.synchronize()), status);
            simulator.clear_report();
        }
    }
}

fn atomics(_: &Simulator) {
    let context = context(0);
    let stream = context.new_stream().unwrap();
    let k = kernel(
        &context,
        r#"extern "C" __global__ void k(int* out, unsigned long long* wide, float* f) {
            int i = blockIdx.x * blockDim.x + threadIdx.x;
            atomicAdd(out, 1);
            atomicMax(out + 1, i);
            atomicAdd(wide, 1ull << 32);
            atomicAdd(f, 0.5f);
            int old = out[2], seen;
            do { seen = old; old = atomicCAS(out + 2, seen, seen + 2); } while (old != seen);
        }"#,
    );
    let (mut out, mut wide, mut f) = (
        stream.alloc_zeros::<i32>(3).unwrap(),
        stream.alloc_zeros::<u64>(1).unwrap(),
        stream.alloc_zeros::<f32>(1).unwrap(),
    );
    // SAFETY: arguments match the kernel.
    unsafe {
        stream.launch_builder(&k).arg(&mut out).arg(&mut wide).arg(&mut f).launch(grid(10, 100))
    }
    .unwrap();
    assert_eq!(stream.clone_dtoh(&out).unwrap(), [1000, 999, 2000]);
    assert_eq!(stream.clone_dtoh(&wide).unwrap(), [1000 << 32]);
    assert_eq!(stream.clone_dtoh(&f).unwrap(), [500.0]);
}

fn counting_barriers(_: &Simulator) {
    let context = context(0);
    let stream = context.new_stream().unwrap();
    let k = kernel(
        &context,
        r#"extern "C" __global__ void k(int* out) {
            int t = threadIdx.x;
            int count = __syncthreads_count(t % 3 == 0);
            int all = __syncthreads_and(t < 64), any = __syncthreads_or(t == 99);
            if (t == 7) { out[0] = count; out[1] = all; out[2] = any; }
        }"#,
    );
    let mut out = stream.alloc_zeros::<i32>(3).unwrap();
    // SAFETY: arguments match the kernel.
    unsafe { stream.launch_builder(&k).arg(&mut out).launch(grid(1, 64)) }.unwrap();
    assert_eq!(stream.clone_dtoh(&out).unwrap(), [22, 1, 0]);
}

fn missing_barrier(simulator: &Simulator) {
    let source = r#"extern "C" __global__ void k(int* out, int base) {
        __shared__ int x[64];
        x[threadIdx.x] = base + threadIdx.x;
        BARRIER
        out[threadIdx.x] = x[(threadIdx.x + STEP) % 64];
    }"#;
    let wrong = |barrier: &str, step: u32| {
        let source = source.replace("BARRIER", barrier).replace("STEP", &step.to_string());
        let mut wrong = 0;
        for seed in 0..8 {
            simulator.reset(seed, 1);
            let context = context(0);
            let stream = context.new_stream().unwrap();
            let k = kernel(&context, &source);
            let mut out = stream.alloc_zeros::<u32>(64).unwrap();
            let base = 1000 * (seed as u32 + 1);
            // SAFETY: arguments match the kernel.
            unsafe { stream.launch_builder(&k).arg(&mut out).arg(&base).launch(grid(1, 64)) }
                .unwrap();
            let expected: Vec<u32> = (0..64).map(|t| base + (t + step) % 64).collect();
            wrong += usize::from(stream.clone_dtoh(&out).unwrap() != expected);
        }
        wrong
    };
    for step in [1, 63] {
        assert!(wrong("", step) > 0, "step {step}: no seed shows the missing barrier");
        assert_eq!(wrong("__syncthreads();", step), 0, "step {step}");
    }
}

fn early_return(_: &Simulator) {
    let context = context(0);
    let stream = context.new_stream().unwrap();
    let k = kernel(
        &context,
        r#"extern "C" __global__ void k(int* out, int n) {
            __shared__ int x[64];
            if (threadIdx.x >= n) return;
            x[threadIdx.x] = threadIdx.x;
            __syncthreads();
            out[threadIdx.x] = x[n - 1 - threadIdx.x];
        }"#,
    );
    let mut out = stream.alloc_zeros::<i32>(64).unwrap();
    // SAFETY: arguments match the kernel.
    unsafe { stream.launch_builder(&k).arg(&mut out).arg(&40i32).launch(grid(1, 64)) }.unwrap();
    let expected: Vec<i32> = (0..64).map(|t| if t < 40 { 39 - t } else { 0 }).collect();
    assert_eq!(stream.clone_dtoh(&out).unwrap(), expected);
}

fn deadlock(simulator: &Simulator) {
    let context = context(0);
    let stream = context.new_stream().unwrap();
    let k = kernel(
        &context,
        r#"extern "C" __global__ void k(int* out) {
            if (threadIdx.x < 16) __syncthreads();
            else out[threadIdx.x] = __shfl_sync(0xffffffffu, 1, 0);
        }"#,
    );
    let mut out = stream.alloc_zeros::<i32>(32).unwrap();
    // SAFETY: arguments match the kernel.
    unsafe { stream.launch_builder(&k).arg(&mut out).launch(grid(1, 32)) }.unwrap();
    assert_eq!(code(stream.synchronize()), 702);
    assert!(simulator.report().contains("deadlock"), "{}", simulator.report());
    simulator.clear_report();
}
