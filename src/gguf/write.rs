//! `save`: writes a header, and the tensors at their offsets after it.

use super::header::alignment;
use super::value::Bytes;
use super::{DIMS_MAX, Kind, MAGIC, Metadata, Save, VERSION, Value};
use crate::files::{self, Piece};
use crate::quant::Weight;
use std::collections::BTreeSet;
use std::panic::Location;
use std::path::Path;

/// Writes metadata and named tensors to a GGUF file (version 3), in the given order. Tensors are
/// read back one after the other, and a separate thread writes them. The complete file replaces an
/// existing one atomically.
///
/// # Errors
/// A failed value's own error; duplicate keys or tensor names; a type that GGUF does not have
/// (bool, unsigned integers, float8), more than four dimensions, or an alignment
/// (`general.alignment`) that is not a power of two; errors of the file system.
///
/// # Cancel safety
/// Dropping the future cancels the save: no new file is written, and an existing one stays.
#[track_caller]
pub fn save<K: Into<String>, N: Into<String>, W: Into<Weight>>(
    path: impl AsRef<Path>,
    metadata: impl IntoIterator<Item = (K, Value)>,
    tensors: impl IntoIterator<Item = (N, W)>,
) -> Save {
    let tensors: Vec<(String, Weight)> =
        tensors.into_iter().map(|(n, w)| (n.into(), w.into())).collect();
    let mut pairs = Metadata::new();
    let twice = metadata.into_iter().map(|(k, v)| (k.into(), v)).find_map(|(key, value)| {
        let before = pairs.insert(key.clone(), value);
        before.map(|_| format!("{key} is given twice"))
    });
    let pieces = twice.map_or_else(|| pieces(&pairs, tensors), Err);
    files::save(path.as_ref().to_path_buf(), pieces, Location::caller())
}

fn pieces(metadata: &Metadata, tensors: Vec<(String, Weight)>) -> Result<Vec<Piece>, String> {
    if let Some(failed) = files::known_failure(tensors.iter().map(|(_, weight)| weight.value())) {
        return Ok(failed);
    }
    let alignment = alignment(metadata)?;
    let mut head = MAGIC.to_vec();
    VERSION.write(&mut head);
    (tensors.len() as u64).write(&mut head);
    (metadata.len() as u64).write(&mut head);
    for (key, value) in metadata {
        key.write(&mut head);
        value.write(&mut head);
    }
    let mut names = BTreeSet::new();
    let (mut start, mut body) = (0u64, Vec::new());
    for (name, weight) in tensors {
        let (kind, bytes) = match &weight {
            Weight::Dense(x) => (Kind::Dense(x.dtype()), weight.bytes()),
            Weight::Quantized(w) => (Kind::Quantized(w.format()), w.packing().file_bytes()),
        };
        let Some(code) = kind.code() else {
            return Err(format!("tensor {name} is {kind}, a type that GGUF does not have"));
        };
        let dims = weight.dims();
        if dims.len() > DIMS_MAX {
            return Err(format!("tensor {name} has {} dimensions", dims.len()));
        }
        name.write(&mut head);
        (dims.len() as u32).write(&mut head);
        dims.iter().rev().for_each(|&size| (size as u64).write(&mut head));
        code.write(&mut head);
        start.write(&mut head);
        let end = start.checked_add(bytes as u64);
        let next = end.and_then(|end| end.checked_next_multiple_of(alignment));
        let Some((end, next)) = end.zip(next) else {
            return Err("the tensors are too large for a file".into());
        };
        start = next;
        body.push(match weight {
            Weight::Dense(x) => Piece::Elements(x),
            Weight::Quantized(w) => {
                let packing = w.packing();
                Piece::Made(w.packed().clone(), Box::new(move |panels| packing.unpack(&panels)))
            }
        });
        body.push(Piece::Bytes(vec![0; (start - end) as usize]));
        if let Some(name) = names.replace(name) {
            return Err(format!("two tensors are named {name}"));
        }
    }
    head.resize(head.len().next_multiple_of(alignment as usize), 0);
    body.insert(0, Piece::Bytes(head));
    Ok(body)
}
