//! Groups of instructions that are one compiled loop, beside the loops one by one.

use super::fused::unfused;
use super::*;
use crate::graph::program::number_beside;
use crate::host::kernels::elementwise::compiled::{Group, Known, groups};
use BinaryOp as B;
use UnaryOp as U;

const UNARY: [UnaryOp; 17] = [
    U::Neg,
    U::Abs,
    U::Sign,
    U::Square,
    U::Relu,
    U::Sqrt,
    U::Rsqrt,
    U::Recip,
    U::Hardswish,
    U::Floor,
    U::Ceil,
    U::Round,
    U::Trunc,
    U::IsNan,
    U::IsInf,
    U::IsFinite,
    U::LogicalNot,
];
const BINARY: [BinaryOp; 14] = [
    B::Add,
    B::Sub,
    B::Mul,
    B::Div,
    B::Maximum,
    B::Minimum,
    B::LeakyRelu,
    B::TruncDivide,
    B::Eq,
    B::Ne,
    B::Lt,
    B::Le,
    B::Gt,
    B::Ge,
];
const TRUTHS: [BinaryOp; 6] =
    [B::LogicalAnd, B::LogicalOr, B::LogicalXor, B::BitwiseAnd, B::BitwiseOr, B::BitwiseXor];

const FLOATS: [DType; 3] = [F32, F16, BF16];

/// The levels for which code is made.
fn levels() -> impl Iterator<Item = Level> {
    let can = cfg!(all(target_arch = "x86_64", unix, not(miri)));
    Level::available().filter(move |&level| can && level != Level::Baseline)
}

/// The groups that a program has once it has been seen. (Other tests may have it forgotten in
/// between, or have the lock.)
fn seen(level: Level, program: &Program, known: Known, count: usize) -> Vec<Group> {
    let tries = (0..1000).map(|_| groups(level, program, known).into_vec());
    let mut most = Vec::new();
    for all in tries {
        if all.len() > most.len() {
            most = all;
        }
        if count > 0 && most.len() >= count {
            break;
        }
        std::thread::yield_now();
    }
    most
}

/// Checks a program beside its loops. Those of the lowest level are never compiled, and all that
/// groups compute has the same bits at every level.
fn check(level: Level, program: &Program, inputs: &[Input], shape: &[usize], cuts: &[usize]) {
    let views: Vec<View<'_>> =
        inputs.iter().map(|i| i.buffer.view(shape, &i.strides, i.offset)).collect();
    let expected = unfused(Level::Baseline, program, shape, &views);
    for _ in 0..2 {
        let got = run_on(level, program, shape, &views, cuts);
        for (k, (got, expected)) in got.iter().zip(&expected).enumerate() {
            assert!(got.same(expected), "{level:?}, output {k} over {shape:?}: {program:?}");
        }
    }
}

/// Programs of two floats and two truths: an op, and a negation or a choice behind it, both
/// written.
fn programs_of_an_op(float: DType) -> Vec<Program> {
    let types = [float, float, Bool, Bool];
    let program = |code: &dyn Fn([Arg; 4]) -> Code, on: DType, to: DType| {
        let mut p = Program::default();
        let of =
            std::array::from_fn(|k| Arg::Reg(p.push(Code::Input(k as u8), types[k], types[k])));
        let y = p.push(code(of), on, to);
        let z = match to {
            Bool => p.push(Code::Where(Arg::Reg(y), of[0], of[1]), float, float),
            _ => p.push(Code::Unary(U::Neg, Arg::Reg(y)), to, to),
        };
        p.outputs.extend([y, z]);
        p
    };
    let mut programs = Vec::new();
    for op in UNARY {
        programs.push(program(&|of| Code::Unary(op, of[0]), float, op.class().result(float)));
    }
    for op in BINARY {
        let to = op.class().result(float);
        programs.push(program(&|of| Code::Binary(op, of[0], of[1]), float, to));
        for x in [2.5, 0.1, 0.0, f64::INFINITY, f64::NAN].map(Scalar::Float) {
            let on = number_beside(op, float);
            programs.push(program(&|of| Code::Binary(op, of[0], Arg::Scalar(x)), on, to));
            programs.push(program(&|of| Code::Binary(op, Arg::Scalar(x), of[1]), on, to));
        }
    }
    for op in TRUTHS {
        programs.push(program(&|of| Code::Binary(op, of[2], of[3]), Bool, Bool));
    }
    let three = Arg::Scalar(Scalar::Int(3));
    programs.push(program(&|of| Code::Where(of[3], of[0], of[1]), float, float));
    programs.push(program(&|of| Code::Where(of[2], of[0], three), float, float));
    for to in [F32, F16, BF16, Bool] {
        programs.push(program(&|of| Code::Cast(of[0]), float, to));
    }
    programs.push(program(&|of| Code::Cast(of[2]), Bool, float));
    programs
}

#[test]
fn every_op_of_a_group_has_the_bits_of_its_loop() {
    for float in FLOATS {
        let (a, b) = with_dtype!(float, T => {
            let (a, b) = pairs(&edges::<T>());
            let all = |x: Vec<T>| x.iter().copied().cycle().take(17_001).collect::<Vec<T>>();
            (Buffer::of(&all(a)), Buffer::of(&all(b)))
        });
        let n = a.numel;
        let every = |k: usize| Buffer::of(&(0..n).map(|i| i % k == 1).collect::<Vec<bool>>());
        let columns = [a, b, every(2), every(3)];
        let columns = columns.map(|buffer| Input { buffer, strides: vec![1], offset: 0 });
        for (level, program) in levels().flat_map(|level| {
            programs_of_an_op(float).into_iter().map(move |program| (level, program))
        }) {
            let all = seen(level, &program, Known::default(), 1);
            assert_eq!(all.len(), 1, "{level:?} {program:?}");
            assert_eq!((all[0].members, all[0].before), (0b11_0000, 6));
            check(level, &program, &columns, &[n], &[]);
        }
    }
}

/// A program of what groups compute, of inputs of these types.
fn random_group(rng: &mut Seeded, inputs: &[DType], most: usize) -> Program {
    let mut p = Program::default();
    for (k, &dtype) in inputs.iter().enumerate() {
        p.push(Code::Input(k as u8), dtype, dtype);
    }
    for _ in 0..most {
        let of = |p: &Program, rng: &mut Seeded, dtype: DType| {
            let all = 0..p.instrs.len() as Reg;
            let fit: Vec<Reg> = all.filter(|&r| p.dtype(r) == dtype).collect();
            (!fit.is_empty()).then(|| Arg::Reg(rng.pick(&fit)))
        };
        let float = p.dtype(rng.below(inputs.len()) as Reg);
        let float = if float == Bool { F32 } else { float };
        let Some((x, y)) = of(&p, rng, float).zip(of(&p, rng, float)) else { continue };
        let (s, t) = (of(&p, rng, Bool), of(&p, rng, Bool));
        let number = Arg::Scalar(Scalar::Float(rng.below(9) as f64 - 4.0));
        let (unary, binary) = (rng.pick(&UNARY), rng.pick(&BINARY));
        let (of_one, of_two) = (unary.class().result(float), binary.class().result(float));
        let (code, on, to) = match (rng.below(7), s, t) {
            (0, ..) => (Code::Unary(unary, x), float, of_one),
            (1, ..) => (Code::Binary(binary, x, number), number_beside(binary, float), of_two),
            (2, Some(s), _) => (Code::Where(s, x, y), float, float),
            (3, Some(s), _) => (Code::Cast(s), Bool, float),
            (4, Some(s), Some(t)) => (Code::Binary(rng.pick(&TRUTHS), s, t), Bool, Bool),
            (5, ..) => (Code::Cast(x), float, rng.pick(&FLOATS)),
            _ => (Code::Binary(binary, x, y), float, of_two),
        };
        p.push(code, on, to);
    }
    let last = p.instrs.len() - 1;
    p.outputs.push(last as Reg);
    for _ in 0..rng.below(3) {
        let r = (inputs.len() + rng.below(last + 1 - inputs.len())) as Reg;
        if !p.outputs.contains(&r) {
            p.outputs.push(r);
        }
    }
    p
}

#[test]
fn groups_have_the_bits_of_their_loops_whatever_their_size_and_wherever_their_operands_lie() {
    let mut compiled = 0;
    for level in Level::available() {
        for seed in 0..400 {
            let mut rng = Seeded(seed);
            let shape = random_shape(&mut rng);
            let mut types = vec![F32];
            for _ in 0..rng.below(9) {
                types.push(rng.pick(&[F32, F32, F32, F16, BF16, Bool]));
            }
            let most = 2 + rng.below(if seed % 4 == 0 { 35 } else { 10 });
            let program = random_group(&mut rng, &types, most);
            let inputs: Vec<Input> =
                types.iter().map(|&dtype| random_input(&mut rng, dtype, &shape)).collect();
            let numel: usize = shape.iter().product();
            let mut cuts: Vec<usize> = (0..rng.below(4)).map(|_| rng.below(numel + 1)).collect();
            cuts.sort();
            println!("seed {seed}");
            check(level, &program, &inputs, &shape, &cuts);
            compiled += seen(level, &program, Known::default(), 1).len();
        }
    }
    assert!(compiled > 400 || levels().next().is_none(), "{compiled}");
}

#[test]
fn a_group_ends_where_another_instruction_reads_it_and_goes_on_past_others() {
    let Some(level) = levels().last() else { return };
    let mut p = Program::default();
    let x = Arg::Reg(p.push(Code::Input(0), F32, F32));
    let unary = |p: &mut Program, op, a| Arg::Reg(p.push(Code::Unary(op, a), F32, F32));
    let a = unary(&mut p, U::Neg, x); // 1
    let apart = unary(&mut p, U::Exp, x); // 2
    let b = unary(&mut p, U::Abs, a); // 3
    let c = Arg::Reg(p.push(Code::Binary(B::Add, b, apart), F32, F32)); // 4
    let d = unary(&mut p, U::Exp, c); // 5
    let e = unary(&mut p, U::Neg, d); // 6
    let Arg::Reg(f) = unary(&mut p, U::Sqrt, e) else { unreachable!() }; // 7
    p.outputs.push(f);
    let all = seen(level, &p, Known::default(), 2);
    let found: Vec<_> = all.iter().map(|g| (g.members, g.before, &g.written[..])).collect();
    assert_eq!(found, [(0b1_1010, 5, &[4][..]), (0b1100_0000, 8, &[7][..])]);
    // What is the same everywhere, and what is looked up, is in none.
    let nothing = Known::default();
    assert!(seen(level, &p, Known { same: 0xff, ..nothing }, 0).is_empty());
    assert!(seen(level, &p, Known { apart: 0b1100_1010, ..nothing }, 0).is_empty());
    assert!(seen(Level::Baseline, &p, nothing, 0).is_empty());
}

/// A program that no other test has: of one input, and two numbers.
fn program_of_numbers(x: f64, y: f64) -> Program {
    let mut p = Program::default();
    let a = Arg::Reg(p.push(Code::Input(0), F32, F32));
    let number = |x| Arg::Scalar(Scalar::Float(x));
    let mut b = a;
    for op in [B::TruncDivide, B::Le, B::TruncDivide] {
        let to = if op == B::Le { Bool } else { F32 };
        b = Arg::Reg(p.push(Code::Binary(op, a, number(x)), F32, to));
    }
    let c = p.push(Code::Binary(B::LeakyRelu, b, number(y)), F32, F32);
    p.outputs.push(c);
    p
}

#[test]
fn a_group_is_compiled_for_a_second_call_and_whatever_its_numbers_are() {
    let Some(level) = levels().last() else { return };
    let of = |call: u64| Known { call: Some(call), ..Known::default() };
    for _ in 0..3 {
        assert!(groups(level, &program_of_numbers(1.0, 2.0), of(1)).is_empty());
    }
    assert_eq!(seen(level, &program_of_numbers(3.0, 4.0), of(2), 1).len(), 1);
    // One number twice is one place.
    assert!(groups(level, &program_of_numbers(5.0, 5.0), of(3)).is_empty());
}

#[test]
fn a_plan_has_a_step_for_a_group_and_one_for_each_part_of_a_long_one() {
    let Some(level) = levels().last() else { return };
    let mut p = Program::default();
    let mut last = Arg::Reg(p.push(Code::Input(0), BF16, BF16));
    for _ in 0..INSTRS_MAX - 1 {
        last = Arg::Reg(p.push(Code::Unary(U::Hardswish, last), BF16, BF16));
    }
    let Arg::Reg(y) = last else { unreachable!() };
    p.outputs.push(y);
    let mut rng = Seeded(1);
    let shape = [20_003];
    let input =
        Input { buffer: random_buffer(&mut rng, BF16, 20_003), strides: vec![1], offset: 0 };
    check(level, &p, &[input], &shape, &[7, 9000]);
    let all = seen(level, &p, Known::default(), 5);
    assert_eq!(all.len(), 5, "ten instructions each");
    let mut out = Buffer::new(BF16, 20_003);
    let source = Buffer::new(BF16, 20_003);
    let call = Call {
        level,
        program: &p,
        shape: &shape,
        inputs: &[source.view(&shape, &[1], 0)],
        lookups: &[],
        outputs: &[out.view_mut(&shape).ptr],
        stream: false,
        number: None,
    };
    let steps = (0..1000).map(|_| {
        let slots = Slots::take();
        let mut plan = Plan::new(slots.ptr);
        // SAFETY: all of this stays where it is until the plan goes.
        unsafe { planner::make(&mut plan, &call) };
        (plan.fused.len(), plan.steps().len())
    });
    assert!(steps.into_iter().any(|count| count == (5, 5)));
}

/// All parts come to one thread.
struct OneThread;

impl Parallel for OneThread {
    fn threads(&self) -> usize {
        4
    }
    fn run(&self, parts: usize, part: &(dyn Fn(usize) + Sync)) {
        assert!(parts > 1);
        (0..parts).rev().for_each(part);
    }
}

#[test]
fn parts_that_come_to_one_thread_have_one_plan() {
    let (rows, n) = (300usize, 500usize);
    let shape = [rows, n];
    let mut rng = Seeded(5);
    let mut input = |strides: [isize; 2]| {
        let buffer = random_buffer(&mut rng, F32, rows * n);
        Input { buffer, strides: strides.to_vec(), offset: 0 }
    };
    // Row by row, a row that repeats, and one that lies across.
    let inputs = [input([n as isize, 1]), input([0, 1]), input([1, rows as isize])];
    let views: Vec<View<'_>> =
        inputs.iter().map(|i| i.buffer.view(&shape, &i.strides, 0)).collect();
    let mut p = Program::default();
    let [a, b, c] = [0, 1, 2].map(|k| Arg::Reg(p.push(Code::Input(k), F32, F32)));
    let x = Arg::Reg(p.push(Code::Binary(B::Maximum, a, b), F32, F32));
    let x = Arg::Reg(p.push(Code::Unary(U::Exp, x), F32, F32));
    let y = p.push(Code::Binary(B::Mul, x, c), F32, F32);
    let z = p.push(Code::Binary(B::Le, a, c), F32, Bool);
    p.outputs.extend([y, z]);
    let expected = unfused(level(), &p, &shape, &views);
    for _ in 0..3 {
        let mut outputs = [F32, Bool].map(|dtype| Buffer::new(dtype, rows * n));
        let all: Vec<ViewMut<'_>> = outputs.iter_mut().map(|b| b.view_mut(&shape)).collect();
        run_parallel(&p, &shape, &views, &all, &OneThread);
        drop(all);
        assert!(outputs.iter().zip(&expected).all(|(got, expected)| got.same(expected)));
    }
}

#[test]
fn what_gives_way_in_the_registers_is_read_again() {
    let n = if cfg!(debug_assertions) { 203 } else { 17_003 };
    let inputs = 14;
    for seed in 0..300 {
        let mut rng = Seeded(seed);
        let columns: Vec<Input> = (0..inputs)
            .map(|_| Input { buffer: random_buffer(&mut rng, F32, n), strides: vec![1], offset: 0 })
            .collect();
        let mut p = Program::default();
        let all: Vec<Arg> =
            (0..inputs).map(|k| Arg::Reg(p.push(Code::Input(k as u8), F32, F32))).collect();
        // Numbers have half of the registers, and the inputs are read again and again.
        for k in 0..22 {
            let op = rng.pick(&[B::Add, B::Sub, B::Mul]);
            let (a, b) = match k {
                0..7 => (all[k], Arg::Scalar(Scalar::Int(k as i64 + 2))),
                _ => (rng.pick(&all), rng.pick(&all)),
            };
            let y = p.push(Code::Binary(op, a, b), F32, F32);
            if k % 3 == 0 {
                p.outputs.push(y);
            }
        }
        println!("seed {seed}");
        for level in levels() {
            check(level, &p, &columns, &[n], &[]);
            assert!(!seen(level, &p, Known::default(), 1).is_empty());
        }
    }
}

#[test]
fn outputs_that_begin_at_different_places_of_a_line_are_written_around_the_caches() {
    let n = if cfg!(debug_assertions) { 20_011 } else { STREAM_FROM / 4 };
    let mut rng = Seeded(3);
    let input = random_buffer(&mut rng, F32, n);
    let (shape, strides) = ([n], [1]);
    let views = [input.view(&shape, &strides, 0)];
    let mut p = Program::default();
    let x = Arg::Reg(p.push(Code::Input(0), F32, F32));
    let [y, z] = [U::Neg, U::Square].map(|op| p.push(Code::Unary(op, x), F32, F32));
    p.outputs.extend([y, z]);
    for level in levels() {
        let expected = unfused(Level::Baseline, &p, &shape, &views);
        for (first, second) in [(0, 0), (3, 3), (0, 5), (7, 2)] {
            for _ in 0..3 {
                let mut buffers = [0, 1].map(|_| Buffer::new(F32, n + 16));
                let mut at = |k: usize, from: usize| {
                    let whole = buffers[k].view_mut(&shape);
                    let ptr = whole.ptr.wrapping_add(4 * from);
                    ViewMut { ptr, dtype: F32, shape: &shape, life: PhantomData }
                };
                let outputs = [at(0, first), at(1, second)];
                run(level, &p, &[], &shape, &views, &outputs, 0..n);
                for (k, from) in [first, second].into_iter().enumerate() {
                    let got = Buffer::of(&buffers[k].get::<f32>()[from..from + n]);
                    assert!(got.same(&expected[k]), "{level:?}, output {k}, from {from}");
                }
            }
        }
    }
}
