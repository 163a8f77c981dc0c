//! Normalisations of rows: softmax and its relatives here, layer and RMS norm in [`norm`].
//!
//! Called by the CPU kernels of those ops. A row is read from memory once and worked on while it is in
//! cache; halves are computed in f32. What the ops have checked: float types, equal shapes.

mod columns;
mod norm;
#[cfg(test)]
mod tests;

pub(crate) use norm::{layer_norm, rms_norm};

use super::super::{Parallel, View, ViewMut};
use super::isa::{Levelled, at_level};
use super::load::Load;
use super::math::{Lane, Real};
use super::nest::{Nest, Shared, in_parts};
use super::reduce::fold::{BLOCK, Max, Sum, Tree, Wide, fold_block, fold_row};
use super::simd::{Simd, level};
use super::stream::{self, Ahead, LINE, STREAM_FROM, prefetch};
use crate::dtype::DType;
use std::any::TypeId;
use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::ops::Range;

/// A type that rows are computed in.
pub(super) trait Float: Wide + Load<Self> {
    /// Room for rows of this type that belongs to the thread.
    fn with_scratch<R>(n: usize, f: impl FnOnce(&mut [Self]) -> R) -> R;
    fn of(x: f64) -> Self;
    fn exp<S: Simd>(self) -> Self;
    fn log<S: Simd>(self) -> Self;
    fn sqrt(self) -> Self;
    fn div(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
}

macro_rules! float {
    ($($t:ident)*) => {$(
        impl Float for $t {
            fn with_scratch<R>(n: usize, f: impl FnOnce(&mut [$t]) -> R) -> R {
                thread_local! {
                    static SCRATCH: RefCell<Vec<$t>> = const { RefCell::new(Vec::new()) };
                }
                SCRATCH.with_borrow_mut(|rows| {
                    rows.resize(rows.len().max(n), 0.0);
                    f(&mut rows[..n])
                })
            }
            #[inline(always)] fn of(x: f64) -> $t { x as $t }
            #[inline(always)] fn exp<S: Simd>(self) -> $t { Lane::<S, $t>::new(self).exp().0 }
            #[inline(always)] fn log<S: Simd>(self) -> $t { Lane::<S, $t>::new(self).log().0 }
            #[inline(always)] fn sqrt(self) -> $t { $t::sqrt(self) }
            #[inline(always)] fn div(self, other: $t) -> $t { self / other }
            #[inline(always)] fn sub(self, other: $t) -> $t { self - other }
        }
    )*};
}
float! { f32 f64 }

/// Elements below which a further thread does not pay (`measure_cut_over`: two such parts of rows of 1024 38.9, 20.0, 36.0 us,
/// of rows of 64 89.8, 49.7, 85.1; `rms_norm` of the same 15.9, 7.8, 20.1 and 49.9, 28.4, 47.9).
const LEAST: usize = if cfg!(all(test, debug_assertions)) { 500 } else { 16 << 10 };

/// `e^x / sum e^x` over one dimension, or its logarithm. A row without a finite largest element gives NaN.
pub(crate) fn softmax(input: View<'_>, dim: usize, log: bool, out: &ViewMut<'_>, par: &dyn Parallel) {
    match input.dtype {
        DType::F32 => softmax_of::<f32, f32>(input, dim, log, out, par),
        DType::F64 => softmax_of::<f64, f64>(input, dim, log, out, par),
        DType::F16 => softmax_of::<half::f16, f32>(input, dim, log, out, par),
        DType::BF16 => softmax_of::<half::bf16, f32>(input, dim, log, out, par),
        other => unreachable!("softmax of {other}"),
    }
}

fn softmax_of<T: Load<W>, W: Float>(x: View<'_>, dim: usize, log: bool, out: &ViewMut<'_>, par: &dyn Parallel) {
    if out.numel() == 0 {
        return;
    }
    let inner: usize = x.shape[dim + 1..].iter().product();
    let n = x.shape[dim];
    // What lies neither in rows nor in columns is brought into order first, in place of the result.
    let good = if inner == 1 {
        x.strides[dim] == 1 || n == 1
    } else {
        in_order(&x.shape[dim + 1..], &x.strides[dim + 1..])
    };
    if good {
        return along::<T, W>(x, dim, inner, log, out, par);
    }
    super::copy::copy(x, out, par);
    let strides = crate::shape::contiguous_strides(x.shape);
    let copied = View { ptr: out.ptr, strides: &strides, ..x };
    along::<T, W>(copied, dim, inner, log, out, par);
}

/// True where these dimensions lie without gaps.
fn in_order(shape: &[usize], strides: &[isize]) -> bool {
    View { ptr: std::ptr::null(), dtype: DType::U8, shape, strides }.is_contiguous()
}

fn along<T: Load<W>, W: Float>(
    x: View<'_>,
    dim: usize,
    inner: usize,
    log: bool,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    let n = x.shape[dim];
    let outer = Nest::new(&x.shape[..dim], [&x.strides[..dim]]).merged();
    let (from, to) = (Shared::<T>::new(x.ptr.cast_mut()), Shared::<T>::new(out.ptr));
    if inner > 1 {
        return columns::softmax::<T, W>(&outer, from, to, [n, inner], x.strides[dim], log, par);
    }
    let streamed = outer.numel() * n * size_of::<T>() >= STREAM_FROM;
    in_parts(outer.numel(), (LEAST / n).max(1), par, &|rows| {
        let all =
            |scratch: &mut [W]| at_level(Rows { outer: &outer, rows, from, to, n, log, streamed, scratch });
        // A row's exponentials stay in the output where they fit it exactly, unless it goes around the cache.
        let own = TypeId::of::<T>() == TypeId::of::<W>();
        W::with_scratch(
            if streamed {
                2 * n
            } else if own {
                0
            } else {
                n
            },
            all,
        );
    });
}

/// A run of rows whose elements lie side by side.
struct Rows<'a, T, W> {
    outer: &'a Nest<1>,
    rows: Range<usize>,
    from: Shared<T>,
    to: Shared<T>,
    n: usize,
    log: bool,
    /// Written around the cache, a row late.
    streamed: bool,
    scratch: &'a mut [W],
}

/// A row of which the exponentials (or the logarithm's differences) are there, and what ends them.
struct Half<T, W> {
    kept: *const W,
    to: *mut T,
    shift: W,
    scale: W,
}

impl<T: Load<W>, W: Float> Levelled for Rows<'_, T, W> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(mut self) {
        if self.streamed { self.streamed::<S>() } else { self.in_cache::<S>() }
    }
}

impl<T: Load<W>, W: Float> Rows<'_, T, W> {
    #[inline(always)]
    fn in_cache<S: Simd>(&mut self) {
        let n = self.n;
        self.outer.each(self.rows.clone(), |row, [offset]| {
            let (from, to) = (self.from.at(offset).cast_const(), self.to.at((row * n) as isize));
            let kept = if self.scratch.is_empty() { to.cast::<W>() } else { self.scratch.as_mut_ptr() };
            // SAFETY: a row of the input, and of the output (which has elements of type `W` where there is no
            // scratch) or of the scratch, which has `n` elements; both are this part's own.
            let half = unsafe { Self::begun::<S>(from, kept, to, n, self.log, |_, _| ()) };
            // SAFETY: as above; the scratch is another's memory.
            unsafe {
                if self.scratch.is_empty() {
                    let row = std::slice::from_raw_parts_mut(kept, n);
                    row.iter_mut().for_each(|x| *x = half.end(self.log, *x));
                } else {
                    let row = std::slice::from_raw_parts_mut(to.cast::<MaybeUninit<T>>(), n);
                    row.iter_mut().zip(&*self.scratch).for_each(|(o, x)| {
                        o.write(T::store(half.end(self.log, *x)));
                    });
                }
            }
        });
    }

    /// While a block of one row is computed, the same block of the row before goes to memory, and that of the row
    /// after is asked for ([4096, 4096] float32, two threads: 10.4 ms before, about 5 ms so).
    #[inline(always)]
    fn streamed<S: Simd>(&mut self) {
        let (n, log) = (self.n, self.log);
        let (one, other) = self.scratch.split_at_mut(n);
        let buffers = [one.as_mut_ptr(), other.as_mut_ptr()];
        let last = self.rows.end;
        let mut before: Option<Half<T, W>> = None;
        self.outer.each(self.rows.clone(), |row, [offset]| {
            let (from, to) = (self.from.at(offset).cast_const(), self.to.at((row * n) as isize));
            let ahead =
                if row + 1 < last { self.from.at(self.outer.at(row + 1)[0]) } else { std::ptr::null_mut() };
            let meanwhile = |first: usize, len: usize| {
                if let Some(before) = &before {
                    // SAFETY: a block of the row before, whose exponentials lie in the other buffer.
                    unsafe { before.stream::<S>(log, first, len) };
                }
                if !ahead.is_null() {
                    let line = ahead.wrapping_add(first).cast::<u8>();
                    (0..len * size_of::<T>()).step_by(LINE).for_each(|at| prefetch(line.wrapping_add(at)));
                }
            };
            // SAFETY: a row of the input, and a buffer of `n` elements that nothing else uses now.
            before = Some(unsafe { Self::begun::<S>(from, buffers[row % 2], to, n, log, meanwhile) });
        });
        if let Some(before) = before {
            for first in (0..n).step_by(BLOCK) {
                // SAFETY: as above.
                unsafe { before.stream::<S>(log, first, BLOCK.min(n - first)) };
            }
        }
        stream::fence();
    }

    /// Computes a row's exponentials and their sum; `meanwhile` is called for each block.
    ///
    /// # Safety
    /// `from` is a row of `n` elements, `kept` has room for as many; they may be one.
    #[inline(always)]
    unsafe fn begun<S: Simd>(
        from: *const T,
        kept: *mut W,
        to: *mut T,
        n: usize,
        log: bool,
        mut meanwhile: impl FnMut(usize, usize),
    ) -> Half<T, W> {
        // SAFETY: the caller's promise; there is no reference to the row when it is written.
        let largest = fold_row::<Max<T, W, T>>(unsafe { std::slice::from_raw_parts(from, n) });
        let mut tree = Tree::new();
        let mut first = 0;
        while first < n {
            let len = BLOCK.min(n - first);
            let mut block = [W::ZERO; BLOCK];
            // SAFETY: a block of the row, as above.
            let x = unsafe { std::slice::from_raw_parts(from.add(first), len) };
            block[..len].iter_mut().zip(x).for_each(|(b, x)| *b = x.load().sub(largest));
            if log {
                let mut powers = [W::ZERO; BLOCK];
                powers[..len].iter_mut().zip(&block).for_each(|(p, b)| *p = b.exp::<S>());
                tree.push(fold_block::<Sum<W, W, W>>(&powers[..len]), W::add);
            } else {
                block[..len].iter_mut().for_each(|b| *b = b.exp::<S>());
                tree.push(fold_block::<Sum<W, W, W>>(&block[..len]), W::add);
            }
            // SAFETY: the caller's promise.
            unsafe { std::ptr::copy_nonoverlapping(block.as_ptr(), kept.add(first), len) };
            meanwhile(first, len);
            first += len;
        }
        let sum = tree.end(W::add).unwrap_or(W::ZERO);
        let (shift, scale) = if log { (sum.log::<S>(), W::ONE) } else { (W::ZERO, W::ONE.div(sum)) };
        Half { kept, to, shift, scale }
    }
}

impl<T: Load<W>, W: Float> Half<T, W> {
    #[inline(always)]
    fn end(&self, log: bool, x: W) -> W {
        if log { x.sub(self.shift) } else { x.mul(self.scale) }
    }

    /// Writes a block of the row around the cache.
    ///
    /// # Safety
    /// The row has so many elements, here and where it goes to.
    #[inline(always)]
    unsafe fn stream<S: Simd>(&self, log: bool, first: usize, len: usize) {
        let mut block = [MaybeUninit::<T>::uninit(); BLOCK];
        // SAFETY: the caller's promise.
        unsafe {
            let kept = std::slice::from_raw_parts(self.kept.add(first), len);
            block[..len].iter_mut().zip(kept).for_each(|(o, x)| {
                o.write(T::store(self.end(log, *x)));
            });
            let (src, dst) = (block.as_ptr().cast::<u8>(), self.to.add(first).cast::<u8>());
            stream::copy(level(), src, dst, len * size_of::<T>(), &mut Ahead::default());
        }
    }
}

/// `log sum e^x` over one dimension, which the output lacks. Of nothing, or of -inf alone, -inf.
pub(crate) fn logsumexp(input: View<'_>, dim: usize, out: &ViewMut<'_>, par: &dyn Parallel) {
    match input.dtype {
        DType::F32 => columns::logsumexp::<f32, f32>(input, dim, out, par),
        DType::F64 => columns::logsumexp::<f64, f64>(input, dim, out, par),
        DType::F16 => columns::logsumexp::<half::f16, f32>(input, dim, out, par),
        DType::BF16 => columns::logsumexp::<half::bf16, f32>(input, dim, out, par),
        other => unreachable!("logsumexp of {other}"),
    }
}
