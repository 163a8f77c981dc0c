//! The engine that is MPI: whatever network the installed library knows.
//!
//! Calls are started and polled by one thread, and do not block. Groups are opened beside it
//! (`opening`), hence `MPI_THREAD_MULTIPLE`. Errors are returned. A call whose group was aborted is
//! revoked where the library can do that (Open MPI with `--with-ft ulfm`). Buffers are let go when the
//! library says that a call went well, and never where it failed or does not end: parts of it may be
//! on the way still.

#![allow(unsafe_code)]

mod find;
mod opening;
mod segments;
mod table;

use crate::dtype::DType;
use crate::engine::exchange::{Call, Engine, Key, Through, What};
use crate::graph::value::Buffer;
use crate::memory::Memory;
use opening::{Comm, Opening};
use std::collections::HashMap;
use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::{Duration, Instant};
use table::{Buf, Handle, Table};

/// How long calls of an aborted group are polled, in case that the library lets go of them.
const ABORTED: Duration = Duration::from_secs(2);
/// Sends and receives of a group meet in order: one tag is enough.
const TAG: c_int = 1;

pub(crate) struct Mpi {
    table: Arc<Table>,
    opening: Opening,
    groups: HashMap<Key, Handle>,
    /// What has ended at its start, since the last poll.
    ended: Vec<(Call, Through)>,
    under_way: Vec<UnderWay>,
    /// Calls of aborted groups, which the library may write to still.
    aborted: Vec<UnderWay>,
    aborted_at: Option<Instant>,
}

struct UnderWay {
    call: Call,
    request: Handle,
}

// SAFETY: handles are used by the one thread that the engine is given to.
unsafe impl Send for Mpi {}

impl Mpi {
    /// The library that is installed here, not yet initialised.
    ///
    /// # Errors
    /// There is none: where it was looked for, and how to have one.
    pub fn find() -> Result<Mpi, String> {
        let table = Arc::new(Table::find()?);
        Ok(Mpi {
            opening: Opening::new(table.clone()),
            table,
            groups: HashMap::new(),
            ended: Vec::new(),
            under_way: Vec::new(),
            aborted: Vec::new(),
            aborted_at: None,
        })
    }

    /// Takes in the groups that were opened meanwhile.
    fn take_opened(&mut self) {
        while let Some((call, made)) = self.opening.next() {
            match (call, made) {
                (Some(call), Ok(Comm(comm))) => {
                    self.groups.insert(call.group, comm);
                    self.ended.push((call, Ok(())));
                }
                (Some(call), Err(text)) => self.ended.push((call, Err(text))),
                // Too late: whoever waited has been told of a loss.
                (None, _) => {}
            }
        }
    }

    /// Has the library send what is in its buffers still: it has no thread of its own for that.
    fn progress(&self) {
        let Table { call, is } = &*self.table;
        let mut flag = 0;
        // SAFETY: a place for the answer; a status is not asked for. Nobody sends on this
        // communicator.
        unsafe { (call.iprobe)(0, TAG, is.world, &mut flag, null_mut()) };
    }

    /// Has the library start a call; the request that it gives.
    fn begin_call(&self, call: &Call) -> Result<Handle, String> {
        let Table { call: mpi, is } = &*self.table;
        let comm = *self.groups.get(&call.group).ok_or("the group was not opened")?;
        let count = |n: usize| {
            c_int::try_from(n).map_err(|_| format!("{n} elements are more than an MPI call takes (2^31 - 1)"))
        };
        let (reads, writes) = (count(call.reads)?, count(call.writes)?);
        let from: Buf =
            call.from.as_ref().map_or(null_mut(), |value| value.first(call.dtype).cast_mut().cast());
        let to: Buf = call.to.as_ref().and_then(|block| block.host()).map_or(null_mut(), |ptr| ptr.cast());
        let (dtype, mut request) = (is.of(call.dtype), null_mut());
        let mut size = 1;
        // SAFETY: the call owns what it reads and writes, of at least so many elements of this type,
        // and is kept until the library has let go of it.
        let code = unsafe {
            (mpi.comm_size)(comm, &mut size);
            let each = |n: c_int| n / size.max(1);
            match call.what {
                What::Open(..) => return Err("a group is opened by itself".into()),
                What::Barrier => (mpi.ibarrier)(comm, &mut request),
                What::AllReduce(op) => {
                    let from = if call.from.is_some() { from } else { table::IN_PLACE };
                    (mpi.iallreduce)(from, to, writes, dtype, is.op(op), comm, &mut request)
                }
                What::Reduce(op, root) => {
                    (mpi.ireduce)(from, to, reads, dtype, is.op(op), root as c_int, comm, &mut request)
                }
                What::Broadcast(root) => {
                    let (buffer, n) = if to.is_null() { (from, reads) } else { (to, writes) };
                    (mpi.ibcast)(buffer, n, dtype, root as c_int, comm, &mut request)
                }
                What::AllGather => (mpi.iallgather)(from, reads, dtype, to, reads, dtype, comm, &mut request),
                What::ReduceScatter(op) => {
                    (mpi.ireduce_scatter_block)(from, to, writes, dtype, is.op(op), comm, &mut request)
                }
                What::AllToAll => {
                    (mpi.ialltoall)(from, each(reads), dtype, to, each(writes), dtype, comm, &mut request)
                }
                What::Send(rank) => (mpi.isend)(from, reads, dtype, rank as c_int, TAG, comm, &mut request),
                What::Recv(rank) => (mpi.irecv)(to, writes, dtype, rank as c_int, TAG, comm, &mut request),
            }
        };
        self.table.check(code)?;
        Ok(request)
    }

    /// Keeps for good what a call that failed reads and writes: parts of it may be on the way still.
    fn keep(&mut self, call: &mut Call) {
        std::mem::forget((call.from.take(), call.to.take()));
    }

    /// Whether a request is through; after that the library has let go of it.
    fn test(&self, request: &mut Handle) -> Option<Through> {
        let mut flag = 0;
        // SAFETY: a request of this library's; a status is not asked for.
        let code = unsafe { (self.table.call.test)(request, &mut flag, null_mut()) };
        match self.table.check(code) {
            Err(text) => Some(Err(text)),
            Ok(()) if flag != 0 => Some(Ok(())),
            Ok(()) => None,
        }
    }
}

impl Engine for Mpi {
    fn combines(&self, dtype: DType) -> bool {
        !matches!(dtype, DType::F16 | DType::BF16)
    }

    fn writes_over(&self, operand: &dyn Buffer) -> bool {
        operand.host().is_some() && operand.is_reusable()
    }

    fn room(&mut self, memory: &Arc<Memory>, bytes: usize) -> Option<Arc<dyn Buffer>> {
        memory.alloc(bytes).map(|block| block as Arc<dyn Buffer>)
    }

    fn start(&mut self, call: Call) {
        if let What::Open(ranks, me) = &call.what {
            let (ranks, me) = (ranks.clone(), *me);
            return self.opening.start(call, ranks, me);
        }
        match self.begin_call(&call) {
            Ok(request) => self.under_way.push(UnderWay { call, request }),
            Err(text) => self.ended.push((call, Err(text))),
        }
    }

    fn poll(&mut self, ended: &mut Vec<(Call, Through)>) {
        self.take_opened();
        ended.append(&mut self.ended);
        let mut at = 0;
        while at < self.under_way.len() {
            let mut request = self.under_way[at].request;
            let through = self.test(&mut request);
            self.under_way[at].request = request;
            match through {
                Some(result) => {
                    let UnderWay { mut call, .. } = self.under_way.remove(at);
                    if result.is_err() {
                        self.keep(&mut call);
                    }
                    ended.push((call, result));
                }
                None => at += 1,
            }
        }
        if self.aborted_at.is_some_and(|at| at.elapsed() < ABORTED) {
            let mut aborted = std::mem::take(&mut self.aborted);
            aborted.retain_mut(|under_way| match self.test(&mut under_way.request) {
                Some(Err(_)) => {
                    self.keep(&mut under_way.call);
                    false
                }
                through => through.is_none(),
            });
            self.aborted = aborted;
        }
        // A thread that opens a group does this itself, and is better left alone.
        if self.under_way.is_empty() && !self.groups.is_empty() && !self.opening.is_stuck() {
            self.progress();
        }
    }

    fn abort(&mut self, group: Key) {
        self.opening.give_up(group);
        let Some(comm) = self.groups.remove(&group) else { return };
        let (gone, stay) = std::mem::take(&mut self.under_way).into_iter().partition(|u| u.call.group == group);
        self.under_way = stay;
        self.aborted.extend::<Vec<UnderWay>>(gone);
        self.aborted_at = Some(Instant::now());
        if let Some(revoke) = self.table.call.comm_revoke {
            // SAFETY: a communicator of this library's. It does not wait.
            unsafe { revoke(comm) };
        }
        // It is not freed: another member's revoking comes later, and finds by the number (in Open
        // MPI 5) whatever has that then.
    }

    fn free(&mut self, group: Key) {
        if let Some(mut comm) = self.groups.remove(&group) {
            // SAFETY: a communicator of this library's, of which nothing is under way anywhere.
            unsafe { (self.table.call.comm_free)(&mut comm) };
        }
    }

    fn in_flight(&self) -> usize {
        self.under_way.len() + self.opening.waited_for()
    }

    fn finish(&mut self, in_order: bool) -> bool {
        segments::unlink();
        if in_order && self.opening.is_whole() {
            // SAFETY: once, and no other thread is inside the library.
            unsafe { (self.table.call.finalize)() };
        }
        // What was aborted and is not through may be written to for as long as the process lives.
        std::mem::take(&mut self.aborted).into_iter().for_each(std::mem::forget);
        !self.opening.is_stuck()
    }
}
