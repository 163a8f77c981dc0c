"""The questions of benches/gpu.rs, put to PyTorch and CuPy: one line of JSON each.

    python3 tests/gpu/peers.py [--quick]               # PyTorch eager and CuPy
    python3 tests/gpu/peers.py compiled [--quick]      # torch.compile

Products and convolutions of float32 are asked for without TF32, and in a column of their own as
PyTorch has them by default. What is not installed is left out.
"""

import json
import statistics
import sys
import time

QUICK = "--quick" in sys.argv
COMPILED = "compiled" in sys.argv
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
    row(
        who,
        "fused chain, read and write",
        8 * N / median(10, timed(lambda: chain(x), wait)) / 1e9,
        "GB/s",
    )
    row(
        who,
        "fused into a sum, read",
        4 * N / median(10, timed(lambda: reduced(x), wait)) / 1e9,
        "GB/s",
    )
    for name, make in types.items():
        a = make(M)

        def eight():
            y = a
            for _ in range(8):
                y = matmul(a, y)

        row(
            who, f"matmul {name}", 2 * M**3 / (median(10, timed(eight, wait)) / 8) / 1e12, "TFLOP/s"
        )


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
    if COMPILED:
        fused = [torch.compile(chain), torch.compile(reduced)]
        ask("torch.compile", array, add, *fused, torch.matmul, wait, {})
        return
    ask("PyTorch eager", array, add, chain, reduced, torch.matmul, wait, types)
    x = array(N)
    back = median(5, timed(lambda: x.cpu(), wait))
    row("PyTorch eager", "device to host, into a vector", 4 * N / back / 1e9, "GB/s")
    host = x.cpu()
    row(
        "PyTorch eager",
        "host to device",
        4 * N / median(5, timed(lambda: host.cuda(), wait)) / 1e9,
        "GB/s",
    )


def torch_families():
    """The families of benches/gpu, each by events."""
    import torch
    from torch.nn import functional as F

    switches = [(torch.backends.cuda.matmul, "allow_tf32"), (torch.backends.cudnn, "allow_tf32")]
    defaults = [getattr(*switch) for switch in switches]

    def tf32(values):
        for switch, value in zip(switches, values):
            setattr(*switch, value)

    tf32([False, False])
    n = M
    x = torch.randn(n, n, device="cuda")
    half = x.bfloat16()
    weight, bias = torch.ones(n, device="cuda"), torch.zeros(n, device="cuda")
    index = torch.randint(n, (n,), device="cuda")
    ids = index[:, None].expand(n, n).contiguous()
    image = torch.randn(32, 64, n // 64, n // 64, device="cuda")
    filters = torch.randn(64, 64, 3, 3, device="cuda")
    many = {
        "add": lambda: x + x,
        "gelu": lambda: F.gelu(x),
        "sum of rows": lambda: x.sum(1),
        "sum of columns": lambda: x.sum(0),
        "argmax of rows": lambda: x.argmax(1),
        "softmax of rows": lambda: x.softmax(1),
        "softmax of rows, bf16": lambda: half.softmax(1),
        "softmax of columns": lambda: x.softmax(0),
        "layer norm": lambda: F.layer_norm(x, (n,), weight, bias),
        "layer norm, bf16": lambda: F.layer_norm(half, (n,), weight.bfloat16(), bias.bfloat16()),
        "transposed copy": lambda: x.t().contiguous(),
        "cumsum of rows": lambda: x.cumsum(1),
        "sort of rows": lambda: x.sort(1).values,
        "50 largest of rows": lambda: x.topk(50, 1).values,
        "rows by index": lambda: x.index_select(0, index),
        "scatter_add of rows": lambda: torch.zeros(n, n, device="cuda").scatter_add(0, ids, x),
        "product with bias and gelu": lambda: F.gelu(x @ x + bias),
        "product with bias and gelu, bf16": lambda: F.gelu(half @ half + bias.bfloat16()),
        "convolution 3 x 3, 64 channels": lambda: F.conv2d(image, filters, padding=1),
        "greatest of 2 x 2": lambda: F.max_pool2d(image, 2),
    }
    for dtype, name in [(torch.float32, "float32"), (torch.bfloat16, "bf16")]:
        q = torch.randn(4, 16, n // 2, 64, device="cuda", dtype=dtype)
        many[f"causal attention, {name}"] = lambda q=q: F.scaled_dot_product_attention(
            q, q, q, is_causal=True
        )
        leaves = [q.clone().requires_grad_() for _ in range(3)]
        found = F.scaled_dot_product_attention(*leaves, is_causal=True)
        many[f"gradients of causal attention, {name}"] = lambda q=q, leaves=leaves, found=found: (
            torch.autograd.grad(found, leaves, q, retain_graph=True)[2]
        )
        one = q[:, :, :1].contiguous()
        many[f"attention of one query, {name}"] = lambda q=q, one=one: (
            F.scaled_dot_product_attention(one, q, q)
        )
    # Heads of 128, four to a head of keys and values, as language models have them.
    halves = lambda *dims: torch.randn(*dims, device="cuda").bfloat16()
    q, kv = halves(4, 16, n // 2, 128), halves(4, 4, n // 2, 128)
    many["causal attention, bf16, grouped heads of 128"] = lambda: F.scaled_dot_product_attention(
        q, kv, kv, is_causal=True, enable_gqa=True
    )
    # PyTorch has no pages: keys and values in a row.
    one, cache = halves(32, 16, 1, 128), halves(32, 4, n // 2, 128)
    many["attention of 32 sequences, bf16, grouped heads of 128"] = lambda: (
        F.scaled_dot_product_attention(one, cache, cache, enable_gqa=True)
    )
    for rows in (1, 8, 64, 512):
        few = half[:1].expand(rows, n).contiguous()
        for name in ("Q4_0", "Q8_0", "BF16"):
            many[f"{rows} rows by weights, {name}"] = lambda few=few: few @ half
    asked = [("PyTorch eager", lambda f: f, many)]
    # What TF32 changes.
    differ = {k: f for k, f in many.items() if "product" in k and "bf16" not in k or "convol" in k}
    asked.append(("PyTorch's defaults", lambda f: f, differ))
    if COMPILED:
        asked = [("torch.compile", torch.compile, many)]
    for who, made, calls in asked:
        tf32(defaults if "defaults" in who else [False, False])
        for name, call in calls.items():
            call = made(call)

            # Several calls between two events: one alone ends before Python has launched the next.
            def sample(times=1 if QUICK else 10):
                began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                began.record()
                for _ in range(times):
                    call()
                ended.record()
                ended.synchronize()
                return began.elapsed_time(ended) * 1e3 / times

            # One that cannot be compiled, for want of a compiler say, costs no other its row.
            try:
                row(who, f"GPU's time: {name}", median(10, sample), "us")
            except Exception as error:
                print(f"left out: {name} by {who}: {str(error)[:200]}", file=sys.stderr)


def torch_training():
    """Training steps of benches/gpu/training.rs."""
    import torch
    from torch import nn

    torch.backends.cuda.matmul.allow_tf32 = False
    who = "torch.compile" if COMPILED else "PyTorch eager"
    small = ("784-256-10", [784, 256, 10], 256, 3 if QUICK else 50)
    sizes, batch = ([784, 256, 10], 256) if QUICK else ([4096, 4096, 4096, 1000], 4096)
    large = ("three layers of 4,096", sizes, batch, 3 if QUICK else 10)
    for name, sizes, batch, steps in (small, large):
        layers = []
        for a, b in zip(sizes, sizes[1:]):
            layers += [nn.Linear(a, b, device="cuda"), nn.ReLU()]
        net = nn.Sequential(*layers[:-1])
        x = torch.randn(batch, sizes[0], device="cuda")
        y = torch.arange(batch, device="cuda") * 7 % sizes[-1]
        sgd = torch.optim.SGD(net.parameters(), lr=0.05)
        forward = torch.compile(net) if COMPILED else net

        def many():
            for _ in range(steps):
                sgd.zero_grad()
                nn.functional.cross_entropy(forward(x), y).backward()
                sgd.step()

        time = median(5, timed(many, torch.cuda.synchronize)) / steps
        row(who, f"a training step, {name}", time * 1e6, "us")


def torch_generation():
    """The language model of benches/gpu/generate.rs: all requests in step, and as many pages as
    they fill. Compiled, a token is a CUDA graph."""
    import torch
    from torch.nn import functional as F

    width, layers, heads, kv, inner, words = 2048, 16, 32, 8, 8192, 32_000
    prompt, answer, requests = 512, 128, 32
    if QUICK:
        width, layers, heads, kv, inner, words = 64, 2, 4, 2, 96, 320
        prompt, answer, requests = 20, 4, 3
    head = width // heads
    half = lambda *dims: torch.randn(*dims, device="cuda").bfloat16() * dims[-1] ** -0.5
    table, last = half(words, width), half(words, width)
    norm = torch.ones(width, device="cuda", dtype=torch.bfloat16)
    each = [
        [half((heads + 2 * kv) * head, width), half(width, width)]
        + [half(2 * inner, width), half(width, inner)]
        for _ in range(layers)
    ]
    places = torch.arange(prompt + answer, device="cuda")
    angle = places[:, None] * 10_000.0 ** (-torch.arange(0, head, 2, device="cuda") / head)
    cosine, sine = angle.cos().bfloat16(), angle.sin().bfloat16()

    def turned(x, at):
        c, s = cosine[at][:, None], sine[at][:, None]
        a, b = x.chunk(2, -1)
        return torch.cat([a * c - b * s, b * c + a * s], -1)

    def step(tokens, at, cache, whole):
        """Tokens [n, t] at these places to the next token of each of n."""
        n, t = tokens.shape
        x = table[tokens]
        for k, (qkv, out, up, down) in enumerate(each):
            y = F.rms_norm(x, (width,), norm, 1e-5) @ qkv.t()
            q, keys, values = y.view(n, t, -1, head).split([heads, kv, kv], 2)
            q, keys = turned(q, at).transpose(1, 2), turned(keys, at)
            cache[k, 0].index_copy_(1, at, keys)
            cache[k, 1].index_copy_(1, at, values)
            if whole:
                keys, values = keys.transpose(1, 2), values.transpose(1, 2)
                seen = {"is_causal": True}
            else:
                keys, values = cache[k, 0].transpose(1, 2), cache[k, 1].transpose(1, 2)
                seen = {"attn_mask": (places <= at)[None]}
            y = F.scaled_dot_product_attention(q, keys, values, enable_gqa=True, **seen)
            x = x + y.transpose(1, 2).reshape(n, t, width) @ out.t()
            gate, up = (F.rms_norm(x, (width,), norm, 1e-5) @ up.t()).chunk(2, -1)
            x = x + (F.silu(gate) * up) @ down.t()
        return (F.rms_norm(x[:, -1:], (width,), norm, 1e-5) @ last.t()).argmax(-1)

    one = torch.compile(step, mode="reduce-overhead") if COMPILED else step
    who = "torch.compile" if COMPILED else "PyTorch eager"

    @torch.no_grad()
    def ask(n):
        """The seconds of the prompts, and of the rest of the answers."""
        cache = torch.zeros(layers, 2, n, prompt + answer, kv, head, device="cuda").bfloat16()
        tokens = torch.randint(words, (n, prompt), device="cuda")

        def sample():
            torch.cuda.synchronize()
            began = time.perf_counter()
            token = step(tokens, places[:prompt], cache, True)
            # Each token is seen by the host, as whoever reads it along has it.
            token.tolist()
            first = time.perf_counter()
            for k in range(prompt, prompt + answer - 1):
                token = one(token, places[k : k + 1], cache, False).clone()
                token.tolist()
            ended = time.perf_counter()
            return first - began, ended - first

        return [sample() for _ in range(3)][1:]

    took = ask(1)
    row(who, "language model, a prompt", prompt / min(a for a, _ in took), "tokens/s")
    row(who, "language model, an answer", (answer - 1) / min(b for _, b in took), "tokens/s")
    all_of = min(a + b for a, b in ask(requests))
    name = "language model, many answers, prompts included"
    row(who, name, requests * answer / all_of, "tokens/s")


def cupy_rows():
    import cupy

    wait = lambda: cupy.cuda.Device().synchronize()
    chain = lambda x: cupy.maximum((x * 2 + 1) * 0.5, 0) - 3
    types = {"float32": lambda m: cupy.random.standard_normal((m, m), dtype=cupy.float32)}
    array = lambda n: cupy.arange(n, dtype=cupy.float32)
    add = lambda x, s: x + cupy.float32(s)
    ask("CuPy", array, add, chain, lambda x: (x * 0.5).sum(), cupy.matmul, wait, types)


torch_questions = (torch_rows, torch_training, torch_generation, torch_families)
for rows in (*torch_questions, *([] if COMPILED else [cupy_rows])):
    try:
        rows()
    except Exception as error:
        print(
            f"left out, {rows.__name__}: {type(error).__name__}: {str(error)[:200]}",
            file=sys.stderr,
        )
