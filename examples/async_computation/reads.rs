//! Part 4: what a read costs. A read in a loop is a barrier in a loop: while one value is awaited,
//! the next is not queued. What is compared reads the same numbers; each way takes its turn, and
//! the middle of the turns is shown.

use crate::report::Report;
use crate::setup::{Outcome, Setup, check, median, timed_await};
use futensor::read::Item;
use futensor::{CpuOptions, Error, TensorFuture, cat};
use serde_json::json;
use std::time::Duration;

const LEN: usize = 8192;

pub async fn run(setup: &Setup, report: &mut Report) -> Outcome<()> {
    let n = setup.count(500, 100);
    let device = setup.own(CpuOptions::default());
    let x = device.zeros([LEN]).await?.into_future_value();
    let value = |i: usize| (&x + i as f32).sin();
    let warm: Vec<TensorFuture> = (0..n).map(value).collect();
    cat(&warm, 0).to_vec::<f32>().await?;
    drop(warm);

    let mut times: [Vec<Duration>; 5] = Default::default();
    let mut last = None;
    for _ in 0..setup.count(5, 3) {
        let each = async {
            let mut rows = Vec::with_capacity(n * LEN);
            for i in 0..n {
                rows.extend(value(i).to_vec::<f32>().await?);
            }
            Ok::<_, Error>(rows)
        };
        let (each_rows, each) = timed_await(each).await;

        let at_end = async {
            let values: Vec<TensorFuture> = (0..n).map(value).collect();
            cat(&values, 0).to_vec::<f32>().await
        };
        let (end_rows, at_end) = timed_await(at_end).await;

        let items = async {
            let mut items = Vec::with_capacity(n);
            for i in 0..n {
                items.push(value(i).max_all().item::<f32>().await?);
            }
            Ok::<_, Error>(items)
        };
        let (items, item) = timed_await(items).await;

        let queued = async {
            // Queued at the call; only the awaits come later.
            let reads: Vec<Item<f32>> = (0..n).map(|i| value(i).max_all().item::<f32>()).collect();
            futures::future::try_join_all(reads).await
        };
        let (queued, item_end) = timed_await(queued).await;

        let shows = async {
            let mut letters = 0;
            for i in 0..n {
                letters += value(i).display().await?.to_string().len();
            }
            Ok::<_, Error>(letters)
        };
        let (letters, display) = timed_await(shows).await;
        check(letters? > n, "something was displayed")?;
        let measured = [each, at_end, item, item_end, display];
        times.iter_mut().zip(measured).for_each(|(times, time)| times.push(time));
        let items = items?;
        check(items == queued?, "both ways read the same items")?;
        last = Some((each_rows, end_rows, items));
    }
    let [each, at_end, item, item_end, display] = times.map(|mut t| median(&mut t));
    let (each_rows, end_rows, items) = last.ok_or("nothing was read")?;
    let (each_rows, end_rows) = (each_rows?, end_rows?);
    check(each_rows == end_rows && end_rows.len() == n * LEN, "both ways read the same")?;
    for (i, item) in items.iter().enumerate() {
        let expected = (i as f32).sin();
        check(end_rows[i * LEN] == *item, "an item is its element")?;
        check((item - expected).abs() < 1e-6, format!("sin({i}) is {expected}, not {item}"))?;
    }
    report.part("what a read costs");
    report.row("values", format!("{n} of [{LEN}], sin(x + i)"));
    report.time_of("all elements: to_vec in the loop", each, n);
    report.time_of("all elements: queued, one to_vec at the end", at_end, n);
    report.time_of("the largest: item in the loop", item, n);
    report.time_of("the largest: queued, awaited at the end", item_end, n);
    report.time_of("display in the loop", display, n);
    let ratio = |a: Duration, b: Duration| a.as_secs_f64() / b.as_secs_f64();
    report.note(format!(
        "In the loop against queued first: to_vec takes {:.2} times as long, item {:.2}. Above 1 \
            queueing wins:\n\
         in the loop one value is worked on at a time; queued, all threads have work. Below 1 it \
         loses: what\n\
         is read at the end passes through memory once more.",
        ratio(each, at_end),
        ratio(item, item_end),
    ));
    report.json(
        "reads",
        json!({
            "each_s": each.as_secs_f64(),
            "at_end_s": at_end.as_secs_f64(),
            "item_each_s": item.as_secs_f64(),
            "items_at_end_s": item_end.as_secs_f64(),
        }),
    );
    Ok(())
}
