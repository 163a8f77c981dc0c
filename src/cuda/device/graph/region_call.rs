//! A call of a region on a lane, step by step.
//!
//! The worker drives it, since each step is a flight by itself, so that memory goes round inside
//! the call as well. How far it has come is kept with the call: where memory is short the rest is
//! tried again later.

use crate::cuda::device::Trouble;
use crate::cuda::device::context::Gear;
use crate::cuda::device::index_check::{Doubts, Known, doubt_too};
use crate::cuda::device::step::Operand;
use crate::engine::run;
use crate::graph::call::{Call, Kept, Progress};
use crate::graph::node::Node;
use crate::graph::plan::{NOWHERE, PlanStep};
use std::sync::Arc;

/// What comes from outside.
pub(crate) struct GivenOperand {
    pub operand: Operand,
    pub doubts: Doubts,
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

/// What becomes of a call's outputs, and what is doubted about it.
pub(crate) fn settle(outputs: Vec<Option<Known>>, node: &Node, call: &Call) -> Known {
    let keep = |known: Known| {
        let doubts: Arc<dyn std::any::Any + Send + Sync> = Arc::new(known.doubts);
        Kept { result: known.result, doubts: Some(doubts) }
    };
    known(call.settle(node, outputs.into_iter().map(|known| known.map(keep)).collect()))
}

/// What was kept for a part, as this device knows it.
pub(crate) fn known(kept: Kept) -> Known {
    let about = kept.doubts.as_ref().and_then(|d| d.downcast_ref::<Doubts>());
    Known { doubts: about.cloned().unwrap_or_default(), result: kept.result }
}

impl Gear {
    /// Queues the next step of a call.
    ///
    /// # Errors
    /// As [`Gear::work`].
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
        let (mut doubts, mut sound) = (Doubts::new(), true);
        for &slot in step.reads.iter().filter(|&&slot| slot != NOWHERE) {
            let (result, about) = match progress.value(slot, call) {
                Ok(known) => (&known.result, &known.doubts),
                Err(k) => (&given[k].operand.value, &given[k].doubts),
            };
            sound &= result.is_ok();
            doubt_too(&mut doubts, about);
        }
        let queued = self.queue(lane, &step.work, last_try, |launch| {
            let operand = |k: usize| given[k].operand.value.as_ref();
            run::step_of_call(call, step, progress, operand, |k| given[k].operand.spare, launch)
        })?;
        under_way.failed |= sound && queued.results.iter().any(Result::is_err);
        doubts.extend(queued.doubt);
        let known =
            queued.results.into_iter().map(|result| Known { result, doubts: doubts.clone() });
        under_way.progress.stepped(call, step, known);
        Ok(())
    }
}
