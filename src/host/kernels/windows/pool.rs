//! Pooling: the largest element, its position, or the mean under a window that moves over lines,
//! planes or volumes (all of them "planes" below), and the ways back.
//!
//! Called by the CPU kernels of those ops, which have checked shapes, types, and that every window
//! meets the input. A plane is worked on by one thread, a row of outputs at a time.

use super::largest::{self, Found, Lines, Place, meet};
use super::planes::{LEAST, Planes, by_number};
use crate::host::kernels::isa::vectorize;
use crate::host::kernels::load::{Load, by_float};
use crate::host::kernels::nest::{Shared, in_parts};
use crate::host::kernels::reduce::fold::Wide;
use crate::host::kernels::rows::Float;
use crate::room;
use crate::view::{Parallel, View, ViewMut};
use crate::window::{Window, offset};

/// Calls `f(plane, its start)` for each plane, on several threads.
fn each_plane<T>(
    planes: &Planes<T>,
    work: usize,
    par: &dyn Parallel,
    f: &(dyn Fn(usize, Shared<T>) + Sync),
) {
    in_parts(planes.numel(), (LEAST / work.max(1)).max(1), par, &|part| {
        part.for_each(|i| f(i, planes.plane(i)));
    });
}

/// Meets some elements of a row, `step` apart in memory: a `STEP` that the compiler knows, or any.
///
/// # Safety
/// The row has as many elements as there are largest ones.
#[inline(always)]
unsafe fn meet_alone<const STEP: isize, T: Load<W>, W: Wide>(
    row: *const T,
    step: isize,
    largest: &mut [W],
) {
    let step = if STEP == 0 { step } else { STEP };
    for (i, m) in largest.iter_mut().enumerate() {
        // SAFETY: by the caller's promise.
        *m = unsafe { *row.offset(i as isize * step) }.load().larger(*m);
    }
}

/// The largest element under each window; NaN if one is NaN.
pub(crate) fn max(window: &Window, x: View<'_>, out: &ViewMut<'_>, par: &dyn Parallel) {
    fn of<T: Load<W>, W: Wide>(
        window: &Window,
        x: View<'_>,
        out: &ViewMut<'_>,
        par: &dyn Parallel,
    ) {
        let (planes, to, places) =
            (Planes::<T>::new(&x, window.spatial), Shared::<T>::new(out.ptr), window.places());
        each_plane(&planes, places.saturating_mul(window.taps()), par, &|i, from| {
            let (mut largest, wide) = (room::filled(places, W::LEAST), window.output[2]);
            vectorize!(|| {
                window.each_row(|met| {
                    let row = from.at(offset(met.from, planes.steps));
                    let largest = &mut largest[met.line * wide + met.out[2]..][..met.count];
                    let step = window.stride[2] as isize * planes.steps[2];
                    // SAFETY: the span of outputs meets this row of the plane.
                    unsafe {
                        match step {
                            1 => meet_alone::<1, T, W>(row, step, largest),
                            2 => meet_alone::<2, T, W>(row, step, largest),
                            _ => meet_alone::<0, T, W>(row, step, largest),
                        }
                    }
                });
                let to = to.at((i * places) as isize);
                // SAFETY: the output's plane, which is this part's own.
                largest
                    .iter()
                    .enumerate()
                    .for_each(|(k, &m)| unsafe { to.add(k).write(T::store(m)) });
            });
        });
    }
    if out.numel() > 0 {
        by_number!(x.dtype, of(window, x, out, par));
    }
}

impl Lines for Window {
    fn sizes(&self) -> (usize, [usize; 3], [usize; 3]) {
        (self.spatial, self.input, self.output)
    }

    fn work(&self) -> usize {
        self.taps().saturating_mul(self.output[2])
    }

    unsafe fn find<T: Load<W>, W: Wide, P: Place>(
        &self,
        line: usize,
        plane: Shared<T>,
        steps: [isize; 3],
        found: &mut Found<W, P>,
    ) {
        let (most, places) = (&mut found.most[..self.output[2]], &mut found.places[..]);
        let (depth, height) = (line / self.output[1], line % self.output[1]);
        let by = self.stride[2];
        vectorize!(|| {
            most.fill(W::LEAST);
            for z in self.on(0, depth).rev().map(|tap| self.met(0, depth, tap)) {
                for y in self.on(1, height).rev().map(|tap| self.met(1, height, tap)) {
                    for tap in self.near(2).rev() {
                        let span = self.span(2, tap);
                        if span.is_empty() {
                            continue;
                        }
                        let x = self.met(2, span.start, tap);
                        let first = (z * self.input[1] + y) * self.input[2] + x;
                        let row = plane.at(offset([z, y, x], steps));
                        let (most, places) = (&mut most[span.clone()], &mut places[span]);
                        // SAFETY: the span of outputs meets this row of the plane.
                        unsafe { meet(row, by as isize * steps[2], [first, by], most, places) };
                    }
                }
            }
        });
    }
}

/// Where the largest element under each window is, counted row by row of its plane; of equals the
/// first, of NaNs the last.
pub(crate) fn max_positions(window: &Window, x: View<'_>, out: &ViewMut<'_>, par: &dyn Parallel) {
    largest::positions(window, x, out, par);
}

/// The way back of [`max`]: each element of `dy` at the position of its window's largest.
pub(crate) fn max_back(
    window: &Window,
    operands: [View<'_>; 2],
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    largest::back(window, operands, out, par);
}

/// By what a sum under a window is divided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Divisor {
    /// The elements of the window that lie on the input.
    Met,
    /// Those on the padding too.
    Padded,
    /// A number.
    Fixed(usize),
}

impl Divisor {
    fn of(self, window: &Window, place: usize) -> f64 {
        let [_, high, wide] = window.output;
        let place = [place / wide / high, place / wide % high, place % wide];
        let side = |a: usize| {
            let start = (place[a] * window.stride[a]) as isize - window.padding[a][0] as isize;
            // Taps that lie before a coordinate.
            let taps = |end: usize| {
                let room = (end as isize - start).max(0) as usize;
                room.div_ceil(window.dilation[a]).min(window.kernel[a])
            };
            match self {
                Divisor::Padded => taps(window.input[a] + window.padding[a][1]),
                _ => taps(window.input[a]) - taps(0),
            }
        };
        match self {
            Divisor::Fixed(n) => n as f64,
            // Numbers that are as large as their padding may not have a product in 64 bits.
            _ => (0..3).map(|a| side(a) as f64).product(),
        }
    }

    /// The divisor of each place of a plane.
    fn all<W: Float>(self, window: &Window) -> Vec<W> {
        let mut all = room::with_capacity(window.places());
        all.extend((0..window.places()).map(|i| W::of(self.of(window, i))));
        all
    }
}

/// The mean under each window.
pub(crate) fn mean(
    window: &Window,
    divisor: Divisor,
    x: View<'_>,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    fn of<T: Load<W>, W: Float>(
        window: &Window,
        divisor: Divisor,
        x: View<'_>,
        out: &ViewMut<'_>,
        par: &dyn Parallel,
    ) {
        let (planes, to, places) =
            (Planes::<T>::new(&x, window.spatial), Shared::<T>::new(out.ptr), window.places());
        let divisors = divisor.all::<W>(window);
        each_plane(&planes, places.saturating_mul(window.taps()), par, &|i, from| {
            let (mut sums, wide) = (room::filled(places, W::ZERO), window.output[2]);
            vectorize!(|| {
                window.each_row(|met| {
                    let row = from.at(offset(met.from, planes.steps));
                    let sums = &mut sums[met.line * wide + met.out[2]..][..met.count];
                    let step = window.stride[2] as isize * planes.steps[2];
                    for (i, sum) in sums.iter_mut().enumerate() {
                        // SAFETY: the span of outputs meets this row of the plane.
                        *sum = sum.add(unsafe { *row.offset(i as isize * step) }.load());
                    }
                });
                let to = to.at((i * places) as isize);
                for (k, (sum, by)) in sums.iter().zip(&divisors).enumerate() {
                    // SAFETY: the output's plane, which is this part's own.
                    unsafe { to.add(k).write(T::store(sum.div(*by))) };
                }
            });
        });
    }
    if out.numel() > 0 {
        by_float!(x.dtype, of(window, divisor, x, out, par));
    }
}

/// The way back of [`mean`]: each element of `dy` spread over its window.
pub(crate) fn spread(
    window: &Window,
    divisor: Divisor,
    dy: View<'_>,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    fn of<T: Load<W>, W: Float>(
        window: &Window,
        divisor: Divisor,
        dy: View<'_>,
        out: &ViewMut<'_>,
        par: &dyn Parallel,
    ) {
        let (planes, to) = (Planes::<T>::new(&dy, window.spatial), Shared::<T>::new(out.ptr));
        let ([_, high, wide], size) = (window.input, window.room());
        let divisors = divisor.all::<W>(window);
        each_plane(&planes, window.places().saturating_mul(window.taps()), par, &|i, from| {
            let mut sums = room::filled(size, W::ZERO);
            vectorize!(|| {
                window.each_row(|met| {
                    let row = from.at(offset(met.out, planes.steps));
                    let by = &divisors[met.line * window.output[2] + met.out[2]..][..met.count];
                    let [z, y, x] = met.from;
                    let sums = &mut sums[(z * high + y) * wide + x..];
                    for (i, by) in by.iter().enumerate() {
                        // SAFETY: the outputs of the span are the value's.
                        let y = unsafe { *row.offset(i as isize * planes.steps[2]) }.load();
                        let sum = &mut sums[i * window.stride[2]];
                        *sum = sum.add(y.div(*by));
                    }
                });
                let to = to.at((i * size) as isize);
                // SAFETY: the output's plane, which is this part's own.
                sums.iter().enumerate().for_each(|(k, &s)| unsafe { to.add(k).write(T::store(s)) });
            });
        });
    }
    if out.numel() > 0 {
        by_float!(dy.dtype, of(window, divisor, dy, out, par));
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::super::testing::*;
    use super::*;
    use crate::window::{places, triple};

    pub fn random_window(rng: &mut Rng) -> Window {
        let spatial = 1 + rng.below(3);
        let mut window = Window {
            spatial,
            input: [1; 3],
            kernel: [1; 3],
            output: [1; 3],
            stride: [1; 3],
            padding: [[0; 2]; 3],
            dilation: [1; 3],
        };
        for a in 3 - spatial..3 {
            let (dilation, kernel, stride) = (1 + rng.below(2), 1 + rng.below(4), 1 + rng.below(3));
            let reach = dilation * (kernel - 1) + 1;
            let input = reach + rng.below([0, 150, 30, 7][spatial]);
            let padding = [rng.below(reach), rng.below(reach)];
            let output = places(input, kernel, stride, padding, dilation, rng.below(2) == 0);
            (window.input[a], window.output[a]) = (input, output.unwrap());
            (window.kernel[a], window.stride[a]) = (kernel, stride);
            (window.padding[a], window.dilation[a]) = (padding, dilation);
        }
        window
    }

    /// The largest element under a window and its place, by a plain loop.
    fn plain(window: &Window, x: &Value<f32>, plane: &[usize], output: [usize; 3]) -> (f32, i64) {
        let mut most = (f32::NEG_INFINITY, -1);
        for tap in indices(&window.kernel) {
            let at = [0, 1, 2].map(|a| window.met(a, output[a], tap[a]));
            if (0..3).any(|a| at[a] >= window.input[a]) {
                continue;
            }
            let x = x.get(&[plane, &at[3 - window.spatial..]].concat());
            if x > most.0 || x.is_nan() || most.1 < 0 {
                most = (x, ((at[0] * window.input[1] + at[1]) * window.input[2] + at[2]) as i64);
            }
        }
        most
    }

    #[test]
    fn windows_have_their_largest_element_its_first_position_and_what_flows_back_to_it() {
        let mut rng = Rng::new(92);
        for _ in turns(90) {
            let window = random_window(&mut rng);
            let lead = random_shape(&mut rng, 1, 3);
            let [size, to] = [&window.input, &window.output].map(|s| &s[3 - window.spatial..]);
            let draw = |rng: &mut Rng| match rng.below(40) {
                0 => f32::NAN,
                1..4 => f32::NEG_INFINITY,
                _ => rng.below(9) as f32,
            };
            let x = Value::<f32>::random(&mut rng, &[&lead[..], size].concat(), draw);
            let shape = [&lead[..], to].concat();
            let dy = Value::<f32>::random(&mut rng, &shape, small);
            let par = Threads { threads: 2, seed: rng.word() };
            let got = filled::<f32>(&shape, |out| max(&window, x.view(), out, &par));
            let at = filled::<i64>(&shape, |out| max_positions(&window, x.view(), out, &par));
            let operands = [x.view(), dy.view()];
            let dx = filled::<f32>(&x.shape, |out| max_back(&window, operands, out, &par));
            let mut sums = vec![0.0; dx.len()];
            for (i, index) in indices(&shape).iter().enumerate() {
                let (plane, output) = index.split_at(lead.len());
                let (most, first) = plain(&window, &x, plane, triple(output, 0));
                assert!(got[i] == most || got[i].is_nan() && most.is_nan(), "{window:?} {index:?}");
                assert_eq!(at[i], first, "{window:?} {index:?}");
                sums[i / window.places() * window.room() + first as usize] += dy.get(index);
            }
            assert_eq!(dx, sums, "{window:?}");
        }
    }

    at_every_level! {
        windows_have_their_largest_element_its_first_position_and_what_flows_back_to_it
    }
}
