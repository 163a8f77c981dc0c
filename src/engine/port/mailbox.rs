//! The mailbox of a device: the nodes that are scheduled, and the worker that attends to them.
//!
//! Knows nothing of runners and devices.

use crate::engine::intake::{Attendance, Batch, Intake};
use crate::graph::node::{Node, NodeLink};
use crate::sync::plain::{AtomicBool, Ordering::Relaxed};
use crate::sync::{CachePadded, Mutex, Ordering::SeqCst, lock};

/// The way from callers to the engine.
///
/// The law: any thread puts nodes in, and the attending worker alone takes them out. A thread that
/// has put a node in then looks at the attendance, and a worker that leaves looks at the mailbox
/// after that, in one total order: so no node stays in while nobody attends.
///
/// Each field that callers or workers write at every op has lines of its own.
pub(crate) struct Mailbox {
    /// Every op's caller writes it.
    pub intake: CachePadded<Intake<Node>>,
    /// Every op's caller reads it; a worker that comes or goes writes it.
    pub attendance: CachePadded<Attendance>,
    /// A long node is in the intake. A hint, which the attending worker reads all the time.
    is_in_hurry: CachePadded<AtomicBool>,
    /// Awaited nodes that are to be visited before their turn.
    awaited: Mutex<Vec<NodeLink>>,
    has_awaited: AtomicBool,
}

impl Mailbox {
    pub(super) fn new() -> Mailbox {
        Mailbox {
            intake: CachePadded(Intake::new()),
            attendance: CachePadded(Attendance::new()),
            is_in_hurry: CachePadded(AtomicBool::new(false)),
            awaited: Mutex::new(Vec::new()),
            has_awaited: AtomicBool::new(false),
        }
    }

    /// True while a node is to be visited.
    #[inline]
    pub fn has_queued(&self) -> bool {
        !self.intake.is_empty() || self.has_awaited.load(SeqCst)
    }

    /// Takes all that is in the intake.
    pub fn take_queued(&self) -> Batch<Node> {
        if !self.intake.is_empty() {
            self.hurry(false);
        }
        self.intake.take()
    }

    /// Names an awaited node whose turn in the intake is far off. The caller then looks at the
    /// attendance.
    pub(super) fn put_awaited(&self, node: NodeLink) {
        lock(&self.awaited).push(node);
        // SeqCst: as a push, see `Intake::push`.
        self.has_awaited.store(true, SeqCst);
    }

    /// Takes the nodes that are to be visited before their turn.
    #[inline]
    pub fn take_awaited(&self) -> Vec<NodeLink> {
        if !self.has_awaited.load(Relaxed) {
            return Vec::new();
        }
        let mut awaited = lock(&self.awaited);
        self.has_awaited.store(false, SeqCst);
        std::mem::take(&mut *awaited)
    }

    /// True, nearly always, while a long node is in the intake: the attending worker is to visit at
    /// once. (Beside a push a take may miss the hint; then the visit is as late as that of a node
    /// that polls run.)
    #[inline]
    pub fn is_in_hurry(&self) -> bool {
        self.is_in_hurry.load(Relaxed)
    }

    #[inline]
    pub(super) fn hurry(&self, whether: bool) {
        // Read before it is written: a line that is in many caches stays there.
        if self.is_in_hurry() != whether {
            self.is_in_hurry.store(whether, Relaxed);
        }
    }
}
