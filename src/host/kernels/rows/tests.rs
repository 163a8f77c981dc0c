//! Normalisations against plain f64 loops.

use super::super::testing::*;
use super::*;
use crate::dtype::Element;
use crate::view::Serial;
use half::{bf16, f16};

/// Offsets into a row-major value of the rows along a dimension.
fn lines(shape: &[usize], dim: usize) -> Vec<Vec<usize>> {
    let inner: usize = shape[dim + 1..].iter().product();
    let outer: usize = shape[..dim].iter().product();
    let n = shape[dim];
    let line = |o: usize, i: usize| (0..n).map(move |r| (o * n + r) * inner + i).collect();
    (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i))).map(|(o, i)| line(o, i)).collect()
}

fn near(got: f64, expected: f64, eps: f64) -> bool {
    got == expected
        || got.is_nan() && expected.is_nan()
        || (got - expected).abs() <= eps * (1.0 + expected.abs())
}

fn check<T: Element>(rng: &mut Rng, shape: &[usize], dim: usize, eps: f64) {
    let spread = [1.0, 30.0, 1000.0][rng.below(3)];
    let x = Value::<T>::random(rng, shape, |r| T::from_f64(r.unit() * spread));
    let all: Vec<f64> = x.to_vec().iter().map(|v| v.to_f64()).collect();
    let par = Threads { threads: 2, seed: rng.word() };
    let kept: Vec<usize> = [&shape[..dim], &shape[dim + 1..]].concat();
    let soft = filled::<T>(shape, |out| softmax(x.view(), dim, Form::Plain, out, &par));
    let logs = filled::<T>(shape, |out| softmax(x.view(), dim, Form::Log, out, &par));
    let sums = filled::<T>(&kept, |out| logsumexp(x.view(), dim, out, &par));
    assert_eq!(soft, filled::<T>(shape, |out| softmax(x.view(), dim, Form::Plain, out, &Serial)));
    for (line, sum) in lines(shape, dim).iter().zip(&sums) {
        let largest = line.iter().map(|&i| all[i]).fold(f64::NEG_INFINITY, f64::max);
        let total: f64 = line.iter().map(|&i| (all[i] - largest).exp()).sum();
        let log = total.ln() + largest;
        assert!(near(sum.to_f64(), if line.is_empty() { f64::NEG_INFINITY } else { log }, eps));
        for &i in line {
            let exact = (all[i] - largest).exp() / total;
            assert!(
                // half of the smallest half
                (soft[i].to_f64() - exact).abs() <= eps * (exact + 1e-6) + 3.1e-8,
                "{} {exact}",
                soft[i].to_f64()
            );
            assert!(
                near(logs[i].to_f64(), all[i] - log, eps),
                "{} {}",
                logs[i].to_f64(),
                all[i] - log
            );
        }
    }
}

/// Columns that are worked on in strips: of widths that have code of their own, and of others.
fn columns(rng: &mut Rng, turn: usize) -> Vec<usize> {
    let wide = [8, 16, 32, 1 + rng.below(300)][turn % 4];
    vec![1 + rng.below(if wide > 32 { 900 } else { 3000 }), wide]
}

#[test]
fn softmax_of_any_layout_agrees_with_a_plain_loop() {
    let mut rng = Rng::new(41);
    for turn in 0..60 {
        let rank = 1 + rng.below(4);
        let most = [0, 3000, 60, 12, 6][rank];
        let mut shape = random_shape(&mut rng, rank, most);
        let mut dim = rng.below(rank);
        if turn % 6 == 0 {
            (shape, dim) = (columns(&mut rng, turn / 6), 0);
        }
        check::<f32>(&mut rng, &shape, dim, 2e-6);
        check::<f64>(&mut rng, &shape, dim, 1e-13);
        check::<f16>(&mut rng, &shape, dim, 1.0 / 1024.0);
        check::<bf16>(&mut rng, &shape, dim, 1.0 / 128.0);
    }
}

#[test]
fn rows_without_a_finite_element_are_nan_and_their_logsumexp_is_infinite() {
    let inf = f32::INFINITY;
    for shape in [[2, 3], [3, 2]] {
        let x = Value::<f32>::new(&shape, vec![-inf; 6]);
        for (dim, form) in [(0, Form::Plain), (1, Form::Plain), (0, Form::Log), (1, Form::Log)] {
            let y = filled::<f32>(&shape, |out| softmax(x.view(), dim, form, out, &Serial));
            assert!(y.iter().all(|y| y.is_nan()));
        }
        for dim in [0, 1] {
            assert_eq!(
                filled::<f32>(&shape, |out| softmax(x.view(), dim, Form::Safe, out, &Serial)),
                [0.0; 6]
            );
        }
        for dim in [0, 1] {
            let y = filled::<f32>(&[shape[1 - dim]], |out| logsumexp(x.view(), dim, out, &Serial));
            assert!(y.iter().all(|&y| y == -inf));
        }
    }
    let x = Value::<f32>::new(&[4], vec![-inf, 0.0, -inf, 0.0]);
    assert_eq!(
        filled::<f32>(&[4], |out| softmax(x.view(), 0, Form::Plain, out, &Serial)),
        [0.0, 0.5, 0.0, 0.5]
    );
    let x = Value::<f32>::new(&[2], vec![inf, 1.0]);
    assert_eq!(filled::<f32>(&[], |out| logsumexp(x.view(), 0, out, &Serial)), [inf]);
    let x = Value::<f32>::new(&[3], vec![1.0, f32::NAN, 2.0]);
    for form in [Form::Plain, Form::Safe] {
        assert!(
            filled::<f32>(&[3], |out| softmax(x.view(), 0, form, out, &Serial))
                .iter()
                .all(|y| y.is_nan())
        );
    }
    let x = Value::<f32>::new(&[3], vec![-inf, f32::NAN, -inf]);
    assert!(
        filled::<f32>(&[3], |out| softmax(x.view(), 0, Form::Safe, out, &Serial))
            .iter()
            .all(|y| y.is_nan())
    );
    assert!(filled::<f32>(&[], |out| logsumexp(x.view(), 0, out, &Serial))[0].is_nan());
}

fn check_norms<T: Element>(rng: &mut Rng, eps: f64) {
    let rank = 1 + rng.below(3);
    let shape = random_shape(rng, rank, [0, 2500, 60, 12][rank]);
    let trailing = 1 + rng.below(rank);
    let tail = &shape[rank - trailing..];
    let x = Value::<T>::random(rng, &shape, |r| T::from_f64(r.unit() * 3.0 + 1.0));
    let weight = Value::<f32>::random(rng, tail, small);
    let bias = Value::<T>::random(rng, tail, small);
    let (w, b): (Vec<f32>, Vec<T>) = (weight.to_vec(), bias.to_vec());
    let par = Threads { threads: 2, seed: rng.word() };
    let layer = filled::<T>(&shape, |out| {
        layer_norm(x.view(), trailing, Some(weight.view()), Some(bias.view()), 1e-5, out, &par);
    });
    let plain =
        filled::<T>(&shape, |out| layer_norm(x.view(), trailing, None, None, 1e-5, out, &par));
    let moved = filled::<T>(&shape, |out| {
        layer_norm(x.view(), trailing, None, Some(bias.view()), 1e-5, out, &par)
    });
    let rms = filled::<T>(&shape, |out| {
        rms_norm(x.view(), trailing, Some(weight.view()), 1e-5, out, &par)
    });
    let unit = if T::DTYPE == DType::F64 { 2f64.powi(-44) } else { 2f64.powi(-22) };
    let (n, all) = (tail.iter().product::<usize>(), x.to_vec());
    for (i, row) in all.chunks(n.max(1)).enumerate() {
        let row: Vec<f64> = row.iter().map(|v| v.to_f64()).collect();
        let mean = row.iter().sum::<f64>() / n as f64;
        let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n as f64;
        let square = row.iter().map(|x| x * x).sum::<f64>() / n as f64;
        for (j, x) in row.iter().enumerate() {
            let y = (x - mean) / (variance + 1e-5).sqrt();
            let at = i * n + j;
            // A mean that is one unit off shows in rows that hardly vary.
            let slack = eps + unit * mean.abs() / (variance + 1e-5).sqrt();
            assert!(near(plain[at].to_f64(), y, slack), "{} {y}", plain[at].to_f64());
            let (got, exact) = (moved[at].to_f64(), y + b[j].to_f64());
            assert!((got - exact).abs() <= slack * (2.0 + y.abs() + exact.abs()), "{got} {exact}");
            // The bias may cancel, so the bound is on what goes in.
            let scaled = y * w[j] as f64;
            let (got, exact) = (layer[at].to_f64(), scaled + b[j].to_f64());
            assert!(
                (got - exact).abs()
                    <= slack * (2.0 + scaled.abs() + exact.abs() + w[j].abs() as f64),
                "{got} {exact}"
            );
            assert!(near(rms[at].to_f64(), x / (square + 1e-5).sqrt() * w[j] as f64, eps));
        }
    }
}

#[test]
fn layer_and_rms_norm_agree_with_plain_loops() {
    let mut rng = Rng::new(42);
    for _ in 0..60 {
        check_norms::<f32>(&mut rng, 1e-5);
        check_norms::<f64>(&mut rng, 1e-12);
        check_norms::<f16>(&mut rng, 1.0 / 512.0);
        check_norms::<bf16>(&mut rng, 1.0 / 64.0);
    }
}

/// Each row alone fits the caches; all together are written around them.
fn streamed<T: Element + PartialEq>(rng: &mut Rng) {
    // Rows of many pieces, or hardly longer than one.
    let shape =
        [[40 + rng.below(10), 1100 + rng.below(200)], [900, 60 + rng.below(50)]][rng.below(2)];
    let data = (0..shape[0] * shape[1]).map(|_| T::from_f64(rng.unit() * 20.0)).collect();
    let x = Value::<T>::new(&shape, data);
    let weight = Value::<T>::random(rng, &shape[1..], small);
    let par = Threads { threads: 3, seed: rng.word() };
    let same = |of: &dyn Fn(View<'_>, &ViewMut<'_>, &dyn Parallel), name: &str| {
        let all = filled::<T>(&shape, |out| of(x.view(), out, &par));
        for row in 0..shape[0] {
            let range = row * shape[1]..(row + 1) * shape[1];
            let alone = Value::<T>::new(&[1, shape[1]], x.data[range.clone()].to_vec());
            let alone = filled::<T>(&[1, shape[1]], |out| of(alone.view(), out, &Serial));
            assert!(all[range] == alone[..], "row {row} of {shape:?}, {name}");
        }
    };
    for form in [Form::Plain, Form::Safe, Form::Log] {
        same(&|x, out, par| softmax(x, 1, form, out, par), &format!("{form:?}"));
    }
    let given = Some(weight.view());
    for (weight, bias) in [(None, None), (None, given), (given, None), (given, given)] {
        let name = format!("layer norm, {} {}", weight.is_some(), bias.is_some());
        same(&|x, out, par| layer_norm(x, 1, weight, bias, 1e-5, out, par), &name);
    }
    same(&|x, out, par| rms_norm(x, 1, given, 1e-5, out, par), "RMS norm");
    for (weight, centred) in [(None, true), (given, false), (given, true)] {
        let of = Normed { trailing: 1, eps: 1e-5, centred };
        let name = format!("back, {} {centred}", weight.is_some());
        same(&|x, out, par| norm_back(x, x, weight, of, out, par), &name);
    }
    // What does not lie in rows is copied to the result first.
    let turned = Value::<T>::new(&[shape[1], shape[0]], x.data.clone());
    let view = turned.view();
    let (sizes, steps) = ([1, shape[0], shape[1]], [0, view.strides[1], view.strides[0]]);
    let lies = View { shape: &sizes, strides: &steps, ..view };
    let rows = (0..shape[0]).flat_map(|r| (0..shape[1]).map(move |c| (r, c)));
    let copied = Value::<T>::new(&sizes, rows.map(|(r, c)| turned.get(&[c, r])).collect());
    let [got, want] = [lies, copied.view()]
        .map(|x| filled::<T>(&sizes, |out| layer_norm(x, 1, given, given, 1e-5, out, &par)));
    assert!(got == want, "{shape:?}, turned");
}

#[test]
fn rows_that_are_written_around_the_cache_are_bitwise_the_same() {
    let mut rng = Rng::new(44);
    for _ in 0..6 {
        streamed::<f32>(&mut rng);
        streamed::<f64>(&mut rng);
        streamed::<f16>(&mut rng);
        streamed::<bf16>(&mut rng);
    }
}

fn check_norm_back<T: Element>(rng: &mut Rng, eps: f64) {
    let rank = 1 + rng.below(3);
    let shape: Vec<usize> = (0..rank).map(|_| 1 + rng.below([0, 1500, 90, 14][rank])).collect();
    let (trailing, centred) = (1 + rng.below(rank), rng.below(2) == 0);
    let row = shape[rank - trailing..].to_vec();
    let n: usize = row.iter().product();
    let draw = |r: &mut Rng| T::from_f64(r.unit());
    let [g, x] = [0, 1].map(|_| Value::<T>::random(rng, &shape, draw));
    let weight = Value::<f32>::random(rng, &row, small);
    let weighted = (rng.below(2) == 0).then(|| weight.view());
    let of = Normed { trailing, eps: 0.25, centred };
    let to = [vec![2], row].concat();
    let run = |threads: usize| {
        let par = Threads { threads, seed: threads as u64 };
        let rows =
            filled::<T>(&shape, |out| norm_back(g.view(), x.view(), weighted, of, out, &par));
        let sums = filled::<T>(&to, |out| norm_sums(g.view(), x.view(), of, out, &par));
        let both = [rows.len() + sums.len()];
        let all = filled::<T>(&both, |out| norm_all(g.view(), x.view(), weighted, of, out, &par));
        assert!(all == [&rows[..], &sums].concat(), "both at once are what each is");
        (rows, sums)
    };
    let (rows, sums) = run(1);
    assert!((&rows, &sums) == (&run(2).0, &run(3).1), "the bits are the same on any threads");
    let [g, x] = [g, x].map(|v| v.to_vec().iter().map(|v| v.to_f64()).collect::<Vec<f64>>());
    let weight: Vec<f64> = weight.to_vec().iter().map(|&w| w as f64).collect();
    let mut want = vec![0.0; 2 * n];
    for (r, (g, x)) in g.chunks(n).zip(x.chunks(n)).enumerate() {
        let mean_of = |of: &dyn Fn(usize) -> f64| (0..n).map(of).sum::<f64>() / n as f64;
        let mean = if centred { mean_of(&|i| x[i]) } else { 0.0 };
        let scale = 1.0 / (mean_of(&|i| (x[i] - mean).powi(2)) + 0.25).sqrt();
        let normal = |i: usize| (x[i] - mean) * scale;
        let d = |i: usize| if weighted.is_some() { g[i] * weight[i] } else { g[i] };
        let sum = if centred { mean_of(&d) } else { 0.0 };
        let product = mean_of(&|i| d(i) * normal(i));
        for i in 0..n {
            let one = (d(i) - sum - normal(i) * product) * scale;
            assert!(near(rows[r * n + i].to_f64(), one, eps), "{shape:?} {trailing} {centred}");
            want[i] += g[i] * normal(i);
            want[n + i] += g[i];
        }
    }
    let all = (shape.iter().product::<usize>() / n) as f64;
    assert!(sums.iter().zip(want).all(|(got, want)| near(got.to_f64(), want, eps * all.sqrt())));
}

#[test]
fn what_flows_back_through_norms_agrees_with_plain_loops() {
    let mut rng = Rng::new(45);
    for _ in turns(60) {
        check_norm_back::<f32>(&mut rng, 1e-5);
        check_norm_back::<f64>(&mut rng, 1e-12);
        check_norm_back::<f16>(&mut rng, 2e-3);
        check_norm_back::<bf16>(&mut rng, 1e-2);
    }
}

fn check_softmax_back<T: Element>(rng: &mut Rng, shape: &[usize], dim: usize, eps: f64) {
    let draw = |r: &mut Rng| T::from_f64(r.unit() * 3.0);
    let [g, x] = [0, 1].map(|_| Value::<T>::random(rng, shape, draw));
    let [up, of] = [&g, &x].map(|v| v.to_vec().iter().map(|v| v.to_f64()).collect::<Vec<f64>>());
    for form in [Form::Plain, Form::Log] {
        let result = filled::<T>(shape, |out| softmax(x.view(), dim, form, out, &Serial));
        let result = Value::<T>::new(shape, result);
        let run = |threads: usize, is_result: bool| {
            let of = if is_result { result.view() } else { x.view() };
            let par = Threads { threads, seed: threads as u64 };
            filled::<T>(shape, |out| softmax_back(g.view(), of, dim, form, is_result, out, &par))
        };
        for is_result in [true, false] {
            let got = run(1, is_result);
            assert!(got == run(3, is_result), "the bits are the same on any threads");
            for line in lines(shape, dim) {
                let largest = line.iter().map(|&i| of[i]).fold(f64::NEG_INFINITY, f64::max);
                let total: f64 = line.iter().map(|&i| (of[i] - largest).exp()).sum();
                let share = |i: usize| (of[i] - largest).exp() / total;
                let is_log = form == Form::Log;
                let sum: f64 =
                    line.iter().map(|&i| up[i] * if is_log { 1.0 } else { share(i) }).sum();
                for &i in &line {
                    let want =
                        if is_log { up[i] - share(i) * sum } else { share(i) * (up[i] - sum) };
                    // A result that is rounded has lost some of it.
                    let eps = if is_result { eps * 30.0 } else { eps };
                    let all = line.len() as f64;
                    let got = got[i].to_f64();
                    assert!(near(got, want, eps * all.sqrt()), "{got} for {want}, {form:?}");
                }
            }
        }
    }
}

#[test]
fn what_flows_back_through_softmax_agrees_with_plain_loops() {
    let mut rng = Rng::new(46);
    for turn in turns(40) {
        let rank = 1 + rng.below(3);
        let mut shape = random_shape(&mut rng, rank, [0, 1500, 60, 12][rank]);
        let mut dim = rng.below(rank);
        if turn % 4 == 0 {
            (shape, dim) = (columns(&mut rng, turn / 4), 0);
        }
        check_softmax_back::<f32>(&mut rng, &shape, dim, 3e-6);
        check_softmax_back::<f64>(&mut rng, &shape, dim, 1e-13);
        check_softmax_back::<f16>(&mut rng, &shape, dim, 6e-4);
        check_softmax_back::<bf16>(&mut rng, &shape, dim, 5e-3);
    }
}

at_every_level! {
    what_flows_back_through_softmax_agrees_with_plain_loops
    softmax_of_any_layout_agrees_with_a_plain_loop
    rows_without_a_finite_element_are_nan_and_their_logsumexp_is_infinite
    layer_and_rms_norm_agree_with_plain_loops
    what_flows_back_through_norms_agrees_with_plain_loops
    rows_that_are_written_around_the_cache_are_bitwise_the_same
}

/// Both numbers of each channel, from two numbers of each element.
fn of_channels(
    shape: &[usize],
    of: impl Fn(usize, usize) -> (f64, f64),
    end: impl Fn(f64, usize) -> f64,
) -> Vec<f64> {
    let mut sums = vec![0.0; 2 * shape[1]];
    for (i, index) in indices(shape).iter().enumerate() {
        let (a, b) = of(i, index[1]);
        sums[index[1]] += a;
        sums[shape[1] + index[1]] += b;
    }
    let count = shape.iter().product::<usize>() / shape[1];
    sums.iter().map(|&sum| end(sum, count)).collect()
}

fn check_channels<T: Element, W: Element>(rng: &mut Rng, eps: f64) {
    // Few and many channels, in long and short runs, more than a piece of each, and side by side.
    let shapes: [&[usize]; 8] = [
        &[3, 5, 7, 9],
        &[40, 3, 49],
        &[2, 4, 7001],
        &[300, 270],
        &[150, 33, 2],
        &[9, 1, 1, 300],
        &[1, 6, 1],
        &[35, 20, 3, 3],
    ];
    let shape = shapes[rng.below(shapes.len())];
    let far = [0.0, 50.0][rng.below(2)];
    let draw = |r: &mut Rng| T::from_f64(r.unit() * 2.0 + far);
    let x = Value::<T>::random(rng, shape, draw);
    let g = Value::<T>::random(rng, shape, |r| T::from_f64(r.unit()));
    let [up, all] = [&g, &x].map(|v| v.to_vec().iter().map(|v| v.to_f64()).collect::<Vec<f64>>());
    let mean = of_channels(shape, |i, _| (all[i], 0.0), |sum, count| sum / count as f64);
    let apart = |i: usize, channel: usize| all[i] - mean[channel];
    let over = |sum, count| sum / count as f64;
    let stats = of_channels(shape, |i, c| (all[i], apart(i, c).powi(2)), over);
    let sums = of_channels(shape, |i, c| (up[i], up[i] * apart(i, c)), |sum, _| sum);
    let to = [2, shape[1]];
    let means = mean[..shape[1]].iter().map(|&m| W::from_f64(m)).collect();
    let means = Value::<W>::new(&to[1..], means);
    let run = |threads: usize| {
        let par = Threads { threads, seed: threads as u64 };
        let stats = filled::<W>(&to, |out| channel_stats(x.view(), out, &par));
        let sums = filled::<W>(&to, |out| {
            channel_sums(g.view(), x.view(), means.view(), out, &par);
        });
        (stats, sums)
    };
    let found = run(1);
    assert!(found == run(2) && found == run(3), "the bits are the same on any threads");
    let root = (all.len() as f64).sqrt();
    for (k, (got, want)) in found.0.iter().zip(&stats).enumerate() {
        assert!(near(got.to_f64(), *want, eps * (1.0 + far)), "{shape:?} {k} {got:?} {want}");
    }
    for (k, (got, want)) in found.1.iter().zip(&sums).enumerate() {
        let eps = eps * root * (1.0 + far);
        assert!(near(got.to_f64(), *want, eps), "{shape:?} {k} {got:?} {want}");
    }
}

#[test]
fn what_is_found_of_channels_agrees_with_plain_loops() {
    let mut rng = Rng::new(46);
    for _ in turns(60) {
        check_channels::<f32, f32>(&mut rng, 1e-6);
        check_channels::<f64, f64>(&mut rng, 1e-14);
        check_channels::<f16, f32>(&mut rng, 1e-6);
        check_channels::<bf16, f32>(&mut rng, 1e-6);
    }
}
