"""Reductions of src/op.rs over all, one or several dimensions."""

import torch

from elementwise import edges, noise
from store import DTYPES, FLOATS, Group, In, biggest, numeric, refused, value


def over(f):
    """A function of (x, dim, keepdim) over `dims`, None for all."""

    def call(x, dims, keepdim=False):
        return f(x) if dims is None else f(x, dim=dims, keepdim=keepdim)

    return call


def prod(x, dims, keepdim=False):
    if dims is None:
        return torch.prod(x)
    if not dims:
        return torch.prod(x.reshape(-1), 0).reshape([1] * x.dim() if keepdim else [])
    rank = max(x.dim(), 1)
    if any(not -rank <= d < rank for d in dims):
        raise IndexError("out of range, as sum says")
    for d in sorted((d % rank for d in dims), reverse=True):
        x = torch.prod(x, d, keepdim=keepdim)
    return x


def arg(f):
    def call(x, dim, keepdim=False):
        return f(x) if dim is None else f(x, dim=dim, keepdim=keepdim)

    return call


OPS = {
    "sum": over(torch.sum), "prod": prod, "mean": over(torch.mean),
    "max": over(torch.amax), "min": over(torch.amin),
    "any": lambda x, dims, keepdim=False: over(torch.any)(x != 0, dims, keepdim),
    "all": lambda x, dims, keepdim=False: over(torch.all)(x != 0, dims, keepdim),
}  # fmt: skip
ARGS = {"argmax": arg(torch.argmax), "argmin": arg(torch.argmin)}
DIMS = [
    ((), [None, [0], [-1]]),
    ((7,), [None, [0], [-1], [1]]),
    ((0,), [None, [0]]),
    ((3, 4), [None, [0], [1], [0, 1], [-1, 0], [2], [0, 0]]),
    ((2, 0, 3), [None, [0], [1], [2], [0, 2], [1, 2]]),
    ((2, 3, 4), [[1], [0, 2], [-1, -2], [0, 1, 2]]),
    ((2, 1, 3, 1, 2), [[1, 3], [0, 2, 4], [-5]]),
    ((130,), [None]),
    ((3, 70), [[0], [1]]),
    ((70, 3), [[0], [1]]),
]


def one(g, grad, op, x, attrs):
    f = {**OPS, **ARGS}[op]
    v = value(x)
    if op == "mean" and v.dtype not in FLOATS or op.startswith("arg") and v.dtype == torch.bool:
        return numeric(g, op, f, [x], attrs)
    scale = None
    if refused(f, [x], attrs):
        return numeric(g, op, f, [x], attrs)
    if op in ("sum", "mean") and v.dtype in FLOATS:
        sums = OPS["sum"](v.double().abs(), **attrs) if not v.isnan().any() else v.new_zeros(())
        scale = biggest(sums / (v.numel() or 1)) if op == "mean" else biggest(sums)
        scale = biggest(v) if op == "mean" else scale
    numeric(
        g,
        op,
        f,
        [x],
        attrs,
        scale=scale,
        n=4,
        ulp=8 if op == "prod" else 2,
        grad=grad,
        wide=op != "prod",
    )


def tied(dtype):
    return torch.tensor([[1, 5, 5, 0], [2, 2, 2, 2], [0, 0, 7, 7]], dtype=torch.float64).to(dtype)


def make():
    g, grad = Group("reduce"), Group("grad_reduce")
    for op in list(OPS) + list(ARGS):
        key = "dim" if op in ARGS else "dims"
        for dtype in DTYPES:
            for shape, choices in DIMS:
                if dtype not in (torch.float32, torch.int64) and len(shape) in (0, 5):
                    continue
                # Halves of 130 random factors leave the range; 70 are enough of a test of order.
                scale = 1.2 if op == "prod" else 3.0
                x = noise(dtype, shape, "reduce", scale=scale)
                if op in ("any", "all"):
                    x = (noise(torch.int64, shape, op).abs() % 9 < (1 if op == "any" else 8)).to(
                        dtype
                    )
                for k, dims in enumerate(choices):
                    if op in ARGS and dims is not None:
                        if len(dims) > 1:
                            continue
                        dims = dims[0]
                    elif op == "prod" and dims == [0, 0]:
                        continue
                    attrs = {key: dims}
                    if dims is not None:
                        attrs["keepdim"] = (k + len(shape)) % 2 == 1
                    one(
                        g, grad if dtype == torch.float32 or len(shape) == 3 else None, op, x, attrs
                    )
            for d in (None, 0, 1):
                attrs = {key: d if op in ARGS or d is None else [d]}
                one(g, None, op, tied(dtype), attrs)
            if dtype in FLOATS:
                e = edges(dtype)[:15]
                for x in (e, e[1:], e[3:5], torch.stack([e[5:12], e[:7], e[1:8]])):
                    one(g, None, op, x, {key: None if x.dim() == 1 else (1 if op in ARGS else [1])})
        last = 0 if op in ARGS else [0]
        for x in (
            In(noise(torch.float32, (4, 6), op), ("transpose", 0, 1)),
            In(noise(torch.float32, (3, 1), op), ("expand", [2, 3, 5])),
            In(noise(torch.float32, (5, 6), op), ("narrow", 1, 2, 3), ("narrow", 0, 1, 3)),
            In(noise(torch.float32, (2, 3, 4), op), ("permute", [2, 0, 1])),
        ):
            one(g, grad, op, x, {key: None})
            one(g, grad, op, x, {key: last})
            one(g, grad, op, x, {key: -1 if op in ARGS else [-1], "keepdim": True})
    g.write()
    # Where several are largest, the gradient is shared between them.
    for op in ("max", "min"):
        for dims in (None, [1]):
            one(Group("unused"), grad, op, tied(torch.float32), {"dims": dims})
    for x in (torch.tensor([2.0, 0.0, 3.0]), torch.tensor([0.0, 0.0, 3.0])):
        one(Group("unused"), grad, "prod", x, {"dims": None})
    grad.write()
