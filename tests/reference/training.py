"""What PyTorch makes of a few training steps: optimizers, clipping, and a small network with its
gradients.

`training.safetensors` holds tensors named by what they are, `CASE/STEP/NAME`; the test that reads
them (`tests/training`) has the same cases. Written by `make.py`; seeded by the names.
"""

import torch

from store import HERE, random, write_tensors

STEPS = 4
SHAPES = {"w": (3, 4), "b": (4,)}


def noise(shape, *key, scale=1.0):
    return torch.randn(shape, generator=random("training", shape, *key)) * scale


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd_decay": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.05),
    "sgd_momentum": lambda p: torch.optim.SGD(
        p, lr=0.1, momentum=0.9, dampening=0.2, weight_decay=0.01
    ),
    "sgd_nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.05),
    "adam_decay": lambda p: torch.optim.Adam(
        p, lr=0.05, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.1
    ),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.05),
    "adamw_decay": lambda p: torch.optim.AdamW(
        p, lr=0.05, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.2
    ),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.05),
    "rmsprop_all": lambda p: torch.optim.RMSprop(
        p, lr=0.05, alpha=0.8, eps=1e-3, weight_decay=0.1, momentum=0.9, centered=True
    ),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
    "adagrad_all": lambda p: torch.optim.Adagrad(
        p, lr=0.05, eps=1e-3, weight_decay=0.1, initial_accumulator_value=0.5
    ),
    "lion": lambda p: Lion(p, lr=0.05, betas=(0.8, 0.95), weight_decay=0.1),
}


class Lion(torch.optim.Optimizer):
    # The paper's algorithm 2 (arXiv:2302.06675); PyTorch has none.

    def __init__(self, p, **options):
        super().__init__(p, options)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            (b1, b2), lr, decay = group["betas"], group["lr"], group["weight_decay"]
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                update = (b1 * m + (1 - b1) * p.grad).sign()
                self.state[p]["m"] = b2 * m + (1 - b2) * p.grad
                p.sub_(lr * (update + decay * p))


def optimizers(out):
    for name, make in OPTIMIZERS.items():
        p = {k: torch.nn.Parameter(noise(s, k)) for k, s in SHAPES.items()}
        optimizer = make(list(p.values()))
        for step in range(STEPS):
            for k, s in SHAPES.items():
                p[k].grad = noise(s, k, "gradient", step)
                out[f"gradients/{step}/{k}"] = p[k].grad.clone()
            optimizer.step()
            for k in SHAPES:
                out[f"{name}/{step}/{k}"] = p[k].detach().clone()
    for k, s in SHAPES.items():
        out[f"start/0/{k}"] = noise(s, k)


def clipping(out):
    for limit in (0.5, 100.0):
        p = [torch.nn.Parameter(torch.zeros(s)) for s in SHAPES.values()]
        for x, (k, s) in zip(p, SHAPES.items()):
            x.grad = noise(s, k, "gradient", 0)
        norm = torch.nn.utils.clip_grad_norm_(p, limit)
        out[f"clip/{limit:g}/norm"] = norm.detach().clone()
        for x, k in zip(p, SHAPES):
            out[f"clip/{limit:g}/{k}"] = x.grad.clone()


def network(out):
    torch.manual_seed(7)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3, padding=1),
        torch.nn.BatchNorm2d(4),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(4, 6, (3, 2), stride=(1, 2), padding=(1, 0), groups=2),
        torch.nn.GELU(),
        torch.nn.Flatten(),
        torch.nn.Linear(6 * 4 * 2, 10),
        torch.nn.LayerNorm(10),
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for k, v in net.state_dict().items():
        out[f"net/start/{k}"] = v.clone()
    for step in range(STEPS):
        x = noise((6, 1, 8, 8), "x", step)
        y = torch.randint(0, 10, (6,), generator=random("y", step))
        out[f"net/{step}/x"], out[f"net/{step}/y"] = x, y
        logits = net(x)
        loss = torch.nn.functional.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        out[f"net/{step}/loss"] = loss.detach().clone()
        for k, p in net.named_parameters():
            if step == 0:
                out[f"net/{step}/gradient.{k}"] = p.grad.clone()
        optimizer.step()
    for k, v in net.state_dict().items():
        out[f"net/end/{k}"] = v.clone()
    net.eval()
    out["net/end/x"] = x
    out["net/end/logits"] = net(x).detach().clone()


def make():
    torch.set_num_threads(1)
    out = {}
    optimizers(out)
    clipping(out)
    network(out)
    write_tensors(HERE / "training.safetensors", out)
