//! Tokens beside `tiktoken`'s, conversations beside those of Jinja's own engine, and what files say
//! of tokens that begin and end.

use super::files::{self, names};
use super::{answer, cases};
use futensor::gguf::{Array, Value as Gguf};
use futensor::{CpuOptions, Device, block_on};
use futensor_generate::{End, Engine, Options, Request, Template, Vocabulary};
use serde_json::Value;
use std::sync::Arc;

fn texts(value: &Value) -> Vec<String> {
    value.as_array().unwrap().iter().map(|t| t.as_str().unwrap().to_owned()).collect()
}

fn vocabulary(pre: &str) -> Vocabulary {
    let all = &cases()["tokens"];
    Vocabulary {
        model: "gpt2".into(),
        pre: pre.into(),
        tokens: texts(&all["tokens"]),
        types: all["types"].as_array().unwrap().iter().map(|t| t.as_i64().unwrap()).collect(),
        merges: texts(&all["merges"]),
        scores: Vec::new(),
        spaced: true,
        begin: None,
        begins: false,
        ends: Vec::new(),
    }
}

#[test]
fn texts_become_the_tokens_that_tiktoken_finds() {
    let all = &cases()["tokens"];
    for (pre, expected) in all["expected"].as_object().unwrap() {
        let tokenizer = Arc::new(vocabulary(pre).tokenizer().unwrap());
        for (text, expected) in texts(&all["texts"]).iter().zip(expected.as_array().unwrap()) {
            let expected: Vec<u32> =
                expected.as_array().unwrap().iter().map(|t| t.as_u64().unwrap() as u32).collect();
            assert_eq!(tokenizer.encode(text, true).unwrap(), expected, "{pre}: {text:?}");
            assert_eq!(
                block_on(tokenizer.encode_later(text.clone(), true)).unwrap(),
                expected,
                "{pre}: {text:?}"
            );
            let marks = text.replace("<|begin|>", "").replace("<|end|>", "");
            assert_eq!(tokenizer.decode(&expected), marks, "{pre}");
        }
    }
    // Names that mean the same.
    for (same, as_this) in
        [("", "gpt-2"), ("llama3", "llama-bpe"), ("llama-v3", "llama-bpe"), ("starcoder", "smollm")]
    {
        let [a, b] = [same, as_this].map(|pre| vocabulary(pre).tokenizer().unwrap());
        let text = "It's 1234, don't  you think?\n\n";
        assert_eq!(a.encode(text, true).unwrap(), b.encode(text, true).unwrap(), "{same}");
    }
}

#[test]
fn conversations_become_the_texts_that_jinja_makes() {
    for case in cases()["templates"].as_array().unwrap() {
        let template = Template::new(case["source"].as_str().unwrap(), "<s>", "</s>").unwrap();
        let text = block_on(template.render(case["messages"].clone())).unwrap();
        assert_eq!(text, case["text"].as_str().unwrap(), "{}: {}", case["name"], case["messages"]);
    }
}

/// Token k is followed by k + 1.
fn counting() -> Vec<Vec<f32>> {
    (0..40)
        .map(|last| (0..40).map(|next| if next == (last + 1) % 40 { 9.0 } else { 0.0 }).collect())
        .collect()
}

#[test]
fn what_a_file_says_of_begin_and_end_is_done() {
    let device = Device::cpu_with(CpuOptions::default());
    let mut types = vec![1; 40];
    [10, 20, 30].into_iter().for_each(|token: usize| types[token] = 3);
    let said = |more: Vec<(&'static str, Gguf)>| {
        let mut all = vec![
            ("tokenizer.ggml.token_type", Gguf::Array(Array::I32(types.clone()))),
            ("tokenizer.ggml.bos_token_id", Gguf::U32(30)),
            ("tokenizer.ggml.eos_token_id", Gguf::U32(20)),
            (
                "tokenizer.chat_template",
                "{{ bos_token }} {{ eos_token }} {{ messages | length }}".into(),
            ),
        ];
        all.extend(more);
        files::table(&device, &counting(), all)
    };
    let word = names(40);
    for (more, ends, begins) in [
        (vec![], vec![20], false),
        (vec![("tokenizer.ggml.eot_token_id", Gguf::U32(10))], vec![20, 10], false),
        (vec![("tokenizer.ggml.add_bos_token", Gguf::Bool(true))], vec![20], true),
        (vec![("tokenizer.ggml.add_bos_token", Gguf::Bool(false))], vec![20], false),
    ] {
        let model = said(more);
        let tokenizer = model.tokenizer();
        assert_eq!((tokenizer.begin(), tokenizer.ends()), (Some(30), &ends[..]));
        let text = format!("{}{}", word[3], word[4]);
        let with = if begins { vec![30, 3, 4] } else { vec![3, 4] };
        assert_eq!(tokenizer.encode(&text, true).unwrap(), with);
        assert_eq!(tokenizer.encode(&text, false).unwrap(), [3, 4]);
        let messages: [Value; 2] = Default::default();
        let text = block_on(model.template().unwrap().render(messages)).unwrap();
        assert_eq!(text, format!("{} {} 2", word[30], word[20]));
        // The nearest of the tokens that end a text ends this one.
        let engine = Engine::start(model, Options { slots: 1, ..Options::default() }).unwrap();
        let tokens = answer(&engine, Request::new(vec![3, 4, 5]).tokens_max(30));
        let last = tokens.last().unwrap();
        assert_eq!(
            (last.id, last.end, &last.text[..]),
            (*ends.iter().min().unwrap(), Some(End::Stop), "")
        );
        let mut request = Request::new(vec![3, 4, 5]).tokens_max(30);
        request.ignore_end = true;
        let tokens = answer(&engine, request);
        assert_eq!(tokens.iter().map(|t| t.id).collect::<Vec<_>>(), (6..36).collect::<Vec<_>>());
        assert_eq!(tokens.last().unwrap().end, Some(End::Length));
    }
}

/// Ten times the text takes some ten times as long, whatever it is made of; no text ends the
/// process.
#[test]
fn long_texts_take_as_long_as_they_are() {
    for pre in ["gpt-2", "llama-bpe", "qwen2", "smollm"] {
        let tokenizer = vocabulary(pre).tokenizer().unwrap();
        for piece in [
            "a", " ", "\n", "9", "!", "hello", " the ", "é", "\u{3000}", "'", "<|end|>", "<|",
            "1 ", "\t x",
        ] {
            let took = |bytes: usize| {
                let text = piece.repeat(bytes / piece.len());
                let begin = std::time::Instant::now();
                let tokens = tokenizer.encode(&text, true).unwrap();
                let took = begin.elapsed();
                let marks = text.replace("<|end|>", "");
                assert_eq!(tokenizer.decode(&tokens), marks, "{pre} {piece:?}");
                took
            };
            // Not the same twice, which would be known; and the better of two, on a machine that
            // has more to do.
            let (few, many) = (took(4_000).min(took(4_100)), took(40_000).min(took(40_100)));
            let most = few * 60 + std::time::Duration::from_millis(300);
            assert!(many < most, "{pre} {piece:?}: {few:?} {many:?}");
        }
        let error = tokenizer.encode(&"a".repeat((16 << 20) + 1), true).unwrap_err();
        assert!(error.is_request() && error.to_string().contains("bytes"), "{error}");
    }
}

#[test]
fn random_texts_come_back() {
    let seeds = match std::env::var("FUTENSOR_SEED") {
        Ok(seed) => seed.parse().map(|seed| seed..seed + 1).unwrap(),
        Err(_) => 0..200u64,
    };
    let pieces = [
        "a", "B", " ", "  ", "\n", "1", "'s", "é", "中", "🦀", "!", "<|use|>", "\u{301}", "\u{0}",
        "\r\n", "_",
    ];
    let all: Vec<_> = ["gpt-2", "llama-bpe", "qwen2", "smollm"]
        .map(|pre| vocabulary(pre).tokenizer().unwrap())
        .into();
    for seed in seeds {
        let mut state = seed;
        let mut pick = |n: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        let text: String =
            (0..pick(60)).map(|_| pieces[pick(pieces.len() as u64) as usize]).collect();
        for tokenizer in &all {
            assert_eq!(
                tokenizer.decode(&tokenizer.encode(&text, false).unwrap()),
                text,
                "FUTENSOR_SEED={seed}"
            );
        }
    }
}
