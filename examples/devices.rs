//! The chapter "GPUs" of *Dive into Deep Learning* (Zhang et al., <https://d2l.ai>) in this API:
//! devices, where tensors live, copies between devices, networks on a device.
//!
//!     cargo run --release --example devices -- --size 4000
//!
//! `--size N` is the side of the matrices of the last part, 10,000 by default (three of them, 1.2
//! GB). Where there is no GPU its place is taken by a second CPU device, as `try_gpu` does.

use futensor::nn::{self, Module};
use futensor::optim::Sgd;
use futensor::train::Trainer;
use futensor::{CpuOptions, Device, Result};
use std::process::ExitCode;
use std::time::Instant;

/// `cpu()`, as in the book.
fn cpu() -> Device {
    Device::cpu()
}

/// `gpu(i)`, as in the book: an error, which says what is missing, where there is none.
fn gpu(i: usize) -> Result<Device> {
    Device::cuda(i)
}

fn devices() {
    println!("1. Computing devices");
    println!("   cpu() is {}", cpu());
    for i in 0..2 {
        match gpu(i) {
            Ok(device) => println!("   gpu({i}) is {device}"),
            Err(error) => println!("   gpu({i}): {error}"),
        }
    }
    println!(
        "   gpu_count() is {}, try_all_gpus() is {:?}",
        Device::gpu_count(),
        Device::try_all_gpus()
    );
    println!("   try_gpu(10) is {}", Device::try_gpu(10));
}

async fn storage(first: &Device, second: &Device) -> Result<()> {
    println!("\n2. Tensors and devices");
    let x = cpu().from_vec(vec![1.0f32, 2.0, 3.0], [3]);
    println!("   x.device() is {}: asking waits for nothing", x.device());
    let x = first.ones([2, 3]);
    let y = second.rand([2, 3]);
    println!("   X = {}", x.display().await?);
    println!("   Y = {}", y.display().await?);

    println!("\n3. Copying");
    // Mixing devices is an error that names both; it stays with the value and panics nowhere.
    let mixed = &x + &y;
    if first != second {
        println!("   X + Y: {}", mixed.error().expect("devices are not mixed"));
    }
    let z = x.to_device(second);
    println!("   Z = X.to_device({second}) is on {}", z.device());
    println!("   Y + Z = {}", (&y + &z).display().await?);
    // Already there: the same value, and no copy.
    let before = second.stats().enqueued;
    let same = z.to_device(second);
    assert_eq!((same.device(), second.stats().enqueued), (z.device(), before));
    println!("   Z.to_device({second}) queued nothing: it is there already");
    Ok(())
}

async fn networks(first: &Device, second: &Device) -> Result<()> {
    println!("\n4. Networks and devices");
    let net = nn::Sequential::new().then(nn::LazyLinear::new(1));
    let x = first.ones([2, 3]);
    net.forward(&x).wait_to_read().await?;
    let device = || net.device().expect("the forward pass has made its weights");
    println!("   net is on {}", device());
    net.to(second);
    println!("   after net.to({second}): on {}", device());
    println!("   net(Z) = {}", net.forward(&x.to_device(second)).display().await?);
    let mixed = net.forward(&x);
    if let Some(error) = mixed.error() {
        println!("   net(X): {error}");
    }

    // A trainer moves the model, and splits each batch among its devices.
    let trainer = Trainer::new([first, second]);
    trainer.prepare_model(&net);
    let mut sgd = Sgd::new(net.parameters(), 0.1);
    let (x, y) = (cpu().randn([64, 3]), cpu().zeros([64, 1]));
    let mut losses = Vec::new();
    for _ in 0..50 {
        trainer.device().ready().await;
        let batch = trainer.prepare_batch(&[&x, &y]);
        losses.push(
            trainer
                .step(&net, &mut sgd, &batch, |part| net.forward(&part[0]).mse_loss(&part[1], ())),
        );
    }
    let (from, to) = (losses[0].item::<f32>().await?, losses[49].item::<f32>().await?);
    println!("   50 steps on {first} and {second}: loss from {from:.4} to {to:.6}");
    assert!(to < from);
    Ok(())
}

async fn check(device: &Device, size: usize) -> Result<()> {
    println!("\n5. A {size} x {size} product on {device}");
    let a = device.randn([size, size]);
    a.wait_to_read().await?;
    let from = Instant::now();
    let b = a.matmul(&a);
    println!("   the call returned after {:.1} us", from.elapsed().as_secs_f64() * 1e6);
    b.wait_to_read().await?;
    let seconds = from.elapsed().as_secs_f64();
    let flops = 2.0 * (size as f64).powi(3) / seconds;
    println!("   the product was there after {seconds:.3} s: {:.1} GFLOP/s", flops / 1e9);
    // (A A) v = A (A v), of which the right side is two products with a vector.
    let v = device.randn([size]);
    let (left, right) = (b.matmul(&v), a.matmul(a.matmul(&v)));
    let apart = ((&left - &right).norm_all(2.0) / right.norm_all(2.0)).item::<f32>().await?;
    println!("   (A A) v and A (A v) are {apart:.1e} apart");
    assert!(apart < 1e-3, "the product is wrong");
    Ok(())
}

async fn chapter(size: usize) -> Result<()> {
    devices();
    let first = cpu();
    // The GPU where there is one; else a device of its own, so that copies go somewhere.
    let second = match gpu(0) {
        Ok(gpu) => gpu,
        Err(_) => Device::cpu_with(CpuOptions::default()),
    };
    storage(&first, &second).await?;
    networks(&first, &second).await?;
    check(&second, size).await
}

const USAGE: &str = "\
usage: devices [--size N]

  --size N  side of the matrices of the last part; 10000 by default (three of them, 1.2 GB)
  --help    this page";

fn main() -> ExitCode {
    if std::env::args().skip(1).any(|word| word == "--help" || word == "-h") {
        // In one piece, and without a word where the reader has seen enough.
        let _ = std::io::Write::write_all(&mut std::io::stdout(), format!("{USAGE}\n").as_bytes());
        return ExitCode::SUCCESS;
    }
    let mut args = std::env::args().skip(1);
    let size = match (args.next().as_deref(), args.next().and_then(|n| n.parse().ok()), args.next())
    {
        (None, None, None) => 10_000,
        (Some("--size"), Some(size), None) if size > 0 => size,
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match futures::executor::block_on(chapter(size)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("devices: {error}");
            ExitCode::FAILURE
        }
    }
}
