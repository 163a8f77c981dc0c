"""What PyTorch's recurrent layers give, with their gradients, for weights that are stored beside
them: `recurrent.safetensors`, tensors named `CASE/WHAT`. `tests/training` reads it. Written by
`make.py`; seeded by the names."""

import torch

from store import HERE, random, write_tensors

CASES = {
    "lstm": (torch.nn.LSTM, {}),
    "lstm_all": (torch.nn.LSTM, {"num_layers": 2, "bidirectional": True}),
    "lstm_bare": (torch.nn.LSTM, {"bias": False, "batch_first": True}),
    "gru": (torch.nn.GRU, {}),
    "gru_all": (torch.nn.GRU, {"num_layers": 2, "bidirectional": True}),
    "rnn": (torch.nn.RNN, {}),
    "rnn_all": (torch.nn.RNN, {"num_layers": 2, "bidirectional": True}),
}
INPUTS, HIDDEN, STEPS, BATCH = 3, 4, 5, 2


def noise(shape, *key):
    return torch.randn(shape, generator=random("recurrent", tuple(shape), *key))


def make():
    out = {}
    for name, (layer, options) in CASES.items():
        net = layer(INPUTS, HIDDEN, **options).double()
        with torch.no_grad():
            for k, p in net.named_parameters():
                p.copy_(noise(p.shape, name, k) / 2)
                out[f"{name}/weight/{k}"] = p.detach().float()
        first = options.get("batch_first")
        x = noise((BATCH, STEPS, INPUTS) if first else (STEPS, BATCH, INPUTS), name, "x")
        cells = options.get("num_layers", 1) * (1 + options.get("bidirectional", False))
        kept = "hc" if layer is torch.nn.LSTM else "h"
        states = [noise((cells, BATCH, HIDDEN), name, k) for k in kept]
        leaves = [t.double().requires_grad_() for t in (x, *states)]
        given = tuple(leaves[1:])
        y, last = net(leaves[0], given if len(given) == 2 else given[0])
        up = noise(y.shape, name, "up")
        for k, t in zip("xhc", (x, *states)):
            out[f"{name}/{k}"] = t
        for k, t in zip("hc", last if len(given) == 2 else (last,)):
            out[f"{name}/last_{k}"] = t.detach().float()
        out[f"{name}/y"], out[f"{name}/up"] = y.detach().float(), up
        of = [*leaves, *net.parameters()]
        grads = torch.autograd.grad(y, of, up.double())
        names = ["x", "h", "c"][: len(leaves)] + [k for k, _ in net.named_parameters()]
        for k, g in zip(names, grads):
            out[f"{name}/gradient/{k}"] = g.float()
    write_tensors(HERE / "recurrent.safetensors", out)
