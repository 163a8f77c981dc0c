"""What PyTorch makes of attention layers: values, and gradients of inputs and weights.

`attention_layers.safetensors` holds tensors named `CASE/WHAT`: the layer's `state.NAME`, its
inputs, the upstream gradient `up`, the result `y`, and `gradient.NAME`. The test that reads them
(`tests/training`) has the same cases. Written by `make.py`; seeded by the names.
"""

import torch

from store import HERE, random, write_tensors

WIDTH, HEADS, MIDDLE = 8, 2, 12


def noise(shape, *key, scale=1.0):
    return torch.randn(shape, generator=random("attention", shape, *key)) * scale


def case(out, name, layer, inputs, call, gradients=True):
    """One call of a layer, with weights of its own: float64 arithmetic on float32 numbers, rounded
    once."""
    layer = layer.double()
    with torch.no_grad():
        for k, p in layer.named_parameters():
            p.copy_(noise(p.shape, name, k, scale=0.5))
    for k, p in layer.state_dict().items():
        out[f"{name}/state.{k}"] = p.float()
    leaves = {
        k: v.double().requires_grad_(True) for k, v in inputs.items() if v.is_floating_point()
    }
    y = call(layer, {**inputs, **leaves})
    up = noise(y.shape, name, "up")
    y.backward(up.double())
    for k, v in inputs.items():
        out[f"{name}/{k}"] = v.clone() if v.is_floating_point() else v.to(torch.int64)
    out[f"{name}/y"], out[f"{name}/up"] = y.detach().float(), up
    if not gradients:
        return
    for k, leaf in [*leaves.items(), *layer.named_parameters()]:
        out[f"{name}/gradient.{k}"] = leaf.grad.float()


def make():
    torch.set_num_threads(1)
    out = {}
    # noqa: E731
    attention = lambda **more: torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, **more)
    # noqa: E731
    itself = lambda m, i, **more: m(i["x"], i["x"], i["x"], need_weights=False, **more)[0]
    x = noise((3, 5, WIDTH), "x")
    hidden = torch.tensor([[0, 0, 0, 0, 0], [0, 0, 0, 1, 1], [0, 1, 1, 1, 1]], dtype=torch.bool)
    blind = torch.tensor([[0, 0, 1, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 1]], dtype=torch.bool)
    case(out, "plain", attention(), {"x": x}, itself)
    case(out, "alone", attention(), {"x": x[0]}, itself)
    case(out, "no_bias", attention(bias=False), {"x": x}, itself)
    padded = lambda m, i: itself(m, i, key_padding_mask=i["hidden"])  # noqa: E731
    case(out, "padded", attention(), {"x": x, "hidden": hidden}, padded)
    case(out, "blind", attention(), {"x": x, "hidden": blind}, padded, gradients=False)
    added = lambda m, i: itself(m, i, attn_mask=i["mask"])  # noqa: E731
    case(out, "added", attention(), {"x": x, "mask": noise((5, 5), "mask")}, added)
    ahead = torch.ones(5, 5, dtype=torch.bool).triu(1)
    case(out, "causal", attention(), {"x": x}, lambda m, i: itself(m, i, attn_mask=ahead))
    other = {"query": x, "key": noise((3, 7, WIDTH), "key"), "value": noise((3, 7, WIDTH), "value")}
    across = lambda m, i: m(i["query"], i["key"], i["value"], need_weights=False)[0]  # noqa: E731
    case(out, "other", attention(), other, across)
    layers = {
        "layer": dict(activation="gelu", norm_first=False, layer_norm_eps=1e-3),
        "layer_relu": dict(activation="relu", norm_first=False),
        "layer_first": dict(activation="gelu", norm_first=True),
    }
    for name, options in layers.items():
        layer = torch.nn.TransformerEncoderLayer(
            WIDTH, HEADS, MIDDLE, dropout=0.0, batch_first=True, **options
        )
        call = lambda m, i: m(i["x"], src_key_padding_mask=i["hidden"])  # noqa: E731
        case(out, name, layer, {"x": x, "hidden": hidden}, call)
    write_tensors(HERE / "attention_layers.safetensors", out)
