"""The calls of `dtypes.py` for products, convolutions, pooling, normalisation and losses."""

import torch

import edges_layers
from dtypes_rules import B, F, I, L, S, U, x


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
                lambda x, c, s, interleaved: edges_layers.rope(x, c, s),
                [x(dtype, (2, 4)), x(dtype, (2, 2)), x(dtype, (2, 2), 1)],
                {"interleaved": False},
            )
            k.call(
                "rope",
                lambda x, c, s, interleaved: edges_layers.rope(x, c, s),
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


PARTS = (products, windows, layers)
