//! The places of operands and results: strides, slots, overwriting, streaming, parts; and the
//! estimated cost of a program.

use super::*;

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
            let strides = &input.strides;
            assert!(got.same(&Buffer::of(&expected)), "seed {seed}, {shape:?}, {strides:?}");
        });
    }
}

#[test]
fn a_row_that_repeats_is_read_right_after_instructions_that_have_given_their_slots_back() {
    // y = -(|i|) + row, the row read last: it stays in a slot from tile to tile, the others come
    // again.
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
    // s = max(x, y) - 1, z = row + s, over more than one tile: the slot of the maximum is free when
    // the row comes.
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
    let views =
        [x.view(&shape, &[64, 1], 0), y.view(&shape, &[64, 1], 0), row.view(&shape, &[0, 1], 0)];
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
    let (mut shared, mut other, shape) =
        (Buffer::of(&values), Buffer::new(F32, values.len()), [values.len()]);
    let out = [shared.view_mut(&shape), other.view_mut(&shape)];
    let input = View { ptr: out[0].ptr, dtype: F32, shape: &shape, strides: &[1] };
    run(level(), &program, &[], &shape, &[input], &out, 0..3000);
    run(level(), &program, &[], &shape, &[input], &out, 3000..10_000);
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
                let expected =
                    run_on(level, &program, &shape, &[input.view(&shape, &[1], 0)], &[]).remove(0);
                let mut shared = input.clone();
                let out = [shared.view_mut(&shape)];
                let view = View { ptr: out[0].ptr, dtype: F32, shape: &shape, strides: &[1] };
                run(level, &program, &[], &shape, &[view], &out, 0..n);
                drop(out);
                assert!(shared.same(&expected), "{} of {n} at {level:?}", op.name());
            }
        }
    }
}

#[test]
fn outputs_beyond_the_caches_are_streamed_and_right() {
    let n = STREAM_FROM.max(32 << 20) / 4 + 4099;
    let program = single(
        &[F32],
        |a| Code::Binary(BinaryOp::Add, a[0], Arg::Scalar(Scalar::Float(0.5))),
        F32,
        F32,
    );
    let input = Buffer::of(&(0..n).map(|i| i as f32).collect::<Vec<f32>>());
    let shape = [n];
    let got =
        run_on(level(), &program, &shape, &[input.view(&shape, &[1], 0)], &[1, 77, 5_000_001])
            .remove(0);
    assert!(got.same(&Buffer::of(&(0..n).map(|i| i as f32 + 0.5).collect::<Vec<f32>>())));
}

#[test]
fn a_streamed_unary_op_gives_the_bits_of_one_in_the_cache() {
    let n = STREAM_FROM / 4 + 4099;
    let x: Vec<f32> = edges::<f32>().into_iter().cycle().take(n).collect();
    let (input, shape) = (Buffer::of(&x), [n]);
    for &op in UnaryOp::ALL.iter().filter(|op| op.class().takes(F32)) {
        let program = single(&[F32], |a| Code::Unary(op, a[0]), F32, op.class().result(F32));
        for level in Level::available() {
            // Parts that begin and end within a line.
            let cuts = [1, 77, n / 2 + 3];
            let got =
                run_on(level, &program, &shape, &[input.view(&shape, &[1], 0)], &cuts).remove(0);
            let mut whole = Buffer::new(got.dtype, n);
            for from in (0..n).step_by(4096) {
                let piece = [4096.min(n - from)];
                let part = run_on(level, &program, &piece, &[input.view(&piece, &[1], from)], &[])
                    .remove(0);
                let out = whole.view_mut(&shape);
                let size = got.dtype.size();
                // SAFETY: both have the piece's elements there.
                unsafe {
                    let from = out.ptr.add(from * size);
                    from.copy_from_nonoverlapping(part.view(&piece, &[1], 0).ptr, piece[0] * size);
                }
            }
            assert!(got.same(&whole), "{} at {level:?}", op.name());
        }
    }
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

#[test]
fn pieces_of_rows_are_read_where_they_lie() {
    let (rows, n) = (9usize, 700usize);
    let own = |from: usize| {
        let all: Vec<f32> = (0..2 * rows * n).map(|i| (i % 1013) as f32 - 500.0).collect();
        (Buffer::of(&all), from)
    };
    let shape = [rows, n];
    let pieces = [own(0), own(n)];
    let strides = [2 * n as isize, 1];
    let views: Vec<View<'_>> =
        pieces.iter().map(|(all, from)| all.view(&shape, &strides, *from)).collect();
    let mut program = Program::default();
    let [a, b] = [0, 1].map(|k| Arg::Reg(program.push(Code::Input(k), F32, F32)));
    let gate = Arg::Reg(program.push(Code::Unary(UnaryOp::Sigmoid, b), F32, F32));
    let y = program.push(Code::Binary(BinaryOp::Mul, a, gate), F32, F32);
    program.outputs.push(y);
    let (slots, mut out) = (Slots::take(), Buffer::new(F32, rows * n));
    let mut plan = Plan::new(slots.ptr);
    let call = Call {
        level: level(),
        program: &program,
        shape: &shape,
        inputs: &views,
        lookups: &[],
        outputs: &[out.view_mut(&shape).ptr],
        stream: false,
        number: None,
    };
    // SAFETY: all of this stays where it is until the end of the test.
    unsafe { planner::make(&mut plan, &call) };
    assert_eq!((plan.gathers.len(), plan.runs.len(), plan.segment), (0, 2, Some(n)));
    for level in Level::available() {
        let got = run_on(level, &program, &shape, &views, &[5, 699, 1400, 2222]);
        let expected = super::fused::unfused(level, &program, &shape, &views);
        assert!(got[0].same(&expected[0]), "{level:?}");
    }
}

#[test]
fn rows_that_are_shorter_than_what_stays_the_same_are_read_row_by_row() {
    let (planes, rows, n, step) = (3usize, 8usize, 600usize, 700usize);
    let shape = [planes, rows, n];
    let all: Vec<f32> = (0..planes * rows * step).map(|i| (i % 997) as f32).collect();
    let (all, each) = (Buffer::of(&all), Buffer::of(&[2.0f32, -3.0, 5.0]));
    let strides = [(rows * step) as isize, step as isize, 1];
    let views = [all.view(&shape, &strides, 0), each.view(&shape, &[1, 0, 0], 0)];
    let mut program = Program::default();
    let [a, b] = [0, 1].map(|k| Arg::Reg(program.push(Code::Input(k), F32, F32)));
    let y = program.push(Code::Binary(BinaryOp::Mul, a, b), F32, F32);
    program.outputs.push(y);
    for level in Level::available() {
        let got = run_on(level, &program, &shape, &views, &[1, 599, 4801, 9000]);
        let expected = super::fused::unfused(level, &program, &shape, &views);
        let want = |i: usize| {
            let (plane, row, k) = (i / (rows * n), i / n % rows, i % n);
            all.get::<f32>()[(plane * rows + row) * step + k] * each.get::<f32>()[plane]
        };
        assert!(got[0].same(&expected[0]), "{level:?}");
        assert!(got[0].get::<f32>().iter().enumerate().all(|(i, &x)| x == want(i)), "{level:?}");
    }
}
