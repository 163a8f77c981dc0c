//! The check of a result for what is not finite: the first op that makes a NaN or an infinity
//! fails.
//!
//! `build` puts a check behind each op, where the device's options or the scope of a task ask for
//! that. A check is a few ops of the usual kind, so it is fused, planned in a region and run on any
//! device: they count what is not finite in the result and in the operands, and the last of them
//! (`ops/checks/finite`) fails where some is new. What the caller is given is the result,
//! predicated on that.

use super::intercept::{self, mark};
use super::{At, custom, named, predicated};
use crate::dtype::DType;
use crate::engine::port::Port;
use crate::graph::node::{NodeHandle, Op};
use crate::ops::checks::finite::{CheckFinite, NAN};
use crate::sync::threads::thread_local;
use crate::tensor::future::TensorFuture;
use std::cell::{Cell, RefCell};

thread_local! {
    /// What the scope of the task that this thread polls says; `None` leaves it to the device.
    static SCOPE: Cell<Option<bool>> = const { Cell::new(None) };
    /// The op whose gradient rule is asking for ops.
    static RULE: RefCell<Option<Box<str>>> = const { RefCell::new(None) };
}

/// True where the ops that this thread asks of a device are checked.
pub(crate) fn is_on(port: &Port) -> bool {
    SCOPE.get().unwrap_or_else(|| port.life.is_checked())
}

/// A scope while its task is polled: what held before is put back when it is dropped.
#[must_use]
pub(crate) struct Within(Option<bool>);

/// Has this thread's ops checked, or not, until the result is dropped.
pub(crate) fn within(checked: bool) -> Within {
    Within(replace(Some(checked)))
}

fn replace(scope: Option<bool>) -> Option<bool> {
    mark(intercept::CHECKED, scope == Some(true));
    SCOPE.replace(scope)
}

impl Drop for Within {
    fn drop(&mut self) {
        replace(self.0);
    }
}

/// For what this crate composes: infinities are meant in it, and are gone from its result.
pub(crate) fn unchecked<R>(f: impl FnOnce() -> R) -> R {
    let _within = within(false);
    f()
}

/// A gradient rule while it asks for ops.
#[must_use]
pub(crate) struct Rule(Option<Box<str>>);

/// The ops that this thread asks for are of the gradient of an op with this name.
pub(crate) fn rule(port: &Port, of: &str) -> Option<Rule> {
    is_on(port).then(|| Rule(RULE.replace(Some(of.into()))))
}

impl Drop for Rule {
    fn drop(&mut self) {
        RULE.set(self.0.take());
    }
}

/// True of an op whose result is to be checked: one that computes floats of operands.
pub(super) fn checks(port: &Port, op: &Op, dtype: DType) -> bool {
    let computes = match op {
        Op::WithScalar { scalar, .. } => !scalar.as_f64().is_nan(),
        Op::Unary(_) | Op::Binary(_) | Op::Where | Op::Cast | Op::Reduce(_) | Op::Custom(_) => true,
        Op::Fill(_) | Op::Arange { .. } | Op::Random { .. } | Op::View(_) | Op::Given => false,
        Op::Source(_) | Op::Sink(_) | Op::Call(_) | Op::Part(_) | Op::Marker => false,
        Op::Predicated(_) => false,
    };
    computes && dtype.is_float() && is_on(port)
}

/// The result of an op on these operands, as a value that fails where the op is the first that
/// makes something which is not finite.
#[cold]
pub(super) fn checked(op: &Op, node: NodeHandle, operands: &[&TensorFuture], at: At) -> NodeHandle {
    let name = named(op.name()).to_owned();
    let part = (name != op.name()).then(|| op.name().to_owned());
    let rule = RULE.with_borrow(|rule| rule.as_deref().map(str::to_owned));
    let metas = operands.iter().map(|x| &x.node.meta);
    let check = CheckFinite::new(name, part, rule, &node.meta, metas);
    let _within = within(false);
    let result = TensorFuture::new(node);
    let made = found(&result);
    let mut had: Option<TensorFuture> = None;
    for (i, x) in operands.iter().enumerate().filter(|(_, x)| x.dtype().is_float()) {
        if operands[..i].iter().any(|y| y.node.address() == x.node.address()) {
            continue;
        }
        let found = found(&TensorFuture::new(x.node.clone()));
        had = Some(match had {
            Some(sum) => sum.add(found),
            None => found,
        });
    }
    let mut had = had.unwrap_or_else(|| result.device().full((), 0i64));
    if matches!(op, Op::WithScalar { scalar, .. } if scalar.as_f64().is_infinite()) {
        had = had.add(1);
    }
    // Of operands with an infinity a NaN is new, of those with a NaN nothing is.
    let new = had.lt(NAN).where_cond(made.floor_divide(NAN).mul(NAN), 0);
    let new = had.eq(0).where_cond(made, new);
    let sound = custom(std::sync::Arc::new(check), &[&new], at);
    predicated(&result, &[sound], at).node.clone()
}

/// What is not finite in a value: its NaNs, [`NAN`] each, and its infinities.
fn found(x: &TensorFuture) -> TensorFuture {
    let nan = x.isnan().to_dtype(DType::I64).mul(NAN);
    nan.add(x.isinf().to_dtype(DType::I64)).sum_all()
}
