//! Copies, reads and writes at indices, scans, sorts and products beside plain loops.

use super::{Random, Strided, close, indices, linear};
use crate::cuda::kernels::index::{self, Indexed};
use crate::cuda::kernels::{Operand, copy, matmul, scan, sort};
use crate::dtype::{DType, Element};
use crate::on_host::{Batch, Buffer, run};
use crate::op::{Scan, ScatterMode, scatter_runs};
use crate::shape::contiguous_strides;
use std::cmp::Ordering;

pub fn copies() {
    let seed = 51;
    let mut r = Random(seed);
    let mut b = Batch::default();
    fn case<T: Element>(
        b: &mut Batch<'_>,
        r: &mut Random,
        shape: &[usize],
        x: Strided<T>,
        seed: u64,
    ) {
        // Into a window of a larger contiguous value.
        let big: Vec<usize> = shape.iter().map(|n| n + r.below(3)).collect();
        let strides = contiguous_strides(&big);
        let n: usize = big.iter().product();
        let start: usize =
            (0..shape.len()).map(|d| r.below(big[d] - shape[d] + 1) * strides[d] as usize).sum();
        let before = vec![T::from_i64(99); n];
        let to = Operand { strides: &strides, align: 16 };
        let plan = copy::plan(size_of::<T>(), shape, x.operand(), to, start * size_of::<T>());
        let out = Buffer::of(&before);
        let mut want = before;
        for index in indices(shape) {
            let at: usize = index.iter().zip(&strides).map(|(i, &s)| i * s as usize).sum();
            want[start + at] = x.at(&index);
        }
        let what = format!("seed {seed} {shape:?} {:?} into {big:?}", x.strides);
        b.add(plan, [x.buffer()], [out], move |out, _| {
            assert_eq!(out[0].get::<T>(), want, "{what}")
        });
    }
    for _ in 0..40 {
        let rank = r.below(4);
        let shape: Vec<usize> = (0..rank).map(|_| *r.pick(&[1, 2, 16, 5, 20, 33])).collect();
        let x = Strided::random(&mut r, &shape, |r| r.float() as f32);
        case(&mut b, &mut r, &shape, x, seed);
        let x = Strided::random(&mut r, &shape, |r| r.next() as u8);
        case(&mut b, &mut r, &shape, x, seed);
        let x = Strided::random(&mut r, &shape, |r| r.float());
        case(&mut b, &mut r, &shape, x, seed);
    }
    // A transpose with a batch, by tiles, and plain neighbours in units of 16 bytes.
    let mut x = Strided::contiguous(&[3, 50, 40], |i| i as u8 as i64);
    (x.shape, x.strides) = (vec![3, 40, 50], vec![2000, 1, 40]);
    let to = contiguous_strides(&[3, 40, 50]);
    let plan = copy::plan(8, &[3, 40, 50], x.operand(), Operand { strides: &to, align: 16 }, 0);
    assert!(matches!(
        plan.launches[0].kernel,
        crate::cuda::kernels::Kernel::Copy(copy::Key::Transpose { size: 8 })
    ));
    case(&mut b, &mut r, &[3, 40, 50], x, seed);
    let x = Strided::contiguous(&[64], |i| i as u8);
    let plan = copy::plan(1, &[64], x.operand(), Operand { strides: &[1], align: 16 }, 0);
    assert!(matches!(
        plan.launches[0].kernel,
        crate::cuda::kernels::Kernel::Copy(copy::Key::Strided { size: 16, wide: false })
    ));
    b.run();
}

pub fn triangles() {
    let mut r = Random(52);
    for shape in [&[5, 7][..], &[2, 6, 4], &[2, 2, 3, 3]] {
        for k in -8..8 {
            for upper in [false, true] {
                let x = Strided::random(&mut r, shape, |r| r.next() as i32 | 1);
                let n: usize = shape.iter().product();
                let mut out = [Buffer::new(4 * n)];
                run(
                    &copy::triangle(4, shape, x.operand(), k, upper).unwrap(),
                    &mut [x.buffer()],
                    &mut out,
                );
                let got = out[0].get::<i32>();
                for (i, index) in indices(shape).iter().enumerate() {
                    let [.., row, column] = index[..] else { unreachable!() };
                    let d = column as i64 - row as i64;
                    let keep = if upper { d >= k } else { d <= k };
                    assert_eq!(
                        got[i],
                        if keep { x.at(index) } else { 0 },
                        "{shape:?} {k} {upper} {index:?}"
                    );
                }
            }
        }
    }
}

/// Strides along one dimension, 0 in the others.
fn along(rank: usize, dim: usize, stride: isize) -> Vec<isize> {
    (0..rank).map(|d| if d == dim { stride } else { 0 }).collect()
}

pub fn gather() {
    let mut r = Random(53);
    for _ in 0..20 {
        let shape: Vec<usize> = (0..1 + r.below(3)).map(|_| 1 + r.below(9)).collect();
        let dim = r.below(shape.len());
        let mut wide = shape.clone();
        wide[dim] = 1 + r.below(12);
        let x = Strided::random(&mut r, &wide, |r| r.float() as f32);
        let size = wide[dim];
        let i = Strided::random(&mut r, &shape, |r| r.below(2 * size) as i64 - size as i64);
        let positions = contiguous_strides(&shape);
        let indexed = Indexed {
            dtype: DType::I64,
            strides: &i.strides,
            positions: &positions,
            from_end: true,
        };
        let plan = index::gather(4, &shape, dim, x.operand(), size, indexed, 16).unwrap();
        let mut out = [Buffer::new(4 * shape.iter().product::<usize>())];
        assert_eq!(run(&plan, &mut [x.buffer(), i.buffer()], &mut out), None);
        let got = out[0].get::<f32>();
        for (p, at) in indices(&shape).iter().enumerate() {
            let mut from = at.clone();
            from[dim] = i.at(at).rem_euclid(size as i64) as usize;
            assert_eq!(got[p], x.at(&from), "{shape:?} from {wide:?} dim {dim}");
        }
    }
}

pub fn embedding() {
    let mut r = Random(54);
    for width in [1, 3, 8, 64] {
        let x = Strided::contiguous(&[50, width], |i| i as i32);
        let i = Strided::contiguous(&[17], |_| r.below(50) as i32);
        let strides = along(2, 0, 1);
        let indexed =
            Indexed { dtype: DType::I32, strides: &strides, positions: &strides, from_end: false };
        let plan = index::gather(4, &[17, width], 0, x.operand(), 50, indexed, 16).unwrap();
        let wide = matches!(
            plan.launches[0].kernel,
            crate::cuda::kernels::Kernel::Index(index::Key::Gather { size: 16, .. })
        );
        assert_eq!(wide, width >= 8);
        let mut out = [Buffer::new(4 * 17 * width)];
        assert_eq!(run(&plan, &mut [x.buffer(), i.buffer()], &mut out), None);
        let want: Vec<i32> = (0..17 * width)
            .map(|p| i.data[p / width] * width as i32 + (p % width) as i32)
            .collect();
        assert_eq!(out[0].get::<i32>(), want);
    }
}

pub fn scatter_add() {
    let mut r = Random(55);
    let mut in_runs = 0;
    for turn in 0..30 {
        let mut shape: Vec<usize> = (0..1 + r.below(3)).map(|_| 1 + r.below(9)).collect();
        let dim = r.below(shape.len());
        // Long lines are sorted, longer ones by digits.
        match turn {
            20..28 => shape[dim] = 257 + r.below(300),
            28.. => shape = vec![3, 2100 + r.below(100), 2],
            _ => {}
        }
        let dim = if turn >= 28 { 1 } else { dim };
        let mut wide: Vec<usize> = shape.iter().map(|n| n + r.below(3)).collect();
        wide[dim] = 1 + r.below(if turn % 2 == 0 { 12 } else { 700 });
        let source = Strided::random(&mut r, &shape, |r| r.float() as f32);
        let size = wide[dim];
        let i = Strided::random(&mut r, &shape, |r| r.below(2 * size) as i64 - size as i64);
        let x = Strided::contiguous(&wide, |_| r.float() as f32);
        let positions = contiguous_strides(&shape);
        let indexed = Indexed {
            dtype: DType::I64,
            strides: &i.strides,
            positions: &positions,
            from_end: true,
        };
        for mode in ScatterMode::ALL {
            let plan =
                index::scatter(mode, DType::F32, &shape, dim, &source.strides, indexed, &wide)
                    .unwrap();
            let mut out = [Buffer::of(&x.data)];
            assert_eq!(run(&plan, &mut [source.buffer(), i.buffer()], &mut out), None);
            let (nothing, join): (f32, fn(f32, f32) -> f32) = match mode {
                ScatterMode::Assign => (0.0, |_, comes| comes),
                ScatterMode::Sum => (-0.0, |there, comes| there + comes),
                ScatterMode::Prod => (1.0, |there, comes| there * comes),
                ScatterMode::Max => (f32::NEG_INFINITY, f32::max),
                ScatterMode::Min => (f32::INFINITY, f32::min),
            };
            let put = |from: std::ops::Range<usize>, to: &mut Vec<f32>| {
                for at in indices(&shape).into_iter().filter(|at| from.contains(&at[dim])) {
                    let mut place = at.clone();
                    place[dim] = i.at(&at).rem_euclid(size as i64) as usize;
                    let there = &mut to[linear(&wide, &place)];
                    *there = join(*there, source.at(&at));
                }
            };
            let mut want = x.data.clone();
            let (n, runs) = (shape[dim], scatter_runs(&shape, dim, size));
            if mode == ScatterMode::Assign || runs == 1 {
                put(0..n, &mut want);
            } else {
                // The first runs have an element more where they cannot be alike.
                let start = |run: usize| run * (n / runs) + run.min(n % runs);
                for run in 0..runs {
                    let mut own = vec![nothing; want.len()];
                    put(start(run)..start(run + 1), &mut own);
                    want.iter_mut()
                        .zip(own)
                        .for_each(|(there, comes)| *there = join(*there, comes));
                }
                in_runs += 1;
            }
            assert_eq!(out[0].get::<f32>(), want, "{mode:?} of {shape:?} into {wide:?} dim {dim}");
        }
    }
    assert!(in_runs > 10, "few sums come in runs: {in_runs}");
}

/// Of ones, more than a bfloat16 can count, in short lines and in long ones; and of halves taken as
/// they are, with their bits.
pub fn halves_are_joined_in_float() {
    use half::bf16;
    for (n, lines) in [(200, 3), (3000, 2)] {
        let one = bf16::from_f32(1.0);
        let source = Strided::contiguous(&[n, lines], |_| one);
        let i = Strided::contiguous(&[n, lines], |_| 1i64);
        let positions = contiguous_strides(&[n, lines]);
        let indexed = Indexed {
            dtype: DType::I64,
            strides: &i.strides,
            positions: &positions,
            from_end: true,
        };
        let scatter = |mode| {
            index::scatter(mode, DType::BF16, &[n, lines], 0, &source.strides, indexed, &[2, lines])
                .unwrap()
        };
        let there = vec![bf16::from_f32(n as f32 / 16.0 + 0.5); 2 * lines];
        let mut out = [Buffer::of(&there)];
        assert_eq!(
            run(&scatter(ScatterMode::Sum), &mut [source.buffer(), i.buffer()], &mut out),
            None
        );
        let sum = bf16::from_f32(there[0].to_f32() + n as f32);
        assert_eq!(out[0].get::<bf16>()[lines..], vec![sum; lines], "{n} ones");
        let nan = bf16::from_bits(0x7fa5);
        let source = Strided::contiguous(&[n, lines], |_| nan);
        let mut out = [Buffer::of(&there)];
        assert_eq!(
            run(&scatter(ScatterMode::Assign), &mut [source.buffer(), i.buffer()], &mut out),
            None
        );
        let bits: Vec<u16> = out[0].get::<bf16>()[lines..].iter().map(|x| x.to_bits()).collect();
        assert_eq!(bits, vec![nan.to_bits(); lines]);
    }
}

pub fn bad_index() {
    let x = Strided::contiguous(&[10, 4], |i| i as f32);
    let mut i = Strided::contiguous(&[600], |i| (i % 10) as i64);
    (i.data[77], i.data[400], i.data[401]) = (10, -1, 1 << 40);
    let strides = along(2, 0, 1);
    let indexed =
        Indexed { dtype: DType::I64, strides: &strides, positions: &strides, from_end: false };
    let plan = index::gather(4, &[600, 4], 0, x.operand(), 10, indexed, 16).unwrap();
    let mut out = [Buffer::new(4 * 2400)];
    assert_eq!(run(&plan, &mut [x.buffer(), i.buffer()], &mut out), Some((77, 10, 10)));
    assert_eq!(out[0].get::<f32>()[76 * 4], 24.0);

    let source = Strided::contiguous(&[600], |_| 1f32);
    let strides = [1];
    let indexed =
        Indexed { dtype: DType::I64, strides: &strides, positions: &strides, from_end: false };
    i.data[77] = 7;
    // (From the end -1 is the last, where that is asked for.)
    let plan =
        index::scatter(ScatterMode::Sum, DType::F32, &[600], 0, &source.strides, indexed, &[10])
            .unwrap();
    let mut out = [Buffer::of(&[0f32; 10])];
    assert_eq!(run(&plan, &mut [source.buffer(), i.buffer()], &mut out), Some((400, -1, 10)));
    assert_eq!(out[0].get::<f32>().iter().sum::<f32>(), 598.0);

    let plan = index::one_hot(&[600], DType::I64, &[1], 3).unwrap();
    let mut out = [Buffer::new(8 * 1800)];
    assert_eq!(run(&plan, &mut [i.buffer()], &mut out), Some((3, 3, 3)));
}

pub fn one_hot() {
    let mut r = Random(56);
    let i = Strided::random(&mut r, &[3, 5], |r| r.below(4) as i32);
    let mut out = [Buffer::new(8 * 60)];
    assert_eq!(
        run(
            &index::one_hot(&[3, 5], DType::I32, &i.strides, 4).unwrap(),
            &mut [i.buffer()],
            &mut out
        ),
        None
    );
    let want: Vec<i64> =
        indices(&[3, 5]).iter().flat_map(|at| (0..4).map(|c| (i.at(at) == c) as i64)).collect();
    assert_eq!(out[0].get::<i64>(), want);
}

pub fn cumsum() {
    let mut r = Random(58);
    let mut b = Batch::default();
    for shape in
        [&[7][..], &[3, 5000], &[5000, 3], &[4, 30, 300], &[2, 9000, 2], &[260, 2600], &[2, 4096]]
    {
        for dim in 0..shape.len() {
            let x = Strided::random(&mut r, shape, |r| r.below(2000) as i32 - 1000);
            let f = Strided::contiguous(shape, |_| (r.below(65) as f32 - 32.0) / 64.0);
            let n: usize = shape.iter().product();
            let (mut want, mut sums) = (vec![0i64; n], vec![0f32; n]);
            for at in indices(shape) {
                let p = linear(shape, &at);
                let mut low = at.clone();
                let last = (at[dim] > 0).then(|| {
                    low[dim] -= 1;
                    linear(shape, &low)
                });
                want[p] = last.map_or(0, |l| want[l]) + x.at(&at) as i64;
                sums[p] = last.map_or(0.0, |l| sums[l]) + f.at(&at); // exact: multiples of 1/64
            }
            let plan = scan::plan(Scan::Sum, DType::I32, shape, dim, x.operand(), 16).unwrap();
            b.add(plan, [x.buffer()], [Buffer::new(8 * n)], move |out, _| {
                assert_eq!(out[0].get::<i64>(), want, "{shape:?} {dim}");
            });
            let plan = scan::plan(Scan::Sum, DType::F32, shape, dim, f.operand(), 16).unwrap();
            b.add(plan, [f.buffer()], [Buffer::new(4 * n)], move |out, _| {
                assert_eq!(out[0].get::<f32>(), sums, "{shape:?} {dim}");
            });
        }
    }
    b.run();
}

/// NaN is the largest; zeros are equal.
fn order(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

fn sorted<T: Element>(
    b: &mut Batch<'_>,
    r: &mut Random,
    shape: &[usize],
    dim: usize,
    k: usize,
    descending: bool,
) {
    let x = Strided::random(r, shape, |r| match (T::DTYPE.is_float(), r.below(12)) {
        (true, 0) => T::from_f64(f64::NAN),
        (true, 1) => T::from_f64(f64::NEG_INFINITY),
        (true, 2) => T::from_f64(-0.0),
        (true, 3) => T::from_f64(f64::INFINITY),
        _ => T::from_i64(r.below(40) as i64 - 20),
    });
    let mut kept = shape.to_vec();
    kept[dim] = k;
    let n: usize = kept.iter().product();
    let mut expected = Vec::new();
    for index in indices(shape).into_iter().filter(|i| i[dim] == 0) {
        let mut at = index.clone();
        let mut row: Vec<(f64, i64)> = (0..shape[dim])
            .map(|j| {
                at[dim] = j;
                (x.at(&at).to_f64(), j as i64)
            })
            .collect();
        row.sort_by(|a, b| if descending { order(b.0, a.0) } else { order(a.0, b.0) });
        for (j, want) in row.into_iter().take(k).enumerate() {
            at[dim] = j;
            expected.push((linear(&kept, &at), want));
        }
    }
    let plan = sort::plan(T::DTYPE, shape, dim, x.operand(), k, descending).unwrap();
    let what = format!("{} {shape:?} dim {dim} {descending}", T::DTYPE);
    let outputs = [Buffer::new(n * size_of::<T>()), Buffer::new(8 * n)];
    b.add(plan, [x.buffer()], outputs, move |out, _| {
        let (values, places) = (out[0].get::<T>(), out[1].get::<i64>());
        for (p, want) in expected {
            assert_eq!(places[p], want.1, "{what} {p}");
            let v = values[p].to_f64();
            assert!(
                v.to_bits() == want.0.to_bits() || (v.is_nan() && want.0.is_nan()),
                "{what} {p}"
            );
        }
    });
}

pub fn sorts() {
    let mut r = Random(59);
    let mut b = Batch::default();
    for descending in [false, true] {
        for (shape, dim) in [
            (&[3, 50][..], 1),
            (&[50, 3], 0),
            (&[2, 7, 5], 1),
            (&[1000], 0),
            (&[2, 5000], 1),
            (&[4097], 0),
        ] {
            sorted::<f32>(&mut b, &mut r, shape, dim, shape[dim], descending);
            sorted::<i64>(&mut b, &mut r, shape, dim, shape[dim], descending);
        }
        sorted::<half::f16>(&mut b, &mut r, &[3, 64], 1, 64, descending);
        sorted::<half::bf16>(&mut b, &mut r, &[3, 64], 1, 64, descending);
        sorted::<f64>(&mut b, &mut r, &[3, 100], 1, 100, descending);
        sorted::<u8>(&mut b, &mut r, &[3, 64], 1, 64, descending);
        sorted::<i32>(&mut b, &mut r, &[2, 2500, 2], 1, 2500, descending);
        sorted::<half::f16>(&mut b, &mut r, &[2, 4500], 1, 4500, descending);
        sorted::<half::bf16>(&mut b, &mut r, &[3000], 0, 3000, descending);
        sorted::<u8>(&mut b, &mut r, &[2300], 0, 2300, descending);
        sorted::<bool>(&mut b, &mut r, &[2300], 0, 2300, descending);
        sorted::<f64>(&mut b, &mut r, &[2100], 0, 2100, descending);
    }
    b.run();
}

pub fn topk() {
    let mut r = Random(60);
    let mut b = Batch::default();
    for k in [1, 5, 50] {
        sorted::<f32>(&mut b, &mut r, &[3, 50], 1, k, true);
        sorted::<f32>(&mut b, &mut r, &[60, 3], 0, k, true);
        sorted::<f32>(&mut b, &mut r, &[2, 3000], 1, k, true);
        // Several blocks, equals among them, and rows that do not lie together.
        for largest in [false, true] {
            sorted::<f64>(&mut b, &mut r, &[9000, 2], 0, k, largest);
            sorted::<i64>(&mut b, &mut r, &[9000], 0, k, largest);
            sorted::<half::f16>(&mut b, &mut r, &[2, 9000], 1, k, largest);
            sorted::<u8>(&mut b, &mut r, &[9000], 0, k, largest);
            sorted::<bool>(&mut b, &mut r, &[2100], 0, 40 * k, largest);
        }
    }
    sorted::<f32>(&mut b, &mut r, &[2500], 0, 2048, true);
    sorted::<f32>(&mut b, &mut r, &[2500], 0, 2049, true);
    b.run();
}

fn product<T: Element>(batch: &mut Batch<'_>, r: &mut Random, [m, k, n]: [usize; 3]) {
    let a = Strided::random(r, &[2, 3, m, k], |r| T::from_i64(r.below(200) as i64 - 100));
    let b = Strided::random(r, &[2, 3, k, n], |r| T::from_i64(r.below(200) as i64 - 100));
    let plan = matmul::plan([T::DTYPE; 2], &[2, 3], [m, k, n], &a.strides, &b.strides).unwrap();
    let out = Buffer::new(6 * m * n * size_of::<T>());
    batch.add(plan, [a.buffer(), b.buffer()], [out], move |out, _| {
        let got = out[0].get::<T>();
        for at in indices(&[2, 3, m, n]) {
            let [x, y, i, j] = at[..] else { unreachable!() };
            let sum: i64 =
                (0..k).map(|q| a.at(&[x, y, i, q]).to_i64() * b.at(&[x, y, q, j]).to_i64()).sum();
            // All sums are below 2^24: exact in f32, wrapped in u8.
            assert_eq!(
                got[linear(&[2, 3, m, n], &at)],
                T::from_i64(sum),
                "{} {m} {k} {n} {at:?}",
                T::DTYPE
            );
        }
    });
}

pub fn products() {
    let mut r = Random(61);
    let mut b = Batch::default();
    for dims in [[1, 1, 1], [5, 7, 3], [65, 33, 70], [4, 0, 4], [3, 100, 130]] {
        product::<f32>(&mut b, &mut r, dims);
        product::<i32>(&mut b, &mut r, dims);
        product::<u8>(&mut b, &mut r, dims);
    }
    product::<i64>(&mut b, &mut r, [5, 7, 3]);
    product::<f64>(&mut b, &mut r, [5, 7, 3]);
    product::<half::bf16>(&mut b, &mut r, [1, 1, 1]);
    b.run();
}
