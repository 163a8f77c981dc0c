//! The interface of a transport library between ranks, with three verbs: start, poll, abort.
//!
//! The library is MPI for host memory (`ranks/mpi`), or a device's own
//! ([`Runner::exchange`](super::port::Runner::exchange)). One thread at a time drives the library
//! (`ranks/driver`), and a change of the thread is announced. The library does not know which ranks
//! are alive: a call whose group is aborted may never end, and its operands stay in place until the
//! call ends.

use crate::dtype::DType;
use crate::graph::value::{Buffer, Value};
use crate::memory::Memory;
use std::fmt;
use std::sync::Arc;

/// How elements of several ranks are combined.
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

/// A ticket or a group, with the number of its world.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Key(pub u64, pub u64);

/// A call of the engine. Ranks are those of the call's group.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum What {
    /// Opens a group of these ranks of the world; the number is this rank's index.
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

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            What::Open(..) => f.write_str("a new group"),
            What::Barrier => f.write_str("barrier"),
            What::AllReduce(combine) => write!(f, "all_reduce ({combine:?})"),
            What::Reduce(combine, root) => write!(f, "reduce ({combine:?}) to rank {root}"),
            What::Broadcast(root) => write!(f, "broadcast from rank {root}"),
            What::AllGather => f.write_str("all_gather"),
            What::ReduceScatter(combine) => write!(f, "reduce_scatter ({combine:?})"),
            What::AllToAll => f.write_str("all_to_all"),
            What::Send(to) => write!(f, "send to rank {to}"),
            What::Recv(from) => write!(f, "recv from rank {from}"),
        }
    }
}

/// A call, with its operand and result.
pub(crate) struct Call {
    pub ticket: Key,
    pub group: Key,
    pub what: What,
    pub dtype: DType,
    /// The numbers of elements read and written.
    pub reads: usize,
    pub writes: usize,
    /// The operand: row-major, in host memory or in that of the engine's own device. `None` if it
    /// is reduced in place.
    pub from: Option<Box<Value>>,
    /// The memory for the result, from the engine.
    pub to: Option<Arc<dyn Buffer>>,
}

/// The words that an engine sends to the other members of a group, and receives from them.
pub(crate) type Words = Vec<u8>;

/// The outcome of a call of the engine.
pub(crate) type Through = Result<(), String>;

pub(crate) trait Engine: Send {
    /// Whether the engine can reduce this type.
    fn combines(&self, dtype: DType) -> bool;

    /// Whether the result may overwrite an operand without another owner.
    fn writes_over(&self, operand: &dyn Buffer) -> bool;

    /// Memory for a result, on a device with this account. `None` if there is no memory left.
    fn room(&mut self, memory: &Arc<Memory>, bytes: usize) -> Option<Arc<dyn Buffer>>;

    /// Announces that another thread drives the engine from now on.
    fn moves(&mut self) {}

    /// The words for other members of the groups, since the last call.
    fn words(&mut self) -> Vec<(Key, Words)> {
        Vec::new()
    }

    /// Receives the words of a member of a group.
    fn hear(&mut self, _group: Key, _words: Words) {}

    /// Starts a call; a call that cannot be started has ended. Calls of one group are started in
    /// the same order on all members.
    fn start(&mut self, call: Call);

    /// The calls that have ended since the last poll, successfully or not.
    fn poll(&mut self, ended: &mut Vec<(Call, Through)>);

    /// Aborts a group: its calls are no longer awaited, and no more calls come.
    fn abort(&mut self, group: Key);

    /// Frees a group: no member has a call in progress, and no more calls come.
    fn free(&mut self, group: Key);

    /// The number of calls that were started, have not ended, and are awaited.
    fn in_flight(&self) -> usize;

    /// Finishes at the end of the process, in order if no rank is lost. False if a thread of the
    /// engine hangs.
    fn finish(&mut self, in_order: bool) -> bool;
}
