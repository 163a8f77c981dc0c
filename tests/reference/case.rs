//! Reads the reference files: a case a line, its tensors beside it. Called by the harnesses; knows
//! element types and JSON, no ops and no devices.

use futensor::float8::{Float8E4M3, Float8E5M2};
use futensor::{DType, Scalar};
use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use std::{fmt, path::PathBuf, sync::Arc};

/// A tensor in host memory: row by row, little-endian.
#[derive(Clone, PartialEq)]
pub struct Host {
    pub dtype: DType,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

/// A view that is taken of a stored tensor before the op sees it; arguments as PyTorch's method has
/// them.
#[derive(Clone, PartialEq, Debug)]
pub enum Step {
    Transpose(isize, isize),
    Permute(Vec<isize>),
    Expand(Vec<usize>),
    Narrow(isize, usize, usize),
    Squeeze(isize),
}

/// What an op is called with.
#[derive(Clone)]
pub enum Operand {
    Scalar(Scalar),
    Tensor(Arc<Host>, Vec<Step>),
    /// An optional tensor that is not given.
    Absent,
}

/// One call and what it must give.
pub struct Case {
    /// In the files of edges and dtypes: the row of the op table.
    pub row: String,
    pub op: String,
    pub attrs: Value,
    pub ins: Vec<Operand>,
    /// `None`: the call is an error.
    pub out: Option<Vec<Arc<Host>>>,
    pub tolerance: String,
    /// What PyTorch itself has in halves, for results or gradients that are `"own"` to it.
    pub own: Vec<Option<Arc<Host>>>,
    pub gradient: Option<Gradient>,
    /// File and line, to find it again.
    pub place: String,
}

/// What flows back through a call.
pub struct Gradient {
    /// Of the first result.
    pub upstream: Arc<Host>,
    /// Of each stored input, through its views; `None` where there is none.
    pub wanted: Vec<Option<Arc<Host>>>,
    pub tolerance: String,
    /// In the file of edges, which `tests/autograd` reads: the same in float64, rounded once.
    #[allow(dead_code)]
    pub wide: Vec<Option<Arc<Host>>>,
    /// Those of each of the gradients, likewise.
    #[allow(dead_code)]
    pub second: Vec<Vec<Option<Arc<Host>>>>,
    #[allow(dead_code)]
    pub wide_second: Vec<Vec<Option<Arc<Host>>>>,
}

fn dtype(of: Dtype) -> DType {
    match of {
        Dtype::F32 => DType::F32,
        Dtype::F64 => DType::F64,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        Dtype::I32 => DType::I32,
        Dtype::I64 => DType::I64,
        Dtype::U8 => DType::U8,
        Dtype::BOOL => DType::Bool,
        Dtype::I8 => DType::I8,
        Dtype::I16 => DType::I16,
        Dtype::U16 => DType::U16,
        Dtype::U32 => DType::U32,
        Dtype::U64 => DType::U64,
        Dtype::F8_E4M3 => DType::F8E4M3,
        Dtype::F8_E5M2 => DType::F8E5M2,
        other => panic!("{other:?} is not in the reference"),
    }
}

/// The element type of a PyTorch name.
pub fn dtype_named(name: &str) -> DType {
    DType::ALL
        .into_iter()
        .find(|d| d.name() == name)
        .unwrap_or_else(|| panic!("no type is called {name}"))
}

/// Integers of a JSON list.
pub fn ints(list: &Value) -> Vec<isize> {
    list.as_array()
        .expect("a list")
        .iter()
        .map(|x| x.as_i64().expect("an integer") as isize)
        .collect()
}

fn sizes(list: &Value) -> Vec<usize> {
    ints(list).into_iter().map(|x| usize::try_from(x).expect("a size")).collect()
}

fn step(list: &Value) -> Step {
    let int = |i: usize| list[i].as_i64().expect("an integer") as isize;
    match list[0].as_str().expect("a name") {
        "transpose" => Step::Transpose(int(1), int(2)),
        "permute" => Step::Permute(ints(&list[1])),
        "expand" => Step::Expand(sizes(&list[1])),
        "narrow" => Step::Narrow(int(1), int(2) as usize, int(3) as usize),
        "squeeze" => Step::Squeeze(int(1)),
        other => panic!("no view is called {other}"),
    }
}

fn scalar(object: &Value) -> Scalar {
    // Floats are texts: JSON has no NaN.
    match (object.get("f"), object.get("i"), object.get("b")) {
        (Some(f), _, _) => Scalar::Float(f.as_str().and_then(|s| s.parse().ok()).expect("a float")),
        (_, Some(i), _) => Scalar::Int(i.as_i64().expect("an integer")),
        (_, _, Some(b)) => Scalar::Bool(b.as_bool().expect("a truth value")),
        _ => panic!("{object} is no scalar"),
    }
}

/// Where the files are.
pub fn folder() -> PathBuf {
    // A prebuilt binary finds its cases where it is told to.
    let told = std::env::var_os("FUTENSOR_REFERENCE").map(PathBuf::from);
    told.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("reference"))
}

/// All cases of one file.
pub fn read(name: &str) -> Vec<Case> {
    let data = std::fs::read(folder().join(format!("{name}.safetensors"))).expect("the tensors");
    let tensors = SafeTensors::deserialize(&data).expect("a safetensors file");
    let tensor = |key: &Value| {
        let view = tensors.tensor(key.as_str().expect("a name")).expect("a tensor of that name");
        Arc::new(Host {
            dtype: dtype(view.dtype()),
            shape: view.shape().to_vec(),
            bytes: view.data().to_vec(),
        })
    };
    let operand = |x: &Value| match x {
        Value::Null => Operand::Absent,
        Value::Object(_) => Operand::Scalar(scalar(x)),
        Value::Array(list) => {
            Operand::Tensor(tensor(&list[0]), list[1..].iter().map(step).collect())
        }
        name => Operand::Tensor(tensor(name), Vec::new()),
    };
    let text = |x: &Value| x.as_str().unwrap_or("bits").to_string();
    let index = std::fs::read_to_string(folder().join(format!("{name}.jsonl"))).expect("the index");
    let list = |x: &Value| x.as_array().expect("a list").clone();
    let some = |x: &Value| -> Vec<Option<Arc<Host>>> {
        x.as_array().into_iter().flatten().map(|g| (!g.is_null()).then(|| tensor(g))).collect()
    };
    let lists = |x: &Value| x.as_array().into_iter().flatten().map(some).collect();
    index
        .lines()
        .enumerate()
        .map(|(number, line)| {
            let case: Value = serde_json::from_str(line).expect("a line of JSON");
            Case {
                row: case["row"].as_str().unwrap_or_default().into(),
                op: text(&case["op"]),
                attrs: case.get("attrs").cloned().unwrap_or_default(),
                ins: list(&case["in"]).iter().map(operand).collect(),
                out: (case["out"] != "error")
                    .then(|| list(&case["out"]).iter().map(tensor).collect()),
                tolerance: text(&case["tol"]),
                own: case.get("own").map_or(Vec::new(), |own| {
                    list(own).iter().map(|x| (!x.is_null()).then(|| tensor(x))).collect()
                }),
                gradient: case.get("up").map(|up| Gradient {
                    upstream: tensor(up),
                    wanted: some(&case["grad"]),
                    tolerance: text(&case["gtol"]),
                    wide: some(&case["wide"]),
                    second: lists(&case["second"]),
                    wide_second: lists(&case["wide_second"]),
                }),
                place: format!("tests/reference/{name}.jsonl:{}", number + 1),
            }
        })
        .collect()
}

/// One element, exactly.
#[derive(Clone, Copy, PartialEq)]
pub enum Item {
    Float(f64),
    Int(i64),
    Bool(bool),
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Item::Float(x) => write!(f, "{x:?}"),
            Item::Int(x) => write!(f, "{x}"),
            Item::Bool(x) => write!(f, "{x}"),
        }
    }
}

impl Host {
    pub fn numel(&self) -> usize {
        self.shape.iter().product()
    }

    /// The bits of element `i`, as an unsigned number.
    pub fn bits(&self, i: usize) -> u64 {
        let size = self.dtype.size();
        let mut wide = [0; 8];
        wide[..size].copy_from_slice(&self.bytes[i * size..][..size]);
        u64::from_le_bytes(wide)
    }

    pub fn item(&self, i: usize) -> Item {
        let bits = self.bits(i);
        match self.dtype {
            DType::F32 => Item::Float(f32::from_bits(bits as u32) as f64),
            DType::F64 => Item::Float(f64::from_bits(bits)),
            DType::F16 => Item::Float(f16::from_bits(bits as u16).to_f64()),
            DType::BF16 => Item::Float(bf16::from_bits(bits as u16).to_f64()),
            DType::I32 => Item::Int(bits as i32 as i64),
            DType::I64 => Item::Int(bits as i64),
            DType::U8 => Item::Int(bits as i64),
            DType::Bool => Item::Bool(bits != 0),
            DType::I8 => Item::Int(bits as i8 as i64),
            DType::I16 => Item::Int(bits as i16 as i64),
            DType::U16 | DType::U32 | DType::U64 => Item::Int(bits as i64),
            DType::F8E4M3 => Item::Float(Float8E4M3::from_bits(bits as u8).to_f32().into()),
            DType::F8E5M2 => Item::Float(Float8E5M2::from_bits(bits as u8).to_f32().into()),
        }
    }

    /// The elements as a view of them shows them, row by row.
    pub fn seen_through(&self, steps: &[Step]) -> Host {
        let mut shape: Vec<usize> = self.shape.clone();
        let mut strides: Vec<usize> =
            (0..shape.len()).map(|d| shape[d + 1..].iter().product()).collect();
        let mut offset = 0;
        let at = |d: isize, rank: usize| (if d < 0 { d + rank as isize } else { d }) as usize;
        for step in steps {
            let rank = shape.len();
            match step {
                Step::Transpose(a, b) => {
                    shape.swap(at(*a, rank), at(*b, rank));
                    strides.swap(at(*a, rank), at(*b, rank));
                }
                Step::Permute(order) => {
                    shape = order.iter().map(|&d| shape[at(d, rank)]).collect();
                    strides = order.iter().map(|&d| strides[at(d, rank)]).collect();
                }
                Step::Expand(to) => {
                    let lead = to.len() - rank;
                    strides = (0..to.len())
                        .map(|i| {
                            if i < lead || shape[i - lead] != to[i] { 0 } else { strides[i - lead] }
                        })
                        .collect();
                    shape = to.clone();
                }
                Step::Narrow(d, start, length) => {
                    offset += start * strides[at(*d, rank)];
                    shape[at(*d, rank)] = *length;
                }
                Step::Squeeze(d) => {
                    shape.remove(at(*d, rank));
                    strides.remove(at(*d, rank));
                }
            }
        }
        let size = self.dtype.size();
        let mut bytes = Vec::new();
        for linear in 0..shape.iter().product() {
            let (mut rest, mut from): (usize, usize) = (linear, offset);
            for d in (0..shape.len()).rev() {
                from += rest % shape[d] * strides[d];
                rest /= shape[d];
            }
            bytes.extend_from_slice(&self.bytes[from * size..][..size]);
        }
        Host { dtype: self.dtype, shape, bytes }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}(", self.dtype, self.shape)?;
        for i in 0..self.numel().min(12) {
            write!(f, "{}{}", if i > 0 { ", " } else { "" }, self.item(i))?;
        }
        f.write_str(if self.numel() > 12 { ", ...)" } else { ")" })
    }
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operand::Scalar(s) => write!(f, "{s}"),
            Operand::Absent => f.write_str("none"),
            Operand::Tensor(host, steps) if steps.is_empty() => write!(f, "{host}"),
            Operand::Tensor(host, steps) => write!(f, "{host} seen through {steps:?}"),
        }
    }
}
