//! Nodes of a graph by hand: adding them, asking what they are, and new parameters for those of an
//! executable graph.

use super::merged;
use crate::driver::launch::Grid;
use crate::ffi::{Handle, In, Kind, Out, handle, id};
use crate::machine::entry::call;
use crate::machine::sim::Sim;
use crate::machine::thread::current_handle;
use crate::machine::work::{GraphItem, Work};
use crate::memory::Touch;
use crate::status::{GRAPH_EXEC_UPDATE_FAILURE, INVALID_HANDLE, INVALID_VALUE, Outcome, Status};
use std::sync::Arc;

const NODES_MAX: u64 = 1 << 16;

impl Sim {
    fn node(&self, node: Handle) -> Outcome<(u64, usize)> {
        let id = id(Kind::GraphNode, node)?;
        let (graph, place) = (id / NODES_MAX, (id % NODES_MAX) as usize);
        let known = self.graphs.graphs.get(&graph).is_some_and(|nodes| place < nodes.len());
        if known { Ok((graph, place)) } else { Err(INVALID_HANDLE) }
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
        sim.stats.node_updates += 1;
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
        let Work::Launch(before) = &nodes[place].work else { return Err(INVALID_VALUE) };
        // Another kernel is another node: not every driver takes one.
        if before.name() != launch.name() || !Arc::ptr_eq(&before.image, &launch.image) {
            return Err(INVALID_VALUE);
        }
        nodes[place].work = Work::Launch(Arc::new(launch));
        nodes[place].touches = touches;
        let nodes = nodes.clone();
        sim.stats.node_updates += 1;
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
