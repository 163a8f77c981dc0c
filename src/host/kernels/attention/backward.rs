//! What flows back through attention, without the matrix of scores: for a block of queries the
//! scores of all keys are made once more, and all gradients at once.
//!
//! With `p = softmax(s)` and the upstream gradient `g`: `dv = p^T g`, `ds = p (g v^T - d)` where
//! `d` is the sum of `p g v^T` over the keys, `dq = ds k` and `dk = ds^T q` (Dao et al. 2022,
//! arXiv:2205.14135, appendix B). A column of the scores here is a query, and a row a key: so what
//! is summed over the keys is summed row by row, and keys and values are multiplied as they lie.
//!
//! Called by the op's CPU kernel. Blocks and groups depend on sizes alone, so the result does not
//! depend on the number of threads.

use super::scaled::{LANES, Mask, Real, Sight, split};
use crate::dtype::DType;
use crate::host::kernels::isa::{Levelled, at_level, vectorize};
use crate::host::kernels::matmul::{Matrix, Tile};
use crate::host::kernels::nest::{Nest, Shared, in_parts};
use crate::host::kernels::simd::Simd;
use crate::room;
use crate::shape::contiguous_strides;
use crate::view::{Parallel, View, ViewMut};

/// Queries of a block.
const ROWS: usize = 64;
/// Keys that are added to their sums while these are in cache.
const KEYS: usize = 256;
/// Parts that batches of few matrices are cut into: each has sums of its own for the keys.
const PARTS: usize = 8;

/// In how many groups the blocks of queries of one matrix go: each is a thread's.
pub(crate) fn groups(batch: usize, rows: usize) -> usize {
    PARTS.div_ceil(batch.max(1)).min(rows.div_ceil(ROWS)).max(1)
}

/// Elements of the output for one matrix of the batch: `dq`, and for each group `dk` and `dv`.
pub(crate) fn out_len([rows, keys, width, wide]: [usize; 4], groups: usize) -> usize {
    rows * width + groups * keys * (width + wide)
}

/// The gradients of `softmax(q k^T scale + mask) v` of the shapes that `scaled::attention` has,
/// with the upstream gradient `[batch.., rows, wide]`. The output is `[batch.., out_len]`: all of
/// `dq`, then `dk` of each group, then `dv` of each.
pub(crate) fn backward(
    [q, k, v, up]: [View<'_>; 4],
    mask: Option<View<'_>>,
    sight: Sight,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    if out.numel() == 0 {
        return;
    }
    match q.dtype {
        DType::F32 => of::<f32>([q, k, v, up], mask, sight, out, par),
        DType::F64 => of::<f64>([q, k, v, up], mask, sight, out, par),
        other => unreachable!("attention of {other}, which the rule widens first"),
    }
}

fn of<W: Real>(
    [q, k, v, up]: [View<'_>; 4],
    mask: Option<View<'_>>,
    sight: Sight,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    let lead = q.shape.len() - 2;
    let sizes = [q.shape[lead], k.shape[lead], q.shape[lead + 1], v.shape[lead + 1]];
    let [rows, keys, width, wide] = sizes;
    let nothing = [0isize; 64];
    let mask_lead = mask.map_or(&nothing[..lead], |mask| &mask.strides[..lead]);
    let out_strides = contiguous_strides(out.shape);
    let strides = [&q, &k, &v, &up].map(|view| &view.strides[..lead]);
    let [of_q, of_k, of_v, of_up] = strides;
    let batch = [of_q, of_k, of_v, of_up, mask_lead, &out_strides[..lead]];
    let batch = Nest::new(&q.shape[..lead], batch).merged();
    let groups = groups(batch.numel(), rows);
    let to = Shared::<W>::new(out.ptr);
    in_parts(batch.numel() * groups, 1, par, &|parts| {
        Room::<W>::with(sizes, |room| {
            for part in parts {
                let (one, group) = (part / groups, part % groups);
                let [at_q, at_k, at_v, at_up, at_mask, at_out] = batch.at(one);
                let matrix = |view: &View<'_>, at: isize| Matrix {
                    at: Shared::<W>::new(Shared::<W>::new(view.ptr.cast_mut()).at(at)),
                    rows: view.strides[lead],
                    cols: view.strides[lead + 1],
                };
                let [of_keys, of_values] = [keys * width, keys * wide];
                let k_at = at_out as usize + rows * width + group * of_keys;
                let v_at = at_out as usize + rows * width + groups * of_keys + group * of_values;
                // SAFETY: this part of the output is this group's own.
                let [dk, dv] = unsafe {
                    [(k_at, of_keys), (v_at, of_values)].map(|(at, n)| {
                        let at = to.at(at as isize);
                        at.write_bytes(0, n);
                        std::slice::from_raw_parts_mut(at, n)
                    })
                };
                let mut head = Head {
                    q: matrix(&q, at_q),
                    up: matrix(&up, at_up),
                    mask: mask.map(|mask| Mask::of(&mask, at_mask)),
                    sizes,
                    sight,
                    dq: Shared::new(to.at(at_out)),
                    dk,
                    dv,
                };
                room.take(matrix(&k, at_k), matrix(&v, at_v), sizes);
                for block in (group..rows.div_ceil(ROWS)).step_by(groups) {
                    head.run(room, block * ROWS);
                }
            }
        });
    });
}

/// Where a thread computes its blocks; all rows lie one behind the other.
struct Room<'a, W> {
    /// Keys and values.
    k: &'a mut [W],
    v: &'a mut [W],
    /// Keys turned, some at a time: `[width, KEYS]` and so on.
    turned: &'a mut [W],
    /// Queries of a block, scaled, and upstream gradients.
    q: &'a mut [W],
    up: &'a mut [W],
    /// `[keys, queries]`: scores, then weights; and the gradients of either.
    weights: &'a mut [W],
    slopes: &'a mut [W],
    /// Of some keys, or of the queries: what is added to a sum.
    part: &'a mut [W],
    /// `dq`, turned.
    dq: &'a mut [W],
    /// What products find their second operand in.
    tile: &'a mut [W],
    /// Of each query its largest score or its `d`, and the sum of its powers.
    largest: &'a mut [W],
    sums: &'a mut [W],
}

impl<W: Real> Room<'_, W> {
    fn with([rows, keys, width, wide]: [usize; 4], f: impl FnOnce(&mut Room<'_, W>)) {
        let rows = rows.min(ROWS);
        let widest = width.max(wide);
        let tiles = [
            Tile::<W>::room(widest, rows),
            Tile::<W>::room(rows, widest),
            Tile::<W>::room(keys.min(KEYS), rows),
        ];
        let sizes = [
            keys * width,
            keys * wide,
            keys * width,
            rows * width,
            rows * wide,
            keys * rows,
            keys * rows,
            (keys.min(KEYS) * widest).max(width * rows),
            width * rows,
            tiles.into_iter().max().unwrap_or(0),
            rows,
            rows,
        ]
        .map(|n: usize| n.next_multiple_of(LANES));
        // It grows with the keys, so no thread keeps it.
        let mut scratch = room::filled(sizes.iter().sum::<usize>() + LANES, W::ZERO);
        let [k, v, turned, q, up, weights, slopes, part, dq, tile, largest, sums] =
            split(&mut scratch, sizes);
        f(&mut Room { k, v, turned, q, up, weights, slopes, part, dq, tile, largest, sums });
    }

    /// Copies keys and values of one matrix.
    fn take(&mut self, k: Matrix<W>, v: Matrix<W>, [_, keys, width, wide]: [usize; 4]) {
        copied(&k, 0, width, W::of(1.0), &mut self.k[..keys * width]);
        copied(&v, 0, wide, W::of(1.0), &mut self.v[..keys * wide]);
        for start in (0..keys).step_by(KEYS) {
            let len = KEYS.min(keys - start);
            let to = &mut self.turned[start * width..][..len * width];
            for (j, row) in self.k[start * width..][..len * width].chunks(width.max(1)).enumerate()
            {
                row.iter().enumerate().for_each(|(c, x)| to[c * len + j] = *x);
            }
        }
    }
}

/// Rows of a matrix from `first` on, one behind the other, times a number.
fn copied<W: Real>(from: &Matrix<W>, first: usize, width: usize, by: W, to: &mut [W]) {
    vectorize!(|| for (r, row) in to.chunks_mut(width.max(1)).enumerate() {
        let at = from.from(first + r, 0);
        // SAFETY: elements of the matrix; if they lie side by side, as a slice.
        unsafe {
            if from.cols == 1 {
                let at = std::slice::from_raw_parts(at, width);
                row.iter_mut().zip(at).for_each(|(x, y)| *x = y.mul(by));
            } else {
                let each = row.iter_mut().zip(0..);
                each.for_each(|(x, c)| *x = (*at.wrapping_offset(c * from.cols)).mul(by));
            }
        }
    });
}

/// One matrix of the batch, and its gradients.
struct Head<'a, W> {
    q: Matrix<W>,
    up: Matrix<W>,
    mask: Option<Mask>,
    /// Queries, keys, columns of both, columns of values.
    sizes: [usize; 4],
    sight: Sight,
    dq: Shared<W>,
    dk: &'a mut [W],
    dv: &'a mut [W],
}

/// `out[m, n] = rows[m, k] x by[k, n]`, where `by` is `of[n, k]` turned, or lies as it is.
fn product<W: Real>(
    rows: &mut [W],
    (of, is_turned): (&mut [W], bool),
    [m, k, n]: [usize; 3],
    tile: &mut [W],
    out: &mut [W],
) {
    assert!(rows.len() >= m * k && of.len() >= k * n && out.len() >= m * n);
    let at = Shared::new(of.as_mut_ptr());
    let matrix = match is_turned {
        true => Matrix { at, rows: 1, cols: k as isize },
        false => Matrix { at, rows: n as isize, cols: 1 },
    };
    let mut tile = Tile::new(tile);
    // SAFETY: the operands are slices that nobody writes meanwhile, and the output is as long.
    unsafe {
        tile.take(matrix, [k, n]);
        tile.product(rows.as_mut_ptr(), m, out.as_mut_ptr());
    }
}

/// Adds up.
fn add<W: Real>(sum: &mut [W], part: &[W]) {
    vectorize!(|| sum.iter_mut().zip(part).for_each(|(x, y)| *x = x.add(*y)));
}

impl<W: Real> Head<'_, W> {
    /// The queries from `first` on.
    fn run(&mut self, room: &mut Room<'_, W>, first: usize) {
        let [rows, keys, width, wide] = self.sizes;
        let count = ROWS.min(rows - first);
        // Beyond its last query a causal block sees nothing. Keys lie turned in pieces of KEYS.
        let end = (first + count).next_multiple_of(KEYS);
        let seen = if self.sight.causal { keys.min(end) } else { keys };
        let scale = W::of(self.sight.scale);
        let q = &mut room.q[..count * width];
        let up = &mut room.up[..count * wide];
        copied(&self.q, first, width, scale, q);
        copied(&self.up, first, wide, W::of(1.0), up);
        let weights = &mut room.weights[..seen * count];
        let slopes = &mut room.slopes[..seen * count];
        product(room.k, (q, true), [seen, width, count], room.tile, weights);
        product(room.v, (up, true), [seen, wide, count], room.tile, slopes);
        at_level(Softmax {
            weights,
            slopes,
            largest: &mut room.largest[..count],
            sums: &mut room.sums[..count],
            first,
            causal: self.sight.causal,
            mask: self.mask.as_ref(),
        });
        let dq = &mut room.dq[..width * count];
        dq.fill(W::ZERO);
        for start in (0..seen).step_by(KEYS) {
            let len = KEYS.min(seen - start);
            let weights = &mut room.weights[start * count..][..len * count];
            let slopes = &mut room.slopes[start * count..][..len * count];
            let part = &mut room.part[..len * wide];
            product(weights, (up, false), [len, count, wide], room.tile, part);
            add(&mut self.dv[start * wide..], part);
            let part = &mut room.part[..len * width];
            product(slopes, (q, false), [len, count, width], room.tile, part);
            add(&mut self.dk[start * width..], part);
            let turned = &mut room.turned[start * width..][..len * width];
            let part = &mut room.part[..width * count];
            product(turned, (slopes, false), [width, len, count], room.tile, part);
            add(dq, part);
        }
        for c in 0..count {
            // SAFETY: these rows of the output are this block's own.
            let row = unsafe {
                let at = self.dq.at(((first + c) * width) as isize);
                std::slice::from_raw_parts_mut(at, width)
            };
            row.iter_mut().enumerate().for_each(|(w, x)| *x = dq[w * count + c].mul(scale));
        }
    }
}

/// Makes scores `[keys, queries]` into weights, and what flows to weights into what flows to
/// scores.
struct Softmax<'a, W> {
    weights: &'a mut [W],
    slopes: &'a mut [W],
    /// A place for each query.
    largest: &'a mut [W],
    sums: &'a mut [W],
    first: usize,
    causal: bool,
    mask: Option<&'a Mask>,
}

impl<W: Real> Levelled for Softmax<'_, W> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let Softmax { weights, slopes, largest, sums, first, causal, mask } = self;
        let count = largest.len();
        largest.fill(W::LEAST);
        sums.fill(W::ZERO);
        for (key, row) in weights.chunks_mut(count).enumerate() {
            if let Some(mask) = mask {
                mask.column(row, first, key);
            }
            // Queries before the key do not see it.
            let hidden = if causal { key.saturating_sub(first).min(count) } else { 0 };
            row[..hidden].fill(W::LEAST);
            slopes[key * count..][..hidden].fill(W::ZERO);
            for (most, x) in largest.iter_mut().zip(&*row) {
                *most = if *x > *most { *x } else { *most };
            }
        }
        // Of a query that sees nothing the powers are zeros, and NaN stays NaN.
        for most in largest.iter_mut() {
            *most = if *most == W::LEAST { W::ZERO } else { *most };
        }
        for row in weights.chunks_mut(count) {
            for ((x, most), sum) in row.iter_mut().zip(&*largest).zip(sums.iter_mut()) {
                *x = x.sub(*most).exp_of_difference::<S>();
                *sum = sum.add(*x);
            }
        }
        for sum in sums.iter_mut() {
            *sum = if *sum == W::ZERO { W::of(1.0) } else { *sum };
        }
        // The place of the largest is that of `d` from here on.
        let flows = largest;
        flows.fill(W::ZERO);
        for (row, slopes) in weights.chunks_mut(count).zip(slopes.chunks(count)) {
            for (((x, sum), slope), flow) in row.iter_mut().zip(&*sums).zip(slopes).zip(&mut *flows)
            {
                *x = x.div(*sum);
                *flow = flow.add(x.mul(*slope));
            }
        }
        for (row, slopes) in weights.chunks(count).zip(slopes.chunks_mut(count)) {
            for ((x, slope), flow) in row.iter().zip(slopes).zip(&*flows) {
                *slope = x.mul(slope.sub(*flow));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::kernels::testing::*;
    use crate::view::Serial;

    /// The gradients of one matrix in plain loops: `dq`, `dk`, `dv`.
    fn reference(
        [q, k, v, up]: [&[f64]; 4],
        [rows, keys, width, wide]: [usize; 4],
        shown: &dyn Fn(usize, usize) -> f64,
        sight: Sight,
    ) -> [Vec<f64>; 3] {
        let [mut dq, mut dk, mut dv] = [rows * width, keys * width, keys * wide].map(zeros);
        for r in 0..rows {
            let score = |j: usize| {
                let dot: f64 = (0..width).map(|c| q[r * width + c] * k[j * width + c]).sum();
                let hidden = sight.causal && j > r;
                if hidden { f64::NEG_INFINITY } else { dot * sight.scale + shown(r, j) }
            };
            let scores: Vec<f64> = (0..keys).map(score).collect();
            let most = scores.iter().fold(f64::NEG_INFINITY, |a, &b| a.max(b));
            if most == f64::NEG_INFINITY {
                continue;
            }
            let powers: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
            let sum: f64 = powers.iter().sum();
            let flows =
                |j: usize| -> f64 { (0..wide).map(|c| up[r * wide + c] * v[j * wide + c]).sum() };
            let mean: f64 = (0..keys).map(|j| powers[j] / sum * flows(j)).sum();
            for j in 0..keys {
                let weight = powers[j] / sum;
                let slope = weight * (flows(j) - mean) * sight.scale;
                for c in 0..width {
                    dq[r * width + c] += slope * k[j * width + c];
                    dk[j * width + c] += slope * q[r * width + c];
                }
                for c in 0..wide {
                    dv[j * wide + c] += weight * up[r * wide + c];
                }
            }
        }
        [dq, dk, dv]
    }

    fn zeros(n: usize) -> Vec<f64> {
        vec![0.0; n]
    }

    fn wide<T: crate::Element>(x: &Value<T>) -> Vec<f64> {
        indices(&x.shape).iter().map(|i| x.get(i).to_f64()).collect()
    }

    #[test]
    fn blocks_of_queries_have_the_gradients_of_one_softmax_over_all() {
        let mut rng = Rng::new(52);
        for turn in turns(16) {
            agrees::<f32>(&mut rng, turn, 2e-4);
            agrees::<f64>(&mut rng, turn, 1e-11);
        }
    }

    fn agrees<T: crate::Element>(rng: &mut Rng, turn: usize, bound: f64) {
        let (rows, keys) = (1 + rng.below(200), 1 + rng.below(600));
        let (width, of_values) = (1 + rng.below(20), 1 + rng.below(20));
        let batch = [1, 3, 9][turn % 3];
        let of = |rng: &mut Rng, tail: [usize; 2]| {
            Value::<T>::random(rng, &[batch, tail[0], tail[1]], |r| T::from_f64(r.unit() * 2.0))
        };
        let (q, k) = (of(rng, [rows, width]), of(rng, [keys, width]));
        let (v, up) = (of(rng, [keys, of_values]), of(rng, [rows, of_values]));
        let sight = Sight { scale: 0.4, causal: turn % 2 == 1 };
        let added = of(rng, [rows, keys]);
        let seen = Value::<bool>::random(rng, &[batch, rows, keys], |r| r.below(5) == 0);
        let mask = [None, Some(added.view()), Some(seen.view())][turn / 2 % 3];
        let sizes = [rows, keys, width, of_values];
        let groups = groups(batch, rows);
        let shape = [batch, out_len(sizes, groups)];
        let run = |par: &dyn Parallel| {
            filled::<T>(&shape, |out| {
                backward([q.view(), k.view(), v.view(), up.view()], mask, sight, out, par)
            })
        };
        let got = run(&Threads { threads: 3, seed: rng.word() });
        assert_eq!(got, run(&Serial), "threads show in the result");
        let got: Vec<f64> = got.iter().map(|x| x.to_f64()).collect();
        let all = [wide(&q), wide(&k), wide(&v), wide(&up)];
        for (b, got) in got.chunks(shape[1]).enumerate() {
            let own = all.each_ref().map(|x| &x[b * x.len() / batch..][..x.len() / batch]);
            let shown = |r: usize, j: usize| match turn / 2 % 3 {
                1 => added.get(&[b, r, j]).to_f64(),
                2 if !seen.get(&[b, r, j]) => f64::NEG_INFINITY,
                _ => 0.0,
            };
            let [dq, dk, dv] = reference(own, sizes, &shown, sight);
            let summed = |first: usize, n: usize| -> Vec<f64> {
                (0..n).map(|i| (0..groups).map(|g| got[first + g * n + i]).sum()).collect()
            };
            let first = rows * width;
            let found = [
                got[..first].to_vec(),
                summed(first, keys * width),
                summed(first + groups * keys * width, keys * of_values),
            ];
            for (name, (found, want)) in
                ["dq", "dk", "dv"].iter().zip(found.iter().zip([dq, dk, dv]))
            {
                for (i, (x, y)) in found.iter().zip(&want).enumerate() {
                    assert!((x - y).abs() < bound * (1.0 + y.abs()), "{turn} {name} {i}: {x} {y}");
                }
            }
        }
    }

    at_every_level! {
        blocks_of_queries_have_the_gradients_of_one_softmax_over_all
    }
}
