//! Sums, extremes and their places beside plain loops in f64 and i64.

use super::{Random, Strided, close, indices, linear};
use crate::cuda::kernels::Operand;
use crate::cuda::kernels::reduce::{identity, plan};
use crate::dtype::{DType, Element, Scalar};
use crate::graph::program::{Arg, Code, Program};
use crate::on_host::{Batch, Buffer, run};
use crate::op::{BinaryOp, Class, ReduceOp};

/// What an op makes of the elements of one row.
fn naive(op: ReduceOp, row: &[f64]) -> f64 {
    let best = |sign: f64| {
        let mut at = 0;
        for (i, x) in row.iter().enumerate() {
            let (a, b) = (sign * x, sign * row[at]);
            if (a.is_nan() && !b.is_nan()) || a > b {
                at = i;
            }
        }
        at
    };
    match op {
        ReduceOp::Sum => row.iter().sum(),
        ReduceOp::Prod => row.iter().product(),
        ReduceOp::Mean => row.iter().sum::<f64>() / row.len() as f64,
        ReduceOp::Max => row[best(1.0)],
        ReduceOp::Min => row[best(-1.0)],
        ReduceOp::Any => row.iter().any(|&x| x != 0.0) as u8 as f64,
        ReduceOp::All => row.iter().all(|&x| x != 0.0) as u8 as f64,
        ReduceOp::ArgMax => best(1.0) as f64,
        ReduceOp::ArgMin => best(-1.0) as f64,
    }
}

/// A result as doubles.
fn read(op: ReduceOp, dtype: DType, out: &Buffer) -> Vec<f64> {
    fn of<T: Element>(out: &Buffer) -> Vec<f64> {
        out.get::<T>().into_iter().map(T::to_f64).collect()
    }
    match (op, dtype) {
        (ReduceOp::ArgMax | ReduceOp::ArgMin, _) => of::<i64>(out),
        (ReduceOp::Any | ReduceOp::All, _) => of::<u8>(out),
        (ReduceOp::Sum | ReduceOp::Prod, d) if !d.is_float() => of::<i64>(out),
        (_, DType::Bool) => of::<u8>(out),
        (_, d) => crate::dtype::with_dtype!(d, T => of::<T>(out)),
    }
}

fn check<T: Element>(
    b: &mut Batch<'_>,
    op: ReduceOp,
    shape: &[usize],
    over: &[bool],
    x: &Strided<T>,
    what: &str,
) {
    let dtype = T::DTYPE;
    let kept: Vec<usize> = (0..shape.len()).filter(|&d| !over[d]).map(|d| shape[d]).collect();
    let rows: usize = kept.iter().product();
    let plan = plan(op, &identity(dtype), shape, over, &[x.operand()]).expect("a plan");
    let mut lists: Vec<Vec<f64>> = vec![Vec::new(); rows];
    for index in indices(shape) {
        let row: Vec<usize> = (0..shape.len()).filter(|&d| !over[d]).map(|d| index[d]).collect();
        lists[linear(&kept, &row)].push(x.at(&index).to_f64());
    }
    let tolerance = match dtype {
        DType::F16 => 2e-3,
        DType::BF16 => 1e-2,
        DType::F32 => 2e-6,
        _ => 1e-12,
    };
    let what = format!("{what} {op:?} {dtype} {shape:?} {over:?}");
    b.add(plan, [x.buffer()], [Buffer::new(rows * 8)], move |out, _| {
        let got = read(op, dtype, &out[0]);
        for (i, row) in lists.iter().enumerate() {
            let scale = row.iter().map(|x| x.abs()).fold(1.0, f64::max);
            close(got[i], naive(op, row), tolerance * scale, format!("{what} row {i}"));
        }
    });
}

fn random<T: Element>(r: &mut Random, op: ReduceOp, shape: &[usize]) -> Strided<T> {
    Strided::random(r, shape, |r| match (op, T::DTYPE) {
        (ReduceOp::Prod, d) if d.is_float() => T::from_f64(1.0 + 0.1 * r.float()),
        (ReduceOp::Prod, _) => T::from_i64(1),
        (_, DType::U8 | DType::Bool) => T::from_i64(r.below(3) as i64),
        (_, d) if d.is_float() => T::from_f64((64.0 * r.float()).round() / 8.0),
        _ => T::from_i64(r.below(100) as i64 - 50),
    })
}

pub fn any_dims() {
    let seed = 21;
    let mut r = Random(seed);
    let mut b = Batch::default();
    fn cases<T: Element>(b: &mut Batch<'_>, r: &mut Random, seed: u64, shapes: &[&[usize]]) {
        for &op in ReduceOp::ALL {
            if op.class() == Class::float && !T::DTYPE.is_float() {
                continue;
            }
            for shape in shapes {
                let over: Vec<bool> = shape.iter().map(|_| r.below(2) == 0).collect();
                let x = random::<T>(r, op, shape);
                check(b, op, shape, &over, &x, &format!("seed {seed}"));
            }
        }
    }
    let many: [&[usize]; 8] =
        [&[3, 70], &[70, 3], &[2, 3, 40], &[33, 2, 65], &[], &[1300, 4], &[40, 64], &[5, 4, 3, 2]];
    (0..2).for_each(|_| cases::<f32>(&mut b, &mut r, seed, &many));
    cases::<half::f16>(&mut b, &mut r, seed, &many[2..4]);
    cases::<half::bf16>(&mut b, &mut r, seed, &many[3..4]);
    cases::<f64>(&mut b, &mut r, seed, &many[2..4]);
    cases::<i32>(&mut b, &mut r, seed, &many[2..4]);
    cases::<i64>(&mut b, &mut r, seed, &many[3..4]);
    cases::<u8>(&mut b, &mut r, seed, &many[1..3]);
    // Bool lies in memory as bytes.
    for op in [ReduceOp::Sum, ReduceOp::Any, ReduceOp::All, ReduceOp::ArgMax, ReduceOp::Max] {
        let x = Strided::contiguous(&[3, 70], |_| r.below(3) == 0);
        check(&mut b, op, &[3, 70], &[false, true], &x, "bool");
    }
    // Integers wrap: 3^100.
    let x = Strided::contiguous(&[100], |_| 3i32);
    let at = plan(ReduceOp::Prod, &identity(DType::I32), &[100], &[true], &[x.operand()]).unwrap();
    b.add(at, [x.buffer()], [Buffer::new(8)], |out, _| {
        assert_eq!(out[0].get::<i64>()[0], 3i64.wrapping_pow(100))
    });
    // Splits, blocks, columns.
    for (shape, over) in
        [([1, 50_000], [false, true]), ([3, 3000], [false, true]), ([3000, 40], [true, false])]
    {
        for op in [ReduceOp::Sum, ReduceOp::Max, ReduceOp::ArgMin, ReduceOp::Mean] {
            let x = Strided::contiguous(&shape, |_| (r.below(4001) as f32 - 2000.0) / 16.0);
            check(&mut b, op, &shape, &over, &x, "long");
            let x = Strided::contiguous(&shape, |_| half::f16::from_f64(r.float()));
            check(&mut b, op, &shape, &over, &x, "long");
        }
    }
    b.run();
}

pub fn ones() {
    let x = Strided::contiguous(&[1 << 22], |_| 1f32);
    let plan =
        plan(ReduceOp::Sum, &identity(DType::F32), &[1 << 22], &[true], &[x.operand()]).unwrap();
    assert_eq!(plan.launches.len(), 2);
    let mut out = [Buffer::new(4)];
    run(&plan, &mut [x.buffer()], &mut out);
    assert_eq!(out[0].get::<f32>(), [4194304.0]);
}

pub fn ties() {
    for n in [100, 20_000] {
        let mut v = vec![0f32; n];
        (v[n / 3], v[n / 2]) = (5.0, 5.0);
        let at = |v: &[f32], op| {
            let x = Strided::contiguous(&[n], |i| v[i]);
            let mut out = [Buffer::new(8)];
            run(
                &plan(op, &identity(DType::F32), &[n], &[true], &[x.operand()]).unwrap(),
                &mut [x.buffer()],
                &mut out,
            );
            out[0].get::<i64>()[0]
        };
        assert_eq!(at(&v, ReduceOp::ArgMax), n as i64 / 3);
        assert_eq!(at(&v, ReduceOp::ArgMin), 0);
        (v[n - 2], v[n - 1]) = (f32::NAN, f32::NAN);
        assert_eq!(at(&v, ReduceOp::ArgMax), n as i64 - 2);
        assert_eq!(at(&v, ReduceOp::ArgMin), n as i64 - 2);
        // Of what nothing is below, the first one; and the one element above it.
        let mut v = vec![f32::NEG_INFINITY; n];
        assert_eq!(at(&v, ReduceOp::ArgMax), 0);
        v[n / 3] = f32::MIN;
        assert_eq!(at(&v, ReduceOp::ArgMax), n as i64 / 3);
        assert_eq!(at(&v, ReduceOp::ArgMin), 0);
    }
    let of = |op, x: i32| {
        let (x, mut out) = (Strided::contiguous(&[3, 70], |_| x), [Buffer::new(4 * 3)]);
        let over = [false, true];
        let plan = plan(op, &identity(DType::I32), &[3, 70], &over, &[x.operand()]).unwrap();
        run(&plan, &mut [x.buffer()], &mut out);
        out[0].get::<i32>()
    };
    assert_eq!(of(ReduceOp::Max, i32::MIN), [i32::MIN; 3]);
    assert_eq!(of(ReduceOp::Min, i32::MAX), [i32::MAX; 3]);
}

pub fn empty() {
    let x = Strided::contiguous(&[3, 0], |_| 0f32);
    let of = |op| {
        let mut out = [Buffer::of(&[9f32; 3])];
        let plan =
            plan(op, &identity(DType::F32), &[3, 0], &[false, true], &[x.operand()]).unwrap();
        run(&plan, &mut [x.buffer()], &mut out);
        out[0].get::<f32>()
    };
    assert_eq!(of(ReduceOp::Sum), [0.0; 3]);
    assert_eq!(of(ReduceOp::Prod), [1.0; 3]);
    assert!(of(ReduceOp::Mean).iter().all(|x| x.is_nan()));
}

/// Sums in every order of the dimensions in memory, with gaps, at odd addresses, and of operands of
/// a narrower type that are widened on the way.
pub fn layouts() {
    fn bits<T: Element>(
        op: ReduceOp,
        program: &Program,
        over: &[bool],
        x: &Strided<T>,
    ) -> Vec<u64> {
        let rows: usize = (0..over.len()).filter(|&d| !over[d]).map(|d| x.shape[d]).product();
        let mut out = [Buffer::new(8 * rows)];
        let plan = plan(op, program, &x.shape, over, &[x.operand()]).expect("a plan");
        run(&plan, &mut [x.buffer()], &mut out);
        out[0].get::<u64>()
    }
    fn same<T: Element>(r: &mut Random, program: &Program, shape: &[usize], over: &[bool]) {
        let x = Strided::contiguous(shape, |_| T::from_f64(r.float()));
        let want = bits(ReduceOp::Sum, program, over, &x);
        let orders: &[&[usize]] = match shape.len() {
            2 => &[&[0, 1], &[1, 0]],
            _ => &[&[0, 1, 2], &[2, 1, 0], &[1, 0, 2], &[2, 0, 1]],
        };
        for order in orders {
            for (gap, offset) in [(1, 0), (1, 3), (2, 0)] {
                let y = x.laid(order, gap, offset);
                let got = bits(ReduceOp::Sum, program, over, &y);
                assert_eq!(
                    got, want,
                    "{shape:?} over {over:?} as {order:?}, gap {gap}, offset {offset}"
                );
            }
        }
    }
    let mut r = Random(5);
    let shapes: [(&[usize], &[bool]); 8] = [
        (&[40, 12], &[false, true]),
        (&[40, 100], &[false, true]),
        (&[100, 40], &[true, false]),
        (&[33, 1001], &[false, true]),
        (&[40, 2048], &[false, true]),
        (&[3, 20_000], &[false, true]),
        (&[36, 8, 40], &[true, false, true]),
        (&[7, 40, 6], &[false, true, false]),
    ];
    let widened = |from: DType| {
        let mut p = Program::default();
        let x = p.push(Code::Input(0), from, from);
        let y = p.push(Code::Cast(Arg::Reg(x)), from, DType::F32);
        p.outputs.push(y);
        p
    };
    for (shape, over) in shapes {
        same::<f32>(&mut r, &identity(DType::F32), shape, over);
    }
    for (shape, over) in [shapes[1], shapes[6]] {
        same::<f64>(&mut r, &identity(DType::F64), shape, over);
        same::<half::f16>(&mut r, &identity(DType::F16), shape, over);
        same::<half::f16>(&mut r, &widened(DType::F16), shape, over);
    }
    // Widened in the same launch, or before it.
    for (shape, over) in shapes {
        let narrow = Strided::contiguous(shape, |_| half::f16::from_f64(r.float()));
        let wide = Strided::contiguous(shape, |i| narrow.data[i].to_f32());
        let want = bits(ReduceOp::Sum, &identity(DType::F32), over, &wide);
        assert_eq!(
            bits(ReduceOp::Sum, &widened(DType::F16), over, &narrow),
            want,
            "{shape:?} over {over:?}"
        );
        let double = Strided::contiguous(shape, |i| wide.data[i] as f64);
        assert_eq!(
            bits(ReduceOp::Sum, &widened(DType::F64), over, &double),
            want,
            "{shape:?} over {over:?}"
        );
    }
}

/// (x * y + 0.5).sum(): in one kernel, and over its result in memory.
pub fn fused() {
    let mut p = Program::default();
    let x = p.push(Code::Input(0), DType::F32, DType::F32);
    let y = p.push(Code::Input(1), DType::F32, DType::F32);
    let z = p.push(Code::Binary(BinaryOp::Mul, Arg::Reg(x), Arg::Reg(y)), DType::F32, DType::F32);
    let z = p.push(
        Code::Binary(BinaryOp::Add, Arg::Reg(z), Arg::Scalar(Scalar::Float(0.5))),
        DType::F32,
        DType::F32,
    );
    p.outputs.push(z);
    let mut r = Random(3);
    for (shape, over) in
        [([40, 1000], [false, true]), ([40, 1000], [true, true]), ([1000, 40], [true, false])]
    {
        let x = Strided::contiguous(&shape, |_| r.float() as f32);
        let y = Strided::contiguous(&shape, |_| r.float() as f32);
        let n = shape[0] * shape[1];
        let z = Strided::contiguous(&shape, |i| x.data[i] * y.data[i] + 0.5);
        let mut fused = [Buffer::new(4 * 1000)];
        let mut plain = [Buffer::new(4 * 1000)];
        let at = plan(ReduceOp::Sum, &p, &shape, &over, &[x.operand(), y.operand()]).unwrap();
        run(&at, &mut [x.buffer(), y.buffer()], &mut fused);
        let at = plan(ReduceOp::Sum, &identity(DType::F32), &shape, &over, &[z.operand()]).unwrap();
        run(&at, &mut [z.buffer()], &mut plain);
        assert_eq!(fused[0].get::<u32>(), plain[0].get::<u32>(), "{shape:?} {over:?} {n}");
    }
}
