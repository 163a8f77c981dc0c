//! Attention and its gradients, without the matrix of scores: see `device/attention.cuh`.
//!
//! Halves up to 128 wide go through tensor cores (`device/tensor.cuh`), everything else through
//! tiles of 64 by 64 in plain arithmetic. The next rows come into shared memory while these are
//! worked on, and from there to the tensor cores four matrices an instruction, each for two
//! products (four in the forward pass): 8 to 18 instructions a product, where they were 17 to 38
//! without. The gradients of keys and values are one walk, so that a training step makes the scores
//! four times, where it was five: for the result, for the sums of each query, for the queries'
//! gradient, and for those two. Nothing of it was timed. The scores of 4,096 queries and as many
//! keys in one head are 64 MiB in float32, which each of a composed attention's four passes moves;
//! here they never reach memory.
//!
//! **Few queries** would be a block a head, each with all keys to walk over: of an H100's 132
//! processors 32 had work. So up to 64 queries meet many keys span by span, a block each, and the
//! results of the spans are joined in their order (`paged`). The numbers of queries and keys alone
//! decide: a query finds the same beside any others.

use super::generate::{computed, storage};
use super::geometry::{Geometry, RANK_MAX};
use super::source::{KernelSource, Part};
use super::{Arg, GRID_YZ_MAX, Kernel, Launch, Plan, Words, grid, paged};
use crate::dtype::DType;
use smallvec::smallvec;

/// Queries that are few, and keys of a span, as in the kernel.
const FEW: usize = 64;
const SPAN: usize = 256;

/// A result of queries, keys and values.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Result {
    /// The output of the attention.
    Output,
    /// The same of each span of keys, to be joined.
    Spans,
    /// For each query the logarithm of its sum of powers, and the mean of the gradient of its
    /// weights: the other gradients need both.
    Stats,
    ToQuery,
    /// What flows to keys, then what flows to values: all of the one, then all of the other.
    ToKeys,
}

/// How the work is cut.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Team {
    /// So many times 64 columns of the result.
    Tiles(u8),
    /// Rows of this width, filled up with zeros.
    Tensor(u8),
}

/// Names a compiled kernel; `mask` is `Bool` or the type of numbers that are added. Lengths are for
/// `Output` and `Spans` alone.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Key {
    pub result: Result,
    pub dtype: DType,
    pub mask: Option<DType>,
    pub lengths: bool,
    pub team: Team,
}

/// An attention as an op asks for it. Queries, keys, values and the output's gradient lie as these
/// strides over the batch say, with a step between rows and none between elements of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attention<'a> {
    pub dtype: DType,
    pub batch: &'a [usize],
    /// Queries, keys, the width of both, the width of values.
    pub sizes: [usize; 4],
    /// Over the batch and the rows: of queries, keys, values and the output's gradient; empty where
    /// there is none.
    pub strides: [&'a [isize]; 4],
    /// Over the batch, queries and keys.
    pub mask: Option<(DType, &'a [isize])>,
    /// Over the batch, of how many keys there are, where that is said.
    pub lengths: Option<&'a [isize]>,
    /// The largest power of two that divides all addresses.
    pub align: usize,
    pub causal: bool,
    pub scale: f64,
}

impl Key {
    /// It is a gradient, or for one.
    fn back(&self) -> bool {
        !matches!(self.result, Result::Output | Result::Spans)
    }

    /// Own rows of a block, for each warp's 16 of them.
    fn times(&self) -> usize {
        match self.team {
            // Beside a mask, twice the widest rows would not fit the registers.
            Team::Tensor(97..) if self.mask.is_some() => 1,
            Team::Tensor(_) if self.result == Result::Output => 2,
            _ => 1,
        }
    }
}

/// The launches of one result, which is not `Spans`. Inputs: queries, keys, values; but for
/// `Output` the output's gradient, and but for `Stats` their result; the mask; the lengths. `None`
/// where more than eight dimensions are left after merging, or sizes are beyond 31 bits.
pub(crate) fn plan(result: Result, of: &Attention<'_>) -> Option<Plan> {
    let mut plan = Plan::default();
    let [rows, keys, width, wide] = of.sizes;
    let spans = keys.div_ceil(SPAN);
    // Of causal ones few see but the first few keys.
    let few = rows <= FEW && spans > 1 && spans <= GRID_YZ_MAX && !of.causal;
    let result = if few && result == Result::Output { Result::Spans } else { result };
    let lead = of.batch.len();
    let nothing = vec![0; lead];
    let over = |s: &'_ [isize]| if s.is_empty() { nothing.clone() } else { s[..lead].to_vec() };
    let [q, k, v, up] = of.strides.map(over);
    let [mask, lengths] =
        [of.mask.map(|(_, m)| m), of.lengths].map(|s| s.map_or(nothing.clone(), over));
    let g = Geometry::new(of.batch, &[&q, &k, &v, &up, &mask, &lengths]);
    let step = |i: usize| of.strides[i].get(lead).copied().unwrap_or(0);
    let half = of.dtype.size() == 2;
    let (own, columns) = match result {
        Result::Output | Result::Spans => (rows, wide),
        Result::Stats => (rows, 1),
        Result::ToQuery => (rows, width),
        Result::ToKeys => (keys, width.max(wide)),
    };
    // A tensor core has 16 rows or none: for one query the tiles took half as long, with twice the
    // bytes (88 us in float32 beside 177 in bfloat16, on an H100).
    let alone = result == Result::Spans && rows == 1;
    let team = match width.max(wide) {
        most @ 1..=128 if half && !alone => Team::Tensor(most.next_multiple_of(32) as u8),
        _ => Team::Tiles(if columns <= 64 || of.dtype == DType::F64 { 1 } else { 2 }),
    };
    let key = Key {
        result,
        dtype: of.dtype,
        mask: of.mask.map(|(dtype, _)| dtype),
        lengths: of.lengths.is_some(),
        team,
    };
    let (tile, threads, parts) = match team {
        Team::Tensor(_) => (64 * key.times(), 128, 1),
        Team::Tiles(times) => (64, 256, columns.div_ceil(64 * times as usize)),
    };
    let blocks = g.numel().checked_mul(own.div_ceil(tile))?;
    if g.rank() > RANK_MAX || [blocks, rows + 64, keys + 64].iter().any(|&n| n > i32::MAX as usize)
    {
        return None;
    }
    if parts > GRID_YZ_MAX {
        return None;
    }
    if blocks == 0 || columns == 0 {
        return Some(plan);
    }
    // Sixteen bytes at a time, where all of them lie so.
    let all = || g.strides[..4].iter().flatten().copied().chain((0..4).map(step));
    let whole = of.align.is_multiple_of(16)
        && [width, wide].iter().all(|n| n.is_multiple_of(8))
        && all().all(|s| s.unsigned_abs().is_multiple_of(8));
    let mut numbers = Words::default();
    [rows, keys, width, wide].iter().for_each(|&n| numbers.u64(n as u64));
    (0..4).for_each(|i| numbers.u64(step(i) as u64));
    let mask = |d: usize| of.mask.map_or(0, |(_, m)| m[lead + d]);
    [mask(0), mask(1), of.causal as isize, whole as isize]
        .iter()
        .for_each(|&n| numbers.u64(n as u64));
    numbers.u64(of.scale.to_bits());
    let back = key.back() as u8 * 2 - (result == Result::Stats) as u8;
    let inputs = 3 + back + of.mask.is_some() as u8 + of.lengths.is_some() as u8;
    let mut args: smallvec::SmallVec<[Arg; 8]> =
        (0..inputs).map(|index| Arg::In { index, bytes: 0 }).collect();
    let found =
        if result == Result::Spans { Arg::Scratch(0) } else { Arg::Out { index: 0, bytes: 0 } };
    args.push(found);
    if result == Result::ToKeys {
        let bytes = g.numel().checked_mul(keys * width)?.checked_mul(of.dtype.size())?;
        args.push(Arg::Out { index: 0, bytes });
    }
    args.extend([Arg::Struct(numbers), g.arg(true)]);
    plan.launches = smallvec![Launch {
        kernel: Kernel::Attention(key),
        grid: grid(blocks, parts, if result == Result::Spans { spans } else { 1 }),
        block: [threads, 1, 1],
        shared: 0,
        args,
    }];
    if result == Result::Spans {
        paged::meet(&mut plan, of.dtype, g.numel() * rows, spans, wide);
    }
    Some(plan)
}

impl Key {
    /// The kernel as CUDA C.
    pub fn source(&self) -> KernelSource {
        let (t, c) = (storage(self.dtype), computed(self.dtype));
        let (name, role) = match self.result {
            Result::Output => ("attention", "ft::OUTPUT"),
            Result::Spans => ("attention_spans", "ft::SPANS"),
            Result::Stats => ("attention_stats", "ft::STATS"),
            Result::ToQuery => ("attention_query", "ft::TO_QUERY"),
            Result::ToKeys => return self.for_keys(),
        };
        let (back, stats) = (self.back(), self.result == Result::Stats);
        let computes = stats || self.result == Result::Spans;
        let mask = self.mask.map_or("float", storage);
        let mut params = vec![format!("const {t}* q, const {t}* k, const {t}* v")];
        let mut given = |there: bool, kind: &str, name: &'static str| {
            if there {
                params.push(format!("const {kind}* {name}"));
            }
            if there { name.to_owned() } else { format!("(const {kind}*)0") }
        };
        let up = given(back, t, "up");
        let sums = given(back && !stats, c, "stats");
        let hides = given(self.mask.is_some(), mask, "mask");
        let lengths = given(self.lengths, "i64", "lengths");
        params.push(format!(
            "{}* out, ft::Attended a, ft::Geo64<6> batches",
            if computes { c } else { t }
        ));
        let masked = self.mask.is_some();
        let (threads, how) = match self.team {
            Team::Tiles(times) => (256, format!("attend<{role}, {t}, {mask}, {masked}, {times}>")),
            Team::Tensor(wide) => {
                // The rows of the walk stay within 48 KiB, the held values within 255 registers.
                let times = self.times();
                let walked = match wide {
                    ..=64 if times == 1 && (stats || !back) => 64,
                    65.. if times == 2 => 16,
                    _ => 32,
                };
                (
                    128,
                    format!(
                        "attend_tensor<{role}, {t}, {mask}, {masked}, {wide}, {walked}, {times}>"
                    ),
                )
            }
        };
        let code =
            format!("    ft::{how}(q, k, v, {up}, {sums}, {hides}, {lengths}, out, a, batches);\n");
        let parts = &[Part::Base, Part::Ops, Part::Tensor, Part::Attention, Part::AttentionTensor];
        KernelSource::new(name, parts, threads, &params, &code).with_registers(threads)
    }

    /// That of `ToKeys`, which has two results and no softmax of its own.
    fn for_keys(&self) -> KernelSource {
        let (t, c) = (storage(self.dtype), computed(self.dtype));
        let mask = self.mask.map_or("float", storage);
        let masked = self.mask.is_some();
        let mut params = vec![format!("const {t}* q, const {t}* k, const {t}* v, const {t}* up")];
        params.push(format!("const {c}* stats"));
        if masked {
            params.push(format!("const {mask}* mask"));
        }
        params.push(format!("{t}* keys, {t}* values, ft::Attended a, ft::Geo64<6> batches"));
        let (threads, how) = match self.team {
            Team::Tiles(times) => (256, format!("attend_keys<{t}, {mask}, {masked}, {times}>")),
            Team::Tensor(wide) => {
                // Keys that stay in shared memory leave room for fewer queries.
                let walked = if wide > 64 { 16 } else { 32 };
                (128, format!("attend_keys_tensor<{t}, {mask}, {masked}, {wide}, {walked}>"))
            }
        };
        let hides = if masked { "mask".to_owned() } else { format!("(const {mask}*)0") };
        let code =
            format!("    ft::{how}(q, k, v, up, stats, {hides}, keys, values, a, batches);\n");
        let parts = &[
            Part::Base,
            Part::Ops,
            Part::Tensor,
            Part::Attention,
            Part::AttentionTensor,
            Part::AttentionKeys,
        ];
        KernelSource::new("attention_keys", parts, threads, &params, &code).with_registers(threads)
    }
}
