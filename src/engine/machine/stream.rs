//! A stream, as the machine counts it: the steps that were submitted, and those that are through.

use super::task_table::EntryRef;
use std::collections::{BTreeSet, VecDeque};

#[derive(Default)]
pub(super) struct Stream {
    /// The point of the last step that was submitted.
    pub submitted: u64,
    /// Up to this point all steps are through.
    pub completed: u64,
    /// Steps that are through before others that were submitted earlier: large values on their way
    /// to the host take longer than the steps behind them.
    early: BTreeSet<u64>,
    /// Entries that continue this stream's chain.
    pub queue: VecDeque<EntryRef>,
    /// The stream's first step was put off.
    pub is_stuck: bool,
}

impl Stream {
    /// Steps that are submitted and not through.
    #[inline]
    pub fn depth(&self) -> u64 {
        self.submitted - self.completed - self.early.len() as u64
    }

    /// The step at this point is through.
    #[inline]
    pub fn finished(&mut self, point: u64) {
        if point == self.completed + 1 {
            self.completed += 1;
            while self.early.remove(&(self.completed + 1)) {
                self.completed += 1;
            }
        } else {
            self.early.insert(point);
        }
    }

    /// Everything is through, and nothing comes any more.
    pub fn end(&mut self) {
        self.queue.clear();
        self.early.clear();
        self.completed = self.submitted;
    }
}
