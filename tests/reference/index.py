"""Picking by indices: `gather`, `index_select`, `take`, `index`, `embedding`, `one_hot`, `scatter`
with its modes, indices of every type, those that count from the end, and those that name nothing.
"""

import torch

import store
from elementwise import indices, noise, strided
from store import DTYPES, FLOATS, numeric, value

F = torch.nn.functional


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


def tuples(g, grad):
    for dtype in (torch.float32, torch.float64, torch.int64, torch.bool):
        gr = grad if dtype == torch.float32 else None
        x = noise(dtype, (3, 4, 5), "pick")
        take = lambda x, i: torch.take(x, i)  # noqa: E731
        numeric(g, "take", take, [x, indices(60, (2, 3), "take")], {}, grad=gr)
        numeric(g, "take", take, [x, torch.tensor(7)], {}, grad=gr)

        def by(x, *index):
            return x[tuple(slice(None) if i is None else i for i in index)]

        i, j, k = indices(3, (2, 1), "i"), indices(4, (3,), "j"), indices(5, (2, 3), "k") - 5
        for index in (
            [i],
            [None, j],
            [i, j],
            [i, None, k],
            [None, j, k],
            [i, j, k],
            [None, None, k],
            [torch.tensor(-1), None, j],
        ):
            numeric(g, "index", by, [x, *index], {}, grad=gr)
        numeric(g, "index", by, [x, torch.tensor([3])], {})
        numeric(g, "index", by, [x, i, torch.tensor([[-5]])], {})
        numeric(g, "index", by, [x, torch.tensor([0, 1]), torch.tensor([0, 1, 2])], {})


# PyTorch takes indices of 64 bits alone.
def gather(x, index, dim):
    return torch.gather(x, dim, index.long())


def index_select(x, index, dim):
    return torch.index_select(x, dim, index.long())


def scatter(x, index, source, dim, reduce=None):
    index = index.long()
    if reduce is None:
        return torch.scatter(x, dim, index, source)
    if reduce == "sum":
        return torch.scatter_add(x, dim, index, source)
    return torch.scatter_reduce(x, dim, index, source, reduce=reduce, include_self=True)


def index_copy(x, index, source, dim):
    return torch.index_copy(x, dim, index.long(), source)


def of_every_type(g, grad):
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
                    [x, indices(n, shape, "g").to(it)],
                    {"dim": dim},
                    grad=gr,
                )
            for dim, n in ((0, 4), (1, 5)):
                numeric(
                    g,
                    "index_select",
                    index_select,
                    [x, indices(n, (6,), "s").to(it)],
                    {"dim": dim},
                    grad=gr,
                )
            if it != torch.uint8:
                take = lambda x, i: torch.take(x, i.long())  # noqa: E731
                index = (indices(40, (2, 3), "t") - 20).to(it)
                numeric(g, "take", take, [x, index], {}, grad=gr)
            if dtype != torch.bool:
                ins = [x, indices(4, (3, 5), "a").to(it), noise(dtype, (3, 5), "src")]
                numeric(g, "scatter_add", scatter, ins, {"dim": 0, "reduce": "sum"}, n=8, grad=gr)
        for dim, shape in ((0, (3, 5)), (-1, (4, 2))):
            # No place twice: PyTorch leaves open which comes last, and its gradient goes to each.
            index = torch.tensor([1, 3, 0] if dim == 0 else [3, 1])
            numeric(
                g,
                "index_copy",
                index_copy,
                [x, index, noise(dtype, shape, "copied")],
                {"dim": dim},
                grad=gr,
            )
    x = noise(torch.float32, (4, 5), "bad")
    for index in ([-1], [-5], [4], [-(2**62)]):
        numeric(g, "index_select", index_select, [x, torch.tensor(index)], {"dim": 0})
        numeric(g, "gather", gather, [x, torch.tensor([index])], {"dim": 0})
        for op, how in (("scatter", None), ("scatter_add", "sum"), ("scatter_reduce", "amax")):
            a = {"dim": 0} | ({"reduce": how} if how else {})
            numeric(g, op, scatter, [x, torch.tensor([index]), x], a)
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
            index, source = indices(n, shape, "si"), noise(dtype, read, "ss")
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
        once = torch.tensor([[2, 0, 4], [2, 4, 1]])
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


def make():
    g, grad = store.group("index"), store.group("grad_index")
    for part in (indexing, tuples, of_every_type, scatters):
        part(g, grad)
