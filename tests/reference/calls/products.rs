//! Products and attention.

use super::{Arg, Made, futures};
use futensor::{AttentionOptions, TensorFuture};
use serde_json::Value;

/// Calls a case's op, if it is one of these.
pub fn call(op: &str, args: &[Arg], attrs: &Value) -> Option<Made> {
    let flag = |name: &str| attrs[name] == true;
    let attention = || {
        let options = AttentionOptions::default();
        let options = options.causal(flag("causal") || flag("is_causal"));
        let options = match attrs["cap"].as_f64() {
            Some(cap) => options.cap(cap),
            None => options,
        };
        let options = match attrs["window"].as_u64() {
            Some(window) => options.window(window as usize),
            None => options,
        };
        if let Some(scale) = attrs["scale"].as_f64() { options.scale(scale) } else { options }
    };
    match (op, args) {
        ("linear", [Arg::Tensor(x), Arg::Tensor(w), Arg::Tensor(b)]) => {
            futures(x.linear(w, Some(b)))
        }
        ("mm", [Arg::Tensor(a), Arg::Tensor(b)]) => futures(a.mm(b)),
        ("bmm", [Arg::Tensor(a), Arg::Tensor(b)]) => futures(a.bmm(b)),
        ("addmm", [Arg::Tensor(x), Arg::Tensor(a), Arg::Tensor(b)]) => {
            let factor = |name: &str| attrs[name].as_f64().unwrap_or(1.0);
            futures(x.addmm(a, b, factor("beta"), factor("alpha")))
        }
        ("baddbmm" | "addmv", [Arg::Tensor(x), Arg::Tensor(a), Arg::Tensor(b)]) => {
            let (beta, alpha) = (attrs["beta"].as_f64()?, attrs["alpha"].as_f64()?);
            futures(match op {
                "addmv" => x.addmv(a, b, beta, alpha),
                _ => x.baddbmm(a, b, beta, alpha),
            })
        }
        ("dot", [Arg::Tensor(a), Arg::Tensor(b)]) => futures(a.dot(b)),
        ("outer", [Arg::Tensor(a), Arg::Tensor(b)]) => futures(a.outer(b)),
        ("inner", [Arg::Tensor(a), Arg::Tensor(b)]) => futures(a.inner(b)),
        ("cosine_similarity", [Arg::Tensor(a), Arg::Tensor(b)]) => {
            let dim = attrs["dim"].as_i64()? as isize;
            futures(a.cosine_similarity(b, dim, attrs["eps"].as_f64()?))
        }
        ("cdist", [Arg::Tensor(a), Arg::Tensor(b)]) => {
            futures(a.cdist(b, attrs["p"].as_str()?.parse().ok()?))
        }
        ("einsum", _) => {
            let tensors: Option<Vec<&TensorFuture>> =
                args.iter().map(|a| if let Arg::Tensor(x) = a { Some(x) } else { None }).collect();
            futures(futensor::einsum(attrs["equation"].as_str()?, &tensors?))
        }
        (
            "scaled_dot_product_attention",
            [Arg::Tensor(q), Arg::Tensor(k), Arg::Tensor(v), mask @ ..],
        ) => {
            let options = match mask {
                [Arg::Tensor(mask)] => attention().mask(mask),
                _ => attention(),
            };
            futures(q.scaled_dot_product_attention(k, v, options))
        }
        (
            "grouped_attention",
            [Arg::Tensor(q), Arg::Tensor(k), Arg::Tensor(v), Arg::Tensor(lengths)],
        ) => {
            let options = attention().grouped(true).lengths(lengths);
            futures(q.scaled_dot_product_attention(k, v, options))
        }
        (
            "paged_attention",
            [
                Arg::Tensor(q),
                Arg::Tensor(k),
                Arg::Tensor(v),
                Arg::Tensor(table),
                Arg::Tensor(lengths),
            ],
        ) => futures(q.paged_attention(k, v, table, lengths, attention())),
        ("rope", [Arg::Tensor(x), Arg::Tensor(cosine), Arg::Tensor(sine)]) => {
            futures(x.rope(cosine, sine, flag("interleaved")))
        }
        _ => None,
    }
}
