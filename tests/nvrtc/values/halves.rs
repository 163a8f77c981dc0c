//! Products with weights that are halves beside float64, and beside themselves among other rows.

use super::Random;
use crate::cuda::kernels::halves::{HalfProducts, Product, plan};
use crate::format::{Format, Packing};
use crate::on_host::{Batch, Buffer};
use half::{bf16, f16};

const ROWS: usize = 200;

/// A weight, packed, and as numbers.
fn weight(r: &mut Random, packing: Packing) -> (Vec<u8>, Vec<f64>) {
    let (mut bits, mut numbers) = (Vec::new(), Vec::new());
    for _ in 0..packing.rows * packing.columns {
        let x = r.float() as f32;
        let (two, number) = match packing.format {
            Format::F16 => (f16::from_f32(x).to_bits(), f16::from_f32(x).to_f64()),
            _ => (bf16::from_f32(x).to_bits(), bf16::from_f32(x).to_f64()),
        };
        bits.extend(two.to_le_bytes());
        numbers.push(number);
    }
    let mut panels = vec![0; packing.bytes()];
    packing.pack_all(&bits, &mut panels);
    (panels, numbers)
}

/// What a kernel may be off by, of the sum of the magnitudes, as the options' documentation says.
fn bound(format: Format, how: HalfProducts, columns: usize) -> f64 {
    let cut = match (format, how) {
        (_, HalfProducts::Exact) => 0.0,
        (Format::F16, HalfProducts::Split) => 2f64.powi(-22),
        (Format::F16, HalfProducts::Rounded) => 2f64.powi(-11),
        (_, HalfProducts::Split) => 2f64.powi(-16),
        (_, HalfProducts::Rounded) => 2f64.powi(-8),
    };
    cut + columns as f64 * 2f64.powi(-23)
}

pub fn neighbours() {
    let mut r = Random(11);
    let mut batch = Batch::default();
    let ways = [HalfProducts::Split, HalfProducts::Rounded, HalfProducts::Exact];
    let formats = [Format::F16, Format::BF16];
    let all = formats.into_iter().flat_map(|format| ways.map(|how| (format, how)));
    for (format, how) in all {
        // Less than 64 columns; more than eight warps share, with 32 at the end; less than they
        // share.
        for [n, columns] in [[150, 32], [40, 608], [17, 96]] {
            let packing = Packing::new(format, n, columns).expect("whole blocks");
            let (panels, w) = weight(&mut r, packing);
            // Rows of very different sizes, as far as float16 overflows and vanishes.
            let scale = |row: usize| [1.0, 1e-4, 300.0, 1e30, 1e-30, 70_000.0][row % 6];
            let x: Vec<f32> =
                (0..ROWS * columns).map(|i| (r.float() * scale(i / columns)) as f32).collect();
            let rows_of = |first: usize, rows: usize| {
                let part = &x[first * columns..(first + rows) * columns];
                let plan = plan(Product { packing, rows }, how).expect("a plan");
                let buffers = vec![Buffer::of(part), Buffer::of(&panels)];
                (plan, buffers, vec![Buffer::of(&vec![7f32; rows * n])])
            };
            let (plan, inputs, outputs) = rows_of(0, ROWS);
            let found = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
            let (kept, given, w) = (found.clone(), x.clone(), w.clone());
            batch.add(plan, inputs, outputs, move |outputs, _| {
                let got = outputs[0].get::<f32>();
                for (i, &got) in got.iter().enumerate() {
                    let (row, column) = (i / n, i % n);
                    let terms = (0..columns)
                        .map(|k| given[row * columns + k] as f64 * w[column * columns + k]);
                    let (sum, size) =
                        terms.fold((0.0, 0.0), |(sum, size), t: f64| (sum + t, size + t.abs()));
                    // What float32 has no room for is none of the order's.
                    let room = f32::MIN_POSITIVE as f64;
                    let most = bound(format, how, columns) * size + room;
                    let off = (got as f64 - sum).abs();
                    assert!(off <= most, "{format} {how:?} {row} {column}: {got} for {sum}");
                }
                *kept.borrow_mut() = got;
            });
            for (rows, first) in [(1, 0), (1, 137), (7, 20), (16, 184), (17, 100), (64, 3)] {
                let (plan, inputs, outputs) = rows_of(first, rows);
                let found = found.clone();
                batch.add(plan, inputs, outputs, move |outputs, _| {
                    let got = outputs[0].get::<f32>();
                    let among = &found.borrow()[first * n..(first + rows) * n];
                    let same = got.iter().zip(among).all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(same, "{format} {how:?} [{n}, {columns}]: {rows} rows from {first}");
                });
            }
        }
    }
    batch.run();
}

/// A row that has an infinity or no number is alone with it; one of zeros is zeros.
pub fn without_numbers() {
    let mut r = Random(12);
    let mut batch = Batch::default();
    for format in [Format::F16, Format::BF16] {
        for (how, rows) in [(HalfProducts::Split, 5), (HalfProducts::Rounded, 70)] {
            let packing = Packing::new(format, 16, 64).expect("whole blocks");
            let (panels, _) = weight(&mut r, packing);
            let mut x: Vec<f32> = (0..rows * 64).map(|_| r.float() as f32).collect();
            x[70] = f32::INFINITY;
            x[130] = f32::NAN;
            x[192..256].fill(0.0);
            let plan = plan(Product { packing, rows }, how).expect("a plan");
            let out = Buffer::of(&vec![7f32; rows * 16]);
            batch.add(plan, [Buffer::of(&x), Buffer::of(&panels)], [out], move |outputs, _| {
                let got = outputs[0].get::<f32>();
                for (row, got) in got.chunks(16).enumerate() {
                    let right = match row {
                        1 => got.iter().all(|x| x.is_infinite()),
                        2 => got.iter().all(|x| x.is_nan()),
                        3 => got.iter().all(|&x| x == 0.0),
                        _ => got.iter().all(|x| x.is_finite()),
                    };
                    assert!(right, "{format} {how:?} row {row}: {got:?}");
                }
            });
        }
    }
    batch.run();
}
