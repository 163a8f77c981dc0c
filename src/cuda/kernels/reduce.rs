//! Reductions, with a fused elementwise program in front.
//!
//! A row is shared by a team whose size, like the elements that each member adds and the order in
//! which the members are joined, depends on the shape and the reduced type alone: a sum is the same
//! to the bit fused or not, and however its operand lies in memory. Where the rows lie decides only
//! which threads do a member's work: neighbours of one row, or one of each of neighbouring rows.
//! Long rows are split; a second launch joins the splits.

use super::generate::{Form, Names, computed, immediates, inputs, statements, storage};
use super::geometry::{Geometry, RANK_MAX};
use super::source::{KernelSource, Part};
use super::{Arg, Kernel, Launch, Operand, Plan, grid};
use crate::dtype::DType;
use crate::graph::program::{Code, Program};
use crate::op::ReduceOp;
use smallvec::smallvec;
use std::fmt::Write;

/// Threads of a block, and the largest team.
const THREADS: usize = 256;
/// Threads of a block whose neighbours take neighbouring rows; fewer where each carries much, so
/// that registers hold it. The order of a sum is the members', so that it does not show.
fn turned(carried_size: usize) -> usize {
    if carried_size > 8 { 512 } else { 1024 }
}
/// Blocks that fill a large device; the same everywhere, so that results are.
const BLOCKS: usize = 1024;
/// Least elements of a split.
const SPLIT: usize = 4096;
/// Elements of a row for each member of a team, about.
const SHARE: usize = 16;

/// Which threads do the work of a row's team.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Walk {
    /// Neighbours of a warp; a block has several rows.
    Warp,
    /// A block.
    Block,
    /// One or several of each of neighbouring rows.
    Turned,
}

/// The operands of a launch.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Stage {
    /// From elements to results.
    Whole(Form),
    /// From elements to one partial result a split.
    Part(Form),
    /// From partial results to results.
    Join,
}

/// Names a compiled reduction.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Key {
    pub op: ReduceOp,
    /// Element type of the reduced value.
    pub dtype: DType,
    pub stage: Stage,
    pub walk: Walk,
    /// Neighbouring elements that a member adds to chains of their own.
    pub lanes: u8,
    /// True where each of them is looked for by itself, as they may lie in different rows of
    /// memory.
    pub apart: bool,
    pub wide: bool,
}

/// A program that only reads its one input.
pub(crate) fn identity(dtype: DType) -> Program {
    let mut p = Program::default();
    let x = p.push(Code::Input(0), dtype, dtype);
    p.outputs.push(x);
    p
}

/// Element type of the result.
fn result(op: ReduceOp, dtype: DType) -> DType {
    use ReduceOp::*;
    match op {
        Sum | Prod if dtype.is_float() => dtype,
        Sum | Prod | ArgMax | ArgMin => DType::I64,
        Mean | Max | Min => dtype,
        Any | All => DType::Bool,
    }
}

/// Type in which sums are carried.
fn carried(dtype: DType) -> &'static str {
    if dtype.is_float() { computed(dtype) } else { "i64" }
}

/// The device's name of the operation, and room for its accumulator; `wide` where places take 64
/// bits. (Comparing wants registers: with less room said, more threads would have too few.)
fn policy(op: ReduceOp, dtype: DType, wide: bool) -> (String, usize) {
    use ReduceOp::*;
    let (sum, c) = (carried(dtype), computed(dtype));
    let width = if sum == "float" { 4 } else { 8 };
    let place = if wide { "u64" } else { "u32" };
    match op {
        Sum | Mean => (format!("ft::Sum<{sum}>"), width),
        Prod => (format!("ft::Prod<{sum}>"), width),
        Max => (format!("ft::Best<{c}, 1>"), 16),
        Min => (format!("ft::Best<{c}, -1>"), 16),
        ArgMax => (format!("ft::ArgBest<{c}, 1, {place}>"), 16),
        ArgMin => (format!("ft::ArgBest<{c}, -1, {place}>"), 16),
        Any => ("ft::Any".into(), 1),
        All => ("ft::All".into(), 1),
    }
}

/// The launches that reduce the value of `program` (its one output) over the dimensions of `shape`
/// that `reduced` marks; the result is contiguous. `None` where more than eight dimensions are left
/// after merging: copy the inputs to contiguous memory first.
pub(crate) fn plan(
    op: ReduceOp,
    program: &Program,
    shape: &[usize],
    reduced: &[bool],
    operands: &[Operand<'_>],
) -> Option<Plan> {
    let dtypes = inputs(program);
    let form = Form::of(program);
    let dtype = program.dtype(program.outputs[0]);

    // The linear position is one more operand, where a value depends on it or there is no other.
    let positions = crate::shape::contiguous_strides(shape);
    let mut strides: Vec<&[isize]> = operands[..dtypes.len()].iter().map(|o| o.strides).collect();
    if form.is_positional() || dtypes.is_empty() {
        strides.push(&positions);
    }
    let side = |keep: bool| {
        let pick = |s: &[isize]| -> Vec<isize> {
            (0..shape.len()).filter(|&d| reduced[d] != keep).map(|d| s[d]).collect()
        };
        let dims: Vec<usize> =
            (0..shape.len()).filter(|&d| reduced[d] != keep).map(|d| shape[d]).collect();
        let picked: Vec<Vec<isize>> = strides.iter().map(|s| pick(s)).collect();
        Geometry::new(&dims, &picked.iter().map(Vec::as_slice).collect::<Vec<_>>())
    };
    let (kept, over) = (side(true), side(false));
    if kept.rank() > RANK_MAX || over.rank() > RANK_MAX {
        return None;
    }
    let (rows, len) = (kept.numel(), over.numel());
    let mut plan = Plan::default();
    if rows == 0 {
        return Some(plan);
    }
    let wide = rows > i32::MAX as usize || len > 0 && !Geometry::new(shape, &strides).fits_32();
    let carried_size = policy(op, dtype, wide).1;

    // This decides the order: nothing here may look at strides, at alignment or, for floats, at the
    // fused program.
    let size = match dtype.is_float() {
        true => dtype.size(),
        // Integers give the same in every order, so that the types of the inputs may decide.
        false => dtypes.iter().map(|d| d.size()).max().unwrap_or(4),
    };
    let most = (16 / size).min(8);
    let lanes = if len > 0 && len.is_multiple_of(most) { most } else { 1 };
    let team = if len > 1024 { THREADS } else { len.div_ceil(SHARE).next_power_of_two().min(32) };
    let splits = (BLOCKS / rows).clamp(1, len.div_ceil(SPLIT).max(1));
    let chunk = len.div_ceil(splits).next_multiple_of(8).max(8);
    let splits = len.div_ceil(chunk).max(1);

    // How memory is walked in that order.
    let count = dtypes.len();
    let along =
        |g: &Geometry| g.rank() > 0 && (0..count).any(|k| g.strides[k][0].unsigned_abs() == 1);
    let inside = over.rank() > 0 && over.dims[0].is_multiple_of(lanes);
    let apart = lanes > 1 && (form.is_positional() || !inside);
    let vector = (0..count).fold(0, |bits, k| {
        let others = || kept.strides[k].iter().chain(&over.strides[k][1..]);
        let whole = lanes > 1
            && inside
            && over.strides[k][0] == 1
            && operands[k].align.is_multiple_of(lanes * dtypes[k].size())
            && others().all(|s| s.unsigned_abs().is_multiple_of(lanes));
        bits | (whole as u32) << k
    });
    let (walk, block) = match (along(&kept) && !along(&over) && rows >= 32, team) {
        // A team of one is a row a thread either way.
        (false, ..=32) => (Walk::Warp, [team, THREADS / team, 1]),
        (false, _) => (Walk::Block, [THREADS, 1, 1]),
        (true, _) => {
            // Few rows: 32 bytes of each line of memory, so that there are blocks for the whole
            // device.
            let least = if rows < 4 * BLOCKS && team >= 32 { 8 } else { 32 };
            let width = least.max(THREADS / team).min(THREADS);
            (Walk::Turned, [width, team.min(turned(carried_size) / width), 1])
        }
    };
    let row_blocks = match walk {
        Walk::Warp => rows.div_ceil(block[1]),
        Walk::Block => rows,
        Walk::Turned => rows.div_ceil(block[0]),
    };
    let block = block.map(|n| n as u32);

    let number = |n: usize| if wide { Arg::U64(n as u64) } else { Arg::U32(n as u32) };
    let mut args: smallvec::SmallVec<[Arg; 8]> =
        (0..count).map(|k| Arg::In { index: k as u8, bytes: 0 }).collect();
    args.push(if splits > 1 { Arg::Scratch(0) } else { Arg::Out { index: 0, bytes: 0 } });
    args.extend([
        number(rows),
        number(len),
        number(chunk),
        Arg::U32(team as u32),
        Arg::U32(vector),
        Arg::U64(len as u64),
        kept.arg(wide),
        over.arg(wide),
    ]);
    let numbers = immediates(program);
    if !numbers.as_words().is_empty() {
        args.push(Arg::Struct(numbers));
    }
    let stage = if splits > 1 { Stage::Part(form) } else { Stage::Whole(form) };
    let key = Key { op, dtype, stage, walk, lanes: lanes as u8, apart, wide };
    plan.launches.push(Launch {
        kernel: Kernel::Reduce(key),
        grid: grid(row_blocks, splits, 1),
        block,
        shared: 0,
        args,
    });
    if splits > 1 {
        plan.scratch = rows * splits * carried_size;
        let key =
            Key { op, dtype, stage: Stage::Join, walk: Walk::Warp, lanes: 1, apart: false, wide };
        let args = smallvec![
            Arg::Scratch(0),
            Arg::Out { index: 0, bytes: 0 },
            number(rows),
            number(splits),
            number(splits),
            Arg::U32(32),
            Arg::U32(0),
            Arg::U64(len as u64),
        ];
        plan.launches.push(Launch {
            kernel: Kernel::Reduce(key),
            grid: grid(rows.div_ceil(8), 1, 1),
            block: [32, 8, 1],
            shared: 0,
            args,
        });
    }
    Some(plan)
}

impl Key {
    /// The kernel as CUDA C.
    pub fn source(&self) -> KernelSource {
        let (policy, carried_size) = policy(self.op, self.dtype, self.wide);
        let (index, geo) = if self.wide { ("u64", "Geo64") } else { ("u32", "Geo32") };
        let lanes = self.lanes as usize;
        let out = result(self.op, self.dtype);
        let mut params: Vec<String> = Vec::new();
        let mut c = format!("    typedef {policy} Op;\n");
        let mut line = |text: String| writeln!(c, "{text}").expect("writing to a string");

        match &self.stage {
            Stage::Join => {
                params.push(format!("const {policy}::A* in0"));
                line(format!("    auto row = [&]({index} r) {{"));
                line(format!(
                    "        return [&, r]({index} j, Op::A* acc) {{ acc[0] = Op::join(acc[0], \
                     in0[(u64)r * len + j]); }};"
                ));
                line("    };".into());
            }
            Stage::Whole(form) | Stage::Part(form) => {
                let dtypes = form.inputs();
                let positional = form.is_positional() || dtypes.is_empty();
                let n = dtypes.len() + positional as usize;
                for (k, &d) in dtypes.iter().enumerate() {
                    params.push(format!("const {}* in{k}", storage(d)));
                }
                let position = format!("(u64)off[{}]", n - 1);
                let names = Names {
                    input: &|k| format!("x{k}.v[v]"),
                    first: &position,
                    position: &position,
                    lane: "v",
                };
                // At once, or each by itself.
                let (at_once, each) = if self.apart { (1, lanes) } else { (lanes, 1) };
                let s = statements(form, &names, at_once);
                line(format!("    auto row = [&]({index} r) {{"));
                line(format!("        struct Base {{ ft::{geo}<{n}>::Stride at[{n}]; }} base;"));
                line(format!("        ft::offsets<{n}, ft::{geo}>(kept, r, base.at);"));
                line(format!("        return [&, base]({index} first, Op::A* chains) {{"));
                line(format!("#pragma unroll\n    for (int w = 0; w < {each}; ++w) {{"));
                line(format!(
                    "    const {index} j = first + w;\n    Op::A* const acc = chains + w;"
                ));
                line(format!("    ft::{geo}<{n}>::Stride off[{n}];"));
                line(format!(
                    "#pragma unroll\n    for (int k = 0; k < {n}; ++k) off[k] = base.at[k];"
                ));
                line(format!("    ft::walk<{n}, ft::{geo}>(over, j, off);"));
                for (k, &d) in dtypes.iter().enumerate() {
                    line(format!(
                        "    const ft::Vec<{}, {at_once}> x{k} = \
                         ft::load_strided<{at_once}>(in{k} + off[{k}], over.stride[{k}][0], \
                         vector >> {k} & 1);",
                        storage(d)
                    ));
                }
                line(s.draws.trim_end().into());
                line(format!("#pragma unroll\n    for (int v = 0; v < {at_once}; ++v) {{"));
                line(s.body.trim_end().into());
                line(format!("        Op::take(acc[v], r{}, j + v);", form.0.outputs[0]));
                line("    }\n    }\n        };\n    };".into());
            }
        }

        let a = if self.op == ReduceOp::Mean {
            format!("a / ({})count", carried(self.dtype))
        } else {
            "a".into()
        };
        let value = match self.op {
            ReduceOp::ArgMax | ReduceOp::ArgMin => "a.found()".into(),
            // Of the zeros the positive one, as on the host.
            ReduceOp::Max | ReduceOp::Min if self.dtype.is_float() => {
                format!("a + ({})0", carried(self.dtype))
            }
            ReduceOp::Sum | ReduceOp::Prod | ReduceOp::Mean | ReduceOp::Max | ReduceOp::Min => a,
            ReduceOp::Any | ReduceOp::All => a,
        };
        if let Stage::Part(_) = self.stage {
            params.push(format!("{policy}::A* out"));
            line(format!(
                "    auto put = [&]({index} r, u32 split, Op::A a) {{ \
                 out[(u64)r * gridDim.y + split] = a; }};"
            ));
        } else {
            let out = storage(out);
            params.push(format!("{out}* out"));
            line(format!(
                "    auto put = [&]({index} r, u32, Op::A a) {{ \
                 out[r] = ft::As<{out}>::of({value}); }};"
            ));
        }
        for name in ["rows", "len", "chunk"] {
            params.push(format!("{index} {name}"));
        }
        params.extend(["u32 team", "u32 vector", "u64 count"].map(String::from));
        if let Stage::Whole(form) | Stage::Part(form) = &self.stage {
            let n =
                form.inputs().len() + (form.is_positional() || form.inputs().is_empty()) as usize;
            params.push(format!("ft::{geo}<{n}> kept"));
            params.push(format!("ft::{geo}<{n}> over"));
            let k = immediates(&form.0).as_words().len();
            if k > 0 {
                params.push(format!("ft::Imm<{k}> imm"));
            }
        }
        let (walk, threads) = match self.walk {
            Walk::Warp => (format!("rows<Op, {lanes}, 32, {index}>"), THREADS),
            Walk::Block => (format!("rows<Op, {lanes}, {THREADS}, {index}>"), THREADS),
            Walk::Turned => (format!("turned<Op, {lanes}, {index}>"), turned(carried_size)),
        };
        line(format!("    ft::reduce_{walk}(rows, len, chunk, team, row, put);"));
        let parts: &[Part] = match &self.stage {
            Stage::Whole(f) | Stage::Part(f) if f.is_positional() => {
                &[Part::Base, Part::Ops, Part::Elementwise, Part::Random, Part::Reduce]
            }
            _ => &[Part::Base, Part::Ops, Part::Elementwise, Part::Reduce],
        };
        let name = format!("reduce_{}", self.op.name());
        let source = KernelSource::new(&name, parts, threads as u32, &params, &c);
        // The compiler spills the extremes of a warp's rows for sm_100 unless it is told.
        let extreme = matches!(self.op, ReduceOp::Max | ReduceOp::Min);
        if self.walk == Walk::Turned || self.walk == Walk::Warp && extreme {
            return source.with_registers(threads as u32);
        }
        source
    }
}
