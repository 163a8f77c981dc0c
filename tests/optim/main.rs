//! The parts that models are trained with: halves are computed in float32, steps are counted for
//! each parameter, states are loaded, and no thread's step is lost. Values beside PyTorch's in
//! float32 are in `training`.

#[path = "../reference/steps.rs"]
mod steps;

mod kept;
mod layers;
mod schedules;
mod threads;
mod trainers;

use futensor::nn::Parameter;
use futensor::optim::{self, Optimizer};
use futensor::{DType, Device, ranks::Group};
use steps::*;

#[test]
fn halves_step_as_float64_rounded_once_whatever_the_scale() {
    halves_step_as_float64_rounded_once(&Device::cpu(), &OPTIMIZERS);
}

#[test]
fn a_region_steps_halves_as_well() {
    a_region_steps_halves_as_float64_rounded_once(&Device::cpu(), &OPTIMIZERS);
}

#[test]
fn norms_and_gradients_of_halves_are_clipped_as_float64_rounded_once() {
    let device = Device::cpu();
    halves_are_clipped_as_float64_rounded_once(&device);
    let half = |x: [f32; 2]| device.from_slice(&x, [2]).to_dtype(DType::F16);
    let (clipped, norm) = optim::clip_grad_norm(&[half([300.0, 400.0])], 1.0);
    one_ulp(&norm, &device.full_dtype((), 500.0, DType::F16), "the norm of 300 and 400");
    one_ulp(&clipped[0], &half([0.6, 0.8]), "300 and 400");
    let (clipped, norm) = optim::clip_grad_norm(&[half([1e-4, 1e-4])], 1e-5);
    one_ulp(&norm, &device.full_dtype((), 1.4142e-4, DType::F16), "a small norm");
    one_ulp(&clipped[0], &half([7.02e-6, 7.02e-6]), "small gradients");
    // By less than a half can say in any digits.
    let (clipped, _) = optim::clip_grad_norm(&[half([30_000.0, 0.0])], 0.01);
    one_ulp(&clipped[0], &half([0.01, 0.0]), "a large gradient");
    // The norm of both kinds of halves together is of the type that they meet in.
    let both = [half([3.0, 0.0]), device.full([1], 4.0).to_dtype(DType::BF16)];
    let (clipped, norm) = optim::clip_grad_norm(&both, 1.0);
    assert_eq!((norm.dtype(), block_on(norm.item::<f32>()).unwrap()), (DType::F32, 5.0));
    assert_eq!([clipped[0].dtype(), clipped[1].dtype()], [DType::F16, DType::BF16]);
}

/// Gradients of 300, whose squares are no halves, and then of 0.5.
#[test]
fn adam_is_not_frozen_by_a_large_gradient_of_halves() {
    let device = Device::cpu();
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        let p = Parameter::new(device.ones_dtype([1], dtype));
        let mut adam = optim::Adam::new(vec![p.clone()], 0.01);
        let mut last = 1.0;
        for (gradient, want) in [(300.0, 0.990), (0.5, 0.983), (0.5, 0.978)] {
            block_on(adam.step(&[device.full_dtype([1], gradient, dtype)])).unwrap();
            let got = floats(&p.value())[0];
            assert!((got - want).abs() < 5e-3 && got < last, "{dtype}: {got}, and not {want}");
            last = got;
        }
    }
}

#[test]
fn a_parameter_that_is_used_later_is_stepped_as_by_pytorch() {
    let device = Device::cpu();
    let plain = |name: &str, p| optimizer(name, p, 0.1);
    steps_are_counted_for_each_parameter(&device, plain, None);
    steps_are_counted_for_each_parameter(&device, plain, Some(&|state| state));
    // Shared out over ranks as well: one, here.
    let sharded = |name: &str, p| -> Box<dyn Optimizer> {
        let name = name.to_string();
        Box::new(optim::Sharded::new(p, &Group::alone(), move |own| optimizer(&name, own, 0.1)))
    };
    steps_are_counted_for_each_parameter(&device, sharded, None);
    steps_are_counted_for_each_parameter(&device, sharded, Some(&|state| state));
    // From a file as well.
    let save = |state: optim::State| {
        let path =
            std::env::temp_dir().join(format!("futensor-optim-{}.safetensors", std::process::id()));
        block_on(futensor::safetensors::save(&path, state)).expect("a file");
        let all = block_on(futensor::safetensors::load(&path, &device).all()).expect("the file");
        std::fs::remove_file(&path).expect("the file");
        all.into_iter().collect()
    };
    steps_are_counted_for_each_parameter(&device, plain, Some(&save));
}

#[test]
fn adam_in_float64_is_computed_in_float64_whoever_is_beside_it() {
    let device = Device::cpu();
    let reference = reference(&device);
    for before in [true, false] {
        let p = Parameter::new(&reference["float64/start"]);
        let beside = Parameter::new(device.ones([2]));
        let mut both = vec![p.clone()];
        both.insert(if before { 0 } else { 1 }, beside.clone());
        let mut adam = optim::Adam::new(both, 0.1);
        for k in 0..4 {
            let mut gradients = vec![reference[&format!("float64/gradient/{k}")].clone()];
            gradients.insert(if before { 0 } else { 1 }, device.ones([2]));
            block_on(adam.step(&gradients)).unwrap();
        }
        let (got, want) = (floats(&p.value()), floats(&reference["float64/end"]));
        let worst = got.iter().zip(&want).map(|(g, w)| (g - w).abs()).fold(0.0, f64::max);
        assert!(worst < 1e-13, "{worst} apart");
        assert!(floats(&beside.value()).iter().all(|x| (x - 0.6).abs() < 1e-6));
    }
}
