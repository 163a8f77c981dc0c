//! Calls of a region on the device's thread: queued on one lane, as a graph where they have become
//! one, else step by step.

use super::thread::{Worker, named};
use crate::cuda::device::Trouble;
use crate::cuda::device::graph::region_call::{GivenOperand, UnderWay, known, settle};
use crate::cuda::device::index_check::{IndexChecks, Known};
use crate::cuda::device::libraries::nvtx;
use crate::cuda::device::step::Queued;
use crate::graph::call::{Call, Part};
use crate::graph::node::NodeLink;
use crate::sync::lock;
use smallvec::SmallVec;
use std::sync::atomic::Ordering::Relaxed;

impl Worker {
    /// Queues a call, or hands out an output of one. As `DeviceContext::work`; the open index
    /// checks of the result is added.
    pub(super) fn region(
        &mut self,
        lane: usize,
        node: &NodeLink,
        inputs: &[NodeLink],
        checks: &mut IndexChecks,
        last_try: bool,
    ) -> Result<Queued, Trouble> {
        let made = match (Call::of(&node.op), Part::of(&node.op)) {
            (Some(call), _) => self.call(lane, node, inputs, call, last_try)?,
            (_, Some(part)) => known(part.result(node, &inputs[0])),
            _ => unreachable!("only calls and their parts come here"),
        };
        checks.extend(made.checks);
        Ok(Queued { results: SmallVec::from_iter([made.result]), check: None, host_copy: None })
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
                let mut checks = IndexChecks::new();
                let operand = self.operand(input, edges(input), &mut checks);
                GivenOperand { operand, checks }
            })
            .collect();
        let before =
            lock(&call.under_way).take().and_then(|state| state.downcast::<UnderWay>().ok());
        if before.is_none() && self.shared.settings.graphs {
            match self.context.replay(lane, call, &given)? {
                Some(outputs) => {
                    self.shared.port.counters.graphs.fetch_add(1, Relaxed);
                    return Ok(settle(outputs, node, call));
                }
                // Work that it has queued (an input's copy, say) is a submission by itself.
                None if self.context.lanes.is_begun(lane) => self.depart(lane, None, None, None),
                None => {}
            }
        }
        let mut under_way = before.map_or_else(|| UnderWay::new(call), |state| *state);
        self.context.runs_in_parts();
        while let Some(step) = under_way.progress.step(call) {
            let range = if self.shared.settings.nvtx {
                nvtx::range(step.work.nodes().map(named))
            } else {
                None
            };
            let queued = self.context.call_step(lane, call, step, &given, &mut under_way, last_try);
            drop(range);
            if let Err(trouble) = queued {
                *lock(&call.under_way) = Some(Box::new(under_way));
                return Err(trouble);
            }
            // Memory may come free behind this one; only the step that was stuck has had its last
            // try.
            last_try = false;
            if self.context.lanes.is_begun(lane) {
                self.depart(lane, None, None, None);
            }
            self.context.free_returned()?;
        }
        self.context.ran_in_parts(call, under_way.failed);
        Ok(settle(under_way.progress.outputs(call), node, call))
    }
}
