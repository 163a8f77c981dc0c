//! What carries elements from rank to rank, behind three verbs: start, poll, abort.
//!
//! An engine is a library that others have written: MPI here. It is driven by one thread
//! (`driver`), which is the only one that ever calls it. It does not know who is alive: a call whose
//! group is aborted may never end, and what it reads and writes stays where it is until it does.

use crate::dtype::DType;
use crate::graph::value::Value;
use crate::memory::Block;
use std::sync::Arc;

/// How the elements of several ranks become one.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, ranks::{Combine::Max, Group}};
/// let x = Device::cpu().ones([2]);
/// assert_eq!(x.all_reduce(&Group::alone(), Max).to_vec::<f32>().await?, [1.0, 1.0]);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[doc(alias("ReduceOp", "MPI_Op"))]
pub enum Combine {
    /// The sum. The order of the additions is the engine's.
    Sum,
    /// The product.
    Product,
    /// The smallest.
    Min,
    /// The largest.
    Max,
}

impl Combine {
    /// `sum`, `product`, `min`, `max`.
    pub fn name(self) -> &'static str {
        match self {
            Combine::Sum => "sum",
            Combine::Product => "product",
            Combine::Min => "min",
            Combine::Max => "max",
        }
    }
}

/// A ticket or a group of a world.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Key(pub u64, pub u64);

/// What is asked of the engine. Ranks are those of the call's group.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum What {
    /// The group comes to be, of these ranks of the world, of which this is one.
    Open(Vec<usize>, usize),
    Barrier,
    AllReduce(Combine),
    Reduce(Combine, usize),
    Broadcast(usize),
    AllGather,
    ReduceScatter(Combine),
    AllToAll,
    Send(usize),
    Recv(usize),
}

/// A call, with all that it reads and writes.
pub(crate) struct Call {
    pub ticket: Key,
    pub group: Key,
    pub what: What,
    pub dtype: DType,
    /// Elements that it reads, and that it writes.
    pub reads: usize,
    pub writes: usize,
    /// Row-major in host memory.
    pub from: Option<Box<Value>>,
    pub to: Option<Arc<Block>>,
}

pub(crate) trait Engine {
    /// Starts a call; one that cannot be started has ended. Of one group calls are started in the
    /// same order on all its members.
    fn start(&mut self, call: Call);

    /// What has ended since, well or not.
    fn poll(&mut self, ended: &mut Vec<(Call, Result<(), String>)>);

    /// Nobody waits for the calls of this group any more, and no more come.
    fn abort(&mut self, group: Key);

    /// No member has anything under way in this group, and no more calls come.
    fn free(&mut self, group: Key);

    /// Calls that were started, have not ended, and are waited for.
    fn in_flight(&self) -> usize;

    /// The process ends: in order, where nobody is lost. False where a thread of the engine's hangs.
    fn finish(&mut self, in_order: bool) -> bool;
}
