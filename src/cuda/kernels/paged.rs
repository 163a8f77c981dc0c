//! Attention over keys and values in pages: see `device/paged.cuh`.

use super::generate::{computed, storage};
use super::source::{KernelSource, Part};
use super::{Arg, GRID_YZ_MAX, Kernel, Launch, Plan, Words, grid};
use crate::dtype::DType;
use crate::shape::numel;
use smallvec::smallvec;

/// Keys of a span, as in the kernel.
const SPAN: usize = 512;

/// Names a compiled kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Key {
    /// `heads` that share their keys are one block's.
    Spans {
        dtype: DType,
        cache: DType,
        table: DType,
        lengths: DType,
        heads: u8,
        capped: bool,
    },
    Meet {
        dtype: DType,
    },
}

/// An operand: its type and how it lies.
#[derive(Clone, Copy)]
pub(crate) struct Lie<'a> {
    pub dtype: DType,
    pub shape: &'a [usize],
    pub strides: &'a [isize],
}

/// What a query sees, and how.
#[derive(Clone, Copy)]
pub(crate) struct Sight {
    pub scale: f64,
    /// What scores are bent to stay below.
    pub cap: Option<f64>,
    /// So many keys at most, the last ones.
    pub window: Option<usize>,
    pub causal: bool,
}

/// The launches for queries, keys, values, table and lengths, the inputs in this order. `None`
/// where there are more than a grid has blocks for.
pub(crate) fn plan(inputs: [Lie<'_>; 5], sight: Sight) -> Option<Plan> {
    let [q, k, v, table, lengths] = inputs;
    let [batch, queries, heads, width] = [0, 1, 2, 3].map(|d| q.shape[d]);
    let (page, shared, most, wide) = (k.shape[1], k.shape[2], table.shape[1], v.shape[3]);
    // A table that is repeated may have any size.
    let spans = most.saturating_mul(page).div_ceil(SPAN).max(1);
    let (units, dtype) = (numel(&[batch, queries, heads]), q.dtype);
    let mut plan = Plan::default();
    if units == 0 || wide == 0 {
        return Some(plan);
    }
    if units > i32::MAX as usize || spans > GRID_YZ_MAX {
        return None;
    }
    let group = heads / shared;
    let mut numbers = Words::default();
    let sizes = [queries, heads, group, page, k.shape[0], most, width, wide, spans];
    sizes.iter().for_each(|&n| numbers.u64(n as u64));
    let strides = [q, k, v, table, lengths].into_iter().flat_map(|x| x.strides);
    strides.for_each(|&s| numbers.u64(s as u64));
    numbers.u64(sight.causal as u64);
    // All keys are in a window as long as an int64 says.
    numbers.u64(sight.window.map_or(i64::MAX as u64, |keys| (keys as u64).min(i64::MAX as u64)));
    numbers.u64(sight.scale.to_bits());
    numbers.u64(sight.cap.unwrap_or(0.0).to_bits());
    let together = match group {
        1 => 1,
        2 => 2,
        _ => 4,
    };
    let key = Key::Spans {
        dtype,
        cache: k.dtype,
        table: table.dtype,
        lengths: lengths.dtype,
        heads: together as u8,
        capped: sight.cap.is_some(),
    };
    let mut args: smallvec::SmallVec<[Arg; 8]> =
        (0..5).map(|index| Arg::In { index, bytes: 0 }).collect();
    args.extend([Arg::Scratch(0), Arg::IndexError, Arg::Struct(numbers)]);
    let kernel = Kernel::Paged(key);
    plan.launches.push(Launch {
        kernel,
        grid: grid(units / group * group.div_ceil(together), spans, 1),
        block: [128, 1, 1],
        shared: 0,
        args,
    });
    meet(&mut plan, dtype, units, spans, wide);
    Some(plan)
}

/// Joins the results of `spans` spans a query, in their order, into the output: the largest score
/// of each, the sum of powers, and the sum of values. The plan has scratch memory for them from
/// here on.
pub(super) fn meet(plan: &mut Plan, dtype: DType, queries: usize, spans: usize, wide: usize) {
    let size = if dtype == DType::F64 { 8 } else { 4 };
    plan.scratch = queries * spans * (wide + 2) * size;
    let n = queries * wide;
    plan.launches.push(Launch {
        kernel: Kernel::Paged(Key::Meet { dtype }),
        grid: grid(n.div_ceil(256), 1, 1),
        block: [256, 1, 1],
        shared: 0,
        args: smallvec![
            Arg::Scratch(0),
            Arg::Out { index: 0, bytes: 0 },
            Arg::U64(n as u64),
            Arg::U64(spans as u64),
            Arg::U64(wide as u64),
        ],
    });
}

impl Key {
    /// The kernel as CUDA C.
    pub fn source(&self) -> KernelSource {
        let parts = &[Part::Base, Part::Ops, Part::Reduce, Part::Index, Part::Paged];
        match *self {
            Key::Spans { dtype, cache, table, lengths, heads, capped } => {
                let (t, c, k) = (storage(dtype), computed(dtype), storage(cache));
                let params = [
                    format!("const {t}* q, const {k}* k, const {k}* v"),
                    format!("const {}* table, const {}* lengths", storage(table), storage(lengths)),
                    format!("{c}* parts, ft::IndexError* error, ft::Paged a"),
                ];
                let args = "q, k, v, table, lengths, parts, error, a";
                let code = format!("    ft::attend_span<{heads}, {capped}>({args});\n");
                KernelSource::new("paged_spans", parts, 128, &params, &code).with_registers(128)
            }
            Key::Meet { dtype } => {
                let (t, c) = (storage(dtype), computed(dtype));
                let params = [format!("const {c}* parts, {t}* out, i64 n, i64 spans, i64 wide")];
                let code = format!("    ft::meet_spans<{t}>(parts, out, n, spans, wide);\n");
                KernelSource::new("paged_meet", parts, 256, &params, &code).with_registers(256)
            }
        }
    }
}
