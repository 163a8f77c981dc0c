"""Writes small files of NumPy and PyTorch, and what they hold, into `python_files/`.

    python tests/reference/python_files.py        # numpy 2.4, torch 2.15
"""

import argparse
import json
import math
import os
from pathlib import Path

import numpy as np
import torch

OUT = Path(__file__).parent / "python_files"
OUT.mkdir(exist_ok=True)
held = {}


def described(x):
    x = torch.from_numpy(np.array(x, order="C")) if isinstance(x, np.ndarray) else x.detach()
    return {
        "dtype": str(x.dtype).removeprefix("torch."),
        "shape": list(x.shape),
        # All values here are short in float64, so text keeps them.
        "values": x.to(torch.float64).flatten().tolist(),
    }


def native(x):
    return x.astype(x.dtype.newbyteorder("="))


def npy(name, x, **how):
    with open(OUT / f"{name}.npy", "wb") as file:
        np.lib.format.write_array(file, x, **how)
    held[f"{name}.npy"] = {"array": described(native(x))}


count = np.arange(24)
npy("float32", (count[:6] / 4 - 1).reshape(2, 3).astype("<f4"))
npy("float64_big", (count[:6] / 8).reshape(3, 2).astype(">f8"))
npy("float16", np.array([1.5, -2.0, 65504.0], "<f2"))
npy("int32_columns", np.asfortranarray(count.reshape(2, 3, 4).astype("<i4")))
npy("int16_big_columns", np.asfortranarray(count.reshape(2, 3, 4).astype(">i2")))
npy("int8", np.array([-128, 127, 0], "i1"))
npy("uint16", np.array([[65535, 1]], "<u2"))
npy("uint32_big", np.array([2**32 - 1, 5], ">u4"))
npy("uint64", np.array([2**63, 3], "<u8"))
npy("int64_scalar", np.array(-(2**40), "<i8"))
npy("uint8_empty", np.zeros((0, 3), "u1"))
npy("bool", np.array([True, False, True]))
npy("version2", count[:2].astype("<f4"), version=(2, 0))
npy("version3", count[:2].astype("<f4"), version=(3, 0))
refused = {
    "complex": np.array([1j], "<c8"),
    "text": np.array(["ab"]),
    "fields": np.zeros(2, [("a", "<f4")]),
    "objects": np.array([{"a": 1}], object),
}
for name, x in refused.items():
    np.save(OUT / f"{name}_refused.npy", x, allow_pickle=True)

arrays = {
    "a": (count[:6] / 2).reshape(2, 3).astype("<f4"),
    "layer/weight": np.asfortranarray(count.reshape(4, 6).astype("<f8")),
    "n": np.array(7, "<i8"),
    "zeros": np.zeros((60, 40), "<f4"),
}
np.savez_compressed(OUT / "compressed.npz", **arrays)
held["compressed.npz"] = {name: described(x) for name, x in arrays.items()}
del arrays["zeros"]
np.savez(OUT / "plain.npz", **arrays)
held["plain.npz"] = {name: described(x) for name, x in arrays.items()}
np.savez(OUT / "objects_refused.npz", a=np.array([None], object), b=np.ones(2, "<f4"))


def pth(name, value, tensors, metadata=None, **how):
    torch.save(value, OUT / f"{name}.pth", **how)
    held[f"{name}.pth"] = {n: described(x) for n, x in tensors.items()}
    if metadata:
        held[f"{name}.pth"]["metadata"] = metadata


torch.manual_seed(1)
net = torch.nn.Sequential(
    torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Embedding(3, 2, dtype=torch.bfloat16)
)
pth("state_dict", net.state_dict(), net.state_dict())
for protocol in [4, 5]:
    pth(f"protocol{protocol}", net.state_dict(), net.state_dict(), pickle_protocol=protocol)

line = torch.nn.Linear(2, 1)
adam = torch.optim.Adam(line.parameters(), lr=0.25)
line(torch.ones(1, 2)).sum().backward()
adam.step()
state = adam.state_dict()
tensors = {f"model.{k}": v for k, v in line.state_dict().items()}
for i, of in state["state"].items():
    tensors |= {f"optimizer.state.{i}.{k}": v for k, v in of.items()}
about = {"epoch": 3, "best": -0.5, "name": "a run", "done": True, "none": None, "seed": 2**70}
pth(
    "checkpoint",
    {"model": line.state_dict(), "optimizer": state, **about},
    tensors,
    {"epoch": "3", "best": "-0.5", "name": "a run", "done": "true"}
    | {"optimizer.param_groups.0.lr": "0.25"},
)

base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
views = {
    "turned": base.t(),
    "rows": base[1:3],
    "some": base[1::2, 2:5],
    "again": base,
    "expanded": base[0, :2].expand(3, 2),
    "scalar": base[2, 3],
    "empty": base[:0],
    "parameter": torch.nn.Parameter(base[3]),
    "buffer": torch.nn.Buffer(base[0]),
}
stored = ["int8", "int16", "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2"]
for name in ["float64", "float16", "bfloat16", "int32", "int64", "uint8", "bool", *stored]:
    views[f"of.{name}"] = (base[0] % 3).to(getattr(torch, name))
pth("views", views, views)
pth("alone", base, {"": base})
pth("list", [base, (base[0], {"x": base[1]})], {"0": base, "1.0": base[0], "1.1.x": base[1]})


class Evil:
    def __reduce__(self):
        return (os.system, ("touch python_files_ran",))


torch.save({"w": base, "evil": Evil()}, OUT / "evil.pth")
held["evil.pth"] = {"w": described(base)}

torch.save(net, OUT / "whole_model_refused.pth")
torch.save(net.state_dict(), OUT / "old_refused.pth", _use_new_zipfile_serialization=False)
torch.save({"a": base.to_sparse()}, OUT / "sparse_refused.pth")
torch.save({"a": base[0].to(torch.float8_e5m2fnuz)}, OUT / "float8_fnuz_refused.pth")
torch.save({"a": torch.view_as_complex(base[0].reshape(3, 2))}, OUT / "complex_refused.pth")
torch.save({"w": base, "args": argparse.Namespace(x=base[0])}, OUT / "namespace_refused.pth")
torch.jit.save(torch.jit.script(line), str(OUT / "script_refused.pth"))

tensors = [t for of in held.values() for t in of.values()]
assert all(math.isfinite(v) for t in tensors for v in t.get("values", []))
(OUT / "held.json").write_text(json.dumps(held, separators=(",", ":")) + "\n")
