//! Tracing a closure: the ops that it calls are recorded instead of queued.
//!
//! A trace intercepts the new nodes of its thread (`tensor/build/intercept`). An op of the region's
//! device that has a traced operand, or no operands, becomes part of the trace: its node is claimed
//! from the start, so that the engine does not take it up, and fails when the trace ends, so that
//! no task waits for it for ever. An op on values from outside alone runs as usual: its value is a
//! constant of the region.

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

/// A draw of a traced block, which each call repeats with new positions.
pub(crate) struct Draw {
    pub sequence: Sequence,
    pub positions: u64,
    /// The seed and offset during the trace.
    pub traced: (u64, u64),
}

/// The ops that a closure has called.
pub(crate) struct Trace {
    port: &'static Port,
    /// The placeholders of the inputs, in order.
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
    // SAFETY: the node is not shared yet.
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

/// Claims a node, so that it does not count as skipped work: it is never queued.
fn node_unrun(node: Node) -> Node {
    node.completion.claim(Phase::Claimed, 0);
    node
}

/// A node that stands for an input of later calls.
fn stand_in(mut node: Node) -> NodeHandle {
    node.unasked();
    node.completion.claim(Phase::Claimed, 0);
    node.completion.set(TRACED);
    NodeHandle::new(node)
}

/// Records a draw: each call reserves new positions for it.
fn note_draw(sequence: &Sequence, positions: u64, traced: (u64, u64)) {
    TRACE.with_borrow_mut(|trace| {
        if let Some(trace) = trace {
            trace.draws.push(Draw { sequence: sequence.clone(), positions, traced });
        }
    });
}

/// A trace in progress; a panic of the closure ends it as well.
struct Tracing;

impl Drop for Tracing {
    fn drop(&mut self) {
        drop(TRACE.take());
    }
}

impl Trace {
    /// Calls `f` with placeholders for inputs of these shapes and types; returns its result and the
    /// trace.
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
        // If the closure panics, the interception ends first.
        let tracing = Tracing;
        let interception = intercept(&TRACING);
        let out = f(stand_ins);
        drop(interception);
        let trace =
            TRACE.take().unwrap_or_else(|| unreachable!("only the guard takes it, and it is here"));
        drop(tracing);
        (out, trace)
    }

    /// The error of a value that the closure awaited.
    pub fn refused(&self) -> Option<Error> {
        self.nodes.iter().chain(&self.inputs).find_map(|n| n.error()).cloned()
    }

    /// The recorded ops.
    pub fn traced(&self) -> Traced<'_> {
        // SAFETY: the nodes are claimed by the trace, and keep their inputs until it is dropped.
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
    /// Fails the traced nodes, which no device computes, and drops their inputs.
    fn drop(&mut self) {
        for node in self.inputs.iter().chain(&self.nodes) {
            if node.completion.begin_writing() {
                // SAFETY: the trace holds the claim.
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
