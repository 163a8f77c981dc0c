//! Calls of what networks are made of: convolutions, pooling, batch norms, attention, losses, padding.

use super::apply::{Arg, Made, futures};
use super::case::ints;
use futensor::{AttentionOptions, ConvOptions, LossOptions, PoolOptions, Reduction, TensorFuture};
use serde_json::Value;

/// Calls a case's op, if it is one of these.
pub fn call(op: &str, args: &[Arg], attrs: &Value) -> Option<Made> {
    let tensor = |i: usize| match args.get(i) {
        Some(Arg::Tensor(x)) => Some(x),
        _ => None,
    };
    let x = tensor(0)?;
    match op {
        "conv1d" => futures(x.conv1d(tensor(1)?, tensor(2), conv(attrs))),
        "conv2d" => futures(x.conv2d(tensor(1)?, tensor(2), conv(attrs))),
        "max_pool2d" => futures(x.max_pool2d(pool(attrs))),
        "avg_pool2d" => futures(x.avg_pool2d(pool(attrs))),
        "batch_norm" => batch_norm(x, [tensor(1)?, tensor(2)?], tensor(3), tensor(4), attrs),
        "var" | "std" | "norm" => spread(op, x, attrs),
        "pad" => match args {
            [_, Arg::Scalar(s)] => futures(x.pad(ints(&attrs["pad"]), *s)),
            _ => None,
        },
        "scaled_dot_product_attention" => {
            let mut options = AttentionOptions::default().causal(attrs["is_causal"] == true);
            if let Some(mask) = tensor(3) {
                options = options.mask(mask);
            }
            futures(x.scaled_dot_product_attention(tensor(1)?, tensor(2)?, options))
        }
        "mse_loss" => futures(x.mse_loss(tensor(1)?, loss(attrs))),
        "cross_entropy" => futures(x.cross_entropy(tensor(1)?, loss(attrs))),
        "nll_loss" => futures(x.nll_loss(tensor(1)?, loss(attrs))),
        "bce_with_logits" => futures(x.bce_with_logits(tensor(1)?, loss(attrs))),
        _ => None,
    }
}

/// One number or a list of them.
fn sizes(value: &Value) -> Vec<isize> {
    match value.as_i64() {
        Some(n) => vec![n as isize],
        None => ints(value),
    }
}

fn conv(attrs: &Value) -> ConvOptions {
    let groups = attrs["groups"].as_u64().expect("a number of groups") as usize;
    let options = ConvOptions::default().stride(sizes(&attrs["stride"])).padding(sizes(&attrs["padding"]));
    options.dilation(sizes(&attrs["dilation"])).groups(groups)
}

fn pool(attrs: &Value) -> PoolOptions {
    let options = PoolOptions::new(ints(&attrs["kernel_size"]));
    options.stride(ints(&attrs["stride"])).padding(ints(&attrs["padding"]))
}

fn loss(attrs: &Value) -> LossOptions {
    LossOptions::from(match attrs["reduction"].as_str() {
        Some("sum") => Reduction::Sum,
        Some("none") => Reduction::None,
        _ => Reduction::Mean,
    })
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

/// `var`, `std`, `norm`: over some dimensions or all, kept or not.
fn spread(op: &str, x: &TensorFuture, attrs: &Value) -> Option<Made> {
    let dims = attrs.get("dims").filter(|d| !d.is_null()).map(ints);
    let keep = attrs["keepdim"] == true;
    let by = match op {
        "norm" => attrs["p"].as_str()?.parse().ok()?,
        _ => attrs["correction"].as_f64()?,
    };
    futures(match (op, dims, keep) {
        ("var", None, false) => x.var_all(by),
        ("var", Some(dims), false) => x.var(dims, by),
        ("var", Some(dims), true) => x.var_keepdim(dims, by),
        ("std", None, false) => x.std_all(by),
        ("std", Some(dims), false) => x.std(dims, by),
        ("std", Some(dims), true) => x.std_keepdim(dims, by),
        ("norm", None, false) => x.norm_all(by),
        ("norm", Some(dims), false) => x.norm(by, dims),
        ("norm", Some(dims), true) => x.norm_keepdim(by, dims),
        _ => return None,
    })
}
