//! Question: what does a training step cost beside the matrix products that are in it?
//!
//! Method: an MLP 784-256-10 at batch 256 with cross entropy and SGD: forward, gradients, update.
//! `STEPS` steps are queued behind `ready()` and joined at the end; a time is one step's share.
//! Beside it the same with the loss awaited in each step, the same written out by hand without a
//! tape, and its five products alone. The loss is checked after the clock has stopped: it has to
//! have fallen, and by the same amount in all three.
//!
//! `cargo bench -p futensor-benches --bench train_step`

use futensor::nn::{self, Module};
use futensor::optim::{Optimizer, Sgd};
use futensor::{CpuOptions, DType, Device, TensorFuture};
use std::time::{Duration, Instant};

const BATCH: usize = 256;
const SIZES: [usize; 3] = [784, 256, 10];
const STEPS: usize = 50;
const RATE: f64 = 0.05;

/// A batch, and weights to begin with.
struct Start {
    x: TensorFuture,
    y: TensorFuture,
    weights: [TensorFuture; 4],
}

async fn start(device: &Device) -> Start {
    device.seed(11);
    let y: Vec<i64> = (0..BATCH as i64).map(|i| i * 7 % SIZES[2] as i64).collect();
    let net = mlp(device);
    let weights = nn::values(&net.parameters()).try_into().expect("four parameters");
    let start =
        Start { x: device.randn([BATCH, SIZES[0]]), y: device.from_vec(y, [BATCH]), weights };
    device.waitall().await.expect("no errors");
    start
}

fn mlp(device: &Device) -> nn::Sequential {
    nn::Sequential::new()
        .then(nn::Linear::new(SIZES[0], SIZES[1], device))
        .then(nn::Relu)
        .then(nn::Linear::new(SIZES[1], SIZES[2], device))
}

async fn taped(device: &Device, start: &Start, iterations: u64, awaited: bool) -> Duration {
    let net = mlp(device);
    for (parameter, value) in net.parameters().iter().zip(&start.weights) {
        parameter.set(value);
    }
    let mut sgd = Sgd::new(net.parameters(), RATE);
    device.waitall().await.expect("no errors");
    let mut losses = Vec::new();
    let from = Instant::now();
    for _ in 0..iterations as usize * STEPS {
        device.ready().await;
        let loss = net.forward(&start.x).cross_entropy(&start.y, ());
        sgd.minimize(&loss).detach();
        if awaited {
            loss.item::<f32>().await.expect("a loss");
        }
        losses.push(loss.stop_gradient());
    }
    for p in net.parameters() {
        p.value().await.expect("a weight");
    }
    let time = from.elapsed();
    fell(&losses).await;
    time
}

/// The same, written out.
async fn by_hand(device: &Device, start: &Start, iterations: u64) -> Duration {
    let [mut w1, mut b1, mut w2, mut b2] = start.weights.clone().map(|w| w.stop_gradient());
    let target = start.y.one_hot(SIZES[2]).to_dtype(DType::F32);
    device.waitall().await.expect("no errors");
    let mut losses = Vec::new();
    let from = Instant::now();
    for _ in 0..iterations as usize * STEPS {
        device.ready().await;
        let h = (start.x.matmul(w1.t()) + &b1).relu();
        let logs = (h.matmul(w2.t()) + &b2).log_softmax(1);
        losses.push(-(&logs * &target).sum_all() / BATCH as f64);
        let g = (logs.exp() - &target) / BATCH as f64;
        let dh = g.matmul(&w2) * h.gt(0);
        w2 = w2 - g.t().matmul(&h) * RATE;
        b2 = b2 - g.sum(0) * RATE;
        w1 = w1 - dh.t().matmul(&start.x) * RATE;
        b1 = b1 - dh.sum(0) * RATE;
    }
    for w in [w1, b1, w2, b2] {
        w.await.expect("a weight");
    }
    let time = from.elapsed();
    fell(&losses).await;
    time
}

async fn products(device: &Device, start: &Start, iterations: u64) -> Duration {
    let [w1, _, w2, _] = start.weights.clone().map(|w| w.stop_gradient());
    let (h, g) = (device.randn([BATCH, SIZES[1]]), device.randn([BATCH, SIZES[2]]));
    let dh = device.randn([BATCH, SIZES[1]]);
    device.waitall().await.expect("no errors");
    let from = Instant::now();
    for _ in 0..iterations as usize * STEPS {
        device.ready().await;
        start.x.matmul(w1.t()).detach();
        h.matmul(w2.t()).detach();
        g.matmul(&w2).detach();
        g.t().matmul(&h).detach();
        dh.t().matmul(&start.x).detach();
    }
    device.waitall().await.expect("no errors");
    from.elapsed()
}

async fn fell(losses: &[TensorFuture]) {
    let first = losses[0].item::<f32>().await.expect("a loss");
    let last = losses[STEPS - 1].item::<f32>().await.expect("a loss");
    assert!((2.2..2.6).contains(&first) && last < 0.7 * first, "from {first} to {last}");
}

fn main() {
    ledger::run("train_step", |group, ledger| {
        let runtime = ledger::runtime();
        let device = Device::cpu_with(CpuOptions::default());
        let at = runtime.block_on(start(&device));
        let steps = STEPS as u64;
        ledger.bench(group, "a step", steps, |n| runtime.block_on(taped(&device, &at, n, false)));
        ledger.bench(group, "a step, its loss awaited", steps, |n| {
            runtime.block_on(taped(&device, &at, n, true))
        });
        ledger
            .bench(group, "a step by hand", steps, |n| runtime.block_on(by_hand(&device, &at, n)));
        ledger.bench(group, "its products", steps, |n| runtime.block_on(products(&device, &at, n)));
        for what in ["a step", "a step, its loss awaited", "a step by hand"] {
            ledger.ratio(what, "its products");
        }
    });
}
