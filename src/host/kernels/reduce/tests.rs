//! Reductions against a walk over indices in the plainest arithmetic.

use super::super::testing::*;
use super::fold::BLOCK;
use super::*;
use crate::dtype::Element;
use crate::view::{Serial, View};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Splits a multi-index into the kept part and the rest.
fn split(index: &[usize], dims: &[bool]) -> Vec<usize> {
    index.iter().zip(dims).filter(|(_, d)| !**d).map(|(&i, _)| i).collect()
}

fn kept_shape(shape: &[usize], dims: &[bool]) -> Vec<usize> {
    split(shape, dims)
}

/// The elements of every result, in order.
fn groups<T: Element>(x: &Value<T>, dims: &[bool]) -> Vec<Vec<T>> {
    let kept = kept_shape(&x.shape, dims);
    let strides = crate::shape::contiguous_strides(&kept);
    let mut out = vec![vec![]; kept.iter().product()];
    for index in indices(&x.shape) {
        let at: isize =
            split(&index, dims).iter().zip(&strides).map(|(&i, &s)| i as isize * s).sum();
        out[at as usize].push(x.get(&index));
    }
    out
}

/// Runs on a view and on a fused source that reads the same elements; both must be bitwise equal,
/// with any number of threads, and the fused one reads each element once (to find a position, a
/// block of them twice: by whoever read it first). Gives the result.
fn run<T: Element, O: Element>(rng: &mut Rng, op: ReduceOp, x: &Value<T>, dims: &[bool]) -> Vec<O> {
    let kept = kept_shape(&x.shape, dims);
    let bits = |v: &[O]| v.iter().map(|o| o.to_f64().to_bits()).collect::<Vec<_>>();
    let plain = filled::<O>(&kept, |out| reduce(op, Source::View(x.view()), dims, out, &Serial));
    let par = Threads { threads: 2 + rng.below(4), seed: rng.word() };
    let threaded = filled::<O>(&kept, |out| reduce(op, Source::View(x.view()), dims, out, &par));
    assert_eq!(bits(&plain), bits(&threaded), "{op:?} {:?} {:?} {dims:?}", x.shape, x.strides);
    let all = x.to_vec();
    let seen: Vec<AtomicUsize> = all.iter().map(|_| AtomicUsize::new(0)).collect();
    let read = |range: Range<usize>, to: *mut u8| {
        seen[range.clone()].iter().for_each(|n| _ = n.fetch_add(1, Relaxed));
        let part = &all[range];
        // SAFETY: the reader's contract: there is room for the range.
        unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), to.cast(), part.len()) };
    };
    let source = Source::Fused { dtype: T::DTYPE, shape: &x.shape, read: &read };
    let fused = filled::<O>(&kept, |out| reduce(op, source, dims, out, &par));
    assert_eq!(bits(&plain), bits(&fused), "fused {op:?} {:?} {:?} {dims:?}", x.shape, x.strides);
    let most = if matches!(op, ReduceOp::ArgMax | ReduceOp::ArgMin) { 2 } else { 1 };
    assert!(
        seen.iter().all(|n| (1..=most).contains(&n.load(Relaxed))),
        "{op:?} {:?} {dims:?}",
        x.shape
    );
    plain
}

fn close(got: f64, expected: f64, scale: f64, eps: f64) -> bool {
    got == expected
        || (got.is_nan() && expected.is_nan())
        || (got - expected).abs() <= eps * scale.max(1e-30)
}

fn check_float<T: Element>(rng: &mut Rng, x: &Value<T>, dims: &[bool], eps: f64) {
    let groups = groups(x, dims);
    let sum = run::<T, T>(rng, ReduceOp::Sum, x, dims);
    let mean = run::<T, T>(rng, ReduceOp::Mean, x, dims);
    let prod = run::<T, T>(rng, ReduceOp::Prod, x, dims);
    for (i, g) in groups.iter().enumerate() {
        let all = g.iter().map(|v| v.to_f64());
        let (total, size): (f64, f64) = (all.clone().sum(), all.clone().map(f64::abs).sum());
        assert!(close(sum[i].to_f64(), total, size, eps), "sum {} {total}", sum[i].to_f64());
        let n = g.len() as f64;
        assert!(
            close(mean[i].to_f64(), total / n, size / n, eps),
            "mean {} {}",
            mean[i].to_f64(),
            total / n
        );
        let product: f64 = all.product();
        if product.abs() > 1e-4 && product.abs() < 1e4 {
            assert!(close(prod[i].to_f64(), product, product.abs() * (n + 2.0), eps), "prod");
        }
    }
}

fn check_squares<T: Element, O: Element>(rng: &mut Rng, x: &Value<T>, dims: &[bool]) {
    let par = Threads { threads: 1 + rng.below(4), seed: rng.word() };
    let squares = filled::<O>(&kept_shape(&x.shape, dims), |out| {
        reduce(ReduceOp::Sum, Source::Squares(x.view()), dims, out, &par);
    });
    for (got, g) in squares.iter().zip(groups(x, dims)) {
        let want: f64 = g.iter().map(|v| v.to_f64() * v.to_f64()).sum();
        assert!(close(got.to_f64(), want, want, 1e-5), "squares {} {want}", got.to_f64());
    }
}

fn check_exact<T: Element>(rng: &mut Rng, x: &Value<T>, dims: &[bool]) {
    let groups = groups(x, dims);
    let (any, all) =
        (run::<T, bool>(rng, ReduceOp::Any, x, dims), run::<T, bool>(rng, ReduceOp::All, x, dims));
    for (i, g) in groups.iter().enumerate() {
        assert_eq!(any[i], g.iter().any(|v| v.to_f64() != 0.0));
        assert_eq!(all[i], g.iter().all(|v| v.to_f64() != 0.0));
    }
    if !T::DTYPE.is_float() {
        let (sum, prod) = (
            run::<T, i64>(rng, ReduceOp::Sum, x, dims),
            run::<T, i64>(rng, ReduceOp::Prod, x, dims),
        );
        for (i, g) in groups.iter().enumerate() {
            assert_eq!(sum[i], g.iter().map(|v| v.to_i64()).fold(0, i64::wrapping_add));
            assert_eq!(prod[i], g.iter().map(|v| v.to_i64()).fold(1, i64::wrapping_mul));
        }
    }
    if groups.iter().any(|g| g.is_empty()) {
        return;
    }
    let (max, min) =
        (run::<T, T>(rng, ReduceOp::Max, x, dims), run::<T, T>(rng, ReduceOp::Min, x, dims));
    let (argmax, argmin) = (
        run::<T, i64>(rng, ReduceOp::ArgMax, x, dims),
        run::<T, i64>(rng, ReduceOp::ArgMin, x, dims),
    );
    for (i, g) in groups.iter().enumerate() {
        let v: Vec<f64> = g.iter().map(|v| v.to_f64()).collect();
        let nan = v.iter().position(|v| v.is_nan());
        let first = |better: fn(f64, f64) -> bool| {
            nan.unwrap_or_else(|| {
                (1..v.len()).fold(0, |b, i| if better(v[i], v[b]) { i } else { b })
            })
        };
        let (most, least) = (first(|a, b| a > b), first(|a, b| a < b));
        assert_eq!((argmax[i], argmin[i]), (most as i64, least as i64), "{v:?}");
        assert!(
            close(max[i].to_f64(), v[most], 0.0, 0.0) && close(min[i].to_f64(), v[least], 0.0, 0.0)
        );
    }
}

fn random_case<T: Element>(
    rng: &mut Rng,
    draw: impl FnMut(&mut Rng) -> T,
) -> (Value<T>, Vec<bool>) {
    let rank = rng.below(5);
    let most = [1, 3000, 60, 13, 6][rank];
    let mut shape = random_shape(rng, rank, most);
    if rank == 2 && rng.below(3) == 0 {
        shape[rng.below(2)] = 1 + rng.below(1200);
    }
    let dims = (0..rank).map(|_| rng.below(2) == 0).collect();
    (Value::random(rng, &shape, draw), dims)
}

/// Runs of elements side by side that are longer than a block and end within one.
fn long_runs<T: Element>(rng: &mut Rng, eps: f64) {
    let shape = [2 + rng.below(4), 1 + rng.below(3), 2 * BLOCK + rng.below(3 * BLOCK)];
    let n = shape.iter().product::<usize>();
    let data = (0..n).map(|_| T::from_f64(0.5 + rng.unit())).collect();
    check_float(rng, &Value::<T>::new(&shape, data), &[true, false, true], eps);
}

#[test]
fn blocks_that_lie_in_two_places_agree_with_a_plain_loop() {
    let mut rng = Rng::new(22);
    for _ in 0..20 {
        long_runs::<f32>(&mut rng, 1e-6);
        long_runs::<f64>(&mut rng, 1e-14);
        long_runs::<bf16>(&mut rng, 1e-2);
    }
}

#[test]
fn every_reduction_of_any_layout_agrees_with_a_plain_loop() {
    let mut rng = Rng::new(21);
    for _ in 0..60 {
        let (x, dims) = random_case::<f32>(&mut rng, small);
        check_squares::<f32, f32>(&mut rng, &x, &dims);
        check_float(&mut rng, &x, &dims, 1e-6);
        check_exact(&mut rng, &x, &dims);
        let (x, dims) = random_case::<f64>(&mut rng, |r| (r.below(9) as f64) - 4.0);
        check_float(&mut rng, &x, &dims, 1e-14);
        check_exact(&mut rng, &x, &dims);
        let (x, dims) = random_case::<i32>(&mut rng, small);
        check_exact(&mut rng, &x, &dims);
        let (x, dims) = random_case::<i64>(&mut rng, |r| r.word() as i64);
        check_exact(&mut rng, &x, &dims);
        let (x, dims) = random_case::<u8>(&mut rng, small);
        check_exact(&mut rng, &x, &dims);
        let (x, dims) = random_case::<bool>(&mut rng, small);
        check_exact(&mut rng, &x, &dims);
    }
}

#[test]
fn halves_are_accumulated_in_single_precision() {
    let mut rng = Rng::new(22);
    for _ in 0..40 {
        let (x, dims) = random_case::<f16>(&mut rng, small);
        check_squares::<f16, f32>(&mut rng, &x, &dims);
        check_float(&mut rng, &x, &dims, 1.1 / 2048.0);
        check_exact(&mut rng, &x, &dims);
        let (x, dims) = random_case::<bf16>(&mut rng, small);
        check_squares::<bf16, f32>(&mut rng, &x, &dims);
        check_float(&mut rng, &x, &dims, 1.1 / 256.0);
    }
    let ones = Value::<bf16>::new(&[4096], vec![bf16::ONE; 4096]);
    assert_eq!(
        run::<bf16, bf16>(&mut rng, ReduceOp::Sum, &ones, &[true]),
        [bf16::from_f32(4096.0)]
    );
}

/// Of zeros of both signs, every order in which they meet must give the same one.
fn zeros<T: Element>(rng: &mut Rng) {
    let few = rng.below(2) == 0;
    let zero = |rng: &mut Rng| match rng.below(if few { 3000 } else { 2 }) {
        0 => T::from_f64(0.0),
        _ => T::from_f64(-0.0),
    };
    let (x, dims) = random_case::<T>(rng, zero);
    if groups(&x, &dims).iter().any(|g| g.is_empty()) {
        return;
    }
    for op in [ReduceOp::Max, ReduceOp::Min] {
        let results = run::<T, T>(rng, op, &x, &dims);
        assert!(results.iter().all(|v| v.to_f64().to_bits() == 0), "{op:?} {:?}", x.shape);
    }
}

#[test]
fn the_largest_and_the_smallest_of_zeros_are_positive_whatever_their_order() {
    let mut rng = Rng::new(25);
    for _ in 0..40 {
        zeros::<f32>(&mut rng);
        zeros::<f64>(&mut rng);
        zeros::<f16>(&mut rng);
        zeros::<bf16>(&mut rng);
    }
}

#[test]
fn nan_wins_wherever_it_stands() {
    let mut rng = Rng::new(23);
    for n in [1, 7, 64, 65, 513, 5000] {
        for _ in 0..4 {
            let mut x = Value::<f32>::new(&[n, 3], (0..3 * n).map(|_| rng.unit() as f32).collect());
            let at = rng.below(n);
            x.data[at * 3 + 1] = f32::NAN;
            x.data[(n - 1) * 3 + 1] = f32::NAN;
            x.data[2] = f32::NEG_INFINITY;
            for dims in [[true, false], [true, true], [false, true]] {
                check_exact(&mut rng, &x, &dims);
            }
        }
    }
    let low = Value::<f32>::new(&[700], vec![f32::NEG_INFINITY; 700]);
    assert_eq!(run::<f32, f32>(&mut rng, ReduceOp::Max, &low, &[true]), [f32::NEG_INFINITY]);
    assert_eq!(run::<f32, i64>(&mut rng, ReduceOp::ArgMax, &low, &[true]), [0]);
}

#[test]
fn reductions_of_nothing_are_their_identities() {
    let mut rng = Rng::new(24);
    for (shape, dims) in
        [(vec![0], vec![true]), (vec![3, 0], vec![false, true]), (vec![0, 3], vec![true, false])]
    {
        let x = Value::<f32>::new(&shape, vec![]);
        let n = kept_shape(&shape, &dims).iter().product();
        assert_eq!(run::<f32, f32>(&mut rng, ReduceOp::Sum, &x, &dims), vec![0.0; n]);
        assert_eq!(run::<f32, f32>(&mut rng, ReduceOp::Prod, &x, &dims), vec![1.0; n]);
        assert!(run::<f32, f32>(&mut rng, ReduceOp::Mean, &x, &dims).iter().all(|m| m.is_nan()));
        assert_eq!(run::<f32, bool>(&mut rng, ReduceOp::Any, &x, &dims), vec![false; n]);
        assert_eq!(run::<f32, bool>(&mut rng, ReduceOp::All, &x, &dims), vec![true; n]);
    }
    let scalar = Value::<f32>::new(&[], vec![3.0]);
    assert_eq!(run::<f32, f32>(&mut rng, ReduceOp::Sum, &scalar, &[]), [3.0]);
    assert_eq!(run::<f32, i64>(&mut rng, ReduceOp::ArgMax, &scalar, &[]), [0]);
}

/// One after another, ones stop to count at 2^24; so 2^24 + 2^12 of them as well, which is a float
/// again.
#[test]
fn sum_of_2_24_ones_is_exact() {
    let (one, ones) = ([1f32], vec![1f32; (1 << 24) + (1 << 12)]);
    let read = |range: Range<usize>, to: *mut u8| {
        // SAFETY: the reader's contract: there is room for the range.
        unsafe {
            std::ptr::copy_nonoverlapping(ones[range.clone()].as_ptr(), to.cast(), range.len())
        };
    };
    let par = Threads { threads: 2, seed: 1 };
    let sum = |source: Source<'_>, dims: &[bool], kept: &[usize], expected: f32| {
        for par in [&par as &dyn Parallel, &Serial] {
            let got = filled::<f32>(kept, |out| reduce(ReduceOp::Sum, source, dims, out, par));
            assert!(got.iter().all(|&sum| sum == expected), "{dims:?}: {got:?}");
        }
    };
    let dtype = DType::F32;
    for (shape, dims) in [
        (vec![1 << 24], vec![true]),
        (vec![4096, 4096], vec![true; 2]),
        (vec![4097, 4096], vec![true; 2]),
    ] {
        let n: usize = shape.iter().product();
        // A constant, in memory, and as it is computed.
        let (repeated, strides) = (vec![0; shape.len()], crate::shape::contiguous_strides(&shape));
        let constant = View { ptr: one.as_ptr().cast(), dtype, shape: &shape, strides: &repeated };
        let memory = View { ptr: ones.as_ptr().cast(), dtype, shape: &shape, strides: &strides };
        sum(Source::View(constant), &dims, &[], n as f32);
        sum(Source::View(memory), &dims, &[], n as f32);
        sum(Source::Fused { dtype, shape: &shape, read: &read }, &dims, &[], n as f32);
    }
    // Down two columns of 2^23, and from memory that is read the other way round.
    let shape = [1 << 23, 2];
    let memory = View { ptr: ones.as_ptr().cast(), dtype, shape: &shape, strides: &[2, 1] };
    sum(Source::View(memory), &[true, false], &[2], 8388608.0);
    sum(Source::Fused { dtype, shape: &shape, read: &read }, &[true, false], &[2], 8388608.0);
    sum(Source::View(View { strides: &[1, 1 << 23], ..memory }), &[true, true], &[], 16777216.0);
}

#[test]
fn a_sum_depends_on_nothing_but_its_elements() {
    let mut rng = Rng::new(25);
    for (m, n) in [(3, 30_003), (30_003, 3), (300, 300), (1500, 130), (2, 100_000)] {
        let data: Vec<f32> = (0..m * n).map(|_| (rng.unit() * 1e3) as f32).collect();
        let rows = Value::<f32>::new(&[m, n], data);
        // The same elements, lying the other way round.
        let mut turned = vec![0.0; m * n];
        indices(&[m, n]).iter().for_each(|i| turned[i[1] * m + i[0]] = rows.get(i));
        let turned = Value { data: turned, strides: vec![1, m as isize], ..rows.clone() };
        for dims in [[true, false], [false, true], [true, true]] {
            let a = run::<f32, f32>(&mut rng, ReduceOp::Sum, &rows, &dims);
            let b = run::<f32, f32>(&mut rng, ReduceOp::Sum, &turned, &dims);
            assert_eq!(a, b, "[{m}, {n}] {dims:?}");
        }
    }
}

at_every_level! {
    every_reduction_of_any_layout_agrees_with_a_plain_loop
    blocks_that_lie_in_two_places_agree_with_a_plain_loop
    halves_are_accumulated_in_single_precision
    nan_wins_wherever_it_stands
    reductions_of_nothing_are_their_identities
    a_sum_depends_on_nothing_but_its_elements
}
