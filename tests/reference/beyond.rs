//! Calls of the ops of `beyond.py`.

use super::apply::{Arg, Made, futures};
use super::case::{dtype_named, ints};
use futensor::{AttentionOptions, Device, Index, ScatterMode, TensorFuture};
use serde_json::Value;

/// Calls a case's op, if it is one of these.
pub fn call(device: &Device, op: &str, args: &[Arg], attrs: &Value) -> Option<Made> {
    let int = |name: &str| attrs[name].as_i64().map(|i| i as isize);
    let flag = |name: &str| attrs[name] == true;
    match args {
        [] => create(device, op, attrs),
        [Arg::Tensor(x)] => match op {
            "asin" => futures(x.asin()),
            "acos" => futures(x.acos()),
            "atan" => futures(x.atan()),
            "sinh" => futures(x.sinh()),
            "cosh" => futures(x.cosh()),
            "asinh" => futures(x.asinh()),
            "acosh" => futures(x.acosh()),
            "atanh" => futures(x.atanh()),
            "cumprod" => futures(x.cumprod(int("dim")?)),
            "cumsum_with" => {
                futures(x.cumsum_with(int("dim")?, flag("exclusive"), flag("reverse")))
            }
            "cumprod_with" => {
                futures(x.cumprod_with(int("dim")?, flag("exclusive"), flag("reverse")))
            }
            "i" => futures(x.i(spans(&attrs["spans"]))),
            _ => None,
        },
        [Arg::Tensor(x), Arg::Scalar(s)] => {
            let dims = attrs["dims"].is_array().then(|| ints(&attrs["dims"]));
            match (op, dims, flag("keepdim")) {
                ("floor_divide", ..) => futures(x.floor_divide(*s)),
                ("trunc_divide", ..) => futures(x.trunc_divide(*s)),
                ("max_initial", None, _) => futures(x.max_initial_all(*s)),
                ("max_initial", Some(dims), false) => futures(x.max_initial(dims, *s)),
                ("max_initial", Some(dims), true) => futures(x.max_initial_keepdim(dims, *s)),
                ("min_initial", None, _) => futures(x.min_initial_all(*s)),
                ("min_initial", Some(dims), false) => futures(x.min_initial(dims, *s)),
                ("min_initial", Some(dims), true) => futures(x.min_initial_keepdim(dims, *s)),
                _ => None,
            }
        }
        [Arg::Scalar(a), Arg::Tensor(b)] => match op {
            "floor_divide" => futures(a.floor_divide(b)),
            "trunc_divide" => futures(a.trunc_divide(b)),
            _ => None,
        },
        [Arg::Tensor(a), Arg::Tensor(b)] => match op {
            "floor_divide" => futures(a.floor_divide(b)),
            "trunc_divide" => futures(a.trunc_divide(b)),
            _ => None,
        },
        [Arg::Tensor(x), Arg::Tensor(cosine), Arg::Tensor(sine)] if op == "rope" => {
            futures(x.rope(cosine, sine, flag("interleaved")))
        }
        [Arg::Tensor(x), Arg::Tensor(index), Arg::Tensor(source)] => {
            scatter(op, x, index, source, attrs)
        }
        [Arg::Tensor(q), Arg::Tensor(k), Arg::Tensor(v), Arg::Tensor(lengths)] => {
            let options =
                AttentionOptions::default().causal(flag("causal")).scale(attrs["scale"].as_f64()?);
            futures(q.scaled_dot_product_attention(k, v, options.grouped(true).lengths(lengths)))
        }
        [
            Arg::Tensor(q),
            Arg::Tensor(k),
            Arg::Tensor(v),
            Arg::Tensor(table),
            Arg::Tensor(lengths),
        ] => {
            let options =
                AttentionOptions::default().causal(flag("causal")).scale(attrs["scale"].as_f64()?);
            futures(q.paged_attention(k, v, table, lengths, options))
        }
        _ => None,
    }
}

fn scatter(
    op: &str,
    x: &TensorFuture,
    index: &TensorFuture,
    source: &TensorFuture,
    attrs: &Value,
) -> Option<Made> {
    let dim = attrs["dim"].as_i64()? as isize;
    let mode = match (op, attrs["reduce"].as_str()) {
        ("index_copy", _) => return futures(x.clone().index_copy(dim, index, source)),
        ("scatter", _) => return futures(x.scatter(dim, index, source)),
        ("scatter_reduce", Some("prod")) => ScatterMode::Prod,
        ("scatter_reduce", Some("amax")) => ScatterMode::Max,
        ("scatter_reduce", Some("amin")) => ScatterMode::Min,
        _ => return None,
    };
    futures(x.scatter_reduce(dim, index, source, mode))
}

fn create(device: &Device, op: &str, attrs: &Value) -> Option<Made> {
    let size = |name: &str| attrs[name].as_u64().map(|n| n as usize);
    let dtype = || attrs["dtype"].as_str().map(dtype_named);
    match op {
        "eye_dtype" => futures(device.eye_dtype([size("n")?, size("m")?], dtype()?)),
        "eye_diagonal" => {
            let shape = [size("n")?, size("m")?];
            futures(device.eye_diagonal(shape, attrs["diagonal"].as_i64()?, dtype()?))
        }
        _ => None,
    }
}

/// A position, or start, end and step of a slice, for each of the first dimensions.
fn spans(list: &Value) -> Vec<Index> {
    let index = |of: &Value| match of.as_array() {
        None => Index::At(of.as_i64().expect("a position") as isize),
        Some(parts) => {
            let part = |i: usize| parts[i].as_i64().map(|p| p as isize);
            Index::Span { start: part(0), end: part(1), step: part(2).unwrap_or(1) }
        }
    };
    list.as_array().expect("a list").iter().map(index).collect()
}
