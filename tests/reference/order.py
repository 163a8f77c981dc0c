"""Rows and their order: running sums, products and largest elements, also without the own element
and from the other end (a running sum of the turned value), `sort`, `topk`, triangles, `flip` and
`roll`."""

import torch

import store
from elementwise import noise, strided
from store import DTYPES, FLOATS, numeric

SCANS = {
    "cumsum": torch.cumsum,
    "cumprod": torch.cumprod,
    "cummax": torch.cummax,
    "cummin": torch.cummin,
}


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


def sums(g, grad):
    for dtype in DTYPES:
        gr = grad if dtype == torch.float32 else None
        x = noise(dtype, (3, 6), "cs")
        for d in (0, 1, -1, 2):
            numeric(g, "cumsum", lambda x, dim: torch.cumsum(x, dim), [x], {"dim": d}, n=8, grad=gr)


def triangles(g, gr, x):
    for d in (0, 2, -1, -3):
        for name, f in (("tril", torch.tril), ("triu", torch.triu)):
            numeric(g, name, lambda x, diagonal, f=f: f(x, diagonal), [x], {"diagonal": d}, grad=gr)


def turned(g, gr, x):
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


def best_so_far(g, grad, op="cummax"):
    f = lambda x, dim: tuple(SCANS[op](x, dim))  # noqa: E731
    inf, nan = float("inf"), float("nan")
    odd = [[nan, 1.0, nan, 2.0, inf], [-inf, -inf, 0.0, -0.0, nan], [3.0, 3.0, nan, nan, 3.0]]
    for dtype in DTYPES:
        gr = grad if dtype in (torch.float32, torch.float64) else None
        ties = noise(torch.int64, (4, 9), "cm").remainder(4).to(dtype)
        for x in (noise(dtype, (3, 7), "cm"), ties):
            for dim in (0, 1, -1, 2):
                numeric(g, op, f, [x], {"dim": dim}, grad=gr)
        for shape in ((0, 2), (2, 0), (1,), ()):
            numeric(g, op, f, [noise(dtype, shape)], {"dim": 0})
        if dtype in FLOATS:
            for dim in (0, 1):
                numeric(g, op, f, [torch.tensor(odd).to(dtype)], {"dim": dim})
    for x in strided(torch.float32, "cm"):
        numeric(g, op, f, [x], {"dim": 0}, grad=grad)
    # More than one piece of a GPU's scan, and rows side by side.
    for shape, dim in (((1, 4500), 1), ((20, 300), 0)) if op == "cummax" else ():
        numeric(g, op, f, [noise(torch.float32, shape, "long")], {"dim": dim})


def make():
    g, grad = store.group("order"), store.group("grad_order")
    for dtype in DTYPES:
        gr = grad if dtype == torch.float32 else None
        x = noise(dtype, (4, 5), "ix")
        if dtype in FLOATS:
            pairs(g, x, dtype, gr)
        order(g, gr, dtype)
        triangles(g, gr, x)
        turned(g, gr, x)
    sums(g, grad)
    for v in strided(torch.float32, "ix"):
        numeric(g, "cumsum", lambda x, dim: torch.cumsum(x, dim), [v], {"dim": 0}, n=8, grad=grad)
        turned(g, grad, v)
    runs(g, grad)
    best_so_far(g, grad)
    best_so_far(g, grad, "cummin")
