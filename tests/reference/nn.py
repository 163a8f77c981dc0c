"""Layers and losses: softmax, normalisation, and losses with their reductions, weights, ignored
classes."""

import torch

import store
from elementwise import indices, noise
from reduce import along
from store import FLOATS, numeric

F = torch.nn.functional


def rows(g, grad):
    for name in ("softmax", "log_softmax"):
        f = lambda x, dim, name=name: getattr(torch, name)(x, dim)  # noqa: E731
        along(g, grad, name, f, lambda d: {"dim": d})


def norms(g, grad):
    for dtype in FLOATS:
        gr = grad if dtype in FLOATS[:2] else None
        for shape, n in (((4, 8), 1), ((2, 3, 4), 2), ((2, 3, 4), 1), ((6,), 1), ((0, 3), 1)):
            x, size = noise(dtype, shape, "ln"), shape[len(shape) - n :]
            w, b = noise(dtype, size, "w"), noise(dtype, size, "b")
            # noqa: E731
            ln = lambda x, w, b, normalized_shape, eps: F.layer_norm(x, normalized_shape, w, b, eps)
            # noqa: E731
            rms = lambda x, w, normalized_shape, eps: F.rms_norm(x, normalized_shape, w, eps)
            attrs = {"normalized_shape": list(size), "eps": 1e-5}
            for ins in ([x, w, b], [x, None, None]) + (([x, w, None],) if n == 1 else ()):
                numeric(g, "layer_norm", ln, ins, attrs, n=16, ulp=8, grad=gr)
            numeric(g, "rms_norm", rms, [x, w], attrs, n=16, ulp=8, grad=gr)
            numeric(g, "rms_norm", rms, [x, None], attrs, n=16, ulp=8, grad=gr)
        for shape in ((4, 3), (2, 3, 5), (2, 3, 2, 2)):
            x, mean, var = (
                noise(dtype, shape, "bn"),
                noise(dtype, (3,), "m"),
                noise(dtype, (3,), "v").abs() + 0.5,
            )
            w, b = noise(dtype, (3,), "w"), noise(dtype, (3,), "b")
            for training in (False, True):
                attrs = {"training": training, "momentum": 0.1, "eps": 1e-5}
                numeric(
                    g, "batch_norm", batch_norm, [x, mean, var, w, b], attrs, n=32, ulp=16, grad=gr
                )
                numeric(
                    g,
                    "batch_norm",
                    batch_norm,
                    [x, mean, var, None, None],
                    attrs,
                    n=32,
                    ulp=16,
                    grad=gr,
                )


def batch_norm(x, mean, var, w, b, training, momentum, eps):
    mean, var = mean.detach().clone(), var.detach().clone()  # no gradient goes there
    y = F.batch_norm(x, mean, var, w, b, training, momentum, eps)
    return y, mean, var


def losses(g, grad):
    for dtype in FLOATS:
        gr = grad if dtype in FLOATS[:2] else None
        x, y = noise(dtype, (4, 5), "x", scale=1.0), noise(dtype, (4, 5), "y", scale=1.0)
        target, p = indices(5, (4,), "t"), torch.sigmoid(y)
        for reduction in ("mean", "sum", "none"):
            a = {"reduction": reduction}
            numeric(
                g,
                "mse_loss",
                lambda x, y, **a: F.mse_loss(x, y, **a),
                [x, y],
                a,
                n=8,
                ulp=8,
                grad=gr,
            )
            numeric(
                g,
                "cross_entropy",
                lambda x, t, **a: F.cross_entropy(x, t, **a),
                [x, target],
                a,
                n=8,
                ulp=8,
                grad=gr,
            )
            numeric(
                g,
                "nll_loss",
                lambda x, t, **a: F.nll_loss(x, t, **a),
                [torch.log_softmax(x, 1), target],
                a,
                n=8,
                ulp=8,
                grad=gr,
            )
            bce = lambda x, t, **a: F.binary_cross_entropy_with_logits(x, t, **a)  # noqa: E731
            numeric(g, "bce_with_logits", bce, [x * 20, p], a, n=8, ulp=8, grad=gr)
        numeric(
            g,
            "cross_entropy",
            lambda x, t, **a: F.cross_entropy(x, t, **a),
            [noise(dtype, (2, 3, 4), "x"), indices(3, (2, 4), "t")],
            {"reduction": "mean"},
            n=8,
            ulp=8,
            grad=gr,
        )
        numeric(
            g,
            "cross_entropy",
            lambda x, t, **a: F.cross_entropy(x, t, **a),
            [noise(dtype, (3,), "x"), indices(3, (), "t")],
            {"reduction": "mean"},
            n=8,
            ulp=8,
            grad=gr,
        )
    numeric(
        g,
        "cross_entropy",
        lambda x, t, **a: F.cross_entropy(x, t, **a),
        [noise(torch.float32, (2, 3), "x"), torch.tensor([0, 3])],
        {"reduction": "mean"},
    )


def still(w):
    """Weights have no gradient in PyTorch."""
    return None if w is None else w.detach()


def mixed(g, grad):
    """Probabilities, and weights, of another type than the logits."""
    ce = lambda x, t, w, **a: F.cross_entropy(x, t, w, **a)  # noqa: E731
    half, bfloat, single, double = torch.float16, torch.bfloat16, torch.float32, torch.float64
    for a, b, c in (
        (single, double, None), (double, single, None), (half, single, None),
        (half, bfloat, None), (single, single, double), (single, half, half),
    ):  # fmt: skip
        x = noise(a, (3, 5), "mx", scale=1.0)
        p = torch.softmax(noise(double, (3, 5), "mp", scale=1.0), 1).to(b)
        w = None if c is None else noise(c, (5,), "mw").abs() + 0.1
        for reduction in ("mean", "none"):
            for smooth in (0.0, 0.2):
                how = {"reduction": reduction, "label_smoothing": smooth}
                # PyTorch's own logarithms are of the type of the logits.
                numeric(g, "cross_entropy", ce, [x, p, w], how, n=16, ulp=8, check=False)


def weighed(g, grad):
    for dtype in FLOATS:
        gr = grad if dtype in FLOATS[:2] else None
        for shape, spatial in (((6, 5), (6,)), ((3, 5, 2), (3, 2)), ((5,), ())):
            x, target = noise(dtype, shape, "lx", scale=1.0), indices(5, spatial, "lt")
            if spatial:
                target.view(-1)[1] = 2
            w = noise(dtype, (5,), "lw").abs() + 0.1
            p = torch.softmax(
                noise(dtype, shape, "lp", scale=1.0).double(), 0 if len(shape) == 1 else 1
            ).to(dtype)
            ce = lambda x, t, w, **a: F.cross_entropy(x, t, still(w), **a)  # noqa: E731
            nll = lambda x, t, w, **a: F.nll_loss(x, t, still(w), **a)  # noqa: E731
            logs = torch.log_softmax(x.double(), 0 if len(shape) == 1 else 1).to(dtype)
            for reduction in ("mean", "sum", "none"):
                for weight in (None, w):
                    for smooth in (0.0, 0.2):
                        a = {"reduction": reduction, "label_smoothing": smooth}
                        numeric(g, "cross_entropy", ce, [x, p, weight], a, n=16, ulp=8, grad=gr)
                        ignored = {**a, "ignore_index": 2}
                        if spatial:
                            numeric(
                                g,
                                "cross_entropy",
                                ce,
                                [x, target, weight],
                                ignored,
                                n=16,
                                ulp=8,
                                grad=gr,
                            )
                    if spatial:
                        numeric(
                            g,
                            "nll_loss",
                            nll,
                            [logs, target, weight],
                            {"reduction": reduction, "ignore_index": 2},
                            n=16,
                            ulp=8,
                            grad=gr,
                        )
        x, y = (
            noise(dtype, (4, 5), "bx", scale=1.0),
            torch.sigmoid(noise(dtype, (4, 5), "by", scale=1.0)),
        )
        x[0, :3] = 0
        w, pw = noise(dtype, (4, 1), "bw").abs(), noise(dtype, (5,), "bp").abs()
        for reduction in ("mean", "none"):
            # noqa: E731
            bce = lambda x, t, w, pw, reduction: F.binary_cross_entropy_with_logits(
                x, t, still(w), reduction=reduction, pos_weight=still(pw)
            )
            for ins in ([x, y, None, None], [x, y, w, None], [x, y, None, pw], [x, y, w, pw]):
                numeric(
                    g, "bce_with_logits", bce, ins, {"reduction": reduction}, n=16, ulp=8, grad=gr
                )
        far = torch.tensor(
            [float("inf"), float("-inf"), float("nan"), 1e4, -1e4], dtype=torch.float64
        ).to(dtype)
        numeric(
            g,
            "bce_with_logits",
            bce,
            [far, torch.full((5,), 0.25, dtype=dtype), None, None],
            {"reduction": "none"},
        )


def classes(g, grad):
    """No class has a negative number, whatever an index may mean elsewhere."""
    logs, w = torch.log_softmax(noise(torch.float32, (2, 3), "logs"), 1), torch.ones(3)
    for target in ([0, -1], [-3, 2], [1, 3]):
        for weight in (None, w):
            for reduction in ("none", "mean"):
                a = {"reduction": reduction, "ignore_index": -100}
                nll = lambda x, t, w, **a: torch.nn.functional.nll_loss(x, t, w, **a)  # noqa: E731
                numeric(g, "nll_loss", nll, [logs, torch.tensor(target), weight], a)


def make():
    g, grad = store.group("nn"), store.group("grad_nn")
    for part in (rows, norms, losses, mixed, weighed, classes):
        part(g, grad)
