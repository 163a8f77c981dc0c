//! One case as a call of the public API. Called by the harness; what is not here, futensor does not
//! have, and the harness says so.

use super::calls;
use super::case::{Case, Gradient, Host, Operand, Step, dtype_named, ints};
use futensor::float8::{Float8E4M3, Float8E5M2};
use futensor::read::NonZero;
use futensor::rows::{self, OperandRef};
use futensor::{DType, Device, Element, GradOptions, Index, Scalar, Tensor, TensorFuture};
use half::{bf16, f16};
use serde_json::Value;
use std::pin::Pin;

/// Runs an expression with a type alias bound to the Rust type of a [`DType`].
macro_rules! typed {
    ($dtype:expr, $T:ident => $body:expr) => {
        typed!(
            @ $dtype, $T => $body;
            F32 f32, F64 f64, F16 f16, BF16 bf16, I32 i32, I64 i64, U8 u8, Bool bool,
            I8 i8, I16 i16, U16 u16, U32 u32, U64 u64, F8E4M3 Float8E4M3, F8E5M2 Float8E5M2
        )
    };
    (@ $dtype:expr, $T:ident => $body:expr; $($D:ident $t:ty),*) => {
        match $dtype {
            $(DType::$D => {
                type $T = $t;
                $body
            })*
        }
    };
}

/// An element as bytes, whatever its type.
pub trait Bytes: Element {
    /// From little-endian bytes.
    fn get(bytes: &[u8]) -> Self;
    /// To little-endian bytes.
    fn put(self, bytes: &mut Vec<u8>);
}

macro_rules! bytes {
    ($($t:ty),*) => {$(
        impl Bytes for $t {
            fn get(bytes: &[u8]) -> Self {
                <$t>::from_le_bytes(bytes.try_into().expect("one element"))
            }
            fn put(self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}
bytes!(f32, f64, f16, bf16, i32, i64, u8, i8, i16, u16, u32, u64);
macro_rules! bytes_of_one {
    ($($t:ident)*) => {$(
        impl Bytes for $t {
            fn get(bytes: &[u8]) -> Self {
                $t::from_bits(bytes[0])
            }
            fn put(self, bytes: &mut Vec<u8>) {
                bytes.push(self.to_bits());
            }
        }
    )*};
}
bytes_of_one!(Float8E4M3 Float8E5M2);
impl Bytes for bool {
    fn get(bytes: &[u8]) -> Self {
        bytes[0] != 0
    }
    fn put(self, bytes: &mut Vec<u8>) {
        bytes.push(self as u8);
    }
}

/// Host data on a device.
pub fn upload(device: &Device, host: &Host) -> TensorFuture {
    typed!(host.dtype, T => {
        let data: Vec<T> = host.bytes.chunks_exact(size_of::<T>()).map(T::get).collect();
        device.from_vec(data, &host.shape[..])
    })
}

/// Device data on the host.
pub async fn download(x: &TensorFuture) -> futensor::Result<Host> {
    let mut bytes = Vec::new();
    typed!(x.dtype(), T => x.to_vec::<T>().await?.into_iter().for_each(|e| e.put(&mut bytes)));
    Ok(Host { dtype: x.dtype(), shape: x.dims().to_vec(), bytes })
}

/// What a call gave.
pub enum Made {
    Futures(Vec<TensorFuture>),
    NonZero(NonZero),
    /// Whose shapes depend on data.
    Later(Pin<Box<dyn Future<Output = futensor::Result<Vec<TensorFuture>>>>>),
    /// Such a call that failed.
    Failed(futensor::Error),
    /// Of the operands that have one, in order.
    Gradients(Vec<TensorFuture>),
    /// The API has no such op, or not with these operands.
    Missing,
}

impl Made {
    /// With the shapes that depend on data.
    pub async fn shaped(self) -> Made {
        let Made::Later(later) = self else { return self };
        match later.await {
            Ok(all) => Made::Futures(all),
            Err(error) => Made::Failed(error),
        }
    }
}

/// An operand on the device.
pub enum Arg {
    Tensor(TensorFuture),
    Scalar(Scalar),
    Absent,
}

fn view(x: TensorFuture, step: &Step) -> TensorFuture {
    match step {
        Step::Transpose(a, b) => x.transpose(*a, *b),
        Step::Permute(order) => x.permute(&order[..]),
        Step::Expand(shape) => x.expand(&shape[..]),
        Step::Narrow(dim, start, length) => x.narrow(*dim, *start, *length),
        Step::Squeeze(dim) => x.squeeze(*dim),
    }
}

/// The operands of a case, and the stored tensors that they are views of.
pub fn operands(device: &Device, case: &Case) -> (Vec<Arg>, Vec<Option<TensorFuture>>) {
    let of = |operand: &Operand| match operand {
        Operand::Absent => (Arg::Absent, None),
        Operand::Scalar(s) => (Arg::Scalar(*s), None),
        Operand::Tensor(host, steps) => {
            let mut base = upload(device, host);
            if case.gradient.is_some() {
                base = base.requires_grad();
            }
            (Arg::Tensor(steps.iter().fold(base.clone(), view)), Some(base))
        }
    };
    case.ins.iter().map(of).unzip()
}

/// What flows back through a call to the stored tensors that have a gradient.
pub fn gradients(
    device: &Device,
    gradient: &Gradient,
    result: &TensorFuture,
    bases: &[Option<TensorFuture>],
) -> Vec<TensorFuture> {
    let upstream = upload(device, &gradient.upstream);
    let wrt: Vec<&TensorFuture> = bases
        .iter()
        .zip(&gradient.wanted)
        .filter(|(_, wanted)| wanted.is_some())
        .filter_map(|(b, _)| b.as_ref())
        .collect();
    futensor::grad_with(result, &wrt, GradOptions::default().upstream(&upstream))
}

/// Calls a case's op.
pub fn call(device: &Device, case: &Case, args: &[Arg]) -> Made {
    let attrs = &case.attrs;
    if let Some(made) = calls::call(&case.op, args, attrs) {
        return made;
    }
    match args {
        [Arg::Tensor(x)] => one(&case.op, x, attrs),
        [] | [Arg::Scalar(_)] => create(device, &case.op, args, attrs),
        [Arg::Scalar(_), Arg::Scalar(_), ..] => create(device, &case.op, args, attrs),
        _ => several(&case.op, args, attrs),
    }
    .unwrap_or(Made::Missing)
}

/// The one result of a call.
pub fn futures(x: TensorFuture) -> Option<Made> {
    Some(Made::Futures(vec![x]))
}

/// Calls with one tensor.
fn one(op: &str, x: &TensorFuture, attrs: &Value) -> Option<Made> {
    let row = rows::find(op);
    if let Some(value) = row.and_then(|row| row.call(&[OperandRef::Tensor(x)])) {
        return futures(value);
    }
    let given = |name: &str| attrs.get(name).filter(|v| !v.is_null());
    let list = |name: &str| given(name).map(ints);
    let int = |name: &str| given(name).and_then(Value::as_i64).map(|i| i as isize);
    let keepdim = attrs["keepdim"] == true;
    let dims = list("dims").or_else(|| int("dim").map(|dim| vec![dim]));
    if let Some(value) = row.and_then(|row| row.reduce(x, dims.as_deref(), keepdim)) {
        return futures(value);
    }
    match (op, int("dim")) {
        ("cast", _) => futures(x.to_dtype(dtype_named(attrs["dtype"].as_str()?))),
        ("reshape", _) => futures(x.reshape(list("shape")?)),
        ("transpose", _) => futures(x.transpose(int("dim0")?, int("dim1")?)),
        ("permute", _) => futures(x.permute(list("dims")?)),
        ("unsqueeze", Some(d)) => futures(x.unsqueeze(d)),
        ("squeeze", Some(d)) => futures(x.squeeze(d)),
        ("squeeze", None) => futures(x.squeeze_all()),
        ("expand", _) => futures(x.expand(list("shape")?)),
        // A start from the end is an index; a length below zero cannot be said.
        ("narrow", Some(0)) if int("start")? < 0 => {
            let (start, length) = (int("start")?, int("length")?);
            let end = Some(start + length).filter(|&end| end != 0);
            futures(x.i(Index::Span { start: Some(start), end, step: 1 }))
        }
        ("narrow", Some(d)) => {
            futures(x.narrow(d, int("start")?.try_into().ok()?, int("length")?.try_into().ok()?))
        }
        ("nonzero", _) => Some(Made::NonZero(x.nonzero())),
        ("cat", Some(d)) => futures(futensor::cat(&[x], d)),
        ("stack", Some(d)) => futures(futensor::stack(&[x], d)),
        _ => None,
    }
}

/// Calls without a tensor.
fn create(device: &Device, op: &str, args: &[Arg], attrs: &Value) -> Option<Made> {
    let scalar = |i: usize| match args.get(i) {
        Some(Arg::Scalar(s)) => Some(*s),
        _ => None,
    };
    let size = |name: &str| attrs[name].as_u64().map(|n| n as usize);
    match op {
        "arange" => futures(device.arange(scalar(0)?, scalar(1)?, scalar(2)?)),
        "arange_dtype" => {
            let dtype = dtype_named(attrs["dtype"].as_str()?);
            futures(device.arange_dtype(scalar(0)?, scalar(1)?, scalar(2)?, dtype))
        }
        "linspace_dtype" => {
            let (a, b) = (scalar(0)?.as_f64(), scalar(1)?.as_f64());
            let dtype = dtype_named(attrs["dtype"].as_str()?);
            futures(device.linspace_dtype(a, b, size("steps")?, dtype))
        }
        "linspace" => {
            futures(device.linspace(scalar(0)?.as_f64(), scalar(1)?.as_f64(), size("steps")?))
        }
        "eye_dtype" => {
            let shape = [size("n")?, size("m")?];
            futures(device.eye_dtype(shape, dtype_named(attrs["dtype"].as_str()?)))
        }
        "eye_diagonal" => {
            let (shape, dtype) = ([size("n")?, size("m")?], dtype_named(attrs["dtype"].as_str()?));
            futures(device.eye_diagonal(shape, attrs["diagonal"].as_i64()?, dtype))
        }
        "eye" if attrs["n"] == attrs["m"] => futures(device.eye(size("n")?)),
        "eye" => futures(device.eye([size("n")?, size("m")?])),
        "full" => {
            let shape: Vec<usize> = ints(&attrs["shape"]).into_iter().map(|n| n as usize).collect();
            futures(device.full(shape, scalar(0)?))
        }
        _ => None,
    }
}

/// Calls with several operands.
fn several(op: &str, args: &[Arg], attrs: &Value) -> Option<Made> {
    if let [Arg::Tensor(x), Arg::Tensor(y)] = args {
        match op {
            "matmul" => return futures(x.matmul(y)),
            "add_0d" => return futures(x.add(y)),
            "slice_assign" => return slice_assign(x, y, attrs),
            _ => {}
        }
    }
    match (op, args) {
        ("where", [Arg::Tensor(c), Arg::Tensor(a), Arg::Tensor(b)]) => {
            return futures(c.where_cond(a, b));
        }
        ("where", [Arg::Tensor(c), Arg::Tensor(a), Arg::Scalar(b)]) => {
            return futures(c.where_cond(a, *b));
        }
        ("where", [Arg::Tensor(c), Arg::Scalar(a), Arg::Tensor(b)]) => {
            return futures(c.where_cond(*a, b));
        }
        ("cat" | "stack", _) => {
            let all: Option<Vec<&TensorFuture>> =
                args.iter().map(|a| if let Arg::Tensor(x) = a { Some(x) } else { None }).collect();
            let dim = attrs["dim"].as_i64()? as isize;
            return futures(if op == "cat" {
                futensor::cat(&all?, dim)
            } else {
                futensor::stack(&all?, dim)
            });
        }
        _ => {}
    }
    match args {
        [Arg::Tensor(a), Arg::Tensor(b)] => {
            futures(rows::find(op)?.call(&[OperandRef::Tensor(a), OperandRef::Tensor(b)])?)
        }
        [Arg::Tensor(a), Arg::Scalar(b)] => {
            futures(rows::find(op)?.call(&[OperandRef::Tensor(a), OperandRef::Scalar(*b)])?)
        }
        [Arg::Scalar(a), Arg::Tensor(b)] => number_first(op, *a, b),
        _ => None,
    }
}

/// A number on the left: an operator, a method of the number, or the mirrored method.
fn number_first(op: &str, a: Scalar, b: &TensorFuture) -> Option<Made> {
    macro_rules! operator {
        ($sign:tt) => {
            match a {
                Scalar::Float(a) => futures(a $sign b),
                Scalar::Int(a) => futures(a $sign b),
                Scalar::Bool(_) => futures(a $sign b),
            }
        };
    }
    match op {
        "add" => operator!(+),
        "sub" => operator!(-),
        "mul" => operator!(*),
        "div" => operator!(/),
        "remainder" => operator!(%),
        "pow" => futures(a.pow(b)),
        "fmod" => futures(a.fmod(b)),
        "atan2" => futures(a.atan2(b)),
        "xlogy" => futures(a.xlogy(b)),
        "eq" => futures(b.eq(a)),
        "ne" => futures(b.ne(a)),
        "lt" => futures(b.gt(a)),
        "le" => futures(b.ge(a)),
        "gt" => futures(b.lt(a)),
        "ge" => futures(b.le(a)),
        "floor_divide" => futures(a.floor_divide(b)),
        "trunc_divide" => futures(a.trunc_divide(b)),
        // The others are the same either way round.
        _ => futures(rows::find(op)?.call(&[OperandRef::Tensor(b), OperandRef::Scalar(a)])?),
    }
}

fn slice_assign(x: &TensorFuture, source: &TensorFuture, attrs: &Value) -> Option<Made> {
    let ranges: Vec<Vec<isize>> = attrs["ranges"].as_array()?.iter().map(ints).collect();
    let span = |r: &Vec<isize>| Index::Span { start: Some(r[0]), end: Some(r[1]), step: 1 };
    match &ranges[..] {
        [a] => futures(x.clone().slice_assign(span(a), source)),
        [a, b] => futures(x.clone().slice_assign((span(a), span(b)), source)),
        _ => None,
    }
}

/// The tensors of a call, awaited and read.
pub async fn read(made: Made) -> futensor::Result<Vec<Host>> {
    let mut out = Vec::new();
    match made {
        Made::Missing => {}
        Made::Failed(error) => return Err(error),
        Made::Later(later) => {
            for x in &later.await? {
                out.push(download(x).await?);
            }
        }
        Made::Futures(all) | Made::Gradients(all) => {
            for x in &all {
                out.push(download(x).await?);
            }
        }
        Made::NonZero(indices) => {
            let indices: Tensor = indices.await?;
            out.push(download(&indices).await?);
        }
    }
    Ok(out)
}
