//! The node: one value, its inputs, and its state.
//!
//! `tensor/` and `ops/` make a node, `engine/` takes it up, and it changes through its completion
//! alone. A node knows its home (the device's port) only as a place to send word to.

#![allow(unsafe_code)]

mod kind;

use super::asker::{Asker, asker};
use super::cost::{BYTE_PS, fold_ns, instr_ps};
use super::operation::Meta;
use super::program::{Arg, Code};
use super::value::{INLINE_BYTES, Storage, Value};
use crate::concurrent::completion::{Completion, Phase, QUEUED, VISITED};
use crate::concurrent::counted::{Counts, Handle, Inner, Link, Observed};
use crate::concurrent::live_counts::{LiveCount, NODES};
use crate::dtype::{DType, Scalar};
use crate::error::{Error, ErrorKind};
use crate::op::Cost;
use crate::shape::{Layout, Shape};
use crate::sync::threads::thread_local;
use crate::sync::{AtomicPtr, AtomicU32, Ordering, UnsafeCell};
pub(crate) use kind::{Op, Otherwise, Planned, Reduction, Room, Sink, Source, ViewOp};
use smallvec::{Array, SmallVec};
use std::cell::{Cell, RefCell};
use std::{any::Any, ops::Deref, panic::Location};

/// The device that a node lives on, as far as the graph needs to know.
pub(crate) trait Home: Sync {
    /// Its last handle is gone; the link may be the last owner.
    fn unobserved(&'static self, node: Link<Node>);
    /// A pending node was freed: nobody could observe it any more.
    fn skipped(&'static self, node: &Node);
    /// For the engine, which knows its own.
    fn as_any(&self) -> &dyn Any;
}

/// Rough time on one thread of a CPU: enough to tell what is worth a thread, a fusion delay or a
/// hand-over. Of an elementwise op by the table, as if all lay in the caches: what is moved is
/// known once it is known what it fuses with.
///
/// Never below [`floor_ns`], whatever an op says of itself. None of an elementwise op's operands
/// has more elements than the result, unless the result has none.
#[inline(always)]
fn cost_ns(op: &Op, inputs: &[Link<Node>], out: &Meta, numel: usize) -> u64 {
    let (a, b) = (Arg::Reg(0), Arg::Reg(1));
    let code = match *op {
        Op::Unary(op) => Code::Unary(op, a),
        Op::Binary(op) | Op::WithScalar { op, .. } => Code::Binary(op, a, b),
        Op::Where => Code::Where(a, b, b),
        Op::Arange { start, step } => Code::Arange { start, step },
        Op::Random { normal: true, seed, offset } => Code::Normal { seed, offset },
        Op::Random { normal: false, seed, offset } => Code::Uniform { seed, offset },
        Op::Cast | Op::View(ViewOp::Reshape) => Code::Cast(a),
        _ => return cost_of_others_ns(op, inputs, out),
    };
    let (n, dtype) = (numel as u64, out.dtype);
    if n == 0 {
        return floor_ns(inputs, &out.shape).max(20);
    }
    let on = inputs.last().map_or(dtype, |input| input.dtype);
    let moved = inputs.len() as u64 * on.size() as u64 + dtype.size() as u64;
    let floor = ((inputs.len() as u64 + 1) * 1000).div_ceil(ELEMENTS_PER_NS);
    let ps = (instr_ps(code, on, dtype) + moved * BYTE_PS).max(floor);
    20u64.saturating_add(n.saturating_mul(ps) / 1000)
}

#[inline(never)]
fn cost_of_others_ns(op: &Op, inputs: &[Link<Node>], out: &Meta) -> u64 {
    let estimate = match op {
        // Its ops have their floors.
        Op::Call(call) => return call.cost_ns(),
        Op::Reduce(_) | Op::Sink(_) => {
            let read = inputs.first().map_or(0, |i| i.numel() as u64);
            let cost =
                if let Op::Reduce(reduction) = op { reduction.op.cost() } else { Cost::fold };
            30 + fold_ns(cost, read).max(out.shape.numel() as u64 / 4)
        }
        Op::Custom(op) => {
            let metas: SmallVec<[&Meta; 4]> = inputs.iter().map(|i| &i.meta).collect();
            op.estimate_ns(&metas, out)
        }
        // Other looks at what is there, and one number repeated: no element is touched.
        Op::View(_) | Op::Fill(_) | Op::Predicated(_) | Op::Part(_) | Op::Given => return 20,
        // Whoever brings the value computes it; a marker has none.
        Op::Source(_) | Op::Marker => return 20,
        Op::Unary(_)
        | Op::Binary(_)
        | Op::WithScalar { .. }
        | Op::Where
        | Op::Cast
        | Op::Arange { .. }
        | Op::Random { .. } => unreachable!("what an instruction costs is in the table"),
    };
    let read = match op {
        Op::Custom(op) if op.picks() => inputs.get(1..).unwrap_or(&[]),
        _ => inputs,
    };
    estimate.max(floor_ns(read, &out.shape))
}

/// Elements that the fastest kernel may get through in a nanosecond: 64 bytes of float32 a
/// nanosecond is more than a core's own cache gives.
const ELEMENTS_PER_NS: u64 = 16;

/// Least time of an op that touches elements: those of all its operands and of its result. An op
/// that forgets one of them in its own estimate would else be run by a poll, however large that one
/// is.
#[inline(never)]
fn floor_ns(inputs: &[Link<Node>], shape: &Shape) -> u64 {
    let read = inputs.iter().fold(0u64, |sum, i| sum.saturating_add(i.numel() as u64));
    read.saturating_add(shape.numel() as u64) / ELEMENTS_PER_NS
}

/// Longest step that a poll runs itself. Five would be the round number: a product of [64, 64], the
/// commonest small one, takes 5.3 us with AVX-512, and handed to another thread it was awaited in
/// 14.9 us.
pub(crate) const INLINE_NS: u32 = 6_000;

/// Few inputs lie in the node.
pub(crate) type Inputs = SmallVec<[Link<Node>; 2]>;

/// The node is long, or it was made while an operand with this bit was not there.
const FAR: u32 = 1 << 31;

/// It takes longer than a poll may, or its value comes from elsewhere.
#[inline]
fn is_long(op: &Op, cost_ns: u32) -> bool {
    cost_ns > INLINE_NS || matches!(op, Op::Marker | Op::Source(_))
}

/// No entry in the engine's task table.
pub(crate) const NO_ENTRY: u32 = u32::MAX;

/// In this order in memory: the counts of the owner and what only the engine and the caller look at
/// lie in the first line, what a reader of the value looks at in the next ones. A caller that makes
/// op after op of one value counts it up at each, and would else take the line away from the core
/// that reads the value.
#[repr(C)]
pub(crate) struct Node {
    /// The next node in the intake, while it is in there.
    pub next: AtomicPtr<Inner<Node>>,
    pub home: &'static dyn Home,
    pub at: &'static Location<'static>,
    /// The engine's note: the node's entry in the task table. Only who holds the device's scheduler
    /// reads or writes it.
    pub entry: AtomicU32,
    /// See [`cost_ns`](Self::cost_ns), and [`FAR`]: a field of its own would move those behind it
    /// to other lines.
    cost: u32,
    /// The inputs. The writer of the value lets them go.
    inputs: UnsafeCell<Inputs>,
    /// The value or the error, and its waiters.
    pub completion: Completion<Result<Value, Error>>,
    /// Its shape and type; see `Deref`.
    pub meta: Meta,
    pub op: Op,
    /// Who asked for it: goes as the inputs do.
    asker: UnsafeCell<Asker>,
    live: LiveCount<NODES>,
}

// SAFETY: all fields but `inputs` and `asker` are Sync. These are read by whoever may take the node
// up (the claimer, or the engine in its task table while nobody has claimed it) and emptied once,
// by the holder of the right to write; see `inputs` and `let_go`.
unsafe impl Sync for Node {}
// SAFETY: as above; links may be dropped on any thread.
unsafe impl Send for Node {}

impl Node {
    pub fn new(
        op: Op,
        inputs: Inputs,
        shape: Shape,
        dtype: DType,
        home: &'static dyn Home,
        at: &'static Location<'static>,
    ) -> Node {
        let numel = shape.numel();
        Node::with(|| op, || inputs, || Meta { shape, dtype }, home, at, numel, 0)
    }

    /// A node with these flags; `numel` is what the shape says. Part of its caller, so that the
    /// fields are written where the node will be, and none of it is copied.
    ///
    /// The parts that may unwind are made first. A part that is there by then would have to be
    /// dropped on the way, so it would lie on the stack, and be copied from there: a processor
    /// waits for that (12 ns of 44, for an op that is queued).
    #[inline(always)]
    #[allow(clippy::too_many_arguments)] // All of a node that is not the same in each new one.
    pub fn with(
        op: impl FnOnce() -> Op,
        inputs: impl FnOnce() -> Inputs,
        meta: impl FnOnce() -> Meta,
        home: &'static dyn Home,
        at: &'static Location<'static>,
        numel: usize,
        flags: u32,
    ) -> Node {
        let asker = asker();
        let meta = meta();
        let inputs = inputs();
        let op = op();
        let cost_ns = cost_ns(&op, &inputs, &meta, numel).min(u64::from(FAR - 1)) as u32;
        let is_far = is_long(&op, cost_ns) || inputs.iter().any(|input| input.is_left_by_polls());
        Node {
            op,
            meta,
            home,
            at,
            cost: cost_ns | if is_far { FAR } else { 0 },
            completion: Completion::pending(flags),
            inputs: UnsafeCell::new(inputs),
            next: AtomicPtr::new(std::ptr::null_mut()),
            entry: AtomicU32::new(NO_ENTRY),
            asker: UnsafeCell::new(asker),
            live: LiveCount::new(),
        }
    }

    /// Estimated time on one thread of a CPU, in nanoseconds; at most 2.1 seconds.
    #[inline]
    pub fn cost_ns(&self) -> u32 {
        self.cost & !FAR
    }

    /// True where it takes longer than a poll may, or its value comes from elsewhere.
    #[inline]
    pub fn is_long(&self) -> bool {
        is_long(&self.op, self.cost_ns())
    }

    /// True where no poll runs it: it is not there, and it is long or was made behind such a node.
    /// A poll that found that out by itself would claim the node and its ancestors for a moment,
    /// and the engine would make steps without them.
    #[inline]
    pub fn is_left_by_polls(&self) -> bool {
        // A reader on another core may have the line of the state; of most operands it is not read.
        self.cost & FAR != 0 && !self.completion.state().is_complete()
    }

    /// A node whose value, or error, is known from the start.
    pub fn complete(
        shape: Shape,
        dtype: DType,
        home: &'static dyn Home,
        at: &'static Location<'static>,
        value: Result<Value, Error>,
    ) -> Node {
        let failed = value.is_err();
        Node {
            op: Op::Given,
            meta: Meta { shape, dtype },
            home,
            at,
            cost: 0,
            completion: Completion::completed(value, failed),
            inputs: UnsafeCell::new(Inputs::new()),
            next: AtomicPtr::new(std::ptr::null_mut()),
            entry: AtomicU32::new(NO_ENTRY),
            asker: UnsafeCell::new(Asker::default()),
            live: LiveCount::new(),
        }
    }

    pub fn numel(&self) -> usize {
        self.shape.numel()
    }

    /// The inputs.
    ///
    /// # Safety
    /// The caller may take the node up: it holds the claim, or it is the engine and the node is
    /// pending in its task table, or the node is a pending temporary that only a node claimed by
    /// the caller can reach. In each case nobody else lets the inputs go meanwhile.
    pub unsafe fn inputs(&self) -> &[Link<Node>] {
        // SAFETY: the caller's promise.
        self.inputs.with(|inputs| unsafe { (*inputs).as_slice() })
    }

    /// Who asked for it, until it lets its inputs go.
    ///
    /// # Safety
    /// As of [`inputs`](Self::inputs).
    pub unsafe fn asker(&self) -> &Asker {
        // SAFETY: the caller's promise.
        self.asker.with(|asker| unsafe { &*asker })
    }

    /// Nobody is said to have asked for it: it is kept, and would keep a span.
    pub fn unasked(&mut self) {
        // SAFETY: `&mut self`: nobody else has the node.
        self.asker.with_mut(|asker| unsafe { drop(std::mem::take(&mut *asker)) });
    }

    /// Empties the inputs. The writer of the value calls this before it publishes, so that nobody
    /// else can be reading them.
    ///
    /// # Safety
    /// As of [`inputs`](Self::inputs), and nobody else reads them meanwhile: the caller holds the
    /// right to write, or runs the step that the node is claimed for, or owns the node alone.
    pub unsafe fn let_go(&self) -> Inputs {
        // SAFETY: the caller's promise: nobody else reads or writes them now, nor the asker.
        self.asker.with_mut(|asker| unsafe { drop(std::mem::take(&mut *asker)) });
        // SAFETY: the same.
        self.inputs.with_mut(|inputs| unsafe { std::mem::take(&mut *inputs) })
    }

    /// [`let_go`](Self::let_go), one at a time, the last first.
    ///
    /// # Safety
    /// The same.
    #[inline]
    pub unsafe fn let_go_each(&self, each: impl FnMut(NodeLink)) {
        // SAFETY: as above.
        self.asker.with_mut(|asker| unsafe { drop(std::mem::take(&mut *asker)) });
        // SAFETY: as above.
        self.inputs.with_mut(|inputs| pops(unsafe { &mut *inputs }).for_each(each));
    }

    /// The value, where it is there.
    pub fn value(&self) -> Option<&Value> {
        self.completion.get().and_then(|r| r.as_ref().ok())
    }

    /// The error, where it failed.
    pub fn error(&self) -> Option<&Error> {
        self.completion.get().and_then(|r| r.as_ref().err())
    }

    /// An error of this node: its op's name and the caller's line.
    pub fn fail(&self, kind: ErrorKind, message: impl Into<String>) -> Error {
        Error::new(kind, self.op.blamed(), message, self.at)
    }

    /// The value of a constant: one element, repeated. It takes no memory on any device.
    pub fn constant(&self, number: Scalar) -> Value {
        let mut words = [0u64; INLINE_BYTES / 8];
        words[0] = number.word(self.dtype);
        let strides = SmallVec::from_elem(0, self.shape.rank());
        Value::placed(
            Storage::Inline(words),
            &Layout { shape: self.shape.clone(), strides, offset: 0 },
        )
    }

    /// The value of a node of which one of so many inputs has failed, where it has one all the
    /// same.
    pub fn instead<'v>(
        &self,
        inputs: usize,
        input: impl Fn(usize) -> Result<&'v Value, &'v Error>,
    ) -> Option<Value> {
        match self.op {
            Op::Predicated(Otherwise::Number(number)) => Some(self.constant(number)),
            Op::Predicated(Otherwise::Second) if (2..inputs).any(|i| input(i).is_err()) => {
                input(1).ok().cloned()
            }
            _ => None,
        }
    }

    pub fn entry(&self) -> Option<u32> {
        let entry = self.entry.load(Ordering::Relaxed);
        (entry != NO_ENTRY).then_some(entry)
    }

    pub fn set_entry(&self, entry: Option<u32>) {
        self.entry.store(entry.unwrap_or(NO_ENTRY), Ordering::Relaxed);
    }
}

/// Shape and type are known from the start, and read off the node itself.
impl Deref for Node {
    type Target = Meta;
    #[inline(always)]
    fn deref(&self) -> &Meta {
        &self.meta
    }
}

impl Observed for Node {
    fn unobserved(this: Link<Node>) {
        let home = this.home;
        home.unobserved(this);
    }
}

thread_local! {
    /// A node is being freed, and lets go of its inputs.
    static FREEING: Cell<bool> = const { Cell::new(false) };
    /// Those that go after it, so that a chain of a million is freed in a loop. Apart from the
    /// flag, since mostly there are none: one `Option` of a list, taken out and put back, was 10 ns
    /// of an awaited chain of two.
    static NEXT: RefCell<Vec<Link<Node>>> = const { RefCell::new(Vec::new()) };
}

impl Drop for Node {
    fn drop(&mut self) {
        if self.completion.state().phase() == Phase::Pending && !matches!(self.op, Op::Marker) {
            self.home.skipped(self);
        }
        // SAFETY: `&mut self`: nobody else has the node.
        self.inputs.with_mut(|inputs| free(pops(unsafe { &mut *inputs })));
    }
}

/// A node's owners, without the engine's links that only ask for a visit, or make it. Never fewer
/// than may come to read the node. (A thread that schedules a node has a handle, or had the link
/// that it pushes before the value could be there.)
pub(crate) fn readers(link: &NodeLink) -> Counts {
    // First the counts: each flag goes before its link does.
    let counts = link.counts();
    let state = link.completion.state();
    let visits = state.has(QUEUED) as u32 + state.has(VISITED) as u32;
    Counts { links: counts.links.saturating_sub(visits), ..counts }
}

/// True where these links are the only way to the node's value that is left.
pub(crate) fn is_read_by(link: &NodeLink, links: u32) -> bool {
    readers(link) == Counts { handles: 0, links }
}

/// The links of a list, the last one first. (To take few links out of a node as a list took 150
/// instructions.)
pub(crate) fn pops<A: Array>(list: &mut SmallVec<A>) -> impl Iterator<Item = A::Item> {
    std::iter::from_fn(|| list.pop())
}

/// Drops links without recursion: a link's last drop may free a node, which lets go of its inputs.
/// Runs of links to one node are released at once.
#[inline]
pub(crate) fn free(links: impl IntoIterator<Item = NodeLink>) {
    let mut links = links.into_iter();
    let mut next = links.next();
    while let Some(link) = next {
        let mut more = 0;
        next = loop {
            match links.next() {
                Some(other) if other.address() == link.address() => {
                    other.defer();
                    more += 1;
                }
                other => break other,
            }
        };
        link.drop_deferred(more);
        if link.is_only_owner() {
            release(link);
        }
    }
}

/// Drops the last owner of a node.
fn release(link: NodeLink) {
    if FREEING.replace(true) {
        return NEXT.with_borrow_mut(|list| list.push(link));
    }
    drop(link);
    while let Some(next) = NEXT.with_borrow_mut(Vec::pop) {
        drop(next);
    }
    FREEING.set(false);
}

/// Handle on a node, as users hold it.
pub(crate) type NodeHandle = Handle<Node>;
/// Link to a node, as the intake, the task table and edges hold it.
pub(crate) type NodeLink = Link<Node>;
