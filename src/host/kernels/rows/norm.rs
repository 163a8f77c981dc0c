//! Layer norm (Ba, Kiros and Hinton 2016, arXiv:1607.06450) and RMS norm (Zhang and Sennrich 2019,
//! arXiv:1910.07467) over trailing dimensions.

use super::super::isa::{Levelled, at_level};
use super::super::load::{Load, Narrowed, by_float, over};
use super::super::nest::{Nest, Shared, in_parts};
use super::super::reduce::fold::{BLOCK, Sum, Tree, fold_block, fold_block_of};
use super::super::simd::Simd;
use super::super::stream::{self, LINE, STREAM_FROM, prefetch_second};
use super::{Float, LEAST, PIECE, in_order, loaded, room_of};
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
        W::with_scratch(together(n * size_of::<T>()) * room_of::<T, W>(n), |scratch| {
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
        let n = self.n;
        let together = together(n * size_of::<T>());
        let ahead = self.rows.end.saturating_sub(together);
        let mut turns = self.outer.turns(self.rows.clone());
        let mut rows = [Measured::nothing(); TOGETHER];
        loop {
            let mut count = 0;
            for (row, [offset]) in turns.by_ref().take(together) {
                let room = self.scratch.as_mut_ptr().wrapping_add(count * room_of::<T, W>(n));
                // SAFETY: a row of the input, and room for one more.
                rows[count].x = unsafe { loaded::<T, W, S>(self.from.at(offset), n, room) };
                rows[count].row = row;
                count += 1;
            }
            if count == 0 {
                break;
            }
            // SAFETY: where a row is the output's own, what is measured is not written meanwhile.
            unsafe { measure(&mut rows[..count], n, self.eps, self.centred) };
            for &Measured { row, x, mean, scale } in &rows[..count] {
                let to = self.to.at((row * n) as isize);
                let ahead = match self.streamed && row < ahead {
                    true => self.from.at(self.outer.at(row + together)[0]).cast_const(),
                    false => std::ptr::null(),
                };
                let (weight, bias) = (self.weight, self.bias);
                let normal = Normal { x, mean, scale, weight, bias };
                // SAFETY: a row of the input, and this part's own row of the output; a piece is
                // read before it is written. A level is one that the machine has.
                unsafe { written::<T, W, S>(to, n, self.streamed, ahead, normal) };
            }
        }
        if self.streamed {
            stream::fence();
        }
    }
}

/// A row that is made piece by piece. (As a closure, some were compiled for no level at all.)
pub(super) trait Pieces<W> {
    /// Makes the elements from the `first` on, as many as there is room for.
    fn put(&self, first: usize, to: &mut [MaybeUninit<W>]);
}

/// A row, normalised and with its weight and bias.
struct Normal<'a, W> {
    /// Elements that are read piece by piece: no reference lasts while the row itself is written.
    x: *const W,
    mean: W,
    scale: W,
    weight: Option<&'a [W]>,
    bias: Option<&'a [W]>,
}

impl<W: Float> Pieces<W> for Normal<'_, W> {
    #[inline(always)]
    fn put(&self, first: usize, to: &mut [MaybeUninit<W>]) {
        // Of the room's length, which of a whole piece is a constant.
        let range = first..first + to.len();
        // SAFETY: elements of the row.
        let x = unsafe { std::slice::from_raw_parts(self.x.add(first), to.len()) };
        let weight = self.weight.map(|w| &w[range.clone()]);
        let bias = self.bias.map(|b| &b[range]);
        let of = |x: &W| x.sub(self.mean).mul(self.scale);
        match (weight, bias) {
            (None, None) => {
                for (o, x) in to.iter_mut().zip(x) {
                    o.write(of(x));
                }
            }
            (Some(weight), None) => {
                for ((o, x), w) in to.iter_mut().zip(x).zip(weight) {
                    o.write(of(x).mul(*w));
                }
            }
            (None, Some(bias)) => {
                for ((o, x), b) in to.iter_mut().zip(x).zip(bias) {
                    o.write(of(x).add(*b));
                }
            }
            (Some(weight), Some(bias)) => {
                for (((o, x), w), b) in to.iter_mut().zip(x).zip(weight).zip(bias) {
                    o.write(of(x).mul(*w).add(*b));
                }
            }
        }
    }
}

/// Writes a row of `n` elements piece by piece, around the cache if it is streamed. Where the row
/// `ahead` is named, it is asked for meanwhile.
///
/// # Safety
/// There is room for the row, and all that is asked for is made; the machine has what the level
/// says. After the last row that is streamed comes a [fence](stream::fence).
#[inline(always)]
pub(super) unsafe fn written<T: Load<W>, W: Float, S: Simd>(
    to: *mut T,
    n: usize,
    streamed: bool,
    ahead: *const T,
    row: impl Pieces<W>,
) {
    let mut first = 0;
    // Up to where a line of memory begins, and then in whole pieces.
    let mut next = if streamed { to.align_offset(LINE).min(n) } else { 0 };
    // SAFETY: by the caller's promise.
    unsafe {
        loop {
            while first < next {
                let len = (next - first).min(PIECE);
                let mut piece = [MaybeUninit::<W>::uninit(); PIECE];
                row.put(first, &mut piece[..len]);
                let (from, to) = (piece.as_ptr().cast(), to.add(first));
                over::<T, W, S>(len, Narrowed { from, to });
                first += len;
            }
            if first == n {
                return;
            }
            while first + PIECE <= n {
                let mut piece = [MaybeUninit::<W>::uninit(); PIECE];
                row.put(first, &mut piece);
                let piece = piece.as_ptr().cast::<[W; PIECE]>().read();
                let to = to.add(first);
                if streamed {
                    debug_assert_eq!(to.align_offset(LINE), 0);
                    let mut lines = [MaybeUninit::<T>::uninit(); PIECE];
                    T::store_some::<S, PIECE>(piece, lines.as_mut_ptr().cast());
                    for line in (0..PIECE).step_by(LINE / size_of::<T>()) {
                        let from = lines.as_ptr().add(line).cast();
                        stream::copy_line::<S>(from, to.add(line).cast());
                        if !ahead.is_null() {
                            prefetch_second(ahead.wrapping_add(first + line).cast());
                        }
                    }
                } else {
                    T::store_some::<S, PIECE>(piece, to);
                }
                first += PIECE;
            }
            next = n;
        }
    }
}

/// Rows that are measured one after the other before the first of them is written, at most: the end
/// of a row's sum is a chain of joins, a quotient and a root, and meanwhile the next is added up.
pub(super) const TOGETHER: usize = 4;
/// Bytes of the rows that are measured together. With the loops of then, on two threads of a Zen
/// 4, 4096 rows of 384 float32 took 270 us one by one and 240 in twos, of 1024 bf16 640 and 565;
/// but of 1024 float32 650 and 740.
const NEAR: usize = 4 << 10;

/// How many rows of so many bytes are measured together.
pub(super) fn together(bytes: usize) -> usize {
    (NEAR / bytes).clamp(1, TOGETHER)
}

/// A row in the type that it is computed in, what is subtracted from its elements, and what they
/// are multiplied by then.
#[derive(Clone, Copy)]
pub(super) struct Measured<W> {
    pub row: usize,
    pub x: *const W,
    pub mean: W,
    pub scale: W,
}

impl<W: Float> Measured<W> {
    pub fn nothing() -> Measured<W> {
        Measured { row: 0, x: std::ptr::null(), mean: W::ZERO, scale: W::ZERO }
    }
}

/// Measures rows of `n` elements.
///
/// # Safety
/// They are read.
#[inline(always)]
pub(super) unsafe fn measure<W: Float>(rows: &mut [Measured<W>], n: usize, eps: W, centred: bool) {
    if centred {
        for row in &mut *rows {
            // SAFETY: by the caller's promise.
            row.mean = mean::<W>(unsafe { std::slice::from_raw_parts(row.x, n) });
        }
    }
    for row in rows {
        // SAFETY: the same.
        let squares = mean_of_squares(unsafe { std::slice::from_raw_parts(row.x, n) }, row.mean);
        row.scale = W::ONE.div(squares.add(eps).sqrt());
    }
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
