//! Texts to tokens and back, and what a file of a tokenizer may be wrong about.

use super::testing::vocabulary;
use super::*;

#[test]
fn a_text_comes_back_as_it_was() {
    let tokenizer = vocabulary().tokenizer().unwrap();
    for text in ["hello world", "  two\n\nlines\t", "naïve 中文 🦀", "1234", ""] {
        let tokens = tokenizer.encode(text, false).unwrap();
        assert_eq!(tokenizer.decode(&tokens), text);
    }
    let names = |text: &str| -> Vec<String> {
        let tokens = tokenizer.encode(text, true).unwrap();
        tokens.into_iter().map(|t| tokenizer.name(t).unwrap()).collect()
    };
    assert_eq!(names("hello w12"), ["<|begin|>", "hello", "Ġw", "1", "2"], "digits stand alone");
    assert_eq!(names("a<|end|>"), ["<|begin|>", "a", "<|end|>"]);
    assert_eq!(tokenizer.decode(&[0, 1]), "", "marks stand for no text");
    assert!(tokenizer.is_mark(1) && !tokenizer.is_mark(2));
    assert_eq!((tokenizer.begin(), tokenizer.ends(), tokenizer.len()), (Some(0), &[1][..], 264));
}

#[test]
fn marks_of_calls_of_tools_are_text() {
    let mut vocabulary = vocabulary();
    vocabulary.tokens.push("[TOOL_CALLS]".into());
    vocabulary.types.push(3);
    let tokenizer = vocabulary.tokenizer().unwrap();
    let tokens = tokenizer.encode("a[TOOL_CALLS]", false).unwrap();
    assert_eq!((tokens.len(), tokens[1]), (2, 264));
    assert!(!tokenizer.is_mark(264) && tokenizer.decode(&tokens) == "a[TOOL_CALLS]");
}

#[test]
fn a_vocabulary_that_does_not_fit_is_refused() {
    let wrong = |change: &dyn Fn(&mut Vocabulary)| {
        let mut vocabulary = vocabulary();
        change(&mut vocabulary);
        let error = vocabulary.tokenizer().unwrap_err();
        assert!(error.is_model());
        error.to_string()
    };
    assert!(wrong(&|v| v.model = "t5".into()).contains("\"t5\" is not known"));
    assert!(wrong(&|v| v.pre = "other".into()).contains("\"other\" is not known"));
    assert!(wrong(&|v| v.model = "llama".into()).contains("says no tokenizer.ggml.scores"));
    assert!(wrong(&|v| v.scores = vec![0.0]).contains("264 tokens with 1 score"));
    assert!(wrong(&|v| v.types.truncate(3)).contains("264 tokens with 3 types"));
    assert!(wrong(&|v| v.ends = vec![264]).contains("token 264"));
    assert!(wrong(&|v| v.tokens[5] = "!".into()).contains("name of another"));
    assert!(wrong(&|v| v.merges.push("no".into())).contains("two words"));
    assert!(wrong(&|v| v.merges.push("no where".into())).contains("merges do not fit"));
}

#[test]
fn a_tokenizer_json_says_the_same() {
    let ours = vocabulary().tokenizer().unwrap();
    let json = ours.to_json();
    let read = Tokenizer::from_json(json.as_bytes(), Some("<|begin|>"), Some("<|end|>")).unwrap();
    let text = "hello 🦀<|end|> 12";
    assert_eq!(read.encode(text, false).unwrap(), ours.encode(text, false).unwrap());
    assert_eq!(read.bytes, ours.bytes);
    assert!(Tokenizer::from_json(b"{}", None, None).unwrap_err().is_model());
    assert!(Tokenizer::from_json(json.as_bytes(), Some("no"), None).unwrap_err().is_model());
}

#[test]
fn a_token_with_a_number_beyond_any_vocabulary_is_refused() {
    let json = vocabulary().tokenizer().unwrap().to_json();
    let mut json: serde_json::Value = serde_json::from_str(&json).unwrap();
    json["model"]["vocab"]["12"] = serde_json::json!(u32::MAX);
    let error = Tokenizer::from_json(json.to_string().as_bytes(), None, None).unwrap_err();
    assert!(error.is_model() && error.to_string().contains("4294967295"), "{error}");
}

/// The tokenizer of these tests, with some of it changed.
fn changed(change: impl Fn(&mut serde_json::Value)) -> Result<Tokenizer> {
    let json = vocabulary().tokenizer().unwrap().to_json();
    let mut json: serde_json::Value = serde_json::from_str(&json).unwrap();
    change(&mut json);
    Tokenizer::from_json(json.to_string().as_bytes(), None, None)
}

#[test]
fn a_file_that_asks_for_more_than_any_has_to_is_refused() {
    use serde_json::{Value, json};
    let several = |steps: Vec<Value>| json!({ "type": "Sequence", "normalizers": steps });
    let replace = |pattern: Value, content: &str| {
        let content = content.to_owned();
        json!({ "type": "Replace", "pattern": pattern, "content": content })
    };
    let doubled = replace(json!({ "String": "a" }), "aa");
    let split = |regex: String| {
        json!({ "type": "Split", "pattern": { "Regex": regex }, "behavior": "Isolated",
            "invert": false })
    };
    let shingles =
        |n: usize| json!({ "type": "Sequence", "pretokenizers": vec![split("a+".into()); n] });
    for (part, value, words) in [
        ("normalizer", several(vec![json!({ "type": "NFC" }); 1_000]), "steps, of 64"),
        ("normalizer", several(vec![doubled.clone(); 40]), "times as long, of 8 at most"),
        ("normalizer", replace(json!({ "Regex": "" }), "123456789"), "9 times as long"),
        ("normalizer", replace(json!({ "String": "" }), "123456789"), "9 times as long"),
        ("normalizer", json!({ "type": "Prepend", "prepend": "a".repeat(65) }), "65 bytes before"),
        ("pre_tokenizer", shingles(1_000), "steps, of 64"),
        ("pre_tokenizer", split("a".repeat(8193)), "of 8193 bytes"),
    ] {
        let error = changed(|json| json[part] = value.clone()).unwrap_err();
        assert!(error.is_model(), "{error}");
        assert!(error.to_string().to_lowercase().contains(words), "{words}: {error}");
    }
}

#[test]
fn a_file_neither_cuts_texts_nor_fills_them_up() {
    use serde_json::json;
    let plain = vocabulary().tokenizer().unwrap().encode("hello world", false).unwrap();
    let read = changed(|json| {
        json["padding"] = json!({ "strategy": { "Fixed": 1_000_000_000_000_u64 },
            "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0, "pad_type_id": 0,
            "pad_token": "a" });
        json["truncation"] = json!({ "direction": "Right", "max_length": 1,
            "strategy": "LongestFirst", "stride": 0 });
    });
    assert_eq!(read.unwrap().encode("hello world", false).unwrap(), plain);
}

/// How long a text of so many bytes takes, at the best of three.
fn took(tokenizer: &Tokenizer, of: &str, bytes: usize) -> std::time::Duration {
    let text = of.repeat(bytes / of.len());
    (0..3)
        .map(|_| {
            let begin = std::time::Instant::now();
            tokenizer.encode(&text, false).unwrap();
            begin.elapsed()
        })
        .min()
        .unwrap()
}

#[test]
fn ten_times_the_text_takes_some_ten_times_as_long_whatever_it_says() {
    for pre in ["smollm", "llama-bpe", "qwen2", "gpt-2"] {
        let mut vocabulary = vocabulary();
        vocabulary.pre = pre.into();
        let tokenizer = vocabulary.tokenizer().unwrap();
        for text in ["a", " ", "\n", " \n", "1", "l", "'s", "<|end|>", "<|end|> ", "🦀"] {
            let (small, large) = (took(&tokenizer, text, 20_000), took(&tokenizer, text, 200_000));
            // A square would be a hundred times, which 20 ms grow to two seconds by.
            let most = small * 40 + std::time::Duration::from_millis(1_000);
            assert!(large < most, "{pre}, {text:?}: {small:?}, {large:?}");
        }
    }
}
