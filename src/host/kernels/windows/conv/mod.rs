//! Convolutions over one, two or three dimensions, and the two products that their gradients need.
//!
//! Called by the CPU kernels of those ops, which have checked shapes and types. [`columns`] lays
//! the elements that each output meets under each other, a block of outputs at a time, so that the
//! work is a matrix product ([`products`]) and scratch memory stays bounded; where a group has few
//! output channels a product is not worth it, and [`direct`] walks rows.
//!
//! **Results and threads.** Where the work is cut depends on the sizes alone, so the result does
//! not depend on the number of threads. Halves are accumulated in float32 and rounded once.

mod columns;
mod direct;
mod products;
#[cfg(test)]
mod tests;

use crate::host::kernels::load::{Load, by_float};
use crate::host::kernels::nest::{Nest, Shared};
use crate::host::kernels::{matmul, rows};
use crate::room;
use crate::view::{Parallel, View, ViewMut};
use crate::window::{Row, Window, offset, triple};
use std::borrow::Cow;
use std::ops::Deref;

/// Sizes of a convolution.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Geometry {
    pub batch: usize,
    pub groups: usize,
    /// Channels of the input and of the output, a group.
    pub channels: [usize; 2],
    pub window: Window,
}

impl Deref for Geometry {
    type Target = Window;
    #[inline(always)]
    fn deref(&self) -> &Window {
        &self.window
    }
}

impl Geometry {
    /// Elements that an output element is made from.
    fn depth(&self) -> usize {
        self.channels[0] * self.taps()
    }

    /// Multiply-adds of the whole.
    fn work(&self) -> usize {
        let each = self.depth().saturating_mul(self.places());
        each.saturating_mul(self.batch * self.groups * self.channels[1])
    }

    /// True where rows are walked instead of multiplying matrices.
    fn is_direct(&self) -> bool {
        self.channels[1] < 4
    }
}

/// A type that convolutions are computed in.
pub(super) trait Real: rows::Float + matmul::Float {}
impl Real for f32 {}
impl Real for f64 {}

/// An operand `[batch, channels, ..]`: where it starts and its steps, those between images and
/// channels first.
#[derive(Clone, Copy)]
struct Image<T> {
    at: Shared<T>,
    planes: [isize; 2],
    steps: [isize; 3],
}

impl<T: Copy> Image<T> {
    fn new(view: &View<'_>) -> Image<T> {
        let s = view.strides;
        Image {
            at: Shared::new(view.ptr.cast_mut()),
            planes: [s[0], s[1]],
            steps: triple(&s[2..], 0),
        }
    }

    /// True where all elements of a plane of this size are one step apart.
    fn lies_even(self, [deep, high, wide]: [usize; 3]) -> bool {
        let line = self.steps[2] * wide as isize;
        (high == 1 || self.steps[1] == line) && (deep == 1 || self.steps[0] == line * high as isize)
    }

    /// Where a plane (a line, a volume) starts.
    #[inline(always)]
    fn plane(self, n: usize, channel: usize) -> Shared<T> {
        Shared::new(self.at.at(n as isize * self.planes[0] + channel as isize * self.planes[1]))
    }
}

/// Multiply-adds below which a further thread does not pay (products, 3 x 3 over 8 channels, 1 Mi
/// of them 141, 79, 93 us; one channel, whose rows are walked, 144 Ki of them 69, 59, 75).
const LEAST: usize = if cfg!(all(test, debug_assertions)) { 4 << 10 } else { 256 << 10 };

/// Bytes of columns that lie in cache while they are multiplied.
const BLOCK_BYTES: usize = 512 << 10;

/// How many places are taken at a time, with columns of so many elements.
fn block<W>(rows: usize, places: usize) -> usize {
    let fit = BLOCK_BYTES / (size_of::<W>() * rows.max(1));
    (fit / 64 * 64).clamp(128, 4096).min(places.max(1))
}

/// Runs `parts` of a convolution, several of them on a thread where each is small.
fn in_parts(geo: &Geometry, parts: usize, par: &dyn Parallel, f: &(dyn Fn(usize) + Sync)) {
    let each = geo.work() / parts.max(1);
    // Where rows are walked a multiply-add takes several times as long as in a product.
    let least = if geo.is_direct() { LEAST / 4 } else { LEAST }.div_ceil(each.max(1));
    crate::host::kernels::nest::in_parts(parts, least, par, &|range| range.for_each(f));
}

/// The elements of a value row by row in the type that is computed in; themselves where they are
/// that.
fn row_major<'a, T: Load<W>, W: Real>(view: &View<'a>) -> Cow<'a, [W]> {
    let n = view.numel();
    if same::<T, W>() && view.is_contiguous() && n > 0 {
        // SAFETY: contiguous, of this type, and readable while the view lives.
        return Cow::Borrowed(unsafe { std::slice::from_raw_parts(view.ptr.cast::<W>(), n) });
    }
    let mut out = room::with_capacity(n);
    let from = Shared::<T>::new(view.ptr.cast_mut());
    for (_, [i]) in Nest::new(view.shape, [view.strides]).merged().turns(0..n) {
        // SAFETY: an index of the view.
        out.push(unsafe { *from.at(i) }.load());
    }
    Cow::Owned(out)
}

/// A number for each channel; zeros where there is no bias.
fn biases<T: Load<W>, W: Real>(bias: Option<View<'_>>, channels: usize) -> Vec<W> {
    bias.map_or_else(|| room::filled(channels, W::ZERO), |b| row_major::<T, W>(&b).into_owned())
}

/// True where elements need no conversion.
fn same<T: 'static, W: 'static>() -> bool {
    std::any::TypeId::of::<T>() == std::any::TypeId::of::<W>()
}

/// Writes a row of results.
///
/// # Safety
/// `to` is valid for writes of as many elements.
#[inline(always)]
unsafe fn store<T: Load<W>, W: Copy>(row: &[W], to: *mut T) {
    // SAFETY: by the caller's promise.
    row.iter().enumerate().for_each(|(i, &x)| unsafe { to.add(i).write(T::store(x)) });
}

/// `out[n, o, p] = bias[o] + sum over c and taps of w[o, c, tap] x[n, c, p under tap]`.
pub(crate) fn forward(
    geo: &Geometry,
    x: View<'_>,
    w: View<'_>,
    bias: Option<View<'_>>,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    if out.numel() > 0 {
        by_float!(x.dtype, by_weights(geo, true, x, w, bias, out, par));
    }
}

/// What flows back to the input from `dy`, a value of the output's shape: the transposed
/// convolution, which may have a bias.
pub(crate) fn to_input(
    geo: &Geometry,
    dy: View<'_>,
    w: View<'_>,
    bias: Option<View<'_>>,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    if out.numel() > 0 {
        by_float!(dy.dtype, by_weights(geo, false, dy, w, bias, out, par));
    }
}

/// Either of them.
fn by_weights<T: Load<W>, W: Real>(
    geo: &Geometry,
    forward: bool,
    x: View<'_>,
    w: View<'_>,
    bias: Option<View<'_>>,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    let weights = row_major::<T, W>(&w);
    let bias = biases::<T, W>(bias, geo.groups * geo.channels[forward as usize]);
    let (x, to) = (Image::<T>::new(&x), Shared::<T>::new(out.ptr));
    match (geo.is_direct(), forward) {
        (true, true) => direct::forward(geo, x, &weights, &bias, to, par),
        (true, false) => direct::to_input(geo, x, &weights, &bias, to, par),
        (false, true) => products::forward(geo, x, &weights, &bias, to, par),
        (false, false) => products::to_input(geo, x, &weights, &bias, to, par),
    }
}

/// What flows back to the weight from `dy`, a value of the output's shape.
pub(crate) fn to_weight(
    geo: &Geometry,
    dy: View<'_>,
    x: View<'_>,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    fn of<T: Load<W>, W: Real>(
        geo: &Geometry,
        dy: View<'_>,
        x: View<'_>,
        out: &ViewMut<'_>,
        par: &dyn Parallel,
    ) {
        let (dy, x, to) = (Image::<T>::new(&dy), Image::<T>::new(&x), Shared::<T>::new(out.ptr));
        match geo.is_direct() {
            true => direct::to_weight(geo, dy, x, to, par),
            false => products::to_weight(geo, dy, x, to, par),
        }
    }
    if out.numel() > 0 {
        by_float!(dy.dtype, of(geo, dy, x, out, par));
    }
}
