"""Writes what the tests of BERT compare with: small models of random weights by `transformers`.

    pip install numpy safetensors torch transformers
    python make.py

`bert.safetensors` has, for each model of `bert.json`, the weights (`NAME.weights.*`, by
`transformers`' names), and of each row of token ids `NAME.hidden.K`, the last hidden states
`[tokens, hidden]`, and `NAME.embedding.K`, their mean over the mask, normalised. The rows are of
several lengths, computed as one padded batch in float64. Seeded; run by hand.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import BertConfig, BertModel

here = Path(__file__).parent
ROWS = [[1, 5, 9, 2], [1, 33, 2], [1, *range(10, 20), 2], [1, 2], [3], [1, 7, 7, 7, 39, 2]]
SIZES = dict(vocab_size=40, max_position_embeddings=16)
MODELS = {
    "plain": dict(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40
    ),
    "tanh": dict(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=24,
        hidden_act="gelu_new",
        layer_norm_eps=0.05,
        type_vocab_size=3,
    ),
}

torch.manual_seed(7)
tensors, models = {}, []
width = max(map(len, ROWS))
ids = torch.tensor([row + [0] * (width - len(row)) for row in ROWS])
mask = (torch.arange(width)[None, :] < torch.tensor([len(row) for row in ROWS])[:, None]).long()
for name, sizes in MODELS.items():
    config = BertConfig(**SIZES, **sizes)
    model = BertModel(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.15)
        for key, value in model.state_dict().items():
            tensors[f"{name}.weights.{key}"] = value.clone().contiguous()
        hidden = model.double()(input_ids=ids, attention_mask=mask).last_hidden_state
    for k, row in enumerate(ROWS):
        mean = hidden[k, : len(row)].mean(0)
        tensors[f"{name}.hidden.{k}"] = hidden[k, : len(row)].float().contiguous()
        tensors[f"{name}.embedding.{k}"] = torch.nn.functional.normalize(mean, dim=0).float()
    keys = {"model_type", "hidden_act", "layer_norm_eps", "type_vocab_size", *SIZES, *sizes}
    config = {key: getattr(config, key) for key in sorted(keys)}
    models.append({"name": name, "config": config, "rows": ROWS})
save_file(tensors, here / "bert.safetensors")
(here / "bert.json").write_text(
    "[\n" + ",\n".join(json.dumps(model) for model in models) + "\n]\n"
)
