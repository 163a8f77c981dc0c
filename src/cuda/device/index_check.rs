//! The deferred check of an index: whether it was out of range is known once its kernel has run. So
//! is what a check for what is not finite has found, which is such an index (`cuda/ops/checks`).
//!
//! Such a kernel clamps the index and writes the error to a record, and the step copies the record
//! to page-locked memory at its end. Before a value is published, the checks of its step are read,
//! and those of the steps it was made from.

use super::memory::pinned::PinnedBlock;
use crate::error::{Error, ErrorKind};
use crate::graph::node::Node;
use crate::graph::node::Op;
use crate::graph::operation::Refusal;
use crate::graph::value::Value;
use crate::ops::checks::finite::CheckFinite;
use smallvec::SmallVec;
use std::any::Any;
use std::panic::Location;
use std::sync::{Arc, OnceLock};

#[derive(Debug)]
pub(crate) struct IndexCheck {
    /// The place of the record; a stand-in has none, and no error.
    record: Option<Arc<PinnedBlock>>,
    op: String,
    /// The check whose finding the index is, where it is one.
    finding: Option<CheckFinite>,
    at: &'static Location<'static>,
    error: OnceLock<Option<Error>>,
}

impl IndexCheck {
    pub fn new(record: Arc<PinnedBlock>, node: &Node) -> Arc<IndexCheck> {
        IndexCheck { record: Some(record), ..IndexCheck::nothing(node) }.into()
    }

    fn nothing(node: &Node) -> IndexCheck {
        let finding = match &node.op {
            Op::Custom(op) => (&**op as &dyn Any).downcast_ref::<CheckFinite>().cloned(),
            _ => None,
        };
        let (op, at) = (node.op.blamed().to_owned(), node.at);
        IndexCheck { record: None, op, finding, at, error: OnceLock::new() }
    }

    /// Stands for a check that each run of something has anew.
    pub fn stand_in(node: &Node) -> Arc<IndexCheck> {
        Arc::new(IndexCheck::nothing(node))
    }

    /// Stands for the checks of an operand.
    pub fn of_operand() -> Arc<IndexCheck> {
        let (op, at) = (String::new(), Location::caller());
        Arc::new(IndexCheck { record: None, op, finding: None, at, error: OnceLock::new() })
    }

    /// The check of a run, of which this is the stand-in.
    pub fn again(&self, record: Arc<PinnedBlock>) -> Arc<IndexCheck> {
        let (op, finding) = (self.op.clone(), self.finding.clone());
        let error = OnceLock::new();
        Arc::new(IndexCheck { record: Some(record), op, finding, at: self.at, error })
    }

    /// The error, if there is one. To be called once the host knows that a submission has been
    /// reached which is, or is ordered after, the one that copies the record.
    pub fn error(&self) -> Option<Error> {
        let look = || {
            // `IndexError` of the kernels: u32 lock, u32 found, u64 position, i64 index, u64 size.
            let [state, position, index, size] = self.record.as_ref()?.words();
            let index = index as i64;
            let text =
                || format!("index {index} at position {position} is out of range for size {size}");
            // The words are little-endian, as the GPU writes them.
            (state >> 32 != 0).then(|| {
                let refusal = match &self.finding {
                    Some(check) => check.refusal(index),
                    None => Refusal { kind: ErrorKind::Index, message: text() },
                };
                Error::new(refusal.kind, &*self.op, refusal.message, self.at)
            })
        };
        self.error.get_or_init(look).clone()
    }
}

/// The open index checks of a value, with those of the values it was made from.
pub(crate) type IndexChecks = SmallVec<[Arc<IndexCheck>; 1]>;

/// Adds the checks that are not there yet.
pub(crate) fn add_checks(checks: &mut IndexChecks, about: &[Arc<IndexCheck>]) {
    for check in about {
        if !checks.iter().any(|d| Arc::ptr_eq(d, check)) {
            checks.push(check.clone());
        }
    }
}

/// A value that may only be queued, with its open index checks.
#[derive(Clone)]
pub(crate) struct Known {
    pub result: Result<Value, Error>,
    pub checks: IndexChecks,
}
