//! An op from closures: what `custom` wraps.

use crate::graph::operation::{CpuRun, Meta, Operation, Refusal};

pub(crate) struct Closures<I, R> {
    pub name: String,
    pub infer: I,
    pub run: R,
}

impl<I, R> Operation for Closures<I, R>
where
    I: Fn(&[&Meta]) -> Result<Meta, Refusal> + Send + Sync + 'static,
    R: Fn(&mut CpuRun<'_>) -> Result<(), Refusal> + Send + Sync + 'static,
{
    fn name(&self) -> &str {
        &self.name
    }
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        (self.infer)(inputs)
    }
    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        (self.run)(run)
    }
}
