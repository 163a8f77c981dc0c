//! How a text is cut into words before words become tokens, by the names that GGUF files have for
//! it (`tokenizer.ggml.pre`).

use crate::error::{Error, Result};
use tokenizers::SplitDelimiterBehavior;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};

/// A way of cutting.
pub struct Words {
    names: &'static [&'static str],
    /// Each cuts what those before it have left whole: into what it matches, and what is between.
    expressions: &'static [&'static str],
    /// A word that is a token is that token, whatever merges would make of it.
    pub whole: bool,
    /// A text has the token that begins one, where the file does not say.
    pub begins: bool,
}

macro_rules! contractions {
    () => {
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    };
}

macro_rules! marks_and_spaces {
    () => {
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    };
}

/// Words in upper and lower case (`$after` them something may be), as tekken and GPT-4o have them.
macro_rules! cases {
    ($after:expr, $numbers:literal) => {
        concat!(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
            $after,
            r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
            $after,
            "|",
            $numbers,
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        )
    };
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str =
    concat!(contractions!(), r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}", marks_and_spaces!());
const QWEN2: &str =
    concat!(contractions!(), r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}", marks_and_spaces!());
const QWEN35: &str = concat!(
    contractions!(),
    r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}",
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const SEED: &str = concat!(
    contractions!(),
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const BAILING: &str = concat!(
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
);
/// The letters of alphabets with two cases.
const DEEPSEEK_LETTERS: &str = concat!(
    r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚ",
    // Numbers where a normal form would have another letter.
    r"Ḁ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\x{1f7d}ᾀ-ᾴᾶ-ᾼ\x{1fbe}ῂ-ῄῆ-ῌῐ-\x{1fd3}ῖ-\x{1fdb}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ",
    r"\x{2126}ℨ\x{212a}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄ",
    r"Ⰰ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+"
);
const DEEPSEEK_V3: &str = concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"##,
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";

/// llama.cpp's names and expressions (its `src/llama-vocab.cpp`).
const ALL: [Words; 17] = [
    plain(
        &[
            "gpt-2",
            "",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "exaone4",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "granite-docling",
        ],
        &[GPT2],
    ),
    plain(
        &[
            "smollm",
            "starcoder",
            "refact",
            "command-r",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        &[r"\p{N}", GPT2],
    ),
    Words {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "midm-2.0", "lfm2"],
        expressions: &[LLAMA3],
        whole: true,
        begins: true,
    },
    plain(&["dbrx", "smaug-bpe", "chatglm-bpe", "glm4"], &[LLAMA3]),
    plain(
        &[
            "qwen2",
            "deepseek-r1-qwen",
            "stablelm2",
            "hunyuan",
            "megrez",
            "solar-open",
            "grok-2",
            "kormo",
        ],
        &[QWEN2],
    ),
    plain(&["qwen35"], &[QWEN35]),
    plain(
        &["deepseek-llm"],
        &[
            r"[\r\n]",
            DEEPSEEK_LETTERS,
            r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
            r"\s+$",
            "[一-龥ࠀ-一가-\u{d7ff}]+",
            r"\p{N}+",
        ],
    ),
    plain(
        &["deepseek-coder"],
        &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\u{d7ff}]+", r"\p{N}"],
    ),
    plain(&["deepseek-v3", "hunyuan-dense"], &[r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK_V3]),
    Words {
        names: &["tekken", "pixtral"],
        expressions: &[cases!("", r"\p{N}")],
        whole: true,
        begins: true,
    },
    plain(
        &["gpt-4o", "llama4", "kanana2"],
        &[cases!(concat!(contractions!(), "?"), r"\p{N}{1,3}")],
    ),
    plain(&["falcon"], &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"]),
    plain(&["poro-chat", "bloom", "gpt3-finnish"], &[BLOOM]),
    plain(&["viking"], &[BLOOM, r"\p{N}"]),
    plain(&["seed-coder"], &[SEED]),
    plain(&["bailingmoe", "bailingmoe2"], &[BAILING]),
    plain(&["default"], &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"]),
];

const fn plain(names: &'static [&'static str], expressions: &'static [&'static str]) -> Words {
    Words { names, expressions, whole: false, begins: false }
}

impl Words {
    /// The way of this name.
    pub fn of(name: &str) -> Result<&'static Words> {
        let found = ALL.iter().find(|words| words.names.contains(&name));
        found.ok_or_else(|| Error::model(format!("pre-tokenizer {name:?} is not known")))
    }

    /// As the library has it.
    pub fn pre_tokenizer(&self) -> Result<PreTokenizerWrapper> {
        let split = |expression: &&str| {
            let pattern = SplitPattern::Regex((*expression).into());
            let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false);
            Ok(split.map_err(|e| Error::model(e.to_string()))?.into())
        };
        let mut steps: Vec<PreTokenizerWrapper> =
            self.expressions.iter().map(split).collect::<Result<_>>()?;
        steps.push(ByteLevel::new(false, true, false).into());
        Ok(Sequence::new(steps).into())
    }
}
