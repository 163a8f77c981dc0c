//! Layers and losses: softmax, normalisation, losses.

use super::{Arg, Made, futures};
use futensor::{LossOptions, Reduction, TensorFuture};
use serde_json::Value;

/// Calls a case's op, if it is one of these.
pub fn call(op: &str, args: &[Arg], attrs: &Value) -> Option<Made> {
    let tensor = |i: usize| match args.get(i) {
        Some(Arg::Tensor(x)) => Some(x),
        _ => None,
    };
    let (x, eps) = (tensor(0)?, || attrs["eps"].as_f64());
    let dim = || attrs["dim"].as_i64().map(|i| i as isize);
    let dims = || attrs["normalized_shape"].as_array().map(Vec::len);
    match (op, args) {
        ("softmax", [_]) => futures(x.softmax(dim()?)),
        ("log_softmax", [_]) => futures(x.log_softmax(dim()?)),
        ("layer_norm", [_, Arg::Tensor(w), Arg::Tensor(b)]) => futures(x.layer_norm(w, b, eps()?)),
        ("layer_norm", [_, Arg::Tensor(w), Arg::Absent]) => {
            futures(x.layer_norm_weighted(w, eps()?))
        }
        ("layer_norm", [_, Arg::Absent, Arg::Absent]) => {
            futures(x.layer_norm_plain(dims()?, eps()?))
        }
        ("rms_norm", [_, Arg::Tensor(w)]) => futures(x.rms_norm(w, eps()?)),
        ("rms_norm", [_, Arg::Absent]) => futures(x.rms_norm_plain(dims()?, eps()?)),
        ("batch_norm", _) => batch_norm(x, [tensor(1)?, tensor(2)?], tensor(3), tensor(4), attrs),
        ("mse_loss", _) => futures(x.mse_loss(tensor(1)?, loss(attrs))),
        ("cross_entropy", _) => {
            futures(x.cross_entropy(tensor(1)?, weighed(loss(attrs), tensor(2))))
        }
        ("nll_loss", _) => futures(x.nll_loss(tensor(1)?, weighed(loss(attrs), tensor(2)))),
        ("bce_with_logits", _) => {
            let options = weighed(loss(attrs), tensor(2));
            let options = if let Some(w) = tensor(3) { options.pos_weight(w) } else { options };
            futures(x.bce_with_logits(tensor(1)?, options))
        }
        _ => None,
    }
}

fn loss(attrs: &Value) -> LossOptions {
    let mut options = LossOptions::from(match attrs["reduction"].as_str() {
        Some("sum") => Reduction::Sum,
        Some("none") => Reduction::None,
        _ => Reduction::Mean,
    });
    if let Some(class) = attrs["ignore_index"].as_i64() {
        options = options.ignore_index(class);
    }
    options.label_smoothing(attrs["label_smoothing"].as_f64().unwrap_or(0.0))
}

fn weighed(options: LossOptions, weight: Option<&TensorFuture>) -> LossOptions {
    if let Some(weight) = weight { options.weight(weight) } else { options }
}

/// PyTorch's, which moves running averages: result, mean, variance.
fn batch_norm(
    x: &TensorFuture,
    [mean, var]: [&TensorFuture; 2],
    weight: Option<&TensorFuture>,
    bias: Option<&TensorFuture>,
    attrs: &Value,
) -> Option<Made> {
    let (eps, momentum) = (attrs["eps"].as_f64()?, attrs["momentum"].as_f64()?);
    if attrs["training"] == false {
        let y = x.batch_norm(mean, var, weight, bias, eps);
        return Some(Made::Futures(vec![y, mean.clone(), var.clone()]));
    }
    let (y, own_mean, own_var) = x.batch_norm_train(weight, bias, eps);
    let wide = own_mean.dtype();
    let moved = |old: &TensorFuture, new: TensorFuture| {
        (old.to_dtype(wide) * (1.0 - momentum) + new * momentum).to_dtype(old.dtype())
    };
    Some(Made::Futures(vec![y, moved(mean, own_mean), moved(var, own_var)]))
}
