// The little of CUDA that futensor's kernels use, for a C++ compiler on the host.
//
// A block's threads are contexts of one host thread, run in turn. A thread that comes to a barrier gives
// way; when all that live have come, all go on. A shuffle is a value put down, a barrier of the warp, and a
// value taken. What a launch writes beyond its buffers is found by the test's canaries.

#define FUTENSOR_SIM 1
#include <math.h>
#include <string.h>
#include <ucontext.h>

#include <vector>

#define __global__
#define __device__
#define __launch_bounds__(...)
#define __shared__ static

struct uint3 { unsigned x, y, z; };
static uint3 threadIdx, blockIdx, blockDim, gridDim;

enum Wait { RUNS, BLOCK, WARP, DONE };
struct Thread {
    ucontext_t context;
    uint3 index;
    Wait wait;
    unsigned long long value;
};
static std::vector<Thread> threads;
static std::vector<char> stacks;
static ucontext_t scheduler;
static unsigned current;
static bool together;  // threads of this kernel wait for each other
static void (*body)(void**);
static void** arguments;

static void give_way(Wait wait) {
    Thread& t = threads[current];
    t.wait = wait;
    swapcontext(&t.context, &scheduler);
}
static inline void __syncthreads() { give_way(BLOCK); }
static inline void __threadfence() {}

template <class T> static T shuffle(T x, unsigned from) {
    memcpy(&threads[current].value, &x, sizeof(T));
    give_way(WARP);
    T r;
    memcpy(&r, &threads[from].value, sizeof(T));
    give_way(WARP);  // nobody puts down another value before all have taken this one
    return r;
}
static void __syncwarp() { give_way(WARP); }
static unsigned __match_any_sync(unsigned, unsigned x) {
    threads[current].value = x;
    give_way(WARP);
    unsigned same = 0;
    for (unsigned i = 0; i < 32; ++i) same |= (unsigned)(threads[current / 32 * 32 + i].value == x) << i;
    give_way(WARP);
    return same;
}
template <class T> static T __shfl_xor_sync(unsigned, T x, int d) { return shuffle(x, current ^ d); }
template <class T> static T __shfl_sync(unsigned, T x, int lane) { return shuffle(x, current / 32 * 32 + lane); }
template <class T> static T __shfl_up_sync(unsigned, T x, unsigned d) {
    return shuffle(x, current % 32 < d ? current : current - d);
}
template <class T> static T atomicCAS(T* p, T old, T x) {
    T was = *p;
    if (was == old) *p = x;
    return was;
}
template <class T> static T atomicAdd(T* p, T x) {
    T was = *p;
    *p = was + x;
    return was;
}
template <class T> static T atomicExch(T* p, T x) {
    T was = *p;
    *p = x;
    return was;
}

static void run_thread() {
    body(arguments);
    threads[current].wait = DONE;
    // uc_link returns to the scheduler.
}

static void run_block() {
    const unsigned n = blockDim.x * blockDim.y * blockDim.z, STACK = 64 << 10;
    if (threads.size() < n) {
        threads.resize(n);
        stacks.resize((size_t)n * STACK);
    }
    for (unsigned i = 0; i < n; ++i) {
        Thread& t = threads[i];
        t.index = {i % blockDim.x, i / blockDim.x % blockDim.y, i / blockDim.x / blockDim.y};
        t.wait = RUNS;
        if (!together) {
            threadIdx = t.index;
            body(arguments);
            continue;
        }
        getcontext(&t.context);
        t.context.uc_stack.ss_sp = &stacks[(size_t)i * STACK];
        t.context.uc_stack.ss_size = STACK;
        t.context.uc_link = &scheduler;
        makecontext(&t.context, run_thread, 0);
    }
    if (!together) return;
    for (;;) {
        bool ran = false;
        for (current = 0; current < n; ++current) {
            if (threads[current].wait != RUNS) continue;
            ran = true;
            threadIdx = threads[current].index;
            swapcontext(&scheduler, &threads[current].context);
        }
        unsigned done = 0, block = 0;
        for (unsigned w = 0; w < n; w += 32) {
            unsigned in_warp = 0, live = 0;
            for (unsigned i = w; i < n && i < w + 32; ++i) {
                done += threads[i].wait == DONE;
                block += threads[i].wait == BLOCK;
                in_warp += threads[i].wait == WARP;
                live += threads[i].wait != DONE;
            }
            if (in_warp > 0 && in_warp == live)
                for (unsigned i = w; i < n && i < w + 32; ++i)
                    if (threads[i].wait == WARP) threads[i].wait = RUNS, ran = true;
        }
        if (done == n) return;
        if (block > 0 && block + done == n) {
            for (unsigned i = 0; i < n; ++i)
                if (threads[i].wait == BLOCK) threads[i].wait = RUNS;
        } else if (!ran) {
            __builtin_trap();  // some wait at one barrier, some at another
        }
    }
}

template <int... I> struct List {};
template <int N, int... I> struct Count : Count<N - 1, N - 1, I...> {};
template <int... I> struct Count<0, I...> { typedef List<I...> type; };
template <class... P, int... I> static void call_at(void (*kernel)(P...), void** a, List<I...>) {
    kernel(*(P*)a[I]...);
}
template <class... P> static void call(void (*kernel)(P...), void** a) {
    call_at(kernel, a, typename Count<sizeof...(P)>::type());
}

static void launch(void (*work)(void**), const unsigned* grid, const unsigned* block, void** a, bool barriers) {
    body = work;
    arguments = a;
    together = barriers;
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block[0], block[1], block[2]};
    for (unsigned z = 0; z < grid[2]; ++z)
        for (unsigned y = 0; y < grid[1]; ++y)
            for (unsigned x = 0; x < grid[0]; ++x) {
                blockIdx = {x, y, z};
                run_block();
            }
}

// One for each kernel, after its source.
#define LAUNCHER(name, barriers)                                                                     \
    extern "C" void launch_##name(const unsigned* grid, const unsigned* block, void** arguments) {   \
        launch([](void** a) { call(name, a); }, grid, block, arguments, barriers);                   \
    }
