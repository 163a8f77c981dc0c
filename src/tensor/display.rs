//! Formats a tensor as PyTorch does, from a shape, a type and the shown elements.
//!
//! Called by `display()` once it has read those elements. Pure text: this file knows no tensors and
//! reads no device. A tensor of more than 1000 elements shows three at either end of each
//! dimension: [`window`] selects them, so that only these are copied from the device. The rules are
//! those of PyTorch's `_tensor_str.py`; PyTorch produced the expected texts under
//! `tests/reference/`.

use crate::dtype::DType;
use smallvec::{SmallVec, smallvec};
use std::{borrow::Cow, fmt::Write, ops::Range};

/// Above this many elements, only the edges are shown.
const ELEMENTS_MAX: usize = 1000;
/// The number of elements that are shown at either end of a dimension.
const EDGE: usize = 3;
/// The most elements that are ever shown: the edges of six dimensions.
const SHOWN_MAX: usize = (2 * EDGE).pow(6);
/// Digits after the decimal point.
const PRECISION: usize = 4;
/// Columns of a line.
const LINE_WIDTH: usize = 80;
const PREFIX: &str = "tensor(";

/// The shown indices of one dimension: one range, or two if the middle is left out.
pub(crate) type Shown = SmallVec<[Range<usize>; 2]>;

/// The shown elements in row-major order: those with every index in [`window`].
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Values {
    /// Of any floating point type; each is exact as a double.
    Float(Vec<f64>),
    /// Of any integer type.
    Int(Vec<i128>),
    /// Of type bool.
    Bool(Vec<bool>),
}

/// The shown indices of each dimension. If there are too many dimensions, outer ones show only
/// their first index.
pub(crate) fn window(shape: &[usize]) -> SmallVec<[Shown; 4]> {
    let numel = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).unwrap_or(usize::MAX);
    // An empty dimension beside one that overflows: there is nothing to leave out.
    let summarised = numel > ELEMENTS_MAX && !shape.contains(&0);
    let edges = |&n| {
        if summarised && n > 2 * EDGE { smallvec![0..EDGE, n - EDGE..n] } else { smallvec![0..n] }
    };
    let mut window: SmallVec<[Shown; 4]> = shape.iter().map(edges).collect();
    let mut all = 1;
    for (shown, &n) in window.iter_mut().zip(shape).rev().filter(|_| summarised) {
        let more = all * shown.iter().map(|r| r.len()).sum::<usize>();
        if more <= SHOWN_MAX {
            all = more;
        } else {
            // The second part is empty: dots, and nothing after them.
            *shown = smallvec![0..1, n..n];
        }
    }
    window
}

/// The text of a tensor. `values` are the elements of [`window`]; `device` is given if it should be
/// shown, that is, if it is not the CPU.
pub(crate) fn format(
    shape: &[usize],
    dtype: DType,
    device: Option<&str>,
    values: &Values,
) -> String {
    let mut text = String::from(PREFIX);
    let mut suffixes: SmallVec<[Cow<'_, str>; 3]> = SmallVec::new();
    suffixes.extend(device.map(|name| Cow::Owned(format!("device='{name}'"))));
    if shape.contains(&0) {
        text.push_str("[]");
        if shape.len() != 1 {
            let sizes: Vec<String> = shape.iter().map(usize::to_string).collect();
            suffixes.push(format!("size=({})", sizes.join(", ")).into());
        }
        // Without elements the text does not show the type by itself.
        if dtype != DType::F32 {
            suffixes.push(format!("dtype={dtype}").into());
        }
    } else {
        let cells = Cells::new(values);
        let mut writer = Writer { shape, window: window(shape), cells, next: 0, text };
        writer.dimension(0, PREFIX.len());
        text = writer.text;
        if !matches!(dtype, DType::F32 | DType::I64 | DType::Bool) {
            suffixes.push(format!("dtype={dtype}").into());
        }
    }
    add_suffixes(&mut text, &suffixes);
    text
}

/// Appends suffixes such as `, device=...`, each on a new line if it would exceed the line.
fn add_suffixes(text: &mut String, suffixes: &[Cow<'_, str>]) {
    // PyTorch counts a line's length from one before its first character (two, on the first line).
    let mut column = match text.rfind('\n') {
        Some(at) => text.len() - at + 1,
        None => text.len() + 2,
    };
    for suffix in suffixes {
        if column + suffix.len() + 2 > LINE_WIDTH {
            let _ = write!(text, ",\n{:indent$}{suffix}", "", indent = PREFIX.len());
            column = PREFIX.len() + suffix.len();
        } else {
            let _ = write!(text, ", {suffix}");
            column += suffix.len() + 2;
        }
    }
    text.push(')');
}

/// The format of all floats of one tensor.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Style {
    /// All floats are integers: `3.`
    Whole,
    /// `3.1416`
    Fixed,
    /// `3.1416e+00`
    Scientific,
}

impl Style {
    /// The choice depends on the finite nonzero elements.
    fn of(values: &[f64]) -> Style {
        let mut whole = true;
        let (mut least, mut most) = (f64::INFINITY, 0.0f64);
        for x in values.iter().filter(|x| telling(x)) {
            whole &= *x == x.ceil();
            least = least.min(x.abs());
            most = most.max(x.abs());
        }
        if most == 0.0 {
            Style::Whole
        } else if most / least > 1000.0 || most > 1.0e8 || least < 1.0e-4 {
            Style::Scientific
        } else if whole {
            Style::Whole
        } else {
            Style::Fixed
        }
    }

    fn write(self, x: f64) -> String {
        if !x.is_finite() {
            return if x.is_nan() { "nan".into() } else { format!("{x}") };
        }
        match self {
            Style::Whole => format!("{x:.0}."),
            Style::Fixed => format!("{x:.PRECISION$}"),
            Style::Scientific => {
                let text = format!("{x:.PRECISION$e}");
                let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
                let (sign, digits) =
                    exponent.strip_prefix('-').map_or(('+', exponent), |digits| ('-', digits));
                format!("{mantissa}e{sign}{digits:0>2}")
            }
        }
    }
}

/// True for an element that affects the choice.
fn telling(x: &f64) -> bool {
    x.is_finite() && *x != 0.0
}

/// The texts of all elements, and the width to which they are padded on the left.
struct Cells {
    texts: Vec<String>,
    width: usize,
}

impl Cells {
    fn new(values: &Values) -> Cells {
        match values {
            Values::Int(v) => Cells::filled(v.iter().map(i128::to_string).collect()),
            // Python's words.
            Values::Bool(v) => Cells::filled(
                v.iter().map(|&x| if x { "True" } else { "False" }.to_string()).collect(),
            ),
            Values::Float(v) => {
                let style = Style::of(v);
                let texts: Vec<String> = v.iter().map(|&x| style.write(x)).collect();
                // Zeros and non-finite elements do not widen the column (`nan` may exceed it).
                let width =
                    texts.iter().zip(v).filter(|(_, x)| telling(x)).map(|(t, _)| t.len()).max();
                Cells { texts, width: width.unwrap_or(1) }
            }
        }
    }

    fn filled(texts: Vec<String>) -> Cells {
        let width = texts.iter().map(String::len).max().unwrap_or(1);
        Cells { texts, width }
    }
}

/// Writes nested brackets; `next` is the next element.
struct Writer<'a> {
    shape: &'a [usize],
    window: SmallVec<[Shown; 4]>,
    cells: Cells,
    next: usize,
    text: String,
}

impl Writer<'_> {
    /// Writes dimension `d` of the tensor at the current position, `indent` columns from the left.
    fn dimension(&mut self, d: usize, indent: usize) {
        let inner = self.shape.len() - d;
        if inner == 0 {
            return self.cell();
        }
        if inner == 1 {
            return self.row(d, indent);
        }
        self.text.push('[');
        for (part, shown) in self.window[d].clone().into_iter().enumerate() {
            if part > 0 {
                self.separate(inner - 1, indent);
                self.text.push_str("...");
            }
            for i in shown {
                if i > 0 {
                    self.separate(inner - 1, indent);
                }
                self.dimension(d + 1, indent + 1);
            }
        }
        self.text.push(']');
    }

    /// Writes a comma, then as many newlines as there are inner dimensions.
    fn separate(&mut self, lines: usize, indent: usize) {
        self.text.push(',');
        self.text.extend(std::iter::repeat_n('\n', lines));
        self.text.extend(std::iter::repeat_n(' ', indent + 1));
    }

    fn row(&mut self, d: usize, indent: usize) {
        let per_line = (LINE_WIDTH.saturating_sub(indent) / (self.cells.width + 2)).max(1);
        self.text.push('[');
        let mut column = 0;
        for (part, shown) in self.window[d].clone().into_iter().enumerate() {
            // The dots between two parts count as an element.
            for k in 0..shown.len() + part {
                if column > 0 && column % per_line == 0 {
                    self.separate(1, indent);
                } else if column > 0 {
                    self.text.push_str(", ");
                }
                column += 1;
                if k < part {
                    self.text.push_str(" ...");
                } else {
                    self.cell();
                }
            }
        }
        self.text.push(']');
    }

    fn cell(&mut self) {
        let _ =
            write!(self.text, "{:>width$}", self.cells.texts[self.next], width = self.cells.width);
        self.next += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::{Dtype, SafeTensors};

    /// The elements of a window out of all.
    fn pick<T: Copy>(shape: &[usize], all: &[T]) -> Vec<T> {
        let window = window(shape);
        (0..all.len())
            .filter(|&linear| {
                let mut rest = linear;
                (0..shape.len()).rev().all(|d| {
                    let i = rest % shape[d];
                    rest /= shape[d];
                    window[d].iter().any(|r| r.contains(&i))
                })
            })
            .map(|i| all[i])
            .collect()
    }

    fn elements<const N: usize, T>(bytes: &[u8], read: impl Fn([u8; N]) -> T) -> Vec<T> {
        bytes.chunks_exact(N).map(|c| read(c.try_into().unwrap())).collect()
    }

    fn values(dtype: Dtype, shape: &[usize], bytes: &[u8]) -> (DType, Values) {
        let floats = |v: Vec<f64>| Values::Float(pick(shape, &v));
        let ints = |v: Vec<i128>| Values::Int(pick(shape, &v));
        match dtype {
            Dtype::F32 => (DType::F32, floats(elements(bytes, |b| f32::from_le_bytes(b) as f64))),
            Dtype::F64 => (DType::F64, floats(elements(bytes, f64::from_le_bytes))),
            Dtype::F16 => {
                (DType::F16, floats(elements(bytes, |b| half::f16::from_le_bytes(b).to_f64())))
            }
            Dtype::BF16 => {
                (DType::BF16, floats(elements(bytes, |b| half::bf16::from_le_bytes(b).to_f64())))
            }
            Dtype::I32 => (DType::I32, ints(elements(bytes, |b| i32::from_le_bytes(b).into()))),
            Dtype::I64 => (DType::I64, ints(elements(bytes, |b| i64::from_le_bytes(b).into()))),
            Dtype::U8 => (DType::U8, ints(elements(bytes, |b: [u8; 1]| b[0].into()))),
            Dtype::I8 => (DType::I8, ints(elements(bytes, |b| i8::from_le_bytes(b).into()))),
            Dtype::I16 => (DType::I16, ints(elements(bytes, |b| i16::from_le_bytes(b).into()))),
            Dtype::U16 => (DType::U16, ints(elements(bytes, |b| u16::from_le_bytes(b).into()))),
            Dtype::U32 => (DType::U32, ints(elements(bytes, |b| u32::from_le_bytes(b).into()))),
            Dtype::U64 => (DType::U64, ints(elements(bytes, |b| u64::from_le_bytes(b).into()))),
            Dtype::F8_E4M3 => {
                let value = |b: [u8; 1]| crate::float8::Float8E4M3::from_bits(b[0]).to_f32().into();
                (DType::F8E4M3, floats(elements(bytes, value)))
            }
            Dtype::F8_E5M2 => {
                let value = |b: [u8; 1]| crate::float8::Float8E5M2::from_bits(b[0]).to_f32().into();
                (DType::F8E5M2, floats(elements(bytes, value)))
            }
            Dtype::BOOL => {
                (DType::Bool, Values::Bool(pick(shape, &elements(bytes, |b: [u8; 1]| b[0] != 0))))
            }
            other => panic!("{other:?} is not in the reference"),
        }
    }

    #[test]
    fn every_reference_tensor_looks_as_pytorch_prints_it() {
        let data = include_bytes!("../../tests/reference/display.safetensors");
        let index = include_str!("../../tests/reference/display.jsonl");
        let tensors = SafeTensors::deserialize(data).unwrap();
        let mut cases = 0;
        for line in index.lines() {
            let case: serde_json::Value = serde_json::from_str(line).unwrap();
            let tensor = tensors.tensor(case["in"].as_str().unwrap()).unwrap();
            let (dtype, values) = values(tensor.dtype(), tensor.shape(), tensor.data());
            let got = format(tensor.shape(), dtype, case["device"].as_str(), &values);
            let want = case["want"].as_str().unwrap();
            assert_eq!(
                got,
                want,
                "\nshape {:?} {dtype}\n got:\n{got}\n want:\n{want}",
                tensor.shape()
            );
            cases += 1;
        }
        assert!(cases >= 300, "{cases} cases");
    }

    #[test]
    fn a_device_is_shown_as_in_the_readme() {
        let text = format(&[1, 2], DType::F32, Some("cuda:0"), &Values::Float(vec![3.0, 3.0]));
        assert_eq!(text, "tensor([[3., 3.]], device='cuda:0')");
    }

    #[test]
    fn a_window_names_few_elements_of_a_large_tensor_and_all_of_a_small_one() {
        let shown =
            |shape: &[usize]| window(shape).iter().flatten().map(|r| r.len()).collect::<Vec<_>>();
        assert_eq!(shown(&[10, 100]), [10, 100]);
        assert_eq!(shown(&[10, 101]), [3, 3, 3, 3]);
        assert_eq!(shown(&[6, 1000]), [6, 3, 3]);
        assert_eq!(shown(&[usize::MAX, 2, 3]), [3, 3, 2, 3]);
        assert_eq!(shown(&[0, usize::MAX, 9]), [0, usize::MAX, 9]);
        assert_eq!(shown(&[7; 7]), [1, 0, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3]);
        assert_eq!(shown(&[2; 64]).iter().filter(|&&n| n == 2).count(), 15);
        assert!(window(&[]).is_empty());
    }
}
