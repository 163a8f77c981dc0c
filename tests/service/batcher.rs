//! The batcher's promises, one at a time: by hand on the simulated device, and with the real timer.
//! What it does about bad requests is in `isolate`.

use crate::support::{Counter, Gate, Kind, until};
use crate::trials::{Case, cases, on_workers};
use futensor::custom::{Refusal, custom_fn};
use futensor::serve::{Answer, BatchOptions, Batcher, ManualTimer, rows};
use futensor::sim::{SimOptions, Simulation};
use futensor::{Device, TensorFuture};
use futures::executor::block_on;
use futures::poll;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tower::{Service, ServiceExt};

pub fn all() -> Vec<Case> {
    cases!["batcher::";
        a_full_batch_goes_at_once_and_each_gets_its_own_row
        a_batch_that_is_not_full_goes_after_the_delay_of_its_oldest
        requests_share_batches_unless_asked_otherwise_however_fast_the_device_is
        whoever_finds_nothing_under_way_goes_at_once_where_that_is_asked_for
        no_more_batches_are_under_way_than_may_be_and_answers_nobody_polls_hold_up_nobody
        a_request_that_leaves_the_queue_is_in_no_batch
        work_that_only_a_gone_request_wanted_is_skipped
        an_error_fails_its_batch_only_and_names_the_line_that_made_the_batcher
        a_row_of_its_own_may_fail_alone
        a_full_queue_refuses_and_makes_poll_ready_wait_its_turn
        a_closed_batcher_ends_what_it_has_and_takes_no_more
        all_who_wait_for_a_place_are_woken_as_the_batcher_closes
        under_towers_layers_an_error_names_a_line_of_ours
        a_key_that_panics_keeps_no_place
        batches_are_of_one_key_and_the_oldest_goes_first
        the_real_timer_needs_no_runtime
        towers_layers_go_around_it
        an_answer_is_a_barrier_and_names_the_line_of_its_request
        a_stuck_batch_is_left_behind_by_its_deadline
        a_delay_without_end_waits_for_a_full_batch_or_for_the_end_of_time
        rows_that_no_memory_holds_are_one_failed_value_and_requests_are_told_why
    ]
}

const MS: Duration = Duration::from_millis(1);

/// Sizes of the batches that a function was given.
type Sizes = Arc<Mutex<Vec<usize>>>;

/// Doubles each number, [n, 1] at a time, and notes the sizes of its batches.
pub fn doubling(
    device: &Device,
    sizes: &Sizes,
) -> impl Fn(&[f32]) -> Vec<TensorFuture> + Send + Sync + 'static {
    let (device, sizes) = (device.clone(), sizes.clone());
    move |requests| {
        sizes.lock().unwrap().push(requests.len());
        rows(&(device.from_slice(requests, [requests.len(), 1]) * 2.0))
    }
}

struct Hand {
    device: Device,
    simulation: Simulation,
    timer: ManualTimer,
    sizes: Sizes,
    batcher: Batcher<f32>,
}

fn by_hand(options: BatchOptions) -> Hand {
    let (device, simulation) = Device::simulated(SimOptions::new(1));
    let (timer, sizes) = (ManualTimer::new(), Sizes::default());
    let batcher = Batcher::new(options.timer(timer.clone()), doubling(&device, &sizes));
    Hand { device, simulation, timer, sizes, batcher }
}

impl Hand {
    fn sizes(&self) -> Vec<usize> {
        self.sizes.lock().unwrap().clone()
    }
    /// Lets everything happen, what the end of batches lets through included.
    fn settle(&self) {
        while self.simulation.run() + self.timer.advance(Duration::ZERO) > 0 {}
    }
    fn value(&self, answer: Answer) -> f32 {
        let tensor = self.simulation.block_on(answer).expect("it ends").unwrap();
        assert_eq!(tensor.dims(), [1]);
        self.simulation.block_on(tensor.item::<f32>()).expect("it ends").unwrap()
    }
}

fn a_full_batch_goes_at_once_and_each_gets_its_own_row() {
    let hand = by_hand(BatchOptions::default().batch_max(3));
    let answers: Vec<Answer> = (0..7).map(|i| hand.batcher.submit(i as f32)).collect();
    assert_eq!(hand.sizes(), [3, 3]);
    hand.timer.advance(2 * MS);
    hand.settle();
    assert_eq!(hand.sizes(), [3, 3, 1]);
    // In any order of asking.
    for (i, answer) in answers.into_iter().enumerate().rev() {
        assert_eq!(hand.value(answer), 2.0 * i as f32);
    }
    let stats = hand.batcher.stats();
    assert_eq!((stats.requests, stats.answered, stats.batches, stats.in_flight), (7, 7, 3, 0));
    assert_eq!(stats.sizes, [1, 0, 2]);
}

fn a_batch_that_is_not_full_goes_after_the_delay_of_its_oldest() {
    let hand = by_hand(BatchOptions::default().delay(5 * MS));
    let first = hand.batcher.submit(1.0);
    hand.timer.advance(3 * MS);
    let second = hand.batcher.submit(2.0);
    hand.timer.advance(MS);
    assert_eq!(hand.sizes(), [0; 0]);
    hand.timer.advance(MS);
    assert_eq!(hand.sizes(), [2]);
    assert_eq!((hand.value(first), hand.value(second)), (2.0, 4.0));
    let stats = hand.batcher.stats();
    assert_eq!((stats.queued_worst, stats.queued_total), (5 * MS, 7 * MS));
}

fn requests_share_batches_unless_asked_otherwise_however_fast_the_device_is() {
    // Each batch is through before the next request comes.
    let sizes = |options: BatchOptions| {
        let hand = by_hand(options.batch_max(8).delay(2 * MS));
        let submit = |i| {
            let answer = hand.batcher.submit(i as f32);
            hand.settle();
            answer
        };
        let answers: Vec<Answer> = (0..20).map(submit).collect();
        hand.timer.advance(2 * MS);
        for (i, answer) in answers.into_iter().enumerate() {
            assert_eq!(hand.value(answer), 2.0 * i as f32);
        }
        hand.sizes()
    };
    assert_eq!(sizes(BatchOptions::default()), [8, 8, 4]);
    assert_eq!(sizes(BatchOptions::default().eager(true)), [1; 20]);
}

fn whoever_finds_nothing_under_way_goes_at_once_where_that_is_asked_for() {
    let hand = by_hand(BatchOptions::default().eager(true).in_flight(1));
    let first = hand.batcher.submit(1.0);
    let rest = [hand.batcher.submit(2.0), hand.batcher.submit(3.0)];
    assert_eq!(hand.sizes(), [1]);
    hand.settle();
    // The end of the first let the others go, without any time passing, and before anybody looked.
    assert_eq!(hand.sizes(), [1, 2]);
    assert_eq!(hand.value(first), 2.0);
    for (answer, want) in rest.into_iter().zip([4.0, 6.0]) {
        assert_eq!(hand.value(answer), want);
    }
}

fn no_more_batches_are_under_way_than_may_be_and_answers_nobody_polls_hold_up_nobody() {
    let hand = by_hand(BatchOptions::default().eager(true).batch_max(2).in_flight(2));
    let mut answers: Vec<Answer> = (0..12).map(|i| hand.batcher.submit(i as f32)).collect();
    assert_eq!(hand.sizes(), [1, 2]);
    hand.timer.advance(10 * MS);
    assert_eq!(hand.sizes(), [1, 2], "time alone starts no third");
    let last = answers.pop().unwrap();
    hand.settle();
    assert_eq!(hand.value(last), 22.0);
    let stats = hand.batcher.stats();
    assert_eq!((stats.waiting, stats.in_flight, stats.running), (0, 0, 11));
    for (i, answer) in answers.into_iter().enumerate() {
        assert_eq!(hand.value(answer), 2.0 * i as f32);
    }
}

fn a_request_that_leaves_the_queue_is_in_no_batch() {
    let hand = by_hand(BatchOptions::default());
    let answers: Vec<Answer> = (0..3).map(|i| hand.batcher.submit(i as f32)).collect();
    let mut answers = answers.into_iter();
    let (first, _) = (answers.next().unwrap(), drop(answers.next()));
    assert_eq!(hand.batcher.stats().waiting, 2);
    hand.timer.advance(2 * MS);
    assert_eq!(hand.sizes(), [2]);
    assert_eq!((hand.value(first), hand.value(answers.next().unwrap())), (0.0, 4.0));
    assert_eq!(hand.batcher.stats().left_waiting, 1);
    // And where all leave, there is no batch.
    drop(hand.batcher.submit(9.0));
    hand.timer.advance(10 * MS);
    assert_eq!(hand.sizes(), [2]);
}

fn work_that_only_a_gone_request_wanted_is_skipped() {
    let hand = by_hand(BatchOptions::default().batch_max(2));
    let (a, b) = (hand.batcher.submit(1.0), hand.batcher.submit(2.0));
    assert_eq!(hand.sizes(), [2]);
    drop(a);
    assert_eq!(hand.value(b), 4.0);
    hand.settle();
    let one = hand.device.stats();
    assert_eq!(one.skipped, 2, "its row, which is a slice without its first dimension: {one:?}");
    // Where all are gone, nothing of the batch runs.
    let gone = (hand.batcher.submit(1.0), hand.batcher.submit(2.0));
    drop(gone);
    hand.settle();
    let both = hand.device.stats();
    assert_eq!((both.started, both.fused), (one.started, one.fused), "{both:?}");
    let stats = hand.batcher.stats();
    assert_eq!((stats.left_running, stats.running, stats.in_flight), (3, 0, 0));
}

fn an_error_fails_its_batch_only_and_names_the_line_that_made_the_batcher() {
    let (device, simulation) = Device::simulated(SimOptions::new(1));
    let own = device.clone();
    let timer = ManualTimer::new();
    let options = BatchOptions::default().batch_max(2).isolate(false).timer(timer.clone());
    let line = line!() + 1;
    let batcher = Batcher::new(options, move |requests: &[u32]| {
        let x = own.ones([requests.len(), 2]);
        match requests[0] {
            0 => rows(&custom_fn("broken", &[&x], crate::support::same_meta, |_| {
                Err(Refusal::kernel("no"))
            })),
            1 => rows(&x.matmul(own.ones([3]))),
            2 => panic!("on purpose: {}", requests[1]),
            3 => rows(&x)[..1].to_vec(),
            _ => rows(&x),
        }
    });
    let answers: Vec<Answer> =
        (0..5).flat_map(|i| [batcher.submit(i), batcher.submit(i)]).collect();
    while simulation.run() + timer.advance(Duration::ZERO) > 0 {}
    let results: Vec<_> =
        answers.into_iter().map(|a| simulation.block_on(a).expect("it ends")).collect();
    let error = |i: usize| {
        let (a, b) =
            (results[2 * i].as_ref().unwrap_err(), results[2 * i + 1].as_ref().unwrap_err());
        assert!(a.same_root(b));
        a
    };
    assert!(error(0).is_kernel() && error(0).op() == "broken");
    assert!(results[2].is_err() && results[3].is_err());
    assert!(
        error(2).is_kernel()
            && error(2).message() == "the batch's function panicked: on purpose: 2"
    );
    assert!(
        error(3).is_argument()
            && error(3)
                .message()
                .contains("the function returned 1 value for a batch of 2 requests")
    );
    for own in [error(2), error(3)] {
        assert_eq!(
            (own.location().file().ends_with("service/batcher.rs"), own.location().line()),
            (true, line)
        );
    }
    assert!(results[8].is_ok() && results[9].is_ok());
    let stats = batcher.stats();
    assert_eq!((stats.failed, stats.answered, stats.in_flight), (8, 2, 0));
}

fn a_row_of_its_own_may_fail_alone() {
    let device = Kind::Cpu.device();
    let own = device.clone();
    let batcher = Batcher::new(BatchOptions::default().batch_max(3), move |requests: &[f32]| {
        let row = |x: f32| own.full([2], x).matmul(own.ones([if x == 1.0 { 3 } else { 2 }]));
        requests.iter().copied().map(row).collect()
    });
    let answers: Vec<Answer> = (0..3).map(|i| batcher.submit(i as f32)).collect();
    let results: Vec<bool> = answers.into_iter().map(|a| block_on(a).is_ok()).collect();
    assert_eq!(results, [true, false, true]);
}

fn a_full_queue_refuses_and_makes_poll_ready_wait_its_turn() {
    let hand = by_hand(BatchOptions::default().queue(2));
    let held = [hand.batcher.submit(1.0), hand.batcher.submit(2.0)];
    assert_eq!(hand.batcher.try_submit(3.0).map(drop), Err(3.0));
    let error = block_on(hand.batcher.submit(3.0)).unwrap_err();
    assert!(error.is_refused() && error.message() == "the queue is full", "{error}");
    let (mut first, mut second) = (hand.batcher.clone(), hand.batcher.clone());
    block_on(async {
        assert!(poll!(first.ready()).is_pending());
        assert!(poll!(second.ready()).is_pending());
        // One place comes free: it is that of who asked first, and of nobody who comes later.
        let [gone, kept] = held;
        drop(gone);
        assert_eq!(hand.batcher.try_submit(9.0).map(drop), Err(9.0));
        assert!(poll!(second.ready()).is_pending());
        let answer = first.ready().await.unwrap().call(5.0);
        hand.timer.advance(2 * MS);
        assert_eq!(hand.sizes(), [2]);
        assert_eq!((hand.value(kept), hand.value(answer)), (4.0, 10.0));
        second.ready().await.unwrap();
        // A place that is not used goes back.
        drop(second);
        let both = [hand.batcher.try_submit(1.0), hand.batcher.try_submit(1.0)];
        assert!(both.iter().all(Result::is_ok));
    });
    assert_eq!(hand.batcher.stats().refused, 3);
}

fn a_closed_batcher_ends_what_it_has_and_takes_no_more() {
    let hand = by_hand(BatchOptions::default().queue(1));
    let answer = hand.batcher.submit(1.0);
    let mut waits = hand.batcher.clone();
    block_on(async { assert!(poll!(waits.ready()).is_pending()) });
    hand.batcher.close();
    assert_eq!(hand.sizes(), [1]);
    assert_eq!(hand.value(answer), 2.0);
    assert!(block_on(hand.batcher.submit(1.0)).unwrap_err().is_refused());
    assert!(block_on(waits.ready()).map(drop).unwrap_err().is_refused());
    assert!(hand.batcher.try_submit(1.0).is_err());
}

/// How often it was woken.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

fn all_who_wait_for_a_place_are_woken_as_the_batcher_closes() {
    let hand = by_hand(BatchOptions::default().queue(1).in_flight(1));
    // One is under way, so that no place comes free by the close alone.
    let running = hand.batcher.submit(1.0);
    hand.timer.advance(2 * MS);
    assert_eq!(hand.sizes(), [1]);
    let held = hand.batcher.submit(2.0);
    let mut waits: Vec<_> =
        (0..4).map(|_| (hand.batcher.clone(), Arc::new(Woken::default()))).collect();
    for (service, woken) in &mut waits {
        let waker = Waker::from(woken.clone());
        assert!(service.poll_ready(&mut Context::from_waker(&waker)).is_pending());
    }
    hand.batcher.close();
    for (service, woken) in &mut waits {
        assert_eq!(woken.0.load(SeqCst), 1);
        let ready = service.poll_ready(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(ready, Poll::Ready(Err(error)) if error.is_refused()));
    }
    hand.settle();
    assert_eq!((hand.value(running), hand.value(held)), (2.0, 4.0));
}

fn under_towers_layers_an_error_names_a_line_of_ours() {
    let device = Kind::Cpu.device();
    let line = line!() + 1;
    let batcher = Batcher::new(BatchOptions::default(), doubling(&device, &Sizes::default()));
    let service = tower::ServiceBuilder::new().map_request(|x: f32| x).service(batcher.clone());
    let answer = service.clone().oneshot(1.0);
    let denied = block_on(futensor::barrier::deny_barriers(answer)).unwrap_err();
    batcher.close();
    let closed = block_on(service.oneshot(1.0)).unwrap_err();
    assert!(denied.is_barrier() && closed.is_refused());
    for error in [denied, closed] {
        assert!(error.location().file().ends_with("service/batcher.rs"), "{error}");
        assert_eq!(error.location().line(), line);
    }
}

fn a_key_that_panics_keeps_no_place() {
    let device = Kind::Cpu.device();
    let options = BatchOptions::default().queue(1);
    let batcher = Batcher::grouped(
        options,
        |x: &f32| if *x < 0.0 { panic!("on purpose") } else { 0 },
        doubling(&device, &Sizes::default()),
    );
    for _ in 0..3 {
        assert!(std::panic::catch_unwind(|| drop(batcher.submit(-1.0))).is_err());
    }
    assert!(batcher.try_submit(1.0).is_ok());
}

fn batches_are_of_one_key_and_the_oldest_goes_first() {
    let (device, simulation) = Device::simulated(SimOptions::new(3));
    let (timer, seen) = (ManualTimer::new(), Arc::new(Mutex::new(Vec::new())));
    let (own, notes) = (device.clone(), seen.clone());
    let options = BatchOptions::default().batch_max(3).in_flight(8).timer(timer.clone());
    let batcher = Batcher::grouped(
        options,
        |r: &u64| r / 10,
        move |requests: &[u64]| {
            notes.lock().unwrap().push(requests.to_vec());
            requests.iter().map(|&r| own.full([1], r as f32)).collect()
        },
    );
    let mut answers: Vec<(u64, Answer)> = Vec::new();
    for r in [11, 21, 12, 31, 22, 13, 32] {
        answers.push((r, batcher.submit(r)));
        timer.advance(Duration::from_micros(100));
    }
    assert_eq!(
        *seen.lock().unwrap(),
        [vec![11, 12, 13]],
        "a full key goes though an older one waits"
    );
    timer.advance(2 * MS);
    assert_eq!(seen.lock().unwrap()[1..], [vec![21, 22], vec![31, 32]]);
    for (r, answer) in answers {
        let tensor = simulation.block_on(answer).expect("it ends").unwrap();
        assert_eq!(simulation.block_on(tensor.item::<f32>()).unwrap().unwrap(), r as f32);
    }
}

fn the_real_timer_needs_no_runtime() {
    let device = Kind::Cpu.device();
    let sizes = Sizes::default();
    let options = BatchOptions::default().delay(3 * MS);
    let batcher = Batcher::new(options, doubling(&device, &sizes));
    let threads: Vec<_> = (0..3)
        .map(|i| {
            let batcher = batcher.clone();
            std::thread::spawn(move || {
                let tensor = futensor::block_on(batcher.submit(i as f32)).unwrap();
                futensor::block_on(tensor.item::<f32>()).unwrap()
            })
        })
        .collect();
    for (i, thread) in threads.into_iter().enumerate() {
        assert_eq!(thread.join().unwrap(), 2.0 * i as f32);
    }
    assert_eq!(sizes.lock().unwrap().iter().sum::<usize>(), 3);
    // All handles go while one waits: its answer keeps what it needs.
    let answer = batcher.submit(7.0);
    drop(batcher);
    assert_eq!(block_on(async { answer.await.unwrap().item::<f32>().await.unwrap() }), 14.0);
}

fn towers_layers_go_around_it() {
    on_workers(2, async {
        let device = Kind::Cpu.device();
        let options = BatchOptions::default().batch_max(8).queue(16);
        let batcher = Batcher::new(options, doubling(&device, &Sizes::default()));
        let service = tower::ServiceBuilder::new()
            .concurrency_limit(12)
            .timeout(Duration::from_secs(50))
            .service(batcher.clone());
        let tasks: Vec<_> = (0..200)
            .map(|i| {
                let service = service.clone();
                tokio::spawn(async move {
                    let tensor = service.oneshot(i as f32).await.unwrap();
                    assert_eq!(tensor.item::<f32>().await.unwrap(), 2.0 * i as f32);
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        let stats = batcher.stats();
        assert_eq!((stats.answered, stats.waiting, stats.running), (200, 0, 0), "{stats:?}");
        assert_eq!(
            stats.sizes.iter().enumerate().map(|(k, n)| (k as u64 + 1) * n).sum::<u64>(),
            200
        );
    });
}

fn an_answer_is_a_barrier_and_names_the_line_of_its_request() {
    let device = Kind::Cpu.device();
    let batcher = Batcher::new(BatchOptions::default(), doubling(&device, &Sizes::default()));
    let line = line!() + 1;
    let answer = batcher.submit(1.0);
    let error = block_on(futensor::barrier::deny_barriers(answer)).unwrap_err();
    assert!(error.is_barrier() && error.op() == "answer");
    assert_eq!(
        (error.location().line(), error.location().file().ends_with("batcher.rs")),
        (line, true)
    );
}

fn a_stuck_batch_is_left_behind_by_its_deadline() {
    let device = Kind::Cpu.device();
    let (gate, counter) = (Arc::new(Gate::new()), Counter::new());
    let (door, counted, own) = (gate.clone(), counter.clone(), device.clone());
    let options = BatchOptions::default().in_flight(2);
    let batcher = Batcher::new(options, move |requests: &[bool]| {
        let x = own.ones([requests.len(), 2]);
        let stuck = || (0..12).fold(door.op(&x), |x, _| counted.op(&x));
        rows(&if requests[0] { stuck() } else { x + 1.0 })
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let stuck = batcher.submit(true);
        gate.wait_entered(1);
        assert!(tokio::time::timeout(MS, stuck).await.is_err());
        // The executor is free, and so is the rest of the device.
        let next = batcher.submit(false).await.unwrap();
        assert_eq!(next.to_vec::<f32>().await.unwrap(), [2.0, 2.0]);
    });
    // What would have come after the stuck step is wanted by nobody: it leaves the queue while that
    // step is stuck.
    until(|| device.stats().queued == 1);
    gate.open();
    block_on(device.waitall()).unwrap();
    assert_eq!(counter.runs(), 0, "of 12");
    assert_eq!(batcher.stats().left_running, 1);
}

fn a_delay_without_end_waits_for_a_full_batch_or_for_the_end_of_time() {
    let hand = by_hand(BatchOptions::default().batch_max(2).delay(Duration::MAX));
    hand.timer.advance(MS);
    let first = hand.batcher.submit(1.0);
    hand.timer.advance(Duration::from_secs(1 << 40));
    assert_eq!(hand.sizes(), [0; 0]);
    let second = hand.batcher.submit(2.0);
    assert_eq!(hand.sizes(), [2]);
    let third = hand.batcher.submit(3.0);
    hand.timer.advance(Duration::MAX);
    assert_eq!(hand.sizes(), [2, 1]);
    assert_eq!([first, second, third].map(|answer| hand.value(answer)), [2.0, 4.0, 6.0]);
    // The process's own timer has no such end.
    let device = Device::cpu();
    let options = BatchOptions::default().batch_max(2).delay(Duration::MAX);
    let batcher = Batcher::new(options, doubling(&device, &Sizes::default()));
    let answers = [batcher.submit(1.0), batcher.submit(2.0)];
    assert!(answers.into_iter().all(|answer| block_on(answer).is_ok()));
}

fn rows_that_no_memory_holds_are_one_failed_value_and_requests_are_told_why() {
    let device = Device::cpu();
    let large = device.zeros([usize::MAX, 2]);
    let all = rows(&large);
    assert!(all.len() == 1 && all[0].error().unwrap().same_root(&large.error().unwrap()));
    let all = rows(&device.zeros([1 << 40]));
    assert!(all.len() == 1 && all[0].error().unwrap().is_out_of_memory());
    for sizes in [[usize::MAX, 2], [1 << 40, 1]] {
        let device = device.clone();
        let batcher = Batcher::new(BatchOptions::default().batch_max(2), move |_: &[u32]| {
            rows(&device.zeros(sizes))
        });
        for answer in [batcher.submit(1), batcher.submit(2)] {
            let error = block_on(answer).unwrap_err();
            assert!(error.is_out_of_memory() && error.op() != "batcher", "{error}");
        }
    }
}

/// Nobody gets a place any more, so each is woken by the end itself, however many wait.
#[test]
fn all_who_wait_for_a_place_are_woken_by_the_end() {
    struct Woken(std::sync::atomic::AtomicBool);
    impl std::task::Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, std::sync::atomic::Ordering::SeqCst);
        }
    }
    let hand = by_hand(BatchOptions::default().queue(1).batch_max(1).in_flight(1));
    let _running = hand.batcher.submit(1.0);
    let _waiting = hand.batcher.submit(2.0);
    let wait = |_| {
        let woken = Arc::new(Woken(Default::default()));
        let (mut own, waker) = (hand.batcher.clone(), std::task::Waker::from(woken.clone()));
        assert!(own.poll_ready(&mut std::task::Context::from_waker(&waker)).is_pending());
        (own, woken)
    };
    let waiting: Vec<_> = (0..3).map(wait).collect();
    hand.batcher.close();
    for (mut own, woken) in waiting {
        assert!(woken.0.load(std::sync::atomic::Ordering::SeqCst), "it would wait for ever");
        assert!(block_on(own.ready()).map(drop).unwrap_err().is_refused());
    }
}

#[test]
fn times_are_added_up_and_the_longest_is_kept() {
    let hand = by_hand(BatchOptions::default().batch_max(2).delay(9 * MS));
    let slow = hand.batcher.submit(1.0);
    hand.timer.advance(4 * MS);
    let beside = hand.batcher.submit(2.0);
    hand.settle();
    hand.timer.advance(MS);
    assert_eq!((hand.value(slow), hand.value(beside)), (2.0, 4.0));
    let quick = hand.batcher.submit(3.0);
    hand.timer.advance(2 * MS);
    let last = hand.batcher.submit(4.0);
    hand.settle();
    assert_eq!((hand.value(quick), hand.value(last)), (6.0, 8.0));
    let stats = hand.batcher.stats();
    // They waited for 4, 0, 2 and 0, and had their answers after 5, 1, 2 and 0.
    assert_eq!((stats.queued_total, stats.queued_worst), (6 * MS, 4 * MS));
    assert_eq!((stats.answer_total, stats.answer_worst), (8 * MS, 5 * MS));
}

#[test]
fn of_several_keys_with_a_whole_batch_the_one_with_the_oldest_request_goes_first() {
    let (device, simulation) = Device::simulated(SimOptions::new(3));
    let (timer, seen) = (ManualTimer::new(), Arc::new(Mutex::new(Vec::new())));
    let notes = seen.clone();
    let options = BatchOptions::default().batch_max(2).in_flight(1).timer(timer.clone());
    let forward = move |requests: &[u64]| {
        notes.lock().unwrap().push(requests.to_vec());
        requests.iter().map(|&r| device.full([1], r as f32) + 1.0).collect()
    };
    let batcher = Batcher::grouped(options, |r: &u64| r / 10, forward);
    // The first batch is under way while two more become whole, and nobody's time is up.
    let _answers = [90, 91, 51, 12, 21, 13, 22, 52].map(|r| batcher.submit(r));
    while simulation.run() + timer.advance(Duration::ZERO) > 0 {}
    assert_eq!(*seen.lock().unwrap(), [[90, 91], [51, 52], [12, 13], [21, 22]]);
}
