//! Graphs: capture from streams, building node by node, instantiation, launch, and new parameters
//! for kernel nodes.
//!
//! Captured work is not enqueued; it becomes nodes. A graph is checked once, when its capture ends:
//! two nodes that touch the same memory in conflict must be ordered by it. A launch is one item of
//! its stream, whose nodes run in an order that the seed picks among those the graph allows.
//! Allocation inside a capture is refused.

use crate::ffi::{Handle, In, Kind, Out, handle, id};
use crate::launch::Grid;
use crate::memory::Touch;
use crate::sim::{LAUNCHES, Sim, call, current_handle};
use crate::status::{
    CAPTURED_EVENT, GRAPH_EXEC_UPDATE_FAILURE, INVALID_HANDLE, INVALID_VALUE, Outcome,
    STREAM_CAPTURE_IMPLICIT, STREAM_CAPTURE_INVALIDATED, STREAM_CAPTURE_ISOLATION,
    STREAM_CAPTURE_MERGE, STREAM_CAPTURE_UNJOINED, STREAM_CAPTURE_UNMATCHED,
    STREAM_CAPTURE_UNSUPPORTED, STREAM_CAPTURE_WRONG_THREAD, Status,
};
use crate::streams::thread_number;
use crate::work::{GraphItem, Work};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A capture in progress.
struct Capture {
    origin: u64,
    /// 0 no thread may call what is unsafe in a capture, 1 its own may not, 2 all may.
    mode: u32,
    thread: u64,
    /// Something was done that is not allowed meanwhile: nothing comes of it.
    broken: bool,
    nodes: Vec<GraphItem>,
    /// For each stream that takes part, the nodes its next node comes after.
    fronts: BTreeMap<u64, Vec<usize>>,
}

/// Captures, graphs and executable graphs.
#[derive(Default)]
pub struct Graphs {
    captures: BTreeMap<u64, Capture>,
    graphs: BTreeMap<u64, Vec<GraphItem>>,
    /// Executable graphs, and the graph each was made from.
    executables: BTreeMap<u64, (u64, Arc<Vec<GraphItem>>)>,
}

impl Graphs {
    /// The nodes that the next node of a capturing stream comes after.
    pub fn front(&self, capture: u64, stream: u64) -> Outcome<Vec<usize>> {
        let capture = self.captures.get(&capture).ok_or(STREAM_CAPTURE_UNMATCHED)?;
        if capture.broken {
            return Err(STREAM_CAPTURE_INVALIDATED);
        }
        Ok(capture.fronts.get(&stream).cloned().unwrap_or_default())
    }

    /// Makes a node of work that a capturing stream was given. Returns its place.
    pub fn add_node(
        &mut self,
        capture: u64,
        stream: u64,
        label: String,
        work: Work,
        touches: Vec<Touch>,
    ) -> Outcome<u64> {
        let capture = self.captures.get_mut(&capture).ok_or(STREAM_CAPTURE_UNMATCHED)?;
        if capture.broken {
            return Err(STREAM_CAPTURE_INVALIDATED);
        }
        let place = capture.nodes.len();
        let label: Arc<str> = format!("{label} (node {place} of a graph)").into();
        let after = capture.fronts.insert(stream, vec![place]).unwrap_or_default();
        capture.nodes.push(GraphItem { label, work, touches, after });
        Ok(place as u64)
    }
}

thread_local! {
    /// What `cuThreadExchangeStreamCaptureMode` set.
    static MODE: Cell<u32> = const { Cell::new(0) };
}

impl Sim {
    /// What was asked for is not allowed in a capture ("any associated capture graphs are
    /// invalidated", CUDA C++ Programming Guide, "Invalidation").
    pub fn break_capture(&mut self, capture: u64, status: Status) -> Status {
        if let Some(capture) = self.graphs.captures.get_mut(&capture) {
            capture.broken = true;
        }
        status
    }

    /// That a stream does not capture, for a call that may not be made of one that does.
    pub fn not_captured(&mut self, stream: u64) -> Outcome {
        match self.streams.get(&stream).and_then(|stream| stream.capture) {
            Some(capture) => Err(self.break_capture(capture, STREAM_CAPTURE_UNSUPPORTED)),
            None => Ok(()),
        }
    }

    /// That no capture is under way during which this thread may not make an unsafe call, one that
    /// may wait for the device or use the legacy stream (`cuThreadExchangeStreamCaptureMode`).
    pub fn is_safe(&mut self) -> Outcome {
        let (me, relaxed) = (thread_number(), MODE.get() == 2);
        let mut done = Ok(());
        for capture in self.graphs.captures.values_mut() {
            if !relaxed && (capture.mode == 0 || capture.mode == 1 && capture.thread == me) {
                capture.broken = true;
                done = Err(STREAM_CAPTURE_UNSUPPORTED);
            }
        }
        done
    }

    /// That no blocking stream of a context captures, for work on its legacy stream, which would
    /// come after all of theirs.
    pub fn legacy_is_free(&mut self, context: u64) -> Outcome {
        let blocking =
            |stream: &&crate::streams::Stream| stream.context == context && stream.flags & 1 == 0;
        let captures: Vec<u64> =
            self.streams.values().filter(blocking).filter_map(|s| s.capture).collect();
        let mut broken = captures.iter().map(|&c| self.break_capture(c, STREAM_CAPTURE_IMPLICIT));
        broken.next().map_or(Ok(()), Err)
    }
}

/// For each node, the nodes that come before it.
fn ancestors(nodes: &[GraphItem]) -> Vec<BTreeSet<usize>> {
    let mut all: Vec<BTreeSet<usize>> = Vec::new();
    for node in nodes {
        let mut mine: BTreeSet<usize> = node.after.iter().copied().collect();
        for &before in &node.after {
            mine.extend(&all[before]);
        }
        all.push(mine);
    }
    all
}

fn overlap(a: &Touch, b: &Touch) -> bool {
    a.base == b.base && a.range.start < b.range.end && b.range.start < a.range.end
}

impl Sim {
    /// `cuStreamWaitEvent` where the stream captures or the event was captured.
    pub fn captured_wait(
        &mut self,
        stream: u64,
        captured: Option<(u64, Vec<usize>)>,
        recorded: bool,
    ) -> Outcome {
        let capturing = self.streams.get(&stream).and_then(|stream| stream.capture);
        let Some((capture, front)) = captured else {
            let Some(own) = capturing.filter(|_| recorded) else { return Ok(()) };
            return Err(self.break_capture(own, STREAM_CAPTURE_ISOLATION));
        };
        if let Some(own) = capturing.filter(|own| *own != capture) {
            self.break_capture(own, STREAM_CAPTURE_MERGE);
            return Err(self.break_capture(capture, STREAM_CAPTURE_MERGE));
        }
        let Some(of) = self.graphs.captures.get_mut(&capture) else { return Err(CAPTURED_EVENT) };
        let mine = of.fronts.entry(stream).or_default();
        for node in front {
            if !mine.contains(&node) {
                mine.push(node);
            }
        }
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.capture = Some(capture);
        }
        Ok(())
    }

    fn check_graph(&mut self, nodes: &[GraphItem]) {
        let before = ancestors(nodes);
        for (later, node) in nodes.iter().enumerate() {
            for (earlier, other) in nodes[..later].iter().enumerate() {
                if before[later].contains(&earlier) {
                    continue;
                }
                let conflict = |touch: &&Touch| {
                    other.touches.iter().any(|t| overlap(touch, t) && (touch.write || t.write))
                };
                if let Some(touch) = node.touches.iter().find(conflict) {
                    let serial =
                        self.memory.at(touch.base).map_or(0, |allocation| allocation.serial);
                    let text = format!(
                        "allocation {serial}: {} and {} are not ordered",
                        other.label, node.label
                    );
                    self.report("race", text);
                }
            }
        }
    }

    fn end_capture(&mut self, stream: u64) -> Outcome<u64> {
        let capture =
            self.streams.get(&stream).and_then(|stream| stream.capture).ok_or(INVALID_VALUE)?;
        let of = self.graphs.captures.get_mut(&capture).ok_or(STREAM_CAPTURE_UNMATCHED)?;
        if of.origin != stream {
            of.broken = true;
            return Err(STREAM_CAPTURE_UNMATCHED);
        }
        if of.mode != 2 && of.thread != thread_number() {
            return Err(STREAM_CAPTURE_WRONG_THREAD);
        }
        let done = self.graphs.captures.remove(&capture).ok_or(STREAM_CAPTURE_UNMATCHED)?;
        for stream in self.streams.values_mut().filter(|stream| stream.capture == Some(capture)) {
            stream.capture = None;
        }
        if done.broken {
            return Err(STREAM_CAPTURE_INVALIDATED);
        }
        let before = ancestors(&done.nodes);
        let own = done.fronts.get(&stream).cloned().unwrap_or_default();
        let joined =
            |node: &usize| own.iter().any(|mine| mine == node || before[*mine].contains(node));
        if !done.fronts.values().flatten().all(joined) {
            return Err(STREAM_CAPTURE_UNJOINED);
        }
        self.check_graph(&done.nodes);
        let graph = self.fresh_id();
        self.graphs.graphs.insert(graph, done.nodes);
        self.count_graphs();
        Ok(graph)
    }

    fn count_graphs(&mut self) {
        self.stats.live_graphs = (self.graphs.graphs.len() + self.graphs.executables.len()) as u64;
    }

    /// Makes a node of a graph that is built by hand.
    fn add_by_hand(
        &mut self,
        graph: Handle,
        dependencies: In<Handle>,
        count: usize,
        label: String,
        work: Work,
        touches: Vec<Touch>,
    ) -> Outcome<Handle> {
        let graph = id(Kind::Graph, graph)?;
        let mut after = Vec::new();
        for node in dependencies.list(count)? {
            let (of, place) = self.node(node)?;
            if of != graph {
                return Err(INVALID_VALUE);
            }
            after.push(place);
        }
        let nodes = self.graphs.graphs.get_mut(&graph).ok_or(INVALID_HANDLE)?;
        let place = nodes.len() as u64;
        if place >= NODES_MAX {
            return Err(INVALID_VALUE);
        }
        let label: Arc<str> = format!("{label} (node {place} of a graph)").into();
        nodes.push(GraphItem { label, work, touches, after });
        Ok(handle(Kind::GraphNode, graph * NODES_MAX + place))
    }
}

/// Accesses of several nodes as those of one item.
fn merged<'a>(all: impl Iterator<Item = &'a Touch>) -> Vec<Touch> {
    let mut touches: Vec<Touch> = Vec::new();
    for touch in all {
        let same = touches.iter_mut().find(|t| t.base == touch.base && t.range == touch.range);
        match same {
            Some(same) => same.write |= touch.write,
            None => touches.push(touch.clone()),
        }
    }
    touches
}

/// Counts the launches of a graph, and deals out what each is to suffer.
fn fated(nodes: &Arc<Vec<GraphItem>>, sim: &mut Sim) -> Outcome<Arc<Vec<GraphItem>>> {
    let mut nodes = nodes.clone();
    for place in 0..nodes.len() {
        let new = match &nodes[place].work {
            Work::Launch(launch) => {
                sim.stats.launches += 1;
                let fate = sim.faults.on_launch()?;
                let ill = fate.fault.is_some() || fate.hang;
                ill.then(|| Work::Launch(Arc::new(launch.suffering(fate))))
            }
            Work::Native { run, .. } => {
                sim.stats.launches += 1;
                let fate = sim.faults.on_launch()?;
                let ill = fate.fault.is_some() || fate.hang;
                ill.then(|| Work::Native { run: run.clone(), fault: fate.fault, hang: fate.hang })
            }
            Work::Graph(inner) => Some(Work::Graph(fated(&inner.clone(), sim)?)),
            _ => None,
        };
        if let Some(work) = new {
            Arc::make_mut(&mut nodes)[place].work = work;
        }
    }
    Ok(nodes)
}

/// `cuStreamBeginCapture_v2`.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamBeginCapture_v2(stream: Handle, mode: u32) -> Status {
    call(|sim| {
        if mode > 2 {
            return Err(INVALID_VALUE);
        }
        if stream <= 1 {
            return Err(STREAM_CAPTURE_UNSUPPORTED);
        }
        let stream = sim.stream(stream)?;
        let capture = sim.fresh_id();
        let this = sim.streams.get_mut(&stream).ok_or(INVALID_HANDLE)?;
        let context = this.context;
        if this.capture.is_some() {
            return Err(INVALID_VALUE);
        }
        this.capture = Some(capture);
        sim.healthy(context)?;
        let fronts = BTreeMap::from([(stream, Vec::new())]);
        sim.graphs.captures.insert(
            capture,
            Capture {
                origin: stream,
                mode,
                thread: thread_number(),
                broken: false,
                nodes: Vec::new(),
                fronts,
            },
        );
        Ok(())
    })
}

/// `cuStreamEndCapture`.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamEndCapture(stream: Handle, graph: Out<Handle>) -> Status {
    call(|sim| {
        let stream = sim.stream(stream)?;
        let context = sim.streams.get(&stream).map_or(0, |stream| stream.context);
        sim.healthy(context)?;
        let _ = graph.set(0);
        let id = sim.end_capture(stream)?;
        graph.set(handle(Kind::Graph, id))
    })
}

/// `cuStreamIsCapturing`.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamIsCapturing(stream: Handle, status: Out<u32>) -> Status {
    call(|sim| {
        let stream = sim.stream(stream)?;
        let capture = sim.streams.get(&stream).and_then(|stream| stream.capture);
        let broken =
            capture.and_then(|c| sim.graphs.captures.get(&c)).is_some_and(|capture| capture.broken);
        status.set(if broken { 2 } else { capture.is_some() as u32 })
    })
}

/// `cuThreadExchangeStreamCaptureMode`.
#[unsafe(no_mangle)]
pub extern "C" fn cuThreadExchangeStreamCaptureMode(mode: Out<u32>) -> Status {
    call(|_| {
        let new = mode.get()?;
        if new > 2 { Err(INVALID_VALUE) } else { mode.set(MODE.replace(new)) }
    })
}

/// `cuGraphInstantiateWithFlags`.
#[unsafe(no_mangle)]
pub extern "C" fn cuGraphInstantiateWithFlags(
    executable: Out<Handle>,
    graph: Handle,
    flags: u64,
) -> Status {
    call(|sim| {
        sim.healthy_current()?;
        if flags & !15 != 0 || flags & 4 != 0 {
            return Err(INVALID_VALUE);
        }
        let graph = id(Kind::Graph, graph)?;
        let nodes = sim.graphs.graphs.get(&graph).ok_or(INVALID_HANDLE)?.clone();
        let id = sim.fresh_id();
        sim.check_graph(&nodes);
        sim.graphs.executables.insert(id, (graph, Arc::new(nodes)));
        sim.count_graphs();
        executable.set(handle(Kind::GraphExec, id))
    })
}

/// `cuGraphLaunch`.
#[unsafe(no_mangle)]
pub extern "C" fn cuGraphLaunch(executable: Handle, stream: Handle) -> Status {
    call(|sim| {
        let stream = sim.stream(stream)?;
        let id = id(Kind::GraphExec, executable)?;
        let nodes = sim.graphs.executables.get(&id).ok_or(INVALID_HANDLE)?.1.clone();
        let touches = merged(nodes.iter().flat_map(|node| &node.touches));
        let nodes = fated(&nodes, sim)?;
        LAUNCHES.set(true);
        sim.stats.graph_launches += 1;
        sim.submit(stream, "graph".into(), Work::Graph(nodes), touches)?;
        Ok(())
    })
}

/// `cuGraphUpload`.
#[unsafe(no_mangle)]
pub extern "C" fn cuGraphUpload(executable: Handle, _stream: Handle) -> Status {
    call(|sim| {
        let id = id(Kind::GraphExec, executable)?;
        sim.graphs.executables.get(&id).map(drop).ok_or(INVALID_HANDLE)
    })
}

/// `cuGraphDestroy`.
#[unsafe(no_mangle)]
pub extern "C" fn cuGraphDestroy(graph: Handle) -> Status {
    call(|sim| {
        sim.graphs.graphs.remove(&id(Kind::Graph, graph)?).ok_or(INVALID_HANDLE)?;
        sim.count_graphs();
        Ok(())
    })
}

/// `cuGraphExecDestroy`: launches that are queued still run.
#[unsafe(no_mangle)]
pub extern "C" fn cuGraphExecDestroy(executable: Handle) -> Status {
    call(|sim| {
        sim.graphs.executables.remove(&id(Kind::GraphExec, executable)?).ok_or(INVALID_HANDLE)?;
        sim.count_graphs();
        Ok(())
    })
}

const NODES_MAX: u64 = 1 << 16;

/// `cuGraphGetNodes`.
#[unsafe(no_mangle)]
pub extern "C" fn cuGraphGetNodes(graph: Handle, nodes: Out<Handle>, count: Out<usize>) -> Status {
    call(|sim| {
        let graph = id(Kind::Graph, graph)?;
        let there = sim.graphs.graphs.get(&graph).ok_or(INVALID_HANDLE)?.len();
        if !nodes.is_null() {
            let room = count.get()?.min(there);
            let all: Vec<Handle> =
                (0..room as u64).map(|i| handle(Kind::GraphNode, graph * NODES_MAX + i)).collect();
            nodes.set_all(&all)?;
        }
        count.set(there)
    })
}

impl Sim {
    fn node(&self, node: Handle) -> Outcome<(u64, usize)> {
        let id = id(Kind::GraphNode, node)?;
        let (graph, place) = (id / NODES_MAX, (id % NODES_MAX) as usize);
        let known = self.graphs.graphs.get(&graph).is_some_and(|nodes| place < nodes.len());
        if known { Ok((graph, place)) } else { Err(INVALID_HANDLE) }
    }
}

/// `cuGraphNodeGetType`.
#[unsafe(no_mangle)]
pub extern "C" fn cuGraphNodeGetType(node: Handle, kind: Out<u32>) -> Status {
    call(|sim| {
        let (graph, place) = sim.node(node)?;
        let nodes = sim.graphs.graphs.get(&graph).ok_or(INVALID_HANDLE)?;
        kind.set(match nodes[place].work {
            Work::Launch(_) | Work::Native { .. } => 0,
            Work::Copy { .. } => 1,
            Work::Fill { .. } => 2,
            Work::Host { .. } => 3,
            Work::Graph(_) => 4,
            _ => 5,
        })
    })
}

/// `CUDA_KERNEL_NODE_PARAMS_v2`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct KernelNode {
    function: Handle,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    arguments: Handle,
    extra: Handle,
    kernel: Handle,
    context: Handle,
}

/// `cuGraphCreate`.
#[unsafe(no_mangle)]
pub extern "C" fn cuGraphCreate(graph: Out<Handle>, flags: u32) -> Status {
    call(|sim| {
        sim.healthy_current()?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        let id = sim.fresh_id();
        sim.graphs.graphs.insert(id, Vec::new());
        sim.count_graphs();
        graph.set(handle(Kind::Graph, id))
    })
}

/// `cuGraphAddKernelNode_v2`.
#[unsafe(no_mangle)]
pub extern "C" fn cuGraphAddKernelNode_v2(
    node: Out<Handle>,
    graph: Handle,
    dependencies: In<Handle>,
    count: usize,
    parameters: In<KernelNode>,
) -> Status {
    call(|sim| {
        sim.healthy_current()?;
        let parameters = parameters.get()?;
        let grid =
            Grid { grid: parameters.grid, block: parameters.block, shared: parameters.shared };
        let (launch, touches) =
            sim.launch(parameters.function, grid, &In::at(parameters.arguments))?;
        let label = format!("kernel {}", launch.name());
        let work = Work::Launch(Arc::new(launch));
        node.set(sim.add_by_hand(graph, dependencies, count, label, work, touches)?)
    })
}

/// `cuGraphAddChildGraphNode`: the child is copied.
#[unsafe(no_mangle)]
pub extern "C" fn cuGraphAddChildGraphNode(
    node: Out<Handle>,
    graph: Handle,
    dependencies: In<Handle>,
    count: usize,
    child: Handle,
) -> Status {
    call(|sim| {
        sim.healthy_current()?;
        let (work, touches) = child_of(sim, child)?;
        let label = match &work {
            Work::Graph(nodes) if !nodes.is_empty() => format!("graph of {}", nodes[0].label),
            _ => "nothing".into(),
        };
        node.set(sim.add_by_hand(graph, dependencies, count, label, work, touches)?)
    })
}

/// What a child that was captured does, as one node.
fn child_of(sim: &Sim, child: Handle) -> Outcome<(Work, Vec<Touch>)> {
    let nodes = sim.graphs.graphs.get(&id(Kind::Graph, child)?).ok_or(INVALID_HANDLE)?.clone();
    let touches = merged(nodes.iter().flat_map(|node| &node.touches));
    Ok((Work::Graph(Arc::new(nodes)), touches))
}

/// `cuGraphExecChildGraphNodeSetParams`: the child has as many nodes, of the same kinds, as the one
/// before.
#[unsafe(no_mangle)]
pub extern "C" fn cuGraphExecChildGraphNodeSetParams(
    executable: Handle,
    node: Handle,
    child: Handle,
) -> Status {
    call(|sim| {
        let (graph, place) = sim.node(node)?;
        let id = id(Kind::GraphExec, executable)?;
        let (work, touches) = child_of(sim, child)?;
        let (of, nodes) = sim.graphs.executables.get_mut(&id).ok_or(INVALID_HANDLE)?;
        let kinds = |work: &Work| match work {
            Work::Graph(nodes) => {
                nodes.iter().map(|n| std::mem::discriminant(&n.work)).collect::<Vec<_>>()
            }
            _ => Vec::new(),
        };
        if *of != graph || !matches!(nodes[place].work, Work::Graph(_)) {
            return Err(INVALID_VALUE);
        }
        if kinds(&nodes[place].work) != kinds(&work) {
            return Err(GRAPH_EXEC_UPDATE_FAILURE);
        }
        let nodes = Arc::make_mut(nodes);
        (nodes[place].work, nodes[place].touches) = (work, touches);
        let nodes = nodes.clone();
        sim.check_graph(&nodes);
        Ok(())
    })
}

fn set_parameters(executable: Handle, node: Handle, parameters: KernelNode) -> Status {
    call(|sim| {
        let (graph, place) = sim.node(node)?;
        let id = id(Kind::GraphExec, executable)?;
        if sim.graphs.executables.get(&id).ok_or(INVALID_HANDLE)?.0 != graph {
            return Err(INVALID_VALUE);
        }
        let grid =
            Grid { grid: parameters.grid, block: parameters.block, shared: parameters.shared };
        let arguments = In::at(parameters.arguments);
        let (launch, touches) = sim.launch(parameters.function, grid, &arguments)?;
        let Some((_, nodes)) = sim.graphs.executables.get_mut(&id) else {
            return Err(INVALID_HANDLE);
        };
        // Launches that are queued keep the parameters they were enqueued with.
        let nodes = Arc::make_mut(nodes);
        if !matches!(nodes[place].work, Work::Launch(_)) {
            return Err(INVALID_VALUE);
        }
        nodes[place].work = Work::Launch(Arc::new(launch));
        nodes[place].touches = touches;
        let nodes = nodes.clone();
        sim.check_graph(&nodes);
        Ok(())
    })
}

/// `cuGraphExecKernelNodeSetParams_v2`.
#[unsafe(no_mangle)]
pub extern "C" fn cuGraphExecKernelNodeSetParams_v2(
    executable: Handle,
    node: Handle,
    parameters: In<KernelNode>,
) -> Status {
    match parameters.get() {
        Ok(parameters) => set_parameters(executable, node, parameters),
        Err(status) => status,
    }
}

/// `CUDA_KERNEL_NODE_PARAMS_v1`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct KernelNodeV1 {
    function: Handle,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    arguments: Handle,
    extra: Handle,
}

/// `cuGraphExecKernelNodeSetParams`.
#[unsafe(no_mangle)]
pub extern "C" fn cuGraphExecKernelNodeSetParams(
    executable: Handle,
    node: Handle,
    parameters: In<KernelNodeV1>,
) -> Status {
    let Ok(KernelNodeV1 { function, grid, block, shared, arguments, extra }) = parameters.get()
    else {
        return INVALID_VALUE;
    };
    let context = current_handle();
    set_parameters(
        executable,
        node,
        KernelNode { function, grid, block, shared, arguments, extra, kernel: 0, context },
    )
}
