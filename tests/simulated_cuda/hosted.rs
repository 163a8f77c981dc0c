//! Ops without a kernel on GPUs: the host computes them, and their results are values of the GPU.

use super::support::block_on;
use super::{Entry, device, entries};
use futensor::fft::Norm;
use futensor::{Device, TensorFuture, grad};
use futensor_simulated_driver::Simulator;

pub fn all() -> Vec<Entry> {
    entries![1, false;
        what_the_host_computes_comes_back_with_its_gradient
        what_is_refused_is_refused_at_once]
    .to_vec()
}

fn bits(x: &TensorFuture) -> Vec<u32> {
    let values = block_on(x.to_vec::<f32>()).unwrap_or_else(|error| panic!("{error}"));
    values.into_iter().map(f32::to_bits).collect()
}

fn what_the_host_computes_comes_back_with_its_gradient(_: &Simulator, _: u64) {
    let (host, gpu) = (Device::cpu(), device(0));
    let run = |x: TensorFuture| {
        let x = x.requires_grad();
        let y = x.rfft(None, -1, Norm::Ortho);
        assert_eq!(y.device(), x.device());
        let gradient = grad((&y * &y * &y).sum_all(), &[&x]).remove(0);
        assert_eq!(gradient.device(), x.device());
        (bits(&y), bits(&gradient))
    };
    let x = block_on(host.randn([3, 10])).unwrap();
    let moved = x.to_device(&gpu);
    assert_eq!(run(moved), run(x.into()));
}

fn what_is_refused_is_refused_at_once(_: &Simulator, _: u64) {
    let gpu = device(0);
    let x = gpu.ones([3, 4]);
    let refused = x.fft(None, -1, Norm::Backward);
    assert!(refused.error().is_some_and(|e| e.is_shape()) && refused.device() == gpu);
    // A region plans what it traces, and a copy to the host is no part of a plan.
    let region = gpu.region(|x: TensorFuture| x.rfft(None, -1, Norm::Backward));
    let error = block_on(region.call(x)).expect_err("a region on a GPU");
    assert!(error.to_string().contains("region"), "{error}");
}
