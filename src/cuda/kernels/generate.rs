//! A [`Program`] as C statements, for every kernel that evaluates one.
//!
//! Names are canonical (`r0`, `r1`... by register) and numbers come from a run-time table, so
//! programs that differ in immediates alone share one kernel. The caller spells inputs and random
//! draws; this file knows neither memory nor threads.

use super::Words;
use crate::dtype::{DType, Element, Scalar};
use crate::graph::program::{Arg, Code, Instr, Program};
use std::fmt::Write;
use std::hash::{Hash, Hasher};

/// A program without its numbers: immediates, seeds and offsets are false and 0. The rest
/// decides the kernel.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Form(pub Program);

// A form holds no floating point numbers.
impl Eq for Form {}

impl Hash for Form {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let arg = |a: &Arg, state: &mut H| match a {
            Arg::Reg(r) => (1u8, *r).hash(state),
            Arg::Scalar(_) => 0u8.hash(state),
        };
        for instr in &self.0.instrs {
            (std::mem::discriminant(&instr.code), instr.on, instr.dtype).hash(state);
            match &instr.code {
                Code::Input(i) => i.hash(state),
                Code::Unary(op, a) => (op.hash(state), arg(a, state)).1,
                Code::Binary(op, a, b) => (op.hash(state), arg(a, state), arg(b, state)).2,
                Code::Where(c, a, b) => [c, a, b].into_iter().for_each(|x| arg(x, state)),
                Code::Cast(a) => arg(a, state),
                Code::Fill(_) | Code::Arange { .. } => {}
                Code::Uniform { .. } | Code::Normal { .. } => {}
            }
        }
        self.0.outputs.hash(state);
    }
}

impl Form {
    pub fn of(program: &Program) -> Form {
        let none = Scalar::Bool(false);
        let plain = |a: &Arg| match a {
            Arg::Reg(r) => Arg::Reg(*r),
            Arg::Scalar(_) => Arg::Scalar(none),
        };
        let instrs = program.instrs.iter().map(|instr| Instr {
            code: match &instr.code {
                Code::Input(i) => Code::Input(*i),
                Code::Fill(_) => Code::Fill(none),
                Code::Arange { .. } => Code::Arange { start: none, step: none },
                Code::Uniform { .. } => Code::Uniform { seed: 0, offset: 0 },
                Code::Normal { .. } => Code::Normal { seed: 0, offset: 0 },
                Code::Unary(op, a) => Code::Unary(*op, plain(a)),
                Code::Binary(op, a, b) => Code::Binary(*op, plain(a), plain(b)),
                Code::Where(c, a, b) => Code::Where(plain(c), plain(a), plain(b)),
                Code::Cast(a) => Code::Cast(plain(a)),
            },
            ..*instr
        });
        Form(Program { instrs: instrs.collect(), outputs: program.outputs.clone() })
    }

    /// Element type of each input.
    pub fn inputs(&self) -> Vec<DType> {
        inputs(&self.0)
    }

    /// True where a value depends on its linear position.
    pub fn is_positional(&self) -> bool {
        self.0.instrs.iter().any(|i| {
            matches!(i.code, Code::Arange { .. } | Code::Uniform { .. } | Code::Normal { .. })
        })
    }

    pub fn has_random(&self) -> bool {
        self.0.instrs.iter().any(|i| matches!(i.code, Code::Uniform { .. } | Code::Normal { .. }))
    }
}

/// Element type of each input, in order. An input that no instruction reads counts as bool.
pub(crate) fn inputs(program: &Program) -> Vec<DType> {
    let mut out = Vec::new();
    for instr in &program.instrs {
        if let Code::Input(i) = instr.code {
            let i = i as usize;
            out.resize(out.len().max(i + 1), DType::Bool);
            out[i] = instr.dtype;
        }
    }
    out
}

/// The C type in which elements lie in memory.
pub(crate) fn storage(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "float",
        DType::F64 => "double",
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        DType::I32 => "i32",
        DType::I64 => "i64",
        DType::U8 => "u8",
        DType::Bool => "bool",
        DType::I8 => "i8",
        DType::I16 => "i16",
        DType::U16 => "u16",
        DType::U32 => "u32",
        DType::U64 => "u64",
        DType::F8E4M3 => "f8e4m3",
        DType::F8E5M2 => "f8e5m2",
    }
}

/// The C type in which they are computed: float for the halves.
pub(crate) fn computed(dtype: DType) -> &'static str {
    match dtype {
        DType::F16 | DType::BF16 => "float",
        other => storage(other),
    }
}

/// The eight bytes of an immediate, as `ft::imm<C>` takes them: rounded to the type, then widened
/// to the type computed in.
fn immediate(x: Scalar, dtype: DType) -> u64 {
    match dtype {
        DType::F16 => half::f16::from_scalar(x).to_f32().to_bits() as u64,
        DType::BF16 => half::bf16::from_scalar(x).to_f32().to_bits() as u64,
        _ => x.bits(dtype),
    }
}

/// Type in which a step of `arange` is computed.
fn arange_dtype(dtype: DType) -> DType {
    if dtype.is_float() { DType::F64 } else { DType::I64 }
}

/// The table of numbers, in the order in which [`statements`] takes them.
pub(crate) fn immediates(program: &Program) -> Words {
    let mut w = Words::default();
    for instr in &program.instrs {
        let mut arg = |a: &Arg, dtype| {
            if let Arg::Scalar(x) = a {
                w.u64(immediate(*x, dtype));
            }
        };
        match &instr.code {
            Code::Input(_) => {}
            Code::Fill(x) => w.u64(immediate(*x, instr.dtype)),
            Code::Arange { start, step } => {
                w.u64(immediate(*start, arange_dtype(instr.dtype)));
                w.u64(immediate(*step, arange_dtype(instr.dtype)));
            }
            Code::Uniform { seed, offset } | Code::Normal { seed, offset } => {
                w.u64(*seed);
                w.u64(*offset);
            }
            Code::Unary(_, a) | Code::Cast(a) => arg(a, instr.on),
            Code::Binary(_, a, b) => {
                arg(a, instr.on);
                arg(b, instr.on);
            }
            Code::Where(c, a, b) => {
                arg(c, DType::Bool);
                arg(a, instr.on);
                arg(b, instr.on);
            }
        }
    }
    w
}

/// The spelling that the caller of [`statements`] provides.
pub(crate) struct Names<'a> {
    /// Spells the element of an input, as stored.
    pub input: &'a dyn Fn(u8) -> String,
    /// Linear position of the first element that draws are made for, a u64.
    pub first: &'a str,
    /// Linear position of the element, a u64.
    pub position: &'a str,
    /// Index of the element among those that the random draws were made for.
    pub lane: &'a str,
}

/// The program as C: `draws` stand before the loop over elements, `body` inside it.
#[derive(Default)]
pub(crate) struct Statements {
    pub draws: String,
    pub body: String,
    pub immediates: usize,
}

/// Writes a form. The table of numbers is `imm.v`; draws are of `lanes` elements from `first`.
pub(crate) fn statements(form: &Form, names: &Names<'_>, lanes: usize) -> Statements {
    let mut s = Statements::default();
    for (i, instr) in form.0.instrs.iter().enumerate() {
        let mut slot = 0;
        let mut next = |c: &str| {
            slot += 1;
            format!("ft::imm<{c}>(imm.v[{}])", s.immediates + slot - 1)
        };
        let (dtype, on) = (instr.dtype, computed(instr.on));
        let half = matches!(dtype, DType::F16 | DType::BF16);
        let round =
            |e: String| if half { format!("ft::rounded<{}>({e})", storage(dtype)) } else { e };
        let mut arg = |a: &Arg, c: &str| match a {
            Arg::Reg(r) => format!("r{r}"),
            Arg::Scalar(_) => next(c),
        };
        let value = match &instr.code {
            Code::Input(k) => format!("ft::load({})", (names.input)(*k)),
            Code::Fill(_) => next(computed(dtype)),
            Code::Arange { .. } => {
                let c = computed(arange_dtype(dtype));
                let (start, step) = (next(c), next(c));
                format!(
                    "ft::Cast<{}>::of(ft::arange({start}, {step}, {}))",
                    storage(dtype),
                    names.position
                )
            }
            Code::Uniform { .. } | Code::Normal { .. } => {
                let kind =
                    if matches!(instr.code, Code::Uniform { .. }) { "uniform" } else { "normal" };
                let (seed, offset) = (next("u64"), next("u64"));
                writeln!(
                    s.draws,
                    "    {} d{i}[{lanes}];\n    ft::{kind}<{}, {lanes}>({seed}, {offset}, {}, \
                     d{i});",
                    computed(dtype),
                    storage(dtype),
                    names.first
                )
                .expect("writing to a string");
                format!("d{i}[{}]", names.lane)
            }
            Code::Unary(op, a) => round(format!("ft::op_{}<{on}>({})", op.name(), arg(a, on))),
            Code::Binary(op, a, b) => {
                let (a, b) = (arg(a, on), arg(b, on));
                round(format!("ft::op_{}<{on}>({a}, {b})", op.name()))
            }
            Code::Where(c, a, b) => {
                let (c, a, b) = (arg(c, "bool"), arg(a, on), arg(b, on));
                format!("{c} ? {a} : {b}")
            }
            Code::Cast(a) if instr.on.is_float8() => {
                format!("ft::Cast<{}>::of(ft::number({}))", storage(dtype), arg(a, on))
            }
            Code::Cast(a) => format!("ft::Cast<{}>::of({})", storage(dtype), arg(a, on)),
        };
        s.immediates += slot;
        writeln!(s.body, "        const {} r{i} = {value};", computed(dtype))
            .expect("writing to a string");
    }
    s
}
