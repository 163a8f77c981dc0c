"""What one step of an optimizer, and clipping, should give in halves; schedules; and orders of a
shuffle.

Each step begins from parameters that are halves and gradients that are halves; what an optimizer
keeps between steps is exact. What is wanted is the step in float64, rounded to the half once, and
the next step begins from it: so an error is that of one step, and the test asks for 1 ulp of each
element. (PyTorch's own steps in halves are further off: its state is of their type.) Steps of a
parameter that is first used later are PyTorch's in float32. `tests/optim` reads it. Written by
`make.py`; seeded by the names.
"""

import torch

from store import HERE, random, write_tensors

HALVES = {"f16": torch.float16, "bf16": torch.bfloat16}
SCALES = [1e-4, 1.0, 300.0]
STEPS = 4
SHAPE = (7,)
OPTIMIZERS = {
    "sgd": lambda p, lr: torch.optim.SGD(p, lr=lr),
    "sgd_decay": lambda p, lr: torch.optim.SGD(p, lr=lr, weight_decay=0.05),
    "sgd_momentum": lambda p, lr: torch.optim.SGD(
        p, lr=lr, momentum=0.9, dampening=0.2, weight_decay=0.01
    ),
    "sgd_nesterov": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9, nesterov=True),
    "adam": lambda p, lr: torch.optim.Adam(p, lr=lr),
    "adam_decay": lambda p, lr: torch.optim.Adam(
        p, lr=lr, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.1
    ),
    "adamw": lambda p, lr: torch.optim.AdamW(p, lr=lr),
    "adamw_decay": lambda p, lr: torch.optim.AdamW(
        p, lr=lr, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.2
    ),
}


def noise(shape, *key):
    return torch.randn(shape, generator=random("steps", shape, *key), dtype=torch.float64)


def rate(name, scale):
    """A rate that moves parameters of this scale by some hundredths."""
    return 0.05 if name.startswith("sgd") else 0.05 * scale


def optimizers(out):
    for kind, dtype in HALVES.items():
        for scale in SCALES:
            start = (noise(SHAPE, "start", scale) * scale).to(dtype)
            gradients = [
                (noise(SHAPE, "gradient", scale, k) * scale).to(dtype) for k in range(STEPS)
            ]
            out[f"{kind}/{scale:g}/start"] = start
            for k, g in enumerate(gradients):
                out[f"{kind}/{scale:g}/gradient/{k}"] = g
            for name, make in OPTIMIZERS.items():
                p = torch.nn.Parameter(start.double())
                optimizer = make([p], rate(name, scale))
                for k, g in enumerate(gradients):
                    p.grad = g.double()
                    optimizer.step()
                    want = p.detach().to(dtype)
                    out[f"{kind}/{scale:g}/{name}/{k}"] = want
                    with torch.no_grad():
                        p.copy_(want.double())


def clipping(out):
    for kind, dtype in HALVES.items():
        for scale in SCALES:
            gradients = [
                (noise(s, "clip", scale, str(s)) * scale).to(dtype) for s in [(300,), (4,)]
            ]
            for limit in (0.1, 100.0):
                all = [torch.nn.Parameter(g.double()) for g in gradients]
                for p in all:
                    p.grad = p.detach().clone()
                case = f"clip/{kind}/{scale:g}/{limit:g}"
                out[f"{case}/norm"] = (
                    torch.nn.utils.clip_grad_norm_(all, limit * scale).detach().to(dtype)
                )
                for k, p in enumerate(all):
                    out[f"{case}/{k}"] = p.grad.to(dtype)
                for p, g in zip(all, gradients):
                    p.grad = g.double()
                torch.nn.utils.clip_grad_value_(all, limit * scale)
                for k, p in enumerate(all):
                    out[f"{case}/value/{k}"] = p.grad.to(dtype)
            for k, g in enumerate(gradients):
                out[f"clip/{kind}/{scale:g}/gradient/{k}"] = g


def later(out):
    """A parameter that is first used at the fourth step, another that is left out of the fifth."""
    for name in ("sgd_momentum", "adam", "adam_decay", "adamw"):
        p = [torch.nn.Parameter(noise((3,), "later", k).float()) for k in range(2)]
        optimizer = OPTIMIZERS[name](p, 0.1)
        for k in range(2):
            out[f"later/start/{k}"] = p[k].detach().clone()
        for step in range(6):
            used = [step != 4, step >= 3]
            for k in range(2):
                g = noise((3,), "later", "gradient", step, k).float()
                out[f"later/gradient/{step}/{k}"] = g
                p[k].grad = g if used[k] else None
            optimizer.step()
            for k in range(2):
                out[f"later/{name}/{step}/{k}"] = p[k].detach().clone()


def float64(out):
    """Adam in float64: no part of it is to be computed in float32."""
    p = torch.nn.Parameter(noise((5,), "float64"))
    out["float64/start"] = p.detach().clone()
    optimizer = torch.optim.Adam([p], lr=0.1)
    for step in range(STEPS):
        p.grad = noise((5,), "float64", step)
        out[f"float64/gradient/{step}"] = p.grad.clone()
        optimizer.step()
    out["float64/end"] = p.detach().clone()


def schedules(out):
    def rates(make, steps):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
        schedule, found = make(optimizer), []
        for _ in range(steps):
            found.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
        return torch.tensor(found, dtype=torch.float64)

    s = torch.optim.lr_scheduler
    out["schedule/step"] = rates(lambda o: s.StepLR(o, 7, 0.3), 30)
    out["schedule/cosine"] = rates(lambda o: s.CosineAnnealingLR(o, 20), 21)
    out["schedule/cosine_down_to"] = rates(lambda o: s.CosineAnnealingLR(o, 20, eta_min=0.05), 21)

    # A straight line of five steps up to the first rate, then the rest from its beginning.
    def warm(o):
        line = s.LinearLR(o, start_factor=0.2, total_iters=4)
        return s.SequentialLR(o, [line, s.StepLR(o, 7, 0.3)], milestones=[5])

    out["schedule/warmup"] = rates(warm, 30)


def layers(out):
    """The options of the norms: nothing of them is at its default."""
    x = [noise((6, 3), "layers", k).float() * (k + 1) for k in range(4)]
    for k in range(4):
        out[f"layers/x/{k}"] = x[k]
    batch = torch.nn.BatchNorm1d(3, eps=0.5, momentum=0.3)
    for k in range(3):
        out[f"layers/batch/{k}"] = batch(x[k]).detach().clone()
    out["layers/batch/mean"], out["layers/batch/var"] = (
        batch.running_mean.clone(),
        batch.running_var.clone(),
    )
    out["layers/batch/use"] = batch.eval()(x[3]).detach().clone()
    weight = noise((3,), "layers", "weight").float()
    out["layers/weight"] = weight
    root, layer = torch.nn.RMSNorm(3, eps=0.5), torch.nn.LayerNorm(3, eps=0.5, bias=False)
    for name, norm in [("rms", root), ("layer", layer)]:
        with torch.no_grad():
            norm.weight.copy_(weight)
        out[f"layers/{name}"] = norm(x[0]).detach().clone()


def mix(z):
    """SplitMix64's finalizer, in Python's whole numbers."""
    m = 2**64 - 1
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & m
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & m
    return z ^ (z >> 31)


def orders(out):
    """Fisher and Yates by SplitMix64, from `mix(seed) + mix(epoch ^ gamma)` on."""
    gamma, m = 0x9E3779B97F4A7C15, 2**64 - 1
    for n, seed, epoch in [(1, 5, 0), (10, 0, 0), (10, 7, 3), (103, 9, 1)]:
        order, state = list(range(n)), (mix(seed) + mix(epoch ^ gamma)) & m
        for i in range(n - 1, 0, -1):
            state = (state + gamma) & m
            j = (mix(state) * (i + 1)) >> 64
            order[i], order[j] = order[j], order[i]
        out[f"order/{n}/{seed}/{epoch}"] = torch.tensor(order)


def make():
    torch.set_num_threads(1)
    out = {}
    optimizers(out)
    clipping(out)
    later(out)
    float64(out)
    schedules(out)
    layers(out)
    orders(out)
    write_tensors(HERE / "steps.safetensors", out)
