//! futensor's way to do the cases. A value is awaited before the next is asked for, but where the
//! case says otherwise.

use crate::cases::{Case, LARGE, MLP, OPS, RATE, ROWS, SOFTMAX, chain_length, numbers, start};
use crate::measure::{Job, Sample};
use futensor::nn::{self, Module};
use futensor::optim::{Optimizer, Sgd};
use futensor::{CpuOptions, Device, TensorFuture};
use std::future::Future;
use std::rc::Rc;
use std::time::{Duration, Instant};

pub struct Ours {
    device: Device,
    runtime: Rc<tokio::runtime::Runtime>,
}

async fn ends(y: &TensorFuture) -> Vec<f32> {
    let flat = y.reshape([y.numel()]);
    let n = y.numel().min(4);
    let mut shows = flat.narrow(0, 0, n).to_vec::<f32>().await.expect("the first");
    shows.extend(flat.narrow(0, y.numel() - n, n).to_vec::<f32>().await.expect("the last"));
    shows
}

/// All have run since `before`: nothing was merged away or skipped.
fn ran(device: &Device, before: &futensor::Stats, n: usize) {
    let now = device.stats();
    let ran = (now.started + now.fused) - (before.started + before.fused);
    assert_eq!(ran, n as u64, "ops that have run");
}

impl Ours {
    pub fn new(threads: usize, nice: i32) -> Ours {
        let device = Device::cpu_with(CpuOptions::default().threads(threads).nice(nice));
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        Ours { device, runtime: Rc::new(runtime) }
    }

    fn job<F>(&self, name: &str, mut sample: impl FnMut(Device, usize) -> F + 'static) -> Job
    where
        F: Future<Output = Sample>,
    {
        let (device, runtime) = (self.device.clone(), self.runtime.clone());
        Job::new(name, move |n| {
            let sample = runtime.block_on(sample(device.clone(), n));
            // What is dropped goes before the others have their turn.
            runtime.block_on(device.waitall()).expect("no errors");
            sample
        })
    }

    /// Results of an op, as a program's operands are: a caller's `Vec` would lie in small pages.
    fn values(&self, seed: u64, shape: &[usize], scale: f32) -> TensorFuture {
        let x = self.device.from_vec(numbers(seed, shape.iter().product(), scale), shape.to_vec())
            + 0.0;
        self.runtime.block_on(x.wait_to_read()).expect("values");
        x
    }

    /// `make`'s value, awaited each time.
    fn each(&self, name: &str, make: impl Fn() -> TensorFuture + 'static) -> Job {
        let make = Rc::new(make);
        self.job(name, move |_, n| {
            let make = make.clone();
            async move {
                let mut last = None;
                let from = Instant::now();
                for _ in 0..n {
                    drop(last.take());
                    last = Some(make().await.expect("a value"));
                }
                let time = from.elapsed();
                Sample { time, shows: ends(&last.expect("once at least")).await }
            }
        })
    }

    fn large(&self, name: &str, op: impl Fn(&TensorFuture) -> TensorFuture + 'static) -> Job {
        let x = self.values(8, &[LARGE], 3.0);
        self.each(name, move || op(&x))
    }

    /// The ops in a region, which plans them once.
    fn planned(&self, op: impl Fn(&TensorFuture) -> TensorFuture + Send + Sync + 'static) -> Job {
        let x = self.values(8, &[LARGE], 3.0);
        let region = self.device.region(move |x: TensorFuture| op(&x));
        self.each("futensor region", move || region.call(x.clone()))
    }

    fn small(&self, case: Case) -> Job {
        let (x, y) = (self.device.ones([1, 2]), self.device.ones([1, 2]));
        self.runtime.block_on(self.device.waitall()).expect("ones");
        self.job("futensor", move |device, n| {
            let (x, y) = (x.clone(), y.clone());
            async move {
                let mut time = Duration::ZERO;
                let mut shows = Vec::new();
                for _ in 0..n {
                    let before = device.stats();
                    let mut held: Vec<TensorFuture> = Vec::with_capacity(OPS);
                    let from = Instant::now();
                    match case {
                        Case::Enqueue => {
                            held.extend((0..OPS).map(|i| &x + i as f32));
                            time += from.elapsed();
                        }
                        Case::Detached => {
                            held.extend((0..OPS).map(|i| {
                                let y = &x + i as f32;
                                y.detach();
                                y
                            }));
                            device.waitall().await.expect("no errors");
                            time += from.elapsed();
                        }
                        _ => {
                            let mut last = None;
                            if case == Case::AwaitedTwo {
                                for i in 0..OPS {
                                    last = Some((&x * &y + i as f32).await.expect("a value"));
                                }
                            } else {
                                for i in 0..OPS {
                                    last = Some((&x + i as f32).await.expect("a value"));
                                }
                            }
                            time += from.elapsed();
                            held.extend(last.map(TensorFuture::from));
                        }
                    }
                    device.waitall().await.expect("no errors");
                    ran(&device, &before, if case == Case::AwaitedTwo { 2 * OPS } else { OPS });
                    let last = OPS - held.len();
                    for (i, y) in held.iter().enumerate().step_by(97) {
                        let values = y.to_vec::<f32>().await.expect("a value");
                        assert_eq!(values, [1.0 + (last + i) as f32; 2]);
                    }
                    shows = ends(held.last().expect("the last")).await;
                }
                Sample { time, shows }
            }
        })
    }

    fn chains(&self, n: usize, together: bool) -> Job {
        let starts = [self.values(10, &[n, n], 1.0), self.values(11, &[n, n], 1.0)];
        // Turns each row by one place: values stay what they are.
        let turn: Vec<f32> = (0..n * n).map(|i| ((i / n + 1) % n == i % n) as u8 as f32).collect();
        let turn = self.device.from_vec(turn, [n, n]);
        self.runtime.block_on(turn.wait_to_read()).expect("values");
        self.job(if together { "futensor" } else { "futensor alone" }, move |device, times| {
            let (starts, turn) = (starts.clone(), turn.clone());
            async move {
                let mut time = Duration::ZERO;
                let mut shows = Vec::new();
                for _ in 0..times {
                    let before = device.stats();
                    let mut chains = starts.clone();
                    let from = Instant::now();
                    for chain in &mut chains {
                        (0..chain_length(n)).for_each(|_| *chain = chain.matmul(&turn));
                        if !together {
                            chain.wait_to_read().await.expect("a product");
                        }
                    }
                    for chain in &chains {
                        chain.wait_to_read().await.expect("a product");
                    }
                    time += from.elapsed();
                    device.waitall().await.expect("no errors");
                    ran(&device, &before, 2 * chain_length(n));
                    shows = ends(&chains[0]).await;
                    shows.extend(ends(&chains[1]).await);
                }
                Sample { time, shows }
            }
        })
    }

    /// The net and a batch; its parameters as they were at the start.
    fn mlp(&self) -> (nn::Sequential, TensorFuture, TensorFuture, [TensorFuture; 4]) {
        let [batch, inputs, hidden, classes] = MLP;
        let device = &self.device;
        let net = nn::Sequential::new()
            .then(nn::Linear::new(inputs, hidden, device))
            .then(nn::Relu)
            .then(nn::Linear::new(hidden, classes, device));
        let s = start();
        let weights = [
            device.from_vec(s.w1, [hidden, inputs]),
            device.from_vec(s.b1, [hidden]),
            device.from_vec(s.w2, [classes, hidden]),
            device.from_vec(s.b2, [classes]),
        ];
        net.parameters().iter().zip(&weights).for_each(|(p, w)| p.set(w));
        let (x, y) = (device.from_vec(s.x, [batch, inputs]), device.from_vec(s.y, [batch]));
        self.runtime.block_on(device.waitall()).expect("no errors");
        (net, x, y, weights)
    }

    fn forward(&self, planned: bool) -> Job {
        let (net, x, y, _) = self.mlp();
        let loss = move |x: &TensorFuture| {
            futensor::no_grad(|| net.forward(x).cross_entropy(&y, ())).reshape([1])
        };
        if !planned {
            return self.each("futensor", move || loss(&x));
        }
        let region = self.device.region(move |x: TensorFuture| loss(&x));
        self.each("futensor region", move || region.call(x.clone()))
    }

    /// Always the same steps, from the same start. The losses are read when the clock has stopped;
    /// nothing else waits than `ready`.
    fn train(&self, awaited: bool) -> Job {
        let net = Rc::new(self.mlp());
        self.job(if awaited { "futensor, loss read" } else { "futensor" }, move |device, n| {
            let net = net.clone();
            async move {
                let (net, x, y, weights) = &*net;
                net.parameters().iter().zip(weights).for_each(|(p, w)| p.set(w));
                let mut sgd = Sgd::new(net.parameters(), RATE);
                device.waitall().await.expect("no errors");
                let mut losses = Vec::new();
                let from = Instant::now();
                for _ in 0..n {
                    device.ready().await;
                    let loss = net.forward(x).cross_entropy(y, ());
                    sgd.minimize(&loss).detach();
                    if awaited {
                        loss.item::<f32>().await.expect("a loss");
                    }
                    losses.push(loss.stop_gradient());
                }
                device.waitall().await.expect("no errors");
                for p in net.parameters() {
                    p.value().await.expect("a weight");
                }
                let time = from.elapsed();
                let mut shows = Vec::new();
                for loss in losses.iter().take(2) {
                    shows.push(loss.item::<f32>().await.expect("a loss"));
                }
                Sample { time, shows }
            }
        })
    }

    pub fn jobs(&self, case: Case) -> Vec<Job> {
        let chain = |x: &TensorFuture| ((x * 2.0 + 1.0) * x - 0.5).relu();
        match case {
            Case::Enqueue | Case::Detached | Case::Awaited | Case::AwaitedTwo => {
                vec![self.small(case)]
            }
            Case::Chain => vec![self.large("futensor", chain), self.planned(chain)],
            Case::Exp => vec![self.large("futensor", |x| x.exp())],
            Case::Tanh => vec![self.large("futensor", |x| x.tanh())],
            Case::Gelu => vec![self.large("futensor", |x| x.gelu())],
            Case::Sum => vec![self.large("futensor", |x| x.sum_all().reshape([1]))],
            Case::Softmax => {
                let x = self.values(12, &[SOFTMAX, SOFTMAX], 3.0);
                vec![self.each("futensor", move || x.softmax(1))]
            }
            Case::Matmul(n) => {
                let (a, b) = (self.values(6, &[n, n], 1.0), self.values(7, &[n, n], 1.0));
                vec![self.each("futensor", move || a.matmul(&b))]
            }
            Case::Rows => {
                let [m, k, n] = ROWS;
                let (a, b) = (self.values(6, &[m, k], 1.0), self.values(7, &[k, n], 1.0));
                vec![self.each("futensor", move || a.matmul(&b))]
            }
            Case::Randn => {
                let device = self.device.clone();
                vec![self.each("futensor", move || device.randn([LARGE]))]
            }
            Case::Overlap(n) => vec![self.chains(n, true), self.chains(n, false)],
            Case::Mlp => vec![self.forward(false), self.forward(true)],
            Case::Train => vec![self.train(false), self.train(true)],
        }
    }
}
