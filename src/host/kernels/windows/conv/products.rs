//! Convolutions as matrix products over blocks of columns.

use super::{Geometry, Image, Real, block, columns, in_parts, same, store};
use crate::host::kernels::load::Load;
use crate::host::kernels::matmul::{Matrix, gemm_piece};
use crate::host::kernels::nest::{Shared, slice_of};
use crate::view::Parallel;
use std::ops::Range;

/// Rows of columns that a part of a gradient takes: a multiple of a channel's taps.
const ROWS: usize = 256;
/// Parts that there should be, so that several threads have work.
const PARTS: usize = 8;

fn matrix<T>(ptr: *const T, rows: usize, cols: usize) -> Matrix<T> {
    Matrix { at: Shared::new(ptr.cast_mut()), rows: rows as isize, cols: cols as isize }
}

/// Block `i` of `0..n`.
fn piece(n: usize, size: usize, i: usize) -> Range<usize> {
    i * size..n.min((i + 1) * size)
}

pub(super) fn forward<T: Load<W>, W: Real>(
    geo: &Geometry,
    x: Image<T>,
    weights: &[W],
    bias: &[W],
    to: Shared<T>,
    par: &dyn Parallel,
) {
    let (depth, places, own) = (geo.depth(), geo.places(), same::<T, W>());
    let size = block::<W>(depth, places);
    let blocks = places.div_ceil(size);
    let units = geo.batch * geo.groups * blocks;
    // Few large blocks: their output channels are cut too, each with columns of its own.
    let cuts = (PARTS / units.max(1)).clamp(1, (geo.channels[1] / 64).max(1));
    // One tap and no padding: the input is its own columns.
    let plain = own
        && geo.taps() == 1
        && geo.stride == [1; 3]
        && geo.padding == [[0; 2]; 3]
        && x.steps[2] == 1
        && x.lies_even(geo.input);
    in_parts(geo, units * cuts, par, &|part| {
        let (unit, cut) = (part / cuts, part % cuts);
        let (n, g) = (unit / blocks / geo.groups, unit / blocks % geo.groups);
        let places_here = piece(places, size, unit % blocks);
        let channels = slice_of(geo.channels[1], cuts, cut);
        let channels = g * geo.channels[1] + channels.start..g * geo.channels[1] + channels.end;
        let len = places_here.len();
        let room = if plain { 0 } else { depth * len };
        W::with_scratch(room + if own { 0 } else { channels.len() * len }, |scratch| {
            let (cols, acc) = scratch.split_at_mut(room);
            let first = g * geo.channels[0];
            let cols = if plain {
                let from = x.plane(n, first).at(places_here.start as isize).cast::<W>();
                Matrix { at: Shared::new(from), rows: x.planes[1], cols: 1 }
            } else {
                columns::gather(geo, x, n, first, geo.channels[0], places_here.clone(), cols);
                matrix(cols.as_ptr(), len, 1)
            };
            let start =
                (n * geo.groups * geo.channels[1] + channels.start) * places + places_here.start;
            let target = if own {
                matrix(to.at(start as isize).cast::<W>().cast_const(), places, 1)
            } else {
                matrix(acc.as_ptr(), len, 1)
            };
            let sizes = [channels.len(), len, depth];
            // SAFETY: the block of the output is this part's own, and so is the scratch; weights
            // and columns have the sizes that are named.
            unsafe {
                for (r, &b) in bias[channels.clone()].iter().enumerate() {
                    let row = target.from(r, 0);
                    (0..len).for_each(|i| row.add(i).write(b));
                }
                let a = matrix(weights.as_ptr().add(channels.start * depth), depth, 1);
                gemm_piece(target, a, cols, sizes, true);
                if !own {
                    for (r, line) in acc.chunks(len).enumerate() {
                        store(line, to.at((start + r * places) as isize));
                    }
                }
            }
        });
    });
}

/// Channels that a part of a gradient takes, and how many parts that makes a group.
fn chunks(geo: &Geometry) -> (usize, usize) {
    let size = (ROWS / geo.taps()).clamp(1, geo.channels[0].max(1));
    (size, geo.channels[0].div_ceil(size))
}

pub(super) fn to_input<T: Load<W>, W: Real>(
    geo: &Geometry,
    dy: Image<T>,
    weights: &[W],
    bias: &[W],
    to: Shared<T>,
    par: &dyn Parallel,
) {
    let (depth, places, own) = (geo.depth(), geo.places(), same::<T, W>());
    let (chunk, chunks) = chunks(geo);
    let plane = geo.room();
    let size = block::<W>(chunk * geo.taps(), places);
    let outs = geo.channels[1];
    in_parts(geo, geo.batch * geo.groups * chunks, par, &|part| {
        let (n, g) = (part / chunks / geo.groups, part / chunks % geo.groups);
        let channels = piece(geo.channels[0], chunk, part % chunks);
        let rows = channels.len() * geo.taps();
        let all = if own { 0 } else { channels.len() * plane };
        W::with_scratch((rows + outs) * size + all, |scratch| {
            let (cols, rest) = scratch.split_at_mut(rows * size);
            let (upstream, acc) = rest.split_at_mut(outs * size);
            let start = ((n * geo.groups + g) * geo.channels[0] + channels.start) * plane;
            let target = match own {
                true => Shared::<W>::new(to.at(start as isize)),
                false => Shared::new(acc.as_mut_ptr()),
            };
            for (c, channel) in channels.clone().enumerate() {
                let b = bias[g * geo.channels[0] + channel];
                // SAFETY: these planes are this part's own.
                (c * plane..(c + 1) * plane)
                    .for_each(|i| unsafe { target.at(i as isize).write(b) });
            }
            for i in 0..places.div_ceil(size) {
                let here = piece(places, size, i);
                let len = here.len();
                let from = g * outs..(g + 1) * outs;
                columns::plain(dy, geo.output, n, from, here.clone(), &mut upstream[..outs * len]);
                // SAFETY: all three have the sizes that are named; the planes are this part's own.
                unsafe {
                    // The weights of these channels, seen from the side: a row an input element.
                    let at = weights.as_ptr().add(g * outs * depth + channels.start * geo.taps());
                    let a = matrix(at, 1, depth);
                    let target_cols = matrix(cols.as_ptr(), len, 1);
                    gemm_piece(
                        target_cols,
                        a,
                        matrix(upstream.as_ptr(), len, 1),
                        [rows, len, outs],
                        false,
                    );
                    columns::scatter(geo, channels.len(), here, &cols[..rows * len], target);
                }
            }
            if !own {
                // SAFETY: as above.
                unsafe { store(acc, to.at(start as isize)) };
            }
        });
    });
}

pub(super) fn to_weight<T: Load<W>, W: Real>(
    geo: &Geometry,
    dy: Image<T>,
    x: Image<T>,
    to: Shared<T>,
    par: &dyn Parallel,
) {
    let (depth, places, outs) = (geo.depth(), geo.places(), geo.channels[1]);
    let (chunk, chunks) = chunks(geo);
    let units = geo.groups * chunks;
    let size = block::<W>(chunk * geo.taps(), places);
    // Few channels: images are summed in several lots, and the lots at the end, in order.
    let all = geo.groups * outs * depth;
    let room = ((16 << 20) / size_of::<W>() / all).max(1);
    let lots = (PARTS / units).clamp(1, geo.batch.clamp(1, room));
    let own = same::<T, W>() && lots == 1;
    let mut sums = crate::room::filled(if own { 0 } else { lots * all }, W::ZERO);
    let target = if own { Shared::<W>::new(to.at(0)) } else { Shared::new(sums.as_mut_ptr()) };
    in_parts(geo, units * lots, par, &|part| {
        let (lot, unit) = (part / units, part % units);
        let (g, channels) = (unit / chunks, piece(geo.channels[0], chunk, unit % chunks));
        let rows = channels.len() * geo.taps();
        W::with_scratch((rows + outs) * size, |scratch| {
            let (cols, upstream) = scratch.split_at_mut(rows * size);
            let first = lot * all + g * outs * depth + channels.start * geo.taps();
            let sum = matrix(target.at(first as isize).cast_const(), depth, 1);
            let mut add = false;
            for n in slice_of(geo.batch, lots, lot) {
                for i in 0..places.div_ceil(size) {
                    let here = piece(places, size, i);
                    let len = here.len();
                    let from = g * outs..(g + 1) * outs;
                    columns::plain(
                        dy,
                        geo.output,
                        n,
                        from,
                        here.clone(),
                        &mut upstream[..outs * len],
                    );
                    let channel = g * geo.channels[0] + channels.start;
                    columns::gather(
                        geo,
                        x,
                        n,
                        channel,
                        channels.len(),
                        here,
                        &mut cols[..rows * len],
                    );
                    let (a, b) = (matrix(upstream.as_ptr(), len, 1), matrix(cols.as_ptr(), 1, len));
                    // SAFETY: all three have the sizes that are named; these columns of the weight,
                    // in this lot, are this part's own.
                    unsafe { gemm_piece(sum, a, b, [outs, rows, len], add) };
                    add = true;
                }
            }
            if !add {
                for o in 0..outs {
                    // SAFETY: as above.
                    (0..rows).for_each(|r| unsafe { sum.from(o, r).write(W::ZERO) });
                }
            }
        });
    });
    if !own {
        for i in 0..all {
            let sum = (1..lots).fold(sums[i], |sum, lot| sum.add(sums[lot * all + i]));
            // SAFETY: an element of the output; the parts are done.
            unsafe { to.at(i as isize).write(T::store(sum)) };
        }
    }
}
