"""Trains the small classifier that the server example embeds, and writes `digits.safetensors` beside itself.

    pip install numpy scikit-learn safetensors && python train.py

Data: the UCI handwritten digits (E. Alpaydin, C. Kaynak, 1998, CC BY 4.0), 1,797 images of 8 x 8 with values 0
to 16, from scikit-learn's package. A fifth is held out. Training images are also shifted by a pixel and
thinned or thickened a little, since people draw with a mouse. 64 -> 96 -> 10, names as PyTorch's Sequential.
"""

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

rng = np.random.default_rng(7)
digits = load_digits()
x, held, y, held_y = train_test_split(
    digits.images.astype(np.float32), digits.target, test_size=0.2, random_state=7, stratify=digits.target
)


def shifted(images, dy, dx):
    out = np.zeros_like(images)
    out[:, max(dy, 0) : 8 + min(dy, 0), max(dx, 0) : 8 + min(dx, 0)] = images[
        :, max(-dy, 0) : 8 + min(-dy, 0), max(-dx, 0) : 8 + min(-dx, 0)
    ]
    return out


many, many_y = [x], [y]
for dy, dx in [(0, 1), (0, -1), (1, 0), (-1, 0)]:
    many.append(shifted(x, dy, dx)), many_y.append(y)
for _ in range(4):
    gain = rng.uniform(0.7, 1.4, (len(x), 1, 1))
    noise = rng.normal(0, 1.2, x.shape) * (x > 0)
    many.append(np.clip(x * gain + noise, 0, 16)), many_y.append(y)
x, y = np.concatenate(many).reshape(-1, 64) / 16, np.concatenate(many_y)

net = MLPClassifier((96,), activation="relu", alpha=1e-3, max_iter=60, random_state=7, early_stopping=False)
net.fit(x, y)
print("held-out accuracy:", net.score(held.reshape(-1, 64) / 16, held_y))
(w0, w1), (b0, b1) = net.coefs_, net.intercepts_
names = {"0.weight": w0.T, "0.bias": b0, "2.weight": w1.T, "2.bias": b1}
save_file(
    {k: np.ascontiguousarray(v, dtype=np.float32) for k, v in names.items()},
    Path(__file__).with_name("digits.safetensors"),
    metadata={"source": "train.py", "data": "UCI handwritten digits, CC BY 4.0"},
)
# A few held-out images with what the network says of them, for the tests.
probability = net.predict_proba(held.reshape(-1, 64) / 16)
lines = ["["]
for i in range(20):
    pixels = [int(v) for v in held[i].reshape(-1)]
    chosen = [round(float(p), 6) for p in probability[i]]
    lines.append(f'{{"pixels": {pixels}, "digit": {int(held_y[i])}, "probability": {chosen}}}' + "," * (i < 19))
Path(__file__).with_name("held_out.json").write_text("\n".join(lines + ["]", ""]))
