//! The driver's side of a graph: made node by node, each behind the one before, given other
//! arguments, launched.
//!
//! Used by `graph` on the device's thread. Dropping it, on any thread, only hands the driver's
//! handles over.

#![allow(unsafe_code)]

use super::Trouble;
use super::context::Raw;
use super::memory::{DeviceBuffer, Heap};
use super::tape::Noted;
use cudarc::driver::sys;
use smallvec::SmallVec;
use std::ffi::c_void;
use std::sync::Arc;

/// A kernel's node.
pub(super) struct Kernel {
    pub noted: Noted,
    /// Words of the arguments that are a draw's seed, with its position behind it.
    pub draws: SmallVec<[(usize, usize); 1]>,
    pub node: sys::CUgraphNode,
    /// Arguments that the executable graph has.
    pub sent: Vec<u64>,
}

/// The driver's side of a graph.
pub(super) struct Made {
    pub heap: Arc<Heap>,
    pub graph: sys::CUgraph,
    pub executable: sys::CUgraphExec,
    // Dropped last: its end tells the device's thread to look.
    pub arena: Arc<DeviceBuffer>,
}

// SAFETY: handles; the device's thread alone uses them, and a drop elsewhere hands them over
// (`Heap::end_graph`).
unsafe impl Send for Made {}
// SAFETY: as above; a drop does nothing with the node.
unsafe impl Send for Kernel {}

impl Drop for Made {
    fn drop(&mut self) {
        self.heap.end_graph(self.graph, self.executable);
    }
}

/// What a kernel's node is told. The pointers lead into `words`.
fn parameters(
    noted: &Noted,
    words: &mut [u64],
    pointers: &mut SmallVec<[*mut c_void; 24]>,
    context: sys::CUcontext,
) -> sys::CUDA_KERNEL_NODE_PARAMS {
    let base = words.as_mut_ptr();
    pointers.clear();
    // Every start lies inside the words, or at their end.
    pointers.extend(noted.starts.iter().map(|&at| base.wrapping_add(at).cast::<c_void>()));
    sys::CUDA_KERNEL_NODE_PARAMS {
        func: noted.function.0,
        gridDimX: noted.grid[0],
        gridDimY: noted.grid[1],
        gridDimZ: noted.grid[2],
        blockDimX: noted.block[0],
        blockDimY: noted.block[1],
        blockDimZ: noted.block[2],
        sharedMemBytes: noted.shared,
        kernelParams: pointers.as_mut_ptr(),
        extra: std::ptr::null_mut(),
        kern: std::ptr::null_mut(),
        ctx: context,
    }
}

impl Made {
    pub fn begin(&mut self) -> Result<(), Trouble> {
        // SAFETY: the place can be written; the context is current.
        Trouble::of("cuGraphCreate", unsafe { sys::cuGraphCreate(&mut self.graph, 0) })
    }

    /// Adds a kernel behind what was added last.
    pub fn add(
        &mut self,
        kernel: &mut Kernel,
        words: &mut [u64],
        last: Option<sys::CUgraphNode>,
        context: sys::CUcontext,
    ) -> Result<sys::CUgraphNode, Trouble> {
        let mut pointers = SmallVec::new();
        let told = parameters(&kernel.noted, words, &mut pointers, context);
        let after = last.as_ref().map_or(std::ptr::null(), |node| node);
        // SAFETY: as for the launch that was noted: there is a pointer for each parameter, to a
        // value of its size that outlives the call, which copies them. The graph is ours, and
        // `last` is a node of it.
        let status = unsafe {
            sys::cuGraphAddKernelNode_v2(&mut kernel.node, self.graph, after, last.is_some() as usize, &told)
        };
        Trouble::of("cuGraphAddKernelNode", status)?;
        Ok(kernel.node)
    }

    /// Gives a kernel other arguments, for the launches to come.
    pub fn bind(
        &mut self,
        kernel: &mut Kernel,
        words: &mut [u64],
        context: sys::CUcontext,
    ) -> Result<(), Trouble> {
        let mut pointers = SmallVec::new();
        let told = parameters(&kernel.noted, words, &mut pointers, context);
        // SAFETY: as above; launches that are under way keep the arguments they were given.
        let status = unsafe { sys::cuGraphExecKernelNodeSetParams_v2(self.executable, kernel.node, &told) };
        Trouble::of("cuGraphExecKernelNodeSetParams", status)
    }

    /// Adds a graph as a node, which is a copy of it.
    pub fn add_child(
        &mut self,
        child: sys::CUgraph,
        last: Option<sys::CUgraphNode>,
    ) -> Result<sys::CUgraphNode, Trouble> {
        let mut node = std::ptr::null_mut();
        let after = last.as_ref().map_or(std::ptr::null(), |node| node);
        // SAFETY: the graphs are ours, and `last` is a node of the outer one; the child is copied,
        // and ends here.
        let status = unsafe {
            let status =
                sys::cuGraphAddChildGraphNode(&mut node, self.graph, after, last.is_some() as usize, child);
            let _ = sys::cuGraphDestroy(child);
            status
        };
        Trouble::of("cuGraphAddChildGraphNode", status)?;
        Ok(node)
    }

    pub fn instantiate(&mut self) -> Result<(), Trouble> {
        // SAFETY: the graph is whole; the place can be written.
        let status = unsafe { sys::cuGraphInstantiateWithFlags(&mut self.executable, self.graph, 0) };
        Trouble::of("cuGraphInstantiate", status)
    }

    pub fn launch(&self, raw: Raw) -> Result<(), Trouble> {
        // SAFETY: instantiated, and the stream is alive; what the nodes read and write is alive in
        // its order.
        Trouble::of("cuGraphLaunch", unsafe { sys::cuGraphLaunch(self.executable, raw.0) })
    }
}
