//! A few seconds of everything at once: many tasks, timeouts, selects, cancellations, errors,
//! panics, backpressure. It ends with nothing queued, nothing in flight, no byte and no node left.
//!
//! `FUTENSOR_SOAK_SECONDS=60 cargo test -p futensor-tests --test soak` runs it for longer;
//! `FUTENSOR_SEED` replays a seed.

mod support;
#[path = "support/trials.rs"]
mod trials;

use futensor::custom::{Refusal, custom_fn};
use futensor::{CpuOptions, Device, TensorFuture};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};
use support::{Counter, Rng, same_meta, until};
use trials::cases;

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().map_or(otherwise, |text| text.parse().expect("a number"))
}

/// One request: a small graph, and something that happens to it.
async fn request(device: &Device, counter: &Counter, rng: &mut Rng) {
    let size = [2, 16, 700, 3000][rng.below(4)];
    let start = rng.below(10) as f32;
    let x = counter.op(&device.full([size], start));
    let mut y = &x + 1.0;
    let mut want = start + 1.0;
    for _ in 0..rng.below(6) {
        match rng.below(3) {
            0 => (y, want) = (&y + &x, want + start),
            1 => (y, want) = (counter.op(&y), want),
            _ => (y, want) = ((y * 2.0).minimum(1000.0), (want * 2.0).min(1000.0)),
        }
    }
    let short = Duration::from_micros(rng.below(300) as u64);
    match rng.below(9) {
        0 => drop(y),
        1 => {
            // A client that goes away.
            let _ = tokio::time::timeout(short, y.wait_to_read()).await;
        }
        2 => {
            tokio::select! {
                read = y.to_vec::<f32>() => assert!(read.unwrap().iter().all(|&v| v == want)),
                () = tokio::time::sleep(short) => {}
            }
            assert_eq!(y.i(0).item::<f32>().await.unwrap(), want);
        }
        3 => {
            let refused = custom_fn("refuse", &[&y], same_meta, |_| Err(Refusal::kernel("no")));
            let error = (&refused + 1.0).sum_all().item::<f32>().await.unwrap_err();
            assert!(error.is_kernel() && error.op() == "refuse", "{error}");
        }
        4 => {
            let wrong = y.matmul(device.ones([5, 7])) + &x;
            assert!(wrong.await.is_err());
        }
        5 => y.detach(),
        6 => {
            let other = y.clone();
            let task = tokio::spawn(async move { other.await.map(drop) });
            if rng.below(2) == 0 {
                task.abort();
            }
            if let Ok(result) = task.await {
                result.unwrap();
            }
        }
        7 => {
            let (handed, keep) = (vec![1.0f32; size], rng.below(2) == 0);
            let brought = device.from_future([size], async move {
                tokio::task::yield_now().await;
                if keep { Ok(handed) } else { Err("gone") }
            });
            let sum = (brought + &y).to_vec::<f32>().await;
            match sum {
                Ok(values) => assert!(keep && values.iter().all(|&v| v == want + 1.0)),
                Err(error) => assert!(!keep && error.is_source(), "{error}"),
            }
        }
        _ => assert!(y.to_vec::<f32>().await.unwrap().iter().all(|&v| v == want)),
    }
}

fn nothing_is_left_after_a_soak() {
    let seed =
        number("FUTENSOR_SEED", std::time::UNIX_EPOCH.elapsed().map_or(0, |t| t.as_nanos() as u64));
    let time = Duration::from_secs(number("FUTENSOR_SOAK_SECONDS", 3)).min(Duration::from_secs(50));
    println!("FUTENSOR_SEED={seed}");
    let device = Device::cpu_with(CpuOptions::default().threads(2).queue_ops(500).permits(8));
    let (counter, requests) = (Counter::new(), Arc::new(AtomicUsize::new(0)));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .unwrap();
    let until_then = Instant::now() + time;
    runtime.block_on(async {
        let tasks: Vec<_> = (0..32)
            .map(|task| {
                let (device, counter, requests) =
                    (device.clone(), counter.clone(), requests.clone());
                let mut rng = Rng(seed.wrapping_add(task));
                tokio::spawn(async move {
                    while Instant::now() < until_then {
                        match rng.below(4) {
                            0 => device.ready().await,
                            1 => drop(device.admit().await),
                            2 => {
                                // Given up before it is granted, as like as not.
                                let wait = Duration::from_micros(20);
                                let _ = tokio::time::timeout(wait, device.admit()).await;
                            }
                            _ => {}
                        }
                        request(&device, &counter, &mut rng).await;
                        requests.fetch_add(1, SeqCst);
                        if rng.below(64) == 0 {
                            device.waitall().await.unwrap();
                        }
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        device.waitall().await.unwrap();
    });
    drop(runtime);
    assert!(requests.load(SeqCst) > 100, "{} requests", requests.load(SeqCst));
    until(|| device.stats().queued == 0);
    until(|| device.stats().in_flight == 0);
    until(|| device.stats().bytes_live == 0);
    until(|| counter.alive() == 0);
    // And it still works.
    let last: TensorFuture = device.ones([3]) + 1.0;
    assert_eq!(futures::executor::block_on(last.to_vec::<f32>()).unwrap(), [2.0; 3]);
    let stats = device.stats();
    println!("{} requests, {stats:?}", requests.load(SeqCst));
    assert_eq!(stats.started + stats.fused + stats.skipped, stats.enqueued, "{stats:?}");
}

fn two_thousand_queued_updates_of_4_mib_take_at_most_eight_buffers() {
    let device = Device::cpu_with(CpuOptions::default().threads(2));
    let mut x = device.zeros([1 << 20]);
    for i in 0..2000 {
        x = &x + (i % 3) as f32;
    }
    let last = futures::executor::block_on(x.i(7).item::<f32>()).unwrap();
    assert_eq!(last, (0..2000).map(|i| (i % 3) as f32).sum::<f32>());
    let stats = device.stats();
    assert!(stats.bytes_peak <= 8 * (4 << 20), "{stats:?}");
    assert_eq!(stats.skipped, 0, "each one was wanted by the next");
}

fn main() -> ExitCode {
    let cases = cases!["";
        nothing_is_left_after_a_soak
        two_thousand_queued_updates_of_4_mib_take_at_most_eight_buffers
    ];
    trials::run(cases, false)
}
