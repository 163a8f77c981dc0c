"""First and second gradients where slopes are infinite or nothing: at zeros, infinities, NaN, the
very large and the very small (`slopes.py`). Products and layers are in `edges_layers.py`."""

import itertools

import torch

import edges_layers
import elementwise
import vocabulary
from slopes import ALL, F, FEW, INF, NAN, NUMBERS, case, pairs, rows
from store import Group


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
    "atanh": torch.atanh, "erf": torch.erf, "erfinv": torch.erfinv, "lgamma": torch.lgamma,
    "digamma": torch.digamma,
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
    # What is new has PyTorch's slopes where these do not overflow.
    tame = [-30.0, -1.0, -0.0, 0.0, 0.5, 1.0, 30.0]
    c, d = (x.contiguous() for x in torch.cartesian_prod(*[torch.tensor(tame)] * 2).T)
    for op, (f, _) in elementwise.BINARY.items():
        if op not in BINARY and op not in elementwise.FLAT:
            case(g, op, op, f, [c, d])
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


def make():
    g = Group("edges")
    for part in (table, reductions, running, picking, shapes, *edges_layers.PARTS,
                 vocabulary.at_edges):
        part(g)
    g.write()


if __name__ == "__main__":
    make()
