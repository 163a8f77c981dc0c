// Core of the shim: what CUDA C means to g++. Read by compile.rs, which puts it before a kernel source.
//
// A kernel library runs on one thread at a time, so the built-in variables are plain statics. The loop
// over threads is here, in futsim_next, so that a kernel without barriers costs no switch: a fiber runs
// thread after thread, and only a thread that must wait for others keeps its fiber (fibers.rs).
// What g++ gives is not all of CUDA: no memory model, no lockstep, and conversions and shifts that C++
// leaves undefined are undefined here while a GPU saturates or clamps them. Use the __float2int family.

#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __inline__ inline
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __maxnreg__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#define __constant__ __attribute__((used))
#define __managed__ __attribute__((used))
#define __assume(x) do { if (!(x)) __builtin_unreachable(); } while (0)
#define __builtin_assume(x) __assume(x)
#define __isGlobal(p) 1

typedef __SIZE_TYPE__ size_t;
typedef __PTRDIFF_TYPE__ ptrdiff_t;
typedef long clock_t;

#define FUTSIM_VECTORS(T, name, A2, A4) \
    struct name##1 { T x; };                                                                     \
    struct __attribute__((aligned(A2))) name##2 { T x, y; };                                     \
    struct name##3 { T x, y, z; };                                                               \
    struct __attribute__((aligned(A4))) name##4 { T x, y, z, w; };                               \
    static inline name##1 make_##name##1(T x) { return {x}; }                                    \
    static inline name##2 make_##name##2(T x, T y) { return {x, y}; }                            \
    static inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                    \
    static inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
FUTSIM_VECTORS(signed char, char, 2, 4)
FUTSIM_VECTORS(unsigned char, uchar, 2, 4)
FUTSIM_VECTORS(short, short, 4, 8)
FUTSIM_VECTORS(unsigned short, ushort, 4, 8)
FUTSIM_VECTORS(int, int, 8, 16)
FUTSIM_VECTORS(unsigned int, uint, 8, 16)
FUTSIM_VECTORS(long long, longlong, 16, 16)
FUTSIM_VECTORS(unsigned long long, ulonglong, 16, 16)
FUTSIM_VECTORS(float, float, 8, 16)
FUTSIM_VECTORS(double, double, 16, 16)

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
    dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
    operator uint3() const { return {x, y, z}; }
};

static dim3 gridDim, blockDim;
static uint3 blockIdx, threadIdx;
static const int warpSize = 32;

// Calls back into the simulator. `thread` is the caller's number in its block.
struct futsim_api {
    unsigned (*barrier)(unsigned thread, unsigned op, unsigned value);
    unsigned (*warp)(unsigned thread, unsigned mask, unsigned long long value, unsigned long long* lanes);
    void (*trap)(unsigned thread, unsigned kind, const char* text);
};

static const futsim_api* futsim_a;
static struct {
    unsigned next, total, current;  // threads started, threads of a block, the one that runs
    unsigned together;              // a thread of this block waited for others
    unsigned descending;            // start threads and blocks from the last
    unsigned long long block, blocks;
    void* dynamic;                  // extern __shared__
    unsigned long long dynamic_bytes;
} futsim_s;

// Differs from block to block and launch to launch.
static unsigned long long futsim_epoch;
// Fills a shared variable with ones (NaN, -1), once a block: what it held is another block's.
#define FUTSIM_FRESH(name)                                      \
    do {                                                        \
        static unsigned long long futsim_seen;                  \
        if (futsim_seen != futsim_epoch) {                      \
            futsim_seen = futsim_epoch;                         \
            memset((void*)&name, 0xff, sizeof(name));           \
        }                                                       \
    } while (0)
extern "C" void* memcpy(void*, const void*, size_t) noexcept;
extern "C" void* memset(void*, int, size_t) noexcept;

static void futsim_place() {
    futsim_epoch++;
    memset(futsim_s.dynamic, 0xff, futsim_s.dynamic_bytes);
    unsigned long long b = futsim_s.descending ? futsim_s.blocks - 1 - futsim_s.block : futsim_s.block;
    blockIdx.x = b % gridDim.x;
    blockIdx.y = b / gridDim.x % gridDim.y;
    blockIdx.z = b / gridDim.x / gridDim.y;
}

// Steps to the next block; 0 when there is none.
static int futsim_advance() {
    if (futsim_s.block + 1 >= futsim_s.blocks) return 0;
    futsim_s.block++;
    futsim_s.next = 0;
    futsim_s.together = 0;
    futsim_place();
    return 1;
}

// Makes the next thread the current one; 0 when this fiber has nothing more to start.
static inline int futsim_next() {
    if (futsim_s.next == futsim_s.total && (futsim_s.together || !futsim_advance())) return 0;
    unsigned t = futsim_s.descending ? futsim_s.total - 1 - futsim_s.next : futsim_s.next;
    futsim_s.next++;
    futsim_s.current = t;
    if (blockDim.x == futsim_s.total) {
        threadIdx.x = t;
    } else {
        threadIdx.x = t % blockDim.x;
        threadIdx.y = t / blockDim.x % blockDim.y;
        threadIdx.z = t / blockDim.x / blockDim.y;
    }
    return 1;
}

// What the simulator reaches in this library, found by the name futsim_image.
struct futsim_image_t {
    decltype(futsim_s)* state;
    const futsim_api** api;
    void (*begin)(const unsigned* grid, const unsigned* block, void* dynamic, unsigned long long dynamic_bytes,
                  unsigned descending);
    int (*advance)();
};
static void futsim_begin(const unsigned* grid, const unsigned* block, void* dynamic,
                         unsigned long long dynamic_bytes, unsigned descending) {
    gridDim = dim3(grid[0], grid[1], grid[2]);
    blockDim = dim3(block[0], block[1], block[2]);
    futsim_s = {0, block[0] * block[1] * block[2], 0, 0, descending, 0,
                (unsigned long long)grid[0] * grid[1] * grid[2], dynamic, dynamic_bytes};
    threadIdx = {0, 0, 0};
    futsim_place();
}
extern "C" __attribute__((used, visibility("default"))) const futsim_image_t futsim_image = {
    &futsim_s, &futsim_a, futsim_begin, futsim_advance};

// A wait gives the processor to other threads of the block: the built-in variables are put back after it.
static __attribute__((noinline)) unsigned futsim_barrier(unsigned op, unsigned value) {
    uint3 t = threadIdx;
    unsigned me = futsim_s.current;
    futsim_s.together = 1;
    unsigned result = futsim_a->barrier(me, op, value);
    threadIdx = t;
    futsim_s.current = me;
    return result;
}
static inline void __syncthreads() { futsim_barrier(0, 0); }
static inline int __syncthreads_count(int p) { return futsim_barrier(1, p != 0); }
static inline int __syncthreads_and(int p) { return futsim_barrier(2, p != 0); }
static inline int __syncthreads_or(int p) { return futsim_barrier(3, p != 0); }
static inline void __threadfence() {}
static inline void __threadfence_block() {}
static inline void __threadfence_system() {}
static inline void __nanosleep(unsigned) {}

[[noreturn]] static inline void futsim_trap(unsigned kind, const char* text) {
    futsim_a->trap(futsim_s.current, kind, text);
    __builtin_unreachable();
}
static inline void __trap() { futsim_trap(0, "__trap()"); }
#define FUTSIM_TEXT(x) #x
#undef assert
#define assert(x) ((x) ? (void)0 : futsim_trap(1, "assertion failed: " FUTSIM_TEXT(x)))
extern "C" int printf(const char*, ...);
static inline long long clock64() { return (long long)__builtin_ia32_rdtsc(); }
static inline clock_t clock() { return (clock_t)__builtin_ia32_rdtsc(); }

template <class T> static inline T __ldg(const T* p) { return *p; }
template <class T> static inline T __ldcg(const T* p) { return *p; }
template <class T> static inline T __ldca(const T* p) { return *p; }
template <class T> static inline T __ldcs(const T* p) { return *p; }
template <class T> static inline T __ldlu(const T* p) { return *p; }
template <class T> static inline T __ldcv(const T* p) { return *p; }
template <class T> static inline void __stwb(T* p, T v) { *p = v; }
template <class T> static inline void __stcg(T* p, T v) { *p = v; }
template <class T> static inline void __stcs(T* p, T v) { *p = v; }
template <class T> static inline void __stwt(T* p, T v) { *p = v; }
