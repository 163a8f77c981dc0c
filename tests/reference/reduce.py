"""Reductions over all, one or several dimensions: those of src/op, `logsumexp`, spreads and
norms, and extrema with an initial value."""

import torch

import store
from elementwise import edges, noise, strided
from store import DTYPES, FLOATS, INTS, Group, In, biggest, numeric, refused, value


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


def along(g, grad, name, f, key):
    """What goes along one dimension, which `key` names."""
    nan, inf = float("nan"), float("inf")
    special = torch.tensor(
        [[1.0, nan, 2.0], [inf, 0.0, 1.0], [-inf, 0.0, 1.0], [-inf, -inf, -inf], [1e4, 1e4, -1e4]]
    )
    for dtype in FLOATS:
        for shape, dims in (
            ((), [0]),
            ((5,), [0, -1, 1]),
            ((3, 40), [0, 1]),
            ((2, 3, 4), [1, -1]),
            ((2, 0), [0, 1]),
            ((0, 3), [1]),
        ):
            for d in dims:
                numeric(
                    g,
                    name,
                    f,
                    [noise(dtype, shape, name)],
                    key(d),
                    grad=grad if dtype in FLOATS[:2] else None,
                )
        numeric(g, name, f, [special.to(dtype)], key(1), check=False)
        numeric(
            g,
            name,
            f,
            [noise(dtype, (4, 8), name, scale=60)],
            key(-1),
            grad=grad if dtype in FLOATS[:2] else None,
        )
    for x in strided(torch.float32, name):
        for d in (0, -1):
            numeric(g, name, f, [x], key(d), grad=grad)
    numeric(g, name, f, [noise(torch.float32, (2, 3), name)], key(2))


def logs(g, grad):
    f = lambda x, dims, keepdim=False: torch.logsumexp(x, dims, keepdim)  # noqa: E731
    along(g, grad, "logsumexp", f, lambda d: {"dims": [d]})
    numeric(
        g,
        "logsumexp",
        f,
        [noise(torch.float32, (2, 3, 4), "lse")],
        {"dims": [0, 2], "keepdim": True},
        grad=grad,
    )


def spreads(g, grad):
    for dtype in FLOATS:
        gr = grad if dtype in FLOATS[:2] else None
        x = noise(dtype, (3, 5, 2), "var")
        for name, f in (("var", torch.var), ("std", torch.std)):
            # noqa: E731
            call = lambda x, dims=None, correction=1, keepdim=False, f=f: f(
                x, dim=dims, correction=correction, keepdim=keepdim
            )
            for attrs in (
                {},
                {"dims": [1]},
                {"dims": [0, 2], "correction": 0},
                {"dims": [-1], "keepdim": True},
                {"correction": 0},
                {"dims": [3]},
            ):
                attrs = {"dims": None, "correction": 1, "keepdim": False, **attrs}
                numeric(g, name, call, [x], attrs, n=16, ulp=8, grad=gr)
            numeric(g, name, call, [noise(dtype, (1,), "one")], {"dims": None, "correction": 1})
            if dtype == torch.float32:
                for v in strided(dtype, name):
                    numeric(
                        g, name, call, [v], {"dims": [0], "correction": 1}, n=16, ulp=8, grad=gr
                    )
        # noqa: E731
        call = lambda x, p, dims=None, keepdim=False: torch.linalg.vector_norm(x, p, dims, keepdim)
        for p in (2.0, 1.0, 3.0, 0.0, float("inf"), float("-inf")):
            for attrs in ({}, {"dims": [1]}, {"dims": [0, 2], "keepdim": True}):
                attrs = {"p": str(p), "dims": None, "keepdim": False, **attrs}
                numeric(
                    g,
                    "norm",
                    lambda x, p, dims, keepdim: call(x, float(p), dims, keepdim),
                    [x],
                    attrs,
                    n=8,
                    ulp=8,
                    grad=gr if p != 0 else None,
                )


def initial(join, reduce):
    def f(x, first, dims=None, keepdim=False):
        dims = list(range(x.dim())) if dims is None else dims
        shape = x.sum(dims, keepdim).shape if dims else x.shape
        base = torch.full(
            shape, first, dtype=torch.float64 if isinstance(first, float) else torch.int64
        ).to(x.dtype)
        return base if x.numel() == 0 else join(reduce(x, dims, keepdim), base)

    return f


def extrema(g, grad):
    for name, join, reduce in (
        ("max_initial", torch.maximum, torch.amax),
        ("min_initial", torch.minimum, torch.amin),
    ):
        f = initial(join, reduce)
        for dtype in FLOATS + INTS:
            gr = grad if dtype == torch.float32 else None
            for first in (2, 0) + ((1.5, float("inf"), float("-inf")) if dtype in FLOATS else ()):
                for shape, dims in (
                    ((3, 4), [0]),
                    ((3, 4), None),
                    ((2, 0), [1]),
                    ((2, 0), [0]),
                    ((0,), None),
                    ((2, 3, 4), [0, -1]),
                    ((), None),
                ):
                    for keepdim in (False,) if dims is None else (False, True):
                        a = {"dims": dims, "keepdim": keepdim}
                        numeric(
                            g,
                            name,
                            f,
                            [noise(dtype, shape, "mi"), first],
                            a,
                            grad=gr if isinstance(first, float) else None,
                        )
        numeric(
            g, name, f, [torch.tensor([1.0, float("nan")]), 3.0], {"dims": [0], "keepdim": False}
        )
        numeric(
            g, name, f, [torch.tensor([1.0, 2.0]), float("nan")], {"dims": [0], "keepdim": False}
        )
        numeric(g, name, f, [torch.ones(2, 0), 3.0], {"dims": [2], "keepdim": False})


def make():
    g, grad = store.group("reduce"), store.group("grad_reduce")
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
    # Where several are largest, the gradient is shared between them.
    for op in ("max", "min"):
        for dims in (None, [1]):
            one(Group("unused"), grad, op, tied(torch.float32), {"dims": dims})
    for x in (torch.tensor([2.0, 0.0, 3.0]), torch.tensor([0.0, 0.0, 3.0])):
        one(Group("unused"), grad, "prod", x, {"dims": None})
    logs(g, grad)
    spreads(g, grad)
    extrema(g, grad)
