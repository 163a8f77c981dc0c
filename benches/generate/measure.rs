//! One turn of `benches/generate/run`: a model's speed and greedy tokens, as one line of JSON.
//!
//! ```text
//! cargo run --profile bench -p futensor-generate --example measure -- \
//!   MODEL.gguf [speed|tokens|one] [NICE]
//! ```

use futensor::{CpuOptions, Device, block_on};
use futensor_generate::{Engine, Llama, Options, Request, Token, Tokens};
use futures::StreamExt;
use serde_json::json;
use std::time::Instant;

const PROMPTS: &str = include_str!("prompts.txt");

/// Tokens that each sequence decodes.
const DECODED: usize = 128;

fn request(prompt: Vec<u32>, tokens: usize) -> Request {
    let mut request = Request::new(prompt).tokens_max(tokens);
    request.ignore_end = true;
    request
}

/// When the first token came and when the last, in seconds, and all of them.
async fn follow(mut tokens: Tokens) -> (f64, f64, Vec<Token>) {
    let begin = Instant::now();
    let (mut first, mut all) = (0.0, Vec::new());
    while let Some(token) = tokens.next().await {
        if all.is_empty() {
            first = begin.elapsed().as_secs_f64();
        }
        all.push(token.expect("a token"));
    }
    (first, begin.elapsed().as_secs_f64(), all)
}

/// Tokens a second, of so many sequences, between their first and their last token.
async fn decode(engine: &Engine, prompts: &[Vec<u32>], sequences: usize) -> f64 {
    let begin = |k: usize| engine.generate(request(prompts[k].clone(), DECODED)).expect("a stream");
    let streams: Vec<_> = (0..sequences).map(|k| follow(begin(k))).collect();
    let done = futures::future::join_all(streams).await;
    let first = done.iter().map(|d| d.0).fold(0.0, f64::max);
    let last = done.iter().map(|d| d.1).fold(0.0, f64::max);
    (sequences * (DECODED - 1)) as f64 / (last - first)
}

/// What the process has in memory, in MiB.
fn resident() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    line.and_then(|l| l.trim().strip_suffix(" kB")?.parse::<f64>().ok()).unwrap_or(f64::NAN)
        / 1024.0
}

/// Processor time of the thread that plans, queues and hands out, in microseconds.
fn host_us() -> f64 {
    let of = |thread: std::fs::DirEntry| -> Option<f64> {
        let read = |name| std::fs::read_to_string(thread.path().join(name)).ok();
        // A name has fifteen letters at most.
        (read("comm")?.trim() == "futensor-genera").then_some(())?;
        Some(read("schedstat")?.split(' ').next()?.parse::<f64>().ok()? / 1e3)
    };
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    threads.filter_map(of).next().unwrap_or(f64::NAN)
}

fn main() {
    let mut words = std::env::args().skip(1);
    let path = words.next().expect("usage: measure MODEL.gguf [speed|tokens|one]");
    let what = words.next().unwrap_or_else(|| "speed".into());
    let nice = words.next().map_or(8, |word| word.parse().expect("a number"));
    let before = resident();
    let device = Device::cpu_with(CpuOptions::default().nice(nice));
    block_on(async {
        let model = Llama::from_gguf(&device, &path).await.expect("a model");
        let options = Options {
            slots: 8,
            context: 2048,
            pages_bytes: 96 << 20,
            chunk: 512,
            ..Options::default()
        };
        let engine = Engine::start(model, options).expect("an engine");
        let tokenizer = engine.model().tokenizer().clone();
        let prompts: Vec<Vec<u32>> =
            PROMPTS.lines().map(|line| tokenizer.encode(line, true).expect("tokens")).collect();
        if what == "tokens" {
            let mut all = Vec::new();
            for prompt in &prompts {
                let (.., tokens) = follow(
                    engine.generate(request(prompt.clone(), 64).logprobs(2)).expect("a stream"),
                )
                .await;
                let gap = |t: &Token| {
                    t.logprobs.as_ref().map_or(0.0, |l| l.alternatives[0].1 - l.alternatives[1].1)
                };
                let ids: Vec<u32> = tokens.iter().map(|t| t.id).collect();
                let gaps: Vec<f32> = tokens.iter().map(gap).collect();
                all.push(json!({ "prompt": prompt, "tokens": ids, "gaps": gaps }));
            }
            println!("{}", json!(all));
            return;
        }
        // Plans are made, and pages touched.
        decode(&engine, &prompts, 1).await;
        if what == "one" {
            println!("{}", json!({ "decode 1": decode(&engine, &prompts, 1).await }));
            return;
        }
        decode(&engine, &prompts, 8).await;
        let long = |salt: u32| {
            (0..512u32).map(|k| 1000 + (k * 37 + salt * 101) % 20_000).collect::<Vec<u32>>()
        };
        follow(engine.generate(request(long(1), 1)).expect("a stream")).await;
        let (prefill, ..) = follow(engine.generate(request(long(2), 1)).expect("a stream")).await;
        let short = tokenizer.encode("The old lighthouse keeper", true).expect("tokens");
        let (first, ..) = follow(engine.generate(request(short, 1)).expect("a stream")).await;
        let (before_one, host) = (engine.stats(), host_us());
        let one = decode(&engine, &prompts, 1).await;
        let steps = (engine.stats().steps - before_one.steps) as f64;
        let host = (host_us() - host) / steps;
        let queueing = (engine.stats().queueing - before_one.queueing).as_secs_f64() * 1e6 / steps;
        let eight = decode(&engine, &prompts, 8).await;
        let speed = json!({ "decode 1": one, "decode 8": eight, "prefill 512": 512.0 / prefill,
            "host us a step": host, "queueing us a step": queueing, "first token \
                ms": first * 1e3, "resident MiB": resident() - before });
        println!("{speed}");
    });
}
