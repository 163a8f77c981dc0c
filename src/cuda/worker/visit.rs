//! The nodes of the intake, as this device's scheduler visits them: a node that needs no GPU is
//! completed on the spot.
//!
//! The device's thread calls it; after the end, so does the watchdog. It calls nothing of CUDA.

use super::Shared;
use crate::engine::port::publish::By;
use crate::engine::pressure::Pressure;
use crate::engine::run::without_kernel;
use crate::engine::scheduler::{RunSmall, Scheduler, VISITS_AT_ONCE};
use crate::graph::node::{NodeLink, Op, free};
use crate::graph::value::Value;

impl Shared {
    /// Looks at a bounded number of nodes; true where there was any.
    pub(super) fn visit_queued(&self, scheduler: &mut Scheduler) -> bool {
        scheduler.visit_queued(self.port, VISITS_AT_ONCE, || self.now(), &mut &*self)
    }

    /// Completes nodes that need no device: constants, and views and predicated values of complete
    /// ones. True where it is complete then.
    fn complete(&self, node: &NodeLink) -> bool {
        if !matches!(node.op, Op::Fill(_) | Op::View(_) | Op::Predicated(_)) {
            return node.completion.state().is_complete();
        }
        let Some(mut claim) = node.claim() else { return node.completion.state().is_complete() };
        let inputs = claim.inputs();
        let there = inputs.iter().all(|input| input.completion.state().is_complete());
        let result = match inputs.iter().find_map(|input| input.error()) {
            _ if !there => None,
            Some(error) => {
                let of = |i: usize| inputs[i].error().map_or_else(|| Ok(known(&inputs[i])), Err);
                Some(node.instead(inputs.len(), of).ok_or_else(|| error.clone()))
            }
            None => without_kernel(node, inputs, |i| known(&inputs[i])).map(Ok),
        };
        let Some(result) = result else {
            claim.unclaim();
            return false;
        };
        if self.port.recordings.is_on() {
            self.port.recordings.lone(&claim, false, None);
        }
        let inputs = claim.let_go();
        let weight = Pressure::weight(node.bytes());
        self.port.count_failure(&result);
        self.port.publish_small(1, weight, By::Engine, |_| self.port.end_claimed(claim, result));
        free(inputs);
        true
    }
}

impl RunSmall for &Shared {
    fn run(&mut self, node: &NodeLink) -> bool {
        self.complete(node)
    }
}

fn known(input: &NodeLink) -> &Value {
    input.value().unwrap_or_else(|| unreachable!("it is complete, and has not failed"))
}
