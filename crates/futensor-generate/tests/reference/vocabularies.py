"""Makes what the tests of vocabularies compare with, in `vocabularies.json`: digests of the tokens
of 2,000 texts that a random walk writes, in lots of a hundred. Byte-level BPE is `tiktoken`'s, of
words that the expressions below cut; SentencePiece's is of a model that is trained here.

    pip install tiktoken regex sentencepiece transformers && python vocabularies.py

Written with tiktoken 0.14 and sentencepiece 0.2.
"""

import io
import json
import pathlib

import regex
import sentencepiece
import tiktoken
from make import CORPUS, GPT2, LLAMA3, QWEN2, alphabet, merges

HERE = pathlib.Path(__file__).parent
TEXTS, LOT = 2000, 100

# As the models' own tokenizers have them.
CASES = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+AFTER|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*AFTER|"
    r"NUMBERS| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = CASES.replace("AFTER", "").replace("NUMBERS", r"\p{N}")
GPT4O = CASES.replace("AFTER", "(?i:'s|'t|'re|'ve|'m|'ll|'d)?").replace("NUMBERS", r"\p{N}{1,3}")
# Of alphabets with two cases.
LETTERS = (
    r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚ"
    r"Ḁ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ"
    r"\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄ"
    r"Ⰰ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+"
)
WORDS = {
    "gpt-2": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "llama-bpe": [LLAMA3],
    "glm4": [LLAMA3],
    "qwen2": [QWEN2],
    "qwen35": [
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|"
        r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
    "deepseek-llm": [
        r"[\r\n]",
        LETTERS,
        r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
        r"\s+\Z",
        "[一-龥ࠀ-一가-\ud7ff]+",
        r"\p{N}+",
    ],
    "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}"],
    "deepseek-v3": [
        r"\p{N}{1,3}",
        "[一-龥぀-ゟ゠-ヿ]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
        r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
    "tekken": [TEKKEN],
    "gpt-4o": [GPT4O],
    "falcon": [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"],
    "bloom": [" ?[^(\\s|.,!?…。，、।۔،)]+"],
    "viking": [" ?[^(\\s|.,!?…。，、।۔،)]+", r"\p{N}"],
    "seed-coder": [
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|"
        r"\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
    "bailingmoe": [
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
        r"\s*[\r\n]|\s+(?!\S)|\s+"
    ],
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
}
# Whose words that are tokens are those tokens, whatever merges would make of them.
WHOLE = {"llama-bpe", "tekken"}
WHOLE_WORDS = [" Việt", "iPhone", "camel", "العربية"]

PIECES = [
    "a", "B", "é", "e\u0301", "ß", "ẞ", "ǅ", "ж", "Ж", "中", "文字", "\u1f7d", "\u212a",
    "\u2126", "\u0386", "\u1fbe", "あ", "ア", "한", "العربية", "हिन्दी", "ไทย",
    "1", "12", "123", "1234567", "１２３", "٣", "ⅷ", "½", " ", "  ", "   ", "\n",
    "\n\n", "\r\n", "\t",
    "\u00a0", "\u3000", "\u200b", "\u200d", "\ufeff", "\u0000", "\u007f", "🦀",
    "👩‍👩‍👧", "'s", "'S", "'ll",
    "’s", "'", "\"", "!", "...", "?!", "-", "--", "_", "/", "//", "\\", "$", "+=",
    "<", ">", "<s>", "</s>",
    "the", " the", "The", " THE", "keeper", " lighthouse", "lighthouse", " Việt",
    "Größe", "iPhone", "camelCase",
    "def f(x):\n    return x", "http://a.b/c?d=e#f", "…", "。", "，", "|", "(", ")",
    "#", "\u0301", "▁", "<0x0A>", "<|use|>",
]  # fmt: skip


def walk():
    """Texts that the tests write as well."""
    state = 0
    for _ in range(TEXTS):
        pick, parts = [], []
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        for _ in range((state >> 33) % 24):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            parts.append(PIECES[(state >> 33) % len(PIECES)])
        yield "".join(parts)


def digests(encode):
    """Of each lot of texts' tokens: FNV-1a of their numbers, and of a mark behind each text."""
    found, texts = [], list(walk())
    for at in range(0, TEXTS, LOT):
        value = 0xCBF29CE484222325
        for text in texts[at : at + LOT]:
            for token in [*encode(text), 2**32 - 1]:
                for byte in token.to_bytes(4, "little"):
                    value = (value ^ byte) * 0x100000001B3 % 2**64
        found.append(f"{value:016x}")
    return found


def cut(text, expressions):
    parts = [text]
    for expression in expressions:
        cuts = []
        for part in parts:
            at = 0
            for match in regex.finditer(expression, part):
                cuts += [part[at : match.start()], match[0]]
                at = match.end()
            cuts.append(part[at:])
        parts = [part for part in cuts if part]
    return parts


def byte_level():
    names, pairs = alphabet(), merges()
    of = lambda word: "".join(names[b] for b in word)
    words = [bytes([b]) for b in range(256)] + [a + b for a, b in pairs]
    whole = words + [word.encode() for word in WHOLE_WORDS]
    assert len(set(whole)) == len(whole)
    found = {}
    for pre, expressions in WORDS.items():
        ranks = {word: k for k, word in enumerate(whole if pre in WHOLE else words)}
        encoding = tiktoken.Encoding(
            "x", pat_str=r"[\s\S]+", mergeable_ranks=ranks, special_tokens={}
        )
        found[pre] = digests(
            lambda text: [
                token
                for part in cut(text, expressions)
                for token in encoding.encode(part, disallowed_special=())
            ]
        )
    return {
        "tokens": [of(word) for word in whole],
        "merges": [f"{of(a)} {of(b)}" for a, b in pairs],
        "digests": found,
    }


def sentences(spaced):
    model = io.BytesIO()
    rare = ["aaaaaaaa aaaaaaaa", "a    b", "-----"]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS.splitlines() * 3 + rare * 9),
        model_writer=model,
        model_type="bpe",
        vocab_size=480,
        byte_fallback=True,
        add_dummy_prefix=spaced,
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        split_digits=True,
        normalization_rule_name="identity",
        character_coverage=0.99,
        user_defined_symbols=[] if spaced else ["\n\n", "<|use|>"],
        minloglevel=2,
    )
    own = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    count = own.get_piece_size()
    kinds = [own.is_unknown, own.is_control, own.is_byte, own.is_unused]
    codes = [2, 3, 6, 5]
    of = lambda k: next((c for kind, c in zip(kinds, codes) if kind(k)), 1)
    pieces = [own.id_to_piece(k) for k in range(count)]
    types = [4 if not spaced and pieces[k] in ["\n\n", "<|use|>"] else of(k) for k in range(count)]
    # A mark's name in a text is that token in the tests, and text to SentencePiece.
    encode = lambda text: [
        token
        for part in regex.split(r"(<s>|</s>)", text)
        for token in ([own.piece_to_id(part)] if part in ["<s>", "</s>"] else own.encode(part))
    ]
    return {
        "tokens": pieces,
        "scores": [own.get_score(k) for k in range(count)],
        "types": types,
        "digests": digests(encode),
    }


def main():
    cases = {
        "pieces": PIECES,
        "bytes": byte_level(),
        "sentences": {"spaced": sentences(True), "plain": sentences(False)},
    }
    text = json.dumps(cases, ensure_ascii=False).replace("], ", "],\n")
    (HERE / "vocabularies.json").write_text(text + "\n")


main()
