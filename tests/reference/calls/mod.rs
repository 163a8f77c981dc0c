//! The calls of ops, a file a family; what `apply` does not know itself, one of these does.

mod elementwise;
mod index;
mod nn;
mod order;
mod products;
mod reduce;
mod views;
mod windows;

use super::apply::{Arg, Made, futures};
use futensor::TensorFuture;
use serde_json::Value;

type Call = fn(&str, &[Arg], &Value) -> Option<Made>;

/// Calls a case's op, if a family has it.
pub fn call(op: &str, args: &[Arg], attrs: &Value) -> Option<Made> {
    let families: [Call; 8] = [
        elementwise::call,
        reduce::call,
        order::call,
        index::call,
        views::call,
        products::call,
        nn::call,
        windows::call,
    ];
    families.iter().find_map(|family| family(op, args, attrs))
}

/// Values and where they stand.
fn both((values, positions): (TensorFuture, TensorFuture)) -> Option<Made> {
    Some(Made::Futures(vec![values, positions]))
}
