//! The device context: lanes, memory, kernels, copies under way, and the driver's context below
//! them.
//!
//! The device's thread owns and uses it alone. The context knows values and nodes, but not when or
//! why a step runs.

use super::background::{Background, Pending, Wanted};
use super::driver_context::{DriverContext, has_cublas};
use super::graph::launch_list::{LaunchList, as_placeholder};
use super::index_check::IndexCheck;
use super::lanes::{Lanes, Mark};
use super::launch::launcher::Launcher;
use super::libraries::nvidia::{Allocation, Event, Events, Span};
use super::memory::chunked::{Downloads, Upload};
use super::memory::heap::{DeviceBuffer, Heap, Returned};
use super::memory::lazy_upload::{LazyUpload, Residency};
use super::memory::page_locked;
use super::memory::pinned::{Pinned, PinnedBlock, Retained};
use super::memory::pool::Pool;
use super::peers::Open;
use super::report::DeclinedConvolutions;
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

/// An event to be waited for, and the submission of the lane that it stands behind.
pub(crate) struct ToReap {
    pub lane: usize,
    pub at: u64,
    pub event: Event,
}

pub(crate) struct DeviceContext {
    pub driver: DriverContext,
    pub lanes: Lanes,
    pub launcher: Launcher,
    pub heap: Arc<Heap>,
    pub pool: Arc<Pool>,
    pub pinned: Arc<Pinned>,
    returned: Vec<Returned>,
    /// Copies to the device that are made a chunk at a time.
    pub(super) uploads: VecDeque<Upload>,
    pub(super) downloads: Downloads,
    pub timing: Timing,
    /// Events that the reapers have to hear of.
    pub to_reap: Vec<ToReap>,
    /// The marks that the launch in preparation has to come after.
    pub(super) after: SmallVec<[Mark; 8]>,
    /// The memory that each lane's next submission has to keep; work that was queued for a step
    /// that was deferred counts.
    pub(super) retained: Vec<Retained>,
    /// While a call is recorded: launches go here, on placeholder memory.
    pub(super) launch_list: Option<Arc<LaunchList>>,
    /// Plans that may have graphs.
    pub(super) graphs: Vec<Weak<Plan>>,
}

/// A step's memory beside its results, and its index error record.
pub(super) struct StepSite {
    stream: Stream,
    pool: Arc<Pool>,
    scratch: RefCell<SmallVec<[Allocation; 4]>>,
    /// The same on a launch list: addresses of placeholders.
    recorded: RefCell<SmallVec<[u64; 4]>>,
    /// On a launch list it is an address alone.
    index_error: Cell<Option<Result<Span, u64>>>,
    /// Where the record is copied.
    block: Cell<Option<PinnedBlock>>,
    pinned: Arc<Pinned>,
    launch_list: Option<Arc<LaunchList>>,
}

impl Site for StepSite {
    fn stream(&self) -> Stream {
        self.stream
    }

    fn scratch(&self, bytes: usize) -> Result<u64, Trouble> {
        let Some(launch_list) = &self.launch_list else { return Ok(self.room(bytes)?.ptr()) };
        let ptr = launch_list.scratch(bytes);
        self.recorded.borrow_mut().push(ptr);
        Ok(ptr)
    }

    fn index_error(&self) -> Result<u64, Trouble> {
        let record = match (self.index_error.get(), &self.launch_list) {
            (Some(record), _) => record,
            // Each replay zeroes it.
            (None, Some(launch_list)) => Err(launch_list.keep(INDEX_ERROR_BYTES)),
            (None, None) => {
                // Before anything is launched: there may be none now.
                self.block.set(Some(self.pinned.take(INDEX_ERROR_BYTES)?));
                let record = self.room(INDEX_ERROR_BYTES)?;
                self.stream.raw.zero(record)?;
                Ok(record)
            }
        };
        self.index_error.set(Some(record));
        Ok(record.map_or_else(|recorded| recorded, Span::ptr))
    }

    fn launch_list(&self) -> Option<&LaunchList> {
        self.launch_list.as_deref()
    }
}

impl StepSite {
    /// Scratch memory on the device, never a placeholder.
    pub fn room(&self, bytes: usize) -> Result<Span, Trouble> {
        let memory = self.pool.allocate(self.stream, bytes)?;
        let span = memory.span();
        self.scratch.borrow_mut().push(memory);
        Ok(span)
    }

    /// The step is queued: gives scratch memory back, and copies the index error record to the
    /// host, if there is one: the deferred index check of the step's node then.
    pub fn leave(
        self,
        context: &mut DeviceContext,
        node: &Node,
    ) -> Result<Option<Arc<IndexCheck>>, Trouble> {
        let check = match (&self.launch_list, self.index_error.get()) {
            (Some(launch_list), Some(Err(ptr))) => {
                let check = IndexCheck::stand_in(node);
                launch_list.add_check(check.clone(), ptr);
                Ok(Some(check))
            }
            (_, Some(Ok(record))) => match self.block.take() {
                Some(block) => {
                    let (lane, raw) = (self.stream.number, self.stream.raw);
                    context.retained[lane]
                        .download(block, record, raw)
                        .map(|block| Some(IndexCheck::new(block, node)))
                }
                None => Ok(None),
            },
            _ => Ok(None),
        };
        self.give_up()?;
        check
    }

    /// Gives scratch memory back.
    pub fn give_up(self) -> Result<(), Trouble> {
        if let Some(launch_list) = &self.launch_list {
            self.recorded.take().into_iter().for_each(|ptr| launch_list.release(ptr));
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
    let lazy: &LazyUpload = buffer.as_any().downcast_ref()?;
    match &*lazy.residency() {
        Residency::Resident(here) => Some(here.span()),
        _ => None,
    }
}

/// Where a value's elements are, as far as a launch can use them.
pub(super) enum Place {
    Device(u64),
    /// The value has them itself.
    Inline,
}

impl DeviceContext {
    /// Opens the device on this thread: a stream for each number of `reached`, the last but one for
    /// urgent work, and the last for copies to the device. The first may be somebody else's.
    #[allow(clippy::too_many_arguments)] // All that its one caller has of a device.
    pub fn open(
        heap: Arc<Heap>,
        pinned: Arc<Pinned>,
        events: Arc<Events>,
        reached: Arc<[AtomicU64]>,
        timing: Timing,
        on_done: Arc<dyn Fn() + Send + Sync>,
        kept_max: usize,
        lent: Option<usize>,
    ) -> Result<DeviceContext, String> {
        let driver = DriverContext::open(heap.ordinal, reached.len(), lent)?;
        let lanes = Lanes::new(&driver.streams, reached, events);
        let background = Background::new(driver.gpu.context, on_done);
        // Nothing runs yet.
        let _ = pinned.reserve();
        let pool = Pool::new(driver.pool, kept_max, heap.account.clone());
        let open = Open {
            ordinal: heap.ordinal,
            context: driver.gpu.context,
            pool: driver.pool,
            background: background.clone(),
            pinned: pinned.clone(),
            closed: Arc::default(),
        };
        let launcher = Launcher::new(driver.gpu, driver.pool, background);
        let lanes_count = 0..driver.streams.len();
        heap.opened(Some(open));
        Ok(DeviceContext {
            driver,
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
            retained: lanes_count.map(|_| Retained::default()).collect(),
            launch_list: None,
            graphs: Vec::new(),
        })
    }

    /// How it is to behave, before anything is asked of it.
    pub fn set(&mut self, tf32: bool, cudnn: bool, warm: bool, declined: DeclinedConvolutions) {
        (self.launcher.blas.tf32, self.launcher.convolutions.tf32) = (tf32, tf32);
        (self.launcher.convolutions.wanted, self.launcher.convolutions.declined) =
            (cudnn, declined);
        if warm && has_cublas() {
            self.launcher.blas.handles.warm(self.copy_lane());
        }
    }

    /// Number of the lane for copies to the device.
    pub fn copy_lane(&self) -> usize {
        self.driver.streams.len() - 1
    }

    pub(super) fn site(&self, lane: usize) -> StepSite {
        StepSite {
            stream: self.lanes.stream(lane),
            pool: self.pool.clone(),
            scratch: RefCell::default(),
            recorded: RefCell::default(),
            index_error: Cell::new(None),
            block: Cell::new(None),
            pinned: self.pinned.clone(),
            launch_list: self.launch_list.clone(),
        }
    }

    /// Sees to it that an event stands behind all that is queued on a lane.
    pub fn cover(&mut self, lane: usize) -> Result<(), Trouble> {
        let to_reap = &mut self.to_reap;
        self.lanes.cover(lane, &mut |lane, at, event| to_reap.push(ToReap { lane, at, event }))
    }

    /// The lane's next submission reads a buffer.
    pub(super) fn reads(&mut self, lane: usize, buffer: &DeviceBuffer) {
        self.after.extend(buffer.read_by(self.lanes.next(lane)));
    }

    /// The lane's next submission writes over a buffer.
    pub(super) fn overwrites(&mut self, lane: usize, buffer: &DeviceBuffer) {
        self.after.extend(buffer.overwritten_by(self.lanes.next(lane)));
    }

    /// Puts the lane behind the users of the memory that the next launch reads and writes over.
    /// Called before each launch.
    pub(super) fn order(&mut self, lane: usize) -> Result<(), Trouble> {
        if self.launch_list.is_some() {
            return Ok(());
        }
        let (to_reap, after) = (&mut self.to_reap, std::mem::take(&mut self.after));
        self.lanes
            .order(lane, &after, &mut |lane, at, event| to_reap.push(ToReap { lane, at, event }))?;
        self.timing.begin(self.lanes.raw(lane))
    }

    /// Where the elements of a value are for a launch on this lane, which is ordered after their
    /// writer; brings them to the device where they are elsewhere.
    pub(super) fn place(&mut self, lane: usize, value: &Value) -> Result<Place, Trouble> {
        let buffer = match &value.storage {
            Storage::Inline(_) => return Ok(Place::Inline),
            Storage::Shared(buffer) => buffer,
        };
        if let Some(here) = device(&**buffer) {
            self.reads(lane, here);
            return Ok(Place::Device(here.ptr()));
        }
        if let Some(there) = as_placeholder(&**buffer) {
            return Ok(Place::Device(there.ptr()));
        }
        let brought = self.bring(lane, buffer)?;
        self.reads(lane, &brought);
        Ok(Place::Device(brought.ptr()))
    }

    /// The lane's next submission is queued: its mark, and the memory that it keeps.
    pub fn depart(&mut self, lane: usize) -> (Mark, Retained) {
        (self.lanes.advance(lane), std::mem::take(&mut self.retained[lane]))
    }

    /// Frees dropped buffers, as far as order allows now; false where a buffer has to wait.
    pub fn free_returned(&mut self) -> Result<bool, Trouble> {
        self.heap.end_graphs();
        self.returned.extend(self.heap.take_returned());
        self.heap.free(&mut self.returned, &self.pool, &self.lanes)?;
        Ok(self.returned.is_empty())
    }

    /// Gives back memory that can be given back at once, in the order of the lanes.
    pub fn begin_trim(&mut self) -> Result<(), Trouble> {
        self.drop_graphs();
        self.launcher.forget_unused();
        self.free_returned()?;
        self.pool.give_back(&self.lanes)
    }

    /// Has the driver give back what its pool keeps, in the background: it may take long. `then` is
    /// called after that.
    pub fn trim_pool(&self, wanted: Wanted, then: impl FnOnce() + Send + 'static) -> Pending<()> {
        let (pool, ordinal) = (self.driver.pool, self.heap.ordinal);
        self.launcher.background.make(wanted, move || {
            pool.trim();
            page_locked::trim(ordinal);
            then();
            Ok(())
        })
    }

    /// The rest, when no launch is under way: kernels, once no graph has them either. True where
    /// that was all.
    pub fn end_trim(&mut self) -> Result<bool, Trouble> {
        self.drop_graphs();
        self.free_returned()?;
        let Some(idle) = self.lanes.idle() else { return Ok(false) };
        self.launcher.trim(&idle);
        self.pool.give_back(&self.lanes)?;
        // Behind the frees.
        self.trim_pool(Wanted::Sometime, || ());
        Ok(true)
    }

    /// Frees that wait for the device to come further.
    pub fn frees_under_way(&self) -> usize {
        self.returned.len()
    }

    /// The end: nothing runs any more, and no buffer is left. Memory that could not be given back
    /// is left to the end of the process. The caller closes the driver's context.
    pub fn close(mut self) -> DriverContext {
        let _ = self.free_returned();
        let _ = self.pool.give_back(&self.lanes);
        if let Some(idle) = self.lanes.idle() {
            self.launcher.clear(&idle);
            self.pinned.close(&idle);
            page_locked::trim(self.heap.ordinal);
        }
        self.heap.opened(None);
        self.driver
    }
}
