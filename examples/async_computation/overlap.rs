//! Part 7: two independent chains of products overlap, in whatever order they were queued.

use crate::report::Report;
use crate::setup::{Outcome, Setup, check, median};
use futensor::{CpuOptions, Device, Scalar, TensorFuture};
use serde_json::json;
use std::time::{Duration, Instant};

#[derive(Clone, Copy)]
enum Order {
    Alone,
    OneAfterTheOther,
    Interleaved,
}

/// What is multiplied: `n` by `n` matrices, `len` of them in a chain.
struct Chains {
    device: Device,
    n: usize,
    len: usize,
    starts: [TensorFuture; 2],
    /// Multiplying by it moves each column by one; exact in floating point.
    turn: TensorFuture,
}

impl Chains {
    async fn new(setup: &Setup, n: usize, len: usize) -> Outcome<Chains> {
        let device = setup.own(CpuOptions::default());
        let count = (n * n) as i64;
        let start = |from: i64| {
            let numbers =
                device.arange(Scalar::Int(from), Scalar::Int(from + count), Scalar::Int(1));
            numbers.to_dtype(futensor::DType::F32).reshape([n, n])
        };
        let mut turn = vec![0.0f32; n * n];
        for i in 0..n {
            turn[i * n + (i + 1) % n] = 1.0;
        }
        let starts = [start(0), start(1)];
        let turn = device.from_vec(turn, [n, n]);
        device.waitall().await?;
        Ok(Chains { device, n, len, starts, turn })
    }

    async fn time(&self, order: Order) -> Outcome<Duration> {
        let step = |x: &TensorFuture| x.matmul(&self.turn);
        let mut ends = self.starts.clone();
        let from = Instant::now();
        let time = match order {
            Order::Alone => {
                for end in &mut ends {
                    for _ in 0..self.len {
                        *end = step(end);
                    }
                    end.wait_to_read().await?;
                }
                from.elapsed()
            }
            Order::OneAfterTheOther => {
                for end in &mut ends {
                    for _ in 0..self.len {
                        *end = step(end);
                    }
                }
                self.device.waitall().await?;
                from.elapsed()
            }
            Order::Interleaved => {
                for _ in 0..self.len {
                    for end in &mut ends {
                        *end = step(end);
                    }
                }
                self.device.waitall().await?;
                from.elapsed()
            }
        };
        let n = self.n;
        for (first, end) in ends.iter().enumerate() {
            let values = end.to_vec::<f32>().await?;
            let right = (0..n * n).all(|at| {
                let (row, column) = (at / n, at % n);
                let source = (column + n - self.len % n) % n;
                values[at] == (row * n + source + first) as f32
            });
            check(right, format!("chain {first} has turned its columns {} times", self.len))?;
        }
        Ok(time)
    }

    async fn median(&self, order: Order, times: usize) -> Outcome<Duration> {
        let mut all = Vec::with_capacity(times);
        for _ in 0..times {
            all.push(self.time(order).await?);
        }
        Ok(median(&mut all))
    }
}

pub async fn run(setup: &Setup, report: &mut Report) -> Outcome<()> {
    let times = setup.count(7, 3);
    let small = Chains::new(setup, 64, setup.count(1000, 100)).await?;
    small.time(Order::Interleaved).await?;
    let alone = small.median(Order::Alone, times).await?;
    let together = small.median(Order::OneAfterTheOther, times).await?;
    let interleaved = small.median(Order::Interleaved, times).await?;

    let large = Chains::new(setup, setup.count(512, 256), setup.count(20, 5)).await?;
    large.time(Order::Interleaved).await?;
    let large_alone = large.median(Order::Alone, times).await?;
    let large_together = large.median(Order::OneAfterTheOther, times).await?;

    let ratio = |a: Duration, b: Duration| format!("{:.2}", a.as_secs_f64() / b.as_secs_f64());
    report.part("two independent chains of products");
    report.row(
        "small chains",
        format!("{} products of [64, 64] each, too small to be split", small.len),
    );
    report.time("one awaited, then the other: the sum", alone);
    report.time("queued one after the other", together);
    report.time("queued alternately", interleaved);
    report.row("together, and alternately, over the sum", {
        format!("{}, {}", ratio(together, alone), ratio(interleaved, alone))
    });
    report
        .row("large chains", format!("{} products of [{}, {}] each", large.len, large.n, large.n));
    report.time("one awaited, then the other: the sum", large_alone);
    report.time("queued one after the other", large_together);
    report.row("together over the sum", {
        format!("{} (each product uses every core)", ratio(large_together, large_alone))
    });
    report.json(
        "overlap",
        json!({
            "alone_sum_s": alone.as_secs_f64(),
            "together_s": together.as_secs_f64(),
            "interleaved_s": interleaved.as_secs_f64(),
            "large_alone_sum_s": large_alone.as_secs_f64(),
            "large_together_s": large_together.as_secs_f64(),
        }),
    );
    Ok(())
}
