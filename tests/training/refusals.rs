//! Refusals of optimizers, and the state that they keep between steps.

use crate::support::{STEPS, bits, block_on, optimizer};
use futensor::nn::Parameter;
use futensor::optim::{self, Optimizer};
use futensor::{CpuOptions, DType, Device, TensorFuture};

#[test]
fn parameters_without_a_gradient_stay_as_they_are_as_in_pytorch() {
    let device = Device::cpu();
    let (used, unused) = (Parameter::new(device.ones([2])), Parameter::new(device.ones([2])));
    let mut adam = optim::AdamW::new(vec![unused.clone(), used.clone()], 0.1);
    block_on(adam.minimize(&used.value().sum_all())).unwrap();
    assert_eq!(bits(&unused), [1.0f32.to_bits(); 2]);
    assert_ne!(bits(&used), [1.0f32.to_bits(); 2]);
    used.train(false);
    let error = block_on(adam.minimize(&used.value().sum_all())).unwrap_err();
    assert!(error.message().contains("none of the parameters"), "{error}");
}

#[test]
fn gradients_that_are_not_the_parameters_are_refused() {
    let device = Device::cpu();
    let other = Device::cpu_with(CpuOptions::default().threads(1));
    let p = Parameter::new(device.ones([2, 3]));
    let mut sgd = optim::Sgd::new(vec![p.clone()], 0.1);
    let error = |step: optim::Step| step.error().expect("known at the call");
    assert!(error(sgd.step(&[device.ones([3])])).is_shape(), "it would broadcast");
    assert!(error(sgd.step(&[])).is_argument());
    assert!(error(sgd.step(&[device.ones([2, 3]), device.ones([2, 3])])).is_argument());
    assert!(error(sgd.step(&[other.ones([2, 3])])).is_device());
    assert_eq!(bits(&p), [1.0f32.to_bits(); 6]);
    let mut nothing = optim::Sgd::new(Vec::new(), 0.1);
    assert!(error(nothing.minimize(&p.value().sum_all())).is_argument());
}

#[test]
fn numbers_that_make_no_sense_are_refused_by_name_and_train_nothing() {
    use optim::{Adam, AdamW, Constant, Cosine, Optimizer, Schedule, Sgd, StepDecay, Warmup};
    let device = Device::cpu();
    let p = Parameter::new(device.ones([2]));
    let all = || vec![p.clone()];
    let mut wrong: Vec<(&str, Box<dyn Optimizer>)> = Vec::new();
    for rate in [-1.0, f64::NAN, f64::INFINITY] {
        wrong.push(("learning rate", Box::new(Sgd::new(all(), rate))));
        wrong.push(("learning rate", Box::new(Adam::new(all(), rate))));
        wrong.push(("learning rate", Box::new(AdamW::new(all(), rate))));
        wrong.push(("momentum", Box::new(Sgd::new(all(), 0.1).momentum(rate))));
        wrong.push(("weight decay", Box::new(Sgd::new(all(), 0.1).weight_decay(rate))));
        wrong.push(("weight decay", Box::new(AdamW::new(all(), 0.1).weight_decay(rate))));
        wrong.push(("first beta", Box::new(Adam::new(all(), 0.1).betas(rate, 0.9))));
        wrong.push(("second beta", Box::new(Adam::new(all(), 0.1).betas(0.9, rate))));
        wrong.push(("eps", Box::new(Adam::new(all(), 0.1).eps(rate))));
    }
    wrong.push(("dampening", Box::new(Sgd::new(all(), 0.1).momentum(0.9).dampening(f64::NAN))));
    wrong.push(("second beta", Box::new(Adam::new(all(), 0.1).betas(0.9, 1.0))));
    wrong.push(("Nesterov", Box::new(Sgd::new(all(), 0.1).nesterov(true))));
    wrong.push((
        "Nesterov",
        Box::new(Sgd::new(all(), 0.1).momentum(0.9).dampening(0.1).nesterov(true)),
    ));
    for (what, optimizer) in &mut wrong {
        let error = optimizer.error().unwrap_or_else(|| panic!("{what} is not checked"));
        assert!(error.is_argument() && error.message().contains(*what), "{what}: {error}");
        assert!(error.location().file() == file!(), "{error}");
        let step = optimizer.minimize(&p.value().sum_all());
        assert!(step.error().is_some_and(|e| e.message() == error.message()), "{what}");
    }
    assert_eq!(bits(&p), [1.0f32.to_bits(); 2]);

    let schedules: Vec<Box<dyn Schedule>> = vec![
        Box::new(Constant(-0.1)),
        Box::new(StepDecay::new(f64::NAN, 2, 0.5)),
        Box::new(StepDecay::new(0.1, 2, -0.5)),
        Box::new(Cosine::new(-0.1, 10)),
        Box::new(Cosine::new(0.1, 10).down_to(f64::NAN)),
        Box::new(Warmup::new(3, Constant(f64::INFINITY))),
    ];
    for (k, schedule) in schedules.iter().enumerate() {
        let mut sgd = Sgd::new(all(), 0.1);
        sgd.set_lr(schedule.lr(0));
        assert!(sgd.error().is_some(), "schedule {k} gives {}", schedule.lr(0));
        sgd.set_lr(0.1);
        assert!(sgd.error().is_none());
    }
    for limit in [-1.0, f64::NAN] {
        let g = [device.ones([2])];
        let (clipped, norm) = optim::clip_grad_norm(&g, limit);
        for value in [&clipped[0], &norm, &optim::clip_grad_value(&g, limit)[0]] {
            let error = value.error().expect("a limit that makes no sense");
            assert!(error.is_argument() && error.location().file() == file!(), "{error}");
        }
    }
}

/// Each kind that keeps something of its own between steps.
fn optimizers(w: &Parameter) -> Vec<(&'static str, Box<dyn Optimizer>)> {
    let w = || vec![w.clone()];
    vec![
        ("Sgd", Box::new(optim::Sgd::new(w(), 0.1))),
        (
            "momentum",
            Box::new(optim::Sgd::new(w(), 0.1).momentum(0.9).dampening(0.5).weight_decay(0.01)),
        ),
        ("Adam", Box::new(optim::Adam::new(w(), 0.1))),
        ("AdamW", Box::new(optim::AdamW::new(w(), 0.1))),
    ]
}

#[test]
fn what_an_optimizer_keeps_follows_a_parameter_that_was_moved() {
    let (home, away) = (Device::cpu(), Device::cpu_with(CpuOptions::default().threads(1)));
    for k in 0..4 {
        let ends = [home.clone(), away.clone()].map(|end| {
            let w = Parameter::new(home.from_vec(vec![1.0f32, -2.0, 3.0], [3]));
            let (name, mut optimizer) = optimizers(&w).swap_remove(k);
            for step in 0..4 {
                if step == 2 {
                    w.set(w.value().to_device(&end));
                }
                block_on(optimizer.minimize(&w.value().square().sum_all()))
                    .unwrap_or_else(|e| panic!("{name}: {e}"));
            }
            assert_eq!(w.value().device(), end, "{name}");
            bits(&w)
        });
        assert_eq!(ends[0], ends[1], "optimizer {k}: moving it changes no number");
    }
}

#[test]
fn a_gradient_or_a_parameter_that_does_not_fit_is_refused_and_changes_nothing() {
    let device = Device::cpu();
    for k in 0..4 {
        let w = Parameter::new(device.from_vec(vec![1.0f32, 2.0], [2]));
        let (name, mut optimizer) = optimizers(&w).swap_remove(k);
        block_on(optimizer.step(&[device.ones([2])])).unwrap();
        let before = bits(&w);
        let error = block_on(optimizer.step(&[device.ones_dtype([2], DType::F64)])).unwrap_err();
        assert!(error.is_dtype() && error.message().contains("float64"), "{name}: {error}");
        assert_eq!(bits(&w), before, "{name}");
        block_on(optimizer.step(&[device.ones([2])])).unwrap();
        w.set(device.ones([3]));
        let step = optimizer.step(&[device.ones([3])]);
        if name == "Sgd" {
            block_on(step).unwrap(); // it keeps nothing that would not fit
            continue;
        }
        let error = block_on(step).unwrap_err();
        assert!(error.is_shape() && error.location().file() == file!(), "{name}: {error}");
        assert_eq!(block_on(w.value().to_vec::<f32>()).unwrap(), [1.0; 3], "{name}");
    }
}

#[test]
fn an_update_keeps_no_value_in_the_place_of_another_kind() {
    let (home, away) = (Device::cpu(), Device::cpu_with(CpuOptions::default().threads(1)));
    let w = Parameter::new(home.ones([4]));
    let update =
        optim::Update::new("mine", std::slice::from_ref(&w), &[Some(home.ones([4]))]).unwrap();
    let error = |new: TensorFuture, old: TensorFuture| block_on(update.keep(new, old)).unwrap_err();
    assert!(error(home.ones([2]), w.value()).is_shape());
    assert!(error(home.ones([1]), w.value()).is_shape(), "it does not broadcast");
    assert!(error(home.ones_dtype([4], DType::F64), w.value()).is_dtype());
    assert!(error(away.ones([4]), away.ones([4])).is_device());
    assert!(block_on(update.old(away.ones([4]))).unwrap_err().is_device());
    block_on(update.keep(home.zeros([4]), w.value())).unwrap();
}

#[test]
fn a_step_writes_over_what_it_replaces_and_keeps_no_second_model() {
    const N: usize = 1 << 20;
    // How many times a parameter's memory there is at most: each state, its next value, the
    // gradient, and one or two that are about to go. A plain step is in place.
    for (name, most) in [("sgd", 3), ("sgd_decay", 4), ("sgd_momentum", 7), ("adamw", 10)] {
        let device = Device::cpu_with(CpuOptions::default().threads(2));
        let p = Parameter::new(device.arange(0.0, N as f64, 1.0).sin());
        block_on(p.value()).unwrap();
        let mut optimizer = optimizer(name, vec![p.clone()]);
        for _ in 0..STEPS {
            // Nothing fuses with this one, and all steps are queued while it runs.
            let gradient = p.value().stop_gradient().cumsum(0);
            optimizer.step(&[gradient]).detach();
        }
        block_on(p.value()).unwrap();
        block_on(device.waitall()).unwrap();
        let peak = device.stats().bytes_peak.div_ceil(N * 4);
        assert!(peak <= most, "{name}: {peak} times a parameter's memory");
    }
}
