"""First and second gradients where slopes are infinite or nothing: at zeros, infinities, NaN, the
very large and the very small. What PyTorch gives in float32, and beside it what it gives in float64
for the same numbers, rounded once: either will do, since the two overflow at different places.

A case names the row of the README's table that it stands for (`row`). `second[i][j]` is the
gradient by operand `j` of the sum of the gradient by operand `i`, each element of it weighed as
`weights` says."""

import itertools

import torch

from store import FLOATS, Group, as_tuple

F = torch.nn.functional
INF, NAN = float("inf"), float("nan")
ALL = [
    0.0,
    -0.0,
    INF,
    -INF,
    NAN,
    1e30,
    -1e30,
    1e-30,
    -1e-30,
    1.0,
    -1.0,
    0.5,
    -2.5,
    3.0,
    20.0,
    1e-42,
]
FEW = [0.0, INF, -INF, NAN, 1e30, -1e-30, 1.0, -2.0]
NUMBERS = [0.0, 1.0, 2.0, 0.5, -1.5, -2.0, INF, NAN]


def weights(shape):
    n = torch.Size(shape).numel()
    return (
        (0.5 + (torch.arange(n, dtype=torch.float64) * 7 + 3) % 11 / 7)
        .to(torch.float32)
        .reshape(shape)
    )


def pairs(values):
    both = list(itertools.product(values, values))
    return torch.tensor([a for a, _ in both]), torch.tensor([b for _, b in both])


def rows(values, last=1.5):
    """Rows of three: every pair, and a plain number."""
    a, b = pairs(values)
    return torch.stack([a, b, torch.full_like(a, last)], 1)


def graph(f, ins, attrs, dtype, up, still):
    """The first gradients, and those of each of them, in a type; none of the operands that are
    `still`."""
    leaves, args = [], []
    for i, x in enumerate(ins):
        is_float = isinstance(x, torch.Tensor) and x.dtype in FLOATS
        if is_float and i in still:
            leaves.append(None)
            args.append(x.to(dtype))
            continue
        leaves.append(x.detach().to(dtype).requires_grad_() if is_float else None)
        args.append(leaves[-1] if is_float else x)
    given = [x for x in leaves if x is not None]
    out = as_tuple(f(*args, **attrs))[0]
    zeros = lambda x, like: torch.zeros_like(like) if x is None else x  # noqa: E731
    if not out.requires_grad:
        return out, None, None
    first = torch.autograd.grad(out, given, up.to(dtype), create_graph=True, allow_unused=True)
    first = [zeros(g, x) for g, x in zip(first, given)]
    second = []
    for g in first:
        if not g.requires_grad:
            second.append([torch.zeros_like(x) for x in given])
            continue
        of = torch.autograd.grad(
            g, given, weights(g.shape).to(dtype), retain_graph=True, allow_unused=True
        )
        second.append([zeros(h, x) for h, x in zip(of, given)])
    return out, first, second


def case(g, row, op, f, ins, attrs=None, still=()):
    attrs = attrs or {}
    with torch.no_grad():
        out = as_tuple(f(*ins, **attrs))[0]
    up = weights(out.shape)
    _, first, second = graph(f, ins, attrs, torch.float32, up, still)
    if first is None:
        raise ValueError(f"{row}: {op} has no gradient")
    _, wide, wide_second = graph(f, ins, attrs, torch.float64, up, still)
    # Zeros may be a kind of their own.
    # noqa: E731
    name = lambda t: g.tensor(
        torch.from_numpy(t.detach().numpy(force=True).copy()).to(torch.float32)
    )
    at = [
        i
        for i, x in enumerate(ins)
        if isinstance(x, torch.Tensor) and x.dtype in FLOATS and i not in still
    ]
    # noqa: E731
    place = lambda found: [name(found[at.index(i)]) if i in at else None for i in range(len(ins))]
    g.case(
        op, ins, attrs, (out,), "value", row=row, up=g.tensor(up), grad=place(first), gtol="ulp:64",
        wide=place(wide),
        second=[place(s) for s in second], wide_second=[place(s) for s in wide_second],
    )  # fmt: skip


def with_scalar(f):
    def g(a, b):
        t = a if isinstance(a, torch.Tensor) else b
        # noqa: E731
        one = lambda x: x if isinstance(x, torch.Tensor) else torch.tensor(x, dtype=t.dtype)
        return f(one(a), one(b))

    return g


UNARY = {
    "neg": torch.neg, "abs": torch.abs, "square": torch.square, "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt, "recip": torch.reciprocal,
    "sign": torch.sign, "exp": torch.exp, "exp2": torch.exp2, "expm1": torch.expm1,
    "log": torch.log, "log2": torch.log2, "log10": torch.log10, "log1p": torch.log1p,
    "sin": torch.sin, "cos": torch.cos, "tan": torch.tan, "asin": torch.asin, "acos": torch.acos,
    "atan": torch.atan,
    "sinh": torch.sinh, "cosh": torch.cosh, "asinh": torch.asinh, "acosh": torch.acosh,
    "atanh": torch.atanh, "erf": torch.erf,
    "floor": torch.floor, "ceil": torch.ceil, "round": torch.round, "trunc": torch.trunc,
    "relu": torch.relu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "softplus": F.softplus,
}  # fmt: skip
BINARY = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "pow": torch.pow,
    "maximum": torch.maximum, "minimum": torch.minimum,
    "atan2": torch.atan2, "fmod": torch.fmod, "remainder": torch.remainder,
    "floor_divide": lambda a, b: torch.div(a, b, rounding_mode="floor"), "trunc_divide": lambda a,
    b: torch.div(a, b, rounding_mode="trunc"),
}  # fmt: skip
# PyTorch has no such form with a number.
NUMBER = {"atan2": with_scalar(torch.atan2), "remainder": with_scalar(torch.remainder)}


def table(g):
    x = torch.tensor(ALL)
    for op, f in UNARY.items():
        case(g, op, op, f, [x])
    a, b = pairs(ALL)
    for op, f in BINARY.items():
        case(g, op, op, f, [a, b])
        for s in NUMBERS:
            plain = NUMBER.get(op, f)
            if (
                op == "div"
                or op == "mul"
                or op == "add"
                or op == "sub"
                or op == "pow"
                or "divide" in op
            ):
                case(g, op, op, plain, [x, s])
                case(g, op, op, with_scalar(f), [s, x])
            elif op in ("maximum", "minimum"):
                # What PyTorch calls by another name with a number.
                limit = {"maximum": "min", "minimum": "max"}[op]
                case(g, op, op, lambda x, s: torch.clamp(x, **{limit: s}), [x, s])  # noqa: B023
                case(g, op, op, lambda s, x: torch.clamp(x, **{limit: s}), [s, x])  # noqa: B023
            else:
                case(g, op, op, plain, [x, s])
                case(g, op, op, with_scalar(f), [s, x])
    # Quotients that lie a rounding beside a whole number.
    tenths = torch.tensor([1.0, 2.0, 3.0, 0.3, 0.7, -1.0, -0.6])
    for op in ("fmod", "remainder", "floor_divide", "trunc_divide"):
        case(g, op, op, BINARY[op], [tenths, torch.full_like(tenths, 0.1)])
        case(g, op, op, with_scalar(BINARY[op]), [1.0, torch.tensor([0.1, 0.2, -0.1, 0.3, 0.7])])
    mask = torch.arange(len(a)) % 3 == 0
    case(g, "where_cond", "where", torch.where, [mask, a, b])
    case(g, "masked_fill", "masked_fill", torch.masked_fill, [a, mask, 2.0])
    for low, high in ((-1.0, 1.0), (0.0, 0.5), (1.0, -1.0), (-INF, 1e30), (NAN, 1.0), (0.0, NAN)):
        case(g, "clamp", "clamp", torch.clamp, [x, low, high])
    for s in NUMBERS:
        case(g, "clamp_min", "clamp_min", lambda x, s: torch.clamp(x, min=s), [x, s])
        case(g, "clamp_max", "clamp_max", lambda x, s: torch.clamp(x, max=s), [x, s])
    case(g, "clamp_min", "clamp_min", lambda x, s: torch.clamp(x, min=s), [a, b])
    case(g, "clamp_max", "clamp_max", lambda x, s: torch.clamp(x, max=s), [a, b])
    three = torch.tensor(list(itertools.product([0.0, INF, NAN, 1.0, -2.0], repeat=3)))
    case(
        g,
        "clamp",
        "clamp",
        torch.clamp,
        [three[:, 0].contiguous(), three[:, 1].contiguous(), three[:, 2].contiguous()],
    )
    for alpha in (1.0, 0.3):
        case(g, "elu", "elu", lambda x, alpha: F.elu(x, alpha), [x], {"alpha": alpha})
        case(
            g,
            "leaky_relu",
            "leaky_relu",
            lambda x, slope: F.leaky_relu(x, slope),
            [x],
            {"slope": alpha / 10},
        )
    for to in ("float64", "float16", "float32"):
        case(
            g,
            "to_dtype",
            "cast",
            lambda x, dtype: x.to(getattr(torch, dtype)),
            [torch.tensor([0.0, -0.0, INF, -INF, NAN, 1.0, -2.5])],
            {"dtype": to},
        )


def reductions(g):
    x = rows(FEW)
    plain = {"sum": torch.sum, "mean": torch.mean, "max": torch.amax, "min": torch.amin}
    for op, f in plain.items():
        case(
            g,
            op,
            op,
            lambda x, dims, keepdim, f=f: f(x, dim=dims, keepdim=keepdim),
            [x],
            {"dims": [1], "keepdim": False},
        )
    for op, f in (("max", torch.maximum), ("min", torch.minimum)):
        # noqa: E731
        initial = lambda x, s, dims, keepdim, f=f, op=op: f(
            plain[op](x, dim=dims, keepdim=keepdim), torch.tensor(s, dtype=x.dtype)
        )
        for s in (0.0, 1.5):
            case(
                g,
                f"{op}_initial",
                f"{op}_initial",
                initial,
                [x, s],
                {"dims": [1], "keepdim": False},
            )
    finite = rows([0.0, 1.0, -2.0, 1e-30, 3.0])
    for y in (x, finite, rows([0.0, 2.0], 0.0)):
        case(
            g,
            "prod",
            "prod",
            lambda x, dims, keepdim: exact_prod(x, dims[0], keepdim),
            [y],
            {"dims": [1], "keepdim": False},
        )
    case(
        g,
        "prod",
        "prod",
        lambda x, dims, keepdim: exact_prod(exact_prod(x, 2), 0),
        [many()],
        {"dims": [0, 2], "keepdim": False},
    )
    for values in ([0.0, 2.0, 3.0], [2.0, 0.0, 3.0], [0.0, 0.0], [0.0, 0.0, 0.0, 2.0]):
        case(
            g,
            "prod",
            "prod",
            lambda x, keepdim: exact_prod(x, 0),
            [torch.tensor(values)],
            {"keepdim": False},
        )
    for op, f in (("var", torch.var), ("std", torch.std)):
        for y in (
            x,
            torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0], [1e-30, 0.0, 0.0], [3.0, 1.0, 2.0]]),
        ):
            case(
                g,
                op,
                op,
                lambda x, dims, correction, keepdim, f=f: f(
                    x, dim=dims, correction=correction, keepdim=keepdim
                ),
                [y],
                {"dims": [1], "correction": 1.0, "keepdim": False},
            )
    for p in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, -1.0, -0.5, -2.0, INF, -INF):
        for y in (
            x,
            torch.tensor(
                [
                    [0.0, 0.0, 0.0],
                    [0.0, 2.0, -1.0],
                    [0.0, 0.0, 3.0],
                    [1.0, 1.0, -1.0],
                    [1e-30, 2.0, 0.0],
                ]
            ),
        ):
            # noqa: E731
            f = lambda x, p, dims, keepdim: torch.linalg.vector_norm(x, float(p), dims, keepdim)
            case(g, "norm", "norm", f, [y], {"p": repr(p), "dims": [1], "keepdim": False})
    case(
        g,
        "logsumexp",
        "logsumexp",
        lambda x, dims, keepdim: torch.logsumexp(x, dims, keepdim),
        [x],
        {"dims": [1], "keepdim": False},
    )
    case(
        g,
        "logsumexp",
        "logsumexp",
        lambda x, dims, keepdim: torch.logsumexp(x, dims, keepdim),
        [torch.tensor([[-INF, -INF], [INF, INF]])],
        {"dims": [0, 1], "keepdim": True},
    )


def many():
    """Rows with no zero, one, two and more; in two dimensions."""
    x = torch.tensor(
        [1.5, 0.0, -2.0, 0.0, 3.0, 0.5, 0.0, 0.0, 1.0, 2.0, -1.0, 4.0, 0.25, 1e-3, 0.0, 7.0]
    )
    return torch.cat([x, x.flip(0), x.roll(3)]).reshape(4, 3, 4)


def product(parts, like):
    """Of tensors, one by one: PyTorch's own rules for products are not right twice where there are
    zeros."""
    out = torch.ones_like(like)
    for part in parts:
        out = out * part
    return out


def exact_prod(x, dim, keepdim=False):
    parts = [p.squeeze(dim) for p in x.split(1, dim)]
    out = product(parts, parts[0])
    return out.unsqueeze(dim) if keepdim else out


def exact_cumprod(x, dim):
    out, sofar = [], None
    for part in x.split(1, dim):
        sofar = part if sofar is None else sofar * part
        out.append(sofar)
    return torch.cat(out, dim)


def exact_scatter_prod(x, index, source, dim, reduce):
    out = list(x.unbind(0))
    assert dim == 0 and reduce == "prod"
    columns = [list(row.unbind(0)) for row in out]
    for i in range(index.shape[0]):
        for j in range(index.shape[1]):
            at = int(index[i, j])
            columns[at][j] = columns[at][j] * source[i, j]
    return torch.stack([torch.stack(row) for row in columns])


def running(g):
    x = rows(FEW)
    for y in (
        x,
        rows([0.0, 1.0, -2.0, 1e-30, 3.0]),
        torch.cat([rows([0.0, 2.0]), rows([0.0, 3.0], 0.0)], 1),
    ):
        case(g, "cumprod", "cumprod", lambda x, dim: exact_cumprod(x, dim), [y], {"dim": 1})
        # noqa: E731
        turned = lambda x, dim, exclusive, reverse: exclusive_of(
            exact_cumprod, 1.0, x, dim, exclusive, reverse
        )
        case(
            g,
            "cumprod_with",
            "cumprod_with",
            turned,
            [y],
            {"dim": 1, "exclusive": True, "reverse": True},
        )
    case(g, "cumprod", "cumprod", lambda x, dim: exact_cumprod(x, dim), [many()], {"dim": 0})
    case(g, "cumsum", "cumsum", torch.cumsum, [x], {"dim": 1})
    # noqa: E731
    turned = lambda x, dim, exclusive, reverse: exclusive_of(
        torch.cumsum, 0.0, x, dim, exclusive, reverse
    )
    case(
        g, "cumsum_with", "cumsum_with", turned, [x], {"dim": 1, "exclusive": True, "reverse": True}
    )
    case(
        g,
        "sort",
        "sort",
        lambda x, dim, descending: torch.sort(x, stable=True, dim=dim, descending=descending)[0],
        [x],
        {"dim": 1, "descending": True},
    )
    case(
        g,
        "topk",
        "topk_values",
        lambda x, k, dim, largest: torch.topk(x, k, dim, largest)[0],
        [rows([INF, NAN, -3.0, 1e30], 0.5)[[1, 2, 3, 4, 6, 7, 8, 9, 11]]],
        {"k": 2, "dim": 1, "largest": True},
    )
    for op, f in (("softmax", torch.softmax), ("log_softmax", torch.log_softmax)):
        case(g, op, op, f, [x], {"dim": 1})
    case(g, "tril", "tril", torch.tril, [x[:4]], {"diagonal": 0})
    case(g, "triu", "triu", torch.triu, [x[:4]], {"diagonal": 0})
    case(
        g,
        "roll",
        "roll",
        lambda x, shifts, dims: torch.roll(x, shifts, dims),
        [x],
        {"shifts": [1], "dims": [0]},
    )
    case(g, "flip", "flip", lambda x, dims: torch.flip(x, dims), [x], {"dims": [0]})


def exclusive_of(run, nothing, x, dim, exclusive, reverse):
    y = x.flip(dim) if reverse else x
    if exclusive:
        first = torch.full_like(y.narrow(dim, 0, 1), nothing)
        y = torch.cat([first, y.narrow(dim, 0, y.shape[dim] - 1)], dim)
    y = run(y, dim)
    return y.flip(dim) if reverse else y


def picking(g):
    x = rows(FEW)[:24].contiguous()
    index = torch.tensor([[0, 2, 2], [1, 1, 0], [2, 0, 1], [0, 0, 0]])
    case(
        g, "gather", "gather", lambda x, i, dim: torch.gather(x, dim, i), [x[:4], index], {"dim": 1}
    )
    case(
        g,
        "index_select",
        "index_select",
        lambda x, i, dim: torch.index_select(x, dim, i),
        [x, torch.tensor([5, 5, 0])],
        {"dim": 0},
    )
    case(g, "take", "take", torch.take, [x, torch.tensor([7, 7, 2])])
    case(
        g,
        "index",
        "index",
        lambda x, *i: x[tuple(i)],
        [x, torch.tensor([3, 3, 1]), torch.tensor([0, 0, 2])],
    )
    case(g, "embedding", "embedding", lambda t, i: F.embedding(i, t), [x, torch.tensor([4, 4, 1])])
    source = torch.tensor(FEW + FEW[:4]).reshape(4, 3)
    base = torch.tensor([1.0, 0.0, INF, 2.0, NAN, -1.0, 0.0, 3.0, 1.0]).reshape(3, 3)
    case(
        g,
        "scatter_add",
        "scatter_add",
        lambda x, i, s, dim: torch.scatter_add(x, dim, i, s),
        [base, index, source],
        {"dim": 0},
    )
    once = torch.tensor([[0, 2, 2], [1, 1, 0]])
    case(
        g,
        "scatter",
        "scatter",
        lambda x, i, s, dim: torch.scatter(x, dim, i, s),
        [base, once, source[:2]],
        {"dim": 0},
    )
    case(
        g,
        "index_copy",
        "index_copy",
        lambda x, i, s, dim: torch.index_copy(x, dim, i, s),
        [base, torch.tensor([2, 0]), source[:2]],
        {"dim": 0},
    )
    for mode in ("amax", "amin"):
        # noqa: E731
        f = lambda x, i, s, dim, reduce: torch.scatter_reduce(
            x, dim, i, s, reduce, include_self=True
        )
        case(
            g,
            "scatter_reduce",
            "scatter_reduce",
            f,
            [base, index, source],
            {"dim": 0, "reduce": mode},
        )
    finite = torch.tensor([[0.0, 2.0, 0.0], [3.0, 0.0, 1.0], [0.0, 0.0, -2.0], [0.5, 0.0, 4.0]])
    for base in (
        torch.tensor([[1.0, 0.0, 2.0], [0.0, 0.0, 3.0], [2.0, -1.0, 0.0]]),
        torch.ones(3, 3),
        torch.tensor([[1.0, 2.0, 2.0], [5.0, 0.0, 3.0], [2.0, -1.0, 4.0]]),
    ):
        for s in (finite, torch.zeros(4, 3), finite.roll(1, 1), finite + 0.5):
            case(
                g,
                "scatter_reduce",
                "scatter_reduce",
                exact_scatter_prod,
                [base, index, s],
                {"dim": 0, "reduce": "prod"},
            )


def shapes(g):
    x = torch.tensor(FEW[:6]).reshape(2, 3)
    y = torch.tensor(FEW[2:8]).reshape(2, 3)
    case(g, "reshape", "reshape", lambda x, shape: x.reshape(shape), [x], {"shape": [3, 2]})
    case(
        g,
        "flatten",
        "flatten",
        lambda x, start, end: x.flatten(start, end),
        [x],
        {"start": 0, "end": 1},
    )
    case(
        g,
        "transpose",
        "transpose",
        lambda x, dim0, dim1: x.transpose(dim0, dim1),
        [x],
        {"dim0": 0, "dim1": 1},
    )
    case(
        g,
        "t",
        "transpose",
        lambda x, dim0, dim1: x.transpose(dim0, dim1),
        [x],
        {"dim0": 1, "dim1": 0},
    )
    case(g, "permute", "permute", lambda x, dims: x.permute(dims), [x], {"dims": [1, 0]})
    case(g, "unsqueeze", "unsqueeze", lambda x, dim: x.unsqueeze(dim), [x], {"dim": 1})
    case(g, "squeeze", "squeeze", lambda x, dim: x.squeeze(dim), [x.reshape(2, 1, 3)], {"dim": 1})
    case(g, "expand", "expand", lambda x, shape: x.expand(shape), [x], {"shape": [2, 2, 3]})
    case(g, "repeat", "repeat", lambda x, repeats: x.repeat(repeats), [x], {"repeats": [2, 1]})
    case(
        g,
        "narrow",
        "narrow",
        lambda x, dim, start, length: x.narrow(dim, start, length),
        [x],
        {"dim": 1, "start": 1, "length": 2},
    )
    case(g, "i", "i", lambda x, spans: x[:, 0:3:2], [x], {"spans": [[None, None, 1], [0, 3, 2]]})
    case(g, "split", "split", lambda x, size, dim: x.split(size, dim), [x], {"size": 2, "dim": 1})
    case(
        g,
        "split_with_sizes",
        "split",
        lambda x, sizes, dim: x.split(sizes, dim),
        [x],
        {"sizes": [1, 2], "dim": 1},
    )
    case(
        g,
        "chunk",
        "chunk",
        lambda x, chunks, dim: x.chunk(chunks, dim),
        [x],
        {"chunks": 2, "dim": 1},
    )
    case(g, "cat", "cat", lambda *x, dim: torch.cat(x, dim), [x, y], {"dim": 1})
    case(g, "stack", "stack", lambda *x, dim: torch.stack(x, dim), [x, y], {"dim": 1})
    case(g, "pad", "pad", lambda x, s, pad: F.pad(x, pad, value=s), [x, INF], {"pad": [1, 2]})
    for mode in ("reflect", "replicate", "circular"):
        case(
            g,
            "pad_mode",
            "pad_mode",
            lambda x, pad, mode: F.pad(x, pad, mode),
            [x],
            {"pad": [2, 1], "mode": mode},
        )

    def assigned(x, s, ranges):
        y = x.clone()
        y[0:1, 1:3] = s
        return y

    case(
        g,
        "slice_assign",
        "slice_assign",
        assigned,
        [x, y[:1, :2].contiguous()],
        {"ranges": [[0, 1], [1, 3]]},
    )


def products(g):
    finite = torch.tensor([[0.0, 1e30, -1.0], [1e-30, 2.0, 0.0]])
    odd = torch.tensor([[0.0, INF, -1.0], [NAN, 2.0, 0.0]])
    w = torch.tensor([[1.0, 0.0], [-2.0, 1e-30], [0.0, 3.0]])
    for x in (finite, odd):
        case(g, "matmul", "matmul", torch.matmul, [x, w])
        case(g, "mm", "mm", torch.mm, [x, w])
        case(g, "linear", "linear", F.linear, [x, w.t().contiguous(), torch.tensor([0.0, INF])])
        case(g, "bmm", "bmm", torch.bmm, [x[None], w[None]])
        case(
            g,
            "addmm",
            "addmm",
            lambda c, a, b, beta, alpha: torch.addmm(c, a, b, beta=beta, alpha=alpha),
            [torch.tensor([1.0, INF]), x, w],
            {"beta": 0.5, "alpha": 2.0},
        )
        case(
            g,
            "einsum",
            "einsum",
            lambda a, b, equation: torch.einsum(equation, a, b),
            [x, w],
            {"equation": "ij,jk->ki"},
        )
        heads = lambda t: t.reshape(1, 1, *t.shape)  # noqa: E731
        attend = lambda q, k, v, is_causal, scale: math_attention(q, k, v, scale)  # noqa: E731
        case(
            g,
            "scaled_dot_product_attention",
            "scaled_dot_product_attention",
            attend,
            [heads(x), heads(w.t().contiguous()), heads(w.t().contiguous())],
            {"is_causal": False, "scale": 0.5},
        )
        turn = torch.tensor([[0.5, 1.0], [0.0, -1.0]]), torch.tensor([[0.5, 0.0], [1.0, 2.0]])
        case(
            g,
            "rope",
            "rope",
            lambda x, c, s, interleaved: rope(x, c, s),
            [torch.cat([x, x[:, :1]], 1), *turn],
            {"interleaved": False},
        )


def math_attention(q, k, v, scale):
    return torch.softmax(q @ k.transpose(-2, -1) * scale, -1) @ v


def rope(x, c, s):
    a, b = x.chunk(2, -1)
    return torch.cat([a * c - b * s, b * c + a * s], -1)


def windows(g):
    values = torch.tensor([0.0, INF, 1.0, NAN, 1e30, -2.0, 0.0, 3.0])
    for n in (1, 2, 3):
        size = {1: (8,), 2: (2, 4), 3: (2, 2, 2)}[n]
        for x in (values, torch.tensor([0.0, 1e30, 1e-30, -1.0, 2.0, 2.0, 0.0, -3.0])):
            x = x.reshape(1, 1, *size)
            w = torch.tensor([1.0, 0.0, -2.0, 0.5, 0.0, 3.0, 1.0, 0.0])[: 2**n].reshape(
                1, 1, *[2] * n
            )
            attrs = {"stride": [1] * n, "padding": [0] * n, "dilation": [1] * n, "groups": 1}
            conv = (F.conv1d, F.conv2d, F.conv3d)[n - 1]
            case(
                g,
                f"conv{n}d",
                f"conv{n}d",
                lambda x, w, conv=conv, **a: conv(x, w, None, **a),
                [x, w],
                attrs,
            )
            back = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[n - 1]
            case(
                g,
                f"conv_transpose{n}d",
                f"conv_transpose{n}d",
                lambda x, w, back=back, **a: back(x, w, None, **a),
                [x, w],
                attrs,
            )
            attrs = {"kernel_size": [2] * n, "stride": [1] * n, "padding": [0] * n}
            most = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[n - 1]
            full = lambda x, most=most, **a: most(x, **a, return_indices=True)  # noqa: E731
            for name in (f"max_pool{n}d", f"max_pool{n}d_with_positions"):
                case(g, name, f"max_pool{n}d_with_positions", full, [x], attrs)
            mean = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[n - 1]
            case(
                g,
                f"avg_pool{n}d",
                f"avg_pool{n}d",
                lambda x, mean=mean, **a: mean(x, **a),
                [x],
                attrs,
            )
    x = torch.tensor([0.0, INF, 1.0, NAN, 1e30, -2.0]).reshape(1, 1, 2, 3)
    for mode in ("nearest", "bilinear", "bicubic"):
        case(
            g,
            "interpolate",
            "interpolate",
            lambda x, size, mode: F.interpolate(x, size, mode=mode),
            [x],
            {"size": [3, 5], "mode": mode},
        )


def layers(g):
    x = torch.cat(
        [
            rows(FEW),
            torch.tensor([[0.0, 0.0, 0.0], [2.0, 2.0, 2.0], [1e-30, 0.0, 1e-30], [3.0, 1.0, -1.0]]),
        ]
    )
    w, b = torch.tensor([1.0, 0.0, -2.0]), torch.tensor([0.0, 1.0, 1e30])
    for eps in (1e-5, 0.0):
        a = {"eps": eps}
        case(
            g,
            "layer_norm",
            "layer_norm",
            lambda x, w, b, eps: F.layer_norm(x, [3], w, b, eps),
            [x, w, b],
            a,
        )
        case(
            g,
            "layer_norm_weighted",
            "layer_norm",
            lambda x, w, b, eps: F.layer_norm(x, [3], w, None, eps),
            [x, w, None],
            a,
        )
        case(
            g,
            "layer_norm_plain",
            "layer_norm",
            lambda x, w, b, eps, normalized_shape: F.layer_norm(x, [3], None, None, eps),
            [x, None, None],
            {**a, "normalized_shape": [3]},
        )
        case(g, "rms_norm", "rms_norm", lambda x, w, eps: F.rms_norm(x, [3], w, eps), [x, w], a)
        case(
            g,
            "rms_norm_plain",
            "rms_norm",
            lambda x, w, eps, normalized_shape: F.rms_norm(x, [3], None, eps),
            [x, None],
            {**a, "normalized_shape": [3]},
        )
    y = torch.tensor([[0.0, INF, 1.0, 1e30], [1.0, 2.0, 1.0, -2.0], [-3.0, NAN, 1.0, 1e-30]])
    mean, var = torch.tensor([0.0, 1.0, 1.0, 2.0]), torch.tensor([1.0, 2.0, 0.0, 3.0])
    w, b = torch.tensor([1.0, 0.0, -2.0, 1.0]), torch.tensor([0.0, 1.0, 1e30, -1.0])
    # noqa: E731
    norm = lambda x, m, v, w, b, eps, momentum, training: F.batch_norm(
        x, m.detach().clone(), v.detach().clone(), w, b, training, momentum, eps
    )
    for training, row in ((True, "batch_norm_train"), (False, "batch_norm")):
        case(
            g,
            row,
            "batch_norm",
            norm,
            [y, mean, var, w, b],
            {"eps": 1e-5, "momentum": 0.0, "training": training},
            still=(1, 2),
        )
    p, t = pairs(FEW)
    for reduction in ("mean", "none"):
        case(
            g,
            "mse_loss",
            "mse_loss",
            lambda a, b, reduction: F.mse_loss(a, b, reduction=reduction),
            [p, t],
            {"reduction": reduction},
        )
    z = rows(FEW)
    target = torch.arange(len(z)) % 3
    case(
        g,
        "cross_entropy",
        "cross_entropy",
        lambda x, t, reduction: F.cross_entropy(x, t, reduction=reduction),
        [z, target],
        {"reduction": "none"},
    )
    case(
        g,
        "cross_entropy",
        "cross_entropy",
        lambda x, t, reduction: F.cross_entropy(x, t, reduction=reduction),
        [z[8:9], target[8:9]],
        {"reduction": "mean"},
    )
    case(
        g,
        "nll_loss",
        "nll_loss",
        lambda x, t, reduction: F.nll_loss(x, t, reduction=reduction),
        [z, target],
        {"reduction": "none"},
    )
    case(
        g,
        "nll_loss",
        "nll_loss",
        lambda x, t, reduction: F.nll_loss(x, t, reduction=reduction),
        [z, target],
        {"reduction": "mean"},
    )
    case(
        g,
        "bce_with_logits",
        "bce_with_logits",
        lambda x, t, reduction: F.binary_cross_entropy_with_logits(x, t, reduction=reduction),
        [p, t],
        {"reduction": "none"},
    )


def make():
    g = Group("edges")
    for part in (table, reductions, running, picking, shapes, products, windows, layers):
        part(g)
    g.write()


if __name__ == "__main__":
    make()
