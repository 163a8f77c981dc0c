//! The loss of rows of which the classes are known, and its way back: a row's logarithms and
//! probabilities are not written to memory for it.

use super::super::copy;
use super::super::isa::{Levelled, at_level};
use super::super::load::{Load, by_float, over};
use super::super::nest::{Nest, Shared, in_parts};
use super::super::reduce::fold::{BLOCK, MaxNumber, Sum, Tree, fold_block};
use super::super::simd::Simd;
use super::columns::Less;
use super::{Float, Form, LEAST, Picks, Rows, STREAM_FROM, loaded};
use crate::dtype::Element;
use crate::room;
use crate::shape::contiguous_strides;
use crate::view::{Parallel, View, ViewMut};
use std::marker::PhantomData;
use std::ops::Range;

/// Minus the logarithm of the softmax of each row `[n, classes]` at its class; 0 of a row without
/// one.
pub(crate) fn losses(x: View<'_>, classes: &[Option<usize>], par: &dyn Parallel) -> Vec<f64> {
    by_float!(x.dtype, losses_of(x, classes, par))
}

fn losses_of<T: Load<W> + Element, W: Float + Element>(
    x: View<'_>,
    classes: &[Option<usize>],
    par: &dyn Parallel,
) -> Vec<f64> {
    let mut all = room::filled(classes.len(), 0.0);
    let to = Shared::new(all.as_mut_ptr());
    in_order::<T>(x, par, &|x| {
        let (n, step, from) = (x.shape[1], x.strides[0], Shared::<T>::new(x.ptr.cast_mut()));
        in_parts(classes.len(), (LEAST / n.max(1)).max(1), par, &|rows| {
            at_level(Losses::<T, W> { rows, from, n, step, classes, to, wide: PhantomData });
        });
    });
    all
}

/// Calls `f` with rows whose elements lie side by side.
fn in_order<T: Element>(x: View<'_>, par: &dyn Parallel, f: &dyn Fn(View<'_>)) {
    if x.strides[1] == 1 || x.shape[1] <= 1 {
        return f(x);
    }
    let mut copied = room::filled(x.numel(), T::from_f64(0.0));
    let ptr = copied.as_mut_ptr().cast();
    copy::copy(x, &ViewMut { ptr, dtype: x.dtype, shape: x.shape, life: PhantomData }, par);
    f(View { ptr, strides: &contiguous_strides(x.shape), ..x });
}

/// A run of rows.
struct Losses<'a, T, W> {
    rows: Range<usize>,
    from: Shared<T>,
    n: usize,
    step: isize,
    classes: &'a [Option<usize>],
    to: Shared<f64>,
    wide: PhantomData<W>,
}

impl<T: Load<W>, W: Float + Element> Levelled for Losses<'_, T, W> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let mut powers = [W::ZERO; BLOCK];
        for row in self.rows {
            let Some(class) = self.classes[row] else { continue };
            // SAFETY: a row of the input.
            let x = unsafe {
                std::slice::from_raw_parts(self.from.at(row as isize * self.step), self.n)
            };
            let mut largest = W::LEAST;
            for block in x.chunks(BLOCK) {
                let (n, room) = (block.len(), powers.as_mut_ptr());
                // SAFETY: there is room for a block; a level is one that the machine has.
                let wide = unsafe {
                    std::slice::from_raw_parts(loaded::<T, W, S>(block.as_ptr(), n, room), n)
                };
                let next = fold_block::<MaxNumber<W, W, W>>(wide);
                largest = if next > largest { next } else { largest };
            }
            let mut tree = Tree::new();
            for block in x.chunks(BLOCK) {
                let (from, to) = (block.as_ptr(), powers.as_mut_ptr());
                // SAFETY: as above.
                unsafe {
                    let powers = Less { from, less: largest, to };
                    over::<T, W, S>(block.len(), powers);
                }
                tree.push(fold_block::<Sum<W, W, W>>(&powers[..block.len()]), W::add);
            }
            let sum = tree.end(W::add).unwrap_or(W::ZERO);
            let loss = sum.log::<S>().sub(x[class].load().sub(largest));
            // SAFETY: the place of a row of this part's.
            unsafe { self.to.at(row as isize).write(loss.to_f64()) };
        }
    }
}

/// What flows back to the rows if `scale` flows to the loss of each that has a class: the softmax,
/// less 1 at the class, times that; zeros to a row without one.
pub(crate) fn losses_back(
    x: View<'_>,
    classes: &[Option<usize>],
    scale: f64,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    if out.numel() > 0 {
        by_float!(x.dtype, back_of(x, classes, scale, out, par));
    }
}

fn back_of<T: Load<W> + Element, W: Float + Element>(
    x: View<'_>,
    classes: &[Option<usize>],
    scale: f64,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    let (to, scale) = (Shared::<T>::new(out.ptr), W::of(scale));
    let mut picked = room::filled(classes.len(), W::ZERO);
    let at = Shared::<W>::new(picked.as_mut_ptr());
    in_order::<T>(x, par, &|x| {
        let (n, from) = (x.shape[1], Shared::<T>::new(x.ptr.cast_mut()));
        let outer = Nest::new(&x.shape[..1], [&x.strides[..1]]);
        let streamed = out.numel() * size_of::<T>() >= STREAM_FROM;
        in_parts(outer.numel(), (LEAST / n).max(1), par, &|rows| {
            W::with_scratch(super::kept::<T, W>(n, streamed), |scratch| {
                at_level(Rows {
                    outer: &outer,
                    rows: rows.clone(),
                    from,
                    to,
                    n,
                    form: Form::Plain,
                    streamed,
                    scratch,
                    picks: Some(Picks { scale, classes, to: at }),
                });
            });
            for row in rows {
                // SAFETY: a row of the output, and what was picked from it: this part's own.
                unsafe {
                    let y = to.at((row * n) as isize);
                    match classes[row] {
                        Some(class) => {
                            let x = *at.at(row as isize);
                            y.add(class).write(T::store(x.sub(scale)));
                        }
                        None => (0..n).for_each(|i| y.add(i).write(T::store(W::ZERO))),
                    }
                }
            }
        });
    });
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::*;
    use super::*;

    fn check<T: Element>(rng: &mut Rng, eps: f64) {
        let shape = [1 + rng.below(12), 1 + rng.below(3000)];
        let x = Value::<T>::random(rng, &shape, |r| T::from_f64(r.unit() * 9.0));
        let class = |rng: &mut Rng| (rng.below(4) > 0).then(|| rng.below(shape[1]));
        let classes: Vec<Option<usize>> = (0..shape[0]).map(|_| class(rng)).collect();
        let par = Threads { threads: 2, seed: rng.word() };
        let (got, scale) = (losses(x.view(), &classes, &par), rng.unit());
        let back = filled::<T>(&shape, |out| losses_back(x.view(), &classes, scale, out, &par));
        let all: Vec<f64> = x.to_vec().iter().map(|x| x.to_f64()).collect();
        for (row, class) in classes.iter().enumerate() {
            let x = &all[row * shape[1]..][..shape[1]];
            let largest = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = x.iter().map(|x| (x - largest).exp()).sum();
            let loss = class.map_or(0.0, |class| sum.ln() + largest - x[class]);
            assert!((got[row] - loss).abs() <= 1e-5 * (1.0 + loss.abs()), "{} {loss}", got[row]);
            for (i, got) in back[row * shape[1]..][..shape[1]].iter().enumerate() {
                let soft = (x[i] - largest).exp() / sum - f64::from(u8::from(*class == Some(i)));
                let want = class.map_or(0.0, |_| soft * scale);
                let got = got.to_f64();
                assert!((got - want).abs() <= eps * want.abs() + 1e-7, "{got} {want} {shape:?}");
            }
        }
    }

    #[test]
    fn a_loss_and_what_flows_back_agree_with_plain_loops() {
        let mut rng = Rng::new(93);
        for _ in turns(24) {
            check::<f32>(&mut rng, 1e-4);
            check::<f64>(&mut rng, 1e-4);
            check::<half::bf16>(&mut rng, 4.1e-3);
            check::<half::f16>(&mut rng, 1e-3);
        }
    }

    at_every_level! { a_loss_and_what_flows_back_agree_with_plain_loops }
}
