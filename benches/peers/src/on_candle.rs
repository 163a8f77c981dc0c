//! candle's way to do the cases: it is synchronous, so a result is there when the call returns.

use crate::cases::{Case, LARGE, MLP, OPS, RATE, ROWS, SOFTMAX, chain_length, numbers, start};
use crate::measure::{Job, Sample, repeat};
use candle_core::{DType, Device, Result, Tensor, Var};
use candle_nn::{Linear, Module, Optimizer, SGD};
use std::time::{Duration, Instant};

/// With futensor in the program its `gemm` has AVX-512, see Cargo.toml.
const NAME: &str = if cfg!(feature = "futensor") { "candle avx512" } else { "candle" };

fn shows(y: &Tensor) -> Vec<f32> {
    let flat = y.flatten_all().expect("a view");
    let all = flat.elem_count();
    let n = all.min(4);
    let part = |from| flat.narrow(0, from, n).and_then(|t| t.to_vec1::<f32>()).expect("elements");
    [part(0), part(all - n)].concat()
}

fn values(seed: u64, shape: &[usize], scale: f32) -> Tensor {
    Tensor::from_vec(numbers(seed, shape.iter().product(), scale), shape, &Device::Cpu)
        .expect("values")
}

fn each(make: impl Fn() -> Result<Tensor> + 'static) -> Vec<Job> {
    vec![Job::new(NAME, move |n| {
        let (time, last) = repeat(n, || make().expect("a result"));
        Sample { time, shows: shows(&last) }
    })]
}

fn large(op: impl Fn(&Tensor) -> Result<Tensor> + 'static) -> Vec<Job> {
    let x = values(8, &[LARGE], 3.0);
    each(move || op(&x))
}

fn small(case: Case) -> Vec<Job> {
    let ones = || Tensor::ones((1, 2), DType::F32, &Device::Cpu).expect("ones");
    let (x, y) = (ones(), ones());
    vec![Job::new(NAME, move |n| {
        let mut time = Duration::ZERO;
        let mut last = None;
        for _ in 0..n {
            let from = Instant::now();
            if case == Case::AwaitedTwo {
                let two = |i| (&x * &y)? + i as f64;
                (0..OPS).for_each(|i| last = Some(two(i).expect("a sum")));
                time += from.elapsed();
            } else if case == Case::Awaited {
                (0..OPS).for_each(|i| last = Some((&x + i as f64).expect("a sum")));
                time += from.elapsed();
            } else {
                let mut held = Vec::with_capacity(OPS);
                held.extend((0..OPS).map(|i| (&x + i as f64).expect("a sum")));
                time += from.elapsed();
                last = held.pop();
            }
        }
        Sample { time, shows: shows(&last.expect("the last")) }
    })]
}

fn chain(mut y: Tensor, turn: &Tensor, n: usize) -> Tensor {
    (0..chain_length(n)).for_each(|_| y = y.matmul(turn).expect("a product"));
    y
}

/// A thread a chain, made for it, or one after the other.
fn chains(n: usize, together: bool) -> Job {
    let starts = [values(10, &[n, n], 1.0), values(11, &[n, n], 1.0)];
    let turn: Vec<f32> = (0..n * n).map(|i| ((i / n + 1) % n == i % n) as u8 as f32).collect();
    let turn = Tensor::from_vec(turn, (n, n), &Device::Cpu).expect("values");
    let name = if together { format!("{NAME}, two threads") } else { format!("{NAME} alone") };
    Job::new(name, move |times| {
        let (time, results) = repeat(times, || {
            let [a, b] = starts.clone();
            if together {
                std::thread::scope(|scope| {
                    let other = scope.spawn(|| chain(b, &turn, n));
                    [chain(a, &turn, n), other.join().expect("no panic")]
                })
            } else {
                [chain(a, &turn, n), chain(b, &turn, n)]
            }
        });
        Sample { time, shows: results.iter().flat_map(shows).collect() }
    })
}

struct Mlp {
    vars: Vec<Var>,
    layers: [Linear; 2],
    x: Tensor,
    y: Tensor,
}

impl Mlp {
    fn new() -> Result<Mlp> {
        let [batch, inputs, hidden, classes] = MLP;
        let s = start();
        let var = |data: Vec<f32>, shape: &[usize]| Var::from_vec(data, shape, &Device::Cpu);
        let vars = vec![
            var(s.w1, &[hidden, inputs])?,
            var(s.b1, &[hidden])?,
            var(s.w2, &[classes, hidden])?,
            var(s.b2, &[classes])?,
        ];
        let layer = |k: usize| {
            Linear::new(vars[k].as_tensor().clone(), Some(vars[k + 1].as_tensor().clone()))
        };
        let layers = [layer(0), layer(2)];
        let x = Tensor::from_vec(s.x, (batch, inputs), &Device::Cpu)?;
        Ok(Mlp { layers, vars, x, y: Tensor::from_vec(s.y, batch, &Device::Cpu)? })
    }

    fn loss(&self) -> Result<Tensor> {
        let hidden = self.layers[0].forward(&self.x)?.relu()?;
        candle_nn::loss::cross_entropy(&self.layers[1].forward(&hidden)?, &self.y)
    }
}

fn forward() -> Vec<Job> {
    // Weights without gradients: no tape is kept.
    let mut mlp = Mlp::new().expect("an MLP");
    let detached = |l: &Linear| Linear::new(l.weight().detach(), l.bias().map(|b| b.detach()));
    mlp.layers = [detached(&mlp.layers[0]), detached(&mlp.layers[1])];
    each(move || mlp.loss())
}

fn train() -> Vec<Job> {
    vec![Job::new(NAME, move |n| {
        let mlp = Mlp::new().expect("an MLP");
        let mut sgd = SGD::new(mlp.vars.clone(), RATE).expect("an optimizer");
        let mut losses = Vec::new();
        let from = Instant::now();
        for _ in 0..n {
            let loss = mlp.loss().expect("a loss");
            sgd.backward_step(&loss).expect("a step");
            losses.push(loss.detach());
        }
        let time = from.elapsed();
        let shows = losses.iter().take(2).map(|l| l.to_scalar::<f32>().expect("a loss")).collect();
        Sample { time, shows }
    })]
}

pub fn jobs(case: Case) -> Vec<Job> {
    match case {
        Case::Enqueue | Case::Detached | Case::Awaited | Case::AwaitedTwo => small(case),
        Case::Chain => large(|x| ((((x * 2.0)? + 1.0)? * x)? - 0.5)?.relu()),
        Case::Exp => large(|x| x.exp()),
        Case::Tanh => large(|x| x.tanh()),
        Case::Gelu => large(|x| x.gelu_erf()),
        Case::Sum => large(|x| x.sum_all()),
        Case::Softmax => {
            let x = values(12, &[SOFTMAX, SOFTMAX], 3.0);
            each(move || candle_nn::ops::softmax_last_dim(&x))
        }
        Case::Matmul(n) => {
            let (a, b) = (values(6, &[n, n], 1.0), values(7, &[n, n], 1.0));
            each(move || a.matmul(&b))
        }
        Case::Rows => {
            let [m, k, n] = ROWS;
            let (a, b) = (values(6, &[m, k], 1.0), values(7, &[k, n], 1.0));
            each(move || a.matmul(&b))
        }
        Case::Randn => each(|| Tensor::randn(0f32, 1.0, LARGE, &Device::Cpu)),
        Case::Overlap(n) => vec![chains(n, true), chains(n, false)],
        Case::Mlp => forward(),
        Case::Train => train(),
    }
}
