//! The host beside the device: queries, blocking calls, host functions, copies, and a second
//! device.

use crate::Test;
use crate::order::{STEP, one, step};
use crate::rig::{code, context, grid, kernel, pin, unpin};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, PushKernelArg, result, sys};
use futensor_simulated_driver::Simulator;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

pub const TESTS: &[(&str, Test)] = &[
    ("event_query_is_not_ready_until_the_work_has_run", query),
    ("a_blocking_call_blocks_until_the_work_has_run", blocking),
    ("host_functions_run_in_order_and_may_not_call_the_driver", host_function),
    ("pageable_copies_to_the_host_block_and_pinned_ones_do_not", pageable),
    ("written_values_arrive_in_order_and_can_be_waited_for", values),
    ("elapsed_time_is_simulated_and_replays", elapsed),
    ("two_devices_exchange_data", two_devices),
    ("two_devices_without_peer_access_fault_in_kernels_and_not_in_copies", peers),
    ("blocking_on_a_forbidden_thread_is_reported", forbidden),
];

fn query(simulator: &Simulator) {
    let context = context(0);
    let a = context.new_stream().unwrap();
    let k = kernel(&context, STEP);
    let x = one(&a);
    simulator.pause();
    step(&a, &k, &x, 1);
    let event = a.record_event(None).unwrap();
    assert_eq!(event.try_is_complete(), Ok(false));
    // SAFETY: the stream is alive.
    assert_eq!(unsafe { sys::cuStreamQuery(a.cu_stream()) } as u32, 600);
    assert_eq!(simulator.step(1), 1);
    assert_eq!(event.try_is_complete(), Ok(false));
    assert_eq!(simulator.step(1), 1);
    assert_eq!(event.try_is_complete(), Ok(true));
    // SAFETY: as above.
    assert_eq!(unsafe { sys::cuStreamQuery(a.cu_stream()) } as u32, 0);
    simulator.resume();
}

fn blocking(simulator: &Simulator) {
    let context = context(0);
    let a = context.new_stream().unwrap();
    let k = kernel(&context, STEP);
    let x = one(&a);
    type Call = fn(&Arc<CudaContext>, &Arc<CudaStream>, &CudaSlice<i32>);
    let calls: [Call; 4] = [
        |_, stream, _| stream.synchronize().unwrap(),
        |context, _, _| context.synchronize().unwrap(),
        |_, stream, _| stream.record_event(None).unwrap().synchronize().unwrap(),
        |_, stream, x| drop(stream.clone_dtoh(x).unwrap()),
    ];
    for call in calls {
        simulator.pause();
        step(&a, &k, &x, 1);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                call(&context, &a, &x);
                done.store(true, Ordering::SeqCst);
            });
            std::thread::sleep(Duration::from_millis(10));
            assert!(!done.load(Ordering::SeqCst), "the call returned before the work ran");
            simulator.resume();
        });
        assert!(done.load(Ordering::SeqCst));
    }
}

static CALLS: AtomicU32 = AtomicU32::new(0);
static ANSWER: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" fn note(data: *mut std::ffi::c_void) {
    CALLS.store(CALLS.load(Ordering::SeqCst) * 10 + data as u32, Ordering::SeqCst);
    // SAFETY: a call of the driver, which is what is tested.
    ANSWER.store(unsafe { sys::cuCtxSynchronize() } as u32, Ordering::SeqCst);
}

fn host_function(simulator: &Simulator) {
    let context = context(0);
    let a = context.new_stream().unwrap();
    CALLS.store(0, Ordering::SeqCst);
    for i in [1usize, 2, 3] {
        // SAFETY: `note` takes any argument.
        unsafe { result::stream::launch_host_function(a.cu_stream(), note, i as *mut _) }.unwrap();
    }
    a.synchronize().unwrap();
    assert_eq!(CALLS.load(Ordering::SeqCst), 123);
    assert_eq!(ANSWER.load(Ordering::SeqCst), 800);
    assert_eq!(simulator.count("misuse"), 1);
    simulator.clear_report();
}

fn pageable(simulator: &Simulator) {
    let context = context(0);
    let a = context.new_stream().unwrap();
    let x = one(&a);
    let before = simulator.stats().blocking_calls;
    // Host to device, pageable: taken at the call.
    simulator.pause();
    let mut source = vec![7i32];
    let y = a.clone_htod(&source).unwrap();
    source[0] = 8;
    simulator.resume();
    assert_eq!(simulator.stats().blocking_calls, before);
    assert_eq!(a.clone_dtoh(&y).unwrap(), [7]);
    assert_eq!(simulator.stats().blocking_calls, before + 1);
    // Device to pinned: arrives when the copy runs.
    let pinned = pin(4);
    // SAFETY: pinned memory of four bytes, to be written by the copy alone.
    let target = unsafe { std::slice::from_raw_parts_mut(pinned as *mut i32, 1) };
    target[0] = 0;
    simulator.pause();
    // SAFETY: as above; the stream is waited for before the memory is read.
    unsafe { result::memcpy_dtoh_async(target, x.device_ptr(&a).0, a.cu_stream()) }.unwrap();
    assert_ne!(target[0], 1, "the copy has not run");
    simulator.resume();
    a.synchronize().unwrap();
    assert_eq!(target[0], 1);
    unpin(pinned);
}

fn values(simulator: &Simulator) {
    let context = context(0);
    let (a, b) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let flag = pin(8);
    // SAFETY: pinned memory of eight bytes, accessed atomically by both sides.
    let seen = unsafe { AtomicU32::from_ptr(flag as *mut u32) };
    seen.store(0, Ordering::SeqCst);
    simulator.pause();
    // SAFETY: streams and memory are alive.
    unsafe {
        sys::cuStreamWaitValue32_v2(b.cu_stream(), flag as u64, 5, 0).result().unwrap();
        sys::cuStreamWriteValue32_v2(a.cu_stream(), flag as u64, 4, 0).result().unwrap();
        sys::cuStreamWriteValue32_v2(a.cu_stream(), flag as u64, 5, 0).result().unwrap();
    }
    assert_eq!(simulator.runnable(), 1);
    assert_eq!((simulator.step(1), seen.load(Ordering::SeqCst)), (1, 4));
    assert_eq!(simulator.runnable(), 1, "the value is not there yet");
    assert_eq!((simulator.step(1), seen.load(Ordering::SeqCst)), (1, 5));
    simulator.resume();
    b.synchronize().unwrap();
    // The host may be who writes it.
    // SAFETY: as above.
    unsafe { sys::cuStreamWaitValue32_v2(b.cu_stream(), flag as u64, 9, 1).result().unwrap() };
    std::thread::sleep(Duration::from_millis(2));
    assert_eq!(simulator.pending(), 1);
    seen.store(9, Ordering::SeqCst);
    b.synchronize().unwrap();
    a.synchronize().unwrap();
    unpin(flag);
}

fn elapsed(simulator: &Simulator) {
    let measure = || {
        simulator.reset(3, 1);
        simulator.lazy(true);
        let context = context(0);
        let a = context.new_stream().unwrap();
        let k = kernel(&context, STEP);
        let x = one(&a);
        let flags = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
        let start = a.record_event(flags).unwrap();
        (0..10).for_each(|_| step(&a, &k, &x, 1));
        start.elapsed_ms(&a.record_event(flags).unwrap()).unwrap()
    };
    let first = measure();
    assert!(first > 0.0);
    assert_eq!(first, measure());
}

fn two_devices(_: &Simulator) {
    let (zero, one) = (context(0), context(1));
    let (a, b) = (zero.new_stream().unwrap(), one.new_stream().unwrap());
    let x = a.clone_htod(&[1.5f32, 2.5, 3.5]).unwrap();
    let y = b.clone_dtod(&x).unwrap();
    assert_eq!((y.ordinal(), b.clone_dtoh(&y).unwrap()), (1, vec![1.5, 2.5, 3.5]));
    assert_ne!(zero.uuid().unwrap().bytes, one.uuid().unwrap().bytes);
    assert_eq!(zero.compute_capability().unwrap(), (9, 0));
}

fn peers(simulator: &Simulator) {
    let (zero, one) = (context(0), context(1));
    zero.bind_to_thread().unwrap();
    // Plain memory: open to a peer that asks for it.
    // SAFETY: the memory is freed at the end.
    let plain = unsafe { result::malloc_sync(4) }.unwrap();
    one.bind_to_thread().unwrap();
    let b = one.new_stream().unwrap();
    let k = kernel(&one, STEP);
    let launch = || {
        // SAFETY: arguments match the kernel.
        unsafe { b.launch_builder(&k).arg(&plain).arg(&1i32).launch(grid(1, 1)) }.unwrap();
        b.synchronize()
    };
    let mut can = 0;
    // SAFETY: plain queries and switches of live contexts.
    unsafe {
        sys::cuDeviceCanAccessPeer(&mut can, 1, 0).result().unwrap();
        sys::cuCtxEnablePeerAccess(zero.cu_ctx(), 0).result().unwrap();
        assert_eq!(sys::cuCtxEnablePeerAccess(zero.cu_ctx(), 0) as u32, 704);
    }
    assert_eq!(can, 1);
    launch().unwrap();
    simulator.deny_peers(true);
    // SAFETY: as above.
    unsafe {
        sys::cuDeviceCanAccessPeer(&mut can, 1, 0).result().unwrap();
        sys::cuCtxDisablePeerAccess(zero.cu_ctx()).result().unwrap();
        assert_eq!(sys::cuCtxEnablePeerAccess(zero.cu_ctx(), 0) as u32, 217);
    }
    assert_eq!(can, 0);
    // Copies need no peer access.
    let y = b.alloc_zeros::<i32>(1).unwrap();
    // SAFETY: both ranges are allocations of four bytes.
    unsafe {
        result::memcpy_peer_async(
            one.cu_ctx(),
            y.device_ptr(&b).0,
            zero.cu_ctx(),
            plain,
            4,
            b.cu_stream(),
        )
        .unwrap()
    };
    b.synchronize().unwrap();
    assert_eq!(code(launch()), 700);
    assert_eq!(simulator.count("kernel"), 1, "{}", simulator.report());
    simulator.clear_report();
    // The other device is not concerned.
    zero.bind_to_thread().unwrap();
    // SAFETY: the work on it is over.
    unsafe { result::free_sync(plain) }.unwrap();
}

fn forbidden(simulator: &Simulator) {
    let context = context(0);
    let a = context.new_stream().unwrap();
    let x = one(&a);
    simulator.forbid_blocking(true);
    let event = a.record_event(None).unwrap();
    let _ = event.try_is_complete();
    assert_eq!(simulator.count("blocking"), 0);
    let _ = a.clone_dtoh(&x).unwrap();
    simulator.forbid_blocking(false);
    assert_eq!(simulator.count("blocking"), 1);
    assert!(simulator.report().contains("pageable"));
    simulator.clear_report();
    a.synchronize().unwrap();
}
