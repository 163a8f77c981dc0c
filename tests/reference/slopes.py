"""How first and second gradients are noted for `edges.py`. What PyTorch gives in float32, and
beside it what it gives in float64 for the same numbers, rounded once: either will do, since the two
overflow at different places.

A case names the row of the op table that it stands for (`row`). `second[i][j]` is the
gradient by operand `j` of the sum of the gradient by operand `i`, each element of it weighed as
`weights` says."""

import itertools

import torch

from store import FLOATS, as_tuple

F = torch.nn.functional
INF, NAN = float("inf"), float("nan")
ALL = [
    0.0,
    -0.0,
    INF,
    -INF,
    NAN,
    1e30,
    -1e30,
    1e-30,
    -1e-30,
    1.0,
    -1.0,
    0.5,
    -2.5,
    3.0,
    20.0,
    1e-42,
]
FEW = [0.0, INF, -INF, NAN, 1e30, -1e-30, 1.0, -2.0]
NUMBERS = [0.0, 1.0, 2.0, 0.5, -1.5, -2.0, INF, NAN]


def weights(shape):
    n = torch.Size(shape).numel()
    return (
        (0.5 + (torch.arange(n, dtype=torch.float64) * 7 + 3) % 11 / 7)
        .to(torch.float32)
        .reshape(shape)
    )


def pairs(values):
    both = list(itertools.product(values, values))
    return torch.tensor([a for a, _ in both]), torch.tensor([b for _, b in both])


def rows(values, last=1.5):
    """Rows of three: every pair, and a plain number."""
    a, b = pairs(values)
    return torch.stack([a, b, torch.full_like(a, last)], 1)


def graph(f, ins, attrs, dtype, up, still):
    """The first gradients, and those of each of them, in a type; none of the operands that are
    `still`."""
    leaves, args = [], []
    for i, x in enumerate(ins):
        is_float = isinstance(x, torch.Tensor) and x.dtype in FLOATS
        if is_float and i in still:
            leaves.append(None)
            args.append(x.to(dtype))
            continue
        leaves.append(x.detach().to(dtype).requires_grad_() if is_float else None)
        args.append(leaves[-1] if is_float else x)
    given = [x for x in leaves if x is not None]
    out = as_tuple(f(*args, **attrs))[0]
    zeros = lambda x, like: torch.zeros_like(like) if x is None else x  # noqa: E731
    if not out.requires_grad:
        return out, None, None
    first = torch.autograd.grad(out, given, up.to(dtype), create_graph=True, allow_unused=True)
    first = [zeros(g, x) for g, x in zip(first, given)]
    second = []
    for g in first:
        if not g.requires_grad:
            second.append([torch.zeros_like(x) for x in given])
            continue
        of = torch.autograd.grad(
            g, given, weights(g.shape).to(dtype), retain_graph=True, allow_unused=True
        )
        second.append([zeros(h, x) for h, x in zip(of, given)])
    return out, first, second


def case(g, row, op, f, ins, attrs=None, still=()):
    attrs = attrs or {}
    with torch.no_grad():
        out = as_tuple(f(*ins, **attrs))[0]
    up = weights(out.shape)
    _, first, second = graph(f, ins, attrs, torch.float32, up, still)
    if first is None:
        raise ValueError(f"{row}: {op} has no gradient")
    _, wide, wide_second = graph(f, ins, attrs, torch.float64, up, still)
    # Zeros may be a kind of their own.
    # noqa: E731
    name = lambda t: g.tensor(
        torch.from_numpy(t.detach().numpy(force=True).copy()).to(torch.float32)
    )
    at = [
        i
        for i, x in enumerate(ins)
        if isinstance(x, torch.Tensor) and x.dtype in FLOATS and i not in still
    ]
    # noqa: E731
    place = lambda found: [name(found[at.index(i)]) if i in at else None for i in range(len(ins))]
    g.case(
        op, ins, attrs, (out,), "value", row=row, up=g.tensor(up), grad=place(first), gtol="ulp:64",
        wide=place(wide),
        second=[place(s) for s in second], wide_second=[place(s) for s in wide_second],
    )  # fmt: skip
