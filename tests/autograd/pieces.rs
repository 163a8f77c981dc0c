//! Gradients of a value that is taken apart: right, and written once.

use crate::{block_on, device, read, seed};
use futensor::{DType, GradOptions, Index, TensorFuture, grad, grad_with};

/// xorshift, so that a seed is a run.
struct Lot(u64);

impl Lot {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

const SHAPE: [usize; 3] = [5, 4, 6];

/// A piece as its positions in each dimension, in order.
fn piece(lot: &mut Lot) -> (Vec<Index>, [Vec<usize>; 3]) {
    let mut indices = Vec::new();
    let places = SHAPE.map(|n| {
        let (from, to) = (lot.below(n + 1), lot.below(n + 1));
        let (from, to) = (from.min(to), from.max(to));
        match lot.below(6) {
            0 => {
                let at = lot.below(n);
                indices.push(Index::At(at as isize));
                vec![at]
            }
            1 => {
                indices.push(Index::ALL);
                (0..n).collect()
            }
            2 => {
                indices.push(Index::ALL.step(-1));
                (0..n).rev().collect()
            }
            3 => {
                indices.push(Index::ALL.step(2));
                (0..n).step_by(2).collect()
            }
            _ => {
                indices.push(Index::from(from as isize..to as isize));
                (from..to).collect()
            }
        }
    });
    // The dimensions that are not named are whole.
    let named = 1 + lot.below(3);
    indices.truncate(named);
    let places: Vec<Vec<usize>> = places
        .into_iter()
        .enumerate()
        .map(|(d, at)| if d < named { at } else { (0..SHAPE[d]).collect() })
        .collect();
    (indices, places.try_into().unwrap())
}

/// The gradient of the sum of `weight * piece^2`: `2 weight x` wherever the piece is.
#[test]
fn pieces_have_the_gradients_of_the_whole() {
    let mut lot = Lot(seed());
    let device = device();
    for round in 0..60 {
        let dtype = [DType::F32, DType::F64, DType::F16, DType::BF16][round % 4];
        let count: usize = SHAPE.iter().product();
        let x: Vec<f32> = (0..count).map(|_| lot.below(5) as f32 - 2.0).collect();
        let value = device.from_slice(&x, SHAPE).to_dtype(dtype).requires_grad();
        let mut want = vec![0.0; count];
        let mut loss = device.zeros_dtype((), dtype);
        for _ in 0..1 + lot.below(6) {
            let (indices, places) = piece(&mut lot);
            let weight = 1.0 + lot.below(3) as f64;
            let own = value.i(indices).square() * weight;
            // Twice the same piece, now and then.
            let times = 1 + lot.below(2);
            for _ in 0..times {
                loss = loss + own.sum_all();
            }
            for &i in &places[0] {
                for &j in &places[1] {
                    for &k in &places[2] {
                        let at = (i * SHAPE[1] + j) * SHAPE[2] + k;
                        want[at] += 2.0 * weight * times as f64;
                    }
                }
            }
        }
        let first = grad_with(&loss, &[&value], GradOptions::default().graph(true).zeros(true));
        let slopes: Vec<f64> = x.iter().zip(&want).map(|(&x, w)| x as f64 * w).collect();
        assert_eq!(read(&first[0]), slopes, "round {round}, {dtype}");
        let second = grad_with(first[0].sum_all(), &[&value], GradOptions::default().zeros(true));
        assert_eq!(read(&second[0]), want, "round {round}, {dtype}");
    }
}

/// Names of the ops that a device ran for a gradient.
fn ops_of(loss: impl FnOnce(&TensorFuture) -> TensorFuture, shape: [usize; 2]) -> Vec<String> {
    let device = device();
    let x = device.randn(shape).requires_grad();
    let loss = loss(&x);
    block_on(&loss).unwrap();
    let recorder = device.record();
    let gradient = grad(&loss, &[&x]);
    block_on(&gradient[0]).unwrap();
    let steps = recorder.finish().steps;
    steps.iter().flat_map(|step| &step.ops).map(|op| op.name.clone()).collect()
}

fn count(ops: &[String], name: &str) -> usize {
    ops.iter().filter(|op| *op == name).count()
}

#[test]
fn a_value_taken_apart_has_its_gradient_written_once() {
    let rows = |x: &TensorFuture| {
        let terms: Vec<_> = (0..64).map(|t| x.i(t).square().sum_all()).collect();
        terms.into_iter().reduce(|a, b| a + b).unwrap()
    };
    let parts = |x: &TensorFuture| {
        x.chunk(3, 1).into_iter().map(|part| part.square().sum_all()).reduce(|a, b| a + b).unwrap()
    };
    for (ops, shape) in [(ops_of(rows, [64, 8]), "rows"), (ops_of(parts, [8, 12]), "chunks")] {
        assert_eq!(count(&ops, "cat"), 1, "{shape}: {ops:?}");
        assert_eq!(count(&ops, "slice_assign"), 0, "{shape}: {ops:?}");
    }
    // Windows that overlap by one half: two layers.
    let windows = |x: &TensorFuture| {
        let terms: Vec<_> = (0..15).map(|t| x.narrow(0, t, 2).square().sum_all()).collect();
        terms.into_iter().reduce(|a, b| a + b).unwrap()
    };
    let ops = ops_of(windows, [16, 4]);
    assert_eq!((count(&ops, "cat"), count(&ops, "slice_assign")), (2, 0), "{ops:?}");
}

/// Each piece's gradient may fail by itself; the value's then does, with that root.
#[test]
fn a_piece_that_fails_fails_the_gradient_of_the_whole() {
    let device = device();
    let x = device.ones([4, 2]).requires_grad();
    let wrong = x.i(1).add(device.ones([3]));
    let loss = x.i(0).sum_all() + wrong.sum_all();
    let error = grad(&loss, &[&x])[0].error().expect("a failed gradient");
    assert!(error.is_shape() && error.op() == "add", "{error}");
}
