//! The tokenizer of a GGUF file: `tokenizer.ggml.*` of its metadata, put together as the library
//! wants it.

use super::Tokenizer;
use crate::error::{Error, Result, number_of};
use futensor::gguf;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, SplitDelimiterBehavior};

/// What a GGUF file says of its tokenizer, under the keys' own names.
#[derive(Clone, Debug, Default)]
pub struct Vocabulary {
    /// `tokenizer.ggml.model`: how words become tokens; `gpt2` is byte-level BPE.
    pub model: String,
    /// `tokenizer.ggml.pre`: how a text is cut into words.
    pub pre: String,
    /// `tokenizer.ggml.tokens`.
    pub tokens: Vec<String>,
    /// `tokenizer.ggml.token_type`: 3 marks something, 4 is the user's.
    pub types: Vec<i64>,
    /// `tokenizer.ggml.merges`: two words with a space between them, the first to be merged first.
    pub merges: Vec<String>,
    /// `tokenizer.ggml.bos_token_id`.
    pub begin: Option<u32>,
    /// `tokenizer.ggml.add_bos_token`.
    pub begins: bool,
    /// `tokenizer.ggml.eos_token_id`, and `eot_token_id` where there is one.
    pub ends: Vec<u32>,
}

const CONTROL: i64 = 3;
const OF_THE_USER: i64 = 4;

/// llama.cpp's expressions for the names that files have (its `src/llama-vocab.cpp`).
const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);

/// How a text is cut into words, by the name that the file has for it.
fn words(pre: &str) -> Result<PreTokenizerWrapper> {
    let split = |pattern: &str| {
        let pattern = SplitPattern::Regex(pattern.into());
        Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
            .map_err(|e| Error::model(e.to_string()))
    };
    Ok(match pre {
        "gpt-2" | "" => ByteLevel::new(false, true, true).into(),
        "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" => {
            Sequence::new(vec![Digits::new(true).into(), ByteLevel::new(false, true, true).into()])
                .into()
        }
        "llama-bpe" | "llama3" | "llama-v3" => {
            Sequence::new(vec![split(LLAMA3)?.into(), ByteLevel::new(false, true, false).into()])
                .into()
        }
        "qwen2" => {
            Sequence::new(vec![split(QWEN2)?.into(), ByteLevel::new(false, true, false).into()])
                .into()
        }
        other => return Err(Error::model(format!("pre-tokenizer {other:?} is not known"))),
    })
}

impl Vocabulary {
    /// What a file's metadata say.
    ///
    /// # Errors
    /// Where they say nothing of tokens.
    pub fn from_gguf(metadata: &gguf::Metadata) -> Result<Vocabulary> {
        let value = |key: &str| metadata.get(&format!("tokenizer.ggml.{key}"));
        let text = |key: &str| value(key).and_then(|v| v.as_str()).unwrap_or("").to_owned();
        let texts = |key: &str| value(key).and_then(|v| v.as_strings()).map(<[String]>::to_vec);
        let token =
            |key: &str| value(key).and_then(|v| v.as_u64()).and_then(|n| u32::try_from(n).ok());
        let types = match value("token_type").and_then(|v| v.as_array()) {
            Some(gguf::Array::I32(types)) => types.iter().map(|&t| t.into()).collect(),
            Some(gguf::Array::U32(types)) => types.iter().map(|&t| t.into()).collect(),
            _ => Vec::new(),
        };
        Ok(Vocabulary {
            model: text("model"),
            pre: text("pre"),
            tokens: texts("tokens")
                .ok_or_else(|| Error::model("the file says no tokenizer.ggml.tokens"))?,
            types,
            merges: texts("merges").unwrap_or_default(),
            begin: token("bos_token_id"),
            begins: value("add_bos_token").and_then(|v| v.as_bool()).unwrap_or(false),
            ends: ["eos_token_id", "eot_token_id"].into_iter().filter_map(token).collect(),
        })
    }

    /// The tokenizer.
    ///
    /// # Errors
    /// Where it is of a kind that is not known, or its parts do not fit each other.
    pub fn tokenizer(self) -> Result<Tokenizer> {
        let wrong = |text: String| Err(Error::model(text));
        if self.model != "gpt2" {
            return wrong(format!(
                "tokenizer {:?} is not known: byte-level BPE (\"gpt2\") is",
                self.model
            ));
        }
        if !self.types.is_empty() && self.types.len() != self.tokens.len() {
            let tokens = number_of(self.tokens.len(), "token", "tokens");
            return wrong(format!(
                "{tokens} with {}",
                number_of(self.types.len(), "type", "types")
            ));
        }
        let count = self.tokens.len() as u32;
        if let Some(token) = self.begin.iter().chain(&self.ends).find(|&&token| token >= count) {
            return wrong(format!("token {token} is to begin or end texts, and there are {count}"));
        }
        let vocab: Vocab = self.tokens.iter().cloned().zip(0..).collect();
        if vocab.len() != self.tokens.len() {
            return wrong(format!(
                "so many tokens have the name of another: {}",
                count as usize - vocab.len()
            ));
        }
        let pair =
            |merge: &String| merge.split_once(' ').map(|(a, b)| (a.to_owned(), b.to_owned()));
        let Some(merges) = self.merges.iter().map(pair).collect::<Option<Vec<_>>>() else {
            return wrong("a merge is not two words".into());
        };
        let bpe = BPE::builder().vocab_and_merges(vocab, merges).build();
        let bpe = bpe.map_err(|e| Error::model(format!("merges do not fit the tokens: {e}")))?;
        let mut inner = tokenizers::Tokenizer::new(bpe);
        inner.with_pre_tokenizer(Some(words(&self.pre)?));
        inner.with_decoder(Some(ByteLevel::default()));
        let of_type = |kind: i64| {
            let all = self.tokens.iter().zip(&self.types).filter(move |(_, t)| **t == kind);
            all.map(move |(name, _)| AddedToken::from(name.clone(), kind == CONTROL))
                .collect::<Vec<_>>()
        };
        inner.add_special_tokens(&of_type(CONTROL));
        inner.add_tokens(&of_type(OF_THE_USER));
        Tokenizer::new(inner, self.begin, self.begins, self.ends)
    }
}
