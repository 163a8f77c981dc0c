//! Layers and losses: softmax, normalisation, losses.

use super::{Arg, Made, futures};
use futensor::distributions::{Bernoulli, Beta, Categorical, Gamma, Normal};
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
        ("group_norm", _) => {
            let groups = attrs["groups"].as_u64()? as usize;
            futures(x.group_norm(groups, tensor(1), tensor(2), eps()?))
        }
        ("instance_norm", _) => futures(x.instance_norm(tensor(1), tensor(2), eps()?)),
        ("l1_loss", _) => futures(x.l1_loss(tensor(1)?, loss(attrs))),
        ("smooth_l1_loss", _) => {
            futures(x.smooth_l1_loss(tensor(1)?, attrs["beta"].as_f64()?, loss(attrs)))
        }
        ("huber_loss", _) => {
            futures(x.huber_loss(tensor(1)?, attrs["delta"].as_f64()?, loss(attrs)))
        }
        ("kl_div", _) => futures(x.kl_div(tensor(1)?, attrs["log_target"] == true, loss(attrs))),
        ("binary_cross_entropy", _) => {
            futures(x.binary_cross_entropy(tensor(1)?, weighed(loss(attrs), tensor(2))))
        }
        ("cosine_embedding_loss", _) => {
            let margin = attrs["margin"].as_f64()?;
            futures(x.cosine_embedding_loss(tensor(1)?, tensor(2)?, margin, loss(attrs)))
        }
        ("ctc_loss", _) => {
            let (blank, zero) = (attrs["blank"].as_u64()? as usize, attrs["zero_infinity"] == true);
            let logs = x.log_softmax(-1);
            futures(logs.ctc_loss(tensor(1)?, tensor(2)?, tensor(3)?, blank, zero, loss(attrs)))
        }
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
        _ => {
            let all: Option<Vec<&TensorFuture>> = (0..args.len()).map(tensor).collect();
            distribution(op, &all?)
        }
    }
}

/// What a distribution computes: of its parameters, and of a value behind them.
fn distribution(op: &str, args: &[&TensorFuture]) -> Option<Made> {
    let [p, q, x] = [0, 1, 2].map(|i| args.get(i).copied());
    let of = |kind: &str| op.strip_prefix(kind)?.strip_prefix('.').map(|what| what == "entropy");
    macro_rules! either {
        ($kind:expr, $entropy:expr, $x:expr) => {{
            let kind = $kind;
            futures(if $entropy { kind.entropy() } else { kind.log_prob($x?) })
        }};
    }
    if let Some(entropy) = of("normal") {
        return either!(Normal::new(p?, q?), entropy, x);
    }
    if let Some(entropy) = of("gamma") {
        return either!(Gamma::new(p?, q?), entropy, x);
    }
    if let Some(entropy) = of("beta") {
        return either!(Beta::new(p?, q?), entropy, x);
    }
    if let Some(entropy) = of("bernoulli") {
        return either!(Bernoulli::new(p?), entropy, q);
    }
    let entropy = of("categorical")?;
    either!(Categorical::new(p?), entropy, q)
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
