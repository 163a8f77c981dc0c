//! A step that fails changes nothing, and says why.

use crate::support::{bits, block_on, optimizer};
use futensor::custom::{Refusal, custom_fn};
use futensor::nn::{self, Module, Parameter};
use futensor::optim::{self, Optimizer};
use futensor::train::Trainer;
use futensor::{CpuOptions, DType, Device, TensorFuture, ranks};

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
        assert!(error.location().file() == file!(), "{what}: {error}");
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
