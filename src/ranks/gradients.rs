//! Gradients of collectives, which are collectives themselves. All ranks compute them in the same
//! order, so the calls match.

use super::group::Group;
use crate::Backward;
use crate::engine::exchange::Combine::Sum;
use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};

/// The gradient rule of a collective.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rule {
    /// The gradient passes unchanged.
    Same,
    AllReduce,
    Reduce(usize),
    Broadcast(usize),
    AllGather,
    ReduceScatter,
    AllToAll,
}

/// A collective on the tape. It is never run: the driver supplies its value.
pub(super) struct OfCollective {
    pub op: &'static str,
    pub rule: Option<Rule>,
    pub group: Group,
}

impl Operation for OfCollective {
    fn name(&self) -> &str {
        self.op
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        Ok(inputs[0].clone())
    }

    fn run_cpu(&self, _: &mut CpuRun<'_>) -> Result<(), Refusal> {
        Err(Refusal::kernel("a collective has no kernel"))
    }

    fn gradient_needs(&self, _: &[bool]) -> Needs {
        Needs::NOTHING.as_they_are()
    }

    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        let group = &self.group;
        let rule =
            self.rule.ok_or_else(|| Refusal::argument("only a sum over ranks has a gradient"))?;
        call.give(0, |call| {
            let upstream = call.upstream();
            match rule {
                Rule::Same => upstream.clone(),
                Rule::AllReduce => upstream.all_reduce(group, Sum),
                Rule::Reduce(root) => upstream.broadcast(group, root),
                Rule::Broadcast(root) => upstream.reduce(group, Sum, root),
                Rule::AllGather => upstream.reduce_scatter(group, Sum),
                Rule::ReduceScatter => upstream.all_gather(group),
                Rule::AllToAll => upstream.all_to_all(group),
            }
        });
        Ok(())
    }
}
