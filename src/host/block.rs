//! Running any node or step on host memory, a planned block among them.
//!
//! A block's steps run one after the other, with nothing planned on the way. Each has all threads to itself, and
//! intermediates live from the step that makes them to the last that reads them.

#![allow(unsafe_code)]

use super::step::{Host, Operand, Results, operand_of, run_node_on, run_work};
use crate::error::Error;
use crate::graph::block::{Block, Kept, Part, Progress};
use crate::graph::node::{Node, NodeLink, is_last_reader, readers};
use crate::graph::value::Value;
use crate::graph::work::Work;
use std::borrow::Cow;

/// The values that a step of the engine's makes.
///
/// # Safety
/// The caller runs the step: its nodes are claimed for it.
pub(crate) unsafe fn run(work: &Work, host: &Host<'_>) -> Results {
    let alone = match work {
        Work::Group { group, .. } => group.head.as_ref().map(|(head, _)| head),
        Work::Node(node) => Some(node),
    };
    // SAFETY: the caller's promise.
    let inputs = alone.map_or(&[][..], |node| unsafe { node.inputs() });
    match work {
        Work::Node(node) => Results::from_iter([run_node(node, inputs, |i| is_last_reader(&inputs[i]), host)]),
        Work::Group { group, .. } => {
            let operand =
                |k: usize| operand_of(group.inputs.get(k).unwrap_or_else(|| &inputs[k - group.inputs.len()]));
            let last_reader = |k: usize| match group.inputs.get(k) {
                Some(input) => {
                    let counts = readers(input);
                    // The members' edges, and the group's own link.
                    counts.handles == 0 && counts.links == group.edges[k] as u32 + 1
                }
                None => is_last_reader(&inputs[k - group.inputs.len()]),
            };
            run_work(work, inputs, operand, last_reader, |program| Cow::Borrowed(program), host)
        }
    }
}

/// Runs any node that is not elementwise. All inputs are complete. `last_reader` says which of them nobody else will
/// read.
pub(crate) fn run_node(
    node: &Node,
    inputs: &[NodeLink],
    last_reader: impl Fn(usize) -> bool,
    host: &Host<'_>,
) -> Result<Value, Error> {
    match (Block::of(&node.op), Part::of(&node.op)) {
        (Some(block), _) => run_block(node, block, inputs, host),
        (_, Some(part)) => part.result(node, &inputs[0]).result,
        _ => run_node_on(node, inputs, |i| operand_of(&inputs[i]), last_reader, host),
    }
}

/// Runs a block: the value of its one output, or word that its parts can take theirs.
fn run_block(node: &Node, block: &Block, inputs: &[NodeLink], host: &Host<'_>) -> Result<Value, Error> {
    let mut progress: Progress<Result<Value, Error>> = Progress::new(block);
    while let Some(step) = progress.step(block) {
        let operand = |k: usize| -> Operand<'_> {
            match progress.value(step.reads[k], block) {
                Ok(made) => made.as_ref().map_err(Some),
                Err(given) => operand_of(&inputs[given]),
            }
        };
        // The plan says who reads last inside; a value from outside has to be nobody else's as well.
        let last_reader = |k: usize| {
            let slot = step.reads[k];
            step.ends.contains(&slot)
                && progress.value(slot, block).map_or_else(|given| is_last_reader(&inputs[given]), |_| true)
        };
        let results =
            run_work(&step.work, &step.inputs, operand, last_reader, |p| block.program(step, p), host);
        progress.stepped(block, step, results);
    }
    let keep = |result: Result<Value, Error>| Kept { result, doubts: None };
    block.settle(node, progress.outputs(block).into_iter().map(|made| made.map(keep)).collect()).result
}
