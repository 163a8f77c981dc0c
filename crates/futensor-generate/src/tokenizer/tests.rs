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
fn a_vocabulary_that_does_not_fit_is_refused() {
    let wrong = |change: &dyn Fn(&mut Vocabulary)| {
        let mut vocabulary = vocabulary();
        change(&mut vocabulary);
        let error = vocabulary.tokenizer().unwrap_err();
        assert!(error.is_model());
        error.to_string()
    };
    assert!(wrong(&|v| v.model = "llama".into()).contains("\"llama\" is not known"));
    assert!(wrong(&|v| v.pre = "other".into()).contains("\"other\" is not known"));
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
