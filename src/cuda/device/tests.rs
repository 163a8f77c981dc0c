//! Launches beside the CPU's kernels, on the driver that the loader finds: the simulated one in CI,
//! a GPU's where there is one. Ignored by default, since a process without a driver has nothing to
//! say here:
//!
//!     cargo run -p futensor-simulated-driver --example under -- \
//!         cargo test --lib cuda::device -- --ignored
//!
//! Values on both sides are the same bytes through the same layouts; results are compared bit by
//! bit where the arithmetic is exact.

mod custom;
mod programs;

use super::launch::launcher::Launcher;
use super::modules::store::Fusion;
use super::testing::{Rig, Rng, Value, both, near, same};
use super::{DeviceView, DeviceViewMut};
use crate::dtype::DType;
use crate::graph::node::Op;
use crate::graph::operation::{Meta, Operation};
use crate::host::kernels::rows::Form;
use crate::host::kernels::windows::pool::Divisor;
use crate::op::{Scan, ScatterMode};
use crate::ops::index::embedding::Embedding;
use crate::ops::index::gather::Gather;
use crate::ops::index::index_select::IndexSelect;
use crate::ops::index::one_hot::OneHot;
use crate::ops::index::scatter::Scatter;
use crate::ops::index::scatter_add::ScatterAdd;
use crate::ops::order::scan::Running;
use crate::ops::order::sort::Sort;
use crate::ops::order::topk::TopK;
use crate::ops::products::matmul::MatMul;
use crate::ops::rows::logsumexp::LogSumExp;
use crate::ops::rows::norm::Norm;
use crate::ops::rows::softmax::Softmax;
use crate::ops::shaping::cat::Cat;
use crate::ops::shaping::roll::Roll;
use crate::ops::shaping::slice_assign::SliceAssign;
use crate::ops::shaping::triangle::Triangle;
use crate::ops::windows::conv::{Conv, Role, Walk};
use crate::ops::windows::pool::{Pool, Pooled};
use crate::window::Window;
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
            same(
                "cumsum",
                both(&rig, launcher, Running { scan: Scan::Sum, dim: 0 }, &[&x]).unwrap(),
            );
            same(
                "cumprod",
                both(&rig, launcher, Running { scan: Scan::Product, dim: 0 }, &[&x]).unwrap(),
            );
        }
        let y = Value::drawn(r, dtype, &[2, 5]).flipped(1);
        same("cat", both(&rig, launcher, Cat { dim: 0 }, &[&x, &y, &x]).unwrap());
        let index =
            Value::of(&[3, 5], &(0..15).map(|_| r.below(12) as i64 - 6).collect::<Vec<_>>());
        same(
            "gather",
            both(&rig, launcher, Gather { dim: 0, name: "gather", from_end: true }, &[&x, &index])
                .unwrap(),
        );
        let row = Value::of(&[4], &[3i32, 0, 5, 3]).flipped(0);
        same(
            "index_select",
            both(
                &rig,
                launcher,
                IndexSelect { dim: 0, name: "index_select", from_end: true },
                &[&x, &row],
            )
            .unwrap(),
        );
        let table = Value::drawn(r, dtype, &[6, 8]);
        let at = Value::of(&[2, 2], &[1i64, 5, 0, 2]).permuted(&[1, 0]);
        same(
            "embedding",
            both(&rig, launcher, Embedding { name: "embedding" }, &[&table, &at]).unwrap(),
        );
        if dtype != Bool {
            let source = Value::drawn(r, dtype, &[3, 5]);
            let scattered = both(
                &rig,
                launcher,
                ScatterAdd { dim: 0, name: "scatter_add", from_end: true },
                &[&x, &index, &source],
            )
            .unwrap();
            same("scatter_add", scattered);
        }
        let index = Value::of(&[3, 5], &(0..15).map(|_| r.below(6) as i64).collect::<Vec<_>>());
        for mode in ScatterMode::ALL {
            let source = Value::drawn(r, dtype, &[3, 5]);
            let scatter = Scatter { dim: 0, mode, name: "scatter" };
            same("scatter", both(&rig, launcher, scatter, &[&x, &index, &source]).unwrap());
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
                    both(&rig, launcher, Softmax { dim, form, from_operand: false }, &[&x])
                        .unwrap(),
                    tolerance,
                );
            }
            let total = LogSumExp { dim, keepdim: false };
            near("logsumexp", both(&rig, launcher, total, &[&x]).unwrap(), tolerance);
        }
        let one = Value::drawn(r, dtype, &[]);
        near(
            "softmax of a number",
            both(&rig, launcher, Softmax { dim: 0, form: Form::Log, from_operand: false }, &[&one])
                .unwrap(),
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
        near(
            "cumsum",
            both(&rig, launcher, Running { scan: Scan::Sum, dim: 1 }, &[&x]).unwrap(),
            4.0 * tolerance,
        );
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
    let select = || IndexSelect { dim: 0, name: "index_select", from_end: true };
    assert_eq!(asked(&rig, launcher, select(), &[&x, &index]), Some((2, 9, 4)));
    assert_eq!(
        asked(&rig, launcher, Embedding { name: "embedding" }, &[&x, &index]),
        Some((1, -1, 4))
    );
    assert_eq!(asked(&rig, launcher, OneHot { classes: 9 }, &[&index]), Some((1, -1, 9)));
    assert_eq!(asked(&rig, launcher, OneHot { classes: 0 }, &[&index]), Some((0, 0, 0)));
    // Where the result has no elements, the indices are looked at all the same.
    let none = Value::of::<f32>(&[4, 0], &[]);
    assert_eq!(asked(&rig, launcher, select(), &[&none, &index]), Some((2, 9, 4)));
    let low = Value::of(&[3], &[0i64, -5, 9]);
    assert_eq!(asked(&rig, launcher, select(), &[&none, &low]), Some((1, -5, 4)));
    let fine = Value::of(&[3], &[0i64, 3, 2]);
    assert_eq!(
        asked(
            &rig,
            launcher,
            IndexSelect { dim: 0, name: "index_select", from_end: true },
            &[&none, &fine]
        ),
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
