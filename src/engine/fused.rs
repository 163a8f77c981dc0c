//! Runs a group on any device: finds the operands, takes a buffer over or makes room for a result,
//! and says which members fail with a failed operand.
//!
//! Called with the group of a step, of a region or of a small op. Knows neither the task table nor
//! threads.

use crate::backend::{Backend, End, Fused, Operand, Read, Results};
use crate::dtype::Scalar;
use crate::error::Error;
use crate::graph::fuse::Group;
use crate::graph::node::{Node, Op};
use crate::graph::program::{Arg, Code, Program, Reg};
use crate::graph::value::{Buffer, Storage, Value, owners};
use crate::shape::Shape;
use smallvec::SmallVec;
use std::borrow::Cow;
use std::ops::Deref;
use std::sync::Arc;

/// Runs a group's `program`. `written` names members; `end` is a reduction of one of them, or of
/// the member that it has as its input. `spare` says of an operand that nobody else will read how
/// many owners its buffer then has.
pub(crate) fn group<'v, B: Backend, N: Deref<Target = Node> + Clone>(
    group: &Group<N>,
    mut program: Cow<'_, Program>,
    written: &[u8],
    end: Option<(&Node, u8)>,
    operand: impl Fn(usize) -> Operand<'v>,
    spare: impl Fn(usize) -> Option<usize>,
    backend: &mut B,
) -> Result<Results, B::Stop> {
    let mut results = Results::new();
    let Some((first, _)) = group.members.first() else { return Ok(results) };
    let shape: &Shape = &first.shape;

    // A member that depends on a failed input fails with it; the rest of the step goes on.
    let mut reads: SmallVec<[Read<'_, B::At>; 4]> = SmallVec::new();
    let mut lost: SmallVec<[(u8, Error); 2]> = SmallVec::new();
    let nothing = || (B::nowhere(), SmallVec::from_elem(0, shape.rank()));
    for (k, input) in group.inputs.iter().enumerate() {
        let (at, strides) = match operand(k) {
            Err(error) => {
                lost.push((k as u8, error.clone()));
                nothing()
            }
            Ok(value) => {
                if let Some(number) = backend.number(value, input) {
                    fill(program.to_mut(), k, number);
                    nothing()
                } else {
                    match backend.find(value, input) {
                        Ok(at) => (at, value.broadcast(&input.shape, shape)),
                        Err(trouble) => {
                            lost.push((k as u8, backend.blame(trouble, first)?));
                            nothing()
                        }
                    }
                }
            }
        };
        reads.push(Read { at, dtype: input.dtype, shape, strides, buffer: None });
    }
    let mut errors = Errors::new();
    if !lost.is_empty() {
        taint(program.to_mut(), &lost, &mut errors);
    }
    let error_of = |errors: &Errors, reg: Reg| errors.get(reg as usize).and_then(Option::clone);

    let mut slots: SmallVec<[usize; 2]> = SmallVec::new();
    let mut places: SmallVec<[B::Place; 2]> = SmallVec::new();
    let mut outputs: SmallVec<[Reg; 2]> = SmallVec::new();
    for &member in written {
        let (node, reg) = &group.members[member as usize];
        if let Some(error) = error_of(&errors, *reg) {
            results.push(Err(error));
            continue;
        }
        // Each element is read before it is written: the result is the program's last instruction.
        let alone =
            written.len() == 1 && end.is_none() && *reg as usize + 1 == program.instrs.len();
        let over = |k: usize| {
            let input = &group.inputs[k];
            spare_buffer(operand(k).ok()?, input, node, || spare(k))
        };
        let over = alone.then(|| (0..group.inputs.len()).find_map(over)).flatten();
        let place = match over {
            Some(buffer) => Ok(backend.take_over(buffer, false)),
            None => backend.place(node),
        };
        match place {
            Ok(place) => {
                slots.push(results.len());
                places.push(place);
                outputs.push(*reg);
                // Filled in below, unless the kernel fails.
                results.push(Ok(Value::nothing()));
            }
            Err(trouble) => {
                // No memory: what is made from this one fails with it, though it could be computed.
                let error = backend.blame(trouble, node)?;
                errors.resize(program.instrs.len(), None);
                errors[*reg as usize] = Some(error.clone());
                spread(&program, &mut errors);
                results.push(Err(error));
            }
        }
    }
    let (mut reduced, last) = (None, end.map(|(node, _)| node));
    if let Some((node, member)) = end {
        let reg = group.members[member as usize].1;
        reduced = Some(match error_of(&errors, reg) {
            Some(error) => Err(error),
            None => match backend.place(node) {
                Ok(place) => Ok((node, reg, place)),
                Err(trouble) => Err(backend.blame(trouble, node)?),
            },
        });
    }

    if outputs[..] != program.outputs[..] {
        program.to_mut().outputs = outputs.iter().copied().collect();
    }
    let end =
        reduced.as_mut().and_then(|reduced| reduced.as_mut().ok()).map(|(node, reg, place)| {
            let Op::Reduce(reduction) = &node.op else {
                unreachable!("the end of a group is a reduction")
            };
            End { node, reduction, reg: *reg, place }
        });
    let mut failed = None;
    if end.is_some() || !places.is_empty() && shape.numel() > 0 {
        let fused = Fused { program: &program, shape, reads: &reads, places: &mut places, end };
        if let Err(trouble) = backend.fused(fused) {
            failed = Some(backend.blame(trouble, last.unwrap_or(first))?);
        }
    }
    let value = |place: B::Place| failed.clone().map_or_else(|| Ok(B::value(place)), Err);
    for (slot, place) in slots.into_iter().zip(places) {
        results[slot] = value(place);
    }
    results.extend(reduced.map(|reduced| reduced.and_then(|(.., place)| value(place))));
    Ok(results)
}

/// The buffer of an operand that a node's result may be written over: nobody else reads it, and it
/// lies exactly as the result will.
pub(super) fn spare_buffer<'v>(
    value: &'v Value,
    from: &Node,
    to: &Node,
    spare: impl FnOnce() -> Option<usize>,
) -> Option<&'v Arc<dyn Buffer>> {
    let Storage::Shared(buffer) = &value.storage else { return None };
    let fits =
        from.dtype.size() == to.dtype.size() && from.shape == to.shape && value.placed.is_none();
    (fits && buffer.is_reusable() && spare().is_some_and(|known| owners(buffer) == known))
        .then_some(buffer)
}

/// The error of each instruction; none at all while there is none.
type Errors = SmallVec<[Option<Error>; 4]>;

/// An input that is a number is that number.
fn fill(program: &mut Program, input: usize, number: Scalar) {
    for instr in &mut program.instrs {
        if instr.code == Code::Input(input as u8) {
            instr.code = Code::Fill(number);
        }
    }
}

/// Marks what depends on lost inputs, and makes it read nothing.
fn taint(program: &mut Program, lost: &[(u8, Error)], errors: &mut Errors) {
    for i in 0..program.instrs.len() {
        let error = match program.instrs[i].code {
            Code::Input(k) => lost.iter().find(|l| l.0 == k).map(|l| l.1.clone()),
            code => inherited(code, errors),
        };
        if error.is_some() {
            program.instrs[i].code = Code::Fill(Scalar::Int(0));
        }
        errors.push(error);
    }
}

/// Gives each instruction the error of its operands, if it has none of its own.
fn spread(program: &Program, errors: &mut [Option<Error>]) {
    for i in 0..program.instrs.len() {
        if errors[i].is_none() {
            errors[i] = inherited(program.instrs[i].code, errors);
        }
    }
}

/// The error of an instruction's operands.
fn inherited(code: Code, errors: &[Option<Error>]) -> Option<Error> {
    let of = |arg: Arg| match arg {
        Arg::Reg(reg) => errors[reg as usize].clone(),
        Arg::Scalar(_) => None,
    };
    match code {
        Code::Unary(_, a) | Code::Cast(a) => of(a),
        Code::Binary(_, a, b) => of(a).or_else(|| of(b)),
        Code::Where(c, a, b) => of(c).or_else(|| of(a)).or_else(|| of(b)),
        Code::Input(_) | Code::Fill(_) | Code::Arange { .. } => None,
        Code::Uniform { .. } | Code::Normal { .. } => None,
    }
}
