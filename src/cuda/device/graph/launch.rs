//! One launch of a graph: memory for it, the order of the lanes, addresses for its nodes, the
//! launch itself, and the values that come of it. A function each.
//!
//! `replay` calls this on the device's thread. The steps have one order: whatever may be missing
//! comes first, so that a launch that has to wait has changed nothing in the graph.

#![allow(unsafe_code)]

use super::executable::{GraphExec, NodeHandle};
use super::launch_list::{Base, BaseOffset};
use super::region_call::GivenOperand;
use super::region_graph::{Graph, GraphNode, Instance, Output, OutputSource, Placement, Staged};
use crate::cuda::device::Trouble;
use crate::cuda::device::context::{DeviceContext, Place, device, here};
use crate::cuda::device::index_check::{IndexChecks, Known, add_checks};
use crate::cuda::device::libraries::library_call::LibraryCall;
use crate::cuda::device::libraries::nvidia::Span;
use crate::cuda::device::memory::pinned::PinnedBlock;
use crate::cuda::device::step::Target;
use crate::cuda::kernels::source::INDEX_ERROR_BYTES;
use crate::graph::call::Call;
use crate::graph::operation::Refusal;
use crate::graph::value::{INLINE_BYTES, Placed, Storage, Value};
use smallvec::SmallVec;

/// The memory of one launch.
struct Bindings {
    /// The address of each input that a launch uses.
    inputs: SmallVec<[u64; 8]>,
    outputs: SmallVec<[Target; 4]>,
    /// Page-locked memory for the record of each index check.
    records: SmallVec<[PinnedBlock; 1]>,
}

impl Bindings {
    /// The address of a place in a base.
    fn address(&self, places: &[Placement], arena: Span, at: &BaseOffset) -> u64 {
        let base = match places[at.base] {
            Placement::Given(k) => self.inputs[k],
            Placement::Output(j) => self.outputs[j].ptr,
            Placement::Arena(start) => arena.ptr() + start,
        };
        base.wrapping_add_signed(at.bytes)
    }
}

/// A base of more bytes is not copied for the sake of a library's call: to capture the call anew,
/// which takes the host some 20 us, costs less.
const STAGED_MAX: usize = 4 << 20;

/// Gives inputs and outputs that a library's call uses a place in the graph's own memory, once they
/// have moved: the call would have to be captured anew for each launch. The graph then gets another
/// instance.
fn stage(graph: &mut Graph, bindings: &Bindings) {
    let Some(arena) = graph.instance.as_ref().map(|instance| instance.arena.span()) else {
        return;
    };
    let mut moved: SmallVec<[Base; 4]> = SmallVec::new();
    for node in &graph.nodes {
        let GraphNode::Library(child) = node else { continue };
        moved.extend(child.moved(|at| bindings.address(&graph.places, arena, at)));
    }
    for base in moved {
        let (outside, bytes) = (graph.places[base], graph.sizes[base]);
        let fits = match outside {
            Placement::Given(k) => !graph.inputs[k].taken,
            Placement::Output(_) => true,
            // It is there already.
            Placement::Arena(_) => false,
        };
        if !fits || bytes > STAGED_MAX {
            continue;
        }
        let at = graph.arena.next_multiple_of(256);
        graph.arena = at + bytes;
        graph.places[base] = Placement::Arena(at as u64);
        graph.staged.push(Staged { outside, at: at as u64, bytes });
        graph.instance = None;
    }
    if graph.instance.is_none() {
        graph.nodes.iter_mut().for_each(GraphNode::leaves);
    }
}

fn value(given: &GivenOperand) -> &Value {
    match &given.operand.value {
        Ok(value) => value,
        Err(_) => unreachable!("failed inputs were sorted out"),
    }
}

impl DeviceContext {
    /// Queues a graph as part of the lane's next submission. One value for each output that is
    /// wanted.
    pub(super) fn launch_graph(
        &mut self,
        graph: &mut Graph,
        lane: usize,
        call: &Call,
        given: &[GivenOperand],
    ) -> Result<Vec<Option<Known>>, Trouble> {
        self.after.clear();
        let bindings = self.bind(graph, lane, given)?;
        stage(graph, &bindings);
        let is_new = graph.instance.is_none();
        let arena = self.instance(graph, lane)?;
        self.order_graph(graph, lane, given)?;
        if is_new {
            for (words, at) in &graph.constants {
                self.bring_words(words, arena.part(*at, INLINE_BYTES), lane)?;
            }
        }
        self.put_nodes(graph, call, &bindings, is_new)?;
        let raw = self.lanes.raw(lane);
        for staged in &graph.staged {
            if let Placement::Given(k) = staged.outside
                && let Some(from) = here(value(&given[k]))
            {
                raw.copy(arena.part(staged.at, staged.bytes), from)?;
            }
        }
        let checks = self.start(graph, lane, arena, bindings.records)?;
        for staged in &graph.staged {
            if let Placement::Output(j) = staged.outside
                && let Some(to) = device(&*bindings.outputs[j].buffer)
            {
                raw.copy(to.span(), arena.part(staged.at, staged.bytes))?;
            }
        }
        Ok(outputs(graph, given, &bindings.outputs, &checks))
    }

    /// The memory that a launch needs beside the graph's own.
    ///
    /// # Errors
    /// An input or memory that is missing; memory that is not aligned as the kernels expect.
    fn bind(
        &mut self,
        graph: &Graph,
        lane: usize,
        given: &[GivenOperand],
    ) -> Result<Bindings, Trouble> {
        let mut inputs: SmallVec<[u64; 8]> = SmallVec::from_elem(0, given.len());
        for (k, input) in graph.inputs.iter().enumerate().filter(|(_, input)| input.used) {
            inputs[k] = match here(value(&given[k])) {
                Some(span) if input.taken => span.ptr(),
                _ => match self.place(lane, value(&given[k]))? {
                    Place::Device(ptr) => ptr,
                    Place::Inline => unreachable!("the graph was made for an input in memory"),
                },
            };
        }
        let mut outputs: SmallVec<[Target; 4]> = SmallVec::new();
        for &bytes in &graph.outputs {
            outputs.push(self.target(bytes, lane)?);
        }
        let mut records: SmallVec<[PinnedBlock; 1]> = SmallVec::new();
        for _ in &graph.checks {
            records.push(self.pinned.take(INDEX_ERROR_BYTES)?);
        }
        if inputs.iter().any(|ptr| ptr % 256 != 0) || outputs.iter().any(|o| o.ptr % 256 != 0) {
            return Err(Refusal::kernel("memory lies at odd places").into());
        }
        Ok(Bindings { inputs, outputs, records })
    }

    /// Gives the graph an instance, where it has none. The memory of the graph's own.
    fn instance(&mut self, graph: &mut Graph, lane: usize) -> Result<Span, Trouble> {
        if let Some(instance) = &graph.instance {
            return Ok(instance.arena.span());
        }
        let arena = self.heap.buffer(&self.pool, graph.arena.max(1), &self.lanes, lane)?;
        let (span, exec) = (arena.span(), GraphExec::new(self.driver.gpu.context));
        graph.instance = Some(Instance::new(self.heap.clone(), exec, lane, arena));
        Ok(span)
    }

    /// Puts the lane behind all whose memory the graph reads or writes over.
    fn order_graph(
        &mut self,
        graph: &Graph,
        lane: usize,
        given: &[GivenOperand],
    ) -> Result<(), Trouble> {
        let Some(instance) = &graph.instance else { unreachable!("it was just made") };
        // With no memory of its own there is nothing that a replay on another lane could still be
        // using.
        if graph.arena > 0 {
            self.overwrites(lane, &instance.arena);
        }
        let taken = graph.inputs.iter().enumerate().filter(|(_, input)| input.used && input.taken);
        for (k, _) in taken {
            let Storage::Shared(buffer) = &value(&given[k]).storage else { continue };
            if let Some(here) = device(&**buffer) {
                self.overwrites(lane, here);
            }
        }
        if graph.has_products() {
            let (home, next) = (self.lanes.stream(instance.home), self.lanes.next(lane));
            self.after.extend(self.launcher.blas.works(home, &self.pool, next)?);
        }
        self.order(lane)
    }

    /// Gives each node the addresses and draws of this launch; makes the nodes where the instance
    /// is new.
    fn put_nodes(
        &mut self,
        graph: &mut Graph,
        call: &Call,
        bindings: &Bindings,
        is_new: bool,
    ) -> Result<(), Trouble> {
        // Nobody but this thread gives that lane work.
        let raw = self.lanes.raw(self.copy_lane());
        let Graph { nodes, places, instance: Some(instance), .. } = graph else {
            unreachable!("it was just made")
        };
        let (home, arena) = (instance.home, instance.arena.span());
        let address = |at: &BaseOffset| bindings.address(places, arena, at);
        let exec = instance.exec();
        if is_new {
            exec.begin()?;
        }
        let mut words: Vec<u64> = Vec::new();
        let mut last: Option<NodeHandle> = None;
        for node in nodes {
            last = Some(match node {
                GraphNode::Kernel(kernel) => {
                    words.clear();
                    words.extend_from_slice(&kernel.recorded.words);
                    for (at, offset) in &kernel.recorded.addresses {
                        words[*at] = address(offset);
                    }
                    for &(at, draw) in &kernel.draws {
                        (words[at], words[at + 1]) = call.draws[draw];
                    }
                    // SAFETY: the words are the recorded launch's, with each address where that
                    // base is now: memory of the graph's own, of inputs and of outputs, behind
                    // whose users the lane was put. Kernels are unloaded once no graph is left.
                    unsafe { exec.put(kernel, &mut words, last) }?
                }
                GraphNode::Library(child) => {
                    let library_call = child.recorded.placed(address);
                    let capture = |call: &LibraryCall<u64>| self.launcher.captured(raw, call, home);
                    exec.put_child(child, library_call, last, capture)?
                }
            });
        }
        if is_new {
            exec.instantiate()?;
        }
        Ok(())
    }

    /// Launches an instance that has its addresses, and copies the records of its index checks to
    /// the host. The index checks of this launch.
    fn start(
        &mut self,
        graph: &mut Graph,
        lane: usize,
        arena: Span,
        records: SmallVec<[PinnedBlock; 1]>,
    ) -> Result<IndexChecks, Trouble> {
        let raw = self.lanes.raw(lane);
        let Some(instance) = &mut graph.instance else { unreachable!("it was just made") };
        for (_, at) in &graph.checks {
            raw.zero(arena.part(*at, INDEX_ERROR_BYTES))?;
        }
        instance.exec().launch(raw)?;
        self.heap.copied(graph.copied);
        let mut checks = IndexChecks::new();
        for ((stand_in, at), record) in graph.checks.iter().zip(records) {
            let from = arena.part(*at, INDEX_ERROR_BYTES);
            checks.push(stand_in.again(self.retained[lane].download(record, from, raw)?));
        }
        Ok(checks)
    }
}

/// The outputs of a launch that is queued.
fn outputs(
    graph: &Graph,
    given: &[GivenOperand],
    targets: &[Target],
    own: &IndexChecks,
) -> Vec<Option<Known>> {
    let stored = |storage: &Storage, placed: &Option<Box<Placed>>| Value {
        storage: storage.clone(),
        placed: placed.clone(),
    };
    let known = |output: &Output| {
        let value = match &output.source {
            OutputSource::Constant(value) => value.clone(),
            OutputSource::Given(k, placed) => stored(&value(&given[*k]).storage, placed),
            OutputSource::Output(j, placed) => {
                stored(&Storage::Shared(targets[*j].buffer.clone()), placed)
            }
        };
        let mut checks = IndexChecks::new();
        output.input_checks.iter().for_each(|&k| add_checks(&mut checks, &given[k].checks));
        output.own_checks.iter().for_each(|&k| add_checks(&mut checks, &own[k..=k]));
        Known { result: Ok(value), checks }
    };
    graph.results.iter().map(|output| output.as_ref().map(known)).collect()
}
