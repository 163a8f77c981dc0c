"""Elementwise ops that are no rows of one shape: inverse and hyperbolic functions, whole quotients,
activations with a number, `clamp`, `masked_fill`. What PyTorch lacks is made of the ops that it
has."""

import numpy as np
import torch

import elementwise
import store
from elementwise import any_bits, edges, noise, shaped, short_edges, with_scalar
from store import DTYPES, FLOATS, INTS, Group, numeric, value

F = torch.nn.functional

UNARY = {
    "asin": torch.asin, "acos": torch.acos, "atan": torch.atan, "sinh": torch.sinh,
    "cosh": torch.cosh,
    "asinh": torch.asinh, "acosh": torch.acosh, "atanh": torch.atanh,
    "erfinv": torch.erfinv, "lgamma": torch.lgamma, "digamma": torch.digamma,
}  # fmt: skip

# Where their gradients are not larger than they need be.
SMOOTH = {"asin": 0.9, "acos": 0.9, "atanh": 0.9, "erfinv": 0.9}


def functions(g, grad):
    for op, f in UNARY.items():
        for dtype in DTYPES:
            ins = [edges(dtype)]
            if dtype != torch.bool:
                ins.append(noise(dtype, (40,), "beyond", scale=0.6))
            if dtype in FLOATS:
                ins.append(any_bits(dtype, 40, "beyond"))
            if dtype == torch.float32:
                ins += shaped(dtype, "beyond")
            for x in ins:
                # Between its poles a function of these is a sum that may be 0.
                kind = "poles" if op in ("lgamma", "digamma") else "ulp"
                elementwise.elementwise(g, op, f, [x], kind)
        for dtype in (torch.float32, torch.float64):
            for x in [noise(dtype, (24,), "gb", scale=1.5)] + shaped(dtype, op, "gb"):
                base = value(x)
                base = (
                    base.abs() + 1.2
                    if op in ("acosh", "lgamma", "digamma")
                    else base.clamp(-SMOOTH.get(op, 9), SMOOTH.get(op, 9))
                )
                numeric(Group("unused"), op, f, [base], grad=grad, n=16, ulp=16, check=False)


def floor(a, b):
    return torch.div(a, b, rounding_mode="floor")


def trunc(a, b):
    return torch.div(a, b, rounding_mode="trunc")


def quotients(g, grad):
    # PyTorch's own vectors take another remainder: see EXACT.
    elementwise.EXACT["floor_divide"] = np.floor_divide
    for op, f in (("floor_divide", floor), ("trunc_divide", trunc)):
        for dtype in DTYPES:
            if dtype == torch.bool:
                g.case(op, [noise(dtype, (3,)), noise(dtype, (3,))], {}, "error")
                continue
            pairs = [
                (short_edges(dtype).reshape(-1, 1), short_edges(dtype, True)),
                (noise(dtype, (40,), "a"), off(noise(dtype, (40,), "b"))),
            ]
            if dtype in FLOATS:
                # PyTorch rounds halves between the steps.
                bits = dtype if dtype in FLOATS[:2] else torch.float32
                pairs.append((any_bits(bits, 40, "a"), any_bits(bits, 40, "b")))
                tenths = torch.arange(-20, 21, dtype=torch.float64).to(dtype)
                pairs.append((tenths.to(bits), torch.full((41,), 0.1, dtype=bits)))
            for a, b in pairs:
                elementwise.elementwise(g, op, f, [a, b], "bits")
            for s in (2, -3, 2.5, -0.5):
                if dtype == torch.uint8 and s == -3:
                    continue
                elementwise.elementwise(
                    g, op, with_scalar(op, f), [noise(dtype, (12,), "s"), s], "bits"
                )
                elementwise.elementwise(
                    g, op, with_scalar(op, f), [s, off(noise(dtype, (12,), "s"))], "bits"
                )
        for a, b in (
            ((), (3,)),
            ((2, 1), (1, 3)),
            ((0, 3), (3,)),
            ((4, 1, 3), (2, 1)),
            ((2,), (3,)),
        ):
            elementwise.elementwise(
                g, op, f, [noise(torch.float32, a, "a"), off(noise(torch.float32, b, "b"))], "bits"
            )
        for a, b in (
            (torch.int32, torch.float32),
            (torch.uint8, torch.int64),
            (torch.float16, torch.float64),
        ):
            elementwise.elementwise(
                g, op, f, [noise(a, (6,), "p"), off(noise(b, (6,), "q"))], "bits"
            )
        ins = [noise(torch.float32, (6,), "a"), off(noise(torch.float32, (6,), "b"))]
        for ins in (ins, [ins[0], 2.5], [2.5, ins[1]]):
            numeric(Group("unused"), op, f, ins, grad=grad)


def off(x):
    return torch.where(x == 0, torch.ones_like(x), x)


def activations(g, grad):
    for dtype in FLOATS:
        gr = grad if dtype in FLOATS[:2] else None
        x = torch.cat(
            [
                noise(dtype, (20,), "act"),
                torch.tensor([0.0, 300.0, -300.0, float("inf"), float("-inf")]).to(dtype),
            ]
        )
        nan = torch.tensor([float("nan")], dtype=dtype)
        for alpha in (1.0, 0.3):
            numeric(g, "elu", lambda x, alpha: F.elu(x, alpha), [x], {"alpha": alpha}, grad=gr)
            numeric(
                g,
                "leaky_relu",
                lambda x, slope: F.leaky_relu(x, slope),
                [x],
                {"slope": alpha / 10},
                grad=gr,
            )
        numeric(g, "elu", lambda x, alpha: F.elu(x, alpha), [nan], {"alpha": 1.0})
        numeric(g, "leaky_relu", lambda x, slope: F.leaky_relu(x, slope), [nan], {"slope": 0.1})
        x[3], x[4], x[5] = 2.0, 0.5, -1.5
        for low, high in ((-1.5, 2.0), (2.0, -1.0)):
            numeric(
                g,
                "clamp",
                lambda x, low, high: torch.clamp(x, low, high),
                [torch.cat([x, nan]), low, high],
                {},
                grad=None,
            )
        numeric(
            g, "clamp", lambda x, low, high: torch.clamp(x, low, high), [x, -1.5, 2.0], {}, grad=gr
        )
        numeric(g, "clamp_min", lambda x, low: torch.clamp(x, min=low), [x, 0.5], {}, grad=gr)
        numeric(g, "clamp_max", lambda x, high: torch.clamp(x, max=high), [x, 0.5], {}, grad=gr)
    for dtype in INTS:
        numeric(
            g,
            "clamp",
            lambda x, low, high: torch.clamp(x, low, high),
            [noise(dtype, (20,), "act"), 1, 4],
            {},
        )
    for dtype in DTYPES[4:]:
        numeric(g, "bitwise_not", torch.bitwise_not, [noise(dtype, (20,), "not")], {})


def masks(g, grad):
    for dtype in DTYPES:
        gr = grad if dtype == torch.float32 else None
        x = noise(dtype, (4, 5), "ix")
        numeric(
            g,
            "masked_fill",
            lambda x, m, s: x.masked_fill(m, s),
            [x, noise(torch.bool, (4, 5), "m"), 1],
            {},
            grad=gr,
        )
        numeric(
            g,
            "masked_fill",
            lambda x, m, s: x.masked_fill(m, s),
            [x, noise(torch.bool, (5,), "m"), 2.5 if dtype in FLOATS else 3],
            {},
        )


def make():
    g, grad = store.group("elementwise"), store.group("grad_elementwise")
    for part in (masks, activations, functions, quotients):
        part(g, grad)
