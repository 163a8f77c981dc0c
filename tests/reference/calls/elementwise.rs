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
        ("lerp", [Arg::Tensor(a), Arg::Tensor(b), Arg::Tensor(w)]) => futures(a.lerp(b, w)),
        ("lerp", [Arg::Tensor(a), Arg::Tensor(b), Arg::Scalar(w)]) => futures(a.lerp(b, *w)),
        ("nan_to_num", [Arg::Tensor(x)]) => {
            futures(x.nan_to_num(number("nan"), number("posinf"), number("neginf")))
        }
        ("isclose" | "allclose", [Arg::Tensor(a), Arg::Tensor(b)]) => {
            let (rtol, atol, nan) = (number("rtol")?, number("atol")?, attrs["equal_nan"] == true);
            futures(match op {
                "isclose" => a.isclose(b, rtol, atol, nan),
                _ => a.allclose(b, rtol, atol, nan),
            })
        }
        ("round_decimals", [Arg::Tensor(x)]) => {
            futures(x.round_decimals(attrs["decimals"].as_i64()? as i32))
        }
        ("softplus_with", [Arg::Tensor(x)]) => {
            futures(x.softplus_with(number("beta")?, number("threshold")?))
        }
        ("mish", [Arg::Tensor(x)]) => futures(x.mish()),
        ("hardswish", [Arg::Tensor(x)]) => futures(x.hardswish()),
        ("selu", [Arg::Tensor(x)]) => futures(x.selu()),
        ("prelu", [Arg::Tensor(x), Arg::Tensor(w)]) => futures(x.prelu(w)),
        ("glu", [Arg::Tensor(x)]) => futures(x.glu(attrs["dim"].as_i64()? as isize)),
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
