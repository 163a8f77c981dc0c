//! Softmax, its logarithms, and the norms: a warp or a block a row, one read of memory where the
//! row fits in registers (up to 32 Ki elements, 16 Ki of float64), two reads of a longer row.
//!
//! A row is one dimension (or the trailing ones, merged), with any stride. Of rows that lie side by
//! side, because the dimension is not the last, neighbouring threads take neighbours, and 16
//! threads share a long row (on an H100 4,096 threads a row of 4,096 are a sixtieth of those that
//! fit).

use super::generate::storage;
use super::geometry::{Geometry, RANK_MAX};
use super::source::{KernelSource, Part};
use super::{Arg, Kernel, Launch, Operand, Plan, grid};
use crate::dtype::DType;
use smallvec::smallvec;

/// The result of a row.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum RowOp {
    Softmax,
    /// Zeros of a row of -inf alone.
    SafeSoftmax,
    LogSoftmax,
    LogSumExp,
    /// Mean 0, variance 1, then weight and bias.
    LayerNorm {
        weight: bool,
        bias: bool,
    },
    /// Mean square 1, then the weight.
    RmsNorm {
        weight: bool,
    },
}

/// Threads that share a row, packs that each holds (0: the row is read twice).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum RowTeam {
    Rows {
        threads: u16,
        packs: u8,
        lanes: u8,
    },
    /// So many threads share a row, and so many rows lie side by side in a block.
    Columns {
        members: u8,
        rows: u16,
    },
}

impl RowTeam {
    /// The threads of a block.
    fn block(self) -> [u32; 3] {
        match self {
            RowTeam::Columns { members, rows } => [rows as u32, members as u32, 1],
            RowTeam::Rows { threads: 32, .. } => [32, 4, 1],
            RowTeam::Rows { threads, .. } => [threads as u32, 1, 1],
        }
    }
}

/// Names a compiled kernel.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Key {
    pub op: RowOp,
    pub dtype: DType,
    pub team: RowTeam,
}

/// Rows of up to this many packs a thread are held in registers.
const PACKS: usize = 16;

/// The launches that apply `op` to rows along `dims` of `shape`, marked. Input 0 is the value, then
/// weight and bias where there are any: contiguous, of the value's type, at addresses that 16
/// divides. The output is contiguous
/// over `shape` (for `LogSumExp`, over the dimensions that are left). `eps` is the norms'. `None`
/// where the rows cannot be walked by one stride: copy the input to contiguous memory first.
///
/// Marked dimensions are neighbours; the norms' are the last.
pub(crate) fn plan(
    op: RowOp,
    dtype: DType,
    shape: &[usize],
    dims: &[bool],
    operand: Operand<'_>,
    out_align: usize,
    eps: f64,
) -> Option<Plan> {
    let pick = |keep: bool| {
        let dims_of: Vec<usize> =
            (0..shape.len()).filter(|&d| dims[d] != keep).map(|d| shape[d]).collect();
        let strides: Vec<isize> =
            (0..shape.len()).filter(|&d| dims[d] != keep).map(|d| operand.strides[d]).collect();
        Geometry::new(&dims_of, &[&strides])
    };
    let (kept, row) = (pick(true), pick(false));
    if kept.rank() > RANK_MAX || row.rank() > 1 {
        return None;
    }
    let last = dims.iter().rposition(|&d| d).map_or(0, |d| d + 1);
    let inner = crate::shape::numel(&shape[last..]);
    let (rows, n) = (kept.numel(), row.numel());
    let mut plan = Plan::default();
    let whole = op != RowOp::LogSumExp;
    if rows == 0 || (whole && n == 0) {
        return Some(plan);
    }
    let step = row.inner(0);
    // The shape decides how a row is shared, and with it the order of the additions, so that a
    // value does not depend on how its operand lies in memory; one that lies otherwise is copied
    // first.
    let columns = inner > 1 && rows >= 32;
    let most = (16 / dtype.size()).min(8);
    let bytes = most * dtype.size();
    let vector = inner == 1 && n > 0 && n.is_multiple_of(most) && out_align.is_multiple_of(bytes);
    let fits = || {
        step == 1
            && operand.align.is_multiple_of(bytes)
            && kept.strides[0].iter().all(|s| s.unsigned_abs().is_multiple_of(most))
    };
    if (columns && n > 0 && kept.inner(0) != 1) || (vector && !fits()) {
        return None;
    }
    let team = match columns {
        true if n < 64 => RowTeam::Columns { members: 1, rows: 256 },
        true => RowTeam::Columns { members: 16, rows: 32 },
        false => team(n, if vector { most } else { 1 }, dtype.size()),
    };
    let block = team.block();
    let blocks = rows.div_ceil(if columns { block[0] } else { block[1] } as usize);
    let mut args = smallvec![Arg::In { index: 0, bytes: 0 }];
    let extra = match op {
        RowOp::LayerNorm { weight, bias } => weight as u8 + bias as u8,
        RowOp::RmsNorm { weight } => weight as u8,
        _ => 0,
    };
    args.extend((1..=extra).map(|index| Arg::In { index, bytes: 0 }));
    args.extend([
        Arg::Out { index: 0, bytes: 0 },
        Arg::U64(rows as u64),
        Arg::U64(n as u64),
        Arg::U64(step as u64),
        Arg::U64(if whole { inner } else { 1 } as u64),
        kept.arg(true),
    ]);
    if !matches!(op, RowOp::Softmax | RowOp::LogSoftmax | RowOp::LogSumExp) {
        args.push(Arg::F64(eps));
    }
    let kernel = Kernel::Softmax(Key { op, dtype, team });
    plan.launches.push(Launch { kernel, grid: grid(blocks, 1, 1), block, shared: 0, args });
    Some(plan)
}

/// The smallest team whose registers hold a row.
fn team(n: usize, lanes: usize, size: usize) -> RowTeam {
    let rows = |threads: usize, packs: usize| RowTeam::Rows {
        threads: threads as u16,
        packs: packs as u8,
        lanes: lanes as u8,
    };
    // A warp up to 1024 elements, then blocks; registers hold 32 elements a thread, of float64 in
    // blocks of 512.
    let most = PACKS.min(32 / lanes);
    for threads in [32, 256, if size == 8 { 512 } else { 1024 }] {
        let packs = n.div_ceil(threads * lanes).next_power_of_two();
        if packs <= most {
            return rows(threads, packs);
        }
    }
    rows(1024, 0)
}

impl Key {
    /// The kernel as CUDA C.
    pub fn source(&self) -> KernelSource {
        let t = storage(self.dtype);
        let mut params = vec![format!("const {t}* x")];
        let (weight, bias) = match self.op {
            RowOp::LayerNorm { weight, bias } => (weight, bias),
            RowOp::RmsNorm { weight } => (weight, false),
            _ => (false, false),
        };
        if weight {
            params.push(format!("const {t}* weight"));
        }
        if bias {
            params.push(format!("const {t}* bias"));
        }
        params.push(format!("{t}* out"));
        for p in ["u64 rows", "u64 n", "i64 step", "u64 inner", "ft::Geo64<1> kept"] {
            params.push(p.into());
        }
        let norm = matches!(self.op, RowOp::LayerNorm { .. } | RowOp::RmsNorm { .. });
        if norm {
            params.push("double eps".into());
        }
        let threads = self.team.block().iter().product();
        let side = if matches!(self.team, RowTeam::Columns { .. }) { "x" } else { "y" };
        let mut c = format!(
            "    const u64 r = (u64)blockIdx.x * blockDim.{side} + threadIdx.{side};\n    \
             const bool alive = r < rows;\n"
        );
        c += "    i64 off[1];\n    ft::offsets<1, ft::Geo64>(kept, r, off);\n";
        c += &format!("    ft::Row<{t}> row = {{x + off[0], step, (i64)n}};\n");
        c += match self.op {
            RowOp::LogSumExp => "    const u64 to = r;\n",
            _ => "    const u64 to = r / inner * n * inner + r % inner;\n",
        };
        let kind = match self.op {
            RowOp::SafeSoftmax => "ft::SAFE_SOFTMAX",
            RowOp::LogSoftmax => "ft::LOG_SOFTMAX",
            RowOp::LogSumExp => "ft::LOGSUMEXP",
            _ => "ft::SOFTMAX",
        };
        c += &match self.team {
            RowTeam::Columns { members, rows } => format!(
                "    ft::softmax_column<{kind}, {t}, {rows}, {members}>(row, out + to, (i64)inner, \
                 alive);\n"
            ),
            RowTeam::Rows { threads, packs, lanes } if norm => {
                let rms = matches!(self.op, RowOp::RmsNorm { .. });
                let null = format!("(const {t}*)0");
                let weight = if weight { "weight" } else { &null };
                let bias = if bias { "bias" } else { &null };
                format!(
                    "    ft::norm_row<{rms}, {t}, {threads}, {packs}, {lanes}>(row, {weight}, \
                     {bias}, out + to, eps, alive);\n"
                )
            }
            RowTeam::Rows { threads, packs, lanes } => format!(
                "    ft::softmax_row<{kind}, {t}, {threads}, {packs}, {lanes}>(row, out + to, \
                 (i64)inner, alive);\n"
            ),
        };
        let name = match self.op {
            RowOp::Softmax => "softmax",
            RowOp::SafeSoftmax => "safe_softmax",
            RowOp::LogSoftmax => "log_softmax",
            RowOp::LogSumExp => "logsumexp",
            RowOp::LayerNorm { .. } => "layer_norm",
            RowOp::RmsNorm { .. } => "rms_norm",
        };
        let parts = &[Part::Base, Part::Ops, Part::Elementwise, Part::Reduce, Part::Softmax];
        KernelSource::new(name, parts, threads, &params, &c).with_registers(threads)
    }
}
