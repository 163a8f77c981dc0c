//! Launches beside the CPU's kernels, on whatever driver the loader finds: the simulated one in CI,
//! a GPU's where there is one. Ignored by default, since a process without a driver has nothing to
//! say here:
//!
//!     cargo run -p futensor-simulated-driver --example under -- cargo test --lib cuda::device -- --ignored
//!
//! Values on both sides are the same bytes through the same layouts; results are compared bit by
//! bit where the arithmetic is exact.

#![allow(unsafe_code)]

use super::launch::group::End;
use super::launch::launcher::Launcher;
use super::modules::store::Fusion;
use super::testing::{Rig, Rng, Value, both, bytes_of, near, numbers, same};
use super::{DeviceView, DeviceViewMut, Trouble};
use crate::dtype::{DType, Scalar};
use crate::graph::device_run::{CudaArg, CudaGrid, CudaKernel, CudaRun};
use crate::graph::node::{Op, Reduction};
use crate::graph::operation::{CpuRun, Meta, Operation, Refusal};
use crate::graph::program::{Arg, Code, Program};
use crate::host::kernels::elementwise;
use crate::host::kernels::pool::Divisor;
use crate::host::kernels::reduce;
use crate::host::kernels::softmax::Form;
use crate::ops::cumsum::CumSum;
use crate::ops::embedding::Embedding;
use crate::ops::gather::Gather;
use crate::ops::index_select::IndexSelect;
use crate::ops::logsumexp::LogSumExp;
use crate::ops::norm::Norm;
use crate::ops::one_hot::OneHot;
use crate::ops::roll::Roll;
use crate::ops::scatter_add::ScatterAdd;
use crate::ops::softmax::Softmax;
use crate::ops::sort::Sort;
use crate::ops::topk::TopK;
use crate::ops::triangle::Triangle;
use crate::window::Window;

use crate::op::{BinaryOp, ReduceOp, ScatterMode, UnaryOp};
use crate::ops::cat::Cat;
use crate::ops::conv::{Conv, Role, Walk};
use crate::ops::cumprod::CumProd;
use crate::ops::matmul::MatMul;
use crate::ops::pool::{Pool, Pooled};
use crate::ops::scatter::Scatter;
use crate::ops::slice_assign::SliceAssign;
use crate::shape::Shape;
use crate::view::{Serial, View, ViewMut};
use std::marker::PhantomData;
use std::sync::Arc;

#[test]
#[ignore = "needs a driver in the loader's path, a GPU's or the simulated one"]
fn every_op_outside_the_table_is_what_it_is_on_the_cpu() {
    let rig = Rig::new();
    let launcher = &mut rig.launcher(Fusion::Background);
    let r = &mut Rng(7);
    use DType::*;
    for dtype in [F32, F16, I64, Bool] {
        let x = Value::drawn(r, dtype, &[5, 6]).permuted(&[1, 0]);
        for (k, upper) in [(0, false), (-2, true), (1, false)] {
            same("triangle", both(&rig, launcher, Triangle { diagonal: k, upper }, &[&x]).unwrap());
        }
        let roll = Roll { shifts: vec![(0, 2), (-1, -1)] };
        same("roll", both(&rig, launcher, roll, &[&x]).unwrap());
        for positions in [false, true] {
            for descending in [false, true] {
                let sort = Sort { dim: 0, descending, positions };
                same("sort", both(&rig, launcher, sort, &[&x]).unwrap());
            }
        }
        for largest in [false, true] {
            let topk = TopK { dim: -1, k: 3, largest };
            same("topk", both(&rig, launcher, topk, &[&x]).unwrap());
        }
        if !dtype.is_float() {
            same("cumsum", both(&rig, launcher, CumSum { dim: 0 }, &[&x]).unwrap());
            same("cumprod", both(&rig, launcher, CumProd { dim: 0 }, &[&x]).unwrap());
        }
        let y = Value::drawn(r, dtype, &[2, 5]).flipped(1);
        same("cat", both(&rig, launcher, Cat { dim: 0 }, &[&x, &y, &x]).unwrap());
        let index =
            Value::of(&[3, 5], &(0..15).map(|_| r.below(12) as i64 - 6).collect::<Vec<_>>());
        same(
            "gather",
            both(&rig, launcher, Gather { dim: 0, name: "gather" }, &[&x, &index]).unwrap(),
        );
        let row = Value::of(&[4], &[3i32, 0, 5, 3]).flipped(0);
        same(
            "index_select",
            both(&rig, launcher, IndexSelect { dim: 0, name: "index_select" }, &[&x, &row])
                .unwrap(),
        );
        let table = Value::drawn(r, dtype, &[6, 8]);
        let at = Value::of(&[2, 2], &[1i64, 5, 0, 2]).permuted(&[1, 0]);
        same("embedding", both(&rig, launcher, Embedding, &[&table, &at]).unwrap());
        if dtype != Bool {
            let source = Value::drawn(r, dtype, &[3, 5]);
            let scattered =
                both(&rig, launcher, ScatterAdd { dim: 0 }, &[&x, &index, &source]).unwrap();
            same("scatter_add", scattered);
        }
        for mode in ScatterMode::ALL {
            let source = Value::drawn(r, dtype, &[3, 5]);
            same(
                "scatter",
                both(&rig, launcher, Scatter { dim: 0, mode }, &[&x, &index, &source]).unwrap(),
            );
        }
        let part = SliceAssign::new(&[6, 5], &[1usize, 2], |start, _| Some((start, 3, 1, true)));
        let source = Value::drawn(r, dtype, &[3, 1]);
        same("slice_assign", both(&rig, launcher, part, &[&x, &source]).unwrap());
    }
    same(
        "one_hot",
        both(&rig, launcher, OneHot { classes: 5 }, &[&Value::of(&[3], &[4i64, 0, 2])]).unwrap(),
    );
    for dtype in [F32, F64, F16, BF16] {
        let tolerance = match dtype {
            F16 => 2e-3,
            BF16 => 1e-2,
            _ => 1e-6,
        };
        let x = Value::drawn(r, dtype, &[3, 4, 5]).permuted(&[2, 0, 1]);
        for dim in [0, 1, -1] {
            for form in [Form::Plain, Form::Safe, Form::Log] {
                near(
                    "softmax",
                    both(&rig, launcher, Softmax { dim, form }, &[&x]).unwrap(),
                    tolerance,
                );
            }
            let total = LogSumExp { dim, keepdim: false };
            near("logsumexp", both(&rig, launcher, total, &[&x]).unwrap(), tolerance);
        }
        let one = Value::drawn(r, dtype, &[]);
        near(
            "softmax of a number",
            both(&rig, launcher, Softmax { dim: 0, form: Form::Log }, &[&one]).unwrap(),
            0.0,
        );
        for trailing in [1, 2] {
            // Parameters in a type of their own.
            let row: Vec<usize> = x.shape[3 - trailing..].to_vec();
            let (w, b) = (Value::drawn(r, F32, &row), Value::drawn(r, dtype, &row));
            let norm = |centred| Norm { trailing, eps: 1e-5, weight: true, bias: centred, centred };
            near(
                "layer_norm",
                both(&rig, launcher, norm(true), &[&x, &w, &b]).unwrap(),
                4.0 * tolerance,
            );
            near(
                "rms_norm",
                both(&rig, launcher, norm(false), &[&x, &w]).unwrap(),
                4.0 * tolerance,
            );
        }
        near("cumsum", both(&rig, launcher, CumSum { dim: 1 }, &[&x]).unwrap(), 4.0 * tolerance);
    }
    launcher.clear(&rig.idle());
}

#[test]
#[ignore = "needs a driver in the loader's path, a GPU's or the simulated one"]
fn products_agree_however_their_operands_lie() {
    let rig = Rig::new();
    let launcher = &mut rig.launcher(Fusion::Background);
    let r = &mut Rng(11);
    use DType::*;
    for dtype in [F32, F64, F16, BF16, I32, I64, U8] {
        let tolerance = match dtype {
            F16 => 5e-3,
            BF16 => 4e-2,
            _ => 1e-5,
        };
        let mut check = |what: &str, a: &Value, b: &Value| {
            near(what, both(&rig, &mut *launcher, MatMul::default(), &[a, b]).unwrap(), tolerance);
        };
        let mut v = |shape: &[usize]| Value::drawn(r, dtype, shape);
        check("plain", &v(&[5, 7]), &v(&[7, 4]));
        check("transposed", &v(&[7, 5]).permuted(&[1, 0]), &v(&[4, 7]).permuted(&[1, 0]));
        check("backwards", &v(&[5, 7]).flipped(1), &v(&[7, 4]).flipped(0));
        check("vectors", &v(&[7]), &v(&[7]));
        check("row", &v(&[7]), &v(&[7, 3]));
        check("column", &v(&[3, 7]), &v(&[7]).flipped(0));
        check("batch", &v(&[2, 3, 5, 7]), &v(&[2, 3, 7, 4]));
        check("one weight", &v(&[2, 3, 5, 7]), &v(&[7, 4]));
        check("broadcast", &v(&[2, 1, 5, 7]), &v(&[3, 7, 4]));
        check("repeated", &v(&[1, 5, 7]).repeated(0, 3), &v(&[3, 4, 7]).permuted(&[0, 2, 1]));
        check("repeated rows", &v(&[1, 7]).repeated(0, 5), &v(&[7, 4]));
        check("nothing inside", &v(&[3, 0]), &v(&[0, 2]));
        check("batches in between", &v(&[3, 5, 2, 7]).permuted(&[2, 0, 1, 3]), &v(&[2, 3, 7, 1]));
        if dtype == F32 {
            // Large enough to be copied for the library.
            let copied = [&v(&[1, 128]).repeated(0, 128), &v(&[128, 128]).flipped(0)];
            near("copied", both(&rig, launcher, MatMul::default(), &copied).unwrap(), 1e-3);
            let many = [&v(&[70, 1, 16, 16]), &v(&[1, 60, 16, 16])];
            near("many batches", both(&rig, launcher, MatMul::default(), &many).unwrap(), 1e-3);
        }
    }
    launcher.clear(&rig.idle());
}

#[test]
#[ignore = "needs a driver in the loader's path, a GPU's or the simulated one"]
fn a_bad_index_is_found_and_nothing_else_is_touched() {
    let rig = Rig::new();
    let launcher = &mut rig.launcher(Fusion::Background);
    let x = Value::of(&[4, 3], &[1f32; 12]);
    fn asked(
        rig: &Rig,
        launcher: &mut Launcher,
        op: impl Operation,
        inputs: &[&Value],
    ) -> Option<(u64, i64, u64)> {
        let metas: Vec<Meta> = inputs.iter().map(|v| v.meta()).collect();
        let out = op.infer(&metas.iter().collect::<Vec<_>>()).unwrap();
        let views: Vec<DeviceView<'_>> = inputs.iter().map(|v| v.on(rig)).collect();
        let to = DeviceViewMut { ptr: rig.alloc(out.bytes()), dtype: out.dtype, shape: &out.shape };
        let op = Op::Custom(Arc::new(op));
        rig.run(launcher, |launcher| launcher.node(rig, &op, &views, to, false)).unwrap();
        rig.bad_index()
    }
    let index = Value::of(&[3], &[0i64, -1, 9]);
    // From the end -1 is the last, but no word has the number -1.
    let select = || IndexSelect { dim: 0, name: "index_select" };
    assert_eq!(asked(&rig, launcher, select(), &[&x, &index]), Some((2, 9, 4)));
    assert_eq!(asked(&rig, launcher, Embedding, &[&x, &index]), Some((1, -1, 4)));
    assert_eq!(asked(&rig, launcher, OneHot { classes: 9 }, &[&index]), Some((1, -1, 9)));
    assert_eq!(asked(&rig, launcher, OneHot { classes: 0 }, &[&index]), Some((0, 0, 0)));
    // Where the result has no elements, the indices are looked at all the same.
    let none = Value::of::<f32>(&[4, 0], &[]);
    assert_eq!(asked(&rig, launcher, select(), &[&none, &index]), Some((2, 9, 4)));
    let low = Value::of(&[3], &[0i64, -5, 9]);
    assert_eq!(asked(&rig, launcher, select(), &[&none, &low]), Some((1, -5, 4)));
    let fine = Value::of(&[3], &[0i64, 3, 2]);
    assert_eq!(
        asked(&rig, launcher, IndexSelect { dim: 0, name: "index_select" }, &[&none, &fine]),
        None
    );
    launcher.clear(&rig.idle());
}

#[test]
#[ignore = "needs a driver in the loader's path, a GPU's or the simulated one"]
fn windows_move_as_they_do_on_the_cpu() {
    let rig = Rig::new();
    let launcher = &mut rig.launcher(Fusion::Background);
    let r = &mut Rng(13);
    use DType::*;
    // Dimensions; stride, padding, dilation, groups; sizes of input and kernel; channels of a
    // group.
    let cases = [
        (2, [1, 1, 1], [[0; 2], [0; 2], [0; 2]], [1, 1, 1], 1, [1, 5, 6], [1, 1, 1], [3, 4]),
        (2, [1, 1, 1], [[0; 2], [1; 2], [1; 2]], [1, 1, 1], 1, [1, 5, 6], [1, 3, 3], [2, 5]),
        (2, [1, 2, 1], [[0; 2], [0; 2], [2; 2]], [1, 2, 1], 1, [1, 7, 5], [1, 2, 3], [3, 4]),
        (2, [1, 2, 2], [[0; 2], [1, 2], [0, 2]], [1, 1, 2], 2, [1, 6, 7], [1, 3, 2], [2, 3]),
        (2, [1, 1, 1], [[0; 2], [1; 2], [1; 2]], [1, 1, 1], 4, [1, 5, 5], [1, 3, 3], [1, 1]),
        (1, [1, 1, 2], [[0; 2], [0; 2], [2, 0]], [1, 1, 1], 1, [1, 1, 9], [1, 1, 3], [2, 4]),
        (3, [1, 1, 1], [[0; 2], [0; 2], [0; 2]], [1, 1, 1], 1, [3, 2, 4], [1, 1, 1], [3, 4]),
        (3, [2, 1, 1], [[1, 0], [0, 1], [1, 1]], [1, 2, 1], 1, [4, 5, 3], [2, 2, 3], [2, 4]),
        (3, [1, 2, 1], [[1, 1], [1, 0], [0, 1]], [2, 1, 1], 2, [5, 4, 3], [2, 3, 2], [2, 1]),
    ];
    for dtype in [F32, F64, F16] {
        let tolerance = if dtype == F16 { 1e-2 } else { 2e-5 };
        for (spatial, stride, padding, dilation, groups, size, kernel, [depth, outs]) in cases {
            let walk = Walk { spatial, stride, padding, dilation, groups };
            let output = [0, 1, 2].map(|a| walk.places(a, size[a], kernel[a]).unwrap());
            let shape = |lead: &[usize], own: &[usize]| [lead, &own[3 - spatial..]].concat();
            let x = Value::drawn(r, dtype, &shape(&[2, groups * depth], &size));
            let x = if groups == 2 { x.flipped(3) } else { x };
            let w = Value::drawn(r, dtype, &shape(&[groups * outs, depth], &kernel));
            let bias = Value::drawn(r, dtype, &[groups * outs]);
            let dy = Value::drawn(r, dtype, &shape(&[2, groups * outs], &output));
            let mut check = |role, inputs: &[&Value]| {
                let what = format!("{role:?} {walk:?} {dtype}");
                near(&what, both(&rig, launcher, Conv { walk, role }, inputs).unwrap(), tolerance);
            };
            check(Role::Output, &[&x, &w, &bias]);
            check(Role::Output, &[&x, &w]);
            check(Role::Input(size), &[&dy, &w]);
            check(Role::Weight(kernel), &[&dy, &x]);
            let window = Window { spatial, input: size, kernel, output, stride, padding, dilation };
            // The plane lies turned: its last dimension is not the one with steps of 1.
            let order: Vec<usize> = std::iter::once(0).chain((1..=spatial).rev()).collect();
            let turned: Vec<usize> = order.iter().map(|&d| shape(&[3], &size)[d]).collect();
            let plane = Value::drawn(r, dtype, &turned).permuted(&order);
            let back = Value::drawn(r, dtype, &shape(&[2], &output));
            let mut check = |what, x: &Value| {
                let exact = matches!(what, Pooled::Max | Pooled::MaxPosition);
                let tolerance = if exact { 0.0 } else { tolerance };
                near(
                    &format!("{what:?}"),
                    both(&rig, launcher, Pool { window, what }, &[x]).unwrap(),
                    tolerance,
                );
            };
            check(Pooled::Max, &plane);
            check(Pooled::MaxPosition, &plane);
            for by in [Divisor::Met, Divisor::Padded, Divisor::Fixed(3)] {
                check(Pooled::Mean(by), &plane);
                check(Pooled::Spread(by), &back);
            }
        }
    }
    launcher.clear(&rig.idle());
}

/// A random program: casts, constants, conditions, several outputs.
fn program(r: &mut Rng, inputs: &[DType], length: usize) -> Program {
    let mut p = Program::default();
    for (k, &d) in inputs.iter().enumerate() {
        p.push(Code::Input(k as u8), d, d);
    }
    use BinaryOp::*;
    use UnaryOp::*;
    while p.instrs.len() < inputs.len() + length {
        let a = r.below(p.instrs.len()) as u8;
        let on = p.dtype(a);
        let mut b = r.below(p.instrs.len()) as u8;
        match r.below(6) {
            0 => {
                let to = [DType::F32, DType::I32, DType::F16, DType::Bool][r.below(4)];
                if to != on {
                    p.push(Code::Cast(Arg::Reg(a)), on, to);
                }
            }
            1 if on != DType::Bool => {
                let op = [Neg, Abs, Square, Relu][r.below(4)];
                p.push(Code::Unary(op, Arg::Reg(a)), on, on);
            }
            2 if on != DType::Bool => {
                let number = Arg::Scalar(Scalar::Float([0.5, 2.0, 3.0][r.below(3)]));
                p.push(Code::Binary([Add, Mul, Maximum][r.below(3)], Arg::Reg(a), number), on, on);
            }
            3 if on != DType::Bool => {
                if p.dtype(b) != on {
                    b = p.push(Code::Cast(Arg::Reg(b)), p.dtype(b), on);
                }
                p.push(
                    Code::Binary([Add, Sub, Mul, Minimum][r.below(4)], Arg::Reg(a), Arg::Reg(b)),
                    on,
                    on,
                );
            }
            4 if on != DType::Bool => {
                if p.dtype(b) != on {
                    b = p.push(Code::Cast(Arg::Reg(b)), p.dtype(b), on);
                }
                p.push(
                    Code::Binary([Lt, Eq][r.below(2)], Arg::Reg(a), Arg::Reg(b)),
                    on,
                    DType::Bool,
                );
            }
            5 if on == DType::Bool => {
                let d = p.dtype(b);
                p.push(Code::Where(Arg::Reg(a), Arg::Reg(b), Arg::Scalar(Scalar::Int(1))), d, d);
            }
            _ => {
                let d = [DType::F32, DType::I32][r.below(2)];
                p.push(Code::Fill(Scalar::Int(r.below(5) as i64)), d, d);
            }
        }
    }
    let last = (p.instrs.len() - 1) as u8;
    p.outputs.push(last);
    for _ in 0..r.below(3) {
        let extra = r.below(p.instrs.len()) as u8;
        if !p.outputs.contains(&extra) {
            p.outputs.push(extra);
        }
    }
    p
}

#[test]
#[ignore = "needs a driver in the loader's path, a GPU's or the simulated one"]
fn a_program_has_the_cpus_bits_fused_and_op_by_op() {
    let rig = Rig::new();
    let mut launchers = [rig.launcher(Fusion::AtOnce), rig.launcher(Fusion::Never)];
    let types = [DType::F32, DType::I32, DType::F16];
    for seed in 0..6 {
        let r = &mut Rng(seed);
        let length = 4 + r.below(6);
        let p = program(r, &types, length);
        let shape = [3, 4, 5];
        let values = [
            Value::drawn(r, types[0], &[4, 5, 3]).permuted(&[2, 0, 1]),
            Value::drawn(r, types[1], &shape).flipped(2),
            Value::drawn(r, types[2], &[3, 1, 5]).repeated(1, 4),
        ];
        let mut wanted: Vec<Vec<u8>> = Vec::new();
        let views: Vec<View<'_>> = values.iter().map(Value::view).collect();
        {
            let mut memory: Vec<Vec<u64>> = p.outputs.iter().map(|_| vec![0; 60]).collect();
            let outs: Vec<ViewMut<'_>> = (memory.iter_mut().zip(&p.outputs))
                .map(|(m, &reg)| ViewMut {
                    ptr: m.as_mut_ptr().cast(),
                    dtype: p.dtype(reg),
                    shape: &shape,
                    life: PhantomData,
                })
                .collect();
            elementwise::run_parallel(&p, &shape, &views, &outs, &Serial);
            for (m, &reg) in memory.iter().zip(&p.outputs) {
                let all = bytes_of(&m.iter().map(|&w| w as i64).collect::<Vec<_>>());
                wanted.push(all[..60 * p.dtype(reg).size()].to_vec());
            }
        }
        // The end of the group: a reduction of a register that is not written out, where there is
        // one.
        let reg = (0..p.instrs.len() as u8).rev().find(|k| !p.outputs.contains(k)).unwrap();
        let (kept, dims) = ([3, 5], [false, true, false]);
        let mut best = vec![0u64; 15];
        let mut one = p.clone();
        one.outputs = [reg].into_iter().collect();
        let tiles = |range: std::ops::Range<usize>, to: *mut u8| {
            // SAFETY: memory of the reduction's own for exactly these elements.
            unsafe { elementwise::run_into(&one, &shape, &views, range, &mut [to]) };
        };
        let dtype = p.dtype(reg);
        let out = ViewMut { ptr: best.as_mut_ptr().cast(), dtype, shape: &kept, life: PhantomData };
        reduce::reduce(
            ReduceOp::Max,
            reduce::Source::Fused { dtype, shape: &shape, read: &tiles },
            &dims,
            &out,
            &Serial,
        );
        let best = bytes_of(&best.iter().map(|&w| w as i64).collect::<Vec<_>>())
            [..15 * dtype.size()]
            .to_vec();

        for launcher in &mut launchers {
            let inputs: Vec<DeviceView<'_>> = values.iter().map(|v| v.on(&rig)).collect();
            let outputs: Vec<DeviceViewMut<'_>> = (p.outputs.iter())
                .map(|&reg| DeviceViewMut {
                    ptr: rig.alloc(60 * 8),
                    dtype: p.dtype(reg),
                    shape: &shape,
                })
                .collect();
            let output = DeviceViewMut { ptr: rig.alloc(15 * 8), dtype, shape: &kept };
            let end = End { op: ReduceOp::Max, dims: &dims, reg, output };
            rig.run(launcher, |l| l.group(&rig, &p, &shape, &inputs, &outputs, Some(end))).unwrap();
            for (k, (out, want)) in outputs.iter().zip(&wanted).enumerate() {
                let got = rig.download(out.ptr, want.len());
                same(&format!("seed {seed} output {k} of {p:?}"), (out.dtype, want.clone(), got));
            }
            same(
                &format!("seed {seed} end of {p:?}"),
                (dtype, best.clone(), rig.download(output.ptr, best.len())),
            );
        }
    }
    launchers.iter_mut().for_each(|launcher| launcher.clear(&rig.idle()));
}

/// `(x * y + x)^2`: three instructions.
fn chain() -> Program {
    let mut p = Program::default();
    let x = p.push(Code::Input(0), DType::F32, DType::F32);
    let y = p.push(Code::Input(1), DType::F32, DType::F32);
    let a = p.push(Code::Binary(BinaryOp::Mul, Arg::Reg(x), Arg::Reg(y)), DType::F32, DType::F32);
    let b = p.push(Code::Binary(BinaryOp::Add, Arg::Reg(a), Arg::Reg(x)), DType::F32, DType::F32);
    let c = p.push(Code::Unary(UnaryOp::Square, Arg::Reg(b)), DType::F32, DType::F32);
    p.outputs.push(c);
    p
}

#[test]
#[ignore = "needs a driver in the loader's path, a GPU's or the simulated one"]
fn a_group_runs_op_by_op_until_its_kernel_is_there_and_takes_no_scratch_from_then_on() {
    let rig = Rig::new();
    let launcher = &mut rig.launcher(Fusion::Background);
    let x = Value::of(&[6], &[1f32, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let y = Value::of(&[6], &[2f32; 6]);
    let views = [x.on(&rig), y.on(&rig)];
    let run = |launcher: &mut Launcher| {
        let before = rig.scratched.get();
        let out = DeviceViewMut { ptr: rig.alloc(24), dtype: DType::F32, shape: &[6] };
        rig.run(launcher, |l| l.group(&rig, &chain(), &[6], &views, &[out], None)).unwrap();
        let want = [9.0, 36.0, 81.0, 144.0, 225.0, 324.0];
        assert_eq!(numbers(DType::F32, &rig.download(out.ptr, 24)), want);
        rig.scratched.get() - before
    };
    assert_eq!((run(launcher), run(launcher), run(launcher)), (2, 2, 2));
    // The third time it went to the compiler; it is used as soon as it is back.
    while run(launcher) > 0 {
        std::thread::yield_now();
    }
    assert_eq!(run(launcher), 0);
    launcher.clear(&rig.idle());
}

#[test]
#[ignore = "needs a driver in the loader's path, a GPU's or the simulated one"]
fn intermediate_values_of_a_long_chain_share_two_blocks() {
    let rig = Rig::new();
    let launcher = &mut rig.launcher(Fusion::Never);
    let mut p = Program::default();
    let mut x = p.push(Code::Input(0), DType::F32, DType::F32);
    for _ in 0..20 {
        x = p.push(
            Code::Binary(BinaryOp::Add, Arg::Reg(x), Arg::Scalar(Scalar::Int(1))),
            DType::F32,
            DType::F32,
        );
    }
    p.outputs.push(x);
    let zeros = Value::of(&[8], &[0f32; 8]);
    let out = DeviceViewMut { ptr: rig.alloc(32), dtype: DType::F32, shape: &[8] };
    let zeros = zeros.on(&rig);
    rig.run(launcher, |l| l.group(&rig, &p, &[8], &[zeros], &[out], None)).unwrap();
    assert_eq!(numbers(DType::F32, &rig.download(out.ptr, 32)), [20.0; 8]);
    assert_eq!(rig.scratched.get(), 2);
    launcher.clear(&rig.idle());
}

#[test]
#[ignore = "needs a driver in the loader's path, a GPU's or the simulated one"]
fn reductions_agree_with_the_cpu() {
    let rig = Rig::new();
    let launcher = &mut rig.launcher(Fusion::Background);
    let r = &mut Rng(3);
    for dtype in [DType::F32, DType::I32, DType::Bool, DType::F16] {
        let x = Value::drawn(r, dtype, &[4, 5, 6]).permuted(&[1, 2, 0]);
        for &op in ReduceOp::ALL {
            for dims in [[true, false, false], [false, true, true], [true, true, true]] {
                let kept: Shape = (0..3).filter(|&d| !dims[d]).map(|d| x.shape[d]).collect();
                let Ok(meta) = crate::graph::infer::reduce(op, &x.meta(), &dims, false) else {
                    continue;
                };
                assert_eq!(meta.shape, kept);
                let mut cpu = vec![0u64; kept.numel()];
                let to = ViewMut {
                    ptr: cpu.as_mut_ptr().cast(),
                    dtype: meta.dtype,
                    shape: &kept,
                    life: PhantomData,
                };
                reduce::reduce(op, reduce::Source::View(x.view()), &dims, &to, &Serial);
                let cpu = bytes_of(&cpu.iter().map(|&w| w as i64).collect::<Vec<_>>())
                    [..meta.bytes()]
                    .to_vec();
                let out =
                    DeviceViewMut { ptr: rig.alloc(meta.bytes()), dtype: meta.dtype, shape: &kept };
                let reduction = Reduction { op, dims: dims.into_iter().collect() };
                let (reduce, x) = (Op::Reduce(Box::new(reduction)), x.on(&rig));
                rig.run(launcher, |l| l.node(&rig, &reduce, &[x], out, false)).unwrap();
                let got = rig.download(out.ptr, meta.bytes());
                near(&format!("{op:?} {dtype} {dims:?}"), (meta.dtype, cpu, got), 1e-3);
            }
        }
    }
    launcher.clear(&rig.idle());
}

/// `out = a * x + y`, from outside.
struct Axpy(f32, &'static str);

impl Operation for Axpy {
    fn name(&self) -> &str {
        "axpy"
    }
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        Ok(inputs[0].clone())
    }
    fn run_cpu(&self, _: &mut CpuRun<'_>) -> Result<(), Refusal> {
        Err(Refusal::kernel("not on the CPU"))
    }
    fn run_cuda(&self, run: &mut CudaRun<'_>) -> Result<(), Refusal> {
        let (x, y, out) = (run.inputs()[0], run.inputs()[1], run.output());
        let n = out.numel();
        let args = [
            CudaArg::F32(self.0),
            CudaArg::Address(x.address()),
            CudaArg::Address(y.address()),
            CudaArg::Address(out.address()),
            CudaArg::I32(n as i32),
        ];
        // SAFETY: the arguments are the kernel's parameters; it writes n elements.
        unsafe { run.launch(CudaKernel::new("axpy", self.1), CudaGrid::cover(n, 64), &args) }
    }
}

const AXPY: &str = r#"
extern "C" __global__ void axpy(float a, const float* x, const float* y, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = a * x[i] + y[i];
}
"#;

#[test]
#[ignore = "needs a driver in the loader's path, a GPU's or the simulated one"]
fn an_op_from_outside_brings_its_source_and_a_wrong_one_says_why() {
    let rig = Rig::new();
    let launcher = &mut rig.launcher(Fusion::Background);
    let x = Value::of(&[100], &[3f32; 100]);
    let y = Value::of(&[100], &(0..100).map(|i| i as f32).collect::<Vec<_>>());
    let mut run = |source| {
        let out = DeviceViewMut { ptr: rig.alloc(400), dtype: DType::F32, shape: &[100] };
        let op = Op::Custom(Arc::new(Axpy(2.0, source)));
        let views = [x.on(&rig), y.on(&rig)];
        rig.run(launcher, |l| l.node(&rig, &op, &views, out, false)).map(|()| out.ptr)
    };
    let refusal = |got| match got {
        Err(Trouble::Refused(refusal)) => refusal.to_string(),
        other => panic!("{other:?}"),
    };
    for _ in 0..2 {
        let got = numbers(DType::F32, &rig.download(run(AXPY).unwrap(), 400));
        assert_eq!(got, (0..100).map(|i| 6.0 + i as f64).collect::<Vec<_>>());
        let wrong = refusal(run("extern \"C\" __global__ void axpy(float a) { nonsense; }"));
        assert!(wrong.contains("axpy does not compile") && wrong.contains("nonsense"), "{wrong}");
        let missing = refusal(run("extern \"C\" __global__ void other(float* a) { a[0] = 1; }"));
        assert!(missing.contains("no kernel named axpy"), "{missing}");
    }
    let none = launcher.node(
        &rig,
        &Op::Custom(Arc::new(crate::ops::custom::Closures {
            name: "homemade".into(),
            infer: |metas: &[&Meta]| Ok(metas[0].clone()),
            run: |_: &mut CpuRun<'_>| Ok(()),
        })),
        &[x.on(&rig)],
        DeviceViewMut { ptr: rig.alloc(400), dtype: DType::F32, shape: &[100] },
        false,
    );
    assert!(refusal(none.map(|()| 0)).contains("homemade has no CUDA kernel"));
    launcher.clear(&rig.idle());
}
