//! An op that is not elementwise: its `run_cuda` launches through the graph's `CudaQueue`, which
//! stands in front of the launcher.
//!
//! The crate's own ops hand over plans and products, custom ops their source. An op can only hand a
//! refusal on, so the queue keeps all other trouble.

use super::launcher::Launcher;
use crate::cuda::convolution::Convolution;
use crate::cuda::device::{DeviceView, DeviceViewMut, Site, Trouble};
use crate::cuda::kernels::matmul::Product;
use crate::cuda::kernels::{Plan, halves};
use crate::cuda::ops;
use crate::graph::device_run::{CudaArg, CudaGrid, CudaKernel, CudaQueue, CudaRun, StreamCall};
use crate::graph::node::Op;
use crate::graph::operation::Refusal;
use std::any::Any;

impl Launcher {
    /// Runs any op that is not elementwise; of views, the reshape that copies. In place, the output
    /// is the memory of the input that `Operation::reuses` names; else that is copied first.
    ///
    /// # Errors
    /// See [`Trouble`]. An op without a kernel is refused.
    pub fn node(
        &mut self,
        site: &dyn Site,
        op: &Op,
        inputs: &[DeviceView<'_>],
        output: DeviceViewMut<'_>,
        in_place: bool,
    ) -> Result<(), Trouble> {
        match op {
            // The elements in order; the new shape is the reader's.
            Op::View(_) => {
                self.copy(site, inputs[0], DeviceViewMut { shape: inputs[0].shape, ..output })
            }
            Op::Reduce(reduction) => self.reduce(site, reduction, inputs[0], output),
            Op::Custom(op) => {
                if let Some(i) = op.reuses().filter(|_| !in_place) {
                    self.copy(site, inputs[i], output)?;
                }
                let is_replayable = op.is_replayable();
                let mut queue = Queue { launcher: self, site, is_replayable, trouble: None };
                let mut run = CudaRun { inputs, output, in_place, fresh: false, queue: &mut queue };
                let done = ops::queue(&**op, &mut run);
                match (queue.trouble, done) {
                    (Some(trouble), _) => Err(trouble),
                    (None, done) => done.map_err(Trouble::Refused),
                }
            }
            other => Err(Trouble::no_kernel(other.name())),
        }
    }
}

/// The launcher for the time of one op.
pub(crate) struct Queue<'a> {
    pub launcher: &'a mut Launcher,
    pub site: &'a dyn Site,
    /// A custom op's launches may be recorded.
    pub is_replayable: bool,
    /// The first thing that went wrong.
    pub trouble: Option<Trouble>,
}

impl Queue<'_> {
    fn keep<T>(&mut self, result: Result<T, Trouble>) -> Result<T, Refusal> {
        result.map_err(|trouble| {
            let refusal = match &trouble {
                Trouble::Refused(refusal) => refusal.clone(),
                other => Refusal::kernel(other.to_string()),
            };
            self.trouble.get_or_insert(trouble);
            refusal
        })
    }
}

impl CudaQueue for Queue<'_> {
    fn launch(
        &mut self,
        kernel: CudaKernel<'_>,
        grid: CudaGrid,
        args: &[CudaArg<'_>],
    ) -> Result<(), Refusal> {
        if let Some(launch_list) = self.site.launch_list().filter(|_| !self.is_replayable) {
            // Its arguments are its own: an address may stand anywhere.
            launch_list.refuse("an op from outside");
            return Err(Refusal::kernel("not while launches are recorded"));
        }
        self.launcher.had_custom |= !self.is_replayable;
        let done = self.launcher.launch_custom(self.site, kernel, grid, args);
        self.keep(done)
    }

    fn scratch(&mut self, bytes: usize) -> Result<u64, Refusal> {
        let got = self.site.scratch(bytes);
        self.keep(got)
    }

    fn zero(&mut self, ptr: u64, bytes: usize) {
        match self.site.launch_list() {
            Some(_) => {
                let filled = self.launcher.zero(self.site, ptr, bytes);
                let _ = self.keep(filled);
            }
            None => self.launcher.batch.zero(ptr, bytes),
        }
    }

    fn call(&mut self, f: StreamCall) {
        match self.site.launch_list() {
            Some(launch_list) => launch_list.refuse("a call from outside"),
            None => {
                self.launcher.had_custom = true;
                self.launcher.batch.call(f);
            }
        }
    }

    fn copy(&mut self, from: DeviceView<'_>, to: DeviceViewMut<'_>) -> Result<(), Refusal> {
        let done = self.launcher.copy(self.site, from, to);
        self.keep(done)
    }

    fn work(
        &mut self,
        work: &dyn Any,
        inputs: &[DeviceView<'_>],
        outputs: &[DeviceViewMut<'_>],
    ) -> Result<(), Refusal> {
        let done = if let Some(plan) = work.downcast_ref::<Plan>() {
            let inputs: smallvec::SmallVec<[u64; 4]> = inputs.iter().map(|v| v.ptr).collect();
            let outputs: smallvec::SmallVec<[u64; 2]> = outputs.iter().map(|v| v.ptr).collect();
            self.launcher.run(self.site, plan, &inputs, &outputs)
        } else if let Some(product) = work.downcast_ref::<Product>() {
            self.launcher.product(self.site, product, inputs[0].ptr, inputs[1].ptr, outputs[0].ptr)
        } else if let Some(product) = work.downcast_ref::<halves::Product>() {
            let inputs: [u64; 2] = [inputs[0].ptr, inputs[1].ptr];
            match halves::plan(*product, self.launcher.half_products) {
                Some(plan) => self.launcher.run(self.site, &plan, &inputs, &[outputs[0].ptr]),
                None => Err(Trouble::no_kernel(format_args!(
                    "linear over {:?}",
                    [product.rows, product.packing.rows]
                ))),
            }
        } else if let Some(asked) = work.downcast_ref::<Convolution>() {
            self.launcher.convolution(
                self.site,
                asked,
                [inputs[0].ptr, inputs[1].ptr, outputs[0].ptr],
            )
        } else {
            Err(Trouble::no_kernel("work of an unknown kind"))
        };
        self.keep(done)
    }

    fn takes(&mut self, work: &dyn Any) -> Result<bool, Refusal> {
        let Some(asked) = work.downcast_ref::<Convolution>() else { return Ok(true) };
        let takes = self.launcher.convolves(self.site, asked);
        self.keep(takes)
    }
}
