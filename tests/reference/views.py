"""Views, joins, assignment into a window, `nonzero`, copies that repeat, cut or pad, and creation.
Slices and diagonals are NumPy's."""

import numpy as np
import torch

import store
from elementwise import edges, noise, strided
from store import DTYPES, FLOATS, In, dtype_name, numeric, value

F = torch.nn.functional

NAMED = {dtype_name(dtype): dtype for dtype in DTYPES}
VIEWS = {
    "reshape": lambda x, shape: x.reshape(shape),
    "transpose": lambda x, dim0, dim1: x.transpose(dim0, dim1),
    "permute": lambda x, dims: x.permute(dims),
    "unsqueeze": lambda x, dim: x.unsqueeze(dim),
    "squeeze": lambda x, dim=None: x.squeeze() if dim is None else x.squeeze(dim),
    "expand": lambda x, shape: x.expand(shape),
    "narrow": lambda x, dim, start, length: x.narrow(dim, start, length),
}

CASES = [
    ("reshape", (2, 3), [[6], [3, 2], [-1], [1, -1, 2], [2, 3, 1, 1], [7], [-1, -1], [4, -1], []]),
    ("reshape", (), [[1], [1, 1], [], [-1], [2]]),
    ("reshape", (2, 0, 3), [[0], [3, 0], [0, 7], [1], [-1, 3], [-1, 0]]),
    ("reshape", (2, 3, 4), [[6, 4], [2, 12], [4, 3, 2], [2, -1, 2, 2]]),
    ("transpose", (2, 3), [[0, 1], [-1, 0], [1, 1], [0, 2]]),
    ("transpose", (2, 3, 4, 1), [[0, 2], [-1, -2], [-5, 0]]),
    ("transpose", (), [[0, 0], [0, -1]]),
    (
        "permute",
        (2, 3, 4),
        [[[2, 0, 1]], [[0, 1, 2]], [[-1, 0, 1]], [[0, 1]], [[0, 0, 1]], [[0, 1, 3]]],
    ),
    ("permute", (), [[[]]]),
    ("unsqueeze", (2, 3), [[0], [1], [2], [-1], [-3], [3], [-4]]),
    ("unsqueeze", (), [[0], [-1]]),
    ("squeeze", (1, 2, 1, 3, 1), [[], [0], [1], [2], [-1], [5]]),
    ("squeeze", (), [[], [0]]),
    ("squeeze", (0, 1), [[], [0], [1]]),
    ("expand", (3, 1), [[[3, 4]], [[2, 3, 4]], [[-1, 5]], [[3, 0]], [[2, 4]], [[4]], [[-1, 3, 1]]]),
    ("expand", (), [[[2, 2]], [[]]]),
    ("expand", (0, 1), [[[0, 3]], [[2, 0, 1]]]),
    (
        "narrow",
        (4, 5),
        [
            [0, 1, 2],
            [1, 0, 5],
            [-1, 2, 3],
            [0, 4, 0],
            [0, 3, 2],
            [0, -2, 2],
            [0, 5, 0],
            [2, 0, 1],
            [1, 0, -1],
        ],
    ),
]

NAMES = {
    "reshape": ["shape"], "transpose": ["dim0", "dim1"], "permute": ["dims"], "unsqueeze": ["dim"],
    "squeeze": ["dim"], "expand": ["shape"], "narrow": ["dim", "start", "length"],
}  # fmt: skip


def views_of(dtype):
    return [
        In(noise(dtype, (4, 6), "v"), ("transpose", 0, 1)),
        In(noise(dtype, (3, 4, 2), "v"), ("permute", [1, 2, 0])),
        In(noise(dtype, (3, 1), "v"), ("expand", [2, 3, 4])),
        In(noise(dtype, (5, 6), "v"), ("narrow", 1, 1, 4), ("narrow", 0, 1, 4)),
    ]


def assign(x, src, ranges):
    out = x.clone()
    out[tuple(slice(a, b) for a, b in ranges)] = src
    return out


def cat(*xs, dim=0):
    return torch.cat(xs, dim)


def make():
    g, grad = store.group("views"), store.group("grad_views")
    for op, shape, choices in CASES:
        for args in choices:
            if op == "reshape":
                args = [args]
            attrs = dict(zip(NAMES[op], args))
            for k, dtype in enumerate((torch.float32, torch.int64, torch.bool, torch.bfloat16)):
                if k == 0 or shape in ((2, 3), (2, 3, 4)):
                    numeric(
                        g,
                        op,
                        VIEWS[op],
                        [noise(dtype, shape, op)],
                        attrs,
                        grad=grad if k == 0 else None,
                    )
    for x in views_of(torch.float32):
        n = x.value().numel()
        for shape in ([n], [-1, 2], [2, -1], [n // 4, 2, 2], [2, 2, n // 4]):
            numeric(g, "reshape", VIEWS["reshape"], [x], {"shape": shape}, grad=grad)
        numeric(g, "transpose", VIEWS["transpose"], [x], {"dim0": 0, "dim1": -1}, grad=grad)
        numeric(g, "narrow", VIEWS["narrow"], [x], {"dim": 0, "start": 1, "length": 1}, grad=grad)
        numeric(g, "unsqueeze", VIEWS["unsqueeze"], [x], {"dim": 1}, grad=grad)
    joins(g, grad)
    for dtype in DTYPES:
        x = noise(dtype, (4, 5), "x")
        for ranges, shape in (
            ([[1, 3], [2, 4]], (2, 2)), ([[0, 4], [0, 5]], (4, 5)), ([[2, 3]], (1, 5)),
            ([[1, 3], [2, 4]], (2,)),
            ([[1, 3], [2, 4]], ()), ([[2, 2]], (0, 5)), ([[1, 3], [2, 4]], (3, 2)),
        ):  # fmt: skip
            if dtype in (torch.float32, torch.uint8) or shape == (2, 2):
                ins = [x, noise(dtype, shape, "src")]
                numeric(g, "slice_assign", assign, ins, {"ranges": ranges}, grad=grad)
        for y in (
            x,
            noise(dtype, (0, 3)),
            noise(dtype, (2, 3, 2), "z"),
            noise(dtype, (), "z"),
            torch.zeros(3).to(dtype),
        ):
            if dtype != torch.bool and y is not x and y.numel() > 1:
                y = y * (noise(torch.bool, y.shape, "nz")).to(dtype)
            numeric(g, "nonzero", torch.nonzero, [y], {})
    numeric(g, "nonzero", torch.nonzero, [edges(torch.float32)[:8]], {})
    for x in views_of(torch.int32):
        numeric(g, "nonzero", torch.nonzero, [x], {})
    ins = [
        In(noise(torch.float32, (5, 4), "x"), ("transpose", 0, 1)),
        In(noise(torch.float32, (2, 1), "s"), ("expand", [2, 3])),
    ]
    numeric(g, "slice_assign", assign, ins, {"ranges": [[1, 3], [1, 4]]}, grad=grad)
    creation(g)
    copies(g, grad)
    padding(g, grad)
    flattened(g, grad)
    diagonals(g, grad)
    slices(g, grad)


def joins(g, grad):
    for dtype in DTYPES:
        gr = grad if dtype == torch.float32 else None
        parts = [noise(dtype, (2, n, 3), "cat", n) for n in (1, 3, 0, 2)]
        numeric(g, "cat", cat, parts, {"dim": 1}, grad=gr)
        numeric(g, "cat", cat, parts[:1], {"dim": -2})
        numeric(g, "cat", cat, [noise(dtype, (2, 3), k) for k in range(3)], {"dim": 0}, grad=gr)
        for dim in (0, 1, -1):
            numeric(
                g,
                "stack",
                lambda *xs, dim: torch.stack(xs, dim),
                [noise(dtype, (2, 3), k) for k in range(2)],
                {"dim": dim},
                grad=gr,
            )
        other = noise(torch.float16, (1, 3), "o")
        numeric(g, "cat", cat, [noise(dtype, (2, 3)), other], {"dim": 0})
        numeric(g, "cat", cat, [noise(dtype, (2,)), noise(torch.int32, (3,))], {"dim": 0})
    stack = lambda *xs, dim: torch.stack(xs, dim)  # noqa: E731
    f32 = torch.float32
    for ins in (
        [In(noise(f32, (3, 2), 1), ("transpose", 0, 1)), noise(f32, (2, 3), 2)],
        [
            In(noise(f32, (2, 1), 3), ("expand", [2, 3])),
            In(noise(f32, (4, 5), 4), ("narrow", 0, 1, 2), ("narrow", 1, 1, 3)),
        ],
    ):
        for dim in (0, 1):
            numeric(g, "cat", cat, ins, {"dim": dim}, grad=grad)
            numeric(g, "stack", stack, ins, {"dim": dim}, grad=grad)
    numeric(g, "stack", stack, [noise(f32, (), 1), noise(f32, (), 2)], {"dim": 0}, grad=grad)
    numeric(g, "stack", stack, [noise(f32, (2, 0), 1)], {"dim": 2})
    for ins, dim in (
        ([(2, 3), (2, 4)], 0), ([(2, 3), (2,)], 0), ([(2, 3), (2, 3)], 2), ([(), ()], 0),
        ([(2, 3), (2, 3)], -3), ([(1, 2), (3, 1, 2)], 1),
    ):  # fmt: skip
        numeric(g, "cat", cat, [noise(f32, s, k) for k, s in enumerate(ins)], {"dim": dim})
    for ins, dim in (([(2, 3), (2, 4)], 0), ([(2, 3), (2, 3)], 3), ([(2, 3), (2, 3)], -4)):
        numeric(g, "stack", stack, [noise(f32, s, k) for k, s in enumerate(ins)], {"dim": dim})


def moved(g, gr, x):
    n = value(x).dim()
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


def copies(g, grad):
    for dtype in DTYPES:
        moved(g, grad if dtype == torch.float32 else None, noise(dtype, (4, 5), "ix"))
    for v in strided(torch.float32, "ix"):
        moved(g, grad, v)


def padding(g, grad):
    for dtype in FLOATS:
        x = noise(dtype, (2, 3, 4, 5), "pad")
        for mode, pad in (
            ("reflect", [2, 1]), ("reflect", [1, 2, 3, 0]), ("replicate", [3, 1]),
            ("replicate", [1, 7, 2, 0]),
            ("circular", [5, 0]), ("circular", [1, 2, 4, 3]), ("reflect", [5, 0]),
            ("circular", [6, 0]),
        ):  # fmt: skip
            if len(pad) == 2:
                y = x[0]
            else:
                y = x
            f = lambda x, pad, mode: F.pad(x, pad, mode)  # noqa: E731
            numeric(
                g,
                "pad_mode",
                f,
                [y],
                {"pad": pad, "mode": mode},
                grad=grad if dtype == torch.float32 else None,
            )


def flattened(g, grad):
    for dtype in (torch.float32, torch.float64, torch.int64, torch.bool):
        gr = grad if dtype == torch.float32 else None
        x = noise(dtype, (3, 4, 5), "pick")
        for a, b in ((0, -1), (1, 2), (0, 1), (2, 1), (1, 1)):
            numeric(
                g,
                "flatten",
                lambda x, start, end: torch.flatten(x, start, end),
                [x],
                {"start": a, "end": b},
                grad=gr,
            )
    numeric(
        g,
        "flatten",
        lambda x, start, end: torch.flatten(x, start, end),
        [torch.tensor(2.0)],
        {"start": 0, "end": -1},
    )


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
    [[None, None, -1]], [[4, 1, -1]], [[1, 4, -1]], [[-2, None, -2]], [[None, -3, -1]],
    [[9, -9, -3]], [[None, None, -9]], [[-9, 9, 2]],
    [[None, 2, None], [None, None, -2]], [1, [3, None, -1]], [[3, 0, -2], -1], [[0, 0, -1]],
    [[0, None, -1]], [[5, 5, 1], [-1, -4, -1]],
]  # fmt: skip


def slices(g, grad):
    x = noise(torch.float32, (5, 4), "sl")
    for spans in SPANS:
        index = tuple(slice(*s) if isinstance(s, list) else s for s in spans)
        g.case("i", [x], {"spans": spans}, [torch.from_numpy(x.numpy()[index].copy())])


def creation(g):
    for a in (
        (0, 5, 1),
        (5, 0, -2),
        (1, 10, 3),
        (0, 0, 1),
        (3, 3, -1),
        (0, 1, -1),
        (1, 0, 1),
        (0, 5, 0),
        (-7, 8, 5),
    ):
        numeric(g, "arange", torch.arange, list(a), {}, n=1, ulp=1)
    for a in (
        (0.0, 1.0, 0.3),
        (0.0, 1.0, 0.25),
        (1.0, -1.0, -0.1),
        (0.5, 0.5, 1.0),
        (0.0, 1.0, -0.5),
        (0.0, 1e6, 99999.5),
        (1, 2.5, 0.5),
    ):
        numeric(g, "arange", torch.arange, list(a), {}, n=1, ulp=1)
    for a, b, n in (
        (0.0, 1.0, 5),
        (-3.0, 4.0, 8),
        (1.0, 0.0, 3),
        (2.0, 2.0, 4),
        (0.0, 1.0, 1),
        (5.0, 7.0, 0),
        (-1e30, 1e30, 11),
        (0, 10, 6),
        (-0.1, 0.7, 1500),
    ):
        f = lambda a, b, steps: torch.linspace(a, b, steps)  # noqa: E731
        numeric(g, "linspace", f, [a, b], {"steps": n}, n=1, ulp=1)
    for dtype in (torch.float64, torch.int32, torch.uint8, torch.float16):
        t = {"dtype": dtype_name(dtype)}
        for a in ((0, 5, 1), (1, 10, 3), (0, 5, 0), (3, 3, 1)):
            f = lambda *a, dtype: torch.arange(*a, dtype=NAMED[dtype])  # noqa: E731
            numeric(g, "arange_dtype", f, list(a), t, n=1, ulp=1)
    for a, b, n in ((0.0, 0.3, 4), (-3.0, 4.0, 8), (0.0, 1.0, 1), (5.0, 7.0, 0)):
        f = lambda a, b, steps, dtype: torch.linspace(a, b, steps, dtype=NAMED[dtype])  # noqa: E731
        numeric(g, "linspace_dtype", f, [a, b], {"steps": n, "dtype": "float64"}, n=1, ulp=1)
    for n, m in ((3, 3), (2, 4), (4, 2), (0, 0), (1, 0), (0, 3)):
        numeric(g, "eye", lambda n, m: torch.eye(n, m), [], {"n": n, "m": m})
    for s in (7, 2.5, True, -0.0, float("nan"), float("inf"), -3, 2**40):
        for shape in ([2, 2], [], [0, 3]):
            numeric(g, "full", lambda s, shape: torch.full(shape, s), [s], {"shape": shape})
