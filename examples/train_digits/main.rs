//! Training on real data: `cargo run --release --example train_digits`.
//!
//! An MLP and a small CNN learn the UCI handwritten digits (1,797 images; `data/LICENSE`). The
//! training loop never waits for a value: its only barrier is `ready()`, room in the queue, once a
//! minibatch; losses and accuracies are awaited by a task of their own. Beside it the same training
//! with an `item().await` in each step.
//!
//! `--model mlp|cnn`, `--device cpu|cuda:0`, `--seed N`; `--json FILE` writes the figures, `--svg
//! FILE` the loss curve (by default `target/train_digits.svg`), and with one model `--save FILE`
//! the trained weights, which is how `examples/server` came by its own. With one model `--monitor
//! FILE.html` writes a page on which the training can be watched. Ends with an error where an
//! accuracy is not reached.

mod cnn;
mod curve;
mod data;
mod model;
#[path = "../support/output.rs"]
mod output;
mod report;
mod train;

use futensor::nn::Module;
use futensor::train::{Monitor, MonitorOptions};
use futensor::{Device, safetensors};
use model::Model;
use report::{Figures, HEAD};
use serde_json::{Map, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use train::{Outcome, Way, train};

const USAGE: &str = "\
usage: train_digits [--model mlp|cnn] [--device cpu|cuda:N] [--seed N] [--json FILE] [--svg FILE]
                    [--save FILE.safetensors] [--monitor FILE.html]

  --model mlp|cnn          one of the networks; both by default
  --device cpu|cuda:N      where it trains: by default the first GPU, and the CPU where there is \
  none
  --seed N                 of the initial weights, dropout and the order of images; 1 by default
  --json FILE              writes the figures down
  --svg FILE               the loss curve; target/train_digits.svg by default
  --save FILE.safetensors  writes the trained weights, of the one model that --model names
  --monitor FILE.html      writes a page on which to watch the one model that --model names
  --help                   this page";

struct Arguments {
    models: Vec<Model>,
    device: Option<String>,
    seed: u64,
    json: Option<PathBuf>,
    svg: PathBuf,
    save: Option<PathBuf>,
    monitor: Option<PathBuf>,
}

impl Arguments {
    fn parse(mut args: impl Iterator<Item = String>) -> Result<Arguments, String> {
        let default = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target/train_digits.svg");
        let svg = default.clone();
        let models = Model::BOTH.to_vec();
        let mut found =
            Arguments { models, device: None, seed: 1, json: None, svg, save: None, monitor: None };
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
            match &arg[..] {
                "--model" => {
                    let name = value()?;
                    found.models = Model::BOTH.into_iter().filter(|m| m.name() == name).collect();
                    if found.models.is_empty() {
                        return Err(format!("there is no model {name}: mlp or cnn"));
                    }
                }
                "--device" => found.device = Some(value()?),
                "--seed" => {
                    found.seed = value()?.parse().map_err(|error| format!("--seed: {error}"))?
                }
                "--json" => found.json = Some(value()?.into()),
                "--svg" => found.svg = value()?.into(),
                "--save" => found.save = Some(value()?.into()),
                "--monitor" => found.monitor = Some(value()?.into()),
                _ => return Err(format!("{arg} is not known\n{USAGE}")),
            }
        }
        if found.save.is_some() && found.models.len() != 1 {
            return Err("--save writes one model: name it with --model".into());
        }
        if found.monitor.is_some() && found.models.len() != 1 {
            return Err("--monitor shows one model: name it with --model".into());
        }
        if let Some(folder) = default.parent().filter(|_| found.svg == default) {
            std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        }
        for file in
            [Some(&found.svg), found.json.as_ref(), found.save.as_ref()].into_iter().flatten()
        {
            output::check(file)?;
        }
        Ok(found)
    }

    fn device(&self) -> Outcome<Device> {
        Ok(self.device.as_deref().map_or_else(|| Ok(Device::try_gpu(0)), str::parse)?)
    }
}

/// The page on which a training can be watched; it says where it is before the training begins.
async fn opened(file: &Path, model: Model, device: &Device) -> Outcome<Monitor> {
    let options = MonitorOptions::default().title(format!("digits, {}", model.name()));
    let monitor = Monitor::open_with(device, file, options).await?;
    eprintln!("to watch it: {}", file.display());
    Ok(monitor)
}

async fn job(arguments: Arguments) -> Outcome<()> {
    let device = arguments.device()?;
    let mut runs: Vec<(Model, Figures)> = Vec::new();
    let (mut written, mut table) = (Map::new(), String::new());
    for &model in &arguments.models {
        let seed = arguments.seed;
        let (naive, _) = train(model, Way::Naive, &device, seed, true, None).await?;
        let monitor = match &arguments.monitor {
            Some(file) => Some(opened(file, model, &device).await?),
            None => None,
        };
        let (figures, net) =
            train(model, Way::Asynchronous, &device, seed, true, monitor.as_ref()).await?;
        if let Some(monitor) = monitor {
            monitor.finish().await?;
        }
        table +=
            &format!("{}\n{}\n", figures.row(model, "ready()"), naive.row(model, "item().await"));
        table += &report::explained(&figures, &naive);
        let mut entry = figures.json();
        entry["naive"] = naive.json();
        written.insert(model.name().into(), entry);
        // The same steps, whoever waited for what.
        if figures.losses != naive.losses {
            return Err(format!("{}: the two loops came to different losses", model.name()).into());
        }
        if let Some(file) = &arguments.save {
            safetensors::save(file, net.state()).await?;
        }
        runs.push((model, figures));
    }
    println!("futensor, handwritten digits on {}\n\n{HEAD}\n{table}", device.name());
    let shown: Vec<(Model, &Figures)> =
        runs.iter().map(|(model, figures)| (*model, figures)).collect();
    output::write(&arguments.svg, curve::svg(&shown))?;
    println!("loss curve: {}", arguments.svg.display());
    if let Some(file) = &arguments.json {
        written.insert("device".into(), json!(device.name()));
        output::write(file, serde_json::to_string_pretty(&written)? + "\n")?;
    }
    for (model, figures) in &runs {
        let wanted = model.accuracy_wanted();
        if figures.accuracy < wanted {
            let text = format!(
                "{}: {:.2} % of the held-out images, not {} %",
                model.name(),
                figures.accuracy * 100.0,
                wanted * 100.0
            );
            return Err(text.into());
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    if std::env::args().skip(1).any(|word| word == "--help" || word == "-h") {
        // In one piece, and without a word where the reader has seen enough.
        let _ = std::io::Write::write_all(&mut std::io::stdout(), format!("{USAGE}\n").as_bytes());
        return ExitCode::SUCCESS;
    }
    let arguments = match Arguments::parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(text) => {
            eprintln!("{text}");
            return ExitCode::from(2);
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let result = runtime.map_err(Into::into).and_then(|runtime| runtime.block_on(job(arguments)));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("train_digits: {error}");
            ExitCode::FAILURE
        }
    }
}
