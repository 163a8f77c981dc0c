//! An index that may have been out of range: known only when the kernel that looked has run.
//!
//! Such a kernel clamps, and writes what it met to a record, which the step copies to page-locked
//! memory at its end. Whoever publishes a value that the step made, or that was made from one, asks
//! the doubt first.

use super::memory::pinned::PinnedBlock;
use crate::error::{Error, ErrorKind};
use crate::graph::node::Node;
use crate::graph::value::Value;
use smallvec::SmallVec;
use std::panic::Location;
use std::sync::{Arc, OnceLock};

#[derive(Debug)]
pub(crate) struct Doubt {
    /// Where the record will be; a stand-in has none, and no verdict.
    record: Option<Arc<PinnedBlock>>,
    op: String,
    at: &'static Location<'static>,
    verdict: OnceLock<Option<Error>>,
}

impl Doubt {
    pub fn new(record: Arc<PinnedBlock>, node: &Node) -> Arc<Doubt> {
        Doubt { record: Some(record), ..Doubt::nothing(node.op.name(), node.at) }.into()
    }

    fn nothing(op: &str, at: &'static Location<'static>) -> Doubt {
        Doubt { record: None, op: op.to_owned(), at, verdict: OnceLock::new() }
    }

    /// Stands for a doubt that each run of something has anew.
    pub fn stand_in(op: &str, at: &'static Location<'static>) -> Arc<Doubt> {
        Arc::new(Doubt::nothing(op, at))
    }

    /// The doubt of a run, of which this is the stand-in.
    pub fn again(&self, record: Arc<PinnedBlock>) -> Arc<Doubt> {
        Doubt { record: Some(record), ..Doubt::nothing(&self.op, self.at) }.into()
    }

    /// The error, if there is one. To be called once the host knows that a flight has been reached
    /// which is, or is ordered after, the one that copies the record.
    pub fn verdict(&self) -> Option<Error> {
        let look = || {
            // `IndexError` of the kernels: u32 lock, u32 found, u64 position, i64 index, u64 size.
            let [state, position, index, size] = self.record.as_ref()?.words();
            let index = index as i64;
            let text =
                || format!("index {index} at position {position} is out of range for size {size}");
            // The words are little-endian, as the GPU writes them.
            (state >> 32 != 0).then(|| Error::new(ErrorKind::Index, &*self.op, text(), self.at))
        };
        self.verdict.get_or_init(look).clone()
    }
}

/// What is doubted about a value: here, or in what it was made from.
pub(crate) type Doubts = SmallVec<[Arc<Doubt>; 1]>;

/// Adds what is not there yet.
pub(crate) fn doubt_too(doubts: &mut Doubts, about: &[Arc<Doubt>]) {
    for doubt in about {
        if !doubts.iter().any(|d| Arc::ptr_eq(d, doubt)) {
            doubts.push(doubt.clone());
        }
    }
}

/// A value that may only be queued, with what is still doubted about it.
#[derive(Clone)]
pub(crate) struct Known {
    pub result: Result<Value, Error>,
    pub doubts: Doubts,
}
