// Products of small matrices of halves in tensor cores, and what brings matrices to them.

namespace ft {

// The PTX of one type; a GPU without a tensor core for it, and a simulated device, add up in plain
// floats and move what others hold.
#if defined(FUTENSOR_SIM) || __CUDA_ARCH__ < 800
#define FT_MMA(T, name) \
    FN void mma(float (&d)[4], const u32(&a)[4], const u32(&b)[2], T) { mma_by_lanes<T>(d, a, b); }

template <class T> FN float half_of(u32 pair, u32 k) {
    T h;
    h.bits = (u16)(pair >> 16 * (k & 1));
    return load(h);
}
// The same fragments, each lane's from the lanes that hold them, two registers at a time.
template <class T> FN void mma_by_lanes(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    const u32 all = 0xffffffffu, lane = threadIdx.x & 31, row = lane / 4 * 4, column = lane % 4 * 8;
    const u64 low = a[0] | (u64)a[1] << 32, high = a[2] | (u64)a[3] << 32,
              both = b[0] | (u64)b[1] << 32;
    for (u32 q = 0; q < 4; ++q) {
        const u64 rows[2] = {__shfl_sync(all, low, row + q), __shfl_sync(all, high, row + q)};
        const u64 columns[2] = {__shfl_sync(all, both, column + q),
                                __shfl_sync(all, both, column + 4 + q)};
        for (u32 k = 0; k < 4; ++k)
            for (u32 e = 0; e < 4; ++e) {
                const u32 x = (u32)(rows[k / 2] >> 32 * (e / 2)),
                          y = (u32)(columns[e % 2] >> 32 * (k / 2));
                d[e] += half_of<T>(x, k) * half_of<T>(y, k);
            }
    }
}
template <bool TRANSPOSED> FN void fragments(u32 (&to)[4], const void* row) {
    const u32 lane = threadIdx.x & 31, r = lane / 4, c = lane % 4 * 2;
    for (u32 i = 0; i < 4; ++i) {
        u32 two[2];
        for (u32 e = 0; e < 2; ++e) {
            const u64 at =
                __shfl_sync(0xffffffffu, (u64)row, (int)(8 * i + (TRANSPOSED ? c + e : r)));
            two[e] = ((const Vec<u16, 8>*)at)->v[TRANSPOSED ? r : c + e];
        }
        to[i] = two[0] | two[1] << 16;
    }
}
#ifdef FUTENSOR_SIM
// A copy lands at the last moment that is allowed, and its place has no values before.
struct Later { Vec<u64, 2>* to; const void* from; };
static Later later[1024][32];
static u32 expected[1024];
FN void copy_async(void* to, const void* from, bool there) {
    *(Vec<u64, 2>*)to = {~0ull, ~0ull};
    later[threadIdx.x][expected[threadIdx.x]++ % 32] = {(Vec<u64, 2>*)to, there ? from : 0};
}
FN void await_copies() {
    for (u32 i = 0; i < expected[threadIdx.x]; ++i) {
        const Later l = later[threadIdx.x][i % 32];
        if (l.from) *l.to = *(const Vec<u64, 2>*)l.from;
        else *l.to = {0, 0};
    }
    expected[threadIdx.x] = 0;
}
#else
FN void copy_async(void* to, const void* from, bool there) {
    Vec<u32, 4> x = {0, 0, 0, 0};
    if (there) x = *(const Vec<u32, 4>*)from;
    *(Vec<u32, 4>*)to = x;
}
FN void await_copies() {}
#endif
// Two to the power of x.
FN float power_of_two(float x) { return exp2f(x); }
#else
#define FT_MMA(T, name)                                                                      \
    FN void mma(float (&d)[4], const u32(&a)[4], const u32(&b)[2], T) {                      \
        asm("mma.sync.aligned.m16n8k16.row.col.f32." name "." name ".f32 {%0, %1, %2, %3}, " \
            "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                                  \
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                 \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));             \
    }

FN u32 in_shared(const void* p) { return (u32)__cvta_generic_to_shared(p); }
// Four matrices of 8 x 8 from shared memory. Each lane names a row of 16 bytes, those of eight
// lanes are a matrix; of each it finds the neighbours 2t and 2t + 1 of row g, with g = lane / 4 and
// t = lane % 4, or, of the transposed one, those of column g.
template <bool TRANSPOSED> FN void fragments(u32 (&to)[4], const void* row) {
    if (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "r"(in_shared(row))
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "r"(in_shared(row))
                     : "memory");
}
// Sixteen bytes to shared memory, zeros where there are none, past the registers: this thread has
// them after `await_copies`, others after a barrier behind that.
FN void copy_async(void* to, const void* from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(in_shared(to)), "l"(from),
                 "r"(there ? 16 : 0)
                 : "memory");
}
FN void await_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
FN float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#endif

// d[16, 8] += a[16, 16] b[16, 8], of a warp (PTX ISA, "Matrix Fragments for mma.m16n8k16"). With g
// = lane / 4 and t = lane % 4 a lane holds, two neighbours of k a register, the lower in the low
// half: of `a`, in rows g, g + 8, g, g + 8, columns 2t.. twice and 2t + 8.. twice; of `b`, in
// column g, rows 2t.. and 2t + 8..; of `d`, columns 2t and 2t + 1 of row g, then of row g + 8.
FT_MMA(f16, "f16")
FT_MMA(bf16, "bf16")

template <class T> FN u32 pair(T low, T high) { return (u32)low.bits | (u32)high.bits << 16; }
template <class T> FN u32 pair_of(float low, float high) {
    return pair(As<T>::of(low), As<T>::of(high));
}

}  // namespace ft
