"""Writes `held_out.json`: a few held-out images with what PyTorch makes of the weights in
`digits.safetensors`.

    pip install torch safetensors && python held_out.py

The weights were trained by futensor, and carry PyTorch's names:

    cargo run --release --example train_digits -- \\
        --model cnn --save examples/server/model/digits.safetensors

Data: the UCI handwritten digits, of which every fifth is held out (`examples/train_digits/data`).
"""

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

here = Path(__file__).parent
net = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1, bias=False),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.Conv2d(16, 32, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Dropout(0.2),
    nn.Linear(512, 10),
)
net.load_state_dict(load_file(here / "digits.safetensors"))
net.eval().double()

data = (here.parent.parent / "train_digits" / "data" / "digits.bin").read_bytes()
held = range(4, 1797, 5)
pixels = torch.tensor([list(data[64 * i : 64 * i + 64]) for i in held], dtype=torch.float64)
digits = torch.tensor([data[64 * 1797 + i] for i in held])
with torch.no_grad():
    probability = net(pixels.reshape(-1, 1, 8, 8) / 16).softmax(-1)
right = (probability.argmax(1) == digits).sum().item()
print(f"held-out accuracy: {right} of {len(digits)}, {right / len(digits):.2%}")

lines = []
for i in range(20):
    image, chosen = pixels[i].int().tolist(), [round(p, 6) for p in probability[i].tolist()]
    lines.append(f'{{"pixels": {image}, "digit": {digits[i].item()}, "probability": {chosen}}}')
(here / "held_out.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")
