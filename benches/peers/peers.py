#!/usr/bin/env python3
"""The cases of src/main.rs in NumPy, PyTorch (eager and compiled) and JAX (eager and jit), on the
CPU.

    python3 peers.py [--only CASE,...] [--quick] [--threads N] [--engines numpy,torch,jax]
        [--json FILE]

Installing them is the caller's affair (`pip install numpy torch jax`); what is not there is
reported and left out. Method as in src/measure.rs: warmed up, then turn by turn, medians; every
result is waited for, and read after the clock has stopped: all engines have to have come to the
same numbers. The file is for `--peers` of the Rust program.
"""

import os

# What one machine sets for a reason cripples the libraries on another: no kernel is to be chosen by
# hand here.
CRIPPLING = [
    n
    for n in os.environ
    if n
    in (
        "OPENBLAS_CORETYPE",
        "OPENBLAS_VERBOSE",
        "MKL_CBWR",
        "MKL_ENABLE_INSTRUCTIONS",
        "MKL_DEBUG_CPU_TYPE",
        "ONEDNN_MAX_CPU_ISA",
        "DNNL_MAX_CPU_ISA",
        "ATEN_CPU_CAPABILITY",
        "NPY_DISABLE_CPU_FEATURES",
        "XLA_FLAGS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "OMP_NUM_THREADS",
    )
]
for name in CRIPPLING:
    del os.environ[name]

import argparse
import datetime
import importlib
import importlib.util
import json
import math
import statistics
import sys
import time

LARGE = 16 << 20
OPS = 10_000
BATCH, INPUTS, HIDDEN, CLASSES = 256, 784, 256, 10
RATE = 0.05
ROWS = (16, 384, 1536)
SIDE = 4096
SMALL = ("enqueue", "detached", "awaited", "awaited-two")
CASES = [
    "enqueue",
    "detached",
    "awaited",
    "awaited-two",
    "chain",
    "exp",
    "tanh",
    "gelu",
    "sum",
    "softmax",
    "matmul-64",
    "matmul-256",
    "matmul-1000",
    "matmul-2048",
    "matmul-4096",
    "rows",
    "randn",
    "overlap-64",
    "overlap-512",
    "mlp",
    "train",
]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="cases that begin so, with commas")
    parser.add_argument("--engines", default="numpy,torch,jax")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json")
    given = parser.parse_args()
    given.only = [word for word in given.only.split(",") if word]
    given.engines = given.engines.split(",")
    return given


def chain_length(n):
    return 500 if n == 64 else 10


def items(case):
    return OPS if case in SMALL else LARGE if case == "randn" else 1


class Inputs:
    """Host arrays, made when first asked for; the same for all engines of a case."""

    def __init__(self, np):
        self.np = np
        self.known = {}

    def __call__(self, seed, shape, scale):
        key = (seed, shape)
        if key not in self.known:
            draw = self.np.random.default_rng(seed).uniform(-scale, scale, shape)
            self.known[key] = draw.astype(self.np.float32)
        return self.known[key]

    def turn(self, n):
        """Turns each row by one place: values stay what they are."""
        return self.np.roll(self.np.eye(n, dtype=self.np.float32), -1, axis=0)

    def mlp(self):
        first, second = 1 / math.sqrt(INPUTS), 1 / math.sqrt(HIDDEN)
        weights = [
            self(2, (HIDDEN, INPUTS), first),
            self(3, (HIDDEN,), first),
            self(4, (CLASSES, HIDDEN), second),
            self(5, (CLASSES,), second),
        ]
        return self(1, (BATCH, INPUTS), 1.7), self.np.arange(BATCH) * 7 % CLASSES, weights


def numpy_engines(inputs, case):
    np = inputs.np

    def each(op, *given):
        def run(n):
            y = None
            begin = time.perf_counter()
            for _ in range(n):
                y = None
                y = op(*given)
            return time.perf_counter() - begin, y

        return run

    x = lambda: inputs(8, (LARGE,), 3.0)
    if case in SMALL:
        one, other = np.ones((1, 2), np.float32), np.ones((1, 2), np.float32)

        def small(n):
            begin = time.perf_counter()
            for _ in range(n):
                if case == "awaited-two":
                    for i in range(OPS):
                        y = one * other + np.float32(i)
                elif case == "awaited":
                    for i in range(OPS):
                        y = one + np.float32(i)
                else:
                    held = [one + np.float32(i) for i in range(OPS)]
                    y = held[-1]
            return time.perf_counter() - begin, y

        return {"NumPy": small}
    if case == "chain":
        return {"NumPy": each(lambda x: np.maximum((x * 2 + 1) * x - np.float32(0.5), 0), x())}
    if case in ("exp", "tanh"):
        return {"NumPy": each(getattr(np, case), x())}
    if case == "sum":
        return {"NumPy": each(np.sum, x())}
    if case == "softmax":

        def softmax(x):
            e = np.exp(x - x.max(1, keepdims=True))
            e /= e.sum(1, keepdims=True)
            return e

        return {"NumPy": each(softmax, inputs(12, (SIDE, SIDE), 3.0))}
    if case.startswith("matmul-"):
        n = int(case[7:])
        return {"NumPy": each(np.matmul, inputs(6, (n, n), 1.0), inputs(7, (n, n), 1.0))}
    if case == "rows":
        m, k, n = ROWS
        return {"NumPy": each(np.matmul, inputs(6, (m, k), 1.0), inputs(7, (k, n), 1.0))}
    if case == "randn":
        generator = np.random.default_rng(0)
        return {"NumPy": each(lambda: generator.standard_normal(LARGE, np.float32))}
    if case in ("mlp", "train"):
        x, y, start = inputs.mlp()
        target = np.eye(CLASSES, dtype=np.float32)[y]

        def forward(w1, b1, w2, b2):
            h = x @ w1.T
            h += b1
            np.maximum(h, 0, out=h)
            z = h @ w2.T + b2
            z -= z.max(1, keepdims=True)
            e = np.exp(z)
            total = e.sum(1, keepdims=True)
            loss = (np.log(total[:, 0]) - z[np.arange(BATCH), y]).mean()
            return h, e / total, loss

        if case == "mlp":
            return {"NumPy": each(lambda: forward(*start)[2])}

        def train(n):
            w1, b1, w2, b2 = (w.copy() for w in start)
            losses = []
            rate = np.float32(RATE)
            begin = time.perf_counter()
            for _ in range(n):
                h, p, loss = forward(w1, b1, w2, b2)
                g = (p - target) / np.float32(BATCH)
                dh = g @ w2
                dh *= h > 0
                w2 -= rate * (g.T @ h)
                b2 -= rate * g.sum(0)
                w1 -= rate * (dh.T @ x)
                b1 -= rate * dh.sum(0)
                losses.append(loss)
            return time.perf_counter() - begin, np.array(losses[:2])

        return {"NumPy by hand": train}
    return {}


def torch_engines(inputs, case, torch):
    F = torch.nn.functional
    from_numpy = torch.from_numpy

    def each(op, *given):
        def run(n):
            y = None
            with torch.no_grad():
                begin = time.perf_counter()
                for _ in range(n):
                    y = None
                    y = op(*given)
                return time.perf_counter() - begin, y

        return run

    def both(op, *given):
        return {"PyTorch": each(op, *given), "torch.compile": each(torch.compile(op), *given)}

    x = lambda: from_numpy(inputs(8, (LARGE,), 3.0))
    if case in SMALL:
        one, other = torch.ones(1, 2), torch.ones(1, 2)

        def small(n):
            with torch.no_grad():
                begin = time.perf_counter()
                for _ in range(n):
                    if case == "awaited-two":
                        for i in range(OPS):
                            y = one * other + i
                    elif case == "awaited":
                        for i in range(OPS):
                            y = one + i
                    else:
                        held = [one + i for i in range(OPS)]
                        y = held[-1]
                return time.perf_counter() - begin, y

        return {"PyTorch": small}
    if case == "chain":
        return both(lambda x: torch.relu((x * 2 + 1) * x - 0.5), x())
    if case == "gelu":
        return both(lambda x: F.gelu(x), x())
    if case in ("exp", "tanh", "sum"):
        op = getattr(torch, case)
        return both(lambda x: op(x), x())
    if case == "softmax":
        return both(lambda x: torch.softmax(x, 1), from_numpy(inputs(12, (SIDE, SIDE), 3.0)))
    if case.startswith("matmul-"):
        n = int(case[7:])
        return {
            "PyTorch": each(
                torch.matmul, from_numpy(inputs(6, (n, n), 1.0)), from_numpy(inputs(7, (n, n), 1.0))
            )
        }
    if case == "rows":
        m, k, n = ROWS
        return {
            "PyTorch": each(
                torch.matmul, from_numpy(inputs(6, (m, k), 1.0)), from_numpy(inputs(7, (k, n), 1.0))
            )
        }
    if case == "randn":
        return {"PyTorch": each(lambda: torch.randn(LARGE))}
    if case in ("mlp", "train"):
        x, y, start = inputs.mlp()
        x, y = from_numpy(x), from_numpy(y)

        def loss_of(w1, b1, w2, b2):
            return F.cross_entropy(F.linear(F.relu(F.linear(x, w1, b1)), w2, b2), y)

        start = [from_numpy(w) for w in start]
        if case == "mlp":
            return both(lambda *w: loss_of(*w), *start)

        def training(forward):
            def run(n):
                weights = [w.clone().requires_grad_() for w in start]
                sgd = torch.optim.SGD(weights, lr=RATE)
                losses = []
                begin = time.perf_counter()
                for _ in range(n):
                    loss = forward(*weights)
                    sgd.zero_grad()
                    loss.backward()
                    sgd.step()
                    losses.append(loss.detach())
                return time.perf_counter() - begin, torch.stack(losses[:2])

            return run

        return {"PyTorch": training(loss_of), "torch.compile": training(torch.compile(loss_of))}
    return {}


def jax_engines(inputs, case, jax):
    jnp = jax.numpy

    def each(op, *given):
        given = [jax.block_until_ready(jnp.asarray(a)) for a in given]

        def run(n):
            y = None
            begin = time.perf_counter()
            for _ in range(n):
                y = None
                y = jax.block_until_ready(op(*given))
            return time.perf_counter() - begin, y

        return run

    def both(op, *given):
        return {"JAX": each(op, *given), "JAX jit": each(jax.jit(op), *given)}

    x = lambda: inputs(8, (LARGE,), 3.0)
    if case in SMALL:
        one = jax.block_until_ready(jnp.ones((1, 2), jnp.float32))

        def small(op):
            def run(n):
                took = 0.0
                for _ in range(n):
                    begin = time.perf_counter()
                    if case.startswith("awaited"):
                        for i in range(OPS):
                            y = op(one, i).block_until_ready()
                        took += time.perf_counter() - begin
                    else:
                        held = [op(one, i) for i in range(OPS)]
                        if case == "enqueue":
                            took += time.perf_counter() - begin
                        jax.block_until_ready(held)
                        if case == "detached":
                            took += time.perf_counter() - begin
                        y = held[-1]
                return took, y

            return run

        other = jax.block_until_ready(jnp.ones((1, 2), jnp.float32))
        op = (lambda x, i: x * other + i) if case == "awaited-two" else (lambda x, i: x + i)
        return {"JAX": small(op), "JAX jit": small(jax.jit(op))}
    if case == "chain":
        return both(lambda x: jax.nn.relu((x * 2 + 1) * x - 0.5), x())
    if case == "gelu":
        return both(lambda x: jax.nn.gelu(x, approximate=False), x())
    if case in ("exp", "tanh", "sum"):
        return both(getattr(jnp, case), x())
    if case == "softmax":
        return both(lambda x: jax.nn.softmax(x, 1), inputs(12, (SIDE, SIDE), 3.0))
    if case.startswith("matmul-"):
        n = int(case[7:])
        return {
            "JAX jit": each(jax.jit(jnp.matmul), inputs(6, (n, n), 1.0), inputs(7, (n, n), 1.0))
        }
    if case == "rows":
        m, k, n = ROWS
        return {
            "JAX jit": each(jax.jit(jnp.matmul), inputs(6, (m, k), 1.0), inputs(7, (k, n), 1.0))
        }
    if case == "randn":
        keys = [jax.random.key(0)]

        def draw(jitted):
            def make():
                keys[0], key = jax.random.split(keys[0])
                return jitted(key)

            return make

        normal = lambda key: jax.random.normal(key, (LARGE,), jnp.float32)
        return {"JAX": each(draw(normal)), "JAX jit": each(draw(jax.jit(normal)))}
    if case.startswith("overlap-"):
        n = int(case[8:])
        turn = jnp.asarray(inputs.turn(n))
        starts = [jnp.asarray(inputs(seed, (n, n), 1.0)) for seed in (10, 11)]
        product = jax.jit(jnp.matmul)

        def chains(together):
            def run(times):
                begin = time.perf_counter()
                for _ in range(times):
                    ends = []
                    for y in starts:
                        for _ in range(chain_length(n)):
                            y = product(y, turn)
                        ends.append(y if together else y.block_until_ready())
                    jax.block_until_ready(ends)
                return time.perf_counter() - begin, jnp.stack(ends)

            return run

        return {"JAX jit": chains(True), "JAX jit alone": chains(False)}
    if case in ("mlp", "train"):
        x, y, start = inputs.mlp()
        x, y = jnp.asarray(x), jnp.asarray(y)

        def loss_of(weights):
            w1, b1, w2, b2 = weights
            logs = jax.nn.log_softmax(jax.nn.relu(x @ w1.T + b1) @ w2.T + b2)
            return -jnp.take_along_axis(logs, y[:, None], 1).mean()

        start = [jnp.asarray(w) for w in start]
        if case == "mlp":
            jitted = jax.jit(loss_of)
            return {
                "JAX": each(lambda *w: loss_of(w), *start),
                "JAX jit": each(lambda *w: jitted(w), *start),
            }

        @jax.jit
        def step(weights):
            loss, gradients = jax.value_and_grad(loss_of)(weights)
            return [w - RATE * g for w, g in zip(weights, gradients)], loss

        def train(n):
            weights, losses = start, []
            begin = time.perf_counter()
            for _ in range(n):
                weights, loss = step(weights)
                losses.append(loss)
            jax.block_until_ready((weights, losses))
            return time.perf_counter() - begin, jnp.stack(losses[:2])

        return {"JAX jit": train}
    return {}


def ends(np, y):
    flat = np.asarray(y).reshape(-1)
    return np.concatenate([flat[:4], flat[-4:]]).astype(np.float64)


def check(np, case, known, engine, y):
    shows = ends(np, y)
    assert np.isfinite(shows).all(), f"{case}: {engine} came to {shows}"
    if case == "randn":
        assert not np.array_equal(known.get(case), shows) and abs(shows).max() < 7
        known[case] = shows
        return
    first = known.setdefault(case, shows)
    # A training of one step has one loss to show.
    n = 1 if case == "train" else len(first)
    same = np.abs(first[:n] - shows[:n]) <= 2e-3 * np.maximum(1, np.abs(first[:n]))
    assert same.all(), f"{case}: {engine} came to {shows}, another to {first}"


def measure(np, case, engines, quick, known):
    sample, most, turns = (0.005, 0.5, 5) if quick else (0.03, 2.5, 15)
    plan = []
    for engine, run in engines.items():
        n, once = 1, math.inf
        for _ in range(12):
            took, y = run(n)
            check(np, case, known, engine, y)
            del y
            once = min(once, took / n)
            wanted = min(max(math.ceil(sample / once), 1), 10**7)
            if n >= wanted:
                break
            n = min(wanted, n * 16)
        plan.append((engine, run, n, max(3, min(turns, int(most / (once * n)))), []))
    for turn in range(turns):
        for engine, run, n, own, seconds in plan:
            if turn < own:
                before = time.process_time()
                took, y = run(n)
                seconds.append(
                    (took / (n * items(case)), (time.process_time() - before) / (n * items(case)))
                )
                check(np, case, known, engine, y)
                del y
    rows = []
    for engine, _, _, _, seconds in plan:
        wall, cpu = zip(*seconds)
        # glibc told to keep its pages: see `run`.
        engine += ", pages kept" if os.environ.get("MALLOC_MMAP_MAX_") == "0" else ""
        row = {
            "case": case,
            "engine": engine,
            "median": statistics.median(wall),
            "fastest": min(wall),
            "cpu": statistics.median(cpu),
        }
        print(f"{case:<12} {engine:<16} {row['median'] * 1e6:12.3f} us", file=sys.stderr)
        rows.append(row)
    return rows


def main():
    given = arguments()
    cpus = sorted(os.sched_getaffinity(0))[: given.threads]
    os.sched_setaffinity(0, cpus)
    for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ[name] = str(given.threads)
    os.environ["JAX_PLATFORMS"] = "cpu"
    found, versions = {}, []
    for name in dict.fromkeys(["numpy", *given.engines]):
        if importlib.util.find_spec(name) is None:
            print(f"{name}: not installed, left out", file=sys.stderr)
            versions.append(f"{name} not installed")
            continue
        try:
            found[name] = importlib.import_module(name)
        except (ImportError, OSError) as error:
            print(f"{name}: does not load, left out: {error}", file=sys.stderr)
            versions.append(f"{name} does not load")
            continue
        versions.append(f"{name} {found[name].__version__}")
    if "numpy" not in found:
        sys.exit("without NumPy there is nothing to feed the others with: pip install numpy")
    np = found["numpy"]
    if "torch" in found:
        found["torch"].set_num_threads(given.threads)
    when = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    unset = f"; unset: {', '.join(CRIPPLING)}" if CRIPPLING else ""
    about = [
        f"{when}: Python {sys.version.split()[0]}, {', '.join(versions)}, "
        f"{given.threads} threads{unset}"
    ]
    inputs, rows, known = Inputs(np), [], {}
    for case in CASES:
        if given.only and not any(case.startswith(word) for word in given.only):
            continue
        engines = {}
        if "numpy" in given.engines:
            engines |= numpy_engines(inputs, case)
        if "torch" in found:
            engines |= torch_engines(inputs, case, found["torch"])
        if "jax" in found:
            engines |= jax_engines(inputs, case, found["jax"])
        rows += measure(np, case, engines, given.quick, known)
        inputs.known.clear()
        if given.json:
            with open(given.json, "w") as file:
                json.dump({"about": about, "rows": rows}, file, indent=1)
    print(about[0])


if __name__ == "__main__":
    main()
