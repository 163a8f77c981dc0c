//! The header of a `.npy` file, which is a Python dictionary in text. Pure.
//!
//! Source: NumPy's `numpy.lib.format`, versions 1.0 to 3.0 of the format.

use crate::dtype::DType;
use crate::error::bytes_of;
use crate::files::Layout;
use crate::shape::{Shape, Strides, contiguous_strides};
use std::io::Read;

const MAGIC: &[u8] = b"\x93NUMPY";
/// The longest header that is read. NumPy's own limit is 10,000 characters.
const LENGTH_MAX: usize = 1 << 16;
/// Elements begin at a multiple of this.
const ALIGNMENT: usize = 64;

/// What a header says.
pub(super) struct Header {
    pub dtype: DType,
    pub shape: Shape,
    pub layout: Layout,
    /// The number of bytes of the elements.
    pub bytes: u64,
}

/// Reads a header; the reader stands at the elements then. Also the header's own length.
pub(super) fn read(file: &mut (impl Read + ?Sized)) -> Result<(Header, u64), String> {
    let mut start = [0; 8];
    exact(file, &mut start)?;
    if &start[..6] != MAGIC {
        return Err("this is not a .npy file".into());
    }
    let (length, before) = match start[6] {
        1 => {
            let mut length = [0; 2];
            exact(file, &mut length)?;
            (u16::from_le_bytes(length) as usize, 10)
        }
        2 | 3 => {
            let mut length = [0; 4];
            exact(file, &mut length)?;
            (u32::from_le_bytes(length) as usize, 12)
        }
        other => return Err(format!("version {other} of the .npy format is not known")),
    };
    if length > LENGTH_MAX {
        return Err(format!("a header of {}: this is not a .npy file", bytes_of(length)));
    }
    let mut text = vec![0; length];
    exact(file, &mut text)?;
    let text = String::from_utf8(text).map_err(|_| "the header is not text")?;
    Ok((parsed(&text)?, before + length as u64))
}

fn exact(file: &mut (impl Read + ?Sized), to: &mut [u8]) -> Result<(), String> {
    file.read_exact(to).map_err(|e| match e.kind() {
        std::io::ErrorKind::UnexpectedEof => "truncated within the header".into(),
        _ => e.to_string(),
    })
}

/// The bytes before the elements of a tensor.
pub(super) fn write(dtype: DType, shape: &Shape) -> Result<Vec<u8>, String> {
    let descr = match dtype {
        DType::F32 => "<f4",
        DType::F64 => "<f8",
        DType::F16 => "<f2",
        DType::I32 => "<i4",
        DType::I64 => "<i8",
        DType::U8 => "|u1",
        DType::Bool => "|b1",
        DType::I8 => "|i1",
        DType::I16 => "<i2",
        DType::U16 => "<u2",
        DType::U32 => "<u4",
        DType::U64 => "<u8",
        DType::BF16 | DType::F8E4M3 | DType::F8E5M2 => {
            return Err(format!("NumPy has no {dtype}: convert with to_dtype"));
        }
    };
    let sizes: Vec<String> = shape.dims().iter().map(|n| n.to_string()).collect();
    let comma = if sizes.len() == 1 { "," } else { "" };
    let sizes = format!("({}{comma})", sizes.join(", "));
    let mut text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {sizes}, }}");
    let length = (10 + text.len() + 1).next_multiple_of(ALIGNMENT) - 10;
    text.extend(std::iter::repeat_n(' ', length - text.len() - 1));
    text.push('\n');
    let length = u16::try_from(length).map_err(|_| "too many dimensions for a .npy file")?;
    Ok([MAGIC, &[1, 0], &length.to_le_bytes(), text.as_bytes()].concat())
}

fn parsed(text: &str) -> Result<Header, String> {
    let mut rest = Text(text.trim_end());
    let (mut descr, mut fortran, mut shape) = (None, None, None);
    rest.take("{")?;
    while !rest.try_take("}") {
        let key = rest.quoted()?;
        rest.take(":")?;
        match key {
            "descr" if rest.at("'") || rest.at("\"") => descr = Some(rest.quoted()?),
            "descr" => return Err("the array has fields, which a tensor has not".into()),
            "fortran_order" => fortran = Some(rest.truth()?),
            "shape" => shape = Some(rest.sizes()?),
            other => return Err(format!("the header has an unknown entry, {other}")),
        }
        if !rest.try_take(",") && !rest.at("}") {
            return Err(rest.wrong("a comma"));
        }
    }
    if !rest.0.is_empty() {
        return Err(rest.wrong("the end"));
    }
    let missing = |name: &str| format!("the header has no {name}");
    let (dtype, big_endian) = dtype_of(descr.ok_or_else(|| missing("descr"))?)?;
    let shape = Shape::from(shape.ok_or_else(|| missing("shape"))?);
    let fortran = fortran.ok_or_else(|| missing("fortran_order"))?;
    // The product of the sizes other than 0: strides have to be numbers too.
    let mut sizes = shape.dims().iter().filter(|n| **n > 0);
    let wide = sizes.try_fold(dtype.size(), |all, n| all.checked_mul(*n));
    if wide.is_none_or(|n| isize::try_from(n).is_err()) {
        return Err("the shape is larger than any memory".into());
    }
    let bytes = (shape.numel() * dtype.size()) as u64;
    let strides = (fortran && shape.rank() > 1).then(|| by_columns(&shape));
    Ok(Header { dtype, shape, layout: Layout { big_endian, strides }, bytes })
}

/// The strides of elements that lie with the first dimension innermost.
fn by_columns(shape: &Shape) -> Strides {
    let turned: Vec<usize> = shape.dims().iter().rev().copied().collect();
    contiguous_strides(&turned).iter().rev().copied().collect()
}

/// An element type, and whether its bytes come with the highest first.
fn dtype_of(descr: &str) -> Result<(DType, bool), String> {
    let (order, name) = match descr.split_at_checked(1) {
        Some((order @ ("<" | ">" | "|" | "="), name)) => (order, name),
        _ => ("|", descr),
    };
    let dtype = match name {
        "f4" => DType::F32,
        "f8" => DType::F64,
        "f2" => DType::F16,
        "i4" => DType::I32,
        "i8" => DType::I64,
        "u1" => DType::U8,
        "b1" | "?" => DType::Bool,
        "i1" => DType::I8,
        "i2" => DType::I16,
        "u2" => DType::U16,
        "u4" => DType::U32,
        "u8" => DType::U64,
        "O" => return Err("the array has Python objects, which are not read".into()),
        _ => return Err(format!("elements of type {descr}, which futensor does not have")),
    };
    Ok((dtype, order == ">" && dtype.size() > 1))
}

/// The rest of a header.
struct Text<'a>(&'a str);

impl<'a> Text<'a> {
    fn wrong(&self, wanted: &str) -> String {
        let found: String = self.0.chars().take(20).collect();
        format!("the header has {found:?} where {wanted} belongs")
    }

    fn at(&mut self, wanted: &str) -> bool {
        self.0 = self.0.trim_start();
        self.0.starts_with(wanted)
    }

    fn try_take(&mut self, wanted: &str) -> bool {
        let found = self.at(wanted);
        if found {
            self.0 = &self.0[wanted.len()..];
        }
        found
    }

    fn take(&mut self, wanted: &str) -> Result<(), String> {
        if self.try_take(wanted) { Ok(()) } else { Err(self.wrong(wanted)) }
    }

    fn quoted(&mut self) -> Result<&'a str, String> {
        let mark = if self.at("\"") { '"' } else { '\'' };
        let inner = if self.at("'") || self.at("\"") { &self.0[1..] } else { "" };
        let Some((text, rest)) = inner.split_once(mark) else {
            return Err(self.wrong("a text in quotes"));
        };
        self.0 = rest;
        Ok(text)
    }

    fn truth(&mut self) -> Result<bool, String> {
        if self.try_take("True") {
            return Ok(true);
        }
        self.take("False").map(|()| false)
    }

    fn sizes(&mut self) -> Result<Vec<usize>, String> {
        let mut sizes = Vec::new();
        self.take("(")?;
        while !self.try_take(")") {
            self.at("");
            let digits = self.0.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.0.len());
            let (number, rest) = self.0.split_at(digits);
            sizes.push(number.parse().map_err(|_| self.wrong("a size"))?);
            // Python 2 wrote long numbers with an L.
            self.0 = rest.strip_prefix('L').unwrap_or(rest);
            if !self.try_take(",") && !self.at(")") {
                return Err(self.wrong("a comma"));
            }
        }
        Ok(sizes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for (dtype, shape) in [
            (DType::F32, Shape::from(())),
            (DType::F64, Shape::from([3])),
            (DType::Bool, Shape::from([2, 0, 7])),
            (DType::I64, Shape::from([1; 12])),
        ] {
            let bytes = write(dtype, &shape).unwrap();
            assert_eq!(bytes.len() % 64, 0);
            let (header, length) = read(&mut &bytes[..]).unwrap();
            assert_eq!((header.dtype, &header.shape), (dtype, &shape));
            assert!(!header.layout.big_endian && header.layout.strides.is_none());
            assert_eq!(length, bytes.len() as u64);
        }
    }

    #[test]
    fn a_header_that_is_no_dictionary_of_an_array_is_refused_in_words() {
        let of = |text: &str| parsed(text).map(|_| ()).unwrap_err();
        let full = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
        assert!(parsed(full).is_ok());
        for (from, to, words) in [
            ("'<f4'", "'|O'", "Python objects"),
            ("'<f4'", "'<c8'", "type <c8"),
            ("'<f4'", "[('a', '<f4')]", "fields"),
            ("(2, 3)", "(2, -3)", "a size"),
            ("(2, 3)", "(2 3)", "a comma"),
            ("(2, 3)", "(9999999999, 9999999999, 99)", "larger than any memory"),
            ("(2, 3)", "(0, 9999999999, 9999999999)", "larger than any memory"),
            ("'shape'", "'sharp'", "unknown entry, sharp"),
            ("False", "Maybe", "False"),
            (", }", "", "a comma"),
            ("'shape': (2, 3), ", "", "no shape"),
        ] {
            let text = of(&full.replace(from, to));
            assert!(text.contains(words), "{to}: {text}");
        }
        assert!(of(&format!("{full} x")).contains("the end"));
    }
}
