"""What PyTorch's `autocast` makes of operands of mixed types, and how its gradient scaler moves:
`mixed_precision.json`, which `tests/training/mixed_precision.rs` reads. Written by `make.py`.

The result types are those of `autocast` on CUDA. They need no GPU: fake tensors have types and
shapes, and no memory. The scaler runs on the CPU, in the steps of a small training; so does
`autocast` in bfloat16, which agrees with CUDA's on these ops."""

import itertools
import json

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from store import HERE, dtype_name, random

TWO = {
    "matmul": lambda x, y: x @ y,
    "mm": torch.mm,
    "bmm": lambda x, y: torch.bmm(x[None], y[None]),
    "addmm": lambda x, y: torch.addmm(x, y, y),
    "baddbmm": lambda x, y: torch.baddbmm(x[None], y[None], y[None]),
    "addmv": lambda x, y: torch.addmv(x[0], y, y[0]),
    "linear": lambda x, y: F.linear(x, y),
    "linear_bias": lambda x, y: F.linear(x, y, y[0]),
    "einsum": lambda x, y: torch.einsum("ij,jk->ik", x, y),
    "conv1d": lambda x, y: F.conv1d(x[None], y[..., None]),
    "conv_transpose1d": lambda x, y: F.conv_transpose1d(x[None], y[..., None]),
    "attention": lambda x, y: F.scaled_dot_product_attention(x[None], y[None], y[None]),
    "prelu": lambda x, y: F.prelu(x, y[0]),
    "add": torch.add,
    "mul": torch.mul,
    "div": torch.div,
    "pow": torch.pow,
    "maximum": torch.maximum,
    "atan2": torch.atan2,
    "cat": lambda x, y: torch.cat([x, y]),
    "l1_loss": F.l1_loss,
    "smooth_l1_loss": F.smooth_l1_loss,
    "mse_loss": F.mse_loss,
    "kl_div": lambda x, y: F.kl_div(x, y, reduction="batchmean"),
    "bce_with_logits": F.binary_cross_entropy_with_logits,
    "cosine_similarity": F.cosine_similarity,
    "cdist": torch.cdist,
    "layer_norm": lambda x, y: F.layer_norm(x, [4], y[0], y[0]),
    "group_norm": lambda x, y: F.group_norm(x[None], 2, y[0], y[0]),
}
ONE = {
    "pow_scalar": lambda x: x**2.5,
    "reciprocal": torch.reciprocal,
    "number_divided": lambda x: 2.0 / x,
    "divided_by_number": lambda x: x / 2.0,
    "softplus": F.softplus,
    "softmax": lambda x: F.softmax(x, -1),
    "log_softmax": lambda x: F.log_softmax(x, -1),
    "logsumexp": lambda x: torch.logsumexp(x, -1),
    "sum": lambda x: x.sum(0),
    "prod": lambda x: x.prod(0),
    "mean": lambda x: x.mean(0),
    "amax": lambda x: x.amax(0),
    "cumsum": lambda x: x.cumsum(0),
    "cumprod": lambda x: x.cumprod(0),
    "norm": lambda x: torch.norm(x, 2, 0),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.zeros(4, dtype=torch.int64, device="cuda")),
    "nll_loss": lambda x: F.nll_loss(x, torch.zeros(4, dtype=torch.int64, device="cuda")),
    "t": lambda x: x.t(),
    "gelu": F.gelu,
    "silu": F.silu,
    **{
        name: getattr(torch, name)
        for name in "abs acos asin atan cos cosh erf erfinv exp exp2 expm1 floor log log10 log1p "
        "log2 neg relu rsqrt sigmoid sin sinh sqrt square tan tanh".split()
    },
}


def types(half):
    """Each op with operands of each mix of types, and the type of its result."""
    rows = []
    torch.cuda.current_device, torch.cuda._lazy_init = lambda: 0, lambda: None
    both, wide = [torch.float32, half], torch.float64
    with FakeTensorMode():
        torch.set_autocast_enabled("cuda", True)
        torch.set_autocast_dtype("cuda", half)
        torch.autocast_increment_nesting()
        for name, op in (TWO | ONE).items():
            count = 2 if name in TWO else 1
            for given in [*itertools.product(both, repeat=count), (wide,) * count]:
                operands = [torch.empty(4, 4, device="cuda", dtype=t) for t in given]
                try:
                    out = dtype_name(op(*operands).dtype)
                except (RuntimeError, ValueError):
                    continue
                rows.append([name, [dtype_name(t) for t in given], out])
        torch.autocast_decrement_nesting()
        torch.set_autocast_enabled("cuda", False)
    return rows


def scaler():
    """The factor after each of some steps, of which these have a gradient that is not finite."""
    bad = [False, False, False, True, False, True, True, False, False, False, False, False]
    w = torch.ones(2, requires_grad=True)
    sgd = torch.optim.SGD([w], 0.25)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)
    factors, weights = [], []
    for is_bad in bad:
        sgd.zero_grad()
        scaler.scale((w * (float("inf") if is_bad else 1.0)).sum()).backward()
        scaler.step(sgd)
        scaler.update()
        factors.append(scaler.get_scale())
        weights.append(w[0].item())
    return {"bad": bad, "factors": factors, "weights": weights}


def network():
    """A loss and its gradients, in bfloat16 where the lists say so."""
    names, shapes = "x w1 b1 w2 b2 target".split(), [(8, 5), (6, 5), (6,), (3, 6), (3,), (8, 3)]
    given = {n: torch.randn(s, generator=random("mixed", n)) for n, s in zip(names, shapes)}
    wrt = [given[n].requires_grad_() for n in names[1:5]]
    with torch.autocast("cpu", torch.bfloat16):
        hidden = F.linear(given["x"], wrt[0], wrt[1]).relu()
        y = F.linear(hidden, wrt[2], wrt[3])
        loss = F.mse_loss(y, given["target"])
    gradients = torch.autograd.grad(loss, wrt)
    out = {n: [list(t.shape), t.flatten().tolist()] for n, t in given.items()}
    out["loss"] = [[], [loss.item()]]
    for n, g in zip(names[1:5], gradients):
        out[f"gradient {n}"] = [list(g.shape), g.flatten().tolist()]
    return out


def make():
    out = {
        "bfloat16": types(torch.bfloat16),
        "float16": types(torch.float16),
        "scaler": scaler(),
        "network": network(),
    }
    lines = [f"{json.dumps(k)}: {json.dumps(v, sort_keys=True)}" for k, v in out.items()]
    lines = [line.replace("]], [", "]],\n[").replace('"], [', '"],\n[') for line in lines]
    text = "{" + ",\n".join(lines) + "}\n"
    (HERE / "mixed_precision.json").write_text(text)
