//! A trainer over devices and batches: what becomes of buffers, of halves, and of what only one
//! batch uses.

use crate::steps::*;
use futensor::nn::{self, Module, Parameter, Part};
use futensor::optim::Sgd;
use futensor::train::Trainer;
use futensor::{CpuOptions, DType, Device, TensorFuture};

fn two() -> [Device; 2] {
    [Device::cpu(), Device::cpu_with(CpuOptions::default().threads(1))]
}

#[test]
fn buffers_learn_from_the_first_part_and_have_no_error_after_a_step_on_two_devices() {
    let devices = two();
    let home = &devices[0];
    let x = home.randn([6, 3]);
    let net =
        nn::Sequential::new().then(nn::BatchNorm::new(3, home)).then(nn::Linear::new(3, 1, home));
    let trainer = Trainer::new(&devices);
    trainer.prepare_model(&net);
    let mut sgd = Sgd::new(net.parameters(), 0.1);
    for _ in 0..3 {
        let batch = trainer.prepare_batch(&[&x]);
        let loss =
            trainer.step(&net, &mut sgd, &batch, |part| net.forward(&part[0]).square().mean_all());
        assert!(block_on(loss.item::<f32>()).unwrap().is_finite());
        for (name, p) in net.named_buffers().into_iter().chain(net.named_parameters()) {
            assert!(block_on(p.value()).is_ok(), "{name}: {:?}", p.value().error());
            assert_eq!(p.value().device(), *home, "{name}");
        }
    }
    // The same three times, of the first part alone.
    let alone = nn::BatchNorm::new(3, home);
    (0..3).for_each(|_| drop(alone.forward(&x.narrow(0, 0, 3))));
    for (name, buffer) in alone.named_buffers() {
        let own = net
            .named_buffers()
            .into_iter()
            .find(|(other, _)| *other == format!("0.{name}"))
            .unwrap()
            .1;
        assert_eq!(floats(&own.value()), floats(&buffer.value()), "{name}");
    }
}

/// A model that is a number, which each batch weighs by what is in it.
struct Number(Parameter);

impl Module for Number {
    fn forward(&self, x: &TensorFuture) -> TensorFuture {
        // The mean over the rows: all are alike.
        (self.0.value() * x.narrow(0, 0, 1).reshape([1])).sum_all()
    }
    fn parts(&self, visit: &mut dyn FnMut(&str, Part<'_>)) {
        visit("number", Part::Parameter(&self.0));
    }
}

/// More rows than a half can count: their number is never one.
#[test]
fn halves_are_weighed_by_numbers_of_rows_that_no_half_holds() {
    let devices = two();
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        for trainer in [Trainer::new(&devices[..1]), Trainer::new(&devices)] {
            let net = Number(Parameter::new(devices[0].ones_dtype([1], dtype)));
            let batch = |rows: usize, x: f64| {
                trainer.prepare_batch(&[&devices[0].full_dtype([rows, 1], x, dtype)])
            };
            // 50,001 rows of 2, and 24,999 of -1: a mean of 1.00004.
            let batches = [batch(50_001, 2.0), batch(24_999, -1.0)];
            let mut sgd = Sgd::new(net.parameters(), 0.25);
            let loss = trainer.step_over(&net, &mut sgd, &batches, |part| net.forward(&part[0]));
            assert_eq!(loss.dtype(), dtype);
            assert!((floats(&loss)[0] - 1.0).abs() < 1e-3, "{dtype}: {:?}", floats(&loss));
            assert!(
                (floats(&net.0.value())[0] - 0.75).abs() < 1e-3,
                "{dtype}: {:?}",
                floats(&net.0.value())
            );
        }
    }
}

#[test]
fn what_one_batch_alone_uses_is_trained_by_it() {
    let device = Device::cpu();
    let net = nn::Sequential::new()
        .then(nn::Linear::without_bias(1, 1, &device))
        .then(nn::Linear::without_bias(1, 1, &device));
    let set = |k: usize, x: f64| net[k].parameter("weight").unwrap().set(device.full([1, 1], x));
    let trainer = Trainer::new([&device]);
    for order in [[0.0, 1.0], [1.0, 0.0]] {
        set(0, 1.0);
        set(1, 1.0);
        let batches = order.map(|which| trainer.prepare_batch(&[&device.full([2, 1], which)]));
        let mut sgd = Sgd::new(net.parameters(), 0.5);
        let loss = trainer.step_over(&net, &mut sgd, &batches, |part| {
            let which = block_on(part[0].i((0, 0)).item::<f32>()).unwrap() as usize;
            net[which].parameter("weight").unwrap().value().sum_all() * (which + 1) as f64
        });
        assert_eq!(floats(&loss), [1.5]);
        let weight = |k: usize| floats(&net[k].parameter("weight").unwrap().value())[0];
        assert_eq!([weight(0), weight(1)], [0.75, 0.5]);
    }
}

#[test]
fn a_step_over_no_batch_is_an_error_and_changes_nothing() {
    let device = Device::cpu();
    let (net, trainer) = (nn::Linear::new(3, 1, &device), Trainer::new([&device]));
    let before = floats(&net.weight());
    let mut sgd = Sgd::new(net.parameters(), 0.1);
    let loss = trainer.step_over(&net, &mut sgd, &[], |part| net.forward(&part[0]).sum_all());
    let error = loss.error().expect("it is known at once");
    assert!(error.is_argument() && error.location().file().ends_with("trainers.rs"), "{error}");
    assert_eq!(floats(&net.weight()), before);
}
