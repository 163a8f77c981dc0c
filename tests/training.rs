//! Optimizers, clipping and whole training steps give PyTorch's values:
//! `tests/reference/training.py`.

use futensor::custom::{Refusal, custom_fn};
use futensor::nn::{self, Module, Parameter};
use futensor::optim::{self, Optimizer};
use futensor::ranks;
use futensor::train::Trainer;
use futensor::{
    AttentionOptions, ConvOptions, CpuOptions, DType, Device, GradOptions, TensorFuture, grad,
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
                let data =
                    view.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()));
                device.from_vec(data.collect::<Vec<_>>(), view.shape())
            }
            Dtype::I64 => {
                let data =
                    view.data().chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap()));
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
    let worst =
        got.iter().zip(&want).map(|(g, w)| (g - w).abs() / w.abs().max(1.0)).fold(0.0, f32::max);
    assert!(worst <= slack, "{what}: {worst} apart\n  got      {got:?}\n  expected {want:?}");
}

const STEPS: usize = 4;
const NAMES: [&str; 2] = ["w", "b"];

fn optimizer(name: &str, p: Vec<Parameter>) -> Box<dyn Optimizer> {
    match name {
        "sgd" => Box::new(optim::Sgd::new(p, 0.1)),
        "sgd_decay" => Box::new(optim::Sgd::new(p, 0.1).weight_decay(0.05)),
        "sgd_momentum" => {
            Box::new(optim::Sgd::new(p, 0.1).momentum(0.9).dampening(0.2).weight_decay(0.01))
        }
        "sgd_nesterov" => Box::new(optim::Sgd::new(p, 0.1).momentum(0.9).nesterov(true)),
        "adam" => Box::new(optim::Adam::new(p, 0.05)),
        "adam_decay" => {
            Box::new(optim::Adam::new(p, 0.05).betas(0.8, 0.95).eps(1e-3).weight_decay(0.1))
        }
        "adamw" => Box::new(optim::AdamW::new(p, 0.05)),
        "adamw_decay" => {
            Box::new(optim::AdamW::new(p, 0.05).betas(0.8, 0.95).eps(1e-3).weight_decay(0.2))
        }
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

/// A case of `attention_layers.py`: PyTorch's state is loaded by its names; the result and all gradients
/// are PyTorch's.
fn attention_case<M: Module>(
    layer: M,
    case: &str,
    reference: &HashMap<String, TensorFuture>,
    call: impl Fn(&M, &dyn Fn(&str) -> TensorFuture) -> TensorFuture,
) {
    let own = |name: &str| reference.get(&format!("{case}/{name}")).cloned();
    let prefix = format!("{case}/state.");
    let state = reference
        .iter()
        .filter_map(|(name, x)| Some((name.strip_prefix(&prefix)?.to_string(), x.clone())));
    layer.load_state(state).unwrap();
    let inputs: HashMap<String, TensorFuture> = ["x", "query", "key", "value", "mask"]
        .into_iter()
        .filter_map(|name| Some((name.to_string(), own(name)?.requires_grad())))
        .collect();
    let y = call(&layer, &|name| {
        inputs.get(name).cloned().or_else(|| own(name)).expect("an input of the case")
    });
    near(&y, &own("y").unwrap(), 2e-6, &format!("{case}, the result"));
    let parameters = layer.named_parameters().into_iter().map(|(name, p)| (name, p.value()));
    let leaves: Vec<(String, TensorFuture)> =
        inputs.clone().into_iter().chain(parameters).collect();
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
    let reference = reference_of("attention_layers", &device);
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
    attention_case(layer(), "added", &reference, |m, get| {
        m.forward_with(&get("x"), masked(get("mask")))
    });
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
    let reference = reference_of("attention_layers", &device);
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
        assert_eq!(
            (error.location().file(), error.location().line()),
            (file!(), line),
            "layer {k}: {error}"
        );
    }
    // What a user's own module asks for keeps its own line.
    let error = net(Box::new(closure)).forward(&x).error().unwrap();
    assert_eq!((error.location().file(), error.location().line()), (file!(), own_line), "{error}");
}

/// The bits of a parameter.
fn bits(p: &Parameter) -> Vec<u32> {
    let values = block_on(p.value().to_dtype(DType::F32).to_vec::<f32>())
        .expect("a parameter that is there");
    values.into_iter().map(f32::to_bits).collect()
}

const OPTIMIZERS: [&str; 8] = [
    "sgd",
    "sgd_decay",
    "sgd_momentum",
    "sgd_nesterov",
    "adam",
    "adam_decay",
    "adamw",
    "adamw_decay",
];

/// A gradient whose failure is known only once its kernel has run.
fn fails_later(like: &TensorFuture) -> TensorFuture {
    let meta = futensor::custom::Meta::new(like.shape(), like.dtype());
    custom_fn("breaks", &[like], move |_| Ok(meta.clone()), |_| Err(Refusal::kernel("broken")))
}

/// Steps along the same gradients, with a step that fails before each where asked for.
fn stepped(
    name: &str,
    dtype: DType,
    device: &Device,
    bad: Option<fn(&TensorFuture) -> TensorFuture>,
) -> Vec<Vec<u32>> {
    let start = |n: i64| (device.arange(0, n, 1).to_dtype(DType::F32).sin() * 0.5).to_dtype(dtype);
    let p = vec![
        Parameter::new(start(40)),
        Parameter::new(start(3)),
        Parameter::new(start(1).reshape(())),
    ];
    let mut optimizer = optimizer(name, p.clone());
    for step in 0..5 {
        let gradient = |p: &Parameter| (p.value().stop_gradient() * 0.3 + step as f64 * 0.1).sin();
        let good: Vec<TensorFuture> = p.iter().map(gradient).collect();
        if let Some(bad) = bad {
            let which = step % 3;
            let mut gradients = good.clone();
            gradients[which] = bad(&good[which]);
            let failed = optimizer.step(&gradients);
            let error = block_on(failed).unwrap_err();
            assert!(error.op() == "breaks" || error.is_shape(), "{error}");
        }
        let done = optimizer.step(&good);
        block_on(&done).unwrap();
        assert!(done.error().is_none());
    }
    p.iter().map(bits).collect()
}

#[test]
fn a_step_that_fails_changes_no_parameter_no_moment_and_no_count() {
    let device = Device::cpu_with(CpuOptions::default().threads(2));
    for dtype in [DType::F32, DType::F64, DType::BF16] {
        for name in OPTIMIZERS {
            let want = stepped(name, dtype, &device, None);
            assert_eq!(
                stepped(name, dtype, &device, Some(fails_later)),
                want,
                "{name}, {dtype}, later"
            );
            let at_once: fn(&TensorFuture) -> TensorFuture = |g| g.reshape([3, 77]);
            assert_eq!(
                stepped(name, dtype, &device, Some(at_once)),
                want,
                "{name}, {dtype}, at once"
            );
        }
    }
}

#[test]
fn one_bad_batch_leaves_a_model_as_it_was_and_its_error_is_to_be_had() {
    let device = Device::cpu_with(CpuOptions::default().threads(2));
    let net = nn::Sequential::new()
        .then(nn::Linear::new(3, 4, &device))
        .then(nn::Linear::new(4, 1, &device));
    let mut adam = optim::Adam::new(net.parameters(), 0.1);
    let before: Vec<_> = net.parameters().iter().map(bits).collect();
    let x = device.ones([2, 3]);

    // A wrong shape, a loss off the tape, a loss that is no scalar, an index out of range.
    let target = device.from_vec(vec![0i64, 9], [2]);
    let line = line!() + 2;
    let wrong: Vec<(&str, optim::Step)> = vec![
        ("shape", adam.minimize(&net.forward(&device.ones([2, 5])).sum_all())),
        ("off the tape", adam.minimize(&futensor::no_grad(|| net.forward(&x).sum_all()))),
        ("no scalar", adam.minimize(&net.forward(&x))),
        ("index", adam.minimize(&net[0].forward(&x).cross_entropy(&target, ()))),
    ];
    for (k, (what, step)) in wrong.iter().enumerate() {
        let error = block_on(step).expect_err(what);
        if *what == "index" {
            assert!(error.is_index(), "{error}");
            continue;
        }
        assert!(error.location().file().ends_with("training.rs"), "{what}: {error}");
        assert_eq!(error.location().line(), line + k as u32, "{what}: {error}");
    }
    let after: Vec<_> = net.parameters().iter().map(bits).collect();
    assert_eq!(before, after);

    // What is detached is the device's to tell.
    adam.minimize(&net[0].forward(&x).cross_entropy(&target, ())).detach();
    adam.minimize(&net.forward(&x).square().sum_all()).detach();
    assert!(block_on(device.waitall()).unwrap_err().is_index());
    let after: Vec<_> = net.parameters().iter().map(bits).collect();
    assert_ne!(before, after, "the next batch is as good as ever");
}

#[test]
fn nothing_waits_for_whether_a_step_fails() {
    let device = Device::cpu_with(CpuOptions::default().threads(1));
    let net = nn::Linear::new(2, 1, &device);
    let mut adam = optim::Adam::new(net.parameters(), 0.1);
    let (tell, told) = futures::channel::oneshot::channel::<()>();
    let x = device.from_future([1, 2], async move {
        let _ = told.await;
        Ok::<_, futensor::Error>(vec![1.0f32; 2])
    });
    let steps: Vec<optim::Step> =
        (0..5).map(|_| adam.minimize(&net.forward(&x).sum_all())).collect();
    assert!(steps.iter().all(|step| step.error().is_none()));
    assert!(!net.weight().is_ready());
    assert_eq!(device.stats().barriers, 0);
    tell.send(()).unwrap();
    for step in steps {
        block_on(step).unwrap();
    }
}

#[test]
fn running_averages_outlive_a_batch_that_fails() {
    let device = Device::cpu_with(CpuOptions::default().threads(2));
    let run = |bad: bool| {
        let norm = nn::BatchNorm::new(3, &device);
        for k in 0..3 {
            let x = device.arange(0.0, 12.0, 1.0).reshape([4, 3]).sin() + k as f64;
            if bad {
                let y = norm.forward(&fails_later(&x));
                assert_eq!(block_on(&y).unwrap_err().op(), "breaks");
            }
            block_on(norm.forward(&x)).unwrap();
        }
        norm.named_buffers().iter().map(|(_, p)| bits(p)).collect::<Vec<_>>()
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn a_trainers_loss_has_the_error_of_its_step() {
    let (device, other) = (Device::cpu(), Device::cpu_with(CpuOptions::default().threads(1)));
    for devices in [vec![device.clone()], vec![device.clone(), other]] {
        let net = nn::Linear::new(3, 4, &device);
        let trainer = Trainer::new(&devices);
        let mut sgd = optim::Sgd::new(net.parameters(), 0.1);
        let before = bits(&net.parameters()[0]);
        let step = |sgd: &mut optim::Sgd, target: Vec<i64>| {
            let batch =
                trainer.prepare_batch(&[&device.ones([4, 3]), &device.from_vec(target, [4])]);
            trainer.step(&net, sgd, &batch, |p| net.forward(&p[0]).cross_entropy(&p[1], ()))
        };
        let failed = step(&mut sgd, vec![0, 1, 2, 77]);
        assert!(block_on(failed.item::<f32>()).unwrap_err().is_index());
        assert_eq!(bits(&net.parameters()[0]), before);
        // The loss is fine, and has nothing to do with the model.
        let batch = trainer.prepare_batch(&[&device.ones([4, 3])]);
        let (lost, line) = (trainer.step(&net, &mut sgd, &batch, |p| p[0].sum_all()), line!());
        let error = block_on(&lost).unwrap_err();
        assert_eq!((error.location().file(), error.location().line()), (file!(), line), "{error}");
        block_on(step(&mut sgd, vec![0, 1, 2, 3]).item::<f32>()).unwrap();
        assert_ne!(bits(&net.parameters()[0]), before);
    }
}

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
        assert!(error.location().file().ends_with("training.rs"), "{error}");
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
            assert!(
                error.is_argument() && error.location().file().ends_with("training.rs"),
                "{error}"
            );
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
        assert!(
            error.is_shape() && error.location().file().ends_with("training.rs"),
            "{name}: {error}"
        );
        assert_eq!(block_on(w.value().to_vec::<f32>()).unwrap(), [1.0; 3], "{name}");
    }
}

#[test]
fn a_plain_step_that_has_memory_for_a_part_of_it_changes_nothing() {
    const N: usize = 1 << 18;
    // Two values and two gradients of 1 MiB, which others hold; and room for one of the new values.
    let device = Device::cpu_with(CpuOptions::default().bytes_max(11 << 19));
    let value = |x: f64| block_on(device.arange(0.0, N as f64, 1.0) * 0.0 + x).unwrap();
    let (p, q) = (Parameter::new(value(1.0)), Parameter::new(value(2.0)));
    let gradients = [value(0.5).into_future_value(), value(0.5).into_future_value()];
    let mut sgd = optim::Sgd::new(vec![p.clone(), q.clone()], 1.0);
    assert!(block_on(sgd.step(&gradients)).unwrap_err().is_out_of_memory());
    for (p, was) in [(&p, 1.0), (&q, 2.0)] {
        assert_eq!(block_on(p.value().i(7).item::<f32>()).unwrap(), was);
    }
    let [one, _] = gradients;
    block_on(sgd.step_some(&[Some(one), None])).unwrap();
    assert_eq!(block_on(p.value().i(7).item::<f32>()).unwrap(), 0.5);
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
fn a_lazy_layers_weights_are_the_optimizers_from_the_start() {
    let device = Device::cpu_with(CpuOptions::default().threads(1));
    let net = nn::Sequential::new()
        .then(nn::LazyLinear::new(4))
        .then(nn::Relu)
        .then(nn::LazyLinear::new(1));
    assert_eq!((net.parameters().len(), net.device()), (4, None));
    let mut sgd = optim::Sgd::new(net.parameters(), 0.1);
    let x = device.ones([2, 3]);
    let too_early = sgd.minimize(&(&x * device.ones([1]).requires_grad()).sum_all());
    assert!(too_early.error().unwrap().is_argument(), "there is nothing to train yet");
    let loss = net.forward(&x).square().sum_all();
    let before: Vec<_> = net.parameters().iter().map(bits).collect();
    block_on(sgd.minimize(&loss)).unwrap();
    let after: Vec<_> = net.parameters().iter().map(bits).collect();
    assert!(
        before.iter().zip(&after).all(|(b, a)| b != a),
        "each of them is trained: {before:?} {after:?}"
    );
}

#[test]
fn a_lazy_layer_remembers_where_it_was_moved_and_its_type() {
    let (home, away) = (Device::cpu(), Device::cpu_with(CpuOptions::default().threads(1)));
    let net = nn::Sequential::new().then(nn::LazyLinear::new(2));
    net.to(&away);
    net.to_dtype(DType::BF16);
    net.parameter("0.bias").unwrap().train(false);
    assert_eq!(net.device(), Some(away.clone()));
    let wrong = net.forward(&home.ones_dtype([1, 3], DType::BF16));
    assert!(wrong.error().unwrap().is_device(), "the weights are not made elsewhere");
    assert!(net.parameter("0.weight").unwrap().is_lazy());
    let y = net.forward(&away.ones_dtype([1, 3], DType::BF16));
    assert_eq!((y.device(), y.dtype()), (away.clone(), DType::BF16));
    for (name, p) in net.named_parameters() {
        assert_eq!((p.value().device(), p.value().dtype()), (away.clone(), DType::BF16), "{name}");
        assert_eq!(p.is_trained(), name == "0.weight");
    }
}

#[test]
fn a_lazy_layers_state_is_loaded_before_any_input_and_not_saved_before() {
    let device = Device::cpu();
    let (a, b) = (nn::LazyLinear::new(2), nn::LazyLinear::new(2));
    for (name, value) in a.state() {
        assert!(value.error().unwrap().is_argument(), "{name}");
    }
    block_on(a.forward(&device.ones([1, 3]))).unwrap();
    let wrong =
        vec![("weight".to_string(), device.ones([5, 3])), ("bias".to_string(), device.ones([5]))];
    let error = b.load_state(wrong).unwrap_err();
    assert!(error.is_shape() && error.message().contains("[2, ?]"), "{error}");
    assert!(b.parameters().iter().all(Parameter::is_lazy));
    b.load_state(a.state()).unwrap();
    assert_eq!(bits(&a.parameters()[0]), bits(&b.parameters()[0]));
    assert!(
        b.forward(&device.ones([1, 4])).error().unwrap().is_shape(),
        "it has its number of inputs"
    );
}

#[test]
fn threads_that_are_first_at_once_make_one_set_of_weights() {
    let device = Device::cpu();
    for _ in 0..20 {
        let layer = nn::LazyLinear::new(3);
        let results: Vec<TensorFuture> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..4).map(|_| scope.spawn(|| layer.forward(&device.ones([1, 5])))).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        let own = layer.forward(&device.ones([1, 5]));
        for y in results {
            near(&y, &own, 0.0, "one layer");
        }
    }
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

#[tokio::test]
async fn gradients_that_failed_fail_a_step_of_shares_whatever_their_sizes() {
    let device = Device::cpu();
    let own = || [1, 2].map(|n| nn::Parameter::new(device.ones([n]))).to_vec();
    let large = device.zeros([usize::MAX]);
    for gradients in
        [[Some(large.clone()), Some(large.clone())], [Some(device.ones([1])), Some(large.clone())]]
    {
        let mut shares =
            optim::Sharded::new(own(), &ranks::Group::alone(), |own| optim::Sgd::new(own, 0.1));
        let error = shares.step_some(&gradients).await.unwrap_err();
        assert!(error.same_root(&large.error().unwrap()), "{error}");
    }
}

#[tokio::test]
async fn batches_that_failed_fail_a_step_over_them_whatever_their_sizes() {
    let device = Device::cpu();
    let (net, trainer) = (nn::Linear::new(3, 1, &device), Trainer::new([&device]));
    let mut sgd = optim::Sgd::new(net.parameters(), 0.1);
    let large = device.zeros([usize::MAX, 3]);
    let batches = [trainer.prepare_batch(&[&large]), trainer.prepare_batch(&[&large])];
    let loss = trainer
        .step_over(&net, &mut sgd, &batches, |part| net.forward(&part[0]).square().mean_all());
    assert!(loss.await.unwrap_err().same_root(&large.error().unwrap()));
}
