//! The largest element of as many cells as are asked for, which cover the last one, two or three
//! dimensions evenly. Only host devices are asked for it; elsewhere elements are picked by ops that
//! are there. The way back is [`Largest`].

use super::largest::{Largest, Parts};
use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};
use crate::host::kernels::windows::adaptive::{self, Cells};
use crate::{Backward, own};

/// Cells, with the input's size, that were checked when the op was called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AdaptiveMax {
    /// The function that was called.
    pub name: &'static str,
    pub cells: Cells,
}

impl Operation for AdaptiveMax {
    fn name(&self) -> &str {
        self.name
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        let (x, spatial) = (inputs[0], self.cells.spatial);
        if !x.dtype.is_float() {
            return Err(Refusal::dtype(format!("not defined on {}", x.dtype)));
        }
        let [from, to] = [&self.cells.input, &self.cells.output].map(|size| &size[3 - spatial..]);
        let Some(lead) = x.shape.strip_suffix(from) else {
            return Err(Refusal::shape(format!("{} does not end in {from:?}", x.shape)));
        };
        let shape = lead.iter().chain(to).copied().collect();
        Ok(Meta { shape, dtype: x.dtype })
    }

    fn estimate_ns(&self, inputs: &[&Meta], output: &Meta) -> u64 {
        let all = inputs[0].shape.numel().max(output.shape.numel()) as u64;
        all.saturating_add(200)
    }

    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let (x, out, par) = (run.inputs[0], &run.output, run.parallel);
        adaptive::max(&self.cells, x, out, par);
        Ok(())
    }

    fn gradient_needs(&self, _: &[bool]) -> Needs {
        Needs::inputs(&[0]).as_they_are()
    }

    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        let back = Largest { name: self.name, parts: Parts::Cells(self.cells), back: true };
        call.give(0, |call| own(back, &[call.input(0), call.upstream()]));
        Ok(())
    }
}
