//! `roll`: shifted around along dimensions.

use crate::Backward;
use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};
use crate::host::kernels::index;
use crate::ops::check::{checked, dim_of};

pub(crate) struct Roll {
    /// A dimension, and how far towards higher places.
    pub shifts: Vec<(isize, i64)>,
}

impl Roll {
    /// The shifts of a value of so many dimensions.
    pub fn of_rank(&self, rank: usize) -> Vec<(usize, i64)> {
        self.shifts.iter().map(|&(d, by)| (checked(d, rank), by)).collect()
    }
}

impl Operation for Roll {
    fn name(&self) -> &str {
        "roll"
    }
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        for &(dim, _) in &self.shifts {
            dim_of(&inputs[0].shape, dim)?;
        }
        Ok(inputs[0].clone())
    }
    fn estimate_ns(&self, _: &[&Meta], output: &Meta) -> u64 {
        200u64.saturating_add(output.shape.numel() as u64)
    }
    fn gradient_needs(&self, _: &[bool]) -> Needs {
        Needs::NOTHING.as_they_are()
    }
    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        call.give(0, |call| {
            let shape = &call.meta(0).shape;
            // Less than once around, there is a way back for each.
            let back = |&(d, by): &(isize, i64)| {
                (d, -(by % shape[checked(d, shape.rank())].max(1) as i64))
            };
            let (dims, by): (Vec<isize>, Vec<i64>) = self.shifts.iter().map(back).unzip();
            call.upstream().roll(by, dims)
        });
        Ok(())
    }
    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let x = run.inputs[0];
        index::roll(x, &self.of_rank(x.shape.len()), &run.output, run.parallel);
        Ok(())
    }
}
