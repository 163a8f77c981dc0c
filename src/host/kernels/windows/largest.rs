//! Where the largest elements of windows and of cells are in their planes, and what flows back to
//! these places.
//!
//! Elements and places are met side by side, from the last to the first: what is no less than the
//! largest so far takes its place. So of equals the first remains, and of NaNs the last.

use super::planes::{LEAST, Planes, by_number};
use crate::host::kernels::isa::vectorize;
use crate::host::kernels::load::{Load, by_float};
use crate::host::kernels::nest::{Shared, in_parts};
use crate::host::kernels::reduce::fold::Wide;
use crate::room;
use crate::shape::numel;
use crate::view::{Parallel, View, ViewMut};
use crate::window::offset;
use std::hint::select_unpredictable;

/// A place in a plane, counted row by row. 32 bits, which suffice but for a huge plane, are as wide
/// as most elements, so that both fill as many registers.
pub(super) trait Place: Copy + Ord + Send + Sync + 'static {
    const FIRST: Self;
    const LAST: Self;
    fn new(place: usize) -> Self;
    fn plus(self, other: Self) -> Self;
    fn index(self) -> usize;
}
macro_rules! place {
    ($($t:ident)*) => {$(
        impl Place for $t {
            const FIRST: $t = 0;
            const LAST: $t = $t::MAX;
            #[inline(always)] fn new(place: usize) -> $t { place as $t }
            #[inline(always)] fn plus(self, other: $t) -> $t { self.wrapping_add(other) }
            #[inline(always)] fn index(self) -> usize { self as usize }
        }
    )*};
}
place! { i32 i64 }

/// What a thread finds the places of a line of outputs in.
pub(super) struct Found<W, P> {
    /// The largest elements so far, of each output or each column, and where they are.
    pub most: Vec<W>,
    pub at: Vec<P>,
    /// The places of the outputs.
    pub places: Vec<P>,
}

impl<W: Wide, P: Place> Found<W, P> {
    fn new(lines: &impl Lines) -> Found<W, P> {
        let (_, input, output) = lines.sizes();
        let wide = input[2].max(output[2]);
        Found {
            most: room::filled(wide, W::LEAST),
            at: room::filled(wide, P::FIRST),
            places: room::filled(output[2], P::FIRST),
        }
    }
}

/// Parts of a plane of which each has a largest element: outputs by lines.
pub(super) trait Lines: Sync {
    /// How many dimensions a plane has, and the sizes of the input and of the output.
    fn sizes(&self) -> (usize, [usize; 3], [usize; 3]);

    /// Elements that are met for a line.
    fn work(&self) -> usize;

    /// Finds the places of a line.
    ///
    /// # Safety
    /// The plane has the input's size, with elements these steps apart.
    unsafe fn find<T: Load<W>, W: Wide, P: Place>(
        &self,
        line: usize,
        plane: Shared<T>,
        steps: [isize; 3],
        found: &mut Found<W, P>,
    );
}

/// Meets some elements of a row, `step` apart in memory; the first is at a place, and each is `by`
/// places after the one before.
///
/// # Safety
/// The row has as many elements as there are largest ones.
#[inline(always)]
pub(super) unsafe fn meet<T: Load<W>, W: Wide, P: Place>(
    row: *const T,
    step: isize,
    places: [usize; 2],
    most: &mut [W],
    at: &mut [P],
) {
    // Of steps that it knows the compiler makes vectors, of others a load for each element.
    // SAFETY: by the caller's promise.
    unsafe {
        match step {
            1 => meet_all::<1, T, W, P>(row, step, places, most, at),
            2 => meet_all::<2, T, W, P>(row, step, places, most, at),
            _ => meet_all::<0, T, W, P>(row, step, places, most, at),
        }
    }
}

/// [`meet`] of a `STEP` that the compiler knows, or of any.
#[inline(always)]
unsafe fn meet_all<const STEP: isize, T: Load<W>, W: Wide, P: Place>(
    row: *const T,
    step: isize,
    places: [usize; 2],
    most: &mut [W],
    at: &mut [P],
) {
    // SAFETY: by the caller's promise.
    unsafe {
        match most.len() {
            0..4 => meet_by::<STEP, 1, T, W, P>(row, step, places, most, at),
            4..16 => meet_by::<STEP, 4, T, W, P>(row, step, places, most, at),
            _ => meet_by::<STEP, 16, T, W, P>(row, step, places, most, at),
        }
    }
}

/// [`meet_all`] for at least `N`, so many at a time. The last ones may have been met before, which
/// changes nothing.
#[inline(always)]
unsafe fn meet_by<const STEP: isize, const N: usize, T: Load<W>, W: Wide, P: Place>(
    row: *const T,
    step: isize,
    [first, by]: [usize; 2],
    most: &mut [W],
    at: &mut [P],
) {
    let (step, n) = (if STEP == 0 { step } else { STEP }, most.len());
    for start in (0..n).step_by(N).map(|start| start.min(n - N)) {
        let row = row.wrapping_offset(start as isize * step);
        let place = P::new(first + start * by);
        let most = most[start..].first_chunk_mut::<N>().expect("as many");
        let at = at[start..].first_chunk_mut::<N>().expect("as many");
        // Copies, and choices instead of branches: so the compiler sees lanes.
        let (old, was) = (*most, *at);
        for k in 0..N {
            // SAFETY: by the caller's promise.
            let x = unsafe { *row.offset(k as isize * step) }.load();
            let is_less = x < old[k] || old[k].is_nan();
            most[k] = select_unpredictable(is_less, old[k], x);
            at[k] = select_unpredictable(is_less, was[k], place.plus(P::new(k * by)));
        }
    }
}

/// Calls a kernel with the type of places that suffices.
macro_rules! by_place {
    ($lines:expr, $f:ident::<$T:ident, $W:ident>($($arg:expr),*)) => {
        match i32::try_from(numel(&$lines.sizes().1)) {
            Ok(_) => $f::<$T, $W, i32>($($arg),*),
            Err(_) => $f::<$T, $W, i64>($($arg),*),
        }
    };
}

/// The place of the largest element of each part, as int64.
pub(super) fn positions(lines: &impl Lines, x: View<'_>, out: &ViewMut<'_>, par: &dyn Parallel) {
    fn of<T: Load<W>, W: Wide>(
        lines: &impl Lines,
        x: View<'_>,
        out: &ViewMut<'_>,
        par: &dyn Parallel,
    ) {
        by_place!(lines, within::<T, W>(lines, x, out, par))
    }
    fn within<T: Load<W>, W: Wide, P: Place>(
        lines: &impl Lines,
        x: View<'_>,
        out: &ViewMut<'_>,
        par: &dyn Parallel,
    ) {
        let (spatial, _, [deep, high, wide]) = lines.sizes();
        let (planes, to) = (Planes::<T>::new(&x, spatial), Shared::<i64>::new(out.ptr));
        let (rows, least) = (deep * high, (LEAST / lines.work().max(1)).max(1));
        in_parts(planes.numel() * rows, least, par, &|part| {
            let mut found = Found::<W, P>::new(lines);
            for row in part {
                // SAFETY: a plane of the value.
                unsafe {
                    lines.find(row % rows, planes.plane(row / rows), planes.steps, &mut found);
                }
                let to = to.at((row * wide) as isize);
                let places = found.places.iter().enumerate();
                // SAFETY: a row of the output, which is this part's own.
                places.for_each(|(k, at)| unsafe { to.add(k).write(at.index() as i64) });
            }
        });
    }
    if out.numel() > 0 {
        by_number!(x.dtype, of(lines, x, out, par));
    }
}

/// What flows back to the input: of each output to the place of its largest element.
pub(super) fn back(
    lines: &impl Lines,
    [x, dy]: [View<'_>; 2],
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    fn of<T: Load<W>, W: Wide>(
        lines: &impl Lines,
        x: View<'_>,
        dy: View<'_>,
        out: &ViewMut<'_>,
        par: &dyn Parallel,
    ) {
        by_place!(lines, within::<T, W>(lines, x, dy, out, par))
    }
    fn within<T: Load<W>, W: Wide, P: Place>(
        lines: &impl Lines,
        x: View<'_>,
        dy: View<'_>,
        out: &ViewMut<'_>,
        par: &dyn Parallel,
    ) {
        let (spatial, input, [deep, high, _]) = lines.sizes();
        let (planes, flows) = (Planes::<T>::new(&x, spatial), Planes::<T>::new(&dy, spatial));
        let (rows, size, to) = (deep * high, numel(&input), Shared::<T>::new(out.ptr));
        let work = lines.work().saturating_mul(rows).max(size);
        in_parts(planes.numel(), (LEAST / work.max(1)).max(1), par, &|part| {
            let mut found = Found::<W, P>::new(lines);
            let mut sums = room::filled(size, W::ZERO);
            for i in part {
                let (from, flow) = (planes.plane(i), flows.plane(i));
                sums.fill(W::ZERO);
                for row in 0..rows {
                    // SAFETY: a plane of the value.
                    unsafe { lines.find(row, from, planes.steps, &mut found) };
                    let flow = flow.at(offset([row / high, row % high, 0], flows.steps));
                    for (k, at) in found.places.iter().enumerate() {
                        // SAFETY: an output of this row.
                        let dy = unsafe { *flow.offset(k as isize * flows.steps[2]) }.load();
                        let sum = &mut sums[at.index()];
                        *sum = sum.add(dy);
                    }
                }
                let to = to.at((i * size) as isize);
                let sums = sums.iter().enumerate();
                vectorize!(move || {
                    // SAFETY: the output's plane, which is this part's own.
                    sums.for_each(|(k, &sum)| unsafe { to.add(k).write(T::store(sum)) });
                });
            }
        });
    }
    if out.numel() > 0 {
        by_float!(x.dtype, of(lines, x, dy, out, par));
    }
}
