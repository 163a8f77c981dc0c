//! The walk back over the tape: from the loss to what gradients are asked for, each op once.
//!
//! Entries are numbered as they are made, so results come before operands when they are walked in
//! falling order. Values that rules ask for are computed again where they were not kept, each once
//! a walk, and let go as soon as the walk has passed the op that made them.

use super::backward::Backward;
use super::pieces::{Piece, joined, sum_of};
use super::table;
use super::taped::with_taping;
use crate::dtype::DType;
use crate::engine::port::Port;
use crate::error::{Error, ErrorKind};
use crate::graph::node::Op;
use crate::graph::operation::{Meta, Needs};
use crate::graph::tape::{Constant, Entry, Given, Made, Operand, Origin, TapeLink};
use crate::tensor::build::{self, finite, mixed};
use crate::tensor::device::Device;
use crate::tensor::future::TensorFuture;
use smallvec::SmallVec;
use std::collections::HashMap;

/// How to walk.
#[derive(Clone, Copy)]
pub(super) struct Mode {
    /// Leave the tape as it is.
    pub retain: bool,
    /// Put what is made on the tape.
    pub graph: bool,
    /// Go no further than what is asked for: what comes before is somebody else's to walk.
    pub stop: bool,
}

/// What was found for a value.
pub(super) enum Found {
    Gradient(TensorFuture),
    /// The loss depends on it, through ops whose gradient is zero.
    Zero,
    /// The loss does not depend on it.
    Nothing,
}

/// An entry on the way.
struct Place {
    entry: Option<TapeLink>,
    inputs: SmallVec<[Option<usize>; 2]>,
    /// It leads to what is asked for.
    leads: bool,
    asked: bool,
    /// What came so far. Of halves it may be in float32, until the walk comes here.
    gradient: Option<TensorFuture>,
    /// What came so far for slices of it.
    pieces: Vec<Piece>,
}

struct Walk {
    places: Vec<Place>,
    index: HashMap<usize, usize>,
    /// Values that were kept or computed again, by entry.
    values: HashMap<usize, TensorFuture>,
    mode: Mode,
}

fn port_of(entry: &Entry) -> &'static Port {
    match entry.home.as_any().downcast_ref::<Port>() {
        Some(port) => port,
        None => unreachable!("every entry belongs to a port"),
    }
}

/// The gradients of `root` with respect to `asked`. Its `value`, where somebody holds it anyway, is
/// not computed again. The engine sees all that the rules ask for together: else a worker that is
/// awake would take up the first part of one, and write it out for the rest.
///
/// Errors stay with what they belong to: a rule that refuses makes the gradients behind it failed
/// values.
pub(super) fn walk(
    root: Option<TapeLink>,
    value: Option<&TensorFuture>,
    upstream: TensorFuture,
    asked: &[Option<TapeLink>],
    mode: Mode,
) -> Vec<Found> {
    let mut walk = Walk { places: Vec::new(), index: HashMap::new(), values: HashMap::new(), mode };
    let wanted: Vec<usize> = asked.iter().flatten().map(|link| link.address()).collect();
    let first = asked.iter().flatten().map(|link| link.serial).min();
    let _together = build::together();
    if let (Some(root), Some(first)) = (root, first) {
        if let Some(value) = value {
            walk.values.insert(root.address(), TensorFuture::new(value.node.clone()));
        }
        walk.survey(root, first, &wanted);
        if let Some(root) = walk.places.last_mut() {
            root.gradient = Some(upstream);
        }
        for k in (0..walk.places.len()).rev() {
            with_taping(mode.graph, || walk.step(k));
        }
    }
    asked
        .iter()
        .map(|link| match link.as_ref().and_then(|link| walk.index.get(&link.address())) {
            None => Found::Nothing,
            Some(&k) => walk.places[k].gradient.clone().map_or(Found::Zero, Found::Gradient),
        })
        .collect()
}

impl Walk {
    /// Finds the entries between the root, which comes last, and what is asked for.
    fn survey(&mut self, root: TapeLink, first: u64, wanted: &[usize]) {
        let mut found: Vec<(TapeLink, SmallVec<[Option<TapeLink>; 2]>)> = Vec::new();
        let mut seen: HashMap<usize, ()> = HashMap::new();
        let mut stack = vec![root];
        while let Some(entry) = stack.pop() {
            if entry.serial < first || seen.insert(entry.address(), ()).is_some() {
                continue;
            }
            let stop = self.mode.stop && wanted.contains(&entry.address());
            let sources = if stop { SmallVec::new() } else { entry.sources() };
            stack.extend(sources.iter().flatten().cloned());
            found.push((entry, sources));
        }
        found.sort_unstable_by_key(|(entry, _)| entry.serial);
        for (entry, sources) in found {
            let asked = wanted.contains(&entry.address());
            let inputs: SmallVec<[Option<usize>; 2]> = sources
                .iter()
                .map(|source| source.as_ref().and_then(|s| self.index.get(&s.address()).copied()))
                .collect();
            let leads = asked || inputs.iter().flatten().any(|&i| self.places[i].leads);
            self.index.insert(entry.address(), self.places.len());
            let (gradient, pieces) = (None, Vec::new());
            self.places.push(Place { entry: Some(entry), inputs, leads, asked, gradient, pieces });
        }
    }

    /// Sends the gradient of an entry on to its operands.
    fn step(&mut self, k: usize) {
        let Some(entry) = self.places[k].entry.take() else { return };
        let _rule = finite::rule(port_of(&entry), entry.made.name());
        // Gradients flow in the types of the values that they belong to.
        let _as_they_are = mixed::within(None);
        let pieces = std::mem::take(&mut self.places[k].pieces);
        if let Some(at) = pieces.first().map(|piece| piece.at)
            && let Some(whole) = build::called_from(at, || joined(pieces, &entry.meta.shape))
        {
            self.add(Some(k), whole);
        }
        let place = &mut self.places[k];
        place.gradient = place.gradient.take().map(|sum| match sum.dtype() == entry.meta.dtype {
            true => sum,
            false => build::called_from(entry.at, || sum.to_dtype(entry.meta.dtype)),
        });
        let gradient = if place.asked { place.gradient.clone() } else { place.gradient.take() };
        let inputs = std::mem::take(&mut place.inputs);
        let wanted: SmallVec<[bool; 2]> =
            inputs.iter().map(|i| i.is_some_and(|i| self.places[i].leads)).collect();
        if let Some(gradient) = gradient
            && wanted.contains(&true)
        {
            let (operands, spent) = entry.operands();
            let piece =
                || build::called_from(entry.at, || Piece::of(&entry.made, &gradient, entry.at));
            let gradients = if spent {
                Err(spent_error(&entry))
            } else if let (Some(to), Some(piece)) = (inputs[0], piece()) {
                self.places[to].pieces.push(piece);
                Ok(SmallVec::new())
            } else {
                self.rule(&entry, &operands, wanted.clone(), gradient)
            };
            match gradients {
                Ok(gradients) => {
                    for (i, gradient) in gradients {
                        self.add(inputs[i], gradient);
                    }
                }
                Err(error) => {
                    for (i, operand) in operands.iter().enumerate().filter(|(i, _)| wanted[*i]) {
                        let port = operand.entry.as_ref().map_or(port_of(&entry), |e| port_of(e));
                        self.add(
                            inputs[i],
                            build::failed(port, operand.meta.clone(), error.clone(), entry.at),
                        );
                    }
                }
            }
            if !self.mode.retain {
                entry.spend();
            }
        }
        // Whoever asks for this value has been passed.
        self.values.remove(&entry.address());
    }

    fn add(&mut self, to: Option<usize>, gradient: TensorFuture) {
        let Some(place) = to.map(|i| &mut self.places[i]) else { return };
        place.gradient = Some(match place.gradient.take() {
            None => gradient,
            Some(sum) => sum_of(sum, &gradient),
        });
    }

    /// The gradients of an entry's operands.
    fn rule(
        &mut self,
        entry: &TapeLink,
        operands: &[Operand],
        wanted: SmallVec<[bool; 2]>,
        upstream: TensorFuture,
    ) -> Result<SmallVec<[(usize, TensorFuture); 2]>, Error> {
        let needs = entry.needs();
        // A rule computes in float32 between halves and halves: see the head of `table`.
        let widens = !needs.are_as_they_are();
        let seen = |x: TensorFuture| match widens && x.dtype().is_half() {
            true => build::called_from(entry.at, || x.wide()),
            false => x,
        };
        let mut inputs: SmallVec<[Option<TensorFuture>; 2]> = SmallVec::new();
        for (i, operand) in operands.iter().enumerate() {
            inputs.push(match needs.has_input(i) {
                true => Some(seen(self.operand(entry, operand)?)),
                false => None,
            });
        }
        let output = match &entry.made {
            _ if needs.has_output() => Some(seen(self.value(entry)?)),
            Made::Op(op) if needs.has_output_again() => {
                let operands: SmallVec<[&TensorFuture; 3]> = inputs.iter().flatten().collect();
                Some(again(
                    &table::in_float32(op, entry.meta.dtype),
                    &operands,
                    entry.meta.dtype.wide(),
                    entry,
                ))
            }
            _ => None,
        };
        let mut call = Backward {
            inputs,
            metas: operands.iter().map(|o| &o.meta).collect(),
            wanted,
            turned: operands
                .iter()
                .map(|o| o.entry.as_ref().is_some_and(|e| e.made.turns()))
                .collect(),
            output,
            output_meta: &entry.meta,
            upstream: seen(upstream.clone()),
            passed: upstream,
            graph: self.mode.graph,
            given: SmallVec::new(),
        };
        let back =
            operands.first().and_then(|o| o.entry.as_ref()).map_or(port_of(entry), |e| port_of(e));
        // What a rule of this crate asks for is on behalf of whoever asked for the op.
        match build::called_from(entry.at, || {
            table::apply(&entry.made, &mut call, &Device::of(back))
        }) {
            Ok(()) => {
                let given = call.given.into_iter();
                Ok(given
                    .map(|(i, gradient)| (i, of_operand(entry, &operands[i].meta, gradient)))
                    .collect())
            }
            Err(refusal) => {
                Err(Error::new(refusal.kind, entry.made.name(), refusal.message, entry.at))
            }
        }
    }

    /// The value of an operand; where gradients are recorded, with its place on the tape.
    fn operand(&mut self, of: &TapeLink, operand: &Operand) -> Result<TensorFuture, Error> {
        match (&operand.entry, &operand.constant) {
            (Some(entry), _) => self.value(entry),
            (None, Some(constant)) => Ok(made_constant(constant, &operand.meta, of)),
            (None, None) => Err(spent_error(of)),
        }
    }

    fn value(&mut self, entry: &TapeLink) -> Result<TensorFuture, Error> {
        let value = self.plain_value(entry)?;
        if !self.mode.graph {
            return Ok(value);
        }
        let node = value.node.clone();
        let given =
            Given { node: Some(&node), meta: entry.meta.clone(), entry: Some(entry.clone()) };
        let tape = Entry::record(Made::Same, std::iter::once(given), &node, Needs::NOTHING);
        Ok(TensorFuture::taped(node, tape))
    }

    /// The value off the tape: kept, or computed again, and what it is made from before it.
    fn plain_value(&mut self, entry: &TapeLink) -> Result<TensorFuture, Error> {
        let mut stack: Vec<TapeLink> = vec![entry.clone()];
        while let Some(next) = stack.last().cloned() {
            let address = next.address();
            if self.values.contains_key(&address) {
                stack.pop();
                continue;
            }
            let value = match next.origin() {
                Origin::Kept(node) => TensorFuture::new(node),
                Origin::Gone => return Err(spent_error(&next)),
                Origin::Again(operands) => {
                    let missing = |o: &Operand| {
                        o.entry.clone().filter(|entry| !self.values.contains_key(&entry.address()))
                    };
                    let open: Vec<TapeLink> = operands.iter().filter_map(missing).collect();
                    if !open.is_empty() {
                        stack.extend(open);
                        continue;
                    }
                    let mut values: SmallVec<[TensorFuture; 3]> = SmallVec::new();
                    for operand in &operands {
                        values.push(match (&operand.entry, &operand.constant) {
                            (Some(entry), _) => self.values[&entry.address()].clone(),
                            (None, Some(constant)) => made_constant(constant, &operand.meta, &next),
                            (None, None) => return Err(spent_error(&next)),
                        });
                    }
                    with_taping(false, || match &next.made {
                        Made::Op(op) => again(
                            op,
                            &values.iter().collect::<SmallVec<[_; 3]>>(),
                            next.meta.dtype,
                            &next,
                        ),
                        _ => values[0].clone(),
                    })
                }
            };
            self.values.insert(address, value);
            stack.pop();
        }
        Ok(self.values[&entry.address()].clone())
    }
}

/// An op once more, of the same operands or of these in a wider type.
fn again(op: &Op, operands: &[&TensorFuture], dtype: DType, entry: &Entry) -> TensorFuture {
    let meta = Meta { shape: entry.meta.shape.clone(), dtype };
    build::apply(op.clone(), operands, || Ok(meta), entry.at)
}

fn made_constant(constant: &Constant, meta: &Meta, of: &Entry) -> TensorFuture {
    match constant {
        Constant::Kept(node) => TensorFuture::new(node.clone()),
        Constant::Again(op) => {
            build::create(port_of(of), op.clone(), meta.shape.clone(), meta.dtype, of.at)
        }
    }
}

/// What a rule has given for an operand: a failed gradient of its shape where it has another one,
/// which the rules of other ops must never see.
fn of_operand(entry: &Entry, meta: &Meta, given: TensorFuture) -> TensorFuture {
    if given.shape() == &meta.shape {
        return given;
    }
    let own = || {
        let text =
            format!("its rule gives a gradient of shape {} to {}", given.shape(), meta.shape);
        Error::new(ErrorKind::Shape, entry.made.name(), text, entry.at)
    };
    let error = given.node.error().cloned().unwrap_or_else(own);
    build::failed(given.port(), meta.clone(), error, entry.at)
}

fn spent_error(entry: &Entry) -> Error {
    let text = "a gradient has gone through this op already, and the tape was used up: \
        `grad_with` can retain it";
    Error::new(ErrorKind::Argument, entry.made.name(), text, entry.at)
}
