"""Writes the reference values next to itself: `python make.py`, with NumPy and CPU PyTorch.

Run by hand when a case is added; the files are committed. Running again gives the same bytes on
the same PyTorch. `python make.py halves grad_halves` writes these two alone.
"""

import sys
import warnings

import torch

sys.dont_write_bytecode = True
import attention  # noqa: E402
import beyond  # noqa: E402
import display  # noqa: E402
import edges  # noqa: E402
import elementwise  # noqa: E402
import gradients  # noqa: E402
import halves  # noqa: E402
import kinds  # noqa: E402
import later  # noqa: E402
import matmul  # noqa: E402
import reduce  # noqa: E402

import steps  # noqa: E402
import store  # noqa: E402
import training  # noqa: E402
import views  # noqa: E402
import vocabulary  # noqa: E402
import windows  # noqa: E402

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    store.ONLY += sys.argv[1:]
    store.ALSO.append(halves.take)
    parts = [elementwise, reduce, matmul, views, gradients, later, vocabulary, beyond, windows]
    # The last ones write what they make by themselves.
    others = [] if store.ONLY else [training, steps, attention, display, edges, kinds]
    for part in [*parts, halves, *others]:
        part.make()
    for complaint in store.COMPLAINTS:
        print(complaint, file=sys.stderr)
    sys.exit(bool(store.COMPLAINTS))
