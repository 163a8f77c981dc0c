//! The choice of tokens beside a plain loop in float64, on a model that says what follows by the
//! last token alone: so every distribution is known.

use super::{answer, files};
use futensor::{CpuOptions, Device};
use futensor_generate::{Engine, Options, Request, Sampling};

/// Tokens of the vocabulary.
const COUNT: usize = 96;

/// SplitMix64 (Steele, Lea and Flood 2014): its finaliser.
fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Log-odds of each token after each, of both signs; the larger `spread`, the surer.
fn logits(spread: f32) -> Vec<Vec<f32>> {
    let of = |last: usize, next: usize| {
        let random = mix((last * COUNT + next) as u64 + 1) >> 40;
        (random as f32 / (1u64 << 24) as f32 - 0.6) * spread
    };
    (0..COUNT).map(|last| (0..COUNT).map(|next| of(last, next)).collect()).collect()
}

fn engine(logits: &[Vec<f32>]) -> Engine {
    let device = Device::cpu_with(CpuOptions::default());
    let model = files::table(&device, logits, Vec::new());
    Engine::start(model, Options { slots: 64, ..Options::default() }).unwrap()
}

/// The tokens that may follow a text, in their order, with their probabilities. The answer begins
/// at `prompt`.
fn distribution(logits: &[Vec<f32>], text: &[u32], prompt: usize, s: &Sampling) -> Vec<(u32, f64)> {
    let mut row: Vec<f64> =
        logits[*text.last().unwrap() as usize].iter().map(|&x| x.into()).collect();
    let mut seen = text[text.len().saturating_sub(64)..].to_vec();
    seen.sort();
    seen.dedup();
    for token in seen {
        let x = &mut row[token as usize];
        let penalty = f64::from(s.repetition_penalty);
        *x = if *x > 0.0 { *x / penalty } else { *x * penalty };
    }
    for (token, x) in row.iter_mut().enumerate() {
        let count = text[prompt..].iter().filter(|&&t| t as usize == token).count() as f64;
        *x -= f64::from(s.frequency_penalty) * count;
        *x -= f64::from(s.presence_penalty) * count.min(1.0);
    }
    s.logit_bias.iter().for_each(|&(token, bias)| row[token as usize] += f64::from(bias));
    let mut order: Vec<u32> = (0..row.len() as u32).collect();
    order.sort_by(|&a, &b| row[b as usize].total_cmp(&row[a as usize]).then(a.cmp(&b)));
    let (greedy, best) = (s.temperature == 0.0, row[order[0] as usize]);
    let temperature = if greedy { 1.0 } else { f64::from(s.temperature) };
    let weight = |token: u32| ((row[token as usize] - best) / temperature).exp();
    order.retain(|&token| weight(token) >= f64::from(s.min_p));
    match (greedy, s.top_k) {
        (true, _) => order.truncate(1),
        (false, 0) => {}
        (false, k) => order.truncate(k),
    }
    let total: f64 = order.iter().map(|&token| weight(token)).sum();
    // Of the likeliest, the fewest that together have the probability.
    let mut sum = 0.0;
    let mut kept: Vec<u32> = order
        .into_iter()
        .take_while(|&token| {
            let before = sum;
            sum += weight(token) / total;
            before < s.top_p.into()
        })
        .collect();
    kept.sort();
    let total: f64 = kept.iter().map(|&token| weight(token)).sum();
    kept.into_iter().map(|token| (token, weight(token) / total)).collect()
}

/// The one of them that a number in [0, 1) stands for; `None` too close to a border to say.
fn drawn(from: &[(u32, f64)], number: f64) -> Option<u32> {
    let mut sum = 0.0;
    for &(token, p) in from {
        if (sum - number).abs() < 1e-4 && sum > 0.0 {
            return None;
        }
        sum += p;
        if number < sum - 1e-4 {
            return Some(token);
        }
    }
    None
}

#[test]
fn every_token_is_the_one_that_a_plain_loop_draws() {
    let logits = logits(6.0);
    let engine = engine(&logits);
    let prompt: Vec<u32> = (0..80).map(|k| (k * 11 % 7 + k / 40 * 40) as u32).collect();
    let base = Sampling { temperature: 1.0, ..Sampling::default() };
    let mut all = vec![Sampling::default(), base.clone()];
    for temperature in [0.3, 0.7, 1.6, 5.0] {
        all.push(Sampling { temperature, ..base.clone() });
    }
    for top_k in [1, 2, 5, 64, 70, 95, 500] {
        all.push(Sampling { top_k, temperature: 2.0, ..base.clone() });
    }
    for top_p in [0.05, 0.4, 0.8, 0.95] {
        all.push(Sampling { top_p, temperature: 2.0, ..base.clone() });
    }
    for repetition_penalty in [0.4, 0.9, 1.3, 4.0] {
        all.push(Sampling { repetition_penalty, ..base.clone() });
        all.push(Sampling { repetition_penalty, ..Sampling::default() });
    }
    for min_p in [0.02, 0.2, 0.9, 1.0] {
        all.push(Sampling { min_p, temperature: 2.0, ..base.clone() });
    }
    for penalty in [-0.5, 0.3, 2.0] {
        all.push(Sampling { frequency_penalty: penalty, ..base.clone() });
        all.push(Sampling { presence_penalty: penalty, ..base.clone() });
        all.push(Sampling { frequency_penalty: penalty, ..Sampling::default() });
    }
    all.push(Sampling { presence_penalty: 1.5, ..Sampling::default() });
    let logit_bias = vec![(3, 2.5), (40, -1.5), (95, 1.0), (7, -100.0), (12, 0.5)];
    all.push(Sampling { logit_bias: logit_bias.clone(), ..base.clone() });
    all.push(Sampling { logit_bias: vec![(50, 100.0)], ..Sampling::default() });
    let every = Sampling {
        temperature: 1.4,
        top_k: 30,
        top_p: 0.85,
        min_p: 0.03,
        repetition_penalty: 1.2,
        frequency_penalty: 0.4,
        presence_penalty: -0.3,
        logit_bias,
        seed: 0,
    };
    all.extend((0..6).map(|seed| Sampling { seed, ..every.clone() }));
    // And texts that have fewer tokens than a penalty looks at, one of them a single one.
    let texts = [&prompt[..], &prompt[1..4], &prompt[9..10]];
    let asked = all.iter().flat_map(|sampling| texts.map(|text| (text, sampling)));
    let streams: Vec<_> = (1..)
        .zip(asked)
        .map(|(k, (prompt, sampling))| {
            let sampling = Sampling { seed: sampling.seed * 1000 + k, ..sampling.clone() };
            let prompt = prompt.to_vec();
            let mut request =
                Request::new(prompt.clone()).tokens_max(100).sampling(sampling.clone());
            request.ignore_end = true;
            (prompt, sampling, engine.generate(request).unwrap())
        })
        .collect();
    let mut unsure = 0;
    for (prompt, sampling, stream) in streams {
        let tokens = futensor::block_on(futures::StreamExt::collect::<Vec<_>>(stream));
        let mut text = prompt.clone();
        for token in tokens {
            let from = distribution(&logits, &text, prompt.len(), &sampling);
            let step = (text.len() as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let number =
                (mix(mix(sampling.seed).wrapping_add(step)) >> 40) as f64 / (1u64 << 24) as f64;
            let id = token.unwrap().id;
            match drawn(&from, if sampling.temperature == 0.0 { 0.0 } else { number }) {
                Some(expected) => assert_eq!(id, expected, "{sampling:?}, token {}", text.len()),
                None => unsure += 1,
            }
            text.push(id);
        }
        assert_eq!(text.len(), prompt.len() + 100);
    }
    assert!(unsure < 500, "{unsure} near a border");
}

/// Many answers of one token: their counts fit the probabilities (chi-squared, at 1 in 10,000;
/// seeds are given, so it is always the same).
#[test]
fn tokens_are_as_frequent_as_they_are_probable() {
    let logits = logits(4.0);
    let engine = engine(&logits);
    let base = Sampling { temperature: 1.0, ..Sampling::default() };
    for sampling in [
        base.clone(),
        Sampling { temperature: 0.5, ..base.clone() },
        Sampling { top_k: 4, ..base.clone() },
        Sampling { top_p: 0.5, ..base.clone() },
        Sampling { min_p: 0.1, ..base.clone() },
        Sampling { repetition_penalty: 2.0, ..base.clone() },
        Sampling { logit_bias: vec![(11, 3.0), (60, 2.0)], ..base.clone() },
    ] {
        let count = 2_000;
        let streams: Vec<_> = (0..count)
            .map(|seed| {
                let sampling = Sampling { seed, ..sampling.clone() };
                engine
                    .generate(Request::new(vec![3, 5, 90, 7]).tokens_max(1).sampling(sampling))
                    .unwrap()
            })
            .collect();
        let mut counts = [0u32; COUNT];
        for stream in streams {
            let tokens = futensor::block_on(futures::StreamExt::collect::<Vec<_>>(stream));
            counts[tokens[0].as_ref().unwrap().id as usize] += 1;
        }
        let expected = distribution(&logits, &[3, 5, 90, 7], 4, &sampling);
        let (mut squares, mut freedom, mut rest) = (0.0, 0, (0.0, 0.0));
        for &(token, p) in &expected {
            let (wanted, found) = (p * count as f64, f64::from(counts[token as usize]));
            counts[token as usize] = 0;
            if wanted < 8.0 {
                rest = (rest.0 + wanted, rest.1 + found);
                continue;
            }
            squares += (found - wanted).powi(2) / wanted;
            freedom += 1;
        }
        if rest.0 > 0.0 {
            squares += (rest.1 - rest.0).powi(2) / rest.0;
            freedom += 1;
        }
        assert_eq!(counts.iter().sum::<u32>(), 0, "{sampling:?}: tokens that cannot be");
        // Wilson and Hilferty's cube root, at 3.72 deviations.
        let f = f64::from(freedom - 1);
        let most = f * (1.0 - 2.0 / (9.0 * f) + 3.72 * (2.0 / (9.0 * f)).sqrt()).powi(3);
        assert!(
            freedom > 2 && squares < most,
            "{sampling:?}: {squares} of {most} with {freedom} kinds"
        );
    }
}

#[test]
fn probabilities_are_told_before_temperature_and_penalty() {
    let logits = logits(4.0);
    let engine = engine(&logits);
    let sampling =
        Sampling { temperature: 3.0, repetition_penalty: 3.0, seed: 4, ..Sampling::default() };
    let prompt = vec![9, 8, 7];
    let mut request = Request::new(prompt.clone()).tokens_max(20).sampling(sampling).logprobs(5);
    request.ignore_end = true;
    let mut last = 7;
    for token in answer(&engine, request) {
        let row = &logits[last as usize];
        let total = row.iter().map(|&x| f64::from(x).exp()).sum::<f64>().ln();
        let of = |id: u32| f64::from(row[id as usize]) - total;
        let told = token.logprobs.unwrap();
        assert!((f64::from(told.chosen) - of(token.id)).abs() < 1e-4);
        let mut order: Vec<u32> = (0..COUNT as u32).collect();
        order.sort_by(|&a, &b| of(b).total_cmp(&of(a)));
        assert_eq!(told.alternatives.iter().map(|(id, _)| *id).collect::<Vec<_>>(), order[..5]);
        assert!(told.alternatives.iter().all(|&(id, p)| (f64::from(p) - of(id)).abs() < 1e-4));
        last = token.id;
    }
}

#[test]
fn the_default_is_the_same_each_time_and_seeds_are_not() {
    let logits = logits(4.0);
    let engine = engine(&logits);
    let ids = |sampling: Sampling| {
        let mut request = Request::new(vec![1]).tokens_max(30).sampling(sampling);
        request.ignore_end = true;
        answer(&engine, request).iter().map(|t| t.id).collect::<Vec<_>>()
    };
    let of = |seed| Sampling { temperature: 1.0, seed, ..Sampling::default() };
    assert_eq!(ids(of(0)), ids(Sampling { temperature: 1.0, ..Sampling::default() }));
    let all: std::collections::BTreeSet<Vec<u32>> = (0..20).map(|seed| ids(of(seed))).collect();
    assert_eq!(all.len(), 20);
}

/// A prompt of one token has nothing before it that is penalised.
#[test]
fn a_prompt_of_one_token_penalises_that_one_alone() {
    let logits = vec![vec![5.0, 4.0, 1.0]; 3];
    let engine = engine(&logits);
    let sampling = Sampling { repetition_penalty: 2.0, ..Sampling::default() };
    let mut request = Request::new(vec![1]).tokens_max(1).sampling(sampling);
    request.ignore_end = true;
    assert_eq!(answer(&engine, request)[0].id, 0);
}

/// Every wish that a step may have, beside a row that has none of them: its tokens are the same.
#[test]
fn a_draw_is_the_same_whatever_the_neighbours_wish() {
    let logits = logits(5.0);
    let engine = engine(&logits);
    let base = Sampling { temperature: 1.0, ..Sampling::default() };
    let own = [
        base.clone(),
        Sampling { top_k: 3, ..base.clone() },
        Sampling { top_p: 0.8, frequency_penalty: 0.5, ..base.clone() },
        Sampling { frequency_penalty: 0.7, presence_penalty: 0.3, ..Sampling::default() },
    ];
    let beside = [
        Sampling { top_k: 90, ..base.clone() },
        Sampling { logit_bias: (0..90).map(|t| (t, 0.1)).collect(), ..base.clone() },
        Sampling { min_p: 0.3, presence_penalty: 1.0, ..base.clone() },
        Sampling { repetition_penalty: 1.7, ..Sampling::default() },
    ];
    let ask = |sampling: &Sampling, seed: u64| {
        let sampling = Sampling { seed, ..sampling.clone() };
        let mut request = Request::new(vec![5]).tokens_max(60).sampling(sampling);
        request.ignore_end = true;
        engine.generate(request).unwrap()
    };
    let ids = |tokens: futensor_generate::Tokens| -> Vec<u32> {
        let tokens = futensor::block_on(futures::StreamExt::collect::<Vec<_>>(tokens));
        tokens.into_iter().map(|token| token.unwrap().id).collect()
    };
    for (seed, sampling) in (0..).zip(&own) {
        let alone = ids(ask(sampling, seed));
        let others: Vec<_> = (0..).zip(&beside).map(|(k, s)| ask(s, k)).collect();
        let among = ids(ask(sampling, seed));
        assert_eq!(alone, among, "{sampling:?}");
        drop(others);
    }
}
