//! A file's header: every length and offset is checked against the file's length before it is used.

use super::source::Source;
use super::value::{Bytes, Metadata, Value};
use super::{ALIGNMENT, ALIGNMENT_MAX, DIMS_MAX, Kind, MAGIC, VERSION};
use crate::error::{bytes_of, number_of};
use std::collections::BTreeSet;
use std::io::Read;

/// A tensor's entry in the header of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// Its type.
    pub kind: Kind,
    /// The sizes of the dimensions, outermost first: the reverse of the order in the file.
    pub dims: Vec<usize>,
    /// The number of bytes in the file.
    pub bytes: u64,
    /// The offset of the bytes in the file.
    pub(super) start: u64,
}

/// The contents of a header.
pub(super) struct Header {
    pub metadata: Metadata,
    /// The tensors, in the order of their data in the file.
    pub tensors: Vec<TensorInfo>,
}

/// The alignment of the data in a file with this metadata.
pub(super) fn alignment(metadata: &Metadata) -> Result<u64, String> {
    let Some(value) = metadata.get(ALIGNMENT.0) else { return Ok(ALIGNMENT.1) };
    match value.as_u64() {
        Some(alignment) if alignment.is_power_of_two() && alignment <= ALIGNMENT_MAX => {
            Ok(alignment)
        }
        Some(other) => Err(format!("an invalid alignment of {other}")),
        None => Err("an alignment that is not an integer".into()),
    }
}

impl Header {
    /// Reads and checks a header of a file that is `length` bytes long.
    ///
    /// # Errors
    /// A message that says what is wrong.
    pub fn read(from: impl Read, length: u64) -> Result<Header, String> {
        let mut from = Source::new(from, length);
        if length < 24 {
            return Err(format!("truncated: {} cannot hold a header", bytes_of(length as usize)));
        }
        if from.bytes()? != MAGIC {
            return Err("this is not a GGUF file".into());
        }
        match u32::read(&mut from)? {
            2 | VERSION => {}
            1 => return Err("version 1, which is obsolete since 2023".into()),
            other if other.swap_bytes() <= 0xffff => {
                return Err("its numbers are big-endian".into());
            }
            other => return Err(format!("version {other}, which is newer than this reader")),
        }
        let (tensors, pairs) = (u64::read(&mut from)?, u64::read(&mut from)?);
        let mut metadata = Metadata::new();
        // A key, a type and a byte.
        for (key, value) in from.several(pairs, 13, |from| {
            let key = String::read(from)?;
            let code = u32::read(from)?;
            let value = Value::read(from, code).map_err(|text| format!("{key}: {text}"))?;
            Ok((key, value))
        })? {
            if let Some(before) = metadata.insert(key.clone(), value) {
                drop(before);
                return Err(format!("duplicate key {key}"));
            }
        }
        let alignment = alignment(&metadata)?;
        // A name, the number of dimensions, a type and an offset.
        let mut tensors = from.several(tensors, 24, |from| tensor(from, alignment))?;
        let data = from.at().next_multiple_of(alignment);
        for tensor in &mut tensors {
            let end =
                data.checked_add(tensor.start).and_then(|start| start.checked_add(tensor.bytes));
            if end.is_none_or(|end| end > length) {
                let name = &tensor.name;
                return Err(format!(
                    "truncated: tensor {name} ends beyond the file's {}",
                    bytes_of(length as usize)
                ));
            }
            tensor.start += data;
        }
        let mut names = BTreeSet::new();
        if let Some(twice) = tensors.iter().find(|t| !names.insert(&t.name)) {
            return Err(format!("two tensors are named {}", twice.name));
        }
        tensors.sort_by_key(|t| (t.start, t.bytes));
        if let Some(pair) = tensors.windows(2).find(|w| w[0].start + w[0].bytes > w[1].start) {
            return Err(format!("tensors {} and {} overlap", pair[0].name, pair[1].name));
        }
        Ok(Header { metadata, tensors })
    }
}

/// Reads a tensor's entry; its start is still relative to the data section.
fn tensor(from: &mut Source<impl Read>, alignment: u64) -> Result<TensorInfo, String> {
    let name = String::read(from)?;
    let wrong = |text: String| format!("tensor {name} {text}");
    let rank = u32::read(from)? as usize;
    if rank > DIMS_MAX {
        return Err(wrong(format!("has {rank} dimensions, more than {DIMS_MAX}")));
    }
    let sizes = from.several(rank as u64, 8, u64::read)?;
    let kind = Kind::of(u32::read(from)?).map_err(wrong)?;
    let start = u64::read(from)?;
    let row = sizes.first().copied().unwrap_or(1);
    let Some(row_bytes) = kind.row_bytes(row) else {
        return Err(wrong(format!("has rows of {row}, which are not whole blocks of {kind}")));
    };
    let rows = sizes.iter().skip(1).try_fold(1u64, |n, &size| n.checked_mul(size));
    let bytes = rows
        .and_then(|rows| rows.checked_mul(row_bytes))
        .filter(|&bytes| bytes <= isize::MAX as u64);
    let sized = sizes.iter().all(|&size| size < isize::MAX as u64);
    let Some(bytes) = bytes.filter(|_| sized) else {
        return Err(wrong(format!("of {sizes:?} is larger than any memory")));
    };
    if matches!(kind, Kind::Quantized(_)) && !matches!(rank, 2 | 3) {
        let dims = number_of(rank, "dimension", "dimensions");
        return Err(wrong(format!("is of {kind} and has {dims}, not two or three")));
    }
    if !start.is_multiple_of(alignment) {
        return Err(wrong(format!("starts at {start}, which is not a multiple of {alignment}")));
    }
    let dims = sizes.iter().rev().map(|&size| size as usize).collect();
    Ok(TensorInfo { name, kind, dims, bytes, start })
}
