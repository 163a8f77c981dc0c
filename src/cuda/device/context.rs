//! All that a device's thread works with: context, lanes, memory, kernels, copies under way.
//!
//! Owned and used by that thread alone. It knows values and nodes, but not when or why a step runs.

use super::background::{Background, Wanted};
use super::driver_context::{Context, has_cublas};
use super::graph::launch_list::{Transcript, spoken_of};
use super::index_check::Doubt;
use super::lanes::{Lanes, Mark};
use super::launch::launcher::Launcher;
use super::libraries::nvidia::{Allocation, Event, Events, Span};
use super::memory::chunked::Downloads;
use super::memory::heap::{DeviceBuffer, Heap, Returned};
use super::memory::lazy_upload::{Handed, Whereabouts};
use super::memory::pinned::{Cargo, Pinned, PinnedBlock};
use super::memory::pool::Pool;
use super::peers::Open;
use super::report::Untaken;
use super::timing::Timing;
use super::{Site, Stream, Trouble};
use crate::cuda::kernels::source::INDEX_ERROR_BYTES;
use crate::graph::node::Node;
use crate::graph::plan::Plan;
use crate::graph::value::{Buffer, Storage, Value};
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};

/// An event to be waited for, and the flight of the lane that it stands behind.
pub(crate) struct ToReap {
    pub lane: usize,
    pub at: u64,
    pub event: Event,
}

/// A copy that is made a piece at a time.
pub(crate) struct Upload {
    pub handed: Arc<dyn Buffer>,
    pub value: Value,
    pub buffer: Arc<DeviceBuffer>,
    pub done: usize,
}

pub(crate) struct Gear {
    pub context: Context,
    pub lanes: Lanes,
    pub launcher: Launcher,
    pub heap: Arc<Heap>,
    pub pool: Arc<Pool>,
    pub pinned: Arc<Pinned>,
    returned: Vec<Returned>,
    /// Copies to the device that are made a piece at a time.
    pub(super) uploads: VecDeque<Upload>,
    pub(super) downloads: Downloads,
    pub timing: Timing,
    /// Events that the reapers have to hear of.
    pub to_reap: Vec<ToReap>,
    /// What the launch that is being prepared has to come after.
    pub(super) after: SmallVec<[Mark; 8]>,
    /// What each lane's next flight has to keep; work that was queued for a step that had to be put
    /// off counts.
    pub(super) cargo: Vec<Cargo>,
    /// While a call is noted: launches go here, on memory that is only spoken of.
    pub(super) transcript: Option<Arc<Transcript>>,
    /// Plans that may have graphs.
    pub(super) graphs: Vec<Weak<Plan>>,
}

/// A step's memory beside its results, and its index error record.
pub(super) struct Berth {
    stream: Stream,
    pool: Arc<Pool>,
    scratch: RefCell<SmallVec<[Allocation; 4]>>,
    /// The same, where it is only spoken of.
    noted: RefCell<SmallVec<[u64; 4]>>,
    /// On a transcript it is an address alone.
    index_error: Cell<Option<Result<Span, u64>>>,
    /// Where the record is copied.
    block: Cell<Option<PinnedBlock>>,
    pinned: Arc<Pinned>,
    transcript: Option<Arc<Transcript>>,
}

impl Site for Berth {
    fn stream(&self) -> Stream {
        self.stream
    }

    fn scratch(&self, bytes: usize) -> Result<u64, Trouble> {
        let Some(transcript) = &self.transcript else { return Ok(self.room(bytes)?.ptr()) };
        let ptr = transcript.scratch(bytes);
        self.noted.borrow_mut().push(ptr);
        Ok(ptr)
    }

    fn index_error(&self) -> Result<u64, Trouble> {
        let record = match (self.index_error.get(), &self.transcript) {
            (Some(record), _) => record,
            // Whoever replays this zeroes it.
            (None, Some(transcript)) => Err(transcript.keep(INDEX_ERROR_BYTES)),
            (None, None) => {
                // Before anything is launched: there may be none now.
                self.block.set(Some(self.pinned.take(INDEX_ERROR_BYTES)?));
                let record = self.room(INDEX_ERROR_BYTES)?;
                self.stream.raw.zero(record)?;
                Ok(record)
            }
        };
        self.index_error.set(Some(record));
        Ok(record.map_or_else(|noted| noted, Span::ptr))
    }

    fn transcript(&self) -> Option<&Transcript> {
        self.transcript.as_deref()
    }
}

impl Berth {
    /// Scratch memory, which is not spoken of but there.
    pub fn room(&self, bytes: usize) -> Result<Span, Trouble> {
        let memory = self.pool.allocate(self.stream, bytes)?;
        let span = memory.span();
        self.scratch.borrow_mut().push(memory);
        Ok(span)
    }

    /// The step is queued: gives scratch memory back, and copies the index error record to the
    /// host, if there is one: what is in doubt about the step's node then.
    pub fn leave(self, gear: &mut Gear, node: &Node) -> Result<Option<Arc<Doubt>>, Trouble> {
        let doubt = match (&self.transcript, self.index_error.get()) {
            (Some(transcript), Some(Err(ptr))) => {
                let doubt = Doubt::stand_in(node.op.name(), node.at);
                transcript.doubts(doubt.clone(), ptr);
                Ok(Some(doubt))
            }
            (_, Some(Ok(record))) => match self.block.take() {
                Some(block) => {
                    let (lane, raw) = (self.stream.number, self.stream.raw);
                    gear.cargo[lane]
                        .download(block, record, raw)
                        .map(|block| Some(Doubt::new(block, node)))
                }
                None => Ok(None),
            },
            _ => Ok(None),
        };
        self.give_up()?;
        doubt
    }

    /// Gives scratch memory back.
    pub fn give_up(self) -> Result<(), Trouble> {
        if let Some(transcript) = &self.transcript {
            self.noted.take().into_iter().for_each(|ptr| transcript.release(ptr));
        }
        let mut scratch = self.scratch.take().into_iter();
        scratch.try_for_each(|memory| self.pool.free(self.stream, memory).map(drop))
    }
}

/// A buffer as device memory, where it is that.
pub(crate) fn device(buffer: &dyn Buffer) -> Option<&DeviceBuffer> {
    buffer.as_any().downcast_ref()
}

/// The memory of a value's storage on this device, if it is there.
pub(crate) fn here(value: &Value) -> Option<Span> {
    let Storage::Shared(buffer) = &value.storage else { return None };
    if let Some(here) = device(&**buffer) {
        return Some(here.span());
    }
    let handed: &Handed = buffer.as_any().downcast_ref()?;
    match &*handed.whereabouts() {
        Whereabouts::Here(here) => Some(here.span()),
        _ => None,
    }
}

/// Where a value's elements are, as far as a launch can use them.
pub(super) enum Place {
    Device(u64),
    /// The value has them itself.
    Inline,
}

impl Gear {
    /// Opens the device on this thread: a stream for each number of `reached`, the last but one for
    /// what is urgent, and the last for copies to the device.
    pub fn open(
        heap: Arc<Heap>,
        pinned: Arc<Pinned>,
        events: Arc<Events>,
        reached: Arc<[AtomicU64]>,
        timing: Timing,
        on_done: Arc<dyn Fn() + Send + Sync>,
        kept_max: usize,
    ) -> Result<Gear, String> {
        let context = Context::open(heap.ordinal, reached.len())?;
        let lanes = Lanes::new(&context.streams, reached, events);
        let background = Background::new(context.gpu.context, on_done);
        // Nothing runs yet.
        let _ = pinned.reserve();
        let pool = Pool::new(context.pool, kept_max, heap.account.clone());
        let open = Open {
            ordinal: heap.ordinal,
            context: context.gpu.context,
            pool: context.pool,
            background: background.clone(),
            pinned: pinned.clone(),
            closed: Arc::default(),
        };
        let launcher = Launcher::new(context.gpu, context.pool, background);
        let lanes_count = 0..context.streams.len();
        heap.opened(Some(open));
        Ok(Gear {
            context,
            lanes,
            launcher,
            heap,
            pool,
            pinned,
            timing,
            returned: Vec::new(),
            uploads: VecDeque::new(),
            downloads: Downloads::default(),
            to_reap: Vec::new(),
            after: SmallVec::new(),
            cargo: lanes_count.map(|_| Cargo::default()).collect(),
            transcript: None,
            graphs: Vec::new(),
        })
    }

    /// How it is to behave, before anything is asked of it.
    pub fn set(&mut self, tf32: bool, cudnn: bool, warm: bool, untaken: Untaken) {
        (self.launcher.blas.tf32, self.launcher.convolutions.tf32) = (tf32, tf32);
        (self.launcher.convolutions.wanted, self.launcher.convolutions.untaken) = (cudnn, untaken);
        if warm && has_cublas() {
            self.launcher.blas.handles.warm(self.copy_lane());
        }
    }

    /// Number of the lane for copies to the device.
    pub fn copy_lane(&self) -> usize {
        self.context.streams.len() - 1
    }

    pub(super) fn berth(&self, lane: usize) -> Berth {
        Berth {
            stream: self.lanes.stream(lane),
            pool: self.pool.clone(),
            scratch: RefCell::default(),
            noted: RefCell::default(),
            index_error: Cell::new(None),
            block: Cell::new(None),
            pinned: self.pinned.clone(),
            transcript: self.transcript.clone(),
        }
    }

    /// Sees to it that an event stands behind all that is queued on a lane.
    pub fn cover(&mut self, lane: usize) -> Result<(), Trouble> {
        let to_reap = &mut self.to_reap;
        self.lanes.cover(lane, &mut |lane, at, event| to_reap.push(ToReap { lane, at, event }))
    }

    /// The lane's next flight reads a buffer.
    pub(super) fn reads(&mut self, lane: usize, buffer: &DeviceBuffer) {
        self.after.extend(buffer.read_by(self.lanes.next(lane)));
    }

    /// The lane's next flight writes over a buffer.
    pub(super) fn overwrites(&mut self, lane: usize, buffer: &DeviceBuffer) {
        self.after.extend(buffer.overwritten_by(self.lanes.next(lane)));
    }

    /// Puts the lane behind what the next launch reads and writes over. To be called before it.
    pub(super) fn order(&mut self, lane: usize) -> Result<(), Trouble> {
        if self.transcript.is_some() {
            return Ok(());
        }
        let (to_reap, after) = (&mut self.to_reap, std::mem::take(&mut self.after));
        self.lanes
            .order(lane, &after, &mut |lane, at, event| to_reap.push(ToReap { lane, at, event }))?;
        self.timing.begin(self.lanes.raw(lane))
    }

    /// Where the elements of a value are for a launch on this lane, which is ordered after whoever
    /// wrote them; brings them to the device where they are elsewhere.
    pub(super) fn place(&mut self, lane: usize, value: &Value) -> Result<Place, Trouble> {
        let buffer = match &value.storage {
            Storage::Inline(_) => return Ok(Place::Inline),
            Storage::Shared(buffer) => buffer,
        };
        if let Some(here) = device(&**buffer) {
            self.reads(lane, here);
            return Ok(Place::Device(here.ptr()));
        }
        if let Some(there) = spoken_of(&**buffer) {
            return Ok(Place::Device(there.ptr()));
        }
        let brought = self.bring(lane, buffer)?;
        self.reads(lane, &brought);
        Ok(Place::Device(brought.ptr()))
    }

    /// The lane's next flight is queued: where it stands, and what it keeps.
    pub fn depart(&mut self, lane: usize) -> (Mark, Cargo) {
        (self.lanes.advance(lane), std::mem::take(&mut self.cargo[lane]))
    }

    /// Frees what was dropped, as far as order allows now; false where something has to wait.
    pub fn free_returned(&mut self) -> Result<bool, Trouble> {
        self.heap.end_graphs();
        self.returned.extend(self.heap.take_returned());
        self.heap.free(&mut self.returned, &self.pool, &self.lanes)?;
        Ok(self.returned.is_empty())
    }

    /// Gives back what can be given back at once; true, as there is more once nothing runs.
    pub fn begin_trim(&mut self) -> Result<bool, Trouble> {
        self.drop_graphs();
        self.launcher.forget_unused();
        self.pool.give_back(&self.lanes)?;
        Ok(true)
    }

    /// The rest, when no launch is under way: kernels, once no graph has them either. False: there
    /// is no more.
    pub fn end_trim(&mut self) -> Result<bool, Trouble> {
        self.drop_graphs();
        self.free_returned()?;
        let Some(idle) = self.lanes.idle() else { return Ok(true) };
        self.launcher.trim(&idle);
        self.pool.give_back(&self.lanes)?;
        // Behind the frees, and it may take long.
        let pool = self.context.pool;
        self.launcher.background.make(Wanted::Sometime, move || {
            pool.trim();
            Ok(())
        });
        Ok(false)
    }

    /// Frees that wait for the device to come further.
    pub fn frees_under_way(&self) -> usize {
        self.returned.len()
    }

    /// The end: nothing runs any more, and no buffer is left. What could not be given back is left
    /// to the end of the process. The context is the caller's to close.
    pub fn close(mut self) -> Context {
        let _ = self.free_returned();
        let _ = self.pool.give_back(&self.lanes);
        if let Some(idle) = self.lanes.idle() {
            self.launcher.clear(&idle);
            self.pinned.close(&idle);
        }
        self.heap.opened(None);
        self.context
    }
}
