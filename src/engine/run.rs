//! Running a submitted step on the host, and publishing what it made. Shared by the drivers whose
//! values lie in host memory.

#![allow(unsafe_code)]

use super::port::Port;
use super::step::Step;
use crate::graph::node::{Inputs, NodeLink, free};
use crate::host::block;
use crate::host::step::{Host, Results};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// Runs a step and completes its nodes. The engine's books hear of it separately.
pub(crate) fn run(step: &Step, port: &Port, host: &Host<'_>) {
    let _span = super::events::step(&port.name, step);
    let began = port.recordings.now();
    // SAFETY: we run the step.
    let results = unsafe { block::run(&step.work, host) };
    publish(step, results, port, began);
}

/// Completes a step's nodes with their results, and lets go of what they were made from.
/// `began` is when it began, where somebody records.
pub(crate) fn publish(step: &Step, results: Results, port: &Port, began: Option<Instant>) {
    if port.recordings.is_on() {
        // SAFETY: we run the step.
        unsafe { port.recordings.step(step, began) };
    }
    port.counters.closing.fetch_add(step.entries.len(), Relaxed);
    let mut freed = Inputs::new();
    let mut results = results.into_iter();
    let mut complete = |node: &NodeLink, written: bool| {
        let result = if written { results.next() } else { None };
        if !node.completion.begin_writing() {
            // The device ended meanwhile, and the node with it.
            return;
        }
        // SAFETY: we hold the right to write.
        freed.extend(unsafe { node.let_go() });
        match result {
            Some(result) => port.finish(node, result),
            None => node.completion.fuse(),
        }
    };
    for (k, node) in step.nodes().enumerate() {
        complete(node, step.work.writes(k));
    }
    free(freed);
}
