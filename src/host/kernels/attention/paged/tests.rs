//! Attention over pages beside one softmax in float64.

use super::*;
use crate::host::kernels::testing::*;
use crate::view::Serial;

/// Softmax of all scores at once, in float64, of one query over the keys of its row.
#[test]
fn queries_find_what_one_softmax_over_their_pages_does_whoever_is_beside_them() {
    let mut rng = Rng::new(58);
    for turn in turns(24) {
        let (queries, shared, group) = (1 + rng.below(20), 1 + rng.below(2), 1 + rng.below(3));
        let (page, width, wide) = (1 + rng.below(40), 1 + rng.below(40), 1 + rng.below(90));
        let (pages, most, causal) =
            (9, 1 + rng.below(if turn % 4 == 0 { 40 } else { 4 }), turn % 2 == 0);
        let heads = shared * group;
        let cap = (turn % 3 == 1).then_some(0.7);
        let window = (turn % 5 < 2).then(|| 1 + rng.below(if turn % 5 == 0 { 20 } else { 700 }));
        let draw = |r: &mut Rng| (r.unit() * 2.0 - 1.0) as f32;
        let q = Value::<f32>::random(&mut rng, &[2, queries, heads, width], draw);
        let k = Value::<f32>::random(&mut rng, &[pages, page, shared, width], draw);
        let v = Value::<f32>::random(&mut rng, &[pages, page, shared, wide], draw);
        let mut table = Value::<i32>::random(&mut rng, &[2, most], |r| r.below(9) as i32);
        if turn % 3 == 0 {
            table = Value::new(&[2, most], table.to_vec()[..most].repeat(2));
        }
        let lengths = Value::<i64>::random(&mut rng, &[2], |r| r.below(most * page + 1) as i64);
        let all = Paged {
            q: q.view(),
            k: k.view(),
            v: v.view(),
            table: table.view(),
            lengths: lengths.view(),
            scale: 0.5,
            cap,
            window,
            causal,
        };
        let shape = [2, queries, heads, wide];
        let run = |par: &dyn Parallel| filled::<f32>(&shape, |out| paged(&all, out, par).unwrap());
        let got = run(&Threads { threads: 3, seed: rng.word() });
        assert_eq!(got, run(&Serial), "threads show in the result");
        for (i, at) in indices(&shape[..3]).into_iter().enumerate() {
            let (b, j, h) = (at[0], at[1], at[2]);
            let length = lengths.get(&[b]) as usize;
            let limit = if causal { (length + j + 1).saturating_sub(queries) } else { length };
            let place = |key: usize| [table.get(&[b, key / page]) as usize, key % page, h / group];
            let first = window.map_or(0, |window| limit.saturating_sub(window));
            let scores: Vec<f64> = (first..limit)
                .map(|key| {
                    let each = |c| {
                        q.get(&[b, j, h, c]) as f64
                            * k.get(&[&place(key)[..], &[c]].concat()) as f64
                    };
                    let score = (0..width).map(each).sum::<f64>() * 0.5;
                    cap.map_or(score, |cap| cap * (score / cap).tanh())
                })
                .collect();
            let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let powers: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
            let total: f64 = powers.iter().sum();
            for c in 0..wide {
                let value = |key| v.get(&[&place(key)[..], &[c]].concat()) as f64;
                let sum: f64 = powers.iter().zip(first..).map(|(p, key)| p * value(key)).sum();
                let want = if limit == 0 { 0.0 } else { sum / total };
                let got = got[i * wide + c] as f64;
                assert!((got - want).abs() < 2e-5, "{turn} {at:?} {c}: {got} {want}");
            }
            // Alone, with other pages around: the same bits.
            if causal && limit > 0 && i % 7 == 0 {
                let own: Vec<i32> = (0..limit.div_ceil(page)).map(|p| table.get(&[b, p])).collect();
                let own = Value::<i32>::new(&[1, own.len()], own);
                let seen = Value::<i64>::new(&[1], vec![limit as i64]);
                let row: Vec<f32> =
                    (0..heads * width).map(|i| q.get(&[b, j, i / width, i % width])).collect();
                let q = Value::<f32>::new(&[1, 1, heads, width], row);
                let alone = Paged { q: q.view(), table: own.view(), lengths: seen.view(), ..all };
                let alone =
                    filled::<f32>(&[1, 1, heads, wide], |out| paged(&alone, out, &Serial).unwrap());
                assert_eq!(alone[h * wide..][..wide], got[i * wide..][..wide], "{turn} {at:?}");
            }
        }
    }
}

at_every_level! {
    queries_find_what_one_softmax_over_their_pages_does_whoever_is_beside_them
}
