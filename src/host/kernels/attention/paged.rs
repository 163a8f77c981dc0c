//! Attention over keys and values that lie in pages: a language model needs it for each token.
//!
//! A query's bits depend on the query, its keys and its values alone. Its keys fall into spans of
//! [`SPAN`] by position, each a softmax of its own, and spans meet in their order. The pages in
//! which they lie, the queries that are read beside it and the number of threads show nowhere.

use crate::dtype::DType;
use crate::host::kernels::index::{OutOfRange, numbers};
use crate::host::kernels::isa::{Levelled, at_level};
use crate::host::kernels::load::{Load, Widened, over};
use crate::host::kernels::math::{self, Lane};
use crate::host::kernels::nest::{Shared, in_parts};
use crate::host::kernels::reduce::fold::{Max, Sum, fold_block};
use crate::host::kernels::rows;
use crate::host::kernels::simd::Simd;
use crate::host::kernels::stream::prefetch_all;
use crate::room;
use crate::view::{Parallel, View, ViewMut};
use half::{bf16, f16};
use smallvec::{SmallVec, smallvec};
use std::ops::Range;

/// Keys that are worth a thread of their own.
const SPAN: usize = 512;
/// Keys of a block, which stays in the nearest cache while all queries meet it.
const KEYS: usize = 64;
/// Queries of one sequence that are read beside each other.
const ROWS: usize = 32;
/// A key or a value in halves is asked for so many keys before it is used.
const AHEAD: usize = 4;
/// Sums that a product of two rows is made of: a register of the widest kind.
const LANES: usize = 16;
/// Queries that meet the same keys at once.
const BESIDE: usize = 4;
/// Queries from which on it pays to have the keys' columns side by side.
const TURNED_FROM: usize = 2 * BESIDE;
/// Multiply-adds below which a further thread does not pay.
const LEAST: usize = if cfg!(all(test, debug_assertions)) { 2000 } else { 1 << 16 };

/// A type that attention is computed in.
trait Real: rows::Float {
    fn fma<S: Simd>(self, b: Self, c: Self) -> Self;
    fn tanh<S: Simd>(self) -> Self;
}

macro_rules! real {
    ($($t:ident)*) => {$(
        impl Real for $t {
            #[inline(always)]
            fn fma<S: Simd>(self, b: $t, c: $t) -> $t {
                if S::FMA { self.mul_add(b, c) } else { self * b + c }
            }
            #[inline(always)]
            fn tanh<S: Simd>(self) -> $t {
                math::Real::tanh(Lane::<S, $t>::new(self)).0
            }
        }
    )*};
}
real!(f32 f64);

/// Queries `[batch, queries, heads, width]` over keys `[pages, page, key heads, width]` and as many
/// values. Row `b` of the table `[batch, most]` names the pages of a sequence of so many keys as
/// `lengths` says; what lies beyond is not read.
#[derive(Clone, Copy)]
pub(crate) struct Paged<'a> {
    pub q: View<'a>,
    pub k: View<'a>,
    pub v: View<'a>,
    pub table: View<'a>,
    pub lengths: View<'a>,
    pub scale: f64,
    /// Scores are `cap * tanh(score / cap)`.
    pub cap: Option<f64>,
    /// A query sees so many keys at most, the last ones.
    pub window: Option<usize>,
    /// The last query stands at the last key, and none sees what is after it.
    pub causal: bool,
}

impl Paged<'_> {
    /// The first key that a query sees which sees none from this one on.
    fn first(&self, limit: usize) -> usize {
        self.window.map_or(0, |window| limit.saturating_sub(window))
    }
}

/// Queries that read the same pages.
struct Group {
    /// The first of them; the others follow.
    first: usize,
    /// How many keys each sees.
    limits: SmallVec<[usize; ROWS]>,
    /// Their pages, in the list of all.
    pages: Range<usize>,
}

/// Writes what the queries find, `[batch, queries, heads, width of a value]` of the queries' type,
/// float32 or float64; keys and values are of that or, beside float32, halves.
///
/// # Errors
/// The first length that a row of the table has no room for, or page that is not there.
pub(crate) fn paged(
    of: &Paged<'_>,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) -> Result<(), OutOfRange> {
    if out.numel() == 0 {
        return Ok(());
    }
    let (batch, queries, page) = (of.q.shape[0], of.q.shape[1], of.k.shape[1]);
    // A table that is repeated may have any size.
    let most = of.table.shape[1].saturating_mul(page).min(i64::MAX as usize);
    let (mut lengths, mut table, mut groups) = (Vec::new(), Vec::new(), Vec::<Group>::new());
    (0..batch).for_each(|b| numbers(&of.lengths, b, 1, &mut lengths));
    for (b, length) in lengths.into_iter().enumerate() {
        if !(0..=most as i64).contains(&length) {
            return Err(OutOfRange { index: length, size: most + 1, position: b });
        }
        let (length, from) = (length as usize, table.len());
        numbers(&of.table, b, length.div_ceil(page.max(1)), &mut table);
        if let Some(at) = table[from..].iter().position(|p| !(0..of.k.shape[0] as i64).contains(p))
        {
            let position = b * of.table.shape[1] + at;
            return Err(OutOfRange { index: table[from + at], size: of.k.shape[0], position });
        }
        for j in 0..queries {
            let limit = if of.causal { (length + j + 1).saturating_sub(queries) } else { length };
            let pages = from..table.len();
            let same = |group: &Group| {
                let both = table[group.pages.clone()].iter().zip(&table[from..]);
                group.limits.len() < ROWS && both.clone().all(|(a, b)| a == b)
            };
            match groups.last_mut().filter(|group| same(group)) {
                Some(group) => {
                    group.limits.push(limit);
                    if group.pages.len() < pages.len() {
                        group.pages = pages;
                    }
                }
                None => {
                    room::reserve(&mut groups, 1);
                    groups.push(Group { first: b * queries + j, limits: smallvec![limit], pages });
                }
            }
        }
    }
    match (of.q.dtype, of.k.dtype) {
        (DType::F32, DType::F32) => run::<f32, f32>(of, &groups, &table, out, par),
        (DType::F32, DType::F16) => run::<f16, f32>(of, &groups, &table, out, par),
        (DType::F32, DType::BF16) => run::<bf16, f32>(of, &groups, &table, out, par),
        (DType::F64, DType::F64) => run::<f64, f64>(of, &groups, &table, out, par),
        (q, k) => unreachable!("attention of {q} over {k}, which the shape rule refuses"),
    }
    Ok(())
}

fn run<T: Load<W>, W: Real>(
    of: &Paged<'_>,
    groups: &[Group],
    table: &[i64],
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    let (heads, shared, width, wide) = (of.q.shape[2], of.k.shape[2], of.q.shape[3], of.v.shape[3]);
    let rows = of.q.shape[0] * of.q.shape[1];
    let most = groups.iter().flat_map(|group| &group.limits).copied().max().unwrap_or(0);
    let spans = most.div_ceil(SPAN).max(1);
    // For each query, head and span: the largest score, the sum of powers, and what they find.
    let step = 2 + wide.next_multiple_of(LANES);
    let mut parts = room::filled(rows * heads * spans * step, W::ZERO);
    let parts = Shared::<W>::new(parts.as_mut_ptr());
    let each = (rows / groups.len()).max(1) * (heads / shared) * most.min(SPAN) * (width + wide);
    in_parts(groups.len() * shared * spans, LEAST / each.max(1), par, &|units| {
        for unit in units {
            let (group, head, span) = (unit / spans / shared, unit / spans % shared, unit % spans);
            let group = &groups[group];
            let end = group.limits.iter().copied().max().unwrap_or(0).min((span + 1) * SPAN);
            // Blocks lie as they do where nobody is beside a query.
            let first = group.limits.iter().map(|&limit| of.first(limit)).min().unwrap_or(0);
            let start = (first / KEYS * KEYS).max(span * SPAN);
            let tile = Tile::<T, W> {
                of,
                limits: &group.limits,
                pages: &table[group.pages.clone()],
                first: group.first,
                head,
                keys: start..end,
                parts: Shared::new(parts.at((span * step) as isize)),
                steps: [(heads * spans * step) as isize, (spans * step) as isize],
                room: &mut [],
                kind: std::marker::PhantomData,
            };
            W::with_scratch(tile.room_needed(), |room| at_level(Tile { room, ..tile }));
        }
    });
    let to = Shared::<W>::new(out.ptr);
    in_parts(rows * heads, (LEAST / (spans * step)).max(1), par, &|range| {
        for row in range {
            // SAFETY: the spans of one query and head, all written by now, and its own part of the
            // output.
            let (parts, out) = unsafe {
                let from = parts.at((row * spans * step) as isize);
                let to = to.at((row * wide) as isize);
                (
                    std::slice::from_raw_parts(from, spans * step),
                    std::slice::from_raw_parts_mut(to, wide),
                )
            };
            at_level(Meet { parts, step, out });
        }
    });
}

/// Some queries of one sequence, over one span of its keys, for one head of these.
struct Tile<'a, T, W> {
    of: &'a Paged<'a>,
    limits: &'a [usize],
    pages: &'a [i64],
    first: usize,
    head: usize,
    keys: Range<usize>,
    /// Where the first query's first head writes, and from there to the next query and head.
    parts: Shared<W>,
    steps: [isize; 2],
    room: &'a mut [W],
    kind: std::marker::PhantomData<T>,
}

impl<T: Load<W>, W: Real> Tile<'_, T, W> {
    fn widths(&self) -> [usize; 2] {
        // Rows of no width are zeros.
        [&self.of.q, &self.of.v].map(|x| x.shape[3].max(1).next_multiple_of(LANES))
    }

    fn room_needed(&self) -> usize {
        let [width, wide] = self.widths();
        let asked = self.of.q.shape[2] / self.of.k.shape[2] * self.limits.len();
        BESIDE * KEYS + (asked + 2 * KEYS) * width + KEYS * wide
    }

    /// Where a key or value is.
    #[inline(always)]
    fn place(&self, of: &View<'_>, key: usize) -> *const T {
        let page = of.shape[1];
        let at = [self.pages[key / page], (key % page) as i64, self.head as i64];
        let at: isize = at.iter().zip(of.strides).map(|(&i, &s)| i as isize * s).sum();
        of.ptr.cast::<T>().wrapping_offset(at)
    }

    /// Asks for a key or value that will be read soon. Those of one head lie too far apart for a
    /// processor to foresee.
    #[inline(always)]
    fn ask(&self, of: &View<'_>, key: usize) {
        if key < self.keys.end && of.strides[3] == 1 {
            prefetch_all(self.place(of, key), of.shape[3]);
        }
    }

    /// Where a key or value lies as it is multiplied with: where it is, or in `room`.
    #[inline(always)]
    fn line<S: Simd>(&self, of: &View<'_>, key: usize, room: &mut [W]) -> *const W {
        let (from, step, n) = (self.place(of, key), of.strides[3], of.shape[3]);
        if T::IS_WIDE && step == 1 && n == room.len() {
            return from.cast();
        }
        self.ask(of, key + AHEAD);
        // SAFETY: elements of a page that was found to be there.
        unsafe {
            match step {
                1 => over::<T, W, S>(n, Widened { from, to: room[..n].as_mut_ptr() }),
                _ => {
                    for (c, x) in room[..n].iter_mut().enumerate() {
                        *x = (*from.wrapping_offset(c as isize * step)).load();
                    }
                }
            }
        }
        room[n..].fill(W::ZERO);
        room.as_ptr()
    }
}

impl<T: Load<W>, W: Real> Levelled for Tile<'_, T, W> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(mut self) {
        let (q, [width, wide]) = (self.of.q, self.widths());
        let many = q.shape[2] / self.of.k.shape[2];
        let room = std::mem::take(&mut self.room);
        let (scores, room) = room.split_at_mut(BESIDE * KEYS);
        let (asked, room) = room.split_at_mut(many * self.limits.len() * width);
        let (turned, room) = room.split_at_mut(KEYS * width);
        let (keys_room, values_room) = room.split_at_mut(KEYS * width);
        let turns = many * self.limits.len() >= TURNED_FROM;
        let part = |r: usize| {
            let head = (self.head * many + r % many) as isize;
            self.parts.at((self.first + r / many) as isize * self.steps[0] + head * self.steps[1])
        };
        for (r, asked) in asked.chunks_exact_mut(width).enumerate() {
            let (row, head) = (self.first + r / many, self.head * many + r % many);
            let at = [row / q.shape[1], row % q.shape[1], head];
            let at: isize = at.iter().zip(q.strides).map(|(&i, &s)| i as isize * s).sum();
            let from = Shared::<W>::new(q.ptr.cast_mut());
            for (c, x) in asked.iter_mut().enumerate() {
                // SAFETY: an element of the query.
                *x = if c < q.shape[3] {
                    unsafe { *from.at(at + c as isize * q.strides[3]) }
                } else {
                    W::ZERO
                };
            }
            // SAFETY: this query's, head's and span's own part, which is zeros.
            unsafe { part(r).write(W::LEAST) };
        }
        let (scale, cap) = (W::of(self.of.scale), self.of.cap.map(W::of));
        let mut start = self.keys.start;
        while start < self.keys.end {
            let count = KEYS.min(self.keys.end - start);
            let (mut keys, mut values) = ([std::ptr::null(); KEYS], [std::ptr::null(); KEYS]);
            for j in 0..count {
                keys[j] =
                    self.line::<S>(&self.of.k, start + j, &mut keys_room[j * width..][..width]);
                values[j] =
                    self.line::<S>(&self.of.v, start + j, &mut values_room[j * wide..][..wide]);
            }
            if turns {
                for (j, &key) in keys[..count].iter().enumerate() {
                    // SAFETY: so many elements of a key.
                    let key = unsafe { std::slice::from_raw_parts(key, width) };
                    for (c, &x) in key.iter().enumerate() {
                        turned[c * KEYS + j] = x;
                    }
                }
            }
            for (g, asked) in asked.chunks(BESIDE * width).enumerate() {
                let rows = asked.len() / width;
                // Of a block, the keys that a query sees.
                let seen = |r: usize| {
                    let limit = self.limits[(g * BESIDE + r) / many];
                    let [from, to] = [self.of.first(limit), limit]
                        .map(|key| key.saturating_sub(start).min(count));
                    from..to
                };
                let at_once = turns && rows == BESIDE;
                if at_once {
                    let most = (0..rows).map(|r| seen(r).end).max().unwrap_or(0);
                    for first in (0..most).step_by(LANES) {
                        // SAFETY: as many queries and columns; the first of a group of keys.
                        unsafe {
                            let keys = turned.as_ptr().wrapping_add(first);
                            dots::<S, W>(asked.as_ptr(), width, keys, &mut scores[first..]);
                        }
                    }
                }
                // Of the queries that find something here, which keys they see.
                let mut found = [const { 0..0 }; BESIDE];
                for (r, asked) in asked.chunks_exact(width).enumerate() {
                    let row = &mut scores[r * KEYS..][seen(r)];
                    if !at_once {
                        for (x, &key) in row.iter_mut().zip(&keys[seen(r)]) {
                            // SAFETY: as above.
                            *x = dot::<S, W>(asked, unsafe {
                                std::slice::from_raw_parts(key, width)
                            });
                        }
                    }
                    row.iter_mut().for_each(|x| *x = x.mul(scale));
                    if let Some(cap) = cap {
                        row.iter_mut().for_each(|x| *x = x.div(cap).tanh::<S>().mul(cap));
                    }
                    // SAFETY: as above; nobody else refers to it.
                    let part =
                        unsafe { std::slice::from_raw_parts_mut(part(g * BESIDE + r), 2 + wide) };
                    let (known, sum) = part.split_at_mut(2);
                    let [most, total] = known else { unreachable!("two were split off") };
                    let before = *most;
                    let largest = fold_block::<Max<W, W, W>>(row).larger(before);
                    if row.is_empty() || largest == W::LEAST {
                        continue;
                    }
                    found[r] = seen(r);
                    for x in &mut *row {
                        *x = x.sub(largest).exp_of_difference::<S>();
                    }
                    if before != largest {
                        let by = before.sub(largest).exp_of_difference::<S>();
                        *total = total.mul(by);
                        sum.iter_mut().for_each(|x| *x = x.mul(by));
                        *most = largest;
                    }
                    *total = total.add(fold_block::<Sum<W, W, W>>(row));
                }
                // What all of them see, which may be nothing.
                let common = found.iter().fold(0..count, |common, found| {
                    common.start.max(found.start)..common.end.min(found.end)
                });
                let (found, common) = (&found, &if common.is_empty() { 0..0 } else { common });
                let sums: [*mut W; BESIDE] =
                    std::array::from_fn(|r| part(g * BESIDE + r.min(rows - 1)).wrapping_add(2));
                let mut at = 0;
                while at < wide {
                    // SAFETY: the values and sums are `wide` long, and the sums those of queries of
                    // this tile alone; where not all rows are there, `common` is 0.
                    at += unsafe {
                        match wide - at {
                            64.. => {
                                add_values::<S, W, 64>(scores, found, common, &values, at, sums)
                            }
                            32.. => {
                                add_values::<S, W, 32>(scores, found, common, &values, at, sums)
                            }
                            _ => {
                                add_values::<S, W, LANES>(scores, found, common, &values, at, sums)
                            }
                        }
                    };
                }
            }
            start += count;
        }
    }
}

/// The product of two rows whose length is a multiple of [`LANES`].
#[inline(always)]
fn dot<S: Simd, W: Real>(a: &[W], b: &[W]) -> W {
    let mut sums = [W::ZERO; LANES];
    for (a, b) in a.as_chunks::<LANES>().0.iter().zip(b.as_chunks::<LANES>().0) {
        for l in 0..LANES {
            sums[l] = a[l].fma::<S>(b[l], sums[l]);
        }
    }
    let mut n = LANES;
    while n > 1 {
        n /= 2;
        for l in 0..n {
            sums[l] = sums[l].add(sums[l + n]);
        }
    }
    sums[0]
}

/// [`dot`] of [`BESIDE`] queries with [`LANES`] keys, whose columns lie [`KEYS`] apart: the same
/// sums in the same order, a lane a key.
///
/// # Safety
/// The queries are `width` long, a multiple of [`LANES`], and there are so many columns of keys.
#[inline(always)]
unsafe fn dots<S: Simd, W: Real>(asked: *const W, width: usize, keys: *const W, scores: &mut [W]) {
    // What waits for the sum that it is added to, as in a binary counter.
    let mut waiting = [[[W::ZERO; LANES]; BESIDE]; 5];
    for turn in 0..LANES {
        let class = turn.reverse_bits() >> (usize::BITS - LANES.ilog2());
        let (mut at, mut line) = (asked.wrapping_add(class), keys.wrapping_add(class * KEYS));
        let mut sums = [[W::ZERO; LANES]; BESIDE];
        for _ in 0..width / LANES {
            // SAFETY: by the caller's promise.
            let keys = unsafe { *line.cast::<[W; LANES]>() };
            for r in 0..BESIDE {
                // SAFETY: as above.
                let a = unsafe { *at.wrapping_add(r * width) };
                for l in 0..LANES {
                    sums[r][l] = a.fma::<S>(keys[l], sums[r][l]);
                }
            }
            (at, line) = (at.wrapping_add(LANES), line.wrapping_add(LANES * KEYS));
        }
        let full = turn.trailing_ones() as usize;
        let depth = turn.count_ones() as usize;
        for before in waiting[depth - full..depth].iter().rev() {
            for r in 0..BESIDE {
                for l in 0..LANES {
                    sums[r][l] = before[r][l].add(sums[r][l]);
                }
            }
        }
        waiting[depth - full] = sums;
    }
    for r in 0..BESIDE {
        scores[r * KEYS..][..LANES].copy_from_slice(&waiting[0][r]);
    }
}

/// Adds `N` columns of the values, each times its weight, to the sums of [`BESIDE`] queries, and
/// says how many columns that is. Row `r` of the weights has those of `found[r]`, and all have
/// those that are `common`. Each query's are added in the order of their keys.
///
/// # Safety
/// There is a value for each weight, with so many columns from `at` on; so have the sums, which
/// are different ones where something was found.
#[inline(always)]
unsafe fn add_values<S: Simd, W: Real, const N: usize>(
    weights: &[W],
    found: &[Range<usize>; BESIDE],
    common: &Range<usize>,
    values: &[*const W; KEYS],
    at: usize,
    sums: [*mut W; BESIDE],
) -> usize {
    let to = sums.map(|sum| sum.wrapping_add(at).cast::<[W; N]>());
    if !common.is_empty() {
        for r in 0..BESIDE {
            let keys = found[r].start..common.start;
            // SAFETY: by the caller's promise.
            unsafe { add_of_one::<S, W, N>(&weights[r * KEYS..], keys, values, at, to[r]) };
        }
        // SAFETY: as above.
        let mut own = to.map(|to| unsafe { *to });
        for key in common.clone() {
            // SAFETY: as above.
            let value = unsafe { &*values[key].wrapping_add(at).cast::<[W; N]>() };
            for r in 0..BESIDE {
                let weight = weights[r * KEYS + key];
                for c in 0..N {
                    own[r][c] = weight.fma::<S>(value[c], own[r][c]);
                }
            }
        }
        for r in 0..BESIDE {
            // SAFETY: as above.
            unsafe { *to[r] = own[r] };
        }
    }
    for r in 0..BESIDE {
        let keys = found[r].start.max(common.end)..found[r].end;
        // SAFETY: as above.
        unsafe { add_of_one::<S, W, N>(&weights[r * KEYS..], keys, values, at, to[r]) };
    }
    N
}

/// [`add_values`] of some keys for one query.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn add_of_one<S: Simd, W: Real, const N: usize>(
    weights: &[W],
    keys: Range<usize>,
    values: &[*const W; KEYS],
    at: usize,
    to: *mut [W; N],
) {
    if keys.is_empty() {
        return;
    }
    // SAFETY: by the caller's promise.
    let mut own = unsafe { *to };
    for key in keys {
        // SAFETY: as above.
        let (weight, value) =
            (weights[key], unsafe { &*values[key].wrapping_add(at).cast::<[W; N]>() });
        for c in 0..N {
            own[c] = weight.fma::<S>(value[c], own[c]);
        }
    }
    // SAFETY: as above.
    unsafe { *to = own };
}

/// The spans of one query and head, in their order.
struct Meet<'a, W> {
    parts: &'a [W],
    step: usize,
    out: &'a mut [W],
}

impl<W: Real> Levelled for Meet<'_, W> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let parts = || self.parts.chunks_exact(self.step);
        let most = parts().fold(W::LEAST, |most, part| part[0].larger(most));
        let mut total = W::ZERO;
        self.out.fill(W::ZERO);
        for part in parts().filter(|part| part[0] != W::LEAST) {
            let by =
                if part[0] == most { W::ONE } else { part[0].sub(most).exp_of_difference::<S>() };
            total = part[1].fma::<S>(by, total);
            for (x, &part) in self.out.iter_mut().zip(&part[2..]) {
                *x = part.fma::<S>(by, *x);
            }
        }
        if total != W::ZERO {
            self.out.iter_mut().for_each(|x| *x = x.div(total));
        }
    }
}

#[cfg(test)]
mod tests;
