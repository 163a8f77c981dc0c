//! Graphs: made, instantiated, launched. `capture` makes nodes of what a stream is given, `nodes`
//! adds them by hand and gives them new parameters.
//!
//! A graph is checked once, when its capture ends: two nodes that touch the same memory in conflict
//! must be ordered by it. A launch is one item of its stream, whose nodes run in an order that the
//! seed picks among those the graph allows. Allocation inside a capture is refused.

mod capture;
mod nodes;

use crate::ffi::{Handle, Kind, Out, handle, id};
use crate::machine::entry::call;
use crate::machine::sim::Sim;
use crate::machine::thread::LAUNCHES;
use crate::machine::work::{GraphItem, Work};
use crate::memory::Touch;
use crate::status::{INVALID_HANDLE, INVALID_VALUE, Outcome, Status};
use std::collections::BTreeSet;
use std::sync::Arc;

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

    fn count_graphs(&mut self) {
        self.stats.live_graphs = (self.graphs.graphs.len() + self.graphs.executables.len()) as u64;
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
