//! Picking by indices, and putting back.

use super::{Arg, Made, futures};
use futensor::{ScatterMode, TensorFuture};
use serde_json::Value;

/// Calls a case's op, if it is one of these.
pub fn call(op: &str, args: &[Arg], attrs: &Value) -> Option<Made> {
    let dim = || attrs["dim"].as_i64().map(|i| i as isize);
    match (op, args) {
        ("gather", [Arg::Tensor(x), Arg::Tensor(i)]) => futures(x.gather(dim()?, i)),
        ("index_select", [Arg::Tensor(x), Arg::Tensor(i)]) => futures(x.index_select(dim()?, i)),
        ("embedding", [Arg::Tensor(x), Arg::Tensor(i)]) => futures(x.embedding(i)),
        ("take", [Arg::Tensor(x), Arg::Tensor(i)]) => futures(x.take(i)),
        ("one_hot", [Arg::Tensor(x)]) => {
            futures(x.one_hot(attrs["num_classes"].as_u64()? as usize))
        }
        ("index", [Arg::Tensor(x), indices @ ..]) => {
            futures(x.index(&indices.iter().map(tensor).collect::<Vec<_>>()))
        }
        ("scatter_add", [Arg::Tensor(x), Arg::Tensor(i), Arg::Tensor(s)]) => {
            futures(x.scatter_add(dim()?, i, s))
        }
        (_, [Arg::Tensor(x), Arg::Tensor(i), Arg::Tensor(s)]) => scatter(op, x, i, s, attrs),
        _ => None,
    }
}

fn tensor(arg: &Arg) -> Option<&TensorFuture> {
    if let Arg::Tensor(x) = arg { Some(x) } else { None }
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
