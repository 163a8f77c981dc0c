//! Windows over planes as columns, and the sums of columns at their places in the planes.
//!
//! Columns are `[.., taps, windows]`: what a tap meets in a line of outputs lies side by side.

use super::planes::{LEAST, by_number};
use crate::host::kernels::isa::vectorize;
use crate::host::kernels::load::Load;
use crate::host::kernels::nest::{Nest, Shared, in_parts};
use crate::host::kernels::reduce::fold::Wide;
use crate::room;
use crate::view::{Parallel, View, ViewMut};
use crate::window::{Window, offset, triple};

/// A tap counted row by row of the window.
#[inline(always)]
fn number(window: &Window, [z, y, x]: [usize; 3]) -> usize {
    (z * window.kernel[1] + y) * window.kernel[2] + x
}

/// What each tap of each window meets, or 0.
pub(crate) fn unfold(window: &Window, x: View<'_>, out: &ViewMut<'_>, par: &dyn Parallel) {
    fn of<T: Load<W>, W: Wide>(
        window: &Window,
        x: View<'_>,
        out: &ViewMut<'_>,
        par: &dyn Parallel,
    ) {
        let lead = x.shape.len() - window.spatial;
        let planes = Nest::new(&x.shape[..lead], [&x.strides[..lead]]).merged();
        let (steps, by) = (triple(&x.strides[lead..], 0), window.stride[2] as isize);
        let (places, wide) = (window.places(), window.output[2]);
        let all = window.taps().saturating_mul(places);
        let (from, to) = (Shared::<T>::new(x.ptr.cast_mut()), Shared::<T>::new(out.ptr));
        in_parts(planes.numel(), (LEAST / all.max(1)).max(1), par, &|part| {
            for (i, [at]) in planes.turns(part) {
                // SAFETY: the plane's columns, which are this part's own.
                let columns = unsafe {
                    let first = to.at((i * all) as isize);
                    (0..all).for_each(|k| first.add(k).write(T::store(W::ZERO)));
                    std::slice::from_raw_parts_mut(first, all)
                };
                vectorize!(|| window.each_row(|met| {
                    let row = from.at(at + offset(met.from, steps));
                    let first = number(window, met.tap) * places + met.line * wide + met.out[2];
                    let columns = &mut columns[first..][..met.count];
                    // SAFETY: the span of outputs meets this row of the plane.
                    let at = |k: isize| unsafe { *row.offset(k) };
                    let columns = columns.iter_mut().enumerate();
                    match by * steps[2] {
                        1 => columns.for_each(|(k, y)| *y = at(k as isize)),
                        step => columns.for_each(|(k, y)| *y = at(k as isize * step)),
                    }
                }));
            }
        });
    }
    if out.numel() > 0 {
        by_number!(x.dtype, of(window, x, out, par));
    }
}

/// Of each element of a plane the sum of what is in columns for it.
pub(crate) fn fold(window: &Window, x: View<'_>, out: &ViewMut<'_>, par: &dyn Parallel) {
    /// Adds a row of a column, `step` apart, to elements that are `by` apart. Where both are
    /// neighbours, the compiler has to know.
    ///
    /// # Safety
    /// The row has as many elements.
    #[inline(always)]
    unsafe fn add<T: Load<W>, W: Wide>(
        row: *const T,
        step: isize,
        by: usize,
        count: usize,
        sums: &mut [W],
    ) {
        // SAFETY: by the caller's promise.
        let at = |k: isize| unsafe { *row.offset(k) }.load();
        if (step, by) == (1, 1) {
            let sums = sums[..count].iter_mut().enumerate();
            return sums.for_each(|(k, sum)| *sum = sum.add(at(k as isize)));
        }
        for k in 0..count {
            sums[k * by] = sums[k * by].add(at(k as isize * step));
        }
    }
    fn of<T: Load<W>, W: Wide>(
        window: &Window,
        x: View<'_>,
        out: &ViewMut<'_>,
        par: &dyn Parallel,
    ) {
        let lead = x.shape.len() - 2;
        let planes = Nest::new(&x.shape[..lead], [&x.strides[..lead]]).merged();
        let (tap, step) = (x.strides[lead], x.strides[lead + 1]);
        let ([_, high, wide], size) = (window.input, window.room());
        let (from, to) = (Shared::<T>::new(x.ptr.cast_mut()), Shared::<T>::new(out.ptr));
        let work = window.places().saturating_mul(window.taps()).max(size);
        in_parts(planes.numel(), (LEAST / work.max(1)).max(1), par, &|part| {
            let mut sums = room::filled(size, W::ZERO);
            for (i, [at]) in planes.turns(part) {
                sums.fill(W::ZERO);
                vectorize!(|| {
                    window.each_row(|met| {
                        let place = met.line * window.output[2] + met.out[2];
                        let column = number(window, met.tap) as isize * tap;
                        let row = from.at(at + column + place as isize * step);
                        let [z, y, x] = met.from;
                        let sums = &mut sums[(z * high + y) * wide + x..];
                        // SAFETY: outputs of a column's row.
                        unsafe { add(row, step, window.stride[2], met.count, sums) };
                    });
                    let to = to.at((i * size) as isize);
                    let sums = sums.iter().enumerate();
                    // SAFETY: the output's plane, which is this part's own.
                    sums.for_each(|(k, &sum)| unsafe { to.add(k).write(T::store(sum)) });
                });
            }
        });
    }
    if out.numel() > 0 {
        by_number!(x.dtype, of(window, x, out, par));
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::*;
    use super::super::pool::tests::random_window;
    use super::*;

    #[test]
    fn columns_are_what_the_taps_meet_and_their_sums_the_way_back() {
        let mut rng = Rng::new(93);
        for _ in turns(60) {
            let window = random_window(&mut rng);
            let lead = random_shape(&mut rng, 1, 3);
            let size = &window.input[3 - window.spatial..];
            let x = Value::<f32>::random(&mut rng, &[&lead[..], size].concat(), small);
            let shape = [&lead[..], &[window.taps(), window.places()]].concat();
            let par = Threads { threads: 2, seed: rng.word() };
            let got = filled::<f32>(&shape, |out| unfold(&window, x.view(), out, &par));
            let columns = Value::<f32>::random(&mut rng, &shape, |rng| rng.below(9) as f32);
            let sums = filled::<f32>(&x.shape, |out| fold(&window, columns.view(), out, &par));
            let mut want = vec![0.0; sums.len()];
            for (i, index) in indices(&shape).iter().enumerate() {
                let (plane, &[tap, place]) = index.split_at(lead.len()) else { unreachable!() };
                let (tap, place) = (at(tap, window.kernel), at(place, window.output));
                let met = [0, 1, 2].map(|a| window.met(a, place[a], tap[a]));
                let is_met = (0..3).all(|a| met[a] < window.input[a]);
                let here = [plane, &met[3 - window.spatial..]].concat();
                assert_eq!(got[i], if is_met { x.get(&here) } else { 0.0 }, "{window:?}");
                if is_met {
                    let [z, y, x] = met;
                    let element = (z * window.input[1] + y) * window.input[2] + x;
                    want[i / window.taps() / window.places() * window.room() + element] +=
                        columns.get(index);
                }
            }
            assert_eq!(sums, want, "{window:?}");
        }
    }

    /// A number counted row by row as an index.
    fn at(i: usize, [_, high, wide]: [usize; 3]) -> [usize; 3] {
        [i / wide / high, i / wide % high, i % wide]
    }

    at_every_level! { columns_are_what_the_taps_meet_and_their_sums_the_way_back }
}
