//! Which CUDA graph a call of a region runs as, where it runs as one.
//!
//! A call that has run once is recorded into a launch list (`record`) when it runs again, once its
//! fused kernels are there. A graph is built of the list: a node a launch, in a row. A library's
//! call is captured and becomes a child node. Where its operands or its result have moved, they get
//! a place in the graph's memory and are copied, or the call is captured anew if they are large.
//! The call's temporaries, scratch memory and index error records are places in one block of memory
//! that the graph keeps; the places that share memory are settled once. At each replay (`launch`)
//! the outputs get memory, the nodes get the addresses that have changed, and one call launches all
//! of it.
//!
//! Replays of one graph are ordered by the graph's memory, where it has any, as writers of one
//! buffer are, and by the workspace of the lane for which its products were captured. A launch that
//! is under way keeps the arguments it was given. A call keeps up to [`GRAPHS_MAX`] graphs: for
//! other strides, constants among the inputs, wanted outputs, and inputs that may or may not be
//! written over. A call goes on as launches in a row where a custom op takes part whose launches
//! may not be replayed, where there is but one launch, where an op fails, and where memory is
//! short.

use super::region_call::GivenOperand;
use super::region_graph::Graph;
use crate::cuda::device::Trouble;
use crate::cuda::device::context::{DeviceContext, device};
use crate::cuda::device::index_check::Known;
use crate::cuda::device::step::Operand;
use crate::graph::call::Call;
use crate::graph::plan::Plan;
use crate::graph::value::{Storage, Value, owners};
use crate::sync::lock;
use smallvec::SmallVec;
use std::sync::Arc;

/// Graphs of one call; the one that was made first goes first.
const GRAPHS_MAX: usize = 4;
/// Graphs that are made for one call, all in all: a call that is never the same twice is not worth
/// more.
const MADE_MAX: u32 = 16;
/// The first run that may be recorded.
const FIRST: u32 = 2;

/// The outputs of a call that is queued, as far as they are wanted; `None` where the call has to
/// run as launches in a row.
pub(crate) type Replayed = Option<Vec<Option<Known>>>;

/// The graphs of one plan, and the numbers of its runs.
#[derive(Default)]
struct PlanGraphs {
    runs: u32,
    /// The first run that may be recorded.
    next: u32,
    /// Graphs that were made so far.
    made: u32,
    /// The plan will never be a graph.
    never: bool,
    list: Vec<Graph>,
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

/// The outcome of recording a call.
pub(crate) enum Outcome {
    Graph(Box<Graph>),
    NotYet,
    Never,
}

/// True where a plan has become a graph, or never will.
pub(crate) fn is_settled(plan: &Plan) -> bool {
    let kept = lock(&plan.kept);
    let graphs = kept.as_ref().and_then(|kept| kept.downcast_ref::<PlanGraphs>());
    graphs.is_some_and(|graphs| {
        graphs.never || graphs.list.iter().any(|graph| graph.instance.is_some())
    })
}

impl DeviceContext {
    /// Queues a call as one graph, where it can; an input whose value failed is a matter for
    /// launches in a row.
    ///
    /// # Errors
    /// A fault that ends the device; an input that is on its way.
    pub fn replay(
        &mut self,
        lane: usize,
        call: &Call,
        given: &[GivenOperand],
    ) -> Result<Replayed, Trouble> {
        let kept = lock(&call.plan.kept).take();
        let mut graphs = match kept.map(|kept| kept.downcast::<PlanGraphs>()) {
            Some(Ok(graphs)) => graphs,
            _ => {
                self.graphs.retain(|plan| plan.strong_count() > 0);
                self.graphs.push(Arc::downgrade(&call.plan));
                Box::new(PlanGraphs { next: FIRST, ..PlanGraphs::default() })
            }
        };
        let done = self.replay_one(&mut graphs, lane, call, given);
        *lock(&call.plan.kept) = Some(graphs);
        done
    }

    /// A call is about to be launched in parts.
    pub fn runs_in_parts(&mut self) {
        self.launcher.had_custom = false;
    }

    /// A call was launched in parts. One with ops from outside will not be a graph, and is not even
    /// recorded, as such an op may do anything when it is asked; nor is one whose ops
    /// fail, until they do not.
    pub fn ran_in_parts(&mut self, call: &Call, failed: bool) {
        let custom = std::mem::take(&mut self.launcher.had_custom);
        let mut kept = lock(&call.plan.kept);
        if let Some(graphs) = kept.as_mut().and_then(|kept| kept.downcast_mut::<PlanGraphs>()) {
            graphs.never |= custom;
            if failed {
                (graphs.runs, graphs.next) = (0, FIRST);
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
        graphs: &mut PlanGraphs,
        lane: usize,
        call: &Call,
        given: &[GivenOperand],
    ) -> Result<Replayed, Trouble> {
        if graphs.never || given.iter().any(|g| g.operand.value.is_err()) {
            return Ok(None);
        }
        graphs.runs = graphs.runs.saturating_add(1);
        let all = call.plan.steps.iter().fold(0, |all, step| all | step.serves);
        let wanted = call.wanted() & all;
        let spare: SmallVec<[bool; 8]> = given.iter().map(|g| is_spare(&g.operand)).collect();
        let at = match graphs.list.iter().position(|graph| graph.fits(given, &spare, wanted)) {
            Some(at) => at,
            None if graphs.runs < graphs.next || graphs.made >= MADE_MAX => return Ok(None),
            None => match self.record(lane, call, given, &spare, wanted)? {
                Outcome::Graph(graph) => {
                    if graphs.list.len() == GRAPHS_MAX {
                        graphs.list.remove(0);
                    }
                    graphs.made += 1;
                    graphs.list.push(*graph);
                    graphs.list.len() - 1
                }
                Outcome::NotYet => {
                    graphs.next = graphs.runs + 1 + graphs.runs / 2;
                    return Ok(None);
                }
                Outcome::Never => {
                    graphs.never = true;
                    return Ok(None);
                }
            },
        };
        match self.launch_graph(&mut graphs.list[at], lane, call, given) {
            // Launches in a row say what is wrong, if anything is.
            Err(Trouble::OutOfMemory { .. } | Trouble::Refused(_)) => {
                graphs.list.remove(at);
                graphs.next = graphs.runs + 1 + graphs.runs / 2;
                Ok(None)
            }
            Err(Trouble::Later(until)) if !graphs.list[at].is_whole() => {
                graphs.list.remove(at);
                Err(Trouble::Later(until))
            }
            launched => launched.map(Some),
        }
    }
}
