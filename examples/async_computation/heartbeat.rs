//! Part 9: the executor's health. A task that wants to run every millisecond, on a current_thread
//! runtime, beside tasks on the same thread that do what the other parts do, all at once; and the
//! same task alone on its thread, beside as many plain busy threads as the device has.

use crate::report::Report;
use crate::setup::{Outcome, Setup, check, cores};
use futensor::{Device, Error, Result, TensorFuture, cat};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const BEAT: Duration = Duration::from_millis(1);

pub async fn run(setup: &Setup, report: &mut Report) -> Outcome<()> {
    let length = Duration::from_millis(setup.count(5000, 1200) as u64);
    let size = setup.count(512, 256);
    let device = setup.device.clone();
    let before = device.stats();
    let until = Instant::now() + length;
    let (mut late, loads) = tokio::join!(beats(length), all_at_once(device.clone(), size, until));
    loads?;
    device.waitall().await?;
    let after = device.stats();
    let ops = (after.started + after.fused) - (before.started + before.fused);
    check(ops > 1000, format!("there was something to do: {ops} ops"))?;

    let stop = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = (0..cores())
        .map(|_| {
            let stop = stop.clone();
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        })
        .collect();
    let mut busy = beats(length).await;
    stop.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().map_err(|_| "a busy thread panicked")?;
    }

    let (p999, worst) = (quantile(&mut late, 0.999), quantile(&mut late, 1.0));
    let busy_p999 = quantile(&mut busy, 0.999);
    report.part("lateness of a 1 ms heartbeat on a current_thread runtime");
    report.row(
        "beats",
        format!("{}; {ops} ops ran meanwhile, awaited by tasks on the same thread", late.len()),
    );
    report.time("median, p50", quantile(&mut late, 0.5));
    report.time("p99.9", p999);
    report.time("worst", worst);
    report.time(format!("p99.9 beside {} plain busy threads", cores()), busy_p999);
    report.note("tokio's timer rounds up to a millisecond: about half of one is its own.");
    report.json(
        "heartbeat",
        json!({
            "p999_s": p999.as_secs_f64(),
            "worst_s": worst.as_secs_f64(),
            "busy_threads_p999_s": busy_p999.as_secs_f64(),
        }),
    );
    Ok(())
}

fn quantile(late: &mut [Duration], q: f64) -> Duration {
    late.sort();
    late[((late.len() - 1) as f64 * q).ceil() as usize]
}

/// Lateness of each beat against its schedule. A beat that comes while others are due is late as
/// well.
async fn beats(length: Duration) -> Vec<Duration> {
    let count = (length.as_micros() / BEAT.as_micros()) as usize;
    let mut late = Vec::with_capacity(count);
    let mut interval = tokio::time::interval(BEAT);
    for _ in 0..count {
        let due = interval.tick().await;
        late.push(tokio::time::Instant::now() - due);
    }
    late
}

async fn all_at_once(device: Device, size: usize, until: Instant) -> Result<()> {
    let going = || Instant::now() < until;
    let x = TensorFuture::from(device.ones([1, 2]).await?);
    let matrix = TensorFuture::from((device.randn([size, size]) * 0.01).await?);
    let small = TensorFuture::from(device.ones([64, 64]).await?);

    let increments = async {
        let mut i = 0.0f32;
        while going() {
            i += 1.0;
            (&x + i).await?;
        }
        Ok::<_, Error>(())
    };
    let products = async {
        while going() {
            let a = device.randn([size, size]);
            a.matmul(&matrix).sum_all().item::<f32>().await?;
        }
        Ok::<_, Error>(())
    };
    let reads = async {
        while going() {
            let rows: Vec<TensorFuture> = (0..16).map(|i| (&small + i as f32).sin()).collect();
            cat(&rows, 0).to_vec::<f32>().await?;
        }
        Ok::<_, Error>(())
    };
    let forgotten = async {
        while going() {
            device.ready().await;
            for i in 0..32 {
                (&small * 0.5 + i as f32).relu().detach();
            }
            tokio::task::yield_now().await;
        }
        Ok::<_, Error>(())
    };
    let chains = async {
        while going() {
            let (mut a, mut b) = (small.clone(), small.clone());
            for _ in 0..16 {
                (a, b) = (a.matmul(&small) * 0.01, b.matmul(&small) * 0.01);
            }
            let _ = futures::try_join!(a, b)?;
        }
        Ok::<_, Error>(())
    };
    let cancelled = async {
        while going() {
            let queued: Vec<TensorFuture> = (0..16).map(|_| matrix.matmul(&matrix)).collect();
            drop(queued);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok::<_, Error>(())
    };
    let _ = futures::try_join!(increments, products, reads, forgotten, chains, cancelled)?;
    Ok(())
}
