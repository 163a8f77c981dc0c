"""The turn of a llama.cpp that was built from source, through llama-cpp-python: one line of JSON.

usage: python peer.py MODEL.gguf speed [THREADS]

    CMAKE_ARGS=-DGGML_NATIVE=ON pip install --no-binary llama-cpp-python llama-cpp-python

As peer.mjs, but for eight sequences at once and what lies in memory. Tokens are evaluated one by
one, and the likeliest is found by NumPy, which takes about 0.1 ms of each.
"""

import json
import sys
import time

if sys.argv[2:3] != ["speed"]:
    sys.exit(__doc__)

import llama_cpp
import numpy

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


decode()
prompt(1)
print(json.dumps({"decode 1": decode(), "prefill 512": prompt(2)}))
