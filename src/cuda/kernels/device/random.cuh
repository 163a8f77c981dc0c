// Numbers as a pure function of seed and position: Philox 4x32-10 (Salmon et al., "Parallel random
// numbers: as easy as 1, 2, 3", SC 2011), uniform and normal numbers made of its words.
//
// The same formulas as host/kernels/random.rs, which explains them, one IEEE operation for each of
// theirs, fmaf among them: with contraction off, float numbers are the CPU's bit by bit.

namespace ft {

struct Block { u32 w[4]; };

FN Block philox(u64 seed, u64 index) {
    u32 k0 = (u32)seed, k1 = (u32)(seed >> 32);
    u32 c0 = (u32)index, c1 = (u32)(index >> 32), c2 = 0, c3 = 0;
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        u32 h0 = mul_high(0xD2511F53u, c0), l0 = 0xD2511F53u * c0;
        u32 h1 = mul_high(0xCD9E8D57u, c2), l1 = 0xCD9E8D57u * c2;
        c0 = h1 ^ c1 ^ k0; c1 = l1;
        c2 = h0 ^ c3 ^ k1; c3 = l0;
        k0 += 0x9E3779B9u; k1 += 0xBB67AE85u;
    }
    Block b;
    b.w[0] = c0; b.w[1] = c1; b.w[2] = c2; b.w[3] = c3;
    return b;
}

// ---- uniform -------------------------------------------------------------------------------

FN float uniform_of(u32 w) { return (float)(w >> 8) * 5.9604644775390625e-8f; }  // 2^-24
// Bits that a 16-bit type cannot hold are cut off, so that 1 does not occur.
FN float uniform_of(u32 w, u32 mask) { return as_float(bits(uniform_of(w)) & mask); }
FN u64 bits53(u32 low, u32 high) { return ((u64)high << 32 | low) >> 11; }

// Element `lane` of a block; a block has 4, of doubles 2.
template <class S> struct Uniform {
    static FN_MEMBER float of(const u32* w, int lane) { return uniform_of(w[lane]); }
};
template <> struct Uniform<f16> {
    static FN_MEMBER float of(const u32* w, int lane) { return uniform_of(w[lane], ~0x1fffu); }
};
template <> struct Uniform<bf16> {
    static FN_MEMBER float of(const u32* w, int lane) { return uniform_of(w[lane], ~0xffffu); }
};
template <> struct Uniform<double> {
    static FN_MEMBER double of(const u32* w, int lane) {
        return (double)bits53(w[2 * lane], w[2 * lane + 1]) * 1.1102230246251565e-16;  // 2^-53
    }
};

// ---- normal: Box and Muller (1958) ---------------------------------------------------------

FN float flipped(float x, u32 two) { return as_float(bits(x) ^ (two >> 1 << 31)); }

// r cos t where `which` is 0, r sin t where it is 1.
FN float box_muller(u32 a, u32 b, int which) {
    float u = (float)a * 2.3283064365386963e-10f + 1.1641532182693481e-10f;  // 2^-32, 2^-33
    i32 k = (i32)(bits(u) - 0x3f3504f3u) >> 23;
    float x = as_float(bits(u) - ((u32)k << 23)) - 1.0f;
    const float log_c[9] = {0.06746585f, -0.116796345f, 0.118903145f, -0.12405136f, 0.14219226f,
                            -0.16668007f, 0.20002134f, -0.25000009f, 0.33333313f};
    float p = log_c[0];
#pragma unroll
    for (int i = 1; i < 9; ++i) p = ::fmaf(p, x, log_c[i]);
    float kf = (float)k, xx = x * x;
    float log = ::fmaf(x * xx, p, kf * 1.4286068e-6f);
    log = ::fmaf(kf, 0.693145751953125f, x + ::fmaf(-0.5f, xx, log));
    float r = ::sqrtf(-2.0f * log);

    u32 v = b >> 8, q = (v + (1u << 21)) >> 22;
    float f = (float)(i32)(v - (q << 22)) * 2.384185791015625e-7f;  // 2^-22
    float z = f * f;
    float s = ::fmaf(::fmaf(::fmaf(-0.00460165f, z, 0.07968003f), z, -0.64596343f), z, 0.07079632f);
    float c =
        ::fmaf(::fmaf(::fmaf(0.00090402039f, z, -0.020860288f), z, 0.25366923f), z, -1.2337005f);
    float sine = ::fmaf(f, s, 1.5f * f), cosine = ::fmaf(z, c, 1.0f);
    bool swap = ((q & 1) != 0) != (which != 0);
    return r * flipped(swap ? sine : cosine, which ? q & 2 : (q + 1) & 2);
}
FN double box_muller(const u32* w, int which) {
    double u = (double)(bits53(w[0], w[1]) + 1) * 1.1102230246251565e-16;
    double r = ::sqrt(-2.0 * ::log(u));
    u64 v = bits53(w[2], w[3]), q = (v + (1ull << 50)) >> 51;
    // 2^-51
    double t = (double)(i64)(v - (q << 51)) * 4.44089209850062616e-16 * 1.5707963267948966;
    bool swap = ((q & 1) != 0) != (which != 0);
    double x = swap ? ::sin(t) : ::cos(t);
    return (which ? q & 2 : (q + 1) & 2) ? -(r * x) : r * x;
}

template <class S> struct Normal {
    static FN_MEMBER float of(const u32* w, int lane) {
        return rounded<S>(box_muller(lane < 2 ? w[0] : w[2], lane < 2 ? w[1] : w[3], lane & 1));
    }
};
template <> struct Normal<double> {
    static FN_MEMBER double of(const u32* w, int lane) { return box_muller(w, lane); }
};

// ---- draws ---------------------------------------------------------------------------------

// Elements at..at+V of a sequence that begins at word `offset`; `at` is a multiple of V, a power of
// two.
template <template <class> class Kind, class S, int V, class C>
FN void draw(u64 seed, u64 offset, u64 at, C* out) {
    const int E = sizeof(S) == 8 ? 2 : 4;  // elements of a block
    Block b;
#pragma unroll
    for (int v = 0; v < V; ++v) {
        if (v % E == 0) b = philox(seed, offset / 4 + (at + v) / E);
        if (V >= E) {
            out[v] = Kind<S>::of(b.w, v % E);
        } else {
            // Constant places, so that the words stay in registers.
            int lane = (int)(at % E) + v;
#pragma unroll
            for (int e = 0; e < E; ++e)
                if (e == lane) out[v] = Kind<S>::of(b.w, e);
        }
    }
}
template <class S, int V, class C> FN void uniform(u64 seed, u64 offset, u64 at, C* out) {
    draw<Uniform, S, V>(seed, offset, at, out);
}
template <class S, int V, class C> FN void normal(u64 seed, u64 offset, u64 at, C* out) {
    draw<Normal, S, V>(seed, offset, at, out);
}

// `start + i * step`, in double or in wrapping i64.
FN double arange(double start, double step, u64 i) { return start + (double)i * step; }
FN i64 arange(i64 start, i64 step, u64 i) { return (i64)((u64)start + i * (u64)step); }

}  // namespace ft
