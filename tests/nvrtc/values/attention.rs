//! Attention and its gradients beside plain loops in f64.

use super::{Random, Strided, close, indices, linear};
use crate::cuda::kernels::Kernel;
use crate::cuda::kernels::attention::{Attention, Result as Made, Team, plan};
use crate::dtype::{DType, Element};
use crate::on_host::{Batch, Buffer};
use crate::shape::contiguous_strides;

/// What is asked for; the mask is none, of truth values, or of numbers.
#[derive(Clone, Copy, Debug)]
struct Case {
    sizes: [usize; 4],
    causal: bool,
    mask: Option<DType>,
}

/// All results of one batch, in plain loops: what each query finds, its two numbers, and the three
/// gradients.
fn naive(
    x: &[Vec<f64>; 4],
    seen: impl Fn(usize, usize) -> f64,
    case: Case,
    scale: f64,
) -> [Vec<f64>; 5] {
    let [rows, keys, width, wide] = case.sizes;
    let [q, k, v, up] = x;
    let mut out =
        [rows * wide, rows * 2, rows * width, keys * width, keys * wide].map(|n| vec![0.0; n]);
    for i in 0..rows {
        let score = |j: usize| {
            let dot: f64 = (0..width).map(|c| q[i * width + c] * k[j * width + c]).sum();
            if case.causal && j > i { f64::NEG_INFINITY } else { dot * scale + seen(i, j) }
        };
        let scores: Vec<f64> = (0..keys).map(score).collect();
        let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if most == f64::NEG_INFINITY {
            continue;
        }
        let total: f64 = scores.iter().map(|s| (s - most).exp()).sum();
        let p: Vec<f64> = scores.iter().map(|s| (s - most).exp() / total).collect();
        let d: Vec<f64> = (0..keys)
            .map(|j| (0..wide).map(|c| up[i * wide + c] * v[j * wide + c]).sum())
            .collect();
        let mean: f64 = p.iter().zip(&d).map(|(p, d)| p * d).sum();
        out[1][2 * i] = most + total.ln();
        out[1][2 * i + 1] = mean;
        for j in 0..keys {
            for c in 0..wide {
                out[0][i * wide + c] += p[j] * v[j * wide + c];
                out[4][j * wide + c] += p[j] * up[i * wide + c];
            }
            for c in 0..width {
                out[2][i * width + c] += p[j] * (d[j] - mean) * k[j * width + c] * scale;
                out[3][j * width + c] += p[j] * (d[j] - mean) * q[i * width + c] * scale;
            }
        }
    }
    out
}

fn check<T: Element, C: Element>(b: &mut Batch<'_>, r: &mut Random, case: Case, tolerance: f64) {
    let [rows, keys, width, wide] = case.sizes;
    let (batch, scale) = ([1, 2], 0.4);
    // Rows far from each other, and heads that are shared or lie between the rows.
    let mut sheet = |n: usize, columns: usize, lies: usize| {
        let shape = [1, 2, n, columns];
        let x = Strided::contiguous(&shape, |_| T::from_f64(r.float() * 1.5));
        match lies {
            0 => x,
            1 => x.laid(&[0, 2, 1, 3], 1, 0),
            _ => Strided { strides: vec![x.strides[0], 0, x.strides[2], 1], ..x },
        }
    };
    let x =
        [sheet(rows, width, 1), sheet(keys, width, 2), sheet(keys, wide, 2), sheet(rows, wide, 0)];
    let numbers = Strided::contiguous(&[1, rows, keys], |_| match r.below(4) {
        0 => f32::NEG_INFINITY,
        _ => r.float() as f32,
    });
    // One query sees nothing.
    let blind = rows / 2;
    let more = |at: &[usize], i: usize, j: usize| {
        let number = numbers.at(&[at[0], i, j]) as f64;
        match case.mask {
            None => 0.0,
            Some(_) if i == blind => f64::NEG_INFINITY,
            Some(DType::Bool) if number > 0.3 => f64::NEG_INFINITY,
            Some(DType::Bool) => 0.0,
            Some(_) => number,
        }
    };
    let mask_shape = [1, rows, keys];
    let truths: Vec<bool> =
        indices(&mask_shape).iter().map(|i| more(&[i[0], 0], i[1], i[2]) == 0.0).collect();
    let added: Vec<f32> =
        indices(&mask_shape).iter().map(|i| more(&[i[0], 0], i[1], i[2]) as f32).collect();
    let mask_strides = [(rows * keys) as isize, 0, keys as isize, 1];
    let mut want: Vec<Vec<f64>> = vec![Vec::new(); 5];
    for at in indices(&batch) {
        let sheet = |x: &Strided<T>| -> Vec<f64> {
            indices(&x.shape[2..])
                .iter()
                .map(|i| x.at(&[at[0], at[1], i[0], i[1]]).to_f64())
                .collect()
        };
        let all = naive(&x.each_ref().map(sheet), |i, j| more(&at, i, j), case, scale);
        want.iter_mut().zip(all).for_each(|(to, part)| to.extend(part));
    }
    let stats: Vec<C> = want[1].iter().map(|&x| C::from_f64(x)).collect();
    // What flows to keys and to values is one result.
    let values = want.pop().expect("what flows to values");
    want[3].extend(values);
    for (made, want) in
        [Made::Output, Made::Stats, Made::ToQuery, Made::ToKeys].into_iter().zip(&want)
    {
        let none: &[isize] = &[];
        let up = if made == Made::Output { none } else { &x[3].strides };
        let asked = Attention {
            dtype: T::DTYPE,
            batch: &batch,
            sizes: case.sizes,
            strides: [&x[0].strides, &x[1].strides, &x[2].strides, up],
            mask: case.mask.map(|dtype| (dtype, &mask_strides[..])),
            lengths: None,
            align: 16,
            causal: case.causal,
            scale,
        };
        let mut inputs: Vec<Buffer> = x[..3].iter().map(Strided::buffer).collect();
        if made != Made::Output {
            inputs.push(x[3].buffer());
        }
        if !matches!(made, Made::Output | Made::Stats) {
            inputs.push(Buffer::of(&stats));
        }
        match case.mask {
            Some(DType::Bool) => inputs.push(Buffer::of(&truths)),
            Some(_) => inputs.push(Buffer::of(&added)),
            None => {}
        }
        let stats = made == Made::Stats;
        let size = if stats { size_of::<C>() } else { size_of::<T>() };
        let what = format!("{made:?} of {} {case:?}", T::DTYPE);
        let plan = plan(made, &asked).expect("a plan");
        // Few queries meet many keys span by span.
        let spans = made == Made::Output && rows <= 64 && keys > 256 && !case.causal;
        assert_eq!(plan.launches.len(), 1 + spans as usize, "{what}");
        if spans && rows == 1 {
            let Kernel::Attention(key) = &plan.launches[0].kernel else { panic!("{what}") };
            assert!(matches!(key.team, Team::Tiles(_)), "{what}: {key:?}");
        }
        let want = want.clone();
        b.add(plan, inputs, [Buffer::new(want.len() * size)], move |out, _| {
            let got: Vec<f64> = match stats {
                true => out[0].get::<C>().into_iter().map(C::to_f64).collect(),
                false => out[0].get::<T>().into_iter().map(T::to_f64).collect(),
            };
            for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                close(*got, *want, tolerance, format!("{what} at {i}"));
            }
        });
    }
}

pub fn all_results() {
    let (mut b, mut r) = (Batch::default(), Random(81));
    let mut sizes =
        vec![[70, 40, 24, 40], [20, 70, 8, 8], [9, 7, 70, 130], [5, 600, 24, 70], [1, 600, 64, 64]];
    // Several tiles of halves of each width that has tiles of its own.
    sizes.extend([[70, 90, 128, 104], [80, 70, 88, 96]]);
    for (i, sizes) in sizes.into_iter().enumerate() {
        for (j, mask) in [None, Some(DType::Bool), Some(DType::F32)].into_iter().enumerate() {
            let case = Case { sizes, causal: (i + j) % 2 == 0, mask };
            if i < 5 {
                check::<f32, f32>(&mut b, &mut r, case, 1e-5);
            }
            check::<half::f16, f32>(&mut b, &mut r, case, 6e-3);
            check::<half::bf16, f32>(&mut b, &mut r, case, 5e-2);
            if i < 5 && mask != Some(DType::F32) {
                check::<f64, f64>(&mut b, &mut r, case, 1e-13);
            }
        }
    }
    b.run();
}
