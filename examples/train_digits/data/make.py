"""Packs the handwritten digits of scikit-learn's package: `python make.py`, with scikit-learn
installed.

`digits.bin`: 1,797 images of 8 x 8 pixels from 0 to 16, a byte each, row by row; then 1,797 labels,
a byte each. Run by hand; the file is committed. Running again gives the same bytes.
"""

import gzip
import importlib.resources
import pathlib

source = importlib.resources.files("sklearn.datasets.data") / "digits.csv.gz"
rows = [
    [int(float(x)) for x in line.split(",")]
    for line in gzip.decompress(source.read_bytes()).decode().split()
]
assert len(rows) == 1797 and all(len(row) == 65 and max(row[:64]) <= 16 for row in rows)
images = bytes(x for row in rows for x in row[:64])
labels = bytes(row[64] for row in rows)
(pathlib.Path(__file__).parent / "digits.bin").write_bytes(images + labels)
