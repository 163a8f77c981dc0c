//! Elements at places along some dimensions that are known when the op is called: padding with a
//! value's own elements, and interpolation by the nearest ones. Only host devices are asked for it;
//! elsewhere the places are made on the device, and picked one dimension after the other.

use crate::Backward;
use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};
use crate::host::kernels::index::picked;
use crate::ops::index::along_back::AlongBack;
use crate::ops::index::places::{Axis, places_of, resized};

/// Elements that come from one, above which they are summed up one dimension after the other: in
/// one go the error would grow with all of them.
const MANY: usize = 1024;

#[derive(Clone, Debug)]
pub(crate) struct Along {
    /// What it is, or is a part of, as errors have it.
    pub name: &'static str,
    pub axes: Vec<Axis>,
}

impl Operation for Along {
    fn name(&self) -> &str {
        self.name
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        resized(inputs[0], self.axes.iter().map(|axis| (axis.dim, [axis.input, axis.output])))
    }

    fn estimate_ns(&self, _: &[&Meta], output: &Meta) -> u64 {
        let places: u64 = self.axes.iter().map(|axis| axis.output as u64).sum();
        200u64.saturating_add(places).saturating_add(output.shape.numel() as u64 / 2)
    }

    fn gradient_needs(&self, _: &[bool]) -> Needs {
        Needs::NOTHING.as_they_are()
    }

    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        call.give(0, |call| {
            let sums = call.upstream().clone();
            if sums.numel() == 0 {
                // A size beside one of 0 may be any.
                return call.zeros(0);
            }
            let back = AlongBack { name: self.name, axes: self.axes.clone() };
            let few = self.axes.iter().map(Axis::most).fold(1, usize::saturating_mul) <= MANY;
            if few && !call.keeps_graph() && sums.port().runner.has_kernel(&back) {
                return crate::own(back, &[&sums]);
            }
            let mut sums = sums.wide();
            // What becomes shorter by whole rows comes first: it leaves less to the last dimension,
            // whose elements move one by one. What becomes longer by rows comes last.
            let mut axes: Vec<&Axis> = self.axes.iter().collect();
            axes.sort_by_key(|axis| match axis.input < axis.output {
                true => (0, axis.dim),
                false => (1, usize::MAX - axis.dim),
            });
            for axis in axes {
                let places = axis.places(call.meta(0).dtype).into_iter().map(|p| p as i64);
                let mut along = vec![1; sums.rank()];
                along[axis.dim] = axis.output;
                let index = sums.device().from_vec(places.collect(), &along[..]);
                let mut shape = sums.shape().clone();
                shape.dims_mut()[axis.dim] = axis.input;
                let zeros = sums.device().zeros_dtype(shape.dims(), sums.dtype());
                sums = zeros.scatter_add(axis.dim as isize, index.expand(sums.dims()), sums);
            }
            sums
        });
        Ok(())
    }

    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let x = run.inputs[0];
        if run.output.numel() == 0 {
            return Ok(());
        }
        picked(x, &places_of(&self.axes, x.dtype), &run.output, run.parallel);
        Ok(())
    }
}
