//! What flows back through running products: to `x[k]` the sum over `j >= k` of `g[j]` times the
//! product up to `j` without `x[k]`, which is `y[j] / x[k]`.
//!
//! At the first zero of a line it is the sum of the products in which this zero counts as one, up
//! to the next zero, and behind it nothing. Such lines are worked on alone. Sums are those of f64.

use super::super::isa::vectorize;
use super::super::nest::{Nest, Shared, in_parts, slice_of};
use super::{PICKED, SUMMED};
use crate::dtype::DType;
use crate::shape::contiguous_strides;
use crate::view::{Parallel, View, ViewMut};
use std::ops::Range;

/// Columns that are worked on side by side: at least so many, and at most.
const COLUMNS: Range<usize> = 64..256;
/// Lines that are worked on in turns: each waits for its own last sum, not for another's.
const LINES: usize = 4;
/// Elements of a line that are multiplied at a time.
const PIECE: usize = 256;

/// Of `g`, `x`, and the running products `y` of `x` along a dimension, all f32 or f64.
pub(crate) fn scan_back(
    g: View<'_>,
    x: View<'_>,
    y: View<'_>,
    dim: usize,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    match x.dtype {
        DType::F64 => back::<f64>([g, x, y], dim, out, par, |x| x, |x| x),
        _ => back::<f32>([g, x, y], dim, out, par, |x| x as f64, |x| x as f32),
    }
}

fn back<T: Copy + Send + Sync>(
    of: [View<'_>; 3],
    dim: usize,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
    wide: impl Fn(T) -> f64 + Copy + Sync,
    end: impl Fn(f64) -> T + Copy + Sync,
) {
    if out.numel() == 0 {
        return;
    }
    let (shape, own) = (of[1].shape, contiguous_strides(out.shape));
    let strides = [of[0].strides, of[1].strides, of[2].strides, &own[..]];
    let outer = Nest::new(&shape[..dim], strides.map(|s| &s[..dim])).merged();
    let columns = Nest::new(&shape[dim + 1..], strides.map(|s| &s[dim + 1..])).merged();
    let (n, inner, step) = (shape[dim], columns.numel(), strides.map(|s| s[dim]));
    let ends = Ends {
        of: of.map(|view| Shared::new(view.ptr.cast_mut())),
        out: Shared::new(out.ptr),
        n,
        step,
        wide,
        end,
    };
    if inner == 1 {
        let lines = outer.numel();
        return in_parts(lines.div_ceil(LINES), (PICKED / (n * LINES)).max(1), par, &|groups| {
            for group in groups {
                let mut at = [[0; 4]; LINES];
                let some = group * LINES..lines.min((group + 1) * LINES);
                outer.turns(some.clone()).zip(&mut at).for_each(|((_, own), at)| *at = own);
                // SAFETY: these are lines of the operands, and this part's of the output.
                unsafe { ends.lines(&at[..some.len()]) }
            }
        });
    }
    let wanted = (4 * par.threads()).div_ceil(outer.numel());
    let cuts = inner.div_ceil((inner / wanted).clamp(COLUMNS.start, COLUMNS.end));
    in_parts(outer.numel() * cuts, (SUMMED * cuts / (n * inner)).max(1), par, &|units| {
        for unit in units {
            let (cut, first) = (slice_of(inner, cuts, unit % cuts), outer.at(unit / cuts));
            let mut at = [[0; 4]; COLUMNS.end];
            let at = &mut at[..cut.len()];
            for ((_, own), at) in columns.turns(cut).zip(&mut *at) {
                *at = std::array::from_fn(|k| first[k] + own[k]);
            }
            // SAFETY: as above.
            unsafe { ends.columns(at) }
        }
    });
}

/// The operands, the output, and a step along the dimension in each.
struct Ends<T, Wide, End> {
    of: [Shared<T>; 3],
    out: Shared<T>,
    n: usize,
    step: [isize; 4],
    wide: Wide,
    end: End,
}

impl<T: Copy, Wide: Fn(T) -> f64 + Copy, End: Fn(f64) -> T + Copy> Ends<T, Wide, End> {
    /// # Safety
    /// An operand has an element there.
    #[inline(always)]
    unsafe fn read(&self, k: usize, at: isize) -> f64 {
        // SAFETY: the caller's promise.
        (self.wide)(unsafe { *self.of[k].at(at) })
    }

    /// Lines that lie side by side, which begin at these places.
    ///
    /// # Safety
    /// The lines are the operands', and nobody else uses those of the output.
    unsafe fn columns(&self, at: &[[isize; 4]]) {
        let beside = at.windows(2).all(|w| (0..4).all(|k| w[1][k] == w[0][k] + 1));
        let (mut sums, mut zeros) = ([0.0; COLUMNS.end], [false; COLUMNS.end]);
        // SAFETY: by the caller's promise.
        unsafe {
            match beside {
                true => vectorize!(|| {
                    let first = at[0];
                    let place = |c: usize| first.map(|at| at + c as isize);
                    self.columns_at(at.len(), place, &mut sums, &mut zeros)
                }),
                false => self.columns_at(at.len(), |c| at[c], &mut sums, &mut zeros),
            }
            for (at, _) in at.iter().zip(zeros).filter(|(_, zero)| *zero) {
                self.mend(*at);
            }
        }
    }

    /// # Safety
    /// As for [`columns`](Self::columns).
    #[inline(always)]
    unsafe fn columns_at(
        &self,
        n: usize,
        at: impl Fn(usize) -> [isize; 4],
        sums: &mut [f64],
        zeros: &mut [bool],
    ) {
        for r in (0..self.n as isize).rev() {
            for c in 0..n {
                let [g, x, y, out]: [isize; 4] = {
                    let at = at(c);
                    std::array::from_fn(|k| at[k] + r * self.step[k])
                };
                // SAFETY: by the caller's promise.
                unsafe {
                    let x = self.read(1, x);
                    sums[c] += self.read(0, g) * self.read(2, y);
                    zeros[c] |= x == 0.0;
                    self.out.at(out).write((self.end)(sums[c] / x));
                }
            }
        }
    }

    /// Some lines that begin at these places.
    ///
    /// # Safety
    /// As for [`columns`](Self::columns).
    unsafe fn lines(&self, at: &[[isize; 4]]) {
        let zeros = vectorize!(|| {
            // SAFETY: by the caller's promise.
            unsafe {
                match self.step {
                    [1, 1, 1, 1] => self.lines_at(at, |i, _| i),
                    _ => self.lines_at(at, |i, k| i * self.step[k]),
                }
            }
        });
        for (at, _) in at.iter().zip(zeros).filter(|(_, zero)| *zero) {
            // SAFETY: by the caller's promise.
            unsafe { self.mend(*at) }
        }
    }

    /// Whether there are zeros in each line.
    ///
    /// # Safety
    /// As for [`columns`](Self::columns).
    #[inline(always)]
    unsafe fn lines_at(
        &self,
        at: &[[isize; 4]],
        steps: impl Fn(isize, usize) -> isize,
    ) -> [bool; LINES] {
        let (mut sums, mut zeros) = ([0.0; LINES], [false; LINES]);
        let mut pieces = [[0.0; PIECE]; LINES];
        for first in (0..self.n).step_by(PIECE).rev() {
            let len = PIECE.min(self.n - first);
            let place = |k: usize, i: usize| steps((first + i) as isize, k);
            for (piece, at) in pieces.iter_mut().zip(at) {
                for (i, term) in piece[..len].iter_mut().enumerate() {
                    // SAFETY: by the caller's promise.
                    *term = unsafe {
                        self.read(0, at[0] + place(0, i)) * self.read(2, at[2] + place(2, i))
                    };
                }
            }
            for i in (0..len).rev() {
                for (sum, piece) in sums.iter_mut().zip(&mut pieces) {
                    *sum += piece[i];
                    piece[i] = *sum;
                }
            }
            for ((piece, at), zero) in pieces.iter().zip(at).zip(&mut zeros) {
                for (i, sum) in piece[..len].iter().enumerate() {
                    // SAFETY: by the caller's promise.
                    unsafe {
                        let x = self.read(1, at[1] + place(1, i));
                        *zero |= x == 0.0;
                        self.out.at(at[3] + place(3, i)).write((self.end)(sum / x));
                    }
                }
            }
        }
        zeros
    }

    /// A line with zeros.
    ///
    /// # Safety
    /// As for [`columns`](Self::columns).
    #[cold]
    unsafe fn mend(&self, at: [isize; 4]) {
        // SAFETY: by the caller's promise, throughout.
        let [g, x, y] = [0, 1, 2]
            .map(|k| move |i: usize| unsafe { self.read(k, at[k] + i as isize * self.step[k]) });
        let write = |i: usize, value: f64| {
            let out = self.out.at(at[3] + i as isize * self.step[3]);
            // SAFETY: as above.
            unsafe { out.write((self.end)(value)) }
        };
        let zero = (0..self.n).find(|&i| x(i) == 0.0).unwrap_or(self.n);
        let mut sum = 0.0;
        for i in (0..zero).rev() {
            sum += g(i) * y(i);
            write(i, sum / x(i));
        }
        let mut product: f64 = (0..zero).map(&x).product();
        sum = 0.0;
        for i in zero..self.n {
            if i > zero {
                product *= x(i);
                write(i, 0.0);
            }
            if i == zero || product != 0.0 {
                sum += g(i) * product;
            }
        }
        if zero < self.n {
            write(zero, sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::*;
    use super::*;
    use crate::dtype::Element;

    /// By the definition, of numbers with which f64 is exact.
    fn holds<T: Element>(rng: &mut Rng, shape: &[usize], dim: usize, zeros: bool) {
        let whole = |r: &mut Rng| [1.0, -1.0, 2.0, 0.5][r.below(4)];
        let any = |r: &mut Rng| if zeros && r.below(4) == 0 { 0.0 } else { whole(r) };
        let x = Value::<T>::random(rng, shape, |r| T::from_f64(any(r)));
        let g = Value::<T>::random(rng, shape, |r| T::from_f64(r.below(5) as f64 - 2.0));
        let line = |of: &Value<T>, at: &[usize]| -> Vec<f64> {
            let mut at = at.to_vec();
            (0..shape[dim]).map(|i| (at[dim] = i, of.get(&at).to_f64()).1).collect()
        };
        let products = indices(shape)
            .into_iter()
            .map(|at| T::from_f64(line(&x, &at)[..=at[dim]].iter().product()));
        let y = Value::<T>::new(shape, products.collect());
        let run = |threads: usize| {
            filled::<T>(shape, |out| {
                let par = Threads { threads, seed: threads as u64 };
                scan_back(g.view(), x.view(), y.view(), dim, out, &par);
            })
        };
        let got = run(1);
        let numbers = |all: &[T]| all.iter().map(|x| x.to_f64()).collect::<Vec<_>>();
        assert_eq!(numbers(&got), numbers(&run(3)), "whatever the threads");
        for (at, got) in indices(shape).iter().zip(&got) {
            let (x, g, k) = (line(&x, at), line(&g, at), at[dim]);
            let without = |j: usize| (0..=j).filter(|&i| i != k).map(|i| x[i]).product::<f64>();
            let want: f64 = (k..x.len()).map(|j| g[j] * without(j)).sum();
            assert_eq!(got.to_f64(), want, "at {at:?} of {shape:?} over {dim}");
        }
    }

    #[test]
    fn running_products_give_back_what_their_definition_says() {
        let mut rng = Rng::new(82);
        for _ in turns(10) {
            for zeros in [false, true] {
                let few = [1 + rng.below(5), 1 + rng.below(5), 1 + rng.below(5)];
                let dim = rng.below(3);
                holds::<f32>(&mut rng, &few, dim, zeros);
                holds::<f64>(&mut rng, &few, dim, zeros);
                let rows = [1 + rng.below(3), 1 + rng.below(12)];
                holds::<f64>(&mut rng, &rows, 1, zeros);
                let columns = [1 + rng.below(9), 70 + rng.below(90)];
                holds::<f32>(&mut rng, &columns, 0, zeros);
            }
        }
        // Several pieces: of ones, and with a zero here and there.
        for zero in [usize::MAX, 3, 300] {
            let n = 2 * PIECE + 9;
            let x: Vec<f32> = (0..n).map(|i| if i == zero { 0.0 } else { 1.0 }).collect();
            let y = x.iter().scan(1.0, |y, x| (*y *= x, Some(*y)).1).collect();
            let [x, y] = [x, y].map(|data| Value::new(&[1, n], data));
            let g = Value::new(&[1, n], vec![1f32; n]);
            let got = filled::<f32>(&[1, n], |out| {
                scan_back(g.view(), x.view(), y.view(), 1, out, &crate::view::Serial);
            });
            let want = |k: usize| match zero.min(n) {
                zero if k < zero => (zero - k) as f32,
                zero if k == zero => (n - k) as f32,
                _ => 0.0,
            };
            assert!((0..n).all(|k| got[k] == want(k)), "{got:?}");
        }
    }

    at_every_level! {
        running_products_give_back_what_their_definition_says
    }
}
