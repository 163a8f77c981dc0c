"""Convolutions and pooling over one, two and three dimensions, with padding that differs before and
after and with dilated windows; `interpolate`. What PyTorch has no option for is made of `pad`, of a
crop, or of a convolution."""

import torch

import store
from elementwise import noise
from store import FLOATS, In, numeric

F = torch.nn.functional
CONVS = [  # sizes, channels, out, kernel, stride, before, after, dilation, groups
    ((9,), 2, 3, (3,), (1,), (2,), (0,), (1,), 1), ((8,), 4, 6, (2,), (2,), (0,), (1,), (3,), 2),
    ((5, 6), 2, 4, (2, 3), (1, 2), (0, 2), (1, 0), (1, 1), 1),
    ((4, 5), 3, 3, (2, 2), (1, 1), (1, 0), (0, 3), (2, 1), 3),
    ((3, 4, 5), 2, 5, (2, 2, 3), (1, 1, 1), (0, 0, 0), (0, 0, 0), (1, 1, 1), 1),
    ((4, 3, 5), 4, 2, (3, 2, 2), (2, 1, 2), (1, 1, 1), (1, 1, 1), (1, 2, 1), 2),
    ((3, 5, 4), 2, 2, (2, 3, 1), (1, 2, 1), (1, 0, 0), (0, 2, 1), (2, 1, 1), 1),
    ((2, 3, 3), 3, 4, (1, 1, 1), (1, 1, 1), (0, 0, 0), (0, 0, 0), (1, 1, 1), 1),
]  # fmt: skip
# sizes, channels, out, kernel, stride, before, after, output padding, dilation, groups
TRANSPOSED = [
    ((4,), 2, 3, (3,), (2,), (1,), (0,), (1,), (1,), 1),
    ((3, 4), 4, 2, (3, 2), (2, 1), (1, 0), (0, 1), (0, 0), (1, 2), 2),
    ((2, 3, 2), 2, 3, (2, 3, 2), (1, 1, 1), (0, 0, 0), (0, 0, 0), (0, 0, 0), (1, 1, 1), 1),
    ((2, 3, 3), 4, 4, (3, 2, 3), (2, 2, 1), (1, 0, 1), (1, 0, 1), (1, 1, 0), (1, 1, 1), 2),
    ((3, 2, 3), 5, 1, (2, 2, 2), (2, 3, 1), (0, 1, 0), (1, 0, 1), (1, 2, 0), (1, 1, 2), 1),
    # More behind than a stride, and less than the dilation.
    ((3,), 1, 1, (2,), (1,), (0,), (0,), (1,), (3,), 1),
    ((3, 2), 4, 2, (2, 3), (1, 2), (1, 0), (2, 1), (3, 2), (4, 3), 2),
    ((2, 2, 1), 2, 2, (2, 1, 2), (2, 1, 1), (1, 0, 0), (0, 0, 1), (4, 1, 2), (5, 2, 3), 1),
]  # fmt: skip
POOLS = [  # sizes, kernel, stride, before, after, dilation, ceil
    ((9,), (3,), (2,), (1,), (1,), (1,), False), ((8,), (2,), (1,), (0,), (1,), (3,), False),
    ((10,), (3,), (2,), (0,), (0,), (1,), True),
    ((5, 6), (2, 2), (1, 1), (0, 0), (1, 1), (1, 1), False),
    ((6, 5), (3, 2), (2, 1), (1, 1), (0, 0), (1, 2), False),
    ((7, 7), (3, 3), (2, 2), (2, 2), (2, 2), (1, 1), False),
    ((4, 5, 6), (2, 2, 2), (2, 2, 2), (0, 0, 0), (0, 0, 0), (1, 1, 1), False),
    ((5, 4, 6), (3, 2, 3), (2, 2, 1), (1, 1, 1), (1, 1, 1), (1, 1, 1), True),
    ((4, 5, 4), (2, 3, 2), (1, 1, 2), (0, 1, 1), (1, 0, 1), (2, 1, 1), False),
]  # fmt: skip


def flat(before, after):
    """Counts for `F.pad`: the last dimension first."""
    return [n for pair in reversed(list(zip(before, after))) for n in pair]


def convolve(x, w, b, stride, before, after, dilation, groups):
    f = (F.conv1d, F.conv2d, F.conv3d)[len(stride) - 1]
    return f(F.pad(x, flat(before, after)), w, b, stride=stride, dilation=dilation, groups=groups)


def transpose(x, w, b, stride, before, after, output_padding, dilation, groups):
    f = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[len(stride) - 1]
    # PyTorch's padding is a crop; what is put behind comes before the crop.
    y = f(x, w, b, stride=stride, dilation=dilation, groups=groups)
    more = [p - q for p, q in zip(output_padding, after)]
    y = (
        y
        if max(more) <= 0
        else torch.cat(
            [
                f(
                    F.pad(x, flat([0] * len(stride), list(output_padding))),
                    w,
                    b,
                    stride=stride,
                    dilation=dilation,
                    groups=groups,
                )
            ]
        )
    )
    for d, (p, q) in enumerate(zip(before, after)):
        size = (
            (x.shape[2 + d] - 1) * stride[d]
            + dilation[d] * (w.shape[2 + d] - 1)
            + 1
            + output_padding[d]
            - p
            - q
        )
        y = y.narrow(2 + d, p, size)
    return y


def largest(x, kernel_size, stride, before, after, dilation, ceil_mode):
    f = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[len(stride) - 1]
    padded = F.pad(x, flat(before, after), value=float("-inf"))
    y, at = f(padded, kernel_size, stride, 0, dilation, ceil_mode, return_indices=True)
    # From a position among the padded ones to its own.
    index, rest, step = torch.zeros_like(at), at, 1
    for d in reversed(range(len(stride))):
        wide, size = padded.shape[2 + d], x.shape[2 + d]
        index, rest, step = index + (rest % wide - before[d]) * step, rest // wide, step * size
    return y, index


def mean(
    x,
    kernel_size,
    stride,
    before,
    after,
    dilation,
    ceil_mode,
    count_include_pad=True,
    divisor_override=None,
):
    n = len(stride)
    f = (F.conv1d, F.conv2d, F.conv3d)[n - 1]
    # A window that reaches beyond the padding, as a last one may, counts none of what is there.
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel_size)]
    over = [s - 1 if ceil_mode else 0 for s in stride]
    size = [x.shape[2 + d] for d in range(n)]
    out = [(size[d] + before[d] + after[d] + over[d] - reach[d]) // stride[d] + 1 for d in range(n)]
    out = [
        o - 1 if ceil_mode and (o - 1) * stride[d] >= size[d] + before[d] else o
        for d, o in enumerate(out)
    ]
    ones = torch.ones(1, 1, *size, dtype=x.dtype)
    if count_include_pad:
        ones = F.pad(ones, flat(before, after), value=1.0)
    else:
        ones = F.pad(ones, flat(before, after))
    beyond = flat([0] * n, over)
    w = torch.ones(1, 1, *kernel_size, dtype=x.dtype)
    # noqa: E731
    sums = lambda x: f(x, w, stride=stride, dilation=dilation)[(..., *(slice(0, o) for o in out))]
    y = sums(
        F.pad(F.pad(x, flat(before, after)), beyond).reshape(
            -1, 1, *(s + b + a + o for s, b, a, o in zip(size, before, after, over))
        )
    )
    by = divisor_override or sums(F.pad(ones, beyond))
    return (y / by).reshape(*x.shape[:2], *out)


def windows(g, grad):
    wide = {"wide": True, "n": 16, "ulp": 4, "scale": 200.0}
    for dtype in FLOATS:
        gr = grad if dtype == torch.float32 else None
        for i, (size, c, o, k, s, p, q, d, groups) in enumerate(CONVS):
            ins = [
                noise(dtype, (2, c, *size), "wx"),
                noise(dtype, (o, c // groups, *k), "ww"),
                noise(dtype, (o,), "wb") if i % 2 else None,
            ]
            attrs = {"stride": s, "before": p, "after": q, "dilation": d, "groups": groups}
            numeric(g, f"conv{len(size)}d", convolve, ins, attrs, grad=gr, **wide)
        turned = In(noise(dtype, (2, 4, 3, 5, 2), "wt"), ("permute", [0, 4, 2, 1, 3]))
        attrs = {
            "stride": [1, 1, 2],
            "before": [1, 0, 1],
            "after": [0, 0, 1],
            "dilation": [1, 1, 1],
            "groups": 1,
        }
        numeric(
            g,
            "conv3d",
            convolve,
            [turned, noise(dtype, (3, 2, 2, 2, 3), "ww"), None],
            attrs,
            grad=gr,
            **wide,
        )
        for i, (size, c, o, k, s, p, q, op, d, groups) in enumerate(TRANSPOSED):
            ins = [
                noise(dtype, (2, c, *size), "wx"),
                noise(dtype, (c, o // groups, *k), "wt"),
                noise(dtype, (o,), "wb") if i % 2 else None,
            ]
            attrs = {
                "stride": s,
                "before": p,
                "after": q,
                "output_padding": op,
                "dilation": d,
                "groups": groups,
            }
            numeric(g, f"conv_transpose{len(size)}d", transpose, ins, attrs, grad=gr, **wide)
        for size, k, s, p, q, d, ceil in POOLS:
            x = noise(dtype, (2, 2, *size), "wp")
            attrs = {
                "kernel_size": k,
                "stride": s,
                "before": p,
                "after": q,
                "dilation": d,
                "ceil_mode": ceil,
            }
            if not ceil or p == q == (0,) * len(size):
                op = f"max_pool{len(size)}d_with_positions"
                numeric(g, op, largest, [x], attrs, grad=gr)
                # Equals, of which the first has what flows back.
                numeric(g, op, largest, [x.round()], attrs, grad=gr)
            for more in ({}, {"count_include_pad": False}, {"divisor_override": 5}):
                numeric(
                    g,
                    f"avg_pool{len(size)}d",
                    mean,
                    [x],
                    {**attrs, **more},
                    n=16,
                    wide=True,
                    grad=gr,
                )
        # PyTorch's own, where it has the options.
        for n, x in (
            (1, noise(dtype, (2, 3, 9), "wp")),
            (3, noise(dtype, (2, 3, 4, 5, 4), "wp")),
            (3, noise(dtype, (3, 5, 4, 5), "wp")),
        ):
            a = {"kernel_size": [3] * n, "stride": [2] * n, "padding": [1] * n, "ceil_mode": True}
            most = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[n - 1]
            full = lambda x, **a: most(x, **a, return_indices=True)  # noqa: E731
            numeric(g, f"max_pool{n}d_with_positions", full, [x], a, grad=gr)
            average = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[n - 1]
            # Of halves PyTorch has no means of volumes.
            for more in ({}, {"count_include_pad": False}) if n < 3 or dtype in FLOATS[:2] else ():
                # noqa: B023
                numeric(
                    g, f"avg_pool{n}d", lambda x, **a: average(x, **a), [x], {**a, **more}, grad=gr
                )


SIZES = [
    ((5,), (8,)),
    ((7,), (3,)),
    ((4, 5), (7, 5)),
    ((3, 4), (6, 12)),
    ((6, 7), (3, 2)),
    ((2, 3), (1, 1)),
    ((1, 2), (3, 5)),
    ((2, 3, 4), (5, 2, 7)),
]
SCALES = [
    ((5,), 2.0),
    ((7,), 1.3),
    ((4, 5), 1.5),
    ((4, 6), [0.5, 2.7]),
    ((10, 9), 1.05),
    ((2, 3, 4), [2.0, 1.5, 0.6]),
]


def interpolation(g, grad):
    f = lambda x, **a: F.interpolate(x, **a)  # noqa: E731
    for dtype in FLOATS:
        gr = grad if dtype == torch.float32 else None
        for target, cases in (("size", SIZES), ("scale_factor", SCALES)):
            for size, to in cases:
                x = noise(dtype, (2, 2, *size), "ip")
                to = list(to) if isinstance(to, tuple) else to
                for mode in ("nearest", "nearest-exact"):
                    numeric(g, "interpolate", f, [x], {target: to, "mode": mode}, grad=gr)
                smooth = ["linear", "bilinear", "trilinear"][len(size) - 1]
                for mode in [smooth] + (["bicubic"] if len(size) == 2 else []):
                    for align in (False, True):
                        # At a factor a little off 1 PyTorch's gradient is that of a copy, which its
                        # values are not.
                        known = None if mode == "bicubic" and to == 1.05 else gr
                        numeric(
                            g,
                            "interpolate",
                            f,
                            [x],
                            {target: to, "mode": mode, "align_corners": align},
                            n=16,
                            wide=True,
                            grad=known,
                        )
        view = In(noise(dtype, (3, 4, 2, 2), "ip"), ("permute", [2, 3, 1, 0]))
        numeric(
            g,
            "interpolate",
            f,
            [view],
            {"size": [5, 6], "mode": "bilinear", "align_corners": False},
            n=16,
            wide=True,
            grad=gr,
        )
    bytes_ = noise(torch.uint8, (2, 2, 3, 4), "ip")
    numeric(g, "interpolate", f, [bytes_], {"size": [5, 3], "mode": "nearest"})
    x = noise(torch.float32, (2, 2, 3, 4), "ip")
    for wrong in (
        {"size": [0, 3]},
        {"size": [3, 3, 3]},
        {"scale_factor": 0.1},
        {"scale_factor": [2.0, 2.0, 2.0]},
    ):
        numeric(g, "interpolate", f, [x], {**wrong, "mode": "bilinear", "align_corners": False})
    numeric(g, "interpolate", f, [x], {"size": [3, 3], "mode": "nearest", "align_corners": True})
    numeric(g, "interpolate", f, [x[0, 0]], {"size": [3], "mode": "nearest"})


CONV1 = [  # batch, channels, length, out channels, kernel, stride, padding, dilation, groups
    (2, 3, 8, 4, 3, 1, 0, 1, 1), (1, 2, 9, 2, 3, 2, 1, 1, 1), (2, 4, 10, 4, 3, 1, 2, 2, 2),
    (1, 1, 5, 1, 5, 1, 0, 1, 1),
    (2, 3, 7, 3, 3, 1, 1, 1, 3), (1, 2, 6, 3, 1, 1, 0, 1, 1),
]  # fmt: skip

# batch, channels, height, width, out channels, kernel h, w, stride, padding, dilation, groups
CONV2 = [
    (2, 3, 5, 6, 4, 3, 3, [1, 1], [0, 0], [1, 1], 1),
    (1, 2, 7, 5, 3, 3, 2, [2, 1], [1, 0], [1, 1], 1),
    (1, 4, 6, 6, 4, 3, 3, [1, 1], [2, 2], [2, 2], 2),
    (2, 3, 4, 4, 3, 3, 3, [1, 2], [1, 1], [1, 1], 3),
    (1, 2, 3, 3, 2, 3, 3, [1, 1], [0, 0], [1, 1], 1),
    (2, 2, 4, 5, 3, 1, 1, [1, 1], [0, 0], [1, 1], 1),
]  # fmt: skip


def plain(g, grad):
    for dtype in FLOATS:
        gr = grad if dtype == torch.float32 else None
        wide = {"wide": True, "n": 16, "ulp": 4}
        for k, (n, c, length, o, k1, s, p, d, groups) in enumerate(CONV1):
            ins = [
                noise(dtype, (n, c, length), "c1"),
                noise(dtype, (o, c // groups, k1), "w1"),
                noise(dtype, (o,), "b1") if k % 2 else None,
            ]
            attrs = {"stride": s, "padding": p, "dilation": d, "groups": groups}
            numeric(
                g,
                "conv1d",
                lambda x, w, b, **a: F.conv1d(x, w, b, **a),
                ins,
                attrs,
                grad=gr,
                scale=100.0,
                **wide,
            )
        for k, (n, c, h, w, o, kh, kw, s, p, d, groups) in enumerate(CONV2):
            ins = [
                noise(dtype, (n, c, h, w), "c2"),
                noise(dtype, (o, c // groups, kh, kw), "w2"),
                noise(dtype, (o,), "b2") if k % 2 else None,
            ]
            attrs = {"stride": s, "padding": p, "dilation": d, "groups": groups}
            numeric(
                g,
                "conv2d",
                lambda x, w, b, **a: F.conv2d(x, w, b, **a),
                ins,
                attrs,
                grad=gr,
                scale=200.0,
                **wide,
            )
        x = noise(dtype, (2, 2, 6, 7), "pool")
        for k, s, p in (
            ([2, 2], [2, 2], [0, 0]),
            ([3, 2], [1, 2], [1, 1]),
            ([3, 3], [2, 2], [1, 0]),
            ([6, 7], [1, 1], [0, 0]),
            ([2, 2], [2, 2], [2, 2]),
        ):
            attrs = {"kernel_size": k, "stride": s, "padding": p}
            numeric(g, "max_pool2d", lambda x, **a: F.max_pool2d(x, **a), [x], attrs, grad=gr)
            numeric(g, "avg_pool2d", lambda x, **a: F.avg_pool2d(x, **a), [x], attrs, grad=gr)
    x = noise(torch.float32, (1, 2, 4, 4), "bad")
    for w in ((3, 1, 3, 3), (3, 2, 5, 5), (3, 2, 3)):
        attrs = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": 1}
        numeric(
            g,
            "conv2d",
            lambda x, w, b, **a: F.conv2d(x, w, b, **a),
            [x, noise(torch.float32, w), None],
            attrs,
        )
    y = torch.tensor([[[[1.0, float("nan")], [float("-inf"), 2.0]]]])
    numeric(
        g,
        "max_pool2d",
        lambda x, **a: F.max_pool2d(x, **a),
        [y],
        {"kernel_size": [1, 2], "stride": [1, 2], "padding": [0, 0]},
    )


# batch, channels, height, width, out, kernel, stride, padding, output padding, dilation, groups
BACK = [
    (2, 3, 4, 5, 4, (3, 3), (1, 1), (0, 0), (0, 0), (1, 1), 1),
    (1, 4, 3, 4, 6, (3, 2), (2, 3), (1, 0), (1, 2), (1, 1), 2),
    (2, 3, 3, 3, 3, (3, 3), (2, 1), (2, 1), (0, 0), (2, 1), 3),
    (1, 8, 3, 3, 8, (2, 2), (2, 2), (0, 0), (0, 0), (1, 1), 1),
]  # fmt: skip

CORNERS = [
    dict(kernel_size=[3, 3], stride=[2, 2], padding=[1, 1], ceil_mode=True),
    dict(kernel_size=[2, 3], stride=[2, 2], padding=[0, 1], ceil_mode=True),
    dict(kernel_size=[2, 2], stride=[3, 3], padding=[1, 1], ceil_mode=True),
]  # fmt: skip


def corners(g, grad):
    wide = {"wide": True, "n": 16, "ulp": 4, "scale": 200.0}
    for dtype in FLOATS:
        gr = grad if dtype == torch.float32 else None
        for i, (n, c, h, w, o, k, s, p, op, d, groups) in enumerate(BACK):
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
        for a in CORNERS:
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
            CORNERS[0],
            grad=gr,
        )
        numeric(g, "avg_pool2d", lambda x, **a: F.avg_pool2d(x, **a), [view], CORNERS[0], grad=gr)


def infinite(g, grad):
    """An infinite weight beside elements that are 0, and elements beside none."""
    transposed = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
    for n, f in enumerate(transposed, 1):
        for dtype in (torch.float32, torch.bfloat16):
            for stride, dilation, padding, groups in (
                (1, 1, 0, 1), (2, 1, 0, 1), (3, 1, 1, 1), (2, 2, 1, 2), (3, 2, 2, 1), (1, 3, 0, 2),
            ):  # fmt: skip
                x, w = noise(dtype, (2, 4, *[5, 4, 3][:n]), "ix"), noise(dtype, (4, 3, *[3] * n))
                x[:, :, 1], w[0, 0].view(-1)[0] = 0, float("inf")
                w[1, 2].view(-1)[-1], x[1, 3].view(-1)[-1] = float("nan"), float("-inf")
                a = {
                    "stride": [stride] * n,
                    "padding": [padding] * n,
                    "output_padding": [0] * n,
                    "dilation": [dilation] * n,
                    "groups": groups,
                }
                call = lambda x, w, b, f=f, **a: f(x, w, b, **a)  # noqa: E731
                # PyTorch's float32 multiplies zeros between the elements, and has NaN there for
                # some strides; its float64 has none.
                op, how = f"conv_transpose{n}d", {"n": 16, "scale": 200.0, "check": False}
                numeric(g, op, call, [x, w, None], a, wide=True, **how)


def make():
    g, grad = store.group("windows"), store.group("grad_windows")
    for part in (plain, corners, windows, interpolation, infinite):
        part(g, grad)
