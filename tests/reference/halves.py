"""Halves: values and gradients of every op that has a gradient, at three scales.

What is called is what the other groups have gradients of (`store.ALSO`): a few calls of each op,
with its operands at scales of 1e-4, 1 and 300 (offset where the op needs that, as they were). A
result is stored as the float64 truth, in float32, and beside it as PyTorch's own in halves: a test
allows what PyTorch is off, or a unit in the last place. Sums of 70,000 and of 3,000 in one place
come after.
"""

import torch

from store import FLOATS, Group, In, as_tuple, ordered, random, value

HALVES = (torch.float16, torch.bfloat16)
SCALES = (1e-4, 1.0, 300.0)
# Shares (`binary_cross_entropy`) are none at another scale. Which of two elements that halves make
# equal is the one, PyTorch leaves open (`quantile`). What has a dot, and `ctc_loss`, are chains of
# ops; powers of 300 end `kl_div`, and a slope of 1e-30 that of `selu`.
LEFT_OUT = (
    "cast", "paged_attention", "quantile", "binary_cross_entropy", "ctc_loss", "kl_div", "selu",
)  # fmt: skip
# Calls of an op, and elements of an operand, at most; more elements where an op has no smaller call
# before.
CALLS_MAX, NUMEL_MAX, FIRST_MAX = 4, 48, 1200


def scaled(x, scale, dtype):
    """An operand of the call at another scale; what is no float stays."""
    if isinstance(x, torch.Tensor) and x.dtype in FLOATS:
        return (x.double() * scale).to(dtype)
    return x


def back(f, ins, attrs, up, wide):
    """Results and gradients of the float operands; `None` where PyTorch has none."""
    seen = [
        x.double() if wide and isinstance(x, torch.Tensor) and x.dtype in FLOATS else x for x in ins
    ]
    seen = [
        x.detach().requires_grad_() if isinstance(x, torch.Tensor) and x.dtype in FLOATS else x
        for x in seen
    ]
    leaves = [x for x in seen if isinstance(x, torch.Tensor) and x.requires_grad]
    out = as_tuple(f(*seen, **attrs))[0]
    if not out.requires_grad:
        return out, [None] * len(seen)
    up = up(out)
    grads = iter(torch.autograd.grad(out, leaves, up.double() if wide else up, allow_unused=True))
    found = [next(grads) if isinstance(x, torch.Tensor) and x.requires_grad else None for x in seen]
    return out.detach(), found


def stored(g, truth, own, dtype):
    """The truth, and PyTorch's own where that is more than a unit in the last place off."""
    near = truth.detach().to(dtype)
    if own is not None:
        ulps = (ordered(own.detach().to(dtype)) - ordered(near)).abs()
        own = own if bool((ulps > 1).any()) else None
    return g.tensor(truth.detach().float()), None if own is None else g.tensor(
        own.detach().to(dtype)
    )


def case(op, f, ins, attrs, key, dtype):
    def up(out):
        return torch.randn(out.shape, generator=random("half", op, key), dtype=torch.float64).to(
            dtype
        )

    truth, slopes = back(f, ins, attrs, up, True)
    if not truth.dtype.is_floating_point:
        return
    try:
        own, own_slopes = back(f, ins, attrs, up, False)
    except (RuntimeError, NotImplementedError):
        own, own_slopes = None, [None] * len(slopes)
    if own is not None and own.dtype != dtype:
        return  # a result of another type: its call mixes them
    want, beside = stored(VALUES, truth, own, dtype)
    VALUES.case(op, ins, attrs, "own", own=[beside])
    VALUES.lines[-1] = (
        VALUES.lines[-1]
        .replace('"out":"own"', f'"out":["{want}"]')
        .replace('"tol":"bits"', '"tol":"own"')
    )
    kept = [
        None if s is None else stored(GRADIENTS, s, o, dtype) for s, o in zip(slopes, own_slopes)
    ]
    if all(k is None for k in kept):
        return
    GRADIENTS.case(
        op, ins, attrs, (truth.to(dtype),), "own",
        up=GRADIENTS.tensor(up(truth)), grad=[k and k[0] for k in kept],
        own=[k and k[1] for k in kept], gtol="own",
    )  # fmt: skip


VALUES, GRADIENTS, SEEN = Group("halves"), Group("grad_halves"), {}


def take(op, f, ins, attrs):
    """One more call that has gradients: it is made now, since it may be of what its loop has
    now."""
    floats = [x for x in ins if isinstance(x, torch.Tensor) and x.dtype in FLOATS]
    plain = not any(isinstance(x, In) for x in ins) and all(
        x.dtype == torch.float32 for x in floats
    )
    calls = SEEN.setdefault(op, set())
    most = NUMEL_MAX if calls else FIRST_MAX
    small = all(value(x).numel() <= most for x in ins if isinstance(value(x), torch.Tensor))
    if not plain or not small or not floats or op in LEFT_OUT or "." in op:
        return
    key = (
        str(attrs),
        tuple(tuple(x.shape) if isinstance(x, torch.Tensor) else type(x).__name__ for x in ins),
    )
    if key in calls or len(calls) == CALLS_MAX:
        return
    calls.add(key)
    for dtype in HALVES:
        for scale in SCALES:
            case(op, f, [scaled(x, scale, dtype) for x in ins], attrs, (key, scale), dtype)


def make():
    many()
    VALUES.write()
    GRADIENTS.write()


def many():
    """Sums that halves cannot count."""
    for dtype in HALVES:
        ones = torch.ones(3000, dtype=dtype)
        index = torch.zeros(3000, dtype=torch.int64)
        zero = torch.zeros(2, dtype=dtype)
        call = lambda op, f, ins, attrs: case(op, f, ins, attrs, "many", dtype)  # noqa: E731
        call(
            "scatter_add",
            lambda x, i, s, dim: x.scatter_add(dim, i, s),
            [zero, index, ones],
            {"dim": 0},
        )
        for how in ("amax", "amin"):
            f = lambda x, i, s, dim, reduce: x.scatter_reduce(dim, i, s, reduce)  # noqa: E731
            call("scatter_reduce", f, [zero, index, ones], {"dim": 0, "reduce": how})
        call("gather", lambda x, i, dim: x.gather(dim, i), [zero, index], {"dim": 0})
        call("index_select", lambda x, i, dim: x.index_select(dim, i), [zero, index], {"dim": 0})
        table = torch.zeros((2, 2), dtype=dtype)
        call("embedding", lambda w, i: torch.nn.functional.embedding(i, w), [table, index], {})
        row = (torch.arange(24).reshape(4, 6) / 7 - 1.5).to(dtype)
        call(
            "linear",
            torch.nn.functional.linear,
            [row[:2], row, torch.tensor([-1.0, 0.5, 3, 0]).to(dtype)],
            {},
        )
        call("take", lambda x, i: x.take(i), [zero, index], {})
