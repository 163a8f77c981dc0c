//! Copies between strided places (`contiguous`, `cat`, `slice_assign`, `flip`), and triangles.
//!
//! Kernels know element sizes, not types: where both sides are contiguous enough, a copy moves 16
//! bytes a thread. A transpose goes by tiles.

use super::geometry::{Geometry, RANK_MAX};
use super::source::{KernelSource, Part};
use super::{Arg, GRID_YZ_MAX, Kernel, Launch, Operand, Plan, grid};
use smallvec::smallvec;

/// Names a compiled copy; sizes are in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Key {
    Strided { size: u8, wide: bool },
    Transpose { size: u8 },
    Triangle { size: u8, wide: bool },
}

/// The C type of so many bytes.
pub(crate) fn unit(size: u8) -> &'static str {
    match size {
        1 => "u8",
        2 => "u16",
        4 => "u32",
        8 => "u64",
        _ => "ft::Pack16",
    }
}

/// How many elements can be moved as one: both sides walk the innermost dimension without gaps, and
/// all else is a multiple of that.
pub(crate) fn pack(g: &Geometry, size: usize, align: usize) -> usize {
    let fits = |f: &usize| {
        g.rank() > 0
            && align.is_multiple_of(f * size)
            && g.dims[0].is_multiple_of(*f)
            && g.strides
                .iter()
                .all(|s| s[0] == 1 && s[1..].iter().all(|s| s.unsigned_abs().is_multiple_of(*f)))
    };
    [16, 8, 4, 2].into_iter().filter(|f| f * size <= 16).find(fits).unwrap_or(1)
}

/// The same walk in units of `f` elements.
pub(crate) fn packed(g: &Geometry, f: usize) -> Geometry {
    let mut g = g.clone();
    if f > 1 {
        g.dims[0] /= f;
        g.strides.iter_mut().for_each(|s| s[1..].iter_mut().for_each(|s| *s /= f as isize));
    }
    g
}

/// The launches that copy input 0 into output 0 over `shape`. `from` and `to` are strides in
/// elements of `size` bytes; `to_bytes` is where in the output the copy begins. The two must not
/// overlap.
pub(crate) fn plan(
    size: usize,
    shape: &[usize],
    from: Operand<'_>,
    to: Operand<'_>,
    to_bytes: usize,
) -> Plan {
    let mut plan = Plan::default();
    if shape.contains(&0) {
        return plan;
    }
    let g = Geometry::new(shape, &[from.strides, to.strides]);
    if let Some(launch) = transpose(size, &g, to_bytes) {
        plan.launches.push(launch);
        return plan;
    }
    let align = from.align.min(to.align).min(1 << to_bytes.trailing_zeros().min(4));
    let (low, pieces) = g.pieces();
    let f = match pieces.len() {
        1 => pack(&low, size, align),
        _ => 1,
    };
    let low = packed(&low, f);
    let (n, wide) = (low.numel(), !low.fits_32());
    for (_, offsets) in pieces {
        let bytes = |k: usize| offsets[k] * size as isize;
        let args = smallvec![
            Arg::In { index: 0, bytes: bytes(0) },
            Arg::Out { index: 0, bytes: (to_bytes as isize + bytes(1)) as usize },
            if wide { Arg::U64(n as u64) } else { Arg::U32(n as u32) },
            low.arg(wide),
        ];
        let kernel = Kernel::Copy(Key::Strided { size: (size * f) as u8, wide });
        plan.launches.push(Launch {
            kernel,
            grid: grid(n.div_ceil(256), 1, 1),
            block: [256, 1, 1],
            shared: 0,
            args,
        });
    }
    plan
}

/// A transpose, where the sides have their stride of 1 in different dimensions, both of some
/// length.
fn transpose(size: usize, g: &Geometry, to_bytes: usize) -> Option<Launch> {
    let along = |k: usize| (0..g.rank()).find(|&d| g.strides[k][d] == 1);
    let (r, c) = (along(0)?, along(1)?);
    let (rows, columns) = (g.dims[r], g.dims[c]);
    if r == c
        || rows < 16
        || columns < 16
        || g.rank() > RANK_MAX + 2
        || rows.max(columns) > i32::MAX as usize
    {
        return None;
    }
    let mut batch = Geometry { dims: smallvec![], strides: smallvec![smallvec![], smallvec![]] };
    for d in (0..g.rank()).filter(|&d| d != r && d != c) {
        batch.dims.push(g.dims[d]);
        (0..2).for_each(|k| batch.strides[k].push(g.strides[k][d]));
    }
    let (n, tiles) = (batch.numel(), columns.div_ceil(32));
    if n > GRID_YZ_MAX || tiles > GRID_YZ_MAX {
        return None;
    }
    Some(Launch {
        kernel: Kernel::Copy(Key::Transpose { size: size as u8 }),
        grid: grid(rows.div_ceil(32), tiles, n),
        block: [32, 8, 1],
        shared: 0,
        args: smallvec![
            Arg::In { index: 0, bytes: 0 },
            Arg::Out { index: 0, bytes: to_bytes },
            Arg::U32(rows as u32),
            Arg::U32(columns as u32),
            Arg::U64(g.strides[0][c] as u64),
            Arg::U64(g.strides[1][r] as u64),
            batch.arg(true),
        ],
    })
}

/// The launches of `tril` (`upper` false) or `triu` about diagonal `k` of the last two dimensions.
/// The output is contiguous. `None` where more than eight dimensions are left after merging.
pub(crate) fn triangle(
    size: usize,
    shape: &[usize],
    from: Operand<'_>,
    k: i64,
    upper: bool,
) -> Option<Plan> {
    let mut plan = Plan::default();
    let g = Geometry::new(shape, &[from.strides]);
    if g.rank() > RANK_MAX {
        return None;
    }
    if shape.contains(&0) {
        return Some(plan);
    }
    let (n, wide) = (g.numel(), !g.fits_32());
    let [.., rows, columns] = *shape else { return None };
    plan.launches.push(Launch {
        kernel: Kernel::Copy(Key::Triangle { size: size as u8, wide }),
        grid: grid(n.div_ceil(256), 1, 1),
        block: [256, 1, 1],
        shared: 0,
        args: smallvec![
            Arg::In { index: 0, bytes: 0 },
            Arg::Out { index: 0, bytes: 0 },
            if wide { Arg::U64(n as u64) } else { Arg::U32(n as u32) },
            g.arg(wide),
            Arg::U64(rows as u64),
            Arg::U64(columns as u64),
            Arg::U64(k as u64),
            Arg::U32(upper as u32),
        ],
    });
    Some(plan)
}

impl Key {
    /// The kernel as CUDA C.
    pub fn source(&self) -> KernelSource {
        let parts = &[Part::Base, Part::Copy];
        let geo = |wide| if wide { ("u64", "Geo64") } else { ("u32", "Geo32") };
        match *self {
            Key::Strided { size, wide } => {
                let (t, (index, geo)) = (unit(size), geo(wide));
                let params = [
                    format!("const {t}* x"),
                    format!("{t}* out"),
                    format!("{index} n"),
                    format!("ft::{geo}<2> geo"),
                ];
                let code = format!("    ft::copy_strided<{t}, ft::{geo}>(x, out, n, geo);\n");
                KernelSource::new("copy", parts, 256, &params, &code)
            }
            Key::Transpose { size } => {
                let t = unit(size);
                let params = [
                    format!("const {t}* x"),
                    format!("{t}* out"),
                    "u32 rows".into(),
                    "u32 columns".into(),
                    "i64 from_step".into(),
                    "i64 to_step".into(),
                    "ft::Geo64<2> batch".into(),
                ];
                let code = format!(
                    "    ft::transpose<{t}, ft::Geo64>(x, out, rows, columns, from_step, to_step, \
                     batch);\n"
                );
                KernelSource::new("transpose", parts, 256, &params, &code)
            }
            Key::Triangle { size, wide } => {
                let (t, (index, geo)) = (unit(size), geo(wide));
                let params = [
                    format!("const {t}* x"),
                    format!("{t}* out"),
                    format!("{index} n"),
                    format!("ft::{geo}<1> geo"),
                    "u64 rows".into(),
                    "u64 columns".into(),
                    "i64 k".into(),
                    "u32 upper".into(),
                ];
                let code = format!(
                    "    ft::triangle<{t}, ft::{geo}>(x, out, n, geo, rows, columns, k, \
                     upper != 0);\n"
                );
                KernelSource::new("triangle", parts, 256, &params, &code)
            }
        }
    }
}
