//! Running a planned block on host memory: its steps one after the other, with nothing planned on the way.
//!
//! Each step has all threads to itself; intermediates live from the step that makes them to the last that reads
//! them. What only serves outputs that nobody can look at any more is left out.

use super::host::{Host, Operand, Results, operand_of, run_group_on, run_node_on};
use crate::error::{Error, ErrorKind};
use crate::graph::block::{Block, Kept, Part};
use crate::graph::node::{Node, NodeLink, is_last_reader};
use crate::graph::plan::{PlanStep, Slot, Task};
use crate::graph::program::{Code, Program};
use crate::graph::value::{INLINE_BYTES, Storage, Value};
use std::borrow::Cow;
use std::sync::Arc;

/// Runs a block: the value of its one output, or word that its parts can take theirs.
pub(crate) fn run(node: &Node, block: &Block, inputs: &[NodeLink], host: &Host<'_>) -> Result<Value, Error> {
    let plan = &*block.plan;
    let wanted = block.wanted();
    let mut made: Vec<Option<Result<Value, Error>>> = vec![None; plan.slots - plan.given];
    for step in plan.steps.iter().filter(|step| step.serves & wanted != 0) {
        let results = run_step(block, step, inputs, &made, host);
        for (&slot, result) in step.makes.iter().zip(results) {
            made[slot as usize - plan.given] = Some(result);
        }
        for &slot in step.ends.iter().filter(|&&slot| slot as usize >= plan.given) {
            made[slot as usize - plan.given] = None;
        }
    }
    let mut results: Vec<_> =
        plan.outputs.iter().map(|&slot| made[slot as usize - plan.given].take()).collect();
    if results.len() > 1 {
        block.keep(results.into_iter().map(|r| r.map(|result| Kept { result, doubts: None })).collect());
        return Ok(Value::contiguous(Storage::Inline([0; INLINE_BYTES / 8])));
    }
    results.pop().flatten().unwrap_or_else(|| Err(not_run(node)))
}

/// The result of a part, whose block has run.
pub(crate) fn part(node: &Node, part: &Arc<Part>, inputs: &[NodeLink]) -> Result<Value, Error> {
    if let Some(error) = inputs[0].error() {
        return Err(error.clone());
    }
    part.take().map_or_else(|| Err(not_run(node)), |kept| kept.result)
}

/// Cannot be: what somebody can ask for is computed.
pub(crate) fn not_run(node: &Node) -> Error {
    node.fail(ErrorKind::Kernel, "the region has left this output out")
}

fn run_step(
    block: &Block,
    step: &PlanStep,
    inputs: &[NodeLink],
    made: &[Option<Result<Value, Error>>],
    host: &Host<'_>,
) -> Results {
    let given = block.plan.given;
    let operand = |k: usize| operand(step.reads[k], given, inputs, made);
    // The plan says who reads last inside; a value from outside has to be nobody else's as well.
    let last_reader = |k: usize| {
        let slot = step.reads[k];
        step.ends.contains(&slot) && (slot as usize >= given || is_last_reader(&inputs[slot as usize]))
    };
    match &step.task {
        Task::Group { group, written, end } => {
            let program = program(block, step, &group.program);
            let end = end.as_ref().map(|(n, k)| (&**n, *k));
            let Some((head, at)) = &group.head else {
                return run_group_on(group, program, written, end, operand, last_reader, host);
            };
            let (at, first) = (*at as usize, group.inputs.len());
            let value =
                run_node_on(head, &step.before, |k| operand(first + k), |k| last_reader(first + k), host);
            let of_head = |k: usize| if k == at { value.as_ref().map_err(Some) } else { operand(k) };
            let last_reader = |k: usize| k == at || last_reader(k);
            run_group_on(group, program, written, end, of_head, last_reader, host)
        }
        Task::Node { node, inputs } => {
            Results::from_iter([run_node_on(node, inputs, operand, last_reader, host)])
        }
    }
}

/// What is in a slot.
fn operand<'v>(
    slot: Slot,
    given: usize,
    inputs: &'v [NodeLink],
    made: &'v [Option<Result<Value, Error>>],
) -> Operand<'v> {
    let slot = slot as usize;
    if slot < given {
        return operand_of(&inputs[slot]);
    }
    match &made[slot - given] {
        Some(Ok(value)) => Ok(value),
        Some(Err(error)) => Err(Some(error)),
        None => unreachable!("a step runs after what it reads"),
    }
}

/// A step's program, with the random numbers of this run.
pub(crate) fn program<'a>(block: &Block, step: &PlanStep, program: &'a Program) -> Cow<'a, Program> {
    let mut program = Cow::Borrowed(program);
    for &(instr, draw) in &step.draws {
        let (seed, offset) = block.draws[draw as usize];
        let code = &mut program.to_mut().instrs[instr as usize].code;
        *code = match code {
            Code::Normal { .. } => Code::Normal { seed, offset },
            _ => Code::Uniform { seed, offset },
        };
    }
    program
}
