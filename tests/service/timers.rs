//! A timer is a user's: it may call back in, and it may panic. Neither holds a batcher up, nor ends
//! anything else.

use crate::batcher::doubling;
use crate::trials::{Case, cases};
use futensor::serve::{BatchOptions, Batcher, ManualTimer, Timer};
use futensor::{CpuOptions, Device};
use futures::executor::block_on;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::time::Duration;

pub fn all() -> Vec<Case> {
    cases!["timers::";
        a_timer_may_ask_its_batcher_for_its_stats
        a_timer_that_panics_is_replaced_and_nobody_is_left_waiting
        times_go_on_after_a_timer_that_panicked
        without_a_thread_for_the_time_requests_are_refused
    ]
}

const MS: Duration = Duration::from_millis(1);

/// A timer that does something of its own before it answers.
struct Odd {
    inner: ManualTimer,
    before: Box<dyn Fn(&str) + Send + Sync>,
}

impl Timer for Odd {
    fn now(&self) -> Duration {
        (self.before)("now");
        self.inner.now()
    }
    fn wake_at(&self, at: Duration, waker: Waker) {
        (self.before)("wake_at");
        self.inner.wake_at(at, waker);
    }
}

fn a_timer_may_ask_its_batcher_for_its_stats() {
    let device = Device::cpu_with(CpuOptions::default().threads(1));
    let batcher: Arc<OnceLock<Batcher<f32>>> = Arc::default();
    let (own, asked) = (batcher.clone(), Arc::new(AtomicUsize::new(0)));
    let count = asked.clone();
    let before = move |_: &str| {
        let Some(batcher) = own.get() else { return };
        let stats = batcher.stats();
        let ended = stats.answered + stats.failed + stats.left_waiting + stats.left_running;
        assert_eq!(stats.requests, stats.waiting as u64 + stats.running as u64 + ended);
        count.fetch_add(1, SeqCst);
    };
    let inner = ManualTimer::new();
    let timer = Odd { inner: inner.clone(), before: Box::new(before) };
    let options = BatchOptions::default().batch_max(2).queue(4).timer(timer);
    let _ = batcher.set(Batcher::new(options, doubling(&device, &Default::default())));
    let batcher = batcher.get().unwrap();
    let [a, b, c, gone] = [1.0, 2.0, 3.0, 4.0].map(|x| batcher.submit(x));
    drop(gone);
    inner.advance(5 * MS);
    for (answer, want) in [(a, 2.0), (b, 4.0), (c, 6.0)] {
        let got = block_on(answer).unwrap();
        assert_eq!(block_on(got.item::<f32>()).unwrap(), want);
    }
    batcher.close();
    assert!(block_on(batcher.submit(1.0)).unwrap_err().is_refused());
    assert!(asked.load(SeqCst) > 8, "{asked:?}");
}

/// The n-th question panics, whatever it is and on whatever thread: the process's timer takes over.
fn a_timer_that_panics_is_replaced_and_nobody_is_left_waiting() {
    let device = Device::cpu_with(CpuOptions::default().threads(1));
    let mut panics = 0;
    for n in 0..24 {
        let (left, panicked) = (AtomicUsize::new(n), Arc::new(AtomicBool::new(false)));
        let told = panicked.clone();
        let before = move |what: &str| {
            if left.fetch_sub(1, SeqCst) == 0 || told.load(SeqCst) {
                told.store(true, SeqCst);
                panic!("no {what}");
            }
        };
        let inner = ManualTimer::new();
        inner.advance(7 * MS);
        let timer = Odd { inner: inner.clone(), before: Box::new(before) };
        let options = BatchOptions::default().batch_max(2).delay(MS).in_flight(8).timer(timer);
        let batcher = Batcher::new(options, doubling(&device, &Default::default()));
        // Two that go at once, one that waits for its alarm, and one that leaves.
        let answers = [1.0, 2.0].map(|x| batcher.submit(x));
        drop(batcher.submit(4.0));
        let lone = batcher.submit(3.0);
        for (answer, want) in answers.into_iter().zip([2.0, 4.0]) {
            assert_eq!(block_on(block_on(answer).unwrap().item::<f32>()).unwrap(), want);
        }
        // The alarms of one that has panicked may be lost: nobody moves it then.
        if !panicked.load(SeqCst) {
            inner.advance(MS);
        }
        assert_eq!(block_on(block_on(lone).unwrap().item::<f32>()).unwrap(), 6.0, "question {n}");
        let last = batcher.submit(5.0);
        batcher.close();
        assert_eq!(block_on(block_on(last).unwrap().item::<f32>()).unwrap(), 10.0, "question {n}");
        assert_eq!(batcher.stats().answered, 4);
        panics += panicked.load(SeqCst) as usize;
    }
    assert!(panics > 8, "{panics} questions were asked");
}

/// Where it has panicked time goes on from what it told last.
fn times_go_on_after_a_timer_that_panicked() {
    let device = Device::cpu_with(CpuOptions::default().threads(1));
    let broken = Arc::new(AtomicBool::new(false));
    let (own, inner) = (broken.clone(), ManualTimer::new());
    let before = move |what: &str| assert!(!own.load(SeqCst), "no {what}");
    inner.advance(Duration::from_secs(1000));
    let options =
        BatchOptions::default().batch_max(1).timer(Odd { inner, before: Box::new(before) });
    let batcher = Batcher::new(options, doubling(&device, &Default::default()));
    let first = batcher.submit(1.0);
    broken.store(true, SeqCst);
    block_on(first).unwrap();
    block_on(batcher.submit(2.0)).unwrap();
    // Not a thousand seconds, which a clock that began anew would give.
    assert!(batcher.stats().answer_worst < Duration::from_secs(50), "{:?}", batcher.stats());
}

/// In a process of its own, whose memory for threads is used up.
#[allow(unsafe_code)]
fn without_a_thread_for_the_time_requests_are_refused() {
    const CHILD: &str = "FUTENSOR_TEST_WITHOUT_THREADS";
    if std::env::var_os(CHILD).is_none() {
        let name = "timers::without_a_thread_for_the_time_requests_are_refused";
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let done = child
            .args(["--exact", name, "--nocapture"])
            .env(CHILD, "1")
            .env_remove(crate::trials::NAMED)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&done.stdout) + String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    // The device's thread runs the op, so it has started before the memory is limited.
    let device = Device::cpu_with(CpuOptions::default().threads(1).inline(false));
    block_on(device.ones([4]) + 1.0).unwrap();
    // A stack takes 2 MiB.
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let used = pages.split(' ').next().unwrap().parse::<u64>().unwrap() * 4096;
    let limited = |most: u64| {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // Safety: of this process, with a struct of the right type.
        unsafe {
            assert_eq!(libc::getrlimit(libc::RLIMIT_AS, &mut limit), 0);
            limit.rlim_cur = most.min(limit.rlim_max);
            assert_eq!(libc::setrlimit(libc::RLIMIT_AS, &limit), 0);
        }
    };
    limited(used + (1 << 20));
    let batcher = Batcher::new(BatchOptions::default(), doubling(&device, &Default::default()));
    let error = block_on(batcher.submit(1.0)).unwrap_err();
    assert!(
        error.is_refused() && error.message().contains("cannot start the timer thread"),
        "{error}"
    );
    assert_eq!(batcher.try_submit(2.0).unwrap_err(), 2.0);
    batcher.close();
    limited(u64::MAX);
    // The next one has it.
    let batcher =
        Batcher::new(BatchOptions::default().delay(MS), doubling(&device, &Default::default()));
    assert_eq!(block_on(block_on(batcher.submit(3.0)).unwrap().item::<f32>()).unwrap(), 6.0);
}
