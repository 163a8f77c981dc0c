//! The executor against a naive evaluator, and against itself: fused, cut, strided, at every level.

use super::*;
use crate::dtype::{Element, Scalar, with_dtype};
use crate::graph::program::{Arg, Code, INSTRS_MAX, Instr, Reg};
use crate::op::{BinaryOp, Class, UnaryOp};
use crate::shape::contiguous_strides;
use crate::view::Serial;
use DType::*;
use half::{bf16, f16};
use std::marker::PhantomData;

/// Elements of any type, aligned, with guards that catch a write past the end.
#[derive(Clone)]
struct Buffer {
    dtype: DType,
    numel: usize,
    lines: Vec<Line>,
}

/// A cache line, as the engine's memory is aligned.
#[derive(Clone, Copy, PartialEq, Debug)]
#[repr(align(64))]
struct Line([u64; 8]);

const GUARD: u64 = 0x5aa5_0ff0_1234_8001;

impl Buffer {
    fn new(dtype: DType, numel: usize) -> Buffer {
        let lines = (numel * dtype.size()).div_ceil(64);
        Buffer { dtype, numel, lines: vec![Line([GUARD; 8]); lines + 1] }
    }
    fn of<T: Element>(values: &[T]) -> Buffer {
        let mut buffer = Buffer::new(T::DTYPE, values.len());
        // SAFETY: there is room for the values.
        unsafe {
            std::ptr::copy_nonoverlapping(values.as_ptr(), buffer.lines.as_mut_ptr().cast(), values.len())
        };
        buffer
    }
    fn get<T: Element>(&self) -> &[T] {
        assert_eq!(T::DTYPE, self.dtype);
        // SAFETY: that many elements of this type were written.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.numel) }
    }
    fn view<'a>(&'a self, shape: &'a [usize], strides: &'a [isize], offset: usize) -> View<'a> {
        let ptr = self.lines.as_ptr().cast::<u8>().wrapping_add(offset * self.dtype.size());
        View { ptr, dtype: self.dtype, shape, strides }
    }
    fn view_mut<'a>(&'a mut self, shape: &'a [usize]) -> ViewMut<'a> {
        ViewMut { ptr: self.lines.as_mut_ptr().cast(), dtype: self.dtype, shape, life: PhantomData }
    }
    /// Equal bits, all NaN being equal: which NaN comes out of `a + b` is the machine's choice.
    fn same(&self, other: &Buffer) -> bool {
        assert_eq!(self.lines.last(), Some(&Line([GUARD; 8])));
        self.dtype == other.dtype
            && self.numel == other.numel
            && with_dtype!(self.dtype, T => {
                let key = |x: &T| {
                    let value = x.to_f64();
                    if value.is_nan() { (1, 0, 0) } else { (0, value.to_bits(), x.to_i64()) }
                };
                self.get::<T>().iter().map(key).eq(other.get::<T>().iter().map(key))
            })
    }
}

/// Runs a program at a level over views, whole or in the given cuts.
fn run_on(
    level: Level,
    program: &Program,
    shape: &[usize],
    inputs: &[View<'_>],
    cuts: &[usize],
) -> Vec<Buffer> {
    let numel = shape.iter().product();
    let mut outputs: Vec<Buffer> =
        program.outputs.iter().map(|&r| Buffer::new(program.dtype(r), numel)).collect();
    let views: Vec<ViewMut<'_>> = outputs.iter_mut().map(|b| b.view_mut(shape)).collect();
    let mut from = 0;
    for &to in cuts.iter().chain([&numel]) {
        run_at(level, program, shape, inputs, &views, from..to);
        from = to;
    }
    drop(views);
    outputs
}

/// A program of one instruction over inputs of the given types.
fn single(dtypes: &[DType], code: impl Fn(&[Arg]) -> Code, on: DType, dtype: DType) -> Program {
    let mut program = Program::default();
    let args: Vec<Arg> =
        dtypes.iter().enumerate().map(|(k, &d)| Arg::Reg(program.push(Code::Input(k as u8), d, d))).collect();
    let r = program.push(code(&args), on, dtype);
    program.outputs.push(r);
    program
}

/// Numbers that tend to go wrong, as far as a type has them.
fn edges<T: Element>() -> Vec<T> {
    let floats = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        -0.5,
        1.5,
        2.5,
        -2.5,
        3.0,
        -3.0,
        7.0,
        20.0,
        21.0,
        88.0,
        -88.0,
        100.0,
        -104.0,
        1e-3,
        1e-8,
        6e-8,
        1e-40,
        -1e-40,
        65504.0,
        65520.0,
        1e5,
        -1e5,
        2147483648.0,
        -2147483649.0,
        1e10,
        1e19,
        -1e19,
        3.4e38,
        1e300,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
        0.1,
        255.0,
        256.0,
        -300.7,
    ];
    let ints = [
        0,
        1,
        -1,
        2,
        -2,
        3,
        5,
        7,
        -7,
        63,
        64,
        100,
        127,
        128,
        255,
        i32::MAX as i64,
        i32::MIN as i64,
        i64::MAX,
        i64::MIN,
    ];
    match T::DTYPE {
        Bool => vec![T::from_i64(0), T::from_i64(1)],
        d if d.is_float() => floats.map(T::from_f64).to_vec(),
        _ => ints.map(T::from_i64).to_vec(),
    }
}

/// Every pair of two lists, as two columns.
fn pairs<T: Copy>(a: &[T]) -> (Vec<T>, Vec<T>) {
    a.iter().flat_map(|&x| a.iter().map(move |&y| (x, y))).unzip()
}

// ---- the naive evaluator: one element, in f64 or i128, rounded to its type at the end ----

fn sigmoid(x: f64) -> f64 {
    if x < 0.0 { x.exp() / (1.0 + x.exp()) } else { 1.0 / (1.0 + (-x).exp()) }
}

/// The exact value of a unary float op.
fn unary_f64(op: UnaryOp, x: f64) -> f64 {
    use UnaryOp::*;
    match op {
        Neg => -x,
        Abs => x.abs(),
        Sign => {
            if x == 0.0 || x.is_nan() {
                0.0
            } else {
                x.signum()
            }
        }
        Square => x * x,
        Relu => {
            if x.is_nan() || x > 0.0 {
                x
            } else {
                0.0
            }
        }
        Sqrt => x.sqrt(),
        Rsqrt => 1.0 / x.sqrt(),
        Recip => 1.0 / x,
        Exp => x.exp(),
        Exp2 => x.exp2(),
        Expm1 => x.exp_m1(),
        Log => x.ln(),
        Log2 => x.log2(),
        Log10 => x.log10(),
        Log1p => x.ln_1p(),
        Sin => x.sin(),
        Cos => x.cos(),
        Tan => x.tan(),
        Asin => x.asin(),
        Acos => x.acos(),
        Atan => x.atan(),
        Sinh => x.sinh(),
        Cosh => x.cosh(),
        Asinh => libm::asinh(x),
        Acosh if x < 1.0 => f64::NAN,
        Acosh => libm::acosh(x),
        Atanh => libm::atanh(x),
        Tanh => x.tanh(),
        Sigmoid => sigmoid(x),
        Silu => x * sigmoid(x),
        Softplus => {
            if x > 20.0 {
                x
            } else {
                x.exp().ln_1p()
            }
        }
        Gelu => x * (0.5 * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2)),
        GeluTanh => x * sigmoid(2.0 * (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)),
        Erf => libm::erf(x),
        Floor => x.floor(),
        Ceil => x.ceil(),
        Round => x.round_ties_even(),
        Trunc => x.trunc(),
        IsNan => x.is_nan() as u8 as f64,
        IsInf => x.is_infinite() as u8 as f64,
        IsFinite => x.is_finite() as u8 as f64,
        LogicalNot => (x == 0.0) as u8 as f64,
    }
}

fn unary_i128(op: UnaryOp, x: i128) -> i128 {
    use UnaryOp::*;
    match op {
        Neg => -x,
        Abs => x.abs(),
        Sign => x.signum(),
        Square => x * x,
        Relu => x.max(0),
        Floor | Ceil | Round | Trunc => x,
        IsNan | IsInf => 0,
        IsFinite => 1,
        LogicalNot => (x == 0) as i128,
        _ => unreachable!(),
    }
}

/// `floor_divide` and `trunc_divide` of floats, which are what their own steps make of them, in single precision or
/// double.
fn whole_quotient(op: BinaryOp, single: bool, a: f64, b: f64) -> f64 {
    let round = |x: f64| if single { x as f32 as f64 } else { x };
    let (q, r) = (round(a / b), a % b);
    match op {
        BinaryOp::TruncDivide => q.trunc(),
        _ if b == 0.0 => q,
        _ => {
            let whole = round(round(a - r) / b);
            let whole = if r != 0.0 && (r < 0.0) != (b < 0.0) { round(whole - 1.0) } else { whole };
            match whole - whole.floor() > 0.5 {
                _ if whole == 0.0 => 0f64.copysign(q),
                above => round(whole.floor() + above as u8 as f64),
            }
        }
    }
}

fn binary_f64(op: BinaryOp, a: f64, b: f64) -> f64 {
    use BinaryOp::*;
    let truth = |t: bool| t as u8 as f64;
    match op {
        Add => a + b,
        Sub => a - b,
        Mul => a * b,
        Div => a / b,
        Pow => a.powf(b),
        Maximum => {
            if a.is_nan() || b.is_nan() {
                f64::NAN
            } else if a > b {
                a
            } else {
                b
            }
        }
        Minimum => {
            if a.is_nan() || b.is_nan() {
                f64::NAN
            } else if a < b {
                a
            } else {
                b
            }
        }
        Atan2 => a.atan2(b),
        Fmod => a % b,
        Remainder => {
            let r = a % b;
            if r != 0.0 && (r < 0.0) != (b < 0.0) { r + b } else { r }
        }
        FloorDivide | TruncDivide => unreachable!("see `whole_quotient`"),
        Eq => truth(a == b),
        Ne => truth(a != b),
        Lt => truth(a < b),
        Le => truth(a <= b),
        Gt => truth(a > b),
        Ge => truth(a >= b),
        LogicalAnd => truth(a != 0.0 && b != 0.0),
        LogicalOr => truth(a != 0.0 || b != 0.0),
        LogicalXor => truth((a != 0.0) != (b != 0.0)),
        BitwiseAnd | BitwiseOr | BitwiseXor => unreachable!(),
    }
}

/// On integers; results wrap when they are stored. `bool` is computed here as well, as 0 and 1.
fn binary_i128(op: BinaryOp, a: i128, b: i128) -> i128 {
    use BinaryOp::*;
    match op {
        Add => a + b,
        Sub => a - b,
        Mul => a * b,
        Pow if b < 0 => match a {
            1 => 1,
            -1 => {
                if b % 2 == 0 {
                    1
                } else {
                    -1
                }
            }
            _ => 0,
        },
        Pow => {
            // Modulo 2^64, of which every narrower integer is a remainder.
            let square = |x: u64| x.wrapping_mul(x);
            let base = a as u64;
            (0..64).rev().fold(1u64, |x, bit| square(x).wrapping_mul(if b >> bit & 1 == 1 { base } else { 1 }))
                as i128
        }
        Maximum => a.max(b),
        Minimum => a.min(b),
        Fmod => {
            if b == 0 {
                0
            } else {
                a % b
            }
        }
        Remainder => {
            if b == 0 {
                0
            } else {
                ((a % b) + b) % b
            }
        }
        FloorDivide => {
            if b == 0 {
                0
            } else {
                a / b - (a % b != 0 && (a < 0) != (b < 0)) as i128
            }
        }
        TruncDivide => {
            if b == 0 {
                0
            } else {
                a / b
            }
        }
        Eq => (a == b) as i128,
        Ne => (a != b) as i128,
        Lt => (a < b) as i128,
        Le => (a <= b) as i128,
        Gt => (a > b) as i128,
        Ge => (a >= b) as i128,
        LogicalAnd => (a != 0 && b != 0) as i128,
        LogicalOr => (a != 0 || b != 0) as i128,
        LogicalXor => ((a != 0) != (b != 0)) as i128,
        BitwiseAnd => a & b,
        BitwiseOr => a | b,
        BitwiseXor => a ^ b,
        Div | Atan2 => unreachable!(),
    }
}

/// Where a result need not be the correctly rounded one.
fn is_elementary(code: Code) -> bool {
    use UnaryOp::*;
    match code {
        Code::Unary(op, _) => op.class() == Class::float && op != Sqrt && op != Recip,
        Code::Binary(op, _, _) => matches!(op, BinaryOp::Pow | BinaryOp::Atan2),
        _ => false,
    }
}

/// A result as a double, rounded as the type rounds; 16-bit types by way of f32, as they are computed.
fn rounded(dtype: DType, x: f64) -> f64 {
    match dtype {
        F64 => x,
        F32 => x as f32 as f64,
        F16 => f16::from_f32(x as f32).to_f64(),
        BF16 => bf16::from_f32(x as f32).to_f64(),
        _ => unreachable!(),
    }
}

/// Whether `got` is the correctly rounded `exact`, or for an elementary function within 3 units of it.
fn agrees(dtype: DType, got: f64, exact: f64, code: Code) -> bool {
    let expected = rounded(dtype, exact);
    if got.to_bits() == expected.to_bits() || (got.is_nan() && expected.is_nan()) {
        return true;
    }
    // The smallest step around the result.
    let (bits, smallest) = match dtype {
        F64 => (52, 5e-324),
        F32 => (23, 1.5e-45),
        F16 => (10, 6e-8),
        _ => (7, 1e-40),
    };
    // `silu` is `x * sigmoid(x)` by definition, and the latter loses bits where it is subnormal.
    let smallest =
        if matches!(code, Code::Unary(UnaryOp::Silu, _)) { 2e-36f64.max(smallest) } else { smallest };
    let unit = (expected.abs() * 2f64.powi(-bits)).max(smallest);
    is_elementary(code) && (got - expected).abs() <= 3.0 * unit
}

fn check<T: Element>(
    what: &str,
    got: &Buffer,
    of: &dyn Fn(usize) -> (f64, i128),
    code: Code,
    describe: &dyn Fn(usize) -> String,
) {
    for i in 0..got.numel {
        let (float, int) = of(i);
        let good = match got.dtype {
            Bool => got.get::<bool>()[i] == if T::DTYPE.is_float() { float != 0.0 } else { int != 0 },
            d if d.is_float() => agrees(d, with_dtype!(d, R => got.get::<R>()[i].to_f64()), float, code),
            d => with_dtype!(d, R => got.get::<R>()[i].to_i64() == R::from_i64(int as i64).to_i64()),
        };
        let value = with_dtype!(got.dtype, R => format!("{:?}", got.get::<R>()[i]));
        assert!(good, "{what} of {}: {value}, not {float:e} or {int}", describe(i));
    }
}

fn takes(class: Class, dtype: DType) -> bool {
    match class {
        Class::float => dtype.is_float(),
        Class::number | Class::real => dtype != Bool,
        Class::bits => !dtype.is_float(),
        _ => true,
    }
}

fn result(class: Class, dtype: DType) -> DType {
    if matches!(class, Class::test | Class::compare | Class::logic) { Bool } else { dtype }
}

#[test]
fn every_unary_op_of_every_type_agrees_with_the_naive_evaluator_at_every_level() {
    for &op in UnaryOp::ALL {
        for dtype in DType::ALL.into_iter().filter(|&d| takes(op.class(), d)) {
            with_dtype!(dtype, T => {
                let x = edges::<T>();
                let program = single(&[dtype], |a| Code::Unary(op, a[0]), dtype, result(op.class(), dtype));
                let (input, shape) = (Buffer::of(&x), [x.len()]);
                for level in Level::available() {
                    let got = run_on(level, &program, &shape, &[input.view(&shape, &[1], 0)], &[]).remove(0);
                    check::<T>(
                        &format!("{} on {dtype} at {level:?}", op.name()), &got,
                        &|i| if dtype.is_float() { (unary_f64(op, x[i].to_f64()), 0) } else { (0.0, unary_i128(op, x[i].to_i64() as i128)) },
                        program.instrs[1].code, &|i| format!("{:?}", x[i]),
                    );
                }
            });
        }
    }
}

#[test]
fn every_binary_op_of_every_type_agrees_with_the_naive_evaluator_at_every_level() {
    for &op in BinaryOp::ALL {
        for dtype in DType::ALL.into_iter().filter(|&d| takes(op.class(), d)) {
            with_dtype!(dtype, T => {
                let (a, b) = pairs(&edges::<T>());
                let shape = [a.len()];
                let out = result(op.class(), dtype);
                let both = single(&[dtype; 2], |x| Code::Binary(op, x[0], x[1]), dtype, out);
                let (left, right) = (Buffer::of(&a), Buffer::of(&b));
                let of = |a: T, b: T| {
                    if matches!(op, BinaryOp::FloorDivide | BinaryOp::TruncDivide) && dtype.is_float() {
                        (whole_quotient(op, dtype != F64, a.to_f64(), b.to_f64()), 0)
                    } else if dtype.is_float() { (binary_f64(op, a.to_f64(), b.to_f64()), 0) }
                    else { (0.0, binary_i128(op, a.to_i64() as i128, b.to_i64() as i128)) }
                };
                for level in Level::available() {
                    let views = [left.view(&shape, &[1], 0), right.view(&shape, &[1], 0)];
                    let got = run_on(level, &both, &shape, &views, &[]).remove(0);
                    let what = format!("{} on {dtype} at {level:?}", op.name());
                    check::<T>(&what, &got, &|i| of(a[i], b[i]), both.instrs[2].code, &|i| format!("{:?}, {:?}", a[i], b[i]));
                    // With an immediate, or an input that is one number, on either side: the same bits.
                    for (i, &y) in a.iter().enumerate().step_by(edges::<T>().len()).chain(b.iter().enumerate().take(edges::<T>().len())) {
                        let scalar = if dtype.is_float() { Scalar::Float(y.to_f64()) } else { Scalar::Int(y.to_i64()) };
                        let first = single(&[dtype], |x| Code::Binary(op, Arg::Scalar(scalar), x[0]), dtype, out);
                        let second = single(&[dtype], |x| Code::Binary(op, x[0], Arg::Scalar(scalar)), dtype, out);
                        let x = Buffer::of(&edges::<T>());
                        let (n, repeated) = ([x.numel], Buffer::of(&vec![y; x.numel]));
                        let (x, ys, one) = (x.view(&n, &[1], 0), repeated.view(&n, &[1], 0), repeated.view(&n, &[0], 0));
                        let expected = run_on(level, &both, &n, &[ys, x], &[]).remove(0);
                        assert!(run_on(level, &first, &n, &[x], &[])[0].same(&expected), "{what}: immediate {y:?} first ({i})");
                        assert!(run_on(level, &both, &n, &[one, x], &[])[0].same(&expected), "{what}: one {y:?} first");
                        let expected = run_on(level, &both, &n, &[x, ys], &[]).remove(0);
                        assert!(run_on(level, &second, &n, &[x], &[])[0].same(&expected), "{what}: immediate {y:?} second");
                        assert!(run_on(level, &both, &n, &[x, one], &[])[0].same(&expected), "{what}: one {y:?} second");
                    }
                }
            });
        }
    }
}

#[test]
fn every_cast_is_rusts_as_at_every_level() {
    for from in DType::ALL {
        for to in DType::ALL {
            with_dtype!(from, A => with_dtype!(to, R => {
                let x = edges::<A>();
                let program = single(&[from], |a| Code::Cast(a[0]), from, to);
                let (input, shape) = (Buffer::of(&x), [x.len()]);
                // By hand: the narrow integers saturate from floats (u8 wraps), and wrap from integers.
                let cast = |x: A| -> R {
                    match (from.is_float(), to) {
                        (true, I32) => R::from_i64(x.to_f64() as i32 as i64),
                        (true, _) => R::from_f64(x.to_f64()),
                        (false, F32) => R::from_f64(x.to_i64() as f32 as f64),
                        (false, _) => R::from_i64(x.to_i64()),
                    }
                };
                let expected = Buffer::of(&x.iter().map(|&x| cast(x)).collect::<Vec<R>>());
                for level in Level::available() {
                    let got = run_on(level, &program, &shape, &[input.view(&shape, &[1], 0)], &[]).remove(0);
                    assert!(got.same(&expected), "{from} to {to} at {level:?}: {:?} not {:?}", got.get::<R>(), expected.get::<R>());
                }
            }));
        }
    }
}

#[test]
fn where_takes_each_side_in_every_type_and_mix_of_immediates() {
    for dtype in DType::ALL {
        with_dtype!(dtype, T => {
            let (c, a): (Vec<bool>, Vec<T>) = [false, true].into_iter().flat_map(|c| edges::<T>().into_iter().map(move |x| (c, x))).unzip();
            let b: Vec<T> = a.iter().rev().copied().collect();
            let shape = [c.len()];
            let buffers = [Buffer::of(&c), Buffer::of(&a), Buffer::of(&b)];
            let views: Vec<View<'_>> = buffers.iter().map(|b| b.view(&shape, &[1], 0)).collect();
            let one = || Arg::Scalar(Scalar::Int(1));
            let zero = || Arg::Scalar(Scalar::Int(0));
            let t = |x: i64| T::from_i64(x);
            for level in Level::available() {
                let run = |code: &dyn Fn(&[Arg]) -> Code| {
                    run_on(level, &single(&[Bool, dtype, dtype], code, dtype, dtype), &shape, &views, &[]).remove(0)
                };
                let expect = |f: &dyn Fn(usize) -> T| Buffer::of(&(0..c.len()).map(f).collect::<Vec<T>>());
                assert!(run(&|x| Code::Where(x[0], x[1], x[2])).same(&expect(&|i| if c[i] { a[i] } else { b[i] })));
                assert!(run(&|x| Code::Where(x[0], one(), x[2])).same(&expect(&|i| if c[i] { t(1) } else { b[i] })));
                assert!(run(&|x| Code::Where(x[0], x[1], one())).same(&expect(&|i| if c[i] { a[i] } else { t(1) })));
                assert!(run(&|x| Code::Where(x[0], one(), zero())).same(&expect(&|i| t(c[i] as i64))));
                assert!(run(&|x| Code::Where(Arg::Scalar(Scalar::Bool(true)), x[1], x[2])).same(&expect(&|i| a[i])));
                assert!(run(&|x| Code::Where(Arg::Scalar(Scalar::Bool(false)), x[1], one())).same(&expect(&|_| t(1))));
            }
        });
    }
}

#[test]
fn arange_and_fill_are_computed_at_their_positions() {
    for dtype in DType::ALL {
        with_dtype!(dtype, T => {
            let float = dtype.is_float();
            let (start, step) = if float { (Scalar::Float(-3.25), Scalar::Float(0.375)) } else { (Scalar::Int(-3), Scalar::Int(2)) };
            let mut program = Program::default();
            let a = program.push(Code::Arange { start, step }, dtype, dtype);
            let b = program.push(Code::Fill(Scalar::Int(1)), dtype, dtype);
            program.outputs.extend([a, b]);
            let got = run_on(level(), &program, &[5, 1000], &[], &[1, 77, 4099]);
            for i in 0..5000 {
                let expected = if float { T::from_f64(-3.25 + 0.375 * i as f64) } else { T::from_i64(-3 + 2 * i as i64) };
                assert_eq!(got[0].get::<T>()[i], expected, "{dtype} {i}");
                assert_eq!(got[1].get::<T>()[i], T::from_i64(1));
            }
        });
    }
}

// ---- random programs ----

struct Seeded(u64);

impl Seeded {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// An input over an iteration shape: a buffer, and how it is read.
struct Input {
    buffer: Buffer,
    strides: Vec<isize>,
    offset: usize,
}

fn random_buffer(rng: &mut Seeded, dtype: DType, numel: usize) -> Buffer {
    with_dtype!(dtype, T => {
        let edges = edges::<T>();
        Buffer::of(&(0..numel).map(|_| match rng.below(4) {
            0 => rng.pick(&edges),
            _ if dtype.is_float() => T::from_f64((rng.next() as i32 as f64) / 3e8),
            _ => T::from_i64(rng.next() as i64 % 50),
        }).collect::<Vec<T>>())
    })
}

/// An input with dimensions that repeat, lie in another order, have gaps or run backwards.
fn random_input(rng: &mut Seeded, dtype: DType, shape: &[usize]) -> Input {
    let mut order: Vec<usize> = (0..shape.len()).collect();
    if rng.below(3) == 0 {
        for i in (1..order.len()).rev() {
            order.swap(i, rng.below(i + 1));
        }
    }
    let plain = rng.below(2) == 0;
    let mut strides = vec![0isize; shape.len()];
    let (mut size, mut offset) = (1usize, 0usize);
    for &d in order.iter().rev() {
        match rng.below(6) {
            0 if !plain => {}
            1 if !plain => {
                strides[d] = -(size as isize);
                offset += size * shape[d].saturating_sub(1);
                size *= shape[d];
            }
            2 if !plain => {
                size += rng.below(3);
                strides[d] = 2 * size as isize;
                size *= 2 * shape[d];
            }
            _ => {
                strides[d] = size as isize;
                size *= shape[d];
            }
        }
    }
    let room = size.max(1) + offset + rng.below(3);
    Input { buffer: random_buffer(rng, dtype, room), strides, offset }
}

/// A program that type-checks, of up to `most` instructions after its inputs.
fn random_program(rng: &mut Seeded, inputs: &[DType], most: usize) -> Program {
    let mut program = Program::default();
    for (k, &d) in inputs.iter().enumerate() {
        program.push(Code::Input(k as u8), d, d);
    }
    while program.instrs.len() < (inputs.len() + most).min(INSTRS_MAX) {
        let any = rng.below(program.instrs.len().max(1)) as Reg;
        let have = |d: DType, rng: &mut Seeded| {
            let of: Vec<Reg> = (0..program.instrs.len() as Reg).filter(|&r| program.dtype(r) == d).collect();
            (!of.is_empty()).then(|| rng.pick(&of))
        };
        let dtype = if program.instrs.is_empty() { F32 } else { program.dtype(any) };
        let scalar = |rng: &mut Seeded| match dtype {
            d if d.is_float() => Arg::Scalar(Scalar::Float(rng.pick(&[2.0, -0.5, 0.0, 1.0, 0.1]))),
            Bool => Arg::Scalar(Scalar::Bool(rng.below(2) == 0)),
            _ => Arg::Scalar(Scalar::Int(rng.pick(&[2, -1, 0, 3]))),
        };
        let a = Arg::Reg(any);
        match rng.below(12) {
            _ if program.instrs.is_empty() => program.push(Code::Fill(Scalar::Float(0.3)), F32, F32),
            0..4 => {
                let op = rng.pick(UnaryOp::ALL);
                if !takes(op.class(), dtype) {
                    continue;
                }
                program.push(Code::Unary(op, a), dtype, result(op.class(), dtype))
            }
            4..8 => {
                let op = rng.pick(BinaryOp::ALL);
                if !takes(op.class(), dtype) {
                    continue;
                }
                let b = match rng.below(3) {
                    0 => scalar(rng),
                    _ => Arg::Reg(have(dtype, rng).unwrap()),
                };
                let (a, b) = if rng.below(2) == 0 { (a, b) } else { (b, a) };
                program.push(Code::Binary(op, a, b), dtype, result(op.class(), dtype))
            }
            8 => {
                let Some(c) = have(Bool, rng) else { continue };
                let b = if rng.below(2) == 0 { scalar(rng) } else { Arg::Reg(have(dtype, rng).unwrap()) };
                let (a, b) = if rng.below(2) == 0 { (a, b) } else { (b, a) };
                program.push(Code::Where(Arg::Reg(c), a, b), dtype, dtype)
            }
            9 => program.push(Code::Cast(a), dtype, rng.pick(&DType::ALL)),
            10 => {
                let to = rng.pick(&DType::ALL);
                let code = if rng.below(2) == 0 {
                    Code::Fill(Scalar::Int(rng.below(9) as i64))
                } else {
                    Code::Arange { start: Scalar::Int(-4), step: Scalar::Int(3) }
                };
                program.push(code, to, to)
            }
            _ => {
                let to = rng.pick(&[F32, F64, F16, BF16]);
                let (seed, offset) = (rng.next(), 4 * (rng.next() / 8));
                let code = if rng.below(2) == 0 {
                    Code::Uniform { seed, offset }
                } else {
                    Code::Normal { seed, offset }
                };
                program.push(code, to, to)
            }
        };
    }
    for r in 0..program.instrs.len() {
        if r + 1 == program.instrs.len() || (rng.below(4) == 0 && program.outputs.len() + 2 < OUTPUTS_MAX) {
            program.outputs.push(r as Reg);
        }
    }
    program
}

fn random_shape(rng: &mut Seeded) -> Vec<usize> {
    match rng.below(8) {
        0 => vec![],
        1 => vec![rng.below(3)],
        2 => vec![1 + rng.below(20_000)],
        3 => vec![1 + rng.below(70), 1 + rng.below(70)],
        4 => vec![1 + rng.below(3), 1 + rng.below(5000)],
        5 => vec![1 + rng.below(9), rng.below(9), 1 + rng.below(9), 1 + rng.below(9)],
        6 => vec![2, 1, 3, 1 + rng.below(4), 2, 1 + rng.below(40), 2],
        _ => vec![1 + rng.below(2000), 1 + rng.below(5)],
    }
}

/// Runs each instruction on its own, every result in memory.
fn unfused(level: Level, program: &Program, shape: &[usize], inputs: &[View<'_>]) -> Vec<Buffer> {
    let strides = contiguous_strides(shape);
    let mut values: Vec<Buffer> = Vec::new();
    for (i, instr) in program.instrs.iter().enumerate() {
        let mut one = Program::default();
        let mut reads: Vec<View<'_>> = Vec::new();
        let mut read = |arg: Arg, one: &mut Program| match arg {
            Arg::Reg(r) => {
                reads.push(values[r as usize].view(shape, &strides, 0));
                let dtype = program.dtype(r);
                Arg::Reg(one.push(Code::Input(reads.len() as u8 - 1), dtype, dtype))
            }
            scalar => scalar,
        };
        let code = match instr.code {
            Code::Unary(op, a) => Code::Unary(op, read(a, &mut one)),
            Code::Cast(a) => Code::Cast(read(a, &mut one)),
            Code::Binary(op, a, b) => Code::Binary(op, read(a, &mut one), read(b, &mut one)),
            Code::Where(a, b, c) => Code::Where(read(a, &mut one), read(b, &mut one), read(c, &mut one)),
            Code::Input(k) => {
                reads.push(inputs[k as usize]);
                Code::Input(0)
            }
            other => other,
        };
        one.instrs.push(Instr { code, ..*instr });
        one.outputs.push(one.instrs.len() as Reg - 1);
        let value = run_on(level, &one, shape, &reads, &[]).remove(0);
        assert_eq!(values.len(), i);
        values.push(value);
    }
    program.outputs.iter().map(|&r| values[r as usize].clone()).collect()
}

#[test]
fn fused_cut_and_single_instructions_give_the_same_bits() {
    for level in Level::available() {
        for seed in 0..400 {
            let mut rng = Seeded(seed);
            let shape = random_shape(&mut rng);
            let dtypes: Vec<DType> = (0..rng.below(5)).map(|_| rng.pick(&DType::ALL)).collect();
            let inputs: Vec<Input> = dtypes.iter().map(|&d| random_input(&mut rng, d, &shape)).collect();
            let views: Vec<View<'_>> =
                inputs.iter().map(|i| i.buffer.view(&shape, &i.strides, i.offset)).collect();
            let most = 1 + rng.below(if seed % 10 == 0 { INSTRS_MAX } else { 12 });
            let program = random_program(&mut rng, &dtypes, most);
            let numel: usize = shape.iter().product();
            let mut cuts: Vec<usize> = (0..rng.below(5)).map(|_| rng.below(numel + 1)).collect();
            cuts.sort();

            let expected = unfused(level, &program, &shape, &views);
            let whole = run_on(level, &program, &shape, &views, &[]);
            let cut = run_on(level, &program, &shape, &views, &cuts);
            for k in 0..expected.len() {
                let same = whole[k].same(&expected[k]) && cut[k].same(&expected[k]);
                assert!(
                    same,
                    "seed {seed}, {level:?}, output {k}, shape {shape:?}, cuts {cuts:?}: {program:?}"
                );
            }
            // Into memory that begins in the middle.
            let from = rng.below(numel + 1);
            let mut parts: Vec<Buffer> = expected.iter().map(|b| Buffer::new(b.dtype, numel - from)).collect();
            let mut pointers: Vec<*mut u8> = parts.iter_mut().map(|b| b.lines.as_mut_ptr().cast()).collect();
            if level == super::level() {
                // SAFETY: each part has room for the rest of the positions.
                unsafe { run_into(&program, &shape, &views, from..numel, &mut pointers) };
                for (part, whole) in parts.iter().zip(&expected) {
                    let rest = with_dtype!(whole.dtype, T => Buffer::of(&whole.get::<T>()[from..]));
                    assert!(part.same(&rest), "seed {seed}, from {from}: {program:?}");
                }
            }
        }
    }
}

#[test]
fn views_are_read_at_their_strides() {
    // An oracle of its own: a copy, element by element, by index arithmetic.
    for seed in 0..500 {
        let mut rng = Seeded(seed);
        let shape = random_shape(&mut rng);
        let dtype = rng.pick(&[F32, F16, F64, U8]);
        let input = random_input(&mut rng, dtype, &shape);
        let numel: usize = shape.iter().product();
        let rows = contiguous_strides(&shape);
        let program = single(&[dtype], |a| Code::Cast(a[0]), dtype, dtype);
        let view = input.buffer.view(&shape, &input.strides, input.offset);
        let got = run_on(level(), &program, &shape, &[view], &[]).remove(0);
        with_dtype!(dtype, T => {
            let expected: Vec<T> = (0..numel).map(|p| {
                let mut at = input.offset as isize;
                for d in 0..shape.len() {
                    at += (p / rows[d] as usize % shape[d]) as isize * input.strides[d];
                }
                input.buffer.get::<T>()[at as usize]
            }).collect();
            assert!(got.same(&Buffer::of(&expected)), "seed {seed}, {shape:?}, {:?}", input.strides);
        });
    }
}

#[test]
fn a_row_that_repeats_is_read_right_after_instructions_that_have_given_their_slots_back() {
    // y = -(|i|) + row, the row read last: it stays in a slot from tile to tile, the others come again.
    let mut program = Program::default();
    let step = Scalar::Float(1.0);
    let i = program.push(Code::Arange { start: Scalar::Float(0.0), step }, F32, F32);
    let a = program.push(Code::Unary(UnaryOp::Abs, Arg::Reg(i)), F32, F32);
    let n = program.push(Code::Unary(UnaryOp::Neg, Arg::Reg(a)), F32, F32);
    let row = program.push(Code::Input(0), F32, F32);
    let y = program.push(Code::Binary(BinaryOp::Add, Arg::Reg(n), Arg::Reg(row)), F32, F32);
    program.outputs.push(y);
    let row = Buffer::of(&(0..128).map(|i| 0.5 * i as f32).collect::<Vec<_>>());
    let shape = [64, 128];
    let got = run_on(level(), &program, &shape, &[row.view(&shape, &[0, 1], 0)], &[]).remove(0);
    for (i, &y) in got.get::<f32>().iter().enumerate() {
        assert_eq!(y, 0.5 * (i % 128) as f32 - i as f32, "at {i}");
    }
}

#[test]
fn a_row_that_is_kept_shares_its_slot_with_nothing_before_it() {
    // s = max(x, y) - 1, z = row + s, over more than one tile: the slot of the maximum is free when the row comes.
    let mut program = Program::default();
    let [x, y] = [0, 1].map(|k| Arg::Reg(program.push(Code::Input(k), F32, F32)));
    let m = Arg::Reg(program.push(Code::Binary(BinaryOp::Maximum, x, y), F32, F32));
    let s = program.push(Code::Binary(BinaryOp::Sub, m, Arg::Scalar(Scalar::Float(1.0))), F32, F32);
    let row = Arg::Reg(program.push(Code::Input(2), F32, F32));
    let z = program.push(Code::Binary(BinaryOp::Add, row, Arg::Reg(s)), F32, F32);
    program.outputs.extend([s, z]);
    let shape = [128, 64];
    let of = |k: usize| (0..128 * 64).map(|i| (i * k % 17) as f32).collect::<Vec<_>>();
    let (x, y, row) = (Buffer::of(&of(3)), Buffer::of(&of(5)), Buffer::of(&of(7)[..64]));
    let views = [x.view(&shape, &[64, 1], 0), y.view(&shape, &[64, 1], 0), row.view(&shape, &[0, 1], 0)];
    let got = run_on(level(), &program, &shape, &views, &[]);
    for i in 0..128 * 64 {
        let s = x.get::<f32>()[i].max(y.get::<f32>()[i]) - 1.0;
        let z = row.get::<f32>()[i % 64] + s;
        assert_eq!((got[0].get::<f32>()[i], got[1].get::<f32>()[i]), (s, z), "{i}");
    }
}

#[test]
fn an_output_may_be_the_memory_of_an_input() {
    // y = x + 1, z = x * y, both outputs; y over x.
    let mut program = Program::default();
    let x = Arg::Reg(program.push(Code::Input(0), F32, F32));
    let y = program.push(Code::Binary(BinaryOp::Add, x, Arg::Scalar(Scalar::Float(1.0))), F32, F32);
    let z = program.push(Code::Binary(BinaryOp::Mul, x, Arg::Reg(y)), F32, F32);
    program.outputs.extend([y, z]);
    let values: Vec<f32> = (0..10_000).map(|i| i as f32).collect();
    let (mut shared, mut other, shape) = (Buffer::of(&values), Buffer::new(F32, values.len()), [values.len()]);
    let out = [shared.view_mut(&shape), other.view_mut(&shape)];
    let input = View { ptr: out[0].ptr, dtype: F32, shape: &shape, strides: &[1] };
    run(&program, &shape, &[input], &out, 0..3000);
    run(&program, &shape, &[input], &out, 3000..10_000);
    drop(out);
    for (i, &x) in values.iter().enumerate() {
        assert_eq!((shared.get::<f32>()[i], other.get::<f32>()[i]), (x + 1.0, x * (x + 1.0)));
    }
}

#[test]
fn every_unary_op_may_overwrite_its_operand() {
    let x: Vec<f32> = edges::<f32>().into_iter().cycle().take(3000).collect();
    for &op in UnaryOp::ALL.iter().filter(|op| op.class() != Class::test) {
        let program = single(&[F32], |a| Code::Unary(op, a[0]), F32, F32);
        for n in [1, 7, 16, 17, 3000] {
            let (input, shape) = (Buffer::of(&x[..n]), [n]);
            for level in Level::available() {
                let expected = run_on(level, &program, &shape, &[input.view(&shape, &[1], 0)], &[]).remove(0);
                let mut shared = input.clone();
                let out = [shared.view_mut(&shape)];
                let view = View { ptr: out[0].ptr, dtype: F32, shape: &shape, strides: &[1] };
                run_at(level, &program, &shape, &[view], &out, 0..n);
                drop(out);
                assert!(shared.same(&expected), "{} of {n} at {level:?}", op.name());
            }
        }
    }
}

#[test]
fn outputs_beyond_the_caches_are_streamed_and_right() {
    let n = STREAM_FROM.max(32 << 20) / 4 + 4099;
    let program =
        single(&[F32], |a| Code::Binary(BinaryOp::Add, a[0], Arg::Scalar(Scalar::Float(0.5))), F32, F32);
    let input = Buffer::of(&(0..n).map(|i| i as f32).collect::<Vec<f32>>());
    let shape = [n];
    let got = run_on(level(), &program, &shape, &[input.view(&shape, &[1], 0)], &[1, 77, 5_000_001]).remove(0);
    assert!(got.same(&Buffer::of(&(0..n).map(|i| i as f32 + 0.5).collect::<Vec<f32>>())));
}

#[test]
fn parts_on_several_threads_make_the_whole() {
    struct Scoped;
    impl Parallel for Scoped {
        fn threads(&self) -> usize {
            3
        }
        fn run(&self, parts: usize, part: &(dyn Fn(usize) + Sync)) {
            assert!(parts > 1);
            std::thread::scope(|s| (0..parts).for_each(|i| drop(s.spawn(move || part(i)))));
        }
    }
    let program = single(&[F32, F32], |a| Code::Binary(BinaryOp::Atan2, a[0], a[1]), F32, F32);
    let mut rng = Seeded(5);
    let shape = [300, 1001];
    let (a, b) = (random_input(&mut rng, F32, &shape), random_buffer(&mut rng, F32, 1001));
    let views = [a.buffer.view(&shape, &a.strides, a.offset), b.view(&shape, &[0, 1], 0)];
    let mut outputs = [Buffer::new(F32, 300 * 1001), Buffer::new(F32, 300 * 1001)];
    let [one, many] = &mut outputs;
    run_parallel(&program, &shape, &views, &[one.view_mut(&shape)], &Serial);
    run_parallel(&program, &shape, &views, &[many.view_mut(&shape)], &Scoped);
    assert!(outputs[0].same(&outputs[1]));
}

#[test]
fn a_longer_program_over_more_elements_is_thought_to_take_longer() {
    let short = single(&[F32], |a| Code::Unary(UnaryOp::Neg, a[0]), F32, F32);
    let long = single(&[F32], |a| Code::Unary(UnaryOp::Erf, a[0]), F32, F32);
    assert!(program_ns(&short, 2) < 1000);
    assert!(program_ns(&short, 1 << 20) < program_ns(&long, 1 << 20));
    assert!(program_ns(&short, 1 << 10) < program_ns(&short, 1 << 20));
}
