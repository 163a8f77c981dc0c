//! Question: how long from a call until the device begins, and from the op's end until the task
//! that awaits it goes on?
//!
//! Method: an op of ours notes when it begins and when it ends; it says nothing of its cost, so no
//! poll runs it. Begin is timed from the call, on a device that is asleep (nothing for 2 ms, past
//! its linger of 100 us), within the linger (right after an op), and behind an op that keeps the
//! only thread busy for 200 us (from that op's end). Back is timed from the op's end to the task,
//! in the same three cases, and the op lasts 200 us in the third, so that the task has surely gone
//! to sleep. Peer: the same two ways between this thread and a plain parked one.
//!
//! `cargo bench -p futensor-benches --bench wake_latency`

use futensor::custom::{Meta, custom_fn};
use futensor::{CpuOptions, Device, TensorFuture};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const BUSY: Duration = Duration::from_micros(200);

#[derive(Clone, Copy, PartialEq)]
enum State {
    Idle,
    Linger,
    Busy,
}

/// When an op began and ended.
type Notes = Arc<Mutex<Option<(Instant, Instant)>>>;

fn noted(x: &TensorFuture, lasts: Duration) -> (TensorFuture, Notes) {
    let notes = Notes::default();
    let kept = notes.clone();
    let y = custom_fn(
        "noted",
        &[x],
        |inputs| Ok(Meta::clone(inputs[0])),
        move |run| {
            let began = Instant::now();
            while began.elapsed() < lasts {
                std::hint::spin_loop();
            }
            run.output().fill_from([1.0f32; 2]);
            *kept.lock().expect("nobody panics") = Some((began, Instant::now()));
            Ok(())
        },
    );
    (y, notes)
}

fn read(notes: &Notes) -> (Instant, Instant) {
    notes.lock().expect("nobody panics").expect("the op has run")
}

/// Time to begin, and time back.
async fn once(device: &Device, x: &TensorFuture, from: State) -> (Duration, Duration) {
    match from {
        State::Idle => std::thread::sleep(Duration::from_millis(2)),
        State::Linger => drop(noted(x, Duration::ZERO).0.await.expect("a value")),
        State::Busy => device.waitall().await.expect("no errors"),
    }
    if from == State::Busy {
        let (first, first_notes) = noted(x, BUSY);
        let (second, second_notes) = noted(x, BUSY);
        let values = (first.await.expect("a value"), second.await.expect("a value"));
        let now = Instant::now();
        drop(values);
        let ((first_began, first_ended), (began, ended)) =
            (read(&first_notes), read(&second_notes));
        // One thread: whichever came first, the other began when it had ended.
        let start = if began > first_ended { began - first_ended } else { first_began - ended };
        return (start, now - ended.max(first_ended));
    }
    let called = Instant::now();
    let (y, notes) = noted(x, Duration::ZERO);
    let value = y.await.expect("a value");
    let now = Instant::now();
    drop(value);
    let (began, ended) = read(&notes);
    (began - called, now - ended)
}

/// The same with a plain thread that is parked.
fn parked(iterations: u64) -> (Duration, Duration) {
    let (to, calls) = std::sync::mpsc::channel::<std::thread::Thread>();
    let notes: Notes = Notes::default();
    let kept = notes.clone();
    let thread = std::thread::spawn(move || {
        for caller in calls {
            let now = Instant::now();
            *kept.lock().expect("nobody panics") = Some((now, Instant::now()));
            caller.unpark();
        }
    });
    let (mut begin, mut back) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..iterations {
        std::thread::sleep(Duration::from_millis(2));
        let called = Instant::now();
        to.send(std::thread::current()).expect("the thread is there");
        let (began, ended) = loop {
            std::thread::park();
            if let Some(notes) = notes.lock().expect("nobody panics").take() {
                break notes;
            }
        };
        back += ended.elapsed();
        begin += began - called;
    }
    drop(to);
    thread.join().expect("nobody panics");
    (begin, back)
}

fn main() {
    ledger::run("wake_latency", |group, ledger| {
        let runtime = ledger::runtime();
        let device = Device::cpu_with(CpuOptions::default().threads(1).inline(false));
        let x: TensorFuture =
            runtime.block_on(async { device.ones([1, 2]).await }).expect("ones").into();
        let cases = [("idle", State::Idle), ("linger", State::Linger), ("busy", State::Busy)];
        for (name, from) in cases {
            for (way, begins) in [("begin", true), ("back", false)] {
                ledger.bench(group, &format!("{way} from {name}"), 1, |iterations| {
                    runtime.block_on(async {
                        let mut time = Duration::ZERO;
                        for _ in 0..iterations {
                            let (begin, back) = once(&device, &x, from).await;
                            time += if begins { begin } else { back };
                        }
                        time
                    })
                });
            }
        }
        ledger.bench(group, "begin of a parked thread", 1, |n| parked(n).0);
        ledger.bench(group, "back from a parked thread", 1, |n| parked(n).1);
        for (name, _) in cases {
            ledger.ratio(&format!("begin from {name}"), "begin of a parked thread");
            ledger.ratio(&format!("back from {name}"), "back from a parked thread");
        }
    });
}
