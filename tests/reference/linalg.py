"""What PyTorch's linear algebra gives in float64, with first and second gradients of a sum of
weighed results: `linalg.safetensors`, tensors named `OP@ARGUMENTS/SHAPES/WHAT`. `tests/numerics`
reads it. Written by `make.py`; seeded by the names.

Vectors of eigh and svd have any sign, so their squares are what is compared. Where a function reads
one triangle of a symmetric matrix, a gradient is known up to what is not symmetric."""

import torch

from store import HERE, random, write_tensors

L = torch.linalg


def solve_triangular(a, b, arguments):
    return L.solve_triangular(a, b, upper="u" in arguments, unitriangular="1" in arguments)


def eigh(a, _):
    values, vectors = L.eigh(a)
    return values, vectors**2


def svd(a, _):
    u, s, vh = L.svd(a, full_matrices=False)
    return u**2, s, vh**2


OPS = {
    "solve": lambda a, b, _: L.solve(a, b),
    "triangular_solve": solve_triangular,
    "lstsq": lambda a, b, _: L.lstsq(a, b, driver="gelsd").solution,
    "inverse": lambda a, _: L.inv(a),
    "det": lambda a, _: L.det(a),
    "slogdet": lambda a, _: L.slogdet(a)[1],
    "cholesky": lambda a, arguments: L.cholesky(a, upper="u" in arguments),
    "qr": lambda a, _: L.qr(a),
    "eigh": eigh,
    "svd": svd,
}
CASES = [
    *[("solve", "", s) for s in [[(3, 3), (3, 2)], [(2, 4, 4), (2, 4)], [(5, 5), (5,)]]],
    *[("solve", "", s) for s in [[(2, 1, 3, 3), (4, 3, 2)], [(0, 3, 3), (0, 3, 2)]]],
    *[("solve", "", s) for s in [[(0, 0), (0, 2)], [(40, 40), (40, 3)]]],
    *[("triangular_solve", k, [(3, 3), (3, 2)]) for k in ["u", "l", "u1", "l1"]],
    ("triangular_solve", "u", [(2, 1, 3, 3), (4, 3, 2)]),
    *[("lstsq", "", s) for s in [[(5, 3), (5, 2)], [(3, 5), (3, 2)], [(2, 4, 4), (2, 4, 1)]]],
    ("lstsq", "deficient", [(4, 3), (4, 2)]),
    *[(op, "", [s]) for op in ["inverse", "det", "slogdet"] for s in [(3, 3), (2, 3, 4, 4)]],
    *[(op, "", [s]) for op in ["inverse", "det", "slogdet"] for s in [(0, 0), (0, 2, 2), (1, 1)]],
    ("det", "deficient", [(3, 3)]),
    *[("cholesky", k, [s]) for k in ["", "u"] for s in [(3, 3), (2, 4, 4), (0, 0), (40, 40)]],
    *[("qr", "", [s]) for s in [(4, 3), (3, 3), (3, 5), (2, 4, 2), (0, 4, 3), (40, 20)]],
    *[("eigh", "", [s]) for s in [(3, 3), (2, 4, 4), (1, 1), (0, 0), (20, 20)]],
    *[("svd", "", [s]) for s in [(4, 3), (3, 3), (2, 5), (2, 3, 4), (0, 3, 3), (20, 12)]],
]


def noise(shape, *key):
    g = random("linalg", tuple(shape), *key)
    return torch.randn(shape, generator=g, dtype=torch.float64)


def matrix(op, arguments, shape, name):
    x = noise(shape, name)
    if "deficient" in arguments:
        x[..., -1] = x[..., 0] * 2
    elif op in ("cholesky", "eigh"):
        x = x @ x.mT / shape[-1] + torch.eye(shape[-1])
    elif op in ("solve", "triangular_solve", "inverse", "slogdet"):
        x = x + 3 * torch.eye(shape[-1])
    return x


def symmetric(op, x):
    return (x + x.mT) / 2 if op in ("cholesky", "eigh") else x


def make():
    out = {}
    for op, arguments, shapes in CASES:
        name = f"{op}@{arguments}/{','.join('x'.join(map(str, s)) for s in shapes)}"
        ins = [matrix(op, arguments, shapes[0], name)]
        ins += [noise(s, name, "right") for s in shapes[1:]]
        leaves = [x.requires_grad_() for x in ins]
        ys = OPS[op](*leaves, arguments)
        ys = ys if isinstance(ys, tuple) else (ys,)
        ups = [noise(y.shape, name, "up", k) for k, y in enumerate(ys)]
        sum_ = sum((y * y * up).sum() for y, up in zip(ys, ups))
        firsts = torch.autograd.grad(sum_, leaves, create_graph=True)
        firsts = [symmetric(op, g) for g in firsts]
        weights = [noise(x.shape, name, "weight", k) for k, x in enumerate(ins)]
        found = {"x": ins, "y": ys, "up": ups, "weight": weights, "first": firsts}
        # PyTorch's own second gradient is not finite where a matrix has not the full rank.
        if "deficient" not in arguments:
            weighed = sum((g * w).sum() for g, w in zip(firsts, weights))
            if weighed.requires_grad:
                seconds = torch.autograd.grad(weighed, leaves, materialize_grads=True)
            else:
                seconds = [torch.zeros_like(x) for x in ins]
            found["second"] = [symmetric(op, g) for g in seconds]
        for what, all_ in found.items():
            out |= {f"{name}/{what}{k}": t.detach() for k, t in enumerate(all_)}
    write_tensors(HERE / "linalg.safetensors", out)
