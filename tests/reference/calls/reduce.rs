//! Reductions beside the op table's: `logsumexp`, spreads and norms, extrema with an initial value.

use super::super::case::ints;
use super::{Arg, Made, futures};
use futensor::TensorFuture;
use serde_json::Value;

/// Calls a case's op, if it is one of these.
pub fn call(op: &str, args: &[Arg], attrs: &Value) -> Option<Made> {
    let keepdim = attrs["keepdim"] == true;
    let dims = || attrs["dims"].is_array().then(|| ints(&attrs["dims"]));
    match (op, args) {
        ("logsumexp", [Arg::Tensor(x)]) if keepdim => futures(x.logsumexp_keepdim(dims()?)),
        ("logsumexp", [Arg::Tensor(x)]) => futures(x.logsumexp(dims()?)),
        ("var" | "std" | "norm", [Arg::Tensor(x)]) => spread(op, x, attrs),
        ("max_initial", [Arg::Tensor(x), Arg::Scalar(s)]) => match (dims(), keepdim) {
            (None, _) => futures(x.max_initial_all(*s)),
            (Some(dims), false) => futures(x.max_initial(dims, *s)),
            (Some(dims), true) => futures(x.max_initial_keepdim(dims, *s)),
        },
        ("min_initial", [Arg::Tensor(x), Arg::Scalar(s)]) => match (dims(), keepdim) {
            (None, _) => futures(x.min_initial_all(*s)),
            (Some(dims), false) => futures(x.min_initial(dims, *s)),
            (Some(dims), true) => futures(x.min_initial_keepdim(dims, *s)),
        },
        _ => None,
    }
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
