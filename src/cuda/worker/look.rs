//! What came in: asking the machine about nodes, polling sources, and settling what needs no GPU.
//!
//! The device's thread calls it; after the end, so does the watchdog. It calls nothing of CUDA.

#![allow(unsafe_code)]

use super::{Desk, Shared};
use crate::completion::{ENTERED, Phase};
use crate::engine::machine::Look;
use crate::engine::small::weight;
use crate::graph::node::{NodeLink, Op, free};
use crate::graph::value::Value;
use crate::host::step::{constant, instead};

/// Nodes looked at before anything else is.
const AT_ONCE: usize = 64;
/// Nodes of a batch turned round before anything else is done.
const TURNED_AT_ONCE: usize = 4096;

impl Shared {
    /// Looks at a bounded number of nodes; true where there was any.
    pub(super) fn conduct(&self, desk: &mut Desk) -> bool {
        if desk.batch.is_empty() {
            desk.batch = self.port.intake.take();
        }
        let awaited = self.port.take_awaited();
        if desk.batch.is_empty() && awaited.is_empty() {
            return false;
        }
        let now = self.now();
        let ended = self.port.is_ended();
        if ended {
            self.end_desk(desk);
        }
        for node in awaited {
            let look = desk.machine.look_early(node);
            self.follow(desk, look, now, ended);
        }
        if !desk.batch.turn(TURNED_AT_ONCE) {
            return true;
        }
        for _ in 0..AT_ONCE {
            let Some(node) = desk.batch.next() else { break };
            let look = desk.machine.look(node, now);
            self.follow(desk, look, now, ended);
        }
        true
    }

    fn follow(&self, desk: &mut Desk, look: Look, now: u64, ended: bool) {
        match look {
            Look::Settled => {}
            Look::New(node) if ended => desk.machine.refuse(node),
            Look::New(node) => {
                if let Op::Source(_) = node.op {
                    desk.machine.enter_source(node);
                } else if !self.settle(&node) {
                    desk.machine.enter(node, now, &mut |n| self.settle(n));
                }
            }
        }
    }

    /// Completes what needs no device: constants, views and gates of what is there. True where it is complete then.
    fn settle(&self, node: &NodeLink) -> bool {
        if !matches!(node.op, Op::Fill(_) | Op::View(_) | Op::Gate(_)) {
            return node.completion.state().is_complete();
        }
        if !node.completion.claim(Phase::Writing, ENTERED) {
            return node.completion.state().is_complete();
        }
        // SAFETY: the node is claimed by us.
        let inputs = unsafe { node.inputs() };
        let result = match &node.op {
            Op::Fill(scalar) => Some(Ok(constant(node, *scalar))),
            Op::View(op) => match inputs[0].completion.get() {
                None => None,
                Some(Err(error)) => Some(Err(error.clone())),
                Some(Ok(value)) => {
                    let layout = op.apply(&value.layout(&inputs[0].shape), &node.shape);
                    layout.map(|layout| Ok(Value::placed(value.storage.clone(), &layout)))
                }
            },
            Op::Gate(_) if inputs.iter().all(|input| input.completion.state().is_complete()) => {
                let failed = inputs.iter().find_map(|input| input.error());
                Some(match failed {
                    Some(error) => instead(node).ok_or_else(|| error.clone()),
                    None => inputs[0].value().cloned().ok_or_else(|| unreachable!("it is complete")),
                })
            }
            _ => None,
        };
        let Some(result) = result else {
            node.completion.unclaim();
            return false;
        };
        if self.port.recordings.is_on() {
            // SAFETY: claimed by us.
            unsafe { self.port.recordings.small(std::iter::empty(), node, false, None) };
        }
        // SAFETY: claimed by us.
        let inputs = unsafe { node.let_go() };
        self.port.publish_small(1, weight(node), true, || self.port.finish(node, result));
        free(inputs);
        true
    }
}
