"""Types that are only stored: conversions from and to all types, and what moves elements.

A number that its new type cannot hold is left out where PyTorch leaves its result to the machine
(floats beyond 32 bits as narrower integers, NaN and infinity as integers). Where PyTorch has no
kernel that moves elements of a type, one of the same size moves them."""

import torch

import store
from store import DTYPES, FLOATS, NAMES, STORAGE, In, dtype_name, random

FLOAT8 = STORAGE[5:]
# A type with the same size, whose kernels are complete.
SAME_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def integers(dtype):
    i = torch.iinfo(dtype)
    near = [0, 1, 2, 3, 5, 63, 64, 100, 127, 128, 255, 256, 257, 300, 32767, 32768, 65535, 65536]
    near += [2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40 + 7, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1]
    near += [-n for n in near]
    return torch.tensor([n for n in near if i.min <= n <= i.max], dtype=dtype)


def floats(dtype):
    """All of eight bits, and of others what is near those: the numbers themselves, the middle
    between two, and both sides of it."""
    if dtype in FLOAT8:
        return torch.arange(256).to(torch.uint8).view(dtype)
    near = torch.tensor([0.0, -0.0, 1e-45, -1e-30, 1e30, -1e38, float("inf"), float("-inf"),
        float("nan"), 0.1, -0.7, 2.5, 3.5, 447.0, 449.0, 464.0, 465.0, 480.0, 481.0, 57344.0,
        61439.0, 61440.0, 65535.0, 65536.0, 1e5])  # fmt: skip
    for t in FLOAT8:
        x = torch.arange(256).to(torch.uint8).view(t).float()
        x = x[x.isfinite()].sort().values
        middle = (x[1:] + x[:-1]) / 2
        near = torch.cat([near, x, middle, middle * (1 + 2**-20), middle * (1 - 2**-20)])
    return near.to(dtype)


def values(dtype, to):
    if dtype == torch.bool:
        return torch.tensor([True, False])
    if dtype not in FLOATS and dtype not in FLOAT8:
        x = integers(dtype)
        # Floats of 16 and of 8 bits are rounded once here, and twice in PyTorch.
        twice = to in FLOAT8 or to in (torch.float16, torch.bfloat16)
        return x[x.double().abs() < 2**24] if twice else x
    x = floats(dtype)
    if to in FLOATS or to in FLOAT8 or to == torch.bool:
        return x
    low, high = {
        torch.int64: (-(2.0**63), 2.0**62),
        torch.uint64: (-(2.0**62), 1.8e19),
        torch.uint32: (-(2.0**31), 2.0**62),
    }.get(to, (-(2.0**31), 2.0**30))
    x = torch.cat([x.double(), torch.tensor([3e9, -3e9, 7e4, -7e4, 2.0**31, 1e19, -1.5, 129.7])])
    x = x.to(dtype)
    return x[(x.double() >= low) & (x.double() <= high)]


def some(dtype, shape):
    x = values(dtype, torch.float64).view(SAME_SIZE[dtype.itemsize])
    return x.flip(0)[: torch.Size(shape).numel()].reshape(shape).view(dtype)


def conversions(g):
    for a in STORAGE:
        for b in DTYPES + STORAGE:
            for x, to in ((a, b), (b, a)) if b not in STORAGE else ((a, b),):
                if x != to:
                    x = values(x, to)
                    g.case("cast", [x], {"dtype": dtype_name(to)}, [x.to(to)], "bits")
        x = some(a, (2, 3))
        for view in (In(x, ("transpose", 0, 1)), In(x, ("narrow", 1, 1, 2))):
            to = torch.float32
            g.case("cast", [view], {"dtype": "float32"}, [view.value().to(to)], "bits")


def moves(g):
    def case(op, f, ins, attrs=None):
        seen = [x.value() if isinstance(x, In) else x for x in ins]
        same = SAME_SIZE[x.element_size()]
        out = f(*(y.view(same) if y.dtype == x.dtype else y for y in seen), **(attrs or {}))
        out = out if isinstance(out, (list, tuple)) else [out]
        g.case(op, ins, attrs, [y.contiguous().view(x.dtype) for y in out], "bits")

    index = torch.tensor([2, 0, 2, 2])
    positive = torch.tensor([2, 0, 1, 2])
    for dtype in STORAGE:
        x = some(dtype, (3, 4))
        y = torch.cat([x[2:], x[:2]])
        turned = In(x.t().contiguous(), ("transpose", 0, 1))
        for a in (x, turned):
            case("reshape", lambda x, shape: x.reshape(shape), [a], {"shape": [2, 6]})
            case("permute", lambda x, dims: x.permute(dims), [a], {"dims": [1, 0]})
            case("narrow", lambda x, dim, start, length: x.narrow(dim, start, length), [a],
                {"dim": 1, "start": 1, "length": 2})  # fmt: skip
            case("cat", lambda a, b, dim: torch.cat([a, b], dim), [a, y], {"dim": 1})
            case("stack", lambda a, b, dim: torch.stack([a, b], dim), [a, y], {"dim": 1})
            case("flip", lambda x, dims: x.flip(dims), [a], {"dims": [0, 1]})
            case("roll", lambda x, shifts, dims: x.roll(shifts, dims), [a],
                {"shifts": [1, -2], "dims": [0, 1]})  # fmt: skip
            case("tril", lambda x, diagonal: x.tril(diagonal), [a], {"diagonal": 0})
            case("repeat", lambda x, repeats: x.repeat(repeats), [a], {"repeats": [2, 1]})
            case("index_select", lambda x, i, dim: x.index_select(dim, i % 3), [a, index],
                {"dim": 0})  # fmt: skip
            case("gather", lambda x, i, dim: x.gather(dim, i), [a, positive.reshape(2, 2)],
                {"dim": 1})  # fmt: skip
            case("take", lambda x, i: x.take(i), [a, index])
            case("index", lambda x, i: x[i], [a, index])
            case("embedding", lambda x, i: x[i], [a, positive.reshape(2, 2)])
            mask = torch.tensor([[True, False, True, False]])
            case("where", lambda c, a, b: torch.where(c, a, b), [mask, a, y])
            case("scatter", lambda x, i, s, dim: x.scatter(dim, i, s),
                [a, torch.tensor([[1, 3], [0, 2]]), y], {"dim": 1})  # fmt: skip
            case("index_copy", lambda x, i, s, dim: x.index_copy(dim, i, s),
                [a, torch.tensor([2, 0, 1]), y], {"dim": 0})  # fmt: skip

            def assign(x, s, ranges):
                x = x.clone()
                x[tuple(slice(*r) for r in ranges)] = s
                return x

            case("slice_assign", assign, [a, y[1:, 2:]], {"ranges": [[1, 3], [0, 2]]})
            case("expand", lambda x, shape: x.expand(shape), [a], {"shape": [2, 3, 4]})
        case("unbind", lambda x, dim: x.unbind(dim), [x], {"dim": 0})
        case("index_select", lambda x, i, dim: x.index_select(dim, i), [x[:, :0], positive],
            {"dim": 0})  # fmt: skip


def gradients(g):
    """Gradients through 8-bit floats, which are rounded to them on their way."""

    def case(op, f, ins, attrs):
        leaves = [x.base if isinstance(x, In) else x for x in ins]
        leaves = [x.detach().requires_grad_() for x in leaves]
        seen = [In(y, *x.steps).value() if isinstance(x, In) else y for x, y in zip(ins, leaves)]
        out = f(*seen, **attrs)
        up = (torch.randn(out.shape, generator=random("up", op)) * 3).to(out.dtype)
        out.backward(up)
        g.case(op, ins, attrs, [out], "bits", up=g.tensor(up),
            grad=[g.tensor(x.grad) for x in leaves], gtol="bits")  # fmt: skip

    def cast(x, dtype):
        return x.to(dtype_of[dtype])

    dtype_of = {name: dtype for dtype, (_, name) in NAMES.items()}
    for dtype in FLOAT8:
        x = torch.randn((4, 3), generator=random("gradients"))
        for to in FLOATS:
            turned = In(x.to(dtype), ("transpose", 0, 1), ("narrow", 0, 1, 2))
            for a in (x.to(dtype), turned):
                case("cast", cast, [a], {"dtype": dtype_name(to)})
            case("cast", cast, [x.to(to)], {"dtype": dtype_name(dtype)})
        a, b = x[:2].to(dtype), x[2:].to(dtype)
        case("cat", lambda a, b, dim: torch.cat([a, b], dim), [a, b], {"dim": 0})
        case("reshape", lambda x, shape: x.reshape(shape), [a], {"shape": [3, 2]})
        case("narrow", lambda x, dim, start, length: x.narrow(dim, start, length), [a],
            {"dim": 1, "start": 1, "length": 1})  # fmt: skip


def make():
    g = store.group("storage")
    conversions(g)
    moves(g)
    gradients(g)
