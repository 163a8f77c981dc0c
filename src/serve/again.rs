//! Which requests of a batch that failed are run again, and with whom: one bad request is not to
//! fail the others.
//!
//! What failed for a reason of its own has its error. What failed together is run again in about
//! sqrt(n) groups; once all of these have ended, the requests of those that failed again are run
//! one by one, unless none of them passed: then the function is at fault, or the device, and
//! everybody has the error. Called by the batcher, outside its locks.

use super::slot::{Slot, may_be_a_requests};
use crate::sync::lock_plain as lock;
use std::sync::{Arc, Mutex};

/// Requests that are run in one batch again.
pub(super) struct Group<R> {
    pub slots: Vec<Arc<Slot<R>>>,
    /// What they are a part of, where their end says more than of themselves.
    pub trial: Option<Trial<R>>,
}

/// The groups of what failed together: shared by them, until the last of them has ended.
pub(super) struct Trial<R>(Arc<Mutex<Verdict<R>>>);

struct Verdict<R> {
    /// Groups that have not ended.
    left: usize,
    /// Somebody has a value now.
    passed: bool,
    failed: Vec<Arc<Slot<R>>>,
}

impl<R> Clone for Trial<R> {
    fn clone(&self) -> Trial<R> {
        Trial(self.0.clone())
    }
}

/// The batches that a group, which has ended, leads to. Errors that nothing can change stand.
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

/// Makes groups of what failed together; who failed alone has an error of its own.
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
