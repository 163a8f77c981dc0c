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
        raise SystemExit(f"{name} says {status}")


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


size = ctypes.c_size_t(4096)
rows = {
    "allocation and free in stream order": (2000, allocate),
    "page-locking 4 MiB, and back": (20, pin),
    "fill": (2000, lambda: call("cuMemsetD8Async", memory, 0, size, stream)),
    "copy to the device": (2000, lambda: call("cuMemcpyHtoDAsync_v2", memory, page, size, stream)),
    "copy to the host": (2000, lambda: call("cuMemcpyDtoHAsync_v2", page, memory, size, stream)),
    "event recorded": (2000, lambda: call("cuEventRecord", event, stream)),
    "event asked": (2000, lambda: cuda.cuEventQuery(event)),
    "stream waits for an event": (2000, lambda: call("cuStreamWaitEvent", other, event, 0)),
}
for name, (times, body) in rows.items():
    print(f"{name:40} {median(times, body) - nothing:8.2f} us beyond an empty call")
    call("cuStreamSynchronize", stream)
    call("cuStreamSynchronize", other)
