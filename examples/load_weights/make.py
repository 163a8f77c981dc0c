"""Trains a small network on the handwritten digits with PyTorch, and saves its weights, and what it
says to 64 of the images, for `cargo run --example load_weights`. Run by hand: needs torch and
safetensors.

    python make.py ../train_digits/data/digits.bin
"""

import pathlib
import sys

import torch
from safetensors.torch import save_file
from torch import nn

HERE = pathlib.Path(__file__).parent
COUNT, PIXELS = 1797, 64

raw = torch.frombuffer(bytearray(pathlib.Path(sys.argv[1]).read_bytes()), dtype=torch.uint8)
x = raw[: COUNT * PIXELS].reshape(COUNT, 1, 8, 8).float() / 16
y = raw[COUNT * PIXELS :][:COUNT].long()
held_out = torch.arange(COUNT) % 5 == 4

torch.manual_seed(0)
net = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
    nn.Linear(128, 10)
)  # fmt: skip
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
for epoch in range(12):
    order = torch.randperm(int((~held_out).sum()))
    for at in order.split(64):
        loss = nn.functional.cross_entropy(net(x[~held_out][at]), y[~held_out][at])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
net.eval()
with torch.no_grad():
    accuracy = (net(x[held_out]).argmax(1) == y[held_out]).float().mean().item()
    # Exact answers, rounded once: neither side's order of additions is in them.
    shown = x[held_out][:64]
    logits = net.double()(shown.double()).float()
    net.float()
print(f"held-out accuracy {accuracy:.3f}")
save_file(net.state_dict(), HERE / "weights.safetensors")
save_file(
    {"images": shown.contiguous(), "labels": y[held_out][:64].contiguous(), "logits": logits},
    HERE / "expected.safetensors",
)
