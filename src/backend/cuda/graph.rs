//! Planned blocks as CUDA graphs: what runs again with the same shapes is launched as one.
//!
//! A block that has run once is noted on a tape (`tape`) when it runs again, once its fused kernels are there: launches
//! with the places at which addresses and random positions stand. Of that a graph is built, a node a launch, in a row;
//! what a library computes is captured and becomes a child. The block's temporaries, scratch memory and index error
//! records are places in one block of memory that the graph keeps: which of them share memory is settled once. At each
//! replay the outputs get memory, the nodes that read inputs or write outputs get addresses where these have changed, and
//! one call launches all of it.
//!
//! Replays of one graph are ordered by its memory, as writers of one buffer are; a launch that is under way keeps the
//! arguments it was given. A block keeps up to [`GRAPHS_MAX`] graphs: for other strides, constants among the inputs, wanted
//! outputs, and inputs that may or may not be written over. It goes on as launches in a row where ops from outside take
//! part, where there is but one launch, where a library would need more than [`STAGED_MAX`] bytes of inputs copied to a
//! fixed place (large products are not what launches hold up), where an op fails, and where memory is short.

#![allow(unsafe_code)]

use super::block::{Doubts, GivenOperand, Known, UnderWay};
use super::context::Raw;
use super::doubt::Doubt;
use super::gear::{Gear, Place, device, read_back};
use super::handed::{Handed, Whereabouts};
use super::memory::{DeviceBuffer, Heap};
use super::step::{Operand, Target};
use super::tape::{self, Item, Kind, Life, Multiplied, Noted, Played, Spot, Tape, spoken_of};
use super::{Trouble, pinned::PinnedBlock};
use crate::graph::block::Block;
use crate::graph::value::{INLINE_BYTES, Placed, Storage, Value};
use crate::kernels::cuda::source::INDEX_ERROR_BYTES;
use crate::sync::lock;
use cudarc::driver::sys;
use smallvec::SmallVec;
use std::ffi::c_void;
use std::panic::Location;
use std::sync::Arc;

/// Graphs of one block; the one that was made first goes first.
const GRAPHS_MAX: usize = 4;
/// Graphs that are made for one block, all in all: what is never the same twice is not worth more.
const MADE_MAX: u32 = 16;
/// Most bytes that are copied at each replay because a library's operands have to lie still.
const STAGED_MAX: usize = 16 << 20;
/// The run that is the first to be noted.
const FIRST: u32 = 2;
/// What stands for the seed and the position of a draw while a block is noted: a word that nothing else is made of.
const SEED: u64 = 0x5e3d_0f00_a5c3_9671;
const POSITION: u64 = 0xa11c_e5ed_1bad_d1ce;

/// What became of a block.
pub(crate) enum Replayed {
    /// It is queued: its outputs, as far as they are wanted.
    Done(Vec<Option<Known>>),
    /// An input is still on its way.
    Later,
    /// It is to be run as launches in a row.
    No,
}

/// What a plan keeps between its runs.
#[derive(Default)]
struct Shelf {
    runs: u32,
    /// Not before this run is anything noted.
    next: u32,
    made: u32,
    /// It will not be a graph, ever.
    never: bool,
    graphs: Vec<Graph>,
}

/// Where a base is when a graph runs.
#[derive(Clone, Copy, Debug)]
enum Where {
    Given(usize),
    Output(usize),
    /// Bytes from the start of the graph's memory.
    Arena(u64),
}

/// What an input was when its block was noted, and what of it has to be the same.
struct Input {
    /// A constant, which is part of the graph.
    words: Option<[u64; INLINE_BYTES / 8]>,
    placed: Option<Box<Placed>>,
    /// A launch reads or writes it.
    used: bool,
    /// It might have been written over, and was.
    spare: bool,
    taken: bool,
    /// A library reads it where it is.
    fixed: Option<u64>,
}

/// A kernel's node.
struct Kernel {
    noted: Noted,
    /// Words of the arguments that are a draw's seed, with its position behind it.
    draws: SmallVec<[(usize, usize); 1]>,
    node: sys::CUgraphNode,
    /// Arguments that the executable graph has.
    sent: Vec<u64>,
}

enum Part {
    Kernel(Kernel),
    Product(Multiplied),
}

enum Source {
    Constant(Value),
    Given(usize, Option<Box<Placed>>),
    Output(usize, Option<Box<Placed>>),
}

struct Output {
    source: Source,
    /// Inputs whose doubts are this one's too.
    doubts_of: SmallVec<[usize; 2]>,
    /// Records of the graph's own.
    records: SmallVec<[usize; 1]>,
}

/// The driver's side of a graph.
struct Made {
    heap: Arc<Heap>,
    graph: sys::CUgraph,
    executable: sys::CUgraphExec,
    // Dropped last: its end tells the device's thread to look.
    arena: Arc<DeviceBuffer>,
}

struct Graph {
    inputs: Vec<Input>,
    /// Which outputs were wanted.
    wanted: u64,
    parts: Vec<Part>,
    places: Vec<Where>,
    /// Bytes of each output.
    outputs: Vec<usize>,
    results: Vec<Option<Output>>,
    records: Vec<(Arc<Doubt>, u64)>,
    constants: Vec<([u64; INLINE_BYTES / 8], u64)>,
    arena: usize,
    /// Where a library's workspace begins, if it needs one.
    workspace: Option<u64>,
    made: Option<Made>,
}

// SAFETY: the handles are used by the device's thread alone; a drop elsewhere only hands them over (`Heap::end_graph`).
unsafe impl Send for Graph {}

impl Drop for Made {
    fn drop(&mut self) {
        self.heap.end_graph(self.graph, self.executable);
    }
}

/// What came of noting a block.
enum Verdict {
    Graph(Box<Graph>),
    NotYet,
    Never,
}

fn same(a: &Option<Box<Placed>>, b: &Option<Box<Placed>>) -> bool {
    match (a, b) {
        (None, None) => true,
        (Some(a), Some(b)) => a.offset == b.offset && a.strides == b.strides,
        _ => false,
    }
}

/// Where a value's storage begins on this device, if it is there.
fn address(value: &Value) -> Option<u64> {
    let Storage::Shared(buffer) = &value.storage else { return None };
    if let Some(here) = device(&**buffer) {
        return Some(here.ptr);
    }
    let handed: &Handed = buffer.as_any().downcast_ref()?;
    match &*handed.whereabouts() {
        Whereabouts::Here(here) => Some(here.ptr),
        _ => None,
    }
}

/// True where a result may be written over an input.
fn is_spare(operand: &Operand) -> bool {
    match &operand.value {
        Ok(Value { storage: Storage::Shared(buffer), .. }) => {
            device(&**buffer).is_some() && operand.spare == Some(Arc::strong_count(buffer))
        }
        _ => false,
    }
}

fn draws(n: usize) -> impl Iterator<Item = (u64, u64)> {
    (0..n as u64).map(|k| (SEED.wrapping_add(k << 20), POSITION.wrapping_sub(k << 20)))
}

impl Gear {
    /// Queues a block as one graph, where it can; an input whose value failed is a matter for launches in a row.
    ///
    /// # Errors
    /// Only what ends the device.
    pub fn replay(&mut self, lane: usize, block: &Block, given: &[GivenOperand]) -> Result<Replayed, Trouble> {
        let kept = lock(&block.plan.kept).take();
        let mut shelf = match kept.map(|kept| kept.downcast::<Shelf>()) {
            Some(Ok(shelf)) => shelf,
            _ => {
                self.graphs.retain(|plan| plan.strong_count() > 0);
                self.graphs.push(Arc::downgrade(&block.plan));
                Box::new(Shelf { next: FIRST, ..Shelf::default() })
            }
        };
        let done = self.replay_one(&mut shelf, lane, block, given);
        *lock(&block.plan.kept) = Some(shelf);
        done
    }

    /// A block is about to be launched in parts.
    pub fn runs_in_parts(&mut self) {
        self.launcher.had_brought = false;
    }

    /// A block was launched in parts. One with ops from outside will not be a graph, and is not even noted, as what
    /// such an op does when it is asked is its own affair; nor is one whose ops fail, until they do not.
    pub fn ran_in_parts(&mut self, block: &Block, failed: bool) {
        let brought = std::mem::take(&mut self.launcher.had_brought);
        let mut kept = lock(&block.plan.kept);
        if let Some(shelf) = kept.as_mut().and_then(|kept| kept.downcast_mut::<Shelf>()) {
            shelf.never |= brought;
            if failed {
                (shelf.runs, shelf.next) = (0, FIRST);
            }
        }
    }

    /// Gives the memory of all graphs back; blocks that run on make new ones.
    pub fn drop_graphs(&mut self) {
        for plan in self.graphs.drain(..).filter_map(|plan| plan.upgrade()) {
            drop(lock(&plan.kept).take());
        }
    }

    fn replay_one(
        &mut self,
        shelf: &mut Shelf,
        lane: usize,
        block: &Block,
        given: &[GivenOperand],
    ) -> Result<Replayed, Trouble> {
        if shelf.never || given.iter().any(|g| g.operand.value.is_err()) {
            return Ok(Replayed::No);
        }
        shelf.runs = shelf.runs.saturating_add(1);
        let all = block.plan.steps.iter().fold(0, |all, step| all | step.serves);
        let wanted = block.wanted() & all;
        let spare: SmallVec<[bool; 8]> = given.iter().map(|g| is_spare(&g.operand)).collect();
        let at = match shelf.graphs.iter().position(|graph| graph.fits(given, &spare, wanted)) {
            Some(at) => at,
            None if shelf.runs < shelf.next || shelf.made >= MADE_MAX => return Ok(Replayed::No),
            None => match self.note(lane, block, given, &spare, wanted)? {
                Verdict::Graph(graph) => {
                    if shelf.graphs.len() == GRAPHS_MAX {
                        shelf.graphs.remove(0);
                    }
                    shelf.made += 1;
                    shelf.graphs.push(*graph);
                    shelf.graphs.len() - 1
                }
                Verdict::NotYet => {
                    shelf.next = shelf.runs + 1 + shelf.runs / 2;
                    return Ok(Replayed::No);
                }
                Verdict::Never => {
                    shelf.never = true;
                    return Ok(Replayed::No);
                }
            },
        };
        match self.launch_graph(&mut shelf.graphs[at], lane, block, given) {
            // Launches in a row say what is wrong, if anything is.
            Err(Trouble::OutOfMemory { .. } | Trouble::Refused(_)) => {
                shelf.graphs.remove(at);
                shelf.next = shelf.runs + 1 + shelf.runs / 2;
                Ok(Replayed::No)
            }
            done => done,
        }
    }

    /// Runs a block on a tape, and makes a graph of what is on it.
    fn note(
        &mut self,
        lane: usize,
        block: &Block,
        given: &[GivenOperand],
        spare: &[bool],
        wanted: u64,
    ) -> Result<Verdict, Trouble> {
        let tape = Arc::new(Tape::default());
        let mut stand_ins: Vec<Arc<Doubt>> = Vec::new();
        let mut operands: Vec<GivenOperand> = Vec::new();
        for (k, operand) in given.iter().enumerate() {
            let Ok(value) = &operand.operand.value else { return Ok(Verdict::NotYet) };
            let storage = match &value.storage {
                Storage::Inline(words) => Storage::Inline(*words),
                Storage::Shared(buffer) => {
                    Storage::Shared(tape.given(k, k >= block.plan.inputs, buffer.bytes()))
                }
            };
            let value = Ok(Value { storage, placed: value.placed.clone() });
            let stand_in = Doubt::stand_in("", Location::caller());
            stand_ins.push(stand_in.clone());
            let operand = Operand { value, spare: spare[k].then_some(1) };
            operands.push(GivenOperand { operand, doubts: Doubts::from_iter([stand_in]) });
        }
        let block = block.again(draws(block.draws.len()).collect(), wanted);
        self.launcher.modules.unsettled = false;
        self.tape = Some(tape.clone());
        let noted = self.note_steps(lane, &block, &operands, &tape);
        self.tape = None;
        drop(operands);
        let results = match noted {
            Ok(Some(results)) => results,
            Ok(None) | Err(Trouble::OutOfMemory { .. }) => return Ok(Verdict::NotYet),
            Err(Trouble::Refused(_)) => return Ok(Verdict::Never),
            Err(fault) => return Err(fault),
        };
        if self.launcher.modules.unsettled {
            return Ok(Verdict::NotYet);
        }
        // Values know their bases while the tape is read.
        let Ok(played) = tape.take() else { return Ok(Verdict::Never) };
        let made = self.graph(played, results, &stand_ins, given, spare, &block);
        Ok(made.map_or(Verdict::Never, |graph| Verdict::Graph(Box::new(graph))))
    }

    /// The steps of a block, and copies of outputs that a library computes, which have to lie still.
    fn note_steps(
        &mut self,
        lane: usize,
        block: &Block,
        given: &[GivenOperand],
        tape: &Arc<Tape>,
    ) -> Result<Option<Vec<Option<Known>>>, Trouble> {
        let mut under_way = UnderWay::new(block);
        while let Some(step) = under_way.step(block) {
            if !self.block_step(lane, block, step, given, &mut under_way, false)? {
                return Ok(None);
            }
        }
        let mut results = under_way.outputs(block);
        let mut moved: Vec<(tape::Base, Storage)> = Vec::new();
        for known in results.iter_mut().flatten() {
            let Ok(value) = &mut known.result else { continue };
            let Storage::Shared(buffer) = &value.storage else { continue };
            let Some(from) = spoken_of(&**buffer) else { continue };
            let bytes = buffer.bytes();
            if !tape.is_multiplied(from.base) || !tape.is_fixed(from.ptr()) || tape.is_given(from.base) {
                continue;
            }
            let to = match moved.iter().find(|(base, _)| *base == from.base) {
                Some((_, to)) => to.clone(),
                None => {
                    let to = tape.buffer(bytes);
                    let berth = self.berth(lane);
                    tape.staged(from.ptr());
                    self.launcher.bytes(&berth, from.ptr(), to.ptr(), bytes)?;
                    berth.give_up()?;
                    moved.push((from.base, Storage::Shared(to)));
                    moved[moved.len() - 1].1.clone()
                }
            };
            *value = Value { storage: to, placed: value.placed.take() };
        }
        Ok(Some(results))
    }

    /// A graph of what is on a tape; `None` where it cannot be one, or not usefully.
    fn graph(
        &mut self,
        played: Played,
        results: Vec<Option<Known>>,
        stand_ins: &[Arc<Doubt>],
        given: &[GivenOperand],
        spare: &[bool],
        block: &Block,
    ) -> Option<Graph> {
        let Played { bases, items, constants, doubts, taken, staged } = played;
        if items.len() < 2 || staged > STAGED_MAX {
            return None;
        }
        // Outputs: what they are made of, and which bases they are.
        let mut outputs: Vec<(tape::Base, usize)> = Vec::new();
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
                        Kind::Given(k, _) => Source::Given(k, value.placed.clone()),
                        Kind::Kept => return None,
                        Kind::Own => {
                            let at = outputs.iter().position(|o| o.0 == base).unwrap_or_else(|| {
                                outputs.push((base, buffer.bytes()));
                                outputs.len() - 1
                            });
                            Source::Output(at, value.placed.clone())
                        }
                    }
                }
            };
            let index =
                |list: &[Arc<Doubt>], doubt: &Arc<Doubt>| list.iter().position(|d| Arc::ptr_eq(d, doubt));
            let own: Vec<Arc<Doubt>> = doubts.iter().map(|d| d.0.clone()).collect();
            sources.push(Some(Output {
                source,
                doubts_of: known.doubts.iter().filter_map(|d| index(stand_ins, d)).collect(),
                records: known.doubts.iter().filter_map(|d| index(&own, d)).collect(),
            }));
        }

        // One block of memory for the rest.
        let is_output = |base: tape::Base| outputs.iter().position(|o| o.0 == base);
        let inside: Vec<tape::Base> = (0..bases.len())
            .filter(|&b| !matches!(bases[b].0, Kind::Given(..)) && is_output(b).is_none())
            .collect();
        let lives: Vec<Life> = inside.iter().map(|&b| bases[b].1).collect();
        let (starts, mut arena) = tape::pack(&lives);
        let mut places: Vec<Where> = Vec::with_capacity(bases.len());
        for (base, (kind, _)) in bases.iter().enumerate() {
            places.push(match (kind, is_output(base), inside.binary_search(&base)) {
                (Kind::Given(k, _), ..) => Where::Given(*k),
                (_, Some(j), _) => Where::Output(j),
                (_, None, Ok(at)) => Where::Arena(starts[at] as u64),
                _ => return None,
            });
        }
        let arena_of = |base: tape::Base| match places.get(base) {
            Some(Where::Arena(at)) => Some(*at),
            _ => None,
        };
        let mut workspace = None;
        if items.iter().any(|item| matches!(item, Item::Product(_))) {
            workspace = Some(arena as u64);
            arena += self.launcher.blas.workspace;
        }

        // Where draws stand, and which inputs are looked at.
        let wanted_draws: Vec<usize> = {
            let steps = block.plan.steps.iter().filter(|step| step.serves & block.wanted() != 0);
            steps.flat_map(|step| step.draws.iter().map(|d| d.1 as usize)).collect()
        };
        let stand_in_draws: Vec<(u64, u64)> = draws(block.draws.len()).collect();
        let mut drawn = vec![false; block.draws.len()];
        let mut used = vec![false; given.len()];
        let mut fixed = vec![false; given.len()];
        let mut parts: Vec<Part> = Vec::with_capacity(items.len());
        for item in items {
            let mut look = |spot: &Spot, still: bool| match places.get(spot.base) {
                Some(Where::Given(k)) => {
                    used[*k] = true;
                    fixed[*k] |= still;
                    true
                }
                Some(Where::Output(_)) => !still,
                Some(Where::Arena(_)) => true,
                None => false,
            };
            parts.push(match item {
                Item::Launch(noted) => {
                    if !noted.addresses.iter().all(|(_, spot)| look(spot, false)) {
                        return None;
                    }
                    let mut found = SmallVec::new();
                    for (at, pair) in noted.words.windows(2).enumerate() {
                        if let Some(k) = stand_in_draws.iter().position(|d| pair == [d.0, d.1]) {
                            drawn[k] = true;
                            found.push((at, k));
                        }
                    }
                    Part::Kernel(Kernel { noted, draws: found, node: std::ptr::null_mut(), sent: Vec::new() })
                }
                Item::Product(product) => {
                    if !product.spots.iter().all(|spot| look(spot, true)) {
                        return None;
                    }
                    Part::Product(product)
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
                words: if let Storage::Inline(words) = &value.storage { Some(*words) } else { None },
                placed: value.placed.clone(),
                used: used[k],
                spare: spare[k],
                taken: taken.contains(&k),
                fixed: if fixed[k] { Some(address(value)?) } else { None },
            });
        }
        let records: Option<Vec<(Arc<Doubt>, u64)>> =
            doubts.into_iter().map(|(doubt, base)| Some((doubt, arena_of(base)?))).collect();
        let constants: Option<Vec<_>> =
            constants.into_iter().map(|(base, words)| Some((words, arena_of(base)?))).collect();
        Some(Graph {
            inputs,
            wanted: block.wanted(),
            parts,
            outputs: outputs.iter().map(|o| o.1).collect(),
            results: sources,
            records: records?,
            constants: constants?,
            arena,
            workspace,
            places,
            made: None,
        })
    }

    /// Queues a graph as part of the lane's next flight.
    fn launch_graph(
        &mut self,
        graph: &mut Graph,
        lane: usize,
        block: &Block,
        given: &[GivenOperand],
    ) -> Result<Replayed, Trouble> {
        self.after.clear();
        let raw = self.lanes.raw(lane);
        let value = |k: usize| match &given[k].operand.value {
            Ok(value) => value,
            Err(_) => unreachable!("failed inputs were sorted out"),
        };
        // What can be missing comes first: inputs, memory.
        let mut inputs: SmallVec<[u64; 8]> = SmallVec::from_elem(0, given.len());
        for (k, input) in graph.inputs.iter().enumerate().filter(|(_, input)| input.used) {
            inputs[k] = match address(value(k)) {
                Some(ptr) if input.taken => ptr,
                _ => match self.place(lane, value(k))? {
                    Some(Place::Device(ptr)) => ptr,
                    Some(Place::Inline) => unreachable!("the graph was made for an input in memory"),
                    None => return Ok(Replayed::Later),
                },
            };
        }
        let mut outputs: SmallVec<[Target; 4]> = SmallVec::new();
        for &bytes in &graph.outputs {
            outputs.push(self.target(bytes, lane)?);
        }
        let mut blocks: SmallVec<[PinnedBlock; 1]> = SmallVec::new();
        for _ in &graph.records {
            blocks.push(self.pinned.take(INDEX_ERROR_BYTES)?);
        }
        if inputs.iter().any(|ptr| ptr % 256 != 0) || outputs.iter().any(|o| o.ptr % 256 != 0) {
            return Err(crate::graph::operation::Refusal::kernel("memory lies at odd places").into());
        }
        let is_new = graph.made.is_none();
        let made = match &mut graph.made {
            Some(made) => made,
            None => {
                let arena = self.heap.buffer(graph.arena.max(1), &self.lanes, lane)?;
                let (heap, none) = (self.heap.clone(), std::ptr::null_mut());
                graph.made.insert(Made { heap, graph: none, executable: std::ptr::null_mut(), arena })
            }
        };
        let arena = made.arena.clone();

        self.overwrites(lane, &arena);
        for (k, _) in graph.inputs.iter().enumerate().filter(|(_, input)| input.used && input.taken) {
            let Storage::Shared(buffer) = &value(k).storage else { continue };
            if let Some(here) = device(&**buffer) {
                self.overwrites(lane, here);
            }
        }
        self.order(lane)?;

        if is_new {
            for (words, at) in &graph.constants {
                self.bring_words(words, arena.ptr + at, lane)?;
            }
        }
        let places = &graph.places;
        let locate = |spot: &Spot| {
            let base = match places[spot.base] {
                Where::Given(k) => inputs[k],
                Where::Output(j) => outputs[j].ptr,
                Where::Arena(at) => arena.ptr + at,
            };
            base.wrapping_add_signed(spot.bytes)
        };
        let context = self.context.gpu.context;
        let mut words: Vec<u64> = Vec::new();
        if is_new {
            made.begin()?;
        }
        let mut last: Option<sys::CUgraphNode> = None;
        for part in &mut graph.parts {
            match part {
                Part::Kernel(kernel) => {
                    words.clear();
                    words.extend_from_slice(&kernel.noted.words);
                    for (at, spot) in &kernel.noted.addresses {
                        words[*at] = locate(spot);
                    }
                    for &(at, draw) in &kernel.draws {
                        (words[at], words[at + 1]) = block.draws[draw];
                    }
                    if is_new {
                        last = Some(made.add(kernel, &mut words, last, context)?);
                    } else if words != kernel.sent {
                        made.bind(kernel, &mut words, context)?;
                    }
                    kernel.sent.clone_from(&words);
                }
                Part::Product(product) if is_new => {
                    let workspace = arena.ptr + graph.workspace.unwrap_or(0);
                    let spots = [0, 1, 2].map(|i| locate(&product.spots[i]));
                    let child = self.launcher.blas.captured(raw, product, spots, workspace)?;
                    last = Some(made.add_child(child, last)?);
                }
                // Nothing of it ever changes.
                Part::Product(_) => {}
            }
        }
        if is_new {
            made.instantiate()?;
        }
        for (_, at) in &graph.records {
            // SAFETY: memory of the graph's own, of that size, in this stream's order.
            let status = unsafe { sys::cuMemsetD8Async(arena.ptr + at, 0, INDEX_ERROR_BYTES, raw.0) };
            Trouble::of("cuMemsetD8Async", status)?;
        }
        made.launch(raw)?;
        let mut doubts: SmallVec<[Arc<Doubt>; 1]> = SmallVec::new();
        for ((stand_in, at), record) in graph.records.iter().zip(blocks) {
            read_back(record.ptr(), arena.ptr + at, INDEX_ERROR_BYTES, raw)?;
            doubts.push(stand_in.again(record));
        }

        let result = |output: &Output| {
            let stored = |storage: &Storage, placed: &Option<Box<Placed>>| Value {
                storage: storage.clone(),
                placed: placed.clone(),
            };
            let value = match &output.source {
                Source::Constant(value) => value.clone(),
                Source::Given(k, placed) => stored(&value(*k).storage, placed),
                Source::Output(j, placed) => stored(&Storage::Shared(outputs[*j].buffer.clone()), placed),
            };
            let mut about = Doubts::new();
            let inherited = output.doubts_of.iter().flat_map(|&k| given[k].doubts.iter());
            for doubt in inherited.chain(output.records.iter().map(|&d| &doubts[d])) {
                if !about.iter().any(|d| Arc::ptr_eq(d, doubt)) {
                    about.push(doubt.clone());
                }
            }
            Known { result: Ok(value), doubts: about }
        };
        Ok(Replayed::Done(graph.results.iter().map(|output| output.as_ref().map(result)).collect()))
    }
}

impl Graph {
    /// True where a run with these inputs is what the graph was made for.
    fn fits(&self, given: &[GivenOperand], spare: &[bool], wanted: u64) -> bool {
        self.wanted == wanted
            && self.inputs.iter().zip(given).zip(spare).all(|((input, given), &spare)| {
                let Ok(value) = &given.operand.value else { return false };
                let lies = match (&input.words, &value.storage) {
                    (Some(words), Storage::Inline(now)) => words == now,
                    (None, Storage::Shared(_)) => true,
                    _ => false,
                };
                // What may be written over now, and might have been then, was, if there was a use for it.
                let over = (spare || !input.taken) && (!spare || input.spare);
                lies && over
                    && same(&input.placed, &value.placed)
                    && (input.fixed.is_none() || input.fixed == address(value))
            })
    }
}

/// What a kernel's node is told. The pointers lead into `words`.
fn parameters(
    noted: &Noted,
    words: &mut [u64],
    pointers: &mut SmallVec<[*mut c_void; 24]>,
    context: sys::CUcontext,
) -> sys::CUDA_KERNEL_NODE_PARAMS {
    let base = words.as_mut_ptr();
    pointers.clear();
    // Every start lies inside the words, or at their end.
    pointers.extend(noted.starts.iter().map(|&at| base.wrapping_add(at).cast::<c_void>()));
    sys::CUDA_KERNEL_NODE_PARAMS {
        func: noted.function.0,
        gridDimX: noted.grid[0],
        gridDimY: noted.grid[1],
        gridDimZ: noted.grid[2],
        blockDimX: noted.block[0],
        blockDimY: noted.block[1],
        blockDimZ: noted.block[2],
        sharedMemBytes: noted.shared,
        kernelParams: pointers.as_mut_ptr(),
        extra: std::ptr::null_mut(),
        kern: std::ptr::null_mut(),
        ctx: context,
    }
}

impl Made {
    fn begin(&mut self) -> Result<(), Trouble> {
        // SAFETY: the place can be written; the context is current.
        Trouble::of("cuGraphCreate", unsafe { sys::cuGraphCreate(&mut self.graph, 0) })
    }

    /// Adds a kernel behind what was added last.
    fn add(
        &mut self,
        kernel: &mut Kernel,
        words: &mut [u64],
        last: Option<sys::CUgraphNode>,
        context: sys::CUcontext,
    ) -> Result<sys::CUgraphNode, Trouble> {
        let mut pointers = SmallVec::new();
        let told = parameters(&kernel.noted, words, &mut pointers, context);
        let after = last.as_ref().map_or(std::ptr::null(), |node| node);
        // SAFETY: as for the launch that was noted: there is a pointer for each parameter, to a value of its size that
        // outlives the call, which copies them. The graph is ours, and `last` is a node of it.
        let status = unsafe {
            sys::cuGraphAddKernelNode_v2(&mut kernel.node, self.graph, after, last.is_some() as usize, &told)
        };
        Trouble::of("cuGraphAddKernelNode", status)?;
        Ok(kernel.node)
    }

    /// Gives a kernel other arguments, for the launches to come.
    fn bind(&mut self, kernel: &mut Kernel, words: &mut [u64], context: sys::CUcontext) -> Result<(), Trouble> {
        let mut pointers = SmallVec::new();
        let told = parameters(&kernel.noted, words, &mut pointers, context);
        // SAFETY: as above; launches that are under way keep the arguments they were given.
        let status = unsafe { sys::cuGraphExecKernelNodeSetParams_v2(self.executable, kernel.node, &told) };
        Trouble::of("cuGraphExecKernelNodeSetParams", status)
    }

    /// Adds a graph as a node, which is a copy of it.
    fn add_child(
        &mut self,
        child: sys::CUgraph,
        last: Option<sys::CUgraphNode>,
    ) -> Result<sys::CUgraphNode, Trouble> {
        let mut node = std::ptr::null_mut();
        let after = last.as_ref().map_or(std::ptr::null(), |node| node);
        // SAFETY: the graphs are ours, and `last` is a node of the outer one; the child is copied, and ends here.
        let status = unsafe {
            let status =
                sys::cuGraphAddChildGraphNode(&mut node, self.graph, after, last.is_some() as usize, child);
            let _ = sys::cuGraphDestroy(child);
            status
        };
        Trouble::of("cuGraphAddChildGraphNode", status)?;
        Ok(node)
    }

    fn instantiate(&mut self) -> Result<(), Trouble> {
        // SAFETY: the graph is whole; the place can be written.
        let status = unsafe { sys::cuGraphInstantiateWithFlags(&mut self.executable, self.graph, 0) };
        Trouble::of("cuGraphInstantiate", status)
    }

    fn launch(&self, raw: Raw) -> Result<(), Trouble> {
        // SAFETY: instantiated, and the stream is alive; what the nodes read and write is alive in its order.
        Trouble::of("cuGraphLaunch", unsafe { sys::cuGraphLaunch(self.executable, raw.0) })
    }
}
