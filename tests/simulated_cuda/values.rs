//! Values come out right, wherever they came from.

use super::support::block_on;
use super::{Entry, entries};
use futensor::{CudaOptions, Device};
use futensor_simulated_driver::Simulator;

pub fn all() -> Vec<Entry> {
    entries![1, false; a_sum_of_ones_is_two].to_vec()
}

pub fn device(index: usize) -> Device {
    Device::cuda_with(index, CudaOptions::default()).expect("a simulated GPU")
}

fn a_sum_of_ones_is_two(_: &Simulator, _: u64) {
    let device = device(0);
    let x = device.ones([1, 2]);
    let y = &x * 2.0 + device.arange(0.0, 2.0, 1.0);
    assert_eq!(block_on(y.to_vec::<f32>()).unwrap(), [2.0, 3.0]);
}
