//! Rows and their order: running sums and products, sorting, the largest few, triangles, `roll`,
//! `flip`.

use super::super::case::ints;
use super::{Arg, Made, both, futures};
use futensor::op_options::Between;
use serde_json::Value;

/// Calls a case's op, if it is one of these.
pub fn call(op: &str, args: &[Arg], attrs: &Value) -> Option<Made> {
    let int = |name: &str| attrs[name].as_i64().map(|i| i as isize);
    let flag = |name: &str| attrs[name] == true;
    let [Arg::Tensor(x)] = args else { return None };
    match op {
        "cumsum" => futures(x.cumsum(int("dim")?)),
        "cumprod" => futures(x.cumprod(int("dim")?)),
        "cummax" => both(x.cummax(int("dim")?)),
        "cummin" => both(x.cummin(int("dim")?)),
        "kthvalue" => futures(x.kthvalue(int("k")?.try_into().ok()?, int("dim")?).0),
        "median" => futures(x.median(int("dim")?).0),
        "median_all" => futures(x.median_all()),
        "quantile" => {
            let between = match attrs["interpolation"].as_str()? {
                "lower" => Between::Lower,
                "higher" => Between::Higher,
                "midpoint" => Between::Midpoint,
                "nearest" => Between::Nearest,
                _ => Between::Linear,
            };
            futures(x.quantile(attrs["q"].as_f64()?, int("dim")?, between))
        }
        "cumsum_with" => futures(x.cumsum_with(int("dim")?, flag("exclusive"), flag("reverse"))),
        "cumprod_with" => futures(x.cumprod_with(int("dim")?, flag("exclusive"), flag("reverse"))),
        "sort" => {
            let (dim, descending) = (int("dim")?, flag("descending"));
            Some(Made::Futures(vec![x.sort(dim, descending), x.argsort(dim, descending)]))
        }
        "argsort" => futures(x.argsort(int("dim")?, flag("descending"))),
        "sort_with_positions" => both(x.sort_with_positions(int("dim")?, flag("descending"))),
        "max_with_positions" => both(x.max_with_positions(int("dim")?)),
        "min_with_positions" => both(x.min_with_positions(int("dim")?)),
        "topk" => both(x.topk(int("k")?.try_into().ok()?, int("dim")?, flag("largest"))),
        "topk_values" => {
            futures(x.topk(int("k")?.try_into().ok()?, int("dim")?, flag("largest")).0)
        }
        "tril" => futures(x.tril(attrs["diagonal"].as_i64()?)),
        "triu" => futures(x.triu(attrs["diagonal"].as_i64()?)),
        "roll" => futures(x.roll(ints(&attrs["shifts"]), ints(&attrs["dims"]))),
        "flip" => futures(x.flip(ints(&attrs["dims"]))),
        _ => None,
    }
}
