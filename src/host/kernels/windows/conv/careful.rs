//! What flows back through weights that are no numbers. A product has zeros around what flows, of
//! which an infinite weight would make NaN; here each result is a sum of what it meets.

use super::{Geometry, Image, LEAST, Real, store};
use crate::host::kernels::load::Load;
use crate::host::kernels::nest::{Shared, in_parts};
use crate::room;
use crate::shape::numel;
use crate::view::Parallel;
use crate::window::offset;

/// `out[n, c, i] = bias[c] + sum over o and taps of w[o, c, tap] dy[n, o, p]`, for the places p
/// that meet i under the tap.
pub(super) fn to_input<T: Load<W>, W: Real>(
    geo: &Geometry,
    dy: Image<T>,
    weights: &[W],
    bias: &[W],
    to: Shared<T>,
    par: &dyn Parallel,
) {
    let ([ins, outs], size, taps) = (geo.channels, geo.room(), geo.taps());
    let channels = geo.groups * ins;
    let work = (outs * taps).saturating_mul(geo.places()).max(size);
    in_parts(geo.batch * channels, (LEAST / work.max(1)).max(1), par, &|planes| {
        let mut sums = room::filled(size, W::ZERO);
        for plane in planes {
            let (n, c) = (plane / channels, plane % channels);
            sums.fill(bias.get(c).copied().unwrap_or(W::ZERO));
            for o in c / ins * outs..(c / ins + 1) * outs {
                let from = dy.plane(n, o);
                let weights = &weights[(o * ins + c % ins) * taps..][..taps];
                for (tap, &weight) in weights.iter().enumerate() {
                    each_met(geo, tap, |place, met| {
                        // SAFETY: a place of the plane.
                        let dy = unsafe { *from.at(offset(place, dy.steps)) }.load();
                        sums[met] = sums[met].add(weight.mul(dy));
                    });
                }
            }
            // SAFETY: a plane of the result, which is this part's own.
            unsafe { store(&sums, to.at((plane * size) as isize)) };
        }
    });
}

/// Calls `f` with each place of the output that meets the input under a tap, and the number of the
/// element that it meets.
fn each_met(geo: &Geometry, tap: usize, mut f: impl FnMut([usize; 3], usize)) {
    let [_, high, wide] = geo.kernel;
    let taps = [tap / (high * wide), tap / wide % high, tap % wide];
    let met = |a: usize, place: usize| -> Option<usize> {
        let at = (place * geo.stride[a]) as isize + geo.shift(a, taps[a]);
        usize::try_from(at).ok().filter(|&at| at < geo.input[a])
    };
    debug_assert!(tap < numel(&geo.kernel));
    for (z, i) in (0..geo.output[0]).filter_map(|z| Some((z, met(0, z)?))) {
        for (y, j) in (0..geo.output[1]).filter_map(|y| Some((y, met(1, y)?))) {
            for (x, k) in (0..geo.output[2]).filter_map(|x| Some((x, met(2, x)?))) {
                f([z, y, x], (i * geo.input[1] + j) * geo.input[2] + k);
            }
        }
    }
}
