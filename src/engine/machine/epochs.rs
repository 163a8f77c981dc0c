//! Epochs: between two `waitall`s lies one. A `waitall` ends once no entry of its epoch, or of an
//! earlier one, is left.
//!
//! An entry belongs to the epoch in which its node is visited in its turn. Knows neither entries
//! nor nodes, but for the markers of the `waitall`s.

use crate::graph::node::NodeLink;
use std::collections::VecDeque;

#[derive(Default)]
struct Epoch {
    /// Entries that are left.
    open: usize,
    /// The `waitall`s that end the epoch.
    markers: Vec<NodeLink>,
}

pub(super) struct Epochs {
    /// The last one is the current one, which no `waitall` has ended.
    epochs: VecDeque<Epoch>,
    /// The number of the first one.
    first: u64,
}

impl Epochs {
    pub fn new() -> Epochs {
        Epochs { epochs: VecDeque::from([Epoch::default()]), first: 0 }
    }

    /// Counts an entry into the current epoch: its number.
    #[inline]
    pub fn join(&mut self) -> u64 {
        let last = self.epochs.len() - 1;
        self.epochs[last].open += 1;
        self.first + last as u64
    }

    /// Counts an entry of this epoch off.
    #[inline]
    pub fn leave(&mut self, epoch: u64) {
        self.epochs[(epoch - self.first) as usize].open -= 1;
    }

    /// A `waitall` ends the current epoch.
    pub fn mark(&mut self, marker: NodeLink) {
        if let Some(epoch) = self.epochs.back_mut() {
            epoch.markers.push(marker);
        }
        self.epochs.push_back(Epoch::default());
    }

    /// The markers of the first epoch, where that is over and nothing is left of it.
    #[inline]
    pub fn close(&mut self) -> Option<Vec<NodeLink>> {
        if self.epochs.len() == 1 || self.epochs[0].open > 0 {
            return None;
        }
        self.first += 1;
        self.epochs.pop_front().map(|epoch| epoch.markers)
    }

    /// The number of `waitall`s that have not ended.
    pub fn markers(&self) -> usize {
        self.epochs.iter().map(|epoch| epoch.markers.len()).sum()
    }
}
