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
use super::simd::Simd;
use crate::dtype::DType;
use std::any::TypeId;
use std::cell::RefCell;
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

/// Elements below which a further thread does not pay.
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
    in_parts(outer.numel(), (LEAST / n).max(1), par, &|rows| {
        let with = |scratch: &mut [W]| at_level(Rows { outer: &outer, rows, from, to, n, log, scratch });
        // A row's exponentials stay in the output where they fit it exactly.
        let own = TypeId::of::<T>() == TypeId::of::<W>();
        W::with_scratch(if own { 0 } else { n }, with);
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
    scratch: &'a mut [W],
}

impl<T: Load<W>, W: Float> Levelled for Rows<'_, T, W> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let n = self.n;
        self.outer.each(self.rows, |row, [offset]| {
            let (from, to) = (self.from.at(offset), self.to.at((row * n) as isize));
            // SAFETY: a row of the input; it may be the output's own, so there is no other reference to it
            // when it is written.
            let largest = fold_row::<Max<T, W, T>>(unsafe { std::slice::from_raw_parts(from, n) });
            let keep = if self.scratch.is_empty() { to.cast::<W>() } else { self.scratch.as_mut_ptr() };
            let mut tree = Tree::new();
            let mut first = 0;
            while first < n {
                let len = BLOCK.min(n - first);
                let mut block = [W::ZERO; BLOCK];
                // SAFETY: a block of the row, as above.
                let x = unsafe { std::slice::from_raw_parts(from.add(first), len) };
                block[..len].iter_mut().zip(x).for_each(|(b, x)| *b = x.load().sub(largest));
                if self.log {
                    let mut powers = [W::ZERO; BLOCK];
                    powers[..len].iter_mut().zip(&block).for_each(|(p, b)| *p = b.exp::<S>());
                    tree.push(fold_block::<Sum<W, W, W>>(&powers[..len]), W::add);
                } else {
                    block[..len].iter_mut().for_each(|b| *b = b.exp::<S>());
                    tree.push(fold_block::<Sum<W, W, W>>(&block[..len]), W::add);
                }
                // SAFETY: the output's row has elements of type `W`, or the scratch has `n` of them.
                unsafe { std::ptr::copy_nonoverlapping(block.as_ptr(), keep.add(first), len) };
                first += len;
            }
            let sum = tree.end(W::add).unwrap_or(W::ZERO);
            let (shift, scale) = if self.log { (sum.log::<S>(), W::ONE) } else { (W::ZERO, W::ONE.div(sum)) };
            let end = |x: W| if self.log { x.sub(shift) } else { x.mul(scale) };
            // SAFETY: the output's row, this part's own; the scratch is another's memory.
            unsafe {
                if self.scratch.is_empty() {
                    std::slice::from_raw_parts_mut(keep, n).iter_mut().for_each(|x| *x = end(*x));
                } else {
                    let row = std::slice::from_raw_parts_mut(to.cast::<std::mem::MaybeUninit<T>>(), n);
                    row.iter_mut().zip(&*self.scratch).for_each(|(o, x)| {
                        o.write(T::store(end(*x)));
                    });
                }
            }
        });
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
