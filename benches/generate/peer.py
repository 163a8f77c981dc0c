"""The turn of a llama.cpp that was built from source, through llama-cpp-python: one line of JSON.

usage: python peer.py MODEL.gguf speed [THREADS]

    CMAKE_ARGS=-DGGML_NATIVE=ON pip install --no-binary llama-cpp-python llama-cpp-python

As peer.mjs, but for what lies in memory. The likeliest token is found by NumPy, which takes about
0.1 ms of each. Eight sequences are a batch of eight tokens a step, in a context of their own.
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
options = dict(n_ctx=1024, n_batch=512, n_threads=threads, n_threads_batch=threads)
llama = llama_cpp.Llama(model, verbose=False, **options)
vocabulary = (llama.n_vocab(),)
DECODED = 128


def likeliest():
    logits = llama_cpp.llama_get_logits_ith(llama._ctx.ctx, -1)
    return int(numpy.argmax(numpy.ctypeslib.as_array(logits, shape=vocabulary)))


def decode():
    """Tokens a second behind the first."""
    llama.reset()
    llama.eval(llama.tokenize(b"The old lighthouse keeper"))
    token, begin = likeliest(), time.perf_counter()
    for _ in range(DECODED - 1):
        llama.eval([token])
        token = likeliest()
    return (DECODED - 1) / (time.perf_counter() - begin)


def prompt(salt):
    """Tokens a second of a prompt of 512."""
    llama.reset()
    begin = time.perf_counter()
    llama.eval([1000 + (k * 37 + salt * 101) % 20000 for k in range(512)])
    likeliest()
    return 512 / (time.perf_counter() - begin)


def beside(sequences):
    """Tokens a second of so many sequences, each behind its first."""
    params = llama_cpp.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_seq_max = 256 * sequences, 512, sequences
    params.n_threads = params.n_threads_batch = threads
    context = llama_cpp.llama_init_from_model(llama._model.model, params)
    batch = llama_cpp.llama_batch_init(512, 0, 1)

    def step(tokens):
        """Evaluates (token, position, sequence, whether its logits are wanted)."""
        batch.n_tokens = len(tokens)
        for i, (token, position, sequence, wanted) in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, wanted
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
        if llama_cpp.llama_decode(context, batch):
            sys.exit("llama_decode has failed")
        logits = lambda i: llama_cpp.llama_get_logits_ith(context, i)
        best = lambda i: int(numpy.argmax(numpy.ctypeslib.as_array(logits(i), shape=vocabulary)))
        return [best(i) for i, token in enumerate(tokens) if token[3]]

    prompts = (here / "prompts.txt").read_text().splitlines()[:sequences]
    prompts = [llama.tokenize(line.encode()) for line in prompts]
    last = []
    for k, prompt in enumerate(prompts):
        end = len(prompt) - 1
        last += step([(token, i, k, i == end) for i, token in enumerate(prompt)])
    begin = time.perf_counter()
    for turn in range(DECODED - 1):
        last = step([(t, len(prompts[k]) + turn, k, True) for k, t in enumerate(last)])
    took = time.perf_counter() - begin
    llama_cpp.llama_batch_free(batch)
    llama_cpp.llama_free(context)
    return sequences * (DECODED - 1) / took


decode()
prompt(1)
beside(8)
print(json.dumps({"decode 1": decode(), "decode 8": beside(8), "prefill 512": prompt(2)}))
