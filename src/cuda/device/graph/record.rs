//! From a call to a graph: the call runs into a launch list, and the list is sorted into places in
//! one block of memory, addresses that change from run to run, and draws.
//!
//! `replay` calls it on the device's thread. It makes nothing of the driver's.

use super::executable::{ChildNode, KernelNode};
use super::launch_list::{
    self, Base, BaseOffset, Item, Kind, LaunchList, LiveRange, Recording, as_placeholder,
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
    let Recording { bases, items, constants, checks, taken, copied } = recording;
    if items.len() < 2 {
        return None;
    }
    let own: Vec<Arc<IndexCheck>> = checks.iter().map(|(check, _)| check.clone()).collect();
    let (outputs, results) = outputs(&results, &bases, stand_ins, &own)?;
    let (places, arena) = placements(&bases, &outputs)?;
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
        outputs: outputs.iter().map(|(_, bytes)| *bytes).collect(),
        results,
        checks: checks?,
        constants: constants?,
        arena,
        copied,
        places,
        instance: None,
    })
}

/// The bases that are outputs, each with its bytes, and the source of each value that is wanted.
type Outputs = (Vec<(Base, usize)>, Vec<Option<Output>>);

fn outputs(
    results: &[Option<Known>],
    bases: &[(Kind, LiveRange)],
    stand_ins: &[Arc<IndexCheck>],
    own: &[Arc<IndexCheck>],
) -> Option<Outputs> {
    let index = |list: &[Arc<IndexCheck>], check: &Arc<IndexCheck>| {
        list.iter().position(|other| Arc::ptr_eq(other, check))
    };
    let mut outputs: Vec<(Base, usize)> = Vec::new();
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
                match bases.get(base)?.0 {
                    Kind::Given(k) => OutputSource::Given(k, value.placed.clone()),
                    Kind::Kept => return None,
                    Kind::Own => {
                        let at = outputs.iter().position(|o| o.0 == base).unwrap_or_else(|| {
                            outputs.push((base, buffer.bytes()));
                            outputs.len() - 1
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
/// inputs nor outputs share one block of it.
fn placements(
    bases: &[(Kind, LiveRange)],
    outputs: &[(Base, usize)],
) -> Option<(Vec<Placement>, usize)> {
    let is_output = |base: Base| outputs.iter().position(|o| o.0 == base);
    let inside: Vec<Base> = (0..bases.len())
        .filter(|&b| !matches!(bases[b].0, Kind::Given(..)) && is_output(b).is_none())
        .collect();
    let lives: Vec<LiveRange> = inside.iter().map(|&b| bases[b].1).collect();
    let (starts, arena) = launch_list::pack(&lives);
    let mut places: Vec<Placement> = Vec::with_capacity(bases.len());
    for (base, (kind, _)) in bases.iter().enumerate() {
        places.push(match (kind, is_output(base), inside.binary_search(&base)) {
            (Kind::Given(k), ..) => Placement::Given(*k),
            (_, Some(j), _) => Placement::Output(j),
            (_, None, Ok(at)) => Placement::Arena(starts[at] as u64),
            _ => return None,
        });
    }
    Some((places, arena))
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
