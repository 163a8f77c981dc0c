//! Options of layers, each by what it does to values; and what layers begin with.

use crate::steps::*;
use futensor::nn::{self, Module, Parameter, Part};
use futensor::{ConvOptions, Device, TensorFuture};

#[track_caller]
fn near(got: &TensorFuture, want: &TensorFuture, what: &str) {
    assert_eq!(got.dims(), want.dims(), "{what}");
    let (got, want) = (floats(got), floats(want));
    let fits = got.iter().zip(&want).all(|(g, w)| (g - w).abs() <= 2e-6 * w.abs().max(1.0));
    assert!(fits, "{what}: {got:?}, and not {want:?}");
}

#[test]
fn norms_have_pytorchs_options() {
    let device = Device::cpu();
    let reference = reference(&device);
    let at = |name: &str| reference[&format!("layers/{name}")].clone();
    let batch = nn::BatchNorm::new(3, &device).eps(0.5).momentum(0.3);
    for k in 0..3 {
        near(&batch.forward(&at(&format!("x/{k}"))), &at(&format!("batch/{k}")), "a batch norm");
    }
    for (name, want) in [("running_mean", "batch/mean"), ("running_var", "batch/var")] {
        near(&batch.parameter(name).unwrap().value(), &at(want), name);
    }
    batch.eval();
    near(&batch.forward(&at("x/3")), &at("batch/use"), "a batch norm in use");
    near(
        &batch.parameter("running_mean").unwrap().value(),
        &at("batch/mean"),
        "which learns no more",
    );
    assert!(batch.named_buffers().iter().all(|(_, buffer)| !buffer.value().is_on_tape()));
    batch.train();
    drop(batch.forward(&at("x/3")));
    assert_eq!(floats(&batch.parameter("num_batches_tracked").unwrap().value()), [4.0]);

    let (root, layer) =
        (nn::RmsNorm::new([3], 0.5, &device), nn::LayerNorm::without_bias([3], &device).eps(0.5));
    for norm in [&root as &dyn Module, &layer] {
        norm.parameter("weight").unwrap().set(at("weight"));
    }
    near(&root.forward(&at("x/0")), &at("rms"), "a root mean square norm");
    near(&layer.forward(&at("x/0")), &at("layer"), "a layer norm without a bias");
    let with = nn::LayerNorm::new([3], &device).eps(0.5);
    with.parameter("weight").unwrap().set(at("weight"));
    with.parameter("bias").unwrap().set(device.full([3], 2.0));
    near(&with.forward(&at("x/0")), &(at("layer") + 2.0), "a layer norm");
}

/// With an `eps` that is larger than all else a norm gives nothing, so that each of the two is seen
/// by itself.
#[test]
fn both_norms_of_an_encoder_layer_have_the_eps_that_it_is_given() {
    let device = Device::cpu();
    let layer = nn::TransformerEncoderLayer::new(8, 2, 12, &device).norm_first(true).eps(1e30);
    let x = device.randn([2, 5, 8]);
    for bias in
        ["self_attn.in_proj_bias", "self_attn.out_proj.bias", "linear1.bias", "linear2.bias"]
    {
        layer
            .parameter(bias)
            .unwrap()
            .set(device.zeros(layer.parameter(bias).unwrap().value().shape()));
    }
    near(&layer.forward(&x), &x, "before each block");
    let after = nn::TransformerEncoderLayer::new(8, 2, 12, &device).eps(1e30);
    near(&after.forward(&x), &device.zeros([2, 5, 8]), "after each block");
    let usual = nn::TransformerEncoderLayer::new(8, 2, 12, &device);
    assert!(floats(&usual.forward(&x).abs().max_all())[0] > 0.5);
}

#[test]
fn an_encoder_layer_drops_in_each_of_its_places() {
    let device = Device::cpu();
    let layer = nn::TransformerEncoderLayer::new(8, 2, 32, &device).dropout(0.5);
    let x = device.randn([16, 8]);
    let differs = || floats(&(layer.forward(&x) - layer.forward(&x)).abs().max_all())[0] > 0.0;
    let mut places = Vec::new();
    layer.parts(&mut |name, part| {
        let Part::Module(module) = part else { return };
        layer.eval();
        assert!(!differs());
        module.train();
        if differs() {
            places.push(name.to_string());
        }
    });
    assert_eq!(places, ["self_attn", "dropout", "dropout1", "dropout2"]);
}

#[test]
fn dropout_drops_as_many_as_it_is_told_and_keeps_the_mean() {
    let device = Device::cpu();
    device.seed(3);
    let x = device.ones([20_000]);
    for p in [0.1, 0.8] {
        for dropout in
            [nn::Dropout::new(p), nn::Dropout::with_generator(p, futensor::Generator::new(5))]
        {
            let y = floats(&dropout.forward(&x));
            let dropped = y.iter().filter(|&&y| y == 0.0).count() as f64 / 20_000.0;
            assert!((dropped - p).abs() < 0.02, "{dropped}, and not {p}");
            assert!(y.iter().all(|y| *y == 0.0 || (y * (1.0 - p) - 1.0).abs() < 1e-6));
        }
    }
    assert_eq!(floats(&nn::Dropout::new(0.0).forward(&x)), [1.0; 20_000]);
}

/// Uniform between minus and plus a bound: some come near to both ends, and the mean is in the
/// middle.
#[test]
fn layers_begin_with_pytorchs_distributions() {
    let device = Device::cpu();
    device.seed(11);
    let uniform = |x: TensorFuture, bound: f64, what: &str| {
        let x = floats(&x);
        let (n, most) = (x.len() as f64, x.iter().map(|x| x.abs()).fold(0.0, f64::max));
        assert!(most <= bound * 1.000001 && most > 0.9 * bound, "{what}: {most} of {bound}");
        let (mean, square) = (x.iter().sum::<f64>() / n, x.iter().map(|x| x * x).sum::<f64>() / n);
        assert!(mean.abs() < 4.0 * bound / (3.0 * n).sqrt(), "{what}: a mean of {mean}");
        assert!((square / (bound * bound / 3.0) - 1.0).abs() < 0.25, "{what}: {square}");
    };
    let linear = nn::Linear::new(100, 300, &device);
    uniform(linear.weight(), 0.1, "a linear layer's weight");
    uniform(linear.bias().unwrap(), 0.1, "its bias");
    let lazy = nn::LazyLinear::new(300);
    drop(lazy.forward(&device.ones([1, 100])));
    uniform(lazy.parameter("weight").unwrap().value(), 0.1, "a lazy layer's weight");
    // Each output is made of 2 channels of 3 x 3.
    let conv = nn::Conv2d::new(4, 128, 3, ConvOptions::default().groups(2), &device);
    uniform(conv.weight(), 1.0 / 18f64.sqrt(), "a convolution's weight");
    uniform(conv.bias().unwrap(), 1.0 / 18f64.sqrt(), "its bias");
    let attention = nn::MultiheadAttention::new(64, 2, &device);
    let part = |name: &str| attention.parameter(name).unwrap().value();
    uniform(part("in_proj_weight"), (6.0f64 / 256.0).sqrt(), "what goes into an attention");
    uniform(part("out_proj.weight"), 1.0 / 8.0, "what comes out of it");
    assert!(
        floats(&part("in_proj_bias"))
            .iter()
            .chain(&floats(&part("out_proj.bias")))
            .all(|x| *x == 0.0)
    );
    let table = floats(&nn::Embedding::new(100, 100, &device).weight());
    let square = table.iter().map(|x| x * x).sum::<f64>() / 10_000.0;
    assert!((square - 1.0).abs() < 0.06, "{square}");
    assert!((table.iter().sum::<f64>() / 10_000.0).abs() < 0.04);
}

#[test]
fn who_is_frozen_is_left_as_it_is_and_a_buffer_is_no_weight() {
    let device = Device::cpu();
    let norm = nn::BatchNorm::new(3, &device);
    let names =
        |all: Vec<(String, Parameter)>| all.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    assert_eq!(names(norm.named_parameters()), ["weight", "bias"]);
    assert_eq!(names(norm.named_buffers()), ["running_mean", "running_var", "num_batches_tracked"]);
    norm.parameter("weight").unwrap().train(false);
    let mut sgd = futensor::optim::Sgd::new(norm.parameters(), 0.5);
    let loss = norm.forward(&device.randn([4, 3])).sum_all() + norm.weight().sum_all();
    block_on(futensor::optim::Optimizer::minimize(&mut sgd, &loss)).unwrap();
    assert_eq!(floats(&norm.weight()), [1.0; 3]);
    assert!(floats(&norm.bias()).iter().all(|b| (b + 2.0).abs() < 1e-6));
}
