"""Ops that came later: inverse and hyperbolic functions, whole quotients, scatter with what it makes of two values,
running products, sums and products without the own element and from the other end, indices that count from the end
and of 8 bits, extrema with an initial value, diagonals, slices with any step.

Where PyTorch has no such form, it is made of the ops that it has: an index is lifted by the size, a running sum is
that of the turned value. Slices and diagonals are NumPy's."""

import numpy as np
import torch

import elementwise
from elementwise import any_bits, edges, noise, shaped, short_edges, with_scalar
from later import indices, strided
from store import DTYPES, FLOATS, INTS, Group, In, dtype_name, numeric, value

UNARY = {
    "asin": torch.asin, "acos": torch.acos, "atan": torch.atan, "sinh": torch.sinh, "cosh": torch.cosh,
    "asinh": torch.asinh, "acosh": torch.acosh, "atanh": torch.atanh,
}  # fmt: skip
# Where their gradients are not larger than they need be.
SMOOTH = {"asin": 0.9, "acos": 0.9, "atanh": 0.9}


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
                elementwise.elementwise(g, op, f, [x], "ulp")
        for dtype in (torch.float32, torch.float64):
            for x in [noise(dtype, (24,), "gb", scale=1.5)] + shaped(dtype, op, "gb"):
                base = value(x)
                base = (
                    base.abs() + 1.2
                    if op == "acosh"
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


def lifted(index, n):
    """As x[-1] means the last; a mistake for what names nothing."""
    index = index.long()
    if bool(((index < -n) | (index >= n)).any()):
        raise IndexError("out of range")
    return torch.where(index < 0, index + n, index)


def gather(x, index, dim):
    return torch.gather(x, dim, lifted(index, x.shape[dim] if x.dim() else 1))


def index_select(x, index, dim):
    return torch.index_select(x, dim, lifted(index, x.shape[dim]))


def scatter(x, index, source, dim, reduce=None):
    index = lifted(index, x.shape[dim] if x.dim() else 1)
    if reduce is None:
        return torch.scatter(x, dim, index, source)
    if reduce == "sum":
        return torch.scatter_add(x, dim, index, source)
    return torch.scatter_reduce(x, dim, index, source, reduce=reduce, include_self=True)


def index_copy(x, index, source, dim):
    return torch.index_copy(x, dim, lifted(index, x.shape[dim]), source)


def from_end(n, shape, *key, dtype=torch.int64):
    low = 0 if dtype == torch.uint8 else -n
    return (indices(n - low, shape, *key) + low).to(dtype)


def picking(g, grad):
    for dtype in DTYPES:
        gr = grad if dtype == torch.float32 else None
        x = noise(dtype, (4, 5), "ix")
        # Each type of element with each of indices would be many kernels to compile.
        for it in (
            (torch.int64, torch.int32, torch.uint8)
            if dtype in (torch.float32, torch.int64)
            else (torch.int64,)
        ):
            for dim, n, shape in ((0, 4, (2, 5)), (1, 5, (4, 3)), (-1, 5, (4, 7))):
                numeric(
                    g,
                    "gather",
                    gather,
                    [x, from_end(n, shape, "g", dtype=it)],
                    {"dim": dim},
                    grad=gr,
                )
            for dim, n in ((0, 4), (1, 5)):
                numeric(
                    g,
                    "index_select",
                    index_select,
                    [x, from_end(n, (6,), "s", dtype=it)],
                    {"dim": dim},
                    grad=gr,
                )
            if it != torch.uint8:
                take = lambda x, i: torch.take(x, i.long())  # noqa: E731
                numeric(g, "take", take, [x, from_end(20, (2, 3), "t", dtype=it)], {}, grad=gr)
            if dtype != torch.bool:
                ins = [x, from_end(4, (3, 5), "a", dtype=it), noise(dtype, (3, 5), "src")]
                numeric(g, "scatter_add", scatter, ins, {"dim": 0, "reduce": "sum"}, n=8, grad=gr)
        for dim, shape in ((0, (3, 5)), (-1, (4, 2))):
            # No place twice: PyTorch leaves open which comes last, and its gradient goes to each.
            index = torch.tensor([1, -1, 0] if dim == 0 else [-2, 1])
            numeric(
                g,
                "index_copy",
                index_copy,
                [x, index, noise(dtype, shape, "copied")],
                {"dim": dim},
                grad=gr,
            )
    x = noise(torch.float32, (4, 5), "bad")
    for index in ([-5], [4], [-(2**62)]):
        numeric(g, "index_select", index_select, [x, torch.tensor(index)], {"dim": 0})
        numeric(g, "gather", gather, [x, torch.tensor([index])], {"dim": 0})
        numeric(g, "scatter", scatter, [x, torch.tensor([index]), x], {"dim": 0})
        numeric(g, "index_copy", index_copy, [x, torch.tensor(index), x[:1]], {"dim": 0})
    numeric(
        g, "index_select", index_select, [x, torch.tensor([255], dtype=torch.uint8)], {"dim": 0}
    )
    words = torch.nn.functional.embedding
    numeric(
        g,
        "embedding",
        lambda w, i: words(i.long(), w),
        [x, torch.tensor([3, 0], dtype=torch.uint8)],
        {},
        grad=grad,
    )


def classes(g, grad):
    """No class has a negative number, whatever an index may mean elsewhere."""
    logs, w = torch.log_softmax(noise(torch.float32, (2, 3), "logs"), 1), torch.ones(3)
    for target in ([0, -1], [-3, 2], [1, 3]):
        for weight in (None, w):
            for reduction in ("none", "mean"):
                a = {"reduction": reduction, "ignore_index": -100}
                nll = lambda x, t, w, **a: torch.nn.functional.nll_loss(x, t, w, **a)  # noqa: E731
                numeric(g, "nll_loss", nll, [logs, torch.tensor(target), weight], a)


def scatters(g, grad):
    for dtype in DTYPES:
        gr = grad if dtype in (torch.float32, torch.float64) else None
        x = noise(dtype, (4, 5), "sx")
        for dim, n, shape, read in (
            (0, 4, (3, 5), (3, 5)),
            (1, 5, (4, 7), (4, 7)),
            (1, 5, (2, 2), (3, 4)),
            (0, 4, (0, 5), (0, 5)),
        ):
            index, source = from_end(n, shape, "si"), noise(dtype, read, "ss")
            for reduce in ("prod", "amax", "amin"):
                if dtype != torch.bool:
                    a = {"dim": dim, "reduce": reduce}
                    # PyTorch has no gradient for a source that is larger than the indices.
                    numeric(
                        g,
                        "scatter_reduce",
                        scatter,
                        [x, index, source],
                        a,
                        n=8,
                        ulp=8,
                        grad=gr if shape == read else None,
                    )
            # In order: this PyTorch walks along on one thread. Its gradient knows nothing of who
            # came last.
            numeric(g, "scatter", scatter, [x, index, source], {"dim": dim})
        once = torch.tensor([[2, 0, -1], [-3, 4, 1]])
        numeric(g, "scatter", scatter, [x, once, noise(dtype, (2, 3), "ss")], {"dim": 1}, grad=gr)
        if dtype in FLOATS:
            nan = torch.tensor(
                [[1.0, float("nan"), 2.0], [float("nan"), 3.0, -1.0]], dtype=torch.float64
            ).to(dtype)
            for reduce in (None, "amax", "amin", "prod"):
                a = {"dim": 0} | ({"reduce": reduce} if reduce else {})
                numeric(
                    g,
                    "scatter_reduce" if reduce else "scatter",
                    scatter,
                    [nan, torch.tensor([[1, 1, 0]]), nan],
                    a,
                )
            # Zeros on either side, one or more at a place; equals.
            x0 = torch.tensor([0.0, 2.0, 3.0, 0.0, 1.0], dtype=dtype)
            s0 = torch.tensor([4.0, 0.0, 5.0, 0.0, 0.0, 1.0, 1.0], dtype=dtype)
            i0 = torch.tensor([0, 1, 1, 3, 2, 4, 4])
            for reduce in ("prod", "amax", "amin"):
                numeric(
                    g,
                    "scatter_reduce",
                    scatter,
                    [x0, i0, s0],
                    {"dim": 0, "reduce": reduce},
                    n=8,
                    grad=gr,
                )
        one = noise(dtype, (), "one")
        numeric(
            g, "scatter", scatter, [one, torch.tensor(0), noise(dtype, (), "other")], {"dim": 0}
        )
    for v, s in zip(strided(torch.float32, "sv"), strided(torch.float32, "sw")):
        index = indices(2, value(v).shape, "sv")
        for reduce in ("prod", "amax"):
            numeric(
                g,
                "scatter_reduce",
                scatter,
                [v, index, s],
                {"dim": 0, "reduce": reduce},
                n=8,
                ulp=8,
                grad=grad,
            )
        numeric(g, "scatter", scatter, [v, index, s], {"dim": 0})
    x = noise(torch.float32, (2, 3), "bad")
    for index, s, dim in (((3, 3), (3, 3), 1), ((2, 3), (2, 2), 1), ((2, 3), (2, 3), 2)):
        numeric(
            g,
            "scatter",
            scatter,
            [x, indices(2, index, "b"), noise(torch.float32, s)],
            {"dim": dim},
        )
    g.case(
        "scatter",
        [x, torch.zeros((2, 3), dtype=torch.int64), noise(torch.float64, (2, 3))],
        {"dim": 0},
        "error",
    )
    g.case("scatter", [x, torch.zeros((2, 3)), x], {"dim": 0}, "error")


def running(fold, nothing):
    def f(x, dim, exclusive=False, reverse=False):
        if x.dim() == 0:
            return f(x.reshape(1), dim, exclusive, reverse).reshape(())
        x = x.flip(dim) if reverse else x
        if exclusive:
            x = torch.cat(
                [torch.full_like(x.narrow(dim, 0, min(1, x.shape[dim])), nothing), x], dim
            ).narrow(dim, 0, x.shape[dim])
        x = fold(x, dim)
        return x.flip(dim) if reverse else x

    return f


def runs(g, grad):
    sums, products = running(torch.cumsum, 0), running(torch.cumprod, 1)
    for dtype in DTYPES:
        gr = grad if dtype in (torch.float32, torch.float64) else None
        x, small = noise(dtype, (3, 6), "cs"), noise(dtype, (3, 6), "cp", scale=1.0)
        for d in (0, 1, -1, 2):
            numeric(
                g,
                "cumprod",
                lambda x, dim: torch.cumprod(x, dim),
                [small],
                {"dim": d},
                n=16,
                ulp=8,
                grad=gr,
            )
            for exclusive, reverse in ((True, False), (False, True), (True, True), (False, False)):
                a = {"dim": d, "exclusive": exclusive, "reverse": reverse}
                numeric(g, "cumsum_with", sums, [x], a, n=8, grad=gr)
                numeric(g, "cumprod_with", products, [small], a, n=16, ulp=8, grad=gr)
        for shape in ((0, 2), (2, 0), (1,), ()):
            for exclusive in (True, False):
                a = {"dim": 0, "exclusive": exclusive, "reverse": True}
                numeric(g, "cumsum_with", sums, [noise(dtype, shape)], a)
                numeric(g, "cumprod_with", products, [noise(dtype, shape)], a)
            numeric(
                g,
                "cumprod",
                lambda x, dim: torch.cumprod(x, dim),
                [noise(dtype, shape)],
                {"dim": 0},
            )
    zeros = torch.tensor(
        [[2.0, 0.0, 3.0, 4.0], [0.0, 5.0, 0.0, 2.0], [1.0, 2.0, 3.0, 0.0], [0.0, 0.0, 0.0, 0.0]]
    )
    numeric(g, "cumprod", lambda x, dim: torch.cumprod(x, dim), [zeros], {"dim": 1}, grad=grad)
    for x in strided(torch.float32, "cp"):
        numeric(
            g,
            "cumprod",
            lambda x, dim: torch.cumprod(x, dim),
            [x],
            {"dim": 0},
            n=16,
            ulp=8,
            grad=grad,
        )
    long = 1 + noise(torch.float32, (2, 5000), "long") / 1000
    numeric(g, "cumprod", lambda x, dim: torch.cumprod(x, dim), [long], {"dim": 1}, n=5000, ulp=8)


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


def diagonals(g, grad):
    for dtype in DTYPES:
        for n, m, k in (
            (3, 3, 0),
            (2, 4, 1),
            (4, 2, -2),
            (3, 3, 9),
            (3, 3, -9),
            (0, 2, 1),
            (2, 3, 2**62),
            (2, 3, -(2**63)),
        ):
            far = max(-9, min(9, k))
            a = {"n": n, "m": m, "diagonal": k, "dtype": dtype_name(dtype)}
            g.case("eye_diagonal", [], a, [torch.from_numpy(np.eye(n, m, far)).to(dtype)])
        g.case(
            "eye_dtype",
            [],
            {"n": 2, "m": 3, "dtype": dtype_name(dtype)},
            [torch.eye(2, 3).to(dtype)],
        )


SPANS = [
    [[None, None, -1]], [[4, 1, -1]], [[1, 4, -1]], [[-2, None, -2]], [[None, -3, -1]], [[9, -9, -3]], [[None, None, -9]], [[-9, 9, 2]],
    [[None, 2, None], [None, None, -2]], [1, [3, None, -1]], [[3, 0, -2], -1], [[0, 0, -1]], [[0, None, -1]], [[5, 5, 1], [-1, -4, -1]],
]  # fmt: skip


def slices(g, grad):
    x = noise(torch.float32, (5, 4), "sl")
    for spans in SPANS:
        index = tuple(slice(*s) if isinstance(s, list) else s for s in spans)
        g.case("i", [x], {"spans": spans}, [torch.from_numpy(x.numpy()[index].copy())])


def paged(q, k, v, table, lengths, causal, scale):
    """Attention of each row over its pages one after the other, by PyTorch's own."""
    rows = []
    for b, length in enumerate(lengths.tolist()):
        page, n = k.shape[1], q.shape[1]
        names = table[b, : -(-length // page)].long()
        keys, values = (x[names].flatten(0, 1)[:length].to(q.dtype).transpose(0, 1) for x in (k, v))
        seen = (
            torch.arange(length)
            <= (length - n + torch.arange(n) if causal else torch.full((n,), length))[:, None]
        )
        found = torch.nn.functional.scaled_dot_product_attention(
            q[b].transpose(0, 1)[None], keys[None], values[None], seen, scale=scale, enable_gqa=True
        )
        rows.append(found[0].transpose(0, 1))
    return torch.stack(rows)


def attention(g, grad):
    table = torch.tensor([[4, 0, 2, 1000], [1, 3, -7, 1000], [5, 1000, 1000, -1]])
    for n, heads, shared, width, wide, causal in (
        (1, 6, 2, 16, 16, False),
        (3, 4, 4, 5, 7, True),
        (2, 3, 1, 8, 20, True),
    ):
        for dtype, half in (
            (torch.float32, None),
            (torch.float64, None),
            (torch.float32, torch.float16),
        ):
            k, v = (
                noise(dtype, (6, 4, shared, width), "k", scale=0.3),
                noise(dtype, (6, 4, shared, wide), "v"),
            )
            if half:
                k, v = k.to(half), v.to(half)
            ins = [
                noise(dtype, (3, n, heads, width), "q", scale=0.3),
                k,
                v,
                table,
                torch.tensor([11, 6, 3], dtype=torch.int32),
            ]
            numeric(
                g,
                "paged_attention",
                paged,
                ins,
                {"causal": causal, "scale": 0.4},
                n=16,
                ulp=16,
                grad=None if half else grad,
            )


def grouped(q, k, v, lengths, causal, scale):
    """Attention of heads in groups over the first keys of each row, by PyTorch's own."""
    seen = torch.arange(k.shape[-2]) < lengths[:, None, None, None]
    if causal:
        seen = seen & (torch.arange(k.shape[-2]) <= torch.arange(q.shape[-2])[:, None])
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, seen, scale=scale, enable_gqa=True
    )


def groups(g, grad):
    for heads, shared, causal in ((4, 2, False), (3, 1, True), (2, 2, False)):
        for dtype in (torch.float32, torch.float64, torch.float16):
            # noqa: E731
            of = lambda n, rows, width, name: noise(
                dtype, (3, n, rows, width), name, heads, scale=0.4
            )
            ins = [
                of(heads, 5, 8, "gq"),
                of(shared, 6, 8, "gk"),
                of(shared, 6, 7, "gv"),
                torch.tensor([6, 1, 4]),
            ]
            keep = grad if dtype != torch.float16 else None
            numeric(
                g,
                "grouped_attention",
                grouped,
                ins,
                {"causal": causal, "scale": 0.4},
                n=16,
                ulp=16,
                grad=keep,
            )


def rope(x, cosine, sine, interleaved):
    a, b = (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)
    turned = [a * cosine - b * sine, a * sine + b * cosine]
    return (torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)).to(
        x.dtype
    )


def turns(g, grad):
    for interleaved in (False, True):
        for dtype in FLOATS:
            table = torch.float64 if dtype == torch.float64 else torch.float32
            angles = torch.arange(5)[:, None] / 100 ** (torch.arange(6) / 6)
            tables = [f(angles.double()).to(table) for f in (torch.cos, torch.sin)]
            for x in (
                noise(dtype, (2, 3, 5, 12), "rope"),
                In(noise(dtype, (2, 5, 3, 12), "ropet"), ["transpose", 1, 2]),
            ):
                keep = grad if dtype in (torch.float32, torch.float64) else None
                numeric(
                    g,
                    "rope",
                    rope,
                    [x, *tables],
                    {"interleaved": interleaved},
                    n=4,
                    ulp=4,
                    grad=keep,
                )


def make():
    g, grad = Group("beyond"), Group("grad_beyond")
    for part in (
        functions,
        quotients,
        picking,
        classes,
        scatters,
        runs,
        extrema,
        diagonals,
        slices,
        attention,
        groups,
        turns,
    ):
        part(g, grad)
    g.write()
    grad.write()
