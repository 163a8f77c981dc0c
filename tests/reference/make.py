"""Writes the reference values next to itself: `python make.py`, with NumPy and CPU PyTorch.

Run by hand when a case is added; the files are committed. Running again gives the same bytes on
the same PyTorch. `python make.py halves grad_halves` writes these two alone.
"""

import sys
import warnings

import torch

sys.dont_write_bytecode = True
import attention  # noqa: E402
import attention_layers  # noqa: E402
import display  # noqa: E402
import dtypes  # noqa: E402
import edges  # noqa: E402
import elementwise  # noqa: E402
import fourier  # noqa: E402
import functions  # noqa: E402
import gradients  # noqa: E402
import halves  # noqa: E402
import index  # noqa: E402
import linalg  # noqa: E402
import matmul  # noqa: E402
import mixed_precision  # noqa: E402
import nn  # noqa: E402
import order  # noqa: E402
import recurrent  # noqa: E402
import reduce  # noqa: E402
import steps  # noqa: E402
import storage  # noqa: E402
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
    families = [elementwise, gradients, functions, reduce, order, index, views]
    families += [matmul, attention, nn, windows, vocabulary, storage]
    # The last ones write what they make by themselves.
    others = [training, recurrent, fourier, steps, attention_layers, display, edges]
    others += [mixed_precision, linalg]
    for part in families:
        part.make()
    for group in store.GROUPS.values():
        group.write()
    for part in [halves, *([] if store.ONLY else others), dtypes]:
        part.make()
    for complaint in store.COMPLAINTS:
        print(complaint, file=sys.stderr)
    sys.exit(bool(store.COMPLAINTS))
