//! Every op of every type against the naive evaluator, at every level.

use super::naive::*;
use super::*;
use crate::host::kernels::elementwise::moves::narrow;
use crate::host::kernels::math::{narrow_bf16, narrow_f16};
use crate::op::exact::*;

#[test]
fn every_unary_op_of_every_type_agrees_with_the_naive_evaluator_at_every_level() {
    for &op in UnaryOp::ALL {
        for dtype in DType::ALL.into_iter().filter(|&d| op.class().takes(d)) {
            with_dtype!(dtype, T => check_unary::<T>(op, dtype));
        }
    }
}

fn check_unary<T: Element>(op: UnaryOp, dtype: DType) {
    let x = edges::<T>();
    let out = op.class().result(dtype);
    let program = single(&[dtype], |a| Code::Unary(op, a[0]), dtype, out);
    let (input, shape) = (Buffer::of(&x), [x.len()]);
    let expected = |i: usize| match dtype.is_float() {
        true => (exact_unary(op, x[i].to_f64()), 0),
        false => (0.0, whole_unary(op, x[i].to_i64() as i128)),
    };
    for level in Level::available() {
        let view = input.view(&shape, &[1], 0);
        let got = run_on(level, &program, &shape, &[view], &[]).remove(0);
        let what = format!("{} on {dtype} at {level:?}", op.name());
        check::<T>(&what, &got, &expected, program.instrs[1].code, &|i| format!("{:?}", x[i]));
    }
}

#[test]
fn every_binary_op_of_every_type_agrees_with_the_naive_evaluator_at_every_level() {
    for &op in BinaryOp::ALL {
        for dtype in DType::ALL.into_iter().filter(|&d| op.class().takes(d)) {
            with_dtype!(dtype, T => check_binary::<T>(op, dtype));
        }
    }
}

fn check_binary<T: Element>(op: BinaryOp, dtype: DType) {
    let (a, b) = pairs(&edges::<T>());
    let shape = [a.len()];
    let both = binary_program(op, dtype);
    let (left, right) = (Buffer::of(&a), Buffer::of(&b));
    let divides = matches!(op, BinaryOp::FloorDivide | BinaryOp::TruncDivide);
    let expected = |i: usize| match dtype.is_float() {
        true if divides => (whole_quotient(op, dtype != F64, a[i].to_f64(), b[i].to_f64()), 0),
        true => (exact_binary(op, a[i].to_f64(), b[i].to_f64()), 0),
        false => (0.0, whole_binary(op, a[i].to_i64() as i128, b[i].to_i64() as i128)),
    };
    let describe = |i: usize| format!("{:?}, {:?}", a[i], b[i]);
    let edges = edges::<T>().len();
    for level in Level::available() {
        let views = [left.view(&shape, &[1], 0), right.view(&shape, &[1], 0)];
        let got = run_on(level, &both, &shape, &views, &[]).remove(0);
        let what = format!("{} on {dtype} at {level:?}", op.name());
        check::<T>(&what, &got, &expected, both.instrs[2].code, &describe);
        for &y in a.iter().step_by(edges).chain(b.iter().take(edges)) {
            check_with_number(level, op, dtype, &what, y);
        }
    }
}

/// The program of a binary op over two inputs of one type.
fn binary_program(op: BinaryOp, dtype: DType) -> Program {
    single(&[dtype; 2], |x| Code::Binary(op, x[0], x[1]), dtype, op.class().result(dtype))
}

/// With an immediate, or an input that is one number, on either side: the same bits.
fn check_with_number<T: Element>(level: Level, op: BinaryOp, dtype: DType, what: &str, y: T) {
    let number = Arg::Scalar(match dtype.is_float() {
        true => Scalar::Float(y.to_f64()),
        false => Scalar::Int(y.to_i64()),
    });
    let out = op.class().result(dtype);
    let both = binary_program(op, dtype);
    let first = single(&[dtype], |x| Code::Binary(op, number, x[0]), dtype, out);
    let second = single(&[dtype], |x| Code::Binary(op, x[0], number), dtype, out);
    let x = Buffer::of(&edges::<T>());
    let (n, repeated) = ([x.numel], Buffer::of(&vec![y; x.numel]));
    let (x, ys) = (x.view(&n, &[1], 0), repeated.view(&n, &[1], 0));
    let one = repeated.view(&n, &[0], 0);
    let run =
        |program: &Program, inputs: &[View<'_>]| run_on(level, program, &n, inputs, &[]).remove(0);
    let expected = run(&both, &[ys, x]);
    assert!(run(&first, &[x]).same(&expected), "{what}: immediate {y:?} first");
    assert!(run(&both, &[one, x]).same(&expected), "{what}: one {y:?} first");
    let expected = run(&both, &[x, ys]);
    assert!(run(&second, &[x]).same(&expected), "{what}: immediate {y:?} second");
    assert!(run(&both, &[x, one]).same(&expected), "{what}: one {y:?} second");
}

#[test]
fn every_cast_is_rusts_as_at_every_level() {
    for from in DType::ALL {
        for to in DType::ALL {
            with_any_dtype!(from, A => with_any_dtype!(to, R => check_cast::<A, R>(from, to)));
        }
    }
}

fn check_cast<A: Element, R: Element>(from: DType, to: DType) {
    let x = edges::<A>();
    let program = single(&[from], |a| Code::Cast(a[0]), from, to);
    let (input, shape) = (Buffer::of(&x), [x.len()]);
    // By hand: int32 saturates from floats, narrower integers wrap, and all wrap from integers.
    let cast = |x: A| -> R {
        match (from.is_differentiable(), to) {
            (true, I32) => R::from_i64(x.to_f64() as i32 as i64),
            (true, _) => R::from_f64(x.to_f64()),
            (false, F32) if from == U64 => R::from_f64(x.to_i64() as u64 as f32 as f64),
            (false, F32) => R::from_f64(x.to_i64() as f32 as f64),
            (false, to) if to.is_differentiable() => R::from_f64(x.to_f64()),
            (false, _) => R::from_i64(x.to_i64()),
        }
    };
    let expected = Buffer::of(&x.iter().map(|&x| cast(x)).collect::<Vec<R>>());
    for level in Level::available() {
        let view = input.view(&shape, &[1], 0);
        let got = run_on(level, &program, &shape, &[view], &[]).remove(0);
        let (found, wanted) = (got.get::<R>(), expected.get::<R>());
        assert!(got.same(&expected), "{from} to {to} at {level:?}: {found:?} not {wanted:?}");
    }
}

#[test]
fn where_takes_each_side_in_every_type_and_mix_of_immediates() {
    for dtype in DType::ALL {
        with_any_dtype!(dtype, T => check_where::<T>(dtype));
    }
}

fn check_where<T: Element>(dtype: DType) {
    let of_both = |c: bool| edges::<T>().into_iter().map(move |x| (c, x));
    let (c, a): (Vec<bool>, Vec<T>) = [false, true].into_iter().flat_map(of_both).unzip();
    let b: Vec<T> = a.iter().rev().copied().collect();
    let shape = [c.len()];
    let buffers = [Buffer::of(&c), Buffer::of(&a), Buffer::of(&b)];
    let views: Vec<View<'_>> = buffers.iter().map(|b| b.view(&shape, &[1], 0)).collect();
    let one = || Arg::Scalar(Scalar::Int(1));
    let zero = || Arg::Scalar(Scalar::Int(0));
    let always = |is: bool| Arg::Scalar(Scalar::Bool(is));
    let t = |x: i64| T::from_i64(x);
    for level in Level::available() {
        let agree = |code: &dyn Fn(&[Arg]) -> Code, expected: &dyn Fn(usize) -> T| {
            let program = single(&[Bool, dtype, dtype], code, dtype, dtype);
            let got = run_on(level, &program, &shape, &views, &[]).remove(0);
            got.same(&Buffer::of(&(0..c.len()).map(expected).collect::<Vec<T>>()))
        };
        let either = |i: usize, a: T, b: T| if c[i] { a } else { b };
        assert!(agree(&|x| Code::Where(x[0], x[1], x[2]), &|i| either(i, a[i], b[i])));
        assert!(agree(&|x| Code::Where(x[0], one(), x[2]), &|i| either(i, t(1), b[i])));
        assert!(agree(&|x| Code::Where(x[0], x[1], one()), &|i| either(i, a[i], t(1))));
        assert!(agree(&|x| Code::Where(x[0], one(), zero()), &|i| t(c[i] as i64)));
        assert!(agree(&|x| Code::Where(always(true), x[1], x[2]), &|i| a[i]));
        assert!(agree(&|x| Code::Where(always(false), x[1], one()), &|_| t(1)));
    }
}

#[test]
fn arange_and_fill_are_computed_at_their_positions() {
    for dtype in DType::ARITHMETIC {
        with_dtype!(dtype, T => check_arange_and_fill::<T>(dtype));
    }
}

fn check_arange_and_fill<T: Element>(dtype: DType) {
    let (start, step) = match dtype.is_float() {
        true => (Scalar::Float(-3.25), Scalar::Float(0.375)),
        false => (Scalar::Int(-3), Scalar::Int(2)),
    };
    let expected = |i: usize| match dtype.is_float() {
        true => T::from_f64(-3.25 + 0.375 * i as f64),
        false => T::from_i64(-3 + 2 * i as i64),
    };
    let mut program = Program::default();
    let a = program.push(Code::Arange { start, step }, dtype, dtype);
    let b = program.push(Code::Fill(Scalar::Int(1)), dtype, dtype);
    program.outputs.extend([a, b]);
    let got = run_on(level(), &program, &[5, 1000], &[], &[1, 77, 4099]);
    for i in 0..5000 {
        assert_eq!(got[0].get::<T>()[i], expected(i), "{dtype} {i}");
        assert_eq!(got[1].get::<T>()[i], T::from_i64(1));
    }
}

#[test]
fn ops_on_16_bit_floats_have_the_same_bits_alone_and_in_a_plan() {
    for dtype in [F16, BF16] {
        let bits: Vec<u16> = (0..=u16::MAX).step_by(7).collect();
        let turned: Vec<u16> = bits.iter().map(|x| x.wrapping_mul(40_503)).collect();
        let [a, b] = [bits, turned].map(|bits| {
            let mut halves = Buffer::new(dtype, bits.len());
            // SAFETY: there is room for as many elements of 16 bits.
            unsafe {
                let to = halves.lines.as_mut_ptr().cast();
                std::ptr::copy_nonoverlapping(bits.as_ptr(), to, bits.len());
            }
            halves
        });
        let shape = [a.numel];
        let check = |name: &str, program: Program| {
            let views = [a.view(&shape, &[1], 0), b.view(&shape, &[1], 0)];
            let mut planned = program.clone();
            planned.outputs.push(0); // two outputs are not one loop
            for level in Level::available() {
                let views = &views[..program.instrs.len() - 1];
                let alone = run_on(level, &program, &shape, views, &[]).remove(0);
                let expected = run_on(level, &planned, &shape, views, &[]).remove(0);
                assert!(alone.same(&expected), "{name} of {dtype} at {level:?}");
            }
        };
        for &op in UnaryOp::ALL.iter().filter(|op| op.class().takes(dtype)) {
            let code = |x: &[Arg]| Code::Unary(op, x[0]);
            check(op.name(), single(&[dtype], code, dtype, op.class().result(dtype)));
        }
        for &op in BinaryOp::ALL.iter().filter(|op| op.class().takes(dtype)) {
            check(op.name(), binary_program(op, dtype));
        }
    }
}

#[test]
fn floats_narrow_to_the_same_bits_at_each_level_and_wherever_they_lie() {
    let near = |bits: u32| [bits, bits & 0xffff_f000, bits & 0xffff_f000 | 1, bits & 0xffff_8000];
    let nan = [0x7f80_0001, 0xffff_ffff, 0x7fc0_0000, 0xff81_2345];
    let all: Vec<f32> = nan
        .into_iter()
        .chain((0..=u32::MAX).step_by(39_989).flat_map(near))
        .map(f32::from_bits)
        .collect();
    for level in Level::available() {
        for n in [all.len(), 31, 16, 15] {
            for (dtype, expected) in [(F16, narrow_f16 as fn(f32) -> u16), (BF16, narrow_bf16)] {
                let mut got = vec![0u16; n];
                // SAFETY: there are n floats, and room for n results; the machine has the level.
                unsafe {
                    let (to, from) = (got.as_mut_ptr().cast(), all.as_ptr().cast());
                    narrow(level, dtype)(to, from, from, from, n);
                }
                for (x, bits) in all.iter().zip(got) {
                    assert_eq!(bits, expected(*x), "{:#x} at {level:?}", x.to_bits());
                }
            }
        }
    }
}

#[test]
fn remainders_are_exact_however_large_the_quotient() {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 32) as u32
    };
    // Any two floats, and two within 2^16 of each other.
    let near =
        |bits: u32| f32::from_bits((bits & 0x8000_0000) | (0x3c00_0000 + bits % 0x0800_0000));
    let pairs = (0..20_003).map(|i| match i % 2 {
        0 => (f32::from_bits(next()), f32::from_bits(next())),
        _ => (near(next()), near(next())),
    });
    let (a, b): (Vec<f32>, Vec<f32>) = pairs.unzip();
    let expected: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a % b).collect();
    for level in Level::available() {
        let run = loops::binary(level, BinaryOp::Fmod, rep::Rep::F32, (false, false));
        let mut y = vec![0f32; a.len()];
        let mut own = a.clone();
        let (left, right) = (a.as_ptr().cast(), b.as_ptr().cast());
        // SAFETY: the level is available, and all arrays are as long.
        unsafe {
            run(y.as_mut_ptr().cast(), left, right, std::ptr::null(), a.len());
            let place = own.as_mut_ptr().cast();
            run(place, place, right, std::ptr::null(), a.len());
        }
        for i in 0..a.len() {
            let same = |y: f32| {
                y.to_bits() == expected[i].to_bits() || (y.is_nan() && expected[i].is_nan())
            };
            assert!(same(y[i]), "{} of {} at {level:?}: {}", a[i], b[i], y[i]);
            assert!(same(own[i]), "{} of {} in place at {level:?}: {}", a[i], b[i], own[i]);
        }
    }
}
