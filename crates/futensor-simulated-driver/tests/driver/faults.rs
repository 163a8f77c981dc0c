//! Faults on demand, and what a client sees of them.

use crate::Test;
use crate::rig::{code, context, grid, kernel};
use cudarc::driver::{CudaContext, PushKernelArg, result, sys};
use futensor_simulated_driver::{
    DEVICE_UNAVAILABLE, ILLEGAL_ADDRESS, LAUNCH_FAILED, LAUNCH_OUT_OF_RESOURCES, Simulator,
};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

pub const TESTS: &[(&str, Test)] = &[
    ("the_nth_allocation_fails_and_the_next_succeeds", allocation),
    ("the_nth_launch_fails_and_the_context_goes_on", launch_call),
    ("a_fault_in_a_kernel_ends_its_context_for_good", sticky),
    ("a_fault_on_one_device_leaves_the_other_alone", other_device),
    ("host_functions_are_not_called_after_a_fault", no_host_function),
    ("a_real_stray_access_is_the_same_as_a_fault_on_demand", stray),
    ("a_vector_that_lies_across_its_alignment_is_a_fault", misaligned),
    ("an_assertion_and_a_division_by_zero_end_the_context", assertion),
    ("a_null_dereference_is_caught_between_barriers", null),
    ("a_kernel_that_spins_for_ever_is_ended_and_named", spinning),
    ("a_lost_device_wakes_those_who_wait", lost),
    ("a_hung_launch_waits_and_can_be_released", hang),
    ("a_stalled_stream_leaves_the_others_running", stall),
    ("no_device_is_an_error_of_cu_init", none),
];

const COUNT: &str = r#"extern "C" __global__ void k(int* x) { atomicAdd(x, 1); }"#;

fn allocation(simulator: &Simulator) {
    let context = context(0);
    let stream = context.new_stream().unwrap();
    simulator.fail_allocation(3);
    let got: Vec<u32> = (0..5)
        .map(|_| stream.alloc_zeros::<u8>(8).err().map_or(0, |error| error.0 as u32))
        .collect();
    assert_eq!(got, [0, 0, 2, 0, 0]);
}

fn launch_call(simulator: &Simulator) {
    let context = context(0);
    let stream = context.new_stream().unwrap();
    let k = kernel(&context, COUNT);
    let mut x = stream.alloc_zeros::<i32>(1).unwrap();
    simulator.fail_launch(2, LAUNCH_OUT_OF_RESOURCES);
    let mut got = Vec::new();
    for _ in 0..4 {
        // SAFETY: arguments match the kernel.
        let result = unsafe { stream.launch_builder(&k).arg(&mut x).launch(grid(1, 1)) };
        got.push(result.err().map_or(0, |error| error.0 as u32));
    }
    assert_eq!(got, [0, 701, 0, 0]);
    assert_eq!(stream.clone_dtoh(&x).unwrap(), [3]);
}

fn sticky(simulator: &Simulator) {
    for status in [ILLEGAL_ADDRESS, LAUNCH_FAILED] {
        simulator.reset(1, 2);
        let context = context(0);
        let stream = context.new_stream().unwrap();
        let k = kernel(&context, COUNT);
        let mut x = stream.alloc_zeros::<i32>(1).unwrap();
        simulator.fault_launch(2, status);
        simulator.pause();
        for _ in 0..3 {
            // SAFETY: arguments match the kernel.
            unsafe { stream.launch_builder(&k).arg(&mut x).launch(grid(1, 1)) }.unwrap();
        }
        let event = stream.record_event(None).unwrap();
        let early = context.new_event(None).unwrap();
        simulator.resume();
        assert_eq!(code(stream.synchronize()), status);
        assert_eq!(code(stream.synchronize()), status, "for good");
        assert_eq!(code(event.try_is_complete()), status);
        assert_eq!(code(event.synchronize()), status);
        assert_eq!(code(early.try_is_complete()), status);
        assert_eq!(code(context.synchronize()), status);
        assert_eq!(code(stream.alloc_zeros::<u8>(1).map(drop)), status);
        assert_eq!(code(context.new_stream().map(drop)), status);
        assert_eq!(code(context.new_event(None).map(drop)), status);
        assert_eq!(code(stream.clone_dtoh(&x)), status);
        // SAFETY: arguments match the kernel.
        let launched = unsafe { stream.launch_builder(&k).arg(&mut x).launch(grid(1, 1)) };
        assert_eq!(code(launched.map(drop)), status);
        drop((x, k, event, early, stream));
        drop(context);
        // A context taken anew is the same one.
        let again = CudaContext::new(0).unwrap();
        assert_eq!(code(again.synchronize()), status);
        assert_eq!(simulator.count("kernel"), 1);
        simulator.clear_report();
    }
}

fn other_device(simulator: &Simulator) {
    let (zero, one) = (context(0), context(1));
    let (a, b) = (zero.new_stream().unwrap(), one.new_stream().unwrap());
    simulator.fault_launch(1, ILLEGAL_ADDRESS);
    let (k, other) = (kernel(&zero, COUNT), kernel(&one, COUNT));
    let (mut x, mut y) = (a.alloc_zeros::<i32>(1).unwrap(), b.alloc_zeros::<i32>(1).unwrap());
    // SAFETY: arguments match the kernels.
    unsafe {
        a.launch_builder(&k).arg(&mut x).launch(grid(1, 1)).unwrap();
        b.launch_builder(&other).arg(&mut y).launch(grid(1, 7)).unwrap();
    }
    assert_eq!(code(a.synchronize()), ILLEGAL_ADDRESS);
    assert_eq!(b.clone_dtoh(&y).unwrap(), [7]);
    simulator.clear_report();
}

static CALLED: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" fn called(_: *mut std::ffi::c_void) {
    CALLED.fetch_add(1, Ordering::SeqCst);
}

fn no_host_function(simulator: &Simulator) {
    let context = context(0);
    let (a, b) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let k = kernel(&context, COUNT);
    let mut x = a.alloc_zeros::<i32>(1).unwrap();
    a.synchronize().unwrap();
    simulator.fault_launch(1, ILLEGAL_ADDRESS);
    simulator.pause();
    CALLED.store(0, Ordering::SeqCst);
    simulator.stall_stream(b.cu_stream() as usize, true);
    // SAFETY: arguments match the kernel; `called` takes any argument.
    unsafe {
        a.launch_builder(&k).arg(&mut x).launch(grid(1, 1)).unwrap();
        result::stream::launch_host_function(a.cu_stream(), called, std::ptr::null_mut()).unwrap();
        result::stream::launch_host_function(b.cu_stream(), called, std::ptr::null_mut()).unwrap();
    }
    simulator.resume();
    assert_eq!(code(a.synchronize()), ILLEGAL_ADDRESS);
    simulator.stall_stream(b.cu_stream() as usize, false);
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(CALLED.load(Ordering::SeqCst), 0);
    simulator.clear_report();
}

fn stray(simulator: &Simulator) {
    let context = context(0);
    let stream = context.new_stream().unwrap();
    let k = kernel(&context, r#"extern "C" __global__ void k(int* x, long long i) { x[i] = 1; }"#);
    let mut x = stream.alloc_zeros::<i32>(1).unwrap();
    // SAFETY: the stray write is what is tested; it hits reserved pages of the simulator.
    unsafe { stream.launch_builder(&k).arg(&mut x).arg(&(1i64 << 30)).launch(grid(4, 32)) }
        .unwrap();
    assert_eq!(code(stream.synchronize()), 700);
    assert!(simulator.report().contains("kernel k"), "{}", simulator.report());
    simulator.clear_report();
}

fn misaligned(simulator: &Simulator) {
    let source = r#"struct __align__(16) Four { float v[4]; };
        extern "C" __global__ void k(float* x, int from) {
            *(Four*)(x + from) = Four{{1, 2, 3, 4}};
        }"#;
    for (from, status) in [(4i32, 0), (3, 716)] {
        simulator.reset(1, 1);
        let context = context(0);
        let stream = context.new_stream().unwrap();
        let k = kernel(&context, source);
        let mut x = stream.alloc_zeros::<f32>(8).unwrap();
        // SAFETY: arguments match the kernel, which writes inside the allocation.
        unsafe { stream.launch_builder(&k).arg(&mut x).arg(&from).launch(grid(1, 1)) }.unwrap();
        assert_eq!(stream.synchronize().err().map_or(0, |error| error.0 as u32), status);
        assert_eq!(
            simulator.report().contains("misaligned access"),
            status > 0,
            "{}",
            simulator.report()
        );
        simulator.clear_report();
    }
}

fn assertion(simulator: &Simulator) {
    let source = r#"extern "C" __global__ void k(int* x, int y) {
        assert(y != 5); x[0] = 100 / y; __syncthreads();
    }"#;
    for (y, status, text) in [(5i32, 710, "y != 5"), (0, 715, "division by zero")] {
        simulator.reset(1, 1);
        let context = context(0);
        let stream = context.new_stream().unwrap();
        let k = kernel(&context, source);
        let mut x = stream.alloc_zeros::<i32>(1).unwrap();
        // SAFETY: arguments match the kernel.
        unsafe { stream.launch_builder(&k).arg(&mut x).arg(&y).launch(grid(1, 40)) }.unwrap();
        assert_eq!(code(stream.synchronize()), status);
        assert!(simulator.report().contains(text), "{}", simulator.report());
        simulator.clear_report();
    }
}

fn null(simulator: &Simulator) {
    let source = r#"extern "C" __global__ void k(int* x, int bad) {
        __syncthreads();
        int v = __shfl_sync(0xffffffffu, (int)threadIdx.x, 3);
        if (threadIdx.x == bad) x = 0;
        x[threadIdx.x] = v;
        __syncthreads();
    }"#;
    for bad in [0i32, 50, 63, -1] {
        simulator.reset(bad as u64, 1);
        let context = context(0);
        let stream = context.new_stream().unwrap();
        let k = kernel(&context, source);
        let mut x = stream.alloc_zeros::<i32>(64).unwrap();
        // SAFETY: arguments match the kernel; the null access is what is tested.
        unsafe { stream.launch_builder(&k).arg(&mut x).arg(&bad).launch(grid(3, 64)) }.unwrap();
        if bad < 0 {
            stream.synchronize().unwrap();
            assert!(stream.clone_dtoh(&x).unwrap().iter().all(|&x| x == 3 || x == 35));
        } else {
            assert_eq!(code(stream.synchronize()), 700);
            assert!(
                simulator.report().contains(&format!("thread {bad}")),
                "{}",
                simulator.report()
            );
        }
        simulator.clear_report();
    }
}

fn spinning(simulator: &Simulator) {
    let source =
        r#"extern "C" __global__ void k(volatile int* x) { __syncthreads(); while (*x == 0) {} }"#;
    simulator.limit_kernels(100);
    let context = context(0);
    let stream = context.new_stream().unwrap();
    let k = kernel(&context, source);
    let mut x = stream.alloc_zeros::<i32>(1).unwrap();
    // SAFETY: arguments match the kernel.
    unsafe { stream.launch_builder(&k).arg(&mut x).launch(grid(1, 32)) }.unwrap();
    assert_eq!(code(stream.synchronize()), 702);
    assert!(
        simulator.report().contains("kernel k") && simulator.report().contains("limit"),
        "{}",
        simulator.report()
    );
    simulator.limit_kernels(60_000);
    simulator.clear_report();
}

fn lost(simulator: &Simulator) {
    let context = context(0);
    let stream = context.new_stream().unwrap();
    let k = kernel(&context, COUNT);
    let mut x = stream.alloc_zeros::<i32>(1).unwrap();
    stream.synchronize().unwrap();
    simulator.hang_launch(1);
    // SAFETY: arguments match the kernel.
    unsafe { stream.launch_builder(&k).arg(&mut x).launch(grid(1, 1)) }.unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| code(stream.synchronize()));
        std::thread::sleep(Duration::from_millis(5));
        simulator.lose_device(0, DEVICE_UNAVAILABLE);
        assert_eq!(waiter.join().unwrap(), DEVICE_UNAVAILABLE);
    });
    assert_eq!(code(context.new_event(None).map(drop)), DEVICE_UNAVAILABLE);
}

fn hang(simulator: &Simulator) {
    let context = context(0);
    let (a, b) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let k = kernel(&context, COUNT);
    let (mut x, mut y) = (a.alloc_zeros::<i32>(1).unwrap(), b.alloc_zeros::<i32>(1).unwrap());
    simulator.hang_launch(1);
    // SAFETY: arguments match the kernel.
    unsafe {
        a.launch_builder(&k).arg(&mut x).launch(grid(1, 1)).unwrap();
        b.launch_builder(&k).arg(&mut y).launch(grid(1, 1)).unwrap();
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            a.synchronize().unwrap();
            done.store(true, Ordering::SeqCst);
        });
        assert_eq!(b.clone_dtoh(&y).unwrap(), [1], "the other stream moves");
        std::thread::sleep(Duration::from_millis(5));
        assert!(!done.load(Ordering::SeqCst));
        simulator.release_hangs();
    });
    assert_eq!(a.clone_dtoh(&x).unwrap(), [1]);
}

fn stall(simulator: &Simulator) {
    let context = context(0);
    let (a, b) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    simulator.stall_stream(a.cu_stream() as usize, true);
    let x = a.alloc_zeros::<i32>(1).unwrap();
    let y = b.alloc_zeros::<i32>(1).unwrap();
    assert_eq!(b.clone_dtoh(&y).unwrap(), [0]);
    assert_eq!(simulator.pending(), 2);
    simulator.stall_stream(a.cu_stream() as usize, false);
    assert_eq!(a.clone_dtoh(&x).unwrap(), [0]);
}

fn none(simulator: &Simulator) {
    simulator.reset(1, 0);
    assert_eq!(code(CudaContext::new(0).map(drop)), 100);
    // SAFETY: a plain query.
    assert_eq!(unsafe { sys::cuCtxSynchronize() } as u32, 3);
    simulator.reset(1, 1);
    assert_eq!(code(CudaContext::new(1).map(drop)), 101);
    assert_eq!(CudaContext::device_count().unwrap(), 1);
}
