//! Products with quantised weights and with plain elements, and their rows in float32.
//!
//! Activations are quantised to 8 bits in scratch memory. Then `dp4a` multiplies few rows, and
//! tensor cores many: in machine code for sm_90, beside each product of 16 x 8 x 32 stand 35 (Q8_0)
//! to 52 (Q5_K) other instructions, 16 of which scale and add its results. Nothing of it was timed.
//! Beside weights of plain elements, activations stay as they are; [`halves`](super::halves) has
//! other ways. All products add in the order of the CPU, so the bits are the same. So are those of
//! rows by a matrix each (`grouped`), whichever rows share a reading of it.

use super::generate::storage;
use super::source::{KernelSource, Part};
use super::{Arg, GRID_YZ_MAX, Kernel, Launch, Plan, grid};
use crate::dtype::DType;
use crate::format::{Format, Packing, ROWS};
use smallvec::smallvec;

/// Bytes of 32 activations; `Activations` in `device/quantized.cuh`.
const ACTIVATIONS: usize = 48;
/// Most rows that are few.
const FEW: usize = 16;
/// Rows of a block where there are more.
const TILE: usize = 64;
/// Matrices among which rows are told apart; `GROUPS` in `device/quantized_groups.cuh`.
const GROUPS_MAX: usize = 1024;

/// Names a compiled kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Key {
    Activations,
    /// Elements of so many bytes row by row into panels.
    Pack(u8),
    /// So many rows at a time: 1 or 8.
    Few(Format, u8),
    /// 64 rows by so many panels a block: 2 or 8, of plain elements 4.
    Many(Format, u8),
    /// A row at a time, by matrices with names of this type.
    Grouped(Format, DType),
    /// Rows into tiles of so many, each of one matrix, by names of this type.
    Order(u8, DType),
    /// A tile of so many rows by its matrix.
    Tiles(Format, u8),
    Dequantize(Format),
    /// With indices of this type.
    Embedding(Format, DType),
}

fn launch(key: Key, [x, y]: [usize; 2], args: smallvec::SmallVec<[Arg; 8]>) -> Launch {
    Launch {
        kernel: Kernel::Quantized(key),
        grid: grid(x, y, 1),
        block: [256, 1, 1],
        shared: 0,
        args,
    }
}

pub(super) const fn input(index: u8) -> Arg {
    Arg::In { index, bytes: 0 }
}

pub(super) const OUT: Arg = Arg::Out { index: 0, bytes: 0 };

/// The launches of `x w^T` for `rows` rows that lie without gaps. `None` where there are more than
/// four million.
pub(crate) fn plan(packing: Packing, rows: usize) -> Option<Plan> {
    let mut plan = Plan::default();
    let (blocks, panels) = (packing.columns / 32, packing.rows.div_ceil(ROWS));
    if rows * packing.rows == 0 {
        return Some(plan);
    }
    let plain = packing.format.dtype().is_some();
    let (key, high) = match rows {
        1 => (Key::Few(packing.format, 1), 1),
        2..=FEW => (Key::Few(packing.format, 8), 8),
        _ if plain => (Key::Many(packing.format, 4), TILE),
        // Where there is one block below the other, more of them beside each other.
        ..=TILE => (Key::Many(packing.format, 2), TILE),
        _ => (Key::Many(packing.format, 8), TILE),
    };
    if rows.div_ceil(high) > GRID_YZ_MAX {
        return None;
    }
    let args = smallvec![
        input(1),
        activations(&mut plan, packing, rows),
        OUT,
        Arg::U64(rows as u64),
        Arg::U64(packing.rows as u64),
        Arg::U32(blocks as u32),
        Arg::U64(packing.panel_bytes() as u64),
    ];
    let wide = if let Key::Many(_, many) = key { many } else { 1 };
    let blocks = [panels.div_ceil(wide.into()), rows.div_ceil(high)];
    plan.launches.push(launch(key, blocks, args));
    Some(plan)
}

/// The rows as the format meets them, which a first launch may make.
fn activations(plan: &mut Plan, packing: Packing, rows: usize) -> Arg {
    if packing.format.dtype().is_some() {
        return input(0);
    }
    let blocks = rows * (packing.columns / 32);
    plan.scratch = (blocks * ACTIVATIONS).max(1);
    if blocks > 0 {
        let args = smallvec![input(0), Arg::Scratch(0), Arg::U64(blocks as u64)];
        plan.launches.push(launch(Key::Activations, [blocks.div_ceil(8), 1], args));
    }
    Arg::Scratch(0)
}

/// The launches of `rows` rows that lie without gaps by one of `groups` matrices each. `None` where
/// there are more rows than a grid has blocks for.
///
/// Few rows read their matrices one by one. Where some meet the same matrix, by the numbers alone,
/// they are brought into tiles, each of which reads its matrix once.
pub(crate) fn grouped(one: Packing, groups: usize, index: DType, rows: usize) -> Option<Plan> {
    let mut plan = Plan::default();
    if rows > FEW && rows >= 2 * groups && groups <= GROUPS_MAX {
        return by_tiles(one, groups, index, rows);
    }
    if rows > GRID_YZ_MAX {
        return None;
    }
    let args = smallvec![
        input(1),
        activations(&mut plan, one, rows),
        input(2),
        OUT,
        Arg::IndexError,
        Arg::U64(one.rows as u64),
        Arg::U32((one.columns / 32) as u32),
        Arg::U64(groups as u64),
        Arg::U64(one.panel_bytes() as u64),
    ];
    let key = Key::Grouped(one.format, index);
    plan.launches.push(launch(key, [one.rows / ROWS, rows], args));
    Some(plan)
}

/// The same for many rows.
fn by_tiles(one: Packing, groups: usize, index: DType, rows: usize) -> Option<Plan> {
    let mut plan = Plan::default();
    // Of 64 rows, where most tiles are half full.
    let tile = if rows >= TILE / 2 * groups { TILE } else { 8 };
    let panels = one.rows / ROWS;
    let wide = match (tile, one.format.dtype()) {
        (8, _) => 1,
        (_, Some(_)) => 4,
        (_, None) => 8,
    };
    // Each matrix may have a tile that is not full.
    let tiles = rows / tile + groups.min(rows);
    if tiles > GRID_YZ_MAX || u32::try_from(tiles * tile).is_err() {
        return None;
    }
    let x = activations(&mut plan, one, rows);
    let order = plan.scratch.next_multiple_of(16);
    let owners = order + 4 * tiles * tile;
    plan.scratch = owners + 4 * tiles;
    let [order, owners] = [order, owners].map(Arg::Scratch);
    let sizes = [rows, groups, tiles].map(|n| Arg::U32(n as u32));
    let [a, b] = [&order, &owners].map(Arg::clone);
    let args = [input(2), a, b, Arg::IndexError].into_iter().chain(sizes).collect();
    plan.launches.push(launch(Key::Order(tile as u8, index), [groups, 1], args));
    let args = smallvec![
        input(1),
        x,
        order,
        owners,
        OUT,
        Arg::U64(one.rows as u64),
        Arg::U32((one.columns / 32) as u32),
        Arg::U64(one.panel_bytes() as u64),
    ];
    let blocks = [panels.div_ceil(wide), tiles];
    plan.launches.push(launch(Key::Tiles(one.format, tile as u8), blocks, args));
    Some(plan)
}

/// The launch of plain elements, row by row without gaps, into panels.
pub(crate) fn pack(packing: Packing) -> Plan {
    let size = packing.format.block_bytes() / packing.format.block();
    let (mut plan, count) = (Plan::default(), packing.bytes() / size);
    if count > 0 {
        let sizes = [packing.rows, packing.columns, count].map(|n| Arg::U64(n as u64));
        let args = [input(0), OUT].into_iter().chain(sizes).collect();
        plan.launches.push(launch(Key::Pack(size as u8), [count.div_ceil(256), 1], args));
    }
    plan
}

/// The launch of a whole weight in float32.
pub(crate) fn dequantize(packing: Packing) -> Plan {
    let blocks = packing.columns / 32;
    let mut plan = Plan::default();
    if packing.rows * blocks > 0 {
        let args = smallvec![
            input(0),
            OUT,
            Arg::U64(packing.rows as u64),
            Arg::U32(blocks as u32),
            Arg::U64(packing.panel_bytes() as u64),
        ];
        let key = Key::Dequantize(packing.format);
        plan.launches.push(launch(key, [(packing.rows * blocks).div_ceil(256), 1], args));
    }
    plan
}

/// The launch of rows by `count` indices that lie without gaps.
pub(crate) fn embedding(packing: Packing, index: DType, count: usize) -> Plan {
    let blocks = packing.columns / 32;
    let mut plan = Plan::default();
    if count * blocks > 0 {
        let args = smallvec![
            input(0),
            input(1),
            OUT,
            Arg::IndexError,
            Arg::U64(count as u64),
            Arg::U32(blocks as u32),
            Arg::U64(packing.panel_bytes() as u64),
            Arg::U64(packing.rows as u64),
        ];
        let key = Key::Embedding(packing.format, index);
        plan.launches.push(launch(key, [(count * blocks).div_ceil(256), 1], args));
    }
    plan
}

impl Key {
    /// The kernel as CUDA C.
    pub fn source(&self) -> KernelSource {
        const PARTS: &[Part] =
            &[Part::Base, Part::Copy, Part::Index, Part::Tensor, Part::Quantized];
        const GROUPED: &[Part] = &[
            Part::Base,
            Part::Copy,
            Part::Index,
            Part::Tensor,
            Part::Quantized,
            Part::QuantizedGroups,
        ];
        let packed = |format: Format| {
            let x = if format.dtype().is_some() { "ft::Floats" } else { "ft::Activations" };
            format!("const u8* w, const {x}* x, float* out, u64 rows, u64 n, u32 blocks, u64 bytes")
        };
        let (prefix, params, code) = match *self {
            Key::Activations => (
                "quantize_activations",
                "const float* x, ft::Activations* out, u64 blocks".to_string(),
                "    ft::quantize_activations(x, out, blocks);\n".to_string(),
            ),
            Key::Pack(size) => {
                let t = if size == 2 { "u16" } else { "u32" };
                let params = format!("const {t}* x, {t}* out, u64 rows, u64 columns, u64 count");
                let code = format!("    ft::pack_elements<{t}>(x, out, rows, columns, count);\n");
                ("pack_elements", params, code)
            }
            Key::Few(format, rows) => (
                "quantized_few",
                packed(format),
                format!(
                    "    ft::product_of_few<ft::{format}, {rows}>(w, x, out, \
                     ft::Neighbours<{rows}>{{rows}}, n, blocks, bytes);\n"
                ),
            ),
            Key::Many(format, panels) => {
                let name = match panels {
                    4 => format!("elements_by_many<ft::{format}>"),
                    // Panels of a warp, and blocks of columns at a time.
                    2 => format!("product_of_many<ft::{format}, 1, 4>"),
                    _ => format!("product_of_many<ft::{format}, 4, 1>"),
                };
                let code = format!(
                    "    ft::{name}(w, x, out, ft::Neighbours<64>{{rows}}, n, blocks, bytes);\n"
                );
                let params = [packed(format)];
                let source = KernelSource::new("quantized_many", PARTS, 256, &params, &code);
                // Two blocks a processor: plain elements have the registers that they want.
                return if panels == 4 { source } else { source.with_blocks(256, 2) };
            }
            Key::Grouped(format, index) => {
                let j = storage(index);
                let x = if format.dtype().is_some() { "ft::Floats" } else { "ft::Activations" };
                let params = format!(
                    "const u8* w, const {x}* x, const {j}* which, float* out, \
                     ft::IndexError* error, u64 n, u32 blocks, u64 groups, u64 bytes"
                );
                let code = format!(
                    "    ft::product_of_groups<ft::{format}, {j}>(w, x, which, out, error, n, \
                     blocks, groups, bytes);\n"
                );
                ("quantized_grouped", params, code)
            }
            Key::Order(tile, index) => {
                let j = storage(index);
                let params = format!(
                    "const {j}* which, u32* order, u32* owners, ft::IndexError* error, u32 rows, \
                     u32 groups, u32 tiles"
                );
                let code = format!(
                    "    ft::rows_by_group<{tile}, {j}>(which, order, owners, error, rows, groups, \
                     tiles);\n"
                );
                return KernelSource::new("rows_by_group", GROUPED, 256, &[params], &code);
            }
            Key::Tiles(format, tile) => {
                let x = if format.dtype().is_some() { "ft::Floats" } else { "ft::Activations" };
                let params = format!(
                    "const u8* w, const {x}* x, const u32* order, const u32* owners, float* out, \
                     u64 n, u32 blocks, u64 bytes"
                );
                let code = format!(
                    "    ft::product_of_tiles<ft::{format}, {tile}>(w, x, order, owners, out, n, \
                     blocks, bytes);\n"
                );
                let source = KernelSource::new("quantized_tiles", GROUPED, 256, &[params], &code);
                let is_plain = format.dtype().is_some();
                return if is_plain { source } else { source.with_blocks(256, 2) };
            }
            Key::Dequantize(format) => (
                "dequantize",
                "const u8* w, float* out, u64 rows, u32 blocks, u64 bytes".into(),
                format!("    ft::dequantize<ft::{format}>(w, out, rows, blocks, bytes);\n"),
            ),
            Key::Embedding(format, index) => {
                let j = storage(index);
                let params = format!(
                    "const u8* w, const {j}* index, float* out, ft::IndexError* error, u64 count, \
                     u32 blocks, \
                     u64 bytes, u64 rows"
                );
                let code = format!(
                    "    ft::quantized_embedding<ft::{format}, {j}>(w, index, out, error, count, \
                     blocks, bytes, \
                     rows);\n"
                );
                ("quantized_embedding", params, code)
            }
        };
        KernelSource::new(prefix, PARTS, 256, &[params], &code)
    }
}
