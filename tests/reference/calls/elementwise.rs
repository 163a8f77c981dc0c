//! Elementwise ops beside the rows of the op tables: activations with a number, `clamp`,
//! `masked_fill`.

use super::{Arg, Made, futures};
use serde_json::Value;

/// Calls a case's op, if it is one of these.
pub fn call(op: &str, args: &[Arg], attrs: &Value) -> Option<Made> {
    let number = |name: &str| attrs[name].as_f64();
    match (op, args) {
        ("elu", [Arg::Tensor(x)]) => futures(x.elu(number("alpha")?)),
        ("leaky_relu", [Arg::Tensor(x)]) => futures(x.leaky_relu(number("slope")?)),
        ("bitwise_not", [Arg::Tensor(x)]) => futures(x.bitwise_not()),
        ("masked_fill", [Arg::Tensor(x), Arg::Tensor(m), Arg::Scalar(s)]) => {
            futures(x.masked_fill(m, *s))
        }
        ("clamp", [Arg::Tensor(x), Arg::Scalar(low), Arg::Scalar(high)]) => {
            futures(x.clamp(*low, *high))
        }
        ("clamp", [Arg::Tensor(x), Arg::Tensor(low), Arg::Tensor(high)]) => {
            futures(x.clamp(low, high))
        }
        ("clamp_min", [Arg::Tensor(x), Arg::Scalar(low)]) => futures(x.clamp_min(*low)),
        ("clamp_min", [Arg::Tensor(x), Arg::Tensor(low)]) => futures(x.clamp_min(low)),
        ("clamp_max", [Arg::Tensor(x), Arg::Scalar(high)]) => futures(x.clamp_max(*high)),
        ("clamp_max", [Arg::Tensor(x), Arg::Tensor(high)]) => futures(x.clamp_max(high)),
        _ => None,
    }
}
