//! Tracing a closure: the ops that it calls are noted instead of queued.
//!
//! A trace intercepts the new nodes of its thread (`tensor/build/intercept`). An op of the region's
//! device on a traced value, or without operands, becomes a part of the trace: its node is claimed
//! from the start, so that nobody else takes it up, and fails when the trace ends, so that nobody
//! waits for it for ever. An op on values from outside alone runs as ever: its value is a constant
//! to the region.

#![allow(unsafe_code)]

use crate::concurrent::completion::{Phase, TRACED};
use crate::engine::port::Port;
use crate::error::Error;
use crate::graph::claim::{Traced, unready};
use crate::graph::node::{Inputs, Node, NodeHandle, NodeLink, Op, free};
use crate::graph::operation::Meta;
use crate::sync::threads::thread_local;
use crate::tensor::build::intercept::{Interceptor, Sequence, intercept};
use std::cell::RefCell;
use std::panic::Location;

/// A draw of a traced block, to be made again at each call.
pub(crate) struct Draw {
    pub sequence: Sequence,
    pub positions: u64,
    /// Seed and offset while it was traced.
    pub traced: (u64, u64),
}

/// The ops that a closure has called.
pub(crate) struct Trace {
    port: &'static Port,
    /// The stand-ins of the inputs, in order.
    pub inputs: Vec<NodeLink>,
    pub nodes: Vec<NodeLink>,
    pub draws: Vec<Draw>,
}

thread_local! {
    static TRACE: RefCell<Option<Trace>> = const { RefCell::new(None) };
}

static TRACING: Interceptor = Interceptor { node: note, draw: note_draw };

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

/// Notes a draw: each call reserves its positions anew.
fn note_draw(sequence: &Sequence, positions: u64, traced: (u64, u64)) {
    TRACE.with_borrow_mut(|trace| {
        if let Some(trace) = trace {
            trace.draws.push(Draw { sequence: sequence.clone(), positions, traced });
        }
    });
}

/// A trace under way; a panic of the closure ends it as well.
struct Tracing;

impl Drop for Tracing {
    fn drop(&mut self) {
        drop(TRACE.take());
    }
}

impl Trace {
    /// Calls `f` with stand-ins for inputs of these shapes and types: its result, and the trace.
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
        // Where the closure panics the interception goes first.
        let tracing = Tracing;
        let interception = intercept(&TRACING);
        let out = f(stand_ins);
        drop(interception);
        let trace =
            TRACE.take().unwrap_or_else(|| unreachable!("only the guard takes it, and it is here"));
        drop(tracing);
        (out, trace)
    }

    /// The error of a value that the closure waited for.
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
    /// No device computes a traced node: it fails, and lets its inputs go.
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
