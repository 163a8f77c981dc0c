"""How fast is the same MiniLM in PyTorch, without HTTP?

    pip install torch transformers tokenizers
    python minilm.py MODEL_FOLDER [--compile]
    cargo run --profile bench -p embed -- MODEL_FOLDER --measure     # futensor, the same rows

From token ids to host vectors, mean pooling included, on two threads; the sentences are those that
`--measure` makes. Medians of two seconds each. `--compile` adds torch.compile, which needs a C++
compiler and some minutes.
"""

import sys
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import BertModel

folder = Path(sys.argv[1])
torch.set_num_threads(2)
tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
tokenizer.no_padding()
words = (Path(__file__).parents[3] / "examples/embed/reference/sentences.txt").read_text().split()
sentences = [
    " ".join(words[(k * 31 + w * 7) % len(words)] for w in range(8 + k * 7 % 33)) for k in range(32)
]
cases = [
    (
        "one sentence",
        [
            tokenizer.encode(
                "Backpressure means that a producer waits until the queue is short enough."
            ).ids
        ],
    ),
    ("32 sentences of 8 to 40 words", [tokenizer.encode(s).ids for s in sentences]),
    ("32 x 128 tokens", [[1000 + 37 * k % 20_000 for k in range(128)]] * 32),
]
model = BertModel.from_pretrained(folder, add_pooling_layer=False).eval()


def embed(ids, mask):
    hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
    weight = mask.unsqueeze(-1).to(hidden.dtype)
    mean = (hidden * weight).sum(1) / weight.sum(1)
    return torch.nn.functional.normalize(mean, dim=-1)


def measure(name, embed):
    for case, rows in cases:
        width = max(map(len, rows))
        ids = torch.tensor([r + [0] * (width - len(r)) for r in rows])
        mask = (torch.arange(width)[None, :] < torch.tensor([len(r) for r in rows])[:, None]).long()
        with torch.inference_mode():
            for _ in range(3):
                embed(ids, mask).tolist()
            times, begin = [], time.perf_counter()
            while time.perf_counter() - begin < 2 or len(times) < 8:
                start = time.perf_counter()
                embed(ids, mask).tolist()
                times.append(time.perf_counter() - start)
        times.sort()
        median, p99 = times[len(times) // 2], times[int(len(times) * 0.99)]
        what = (
            f"median {median * 1e3:.2f} ms, p99 {p99 * 1e3:.2f} ms"
            if len(rows) == 1
            else f"{len(rows) / median:.1f} sentences/s"
        )
        print(f"{name}: {case}: {what}")


measure("PyTorch", embed)
if "--compile" in sys.argv:
    measure("torch.compile", torch.compile(embed))
