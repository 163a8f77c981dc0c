//! How does one model, served over HTTP, bear load? The same MiniLM by futensor and by candle.
//!
//! ```text
//! cargo run --release --features candle -- MODEL_FOLDER \
//!   [--engines none,futensor,futensor-single,candle-batched,candle-handler,candle-blocking]
//!     [--clients 1,16,128] [--seconds 5] [--nice 8]
//! cargo run --release --no-default-features --features candle -- MODEL_FOLDER \
//!   --engines candle-handler,candle-blocking
//! ```
//!
//! Method: one process. The server is axum on a multi_thread runtime with a thread a core; the
//! clients share one thread and its current_thread runtime, each with a connection of its own, and
//! send one sentence of 8 to 40 words after the other. Every response is compared with the
//! embedding of its sentence that the same engine gave alone, before the clock ran. Beside them
//! `/healthz` is asked every 5 ms, at times fixed beforehand: what is shown is how late its answer
//! came after the time at which it was due to be asked. `none` answers at once, with no model
//! behind it: what HTTP, clients and machine cost by themselves. A second of warming up is not
//! counted. `--nice` is how far futensor's compute threads stand back (8 is its default); beside
//! other work on the machine, `--nice 0` competes as candle does.

mod client;
mod engines;

use std::path::PathBuf;
use std::time::Duration;

pub type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

struct Arguments {
    folder: PathBuf,
    engines: Vec<String>,
    clients: Vec<usize>,
    time: Duration,
    nice: i32,
}

fn parse() -> Outcome<Arguments> {
    let mut words = std::env::args().skip(1);
    let mut arguments = Arguments {
        folder: PathBuf::new(),
        engines: engines::NAMES.iter().map(|n| n.to_string()).collect(),
        clients: vec![1, 16, 128],
        time: Duration::from_secs(5),
        nice: 8,
    };
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        match word.as_str() {
            "--engines" => arguments.engines = value()?.split(',').map(str::to_owned).collect(),
            "--clients" => {
                arguments.clients = value()?.split(',').map(str::parse).collect::<Result<_, _>>()?
            }
            "--seconds" => arguments.time = Duration::from_secs(value()?.parse()?),
            "--nice" => arguments.nice = value()?.parse()?,
            _ => arguments.folder = word.into(),
        }
    }
    Ok(arguments)
}

/// The sentences that clients send.
pub fn sentences(n: usize) -> Vec<String> {
    let words: Vec<&str> = include_str!("../../../../examples/embed/reference/sentences.txt")
        .split_whitespace()
        .collect();
    let sentence = |k: usize| {
        let length = 8 + k * 7 % 33;
        (0..length).map(|w| words[(k * 31 + w * 7) % words.len()]).collect::<Vec<_>>().join(" ")
    };
    (0..n).map(sentence).collect()
}

fn main() -> Outcome<()> {
    let arguments = parse()?;
    let cores = std::thread::available_parallelism()?.get();
    println!("{cores} cores; {:?} a row", arguments.time);
    println!(
        "{:<16} {:>7} {:>11} {:>9} {:>9} {:>9} {:>13} {:>13}",
        "engine",
        "clients",
        "requests/s",
        "p50 ms",
        "p99 ms",
        "max ms",
        "healthz p99.9",
        "healthz \
            max"
    );
    for name in &arguments.engines {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(cores)
            .enable_all()
            .build()?;
        let address = runtime.block_on(engines::start(name, &arguments.folder, arguments.nice))?;
        let client = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        for &clients in &arguments.clients {
            let seen =
                client.block_on(client::load(address, clients, arguments.time, name != "none"))?;
            println!(
                "{name:<16} {clients:>7} {:>11.1} {:>9.2} {:>9.2} {:>9.2} {:>13.2} {:>13.2}",
                seen.rate,
                seen.latency(0.5),
                seen.latency(0.99),
                seen.latency(1.0),
                seen.lateness(0.999),
                seen.lateness(1.0),
            );
        }
        runtime.shutdown_background();
    }
    Ok(())
}
