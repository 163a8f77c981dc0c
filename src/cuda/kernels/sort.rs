//! Stable sorts along a dimension, and the first of them (`topk`).
//!
//! Rows of up to 2048 elements are sorted in shared memory by one launch. Longer ones are sorted in
//! tiles of 2048 and merged, a launch for each doubling: slower, since every pass goes through
//! memory.

use super::generate::storage;
use super::geometry::{Geometry, RANK_MAX};
use super::source::{KernelSource, Part};
use super::{Arg, GRID_YZ_MAX, Kernel, Launch, Operand, Plan};
use crate::dtype::DType;
use smallvec::smallvec;

/// Elements that are sorted in shared memory at once.
const TILE: usize = 2048;

/// Names a compiled kernel; `tile` is a power of two from 64.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Key {
    /// A row that fits a tile.
    Row { dtype: DType, tile: u16 },
    /// The tiles of a longer row, to scratch.
    Tiles(DType),
    /// Pairs of sorted runs.
    Merge(DType),
    /// Values and places from sorted scratch.
    Write(DType),
}

/// Type and size of a key.
fn key(dtype: DType) -> (&'static str, usize) {
    if dtype.size() == 8 { ("u64", 8) } else { ("u32", 4) }
}

/// The launches that sort along `dim`. Output 0 takes the first `k` values of each row, output 1
/// their places as i64; both contiguous over `shape` with `k` in `dim`. NaN counts as the largest,
/// equals keep their order. `None` where more than eight dimensions are left after merging, or a
/// row has 2^31 elements or more.
pub(crate) fn plan(
    dtype: DType,
    shape: &[usize],
    dim: usize,
    x: Operand<'_>,
    k: usize,
    descending: bool,
) -> Option<Plan> {
    let mut plan = Plan::default();
    if shape.contains(&0) || k == 0 {
        return Some(plan);
    }
    let without = |d: &usize| *d != dim;
    let dims: Vec<usize> = (0..shape.len()).filter(without).map(|d| shape[d]).collect();
    let strides: Vec<isize> = (0..shape.len()).filter(without).map(|d| x.strides[d]).collect();
    let g = Geometry::new(&dims, &[&strides]);
    let (rows, n) = (g.numel(), shape[dim]);
    if g.rank() > RANK_MAX || n >= i32::MAX as usize {
        return None;
    }
    let inner = crate::shape::numel(&shape[dim + 1..]);
    let input = Arg::In { index: 0, bytes: 0 };
    let outs = [Arg::Out { index: 0, bytes: 0 }, Arg::Out { index: 1, bytes: 0 }];
    let [n64, step, k64, inner64, down] =
        [n as u64, x.strides[dim] as u64, k as u64, inner as u64, descending as u64].map(Arg::U64);
    if n <= TILE {
        let tile = n.next_power_of_two().max(64);
        let [values, places] = outs;
        plan.launches.push(Launch {
            kernel: Kernel::Sort(Key::Row { dtype, tile: tile as u16 }),
            grid: [rows as u32, 1, 1],
            block: [tile as u32 / 2, 1, 1],
            shared: 0,
            args: smallvec![input, values, places, n64, step, k64, inner64, down, g.arg(true)],
        });
        return Some(plan);
    }

    // Scratch: two lists of keys and two of places, for all rows. The rows are a grid's y
    // dimension, 65535 a launch.
    let (_, size) = key(dtype);
    let all = (rows * n).next_multiple_of(64);
    let keys = [0, all * size];
    let places = [2 * all * size, 2 * all * size + all * 4];
    plan.scratch = 2 * all * (size + 4);
    for first in (0..rows).step_by(GRID_YZ_MAX) {
        let y = (rows - first).min(GRID_YZ_MAX) as u32;
        let row = Arg::U64(first as u64);
        let mut push = |key, blocks: usize, threads: u32, args| {
            let kernel = Kernel::Sort(key);
            plan.launches.push(Launch {
                kernel,
                grid: [blocks as u32, y, 1],
                block: [threads, 1, 1],
                shared: 0,
                args,
            });
        };
        let (a, b) = (|s: usize| Arg::Scratch(keys[s]), |s: usize| Arg::Scratch(places[s]));
        let args = smallvec![
            input.clone(),
            a(0),
            b(0),
            n64.clone(),
            step.clone(),
            down.clone(),
            g.arg(true),
            row.clone()
        ];
        push(Key::Tiles(dtype), n.div_ceil(TILE), TILE as u32 / 2, args);
        let (mut side, mut width) = (0, TILE);
        while width < n {
            let args = smallvec![
                a(side),
                b(side),
                a(1 - side),
                b(1 - side),
                n64.clone(),
                Arg::U64(width as u64),
                row.clone()
            ];
            push(Key::Merge(dtype), n.div_ceil(256), 256, args);
            (side, width) = (1 - side, width * 2);
        }
        let [values, at] = outs.clone();
        let args = smallvec![
            input.clone(),
            b(side),
            values,
            at,
            n64.clone(),
            step.clone(),
            k64.clone(),
            inner64.clone(),
            g.arg(true),
            row
        ];
        push(Key::Write(dtype), k.div_ceil(256), 256, args);
    }
    Some(plan)
}

impl Key {
    /// The kernel as CUDA C.
    pub fn source(&self) -> KernelSource {
        let place = |row: &str| {
            format!("    const u64 r = {row};\n    i64 off[1];\n    ft::offsets<1, ft::Geo64>(geo, r, off);\n")
        };
        let to = "    const u64 to = r / inner * k * inner + r % inner;\n";
        let (name, threads, params, code) = match *self {
            Key::Row { dtype, tile } => {
                let (t, (key, _)) = (storage(dtype), key(dtype));
                let params = vec![
                    format!("const {t}* x"),
                    format!("{t}* values"),
                    "i64* places, u64 n, i64 step, u64 k, u64 inner, u64 descending, ft::Geo64<1> geo".into(),
                ];
                let code = format!(
                    "{}    x += off[0];\n{to}    ft::sort_tile<{key}, {t}, {tile}>(x, step, 0, (i64)n, descending != 0, \
                     [&](i64 j, {key}, u32 p) {{\n        if ((u64)j >= k) return;\n        \
                     values[to + j * inner] = x[(i64)p * step];\n        places[to + j * inner] = p;\n    }});\n",
                    place("blockIdx.x")
                );
                ("sort", tile as u32 / 2, params, code)
            }
            Key::Tiles(dtype) => {
                let (t, (key, _)) = (storage(dtype), key(dtype));
                let params = vec![
                    format!("const {t}* x"),
                    format!("{key}* keys"),
                    "u32* places, u64 n, i64 step, u64 descending, ft::Geo64<1> geo, u64 first".into(),
                ];
                let code = format!(
                    "{}    ft::sort_tile<{key}, {t}, {TILE}>(x + off[0], step, (i64)blockIdx.x * {TILE}, (i64)n, \
                     descending != 0,\n        [&](i64 j, {key} key, u32 p) {{ keys[r * n + j] = key; places[r * n + j] = p; \
                     }});\n",
                    place("first + blockIdx.y")
                );
                ("sort_tiles", TILE as u32 / 2, params, code)
            }
            Key::Merge(dtype) => {
                let (key, _) = key(dtype);
                let params = vec![
                    format!("const {key}* keys, const u32* places"),
                    format!("{key}* keys_out, u32* places_out, u64 n, u64 width, u64 first"),
                ];
                let code = "    const u64 row = (first + blockIdx.y) * n;\n    ft::merge_runs(keys + row, places + row, \
                            keys_out + row, places_out + row, (i64)n, (i64)width);\n";
                ("merge_runs", 256, params, code.into())
            }
            Key::Write(dtype) => {
                let t = storage(dtype);
                let params = vec![
                    format!("const {t}* x, const u32* sorted"),
                    format!(
                        "{t}* values, i64* places, u64 n, i64 step, u64 k, u64 inner, ft::Geo64<1> geo, u64 first"
                    ),
                ];
                let code = format!(
                    "{}{to}    const u64 j = (u64)blockIdx.x * 256 + threadIdx.x;\n    if (j >= k) return;\n    \
                     const u32 p = sorted[r * n + j];\n    values[to + j * inner] = x[off[0] + (i64)p * step];\n    \
                     places[to + j * inner] = p;\n",
                    place("first + blockIdx.y")
                );
                ("sorted", 256, params, code)
            }
        };
        KernelSource::new(name, &[Part::Base, Part::Sort], threads, &params, &code)
    }
}
