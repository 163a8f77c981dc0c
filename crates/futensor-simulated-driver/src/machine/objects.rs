//! The objects behind a client's handles: contexts, devices, events, streams, pools, modules,
//! graphs. The code that works on them stands beside the entry points (`driver`).

use crate::checks::race::{Clock, Point};
use crate::kernels::bounds::Bounds;
use crate::kernels::image::Image;
use crate::machine::work::{GraphItem, Item};
use crate::status::Status;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

/// One context.
pub struct Context {
    /// Ordinal of its device.
    pub device: usize,
    /// How often a primary context is retained.
    pub references: usize,
    /// The error that ended it.
    pub error: Option<Status>,
    /// Contexts whose memory it may reach.
    pub peers: BTreeSet<u64>,
    /// The legacy default stream, once used.
    pub legacy_stream: Option<u64>,
    /// Default streams of threads, once used.
    pub thread_streams: BTreeMap<u64, u64>,
    /// `cuCtxSetFlags`.
    pub flags: u32,
    pub limits: BTreeMap<u32, usize>,
}

/// One device.
pub struct Device {
    /// Bytes of memory.
    pub memory: usize,
    /// The primary context, once retained.
    pub primary: Option<u64>,
    /// The error that lost the device.
    pub lost: Option<Status>,
}

impl Device {
    /// A device with this much memory.
    pub fn new(memory: usize) -> Device {
        Device { memory, primary: None, lost: None }
    }
}

/// One event.
#[derive(Default)]
#[allow(missing_docs)]
pub struct Event {
    pub context: u64,
    pub flags: u32,
    /// Where it was last recorded.
    pub point: Option<Point>,
    /// What is ordered before it.
    pub clock: Clock,
    /// The simulated time at which it was reached.
    pub time: Option<u64>,
    /// The capture it was last recorded in, and the nodes it stands behind.
    pub captured: Option<(u64, Vec<usize>)>,
}

/// One stream.
#[allow(missing_docs)]
pub struct Stream {
    pub context: u64,
    pub flags: u32,
    pub priority: i32,
    pub queue: VecDeque<Item>,
    /// Position of the last item put on it.
    pub enqueued: u64,
    /// Position up to which its work has run.
    pub completed: u64,
    /// Its first item is running.
    pub running: bool,
    /// That is only a mark in the order, not work.
    pub passing: bool,
    /// It does not move (`futsim_stall_stream`).
    pub stalled: bool,
    /// The client has destroyed it; it stays until its work has run.
    pub destroyed: bool,
    /// The capture it is part of.
    pub capture: Option<u64>,
}

/// One pool.
pub struct Pool {
    /// Ordinal of its device.
    pub device: usize,
    /// Devices that may reach its memory (`cuMemPoolSetAccess`).
    pub access: BTreeSet<usize>,
    pub threshold: u64,
    /// Memory that another stream freed is given out where that free has been waited for
    /// (`REUSE_FOLLOW_EVENT_DEPENDENCIES`).
    pub follows: bool,
    /// Or has run by now, whether it was waited for or not (`REUSE_ALLOW_OPPORTUNISTIC`).
    pub chances: bool,
    /// The most bytes that were allocated, and reserved.
    pub high: [usize; 2],
    /// Bytes that it has of the device, allocated or not.
    pub reserved: usize,
}

impl Pool {
    /// A pool of a device.
    pub fn of(device: usize) -> Pool {
        let (access, high) = (BTreeSet::new(), [0; 2]);
        Pool { device, access, threshold: 0, follows: true, chances: true, high, reserved: 0 }
    }

    /// It keeps what is freed.
    pub fn keeps(&self) -> bool {
        self.threshold > 0
    }
}

/// A loaded module.
#[allow(missing_docs)]
pub struct Module {
    pub context: u64,
    pub image: Arc<Image>,
    /// What it was compiled of.
    pub source: Arc<str>,
}

/// A kernel of a module.
#[allow(missing_docs)]
pub struct Function {
    pub module: u64,
    pub image: Arc<Image>,
    pub entry: usize,
    /// By its launch bounds: the most threads of a block, and the registers that each may have.
    pub bounds: Bounds,
    /// Dynamic shared memory it may be given; more than `SHARED_MAX` must be asked for.
    pub shared_max: AtomicUsize,
}

/// A capture in progress.
pub struct Capture {
    pub origin: u64,
    /// 0 no thread may call what is unsafe in a capture, 1 its own may not, 2 all may.
    pub mode: u32,
    pub thread: u64,
    /// Something was done that is not allowed meanwhile: nothing comes of it.
    pub broken: bool,
    pub nodes: Vec<GraphItem>,
    /// For each stream that takes part, the nodes its next node comes after.
    pub fronts: BTreeMap<u64, Vec<usize>>,
}

/// Captures, graphs and executable graphs.
#[derive(Default)]
pub struct Graphs {
    /// Kernels of libraries that have been loaded: each when it is first asked for.
    pub loaded: BTreeSet<String>,
    pub captures: BTreeMap<u64, Capture>,
    pub graphs: BTreeMap<u64, Vec<GraphItem>>,
    /// Executable graphs, and the graph each was made from.
    pub executables: BTreeMap<u64, (u64, Arc<Vec<GraphItem>>)>,
}
