//! Text to tokens and back, by the tokenizer that comes with a model: `tokenizer.json`, or the
//! metadata of a GGUF file ([`Vocabulary`]).

mod bytes;
mod limits;
mod text;
mod vocabulary;
mod words;

use crate::error::{Error, Result, number_of};
use crate::helpers::{Work, outside};
use std::io::Read as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
pub use text::Text;
pub use vocabulary::Vocabulary;

/// Bytes of a text at most: more than any model's context.
const TEXT_MAX: usize = 16 << 20;

/// Bytes of a `tokenizer.json` at most. Those of models have some 20 MB.
const FILE_MAX: usize = 256 << 20;

/// Tokens that end a text, or a turn of it, by their names in the vocabularies of models.
const ENDS: [&str; 12] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "[EOT]",
    "<|END_OF_TURN_TOKEN|>",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
];

/// A tokenizer. It never goes to the network.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// What each token stands for; nothing for those that only mark something.
    bytes: Vec<Box<[u8]>>,
    marks: Vec<bool>,
    begin: Option<u32>,
    begins: bool,
    ends: Vec<u32>,
}

impl Tokenizer {
    /// Of a `tokenizer.json`; the names of the tokens that begin and end a text are taken from
    /// the `tokenizer_config.json` beside it, where there is one, and those that end it from
    /// `generation_config.json` as well.
    ///
    /// It takes as long as the file is large, some 100 ms for those of models: a thread that drives
    /// tasks leaves it to another, as [`Llama::from_folder`](crate::Llama::from_folder) does.
    ///
    /// # Errors
    /// Where the file is none, or asks for more than any has to.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Tokenizer> {
        let path = path.as_ref();
        let wrong = |e: &dyn std::fmt::Display| Error::model(format!("{}: {e}", path.display()));
        let read = |path: &Path| {
            let mut text = Vec::new();
            std::fs::File::open(path)?.take(FILE_MAX as u64 + 1).read_to_end(&mut text)?;
            Ok::<_, std::io::Error>(text)
        };
        let text = read(path).map_err(|e| wrong(&e))?;
        let beside = |name: &str| -> serde_json::Value {
            let text = read(&path.with_file_name(name)).ok();
            text.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
        };
        let (config, generation) =
            (beside("tokenizer_config.json"), beside("generation_config.json"));
        let name = |key: &str| {
            let value = &config[key];
            value.as_str().or(value["content"].as_str()).map(str::to_owned)
        };
        let (begin, end) = (name("bos_token"), name("eos_token"));
        let mut tokenizer =
            Tokenizer::from_json(&text, begin.as_deref(), end.as_deref()).map_err(|e| wrong(&e))?;
        // One, or several.
        let ends = &generation["eos_token_id"];
        let ends = ends.as_array().map_or(std::slice::from_ref(ends), Vec::as_slice);
        let ends = ends.iter().filter_map(|end| end.as_u64().and_then(|n| u32::try_from(n).ok()));
        let more: Vec<u32> = ends.filter(|&end| (end as usize) < tokenizer.len()).collect();
        tokenizer.ends_as_well(more);
        Ok(tokenizer)
    }

    /// Of the text of a `tokenizer.json`, and the names of the tokens that begin and end a text.
    ///
    /// # Errors
    /// Where the text is no such thing, or the names are no tokens of it.
    pub fn from_json(json: &[u8], begin: Option<&str>, end: Option<&str>) -> Result<Tokenizer> {
        if json.len() > FILE_MAX {
            let bytes = json.len();
            return Err(Error::model(format!(
                "a tokenizer of {bytes} bytes, of {FILE_MAX} at most"
            )));
        }
        limits::check(json)?;
        let read = catch_unwind(AssertUnwindSafe(|| tokenizers::Tokenizer::from_bytes(json)));
        let read = read.map_err(|_| Error::model("no tokenizer: a panic"))?;
        let mut inner = read.map_err(|e| Error::model(e.to_string()))?;
        limits::check_read(&inner)?;
        // A text's tokens are those of all of it, and no others: a file may ask for any number.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|e| Error::model(e.to_string()))?;
        let number = |name: Option<&str>| {
            let named = |name: &str| Error::model(format!("the tokenizer has no token {name:?}"));
            name.map(|name| inner.token_to_id(name).ok_or_else(|| named(name))).transpose()
        };
        let (begin, end) = (number(begin)?, number(end)?);
        let begins = begin.is_some_and(|begin| {
            inner
                .encode_fast("", true)
                .is_ok_and(|encoding| encoding.get_ids().first() == Some(&begin))
        });
        Tokenizer::new(inner, begin, begins, end.into_iter().collect())
    }

    fn new(
        inner: tokenizers::Tokenizer,
        begin: Option<u32>,
        begins: bool,
        ends: Vec<u32>,
    ) -> Result<Tokenizer> {
        let (bytes, marks) = bytes::of_all(&inner)?;
        let by_name = ENDS.iter().filter_map(|name| inner.token_to_id(name)).collect();
        let mut own = Tokenizer { inner, bytes, marks, begin, begins, ends };
        own.ends_as_well(by_name);
        Ok(own)
    }

    fn ends_as_well(&mut self, more: Vec<u32>) {
        for end in more {
            if !self.ends.contains(&end) {
                self.ends.push(end);
            }
        }
    }

    /// The tokens of a text. Names of special tokens in it become those tokens. With `begins`, the
    /// token that begins a text comes first, where the model wants one.
    ///
    /// It takes some microseconds a word, on the caller's thread:
    /// [`encode_later`](Self::encode_later) is for texts of more than some lines, in a task.
    ///
    /// # Errors
    /// Where the text cannot be said in these tokens, or has more than 16 MiB.
    pub fn encode(&self, text: &str, begins: bool) -> Result<Vec<u32>> {
        if text.len() > TEXT_MAX {
            let bytes = text.len();
            return Err(Error::request(format!("a text of {bytes} bytes, of {TEXT_MAX} at most")));
        }
        let encode =
            || self.inner.encode_fast(text, false).map_err(|e| Error::request(e.to_string()));
        // The tokenizer came with a file, and its library's own panics are the text's errors.
        let encoding = catch_unwind(AssertUnwindSafe(encode));
        let encoding = encoding
            .unwrap_or_else(|_| Err(Error::request("a text that has no tokens: a panic")))?;
        let begin = self.begin.filter(|_| begins && self.begins);
        Ok(begin.into_iter().chain(encoding.get_ids().iter().copied()).collect())
    }

    /// The same, on a helper thread.
    ///
    /// ```no_run
    /// # async fn doc(engine: futensor_generate::Engine) -> futensor_generate::Result<()> {
    /// let long = "once upon a time ".repeat(10_000);
    /// let tokens = engine.model().tokenizer().encode_later(long, true).await?;
    /// assert!(tokens.len() > 10_000);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    ///
    /// # Cancel safety
    /// Dropping the future gives the tokens up.
    pub fn encode_later(self: &Arc<Self>, text: String, begins: bool) -> Work<Vec<u32>> {
        let own = self.clone();
        outside().work(move || own.encode(&text, begins))
    }

    /// The text of some tokens; what is no UTF-8 becomes U+FFFD.
    pub fn decode(&self, tokens: &[u32]) -> String {
        let bytes: Vec<u8> = tokens.iter().flat_map(|&t| self.bytes(t)).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The bytes that a token stands for; none for special ones, and for numbers that are no token.
    pub fn bytes(&self, token: u32) -> &[u8] {
        self.bytes.get(token as usize).map_or(&[], |bytes| bytes)
    }

    /// True of tokens that mark something and stand for no text.
    pub fn is_mark(&self, token: u32) -> bool {
        self.marks.get(token as usize).copied().unwrap_or(false)
    }

    /// The name of a token.
    pub fn name(&self, token: u32) -> Option<String> {
        self.inner.id_to_token(token)
    }

    /// How many tokens there are: one more than the largest number.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// True of a tokenizer without tokens.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The token that a text begins with, where there is one.
    pub fn begin(&self) -> Option<u32> {
        self.begin
    }

    /// The tokens that end a text: those that the file says, and those that are named like one.
    pub fn ends(&self) -> &[u32] {
        &self.ends
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tokenizer({})", number_of(self.len(), "token", "tokens"))
    }
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
