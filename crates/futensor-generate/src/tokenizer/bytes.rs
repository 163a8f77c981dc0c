//! The bytes that each token stands for.

use crate::error::{Error, Result};
use tokenizers::{DecoderWrapper, Tokenizer};

/// Numbers of tokens are less: room is made up to the largest.
const TOKENS_MAX: usize = 1 << 24;

/// The byte that a character of GPT-2's alphabet stands for: printable ones stand for themselves,
/// the others for what is shifted to U+0100 and on, in order (`bytes_to_unicode` of GPT-2's
/// encoder).
fn byte_of(c: char) -> Option<u8> {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let code = c as u32;
    match u8::try_from(code) {
        Ok(b) if printable(b) => Some(b),
        _ => (0..=255u8).filter(|&b| !printable(b)).nth(code.checked_sub(0x100)? as usize),
    }
}

/// Marks of calls of tools, by their names: they stand for text, in which a reader of the answer
/// looks for them.
const CALLS: [&str; 3] = ["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"];

/// How a vocabulary's words are spelled.
#[derive(Clone, Copy)]
enum Spelling {
    /// In GPT-2's alphabet.
    Alphabet,
    /// As they are, with `▁` for a space and `<0x0A>` for a byte.
    Plain,
}

fn spelling(decoder: Option<&DecoderWrapper>) -> Spelling {
    match decoder {
        Some(DecoderWrapper::ByteLevel(_)) => Spelling::Alphabet,
        Some(DecoderWrapper::Sequence(all)) => {
            let alphabet = |d: &DecoderWrapper| matches!(spelling(Some(d)), Spelling::Alphabet);
            if all.get_decoders().iter().any(alphabet) {
                Spelling::Alphabet
            } else {
                Spelling::Plain
            }
        }
        _ => Spelling::Plain,
    }
}

fn bytes_of(word: &str, spelling: Spelling) -> Box<[u8]> {
    let byte = word.strip_prefix("<0x").and_then(|w| w.strip_suffix('>'));
    match (spelling, byte.and_then(|hex| u8::from_str_radix(hex, 16).ok())) {
        (Spelling::Plain, Some(byte)) => [byte].into(),
        (Spelling::Plain, None) => word.replace('▁', " ").into_bytes().into(),
        (Spelling::Alphabet, _) => match word.chars().map(byte_of).collect::<Option<Vec<u8>>>() {
            Some(bytes) => bytes.into(),
            None => word.as_bytes().into(),
        },
    }
}

/// Of all tokens in their order: their bytes, and whether they only mark something.
///
/// # Errors
/// Where a number is larger than any model's vocabulary.
pub fn of_all(tokenizer: &Tokenizer) -> Result<(Vec<Box<[u8]>>, Vec<bool>)> {
    let spelling = spelling(tokenizer.get_decoder());
    let added = tokenizer.get_added_tokens_decoder();
    let vocabulary = tokenizer.get_vocab(true);
    let count = vocabulary.values().max().map_or(0, |&last| last as usize + 1);
    if count > TOKENS_MAX {
        return Err(Error::model(format!(
            "a token has the number {}, of {TOKENS_MAX} at most",
            count - 1
        )));
    }
    let (mut bytes, mut marks) = (vec![Box::default(); count], vec![false; count]);
    for (word, token) in vocabulary {
        (bytes[token as usize], marks[token as usize]) = match added.get(&token) {
            Some(added) if added.special && !CALLS.contains(&&added.content[..]) => {
                (Box::default(), true)
            }
            Some(added) => (added.content.as_bytes().into(), false),
            None => (bytes_of(&word, spelling), false),
        };
    }
    Ok((bytes, marks))
}
