//! The driver's calls on graphs: to add a node behind the last, to give it other arguments, to
//! instantiate, to launch.
//!
//! `launch` uses it on the device's thread. Any thread may hand a graph over to be destroyed there.

#![allow(unsafe_code)]

use super::launch_list::{Base, BaseOffset, RecordedLaunch};
use crate::cuda::device::launch::args::pointers;
use crate::cuda::device::libraries::library_call::LibraryCall;
use crate::cuda::device::libraries::nvidia::{ContextHandle, Raw};
use crate::cuda::device::{Trouble, describe};
use crate::graph::operation::Refusal;
use cudarc::driver::sys;
use smallvec::SmallVec;
use std::ptr::{null, null_mut};

/// A node of a graph.
#[derive(Clone, Copy)]
pub(crate) struct NodeHandle(sys::CUgraphNode);

// SAFETY: a handle, which the device's thread alone uses.
unsafe impl Send for NodeHandle {}

/// A kernel's node.
pub(crate) struct KernelNode {
    pub recorded: RecordedLaunch,
    /// Words of the arguments that are a draw's seed, with its position behind it.
    pub draws: SmallVec<[(usize, usize); 1]>,
    /// With the arguments that the executable graph has.
    node: Option<(NodeHandle, Vec<u64>)>,
}

/// A library's call as a node: a graph of its own.
pub(crate) struct ChildNode {
    pub recorded: LibraryCall<BaseOffset>,
    /// With the addresses that the executable graph has.
    node: Option<(NodeHandle, LibraryCall<u64>)>,
}

impl ChildNode {
    pub fn new(recorded: LibraryCall<BaseOffset>) -> ChildNode {
        ChildNode { recorded, node: None }
    }

    /// The bases that are not where they were at the last launch, as `now` says.
    pub fn moved(&self, now: impl Fn(&BaseOffset) -> u64) -> impl Iterator<Item = Base> {
        let sent = self.node.iter().flat_map(|(_, sent)| sent.at());
        let pairs = self.recorded.at().iter().zip(sent);
        pairs.filter(move |(at, sent)| now(at) != **sent).map(|(at, _)| at.base)
    }

    /// As [`KernelNode::leaves`].
    pub fn leaves(&mut self) {
        self.node = None;
    }
}

/// A library's calls as the driver captured them, to become a node of a graph.
pub(crate) struct Captured(sys::CUgraph);

/// A graph, and its executable form.
pub(crate) struct GraphExec {
    graph: sys::CUgraph,
    executable: sys::CUgraphExec,
    context: ContextHandle,
}

// SAFETY: handles; one thread at a time has them.
unsafe impl Send for GraphExec {}

impl KernelNode {
    /// It is to be made anew, in another graph.
    pub fn leaves(&mut self) {
        self.node = None;
    }

    pub fn new(recorded: RecordedLaunch, draws: SmallVec<[(usize, usize); 1]>) -> KernelNode {
        KernelNode { recorded, draws, node: None }
    }
}

impl GraphExec {
    /// A graph without nodes.
    pub fn new(context: ContextHandle) -> GraphExec {
        GraphExec { graph: null_mut(), executable: null_mut(), context }
    }

    pub fn begin(&mut self) -> Result<(), Trouble> {
        // SAFETY: the place can be written.
        Trouble::of("cuGraphCreate", unsafe { sys::cuGraphCreate(&mut self.graph, 0) })
    }

    /// Gives a kernel arguments for the launches to come, where it has others. A new kernel is
    /// added behind the node `last`. The kernel's node.
    ///
    /// # Safety
    /// The kernel is this graph's, and its module is loaded as long as the graph is launched. With
    /// these words a launch does the same as the recorded one would have done, on memory that the
    /// graph's launches may read and write.
    pub unsafe fn put(
        &mut self,
        kernel: &mut KernelNode,
        words: &mut [u64],
        last: Option<NodeHandle>,
    ) -> Result<NodeHandle, Trouble> {
        let recorded = &kernel.recorded;
        if let Some((node, sent)) = &kernel.node
            && sent == words
        {
            return Ok(*node);
        }
        let mut arguments = pointers(words, &recorded.starts);
        let [[x, y, z], [i, j, k]] = recorded.grid;
        let params = sys::CUDA_KERNEL_NODE_PARAMS {
            func: recorded.function.handle(),
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: i,
            blockDimY: j,
            blockDimZ: k,
            sharedMemBytes: recorded.shared,
            kernelParams: arguments.as_mut_ptr(),
            extra: null_mut(),
            kern: null_mut(),
            ctx: self.context.handle(),
        };
        if let Some((node, sent)) = &mut kernel.node {
            // SAFETY: the caller's promise; the arguments are copied, and launches that are under
            // way keep those they were given.
            let status =
                unsafe { sys::cuGraphExecKernelNodeSetParams_v2(self.executable, node.0, &params) };
            Trouble::of("cuGraphExecKernelNodeSetParams", status)?;
            sent.clone_from_slice(words);
            return Ok(*node);
        }
        let (mut node, after) =
            (null_mut(), last.as_ref().map_or(null(), |last| &raw const last.0));
        // SAFETY: as above; `last` is a node of the graph.
        let status = unsafe {
            sys::cuGraphAddKernelNode_v2(
                &mut node,
                self.graph,
                after,
                last.is_some() as usize,
                &params,
            )
        };
        Trouble::of("cuGraphAddKernelNode", status)?;
        kernel.node = Some((NodeHandle(node), words.to_vec()));
        Ok(NodeHandle(node))
    }

    /// Has a library's call captured with these addresses for the launches to come, where it has
    /// others; the first time it is added behind what was added last. Its node.
    pub fn put_child(
        &mut self,
        child: &mut ChildNode,
        call: LibraryCall<u64>,
        last: Option<NodeHandle>,
        captured: impl Fn(&LibraryCall<u64>) -> Result<Captured, Trouble>,
    ) -> Result<NodeHandle, Trouble> {
        if let Some((node, sent)) = &child.node
            && sent.at() == call.at()
        {
            return Ok(*node);
        }
        let graph = captured(&call)?;
        let node = match &child.node {
            Some((node, _)) => {
                // SAFETY: the graphs are ours, and the child is made as the first one was; launches
                // that are under way keep their arguments.
                let status = unsafe {
                    sys::cuGraphExecChildGraphNodeSetParams(self.executable, node.0, graph.0)
                };
                graph.destroy();
                Trouble::of("cuGraphExecChildGraphNodeSetParams", status)?;
                *node
            }
            None => {
                let (mut node, after) =
                    (null_mut(), last.as_ref().map_or(null(), |last| &raw const last.0));
                let count = last.is_some() as usize;
                // SAFETY: the graphs are ours, and `last` is a node of the outer one.
                let status = unsafe {
                    sys::cuGraphAddChildGraphNode(&mut node, self.graph, after, count, graph.0)
                };
                graph.destroy();
                Trouble::of("cuGraphAddChildGraphNode", status)?;
                NodeHandle(node)
            }
        };
        child.node = Some((node, call));
        Ok(node)
    }

    pub fn instantiate(&mut self) -> Result<(), Trouble> {
        // SAFETY: the graph is whole; the place can be written.
        let status =
            unsafe { sys::cuGraphInstantiateWithFlags(&mut self.executable, self.graph, 0) };
        Trouble::of("cuGraphInstantiate", status)
    }

    /// It can be launched.
    pub fn is_whole(&self) -> bool {
        !self.executable.is_null()
    }

    pub fn launch(&self, raw: Raw) -> Result<(), Trouble> {
        // SAFETY: instantiated; the callers of `put` and `put_child` answer for the nodes' memory.
        Trouble::of("cuGraphLaunch", unsafe { sys::cuGraphLaunch(self.executable, raw.handle()) })
    }

    /// Nobody will launch it again. Launches that are under way go on to their end, says the
    /// driver's manual (cuGraphExecDestroy), and nobody waits for them.
    pub fn destroy(self) {
        if !self.executable.is_null() {
            // SAFETY: the driver gave it, and its one owner gives it back.
            let _ = unsafe { sys::cuGraphExecDestroy(self.executable) };
        }
        Captured(self.graph).destroy();
    }
}

impl Captured {
    /// The work that `calls` has libraries queue on a stream, as a graph; none of it runs. Other
    /// threads may go on calling the driver. `said` explains their error, when the stream may be
    /// asked again.
    pub fn of<E>(
        raw: Raw,
        calls: impl FnOnce() -> Result<(), E>,
        said: impl FnOnce(E) -> Trouble,
    ) -> Result<Captured, Trouble> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is there; this thread alone gives it work.
        let begun = unsafe { sys::cuStreamBeginCapture_v2(raw.handle(), mode) };
        Trouble::of("cuStreamBeginCapture", begun)?;
        let done = calls();
        let (call, mut graph) = ("cuStreamEndCapture", null_mut());
        // SAFETY: begun above; the place can be written.
        let ended = unsafe { sys::cuStreamEndCapture(raw.handle(), &mut graph) };
        let captured = Captured(graph);
        let failed = match (done, Trouble::of(call, ended)) {
            (Ok(()), Ok(())) => return Ok(captured),
            (Err(why), _) => said(why),
            // A capture that did not work out leaves the context as it was.
            (Ok(()), Err(_)) if is_of_capture(ended) => {
                Refusal::kernel(format!("{call}: {}", describe(ended))).into()
            }
            (Ok(()), Err(trouble)) => trouble,
        };
        captured.destroy();
        Err(failed)
    }

    pub fn destroy(self) {
        if !self.0.is_null() {
            // SAFETY: the driver gave it, and its one owner gives it back.
            let _ = unsafe { sys::cuGraphDestroy(self.0) };
        }
    }
}

/// True for a stream's answer when a capture on it failed.
fn is_of_capture(status: sys::CUresult) -> bool {
    use sys::CUresult::*;
    matches!(
        status,
        CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
            | CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
            | CUDA_ERROR_STREAM_CAPTURE_UNMATCHED
            | CUDA_ERROR_STREAM_CAPTURE_UNJOINED
            | CUDA_ERROR_STREAM_CAPTURE_ISOLATION
            | CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
            | CUDA_ERROR_CAPTURED_EVENT
    )
}
