//! Listening to a closure: ops that it asks for are noted instead of queued.
//!
//! `build` hands every new node to [`enqueue`]. While a region's closure is traced on this thread,
//! an op of the region's device on a traced value, or on none at all, becomes part of the trace:
//! its node is claimed from the start, so that nobody else takes it up, and fails when the trace
//! ends, so that nobody waits for it for ever. Ops on values from outside alone run as ever: what
//! they give is a constant to the region.

#![allow(unsafe_code)]

use crate::completion::{Phase, TRACED};
use crate::engine::port::{Port, Queued};
use crate::error::Error;
use crate::graph::claim::{Traced, unready};
use crate::graph::node::{Inputs, Node, NodeHandle, NodeLink, Op, free};
use crate::graph::operation::Meta;
use crate::sync::Mutex;
use crate::sync::threads::thread_local;
use std::cell::{Cell, RefCell};
use std::panic::Location;
use std::sync::Arc;

/// Where a draw's position comes from.
#[derive(Clone)]
pub(crate) enum Dice {
    Device(&'static Port),
    /// A generator's: seed and offset.
    Own(Arc<Mutex<(u64, u64)>>),
}

impl Dice {
    pub fn state(&self) -> &Mutex<(u64, u64)> {
        match self {
            Dice::Device(port) => &port.generator,
            Dice::Own(state) => state,
        }
    }

    /// Reserves so many positions: seed and offset.
    pub fn reserve(&self, positions: u64) -> (u64, u64) {
        let mut state = crate::sync::lock(self.state());
        let offset = state.1;
        state.1 = offset.wrapping_add(positions);
        (state.0, offset)
    }
}

/// A draw of a traced block, to be made again at each call.
pub(crate) struct Draw {
    pub dice: Dice,
    pub positions: u64,
    /// Seed and offset while it was traced.
    pub traced: (u64, u64),
}

/// What a closure has asked for.
pub(crate) struct Trace {
    port: &'static Port,
    /// Stand for the inputs, in order.
    pub inputs: Vec<NodeLink>,
    pub nodes: Vec<NodeLink>,
    pub draws: Vec<Draw>,
}

thread_local! {
    static LISTENS: Cell<bool> = const { Cell::new(false) };
    static TRACE: RefCell<Option<Trace>> = const { RefCell::new(None) };
}

/// True while a region is traced on this thread.
#[inline]
pub(crate) fn is_tracing() -> bool {
    LISTENS.get()
}

/// Queues a new node, or notes it.
#[inline]
pub(crate) fn enqueue(port: &'static Port, node: Node) -> NodeHandle {
    if is_tracing() { note(port, node) } else { port.enqueue(node) }
}

/// [`enqueue`], but that the caller pushes the link, if there is one.
#[inline]
pub(crate) fn enter(port: &'static Port, node: Node) -> (NodeHandle, Option<Queued>) {
    if is_tracing() { (note(port, node), None) } else { port.enter(node) }
}

pub(super) fn is_traced(node: &Node) -> bool {
    node.completion.state().has(TRACED)
}

#[cold]
fn note(port: &'static Port, node: Node) -> NodeHandle {
    // SAFETY: nobody else has the node yet.
    let inputs = unsafe { node.inputs() };
    let from_outside = !inputs.iter().any(|i| is_traced(i));
    match node.op {
        Op::Source(_) | Op::Marker => return port.enqueue(node),
        _ if from_outside && !(node.op.is_elementwise() && inputs.is_empty()) => {
            return port.enqueue(node);
        }
        Op::Sink(_) => {
            let (shape, dtype, at) = (node.shape.clone(), node.dtype, node.at);
            let error = unready(&node);
            drop(node_unrun(node));
            return port.given(shape, dtype, at, Err(error));
        }
        _ => {}
    }
    let (handle, here) = TRACE.with_borrow_mut(|trace| match trace {
        Some(trace) if std::ptr::eq(trace.port, port) => {
            let handle = stand_in(node);
            trace.nodes.push(handle.link());
            (Ok(handle), true)
        }
        _ => (Err(node), false),
    });
    match handle {
        Ok(handle) => handle,
        Err(node) => {
            debug_assert!(!here);
            port.enqueue(node)
        }
    }
}

/// A node that was never queued is no skipped work.
fn node_unrun(node: Node) -> Node {
    node.completion.claim(Phase::Claimed, 0);
    node
}

/// A node that stands for a value of each call to come.
fn stand_in(node: Node) -> NodeHandle {
    node.completion.claim(Phase::Claimed, 0);
    node.completion.set(TRACED);
    NodeHandle::new(node)
}

/// A draw was made: its positions are reserved anew at each call.
pub(crate) fn drew(dice: &Dice, positions: u64, traced: (u64, u64)) {
    if is_tracing() {
        TRACE.with_borrow_mut(|trace| {
            if let Some(trace) = trace {
                trace.draws.push(Draw { dice: dice.clone(), positions, traced });
            }
        });
    }
}

/// A trace under way; whatever happens to the closure, its end ends the trace.
struct Listening;

impl Drop for Listening {
    fn drop(&mut self) {
        LISTENS.set(false);
        drop(TRACE.take());
    }
}

impl Trace {
    /// Calls `f` with stand-ins for inputs of these shapes and types; what it gave, and the trace.
    pub fn of<R>(
        port: &'static Port,
        metas: &[Meta],
        at: &'static Location<'static>,
        f: impl FnOnce(Vec<NodeHandle>) -> R,
    ) -> (R, Trace) {
        let stand_ins: Vec<NodeHandle> = metas
            .iter()
            .map(|m| {
                stand_in(Node::new(Op::Given, Inputs::new(), m.shape.clone(), m.dtype, port, at))
            })
            .collect();
        let inputs = stand_ins.iter().map(NodeHandle::link).collect();
        TRACE.set(Some(Trace { port, inputs, nodes: Vec::new(), draws: Vec::new() }));
        LISTENS.set(true);
        let listening = Listening;
        let out = f(stand_ins);
        LISTENS.set(false);
        let trace =
            TRACE.take().unwrap_or_else(|| unreachable!("only the guard takes it, and it is here"));
        drop(listening);
        (out, trace)
    }

    /// The error of a value that was waited for inside.
    pub fn refused(&self) -> Option<Error> {
        self.nodes.iter().chain(&self.inputs).find_map(|n| n.error()).cloned()
    }

    /// The ops, to be looked at.
    pub fn traced(&self) -> Traced<'_> {
        // SAFETY: stand-ins are claimed by us, and keep their inputs until the trace is dropped.
        unsafe { Traced::new(&self.nodes) }
    }

    /// Values from outside that traced ops read, each once.
    pub fn captured(&self) -> Vec<NodeLink> {
        let mut found: Vec<NodeLink> = Vec::new();
        let mut seen = std::collections::HashSet::new();
        let traced = self.traced();
        for k in 0..self.nodes.len() {
            for input in traced.inputs(k) {
                if !is_traced(input) && seen.insert(input.address()) {
                    found.push(input.clone());
                }
            }
        }
        found
    }
}

impl Drop for Trace {
    /// Nobody computes what was traced: it fails, and lets go of what it was made from.
    fn drop(&mut self) {
        for node in self.inputs.iter().chain(&self.nodes) {
            if node.completion.begin_writing() {
                // SAFETY: we hold the right to write.
                let inputs = unsafe {
                    let inputs = node.let_go();
                    node.completion.write(Err(unready(node)), true);
                    inputs
                };
                free(inputs);
            }
        }
    }
}
