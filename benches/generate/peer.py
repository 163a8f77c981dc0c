"""The turn of a llama.cpp that was built from source, through llama-cpp-python: one line of JSON.

usage: python peer.py MODEL.gguf speed [THREADS]

    CMAKE_ARGS=-DGGML_NATIVE=ON pip install --no-binary llama-cpp-python llama-cpp-python

Measures decoding and a prompt as measure.rs does, but neither memory nor the time to the first
token. Contexts have llama.cpp's own defaults (the package's `Llama` would turn flash attention
off). Each figure is that of a second run in the same context. NumPy finds the likeliest token,
which takes about 0.1 ms of each.
"""

import json
import pathlib
import sys
import time

if sys.argv[2:3] != ["speed"]:
    sys.exit(__doc__)

import llama_cpp
import numpy

here = pathlib.Path(__file__).resolve().parent
model, threads = sys.argv[1], int(sys.argv[3]) if len(sys.argv) > 3 else 2
llama = llama_cpp.Llama(model, n_ctx=64, verbose=False)
vocabulary = (llama.n_vocab(),)
DECODED, PROMPT = 128, 512
lines = (here / "prompts.txt").read_text().splitlines()
prompts = [llama.tokenize(line.encode()) for line in lines]
batch = llama_cpp.llama_batch_init(PROMPT, 0, 1)


def begin(sequences, positions):
    """A context of so many sequences with so many positions each."""
    params = llama_cpp.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_seq_max = positions * sequences, PROMPT, sequences
    params.n_threads = params.n_threads_batch = threads
    return llama_cpp.llama_init_from_model(llama._model.model, params) or sys.exit("no context")


def step(context, tokens):
    """The likeliest successors of those (token, position, sequence, wanted) that are wanted."""
    batch.n_tokens = len(tokens)
    for i, (token, position, sequence, wanted) in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.logits[i] = token, position, wanted
        batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
    if llama_cpp.llama_decode(context, batch):
        sys.exit("llama_decode has failed")
    logits = lambda i: llama_cpp.llama_get_logits_ith(context, i)
    best = lambda i: int(numpy.argmax(numpy.ctypeslib.as_array(logits(i), shape=vocabulary)))
    return [best(i) for i, token in enumerate(tokens) if token[3]]


def read(context, tokens, sequence):
    """What follows the tokens."""
    end = len(tokens) - 1
    return step(context, [(token, i, sequence, i == end) for i, token in enumerate(tokens)])


def second(context, run):
    """What the second of two runs gives."""
    for _ in range(2):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        result = run()
    llama_cpp.llama_free(context)
    return result


def decode(sequences):
    """Tokens a second, of each sequence those behind the first."""
    context = begin(sequences, 256)

    def run():
        last = [token for k in range(sequences) for token in read(context, prompts[k], k)]
        start = time.perf_counter()
        for turn in range(DECODED - 1):
            last = step(context, [(t, len(prompts[k]) + turn, k, True) for k, t in enumerate(last)])
        return sequences * (DECODED - 1) / (time.perf_counter() - start)

    return second(context, run)


def prompt():
    """Tokens a second of a prompt of 512."""
    context = begin(1, 2 * PROMPT)
    tokens = [1000 + (k * 37 + 202) % 20000 for k in range(PROMPT)]

    def run():
        start = time.perf_counter()
        read(context, tokens, 0)
        return PROMPT / (time.perf_counter() - start)

    return second(context, run)


print(json.dumps({"decode 1": decode(1), "decode 8": decode(8), "prefill 512": prompt()}))
