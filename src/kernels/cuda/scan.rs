//! Running sums along a dimension, and the places of nonzero elements.
//!
//! A row is cut into chunks of 2048; their sums are scanned in between, so that one long row fills the
//! device too. Integers and bool are added in i64, halves in float. Knows no dtypes beyond that.

use super::generate::{computed, storage};
use super::geometry::{Geometry, RANK_MAX};
use super::source::{KernelSource, Part};
use super::{Arg, GRID_YZ_MAX, Kernel, Launch, Operand, Plan, Words};
use crate::dtype::DType;
use smallvec::smallvec;

/// Elements of a chunk; `CHUNK` in `device/scan.cuh`.
const CHUNK: usize = 2048;
/// Most dimensions that `nonzero` takes; `Dims` in `device/scan.cuh`.
pub(crate) const NONZERO_RANK_MAX: usize = 16;

/// Names a compiled kernel; the type is that of the elements.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Key {
    ChunkSums(DType),
    /// Scans the sums in place; of counts (`None`) also writes the total.
    Sums(Option<DType>),
    /// With the sums before each chunk, or for rows of one chunk.
    Chunks(DType, bool),
    Columns(DType),
    NonzeroCount(DType),
    NonzeroWrite(DType),
}

fn carried(dtype: DType) -> (&'static str, usize) {
    if dtype.is_float() { (computed(dtype), dtype.size().max(4)) } else { ("i64", 8) }
}

/// The launches of `cumsum` along `dim`. The output is contiguous, i64 for integers and bool. `None` where
/// more than eight dimensions are left after merging, or a row has more than 2^27 elements.
pub(crate) fn cumsum(dtype: DType, shape: &[usize], dim: usize, x: Operand<'_>) -> Option<Plan> {
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
    let inner: usize = shape[dim + 1..].iter().product();
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
        plan.launches.push(Launch { kernel: Kernel::Scan(key), grid, block: [256, 1, 1], shared: 0, args });
    };
    if (inner > 1 || n <= 64) && rows >= 256 {
        let mut args = smallvec![input, out];
        tail(&mut args);
        push(Key::Columns(dtype), [rows.div_ceil(256) as u32, 1, 1], args);
        return Some(plan);
    }
    let grid = [rows as u32, chunks as u32, 1];
    if chunks > 1 {
        let mut args = smallvec![input.clone(), Arg::Scratch(0)];
        tail(&mut args);
        push(Key::ChunkSums(dtype), grid, args);
        push(Key::Sums(Some(dtype)), [rows as u32, 1, 1], smallvec![Arg::Scratch(0), Arg::U64(chunks as u64)]);
    }
    let mut args = smallvec![input];
    if chunks > 1 {
        args.push(Arg::Scratch(0));
    }
    args.push(out);
    tail(&mut args);
    push(Key::Chunks(dtype, chunks > 1), grid, args);
    if chunks > 1 {
        plan.scratch = rows * chunks * carried(dtype).1;
    }
    Some(plan)
}

fn dims(shape: &[usize], x: Operand<'_>) -> Arg {
    let mut w = Words::default();
    w.u64(shape.len() as u64);
    w.u64(shape.iter().product::<usize>() as u64);
    (0..NONZERO_RANK_MAX).for_each(|d| w.u64(shape.get(d).copied().unwrap_or(1) as u64));
    (0..NONZERO_RANK_MAX).for_each(|d| w.u64(x.strides.get(d).copied().unwrap_or(0) as u64));
    Arg::Struct(w)
}

/// First half of `nonzero`: output 0 is a u64, how many there are; output 1 the starts that
/// [`nonzero_write`] needs, [`nonzero_starts`] u64 long. `None` above 16 dimensions.
pub(crate) fn nonzero_count(dtype: DType, shape: &[usize], x: Operand<'_>) -> Option<Plan> {
    if shape.len() > NONZERO_RANK_MAX {
        return None;
    }
    let mut plan = Plan::default();
    let blocks = shape.iter().product::<usize>().div_ceil(CHUNK);
    let starts = Arg::Out { index: 1, bytes: 0 };
    if blocks > 0 {
        plan.launches.push(Launch {
            kernel: Kernel::Scan(Key::NonzeroCount(dtype)),
            grid: [blocks as u32, 1, 1],
            block: [256, 1, 1],
            shared: 0,
            args: smallvec![Arg::In { index: 0, bytes: 0 }, starts.clone(), dims(shape, x)],
        });
    }
    plan.launches.push(Launch {
        kernel: Kernel::Scan(Key::Sums(None)),
        grid: [1, 1, 1],
        block: [256, 1, 1],
        shared: 0,
        args: smallvec![starts, Arg::Out { index: 0, bytes: 0 }, Arg::U64(blocks as u64)],
    });
    Some(plan)
}

/// Length of the starts, in u64.
pub(crate) fn nonzero_starts(shape: &[usize]) -> usize {
    shape.iter().product::<usize>().div_ceil(CHUNK).max(1)
}

/// Second half: inputs are the value and the starts, the output `[count, rank]` i64 in row-major order.
pub(crate) fn nonzero_write(dtype: DType, shape: &[usize], x: Operand<'_>) -> Option<Plan> {
    if shape.len() > NONZERO_RANK_MAX {
        return None;
    }
    let mut plan = Plan::default();
    let blocks = shape.iter().product::<usize>().div_ceil(CHUNK);
    if blocks > 0 {
        plan.launches.push(Launch {
            kernel: Kernel::Scan(Key::NonzeroWrite(dtype)),
            grid: [blocks as u32, 1, 1],
            block: [256, 1, 1],
            shared: 0,
            args: smallvec![
                Arg::In { index: 0, bytes: 0 },
                Arg::In { index: 1, bytes: 0 },
                Arg::Out { index: 0, bytes: 0 },
                dims(shape, x),
            ],
        });
    }
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
        let (name, params, code) = match *self {
            Key::ChunkSums(d) => {
                let (t, a) = (storage(d), carried(d).0);
                let code = format!(
                    "{block}    ft::chunk_sum<{a}>(x + off[0], step, (i64)n, sums + r * gridDim.y + blockIdx.y);\n"
                );
                ("chunk_sums", vec![format!("const {t}* x"), format!("{a}* sums"), walk], code)
            }
            Key::Sums(Some(d)) => {
                let a = carried(d).0;
                let code = format!("    ft::scan_sums<{a}>(sums + (u64)blockIdx.x * n, (i64)n, ({a}*)0);\n");
                ("scan_sums", vec![format!("{a}* sums"), "u64 n".into()], code)
            }
            Key::Sums(None) => {
                let params = vec!["u64* sums".into(), "u64* total".into(), "u64 n".into()];
                ("scan_counts", params, "    ft::scan_sums<u64>(sums, (i64)n, total);\n".into())
            }
            Key::Chunks(d, several) => {
                let (t, a) = (storage(d), carried(d).0);
                let s = if d.is_float() { t } else { "i64" };
                let mut params = vec![format!("const {t}* x")];
                if several {
                    params.push(format!("const {a}* sums"));
                }
                params.extend([format!("{s}* out"), walk]);
                let run = if several { "sums[r * gridDim.y + blockIdx.y]" } else { "0" };
                let code = format!(
                    "{block}{to}    ft::chunk_scan<{a}>(x + off[0], step, (i64)n, ({a}){run}, out + to, (i64)inner);\n"
                );
                ("cumsum", params, code)
            }
            Key::Columns(d) => {
                let (t, a) = (storage(d), carried(d).0);
                let s = if d.is_float() { t } else { "i64" };
                let code = format!(
                    "{}{to}    ft::column_scan<{a}>(x + off[0], step, (i64)n, out + to, (i64)inner);\n",
                    place("(u64)blockIdx.x * 256 + threadIdx.x")
                );
                ("cumsum_columns", vec![format!("const {t}* x"), format!("{s}* out"), walk], code)
            }
            Key::NonzeroCount(d) => {
                let params =
                    vec![format!("const {}* x", storage(d)), "u64* counts".into(), "ft::Dims d".into()];
                ("nonzero_count", params, "    ft::nonzero_count(x, d, counts);\n".into())
            }
            Key::NonzeroWrite(d) => {
                let x = format!("const {}* x", storage(d));
                let params = vec![x, "const u64* starts".into(), "i64* out".into(), "ft::Dims d".into()];
                ("nonzero_write", params, "    ft::nonzero_write(x, d, starts, out);\n".into())
            }
        };
        KernelSource::new(name, &[Part::Base, Part::Ops, Part::Scan], 256, &params, &code)
    }
}
