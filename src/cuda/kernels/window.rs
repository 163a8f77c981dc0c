//! Windows that move over lines, planes and volumes: pooling, and the matrices that turn a
//! convolution into products.
//!
//! `im2col` lays the elements under each output below each other, and a product with the weight
//! does the rest; `col2im` is the way back. Convolutions in groups are done directly, a thread an
//! element. Coordinates are multiplied out of an element's number (`Split`), and a thread steps
//! through the elements that meet one of the input: no thread divides, but for counts of 64 bits.

use super::generate::storage;
use super::geometry::{Geometry, RANK_MAX, divisor};
use super::source::{KernelSource, Part};
use super::{Arg, GRID_YZ_MAX, Kernel, Launch, Plan, Words, grid};
use crate::dtype::DType;
use crate::window::{Cells, Window};
use smallvec::{SmallVec, smallvec};

/// True where kernels can count a window's coordinates in 32 bits, and its taps in 64.
fn fits(w: &Window) -> bool {
    let small = |n: usize| n < 1 << 28;
    w.taps() <= i64::MAX as usize
        && (0..3).all(|a| {
            let reach = w.kernel[a].saturating_mul(w.dilation[a]);
            let walked = w.output[a].saturating_mul(w.stride[a]);
            let [before, after] = w.padding[a];
            small(w.input[a])
                && small(2 * before)
                && small(2 * after)
                && small(reach)
                && small(walked)
        })
}

fn arg(window: &Window) -> Arg {
    let mut w = Words::default();
    let [before, after] = [0, 1].map(|side| window.padding.map(|sides| sides[side]));
    let Window { input, kernel, output, stride, dilation, .. } = *window;
    // Every so manieth tap meets an element, at an output so far before.
    let common = |a: usize| {
        let (mut x, mut y) = (stride[a].max(1), dilation[a].max(1));
        while y > 0 {
            (x, y) = (y, x % y);
        }
        x
    };
    let [taps, outs] = [&stride, &dilation].map(|of| [0, 1, 2].map(|a| of[a] / common(a)));
    for triple in [input, kernel, output, before, after, taps, outs] {
        triple.into_iter().for_each(|n| w.u32(n as u32));
    }
    let axes = stride.iter().chain(&dilation).chain(&kernel[1..2]);
    axes.flat_map(|&n| divisor(n as u32)).for_each(|x| w.u32(x));
    Arg::Struct(w)
}

/// How an element's number is cut: the sizes of a plane, channels of a group, groups.
fn split(plane: [usize; 3], channels: usize, groups: usize, wide: bool) -> Arg {
    let mut w = Words::default();
    for n in [plane[2], plane[1], plane[0], channels, groups] {
        match wide {
            true => w.u64(n.max(1) as u64),
            false => divisor(n as u32).into_iter().for_each(|x| w.u32(x)),
        }
    }
    Arg::Struct(w)
}

/// Names a compiled kernel. `wide` counts elements in 64 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Key {
    Columns {
        dtype: DType,
        wide: bool,
    },
    /// From columns of one type to a value of another.
    FromColumns {
        columns: DType,
        dtype: DType,
        wide: bool,
    },
    Convolve {
        dtype: DType,
        back: bool,
        wide: bool,
    },
    Max {
        dtype: DType,
        position: bool,
        wide: bool,
    },
    CellsMax {
        dtype: DType,
        position: bool,
        wide: bool,
    },
    Mean {
        dtype: DType,
        back: bool,
        wide: bool,
    },
}

/// Steps between images, channels, and along depth, height and width, of which the first may not be
/// there.
fn steps(strides: &[isize]) -> Arg {
    let mut w = Words::default();
    let (planes, own) = strides.split_at(2);
    planes.iter().chain(&triple(own)).for_each(|&s| w.u64(s as u64));
    Arg::Struct(w)
}

fn triple(own: &[isize]) -> [isize; 3] {
    let mut all = [0; 3];
    all[3 - own.len()..].copy_from_slice(own);
    all
}

const X: Arg = Arg::In { index: 0, bytes: 0 };
const OUT: Arg = Arg::Out { index: 0, bytes: 0 };

fn launch(key: Key, n: usize, args: SmallVec<[Arg; 8]>) -> Plan {
    let mut plan = Plan::default();
    if n > 0 {
        plan.launches.push(Launch {
            kernel: Kernel::Window(key),
            grid: grid(n.div_ceil(256), 1, 1),
            block: [256, 1, 1],
            shared: 0,
            args,
        });
    }
    plan
}

fn count(n: usize) -> (bool, Arg) {
    let wide = n > i32::MAX as usize;
    (wide, if wide { Arg::U64(n as u64) } else { Arg::U32(n as u32) })
}

/// The columns of `x`, `[batch, channels, ..]` with these strides: row r of batch b begins at `b *
/// batch_step + r * row_step` of the output. `None` where sizes are beyond the kernels' counters.
pub(crate) fn columns(
    dtype: DType,
    [batch, channels]: [usize; 2],
    window: &Window,
    strides: &[isize],
    row_step: usize,
    batch_step: usize,
) -> Option<Plan> {
    let n = batch * channels * window.places();
    let (wide, number) = count(n);
    let args = smallvec![
        X,
        OUT,
        number,
        arg(window),
        split(window.output, channels, 1, wide),
        steps(strides),
        Arg::U64(row_step as u64),
        Arg::U64(batch_step as u64),
    ];
    let rows = window.kernel[0] * window.kernel[1];
    (fits(window) && rows < 1 << 31).then(|| {
        let mut plan = launch(Key::Columns { dtype, wide }, n, args);
        plan.launches.iter_mut().for_each(|launch| launch.grid[1] = rows.min(GRID_YZ_MAX) as u32);
        plan
    })
}

/// From columns `[batch, channels * taps, places]` back to `[batch, channels, ..]`; with `adds`,
/// sums begin with the output's old value.
pub(crate) fn from_columns(
    columns: DType,
    dtype: DType,
    [batch, channels]: [usize; 2],
    window: &Window,
    adds: bool,
) -> Option<Plan> {
    let n = batch * channels * window.room();
    let (wide, number) = count(n);
    let args = smallvec![
        X,
        OUT,
        number,
        Arg::U32(adds as u32),
        arg(window),
        split(window.input, 1, 1, wide)
    ];
    fits(window).then(|| launch(Key::FromColumns { columns, dtype, wide }, n, args))
}

/// The result of a direct convolution.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// The output; with `adds`, sums begin with its old value.
    Forward { adds: bool },
    /// The gradient of the input; with `adds`, sums begin with its old value.
    Back { adds: bool },
}

/// A convolution, a thread an element. Inputs: the value and the weight, with their strides;
/// `channels` are those of a group, of input and output.
pub(crate) fn convolve(
    dtype: DType,
    way: Way,
    [batch, groups]: [usize; 2],
    channels: [usize; 2],
    window: &Window,
    [value, weight]: [&[isize]; 2],
) -> Option<Plan> {
    let [depth, outs] = channels;
    let (back, adds) = match way {
        Way::Forward { adds } => (false, adds),
        Way::Back { adds } => (true, adds),
    };
    let (planes, size) = if back { (depth, window.input) } else { (outs, window.output) };
    let n = batch * groups * planes * size.iter().product::<usize>();
    let (wide, number) = count(n);
    let args = smallvec![
        X,
        Arg::In { index: 1, bytes: 0 },
        OUT,
        number,
        Arg::U32(if back { outs } else { depth } as u32),
        Arg::U32(adds as u32),
        arg(window),
        split(size, planes, groups, wide),
        steps(value),
        steps(weight),
    ];
    fits(window).then(|| launch(Key::Convolve { dtype, back, wide }, n, args))
}

/// Where the planes (lines, volumes) of a value begin, and the steps within one.
fn planes(spatial: usize, shape: &[usize], strides: &[isize]) -> Option<(Geometry, Arg)> {
    let lead = shape.len() - spatial;
    let g = Geometry::new(&shape[..lead], &[&strides[..lead]]);
    let mut w = Words::default();
    triple(&strides[lead..]).iter().for_each(|&s| w.u64(s as u64));
    (g.rank() <= RANK_MAX).then(|| (g, Arg::Struct(w)))
}

/// The largest element under each window over the last dimensions of `shape`, or its position.
pub(crate) fn max(
    dtype: DType,
    position: bool,
    window: &Window,
    shape: &[usize],
    strides: &[isize],
) -> Option<Plan> {
    let (g, steps) = planes(window.spatial, shape, strides)?;
    let n = g.numel() * window.places();
    let (wide, number) = count(n);
    let args = smallvec![
        X,
        OUT,
        number,
        arg(window),
        split(window.output, 1, 1, wide),
        g.arg(true),
        steps
    ];
    fits(window).then(|| launch(Key::Max { dtype, position, wide }, n, args))
}

/// The largest element of each cell of the last dimensions of `shape`, or its position.
pub(crate) fn cells_max(
    dtype: DType,
    position: bool,
    cells: &Cells,
    shape: &[usize],
    strides: &[isize],
) -> Option<Plan> {
    let (g, steps) = planes(cells.spatial, shape, strides)?;
    let n = g.numel() * cells.output.iter().product::<usize>();
    let (wide, number) = count(n);
    let mut sizes = Words::default();
    cells.input.iter().chain(&cells.output).for_each(|&n| sizes.u32(n as u32));
    let split = split(cells.output, 1, 1, wide);
    let args = smallvec![X, OUT, number, Arg::Struct(sizes), split, g.arg(true), steps];
    let fits = cells.input.iter().chain(&cells.output).all(|&n| n <= i32::MAX as usize);
    fits.then(|| launch(Key::CellsMax { dtype, position, wide }, n, args))
}

/// The mean under each window, or with `back` its way back: then `shape` ends in the window's
/// output. Sums are divided by `fixed`, where it is not 0; else the elements met, with the
/// padding where `padded`.
pub(crate) fn mean(
    dtype: DType,
    back: bool,
    window: &Window,
    shape: &[usize],
    strides: &[isize],
    fixed: usize,
    padded: bool,
) -> Option<Plan> {
    let (g, steps) = planes(window.spatial, shape, strides)?;
    let plane = if back { window.input } else { window.output };
    let n = g.numel() * plane.iter().product::<usize>();
    let (wide, number) = count(n);
    let args = smallvec![
        X,
        OUT,
        number,
        arg(window),
        split(plane, 1, 1, wide),
        g.arg(true),
        steps,
        Arg::U64(fixed as u64),
        Arg::U32(padded as u32),
    ];
    (fits(window) && fixed < 1 << 31).then(|| launch(Key::Mean { dtype, back, wide }, n, args))
}

impl Key {
    /// The kernel as CUDA C.
    pub fn source(&self) -> KernelSource {
        let index = |wide| if wide { "u64" } else { "u32" };
        let (name, params, code) = match *self {
            Key::Columns { dtype, wide } => {
                let (t, i) = (storage(dtype), index(wide));
                let params = format!(
                    "const {t}* x, {t}* columns, {i} n, ft::Window w, ft::Split<{i}> split, \
                     ft::Steps5 step, u64 row_step, u64 \
                     batch_step"
                );
                let code = format!(
                    "    ft::im2col<{t}, {i}>(x, columns, n, w, split, step, row_step, \
                     batch_step);\n"
                );
                ("im2col", params, code)
            }
            Key::FromColumns { columns, dtype, wide } => {
                let (a, t, i) = (storage(columns), storage(dtype), index(wide));
                let params = format!(
                    "const {a}* columns, {t}* out, {i} n, u32 adds, ft::Window w, \
                     ft::Split<{i}> split"
                );
                let code = format!(
                    "    ft::col2im<{a}, {t}, {i}>(columns, out, n, adds != 0, w, split);\n"
                );
                ("col2im", params, code)
            }
            Key::Convolve { dtype, back, wide } => {
                let (t, i) = (storage(dtype), index(wide));
                let params = format!(
                    "const {t}* x, const {t}* weight, {t}* out, {i} n, i32 summed, u32 adds, \
                     ft::Window w, \
                     ft::Split<{i}> split, ft::Steps5 xs, ft::Steps5 ws"
                );
                let name = if back { "convolve_back" } else { "convolve" };
                let code = format!(
                    "    ft::{name}<{t}, {i}>(x, weight, out, n, summed, adds != 0, w, split, xs, \
                     ws);\n"
                );
                (name, params, code)
            }
            Key::Max { dtype, position, wide } => {
                let (t, i) = (storage(dtype), index(wide));
                let o = if position { "i64" } else { t };
                let params = format!(
                    "const {t}* x, {o}* out, {i} n, ft::Window w, ft::Split<{i}> split, \
                     ft::Geo64<1> planes, ft::Steps3 step"
                );
                let code = format!(
                    "    ft::pool_max<{position}, {t}, {o}, {i}>(x, out, n, w, split, planes, \
                     step);\n"
                );
                ("pool_max", params, code)
            }
            Key::CellsMax { dtype, position, wide } => {
                let (t, i) = (storage(dtype), index(wide));
                let o = if position { "i64" } else { t };
                let params = format!(
                    "const {t}* x, {o}* out, {i} n, ft::Cells cells, ft::Split<{i}> split, \
                     ft::Geo64<1> planes, ft::Steps3 step"
                );
                let code = format!(
                    "    ft::cells_max<{position}, {t}, {o}, {i}>(x, out, n, cells, split, \
                     planes, step);\n"
                );
                ("cells_max", params, code)
            }
            Key::Mean { dtype, back, wide } => {
                let (t, i) = (storage(dtype), index(wide));
                let params = format!(
                    "const {t}* x, {t}* out, {i} n, ft::Window w, ft::Split<{i}> split, \
                     ft::Geo64<1> planes, ft::Steps3 step, i64 fixed, \
                     u32 padded"
                );
                let name = if back { "pool_spread" } else { "pool_mean" };
                let code = format!(
                    "    ft::{name}<{t}, {i}>(x, out, n, w, split, planes, step, fixed, \
                     padded != 0);\n"
                );
                (name, params, code)
            }
        };
        KernelSource::new(name, &[Part::Base, Part::Ops, Part::Window], 256, &[params], &code)
            .with_registers(256)
    }
}
