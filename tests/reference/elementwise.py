"""Unary and binary ops of src/op, `where`, `cast`, and the promotion tables."""

import numpy as np
import torch

import store
from store import (
    COMPLAINTS,
    DTYPES,
    EPS,
    FLOATS,
    INTS,
    In,
    agrees,
    dtype_name,
    oracle,
    random,
    refused,
    run,
    value,
)

F = torch.nn.functional


def plain(f, ins, dtype):
    """An op by NumPy's loops over the C library, which are exact where PyTorch's vectors are not:
    its `sqrt` may be a bit off, and its `fmod` makes NaN of 0.5 and a subnormal."""
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    with np.errstate(all="ignore"):
        out = f(*[torch.as_tensor(value(x)).to(dtype).to(wide).numpy() for x in ins])
    return torch.from_numpy(np.asarray(out)).to(dtype)


def np_remainder(a, b):
    # PyTorch's definition: `fmod`, then one step towards the divisor's sign.
    r = np.fmod(a, b)
    return np.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)


EXACT = {"sqrt": np.sqrt, "fmod": np.fmod, "remainder": np_remainder}
UNARY = {
    # name: (function, tolerance). `bits`: one right answer; `value`: the sign of zero is free.
    "neg": (torch.neg, "bits"),
    "abs": (torch.abs, "bits"),
    "sign": (torch.sign, "value"),
    "square": (torch.square, "bits"),
    "relu": (F.relu, "value"),
    "sqrt": (torch.sqrt, "bits"),
    "rsqrt": (torch.rsqrt, "ulp"),
    "recip": (torch.reciprocal, "bits"),
    "exp": (torch.exp, "ulp"),
    "exp2": (torch.exp2, "ulp"),
    "expm1": (torch.expm1, "ulp"),
    "log": (torch.log, "ulp"),
    "log2": (torch.log2, "ulp"),
    "log10": (torch.log10, "ulp"),
    "log1p": (torch.log1p, "ulp"),
    "sin": (torch.sin, "ulp"),
    "cos": (torch.cos, "ulp"),
    "tan": (torch.tan, "ulp"),
    "tanh": (torch.tanh, "ulp"),
    "sigmoid": (torch.sigmoid, "normal"),
    "silu": (F.silu, "input"),
    "softplus": (F.softplus, "ulp"),
    "gelu": (F.gelu, "input"),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), "input"),
    "erf": (torch.erf, "ulp"),
    "floor": (torch.floor, "bits"),
    "ceil": (torch.ceil, "bits"),
    "round": (torch.round, "bits"),
    "trunc": (torch.trunc, "bits"),
    "isnan": (torch.isnan, "bits"),
    "isinf": (torch.isinf, "bits"),
    "isfinite": (torch.isfinite, "bits"),
    "logical_not": (torch.logical_not, "bits"),
}
BINARY = {
    "add": (torch.add, "bits"),
    "sub": (torch.sub, "bits"),
    "mul": (torch.mul, "bits"),
    "div": (torch.div, "bits"),
    "pow": (torch.pow, "ulp"),
    "maximum": (torch.maximum, "value"),
    "minimum": (torch.minimum, "value"),
    "atan2": (torch.atan2, "ulp"),
    "hypot": (torch.hypot, "ulp"),
    "xlogy": (torch.xlogy, "ulp"),
    "logaddexp": (torch.logaddexp, "cancels"),
    "fmod": (torch.fmod, "value"),
    "remainder": (torch.remainder, "value"),
    "eq": (torch.eq, "bits"),
    "ne": (torch.ne, "bits"),
    "lt": (torch.lt, "bits"),
    "le": (torch.le, "bits"),
    "gt": (torch.gt, "bits"),
    "ge": (torch.ge, "bits"),
    "logical_and": (torch.logical_and, "bits"),
    "logical_or": (torch.logical_or, "bits"),
    "logical_xor": (torch.logical_xor, "bits"),
    "bitwise_and": (torch.bitwise_and, "bits"),
    "bitwise_or": (torch.bitwise_or, "bits"),
    "bitwise_xor": (torch.bitwise_xor, "bits"),
}
# Where the op table promises something other than PyTorch (README.md lists them): no cases.
# PyTorch refuses integers, we compute in float32.
FLOAT_ONLY = {"silu", "softplus", "gelu", "gelu_tanh", "logaddexp", "hypot"}
NO_BOOL = {"sign", "square"}  # PyTorch takes bool, we refuse it.
TENSORS_ONLY = {
    "maximum",
    "minimum",
    "atan2",
    "logaddexp",
    "hypot",
    "logical_and",
    "logical_or",
    "logical_xor",
}
# Their gradient is zero or none.
FLAT = {op for op in BINARY if op in ("eq", "ne", "lt", "le", "gt", "ge")} | {
    op for op in BINARY if op.startswith(("logical", "bitwise"))
}


ROUGHER = ("erf", "gelu", "sinh", "cosh", "lgamma", "digamma", "erfinv")


def tolerance(kind, dtype):
    ulp = 1 if dtype in (torch.float16, torch.bfloat16) else 4
    if kind == "ulp":
        return f"ulp:{ulp}"
    if kind == "input":
        return f"input:{ulp}:{EPS[torch.float64 if dtype == torch.float64 else torch.float32]!r}"
    if kind == "cancels":  # a sum whose parts are about 1
        return f"near:{ulp}:{2 * EPS[torch.float64 if dtype == torch.float64 else torch.float32]!r}"
    if kind == "poles":  # a sum of larger parts
        eps = EPS[torch.float64 if dtype == torch.float64 else torch.float32]
        return f"near:{2 * ulp}:{8 * eps!r}"
    if kind == "normal":  # may be 0 where the result is subnormal
        return f"near:{ulp}:{1.2e-38 if dtype != torch.float64 else 2.3e-308}"
    return kind


def floats(dtype, values):
    return torch.tensor(values, dtype=torch.float64).to(dtype)


def edges(dtype):
    """Values at which functions change their mind."""
    if dtype == torch.bool:
        return torch.tensor([False, True])
    if not dtype.is_floating_point:
        i = torch.iinfo(dtype)
        small = [0, 1, 2, 3, 5, 7, 20, 21, 100, 127, 128, 200, 255]
        if dtype != torch.uint8:
            small += [-x for x in small[1:]] + [i.min, i.min + 1, i.max - 1, i.max, 46341, -65537]
        return torch.tensor(small, dtype=dtype)
    f = torch.finfo(dtype)
    tiny = f.smallest_normal * f.eps  # the smallest subnormal
    half = [
        tiny,
        3 * tiny,
        f.smallest_normal / 2,
        f.smallest_normal,
        f.eps / 4,
        f.eps,
        1e-3,
        0.25,
        0.5,
        0.75,
    ]
    half += [
        1 - f.eps / 2,
        1.0,
        1 + f.eps,
        1.5,
        2.0,
        2.5,
        3.0,
        3.5,
        1.5707963267948966,
        3.141592653589793,
        4.0,
        5.0,
    ]
    half += [
        6.5,
        9.0,
        10.0,
        11.0,
        16.0,
        17.5,
        19.96,
        20.0,
        20.1,
        33.0,
        50.5,
        87.3,
        88.72,
        89.0,
        103.9,
        127.99,
        128.0,
        149.0,
    ]
    half += [
        300.0,
        709.7,
        745.2,
        1000.0,
        4095.0,
        12345.678,
        65504.0,
        1e5,
        8388609.0,
        1e10,
        1e22,
        3e38,
        f.max,
    ]
    half = [x for x in half if x <= f.max]
    return floats(
        dtype, [float("nan"), float("inf"), float("-inf"), 0.0, -0.0] + half + [-x for x in half]
    )


def short_edges(dtype, divisor=False):
    """Fewer, for tables of pairs."""
    if dtype == torch.bool:
        return torch.tensor([False, True])
    if not dtype.is_floating_point:
        i = torch.iinfo(dtype)
        out = [0, 1, 2, 3, 7, 63, 100, i.max - 1, i.max]
        if dtype != torch.uint8:
            out += [-1, -2, -3, -7, -50, i.min, i.min + 1]
        # By zero PyTorch raises and we give 0; the smallest by -1 is a trap in C.
        return torch.tensor([x for x in out if not (divisor and x in (0, -1))], dtype=dtype)
    f = torch.finfo(dtype)
    out = [f.smallest_normal * f.eps, f.smallest_normal, 0.5, 1.0, 1 + f.eps, 2.0, 3.0, 7.5, f.max]
    return floats(
        dtype, [float("nan"), float("inf"), float("-inf"), 0.0, -0.0] + out + [-x for x in out]
    )


def noise(dtype, shape, *key, scale=3.0):
    g = random("noise", dtype_name(dtype), tuple(shape), *key)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=g).bool()
    if not dtype.is_floating_point:
        return torch.randint(0 if dtype == torch.uint8 else -50, 60, shape, generator=g).to(dtype)
    return (torch.randn(shape, generator=g, dtype=torch.float64) * scale).to(dtype)


def indices(n, shape, *key, dtype=torch.int64):
    return torch.randint(0, n, shape, generator=random("index", n, tuple(shape), *key)).to(dtype)


def any_bits(dtype, n, *key):
    """Random bit patterns: every exponent, NaNs and subnormals among them."""
    g = random("bits", dtype_name(dtype), n, *key)
    if dtype in (torch.float16, torch.bfloat16):
        return torch.randint(-(2**15), 2**15, (n,), generator=g).to(torch.int16).view(dtype)
    if dtype in (torch.float32, torch.int32):
        return torch.randint(-(2**31), 2**31, (n,), generator=g).to(torch.int32).view(dtype)
    if dtype in (torch.float64, torch.int64):
        hi, lo = (torch.randint(-(2**31), 2**31, (n,), generator=g) for _ in range(2))
        return ((hi << 32) | (lo & 0xFFFFFFFF)).view(dtype)
    return (
        torch.randint(0, 256, (n,), generator=g).to(dtype)
        if dtype == torch.uint8
        else noise(dtype, (n,), *key)
    )


def shaped(dtype, *key):
    """The same kind of values in shapes and strides of all sorts."""
    return [
        noise(dtype, (), *key),
        noise(dtype, (0,), *key),
        noise(dtype, (2, 0, 3), *key),
        noise(dtype, (3, 1, 4, 1, 2), *key),
        In(noise(dtype, (4, 3), *key), ("transpose", 0, 1)),
        In(noise(dtype, (3, 1), *key), ("expand", [2, 3, 4])),
        In(noise(dtype, (5, 6), *key), ("narrow", 1, 2, 3), ("narrow", 0, 1, 3)),
        In(noise(dtype, (2, 3, 4), *key), ("permute", [2, 0, 1]), ("narrow", 0, 1, 2)),
    ]


def strided(dtype, key):
    """Two dimensions or more, in strides of all sorts."""
    return [
        In(noise(dtype, (4, 6), key), ("transpose", 0, 1)),
        In(noise(dtype, (3, 1), key), ("expand", [2, 3, 4])),
        In(noise(dtype, (5, 6), key), ("narrow", 1, 2, 3), ("narrow", 0, 1, 3)),
    ]


def elementwise(g, op, f, ins, kind, attrs=None):
    attrs = attrs or {}
    if refused(f, ins, attrs):
        return g.case(op, ins, attrs, "error")
    native = run(f, ins, attrs)
    dtype = native[0].dtype
    if dtype.is_floating_point and kind in ("ulp", "input", "normal", "cancels", "poles"):
        tol = tolerance(kind, dtype)
        # PyTorch's own erf, gelu, sinh and cosh are rougher than this in 32 bits and below; see
        # README.md. So are those that are computed in doubles here.
        check = op not in ROUGHER or dtype == torch.float64
        label = (g.name, op, dtype_name(dtype), str(ins)[:60])
        out = oracle(f, ins, attrs, tol, label, common=dtype, check=check)
    else:
        tol, out = (kind if kind in ("bits", "value") else "bits"), native
        if op in EXACT and dtype.is_floating_point:
            out = (plain(EXACT[op], ins, dtype),)
            off = ~(agrees(native[0], out[0], "ulp:1") | native[0].isnan())
            if bool(off.any()):
                COMPLAINTS.append(f"{g.name} {op}: PyTorch is far from {out[0][off]}")
    g.case(op, ins, attrs, out, tol)


def unary(g):
    for op, (f, kind) in UNARY.items():
        for dtype in DTYPES:
            if (op in FLOAT_ONLY and dtype not in FLOATS) or (
                op in NO_BOOL and dtype == torch.bool
            ):
                continue
            e = edges(dtype)
            ins = [e]
            if dtype != torch.bool:
                ins.append(noise(dtype, (40,), "unary"))
            if dtype in FLOATS:
                ins.append(any_bits(dtype, 40, "unary"))
            if dtype == torch.float32 or (dtype == torch.bfloat16 and op in ("neg", "exp")):
                ins += shaped(dtype, "unary")
            for x in ins:
                elementwise(g, op, f, [x], kind)


def pairs(dtype, op):
    divisor = op in ("fmod", "remainder")
    a, b = short_edges(dtype), short_edges(dtype, divisor)
    out = [(a.reshape(-1, 1), b)]
    if dtype != torch.bool:
        x, y = noise(dtype, (40,), "a"), noise(dtype, (40,), "b")
        if divisor:
            y = torch.where(y == 0, torch.ones_like(y), y)
        out.append((x, y))
    if dtype in FLOATS:
        out.append((any_bits(dtype, 40, "a"), any_bits(dtype, 40, "b")))
    return out


SHAPES = [
    ((), ()),
    ((), (3,)),
    ((1,), (3,)),
    ((2, 1), (3,)),
    ((2, 1), (1, 3)),
    ((0,), (1,)),
    ((0, 3), (3,)),
    ((2, 0, 3), (2, 1, 3)),
    ((4, 1, 3), (2, 1)),
    ((2, 3, 1, 2), (1, 4, 1)),
    ((1, 2, 1, 3, 1), (2, 1, 2, 1, 2)),
    ((5,), (5,)),
    ((2, 2, 2), (2, 2, 2)),
]
MISFITS = [((2,), (3,)), ((2, 3), (2,)), ((0,), (2,)), ((2, 3), (4,)), ((2, 3, 4), (2, 1, 3))]


def binary(g):
    for op, (f, kind) in BINARY.items():
        for dtype in DTYPES:
            if op in FLOAT_ONLY and dtype not in FLOATS:
                continue
            for a, b in pairs(dtype, op):
                elementwise(g, op, f, [a, b], kind)
        for k, (a, b) in enumerate(SHAPES):
            if op not in ("add", "pow", "le") and k % 3 != len(op) % 3:
                continue
            for dtype in (
                (torch.float32, torch.int64) if op.startswith("bitwise") else (torch.float32,)
            ):
                elementwise(g, op, f, [noise(dtype, a, "a"), noise(dtype, b, "b")], kind)
        x, y = shaped(torch.float32, op)[4:], shaped(torch.float32, op, "other")[4:]
        if not op.startswith("bitwise"):
            for a in x:
                elementwise(g, op, f, [a, noise(torch.float32, (), op)], kind)
                elementwise(g, op, f, [noise(torch.float32, value(a).shape, op), a], kind)
            for a, b in zip(x, y):
                elementwise(g, op, f, [a, b], kind)
        for a, b in MISFITS:
            elementwise(g, op, f, [noise(torch.float32, a), noise(torch.float32, b)], kind)


def scalars(g):
    for op, (f, kind) in BINARY.items():
        for dtype in DTYPES:
            if op in FLOAT_ONLY and dtype not in FLOATS:
                continue
            x = noise(dtype, (12,), "scalar")
            if op in ("fmod", "remainder", "div"):
                x = torch.where(x == 0, torch.ones_like(x), x)
            for s in (2, -3, 2.5, -0.5, True):
                # By an integer of another sign u8 has no answer that PyTorch defines for all ops.
                if (
                    dtype == torch.uint8
                    and s == -3
                    and op not in ("add", "sub", "mul", "bitwise_and", "bitwise_or")
                ):
                    continue
                if op == "pow" and s in (-3, True):
                    continue  # PyTorch refuses a negative exponent of integers, we give 0, 1 or -1.
                for left in (False, True):
                    ins = [s, x] if left else [x, s]
                    call = with_scalar(op, f)
                    if call is None or refused(call, ins, {}):
                        if (
                            op in ("bitwise_and", "bitwise_or", "bitwise_xor")
                            and isinstance(s, float)
                        ) or (
                            op in ("sub", "fmod", "remainder") and dtype == torch.bool and s is True
                        ):
                            g.case(op, ins, {}, "error")
                        continue
                    elementwise(g, op, call, ins, kind)
        if op in ("add", "mul", "div"):
            # A scalar that halves cannot hold is used unrounded, as PyTorch does.
            for dtype in (torch.float16, torch.bfloat16):
                x = noise(dtype, (40,), "scalar")
                elementwise(g, op, with_scalar(op, f), [x, 0.1], kind)
        if op in ("add", "lt", "eq", "pow"):
            for s in (float("nan"), float("inf"), float("-inf"), -0.0, 0.0, 1e300, 2**40):
                for dtype in (torch.float32, torch.float64):
                    elementwise(g, op, with_scalar(op, f), [short_edges(dtype), s], kind)


def with_scalar(op, f):
    """The op with a Python number on either side; PyTorch takes it there or wraps it as it
    would."""

    def call(a, b):
        if not isinstance(a, torch.Tensor):
            if op == "pow":
                return torch.pow(a, b)
            if op == "div":
                return a / b
            if op == "sub":
                return a - b
            if op in ("remainder",):
                return torch.remainder(a, b)
            if op.startswith("bitwise"):
                return f(a, b)
            a = weak(a, b)
        elif not isinstance(b, torch.Tensor) and op in TENSORS_ONLY:
            b = weak(b, a)
        return f(a, b)

    return call


def weak(s, x):
    """A 0-d tensor is as weak as a number in PyTorch; only its type's width must not widen the
    result."""
    t = torch.result_type(x, s)
    return torch.tensor(s, dtype=t)


PROMOTED = (
    "add",
    "div",
    "pow",
    "maximum",
    "eq",
    "lt",
    "logical_xor",
    "bitwise_and",
    "atan2",
    "remainder",
)


def promotion(g):
    for op in PROMOTED:
        f, kind = BINARY[op]
        for i, a in enumerate(DTYPES):
            for j, b in enumerate(DTYPES):
                if i != j:
                    x, y = noise(a, (6,), "p"), noise(b, (6,), "q")
                    if op == "remainder":
                        y = torch.where(y == 0, torch.ones_like(y), y)
                    elementwise(g, op, f, [x, y], kind)
    for a in DTYPES:
        for b in DTYPES:
            t = torch.promote_types(a, b)
            g.case(
                "promote_types",
                [],
                {"a": dtype_name(a), "b": dtype_name(b), "want": dtype_name(t)},
                [],
                "bits",
            )
        for s in (True, 2, 2.5):
            t = torch.result_type(torch.ones(2, dtype=a), s)
            g.case("promote_scalar", [s], {"a": dtype_name(a), "want": dtype_name(t)}, [], "bits")
    # A tensor of no dimensions is weak, like a number, within its category.
    f, kind = BINARY["add"]
    for a in DTYPES:
        for b in DTYPES:
            elementwise(g, "add_0d", f, [noise(a, (3,), "z"), noise(b, (), "z")], kind)


def where_and_cast(g):
    f = torch.where
    c = noise(torch.bool, (12,), "c")
    for a in DTYPES:
        for b in DTYPES:
            elementwise(g, "where", f, [c, noise(a, (12,), "x"), noise(b, (12,), "y")], "bits")
    c = In(noise(torch.bool, (2, 3), "c"), ("transpose", 0, 1))
    for a, b in (
        ((2,), (3, 1)),
        ((), ()),
        ((1, 1), (4, 3, 2)),
        ((3, 2), (1,)),
        ((0, 1, 2), (2,)),
        ((5,), (2,)),
    ):
        elementwise(
            g, "where", f, [c, noise(torch.float32, a, "x"), noise(torch.float32, b, "y")], "bits"
        )
    x = noise(torch.float16, (3, 2), "x")
    for s in (2, 2.5, True):
        elementwise(g, "where", f, [c, x, s], "bits")
        elementwise(g, "where", f, [c, s, x], "bits")
    # float, int and NaN operands keep their bits; a condition must be bool.
    elementwise(
        g,
        "where",
        f,
        [noise(torch.int64, (3,)), edges(torch.float32)[:3], edges(torch.float32)[3:6]],
        "bits",
    )
    elementwise(
        g,
        "where",
        f,
        [noise(torch.bool, (6,)), edges(torch.float32)[:6], edges(torch.float32)[6:12]],
        "bits",
    )
    for a in DTYPES:
        for b in DTYPES:
            x = edges(a)
            if a in FLOATS and b in INTS:
                # What a float outside the integer's range becomes is not defined by PyTorch.
                i = torch.iinfo(b)
                x = x[(x.double() >= i.min) & (x.double() < i.max * (1 - 2**-20))]
            name = {"dtype": dtype_name(b)}
            g.case("cast", [x], name, [x.to(b)], "bits")
            x = In(
                noise(a, (3, 4), "cast").abs() if a != torch.bool else noise(a, (3, 4)),
                ("transpose", 0, 1),
            )
            g.case("cast", [x], name, [value(x).to(b)], "bits")


def make():
    g = store.group("elementwise")
    unary(g)
    binary(g)
    g = store.group("mixed")
    scalars(g)
    promotion(g)
    where_and_cast(g)
