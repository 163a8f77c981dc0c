//! Running sums, products and largest elements along a dimension.

use super::others::through_cumprod;
use super::scan_back::RunningProductBack;
use crate::dtype::DType;
use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};
use crate::host::kernels::index;
use crate::op::{Scan, for_each_scan};
use crate::ops::check::{checked, dim_of};
use crate::{Backward, TensorFuture};

pub(crate) struct Running {
    pub scan: Scan,
    pub dim: isize,
}

impl Operation for Running {
    fn name(&self) -> &str {
        self.scan.name()
    }
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        let x = inputs[0];
        dim_of(&x.shape, self.dim)?;
        let dtype = if x.dtype.is_float() { x.dtype } else { DType::I64 };
        Ok(Meta { shape: x.shape.clone(), dtype })
    }
    fn estimate_ns(&self, _: &[&Meta], output: &Meta) -> u64 {
        200u64.saturating_add(output.shape.numel() as u64)
    }
    fn gradient_needs(&self, _: &[bool]) -> Needs {
        rule(self.scan).0
    }
    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        let rule = rule(self.scan).1.ok_or_else(Refusal::no_gradient)?;
        call.give(0, |call| rule(call, self.dim));
        Ok(())
    }
    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let x = run.inputs[0];
        index::scan(self.scan, x, checked(self.dim, x.shape.len()), &run.output, run.parallel);
        Ok(())
    }
}

type Rule = fn(&Backward<'_>, isize) -> TensorFuture;

/// A rule of the table's column: what it reads, and what flows back.
macro_rules! rule_of {
    (sums) => {
        (Needs::NOTHING.as_they_are(), Some(through_sums as Rule))
    };
    (products) => {
        (Needs::inputs(&[0]).and_output(), Some(through_products as Rule))
    };
    (positions) => {
        (Needs::NOTHING, None)
    };
}

macro_rules! rules {
    ($($name:ident: $Variant:ident { gradient: $gradient:ident, $($columns:tt)* })*) => {
        fn rule(scan: Scan) -> (Needs, Option<Rule>) {
            match scan { $(Scan::$Variant => rule_of!($gradient)),* }
        }
    };
}
for_each_scan!(rules);

/// What flows back through running sums: the sums from the other end.
fn through_sums(call: &Backward<'_>, dim: isize) -> TensorFuture {
    call.upstream().flip(dim).cumsum(dim).flip(dim)
}

/// What flows back through running products: of `x[k]` the sum over `j >= k` of `g[j]` times the
/// product up to `j` without `x[k]`. That product is `y[j] / x[k]`; at the first zero of a row it
/// is the product in which this zero counts as 1, and at a later one it is 0. (That holds of the
/// gradient, but not of its own.)
fn through_products(call: &Backward<'_>, dim: isize) -> TensorFuture {
    let (g, x) = (call.upstream(), call.input(0));
    if call.keeps_graph() {
        return through_cumprod(g, x, dim);
    }
    let one = RunningProductBack { dim: checked(dim, x.rank()) };
    if g.port().runner.has_kernel(&one) {
        return crate::own(one, &[g, x, call.output()]);
    }
    let later = |terms: TensorFuture| terms.cumsum_with(dim, false, true);
    let zero = x.eq(0);
    let first = zero.logical_and(zero.cumsum(dim).eq(1));
    let at_first = later(first.where_cond(1.0, x).cumprod(dim).mul(g));
    let elsewhere = later(call.output().mul(g)).div(zero.where_cond(1.0, x));
    zero.where_cond(first.where_cond(at_first, 0.0), elsewhere)
}
