//! Shapes beside the plain views: slices with any step, cuts, repeats, padding.

use super::super::case::ints;
use super::{Arg, Made, futures};
use futensor::{Index, PadMode, TensorFuture};
use serde_json::Value;

/// Calls a case's op, if it is one of these.
pub fn call(op: &str, args: &[Arg], attrs: &Value) -> Option<Made> {
    let int = |name: &str| attrs[name].as_i64().map(|i| i as isize);
    let size = |name: &str| attrs[name].as_u64().map(|n| n as usize);
    match (op, args) {
        ("i", [Arg::Tensor(x)]) => futures(x.i(spans(&attrs["spans"]))),
        ("t", [Arg::Tensor(x)]) => futures(x.t()),
        ("flatten", [Arg::Tensor(x)]) => futures(x.flatten(int("start")?, int("end")?)),
        ("repeat", [Arg::Tensor(x)]) => futures(x.repeat(ints(&attrs["repeats"]))),
        ("split", [Arg::Tensor(x)]) if attrs["sizes"].is_array() => {
            Some(Made::Futures(x.split_with_sizes(ints(&attrs["sizes"]), int("dim")?)))
        }
        ("split", [Arg::Tensor(x)]) => Some(Made::Futures(x.split(size("size")?, int("dim")?))),
        ("chunk", [Arg::Tensor(x)]) => Some(Made::Futures(x.chunk(size("chunks")?, int("dim")?))),
        ("movedim", [Arg::Tensor(x)]) => {
            futures(x.movedim(ints(&attrs["source"]), ints(&attrs["destination"])))
        }
        ("unflatten", [Arg::Tensor(x)]) => futures(x.unflatten(int("dim")?, ints(&attrs["sizes"]))),
        ("unfold_dim", [Arg::Tensor(x)]) => {
            futures(x.unfold_dim(int("dim")?, size("size")?, size("step")?))
        }
        ("unbind", [Arg::Tensor(x)]) => Some(Made::Futures(x.unbind(int("dim")?))),
        ("tile", [Arg::Tensor(x)]) => futures(x.tile(ints(&attrs["dims"]))),
        ("repeat_interleave", [Arg::Tensor(x)]) => {
            futures(x.repeat_interleave(size("times")?, int("dim")?))
        }
        ("meshgrid", _) => {
            let all: Option<Vec<&TensorFuture>> =
                args.iter().map(|a| if let Arg::Tensor(x) = a { Some(x) } else { None }).collect();
            Some(Made::Futures(futensor::meshgrid(&all?)))
        }
        ("diagonal", [Arg::Tensor(x)]) => {
            futures(x.diagonal(attrs["offset"].as_i64()?, int("dim1")?, int("dim2")?))
        }
        ("diag", [Arg::Tensor(x)]) => futures(x.diag(attrs["diagonal"].as_i64()?)),
        ("trace", [Arg::Tensor(x)]) => futures(x.trace()),
        ("pad", [Arg::Tensor(x), Arg::Scalar(s)]) => futures(x.pad(ints(&attrs["pad"]), *s)),
        ("pad_mode", [Arg::Tensor(x)]) => futures(x.pad_mode(ints(&attrs["pad"]), mode(attrs)?)),
        _ => None,
    }
}

fn mode(attrs: &Value) -> Option<PadMode> {
    match attrs["mode"].as_str()? {
        "reflect" => Some(PadMode::Reflect),
        "replicate" => Some(PadMode::Replicate),
        "circular" => Some(PadMode::Circular),
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
