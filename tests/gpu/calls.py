"""How long the driver's calls take that a device's thread makes: medians in microseconds.

python3 tests/gpu/calls.py          # needs NVIDIA's driver, and nothing else
"""

import ctypes
import statistics
import time

cuda = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    status = getattr(cuda, name)(*arguments)
    if status:
        raise RuntimeError(f"{name} says {status}")


def median(times, body):
    samples = []
    for _ in range(times):
        begun = time.perf_counter()
        body()
        samples.append((time.perf_counter() - begun) * 1e6)
    return statistics.median(samples)


# The interpreter's own share of a call, to be taken off.
version = ctypes.c_int()
nothing = median(2000, lambda: cuda.cuDriverGetVersion(ctypes.byref(version)))
call("cuInit", 0)
device, context = ctypes.c_int(), ctypes.c_void_p()
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
call("cuCtxSetCurrent", context)
streams = [ctypes.c_void_p() for _ in range(2)]
for stream in streams:
    call("cuStreamCreate", ctypes.byref(stream), 1)
stream, other = streams
event, memory, page = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_void_p()
call("cuEventCreate", ctypes.byref(event), 3)
call("cuMemAllocAsync", ctypes.byref(memory), ctypes.c_size_t(1 << 20), stream)
call("cuMemHostAlloc", ctypes.byref(page), ctypes.c_size_t(1 << 20), 0)


def allocate():
    taken = ctypes.c_uint64()
    call("cuMemAllocAsync", ctypes.byref(taken), ctypes.c_size_t(1 << 16), stream)
    call("cuMemFreeAsync", taken, stream)


def pin():
    taken = ctypes.c_void_p()
    call("cuMemHostAlloc", ctypes.byref(taken), ctypes.c_size_t(1 << 22), 0)
    call("cuMemFreeHost", taken)


# A kernel that does nothing, for any GPU; the driver finishes it.
NOTHING = b".version 7.0\n.target sm_52\n.address_size 64\n.visible .entry nothing() { ret; }\n"
STEPS = 100


class Node(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2"""

    _fields_ = [
        ("function", ctypes.c_void_p),
        ("sizes", ctypes.c_uint * 7),
        ("parameters", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    ]


def kernels():
    """Rows of launches, one by one and as a graph."""
    module, function, graph = (ctypes.c_void_p() for _ in range(3))
    call("cuModuleLoadData", ctypes.byref(module), NOTHING)
    call("cuModuleGetFunction", ctypes.byref(function), module, b"nothing")

    def load():
        again = ctypes.c_void_p()
        call("cuModuleLoadData", ctypes.byref(again), NOTHING)
        call("cuModuleUnload", again)

    launch = [function, 1, 1, 1, 32, 1, 1, 0, stream, None, None]
    node = Node(function, (1, 1, 1, 32, 1, 1, 0))
    call("cuGraphCreate", ctypes.byref(graph), 0)
    last = ctypes.c_void_p()
    for step in range(STEPS):
        made, before = ctypes.c_void_p(), (ctypes.c_void_p * 1)(last)
        many = min(step, 1)
        call("cuGraphAddKernelNode_v2", ctypes.byref(made), graph, before, many, ctypes.byref(node))
        last = made
    kept = ctypes.c_void_p()

    def instantiate():
        made = ctypes.c_void_p()
        call("cuGraphInstantiateWithFlags", ctypes.byref(made), graph, ctypes.c_uint64(0))
        return made

    def again():
        call("cuGraphExecDestroy", instantiate())

    kept = instantiate()
    update = [kept, last, ctypes.byref(node)]
    return {
        "kernel launched": (2000, lambda: call("cuLaunchKernel", *launch)),
        "module of one kernel loaded, and unloaded": (20, load),
        f"graph of {STEPS} kernels launched": (200, lambda: call("cuGraphLaunch", kept, stream)),
        "kernel of a graph updated": (
            2000,
            lambda: call("cuGraphExecKernelNodeSetParams_v2", *update),
        ),
        f"graph of {STEPS} kernels instantiated, ended": (50, again),
    }


def products():
    """Rows of cuBLAS."""
    blas = ctypes.CDLL("libcublas.so.13")
    handle, workspace = ctypes.c_void_p(), ctypes.c_uint64()

    def said(name, *arguments):
        status = getattr(blas, name)(*arguments)
        if status:
            raise RuntimeError(f"{name} says {status}")

    began = time.perf_counter()
    said("cublasCreate_v2", ctypes.byref(handle))
    print(f"{'handle of cuBLAS made':44} {(time.perf_counter() - began) * 1e6:8.0f} us")
    room = ctypes.c_size_t(32 << 20)
    call("cuMemAllocAsync", ctypes.byref(workspace), room, stream)
    one, n, across = ctypes.c_float(1), 64, ctypes.c_longlong(0)
    float32, compute, algorithm = 0, 68, -1
    scalar = ctypes.byref(one)
    matrix = [memory, float32, n, across]
    gemm = [handle, 0, 0, n, n, n, scalar, *matrix, *matrix, scalar, *matrix, 1, compute, algorithm]
    said("cublasSetStream_v2", handle, stream)
    return {
        "cublasSetStream": (2000, lambda: said("cublasSetStream_v2", handle, stream)),
        "cublasSetMathMode": (2000, lambda: said("cublasSetMathMode", handle, 16)),
        "cublasSetWorkspace": (
            2000,
            lambda: said("cublasSetWorkspace_v2", handle, workspace, room),
        ),
        "product of 64 x 64": (2000, lambda: said("cublasGemmStridedBatchedEx", *gemm)),
    }


def grow():
    """A pool that has given all back grows again."""
    taken, pool = ctypes.c_uint64(), ctypes.c_void_p()
    call("cuMemAllocAsync", ctypes.byref(taken), ctypes.c_size_t(256 << 20), stream)
    call("cuMemFreeAsync", taken, stream)
    call("cuStreamSynchronize", stream)
    call("cuDeviceGetDefaultMemPool", ctypes.byref(pool), device)
    call("cuMemPoolTrimTo", pool, ctypes.c_size_t(0))


size = ctypes.c_size_t(4096)
rows = {
    "allocation and free in stream order": (2000, allocate),
    "256 MiB of a pool that has to grow": (20, grow),
    "page-locking 4 MiB, and back": (20, pin),
    "fill": (2000, lambda: call("cuMemsetD8Async", memory, 0, size, stream)),
    "copy to the device": (2000, lambda: call("cuMemcpyHtoDAsync_v2", memory, page, size, stream)),
    "copy to the host": (2000, lambda: call("cuMemcpyDtoHAsync_v2", page, memory, size, stream)),
    "event recorded": (2000, lambda: call("cuEventRecord", event, stream)),
    "event asked": (2000, lambda: cuda.cuEventQuery(event)),
    "stream waits for an event": (2000, lambda: call("cuStreamWaitEvent", other, event, 0)),
}
for more in [kernels, products]:
    # A driver that finishes no assembly, or no cuBLAS, costs the others nothing.
    try:
        rows |= more()
    except (OSError, RuntimeError, AttributeError) as error:
        print(f"left out: {more.__name__}: {error}")
for name, (times, body) in rows.items():
    print(f"{name:44} {median(times, body) - nothing:8.2f} us beyond an empty call")
    call("cuStreamSynchronize", stream)
    call("cuStreamSynchronize", other)
