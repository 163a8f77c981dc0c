"""The questions of benches/gpu.rs, put to PyTorch (eager and compiled) and CuPy: one line of JSON each.

    python3 tests/gpu/peers.py [--quick]

What is not installed is left out.
"""

import json
import statistics
import sys
import time

QUICK = "--quick" in sys.argv
N = 1 << 20 if QUICK else 64 << 20
M = 128 if QUICK else 8192


def row(who, name, value, unit):
    print(json.dumps({"name": name, "who": who, "value": value, "unit": unit}), flush=True)


def median(samples, sample):
    return statistics.median([sample() for _ in range(samples + 2)][2:])


def timed(body, wait):
    def sample():
        wait()
        start = time.perf_counter()
        body()
        wait()
        return time.perf_counter() - start

    return sample


def ask(who, array, add, chain, reduced, matmul, wait, types):
    small = array(2)

    def many():
        held = [add(small, float(i)) for i in range(10_000)]
        many.enqueued = time.perf_counter() - many.start
        return held

    def sample():
        wait()
        many.start = time.perf_counter()
        held = many()
        wait()
        sample.enqueued.append(many.enqueued)
        del held
        return time.perf_counter() - many.start

    sample.enqueued = []
    row(who, "10,000 small ops, one wait, an op", median(5, sample) / 1e4 * 1e6, "us")
    row(who, "enqueue a small op", statistics.median(sample.enqueued) / 1e4 * 1e6, "us")
    row(who, "a small op, awaited", median(50, timed(lambda: add(small, 1.0), wait)) * 1e6, "us")
    x = array(N)
    row(who, "fused chain, read and write", 8 * N / median(10, timed(lambda: chain(x), wait)) / 1e9, "GB/s")
    row(who, "fused into a sum, read", 4 * N / median(10, timed(lambda: reduced(x), wait)) / 1e9, "GB/s")
    for name, make in types.items():
        a = make(M)

        def eight():
            y = a
            for _ in range(8):
                y = matmul(a, y)

        row(who, f"matmul {name}", 2 * M**3 / (median(10, timed(eight, wait)) / 8) / 1e12, "TFLOP/s")


def torch_rows():
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    wait = torch.cuda.synchronize

    def chain(x):
        return torch.relu((x * 2 + 1) * 0.5) - 3

    def reduced(x):
        return (x * 0.5).sum()

    types = {
        "float32": lambda m: torch.randn(m, m, device="cuda"),
        "bfloat16": lambda m: torch.randn(m, m, device="cuda", dtype=torch.bfloat16),
    }
    array = lambda n: torch.arange(n, device="cuda", dtype=torch.float32)
    add = lambda x, s: x + s
    ask("PyTorch eager", array, add, chain, reduced, torch.matmul, wait, types)
    ask("torch.compile", array, add, torch.compile(chain), torch.compile(reduced), torch.matmul, wait, {})
    x = array(N)
    back = median(5, timed(lambda: x.cpu(), wait))
    row("PyTorch eager", "device to host, into a vector", 4 * N / back / 1e9, "GB/s")
    host = x.cpu()
    row("PyTorch eager", "host to device", 4 * N / median(5, timed(lambda: host.cuda(), wait)) / 1e9, "GB/s")


def cupy_rows():
    import cupy

    wait = lambda: cupy.cuda.Device().synchronize()
    chain = lambda x: cupy.maximum((x * 2 + 1) * 0.5, 0) - 3
    types = {"float32": lambda m: cupy.random.standard_normal((m, m), dtype=cupy.float32)}
    array = lambda n: cupy.arange(n, dtype=cupy.float32)
    add = lambda x, s: x + cupy.float32(s)
    ask("CuPy", array, add, chain, lambda x: (x * 0.5).sum(), cupy.matmul, wait, types)


for rows in (torch_rows, cupy_rows):
    try:
        rows()
    except ImportError as error:
        print(f"left out: {error}", file=sys.stderr)
