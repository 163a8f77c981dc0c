//! From a call to a graph: it is run into a transcript, and what is on that is sorted: places in
//! one block of memory, addresses that change from run to run, draws.
//!
//! Called by `replay` on the device's thread. Makes nothing of the driver's.

use super::executable::{Child, Kernel};
use super::launch_list::{self, Item, Kind, Life, Played, Spot, Transcript, spoken_of};
use super::region_call::{GivenOperand, UnderWay};
use super::replay::{Graph, Input, Output, Part, Source, Verdict, Where};
use crate::cuda::device::Trouble;
use crate::cuda::device::context::Gear;
use crate::cuda::device::index_check::{Doubt, Doubts, Known};
use crate::cuda::device::step::Operand;
use crate::graph::call::Call;
use crate::graph::value::{Storage, Value};
use smallvec::SmallVec;
use std::panic::Location;
use std::sync::Arc;

/// What stands for the seed and the position of a draw while a call is noted: a word that nothing
/// else is made of.
const SEED: u64 = 0x5e3d_0f00_a5c3_9671;
const POSITION: u64 = 0xa11c_e5ed_1bad_d1ce;

fn draws(n: usize) -> impl Iterator<Item = (u64, u64)> {
    (0..n as u64).map(|k| (SEED.wrapping_add(k << 20), POSITION.wrapping_sub(k << 20)))
}

impl Gear {
    /// Runs a call into a transcript, and makes a graph of what is on it.
    pub(crate) fn note(
        &mut self,
        lane: usize,
        call: &Call,
        given: &[GivenOperand],
        spare: &[bool],
        wanted: u64,
    ) -> Result<Verdict, Trouble> {
        let transcript = Arc::new(Transcript::default());
        let mut stand_ins: Vec<Arc<Doubt>> = Vec::new();
        let mut operands: Vec<GivenOperand> = Vec::new();
        for (k, operand) in given.iter().enumerate() {
            let Ok(value) = &operand.operand.value else { return Ok(Verdict::NotYet) };
            let storage = match &value.storage {
                Storage::Inline(words) => Storage::Inline(*words),
                Storage::Shared(buffer) => Storage::Shared(transcript.given(k, buffer.bytes())),
            };
            let value = Ok(Value { storage, placed: value.placed.clone() });
            let stand_in = Doubt::stand_in("", Location::caller());
            stand_ins.push(stand_in.clone());
            let operand = Operand { value, spare: spare[k].then_some(1) };
            operands.push(GivenOperand { operand, doubts: Doubts::from_iter([stand_in]) });
        }
        let call = call.again(draws(call.draws.len()).collect(), wanted);
        self.launcher.modules.unsettled = false;
        self.transcript = Some(transcript.clone());
        let noted = self.note_steps(lane, &call, &operands);
        self.transcript = None;
        drop(operands);
        let results = match noted {
            Ok(results) => results,
            Err(Trouble::Later(_) | Trouble::OutOfMemory { .. }) => return Ok(Verdict::NotYet),
            Err(Trouble::Refused(_)) => return Ok(Verdict::Never),
            Err(fault) => return Err(fault),
        };
        if self.launcher.modules.unsettled {
            return Ok(Verdict::NotYet);
        }
        // Values know their bases while the transcript is read.
        let Ok(played) = transcript.take() else { return Ok(Verdict::Never) };
        let made = self.graph(played, results, &stand_ins, given, spare, &call);
        Ok(made.map_or(Verdict::Never, |graph| Verdict::Graph(Box::new(graph))))
    }

    /// The steps of a call.
    fn note_steps(
        &mut self,
        lane: usize,
        call: &Call,
        given: &[GivenOperand],
    ) -> Result<Vec<Option<Known>>, Trouble> {
        let mut under_way = UnderWay::new(call);
        while let Some(step) = under_way.progress.step(call) {
            self.call_step(lane, call, step, given, &mut under_way, false)?;
        }
        Ok(under_way.progress.outputs(call))
    }

    /// A graph of what is into a transcript; `None` where it cannot be one, or not usefully.
    fn graph(
        &mut self,
        played: Played,
        results: Vec<Option<Known>>,
        stand_ins: &[Arc<Doubt>],
        given: &[GivenOperand],
        spare: &[bool],
        call: &Call,
    ) -> Option<Graph> {
        let Played { bases, items, constants, doubts, taken, copied } = played;
        if items.len() < 2 {
            return None;
        }
        // Outputs: what they are made of, and which bases they are.
        let mut outputs: Vec<(launch_list::Base, usize)> = Vec::new();
        let mut sources: Vec<Option<Output>> = Vec::new();
        for known in &results {
            let Some(known) = known else {
                sources.push(None);
                continue;
            };
            let value = known.result.as_ref().ok()?;
            let source = match &value.storage {
                Storage::Inline(_) => Source::Constant(value.clone()),
                Storage::Shared(buffer) => {
                    let base = spoken_of(&**buffer)?.base;
                    match bases.get(base)?.0 {
                        Kind::Given(k) => Source::Given(k, value.placed.clone()),
                        Kind::Kept => return None,
                        Kind::Own => {
                            let at =
                                outputs.iter().position(|o| o.0 == base).unwrap_or_else(|| {
                                    outputs.push((base, buffer.bytes()));
                                    outputs.len() - 1
                                });
                            Source::Output(at, value.placed.clone())
                        }
                    }
                }
            };
            let index = |list: &[Arc<Doubt>], doubt: &Arc<Doubt>| {
                list.iter().position(|d| Arc::ptr_eq(d, doubt))
            };
            let own: Vec<Arc<Doubt>> = doubts.iter().map(|d| d.0.clone()).collect();
            sources.push(Some(Output {
                source,
                doubts_of: known.doubts.iter().filter_map(|d| index(stand_ins, d)).collect(),
                records: known.doubts.iter().filter_map(|d| index(&own, d)).collect(),
            }));
        }

        // One block of memory for the rest.
        let is_output = |base: launch_list::Base| outputs.iter().position(|o| o.0 == base);
        let inside: Vec<launch_list::Base> = (0..bases.len())
            .filter(|&b| !matches!(bases[b].0, Kind::Given(..)) && is_output(b).is_none())
            .collect();
        let lives: Vec<Life> = inside.iter().map(|&b| bases[b].1).collect();
        let (starts, arena) = launch_list::pack(&lives);
        let mut places: Vec<Where> = Vec::with_capacity(bases.len());
        for (base, (kind, _)) in bases.iter().enumerate() {
            places.push(match (kind, is_output(base), inside.binary_search(&base)) {
                (Kind::Given(k), ..) => Where::Given(*k),
                (_, Some(j), _) => Where::Output(j),
                (_, None, Ok(at)) => Where::Arena(starts[at] as u64),
                _ => return None,
            });
        }
        let arena_of = |base: launch_list::Base| match places.get(base) {
            Some(Where::Arena(at)) => Some(*at),
            _ => None,
        };

        // Where draws stand, and which inputs are looked at.
        let wanted_draws: Vec<usize> = {
            let steps = call.plan.steps.iter().filter(|step| step.serves & call.wanted() != 0);
            steps.flat_map(|step| step.draws.iter().map(|d| d.1 as usize)).collect()
        };
        let stand_in_draws: Vec<(u64, u64)> = draws(call.draws.len()).collect();
        let mut drawn = vec![false; call.draws.len()];
        let mut used = vec![false; given.len()];
        let mut parts: Vec<Part> = Vec::with_capacity(items.len());
        for item in items {
            let mut is_there = |spot: &Spot| {
                if let Some(Where::Given(k)) = places.get(spot.base) {
                    used[*k] = true;
                }
                spot.base < places.len()
            };
            parts.push(match item {
                Item::Launch(noted) => {
                    if !noted.addresses.iter().all(|(_, spot)| is_there(spot)) {
                        return None;
                    }
                    let mut found = SmallVec::new();
                    for (at, pair) in noted.words.windows(2).enumerate() {
                        if let Some(k) = stand_in_draws.iter().position(|d| pair == [d.0, d.1]) {
                            drawn[k] = true;
                            found.push((at, k));
                        }
                    }
                    Part::Kernel(Kernel::new(noted, found))
                }
                Item::Library(called) => {
                    if !called.at().iter().all(is_there) {
                        return None;
                    }
                    Part::Library(Child::new(called))
                }
            });
        }
        if !wanted_draws.iter().all(|&k| drawn[k]) {
            return None;
        }
        let mut inputs = Vec::with_capacity(given.len());
        for (k, operand) in given.iter().enumerate() {
            let value = operand.operand.value.as_ref().ok()?;
            inputs.push(Input {
                words: if let Storage::Inline(words) = &value.storage {
                    Some(*words)
                } else {
                    None
                },
                placed: value.placed.clone(),
                used: used[k],
                spare: spare[k],
                taken: taken.contains(&k),
            });
        }
        let records: Option<Vec<(Arc<Doubt>, u64)>> =
            doubts.into_iter().map(|(doubt, base)| Some((doubt, arena_of(base)?))).collect();
        let constants: Option<Vec<_>> =
            constants.into_iter().map(|(base, words)| Some((words, arena_of(base)?))).collect();
        Some(Graph {
            inputs,
            wanted: call.wanted(),
            parts,
            outputs: outputs.iter().map(|o| o.1).collect(),
            results: sources,
            records: records?,
            constants: constants?,
            arena,
            copied,
            places,
            made: None,
        })
    }
}
