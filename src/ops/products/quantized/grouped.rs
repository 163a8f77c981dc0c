//! Rows by one of several quantised matrices each, as a mixture of experts does.

use super::{packed, reading};
use crate::dtype::DType;
use crate::error::number_of;
use crate::format::{Packing, ROWS};
use crate::graph::operation::{CpuRun, Meta, Operation, Refusal};
use crate::host::kernels::quantized;
use crate::ops::check::{indices, out_of_range};
use crate::ops::no_gradient;

/// Of `(x, weight, which)`: row `i` of `x` `[rows, columns]` meets the matrix that `which[i]`
/// names, of `groups` equal ones in a weight, one below the other.
pub(crate) struct GroupedLinear {
    pub packing: Packing,
    pub groups: usize,
}

impl GroupedLinear {
    /// One of the matrices.
    pub fn one(&self) -> Packing {
        Packing { rows: self.packing.rows / self.groups.max(1), ..self.packing }
    }
}

impl Operation for GroupedLinear {
    fn name(&self) -> &str {
        "grouped_linear"
    }
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        let (x, which, Packing { format, rows, columns }) = (inputs[0], inputs[2], self.packing);
        packed(inputs[1], self.packing)?;
        indices(which)?;
        if x.dtype != DType::F32 {
            return Err(Refusal::dtype(format!("needs float32 beside {format}, not {}", x.dtype)));
        }
        if self.groups == 0 || !rows.is_multiple_of(self.groups.saturating_mul(ROWS)) {
            let (all, groups) =
                (number_of(rows, "row", "rows"), number_of(self.groups, "matrix", "matrices"));
            let text = format!("{all} of a weight are not {groups} of a multiple of sixteen");
            return Err(Refusal::shape(text));
        }
        match (&x.shape[..], &which.shape[..]) {
            (&[n, wide], &[named]) if wide == columns && named == n => {
                Ok(Meta::new([n, self.one().rows], DType::F32))
            }
            _ => {
                let one = [self.one().rows, columns];
                let text =
                    format!("{} by {} of {} times {one:?}", x.shape, which.shape, self.groups);
                Err(Refusal::shape(format!("{text} in {format}")))
            }
        }
    }
    fn estimate_ns(&self, inputs: &[&Meta], output: &Meta) -> u64 {
        let products = (output.shape.numel() as u64).saturating_mul(self.packing.columns as u64);
        let read = inputs[0].shape[0].min(self.groups).saturating_mul(self.one().bytes());
        (products / 100).max(reading(read)).saturating_add(500)
    }
    no_gradient!();
    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let [x, weight, which] = [0, 1, 2].map(|i| run.inputs[i]);
        let of = (self.one(), self.groups);
        quantized::grouped(x, weight, which, of, &run.output, run.parallel).map_err(out_of_range)
    }
}
