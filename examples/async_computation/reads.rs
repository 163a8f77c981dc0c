//! Part 4: what a read costs. A read in a loop is a barrier in a loop.

use crate::report::Report;
use crate::setup::{Outcome, Setup, check};
use futensor::{Benchmark, CpuOptions, Error, TensorFuture, cat};
use serde_json::json;

const LEN: usize = 8192;

pub async fn run(setup: &Setup, report: &mut Report) -> Outcome<()> {
    let n = setup.count(500, 100);
    let device = setup.own(CpuOptions::default());
    let x = device.zeros([LEN]).await?.into_future_value();
    let value = |i: usize| (&x + i as f32).sin();
    let warm: Vec<TensorFuture> = (0..n).map(value).collect();
    cat(&warm, 0).to_vec::<f32>().await?;
    drop(warm);

    let each = async {
        let mut rows = Vec::with_capacity(n * LEN);
        for i in 0..n {
            rows.extend(value(i).to_vec::<f32>().await?);
        }
        Ok::<_, Error>(rows)
    };
    let (each_rows, each) = Benchmark::new("to_vec each").run_async(each).await;

    let items = async {
        let mut items = Vec::with_capacity(n);
        for i in 0..n {
            items.push(value(i).max_all().item::<f32>().await?);
        }
        Ok::<_, Error>(items)
    };
    let (items, item) = Benchmark::new("item each").run_async(items).await;

    let shows = async {
        let mut letters = 0;
        for i in 0..n {
            letters += value(i).display().await?.to_string().len();
        }
        Ok::<_, Error>(letters)
    };
    let (letters, display) = Benchmark::new("display each").run_async(shows).await;

    let at_end = async {
        let values: Vec<TensorFuture> = (0..n).map(value).collect();
        cat(&values, 0).to_vec::<f32>().await
    };
    let (end_rows, at_end) = Benchmark::new("at the end").run_async(at_end).await;

    let (each_rows, end_rows, items) = (each_rows?, end_rows?, items?);
    check(each_rows == end_rows && end_rows.len() == n * LEN, "both ways read the same")?;
    for (i, item) in items.iter().enumerate() {
        let expected = (i as f32).sin();
        check(end_rows[i * LEN] == *item, "an item is its element")?;
        check((item - expected).abs() < 1e-6, format!("sin({i}) is {expected}, not {item}"))?;
    }
    check(letters? > n, "something was displayed")?;

    report.part("what a read costs");
    report.row("values", format!("{n} of [{LEN}], sin(x + i)"));
    report.time_of("to_vec in the loop", each.time, n);
    report.time_of("item of the largest in the loop", item.time, n);
    report.time_of("display in the loop", display.time, n);
    report.time_of("futures collected, one read at the end", at_end.time, n);
    report.json("reads", json!({ "each_s": each.time.as_secs_f64(), "at_end_s": at_end.time.as_secs_f64() }));
    Ok(())
}
