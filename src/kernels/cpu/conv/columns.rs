//! Columns: for each output place of a block, the input elements that it meets, under each other; and
//! the way back, which adds them up where they came from.

use super::super::isa::vectorize;
use super::super::load::Load;
use super::super::nest::Shared;
use super::{Geometry, Image, Real};
use std::ops::Range;

/// Calls `f(row of the columns, first place within the block, places, channel, input row, input column)`
/// for each run of places that a tap meets on the input.
#[inline(always)]
fn each_run(
    geo: &Geometry,
    channels: usize,
    places: &Range<usize>,
    mut f: impl FnMut(usize, usize, usize, usize, isize, isize),
) {
    let wide = geo.output[1];
    let rows = places.start / wide..places.end.div_ceil(wide);
    for channel in 0..channels {
        for y in 0..geo.kernel[0] {
            let high = geo.span(0, y);
            for x in 0..geo.kernel[1] {
                let row = (channel * geo.kernel[0] + y) * geo.kernel[1] + x;
                let span = geo.span(1, x);
                for oy in rows.start.max(high.start)..rows.end.min(high.end) {
                    let first = (oy * wide + span.start).max(places.start);
                    let end = (oy * wide + span.end).min(places.end);
                    if first < end {
                        let iy = (oy * geo.stride[0]) as isize + geo.shift(0, y);
                        let ix = ((first - oy * wide) * geo.stride[1]) as isize + geo.shift(1, x);
                        f(row, first - places.start, end - first, channel, iy, ix);
                    }
                }
            }
        }
    }
}

/// Writes the columns of some channels (of image `n`, from `first` on) for a block of places: a row a
/// channel and tap, `places.len()` long. What lies in the padding is zero.
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
    let padded = geo.padding != [0, 0] || (0..2).any(|a| geo.span(a, geo.kernel[a] - 1).end < geo.output[a]);
    vectorize!(|| {
        if padded {
            to.fill(W::ZERO);
        }
        let step = geo.stride[1] as isize * x.steps[3];
        each_run(geo, channels, &places, |row, at, count, channel, iy, ix| {
            let from = x.plane(n, first + channel).at(iy * x.steps[2] + ix * x.steps[3]);
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

/// Adds columns to the planes that they come from: the way back of [`gather`]. The planes lie one after
/// the other from `to` on.
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
    let [high, wide] = geo.input.map(|n| n as isize);
    vectorize!(|| {
        let step = geo.stride[1];
        each_run(geo, channels, &places, |row, at, count, channel, iy, ix| {
            let line = to.at((channel as isize * high + iy) * wide + ix);
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
    wide: usize,
    n: usize,
    channels: Range<usize>,
    places: Range<usize>,
    to: &mut [W],
) {
    let len = places.len();
    let even = image.steps[2] == wide as isize * image.steps[3];
    for (channel, to) in channels.zip(to.chunks_mut(len)) {
        let plane = image.plane(n, channel);
        let mut done = 0;
        while done < len {
            let place = places.start + done;
            let (y, x) = (place / wide, place % wide);
            let count = if even { len - done } else { (wide - x).min(len - done) };
            let from = plane.at(y as isize * image.steps[2] + x as isize * image.steps[3]);
            let step = image.steps[3];
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
