//! Graphs: captured once, launched often.

use crate::Test;
use crate::rig::{code, context, grid, kernel, module};
use cudarc::driver::{CudaFunction, CudaSlice, CudaStream, DevicePtr, PushKernelArg, sys};
use futensor_simulated_driver::Simulator;
use std::ffi::c_void;
use std::sync::Arc;

pub const TESTS: &[(&str, Test)] = &[
    ("a_graph_replays_what_was_captured_and_nothing_runs_during_capture", replay),
    ("a_graph_joins_two_streams_and_its_branches_run_in_any_order", branches),
    ("branches_that_conflict_are_reported_once", conflict),
    ("a_capture_that_is_not_joined_is_an_error", unjoined),
    ("waiting_in_a_capture_for_uncaptured_work_is_an_error", isolation),
    ("synchronising_asking_and_allocating_in_a_capture_break_it", refused),
    ("calls_that_may_wait_break_captures_as_their_modes_say", unsafe_calls),
    ("the_legacy_stream_and_other_threads_leave_captures_alone_or_break_them", legacy_and_threads),
    ("kernel_nodes_take_new_parameters", parameters),
    ("a_graph_launch_is_ordered_and_checked_as_one_item", one_item),
    ("an_executable_graph_outlives_its_graph_and_queued_launches_outlive_it", lifetime),
];

const MODE: sys::CUstreamCaptureMode =
    sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
const PLAIN: sys::CUgraphInstantiate_flags = sys::CUgraphInstantiate_flags(0);
const STEP: &str = r#"extern "C" __global__ void k(int* x, int add) { *x = *x * 3 + add; }"#;

fn step(stream: &Arc<CudaStream>, k: &CudaFunction, x: &CudaSlice<i32>, add: i32) {
    let address = x.device_ptr(stream).0;
    // SAFETY: arguments match the kernel.
    unsafe { stream.launch_builder(k).arg(&address).arg(&add).launch(grid(1, 1)) }.unwrap();
}

fn value(stream: &Arc<CudaStream>, x: i32) -> CudaSlice<i32> {
    let x = stream.clone_htod(&[x]).unwrap();
    stream.synchronize().unwrap();
    x
}

fn replay(simulator: &Simulator) {
    let context = context(0);
    let stream = context.new_stream().unwrap();
    let k = kernel(&context, STEP);
    let x = value(&stream, 1);
    let launches = simulator.stats().launches;
    stream.begin_capture(MODE).unwrap();
    assert_eq!(stream.capture_status().unwrap() as u32, 1);
    step(&stream, &k, &x, 1);
    step(&stream, &k, &x, 2);
    let graph = stream.end_capture(PLAIN).unwrap().unwrap();
    stream.synchronize().unwrap();
    assert_eq!(stream.clone_dtoh(&x).unwrap(), [1], "nothing ran");
    for _ in 0..3 {
        graph.launch().unwrap();
    }
    let expected = (0..3).fold(1, |x, _| (x * 3 + 1) * 3 + 2);
    assert_eq!(stream.clone_dtoh(&x).unwrap(), [expected]);
    assert_eq!(simulator.stats().graph_launches, 3);
    assert_eq!(simulator.stats().launches, launches + 2 + 6);
}

/// Captures `a: x; b: y, then a: x again, after both`.
fn branching(
    a: &Arc<CudaStream>,
    b: &Arc<CudaStream>,
    work: impl Fn(u32, &Arc<CudaStream>),
) -> cudarc::driver::CudaGraph {
    a.begin_capture(MODE).unwrap();
    work(0, a);
    b.wait(&a.record_event(None).unwrap()).unwrap();
    work(1, a);
    work(2, b);
    a.wait(&b.record_event(None).unwrap()).unwrap();
    work(3, a);
    a.end_capture(PLAIN).unwrap().unwrap()
}

fn branches(simulator: &Simulator) {
    let log = r#"extern "C" __global__ void k(int* place, int* order, int me) {
        order[atomicAdd(place, 1)] = me;
    }"#;
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..20 {
        simulator.reset(seed, 1);
        let context = context(0);
        let (a, b) = (context.new_stream().unwrap(), context.new_stream().unwrap());
        let k = kernel(&context, log);
        let order = a.alloc_zeros::<i32>(5).unwrap();
        a.synchronize().unwrap();
        let at = order.device_ptr(&a).0;
        let graph = branching(&a, &b, |me, stream| {
            // SAFETY: arguments match the kernel.
            unsafe {
                stream
                    .launch_builder(&k)
                    .arg(&(at + 16))
                    .arg(&at)
                    .arg(&(me as i32))
                    .launch(grid(1, 1))
            }
            .unwrap();
        });
        assert_eq!(simulator.count("race"), 1, "the branches write the same log");
        simulator.clear_report();
        graph.launch().unwrap();
        let got = a.clone_dtoh(&order).unwrap();
        assert!(got == [0, 1, 2, 3, 4] || got == [0, 2, 1, 3, 4], "{got:?}");
        seen.insert(got);
    }
    assert_eq!(seen.len(), 2);
}

fn conflict(simulator: &Simulator) {
    let context = context(0);
    let (a, b) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let k = kernel(&context, STEP);
    let (x, y) = (value(&a, 1), value(&a, 1));
    let apart = branching(&a, &b, |me, stream| step(stream, &k, if me == 2 { &y } else { &x }, 1));
    assert_eq!(simulator.report(), "");
    let same = branching(&a, &b, |_, stream| step(stream, &k, &x, 1));
    assert_eq!(simulator.count("race"), 1, "{}", simulator.report());
    simulator.clear_report();
    apart.launch().unwrap();
    same.launch().unwrap();
    a.synchronize().unwrap();
}

fn unjoined(_: &Simulator) {
    let context = context(0);
    let (a, b) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let k = kernel(&context, STEP);
    let x = value(&a, 1);
    a.begin_capture(MODE).unwrap();
    b.wait(&a.record_event(None).unwrap()).unwrap();
    step(&b, &k, &x, 1);
    assert_eq!(code(a.end_capture(PLAIN).map(drop)), 904);
    step(&b, &k, &x, 1);
    b.synchronize().unwrap();
    assert_eq!(b.clone_dtoh(&x).unwrap(), [4], "the capture is over");
}

fn isolation(_: &Simulator) {
    let context = context(0);
    let [a, b, c] = [(); 3].map(|()| context.new_stream().unwrap());
    let event = b.record_event(None).unwrap();
    a.begin_capture(MODE).unwrap();
    assert_eq!(code(a.wait(&event)), 905);
    // What is captured further is refused, and nothing comes of the whole.
    assert_eq!(code(a.record_event(None).map(drop)), 901);
    assert_eq!(code(a.end_capture(PLAIN).map(drop)), 901);

    a.begin_capture(MODE).unwrap();
    let captured = a.record_event(None).unwrap();
    c.begin_capture(MODE).unwrap();
    assert_eq!(code(c.wait(&captured)), 902, "two captures do not become one");
    [&a, &c]
        .into_iter()
        .for_each(|stream| assert_eq!(code(stream.end_capture(PLAIN).map(drop)), 901));
    assert_eq!(code(b.wait(&captured)), 907);
}

fn refused(_: &Simulator) {
    let context = context(0);
    let (a, b) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let asked: [(u32, &dyn Fn() -> u32); 5] = [
        (900, &|| code(a.synchronize())),
        (900, &|| code(context.synchronize())),
        (900, &|| code(a.alloc_zeros::<i32>(1).map(drop))),
        // SAFETY: the stream is alive.
        (900, &|| code(unsafe { sys::cuStreamQuery(a.cu_stream()) }.result())),
        (907, &|| code(a.record_event(None).unwrap().try_is_complete())),
    ];
    for (status, ask) in asked {
        a.begin_capture(MODE).unwrap();
        assert_eq!(ask(), status);
        assert_eq!(code(a.end_capture(PLAIN).map(drop)), 901);
        a.synchronize().unwrap();
    }
    a.begin_capture(MODE).unwrap();
    assert_eq!(code(a.begin_capture(MODE)), 1);
    // Another stream is nobody's business.
    b.synchronize().unwrap();
    drop(a.end_capture(PLAIN).unwrap());
}

/// A call that may wait for the device.
fn unsafe_call() -> u32 {
    let mut memory = std::ptr::null_mut();
    // SAFETY: the place can be written, and what was had is given back.
    unsafe {
        let status = sys::cuMemHostAlloc(&mut memory, 4096, 0);
        if status as u32 == 0 {
            sys::cuMemFreeHost(memory);
        }
        status as u32
    }
}

fn unsafe_calls(_: &Simulator) {
    use sys::CUstreamCaptureMode::*;
    let context = context(0);
    let a = context.new_stream().unwrap();
    let elsewhere = || {
        let call = || {
            context.bind_to_thread().unwrap();
            unsafe_call()
        };
        std::thread::scope(|scope| scope.spawn(call).join().unwrap())
    };
    for (mode, here, there) in [
        (CU_STREAM_CAPTURE_MODE_GLOBAL, 900, 900),
        (CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, 900, 0),
        (CU_STREAM_CAPTURE_MODE_RELAXED, 0, 0),
    ] {
        for (status, call) in [(here, &unsafe_call as &dyn Fn() -> u32), (there, &elsewhere)] {
            a.begin_capture(mode).unwrap();
            assert_eq!(call(), status, "{mode:?}");
            match (status, a.end_capture(PLAIN)) {
                (0, ended) => drop(ended.unwrap()),
                (_, ended) => assert_eq!(code(ended.map(drop)), 901),
            }
        }
    }
}

fn legacy_and_threads(_: &Simulator) {
    let context = context(0);
    let (a, legacy) = (context.new_stream().unwrap(), context.default_stream());
    let k = kernel(&context, STEP);
    let x = value(&legacy, 1);
    let mut blocking = std::ptr::null_mut();
    // SAFETY: the place can be written; the stream is destroyed below.
    unsafe {
        sys::cuStreamCreate(&mut blocking, 0).result().unwrap();
        sys::cuStreamBeginCapture_v2(blocking, MODE).result().unwrap();
    }
    let address = x.device_ptr(&legacy).0;
    // SAFETY: arguments match the kernel.
    let launched = unsafe { legacy.launch_builder(&k).arg(&address).arg(&1).launch(grid(1, 1)) };
    assert_eq!(code(launched.map(drop)), 906, "it would come after what is captured");
    let mut graph = std::ptr::null_mut();
    // SAFETY: the place can be written, and nobody uses the stream any more.
    unsafe {
        assert_eq!(sys::cuStreamEndCapture(blocking, &mut graph) as u32, 901);
        sys::cuStreamDestroy_v2(blocking).result().unwrap();
    }
    // A stream that does not block is no concern of the legacy one's.
    a.begin_capture(MODE).unwrap();
    step(&legacy, &k, &x, 1);
    let end = || {
        context.bind_to_thread().unwrap();
        code(a.end_capture(PLAIN).map(drop))
    };
    assert_eq!(std::thread::scope(|scope| scope.spawn(end).join().unwrap()), 908);
    drop(a.end_capture(PLAIN).unwrap());
    assert_eq!(legacy.clone_dtoh(&x).unwrap(), [4]);
}

fn parameters(simulator: &Simulator) {
    let context = context(0);
    let stream = context.new_stream().unwrap();
    let k = module(&context, STEP).load_function("k").unwrap();
    let (x, y) = (value(&stream, 1), value(&stream, 10));
    stream.begin_capture(MODE).unwrap();
    step(&stream, &k, &x, 1);
    let graph = stream.end_capture(PLAIN).unwrap().unwrap();
    // SAFETY: handles are alive; arguments match the kernel, whose raw handle is asked for again by
    // name.
    unsafe {
        let mut count = 0;
        sys::cuGraphGetNodes(graph.cu_graph(), std::ptr::null_mut(), &mut count).result().unwrap();
        assert_eq!(count, 1);
        let mut node = std::ptr::null_mut();
        sys::cuGraphGetNodes(graph.cu_graph(), &mut node, &mut count).result().unwrap();
        let mut kind = sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY;
        sys::cuGraphNodeGetType(node, &mut kind).result().unwrap();
        assert_eq!(kind as u32, 0);
        let source = crate::rig::compile(STEP).unwrap();
        let mut module = std::ptr::null_mut();
        sys::cuModuleLoadData(&mut module, source.as_bytes().unwrap().as_ptr().cast())
            .result()
            .unwrap();
        let mut function = std::ptr::null_mut();
        sys::cuModuleGetFunction(&mut function, module, c"k".as_ptr()).result().unwrap();
        let (mut address, mut add) = (y.device_ptr(&stream).0, 5i32);
        let mut arguments = [(&raw mut address).cast::<c_void>(), (&raw mut add).cast()];
        let parameters = sys::CUDA_KERNEL_NODE_PARAMS {
            func: function,
            gridDimX: 1,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: 1,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            kernelParams: arguments.as_mut_ptr(),
            extra: std::ptr::null_mut(),
            kern: std::ptr::null_mut(),
            ctx: std::ptr::null_mut(),
        };
        simulator.pause();
        graph.launch().unwrap();
        sys::cuGraphExecKernelNodeSetParams_v2(graph.cu_graph_exec(), node, &parameters)
            .result()
            .unwrap();
        graph.launch().unwrap();
        simulator.resume();
        assert_eq!(stream.clone_dtoh(&x).unwrap(), [4], "the first launch kept its parameters");
        assert_eq!(stream.clone_dtoh(&y).unwrap(), [35]);
        assert_eq!((simulator.stats().captures, simulator.stats().node_updates), (1, 1));
        // Another kernel is not taken.
        let source = crate::rig::compile(&STEP.replace("* 3", "* 7")).unwrap();
        let mut another = std::ptr::null_mut();
        sys::cuModuleLoadData(&mut another, source.as_bytes().unwrap().as_ptr().cast())
            .result()
            .unwrap();
        let mut func = std::ptr::null_mut();
        sys::cuModuleGetFunction(&mut func, another, c"k".as_ptr()).result().unwrap();
        let parameters = sys::CUDA_KERNEL_NODE_PARAMS { func, ..parameters };
        let set = sys::cuGraphExecKernelNodeSetParams_v2(graph.cu_graph_exec(), node, &parameters);
        assert_eq!(set as u32, 1);
        sys::cuModuleUnload(another).result().unwrap();
        sys::cuModuleUnload(module).result().unwrap();
    }
}

fn one_item(simulator: &Simulator) {
    let context = context(0);
    let (a, b) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let k = kernel(&context, STEP);
    let x = value(&a, 1);
    a.begin_capture(MODE).unwrap();
    step(&a, &k, &x, 1);
    let graph = a.end_capture(PLAIN).unwrap().unwrap();
    graph.launch().unwrap();
    b.wait(&a.record_event(None).unwrap()).unwrap();
    step(&b, &k, &x, 2);
    assert_eq!(simulator.report(), "");
    graph.launch().unwrap(); // on a, not after b
    assert_eq!(simulator.count("race"), 1, "{}", simulator.report());
    simulator.clear_report();
    context.synchronize().unwrap();
}

fn lifetime(simulator: &Simulator) {
    let context = context(0);
    let a = context.new_stream().unwrap();
    let k = kernel(&context, STEP);
    let x = value(&a, 1);
    a.begin_capture(MODE).unwrap();
    step(&a, &k, &x, 1);
    let graph = a.end_capture(PLAIN).unwrap().unwrap();
    simulator.pause();
    graph.launch().unwrap();
    drop(graph);
    simulator.resume();
    assert_eq!(a.clone_dtoh(&x).unwrap(), [4]);
}
