//! Planned calls on the device's thread: queued on one lane, as a graph where they have become
//! one, else step by step.

use super::thread::{Worker, named};
use crate::cuda::device::Trouble;
use crate::cuda::device::graph::region_call::{GivenOperand, UnderWay, known, settle};
use crate::cuda::device::index_check::{Doubts, Known};
use crate::cuda::device::libraries::nvtx;
use crate::cuda::device::step::Queued;
use crate::graph::call::{Call, Part};
use crate::graph::node::NodeLink;
use crate::sync::lock;
use smallvec::SmallVec;
use std::sync::atomic::Ordering::Relaxed;

impl Worker {
    /// Queues a call, or hands out an output of one. As `Gear::work`; what is doubted about the
    /// result is added.
    pub(super) fn region(
        &mut self,
        lane: usize,
        node: &NodeLink,
        inputs: &[NodeLink],
        doubts: &mut Doubts,
        last_try: bool,
    ) -> Result<Queued, Trouble> {
        let made = match (Call::of(&node.op), Part::of(&node.op)) {
            (Some(call), _) => self.call(lane, node, inputs, call, last_try)?,
            (_, Some(part)) => known(part.result(node, &inputs[0])),
            _ => unreachable!("only calls and their parts come here"),
        };
        doubts.extend(made.doubts);
        Ok(Queued { results: SmallVec::from_iter([made.result]), doubt: None, landing: None })
    }

    fn call(
        &mut self,
        lane: usize,
        node: &NodeLink,
        inputs: &[NodeLink],
        call: &Call,
        mut last_try: bool,
    ) -> Result<Known, Trouble> {
        let edges =
            |of: &NodeLink| inputs.iter().filter(|i| i.address() == of.address()).count() as u32;
        let given: Vec<GivenOperand> = inputs
            .iter()
            .map(|input| {
                let mut doubts = Doubts::new();
                let operand = self.operand(input, edges(input), &mut doubts);
                GivenOperand { operand, doubts }
            })
            .collect();
        let before =
            lock(&call.under_way).take().and_then(|state| state.downcast::<UnderWay>().ok());
        if before.is_none() && self.shared.manner.graphs {
            match self.gear.replay(lane, call, &given)? {
                Some(outputs) => {
                    self.shared.port.counters.graphs.fetch_add(1, Relaxed);
                    return Ok(settle(outputs, node, call));
                }
                // What was queued of it (an input's copy, say) is a flight by itself.
                None if self.gear.lanes.is_begun(lane) => self.depart(lane, None, None, None),
                None => {}
            }
        }
        let mut under_way = before.map_or_else(|| UnderWay::new(call), |state| *state);
        self.gear.runs_in_parts();
        while let Some(step) = under_way.progress.step(call) {
            let range = if self.shared.manner.nvtx {
                nvtx::range(step.work.nodes().map(named))
            } else {
                None
            };
            let queued = self.gear.call_step(lane, call, step, &given, &mut under_way, last_try);
            drop(range);
            if let Err(trouble) = queued {
                *lock(&call.under_way) = Some(Box::new(under_way));
                return Err(trouble);
            }
            // Memory may come free behind this one; only the step that was stuck has had its last
            // try.
            last_try = false;
            if self.gear.lanes.is_begun(lane) {
                self.depart(lane, None, None, None);
            }
            self.gear.free_returned()?;
        }
        self.gear.ran_in_parts(call, under_way.failed);
        Ok(settle(under_way.progress.outputs(call), node, call))
    }
}
