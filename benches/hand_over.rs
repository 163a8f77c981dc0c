//! Question: from how much work on does a further thread pay?
//!
//! Method: an op of ours has work of so many us, which does nothing but pass time. Inside one step
//! of the device it is done by one thread, or cut into as many parts as the device has threads,
//! which its own pool takes: right after another such call, so that the pool is awake, or after a
//! pause in which it has gone to sleep (the pause is not counted). The constants of the kernels
//! (`PART_NS`, `LEAST`...) follow from where the rows cross; each kernel's own figures stand at its
//! constant.
//!
//! `cargo bench -p futensor-benches --bench hand_over`

use futensor::custom::{CpuRun, Meta, custom_fn};
use futensor::{CpuOptions, Device, TensorFuture};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

const WORKS_US: [u64; 6] = [5, 10, 20, 40, 80, 160];
/// Longer than the pool stays awake.
const PAUSE: Duration = Duration::from_micros(400);

#[derive(Clone, Copy, PartialEq)]
enum By {
    One,
    AllAwake,
    AllAsleep,
}

fn pass(time: Duration) {
    let from = Instant::now();
    while from.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// The time of so many rounds of the work.
fn rounds(run: &CpuRun<'_>, work: Duration, by: By, count: u64) -> Duration {
    let pool = run.parallel();
    let parts = if by == By::One { 1 } else { pool.threads() };
    let each = work / parts as u32;
    let round = || pool.run(parts, &|_| pass(each));
    round();
    let mut time = Duration::ZERO;
    for _ in 0..count {
        if by == By::AllAsleep {
            std::thread::sleep(PAUSE);
        }
        let from = Instant::now();
        round();
        time += from.elapsed();
    }
    time
}

fn main() {
    ledger::run("hand_over", |group, ledger| {
        let runtime = ledger::runtime();
        let device = Device::cpu_with(CpuOptions::default());
        let x: TensorFuture =
            runtime.block_on(device.ones([1]).into_future()).expect("ones").into();
        let cases = [("one", By::One), ("all awake", By::AllAwake), ("all asleep", By::AllAsleep)];
        for us in WORKS_US {
            let work = Duration::from_micros(us);
            for (name, by) in cases {
                ledger.bench(group, &format!("{us} us by {name}"), 1, |count| {
                    let (tell, told) = channel();
                    let infer = |inputs: &[&Meta]| Ok(Meta::clone(inputs[0]));
                    let y = custom_fn("rounds", &[&x], infer, move |run| {
                        let _ = tell.send(rounds(run, work, by, count));
                        run.output().fill_from([1.0f32]);
                        Ok(())
                    });
                    runtime.block_on(y.into_future()).expect("a value");
                    told.recv().expect("the op has run")
                });
            }
        }
        for us in WORKS_US {
            ledger.ratio(&format!("{us} us by all awake"), &format!("{us} us by one"));
            ledger.ratio(&format!("{us} us by all asleep"), &format!("{us} us by one"));
        }
    });
}
