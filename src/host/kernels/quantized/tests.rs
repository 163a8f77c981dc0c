//! Products of quantised weights beside plain sums, at every level.

use super::super::testing::*;
use super::*;
use crate::dtype::DType;
use crate::view::Serial;
use half::{bf16, f16};

/// A half of either kind, by its format.
fn half(format: Format, x: f64) -> [u8; 2] {
    match format {
        Format::BF16 => bf16::from_f64(x).to_le_bytes(),
        _ => f16::from_f64(x).to_le_bytes(),
    }
}

/// A weight of random blocks whose scales are of moderate size, and the same in float32.
fn weight(rng: &mut Rng, packing: Packing) -> (Vec<u8>, Vec<f32>) {
    let blocks = (0..packing.file_bytes()).map(|_| rng.word() as u8).collect();
    weight_of(blocks, rng, packing)
}

/// The same of given blocks, whose scales are replaced.
fn weight_of(mut blocks: Vec<u8>, rng: &mut Rng, packing: Packing) -> (Vec<u8>, Vec<f32>) {
    let (format, size) = (packing.format, packing.format.block_bytes());
    for block in blocks.chunks_exact_mut(size) {
        let mut scale = |at: usize| {
            block[at..at + 2].copy_from_slice(&half(format, rng.unit() / 16.0));
        };
        match format {
            Format::Q6_K => scale(208),
            Format::Q2_K => [80, 82].into_iter().for_each(&mut scale),
            Format::Q8_0 | Format::Q4_0 => scale(0),
            Format::F16 | Format::BF16 => (0..32).for_each(|i| scale(2 * i)),
            Format::F32 => block.as_chunks_mut().0.iter_mut().for_each(|x| {
                *x = (rng.unit() as f32 / 16.0).to_le_bytes();
            }),
            _ => [0, 2].into_iter().for_each(&mut scale),
        }
    }
    let mut panels = vec![0; packing.bytes()];
    packing.pack_all(&blocks, &mut panels);
    let mut dense = vec![0.0; packing.rows * packing.columns];
    for (block, to) in blocks.chunks_exact(size).zip(dense.chunks_exact_mut(format.block())) {
        dequantize_block(format, block, to);
    }
    (panels, dense)
}

fn by(panels: &[u8], packing: Packing, x: &Value<f32>, par: &dyn Parallel) -> Vec<f32> {
    let shape = [&x.shape[..x.shape.len() - 1], &[packing.rows]].concat();
    let weight =
        View { ptr: panels.as_ptr(), dtype: DType::U8, shape: &[panels.len()], strides: &[1] };
    filled::<f32>(&shape, |out| linear(x.view(), weight, packing, out, par))
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn a_product_is_near_that_of_the_dense_weight() {
    let mut rng = Rng::new(91);
    for format in Format::ALL {
        for turn in 0..6 {
            let packing =
                Packing::new(format, 1 + rng.below(50), format.block() * (1 + rng.below(3)))
                    .unwrap();
            let (panels, dense) = weight(&mut rng, packing);
            let shape = [1 + rng.below(3), [1, 3, 9][turn % 3], packing.columns];
            let x = Value::<f32>::random(&mut rng, &shape, |rng| rng.unit() as f32);
            let got =
                by(&panels, packing, &x, &Threads { threads: 1 + turn % 3, seed: rng.word() });
            for (x, got) in x.to_vec().chunks(packing.columns).zip(got.chunks(packing.rows)) {
                for (w, &got) in dense.chunks(packing.columns).zip(got) {
                    let terms = || x.iter().zip(w).map(|(&x, &w)| x as f64 * w as f64);
                    // Half a unit of 8 bits of the largest activation, at each weight.
                    let halves = format.dtype().map(|_| terms().map(|x| x.abs() * 4e-6).sum());
                    let loose: f64 =
                        w.iter().map(|w| w.abs() as f64).sum::<f64>() / 254.0 * 1.01 + 1e-4;
                    let (wanted, loose): (f64, f64) = (terms().sum(), halves.unwrap_or(loose));
                    assert!(
                        (wanted - got as f64).abs() <= loose,
                        "{format}: {got}, not {wanted} +- {loose}"
                    );
                }
            }
        }
    }
}

/// With activations that 8 bits hold exactly, the sum is exact where scales are powers of two.
#[test]
fn whole_numbers_are_multiplied_exactly() {
    let mut rng = Rng::new(92);
    for format in Format::ALL {
        let packing = Packing::new(format, 33, 512).unwrap();
        let mut blocks: Vec<u8> = (0..packing.file_bytes()).map(|_| rng.word() as u8).collect();
        for block in blocks.chunks_exact_mut(format.block_bytes()) {
            let one = f16::ONE.to_le_bytes();
            match format {
                Format::Q6_K => block[208..].copy_from_slice(&one),
                Format::Q2_K => {
                    [80, 82].into_iter().for_each(|i| block[i..i + 2].copy_from_slice(&one));
                }
                Format::Q8_0 | Format::Q4_0 => block[..2].copy_from_slice(&one),
                Format::F16 | Format::BF16 => {
                    block
                        .as_chunks_mut()
                        .0
                        .iter_mut()
                        .for_each(|x| *x = half(format, x[0] as i8 as f64));
                }
                Format::F32 => {
                    let all = block.as_chunks_mut().0.iter_mut();
                    all.for_each(|x: &mut [u8; 4]| *x = (x[0] as i8 as f32).to_le_bytes());
                }
                _ => (0..2).for_each(|i| block[2 * i..2 * i + 2].copy_from_slice(&one)),
            }
        }
        let mut panels = vec![0; packing.bytes()];
        packing.pack_all(&blocks, &mut panels);
        // Each block of 32 has a 127, so that its scale is 1; few others, so that sums stay small.
        let draw = |i: usize, rng: &mut Rng| match i % 32 {
            5 => 127.0,
            _ if rng.below(3) == 0 => rng.below(255) as f32 - 127.0,
            _ => 0.0,
        };
        let x: Vec<f32> = (0..9 * 512).map(|i| draw(i, &mut rng)).collect();
        let got = by(&panels, packing, &Value::new(&[9, 512], x.clone()), &Serial);
        let mut w = vec![0f32; 512];
        for n in 0..33 {
            dequantize(&panels, packing, n, &mut w);
            for r in 0..9 {
                let wanted: f64 =
                    x[r * 512..][..512].iter().zip(&w).map(|(&x, &w)| x as f64 * w as f64).sum();
                let got = got[r * 33 + n];
                // Partial sums of the K formats may pass 2^24, by a few units.
                assert!(
                    (wanted - got as f64).abs() <= wanted.abs() * 1e-6 + 2.0,
                    "{format}: {got}, not {wanted}"
                );
            }
        }
    }
}

#[test]
fn a_row_is_the_same_among_any_others_and_on_any_threads() {
    let mut rng = Rng::new(93);
    for format in Format::ALL {
        let packing = Packing::new(format, 40, 2 * format.block()).unwrap();
        let (panels, _) = weight(&mut rng, packing);
        let x: Vec<f32> = (0..23 * packing.columns).map(|_| rng.unit() as f32).collect();
        let all = by(&panels, packing, &Value::new(&[23, packing.columns], x.clone()), &Serial);
        for rows in [1, 2, 3, 4, 7, 8, 9, 15, 23] {
            let some = Value::new(&[rows, packing.columns], x[..rows * packing.columns].to_vec());
            let got = by(&panels, packing, &some, &Threads { threads: 3, seed: rng.word() });
            assert!(bits(&got) == bits(&all[..rows * 40]), "{format}: {rows} of 23 rows");
        }
    }
}

#[test]
fn rows_by_matrices_of_their_own_are_as_by_each_alone() {
    let mut rng = Rng::new(96);
    for format in Format::ALL {
        let (groups, rows) = (5, 19);
        let all = Packing::new(format, 5 * 32, 2 * format.block()).unwrap();
        let one = Packing { rows: 32, ..all };
        let (panels, _) = weight(&mut rng, all);
        let x = Value::<f32>::random(&mut rng, &[rows, all.columns], |rng| rng.unit() as f32);
        // One matrix is nobody's.
        let which = Value::<i32>::random(&mut rng, &[rows], |rng| [0, 1, 2, 4][rng.below(4)]);
        let shape = [panels.len()];
        let bytes = View { ptr: panels.as_ptr(), dtype: DType::U8, shape: &shape, strides: &[1] };
        let run = |which: &Value<i32>, par: &dyn Parallel| {
            let of = (one, groups);
            filled::<f32>(&[rows, 32], |out| {
                grouped(x.view(), bytes, which.view(), of, out, par).unwrap();
            })
        };
        let got = run(&which, &Threads { threads: 3, seed: rng.word() });
        assert!(bits(&got) == bits(&run(&which, &Serial)), "{format}: threads show");
        for (row, x) in x.to_vec().chunks(all.columns).enumerate() {
            let matrix = which.get(&[row]) as usize;
            let own = &panels[matrix * one.bytes()..][..one.bytes()];
            let wanted = by(own, one, &Value::new(&[1, all.columns], x.to_vec()), &Serial);
            assert!(bits(&got[row * 32..][..32]) == bits(&wanted), "{format}, row {row}");
        }
        let wrong = Value::<i32>::new(&[rows], [vec![0; 3], vec![5; rows - 3]].concat());
        filled::<f32>(&[rows, 32], |out| {
            let error = grouped(x.view(), bytes, wrong.view(), (one, groups), out, &Serial);
            assert_eq!(error.unwrap_err().position, 3);
        });
    }
}

#[test]
fn every_level_gives_the_same_bits() {
    let mut rng = Rng::new(94);
    let run = |rng: &mut Rng| -> Vec<Vec<u32>> {
        let of = |format: Format| {
            let packing = Packing::new(format, 20, 2 * format.block()).unwrap();
            let (panels, _) = weight(rng, packing);
            let x =
                Value::<f32>::random(rng, &[9, packing.columns], |rng| (rng.unit() * 3.0) as f32);
            bits(&by(&panels, packing, &x, &Serial))
        };
        Format::ALL.into_iter().map(of).collect()
    };
    let own = run(&mut rng);
    for level in super::super::simd::Level::available() {
        super::super::simd::FORCED.set(Some(level));
        let other = run(&mut Rng::new(94));
        super::super::simd::FORCED.set(None);
        assert!(own == other, "at {}", level.name());
    }
}

/// AVX2 sums products up in 16 bits. The largest ones of each format have to fit.
#[test]
fn the_largest_products_are_summed_up_exactly() {
    for format in Format::ALL {
        let packing = Packing::new(format, 16, 2 * format.block()).unwrap();
        for byte in [0xff, 0x80, 0x7f, 0] {
            let blocks = vec![byte; packing.file_bytes()];
            let (panels, dense) = weight_of(blocks, &mut Rng::new(96), packing);
            for signs in [[1.0, 1.0], [-1.0, -1.0], [1.0, -1.0]] {
                let x: Vec<f32> = (0..9 * packing.columns).map(|i| signs[i % 2]).collect();
                let got = by(&panels, packing, &Value::new(&[9, packing.columns], x), &Serial);
                for (i, &got) in got.iter().enumerate() {
                    let row = &dense[i % 16 * packing.columns..][..packing.columns];
                    let terms = || row.iter().zip(signs.iter().cycle());
                    let want = terms().map(|(&w, &x)| f64::from(w * x)).sum::<f64>();
                    let size = terms().map(|(&w, _)| f64::from(w.abs())).sum::<f64>();
                    let off = (f64::from(got) - want).abs();
                    assert!(off <= 1e-5 * size, "{format} of {byte:#x} by {signs:?}: {got} {want}");
                }
            }
        }
    }
}

#[test]
fn what_is_no_number_stays_none() {
    let packing = Packing::new(Format::Q4_1, 3, 64).unwrap();
    let (panels, _) = weight(&mut Rng::new(95), packing);
    for wrong in [f32::NAN, f32::INFINITY, -f32::INFINITY] {
        let mut x = vec![1.0; 128];
        x[70] = wrong;
        let got = by(&panels, packing, &Value::new(&[2, 64], x), &Serial);
        assert!(
            got[..3].iter().all(|x| x.is_finite()) && got[3..].iter().all(|x| !x.is_finite()),
            "{got:?}"
        );
    }
    // The smallest there are count as zeros.
    let got = by(&panels, packing, &Value::new(&[1, 64], vec![f32::MIN_POSITIVE; 64]), &Serial);
    assert_eq!(got, [0.0; 3]);
}

at_every_level! {
    the_largest_products_are_summed_up_exactly
    a_product_is_near_that_of_the_dense_weight
    whole_numbers_are_multiplied_exactly
    a_row_is_the_same_among_any_others_and_on_any_threads
    rows_by_matrices_of_their_own_are_as_by_each_alone
    what_is_no_number_stays_none
}
