//! Calls of the ops outside the table. An op that is not here is reported as ignored.

use super::apply::{Arg, Made, futures};
use super::case::ints;
use super::layers::both;
use futensor::TensorFuture;
use serde_json::Value;

/// Calls a case's op, if futensor has it.
pub fn call(op: &str, args: &[Arg], attrs: &Value) -> Option<Made> {
    let int = |name: &str| attrs[name].as_i64().map(|i| i as isize);
    let size = |name: &str| attrs[name].as_u64().map(|n| n as usize);
    let several = |all: Vec<TensorFuture>| Some(Made::Futures(all));
    match (op, args) {
        ("softmax", [Arg::Tensor(x)]) => futures(x.softmax(int("dim")?)),
        ("log_softmax", [Arg::Tensor(x)]) => futures(x.log_softmax(int("dim")?)),
        ("logsumexp", [Arg::Tensor(x)]) => match (ints(&attrs["dims"]), attrs["keepdim"] == true) {
            (dims, false) => futures(x.logsumexp(dims)),
            (dims, true) => futures(x.logsumexp_keepdim(dims)),
        },
        ("layer_norm", [Arg::Tensor(x), Arg::Tensor(w), Arg::Tensor(b)]) => {
            futures(x.layer_norm(w, b, attrs["eps"].as_f64()?))
        }
        ("rms_norm", [Arg::Tensor(x), Arg::Tensor(w)]) => {
            futures(x.rms_norm(w, attrs["eps"].as_f64()?))
        }
        ("layer_norm", [Arg::Tensor(x), Arg::Tensor(w), Arg::Absent]) => {
            futures(x.layer_norm_weighted(w, attrs["eps"].as_f64()?))
        }
        ("layer_norm", [Arg::Tensor(x), Arg::Absent, Arg::Absent]) => futures(
            x.layer_norm_plain(attrs["normalized_shape"].as_array()?.len(), attrs["eps"].as_f64()?),
        ),
        ("rms_norm", [Arg::Tensor(x), Arg::Absent]) => futures(
            x.rms_norm_plain(attrs["normalized_shape"].as_array()?.len(), attrs["eps"].as_f64()?),
        ),
        ("gather", [Arg::Tensor(x), Arg::Tensor(i)]) => futures(x.gather(int("dim")?, i)),
        ("index_select", [Arg::Tensor(x), Arg::Tensor(i)]) => {
            futures(x.index_select(int("dim")?, i))
        }
        ("embedding", [Arg::Tensor(x), Arg::Tensor(i)]) => futures(x.embedding(i)),
        ("scatter_add", [Arg::Tensor(x), Arg::Tensor(i), Arg::Tensor(s)]) => {
            futures(x.scatter_add(int("dim")?, i, s))
        }
        ("one_hot", [Arg::Tensor(x)]) => futures(x.one_hot(size("num_classes")?)),
        ("sort", [Arg::Tensor(x)]) => {
            let (dim, descending) = (int("dim")?, attrs["descending"] == true);
            several(vec![x.sort(dim, descending), x.argsort(dim, descending)])
        }
        ("topk" | "topk_values", [Arg::Tensor(x)]) => {
            let (values, positions) = x.topk(size("k")?, int("dim")?, attrs["largest"] == true);
            several(if op == "topk" { vec![values, positions] } else { vec![values] })
        }
        ("cumsum", [Arg::Tensor(x)]) => futures(x.cumsum(int("dim")?)),
        ("tril", [Arg::Tensor(x)]) => futures(x.tril(attrs["diagonal"].as_i64()?)),
        ("triu", [Arg::Tensor(x)]) => futures(x.triu(attrs["diagonal"].as_i64()?)),
        ("roll", [Arg::Tensor(x)]) => futures(x.roll(ints(&attrs["shifts"]), ints(&attrs["dims"]))),
        ("flip", [Arg::Tensor(x)]) => futures(x.flip(ints(&attrs["dims"]))),
        ("masked_fill", [Arg::Tensor(x), Arg::Tensor(m), Arg::Scalar(s)]) => {
            futures(x.masked_fill(m, *s))
        }
        ("repeat", [Arg::Tensor(x)]) => futures(x.repeat(ints(&attrs["repeats"]))),
        ("split", [Arg::Tensor(x)]) if attrs["sizes"].is_array() => {
            several(x.split_with_sizes(ints(&attrs["sizes"]), int("dim")?))
        }
        ("split", [Arg::Tensor(x)]) => several(x.split(size("size")?, int("dim")?)),
        ("chunk", [Arg::Tensor(x)]) => several(x.chunk(size("chunks")?, int("dim")?)),
        ("linear", [Arg::Tensor(x), Arg::Tensor(w), Arg::Tensor(b)]) => {
            futures(x.linear(w, Some(b)))
        }
        ("bmm", [Arg::Tensor(a), Arg::Tensor(b)]) => futures(a.bmm(b)),
        ("t", [Arg::Tensor(x)]) => futures(x.t()),
        ("argsort", [Arg::Tensor(x)]) => {
            futures(x.argsort(int("dim")?, attrs["descending"] == true))
        }
        ("sort_with_positions", [Arg::Tensor(x)]) => {
            both(x.sort_with_positions(int("dim")?, attrs["descending"] == true))
        }
        ("max_with_positions", [Arg::Tensor(x)]) => both(x.max_with_positions(int("dim")?)),
        ("min_with_positions", [Arg::Tensor(x)]) => both(x.min_with_positions(int("dim")?)),
        ("mm", [Arg::Tensor(a), Arg::Tensor(b)]) => futures(a.mm(b)),
        ("addmm", [Arg::Tensor(x), Arg::Tensor(a), Arg::Tensor(b)]) => {
            let factor = |name: &str| attrs[name].as_f64().unwrap_or(1.0);
            futures(x.addmm(a, b, factor("beta"), factor("alpha")))
        }
        ("einsum", _) => {
            let tensors: Option<Vec<&TensorFuture>> =
                args.iter().map(|a| if let Arg::Tensor(x) = a { Some(x) } else { None }).collect();
            futures(futensor::einsum(attrs["equation"].as_str()?, &tensors?))
        }
        _ => super::layers::call(op, args, attrs),
    }
}
