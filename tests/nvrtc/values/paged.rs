//! Attention over pages beside plain loops in f64, in every order of memory that a cache has.

use super::{Random, Strided, close, indices};
use crate::cuda::kernels::paged::{Lie, Sight, plan};
use crate::dtype::{DType, Element};
use crate::on_host::{Batch, Buffer};

/// How a cache lies: as it is written, with odd steps, with its heads outside, or by columns.
const LIES: [(&[usize], usize, usize); 4] =
    [(&[0, 1, 2, 3], 1, 0), (&[0, 1, 2, 3], 1, 1), (&[2, 0, 1, 3], 1, 0), (&[0, 1, 3, 2], 1, 0)];

fn check<T: Element, K: Element>(b: &mut Batch<'_>, r: &mut Random, tolerance: f64) {
    // Queries, heads, heads of keys, width, columns of values, places of a page, pages of a table.
    let cases = [
        [1, 4, 2, 64, 64, 16, 40],
        [3, 10, 2, 24, 40, 7, 5],
        [1, 3, 1, 128, 128, 1000, 1],
        [2, 2, 1, 5, 9, 3, 300],
        [1, 1, 1, 600, 1100, 4, 3],
    ];
    for (case, [queries, heads, shared, width, wide, page, most]) in cases.into_iter().enumerate() {
        for (lie, (order, gap, offset)) in LIES.into_iter().enumerate() {
            if case > 1 && lie > 1 {
                continue;
            }
            let (batch, pages, scale, causal) = (2, most + 2, 0.3, lie % 2 == 0);
            let cap = ((case + lie) % 3 == 1).then_some(0.4);
            let window = ((case + lie) % 2 == 1).then_some([600, 9, 5, 700, 2][case]);
            let mut sheet = |shape: &[usize]| {
                Strided::contiguous(shape, |_| K::from_f64(r.float())).laid(order, gap, offset)
            };
            let (k, v) =
                (sheet(&[pages, page, shared, width]), sheet(&[pages, page, shared, wide]));
            let q =
                Strided::contiguous(&[batch, queries, heads, width], |_| T::from_f64(r.float()));
            // Pages in any order, and one that no length reaches is not there.
            let mut table: Vec<i64> = (0..batch * most).map(|_| r.below(pages) as i64).collect();
            let lengths = [(most * page) as i32, (most * page / 3) as i32];
            if most > 4 {
                table[2 * most - 1] = -1;
            }
            let mut want = Vec::new();
            for at in indices(&[batch, queries, heads]) {
                let (n, query, head) = (at[0], at[1], at[2]);
                let length = lengths[n] as i64;
                let limit =
                    if causal { length - queries as i64 + query as i64 + 1 } else { length };
                let place = |key: usize| [table[n * most + key / page] as usize, key % page];
                let (mut total, mut sums) = (0.0, vec![0.0; wide]);
                let score = |key: usize| {
                    let [p, i] = place(key);
                    let of = head / (heads / shared);
                    let dot: f64 = (0..width)
                        .map(|c| {
                            q.at(&[n, query, head, c]).to_f64() * k.at(&[p, i, of, c]).to_f64()
                        })
                        .sum();
                    cap.map_or(dot * scale, |cap: f64| cap * (dot * scale / cap).tanh())
                };
                let limit = limit.max(0) as usize;
                let first = window.map_or(0, |window| limit.saturating_sub(window));
                let scores: Vec<f64> = (first..limit).map(score).collect();
                let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                for (key, score) in (first..).zip(&scores) {
                    let ([p, i], power) = (place(key), (score - largest).exp());
                    total += power;
                    for (c, sum) in sums.iter_mut().enumerate() {
                        *sum += power * v.at(&[p, i, head / (heads / shared), c]).to_f64();
                    }
                }
                want.extend(sums.into_iter().map(|s| if total == 0.0 { 0.0 } else { s / total }));
            }
            let what = format!("{} over {}, case {case}, lie {lie}", T::DTYPE, K::DTYPE);
            let of = |dtype, shape, strides| Lie { dtype, shape, strides };
            let (tabled, rows) = ([batch, most], [most as isize, 1]);
            let asked = [
                of(T::DTYPE, &q.shape[..], &q.strides[..]),
                of(K::DTYPE, &k.shape, &k.strides),
                of(K::DTYPE, &v.shape, &v.strides),
                of(DType::I64, &tabled[..], &rows[..]),
                of(DType::I32, &tabled[..1], &rows[1..]),
            ];
            let plan = plan(asked, Sight { scale, cap, window, causal }).expect("a plan");
            let inputs =
                [q.buffer(), k.buffer(), v.buffer(), Buffer::of(&table), Buffer::of(&lengths)];
            let out = Buffer::new(want.len() * size_of::<T>());
            b.add(plan, inputs, [out], move |out, bad| {
                assert!(bad.is_none(), "{what}: {bad:?}");
                for (i, (got, want)) in out[0].get::<T>().into_iter().zip(&want).enumerate() {
                    close(got.to_f64(), *want, tolerance, format!("{what} at {i}"));
                }
            });
        }
    }
}

pub fn pages() {
    let (mut b, mut r) = (Batch::default(), Random(83));
    check::<f32, f32>(&mut b, &mut r, 1e-5);
    check::<f32, half::f16>(&mut b, &mut r, 1e-5);
    check::<f32, half::bf16>(&mut b, &mut r, 1e-5);
    check::<f64, f64>(&mut b, &mut r, 1e-13);
    b.run();
}
