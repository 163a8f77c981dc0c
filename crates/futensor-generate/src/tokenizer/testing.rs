//! A small vocabulary for tests.

use super::Vocabulary;

/// Every byte is a token; some words are merged.
pub fn vocabulary() -> Vocabulary {
    let alphabet: Vec<String> = {
        let printable = |b: u32| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
        let mut others = 0x100..;
        let of = |b: u32| if printable(b) { b } else { others.next().unwrap() };
        (0..256u32).map(of).map(|c| char::from_u32(c).unwrap().to_string()).collect()
    };
    let mut tokens = vec!["<|begin|>".to_string(), "<|end|>".to_string()];
    tokens.extend(alphabet);
    let merges = ["h e", "l l", "he ll", "hell o", "Ġ w", "1 2"].map(String::from).to_vec();
    tokens.extend(merges.iter().map(|m| m.replace(' ', "")));
    let types = (0..tokens.len()).map(|k| if k < 2 { 3 } else { 1 }).collect();
    Vocabulary {
        model: "gpt2".into(),
        pre: "smollm".into(),
        tokens,
        types,
        merges,
        scores: Vec::new(),
        spaced: true,
        begin: Some(0),
        begins: true,
        ends: vec![1],
    }
}

impl super::Tokenizer {
    /// As `tokenizer.json` has it.
    pub fn to_json(&self) -> String {
        self.inner.to_string(false).unwrap()
    }
}
