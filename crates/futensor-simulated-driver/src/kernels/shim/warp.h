// Warp collectives and atomics. A collective hands its lane's value over and gets the others' back once every
// lane named in the mask that has not returned has come (fibers.rs).

static __attribute__((noinline)) unsigned futsim_warp(unsigned mask, unsigned long long value,
                                                     unsigned long long* lanes) {
    uint3 t = threadIdx;
    unsigned me = futsim_s.current;
    futsim_s.together = 1;
    unsigned present = futsim_a->warp(me, mask, value, lanes);
    threadIdx = t;
    futsim_s.current = me;
    return present;
}
static inline unsigned futsim_lane() { return futsim_s.current % 32; }
static inline unsigned __activemask() {
    unsigned left = futsim_s.total - futsim_s.current / 32 * 32;
    return left >= 32 ? 0xffffffffu : (1u << left) - 1;
}
static inline void __syncwarp(unsigned mask = 0xffffffffu) {
    unsigned long long lanes[32];
    futsim_warp(mask, 0, lanes);
}
template <class T> static inline T futsim_lane_value(const unsigned long long* lanes, unsigned lane) {
    T value;
    memcpy(&value, &lanes[lane], sizeof(T));
    return value;
}
template <class T> static inline T futsim_shuffle(unsigned mask, T value, int from) {
    static_assert(sizeof(T) <= 8, "shuffles move up to 8 bytes");
    unsigned long long bits = 0, lanes[32];
    memcpy(&bits, &value, sizeof(T));
    futsim_warp(mask, bits, lanes);
    return futsim_lane_value<T>(lanes, (unsigned)from);
}
// PTX ISA, shfl.sync: the segment a lane stays in is `width` lanes wide; outside it a lane keeps its own.
template <class T> static inline T __shfl_sync(unsigned mask, T v, int lane, int width = 32) {
    int me = (int)futsim_lane(), base = me & ~(width - 1);
    return futsim_shuffle(mask, v, base + (lane & (width - 1)));
}
template <class T> static inline T __shfl_up_sync(unsigned mask, T v, unsigned d, int width = 32) {
    int me = (int)futsim_lane(), base = me & ~(width - 1), from = me - (int)d;
    return futsim_shuffle(mask, v, from < base ? me : from);
}
template <class T> static inline T __shfl_down_sync(unsigned mask, T v, unsigned d, int width = 32) {
    int me = (int)futsim_lane(), base = me & ~(width - 1), from = me + (int)d;
    return futsim_shuffle(mask, v, from >= base + width ? me : from);
}
template <class T> static inline T __shfl_xor_sync(unsigned mask, T v, int x, int width = 32) {
    int me = (int)futsim_lane(), base = me & ~(width - 1), from = me ^ x;
    return futsim_shuffle(mask, v, from >= base + width ? me : from);
}
static inline unsigned __ballot_sync(unsigned mask, int p) {
    unsigned long long lanes[32];
    unsigned present = futsim_warp(mask, p != 0, lanes), bits = 0;
    for (unsigned i = 0; i < 32; i++)
        if (present >> i & 1 && lanes[i]) bits |= 1u << i;
    return bits;
}
static inline int __any_sync(unsigned mask, int p) { return __ballot_sync(mask, p) != 0; }
static inline int __all_sync(unsigned mask, int p) { return __ballot_sync(mask, !p) == 0; }
template <class T> static inline unsigned __match_any_sync(unsigned mask, T v) {
    unsigned long long bits = 0, lanes[32];
    memcpy(&bits, &v, sizeof(T));
    unsigned present = futsim_warp(mask, bits, lanes), same = 0;
    for (unsigned i = 0; i < 32; i++)
        if (present >> i & 1 && lanes[i] == bits) same |= 1u << i;
    return same;
}
#define FUTSIM_REDUCE(name, T, expression)                                        \
    static inline T __reduce_##name##_sync(unsigned mask, T v) {                   \
        unsigned long long lanes[32], bits = 0;                                    \
        memcpy(&bits, &v, sizeof(T));                                              \
        unsigned present = futsim_warp(mask, bits, lanes);                         \
        int first = 1;                                                             \
        T a = v;                                                                   \
        for (unsigned i = 0; i < 32; i++) {                                        \
            if (!(present >> i & 1)) continue;                                     \
            T b = futsim_lane_value<T>(lanes, i);                                  \
            a = first ? b : (expression);                                          \
            first = 0;                                                             \
        }                                                                          \
        return a;                                                                  \
    }
FUTSIM_REDUCE(add, unsigned, a + b)
FUTSIM_REDUCE(add, int, (int)((unsigned)a + (unsigned)b))
FUTSIM_REDUCE(min, unsigned, a < b ? a : b)
FUTSIM_REDUCE(min, int, a < b ? a : b)
FUTSIM_REDUCE(max, unsigned, a > b ? a : b)
FUTSIM_REDUCE(max, int, a > b ? a : b)
FUTSIM_REDUCE(and, unsigned, a& b)
FUTSIM_REDUCE(or, unsigned, a | b)
FUTSIM_REDUCE(xor, unsigned, a ^ b)

// Threads switch only where they wait, so a plain read-modify-write is atomic among them.
#define FUTSIM_ATOMIC(name, T, expression)                                         \
    static inline T name(T* p, T v) {                                              \
        T old = *(volatile T*)p;                                                   \
        *(volatile T*)p = (expression);                                            \
        return old;                                                                \
    }                                                                              \
    static inline T name##_block(T* p, T v) { return name(p, v); }                 \
    static inline T name##_system(T* p, T v) { return name(p, v); }
FUTSIM_ATOMIC(atomicAdd, int, (int)((unsigned)old + (unsigned)v))
FUTSIM_ATOMIC(atomicAdd, unsigned, old + v)
FUTSIM_ATOMIC(atomicAdd, unsigned long long, old + v)
FUTSIM_ATOMIC(atomicAdd, float, old + v)
FUTSIM_ATOMIC(atomicAdd, double, old + v)
FUTSIM_ATOMIC(atomicSub, int, (int)((unsigned)old - (unsigned)v))
FUTSIM_ATOMIC(atomicSub, unsigned, old - v)
#define FUTSIM_ATOMIC_WHOLE(T)                              \
    FUTSIM_ATOMIC(atomicMin, T, old < v ? old : v)          \
    FUTSIM_ATOMIC(atomicMax, T, old > v ? old : v)          \
    FUTSIM_ATOMIC(atomicAnd, T, old& v)                     \
    FUTSIM_ATOMIC(atomicOr, T, old | v)                     \
    FUTSIM_ATOMIC(atomicXor, T, old ^ v)
FUTSIM_ATOMIC_WHOLE(int)
FUTSIM_ATOMIC_WHOLE(unsigned)
FUTSIM_ATOMIC_WHOLE(unsigned long long)
FUTSIM_ATOMIC(atomicMin, long long, old < v ? old : v)
FUTSIM_ATOMIC(atomicMax, long long, old > v ? old : v)
FUTSIM_ATOMIC(atomicExch, int, v)
FUTSIM_ATOMIC(atomicExch, unsigned, v)
FUTSIM_ATOMIC(atomicExch, unsigned long long, v)
FUTSIM_ATOMIC(atomicExch, float, v)
FUTSIM_ATOMIC(atomicInc, unsigned, old >= v ? 0 : old + 1)
FUTSIM_ATOMIC(atomicDec, unsigned, old == 0 || old > v ? v : old - 1)
#define FUTSIM_CAS(T)                                       \
    static inline T atomicCAS(T* p, T expected, T v) {      \
        T old = *(volatile T*)p;                            \
        if (old == expected) *(volatile T*)p = v;           \
        return old;                                         \
    }
FUTSIM_CAS(int)
FUTSIM_CAS(unsigned)
FUTSIM_CAS(unsigned long long)
FUTSIM_CAS(unsigned short)
