//! `--measure`: latency of one sentence, and throughput of batches, without HTTP.

use super::{Outcome, tokenizer};
use futensor_models::Bert;
use std::path::Path;
use std::time::{Duration, Instant};

/// Sentences of 8 to 40 words, the same every time.
fn sentences(n: usize) -> Vec<String> {
    let words: Vec<&str> = include_str!("../reference/sentences.txt").split_whitespace().collect();
    let length = |k: usize| 8 + k * 7 % 33;
    (0..n)
        .map(|k| {
            (0..length(k))
                .map(|w| words[(k * 31 + w * 7) % words.len()])
                .collect::<Vec<_>>()
                .join(" ")
        })
        .collect()
}

async fn time(bert: &Bert, rows: &[Vec<u32>], at_least: Duration) -> Outcome<Vec<Duration>> {
    let mut times = Vec::new();
    let begin = Instant::now();
    while begin.elapsed() < at_least || times.len() < 8 {
        let from = Instant::now();
        let vectors = bert.embed(rows).to_vec::<f32>().await?;
        times.push(from.elapsed());
        if !vectors.iter().all(|v| v.is_finite()) {
            return Err("an embedding is no number".into());
        }
    }
    // The first ones pack weights and fill caches.
    let mut times = times.split_off(times.len().min(4) / 2);
    times.sort();
    Ok(times)
}

pub async fn all(bert: &Bert, folder: &Path) -> Outcome<()> {
    let tokenizer = tokenizer(folder, 256).await?;
    let ids = |text: &str| -> Outcome<Vec<u32>> {
        Ok(tokenizer.encode_fast(text, true)?.get_ids().to_vec())
    };
    let (second, ms) = (Duration::from_secs(2), |d: Duration| d.as_secs_f64() * 1e3);
    let one = [ids("Backpressure means that a producer waits until the queue is short enough.")?];
    let times = time(bert, &one, second).await?;
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    println!(
        "one sentence of {} tokens: median {:.2} ms, p99 {:.2} ms",
        one[0].len(),
        ms(at(0.5)),
        ms(at(0.99))
    );
    let mixed = sentences(32).iter().map(|s| ids(s)).collect::<Outcome<Vec<_>>>()?;
    // What others compute, who know no rows of unequal length; but nothing is masked.
    let mut padded = mixed.clone();
    let longest = padded.iter().map(Vec::len).max().unwrap_or(0);
    padded.iter_mut().for_each(|row| row.resize(longest, 0));
    let full = vec![(0..128).map(|k| 1000 + 37 * k % 20_000).collect::<Vec<u32>>(); 32];
    for (what, rows) in [
        ("32 sentences of 8 to 40 words", &mixed),
        ("the same, padded", &padded),
        ("32 x 128 tokens", &full),
    ] {
        let times = time(bert, rows, second).await?;
        println!("{what}: {:.1} sentences/s", 32.0 / times[times.len() / 2].as_secs_f64());
    }

    // Where the time of one sentence and of a batch goes, by op.
    for (what, rows) in [("one sentence", &one[..]), ("32 x 128 tokens", &full[..])] {
        let recording = bert.device().record();
        bert.embed(rows).to_vec::<f32>().await?;
        let recording = recording.finish();
        let mut by_op: std::collections::BTreeMap<String, (usize, Duration)> = Default::default();
        for step in &recording.steps {
            let names: Vec<&str> = step.ops.iter().map(|op| op.name.as_str()).collect();
            let shape = step.ops.last().map_or(String::new(), |op| op.shape.to_string());
            let entry = by_op.entry(format!("{} {shape}", names.join(" + "))).or_default();
            *entry = (entry.0 + 1, entry.1 + (step.ended - step.began));
        }
        let mut by_op: Vec<_> = by_op.into_iter().collect();
        by_op.sort_by_key(|(_, (_, time))| std::cmp::Reverse(*time));
        println!("\n{what}: where the time goes");
        for (name, (count, time)) in by_op.iter().take(14) {
            println!("  {:>9.1} us  {count:>3} x  {name}", time.as_secs_f64() * 1e6);
        }
    }
    Ok(())
}
