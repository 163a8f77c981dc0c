//! The port: the part of a device that any thread may touch.
//!
//! Handles and nodes point at the port for the life of the process (some kilobytes a device;
//! devices are few), so that making or dropping a value counts no reference on anything shared. The
//! port is made of parts, each with one law of its own: see [`Port`]. Here stand the parts, the
//! devices' [`Runner`] trait, and the way of a new node in; `schedule` asks the engine for visits,
//! and `publish` makes ends known.

#![allow(unsafe_code)]

pub(crate) mod counters;
mod fork;
mod life;
mod mailbox;
pub(crate) mod publish;
mod schedule;

#[cfg(all(feature = "ranks", unix))]
use super::exchange::Engine;
use super::intake::Linked;
use super::limits::Limits;
use super::pressure::{Pressure, QueueLimits};
use super::record::Recordings;
use super::sources::Sources;
use crate::concurrent::completion::{AWAITED, Phase, QUEUED};
use crate::concurrent::counted::Inner;
use crate::dtype::DType;
use crate::error::Error;
use crate::graph::node::{Home, Inputs, Node, NodeHandle, NodeLink, Op};
use crate::graph::operation::{Operation, Refusal};
use crate::graph::plan::Plan;
use crate::graph::value::{Buffer, Value};
use crate::memory::{DeviceMemory, Memory, PoolMemory};
use crate::shape::Shape;
// Counters are no part of a lock-free protocol.
use crate::sync::plain::{self, Ordering::Relaxed};
use crate::sync::{AtomicPtr, CachePadded, Mutex, lock_plain, statics};
use counters::{Counters, ErrorLog, PollCounters};
use life::Life;
use mailbox::Mailbox;
use std::any::Any;
use std::panic::Location;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// The owner of a device's threads.
pub(crate) trait Runner: Send + Sync {
    /// Wakes a worker that the attendance named.
    fn wake(&self, worker: usize);
    /// No worker attends and none is parked: starts threads where there are none.
    fn start(&self, port: &'static Port);
    /// The last `Device` handle is gone: threads may end once nothing is left to do.
    fn abandon(&self);
    /// Runs a small op on the thread of the poll that awaits it, if it can be run now; true where
    /// it is complete then. Called only where the port says [`inline`](Profile::inline).
    fn run_inline(&self, _port: &'static Port, _node: &mut NodeHandle, _limit_ns: u32) -> bool {
        false
    }
    /// The calling thread has begun to wait for a value of the device's, and is likely to sleep.
    fn awaits(&self) {}
    /// The driver of the device runs the jobs of its [`Sources`]; else threads do.
    fn polls_sources(&self) -> bool {
        false
    }
    /// Gives cached memory back; bytes given.
    fn trim(&self) -> usize {
        0
    }
    /// The same, for one who waits until it is done: the number of this trim.
    fn ask_trim(&self) -> u64 {
        self.trim();
        0
    }
    /// True once that trim is done; else the waker goes onto a list under the key.
    fn is_trimmed(&self, _number: u64, _key: &mut Option<u64>, _waker: &Waker) -> bool {
        true
    }
    /// Nobody waits under this key any more.
    fn forget_trim(&self, _key: u64) {}
    /// Memory of the device's own, or the computer's.
    fn memory(&self) -> DeviceMemory {
        DeviceMemory::of_computer()
    }
    /// Pools of memory beside that of values.
    fn pools(&self) -> Vec<PoolMemory> {
        Vec::new()
    }
    /// Everything that a plan needs has been made, after so many runs of it: another run takes no
    /// longer than later ones.
    fn is_warm(&self, _plan: &Plan, _runs: u32) -> bool {
        true
    }
    /// The size of the task table just now.
    fn table_size(&self) -> TableSize {
        TableSize::default()
    }
    /// True where the device has a kernel for this op of the crate's. An op without a kernel is
    /// called as a combination of ops that have one.
    fn has_kernel(&self, _op: &dyn Operation) -> bool {
        true
    }
    /// A value of this device's from one that lies in host memory, or that another device
    /// [lends](Runner::lend).
    fn receive(&self, value: Value, _shape: &Shape, _dtype: DType) -> Value {
        value
    }
    /// The number of the GPU and the address of the memory in which a complete value lies there.
    fn address(&self, _value: &Value) -> Option<(usize, u64)> {
        None
    }
    /// A buffer in memory of a GPU that somebody else lends, and keeps until `owner` has been
    /// dropped; `owner` is asked for where the memory is taken.
    fn lent(
        &self,
        _port: &'static Port,
        gpu: usize,
        _address: u64,
        _bytes: usize,
        _owner: &dyn Fn() -> Box<dyn Any + Send>,
    ) -> Result<Arc<dyn Buffer>, String> {
        Err(format!("memory of GPU {gpu}"))
    }
    /// Host memory of at least so many bytes that the device reads where it lies, and whether it is
    /// new, where the device has such memory. The call may wait for running work.
    fn page_locked(&self, _bytes: usize) -> Option<Result<(Arc<dyn Buffer>, bool), Refusal>> {
        None
    }
    /// A complete value of this device's in the form that `to` takes without a copy through the
    /// host, where there is one.
    fn lend(&self, value: &Value, _shape: &Shape, _to: &dyn Runner) -> Option<Value> {
        // Values are immutable: host devices share their elements.
        Some(value.clone())
    }
    /// The library that carries values of this device's from rank to rank, where the device has one
    /// of its own; or the reason why not. Called when a group is to go by this device.
    #[cfg(all(feature = "ranks", unix))]
    fn exchange(&self, _port: &'static Port) -> Option<Result<Box<dyn Engine>, String>> {
        None
    }
    /// For tests, and for facts that only one kind of device has (a GPU's hardware name, say).
    #[allow(dead_code)]
    fn as_any(&self) -> &dyn Any;
}

/// The size of a device's task table at one moment.
#[derive(Clone, Copy, Default)]
pub(crate) struct TableSize {
    /// Nodes that wait, are delayed or run.
    pub entries: usize,
    /// `waitall`s that have not ended.
    pub markers: usize,
}

/// Beyond this number of queued nodes, an awaited one does not wait for its turn.
const BACKLOG: usize = 256;

/// The fixed facts of a device.
///
/// The law: fixed when the device is opened, and never written again, so that any thread reads it
/// as plain memory.
pub(crate) struct Profile {
    pub name: String,
    /// Polls may run small steps themselves.
    pub inline: bool,
    /// Values lie in memory that any thread may read.
    pub in_memory: bool,
    /// Each result is checked for what is not finite, unless a scope says otherwise.
    pub check_finite: bool,
    pub limits: Limits,
}

/// The part of a device that any thread may touch.
///
/// The law: a port is never freed, and each of its parts says who may write it. A part that a
/// caller or a worker writes at every op lies in lines of its own ([`CachePadded`]).
pub(crate) struct Port {
    pub profile: Profile,
    pub mailbox: Mailbox,
    pub pressure: Pressure,
    pub life: Life,
    pub counters: CachePadded<Counters>,
    pub polls: PollCounters,
    pub log: ErrorLog,
    pub recordings: Recordings,
    pub sources: Sources,
    pub memory: Arc<Memory>,
    pub runner: Box<dyn Runner>,
    /// Seed and position of the device's own random numbers. A call reserves its positions.
    pub generator: CachePadded<Mutex<(u64, u64)>>,
}

/// A node that was marked as queued, and is not in the intake yet.
#[must_use]
pub(crate) struct Queued(NodeLink);

impl Linked for Node {
    fn next(&self) -> &AtomicPtr<Inner<Node>> {
        &self.next
    }
}

statics! {
    /// All ports, so that `futensor::waitall` can join them.
    static PORTS: plain::Mutex<Vec<&'static Port>> = plain::Mutex::new(Vec::new());
}

/// Every port of the process.
pub(crate) fn all() -> Vec<&'static Port> {
    lock_plain(&PORTS).clone()
}

/// The description of a device that is to be opened.
pub(crate) struct Opening {
    pub profile: Profile,
    pub queue: QueueLimits,
    pub memory: Arc<Memory>,
    pub runner: Box<dyn Runner>,
    pub seed: u64,
}

impl Port {
    pub fn open(opening: Opening) -> &'static Port {
        let Opening { profile, queue, memory, runner, seed } = opening;
        let life = Life::new(profile.check_finite);
        let port = Box::leak(Box::new(Port {
            profile,
            mailbox: Mailbox::new(),
            pressure: Pressure::new(queue),
            life,
            counters: CachePadded::default(),
            polls: PollCounters::default(),
            log: ErrorLog::default(),
            recordings: Recordings::default(),
            sources: Sources::default(),
            memory,
            runner,
            generator: CachePadded(Mutex::new((seed, 0))),
        }));
        lock_plain(&PORTS).push(port);
        #[cfg(futensor_shuttle)]
        Port::close_at_end(port);
        #[cfg(all(unix, not(any(futensor_loom, futensor_shuttle))))]
        fork::list(&port.life.switches);
        port
    }

    /// A port lives as long as the process, except under the explorer of schedules.
    #[cfg(futensor_shuttle)]
    fn close_at_end(port: &'static Port) {
        let address = std::ptr::from_ref(port).cast_mut();
        crate::sync::schedule::at_end(move || {
            assert_eq!(port.pressure.queued(), (0, 0), "stays queued");
            assert!(port.pressure.is_at_rest(), "somebody waits for room, or has a permit");
            assert!(!port.mailbox.has_queued(), "stays to be visited");
            assert_eq!(port.counters.in_flight.load(Relaxed), 0, "stays in flight");
            assert_eq!(
                port.counters.closing.load(Relaxed) + port.counters.closing_small.load(Relaxed),
                0
            );
            assert_eq!(port.memory.bytes().live, 0, "bytes stay");
            assert!(!port.sources.run(), "a source stays to be polled");
            // SAFETY: it was leaked above; no thread of the device's is left, and no node, as was
            // seen.
            drop(unsafe { Box::from_raw(address) });
        });
    }

    /// The port that a node was made by.
    #[inline]
    pub fn of(node: &Node) -> &'static Port {
        debug_assert!(node.home.as_any().is::<Port>());
        // SAFETY: `Home` has one implementation, the one below, and lives in this crate. (To ask
        // for the type takes two calls through tables at each op.)
        unsafe { &*(node.home as *const dyn Home as *const Port) }
    }

    /// Takes a new node in and queues it: its first handle.
    #[inline]
    pub fn enqueue(&'static self, node: Node) -> NodeHandle {
        let (handle, queued) = self.enter(node);
        if let Some(queued) = queued {
            self.push(queued);
        }
        handle
    }

    /// Takes a new node in that is marked as queued, with a result of `bytes`: its first handle,
    /// and the link that is to be [pushed](Self::push). For a device that [has not
    /// ended](Life::is_ended).
    #[inline(always)]
    pub fn take_in(
        &'static self,
        node: impl FnOnce() -> Node,
        bytes: usize,
    ) -> (NodeHandle, Queued) {
        self.pressure.enqueued(bytes);
        let (handle, link) = NodeHandle::with_link(node);
        debug_assert!(handle.completion.state().has(QUEUED));
        super::events::op(&self.profile.name, &handle);
        (handle, Queued(link))
    }

    /// Queues a point that is reached when everything before it is done.
    pub fn enqueue_marker(&'static self, at: &'static Location<'static>) -> NodeHandle {
        let mut node = Node::new(Op::Marker, Inputs::new(), ().into(), DType::Bool, self, at);
        node.completion.mark(QUEUED | AWAITED);
        let (handle, link) = NodeHandle::with_link(|| node);
        self.push(Queued(link));
        handle
    }

    /// Takes a new node in: its first handle, and what is to be [pushed](Self::push) if the device
    /// is there.
    pub fn enter(&'static self, mut node: Node) -> (NodeHandle, Option<Queued>) {
        if self.life.is_ended()
            && let Some(error) = self.life.end_error(node.op.name(), node.at)
        {
            {
                let (shape, dtype, at) = (node.shape.clone(), node.dtype, node.at);
                drop_unrun(node);
                return (self.given(shape, dtype, at, Err(error)), None);
            }
        }
        node.completion.mark(QUEUED);
        let bytes = node.bytes();
        let (handle, queued) = self.take_in(|| node, bytes);
        (handle, Some(queued))
    }

    /// A node whose value or error is there already.
    pub fn given(
        &'static self,
        shape: Shape,
        dtype: DType,
        at: &'static Location<'static>,
        value: Result<Value, Error>,
    ) -> NodeHandle {
        self.count_failure(&value);
        NodeHandle::new(Node::complete(shape, dtype, self, at, value))
    }

    /// Asks a source for its value: here where its poll is this library's own, else where it may
    /// take long.
    pub fn ask_source(&'static self, node: NodeLink, waker: Waker) {
        match &node.op {
            Op::Source(source) if source.is_ours() => self.poll_source(node, &waker),
            _ => self.aside(move || self.poll_source(node, &waker)),
        }
    }

    /// Runs code of the user's that may take long, where nobody waits for it.
    pub fn aside(&'static self, code: impl FnOnce() + Send + 'static) {
        self.sources.put(!self.runner.polls_sources(), code);
    }

    /// Asks a source for its value; where it is there the engine is to look at it.
    pub fn poll_source(&'static self, node: NodeLink, waker: &Waker) {
        let Op::Source(source) = &node.op else { return };
        let Poll::Ready(result) = source.poll(&mut Context::from_waker(waker)) else { return };
        if node.completion.claim(Phase::Writing, 0) {
            self.counters.started.fetch_add(1, Relaxed);
            self.counters.closing.fetch_add(1, Relaxed);
            // SAFETY: claimed by us.
            unsafe { self.finish(&node, result) };
            self.pressure.finished(1, node.bytes());
            self.counters.closing.fetch_sub(1, Relaxed);
        }
        self.schedule(node);
    }
}

/// Drops a node that was never queued: that is no skipped work.
fn drop_unrun(node: Node) {
    if node.completion.claim(Phase::Writing, 0) {
        // SAFETY: claimed by us.
        unsafe { node.completion.fuse() };
    }
}

/// The thread that drops the last handle frees a value smaller than this. A larger one is handed to
/// the engine, since giving its pages back may take a while.
const FREED_BY_CALLER: usize = 1 << 20;

impl Home for Port {
    fn unobserved(&'static self, node: NodeLink) {
        match node.completion.state_in_order().phase() {
            // The queued work may now be cancelled.
            Phase::Pending => self.schedule(node),
            Phase::Done
                // A view that shares its elements goes here: on its way to the engine it would keep
                // them from being written over.
                if node.value().is_some_and(|v| v.bytes_freed() >= FREED_BY_CALLER)
                    && node.is_only_owner() =>
            {
                self.schedule(node);
            }
            // Running work is never torn down: its thread lets the node go.
            _ => {}
        }
    }

    fn skipped(&'static self, node: &Node) {
        if self.recordings.is_on() {
            // SAFETY: the node is being freed: nobody else has it.
            unsafe { self.recordings.skip(node) };
        }
        self.counters.skipped.fetch_add(1, Relaxed);
        self.pressure.finished(1, node.bytes());
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
