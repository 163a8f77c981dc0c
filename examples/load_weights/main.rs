//! Weights that PyTorch trained and saved, loaded under PyTorch's names, give the same logits to
//! 1e-5.
//!
//!     cargo run --release --example load_weights
//!     cargo run --release --example load_weights -- cuda:0
//!
//! `make.py` beside this file trained the network on handwritten digits and wrote both files.

use futensor::nn::{self, Module, Sequential};
use futensor::{ConvOptions, Device, Result, safetensors};
use std::path::{Path, PathBuf};

/// The layers of `make.py`.
fn network(device: &Device) -> Sequential {
    Sequential::new()
        .then(nn::Conv2d::new(1, 8, 3, ConvOptions::default().padding(1), device))
        .then(nn::BatchNorm::new(8, device))
        .then(nn::Relu)
        .then(nn::MaxPool2d::new(2))
        .then(nn::Flatten)
        .then(nn::Linear::new(128, 10, device))
}

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/load_weights").join(name)
}

/// Largest difference to PyTorch's logits, and how many of the 64 images are recognised.
async fn compared(device: &Device) -> Result<(f32, i64)> {
    let mut weights = safetensors::load(file("weights.safetensors"), device);
    let mut state = Vec::new();
    while let Some(loaded) = weights.next().await {
        let (name, tensor) = loaded?;
        println!(
            "{:3.0} %  {name:24} {} {}",
            weights.progress().fraction() * 100.0,
            tensor.dtype(),
            tensor.shape()
        );
        state.push((name, tensor));
    }
    let net = network(device);
    net.load_state(state)?;
    net.eval();

    let expected = safetensors::load(file("expected.safetensors"), device).all().await?;
    let logits = net.forward(&expected["images"]);
    let difference = (&logits - &expected["logits"]).abs().max_all();
    let right = logits.argmax(1).eq(&expected["labels"]).sum_all();
    // Both are queued; now they are waited for.
    Ok((difference.item().await?, right.item().await?))
}

/// Says what may be said; an error unless that was the question.
fn usage(word: &str) -> Result<()> {
    const USAGE: &str = "\
usage: load_weights [cpu|cuda:N]

  cpu|cuda:N  the device that the weights are loaded onto; cpu by default
  --help      this page";
    if word == "--help" || word == "-h" {
        // In one piece, and without a word where the reader has seen enough.
        let _ = std::io::Write::write_all(&mut std::io::stdout(), format!("{USAGE}\n").as_bytes());
        return Ok(());
    }
    eprintln!("{USAGE}");
    std::process::exit(2)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let device = match &words[..] {
        [] => Device::cpu(),
        [word] if !word.starts_with('-') => word.parse()?,
        [word] => return usage(word),
        _ => return usage(""),
    };
    let (difference, right) = compared(&device).await?;
    println!(
        "largest difference to PyTorch's logits {difference:.1e}; {right} of 64 digits recognised"
    );
    assert!(difference < 1e-5, "the logits differ");
    device.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn weights_of_pytorch_give_pytorchs_logits() {
        let (difference, right) = compared(&Device::cpu()).await.unwrap();
        assert!(difference < 1e-5, "{difference}");
        assert!(right >= 58, "{right} of 64");
    }
}
