//! A planned block on a lane, step by step. The device's counterpart of `host/block`.
//!
//! The worker drives it, since each step is a flight by itself, so that memory goes round inside the block as well.
//! How far it has come is kept with the block: where memory is short the rest is tried again later.

use super::Trouble;
use super::doubt::Doubt;
use super::gear::Gear;
use super::step::{Fused, Operand, Queued};
use crate::error::Error;
use crate::graph::block::{Block, Kept, Progress};
use crate::graph::node::Node;
use crate::graph::plan::{PlanStep, Slot};
use crate::graph::value::Value;
use crate::graph::work::Work;
use smallvec::SmallVec;
use std::sync::Arc;

/// A value of the block, with what is still doubted about it.
pub(crate) struct Known {
    pub result: Result<Value, Error>,
    pub doubts: Doubts,
}

pub(crate) type Doubts = SmallVec<[Arc<Doubt>; 1]>;

/// What comes from outside.
pub(crate) struct GivenOperand {
    pub operand: Operand,
    pub doubts: Doubts,
}

/// A block of which some steps are queued.
pub(crate) struct UnderWay {
    pub progress: Progress<Known>,
    /// A step of its own has failed.
    pub failed: bool,
}

impl UnderWay {
    pub fn new(block: &Block) -> UnderWay {
        UnderWay { progress: Progress::new(block), failed: false }
    }

    fn operand(
        &self,
        slot: Slot,
        ends: bool,
        block: &Block,
        given: &[GivenOperand],
        doubts: &mut Doubts,
    ) -> Operand {
        let (known, spare, about) = match self.progress.value(slot, block) {
            // Ours and the operand's.
            Ok(known) => (&known.result, Some(2), &known.doubts),
            // Beside the owners that are known outside, there is what we have been given.
            Err(k) => (&given[k].operand.value, given[k].operand.spare.map(|n| n + 1), &given[k].doubts),
        };
        for doubt in about {
            if !doubts.iter().any(|d| Arc::ptr_eq(d, doubt)) {
                doubts.push(doubt.clone());
            }
        }
        Operand { value: known.clone(), spare: spare.filter(|_| ends) }
    }
}

/// What becomes of a block's outputs, and what is doubted about it.
pub(crate) fn settle(outputs: Vec<Option<Known>>, node: &Node, block: &Block) -> Known {
    let keep = |known: Known| {
        let doubts: Arc<dyn std::any::Any + Send + Sync> = Arc::new(known.doubts);
        Kept { result: known.result, doubts: Some(doubts) }
    };
    known(block.settle(node, outputs.into_iter().map(|known| known.map(keep)).collect()))
}

/// What was kept for a part, as this device knows it.
pub(crate) fn known(kept: Kept) -> Known {
    let about = kept.doubts.as_ref().and_then(|d| d.downcast_ref::<Doubts>());
    Known { doubts: about.cloned().unwrap_or_default(), result: kept.result }
}

impl Gear {
    /// Queues the next step of a block; false where it has to wait for an operand.
    ///
    /// # Errors
    /// As `group` and `node`.
    pub fn block_step(
        &mut self,
        lane: usize,
        block: &Block,
        step: &PlanStep,
        given: &[GivenOperand],
        under_way: &mut UnderWay,
        last_try: bool,
    ) -> Result<bool, Trouble> {
        let mut doubts = Doubts::new();
        let operands: SmallVec<[Operand; 4]> = step
            .reads
            .iter()
            .map(|&slot| under_way.operand(slot, step.ends.contains(&slot), block, given, &mut doubts))
            .collect();
        let queued = match &step.work {
            Work::Group { group, written, end } => {
                let program = block.program(step, &group.program);
                let end = end.as_ref().map(|(n, k)| (&**n, *k));
                self.group(lane, Fused { group, program, written, end }, &operands, last_try)?
            }
            Work::Node(node) => self.node(lane, node, &step.inputs, &operands, last_try)?,
        };
        let sound = operands.iter().all(|operand| operand.value.is_ok());
        drop(operands);
        let Some(Queued { results, doubt, .. }) = queued else { return Ok(false) };
        under_way.failed |= sound && results.iter().any(Result::is_err);
        doubts.extend(doubt);
        let known = results.into_iter().map(|result| Known { result, doubts: doubts.clone() });
        under_way.progress.stepped(block, step, known);
        Ok(true)
    }
}
