//! What a `tokenizer.json` may ask for, seen before anything is made of it. The library takes any
//! number of steps, each of which may be a regular expression to compile, and texts that each step
//! makes longer.

use crate::error::{Error, Result};
use serde::Deserialize;
use serde_json::Value;
use tokenizers::ModelWrapper;

/// Normalizers, pre-tokenizers, decoders and post-processors at most. Those of models have some 15.
const STEPS_MAX: usize = 64;
/// Bytes of a regular expression at most. Those of models have some 400.
const REGEX_MAX: usize = 8 << 10;
/// How many times as long as it was a text may become by replacements: by those of models three
/// times, `▁` for a space.
const GROWTH_MAX: usize = 8;
/// Bytes that are put before a text at most.
const PREPENDED_MAX: usize = 64;
/// Characters of a word that WordPiece looks up at most, in the square of that: 100 mostly.
const WORD_MAX: usize = 1024;
/// Bytes of a token of Unigram at most, which looks for all tokens at each place of a text.
const UNIGRAM_MAX: usize = 1024;

#[derive(Deserialize)]
struct File {
    normalizer: Option<Value>,
    pre_tokenizer: Option<Value>,
    post_processor: Option<Value>,
    decoder: Option<Value>,
    model: Option<Model>,
}

#[derive(Deserialize)]
struct Model {
    dropout: Option<f32>,
    max_input_chars_per_word: Option<usize>,
}

fn no(text: String) -> Result<()> {
    Err(Error::model(format!("the tokenizer: {text}")))
}

/// Refuses a file that asks for more than any has to.
pub fn check(json: &[u8]) -> Result<()> {
    let file: File = serde_json::from_slice(json).map_err(|e| Error::model(e.to_string()))?;
    let (mut steps, mut growth) = (0usize, 1usize);
    let parts = [&file.normalizer, &file.pre_tokenizer, &file.post_processor, &file.decoder];
    let mut left: Vec<&Value> = parts.into_iter().flatten().collect();
    while let Some(value) = left.pop() {
        match value {
            Value::Array(values) => left.extend(values),
            Value::Object(values) => {
                left.extend(values.values());
                steps += values.contains_key("type") as usize;
                let text = |value: &Value| value.as_str().map(str::len);
                let regex = values.get("Regex").and_then(text).unwrap_or(0);
                if regex > REGEX_MAX {
                    return no(format!("an expression of {regex} bytes, of {REGEX_MAX} at most"));
                }
                let prepended = values.get("prepend").and_then(text).unwrap_or(0);
                if prepended > PREPENDED_MAX {
                    return no(format!(
                        "{prepended} bytes before a text, of {PREPENDED_MAX} at most"
                    ));
                }
                if let Some(content) = values.get("content").and_then(text)
                    && let Some(pattern) = values.get("pattern")
                {
                    // An expression may match one byte, or none.
                    let matched = pattern.get("String").and_then(text).unwrap_or(1).max(1);
                    growth = growth.saturating_mul(content.div_ceil(matched).max(1));
                }
            }
            _ => {}
        }
    }
    if steps > STEPS_MAX {
        return no(format!("{steps} steps, of {STEPS_MAX} at most"));
    }
    if growth > GROWTH_MAX {
        return no(format!("texts become {growth} times as long, of {GROWTH_MAX} at most"));
    }
    let Some(model) = file.model else { return Ok(()) };
    if model.dropout.is_some_and(|dropout| dropout != 0.0) {
        return no("it merges at random".into());
    }
    match model.max_input_chars_per_word {
        Some(word) if word > WORD_MAX => {
            no(format!("words of {word} characters, of {WORD_MAX} at most"))
        }
        _ => Ok(()),
    }
}

/// Refuses a model that was read and would take too long with a text.
pub fn check_read(tokenizer: &tokenizers::Tokenizer) -> Result<()> {
    if let ModelWrapper::Unigram(_) = tokenizer.get_model()
        && let longest = tokenizer.get_vocab(false).keys().map(String::len).max().unwrap_or(0)
        && longest > UNIGRAM_MAX
    {
        return no(format!("a token of {longest} bytes, of {UNIGRAM_MAX} at most"));
    }
    Ok(())
}
