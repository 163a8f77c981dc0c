//! Orders of events that no driver can be made to produce at will, put to the machine one by one.

use super::*;
use crate::backend::cpu::memory::Memory;
use crate::dtype::DType;
use crate::engine::port::{Driver, Opening};
use crate::engine::pressure::{Pressure, QueueLimits};
use crate::graph::node::{Inputs, Node, NodeHandle};
use crate::graph::value::{INLINE_BYTES, Storage, Value};
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
    let limits = Limits {
        streams: 2,
        depth_max: 2,
        ops_max: 16,
        bytes_max: usize::MAX,
        hold_max_ns: 0,
        ahead: true,
        epilogues: true,
    };
    Machine::new(port, limits)
}

/// As a CPU device has it: a step is submitted when a thread is free and all is there that it reads.
fn host_machine(port: &'static Port) -> Machine {
    let limits = Limits { depth_max: 1, ahead: false, ..machine(port).limits };
    Machine::new(port, limits)
}

/// A node that is not small; readers of another size fuse with nothing.
fn large(port: &'static Port, inputs: &[&NodeHandle], n: usize) -> NodeHandle {
    let op = match inputs {
        [] => Op::Random { normal: false, seed: 0, offset: 0 },
        _ => Op::Unary(UnaryOp::Neg),
    };
    node(port, op, inputs, n << 20)
}

fn is_of(step: &Step, handle: &NodeHandle) -> bool {
    step.nodes().any(|n| n.address() == handle.link().address())
}

/// The step's value is there for everybody; the machine has not heard of it.
fn publish(step: &Step) {
    for node in step.nodes() {
        assert!(node.completion.begin_writing());
        // SAFETY: the right to write is ours.
        let freed = unsafe { node.let_go() };
        let value = Value::contiguous(Storage::Inline([0; INLINE_BYTES / 8]));
        node.completion.write(Ok(value), false);
        free(freed);
    }
}

/// Both of the host's streams have a step, one of them is through: what comes goes to that one, and never waits
/// behind the other.
#[test]
fn nothing_waits_behind_a_step_that_it_does_not_read_while_a_thread_is_free() {
    for free_again in 0..2 {
        let port = port();
        let mut machine = host_machine(port);
        let first = [large(port, &[], 1), large(port, &[], 1)];
        look_at_all(&mut machine, port);
        let mut steps = [(); 2].map(|()| machine.next(0));
        assert!(steps.iter().all(Option::is_some));
        let next = large(port, &[], 1);
        look_at_all(&mut machine, port);
        assert!(machine.next(0).is_none(), "no thread is free: nothing is promised to one");
        let through = steps[free_again].take().expect("it was submitted");
        publish(&through);
        machine.finished(through, 0);
        let step = machine.next(0).expect("a thread is free");
        assert!(is_of(&step, &next));
        assert_eq!(step.at.stream as usize, free_again);
        for step in steps.into_iter().flatten().chain([step]) {
            publish(&step);
            machine.finished(step, 0);
        }
        assert!(machine.is_idle());
        drop(first);
    }
}

/// Three read from one: its stream goes on with one of them, the other stream takes over another, and the third
/// waits for a thread.
#[test]
fn a_free_thread_takes_over_the_chain_of_a_busy_one() {
    let port = port();
    let mut machine = host_machine(port);
    let root = large(port, &[], 1);
    let readers = [2, 3, 4].map(|n| large(port, &[&root], n));
    look_at_all(&mut machine, port);
    let step = machine.next(0).expect("the root");
    assert!(is_of(&step, &root) && machine.next(0).is_none());
    publish(&step);
    machine.finished(step, 0);
    let steps = [(); 2].map(|()| machine.next(0).expect("two threads, and three that are ready"));
    assert_ne!(steps[0].at.stream, steps[1].at.stream);
    assert!(machine.next(0).is_none());
    for step in steps {
        publish(&step);
        machine.finished(step, 0);
    }
    let last = machine.next(0).expect("the third");
    publish(&last);
    machine.finished(last, 0);
    assert!(machine.is_idle() && readers.iter().all(|r| r.completion.state().is_complete()));
}

/// A value that is awaited and read again at once: its step still holds it, so who reads it would copy.
#[test]
fn what_reads_a_value_whose_step_is_not_through_runs_when_it_is() {
    let port = port();
    let mut machine = host_machine(port);
    let x = large(port, &[], 1);
    look_at_all(&mut machine, port);
    let step = machine.next(0).expect("x");
    publish(&step);
    let y = large(port, &[&x], 2);
    let link = x.link();
    drop(x);
    look_at_all(&mut machine, port);
    assert!(machine.next(0).is_none(), "the step holds what y is to write over");
    machine.finished(step, 0);
    let step = machine.next(0).expect("now it is y's");
    assert!(is_of(&step, &y));
    let counts = link.counts();
    assert_eq!((counts.handles, counts.links), (0, 3), "y's own link, its step's, and the test's");
    publish(&step);
    machine.finished(step, 0);
    assert!(machine.is_idle());
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
