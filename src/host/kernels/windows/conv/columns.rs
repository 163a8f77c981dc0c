//! Columns: for each output place of a block, the input elements that it meets, under each other;
//! and the way back, which adds them up where they came from.

use super::{Geometry, Image, Real, offset};
use crate::host::kernels::isa::vectorize;
use crate::host::kernels::load::Load;
use crate::host::kernels::nest::Shared;
use std::ops::Range;

/// Calls `f(row of the columns, first place within the block, places, channel, where on the input)`
/// for each run of places that a tap meets on the input.
#[inline(always)]
fn each_run(
    geo: &Geometry,
    channels: usize,
    places: &Range<usize>,
    mut f: impl FnMut(usize, usize, usize, usize, [usize; 3]),
) {
    let [_, high, wide] = geo.output;
    // All rows of the block, and the planes that they are part of.
    let rows = places.start / wide..places.end.div_ceil(wide);
    let planes = rows.start / high..rows.end.div_ceil(high);
    for channel in 0..channels {
        for z in 0..geo.kernel[0] {
            let deep = geo.span(0, z);
            for y in 0..geo.kernel[1] {
                let lines = geo.span(1, y);
                for x in 0..geo.kernel[2] {
                    let row =
                        ((channel * geo.kernel[0] + z) * geo.kernel[1] + y) * geo.kernel[2] + x;
                    let span = geo.span(2, x);
                    for oz in planes.start.max(deep.start)..planes.end.min(deep.end) {
                        let here = rows.start.saturating_sub(oz * high)..rows.end - oz * high;
                        for oy in here.start.max(lines.start)..here.end.min(lines.end) {
                            let line = (oz * high + oy) * wide;
                            let first = (line + span.start).max(places.start);
                            let end = (line + span.end).min(places.end);
                            if first < end {
                                let at = [
                                    geo.met(0, oz, z),
                                    geo.met(1, oy, y),
                                    geo.met(2, first - line, x),
                                ];
                                f(row, first - places.start, end - first, channel, at);
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Writes the columns of some channels (of image `n`, from `first` on) for a block of places: a row
/// a channel and tap, `places.len()` long. What lies in the padding is zero.
pub(super) fn gather<T: Load<W>, W: Real>(
    geo: &Geometry,
    x: Image<T>,
    n: usize,
    first: usize,
    channels: usize,
    places: Range<usize>,
    to: &mut [W],
) {
    let len = places.len();
    let padded = geo.padding != [[0; 2]; 3];
    vectorize!(|| {
        if padded {
            to.fill(W::ZERO);
        }
        let step = geo.stride[2] as isize * x.steps[2];
        each_run(geo, channels, &places, |row, at, count, channel, met| {
            let from = x.plane(n, first + channel).at(offset(met, x.steps));
            let to = &mut to[row * len + at..][..count];
            if step == 1 {
                // SAFETY: the run lies on a row of the input, whose elements lie side by side.
                let line = unsafe { std::slice::from_raw_parts(from, count) };
                to.iter_mut().zip(line).for_each(|(o, x)| *o = x.load());
            } else {
                let each = |(i, o): (usize, &mut W)| {
                    // SAFETY: the run lies on a row of the input.
                    *o = unsafe { *from.offset(i as isize * step) }.load();
                };
                to.iter_mut().enumerate().for_each(each);
            }
        });
    });
}

/// Adds columns to the planes that they come from: the way back of [`gather`]. The planes lie one
/// after the other from `to` on.
///
/// # Safety
/// `to` is valid for so many planes, and this thread's own.
pub(super) unsafe fn scatter<W: Real>(
    geo: &Geometry,
    channels: usize,
    places: Range<usize>,
    from: &[W],
    to: Shared<W>,
) {
    let len = places.len();
    let [deep, high, wide] = geo.input;
    vectorize!(|| {
        let step = geo.stride[2];
        each_run(geo, channels, &places, |row, at, count, channel, [z, y, x]| {
            let line = to.at((((channel * deep + z) * high + y) * wide + x) as isize);
            let from = &from[row * len + at..][..count];
            // SAFETY: the run lies on a row of the plane.
            let line = unsafe { std::slice::from_raw_parts_mut(line, (count - 1) * step + 1) };
            if step == 1 {
                line.iter_mut().zip(from).for_each(|(o, x)| *o = o.add(*x));
            } else {
                line.iter_mut().step_by(step).zip(from).for_each(|(o, x)| *o = o.add(*x));
            }
        });
    });
}

/// Writes a block of places of some channels, row by row: `places.len()` a channel.
pub(super) fn plain<T: Load<W>, W: Real>(
    image: Image<T>,
    size: [usize; 3],
    n: usize,
    channels: Range<usize>,
    places: Range<usize>,
    to: &mut [W],
) {
    let len = places.len();
    let ([_, high, wide], even) = (size, image.lies_even(size));
    for (channel, to) in channels.zip(to.chunks_mut(len)) {
        let plane = image.plane(n, channel);
        let mut done = 0;
        while done < len {
            let place = places.start + done;
            let (y, x) = (place / wide, place % wide);
            let at = [y / high, y % high, x];
            let count = if even { len - done } else { (wide - x).min(len - done) };
            let from = plane.at(offset(at, image.steps));
            let step = image.steps[2];
            vectorize!(|| {
                let to = &mut to[done..done + count];
                if step == 1 {
                    // SAFETY: these elements lie side by side.
                    let line = unsafe { std::slice::from_raw_parts(from, count) };
                    to.iter_mut().zip(line).for_each(|(o, x)| *o = x.load());
                } else {
                    let each = |(i, o): (usize, &mut W)| {
                        // SAFETY: an element of the plane.
                        *o = unsafe { *from.offset(i as isize * step) }.load();
                    };
                    to.iter_mut().enumerate().for_each(each);
                }
            });
            done += count;
        }
    }
}
