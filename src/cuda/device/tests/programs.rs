//! Fused programs and reductions beside the CPU: a random program has the same bits, fused and op
//! by op.

#![allow(unsafe_code)]

use crate::cuda::device::launch::group::End;
use crate::cuda::device::launch::launcher::Launcher;
use crate::cuda::device::modules::store::Fusion;
use crate::cuda::device::testing::{Rig, Rng, Value, bytes_of, near, numbers, same};
use crate::cuda::device::{DeviceView, DeviceViewMut};
use crate::dtype::{DType, Scalar};
use crate::graph::node::{Op, Reduction};
use crate::graph::program::{Arg, Code, Program};
use crate::host::kernels::elementwise;
use crate::host::kernels::reduce;
use crate::op::{BinaryOp, ReduceOp, UnaryOp};
use crate::shape::Shape;
use crate::view::{Serial, View, ViewMut};
use std::marker::PhantomData;

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
            unsafe { elementwise::Front::new(&one, &shape, &views).read(range, &mut [to]) };
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
