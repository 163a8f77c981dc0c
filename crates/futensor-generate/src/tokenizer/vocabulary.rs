//! The tokenizer of a GGUF file: `tokenizer.ggml.*` of its metadata, put together as the library
//! wants it.

use super::Tokenizer;
use super::words::Words;
use crate::error::{Error, Result, number_of};
use futensor::gguf;
use tokenizers::AddedToken;
use tokenizers::models::bpe::{BPE, BpeBuilder, Merges, Vocab};
use tokenizers::normalizers::{NormalizerWrapper, Prepend, Replace, Sequence};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

/// What a GGUF file says of its tokenizer, under the keys' own names.
#[derive(Clone, Debug, Default)]
pub struct Vocabulary {
    /// `tokenizer.ggml.model`: how words become tokens; `gpt2` is byte-level BPE, `llama` is
    /// SentencePiece's.
    pub model: String,
    /// `tokenizer.ggml.pre`: how a text is cut into words.
    pub pre: String,
    /// `tokenizer.ggml.tokens`.
    pub tokens: Vec<String>,
    /// `tokenizer.ggml.token_type`: 2 is what is unknown, 3 marks something, 4 is the user's, 5 is
    /// not used, 6 is a byte.
    pub types: Vec<i64>,
    /// `tokenizer.ggml.merges`: two words with a space between them, the first to be merged first.
    pub merges: Vec<String>,
    /// `tokenizer.ggml.scores`: of two tokens made of others, the better one is made first.
    pub scores: Vec<f32>,
    /// `tokenizer.ggml.add_space_prefix`: a text has a space before it (of SentencePiece alone).
    pub spaced: bool,
    /// `tokenizer.ggml.bos_token_id`.
    pub begin: Option<u32>,
    /// `tokenizer.ggml.add_bos_token`.
    pub begins: bool,
    /// `tokenizer.ggml.eos_token_id`, and `eot_token_id` and `eom_token_id` where there are some.
    pub ends: Vec<u32>,
}

/// Bytes of a token that is made of others at most, which is looked up in all its parts. Those of
/// models have some 100.
const MERGED_MAX: usize = 256;

const UNKNOWN: i64 = 2;
const CONTROL: i64 = 3;
const OF_THE_USER: i64 = 4;
const UNUSED: i64 = 5;
const BYTE: i64 = 6;

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
        let flag = |key: &str| value(key).and_then(|v| v.as_bool());
        let (model, pre) = (text("model"), text("pre"));
        if model == SENTENCES && flag("remove_extra_whitespaces") == Some(true) {
            return Err(Error::model("tokenizer.ggml.remove_extra_whitespaces is not supported"));
        }
        let scores = match value("scores").and_then(|v| v.as_array()) {
            Some(gguf::Array::F32(scores)) => scores.clone(),
            _ => Vec::new(),
        };
        let begins = model == SENTENCES || Words::of(&pre).is_ok_and(|words| words.begins);
        let ends = ["eos_token_id", "eot_token_id", "eom_token_id"];
        Ok(Vocabulary {
            model,
            pre,
            tokens: texts("tokens")
                .ok_or_else(|| Error::model("the file says no tokenizer.ggml.tokens"))?,
            types,
            merges: texts("merges").unwrap_or_default(),
            begin: token("bos_token_id"),
            scores,
            spaced: flag("add_space_prefix").unwrap_or(true),
            begins: flag("add_bos_token").unwrap_or(begins),
            ends: ends.into_iter().filter_map(token).collect(),
        })
    }

    /// The tokenizer.
    ///
    /// # Errors
    /// Where it is of a kind that is not known, or its parts do not fit each other.
    pub fn tokenizer(self) -> Result<Tokenizer> {
        let wrong = |text: String| Err(Error::model(text));
        let counted = |n: usize, kind: [&str; 2]| match n {
            0 => Ok(()),
            n if n == self.tokens.len() => Ok(()),
            n => Err(Error::model(format!(
                "{} with {}",
                number_of(self.tokens.len(), "token", "tokens"),
                number_of(n, kind[0], kind[1])
            ))),
        };
        counted(self.types.len(), ["type", "types"])?;
        counted(self.scores.len(), ["score", "scores"])?;
        let count = self.tokens.len() as u32;
        if let Some(token) = self.begin.iter().chain(&self.ends).find(|&&token| token >= count) {
            return wrong(format!("token {token} is to begin or end texts, and there are {count}"));
        }
        let (mut inner, names) = match &self.model[..] {
            BYTES => (self.of_bytes()?, self.tokens.clone()),
            SENTENCES => self.of_sentences()?,
            other => {
                return wrong(format!(
                    "tokenizer {other:?} is not known: byte-level BPE ({BYTES:?}) and \
                     SentencePiece ({SENTENCES:?}) are"
                ));
            }
        };
        let of_type = |kind: i64| {
            let all = names.iter().zip(&self.types).filter(move |(_, t)| **t == kind);
            // Found in a text as it is.
            let added = |name: &String| AddedToken::from(name.clone(), kind == CONTROL);
            all.map(|(name, _)| added(name).normalized(false)).collect::<Vec<_>>()
        };
        inner.add_special_tokens(&of_type(CONTROL));
        inner.add_tokens(&of_type(OF_THE_USER));
        Tokenizer::new(inner, self.begin, self.begins, self.ends)
    }

    fn kind(&self, token: usize) -> i64 {
        self.types.get(token).copied().unwrap_or(1)
    }

    /// Byte-level BPE.
    fn of_bytes(&self) -> Result<tokenizers::Tokenizer> {
        let words = Words::of(&self.pre)?;
        let pair =
            |merge: &String| merge.split_once(' ').map(|(a, b)| (a.to_owned(), b.to_owned()));
        let Some(merges) = self.merges.iter().map(pair).collect::<Option<Vec<_>>>() else {
            return Err(Error::model("a merge is not two words"));
        };
        let builder = builder(&self.tokens, merges)?.ignore_merges(words.whole);
        let mut inner = tokenizers::Tokenizer::new(built(builder)?);
        inner.with_pre_tokenizer(Some(words.pre_tokenizer()?));
        inner.with_decoder(Some(ByteLevel::default()));
        Ok(inner)
    }

    /// SentencePiece's BPE (Kudo and Richardson 2018, arXiv:1808.06226): what is made of two tokens
    /// is made in the order of its score. Beside it, the tokens' names.
    fn of_sentences(&self) -> Result<(tokenizers::Tokenizer, Vec<String>)> {
        if self.scores.is_empty() {
            return Err(Error::model("the file says no tokenizer.ggml.scores"));
        }
        // Tokens of the user are found in a text, which has spaces.
        let name = |(k, name): (usize, &String)| match self.kind(k) {
            OF_THE_USER => name.replace(SPACE, " "),
            _ => name.clone(),
        };
        let names: Vec<String> = self.tokens.iter().enumerate().map(name).collect();
        let own = |k: usize| ![UNKNOWN, CONTROL, OF_THE_USER, UNUSED, BYTE].contains(&self.kind(k));
        let made = (0..names.len()).filter(|&k| own(k));
        let known: std::collections::HashSet<&str> = made.clone().map(|k| &names[k][..]).collect();
        let mut order: Vec<usize> = made.collect();
        let score = |k: usize| self.scores.get(k).copied().unwrap_or(0.0);
        order.sort_by(|&a, &b| score(b).total_cmp(&score(a)));
        let mut merges: Merges = Vec::new();
        for k in order {
            let name = &names[k][..];
            if name.len() > MERGED_MAX {
                let bytes = number_of(name.len(), "byte", "bytes");
                return Err(Error::model(format!("a token of {bytes}, of {MERGED_MAX} at most")));
            }
            let cuts = name.char_indices().skip(1).map(|(at, _)| name.split_at(at));
            let pairs = cuts.filter(|(a, b)| known.contains(a) && known.contains(b));
            merges.extend(pairs.map(|(a, b)| (a.to_owned(), b.to_owned())));
        }
        let mut builder = builder(&names, merges)?.byte_fallback(true).fuse_unk(true);
        if let Some(unknown) = (0..names.len()).find(|&k| self.kind(k) == UNKNOWN) {
            builder = builder.unk_token(names[unknown].clone());
        }
        let mut inner = tokenizers::Tokenizer::new(built(builder)?);
        let replace = Replace::new(" ", SPACE).map_err(|e| Error::model(e.to_string()))?;
        let mut steps: Vec<NormalizerWrapper> = vec![replace.into()];
        if self.spaced {
            steps.insert(0, Prepend::new(SPACE.to_string()).into());
        }
        inner.with_normalizer(Some(Sequence::new(steps)));
        Ok((inner, names))
    }
}

/// What `tokenizer.ggml.model` may be.
const BYTES: &str = "gpt2";
const SENTENCES: &str = "llama";
/// What stands for a space in SentencePiece's tokens.
const SPACE: &str = "\u{2581}";

fn builder(tokens: &[String], merges: Merges) -> Result<BpeBuilder> {
    let vocab: Vocab = tokens.iter().cloned().zip(0..).collect();
    match tokens.len() - vocab.len() {
        0 => Ok(BPE::builder().vocab_and_merges(vocab, merges)),
        n => Err(Error::model(format!("so many tokens have the name of another: {n}"))),
    }
}

fn built(builder: BpeBuilder) -> Result<BPE> {
    builder.build().map_err(|e| Error::model(format!("merges do not fit the tokens: {e}")))
}
