//! Pooling: the largest element, its position, or the mean under a window that moves over lines,
//! planes or volumes (all of them "planes" below).
//!
//! Called by the CPU kernels of those ops, which have checked shapes, types, and that every window
//! meets the input. A plane is worked on by one thread, a row of outputs at a time.

use crate::dtype::DType;
use crate::host::kernels::isa::vectorize;
use crate::host::kernels::load::{Load, by_float};
use crate::host::kernels::nest::{Nest, Shared, in_parts};
use crate::host::kernels::reduce::fold::Wide;
use crate::host::kernels::rows::Float;
use crate::room;
use crate::view::{Parallel, View, ViewMut};
use crate::window::{Window, offset, triple};

/// Elements below which a further thread does not pay (two such parts, the largest of 2 x 2 in
/// planes of 32 x 32: 57.5, 32.4, 35.1 us).
const LEAST: usize = if cfg!(all(test, debug_assertions)) { 200 } else { 16 << 10 };

/// Planes of a value, and the steps within one.
struct Planes<T> {
    nest: Nest<1>,
    at: Shared<T>,
    steps: [isize; 3],
}

impl<T> Planes<T> {
    fn new(view: &View<'_>, window: &Window) -> Planes<T> {
        let lead = view.shape.len() - window.spatial;
        let nest = Nest::new(&view.shape[..lead], [&view.strides[..lead]]).merged();
        let steps = triple(&view.strides[lead..], 0);
        Planes { nest, at: Shared::new(view.ptr.cast_mut()), steps }
    }
}

/// Calls `f(plane, its start)` for each plane, on several threads.
fn each_plane<T>(
    planes: &Planes<T>,
    work: usize,
    par: &dyn Parallel,
    f: &(dyn Fn(usize, Shared<T>) + Sync),
) {
    in_parts(planes.nest.numel(), (LEAST / work.max(1)).max(1), par, &|part| {
        for (i, [offset]) in planes.nest.turns(part) {
            f(i, Shared::new(planes.at.at(offset)));
        }
    });
}

macro_rules! by_number {
    ($dtype:expr, $f:ident($($arg:expr),*)) => {
        match $dtype {
            DType::I32 => $f::<i32, i64>($($arg),*),
            DType::I64 => $f::<i64, i64>($($arg),*),
            DType::U8 => $f::<u8, i64>($($arg),*),
            float => by_float!(float, $f($($arg),*)),
        }
    };
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
            (Planes::<T>::new(&x, window), Shared::<T>::new(out.ptr), window.places());
        each_plane(&planes, places.saturating_mul(window.taps()), par, &|i, from| {
            let (mut largest, wide) = (room::filled(places, W::LEAST), window.output[2]);
            vectorize!(|| {
                window.each_row(|met| {
                    let row = from.at(offset(met.from, planes.steps));
                    let largest = &mut largest[met.line * wide + met.out[2]..][..met.count];
                    let step = window.stride[2] as isize * planes.steps[2];
                    for (i, m) in largest.iter_mut().enumerate() {
                        // SAFETY: the span of outputs meets this row of the plane.
                        *m = unsafe { *row.offset(i as isize * step) }.load().larger(*m);
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

/// Where the largest element under each window is, counted row by row of its plane; of equals the
/// first, of NaNs the last.
pub(crate) fn max_positions(window: &Window, x: View<'_>, out: &ViewMut<'_>, par: &dyn Parallel) {
    fn of<T: Load<W>, W: Wide>(
        window: &Window,
        x: View<'_>,
        out: &ViewMut<'_>,
        par: &dyn Parallel,
    ) {
        let (planes, to, places) =
            (Planes::<T>::new(&x, window), Shared::<i64>::new(out.ptr), window.places());
        each_plane(&planes, places.saturating_mul(window.taps()), par, &|i, from| {
            let (mut largest, wide) = (room::filled(places, (W::LEAST, -1i64)), window.output[2]);
            window.each_row(|met| {
                let row = from.at(offset(met.from, planes.steps));
                let [z, y, x] = met.from;
                let first = ((z * window.input[1] + y) * window.input[2] + x) as i64;
                let step = window.stride[2];
                let largest = &mut largest[met.line * wide + met.out[2]..][..met.count];
                for (i, m) in largest.iter_mut().enumerate() {
                    // SAFETY: the span of outputs meets this row of the plane.
                    let x = unsafe { *row.offset((i * step) as isize * planes.steps[2]) }.load();
                    // The least value there is may be all there is: the first of them counts.
                    if x > m.0 || x.is_nan() || m.1 < 0 {
                        *m = (x, first + (i * step) as i64);
                    }
                }
            });
            let to = to.at((i * places) as isize);
            // SAFETY: the output's plane, which is this part's own.
            largest.iter().enumerate().for_each(|(k, m)| unsafe { to.add(k).write(m.1) });
        });
    }
    if out.numel() > 0 {
        by_number!(x.dtype, of(window, x, out, par));
    }
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
            (Planes::<T>::new(&x, window), Shared::<T>::new(out.ptr), window.places());
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
        let (planes, to) = (Planes::<T>::new(&dy, window), Shared::<T>::new(out.ptr));
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
