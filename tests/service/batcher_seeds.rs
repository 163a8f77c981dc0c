//! The batcher under thousands of seeds: the order of the device's events, its faults, the clock,
//! the requests and those that go away all come from the seed, and a failure replays.

use crate::support::Rng;
use crate::trials::{Case, cases};
use futensor::Device;
use futensor::serve::{Answer, BatchOptions, Batcher, ManualTimer, rows};
use futensor::sim::SimOptions;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

pub fn all() -> Vec<Case> {
    cases!["batcher_seeds::";
        nothing_is_lost_and_nothing_hangs_whatever_happens
    ]
}

fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("FUTENSOR_SEED").ok().and_then(|s| s.parse().ok()) {
        Some(seed) => vec![seed],
        None => (0..count).collect(),
    }
}

/// One life of a batcher; how many requests were answered, and how many failed.
fn life(seed: u64) -> (usize, usize) {
    let mut rng = Rng(seed);
    let mut options = SimOptions::new(seed).streams(1 + rng.below(3));
    let fault = rng.below(6);
    let when = 1 + rng.below(40);
    options = match fault {
        0 => options.kernel_failure_at(Some(when as u64)),
        1 => options.out_of_memory_at(when),
        2 => options.device_loss_at(Some(when as u64)),
        3 => options.stuck_at(Some(when as u64)).watchdog(Some(Duration::from_millis(5))),
        _ => options,
    };
    let (device, simulation) = Device::simulated(options);
    let timer = ManualTimer::new();
    let batching = BatchOptions::default()
        .batch_max(1 + rng.below(5))
        .eager(rng.below(2) == 0)
        .in_flight(1 + rng.below(3))
        .queue(4 + rng.below(12))
        .delay(Duration::from_micros(rng.below(50) as u64))
        .timer(timer.clone());
    let own = device.clone();
    let groups = 1 + rng.below(2) as u64;
    let batcher = Batcher::grouped(
        batching,
        move |r: &u64| r % groups,
        move |requests: &[u64]| {
            assert!(requests.iter().all(|r| r % groups == requests[0] % groups), "one key a batch");
            let n = requests.len();
            let data = requests.iter().flat_map(|&r| [r as f32, 1.0]).collect();
            let x = own.from_vec::<f32>(data, [n, 2]);
            rows(&((&x * 3.0).matmul(own.eye(2)) + 1.0))
        },
    );

    let mut cx = Context::from_waker(Waker::noop());
    let mut answers: Vec<(u64, Answer)> = Vec::new();
    let mut values = Vec::new();
    let (mut answered, mut failed, mut left, mut refused) = (0, 0, 0, 0);
    let total = 30 + rng.below(30) as u64;
    let mut sent = 0;
    // A bound on the rounds, so that what hangs is seen.
    for round in 0.. {
        assert!(round < 20_000, "something waits for ever: {:?}", batcher.stats());
        match rng.below(8) {
            0 | 1 if sent < total => {
                match batcher.try_submit(sent) {
                    Ok(answer) => answers.push((sent, answer)),
                    Err(request) => {
                        assert_eq!(request, sent);
                        refused += 1;
                    }
                }
                sent += 1;
            }
            2 if !answers.is_empty() && rng.below(3) == 0 => {
                let k = rng.below(answers.len());
                drop(answers.swap_remove(k));
                left += 1;
            }
            3 | 4 if !answers.is_empty() => {
                let k = rng.below(answers.len());
                if let Poll::Ready(result) = Pin::new(&mut answers[k].1).poll(&mut cx) {
                    let (request, _) = answers.swap_remove(k);
                    match result {
                        Ok(tensor) => {
                            answered += 1;
                            values.push((request, tensor));
                        }
                        Err(error) => {
                            assert!(
                                error.is_kernel()
                                    || error.is_out_of_memory()
                                    || error.is_device_lost(),
                                "{error}"
                            );
                            failed += 1;
                        }
                    }
                }
            }
            5 => {
                timer.advance(Duration::from_micros(rng.below(40) as u64));
            }
            _ => {
                simulation.step();
            }
        }
        if sent == total && answers.is_empty() {
            break;
        }
    }
    // Each value is that of its own request. On a lost device nothing is read any more.
    for (request, tensor) in values {
        let read = simulation.block_on(tensor.to_vec::<f32>()).expect("a read ends");
        if let Ok(read) = read {
            assert_eq!(read, [request as f32 * 3.0 + 1.0, 4.0]);
        }
    }
    while simulation.run() + timer.advance(Duration::from_millis(1)) > 0 {}
    let stats = batcher.stats();
    assert_eq!((stats.waiting, stats.running, stats.in_flight), (0, 0, 0), "{stats:?}");
    assert_eq!(stats.answered as usize, answered, "{stats:?}");
    assert_eq!(stats.failed as usize, failed, "{stats:?}");
    assert_eq!((stats.left_waiting + stats.left_running) as usize, left, "{stats:?}");
    assert_eq!(
        (stats.refused as usize, stats.requests as usize),
        (refused, total as usize - refused)
    );
    // A kernel's failure or a lack of memory is of one batch; only a loss takes more.
    if fault < 2 {
        assert!(failed <= 5, "{failed} requests failed of one fault");
    } else if fault > 3 {
        assert_eq!(failed, 0);
    }
    let device = device.stats();
    if fault != 2 && fault != 3 {
        assert_eq!((device.bytes_live, device.queued, device.in_flight), (0, 0, 0), "{device:?}");
    }
    (answered, failed)
}

fn nothing_is_lost_and_nothing_hangs_whatever_happens() {
    let (mut answered, mut failed) = (0, 0);
    for seed in seeds(5000) {
        let outcome = std::panic::catch_unwind(|| life(seed));
        let (a, f) = outcome.unwrap_or_else(|panic| {
            eprintln!("failed with FUTENSOR_SEED={seed}");
            std::panic::resume_unwind(panic)
        });
        answered += a;
        failed += f;
    }
    println!("{answered} requests answered, {failed} failed");
    // Both kinds of end were seen, or the test proves little.
    assert!(std::env::var("FUTENSOR_SEED").is_ok() || answered > 20_000 && failed > 500);
}
