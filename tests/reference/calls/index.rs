//! Picking by indices, and putting back.

use super::{Arg, Made, futures};
use futensor::op_options::ScatterOptions;
use futensor::read::Later;
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
        ("index_put", [Arg::Tensor(x), indices @ .., Arg::Tensor(values)]) => {
            let indices: Vec<_> = indices.iter().map(tensor).collect();
            futures(x.index_put(&indices, values, attrs["accumulate"] == true))
        }
        ("index_add", [Arg::Tensor(x), Arg::Tensor(i), Arg::Tensor(s)]) => {
            futures(x.index_add(dim()?, i, s, attrs["alpha"].as_i64()?))
        }
        ("index_fill", [Arg::Tensor(x), Arg::Tensor(i), Arg::Scalar(s)]) => {
            futures(x.clone().index_fill(dim()?, i, *s))
        }
        ("searchsorted", [Arg::Tensor(x), Arg::Tensor(values)]) => {
            futures(x.searchsorted(values, attrs["right"] == true))
        }
        ("histc", [Arg::Tensor(x)]) => {
            let (min, max) = (attrs["min"].as_f64()?, attrs["max"].as_f64()?);
            futures(x.histc(attrs["bins"].as_u64()? as usize, min, max))
        }
        ("masked_select", [Arg::Tensor(x), Arg::Tensor(mask)]) => later(x.masked_select(mask)),
        ("index_mask", [Arg::Tensor(x), Arg::Tensor(mask)]) => later(x.index_mask(mask)),
        ("bincount", [Arg::Tensor(x), weights @ ..]) => {
            let length = attrs["length"].as_u64().unwrap_or(0) as usize;
            later(x.bincount(weights.first().and_then(tensor), length))
        }
        ("repeat_interleave_by", [Arg::Tensor(x), Arg::Tensor(times)]) => {
            later(x.repeat_interleave_by(times, dim()?))
        }
        ("unique", [Arg::Tensor(x)]) => {
            let all = x.unique();
            Some(Made::Later(Box::pin(async move {
                let (values, inverse, counts) = all.await?;
                Ok(vec![values, inverse, counts])
            })))
        }
        (_, [Arg::Tensor(x), Arg::Tensor(i), Arg::Tensor(s)]) => scatter(op, x, i, s, attrs),
        _ => None,
    }
}

fn later(x: Later) -> Option<Made> {
    Some(Made::Later(Box::pin(async move { Ok(vec![x.await?]) })))
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
    let own = attrs["include_self"] != false;
    let mode = match (op, attrs["reduce"].as_str()) {
        ("index_copy", _) => return futures(x.clone().index_copy(dim, index, source)),
        ("scatter", _) => return futures(x.scatter(dim, index, source)),
        ("scatter_reduce", Some("mean")) => {
            let mean = ScatterOptions::mean().include_self(own);
            return futures(x.scatter_reduce(dim, index, source, mean));
        }
        ("scatter_reduce", Some("sum")) => ScatterMode::Sum,
        ("scatter_reduce", Some("prod")) => ScatterMode::Prod,
        ("scatter_reduce", Some("amax")) => ScatterMode::Max,
        ("scatter_reduce", Some("amin")) => ScatterMode::Min,
        _ => return None,
    };
    let options = ScatterOptions::from(mode).include_self(own);
    futures(x.scatter_reduce(dim, index, source, options))
}
