//! `Module::summary`: every module that there is, as a text.
//!
//! `summaries.txt` is what they print; `FUTENSOR_LIST=write` writes it anew.

use futensor::nn::{self, Module, Part};
use futensor::{ConvOptions, DType, Device, InterpolateOptions, TensorFuture, ranks};
use support::op_names::table;

/// A module of each name of the book's table.
fn module(name: &str, d: &Device) -> Box<dyn Module> {
    let conv = ConvOptions::default;
    let linear = || nn::Linear::new(4, 6, d);
    let alone = ranks::Group::alone();
    match name {
        "Linear" => Box::new(linear()),
        "LazyLinear" => Box::new(nn::LazyLinear::new(6)),
        "ColumnLinear" => Box::new(nn::ColumnLinear::of(&linear(), &alone)),
        "RowLinear" => Box::new(nn::RowLinear::of(&linear(), &alone)),
        "Conv1d" => Box::new(nn::Conv1d::new(2, 3, 3, conv(), d)),
        "Conv2d" => Box::new(nn::Conv2d::without_bias(2, 3, 3, conv(), d)),
        "Conv3d" => Box::new(nn::Conv3d::new(2, 3, 3, conv(), d)),
        "Embedding" => Box::new(nn::Embedding::new(1000, 16, d)),
        "MultiheadAttention" => Box::new(nn::MultiheadAttention::new(8, 2, d)),
        "TransformerEncoderLayer" => Box::new(nn::TransformerEncoderLayer::new(8, 2, 32, d)),
        "LayerNorm" => Box::new(nn::LayerNorm::new([4], d)),
        "RmsNorm" => Box::new(nn::RmsNorm::new([4], 1e-6, d)),
        "BatchNorm" => Box::new(nn::BatchNorm::new(4, d)),
        "Dropout" => Box::new(nn::Dropout::new(0.5)),
        "MaxPool1d" => Box::new(nn::MaxPool1d::new(2)),
        "MaxPool2d" => Box::new(nn::MaxPool2d::new(2)),
        "MaxPool3d" => Box::new(nn::MaxPool3d::new(2)),
        "AvgPool1d" => Box::new(nn::AvgPool1d::new(2)),
        "AvgPool2d" => Box::new(nn::AvgPool2d::new(2)),
        "AvgPool3d" => Box::new(nn::AvgPool3d::new(2)),
        "AdaptiveAvgPool1d" => Box::new(nn::AdaptiveAvgPool1d::new(2)),
        "AdaptiveAvgPool2d" => Box::new(nn::AdaptiveAvgPool2d::new(2)),
        "AdaptiveAvgPool3d" => Box::new(nn::AdaptiveAvgPool3d::new(2)),
        "AdaptiveMaxPool1d" => Box::new(nn::AdaptiveMaxPool1d::new(2)),
        "AdaptiveMaxPool2d" => Box::new(nn::AdaptiveMaxPool2d::new(2)),
        "AdaptiveMaxPool3d" => Box::new(nn::AdaptiveMaxPool3d::new(2)),
        "PixelShuffle" => Box::new(nn::PixelShuffle(2)),
        "PixelUnshuffle" => Box::new(nn::PixelUnshuffle(2)),
        "ConvTranspose1d" => Box::new(nn::ConvTranspose1d::new(2, 4, 3, (), d)),
        "ConvTranspose2d" => Box::new(nn::ConvTranspose2d::new(2, 4, 3, (), d)),
        "ConvTranspose3d" => Box::new(nn::ConvTranspose3d::new(2, 4, 3, (), d)),
        "GroupNorm" => Box::new(nn::GroupNorm::new(2, 4, d)),
        "InstanceNorm" => Box::new(nn::InstanceNorm::affine(4, d)),
        "Lstm" => Box::new(nn::Lstm::new(3, 4, nn::RecurrentOptions::default().layers(2), d)),
        "Gru" => Box::new(nn::Gru::new(3, 4, (), d)),
        "Rnn" => Box::new(nn::Rnn::new(3, 4, (), d)),
        "Prelu" => Box::new(nn::Prelu::new(1, d)),
        "Selu" => Box::new(nn::Selu),
        "Mish" => Box::new(nn::Mish),
        "Hardswish" => Box::new(nn::Hardswish),
        "Glu" => Box::new(nn::Glu(-1)),
        "Upsample" => Box::new(nn::Upsample::new(InterpolateOptions::scale(2.0))),
        "Flatten" => Box::new(nn::Flatten),
        "Sequential" => {
            let inner = nn::Sequential::new().then(nn::BatchNorm::new(6, d)).then(nn::Relu);
            Box::new(nn::Sequential::new().then(linear()).then(inner))
        }
        "Func" => Box::new(nn::from_fn(|x| x + 1.0)),
        "Relu" => Box::new(nn::Relu),
        "LeakyRelu" => Box::new(nn::LeakyRelu(0.1)),
        "Gelu" => Box::new(nn::Gelu),
        "Silu" => Box::new(nn::Silu),
        "Sigmoid" => Box::new(nn::Sigmoid),
        "Tanh" => Box::new(nn::Tanh),
        "Softplus" => Box::new(nn::Softplus),
        "Softmax" => Box::new(nn::Softmax(-1)),
        "LogSoftmax" => Box::new(nn::LogSoftmax(-1)),
        _ => panic!("{name} of the table is not in this test"),
    }
}

#[test]
fn every_module_prints_its_tree_with_shapes_and_counts() {
    let device = Device::cpu();
    let mut text = String::new();
    for (_, names) in table().into_iter().filter(|(group, _)| group.contains("`nn`")) {
        for name in names {
            let module = module(&name, &device);
            let summary = module.summary();
            // In a box it is still what it is.
            assert_eq!(module.kind(), name);
            let parameters = module.parameters();
            let numbers = parameters.iter().filter(|p| !p.is_lazy());
            assert_eq!(summary.parameters(), numbers.map(|p| p.value().numel()).sum::<usize>());
            // By the names of weight files.
            let shown = summary.to_string();
            for (own, _) in module.state() {
                let has = |line: &str| line.split_whitespace().next() == Some(&own);
                assert!(shown.lines().any(has), "{own} is not in\n{shown}");
            }
            text += &format!("{shown}\n\n");
        }
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/training/summaries.txt");
    if std::env::var("FUTENSOR_LIST").is_ok_and(|what| what == "write") {
        std::fs::write(path, &text).unwrap();
    }
    assert!(text.len() > 2000, "the table was not found");
    assert_eq!(text, std::fs::read_to_string(path).unwrap());
}

/// One of a program's own, with weights that are tied, frozen, halves, and not there yet.
struct Model<M> {
    embedding: nn::Embedding,
    body: Vec<M>,
    head: nn::LazyLinear,
}

impl<M: Module> Module for Model<M> {
    fn forward(&self, x: &TensorFuture) -> TensorFuture {
        self.head.forward(x)
    }
    fn parts(&self, visit: &mut dyn FnMut(&str, Part<'_>)) {
        visit("embedding", Part::Module(&self.embedding));
        for (k, layer) in self.body.iter().enumerate() {
            visit(&format!("body.{k}"), Part::Module(layer));
        }
        visit("head", Part::Module(&self.head));
        visit("out.weight", Part::Parameter(&self.embedding.parameter("weight").unwrap()));
    }
}

#[test]
fn what_is_tied_frozen_lazy_or_no_parameter_is_said_and_counted_once() {
    // A device on which nothing runs: a summary waits for nothing and reads nothing.
    let (device, _simulation) = Device::simulated(futensor::sim::SimOptions::new(1));
    let norms = [nn::BatchNorm::new(8, &device), nn::BatchNorm::new(8, &device)];
    norms[1].parameter("weight").unwrap().train(false);
    norms[1].to_dtype(DType::BF16);
    let model = Model {
        embedding: nn::Embedding::new(1000, 8, &device),
        body: norms.into(),
        head: nn::LazyLinear::new(3),
    };
    let summary = model.summary();
    assert_eq!(summary.parameters(), 8000 + 4 * 8);
    assert_eq!(
        summary.to_string(),
        "\
Model                                              8,032
  embedding                     Embedding          8,000
    embedding.weight            [1000, 8] float32  8,000
  body.0                        BatchNorm             16
    body.0.weight               [8] float32            8
    body.0.bias                 [8] float32            8
    body.0.running_mean         [8] float32            8  buffer
    body.0.running_var          [8] float32            8  buffer
    body.0.num_batches_tracked  [] int64               1  buffer
  body.1                        BatchNorm             16
    body.1.weight               [8] bfloat16           8  frozen
    body.1.bias                 [8] bfloat16           8
    body.1.running_mean         [8] bfloat16           8  buffer
    body.1.running_var          [8] bfloat16           8  buffer
    body.1.num_batches_tracked  [] int64               1  buffer
  head                          LazyLinear             0
    head.weight                 [3, ?]                 ?  lazy
    head.bias                   [3]                    ?  lazy
  out.weight                    [1000, 8] float32  8,000  as embedding.weight
8,032 parameters (8 frozen), 32,096 bytes; 34 numbers in buffers; 2 lazy"
    );
}
