//! Device memory in stream order, and the buffers that hold values.
//!
//! The device's thread alone allocates and frees. A buffer knows the submissions that have written
//! and read it, so that readers, writers and the free can be ordered after them. Its drop, on any
//! thread, only hands the address over: the device's thread frees it on a stream once no other
//! stream uses it any more.
//!
//! A step allocates when it is launched, and a value is let go when its last reader is launched,
//! not when that reader is through: a queue of updates takes a few buffers. The last reader writes
//! over its operand. Short memory defers the step until some comes free; when nothing is under way
//! any more, that step fails alone.

use super::pool::Pool;
use crate::cuda::device::Trouble;
use crate::cuda::device::graph::executable::GraphExec;
use crate::cuda::device::lanes::{Lanes, Mark};
use crate::cuda::device::libraries::nvidia::{Allocation, ContextHandle, Span};
use crate::cuda::device::peers::{Open, Peers};
use crate::error::bytes_of;
use crate::graph::value::Buffer;
use crate::guard::discard_unlocked;
use crate::memory::{Memory, PoolMemory};
use crate::process_end::inside;
use crate::sync::{Mutex, lock};
use smallvec::SmallVec;
use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};

/// The uses of a buffer, a mark a lane.
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
    memory: Allocation,
    uses: Uses,
    /// Of memory that somebody else lent: it is dropped once no lane uses the memory.
    owner: Owner,
}

/// What keeps memory that somebody else lent.
type Owner = Option<Box<dyn Any + Send>>;

/// The device memory of one device, as its buffers see it.
pub(crate) struct Heap {
    pub ordinal: usize,
    /// Counts bytes, and refuses those beyond the limit.
    pub account: Arc<Memory>,
    returned: Mutex<Vec<Returned>>,
    /// Graphs that nobody will launch any more.
    ended: Mutex<Vec<GraphExec>>,
    /// Allocations that are not freed.
    live: AtomicUsize,
    /// The open device, if it is.
    opened: Mutex<Option<Open>>,
    /// Which GPUs can copy from here.
    pub peers: Peers,
    /// Says that something was returned.
    on_return: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl fmt::Debug for Heap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Heap({})", self.ordinal)
    }
}

impl Heap {
    pub fn new(ordinal: usize, account: Arc<Memory>) -> Arc<Heap> {
        Arc::new(Heap {
            ordinal,
            account,
            returned: Mutex::new(Vec::new()),
            ended: Mutex::new(Vec::new()),
            live: AtomicUsize::new(0),
            opened: Mutex::new(None),
            peers: Peers::default(),
            on_return: OnceLock::new(),
        })
    }

    /// See [`Memory::copied`].
    pub fn copied(&self, bytes: usize) {
        self.account.copied(bytes);
    }

    /// The device's thread has opened its context, or is about to close it.
    pub fn opened(&self, open: Option<Open>) {
        if let Some(before) = std::mem::replace(&mut *lock(&self.opened), open) {
            *lock(&before.closed) = true;
        }
    }

    /// The open device. The caller knows that it stays open.
    pub fn open(&self) -> Option<Open> {
        lock(&self.opened).clone()
    }

    /// The open context, likewise.
    pub fn context(&self) -> Option<ContextHandle> {
        lock(&self.opened).as_ref().map(|open| open.context)
    }

    /// Free and total bytes of the GPU, while the context is open.
    pub fn free_memory(&self) -> Option<(usize, usize)> {
        let _inside = inside();
        // Under the lock: it is not closed meanwhile.
        lock(&self.opened).as_ref().and_then(|open| open.context.free_memory())
    }

    /// Bytes of the driver's pool, while the context is open.
    pub fn pool(&self) -> Option<PoolMemory> {
        let _inside = inside();
        // Under the lock, as above.
        let [used, reserved, peak] = lock(&self.opened).as_ref()?.pool.bytes()?;
        Some(PoolMemory { name: "driver", used, reserved, peak })
    }

    /// Sets the callback for returned memory.
    pub fn on_return(&self, callback: impl Fn() + Send + Sync + 'static) {
        let _ = self.on_return.set(Box::new(callback));
    }

    /// A buffer that the lane's next submission writes.
    pub fn buffer(
        self: &Arc<Heap>,
        pool: &Pool,
        bytes: usize,
        lanes: &Lanes,
        lane: usize,
    ) -> Result<Arc<DeviceBuffer>, Trouble> {
        let uses = Uses { written: Some(lanes.next(lane)), read: SmallVec::new() };
        self.counted(bytes, uses, || pool.allocate(lanes.stream(lane), bytes))
    }

    /// A buffer that no lane writes: the host has seen its writer end before
    /// it is given to anybody or dropped. From any thread.
    #[cfg(all(feature = "ranks", unix))]
    pub fn beside_lanes(
        self: &Arc<Heap>,
        bytes: usize,
        allocate: impl FnOnce() -> Result<Allocation, Trouble>,
    ) -> Result<Arc<DeviceBuffer>, Trouble> {
        self.counted(bytes, Uses::default(), allocate)
    }

    fn counted(
        self: &Arc<Heap>,
        bytes: usize,
        uses: Uses,
        allocate: impl FnOnce() -> Result<Allocation, Trouble>,
    ) -> Result<Arc<DeviceBuffer>, Trouble> {
        let Some(live) = self.account.count(bytes) else {
            return Err(Trouble::OutOfMemory { bytes });
        };
        let memory = match allocate() {
            Ok(memory) => memory,
            Err(trouble) => {
                self.account.uncount(bytes);
                return Err(trouble);
            }
        };
        self.account.had(live);
        self.live.fetch_add(1, SeqCst);
        Ok(self.made(memory, bytes, uses, None))
    }

    /// A buffer in memory that somebody else keeps until the owner has been dropped. From any
    /// thread.
    pub fn lent(
        self: &Arc<Heap>,
        address: u64,
        bytes: usize,
        owner: Box<dyn Any + Send>,
    ) -> Arc<DeviceBuffer> {
        self.live.fetch_add(1, SeqCst);
        self.made(Allocation::lent(address, bytes), bytes, Uses::default(), Some(owner))
    }

    fn made(
        self: &Arc<Heap>,
        memory: Allocation,
        bytes: usize,
        uses: Uses,
        owner: Owner,
    ) -> Arc<DeviceBuffer> {
        let (heap, is_lent) = (self.clone(), owner.is_some());
        let (uses, owner) = (Mutex::new(uses), Mutex::new(owner));
        Arc::new(DeviceBuffer { memory, bytes, heap, uses, is_lent, owner })
    }

    /// Memory that was returned since the last call.
    pub fn take_returned(&self) -> Vec<Returned> {
        std::mem::take(&mut *lock(&self.returned))
    }

    pub fn has_returned(&self) -> bool {
        !lock(&self.returned).is_empty()
    }

    /// A graph and its executable form will not be launched again; from any thread.
    pub(crate) fn end_graph(&self, exec: GraphExec) {
        lock(&self.ended).push(exec);
    }

    /// Destroys the graphs that have ended.
    pub fn end_graphs(&self) {
        std::mem::take(&mut *lock(&self.ended)).into_iter().for_each(GraphExec::destroy);
    }

    /// Allocations that are not freed, returned ones included.
    pub fn live(&self) -> usize {
        self.live.load(SeqCst)
    }

    /// Frees returned memory that at most one lane still uses: in
    /// that lane's order. The rest stays in the list.
    pub fn free(
        &self,
        list: &mut Vec<Returned>,
        pool: &Pool,
        lanes: &Lanes,
    ) -> Result<(), Trouble> {
        let mut result = Ok(());
        list.retain_mut(|returned| {
            let open: SmallVec<[Mark; 4]> =
                returned.uses.all().filter(|&m| !lanes.is_reached(m)).collect();
            if returned.owner.is_some() && !open.is_empty() {
                return true;
            }
            let on = match open.first() {
                None => returned.uses.all().next().map_or(0, |m| m.lane as usize),
                Some(_) => {
                    let last = |m: &&Mark| {
                        open.iter().all(|&other| lanes.is_ordered(m.lane as usize, other))
                    };
                    match open.iter().find(last) {
                        Some(mark) => mark.lane as usize,
                        None => return true,
                    }
                }
            };
            match pool.free(lanes.stream(on), returned.memory.take()) {
                Ok(by_driver) => {
                    if by_driver {
                        lanes.freed(on);
                    }
                    self.live.fetch_sub(1, SeqCst);
                    discard_unlocked(returned.owner.take());
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
    memory: Allocation,
    bytes: usize,
    pub heap: Arc<Heap>,
    uses: Mutex<Uses>,
    /// The memory is somebody else's.
    is_lent: bool,
    owner: Mutex<Owner>,
}

impl DeviceBuffer {
    pub fn span(&self) -> Span {
        self.memory.span()
    }

    pub fn ptr(&self) -> u64 {
        self.span().ptr()
    }

    /// A later submission of the lane that began to write it goes on.
    pub fn written_by(&self, mark: Mark) {
        lock(&self.uses).written = Some(mark);
    }

    /// The lane's next submission reads it: the mark it has to come after, of the submission that
    /// wrote it.
    pub fn read_by(&self, mark: Mark) -> Option<Mark> {
        let mut uses = lock(&self.uses);
        Uses::note(&mut uses.read, mark);
        uses.written
    }

    /// No lane has read it.
    #[cfg(all(feature = "ranks", unix))]
    pub fn is_unread(&self) -> bool {
        lock(&self.uses).read.is_empty()
    }

    /// The lane's next submission writes over it: the marks it has to come after.
    pub fn overwritten_by(&self, mark: Mark) -> SmallVec<[Mark; 4]> {
        let mut uses = lock(&self.uses);
        let before = uses.all().collect();
        *uses = Uses { written: Some(mark), read: SmallVec::new() };
        before
    }
}

impl fmt::Debug for DeviceBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceBuffer({} at {:#x})", bytes_of(self.bytes), self.ptr())
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
        !self.is_lent
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if !self.is_lent {
            self.heap.account.uncount(self.bytes);
        }
        let uses = std::mem::take(&mut *lock(&self.uses));
        let (memory, owner) = (self.memory.take(), lock(&self.owner).take());
        lock(&self.heap.returned).push(Returned { memory, uses, owner });
        if let Some(on_return) = self.heap.on_return.get() {
            on_return();
        }
    }
}
