//! Files of language models: models in GGUF, their vocabularies, tokenizers and chat templates.

use super::Target;
use super::values::device;
use futensor::{TensorFuture, block_on, gguf};
use futensor_generate::{Engine, Error, Llama, Options, Request, Template, Tokenizer, Vocabulary};
use futures::StreamExt;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

#[path = "../../examples/chat/tiny.rs"]
mod tiny;
pub use tiny::model as tiny_model;

/// A path of its own that goes with its owner.
struct Scratch(PathBuf);

impl Scratch {
    fn with(bytes: &[u8]) -> Scratch {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let (process, count) = (std::process::id(), COUNT.fetch_add(1, Relaxed));
        let path = std::env::temp_dir().join(format!("futensor-untrusted-{process}-{count}.gguf"));
        std::fs::write(&path, bytes).expect("a file is written");
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// An error of loading a model is the model's, or the device's.
fn refused(error: &Error) {
    let of_device = error.device().is_some_and(|e| !e.is_device_lost());
    assert!(error.is_model() || of_device, "{error}");
}

/// Loads a model. One that loads also generates two tokens, or returns an error.
fn model(bytes: &[u8]) -> bool {
    let file = Scratch::with(bytes);
    let model = match block_on(Llama::from_gguf(device(), &file.0)) {
        Ok(model) => model,
        Err(error) => {
            refused(&error);
            return false;
        }
    };
    let options = Options { slots: 1, pages_bytes: 1 << 20, context: 64, ..Options::default() };
    let engine = match Engine::start(model, options) {
        Ok(engine) => engine,
        Err(error) => {
            assert!(error.is_model() || error.is_request() || error.device().is_some(), "{error}");
            return false;
        }
    };
    let prompt = engine.model().tokenizer().encode("hello", true).unwrap_or_default();
    let Ok(tokens) = engine.generate(Request::new(prompt).tokens_max(2)) else { return false };
    let tokens: Vec<_> = block_on(tokens.collect());
    assert!(tokens.len() <= 2, "{tokens:?}");
    tokens.iter().all(|token| token.is_ok())
}

pub const MODEL: Target = Target {
    name: "model",
    run: model,
    corpus: || vec![std::fs::read(tiny_model()).expect("the model was written")],
    words: &[
        "llama.rope.dimension_count",
        "llama.rope.freq_base",
        "llama.rope.scaling.factor",
        "llama.attention.key_length",
        "rope_freqs.weight",
        "blk.0.attn_q.bias",
    ],
    inputs: 100,
    memory: (64 << 20, 64),
};

/// Texts for a tokenizer.
const TEXTS: [&str; 5] = [
    "hello world",
    "  It's 1234,\tdon't  you think?\n\n",
    "naïve 中文 🦀 \u{301}\u{0}\r\n",
    "<|end|><s></s>",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
];

fn ask(tokenizer: &Tokenizer) {
    for text in TEXTS {
        match tokenizer.encode(text, true) {
            Ok(tokens) => {
                assert!(tokens.len() <= 16 * text.len() + 16, "{} tokens", tokens.len());
                tokenizer.decode(&tokens);
                tokens.into_iter().for_each(|token| drop(tokenizer.name(token)));
            }
            Err(error) => assert!(error.is_request(), "{error}"),
        }
    }
}

/// Makes a tokenizer from the metadata of a GGUF file.
fn vocabulary(bytes: &[u8]) -> bool {
    let Ok(file) = block_on(gguf::open_bytes(bytes.to_vec())) else { return false };
    let tokenizer = Vocabulary::from_gguf(file.metadata()).and_then(Vocabulary::tokenizer);
    match &tokenizer {
        Ok(tokenizer) => ask(tokenizer),
        Err(error) => assert!(error.is_model(), "{error}"),
    }
    tokenizer.is_ok()
}

pub const VOCABULARY: Target = Target {
    name: "vocabulary",
    run: vocabulary,
    corpus: || {
        let mut whole = std::fs::read(tiny_model()).expect("the model was written");
        let file = block_on(gguf::open_bytes(whole.clone())).expect("a whole file");
        let tensors: u64 = file.tensors().iter().map(|tensor| tensor.bytes).sum();
        // Without its tensors, which are the last of it.
        whole[8..16].fill(0);
        whole.truncate(whole.len() - tensors as usize);
        let pre = b"tokenizer.ggml.pre";
        let at = whole.windows(pre.len()).position(|w| w == pre).expect("the key") + pre.len() + 4;
        let with = |name: &str| {
            let mut file = whole.clone();
            let text = [&(name.len() as u64).to_le_bytes()[..], name.as_bytes()].concat();
            file.splice(at..at + 8 + "smollm".len(), text);
            file
        };
        let names = ["smollm", "gpt-2", "llama-bpe", "qwen2", "tekken", "deepseek-llm", "default"];
        let mut all = names.map(with).to_vec();
        // The same words as SentencePiece's.
        let mut metadata = file.metadata().clone();
        let count = metadata["tokenizer.ggml.tokens"].as_array().map_or(0, gguf::Array::len);
        metadata.insert("tokenizer.ggml.model".into(), "llama".into());
        let scores = (0..count).map(|k| -(k as f32)).collect::<Vec<_>>();
        metadata.insert("tokenizer.ggml.scores".into(), scores.into());
        let scratch = Scratch::with(&[]);
        let saved = gguf::save(&scratch.0, metadata, Vec::<(String, TensorFuture)>::new());
        block_on(saved).expect("a file is written");
        all.push(std::fs::read(&scratch.0).expect("the file was written"));
        all
    },
    words: &["gpt-2", "llama-bpe", "qwen2", "<|im_end|>", "tekken", "default"],
    inputs: 400,
    memory: (32 << 20, 256),
};

fn tokenizer(bytes: &[u8]) -> bool {
    let named = Tokenizer::from_json(bytes, Some("a"), Some("b"));
    let tokenizer = named.or_else(|_| Tokenizer::from_json(bytes, None, None));
    match &tokenizer {
        Ok(tokenizer) => ask(tokenizer),
        Err(error) => assert!(error.is_model(), "{error}"),
    }
    tokenizer.is_ok()
}

/// A `tokenizer.json` for each kind of model, with usual steps.
fn tokenizers() -> Vec<Vec<u8>> {
    let words = ["[UNK]", "a", "b", "c", "h", "e", "l", "o", "he", "ll", "Ġ", "▁", "##a", "##b"];
    let vocab: serde_json::Map<_, _> =
        words.iter().zip(0..).map(|(word, k)| (word.to_string(), json!(k))).collect();
    let level = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
        "use_regex": true });
    let split = json!({ "type": "Split", "pattern": { "Regex": "\\p{N}{1,3}|\\s+(?!\\S)|\\S+" },
        "behavior": "Isolated", "invert": false });
    let replace = json!({ "type": "Replace", "pattern": { "String": " " }, "content": "▁" });
    let special = json!({ "id": 14, "content": "<s>", "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": false, "special": true });
    let file = |model: Value, normalizer: Value, pre: Value, decoder: Value| {
        json!({ "version": "1.0", "truncation": null, "padding": null, "added_tokens": [special],
            "normalizer": normalizer, "pre_tokenizer": pre, "post_processor": null,
            "decoder": decoder, "model": model })
    };
    let scores: Vec<Value> = words.iter().map(|word| json!([word, -1.5])).collect();
    let all = [
        file(
            json!({ "type": "BPE", "dropout": null, "unk_token": null, "fuse_unk": false,
                "byte_fallback": false, "vocab": vocab, "merges": ["h e", ["l", "l"]] }),
            json!(null),
            json!({ "type": "Sequence", "pretokenizers": [split, level] }),
            level.clone(),
        ),
        file(
            json!({ "type": "WordPiece", "unk_token": "[UNK]", "vocab": vocab,
                "continuing_subword_prefix": "##", "max_input_chars_per_word": 100 }),
            json!({ "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                "strip_accents": null, "lowercase": true }),
            json!({ "type": "BertPreTokenizer" }),
            json!({ "type": "WordPiece", "prefix": "##", "cleanup": true }),
        ),
        file(
            json!({ "type": "Unigram", "unk_id": 0, "vocab": scores, "byte_fallback": false }),
            json!({ "type": "Sequence", "normalizers": [{ "type": "NFKC" }, replace,
                { "type": "Prepend", "prepend": "▁" }, { "type": "Strip", "strip_left": true,
                "strip_right": true }] }),
            json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": "always",
                "split": true }),
            json!({ "type": "Sequence", "decoders": [{ "type": "ByteFallback" },
                { "type": "Fuse" }] }),
        ),
        file(
            json!({ "type": "WordLevel", "vocab": vocab, "unk_token": "[UNK]" }),
            json!({ "type": "Lowercase" }),
            json!({ "type": "Sequence", "pretokenizers": [{ "type": "WhitespaceSplit" },
                { "type": "Punctuation", "behavior": "Isolated" },
                { "type": "Digits", "individual_digits": true }] }),
            json!(null),
        ),
    ];
    all.map(|file| file.to_string().into_bytes()).into()
}

pub const TOKENIZER: Target = Target {
    name: "tokenizer",
    run: tokenizer,
    corpus: tokenizers,
    words: &[
        "{\"type\":\"NFC\"}",
        "{\"type\":\"Sequence\",\"normalizers\":[",
        "\"Regex\":\"",
        "(a*)*",
        "{1,999}",
        "\\p{L}",
        "(?i:",
        ")",
        "(",
        "[",
        "]",
        "{",
        "}",
        ",",
        "null",
        "true",
        "-1",
        "1e99",
        "\"lstrip\":true",
        "\"max_length\":",
        "\"UnicodeScripts\"",
        "\"CharDelimiterSplit\"",
    ],
    inputs: 500,
    memory: (64 << 20, 256),
};

/// Conversations for a template.
fn conversations() -> [Value; 2] {
    let say = |role: &str, text: &str| json!({ "role": role, "content": text });
    [
        json!([say("system", "Be kind."), say("user", " Hello {{ 1 }} \n"), say("assistant", "é")]),
        json!([]),
    ]
}

fn template(bytes: &[u8]) -> bool {
    let source = String::from_utf8_lossy(bytes);
    let template = match Template::new(&source, "<s>", "</s>") {
        Ok(template) => template,
        Err(error) => {
            assert!(error.is_model(), "{error}");
            return false;
        }
    };
    for messages in conversations() {
        match block_on(template.render(messages)) {
            // By the fuel that there is, 64 bytes each.
            Ok(text) => assert!(text.len() <= 400_000 * 64, "{} bytes", text.len()),
            Err(error) => assert!(error.is_request(), "{error}"),
        }
    }
    true
}

pub const TEMPLATE: Target = Target {
    name: "template",
    run: template,
    corpus: || {
        let cases = include_str!("../../crates/futensor-generate/tests/reference/cases.json");
        let cases: Value = serde_json::from_str(cases).expect("cases");
        let all = cases["templates"].as_array().expect("a list").iter();
        let mut sources: Vec<Vec<u8>> =
            all.map(|case| case["source"].as_str().expect("a text").into()).collect();
        sources.dedup();
        sources.extend(
            [
                // Nothing but its fuel ends this one.
                "{% for i in range(100000) %}{% for j in range(100000) %}\
                {% for k in range(100000) %}{% endfor %}{% endfor %}{% endfor %}",
                "{% set ns = namespace(x='ab', y=[1]) %}{% for i in range(9) %}\
                {% set ns.x = ns.x ~ ns.x.upper() %}{% set ns.y = ns.y + [i] %}{% endfor %}\
                {{ ns.x|length }} {{ ns.y|tojson }}",
                "{% macro m(x, y=2) %}<{{ x }}{{ y }}>{% endmacro %}{{ m(1) }}\
                {{ '%s %d'|format('a', 3) }}{{ messages|map(attribute='role')|join(', ') }}",
                "{{ messages[0].content[1:-1]|trim|replace('a', 'b') }}\
                {% if messages is defined and not tools %}\
                {{ {'a': [1, 2.5]}.items()|list }}{% endif %}",
            ]
            .map(Vec::from),
        );
        sources
    },
    words: &[
        "{{",
        "}}",
        "{%",
        "%}",
        "{#",
        "#}",
        "{%- ",
        " -%}",
        "for i in range(9999)",
        "endfor",
        "set x = ",
        "if ",
        "endif",
        "macro ",
        "endmacro",
        "namespace(",
        "ns.x",
        "messages",
        "loop.",
        "|tojson",
        "|join",
        "|list",
        "|length",
        "|replace('a','aaaa')",
        ".format(",
        "*9999",
        "*99999999999",
        "**9",
        "~",
        "[::-1]",
        "recursive",
        "loop(",
        "raise_exception('')",
        "|indent(",
        "|batch(3)",
        "|sort",
        "|groupby('role')",
        "'{:999999999}'",
        "strftime_now('%Y')",
        ".split(",
        "|center(99999999)",
        "|string",
        "|pprint",
        "(",
        ")",
        "[",
        "]",
    ],
    inputs: 1500,
    memory: (256 << 20, 256),
};
