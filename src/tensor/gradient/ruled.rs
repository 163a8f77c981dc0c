//! Values that several ops compute, with one gradient rule of their own in place of theirs: where
//! the rules of the ops, one after the other, go over the memory more often than one that knows
//! the whole.

use super::backward::Backward;
use super::taped::{is_taping, taped, with_taping};
use crate::graph::node::Op;
use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};
use crate::graph::tape::Made;
use crate::tensor::future::TensorFuture;
use std::sync::Arc;

/// A rule on the tape. Its value was computed by other ops.
struct Rule<F> {
    name: &'static str,
    needs: Needs,
    gradient: F,
}

/// What `compute` makes of the operands, which has the gradient of this rule. Its arguments are as
/// those of [`Operation::gradient`]. A rule whose gradients have gradients themselves
/// ([`Backward::keeps_graph`]) has to be made of its operands alone. A rule of somebody else's that
/// needs the result finds it kept: it is not computed again, as that of an elementwise op is.
pub(crate) fn ruled(
    name: &'static str,
    operands: &[&TensorFuture],
    needs: Needs,
    compute: impl FnOnce() -> TensorFuture,
    gradient: impl Fn(&mut Backward<'_>) + Send + Sync + 'static,
) -> TensorFuture {
    let result = with_taping(false, compute);
    let is_on_tape = is_taping() && operands.iter().any(|x| x.is_on_tape());
    if !is_on_tape || result.node.error().is_some() {
        return result;
    }
    let rule = Arc::new(Rule { name, needs, gradient });
    taped(Made::Op(Op::Custom(rule)), operands, result.node.clone())
}

impl<F: Fn(&mut Backward<'_>) + Send + Sync + 'static> Operation for Rule<F> {
    fn name(&self) -> &str {
        self.name
    }
    fn infer(&self, _: &[&Meta]) -> Result<Meta, Refusal> {
        Err(Refusal::argument("a rule stands on the tape only"))
    }
    fn run_cpu(&self, _: &mut CpuRun<'_>) -> Result<(), Refusal> {
        Err(Refusal::argument("a rule stands on the tape only"))
    }
    fn is_rule(&self) -> bool {
        true
    }
    fn gradient_needs(&self, _: &[bool]) -> Needs {
        self.needs
    }
    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        (self.gradient)(call);
        Ok(())
    }
}
