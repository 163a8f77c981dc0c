//! Every kernel there is: each op with each element type that its class takes, each walk, each family.

use crate::dtype::{DType, Scalar};
use crate::graph::program::{Arg, Code, Program};
use crate::kernels::cuda::elementwise::{self, Key, Walk};
use crate::kernels::cuda::generate::Form;
use crate::kernels::cuda::{Kernel, Operand};
use crate::op::{BinaryOp, Class, UnaryOp};

use DType::*;

/// The types in which ops of a class are computed.
pub fn types(class: Class) -> &'static [DType] {
    match class {
        Class::float => &[F32, F64, F16, BF16],
        Class::number | Class::real => &[F32, F64, F16, BF16, I32, I64, U8],
        Class::bits => &[I32, I64, U8, Bool],
        _ => &DType::ALL,
    }
}

fn result(class: Class, on: DType) -> DType {
    if matches!(class, Class::test | Class::compare | Class::logic) { Bool } else { on }
}

/// A program of one op over inputs alone.
pub fn unary(op: UnaryOp, on: DType) -> Program {
    let mut p = Program::default();
    let x = p.push(Code::Input(0), on, on);
    let y = p.push(Code::Unary(op, Arg::Reg(x)), on, result(op.class(), on));
    p.outputs.push(y);
    p
}

/// A program of one op over inputs alone.
pub fn binary(op: BinaryOp, on: DType) -> Program {
    let mut p = Program::default();
    let a = p.push(Code::Input(0), on, on);
    let b = p.push(Code::Input(1), on, on);
    let y = p.push(Code::Binary(op, Arg::Reg(a), Arg::Reg(b)), on, result(op.class(), on));
    p.outputs.push(y);
    p
}

/// One input converted.
pub fn cast(from: DType, to: DType) -> Program {
    let mut p = Program::default();
    let x = p.push(Code::Input(0), from, from);
    let y = p.push(Code::Cast(Arg::Reg(x)), from, to);
    p.outputs.push(y);
    p
}

/// A program without inputs.
pub fn source(code: Code, dtype: DType) -> Program {
    let mut p = Program::default();
    let y = p.push(code, dtype, dtype);
    p.outputs.push(y);
    p
}

/// Three types, a condition, immediates, two outputs: what a fused step may hold.
pub fn mixed() -> Program {
    let mut p = Program::default();
    let x = p.push(Code::Input(0), F16, F16);
    let y = p.push(Code::Input(1), F32, F32);
    let c = p.push(Code::Input(2), Bool, Bool);
    let wide = p.push(Code::Cast(Arg::Reg(x)), F16, F32);
    let sum = p.push(Code::Binary(BinaryOp::Add, Arg::Reg(wide), Arg::Reg(y)), F32, F32);
    let scaled = p.push(Code::Binary(BinaryOp::Mul, Arg::Reg(sum), Arg::Scalar(Scalar::Float(0.1))), F32, F32);
    let picked = p.push(Code::Where(Arg::Reg(c), Arg::Reg(scaled), Arg::Scalar(Scalar::Int(7))), F32, F32);
    let doubled = p.push(Code::Binary(BinaryOp::Add, Arg::Reg(x), Arg::Reg(x)), F16, F16);
    p.outputs.extend([picked, doubled]);
    p
}

/// Key of a program's flat kernel.
pub fn flat(program: &Program) -> Kernel {
    let strides = [1isize];
    let operands = [Operand { strides: &strides, align: 16 }; 16];
    elementwise::plan(program, &[1 << 20], &operands, 16).launches[0].kernel.clone()
}

fn elementwise_programs() -> Vec<(&'static str, Vec<Program>)> {
    let unaries = UnaryOp::ALL.iter().flat_map(|&op| types(op.class()).iter().map(move |&t| unary(op, t)));
    let binaries = BinaryOp::ALL.iter().flat_map(|&op| types(op.class()).iter().map(move |&t| binary(op, t)));
    let casts = DType::ALL.iter().flat_map(|&a| DType::ALL.iter().map(move |&b| cast(a, b)));
    let none = Scalar::Int(0);
    let fills = DType::ALL
        .iter()
        .flat_map(|&t| [source(Code::Fill(none), t), source(Code::Arange { start: none, step: none }, t)]);
    vec![
        ("unary_kernels", unaries.collect()),
        ("binary_kernels", binaries.collect()),
        ("casts", casts.collect()),
        ("fills", fills.collect()),
    ]
}

/// Every family with its kernels.
pub fn all() -> Vec<(&'static str, Vec<Kernel>)> {
    let mut out: Vec<(&'static str, Vec<Kernel>)> =
        elementwise_programs().into_iter().map(|(name, p)| (name, p.iter().map(flat).collect())).collect();
    let mut walks = Vec::new();
    let add = binary(BinaryOp::Add, F32);
    let arange = source(Code::Arange { start: Scalar::Int(0), step: Scalar::Int(1) }, F16);
    for (program, most) in [(mixed(), 4), (add, 4), (cast(U8, F64), 2), (cast(U8, Bool), 8), (arange, 8)] {
        for walk in [Walk::Flat, Walk::Strided] {
            for lanes in [1, most] {
                for wide in [false, true] {
                    let form = Form::of(&program);
                    if form.inputs().is_empty() && walk == Walk::Strided {
                        continue;
                    }
                    walks.push(Kernel::Elementwise(Key { form, walk, lanes, wide }));
                }
            }
        }
    }
    out.push(("walks", walks));
    out
}
