//! What is looked up has the bits of what is computed.

use super::fused::random_program;
use super::*;
use crate::host::kernels::simd::FORCED;
use crate::host::kernels::testing::{Rng, Threads};
use crate::op::Cost::{double, function, long};

/// The program by tables, asked for until it is remembered: other tests ask as well.
fn tabled(level: Level, program: &Program, inputs: &[View<'_>]) -> Option<Tabled> {
    (0..5).find_map(|_| tabled::tabled(level, program, inputs))
}

/// Computes by tables.
fn looked_up(level: Level, by: &Tabled, shape: &[usize], inputs: &[View<'_>]) -> Vec<Buffer> {
    let numel = shape.iter().product();
    let Tabled { program, read, lookups } = by;
    let inputs: Vec<View<'_>> = read.iter().map(|&k| inputs[k as usize]).collect();
    let mut outputs: Vec<Buffer> =
        program.outputs.iter().map(|&r| Buffer::new(program.dtype(r), numel)).collect();
    let views: Vec<ViewMut<'_>> = outputs.iter_mut().map(|b| b.view_mut(shape)).collect();
    let cut = numel / 3;
    run(level, program, lookups, shape, &inputs, &views, 0..cut);
    run(level, program, lookups, shape, &inputs, &views, cut..numel);
    drop(views);
    outputs
}

fn all<T: Element>(of: impl Fn(u16) -> T) -> Buffer {
    Buffer::of(&(0..=u16::MAX).map(of).collect::<Vec<T>>())
}

#[test]
fn each_function_of_all_halves_is_looked_up_with_its_bits_at_every_level() {
    let shape = [1 << 16];
    for (half, x) in [(F16, all(f16::from_bits)), (BF16, all(bf16::from_bits))] {
        let views = [x.view(&shape, &[1], 0)];
        for &op in UnaryOp::ALL.iter().filter(|op| op.class() == Class::float) {
            for to in [half, F32] {
                let mut program = Program::default();
                let x = program.push(Code::Input(0), half, half);
                let wide = program.push(Code::Cast(Arg::Reg(x)), half, F32);
                let y = program.push(Code::Unary(op, Arg::Reg(wide)), F32, F32);
                let y = if to == F32 { y } else { program.push(Code::Cast(Arg::Reg(y)), F32, to) };
                program.outputs.push(y);
                for level in Level::available() {
                    let expected = run_on(level, &program, &shape, &views, &[]);
                    let Some(by) = tabled(level, &program, &views) else {
                        let is_long = matches!(op.cost(), function | long | double);
                        assert!(!is_long, "{} has no table", op.name());
                        continue;
                    };
                    assert_eq!(by.program.instrs.len(), 2, "{by:?}");
                    let got = looked_up(level, &by, &shape, &views);
                    assert!(got[0].same(&expected[0]), "{} of {half:?} at {level:?}", op.name());
                }
            }
        }
    }
}

#[test]
fn what_is_looked_up_is_multiplied_by_halves_in_the_same_loop() {
    let n = 1 << 16;
    let shape = [n];
    let mut rng = Seeded(96);
    for (half, x) in [(F16, all(f16::from_bits)), (BF16, all(bf16::from_bits))] {
        let g = random_input(&mut rng, half, &shape);
        for (turned, strides) in [(false, [1]), (true, [1]), (false, [0])] {
            let mut program = Program::default();
            let [x_reg, g_reg] = [0, 1].map(|k| program.push(Code::Input(k), half, half));
            let [wide, by] =
                [x_reg, g_reg].map(|r| Arg::Reg(program.push(Code::Cast(Arg::Reg(r)), half, F32)));
            let y = Arg::Reg(program.push(Code::Unary(UnaryOp::Tanh, wide), F32, F32));
            let (a, b) = if turned { (by, y) } else { (y, by) };
            let product = program.push(Code::Binary(BinaryOp::Mul, a, b), F32, F32);
            let last = program.push(Code::Cast(Arg::Reg(product)), F32, half);
            program.outputs.push(last);
            let views = [x.view(&shape, &[1], 0), g.buffer.view(&shape, &strides, 0)];
            for level in Level::available() {
                let by = tabled(level, &program, &views).expect("a table");
                // Inputs and one loop, but where the second is the same everywhere.
                let is_one = by.program.instrs.len() == 3;
                assert_eq!(is_one, strides == [1], "{by:?}");
                let expected = run_on(level, &program, &shape, &views, &[]);
                let got = looked_up(level, &by, &shape, &views);
                assert!(got[0].same(&expected[0]), "{half:?} at {level:?}");
            }
        }
    }
}

#[test]
fn a_part_of_a_program_is_looked_up_wherever_its_input_lies() {
    let seed = 0x7ab1;
    println!("seed {seed:#x}");
    let (mut rng, mut found) = (Seeded(seed), 0);
    for _ in 0..150 {
        let half = rng.pick(&[F16, BF16]);
        let dtypes = [half, rng.pick(&[half, F32, Bool])];
        let program = random_program(&mut rng, &dtypes, 9);
        let shape = random_shape(&mut rng);
        let inputs = dtypes.map(|d| random_input(&mut rng, d, &shape));
        let views: Vec<View<'_>> =
            inputs.iter().map(|i| i.buffer.view(&shape, &i.strides, i.offset)).collect();
        for level in Level::available() {
            let Some(by) = tabled(level, &program, &views) else { break };
            found += 1;
            let expected = run_on(level, &program, &shape, &views, &[]);
            let got = looked_up(level, &by, &shape, &views);
            for (got, expected) in got.iter().zip(&expected) {
                assert!(got.same(expected), "{program:?}, {by:?}, {shape:?} at {level:?}");
            }
        }
    }
    assert!(found > 30, "{found}");
}

#[test]
fn large_shapes_are_looked_up_from_the_second_time_on_by_all_threads() {
    let n = 3 * TABLED_FROM + 5;
    let mut rng = Seeded(95);
    let x = random_buffer(&mut rng, BF16, n);
    let (shape, par) = ([n], Threads { threads: 3, seed: Rng::new(7).word() });
    let views = [x.view(&shape, &[1], 0)];
    let program = single(&[BF16], |a| Code::Unary(UnaryOp::Erf, a[0]), BF16, BF16);
    for level in Level::available() {
        FORCED.set(Some(level));
        let expected = run_on(level, &program, &shape, &views, &[]);
        for _ in 0..3 {
            let mut out = Buffer::new(BF16, n);
            run_parallel(&program, &shape, &views, &[out.view_mut(&shape)], &par);
            assert!(out.same(&expected[0]));
        }
    }
    FORCED.set(None);
}

#[test]
fn a_program_has_no_table_before_its_second_time_or_of_what_is_broadcast() {
    let x = all(f16::from_bits);
    let of = |number: f64| {
        let power = Arg::Scalar(Scalar::Float(number));
        single(&[F16], |a| Code::Binary(BinaryOp::Pow, a[0], power), F32, F16)
    };
    let (level, shape) = (level(), [1 << 16, 1]);
    let views = [x.view(&shape, &[1, 0], 0)];
    for number in [1.25, 1.5, 1.75] {
        assert!(tabled::tabled(level, &of(number), &views).is_none());
    }
    assert!(tabled(level, &of(1.75), &views).is_some());
    let shape = [1 << 16, 2];
    assert!(tabled(level, &of(1.75), &[x.view(&shape, &[1, 0], 0)]).is_none());
    let shape = [2, 1 << 16];
    assert!(tabled(level, &of(1.75), &[x.view(&shape, &[0, 1], 0)]).is_none());
}
