//! The largest element of as many cells as are asked for, which cover the last one, two or three
//! dimensions evenly, or its position. The way back is [`Largest`], or a `scatter_add` at its
//! position.

use super::largest::{Largest, Parts};
use crate::dtype::DType;
use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};
use crate::host::kernels::windows::adaptive;
use crate::window::Cells;
use crate::{Backward, TensorFuture, own};

/// Cells, with the input's size, that were checked when the op was called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AdaptiveMax {
    /// The function that was called.
    pub name: &'static str,
    pub cells: Cells,
    /// Where the largest elements are in their line, plane or volume, as int64.
    pub position: bool,
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
        Ok(Meta { shape, dtype: if self.position { DType::I64 } else { x.dtype } })
    }

    fn estimate_ns(&self, inputs: &[&Meta], output: &Meta) -> u64 {
        let all = inputs[0].shape.numel().max(output.shape.numel()) as u64;
        all.saturating_add(200)
    }

    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let (x, out, par) = (run.inputs[0], &run.output, run.parallel);
        match self.position {
            false => adaptive::max(&self.cells, x, out, par),
            true => adaptive::max_positions(&self.cells, x, out, par),
        }
        Ok(())
    }

    fn gradient_needs(&self, _: &[bool]) -> Needs {
        let needs = if self.position { Needs::NOTHING } else { Needs::inputs(&[0]) };
        needs.as_they_are()
    }

    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        if !self.position {
            let (name, parts) = (self.name, Parts::Cells(self.cells));
            call.give(0, |call| {
                let places = |x: &TensorFuture| own(AdaptiveMax { position: true, ..*self }, &[x]);
                Largest { name, parts, back: true }.of(call, places)
            });
        }
        Ok(())
    }
}
