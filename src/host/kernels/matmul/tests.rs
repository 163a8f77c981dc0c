//! Products against plain loops, over random shapes, strides and batches.

use super::super::testing::*;
use super::{Float, Matrix, Parallel, Shared, Tile, ViewMut, can_be_packed, matmul, matmul_packed};
use crate::dtype::{DType, Element};
use crate::view::Serial;
use ::half::{bf16, f16};

fn run<T: Element>(a: &Value<T>, b: &Value<T>, shape: &[usize], par: &dyn Parallel) -> Vec<T> {
    filled(shape, |out| matmul(a.view(), b.view(), out, false, par).unwrap())
}

/// Shapes of operands and output, batches broadcast.
fn shapes(rng: &mut Rng, most: usize) -> [Vec<usize>; 3] {
    let size = |rng: &mut Rng| if rng.below(12) == 0 { rng.below(2) } else { 1 + rng.below(most) };
    let [m, n, k] = [size(rng), size(rng), size(rng)];
    let batch: Vec<usize> = (0..rng.below(3)).map(|_| 1 + rng.below(3)).collect();
    let of = |rng: &mut Rng, tail: [usize; 2]| {
        let cut = if rng.below(3) == 0 { rng.below(batch.len() + 1) } else { 0 };
        let own = batch[cut..].iter().map(|&d| if rng.below(3) == 0 { 1 } else { d });
        own.chain(tail).collect::<Vec<_>>()
    };
    let (a, b) = (of(rng, [m, k]), of(rng, [k, n]));
    let at = |s: &[usize], i: usize| (i + s.len()).checked_sub(batch.len() + 2).map_or(1, |d| s[d]);
    let out = (0..batch.len()).map(|i| at(&a, i).max(at(&b, i))).chain([m, n]).collect();
    [a, b, out]
}

/// Each element of the product, and the sum of the magnitudes that went into it.
fn reference<T: Element>(a: &Value<T>, b: &Value<T>, out: &[usize]) -> Vec<(f64, f64)> {
    let rank = out.len();
    let at = |v: &Value<T>, index: &[usize], tail: [usize; 2]| {
        let lead = rank - v.shape.len();
        let batch =
            (0..v.shape.len() - 2).map(|d| if v.shape[d] == 1 { 0 } else { index[lead + d] });
        v.get(&batch.chain(tail).collect::<Vec<_>>()).to_f64()
    };
    let k = a.shape[a.shape.len() - 1];
    let each = |i: &Vec<usize>| {
        let terms = (0..k).map(|p| at(a, i, [i[rank - 2], p]) * at(b, i, [p, i[rank - 1]]));
        terms.fold((0.0, 0.0), |(s, m), t| (s + t, m + t.abs()))
    };
    indices(out).iter().map(each).collect()
}

fn check<T: Element>(rng: &mut Rng, most: usize, eps: f64) {
    let [sa, sb, so] = shapes(rng, most);
    let (a, b) = (Value::<T>::random(rng, &sa, small), Value::<T>::random(rng, &sb, small));
    let got = run(&a, &b, &so, &Threads { threads: 3, seed: rng.word() });
    for (got, (sum, size)) in got.iter().zip(reference(&a, &b, &so)) {
        let (got, bound) = (got.to_f64(), eps * size + eps * eps);
        assert!(
            (got - sum).abs() <= bound,
            "{got} {sum} {sa:?} {:?} x {sb:?} {:?}",
            a.strides,
            b.strides
        );
    }
}

#[test]
fn products_of_any_layout_and_batch_agree_with_plain_loops() {
    let mut rng = Rng::new(31);
    for turn in turns(150) {
        let most = if turn % 5 == 0 { 90 } else { 20 };
        check::<f32>(&mut rng, most, 6e-6);
        check::<f64>(&mut rng, most, 1e-14);
        check::<f16>(&mut rng, most, 1.0 / 1024.0);
        check::<bf16>(&mut rng, most, 1.0 / 128.0);
        check::<i32>(&mut rng, most, 0.0);
        check::<i64>(&mut rng, most, 0.0);
    }
}

#[test]
fn integers_wrap_and_bool_is_refused() {
    let x = Value::<u8>::new(&[1, 300], vec![3; 300]);
    let y = Value::<u8>::new(&[300, 1], vec![2; 300]);
    assert_eq!(run(&x, &y, &[1, 1], &Serial), [(1800 % 256) as u8]);
    let b = Value::<bool>::new(&[1, 1], vec![true]);
    let mut out = [false];
    let out = ViewMut {
        ptr: out.as_mut_ptr().cast(),
        dtype: DType::Bool,
        shape: &[1, 1],
        life: std::marker::PhantomData,
    };
    assert!(matmul(b.view(), b.view(), &out, false, &Serial).is_err());
}

#[test]
fn halves_are_rounded_once() {
    // 2048 + 1 + 1 ... in f16 would stay at 2048.
    let k = 1500;
    let mut row = vec![f16::ONE; k];
    row[0] = f16::from_f32(2048.0);
    let (a, b) = (Value::<f16>::new(&[1, k], row), Value::<f16>::new(&[k, 1], vec![f16::ONE; k]));
    assert_eq!(run(&a, &b, &[1, 1], &Serial), [f16::from_f32(2048.0 + 1499.0)]);
}

#[test]
fn a_product_without_depth_is_zero() {
    let (a, b) = (Value::<f32>::new(&[3, 0], vec![]), Value::<f32>::new(&[0, 2], vec![]));
    assert_eq!(run(&a, &b, &[3, 2], &Serial), [0.0; 6]);
    let (a, b) = (Value::<bf16>::new(&[3, 0], vec![]), Value::<bf16>::new(&[0, 2], vec![]));
    assert_eq!(run(&a, &b, &[3, 2], &Serial), [bf16::ZERO; 6]);
    let (a, b) = (Value::<i32>::new(&[3, 0], vec![]), Value::<i32>::new(&[0, 2], vec![]));
    assert_eq!(run(&a, &b, &[3, 2], &Serial), [0; 6]);
}

#[test]
fn a_product_is_bitwise_the_same_for_any_number_of_threads() {
    let mut rng = Rng::new(32);
    for [m, n, k] in [
        [300, 200, 100],
        [1, 768, 288],
        [1, 3000, 700],
        [3000, 1, 700],
        [2000, 20, 600],
        [20, 2000, 600],
        [130, 130, 1100],
        // Neither side above 64: the library adds in another order, and so does each piece.
        [64, 64, 4096],
        [64, 64, 5000],
        [50, 63, 9000],
        [63, 7, 30000],
        [9, 64, 30000],
        [40, 40, 20000],
    ] {
        for turned in [false, true] {
            let mut a = Value::<f32>::new(&[m, k], (0..m * k).map(|_| rng.unit() as f32).collect());
            let mut b = Value::<f32>::new(&[k, n], (0..k * n).map(|_| rng.unit() as f32).collect());
            if turned {
                (a.strides, b.strides) = (vec![1, m as isize], vec![1, k as isize]);
            }
            let one = run(&a, &b, &[m, n], &Serial);
            for threads in [2, 3, 5, 16] {
                let many = run(&a, &b, &[m, n], &Threads { threads, seed: rng.word() });
                let same = one.iter().zip(&many).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "[{m}, {k}] x [{k}, {n}] turned {turned} {threads} threads");
            }
        }
    }
}

#[test]
fn a_row_or_a_column_by_a_matrix_is_right_for_any_size_and_number_of_threads() {
    let mut rng = Rng::new(38);
    let pick = |rng: &mut Rng, of: &[usize]| of[rng.below(of.len())];
    let mut taken = 0;
    for turn in turns(120) {
        let k = pick(&mut rng, &[0, 1, 2, 15, 16, 17, 100, 512, 513, 1030, 8192, 8211, 20_000]);
        let n = pick(&mut rng, &[1, 3, 4, 5, 16, 31, 100, 600, 2048, 2051, 5000]);
        if k * n > 600_000 {
            continue;
        }
        let mut x = Value::<f32>::random(&mut rng, &[1, k], small);
        let mut matrix = weight::<f32>(&mut rng, k, n);
        let mut shape = [1, n];
        if turn % 2 == 1 {
            for value in [&mut x, &mut matrix] {
                value.shape.reverse();
                value.strides.reverse();
            }
            (x, matrix) = (matrix, x);
            shape.reverse();
        }
        taken +=
            super::row::takes(&super::Product::new(&x.view(), &matrix.view(), &shape)) as usize;
        let one = run(&x, &matrix, &shape, &Serial);
        let many = run(&x, &matrix, &shape, &Threads { threads: 2 + turn % 5, seed: rng.word() });
        for (i, (sum, size)) in reference(&x, &matrix, &shape).into_iter().enumerate() {
            assert!(
                (one[i] as f64 - sum).abs() <= 3.1e-5 * size,
                "{} {sum}: {i} of {n}, k = {k}",
                one[i]
            );
            assert_eq!(one[i].to_bits(), many[i].to_bits(), "{i} of {n}, k = {k}");
        }
    }
    assert!(taken > turns(60).len(), "{taken}");
}

/// Contiguous, as the kernel reads them.
fn rows<T: Element>(rng: &mut Rng, m: usize, k: usize) -> Value<T> {
    let data = (0..m * k).map(|_| small(rng)).collect();
    Value::new(&[m, k], data)
}

/// Sums in f32, rounded once: within half a unit of the type of what f32 gives.
fn halves_packed<T: Element>(rng: &mut Rng, half_unit: f64) {
    for _ in turns(10) {
        let [m, n, k] = [1 + rng.below(33), 1 + rng.below(150), rng.below(1200)];
        let (a, b) = (rows::<T>(rng, m, k), Value::<T>::random(rng, &[k, n], small));
        let (packed, par) = (pack(b.view()).unwrap(), Threads { threads: 2, seed: rng.word() });
        let got = filled::<T>(&[m, n], |out| matmul_packed(a.view(), &packed, out, &par));
        for (got, (sum, size)) in got.iter().zip(reference(&a, &b, &[m, n])) {
            let bound = 3.1e-5 * size + half_unit * sum.abs() * 1.001 + 1e-7;
            assert!((got.to_f64() - sum).abs() <= bound, "{} {sum} of {k}", got.to_f64());
        }
    }
}

#[test]
fn a_packed_weight_gives_the_product_for_any_number_of_rows_and_threads() {
    let mut rng = Rng::new(33);
    for case in turns(60) {
        // Beyond a block of rows too, and of one that is not a multiple of anything.
        let most = if case % 5 == 0 { 300 } else { 33 };
        let [m, n, k] = [1 + rng.below(most), 1 + rng.below(150), rng.below(1200)];
        let a = rows::<f32>(&mut rng, m, k);
        let b = Value::<f32>::random(&mut rng, &[k, n], small);
        let packed = pack(b.view()).unwrap();
        let par = Threads { threads: 2 + case % 7, seed: rng.word() };
        let many = filled::<f32>(&[m, n], |out| matmul_packed(a.view(), &packed, out, &par));
        let one = filled::<f32>(&[m, n], |out| matmul_packed(a.view(), &packed, out, &Serial));
        for (i, (sum, size)) in reference(&a, &b, &[m, n]).into_iter().enumerate() {
            assert!((one[i] as f64 - sum).abs() <= 3.1e-5 * size, "{} {sum}", one[i]);
            assert_eq!(one[i].to_bits(), many[i].to_bits(), "[{m}, {k}] x [{k}, {n}]");
        }
    }
    halves_packed::<f16>(&mut rng, 1.0 / 2048.0);
    halves_packed::<bf16>(&mut rng, 1.0 / 256.0);
    assert!(pack(Value::<i32>::new(&[1, 1], vec![1]).view()).is_err());
}

/// Whether the library, asked for it, gives the bits that panels give, and whether it does when it
/// is not asked; `None` where the weight is not packed.
fn same_as_packed<T: Element>(rng: &mut Rng, m: usize, b: &Value<T>) -> Option<[bool; 2]> {
    let [k, n] = [b.shape[0], b.shape[1]];
    if !can_be_packed(T::DTYPE, [m, k, n], [b.strides[0], b.strides[1]]) {
        return None;
    }
    let a = Value::<T>::new(&[m, k], (0..m * k).map(|_| T::from_f64(rng.unit())).collect());
    let packed = pack(b.view()).unwrap();
    let panels = filled::<T>(&[m, n], |out| matmul_packed(a.view(), &packed, out, &Serial));
    let par = Threads { threads: 1 + rng.below(3), seed: rng.word() };
    Some([true, false].map(|asked| {
        let library =
            filled::<T>(&[m, n], |out| matmul(a.view(), b.view(), out, asked, &par).unwrap());
        library.iter().zip(&panels).all(|(a, b)| a.to_f64().to_bits() == b.to_f64().to_bits())
    }))
}

/// A weight of a size, as it was made, transposed, or in any layout.
fn weight<T: Element>(rng: &mut Rng, k: usize, n: usize) -> Value<T> {
    let draw = |rng: &mut Rng| T::from_f64(rng.unit());
    match rng.below(5) {
        0 | 1 => Value::new(&[k, n], (0..k * n).map(|_| draw(rng)).collect()),
        2 | 3 => {
            let b = Value::new(&[n, k], (0..k * n).map(|_| draw(rng)).collect());
            Value { shape: vec![k, n], strides: vec![1, k as isize], ..b }
        }
        _ => Value::random(rng, &[k, n], draw),
    }
}

#[test]
fn what_can_be_packed_is_the_same_to_the_bit_packed_or_not() {
    let mut rng = Rng::new(34);
    let pick = |rng: &mut Rng, of: &[usize]| of[rng.below(of.len())];
    let (mut packed, mut differ) = ([0; 3], [0; 3]);
    for _ in 0..300 {
        let m = pick(&mut rng, &[1, 2, 3, 5, 8, 16, 31, 64, 65, 130]);
        let n = pick(&mut rng, &[1, 2, 3, 10, 16, 47, 48, 64, 65, 100, 128, 257, 513, 1030]);
        let k = pick(&mut rng, &[1, 2, 3, 17, 100, 512, 513, 600, 1024, 1100, 2000]);
        if m * n * k > 20_000_000 {
            continue;
        }
        let (x, y, z) =
            (weight::<f32>(&mut rng, k, n), weight::<f16>(&mut rng, k, n), weight(&mut rng, k, n));
        let same = [
            same_as_packed::<f32>(&mut rng, m, &x),
            same_as_packed::<f16>(&mut rng, m, &y),
            same_as_packed::<bf16>(&mut rng, m, &z),
        ];
        let strides = [x.strides, y.strides, z.strides];
        for (i, same) in same.into_iter().enumerate() {
            let Some([asked, by_itself]) = same else { continue };
            assert!(asked, "type {i}: [{m}, {k}] x [{k}, {n}] of steps {:?}", strides[i]);
            packed[i] += 1;
            differ[i] += !by_itself as usize;
        }
    }
    if can_be_packed(DType::F32, [8, 64, 64], [64, 1]) {
        assert!(packed.iter().all(|&n| n > 100), "{packed:?} of 300 can be packed");
        // Or else this shows nothing.
        assert!(differ[0] > 0, "{differ:?}: the library by itself adds in other orders");
    }
}

/// The product of rows that lie column by column, whole pages apart and not, and in groups that are
/// full and not, by columns of which a tile has few and many.
fn turned_rows<T: Element>(rng: &mut Rng) {
    for [m, n, k] in [[128, 100, 130], [1024, 70, 600], [157, 403, 513], [1030, 400, 140]] {
        let draw = |rng: &mut Rng, n: usize| (0..n).map(|_| T::from_f64(rng.unit())).collect();
        let (columns, b) = (Value::<T>::new(&[k, m], draw(rng, k * m)), weight::<T>(rng, k, n));
        let data = (0..m * k).map(|i| columns.data[i % k * m + i / k]).collect();
        let in_rows = Value::<T>::new(&[m, k], data);
        let turned = Value { shape: vec![m, k], strides: vec![1, m as isize], ..columns };
        let par = Threads { threads: 1 + rng.below(3), seed: rng.word() };
        let [turned, in_rows] = [turned, in_rows].map(|a| {
            filled::<T>(&[m, n], |out| matmul(a.view(), b.view(), out, true, &par).unwrap())
        });
        for (i, (turned, in_rows)) in turned.iter().zip(&in_rows).enumerate() {
            let bits = [turned, in_rows].map(|x| x.to_f64().to_bits());
            assert_eq!(bits[0], bits[1], "{i} of [{m}, {k}] x [{k}, {n}]");
        }
    }
}

#[test]
fn rows_that_lie_column_by_column_give_the_same_bits() {
    let mut rng = Rng::new(40);
    turned_rows::<f32>(&mut rng);
    turned_rows::<f16>(&mut rng);
    turned_rows::<bf16>(&mut rng);
}

fn by_tile<T: Element + Float>(rng: &mut Rng, eps: f64) {
    let [m, n] = [1 + rng.below(70), 1 + rng.below(120)];
    // One in eight goes beyond a block of k.
    let k = if rng.below(8) == 0 { 513 + rng.below(200) } else { rng.below(60) };
    let mut room = vec![T::from_f64(7.0); Tile::<T>::room(k, n)];
    let mut tile = Tile::new(&mut room);
    let a: Vec<T> = (0..m * k).map(|_| small(rng)).collect();
    // One after the other, and the first again.
    let all: Vec<Value<T>> = (0..2).map(|_| Value::random(rng, &[k, n], small)).collect();
    for b in [&all[0], &all[1], &all[1], &all[0]] {
        let mut out = vec![T::from_f64(9.0); m * n];
        let view = b.view();
        let at = Shared::new(view.ptr.cast_mut());
        // SAFETY: all of these are there, and nobody writes them.
        unsafe {
            tile.take(Matrix { at, rows: view.strides[0], cols: view.strides[1] }, [k, n]);
            tile.product(a.as_ptr().cast_mut(), m, out.as_mut_ptr());
        }
        for (i, got) in out.iter().enumerate() {
            let term = |p: usize| a[i / n * k + p].to_f64() * b.get(&[p, i % n]).to_f64();
            let (sum, size) = (0..k).map(term).fold((0.0, 0.0), |(s, m), t| (s + t, m + t.abs()));
            assert!((got.to_f64() - sum).abs() <= eps * size + eps * eps, "{i} of {m} x {k} x {n}");
        }
    }
}

#[test]
fn a_tile_multiplies_by_the_matrix_that_it_took_last() {
    let mut rng = Rng::new(37);
    for _ in turns(40) {
        by_tile::<f32>(&mut rng, 6e-6);
        by_tile::<f64>(&mut rng, 1e-14);
    }
}

#[test]
fn a_row_by_a_column_is_one_sum_on_any_number_of_threads() {
    let mut rng = Rng::new(38);
    for k in [8191, 8192, 8193, 40_000, 5 * 8192 + 17] {
        let [a, b] = [[1, k], [k, 1]]
            .map(|shape| Value::<f32>::new(&shape, (0..k).map(|_| small(&mut rng)).collect()));
        let bits = |threads: usize| {
            run(&a, &b, &[1, 1], &Threads { threads, seed: threads as u64 })[0].to_bits()
        };
        let got = bits(1);
        assert_eq!((got, got), (bits(2), bits(5)), "{k}");
        let (sum, size) = reference(&a, &b, &[1, 1])[0];
        assert!((f32::from_bits(got) as f64 - sum).abs() <= 6e-6 * size, "{k}");
        // A column more is another way to the same sums.
        let two = Value::new(&[2, k], [a.to_vec(), a.to_vec()].concat());
        let both: Vec<u32> =
            run(&two, &b, &[2, 1], &Serial).iter().map(|sum| sum.to_bits()).collect();
        assert_eq!(both, [got; 2]);
    }
}

at_every_level! {
    a_row_by_a_column_is_one_sum_on_any_number_of_threads
    a_tile_multiplies_by_the_matrix_that_it_took_last
    products_of_any_layout_and_batch_agree_with_plain_loops
    integers_wrap_and_bool_is_refused
    halves_are_rounded_once
    a_product_without_depth_is_zero
    a_product_is_bitwise_the_same_for_any_number_of_threads
    a_row_or_a_column_by_a_matrix_is_right_for_any_size_and_number_of_threads
    a_packed_weight_gives_the_product_for_any_number_of_rows_and_threads
    what_can_be_packed_is_the_same_to_the_bit_packed_or_not
    rows_that_lie_column_by_column_give_the_same_bits
}
