//! Publishing the end of a node: the value or error is written, the op is counted off, and tasks
//! that wait for room are woken.
//!
//! Called by the thread that has run a step: a worker of the engine, a poll, a reaper.

#![allow(unsafe_code)]

use super::{FREED_BY_CALLER, Port};
use crate::concurrent::completion::{DETACHED, State};
use crate::concurrent::counted::Lent;
use crate::engine::step::Step;
use crate::error::{Error, ErrorKind};
use crate::graph::claim::Claim;
use crate::graph::node::{Inputs, Node, NodeLink, free};
use crate::graph::value::Value;
use crate::guard::caught;
use crate::sync::{Ordering::Relaxed, Ordering::SeqCst, fence};

/// The thread that has run a small step.
pub(crate) enum By<'a> {
    Engine,
    /// A poll; with the node that it was lent, where the step computed that node.
    Poll(Option<Lent<'a, Node>>),
}

impl Port {
    /// Publishes a small step of so many ops; the argument of `publish` says whether nobody else
    /// can reach the value. The step is counted as started before, so that an awaiter finds it in
    /// the counters; and it is counted off the queue after, so that where nothing is queued every
    /// value is there and every error noted.
    ///
    /// Returns the argument of `publish`. A poll then sees to the tasks that [wait for less to be
    /// queued](Pressure::wake_if_below): after a `fence`, if the last step that the poll has run
    /// was not alone.
    #[inline]
    pub fn publish_small(
        &'static self,
        ops: usize,
        weight: usize,
        by: By<'_>,
        publish: impl FnOnce(bool),
    ) -> bool {
        if ops > 1 {
            self.counters.fused.fetch_add(ops as u64 - 1, Relaxed);
        }
        match by {
            By::Engine => {
                self.counters.started.fetch_add(1, Relaxed);
                self.counters.closing_small.store(ops, Relaxed);
                publish(false);
                self.pressure.count_off(ops, weight);
                self.counters.closing_small.store(0, Relaxed);
                self.pressure.wake_if_below();
                false
            }
            By::Poll(Some(node)) if self.is_alone(node) => {
                self.polls.ran_inline();
                // Nobody can see that the value is not there yet; but once the node has left the
                // intake, a `waitall` would end without the step in the counters.
                self.pressure.count_off_early(ops, weight);
                // SAFETY: the node is alone.
                let taken = unsafe { self.take_back(node) };
                publish(taken);
                taken
            }
            By::Poll(_) => {
                self.polls.ran_inline();
                publish(false);
                self.pressure.count_off_early(ops, weight);
                // The poll may run user code next, and that may wait for the tasks that wait here.
                if self.pressure.has_waiting() {
                    fence(SeqCst);
                    self.pressure.wake_if_below();
                }
                false
            }
        }
    }

    pub fn count_failure(&self, result: &Result<Value, Error>) {
        if result.is_err() {
            self.counters.failed.fetch_add(1, Relaxed);
        }
    }

    /// Completes a claimed node, as [`finish`](Self::finish); a failure was
    /// [counted](Self::count_failure), since its op may be off the queue.
    pub fn end_claimed(&self, claim: Claim<'_>, result: Result<Value, Error>) {
        // SAFETY: the claim is the right to write.
        unsafe { self.write(claim.node(), result) }
    }

    /// Completes a node. The error of a detached node is in the log before anybody sees the end.
    ///
    /// # Safety
    /// The caller holds the right to write (phase Writing), and has it no more.
    pub unsafe fn finish(&self, node: &Node, result: Result<Value, Error>) {
        self.count_failure(&result);
        // SAFETY: the caller's promise.
        unsafe { self.write(node, result) }
    }

    /// # Safety
    /// As of [`finish`](Self::finish).
    unsafe fn write(&self, node: &Node, result: Result<Value, Error>) {
        let Err(error) = &result else {
            // SAFETY: the caller's promise.
            return unsafe { node.completion.write(result, false) };
        };
        let mut error = Some(error.clone());
        let note = |state: State| {
            if state.has(DETACHED)
                && let Some(error) = error.take()
            {
                self.log.note(&error);
            }
        };
        // SAFETY: the caller's promise.
        unsafe { node.completion.fail(result, note) };
    }

    /// Completes a step's nodes with the results that `result` gives, node by node. A node without
    /// a result is marked as fused away: it was, or it was dropped before it was there. The inputs
    /// are let go before anybody sees the end, and returned. Nothing happens if the device ended
    /// meanwhile, and the nodes with it.
    pub fn conclude_step(
        &self,
        step: &mut Step,
        mut result: impl FnMut(&Step, usize, &NodeLink) -> Option<Result<Value, Error>>,
    ) -> Inputs {
        let (step, mut freed) = (&*step, Inputs::new());
        for (k, node) in step.nodes().enumerate() {
            // SAFETY: claimed for this step. The step is lent to nobody else, and nobody here looks
            // at its inputs any more.
            let links = || unsafe { node.let_go() };
            let let_go = || {
                // An input that shares its elements with others costs nothing to free, and would
                // keep them from being written over by the next reader.
                let (now, later): (Inputs, Inputs) = links().into_iter().partition(|input| {
                    input.value().is_some_and(|v| v.bytes_freed() < FREED_BY_CALLER)
                });
                free(now);
                freed.extend(later);
            };
            self.conclude(node, || result(step, k, node), let_go);
        }
        freed
    }

    /// Completes a claimed node; `let_go` lets its inputs go, where that is due.
    pub fn conclude(
        &self,
        node: &Node,
        result: impl FnOnce() -> Option<Result<Value, Error>>,
        let_go: impl FnOnce(),
    ) {
        if !node.completion.begin_writing() {
            return;
        }
        let result = caught(result).unwrap_or_else(|words| {
            Some(Err(node.fail(ErrorKind::Kernel, format!("its end panicked: {words}"))))
        });
        let_go();
        // SAFETY: the right to write was just taken.
        unsafe {
            match result {
                Some(result) => self.finish(node, result),
                None => node.completion.fuse(),
            }
        }
    }
}
