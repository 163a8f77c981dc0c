"""Attention: products of queries and keys with masks, over pages, of heads in groups, and turned
positions."""

import torch

import store
from elementwise import noise
from store import FLOATS, In, numeric

F = torch.nn.functional


def products(g, grad):
    for dtype in FLOATS:
        gr = grad if dtype in FLOATS[:2] else None
        q, k, v = (noise(dtype, (2, 2, n, 4), key) for n, key in ((3, "q"), (5, "k"), (5, "v")))
        # noqa: E731
        f = lambda q, k, v, mask=None, is_causal=False: F.scaled_dot_product_attention(
            q, k, v, mask, is_causal=is_causal
        )
        numeric(
            g,
            "scaled_dot_product_attention",
            f,
            [q, k, v, None],
            {"is_causal": False},
            n=16,
            ulp=16,
            grad=gr,
        )
        numeric(
            g,
            "scaled_dot_product_attention",
            f,
            [k, k, v, None],
            {"is_causal": True},
            n=16,
            ulp=16,
            grad=gr,
        )
        mask = noise(torch.bool, (3, 5), "mask")
        mask[:, 0] = True
        numeric(
            g,
            "scaled_dot_product_attention",
            f,
            [q, k, v, mask],
            {"is_causal": False},
            n=16,
            ulp=16,
            grad=gr,
        )
        bias = noise(dtype, (2, 1, 3, 5), "bias")
        numeric(
            g,
            "scaled_dot_product_attention",
            f,
            [q, k, v, bias],
            {"is_causal": False},
            n=16,
            ulp=16,
            grad=gr,
        )


def scaled(g, grad):
    for dtype in FLOATS:
        gr = grad if dtype in FLOATS[:2] else None
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


def capped(q, k, v, seen, scale, cap):
    """As `transformers` has it for Gemma 2."""
    k, v = (x.repeat_interleave(q.shape[-3] // k.shape[-3], -3) for x in (k, v))
    scores = torch.tanh(q @ k.transpose(-2, -1) * scale / cap) * cap
    return torch.softmax(scores.masked_fill(~seen, -torch.inf), -1) @ v


def paged(q, k, v, table, lengths, causal, scale, cap=None, window=None):
    """Attention of each row over its pages one after the other, by PyTorch's own."""
    rows = []
    for b, length in enumerate(lengths.tolist()):
        page, n = k.shape[1], q.shape[1]
        names = table[b, : -(-length // page)].long()
        keys, values = (x[names].flatten(0, 1)[:length].to(q.dtype).transpose(0, 1) for x in (k, v))
        last = (length - n + torch.arange(n) if causal else torch.full((n,), length - 1))[:, None]
        seen = torch.arange(length) <= last
        if window:
            seen &= torch.arange(length) > last - window
        of = [q[b].transpose(0, 1)[None], keys[None], values[None], seen]
        found = (
            capped(*of, scale, cap)
            if cap
            else F.scaled_dot_product_attention(*of, scale=scale, enable_gqa=True)
        )
        rows.append(found[0].transpose(0, 1))
    return torch.stack(rows)


def pages(g, grad):
    table = torch.tensor([[4, 0, 2, 1000], [1, 3, -7, 1000], [5, 1000, 1000, -1]])
    for n, heads, shared, width, wide, causal in (
        (1, 6, 2, 16, 16, False),
        (3, 4, 4, 5, 7, True),
        (2, 3, 1, 8, 20, True),
    ):
        for dtype, half in (
            (torch.float32, None),
            (torch.float64, None),
            (torch.float32, torch.float16),
        ):
            k, v = (
                noise(dtype, (6, 4, shared, width), "k", scale=0.3),
                noise(dtype, (6, 4, shared, wide), "v"),
            )
            if half:
                k, v = k.to(half), v.to(half)
            ins = [
                noise(dtype, (3, n, heads, width), "q", scale=0.3),
                k,
                v,
                table,
                torch.tensor([11, 6, 3], dtype=torch.int32),
            ]
            for more in ({}, {"cap": 0.05}, {"window": 3}):
                numeric(
                    g,
                    "paged_attention",
                    paged,
                    ins,
                    {"causal": causal, "scale": 0.4, **more},
                    n=16,
                    ulp=16,
                    grad=None if half else grad,
                )


def grouped(q, k, v, lengths, causal, scale):
    """Attention of heads in groups over the first keys of each row, by PyTorch's own."""
    seen = torch.arange(k.shape[-2]) < lengths[:, None, None, None]
    if causal:
        seen = seen & (torch.arange(k.shape[-2]) <= torch.arange(q.shape[-2])[:, None])
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, seen, scale=scale, enable_gqa=True
    )


def groups(g, grad):
    for heads, shared, causal in ((4, 2, False), (3, 1, True), (2, 2, False)):
        for dtype in (torch.float32, torch.float64, torch.float16):
            # noqa: E731
            of = lambda n, rows, width, name: noise(
                dtype, (3, n, rows, width), name, heads, scale=0.4
            )
            ins = [
                of(heads, 5, 8, "gq"),
                of(shared, 6, 8, "gk"),
                of(shared, 6, 7, "gv"),
                torch.tensor([6, 1, 4]),
            ]
            keep = grad if dtype != torch.float16 else None
            numeric(
                g,
                "grouped_attention",
                grouped,
                ins,
                {"causal": causal, "scale": 0.4},
                n=16,
                ulp=16,
                grad=keep,
            )


def rope(x, cosine, sine, interleaved):
    a, b = (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)
    turned = [a * cosine - b * sine, a * sine + b * cosine]
    return (torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)).to(
        x.dtype
    )


def turns(g, grad):
    for interleaved in (False, True):
        for dtype in FLOATS:
            table = torch.float64 if dtype == torch.float64 else torch.float32
            angles = torch.arange(5)[:, None] / 100 ** (torch.arange(6) / 6)
            tables = [f(angles.double()).to(table) for f in (torch.cos, torch.sin)]
            for x in (
                noise(dtype, (2, 3, 5, 12), "rope"),
                In(noise(dtype, (2, 5, 3, 12), "ropet"), ["transpose", 1, 2]),
            ):
                keep = grad if dtype in (torch.float32, torch.float64) else None
                numeric(
                    g,
                    "rope",
                    rope,
                    [x, *tables],
                    {"interleaved": interleaved},
                    n=4,
                    ulp=4,
                    grad=keep,
                )


def make():
    g, grad = store.group("attention"), store.group("grad_attention")
    for part in (products, scaled, pages, groups, turns):
        part(g, grad)
