//! Convolutions with few output channels a group, depthwise ones above all: rows are walked in
//! place.

use super::{Geometry, Image, Real, Row, in_parts, offset, same, store};
use crate::host::kernels::isa::vectorize;
use crate::host::kernels::load::Load;
use crate::host::kernels::nest::Shared;
use crate::view::Parallel;

/// Room for a plane: the output's own memory, or scratch that is converted at the end.
fn with_plane<T: Load<W>, W: Real>(to: *mut T, n: usize, f: impl FnOnce(&mut [W])) {
    W::with_scratch(if same::<T, W>() { 0 } else { n }, |scratch| {
        if same::<T, W>() {
            // SAFETY: the caller's own plane, of elements of this very type.
            let plane = unsafe {
                to.cast::<W>().write_bytes(0, n);
                std::slice::from_raw_parts_mut(to.cast::<W>(), n)
            };
            f(plane);
        } else {
            f(scratch);
            // SAFETY: the caller's own plane.
            unsafe { store(scratch, to) };
        }
    });
}

/// `n` elements from an address on, so far apart.
#[inline(always)]
fn line<T: Load<W>, W: Real>(from: *const T, step: isize, n: usize, mut f: impl FnMut(usize, W)) {
    // SAFETY (both): the callers hand in rows that they have.
    if step == 1 {
        let row = unsafe { std::slice::from_raw_parts(from, n) };
        row.iter().enumerate().for_each(|(i, x)| f(i, x.load()));
    } else {
        (0..n).for_each(|i| f(i, unsafe { *from.offset(i as isize * step) }.load()));
    }
}

pub(super) fn forward<T: Load<W>, W: Real>(
    geo: &Geometry,
    x: Image<T>,
    weights: &[W],
    bias: &[W],
    to: Shared<T>,
    par: &dyn Parallel,
) {
    let (places, taps, outs) = (geo.places(), geo.taps(), geo.groups * geo.channels[1]);
    in_parts(geo, geo.batch * outs, par, &|plane| {
        let (n, o) = (plane / outs, plane % outs);
        let first = o / geo.channels[1] * geo.channels[0];
        with_plane::<T, W>(to.at((plane * places) as isize), places, |sums| {
            vectorize!(|| {
                sums.fill(bias[o]);
                for c in 0..geo.channels[0] {
                    let (from, w) = (
                        x.plane(n, first + c),
                        &weights[(o * geo.channels[0] + c) * taps..][..taps],
                    );
                    let step = geo.stride[2] as isize * x.steps[2];
                    geo.each_row(|met: Row| {
                        let row = from.at(offset(met.from, x.steps));
                        let sums = &mut sums[met.line * geo.output[2] + met.out[2]..][..met.count];
                        line(row, step, sums.len(), |i, x: W| {
                            sums[i] = sums[i].add(x.mul(w[met.tap]))
                        });
                    });
                }
            });
        });
    });
}

pub(super) fn to_input<T: Load<W>, W: Real>(
    geo: &Geometry,
    dy: Image<T>,
    weights: &[W],
    bias: &[W],
    to: Shared<T>,
    par: &dyn Parallel,
) {
    let (taps, ins) = (geo.taps(), geo.groups * geo.channels[0]);
    let size = geo.room();
    in_parts(geo, geo.batch * ins, par, &|plane| {
        let (n, c) = (plane / ins, plane % ins);
        let (g, own) = (c / geo.channels[0], c % geo.channels[0]);
        with_plane::<T, W>(to.at((plane * size) as isize), size, |sums| {
            vectorize!(|| {
                sums.fill(bias[c]);
                for o in g * geo.channels[1]..(g + 1) * geo.channels[1] {
                    let (from, w) =
                        (dy.plane(n, o), &weights[(o * geo.channels[0] + own) * taps..][..taps]);
                    geo.each_row(|Row { tap, out, count, from: [z, y, x], .. }| {
                        let row = from.at(offset(out, dy.steps));
                        let sums = &mut sums[(z * geo.input[1] + y) * geo.input[2] + x..];
                        let step = geo.stride[2];
                        if step == 1 {
                            let sums = &mut sums[..count];
                            line(row, dy.steps[2], count, |i, y: W| {
                                sums[i] = sums[i].add(y.mul(w[tap]))
                            });
                        } else {
                            line(row, dy.steps[2], count, |i, y: W| {
                                sums[i * step] = sums[i * step].add(y.mul(w[tap]));
                            });
                        }
                    });
                }
            });
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
    let (taps, ins) = (geo.taps(), geo.channels[0]);
    in_parts(geo, geo.groups * geo.channels[1] * ins, par, &|part| {
        let (o, own) = (part / ins, part % ins);
        let c = o / geo.channels[1] * ins + own;
        with_plane::<T, W>(to.at((part * taps) as isize), taps, |sums| {
            vectorize!(|| {
                sums.fill(W::ZERO);
                for n in 0..geo.batch {
                    let (up, from) = (dy.plane(n, o), x.plane(n, c));
                    let step = geo.stride[2] as isize * x.steps[2];
                    geo.each_row(|Row { tap, out, count, from: at, .. }| {
                        let row = from.at(offset(at, x.steps));
                        let up = up.at(offset(out, dy.steps));
                        sums[tap] = sums[tap].add(dot::<T, W>(row, step, up, dy.steps[2], count));
                    });
                }
            });
        });
    });
}

/// Sum of products along two rows, in eight chains that are joined at the end.
#[inline(always)]
fn dot<T: Load<W>, W: Real>(a: *const T, a_step: isize, b: *const T, b_step: isize, n: usize) -> W {
    let mut sums = [W::ZERO; 8];
    // SAFETY: the callers hand in rows that they have.
    let at = |p: *const T, step: isize, i: usize| unsafe { *p.offset(i as isize * step) }.load();
    let mut i = 0;
    while i + 8 <= n {
        for (k, sum) in sums.iter_mut().enumerate() {
            *sum = sum.add(at(a, a_step, i + k).mul(at(b, b_step, i + k)));
        }
        i += 8;
    }
    for (k, sum) in sums.iter_mut().enumerate().take(n - i) {
        *sum = sum.add(at(a, a_step, i + k).mul(at(b, b_step, i + k)));
    }
    sums.into_iter().fold(W::ZERO, W::add)
}
