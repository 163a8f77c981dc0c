//! Memory: contents, budgets, and the mistakes that are found.

use crate::Test;
use crate::rig::{code, context, grid, kernel, pin, unpin};
use cudarc::driver::{CudaStream, DevicePtr, PushKernelArg, result, sys};
use futensor_simulated_driver::Simulator;
use std::sync::Arc;

pub const TESTS: &[(&str, Test)] = &[
    ("new_memory_is_not_zero", poison),
    ("fills_set_what_they_are_told", fills),
    ("the_budget_counts_what_is_held_and_same_stream_frees_make_room", budget),
    ("an_overrun_into_the_guard_page_is_an_illegal_address", overrun_far),
    ("an_underrun_is_an_illegal_address", underrun),
    ("a_small_overrun_is_found_at_the_free", overrun_near),
    ("a_use_after_free_is_reported_at_the_call_and_faults", use_after_free),
    ("a_double_free_is_refused_and_reported", double_free),
    ("copies_beyond_an_allocation_are_refused", copy_too_far),
    ("leaks_are_named", leaks),
    ("freeing_pinned_memory_in_use_is_reported", pinned_in_use),
    ("a_thread_that_launches_is_not_to_make_what_may_wait", stalls),
    ("a_pool_of_ones_own_ends_when_its_memory_is_freed", pools),
    ("a_pool_gives_out_what_was_freed_by_its_rules", rules),
    ("a_pool_grows_where_it_has_too_little_and_shrinks_to_its_threshold", growth),
    ("whoever_uses_an_address_that_has_a_new_owner_is_reported", stale),
    ("a_silent_peer_brings_nothing_and_says_nothing", silent),
    ("two_thousand_updates_of_four_mebibytes_stay_within_three", updates),
];

fn poison(_: &Simulator) {
    let context = context(0);
    let stream = context.new_stream().unwrap();
    // SAFETY: read only to see what is there.
    let x = unsafe { stream.alloc::<f32>(1000) }.unwrap();
    assert!(stream.clone_dtoh(&x).unwrap().iter().all(|x| x.is_nan()));
}

fn fills(_: &Simulator) {
    let context = context(0);
    let stream = context.new_stream().unwrap();
    let x = stream.alloc_zeros::<u8>(16).unwrap();
    let at = x.device_ptr(&stream).0;
    // SAFETY: all ranges are inside the allocation.
    unsafe {
        sys::cuMemsetD8Async(at, 1, 3, stream.cu_stream()).result().unwrap();
        sys::cuMemsetD16Async(at + 4, 0x0302, 2, stream.cu_stream()).result().unwrap();
        sys::cuMemsetD32Async(at + 8, 0x07060504, 2, stream.cu_stream()).result().unwrap();
        assert_eq!(sys::cuMemsetD32Async(at + 2, 0, 1, stream.cu_stream()) as u32, 1);
    }
    let expected = [1, 1, 1, 0, 2, 3, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7];
    assert_eq!(stream.clone_dtoh(&x).unwrap(), expected);
}

fn budget(simulator: &Simulator) {
    simulator.set_memory(0, 1 << 20);
    let context = context(0);
    let (a, b) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let x = a.alloc_zeros::<u8>(700 << 10).unwrap();
    assert_eq!(code(a.alloc_zeros::<u8>(700 << 10).map(drop)), 2);
    assert_eq!(context.mem_get_info().unwrap(), (324 << 10, 1 << 20));
    simulator.pause();
    drop(x);
    // The free has not run: another stream cannot have the room, the same stream can.
    assert_eq!(code(b.alloc_zeros::<u8>(700 << 10).map(drop)), 2);
    let y = a.alloc_zeros::<u8>(700 << 10).unwrap();
    simulator.resume();
    a.synchronize().unwrap();
    assert_eq!(simulator.stats().live_bytes, 700 << 10);
    drop(y);
    a.synchronize().unwrap();
    assert_eq!(context.mem_get_info().unwrap(), (1 << 20, 1 << 20));
    let _z = b.alloc_zeros::<u8>(1 << 20).unwrap();
}

const WRITE: &str = r#"extern "C" __global__ void k(char* x, long long at) { x[at] = 1; }"#;

/// Writes one byte at an offset of an allocation of 1000 bytes; the outcome of the wait.
fn write_at(simulator: &Simulator, at: i64) -> u32 {
    let context = context(0);
    let stream = context.new_stream().unwrap();
    let k = kernel(&context, WRITE);
    let mut x = stream.alloc_zeros::<u8>(1000).unwrap();
    // SAFETY: the stray write is what is tested; it stays in guarded pages of the simulator.
    unsafe { stream.launch_builder(&k).arg(&mut x).arg(&at).launch(grid(1, 1)) }.unwrap();
    let status = stream.synchronize().err().map_or(0, |error| error.0 as u32);
    drop(x);
    let _ = stream.synchronize();
    let _ = simulator;
    status
}

fn overrun_far(simulator: &Simulator) {
    assert_eq!(write_at(simulator, 1024), 700);
    assert!(simulator.report().contains("illegal access"), "{}", simulator.report());
    simulator.clear_report();
}

fn underrun(simulator: &Simulator) {
    assert_eq!(write_at(simulator, -4096), 700);
    simulator.clear_report();
}

fn overrun_near(simulator: &Simulator) {
    for (at, text) in [(1000, "byte 1000"), (-1, "byte -1")] {
        assert_eq!(write_at(simulator, at), 0);
        assert_eq!(simulator.count("overrun"), 1);
        assert!(simulator.report().contains(text), "{}", simulator.report());
        simulator.clear_report();
    }
    assert_eq!(write_at(simulator, 999), 0);
    assert_eq!(simulator.report(), "");
}

fn use_after_free(simulator: &Simulator) {
    let context = context(0);
    let stream = context.new_stream().unwrap();
    let k = kernel(&context, WRITE);
    let x = stream.alloc_zeros::<u8>(1000).unwrap();
    let at = x.device_ptr(&stream).0;
    simulator.pause();
    drop(x);
    // SAFETY: the stray write is what is tested; it stays in closed pages of the simulator.
    unsafe { stream.launch_builder(&k).arg(&at).arg(&0i64).launch(grid(1, 1)) }.unwrap();
    assert_eq!(simulator.count("use after free"), 1, "reported before it runs");
    simulator.resume();
    assert_eq!(code(stream.synchronize()), 700);
    simulator.clear_report();
}

fn double_free(simulator: &Simulator) {
    let context = context(0);
    let stream = context.new_stream().unwrap();
    // SAFETY: the second free is what is tested.
    unsafe {
        let x = result::malloc_async(stream.cu_stream(), 8).unwrap();
        result::free_async(x, stream.cu_stream()).unwrap();
        assert_eq!(code(result::free_async(x, stream.cu_stream())), 1);
        assert_eq!(code(result::free_async(x + 4, stream.cu_stream())), 1);
    }
    assert_eq!(simulator.count("misuse"), 2, "{}", simulator.report());
    simulator.clear_report();
}

fn copy_too_far(simulator: &Simulator) {
    let context = context(0);
    let stream = context.new_stream().unwrap();
    let x = stream.alloc_zeros::<u8>(8).unwrap();
    // SAFETY: the call must refuse what does not fit.
    let refused = unsafe {
        result::memcpy_htod_async(x.device_ptr(&stream).0 + 4, &[0u8; 5], stream.cu_stream())
    };
    assert_eq!(code(refused), 1);
    assert_eq!(simulator.count("overrun"), 1);
    simulator.clear_report();
}

fn leaks(simulator: &Simulator) {
    let context = context(0);
    let stream = context.new_stream().unwrap();
    // SAFETY: freed below.
    let x = unsafe { result::malloc_async(stream.cu_stream(), 123) }.unwrap();
    stream.synchronize().unwrap();
    assert!(simulator.check() >= 2);
    let report = simulator.report();
    assert!(
        report.contains("of 123 bytes (Device(0))") && report.contains("1 streams"),
        "{report}"
    );
    simulator.clear_report();
    // SAFETY: the address is an allocation's.
    unsafe { result::free_async(x, stream.cu_stream()) }.unwrap();
    stream.synchronize().unwrap();
    drop(stream);
    assert_eq!(simulator.check(), 0, "{}", simulator.report());
}

fn pinned_in_use(simulator: &Simulator) {
    let context = context(0);
    let stream = context.new_stream().unwrap();
    let x = stream.alloc_zeros::<u8>(8).unwrap();
    stream.synchronize().unwrap();
    let copy = |to: usize| {
        // SAFETY: pinned memory of eight bytes.
        let to = unsafe { std::slice::from_raw_parts_mut(to as *mut u8, 8) };
        // SAFETY: both ranges are eight bytes; the wait is left out on purpose in one case.
        unsafe { result::memcpy_dtoh_async(to, x.device_ptr(&stream).0, stream.cu_stream()) }
            .unwrap();
    };
    let first = pin(8);
    copy(first);
    stream.record_event(None).unwrap().synchronize().unwrap();
    unpin(first);
    assert_eq!(simulator.report(), "");
    let second = pin(8);
    simulator.pause();
    copy(second);
    simulator.step(1);
    unpin(second); // The copy has run, but nothing told the host.
    assert_eq!(simulator.count("use after free"), 1);
    simulator.clear_report();
    simulator.resume();
    stream.synchronize().unwrap();
}

fn stalls(simulator: &Simulator) {
    let context = context(0);
    let stream = context.new_stream().unwrap();
    let k = kernel(&context, r#"extern "C" __global__ void k(int* x) { atomicAdd(x, 1); }"#);
    let mut x = stream.alloc_zeros::<i32>(1).unwrap();
    // Nothing is under way.
    stream.synchronize().unwrap();
    unpin(pin(100));
    simulator.pause();
    // SAFETY: arguments match the kernel.
    unsafe { stream.launch_builder(&k).arg(&mut x).launch(grid(1, 1)) }.unwrap();
    let other = context.clone();
    std::thread::spawn(move || {
        other.bind_to_thread().unwrap();
        unpin(pin(100));
    })
    .join()
    .unwrap();
    assert_eq!(simulator.report(), "");
    unpin(pin(100));
    let blas = cudarc::cublas::result::create_handle().unwrap();
    assert_eq!(simulator.count("stall"), 2, "{}", simulator.report());
    simulator.clear_report();
    simulator.resume();
    stream.synchronize().unwrap();
    // SAFETY: made above.
    unsafe { cudarc::cublas::result::destroy_handle(blas) }.unwrap();
}

fn pools(simulator: &Simulator) {
    let context = context(0);
    let stream = context.new_stream().unwrap();
    // SAFETY: zeros are properties of nothing special; all places can be written, and what is made
    // is given back once.
    unsafe {
        let mut properties: sys::CUmemPoolProps = std::mem::zeroed();
        let mut pool = std::ptr::null_mut();
        assert_ne!(sys::cuMemPoolCreate(&mut pool, &properties) as u32, 0, "of no place");
        properties.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        sys::cuMemPoolCreate(&mut pool, &properties).result().unwrap();
        let mut x = 0;
        sys::cuMemAllocFromPoolAsync(&mut x, 100, pool, stream.cu_stream()).result().unwrap();
        sys::cuMemFreeAsync(x, stream.cu_stream()).result().unwrap();
        sys::cuMemAllocFromPoolAsync(&mut x, 100, pool, stream.cu_stream()).result().unwrap();
        assert_eq!(simulator.stats().live_pools, 1);
        sys::cuMemPoolDestroy(pool).result().unwrap();
        assert_eq!(simulator.count("misuse"), 1, "{}", simulator.report());
        sys::cuMemFreeAsync(x, stream.cu_stream()).result().unwrap();
    }
    stream.synchronize().unwrap();
    simulator.clear_report();
}

/// A pool that keeps what is freed on it.
fn keeping() -> sys::CUmemoryPool {
    let mut pool = std::ptr::null_mut();
    let mut all = u64::MAX;
    let threshold = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: zeros are properties of nothing special; all places can be written.
    unsafe {
        let mut properties: sys::CUmemPoolProps = std::mem::zeroed();
        properties.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        sys::cuMemPoolCreate(&mut pool, &properties).result().unwrap();
        sys::cuMemPoolSetAttribute(pool, threshold, (&raw mut all).cast()).result().unwrap();
    }
    pool
}

fn from(pool: sys::CUmemoryPool, stream: &CudaStream) -> u64 {
    let mut x = 0;
    // SAFETY: the pool and the stream are alive, and the place can be written.
    unsafe { sys::cuMemAllocFromPoolAsync(&mut x, 1000, pool, stream.cu_stream()) }
        .result()
        .unwrap();
    x
}

fn free(x: u64, stream: &CudaStream) {
    // SAFETY: allocated by `from`; who uses it afterwards is what the tests are about.
    unsafe { sys::cuMemFreeAsync(x, stream.cu_stream()) }.result().unwrap();
}

fn growth(simulator: &Simulator) {
    let context = context(0);
    let [a, b] = [0; 2].map(|_| context.new_stream().unwrap());
    let pool = keeping();
    let grown = |body: &dyn Fn()| {
        let before = simulator.stats().growths;
        body();
        simulator.stats().growths - before
    };
    let round = || {
        let x = from(pool, &a);
        free(x, &a);
        a.synchronize().unwrap();
    };
    assert_eq!([grown(&round), grown(&round), grown(&round)], [1, 0, 0]);
    // A little more fits what was reserved.
    let two = || {
        let both = [&a, &b].map(|stream| (from(pool, stream), stream));
        for (x, stream) in both {
            free(x, stream);
            stream.synchronize().unwrap();
        }
    };
    assert_eq!(grown(&two), 0);
    // SAFETY: the pool is alive.
    unsafe { sys::cuMemPoolTrimTo(pool, 0) }.result().unwrap();
    assert_eq!([grown(&round), grown(&round)], [1, 0]);
    let threshold = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    let mut none = 0u64;
    // SAFETY: the pool is alive, and a threshold is a u64.
    unsafe { sys::cuMemPoolSetAttribute(pool, threshold, (&raw mut none).cast()) }
        .result()
        .unwrap();
    // Each wait gives all back.
    assert_eq!([grown(&round), grown(&round), grown(&round)], [0, 1, 1]);
    // SAFETY: nothing of it is held.
    unsafe { sys::cuMemPoolDestroy(pool) }.result().unwrap();
}

fn rules(simulator: &Simulator) {
    simulator.reuse(true);
    let context = context(0);
    let [a, b] = [0; 2].map(|_| context.new_stream().unwrap());
    let pool = keeping();
    let chances = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC;
    // What is freed on one stream, and asked for on another.
    let both = |waits: bool, chance: i32| {
        let mut chance = chance;
        // SAFETY: the pool is alive, and a switch is an int.
        unsafe { sys::cuMemPoolSetAttribute(pool, chances, (&raw mut chance).cast()) }
            .result()
            .unwrap();
        let x = from(pool, &a);
        free(x, &a);
        let event = a.record_event(None).unwrap();
        if waits {
            b.wait(&event).unwrap();
        }
        until_freed(simulator);
        let y = from(pool, &b);
        free(y, &b);
        until_freed(simulator);
        x == y
    };
    // The host waits for nothing: a stream knows what it has been told to wait for, or takes its
    // chance.
    assert!(!both(false, 0) && both(true, 0) && both(false, 1));
    // Of several the last one freed. On one stream there is nothing to wait for; what was trimmed
    // or is longer comes from elsewhere.
    let x = from(pool, &a);
    free(x, &a);
    until_freed(simulator);
    let y = from(pool, &a);
    free(y, &a);
    until_freed(simulator);
    // SAFETY: the pool is alive.
    unsafe { sys::cuMemPoolTrimTo(pool, 0) }.result().unwrap();
    let z = from(pool, &a);
    assert!(x == y && y != z);
    assert_eq!(simulator.stats().reused, 6);
    free(z, &a);
    a.synchronize().unwrap();
    // SAFETY: nothing of it is held.
    unsafe { sys::cuMemPoolDestroy(pool) }.result().unwrap();
}

/// Until all that was freed is, of which the host is not told.
fn until_freed(simulator: &Simulator) {
    while simulator.stats().live_bytes > 0 {
        std::thread::yield_now();
    }
}

fn stale(simulator: &Simulator) {
    simulator.reuse(true);
    let context = context(0);
    let k = kernel(&context, "extern \"C\" __global__ void k(float* x) { x[threadIdx.x] = 1; }");
    let [a, b] = [0; 2].map(|_| context.new_stream().unwrap());
    let write = |stream: &Arc<CudaStream>, x: &u64| {
        // SAFETY: the address has room for so many floats, whosever it is.
        unsafe { stream.launch_builder(&k).arg(x).launch(grid(1, 32)) }.unwrap();
    };
    let pool = keeping();
    let x = from(pool, &a);
    a.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
    write(&a, &x);
    let graph = a.end_capture(sys::CUgraphInstantiate_flags(0)).unwrap().unwrap();
    graph.launch().unwrap();
    free(x, &a);
    until_freed(simulator);
    let y = from(pool, &b);
    assert_eq!((x, simulator.report()), (y, String::new()));
    write(&b, &y);
    assert_eq!(simulator.report(), "");
    // Orders that are wrong: this address is another's now, and nothing puts one after the other.
    write(&a, &x);
    assert_eq!(simulator.count("race"), 1, "{}", simulator.report());
    simulator.clear_report();
    [&a, &b].into_iter().for_each(|stream| stream.synchronize().unwrap());
    write(&b, &y);
    graph.launch().unwrap();
    assert_eq!(simulator.count("race"), 1, "{}", simulator.report());
    simulator.clear_report();
    // An order that is right: a graph has addresses, whosever they are.
    [&a, &b].into_iter().for_each(|stream| stream.synchronize().unwrap());
    graph.launch().unwrap();
    a.synchronize().unwrap();
    free(y, &b);
    b.synchronize().unwrap();
    // SAFETY: nothing of it is held.
    unsafe { sys::cuMemPoolDestroy(pool) }.result().unwrap();
}

fn silent(simulator: &Simulator) {
    simulator.reset(1, 2);
    let contexts = [context(0), context(1)];
    let streams = [0, 1].map(|k| {
        contexts[k].bind_to_thread().unwrap();
        contexts[k].new_stream().unwrap()
    });
    let from = streams[0].clone_htod(&[7u8; 8]).unwrap();
    streams[0].synchronize().unwrap();
    let to = streams[1].alloc_zeros::<u8>(8).unwrap();
    for (on, want) in [(true, 0u8), (false, 7)] {
        simulator.silence_peers(on);
        // SAFETY: both have eight bytes.
        unsafe {
            sys::cuMemcpyPeerAsync(
                to.device_ptr(&streams[1]).0,
                contexts[1].cu_ctx(),
                from.device_ptr(&streams[0]).0,
                contexts[0].cu_ctx(),
                8,
                streams[1].cu_stream(),
            )
        }
        .result()
        .unwrap();
        assert_eq!(streams[1].clone_dtoh(&to).unwrap(), [want; 8]);
    }
}

fn updates(simulator: &Simulator) {
    let context = context(0);
    let stream = context.new_stream().unwrap();
    let mut x = stream.alloc_zeros::<u8>(4 << 20).unwrap();
    simulator.set_memory(0, 12 << 20);
    for _ in 0..2000 {
        // SAFETY: filled by nobody, read by nobody.
        x = unsafe { stream.alloc::<u8>(4 << 20) }.unwrap();
        if simulator.stats().live_bytes > 8 << 20 {
            stream.synchronize().unwrap();
        }
    }
    drop(x);
    stream.synchronize().unwrap();
    assert!(simulator.stats().peak_bytes <= 12 << 20, "{:?}", simulator.stats());
    assert_eq!(simulator.stats().live_bytes, 0);
}
