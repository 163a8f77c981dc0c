//! Attention without the matrix of scores: blocks of queries meet blocks of keys, and a softmax
//! that is corrected as larger scores come along (Milakov and Gimelshein 2018, arXiv:1805.02867;
//! Dao et al. 2022, arXiv:2205.14135).
//!
//! Called by the op's CPU kernel, which has checked shapes and types and broadcast the batches.
//! Blocks depend on sizes alone, so the result does not depend on the number of threads.

use crate::dtype::{DType, Element};
use crate::host::kernels::isa::{Levelled, at_level, vectorize};
use crate::host::kernels::matmul::{self, Matrix, Tile};
use crate::host::kernels::nest::{Nest, Shared, in_parts};
use crate::host::kernels::rows;
use crate::host::kernels::simd::Simd;
use crate::shape::contiguous_strides;
use crate::view::{Parallel, View, ViewMut};
use std::cmp::Reverse;

/// Queries and keys of a block: scores of 128 KiB in float32.
const ROWS: usize = 128;
const KEYS: usize = 256;
/// Elements of a row that are joined side by side: a 512-bit register of f32.
pub(super) const LANES: usize = 16;

/// A type that attention is computed in.
pub(super) trait Real: rows::Float + matmul::Float + Element {}
impl Real for f32 {}
impl Real for f64 {}

/// What scores are multiplied by, and which keys a query sees.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Sight {
    pub scale: f64,
    /// Query `i` sees keys `0..=i` alone.
    pub causal: bool,
}

/// `softmax(q k^T scale + mask) v` of `[batch.., rows, width]`, `[batch.., keys, width]`,
/// `[batch.., keys, out]` and a mask `[batch.., rows, keys]` of bool (true is seen) or of the same
/// type (added), all of the same batch. A query that sees nothing finds zeros. Of `[batch..]`
/// lengths, int64, each says how many keys there are; what lies beyond is not read.
pub(crate) fn attention(
    [q, k, v]: [View<'_>; 3],
    [mask, lengths]: [Option<View<'_>>; 2],
    sight: Sight,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    if out.numel() == 0 {
        return;
    }
    match q.dtype {
        DType::F32 => of::<f32>([q, k, v], [mask, lengths], sight, out, par),
        DType::F64 => of::<f64>([q, k, v], [mask, lengths], sight, out, par),
        other => unreachable!("attention of {other}, which the method widens first"),
    }
}

fn of<W: Real>(
    [q, k, v]: [View<'_>; 3],
    [mask, lengths]: [Option<View<'_>>; 2],
    sight: Sight,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    let lead = q.shape.len() - 2;
    let (rows, width) = (q.shape[lead], q.shape[lead + 1]);
    let (keys, wide) = (v.shape[lead], v.shape[lead + 1]);
    let nothing = [0isize; 16];
    let [mask_lead, lengths_lead] =
        [mask, lengths].map(|view| view.map_or(&nothing[..lead], |view| &view.strides[..lead]));
    let out_strides = contiguous_strides(out.shape);
    let batch = [
        &q.strides[..lead],
        &k.strides[..lead],
        &v.strides[..lead],
        mask_lead,
        lengths_lead,
        &out_strides[..lead],
    ];
    let mut batch = Nest::new(&q.shape[..lead], batch);
    // Heads lie side by side as a rule: what one has read of a line of the cache is the next one's.
    batch.dims.sort_by_key(|dim| Reverse(dim.step[1].unsigned_abs()));
    let batch = batch.merged();
    let blocks = rows.div_ceil(ROWS);
    let to = Shared::<W>::new(out.ptr);
    // A part is worth a thread from about a million multiply-adds on.
    let least = ((1 << 20) / (ROWS * keys * (width + wide)).max(1)).max(1);
    in_parts(batch.numel() * blocks, least, par, &|parts| {
        Room::with([rows, keys, width, wide], |room| {
            for part in parts {
                let [at_q, at_k, at_v, at_mask, at_length, at_out] = batch.at(part / blocks);
                let keys = lengths.map_or(keys, |lengths| {
                    // SAFETY: an element of the lengths.
                    let length = unsafe { *lengths.ptr.cast::<i64>().offset(at_length) };
                    usize::try_from(length).unwrap_or(0).min(keys)
                });
                let first = part % blocks * ROWS;
                let matrix = |view: &View<'_>, at: isize| Matrix {
                    at: Shared::<W>::new(Shared::<W>::new(view.ptr.cast_mut()).at(at)),
                    rows: view.strides[lead],
                    cols: view.strides[lead + 1],
                };
                let block = Block {
                    q: matrix(&q, at_q),
                    k: matrix(&k, at_k),
                    v: matrix(&v, at_v),
                    mask: mask.map(|mask| Mask::of(&mask, at_mask)),
                    sizes: [width, keys, wide],
                    first,
                    count: ROWS.min(rows - first),
                    sight,
                    to: Shared::new(to.at(at_out + (first * wide) as isize)),
                };
                block.run(room);
            }
        });
    });
}

/// The mask of one batch: truth values, or numbers of the type of the scores.
pub(super) struct Mask {
    ptr: Shared<u8>,
    bool: bool,
    /// In elements.
    at: isize,
    rows: isize,
    cols: isize,
}

impl Mask {
    pub(super) fn of(mask: &View<'_>, at: isize) -> Mask {
        let lead = mask.shape.len() - 2;
        Mask {
            ptr: Shared::<u8>::new(mask.ptr.cast_mut()),
            bool: mask.dtype == DType::Bool,
            at,
            rows: mask.strides[lead],
            cols: mask.strides[lead + 1],
        }
    }

    /// Hides, or adds to, the scores of a query with the keys from `key` on.
    #[inline(always)]
    fn row<W: Real>(&self, scores: &mut [W], query: usize, key: usize) {
        self.put(scores, [query, key], self.cols);
    }

    /// The same for the scores of the queries from `query` on with a key.
    #[inline(always)]
    pub(super) fn column<W: Real>(&self, scores: &mut [W], query: usize, key: usize) {
        self.put(scores, [query, key], self.rows);
    }

    #[inline(always)]
    fn put<W: Real>(&self, scores: &mut [W], [query, key]: [usize; 2], step: isize) {
        let line = self.at + query as isize * self.rows + key as isize * self.cols;
        // SAFETY: elements of the mask, of its type.
        unsafe {
            if self.bool {
                let of = self.ptr.at(line).cast_const();
                beside(scores, of, step, |x, is_seen| {
                    *x = if is_seen != 0 { *x } else { W::LEAST }
                });
            } else {
                let of = self.ptr.at(0).cast::<W>().cast_const().wrapping_offset(line);
                beside(scores, of, step, |x, more| *x = x.add(more));
            }
        }
    }
}

/// Some queries of one batch.
struct Block<W> {
    q: Matrix<W>,
    k: Matrix<W>,
    v: Matrix<W>,
    mask: Option<Mask>,
    sizes: [usize; 3],
    first: usize,
    count: usize,
    sight: Sight,
    to: Shared<W>,
}

/// Pieces of some memory, which is as long as all of them and [`LANES`] more. The first begins with
/// a cache line.
pub(super) fn split<W, const N: usize>(scratch: &mut [W], sizes: [usize; N]) -> [&mut [W]; N] {
    let aligned = scratch.as_ptr().align_offset(64).min(LANES);
    let mut rest = &mut scratch[aligned..];
    sizes.map(|n| rest.split_off_mut(..n).unwrap_or_default())
}

/// Where a thread computes its blocks.
struct Room<'a, W> {
    /// Keys and values: blocks of one batch as a rule meet the same.
    k: Tile<'a, W>,
    v: Tile<'a, W>,
    /// Queries, scaled.
    q: &'a mut [W],
    scores: &'a mut [W],
    /// What some of the keys have added.
    part: &'a mut [W],
    /// Of each query, its largest score and the sum of its powers so far.
    largest: &'a mut [W],
    sums: &'a mut [W],
}

impl<W: Real> Room<'_, W> {
    /// Lends a thread's, for so many queries and keys, of so many columns, and values of so many.
    fn with([rows, keys, width, wide]: [usize; 4], f: impl FnOnce(&mut Room<'_, W>)) {
        let (rows, keys) = (rows.min(ROWS), keys.min(KEYS));
        let tiles = [Tile::<W>::room(width, keys), Tile::<W>::room(keys, wide)];
        let parts = [tiles[0], tiles[1], rows * width, rows * keys, rows * wide, ROWS, ROWS];
        W::with_scratch(parts.iter().sum::<usize>() + LANES, |scratch| {
            let [k, v, q, scores, part, largest, sums] = split(scratch, parts);
            f(&mut Room { k: Tile::new(k), v: Tile::new(v), q, scores, part, largest, sums });
        });
    }
}

impl<W: Real> Block<W> {
    fn run(&self, room: &mut Room<'_, W>) {
        let ([width, keys, wide], count) = (self.sizes, self.count);
        // SAFETY: these rows of the output are this part's own.
        let out = unsafe {
            self.to.at(0).write_bytes(0, count * wide);
            std::slice::from_raw_parts_mut(self.to.at(0), count * wide)
        };
        room.largest.fill(W::LEAST);
        room.sums.fill(W::ZERO);
        let scale = W::of(self.sight.scale);
        vectorize!(|| for (r, row) in room.q.chunks_mut(width.max(1)).take(count).enumerate() {
            let from = self.q.from(self.first + r, 0);
            // SAFETY: elements of the queries; where they lie side by side, as a slice.
            unsafe {
                match self.q.cols {
                    1 => {
                        let from = std::slice::from_raw_parts(from, width);
                        row.iter_mut().zip(from).for_each(|(x, q)| *x = q.mul(scale));
                    }
                    step => {
                        let each = row.iter_mut().zip(0..);
                        each.for_each(|(x, c)| *x = (*from.wrapping_offset(c * step)).mul(scale));
                    }
                }
            }
        });
        // Beyond its last query a causal block sees nothing.
        let end = if self.sight.causal { keys.min(self.first + count) } else { keys };
        for start in (0..end).step_by(KEYS) {
            let len = KEYS.min(end - start);
            let k = Matrix {
                at: Shared::new(self.k.from(start, 0)),
                rows: self.k.cols,
                cols: self.k.rows,
            };
            let v = Matrix { at: Shared::new(self.v.from(start, 0)), ..self.v };
            // SAFETY: keys and values are there and nobody writes them meanwhile; there is room for
            // the scores and for a part of the output.
            unsafe {
                room.k.take(k, [width, len]);
                room.v.take(v, [len, wide]);
                room.k.product(room.q.as_mut_ptr(), count, room.scores.as_mut_ptr());
            }
            at_level(Powers { block: self, room: &mut *room, start, len, out: &mut *out });
            // SAFETY: as above; the output's own rows are referred to by nothing else meanwhile.
            unsafe {
                let to = if start == 0 { out.as_mut_ptr() } else { room.part.as_mut_ptr() };
                room.v.product(room.scores.as_mut_ptr(), count, to);
            }
            if start > 0 {
                vectorize!(|| out.iter_mut().zip(&*room.part).for_each(|(x, y)| *x = x.add(*y)));
            }
        }
        vectorize!(|| for (row, total) in out.chunks_mut(wide.max(1)).zip(&*room.sums) {
            if *total != W::ZERO {
                row.iter_mut().for_each(|x| *x = x.div(*total));
            }
        });
    }
}

/// Makes scores into powers, and brings the sums so far to the same largest score.
struct Powers<'a, 'r, W> {
    block: &'a Block<W>,
    room: &'a mut Room<'r, W>,
    start: usize,
    len: usize,
    out: &'a mut [W],
}

impl<W: Real> Levelled for Powers<'_, '_, W> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let Powers { block, room, start, len, out } = self;
        let wide = block.sizes[2];
        for (r, row) in room.scores.chunks_mut(len).take(block.count).enumerate() {
            let query = block.first + r;
            // Beyond its own key a causal query sees nothing: what is hidden adds nothing.
            let seen =
                if block.sight.causal { (query + 1).saturating_sub(start).min(len) } else { len };
            let (row, hidden) = row.split_at_mut(seen);
            hidden.fill(W::ZERO);
            if let Some(mask) = &block.mask {
                mask.row(row, query, start);
            }
            let before = room.largest[r];
            let largest = by_lanes(row, W::LEAST, |x| *x, |a, b| if b > a { b } else { a });
            let largest = if before > largest { before } else { largest };
            // Of a query that sees nothing the powers are zeros, and NaN stays NaN.
            let base = if largest == W::LEAST { W::ZERO } else { largest };
            let powers = |x: &mut W| {
                *x = x.sub(base).exp_of_difference::<S>();
                *x
            };
            let sum = by_lanes(row, W::ZERO, powers, W::add);
            if before != largest && start > 0 {
                // From the old largest score to the new one; of nothing so far, 0.
                let by = before.sub(base).exp_of_difference::<S>();
                room.sums[r] = room.sums[r].mul(by);
                for x in &mut out[r * wide..(r + 1) * wide] {
                    *x = x.mul(by);
                }
            }
            room.largest[r] = largest;
            room.sums[r] = room.sums[r].add(sum);
        }
    }
}

/// Each element of a row with what lies at so many steps from an address.
///
/// # Safety
/// There are as many elements.
#[inline(always)]
unsafe fn beside<W, M: Copy>(row: &mut [W], from: *const M, step: isize, f: impl Fn(&mut W, M)) {
    // SAFETY: by the caller's promise.
    unsafe {
        if step == 1 {
            let of = std::slice::from_raw_parts(from, row.len());
            row.iter_mut().zip(of).for_each(|(x, m)| f(x, *m));
        } else {
            (0..).zip(row).for_each(|(i, x)| f(x, *from.wrapping_offset(i * step)));
        }
    }
}

/// What becomes of the elements of a row, joined: lane by lane, and then the lanes.
#[inline(always)]
fn by_lanes<W: Real>(
    row: &mut [W],
    start: W,
    mut of: impl FnMut(&mut W) -> W,
    join: impl Fn(W, W) -> W,
) -> W {
    let mut lanes = [start; LANES];
    let (turns, rest) = row.as_chunks_mut::<LANES>();
    for turn in turns {
        for l in 0..LANES {
            lanes[l] = join(lanes[l], of(&mut turn[l]));
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane = join(*lane, of(x));
    }
    let mut half = LANES / 2;
    while half > 0 {
        for l in 0..half {
            lanes[l] = join(lanes[l], lanes[l + half]);
        }
        half /= 2;
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::kernels::testing::*;
    use crate::view::Serial;

    /// Softmax of all scores at once, in plain loops.
    fn reference<T: Element>(
        [q, k, v]: [&Value<T>; 3],
        seen: &dyn Fn(&[usize], usize, usize) -> f64,
        sight: Sight,
    ) -> Vec<f64> {
        let (lead, mut out) = (q.shape.len() - 2, Vec::new());
        for i in indices(&q.shape[..lead + 1]) {
            let (b, row) = (&i[..lead], i[lead]);
            let at = |x: &Value<T>, r: usize, c: usize| x.get(&[b, &[r, c]].concat()).to_f64();
            let scores: Vec<f64> = (0..k.shape[lead])
                .map(|key| {
                    let dot: f64 =
                        (0..q.shape[lead + 1]).map(|c| at(q, row, c) * at(k, key, c)).sum();
                    let hidden = sight.causal && key > row;
                    if hidden { f64::NEG_INFINITY } else { dot * sight.scale + seen(b, row, key) }
                })
                .collect();
            let most = scores.iter().fold(f64::NEG_INFINITY, |a, &b| a.max(b));
            let powers: Vec<f64> = scores
                .iter()
                .map(|s| if most.is_finite() { (s - most).exp() } else { 0.0 })
                .collect();
            let sum: f64 = powers.iter().sum();
            for c in 0..v.shape[lead + 1] {
                let all: f64 = powers.iter().enumerate().map(|(key, p)| p * at(v, key, c)).sum();
                out.push(if sum > 0.0 { all / sum } else { 0.0 });
            }
        }
        out
    }

    #[test]
    fn blocks_of_queries_and_keys_agree_with_one_softmax_over_all() {
        let mut rng = Rng::new(51);
        for turn in turns(24) {
            agrees::<f32>(&mut rng, turn, 3e-5);
            agrees::<f64>(&mut rng, turn, 1e-12);
        }
    }

    fn agrees<T: Element>(rng: &mut Rng, turn: usize, bound: f64) {
        let (rows, keys) = (1 + rng.below(150), 1 + rng.below(600));
        let (width, wide) = (1 + rng.below(20), 1 + rng.below(20));
        let batch = [1 + rng.below(2), 1 + rng.below(2)];
        let of = |rng: &mut Rng, tail: [usize; 2], by: f64| {
            Value::<T>::random(rng, &[&batch[..], &tail].concat(), |r| T::from_f64(r.unit() * by))
        };
        let (q, k) = (of(rng, [rows, width], 3.0), of(rng, [keys, width], 3.0));
        let v = of(rng, [keys, wide], 1.0);
        let sight = Sight { scale: 0.4, causal: turn % 3 == 1 };
        let added = of(rng, [rows, keys], 4.0);
        let shown =
            Value::<bool>::random(rng, &[&batch[..], &[rows, keys]].concat(), |r| r.below(5) == 0);
        let index = |b: &[usize], r: usize, c: usize| [b, &[r, c]].concat();
        let long = Value::<i64>::random(rng, &batch, |r| r.below(keys + 20) as i64 - 10);
        let lengths = (turn % 5 > 2).then_some(&long);
        let sees = |b: &[usize], r: usize, c: usize| match turn % 4 {
            _ if lengths.is_some_and(|lengths| c as i64 >= lengths.get(b)) => f64::NEG_INFINITY,
            0 => added.get(&index(b, r, c)).to_f64(),
            1 if shown.get(&index(b, r, c)) => 0.0,
            1 => f64::NEG_INFINITY,
            _ => 0.0,
        };
        let mask = [Some(added.view()), Some(shown.view()), None, None][turn % 4];
        let want = reference([&q, &k, &v], &sees, sight);
        let shape = [&batch[..], &[rows, wide]].concat();
        let run = |par: &dyn Parallel| {
            let also = [mask, lengths.map(|lengths| lengths.view())];
            filled::<T>(&shape, |out| {
                attention([q.view(), k.view(), v.view()], also, sight, out, par)
            })
        };
        let got = run(&Threads { threads: 3, seed: rng.word() });
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            assert!(
                (got.to_f64() - want).abs() < bound,
                "{turn} {i}: {got:?} {want} {rows} x {keys}"
            );
        }
        assert_eq!(got, run(&Serial), "threads show in the result");
    }

    /// More keys than a block: NaN in the first, in the second, and in both.
    #[test]
    fn a_key_that_is_no_number_makes_all_queries_none() {
        let n = KEYS + 10;
        for bad in [&[3][..], &[KEYS + 3], &[3, KEYS + 3], &(0..n).collect::<Vec<_>>()] {
            let mut k = vec![0.5f32; n];
            bad.iter().for_each(|&at| k[at] = f32::NAN);
            let of = |data: Vec<f32>| Value::<f32>::new(&[data.len(), 1], data);
            let (q, k, v) = (of(vec![1.0, 2.0]), of(k), of(vec![1.0; n]));
            let sight = Sight { scale: 1.0, causal: false };
            let views = [q.view(), k.view(), v.view()];
            let got =
                filled::<f32>(&[2, 1], |out| attention(views, [None, None], sight, out, &Serial));
            assert!(got.iter().all(|x| x.is_nan()), "{got:?} of {} such keys", bad.len());
        }
    }

    at_every_level! {
        a_key_that_is_no_number_makes_all_queries_none
        blocks_of_queries_and_keys_agree_with_one_softmax_over_all
    }
}
