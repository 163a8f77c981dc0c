"""Ops outside the table, in files of their own: normalisation, indexing, convolution, losses."""

import torch

from elementwise import noise
from store import DTYPES, FLOATS, Group, In, numeric, value

F = torch.nn.functional


def strided(dtype, key):
    return [
        In(noise(dtype, (4, 6), key), ("transpose", 0, 1)),
        In(noise(dtype, (3, 1), key), ("expand", [2, 3, 4])),
        In(noise(dtype, (5, 6), key), ("narrow", 1, 2, 3), ("narrow", 0, 1, 3)),
    ]


def rows(g, grad):
    """softmax and the like, along one dimension."""
    nan, inf = float("nan"), float("inf")
    special = torch.tensor(
        [[1.0, nan, 2.0], [inf, 0.0, 1.0], [-inf, 0.0, 1.0], [-inf, -inf, -inf], [1e4, 1e4, -1e4]]
    )
    for name, f in (
        ("softmax", lambda x, dim: torch.softmax(x, dim)),
        ("log_softmax", lambda x, dim: torch.log_softmax(x, dim)),
        ("logsumexp", lambda x, dims, keepdim=False: torch.logsumexp(x, dims, keepdim)),
    ):
        key = (lambda d: {"dims": [d]}) if name == "logsumexp" else (lambda d: {"dim": d})
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
    f = lambda x, dims, keepdim=False: torch.logsumexp(x, dims, keepdim)  # noqa: E731
    numeric(
        g,
        "logsumexp",
        f,
        [noise(torch.float32, (2, 3, 4), "lse")],
        {"dims": [0, 2], "keepdim": True},
        grad=grad,
    )


def norms(g, grad):
    for dtype in FLOATS:
        gr = grad if dtype in FLOATS[:2] else None
        for shape, n in (((4, 8), 1), ((2, 3, 4), 2), ((2, 3, 4), 1), ((6,), 1), ((0, 3), 1)):
            x, size = noise(dtype, shape, "ln"), shape[len(shape) - n :]
            w, b = noise(dtype, size, "w"), noise(dtype, size, "b")
            # noqa: E731
            ln = lambda x, w, b, normalized_shape, eps: F.layer_norm(x, normalized_shape, w, b, eps)
            # noqa: E731
            rms = lambda x, w, normalized_shape, eps: F.rms_norm(x, normalized_shape, w, eps)
            attrs = {"normalized_shape": list(size), "eps": 1e-5}
            for ins in ([x, w, b], [x, None, None]) + (([x, w, None],) if n == 1 else ()):
                numeric(g, "layer_norm", ln, ins, attrs, n=16, ulp=8, grad=gr)
            numeric(g, "rms_norm", rms, [x, w], attrs, n=16, ulp=8, grad=gr)
            numeric(g, "rms_norm", rms, [x, None], attrs, n=16, ulp=8, grad=gr)
        for shape in ((4, 3), (2, 3, 5), (2, 3, 2, 2)):
            x, mean, var = (
                noise(dtype, shape, "bn"),
                noise(dtype, (3,), "m"),
                noise(dtype, (3,), "v").abs() + 0.5,
            )
            w, b = noise(dtype, (3,), "w"), noise(dtype, (3,), "b")
            for training in (False, True):
                attrs = {"training": training, "momentum": 0.1, "eps": 1e-5}
                numeric(
                    g, "batch_norm", batch_norm, [x, mean, var, w, b], attrs, n=32, ulp=16, grad=gr
                )
                numeric(
                    g,
                    "batch_norm",
                    batch_norm,
                    [x, mean, var, None, None],
                    attrs,
                    n=32,
                    ulp=16,
                    grad=gr,
                )
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


def batch_norm(x, mean, var, w, b, training, momentum, eps):
    mean, var = mean.detach().clone(), var.detach().clone()  # no gradient goes there
    y = F.batch_norm(x, mean, var, w, b, training, momentum, eps)
    return y, mean, var


def indices(n, shape, *key, dtype=torch.int64):
    from store import random

    return torch.randint(0, n, shape, generator=random("index", n, tuple(shape), *key)).to(dtype)


def indexing(g, grad):
    for dtype in DTYPES:
        gr = grad if dtype == torch.float32 else None
        x = noise(dtype, (4, 5), "ix")
        take = lambda x, index, dim: torch.gather(x, dim, index)  # noqa: E731
        for dim, shape in ((0, (2, 5)), (1, (4, 3)), (-1, (2, 2)), (0, (6, 1)), (1, (0, 2))):
            numeric(
                g, "gather", take, [x, indices(4 if dim == 0 else 5, shape)], {"dim": dim}, grad=gr
            )
        put = lambda x, index, src, dim: torch.scatter_add(x, dim, index, src)  # noqa: E731
        if dtype != torch.bool:
            for dim, shape in ((0, (3, 5)), (1, (4, 2)), (1, (2, 7)), (0, (0, 5))):
                ins = [x, indices(4 if dim == 0 else 5, shape, "s"), noise(dtype, shape, "src")]
                numeric(g, "scatter_add", put, ins, {"dim": dim}, n=8, grad=gr)
        select = lambda x, index, dim: torch.index_select(x, dim, index)  # noqa: E731
        for dim, n, it in ((0, 4, torch.int64), (1, 5, torch.int32), (-1, 5, torch.int64)):
            numeric(
                g,
                "index_select",
                select,
                [x, indices(n, (6,), dim, dtype=it)],
                {"dim": dim},
                grad=gr,
            )
        numeric(g, "index_select", select, [x, indices(4, (0,))], {"dim": 0})
        if dtype in FLOATS:
            for shape in ((), (3,), (2, 3), (0,)):
                numeric(
                    g,
                    "embedding",
                    lambda w, i: F.embedding(i, w),
                    [x, indices(4, shape, "e")],
                    {},
                    grad=gr,
                )
            pairs(g, x, dtype, gr)
        sums = noise(dtype, (3, 6), "cs")
        for d in (0, 1, -1, 2):
            numeric(
                g, "cumsum", lambda x, dim: torch.cumsum(x, dim), [sums], {"dim": d}, n=8, grad=gr
            )
        order(g, gr, dtype)
        for d in (0, 2, -1, -3):
            for name, f in (("tril", torch.tril), ("triu", torch.triu)):
                numeric(
                    g, name, lambda x, diagonal, f=f: f(x, diagonal), [x], {"diagonal": d}, grad=gr
                )
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
        moved(g, gr, x)
    bad = torch.tensor([[0, 4], [1, -1]])
    x = noise(torch.float32, (4, 5), "bad")
    numeric(g, "gather", take, [x, bad], {"dim": 0})
    numeric(g, "gather", take, [x, torch.tensor([[5]])], {"dim": 1})
    numeric(g, "gather", take, [x, torch.tensor([0])], {"dim": 0})
    numeric(g, "index_select", select, [x, torch.tensor([0, 4])], {"dim": 0})
    numeric(g, "index_select", select, [x, torch.tensor([-5])], {"dim": 0})
    numeric(g, "embedding", lambda w, i: F.embedding(i, w), [x, torch.tensor([4])], {})
    numeric(g, "embedding", lambda w, i: F.embedding(i, w), [x, torch.tensor([-1])], {})
    numeric(g, "scatter_add", put, [x, torch.tensor([[4]]), x], {"dim": 0})
    for v in strided(torch.float32, "ix"):
        numeric(g, "gather", take, [v, indices(2, value(v).shape, "g")], {"dim": 0}, grad=grad)
        numeric(g, "index_select", select, [v, indices(3, (4,), "g")], {"dim": 1}, grad=grad)
        numeric(g, "cumsum", lambda x, dim: torch.cumsum(x, dim), [v], {"dim": 0}, n=8, grad=grad)
        moved(g, grad, v)
    for dtype in (torch.int64,):
        for shape in ((), (3,), (2, 2), (0,)):
            numeric(
                g,
                "one_hot",
                lambda x, num_classes: F.one_hot(x, num_classes),
                [indices(4, shape, "oh", dtype=dtype)],
                {"num_classes": 5},
            )
    numeric(
        g,
        "one_hot",
        lambda x, num_classes: F.one_hot(x, num_classes),
        [torch.tensor([1, 5])],
        {"num_classes": 5},
    )
    numeric(
        g,
        "one_hot",
        lambda x, num_classes: F.one_hot(x, num_classes),
        [torch.tensor([1, -2])],
        {"num_classes": 5},
    )


def pairs(g, x, dtype, gr):
    inf, nan = float("inf"), float("nan")
    e = torch.tensor(
        [[3.0, nan, -inf, 0.0, inf], [nan, nan, 1.0, -1.0, 2.0]], dtype=torch.float64
    ).to(dtype)
    for largest in (True, False):
        attrs = {"k": 4, "dim": -1, "largest": largest}
        f = lambda x, k, dim, largest: torch.topk(x, k, dim, largest)[0]  # noqa: E731
        numeric(g, "topk_values", f, [e], attrs)
        for descending in (True, False):
            # noqa: E731
            f = lambda x, dim, descending: tuple(
                torch.sort(x, dim=dim, descending=descending, stable=True)
            )
            numeric(g, "sort", f, [e], {"dim": 1, "descending": descending})


def order(g, gr, dtype):
    x = torch.randperm(24, generator=torch.Generator().manual_seed(7)).reshape(4, 6).to(dtype)
    f = lambda x, k, dim, largest: tuple(torch.topk(x, k, dim, largest))  # noqa: E731
    for k, dim, largest in ((2, 1, True), (3, 0, False), (6, -1, True), (0, 0, True), (5, 0, True)):
        if dtype != torch.bool:
            numeric(g, "topk", f, [x], {"k": k, "dim": dim, "largest": largest}, grad=gr)
    # Stable: equals keep their order.
    y = noise(torch.int64, (3, 12), "ties").remainder(4).to(dtype)
    # noqa: E731
    f = lambda x, dim, descending: tuple(torch.sort(x, dim=dim, descending=descending, stable=True))
    for v in (x, y, noise(dtype, (0, 2)), noise(dtype, ())):
        for dim in (0, -1):
            for descending in (False, True):
                numeric(
                    g,
                    "sort",
                    f,
                    [v],
                    {"dim": dim, "descending": descending},
                    grad=gr if v is x else None,
                )


def moved(g, gr, x):
    n = value(x).dim()
    for dims in ([0], [-1], [0, 1], []):
        numeric(g, "flip", lambda x, dims: torch.flip(x, dims), [x], {"dims": dims}, grad=gr)
    for shifts, dims in (([1], [0]), ([-2], [1]), ([2, 9], [0, 1])):
        numeric(
            g,
            "roll",
            lambda x, shifts, dims: torch.roll(x, shifts, dims),
            [x],
            {"shifts": shifts, "dims": dims},
            grad=gr,
        )
    for repeats in ([2] + [1] * (n - 1), [2, 2] + [1] * (n - 1), [0] * n, [2]):
        numeric(
            g, "repeat", lambda x, repeats: x.repeat(repeats), [x], {"repeats": repeats}, grad=gr
        )
    for size in (2, 3, 9):
        numeric(
            g,
            "split",
            lambda x, size, dim: torch.split(x, size, dim),
            [x],
            {"size": size, "dim": 0},
        )
    for chunks in (2, 3, 7):
        numeric(
            g,
            "chunk",
            lambda x, chunks, dim: torch.chunk(x, chunks, dim),
            [x],
            {"chunks": chunks, "dim": 1},
        )
    numeric(
        g,
        "split",
        lambda x, sizes, dim: torch.split(x, sizes, dim),
        [x],
        {"sizes": [1, value(x).shape[1] - 1], "dim": 1},
    )
    for pad in ([1, 2], [0, 1, 2, 0], [-1, 1]):
        s = 1.0 if value(x).dtype in FLOATS else 1
        if value(x).dtype != torch.bool:
            numeric(
                g, "pad", lambda x, s, pad: F.pad(x, pad, value=s), [x, s], {"pad": pad}, grad=gr
            )


def convolution(g, grad):
    for dtype in FLOATS:
        gr = grad if dtype == torch.float32 else None
        wide = {"wide": True, "n": 16, "ulp": 4}
        for k, (n, c, length, o, k1, s, p, d, groups) in enumerate(CONV1):
            ins = [
                noise(dtype, (n, c, length), "c1"),
                noise(dtype, (o, c // groups, k1), "w1"),
                noise(dtype, (o,), "b1") if k % 2 else None,
            ]
            attrs = {"stride": s, "padding": p, "dilation": d, "groups": groups}
            numeric(
                g,
                "conv1d",
                lambda x, w, b, **a: F.conv1d(x, w, b, **a),
                ins,
                attrs,
                grad=gr,
                scale=100.0,
                **wide,
            )
        for k, (n, c, h, w, o, kh, kw, s, p, d, groups) in enumerate(CONV2):
            ins = [
                noise(dtype, (n, c, h, w), "c2"),
                noise(dtype, (o, c // groups, kh, kw), "w2"),
                noise(dtype, (o,), "b2") if k % 2 else None,
            ]
            attrs = {"stride": s, "padding": p, "dilation": d, "groups": groups}
            numeric(
                g,
                "conv2d",
                lambda x, w, b, **a: F.conv2d(x, w, b, **a),
                ins,
                attrs,
                grad=gr,
                scale=200.0,
                **wide,
            )
        x = noise(dtype, (2, 2, 6, 7), "pool")
        for k, s, p in (
            ([2, 2], [2, 2], [0, 0]),
            ([3, 2], [1, 2], [1, 1]),
            ([3, 3], [2, 2], [1, 0]),
            ([6, 7], [1, 1], [0, 0]),
            ([2, 2], [2, 2], [2, 2]),
        ):
            attrs = {"kernel_size": k, "stride": s, "padding": p}
            numeric(g, "max_pool2d", lambda x, **a: F.max_pool2d(x, **a), [x], attrs, grad=gr)
            numeric(g, "avg_pool2d", lambda x, **a: F.avg_pool2d(x, **a), [x], attrs, grad=gr)
    x = noise(torch.float32, (1, 2, 4, 4), "bad")
    for w in ((3, 1, 3, 3), (3, 2, 5, 5), (3, 2, 3)):
        attrs = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": 1}
        numeric(
            g,
            "conv2d",
            lambda x, w, b, **a: F.conv2d(x, w, b, **a),
            [x, noise(torch.float32, w), None],
            attrs,
        )
    y = torch.tensor([[[[1.0, float("nan")], [float("-inf"), 2.0]]]])
    numeric(
        g,
        "max_pool2d",
        lambda x, **a: F.max_pool2d(x, **a),
        [y],
        {"kernel_size": [1, 2], "stride": [1, 2], "padding": [0, 0]},
    )


CONV1 = [  # batch, channels, length, out channels, kernel, stride, padding, dilation, groups
    (2, 3, 8, 4, 3, 1, 0, 1, 1), (1, 2, 9, 2, 3, 2, 1, 1, 1), (2, 4, 10, 4, 3, 1, 2, 2, 2), (1, 1, 5, 1, 5, 1, 0, 1, 1),
    (2, 3, 7, 3, 3, 1, 1, 1, 3), (1, 2, 6, 3, 1, 1, 0, 1, 1),
]  # fmt: skip
# batch, channels, height, width, out channels, kernel h, w, stride, padding, dilation, groups
CONV2 = [
    (2, 3, 5, 6, 4, 3, 3, [1, 1], [0, 0], [1, 1], 1), (1, 2, 7, 5, 3, 3, 2, [2, 1], [1, 0], [1, 1], 1),
    (1, 4, 6, 6, 4, 3, 3, [1, 1], [2, 2], [2, 2], 2), (2, 3, 4, 4, 3, 3, 3, [1, 2], [1, 1], [1, 1], 3),
    (1, 2, 3, 3, 2, 3, 3, [1, 1], [0, 0], [1, 1], 1), (2, 2, 4, 5, 3, 1, 1, [1, 1], [0, 0], [1, 1], 1),
]  # fmt: skip


def losses(g, grad):
    for dtype in FLOATS:
        gr = grad if dtype in FLOATS[:2] else None
        q, k, v = (noise(dtype, (2, 2, n, 4), key) for n, key in ((3, "q"), (5, "k"), (5, "v")))
        # noqa: E731
        f = lambda q, k, v, mask=None, is_causal=False: F.scaled_dot_product_attention(
            q, k, v, mask, is_causal=is_causal
        )
        numeric(
            g,
            "scaled_dot_product_attention",
            f,
            [q, k, v, None],
            {"is_causal": False},
            n=16,
            ulp=16,
            grad=gr,
        )
        numeric(
            g,
            "scaled_dot_product_attention",
            f,
            [k, k, v, None],
            {"is_causal": True},
            n=16,
            ulp=16,
            grad=gr,
        )
        mask = noise(torch.bool, (3, 5), "mask")
        mask[:, 0] = True
        numeric(
            g,
            "scaled_dot_product_attention",
            f,
            [q, k, v, mask],
            {"is_causal": False},
            n=16,
            ulp=16,
            grad=gr,
        )
        bias = noise(dtype, (2, 1, 3, 5), "bias")
        numeric(
            g,
            "scaled_dot_product_attention",
            f,
            [q, k, v, bias],
            {"is_causal": False},
            n=16,
            ulp=16,
            grad=gr,
        )
        x, y = noise(dtype, (4, 5), "x", scale=1.0), noise(dtype, (4, 5), "y", scale=1.0)
        target, p = indices(5, (4,), "t"), torch.sigmoid(y)
        for reduction in ("mean", "sum", "none"):
            a = {"reduction": reduction}
            numeric(
                g,
                "mse_loss",
                lambda x, y, **a: F.mse_loss(x, y, **a),
                [x, y],
                a,
                n=8,
                ulp=8,
                grad=gr,
            )
            numeric(
                g,
                "cross_entropy",
                lambda x, t, **a: F.cross_entropy(x, t, **a),
                [x, target],
                a,
                n=8,
                ulp=8,
                grad=gr,
            )
            numeric(
                g,
                "nll_loss",
                lambda x, t, **a: F.nll_loss(x, t, **a),
                [torch.log_softmax(x, 1), target],
                a,
                n=8,
                ulp=8,
                grad=gr,
            )
            bce = lambda x, t, **a: F.binary_cross_entropy_with_logits(x, t, **a)  # noqa: E731
            numeric(g, "bce_with_logits", bce, [x * 20, p], a, n=8, ulp=8, grad=gr)
        numeric(
            g,
            "cross_entropy",
            lambda x, t, **a: F.cross_entropy(x, t, **a),
            [noise(dtype, (2, 3, 4), "x"), indices(3, (2, 4), "t")],
            {"reduction": "mean"},
            n=8,
            ulp=8,
            grad=gr,
        )
        numeric(
            g,
            "cross_entropy",
            lambda x, t, **a: F.cross_entropy(x, t, **a),
            [noise(dtype, (3,), "x"), indices(3, (), "t")],
            {"reduction": "mean"},
            n=8,
            ulp=8,
            grad=gr,
        )
    numeric(
        g,
        "cross_entropy",
        lambda x, t, **a: F.cross_entropy(x, t, **a),
        [noise(torch.float32, (2, 3), "x"), torch.tensor([0, 3])],
        {"reduction": "mean"},
    )


def make():
    for name, parts in (
        ("later_nn", (rows, norms, losses)),
        ("later_index", (indexing,)),
        ("later_conv", (convolution,)),
    ):
        g, grad = Group(name), Group(name.replace("later", "grad"))
        for part in parts:
            part(g, grad)
        g.write()
        grad.write()
