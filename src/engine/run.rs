//! Running a submitted step on the host, and publishing what it made. Shared by the drivers whose
//! values lie in host memory.

#![allow(unsafe_code)]

use super::port::Port;
use super::step::{Step, Work};
use crate::backend::host::{Host, Results, operand_of, run_group, run_group_on, run_node};
use crate::graph::node::{Inputs, NodeLink, Op, free, is_last_reader, readers};
use std::borrow::Cow;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// Runs a step and completes its nodes. The engine's books hear of it separately.
pub(crate) fn run(step: &Step, port: &Port, host: &Host<'_>) {
    let _span = super::trace::step(port, step);
    let began = port.tape.now();
    let results = compute(step, host);
    publish(step, results, port, began);
}

/// The values that a step makes.
pub(crate) fn compute(step: &Step, host: &Host<'_>) -> Results {
    match &step.work {
        Work::Group { group, written, end } => {
            let last_reader = |i: usize| {
                let counts = readers(&group.inputs[i]);
                // The members' edges, and the group's own link.
                counts.handles == 0 && counts.links == group.edges[i] as u32 + 1
            };
            let end = end.as_ref().map(|(n, k)| (&**n, *k));
            let Some((head, at)) = &group.head else {
                return run_group(group, written, end, last_reader, host);
            };
            // SAFETY: the engine claimed the node for this step.
            let inputs = unsafe { head.inputs() };
            let value = run_node(head, inputs, |i| is_last_reader(&inputs[i]), host);
            let operand = |k: usize| match k == *at as usize {
                true => value.as_ref().map_err(Some),
                false => operand_of(&group.inputs[k]),
            };
            let last_reader = |k: usize| k == *at as usize || last_reader(k);
            run_group_on(group, Cow::Borrowed(&group.program), written, end, operand, last_reader, host)
        }
        Work::Node(node) if matches!(node.op, Op::Fill(_)) => {
            Results::from_iter([run_node(node, &[], |_| false, host)])
        }
        Work::Node(node) => {
            // SAFETY: the engine claimed the node for this step.
            let inputs = unsafe { node.inputs() };
            Results::from_iter([run_node(node, inputs, |i| is_last_reader(&inputs[i]), host)])
        }
    }
}

/// Completes a step's nodes with their results, and lets go of what they were made from.
/// `began` is when it began, where somebody records.
pub(crate) fn publish(step: &Step, results: Results, port: &Port, began: Option<Instant>) {
    if port.tape.is_on() {
        // SAFETY: we run the step.
        unsafe { port.tape.step(step, began) };
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
    match &step.work {
        Work::Group { group, written, end } => {
            if let Some((head, _)) = &group.head {
                complete(head, false);
            }
            for (k, (node, _)) in group.members.iter().enumerate() {
                complete(node, written.contains(&(k as u8)));
            }
            if let Some((node, _)) = end {
                complete(node, true);
            }
        }
        Work::Node(node) => complete(node, true),
    }
    free(freed);
}
