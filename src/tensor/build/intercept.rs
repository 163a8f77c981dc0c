//! The destination of a thread's new nodes and draws: their device, or an interceptor.
//!
//! A region intercepts the ops that its closure calls while it is traced (`region/trace`). An
//! ordinary op pays one read of a thread-local byte for that, and for the scope that has ops
//! checked (`finite`). Knows nothing of regions, and nothing of checks.

use crate::engine::port::{Port, Queued};
use crate::graph::node::{Node, NodeHandle};
use crate::sync::threads::thread_local;
use crate::sync::{Mutex, lock};
use std::cell::Cell;
use std::sync::Arc;

/// The sequence that a draw takes its positions from.
#[derive(Clone, Debug)]
pub(crate) enum Sequence {
    Device(&'static Port),
    /// A generator's: seed and offset.
    Own(Arc<Mutex<(u64, u64)>>),
}

impl Sequence {
    pub fn state(&self) -> &Mutex<(u64, u64)> {
        match self {
            Sequence::Device(port) => &port.generator,
            Sequence::Own(state) => state,
        }
    }

    /// Reserves positions; returns seed and offset.
    pub fn reserve(&self, positions: u64) -> (u64, u64) {
        let mut state = lock(self.state());
        let offset = state.1;
        state.1 = offset.wrapping_add(positions);
        (state.0, offset)
    }

    /// Reserves positions for a draw of this thread.
    pub fn draw(&self, positions: u64) -> (u64, u64) {
        let drawn = self.reserve(positions);
        if let Some(interceptor) = INTERCEPTOR.get() {
            (interceptor.draw)(self, positions, drawn);
        }
        drawn
    }
}

/// Receives the new nodes and the draws of a thread.
pub(crate) struct Interceptor {
    /// Takes a node, or queues it on its device.
    pub node: fn(&'static Port, Node) -> NodeHandle,
    /// Is told of a draw: its number of positions, and its seed and offset.
    pub draw: fn(&Sequence, u64, (u64, u64)),
}

/// An interceptor takes this thread's nodes.
const INTERCEPTED: u8 = 1;
/// A scope has this thread's ops checked.
pub(super) const CHECKED: u8 = 2;

thread_local! {
    static INTERCEPTOR: Cell<Option<&'static Interceptor>> = const { Cell::new(None) };
    /// What is unusual about the ops of this thread; 0 for nothing.
    static UNUSUAL: Cell<u8> = const { Cell::new(0) };
}

/// Says whether something is unusual about this thread's ops.
pub(super) fn mark(what: u8, is: bool) {
    let others = UNUSUAL.get() & !what;
    UNUSUAL.set(if is { others | what } else { others });
}

/// True while a thread's ops go to their device, and nothing else is to be done about them.
#[inline]
pub(super) fn is_usual() -> bool {
    UNUSUAL.get() == 0
}

/// While it lives, an interceptor receives this thread's nodes and draws.
#[must_use]
pub(crate) struct Interception(());

/// Installs an interceptor for this thread's nodes and draws. There is at most one at a time.
pub(crate) fn intercept(interceptor: &'static Interceptor) -> Interception {
    INTERCEPTOR.set(Some(interceptor));
    mark(INTERCEPTED, true);
    Interception(())
}

impl Drop for Interception {
    fn drop(&mut self) {
        INTERCEPTOR.set(None);
        mark(INTERCEPTED, false);
    }
}

/// True while an interceptor takes this thread's nodes.
pub(crate) fn is_intercepted() -> bool {
    INTERCEPTOR.get().is_some()
}

/// Queues a new node, or passes it to the interceptor.
#[inline]
pub(crate) fn enqueue(port: &'static Port, node: Node) -> NodeHandle {
    match INTERCEPTOR.get() {
        None => {
            let (handle, queued) = port.enter(node);
            if let Some(queued) = queued {
                super::caller::push(port, queued);
            }
            handle
        }
        Some(interceptor) => (interceptor.node)(port, node),
    }
}

/// [`enqueue`], except that the caller pushes the link, if there is one.
#[inline]
pub(crate) fn enter(port: &'static Port, node: Node) -> (NodeHandle, Option<Queued>) {
    match INTERCEPTOR.get() {
        None => port.enter(node),
        Some(interceptor) => ((interceptor.node)(port, node), None),
    }
}
