//! Ops on quantised weights: one a file. A weight is a row of bytes, packed as
//! [`format`](crate::format) says; what it means is the op's.

mod dequantize;
mod embedding;
mod grouped;
mod linear;
mod quantize;

pub(crate) use dequantize::Dequantize;
pub(crate) use embedding::QuantizedEmbedding;
pub(crate) use grouped::GroupedLinear;
pub(crate) use linear::QuantizedLinear;
pub(crate) use quantize::Quantize;

use crate::dtype::DType;
use crate::format::Packing;
use crate::graph::operation::{Meta, Refusal};

/// The bytes of a packed weight are needed.
fn packed(meta: &Meta, packing: Packing) -> Result<(), Refusal> {
    match meta.dtype == DType::U8 && meta.shape[..] == [packing.bytes()] {
        true => Ok(()),
        false => {
            Err(Refusal::shape(format!("{} of {} is not a packed weight", meta.shape, meta.dtype)))
        }
    }
}

/// Nanoseconds to come by so many bytes of a weight.
fn reading(bytes: usize) -> u64 {
    bytes as u64 / 12
}
