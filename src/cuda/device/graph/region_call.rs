//! A call of a region on a lane, step by step.
//!
//! The worker drives the call: each step is a submission by itself, so memory goes round inside the
//! call as well. The call keeps its progress, and where memory is short the worker tries the rest
//! again later.

use crate::cuda::device::Trouble;
use crate::cuda::device::context::DeviceContext;
use crate::cuda::device::index_check::{IndexChecks, Known, add_checks};
use crate::cuda::device::step::Operand;
use crate::engine::run;
use crate::graph::call::{Call, Kept, Progress};
use crate::graph::node::Node;
use crate::graph::plan::{NOWHERE, PlanStep};
use std::sync::Arc;

/// An operand of a call, with its open index checks.
pub(crate) struct GivenOperand {
    pub operand: Operand,
    pub checks: IndexChecks,
}

/// A call of which some steps are queued.
pub(crate) struct UnderWay {
    pub progress: Progress<Known>,
    /// A step of its own has failed.
    pub failed: bool,
}

impl UnderWay {
    pub fn new(call: &Call) -> UnderWay {
        UnderWay { progress: Progress::new(call), failed: false }
    }
}

/// Settles the outputs of a call, with their open index checks.
pub(crate) fn settle(outputs: Vec<Option<Known>>, node: &Node, call: &Call) -> Known {
    let keep = |known: Known| {
        let checks: Arc<dyn std::any::Any + Send + Sync> = Arc::new(known.checks);
        Kept { result: known.result, checks: Some(checks) }
    };
    known(call.settle(node, outputs.into_iter().map(|known| known.map(keep)).collect()))
}

/// The kept result of a part, as this device knows it.
pub(crate) fn known(kept: Kept) -> Known {
    let about = kept.checks.as_ref().and_then(|d| d.downcast_ref::<IndexChecks>());
    Known { checks: about.cloned().unwrap_or_default(), result: kept.result }
}

impl DeviceContext {
    /// Queues the next step of a call.
    ///
    /// # Errors
    /// As [`DeviceContext::work`].
    pub fn call_step(
        &mut self,
        lane: usize,
        call: &Call,
        step: &PlanStep,
        given: &[GivenOperand],
        under_way: &mut UnderWay,
        last_try: bool,
    ) -> Result<(), Trouble> {
        let progress = &under_way.progress;
        let (mut checks, mut sound) = (IndexChecks::new(), true);
        for &slot in step.reads.iter().filter(|&&slot| slot != NOWHERE) {
            let (result, about) = match progress.value(slot, call) {
                Ok(known) => (&known.result, &known.checks),
                Err(k) => (&given[k].operand.value, &given[k].checks),
            };
            sound &= result.is_ok();
            add_checks(&mut checks, about);
        }
        let queued = self.queue(lane, &step.work, last_try, |launch| {
            let operand = |k: usize| given[k].operand.value.as_ref();
            run::step_of_call(call, step, progress, operand, |k| given[k].operand.spare, launch)
        })?;
        under_way.failed |= sound && queued.results.iter().any(Result::is_err);
        checks.extend(queued.check);
        let known =
            queued.results.into_iter().map(|result| Known { result, checks: checks.clone() });
        under_way.progress.stepped(call, step, known);
        Ok(())
    }
}
