//! The port: the one place of a device that any thread may touch.
//!
//! Handles and nodes point at it for the life of the process (some kilobytes a device; devices
//! are few), so that making or dropping a value counts no reference on anything shared. Through it
//! run the intake, the counters, the generator's position and the log of detached errors. What the
//! engine does with them stands elsewhere.

#![allow(unsafe_code)]

mod fork;
pub(crate) mod publish;
mod schedule;

#[cfg(all(feature = "ranks", unix))]
use super::exchange::Engine;
use super::intake::{Attendance, Intake, Linked};
use super::limits::Limits;
use super::pressure::{Pressure, QueueLimits};
use super::record::Recordings;
use super::sources::Sources;
use crate::completion::{AWAITED, Phase, QUEUED};
use crate::counted::Inner;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind};
use crate::graph::node::{Home, Inputs, Node, NodeHandle, NodeLink, Op};
use crate::graph::operation::Operation;
use crate::graph::plan::Plan;
use crate::graph::value::Value;
use crate::memory::DeviceMemory;
use crate::memory::Memory;
use crate::shape::Shape;
// Counters and switches are no part of a lock-free protocol.
use crate::sync::plain::{self, AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use crate::sync::{Apart, AtomicPtr, Mutex, lock, lock_plain, statics};
use crate::tally::Tally;
use fork::Life;
use std::any::Any;
use std::panic::Location;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// Whoever owns a device's threads.
pub(crate) trait Runner: Send + Sync {
    /// Wakes a worker that the attendance named.
    fn wake(&self, worker: usize);
    /// Nobody attends and nobody is parked: starts threads where there are none.
    fn start(&self, port: &'static Port);
    /// The last `Device` handle is gone: threads may end once nothing is left to do.
    fn abandon(&self);
    /// Runs a small op on the thread of the poll that awaits it, if it can be run now; true where
    /// it is complete then. Only asked where the port says [`inline`](Port::inline).
    fn run_inline(&self, _port: &'static Port, _node: &mut NodeHandle, _limit_ns: u32) -> bool {
        false
    }
    /// The calling thread has begun to wait for a value of the device's, and is likely to sleep.
    fn awaits(&self) {}
    /// Whoever drives the device runs what is put to its [`Sources`]; else threads do.
    fn polls_sources(&self) -> bool {
        false
    }
    /// Gives cached memory back; bytes given.
    fn trim(&self) -> usize {
        0
    }
    /// Memory of the device's own, or the computer's.
    fn memory(&self) -> DeviceMemory {
        DeviceMemory::of_computer()
    }
    /// Nothing of a plan that has run is still to be made: another run takes no longer than those
    /// that follow.
    fn is_warm(&self, _plan: &Plan) -> bool {
        true
    }
    /// What its task table holds just now; nothing, where it has not begun.
    fn table_size(&self) -> TableSize {
        TableSize::default()
    }
    /// There is a kernel for this op of the crate's. What has none is asked for as ops that do.
    fn has_kernel(&self, _op: &dyn Operation) -> bool {
        true
    }
    /// A value of this device's from one that lies in host memory, or that another device
    /// [lends](Runner::lend).
    fn receive(&self, value: Value, _shape: &Shape, _dtype: DType) -> Value {
        value
    }
    /// A complete value of this device's as `to` takes it without a copy through the host, where
    /// that can be.
    fn lend(&self, value: &Value, _shape: &Shape, _to: &dyn Runner) -> Option<Value> {
        // Values are immutable: host devices share their elements.
        Some(value.clone())
    }
    /// What carries values of this device's from rank to rank, where it has a library of its own
    /// for that; or why it has not. It is asked where a group is to go by this device.
    #[cfg(all(feature = "ranks", unix))]
    fn exchange(&self, _port: &'static Port) -> Option<Result<Box<dyn Engine>, String>> {
        None
    }
    /// For tests, and to reach what only one kind of device has (a GPU's hardware name, say).
    #[allow(dead_code)]
    fn as_any(&self) -> &dyn Any;
}

/// What a device's task table holds at one moment.
#[derive(Clone, Copy, Default)]
pub(crate) struct TableSize {
    /// Nodes that wait, are delayed or run.
    pub entries: usize,
    /// `waitall`s that have not ended.
    pub markers: usize,
}

/// Places in [`Port::polls`]: small steps that polls have run, and awaits that have ended.
pub(crate) const INLINE: usize = 0;
pub(crate) const BARRIERS: usize = 1;

/// Counters of whoever runs ops. All are read by `Device::stats`.
#[derive(Default)]
pub(crate) struct Counters {
    /// Steps of the engine's.
    pub started: AtomicU64,
    pub fused: AtomicU64,
    pub skipped: AtomicU64,
    pub failed: AtomicU64,
    pub in_flight: AtomicUsize,
    pub events: AtomicU64,
    /// Steps that were launched as one graph.
    pub graphs: AtomicU64,
    /// Ops of steps whose values are published and that are still counted as queued.
    pub closing: AtomicUsize,
    /// The same of the small step that the engine runs just now. Only the one who attends writes
    /// it.
    pub closing_small: AtomicUsize,
}

/// Errors of detached work since the last `waitall`.
#[derive(Default)]
pub(crate) struct ErrorLog {
    pub kept: Vec<Error>,
    pub more: usize,
}

/// How many detached errors are kept.
const ERRORS_KEPT: usize = 64;
/// With more than this queued, what somebody awaits does not wait for its turn.
const BACKLOG: usize = 256;

pub(crate) struct Port {
    pub name: String,
    /// Polls may run small steps themselves.
    pub inline: bool,
    /// Values lie in memory that any thread may read.
    pub in_memory: bool,
    pub limits: Limits,
    /// Written at each op by whoever calls it.
    pub intake: Apart<Intake<Node>>,
    /// Looked at at each op, written when a worker comes or goes.
    pub attendance: Apart<Attendance>,
    /// What somebody awaits and is to be looked at before its turn; and whether there is any.
    awaited: Mutex<Vec<NodeLink>>,
    has_awaited: AtomicBool,
    /// Something is in the intake that no poll will run. A hint on a line of its own, which who
    /// attends looks at all the time.
    hurry: Apart<AtomicBool>,
    pub sources: Sources,
    /// Written at each op by whoever runs it.
    pub counters: Apart<Counters>,
    /// Counters of polls.
    pub polls: Tally<2>,
    /// Nanoseconds that awaits have waited.
    pub barrier_ns: AtomicU64,
    pub pressure: Pressure,
    pub memory: Arc<Memory>,
    pub runner: Box<dyn Runner>,
    pub generator: Mutex<(u64, u64)>,
    pub recordings: Recordings,
    errors: Mutex<ErrorLog>,
    /// Why it ends is in `end`.
    life: Life,
    end: Mutex<Option<(ErrorKind, String)>>,
    /// The `Device` handles' common token, while there is one.
    pub token: Mutex<std::sync::Weak<dyn Any + Send + Sync>>,
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

/// What a port is opened with.
pub(crate) struct Opening {
    pub name: String,
    pub inline: bool,
    pub in_memory: bool,
    pub limits: Limits,
    pub queue: QueueLimits,
    pub memory: Arc<Memory>,
    pub runner: Box<dyn Runner>,
    pub seed: u64,
}

impl Port {
    pub fn open(opening: Opening) -> &'static Port {
        let Opening { name, inline, in_memory, limits, queue, memory, runner, seed } = opening;
        let none: std::sync::Weak<dyn Any + Send + Sync> = std::sync::Weak::<()>::new();
        let port = Box::leak(Box::new(Port {
            name,
            inline,
            in_memory,
            limits,
            intake: Apart(Intake::new()),
            attendance: Apart(Attendance::new()),
            awaited: Mutex::new(Vec::new()),
            has_awaited: AtomicBool::new(false),
            hurry: Apart(AtomicBool::new(false)),
            sources: Sources::default(),
            counters: Apart::default(),
            polls: Tally::default(),
            barrier_ns: AtomicU64::new(0),
            pressure: Pressure::new(queue),
            memory,
            runner,
            generator: Mutex::new((seed, 0)),
            recordings: Recordings::default(),
            errors: Mutex::new(ErrorLog::default()),
            life: Life::default(),
            end: Mutex::new(None),
            token: Mutex::new(none),
        }));
        lock_plain(&PORTS).push(port);
        #[cfg(futensor_shuttle)]
        Port::close_at_end(port);
        #[cfg(all(unix, not(any(futensor_loom, futensor_shuttle))))]
        fork::list(&port.life);
        port
    }

    /// A port lives as long as the process, but for one of a schedule that is explored.
    #[cfg(futensor_shuttle)]
    fn close_at_end(port: &'static Port) {
        let address = std::ptr::from_ref(port).cast_mut();
        crate::sync::schedule::at_end(move || {
            assert_eq!(port.pressure.queued(), (0, 0), "stays queued");
            assert!(port.pressure.is_at_rest(), "somebody waits for room, or has a permit");
            assert!(!port.has_queued() && lock(&port.awaited).is_empty(), "stays to be looked at");
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

    /// Takes a new node in: it is queued and will be looked at. Returns its first handle.
    pub fn enqueue(&'static self, node: Node) -> NodeHandle {
        let (handle, queued) = self.enter(node);
        if let Some(queued) = queued {
            self.push(queued);
        }
        handle
    }

    /// Takes a new node in that is marked as queued, with a result of `bytes`: its first handle,
    /// and what is to be [pushed](Self::push). For a device that [has not ended](Self::is_ended).
    #[inline(always)]
    pub fn take_in(
        &'static self,
        node: impl FnOnce() -> Node,
        bytes: usize,
    ) -> (NodeHandle, Queued) {
        self.pressure.enqueued(bytes);
        let (handle, link) = NodeHandle::with_link(node);
        debug_assert!(handle.completion.state().has(QUEUED));
        super::events::op(&self.name, &handle);
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
        if self.is_ended()
            && let Some(error) = self.end_error(node.op.name(), node.at)
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

    /// Notes the error of a node that is detached.
    pub fn log(&self, error: &Error) {
        let mut errors = lock(&self.errors);
        if errors.kept.len() < ERRORS_KEPT {
            errors.kept.push(error.clone());
        } else {
            errors.more += 1;
        }
    }

    /// The errors of detached work since the last call.
    pub fn take_log(&self) -> ErrorLog {
        std::mem::take(&mut *lock(&self.errors))
    }

    /// From now on everything fails with this kind and message. The first end stays.
    pub fn end(&self, kind: ErrorKind, message: impl Into<String>) {
        lock(&self.end).get_or_insert((kind, message.into()));
        self.life.ended.store(true, Relaxed);
    }

    /// True where every new op fails.
    #[inline]
    pub fn is_ended(&self) -> bool {
        self.life.ended.load(Relaxed)
    }

    /// It has ended as it was asked to: nothing of it is lost.
    pub fn is_shut_down(&self) -> bool {
        matches!(&*lock(&self.end), Some((ErrorKind::Shutdown, _)))
    }

    /// The process was forked after it was opened: its threads are not here.
    pub fn is_forked(&self) -> bool {
        self.life.forked.load(Relaxed)
    }

    /// The error of whoever would wait for it then.
    #[cold]
    pub fn forked_error(&self, op: &str, at: &'static Location<'static>) -> Error {
        let text = "the device is the parent process's, and its threads are not in this one: open a device after the fork";
        Error::new(ErrorKind::DeviceLost, op, text, at)
    }

    /// The error with which `op` fails because the device has ended.
    pub fn end_error(&self, op: &str, at: &'static Location<'static>) -> Option<Error> {
        if self.is_forked() {
            return Some(self.forked_error(op, at));
        }
        let (kind, message) = lock(&self.end).clone()?;
        Some(Error::new(kind, op, message, at))
    }

    /// Notes, as threads start, whether the last `Device` handle is gone: values may ask for work
    /// after it. Else [`Runner::abandon`] sets this.
    pub fn note_abandoned(&self, abandoned: &AtomicBool) {
        // First the flag: a handle that goes just now sets it again.
        abandoned.store(false, plain::Ordering::SeqCst);
        if lock(&self.token).strong_count() == 0 {
            abandoned.store(true, plain::Ordering::SeqCst);
        }
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

/// A node that was never queued is no skipped work.
fn drop_unrun(node: Node) {
    if node.completion.claim(Phase::Writing, 0) {
        // SAFETY: claimed by us.
        unsafe { node.completion.fuse() };
    }
}

/// A value smaller than this is freed by whoever drops its last handle; a larger one is handed to
/// the engine, since giving its pages back may take a while.
const FREED_BY_CALLER: usize = 1 << 20;

impl Home for Port {
    fn unobserved(&'static self, node: NodeLink) {
        match node.completion.state_in_order().phase() {
            // Its queued work may now be cancelled.
            Phase::Pending => self.schedule(node),
            Phase::Done
                // A view's, whose elements others have, goes here: on its way to the engine it
                // would keep them from being written over.
                if node.value().is_some_and(|v| v.bytes_freed() >= FREED_BY_CALLER)
                    && node.is_only_owner() =>
            {
                self.schedule(node);
            }
            // Running work is never torn down: who runs it lets it go.
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
