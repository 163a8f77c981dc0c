//! A digits classifier as an HTTP service: `cargo run --release -p server`, then open
//! http://127.0.0.1:8080 and draw, or
//!
//! ```text
//! curl -s http://127.0.0.1:8080/predict -H 'content-type: application/json' \
//!   -d '{"pixels":[0,0,5,13,9,1,0,0,0,0,13,15,10,15,5,0,0,3,15,2,0,11,8,0,0,4,12,0,0,8,8,0,
//!   0,5,8,0,0,9,8,0,0,4,11,0,1,12,7,0,0,2,14,5,10,12,0,0,0,0,6,13,10,0,0,0]}'
//! ```
//!
//! Requests are gathered into batches by [`futensor::serve::Batcher`]; nobody blocks a thread, and
//! a client that goes away takes its queued work with it. `--help` lists the options. The parts are
//! in `service/`, which `tests.rs` runs as it is.

#[path = "../support/command.rs"]
mod command;

use server::{Config, OnLoss, Outcome};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

const USAGE: &str = "\
usage: server [--listen ADDRESS:PORT] [--device cpu|cuda:N] [--model FILE.safetensors] [--batch N]
              [--delay-ms MS] [--queue N] [--deadline-ms MS] [--drain-ms MS] [--on-loss cpu|exit]

  --listen ADDRESS:PORT     where it listens; 127.0.0.1:8080 by default
  --device cpu|cuda:N       where the model runs: by default the first GPU, and the CPU where \
  there is none
  --model FILE.safetensors  weights, as `train_digits --model cnn --save` writes them; its own by \
  default
  --batch N                 images in a batch at most; 32 by default
  --delay-ms MS             how long a request waits for company while a batch is under way; 2 by \
  default
  --queue N                 requests that may wait, more are answered 503; 256 by default
  --deadline-ms MS          how long a request may take in all; 2000 by default
  --drain-ms MS             how long the end of the server may take; 5000 by default
  --on-loss cpu|exit        a device that is lost: go on with the CPU (the default), or end with \
  an error
  --help                    this page";

struct Arguments {
    listen: SocketAddr,
    device: Option<String>,
    model: Option<String>,
    config: Config,
}

fn parse(mut words: impl Iterator<Item = String>) -> Outcome<Arguments> {
    let mut arguments = Arguments {
        listen: ([127, 0, 0, 1], 8080).into(),
        device: None,
        model: None,
        config: Config::default(),
    };
    while let Some(word) = words.next() {
        let value = words.next().ok_or_else(|| format!("{word} needs a value\n{USAGE}"))?;
        let number =
            || value.parse::<u64>().map_err(|_| format!("{word} {value} is no number\n{USAGE}"));
        let config = &mut arguments.config;
        match word.as_str() {
            "--listen" => {
                let address =
                    || format!("--listen {value}: no address, such as 127.0.0.1:8080\n{USAGE}");
                arguments.listen = value.parse().map_err(|_| address())?;
            }
            "--device" => arguments.device = Some(value),
            "--model" => arguments.model = Some(value),
            "--batch" => config.batch = number()? as usize,
            "--delay-ms" => config.delay = Duration::from_millis(number()?),
            "--queue" => config.queue = number()? as usize,
            "--deadline-ms" => config.deadline = Duration::from_millis(number()?),
            "--drain-ms" => config.drain = Duration::from_millis(number()?),
            "--on-loss" if value == "cpu" => config.on_loss = OnLoss::Cpu,
            "--on-loss" if value == "exit" => config.on_loss = OnLoss::Exit,
            _ => return Err(format!("{word} {value} is not known\n{USAGE}").into()),
        }
    }
    Ok(arguments)
}

async fn run() -> Outcome<()> {
    let mut arguments = parse(std::env::args().skip(1))?;
    if let Some(file) = arguments.model {
        arguments.config.model_file = file.clone();
        let read = tokio::task::spawn_blocking(move || {
            std::fs::read(&file).map_err(|error| format!("{file}: {error}"))
        });
        arguments.config.model = read.await??.into();
    }
    let device = command::device(arguments.device.as_deref())?;
    let announce = {
        let device = device.clone();
        move |address| println!("listening on http://{address} with the model on {device}")
    };
    let (app, listener) =
        server::start(device, arguments.config, arguments.listen, announce).await?;
    server::serve(app, listener, command::asked_to_end()).await
}

#[tokio::main]
async fn main() -> ExitCode {
    command::main(USAGE, run()).await
}
