"""Gradients of the elementwise ops, `where`, `cast`, and of what broadcasting adds up."""

import torch

import store
import elementwise
from elementwise import BINARY, MISFITS, SHAPES, UNARY, noise, shaped, with_scalar
from store import Group, In, dtype_name, numeric, value

# Their gradient is zero or none: nothing to learn from random values.
FLAT = {"floor", "ceil", "round", "trunc", "isnan", "isinf", "isfinite", "logical_not", "sign"}
POSITIVE = {"sqrt", "rsqrt", "log", "log2", "log10", "log1p"}


def ok(op, x, lift=0.2):
    """Values at which `op` is smooth and its gradient is not larger than it need be."""
    if isinstance(x, In):
        return In(ok(op, x.base, lift), *x.steps)
    if op in POSITIVE:
        return x.abs() + lift
    if op == "recip":
        return x + torch.where(x < 0, -lift, lift).to(x.dtype)
    return x.clamp(-1.4, 1.4) if op == "tan" else x


def make():
    g, unused = store.group("grad_elementwise"), Group("unused")

    def both(op, f, ins, attrs=None, **more):
        numeric(unused, op, f, ins, attrs, grad=g, n=16, ulp=16, check=False, **more)

    for op, (f, _) in UNARY.items():
        for dtype in (torch.float32, torch.float64):
            both(op, f, [ok(op, noise(dtype, (24,), "grad", scale=1.5))])
        if op not in FLAT:
            for x in shaped(torch.float32, op, "grad"):
                both(op, f, [ok(op, x)])
    kinks = torch.tensor([0.0, -0.0, 1.0, -1.0, 20.0, 20.5, 30.0, -30.0, 88.0, -88.0])
    for op in (
        "relu",
        "abs",
        "softplus",
        "sigmoid",
        "tanh",
        "silu",
        "gelu",
        "square",
        "erf",
        "exp2",
    ):
        both(op, UNARY[op][0], [kinks])
    for op in (op for op in BINARY if op not in elementwise.FLAT):
        f = BINARY[op][0]
        a = (lambda x: x.abs() + 0.2) if op == "pow" else (lambda x: x)
        b = (
            (lambda x: x + torch.where(x < 0, -0.3, 0.3).to(x.dtype))
            if op in ("div", "fmod", "remainder")
            else (lambda x: x)
        )
        for dtype in (torch.float32, torch.float64):
            both(
                op,
                f,
                [a(noise(dtype, (24,), "ga", scale=1.5)), b(noise(dtype, (24,), "gb", scale=1.5))],
            )
        for x, y in SHAPES:
            both(op, f, [a(noise(torch.float32, x, "ga")), b(noise(torch.float32, y, "gb"))])
        for x in shaped(torch.float32, op, "ga")[4:]:
            x = In(a(x.base), *x.steps)
            both(op, f, [x, b(noise(torch.float32, value(x).shape[-1:], "gb"))])
            both(op, f, [a(noise(torch.float32, value(x).shape, "ga")), In(b(x.base), *x.steps)])
        for s in (2, 2.5, 3):
            both(op, with_scalar(op, f), [a(noise(torch.float32, (8,), "ga")), s])
            if op != "remainder":  # PyTorch has no gradient for this one
                both(op, with_scalar(op, f), [s, b(noise(torch.float32, (8,), "gb"))])
        both(op, f, [a(noise(torch.float32, (8,), "ga")), b(noise(torch.float64, (8,), "gb"))])
        if op in ("maximum", "minimum"):  # the gradient of equals is shared
            both(op, f, [torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 3.0, 2.0])])
    x = torch.tensor([-2.0, 3.0, 0.0, 0.5])
    for s in (2, 3.0, 1.0, 0.0):
        both("pow", with_scalar("pow", torch.pow), [x, s])
    both("pow", torch.pow, [torch.tensor([0.0, 2.0]), torch.tensor([2.0, 0.0])])
    c = noise(torch.bool, (2, 3), "c")
    for a, b in (((2, 3), (2, 3)), ((3,), (2, 1)), ((), (2, 3)), ((4, 2, 3), (1, 1))):
        both("where", torch.where, [c, noise(torch.float32, a, "a"), noise(torch.float32, b, "b")])
    for a in (torch.float32, torch.float64):
        for b in (torch.float32, torch.float64):
            x, name = noise(a, (6,), "cast"), dtype_name(b)
            both("cast", lambda x, dtype: x.to(getattr(torch, dtype)), [x], {"dtype": name})
    assert MISFITS
