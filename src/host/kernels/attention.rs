//! Attention without the matrix of scores: blocks of queries meet blocks of keys, and a softmax
//! that is corrected as larger scores come along (Milakov and Gimelshein 2018, arXiv:1805.02867;
//! Dao et al. 2022, arXiv:2205.14135).
//!
//! Called by the op's CPU kernel, which has checked shapes and types and broadcast the batches.
//! Blocks depend on sizes alone, so the result does not depend on the number of threads.

use super::isa::{Levelled, at_level};
use super::matmul::{self, Matrix, gemm_piece};
use super::nest::{Nest, Shared, in_parts};
use super::reduce::fold::{BLOCK, Max, Sum, fold_block};
use super::simd::Simd;
use super::softmax;
use crate::dtype::DType;
use crate::view::{Parallel, View, ViewMut};

/// Queries and keys of a block: scores of 64 KiB in float32.
const ROWS: usize = 64;
const KEYS: usize = 256;
const _: () = assert!(KEYS <= BLOCK, "a row of scores is folded as one block");

/// A type that attention is computed in.
trait Real: softmax::Float + matmul::Float {}
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
/// type (added), all of the same batch. A query that sees nothing finds zeros. Of `[batch..]` lengths,
/// int64, each says how many keys there are; what lies beyond is not read.
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
        other => unreachable!("attention of {other}"),
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
    let batch = [&q.strides[..lead], &k.strides[..lead], &v.strides[..lead], mask_lead, lengths_lead];
    let batch = Nest::new(&q.shape[..lead], batch).merged();
    let blocks = rows.div_ceil(ROWS);
    let to = Shared::<W>::new(out.ptr);
    // A part is worth a thread from about a million multiply-adds on.
    let least = ((1 << 20) / (ROWS * keys * (width + wide)).max(1)).max(1);
    in_parts(batch.numel() * blocks, least, par, &|parts| {
        for part in parts {
            let [at_q, at_k, at_v, at_mask, at_length] = batch.at(part / blocks);
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
                mask: mask.map(|m| Mask {
                    ptr: Shared::<u8>::new(m.ptr.cast_mut()),
                    bool: m.dtype == DType::Bool,
                    at: at_mask,
                    rows: m.strides[lead],
                    cols: m.strides[lead + 1],
                }),
                sizes: [width, keys, wide],
                first,
                count: ROWS.min(rows - first),
                sight,
                to: Shared::new(to.at(((part / blocks * rows + first) * wide) as isize)),
            };
            block.run();
        }
    });
}

struct Mask {
    ptr: Shared<u8>,
    bool: bool,
    /// In elements.
    at: isize,
    rows: isize,
    cols: isize,
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

impl<W: Real> Block<W> {
    fn run(&self) {
        let [width, keys, wide] = self.sizes;
        let room = ROWS * KEYS + 2 * ROWS;
        W::with_scratch(room, |scratch| {
            let (scores, rest) = scratch.split_at_mut(ROWS * KEYS);
            let (largest, sums) = rest.split_at_mut(ROWS);
            largest.fill(W::LEAST);
            sums.fill(W::ZERO);
            let out = Matrix { at: self.to, rows: wide as isize, cols: 1 };
            // SAFETY: these rows of the output are this part's own.
            let sum = unsafe {
                self.to.at(0).write_bytes(0, self.count * wide);
                std::slice::from_raw_parts_mut(self.to.at(0), self.count * wide)
            };
            // Beyond its last query a causal block sees nothing.
            let end = if self.sight.causal { keys.min(self.first + self.count) } else { keys };
            let mut start = 0;
            while start < end {
                let len = KEYS.min(end - start);
                let tile = Matrix { at: Shared::new(scores.as_mut_ptr()), rows: len as isize, cols: 1 };
                let q = Matrix { at: Shared::new(self.q.from(self.first, 0)), ..self.q };
                let k = Matrix { at: Shared::new(self.k.from(start, 0)), rows: self.k.cols, cols: self.k.rows };
                // SAFETY: the block's queries and keys are there, and the tile has room for their
                // scores.
                unsafe { gemm_piece(tile, q, k, [self.count, len, width], false) };
                let scores = &mut scores[..self.count * len];
                at_level(Rescale { block: self, scores, start, len, largest, sums, out: &mut *sum });
                let v = Matrix { at: Shared::new(self.v.from(start, 0)), ..self.v };
                // SAFETY: as above; nothing else refers to the output's rows now.
                unsafe { gemm_piece(out, tile, v, [self.count, wide, len], true) };
                start += len;
            }
            for (row, total) in sum.chunks_mut(wide.max(1)).zip(&*sums) {
                if *total != W::ZERO {
                    row.iter_mut().for_each(|x| *x = x.div(*total));
                }
            }
        });
    }
}

/// Makes a tile of scores into powers, and brings the sums so far to the same largest score.
struct Rescale<'a, W> {
    block: &'a Block<W>,
    scores: &'a mut [W],
    start: usize,
    len: usize,
    largest: &'a mut [W],
    sums: &'a mut [W],
    out: &'a mut [W],
}

impl<W: Real> Levelled for Rescale<'_, W> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let (block, wide) = (self.block, self.block.sizes[2]);
        let scale = W::of(block.sight.scale);
        for (r, row) in self.scores.chunks_mut(self.len).enumerate() {
            for x in &mut *row {
                *x = x.mul(scale);
            }
            let query = block.first + r;
            if let Some(mask) = &block.mask {
                let line = mask.at + query as isize * mask.rows + self.start as isize * mask.cols;
                for (c, x) in row.iter_mut().enumerate() {
                    let at = line + c as isize * mask.cols;
                    // SAFETY: an element of the mask, of its type.
                    *x = unsafe {
                        match mask.bool {
                            true if *mask.ptr.at(at) != 0 => *x,
                            true => W::LEAST,
                            false => x.add(*mask.ptr.at(0).cast::<W>().wrapping_offset(at)),
                        }
                    };
                }
            }
            if block.sight.causal {
                let seen = (query + 1).saturating_sub(self.start).min(self.len);
                row[seen..].fill(W::LEAST);
            }
            let before = self.largest[r];
            let largest = fold_block::<Max<W, W, W>>(row).larger(before);
            if largest == W::LEAST {
                row.fill(W::ZERO);
                continue;
            }
            for x in &mut *row {
                *x = x.sub(largest).exp_of_difference::<S>();
            }
            let sum = fold_block::<Sum<W, W, W>>(row);
            if before != largest {
                // From the old largest score to the new one; of nothing so far, 0.
                let by = before.sub(largest).exp_of_difference::<S>();
                self.sums[r] = self.sums[r].mul(by);
                for x in &mut self.out[r * wide..(r + 1) * wide] {
                    *x = x.mul(by);
                }
                self.largest[r] = largest;
            }
            self.sums[r] = self.sums[r].add(sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;
    use crate::view::Serial;

    /// Softmax of all scores at once, in plain loops.
    fn reference(
        [q, k, v]: [&Value<f32>; 3],
        seen: &dyn Fn(&[usize], usize, usize) -> f64,
        sight: Sight,
    ) -> Vec<f64> {
        let (lead, mut out) = (q.shape.len() - 2, Vec::new());
        for i in indices(&q.shape[..lead + 1]) {
            let (b, row) = (&i[..lead], i[lead]);
            let at = |x: &Value<f32>, r: usize, c: usize| x.get(&[b, &[r, c]].concat()) as f64;
            let scores: Vec<f64> = (0..k.shape[lead])
                .map(|key| {
                    let dot: f64 = (0..q.shape[lead + 1]).map(|c| at(q, row, c) * at(k, key, c)).sum();
                    let hidden = sight.causal && key > row;
                    if hidden { f64::NEG_INFINITY } else { dot * sight.scale + seen(b, row, key) }
                })
                .collect();
            let most = scores.iter().fold(f64::NEG_INFINITY, |a, &b| a.max(b));
            let powers: Vec<f64> =
                scores.iter().map(|s| if most.is_finite() { (s - most).exp() } else { 0.0 }).collect();
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
            let (rows, keys) = (1 + rng.below(150), 1 + rng.below(600));
            let (width, wide) = (1 + rng.below(20), 1 + rng.below(20));
            let batch = [1 + rng.below(2), 1 + rng.below(2)];
            let of = |rng: &mut Rng, tail: [usize; 2], by: f64| {
                Value::<f32>::random(rng, &[&batch[..], &tail].concat(), |r| (r.unit() * by) as f32)
            };
            let (q, k) = (of(&mut rng, [rows, width], 3.0), of(&mut rng, [keys, width], 3.0));
            let v = of(&mut rng, [keys, wide], 1.0);
            let sight = Sight { scale: 0.4, causal: turn % 3 == 1 };
            let added = of(&mut rng, [rows, keys], 4.0);
            let shown =
                Value::<bool>::random(&mut rng, &[&batch[..], &[rows, keys]].concat(), |r| r.below(5) == 0);
            let index = |b: &[usize], r: usize, c: usize| [b, &[r, c]].concat();
            let long = Value::<i64>::random(&mut rng, &batch, |r| r.below(keys + 20) as i64 - 10);
            let lengths = (turn % 5 > 2).then_some(&long);
            let sees = |b: &[usize], r: usize, c: usize| match turn % 4 {
                _ if lengths.is_some_and(|lengths| c as i64 >= lengths.get(b)) => f64::NEG_INFINITY,
                0 => added.get(&index(b, r, c)) as f64,
                1 if shown.get(&index(b, r, c)) => 0.0,
                1 => f64::NEG_INFINITY,
                _ => 0.0,
            };
            let mask = [Some(added.view()), Some(shown.view()), None, None][turn % 4];
            let want = reference([&q, &k, &v], &sees, sight);
            let shape = [&batch[..], &[rows, wide]].concat();
            let run = |par: &dyn Parallel| {
                let also = [mask, lengths.map(|lengths| lengths.view())];
                filled::<f32>(&shape, |out| attention([q.view(), k.view(), v.view()], also, sight, out, par))
            };
            let got = run(&Threads { threads: 3, seed: rng.word() });
            for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                assert!((*got as f64 - want).abs() < 3e-5, "{turn} {i}: {got} {want} {rows} x {keys}");
            }
            assert_eq!(got, run(&Serial), "threads show in the result");
        }
    }

    at_every_level! {
        blocks_of_queries_and_keys_agree_with_one_softmax_over_all
    }
}
