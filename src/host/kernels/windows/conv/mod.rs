//! Convolutions over one, two or three dimensions, and the two products that their gradients need.
//!
//! Called by the CPU kernels of those ops, which have checked shapes and types. What each place
//! meets has one form in both directions ([`plan`]); the input of a block of places is copied with
//! zeros around it, or read where it lies ([`source`]). Then the work is a product of matrices
//! ([`products`], and [`weights`] for what flows back to them), whose right operand is laid a few
//! places at a time; to a few channels a group that is not worth it, and [`direct`] sums rows up.
//! For 3 x 3 taps and many channels, [`tiles`] of 2 x 2 results need fewer multiplications.
//! Zeros around make NaN of infinite weights: where these flow back, [`careful`] has a plain loop.
//!
//! **Results and threads.** The order of a result's multiply-adds depends on the sizes alone, so a
//! result does not depend on the number of threads. (Where a number is so large that sums of a tile
//! might overflow, all results are made without tiles.) Halves are accumulated in float32 and
//! rounded once.

mod careful;
mod direct;
mod plan;
mod products;
mod registers;
mod source;
#[cfg(test)]
mod tests;
mod tiles;
mod transforms;
mod weights;

use crate::dtype::Scalar;
use crate::host::kernels::copy;
use crate::host::kernels::load::{Load, by_float};
use crate::host::kernels::nest::{Nest, Shared};
use crate::host::kernels::{matmul, rows};
use crate::room;
use crate::view::{Parallel, View, ViewMut};
use crate::window::{Window, triple};
use plan::Phase;
use products::{Job, Side};
use registers::Body;
use std::borrow::Cow;
use std::ops::Deref;
use tiles::{Tiles, Weights};

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

    /// True where the sums of weights are made tap by tap instead of as products.
    fn has_few_weights(&self) -> bool {
        self.channels[0] * self.channels[1] < 4 || self.channels[1] < 3
    }
}

/// A type that convolutions are computed in.
trait Real: rows::Float + matmul::Laid {
    /// Whether convolutions may go from tile to tile.
    const TILED: bool;

    /// Runs a body with registers of the level in use.
    fn at_level<B: Body<Self>>(body: B);
}

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
    for (i, &x) in row.iter().enumerate() {
        // SAFETY: by the caller's promise.
        unsafe { to.add(i).write(T::store(x)) };
    }
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
    let (weights, groups) = (row_major::<T, W>(&w), geo.groups);
    let mut channels = geo.channels;
    if !forward {
        channels.reverse();
    }
    let bias = bias.map_or_else(Vec::new, |bias| row_major::<T, W>(&bias).into_owned());
    let (x, to) = (Image::<T>::new(&x), Shared::<T>::new(out.ptr));
    let plane = if forward { geo.places() } else { geo.room() };
    let job = Job { batch: geo.batch, groups, channels, x, bias: &bias, to, plane };
    let phases = match forward {
        true => vec![Phase::forward(geo, x.steps)],
        false => Phase::backward(geo, x.steps),
    };
    let is_number = |w: &W| w.sub(*w) == W::ZERO;
    if !forward && phases.iter().any(Phase::meets_padding) && !weights.iter().all(is_number) {
        return careful::to_input(geo, x, &weights, &bias, to, par);
    }
    let met: usize = phases.iter().map(|phase| phase.places().iter().product::<usize>()).sum();
    if met < plane {
        // The others meet no tap.
        let each = &mut |i: usize| {
            let bias = T::store(*bias.get(i % (groups * channels[1])).unwrap_or(&W::ZERO));
            // SAFETY: planes of the result.
            (0..plane).for_each(|at| unsafe { to.at((i * plane + at) as isize).write(bias) });
        };
        (0..geo.batch * groups * channels[1]).for_each(each);
    }
    if let [phase] = &phases[..]
        && W::TILED
        && let Some(tiles) = Tiles::of(phase, geo.batch, channels)
    {
        let (row, channel) = (geo.depth(), geo.taps());
        let [of_result, of_sum] = if forward { [row, channel] } else { [channel, row] };
        let weights = Weights { all: &weights, steps: [geo.channels[1] * row, of_result, of_sum] };
        if job.run_tiled(&tiles, &weights, geo.work(), par) {
            return;
        }
    }
    // A phase is not worth a product, but many are.
    let few = channels[1] <= direct::FEW && phases.len() <= 2 * direct::FEW;
    let run = |sides: &[Side<'_, W>]| match few {
        true => job.run_direct(sides, geo.work(), par),
        false => job.run(sides, geo.work(), par),
    };
    if forward {
        return run(&[Side { phases: &phases, weights: &weights }]);
    }
    let depth = |phase: &Phase| channels[0] * phase.taps().len();
    let all = phases.iter().map(|phase| groups * channels[1] * depth(phase)).sum();
    let sets = match few {
        true => phases.into_iter().map(|phase| vec![phase]).collect(),
        false => Phase::sets(phases),
    };
    W::turned(|room| {
        room::at_least(room, all, W::ZERO);
        products::turned(geo, &sets, &weights, &mut room[..all], par);
        let mut rest = &room[..all];
        let mut sides = Vec::new();
        for phases in &sets {
            let own = phases.len() * groups * channels[1] * depth(&phases[0]);
            let (weights, others) = rest.split_at(own);
            rest = others;
            sides.push(Side { phases, weights });
        }
        run(&sides);
    });
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
        match geo.has_few_weights() {
            true => direct::to_weight(geo, dy, x, to, par),
            false => weights::to_weight(geo, dy, x, to, par),
        }
    }
    // Nothing flows back from no images, whose planes may have any size.
    if dy.numel() == 0 {
        copy::fill(Scalar::Float(0.0), out, par);
    } else if out.numel() > 0 {
        by_float!(dy.dtype, of(geo, dy, x, out, par));
    }
}
