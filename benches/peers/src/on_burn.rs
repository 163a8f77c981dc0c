//! burn's way to do the cases, on its CPU backends: `flex`, and `ndarray`, which it is about to
//! retire. Both are synchronous; the device is asked to finish all the same.

use crate::cases::{Case, LARGE, MLP, OPS, RATE, ROWS, SOFTMAX, chain_length, numbers, start};
use crate::measure::{Job, Sample, repeat};
use burn_tensor::activation::{gelu, log_softmax, relu, softmax, tanh};
use burn_tensor::{Device, Distribution, Int, Tensor, TensorData};
use std::time::{Duration, Instant};

#[derive(Clone)]
struct On {
    name: &'static str,
    device: Device,
}

fn shows<const D: usize>(y: &Tensor<D>) -> Vec<f32> {
    let all = y.shape().num_elements();
    let flat: Tensor<1> = y.clone().reshape([all as i32]);
    let n = all.min(4);
    let part = |from: usize| {
        flat.clone().narrow(0, from, n).into_data().try_to_vec::<f32>().expect("elements")
    };
    [part(0), part(all - n)].concat()
}

impl On {
    fn values<const D: usize>(&self, seed: u64, shape: [usize; D], scale: f32) -> Tensor<D> {
        self.given(numbers(seed, shape.iter().product(), scale), shape)
    }

    fn given<const D: usize>(&self, data: Vec<f32>, shape: [usize; D]) -> Tensor<D> {
        Tensor::from_data(TensorData::new(data, shape), &self.device)
    }

    fn each<const D: usize>(&self, make: impl Fn() -> Tensor<D> + 'static) -> Vec<Job> {
        let device = self.device.clone();
        vec![Job::new(self.name, move |n| {
            let (time, last) = repeat(n, || {
                let y = make();
                device.sync().expect("no errors");
                y
            });
            Sample { time, shows: shows(&last) }
        })]
    }

    fn large<const D: usize>(&self, op: impl Fn(Tensor<1>) -> Tensor<D> + 'static) -> Vec<Job> {
        let x = self.values(8, [LARGE], 3.0);
        self.each(move || op(x.clone()))
    }

    fn small(&self, case: Case) -> Vec<Job> {
        let ones = || Tensor::<2>::ones([1, 2], &self.device);
        let (x, y) = (ones(), ones());
        let device = self.device.clone();
        vec![Job::new(self.name, move |n| {
            let mut time = Duration::ZERO;
            let mut last = None;
            for _ in 0..n {
                let from = Instant::now();
                if case == Case::AwaitedTwo {
                    (0..OPS).for_each(|i| last = Some(x.clone() * y.clone() + i as f32));
                    time += from.elapsed();
                } else if case == Case::Awaited {
                    (0..OPS).for_each(|i| last = Some(x.clone() + i as f32));
                    time += from.elapsed();
                } else {
                    let mut held = Vec::with_capacity(OPS);
                    held.extend((0..OPS).map(|i| x.clone() + i as f32));
                    device.sync().expect("no errors");
                    time += from.elapsed();
                    last = held.pop();
                }
            }
            Sample { time, shows: shows(&last.expect("the last")) }
        })]
    }

    /// A thread a chain, made for it, or one after the other.
    fn chains(&self, n: usize, together: bool) -> Job {
        let starts = [self.values(10, [n, n], 1.0), self.values(11, [n, n], 1.0)];
        let turn: Vec<f32> = (0..n * n).map(|i| ((i / n + 1) % n == i % n) as u8 as f32).collect();
        let turn = self.given(turn, [n, n]);
        let name = if together {
            format!(
                "{}, two \
                threads",
                self.name
            )
        } else {
            format!("{} alone", self.name)
        };
        let chain = move |mut y: Tensor<2>, turn: Tensor<2>| {
            (0..chain_length(n)).for_each(|_| y = y.clone().matmul(turn.clone()));
            y
        };
        Job::new(name, move |times| {
            let (time, results) = repeat(times, || {
                let ([a, b], turns) = (starts.clone(), [turn.clone(), turn.clone()]);
                let [for_a, for_b] = turns;
                if together {
                    std::thread::scope(|scope| {
                        let other = scope.spawn(move || chain(b, for_b));
                        [chain(a, for_a), other.join().expect("no panic")]
                    })
                } else {
                    [chain(a, for_a), chain(b, for_b)]
                }
            });
            Sample { time, shows: results.iter().flat_map(shows).collect() }
        })
    }

    fn mlp(&self) -> Mlp {
        let [batch, inputs, hidden, classes] = MLP;
        let s = start();
        Mlp {
            x: self.given(s.x, [batch, inputs]),
            y: Tensor::from_data(TensorData::new(s.y, [batch]), &self.device),
            // Its layers keep weights as inputs by outputs.
            w1: self.given(turned(&s.w1, hidden, inputs), [inputs, hidden]),
            b1: self.given(s.b1, [1, hidden]),
            w2: self.given(turned(&s.w2, classes, hidden), [hidden, classes]),
            b2: self.given(s.b2, [1, classes]),
        }
    }

    fn train(&self) -> Vec<Job> {
        let On { name, device } = self.clone();
        let inner = self.clone();
        vec![Job::new(name, move |n| {
            let on = On { name, device: device.clone().autodiff() };
            let mut mlp = on.mlp();
            let fixed = inner.mlp();
            mlp.y = Tensor::from_data(fixed.y.into_data(), &on.device);
            mlp.x = mlp.x.clone().inner().autodiff();
            mlp.each(|w| w.inner().autodiff().require_grad());
            let mut losses = Vec::new();
            let from = Instant::now();
            for _ in 0..n {
                let loss = mlp.loss();
                let mut gradients = loss.backward();
                mlp.each(|w| {
                    let gradient = w.grad_remove(&mut gradients).expect("a gradient");
                    (w.inner() - gradient * RATE).autodiff().require_grad()
                });
                losses.push(loss.inner());
            }
            device.sync().expect("no errors");
            let time = from.elapsed();
            Sample { time, shows: losses.iter().take(2).map(|l| shows(l)[0]).collect() }
        })]
    }

    fn jobs(&self, case: Case) -> Vec<Job> {
        match case {
            Case::Enqueue | Case::Detached | Case::Awaited | Case::AwaitedTwo => self.small(case),
            Case::Chain => self.large(|x| relu((x.clone() * 2.0 + 1.0) * x - 0.5)),
            Case::Exp => self.large(|x| x.exp()),
            Case::Tanh => self.large(tanh),
            Case::Gelu => self.large(gelu),
            Case::Sum => self.large(|x| x.sum()),
            Case::Softmax => {
                let x = self.values(12, [SOFTMAX, SOFTMAX], 3.0);
                self.each(move || softmax(x.clone(), 1))
            }
            Case::Matmul(n) => {
                let (a, b) = (self.values(6, [n, n], 1.0), self.values(7, [n, n], 1.0));
                self.each(move || a.clone().matmul(b.clone()))
            }
            Case::Rows => {
                let [m, k, n] = ROWS;
                let (a, b) = (self.values(6, [m, k], 1.0), self.values(7, [k, n], 1.0));
                self.each(move || a.clone().matmul(b.clone()))
            }
            Case::Randn => {
                let device = self.device.clone();
                self.each(move || {
                    Tensor::<1>::random([LARGE], Distribution::Normal(0.0, 1.0), &device)
                })
            }
            Case::Overlap(n) => vec![self.chains(n, true), self.chains(n, false)],
            Case::Mlp => {
                let mlp = self.mlp();
                self.each(move || mlp.loss())
            }
            Case::Train => self.train(),
        }
    }
}

fn turned(data: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    (0..rows * columns).map(|i| data[i % rows * columns + i / rows]).collect()
}

struct Mlp {
    x: Tensor<2>,
    y: Tensor<1, Int>,
    w1: Tensor<2>,
    b1: Tensor<2>,
    w2: Tensor<2>,
    b2: Tensor<2>,
}

impl Mlp {
    /// Mean of the cross entropy, as its `CrossEntropyLoss` writes it.
    fn loss(&self) -> Tensor<1> {
        let hidden = relu(self.x.clone().matmul(self.w1.clone()) + self.b1.clone());
        let logits = hidden.matmul(self.w2.clone()) + self.b2.clone();
        let index = self.y.clone().reshape([MLP[0] as i32, 1]);
        log_softmax(logits, 1).gather(1, index).mean().neg()
    }

    /// Puts each weight's successor in its place.
    fn each(&mut self, mut next: impl FnMut(Tensor<2>) -> Tensor<2>) {
        for w in [&mut self.w1, &mut self.b1, &mut self.w2, &mut self.b2] {
            *w = next(w.clone());
        }
    }
}

pub fn jobs(case: Case) -> Vec<Job> {
    let flex = if cfg!(feature = "futensor") { "burn flex avx512" } else { "burn flex" };
    #[allow(unused_mut)]
    let mut jobs = On { name: flex, device: Device::flex() }.jobs(case);
    #[cfg(feature = "burn-ndarray")]
    {
        #[allow(deprecated)]
        let device = Device::ndarray();
        jobs.extend(On { name: "burn ndarray", device }.jobs(case));
    }
    jobs
}
