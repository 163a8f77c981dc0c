//! Optimizers, clipping and whole training steps give PyTorch's values: `tests/reference/training.py`.

use futensor::nn::{self, Module, Parameter};
use futensor::optim::{self, Optimizer};
use futensor::{
    AttentionOptions, ConvOptions, CpuOptions, DType, Device, GradOptions, TensorFuture, Trainer, grad,
    grad_with,
};
use safetensors::{Dtype, SafeTensors};
use std::collections::HashMap;

fn block_on<F: IntoFuture>(f: F) -> F::Output {
    futures::executor::block_on(f.into_future())
}

/// The reference, by name.
fn reference(device: &Device) -> HashMap<String, TensorFuture> {
    reference_of("training", device)
}

fn reference_of(file: &str, device: &Device) -> HashMap<String, TensorFuture> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("reference");
    let path = folder.join(format!("{file}.safetensors"));
    let data = std::fs::read(path).expect("the reference");
    let tensors = SafeTensors::deserialize(&data).expect("a safetensors file");
    let of = |name: &str, view: safetensors::tensor::TensorView<'_>| {
        let value = match view.dtype() {
            Dtype::F32 => {
                let data = view.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()));
                device.from_vec(data.collect::<Vec<_>>(), view.shape())
            }
            Dtype::I64 => {
                let data = view.data().chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap()));
                device.from_vec(data.collect::<Vec<_>>(), view.shape())
            }
            other => panic!("{name} is {other:?}"),
        };
        (name.to_string(), value)
    };
    tensors.iter().map(|(name, view)| of(name, view)).collect()
}

#[track_caller]
fn near(got: &TensorFuture, want: &TensorFuture, slack: f32, what: &str) {
    assert_eq!(got.shape(), want.shape(), "{what}");
    let read = |x: &TensorFuture| block_on(x.to_dtype(DType::F32).to_vec::<f32>()).unwrap();
    let (got, want) = (read(got), read(want));
    let worst = got.iter().zip(&want).map(|(g, w)| (g - w).abs() / w.abs().max(1.0)).fold(0.0, f32::max);
    assert!(worst <= slack, "{what}: {worst} apart\n  got      {got:?}\n  expected {want:?}");
}

const STEPS: usize = 4;
const NAMES: [&str; 2] = ["w", "b"];

fn optimizer(name: &str, p: Vec<Parameter>) -> Box<dyn Optimizer> {
    match name {
        "sgd" => Box::new(optim::Sgd::new(p, 0.1)),
        "sgd_decay" => Box::new(optim::Sgd::new(p, 0.1).weight_decay(0.05)),
        "sgd_momentum" => Box::new(optim::Sgd::new(p, 0.1).momentum(0.9).dampening(0.2).weight_decay(0.01)),
        "sgd_nesterov" => Box::new(optim::Sgd::new(p, 0.1).momentum(0.9).nesterov(true)),
        "adam" => Box::new(optim::Adam::new(p, 0.05)),
        "adam_decay" => Box::new(optim::Adam::new(p, 0.05).betas(0.8, 0.95).eps(1e-3).weight_decay(0.1)),
        "adamw" => Box::new(optim::AdamW::new(p, 0.05)),
        "adamw_decay" => Box::new(optim::AdamW::new(p, 0.05).betas(0.8, 0.95).eps(1e-3).weight_decay(0.2)),
        other => panic!("no optimizer is called {other}"),
    }
}

#[test]
fn optimizers_step_as_pytorchs_do() {
    let device = Device::cpu();
    let reference = reference(&device);
    let cases: std::collections::BTreeSet<&str> = reference
        .keys()
        .filter_map(|name| name.split('/').next())
        .filter(|case| !["start", "gradients", "clip", "net"].contains(case))
        .collect();
    assert_eq!(cases.len(), 8);
    for case in cases {
        let p: Vec<Parameter> =
            NAMES.iter().map(|k| Parameter::new(&reference[&format!("start/0/{k}")])).collect();
        let mut optimizer = optimizer(case, p.clone());
        for step in 0..STEPS {
            let gradients = NAMES.map(|k| reference[&format!("gradients/{step}/{k}")].clone());
            optimizer.step(&gradients);
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
        sgd.step(&gradients);
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
        let loss = trainer.loss(&net, &batch, |part| net.forward(&part[0]).cross_entropy(&part[1], ()));
        let gradients = grad(&loss, &nn::values(&net.parameters()));
        let (clipped, norm) = optim::clip_grad_norm(&gradients, 1.0);
        use optim::Schedule;
        adam.set_lr(optim::Cosine::new(0.01, 10).lr(step));
        adam.step(&clipped);
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
        net[1].parameter("weight").unwrap().set(a.arange(0.0, 640.0, 1.0).reshape([10, 64]).sin() * 0.1);
        net[1].parameter("bias").unwrap().set(a.zeros([10]));
        let trainer = Trainer::new(devices);
        trainer.prepare_model(&net);
        let mut sgd = optim::Sgd::new(net.parameters(), 0.1);
        for step in 0..STEPS {
            let at = |name: &str| &reference[&format!("net/{step}/{name}")];
            // Five rows: the parts are of three and two.
            let batch = trainer.prepare_batch(&[&at("x").narrow(0, 0, 5), &at("y").narrow(0, 0, 5)]);
            assert_eq!(batch.parts().count(), devices.len());
            let loss = trainer.step(&net, &mut sgd, &batch, |p| net.forward(&p[0]).cross_entropy(&p[1], ()));
            assert!(!loss.is_on_tape());
        }
        net.state()
    };
    let (one, two) = (run(std::slice::from_ref(&a)), run(&[a.clone(), b.clone()]));
    for ((name, x), (_, y)) in one.iter().zip(&two) {
        near(y, x, 1e-5, name);
    }
}

/// A case of `attention.py`: PyTorch's state is loaded by its names; the result and all gradients are PyTorch's.
fn attention_case<M: Module>(
    layer: M,
    case: &str,
    reference: &HashMap<String, TensorFuture>,
    call: impl Fn(&M, &dyn Fn(&str) -> TensorFuture) -> TensorFuture,
) {
    let own = |name: &str| reference.get(&format!("{case}/{name}")).cloned();
    let prefix = format!("{case}/state.");
    let state =
        reference.iter().filter_map(|(name, x)| Some((name.strip_prefix(&prefix)?.to_string(), x.clone())));
    layer.load_state(state).unwrap();
    let inputs: HashMap<String, TensorFuture> = ["x", "query", "key", "value", "mask"]
        .into_iter()
        .filter_map(|name| Some((name.to_string(), own(name)?.requires_grad())))
        .collect();
    let y =
        call(&layer, &|name| inputs.get(name).cloned().or_else(|| own(name)).expect("an input of the case"));
    near(&y, &own("y").unwrap(), 2e-6, &format!("{case}, the result"));
    let parameters = layer.named_parameters().into_iter().map(|(name, p)| (name, p.value()));
    let leaves: Vec<(String, TensorFuture)> = inputs.clone().into_iter().chain(parameters).collect();
    let values: Vec<&TensorFuture> = leaves.iter().map(|(_, value)| value).collect();
    let gradients = grad_with(&y, &values, GradOptions::default().upstream(&own("up").unwrap()));
    let mut seen = 0;
    for ((name, _), gradient) in leaves.iter().zip(&gradients) {
        if let Some(want) = own(&format!("gradient.{name}")) {
            near(gradient, &want, 1e-5, &format!("{case}, the gradient of {name}"));
            seen += 1;
        }
    }
    assert_eq!(seen, if case == "blind" { 0 } else { leaves.len() }, "{case}");
}

#[test]
fn attention_layers_have_pytorchs_names_values_and_gradients() {
    let device = Device::cpu();
    let reference = reference_of("attention", &device);
    let layer = || nn::MultiheadAttention::new(8, 2, &device);
    // PyTorch's mask tells what is hidden.
    let seen = |hidden: TensorFuture| hidden.eq(0).unsqueeze(1).unsqueeze(1);
    let masked = |mask: TensorFuture| AttentionOptions::default().mask(mask);
    for case in ["plain", "alone"] {
        attention_case(layer(), case, &reference, |m, get| m.forward(&get("x")));
    }
    let without = nn::MultiheadAttention::without_bias(8, 2, &device);
    attention_case(without, "no_bias", &reference, |m, get| m.forward(&get("x")));
    for case in ["padded", "blind"] {
        attention_case(layer(), case, &reference, |m, get| {
            m.forward_with(&get("x"), masked(seen(get("hidden"))))
        });
    }
    // The same as numbers that are added: nothing, or minus infinity.
    attention_case(layer(), "blind", &reference, |m, get| {
        let hidden = seen(get("hidden")).where_cond(0.0, f64::NEG_INFINITY);
        m.forward_with(&get("x"), masked(hidden))
    });
    attention_case(layer(), "added", &reference, |m, get| m.forward_with(&get("x"), masked(get("mask"))));
    attention_case(layer(), "causal", &reference, |m, get| {
        m.forward_with(&get("x"), AttentionOptions::default().causal(true))
    });
    attention_case(layer(), "other", &reference, |m, get| {
        m.attend(&get("query"), &get("key"), &get("value"), ())
    });
}

#[test]
fn a_transformers_layer_has_pytorchs_names_values_and_gradients() {
    let device = Device::cpu();
    let reference = reference_of("attention", &device);
    let layer = || nn::TransformerEncoderLayer::new(8, 2, 12, &device);
    let cases = [
        ("layer", layer().activation(nn::Gelu).eps(1e-3)),
        ("layer_relu", layer()),
        ("layer_first", layer().activation(nn::Gelu).norm_first(true)),
    ];
    for (case, layer) in cases {
        attention_case(layer, case, &reference, |m, get| {
            let seen = get("hidden").eq(0).unsqueeze(1).unsqueeze(1);
            m.forward_with(&get("x"), AttentionOptions::default().mask(seen))
        });
    }
}

#[test]
fn errors_name_the_line_that_called_the_outermost_module() {
    let device = Device::cpu();
    let own_line = line!() + 1;
    let closure = nn::from_fn(|x| x.matmul(x));
    let net = |layer: Box<dyn Module>| nn::Sequential::new().then(nn::Relu).then(layer);
    let layers: Vec<Box<dyn Module>> = vec![
        Box::new(nn::BatchNorm::new(3, &device)),
        Box::new(nn::LayerNorm::new([3], &device)),
        Box::new(nn::Linear::new(3, 2, &device)),
        Box::new(nn::Conv2d::new(3, 2, 3, (), &device)),
        Box::new(nn::MaxPool2d::new(2)),
        Box::new(nn::Softmax(7)),
        Box::new(nn::MultiheadAttention::new(6, 2, &device)),
        Box::new(nn::TransformerEncoderLayer::new(6, 2, 8, &device)),
        Box::new(nn::Sequential::new().then(nn::Linear::new(3, 2, &device))),
    ];
    let x = device.ones([2, 5]);
    for (k, layer) in layers.into_iter().enumerate() {
        let net = net(layer);
        let (y, line) = (net.forward(&x), line!());
        let error = y.error().expect("a shape that none of them takes");
        assert_eq!((error.location().file(), error.location().line()), (file!(), line), "layer {k}: {error}");
    }
    // What a user's own module asks for keeps its own line.
    let error = net(Box::new(closure)).forward(&x).error().unwrap();
    assert_eq!((error.location().file(), error.location().line()), (file!(), own_line), "{error}");
}
