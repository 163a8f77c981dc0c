//! Optimizers, clipping and whole training steps give PyTorch's values:
//! `tests/reference/training.py`.

use crate::support::{NAMES, STEPS, block_on, near, optimizer, reference};
use futensor::nn::{self, Module, Parameter};
use futensor::optim::{self, Optimizer};
use futensor::train::Trainer;
use futensor::{ConvOptions, CpuOptions, Device, TensorFuture, grad};
use std::collections::HashMap;

#[test]
fn optimizers_step_as_pytorchs_do() {
    let device = Device::cpu();
    let reference = reference(&device);
    let cases: std::collections::BTreeSet<&str> = reference
        .keys()
        .filter_map(|name| name.split('/').next())
        .filter(|case| !["start", "gradients", "clip", "net"].contains(case))
        .collect();
    assert_eq!(cases.len(), 13);
    for case in cases {
        let p: Vec<Parameter> =
            NAMES.iter().map(|k| Parameter::new(&reference[&format!("start/0/{k}")])).collect();
        let mut optimizer = optimizer(case, p.clone());
        for step in 0..STEPS {
            let gradients = NAMES.map(|k| reference[&format!("gradients/{step}/{k}")].clone());
            optimizer.step(&gradients).detach();
            for (k, p) in NAMES.iter().zip(&p) {
                let name = format!("{case}/{step}/{k}");
                near(&p.value(), &reference[&name], 2e-6, &name);
            }
        }
    }
}

#[test]
fn gradients_are_clipped_as_by_pytorch() {
    let device = Device::cpu();
    let reference = reference(&device);
    let gradients = NAMES.map(|k| reference[&format!("gradients/0/{k}")].clone());
    for limit in ["0.5", "100"] {
        let (clipped, norm) = optim::clip_grad_norm(&gradients, limit.parse().unwrap());
        near(&norm, &reference[&format!("clip/{limit}/norm")], 1e-6, "norm");
        for (k, g) in NAMES.iter().zip(&clipped) {
            near(g, &reference[&format!("clip/{limit}/{k}")], 1e-6, k);
        }
    }
}

fn network(device: &Device) -> nn::Sequential {
    nn::Sequential::new()
        .then(nn::Conv2d::new(1, 4, 3, ConvOptions::default().padding(1), device))
        .then(nn::BatchNorm::new(4, device))
        .then(nn::Relu)
        .then(nn::MaxPool2d::new(2))
        .then(nn::Conv2d::new(
            4,
            6,
            [3, 2],
            ConvOptions::default().stride([1, 2]).padding([1, 0]).groups(2),
            device,
        ))
        .then(nn::Gelu)
        .then(nn::Flatten)
        .then(nn::Linear::new(48, 10, device))
        .then(nn::LayerNorm::new([10], device))
}

fn part<'a>(
    reference: &'a HashMap<String, TensorFuture>,
    prefix: &'a str,
) -> impl Iterator<Item = (String, TensorFuture)> + 'a {
    reference.iter().filter_map(move |(name, value)| {
        name.strip_prefix(prefix).map(|name| (name.to_string(), value.clone()))
    })
}

#[test]
fn a_network_trains_as_in_pytorch_and_takes_its_weights_by_its_names() {
    let device = Device::cpu();
    let reference = reference(&device);
    let net = network(&device);
    net.load_state(part(&reference, "net/start/")).unwrap();
    let mut sgd = optim::Sgd::new(net.parameters(), 0.05).momentum(0.9);
    for step in 0..STEPS {
        let at = |name: &str| &reference[&format!("net/{step}/{name}")];
        let loss = net.forward(at("x")).cross_entropy(at("y"), ());
        near(&loss, at("loss"), 2e-5, &format!("loss of step {step}"));
        let named = net.named_parameters();
        let gradients = grad(&loss, &nn::values(&net.parameters()));
        for ((name, _), gradient) in named.iter().zip(&gradients).filter(|_| step == 0) {
            near(gradient, at(&format!("gradient.{name}")), 2e-5, name);
        }
        sgd.step(&gradients).detach();
    }
    for (name, value) in net.state() {
        near(&value, &reference[&format!("net/end/{name}")], 5e-5, &name);
    }
    net.eval();
    near(&net.forward(&reference["net/end/x"]), &reference["net/end/logits"], 5e-4, "logits");
}

#[test]
fn training_has_no_barrier_and_neither_has_moving() {
    let device = Device::cpu_with(CpuOptions::default().threads(2));
    let other = Device::cpu_with(CpuOptions::default().threads(1));
    let host = Device::cpu_with(CpuOptions::default().threads(1));
    let net = network(&host);
    let trainer = Trainer::new(&[device.clone(), other.clone()]);
    trainer.prepare_model(&net);
    let mut adam = optim::AdamW::new(net.parameters(), 0.01);
    let mut losses = Vec::new();
    for step in 0..3 {
        let (x, y) = (host.randn([7, 1, 8, 8]), host.from_vec((0..7i64).collect(), [7]));
        let batch = trainer.prepare_batch(&[&x, &y]);
        let loss =
            trainer.loss(&net, &batch, |part| net.forward(&part[0]).cross_entropy(&part[1], ()));
        let gradients = grad(&loss, &nn::values(&net.parameters()));
        let (clipped, norm) = optim::clip_grad_norm(&gradients, 1.0);
        use optim::Schedule;
        adam.set_lr(optim::Cosine::new(0.01, 10).lr(step));
        adam.step(&clipped).detach();
        losses.push((loss.stop_gradient(), norm));
    }
    net.eval();
    let _ = (net.state(), net.device());
    let barriers = [&device, &other, &host].map(|d| d.stats().barriers);
    assert_eq!(barriers, [0, 0, 0], "something waited");
    for (loss, norm) in losses {
        assert!(block_on(loss.item::<f32>()).unwrap().is_finite());
        assert!(block_on(norm.item::<f32>()).unwrap().is_finite());
    }
}

#[test]
fn two_devices_train_as_one_does() {
    let (a, b) = (Device::cpu(), Device::cpu_with(CpuOptions::default().threads(1)));
    let reference = reference(&a);
    let run = |devices: &[Device]| {
        let net = nn::Sequential::new()
            .then(nn::Flatten)
            .then(nn::Linear::new(64, 10, &a))
            .then(nn::LayerNorm::new([10], &a));
        net[1]
            .parameter("weight")
            .unwrap()
            .set(a.arange(0.0, 640.0, 1.0).reshape([10, 64]).sin() * 0.1);
        net[1].parameter("bias").unwrap().set(a.zeros([10]));
        let trainer = Trainer::new(devices);
        trainer.prepare_model(&net);
        let mut sgd = optim::Sgd::new(net.parameters(), 0.1);
        for step in 0..STEPS {
            let at = |name: &str| &reference[&format!("net/{step}/{name}")];
            // Five rows: the parts are of three and two.
            let batch =
                trainer.prepare_batch(&[&at("x").narrow(0, 0, 5), &at("y").narrow(0, 0, 5)]);
            assert_eq!(batch.parts().count(), devices.len());
            let loss = trainer
                .step(&net, &mut sgd, &batch, |p| net.forward(&p[0]).cross_entropy(&p[1], ()));
            assert!(!loss.is_on_tape());
        }
        net.state()
    };
    let (one, two) = (run(std::slice::from_ref(&a)), run(&[a.clone(), b.clone()]));
    for ((name, x), (_, y)) in one.iter().zip(&two) {
        near(y, x, 1e-5, name);
    }
}
