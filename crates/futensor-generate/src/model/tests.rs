//! A small model of random weights: beside the same arithmetic in plain loops of float64, and
//! beside itself in other company.

use super::load::testing;
use super::*;
use crate::engine::Engine;
use crate::options::Options;
use crate::request::{Request, Token};
use crate::tokenizer::testing::vocabulary;
use crate::{Constraint, End};
use futensor::quant::{Format, Quantized, Weight};
use futensor::{CpuOptions, DType, Generator, TensorFuture, block_on};
use futures::StreamExt;
use std::collections::BTreeMap;

const VOCABULARY: usize = 264;

fn config() -> Config {
    Config {
        width: 64,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head: 16,
        feed_forward: 96,
        context: 256,
        epsilon: 1e-5,
        rope: Rope {
            base: 10_000.0,
            scaling: Scaling::None,
            neighbours: true,
            turned: 16,
            magnitude: 1.0,
        },
        // The last layer sees a window.
        variant: Variant { windows: vec![None, Some(9)], ..Variant::default() },
    }
}

/// Random weights by GGUF's names; matrices as the format has them, or dense.
fn tensors(device: &Device, format: Option<Format>) -> BTreeMap<String, Weight> {
    let (c, random) = (config(), Generator::new(7));
    let mut all = BTreeMap::new();
    let matrix = |out: usize, into: usize| {
        let x = random.randn(device, [out, into]) * (into as f64).sqrt().recip() * 1.5;
        format.map_or(Weight::Dense(x.clone()), |f| Quantized::from_tensor(&x, f).unwrap().into())
    };
    let norm = || Weight::Dense(random.rand(device, [c.width]) + 0.5);
    all.insert("token_embd.weight".to_string(), matrix(VOCABULARY, c.width));
    all.insert("output_norm.weight".to_string(), norm());
    for k in 0..c.layers {
        for (name, out, into) in [
            ("attn_q", c.width, c.width),
            ("attn_k", c.kv_heads * c.head, c.width),
            ("attn_v", c.kv_heads * c.head, c.width),
            ("attn_output", c.width, c.width),
            ("ffn_gate", c.feed_forward, c.width),
            ("ffn_up", c.feed_forward, c.width),
            ("ffn_down", c.width, c.feed_forward),
        ] {
            all.insert(format!("blk.{k}.{name}.weight"), matrix(out, into));
        }
        for name in ["attn_norm", "ffn_norm"] {
            all.insert(format!("blk.{k}.{name}.weight"), norm());
        }
    }
    all
}

fn llama(format: Option<Format>) -> Llama {
    let device = Device::cpu_with(CpuOptions::default());
    testing::llama(&device, config(), tensors(&device, format), vocabulary().tokenizer().unwrap())
        .unwrap()
}

/// The same with experts.
fn mixture() -> Llama {
    let (device, mut config) = (Device::cpu_with(CpuOptions::default()), config());
    let (random, count, inner) = (Generator::new(8), 6, 32);
    config.variant.experts =
        Some(Experts { count, used: 2, feed_forward: inner, normalised: true, shared: None });
    let mut tensors = tensors(&device, Some(Format::Q8_0));
    tensors.retain(|name, _| !name.contains(".ffn_") || name.contains("ffn_norm"));
    for k in 0..config.layers {
        let wide = config.width;
        for (name, out, into) in [
            ("ffn_gate_inp", count, wide),
            ("ffn_gate_exps", count * inner, wide),
            ("ffn_up_exps", count * inner, wide),
            ("ffn_down_exps", count * wide, inner),
        ] {
            let x = random.randn(&device, [out, into]) * (into as f64).sqrt().recip() * 1.5;
            let weight = match name {
                "ffn_gate_inp" => Weight::Dense(x),
                _ => Quantized::from_tensor(&x, Format::Q8_0).unwrap().into(),
            };
            tensors.insert(format!("blk.{k}.{name}.weight"), weight);
        }
    }
    testing::llama(&device, config, tensors, vocabulary().tokenizer().unwrap()).unwrap()
}

fn engine(format: Option<Format>, options: Options) -> Engine {
    started(llama(format), options)
}

fn started(model: Llama, options: Options) -> Engine {
    Engine::start(model, Options { page: 8, context: 256, ..options }).unwrap()
}

fn all(tokens: crate::Tokens) -> Vec<Token> {
    block_on(tokens.map(|token| token.unwrap()).collect())
}

/// Looks again and again until it is so.
fn until(is_so: impl Fn() -> bool) {
    let begin = std::time::Instant::now();
    while !is_so() {
        assert!(begin.elapsed().as_secs() < 30, "it does not come to be");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// A model in plain loops.
struct Plain(BTreeMap<String, (Vec<f64>, usize)>);

impl Plain {
    fn new(tensors: &BTreeMap<String, Weight>) -> Plain {
        let values =
            |x: TensorFuture| block_on(x.to_dtype(futensor::DType::F64).to_vec::<f64>()).unwrap();
        let of = |w: &Weight| (values(w.dense()), *w.dims().last().unwrap());
        Plain(tensors.iter().map(|(name, w)| (name.clone(), of(w))).collect())
    }

    fn times(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let (weight, into) = &self.0[&format!("{name}.weight")];
        assert_eq!(*into, x.len());
        weight.chunks(*into).map(|row| row.iter().zip(x).map(|(a, b)| a * b).sum()).collect()
    }

    fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let scale =
            (x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64 + config().epsilon).sqrt();
        x.iter().zip(&self.0[&format!("{name}.weight")].0).map(|(v, w)| v / scale * w).collect()
    }

    fn turn(x: &mut [f64], at: usize) {
        let head = config().head;
        let frequencies = config().rope.frequencies();
        for (pair, k) in x.chunks_mut(2).zip((0..head / 2).cycle()) {
            let (sine, cosine) = (at as f64 * frequencies[k]).sin_cos();
            (pair[0], pair[1]) =
                (pair[0] * cosine - pair[1] * sine, pair[0] * sine + pair[1] * cosine);
        }
    }

    /// Log-probabilities of what follows.
    fn logprobs(&self, tokens: &[u32]) -> Vec<f64> {
        let c = config();
        let mut kept = vec![(Vec::new(), Vec::new()); c.layers];
        let mut x = Vec::new();
        for (at, &token) in tokens.iter().enumerate() {
            x = self.0["token_embd.weight"].0[token as usize * c.width..][..c.width].to_vec();
            for (k, (keys, values)) in kept.iter_mut().enumerate() {
                let name = |part: &str| format!("blk.{k}.{part}");
                let h = self.norm(&name("attn_norm"), &x);
                let (mut query, mut key) =
                    (self.times(&name("attn_q"), &h), self.times(&name("attn_k"), &h));
                Plain::turn(&mut query, at);
                Plain::turn(&mut key, at);
                keys.push(key);
                values.push(self.times(&name("attn_v"), &h));
                let first = c.window_of(k).map_or(0, |window| keys.len().saturating_sub(window));
                let (keys, values) = (&keys[first..], &values[first..]);
                let mut seen = Vec::new();
                for (j, query) in query.chunks(c.head).enumerate() {
                    let own = j / (c.heads / c.kv_heads) * c.head
                        ..(j / (c.heads / c.kv_heads) + 1) * c.head;
                    let score = |key: &Vec<f64>| {
                        let sum: f64 = key[own.clone()].iter().zip(query).map(|(a, b)| a * b).sum();
                        (sum / (c.head as f64).sqrt()).exp()
                    };
                    let weights: Vec<f64> = keys.iter().map(score).collect();
                    let total: f64 = weights.iter().sum();
                    seen.extend(own.clone().map(|e| {
                        values.iter().zip(&weights).map(|(value, w)| value[e] * w).sum::<f64>()
                            / total
                    }));
                }
                x = x
                    .iter()
                    .zip(self.times(&name("attn_output"), &seen))
                    .map(|(a, b)| a + b)
                    .collect();
                let h = self.norm(&name("ffn_norm"), &x);
                let (gate, up) =
                    (self.times(&name("ffn_gate"), &h), self.times(&name("ffn_up"), &h));
                let inner: Vec<f64> =
                    gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
                x = x
                    .iter()
                    .zip(self.times(&name("ffn_down"), &inner))
                    .map(|(a, b)| a + b)
                    .collect();
            }
        }
        let logits = self.times("token_embd", &self.norm("output_norm", &x));
        let total: f64 = logits.iter().map(|l| l.exp()).sum();
        logits.iter().map(|l| l - total.ln()).collect()
    }
}

#[test]
fn the_arithmetic_is_that_of_plain_loops() {
    // Keys and values are kept as float16; and products with quantised weights round what they
    // multiply to 8 bits, half a percent each.
    let formats = [
        (None, 0.02),
        (Some(Format::F16), 0.02),
        (Some(Format::Q8_0), 0.4),
        (Some(Format::Q4_1), 0.4),
    ];
    for (format, bound) in formats {
        let device = Device::cpu_with(CpuOptions::default());
        let plain = Plain::new(&tensors(&device, format));
        let engine =
            engine(format, Options { chunk: 5, slots: 1, chunk_beside: 4, ..Options::default() });
        let mut text: Vec<u32> = (0..19).map(|k| 2 + k * 37 % 250).collect();
        let mut request = Request::new(text.clone()).tokens_max(12).logprobs(20);
        request.ignore_end = true;
        let tokens = all(engine.generate(request).unwrap());
        assert_eq!(tokens.len(), 12);
        for token in tokens {
            let expected = plain.logprobs(&text);
            let logprobs = token.logprobs.unwrap();
            for &(id, logprob) in logprobs.alternatives.iter().chain(&[(token.id, logprobs.chosen)])
            {
                let off = (logprob as f64 - expected[id as usize]).abs();
                assert!(
                    off < bound,
                    "{format:?}: {logprob} is {off} off {}",
                    expected[id as usize]
                );
            }
            let best = expected.iter().copied().fold(f64::MIN, f64::max);
            assert!(
                expected[token.id as usize] >= best - 2.0 * bound,
                "{format:?}: the likeliest is chosen"
            );
            text.push(token.id);
        }
    }
}

/// Requests of every kind, with common beginnings.
fn requests() -> Vec<Request> {
    let text = |k: u32, n: u32| {
        (0..n).map(|at| 2 + (at * 31 + if at > 12 { k } else { 0 }) % 250).collect::<Vec<_>>()
    };
    (0..16u32)
        .map(|k| {
            let mut request =
                Request::new(text(k, 3 + k * 5)).tokens_max(6 + k as usize % 5).logprobs(3);
            request.ignore_end = true;
            match k % 4 {
                0 => {}
                1 => request.sampling.repetition_penalty = 1.3,
                _ => {
                    request.sampling = Sampling {
                        temperature: 0.9,
                        top_p: 0.95,
                        seed: k.into(),
                        ..Sampling::default()
                    }
                }
            }
            if k % 8 == 7 {
                request.constraint = Some(Constraint::Regex("[a-z ]+".into()).into());
            }
            request
        })
        .collect()
}

#[test]
fn tokens_are_the_same_whoever_else_is_there() {
    let options =
        |chunk, slots| Options { chunk, slots, chunk_beside: chunk, ..Options::default() };
    let models: [(&str, fn() -> Llama); 4] = [
        ("Q4_1", || llama(Some(Format::Q4_1))),
        ("BF16", || llama(Some(Format::BF16))),
        ("float32", || llama(None)),
        ("experts", mixture),
    ];
    for (name, model) in models {
        let requests = requests();
        let alone: Vec<Vec<Token>> = requests
            .iter()
            .map(|request| {
                all(started(model(), options(256, 1)).generate(request.clone()).unwrap())
            })
            .collect();
        for (chunk, slots) in [(7, 3), (64, 64)] {
            let engine = started(model(), options(chunk, slots));
            // Each is there several times, so that there are 64.
            let streams: Vec<_> = (0..4)
                .flat_map(|_| &requests)
                .map(|r| engine.generate(r.clone()).unwrap())
                .collect();
            let together: Vec<Vec<Token>> = block_on(futures::future::join_all(
                streams.into_iter().map(|s| s.map(|t| t.unwrap()).collect()),
            ));
            for (k, tokens) in together.iter().enumerate() {
                assert_eq!(tokens, &alone[k % 16], "{name}, {slots} slots, request {}", k % 16);
            }
            assert!(engine.stats().shared_tokens > 0, "beginnings are shared");
            assert_eq!(engine.stats().failed, 0);
            // The last step is under way yet.
            until(|| engine.stats().pages_used == 0);
        }
    }
}

#[test]
fn an_answer_ends_where_it_is_to_end() {
    let engine = engine(None, Options::default());
    let mut request = Request::new(vec![5, 6, 7]).tokens_max(9);
    request.ignore_end = true;
    let tokens = all(engine.generate(request.clone()).unwrap());
    assert_eq!(tokens.iter().map(|t| t.end).collect::<Vec<_>>()[7..], [None, Some(End::Length)]);
    let text: String = tokens.iter().map(|t| &t.text[..]).collect();
    assert_eq!(
        text,
        engine.model().tokenizer().decode(&tokens.iter().map(|t| t.id).collect::<Vec<_>>())
    );
    // A stop word in the middle of it.
    let stop =
        tokens.iter().find(|t| t.text.is_ascii() && !t.text.is_empty()).map(|t| t.text.clone());
    if let Some(stop) = stop {
        let tokens = all(engine.generate(request.clone().stop([stop.clone()])).unwrap());
        assert_eq!(tokens.last().unwrap().end, Some(End::Stop));
        let before = text.split(&stop).next().unwrap();
        assert_eq!(tokens.iter().map(|t| &t.text[..]).collect::<String>(), before);
    }
    let constraint = Constraint::Regex("(yes|no)".into());
    let tokens = all(engine.generate(request.constraint(constraint)).unwrap());
    let text: String = tokens.iter().map(|t| &t.text[..]).collect();
    assert!(text == "yes" || text == "no", "{text:?}");
    assert_eq!(tokens.last().unwrap().end, Some(End::Stop));
}

#[test]
fn what_cannot_be_is_refused_with_words() {
    let engine = engine(None, Options { slots: 2, waiting: 1, ..Options::default() });
    let refused = |request: Request| {
        let error = engine.generate(request).unwrap_err();
        assert!(error.is_request());
        error.to_string()
    };
    assert_eq!(refused(Request::new(vec![])), "the prompt is empty");
    assert_eq!(refused(Request::new(vec![1]).tokens_max(0)), "no tokens are asked for");
    assert_eq!(refused(Request::new(vec![264])), "token 264 is not one of the model's 264");
    assert!(
        refused(Request::new(vec![1; 300]))
            .contains("300 tokens and 1 new one are more than the 256")
    );
    assert!(refused(Request::new(vec![1]).logprobs(21)).contains("20 tokens at most"));
    assert!(refused(Request::new(vec![1]).stop(vec!["a"; 65])).contains("65 stop words"));
    assert!(refused(Request::new(vec![1]).stop(["a".repeat(257)])).contains("257 bytes"));
    // What comes from outside is known to be too large before anything is done with it.
    let large = Request::new(vec![1]).constraint(Constraint::Regex("a".repeat(8193)));
    assert!(large.check().unwrap_err().to_string().contains("more than 8192 bytes"));
    assert!(Request::new(vec![1]).stop(vec!["a"; 65]).check().unwrap_err().is_request());
    assert!(Request::new(vec![]).constraint(Constraint::Regex("a".into())).check().is_ok());
    assert!(refused(Request::new(vec![1; 10_000_000])).contains("10000000 tokens"));
    // What is no grammar is found out on the way.
    let mut tokens =
        engine.generate(Request::new(vec![1]).constraint(Constraint::Regex("(".into()))).unwrap();
    let error = block_on(tokens.next()).unwrap().unwrap_err();
    assert!(error.is_request() && error.to_string().contains("constraint"), "{error}");
    assert!(block_on(tokens.next()).is_none());
    assert!(block_on(engine.prepare(Constraint::Regex("(".into()))).unwrap_err().is_request());
    block_on(engine.prepare(Constraint::Regex("a".into()))).unwrap();
    let held: Vec<_> =
        (0..3).map(|_| engine.try_generate(Request::new(vec![1, 2])).unwrap()).collect();
    assert!(engine.try_generate(Request::new(vec![1, 2])).unwrap_err().is_busy());
    drop(held);
    // A slot is free again when the step under way is through.
    until(|| engine.try_generate(Request::new(vec![1, 2]).tokens_max(1)).is_ok());
    engine.close();
    until(|| engine.generate(Request::new(vec![1, 2])).is_err_and(|e| e.is_ended()));
}

#[test]
fn whoever_has_a_constraint_is_free_while_helpers_compile_it() {
    use futures::FutureExt;
    let engine = engine(None, Options { slots: 4, ..Options::default() });
    let constraint = |k: usize| Constraint::Regex(format!("[a-z]{{1,9}} {k}"));
    let request = |k| Request::new(vec![1]).constraint(constraint(k)).tokens_max(2);
    // The helpers are not to be had: what is compiled now would be so by this thread.
    let held = crate::constraint::hold_compilers();
    let mut prepared = engine.prepare(constraint(0));
    let mut waits = engine.generate(request(1)).unwrap();
    let mut tries = engine.try_generate(request(2)).unwrap();
    assert!((&mut prepared).now_or_never().is_none());
    assert!(waits.next().now_or_never().is_none() && tries.next().now_or_never().is_none());
    // Others are answered meanwhile.
    let other = engine.generate(Request::new(vec![1, 2]).tokens_max(3)).unwrap();
    assert_eq!(all(other).len(), 3);
    drop(held);
    block_on(prepared).unwrap();
    assert_eq!((all(waits).len(), all(tries).len()), (2, 2));
}

#[test]
fn a_folder_of_hugging_faces_is_the_same_model() {
    let (device, c) = (Device::cpu_with(CpuOptions::default()), config());
    let folder = std::env::temp_dir().join(format!("futensor-generate-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let text = |name: &str, value: serde_json::Value| {
        std::fs::write(folder.join(name), value.to_string()).unwrap();
    };
    text(
        "config.json",
        serde_json::json!({ "model_type": "mistral", "hidden_size": c.width, "sliding_window": 9,
            "layer_types": ["full_attention", "sliding_attention"],
            "num_attention_heads": c.heads,
            "num_key_value_heads": c.kv_heads, "num_hidden_layers": c.layers,
            "max_position_embeddings": c.context, "intermediate_size": c.feed_forward,
            "rms_norm_eps": c.epsilon, "tie_word_embeddings": true }),
    );
    text(
        "tokenizer_config.json",
        serde_json::json!({ "eos_token": { "content": "<|end|>" }, "chat_template": "a" }),
    );
    std::fs::write(folder.join("tokenizer.json"), vocabulary().tokenizer().unwrap().to_json())
        .unwrap();
    let (ours, kinds) = (tensors(&device, None), [DType::F32, DType::F16, DType::BF16]);
    for (dtype, format) in kinds.into_iter().zip([None, Some(Format::F16), Some(Format::BF16)]) {
        let saved = testing::names(c.layers).into_iter().map(|(gguf, name)| {
            let x = ours[&gguf].dense();
            // Pairs that are turned are neighbours there, and half a head apart here.
            let turned = gguf.contains("attn_q") || gguf.contains("attn_k.");
            let apart =
                |x: TensorFuture| x.reshape([-1, 8, 2, 64]).permute([0, 2, 1, 3]).reshape([-1, 64]);
            let x = if turned { apart(x) } else { x };
            (name, if x.rank() == 2 { x.to_dtype(dtype) } else { x })
        });
        block_on(futensor::safetensors::save(folder.join("model.safetensors"), saved)).unwrap();
        let theirs = block_on(Llama::from_folder(&device, &folder)).unwrap();
        assert!(theirs.template().is_some() && theirs.tokenizer().ends() == [1]);
        // Halves stay halves; the vocabulary is filled up to a multiple of sixteen rows.
        let matrices = c.layers * (c.width * (2 * c.width + 2 * 32 + 3 * c.feed_forward));
        let rows = if format.is_some() { VOCABULARY.next_multiple_of(16) } else { VOCABULARY };
        let norms = (2 * c.layers + 1) * c.width * 4;
        assert_eq!(theirs.bytes(), (matrices + rows * c.width) * dtype.size() + norms, "{dtype}");
        let options = Options { page: 8, ..Options::default() };
        let mut request = Request::new(vec![7, 8, 9, 10, 11]).tokens_max(10).logprobs(3);
        request.ignore_end = true;
        let a = all(Engine::start(theirs, options).unwrap().generate(request.clone()).unwrap());
        let b = all(engine(format, Options::default()).generate(request).unwrap());
        for (a, b) in a.iter().zip(&b) {
            let off = a.logprobs.as_ref().unwrap().chosen - b.logprobs.as_ref().unwrap().chosen;
            assert!(a.id == b.id && off.abs() < 1e-2, "{dtype}: {a:?} {b:?}");
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_running_decode_allocates_nothing() {
    let device = Device::cpu_with(CpuOptions::default());
    let weights = tensors(&device, Some(Format::Q8_0));
    let model =
        testing::llama(&device, config(), weights, vocabulary().tokenizer().unwrap()).unwrap();
    let options = Options { page: 8, slots: 16, context: 256, buffer: 256, ..Options::default() };
    let engine = Engine::start(model, options).unwrap();
    let streams: Vec<_> = requests()
        .into_iter()
        .map(|mut request| {
            request.prompt.truncate(3);
            request.sampling = Sampling::default();
            request.constraint = None;
            engine.generate(request.tokens_max(100)).unwrap()
        })
        .collect();
    until(|| engine.stats().tokens >= 16 * 30);
    let before = device.stats();
    until(|| engine.stats().tokens >= 16 * 80);
    let after = device.stats();
    assert!(before.allocations > 0 && engine.stats().running == 16);
    assert_eq!((after.allocations, after.copied_bytes), (before.allocations, before.copied_bytes));
    streams.into_iter().for_each(|stream| assert_eq!(all(stream).len(), 100));
}

#[test]
fn a_model_whose_parts_do_not_fit_is_refused() {
    let device = Device::cpu();
    let wrong = |change: &dyn Fn(&mut BTreeMap<String, Weight>)| {
        let mut tensors = tensors(&device, None);
        change(&mut tensors);
        let error = testing::llama(&device, config(), tensors, vocabulary().tokenizer().unwrap())
            .unwrap_err();
        assert!(error.is_model());
        error.to_string()
    };
    assert_eq!(
        wrong(&|t| drop(t.remove("blk.1.ffn_up.weight"))),
        "the file: there is no tensor blk.1.ffn_up.weight"
    );
    let narrow = |t: &mut BTreeMap<String, Weight>| {
        t.insert("blk.0.attn_k.weight".into(), Weight::Dense(device.zeros([3, 64])));
    };
    assert_eq!(wrong(&narrow), "the file: tensor blk.0.attn_k.weight is [3, 64], not [32, 64]");
    let few = |t: &mut BTreeMap<String, Weight>| {
        t.insert("token_embd.weight".into(), Weight::Dense(device.zeros([200, 64])));
    };
    assert_eq!(wrong(&few), "a tokenizer of 264 tokens for a model of 200");
}

#[test]
fn a_context_takes_as_many_tokens_as_it_says_whatever_a_page_has() {
    for (context, page) in [(100, 32), (7, 8), (64, 32)] {
        let engine =
            Engine::start(llama(None), Options { context, page, slots: 2, ..Options::default() })
                .unwrap();
        assert_eq!(engine.context(), context);
        let mut request = Request::new(vec![5; context - 2]);
        request.ignore_end = true;
        assert_eq!(all(engine.generate(request.clone()).unwrap()).len(), 2);
        let error = engine.generate(request.tokens_max(3)).unwrap_err().to_string();
        assert!(error.contains(&format!("more than the {context} of a request")), "{error}");
    }
}

#[test]
fn numbers_without_end_are_no_limit() {
    let most = usize::MAX;
    let options = Options {
        chunk: most,
        chunk_beside: most,
        waiting: most,
        buffer: most,
        ..Options::default()
    };
    let engine = engine(None, Options { slots: 2, pages_bytes: most, ..options });
    let streams: Vec<_> = (0..70)
        .map(|_| engine.try_generate(Request::new(vec![1; 20]).tokens_max(2)).unwrap())
        .collect();
    assert!(streams.into_iter().all(|stream| !all(stream).is_empty()));
}
