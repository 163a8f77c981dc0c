//! Scans along a dimension: the rows of `op/scan`.
//!
//! A block scans a row and moves it once. Where rows are few and long each is cut into chunks of
//! 2048, and the totals of the chunks are scanned in between: one long row fills the device too.
//! Integers and bool are computed in i64, halves in float. Beyond that the file knows no dtypes.

use super::generate::{computed, storage};
use super::geometry::{Geometry, RANK_MAX};
use super::source::{KernelSource, Part};
use super::{Arg, GRID_YZ_MAX, Kernel, Launch, Operand, Plan, grid};
use crate::dtype::DType;
use crate::op::Scan;
use smallvec::smallvec;

/// Elements of a chunk; `CHUNK` in `device/scan.cuh`.
const CHUNK: usize = 2048;
/// Rows that fill the device, and chunks of a row that take a block less time than two launches.
const ROWS: usize = 256;
const CHUNKS: usize = 4;

/// Names a compiled kernel; the type is that of the elements.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Key {
    ChunkSums(Scan, DType),
    /// Scans the sums in place.
    Sums(Scan, DType),
    /// With the sums before each chunk.
    Chunks(Scan, DType),
    Rows(Scan, DType),
    Columns(Scan, DType),
}

fn carried(dtype: DType) -> (&'static str, usize) {
    if dtype.is_float() { (computed(dtype), dtype.size().max(4)) } else { ("i64", 8) }
}

/// Neighbours that a thread takes of a line.
fn lanes(dtype: DType) -> usize {
    (16 / dtype.size()).min(8)
}

/// The launches of a scan along `dim`. The output is contiguous, i64 for integers and bool, at an
/// address that `out_align` divides. `None` where more than eight dimensions are left after
/// merging, or a row has more than 2^27 elements.
pub(crate) fn plan(
    fold: Scan,
    dtype: DType,
    shape: &[usize],
    dim: usize,
    x: Operand<'_>,
    out_align: usize,
) -> Option<Plan> {
    let mut plan = Plan::default();
    if shape.contains(&0) {
        return Some(plan);
    }
    let without = |d: &usize| *d != dim;
    let dims: Vec<usize> = (0..shape.len()).filter(without).map(|d| shape[d]).collect();
    let strides: Vec<isize> = (0..shape.len()).filter(without).map(|d| x.strides[d]).collect();
    let g = Geometry::new(&dims, &[&strides]);
    let (rows, n) = (g.numel(), shape[dim]);
    let chunks = n.div_ceil(CHUNK);
    if g.rank() > RANK_MAX || chunks > GRID_YZ_MAX {
        return None;
    }
    let inner = crate::shape::numel(&shape[dim + 1..]);
    let tail = |args: &mut smallvec::SmallVec<[Arg; 8]>| {
        args.extend([
            Arg::U64(rows as u64),
            Arg::U64(n as u64),
            Arg::U64(x.strides[dim] as u64),
            Arg::U64(inner as u64),
            g.arg(true),
        ]);
    };
    let input = Arg::In { index: 0, bytes: 0 };
    let out = Arg::Out { index: 0, bytes: 0 };
    let mut push = |key, grid: [u32; 3], args| {
        plan.launches.push(Launch {
            kernel: Kernel::Scan(key),
            grid,
            block: [256, 1, 1],
            shared: 0,
            args,
        });
    };
    if (inner > 1 || n <= 64) && rows >= ROWS {
        let mut args = smallvec![input, out];
        tail(&mut args);
        push(Key::Columns(fold, dtype), grid(rows.div_ceil(256), 1, 1), args);
        return Some(plan);
    }
    if chunks <= CHUNKS || rows >= ROWS {
        let most = lanes(dtype);
        let input_whole = x.strides[dim] == 1
            && x.align.is_multiple_of(most * dtype.size())
            && g.strides[0].iter().all(|s| s.unsigned_abs().is_multiple_of(most));
        let output_whole = inner == 1 && out_align.is_multiple_of(16);
        let whole = input_whole as u32 | (output_whole as u32) << 1;
        let mut args = smallvec![input, out];
        tail(&mut args);
        args.push(Arg::U32(if n.is_multiple_of(most) { whole } else { 0 }));
        push(Key::Rows(fold, dtype), grid(rows, 1, 1), args);
        return Some(plan);
    }
    let blocks = grid(rows, chunks, 1);
    let mut args = smallvec![input.clone(), Arg::Scratch(0)];
    tail(&mut args);
    push(Key::ChunkSums(fold, dtype), blocks, args);
    push(
        Key::Sums(fold, dtype),
        grid(rows, 1, 1),
        smallvec![Arg::Scratch(0), Arg::U64(chunks as u64)],
    );
    let mut args = smallvec![input, Arg::Scratch(0), out];
    tail(&mut args);
    push(Key::Chunks(fold, dtype), blocks, args);
    plan.scratch = rows * chunks * carried(dtype).1;
    Some(plan)
}

impl Key {
    /// The kernel as CUDA C.
    pub fn source(&self) -> KernelSource {
        let walk = "u64 rows, u64 n, i64 step, u64 inner, ft::Geo64<1> geo".to_string();
        let place = |row: &str| {
            format!(
                "    const u64 r = {row};\n    if (r >= rows) return;\n    i64 off[1];\n    \
                 ft::offsets<1, ft::Geo64>(geo, r, off);\n"
            )
        };
        let to = "    const u64 to = r / inner * n * inner + r % inner;\n";
        let block = place("blockIdx.x");
        let (Key::ChunkSums(fold, _)
        | Key::Sums(fold, _)
        | Key::Chunks(fold, _)
        | Key::Rows(fold, _)
        | Key::Columns(fold, _)) = *self;
        // The row's number, which tells the kernels what to do.
        let op = fold as usize;
        let (name, params, code) = match *self {
            Key::ChunkSums(_, d) => {
                let (t, a) = (storage(d), carried(d).0);
                let code = format!(
                    "{block}    ft::chunk_sum<{op}, {a}>(x + off[0], step, (i64)n, \
                     sums + r * gridDim.y + blockIdx.y);\n"
                );
                ("chunk_sums", vec![format!("const {t}* x"), format!("{a}* sums"), walk], code)
            }
            Key::Sums(_, d) => {
                let a = carried(d).0;
                let code =
                    format!("    ft::scan_sums<{op}, {a}>(sums + (u64)blockIdx.x * n, (i64)n);\n");
                ("scan_sums", vec![format!("{a}* sums"), "u64 n".into()], code)
            }
            Key::Chunks(_, d) => {
                let (t, a) = (storage(d), carried(d).0);
                let s = if d.is_float() { t } else { "i64" };
                let code = format!(
                    "{block}{to}    ft::chunk_scan<{op}, {a}>(x + off[0], step, (i64)n, \
                     sums[r * gridDim.y + blockIdx.y], out + to, (i64)inner);\n"
                );
                let params = [format!("const {t}* x, const {a}* sums, {s}* out"), walk];
                ("cumsum", params.into(), code)
            }
            Key::Rows(_, d) => {
                let (t, a, most) = (storage(d), carried(d).0, lanes(d));
                let s = if d.is_float() { t } else { "i64" };
                let code = format!(
                    "{block}{to}    ft::row_scan<{op}, {most}, {a}>(x + off[0], step, (i64)n, \
                     out + to, (i64)inner, whole);\n"
                );
                let params = [format!("const {t}* x, {s}* out"), walk, "u32 whole".into()];
                ("cumsum_rows", params.into(), code)
            }
            Key::Columns(_, d) => {
                let (t, a) = (storage(d), carried(d).0);
                let s = if d.is_float() { t } else { "i64" };
                let code = format!(
                    "{}{to}    ft::column_scan<{op}, {a}>(x + off[0], step, (i64)n, out + to, \
                     (i64)inner);\n",
                    place("(u64)blockIdx.x * 256 + threadIdx.x")
                );
                ("cumsum_columns", vec![format!("const {t}* x"), format!("{s}* out"), walk], code)
            }
        };
        let source =
            KernelSource::new(name, &[Part::Base, Part::Ops, Part::Scan], 256, &params, &code);
        match *self {
            // Enough blocks that some wait for memory while others add up.
            Key::Rows(_, d) => source.with_blocks(256, if lanes(d) > 4 { 3 } else { 4 }),
            _ => source,
        }
    }
}
