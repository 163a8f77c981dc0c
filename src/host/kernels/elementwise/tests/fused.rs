//! Random programs: fused and cut they give the bits that their instructions give one by one.

use super::*;
use crate::graph::program::number_beside;

/// A program that type-checks, of up to `most` instructions after its inputs.
pub(super) fn random_program(rng: &mut Seeded, inputs: &[DType], most: usize) -> Program {
    let mut program = Program::default();
    for (k, &d) in inputs.iter().enumerate() {
        program.push(Code::Input(k as u8), d, d);
    }
    while program.instrs.len() < (inputs.len() + most).min(INSTRS_MAX) {
        let any = rng.below(program.instrs.len().max(1)) as Reg;
        let have = |d: DType, rng: &mut Seeded| {
            let of: Vec<Reg> =
                (0..program.instrs.len() as Reg).filter(|&r| program.dtype(r) == d).collect();
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
            _ if program.instrs.is_empty() => {
                program.push(Code::Fill(Scalar::Float(0.3)), F32, F32)
            }
            0..4 => {
                let op = rng.pick(UnaryOp::ALL);
                if !op.class().takes(dtype) {
                    continue;
                }
                program.push(Code::Unary(op, a), dtype, op.class().result(dtype))
            }
            4..8 => {
                let op = rng.pick(BinaryOp::ALL);
                if !op.class().takes(dtype) {
                    continue;
                }
                let b = match rng.below(3) {
                    0 => scalar(rng),
                    _ => Arg::Reg(have(dtype, rng).unwrap()),
                };
                // Beside a number, arithmetic on halves is on f32.
                let on = match b {
                    Arg::Scalar(_) => number_beside(op, dtype),
                    Arg::Reg(_) => dtype,
                };
                let (a, b) = if rng.below(2) == 0 { (a, b) } else { (b, a) };
                program.push(Code::Binary(op, a, b), on, op.class().result(dtype))
            }
            8 => {
                let Some(c) = have(Bool, rng) else { continue };
                let b = if rng.below(2) == 0 {
                    scalar(rng)
                } else {
                    Arg::Reg(have(dtype, rng).unwrap())
                };
                let (a, b) = if rng.below(2) == 0 { (a, b) } else { (b, a) };
                program.push(Code::Where(Arg::Reg(c), a, b), dtype, dtype)
            }
            9 => program.push(Code::Cast(a), dtype, rng.pick(&DType::ALL)),
            10 => {
                let to = rng.pick(&DType::ALL);
                let code = if rng.below(2) == 0 || to.is_storage() {
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
        if r + 1 == program.instrs.len()
            || (rng.below(4) == 0 && program.outputs.len() + 2 < OUTPUTS_MAX)
        {
            program.outputs.push(r as Reg);
        }
    }
    program
}

/// Runs each instruction on its own, every result in memory.
pub(super) fn unfused(
    level: Level,
    program: &Program,
    shape: &[usize],
    inputs: &[View<'_>],
) -> Vec<Buffer> {
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
            Code::Where(a, b, c) => {
                Code::Where(read(a, &mut one), read(b, &mut one), read(c, &mut one))
            }
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
            let inputs: Vec<Input> =
                dtypes.iter().map(|&d| random_input(&mut rng, d, &shape)).collect();
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
                    "seed {seed}, {level:?}, output {k}, shape {shape:?}, cuts {cuts:?}: \
                     {program:?}"
                );
            }
            // In front of a kernel, which has some of it written here and there.
            if level != super::level() {
                continue;
            }
            let front = Front::new(&program, &shape, &views);
            for (from, to) in
                std::iter::zip([&[0][..], &cuts].concat(), [&cuts[..], &[numel]].concat())
            {
                let mut parts: Vec<Buffer> =
                    expected.iter().map(|b| Buffer::new(b.dtype, to - from)).collect();
                let mut pointers: Vec<*mut u8> =
                    parts.iter_mut().map(|b| b.lines.as_mut_ptr().cast()).collect();
                // SAFETY: each part has room for these positions.
                unsafe { front.read(from..to, &mut pointers) };
                for (part, whole) in parts.iter().zip(&expected) {
                    let own =
                        with_any_dtype!(whole.dtype, T => Buffer::of(&whole.get::<T>()[from..to]));
                    assert!(part.same(&own), "seed {seed}, {from}..{to}: {program:?}");
                }
            }
        }
    }
}

#[test]
fn what_is_computed_by_way_of_f32_has_the_same_bits_on_halves() {
    type Make = Box<dyn Fn(Arg, Arg, Arg) -> Code>;
    let mut codes: Vec<(Make, DType)> = vec![(Box::new(Code::Where), F32)];
    for &op in UnaryOp::ALL.iter().filter(|op| op.class().takes(F32)) {
        codes.push((Box::new(move |_, a, _| Code::Unary(op, a)), op.class().result(F32)));
    }
    for &op in BinaryOp::ALL.iter().filter(|op| op.class().takes(F32)) {
        codes.push((Box::new(move |_, a, b| Code::Binary(op, a, b)), op.class().result(F32)));
    }
    let number = |x: f64| Some(Arg::Scalar(Scalar::Float(x)));
    let (half_one, no_half) = (number(0.5), number(0.1));
    let mut rng = Seeded(93);
    let shape = [7, 31];
    for half in [F16, BF16] {
        let inputs = [half, half, Bool].map(|d| random_input(&mut rng, d, &shape));
        let views: Vec<View<'_>> =
            inputs.iter().map(|i| i.buffer.view(&shape, &i.strides, i.offset)).collect();
        for (code, dtype) in &codes {
            for (second, filled) in
                [(None, false), (half_one, false), (half_one, true), (no_half, false)]
            {
                let mut program = Program::default();
                let [a, b, c] = [0, 1, 2].map(|k| {
                    let d = [half, half, Bool][k as usize];
                    Arg::Reg(program.push(Code::Input(k), d, d))
                });
                let [a, b] = [a, b].map(|x| Arg::Reg(program.push(Code::Cast(x), half, F32)));
                let second = match second {
                    Some(Arg::Scalar(x)) if filled => {
                        Some(Arg::Reg(program.push(Code::Fill(x), F32, F32)))
                    }
                    other => other,
                };
                let mut last = program.push(code(c, a, second.unwrap_or(b)), F32, *dtype);
                if *dtype == F32 {
                    last = program.push(Code::Cast(Arg::Reg(last)), F32, half);
                }
                program.outputs.push(last);
                let reads_it = !matches!(code(c, a, b), Code::Unary(..));
                let expected = second != no_half || !reads_it;
                let narrowed = narrowed::narrowed(&program);
                assert_eq!(narrowed.is_some(), expected, "{program:?}");
                let Some((narrowed, read)) = narrowed else { continue };
                assert!(narrowed.instrs.iter().all(|i| i.dtype != F32), "{narrowed:?}");
                let reads: Vec<View<'_>> = read.iter().map(|&k| views[k as usize]).collect();
                for level in Level::available() {
                    let [was, is] = [
                        run_on(level, &program, &shape, &views, &[]),
                        run_on(level, &narrowed, &shape, &reads, &[]),
                    ];
                    assert!(is[0].same(&was[0]), "{level:?}: {program:?}, {narrowed:?}");
                }
            }
        }
    }
}

#[test]
fn a_rounded_result_that_others_read_as_f32_stays_one() {
    let mut program = Program::default();
    let x = Arg::Reg(program.push(Code::Input(0), BF16, BF16));
    let wide = Arg::Reg(program.push(Code::Cast(x), BF16, F32));
    let square = program.push(Code::Binary(BinaryOp::Mul, wide, wide), F32, F32);
    let rounded = program.push(Code::Cast(Arg::Reg(square)), F32, BF16);
    program.outputs.extend([square, rounded]);
    assert!(narrowed::narrowed(&program).is_none());
}

#[test]
fn two_sums_differences_and_products_in_one_loop_have_the_bits_of_two() {
    let shape = [17]; // too few to be compiled
    let mut rng = Seeded(2);
    let inputs = [0, 1, 2].map(|_| random_buffer(&mut rng, F32, 17));
    let views = inputs.each_ref().map(|buffer| buffer.view(&shape, &[1], 0));
    let three = Arg::Scalar(Scalar::Int(3));
    let ops = [BinaryOp::Add, BinaryOp::Sub, BinaryOp::Mul];
    for (first, second) in ops.iter().flat_map(|&a| ops.iter().map(move |&b| (a, b))) {
        for (turned, numbers) in (0..2).flat_map(|turned| (0..5).map(move |k| (turned == 1, k))) {
            let mut p = Program::default();
            let [mut a, mut b, mut c] =
                [0, 1, 2].map(|k| Arg::Reg(p.push(Code::Input(k), F32, F32)));
            match numbers {
                0 => {}
                1 => a = three,
                2 => b = three,
                3 => c = three,
                _ => (b, c) = (three, three),
            }
            let x = Arg::Reg(p.push(Code::Binary(first, a, b), F32, F32));
            let (left, right) = if turned { (c, x) } else { (x, c) };
            let y = p.push(Code::Binary(second, left, right), F32, F32);
            p.outputs.push(y);
            for level in Level::available() {
                let got = run_on(level, &p, &shape, &views, &[]);
                let expected = unfused(level, &p, &shape, &views);
                assert!(got[0].same(&expected[0]), "{level:?} {p:?}");
            }
        }
    }
}
