//! Derivatives of products, of the first three orders, wherever zeros are: a product is linear in
//! each factor, so every derivative is the product of the factors that are left.

use super::{block_on, device};
use futensor::{DType, GradOptions, ScatterMode, TensorFuture, grad_with};

const ROWS: &[&[f64]] = &[
    &[0.0, 2.0, 3.0],
    &[2.0, 0.0, 3.0],
    &[0.0, 0.0],
    &[0.0, 0.0, 5.0, 2.0],
    &[0.0, 0.0, 0.0, 2.0],
    &[4.0, 0.0, -3.0, 0.0, 0.5],
    &[1.5, -2.0, 3.0, 0.25],
    &[0.0],
    &[7.0],
];

/// The product of `x[..end]` without the factors at `gone`; 0 where one of these is not in it or
/// comes twice.
fn left(x: &[f64], end: usize, gone: &[usize]) -> f64 {
    let once = gone.iter().enumerate().all(|(k, i)| *i < end && !gone[..k].contains(i));
    if once { (0..end).filter(|i| !gone.contains(i)).map(|i| x[i]).product() } else { 0.0 }
}

/// The number whose derivatives are looked at, and its derivative by some elements.
type Case = (&'static str, fn(&TensorFuture) -> TensorFuture, fn(&[f64], &[usize]) -> f64);

fn weighed(x: &TensorFuture) -> TensorFuture {
    let weights: Vec<f64> = (0..x.numel()).map(|i| 1.0 + i as f64 / 4.0).collect();
    (x * x.device().from_vec(weights, x.dims())).sum_all()
}

/// The first element is the value, the others are what comes; every second goes to another place.
fn scattered(x: &TensorFuture) -> TensorFuture {
    let n = x.numel() - 1;
    let index: Vec<i64> = (0..n as i64).map(|i| if i % 2 == 0 { 0 } else { 2 }).collect();
    let index = x.device().from_vec(index, [n]);
    let value = futensor::cat(&[x.narrow(0, 0, 1), x.device().full_dtype([2], 3.0, DType::F64)], 0);
    weighed(&value.scatter_reduce(0, index, x.narrow(0, 1, n), ScatterMode::Prod))
}

fn of_scattered(x: &[f64], gone: &[usize]) -> f64 {
    let places = [0, 2].map(|place| -> Vec<usize> {
        let goes = |i: &usize| if *i == 0 { place == 0 } else { (place == 0) == (i % 2 == 1) };
        (0..x.len()).filter(goes).collect()
    });
    let part = |of: &[usize], weight: f64| {
        let inside: Option<Vec<usize>> =
            gone.iter().map(|i| of.iter().position(|j| j == i)).collect();
        let factors: Vec<f64> = of.iter().map(|&i| x[i]).collect();
        inside.map_or(0.0, |gone| weight * left(&factors, factors.len(), &gone))
    };
    part(&places[0], 1.0) + part(&places[1], 3.0 * 1.5)
}

fn running(x: &[f64], gone: &[usize]) -> f64 {
    (1..=x.len()).map(|end| (1.0 + (end - 1) as f64 / 4.0) * left(x, end, gone)).sum()
}

const CASES: &[Case] = &[
    ("prod_all", |x| x.prod_all(), |x, gone| left(x, x.len(), gone)),
    (
        "prod",
        |x| futensor::stack(&[x, &(x * 2.0)], 1).i((.., 0)).prod(0),
        |x, gone| left(x, x.len(), gone),
    ),
    (
        "prod of two dimensions",
        |x| x.reshape([1, -1, 1]).prod([0, 1]).sum_all(),
        |x, gone| left(x, x.len(), gone),
    ),
    ("cumprod", |x| weighed(&x.cumprod(0)), running),
    ("scatter_reduce", scattered, of_scattered),
];

#[test]
fn products_have_all_their_derivatives_wherever_zeros_are() {
    let device = device();
    let mut queued = Vec::new();
    for (name, f, derivative) in CASES {
        for row in ROWS {
            let x = device.from_vec(row.to_vec(), [row.len()]).requires_grad();
            let by = |y: &TensorFuture| {
                grad_with(y, &[&x], GradOptions::default().graph(true).zeros(true)).remove(0)
            };
            let n = row.len();
            let first = by(&f(&x));
            let plain = grad_with(f(&x), &[&x], GradOptions::default().zeros(true)).remove(0);
            queued.push((name, row, vec![], plain, derivative));
            for i in 0..n {
                let second = by(&first.i(i));
                for j in 0..n {
                    queued.push((name, row, vec![i, j], by(&second.i(j)), derivative));
                }
                queued.push((name, row, vec![i], second, derivative));
            }
            queued.push((name, row, vec![], first, derivative));
        }
    }
    for (name, row, before, got, derivative) in queued {
        let got = block_on(got.to_vec::<f64>()).unwrap();
        let want: Vec<f64> =
            (0..row.len()).map(|k| derivative(row, &[&before[..], &[k]].concat())).collect();
        assert_eq!(got, want, "{name} of {row:?}, by {before:?} and each");
    }
}

#[test]
fn a_third_gradient_through_a_long_product_is_that_of_its_parts() {
    // So long that sums of terms are halved several times.
    let device = device();
    let data: Vec<f64> =
        (0..37).map(|i| if i % 11 == 5 { 0.0 } else { 1.0 + (i % 5) as f64 / 8.0 }).collect();
    let x = device.from_vec(data.clone(), [37]).requires_grad();
    let options = || GradOptions::default().graph(true);
    let first = grad_with(weighed(&x.cumprod(0)), &[&x], options()).remove(0);
    let second = grad_with(first.i(2), &[&x], options()).remove(0);
    let third =
        block_on(grad_with(second.i(16), &[&x], options()).remove(0).to_vec::<f64>()).unwrap();
    for (k, got) in third.iter().enumerate() {
        let want = running(&data, &[2, 16, k]);
        assert!((got - want).abs() <= 1e-12 * want.abs(), "by 2, 16 and {k}: {got}, not {want}");
    }
}
