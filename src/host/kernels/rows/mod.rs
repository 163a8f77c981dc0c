//! Normalisations of rows: softmax and its relatives here, layer and RMS norm in [`norm`].
//!
//! Called by the CPU kernels of those ops. A row is read from memory once and worked on while it is
//! in cache; halves are computed in f32. The ops have checked that types are floats and shapes
//! equal.

mod channels;
mod columns;
mod cross_entropy;
mod norm;
mod norm_back;
mod softmax_back;
#[cfg(test)]
mod tests;

pub(crate) use channels::{channel_stats, channel_sums};
pub(crate) use cross_entropy::{losses, losses_back};
pub(crate) use norm::{layer_norm, rms_norm};
pub(crate) use norm_back::{ALL_FROM, Normed, norm_all, norm_back, norm_sums};
pub(crate) use softmax_back::softmax_back;

use super::isa::{Levelled, at_level};
use super::load::{Load, Narrowed, Row, Widened, by_float, over};
use super::math::{Lane, Real, exp_of_difference};
use super::nest::{Nest, Shared, in_parts};
use super::reduce::fold::{BLOCK, MaxNumber, Sum, Tree, Wide, fold_block};
use super::run::copy_run;
use super::simd::Simd;
use super::stream::{self, LINE, STREAM_FROM, prefetch_second};
use crate::dtype::DType;
use crate::sync::threads::thread_local;
use crate::view::{Parallel, View, ViewMut};
use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::ops::Range;

/// A type that rows are computed in.
pub(super) trait Float: Wide + Load<Self> {
    const DTYPE: DType;
    /// Room for rows of this type that belongs to the thread.
    fn with_scratch<R>(n: usize, f: impl FnOnce(&mut [Self]) -> R) -> R;
    fn of(x: f64) -> Self;
    fn wide(self) -> f64;
    /// `e^x` for x <= 0; what is next to nothing may be 0.
    fn exp_of_difference<S: Simd>(self) -> Self;
    fn log<S: Simd>(self) -> Self;
    fn sqrt(self) -> Self;
    fn div(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
}

macro_rules! float {
    ($($t:ident $exp:expr;)*) => {$(
        impl Float for $t {
            const DTYPE: DType = <$t as crate::dtype::Element>::DTYPE;
            fn with_scratch<R>(n: usize, f: impl FnOnce(&mut [$t]) -> R) -> R {
                thread_local! {
                    static SCRATCH: RefCell<Vec<$t>> = const { RefCell::new(Vec::new()) };
                }
                SCRATCH.with_borrow_mut(|rows| {
                    crate::room::at_least(rows, n, 0.0);
                    f(&mut rows[..n])
                })
            }
            #[inline(always)] fn of(x: f64) -> $t { x as $t }
            #[inline(always)] fn wide(self) -> f64 { self as f64 }
            #[inline(always)] fn exp_of_difference<S: Simd>(self) -> $t { ($exp)(self) }
            #[inline(always)] fn log<S: Simd>(self) -> $t { Lane::<S, $t>::new(self).log().0 }
            #[inline(always)] fn sqrt(self) -> $t { $t::sqrt(self) }
            #[inline(always)] fn div(self, other: $t) -> $t { self / other }
            #[inline(always)] fn sub(self, other: $t) -> $t { self - other }
        }
    )*};
}
float! {
    f32 exp_of_difference::<S>;
    f64 |x| Lane::<S, f64>::new(x).exp().0;
}

/// Elements of a row that are computed before the memory is given something to do again.
const PIECE: usize = 64;

/// Elements below which a further thread does not pay (two such parts of rows of 1024 38.9, 20.0,
/// 36.0 us, of rows of 64 89.8, 49.7, 85.1; `rms_norm` of the same 15.9, 7.8, 20.1 and 49.9, 28.4,
/// 47.9).
const LEAST: usize = if cfg!(all(test, debug_assertions)) { 500 } else { 16 << 10 };

/// What is made of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Form {
    /// `e^x / sum e^x`. A row without a finite largest element gives NaN.
    Plain,
    /// The same, and zeros of a row of -inf alone: a mask hides all of it.
    Safe,
    /// The logarithm.
    Log,
}

impl Form {
    fn is_log(self) -> bool {
        self == Form::Log
    }

    /// What is subtracted before exponentials are taken.
    #[inline(always)]
    fn base<W: Wide>(self, largest: W) -> W {
        if self == Form::Safe { base(largest) } else { largest }
    }

    /// What takes exponentials, or differences, to their end.
    #[inline(always)]
    fn end<S: Simd, W: Float>(self, sum: W) -> W {
        match self {
            Form::Log => sum.log::<S>(),
            Form::Safe if sum == W::ZERO => sum,
            _ => W::ONE.div(sum),
        }
    }
}

/// The largest element, or 0 for that of nothing: -inf would make NaN of all.
#[inline(always)]
fn base<W: Wide>(largest: W) -> W {
    if largest == W::LEAST { W::ZERO } else { largest }
}

/// Softmax in one of its forms, over one dimension.
pub(crate) fn softmax(
    input: View<'_>,
    dim: usize,
    form: Form,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    by_float!(input.dtype, softmax_of(input, dim, form, out, par));
}

fn softmax_of<T: Load<W>, W: Float>(
    x: View<'_>,
    dim: usize,
    form: Form,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    if out.numel() == 0 {
        return;
    }
    let inner = crate::shape::numel(&x.shape[dim + 1..]);
    let n = x.shape[dim];
    // What lies neither in rows nor in columns is brought into order first, in place of the result.
    let good = if inner == 1 {
        x.strides[dim] == 1 || n == 1
    } else {
        in_order(&x.shape[dim + 1..], &x.strides[dim + 1..])
    };
    if good {
        return along::<T, W>(x, dim, inner, form, out, par);
    }
    super::copy::copy(x, out, par);
    let strides = crate::shape::contiguous_strides(x.shape);
    let copied = View { ptr: out.ptr, strides: &strides, ..x };
    along::<T, W>(copied, dim, inner, form, out, par);
}

/// True where these dimensions lie without gaps.
fn in_order(shape: &[usize], strides: &[isize]) -> bool {
    View { ptr: std::ptr::null(), dtype: DType::U8, shape, strides }.is_contiguous()
}

fn along<T: Load<W>, W: Float>(
    x: View<'_>,
    dim: usize,
    inner: usize,
    form: Form,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    let n = x.shape[dim];
    let outer = Nest::new(&x.shape[..dim], [&x.strides[..dim]]).merged();
    let (from, to) = (Shared::<T>::new(x.ptr.cast_mut()), Shared::<T>::new(out.ptr));
    if inner > 1 {
        return columns::softmax::<T, W>(&outer, from, to, [n, inner], x.strides[dim], form, par);
    }
    let streamed = outer.numel() * n * size_of::<T>() >= STREAM_FROM;
    in_parts(outer.numel(), (LEAST / n).max(1), par, &|rows| {
        W::with_scratch(kept::<T, W>(n, streamed), |scratch| {
            let picks = None;
            at_level(Rows { outer: &outer, rows, from, to, n, form, streamed, scratch, picks });
        });
    });
}

/// The scratch of rows of `n`: a row's exponentials stay in the output where they fit it exactly,
/// unless it goes around the cache.
fn kept<T: Load<W>, W>(n: usize, streamed: bool) -> usize {
    if streamed { 2 * n } else { room_of::<T, W>(n) }
}

/// The room that `n` halves take in the type that they are computed in.
fn room_of<T: Load<W>, W>(n: usize) -> usize {
    if T::IS_WIDE { 0 } else { n }
}

/// A row in the type that it is computed in: where it lies, or, of halves, in `room`.
///
/// # Safety
/// It has `n` elements, and so has the room where there has to be one; the machine has what the
/// level says.
#[inline(always)]
unsafe fn loaded<T: Load<W>, W, S: Simd>(from: *const T, n: usize, room: *mut W) -> *const W {
    if T::IS_WIDE {
        return from.cast();
    }
    // SAFETY: by the caller's promise.
    unsafe { over::<T, W, S>(n, Widened { from, to: room }) };
    room
}

/// Up to `N` elements on their way to memory: they are made where they stay, or, of halves, aside.
struct Made<T, W, const N: usize> {
    to: *mut T,
    n: usize,
    aside: [MaybeUninit<W>; N],
}

impl<T: Load<W>, W, const N: usize> Made<T, W, N> {
    /// # Safety
    /// There is room for `n` elements, `N` at most, to which nothing else refers.
    #[inline(always)]
    unsafe fn new(to: *mut T, n: usize) -> Made<T, W, N> {
        Made { to, n, aside: [const { MaybeUninit::uninit() }; N] }
    }

    /// Where they are made.
    #[inline(always)]
    fn room(&mut self) -> &mut [MaybeUninit<W>] {
        if T::IS_WIDE {
            // SAFETY: by the promise of `new`.
            return unsafe { std::slice::from_raw_parts_mut(self.to.cast(), self.n) };
        }
        &mut self.aside[..self.n]
    }

    /// Brings them to memory.
    ///
    /// # Safety
    /// All have been made; the machine has what the level says.
    #[inline(always)]
    unsafe fn end<S: Simd>(&self) {
        if !T::IS_WIDE {
            let from = self.aside.as_ptr().cast();
            // SAFETY: by the caller's promise, and that of `new`.
            unsafe { over::<T, W, S>(self.n, Narrowed { from, to: self.to }) };
        }
    }
}

/// A run of rows whose elements lie side by side.
struct Rows<'a, T, W> {
    outer: &'a Nest<1>,
    rows: Range<usize>,
    from: Shared<T>,
    to: Shared<T>,
    n: usize,
    form: Form,
    /// Written around the cache, a row late.
    streamed: bool,
    scratch: &'a mut [W],
    picks: Option<Picks<'a, W>>,
}

/// What all of the rows are multiplied by, and where to put the product of a row's class, if it has
/// one.
struct Picks<'a, W> {
    scale: W,
    classes: &'a [Option<usize>],
    to: Shared<W>,
}

/// A row of which the exponentials (or the logarithm's differences) are there, and what ends them.
struct Half<T, W> {
    kept: *const W,
    to: *mut T,
    /// What is taken off (of a logarithm), or multiplied by.
    end: W,
    n: usize,
    /// Elements that have gone to memory.
    written: usize,
}

impl<T: Load<W>, W: Float> Levelled for Rows<'_, T, W> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let (n, form, last) = (self.n, self.form, self.rows.end);
        let log = form.is_log();
        let (one, other) = match self.streamed {
            true => self.scratch.split_at_mut(n),
            false => self.scratch.split_at_mut(0),
        };
        let buffers = [one.as_mut_ptr(), other.as_mut_ptr()];
        // While a row is computed that goes around the cache, piece by piece, the row before goes
        // to memory and the row after is asked for: a burst of either would have to wait for
        // itself.
        let mut before: Option<Half<T, W>> = None;
        for (row, [offset]) in self.outer.turns(self.rows) {
            let (from, to) = (self.from.at(offset).cast_const(), self.to.at((row * n) as isize));
            let ahead = match self.streamed && row + 1 < last {
                true => self.from.at(self.outer.at(row + 1)[0]).cast_const(),
                false => std::ptr::null(),
            };
            let kept = match self.streamed {
                true => buffers[row % 2],
                false if T::IS_WIDE => to.cast::<W>(),
                false => buffers[1],
            };
            // SAFETY: a row of the input; a buffer of `n` elements that nothing else uses now, or
            // the row of the output, which has elements of type `W` then and is this part's own.
            let mut half = unsafe { begun::<T, W, S>(from, kept, to, n, form, &mut before, ahead) };
            if let Some(picks) = &self.picks {
                half.end = half.end.mul(picks.scale);
                if let Some(class) = picks.classes[row] {
                    // SAFETY: an element of the row, and the row's place.
                    unsafe { picks.to.at(row as isize).write((*kept.add(class)).mul(half.end)) };
                }
            }
            if self.streamed {
                before = Some(half);
                continue;
            }
            // SAFETY: as above; a buffer is another's memory.
            unsafe {
                if T::IS_WIDE {
                    let row = std::slice::from_raw_parts_mut(kept, n);
                    for x in row {
                        *x = ended(*x, half.end, log);
                    }
                } else {
                    half.plain::<S>(log, 0, n);
                }
            }
        }
        if let Some(mut before) = before {
            // SAFETY: as above.
            unsafe { before.stream::<S>(log, n) };
        }
        if self.streamed {
            stream::fence();
        }
    }
}

/// Computes a row's exponentials and their sum. With each piece as much of the row `before` is
/// written, and of the row `ahead`, if it is not null, asked for.
///
/// # Safety
/// `from` is a row of `n` elements, `kept` has room for as many; they may be one. The row before
/// has as many, which lie elsewhere. The machine has what the level says.
#[inline(always)]
unsafe fn begun<T: Load<W>, W: Float, S: Simd>(
    from: *const T,
    kept: *mut W,
    to: *mut T,
    n: usize,
    form: Form,
    before: &mut Option<Half<T, W>>,
    ahead: *const T,
) -> Half<T, W> {
    // Halves are brought into the type that all is computed in, once.
    let wide = if T::IS_WIDE { from.cast::<W>() } else { kept.cast_const() };
    // A NaN does not show here: it makes the sum NaN, and so the whole row.
    let mut largest = W::LEAST;
    for first in (0..n).step_by(BLOCK) {
        let len = BLOCK.min(n - first);
        // SAFETY: a block of the row, by the caller's promise; there is no reference to it when it
        // is written.
        let block = unsafe {
            let wide = loaded::<T, W, S>(from.add(first), len, kept.add(first));
            std::slice::from_raw_parts(wide, len)
        };
        let next = fold_block::<MaxNumber<W, W, W>>(block);
        largest = if next > largest { next } else { largest };
    }
    let (largest, log) = (form.base(largest), form.is_log());
    let mut tree = Tree::new();
    let mut first = 0;
    while first < n {
        let len = BLOCK.min(n - first);
        // SAFETY: a block of the row, as above.
        let x = unsafe { std::slice::from_raw_parts(wide.add(first), len) };
        let mut block = [MaybeUninit::<W>::uninit(); BLOCK];
        let mut at = 0;
        while at < len {
            let end = (at + PIECE).min(len);
            for i in at..end {
                block[i].write(x[i].sub(largest).exp_of_difference::<S>());
            }
            if let Some(before) = before {
                // SAFETY: the caller's promise.
                unsafe { before.stream::<S>(log, first + end) };
            }
            if !ahead.is_null() {
                let mut line = ahead.wrapping_add(first + at).cast::<u8>();
                while line < ahead.wrapping_add(first + end).cast() {
                    prefetch_second(line);
                    line = line.wrapping_add(LINE);
                }
            }
            at = end;
        }
        // SAFETY: so many have just been written.
        let powers = unsafe { std::slice::from_raw_parts(block.as_ptr().cast::<W>(), len) };
        tree.push(fold_block::<Sum<W, W, W>>(powers), W::add);
        if log {
            for i in 0..len {
                block[i].write(x[i].sub(largest));
            }
        }
        // SAFETY: the caller's promise.
        unsafe { copy_run(kept.add(first), block.as_ptr().cast(), len) };
        first += len;
    }
    let sum = tree.end(W::add).unwrap_or(W::ZERO);
    Half { kept, to, end: form.end::<S, W>(sum), n, written: 0 }
}

impl<T: Load<W>, W: Float> Half<T, W> {
    /// Writes the row around the cache, in whole lines, as far as `end`; where that is the row's
    /// end, all that is left.
    ///
    /// # Safety
    /// The row has so many elements, here and where it goes to. The machine has what the level
    /// says.
    #[inline(always)]
    unsafe fn stream<S: Simd>(&mut self, log: bool, end: usize) {
        let in_line = const { LINE / size_of::<T>() };
        if self.written == 0 {
            // The first piece reaches beyond the first line, or it is the whole row.
            // SAFETY: the caller's promise.
            self.written = unsafe { self.plain::<S>(log, 0, self.to.align_offset(LINE).min(end)) };
        }
        while self.written + in_line <= end {
            // SAFETY: the caller's promise; the line begins where memory's does.
            unsafe {
                let (kept, to) = (self.kept.add(self.written), self.to.add(self.written));
                let mut line = [MaybeUninit::<T>::uninit(); LINE];
                let room = line.as_mut_ptr().cast::<T>();
                over::<T, W, S>(in_line, Ended { kept, to: room, end: self.end, log });
                stream::copy_line::<S>(line.as_ptr().cast(), to.cast());
            }
            self.written += in_line;
        }
        if end == self.n {
            // SAFETY: the caller's promise.
            self.written = unsafe { self.plain::<S>(log, self.written, end) };
        }
    }

    /// Writes some elements as usual. Gives back the end.
    ///
    /// # Safety
    /// As for [`stream`](Half::stream).
    #[inline(always)]
    unsafe fn plain<S: Simd>(&self, log: bool, first: usize, end: usize) -> usize {
        // SAFETY: the caller's promise.
        unsafe {
            let (kept, to) = (self.kept.add(first), self.to.add(first));
            over::<T, W, S>(end - first, Ended { kept, to, end: self.end, log });
        }
        end
    }
}

/// Elements of a row as they end.
struct Ended<T, W> {
    kept: *const W,
    to: *mut T,
    end: W,
    log: bool,
}

impl<T: Load<W>, W: Float> Row for Ended<T, W> {
    #[inline(always)]
    unsafe fn some<S: Simd, const N: usize>(&self, i: usize) {
        // SAFETY: by the caller's promise.
        unsafe {
            let mut all = self.kept.add(i).cast::<[W; N]>().read();
            for x in &mut all {
                *x = ended(*x, self.end, self.log);
            }
            T::store_some::<S, N>(all, self.to.add(i));
        }
    }
}

/// A power, or a logarithm's difference, at its end.
#[inline(always)]
fn ended<W: Float>(x: W, end: W, log: bool) -> W {
    if log { x.sub(end) } else { x.mul(end) }
}

/// `log sum e^x` over one dimension, which the output lacks. Of nothing, or of -inf alone, -inf.
pub(crate) fn logsumexp(input: View<'_>, dim: usize, out: &ViewMut<'_>, par: &dyn Parallel) {
    if out.numel() == 0 {
        return;
    }
    by_float!(input.dtype, columns::logsumexp(input, dim, out, par));
}
