//! The MPI engine: it uses any network that the installed library supports.
//!
//! One thread starts and polls calls, without blocking. Other threads open groups (`opening`),
//! hence `MPI_THREAD_MULTIPLE`. Errors are returned. Buffers are released when the library reports
//! that a call succeeded, and never if it failed or does not end: parts of the call may still be in
//! transit. The library is not asked which ranks are alive, and calls are not revoked.

#![allow(unsafe_code)]

mod find;
mod library;
mod opening;
mod segments;
mod table;

use crate::dtype::DType;
use crate::engine::exchange::{Call, Engine, Key, Through, What, Words};
use crate::graph::value::Buffer;
use crate::memory::Memory;
use library::{Comm, Library};
use opening::Opening;
use std::collections::HashMap;
use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::{Duration, Instant};
use table::{Buf, Handle, Table};

/// How long calls of an aborted group are polled, in case the library completes them.
const ABORTED: Duration = Duration::from_secs(2);
/// Elementwise calls are split into pieces of this many bytes: the next piece is copied while one
/// is summed (64 MiB between two processes took 25.3 ms whole, 21.5 ms in pieces of 4 MiB, 20.8 ms
/// in pieces of 1 MiB), and the kernel copies no larger block, which it does without preemption.
const PIECE: usize = 4 << 20;
/// Sends and receives of a group match in order: one tag is enough.
const TAG: c_int = 1;

pub(crate) struct Mpi {
    table: Arc<Table>,
    opening: Opening<Library>,
    groups: HashMap<Key, Handle>,
    /// Broken groups, in which members may still have calls in progress; and whether all members
    /// have dropped the group.
    broken: HashMap<Key, (Handle, bool)>,
    /// Calls that ended at their start, since the last poll.
    ended: Vec<(Call, Through)>,
    under_way: Vec<UnderWay>,
    /// Calls of aborted groups, whose memory the library may still write.
    aborted: Vec<UnderWay>,
    aborted_at: Option<Instant>,
}

struct UnderWay {
    call: Call,
    /// The requests of pieces that have not completed, the last piece first.
    requests: Vec<Handle>,
}

// SAFETY: only the thread that owns the engine uses the handles.
unsafe impl Send for Mpi {}

impl Mpi {
    /// The installed library, not yet initialised.
    ///
    /// # Errors
    /// No library was found: where it was searched for, and how to install one.
    pub fn find() -> Result<Mpi, String> {
        let table = Arc::new(Table::find()?);
        Ok(Mpi {
            opening: Opening::new(Library::new(table.clone())),
            table,
            groups: HashMap::new(),
            broken: HashMap::new(),
            ended: Vec::new(),
            under_way: Vec::new(),
            aborted: Vec::new(),
            aborted_at: None,
        })
    }

    /// Takes over the groups that were opened meanwhile.
    fn take_opened(&mut self) {
        if !self.opening.is_stuck() && self.opening.waited_for() == 0 {
            return;
        }
        for (call, made) in self.opening.ended(Instant::now()) {
            let group = call.group;
            self.ended.push((call, made.map(|Comm(comm)| _ = self.groups.insert(group, comm))));
        }
    }

    /// Lets the library send buffered data: it has no thread of its own for that.
    fn progress(&self) {
        let Table { call, is } = &*self.table;
        let mut flag = 0;
        // SAFETY: the answer goes to a local value, and no status is requested. No rank sends on
        // this communicator.
        unsafe { (call.iprobe)(0, TAG, is.world, &mut flag, null_mut()) };
    }

    /// Starts a call; an elementwise call in pieces.
    fn begin_call(&mut self, mut call: Call) {
        let n = call.reads.max(call.writes);
        let piece = match call.what {
            What::AllReduce(_) | What::Reduce(..) | What::Broadcast(_) => {
                (PIECE / call.dtype.size()).min(n)
            }
            _ => n,
        };
        let pieces = (0..n.max(1)).step_by(piece.max(1));
        let mut requests = Vec::new();
        for at in pieces {
            match self.begin_piece(&call, at, piece.min(n - at)) {
                Ok(request) => requests.push(request),
                Err(text) => {
                    if !requests.is_empty() {
                        self.keep(&mut call);
                    }
                    return self.ended.push((call, Err(text)));
                }
            }
        }
        requests.reverse();
        self.under_way.push(UnderWay { call, requests });
    }

    /// Starts a piece of a call; returns the library's request.
    fn begin_piece(&self, call: &Call, at: usize, n: usize) -> Result<Handle, String> {
        let Table { call: mpi, is } = &*self.table;
        let comm = *self.groups.get(&call.group).ok_or("the group was not opened")?;
        let count = |n: usize| {
            c_int::try_from(n)
                .map_err(|_| format!("{n} elements are more than an MPI call takes (2^31 - 1)"))
        };
        let n = count(n)?;
        let (reads, writes) = match call.what {
            What::AllReduce(_) | What::Reduce(..) | What::Broadcast(_) => (n, n),
            _ => (count(call.reads)?, count(call.writes)?),
        };
        let at = at * call.dtype.size();
        let from: Buf = call
            .from
            .as_ref()
            .map_or(null_mut(), |value| value.first(call.dtype).wrapping_add(at).cast_mut().cast());
        let to = call.to.as_ref().and_then(|block| block.host());
        let to: Buf = to.map_or(null_mut(), |ptr| ptr.wrapping_add(at).cast());
        let (dtype, mut request) = (is.of(call.dtype), null_mut());
        let mut size = 1;
        // SAFETY: the call owns the memory that it reads and writes, of at least this many elements
        // of this type, and is kept until the library has completed it.
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
                What::Reduce(op, root) => (mpi.ireduce)(
                    from,
                    to,
                    reads,
                    dtype,
                    is.op(op),
                    root as c_int,
                    comm,
                    &mut request,
                ),
                What::Broadcast(root) => {
                    let buffer = if to.is_null() { from } else { to };
                    (mpi.ibcast)(buffer, n, dtype, root as c_int, comm, &mut request)
                }
                What::AllGather => {
                    (mpi.iallgather)(from, reads, dtype, to, reads, dtype, comm, &mut request)
                }
                What::ReduceScatter(op) => (mpi.ireduce_scatter_block)(
                    from,
                    to,
                    writes,
                    dtype,
                    is.op(op),
                    comm,
                    &mut request,
                ),
                What::AllToAll => (mpi.ialltoall)(
                    from,
                    each(reads),
                    dtype,
                    to,
                    each(writes),
                    dtype,
                    comm,
                    &mut request,
                ),
                What::Send(rank) => {
                    (mpi.isend)(from, reads, dtype, rank as c_int, TAG, comm, &mut request)
                }
                What::Recv(rank) => {
                    (mpi.irecv)(to, writes, dtype, rank as c_int, TAG, comm, &mut request)
                }
            }
        };
        self.table.check(code)?;
        Ok(request)
    }

    /// Leaks the memory that a failed call reads and writes: parts of the call may still be in
    /// transit.
    fn keep(&mut self, call: &mut Call) {
        std::mem::forget((call.from.take(), call.to.take()));
    }

    /// Frees the communicators of broken groups that all members have dropped and that have no
    /// calls left.
    fn free_broken(&mut self) {
        let aborted = &self.aborted;
        let is_left = |group: &Key| aborted.iter().any(|u| u.call.group == *group);
        let gone = self.broken.extract_if(|group, (_, is_free)| *is_free && !is_left(group));
        gone.collect::<Vec<_>>().into_iter().for_each(|(_, (comm, _))| self.free_comm(comm));
    }

    fn free_comm(&self, mut comm: Handle) {
        // SAFETY: it is a communicator of this library, without calls in progress here, and without
        // waits on other ranks.
        unsafe { (self.table.call.comm_free)(&mut comm) };
    }

    /// Whether all requests have completed, so that the library no longer uses their memory.
    fn test(&self, requests: &mut Vec<Handle>) -> Option<Through> {
        while let Some(request) = requests.last_mut() {
            let mut flag = 0;
            // SAFETY: it is a request of this library; no status is requested.
            let code = unsafe { (self.table.call.test)(request, &mut flag, null_mut()) };
            match self.table.check(code) {
                Err(text) => return Some(Err(text)),
                Ok(()) if flag != 0 => requests.pop(),
                Ok(()) => return None,
            };
        }
        Some(Ok(()))
    }
}

impl Engine for Mpi {
    fn combines(&self, dtype: DType) -> bool {
        !dtype.is_half() && !dtype.is_storage()
    }

    fn writes_over(&self, operand: &dyn Buffer) -> bool {
        operand.host().is_some() && operand.is_reusable()
    }

    fn room(&mut self, memory: &Arc<Memory>, bytes: usize) -> Option<Arc<dyn Buffer>> {
        memory.alloc(bytes).map(|block| block as Arc<dyn Buffer>)
    }

    fn words(&mut self) -> Vec<(Key, Words)> {
        self.opening.words()
    }

    fn hear(&mut self, group: Key, words: Words) {
        self.opening.hear(group, words);
    }

    fn start(&mut self, call: Call) {
        if let What::Open(ranks, me) = &call.what {
            let (ranks, me) = (ranks.clone(), *me);
            return self.opening.start(call, &ranks, me, Instant::now());
        }
        self.begin_call(call);
    }

    fn poll(&mut self, ended: &mut Vec<(Call, Through)>) {
        self.take_opened();
        ended.append(&mut self.ended);
        let mut at = 0;
        while at < self.under_way.len() {
            let mut requests = std::mem::take(&mut self.under_way[at].requests);
            let through = self.test(&mut requests);
            self.under_way[at].requests = requests;
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
        // If a thread is opening a group, this one stays out of the library; the other makes the
        // same progress.
        let alone = !self.opening.is_stuck();
        if alone && self.aborted_at.is_some_and(|at| at.elapsed() < ABORTED) {
            let mut aborted = std::mem::take(&mut self.aborted);
            aborted.retain_mut(|under_way| match self.test(&mut under_way.requests) {
                Some(Err(_)) => {
                    self.keep(&mut under_way.call);
                    false
                }
                through => through.is_none(),
            });
            self.aborted = aborted;
            self.free_broken();
        }
        if alone && self.under_way.is_empty() && !self.groups.is_empty() {
            self.progress();
        }
    }

    fn abort(&mut self, group: Key) {
        self.opening.give_up(group);
        let Some(comm) = self.groups.remove(&group) else { return };
        self.broken.insert(group, (comm, false));
        let (gone, stay) =
            std::mem::take(&mut self.under_way).into_iter().partition(|u| u.call.group == group);
        self.under_way = stay;
        self.aborted.extend::<Vec<UnderWay>>(gone);
        self.aborted_at = Some(Instant::now());
    }

    fn free(&mut self, group: Key) {
        if let Some((_, is_free)) = self.broken.get_mut(&group) {
            *is_free = true;
            return self.free_broken();
        }
        self.groups.remove(&group).into_iter().for_each(|comm| self.free_comm(comm));
    }

    fn in_flight(&self) -> usize {
        self.under_way.len() + self.opening.waited_for()
    }

    fn finish(&mut self, in_order: bool) -> bool {
        segments::unlink();
        if in_order && self.opening.is_whole() {
            // SAFETY: it is called once, and no other thread is inside the library.
            unsafe { (self.table.call.finalize)() };
        }
        // The library may write to aborted calls that have not completed for as long as the process
        // lives.
        std::mem::take(&mut self.aborted).into_iter().for_each(std::mem::forget);
        !self.opening.is_stuck()
    }
}
