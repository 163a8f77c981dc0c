//! Moments inside the engine that no device shows at will: the state between two of its steps.

use super::machine::tests::{
    computed, host_machine, is_of, large, machine, node, port, publish, visit_all,
};
use super::machine::{Machine, Visit};
use super::port::Port;
use super::scheduler::RunSmall;
use super::small::SmallOps;
use crate::concurrent::completion::{DETACHED, Phase, QUEUED};
use crate::concurrent::counted::Counts;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind};
use crate::graph::node::{NodeHandle, Op, Source};
use crate::graph::operation::{CpuRun, Meta, Operation, Refusal};
use crate::graph::value::{INLINE_BYTES, Storage, Value};
use crate::host::step::Host;
use crate::op::{BinaryOp, UnaryOp};
use crate::view::Serial;
use std::panic::Location;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

struct Does<F>(F);
impl<F: Fn() + Send + Sync + 'static> Wake for Does<F> {
    fn wake(self: Arc<Self>) {
        (self.0)();
    }
}

/// An op of 20 ns on four elements.
struct Small<F>(F);
impl<F: Fn() -> Result<(), Refusal> + Send + Sync + 'static> Operation for Small<F> {
    fn name(&self) -> &str {
        "small"
    }
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        Ok(inputs[0].clone())
    }
    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        (self.0)()?;
        run.output().fill_from([1.0f32; 4]);
        Ok(())
    }
    fn estimate_ns(&self, _: &[&Meta], _: &Meta) -> u64 {
        20
    }
}

fn small(
    port: &'static Port,
    f: impl Fn() -> Result<(), Refusal> + Send + Sync + 'static,
) -> NodeHandle {
    node(port, Op::Custom(Arc::new(Small(f))), &[], 4)
}

/// Runs a node as a poll does, or as the engine does as it takes it up.
fn run(port: &'static Port, node: &mut NodeHandle, by_poll: bool) -> bool {
    if by_poll {
        return run_awaited(port, node);
    }
    let backend = Host { memory: &port.memory, parallel: &Serial, inline_values: true };
    let mut small = SmallOps::new(port, backend, 6_000);
    let done = small.run(&node.link());
    small.settle();
    done
}

fn run_awaited(port: &'static Port, node: &mut NodeHandle) -> bool {
    let backend = Host { memory: &port.memory, parallel: &Serial, inline_values: true };
    SmallOps::of_poll(port, backend, 6_000).run_awaited(node)
}

/// The queue's length and the number of logged errors that a waker of this value sees as it is
/// called.
fn seen_at_the_end(port: &'static Port, node: &NodeHandle) -> Arc<Mutex<Vec<(usize, usize)>>> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (tell, link) = (seen.clone(), node.link());
    let waker = Waker::from(Arc::new(Does(move || {
        assert!(link.completion.state().is_complete());
        tell.lock().unwrap().push((port.pressure.queued().0, port.log.take().kept.len()));
    })));
    assert!(!node.completion.register(&mut None, &waker));
    seen
}

/// Its one element comes at once, or an error.
struct Brings(bool);
impl Source for Brings {
    fn poll(&self, _: &mut Context<'_>) -> Poll<Result<Value, Error>> {
        Poll::Ready(match self.0 {
            true => Ok(Value::contiguous(Storage::Inline([0; INLINE_BYTES / 8]))),
            false => Err(Error::new(ErrorKind::Source, "brings", "nothing", Location::caller())),
        })
    }
    fn is_ours(&self) -> bool {
        true
    }
    fn name(&self) -> &'static str {
        "brings"
    }
}

#[test]
fn an_op_is_off_the_queue_only_when_its_value_is_there_and_its_error_in_the_log() {
    for (fails, by_poll) in [(false, false), (true, false), (false, true), (true, true)] {
        let port = port();
        let refusal = move || if fails { Err(Refusal::kernel("no")) } else { Ok(()) };
        // One that takes the way of results of a few bytes, and one that does not.
        let mut ops =
            [small(port, refusal), node(port, Op::Unary(UnaryOp::Neg), &[&constant(port)], 4)];
        let bring = node(port, Op::Source(Arc::new(Brings(!fails))), &[], 4);
        for op in &mut ops {
            op.completion.set(DETACHED);
            let seen = seen_at_the_end(port, op);
            let queued = port.pressure.queued().0;
            assert!(run(port, op, by_poll));
            let failed = op.error().is_some() as usize;
            assert_eq!(*seen.lock().unwrap(), [(queued, failed)]);
            assert_eq!(port.pressure.queued().0, queued - 1);
        }
        bring.completion.set(DETACHED);
        let seen = seen_at_the_end(port, &bring);
        port.ask_source(bring.link(), Waker::noop().clone());
        assert_eq!(*seen.lock().unwrap(), [(1, fails as usize)]);
        assert_eq!(port.pressure.queued().0, 0);
        assert_eq!(
            port.counters.closing_small.load(SeqCst) + port.counters.closing.load(SeqCst),
            0
        );
    }
}

/// A value of four elements that is there.
fn constant(port: &'static Port) -> NodeHandle {
    let value = Value::contiguous(Storage::Inline([0; INLINE_BYTES / 8]));
    port.given([4].into(), DType::F32, Location::caller(), Ok(value))
}

/// How far a poll goes for one node: a chain of so many tiny ops, and not one more; of a tree so
/// many in all. The rest is whole, and another poll goes on.
#[test]
fn a_poll_runs_a_bounded_number_of_ancestors() {
    let chain = |port: &'static Port, length: usize| {
        (0..length).fold(constant(port), |x, _| node(port, Op::Unary(UnaryOp::Neg), &[&x], 4))
    };
    for by_poll in [true, false] {
        let port = port();
        assert!(run(port, &mut chain(port, 64), by_poll));
        let mut long = chain(port, 66);
        assert!(!run(port, &mut long, by_poll));
        assert_eq!(port.pressure.queued().0, 66, "nothing of it was run");

        fn tree(port: &'static Port, depth: u32) -> NodeHandle {
            if depth == 0 {
                return node(port, Op::Unary(UnaryOp::Neg), &[&constant(port)], 4);
            }
            let (a, b) = (tree(port, depth - 1), tree(port, depth - 1));
            node(port, Op::Binary(BinaryOp::Add), &[&a, &b], 4)
        }
        let before = port.pressure.queued().0;
        let mut tree = tree(port, 9);
        let mut ran = 0;
        let mut polls = 0;
        while !run(port, &mut tree, by_poll) {
            let left = port.pressure.queued().0 - before;
            assert!(
                1023 - left > ran && 1023 - left - ran <= 256,
                "{ran}, then {left} left of 1023"
            );
            ran = 1023 - left;
            polls += 1;
        }
        assert!(polls >= 3, "{polls} polls");
        assert_eq!(port.pressure.queued().0, before);
    }
}

/// A poll that looked at them would hold them for a moment, and the engine would make steps without
/// them.
#[test]
fn polls_leave_alone_what_is_made_of_something_large_that_is_not_there() {
    let port = port();
    let neg = |of: &NodeHandle| node(port, Op::Unary(UnaryOp::Neg), &[of], 4);
    let far = large(port, &[], 1);
    let (near, also) = (neg(&far), neg(&constant(port)));
    let end = node(port, Op::Binary(BinaryOp::Add), &[&also, &near], 4);
    assert!(far.is_left_by_polls() && near.is_left_by_polls() && end.is_left_by_polls());
    assert!(!also.is_left_by_polls() && !neg(&also).is_left_by_polls());
    for made in [&far, &near] {
        assert!(made.completion.claim(Phase::Writing, 0));
        computed(made);
        assert!(!made.is_left_by_polls() && !neg(made).is_left_by_polls());
    }
}

/// The engine never sees a node that a poll has run and that nobody else can reach.
#[test]
fn what_a_poll_has_run_it_takes_back_where_nobody_else_can_reach_it() {
    let port = port();
    for kept in [false, true] {
        let mut end = node(port, Op::Unary(UnaryOp::Neg), &[&constant(port)], 4);
        let kept = kept.then(|| end.clone());
        assert!(run_awaited(port, &mut end));
        assert_eq!(end.completion.state().has(QUEUED), kept.is_some());
        let links = kept.is_some() as u32;
        assert_eq!(end.counts(), Counts { handles: 1 + links, links });
        assert_eq!(port.mailbox.intake.take().count(), kept.iter().count());
        assert_eq!(port.pressure.queued().0, 0);
    }
}

/// The task may have changed since: the waker of an earlier poll is another's.
#[test]
fn a_value_that_a_poll_alone_can_reach_wakes_who_waited_for_it_before() {
    let port = port();
    let mut end = node(port, Op::Unary(UnaryOp::Neg), &[&constant(port)], 4);
    let rung = Arc::new(AtomicUsize::new(0));
    let ring = rung.clone();
    let waker = Waker::from(Arc::new(Does(move || {
        ring.fetch_add(1, SeqCst);
    })));
    assert!(!end.completion.register(&mut None, &waker));
    assert!(run_awaited(port, &mut end));
    assert_eq!(rung.load(SeqCst), 1);
}

#[test]
fn what_a_poll_has_run_for_a_nodes_sake_it_takes_back_down_to_what_others_can_reach() {
    let port = port();
    for kept in [None, Some(3), Some(0)] {
        let mut end = node(port, Op::Unary(UnaryOp::Neg), &[&constant(port)], 4);
        let mut held = None;
        for k in 0..8 {
            if kept == Some(k) {
                held = Some(end.clone());
            }
            // Its one owner but the intake, twice.
            end = node(port, Op::Binary(BinaryOp::Add), &[&end, &end], 4);
        }
        assert!(run_awaited(port, &mut end));
        assert_eq!(end.counts(), Counts { handles: 1, links: 0 });
        assert_eq!(
            port.mailbox.intake.take().count(),
            kept.map_or(0, |k| k + 1),
            "but for {kept:?} and what came before it"
        );
        assert_eq!(held.map(|held| held.counts().handles), kept.map(|_| 1));
        assert_eq!(port.pressure.queued().0, 0);
    }
}

/// Beside an operand that failed another may not have been looked at: it is the engine's as before.
#[test]
fn what_a_failed_poll_has_not_run_stays_with_the_engine() {
    let port = port();
    let error = Error::new(ErrorKind::Argument, "test", "failed", Location::caller());
    let failed = port.given([64].into(), DType::F32, Location::caller(), Err(error));
    let pending = node(port, Op::Fill(crate::dtype::Scalar::Float(1.0)), &[], 64);
    pending.completion.set(DETACHED);
    let mut sum = node(port, Op::Binary(BinaryOp::Add), &[&failed, &pending], 64);
    drop(pending);
    assert!(run_awaited(port, &mut sum) && sum.error().is_some());
    let left: Vec<_> = port.mailbox.intake.take().collect();
    assert_eq!(left.len(), 1, "the one that is detached");
    assert!(left[0].completion.state().has(DETACHED | QUEUED));
}

/// A worker that leaves small ops to polls looks at once where this says so.
#[test]
fn what_no_poll_will_run_is_in_a_hurry_until_the_intake_is_taken() {
    let port = port();
    let hurries = |what: &str| {
        assert!(port.mailbox.is_in_hurry(), "{what}");
        drop(port.mailbox.take_queued());
        assert!(!port.mailbox.is_in_hurry(), "after {what}");
    };
    let small = || node(port, Op::Unary(UnaryOp::Neg), &[&constant(port)], 4);
    let _small = small();
    assert!(!port.mailbox.is_in_hurry(), "a small op");
    let _large = large(port, &[], 1);
    hurries("a large one");
    let _marker = port.enqueue_marker(Location::caller());
    hurries("a marker");
    let awaited = small();
    port.schedule_awaited(awaited.link());
    hurries("what is awaited and no poll could run");
}

/// A poll claims a sum, computes its left operand, and finds that the right one is not there.
/// Meanwhile the engine has looked at the sum, and found it claimed.
#[test]
fn what_a_poll_gives_back_is_looked_at_again_where_the_engine_came_by_meanwhile() {
    let port = port();
    let engine = Arc::new(Mutex::new(host_machine(port)));
    let right = large(port, &[], 1);
    let own = engine.clone();
    let left = small(port, move || {
        visit_all(&mut own.lock().unwrap(), port);
        Ok(())
    });
    // `right` has other elements than `left` only in their number: of these, one.
    let lone = node(
        port,
        Op::View(crate::graph::node::ViewOp::Slice { dim: 0, start: 0, step: 1 }),
        &[&right],
        1,
    );
    let mut sum = node(port, Op::Binary(BinaryOp::Add), &[&left, &lone], 4);
    // The engine comes to all but the two that the poll has claimed.
    assert!(!run(port, &mut sum, true), "an operand is not there");
    let mut engine = engine.lock().unwrap();
    visit_all(&mut engine, port);
    drive(&mut engine);
    assert!(sum.completion.state().is_complete(), "nobody looked at what was given back");
    visit_all(&mut engine, port);
    assert!(engine.is_idle());
}

/// Runs whatever the machine says.
fn drive(machine: &mut Machine) {
    while let Some(step) = machine.next(0) {
        publish(&step);
        machine.finished(step, 0);
    }
}

#[test]
fn what_is_awaited_is_looked_at_before_its_turn_and_no_earlier_waitall_waits_for_it() {
    let port = port();
    let mut machine = machine(port);
    let before: Vec<NodeHandle> = (0..1000).map(|_| large(port, &[], 1)).collect();
    let marker = port.enqueue_marker(Location::caller());
    let root = large(port, &[], 1);
    let awaited = large(port, &[&root], 2);
    port.schedule_awaited(awaited.link());
    assert!(port.mailbox.has_queued());
    for node in port.mailbox.take_awaited() {
        match machine.visit_early(node) {
            Visit::New(node) => machine.enter(node, 0, &mut |_| false),
            Visit::Settled => panic!("it is new"),
        }
    }
    // With what it is made from, and before a thousand others.
    let first = machine.next(0).expect("what it is made from");
    assert!(is_of(&first, &root) && matches!(machine.visit_early(awaited.link()), Visit::Settled));
    let second = machine.next(0).expect("what is awaited");
    assert!(is_of(&second, &awaited));
    // All that came before the `waitall` is done, and these are not.
    let mut held = vec![second, first];
    visit_all(&mut machine, port);
    while !before.iter().all(|x| x.completion.state().is_complete()) {
        let step = machine.next(0).expect("one of those before");
        publish(&step);
        machine.finished(step, 0);
    }
    assert!(marker.completion.state().is_complete() && !awaited.completion.state().is_complete());
    // One that comes after waits for them.
    let later = port.enqueue_marker(Location::caller());
    visit_all(&mut machine, port);
    while let Some(step) = held.pop() {
        assert!(!later.completion.state().is_complete());
        publish(&step);
        machine.finished(step, 0);
    }
    assert!(later.completion.state().is_complete() && machine.is_idle());
}

/// The last of a long chain is awaited: only a piece of the chain is brought in at once, and all of
/// it runs in the end.
#[test]
fn of_a_long_chain_that_is_awaited_a_piece_is_brought_in_before_its_turn() {
    let port = port();
    let mut machine = machine(port);
    let mut chain = vec![large(port, &[], 1)];
    for i in 0..2000 {
        chain.push(large(port, &[&chain[i]], 1 + i % 2));
    }
    let last = chain.last().expect("the last one");
    port.schedule_awaited(last.link());
    for node in port.mailbox.take_awaited() {
        if let Visit::New(node) = machine.visit_early(node) {
            machine.enter(node, 0, &mut |_| false);
        }
    }
    let brought = chain.iter().filter(|x| x.entry().is_some()).count();
    assert!((200..300).contains(&brought), "{brought}");
    assert!(machine.next(0).is_none());
    visit_all(&mut machine, port);
    drive(&mut machine);
    assert!(chain.iter().all(|x| x.completion.state().is_complete()));
    visit_all(&mut machine, port);
    assert!(machine.is_idle());
}

#[test]
fn a_long_intake_is_turned_round_in_pieces_and_read_oldest_first() {
    let port = port();
    let nodes: Vec<NodeHandle> = (0..10).map(|_| large(port, &[], 1)).collect();
    let mut batch = port.mailbox.intake.take();
    assert!(!batch.turn(4) && !batch.is_empty() && !batch.turn(4) && batch.turn(4));
    assert!(batch.map(|n| n.address()).eq(nodes.iter().map(NodeHandle::address)));
    // One that is read before it is turned turns by itself; one that is dropped half way drops all.
    let more: Vec<NodeHandle> = (0..10).map(|_| large(port, &[], 1)).collect();
    assert!(
        port.mailbox.intake.take().map(|n| n.address()).eq(more.iter().map(NodeHandle::address))
    );
    let rest: Vec<NodeHandle> = (0..10).map(|_| large(port, &[], 1)).collect();
    let mut batch = port.mailbox.intake.take();
    batch.turn(5);
    drop(batch);
    assert!(rest.iter().all(|n| n.counts().links == 0));
}

/// Readers of one value, some of them twice, give up in any order: the task table is as if they had
/// never been.
#[test]
fn edges_are_cut_in_any_order() {
    let port = port();
    let mut machine = machine(port);
    let x = large(port, &[], 1);
    visit_all(&mut machine, port);
    let first = machine.next(0).expect("x");
    let y = large(port, &[&x], 1);
    let mut readers: Vec<(usize, NodeHandle)> = (0..60)
        .map(|i| match i % 3 {
            0 => (i, node(port, Op::Binary(BinaryOp::Add), &[&y, &y], 1 << 20)),
            1 => (i, node(port, Op::Binary(BinaryOp::Mul), &[&x, &y], 1 << 20)),
            _ => (i, large(port, &[&y], 2)),
        })
        .collect();
    visit_all(&mut machine, port);
    let skipped = AtomicUsize::new(0);
    let mut at = 7;
    while readers.len() > 2 {
        at = (at * 5 + 3) % readers.len();
        drop(readers.swap_remove(at));
        visit_all(&mut machine, port);
        skipped.fetch_add(1, SeqCst);
        assert_eq!(port.counters.skipped.load(SeqCst) as usize, skipped.load(SeqCst));
    }
    // The rest runs; then the task table is empty.
    publish(&first);
    machine.finished(first, 0);
    drive(&mut machine);
    visit_all(&mut machine, port);
    assert!(readers.iter().all(|(_, r)| r.completion.state().is_complete()));
    drop(readers);
    visit_all(&mut machine, port);
    assert!(machine.is_idle());
}
