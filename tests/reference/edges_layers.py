"""The gradients of `edges.py` for products, attention, convolutions, pooling, normalisation and
losses."""

import torch

from slopes import F, FEW, INF, NAN, case, pairs, rows


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


PARTS = (products, windows, layers)
