//! Softmax and the norms beside plain loops in f64.

use super::{Random, Strided, close, indices, linear};
use crate::cuda::kernels::softmax::{RowOp, plan};
use crate::dtype::{DType, Element};
use crate::on_host::{Batch, Buffer, run};

fn naive(op: RowOp, row: &[f64], eps: f64) -> Vec<f64> {
    let n = row.len() as f64;
    let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = row.iter().map(|x| (x - most).exp()).sum();
    match op {
        RowOp::SafeSoftmax if most == f64::NEG_INFINITY => vec![0.0; row.len()],
        RowOp::Softmax | RowOp::SafeSoftmax => {
            row.iter().map(|x| (x - most).exp() / total).collect()
        }
        RowOp::LogSoftmax => row.iter().map(|x| x - most - total.ln()).collect(),
        RowOp::LogSumExp => vec![most + total.ln()],
        RowOp::LayerNorm { .. } => {
            let mean = row.iter().sum::<f64>() / n;
            let variance = row.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / n;
            row.iter().map(|x| (x - mean) / (variance + eps).sqrt()).collect()
        }
        RowOp::RmsNorm { .. } => {
            let square = row.iter().map(|x| x * x).sum::<f64>() / n;
            row.iter().map(|x| x / (square + eps).sqrt()).collect()
        }
    }
}

/// Where a plan takes an operand as it lies, the result is that of a copy.
pub fn layouts() {
    let mut r = Random(8);
    let mut taken = 0;
    for shape in [[40, 64], [64, 40], [50, 33], [5, 3000]] {
        let x = Strided::contiguous(&shape, |_| r.float() as f32);
        for op in [RowOp::Softmax, RowOp::LogSumExp] {
            for dims in [[true, false], [false, true]] {
                let bits = |x: &Strided<f32>| {
                    let plan = plan(op, DType::F32, &shape, &dims, x.operand(), 16, 0.0)?;
                    let mut out = [Buffer::new(4 * shape[0] * shape[1])];
                    run(&plan, &mut [x.buffer()], &mut out);
                    Some(out[0].get::<u32>())
                };
                let want = bits(&x).expect("a plan for a contiguous operand");
                for (order, gap, offset) in
                    [([0, 1], 1, 0), ([0, 1], 1, 1), ([0, 1], 2, 0), ([1, 0], 1, 0)]
                {
                    if let Some(got) = bits(&x.laid(&order, gap, offset)) {
                        taken += 1;
                        assert_eq!(
                            got, want,
                            "{op:?} {shape:?} {dims:?} as {order:?}, gap {gap}, offset {offset}"
                        );
                    }
                }
            }
        }
    }
    assert!(taken > 20, "{taken} operands are taken as they lie");
}

fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2e-3,
        DType::BF16 => 1.6e-2,
        DType::F32 => 2e-6,
        _ => 1e-12,
    }
}

fn check<T: Element>(
    b: &mut Batch<'_>,
    op: RowOp,
    x: &Strided<T>,
    dim: usize,
    extra: &[Strided<T>],
) {
    let shape = x.shape.clone();
    let dims: Vec<bool> = (0..shape.len()).map(|d| d == dim).collect();
    let eps = 1e-5;
    // Where the rows do not lie as the shape wants them, the caller copies them first.
    let order: Vec<usize> = (0..shape.len()).collect();
    let (plan, x) = match plan(op, T::DTYPE, &shape, &dims, x.operand(), 16, eps) {
        Some(plan) => (plan, x),
        None => {
            let copy = &*Box::leak(Box::new(x.laid(&order, 1, 0)));
            (plan(op, T::DTYPE, &shape, &dims, copy.operand(), 16, eps).expect("a plan"), copy)
        }
    };
    let whole = op != RowOp::LogSumExp;
    let kept: Vec<usize> =
        (0..shape.len()).filter(|&d| d != dim || whole).map(|d| shape[d]).collect();
    let n: usize = kept.iter().product();
    let mut inputs = vec![x.buffer()];
    inputs.extend(extra.iter().map(Strided::buffer));
    let mut expected = Vec::new();
    for index in indices(&shape).into_iter().filter(|i| i[dim] == 0) {
        let mut at = index.clone();
        let row: Vec<f64> = (0..shape[dim])
            .map(|j| {
                at[dim] = j;
                x.at(&at).to_f64()
            })
            .collect();
        for (j, want) in naive(op, &row, eps).into_iter().enumerate() {
            let want = match op {
                RowOp::LayerNorm { weight, bias } => {
                    let w = if weight { extra[0].data[j].to_f64() } else { 1.0 };
                    want * w + if bias { extra[1].data[j].to_f64() } else { 0.0 }
                }
                RowOp::RmsNorm { weight: true } => want * extra[0].data[j].to_f64(),
                _ => want,
            };
            let mut place = index.clone();
            place[dim] = j;
            if !whole {
                place.remove(dim);
            }
            expected.push((linear(&kept, &place), want));
        }
    }
    let what = format!("{op:?} {} {shape:?} dim {dim}", T::DTYPE);
    b.add(plan, inputs, [Buffer::new(n * size_of::<T>())], move |out, _| {
        let got = out[0].get::<T>();
        for (i, want) in expected {
            close(got[i].to_f64(), want, tolerance(T::DTYPE), format!("{what} {i}"));
        }
    });
}

pub fn softmax() {
    let mut r = Random(31);
    let mut b = Batch::default();
    fn cases<T: Element>(b: &mut Batch<'_>, r: &mut Random) {
        for op in [RowOp::Softmax, RowOp::SafeSoftmax, RowOp::LogSoftmax, RowOp::LogSumExp] {
            for shape in [
                &[5, 10][..],
                &[3, 64],
                &[2, 1000],
                &[2, 3, 37],
                &[40, 20],
                &[4, 9, 33],
                &[150, 35],
            ] {
                for dim in 0..shape.len() {
                    let x = Strided::random(r, shape, |r| T::from_f64(10.0 * r.float()));
                    check(b, op, &x, dim, &[]);
                    let x = Strided::contiguous(shape, |_| T::from_f64(10.0 * r.float()));
                    check(b, op, &x, dim, &[]);
                }
            }
        }
    }
    cases::<f32>(&mut b, &mut r);
    cases::<half::f16>(&mut b, &mut r);
    // Blocks of 256 and 1024 threads, and rows that are read again.
    for n in [3000, 9000, 40_000] {
        let x = Strided::contiguous(&[2, n], |_| 10.0 * r.float() as f32);
        check(&mut b, RowOp::Softmax, &x, 1, &[]);
        check(&mut b, RowOp::LogSumExp, &x, 1, &[]);
    }
    // That begin with what has no power, and whose largest element comes late.
    let late = |i: usize, x: f64| match i % 40_001 {
        0..9000 => f64::NEG_INFINITY,
        39_000 => 20.0,
        _ => x,
    };
    for op in [RowOp::Softmax, RowOp::SafeSoftmax, RowOp::LogSoftmax, RowOp::LogSumExp] {
        let x = Strided::contiguous(&[2, 40_001], |i| late(i, 10.0 * r.float()) as f32);
        check(&mut b, op, &x, 1, &[]);
        let x =
            Strided::contiguous(&[1, 40_000], |i| half::f16::from_f64(late(i, 10.0 * r.float())));
        check(&mut b, op, &x, 1, &[]);
        let x = Strided::contiguous(&[1, 20_000], |i| late(i, 10.0 * r.float()));
        check(&mut b, op, &x, 1, &[]);
        // The same of rows side by side.
        let x = Strided::contiguous(&[200, 33], |i| late(i / 33 * 200, 10.0 * r.float()) as f32);
        check(&mut b, op, &x, 0, &[]);
    }
    let x = Strided::contiguous(&[20, 30], |_| 10.0 * r.float());
    check(&mut b, RowOp::LogSoftmax, &x, 1, &[]);
    check(&mut b, RowOp::Softmax, &x, 0, &[]);
    b.run();
}

pub fn infinities() {
    let low = f32::NEG_INFINITY;
    let x = Strided::contiguous(&[3, 4], |i| match i / 4 {
        0 => low,
        1 => [low, 0.0, 0.0, low][i % 4],
        _ => [f32::INFINITY, 0.0, 0.0, 0.0][i % 4],
    });
    let of = |op, n: usize| {
        let mut out = [Buffer::new(4 * n)];
        let plan = plan(op, DType::F32, &[3, 4], &[false, true], x.operand(), 16, 0.0).unwrap();
        run(&plan, &mut [x.buffer()], &mut out);
        out[0].get::<f32>()
    };
    let s = of(RowOp::Softmax, 12);
    assert!(s[..4].iter().all(|x| x.is_nan()));
    assert_eq!(s[4..8], [0.0, 0.5, 0.5, 0.0]);
    assert_eq!(of(RowOp::SafeSoftmax, 12)[..8], [0.0, 0.0, 0.0, 0.0, 0.0, 0.5, 0.5, 0.0]);
    let l = of(RowOp::LogSumExp, 3);
    assert_eq!((l[0], l[2]), (low, f32::INFINITY));
    assert!((l[1] - 2f32.ln()).abs() < 1e-6);
    // Side by side, shared by several threads.
    let x = Strided::contiguous(&[80, 33], |i| match (i % 33, i / 33) {
        (1, 3 | 70) => 0.0,
        (2, 5) => f32::INFINITY,
        (0 | 1, _) => low,
        _ => 1.0,
    });
    let of = |op, n: usize| {
        let mut out = [Buffer::new(4 * n)];
        let plan = plan(op, DType::F32, &[80, 33], &[true, false], x.operand(), 16, 0.0).unwrap();
        run(&plan, &mut [x.buffer()], &mut out);
        out[0].get::<f32>()
    };
    let s = of(RowOp::Softmax, 80 * 33);
    assert!((0..80).all(|i| s[33 * i].is_nan()));
    assert!((0..80).all(|i| s[33 * i + 1] == if matches!(i, 3 | 70) { 0.5 } else { 0.0 }));
    let safe = of(RowOp::SafeSoftmax, 80 * 33);
    assert!((0..80).all(|i| safe[33 * i] == 0.0));
    let l = of(RowOp::LogSumExp, 33);
    assert_eq!((l[0], l[2]), (low, f32::INFINITY));
    assert!((l[1] - 2f32.ln()).abs() < 1e-6 && (l[3] - 1.0 - 80f32.ln()).abs() < 1e-6);
}

pub fn norms() {
    let mut r = Random(41);
    let mut b = Batch::default();
    fn cases<T: Element>(b: &mut Batch<'_>, r: &mut Random, lengths: &[usize]) {
        for &n in lengths {
            let mut value = |n: usize| Strided::contiguous(&[n], |_| T::from_f64(1.0 + r.float()));
            let extra = [value(n), value(n)];
            let x = Strided::contiguous(&[3, n], |_| T::from_f64(3.0 + r.float()));
            check(b, RowOp::LayerNorm { weight: false, bias: false }, &x, 1, &[]);
            check(b, RowOp::RmsNorm { weight: false }, &x, 1, &[]);
            check(b, RowOp::LayerNorm { weight: true, bias: true }, &x, 1, &extra);
            check(b, RowOp::RmsNorm { weight: true }, &x, 1, &extra[..1]);
        }
    }
    cases::<f64>(&mut b, &mut r, &[1, 8, 100, 9000, 20_000, 33_001]);
    cases::<f32>(&mut b, &mut r, &[768, 5000, 40_000]);
    cases::<half::bf16>(&mut b, &mut r, &[768]);
    let x = Strided::random(&mut r, &[4, 50], |r| r.float());
    check(&mut b, RowOp::LayerNorm { weight: false, bias: false }, &x, 1, &[]);
    b.run();
}
