//! Planned blocks as CUDA graphs: what runs again with the same shapes is launched as one.
//!
//! A call that has run once is noted into a transcript (`launch_list`) when it runs again, once its
//! fused kernels are there: launches with the places at which addresses and random positions stand.
//! Of that a graph is built, a node a launch, in a row; what a library computes is captured and
//! becomes a child, captured anew where its operands have moved. The call's temporaries, scratch
//! memory and index error records are places in one block of memory that the graph keeps: which of
//! them share memory is settled once. At each replay the outputs get memory, the nodes that read
//! inputs or write outputs get addresses where these have changed, and one call launches all of it.
//!
//! Replays of one graph are ordered by its memory, where it has any, as writers of one buffer are,
//! and by the workspace of the lane for which its products were captured; a launch that is under
//! way keeps the arguments it was given. A call keeps up to [`GRAPHS_MAX`] graphs: for other
//! strides, constants among the inputs, wanted outputs, and inputs that may or may not be written
//! over. It goes on as launches in a row where ops from outside take part, where there is but one
//! launch, where a library would need more than [`STAGED_MAX`] bytes of inputs copied to a fixed
//! place (large products are not what launches hold up), where an op fails, and where memory is
//! short.

#![allow(unsafe_code)]

use super::executable::{Child, Kernel, Node, Replay};
use super::launch_list::Spot;
use super::region_call::GivenOperand;
use crate::cuda::device::Trouble;
use crate::cuda::device::context::{Gear, Place, device, here};
use crate::cuda::device::index_check::{Doubt, Doubts, Known, doubt_too};
use crate::cuda::device::libraries::library_call::Called;
use crate::cuda::device::memory::heap::{DeviceBuffer, Heap};
use crate::cuda::device::memory::pinned::PinnedBlock;
use crate::cuda::device::step::{Operand, Target};
use crate::cuda::kernels::source::INDEX_ERROR_BYTES;
use crate::graph::call::Call;
use crate::graph::plan::Plan;
use crate::graph::value::{INLINE_BYTES, Placed, Storage, Value, owners};
use crate::sync::lock;
use smallvec::SmallVec;
use std::sync::Arc;

/// Graphs of one call; the one that was made first goes first.
const GRAPHS_MAX: usize = 4;
/// Graphs that are made for one call, all in all: what is never the same twice is not worth more.
const MADE_MAX: u32 = 16;
/// The run that is the first to be noted.
const FIRST: u32 = 2;
/// The outputs of a call that is queued, as far as they are wanted; `None` where it is to be run
/// as launches in a row.
pub(crate) type Replayed = Option<Vec<Option<Known>>>;

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
pub(crate) enum Where {
    Given(usize),
    Output(usize),
    /// Bytes from the start of the graph's memory.
    Arena(u64),
}

/// What an input was when its call was noted, and what of it has to be the same.
pub(crate) struct Input {
    /// A constant, which is part of the graph.
    pub words: Option<[u64; INLINE_BYTES / 8]>,
    pub placed: Option<Box<Placed>>,
    /// A launch reads or writes it.
    pub used: bool,
    /// It might have been written over, and was.
    pub spare: bool,
    pub taken: bool,
}

pub(crate) enum Part {
    Kernel(Kernel),
    Library(Child),
}

pub(crate) enum Source {
    Constant(Value),
    Given(usize, Option<Box<Placed>>),
    Output(usize, Option<Box<Placed>>),
}

pub(crate) struct Output {
    pub source: Source,
    /// Inputs whose doubts are this one's too.
    pub doubts_of: SmallVec<[usize; 2]>,
    /// Records of the graph's own.
    pub records: SmallVec<[usize; 1]>,
}

/// What the driver has of a graph. Dropping it, on any thread, hands that over.
pub(crate) struct Made {
    heap: Arc<Heap>,
    /// Taken by the drop alone.
    replay: Option<Replay>,
    /// The lane in whose workspace its products work.
    home: usize,
    // Dropped last: its end tells the device's thread to look.
    arena: Arc<DeviceBuffer>,
}

impl Drop for Made {
    fn drop(&mut self) {
        self.replay.take().into_iter().for_each(|replay| self.heap.end_graph(replay));
    }
}

pub(crate) struct Graph {
    pub inputs: Vec<Input>,
    /// Which outputs were wanted.
    pub wanted: u64,
    pub parts: Vec<Part>,
    pub places: Vec<Where>,
    /// Bytes of each output.
    pub outputs: Vec<usize>,
    pub results: Vec<Option<Output>>,
    pub records: Vec<(Arc<Doubt>, u64)>,
    pub constants: Vec<([u64; INLINE_BYTES / 8], u64)>,
    pub arena: usize,
    /// Bytes of inputs that a run copies because somebody else may read them.
    pub copied: usize,
    pub made: Option<Made>,
}

fn same(a: &Option<Box<Placed>>, b: &Option<Box<Placed>>) -> bool {
    match (a, b) {
        (None, None) => true,
        (Some(a), Some(b)) => a.offset == b.offset && a.strides == b.strides,
        _ => false,
    }
}

/// True where a result may be written over an input.
fn is_spare(operand: &Operand) -> bool {
    match &operand.value {
        Ok(Value { storage: Storage::Shared(buffer), .. }) => {
            device(&**buffer).is_some() && operand.spare == Some(owners(buffer))
        }
        _ => false,
    }
}

/// What came of noting a call.
pub(crate) enum Verdict {
    Graph(Box<Graph>),
    NotYet,
    Never,
}

/// True where a plan has become a graph, or never will.
pub(crate) fn is_settled(plan: &Plan) -> bool {
    let kept = lock(&plan.kept);
    let shelf = kept.as_ref().and_then(|kept| kept.downcast_ref::<Shelf>());
    shelf.is_some_and(|shelf| shelf.never || shelf.graphs.iter().any(|graph| graph.made.is_some()))
}

impl Gear {
    /// Queues a call as one graph, where it can; an input whose value failed is a matter for
    /// launches in a row.
    ///
    /// # Errors
    /// What ends the device, and an input that is on its way.
    pub fn replay(
        &mut self,
        lane: usize,
        call: &Call,
        given: &[GivenOperand],
    ) -> Result<Replayed, Trouble> {
        let kept = lock(&call.plan.kept).take();
        let mut shelf = match kept.map(|kept| kept.downcast::<Shelf>()) {
            Some(Ok(shelf)) => shelf,
            _ => {
                self.graphs.retain(|plan| plan.strong_count() > 0);
                self.graphs.push(Arc::downgrade(&call.plan));
                Box::new(Shelf { next: FIRST, ..Shelf::default() })
            }
        };
        let done = self.replay_one(&mut shelf, lane, call, given);
        *lock(&call.plan.kept) = Some(shelf);
        done
    }

    /// A call is about to be launched in parts.
    pub fn runs_in_parts(&mut self) {
        self.launcher.had_brought = false;
    }

    /// A call was launched in parts. One with ops from outside will not be a graph, and is not
    /// even noted, as what such an op does when it is asked is its own affair; nor is one whose ops
    /// fail, until they do not.
    pub fn ran_in_parts(&mut self, call: &Call, failed: bool) {
        let brought = std::mem::take(&mut self.launcher.had_brought);
        let mut kept = lock(&call.plan.kept);
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
        call: &Call,
        given: &[GivenOperand],
    ) -> Result<Replayed, Trouble> {
        if shelf.never || given.iter().any(|g| g.operand.value.is_err()) {
            return Ok(None);
        }
        shelf.runs = shelf.runs.saturating_add(1);
        let all = call.plan.steps.iter().fold(0, |all, step| all | step.serves);
        let wanted = call.wanted() & all;
        let spare: SmallVec<[bool; 8]> = given.iter().map(|g| is_spare(&g.operand)).collect();
        let at = match shelf.graphs.iter().position(|graph| graph.fits(given, &spare, wanted)) {
            Some(at) => at,
            None if shelf.runs < shelf.next || shelf.made >= MADE_MAX => return Ok(None),
            None => match self.note(lane, call, given, &spare, wanted)? {
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
                    return Ok(None);
                }
                Verdict::Never => {
                    shelf.never = true;
                    return Ok(None);
                }
            },
        };
        match self.launch_graph(&mut shelf.graphs[at], lane, call, given) {
            // Launches in a row say what is wrong, if anything is.
            Err(Trouble::OutOfMemory { .. } | Trouble::Refused(_)) => {
                shelf.graphs.remove(at);
                shelf.next = shelf.runs + 1 + shelf.runs / 2;
                Ok(None)
            }
            Err(Trouble::Later(until)) if !shelf.graphs[at].is_whole() => {
                shelf.graphs.remove(at);
                Err(Trouble::Later(until))
            }
            done => done,
        }
    }

    /// Queues a graph as part of the lane's next flight.
    fn launch_graph(
        &mut self,
        graph: &mut Graph,
        lane: usize,
        call: &Call,
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
            inputs[k] = match here(value(k)) {
                Some(span) if input.taken => span.ptr(),
                _ => match self.place(lane, value(k))? {
                    Place::Device(ptr) => ptr,
                    Place::Inline => unreachable!("the graph was made for an input in memory"),
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
            return Err(
                crate::graph::operation::Refusal::kernel("memory lies at odd places").into()
            );
        }
        let is_new = graph.made.is_none();
        let made = match &mut graph.made {
            Some(made) => made,
            None => {
                let arena = self.heap.buffer(&self.pool, graph.arena.max(1), &self.lanes, lane)?;
                let replay = Some(Replay::new(self.context.gpu.context));
                graph.made.insert(Made { heap: self.heap.clone(), replay, home: lane, arena })
            }
        };
        let Made { replay: Some(replay), arena, home, .. } = made else {
            unreachable!("a graph has its replay until it is dropped")
        };
        let (arena, memory) = (arena.clone(), arena.span());

        // With no memory of its own there is nothing that a replay on another lane could still be
        // using.
        if graph.arena > 0 {
            self.overwrites(lane, &arena);
        }
        for (k, _) in graph.inputs.iter().enumerate().filter(|(_, input)| input.used && input.taken)
        {
            let Storage::Shared(buffer) = &value(k).storage else { continue };
            if let Some(here) = device(&**buffer) {
                self.overwrites(lane, here);
            }
        }
        if graph
            .parts
            .iter()
            .any(|part| matches!(part, Part::Library(Child { noted: Called::Product(_), .. })))
        {
            let (home, next) = (self.lanes.stream(*home), self.lanes.next(lane));
            self.after.extend(self.launcher.blas.works(home, &self.pool, next)?);
        }
        self.order(lane)?;

        if is_new {
            for (words, at) in &graph.constants {
                self.bring_words(words, memory.part(*at, INLINE_BYTES), lane)?;
            }
        }
        let places = &graph.places;
        let locate = |spot: &Spot| {
            let base = match places[spot.base] {
                Where::Given(k) => inputs[k],
                Where::Output(j) => outputs[j].ptr,
                Where::Arena(at) => memory.ptr() + at,
            };
            base.wrapping_add_signed(spot.bytes)
        };
        let mut words: Vec<u64> = Vec::new();
        if is_new {
            replay.begin()?;
        }
        let mut last: Option<Node> = None;
        for part in &mut graph.parts {
            match part {
                Part::Kernel(kernel) => {
                    words.clear();
                    words.extend_from_slice(&kernel.noted.words);
                    for (at, spot) in &kernel.noted.addresses {
                        words[*at] = locate(spot);
                    }
                    for &(at, draw) in &kernel.draws {
                        (words[at], words[at + 1]) = call.draws[draw];
                    }
                    // SAFETY: the words are the noted launch's, with each address where that base
                    // is now: memory of the graph's own, of inputs and of outputs, behind whose
                    // users the lane was put. Kernels are unloaded once no graph is left.
                    last = Some(unsafe { replay.put(kernel, &mut words, last) }?);
                }
                Part::Library(child) => {
                    let called = child.noted.placed(locate);
                    let captured =
                        |called: &Called<u64>| self.launcher.captured(raw, called, *home);
                    last = Some(replay.put_child(child, called, last, captured)?);
                }
            }
        }
        if is_new {
            replay.instantiate()?;
        }
        for (_, at) in &graph.records {
            raw.zero(memory.part(*at, INDEX_ERROR_BYTES))?;
        }
        replay.launch(raw)?;
        self.heap.copied(graph.copied);
        let mut doubts = Doubts::new();
        for ((stand_in, at), record) in graph.records.iter().zip(blocks) {
            let from = memory.part(*at, INDEX_ERROR_BYTES);
            doubts.push(stand_in.again(self.cargo[lane].download(record, from, raw)?));
        }

        let result = |output: &Output| {
            let stored = |storage: &Storage, placed: &Option<Box<Placed>>| Value {
                storage: storage.clone(),
                placed: placed.clone(),
            };
            let value = match &output.source {
                Source::Constant(value) => value.clone(),
                Source::Given(k, placed) => stored(&value(*k).storage, placed),
                Source::Output(j, placed) => {
                    stored(&Storage::Shared(outputs[*j].buffer.clone()), placed)
                }
            };
            let mut about = Doubts::new();
            output.doubts_of.iter().for_each(|&k| doubt_too(&mut about, &given[k].doubts));
            output.records.iter().for_each(|&d| doubt_too(&mut about, &doubts[d..=d]));
            Known { result: Ok(value), doubts: about }
        };
        Ok(Some(graph.results.iter().map(|output| output.as_ref().map(result)).collect()))
    }
}

impl Graph {
    /// True where nothing was begun, or all is made.
    fn is_whole(&self) -> bool {
        self.made.as_ref().and_then(|made| made.replay.as_ref()).is_none_or(Replay::is_whole)
    }

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
                // What may be written over now, and might have been then, was, if there was a use
                // for it.
                let over = (spare || !input.taken) && (!spare || input.spare);
                lies && over && same(&input.placed, &value.placed)
            })
    }
}
