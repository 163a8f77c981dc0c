// Products with quantised weights, to the bit those of a CPU: products of bytes are summed up in
// integers, which is exact, and the results of blocks of 32 columns are added block after block. A
// weight lies in panels of 16 rows; the same block of each, a tile, has its half floats first, 16
// of each, then words of four bytes, 16 of each (src/format.rs). Weights of plain elements meet
// floats: a block's products are added by fused multiply-adds, k in order. (Tensor cores would
// round the activations to 11 bits or 8, and add in an order of their own.)

namespace ft {

enum { Q8_0, Q4_0, Q4_1, Q4_K, Q5_K, Q6_K, Q2_K, F16, BF16, F32 };

template <int F> struct Packed {
    enum { PARTS = 1, HALVES = F == Q4_1 ? 2 : 1, WORDS = F == Q8_0 ? 8 : 4 };
};
template <> struct Packed<Q4_K> { enum { PARTS = 8, HALVES = 2, WORDS = 35 }; };
template <> struct Packed<Q5_K> { enum { PARTS = 8, HALVES = 2, WORDS = 43 }; };
template <> struct Packed<Q6_K> { enum { PARTS = 8, HALVES = 1, WORDS = 52 }; };
template <> struct Packed<Q2_K> { enum { PARTS = 8, HALVES = 2, WORDS = 20 }; };

// Each 16 columns have a scale of their own, and in some formats a minimum.
template <int F> struct Scales {
    enum { HALVED = F == Q6_K || F == Q2_K };
    // A scale, and a minimum or the scale of the second half; then the minima of both halves.
    typedef Vec<float, F == Q2_K ? 4 : 2> C;
};

// 32 numbers in 8 bits: x is about q d. `low` and `high` are the sums of the halves of q.
struct Activations {
    i32 q[8];
    float d, sum, low, high;
};

FN i32 all_lanes(i32 x, u32 to) {
    for (u32 d = 1; d < to; d *= 2) x += __shfl_xor_sync(0xffffffffu, x, (int)d);
    return x;
}

// A warp for each block of 32.
FN void quantize_activations(const float* x, Activations* out, u64 blocks) {
    const u64 block = (u64)blockIdx.x * 8 + threadIdx.x / 32;
    const u32 all = 0xffffffffu, lane = threadIdx.x & 31;
    if (block >= blocks) return;
    const float mine = x[block * 32 + lane];
    // As integers: of NaN, the largest.
    u32 most = bits(mine) & 0x7fffffffu;
    for (int d = 1; d < 32; d *= 2) {
        const u32 other = __shfl_xor_sync(all, most, d);
        most = other > most ? other : most;
    }
    const float m = as_float(most);
    const float id = m < 127.0f * as_float(0x00800000u) ? 0.0f : 127.0f / m;
    // The low byte of the sum, rounded to a whole number here, halves to even, is the number.
    const u32 byte = bits(mine * id + 12582912.0f) & 0xff;
    u32 word = byte << 8 * (lane & 3);
    word |= __shfl_xor_sync(all, word, 1);
    word |= __shfl_xor_sync(all, word, 2);
    const i32 half = all_lanes((i32)(byte ^ 128) - 128, 16), other = __shfl_xor_sync(all, half, 16);
    if ((lane & 3) == 0) out[block].q[lane / 4] = (i32)word;
    if (lane == 0) {
        out[block].d = id == 0.0f ? (most < 0x7f800000u ? 0.0f : m) : m / 127.0f;
        out[block].low = (float)half;
        out[block].high = (float)other;
        out[block].sum = (float)(half + other);
    }
}

// Activations beside plain elements.
struct Floats { float x[32]; };

// 32 columns of one row of a tile: eight words of bytes, and scales.
template <int F> struct Columns {
    typedef Activations X;
    i32 w[8];
    typename Scales<F>::C s;
};

template <class T> struct PlainColumns {
    typedef Floats X;
    typedef T Element;
    float w[32];
};
template <int F> struct ColumnsOf { typedef Columns<F> C; };
template <> struct ColumnsOf<F16> { typedef PlainColumns<f16> C; };
template <> struct ColumnsOf<BF16> { typedef PlainColumns<bf16> C; };
template <> struct ColumnsOf<F32> { typedef PlainColumns<float> C; };

template <int F> FN float tile_half(const u8* tile, u32 i, u32 row) {
    return widen(((const f16*)tile)[16 * i + row]);
}
template <int F> FN u32 tile_word(const u8* tile, u32 i, u32 row) {
    return ((const u32*)(tile + 32 * Packed<F>::HALVES))[16 * i + row];
}

template <class T> FN void read_columns(const u8* panel, u32 block, u32 row, PlainColumns<T>& c) {
    const T* tile = (const T*)panel + (u64)block * 512;
#pragma unroll
    for (u32 i = 0; i < 32; ++i) c.w[i] = load(tile[16 * i + row]);
}

// The tile of a block of 32 columns, and which of its parts they are.
template <int F> FN const u8* tile_of(const u8* panel, u32 block) {
    return panel +
           (u64)(block / Packed<F>::PARTS) * (32 * Packed<F>::HALVES + 64 * Packed<F>::WORDS);
}

// Four bytes of the 32 columns of a row: those from 4 i on.
template <int F> FN i32 bytes_of(const u8* tile, u32 part, u32 i, u32 row) {
    const u32 low4 = 0x0f0f0f0fu;
    if (F == Q8_0) return (i32)tile_word<F>(tile, i, row);
    if (F == Q4_0 || F == Q4_1) return (i32)(tile_word<F>(tile, i % 4, row) >> i / 4 * 4 & low4);
    if (F == Q4_K || F == Q5_K) {
        const u32 first = F == Q5_K ? 11 : 3;
        const u32 q =
            tile_word<F>(tile, first + 8 * (part / 2) + i, row) >> 4 * (part % 2) & low4;
        // A fifth bit of each weight.
        if (F == Q5_K)
            return (i32)(q | (tile_word<F>(tile, 3 + i, row) >> part & 0x01010101u) << 4);
        return (i32)q;
    }
    const u32 half = part / 4, quarter = part % 4;
    if (F == Q2_K)
        return (i32)(tile_word<F>(tile, 4 + 8 * half + i, row) >> 2 * quarter & 0x03030303u);
    const u32 low = tile_word<F>(tile, 16 * half + 8 * (quarter % 2) + i, row);
    const u32 high = tile_word<F>(tile, 32 + 8 * half + i, row);
    return (i32)((low >> 4 * (quarter / 2) & low4) | (high >> 2 * quarter & 0x03030303u) << 4);
}

template <int F> FN typename Scales<F>::C scales_of(const u8* tile, u32 part, u32 row) {
    typename Scales<F>::C s;
    float &d = s.v[0], &m = s.v[1];
    d = tile_half<F>(tile, 0, row);
    m = 0.0f;
    if (F == Q4_1) m = tile_half<F>(tile, Packed<F>::HALVES - 1, row);
    if (F == Q4_K || F == Q5_K) {
        const u32 a = tile_word<F>(tile, 0, row), b = tile_word<F>(tile, 1, row),
                  both = tile_word<F>(tile, 2, row);
        const u32 at = 8 * (part % 4);
        const u32 six = 0x3f3f3f3fu, low = 0x0f0f0f0fu, top = 0x30303030u;
        const u32 scales = part < 4 ? a & six : (both & low) | (a >> 2 & top);
        const u32 minima = part < 4 ? b & six : (both >> 4 & low) | (b >> 2 & top);
        d = d * (float)(scales >> at & 0xff);
        m = (0.0f - tile_half<F>(tile, Packed<F>::HALVES - 1, row)) * (float)(minima >> at & 0xff);
    }
    if (F == Q6_K) {
        const u32 scales =
            tile_word<F>(tile, 48 + 2 * (part / 4) + part % 4 / 2, row) >> 16 * (part % 2);
        m = d * (float)((i32)(scales << 16) >> 24);
        d = d * (float)((i32)(scales << 24) >> 24);
    }
    if constexpr (F == Q2_K) {
        const u32 both = tile_word<F>(tile, part / 2, row) >> 16 * (part % 2);
        const float least = 0.0f - tile_half<F>(tile, 1, row);
        m = d * (float)(both >> 8 & 15);
        d = d * (float)(both & 15);
        s.v[2] = least * (float)(both >> 4 & 15);
        s.v[3] = least * (float)(both >> 12 & 15);
    }
    return s;
}

template <int F> FN void read_columns(const u8* panel, u32 block, u32 row, Columns<F>& c) {
    const u8* tile = tile_of<F>(panel, block);
    const u32 part = block % Packed<F>::PARTS;
    c.s = scales_of<F>(tile, part, row);
#pragma unroll
    for (u32 i = 0; i < 8; ++i) c.w[i] = bytes_of<F>(tile, part, i, row);
}

// The part of a block of columns in a result; `low` and `high` are the products of its halves.
template <int F>
FN float term(i32 low, i32 high, const typename Scales<F>::C& s, const Activations& x) {
    const float d = s.v[0], m = s.v[1];
    float y;
    if (F == Q8_0) y = d * (float)(low + high);
    else if (F == Q4_0) y = d * ((float)(low + high) - 8.0f * x.sum);
    else if (F == Q6_K) y = d * ((float)low - 32.0f * x.low) + m * ((float)high - 32.0f * x.high);
    else if constexpr (F == Q2_K)
        y = (d * (float)low + m * (float)high) + (s.v[2] * x.low + s.v[3] * x.high);
    else y = d * (float)(low + high) + m * x.sum;
    return y * x.d;
}

template <int F> FN float product_of(const Columns<F>& c, const Activations& a) {
    i32 low = 0, high = 0;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        low = __dp4a(c.w[i], a.q[i], low);
        high = __dp4a(c.w[i + 4], a.q[i + 4], high);
    }
    return term<F>(low, high, c.s, a);
}
template <class T> FN float product_of(const PlainColumns<T>& c, const Floats& a) {
    float sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < 32; ++i) sum = fma(c.w[i], a.x[i], sum);
    return sum;
}

// The rows of a block: R neighbours, or fewer at the end.
template <int R> struct Neighbours {
    u64 rows;
    FN_MEMBER u64 at(u32 r) const { return (u64)blockIdx.y * R + r; }
    FN_MEMBER bool has(u32 r) const { return at(r) < rows; }
};

// Few rows: a block of 256 threads computes a panel of R rows. Thread (row of the panel, slot)
// multiplies every 16th block of columns, and the results of the slots are added in the order of
// the columns.
template <int F, int R, class Rows>
FN void product_of_few(const u8* w, const typename ColumnsOf<F>::C::X* x, float* out, Rows own,
                       u64 n, u32 blocks, u64 panel_bytes) {
    __shared__ float terms[R][16][16];
    const u32 lane = threadIdx.x & 15, slot = threadIdx.x >> 4;
    const u64 column = (u64)blockIdx.x * 16 + lane;
    const bool adds = slot < R && own.has(slot);
    const u8* panel = w + blockIdx.x * panel_bytes;
    float sum = 0.0f;
    for (u32 from = 0; from < blocks; from += 16) {
        const u32 block = from + slot;
        if (block < blocks) {
            typename ColumnsOf<F>::C c;
            read_columns(panel, block, lane, c);
#pragma unroll
            for (u32 r = 0; r < R; ++r)
                if (own.has(r))
                    terms[r][slot][lane] = product_of(c, x[own.at(r) * blocks + block]);
        }
        __syncthreads();
        if (adds)
            for (u32 s = 0; s < 16 && from + s < blocks; ++s) sum = sum + terms[slot][s][lane];
        __syncthreads();
    }
    if (adds && column < n) out[own.at(slot) * n + column] = sum;
}

// A row at a time by the matrix that it names, of some in a weight.
template <int F, class J>
FN void product_of_groups(const u8* w, const typename ColumnsOf<F>::C::X* x, const J* which,
                          float* out, IndexError* error, u64 n, u32 blocks, u64 groups,
                          u64 panel_bytes) {
    const i64 matrix = (i64)which[blockIdx.y];
    if ((u64)matrix >= groups) {
        if (threadIdx.x == 0 && blockIdx.x == 0) report(error, blockIdx.y, matrix, groups);
        return;
    }
    w += (u64)matrix * (n / 16) * panel_bytes;
    product_of_few<F, 1>(w, x, out, Neighbours<1>{gridDim.y}, n, blocks, panel_bytes);
}

// d[16, 8] = c + a[16, K] b[K, 8] of signed bytes, of a warp, with K of 16 for each of WORDS (PTX
// ISA, "Matrix Fragments for mma.m16n8k32" and of "k16"). With g = lane / 4 and t = lane % 4 a lane
// holds, four neighbours of k a register: of `a`, in rows g, g + 8 columns 4t.., and of 32 also
// columns 16 + 4t..; of `b`, in column g, rows 4t.. and 16 + 4t..; of `d`, columns 2t and 2t + 1 of
// row g, then of row g + 8.
template <int WORDS> FN void mma_bytes(i32 (&d)[4], const i32* a, const i32* b, i32 c) {
#if defined(FUTENSOR_SIM) || __CUDA_ARCH__ < 800
    const u32 all = 0xffffffffu, lane = threadIdx.x & 31, row = lane / 4 * 4, column = lane % 4 * 8;
    for (u32 e = 0; e < 4; ++e) d[e] = c;
    for (u32 t = 0; t < 4; ++t)
        for (u32 e = 0; e < 4; ++e)
            for (u32 k = 0; k < WORDS; ++k) {
                const i32 left = __shfl_sync(all, a[2 * k + e / 2], (int)(row + t));
                d[e] = __dp4a(left, __shfl_sync(all, b[k], (int)(column + 4 * (e % 2) + t)), d[e]);
            }
#else
    if (WORDS == 2)
        asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
            "{%8, %9}, {%10, %10, %10, %10};"
            : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
            "{%7, %7, %7, %7};"
            : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(c));
#endif
}

// 3 2^22: a float beside which whole numbers below 2^22 are exact. A tensor core adds to its bits,
// and what it finds is a float without a conversion.
enum { WHOLE_BITS = 0x4b400000 };
FN float whole() { return 12582912.0f; }

// The same as `term`, of sums that began with `WHOLE_BITS`; `x` is d, sum, low, high.
template <int F>
FN float term_of(i32 low, i32 high, const typename Scales<F>::C& s, const Vec<float, 4>& x) {
    const float d = s.v[0], m = s.v[1], first = as_float((u32)low);
    float y;
    if (F == Q8_0) y = d * (first - whole());
    else if (F == Q4_0) y = d * (first - (whole() + 8.0f * x.v[1]));
    else if (F == Q6_K)
        y = d * (first - (whole() + 32.0f * x.v[2])) +
            m * (as_float((u32)high) - (whole() + 32.0f * x.v[3]));
    else if constexpr (F == Q2_K)
        y = (d * (first - whole()) + m * (as_float((u32)high) - whole())) +
            (s.v[2] * x.v[2] + s.v[3] * x.v[3]);
    else y = d * (first - whole()) + m * x.v[1];
    return y * x.v[0];
}

// Many rows: 64 of them by 2 P panels a block, D blocks of columns after D. A warp has 16 rows by P
// panels. Each brings one panel's bytes of one of the next blocks, as tensor cores want them, while
// it works on these.
template <int F, int P, int D, class Rows>
FN void product_of_many(const u8* w, const Activations* x, float* out, Rows rows, u64 n,
                        u32 blocks, u64 panel_bytes) {
    const u32 PIECES = sizeof(Activations) / 16;
    __shared__ Vec<i32, 4> as[2][8][32];
    typedef typename Scales<F>::C S;
    __shared__ S scales[2][8][16];
    __shared__ Vec<float, 4> xs[2][D][64][PIECES];
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const u32 wide = warp % 2 * P, high = warp / 2 * 16, own_block = warp / (2 * P);
    const u64 panels = (n + 15) / 16;
    const u64 first_panel = (u64)blockIdx.x * 2 * P, own = first_panel + warp % (2 * P);
    // Panels that are not there are the first one, and not written.
    const u8* panel = w + (own < panels ? own : 0) * panel_bytes;
    auto copy = [&](u32 block, u32 half) {
#pragma unroll
        for (u32 e = threadIdx.x; e < D * 64 * PIECES; e += 256) {
            const u32 row = e / PIECES / D, c = e / PIECES % D;
            const bool there = rows.has(row) && block + c < blocks;
            const Activations* from = x + (there ? rows.at(row) * blocks + block + c : 0);
            copy_async(&xs[half][c][row][e % PIECES], (const u8*)from + e % PIECES * 16, there);
        }
    };
    Vec<i32, 4> a;
    S scale;
    auto read = [&](u32 block) {
        if (block >= blocks) return;
        const u8* tile = tile_of<F>(panel, block);
        const u32 part = block % Packed<F>::PARTS;
#pragma unroll
        for (u32 i = 0; i < 4; ++i) a.v[i] = bytes_of<F>(tile, part, t + i / 2 * 4, g + i % 2 * 8);
        scale = scales_of<F>(tile, part, g + t % 2 * 8);
    };
    float sums[P][2][4] = {};
    copy(0, 0);
    read(own_block);
    for (u32 block = 0, half = 0; block < blocks; block += D, half ^= 1) {
        as[half][warp][lane] = a;
        if (t < 2) scales[half][warp][g + t * 8] = scale;
        await_copies();
        __syncthreads();  // these columns are there, and those before were read
        if (block + D < blocks) {
            copy(block + D, half ^ 1);
            read(block + D + own_block);
        }
        if (!rows.has(high)) continue;
#pragma unroll
        for (u32 c = 0; c < D; ++c) {
            if (block + c >= blocks) break;
            i32 b[2][2];
            Vec<float, 4> beside[2][2];
#pragma unroll
            for (u32 j = 0; j < 2; ++j) {
                const i32* q = (const i32*)xs[half][c][high + 8 * j + g];
                b[j][0] = q[t];
                b[j][1] = q[t + 4];
#pragma unroll
                for (u32 e = 0; e < 2; ++e)
                    beside[j][e] = xs[half][c][high + 8 * j + 2 * t + e][2];
            }
#pragma unroll
            for (u32 p = 0; p < P; ++p) {
                const u32 which = c * 2 * P + wide + p;
                const Vec<i32, 4> left = as[half][which][lane];
                const S s[2] = {scales[half][which][g], scales[half][which][g + 8]};
#pragma unroll
                for (u32 j = 0; j < 2; ++j) {
                    i32 low[4], back[4] = {0, 0, 0, 0};
                    if (Scales<F>::HALVED) {
                        mma_bytes<1>(low, left.v, b[j], WHOLE_BITS);
                        mma_bytes<1>(back, left.v + 2, b[j] + 1, WHOLE_BITS);
                    } else {
                        mma_bytes<2>(low, left.v, b[j], WHOLE_BITS);
                    }
#pragma unroll
                    for (u32 e = 0; e < 4; ++e)
                        sums[p][j][e] =
                            sums[p][j][e] + term_of<F>(low[e], back[e], s[e / 2], beside[j][e % 2]);
                }
            }
        }
    }
#pragma unroll
    for (u32 p = 0; p < P; ++p)
#pragma unroll
        for (u32 j = 0; j < 2; ++j)
#pragma unroll
            for (u32 e = 0; e < 4; ++e) {
                const u32 r = high + 8 * j + 2 * t + e % 2;
                const u64 row = rows.at(r),
                          column = (first_panel + wide + p) * 16 + g + 8 * (e / 2);
                if (rows.has(r) && column < n) out[row * n + column] = sums[p][j][e];
            }
}

// Many rows by a weight of plain elements: 64 rows by four panels a block of 256 threads, 4 x 4 a
// thread.
template <int F, class Rows>
FN void elements_by_many(const u8* w, const Floats* x, float* out, Rows rows, u64 n, u32 blocks,
                         u64 panel_bytes) {
    typedef typename ColumnsOf<F>::C::Element T;
    __shared__ float ws[32][65];
    __shared__ float xs[32][65];
    const u32 column = threadIdx.x % 16, row = threadIdx.x / 16;
    const u64 panels = (n + 15) / 16, panel = (u64)blockIdx.x * 4;
    float sums[4][4];
#pragma unroll
    for (u32 e = 0; e < 16; ++e) sums[e / 4][e % 4] = 0.0f;
    for (u32 block = 0; block < blocks; ++block) {
        // Unrolled whole, so that all loads are under way at once: by fours it took more registers,
        // and spilled.
#pragma unroll 8
        for (u32 e = threadIdx.x; e < 2048; e += 256) {
            const u64 p = panel + e / 512;
            const T* tile = (const T*)(w + p * panel_bytes) + (u64)block * 512;
            ws[e % 512 / 16][e / 512 * 16 + e % 16] = p < panels ? load(tile[e % 512]) : 0.0f;
            xs[e % 32][e / 32] =
                rows.has(e / 32) ? x[rows.at(e / 32) * blocks + block].x[e % 32] : 0.0f;
        }
        __syncthreads();
        float own[4][4];
#pragma unroll
        for (u32 e = 0; e < 16; ++e) own[e / 4][e % 4] = 0.0f;
#pragma unroll 4
        for (u32 k = 0; k < 32; ++k)
#pragma unroll
            for (u32 e = 0; e < 16; ++e)
                own[e / 4][e % 4] =
                    fma(ws[k][column + e % 4 * 16], xs[k][row + e / 4 * 16], own[e / 4][e % 4]);
#pragma unroll
        for (u32 e = 0; e < 16; ++e) sums[e / 4][e % 4] = sums[e / 4][e % 4] + own[e / 4][e % 4];
        __syncthreads();
    }
#pragma unroll
    for (u32 e = 0; e < 16; ++e) {
        const u32 r = row + e / 4 * 16;
        const u64 c = (panel + e % 4) * 16 + column;
        if (rows.has(r) && c < n) out[rows.at(r) * n + c] = sums[e / 4][e % 4];
    }
}

// Elements row by row into panels: a thread for each.
template <class T>
FN void pack_elements(const T* x, T* out, u64 rows, u64 columns, u64 count) {
    const u64 i = (u64)blockIdx.x * 256 + threadIdx.x, row = i / (16 * columns) * 16 + i % 16;
    if (i < count) out[i] = row < rows ? x[row * columns + i / 16 % columns] : (T)0;
}

template <int F> FN float weight_of(const Columns<F>& c, u32 i) {
    const i32 q = c.w[i / 4] >> 8 * (i % 4) & 0xff;
    const float d = c.s.v[0], m = c.s.v[1], own = i < 16 ? d : m;
    if (F == Q8_0) return (float)((q ^ 128) - 128) * d;
    if (F == Q4_0) return d * ((float)q - 8.0f);
    if (F == Q6_K) return own * ((float)q - 32.0f);
    if constexpr (F == Q2_K) return own * (float)q + (i < 16 ? c.s.v[2] : c.s.v[3]);
    return d * (float)q + m;
}
template <class T> FN float weight_of(const PlainColumns<T>& c, u32 i) { return c.w[i]; }

// Rows of a weight in float, by index, or all of them: a thread for each 32 columns.
template <int F>
FN void unpack_row(const u8* w, float* out, u64 row, u32 block, u64 panel_bytes) {
    typename ColumnsOf<F>::C c;
    read_columns(w + row / 16 * panel_bytes, block, (u32)(row % 16), c);
#pragma unroll
    for (u32 i = 0; i < 32; ++i) out[i] = weight_of(c, i);
}

template <int F>
FN void dequantize(const u8* w, float* out, u64 rows, u32 blocks, u64 panel_bytes) {
    const u64 i = (u64)blockIdx.x * 256 + threadIdx.x;
    if (i < rows * blocks)
        unpack_row<F>(w, out + i * 32, i / blocks, (u32)(i % blocks), panel_bytes);
}

template <int F, class J>
FN void quantized_embedding(const u8* w, const J* index, float* out, IndexError* error, u64 count,
                            u32 blocks, u64 panel_bytes, u64 rows) {
    const u64 i = (u64)blockIdx.x * 256 + threadIdx.x;
    if (i >= count * blocks) return;
    const i64 row = (i64)index[i / blocks];
    if ((u64)row >= rows) {
        if (i % blocks == 0) report(error, i / blocks, row, rows);
        return;
    }
    unpack_row<F>(w, out + i * 32, (u64)row, (u32)(i % blocks), panel_bytes);
}

}  // namespace ft
