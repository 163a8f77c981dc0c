//! Orders of events that no runner produces at will, given to the machine one by one.

use super::*;
use crate::dtype::DType;
use crate::engine::port::{Opening, Profile, Runner};
use crate::engine::pressure::QueueLimits;
use crate::graph::node::{Inputs, Node, NodeHandle, is_read_by};
use crate::graph::value::Value;
use crate::graph::work::Work;
use crate::memory::Memory;
use crate::op::{BinaryOp, UnaryOp};
use std::panic::Location;
use std::sync::Arc;

/// Nobody works: the test is the runner.
struct Nobody;

impl Runner for Nobody {
    fn wake(&self, _: usize) {}
    fn start(&self, _: &'static Port) {}
    fn abandon(&self) {}
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

pub(in crate::engine) fn port() -> &'static Port {
    Port::open(Opening {
        profile: Profile {
            name: "test".into(),
            inline: true,
            in_memory: true,
            check_finite: false,
            limits: LIMITS,
        },
        queue: QueueLimits { ops_max: 1000, bytes_max: usize::MAX, permits_max: 1 },
        memory: Memory::new(usize::MAX),
        runner: Box::new(Nobody),
        seed: 0,
    })
}

const LIMITS: Limits = Limits {
    streams: 2,
    depth_max: 2,
    ops_max: 16,
    bytes_max: usize::MAX,
    fusion_delay_max_ns: 0,
    ahead: true,
    epilogues: true,
};

pub(in crate::engine) fn machine(port: &'static Port) -> Machine {
    Machine::new(port, LIMITS)
}

/// As a CPU device has it: a step is submitted when a thread is free and all is there that it
/// reads.
pub(in crate::engine) fn host_machine(port: &'static Port) -> Machine {
    Machine::new(port, Limits { depth_max: 1, ahead: false, ..LIMITS })
}

/// A node that is not small; readers of another size fuse with nothing.
pub(in crate::engine) fn large(
    port: &'static Port,
    inputs: &[&NodeHandle],
    n: usize,
) -> NodeHandle {
    let op = match inputs {
        [] => Op::Random { normal: false, seed: 0, offset: 0 },
        _ => Op::Unary(UnaryOp::Neg),
    };
    node(port, op, inputs, n << 20)
}

pub(in crate::engine) fn is_of(step: &Step, handle: &NodeHandle) -> bool {
    step.nodes().any(|n| n.address() == handle.link().address())
}

/// The step's value is there for everybody; the machine has not heard of it.
pub(in crate::engine) fn publish(step: &Step) {
    for node in step.nodes() {
        assert!(node.completion.begin_writing());
        // SAFETY: the right to write is ours.
        let freed = unsafe {
            let freed = node.let_go();
            node.completion.write(Ok(Value::nothing()), false);
            freed
        };
        free(freed);
    }
}

/// Both of the host's streams have a step, one of them is through: what comes goes to that one, and
/// never waits behind the other.
#[test]
fn nothing_waits_behind_a_step_that_it_does_not_read_while_a_thread_is_free() {
    for free_again in 0..2 {
        let port = port();
        let mut machine = host_machine(port);
        let first = [large(port, &[], 1), large(port, &[], 1)];
        visit_all(&mut machine, port);
        let mut steps = [(); 2].map(|()| machine.next(0));
        assert!(steps.iter().all(Option::is_some));
        let next = large(port, &[], 1);
        visit_all(&mut machine, port);
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

/// Three read from one: its stream goes on with one of them, the other stream takes over another,
/// and the third waits for a thread.
#[test]
fn what_the_engine_looks_at_has_no_reader_in_it() {
    let port = port();
    let handle = large(port, &[], 1000);
    let own = handle.link();
    let visited = port.mailbox.intake.take().next().expect("it was pushed");
    visited.completion.exchange(QUEUED, VISITED);
    // Its last handle goes meanwhile: it is in the intake once more.
    drop(handle);
    assert!(own.completion.state().has(QUEUED));
    assert!(is_read_by(&own, 1), "two links ask for a look, one reads");
    visited.completion.clear(VISITED);
    assert!(!is_read_by(&own, 1), "a link without a flag may be a reader's");
    drop(visited);
    assert!(is_read_by(&own, 1));
    drop(port.mailbox.intake.take());
}

#[test]
fn what_is_asked_for_again_as_it_is_looked_at_is_in_the_waitall_after_it() {
    let port = port();
    let mut machine = host_machine(port);
    let handle = large(port, &[], 1000);
    let came = port.mailbox.intake.take().next().expect("it was pushed");
    let waitall = port.enqueue_marker(Location::caller());
    let Visit::New(node) = machine.visit(came, 0) else { panic!("it is new and wanted") };
    // Somebody awaits it just now: it is in the intake once more, behind the `waitall`.
    port.schedule(handle.link());
    machine.enter(node, 0, &mut |_| false);
    visit_queued(&mut machine, port, 0);
    assert!(!waitall.completion.state().is_complete(), "it has not run");
    let step = machine.next(0).expect("it is to run");
    run(&mut machine, step, 0);
    assert!(waitall.completion.state().is_complete());
}

#[test]
fn a_free_thread_takes_over_the_chain_of_a_busy_one() {
    let port = port();
    let mut machine = host_machine(port);
    let root = large(port, &[], 1);
    let readers = [2, 3, 4].map(|n| large(port, &[&root], n));
    visit_all(&mut machine, port);
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

/// A value that is awaited and read again at once: its step still holds it, so who reads it would
/// copy.
#[test]
fn what_reads_a_value_whose_step_is_not_through_runs_when_it_is() {
    let port = port();
    let mut machine = host_machine(port);
    let x = large(port, &[], 1);
    visit_all(&mut machine, port);
    let step = machine.next(0).expect("x");
    publish(&step);
    let y = large(port, &[&x], 2);
    let link = x.link();
    drop(x);
    visit_all(&mut machine, port);
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

pub(in crate::engine) fn node(
    port: &'static Port,
    op: Op,
    inputs: &[&NodeHandle],
    n: usize,
) -> NodeHandle {
    let links: Inputs = inputs.iter().map(|h| h.link()).collect();
    port.enqueue(Node::new(op, links, [n].into(), DType::F32, port, Location::caller()))
}

/// Looks at all that came in, and enters what is new.
pub(in crate::engine) fn visit_all(machine: &mut Machine, port: &'static Port) {
    visit_queued(machine, port, 0);
}

fn visit_queued(machine: &mut Machine, port: &'static Port, now: u64) {
    for node in port.mailbox.intake.take() {
        if let Visit::New(node) = machine.visit(node, now) {
            machine.enter(node, now, &mut |_| false);
        }
    }
}

/// A claimed value is there.
pub(in crate::engine) fn computed(handle: &NodeHandle) {
    // SAFETY: the test has claimed it.
    unsafe { handle.completion.write(Ok(Value::nothing()), false) };
}

/// A poll computes an input, and its value is there before the word of it has come to the machine.
/// What reads it must neither be taken up twice nor be sought when it is gone.
#[test]
fn a_value_whose_word_is_still_on_its_way_is_not_taken_for_granted() {
    let port = port();
    let mut machine = machine(port);
    let n = 1 << 20;
    let source = node(port, Op::Random { normal: false, seed: 0, offset: 0 }, &[], n);
    let theirs = node(port, Op::Unary(UnaryOp::Neg), &[&source], n);
    assert!(
        theirs.completion.claim(Phase::Writing, 0),
        "a poll claims it before the machine has seen it"
    );
    let both = node(port, Op::Binary(BinaryOp::Add), &[&source, &theirs], n);
    visit_all(&mut machine, port);

    computed(&theirs); // its waker is called, and asks for a look that nobody has given yet
    let first = machine.next(0).expect("the source can run");
    assert!(
        first.nodes().all(|n| n.address() != both.link().address()),
        "an input of it counts as missing"
    );
    visit_all(&mut machine, port);
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

/// One that holds back, as devices do.
fn patient(port: &'static Port, ahead: bool) -> Machine {
    let base = if ahead { machine(port) } else { host_machine(port) };
    Machine::new(port, Limits { fusion_delay_max_ns: 50_000, ..base.limits })
}

fn random(port: &'static Port, n: usize) -> NodeHandle {
    node(port, Op::Random { normal: false, seed: 0, offset: 0 }, &[], n)
}

/// Runs a step to its end, at once.
fn run(machine: &mut Machine, step: Step, now: u64) {
    publish(&step);
    machine.finished(step, now);
}

/// Somebody awaits it, and the engine is asked to look.
fn await_it(port: &'static Port, handle: &NodeHandle) {
    handle.completion.set(AWAITED);
    port.schedule(handle.link());
}

#[test]
fn a_step_is_delayed_for_two_percent_of_its_time_and_never_more_than_fifty_microseconds() {
    const CAME: u64 = 7_000;
    // Estimated at 0.44 ns an element: 44 us, 0.46 ms, and 3.7 ms, of which 2 % would be more than
    // 50 us.
    for n in [100_000, 1 << 20, 8 << 20] {
        for ahead in [false, true] {
            let port = port();
            let mut machine = patient(port, ahead);
            let x = random(port, n);
            visit_queued(&mut machine, port, CAME);
            let delay = (x.cost_ns() as u64 / 50).min(50_000);
            assert_eq!(delay, ((20 + n as u64 * 440 / 1000) / 50).min(50_000));
            assert_eq!(machine.deadline(), Some(CAME + delay));
            for early in [CAME, CAME + 1, CAME + delay - 1] {
                machine.tick(early);
                assert!(machine.next(early).is_none(), "{early}: it is delayed");
            }
            machine.tick(CAME + delay);
            let step = machine.next(CAME + delay).expect("its time is up");
            assert!(is_of(&step, &x) && machine.deadline().is_none());
            run(&mut machine, step, CAME + delay);
            assert!(machine.is_idle());
        }
    }
}

#[test]
fn what_is_short_and_what_fuses_with_nothing_is_not_delayed() {
    let port = port();
    let mut machine = patient(port, false);
    // 2 % of 9 us is less than it takes to come back to it.
    let short = random(port, 20_000);
    visit_queued(&mut machine, port, 0);
    let step = machine.next(0).expect("it is not delayed");
    assert!(is_of(&step, &short));
    let op = Op::View(crate::graph::node::ViewOp::Reshape);
    let links: Inputs = [short.link()].into_iter().collect();
    let turned = Node::new(op, links, [90, 50].into(), DType::F32, port, Location::caller());
    let turned = port.enqueue(turned);
    run(&mut machine, step, 0);
    visit_queued(&mut machine, port, 0);
    let step = machine.next(0).expect("no instruction, so nothing comes into its step");
    assert!(is_of(&step, &turned));
    run(&mut machine, step, 0);
    assert!(machine.is_idle());
}

#[test]
fn nothing_is_delayed_once_somebody_awaits_it_or_what_is_made_from_it() {
    for when in 0..4 {
        let port = port();
        let mut machine = patient(port, false);
        let x = random(port, 1 << 20);
        if when == 0 {
            // Before the machine has seen it.
            x.completion.set(AWAITED);
        }
        visit_queued(&mut machine, port, 0);
        assert_eq!(machine.deadline().is_none(), when == 0);
        let mut last = None;
        match when {
            1 => await_it(port, &x),
            2 => {
                // A value made from it, and awaited from the start.
                let y = node(port, Op::Unary(UnaryOp::Neg), &[&x], 1 << 20);
                y.completion.set(AWAITED);
                last = Some(y);
            }
            3 => {
                // A reduction of it: not delayed itself, and awaited when it is in the task table.
                let reduction = crate::graph::node::Reduction {
                    op: crate::op::ReduceOp::Sum,
                    dims: SmallVec::from_slice(&[true]),
                };
                let links: Inputs = [x.link()].into_iter().collect();
                let op = Op::Reduce(Box::new(reduction));
                let sum = Node::new(op, links, [].into(), DType::F32, port, Location::caller());
                let sum = port.enqueue(sum);
                visit_queued(&mut machine, port, 5);
                assert!(machine.next(5).is_none(), "nobody awaits yet");
                await_it(port, &sum);
                last = Some(sum);
            }
            _ => {}
        }
        visit_queued(&mut machine, port, 10);
        assert_eq!(machine.deadline(), None);
        let step = machine.next(10).expect("at once");
        assert!(is_of(&step, &x) && last.as_ref().is_none_or(|y| is_of(&step, y)), "{when}");
        run(&mut machine, step, 10);
        assert!(machine.is_idle());
    }
}

#[test]
fn what_comes_while_a_step_is_delayed_is_in_it_and_does_not_prolong_it() {
    let port = port();
    let mut machine = patient(port, false);
    let mut x = random(port, 1 << 20);
    visit_queued(&mut machine, port, 0);
    let deadline = machine.deadline().expect("it is delayed");
    let mut came = 0;
    for now in (1_000..deadline).step_by(4_000) {
        // The old handle goes: nobody can observe the value any more.
        x = node(port, Op::Unary(UnaryOp::Neg), &[&x], 1 << 20);
        came += 1;
        visit_queued(&mut machine, port, now);
        machine.tick(now);
        assert_eq!(machine.deadline(), Some(deadline));
        assert!(machine.next(now).is_none());
    }
    machine.tick(deadline);
    let step = machine.next(deadline).expect("its time is up");
    assert_eq!(step.nodes().count(), 1 + came);
    let Work::Group { group, written, .. } = step.work() else { panic!("a fused step") };
    assert_eq!(
        (group.members.len(), written.len()),
        (1 + came, 1),
        "only what has a handle is written"
    );
    run(&mut machine, step, deadline);
    assert!(machine.is_idle());
}

#[test]
fn the_time_that_a_step_has_waited_for_its_inputs_counts_as_delay() {
    let port = port();
    let mut machine = patient(port, false);
    let source = random(port, 4_000); // short: not delayed, and of another size
    visit_queued(&mut machine, port, 0);
    let first = machine.next(0).expect("the source");
    let x = node(port, Op::Unary(UnaryOp::Exp), &[&source], 1 << 20);
    visit_queued(&mut machine, port, 100);
    assert_eq!(machine.deadline(), None, "it waits for its input, and is not delayed");
    let delay = x.cost_ns() as u64 / 50;
    publish(&first);
    machine.finished(first, 100 + delay / 2);
    assert_eq!(machine.deadline(), Some(100 + delay), "half of the time is over");
    machine.tick(100 + delay);
    let step = machine.next(100 + delay).expect("and now all of it");
    // An entry that has waited longer than that goes at once.
    let y = node(port, Op::Unary(UnaryOp::Exp), &[&x], 3);
    let z = node(port, Op::Unary(UnaryOp::Exp), &[&y], 1 << 20);
    visit_queued(&mut machine, port, 100 + delay);
    run(&mut machine, step, 100 + delay);
    let step = machine.next(100 + delay).expect("y is short");
    run(&mut machine, step, 100 + 9 * delay);
    assert_eq!(machine.deadline(), None);
    let step = machine.next(100 + 9 * delay).expect("z has waited long enough");
    assert!(is_of(&step, &z));
    run(&mut machine, step, 100 + 9 * delay);
    assert!(machine.is_idle());
}

/// The ops of a round come one by one, 2 us apart, while the device still works on the round
/// before; who queues them awaits its loss each round. The steps are the same each time round,
/// whenever in it the step before ends.
#[test]
fn the_groups_of_a_loop_that_runs_while_the_device_works_are_the_same_each_time_round() {
    const N: usize = 1 << 20;
    let port = port();
    let mut machine = patient(port, false);
    let mut now = 0;
    let mut weights = random(port, N);
    visit_queued(&mut machine, port, now);
    await_it(port, &weights);
    visit_queued(&mut machine, port, now);
    let mut running = machine.next(now);
    running.iter().for_each(publish);
    let mut rounds: Vec<Vec<Vec<String>>> = Vec::new();
    for round in 0..40 {
        let mut steps: Vec<Vec<String>> = Vec::new();
        // The round before ends after so many ops of this one.
        let ends = if round == 0 { 0 } else { round % 6 };
        let mut queued = 0;
        let mut queue = |machine: &mut Machine,
                         op: Op,
                         inputs: &[&NodeHandle],
                         shape: &[usize],
                         now: &mut u64| {
            if queued == ends
                && let Some(step) = running.take()
            {
                machine.finished(step, *now);
            }
            queued += 1;
            let links: Inputs = inputs.iter().map(|h| h.link()).collect();
            let made = Node::new(op, links, shape.into(), DType::F32, port, Location::caller());
            let made = port.enqueue(made);
            *now += 2_000;
            visit_queued(machine, port, *now);
            machine.tick(*now);
            assert!(machine.next(*now).is_none(), "round {round}: what came is delayed, or waits");
            made
        };
        let unary = |op| Op::Unary(op);
        let sum = crate::graph::node::Reduction {
            op: crate::op::ReduceOp::Sum,
            dims: SmallVec::from_slice(&[true]),
        };
        let loss = {
            let h = queue(&mut machine, unary(UnaryOp::Tanh), &[&weights], &[N], &mut now);
            let h = queue(&mut machine, unary(UnaryOp::Exp), &[&h], &[N], &mut now);
            let next = queue(&mut machine, unary(UnaryOp::Neg), &[&h], &[N], &mut now);
            let h = queue(&mut machine, unary(UnaryOp::Abs), &[&next], &[N], &mut now);
            weights = next;
            queue(&mut machine, Op::Reduce(Box::new(sum)), &[&h], &[], &mut now)
        };
        if let Some(step) = running.take() {
            machine.finished(step, now);
        }
        await_it(port, &loss);
        visit_queued(&mut machine, port, now);
        while let Some(step) = machine.next(now) {
            let mut names: Vec<String> = step.nodes().map(|n| n.op.name().to_string()).collect();
            names.sort_unstable();
            steps.push(names);
            // The loss is there; of its step the machine hears in the next round.
            publish(&step);
            assert!(running.replace(step).is_none(), "one step a round");
        }
        assert!(loss.completion.state().is_complete(), "round {round}");
        rounds.push(steps);
    }
    assert_eq!(rounds[0], [["abs", "exp", "neg", "sum", "tanh"]]);
    assert!(rounds.iter().all(|round| *round == rounds[0]), "{rounds:?}");
    if let Some(step) = running.take() {
        machine.finished(step, now);
    }
    assert!(machine.is_idle());
}

struct Urgent;

impl crate::graph::node::Planned for Urgent {
    fn cost_ns(&self) -> u64 {
        1 << 20
    }
    fn is_urgent(&self) -> bool {
        true
    }
}

#[test]
fn what_is_urgent_is_taken_up_before_all_that_waits() {
    for ahead in [false, true] {
        let port = port();
        let mut machine = if ahead { machine(port) } else { host_machine(port) };
        let call = |inputs: &[&NodeHandle]| node(port, Op::Call(Arc::new(Urgent)), inputs, 1 << 20);
        let busy: Vec<NodeHandle> = (0..8).map(|_| large(port, &[], 1)).collect();
        visit_all(&mut machine, port);
        let mut steps: VecDeque<Step> = std::iter::from_fn(|| machine.next(0)).collect();
        assert_eq!(steps.len(), if ahead { 4 } else { 2 }, "no stream takes more");
        // One of them nobody wants any more; one goes on with what is just running.
        let (gone, last) = (call(&[]), call(&[]));
        let next = call(&[&busy[0]]);
        visit_all(&mut machine, port);
        drop(gone);
        visit_all(&mut machine, port);
        let mut order = Vec::new();
        loop {
            while let Some(step) = machine.next(0) {
                let urgent = [&next, &last].iter().position(|urgent| is_of(&step, urgent));
                let own = step.at.stream == LIMITS.streams;
                assert_eq!(
                    own,
                    ahead && urgent.is_some(),
                    "a stream of their own, where steps are submitted ahead"
                );
                order.push(urgent);
                steps.push_back(step);
            }
            // There they wait for nobody; elsewhere what runs is not interrupted.
            assert!(if ahead { order.len() >= 2 } else { !order.is_empty() || steps.len() == 2 });
            let Some(step) = steps.pop_front() else { break };
            publish(&step);
            machine.finished(step, 0);
            visit_all(&mut machine, port);
        }
        order.truncate(2);
        order.sort_unstable();
        assert_eq!(order, [Some(0), Some(1)], "ahead {ahead}");
        assert!(machine.is_idle());
    }
}
