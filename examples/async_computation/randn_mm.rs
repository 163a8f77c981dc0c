//! Part 1: ten times `randn(1000, 1000)` and `matmul`.

use crate::report::Report;
use crate::setup::{Outcome, Setup, check, check_ran, cores, timed, timed_await};
use futensor::{CpuOptions, Device, Generator, TensorFuture};
use serde_json::json;
use std::time::Duration;

const TIMES: usize = 10;
const SEED: u64 = 1;

fn products(device: &Device, n: usize) -> Vec<TensorFuture> {
    let generator = Generator::new(SEED);
    (0..TIMES)
        .map(|_| {
            let a = generator.randn(device, [n, n]);
            a.matmul(&a)
        })
        .collect()
}

pub async fn run(setup: &Setup, report: &mut Report) -> Outcome<()> {
    let n = setup.count(1000, 256);
    let device = setup.own(CpuOptions::default());
    // Memory and threads warm up.
    let warm = products(&device, n);
    device.waitall().await?;
    drop(warm);

    let before = device.stats();
    let (held, issue) = timed(|| products(&device, n));
    let (done, rest) = timed_await(device.waitall()).await;
    done?;
    let complete = issue + rest;
    check_ran(&device, before, 2 * TIMES)?;

    let each = async {
        let generator = Generator::new(SEED);
        let mut held = Vec::new();
        for _ in 0..TIMES {
            let a = generator.randn(&device, [n, n]);
            held.push(a.matmul(&a).await?);
        }
        Ok::<_, futensor::Error>(held)
    };
    let (awaited, awaited_each) = timed_await(each).await;
    let awaited = awaited?;

    let (synchronous, last) = synchronous(&device, n).await?;

    let (first, second) =
        (held[TIMES - 1].to_vec::<f32>().await?, awaited[TIMES - 1].to_vec::<f32>().await?);
    check(first == second, "awaiting does not change a value")?;
    let off = first.iter().zip(&last).map(|(a, b)| (a - b).abs()).fold(0.0f32, f32::max);
    check(off < 1e-2, format!("the direct product is the same, off by {off}"))?;

    report.part("ten times randn and matmul");
    report.row("size", format!("[{n}, {n}]"));
    report.time("until the calls return", issue);
    report.time("until waitall is done", complete);
    report.time("awaited one by one", awaited_each);
    report.time("synchronously", synchronous);
    report.note(
        "Synchronously: the same generator run on the device with its caller blocked, and the same \
            GEMM\n\
         (crate gemm) called directly, a share of the rows on one thread a core.",
    );
    report.json(
        "randn_mm",
        json!({
            "issue_s": issue.as_secs_f64(),
            "complete_s": complete.as_secs_f64(),
            "awaited_each_s": awaited_each.as_secs_f64(),
            "synchronous_s": synchronous.as_secs_f64(),
        }),
    );
    Ok(())
}

/// The generator and the GEMM without a queue, on a thread that may block: the time of both, and
/// the last product. Bringing the numbers to the host is not counted.
async fn synchronous(device: &Device, n: usize) -> Outcome<(Duration, Vec<f32>)> {
    let device = device.clone();
    let work = move || {
        let generator = Generator::new(SEED);
        let mut time = Duration::ZERO;
        let mut c = vec![0.0f32; n * n];
        for _ in 0..TIMES {
            let draw = || futures::executor::block_on(generator.randn(&device, [n, n]));
            let (a, draw) = timed(draw);
            let a = futures::executor::block_on(a?.to_vec::<f32>())?;
            let ((), product) = timed(|| gemm(&a, &mut c, n));
            time += draw + product;
        }
        Ok::<_, futensor::Error>((time, c))
    };
    Ok(tokio::task::spawn_blocking(work).await??)
}

/// `c = a a`, all row-major; each thread has some rows.
fn gemm(a: &[f32], c: &mut [f32], n: usize) {
    let rows = n.div_ceil(cores());
    std::thread::scope(|scope| {
        for (part, c) in c.chunks_mut(rows * n).enumerate() {
            scope.spawn(move || {
                let left = &a[part * rows * n..];
                let m = c.len() / n;
                assert!(left.len() >= m * n && a.len() == n * n);
                // SAFETY: row-major, `left` is at least [m, n], `a` is [n, n] and `c` is [m, n] and
                // this thread's alone.
                #[allow(unsafe_code)]
                unsafe {
                    // Row by row is column by column of the product the other way round.
                    let (from, left, step) = (a.as_ptr(), left.as_ptr(), n as isize);
                    let (no, alone) = (false, gemm_common::Parallelism::None);
                    gemm_f32::gemm::f32::get_gemm_fn()(
                        n,
                        m,
                        n,
                        c.as_mut_ptr(),
                        step,
                        1,
                        no,
                        from,
                        step,
                        1,
                        left,
                        step,
                        1,
                        0.0,
                        1.0,
                        no,
                        no,
                        no,
                        alone,
                    );
                }
            });
        }
    });
}
