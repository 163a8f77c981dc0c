"""Options and ops that the other files leave out: transposed convolutions, the corners of pooling, padding by
the value's own elements, the losses' weights, activations with a number, indexing by tensors."""

import torch

from elementwise import noise
from later import indices
from store import DTYPES, FLOATS, INTS, Group, In, numeric

F = torch.nn.functional
# batch, channels, height, width, out, kernel, stride, padding, output padding, dilation, groups
TRANSPOSED = [
    (2, 3, 4, 5, 4, (3, 3), (1, 1), (0, 0), (0, 0), (1, 1), 1), (1, 4, 3, 4, 6, (3, 2), (2, 3), (1, 0), (1, 2), (1, 1), 2),
    (2, 3, 3, 3, 3, (3, 3), (2, 1), (2, 1), (0, 0), (2, 1), 3), (1, 8, 3, 3, 8, (2, 2), (2, 2), (0, 0), (0, 0), (1, 1), 1),
]  # fmt: skip
POOLS = [
    dict(kernel_size=[3, 3], stride=[2, 2], padding=[1, 1], ceil_mode=True), dict(kernel_size=[2, 3], stride=[2, 2], padding=[0, 1], ceil_mode=True),
    dict(kernel_size=[2, 2], stride=[3, 3], padding=[1, 1], ceil_mode=True),
]  # fmt: skip


def convolutions(g, grad):
    wide = {"wide": True, "n": 16, "ulp": 4, "scale": 200.0}
    for dtype in FLOATS:
        gr = grad if dtype == torch.float32 else None
        for i, (n, c, h, w, o, k, s, p, op, d, groups) in enumerate(TRANSPOSED):
            ins = [
                noise(dtype, (n, c, h, w), "t"),
                noise(dtype, (c, o // groups, *k), "tw"),
                noise(dtype, (o,), "tb") if i % 2 else None,
            ]
            attrs = {
                "stride": list(s),
                "padding": list(p),
                "output_padding": list(op),
                "dilation": list(d),
                "groups": groups,
            }
            numeric(
                g,
                "conv_transpose2d",
                lambda x, w, b, **a: F.conv_transpose2d(x, w, b, **a),
                ins,
                attrs,
                grad=gr,
                **wide,
            )
        ins = [
            noise(dtype, (2, 4, 5), "t1"),
            noise(dtype, (4, 3, 3), "t1w"),
            noise(dtype, (6,), "t1b"),
        ]
        attrs = {"stride": 2, "padding": 1, "output_padding": 1, "dilation": 1, "groups": 2}
        numeric(
            g,
            "conv_transpose1d",
            lambda x, w, b, **a: F.conv_transpose1d(x, w, b, **a),
            ins,
            attrs,
            grad=gr,
            **wide,
        )
        # Without a batch; through views.
        attrs = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 1}
        conv = lambda x, w, b, **a: F.conv2d(x, w, b, **a)  # noqa: E731
        numeric(
            g,
            "conv2d",
            conv,
            [noise(dtype, (3, 4, 5), "c"), noise(dtype, (5, 3, 3, 3), "w"), None],
            attrs,
            grad=gr,
            **wide,
        )
        turned = In(noise(dtype, (2, 5, 4, 3), "c"), ("permute", [0, 3, 1, 2]))
        weight = In(noise(dtype, (3, 5, 3, 3), "w"), ("transpose", 0, 1))
        numeric(g, "conv2d", conv, [turned, weight, None], attrs, grad=gr, **wide)
        spread = In(noise(dtype, (1, 3, 4, 1), "c"), ("expand", [2, 3, 4, 6]))
        numeric(
            g, "conv2d", conv, [spread, weight, noise(dtype, (5,), "b")], attrs, grad=gr, **wide
        )
        x = noise(dtype, (2, 2, 6, 7), "pool")
        for a in POOLS:
            full = lambda x, **a: F.max_pool2d(x, **a, return_indices=True)  # noqa: E731
            numeric(g, "max_pool2d_with_positions", full, [x], a, grad=gr)
            for more in ({}, {"count_include_pad": False}, {"divisor_override": 5}):
                numeric(
                    g,
                    "avg_pool2d",
                    lambda x, **a: F.avg_pool2d(x, **a),
                    [x],
                    {**a, **more},
                    grad=gr,
                )
        a = dict(kernel_size=[2, 3], stride=[1, 2], padding=[1, 1], dilation=[3, 2])
        numeric(
            g,
            "max_pool2d_with_positions",
            lambda x, **a: F.max_pool2d(x, **a, return_indices=True),
            [x],
            a,
            grad=gr,
        )
        view = In(noise(dtype, (7, 6, 3), "pool"), ("permute", [2, 1, 0]))
        numeric(
            g,
            "max_pool2d_with_positions",
            lambda x, **a: F.max_pool2d(x, **a, return_indices=True),
            [view],
            POOLS[0],
            grad=gr,
        )
        numeric(g, "avg_pool2d", lambda x, **a: F.avg_pool2d(x, **a), [view], POOLS[0], grad=gr)


def padding(g, grad):
    for dtype in FLOATS:
        x = noise(dtype, (2, 3, 4, 5), "pad")
        for mode, pad in (
            ("reflect", [2, 1]), ("reflect", [1, 2, 3, 0]), ("replicate", [3, 1]), ("replicate", [1, 7, 2, 0]),
            ("circular", [5, 0]), ("circular", [1, 2, 4, 3]), ("reflect", [5, 0]), ("circular", [6, 0]),
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


def still(w):
    """Weights have no gradient in PyTorch."""
    return None if w is None else w.detach()


def losses(g, grad):
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
        q, k, v = (noise(dtype, (2, 2, n, 4), key) for n, key in ((3, "q"), (5, "k"), (5, "v")))
        # noqa: E731
        f = lambda q, k, v, mask, is_causal, scale: F.scaled_dot_product_attention(
            q, k, v, mask, is_causal=is_causal, scale=scale
        )
        numeric(
            g,
            "scaled_dot_product_attention",
            f,
            [q, k, v, None],
            {"is_causal": True, "scale": 0.3},
            n=16,
            ulp=16,
            grad=gr,
        )
        mask = noise(torch.bool, (2, 1, 3, 5), "mask")
        mask[0, 0, 1] = False  # sees nothing
        mask[1] = True
        numeric(
            g,
            "scaled_dot_product_attention",
            f,
            [q, k, v, mask],
            {"is_causal": False, "scale": 0.1},
            n=16,
            ulp=16,
            grad=gr,
        )


def activations(g, grad):
    for dtype in FLOATS:
        gr = grad if dtype in FLOATS[:2] else None
        x = torch.cat(
            [
                noise(dtype, (20,), "act"),
                torch.tensor([0.0, 300.0, -300.0, float("inf"), float("-inf")]).to(dtype),
            ]
        )
        nan = torch.tensor([float("nan")], dtype=dtype)
        for alpha in (1.0, 0.3):
            numeric(g, "elu", lambda x, alpha: F.elu(x, alpha), [x], {"alpha": alpha}, grad=gr)
            numeric(
                g,
                "leaky_relu",
                lambda x, slope: F.leaky_relu(x, slope),
                [x],
                {"slope": alpha / 10},
                grad=gr,
            )
        numeric(g, "elu", lambda x, alpha: F.elu(x, alpha), [nan], {"alpha": 1.0})
        numeric(g, "leaky_relu", lambda x, slope: F.leaky_relu(x, slope), [nan], {"slope": 0.1})
        x[3], x[4], x[5] = 2.0, 0.5, -1.5
        for low, high in ((-1.5, 2.0), (2.0, -1.0)):
            numeric(
                g,
                "clamp",
                lambda x, low, high: torch.clamp(x, low, high),
                [torch.cat([x, nan]), low, high],
                {},
                grad=None,
            )
        numeric(
            g, "clamp", lambda x, low, high: torch.clamp(x, low, high), [x, -1.5, 2.0], {}, grad=gr
        )
        numeric(g, "clamp_min", lambda x, low: torch.clamp(x, min=low), [x, 0.5], {}, grad=gr)
        numeric(g, "clamp_max", lambda x, high: torch.clamp(x, max=high), [x, 0.5], {}, grad=gr)
    for dtype in INTS:
        numeric(
            g,
            "clamp",
            lambda x, low, high: torch.clamp(x, low, high),
            [noise(dtype, (20,), "act"), 1, 4],
            {},
        )
    for dtype in DTYPES[4:]:
        numeric(g, "bitwise_not", torch.bitwise_not, [noise(dtype, (20,), "not")], {})


def picking(g, grad):
    for dtype in (torch.float32, torch.float64, torch.int64, torch.bool):
        gr = grad if dtype == torch.float32 else None
        x = noise(dtype, (3, 4, 5), "pick")
        take = lambda x, i: torch.take(x, i)  # noqa: E731
        numeric(g, "take", take, [x, indices(60, (2, 3), "take")], {}, grad=gr)
        numeric(g, "take", take, [x, torch.tensor(7)], {}, grad=gr)

        def by(x, *index):
            return x[tuple(slice(None) if i is None else i for i in index)]

        i, j, k = indices(3, (2, 1), "i"), indices(4, (3,), "j"), indices(5, (2, 3), "k") - 5
        for index in (
            [i],
            [None, j],
            [i, j],
            [i, None, k],
            [None, j, k],
            [i, j, k],
            [None, None, k],
            [torch.tensor(-1), None, j],
        ):
            numeric(g, "index", by, [x, *index], {}, grad=gr)
        numeric(g, "index", by, [x, torch.tensor([3])], {})
        numeric(g, "index", by, [x, i, torch.tensor([[-5]])], {})
        numeric(g, "index", by, [x, torch.tensor([0, 1]), torch.tensor([0, 1, 2])], {})
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


EINSUM = [
    ("i...->...i", (2, 3, 4)), ("...i,...i->...", (2, 3), (1, 3)), ("a,ab,abc->abc", (2,), (2, 3), (2, 3, 2)),
    ("iijj->ij", (2, 2, 3, 3)), ("iji->j", (3, 2, 3)), ("ab,cd->", (2, 3), (3, 2)), ("bnd,bmd->bnm", (2, 3, 4), (2, 5, 4)),
    ("ij,jk,kl->il", (2, 3), (3, 4), (4, 2)), ("ij,kj->k", (2, 3), (4, 3)), ("ab,ba", (2, 3), (3, 2)), ("Ab,bc->Ac", (2, 3), (3, 2)),
    ("...ij->...ji", (2, 3, 4)), ("ij,jk->ikj", (2, 3), (3, 2)), ("i,->i", (3,), ()), ("ij,j->i", (2, 3), (1,)), ("ij->k", (2, 2)),
    ("ij,jk->ii", (2, 2), (2, 2)), ("ijk->ij", (2, 2)), ("i1->i", (2, 2)), ("abcdefgh->hgfedcba", (1, 2, 1, 2, 1, 2, 1, 2)),
]  # fmt: skip


def einsums(g, grad):
    for dtype in (torch.float32, torch.float64, torch.int64):
        for equation, *shapes in EINSUM:
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


def make():
    g, grad = Group("vocabulary"), Group("grad_vocabulary")
    for part in (convolutions, padding, losses, activations, picking, einsums):
        part(g, grad)
    g.write()
    grad.write()
