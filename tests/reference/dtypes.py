"""Every op of the README's table on bool, integers, nothing and single numbers: PyTorch's element
type, shape and values, or that it refuses. What this crate decides otherwise is in `OTHERWISE`,
with the reason; those calls are left out."""

import torch

import edges
from index import scatter
from store import FLOATS, Group, as_tuple, refused

F = torch.nn.functional
B, U, I, L, S = torch.bool, torch.uint8, torch.int32, torch.int64, torch.float32


def has(*kinds):
    return lambda types, ins, attrs: bool(types & set(kinds))


def empty(types, ins, attrs):
    return any(isinstance(t, torch.Tensor) and t.numel() == 0 for t in ins)


def ints(types, ins, attrs):
    return not types <= set(FLOATS)


ALWAYS_FLOAT = [
    (
        ints,
        "PyTorch has no such kernel; integers and bool are computed in float32, as by "
        "other functions",
    )
]
FLOATS_ALONE = [
    (
        ints,
        "PyTorch multiplies integers where it has a kernel, and often only of nothing; "
        "floats alone are taken here",
    )
]
OF_NOTHING = [
    (
        lambda types, ins, attrs: empty(types, ins, attrs) and ints(types, ins, attrs),
        "PyTorch looks at the type only where there are elements",
    )
]
BOOL = [(has(B), "PyTorch has no such kernel, or one of nothing alone")]
PARTS = "PyTorch takes its channels to be there, and here a dimension is as good as another"
OTHERWISE = {
    **{row: ALWAYS_FLOAT for row in ("elu", "leaky_relu", "gelu", "gelu_tanh", "silu", "softplus")},
    **{f"{row}{n}d": FLOATS_ALONE for row in ("conv", "conv_transpose", "avg_pool") for n in (1, 2,
    3)},
    **{row: OF_NOTHING for row in ("softmax", "log_softmax", "batch_norm",
    "scaled_dot_product_attention")},
    "batch_norm_train": [(empty, "of no batch there is no mean, and averages would become NaN")],
    **{row: BOOL for row in ("sign", "square", "sub", "pow", "topk", "clamp", "clamp_min",
    "clamp_max", "matmul", "mm", "bmm", "addmm", "linear")},
    "any": [(has(U), "PyTorch's is uint8 then; here a truth value is bool")],
    "all": [(has(U), "PyTorch's is uint8 then; here a truth value is bool")],
    "where_cond": [(lambda types, ins, attrs: ins[0].dtype == U,
    "PyTorch says itself that it will be an error")],
    "pad_mode": [(empty, PARTS)],
    "interpolate": [(ints,
        "PyTorch's nearest is of uint8 alone, and so is its mean of integers; here places are of "
        "any type, and means of floats")],
    "einsum": [
        (lambda types, ins, attrs: attrs["equation"] in ("ij,kj->i",) and ints(types, ins, attrs),
        "PyTorch fails at its own type of a sum"),
        (lambda types, ins, attrs: attrs["equation"] == "i,j->i" and ints(types, ins, attrs),
        "PyTorch's type depends on whether a size is 1"),
    ],
}  # fmt: skip


def x(dtype, shape=(2, 3), start=0):
    n = torch.Size(shape).numel()
    y = (torch.arange(n) * 2 + start) % 5
    return (y % 2 == 0 if dtype == B else y).to(dtype).reshape(shape)


class Calls:
    def __init__(self):
        self.g, self.row = Group("dtypes"), None

    def call(self, op, f, ins, attrs=None, otherwise=False):
        attrs = attrs or {}
        types = {t.dtype for t in ins if isinstance(t, torch.Tensor)}
        if otherwise or any(rule(types, ins, attrs) for rule, _ in OTHERWISE.get(self.row, ())):
            return
        if refused(f, ins, attrs):
            self.g.case(op, ins, attrs, "error", row=self.row)
            return
        out = as_tuple(f(*ins, **attrs))
        wide = [t.double() if isinstance(t, torch.Tensor) and t.dtype in FLOATS else t for t in ins]
        if any(t.dtype in FLOATS for t in out) and not refused(f, wide, attrs):
            exact = as_tuple(f(*wide, **attrs))
            out = tuple(e.to(t.dtype) if t.dtype in FLOATS else t for e, t in zip(exact, out))
        self.g.case(op, ins, attrs, out, "near:16:4e-6", row=self.row)

    def of(
        self, row, op, f, attrs=None, shapes=((2, 3), (0, 3), ()), types=(B, U, I, L, S), more=()
    ):
        """The op on each type, and on nothing and a single number of some."""
        self.row = row
        for shape in shapes:
            for dtype in (
                types if len(shape) and 0 not in shape else [t for t in types if t in (B, L, S)]
            ):
                self.call(
                    op,
                    f,
                    [x(dtype, shape), *(m(dtype, shape) if callable(m) else m for m in more)],
                    attrs,
                )


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
    two = {
        "eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt,
        "ge": torch.ge, "logical_and": torch.logical_and,
        "logical_or": torch.logical_or, "logical_xor": torch.logical_xor,
        "bitwise_and": torch.bitwise_and, "bitwise_or": torch.bitwise_or,
        "bitwise_xor": torch.bitwise_xor,
    }  # fmt: skip
    # noqa: E731
    one = lambda dtype, shape: (
        x(dtype, shape, 1).clamp(min=1) if dtype != B else torch.ones(shape, dtype=B)
    )
    for row, f in {**edges.BINARY, **two}.items():
        k.of(row, row, f, more=[one])
        k.of(row, row, f, shapes=((2, 3), ()), more=[lambda _, shape: torch.ones(shape, dtype=L)])
        # PyTorch takes no number there, under this name.
        if row not in (
            "maximum",
            "minimum",
            "atan2",
            "remainder",
            "logical_and",
            "logical_or",
            "logical_xor",
        ):
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
    for row, f in (("cumsum", torch.cumsum), ("cumprod", torch.cumprod)):
        for dim in (0, -1):
            k.of(row, row, f, {"dim": dim}, shapes=every)
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


def products(k):
    for dtype in (B, U, I, L, S):
        for row, f, shapes_ in (
            (
                "matmul",
                torch.matmul,
                (
                    ((2, 3), (3, 2)),
                    ((2, 3), (3,)),
                    ((3,), (3,)),
                    ((3,), (3, 2)),
                    ((2, 0), (0, 3)),
                    ((0, 3), (3, 2)),
                    ((), (3,)),
                    ((2, 2, 3), (3, 2)),
                    ((0,), (0,)),
                ),
            ),
            (
                "mm",
                torch.mm,
                (((2, 3), (3, 2)), ((2, 0), (0, 3)), ((0, 3), (3, 2)), ((3,), (3, 2))),
            ),
            (
                "bmm",
                torch.bmm,
                (((2, 2, 3), (2, 3, 2)), ((0, 2, 3), (0, 3, 2)), ((1, 2, 0), (1, 0, 2))),
            ),
        ):
            k.row = row
            for a, b in shapes_:
                k.call(row, f, [x(dtype, a), x(dtype, b, 1)])
        k.row = "linear"
        for a, b in (((2, 3), (2, 3)), ((3,), (2, 3)), ((0, 3), (2, 3)), ((2, 0), (2, 0))):
            k.call("linear", F.linear, [x(dtype, a), x(dtype, b, 1), x(dtype, (2,))])
        k.row = "addmm"
        for c in ((2,), (2, 2), ()):
            k.call(
                "addmm",
                lambda c, a, b, beta, alpha: torch.addmm(c, a, b, beta=beta, alpha=alpha),
                [x(dtype, c), x(dtype), x(dtype, (3, 2))],
                {"beta": 1, "alpha": 2},
            )
        k.call(
            "addmm",
            lambda c, a, b, beta, alpha: torch.addmm(c, a, b, beta=beta, alpha=alpha),
            [x(dtype, (2,)), x(dtype, (2, 0)), x(dtype, (0, 2))],
            {"beta": 2, "alpha": 1},
        )
        k.row = "einsum"
        for equation, *of in (
            ("ij->i", (2, 3)), ("ij->", (2, 3)), ("ij->ji", (2, 3)), ("ii->i", (2, 2)),
            ("ii", (2, 2)), ("ij,jk->ik", (2, 3), (3, 2)), ("ij,ij->ij", (2, 3), (2, 3)),
            ("ij,ij->", (2, 3), (2, 3)), ("i,j->ij", (2,), (3,)), ("i,i->", (3,), (3,)),
            ("ij,kj->i", (2, 3), (2, 3)), ("ij,j->ij", (2, 3), (3,)),
            ("bij,bjk->bik", (2, 1, 3), (2, 3, 1)),
            ("i->", (0,)), (",->", (), ()), (",i->i", (), (3,)),
            ("ij,jk,kl->il", (2, 3), (3, 2), (2, 2)), ("ij,k->i", (2, 3), (2,)),
            ("i,j->i", (2,), (1,)), ("ij->i", (2, 1)),
        ):  # fmt: skip
            k.call(
                "einsum",
                lambda *x, equation: torch.einsum(equation, *x),
                [x(dtype, s, i) for i, s in enumerate(of)],
                {"equation": equation},
            )
        k.row = "scaled_dot_product_attention"
        for n in (3, 0):
            q, kv = x(dtype, (1, 2, 4)), x(dtype, (1, n, 4), 1)
            k.call(
                "scaled_dot_product_attention",
                lambda q, k, v, is_causal, scale: F.scaled_dot_product_attention(
                    q, k, v, is_causal=is_causal, scale=scale
                ),
                [q, kv, kv],
                {"is_causal": False, "scale": 0.5},
            )
        k.row = "rope"
        if dtype == S:
            k.call(
                "rope",
                lambda x, c, s, interleaved: edges.rope(x, c, s),
                [x(dtype, (2, 4)), x(dtype, (2, 2)), x(dtype, (2, 2), 1)],
                {"interleaved": False},
            )
            k.call(
                "rope",
                lambda x, c, s, interleaved: edges.rope(x, c, s),
                [x(dtype, (0, 4)), x(dtype, (0, 2)), x(dtype, (0, 2), 1)],
                {"interleaved": False},
            )


def windows(k):
    for n in (1, 2, 3):
        conv = (F.conv1d, F.conv2d, F.conv3d)[n - 1]
        back = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[n - 1]
        most = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[n - 1]
        mean = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[n - 1]
        for dtype in (B, U, I, L, S):
            a = {"stride": [1] * n, "padding": [0] * n, "dilation": [1] * n, "groups": 1}
            p = {"kernel_size": [2] * n, "stride": [1] * n, "padding": [0] * n}
            for lead in ((2, 1), (0, 1), (1,)):
                y, w = x(dtype, (*lead, *[3] * n)), x(dtype, (1, 1, *[2] * n))
                k.row = f"conv{n}d"
                k.call(k.row, lambda x, w, conv=conv, **a: conv(x, w, None, **a), [y, w], a)
                k.row = f"conv_transpose{n}d"
                k.call(k.row, lambda x, w, back=back, **a: back(x, w, None, **a), [y, w], a)
                f = lambda x, most=most, **p: most(x, **p, return_indices=True)  # noqa: E731
                for k.row in (f"max_pool{n}d", f"max_pool{n}d_with_positions"):
                    k.call(f"max_pool{n}d_with_positions", f, [y], p)
                k.row = f"avg_pool{n}d"
                k.call(k.row, lambda x, mean=mean, **p: mean(x, **p), [y], p)
            k.row = "interpolate"
            for lead in ((1, 2), (0, 2), (2,)):
                for mode in ("nearest", ("linear", "bilinear", "trilinear")[n - 1]):
                    k.call(
                        "interpolate",
                        lambda x, size, mode: F.interpolate(x, size, mode=mode),
                        [x(dtype, (*lead, *[3] * n))],
                        {"size": [5] * n, "mode": mode},
                    )
        # Padding behind that is less than the dilation and not less than the stride.
        k.row = f"conv_transpose{n}d"
        for stride, dilation, more, padding in (
            (1, 3, 1, 0),
            (1, 3, 2, 1),
            (2, 5, 3, 0),
            (2, 5, 4, 2),
            (1, 4, 3, 3),
            (2, 3, 2, 1),
        ):
            ins = [x(S, (2, 4, *[3] * n)) - 1.5, x(S, (4, 3, *[2] * n), 1) - 0.5, x(S, (6,))]
            a = {
                "stride": [stride] * n,
                "padding": [padding] * n,
                "output_padding": [more] * n,
                "dilation": [dilation] * n,
                "groups": 2,
            }
            k.call(k.row, back_of(back), ins, a)
            k.call(
                k.row,
                back_of(back),
                [ins[0][0], ins[1], None],
                {**a, "output_padding": [more, *[0] * (n - 1)]},
            )
    k.row = "interpolate"
    for n in (1, 2, 3, 7):
        for spatial in (1, 2, 3):
            for factor in (0.3, 0.55, 1.05, 1.3, 2.0, 2.05, 2.14, 2.49, 3.1):
                modes = (
                    "nearest",
                    "nearest-exact",
                    ("linear", "bilinear", "trilinear")[spatial - 1],
                    *(("bicubic",) if spatial == 2 else ()),
                )
                for mode in modes:
                    y = (
                        torch.arange(float(n))
                        .reshape(1, 1, n, *[1] * (spatial - 1))
                        .expand(1, 1, n, *[2] * (spatial - 1))
                        .contiguous()
                    )
                    # noqa: E731
                    f = lambda x, scale_factor, mode: F.interpolate(
                        x, scale_factor=scale_factor, mode=mode
                    )
                    k.call(
                        "interpolate",
                        f,
                        [y],
                        {"scale_factor": [factor] + [1.0] * (spatial - 1), "mode": mode},
                    )


def back_of(f):
    return lambda x, w, b, **a: f(x, w, b, **a)


def layers(k):
    for dtype in (B, U, I, L, S):
        w = x(dtype, (3,))
        for shape in ((2, 3), (0, 3), (3,)):
            a = {"eps": 1e-3}
            k.row = "layer_norm"
            k.call(
                k.row,
                lambda x, w, b, eps: F.layer_norm(x, [3], w, b, eps),
                [x(dtype, shape), w, w],
                a,
            )
            k.row = "layer_norm_weighted"
            k.call(
                "layer_norm",
                lambda x, w, b, eps: F.layer_norm(x, [3], w, b, eps),
                [x(dtype, shape), w, None],
                a,
            )
            k.row = "layer_norm_plain"
            k.call(
                "layer_norm",
                lambda x, w, b, eps, normalized_shape: F.layer_norm(x, [3], w, b, eps),
                [x(dtype, shape), None, None],
                {**a, "normalized_shape": [3]},
            )
            k.row = "rms_norm"
            k.call(k.row, lambda x, w, eps: F.rms_norm(x, [3], w, eps), [x(dtype, shape), w], a)
            k.row = "rms_norm_plain"
            k.call(
                "rms_norm",
                lambda x, w, eps, normalized_shape: F.rms_norm(x, [3], w, eps),
                [x(dtype, shape), None],
                {**a, "normalized_shape": [3]},
            )
        # noqa: E731
        norm = lambda x, m, v, w, b, eps, momentum, training: (
            F.batch_norm(x, m, v, w, b, training, momentum, eps),
            m,
            v,
        )
        for training, k.row in ((False, "batch_norm"), (True, "batch_norm_train")):
            for shape in ((2, 3), (0, 3)):
                k.call(
                    "batch_norm",
                    norm,
                    [x(dtype, shape), w.clone(), w.clone() + (dtype != B), None, None],
                    {"eps": 1e-3, "momentum": 0.0, "training": training},
                )
        target = torch.tensor([1, 0])
        for reduction in ("mean", "sum", "none"):
            a = {"reduction": reduction}
            k.row = "mse_loss"
            for shape in ((2, 3), (0, 3), ()):
                k.call(
                    k.row,
                    lambda a, b, reduction: F.mse_loss(a, b, reduction=reduction),
                    [x(dtype, shape), x(dtype, shape, 1)],
                    a,
                )
            k.row = "bce_with_logits"
            for shape in ((2, 3), (0, 3), ()):
                k.call(
                    k.row,
                    lambda a, b, reduction: F.binary_cross_entropy_with_logits(
                        a, b, reduction=reduction
                    ),
                    [x(dtype, shape), x(dtype, shape, 1)],
                    a,
                )
            for k.row, f in (("cross_entropy", F.cross_entropy), ("nll_loss", F.nll_loss)):
                loss = lambda x, t, reduction, f=f: f(x, t, reduction=reduction)  # noqa: E731
                k.call(k.row, loss, [x(dtype), target], a)
                k.call(k.row, loss, [x(dtype, (0, 3)), target[:0]], a)
                k.call(k.row, loss, [x(dtype, (3,)), torch.tensor(2)], a)
                k.call(k.row, loss, [x(dtype, (2, 3, 2)), torch.zeros(2, 2, dtype=L)], a)


def make():
    k = Calls()
    for part in (elementwise, reductions, order, shapes, picking, products, windows, layers):
        part(k)
    k.g.write()


if __name__ == "__main__":
    make()
