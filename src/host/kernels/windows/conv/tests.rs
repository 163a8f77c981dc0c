//! Convolutions against plain loops, over random sizes, strides, groups and layouts.

use super::*;
use crate::dtype::Element;
use crate::host::kernels::testing::*;
use crate::view::Serial;
use half::{bf16, f16};

fn geometry(rng: &mut Rng, turn: usize) -> Geometry {
    let groups = 1 + rng.below(3);
    // To few channels rows are summed up, to many they are products.
    let outs = if turn.is_multiple_of(2) { 1 + rng.below(4) } else { 4 + rng.below(9) };
    let spatial = 1 + turn / 2 % 3;
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
        (window.kernel[a], window.stride[a]) = (1 + rng.below(3), 1 + rng.below(3));
        (window.padding[a], window.dilation[a]) = ([rng.below(4), rng.below(4)], 1 + rng.below(2));
        let reach = window.dilation[a] * (window.kernel[a] - 1) + 1;
        let around: usize = window.padding[a].iter().sum();
        let least = reach.saturating_sub(around).max(1);
        let more = if spatial == 3 { 4 } else { 9 };
        window.input[a] =
            least + rng.below(if turn.is_multiple_of(7) && spatial < 3 { 30 } else { more });
        window.output[a] = (window.input[a] + around - reach) / window.stride[a] + 1;
    }
    Geometry { batch: 1 + rng.below(3), groups, channels: [1 + rng.below(5), outs], window }
}

/// Calls `f(x, w, out)` with the index of each triple that meets, with no more dimensions than
/// there are.
fn each(geo: &Geometry, mut f: impl FnMut(&[usize], &[usize], &[usize])) {
    let w = &geo.window;
    let own = 3 - w.spatial;
    for i in indices(&[&[geo.batch, geo.groups * geo.channels[1]], &w.output[own..]].concat()) {
        for t in indices(&[&[geo.channels[0]], &w.kernel[own..]].concat()) {
            let at = |a: usize| {
                let o = i[2 + a - own] * w.stride[a] + t[1 + a - own] * w.dilation[a];
                let at = o as isize - w.padding[a][0] as isize;
                (0..w.input[a] as isize).contains(&at).then_some(at as usize)
            };
            if let Some(at) = (own..3).map(at).collect::<Option<Vec<usize>>>() {
                let channel = i[1] / geo.channels[1] * geo.channels[0] + t[0];
                f(&[&[i[0], channel], &at[..]].concat(), &[&[i[1]], &t[..]].concat(), &i);
            }
        }
    }
}

fn linear(shape: &[usize], index: &[usize]) -> usize {
    shape.iter().zip(index).fold(0, |at, (n, i)| at * n + i)
}

/// `got` is the sum of products, up to `eps` of the sum of their magnitudes.
fn compare<T: Element>(name: &str, geo: &Geometry, got: &[T], sums: &[(f64, f64)], eps: f64) {
    for (i, (got, (sum, size))) in got.iter().zip(sums).enumerate() {
        let bound = eps * (size + sum.abs()) + 1e-30;
        assert!((got.to_f64() - sum).abs() <= bound, "{name} {i}: {got:?} {sum} {geo:?}");
    }
}

/// The three products of random values against plain loops.
fn compare_all<T: Element>(rng: &mut Rng, geo: Geometry, eps: f64) {
    let w = &geo.window;
    let (ins, outs) = (geo.groups * geo.channels[0], geo.groups * geo.channels[1]);
    let shape = |lead: [usize; 2], own: &[usize]| [&lead, &own[3 - w.spatial..]].concat();
    let sx = shape([geo.batch, ins], &w.input);
    let sw = shape([outs, geo.channels[0]], &w.kernel);
    let so = shape([geo.batch, outs], &w.output);
    let x = Value::<T>::random(rng, &sx, small);
    let weight = Value::<T>::random(rng, &sw, small);
    let bias = Value::<T>::random(rng, &[outs], small);
    let dy = Value::<T>::random(rng, &so, small);
    let zero = |s: &[usize]| vec![(0.0, 0.0); s.iter().product()];
    let (mut y, mut dx, mut dw) = (zero(&so), zero(&sx), zero(&sw));
    for (i, o) in indices(&so).iter().zip(&mut y) {
        let b = bias.get(&[i[1]]).to_f64();
        *o = (b, b.abs());
    }
    let own = Value::<T>::random(rng, &[ins], small);
    for (i, o) in indices(&sx).iter().zip(&mut dx) {
        let b = own.get(&[i[1]]).to_f64();
        *o = (b, b.abs());
    }
    let add = |of: &mut Vec<(f64, f64)>, at: usize, term: f64| {
        of[at] = (of[at].0 + term, of[at].1 + term.abs());
    };
    each(&geo, |ix, iw, io| {
        let (a, b, g) = (x.get(ix).to_f64(), weight.get(iw).to_f64(), dy.get(io).to_f64());
        add(&mut y, linear(&so, io), a * b);
        add(&mut dx, linear(&sx, ix), g * b);
        add(&mut dw, linear(&sw, iw), g * a);
    });
    let par = Threads { threads: 3, seed: rng.word() };
    let bv = Some(bias.view());
    let got = filled::<T>(&so, |out| forward(&geo, x.view(), weight.view(), bv, out, &par));
    compare("forward", &geo, &got, &y, eps);
    let alone = filled::<T>(&so, |out| forward(&geo, x.view(), weight.view(), bv, out, &Serial));
    assert_eq!(got, alone, "threads show in the result: {geo:?}");
    let got = filled::<T>(&sx, |out| {
        to_input(&geo, dy.view(), weight.view(), Some(own.view()), out, &par)
    });
    compare("to_input", &geo, &got, &dx, eps);
    let alone = filled::<T>(&sx, |out| {
        to_input(&geo, dy.view(), weight.view(), Some(own.view()), out, &Serial)
    });
    assert_eq!(got, alone, "threads show in what flows back: {geo:?}");
    let got = filled::<T>(&sw, |out| to_weight(&geo, dy.view(), x.view(), out, &par));
    compare("to_weight", &geo, &got, &dw, eps);
}

#[test]
fn convolutions_of_any_layout_agree_with_plain_loops() {
    let mut rng = Rng::new(41);
    for turn in 0..120 {
        let geo = geometry(&mut rng, turn);
        compare_all::<f32>(&mut rng, geo, 4e-6);
        compare_all::<f64>(&mut rng, geo, 1e-14);
        if turn % 3 == 0 {
            compare_all::<f16>(&mut rng, geo, 1e-3);
            compare_all::<bf16>(&mut rng, geo, 8e-3);
        }
    }
}

/// Sizes at which results are made two by two: even and odd planes, paddings, groups, few places
/// and several blocks, a channel more than is laid at a time.
fn tiled(turn: usize) -> Geometry {
    let [groups, ins, outs, batch, high, wide, before, after] = [
        [1, 16, 16, 1, 12, 12, 1, 1],
        [1, 17, 33, 2, 13, 31, 1, 1],
        [2, 16, 18, 3, 7, 8, 1, 1],
        [1, 150, 70, 3, 7, 7, 1, 1],
        [1, 20, 16, 1, 40, 75, 0, 2],
        [3, 16, 16, 2, 14, 12, 3, 0],
    ][turn];
    let window = Window {
        spatial: 2,
        input: [1, high, wide],
        kernel: [1, 3, 3],
        output: [1, high + before + after - 2, wide + before + after - 2],
        stride: [1; 3],
        padding: [[0; 2], [before, after], [before, after]],
        dilation: [1; 3],
    };
    Geometry { batch, groups, channels: [ins, outs], window }
}

#[test]
fn results_that_are_made_two_by_two_agree_with_plain_loops() {
    let mut rng = Rng::new(44);
    for turn in 0..6 {
        let geo = tiled(turn);
        let phase = Phase::forward(&geo, [0; 3]);
        assert!(Tiles::of(&phase, geo.batch, geo.channels).is_some(), "{geo:?}");
        // Errors are compared with the sizes of a result's own terms: its tile's are alike.
        compare_all::<f32>(&mut rng, geo, 4e-6);
        if turn == 1 {
            compare_all::<f16>(&mut rng, geo, 1e-3);
            compare_all::<bf16>(&mut rng, geo, 8e-3);
        }
    }
}

/// Strides that leave one phase: the planes, and the rows, between its places meet nothing.
#[test]
fn what_meets_no_tap_beside_tiles_is_the_bias() {
    let mut rng = Rng::new(46);
    for (spatial, input, kernel, output, stride, dilation) in [
        (3, [5, 12, 14], [1, 3, 3], [3, 12, 14], [2, 1, 1], [1, 1, 1]),
        (3, [1, 12, 14], [2, 3, 3], [1, 12, 14], [2, 1, 1], [1, 1, 1]),
        (2, [1, 26, 14], [1, 3, 3], [1, 11, 14], [1, 2, 1], [1, 2, 1]),
        (3, [4, 12, 14], [1, 3, 3], [4, 12, 14], [1, 1, 1], [1, 1, 1]),
    ] {
        let around = |a: usize| {
            let reach = dilation[a] * (kernel[a] - 1) + 1;
            let most: usize = (output[a] - 1) * stride[a] + reach;
            let before = most.saturating_sub(input[a]).div_ceil(2);
            [before, most.saturating_sub(input[a]) - before]
        };
        let padding = std::array::from_fn(around);
        let window = Window { spatial, input, kernel, output, stride, padding, dilation };
        compare_all::<f32>(
            &mut rng,
            Geometry { batch: 2, groups: 1, channels: [16, 17], window },
            4e-6,
        );
    }
}

/// Differences of infinities would be NaN, and sums of large numbers infinite.
#[test]
fn large_numbers_reach_what_they_meet_alone() {
    let mut rng = Rng::new(45);
    let geo = tiled(1);
    let (sx, sw, so) = ([2, 17, 13, 31], [33, 17, 3, 3], [2, 33, 13, 31]);
    for (large, of_weights) in [
        (f32::INFINITY, false),
        (f32::NAN, false),
        (3e38, false),
        (f32::INFINITY, true),
        (-3e38, true),
    ] {
        let few = |rng: &mut Rng| rng.below(3) as f32;
        let whole = |rng: &mut Rng| if rng.below(3000) == 0 { large } else { few(rng) };
        let (in_x, in_w): (&dyn Fn(&mut Rng) -> f32, &dyn Fn(&mut Rng) -> f32) =
            if of_weights { (&few, &whole) } else { (&whole, &few) };
        let x = Value::<f32>::random(&mut rng, &sx, in_x);
        let w = Value::<f32>::random(&mut rng, &sw, in_w);
        let mut sums = vec![0.0f64; so.iter().product()];
        each(&geo, |ix, iw, io| {
            sums[linear(&so, io)] += x.get(ix) as f64 * w.get(iw) as f64;
        });
        let par = Threads { threads: 3, seed: rng.word() };
        let got = filled::<f32>(&so, |out| forward(&geo, x.view(), w.view(), None, out, &par));
        let is_met = |want: &f64| !want.is_finite() || want.abs() > 1e30;
        // (Zeros around make NaN of an infinite weight: so does every library.)
        let edge = |i: usize| {
            let (y, x) = (i / 31 % 13, i % 31);
            of_weights && (y == 0 || x == 0 || y == 12 || x == 30)
        };
        let small = (0..sums.len()).filter(|&i| !edge(i) && !is_met(&sums[i]));
        let mut count = 0;
        for i in small {
            assert_eq!(got[i] as f64, sums[i], "{large} {i}");
            count += 1;
        }
        assert!(count > 100 && count < sums.len(), "some meet {large}, and some do not: {count}");
        let met = (0..sums.len()).filter(|&i| is_met(&sums[i]) && !edge(i));
        met.for_each(|i| assert!(!got[i].is_finite() || got[i].abs() > 1e30, "{large} {i}"));
    }
}

/// Zeros that no place meets make nothing of a weight that is no number.
#[test]
fn an_infinite_weight_reaches_what_it_meets_alone() {
    let mut rng = Rng::new(43);
    for turn in 0..60 {
        let geo = geometry(&mut rng, turn);
        let w = &geo.window;
        let (ins, outs) = (geo.groups * geo.channels[0], geo.groups * geo.channels[1]);
        let shape = |lead: [usize; 2], own: &[usize]| [&lead, &own[3 - w.spatial..]].concat();
        let sx = shape([geo.batch, ins], &w.input);
        let sw = shape([outs, geo.channels[0]], &w.kernel);
        let so = shape([geo.batch, outs], &w.output);
        let odd = |rng: &mut Rng| match rng.below(12) {
            0 => f32::INFINITY,
            1 => f32::NAN,
            _ => rng.below(5) as f32 - 2.0,
        };
        let weight = Value::<f32>::random(&mut rng, &sw, odd);
        let dy = Value::<f32>::random(&mut rng, &so, |rng| rng.below(3) as f32);
        let mut dx = vec![0.0f64; sx.iter().product()];
        each(&geo, |ix, iw, io| {
            dx[linear(&sx, ix)] += dy.get(io) as f64 * weight.get(iw) as f64;
        });
        let par = Threads { threads: 3, seed: rng.word() };
        let got =
            filled::<f32>(&sx, |out| to_input(&geo, dy.view(), weight.view(), None, out, &par));
        let same =
            |(got, want): (&f32, &f64)| *got as f64 == *want || got.is_nan() && want.is_nan();
        assert!(got.iter().zip(&dx).all(same), "{geo:?}: {got:?} {dx:?}");
    }
}

/// A convolution over two dimensions that takes several of everything that it is cut into.
struct Large {
    batch: usize,
    groups: usize,
    channels: [usize; 2],
    input: [usize; 2],
    kernel: usize,
    stride: [usize; 2],
    padding: usize,
}

impl Large {
    fn geometry(&self) -> Geometry {
        let k = self.kernel;
        let along = |a: usize| (self.input[a] + 2 * self.padding - k) / self.stride[a] + 1;
        let window = Window {
            spatial: 2,
            input: [1, self.input[0], self.input[1]],
            kernel: [1, k, k],
            output: [1, along(0), along(1)],
            stride: [1, self.stride[0], self.stride[1]],
            padding: [[0; 2], [self.padding; 2], [self.padding; 2]],
            dilation: [1; 3],
        };
        Geometry { batch: self.batch, groups: self.groups, channels: self.channels, window }
    }
}

#[test]
fn blocks_of_places_and_cuts_of_channels_meet_without_seams() {
    let mut rng = Rng::new(42);
    let seams = [
        // More channels than are laid at a time.
        Large {
            batch: 1,
            groups: 1,
            channels: [120, 130],
            input: [40, 41],
            kernel: 3,
            stride: [1, 2],
            padding: 1,
        },
        // More taps than are laid at a time.
        Large {
            batch: 1,
            groups: 1,
            channels: [2, 5],
            input: [30, 31],
            kernel: 13,
            stride: [1, 1],
            padding: 6,
        },
        // Planes of more than a block, to one channel and to three.
        Large {
            batch: 2,
            groups: 2,
            channels: [1, 1],
            input: [170, 171],
            kernel: 3,
            stride: [2, 2],
            padding: 1,
        },
        Large {
            batch: 1,
            groups: 1,
            channels: [40, 3],
            input: [50, 51],
            kernel: 3,
            stride: [2, 1],
            padding: 1,
        },
        // Small images, which go together.
        Large {
            batch: 5,
            groups: 2,
            channels: [60, 20],
            input: [7, 7],
            kernel: 3,
            stride: [1, 1],
            padding: 1,
        },
    ];
    for large in seams {
        let geo = &large.geometry();
        let (ins, outs, k) = (geo.channels[0], geo.groups * geo.channels[1], large.kernel);
        let [_, high, wide] = geo.output;
        let sx = [geo.batch, geo.groups * ins, large.input[0], large.input[1]];
        let (sw, so) = ([outs, ins, k, k], [geo.batch, outs, high, wide]);
        let x = Value::<f32>::random(&mut rng, &sx, small);
        let w = Value::<f32>::random(&mut rng, &sw, small);
        let par = Threads { threads: 3, seed: 8 };
        let got = filled::<f32>(&so, |out| forward(geo, x.view(), w.view(), None, out, &par));
        let dy = Value::<f32>::new(&so, got.clone());
        let dx = filled::<f32>(&sx, |out| to_input(geo, dy.view(), w.view(), None, out, &par));
        let dw = filled::<f32>(&sw, |out| to_weight(geo, dy.view(), x.view(), out, &par));
        for _ in 0..300 {
            let i = so.map(|n| rng.below(n));
            let mut sum = 0.0;
            for t in indices(&[ins, k, k]) {
                let at = |a: usize| {
                    let at = (i[2 + a] * large.stride[a] + t[1 + a]) as isize;
                    let at = at - large.padding as isize;
                    (0..large.input[a] as isize).contains(&at).then_some(at as usize)
                };
                if let (Some(y), Some(x_at)) = (at(0), at(1)) {
                    let c = i[1] / geo.channels[1] * ins + t[0];
                    sum +=
                        x.get(&[i[0], c, y, x_at]) as f64 * w.get(&[i[1], t[0], t[1], t[2]]) as f64;
                }
            }
            assert!((got[linear(&so, &i)] as f64 - sum).abs() < 2e-2, "{i:?} of {geo:?}");
        }
        // <conv(x, w), conv(x, w)> = <x, what flows back to it> = <w, what flows back to it>
        let dot = |a: &[f32], b: &[f32]| -> f64 {
            a.iter().zip(b).map(|(&a, &b)| a as f64 * b as f64).sum()
        };
        let left = dot(&got, &got);
        for right in [dot(&dx, &x.to_vec()), dot(&dw, &w.to_vec())] {
            assert!((left - right).abs() < 1e-4 * left, "{left} {right} {geo:?}");
        }
    }
}

#[test]
fn a_sum_of_a_weight_knows_nothing_of_what_its_tap_does_not_meet() {
    for [groups, ins, outs] in [[3, 1, 1], [1, 4, 5]] {
        let last = |n| [1, 1, n];
        let window = Window {
            spatial: 1,
            input: last(21),
            kernel: last(3),
            output: last(19),
            stride: [1; 3],
            padding: [[0; 2]; 3],
            dilation: [1; 3],
        };
        let geo = Geometry { batch: 1, groups, channels: [ins, outs], window };
        let mut data = vec![1.0f32; groups * ins * 21];
        data.chunks_mut(21).for_each(|row| (row[0], row[20]) = (f32::INFINITY, f32::NAN));
        let x = Value::new(&[1, groups * ins, 21], data);
        let dy = Value::new(&[1, groups * outs, 19], vec![2.0f32; groups * outs * 19]);
        let shape = [groups * outs, ins, 3];
        let got = filled::<f32>(&shape, |out| to_weight(&geo, dy.view(), x.view(), out, &Serial));
        for taps in got.chunks(3) {
            assert!(taps[0] == f32::INFINITY && taps[1] == 38.0 && taps[2].is_nan(), "{taps:?}");
        }
    }
}

at_every_level! {
    convolutions_of_any_layout_agree_with_plain_loops
    results_that_are_made_two_by_two_agree_with_plain_loops
    large_numbers_reach_what_they_meet_alone
    what_meets_no_tap_beside_tiles_is_the_bias
    blocks_of_places_and_cuts_of_channels_meet_without_seams
    a_sum_of_a_weight_knows_nothing_of_what_its_tap_does_not_meet
}
