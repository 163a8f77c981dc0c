//! Every op of the table, every cast and the random numbers.
//!
//! What is one IEEE operation is compared bit by bit; elementary functions with f64 ones. The
//! host's library stands in for the device's there, so this proves the expressions, not the
//! device's functions.

use super::reference::{bound, ulps};
use super::{Random, Strided};
use crate::catalogue::{binary, cast, source, types, unary};
use crate::cuda::kernels::elementwise::plan;
use crate::dtype::{DType, Element, with_any_dtype, with_dtype};
use crate::graph::program::Code;
use crate::host::kernels::{random, simd::Level};
use crate::on_host::{Batch, Buffer};
use crate::op::exact::{exact_binary, exact_unary, whole_binary, whole_quotient, whole_unary};
use crate::op::{BinaryOp, Class, Rounds, UnaryOp};
use half::{bf16, f16};

/// Edge values and random ones of a type.
fn values<T: Element>(r: &mut Random, n: usize) -> Vec<T> {
    let edges = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        -0.5,
        1.5,
        2.5,
        -2.5,
        2.0,
        3.0,
        -3.0,
        7.0,
        20.0,
        21.0,
        88.0,
        -88.0,
        89.0,
        -104.0,
        1e-3,
        -1e-3,
        1e-30,
        -1e-30,
        1e-40,
        6e-8,
        1e4,
        -1e4,
        65504.0,
        65520.0,
        3e38,
        -3e38,
        1e300,
        -1e-300,
        255.0,
        256.0,
        2147483647.0,
        -2147483648.0,
        4e9,
        -4e9,
        9.3e18,
        -9.3e18,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
    ];
    let whole = [
        0,
        1,
        2,
        3,
        5,
        127,
        128,
        255,
        256,
        -1,
        -2,
        -7,
        -128,
        i32::MAX as i64,
        i32::MIN as i64,
        i64::MAX,
        i64::MIN,
    ];
    (0..n)
        .map(|i| match (T::DTYPE.is_float(), i % 3) {
            (true, 0) => T::from_f64(*r.pick(&edges)),
            (true, 1) => T::from_f64(10.0 * r.float()),
            (true, _) => T::from_f64(r.float() * 2f64.powi(r.below(40) as i32 - 30)),
            (false, 0) => T::from_i64(*r.pick(&whole)),
            (false, 1) => T::from_i64(r.below(20) as i64 - 10),
            (false, _) => T::from_i64(r.next() as i64),
        })
        .collect()
}

/// Compares a float result: `want` is in f64.
fn check_float<T: Element>(name: &str, rounds: Rounds, got: f64, want: f64, args: &[f64]) {
    let rounded = T::from_f64(want).to_f64();
    if got == rounded || (got.is_nan() && rounded.is_nan()) {
        return;
    }
    // Halves are computed in float, within its bound, and rounded: at a tie one unit of theirs.
    let most = if T::DTYPE.size() == 2 { 1.0 } else { bound(name, rounds, T::DTYPE) };
    let off = match rounds {
        Rounds::cancels => ulps::<T>(1.0 + got - want, 1.0).min(ulps::<T>(got, want)),
        Rounds::never | Rounds::once | Rounds::more => ulps::<T>(got, want),
    };
    assert!(off <= most, "{name} of {args:?} in {}: {got:e} is not {want:e} ({off} ulp)", T::DTYPE);
}

fn run_unary<T: Element>(b: &mut Batch<'_>, r: &mut Random, op: UnaryOp) {
    let n = 700;
    let x = values::<T>(r, n);
    let test = op.class() == Class::test;
    let v = Strided::contiguous(&[n], |i| x[i]);
    let plan = plan(&unary(op, T::DTYPE), &[n], &[v.operand()], 16);
    let size = if test { 1 } else { size_of::<T>() };
    b.add(plan, [v.buffer()], [Buffer::new(n * size)], move |out, _| {
        for (i, &x) in x.iter().enumerate() {
            let got =
                if test { out[0].get::<u8>()[i] as f64 } else { out[0].get::<T>()[i].to_f64() };
            if T::DTYPE.is_float() {
                let want = match op {
                    // By definition a product of rounded numbers, which shows where the sigmoid is
                    // subnormal.
                    UnaryOp::Silu if T::DTYPE.size() > 2 => {
                        x.to_f64() * T::from_f64(exact_unary(UnaryOp::Sigmoid, x.to_f64())).to_f64()
                    }
                    _ => exact_unary(op, x.to_f64()),
                };
                check_float::<T>(op.name(), op.rounds(), got, want, &[x.to_f64()]);
            } else {
                let want = whole_unary(op, x.to_i64() as i128);
                let want = if test { want as f64 } else { T::from_i64(want as i64).to_f64() };
                assert_eq!(got, want, "{} of {x:?}", op.name());
            }
        }
    });
}

fn run_binary<T: Element>(b: &mut Batch<'_>, r: &mut Random, op: BinaryOp) {
    use BinaryOp::*;
    let n = 700;
    let x: (Vec<T>, Vec<T>) = (values(r, n), values(r, n));
    let test = matches!(op.class(), Class::compare | Class::logic);
    let v = [Strided::contiguous(&[n], |i| x.0[i]), Strided::contiguous(&[n], |i| x.1[i])];
    let plan = plan(&binary(op, T::DTYPE), &[n], &[v[0].operand(), v[1].operand()], 16);
    let size = if test { 1 } else { size_of::<T>() };
    b.add(plan, v.each_ref().map(Strided::buffer), [Buffer::new(n * size)], move |out, _| {
        for (i, (&x, &y)) in x.0.iter().zip(&x.1).enumerate() {
            let got =
                if test { out[0].get::<u8>()[i] as f64 } else { out[0].get::<T>()[i].to_f64() };
            let args = [x.to_f64(), y.to_f64()];
            if T::DTYPE.is_float() {
                // The remainder of single precision is that of its own two steps.
                let want = match op {
                    FloorDivide | TruncDivide => {
                        whole_quotient(op, T::DTYPE != DType::F64, args[0], args[1])
                    }
                    _ => exact_binary(op, args[0], args[1]),
                };
                check_float::<T>(op.name(), op.rounds(), got, want, &args);
            } else {
                let want = whole_binary(op, x.to_i64() as i128, y.to_i64() as i128);
                let want = if test { want as f64 } else { T::from_i64(want as i64).to_f64() };
                assert_eq!(got, want, "{} of {x:?}, {y:?}", op.name());
            }
        }
    });
}

pub fn unaries() {
    let mut r = Random(71);
    let mut b = Batch::default();
    for &op in UnaryOp::ALL {
        for &dtype in types(op.class()).iter().filter(|&&d| d != DType::Bool) {
            with_dtype!(dtype, T => run_unary::<T>(&mut b, &mut r, op));
        }
    }
    b.run();
}

pub fn binaries() {
    let mut r = Random(72);
    let mut b = Batch::default();
    for &op in BinaryOp::ALL {
        for &dtype in types(op.class()).iter().filter(|&&d| d != DType::Bool) {
            with_dtype!(dtype, T => run_binary::<T>(&mut b, &mut r, op));
        }
    }
    b.run();
}

/// On bool: add is or, mul is and, the rest as of 0 and 1.
pub fn bools() {
    let mut b = Batch::default();
    let (x, y) = ([false, false, true, true], [false, true, false, true]);
    for &op in BinaryOp::ALL.iter().filter(|op| types(op.class()).contains(&DType::Bool)) {
        let v = [Strided::contiguous(&[4], |i| x[i]), Strided::contiguous(&[4], |i| y[i])];
        let plan = plan(&binary(op, DType::Bool), &[4], &[v[0].operand(), v[1].operand()], 16);
        b.add(plan, v.each_ref().map(Strided::buffer), [Buffer::new(4)], move |out, _| {
            let want = |i: usize| match op {
                BinaryOp::Add => x[i] | y[i],
                BinaryOp::Mul => x[i] & y[i],
                _ => whole_binary(op, x[i] as i128, y[i] as i128) != 0,
            };
            assert_eq!(
                out[0].get::<u8>(),
                (0..4).map(|i| want(i) as u8).collect::<Vec<_>>(),
                "{}",
                op.name()
            );
        });
    }
    b.run();
}

fn run_cast<A: Element, B: Element>(b: &mut Batch<'_>, r: &mut Random) {
    let n = 700;
    let x: Vec<A> = values(r, n);
    let v = Strided::contiguous(&[n], |i| x[i]);
    let plan = plan(&cast(A::DTYPE, B::DTYPE), &[n], &[v.operand()], 16);
    b.add(plan, [v.buffer()], [Buffer::new(n * size_of::<B>())], move |out, _| {
        for (i, (&x, got)) in x.iter().zip(out[0].get::<B>()).enumerate() {
            // As Rust's `as`: to i32 a float saturates there, to u8 by way of i64.
            let want = match (A::DTYPE.is_differentiable(), B::DTYPE) {
                (true, DType::I32) => B::from_i64(x.to_f64() as i32 as i64),
                (true, _) => B::from_f64(x.to_f64()),
                (false, DType::F32) if A::DTYPE == DType::U64 => {
                    B::from_f64((x.to_i64() as u64 as f32).into())
                }
                (false, to) if A::DTYPE == DType::U64 && to.is_differentiable() => {
                    B::from_f64(x.to_f64())
                }
                (false, _) => B::from_i64(x.to_i64()),
            };
            let same = got == want || (got.to_f64().is_nan() && want.to_f64().is_nan());
            assert!(same, "{x:?} from {} to {} is {got:?}, not {want:?} ({i})", A::DTYPE, B::DTYPE);
        }
    });
}

pub fn casts() {
    let mut r = Random(73);
    let mut b = Batch::default();
    for from in DType::ALL {
        for to in DType::ALL {
            with_any_dtype!(from, A => with_any_dtype!(to, B => run_cast::<A, B>(&mut b, &mut r)));
        }
    }
    b.run();
}

/// The CPU's own generator at its baseline level.
fn on_cpu<C: Copy + Default>(
    is_normal: bool,
    dtype: DType,
    seed: u64,
    offset: u64,
    n: usize,
) -> Vec<C> {
    let mut out = vec![C::default(); n];
    let f = if is_normal { random::normal } else { random::uniform };
    // SAFETY: n elements, double where the dtype is, else float.
    unsafe { f(Level::Baseline, dtype, seed, offset, 0, out.as_mut_ptr().cast(), n) };
    out
}

pub fn randoms() {
    let (seed, offset) = (0x0123_4567_89ab_cdef, 4 * 1_000_003);
    let mut b = Batch::default();
    for n in [1, 2, 3, 5, 1000, 1023] {
        for is_normal in [false, true] {
            for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
                let code = if is_normal {
                    Code::Normal { seed, offset }
                } else {
                    Code::Uniform { seed, offset }
                };
                let plan = plan(&source(code, dtype), &[n], &[], 16);
                b.add(plan, [], [Buffer::new(n * dtype.size())], move |out, _| {
                    let what = format!("{n} {dtype} normal {is_normal}");
                    let float = || on_cpu::<f32>(is_normal, dtype, seed, offset, n);
                    match dtype {
                        DType::F32 => assert_eq!(out[0].get::<f32>(), float(), "{what}"),
                        DType::F16 => {
                            let want: Vec<f16> = float().into_iter().map(f16::from_f32).collect();
                            assert_eq!(out[0].get::<f16>(), want, "{what}");
                        }
                        DType::BF16 => {
                            let want: Vec<bf16> = float().into_iter().map(bf16::from_f32).collect();
                            assert_eq!(out[0].get::<bf16>(), want, "{what}");
                        }
                        _ => {
                            // Sine, cosine and logarithm of doubles are the platform's.
                            let want = on_cpu::<f64>(is_normal, dtype, seed, offset, n);
                            for (got, want) in out[0].get::<f64>().into_iter().zip(want) {
                                let most = if is_normal { 4.0 } else { 0.0 };
                                assert!(ulps::<f64>(got, want) <= most, "{what}: {got} {want}");
                            }
                        }
                    }
                });
            }
        }
    }
    b.run();
}
