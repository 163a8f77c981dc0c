//! Reads and writes at places that are data: gather, index_select, embedding, scatter, one_hot.
//!
//! An index out of range touches nothing and is written to the step's index error
//! ([`super::source::INDEX_ERROR_BYTES`]): of several, the one that comes first in the index.
//! Indices are i64, i32 or u8; a negative one counts from the end where the op asks for that, or is
//! out of range.

use super::copy::{pack, packed, unit};
use super::generate::storage;
use super::geometry::{Geometry, RANK_MAX};
use super::sort::{Lists, by_digits};
use super::source::{KernelSource, Part};
use super::{Arg, GRID_YZ_MAX, Kernel, Launch, Operand, Plan, grid};
use crate::dtype::DType;
use crate::op::{ScatterMode, scatter_runs};
use crate::shape::contiguous_strides;
use smallvec::smallvec;

/// Names a compiled kernel. `index` is `I64`, `I32` or `U8`; sizes are in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Key {
    Gather {
        size: u8,
        index: DType,
        wide: bool,
    },
    Scatter {
        mode: ScatterMode,
        dtype: DType,
        index: DType,
        wide: bool,
    },
    /// Of long lines: the indices as keys, and the walk over them once they are sorted.
    ScatterKeys {
        index: DType,
    },
    ScatterRuns {
        mode: ScatterMode,
        dtype: DType,
    },
    OneHot {
        index: DType,
        wide: bool,
    },
}

/// Lines up to this long are walked by the owners of their parts.
const SHORT: usize = 256;

/// How an index is read: over the result's shape for `gather`, along one dimension for
/// `index_select`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Indexed<'a> {
    pub dtype: DType,
    /// Strides of the index over the result's shape, 0 where it repeats.
    pub strides: &'a [isize],
    /// The same of a contiguous index of that shape, for counting positions.
    pub positions: &'a [isize],
    /// Negative indices count from the end.
    pub from_end: bool,
}

impl Indexed<'_> {
    /// The number that a kernel adds to a negative index.
    fn lift(&self, size: usize) -> Arg {
        Arg::U64(if self.from_end { size as u64 } else { 0 })
    }
}

/// `out[i] = x[.., index[i], ..]` along `dim`, over `shape`, the contiguous result's. Inputs: the
/// value, whose `strides` are over its own dimensions (as many), `size` its length in `dim`; then
/// the index. For `index_select` and `embedding` the index repeats in all other dimensions. `None`
/// where more than eight dimensions are left after merging.
pub(crate) fn gather(
    element: usize,
    shape: &[usize],
    dim: usize,
    x: Operand<'_>,
    size: usize,
    index: Indexed<'_>,
    out_align: usize,
) -> Option<Plan> {
    let mut plan = Plan::default();
    if shape.contains(&0) {
        return Some(plan);
    }
    let mut others: Vec<isize> = x.strides.to_vec();
    others[dim] = 0;
    let step = x.strides[dim];
    let g = Geometry::new(shape, &[&others, index.strides, index.positions]);
    if g.rank() > RANK_MAX {
        return None;
    }
    // Rows of neighbours that share an index move in larger units.
    let rows = Geometry {
        dims: g.dims.clone(),
        strides: smallvec![
            g.strides[0].clone(),
            smallvec::SmallVec::from_slice(&contiguous_inner(&g.dims))
        ],
    };
    let shared = g.rank() > 0 && g.strides[1][0] == 0 && g.strides[2][0] == 0;
    let f = if shared { pack(&rows, element, x.align.min(out_align)) } else { 1 };
    let f = (1..=f)
        .rev()
        .find(|f| f.is_power_of_two() && step.unsigned_abs().is_multiple_of(*f))
        .unwrap_or(1);
    let mut low = g.clone();
    if f > 1 {
        low.dims[0] /= f;
        low.strides[0] = packed(&rows, f).strides[0].clone();
    }
    let reach = size.saturating_mul(step.unsigned_abs());
    let wide = !low.fits_32() || reach > i32::MAX as usize;
    let n = low.numel();
    plan.launches.push(Launch {
        kernel: Kernel::Index(Key::Gather { size: (element * f) as u8, index: index.dtype, wide }),
        grid: grid(n.div_ceil(256), 1, 1),
        block: [256, 1, 1],
        shared: 0,
        args: smallvec![
            Arg::In { index: 0, bytes: 0 },
            Arg::In { index: 1, bytes: 0 },
            Arg::Out { index: 0, bytes: 0 },
            Arg::IndexError,
            if wide { Arg::U64(n as u64) } else { Arg::U32(n as u32) },
            low.arg(wide),
            Arg::U64((step / f as isize) as u64),
            Arg::U64(size as u64),
            index.lift(size),
        ],
    });
    Some(plan)
}

/// Strides of a contiguous walk, innermost first.
fn contiguous_inner(dims: &[usize]) -> Vec<isize> {
    dims.iter()
        .scan(1, |step, &n| {
            let s = *step;
            *step *= n as isize;
            Some(s)
        })
        .collect()
}

/// `out[.., index[j], ..]` joined with `source[.., j, ..]` along `dim`, for every j of the index's
/// `shape`. The output holds the value already and is contiguous over `out_shape`; input 0 is the
/// source, 1 the index. Elements for one place come in order of j, on every device. `None` as
/// in [`gather`].
///
/// Short lines are walked, by several owners of their elements; the indices of longer ones are
/// sorted by the place that they name, once for all lines that share them, and then each place is
/// one thread's; so are those of sums and products of halves, which are made in float and rounded
/// once. (The walk read every index for each owner: for 8,192 of them and a table of 50,000
/// by 1,024 that is 16 owners of 1,024 columns, an estimated 130 million reads; sorted, 8 million.)
pub(crate) fn scatter(
    mode: ScatterMode,
    dtype: DType,
    shape: &[usize],
    dim: usize,
    source: &[isize],
    index: Indexed<'_>,
    out_shape: &[usize],
) -> Option<Plan> {
    let mut plan = Plan::default();
    if shape.contains(&0) {
        return Some(plan);
    }
    let out = contiguous_strides(out_shape);
    // The walk joins values in memory, so halves would be rounded each time, and one by one, where
    // the CPU has parts of the source.
    let is_one_sum = dtype.is_half() && matches!(mode, ScatterMode::Sum | ScatterMode::Prod);
    let in_parts = scatter_runs(shape, dim, out_shape[dim]) > 1;
    if (shape[dim] > SHORT || is_one_sum || in_parts)
        && shape[dim].max(out_shape[dim]) < i32::MAX as usize
    {
        return sorted(mode, dtype, shape, dim, source, index, out_shape);
    }
    let without =
        |s: &[isize]| -> Vec<isize> { (0..s.len()).filter(|&d| d != dim).map(|d| s[d]).collect() };
    let dims: Vec<usize> = (0..shape.len()).filter(|&d| d != dim).map(|d| shape[d]).collect();
    let all = [&out[..], source, index.strides, index.positions].map(without);
    let g = Geometry::new(&dims, &all.each_ref().map(Vec::as_slice));
    if g.rank() > RANK_MAX {
        return None;
    }
    let whole = Geometry::new(shape, &[source, index.strides, index.positions]);
    let reach = crate::shape::numel(out_shape);
    let wide = !whole.fits_32() || reach > i32::MAX as usize;
    let (lines, size) = (g.numel(), out_shape[dim]);
    // Few lines are shared by more threads; each still reads the whole index.
    let owners = (16_384 / lines).clamp(1, size.clamp(1, GRID_YZ_MAX));
    plan.launches.push(Launch {
        kernel: Kernel::Index(Key::Scatter { mode, dtype, index: index.dtype, wide }),
        grid: grid(lines.div_ceil(256), owners, 1),
        block: [256, 1, 1],
        shared: 0,
        args: smallvec![
            Arg::In { index: 0, bytes: 0 },
            Arg::In { index: 1, bytes: 0 },
            Arg::Out { index: 0, bytes: 0 },
            Arg::IndexError,
            if wide { Arg::U64(lines as u64) } else { Arg::U32(lines as u32) },
            g.arg(wide),
            Arg::U64(shape[dim] as u64),
            Arg::U64(size as u64),
            index.lift(size),
            Arg::U32(owners as u32),
            Arg::U64(out[dim] as u64),
            Arg::U64(source[dim] as u64),
            Arg::U64(index.strides[dim] as u64),
            Arg::U64(index.positions[dim] as u64),
        ],
    });
    Some(plan)
}

/// [`scatter`] where the lines are long.
fn sorted(
    mode: ScatterMode,
    dtype: DType,
    shape: &[usize],
    dim: usize,
    source: &[isize],
    index: Indexed<'_>,
    out_shape: &[usize],
) -> Option<Plan> {
    let mut plan = Plan::default();
    let out = contiguous_strides(out_shape);
    // Dimensions in which the index repeats have its order in common.
    let part = |repeats: bool, of: [&[isize]; 2]| {
        let own = |d: &usize| *d != dim && (index.strides[*d] == 0) == repeats;
        let dims: Vec<usize> = (0..shape.len()).filter(own).map(|d| shape[d]).collect();
        let [a, b] = of.map(|s| (0..shape.len()).filter(own).map(|d| s[d]).collect::<Vec<isize>>());
        Geometry::new(&dims, &[&a, &b])
    };
    let named = part(false, [index.strides, index.positions]);
    let [rows, lines] = [false, true].map(|repeats| part(repeats, [&out, source]));
    if [&named, &rows, &lines].iter().any(|g| g.rank() > RANK_MAX) {
        return None;
    }
    let (n, size, shared) = (shape[dim], out_shape[dim], lines.numel());
    let [many, reach] = [n, size].map(|n| Arg::U32(n as u32));
    // In the order of the CPU.
    let parts = scatter_runs(shape, dim, size);
    let bits = size.ilog2() as usize + 1;
    for first in (0..rows.numel()).step_by(GRID_YZ_MAX) {
        let count = (rows.numel() - first).min(GRID_YZ_MAX);
        let lists = Lists::new(false, n, count, 0);
        plan.scratch = plan.scratch.max(lists.end);
        let launch = |key, x: usize, args| Launch {
            kernel: Kernel::Index(key),
            grid: grid(x, count, 1),
            block: [256, 1, 1],
            shared: 0,
            args,
        };
        let args = smallvec![
            Arg::In { index: 1, bytes: 0 },
            Arg::Scratch(lists.keys[0]),
            Arg::Scratch(lists.places[0]),
            Arg::IndexError,
            Arg::U64(first as u64),
            named.arg(true),
            many.clone(),
            reach.clone(),
            index.lift(size),
            Arg::U64(index.strides[dim] as u64),
            Arg::U64(index.positions[dim] as u64),
        ];
        plan.launches.push(launch(Key::ScatterKeys { index: index.dtype }, n.div_ceil(256), args));
        let side = by_digits(&mut plan, &lists, n, count, bits);
        let args = smallvec![
            Arg::In { index: 0, bytes: 0 },
            Arg::Scratch(lists.keys[side]),
            Arg::Scratch(lists.places[side]),
            Arg::Out { index: 0, bytes: 0 },
            Arg::U64(first as u64),
            rows.arg(true),
            lines.arg(true),
            Arg::U64(shared as u64),
            many.clone(),
            reach.clone(),
            Arg::U64(out[dim] as u64),
            Arg::U64(source[dim] as u64),
            Arg::U32(parts as u32),
        ];
        plan.launches.push(launch(
            Key::ScatterRuns { mode, dtype },
            (n * shared).div_ceil(256),
            args,
        ));
    }
    Some(plan)
}

/// `out[i, c] = (index[i] == c)` as i64, over the index's shape and `classes`. `None` as in
/// [`gather`].
pub(crate) fn one_hot(
    shape: &[usize],
    index: DType,
    strides: &[isize],
    classes: usize,
) -> Option<Plan> {
    let mut plan = Plan::default();
    if shape.contains(&0) || classes == 0 {
        return Some(plan);
    }
    let g = Geometry::new(shape, &[strides]);
    if g.rank() > RANK_MAX {
        return None;
    }
    let n = g.numel() * classes;
    let wide = !g.fits_32() || n > i32::MAX as usize;
    plan.launches.push(Launch {
        kernel: Kernel::Index(Key::OneHot { index, wide }),
        grid: grid(n.div_ceil(256), 1, 1),
        block: [256, 1, 1],
        shared: 0,
        args: smallvec![
            Arg::In { index: 0, bytes: 0 },
            Arg::Out { index: 0, bytes: 0 },
            Arg::IndexError,
            if wide { Arg::U64(n as u64) } else { Arg::U32(n as u32) },
            g.arg(wide),
            Arg::U64(classes as u64),
        ],
    });
    Some(plan)
}

/// The device's number of a mode.
fn number(mode: ScatterMode) -> u32 {
    match mode {
        ScatterMode::Assign => 0,
        ScatterMode::Sum => 1,
        ScatterMode::Prod => 2,
        ScatterMode::Max => 3,
        ScatterMode::Min => 4,
    }
}

impl Key {
    /// The kernel as CUDA C.
    pub fn source(&self) -> KernelSource {
        let geo = |wide| if wide { ("u64", "Geo64") } else { ("u32", "Geo32") };
        let error = || "ft::IndexError* error".to_string();
        match *self {
            Key::Gather { size, index, wide } => {
                let (t, j, (i, geo)) = (unit(size), storage(index), geo(wide));
                let params = [
                    format!("const {t}* x"),
                    format!("const {j}* index"),
                    format!("{t}* out"),
                    error(),
                    format!("{i} n"),
                    format!("ft::{geo}<3> geo"),
                    "i64 step".into(),
                    "u64 size".into(),
                    "i64 lift".into(),
                ];
                let code = format!(
                    "    ft::gather<{t}, {j}, ft::{geo}>(x, index, out, error, n, geo, step, size, \
                     lift);\n"
                );
                KernelSource::new(
                    "gather",
                    &[Part::Base, Part::Copy, Part::Index],
                    256,
                    &params,
                    &code,
                )
            }
            Key::Scatter { mode, dtype, index, wide } => {
                let (t, j, (i, geo)) = (storage(dtype), storage(index), geo(wide));
                let params = [
                    format!("const {t}* source"),
                    format!("const {j}* index"),
                    format!("{t}* out"),
                    error(),
                    format!("{i} lines"),
                    format!("ft::{geo}<4> geo"),
                    "i64 length".into(),
                    "u64 size".into(),
                    "i64 lift".into(),
                    "u32 owners".into(),
                    "i64 out_step".into(),
                    "i64 source_step".into(),
                    "i64 index_step".into(),
                    "i64 position_step".into(),
                ];
                let how = number(mode);
                let code = format!(
                    "    ft::scatter<{how}, {t}, {j}, ft::{geo}>(source, index, out, error, lines, \
                     geo, length, size, lift, \
                     owners, out_step, source_step, index_step, position_step);\n"
                );
                KernelSource::new(
                    "scatter",
                    &[Part::Base, Part::Ops, Part::Copy, Part::Index],
                    256,
                    &params,
                    &code,
                )
            }
            Key::ScatterKeys { index } => {
                let j = storage(index);
                let params = [
                    format!("const {j}* index"),
                    "u32* keys, u32* places".into(),
                    error(),
                    "u64 first, ft::Geo64<2> rows, u32 n, u32 size, i64 lift, i64 index_step, \
                     i64 position_step"
                        .into(),
                ];
                let code = "    const u64 to = (u64)blockIdx.y * n;\n    ft::scatter_keys(index, \
                     keys + to, places + to, \
                            error, first + blockIdx.y, rows, n, size, lift, index_step, \
                            position_step);\n";
                let parts = &[Part::Base, Part::Ops, Part::Index];
                KernelSource::new("scatter_keys", parts, 256, &params, code)
            }
            Key::ScatterRuns { mode, dtype } => {
                let (t, how) = (storage(dtype), number(mode));
                let params = [
                    format!("const {t}* source, const u32* keys, const u32* places, {t}* out"),
                    "u64 first, ft::Geo64<2> rows, ft::Geo64<2> shared, u64 lines, u32 n, u32 size"
                        .into(),
                    "i64 out_step, i64 source_step, u32 parts".into(),
                ];
                let code = format!(
                    "    const u64 from = (u64)blockIdx.y * n;\n    \
                     ft::scatter_runs<{how}>(source, keys + from, \
                     places + from, out, first + blockIdx.y, rows, shared, lines, n, size, \
                     out_step, source_step, parts);\n"
                );
                let parts = &[Part::Base, Part::Ops, Part::Index];
                KernelSource::new("scatter_runs", parts, 256, &params, &code).with_registers(256)
            }
            Key::OneHot { index, wide } => {
                let (j, (i, geo)) = (storage(index), geo(wide));
                let params = [
                    format!("const {j}* index"),
                    "i64* out".into(),
                    error(),
                    format!("{i} n"),
                    format!("ft::{geo}<1> geo"),
                    "u64 classes".into(),
                ];
                let code = format!(
                    "    ft::one_hot<{j}, ft::{geo}>(index, out, error, n, geo, classes);\n"
                );
                KernelSource::new(
                    "one_hot",
                    &[Part::Base, Part::Copy, Part::Index],
                    256,
                    &params,
                    &code,
                )
            }
        }
    }
}
