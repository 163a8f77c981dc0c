"""Makes what the tests compare with, in `cases.json`: tokens by `tiktoken`, conversations by
Jinja's own engine. Nothing is downloaded.

    pip install transformers tiktoken regex && python make.py

Written with transformers 5.24 and tiktoken 0.14.
"""

import json
import pathlib

import regex
import tiktoken
from transformers.utils.chat_template_utils import render_jinja_template

HERE = pathlib.Path(__file__).parent

GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# As Meta and Qwen publish them.
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

CORPUS = """\
The old lighthouse keeper didn't sleep; she'd counted 12345 ships, 67 storms and 8901 stars.
    # 1 + 2 == 3\n\nnaïve café, Größe, 中文字符 и русский текст. WE'LL SEE, I'M SURE!!!
    def add(a, b):\n        return a + b
12 123 1234 12345 1234567 3.14159 2024-01-02 the the then there their hello hello world world"""

TEXTS = [
    CORPUS,
    "",
    " ",
    "  ",
    "a  b   c",
    "tabs\tand\n\nlines \n  here\r\n",
    "123456789 1 12 1234",
    "x1y22z333",
    "I'LL we'll THEY'RE",
    "don't can't 'tis",
    "hello world, hello  there!",
    "中文 naïve 🦀🦀 é",
    "...!!!???   ---",
    " leading",
    "trailing   ",
    "a\u00a0b\u3000c",
    "v1.2.3-rc4",
    "１２３ ٣٤٥ ⅷ",
    "<|end|> is a token, <|begin|>too",
    "<|use|>",
    "e\u0301\u0302",
    "\n\n\n",
    "   \n   x",
]


def alphabet():
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    names, others = {b: chr(b) for b in printable}, 0x100
    for b in range(256):
        if b not in names:
            names[b] = chr(others)
            others += 1
    return names


def merges():
    """By counting pairs, of words that GPT-2 cuts; digits merge among themselves, so that cutting
    shows."""
    words = [[bytes([b]) for b in w.encode()] for w in regex.findall(GPT2, CORPUS * 2)]
    found = []
    while len(found) < 160:
        counts = {}
        for word in words:
            for pair in zip(word, word[1:]):
                counts[pair] = counts.get(pair, 0) + 1
        best = max(counts, key=lambda p: (counts[p], p))
        found.append(best)
        for k, word in enumerate(words):
            at, new = 0, []
            while at < len(word):
                if tuple(word[at : at + 2]) == best:
                    new.append(word[at] + word[at + 1])
                    at += 2
                else:
                    new.append(word[at])
                    at += 1
            words[k] = new
    return found


def tokens():
    names, pairs = alphabet(), merges()
    of = lambda word: "".join(names[b] for b in word)
    words = [bytes([b]) for b in range(256)] + [a + b for a, b in pairs]
    ranks = {word: k for k, word in enumerate(words)}
    assert len(ranks) == len(words)
    special = {"<|begin|>": len(words), "<|end|>": len(words) + 1, "<|use|>": len(words) + 2}
    cases = {}
    for pre, pattern in {
        "gpt-2": GPT2,
        "llama-bpe": LLAMA3,
        "qwen2": QWEN2,
        "smollm": GPT2,
    }.items():
        encoding = tiktoken.Encoding(
            "x", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special
        )

        def encode(text):
            if pre != "smollm":
                return encoding.encode(text, allowed_special="all")
            # Digits stand alone before anything else is cut.
            parts = regex.findall(r"<\|\w+\|>|\p{N}|(?:(?!<\|\w+\|>)\P{N})+", text)
            return [
                token for part in parts for token in encoding.encode(part, allowed_special="all")
            ]

        cases[pre] = [encode(text) for text in TEXTS]
    return {
        "tokens": [of(w) for w in words] + list(special),
        "types": [1] * len(words) + [3, 3, 4],
        "merges": [f"{of(a)} {of(b)}" for a, b in pairs],
        "texts": TEXTS,
        "expected": cases,
    }


TEMPLATES = {
    "chatml": (
        "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
        "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ "
        "'<|im_start|>assistant\n' }}{% endif %}"
    ),
    "llama": (
        "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = "
        "'<|start|>' + message['role'] + '<|/start|>\n\n' + message['content'] | trim + "
        "'<|eot|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif "
        "%}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ "
        "'<|start|>assistant<|/start|>\n\n' }}{% endif %}"
    ),
    "mistral": (
        "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set system = "
        "messages[0]['content'] %}{% set rest = messages[1:] %}{% else %}{% set rest = messages "
        "%}{% endif %}{% for m in rest %}{% if m['role'] == 'user' %}{% if loop.last and system "
        "is defined %}{{ '[INST] ' + system + '\n\n' + m['content'] + ' [/INST]' }}{% else %}{{ "
        "'[INST] ' + m['content'] + ' [/INST]' }}{% endif %}{% elif m['role'] == 'assistant' "
        "%}{{ ' ' + m['content'].strip() + eos_token }}{% endif %}{% endfor %}"
    ),
    "blocks": (
        "{%- set ns = namespace(last=-1) %}\n{%- for m in messages %}\n  {%- if m.role == 'user' "
        "and not m.content.startswith('<tool>') %}\n    {%- set ns.last = loop.index0 %}\n  {%- "
        "endif %}\n{%- endfor %}\n{% for m in messages %}\n  {% if loop.index0 > ns.last %}\n    "
        "after\n  {% endif %}\n{{ m.role.upper() }}: {{ "
        "m.content.split('</think>')[-1].lstrip('\\n') }}{{ m.content | length }}\n{% endfor "
        "%}\n{{ messages | tojson }}{{ eos_token }}"
    ),
    "macros": (
        "{% macro one(m, n=1) %}[{{ n }}:{{ m.content | replace('a', 'b') }}]{% endmacro %}{% "
        "for m in messages | selectattr('role', 'equalto', 'user') %}{{ one(m, loop.index) }}{% "
        "endfor %}{{ messages[-1].content[:3] }}{{ messages | map(attribute='role') | join(', ') "
        "}}{% if tools is not defined %}!{% endif %}"
    ),
}

TEMPLATES |= {
    "loops": (
        "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{{ m.role }};"
        "{% if loop.index > 2 %}{% break %}{% endif %}{% for c in m.content %}{% if c == 'a' %}{% "
        "break %}{% endif %}{{ c }}{% endfor %}|{% endfor %}{% if tools is none %}none{% endif %}"
    ),
    "generation": (
        "{%- for m in messages -%}\n{% if m.role == 'assistant' %}\n{% generation %}\n"
        "{{ m.content }}{% set x = 1 %}<end>\n{%- endgeneration -%}\n{% else %}{{ m.content }}{% "
        "endif %}\n{% endfor %}{{ x is defined }}"
    ),
    "json": (
        "{% set d = {'b': [1, 2.0, 1e22, 0.00001, 1e-7, none, true], 'a': {}, 'é': [], 'c': {'z': "
        "'<&>\\n\\t\\u0001\\x7f\\'\"/ü🦀'}, 1: 'x'} %}{{ d | tojson }}{{ d | tojson(indent=2) }}"
        "{{ d | tojson(ensure_ascii=True) }}{{ d | tojson(ensure_ascii=False, indent=0) }}{{ d.c | "
        "tojson(separators=(',', ':')) }}{{ d.c | tojson(sort_keys=True, indent='--') }}"
        "{{ messages | tojson(indent=4) }}{{ {'z': 1, 'y': 2, 'x': 3} | tojson }}"
        "{{ dict(z=1, y=2) | tojson }}"
        "{% for k, v in {'z': 1, 'y': 2}.items() %}{{ k }}{{ v }}{% endfor %}{{ 3 | tojson }}"
        "{{ 'a' | tojson }}{{ {'q': 1, 'p': 2} }}"
    ),
    "percent": (
        "{{ '%s: %s' % (messages[0].role, messages[0].content) }}{{ '%d%%' % 7 }}{{ '%s' % 'x' }}"
        "{{ '%05.1f|%-4s|%4s|%x' % (2.25, 'a', 'b', 255) }}{{ -7 % 3 }}{{ 7.5 % 2 }}"
    ),
}

CONVERSATIONS = [
    [{"role": "user", "content": "Hello"}],
    [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": " A cat? "},
        {"role": "assistant", "content": "<think>x</think>\n\nA cat. "},
        {"role": "user", "content": "{{ 1 }} <tool> ü\n"},
    ],
    [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "<tool>c"},
    ],
]


def templates():
    found = []
    for name, source in TEMPLATES.items():
        for messages in CONVERSATIONS:
            (text,), _ = render_jinja_template(
                [messages],
                chat_template=source,
                add_generation_prompt=True,
                bos_token="<s>",
                eos_token="</s>",
            )
            found.append({"name": name, "source": source, "messages": messages, "text": text})
    return found


def main():
    cases = {"tokens": tokens(), "templates": templates()}
    (HERE / "cases.json").write_text(json.dumps(cases, ensure_ascii=False, indent=0) + "\n")


if __name__ == "__main__":
    main()
