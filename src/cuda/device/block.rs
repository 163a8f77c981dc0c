//! A planned block on a lane, step by step. The device's counterpart of `host/block`.
//!
//! The worker drives it, since each step is a flight by itself, so that memory goes round inside the block as well.
//! How far it has come is kept with the block: where memory is short the rest is tried again later.

use super::Trouble;
use super::doubt::Doubt;
use super::gear::Gear;
use super::step::{Fused, Operand, Queued};
use crate::error::Error;
use crate::graph::block::{Block, Kept};
use crate::graph::node::Node;
use crate::graph::plan::{PlanStep, Slot, Task};
use crate::graph::value::{INLINE_BYTES, Storage, Value};
use crate::host::block::{not_run, program};
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
    /// The next step.
    pub next: usize,
    /// What steps have made and others read.
    made: Vec<Option<Known>>,
    /// Outputs that somebody wanted when it began.
    wanted: u64,
    /// A step of its own has failed.
    pub failed: bool,
}

impl UnderWay {
    pub fn new(block: &Block) -> UnderWay {
        let made = (block.plan.given..block.plan.slots).map(|_| None).collect();
        UnderWay { next: 0, made, wanted: block.wanted(), failed: false }
    }

    /// The next step that is needed; `None` at the end.
    pub fn step<'a>(&mut self, block: &'a Block) -> Option<&'a PlanStep> {
        let steps = &block.plan.steps;
        while steps.get(self.next).is_some_and(|step| step.serves & self.wanted == 0) {
            self.next += 1;
        }
        steps.get(self.next)
    }

    fn operand(
        &self,
        slot: Slot,
        ends: bool,
        block: &Block,
        given: &[GivenOperand],
        doubts: &mut Doubts,
    ) -> Operand {
        let (slot, from) = (slot as usize, block.plan.given);
        let (known, spare, about) = match slot.checked_sub(from) {
            // Beside the owners that are known outside, there is what we have been given.
            None => (&given[slot].operand.value, given[slot].operand.spare.map(|n| n + 1), &given[slot].doubts),
            Some(k) => match &self.made[k] {
                // Ours and the operand's.
                Some(known) => (&known.result, Some(2), &known.doubts),
                None => unreachable!("a step runs after what it reads"),
            },
        };
        for doubt in about {
            if !doubts.iter().any(|d| Arc::ptr_eq(d, doubt)) {
                doubts.push(doubt.clone());
            }
        }
        Operand { value: known.clone(), spare: spare.filter(|_| ends) }
    }

    /// The outputs, as far as they were wanted.
    pub fn outputs(mut self, block: &Block) -> Vec<Option<Known>> {
        let from = block.plan.given;
        block.plan.outputs.iter().map(|&slot| self.made[slot as usize - from].take()).collect()
    }
}

/// What becomes of a block's outputs: the value of the only one, or that of the block, with the outputs left to its
/// parts.
pub(crate) fn settle(mut outputs: Vec<Option<Known>>, node: &Node, block: &Block) -> Known {
    if outputs.len() > 1 {
        let keep = |known: Known| {
            let doubts: Arc<dyn std::any::Any + Send + Sync> = Arc::new(known.doubts);
            Kept { result: known.result, doubts: Some(doubts) }
        };
        block.keep(outputs.into_iter().map(|known| known.map(keep)).collect());
        let done = Value::contiguous(Storage::Inline([0; INLINE_BYTES / 8]));
        return Known { result: Ok(done), doubts: Doubts::new() };
    }
    let none = || Known { result: Err(not_run(node)), doubts: Doubts::new() };
    outputs.pop().flatten().unwrap_or_else(none)
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
        let queued = match &step.task {
            Task::Group { group, written, end } => {
                let program = program(block, step, &group.program);
                let end = end.as_ref().map(|(n, k)| (&**n, *k));
                self.group(lane, Fused { group, program, written, end }, &operands, last_try)?
            }
            Task::Node { node, inputs } => self.node(lane, node, inputs, &operands, last_try)?,
        };
        let sound = operands.iter().all(|operand| operand.value.is_ok());
        drop(operands);
        let Some(Queued { results, doubt, .. }) = queued else { return Ok(false) };
        under_way.failed |= sound && results.iter().any(Result::is_err);
        doubts.extend(doubt);
        let from = block.plan.given;
        for (&slot, result) in step.makes.iter().zip(results) {
            under_way.made[slot as usize - from] = Some(Known { result, doubts: doubts.clone() });
        }
        for &slot in step.ends.iter().filter(|&&slot| slot as usize >= from) {
            under_way.made[slot as usize - from] = None;
        }
        under_way.next += 1;
        Ok(true)
    }
}
