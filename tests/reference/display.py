"""How PyTorch prints tensors: `display.jsonl` has the text.

`torch.` before a type's name is left out before PyTorch decides whether it fits on the line.
"""

import json

import torch
from torch import _tensor_str

from elementwise import edges, noise
from store import DTYPES, FLOATS, STORAGE, Group, dtype_name


def values():
    nan, inf = float("nan"), float("inf")
    t = lambda x, d=torch.float32: torch.tensor(x, dtype=torch.float64).to(d)  # noqa: E731
    yield t([[3.0, 3.0]])
    for d in DTYPES:
        yield noise(d, (), "show")
        for shape in (
            (0,),
            (1,),
            (5,),
            (0, 3),
            (2, 0, 3),
            (3, 4),
            (2, 3, 2),
            (1, 1, 1, 1),
            (40,),
            (2, 2, 1, 3),
        ):
            yield noise(d, shape, "show")
        yield noise(d, (12, 100), "show")
    for d in FLOATS:
        for x in (
            [nan], [inf, -inf], [nan, 1.0, -inf], [0.0, -0.0], [0.0, 1.5], [-0.0, 1.5, nan],
            [1.0, 2.0, nan, -inf], [0.5, inf],
            [1000.0, 1.0], [1001.0, 1.0], [0.1, 100.5], [1e-4], [0.9e-4], [1e-5, 1e-5],
            [123456.0, 123456.0], [65504.0, 1.0],
            [0.03125, 0.09375, 0.15625], [2.5, 3.5], [0.99999, 0.5], [9.99995, 1.5], [-1.0, -22.0],
            [1e4, nan, 0.0],
        ):  # fmt: skip
            yield t(x, d)
        yield t(3.0, d)
        yield t(-0.0, d)
        yield t(nan, d)
        yield edges(d)
    for x in (
        [1e8],
        [1.0001e8],
        [1e8, 1e8 + 8],
        [3e38, 1e-45],
        [1e10, 2e10],
        [99999999.0, 0.0],
        [16777216.0, 33554432.0],
        [1e20, nan, inf],
    ):
        yield t(x)
        yield t(x, torch.float64)
    yield t([1e-300, 1e-310, 5e-324, 1e300], torch.float64)
    yield t([1e100, 1.5e200, -1e-100], torch.float64)
    yield t([0.1, 0.2], torch.float64)
    big = torch.iinfo(torch.int64)
    yield torch.tensor([big.min, big.max, 0])
    yield torch.tensor([[1, -200], [33, 4]])
    # Wrapping at 80 columns, at every depth, and suffixes that do not fit on the last line.
    for n in (13, 14, 15, 26, 27):
        yield torch.arange(n) + 1000
        yield torch.arange(n, dtype=torch.float32)
        yield torch.arange(n, dtype=torch.int32)
    for n in range(5, 12):
        yield torch.arange(n, dtype=torch.float64) / 4
        yield torch.arange(n, dtype=torch.float16) / 4
    yield torch.arange(60.0).reshape(2, 30)
    yield torch.arange(120.0).reshape(2, 2, 30) / 3
    # Summaries, of more than 1000 elements.
    for shape in (
        (1000,),
        (1001,),
        (6, 200),
        (7, 200),
        (200, 6),
        (200, 7),
        (3, 4, 100),
        (11, 10, 10),
        (2, 2, 2, 2, 80),
        (1001, 1),
        (1, 1001),
        (7, 1, 7, 30),
    ):
        n = torch.tensor(shape).prod().item()
        yield torch.arange(n).to(torch.int32).reshape(shape)
    for shape in ((1, 1, 1200), (10, 120), (8, 9, 16)):
        n = torch.tensor(shape).prod().item()
        yield (torch.arange(n).remainder(251) / 8).to(torch.float16).reshape(shape)
    hidden = torch.zeros(1200)
    hidden[600] = 0.5  # not among the edges, so it does not decide the look
    yield hidden
    hidden = torch.ones(40, 40)
    hidden[20, 1] = 1e9
    yield hidden
    for d in STORAGE:
        yield t([0.0, 1.0, 120.0], d)
        yield t([[1.0, 100.0], [7.0, 0.0]], d)
        yield t(3.0, d)
        yield t([], d)
        yield (torch.arange(1200) % 100).to(d).reshape(30, 40)
    for d in STORAGE[5:]:
        yield t([0.3, -1.5, nan, 1e-2, 448.0], d)
    yield torch.tensor([0, 2**64 - 1], dtype=torch.uint64)
    yield torch.tensor([-128, 127], dtype=torch.int8)


def make():
    g = Group("display")
    default, add = torch._C._get_default_device, _tensor_str._add_suffixes
    short = lambda s: s.replace("torch.", "")  # noqa: E731
    _tensor_str._add_suffixes = lambda text, suffixes, *a, **k: add(
        text, [short(s) for s in suffixes], *a, **k
    )
    for k, x in enumerate(values()):
        # A device is shown where it is not the default one: the default is said to be another.
        for device in (None, "cpu") if k % 7 == 0 else (None,):
            torch._C._get_default_device = default if device is None else (lambda: "another")
            text = repr(x)
            torch._C._get_default_device = default
            g.lines.append(
                json.dumps(
                    {
                        "in": g.tensor(x),
                        "dtype": dtype_name(x.dtype),
                        "device": device,
                        "want": text,
                    }
                )
            )
    g.write()
