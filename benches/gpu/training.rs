//! Training steps: forward, gradients, and SGD, many queued and one wait.

use super::{median, row, wait};
use futensor::Device;
use futensor::nn::{self, Module};
use futensor::optim::{Optimizer, Sgd};
use futures::executor::block_on;
use std::time::Instant;

/// Layers' sizes, from the input on, and rows of a batch.
const SMALL: (&[usize], usize) = (&[784, 256, 10], 256);
const LARGE: (&[usize], usize) = (&[4096, 4096, 4096, 1000], 4096);

/// Of a small model, which the host's calls hold up, and of a large one, which its products do.
pub fn all(device: &Device, quick: bool) {
    step(device, "a training step, 784-256-10", SMALL, if quick { 3 } else { 50 });
    let (sizes, batch) = if quick { SMALL } else { LARGE };
    step(
        device,
        "a training step, three layers of 4,096",
        (sizes, batch),
        if quick { 3 } else { 10 },
    );
}

fn step(device: &Device, name: &str, (sizes, batch): (&[usize], usize), steps: usize) {
    let mut net = nn::Sequential::new();
    for (i, pair) in sizes.windows(2).enumerate() {
        if i > 0 {
            net = net.then(nn::Relu);
        }
        net = net.then(nn::Linear::new(pair[0], pair[1], device));
    }
    let classes = sizes[sizes.len() - 1] as i64;
    let x = device.randn([batch, sizes[0]]);
    let y = device.from_vec((0..batch as i64).map(|i| i * 7 % classes).collect(), [batch]);
    let mut sgd = Sgd::new(net.parameters(), 0.05);
    let mut losses = Vec::new();
    let time = median(5, || {
        wait(device);
        let from = Instant::now();
        for _ in 0..steps {
            let loss = net.forward(&x).cross_entropy(&y, ());
            sgd.minimize(&loss).detach();
            losses.push(loss.stop_gradient());
        }
        wait(device);
        from.elapsed().as_secs_f64() / steps as f64
    });
    let value = |k: usize| block_on(losses[k].item::<f32>()).expect("a loss");
    let (first, last) = (value(0), value(losses.len() - 1));
    assert!(last < first, "{name}: the loss goes from {first} to {last}");
    row(name, time * 1e6, "us");
}
