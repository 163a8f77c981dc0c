//! Every op of every type against the naive evaluator, at every level.

use super::naive::*;
use super::*;

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
                    // With an immediate, or an input that is one number, on either side: the same
                    // bits.
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
                // By hand: the narrow integers saturate from floats (u8 wraps), and wrap from
                // integers.
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
