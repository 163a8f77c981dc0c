//! Vocabularies of GGUF files beside `tiktoken` and `sentencepiece`, on 2,000 texts that a random
//! walk writes (`vocabularies.py` made the digests of their tokens).

use futensor_generate::Vocabulary;
use serde_json::Value;

fn cases() -> Value {
    serde_json::from_str(include_str!("vocabularies.json")).unwrap()
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().unwrap().iter().map(|t| t.as_str().unwrap().to_owned()).collect()
}

/// The texts of `vocabularies.py`.
fn walk() -> Vec<String> {
    let (pieces, mut state) = (texts(&cases()["pieces"]), 0u64);
    let mut next = |below: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    (0..2000).map(|_| (0..next(24)).map(|_| &pieces[next(pieces.len())][..]).collect()).collect()
}

/// Compares with the digests of lots of a hundred texts, without the token that begins one.
fn compare(name: &str, vocabulary: Vocabulary, digests: &Value) {
    let tokenizer = vocabulary.tokenizer().unwrap();
    for (lot, expected) in walk().chunks(100).zip(digests.as_array().unwrap()) {
        let digest = lot.iter().fold(0xcbf2_9ce4_8422_2325u64, |value, text| {
            let tokens = tokenizer.encode(text, false).unwrap();
            let bytes = tokens.into_iter().chain([u32::MAX]).flat_map(u32::to_le_bytes);
            bytes.fold(value, |value, byte| (value ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
        });
        let (first, expected) = (&lot[0], expected.as_str().unwrap());
        assert_eq!(format!("{digest:016x}"), expected, "{name}: of those from {first:?} on");
    }
}

fn of_bytes(pre: &str) -> Vocabulary {
    let all = &cases()["bytes"];
    let whole = ["llama-bpe", "tekken"].contains(&pre);
    let mut tokens = texts(&all["tokens"]);
    if !whole {
        tokens.truncate(tokens.len() - 4);
    }
    Vocabulary {
        model: "gpt2".into(),
        pre: pre.into(),
        tokens,
        merges: texts(&all["merges"]),
        ..Vocabulary::default()
    }
}

#[test]
fn words_are_cut_as_the_models_own_tokenizers_cut_them() {
    for (pre, digests) in cases()["bytes"]["digests"].as_object().unwrap() {
        compare(pre, of_bytes(pre), digests);
    }
}

#[test]
fn sentences_become_the_tokens_that_sentencepiece_finds() {
    for (name, all) in cases()["sentences"].as_object().unwrap() {
        let numbers = |key: &str| all[key].as_array().unwrap().iter();
        let vocabulary = Vocabulary {
            model: "llama".into(),
            tokens: texts(&all["tokens"]),
            types: numbers("types").map(|t| t.as_i64().unwrap()).collect(),
            scores: numbers("scores").map(|s| s.as_f64().unwrap() as f32).collect(),
            spaced: name == "spaced",
            ..Vocabulary::default()
        };
        compare(name, vocabulary.clone(), &all["digests"]);
        let tokenizer = vocabulary.tokenizer().unwrap();
        for text in walk() {
            let tokens = tokenizer.encode(&text, false).unwrap();
            let (back, text) = (tokenizer.decode(&tokens), text.replace(['\u{2581}'], " "));
            let text = text.replace("</s>", "").replace("<s>", "");
            // A space before each part, between marks.
            let spaces = |t: &str| t.chars().filter(|c| *c != ' ').collect::<String>();
            assert_eq!(spaces(&back), spaces(&text), "{name}");
        }
    }
}
