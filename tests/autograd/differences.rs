//! Gradients, and gradients of gradients, against central differences.

use super::cases::{Case, Kind, Kind::*, ONE, SPREAD, TWO, cases};
use super::{block_on, read, seed};
use futensor::rows::{self, Domain, OperandRef, Row};
use futensor::{DType, Device, Generator, GradOptions, PoolOptions, TensorFuture, grad, grad_with};
use std::rc::Rc;

/// A case with a function of any kind.
struct Trial {
    name: &'static str,
    shapes: &'static [&'static [usize]],
    kind: Kind,
    call: Box<dyn Fn(&[TensorFuture]) -> TensorFuture>,
    is_smooth: bool,
}

/// Every row of the op tables that has a gradient, and the other cases.
fn trials() -> Vec<Trial> {
    let own = |Case(name, shapes, kind, call, is_smooth)| Trial {
        name,
        shapes,
        kind,
        call: Box::new(call),
        is_smooth,
    };
    let rows = rows::all().into_iter().filter(|row| row.has_gradient).flat_map(trials_of);
    rows.chain(cases().into_iter().map(own)).collect()
}

fn trials_of(row: Row) -> Vec<Trial> {
    let (name, is_reduction, row) = (row.name, row.is_reduction(), Rc::new(row));
    let kind = match row.domain {
        Domain::all | Domain::unit | Domain::above_one => Any,
        Domain::positive => Positive,
        Domain::off_zero | Domain::large_divisor => Off,
        Domain::apart => Apart,
    };
    let shapes = match (is_reduction, row.operands()) {
        (true, _) => vec![ONE, &[&[2, 3, 2]]],
        (false, 1) => vec![ONE],
        (false, _) => vec![TWO, SPREAD],
    };
    let trial = |shapes| {
        let row = row.clone();
        let is_smooth = row.domain != Domain::large_divisor;
        let call = move |x: &[TensorFuture]| {
            let mut x = x.to_vec();
            match row.domain {
                Domain::unit => x[0] = &x[0] * 0.7,
                Domain::above_one => x[0] = x[0].square() + 1.3,
                Domain::large_divisor => x[1] = &x[1] * 10.0,
                Domain::all | Domain::positive | Domain::off_zero | Domain::apart => {}
            }
            let operands: Vec<OperandRef<'_>> = x.iter().map(OperandRef::Tensor).collect();
            let over = [&[1][..], &[0, 2]][(x[0].rank() == 3) as usize];
            let reduced = row.reduce(&x[0], Some(over), false);
            reduced.or_else(|| row.call(&operands)).expect("the row takes its operands")
        };
        Trial { name, shapes, kind, call: Box::new(call), is_smooth }
    };
    shapes.into_iter().map(trial).collect()
}
/// Operands for a case, as host data.
fn operands(case: &Trial, generator: &Generator, device: &Device) -> Vec<Vec<f64>> {
    let drawn = |shape: &&[usize]| {
        let n = shape.iter().product::<usize>();
        let x = read(&generator.rand_dtype(device, [n], DType::F64));
        let unit: Vec<f64> = x.iter().map(|x| x * 2.4 - 1.2).collect();
        match case.kind {
            Any => unit,
            Positive => unit.iter().map(|x| x.abs() + 0.4).collect(),
            Off => unit.iter().map(|x| x + 0.3 * x.signum()).collect(),
            Apart => {
                // A random order of numbers a quarter apart.
                let mut order: Vec<usize> = (0..n).collect();
                order.sort_by(|&a, &b| x[a].total_cmp(&x[b]));
                let mut out = vec![0.0; n];
                for (place, i) in order.into_iter().enumerate() {
                    out[i] = place as f64 * 0.25 - n as f64 * 0.125 + 0.08;
                }
                out
            }
        }
    };
    let mut all: Vec<Vec<f64>> = case.shapes.iter().map(drawn).collect();
    if case.kind == Apart && all.len() > 1 {
        all[1].iter_mut().for_each(|x| *x += 0.11);
    }
    all
}

fn upload(device: &Device, case: &Trial, data: &[Vec<f64>]) -> Vec<TensorFuture> {
    case.shapes
        .iter()
        .zip(data)
        .map(|(shape, data)| device.from_vec(data.clone(), *shape))
        .collect()
}

/// Numbers that are not all alike, so that a gradient in the wrong place shows.
fn weights(like: &TensorFuture) -> TensorFuture {
    let n = like.numel();
    let of = |i: usize| 0.5 + ((i * 7 + 3) % 11) as f64 / 7.0;
    like.device().from_vec((0..n).map(of).collect::<Vec<f64>>(), like.dims())
}

/// The derivatives of `f` by central differences.
fn differences(data: &[Vec<f64>], mut f: impl FnMut(&[Vec<f64>]) -> TensorFuture) -> Vec<Vec<f64>> {
    const H: f64 = 1e-5;
    let mut pairs = Vec::new();
    let mut data = data.to_vec();
    for k in 0..data.len() {
        for i in 0..data[k].len() {
            let x = data[k][i];
            data[k][i] = x + H;
            let up = f(&data);
            data[k][i] = x - H;
            let down = f(&data);
            data[k][i] = x;
            pairs.push((k, (up - down) / (2.0 * H)));
        }
    }
    let mut out = vec![Vec::new(); data.len()];
    for (k, slope) in pairs {
        out[k].push(block_on(slope.item::<f64>()).unwrap());
    }
    out
}

#[track_caller]
fn agree(name: &str, got: &[TensorFuture], want: &[Vec<f64>], slack: f64) {
    for (k, (got, want)) in got.iter().zip(want).enumerate() {
        if let Some(error) = got.error() {
            panic!("{name}, operand {k}: {error}");
        }
        let got = read(got);
        assert_eq!(got.len(), want.len(), "{name}, operand {k}");
        for (g, w) in got.iter().zip(want) {
            let apart = (g - w).abs() / w.abs().max(1.0);
            assert!(apart < slack, "{name}, operand {k}:\n  got      {got:?}\n  expected {want:?}");
        }
    }
}

#[test]
fn every_gradient_agrees_with_central_differences() {
    let device = Device::cpu();
    let generator = Generator::new(seed());
    for case in trials() {
        let data = operands(&case, &generator, &device);
        let loss = |x: &[TensorFuture]| {
            let y = (case.call)(x);
            (&y * weights(&y)).sum_all()
        };
        let want = differences(&data, |data| loss(&upload(&device, &case, data)));
        let x: Vec<TensorFuture> =
            upload(&device, &case, &data).iter().map(|x| x.requires_grad()).collect();
        let got = grad(loss(&x), &x);
        agree(case.name, &got, &want, 1e-6);
    }
}

#[test]
fn every_second_derivative_agrees_with_differences_of_the_first() {
    let device = Device::cpu();
    let generator = Generator::new(seed() ^ 2);
    for case in trials().iter().filter(|case| case.is_smooth) {
        let data = operands(case, &generator, &device);
        // The gradients, each weighed by other numbers: a function whose gradient is a second
        // derivative.
        let first = |x: &[TensorFuture], graph: bool| {
            let y = (case.call)(x);
            let loss = (y.square() * weights(&y)).sum_all();
            let gradients = grad_with(&loss, x, GradOptions::default().graph(graph));
            let sums = gradients.iter().map(|g| (g * weights(g).sqrt()).sum_all());
            sums.reduce(|a, b| a + b).unwrap()
        };
        let leaves = |data: &[Vec<f64>]| -> Vec<TensorFuture> {
            upload(&device, case, data).iter().map(|x| x.requires_grad()).collect()
        };
        let want = differences(&data, |data| first(&leaves(data), false));
        let x = leaves(&data);
        let got = grad_with(first(&x, true), &x, GradOptions::default().zeros(true));
        agree(case.name, &got, &want, 2e-5);
    }
}

#[test]
fn a_window_that_meets_nothing_is_refused() {
    let x = Device::cpu().ones([1, 1, 2, 2]);
    let y = x.max_pool2d(PoolOptions::new(2).stride(1).padding(1).dilation(3));
    assert!(y.error().unwrap().is_shape());
}
