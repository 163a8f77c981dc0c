//! Orders of events that no driver can be made to produce at will, put to the machine one by one.

use super::*;
use crate::backend::cpu::memory::Memory;
use crate::dtype::DType;
use crate::engine::port::{Driver, Opening};
use crate::engine::pressure::{Pressure, QueueLimits};
use crate::graph::node::{Inputs, Node, NodeHandle};
use crate::op::{BinaryOp, UnaryOp};
use std::panic::Location;

/// Nobody works: the test is the driver.
struct Nobody;

impl Driver for Nobody {
    fn wake(&self, _: usize) {}
    fn start(&self, _: &'static Port) {}
    fn abandon(&self) {}
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

fn port() -> &'static Port {
    Port::open(Opening {
        name: "test".into(),
        inline: true,
        host: true,
        memory: Memory::new(usize::MAX),
        pressure: Pressure::new(QueueLimits { ops_max: 1000, bytes_max: usize::MAX, permits_max: 1 }),
        driver: Box::new(Nobody),
        seed: 0,
    })
}

fn machine(port: &'static Port) -> Machine {
    let limits = Limits { streams: 2, depth_max: 2, ops_max: 16, bytes_max: usize::MAX, hold_max_ns: 0 };
    Machine::new(port, limits)
}

fn node(port: &'static Port, op: Op, inputs: &[&NodeHandle], n: usize) -> NodeHandle {
    let links: Inputs = inputs.iter().map(|h| h.link()).collect();
    port.enqueue(Node::new(op, links, [n].into(), DType::F32, port, Location::caller()))
}

/// Looks at all that came in, and enters what is new.
fn look_at_all(machine: &mut Machine, port: &'static Port) {
    for node in port.intake.take() {
        if let Look::New(node) = machine.look(node, 0) {
            machine.enter(node, 0, &mut |_| false);
        }
    }
}

fn computed(handle: &NodeHandle) {
    let value = Value::contiguous(Storage::Inline([0; INLINE_BYTES / 8]));
    handle.completion.write(Ok(value), false);
}

/// A poll computes an input, and its value is there before the word of it has come to the machine. What
/// reads it must neither be taken up twice nor be sought when it is gone.
#[test]
fn a_value_whose_word_is_still_on_its_way_is_not_taken_for_granted() {
    let port = port();
    let mut machine = machine(port);
    let n = 1 << 20;
    let source = node(port, Op::Random { normal: false, seed: 0, offset: 0 }, &[], n);
    let theirs = node(port, Op::Unary(UnaryOp::Neg), &[&source], n);
    assert!(theirs.completion.claim(Phase::Writing, 0), "a poll claims it before the machine has seen it");
    let both = node(port, Op::Binary(BinaryOp::Add), &[&source, &theirs], n);
    look_at_all(&mut machine, port);

    computed(&theirs); // its bell rings, and asks for a look that nobody has given yet
    let first = machine.next(0).expect("the source can run");
    assert!(first.nodes().all(|n| n.address() != both.link().address()), "an input of it counts as missing");
    look_at_all(&mut machine, port);
    let second = machine.next(0).expect("now all of it is there");
    assert!(second.nodes().any(|n| n.address() == both.link().address()));
    assert!(machine.next(0).is_none(), "each is taken up once");
    for (step, handle) in [(first, &source), (second, &both)] {
        assert!(handle.completion.begin_writing());
        computed(handle);
        machine.finished(step, 0);
    }
    assert!(machine.is_idle());
}
