"""Every op of the op table on bool, integers, nothing and single numbers: PyTorch's element
type, shape and values, or that it refuses (`dtypes_rules.py`). Products and layers are in
`dtypes_layers.py`."""

import torch

import dtypes_layers
import edges
import vocabulary
from dtypes_rules import B, Calls, F, I, L, S, U, x
from elementwise import BINARY, TENSORS_ONLY
from index import scatter
from order import SCANS


def elementwise(k):
    tests = {
        "isnan": torch.isnan,
        "isinf": torch.isinf,
        "isfinite": torch.isfinite,
        "logical_not": torch.logical_not,
        "bitwise_not": torch.bitwise_not,
    }
    for row, f in {**edges.UNARY, **tests}.items():
        k.of(row, row, f)
    # Those of `edges` first, as they come there.
    more = {row: f for row, (f, _) in BINARY.items() if row not in edges.BINARY}
    # noqa: E731
    one = lambda dtype, shape: (
        x(dtype, shape, 1).clamp(min=1) if dtype != B else torch.ones(shape, dtype=B)
    )
    for row, f in {**edges.BINARY, **more}.items():
        k.of(row, row, f, more=[one])
        k.of(row, row, f, shapes=((2, 3), ()), more=[lambda _, shape: torch.ones(shape, dtype=L)])
        # PyTorch takes no number there, under this name.
        if row not in TENSORS_ONLY | {"remainder"}:
            for s in (2, True, 2.5):
                k.of(
                    row,
                    row,
                    f,
                    shapes=((2, 3),),
                    types=(B, U, I, L, S) if not (row == "sub" and s is True) else (),
                    more=[s],
                )
    k.row = "where_cond"
    for dtype in (B, U, I, L, S):
        for shape in ((2, 3), (0, 3), ()):
            k.call("where", torch.where, [x(B, shape), x(dtype, shape), one(dtype, shape)])
        k.call("where", torch.where, [x(dtype), x(L), x(L)])
        k.call("where", torch.where, [x(B), x(dtype), torch.ones((), dtype=L)])
    k.row = "masked_fill"
    for dtype in (B, U, I, L, S):
        for s in (2, True, 2.5):
            k.call("masked_fill", torch.masked_fill, [x(dtype), x(B), s])
        k.call("masked_fill", torch.masked_fill, [x(dtype, ()), x(B, ()), 1])
        k.call("masked_fill", torch.masked_fill, [x(dtype, (0, 3)), x(B, (0, 3)), 1])
    for s, t in ((1, 3), (0.5, 2.5), (True, True)):
        k.of("clamp", "clamp", torch.clamp, more=[s, t])
        k.of("clamp_min", "clamp_min", lambda x, s: torch.clamp(x, min=s), more=[s])
        k.of("clamp_max", "clamp_max", lambda x, s: torch.clamp(x, max=s), more=[s])
    k.of("elu", "elu", lambda x, alpha: F.elu(x, alpha), {"alpha": 0.5})
    k.of("leaky_relu", "leaky_relu", lambda x, slope: F.leaky_relu(x, slope), {"slope": 0.5})
    for to in ("bool", "uint8", "int32", "int64", "float32"):
        k.of("to_dtype", "cast", lambda x, dtype: x.to(getattr(torch, dtype)), {"dtype": to})


def reductions(k):
    both = {
        "sum": torch.sum,
        "prod": torch.prod,
        "mean": torch.mean,
        "max": torch.amax,
        "min": torch.amin,
        "any": torch.any,
        "all": torch.all,
    }
    some = ((2, 3), (0, 3), (3, 0))
    for row, f in both.items():
        whole = {"max": torch.max, "min": torch.min}.get(row, f)
        k.of(row, row, lambda x, keepdim: whole(x), {"keepdim": False})
        for keep in (False, True):
            for dim in (0, -1):
                k.of(
                    row,
                    row,
                    lambda x, dims, keepdim: f(x, dims[0] if row == "prod" else dims, keepdim),
                    {"dims": [dim], "keepdim": keep},
                    shapes=(*some, ()),
                )
    for row, f in (("argmax", torch.argmax), ("argmin", torch.argmin)):
        k.of(row, row, lambda x: f(x))
        for dim in (0, -1):
            k.of(
                row,
                row,
                lambda x, dim, keepdim: f(x, dim, keepdim),
                {"dim": dim, "keepdim": True},
                shapes=(*some, ()),
            )
    for row, f in (("var", torch.var), ("std", torch.std)):
        k.of(
            row,
            row,
            lambda x, dims, correction, keepdim: f(x, dims, correction=correction, keepdim=keepdim),
            {"dims": [0], "correction": 1.0, "keepdim": False},
            shapes=(*some, ()),
        )
        k.of(
            row,
            row,
            lambda x, correction, keepdim: f(x, correction=correction),
            {"correction": 0.0, "keepdim": False},
        )
    for p in ("0.0", "0.5", "1.0", "2.0", "3.0", "-1.0", "-2.0", "inf", "-inf"):
        k.of(
            "norm",
            "norm",
            lambda x, p, dims, keepdim: torch.linalg.vector_norm(x, float(p), dims, keepdim),
            {"p": p, "dims": [0], "keepdim": False},
            shapes=(*some, ()),
        )
    for dims in ([0], [-1]):
        k.of(
            "logsumexp",
            "logsumexp",
            lambda x, dims, keepdim: torch.logsumexp(x, dims, keepdim),
            {"dims": dims, "keepdim": False},
            shapes=(*some, ()),
        )
    k.of(
        "logsumexp",
        "logsumexp",
        lambda x, dims, keepdim: torch.logsumexp(x, dims, keepdim),
        {"dims": [0, 1], "keepdim": True},
        shapes=some,
    )
    for row, f, g in (
        ("max_initial", torch.amax, torch.maximum),
        ("min_initial", torch.amin, torch.minimum),
    ):

        def initial(x, s, dims, keepdim, f=f, g=g):
            s = torch.full((1,) * x.dim(), s, dtype=x.dtype)
            return f(
                torch.cat(
                    [s.expand([1 if d == dims[0] else n for d, n in enumerate(x.shape)]), x],
                    dims[0],
                ),
                dims,
                keepdim,
            )

        k.of(
            row,
            row,
            initial,
            {"dims": [0], "keepdim": False},
            shapes=some,
            types=(U, I, L, S),
            more=[1],
        )


def order(k):
    every = ((2, 3), (0, 3), (3, 0), ())
    for row, f in SCANS.items():
        for dim in (0, -1):
            k.of(row, row, f, {"dim": dim}, shapes=every)
        if row not in ("cumsum", "cumprod"):
            continue
        for exclusive, reverse in ((True, False), (False, True)):
            nothing = 0 if row == "cumsum" else 1

            def with_(x, dim, exclusive, reverse, f=f, nothing=nothing):
                if x.dim() == 0:
                    return with_(x.reshape(1), 0, exclusive, reverse).reshape(())
                if x.dtype in (B, U, I):
                    x = x.long()
                return (
                    x
                    if x.shape[dim] == 0
                    else edges.exclusive_of(f, nothing, x, dim, exclusive, reverse)
                )

            k.of(
                f"{row}_with",
                f"{row}_with",
                with_,
                {"dim": 0, "exclusive": exclusive, "reverse": reverse},
                shapes=every,
            )
    for descending in (False, True):
        a = {"dim": -1, "descending": descending}
        k.of(
            "sort",
            "sort",
            lambda x, dim, descending: torch.sort(x, stable=True, dim=dim, descending=descending),
            a,
            shapes=every,
        )
        k.of(
            "argsort",
            "argsort",
            lambda x, dim, descending: torch.argsort(
                x, stable=True, dim=dim, descending=descending
            ),
            a,
            shapes=every,
        )
        k.of(
            "sort_with_positions",
            "sort_with_positions",
            lambda x, dim, descending: torch.sort(x, stable=True, dim=dim, descending=descending),
            a,
            shapes=every,
        )
    first = lambda f: lambda x, dim: (f(x, dim)[0], first_of(x, f(x, dim)[0], dim))  # noqa: E731
    for row, f in (("max_with_positions", torch.max), ("min_with_positions", torch.min)):
        for dim in (0, -1):
            k.of(row, row, first(f), {"dim": dim}, shapes=every)
    for n in (0, 1, 2):
        k.of(
            "topk",
            "topk_values",
            lambda x, k, dim, largest: torch.topk(x, k, dim, largest)[0],
            {"k": n, "dim": -1, "largest": True},
            shapes=every,
        )
    for row, f in (("tril", torch.tril), ("triu", torch.triu)):
        k.of(row, row, f, {"diagonal": 0}, shapes=every)
    k.of(
        "roll",
        "roll",
        lambda x, shifts, dims: torch.roll(x, shifts, dims),
        {"shifts": [1], "dims": [0]},
        shapes=every,
    )
    k.of("flip", "flip", lambda x, dims: torch.flip(x, dims), {"dims": [0]}, shapes=every)
    for row, f in (("softmax", torch.softmax), ("log_softmax", torch.log_softmax)):
        k.of(row, row, f, {"dim": -1}, shapes=every)


def first_of(x, found, dim):
    """The first of equals, which PyTorch leaves open."""
    if x.dim() == 0:
        return torch.zeros((), dtype=L)
    return (x == found.unsqueeze(dim)).to(U).argmax(dim)


def shapes(k):
    every = ((2, 3), (0, 3), ())
    k.of("reshape", "reshape", lambda x, shape: x.reshape(shape), {"shape": [-1]}, shapes=every)
    k.of(
        "flatten",
        "flatten",
        lambda x, start, end: x.flatten(start, end),
        {"start": 0, "end": -1},
        shapes=every,
    )
    k.of(
        "transpose",
        "transpose",
        lambda x, dim0, dim1: x.transpose(dim0, dim1),
        {"dim0": 0, "dim1": -1},
        shapes=every,
    )
    k.of("t", "t", lambda x: x.t(), shapes=(*every, (3,), (2, 2, 2)))
    k.of("permute", "permute", lambda x, dims: x.permute(dims), {"dims": [1, 0]}, shapes=every)
    k.of("unsqueeze", "unsqueeze", lambda x, dim: x.unsqueeze(dim), {"dim": -1}, shapes=every)
    k.of("squeeze", "squeeze", lambda x, dim: x.squeeze(dim), {"dim": 0}, shapes=every)
    k.of("expand", "expand", lambda x, shape: x.expand(shape), {"shape": [2, -1, 3]}, shapes=every)
    k.of(
        "repeat", "repeat", lambda x, repeats: x.repeat(repeats), {"repeats": [2, 0]}, shapes=every
    )
    k.of(
        "repeat",
        "repeat",
        lambda x, repeats: x.repeat(repeats),
        {"repeats": [2, 1, 2]},
        shapes=every,
    )
    k.of(
        "narrow",
        "narrow",
        lambda x, dim, start, length: x.narrow(dim, start, length),
        {"dim": 0, "start": 0, "length": 0},
        shapes=every,
    )
    k.of("i", "i", lambda x, spans: x[0:1], {"spans": [[0, 1, 1]]}, shapes=every)
    k.of(
        "split",
        "split",
        lambda x, size, dim: x.split(size, dim),
        {"size": 2, "dim": 0},
        shapes=every,
    )
    k.of(
        "split_with_sizes",
        "split",
        lambda x, sizes, dim: x.split(sizes, dim),
        {"sizes": [0, 2], "dim": 0},
        shapes=every,
    )
    k.of(
        "chunk",
        "chunk",
        lambda x, chunks, dim: x.chunk(chunks, dim),
        {"chunks": 3, "dim": 0},
        shapes=every,
    )
    k.of(
        "cat",
        "cat",
        lambda *x, dim: torch.cat(x, dim),
        {"dim": 0},
        shapes=every,
        more=[lambda t, s: x(t, s, 1)],
    )
    k.of(
        "stack",
        "stack",
        lambda *x, dim: torch.stack(x, dim),
        {"dim": -1},
        shapes=every,
        more=[lambda t, s: x(t, s, 1)],
    )
    for s in (0, 1.5):
        k.of(
            "pad",
            "pad",
            lambda x, s, pad: F.pad(x, pad, value=s),
            {"pad": [1, 0]},
            shapes=every,
            more=[s],
        )
    for pad in (
        [1, 1],
        [-1, 1],
        [1, -2],
        [-2, 0],
        [2, -1],
        [-1, -1],
        [0, 3],
        [3, 0],
        [3, -1],
        [-2, 1],
        [-3, 1],
        [-2, 2],
    ):
        for mode in ("reflect", "replicate", "circular"):
            f = lambda x, pad, mode: padded(x, pad, mode)  # noqa: E731
            k.of(
                "pad_mode",
                "pad_mode",
                f,
                {"pad": pad, "mode": mode},
                shapes=((2, 3), (0, 3)) if pad != [1, 1] else ((2, 3), (0, 3), ()),
                types=(L, S),
            )
    for pad in ([1, -1, -1, 2], [-1, 1, 1, -1]):
        for mode in ("reflect", "replicate", "circular"):
            k.of(
                "pad_mode",
                "pad_mode",
                lambda x, pad, mode: padded(x, pad, mode),
                {"pad": pad, "mode": mode},
                shapes=((1, 1, 4, 3),),
                types=(L, S),
            )

    def assigned(x, s, ranges):
        y = x.clone()
        y[0:1] = s
        return y

    k.of(
        "slice_assign",
        "slice_assign",
        assigned,
        {"ranges": [[0, 1]]},
        shapes=((2, 3), (0, 3)),
        more=[lambda t, s: x(t, (3,))],
    )


def padded(x, pad, mode):
    n = x.shape[-1] if x.dim() else 0
    if mode == "circular" and max(pad) > n + min(pad[0], 0) + min(pad[1], 0):
        raise ValueError("PyTorch reads what is not there")
    return F.pad(x, pad, mode)


def picking(k):
    at = torch.tensor([[1, 0, 2], [0, 0, 1]])
    once = torch.tensor([[0, 1, 0]])
    for dtype in (B, U, I, L, S):
        k.row = "gather"
        for index in (
            at,
            at.int(),
            torch.zeros(0, 3, dtype=L),
            torch.zeros(2, 0, dtype=L),
            torch.zeros(0, dtype=L),
            torch.zeros(0, 5, 2, dtype=L),
            at.bool(),
            at.float(),
        ):
            k.call(
                "gather", lambda x, i, dim: torch.gather(x, dim, i), [x(dtype), index], {"dim": 1}
            )
        for base, index in (((), ()), ((), (1,)), ((3,), ()), ((), (0,))):
            k.call(
                "gather",
                lambda x, i, dim: torch.gather(x, dim, i),
                [x(dtype, base), torch.zeros(index, dtype=L)],
                {"dim": 0},
            )
        k.row = "index_select"
        for base, index in (
            ((2, 3), (2,)),
            ((2, 3), ()),
            ((2, 3), (0,)),
            ((), (1,)),
            ((), ()),
            ((0, 3), (0,)),
            ((2, 3), (1, 1)),
        ):
            k.call(
                "index_select",
                lambda x, i, dim: torch.index_select(x, dim, i),
                [x(dtype, base), torch.zeros(index, dtype=L)],
                {"dim": 0},
            )
        k.row = "take"
        for base, index in (
            ((2, 3), (2, 2)),
            ((2, 3), ()),
            ((2, 3), (0,)),
            ((), (2,)),
            ((0,), (0,)),
        ):
            k.call("take", torch.take, [x(dtype, base), torch.zeros(index, dtype=L)])
        k.row = "index"
        for base, index in (((2, 3), (2, 2)), ((2, 3), ()), ((2, 3), (0,)), ((0, 3), (0,))):
            k.call("index", lambda x, i: x[i], [x(dtype, base), torch.zeros(index, dtype=L)])
        k.row = "embedding"
        for index in (
            torch.tensor([1, 0]),
            torch.tensor(1),
            torch.zeros(0, dtype=L),
            torch.tensor([1], dtype=I),
        ):
            k.call("embedding", lambda t, i: F.embedding(i, t), [x(dtype), index])
        k.row = "index_copy"
        for base, index, source in (
            ((2, 3), (1,), (1, 3)),
            ((2, 3), (0,), (0, 3)),
            ((), (1,), ()),
            ((), (), ()),
            ((), (1,), (1,)),
            ((3,), (1,), (1,)),
            ((3,), (), ()),
            ((3,), (1,), ()),
            ((3,), (), (1,)),
            ((2, 3), (), (1, 3)),
            ((2, 3), (), (3,)),
        ):
            k.call(
                "index_copy",
                lambda x, i, s, dim: torch.index_copy(x, dim, i, s),
                [x(dtype, base), torch.zeros(index, dtype=L), x(dtype, source, 1)],
                {"dim": 0},
            )
        for row in ("scatter", "scatter_add"):
            k.row = row
            f = torch.scatter if row == "scatter" else torch.scatter_add
            for base, index, source in (
                ((2, 3), once, (1, 3)),
                ((2, 3), torch.zeros(0, 3, dtype=L), (0, 3)),
                ((), torch.tensor(0), ()),
                ((), torch.tensor([0]), (1,)),
                ((3,), torch.tensor([1]), (1,)),
                ((2, 3), torch.zeros(0, dtype=L), (2, 3)),
            ):
                k.call(
                    row,
                    lambda x, i, s, dim, f=f: f(x, dim, i, s),
                    [x(dtype, base), index, x(dtype, source, 1)],
                    {"dim": 0},
                )
        k.row = "scatter_reduce"
        for mode in ("prod", "amax", "amin"):
            for base, index, source in (
                ((2, 3), torch.tensor([[0, 1, 0], [0, 1, 1]]), (2, 3)),
                ((2, 3), torch.zeros(0, 3, dtype=L), (0, 3)),
                ((), torch.tensor(0), ()),
                ((), torch.tensor([0]), (1,)),
                ((3,), torch.tensor([1]), (1,)),
            ):
                k.call(
                    "scatter_reduce",
                    scatter,
                    [x(dtype, base), index, x(dtype, source, 1)],
                    {"dim": 0, "reduce": mode},
                )
    k.row = "one_hot"
    for index in (
        torch.tensor([1, 0]),
        torch.tensor(1),
        torch.zeros(0, dtype=L),
        torch.zeros(0, 2, dtype=L),
        torch.tensor([True]),
    ):
        k.call(
            "one_hot", lambda x, num_classes: F.one_hot(x, num_classes), [index], {"num_classes": 3}
        )


def make():
    k = Calls()
    for part in (elementwise, reductions, order, shapes, picking, *dtypes_layers.PARTS,
                 vocabulary.on_types):
        part(k)
    k.g.write()


if __name__ == "__main__":
    make()
