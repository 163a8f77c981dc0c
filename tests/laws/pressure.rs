//! Law 8: executor threads are never blocked, and backpressure is awaited.

use crate::support::{ALL, Counter, Gate, Kind, block_on};
use crate::{Laws, promises};
use futensor::custom::{CpuRun, Meta, Operation, Refusal, custom};
use futensor::{DType, Device, PoolOptions, TensorFuture, grad};
use futures::poll;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};

pub fn add(laws: &mut Laws) {
    promises!(laws, 8, ALL;
        a_sibling_progresses_beside_a_loop_of_ready_awaits
        a_sibling_progresses_beside_a_loop_of_small_ops
        a_poll_of_a_blocked_value_returns
        a_waiter_is_woken_once_and_only_when_it_is_time
        a_poll_runs_nothing_that_is_not_small
        a_poll_runs_no_step_of_many_elements
        an_op_is_counted_once_from_its_call_to_its_end
        ready_ends_when_the_queue_is_short_enough
        ready_and_admit_wait_for_bytes_as_for_ops
        one_released_permit_wakes_one_of_many_waiters
        try_admit_refuses_while_the_device_is_full
        a_permit_that_nobody_takes_goes_to_the_next
        queueing_far_ahead_costs_no_device_memory
        a_loop_goes_on_in_the_memory_of_its_first_rounds_and_trim_gives_it_back
        trim_wait_ends_once_what_was_dropped_before_is_freed
        trim_wait_waits_for_what_was_queued_before_and_for_nothing_later
        trim_wait_ends_whatever_becomes_of_its_device);
}

struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

fn counting() -> (Arc<Wakes>, Waker) {
    let wakes = Arc::new(Wakes(AtomicUsize::new(0)));
    (wakes.clone(), Waker::from(wakes))
}

/// Runs `looping` beside a task that yields and counts, on one thread; how far the other came
/// meanwhile.
fn beside(looping: impl Future<Output = ()>) -> usize {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let local = tokio::task::LocalSet::new();
    let (turns, over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    local.block_on(&runtime, async {
        let (counted, stop) = (turns.clone(), over.clone());
        let sibling = tokio::task::spawn_local(async move {
            while !stop.load(SeqCst) {
                counted.fetch_add(1, SeqCst);
                tokio::task::yield_now().await;
            }
        });
        looping.await;
        over.store(true, SeqCst);
        let during = turns.load(SeqCst);
        sibling.await.unwrap();
        during
    })
}

fn a_sibling_progresses_beside_a_loop_of_ready_awaits(kind: Kind) {
    let device = kind.device();
    let x = block_on(device.ones([2])).unwrap();
    let turns = beside(async move {
        for _ in 0..12_800 {
            (&x).await.unwrap();
        }
    });
    assert!(turns >= 90, "the sibling had {turns} turns beside 12,800 awaits");
}

fn a_sibling_progresses_beside_a_loop_of_small_ops(kind: Kind) {
    let device = kind.device();
    let turns = beside(async move {
        let mut x = device.zeros([4]).await.unwrap();
        for _ in 0..12_800 {
            x = (&x + 1.0).await.unwrap();
        }
        assert_eq!(x.to_vec::<f32>().await.unwrap(), [12_800.0; 4]);
    });
    assert!(turns >= 90, "the sibling had {turns} turns beside 12,800 awaits");
}

fn a_poll_of_a_blocked_value_returns(kind: Kind) {
    let device = kind.device();
    let busy = kind.occupy(&device);
    let base = device.rand([100, 100]);
    let mut values: Vec<TensorFuture> = (0..50).map(|_| base.matmul(&base).exp().sum(0)).collect();
    let (wakes, waker) = counting();
    for _ in 0..10 {
        for x in &mut values {
            assert!(Pin::new(x).poll(&mut Context::from_waker(&waker)).is_pending());
        }
    }
    assert_eq!(wakes.0.load(SeqCst), 0);
    busy.release();
    for x in values {
        block_on(x).unwrap();
    }
}

fn a_waiter_is_woken_once_and_only_when_it_is_time(kind: Kind) {
    let device = kind.device();
    let gate = Gate::new();
    let mut x = gate.op(&device.ones([2]));
    gate.wait_entered(1);
    let (stale, old) = counting();
    let (wakes, new) = counting();
    assert!(Pin::new(&mut x).poll(&mut Context::from_waker(&old)).is_pending());
    for _ in 0..100 {
        assert!(Pin::new(&mut x).poll(&mut Context::from_waker(&new)).is_pending());
    }
    assert_eq!(wakes.0.load(SeqCst), 0);
    gate.open();
    crate::support::until(|| wakes.0.load(SeqCst) > 0);
    // The waker of the last poll is the one that counts.
    assert!(x.is_ready());
    block_on(device.waitall()).unwrap();
    assert_eq!((wakes.0.load(SeqCst), stale.0.load(SeqCst)), (1, 0));
    let polled = Pin::new(&mut x).poll(&mut Context::from_waker(&new));
    assert!(matches!(polled, Poll::Ready(Ok(_))));
}

fn a_poll_runs_nothing_that_is_not_small(kind: Kind) {
    let device = kind.device();
    let me = std::thread::current().id();
    let (small, large) = (Counter::new(), Counter::new());
    let x = device.ones([16]);
    for _ in 0..200 {
        block_on(large.op_of(&x, Some(7_000))).unwrap();
        block_on(small.op_of(&x, Some(100))).unwrap();
    }
    assert!(!large.threads().contains(&me), "a poll ran a step of more than 6 us");
    if kind == Kind::CpuWithoutInline {
        assert!(!small.threads().contains(&me), "a poll ran a step although inline is off");
        assert_eq!(device.stats().inline, 0);
    }
    assert_eq!((small.runs(), large.runs()), (200, 200));
}

/// Large operands with small results, and the other way round: whoever awaits such a value, the
/// device computes it.
fn a_poll_runs_no_step_of_many_elements(kind: Kind) {
    const MANY: usize = 1 << 20;
    let device = kind.device();
    let (bins, index) = (device.zeros([256]), device.zeros_dtype([MANY], DType::I64));
    let (many, none) = (device.ones([MANY]), device.ones([0, MANY]));
    let free =
        |inputs: &[&TensorFuture], n: usize| custom(Free(Meta::new([n], DType::F32)), inputs);
    let wide = device.ones([1, 1, 1, MANY]);
    let wide_out = wide.requires_grad();
    let pooled = wide_out.avg_pool2d(PoolOptions::new(1).stride([1, MANY - 1]));
    block_on(device.waitall()).unwrap();
    let calls: Vec<(&str, Box<dyn Fn() -> TensorFuture>)> = vec![
        ("a histogram", Box::new(|| bins.scatter_add(0, &index, &many))),
        ("sums of nothing", Box::new(|| none.sum(0))),
        ("a product without inner elements", Box::new(|| device.ones([1, 0]).matmul(&none))),
        ("the way back of a pooling", Box::new(|| grad(pooled.sum_all(), &[&wide_out]).remove(0))),
        ("a free op with a large operand", Box::new(|| free(&[&many], 1))),
        ("a free op with a large result", Box::new(|| free(&[&bins], MANY))),
    ];
    for (name, call) in &calls {
        let busy = kind.occupy(&device);
        let mut value = call();
        let waker = Waker::noop();
        // Nobody else can run it now: what the poll does not run is not there.
        let polled = Pin::new(&mut value).poll(&mut Context::from_waker(waker));
        assert!(polled.is_pending(), "a poll ran {name}");
        busy.release();
        block_on(value).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

/// An op that says it costs nothing.
struct Free(Meta);

impl Operation for Free {
    fn name(&self) -> &str {
        "free"
    }
    fn infer(&self, _: &[&Meta]) -> Result<Meta, Refusal> {
        Ok(self.0.clone())
    }
    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        run.output().into_slice::<f32>().map(drop).ok_or_else(|| Refusal::dtype("float32 only"))
    }
    fn estimate_ns(&self, _: &[&Meta], _: &Meta) -> u64 {
        0
    }
}

fn an_op_is_counted_once_from_its_call_to_its_end(kind: Kind) {
    let device = kind.device();
    let x = device.arange(0.0, 1000.0, 1.0) * 1.0;
    block_on(device.waitall()).unwrap();
    let before = device.stats();
    let busy = kind.occupy(&device);
    let running = device.stats();
    let held = [(&x + 1.0).exp(), x.cumsum(0)];
    drop(&x * 2.0);
    let queued = device.stats();
    assert_eq!(queued.enqueued - running.enqueued, 4, "{queued:?}");
    busy.release();
    block_on(device.waitall()).unwrap();
    let after = device.stats();
    assert_eq!(after.enqueued, queued.enqueued, "{after:?}");
    assert_eq!((before.queued, after.queued), (0, 0));
    assert_eq!(after.started + after.fused + after.skipped, after.enqueued, "{after:?}");
    drop(held);
}

fn ready_ends_when_the_queue_is_short_enough(kind: Kind) {
    block_on(async {
        let device = kind.device_with(|o| o.queue_ops(10));
        device.ready().await;
        let gates: Vec<Gate> = (0..20).map(|_| Gate::new()).collect();
        let mut held = vec![device.ones([1])];
        for gate in &gates {
            held.push(gate.op(&held[held.len() - 1]));
        }
        let (mut ready, mut second) = (device.ready(), device.ready());
        assert!(poll!(&mut ready).is_pending() && poll!(&mut second).is_pending());
        drop(second);
        for (i, gate) in gates.iter().enumerate() {
            gate.wait_entered(1);
            if i < 10 {
                // More than ten ops are queued or running.
                assert!(poll!(&mut ready).is_pending());
            }
            gate.open();
        }
        ready.await;
        (&held[20]).await.unwrap();
    });
}

fn ready_and_admit_wait_for_bytes_as_for_ops(kind: Kind) {
    block_on(async {
        let device = kind.device_with(|o| o.queue_bytes(1 << 20));
        let busy = kind.occupy(&device);
        let small = device.ones([4]) + 1.0;
        device.ready().await;
        assert!(device.try_admit().is_some());
        let large = device.zeros([1 << 19]) + 1.0;
        let mut ready = device.ready();
        assert!(poll!(&mut ready).is_pending(), "two mebibytes are queued");
        assert!(device.try_admit().is_none());
        busy.release();
        ready.await;
        small.await.unwrap();
        large.await.unwrap();
    });
}

fn one_released_permit_wakes_one_of_many_waiters(kind: Kind) {
    let device = kind.device_with(|o| o.permits(2));
    let (first, second) = (device.try_admit().unwrap(), device.try_admit().unwrap());
    let mut waiters: Vec<_> = (0..50)
        .map(|_| {
            let (wakes, waker) = counting();
            let mut admit = device.admit();
            assert!(Pin::new(&mut admit).poll(&mut Context::from_waker(&waker)).is_pending());
            (wakes, waker, admit)
        })
        .collect();
    let woken = |waiters: &Vec<(Arc<Wakes>, Waker, futensor::barrier::Admit)>| -> Vec<usize> {
        waiters.iter().map(|w| w.0.0.load(SeqCst)).collect()
    };
    drop(first);
    let mut want = vec![0; 50];
    want[0] = 1;
    assert_eq!(woken(&waiters), want, "one permit, one wake, first come, first served");
    let (_, waker, mut admit) = waiters.remove(0);
    let Poll::Ready(permit) = Pin::new(&mut admit).poll(&mut Context::from_waker(&waker)) else {
        panic!("the permit was granted");
    };
    assert_eq!(woken(&waiters).iter().sum::<usize>(), 0);
    drop((permit, second));
    assert_eq!(woken(&waiters).iter().sum::<usize>(), 2);
    assert!(device.try_admit().is_none(), "others were here before");
}

fn try_admit_refuses_while_the_device_is_full(kind: Kind) {
    let device = kind.device_with(|o| o.permits(1000).queue_ops(5));
    let busy = kind.occupy(&device);
    let held: Vec<TensorFuture> = (0..10).map(|i| device.ones([1]) + i).collect();
    assert!(device.try_admit().is_none(), "a server answers 503");
    busy.release();
    block_on(device.waitall()).unwrap();
    crate::support::until(|| device.stats().queued == 0);
    assert!(device.try_admit().is_some());
    drop(held);
}

fn a_permit_that_nobody_takes_goes_to_the_next(kind: Kind) {
    block_on(async {
        let device = kind.device_with(|o| o.permits(1));
        let permit = device.admit().await;
        let (mut a, mut b) = (device.admit(), device.admit());
        assert!(poll!(&mut a).is_pending() && poll!(&mut b).is_pending());
        drop(permit);
        // Granted to `a`, which goes away without having taken it.
        drop(a);
        drop(b.await);
        assert!(device.try_admit().is_some());
    });
}

fn queueing_far_ahead_costs_no_device_memory(kind: Kind) {
    let device = kind.device();
    let mut x = device.zeros([1 << 18]);
    block_on(&x).unwrap();
    for i in 0..500 {
        x = x + (i % 2);
    }
    let sum = x.sum_all();
    assert_eq!(block_on(sum.item::<f32>()).unwrap(), 250.0 * (1 << 18) as f32);
    let peak = device.stats().bytes_peak;
    assert!(peak <= 8 << 20, "{peak} bytes at the peak for updates of 1 MiB");
}

fn a_loop_goes_on_in_the_memory_of_its_first_rounds_and_trim_gives_it_back(kind: Kind) {
    let device = kind.device();
    let x = device.rand([1 << 17]);
    let round = || {
        let y = (&x * 2.0 + 1.0).softmax(0);
        block_on((&y * &y).sum_all()).unwrap();
        drop(y);
        // What is dropped is freed by the device.
        block_on(device.waitall()).unwrap();
        let stats = device.stats();
        stats.bytes_live + stats.bytes_cached
    };
    for i in 0..50 {
        // Two values at once, and as many that whoever has just used them has not let go yet.
        let now = round();
        assert!(now <= 3 << 20, "round {i}: {now} bytes in use or kept, for values of half a MiB");
    }
    crate::support::until(|| device.stats().bytes_cached >= 1 << 19);
    let kept = device.stats().bytes_cached;
    assert!(device.trim() >= kept);
    // The last step's own hold on its value may end a moment after all have heard of its end.
    crate::support::until(|| device.trim() == 0 && device.stats().bytes_cached == 0);
}

/// Bytes that are live or kept, and of a GPU those that the driver has not got back.
fn in_use(device: &Device) -> usize {
    let (stats, memory) = (device.stats(), device.memory());
    // Of the computer others have their part.
    let taken = memory.free.filter(|_| device.name().starts_with("cuda"));
    stats.bytes_live + stats.bytes_cached + taken.map_or(0, |free| memory.total - free)
}

fn trim_wait_ends_once_what_was_dropped_before_is_freed(kind: Kind) {
    let device = kind.device();
    // A host's threads free large values; a GPU's whatever was dropped, and the simulated one is
    // slow.
    let x = device.rand([if kind == Kind::Cuda { 1 << 10 } else { 1 << 19 }]);
    let mut before = None;
    for round in 0..20 {
        let values: Vec<_> = (0..6).map(|i| &x * i).collect();
        let made: Vec<_> = values.iter().map(|v| (v + 1.0).cumsum(0)).collect();
        if round % 2 == 0 {
            block_on(device.waitall()).unwrap();
        } else {
            // What runs lets its values go itself.
            made.iter().for_each(TensorFuture::detach);
        }
        let all = device.stats().bytes_live;
        drop((values, made));
        block_on(device.trim_wait()).unwrap();
        let now = in_use(&device);
        let least = *before.get_or_insert(now);
        assert!(now <= least && now < 6 << 20 || kind == Kind::Cuda, "{round}: {now} of {all}");
        assert_eq!(now, least, "round {round}");
    }
    drop(x);
    block_on(device.trim_wait()).unwrap();
    let stats = device.stats();
    assert_eq!((stats.bytes_live, stats.bytes_cached), (0, 0));
}

fn trim_wait_waits_for_what_was_queued_before_and_for_nothing_later(kind: Kind) {
    let device = kind.device();
    let (send, comes) = futures::channel::oneshot::channel::<Vec<f32>>();
    let (later, never) = futures::channel::oneshot::channel::<Vec<f32>>();
    let x = device.from_future([2], comes);
    let mut trim = device.trim_wait();
    let y = device.from_future([2], never) + 1.0;
    block_on(async {
        for _ in 0..3 {
            assert!(poll!(&mut trim).is_pending());
            device.ones([3]).wait_to_read().await.unwrap();
        }
        // Giving one up costs the other nothing.
        drop(device.trim_wait());
        send.send(vec![1.0; 2]).unwrap();
        trim.await.unwrap();
        assert!(x.is_ready() && !y.is_ready());
        later.send(vec![1.0; 2]).unwrap();
        y.await.unwrap();
        let error = futensor::barrier::deny_barriers(device.trim_wait()).await.unwrap_err();
        assert!(error.is_barrier() && error.op() == "trim_wait", "{error}");
        // Many at once, and one that goes while it waits.
        let mut gone = device.trim_wait();
        let _ = poll!(&mut gone);
        let all: Vec<_> = (0..10).map(|_| device.trim_wait()).collect();
        drop(gone);
        for trim in all {
            trim.await.unwrap();
        }
    });
}

fn trim_wait_ends_whatever_becomes_of_its_device(kind: Kind) {
    let device = kind.device();
    let (held, comes) = futures::channel::oneshot::channel::<Vec<f32>>();
    let x = device.from_future([2], comes);
    let trim = device.trim_wait();
    let shutdown = device.shutdown();
    held.send(vec![1.0; 2]).unwrap();
    block_on(shutdown).unwrap();
    block_on(trim).unwrap();
    block_on(device.trim_wait()).unwrap();
    device.trim();
    drop(x);
}
