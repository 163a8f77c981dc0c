//! The driver's side of a graph: made node by node, each behind the one before, given other
//! arguments, launched.
//!
//! Used by `replay` on the device's thread; any thread may hand it over to be destroyed there.

#![allow(unsafe_code)]

use super::launch_list::{Noted, Spot};
use crate::cuda::device::launch::args::pointers;
use crate::cuda::device::libraries::library_call::Called;
use crate::cuda::device::libraries::nvidia::{Opened, Raw};
use crate::cuda::device::{Trouble, describe};
use crate::graph::operation::Refusal;
use cudarc::driver::sys;
use smallvec::SmallVec;
use std::ptr::{null, null_mut};

/// A node of a graph.
#[derive(Clone, Copy)]
pub(crate) struct Node(sys::CUgraphNode);

// SAFETY: a handle, which the device's thread alone uses.
unsafe impl Send for Node {}

/// A kernel's node.
pub(crate) struct Kernel {
    pub noted: Noted,
    /// Words of the arguments that are a draw's seed, with its position behind it.
    pub draws: SmallVec<[(usize, usize); 1]>,
    /// With the arguments that the executable graph has.
    made: Option<(Node, Vec<u64>)>,
}

/// What a library computes, a graph of its own that is a node.
pub(crate) struct Child {
    pub noted: Called<Spot>,
    /// With the addresses that the executable graph has.
    made: Option<(Node, Called<u64>)>,
}

impl Child {
    pub fn new(noted: Called<Spot>) -> Child {
        Child { noted, made: None }
    }
}

/// What the driver captured of a library's calls, for the graph that it becomes a part of.
pub(crate) struct Captured(sys::CUgraph);

/// A graph, and what was made of it to be launched.
pub(crate) struct Replay {
    graph: sys::CUgraph,
    executable: sys::CUgraphExec,
    context: Opened,
}

// SAFETY: handles; one thread at a time has them.
unsafe impl Send for Replay {}

impl Kernel {
    pub fn new(noted: Noted, draws: SmallVec<[(usize, usize); 1]>) -> Kernel {
        Kernel { noted, draws, made: None }
    }
}

impl Replay {
    /// A graph without nodes.
    pub fn new(context: Opened) -> Replay {
        Replay { graph: null_mut(), executable: null_mut(), context }
    }

    pub fn begin(&mut self) -> Result<(), Trouble> {
        // SAFETY: the place can be written.
        Trouble::of("cuGraphCreate", unsafe { sys::cuGraphCreate(&mut self.graph, 0) })
    }

    /// Gives a kernel arguments for the launches to come, where it has others; the first time it is
    /// added behind what was added last. Its node.
    ///
    /// # Safety
    /// The kernel is this graph's, and its module is loaded as long as the graph is launched. With
    /// these words a launch does what the noted one would have done, on memory that the graph's
    /// launches may read and write.
    pub unsafe fn put(
        &mut self,
        kernel: &mut Kernel,
        words: &mut [u64],
        last: Option<Node>,
    ) -> Result<Node, Trouble> {
        let noted = &kernel.noted;
        if let Some((node, sent)) = &kernel.made
            && sent == words
        {
            return Ok(*node);
        }
        let mut arguments = pointers(words, &noted.starts);
        let [[x, y, z], [i, j, k]] = noted.grid;
        let told = sys::CUDA_KERNEL_NODE_PARAMS {
            func: noted.function.handle(),
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: i,
            blockDimY: j,
            blockDimZ: k,
            sharedMemBytes: noted.shared,
            kernelParams: arguments.as_mut_ptr(),
            extra: null_mut(),
            kern: null_mut(),
            ctx: self.context.handle(),
        };
        if let Some((node, sent)) = &mut kernel.made {
            // SAFETY: the caller's promise; the arguments are copied, and launches that are under
            // way keep those they were given.
            let status =
                unsafe { sys::cuGraphExecKernelNodeSetParams_v2(self.executable, node.0, &told) };
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
                &told,
            )
        };
        Trouble::of("cuGraphAddKernelNode", status)?;
        kernel.made = Some((Node(node), words.to_vec()));
        Ok(Node(node))
    }

    /// Has a library's call captured with these addresses for the launches to come, where it has
    /// others; the first time it is added behind what was added last. Its node.
    pub fn put_child(
        &mut self,
        part: &mut Child,
        called: Called<u64>,
        last: Option<Node>,
        captured: impl Fn(&Called<u64>) -> Result<Captured, Trouble>,
    ) -> Result<Node, Trouble> {
        if let Some((node, sent)) = &part.made
            && sent.at() == called.at()
        {
            return Ok(*node);
        }
        let child = captured(&called)?;
        let node = match &part.made {
            Some((node, _)) => {
                // SAFETY: the graphs are ours, and the child is made as the first one was; launches
                // that are under way keep what they were given.
                let status = unsafe {
                    sys::cuGraphExecChildGraphNodeSetParams(self.executable, node.0, child.0)
                };
                child.destroy();
                Trouble::of("cuGraphExecChildGraphNodeSetParams", status)?;
                *node
            }
            None => {
                let (mut node, after) =
                    (null_mut(), last.as_ref().map_or(null(), |last| &raw const last.0));
                let count = last.is_some() as usize;
                // SAFETY: the graphs are ours, and `last` is a node of the outer one.
                let status = unsafe {
                    sys::cuGraphAddChildGraphNode(&mut node, self.graph, after, count, child.0)
                };
                child.destroy();
                Trouble::of("cuGraphAddChildGraphNode", status)?;
                Node(node)
            }
        };
        part.made = Some((node, called));
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
        // SAFETY: instantiated; of what the nodes read and write, who added them has spoken.
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
    /// What `calls` has libraries queue on a stream, as a graph; nothing of it runs. Other threads
    /// may go on calling the driver. `said` is asked what their error means when the stream may be
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

/// What a stream says when a capture on it came to nothing.
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
