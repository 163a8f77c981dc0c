//! Wavefronts: steps of a plan that run side by side. They are small, and none reads what another
//! writes.
//!
//! A step that is too small to be split among threads leaves all threads but one idle, and the
//! steps of a model come in threes and twos (queries, keys and values; gate and up). Called by the
//! planner alone, once its steps are in order.

use super::{PlanStep, Slot};
use crate::graph::node::Op;
use crate::graph::work::Work;
use std::collections::VecDeque;
use std::ops::Range;

/// The estimated time of a step that is worth a hand-over, and is not better split itself.
const WORTH_NS: Range<u64> = 4_000..100_000;
/// The number of steps that are looked at for the sake of one: a step that is moved ahead of many
/// others would keep its memory for as long.
const AHEAD: usize = 12;
/// The most steps that run side by side.
const MOST: usize = 8;

impl PlanStep {
    /// Brings the steps of each wavefront together, and numbers the wavefronts.
    pub(super) fn bring_together(steps: Vec<PlanStep>) -> Vec<PlanStep> {
        let mut rest = VecDeque::from(steps);
        let mut done: Vec<PlanStep> = Vec::with_capacity(rest.len());
        let mut wavefronts = 0;
        while let Some(first) = rest.pop_front() {
            let from = done.len();
            let mut to_come: Vec<Slot> = first.makes.to_vec();
            let alone = !first.is_worth();
            done.push(first);
            let (mut k, mut looks) = (0, if alone { 0 } else { AHEAD });
            while k < rest.len() && looks > 0 && done.len() - from < MOST {
                let joins =
                    rest[k].is_worth() && !rest[k].reads.iter().any(|slot| to_come.contains(slot));
                to_come.extend(&rest[k].makes);
                match joins {
                    true => done.extend(rest.remove(k)),
                    false => k += 1,
                }
                looks -= 1;
            }
            if done.len() - from > 1 {
                wavefronts += 1;
                done[from..].iter_mut().for_each(|step| step.wavefront = wavefronts);
            }
        }
        done
    }

    /// True of a step of this size that need not write over an operand.
    fn is_worth(&self) -> bool {
        let alone = match &self.work {
            Work::Node(node) => node.op.reuses().is_none() && !matches!(node.op, Op::Call(_)),
            Work::Group { group, .. } => group.head.is_some(),
        };
        alone && WORTH_NS.contains(&self.work.nodes().map(|node| node.cost_ns() as u64).sum())
    }
}
