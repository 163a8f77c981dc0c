"""Products: `matmul` in all its shapes, `addmm`, `bmm` and `einsum`."""

import torch

import store
from elementwise import noise
from store import DTYPES, FLOATS, In, biggest, numeric, value

SHAPES = [
    ((3,), (3,)),
    ((0,), (0,)),
    ((3,), (3, 4)),
    ((2, 3), (3,)),
    ((3,), (2, 3, 4)),
    ((2, 2, 3), (3,)),
    ((2, 3), (3, 4)),
    ((1, 1), (1, 1)),
    ((5, 1), (1, 6)),
    ((2, 0), (0, 3)),
    ((0, 3), (3, 2)),
    ((2, 3), (3, 0)),
    ((2, 2, 3), (2, 3, 4)),
    ((2, 2, 3), (3, 4)),
    ((2, 3), (2, 3, 4)),
    ((2, 1, 2, 3), (4, 3, 2)),
    ((0, 2, 3), (3, 2)),
    ((1, 2, 3), (2, 3, 1)),
    ((17, 19), (19, 23)),
    ((1, 40), (40, 33)),
    ((33, 40), (40, 1)),
]

MISFITS = [
    ((), (3,)),
    ((3,), ()),
    ((3,), (4,)),
    ((2, 3), (2, 3)),
    ((2, 2, 3), (3, 3, 4)),
    ((2, 3), (4,)),
    ((4,), (3, 2)),
]


def product(g, grad, op, f, ins, attrs=None):
    scale = None
    if all(value(x).dtype in FLOATS for x in ins):
        try:
            scale = biggest(f(*[value(x).double().abs() for x in ins], **(attrs or {})))
        except (RuntimeError, IndexError):
            pass
    numeric(g, op, f, ins, attrs, scale=scale, n=4, ulp=2, grad=grad, wide=True)


def make():
    g, grad = store.group("matmul"), store.group("grad_matmul")
    f = torch.matmul
    for dtype in DTYPES:
        for k, (a, b) in enumerate(SHAPES):
            if dtype in FLOATS[:2] or k in (0, 2, 3, 6, 9, 12, 13, 18):
                ins = [noise(dtype, a, "a"), noise(dtype, b, "b")]
                product(g, grad if dtype == torch.float32 or k == 12 else None, "matmul", f, ins)
    for a, b in MISFITS:
        product(g, None, "matmul", f, [noise(torch.float32, a), noise(torch.float32, b)])
    for a, b in ((torch.float32, torch.float64), (torch.int64, torch.float32)):
        product(g, None, "matmul", f, [noise(a, (2, 3)), noise(b, (3, 2))])
    for dtype in (torch.float32, torch.bfloat16, torch.int32):
        at = In(noise(dtype, (7, 5), "at"), ("transpose", 0, 1))
        bt = In(noise(dtype, (4, 7), "bt"), ("transpose", 0, 1))
        narrow = In(noise(dtype, (9, 8), "n"), ("narrow", 0, 1, 7), ("narrow", 1, 2, 4))
        wide = In(noise(dtype, (7, 1), "e"), ("expand", [3, 7, 4]))
        heads = In(noise(dtype, (2, 3, 4, 5), "h"), ("permute", [0, 2, 1, 3]))
        keys = In(noise(dtype, (2, 6, 4, 5), "k"), ("permute", [0, 2, 3, 1]))
        row = In(noise(dtype, (7, 3), "r"), ("narrow", 1, 1, 1), ("squeeze", 1))
        for ins in ([at, bt], [at, narrow], [at, wide], [heads, keys], [row, bt], [at, row]):
            product(g, grad, "matmul", f, ins)
    for dtype in FLOATS:
        a, b, c = noise(dtype, (3, 4), "a"), noise(dtype, (4, 5), "b"), noise(dtype, (3, 5), "c")
        gr = grad if dtype == torch.float32 else None
        product(g, gr, "addmm", torch.addmm, [c, a, b])
        product(g, gr, "addmm", torch.addmm, [c, a, b], {"beta": 0.5, "alpha": 2.0})
        product(g, gr, "addmm", torch.addmm, [noise(dtype, (5,), "bias"), a, b])
        product(g, gr, "bmm", torch.bmm, [noise(dtype, (2, 3, 4)), noise(dtype, (2, 4, 2))])
        product(g, None, "bmm", torch.bmm, [noise(dtype, (2, 3, 4)), noise(dtype, (3, 4, 2))])
        for eq, *shapes in EINSUM:
            call = lambda *x, equation: torch.einsum(equation, *x)  # noqa: E731
            ins = [noise(dtype, s, "einsum", k) for k, s in enumerate(shapes)]
            product(g, gr, "einsum", call, ins, {"equation": eq})
    equations(g, grad)


EINSUM = [
    ("ij->ji", (2, 3)), ("ii->i", (3, 3)), ("ii", (3, 3)), ("ij->", (2, 3)), ("ij->j", (2, 3)),
    ("i,i->", (4,), (4,)), ("i,j->ij", (3,), (2,)), ("ij,jk->ik", (2, 3), (3, 4)),
    ("ij,jk", (2, 3), (3, 4)),
    ("ij,kj->ik", (2, 3), (4, 3)), ("bij,bjk->bik", (2, 2, 3), (2, 3, 2)),
    ("bhqd,bhkd->bhqk", (1, 2, 3, 4), (1, 2, 5, 4)),
    ("...ij,...jk->...ik", (2, 1, 2, 3), (3, 3, 2)), ("bi,io,bo->b", (2, 3), (3, 4), (2, 4)),
    ("ij,ij->i", (2, 3), (2, 3)),
    ("abc,cd->abd", (2, 2, 3), (3, 2)), ("ij,jk->ik", (2, 3), (4, 2)),
]  # fmt: skip

EQUATIONS = [
    ("i...->...i", (2, 3, 4)), ("...i,...i->...", (2, 3), (1, 3)),
    ("a,ab,abc->abc", (2,), (2, 3), (2, 3, 2)),
    ("iijj->ij", (2, 2, 3, 3)), ("iji->j", (3, 2, 3)), ("ab,cd->", (2, 3), (3, 2)),
    ("bnd,bmd->bnm", (2, 3, 4), (2, 5, 4)),
    ("ij,jk,kl->il", (2, 3), (3, 4), (4, 2)), ("ij,kj->k", (2, 3), (4, 3)),
    ("ab,ba", (2, 3), (3, 2)), ("Ab,bc->Ac", (2, 3), (3, 2)),
    ("...ij->...ji", (2, 3, 4)), ("ij,jk->ikj", (2, 3), (3, 2)), ("i,->i", (3,), ()),
    ("ij,j->i", (2, 3), (1,)), ("ij->k", (2, 2)),
    ("ij,jk->ii", (2, 2), (2, 2)), ("ijk->ij", (2, 2)), ("i1->i", (2, 2)),
    ("abcdefgh->hgfedcba", (1, 2, 1, 2, 1, 2, 1, 2)),
]  # fmt: skip


def equations(g, grad):
    for dtype in (torch.float32, torch.float64, torch.int64):
        for equation, *shapes in EQUATIONS:
            ins = [noise(dtype, s, "es", k) for k, s in enumerate(shapes)]
            f = lambda *x, equation: torch.einsum(equation, *x)  # noqa: E731
            numeric(
                g,
                "einsum",
                f,
                ins,
                {"equation": equation},
                n=16,
                ulp=8,
                grad=grad if dtype == torch.float32 else None,
            )
