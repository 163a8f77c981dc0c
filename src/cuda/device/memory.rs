//! Device memory in stream order, and the buffers that values lie in.
//!
//! Allocation and freeing happen on the device's thread alone. A buffer knows which flights have
//! written and read it, so that whoever reads, overwrites or frees it can be ordered after them.
//! Its drop, on any thread, only hands its address over: the thread frees it on a stream once no
//! other has anything left to do with it.
//!
//! Memory is asked for when a step is launched, and let go when its last reader is launched, not
//! when that is through: a queue of updates takes a few buffers. The last reader writes over its
//! operand. Short memory puts the step off until something comes free; when nothing is under way
//! any more, it fails alone.

#![allow(unsafe_code)]

use super::Trouble;
use super::context::Raw;
use super::lanes::{Lanes, Mark};
use crate::graph::value::Buffer;
use crate::memory::Memory;
use crate::sync::{Mutex, lock};
use cudarc::driver::sys;
use smallvec::SmallVec;
use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};

/// What has happened to a buffer, a mark a lane.
#[derive(Clone, Debug, Default)]
pub(crate) struct Uses {
    written: Option<Mark>,
    read: SmallVec<[Mark; 2]>,
}

impl Uses {
    fn note(list: &mut SmallVec<[Mark; 2]>, mark: Mark) {
        match list.iter_mut().find(|m| m.lane == mark.lane) {
            Some(known) => known.at = known.at.max(mark.at),
            None => list.push(mark),
        }
    }

    fn all(&self) -> impl Iterator<Item = Mark> + '_ {
        self.read.iter().copied().chain(self.written)
    }
}

/// Memory that was dropped and is to be freed.
#[derive(Debug)]
pub(crate) struct Returned {
    ptr: u64,
    uses: Uses,
}

/// The device memory of one device, as its buffers see it.
pub(crate) struct Heap {
    pub ordinal: usize,
    /// Counts bytes, and refuses those beyond the limit.
    account: Arc<Memory>,
    returned: Mutex<Vec<Returned>>,
    /// Graphs, and what was made of them to be launched, that nobody will launch any more.
    ended: Mutex<Vec<(usize, usize)>>,
    /// Allocations that are not freed.
    live: AtomicUsize,
    /// The open context, as a number; 0 while there is none.
    context: AtomicUsize,
    /// Says that something was returned.
    bell: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl fmt::Debug for Heap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Heap({})", self.ordinal)
    }
}

/// The driver's answer to a request that its memory cannot meet, with how much was asked for.
fn sized(trouble: Trouble, bytes: usize) -> Trouble {
    match trouble {
        Trouble::OutOfMemory { .. } => Trouble::OutOfMemory { bytes },
        other => other,
    }
}

/// Where nothing lies: the address of what has no elements, which no kernel reads or writes. A step
/// that launches nothing leaves nothing on its lane to wait for, so an allocation of its own would
/// be in no order with its readers.
const NOWHERE: u64 = 0;

/// Memory in stream order, to be given back by [`free`].
pub(crate) fn allocate(bytes: usize, raw: Raw) -> Result<u64, Trouble> {
    if bytes == 0 {
        return Ok(NOWHERE);
    }
    let mut ptr = 0;
    // SAFETY: `ptr` can be written; the stream is alive.
    let status = unsafe { sys::cuMemAllocAsync(&mut ptr, bytes, raw.0) };
    Trouble::of("cuMemAllocAsync", status).map_err(|t| sized(t, bytes))?;
    Ok(ptr)
}

/// Gives memory back in stream order.
pub(crate) fn free(ptr: u64, raw: Raw) -> Result<(), Trouble> {
    if ptr == NOWHERE {
        return Ok(());
    }
    // SAFETY: `allocate` gave it, and the caller has ordered the stream after all that uses it.
    Trouble::of("cuMemFreeAsync", unsafe { sys::cuMemFreeAsync(ptr, raw.0) })
}

impl Heap {
    pub fn new(ordinal: usize, account: Arc<Memory>) -> Arc<Heap> {
        Arc::new(Heap {
            ordinal,
            account,
            returned: Mutex::new(Vec::new()),
            ended: Mutex::new(Vec::new()),
            live: AtomicUsize::new(0),
            context: AtomicUsize::new(0),
            bell: OnceLock::new(),
        })
    }

    /// The device's thread has opened its context, or (0) closed it.
    pub fn opened(&self, context: usize) {
        self.context.store(context, SeqCst);
    }

    /// The open context, as a number; 0 while there is none.
    pub fn context(&self) -> usize {
        self.context.load(SeqCst)
    }

    /// Who is told when memory was returned.
    pub fn on_return(&self, bell: impl Fn() + Send + Sync + 'static) {
        let _ = self.bell.set(Box::new(bell));
    }

    /// A buffer that the lane's next flight writes.
    pub fn buffer(
        self: &Arc<Heap>,
        bytes: usize,
        lanes: &Lanes,
        lane: usize,
    ) -> Result<Arc<DeviceBuffer>, Trouble> {
        if !self.account.count(bytes) {
            return Err(Trouble::OutOfMemory { bytes });
        }
        let ptr = match allocate(bytes, lanes.raw(lane)) {
            Ok(ptr) => ptr,
            Err(trouble) => {
                self.account.uncount(bytes);
                return Err(trouble);
            }
        };
        self.live.fetch_add(1, SeqCst);
        let uses = Uses { written: Some(lanes.next(lane)), read: SmallVec::new() };
        Ok(Arc::new(DeviceBuffer { ptr, bytes, heap: self.clone(), uses: Mutex::new(uses) }))
    }

    /// What was returned since the last call.
    pub fn take_returned(&self) -> Vec<Returned> {
        std::mem::take(&mut *lock(&self.returned))
    }

    pub fn has_returned(&self) -> bool {
        !lock(&self.returned).is_empty()
    }

    /// A graph and its executable form will not be launched again; from any thread.
    pub fn end_graph(&self, graph: sys::CUgraph, executable: sys::CUgraphExec) {
        lock(&self.ended).push((graph as usize, executable as usize));
    }

    /// Destroys the graphs that have ended. Launches that are under way go on to their end, says
    /// the driver's manual (cuGraphExecDestroy), and nobody waits for them.
    pub fn end_graphs(&self) {
        for (graph, executable) in std::mem::take(&mut *lock(&self.ended)) {
            // SAFETY: the driver's own handles, each handed over once; null where there was none.
            unsafe {
                if executable != 0 {
                    let _ = sys::cuGraphExecDestroy(executable as sys::CUgraphExec);
                }
                if graph != 0 {
                    let _ = sys::cuGraphDestroy(graph as sys::CUgraph);
                }
            }
        }
    }

    /// Allocations that are not freed, returned ones included.
    pub fn live(&self) -> usize {
        self.live.load(SeqCst)
    }

    /// Frees what was returned, as far as at most one lane still has something to do with it: in
    /// that lane's order. The rest stays in the list.
    pub fn free(&self, list: &mut Vec<Returned>, lanes: &Lanes) -> Result<(), Trouble> {
        let mut result = Ok(());
        list.retain(|returned| {
            let open: SmallVec<[Mark; 4]> = returned.uses.all().filter(|&m| !lanes.is_reached(m)).collect();
            let on = match open.first() {
                None => returned.uses.all().next().map_or(0, |m| m.lane as usize),
                Some(_) => {
                    let last = |m: &&Mark| open.iter().all(|&other| lanes.is_ordered(m.lane as usize, other));
                    match open.iter().find(last) {
                        Some(mark) => mark.lane as usize,
                        None => return true,
                    }
                }
            };
            match free(returned.ptr, lanes.raw(on)) {
                Ok(()) => {
                    lanes.freed(on);
                    self.live.fetch_sub(1, SeqCst);
                    false
                }
                Err(trouble) => {
                    result = Err(trouble);
                    false
                }
            }
        });
        result
    }

    pub fn bytes_live(&self) -> usize {
        self.account.bytes().live
    }
}

/// Device memory that a value lies in.
pub(crate) struct DeviceBuffer {
    pub ptr: u64,
    bytes: usize,
    pub heap: Arc<Heap>,
    uses: Mutex<Uses>,
}

impl DeviceBuffer {
    /// A later flight of the lane that began to write it goes on.
    pub fn written_by(&self, mark: Mark) {
        lock(&self.uses).written = Some(mark);
    }

    /// The lane's next flight reads it: what it has to come after, which is the flight that wrote
    /// it.
    pub fn read_by(&self, mark: Mark) -> Option<Mark> {
        let mut uses = lock(&self.uses);
        Uses::note(&mut uses.read, mark);
        uses.written
    }

    /// The lane's next flight writes over it: what that has to come after.
    pub fn overwritten_by(&self, mark: Mark) -> SmallVec<[Mark; 4]> {
        let mut uses = lock(&self.uses);
        let before = uses.all().collect();
        *uses = Uses { written: Some(mark), read: SmallVec::new() };
        before
    }
}

impl fmt::Debug for DeviceBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceBuffer({} bytes at {:#x})", self.bytes, self.ptr)
    }
}

impl Buffer for DeviceBuffer {
    fn host(&self) -> Option<*mut u8> {
        None
    }
    fn bytes(&self) -> usize {
        self.bytes
    }
    fn is_reusable(&self) -> bool {
        true
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        self.heap.account.uncount(self.bytes);
        let uses = std::mem::take(&mut *lock(&self.uses));
        lock(&self.heap.returned).push(Returned { ptr: self.ptr, uses });
        if let Some(bell) = self.heap.bell.get() {
            bell();
        }
    }
}
