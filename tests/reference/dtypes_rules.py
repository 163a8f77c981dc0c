"""What PyTorch says of calls on any type: how they are noted, and where this crate decides
otherwise (`OTHERWISE`, with the reason); those calls are left out."""

import torch

from elementwise import FLOAT_ONLY
from store import FLOATS, Group, as_tuple, refused

F = torch.nn.functional
B, U, I, L, S = torch.bool, torch.uint8, torch.int32, torch.int64, torch.float32


def has(*kinds):
    return lambda types, ins, attrs: bool(types & set(kinds))


def empty(types, ins, attrs):
    return any(isinstance(t, torch.Tensor) and t.numel() == 0 for t in ins)


def ints(types, ins, attrs):
    return not types <= set(FLOATS)


ALWAYS_FLOAT = [
    (
        ints,
        "PyTorch has no such kernel; integers and bool are computed in float32, as by "
        "other functions",
    )
]
FLOATS_ALONE = [
    (
        ints,
        "PyTorch multiplies integers where it has a kernel, and often only of nothing; "
        "floats alone are taken here",
    )
]
OF_NOTHING = [
    (
        lambda types, ins, attrs: empty(types, ins, attrs) and ints(types, ins, attrs),
        "PyTorch looks at the type only where there are elements",
    )
]
BOOL = [(has(B), "PyTorch has no such kernel, or one of nothing alone")]
PARTS = "PyTorch takes its channels to be there, and here a dimension is as good as another"
OTHERWISE = {
    **{row: ALWAYS_FLOAT for row in ("elu", "leaky_relu", *FLOAT_ONLY)},
    **{f"{row}{n}d": FLOATS_ALONE for row in ("conv", "conv_transpose", "avg_pool") for n in (1, 2,
    3)},
    **{row: OF_NOTHING for row in ("softmax", "log_softmax", "batch_norm",
    "scaled_dot_product_attention")},
    "batch_norm_train": [(empty, "of no batch there is no mean, and averages would become NaN")],
    **{row: BOOL for row in ("sign", "square", "sub", "pow", "topk", "clamp", "clamp_min",
    "clamp_max", "matmul", "mm", "bmm", "addmm", "linear")},
    "any": [(has(U), "PyTorch's is uint8 then; here a truth value is bool")],
    "all": [(has(U), "PyTorch's is uint8 then; here a truth value is bool")],
    "where_cond": [(lambda types, ins, attrs: ins[0].dtype == U,
    "PyTorch says itself that it will be an error")],
    "pad_mode": [(empty, PARTS)],
    "interpolate": [(ints,
        "PyTorch's nearest is of uint8 alone, and so is its mean of integers; here places are of "
        "any type, and means of floats")],
    "einsum": [
        (lambda types, ins, attrs: attrs["equation"] in ("ij,kj->i",) and ints(types, ins, attrs),
        "PyTorch fails at its own type of a sum"),
        (lambda types, ins, attrs: attrs["equation"] == "i,j->i" and ints(types, ins, attrs),
        "PyTorch's type depends on whether a size is 1"),
    ],
}  # fmt: skip


def x(dtype, shape=(2, 3), start=0):
    n = torch.Size(shape).numel()
    y = (torch.arange(n) * 2 + start) % 5
    return (y % 2 == 0 if dtype == B else y).to(dtype).reshape(shape)


class Calls:
    def __init__(self):
        self.g, self.row = Group("dtypes"), None

    def call(self, op, f, ins, attrs=None, otherwise=False):
        attrs = attrs or {}
        types = {t.dtype for t in ins if isinstance(t, torch.Tensor)}
        if otherwise or any(rule(types, ins, attrs) for rule, _ in OTHERWISE.get(self.row, ())):
            return
        if refused(f, ins, attrs):
            self.g.case(op, ins, attrs, "error", row=self.row)
            return
        out = as_tuple(f(*ins, **attrs))
        wide = [t.double() if isinstance(t, torch.Tensor) and t.dtype in FLOATS else t for t in ins]
        if any(t.dtype in FLOATS for t in out) and not refused(f, wide, attrs):
            exact = as_tuple(f(*wide, **attrs))
            out = tuple(e.to(t.dtype) if t.dtype in FLOATS else t for e, t in zip(exact, out))
        self.g.case(op, ins, attrs, out, "near:16:4e-6", row=self.row)

    def of(
        self, row, op, f, attrs=None, shapes=((2, 3), (0, 3), ()), types=(B, U, I, L, S), more=()
    ):
        """The op on each type, and on nothing and a single number of some."""
        self.row = row
        for shape in shapes:
            for dtype in (
                types if len(shape) and 0 not in shape else [t for t in types if t in (B, L, S)]
            ):
                self.call(
                    op,
                    f,
                    [x(dtype, shape), *(m(dtype, shape) if callable(m) else m for m in more)],
                    attrs,
                )
