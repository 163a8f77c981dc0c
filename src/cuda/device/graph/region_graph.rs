//! A region's call as a CUDA graph: its nodes, its memory, its outputs, and the calls that it fits.
//!
//! `record` makes a [`Graph`] out of a launch list, `replay` picks the graph that fits a call, and
//! `launch` gives the nodes their addresses and launches them.

use super::executable::{ChildNode, GraphExec, KernelNode};
use super::region_call::GivenOperand;
use crate::cuda::device::index_check::IndexCheck;
use crate::cuda::device::libraries::library_call::LibraryCall;
use crate::cuda::device::memory::heap::{DeviceBuffer, Heap};
use crate::graph::value::{INLINE_BYTES, Placed, Storage, Value};
use smallvec::SmallVec;
use std::sync::Arc;

/// Where the memory of a base comes from when a graph runs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Placement {
    Given(usize),
    Output(usize),
    /// Bytes from the start of the graph's memory.
    Arena(u64),
}

/// An input or an output that has a place in the graph's own memory as well, which its nodes use:
/// its elements are copied from there or to there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Staged {
    pub outside: Placement,
    pub at: u64,
    pub bytes: usize,
}

/// An input as it was when the call was recorded. The graph fits a call whose inputs are alike.
pub(crate) struct Input {
    /// A constant, which is part of the graph.
    pub words: Option<[u64; INLINE_BYTES / 8]>,
    pub placed: Option<Box<Placed>>,
    /// A launch reads or writes it.
    pub used: bool,
    /// The call might have written over it.
    pub spare: bool,
    /// The call wrote over it.
    pub taken: bool,
}

pub(crate) enum GraphNode {
    Kernel(KernelNode),
    Library(ChildNode),
}

impl GraphNode {
    /// It is to be made anew, in another graph.
    pub fn leaves(&mut self) {
        match self {
            GraphNode::Kernel(kernel) => kernel.leaves(),
            GraphNode::Library(child) => child.leaves(),
        }
    }
}

pub(crate) enum OutputSource {
    Constant(Value),
    Given(usize, Option<Box<Placed>>),
    Output(usize, Option<Box<Placed>>),
}

pub(crate) struct Output {
    pub source: OutputSource,
    /// Inputs whose index checks are the output's too.
    pub input_checks: SmallVec<[usize; 2]>,
    /// The output's index checks among [`Graph::checks`].
    pub own_checks: SmallVec<[usize; 1]>,
}

/// The driver's side of a graph. Dropping it, on any thread, hands the executable graph to the
/// device's thread.
pub(crate) struct Instance {
    heap: Arc<Heap>,
    /// Taken by the drop alone.
    exec: Option<GraphExec>,
    /// The lane in whose workspace the graph's products work.
    pub home: usize,
    // Dropped last: its end tells the device's thread to look.
    pub arena: Arc<DeviceBuffer>,
}

impl Instance {
    pub fn new(
        heap: Arc<Heap>,
        exec: GraphExec,
        home: usize,
        arena: Arc<DeviceBuffer>,
    ) -> Instance {
        Instance { heap, exec: Some(exec), home, arena }
    }

    pub fn exec(&mut self) -> &mut GraphExec {
        self.exec.as_mut().unwrap_or_else(|| unreachable!("only the drop takes it"))
    }

    fn is_whole(&self) -> bool {
        self.exec.as_ref().is_none_or(GraphExec::is_whole)
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.exec.take().into_iter().for_each(|exec| self.heap.end_graph(exec));
    }
}

pub(crate) struct Graph {
    pub inputs: Vec<Input>,
    /// The outputs that were wanted, a bit each.
    pub wanted: u64,
    pub nodes: Vec<GraphNode>,
    pub places: Vec<Placement>,
    /// Bytes of each base.
    pub sizes: Vec<usize>,
    /// What is copied from inputs before a launch and to outputs behind it.
    pub staged: Vec<Staged>,
    /// Bytes of each output.
    pub outputs: Vec<usize>,
    pub results: Vec<Option<Output>>,
    /// Index checks of the graph's own, and the place of each record in the arena.
    pub checks: Vec<(Arc<IndexCheck>, u64)>,
    pub constants: Vec<([u64; INLINE_BYTES / 8], u64)>,
    pub arena: usize,
    /// Bytes of inputs that a run copies because somebody else may read them.
    pub copied: usize,
    pub instance: Option<Instance>,
}

fn same(a: &Option<Box<Placed>>, b: &Option<Box<Placed>>) -> bool {
    match (a, b) {
        (None, None) => true,
        (Some(a), Some(b)) => a.offset == b.offset && a.strides == b.strides,
        _ => false,
    }
}

impl Graph {
    /// True where nothing was begun, or all is made.
    pub fn is_whole(&self) -> bool {
        self.instance.as_ref().is_none_or(Instance::is_whole)
    }

    pub fn has_products(&self) -> bool {
        self.nodes.iter().any(|node| {
            matches!(node, GraphNode::Library(ChildNode { recorded: LibraryCall::Product(_), .. }))
        })
    }

    /// True where a run with these inputs is the run that the graph was made for.
    pub fn fits(&self, given: &[GivenOperand], spare: &[bool], wanted: u64) -> bool {
        self.wanted == wanted
            && self.inputs.iter().zip(given).zip(spare).all(|((input, given), &spare)| {
                let Ok(value) = &given.operand.value else { return false };
                let lies = match (&input.words, &value.storage) {
                    (Some(words), Storage::Inline(now)) => words == now,
                    (None, Storage::Shared(_)) => true,
                    _ => false,
                };
                // An input that may be written over now, and might have been then, was, if there
                // was a use for it.
                let over = (spare || !input.taken) && (!spare || input.spare);
                lies && over && same(&input.placed, &value.placed)
            })
    }
}
