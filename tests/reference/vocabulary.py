"""Ops that are composed of others, each a row: how PyTorch calls it, and with what. A row's calls
make its values and gradients (in its family's group), its cases on every type (`dtypes.py`) and
its slopes at the edges (`edges.py`)."""

import torch

import dtypes_rules
import slopes
import store
from elementwise import indices, noise
from store import DTYPES, FLOATS, numeric

F = torch.nn.functional
SINGLE = (torch.float32, torch.float64)
L = torch.int64
# Types on which PyTorch's answer is held, where no other ones are named.
TYPES = (torch.bool, torch.uint8, torch.int32, L, torch.float32)


class Row:
    """Calls are functions of `n`, which makes an operand of a shape (and a number, so that two
    operands differ), and the other arguments."""

    def __init__(self, op, group, f, calls, values=DTYPES, types=TYPES, slopes=1, **tol):
        self.op, self.group, self.f, self.calls = op, group, f, calls
        self.values, self.types, self.slopes, self.tol = values, types, slopes, tol

    def make(self):
        g, grad = store.group(self.group), store.group(f"grad_{self.group}")
        for k, (ins, attrs) in enumerate(self.calls):
            for dtype in self.values:
                n = lambda shape, i=0: noise(dtype, shape, self.op, k, i)  # noqa: B023, E731
                gr = grad if dtype in SINGLE else None
                numeric(g, self.op, self.f, ins(n), attrs, grad=gr, **self.tol)

    def on_types(self, of):
        of.row = self.op
        for ins, attrs in self.calls:
            for dtype in self.types:
                n = lambda shape, i=0: dtypes_rules.x(dtype, shape, i)  # noqa: B023, E731
                of.call(self.op, self.f, ins(n), attrs)

    def at_edges(self, g):
        few = torch.tensor(slopes.FEW)
        for ins, attrs in self.calls[: self.slopes]:
            n = lambda shape, i=0: few[  # noqa: E731
                (torch.arange(torch.Size(shape).numel()) + 3 * i) % len(few)
            ].reshape(shape)
            slopes.case(g, self.op, self.op, self.f, ins(n), attrs)


def of(*shape, **attrs):
    """A call with one operand."""
    return (lambda n: [n(shape)], attrs)


def two(a, b, **attrs):
    return (lambda n: [n(a), n(b, 1)], attrs)


def three(a, b, c, **attrs):
    return (lambda n: [n(a), n(b, 1), n(c, 2)], attrs)


def at(a, index, source, **attrs):
    """A call with indices between a value and what comes to it."""
    return (lambda n: [n(a), index, n(source, 1)], attrs)


VIEWS = [
    Row("movedim", "views", torch.movedim, [
        of(2, 3, 4, source=[0], destination=[-1]), of(2, 3, 4, source=[0, 2], destination=[1, 0]),
        of(0, 3, source=[1], destination=[0]), of(3, source=[0, 0], destination=[0, 0]),
        of(2, 3, source=[2], destination=[0]), of(2, 3, source=[0, 1], destination=[0]),
    ]),
    Row("unflatten", "views", lambda x, dim, sizes: x.unflatten(dim, sizes), [
        of(2, 6, dim=1, sizes=[2, -1]), of(6, dim=0, sizes=[3, 2]), of(0, 4, dim=-1, sizes=[2, 2]),
        of(2, 6, dim=1, sizes=[4, -1]), of(2, 6, dim=1, sizes=[2, 2]), of(2, 6, dim=5, sizes=[6]),
    ]),
    Row("unfold_dim", "views", lambda x, dim, size, step: filled(x).unfold(dim, size, step), [
        of(2, 7, 3, dim=1, size=3, step=2), of(8, 2, dim=0, size=2, step=4),
        of(7, dim=-1, size=2, step=3), of(2, 6, dim=1, size=3, step=3),
        of(5, 2, dim=0, size=0, step=2), of(0, 3, dim=0, size=0, step=1),
        of(0, 3, dim=1, size=2, step=1), of(dim=0, size=1, step=1), of(dim=-1, size=0, step=2),
        of(4, dim=0, size=5, step=1), of(4, dim=0, size=2, step=0), of(4, dim=1, size=2, step=1),
        of(dim=0, size=2, step=1),
    ]),
    Row("unbind", "views", lambda x, dim: torch.unbind(x, dim), [
        of(3, 2, dim=0), of(2, 3, dim=-1), of(2, 0, dim=0), of(4, dim=0), of(3, dim=1),
    ]),
    Row("tile", "views", lambda x, dims: torch.tile(x, dims), [
        of(2, 3, dims=[2]), of(2, 3, dims=[2, 1, 2]), of(dims=[3]), of(0, 3, dims=[2, 2]),
        of(2, dims=[0]), of(2, 3, dims=[]),
    ]),
    Row("repeat_interleave", "views",
        lambda x, times, dim: torch.repeat_interleave(x, times, dim), [
        of(2, 3, times=2, dim=1), of(2, 3, times=3, dim=0), of(0, 3, times=2, dim=0),
        of(3, times=0, dim=0), of(2, 3, times=2, dim=2),
    ]),
    Row("meshgrid", "views", lambda *x: torch.meshgrid(*x, indexing="ij"), [
        two((2,), (3,)), three((2,), (), (3,)), two((0,), (3,)), two((2, 2), (3,)),
    ]),
    Row("diagonal", "views", torch.diagonal, [
        of(3, 4, offset=0, dim1=0, dim2=1), of(2, 3, 4, offset=1, dim1=2, dim2=0),
        of(4, 3, offset=-2, dim1=0, dim2=1), of(3, 4, offset=9, dim1=0, dim2=1),
        of(3, 4, offset=-9, dim1=0, dim2=1), of(0, 4, offset=0, dim1=0, dim2=1),
        of(2, 3, 3, offset=0, dim1=-2, dim2=-1), of(3, 4, offset=0, dim1=0, dim2=0),
        of(3, 4, offset=0, dim1=0, dim2=2),
    ]),
    Row("diag", "views", torch.diag, [
        of(3, diagonal=0), of(3, diagonal=1), of(2, diagonal=-2), of(3, 4, diagonal=1),
        of(4, 2, diagonal=-1), of(0, diagonal=0), of(0, diagonal=2), of(0, 3, diagonal=0),
        of(diagonal=0), of(2, 2, 2, diagonal=0),
    ], slopes=4),
    Row("trace", "views", torch.trace, [of(3, 4), of(4, 2), of(0, 3), of(3)],
        values=DTYPES[:7], types=TYPES[1:]),
]  # fmt: skip

def distances(a, b, p):
    if p == "0.0":  # a count: flat, and here off the tape
        a, b = a.detach(), b.detach()
    return torch.cdist(a, b, float(p))


PRODUCTS = [
    Row("dot", "matmul", torch.dot, [
        two((3,), (3,)), two((0,), (0,)), two((3,), (2,)), two((3, 1), (3,)),
    ], values=DTYPES[:7], types=TYPES[1:]),
    Row("outer", "matmul", torch.outer, [
        two((2,), (3,)), two((0,), (3,)), two((2, 1), (3,)),
    ]),
    Row("inner", "matmul", torch.inner, [
        two((2, 3), (2, 3)), two((2, 3), (3,)), two((3,), (2, 2, 3)), two((), (2, 3)),
        two((2, 0), (3, 0)), two((2, 3), (2,)),
    ], values=DTYPES[:7], types=TYPES[1:]),
    Row("addmv", "matmul",
        lambda x, a, b, beta, alpha: torch.addmv(x, a, b, beta=beta, alpha=alpha), [
        three((2,), (2, 3), (3,), beta=1, alpha=2), three((), (2, 3), (3,), beta=2, alpha=1),
        three((2,), (2, 0), (0,), beta=1, alpha=1),
        three((3,), (2, 3), (3,), beta=1, alpha=1), three((2,), (2, 3), (2,), beta=1, alpha=1),
    ], values=DTYPES[:7], types=TYPES[1:]),
    Row("baddbmm", "matmul",
        lambda x, a, b, beta, alpha: torch.baddbmm(x, a, b, beta=beta, alpha=alpha), [
        three((2, 2, 2), (2, 2, 3), (2, 3, 2), beta=1, alpha=2),
        three((2,), (2, 2, 3), (2, 3, 2), beta=2, alpha=1),
        three((2, 2, 2), (2, 2, 0), (2, 0, 2), beta=2, alpha=1),
        three((2, 2, 2), (1, 2, 3), (2, 3, 2), beta=1, alpha=1),
        three((3,), (2, 2, 3), (2, 3, 2), beta=1, alpha=1),
    ], values=DTYPES[:7], types=TYPES[1:]),
    Row("cosine_similarity", "matmul",
        lambda a, b, dim, eps: F.cosine_similarity(a, b, dim, eps), [
        two((2, 3), (2, 3), dim=1, eps=1e-8), two((2, 3, 2), (3, 2), dim=1, eps=1e-8),
        two((4,), (2, 4), dim=-1, eps=3.0), two((0, 3), (0, 3), dim=1, eps=1e-8),
        two((2, 3), (2, 2), dim=1, eps=1e-8),
    ], values=FLOATS, types=TYPES[4:], n=8, ulp=8, slopes=0),
    Row("cdist", "matmul", distances, [
        two((2, 3), (4, 3), p="2.0"), two((2, 2, 3), (2, 1, 3), p="1.0"),
        two((2, 3), (3, 3), p="3.0"),
        two((2, 1, 2, 3), (2, 3, 3), p="2.0"), two((2, 3), (2, 3), p="0.0"),
        two((2, 3), (2, 3), p="inf"), two((2, 0), (3, 0), p="2.0"), two((0, 3), (2, 3), p="2.0"),
        two((2, 3), (2, 2), p="2.0"), two((3,), (2, 3), p="2.0"),
        two((26, 3), (4, 3), p="2.0"), two((2, 3, 5), (2, 1, 28, 5), p="2.0"),
        *(two((2, 1, 2, 0), (2, 3, 0), p=p) for p in ("0.0", "1.0", "3.0", "inf")),
        two((26, 0), (4, 0), p="2.0"), two((0, 3), (2, 3), p="inf"),
        two((2, 0, 4), (3, 4), p="inf"),
    ], values=SINGLE, types=TYPES[4:], n=8, ulp=8, slopes=0),
]  # fmt: skip

ELEMENTWISE = [
    Row("lerp", "elementwise", torch.lerp, [
        three((2, 3), (2, 3), (2, 3)), three((2, 3), (3,), (2, 1)), three((), (), ()),
        three((0, 3), (0, 3), (0, 3)), (lambda n: [n((2, 3)), n((2, 3), 1), 0.3], {}),
        (lambda n: [n((3,)), n((3,), 1), 0.75], {}), (lambda n: [n((3,)), n((3,), 1), 1.0], {}),
    ], values=FLOATS, slopes=5),
    Row("nan_to_num", "elementwise",
        lambda x, nan, posinf, neginf: torch.nan_to_num(x, nan, posinf, neginf), [
        of(8, nan=None, posinf=None, neginf=None), of(8, nan=2.0, posinf=3.0, neginf=-4.0),
        of(nan=None, posinf=None, neginf=None), of(0, 2, nan=None, posinf=None, neginf=None),
        (lambda n: [torch.tensor(slopes.FEW).to(n((1,)).dtype)] if n((1,)).is_floating_point()
         else [n((8,))], {"nan": None, "posinf": None, "neginf": None}),
    ], slopes=2),
    Row("isclose", "elementwise",
        lambda a, b, rtol, atol, equal_nan: torch.isclose(a, b, rtol, atol, equal_nan), [
        (lambda n: [n((2, 3)), n((2, 3)) + 1e-3] if n((1,)).is_floating_point()
         else [n((2, 3)), n((2, 3), 1)], {"rtol": r, "atol": a, "equal_nan": e})
        for r, a, e in ((1e-2, 0.0, False), (1e-5, 1e-8, True), (0.0, 0.0, False),
                        (0.0, 2e-3, True))
    ] + [
        (lambda n: [torch.tensor(slopes.FEW), torch.tensor(slopes.FEW)],
         {"rtol": 1e-5, "atol": 1e-8, "equal_nan": e}) for e in (False, True)
    ] + [two((), (), rtol=0.5, atol=0.5, equal_nan=False),
         two((0, 3), (3,), rtol=0.5, atol=0.5, equal_nan=False),
         two((2,), (3,), rtol=0.5, atol=0.5, equal_nan=False)],
        values=(*SINGLE, torch.int32, L), types=(torch.int32, L, torch.float32),
        slopes=0),
    Row("allclose", "elementwise",
        lambda a, b, rtol, atol, equal_nan: torch.tensor(
            torch.allclose(a, b, rtol, atol, equal_nan)), [
        (lambda n: [n((2, 3)), n((2, 3))], {"rtol": 0.0, "atol": 0.0, "equal_nan": False}),
        two((2, 3), (2, 3), rtol=0.1, atol=0.5, equal_nan=False),
        two((0, 3), (3,), rtol=0.5, atol=0.5, equal_nan=False),
    ], values=(torch.float32, torch.float64, torch.int32, L), types=(torch.int32, L, torch.float32),
        slopes=0),
    Row("round_decimals", "elementwise",
        lambda x, decimals: torch.round(x, decimals=decimals), [
        of(2, 3, decimals=2), of(2, 3, decimals=0), of(2, 3, decimals=-1), of(decimals=1),
        of(0, 3, decimals=1),
    ], values=SINGLE, types=TYPES[4:], slopes=0),
    Row("softplus_with", "elementwise",
        lambda x, beta, threshold: F.softplus(x, beta, threshold), [
        of(2, 4, beta=2.0, threshold=3.0), of(2, 3, beta=0.5, threshold=20.0),
        of(2, 3, beta=-1.5, threshold=2.0), of(beta=1.0, threshold=20.0),
        of(0, 3, beta=2.0, threshold=20.0),
    ], values=FLOATS, types=TYPES[4:], slopes=2),
]  # fmt: skip


def first(f):
    return lambda *x, **a: f(*x, **a)[0]


ORDER = [
    # Where equals are PyTorch leaves open, so the values alone.
    Row("kthvalue", "order", first(torch.kthvalue), [
        of(2, 5, k=2, dim=1), of(4, 3, k=4, dim=0), of(2, 3, k=1, dim=-1), of(k=1, dim=0),
        of(0, 3, k=1, dim=1), of(2, 3, k=4, dim=1), of(2, 3, k=0, dim=1), of(2, 3, k=1, dim=2),
    ], values=DTYPES[:7], types=TYPES[1:]),
    Row("median", "order", first(torch.median), [
        of(2, 5, dim=1), of(4, 3, dim=0), of(2, 4, dim=-1), of(dim=0), of(0, 3, dim=1),
        of(2, 0, dim=1), of(2, 3, dim=2),
    ], values=DTYPES[:7], types=TYPES[1:]),
    Row("median_all", "order", torch.median, [of(2, 5), of(2, 3), of()],
        values=DTYPES[:7], types=TYPES[1:], slopes=0),
    Row("quantile", "order",
        lambda x, q, dim, interpolation: torch.quantile(x, q, dim, interpolation=interpolation), [
        of(2, 5, q=q, dim=1, interpolation=how)
        for how in ("linear", "lower", "higher", "midpoint", "nearest") for q in (0.3, 0.625)
    ] + [
        of(4, 3, q=0.5, dim=0, interpolation="linear"),
        of(4, 3, q=1.0, dim=0, interpolation="linear"),
        of(q=0.5, dim=0, interpolation="linear"), of(0, 3, q=0.5, dim=1, interpolation="linear"),
        of(2, 0, q=0.5, dim=1, interpolation="linear"),
        of(2, 3, q=1.5, dim=1, interpolation="linear"),
    ], values=SINGLE, types=TYPES[4:]),
]  # fmt: skip


def put(x, *args, accumulate):
    *index, values = args
    return torch.ops.aten.index_put(x, list(index), values, accumulate)


def reduced(x, index, source, dim, reduce, include_self):
    return torch.scatter_reduce(x, dim, index, source, reduce, include_self=include_self)


def sorted_rows(n, shape, dtype=None):
    return torch.sort(n(shape), -1)[0]


ROWS, COLUMNS = torch.tensor([2, 0]), torch.tensor([[0, 2, 2], [1, 1, 0], [2, 0, 1], [0, 0, 0]])
INDEX = [
    Row("index_add", "index",
        lambda x, i, s, dim, alpha: torch.index_add(x, dim, i, s, alpha=alpha), [
        at((4, 3), torch.tensor([2, 0, 2]), (3, 3), dim=0, alpha=1),
        at((2, 3), torch.tensor([0, 0]), (2, 2), dim=-1, alpha=2),
        at((4,), torch.tensor([], dtype=L), (0,), dim=0, alpha=1),
        at((), torch.tensor([0]), (1,), dim=0, alpha=1),
        at((3,), torch.tensor(1), (1,), dim=0, alpha=1),
        at((3,), torch.tensor([3]), (1,), dim=0, alpha=1),
        at((3,), torch.tensor([-1]), (1,), dim=0, alpha=1),
        at((3, 2), torch.tensor([0]), (2, 2), dim=0, alpha=1),
    ], values=DTYPES[:7], types=TYPES[1:], n=8),
    Row("index_fill", "index", lambda x, i, s, dim: torch.index_fill(x, dim, i, s), [
        (lambda n: [n((4, 3)), ROWS, 2], {"dim": 0}), (lambda n: [n((2, 3)), ROWS, 1], {"dim": -1}),
        (lambda n: [n((0, 3)), ROWS, 1], {"dim": 1}), (lambda n: [n(()), ROWS[1:], 1], {"dim": 0}),
        (lambda n: [n((2,)), ROWS, 1], {"dim": 0}),
        (lambda n: [n((4, 3)), torch.tensor([-1, 1]), 1], {"dim": 0}),
        (lambda n: [n((4, 3)), torch.tensor([-5, 1]), 1], {"dim": 0}),
    ]),
    Row("index_put", "index", put, [
        (lambda n, c=c, s=s: [n((4, 3)), *c, n(s, 1)], {"accumulate": a})
        for a in (True, False) for c, s in (
            ([ROWS], (2, 3)), ([ROWS, ROWS], (2,)), ([None, ROWS], (4, 2)), ([ROWS], ()),
            ([ROWS - 3], (3,)), ([ROWS + 3], (2, 3)), ([ROWS], (3, 3)),
        )
    ] + [
        (lambda n: [n((4, 3)), torch.tensor([1, 1, 0]), torch.tensor([2, 2, 2]), n((3,), 1)],
         {"accumulate": True}),
        (lambda n: [n((2, 4, 3)), ROWS // 2, None, ROWS, n((2, 4), 1)], {"accumulate": True}),
        (lambda n: [n((0, 3)), torch.zeros(0, dtype=L), n((0, 3), 1)], {"accumulate": True}),
    ], values=DTYPES[:7], types=TYPES[1:]),
    Row("scatter_reduce", "index", reduced, [
        at((3, 3), COLUMNS, (4, 3), dim=0, reduce=how, include_self=own)
        for how in ("mean", "sum", "prod", "amax", "amin") for own in (True, False)
        if how == "mean" or not own
    ] + [
        at((3, 3), COLUMNS[:0], (0, 3), dim=0, reduce="mean", include_self=False),
        at((), torch.tensor(0), (), dim=0, reduce="mean", include_self=True),
        at((3,), torch.tensor([3]), (1,), dim=0, reduce="mean", include_self=False),
    ], values=DTYPES[:7], types=TYPES[1:], n=8, slopes=0),
    Row("searchsorted", "index", lambda s, v, right: torch.searchsorted(s, v, right=right), [
        (lambda n, s=s, v=v: [sorted_rows(n, s), n(v, 1)], {"right": right})
        for right in (False, True)
        for s, v in (((7,), (2, 3)), ((2, 5), (2, 4)), ((8,), ()), ((0,), (3,)), ((5,), (0,)),
                     ((1,), (4,)), ((2, 5), (3, 4)))
    ] + [
        (lambda n: [n((9,)).sort()[0], n((9,))], {"right": True}),
        (lambda n: [n((9,)).sort()[0], n((9,))], {"right": False}),
    ], values=DTYPES[:7], types=TYPES[1:], slopes=0),
    Row("histc", "index", lambda x, bins, min, max: torch.histc(x.detach(), bins, min, max), [
        of(40, bins=7, min=-2.9, max=4.1), of(5, 8, bins=5, min=0.0, max=0.0),
        of(3, bins=4, min=1.0, max=1.0), of(bins=3, min=-9.0, max=9.0),
        of(0, bins=3, min=0.0, max=0.0),
        of(3, bins=0, min=0.0, max=1.0), of(3, bins=2, min=2.0, max=1.0),
    ], values=SINGLE, types=TYPES[4:], slopes=0),
    Row("masked_select", "index", torch.masked_select, [
        (lambda n, s=s, m=m: [n(s), noise(torch.bool, m, "m")], {})
        for s, m in (((4, 3), (4, 3)), ((4, 3), (3,)), ((3,), (2, 3)), ((), ()), ((0, 3), (3,)),
                     ((2, 3), (2, 2)))
    ] + [two((2, 3), (2, 3))]),
    Row("index_mask", "index", lambda x, m: x[m], [
        (lambda n, s=s, m=m: [n(s), noise(torch.bool, m, "k")], {})
        for s, m in (((4, 3), (4, 3)), ((4, 3), (4,)), ((2, 3, 2), (2, 3)), ((0, 3), (0,)),
                     ((2, 3), ()), ((2, 3), (3,)))
    ]),
    Row("unique", "index", lambda x: torch.unique(
        x.detach(), return_inverse=True, return_counts=True), [
        of(4, 6), of(9), of(), of(0, 3),
        (lambda n: [torch.tensor([3, 1, 3, 2, 1]).to(n(()).dtype)], {}),
    ], slopes=0),
    Row("bincount", "index", lambda x, w, length: torch.bincount(
        x, None if w is None else w.detach(), length), [
        (lambda n: [indices(6, (9,), "bin"), None], {"length": 0}),
        (lambda n: [indices(6, (9,), "bin").int(), None], {"length": 9}),
        (lambda n: [indices(6, (9,), "bin"), n((9,))], {"length": 0}),
        (lambda n: [indices(6, (0,), "bin"), None], {"length": 3}),
        (lambda n: [indices(6, (2, 2), "bin"), None], {"length": 3}),
        (lambda n: [indices(6, (9,), "bin") - 3, None], {"length": 3}),
        (lambda n: [indices(6, (9,), "bin"), n((8,))], {"length": 0}),
    ], values=(torch.float32, torch.float64, L), types=(L, torch.float32), slopes=0),
    Row("repeat_interleave_by", "index",
        lambda x, times, dim: torch.repeat_interleave(x, times, dim), [
        (lambda n: [n((3, 2)), torch.tensor([2, 0, 1])], {"dim": 0}),
        (lambda n: [n((2, 3)), torch.tensor([1, 3, 1])], {"dim": -1}),
        (lambda n: [n((2, 3)), torch.tensor([2])], {"dim": 0}),
        (lambda n: [n((0, 3)), torch.zeros(0, dtype=L)], {"dim": 0}),
        (lambda n: [n((2, 3)), torch.tensor([2, 1])], {"dim": 1}),
        (lambda n: [n((2,)), torch.tensor([2, -1])], {"dim": 0}),
    ]),
]  # fmt: skip
def how(**attrs):
    """A loss by each way to reduce it."""
    return [dict(attrs, reduction=r) for r in ("mean", "sum", "none")]


def share(x):
    """A distribution along the last dimension."""
    return torch.softmax(x.double(), -1).to(x.dtype)


def inside(x):
    """Between 0 and 1."""
    return torch.sigmoid(x.double() / 2).to(x.dtype)


def ctc(x, targets, steps, lengths, blank, zero_infinity, reduction):
    logs = torch.log_softmax(x, -1)
    return F.ctc_loss(logs, targets, steps, lengths, blank, reduction, zero_infinity)


TARGETS = torch.tensor([[1, 2, 2], [3, 1, 0], [2, 2, 2], [1, 1, 1]])
LOSSES = [
    Row("l1_loss", "nn", F.l1_loss, [
        (lambda n: [n((2, 3)), n((2, 3), 1)], a) for a in how()
    ] + [two((), (), reduction="mean"), two((0, 3), (0, 3), reduction="sum"),
         two((2, 3), (2, 3), reduction="none")], values=FLOATS, types=TYPES[4:]),
    Row("smooth_l1_loss", "nn", lambda x, t, beta, reduction: F.smooth_l1_loss(
        x, t, beta=beta, reduction=reduction), [
        (lambda n: [n((2, 3)), n((2, 3), 1)], a) for b in (1.0, 2.5, 0.0) for a in how(beta=b)
    ] + [two((), (), beta=1.0, reduction="mean"), two((0, 3), (0, 3), beta=1.0, reduction="sum")],
        values=FLOATS, types=TYPES[4:]),
    Row("huber_loss", "nn", lambda x, t, delta, reduction: F.huber_loss(
        x, t, delta=delta, reduction=reduction), [
        (lambda n: [n((2, 3)), n((2, 3), 1)], a) for d in (1.0, 2.5) for a in how(delta=d)
    ] + [two((), (), delta=1.0, reduction="mean"), two((0, 3), (0, 3), delta=1.0, reduction="sum")],
        values=FLOATS, types=TYPES[4:], slopes=0),
    Row("kl_div", "nn", lambda x, t, log_target, reduction: F.kl_div(
        x, t, reduction=reduction, log_target=log_target), [
        (lambda n: [n((2, 3)), share(n((2, 3), 1))], a) for a in how(log_target=False)
    ] + [(lambda n: [n((2, 3)), n((2, 3), 1)], a) for a in how(log_target=True)]
      + [two((0, 3), (0, 3), log_target=False, reduction="sum")], values=FLOATS, types=TYPES[4:],
        slopes=0, n=8),
    Row("binary_cross_entropy", "nn", lambda x, t, w, reduction: F.binary_cross_entropy(
        x, t, None if w is None else w.detach(), reduction=reduction), [
        (lambda n: [inside(n((2, 3))), inside(n((2, 3), 1)), None], a) for a in how()
    ] + [
        (lambda n: [inside(n((2, 3))), inside(n((2, 3), 1)), inside(n((3,), 2))], a) for a in how()
    ] + [(lambda n: [inside(n((2, 3))), inside(n((3,), 1)), None], a) for a in how()]
      + [(lambda n: [inside(n((0, 3))), inside(n((0, 3), 1)), None], how()[1])],
        values=FLOATS, types=TYPES[4:], slopes=0, n=8, ulp=8),
    Row("cosine_embedding_loss", "nn", lambda x, y, t, margin, reduction: F.cosine_embedding_loss(
        x, y, t, margin, reduction=reduction), [
        (lambda n: [n((4, 3)), n((4, 3), 1), torch.tensor([1, -1, 1, -1])], a)
        for a in how(margin=0.0) + how(margin=-0.4)
    ] + [(lambda n: [n((3,)), n((3,), 1), torch.tensor(1)], a) for a in how(margin=0.0)]
      + [(lambda n: [n((2, 3)), n((2, 2), 1), torch.tensor([1, 1])], how(margin=0.0)[0])],
        values=FLOATS, types=TYPES[4:], slopes=0, n=16, ulp=8),
    Row("ctc_loss", "nn", ctc, [
        (lambda n, m=m: [n((m, 4, 4)), TARGETS, torch.tensor([m, m - 1, m, m]),
                         torch.tensor([3, 2, 1, 0])], a)
        for m in (6, 7) for a in how(blank=0, zero_infinity=False)
    ] + [
        (lambda n: [n((4, 4, 4)), TARGETS, torch.tensor([4, 4, 4, 4]),
                    torch.tensor([3, 2, 3, 1])], a)
        for a in how(blank=0, zero_infinity=True)
    ] + [
        (lambda n: [n((5, 4, 4)), TARGETS % 3, torch.tensor([5, 4, 3, 5]),
                    torch.tensor([2, 2, 1, 1])], a)
        for a in how(blank=3, zero_infinity=False)
    ] + [
        (lambda n, m=m: [n((3, 4, 4)), TARGETS, torch.tensor([3, 0, 2, 0]),
                         torch.tensor([2, 0, 1, m])], a)
        for m in (0, 1) for a in how(blank=0, zero_infinity=m == 1)
    ] + [  # two without an alignment; what comes after their steps has a gradient all the same
        (lambda n: [n((5, 4, 4)), TARGETS, torch.tensor([2, 5, 4, 5]),
                    torch.tensor([3, 2, 3, 1])], a)
        for a in how(blank=0, zero_infinity=False)
    ], values=(torch.float32,), types=TYPES[4:], slopes=0, n=32, ulp=32),
]  # fmt: skip

ACTIVATIONS = [
    Row("mish", "elementwise", F.mish, [of(2, 8), of(), of(0, 3)], values=FLOATS, types=TYPES[4:],
        slopes=0),
    Row("hardswish", "elementwise", F.hardswish, [
        of(2, 8), (lambda n: [torch.tensor([-4.0, -3.5, 0.0, 2.5, 5.0]).to(n(()).dtype)], {}), of(),
        of(0, 3),
    ], values=FLOATS, types=TYPES[4:], slopes=0),
    Row("selu", "elementwise", F.selu, [of(2, 8), of(), of(0, 3)], values=FLOATS, types=TYPES[4:],
        slopes=0),
    Row("prelu", "elementwise", F.prelu, [
        two((2, 3, 2), (3,)), two((2, 4), (1,)), two((4,), (1,)), two((), (1,)), two((0, 3), (3,)),
        two((2, 3), (2,)), two((2, 3), ()),
    ], values=FLOATS, types=TYPES[4:], slopes=0),
    Row("glu", "elementwise", lambda x, dim: F.glu(x, dim), [
        of(2, 6, dim=-1), of(4, 3, dim=0), of(0, 4, dim=1), of(2, 3, dim=1), of(2, 4, dim=2),
    ], values=FLOATS, types=TYPES[4:]),
]  # fmt: skip


def filled(x):
    """Off the tape where there is nothing: PyTorch's gradient has the wrong shape there."""
    return x if x.numel() else x.detach()


NORMS = [
    Row("group_norm", "nn", lambda x, w, b, groups, eps: F.group_norm(x, groups, w, b, eps), [
        (lambda n: [n((2, 4, 3)), n((4,), 1), n((4,), 2)], {"groups": 2, "eps": 1e-5}),
        (lambda n: [n((2, 6)), None, None], {"groups": 2, "eps": 1e-3}),
        (lambda n: [n((2, 4, 3, 2)), n((4,), 1), None], {"groups": 4, "eps": 1e-5}),
        (lambda n: [n((0, 4, 3)), None, None], {"groups": 1, "eps": 1e-5}),
        (lambda n: [n((2, 4, 3)), None, None], {"groups": 3, "eps": 1e-5}),
        (lambda n: [n((2, 4, 3)), n((3,)), None], {"groups": 2, "eps": 1e-5}),
    ], values=FLOATS, types=TYPES[4:], slopes=0, n=16, ulp=8, wide=True),
    Row("instance_norm", "nn", lambda x, w, b, eps: F.instance_norm(
        x, weight=w, bias=b, eps=eps), [
        (lambda n: [n((2, 3, 5)), None, None], {"eps": 1e-5}),
        (lambda n: [n((2, 3, 2, 2)), n((3,), 1), n((3,), 2)], {"eps": 1e-3}),
        (lambda n: [n((2, 3, 1)), None, None], {"eps": 1e-5}),
    ], values=FLOATS, types=TYPES[4:], slopes=0, n=16, ulp=8, wide=True),
]  # fmt: skip


def grid(x, g, mode, padding_mode, align_corners):
    if mode == "nearest":  # PyTorch gives zeros to a grid that no sample depends on
        g = g.detach()
    return F.grid_sample(x, g, mode, padding_mode, align_corners)


def patches(**attrs):
    return {"dilation": [1, 1], "padding": [0, 0], "stride": [1, 1], **attrs}


WINDOWS = [
    *(
        Row(f"adaptive_{kind}_pool{d}d", "windows", lambda x, size, f=f: f(x, size), [
            of(2, 3, *[7, 5, 4][:d], size=[3] * d), of(3, *[6, 4, 5][:d], size=[2, 3, 1][:d]),
            of(1, 1, *[5, 6, 3][:d], size=[1] * d), of(2, 2, *[3, 3, 3][:d], size=[5, 3, 2][:d]),
            of(0, 2, *[3, 3, 3][:d], size=[2] * d), of(2, 2, *[3, 0, 3][:d], size=[2] * d),
            of(3, size=[2] * d),
            # Equals, of which the first has what flows back.
            (lambda n, d=d: [n((2, 3, *[7, 6, 5][:d])).round()], {"size": [3, 4, 2][:d]}),
        ], values=FLOATS, types=TYPES[4:], slopes=kind == "max", n=8)
        for d in (1, 2, 3) for kind, f in (
            ("avg", (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)[d - 1]),
            ("max", (F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d)[d - 1]),
        )
    ),
    Row("pixel_shuffle", "windows", lambda x, factor: F.pixel_shuffle(filled(x), factor), [
        of(2, 8, 2, 3, factor=2), of(4, 3, 2, factor=2), of(2, 9, 1, 1, factor=3),
        of(0, 4, 2, 2, factor=2), of(2, 6, 2, 2, factor=2), of(2, 2, factor=2),
    ]),
    Row("pixel_unshuffle", "windows", lambda x, factor: F.pixel_unshuffle(filled(x), factor), [
        of(2, 2, 4, 6, factor=2), of(1, 3, 3, factor=3),
        of(2, 2, 3, 4, factor=2),
    ]),
    Row("unfold", "windows", lambda x, kernel, **a: F.unfold(x, kernel, **a), [
        of(2, 3, 4, 5, kernel=[2, 3], **patches()),
        of(1, 2, 5, 4, kernel=[2, 2], **patches(stride=[2, 1], padding=[1, 1], dilation=[2, 1])),
        of(1, 1, 3, 3, kernel=[3, 3], **patches()), of(1, 1, 2, 2, kernel=[3, 3], **patches()),
        of(2, 3, kernel=[1, 1], **patches()), of(3, 4, 5, kernel=[2, 3], **patches()),
    ], values=(*FLOATS, torch.bool), types=(torch.float32,)),
    Row("fold", "windows", lambda x, size, kernel, **a: F.fold(x, size, kernel, **a), [
        of(2, 18, 9, size=[4, 5], kernel=[2, 3], **patches()),
        of(1, 8, 9, size=[5, 4], kernel=[2, 2],
           **patches(stride=[2, 2], padding=[1, 1], dilation=[2, 1])),
        of(1, 9, 1, size=[3, 3], kernel=[3, 3], **patches()),
        of(1, 9, 2, size=[3, 3], kernel=[3, 3], **patches()),
        of(1, 7, 1, size=[3, 3], kernel=[3, 3], **patches()),
        of(18, 9, size=[4, 5], kernel=[2, 3], **patches()),
    ], values=FLOATS, types=(torch.float32,), slopes=1, n=8),
    Row("grid_sample", "windows", grid, [
        (lambda n: [n((2, 3, 4, 5)), n((2, 3, 2, 2), 1) / 2],
         {"mode": m, "padding_mode": p, "align_corners": c})
        for m in ("bilinear", "nearest", "bicubic") for p in ("zeros", "border", "reflection")
        for c in (False, True)
    ] + [
        (lambda n: [n((1, 2, 3, 2, 4)), n((1, 2, 2, 2, 3), 1) / 2],
         {"mode": m, "padding_mode": p, "align_corners": False})
        for m in ("bilinear", "nearest", "bicubic") for p in ("zeros", "reflection")
    ] + [
        (lambda n: [n((2, 3, 4, 5)), n((1, 3, 2, 2), 1)],
         {"mode": "bilinear", "padding_mode": "zeros", "align_corners": False}),
    ], values=SINGLE, types=TYPES[4:], slopes=0, n=32, ulp=32),
    Row("interpolate", "windows", lambda x, size, mode, antialias: F.interpolate(
        x, size, mode=mode, antialias=antialias), [
        of(2, 3, 7, size=[3], mode="area", antialias=False),
        of(1, 2, 5, 6, size=[3, 4], mode="area", antialias=False),
        of(1, 2, 3, 4, size=[5, 2], mode="area", antialias=False),
        of(1, 1, 4, 3, 5, size=[2, 2, 3], mode="area", antialias=False),
        *(of(1, 2, 9, 7, size=s, mode=m, antialias=True) for m in ("bilinear", "bicubic")
          for s in ([4, 5], [3, 11], [9, 2])),
    ], values=SINGLE, types=TYPES[4:], slopes=0, n=16, ulp=8),
]  # fmt: skip
def log_prob(kind):
    return lambda *p: kind(*p[:-1], validate_args=False).log_prob(p[-1])


def entropy(kind):
    return lambda *p: kind(*p, validate_args=False).entropy()


def positive(x):
    return (x.double().abs() / 3 + 0.3).to(x.dtype)


def bernoulli(p, validate_args):
    return D.Bernoulli(logits=p, validate_args=validate_args)


def categorical(p, validate_args):
    return D.Categorical(logits=p, validate_args=validate_args)


D = torch.distributions
PAIR = (lambda n: [positive(n((2, 3))), positive(n((3,), 1))], {})
# No ops of the table: what `distributions` computes.
DISTRIBUTIONS = [
    Row(f"{name}.{what}", "nn", f(kind), [call], values=SINGLE, types=(), slopes=0, n=32, ulp=32)
    for name, kind, what, f, call in (
        ("normal", D.Normal, "log_prob", log_prob, (
            lambda n: [n((2, 3)), positive(n((3,), 1)), n((2, 3), 2)], {})),
        ("normal", D.Normal, "entropy", entropy, (
            lambda n: [n((2, 3)), positive(n((2, 3), 1))], {})),
        ("bernoulli", bernoulli, "log_prob", log_prob, (
            lambda n: [n((2, 3)), (n((2, 3), 1) > 0).to(n(()).dtype)], {})),
        ("bernoulli", bernoulli, "entropy", entropy, (lambda n: [n((2, 3))], {})),
        ("categorical", categorical, "log_prob", log_prob, (
            lambda n: [n((2, 3)), torch.tensor([2, 0])], {})),
        ("categorical", categorical, "entropy", entropy, (lambda n: [n((2, 3))], {})),
        ("gamma", D.Gamma, "log_prob", log_prob, (
            lambda n: [*PAIR[0](n), positive(n((2, 3), 2))], {})),
        ("gamma", D.Gamma, "entropy", entropy, PAIR),
        ("beta", D.Beta, "log_prob", log_prob, (
            lambda n: [*PAIR[0](n), inside(n((2, 3), 2))], {})),
        ("beta", D.Beta, "entropy", entropy, PAIR),
    )
]  # fmt: skip
ALL = [*VIEWS, *PRODUCTS, *ELEMENTWISE, *ORDER, *INDEX, *LOSSES, *ACTIVATIONS, *NORMS]
ALL += [*WINDOWS, *DISTRIBUTIONS]


def make():
    for row in ALL:
        row.make()


def on_types(of):
    for row in ALL:
        row.on_types(of)


def at_edges(g):
    for row in ALL:
        row.at_edges(g)
