//! Runs work on any device: a node, a group or a call of a region; and whole steps, on devices
//! whose values are there when the call returns.
//!
//! Called by workers, by small ops and by the thread of a device that runs ahead of its kernels.
//! Says which op reads a value last. Knows neither the task table nor threads.

use super::fused::{group, spare_buffer};
use super::port::Port;
use super::step::Step;
use crate::backend::{Backend, Immediate, OpRun, Operand, Read, Results};
use crate::error::Error;
use crate::graph::call::{Call, Kept, Part, Progress};
use crate::graph::fuse::Group;
use crate::graph::node::{Node, NodeLink, Op, free, is_read_by};
use crate::graph::plan::PlanStep;
use crate::graph::program::Program;
use crate::graph::value::{Storage, Value, owners};
use crate::graph::work::Work;
use crate::sync::clock::Instant;
use crate::sync::plain::{OnceLock, Ordering::Relaxed};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::ops::Deref;
use std::sync::Arc;

/// Runs work. Its operands are those of the group, then those of the head or of the one node,
/// `inputs` of which say what they are and no more. `program` is what is to be run in place of the
/// group's; for `spare` see [`group`]. Compiled once a device.
pub(crate) fn work<'v, B: Backend>(
    work: &Work,
    inputs: &[NodeLink],
    operand: &dyn Fn(usize) -> Operand<'v>,
    spare: &dyn Fn(usize) -> Option<usize>,
    program: &dyn Fn(&Program) -> Cow<'_, Program>,
    backend: &mut B,
) -> Result<Results, B::Stop> {
    let (fused, written, end) = match work {
        Work::Group { group, written, end } => {
            (group, written, end.as_ref().map(|(n, k)| (&**n, *k)))
        }
        Work::Node(it) => {
            return Ok(Results::from_iter([node(it, inputs, operand, spare, backend)?]));
        }
    };
    let program = program(&fused.program);
    let Some((head, at)) = &fused.head else {
        return group(fused, program, written, end, operand, spare, backend);
    };
    let (at, first) = (*at as usize, fused.inputs.len());
    let of_head: &dyn Fn(usize) -> Operand<'v> = &|k| operand(first + k);
    let spare_head: &dyn Fn(usize) -> Option<usize> = &|k| spare(first + k);
    let value = node(head, inputs, of_head, spare_head, backend)?;
    let operand: &dyn Fn(usize) -> _ = &|k| if k == at { value.as_ref() } else { operand(k) };
    let spare: &dyn Fn(usize) -> Option<usize> = &|k| if k == at { Some(1) } else { spare(k) };
    group(fused, program, written, end, operand, spare, backend)
}

/// Runs an op that is not elementwise. The inputs say what they are and no more.
fn node<'v, B: Backend>(
    node: &Node,
    inputs: &[NodeLink],
    operand: impl Fn(usize) -> Operand<'v>,
    spare: impl Fn(usize) -> Option<usize>,
    backend: &mut B,
) -> Result<Result<Value, Error>, B::Stop> {
    if let Some(error) = (0..inputs.len()).find_map(|i| operand(i).err()) {
        return Ok(node.instead(inputs.len(), operand).ok_or_else(|| error.clone()));
    }
    let value =
        |i: usize| operand(i).unwrap_or_else(|_| unreachable!("a failed operand was sorted out"));
    match compute(node, inputs, value, spare, backend) {
        Ok(value) => Ok(Ok(value)),
        Err(trouble) => backend.blame(trouble, node).map(Err),
    }
}

/// The value of an op for which no kernel runs, on any device: a constant, a predicated value,
/// another look at the same elements. (A reshape that mixes dimensions needs a copy, and is an op
/// like others.)
pub(crate) fn without_kernel<'v>(
    node: &Node,
    inputs: &[NodeLink],
    value: impl Fn(usize) -> &'v Value,
) -> Option<Value> {
    match &node.op {
        Op::Fill(number) => Some(node.constant(*number)),
        Op::Predicated(_) => Some(value(0).clone()),
        Op::View(op) => {
            let layout = op.apply(&value(0).layout(&inputs[0].shape), &node.shape)?;
            Some(Value::placed(value(0).storage.clone(), &layout))
        }
        Op::Unary(_) | Op::Binary(_) | Op::WithScalar { .. } | Op::Where | Op::Cast => None,
        Op::Arange { .. } | Op::Random { .. } | Op::Reduce(_) | Op::Custom(_) => None,
        Op::Source(_) | Op::Sink(_) | Op::Call(_) | Op::Part(_) | Op::Marker | Op::Given => None,
    }
}

fn compute<'v, B: Backend>(
    node: &Node,
    inputs: &[NodeLink],
    value: impl Fn(usize) -> &'v Value,
    spare: impl Fn(usize) -> Option<usize>,
    backend: &mut B,
) -> Result<Value, B::Trouble> {
    if let Some(value) = without_kernel(node, inputs, &value) {
        return Ok(value);
    }
    if let Op::Sink(sink) = &node.op {
        return backend.give(&**sink, node, value(0), &inputs[0]).map(|()| Value::nothing());
    }
    let mut reads: SmallVec<[Read<'_, B::At>; 4]> = SmallVec::new();
    for (i, input) in inputs.iter().enumerate() {
        let (at, strides) = (backend.find(value(i), input)?, value(i).strides(&input.shape));
        reads.push(Read {
            at,
            dtype: input.dtype,
            shape: &input.shape,
            strides,
            buffer: value(i).buffer(),
        });
    }
    let over = node.op.reuses().filter(|&i| inputs[i].dtype == node.dtype).and_then(|i| {
        let buffer = spare_buffer(value(i), &inputs[i], node, || spare(i))?;
        // Inside a region one value may be read twice by its last reader.
        let lies_here =
            |k: usize| matches!(&value(k).storage, Storage::Shared(b) if Arc::ptr_eq(b, buffer));
        (0..inputs.len()).all(|k| k == i || !lies_here(k)).then_some(buffer)
    });
    let in_place = over.is_some();
    let mut place = match over {
        Some(buffer) => backend.take_over(buffer, true),
        None => backend.place(node)?,
    };
    backend.op(OpRun { node, reads: &reads, place: &mut place, in_place })?;
    Ok(B::value(place))
}

/// Runs a step of a call. `given` are the call's own operands, and `spare` says what is known of
/// them.
pub(crate) fn step_of_call<'v, B: Backend>(
    call: &Call,
    step: &PlanStep,
    progress: &'v Progress<B::Kept>,
    given: impl Fn(usize) -> Operand<'v>,
    spare: impl Fn(usize) -> Option<usize>,
    backend: &mut B,
) -> Result<Results, B::Stop>
where
    B::Kept: 'v,
{
    let operand = |k: usize| progress.value(step.reads[k], call).map_or_else(&given, B::kept);
    // The plan says which step reads a value last; a value from outside also has to have no other
    // owner.
    // An operand of both the head and its group is read once more when the head has run.
    let spare = |k: usize| {
        let slot = step.reads[k];
        let once = || step.reads.iter().filter(|&&other| other == slot).count() == 1;
        let last = step.wavefront == 0 && step.ends.contains(&slot) && once();
        let inside =
            |made: &'v B::Kept| owners_inside(B::kept(made).ok()?, call, step, &given, &spare);
        last.then(|| progress.value(slot, call).map_or_else(&spare, inside)).flatten()
    };
    work(
        &step.work,
        &step.inputs,
        &operand,
        &spare,
        &|program| call.program(step, program),
        backend,
    )
}

/// How many owners the buffer of a value has that was made inside a call, where nobody else reads
/// it. Operands of the call may be among them, which the value is a view of, or was written over:
/// these have to be the call's own, with nothing in it that still reads them.
fn owners_inside<'v>(
    value: &Value,
    call: &Call,
    step: &PlanStep,
    given: impl Fn(usize) -> Operand<'v>,
    spare: impl Fn(usize) -> Option<usize>,
) -> Option<usize> {
    let Storage::Shared(buffer) = &value.storage else { return None };
    if owners(buffer) == 1 {
        return Some(1);
    }
    let shares = |&k: &usize| match given(k) {
        Ok(Value { storage: Storage::Shared(other), .. }) => Arc::ptr_eq(other, buffer),
        _ => false,
    };
    let to_come = |k: usize| call.plan.read_until[k] > step.number;
    (0..call.plan.inputs)
        .filter(shares)
        .try_fold(1, |sum, k| if to_come(k) { None } else { Some(sum + spare(k)?) })
}

/// A node's value as an operand of a step.
fn operand_of(node: &Node) -> Operand<'_> {
    match node.completion.get() {
        Some(result) => result.as_ref(),
        None => unreachable!("the operands of a step are complete"),
    }
}

/// Runs any node that is not elementwise, on inputs that are complete.
pub(crate) fn run_node(
    node: &Node,
    inputs: &[NodeLink],
    mut backend: impl Immediate,
) -> Result<Value, Error> {
    match (Call::of(&node.op), Part::of(&node.op)) {
        (Some(call), _) => run_call(node, call, inputs, backend),
        (_, Some(part)) => part.result(node, &inputs[0]).result,
        _ => {
            let spare = |i: usize| is_read_by(&inputs[i], 1).then_some(1);
            let Ok(result) =
                self::node(node, inputs, |i| operand_of(&inputs[i]), spare, &mut backend);
            result
        }
    }
}

/// Runs a group of nodes whose inputs are complete, and of which others may read what this does.
pub(crate) fn run_group<N: Deref<Target = Node> + Clone>(
    fused: &Group<N>,
    written: &[u8],
    mut backend: impl Immediate,
) -> Results {
    let program = Cow::Borrowed(&fused.program);
    let operand = |k: usize| operand_of(&fused.inputs[k]);
    let Ok(results) = group(fused, program, written, None, operand, |_| None, &mut backend);
    results
}

/// Runs a call: the value of its one output, or word that its parts can take theirs. Its steps run
/// one after the other, with nothing planned on the way, and each has all threads to itself; but
/// for those that are planned side by side.
fn run_call(
    node: &Node,
    call: &Call,
    inputs: &[NodeLink],
    mut backend: impl Immediate,
) -> Result<Value, Error> {
    let mut progress: Progress<Result<Value, Error>> = Progress::new(call);
    let spare = |k: usize| is_read_by(&inputs[k], 1).then_some(1);
    loop {
        let steps = progress.wavefront(call);
        let run = |step: &PlanStep, backend: &mut _| {
            let Ok(results) =
                step_of_call(call, step, &progress, |k| operand_of(&inputs[k]), spare, backend);
            results
        };
        match steps[..] {
            [] => break,
            [step] => {
                let results = run(step, &mut backend);
                progress.stepped(call, step, results);
            }
            _ => {
                let made: SmallVec<[OnceLock<Results>; 8]> =
                    steps.iter().map(|_| OnceLock::new()).collect();
                backend.side_by_side(steps.len(), &|i, mut backend| {
                    made[i].get_or_init(|| run(steps[i], &mut backend));
                });
                for (step, made) in steps.iter().zip(made) {
                    progress.stepped(call, step, made.into_inner().into_iter().flatten());
                }
            }
        }
    }
    let keep = |result: Result<Value, Error>| Kept { result, checks: None };
    call.settle(node, progress.outputs(call).into_iter().map(|made| made.map(keep)).collect())
        .result
}

/// Runs a step and completes its nodes. The engine's task table hears of it separately.
pub(crate) fn run(step: &mut Step, port: &Port, backend: impl Immediate) {
    let (results, began) = compute_step(step, port, backend);
    publish(step, results, port, began);
}

/// Runs a step: its results, for [`publish`], and the time at which it began, during a recording.
pub(crate) fn compute_step(
    step: &Step,
    port: &Port,
    mut backend: impl Immediate,
) -> (Results, Option<Instant>) {
    let _running = super::events::running(&port.profile.name, step);
    let began = port.recordings.now();
    let inputs = step.inputs();
    let results = match step.work() {
        Work::Node(node) => Results::from_iter([run_node(node, inputs, backend)]),
        fused => {
            let operand = |k: usize| operand_of(fused.operand(inputs, k).0);
            let spare = |k: usize| {
                let (input, held) = fused.operand(inputs, k);
                is_read_by(input, held).then_some(1)
            };
            let Ok(results) =
                work(fused, inputs, &operand, &spare, &|p| Cow::Borrowed(p), &mut backend);
            results
        }
    };
    (results, began)
}

/// Completes a step's nodes with their results, and lets go of what they were made from.
/// `began` is the time at which it began, during a recording.
pub(crate) fn publish(step: &mut Step, results: Results, port: &Port, began: Option<Instant>) {
    if port.recordings.is_on() {
        port.recordings.step(step, began);
    }
    port.counters.closing.fetch_add(step.entries.len(), Relaxed);
    let mut results = results.into_iter();
    free(port.conclude_step(
        step,
        |step, k, _| if step.work().writes(k) { results.next() } else { None },
    ));
}
