//! The race check: says what nothing orders, whatever the result was, and is silent where something
//! does.

use crate::Test;
use crate::rig::{context, grid, kernel, pin, unpin};
use cudarc::driver::{
    CudaFunction, CudaSlice, CudaStream, DevicePtr, LaunchConfig, PushKernelArg, result, sys,
};
use futensor_simulated_driver::Simulator;
use std::sync::Arc;

pub const TESTS: &[(&str, Test)] = &[
    ("a_missing_wait_is_reported_under_200_seeds_though_the_result_is_right", missing_wait),
    ("with_the_wait_200_seeds_are_silent", with_wait),
    ("dropping_any_one_wait_of_a_pipeline_is_reported", any_one_wait),
    ("reads_do_not_race_with_reads", reads),
    ("a_write_after_an_unordered_read_is_reported", write_after_read),
    ("a_free_without_waiting_for_a_reader_is_reported", free_early),
    ("memory_used_by_another_stream_before_its_allocation_is_ordered_is_reported", alloc_late),
    ("the_host_orders_what_it_has_waited_for", host_orders),
    ("a_query_that_said_not_ready_orders_nothing", query_orders),
    ("host_threads_can_be_told_apart", threads_apart),
    ("copies_to_disjoint_parts_do_not_race", parts),
    ("two_streams_on_one_pinned_buffer_race", pinned),
    ("a_pinned_source_that_changes_before_its_copy_runs_is_reported", source_changes),
    ("a_pinned_target_holds_nothing_until_its_copy_has_run", target_early),
    ("order_through_a_third_stream_counts", transitive),
    ("cudarcs_own_event_tracking_is_silent", tracking),
    ("a_missing_barrier_in_shared_memory_is_reported_though_the_result_is_right", shared_missing),
    ("what_barriers_and_collectives_order_in_shared_memory_is_silent", shared_ordered),
];

/// `out = a + 1`, 64 elements.
const ADD: &str = r#"typedef const float* __restrict__ Input;
    extern "C" __global__ void k(float* out, Input a) { out[threadIdx.x] = a[threadIdx.x] + 1; }"#;

fn add(stream: &Arc<CudaStream>, k: &CudaFunction, out: &CudaSlice<f32>, a: &CudaSlice<f32>) {
    let (out, a) = (out.device_ptr(stream).0, a.device_ptr(stream).0);
    // SAFETY: arguments match the kernel; ordering is what the tests are about.
    unsafe { stream.launch_builder(k).arg(&out).arg(&a).launch(grid(1, 64)) }.unwrap();
}

fn zeros(stream: &Arc<CudaStream>) -> CudaSlice<f32> {
    let x = stream.alloc_zeros::<f32>(64).unwrap();
    stream.synchronize().unwrap();
    x
}

/// `b` reads on another stream what `a` wrote. The right order is forced by hand, so the result is
/// right with and without the wait.
fn producer_consumer(simulator: &Simulator, seed: u64, wait: bool) -> Vec<f32> {
    simulator.reset(seed, 1);
    let context = context(0);
    let (a, b) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let k = kernel(&context, ADD);
    let (x, y, z) = (zeros(&a), zeros(&a), zeros(&a));
    simulator.stall_stream(b.cu_stream() as usize, true);
    add(&a, &k, &y, &x);
    if wait {
        b.wait(&a.record_event(None).unwrap()).unwrap();
    }
    add(&b, &k, &z, &y);
    while simulator.pending() > if wait { 2 } else { 1 } {
        std::thread::yield_now();
    }
    simulator.stall_stream(b.cu_stream() as usize, false);
    b.clone_dtoh(&z).unwrap()
}

fn missing_wait(simulator: &Simulator) {
    for seed in 0..200 {
        let result = producer_consumer(simulator, seed, false);
        assert_eq!(result, [2.0; 64], "seed {seed}");
        let report = simulator.report();
        assert!(
            report.starts_with("race: ") && report.contains("kernel k"),
            "seed {seed}: {report:?}"
        );
        simulator.clear_report();
    }
}

fn with_wait(simulator: &Simulator) {
    for seed in 0..200 {
        let result = producer_consumer(simulator, seed, true);
        assert_eq!(result, [2.0; 64], "seed {seed}");
        assert_eq!(simulator.report(), "", "seed {seed}");
    }
}

/// Three streams pass a value around, each step behind a wait, and one reads at the end. Returns
/// the waits made.
fn pipeline(simulator: &Simulator, drop: u64) -> u64 {
    simulator.reset(7, 1);
    let context = context(0);
    let streams = [(); 3].map(|()| context.new_stream().unwrap());
    let k = kernel(&context, ADD);
    let values = [(); 4].map(|()| zeros(&streams[0]));
    simulator.drop_wait(drop);
    for i in 0..9 {
        let (from, to) = (&streams[i % 3], &streams[(i + 1) % 3]);
        add(from, &k, &values[(i + 1) % 4], &values[i % 4]);
        to.wait(&from.record_event(None).unwrap()).unwrap();
    }
    let _ = streams[0].clone_dtoh(&values[1]).unwrap();
    context.synchronize().unwrap();
    let waits = simulator.stats().waits;
    std::mem::drop(values);
    waits
}

fn any_one_wait(simulator: &Simulator) {
    let waits = pipeline(simulator, 0);
    assert_eq!((waits, simulator.report()), (9, String::new()));
    for n in 1..=waits {
        assert_eq!(pipeline(simulator, n), waits);
        assert!(simulator.count("race") > 0, "without wait {n}");
        simulator.clear_report();
    }
}

fn reads(_: &Simulator) {
    let context = context(0);
    let (a, b) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let k = kernel(&context, ADD);
    let (x, y, z) = (zeros(&a), zeros(&a), zeros(&a));
    for _ in 0..100 {
        add(&a, &k, &y, &x);
        add(&b, &k, &z, &x);
    }
    context.synchronize().unwrap();
}

fn write_after_read(simulator: &Simulator) {
    let context = context(0);
    let (a, b) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let k = kernel(&context, ADD);
    let (x, y, z) = (zeros(&a), zeros(&a), zeros(&a));
    add(&a, &k, &y, &x);
    add(&b, &k, &x, &z);
    assert_eq!(simulator.count("race"), 1, "{}", simulator.report());
    simulator.clear_report();
    // After the report the later access stands; ordered work after it is silent.
    a.wait(&b.record_event(None).unwrap()).unwrap();
    add(&a, &k, &x, &z);
    context.synchronize().unwrap();
}

fn free_early(simulator: &Simulator) {
    let context = context(0);
    let (a, b) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let k = kernel(&context, ADD);
    let (x, y) = (zeros(&a), zeros(&a));
    add(&b, &k, &y, &x);
    drop(x); // freed on a, read on b
    assert_eq!(simulator.count("race"), 1, "{}", simulator.report());
    assert!(simulator.report().contains("free"), "{}", simulator.report());
    let _ = context.synchronize(); // b's kernel may find its memory gone
    simulator.clear_report();
}

fn alloc_late(simulator: &Simulator) {
    let context = context(0);
    let (a, b) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    // SAFETY: the fill is what initialises it.
    let x = unsafe { a.alloc::<f32>(64) }.unwrap();
    // SAFETY: the range is the allocation's.
    unsafe { result::memset_d8_async(x.device_ptr(&b).0, 0, 256, b.cu_stream()) }.unwrap();
    assert_eq!(simulator.count("race"), 1, "{}", simulator.report());
    simulator.clear_report();
    let _ = context.synchronize();
    simulator.clear_report();
}

fn host_orders(_: &Simulator) {
    let context = context(0);
    let (a, b) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let k = kernel(&context, ADD);
    let (x, y, z) = (zeros(&a), zeros(&a), zeros(&a));
    // By a synchronisation, an event, a query that says yes, and a blocking copy.
    add(&a, &k, &y, &x);
    a.synchronize().unwrap();
    add(&b, &k, &z, &y);
    b.record_event(None).unwrap().synchronize().unwrap();
    add(&a, &k, &y, &z);
    let event = a.record_event(None).unwrap();
    while event.try_is_complete() == Ok(false) {}
    add(&b, &k, &x, &y);
    let _ = b.clone_dtoh(&x).unwrap();
    add(&a, &k, &x, &y);
    context.synchronize().unwrap();
}

fn query_orders(simulator: &Simulator) {
    let context = context(0);
    let (a, b) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let k = kernel(&context, ADD);
    let (x, y, z) = (zeros(&a), zeros(&a), zeros(&a));
    simulator.pause();
    add(&a, &k, &y, &x);
    let event = a.record_event(None).unwrap();
    assert_eq!(event.try_is_complete(), Ok(false));
    simulator.step(2); // It has run, but the host does not know.
    add(&b, &k, &z, &y);
    assert_eq!(simulator.count("race"), 1);
    simulator.clear_report();
    simulator.resume();
    context.synchronize().unwrap();
}

fn threads_apart(simulator: &Simulator) {
    for apart in [false, true] {
        simulator.reset(1, 1);
        simulator.threads_apart(apart);
        let context = context(0);
        let (a, b) = (context.new_stream().unwrap(), context.new_stream().unwrap());
        let k = kernel(&context, ADD);
        let (x, y, z) = (zeros(&a), zeros(&a), zeros(&a));
        add(&a, &k, &y, &x);
        std::thread::scope(|scope| scope.spawn(|| a.synchronize().unwrap()).join().unwrap());
        add(&b, &k, &z, &y);
        assert_eq!(simulator.count("race"), u64::from(apart), "{}", simulator.report());
        simulator.clear_report();
        context.synchronize().unwrap();
    }
}

fn parts(simulator: &Simulator) {
    let context = context(0);
    let (a, b) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let x = zeros(&a);
    let at = x.device_ptr(&a).0;
    // SAFETY: all ranges are inside the allocation.
    unsafe {
        result::memset_d8_async(at, 1, 128, a.cu_stream()).unwrap();
        result::memset_d8_async(at + 128, 2, 128, b.cu_stream()).unwrap();
        assert_eq!(simulator.report(), "");
        result::memset_d8_async(at + 127, 3, 1, b.cu_stream()).unwrap();
    }
    assert_eq!(simulator.count("race"), 1);
    simulator.clear_report();
    context.synchronize().unwrap();
}

fn pinned(simulator: &Simulator) {
    let context = context(0);
    let (a, b) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let (x, y) = (zeros(&a), zeros(&a));
    let buffer = pin(256);
    // SAFETY: pinned memory of 256 bytes.
    let host = unsafe { std::slice::from_raw_parts_mut(buffer as *mut f32, 64) };
    // SAFETY: ranges are inside their allocations; the missing order is what is tested.
    unsafe {
        result::memcpy_dtoh_async(host, x.device_ptr(&a).0, a.cu_stream()).unwrap();
        result::memcpy_htod_async(y.device_ptr(&b).0, host, b.cu_stream()).unwrap();
    }
    assert_eq!(simulator.count("race"), 1, "{}", simulator.report());
    simulator.clear_report();
    context.synchronize().unwrap();
    unpin(buffer);
}

fn source_changes(simulator: &Simulator) {
    let context = context(0);
    let a = context.new_stream().unwrap();
    let x = zeros(&a);
    let buffer = pin(256);
    // SAFETY: pinned memory of 256 bytes.
    let host = unsafe { std::slice::from_raw_parts_mut(buffer as *mut f32, 64) };
    for early in [false, true] {
        host.fill(1.0);
        simulator.pause();
        // SAFETY: both ranges have 256 bytes.
        unsafe { result::memcpy_htod_async(x.device_ptr(&a).0, host, a.cu_stream()) }.unwrap();
        if early {
            host[63] = 2.0;
        }
        simulator.resume();
        a.synchronize().unwrap();
        host[0] = 3.0;
        assert_eq!(simulator.count("race"), u64::from(early));
    }
    simulator.clear_report();
    unpin(buffer);
}

fn target_early(simulator: &Simulator) {
    let context = context(0);
    let a = context.new_stream().unwrap();
    let x = zeros(&a);
    let buffer = pin(256);
    // SAFETY: pinned memory of 256 bytes.
    let host = unsafe { std::slice::from_raw_parts_mut(buffer as *mut f32, 64) };
    host.fill(0.0);
    simulator.pause();
    // SAFETY: both ranges have 256 bytes.
    unsafe { result::memcpy_dtoh_async(host, x.device_ptr(&a).0, a.cu_stream()) }.unwrap();
    assert!(host[5].is_nan(), "the right value was there by accident");
    simulator.resume();
    a.synchronize().unwrap();
    assert_eq!(host, [0.0; 64]);
    unpin(buffer);
}

fn transitive(_: &Simulator) {
    let context = context(0);
    let [a, b, c] = [(); 3].map(|()| context.new_stream().unwrap());
    let k = kernel(&context, ADD);
    let (x, y, z) = (zeros(&a), zeros(&a), zeros(&a));
    add(&a, &k, &y, &x);
    b.wait(&a.record_event(None).unwrap()).unwrap();
    c.wait(&b.record_event(None).unwrap()).unwrap();
    add(&c, &k, &z, &y);
    context.synchronize().unwrap();
    // A default stream orders blocking streams without any event.
    let blocking = result::stream::create(result::stream::StreamKind::Default).unwrap();
    // SAFETY: the stream lives to the end of the test.
    let blocking = unsafe { context.wrap_borrowed_stream(blocking) };
    add(&blocking, &k, &y, &x);
    add(&context.default_stream(), &k, &z, &y);
    add(&blocking, &k, &y, &z);
    context.synchronize().unwrap();
    // SAFETY: the stream is not used any more.
    unsafe { sys::cuStreamDestroy_v2(blocking.cu_stream()).result() }.unwrap();
}

fn tracking(simulator: &Simulator) {
    for seed in 0..20 {
        simulator.reset(seed, 1);
        let context = cudarc::driver::CudaContext::new(0).unwrap();
        let (a, b) = (context.new_stream().unwrap(), context.new_stream().unwrap());
        let k = kernel(&context, ADD);
        let mut x = a.alloc_zeros::<f32>(64).unwrap();
        let mut y = b.alloc_zeros::<f32>(64).unwrap();
        for _ in 0..5 {
            // SAFETY: arguments match the kernel; cudarc orders them by its events.
            unsafe {
                a.launch_builder(&k).arg(&mut y).arg(&x).launch(grid(1, 64)).unwrap();
                b.launch_builder(&k).arg(&mut x).arg(&y).launch(grid(1, 64)).unwrap();
            }
        }
        assert_eq!(a.clone_dtoh(&x).unwrap(), [10.0; 64]);
        drop((x, y));
        context.synchronize().unwrap();
        assert_eq!(simulator.report(), "", "seed {seed}");
    }
}

/// Runs a kernel `k(float* out)` of one block of 64 threads, watched, and says what was reported.
fn watched(simulator: &Simulator, body: &str) -> String {
    simulator.watch_shared(true);
    let context = context(0);
    let stream = context.new_stream().unwrap();
    let text = format!(
        "extern \"C\" __global__ void k(float* out) {{ unsigned t = threadIdx.x; {body} }}"
    );
    let (k, out) = (kernel(&context, &text), zeros(&stream));
    simulator.watch_shared(false);
    let to = out.device_ptr(&stream).0;
    let shape = LaunchConfig { shared_mem_bytes: 1024, ..grid(2, 64) };
    // SAFETY: the argument matches the kernel.
    unsafe { stream.launch_builder(&k).arg(&to).launch(shape) }.unwrap();
    stream.synchronize().unwrap();
    // The next one loads its kernel while nothing is under way.
    drop(out);
    stream.synchronize().unwrap();
    let report = simulator.report();
    simulator.clear_report();
    report
}

fn shared_missing(simulator: &Simulator) {
    for body in [
        // Another thread's element.
        "__shared__ float a[64]; a[t] = t; out[t] = a[63 - t];",
        "extern __shared__ float a[]; a[t] = t; out[t] = a[63 - t];",
        // The next round writes what the one before may still read.
        "__shared__ float a[64]; for (int i = 0; i < 2; i++) { a[t] = i; __syncthreads(); out[t] = \
            a[63 - t]; }",
        // All write the same number.
        "__shared__ int n; n = 7; __syncthreads(); out[t] = n;",
        // A warp's collective orders no other warp.
        "__shared__ float a[64]; a[t] = t; __syncwarp(); out[t] = a[(t + 32) % 64];",
        // Nor lanes that take no part.
        "__shared__ float a[64]; a[t] = t; if (t % 32 < 16) __syncwarp(0xffff); else \
            __syncwarp(0xffff0000);
         out[t] = a[t ^ 16];",
        // A plain write beside other threads' reads, of halves of a word.
        "__shared__ unsigned a[64]; a[t] = t; __syncthreads();
         if (t == 3) ((unsigned short*)a)[9] = 1; out[t] = a[4];",
    ] {
        let report = watched(simulator, body);
        assert!(
            report.starts_with("race: kernel k: thread ") && report.contains("shared memory"),
            "{body}: {report}"
        );
    }
}

fn shared_ordered(simulator: &Simulator) {
    for body in [
        "__shared__ float a[64]; a[t] = t; __syncthreads(); out[t] = a[63 - t];",
        "extern __shared__ float a[]; a[t] = t; __syncthreads(); out[t] = a[63 - t];",
        "__shared__ float a[64]; for (int i = 0; i < 2; i++) {
             a[t] = i; __syncthreads(); out[t] = a[63 - t]; __syncthreads(); }",
        "__shared__ float a[64]; a[t] = t; __syncwarp(); out[t] = a[t ^ 16];",
        "__shared__ float a[64]; a[t] = t; float x = __shfl_xor_sync(0xffffffff, 1.0f, 1); out[t] \
            = x + a[t ^ 1];",
        "__shared__ int n; if (t == 0) n = 0; __syncthreads(); atomicAdd(&n, 1); __syncthreads(); \
            out[t] = n;",
        // Neighbours in one word.
        "__shared__ unsigned char a[64]; a[t] = t; out[t] = a[t];",
    ] {
        assert_eq!(watched(simulator, body), "", "{body}");
    }
}
