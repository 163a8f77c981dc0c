//! Fusion: from nodes to one program.
//!
//! A [`Group`] is built in the order of the data, a node at a time; an operand that is no member
//! becomes an input. The group is generic in its hold on a node, so that a poll plans with borrows
//! and the engine with links. Knows nothing of values, devices or time.

use super::infer;
use super::node::{Node, Op};
use super::program::{Arg, Code, INPUTS_MAX, INSTRS_MAX, Program, Reg, number_beside};
use crate::dtype::DType;
use smallvec::SmallVec;
use std::ops::Deref;

/// Nodes that become one step, and the program that computes them.
pub(crate) struct Group<N> {
    pub program: Program,
    /// The operands of the program, in the order of `Code::Input`.
    pub inputs: SmallVec<[N; 2]>,
    /// How many of the members' operands each input is.
    pub edges: SmallVec<[u8; 2]>,
    /// The nodes that are computed, with their registers.
    pub members: SmallVec<[(N, Reg); 2]>,
    /// A node that is no instruction, is computed just before the program, and is read by its
    /// members only; and which of the inputs it is.
    pub head: Option<(N, u8)>,
    input_regs: SmallVec<[Reg; 2]>,
}

fn address(node: &Node) -> usize {
    node as *const Node as usize
}

impl<N: Deref<Target = Node> + Clone> Group<N> {
    pub fn new() -> Group<N> {
        Group {
            program: Program::default(),
            inputs: SmallVec::new(),
            edges: SmallVec::new(),
            members: SmallVec::new(),
            head: None,
            input_regs: SmallVec::new(),
        }
    }

    /// True where one more node surely fits.
    pub fn has_room(&self) -> bool {
        self.program.instrs.len() + 7 <= INSTRS_MAX && self.inputs.len() + 3 <= INPUTS_MAX
    }

    pub fn member(&self, node: &Node) -> Option<Reg> {
        self.members.iter().find(|(n, _)| address(n) == address(node)).map(|&(_, reg)| reg)
    }

    /// The input that this node is.
    pub fn input(&self, node: &Node) -> Option<usize> {
        self.inputs.iter().position(|n| address(n) == address(node))
    }

    /// The input that the head is.
    pub fn head_input(&self) -> Option<usize> {
        self.head.as_ref().map(|&(_, i)| i as usize)
    }

    /// The register in which a node's value is read, as a member or as an input.
    pub fn operand(&mut self, node: &N) -> Reg {
        if let Some(reg) = self.member(node) {
            return reg;
        }
        if let Some(i) = self.input(node) {
            self.edges[i] += 1;
            return self.input_regs[i];
        }
        let reg = self.program.push(Code::Input(self.inputs.len() as u8), node.dtype, node.dtype);
        self.inputs.push(node.clone());
        self.edges.push(1);
        self.input_regs.push(reg);
        reg
    }

    fn cast(&mut self, reg: Reg, to: DType) -> Reg {
        let from = self.program.dtype(reg);
        if from == to {
            return reg;
        }
        let code = Code::Cast(Arg::Reg(reg));
        let found = self.program.instrs.iter().position(|i| i.code == code && i.dtype == to);
        found.map_or_else(|| self.program.push(code, from, to), |i| i as Reg)
    }

    /// An operand of an instruction on one type that gives another. Halves are computed in float32
    /// anyway: what makes halves in float32 takes them as they are.
    fn taken(&mut self, reg: Reg, on: DType, out: DType) -> Reg {
        if on == out.wide() && self.program.dtype(reg) == out { reg } else { self.cast(reg, on) }
    }

    /// Adds an elementwise node whose operands are `inputs`; its type rules were checked when it
    /// was made.
    pub fn add(&mut self, node: &N, inputs: &[N]) -> Reg {
        let mut regs: SmallVec<[Reg; 3]> = SmallVec::new();
        for input in inputs {
            regs.push(self.operand(input));
        }
        let dtype = |regs: &[Reg], i: usize, p: &Program| p.dtype(regs[i]);
        let out = node.dtype;
        let reg = match node.op {
            Op::Unary(op) => {
                let on = infer::unary(op, dtype(&regs, 0, &self.program)).map_or(out, |t| t.on);
                let a = Arg::Reg(self.cast(regs[0], on));
                self.program.push(Code::Unary(op, a), on, out)
            }
            Op::Binary(op) => {
                let (a, b) = (
                    (inputs[0].dtype, inputs[0].shape.rank()),
                    (inputs[1].dtype, inputs[1].shape.rank()),
                );
                let on = infer::binary(op, a, b).map_or(out, |t| t.on);
                let is_beside = a.0 != b.0 && (a.1 == 0) != (b.1 == 0);
                let on = if is_beside { number_beside(op, on) } else { on };
                let (a, b) = (
                    Arg::Reg(self.taken(regs[0], on, out)),
                    Arg::Reg(self.taken(regs[1], on, out)),
                );
                self.program.push(Code::Binary(op, a, b), on, out)
            }
            Op::WithScalar { op, scalar, left } => {
                let on = infer::with_scalar(op, dtype(&regs, 0, &self.program), scalar)
                    .map_or(out, |t| t.on);
                let on = number_beside(op, on);
                let x = Arg::Reg(self.taken(regs[0], on, out));
                let (a, b) = if left { (Arg::Scalar(scalar), x) } else { (x, Arg::Scalar(scalar)) };
                self.program.push(Code::Binary(op, a, b), on, out)
            }
            Op::Where => {
                let condition = Arg::Reg(self.cast(regs[0], DType::Bool));
                let (a, b) = (Arg::Reg(self.cast(regs[1], out)), Arg::Reg(self.cast(regs[2], out)));
                self.program.push(Code::Where(condition, a, b), out, out)
            }
            Op::Cast => {
                let from = self.program.dtype(regs[0]);
                self.program.push(Code::Cast(Arg::Reg(regs[0])), from, out)
            }
            Op::Fill(scalar) => self.program.push(Code::Fill(scalar), out, out),
            Op::Arange { start, step } => self.program.push(Code::Arange { start, step }, out, out),
            Op::Random { normal: true, seed, offset } => {
                self.program.push(Code::Normal { seed, offset }, out, out)
            }
            Op::Random { normal: false, seed, offset } => {
                self.program.push(Code::Uniform { seed, offset }, out, out)
            }
            Op::View(_)
            | Op::Reduce(_)
            | Op::Custom(_)
            | Op::Source(_)
            | Op::Sink(_)
            | Op::Call(_)
            | Op::Part(_)
            | Op::Predicated(_)
            | Op::Marker
            | Op::Given => {
                unreachable!("only elementwise nodes are added to a group")
            }
        };
        self.members.push((node.clone(), reg));
        reg
    }
}
