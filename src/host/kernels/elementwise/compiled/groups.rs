//! Which instructions of a program become groups.
//!
//! Instructions that fit are taken in order, until one that does not fit reads a result of theirs.
//! Others between them run first: they do not need the group.

use super::group::{self, From, Held, How, Key, Operation};
use super::memory::CAN_EXECUTE;
use super::{Fused, Loop, PLACES, found};
use crate::dtype::{DType, Element, Scalar};
use crate::graph::program::{Arg, Code, INSTRS_MAX, Instr, Program, Reg};
use crate::host::kernels::elementwise::halves::is_exact;
use crate::host::kernels::elementwise::place::Place;
use crate::host::kernels::simd::Level;
use crate::op::{BinaryOp, UnaryOp};
use half::{bf16, f16};
use smallvec::SmallVec;
use std::sync::Arc;

/// Operations of a group at most: more would hardly fit into the registers. An instruction is at
/// most five, and seven more round to bf16.
const OPERATIONS: usize = 120;
const OF_F32: usize = 5;
const OF_HALVES: usize = 12;

/// Where an operand of a group comes from.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(in super::super) enum Source {
    Reg(Reg),
    /// As this type has it.
    Number(Scalar, DType),
    /// The bits of an f32.
    Bits(&'static u32),
}

// What the operations need beside their operands.
static SIGN: u32 = 1 << 31;
static ALL_BUT_SIGN: u32 = !(1 << 31);
static ZERO: u32 = 0;
static ONE: u32 = 1f32.to_bits();
static MINUS_ONE: u32 = (-1f32).to_bits();
static THREE: u32 = 3f32.to_bits();
static SIX: u32 = 6f32.to_bits();
static SIXTH: u32 = (1f32 / 6.0).to_bits();
static LAST: u32 = 1;
static NEARLY_HALF: u32 = 0x7fff;
static UPPER: u32 = 0xffff_0000;
static NAN: u32 = f32::NAN.to_bits();
static INFINITY: u32 = f32::INFINITY.to_bits();

/// Instructions that are one loop.
pub(in super::super) struct Group {
    /// The instruction before which the loop runs, or the end of the program.
    pub before: usize,
    pub members: Members,
    compiled: Arc<Loop>,
    held: SmallVec<[Held; 16]>,
    /// What the loop reads.
    pub read: SmallVec<[Source; 16]>,
    /// What others read of it.
    pub written: SmallVec<[Reg; 4]>,
    /// Those of them that are written around the caches.
    pub streamed: Members,
}

/// Instructions of a program, a bit each.
pub(in super::super) type Members = u64;

impl Group {
    /// The registers that its instructions read.
    pub fn operands(&self, program: &Program) -> impl Iterator<Item = Reg> {
        let members = (0..program.instrs.len()).filter(|i| self.members >> i & 1 != 0);
        members.flat_map(|i| program.instrs[i].code.operands())
    }

    /// The loop, with its operands in these places: those that are read, then those that are
    /// written.
    pub fn at(&self, places: SmallVec<[Place; 16]>) -> Fused {
        Fused {
            compiled: self.compiled.clone(),
            held: self.held.clone(),
            places,
            read: self.read.len(),
        }
    }
}

/// What is known of the registers of a program.
#[derive(Clone, Copy, Default)]
pub(in super::super) struct Known {
    /// They are the same everywhere.
    pub same: Members,
    /// They are computed in another way.
    pub apart: Members,
    /// They are written around the caches, if nobody reads them.
    pub around: Members,
    /// The call whose parts each ask for the groups, if it has several.
    pub call: Option<u64>,
}

/// The groups of a program, in order, as far as they are compiled.
pub(in super::super) fn groups(
    level: Level,
    program: &Program,
    known: Known,
) -> SmallVec<[Group; 2]> {
    let mut all = SmallVec::new();
    if level == Level::Baseline || !CAN_EXECUTE {
        return all;
    }
    let Known { same, apart, around, .. } = known;
    let (mut members, mut operations): (Members, usize) = (0, 0);
    let mut close = |members: Members, before: usize| {
        // One instruction has a loop already, which does not write around the caches.
        if (members.count_ones() > 1 || members & around != 0)
            && let Some(group) = Building::new(level, program, known, members).group(before)
        {
            all.push(group);
        }
    };
    for (i, instr) in program.instrs.iter().enumerate() {
        let is_apart = (same | apart) >> i & 1 != 0;
        if !is_apart && fits(program, instr, same) {
            let more = if instr.dtype.is_half() { OF_HALVES } else { OF_F32 };
            if operations + more > OPERATIONS {
                close(std::mem::take(&mut members), i);
                operations = 0;
            }
            members |= 1 << i;
            operations += more;
        } else if instr.code.operands().any(|r| members >> r & 1 != 0) {
            close(std::mem::take(&mut members), i);
            operations = 0;
        }
    }
    close(members, program.instrs.len());
    all
}

/// Whether a group can compute an instruction: of f32 and halves, and truths beside them.
fn fits(program: &Program, instr: &Instr, same: Members) -> bool {
    use BinaryOp as B;
    use UnaryOp as U;
    let is_truth_row = |arg: Arg| match arg {
        Arg::Reg(r) => program.dtype(r) == DType::Bool && same >> r & 1 == 0,
        Arg::Scalar(_) => false,
    };
    let are_floats = instr.code.operands().all(|r| is_float(program.dtype(r)));
    match instr.code {
        Code::Unary(op, _) if is_float(instr.on) && are_floats => matches!(
            op,
            U::Neg
                | U::Abs
                | U::Sign
                | U::Square
                | U::Relu
                | U::Sqrt
                | U::Rsqrt
                | U::Recip
                | U::Hardswish
                | U::Floor
                | U::Ceil
                | U::Round
                | U::Trunc
                | U::IsNan
                | U::IsInf
                | U::IsFinite
                | U::LogicalNot
        ),
        Code::Binary(op, ..) if is_float(instr.on) && are_floats => matches!(
            op,
            B::Add
                | B::Sub
                | B::Mul
                | B::Div
                | B::Maximum
                | B::Minimum
                | B::LeakyRelu
                | B::TruncDivide
                | B::Eq
                | B::Ne
                | B::Lt
                | B::Le
                | B::Gt
                | B::Ge
        ),
        Code::Binary(op, a, b) if instr.on == DType::Bool => {
            truths(op).is_some() && is_truth_row(a) && is_truth_row(b)
        }
        Code::Where(condition, ..) => is_float(instr.dtype) && is_truth_row(condition),
        Code::Cast(_) if are_floats => is_float(instr.dtype) || instr.dtype == DType::Bool,
        Code::Cast(a) => is_float(instr.dtype) && is_truth_row(a),
        _ => false,
    }
}

/// Whether a type is computed as f32.
fn is_float(dtype: DType) -> bool {
    dtype == DType::F32 || dtype.is_half()
}

/// How two truths meet.
fn truths(op: BinaryOp) -> Option<How> {
    match op {
        BinaryOp::LogicalAnd | BinaryOp::BitwiseAnd => Some(How::Both),
        BinaryOp::LogicalOr | BinaryOp::BitwiseOr => Some(How::Either),
        BinaryOp::LogicalXor | BinaryOp::BitwiseXor => Some(How::OneOf),
        _ => None,
    }
}

/// A group as it is put together.
struct Building<'a> {
    program: &'a Program,
    known: Known,
    members: Members,
    key: Key,
    read: SmallVec<[Source; 16]>,
    /// The value of each member.
    values: [u8; INSTRS_MAX],
}

impl<'a> Building<'a> {
    fn new(level: Level, program: &'a Program, known: Known, members: Members) -> Building<'a> {
        let key = Key { level, places: SmallVec::new(), operations: SmallVec::new() };
        Building { program, known, members, key, read: SmallVec::new(), values: [0; INSTRS_MAX] }
    }

    fn group(mut self, before: usize) -> Option<Group> {
        let instrs = &self.program.instrs;
        for (i, instr) in instrs.iter().enumerate() {
            if self.members >> i & 1 != 0 {
                let From::Value(value) = self.instruction(instr) else { return None };
                self.values[i] = value;
            }
        }
        // What others read, and what is written out.
        let out = self.program.outputs.iter().fold(0, |all: Members, &r| all | 1 << r);
        let mut read = 0;
        for (i, instr) in instrs.iter().enumerate() {
            if self.members >> i & 1 == 0 {
                instr.code.operands().for_each(|r| read |= 1 << r);
            }
        }
        let written = (0..instrs.len()).filter(|i| (self.members & (read | out)) >> i & 1 != 0);
        let written: SmallVec<[Reg; 4]> = written.map(|i| i as Reg).collect();
        debug_assert!(self.key.operations.len() <= OPERATIONS);
        if written.is_empty() || self.read.len() + written.len() > PLACES {
            return None;
        }
        let mut streamed = 0;
        for &r in &written {
            let value = self.values[r as usize] as usize;
            self.key.operations[value].stored = Some(self.key.places.len() as u8);
            let held = match Held::row(self.program.dtype(r)) {
                Held::F32 if (self.known.around & !read) >> r & 1 != 0 => {
                    streamed |= 1 << r;
                    Held::Streamed
                }
                held => held,
            };
            self.key.places.push(held);
        }
        let compiled = found(&self.key, self.known.call)?;
        let (held, members) = (self.key.places, self.members);
        Some(Group { before, members, compiled, held, read: self.read, written, streamed })
    }

    fn place(&mut self, source: Source, held: Held) -> From {
        let is_same = |other: &Source| match (source, *other) {
            (Source::Number(a, of), Source::Number(b, on)) => bits(a, of) == bits(b, on),
            (a, b) => a == b,
        };
        let at = self.read.iter().position(is_same).unwrap_or_else(|| {
            self.read.push(source);
            self.key.places.push(held);
            self.read.len() - 1
        });
        From::Place(at as u8)
    }

    fn operand(&mut self, arg: Arg, on: DType) -> From {
        let r = match arg {
            Arg::Reg(r) => r,
            Arg::Scalar(x) => return self.place(Source::Number(x, on), Held::One),
        };
        if self.members >> r & 1 != 0 {
            return From::Value(self.values[r as usize]);
        }
        let held = match self.known.same >> r & 1 {
            0 => Held::row(self.program.dtype(r)),
            _ => Held::One,
        };
        self.place(Source::Reg(r), held)
    }

    fn bits(&mut self, bits: &'static u32) -> From {
        self.place(Source::Bits(bits), Held::One)
    }

    fn push(&mut self, how: How, from: [Option<From>; 3]) -> From {
        self.key.operations.push(Operation { how, from, stored: None });
        From::Value((self.key.operations.len() - 1) as u8)
    }

    fn one(&mut self, how: How, a: From) -> From {
        self.push(how, [Some(a), None, None])
    }

    fn two(&mut self, how: How, a: From, b: From) -> From {
        self.push(how, [Some(a), Some(b), None])
    }

    fn choose(&mut self, truth: From, a: From, b: From) -> From {
        self.push(How::Where, [Some(truth), Some(a), Some(b)])
    }

    /// The operations of an instruction: its expression in the table, rounded to its type.
    fn instruction(&mut self, instr: &Instr) -> From {
        let mut of = |arg: Arg| self.operand(arg, instr.on);
        let value = match instr.code {
            Code::Unary(op, a) => {
                let a = of(a);
                self.unary(op, a)
            }
            Code::Binary(op, a, b) => {
                let (a, b) = (of(a), of(b));
                match truths(op) {
                    Some(how) => self.two(how, a, b),
                    None => self.binary(op, a, b),
                }
            }
            Code::Where(condition, a, b) => {
                let (condition, a, b) = (of(condition), of(a), of(b));
                self.choose(condition, a, b)
            }
            Code::Cast(a) => {
                let (a, zero) = (of(a), &ZERO);
                match (instr.on, instr.dtype) {
                    (DType::Bool, _) => {
                        let (one, zero) = (self.bits(&ONE), self.bits(zero));
                        self.choose(a, one, zero)
                    }
                    (_, DType::Bool) => {
                        let zero = self.bits(zero);
                        self.two(How::Compare(group::UNEQUAL), a, zero)
                    }
                    _ => self.one(How::Same, a),
                }
            }
            _ => unreachable!("it does not fit"),
        };
        let is_one = match instr.code {
            Code::Cast(_) => instr.on == DType::Bool || instr.on == instr.dtype,
            code => instr.on == instr.dtype && is_exact(code),
        };
        match instr.dtype {
            DType::F16 if !is_one => self.one(How::ToF16, value),
            DType::BF16 if !is_one => self.nearest_bf16(value),
            _ => value,
        }
    }

    /// The nearest value of the type, ties to even: half a unit less one is added to the bits that
    /// go, and one more where the last bit that stays is odd. Its own bits stay in place.
    fn nearest_bf16(&mut self, x: From) -> From {
        let (last, half) = (self.bits(&LAST), self.bits(&NEARLY_HALF));
        let (kept, nan) = (self.bits(&UPPER), self.bits(&NAN));
        let upper = self.one(How::Upper, x);
        let odd = self.two(How::And, upper, last);
        let up = self.two(How::AddBits, x, half);
        let up = self.two(How::AddBits, up, odd);
        let rounded = self.two(How::And, up, kept);
        let is_nan = self.two(How::Compare(group::UNORDERED), x, x);
        self.choose(is_nan, nan, rounded)
    }

    fn unary(&mut self, op: UnaryOp, x: From) -> From {
        use UnaryOp as U;
        match op {
            U::Neg => {
                let sign = self.bits(&SIGN);
                self.two(How::Xor, x, sign)
            }
            U::Abs => self.magnitude(x),
            U::Sign => {
                let (zero, one) = (self.bits(&ZERO), self.bits(&ONE));
                let minus_one = self.bits(&MINUS_ONE);
                let is_below = self.two(How::Compare(group::LESS), x, zero);
                let below = self.choose(is_below, minus_one, zero);
                let is_above = self.two(How::Compare(group::GREATER), x, zero);
                self.choose(is_above, one, below)
            }
            U::Square => self.two(How::Mul, x, x),
            U::Relu => {
                let zero = self.bits(&ZERO);
                let is_cut = self.two(How::Compare(group::LESS_OR_EQUAL), x, zero);
                self.choose(is_cut, zero, x)
            }
            U::Sqrt => self.one(How::Sqrt, x),
            U::Rsqrt => {
                let (one, root) = (self.bits(&ONE), self.one(How::Sqrt, x));
                self.two(How::Div, one, root)
            }
            U::Recip => {
                let one = self.bits(&ONE);
                self.two(How::Div, one, x)
            }
            U::Hardswish => {
                let (zero, three) = (self.bits(&ZERO), self.bits(&THREE));
                let (six, sixth) = (self.bits(&SIX), self.bits(&SIXTH));
                let moved = self.two(How::Add, x, three);
                let cut = self.two(How::Smaller, six, moved);
                let cut = self.two(How::Larger, zero, cut);
                let part = self.two(How::Mul, cut, sixth);
                self.two(How::Mul, x, part)
            }
            U::Floor => self.one(How::Round(group::DOWN), x),
            U::Ceil => self.one(How::Round(group::UP), x),
            U::Round => self.one(How::Round(group::TO_EVEN), x),
            U::Trunc => self.one(How::Round(group::TO_ZERO), x),
            U::IsNan => self.two(How::Compare(group::UNORDERED), x, x),
            U::IsInf | U::IsFinite => {
                let (magnitude, infinity) = (self.magnitude(x), self.bits(&INFINITY));
                let how = if op == U::IsInf { group::EQUAL } else { group::LESS };
                self.two(How::Compare(how), magnitude, infinity)
            }
            U::LogicalNot => {
                let zero = self.bits(&ZERO);
                self.two(How::Compare(group::EQUAL), x, zero)
            }
            _ => unreachable!("it does not fit"),
        }
    }

    fn magnitude(&mut self, x: From) -> From {
        let all_but_sign = self.bits(&ALL_BUT_SIGN);
        self.two(How::And, x, all_but_sign)
    }

    fn binary(&mut self, op: BinaryOp, a: From, b: From) -> From {
        use BinaryOp as B;
        let how = match op {
            B::Add => How::Add,
            B::Sub => How::Sub,
            B::Mul => How::Mul,
            B::Div => How::Div,
            B::Maximum | B::Minimum => {
                // The first where it is NaN; the processor then has the second.
                let how = if op == B::Maximum { How::Larger } else { How::Smaller };
                let of_both = self.two(how, a, b);
                let is_nan = self.two(How::Compare(group::UNORDERED), a, a);
                return self.choose(is_nan, a, of_both);
            }
            B::LeakyRelu => {
                let (below, zero) = (self.two(How::Mul, a, b), self.bits(&ZERO));
                let is_above = self.two(How::Compare(group::GREATER), a, zero);
                return self.choose(is_above, a, below);
            }
            B::TruncDivide => {
                let quotient = self.two(How::Div, a, b);
                return self.one(How::Round(group::TO_ZERO), quotient);
            }
            B::Eq => How::Compare(group::EQUAL),
            B::Ne => How::Compare(group::UNEQUAL),
            B::Lt => How::Compare(group::LESS),
            B::Le => How::Compare(group::LESS_OR_EQUAL),
            B::Gt => How::Compare(group::GREATER),
            B::Ge => How::Compare(group::GREATER_OR_EQUAL),
            _ => unreachable!("it does not fit"),
        };
        self.two(how, a, b)
    }
}

/// The bits of a number of a type, as f32.
fn bits(x: Scalar, on: DType) -> u32 {
    let x = match on {
        DType::F16 => f16::from_scalar(x).to_f32(),
        DType::BF16 => bf16::from_scalar(x).to_f32(),
        _ => f32::from_scalar(x),
    };
    x.to_bits()
}
