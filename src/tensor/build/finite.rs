//! Which ops are checked for results that are not finite: those of a device whose options ask for
//! it, and those of a task in a scope that does. `build` makes the check itself.

use super::intercept::{self, mark};
use crate::dtype::DType;
use crate::engine::port::Port;
use crate::graph::node::Op;
use crate::sync::threads::thread_local;
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
    is_on(port).then(|| Rule(RULE.with(|rule| rule.replace(Some(of.into())))))
}

impl Drop for Rule {
    fn drop(&mut self) {
        RULE.with(|rule| rule.replace(self.0.take()));
    }
}

/// The name of the op whose gradient rule is asking for ops.
pub(super) fn ruling() -> Option<String> {
    RULE.with_borrow(|rule| rule.as_deref().map(str::to_owned))
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
    computes && dtype.is_differentiable() && is_on(port)
}
