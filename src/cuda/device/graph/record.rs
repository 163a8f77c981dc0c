//! From a call to a graph: the call runs into a launch list, and the list is sorted into places in
//! one block of memory, addresses that change from run to run, and draws.
//!
//! `replay` calls it on the device's thread. It makes nothing of the driver's.

use super::executable::{ChildNode, KernelNode};
use super::launch_list::{
    self, Base, BaseOffset, Item, Kind, LaunchList, LiveRange, Recorded, Recording, as_placeholder,
};
use super::region_call::{GivenOperand, UnderWay};
use super::region_graph::{Graph, GraphNode, Input, Output, OutputSource, Placement};
use super::replay::Outcome;
use crate::cuda::device::Trouble;
use crate::cuda::device::context::DeviceContext;
use crate::cuda::device::index_check::{IndexCheck, IndexChecks, Known};
use crate::cuda::device::step::Operand;
use crate::graph::call::Call;
use crate::graph::value::{Storage, Value};
use smallvec::SmallVec;
use std::sync::Arc;

/// Words that stand for the seed and the position of a draw while a call is recorded: nothing else
/// has them.
const SEED: u64 = 0x5e3d_0f00_a5c3_9671;
const POSITION: u64 = 0xa11c_e5ed_1bad_d1ce;

fn draws(n: usize) -> impl Iterator<Item = (u64, u64)> {
    (0..n as u64).map(|k| (SEED.wrapping_add(k << 20), POSITION.wrapping_sub(k << 20)))
}

impl DeviceContext {
    /// Records a call into a launch list, and makes a graph of it.
    pub(crate) fn record(
        &mut self,
        lane: usize,
        call: &Call,
        given: &[GivenOperand],
        spare: &[bool],
        wanted: u64,
    ) -> Result<Outcome, Trouble> {
        let launch_list = Arc::new(LaunchList::default());
        let mut stand_ins: Vec<Arc<IndexCheck>> = Vec::new();
        let mut operands: Vec<GivenOperand> = Vec::new();
        for (k, operand) in given.iter().enumerate() {
            let Ok(value) = &operand.operand.value else { return Ok(Outcome::NotYet) };
            let storage = match &value.storage {
                Storage::Inline(words) => Storage::Inline(*words),
                Storage::Shared(buffer) => Storage::Shared(launch_list.given(k, buffer.bytes())),
            };
            let value = Ok(Value { storage, placed: value.placed.clone() });
            let stand_in = IndexCheck::of_operand();
            stand_ins.push(stand_in.clone());
            let operand = Operand { value, spare: spare[k].then_some(1) };
            operands.push(GivenOperand { operand, checks: IndexChecks::from_iter([stand_in]) });
        }
        let call = call.again(draws(call.draws.len()).collect(), wanted);
        self.launcher.modules.unsettled = false;
        self.launch_list = Some(launch_list.clone());
        let recorded = self.record_steps(lane, &call, &operands);
        self.launch_list = None;
        drop(operands);
        let results = match recorded {
            Ok(results) => results,
            Err(Trouble::Later(_) | Trouble::OutOfMemory { .. }) => return Ok(Outcome::NotYet),
            Err(Trouble::Refused(_)) => return Ok(Outcome::Never),
            Err(fault) => return Err(fault),
        };
        if self.launcher.modules.unsettled {
            return Ok(Outcome::NotYet);
        }
        // Values know their bases while the launch list is read.
        let Ok(recording) = launch_list.take() else { return Ok(Outcome::Never) };
        let graph = graph(recording, results, &stand_ins, given, spare, &call);
        Ok(graph.map_or(Outcome::Never, |graph| Outcome::Graph(Box::new(graph))))
    }

    /// Runs the steps of a call.
    fn record_steps(
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
}

/// A graph of the launches in a recording; `None` where they cannot be one, or not usefully.
fn graph(
    recording: Recording,
    results: Vec<Option<Known>>,
    stand_ins: &[Arc<IndexCheck>],
    given: &[GivenOperand],
    spare: &[bool],
    call: &Call,
) -> Option<Graph> {
    let Recording { bases, items, constants, checks, mut taken, copied } = recording;
    if items.len() < 2 {
        return None;
    }
    let own: Vec<Arc<IndexCheck>> = checks.iter().map(|(check, _)| check.clone()).collect();
    let (outputs, results) = outputs(&results, &bases, stand_ins, &own)?;
    taken.extend(outputs.given.iter().map(|(_, k)| *k));
    let (places, arena) = placements(&bases, &outputs);
    let (nodes, used) = nodes(items, &places, given.len(), call)?;
    let arena_of = |base: Base| match places.get(base) {
        Some(Placement::Arena(at)) => Some(*at),
        _ => None,
    };
    let checks: Option<Vec<_>> =
        checks.into_iter().map(|(check, base)| Some((check, arena_of(base)?))).collect();
    let constants: Option<Vec<_>> =
        constants.into_iter().map(|(base, words)| Some((words, arena_of(base)?))).collect();
    Some(Graph {
        inputs: inputs(given, spare, &used, &taken)?,
        wanted: call.wanted(),
        nodes,
        outputs: outputs.new.iter().map(|(_, bytes)| *bytes).collect(),
        results,
        checks: checks?,
        constants: constants?,
        arena,
        copied,
        sizes: bases.iter().map(|base| base.life.bytes).collect(),
        places,
        staged: Vec::new(),
        instance: None,
    })
}

/// The bases that are outputs.
#[derive(Default)]
struct Outputs {
    /// Those that get new memory, each with its bytes.
    new: Vec<(Base, usize)>,
    /// Those that get the memory of an input, by number: they come of writing over it.
    given: Vec<(Base, usize)>,
}

/// The first of the bases that were written one over the other, up to this one.
fn root(bases: &[Recorded], mut base: Base) -> Base {
    while let Some(before) = bases[base].over {
        base = before;
    }
    base
}

/// The outputs, and the source of each value that is wanted.
fn outputs(
    results: &[Option<Known>],
    bases: &[Recorded],
    stand_ins: &[Arc<IndexCheck>],
    own: &[Arc<IndexCheck>],
) -> Option<(Outputs, Vec<Option<Output>>)> {
    let index = |list: &[Arc<IndexCheck>], check: &Arc<IndexCheck>| {
        list.iter().position(|other| Arc::ptr_eq(other, check))
    };
    let mut outputs = Outputs::default();
    let mut sources: Vec<Option<Output>> = Vec::new();
    for known in results {
        let Some(known) = known else {
            sources.push(None);
            continue;
        };
        let value = known.result.as_ref().ok()?;
        let source = match &value.storage {
            Storage::Inline(_) => OutputSource::Constant(value.clone()),
            Storage::Shared(buffer) => {
                let base = as_placeholder(&**buffer)?.base;
                bases.get(base)?;
                match bases[root(bases, base)].kind {
                    Kind::Given(k) => {
                        if bases[base].over.is_some() && !outputs.given.contains(&(base, k)) {
                            outputs.given.push((base, k));
                        }
                        OutputSource::Given(k, value.placed.clone())
                    }
                    Kind::Kept => return None,
                    Kind::Own => {
                        let new = &mut outputs.new;
                        let at = new.iter().position(|o| o.0 == base).unwrap_or_else(|| {
                            new.push((base, buffer.bytes()));
                            new.len() - 1
                        });
                        OutputSource::Output(at, value.placed.clone())
                    }
                }
            }
        };
        sources.push(Some(Output {
            source,
            input_checks: known.checks.iter().filter_map(|c| index(stand_ins, c)).collect(),
            own_checks: known.checks.iter().filter_map(|c| index(own, c)).collect(),
        }));
    }
    Some((outputs, sources))
}

/// The place of each base, and the bytes of the graph's own memory: all bases that are neither
/// inputs nor outputs share one block of it. Of bases that were written one over the other, the
/// first has an input's place and the last an output's, where they are that. Those between are in
/// the graph's own memory, so that a replay changes the addresses of few nodes.
fn placements(bases: &[Recorded], outputs: &Outputs) -> (Vec<Placement>, usize) {
    // The places of the graph's own memory by number, until they are packed.
    let (mut places, mut lives) = (Vec::<Placement>::new(), Vec::<LiveRange>::new());
    for (base, recorded) in bases.iter().enumerate() {
        let before = recorded.over.map(|over| places[over]);
        let new = outputs.new.iter().position(|o| o.0 == base);
        let given = outputs.given.iter().find(|o| o.0 == base);
        places.push(match (recorded.kind, new, given, before) {
            (Kind::Given(k), ..) | (_, _, Some(&(_, k)), _) => Placement::Given(k),
            (_, Some(j), ..) => Placement::Output(j),
            (.., Some(Placement::Arena(at))) => {
                let life = &mut lives[at as usize];
                life.born = life.born.min(recorded.life.born);
                life.died = life.died.max(recorded.life.died);
                Placement::Arena(at)
            }
            _ => {
                lives.push(recorded.life);
                Placement::Arena(lives.len() as u64 - 1)
            }
        });
    }
    let (starts, arena) = launch_list::pack(&lives);
    for place in &mut places {
        if let Placement::Arena(at) = place {
            *at = starts[*at as usize] as u64;
        }
    }
    (places, arena)
}

/// A node for each item, with the words that are a draw's, and the inputs that a launch uses.
/// `None` where an address or a draw is not found.
fn nodes(
    items: Vec<Item>,
    places: &[Placement],
    inputs: usize,
    call: &Call,
) -> Option<(Vec<GraphNode>, Vec<bool>)> {
    let stand_ins: Vec<(u64, u64)> = draws(call.draws.len()).collect();
    let mut drawn = vec![false; call.draws.len()];
    let mut used = vec![false; inputs];
    let mut nodes: Vec<GraphNode> = Vec::with_capacity(items.len());
    for item in items {
        let mut is_there = |at: &BaseOffset| {
            if let Some(Placement::Given(k)) = places.get(at.base) {
                used[*k] = true;
            }
            at.base < places.len()
        };
        nodes.push(match item {
            Item::Launch(recorded) => {
                if !recorded.addresses.iter().all(|(_, at)| is_there(at)) {
                    return None;
                }
                let mut found = SmallVec::new();
                for (at, pair) in recorded.words.windows(2).enumerate() {
                    if let Some(k) = stand_ins.iter().position(|d| pair == [d.0, d.1]) {
                        drawn[k] = true;
                        found.push((at, k));
                    }
                }
                GraphNode::Kernel(KernelNode::new(recorded, found))
            }
            Item::Library(call) => {
                if !call.at().iter().all(is_there) {
                    return None;
                }
                GraphNode::Library(ChildNode::new(call))
            }
        });
    }
    let steps = call.plan.steps.iter().filter(|step| step.serves & call.wanted() != 0);
    let mut wanted = steps.flat_map(|step| step.draws.iter().map(|d| d.1 as usize));
    wanted.all(|k| drawn[k]).then_some((nodes, used))
}

/// The inputs as they are now.
fn inputs(
    given: &[GivenOperand],
    spare: &[bool],
    used: &[bool],
    taken: &[usize],
) -> Option<Vec<Input>> {
    let input = |(k, operand): (usize, &GivenOperand)| {
        let value = operand.operand.value.as_ref().ok()?;
        let words = match &value.storage {
            Storage::Inline(words) => Some(*words),
            Storage::Shared(_) => None,
        };
        Some(Input {
            words,
            placed: value.placed.clone(),
            used: used[k],
            spare: spare[k],
            taken: taken.contains(&k),
        })
    };
    given.iter().enumerate().map(input).collect()
}
