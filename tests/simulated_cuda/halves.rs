//! Rows by weights that are halves: each has its own bits, whoever else is there.

use super::support::block_on;
use super::{Entry, device, entries};
use futensor::cuda::{CudaOptions, HalfProducts};
use futensor::quant::{Format, Quantized};
use futensor::{Device, TensorFuture};
use futensor_simulated_driver::Simulator;

pub fn all() -> Vec<Entry> {
    entries![1, false;
        a_row_by_halves_has_the_same_bits_among_any_others
        halves_are_multiplied_as_the_option_says]
    .to_vec()
}

fn bits(x: TensorFuture) -> Vec<u32> {
    block_on(x.to_vec::<f32>()).unwrap().into_iter().map(f32::to_bits).collect()
}

fn a_row_by_halves_has_the_same_bits_among_any_others(_: &Simulator, seed: u64) {
    let (gpu, cpu) = (device(0), Device::cpu_with(Default::default()));
    cpu.seed(seed);
    for format in [Format::F16, Format::BF16] {
        // Sums of 64 columns: more than the warps of a block, and half of one at the end.
        let weight = Quantized::from_tensor(&cpu.randn([45, 544]), format).unwrap();
        let (x, there) = (cpu.randn([200, 544]), weight.to_device(&gpu));
        let all = bits(there.linear(x.to_device(&gpu)));
        for (rows, first) in [(1, 77), (7, 3), (16, 184), (17, 90), (64, 136)] {
            let some = bits(there.linear(x.narrow(0, first, rows).to_device(&gpu)));
            assert!(some == all[first * 45..(first + rows) * 45], "{format}, {rows} rows");
        }
        // In a region, which runs as a graph.
        let by = there.clone();
        let region = gpu.region(move |x: TensorFuture| [by.linear(&x)]);
        for _ in 0..3 {
            let [found] = region.call(x.narrow(0, 60, 30).to_device(&gpu));
            assert!(bits(found) == all[60 * 45..90 * 45], "{format}");
        }
    }
}

fn halves_are_multiplied_as_the_option_says(_: &Simulator, seed: u64) {
    let cpu = Device::cpu_with(Default::default());
    cpu.seed(seed);
    let ways = [HalfProducts::Split, HalfProducts::Rounded, HalfProducts::Exact];
    let devices = ways.map(|how| {
        Device::cuda_with(0, CudaOptions::default().half_products(how)).expect("a simulated GPU")
    });
    for (format, bounds) in
        [(Format::F16, [2e-6, 2f64.powi(-11), 0.0]), (Format::BF16, [2e-5, 2f64.powi(-8), 0.0])]
    {
        let weight = Quantized::from_tensor(&cpu.randn([20, 64]), format).unwrap();
        for rows in [1, 20, 70] {
            let x = cpu.randn([rows, 64]);
            let exact = weight.linear(&x);
            let size = weight.dequantize().abs();
            let size = block_on(x.abs().linear(&size, None).to_vec::<f32>()).unwrap();
            let want = block_on(exact.to_vec::<f32>()).unwrap();
            for ((gpu, bound), how) in devices.iter().zip(bounds).zip(ways) {
                let got = weight.to_device(gpu).linear(x.to_device(gpu));
                let got = block_on(got.to_vec::<f32>()).unwrap();
                // Of all results, relative to the magnitudes of what was added.
                let each = got.iter().zip(&want).zip(&size);
                let off =
                    each.map(|((a, b), size)| ((a - b) / size).abs() as f64).fold(0.0, f64::max);
                assert!(off <= bound, "{format} {how:?}, {rows} rows: off by {off}");
                // Each is another way: one half is farther off than two.
                assert!(how != HalfProducts::Rounded || off > bounds[0], "{format}: {off}");
            }
        }
    }
}
