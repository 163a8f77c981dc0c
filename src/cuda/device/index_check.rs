//! The deferred check of an index: whether it was out of range is known once its kernel has run.
//!
//! Such a kernel clamps the index and writes the error to a record, and the step copies the record
//! to page-locked memory at its end. Before a value is published, the checks of its step are read,
//! and those of the steps it was made from.

use super::memory::pinned::PinnedBlock;
use crate::error::{Error, ErrorKind};
use crate::graph::node::Node;
use crate::graph::value::Value;
use smallvec::SmallVec;
use std::panic::Location;
use std::sync::{Arc, OnceLock};

#[derive(Debug)]
pub(crate) struct IndexCheck {
    /// The place of the record; a stand-in has none, and no error.
    record: Option<Arc<PinnedBlock>>,
    op: String,
    at: &'static Location<'static>,
    error: OnceLock<Option<Error>>,
}

impl IndexCheck {
    pub fn new(record: Arc<PinnedBlock>, node: &Node) -> Arc<IndexCheck> {
        IndexCheck { record: Some(record), ..IndexCheck::nothing(node.op.name(), node.at) }.into()
    }

    fn nothing(op: &str, at: &'static Location<'static>) -> IndexCheck {
        IndexCheck { record: None, op: op.to_owned(), at, error: OnceLock::new() }
    }

    /// Stands for a check that each run of something has anew.
    pub fn stand_in(op: &str, at: &'static Location<'static>) -> Arc<IndexCheck> {
        Arc::new(IndexCheck::nothing(op, at))
    }

    /// The check of a run, of which this is the stand-in.
    pub fn again(&self, record: Arc<PinnedBlock>) -> Arc<IndexCheck> {
        IndexCheck { record: Some(record), ..IndexCheck::nothing(&self.op, self.at) }.into()
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
            (state >> 32 != 0).then(|| Error::new(ErrorKind::Index, &*self.op, text(), self.at))
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
