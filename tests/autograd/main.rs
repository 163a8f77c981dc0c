//! The promises of gradients. Values against central differences in float64, seeded
//! (`FUTENSOR_SEED`; printed); what PyTorch computes is compared in `tests/ops_reference.rs`.

mod attention;
mod cases;
mod differences;
mod edges;
mod errors;
mod halves;
mod memory;
mod pieces;
mod products;
mod tape;

#[allow(dead_code)]
#[path = "../reference/mod.rs"]
mod reference;

use futensor::{Device, TensorFuture};

/// Runs what can be awaited to its end on this thread.
pub fn block_on<F: IntoFuture>(f: F) -> F::Output {
    futures::executor::block_on(f.into_future())
}

/// The elements, as float64.
pub fn read(x: &TensorFuture) -> Vec<f64> {
    block_on(x.to_dtype(futensor::DType::F64).to_vec::<f64>()).unwrap()
}

/// What decides the random operands; printed, so that a failure can be repeated.
pub fn seed() -> u64 {
    let seed =
        std::env::var("FUTENSOR_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(20_261_121);
    println!("FUTENSOR_SEED={seed}");
    seed
}

/// A device of the test's own.
pub fn device() -> Device {
    Device::cpu_with(futensor::CpuOptions::default().threads(2).nice(0))
}
