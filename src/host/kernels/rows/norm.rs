//! Layer norm (Ba, Kiros and Hinton 2016, arXiv:1607.06450) and RMS norm (Zhang and Sennrich 2019,
//! arXiv:1910.07467) over trailing dimensions.

use super::super::isa::{Levelled, at_level};
use super::super::load::{Load, Narrowed, by_float, over};
use super::super::nest::{Nest, Shared, in_parts};
use super::super::reduce::fold::{BLOCK, Sum, Tree, fold_block, fold_block_of};
use super::super::simd::Simd;
use super::super::stream::{self, LINE, STREAM_FROM, prefetch_second};
use super::{Float, LEAST, Made, PIECE, in_order, loaded, room_of};
use crate::dtype::with_dtype;
use crate::view::{Parallel, View, ViewMut};
use std::borrow::Cow;
use std::mem::MaybeUninit;
use std::ops::Range;

/// `(x - mean) / sqrt(variance + eps) * weight + bias` over the last `trailing` dimensions; the
/// variance is the biased one. Weight and bias have the shape of those dimensions, and any float
/// type.
pub(crate) fn layer_norm(
    input: View<'_>,
    trailing: usize,
    weight: Option<View<'_>>,
    bias: Option<View<'_>>,
    eps: f64,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    norm(input, trailing, [weight, bias], eps, true, out, par);
}

/// `x / sqrt(mean(x^2) + eps) * weight` over the last `trailing` dimensions.
pub(crate) fn rms_norm(
    input: View<'_>,
    trailing: usize,
    weight: Option<View<'_>>,
    eps: f64,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    norm(input, trailing, [weight, None], eps, false, out, par);
}

fn norm(
    x: View<'_>,
    trailing: usize,
    affine: [Option<View<'_>>; 2],
    eps: f64,
    centred: bool,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    by_float!(x.dtype, norm_of(x, trailing, affine, eps, centred, out, par));
}

fn norm_of<T: Load<W>, W: Float>(
    x: View<'_>,
    trailing: usize,
    affine: [Option<View<'_>>; 2],
    eps: f64,
    centred: bool,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    if out.numel() == 0 {
        return;
    }
    let lead = x.shape.len() - trailing;
    let n = crate::shape::numel(&x.shape[lead..]);
    let own = crate::shape::contiguous_strides(x.shape);
    let x = if in_order(&x.shape[lead..], &x.strides[lead..]) {
        x
    } else {
        super::super::copy::copy(x, out, par);
        View { ptr: out.ptr, strides: &own, ..x }
    };
    let outer = Nest::new(&x.shape[..lead], [&x.strides[..lead]]).merged();
    let (from, to) = (Shared::<T>::new(x.ptr.cast_mut()), Shared::<T>::new(out.ptr));
    let [weight, bias] = affine.map(|v| v.map(|v| widened::<W>(&v)));
    let eps = W::of(eps);
    let streamed = outer.numel() * n * size_of::<T>() >= STREAM_FROM;
    in_parts(outer.numel(), (LEAST / n).max(1), par, &|rows| {
        let (weight, bias) = (weight.as_deref(), bias.as_deref());
        W::with_scratch(room_of::<T, W>(n), |scratch| {
            let outer = &outer;
            at_level(Rows {
                outer,
                rows,
                from,
                to,
                n,
                weight,
                bias,
                eps,
                centred,
                streamed,
                scratch,
            });
        });
    });
}

/// A weight in the type that rows are computed in: itself, where it is of that type and in order.
pub(super) fn widened<'a, W: Float>(v: &View<'a>) -> Cow<'a, [W]> {
    if v.dtype == W::DTYPE && in_order(v.shape, v.strides) {
        // SAFETY: elements of this type, side by side, which the view holds for as long.
        return Cow::Borrowed(unsafe { std::slice::from_raw_parts(v.ptr.cast(), v.numel()) });
    }
    let mut out = crate::room::with_capacity(v.numel());
    let nest = Nest::new(v.shape, [v.strides]).merged();
    with_dtype!(v.dtype, T => {
        let from = Shared::<T>::new(v.ptr.cast_mut());
        for (_, [at]) in nest.turns(0..v.numel()) {
            // SAFETY: an index of the view.
            out.push(W::of(crate::dtype::Element::to_f64(unsafe { *from.at(at) })));
        }
    });
    Cow::Owned(out)
}

/// A run of rows whose elements lie side by side.
struct Rows<'a, T, W> {
    outer: &'a Nest<1>,
    rows: Range<usize>,
    from: Shared<T>,
    to: Shared<T>,
    n: usize,
    weight: Option<&'a [W]>,
    bias: Option<&'a [W]>,
    eps: W,
    centred: bool,
    /// Written around the cache, but for what is no whole piece at a row's ends.
    streamed: bool,
    /// A row of halves in the type that all is computed in.
    scratch: &'a mut [W],
}

impl<T: Load<W>, W: Float> Levelled for Rows<'_, T, W> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let (n, last) = (self.n, self.rows.end);
        for (row, [offset]) in self.outer.turns(self.rows.clone()) {
            let (from, to) = (self.from.at(offset), self.to.at((row * n) as isize));
            // SAFETY: a row of the input; where it is the output's own, this reference ends before
            // that is written.
            let (wide, x) = unsafe {
                let wide = loaded::<T, W, S>(from, n, self.scratch.as_mut_ptr());
                (wide, std::slice::from_raw_parts(wide, n))
            };
            let (mean, scale) = measured::<W>(x, self.eps, self.centred);
            let ahead = match self.streamed && row + 1 < last {
                true => self.from.at(self.outer.at(row + 1)[0]).cast_const(),
                false => std::ptr::null(),
            };
            if !self.streamed {
                // SAFETY: rows of the input and the output; a piece is read before it is written.
                unsafe { self.row::<S>(wide, to, |x| x.sub(mean).mul(scale)) };
                continue;
            }
            let mut first = 0;
            while first < n {
                // Up to where a line of memory begins, and then in whole pieces.
                let head = if first == 0 { to.align_offset(LINE) } else { 0 };
                let len = if head > 0 { head } else { PIECE }.min(n - first).min(PIECE);
                let mut piece = [MaybeUninit::<T>::uninit(); PIECE];
                let room = piece.as_mut_ptr().cast::<T>();
                // SAFETY: a piece of the row, as above, and room for as many; all of it is made.
                // The output's row is this part's own; a level is one that the machine has.
                unsafe {
                    let x = std::slice::from_raw_parts(wide.add(first), len);
                    let mut made = Made::<T, W, PIECE>::new(room, len);
                    self.put(first, x, |x| x.sub(mean).mul(scale), made.room());
                    made.end::<S>();
                    let to = to.add(first);
                    if len == PIECE {
                        debug_assert_eq!(to.align_offset(LINE), 0);
                        for line in (0..PIECE).step_by(LINE / size_of::<T>()) {
                            stream::copy_line::<S>(room.add(line).cast(), to.add(line).cast());
                            if !ahead.is_null() {
                                prefetch_second(ahead.wrapping_add(first + line).cast());
                            }
                        }
                    } else {
                        std::ptr::copy_nonoverlapping(room.cast_const(), to, len);
                    }
                }
                first += len;
            }
        }
        if self.streamed {
            stream::fence();
        }
    }
}

impl<T: Load<W>, W: Float> Rows<'_, T, W> {
    /// Writes a row, normalised and with its weight and bias.
    ///
    /// # Safety
    /// It is read and written; both may be one. The machine has what the level says.
    #[inline(always)]
    unsafe fn row<S: Simd>(&self, from: *const W, to: *mut T, of: impl Fn(W) -> W) {
        let mut first = 0;
        // SAFETY: by the caller's promise; what is put is written.
        unsafe {
            while first + PIECE <= self.n {
                let x = from.add(first).cast::<[W; PIECE]>().read();
                let mut piece = [MaybeUninit::<W>::uninit(); PIECE];
                self.put(first, &x, &of, &mut piece);
                T::store_some::<S, PIECE>(
                    piece.as_ptr().cast::<[W; PIECE]>().read(),
                    to.add(first),
                );
                first += PIECE;
            }
            let rest = self.n - first;
            let mut piece = [MaybeUninit::<W>::uninit(); PIECE];
            self.put(first, std::slice::from_raw_parts(from.add(first), rest), &of, &mut piece);
            over::<T, W, S>(rest, Narrowed { from: piece.as_ptr().cast(), to: to.add(first) });
        }
    }

    /// Puts some elements of a row, from the `first` on, normalised and with their weight and bias.
    #[inline(always)]
    fn put(&self, first: usize, x: &[W], of: impl Fn(W) -> W, to: &mut [MaybeUninit<W>]) {
        match (self.weight, self.bias) {
            (None, None) => {
                for (o, x) in to.iter_mut().zip(x) {
                    o.write(of(*x));
                }
            }
            (Some(weight), None) => {
                for ((o, x), w) in to.iter_mut().zip(x).zip(&weight[first..]) {
                    o.write(of(*x).mul(*w));
                }
            }
            (None, Some(bias)) => {
                for ((o, x), b) in to.iter_mut().zip(x).zip(&bias[first..]) {
                    o.write(of(*x).add(*b));
                }
            }
            (Some(weight), Some(bias)) => {
                for (((o, x), w), b) in
                    to.iter_mut().zip(x).zip(&weight[first..]).zip(&bias[first..])
                {
                    o.write(of(*x).mul(*w).add(*b));
                }
            }
        }
    }
}

/// What is subtracted from a row's elements, and what they are multiplied by then.
#[inline(always)]
pub(super) fn measured<W: Float>(x: &[W], eps: W, centred: bool) -> (W, W) {
    let mean = if centred { mean::<W>(x) } else { W::ZERO };
    (mean, W::ONE.div(mean_of_squares::<W>(x, mean).add(eps).sqrt()))
}

/// Mean of a row, in the order of a sum.
#[inline(always)]
fn mean<W: Float>(x: &[W]) -> W {
    let mut tree = Tree::new();
    for block in x.chunks(BLOCK) {
        tree.push(fold_block::<Sum<W, W, W>>(block), W::add);
    }
    tree.end(W::add).unwrap_or(W::ZERO).over(x.len())
}

/// Mean of `(x - mean)^2`, in the order of a sum.
#[inline(always)]
fn mean_of_squares<W: Float>(x: &[W], mean: W) -> W {
    let mut tree = Tree::new();
    for block in x.chunks(BLOCK) {
        let square = |x: W| {
            let d = x.sub(mean);
            d.mul(d)
        };
        tree.push(fold_block_of::<Sum<W, W, W>>(block, square), W::add);
    }
    tree.end(W::add).unwrap_or(W::ZERO).over(x.len())
}
