//! Ops without a kernel on GPUs: the host computes them, and their results are values of the GPU.

use super::support::block_on;
use super::{Entry, device, entries};
use futensor::fft::Norm;
use futensor::{Device, TensorFuture, grad};
use futensor_simulated_driver::Simulator;

pub fn all() -> Vec<Entry> {
    entries![1, false;
        what_the_host_computes_comes_back_with_its_gradient
        factors_of_a_gpus_matrix_are_values_of_the_gpu
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

fn factors_of_a_gpus_matrix_are_values_of_the_gpu(_: &Simulator, _: u64) {
    let (host, gpu) = (Device::cpu(), device(0));
    let x = block_on(host.randn([2, 4, 4])).unwrap();
    let run = |x: TensorFuture| {
        let x = x.requires_grad();
        let (values, vectors) = x.eigh();
        let solved = x.solve(&vectors);
        assert!([&values, &vectors, &solved].iter().all(|y| y.device() == x.device()));
        let gradient = grad(values.sum_all() + solved.sum_all(), &[&x]).remove(0);
        (bits(&values), bits(&solved), gradient.to_device(&host))
    };
    let ((values, solved, gradient), own) = (run(x.to_device(&gpu)), run(x.into()));
    assert_eq!((values, solved), (own.0, own.1));
    // A gradient of two parts is their sum in either order.
    let apart = (gradient - own.2).abs().max_all();
    assert!(block_on(apart.item::<f32>()).unwrap() < 1e-4);
    let singular = gpu.zeros([2, 2]).inverse();
    assert!(block_on(singular.wait_to_read()).unwrap_err().message().contains("singular"));
    let apart = gpu.ones([2, 2]).solve(host.ones([2]));
    assert!(apart.error().is_some_and(|e| e.is_device()));
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
