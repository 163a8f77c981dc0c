//! Index kernels against walks over indices.

use super::super::copy::copy;
use super::super::testing::*;
use super::*;
use crate::dtype::Element;
use crate::op::{Scan, ScatterMode};
use crate::view::{Serial, View, ViewMut};
use half::{bf16, f16};

fn threads(rng: &mut Rng) -> Threads {
    Threads { threads: 1 + rng.below(3), seed: rng.word() }
}

/// Runs a kernel that may fail.
fn tried<T: Element>(
    shape: &[usize],
    run: impl FnOnce(&ViewMut<'_>) -> Result<(), OutOfRange>,
) -> Result<Vec<T>, OutOfRange> {
    let mut result = Ok(());
    let out = filled::<T>(shape, |out| result = run(out));
    result.map(|()| out)
}

/// A shape of a rank, with something in every dimension.
fn full_shape(rng: &mut Rng, rank: usize, most: usize) -> Vec<usize> {
    (0..rank).map(|_| 1 + rng.below(most)).collect()
}

#[test]
fn gather_takes_what_its_index_names() {
    let mut rng = Rng::new(51);
    for turn in 0..200 {
        let rank = 1 + rng.below(3);
        let shape = full_shape(&mut rng, rank, 9);
        let dim = rng.below(rank);
        let mut wanted: Vec<usize> = shape.iter().map(|&n| 1 + rng.below(n)).collect();
        wanted[dim] = rng.below(12);
        let x = Value::<f32>::random(&mut rng, &shape, small);
        let index = Value::<i64>::random(&mut rng, &wanted, |r| r.below(shape[dim]) as i64);
        let narrow = Value::<i32> {
            data: index.data.iter().map(|&i| i as i32).collect(),
            offset: index.offset,
            shape: index.shape.clone(),
            strides: index.strides.clone(),
        };
        let par = threads(&mut rng);
        let view = if turn % 2 == 0 { index.view() } else { narrow.view() };
        let got =
            tried::<f32>(&wanted, |out| gather(x.view(), dim, view, true, out, &par)).unwrap();
        for (got, at) in got.iter().zip(indices(&wanted)) {
            let mut from = at.clone();
            from[dim] = index.get(&at) as usize;
            assert_eq!(*got, x.get(&from));
        }
    }
}

#[test]
fn index_select_and_embedding_take_rows() {
    let mut rng = Rng::new(52);
    for _ in 0..200 {
        let rank = 1 + rng.below(3);
        let shape = full_shape(&mut rng, rank, 30);
        let dim = rng.below(rank);
        let n = rng.below(20);
        let x = Value::<f16>::random(&mut rng, &shape, small);
        let index = Value::<i32>::random(&mut rng, &[n], |r| r.below(shape[dim]) as i32);
        let mut wanted = shape.clone();
        wanted[dim] = n;
        let par = threads(&mut rng);
        let got =
            tried::<f16>(&wanted, |out| index_select(x.view(), dim, index.view(), true, out, &par))
                .unwrap();
        for (got, at) in got.iter().zip(indices(&wanted)) {
            let mut from = at.clone();
            from[dim] = index.get(&[at[dim]]) as usize;
            assert_eq!(*got, x.get(&from));
        }
    }
    let table = Value::<f32>::new(&[3, 2], vec![0., 1., 2., 3., 4., 5.]);
    let index = Value::<i64>::new(&[2, 2], vec![2, 0, 0, 1]);
    let got = tried::<f32>(&[2, 2, 2], |out| embedding(table.view(), index.view(), out, &Serial))
        .unwrap();
    assert_eq!(got, [4., 5., 0., 1., 0., 1., 2., 3.]);
}

#[test]
fn an_index_out_of_range_is_named_with_its_first_position() {
    let mut rng = Rng::new(53);
    let x = Value::<f32>::new(&[4, 3], vec![1.0; 12]);
    let n = 2000;
    for _ in 0..20 {
        let mut list: Vec<i64> = (0..n).map(|_| rng.below(4) as i64).collect();
        let at = rng.below(n - 1);
        let wrong = [-1, 4, i64::MIN, i64::MAX][rng.below(4)];
        list[at] = wrong;
        list[n - 1] = 77;
        let expected = Err(OutOfRange { index: wrong, size: 4, position: at });
        let index = Value::<i64>::new(&[n], list.clone());
        let par = threads(&mut rng);
        assert_eq!(
            tried::<f32>(&[n, 3], |out| embedding(x.view(), index.view(), out, &par)),
            expected
        );
        let column = Value { shape: vec![n, 1], strides: vec![1, 1], ..index.clone() };
        assert_eq!(
            tried::<f32>(&[n, 1], |out| gather(x.view(), 0, column.view(), false, out, &par)),
            expected
        );
        assert_eq!(
            tried::<i64>(&[n, 4], |out| one_hot(index.view(), out, &par)).err(),
            expected.clone().err()
        );
        let ones = Value::<f32>::new(&[n, 1], vec![1.0; n]);
        // Where negative ones count from the end, -5 is the first that names none.
        let lower = |i: i64| if i == -1 { -5 } else { i };
        let column = Value { data: column.data.iter().map(|&i| lower(i)).collect(), ..column };
        let expected = expected.map_err(|e| OutOfRange { index: lower(e.index), ..e });
        assert_eq!(
            tried::<f32>(&[n, 1], |out| gather(x.view(), 0, column.view(), true, out, &par)),
            expected
        );
        for mode in ScatterMode::ALL {
            let run =
                |out: &ViewMut<'_>| scatter(0, mode, true, column.view(), ones.view(), out, &par);
            assert_eq!(tried::<f32>(&[4, 3], run), expected);
        }
    }
    let error = OutOfRange { index: -1, size: 4, position: 7 };
    assert_eq!(error.to_string(), "index -1 at position 7 is out of range for size 4");
    // Also where there is nothing to copy.
    let empty = Value::<f32>::new(&[0, 3], vec![]);
    let index = Value::<i64>::new(&[1], vec![0]);
    assert!(
        tried::<f32>(&[1, 3], |out| embedding(empty.view(), index.view(), out, &Serial)).is_err()
    );
    let thin = Value::<f32>::new(&[2, 0], vec![]);
    let index = Value::<i64>::new(&[1], vec![2]);
    assert!(
        tried::<f32>(&[1, 0], |out| embedding(thin.view(), index.view(), out, &Serial)).is_err()
    );
}

#[test]
fn index_copy_puts_whole_slices_at_the_places_named_the_last_of_several() {
    let mut rng = Rng::new(57);
    for _ in turns(200) {
        let rank = 1 + rng.below(3);
        let shape = full_shape(&mut rng, rank, 40);
        let dim = rng.below(rank);
        let mut part = shape.clone();
        part[dim] = rng.below(20);
        let draw = |r: &mut Rng| r.below(1000) as f32;
        let (x, src) = (
            Value::<f32>::random(&mut rng, &shape, draw),
            Value::<f32>::random(&mut rng, &part, draw),
        );
        let size = shape[dim] as i64;
        let index = Value::<i32>::random(&mut rng, &part[dim..=dim], |r| {
            (r.below(2 * size as usize) as i64 - size) as i32
        });
        let par = threads(&mut rng);
        let run = |out: &ViewMut<'_>| {
            copy(x.view(), out, &Serial);
            index_copy(dim, true, index.view(), src.view(), out, &par)
        };
        let mut expected = Value::new(&shape, x.to_vec());
        for at in indices(&part) {
            let mut to = at.clone();
            to[dim] = (index.get(&at[dim..=dim]) as i64).rem_euclid(size) as usize;
            let to: isize = to.iter().zip(&expected.strides).map(|(&i, &s)| i as isize * s).sum();
            expected.data[to as usize] = src.get(&at);
        }
        assert_eq!(tried::<f32>(&shape, run).unwrap(), expected.data, "{shape:?} {dim}");
    }
}

/// Puts random values at random places, and compares with a plain loop in order.
/// The loop is in `W`, and rounds at its end.
fn check_scatter<T: Element, W: Element>(
    rng: &mut Rng,
    draw: fn(&mut Rng) -> T,
    join: impl Fn(ScatterMode, W, W) -> W,
) {
    let rank = 1 + rng.below(3);
    let shape = full_shape(rng, rank, 9);
    let dim = rng.below(rank);
    let mut part: Vec<usize> = shape.iter().map(|&n| 1 + rng.below(n)).collect();
    part[dim] = rng.below(20);
    let larger: Vec<usize> = part.iter().map(|n| n + rng.below(2)).collect();
    let x = Value::<T>::random(rng, &shape, draw);
    let src = Value::<T>::random(rng, &larger, draw);
    let size = shape[dim] as i64;
    let index = Value::<i64>::random(rng, &part, |r| r.below(2 * size as usize) as i64 - size);
    let par = threads(rng);
    for mode in ScatterMode::ALL {
        let run = |out: &ViewMut<'_>| {
            copy(x.view(), out, &Serial);
            scatter(dim, mode, true, index.view(), src.view(), out, &par)
        };
        let got = tried::<T>(&shape, run).unwrap();
        let wide = |x: T| {
            if T::DTYPE.is_int() { W::from_i64(x.to_i64()) } else { W::from_f64(x.to_f64()) }
        };
        let mut expected = Value::<W>::new(&shape, x.to_vec().into_iter().map(wide).collect());
        for at in indices(&part) {
            let mut to = at.clone();
            to[dim] = index.get(&at).rem_euclid(size) as usize;
            let to: isize = to.iter().zip(&expected.strides).map(|(&i, &s)| i as isize * s).sum();
            let there = expected.data[to as usize];
            expected.data[to as usize] = join(mode, there, wide(src.get(&at)));
        }
        let narrow = |x: &W| match T::DTYPE.is_int() {
            true => T::from_i64(x.to_i64()),
            false => T::from_f64(x.to_f64()),
        };
        let bits = |x: &[T]| x.iter().map(|x| x.to_f64().to_bits()).collect::<Vec<_>>();
        let expected: Vec<T> = expected.data.iter().map(narrow).collect();
        assert_eq!(bits(&got), bits(&expected), "{mode:?} of {}", T::DTYPE);
    }
}

#[test]
fn scatter_joins_in_order_and_counts_negative_indices_from_the_end() {
    use ScatterMode::*;
    let mut rng = Rng::new(54);
    let float = |mode, a: f64, b: f64| match mode {
        Assign => b,
        Sum => a + b,
        Prod => a * b,
        _ if a.is_nan() || b.is_nan() => f64::NAN,
        Max => a.max(b),
        Min => a.min(b),
    };
    for _ in 0..60 {
        let odd = |r: &mut Rng| if r.below(9) == 0 { f32::NAN } else { r.unit() as f32 - 0.5 };
        let single = |mode, a: f32, b: f32| match mode {
            Sum => a + b,
            Prod => a * b,
            _ => float(mode, a as f64, b as f64) as f32,
        };
        check_scatter::<f32, f32>(&mut rng, odd, single);
        check_scatter::<f16, f32>(&mut rng, small, single);
        check_scatter::<bf16, f32>(&mut rng, |r| bf16::from_f64(r.unit() - 0.5), single);
        let whole = |mode, a: i64, b: i64| match mode {
            Assign => b,
            Sum => a.wrapping_add(b),
            Prod => a.wrapping_mul(b),
            Max => a.max(b),
            Min => a.min(b),
        };
        check_scatter::<i64, i64>(&mut rng, |r| r.word() as i64, whole);
        check_scatter::<u8, u8>(
            &mut rng,
            |r| r.word() as u8,
            |m, a, b| whole(m, a as i64, b as i64) as u8,
        );
        check_scatter::<bool, bool>(
            &mut rng,
            |r| r.below(2) == 0,
            |m, a, b| whole(m, a as i64, b as i64) != 0,
        );
    }
}

#[test]
fn indices_of_any_integer_type_count_from_the_end() {
    let x = Value::<f32>::new(&[3, 2], vec![0., 1., 2., 3., 4., 5.]);
    let pick = |index: View<'_>| {
        tried::<f32>(&[2, 2], |out| index_select(x.view(), 0, index, true, out, &Serial))
    };
    assert_eq!(pick(Value::<i64>::new(&[2], vec![-1, -3]).view()).unwrap(), [4., 5., 0., 1.]);
    assert_eq!(pick(Value::<i32>::new(&[2], vec![-2, 2]).view()).unwrap(), [2., 3., 4., 5.]);
    assert_eq!(pick(Value::<u8>::new(&[2], vec![2, 1]).view()).unwrap(), [4., 5., 2., 3.]);
    // 255 is no -1.
    let error = pick(Value::<u8>::new(&[2], vec![0, 255]).view()).unwrap_err();
    assert_eq!(error, OutOfRange { index: 255, size: 3, position: 1 });
}

#[test]
fn one_hot_is_one_at_its_index() {
    let index = Value::<i64>::new(&[2, 2], vec![0, 2, 1, 2]);
    let got = tried::<i64>(&[2, 2, 3], |out| one_hot(index.view(), out, &Serial)).unwrap();
    assert_eq!(got, [1, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1]);
}

#[test]
fn nonzero_lists_places_row_by_row() {
    let mut rng = Rng::new(55);
    for _ in 0..100 {
        let rank = rng.below(4);
        let shape = random_shape(&mut rng, rank, 12);
        let x = Value::<f32>::random(&mut rng, &shape, |r| [0.0, -0.0, f32::NAN, 2.0][r.below(4)]);
        let par = threads(&mut rng);
        let counts = count_nonzero(x.view(), &par).unwrap();
        let expected: Vec<Vec<usize>> =
            indices(&shape).into_iter().filter(|i| x.get(i) != 0.0).collect();
        assert_eq!(counts.iter().sum::<usize>(), expected.len());
        let got =
            filled::<i64>(&[expected.len(), rank], |out| nonzero(x.view(), &counts, out, &par));
        assert_eq!(got, expected.concat().iter().map(|&i| i as i64).collect::<Vec<_>>());
    }
}

fn above(a: f64, b: f64) -> std::cmp::Ordering {
    (a.is_nan(), b.is_nan())
        .0
        .cmp(&b.is_nan())
        .then(a.partial_cmp(&b).unwrap_or(std::cmp::Ordering::Equal))
}

fn check_order<T: Element>(rng: &mut Rng, draw: impl FnMut(&mut Rng) -> T) {
    let rank = 1 + rng.below(3);
    let shape = full_shape(rng, rank, [0, 700, 40, 10][rank]);
    let dim = rng.below(rank);
    let x = Value::<T>::random(rng, &shape, draw);
    let k = 1 + rng.below(shape[dim]);
    let (down, par) = (rng.below(2) == 0, threads(rng));
    let mut top = shape.clone();
    top[dim] = k;
    let mut values = vec![];
    let places = filled::<i64>(&shape, |places| {
        values =
            filled::<T>(&shape, |out| sort(x.view(), dim, down, Some(out), Some(places), &par));
    });
    let best = filled::<i64>(&top, |places| topk(x.view(), dim, k, down, places, &par));
    let inner: usize = shape[dim + 1..].iter().product();
    for at in indices(&shape).iter().filter(|at| at[dim] == 0) {
        let line = |i: usize| {
            let mut at = at.clone();
            at[dim] = i;
            x.get(&at)
        };
        let mut expected: Vec<usize> = (0..shape[dim]).collect();
        expected.sort_by(|&a, &b| {
            let order = above(line(a).to_f64(), line(b).to_f64());
            if down { order.reverse() } else { order }
        });
        let (mut outer, mut rest) = (0, 0);
        for d in 0..rank {
            match d.cmp(&dim) {
                std::cmp::Ordering::Less => outer = outer * shape[d] + at[d],
                std::cmp::Ordering::Equal => {}
                std::cmp::Ordering::Greater => rest = rest * shape[d] + at[d],
            }
        }
        for (r, &place) in expected.iter().enumerate() {
            let to = (outer * shape[dim] + r) * inner + rest;
            assert_eq!(places[to], place as i64);
            assert_eq!(values[to].to_f64().to_bits(), line(place).to_f64().to_bits());
            if r < k {
                let to = (outer * k + r) * inner + rest;
                assert_eq!(best[to], place as i64);
            }
        }
    }
}

#[test]
fn sorting_is_stable_and_nan_is_largest() {
    let mut rng = Rng::new(56);
    for _ in 0..60 {
        let odd = [0.0, -0.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1.0, -1.0];
        let float = |r: &mut Rng| {
            if r.below(3) == 0 { odd[r.below(7)] } else { (r.unit() * 8.0).round() / 4.0 }
        };
        check_order::<f32>(&mut rng, |r| float(r) as f32);
        check_order::<f64>(&mut rng, float);
        check_order::<f16>(&mut rng, |r| f16::from_f64(float(r)));
        check_order::<half::bf16>(&mut rng, |r| half::bf16::from_f64(float(r)));
        check_order::<i32>(&mut rng, small);
        check_order::<i64>(&mut rng, small);
        check_order::<u8>(&mut rng, small);
        check_order::<bool>(&mut rng, small);
    }
}

#[test]
fn running_sums_of_float32_are_carried_in_doubles() {
    let mut x = vec![1.0f32; 65];
    x[0] = 1e8;
    let x = Value::new(&[65], x);
    let sums = filled::<f32>(&[65], |out| scan(Scan::Sum, x.view(), 0, out, &Serial));
    // Float32 has every eighth number there: one at a time would be lost.
    assert_eq!((sums[8], sums[64]), (100_000_008.0, 100_000_064.0));
}

#[test]
fn running_sums_and_products_agree_with_a_plain_loop() {
    let mut rng = Rng::new(57);
    for _ in 0..100 {
        let rank = 1 + rng.below(3);
        let shape = random_shape(&mut rng, rank, [0, 700, 100, 12][rank]);
        let dim = rng.below(rank);
        let (x, y) = (
            Value::<f32>::random(&mut rng, &shape, small),
            Value::<u8>::random(&mut rng, &shape, small),
        );
        let par = threads(&mut rng);
        let sums = filled::<f32>(&shape, |out| scan(Scan::Sum, x.view(), dim, out, &par));
        let whole_sums = filled::<i64>(&shape, |out| scan(Scan::Sum, y.view(), dim, out, &par));
        let products = filled::<f32>(&shape, |out| scan(Scan::Product, x.view(), dim, out, &par));
        let whole_products =
            filled::<i64>(&shape, |out| scan(Scan::Product, y.view(), dim, out, &par));
        for (i, at) in indices(&shape).iter().enumerate() {
            let before = (0..=at[dim]).map(|j| {
                let mut at = at.clone();
                at[dim] = j;
                (x.get(&at) as f64, y.get(&at) as i64)
            });
            let sum = before.clone().fold((0.0, 0), |(f, n), (x, y)| (f + x, n + y));
            assert_eq!((sums[i], whole_sums[i]), (sum.0 as f32, sum.1));
            let product = before.fold((1.0, 1i64), |(f, n), (x, y)| (f * x, n.wrapping_mul(y)));
            assert_eq!(
                (products[i].to_bits(), whole_products[i]),
                ((product.0 as f32).to_bits(), product.1)
            );
        }
    }
}

#[test]
fn triangles_keep_their_side() {
    let mut rng = Rng::new(58);
    for _ in 0..100 {
        let rank = 2 + rng.below(2);
        let shape = random_shape(&mut rng, rank, 9);
        let x = Value::<f32>::random(&mut rng, &shape, |r| r.unit() as f32 + 2.0);
        let diagonal = [rng.below(21) as i64 - 10, i64::MAX, i64::MIN][rng.below(20).min(2)];
        let par = threads(&mut rng);
        let (low, high) = (
            filled::<f32>(&shape, |out| tril(x.view(), diagonal, out, &par)),
            filled::<f32>(&shape, |out| triu(x.view(), diagonal, out, &par)),
        );
        for (i, at) in indices(&shape).iter().enumerate() {
            let across = at[rank - 1] as i128 - at[rank - 2] as i128;
            let x = x.get(at);
            assert_eq!(low[i], if across <= diagonal as i128 { x } else { 0.0 });
            assert_eq!(high[i], if across >= diagonal as i128 { x } else { 0.0 });
        }
    }
}

#[test]
fn a_roll_brings_the_end_to_the_front() {
    let mut rng = Rng::new(59);
    for _ in 0..100 {
        let rank = 1 + rng.below(3);
        let shape = random_shape(&mut rng, rank, 8);
        let x = Value::<i32>::random(&mut rng, &shape, small);
        let shifts: Vec<(usize, i64)> =
            (0..rng.below(4)).map(|_| (rng.below(rank), rng.below(30) as i64 - 15)).collect();
        let got =
            filled::<i32>(&shape, |out| roll(x.view(), &shifts, out, &threads(&mut Rng::new(1))));
        for (i, at) in indices(&shape).iter().enumerate() {
            let mut from = at.clone();
            for &(d, by) in &shifts {
                from[d] = (from[d] as i64 - by).rem_euclid(shape[d] as i64) as usize;
            }
            assert_eq!(got[i], x.get(&from), "{shape:?} {shifts:?}");
        }
    }
}

at_every_level! {
    gather_takes_what_its_index_names
    index_select_and_embedding_take_rows
    an_index_out_of_range_is_named_with_its_first_position
    scatter_joins_in_order_and_counts_negative_indices_from_the_end
    indices_of_any_integer_type_count_from_the_end
    one_hot_is_one_at_its_index
    nonzero_lists_places_row_by_row
    sorting_is_stable_and_nan_is_largest
    running_sums_and_products_agree_with_a_plain_loop
    triangles_keep_their_side
    a_roll_brings_the_end_to_the_front
}

/// Sorted, in float64.
fn kept_by_sorting(row: &[f64], share: f64) -> Vec<bool> {
    let mut order: Vec<usize> = (0..row.len()).collect();
    order.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
    let total: f64 = row.iter().sum();
    let mut before = 0.0;
    let mut kept = vec![false; row.len()];
    for (i, &at) in order.iter().enumerate() {
        kept[at] = i == 0 || before < share * total;
        before += row[at];
    }
    kept
}

fn check_top_p<T: Element>(rng: &mut Rng, near: f64) {
    let shape = [1 + rng.below(4), 1 + rng.below(300)];
    // Peaked and flat ones, with equals among them.
    let steep = [0.0, 1.0, 8.0][rng.below(3)];
    let draw = |r: &mut Rng| T::from_f64(((r.unit() * 40.0).round() / 40.0 * steep).exp());
    let (x, par) = (Value::<T>::random(rng, &shape, draw), threads(rng));
    let share = Value::<f64>::random(rng, &[shape[0], 1], |r| r.unit().abs());
    let got = filled::<T>(&shape, |out| top_p(x.view(), share.view(), out, &par));
    for (r, got) in got.chunks(shape[1]).enumerate() {
        let row: Vec<f64> = (0..shape[1]).map(|c| x.get(&[r, c]).to_f64()).collect();
        let (total, share) = (row.iter().sum::<f64>(), share.get(&[r, 0]));
        let want = |by: f64| kept_by_sorting(&row, share + by);
        for (c, got) in got.iter().enumerate() {
            // Where sums are this near to the share, either will do.
            let (low, high) = (want(-near)[c], want(near)[c]);
            let kept = got.to_f64() != 0.0;
            assert!(kept == low || kept == high, "{r} {c}: {share} of {total}, {row:?}");
            assert!(!kept || got.to_f64() == row[c]);
        }
    }
}

#[test]
fn the_largest_weights_up_to_a_share_are_those_that_sorting_finds() {
    let mut rng = Rng::new(59);
    for _ in 0..60 {
        check_top_p::<f32>(&mut rng, 1e-9);
        check_top_p::<f64>(&mut rng, 1e-9);
        check_top_p::<f16>(&mut rng, 1e-9);
        check_top_p::<half::bf16>(&mut rng, 1e-9);
    }
    let of = |row: &[f32], share: f64| {
        let (x, share) = (Value::new(&[row.len()], row.to_vec()), Value::new(&[1], vec![share]));
        filled::<f32>(&[row.len()], |out| top_p(x.view(), share.view(), out, &Serial))
    };
    assert_eq!(of(&[1.0, 1.0, 1.0, 1.0], 0.5), [1.0, 1.0, 0.0, 0.0], "equals by their places");
    assert_eq!(of(&[1.0, 3.0], -1.0), [0.0, 3.0], "the first is always there");
    assert_eq!(of(&[1.0, 1e-30], 1.0), [1.0, 1e-30], "all of it is all");
    assert_eq!(of(&[0.0, 0.0], 0.1), [0.0, 0.0]);
    assert_eq!(of(&[-1.0, -2.0], 0.1), [-1.0, -2.0], "where nothing counts, nothing goes");
    assert!(of(&[1.0, f32::NAN], 0.1)[1].is_nan());
}
