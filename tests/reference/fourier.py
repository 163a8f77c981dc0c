"""What PyTorch's Fourier transforms give, with first and second gradients of a sum of weighed
cubes: `fourier.safetensors`, tensors named `OP@n@dim@norm/SHAPE/WHAT`, or of several dimensions
`OP@n,n@dim,dim@norm/SHAPE/WHAT`. `tests/numerics` reads it.
Written by `make.py`; seeded by the names."""

import torch

from store import HERE, random, write_tensors

# The shape without the parts of complex values; n, dim, norm.
CASES = [
    ((8,), None, -1, "backward"),
    ((7,), None, -1, "ortho"),
    ((3, 5), None, 0, "forward"),
    ((2, 6, 3), 9, 1, "ortho"),
    ((2, 6, 3), 4, -2, "backward"),
    ((4, 17), None, -1, "forward"),
    ((3, 2), 1, -1, "backward"),
    ((5,), 2, 0, "ortho"),
    ((0, 4), None, -1, "backward"),
    ((3, 130), None, -1, "backward"),
]
OPS = {
    "fft": (torch.fft.fft, True, True),
    "ifft": (torch.fft.ifft, True, True),
    "rfft": (torch.fft.rfft, False, True),
    "irfft": (torch.fft.irfft, True, False),
}


# Along several dimensions: sizes, dimensions, norm.
SEVERAL = [
    ((4, 6), None, None, "backward"),
    ((2, 5, 3), None, None, "ortho"),
    ((3, 4, 5), (6, 2), None, "backward"),
    ((3, 4, 5), (4, -1), (2, 0), "forward"),
    ((2, 3, 4, 5), None, (-1, 1), "ortho"),
    ((0, 3, 4), None, (1, 2), "backward"),
    ((3, 4, 2), (5, 3, 2), (0, 2, 1), "backward"),
]


def noise(shape, *key):
    return torch.randn(shape, generator=random("fourier", tuple(shape), *key))


def listed(numbers):
    return "" if numbers is None else ",".join(map(str, numbers))


def calls():
    """Each with its name."""
    for op, (f, *kinds) in OPS.items():
        for shape, n, dim, norm in CASES:
            yield f"{op}@{n or 0}@{dim}@{norm}", f, kinds, shape, (n, dim, norm)
        for n in ("2", "n"):
            for shape, sizes, dims, norm in SEVERAL:
                own = dims
                if n == "2":
                    sizes, dims = sizes and sizes[:2], dims and dims[:2]
                    own = dims or (-2, -1)
                f = getattr(torch.fft, op + n)
                name = f"{op}{n}@{listed(sizes)}@{listed(dims)}@{norm}"
                yield name, f, kinds, shape, (sizes, own, norm)


def make():
    out = {}
    for name, f, (takes_complex, makes_complex), shape, how in calls():
        name = f"{name}/{'x'.join(map(str, shape))}"
        x = noise((*shape, 2) if takes_complex else shape, name)
        leaf = x.double().requires_grad_()
        y = f(torch.view_as_complex(leaf) if takes_complex else leaf, *how)
        y = torch.view_as_real(y) if makes_complex else y
        up, weight = noise(y.shape, name, "up"), noise(x.shape, name, "weight")
        cubes = (y**3 * up.double()).sum()
        (first,) = torch.autograd.grad(cubes, leaf, create_graph=True)
        (second,) = torch.autograd.grad((first * weight.double()).sum(), leaf)
        found = {"x": x, "up": up, "weight": weight, "y": y, "first": first, "second": second}
        out |= {f"{name}/{k}": t.detach().float() for k, t in found.items()}
    write_tensors(HERE / "fourier.safetensors", out)
