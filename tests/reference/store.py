"""Where cases go: one `NAME.jsonl` (a case a line) and one `NAME.safetensors` (its tensors) a
group.

Tensors are named by a counter, equal ones are stored once, and headers are written in a fixed
order, so that running again gives the same bytes. See README.md for the fields of a case.
"""

import json
import math
import pathlib
import struct
import zlib

import torch

HERE = pathlib.Path(__file__).parent
NAMES = {
    torch.float32: ("F32", "float32"),
    torch.float64: ("F64", "float64"),
    torch.float16: ("F16", "float16"),
    torch.bfloat16: ("BF16", "bfloat16"),
    torch.int32: ("I32", "int32"),
    torch.int64: ("I64", "int64"),
    torch.uint8: ("U8", "uint8"),
    torch.bool: ("BOOL", "bool"),
    torch.int8: ("I8", "int8"),
    torch.int16: ("I16", "int16"),
    torch.uint16: ("U16", "uint16"),
    torch.uint32: ("U32", "uint32"),
    torch.uint64: ("U64", "uint64"),
    torch.float8_e4m3fn: ("F8_E4M3", "float8_e4m3fn"),
    torch.float8_e5m2: ("F8_E5M2", "float8_e5m2"),
}
# Those that ops compute in, and those that are only stored.
DTYPES, STORAGE = list(NAMES)[:8], list(NAMES)[8:]
FLOATS = DTYPES[:4]
INTS = DTYPES[4:7]


def dtype_name(dtype):
    return NAMES[dtype][1]


def random(*key):
    """A generator of its own for each key, so that adding a case does not move the others."""
    g = torch.Generator()
    g.manual_seed(zlib.crc32(repr(key).encode()))
    return g


class In:
    """A stored tensor seen through views that the reader applies again."""

    def __init__(self, base, *steps):
        self.base, self.steps = base.contiguous(), [list(s) for s in steps]

    def value(self):
        x = self.base
        for name, *args in self.steps:
            x = getattr(x, name)(*args)
        return x


def value(x):
    return x.value() if isinstance(x, In) else x


class Group:
    def __init__(self, name):
        self.name, self.tensors, self.seen, self.lines = name, [], {}, []

    def tensor(self, t):
        t = t.detach().contiguous()
        if t.dtype == torch.bfloat16 or t.dtype == torch.float16:
            raw = t.view(torch.int16).numpy().tobytes()
        elif t.dtype in STORAGE[5:]:
            raw = t.view(torch.uint8).numpy().tobytes()
        else:
            raw = t.numpy().tobytes()
        key = (t.dtype, tuple(t.shape), raw)
        if key not in self.seen:
            # safetensors wants wide types first, so the name cannot say the place in the file.
            self.seen[key] = f"t{len(self.tensors)}"
            self.tensors.append((self.seen[key], NAMES[t.dtype][0], list(t.shape), raw))
        return self.seen[key]

    def operand(self, x):
        if isinstance(x, bool):
            return {"b": x}
        if isinstance(x, int):
            return {"i": x}
        if isinstance(x, float):
            return {"f": repr(x)}
        if isinstance(x, In):
            return [self.tensor(x.base)] + x.steps
        if x is None:
            return None
        return self.tensor(x)

    def case(self, op, ins, attrs, out, tol="bits", **more):
        line = {"op": op, "in": [self.operand(x) for x in ins]}
        if attrs:
            line["attrs"] = attrs
        line["out"] = out if isinstance(out, str) else [self.tensor(t) for t in out]
        if line["out"] != "error":
            line["tol"] = tol
        line.update(more)
        self.lines.append(json.dumps(line, separators=(",", ":"), allow_nan=False))

    def write(self):
        if ONLY and self.name not in ONLY:
            return
        order = sorted(self.tensors, key=lambda t: (-WIDTH[t[1]], int(t[0][1:])))
        size = write_raw(HERE / f"{self.name}.safetensors", order)
        (HERE / f"{self.name}.jsonl").write_text("\n".join(self.lines) + "\n")
        print(f"{self.name}: {len(self.lines)} cases, {len(order)} tensors, {size} bytes")


# The groups that several scripts put cases into.
GROUPS = {}


def group(name):
    return GROUPS.setdefault(name, Group(name))


def write_raw(path, tensors):
    """A safetensors file of (name, type, shape, bytes); gives its size."""
    header, at = {}, 0
    for name, dtype, shape, raw in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(raw)]}
        at += len(raw)
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head)
        for *_, raw in tensors:
            f.write(raw)
    return 8 + len(head) + at


def write_tensors(path, named):
    """A safetensors file of tensors by name."""

    def raw(t):
        t = t.detach().contiguous()
        return (
            (t.view(torch.int16) if t.dtype in (torch.bfloat16, torch.float16) else t)
            .numpy()
            .tobytes()
        )

    entries = [(name, NAMES[t.dtype][0], list(t.shape), raw(t)) for name, t in named.items()]
    size = write_raw(path, sorted(entries, key=lambda e: (-WIDTH[e[1]], e[0])))
    print(f"{path.stem}: {len(entries)} tensors, {size} bytes")


WIDTH = {name: dtype.itemsize for dtype, (name, _) in NAMES.items()}
EPS = {
    torch.float32: 2.0**-23,
    torch.float64: 2.0**-52,
    torch.float16: 2.0**-10,
    torch.bfloat16: 2.0**-7,
}


def ordered(x):
    """Floats as integers in order, so that a difference counts the floats between; both zeros are
    0."""
    bits = {4: torch.int32, 8: torch.int64, 2: torch.int16}[x.element_size()]
    i = x.contiguous().view(bits).to(torch.int64)
    low = -(2 ** (8 * x.element_size() - 1))
    return torch.where(i < 0, low - i, i)


def agrees(got, want, tol, first=None):
    """The comparison that tests/ops_reference.rs makes: elementwise truth."""
    if got.dtype != want.dtype or got.shape != want.shape:
        return torch.tensor(False)
    if not want.dtype.is_floating_point:
        return got == want
    kind, *args = tol.split(":")
    both_nan = got.isnan() & want.isnan()
    some_nan = got.isnan() | want.isnan()
    if kind == "bits":
        return both_nan | ((got == want) & (got.signbit() == want.signbit()))
    if kind == "value":
        return both_nan | (got == want)
    ok = (ordered(got) - ordered(want)).abs() <= int(args[0])
    if kind == "near":
        ok |= (got.double() - want.double()).abs() <= float(args[1])
    if kind == "input":
        slack = first.double().abs().clamp(max=64) * float(args[1])
        ok |= (got.double() - want.double()).abs() <= slack
    return both_nan | (~some_nan & ok)


def near(scale, dtype, n=4, ulp=4):
    """Tolerance of something that sums up to `scale` in absolute values: `n` roundings of it."""
    eps = EPS[dtype]
    slack = n * eps * scale
    slack = float(f"{slack:.2g}") if math.isfinite(slack) else 0.0
    return f"near:{ulp}:{slack!r}"


def as_tuple(out):
    return tuple(out) if isinstance(out, (tuple, list)) else (out,)


def run(f, ins, attrs):
    return as_tuple(f(*[value(x) for x in ins], **attrs))


def refused(f, ins, attrs):
    try:
        run(f, ins, attrs)
    except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError):
        return True
    return False


COMPLAINTS = []
# Called with all that has gradients: (op, f, ins, attrs).
ALSO = []
# Groups to write; all of them where none is named.
ONLY = []


def oracle(f, ins, attrs, tol, label, common=None, check=True):
    """PyTorch's answer: shapes and types from the case as it is, floats from the same in float64,
    rounded once. That PyTorch's own answer agrees within the tolerance is asserted."""
    native = run(f, ins, attrs)

    def wide(x):
        x = value(x)
        if isinstance(x, torch.Tensor):
            if common is not None:
                x = x.to(common)
            if x.dtype.is_floating_point:
                x = x.double()
        return x

    if not any(t.dtype.is_floating_point for t in native):
        return native
    exact = as_tuple(f(*[wide(x) for x in ins], **attrs))
    out = tuple(e.to(n.dtype) if n.dtype.is_floating_point else n for e, n in zip(exact, native))
    first = value(ins[0]) if ins else None
    for n, w in zip(native, out):
        ok = agrees(n, w, tol, first if isinstance(first, torch.Tensor) else None)
        if check and not bool(ok.all()):
            bad = (~ok).reshape(-1).nonzero()[:3, 0] if ok.dim() else []
            shown = [(n.reshape(-1)[i].item(), w.reshape(-1)[i].item()) for i in bad]
            COMPLAINTS.append(f"{label}: PyTorch's own answer is outside {tol}: {shown}")
    return out


def biggest(t):
    t = t.detach().double()
    t = t[t.isfinite()]
    return float(t.abs().max()) if t.numel() else 0.0


def numeric(g, op, f, ins, attrs=None, scale=None, n=4, ulp=4, check=True, grad=None, wide=False):
    """A case whose floats may be off by `n` roundings of `scale` (by default the largest result).
    `wide`: halves are added up in float32 and rounded once.
    With `grad`, a group, the gradients of its float inputs go there."""
    attrs = attrs or {}
    if refused(f, ins, attrs):
        return g.case(op, ins, attrs, "error")
    native = run(f, ins, attrs)
    dtype = next((t.dtype for t in native if t.dtype.is_floating_point), None)
    if dtype is None:
        return g.case(op, ins, attrs, native, "bits")
    half = dtype in (torch.float16, torch.bfloat16)
    if scale is None:
        scale = max(biggest(t) for t in native)
    if half and wide:
        tol = near(scale, torch.float32, n, 1)
    else:
        tol = near(scale, dtype, n if not half else min(n, 2), ulp if not half else 2)
    # PyTorch's halves are rounded between steps in places; the float64 answer is the better one.
    out = oracle(
        f, ins, attrs, tol, (g.name, op, dtype_name(dtype), attrs), check=check and not half
    )
    g.case(op, ins, attrs, out, tol)
    if grad is not None and not half:
        gradient(grad, op, f, ins, attrs, tol)


def gradient(g, op, f, ins, attrs, tol, n=16):
    """Gradients of the *stored* tensors (through their views) for a random upstream gradient of the
    first result, computed in float64 and rounded once."""
    leaves, args = [], []
    for x in ins:
        base = x.base if isinstance(x, In) else x
        if isinstance(base, torch.Tensor) and base.dtype.is_floating_point:
            wide = base.detach().double().requires_grad_()
            leaves.append(wide)
            args.append(In(wide, *x.steps) if isinstance(x, In) else wide)
            if isinstance(x, In):
                args[-1].base = wide
        else:
            leaves.append(None)
            args.append(x)
    dtype = next(
        (
            value(x).dtype
            for x in ins
            if isinstance(value(x), torch.Tensor) and value(x).dtype in FLOATS
        ),
        None,
    )
    for also in ALSO:
        also(op, f, ins, attrs)
    wanted = [x for x in leaves if x is not None]
    if not wanted:
        return
    out = run(f, args, attrs)[0]
    if not out.requires_grad:
        return
    up = torch.randn(
        out.shape, generator=random("up", op, tuple(out.shape), str(attrs)), dtype=torch.float64
    ).to(dtype)
    grads = iter(torch.autograd.grad(out, wanted, up.double(), allow_unused=True))
    found = [None if x is None else next(grads) for x in leaves]
    ins_dtypes = [None if l is None else value(x).dtype for l, x in zip(leaves, ins)]
    found = [None if t is None else t.to(d) for t, d in zip(found, ins_dtypes)]
    scale = max([biggest(t) for t in found if t is not None] + [0.0])
    g.case(
        op, ins, attrs, (out.to(dtype),), tol,
        up=g.tensor(up), grad=[None if t is None else g.tensor(t) for t in found],
        gtol=near(scale, dtype, n, 8),
    )  # fmt: skip
