//! Reruns of failed batches: which requests are run again, and in which groups, so that one bad
//! request does not fail the others.
//!
//! A request that failed with an error of its own keeps it. Requests that failed together are run
//! again in about sqrt(n) groups. Once all groups have ended, the requests of the groups that
//! failed again are run one by one, unless every group failed: then the function or the device is
//! at fault, and all requests get the error. Called by the batcher, outside its locks.

use super::slot::{Slot, may_be_a_requests};
use crate::sync::lock_plain as lock;
use std::sync::{Arc, Mutex};

/// Requests that are rerun in one batch.
pub(super) struct Group<R> {
    pub slots: Vec<Arc<Slot<R>>>,
    /// The trial that this group is part of, if any.
    pub trial: Option<Trial<R>>,
}

/// A trial: the groups of requests that failed together. They share it until the last group has
/// ended.
pub(super) struct Trial<R>(Arc<Mutex<Verdict<R>>>);

struct Verdict<R> {
    /// Groups that have not ended.
    left: usize,
    /// Whether any request succeeded.
    passed: bool,
    failed: Vec<Arc<Slot<R>>>,
}

impl<R> Clone for Trial<R> {
    fn clone(&self) -> Trial<R> {
        Trial(self.0.clone())
    }
}

/// The batches to run after a group has ended. An error that a rerun cannot change is final.
pub(super) fn groups<R>(group: Group<R>) -> Vec<Group<R>> {
    let passed = group.slots.iter().any(|slot| slot.has_value());
    let mut failed = Vec::new();
    for slot in group.slots {
        match slot.error() {
            Some(error) if may_be_a_requests(&error) => failed.push((slot, error)),
            Some(_) => slot.stand(),
            None => {}
        }
    }
    let Some(trial) = group.trial else {
        let mut groups = Vec::new();
        while let Some((_, root)) = failed.first() {
            let root = root.clone();
            let (together, others) =
                failed.into_iter().partition(|(_, error)| error.same_root(&root));
            failed = others;
            split(together, &mut groups);
        }
        return groups;
    };
    let (passed, failed) = {
        let verdict = &mut *lock(&trial.0);
        verdict.left -= 1;
        verdict.passed |= passed;
        verdict.failed.extend(failed.into_iter().map(|(slot, _)| slot));
        if verdict.left > 0 {
            return Vec::new();
        }
        (verdict.passed, std::mem::take(&mut verdict.failed))
    };
    if passed {
        return failed.into_iter().map(|slot| Group { slots: vec![slot], trial: None }).collect();
    }
    failed.iter().for_each(|slot| slot.stand());
    Vec::new()
}

/// Makes groups of requests that failed together; a request that failed alone has its own error.
fn split<R>(together: Vec<(Arc<Slot<R>>, crate::error::Error)>, groups: &mut Vec<Group<R>>) {
    let slots: Vec<Arc<Slot<R>>> = together.into_iter().map(|(slot, _)| slot).collect();
    if let [slot] = &slots[..] {
        slot.stand();
        return;
    }
    let count = slots.len().isqrt() + usize::from(slots.len().isqrt().pow(2) < slots.len());
    let size = slots.len().div_ceil(count);
    let parts = slots.chunks(size);
    let verdict = Verdict { left: parts.len(), passed: false, failed: Vec::new() };
    let trial = Trial(Arc::new(Mutex::new(verdict)));
    groups.extend(parts.map(|slots| Group { slots: slots.to_vec(), trial: Some(trial.clone()) }));
}
