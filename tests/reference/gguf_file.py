"""A GGUF file as gguf-py writes it, with what gguf-py makes of its quantised weights.

    pip install gguf          # written with gguf 0.19.0
    python gguf_file.py       # writes reference.gguf beside this file

For each format F: `F` has blocks, `F.values` the float32 that gguf-py dequantises them to. Where
gguf-py quantises to F, the blocks are those of `w`; else their bytes are random and their scales
small.
"""

import pathlib

import gguf
import numpy as np

rng = np.random.default_rng(16)
T = gguf.GGMLQuantizationType
w = (rng.standard_normal((3, 512)) * rng.choice([1e-3, 1, 30], (3, 1))).astype(np.float32)
w[1, 32:64] = 0  # a block without a scale
out = gguf.GGUFWriter(pathlib.Path(__file__).with_name("reference.gguf"), "reference")
for name, value in [
    ("u8", 200),
    ("i8", -3),
    ("u16", 40000),
    ("i16", -300),
    ("u32", 1 << 31),
    ("i32", -5),
]:
    getattr(out, {"u": "add_uint", "i": "add_int"}[name[0]] + name[1:])(f"value.{name}", value)
out.add_uint64("value.u64", (1 << 64) - 1)
out.add_int64("value.i64", -(1 << 63))
out.add_float32("value.f32", 0.1)
out.add_float64("value.f64", 0.1)
out.add_bool("value.bool", True)
out.add_string("value.string", "naïve ✓")
out.add_array("value.ints", [1, -2, 3])
out.add_array("value.strings", ["a", "", "bc"])
out.add_tensor("w", w)
out.add_tensor("f16", w.astype(np.float16))
out.add_tensor("bf16", gguf.quantize(w, T.BF16), raw_dtype=T.BF16)
out.add_tensor("bf16.values", gguf.dequantize(gguf.quantize(w, T.BF16), T.BF16))
for kind in [T.Q8_0, T.Q4_0, T.Q4_1, T.Q4_K, T.Q6_K]:
    block, size = gguf.GGML_QUANT_SIZES[kind]
    if kind in (T.Q4_K, T.Q6_K):
        blocks = rng.integers(0, 256, (3, 512 // block, size), dtype=np.uint8)
        at = [208] if kind == T.Q6_K else [0, 2]
        for i in at:
            scale = rng.standard_normal((3, 512 // block, 1)).astype(np.float16) / 64
            blocks[:, :, i : i + 2] = scale.view(np.uint8)
        blocks = blocks.reshape(3, -1)
    else:
        blocks = gguf.quantize(w, kind)
    out.add_tensor(kind.name, blocks, raw_dtype=kind)
    out.add_tensor(f"{kind.name}.values", gguf.dequantize(blocks, kind))
# Formats that are unpacked when they are loaded: random bytes, and small halves at these places.
for kind, at in {
    T.Q5_0: [0],
    T.Q5_1: [0, 2],
    T.Q2_K: [80, 82],
    T.Q3_K: [108],
    T.Q5_K: [0, 2],
    T.IQ4_NL: [0],
    T.IQ4_XS: [0],
}.items():
    block, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (3, 512 // block, size), dtype=np.uint8)
    for i in at:
        scale = rng.standard_normal((3, 512 // block, 1)).astype(np.float16) / 64
        blocks[:, :, i : i + 2] = scale.view(np.uint8)
    blocks = blocks.reshape(3, -1)
    out.add_tensor(kind.name, blocks, raw_dtype=kind)
    out.add_tensor(f"{kind.name}.values", gguf.dequantize(blocks, kind))
out.write_header_to_file()
out.write_kv_data_to_file()
out.write_tensors_to_file()
out.close()
