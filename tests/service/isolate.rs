//! One bad request does not fail its batch, at a bounded price; and where the function is at fault,
//! it is not asked for each request.

use crate::support::{Kind, Rng};
use crate::trials::{Case, cases};
use futensor::serve::{Answer, BatchOptions, Batcher, ManualTimer, rows};
use futensor::sim::{SimOptions, Simulation};
use futensor::{Device, Result, Tensor};
use futures::executor::block_on;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

pub fn all() -> Vec<Case> {
    cases!["isolate::";
        one_bad_request_fails_alone_in_whichever_way_and_place
        a_function_that_fails_for_everybody_is_not_run_for_each
        several_bad_requests_fail_alone_and_others_pass_whatever_the_seed
        an_answer_that_goes_is_not_run_again
        a_lost_device_is_not_asked_again
        wakers_and_requests_that_panic_hurt_nobody_else
    ]
}

/// What is wrong with a bad request, which is a negative one.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// The function panics.
    Panic,
    /// It comes back with too few values.
    TooFew,
    /// Its values have failed when they come back: rows of several lengths.
    AtOnce,
    /// They fail when they are computed: an index out of range.
    Later,
}

const FAULTS: [Fault; 4] = [Fault::Panic, Fault::TooFew, Fault::AtOnce, Fault::Later];

struct Hand {
    simulation: Simulation,
    timer: ManualTimer,
    batcher: Batcher<i64>,
    /// Sizes of the batches.
    sizes: Arc<Mutex<Vec<usize>>>,
}

/// A batcher whose value of a request is ten times the request.
fn by_hand(fault: Fault, options: BatchOptions) -> Hand {
    let (device, simulation) = Device::simulated(SimOptions::new(1));
    let (timer, sizes) = (ManualTimer::new(), Arc::new(Mutex::new(Vec::new())));
    let notes = sizes.clone();
    let table = device.arange(0.0, 1000.0, 10.0);
    let batcher = Batcher::new(options.timer(timer.clone()), move |requests: &[i64]| {
        notes.lock().unwrap().push(requests.len());
        let bad = requests.iter().any(|&r| r < 0);
        match fault {
            Fault::Panic => assert!(!bad, "on purpose"),
            Fault::AtOnce if bad => {
                let length = |(i, &r): (usize, &i64)| device.zeros([if r < 0 { i + 2 } else { 1 }]);
                let lengths: Vec<_> = requests.iter().enumerate().map(length).collect();
                return match &lengths[..] {
                    [_] => rows(&device.zeros([2]).matmul(device.zeros([3]))),
                    _ => rows(&futensor::stack(&lengths, 0)),
                };
            }
            _ => {}
        }
        let index: Vec<i64> = requests.iter().map(|&r| if r < 0 { 999 } else { r }).collect();
        let index =
            if fault == Fault::Later { index } else { index.iter().map(|i| i % 100).collect() };
        let mut values = rows(&table.index_select(0, device.from_vec(index, [requests.len()])));
        values.truncate(requests.len() - usize::from(fault == Fault::TooFew && bad));
        values
    });
    Hand { simulation, timer, batcher, sizes }
}

impl Hand {
    fn settle(&self) {
        while self.simulation.run() + self.timer.advance(Duration::ZERO) > 0 {}
    }

    /// One batch of these; the outcomes, and the sizes of all batches that this took.
    fn batch(&self, requests: &[i64]) -> (Vec<Result<f32>>, Vec<usize>) {
        let answers: Vec<Answer> = requests.iter().map(|&r| self.batcher.submit(r)).collect();
        self.timer.advance(Duration::from_millis(2));
        self.settle();
        let read = |answer| -> Result<f32> {
            let tensor: Tensor = self.drive(answer)?;
            self.simulation.block_on(tensor.item::<f32>()).expect("a read ends")
        };
        let results = answers.into_iter().map(read).collect();
        (results, std::mem::take(&mut *self.sizes.lock().unwrap()))
    }

    /// Polls to the end, and lets what comes of each poll happen.
    fn drive<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = std::pin::pin!(future);
        for _ in 0..1000 {
            if let Poll::Ready(out) = future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
            {
                return out;
            }
            self.settle();
        }
        panic!("it does not end: {:?}", self.batcher.stats());
    }
}

fn check(requests: &[i64], results: &[Result<f32>], about: &str) {
    for (request, result) in requests.iter().zip(results) {
        match result {
            Ok(value) => assert_eq!(*value, *request as f32 * 10.0, "{about}"),
            Err(error) => assert!(*request < 0, "{about}: {request} failed: {error}"),
        }
        assert_eq!(result.is_err(), *request < 0, "{about}: {request}");
    }
}

fn one_bad_request_fails_alone_in_whichever_way_and_place() {
    for fault in FAULTS {
        for n in [2usize, 3, 4, 5, 8, 32] {
            for place in [0, n / 2, n - 1] {
                let hand = by_hand(fault, BatchOptions::default().batch_max(n));
                let mut requests: Vec<i64> = (0..n as i64).collect();
                requests[place] = -1;
                let (results, sizes) = hand.batch(&requests);
                let about = format!("{fault:?}, {place} of {n}: {sizes:?}");
                check(&requests, &results, &about);
                let g = (n as f64).sqrt().ceil() as usize;
                assert!(sizes.len() <= 1 + g + n.div_ceil(g), "{about}");
                assert!(sizes.iter().sum::<usize>() <= 2 * n + n.div_ceil(g), "{about}");
                let stats = hand.batcher.stats();
                assert_eq!(
                    (stats.answered, stats.failed, stats.running),
                    (n as u64 - 1, 1, 0),
                    "{about}"
                );
                assert_eq!(stats.again + 1, stats.batches, "{about}");
                assert_eq!((stats.in_flight, stats.waiting), (0, 0), "{about}");
            }
        }
    }
}

fn a_function_that_fails_for_everybody_is_not_run_for_each() {
    for fault in FAULTS {
        let hand = by_hand(fault, BatchOptions::default().batch_max(36));
        let requests = [-1; 36];
        let (results, sizes) = hand.batch(&requests);
        check(&requests, &results, &format!("{fault:?}"));
        assert_eq!(sizes, [36, 6, 6, 6, 6, 6, 6], "{fault:?}");
    }
    // Nor at all where that is asked for.
    let hand = by_hand(Fault::Panic, BatchOptions::default().batch_max(4).isolate(false));
    let (results, sizes) = hand.batch(&[1, -1, 2, 3]);
    assert!(results.iter().all(Result::is_err));
    assert_eq!(sizes, [4]);
}

fn several_bad_requests_fail_alone_and_others_pass_whatever_the_seed() {
    for seed in 0..300 {
        let mut rng = Rng(seed);
        let fault = FAULTS[rng.below(4)];
        let n = 2 + rng.below(30);
        let hand = by_hand(fault, BatchOptions::default().batch_max(n).in_flight(1 + rng.below(3)));
        let mut requests: Vec<i64> = (0..n as i64).collect();
        for _ in 0..1 + rng.below(n) / 4 {
            requests[rng.below(n)] = -1;
        }
        let (results, sizes) = hand.batch(&requests);
        let about = format!("seed {seed}, {fault:?}: {requests:?} in {sizes:?}");
        let g = (n as f64).sqrt().ceil() as usize;
        assert!(sizes.len() <= 1 + g + n, "{about}");
        // Where each group had a bad one, nobody could tell: all have the error. Else each has its
        // own.
        if requests.chunks(n.div_ceil(g)).all(|group| group.contains(&-1)) {
            assert!(
                requests.iter().zip(&results).all(|(r, result)| *r >= 0 || result.is_err()),
                "{about}"
            );
        } else {
            check(&requests, &results, &about);
        }
    }
}

fn an_answer_that_goes_is_not_run_again() {
    let hand = by_hand(Fault::Later, BatchOptions::default().batch_max(4));
    let mut answers: Vec<Answer> = [1, -1, 2, 3].map(|r| hand.batcher.submit(r)).into();
    hand.simulation.run();
    // The batch has failed. Two are left, each of which is a group.
    answers.truncate(2);
    hand.settle();
    assert!(hand.drive(answers.pop().unwrap()).unwrap_err().is_index());
    assert!(hand.drive(answers.pop().unwrap()).is_ok());
    assert_eq!(*hand.sizes.lock().unwrap(), [4, 1, 1]);
    let stats = hand.batcher.stats();
    assert_eq!((stats.left_running, stats.failed, stats.answered), (2, 1, 1), "{stats:?}");
    assert_eq!((stats.running, stats.in_flight), (0, 0), "{stats:?}");
}

fn a_lost_device_is_not_asked_again() {
    let (device, simulation) = Device::simulated(SimOptions::new(1).device_loss_at(Some(1)));
    let (timer, calls) = (ManualTimer::new(), Arc::new(AtomicUsize::new(0)));
    let counted = calls.clone();
    let options = BatchOptions::default().batch_max(4).timer(timer.clone());
    let batcher = Batcher::new(options, move |requests: &[f32]| {
        counted.fetch_add(1, SeqCst);
        rows(&device.from_slice(requests, [requests.len(), 1]).matmul(device.ones([1, 1])))
    });
    let answers = [1.0, 2.0, 3.0, 4.0].map(|x| batcher.submit(x));
    while simulation.run() + timer.advance(Duration::ZERO) > 0 {}
    for answer in answers {
        assert!(simulation.block_on(answer).expect("it ends").unwrap_err().is_device_lost());
    }
    assert_eq!(calls.load(SeqCst), 1);
}

/// A task's waker that panics.
struct Rude;
impl Wake for Rude {
    fn wake(self: Arc<Self>) {
        panic!("on purpose");
    }
}

/// A request whose drop panics.
struct Explosive(f32, bool);
impl Drop for Explosive {
    fn drop(&mut self) {
        if self.1 && !std::thread::panicking() {
            panic!("on purpose");
        }
    }
}

fn wakers_and_requests_that_panic_hurt_nobody_else() {
    let device = Kind::Cpu.device();
    let options = BatchOptions::default().batch_max(4).delay(Duration::from_millis(1));
    let own = device.clone();
    let batcher = Batcher::new(options, move |requests: &[Explosive]| {
        let numbers: Vec<f32> = requests.iter().map(|r| r.0).collect();
        assert!(numbers.iter().all(|x| *x >= 0.0), "a bad one");
        rows(&own.from_vec(numbers, [requests.len(), 1]))
    });
    // The process's timer thread lives on, or the second round would wait for ever.
    for _ in 0..2 {
        let rude = Waker::from(Arc::new(Rude));
        let mut first = batcher.submit(Explosive(1.0, false));
        let _ = Pin::new(&mut first).poll(&mut Context::from_waker(&rude));
        let second = batcher.submit(Explosive(2.0, false));
        let value = block_on(async { second.await.unwrap().item::<f32>().await.unwrap() });
        assert_eq!(value, 2.0);
        let value = block_on(async { first.await.unwrap().item::<f32>().await.unwrap() });
        assert_eq!(value, 1.0);
        let bad = batcher.submit(Explosive(-1.0, true));
        assert!(block_on(bad).unwrap_err().message().ends_with("a bad one"));
    }
    assert_eq!((batcher.stats().failed, batcher.stats().answered), (2, 4));
}
