//! The library that carries elements from rank to rank, behind three verbs: start, poll, abort.
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

/// A call of the engine. Ranks are those of the call's group.
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

/// A call, with all that it reads and writes.
pub(crate) struct Call {
    pub ticket: Key,
    pub group: Key,
    pub what: What,
    pub dtype: DType,
    /// Elements that it reads, and that it writes.
    pub reads: usize,
    pub writes: usize,
    /// Row-major, in host memory or where the engine's own device has its values. Where an operand
    /// is to be reduced in place there is none.
    pub from: Option<Box<Value>>,
    /// Memory that the engine made room in.
    pub to: Option<Arc<dyn Buffer>>,
}

/// The words that an engine sends to the other members of a group, and receives from them.
pub(crate) type Words = Vec<u8>;

/// How a call of the engine's has ended.
pub(crate) type Through = Result<(), String>;

pub(crate) trait Engine: Send {
    /// Types that it adds up.
    fn combines(&self, dtype: DType) -> bool;

    /// Whether a result may be written over an operand that nobody else has.
    fn writes_over(&self, operand: &dyn Buffer) -> bool;

    /// Memory for a result, of a device with this account. `None` where there is none left.
    fn room(&mut self, memory: &Arc<Memory>, bytes: usize) -> Option<Arc<dyn Buffer>>;

    /// Another thread than before calls it from here on.
    fn moves(&mut self) {}

    /// Words for the other members of the groups, since the last time.
    fn words(&mut self) -> Vec<(Key, Words)> {
        Vec::new()
    }

    /// A member of a group has said this.
    fn hear(&mut self, _group: Key, _words: Words) {}

    /// Starts a call; one that cannot be started has ended. Of one group calls are started in the
    /// same order on all its members.
    fn start(&mut self, call: Call);

    /// The calls that have ended since, well or not.
    fn poll(&mut self, ended: &mut Vec<(Call, Through)>);

    /// Nobody waits for the calls of this group any more, and no more come.
    fn abort(&mut self, group: Key);

    /// No member has anything under way in this group, and no more calls come.
    fn free(&mut self, group: Key);

    /// Calls that were started, have not ended, and are waited for.
    fn in_flight(&self) -> usize;

    /// The process ends: in order, where nobody is lost. False where a thread of the engine's
    /// hangs.
    fn finish(&mut self, in_order: bool) -> bool;
}
