//! Rows by a matrix each, as a mixture of experts has them: one by one, and in tiles that share a
//! reading of their matrix.

use super::support::{Rng, block_on};
use super::{Entry, device, entries};
use futensor::quant::{Format, Quantized};
use futensor::{DType, Device, TensorFuture};
use futensor_simulated_driver::Simulator;

pub fn all() -> Vec<Entry> {
    entries![1, false;
        rows_that_share_a_matrix_have_the_cpus_bits
        many_matrices_and_many_rows_have_the_cpus_bits
        the_first_name_of_no_matrix_is_the_one_that_is_told]
    .to_vec()
}

fn bits(x: TensorFuture) -> Vec<u32> {
    block_on(x.to_vec::<f32>()).unwrap().into_iter().map(f32::to_bits).collect()
}

/// A weight of any bytes but those of numbers that are none.
fn weight(rng: &mut Rng, format: Format, dims: [usize; 2]) -> Quantized {
    let cpu = Device::cpu();
    if let Some(dtype) = format.dtype() {
        return Quantized::from_tensor(&cpu.randn(dims).to_dtype(dtype), format).unwrap();
    }
    let bytes = dims[0] * dims[1] / format.block() * format.block_bytes();
    let blocks: Vec<u8> = (0..bytes).map(|_| (rng.next() % 0x70) as u8).collect();
    Quantized::from_blocks(&cpu, &blocks, format, dims).unwrap()
}

fn same(weight: &Quantized, x: &TensorFuture, which: &TensorFuture, groups: usize, what: &str) {
    let gpu = device(0);
    let there = weight.to_device(&gpu);
    let got = there.grouped_linear(x.to_device(&gpu), which.to_device(&gpu), groups);
    let (got, wanted) = (bits(got), bits(weight.grouped_linear(x, which, groups)));
    assert!(got == wanted, "{what}, {} in {}", x.shape(), weight.format());
}

fn rows_that_share_a_matrix_have_the_cpus_bits(_: &Simulator, seed: u64) {
    let (cpu, mut rng) = (Device::cpu(), Rng(seed));
    cpu.seed(seed);
    for format in Format::ALL {
        // Of one panel, and of more than the panels of a block. One by one, in tiles of eight, in
        // tiles of 64.
        for (groups, of_one, all) in [(3, 16, &[1, 17, 70][..]), (3, 144, &[40])] {
            let n = groups as i64;
            let weight = weight(&mut rng, format, [groups * of_one, 256]);
            for &rows in all {
                let x = cpu.randn([rows, 256]);
                let named = |name: &dyn Fn(i64) -> i64| {
                    cpu.from_vec((0..rows as i64).map(name).collect(), [rows])
                };
                let mixed = named(&|i| (i * i + i / 7) % n);
                same(&weight, &x, &mixed, groups, "mixed");
                if of_one > 16 {
                    continue;
                }
                same(&weight, &x, &named(&|_| n - 1).to_dtype(DType::U8), groups, "all by one");
                let few = named(&|i| if i < 9 { 1 } else { 1 + i % (n - 2) });
                same(&weight, &x, &few.to_dtype(DType::I32), groups, "none by the first and last");
            }
        }
    }
}

fn many_matrices_and_many_rows_have_the_cpus_bits(_: &Simulator, seed: u64) {
    let (cpu, mut rng) = (Device::cpu(), Rng(seed));
    // Some, more than are told apart, and more rows than a grid is high.
    for (groups, rows) in [(300, 700), (1040, 1500), (2, 70_000)] {
        let weight = weight(&mut rng, Format::Q4_0, [groups * 16, 32]);
        let x = cpu.randn([rows, 32]);
        let which = (0..rows).map(|_| (rng.next() % groups as u64) as i64).collect();
        same(&weight, &x, &cpu.from_vec(which, [rows]), groups, "at random");
    }
}

fn the_first_name_of_no_matrix_is_the_one_that_is_told(_: &Simulator, seed: u64) {
    let (gpu, mut rng) = (device(0), Rng(seed));
    for format in [Format::Q8_0, Format::F16] {
        let there = weight(&mut rng, format, [3 * 16, 256]).to_device(&gpu);
        for rows in [2, 60, 300] {
            let name = |i: i64| if i % 300 == 1 || i > 250 { 3 + i } else { i % 3 };
            let wrong = gpu.from_vec((0..rows as i64).map(name).collect(), [rows]);
            let got = there.grouped_linear(gpu.ones([rows, 256]), wrong, 3);
            let error = block_on(got).unwrap_err();
            assert!(error.is_index() && error.message().contains("4"), "{error}");
            let below = gpu.from_vec(vec![-1i64; rows], [rows]);
            let got = there.grouped_linear(gpu.ones([rows, 256]), below, 3);
            assert!(block_on(got).unwrap_err().is_index());
        }
    }
}
