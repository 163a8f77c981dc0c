//! Stable sorts along a dimension, and the first of them (`topk`).
//!
//! Rows of up to 2048 elements are sorted in shared memory by one launch. Longer ones are sorted by
//! eight bits a pass, three launches each: four passes for 32 bits, two for halves, one for bytes.
//! Of a longer row the first 2048 or fewer are selected before they are sorted, in a pass for every
//! eight bits of the key and of the places. Estimated, not measured, for 2^20 float32 on an H100:
//! 0.1 ms for the sort (80 bytes an element, 14 launches), 0.03 ms for the selection (28 bytes).
//!
//! `scatter` sorts its indices by the same passes ([`by_digits`]).

use super::generate::storage;
use super::geometry::{Geometry, RANK_MAX};
use super::source::{KernelSource, Part};
use super::{Arg, GRID_YZ_MAX, Kernel, Launch, Operand, Plan, grid};
use crate::dtype::DType;
use smallvec::{SmallVec, smallvec};

/// Elements that are sorted in shared memory at once, and that a block moves in a pass.
pub(crate) const TILE: usize = 2048;

/// Elements that a block looks at while the first of a row are selected.
const SPAN: usize = 8192;

/// Names a compiled kernel; `tile` is a power of two from 64. Keys are of 64 bits where `wide`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Key {
    /// A row that fits a tile.
    Row {
        dtype: DType,
        tile: u16,
    },
    /// Keys and places that fit a tile, in scratch.
    Tile {
        wide: bool,
        tile: u16,
    },
    /// A row's keys and places, to scratch.
    Keys(DType),
    /// A pass over keys in scratch.
    Count {
        wide: bool,
    },
    Sum,
    Move {
        wide: bool,
    },
    /// A pass that selects, the selected, and the zeros before.
    Select(DType),
    Take(DType),
    Clear,
    /// Values and places from sorted scratch.
    Write(DType),
}

/// True for a key of 64 bits; then its bits.
fn key(dtype: DType) -> (bool, usize) {
    (dtype.size() == 8, dtype.size() * 8)
}

/// Bytes of keys.
fn size(wide: bool) -> usize {
    if wide { 8 } else { 4 }
}

/// Rows of keys in scratch, at the same place in each of two lists.
#[derive(Clone, Copy)]
pub(crate) struct Lists {
    pub wide: bool,
    pub keys: [usize; 2],
    pub places: [usize; 2],
    /// The counters of the passes, and the end of the scratch memory.
    pub counts: usize,
    pub end: usize,
}

impl Lists {
    /// For `rows` times `n` keys; from `start` on, in bytes.
    pub fn new(wide: bool, n: usize, rows: usize, start: usize) -> Lists {
        let mut at = start.next_multiple_of(256);
        let mut room = |bytes: usize| {
            let own = at;
            at = (at + bytes).next_multiple_of(256);
            own
        };
        let keys = [n * rows * size(wide); 2].map(&mut room);
        let places = [n * rows * 4; 2].map(&mut room);
        let counts = room(256 * (n.div_ceil(TILE) + 1) * rows * 4);
        Lists { wide, keys, places, counts, end: at }
    }
}

/// A launch over rows in y.
fn launch(key: Key, x: usize, rows: usize, threads: u32, args: SmallVec<[Arg; 8]>) -> Launch {
    let kernel = Kernel::Sort(key);
    Launch { kernel, grid: grid(x, rows, 1), block: [threads, 1, 1], shared: 0, args }
}

/// Sorts `rows` rows of `n` keys by their low `bits`, from the first of two lists to the one that
/// is named.
pub(crate) fn by_digits(
    plan: &mut Plan,
    lists: &Lists,
    n: usize,
    rows: usize,
    bits: usize,
) -> usize {
    let wide = lists.wide;
    if n <= TILE {
        let tile = n.next_power_of_two().max(64);
        let args = smallvec![
            Arg::Scratch(lists.keys[0]),
            Arg::Scratch(lists.places[0]),
            Arg::Scratch(lists.keys[1]),
            Arg::Scratch(lists.places[1]),
            Arg::U32(n as u32),
        ];
        plan.launches.push(launch(
            Key::Tile { wide, tile: tile as u16 },
            1,
            rows,
            tile as u32 / 2,
            args,
        ));
        return 1;
    }
    let blocks = n.div_ceil(TILE);
    let totals = lists.counts + 256 * blocks * rows * 4;
    let [many, all] = [n, blocks].map(|n| Arg::U32(n as u32));
    let mut side = 0;
    for shift in (0..bits).step_by(8) {
        let shift = Arg::U32(shift as u32);
        let [keys, places, counts, sums] =
            [lists.keys[side], lists.places[side], lists.counts, totals].map(Arg::Scratch);
        side = 1 - side;
        let to = [lists.keys[side], lists.places[side]].map(Arg::Scratch);
        let args =
            smallvec![keys.clone(), counts.clone(), many.clone(), all.clone(), shift.clone()];
        plan.launches.push(launch(Key::Count { wide }, blocks, rows, 256, args));
        let args = smallvec![counts.clone(), sums.clone(), all.clone()];
        plan.launches.push(launch(Key::Sum, 256, rows, 256, args));
        let mut args = smallvec![keys, places, counts, sums];
        args.extend(to);
        args.extend([many.clone(), all.clone(), shift]);
        plan.launches.push(launch(Key::Move { wide }, blocks, rows, 256, args));
    }
    side
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
            grid: grid(rows, 1, 1),
            block: [tile as u32 / 2, 1, 1],
            shared: 0,
            args: smallvec![input, values, places, n64, step, k64, inner64, down, g.arg(true)],
        });
        return Some(plan);
    }

    // The rows are a grid's y dimension, 65535 a time; each time has the same scratch.
    let (wide, bits) = key(dtype);
    let chosen = k <= TILE && k < n;
    let kept = if chosen { k } else { n };
    for first in (0..rows).step_by(GRID_YZ_MAX) {
        let many = (rows - first).min(GRID_YZ_MAX);
        let lists = Lists::new(wide, kept, many, 0);
        let mut end = lists.end;
        let from = [step.clone(), down.clone(), g.arg(true), Arg::U64(first as u64)];
        let with = |key, x, own: &[Arg]| {
            let args = own.iter().chain(&from).cloned().collect();
            launch(key, x, many, 256, args)
        };
        let list = [lists.keys[0], lists.places[0]].map(Arg::Scratch);
        if chosen {
            let [keys, places] = [bits.div_ceil(8), (n.ilog2() as usize + 1).div_ceil(8)];
            // How often each digit came in each pass, and how many are taken.
            let words = (keys + places) * 256 + 1;
            let counts = Arg::Scratch(end);
            end += words * many * 4;
            let args = smallvec![counts.clone(), Arg::U64((words * many) as u64)];
            plan.launches.push(launch(Key::Clear, (words * many).div_ceil(256), 1, 256, args));
            let numbers = [n, words, k, keys, places].map(|n| Arg::U32(n as u32));
            let blocks = n.div_ceil(SPAN);
            for pass in 0..keys + places {
                let own =
                    [&[input.clone(), counts.clone()], &numbers[..], &[Arg::U32(pass as u32)]]
                        .concat();
                plan.launches.push(with(Key::Select(dtype), blocks, &own));
            }
            let own = [&[input.clone(), counts.clone()], &list[..], &numbers].concat();
            plan.launches.push(with(Key::Take(dtype), blocks, &own));
        } else {
            let [keys, places] = list;
            let own = [input.clone(), keys, places, n64.clone()];
            plan.launches.push(with(Key::Keys(dtype), n.div_ceil(256), &own));
        }
        plan.scratch = plan.scratch.max(end);
        let side = by_digits(&mut plan, &lists, kept, many, bits);
        let [values, at] = outs.clone();
        let args = smallvec![
            input.clone(),
            Arg::Scratch(lists.places[side]),
            values,
            at,
            Arg::U64(kept as u64),
            step.clone(),
            k64.clone(),
            inner64.clone(),
            g.arg(true),
            Arg::U64(first as u64)
        ];
        plan.launches.push(launch(Key::Write(dtype), k.div_ceil(256), many, 256, args));
    }
    Some(plan)
}

impl Key {
    /// The kernel as CUDA C.
    pub fn source(&self) -> KernelSource {
        let key_type = |wide: bool| if wide { "u64" } else { "u32" };
        let place = |row: &str| {
            format!(
                "    const u64 r = {row};\n    i64 off[1];\n    ft::offsets<1, ft::Geo64>(geo, r, \
                 off);\n"
            )
        };
        let to = "    const u64 to = r / inner * k * inner + r % inner;\n";
        let in_rows = "i64 step, u64 descending, ft::Geo64<1> geo, u64 first";
        let y = "    const u64 y = blockIdx.y;\n";
        let (name, threads, params, code) = match *self {
            Key::Row { dtype, tile } => {
                let (t, key) = (storage(dtype), key_type(key(dtype).0));
                let params = vec![
                    format!("const {t}* x"),
                    format!("{t}* values"),
                    "i64* places, u64 n, i64 step, u64 k, u64 inner, u64 descending, \
                     ft::Geo64<1> geo"
                        .into(),
                ];
                let code = format!(
                    "{}    x += off[0];\n{to}    ft::sort_tile<{key}, {tile}>((u32)n,\n        \
                     [&](u32 j, {key}& key, u32& p) {{ key = ft::ordered<{key}>(x[j * step], \
                     descending != 0); p = j; }},\n        \
                     [&](u32 j, {key}, u32 p) {{\n        if (j >= k) return;\n        \
                     values[to + j * inner] = x[(i64)p * step];\n        \
                     places[to + j * inner] = p;\n    }});\n",
                    place("blockIdx.x")
                );
                ("sort", tile as u32 / 2, params, code)
            }
            Key::Tile { wide, tile } => {
                let key = key_type(wide);
                let params = vec![format!(
                    "const {key}* keys, const u32* places, {key}* keys_out, u32* places_out, u32 n"
                )];
                let code = format!(
                    "    const u64 row = (u64)blockIdx.y * n;\n    ft::sort_tile<{key}, \
                     {tile}>(n,\n        \
                     [&](u32 j, {key}& key, u32& p) {{ key = keys[row + j]; p = places[row + j]; \
                     }},\n        \
                     [&](u32 j, {key} key, u32 p) {{ keys_out[row + j] = key; \
                     places_out[row + j] = p; }});\n"
                );
                ("sort_tile", tile as u32 / 2, params, code)
            }
            Key::Keys(dtype) => {
                let (t, key) = (storage(dtype), key_type(key(dtype).0));
                let params =
                    vec![format!("const {t}* x, {key}* keys, u32* places, u64 n, {in_rows}")];
                let code = format!(
                    "{}    const u64 j = (u64)blockIdx.x * 256 + threadIdx.x, \
                     to = blockIdx.y * n + j;\n    \
                     if (j >= n) return;\n    keys[to] = ft::ordered<{key}>(x[off[0] + (i64)j * \
                     step], descending != 0);\n    \
                     places[to] = (u32)j;\n",
                    place("first + blockIdx.y")
                );
                ("sort_keys", 256, params, code)
            }
            Key::Count { wide } => {
                let params = vec![format!(
                    "const {}* keys, u32* counts, u32 n, u32 blocks, u32 shift",
                    key_type(wide)
                )];
                let code = format!(
                    "{y}    ft::radix_count(keys + y * n, counts + y * 256 * blocks, n, blocks, \
                     shift);\n"
                );
                ("radix_count", 256, params, code)
            }
            Key::Sum => {
                let params = vec!["u32* counts, u32* totals, u32 blocks".into()];
                let code = format!(
                    "{y}    ft::radix_sum(counts + y * 256 * blocks, totals + y * 256, blocks);\n"
                );
                ("radix_sum", 256, params, code)
            }
            Key::Move { wide } => {
                let key = key_type(wide);
                let params = vec![format!(
                    "const {key}* keys, const u32* places, const u32* counts, const u32* totals, \
                     {key}* keys_out, \
                     u32* places_out, u32 n, u32 blocks, u32 shift"
                )];
                let code = format!(
                    "{y}    ft::radix_move(keys + y * n, places + y * n, \
                     counts + y * 256 * blocks, totals + y * 256, \
                     keys_out + y * n, places_out + y * n, n, blocks, shift);\n"
                );
                ("radix_move", 256, params, code)
            }
            Key::Select(dtype) => {
                let (t, key) = (storage(dtype), key_type(key(dtype).0));
                let params = vec![format!(
                    "const {t}* x, u32* counts, u32 n, u32 words, u32 k, u32 keys, u32 places, \
                     u32 pass, {in_rows}"
                )];
                let code = format!(
                    "{}    ft::select_count<{key}>(x + off[0], step, \
                     counts + (u64)blockIdx.y * words, n, {SPAN}, k, \
                     descending != 0, ft::Last<{key}>{{0, 0, keys, places}}, pass);\n",
                    place("first + blockIdx.y")
                );
                ("select_count", 256, params, code)
            }
            Key::Take(dtype) => {
                let (t, key) = (storage(dtype), key_type(key(dtype).0));
                let params = vec![format!(
                    "const {t}* x, u32* counts, {key}* keys_out, u32* places_out, u32 n, \
                     u32 words, u32 k, u32 keys, \
                     u32 places, {in_rows}"
                )];
                let code = format!(
                    "{}{y}    counts += y * words;\n    ft::select_take<{key}>(x + off[0], step, \
                     counts, counts + words - 1, \
                     keys_out + y * k, places_out + y * k, n, {SPAN}, k, descending != 0, \
                     ft::Last<{key}>{{0, 0, keys, places}});\n",
                    place("first + blockIdx.y")
                );
                ("select_take", 256, params, code)
            }
            Key::Clear => {
                let code = "    const u64 i = (u64)blockIdx.x * 256 + threadIdx.x;\n    \
                     if (i < n) words[i] = 0;\n";
                ("clear", 256, vec!["u32* words, u64 n".into()], code.into())
            }
            Key::Write(dtype) => {
                let t = storage(dtype);
                let params = vec![
                    format!("const {t}* x, const u32* sorted"),
                    format!(
                        "{t}* values, i64* places, u64 n, i64 step, u64 k, u64 inner, \
                         ft::Geo64<1> geo, u64 first"
                    ),
                ];
                let code = format!(
                    "{}{to}    const u64 j = (u64)blockIdx.x * 256 + threadIdx.x;\n    \
                     if (j >= k) return;\n    \
                     const u32 p = sorted[blockIdx.y * n + j];\n    \
                     values[to + j * inner] = x[off[0] + (i64)p * step];\n    \
                     places[to + j * inner] = p;\n",
                    place("first + blockIdx.y")
                );
                ("sorted", 256, params, code)
            }
        };
        let source = KernelSource::new(name, &[Part::Base, Part::Sort], threads, &params, &code);
        match self {
            Key::Select(_) | Key::Take(_) => source.with_registers(threads),
            _ => source,
        }
    }
}
