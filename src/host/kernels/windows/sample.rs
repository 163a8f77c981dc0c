//! Elements of images at places between them: the nearest, or a weighted sum of those around.
//!
//! Of some points at a time the elements around and their weights are found once, for all channels.

use super::around::{BEYOND, BLOCK, Found, Real, Taken};
use crate::host::kernels::isa::vectorize;
use crate::host::kernels::nest::{Shared, in_parts};
use crate::shape::{contiguous_strides, numel};
use crate::view::{Parallel, View, ViewMut};
use std::hint::select_unpredictable;
use std::ops::Range;

/// Points whose elements are taken side by side.
const LANES: usize = 16;
/// Elements below which a further thread does not pay.
const LEAST: usize = if cfg!(all(test, debug_assertions)) { 200 } else { 4 << 10 };

/// An element of a plane, or 0 beyond its ends.
///
/// # Safety
/// The plane has it.
#[inline(always)]
unsafe fn element<W: Real>(plane: *const W, offset: isize) -> W {
    let is_beyond = offset == BEYOND;
    // SAFETY: by the caller's promise; the first element is there.
    let x = unsafe { *plane.offset(select_unpredictable(is_beyond, 0, offset)) };
    // What is beyond is 0 before it is weighed: a point that is no number makes NaN all the same.
    select_unpredictable(is_beyond, W::ZERO, x)
}

/// Some that begin at one of the points, side by side; there may be less than that many points.
#[inline(always)]
fn lanes<T>(all: &[T], first: usize) -> &[T; LANES] {
    all[first..].first_chunk().expect("a block has whole lanes")
}

/// Writes the weighted sums of the elements around some points.
///
/// # Safety
/// The plane has these elements, and there is room for the sums.
#[inline(always)]
unsafe fn sums<const K: usize, W: Real>(
    plane: *const W,
    around: &Found<W>,
    count: usize,
    to: *mut W,
) {
    for start in (0..count).step_by(LANES) {
        let mut sums = [W::ZERO; LANES];
        for k in 0..K {
            let offsets = lanes(&around.offsets, k * BLOCK + start);
            let weights = lanes(&around.weights, k * BLOCK + start);
            for i in 0..LANES {
                // SAFETY: by the caller's promise.
                let term = unsafe { element(plane, offsets[i]) } * weights[i];
                sums[i] = if k == 0 { term } else { sums[i] + term };
            }
        }
        let some = sums.iter().take(count - start).enumerate();
        // SAFETY: by the caller's promise.
        some.for_each(|(i, &sum)| unsafe { to.add(start + i).write(sum) });
    }
}

/// Adds how the sums of the elements around some points grow along each dimension, times what flows
/// back to each.
///
/// # Safety
/// The plane has these elements.
#[inline(always)]
unsafe fn growth<const N: usize, W: Real>(
    plane: *const W,
    around: &Found<W>,
    flow: &[W; BLOCK],
    count: usize,
    sums: &mut [[W; BLOCK]; 3],
) {
    let corners = around.offsets.len() / BLOCK;
    for start in (0..count).step_by(LANES) {
        let flow = lanes(flow, start);
        for k in 0..corners {
            let offsets = lanes(&around.offsets, k * BLOCK + start);
            let mut x = [W::ZERO; LANES];
            for i in 0..LANES {
                // SAFETY: by the caller's promise.
                x[i] = unsafe { element(plane, offsets[i]) } * flow[i];
            }
            for (a, sums) in sums[..N].iter_mut().enumerate() {
                let slopes = lanes(&around.slopes, (a * corners + k) * BLOCK + start);
                for i in 0..LANES {
                    sums[start + i] = sums[start + i] + x[i] * slopes[i];
                }
            }
        }
    }
}

/// Calls `f` with each image and some of its points at a time, on several threads.
fn each_block(
    [images, points, work]: [usize; 3],
    par: &dyn Parallel,
    f: &(dyn Fn(usize, Range<usize>) + Sync),
) {
    let blocks = points.div_ceil(BLOCK);
    let least = LEAST / (BLOCK.min(points) * work).max(1);
    in_parts(images * blocks, least.max(1), par, &|part| {
        for k in part {
            let first = k % blocks * BLOCK;
            f(k / blocks, first..points.min(first + BLOCK));
        }
    });
}

/// The elements of images `[batch, channels, ..]` at places `[batch, points]` along each dimension:
/// `[batch, channels, points]`.
pub(crate) fn sample<W: Real>(
    taken: &Taken,
    places: &[View<'_>],
    x: View<'_>,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    if out.numel() == 0 {
        return;
    }
    let (channels, points) = (out.shape[1], out.shape[2]);
    let (from, to) = (Shared::<W>::new(x.ptr.cast_mut()), Shared::<W>::new(out.ptr));
    let corners = taken.corners();
    each_block([out.shape[0], points, channels * corners], par, &|image, some| {
        let mut around = taken.room::<W>(false);
        taken.find(places, image, some.clone(), &x.strides[2..], &mut around);
        for channel in 0..channels {
            let plane = from.at(image as isize * x.strides[0] + channel as isize * x.strides[1]);
            let to = to.at(((image * channels + channel) * points + some.start) as isize);
            let count = some.len();
            // SAFETY: elements of the plane, and the channel's points, which are this part's own.
            vectorize!(|| unsafe {
                match corners {
                    1 => sums::<1, W>(plane, &around, count, to),
                    4 => sums::<4, W>(plane, &around, count, to),
                    8 => sums::<8, W>(plane, &around, count, to),
                    16 => sums::<16, W>(plane, &around, count, to),
                    _ => sums::<64, W>(plane, &around, count, to),
                }
            });
        }
    });
}

/// What flows back from samples to the images.
pub(crate) fn to_images<W: Real>(
    taken: &Taken,
    places: &[View<'_>],
    dy: View<'_>,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    if out.numel() == 0 {
        return;
    }
    let (channels, points) = (dy.shape[1], dy.shape[2]);
    let (from, to) = (Shared::<W>::new(dy.ptr.cast_mut()), Shared::<W>::new(out.ptr));
    let (size, corners) = (numel(taken.sizes()), taken.corners());
    let (steps, step) = (contiguous_strides(taken.sizes()), dy.strides[2]);
    let work = size + points * corners;
    in_parts(out.shape[0] * channels, (LEAST / work).max(1), par, &|part| {
        let mut around = taken.room::<W>(false);
        let mut rest = part;
        while !rest.is_empty() {
            // The planes of one image.
            let image = rest.start / channels;
            let planes = rest.start..rest.end.min((image + 1) * channels);
            rest.start = planes.end;
            let first = to.at((planes.start * size) as isize);
            // SAFETY: planes of the output that are this part's own.
            let sums = unsafe {
                (0..planes.len() * size).for_each(|i| first.add(i).write(W::ZERO));
                std::slice::from_raw_parts_mut(first, planes.len() * size)
            };
            for start in (0..points).step_by(BLOCK) {
                let some = start..points.min(start + BLOCK);
                taken.find(places, image, some.clone(), &steps, &mut around);
                for (plane, sums) in planes.clone().zip(sums.chunks_exact_mut(size)) {
                    let channel = (plane % channels) as isize;
                    let dy = from.at(image as isize * dy.strides[0] + channel * dy.strides[1]);
                    for (i, point) in some.clone().enumerate() {
                        // SAFETY: a point of the channel.
                        let dy = unsafe { *dy.offset(point as isize * step) };
                        for here in (0..corners).map(|k| k * BLOCK + i) {
                            let offset = around.offsets[here];
                            if offset != BEYOND {
                                let sum = &mut sums[offset as usize];
                                *sum = *sum + dy * around.weights[here];
                            }
                        }
                    }
                }
            }
        }
    });
}

/// What flows back from samples to the places: `[dimensions, batch, points]`.
pub(crate) fn to_places<W: Real>(
    taken: &Taken,
    places: &[View<'_>],
    [x, dy]: [View<'_>; 2],
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    if out.numel() == 0 {
        return;
    }
    let (images, channels, points) = (dy.shape[0], dy.shape[1], dy.shape[2]);
    let [from, flows] = [x, dy].map(|view| Shared::<W>::new(view.ptr.cast_mut()));
    let (to, corners) = (Shared::<W>::new(out.ptr), taken.corners());
    let work = channels * corners * (1 + taken.spatial);
    each_block([images, points, work], par, &|image, some| {
        let mut around = taken.room::<W>(true);
        let (mut sums, mut dys) = ([[W::ZERO; BLOCK]; 3], [W::ZERO; BLOCK]);
        taken.find(places, image, some.clone(), &x.strides[2..], &mut around);
        for channel in 0..channels as isize {
            let plane = from.at(image as isize * x.strides[0] + channel * x.strides[1]);
            let flow = flows.at(image as isize * dy.strides[0] + channel * dy.strides[1]);
            for (i, point) in some.clone().enumerate() {
                // SAFETY: a point of the channel.
                dys[i] = unsafe { *flow.offset(point as isize * dy.strides[2]) };
            }
            let count = some.len();
            // SAFETY: elements of the plane.
            vectorize!(|| unsafe {
                match taken.spatial {
                    2 => growth::<2, W>(plane, &around, &dys, count, &mut sums),
                    _ => growth::<3, W>(plane, &around, &dys, count, &mut sums),
                }
            });
        }
        for (a, sums) in sums[..taken.spatial].iter().enumerate() {
            let to = to.at(((a * images + image) * points + some.start) as isize);
            // SAFETY: the image's points, which are this part's own.
            (0..some.len()).for_each(|i| unsafe { to.add(i).write(sums[i]) });
        }
    });
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::*;
    use super::super::around::{A, Around, Beyond};
    use super::*;

    /// The share of an element so far away, and how it grows.
    fn share(by: Around, away: f64) -> (f64, f64) {
        let d = away.abs();
        let (share, slope) = match by {
            Around::Nearest => (1.0, 0.0),
            Around::Linear => (1.0 - d, -1.0),
            Around::Cubic(_) if d <= 1.0 => (
                (A + 2.0) * d.powi(3) - (A + 3.0) * d.powi(2) + 1.0,
                (A + 2.0) * 3.0 * d * d - (A + 3.0) * 2.0 * d,
            ),
            Around::Cubic(_) => {
                let share = A * d.powi(3) - 5.0 * A * d * d + 8.0 * A * d - 4.0 * A;
                (share, 3.0 * A * d * d - 10.0 * A * d + 8.0 * A)
            }
        };
        // An element at the point itself counts as behind it.
        (share, if away < 0.0 { -slope } else { slope })
    }

    /// Where an element is that may be beyond the ends: step by step from mirror to mirror.
    fn mirrored(by: Around, mut at: f64, n: f64) -> f64 {
        match by {
            Around::Cubic(Beyond::Border) => at.clamp(0.0, n - 1.0),
            Around::Cubic(Beyond::Mirrors { centres }) if at.is_finite() => {
                let (low, high) = if centres { (0.0, n - 1.0) } else { (-0.5, n - 0.5) };
                while low < high && !(low..=high).contains(&at) {
                    at = if at < low { 2.0 * low - at } else { 2.0 * high - at };
                }
                at.clamp(0.0, n - 1.0)
            }
            _ => at,
        }
    }

    /// Elements around a point by a plain loop: indices, weights, and how these grow.
    fn plain(taken: &Taken, point: &[f64]) -> Vec<(Option<Vec<usize>>, f64, Vec<f64>)> {
        let around = |corner: usize| {
            let (mut index, mut shares) = (Some(Vec::new()), Vec::new());
            let mut slopes = Vec::new();
            for (a, &p) in point.iter().enumerate() {
                let side = (corner / taken.reach().pow(a as u32) % taken.reach()) as f64;
                let there = match taken.by {
                    Around::Nearest => p.round_ties_even(),
                    Around::Linear => p.floor() + side,
                    Around::Cubic(_) => p.floor() + side - 1.0,
                };
                let (share, slope) = share(taken.by, p - there);
                shares.push(share);
                slopes.push(slope);
                match mirrored(taken.by, there, taken.sizes[a] as f64) {
                    n if n >= 0.0 && n < taken.sizes[a] as f64 => {
                        index.iter_mut().for_each(|index: &mut Vec<_>| index.push(n as usize));
                    }
                    _ => index = None,
                }
            }
            let but = |a: usize| -> f64 {
                (0..shares.len()).filter(|&b| b != a).map(|b| shares[b]).product()
            };
            let slopes = slopes.iter().enumerate().map(|(a, slope)| slope * but(a)).collect();
            (index, shares.iter().product(), slopes)
        };
        (0..taken.corners()).map(around).collect()
    }

    fn same(got: f32, want: f64) -> bool {
        (got as f64 - want).abs() <= 1e-4 * (1.0 + want.abs()) || got.is_nan() && want.is_nan()
    }

    #[test]
    fn samples_are_weighted_sums_and_what_flows_back_are_their_slopes() {
        let mut rng = Rng::new(94);
        for turn in turns(60) {
            let spatial = 2 + turn % 2;
            let beyond = [
                Beyond::Zeros,
                Beyond::Border,
                Beyond::Mirrors { centres: true },
                Beyond::Mirrors { centres: false },
            ];
            let by = match turn / 2 % 3 {
                0 => Around::Nearest,
                1 => Around::Linear,
                _ => Around::Cubic(beyond[rng.below(4)]),
            };
            let mut taken = Taken { spatial, sizes: [1; 3], by };
            (0..spatial).for_each(|a| taken.sizes[a] = 1 + rng.below(9));
            let [batch, channels, points] =
                [1 + rng.below(3), 1 + rng.below(3), 1 + rng.below(300)];
            let lead = [batch, channels];
            let images = [&lead[..], taken.sizes()].concat();
            let draw = |rng: &mut Rng| match rng.below(60) {
                0 => f32::NAN,
                1 => f32::INFINITY,
                2..9 => rng.below(9) as f32 - 1.0,
                _ => (rng.unit() * 7.0 + 4.0) as f32,
            };
            let places: Vec<Value<f32>> =
                (0..spatial).map(|_| Value::random(&mut rng, &[batch, points], draw)).collect();
            let views: Vec<View<'_>> = places.iter().map(Value::view).collect();
            let x = Value::<f32>::random(&mut rng, &images, small);
            let samples = [batch, channels, points];
            let dy = Value::<f32>::random(&mut rng, &samples, small);
            let par = Threads { threads: 2, seed: rng.word() };
            let y =
                filled::<f32>(&samples, |out| sample::<f32>(&taken, &views, x.view(), out, &par));
            let dx = filled::<f32>(&images, |out| {
                to_images::<f32>(&taken, &views, dy.view(), out, &par)
            });
            let dp = filled::<f32>(&[spatial, batch, points], |out| {
                to_places::<f32>(&taken, &views, [x.view(), dy.view()], out, &par)
            });
            let size = numel(taken.sizes());
            let (mut of_x, mut of_p) = (vec![0.0; dx.len()], vec![0.0; dp.len()]);
            for (i, at) in indices(&samples).iter().enumerate() {
                let point: Vec<f64> =
                    places.iter().map(|p| p.get(&[at[0], at[2]]) as f64).collect();
                let (mut sum, flow) = (0.0, dy.get(at) as f64);
                for (index, weight, slopes) in plain(&taken, &point) {
                    let Some(index) = index else {
                        sum += 0.0 * weight;
                        continue;
                    };
                    let element = x.get(&[&at[..2], &index].concat()) as f64;
                    sum += element * weight;
                    let row = index.iter().zip(&images[2..]).fold(0, |row, (i, n)| row * n + i);
                    of_x[(at[0] * channels + at[1]) * size + row] += flow * weight;
                    for (a, slope) in slopes.iter().enumerate() {
                        of_p[(a * batch + at[0]) * points + at[2]] += flow * element * slope;
                    }
                }
                assert!(same(y[i], sum), "{taken:?} {point:?}: {} {sum}", y[i]);
            }
            assert!(dx.iter().zip(&of_x).all(|(&got, &want)| same(got, want)), "{taken:?}");
            for (i, (&got, &want)) in dp.iter().zip(&of_p).enumerate() {
                let at = [i / points % batch, i % points];
                let is_number = places.iter().all(|p| p.get(&at).is_finite());
                let is_nearest = taken.by == Around::Nearest;
                assert!(is_nearest || !is_number || same(got, want), "{taken:?} {got} {want}");
            }
        }
    }

    at_every_level! { samples_are_weighted_sums_and_what_flows_back_are_their_slopes }
}
