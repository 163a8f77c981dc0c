// The little of CUDA that futensor's kernels use, for a C++ compiler on the host.
//
// A block's threads are contexts of one host thread, run in turn. A thread that comes to a barrier gives
// way; when all that live have come, all go on. A shuffle is a value put down, a barrier of the warp, and a
// value taken. What a launch writes beyond its buffers is found by the test's canaries.

#define FUTENSOR_SIM 1
#include <math.h>
#include <setjmp.h>
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
    ucontext_t context;  // where it begins
    jmp_buf place;       // where it goes on: a jump is no system call, as a change of contexts is
    bool begun;
    uint3 index;
    Wait wait;
    unsigned long long value;
};
static std::vector<Thread> threads;
static std::vector<char> stacks;
static jmp_buf scheduler;
static unsigned current;
static bool together;  // threads of this kernel wait for each other
static void (*body)(void**);
static void** arguments;

static void give_way(Wait wait) {
    Thread& t = threads[current];
    t.wait = wait;
    if (!_setjmp(t.place)) _longjmp(scheduler, 1);
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
static int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 32; i += 8) c += (signed char)(a >> i) * (signed char)(b >> i);
    return c;
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
    give_way(DONE);
}

// Lets a thread run until it gives way.
static void enter(unsigned i) {
    Thread& t = threads[current = i];
    threadIdx = t.index;
    if (_setjmp(scheduler)) return;
    if (t.begun) _longjmp(t.place, 1);
    t.begun = true;
    setcontext(&t.context);
}

// Lets a warp run until each of its threads is done or waits for the block's, and says how many those are.
static unsigned run_warp(unsigned from, unsigned to) {
    for (;;) {
        unsigned waiting = 0, still = 0;
        for (unsigned i = from; i < to; ++i) {
            if (threads[i].wait == RUNS) enter(i);
            waiting += threads[i].wait == WARP;
            still += threads[i].wait != DONE && threads[i].wait != WARP;
        }
        if (!waiting) return still;
        if (still) __builtin_trap();  // some wait at one barrier, some at another
        for (unsigned i = from; i < to; ++i)
            if (threads[i].wait == WARP) threads[i].wait = RUNS;
    }
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
        t.begun = false;
        makecontext(&t.context, run_thread, 0);
    }
    if (!together) return;
    for (;;) {
        unsigned waiting = 0;
        for (unsigned w = 0; w < n; w += 32) waiting += run_warp(w, w + 32 < n ? w + 32 : n);
        if (!waiting) return;
        for (unsigned i = 0; i < n; ++i)
            if (threads[i].wait == BLOCK) threads[i].wait = RUNS;
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
