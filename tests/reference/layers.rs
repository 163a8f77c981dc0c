//! Calls of what networks are made of: convolutions, pooling, batch norms, attention, losses,
//! padding.

use super::apply::{Arg, Made, futures};
use super::case::ints;
use futensor::{
    AttentionOptions, ConvOptions, InterpolateMode, InterpolateOptions, LossOptions, PadMode,
    PoolOptions, Reduction, TensorFuture,
};
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
        "conv3d" => futures(x.conv3d(tensor(1)?, tensor(2), conv(attrs))),
        "conv_transpose3d" => futures(x.conv_transpose3d(tensor(1)?, tensor(2), conv(attrs))),
        "conv_transpose1d" => futures(x.conv_transpose1d(tensor(1)?, tensor(2), conv(attrs))),
        "conv_transpose2d" => futures(x.conv_transpose2d(tensor(1)?, tensor(2), conv(attrs))),
        "max_pool2d" => futures(x.max_pool2d(pool(attrs))),
        "max_pool1d_with_positions" => both(x.max_pool1d_with_positions(pool(attrs))),
        "max_pool2d_with_positions" => both(x.max_pool2d_with_positions(pool(attrs))),
        "max_pool3d_with_positions" => both(x.max_pool3d_with_positions(pool(attrs))),
        "avg_pool1d" => futures(x.avg_pool1d(pool(attrs))),
        "avg_pool3d" => futures(x.avg_pool3d(pool(attrs))),
        "avg_pool2d" => futures(x.avg_pool2d(pool(attrs))),
        "interpolate" => futures(x.interpolate(interpolation(attrs)?)),
        "batch_norm" => batch_norm(x, [tensor(1)?, tensor(2)?], tensor(3), tensor(4), attrs),
        "var" | "std" | "norm" => spread(op, x, attrs),
        "pad" => match args {
            [_, Arg::Scalar(s)] => futures(x.pad(ints(&attrs["pad"]), *s)),
            _ => None,
        },
        "pad_mode" => futures(x.pad_mode(ints(&attrs["pad"]), mode(attrs)?)),
        "elu" => futures(x.elu(attrs["alpha"].as_f64()?)),
        "leaky_relu" => futures(x.leaky_relu(attrs["slope"].as_f64()?)),
        "bitwise_not" => futures(x.bitwise_not()),
        "clamp" | "clamp_min" | "clamp_max" => match (op, args) {
            ("clamp", [_, Arg::Scalar(low), Arg::Scalar(high)]) => futures(x.clamp(*low, *high)),
            ("clamp_min", [_, Arg::Scalar(low)]) => futures(x.clamp_min(*low)),
            ("clamp_max", [_, Arg::Scalar(high)]) => futures(x.clamp_max(*high)),
            ("clamp", [_, Arg::Tensor(low), Arg::Tensor(high)]) => futures(x.clamp(low, high)),
            ("clamp_min", [_, Arg::Tensor(low)]) => futures(x.clamp_min(low)),
            ("clamp_max", [_, Arg::Tensor(high)]) => futures(x.clamp_max(high)),
            _ => None,
        },
        "take" => futures(x.take(tensor(1)?)),
        "index" => futures(x.index(&(1..args.len()).map(tensor).collect::<Vec<_>>())),
        "flatten" => {
            futures(x.flatten(attrs["start"].as_i64()? as isize, attrs["end"].as_i64()? as isize))
        }
        "scaled_dot_product_attention" => {
            let mut options = AttentionOptions::default().causal(attrs["is_causal"] == true);
            if let Some(scale) = attrs["scale"].as_f64() {
                options = options.scale(scale);
            }
            if let Some(mask) = tensor(3) {
                options = options.mask(mask);
            }
            futures(x.scaled_dot_product_attention(tensor(1)?, tensor(2)?, options))
        }
        "mse_loss" => futures(x.mse_loss(tensor(1)?, loss(attrs))),
        "cross_entropy" => futures(x.cross_entropy(tensor(1)?, weighed(loss(attrs), tensor(2)))),
        "nll_loss" => futures(x.nll_loss(tensor(1)?, weighed(loss(attrs), tensor(2)))),
        "bce_with_logits" => {
            let options = weighed(loss(attrs), tensor(2));
            let options = if let Some(w) = tensor(3) { options.pos_weight(w) } else { options };
            futures(x.bce_with_logits(tensor(1)?, options))
        }
        _ => None,
    }
}

/// Values and where they stand.
pub(super) fn both((values, positions): (TensorFuture, TensorFuture)) -> Option<Made> {
    Some(Made::Futures(vec![values, positions]))
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
    let options = ConvOptions::default().stride(sizes(&attrs["stride"]));
    let options = match attrs.get("padding") {
        Some(padding) => options.padding(sizes(padding)),
        None => options.padding_sides(ints(&attrs["before"]), ints(&attrs["after"])),
    };
    let options = options.dilation(sizes(&attrs["dilation"])).groups(groups);
    match attrs.get("output_padding") {
        Some(padding) => options.output_padding(sizes(padding)),
        None => options,
    }
}

fn pool(attrs: &Value) -> PoolOptions {
    let options = PoolOptions::new(ints(&attrs["kernel_size"]));
    let options = options.stride(ints(&attrs["stride"]));
    let mut options = match attrs.get("padding") {
        Some(padding) => options.padding(ints(padding)),
        None => options.padding_sides(ints(&attrs["before"]), ints(&attrs["after"])),
    };
    if let Some(dilation) = attrs.get("dilation") {
        options = options.dilation(ints(dilation));
    }
    if let Some(divisor) = attrs["divisor_override"].as_u64() {
        options = options.divisor(divisor as usize);
    }
    if attrs["count_include_pad"] == false {
        options = options.count_padding(false);
    }
    options.ceil(attrs["ceil_mode"] == true)
}

fn interpolation(attrs: &Value) -> Option<InterpolateOptions> {
    let options = match (&attrs["size"], &attrs["scale_factor"]) {
        (Value::Null, Value::Array(all)) => InterpolateOptions::scales(
            &all.iter().map(Value::as_f64).collect::<Option<Vec<f64>>>()?,
        ),
        (Value::Null, one) => InterpolateOptions::scale(one.as_f64()?),
        (size, _) => InterpolateOptions::size(sizes(size)),
    };
    let mode = match attrs["mode"].as_str()? {
        "nearest" => InterpolateMode::Nearest,
        "nearest-exact" => InterpolateMode::NearestExact,
        "linear" | "bilinear" | "trilinear" => InterpolateMode::Linear,
        "bicubic" => InterpolateMode::Cubic,
        _ => return None,
    };
    Some(options.mode(mode).align_corners(attrs["align_corners"] == true))
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

fn mode(attrs: &Value) -> Option<PadMode> {
    match attrs["mode"].as_str()? {
        "reflect" => Some(PadMode::Reflect),
        "replicate" => Some(PadMode::Replicate),
        "circular" => Some(PadMode::Circular),
        _ => None,
    }
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
