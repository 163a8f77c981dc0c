// Products with quantised weights, to the bit those of a CPU: products of bytes are summed up in
// integers, which is exact, and the results of blocks of 32 columns are added block after block. A
// weight lies in panels of 16 rows; the same block of each, a tile, has its half floats first, 16
// of each, then words of four bytes, 16 of each (src/format.rs). Weights that are halves meet
// floats: a block's products are added by fused multiply-adds, k in order. (Tensor cores would
// round the activations to 11 bits or 8, and add in an order of their own.)

namespace ft {

enum { Q8_0, Q4_0, Q4_1, Q4_K, Q5_K, Q6_K, F16, BF16 };

template <int F> struct Packed {
    enum { PARTS = 1, HALVES = F == Q4_1 ? 2 : 1, WORDS = F == Q8_0 ? 8 : 4 };
};
template <> struct Packed<Q4_K> { enum { PARTS = 8, HALVES = 2, WORDS = 35 }; };
template <> struct Packed<Q5_K> { enum { PARTS = 8, HALVES = 2, WORDS = 43 }; };
template <> struct Packed<Q6_K> { enum { PARTS = 8, HALVES = 1, WORDS = 52 }; };

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

// Activations beside halves.
struct Floats { float x[32]; };

// 32 columns of one row of a tile: eight words of bytes, a scale, and a minimum or the scale of the
// second half.
template <int F> struct Columns {
    typedef Activations X;
    i32 w[8];
    float d, m;
};

template <class H> struct HalfColumns {
    typedef Floats X;
    typedef H Half;
    float w[32];
};
template <int F> struct ColumnsOf { typedef Columns<F> C; };
template <> struct ColumnsOf<F16> { typedef HalfColumns<f16> C; };
template <> struct ColumnsOf<BF16> { typedef HalfColumns<bf16> C; };

template <int F> FN float tile_half(const u8* tile, u32 i, u32 row) {
    return widen(((const f16*)tile)[16 * i + row]);
}
template <int F> FN u32 tile_word(const u8* tile, u32 i, u32 row) {
    return ((const u32*)(tile + 32 * Packed<F>::HALVES))[16 * i + row];
}

template <class H> FN void read_columns(const u8* panel, u32 block, u32 row, HalfColumns<H>& c) {
    const H* tile = (const H*)panel + (u64)block * 512;
#pragma unroll
    for (u32 i = 0; i < 32; ++i) c.w[i] = widen(tile[16 * i + row]);
}

template <int F> FN void read_columns(const u8* panel, u32 block, u32 row, Columns<F>& c) {
    const u8* tile =
        panel + (u64)(block / Packed<F>::PARTS) * (32 * Packed<F>::HALVES + 64 * Packed<F>::WORDS);
    const u32 part = block % Packed<F>::PARTS;
    c.d = tile_half<F>(tile, 0, row);
    c.m = 0.0f;
    if (F == Q8_0) {
#pragma unroll
        for (u32 i = 0; i < 8; ++i) c.w[i] = (i32)tile_word<F>(tile, i, row);
    } else if (F == Q4_0 || F == Q4_1) {
        if (F == Q4_1) c.m = tile_half<F>(tile, Packed<F>::HALVES - 1, row);
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const u32 both = tile_word<F>(tile, i, row);
            c.w[i] = (i32)(both & 0x0f0f0f0fu);
            c.w[i + 4] = (i32)(both >> 4 & 0x0f0f0f0fu);
        }
    } else if (F == Q4_K || F == Q5_K) {
        const u32 a = tile_word<F>(tile, 0, row), b = tile_word<F>(tile, 1, row),
                  both = tile_word<F>(tile, 2, row);
        const u32 at = 8 * (part % 4);
        const u32 six = 0x3f3f3f3fu, low = 0x0f0f0f0fu, top = 0x30303030u;
        const u32 scales = part < 4 ? a & six : (both & low) | (a >> 2 & top);
        const u32 minima = part < 4 ? b & six : (both >> 4 & low) | (b >> 2 & top);
        c.d = c.d * (float)(scales >> at & 0xff);
        c.m =
            (0.0f - tile_half<F>(tile, Packed<F>::HALVES - 1, row)) * (float)(minima >> at & 0xff);
#pragma unroll
        for (u32 i = 0; i < 8; ++i) {
            const u32 first = F == Q5_K ? 11 : 3;
            c.w[i] = (i32)(tile_word<F>(tile, first + 8 * (part / 2) + i, row) >> 4 * (part % 2) &
                           0x0f0f0f0fu);
            // A fifth bit of each weight.
            if (F == Q5_K)
                c.w[i] |= (i32)((tile_word<F>(tile, 3 + i, row) >> part & 0x01010101u) << 4);
        }
    } else {
        const u32 half = part / 4, quarter = part % 4;
#pragma unroll
        for (u32 i = 0; i < 8; ++i) {
            const u32 low = tile_word<F>(tile, 16 * half + 8 * (quarter % 2) + i, row);
            const u32 high = tile_word<F>(tile, 32 + 8 * half + i, row);
            c.w[i] = (i32)((low >> 4 * (quarter / 2) & 0x0f0f0f0fu) |
                           (high >> 2 * quarter & 0x03030303u) << 4);
        }
        const u32 scales =
            tile_word<F>(tile, 48 + 2 * half + quarter / 2, row) >> 16 * (quarter % 2);
        const float d = c.d;
        c.d = d * (float)((i32)(scales << 24) >> 24);
        c.m = d * (float)((i32)(scales << 16) >> 24);
    }
}

// The part of a block of columns in a result; `low` and `high` are the products of its halves.
template <int F> FN float term(i32 low, i32 high, float d, float m, const Activations& x) {
    float y;
    if (F == Q8_0) y = d * (float)(low + high);
    else if (F == Q4_0) y = d * ((float)(low + high) - 8.0f * x.sum);
    else if (F == Q6_K) y = d * ((float)low - 32.0f * x.low) + m * ((float)high - 32.0f * x.high);
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
    return term<F>(low, high, c.d, c.m, a);
}
template <class H> FN float product_of(const HalfColumns<H>& c, const Floats& a) {
    float sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < 32; ++i) sum = fma(c.w[i], a.x[i], sum);
    return sum;
}

// Few rows: a block of 256 threads computes a panel of R rows. Thread (row of the panel, slot)
// multiplies every 16th block of columns, and the results of the slots are added in the order of
// the columns.
template <int F, int R>
FN void product_of_few(const u8* w, const typename ColumnsOf<F>::C::X* x, float* out, u64 rows,
                       u64 n, u32 blocks, u64 panel_bytes) {
    __shared__ float terms[R][16][16];
    const u32 lane = threadIdx.x & 15, slot = threadIdx.x >> 4;
    const u64 first = (u64)blockIdx.y * R, column = (u64)blockIdx.x * 16 + lane;
    const u8* panel = w + blockIdx.x * panel_bytes;
    float sum = 0.0f;
    for (u32 from = 0; from < blocks; from += 16) {
        const u32 block = from + slot;
        if (block < blocks) {
            typename ColumnsOf<F>::C c;
            read_columns(panel, block, lane, c);
#pragma unroll
            for (u32 r = 0; r < R; ++r)
                if (first + r < rows)
                    terms[r][slot][lane] = product_of(c, x[(first + r) * blocks + block]);
        }
        __syncthreads();
        if (slot < R && first + slot < rows)
            for (u32 s = 0; s < 16 && from + s < blocks; ++s) sum = sum + terms[slot][s][lane];
        __syncthreads();
    }
    if (slot < R && first + slot < rows && column < n) out[(first + slot) * n + column] = sum;
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
    product_of_few<F, 1>(w, x, out, gridDim.y, n, blocks, panel_bytes);
}

// d[16, 8] += a[16, 32] b[32, 8] of signed bytes, of a warp (PTX ISA, "Matrix Fragments for
// mma.m16n8k32"). With g = lane / 4 and t = lane % 4 a lane holds, four neighbours of k a register:
// of `a`, in rows g, g + 8, g, g + 8, columns 4t.. twice and 16 + 4t.. twice; of `b`, in column g,
// rows 4t.. and 16 + 4t..; of `d`, columns 2t and 2t + 1 of row g, then of row g + 8.
FN void mma_bytes(i32 (&d)[4], const i32 (&a)[4], const i32 (&b)[2]) {
#if defined(FUTENSOR_SIM) || __CUDA_ARCH__ < 800
    const u32 all = 0xffffffffu, lane = threadIdx.x & 31, row = lane / 4 * 4, column = lane % 4 * 8;
    for (u32 t = 0; t < 4; ++t)
        for (u32 e = 0; e < 4; ++e)
            for (u32 k = 0; k < 2; ++k) {
                const i32 left = __shfl_sync(all, a[2 * k + e / 2], (int)(row + t));
                d[e] = __dp4a(left, __shfl_sync(all, b[k], (int)(column + 4 * (e % 2) + t)), d[e]);
            }
#else
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

// Many rows: each of eight warps computes a panel of 8 rows in tensor cores, block of columns after
// block.
template <int F>
FN void product_of_many(const u8* w, const Activations* x, float* out, u64 rows, u64 n, u32 blocks,
                        u64 panel_bytes) {
    const u32 lane = threadIdx.x & 31, g = lane / 4, t = lane % 4;
    const u64 first = (u64)blockIdx.y * 64 + threadIdx.x / 32 * 8, last = rows - 1;
    if (first >= rows) return;
    // Rows that are not there are the last one, and not written.
    const u64 own = first + g, left = first + 2 * t, right = left + 1;
    const Activations* mine = x + (own < last ? own : last) * blocks;
    const Activations* sides[2] = {x + (left < last ? left : last) * blocks,
                                   x + (right < last ? right : last) * blocks};
    const u8* panel = w + blockIdx.x * panel_bytes;
    float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (u32 block = 0; block < blocks; ++block) {
        // Of the words of two rows each lane of four needs two: all four read them, from one line.
        Columns<F> rows_of[2];
        read_columns(panel, block, g, rows_of[0]);
        read_columns(panel, block, g + 8, rows_of[1]);
        i32 a[4] = {0, 0, 0, 0};
#pragma unroll
        for (u32 i = 0; i < 4; ++i)
            if (i == t) {
                a[0] = rows_of[0].w[i];
                a[1] = rows_of[1].w[i];
                a[2] = rows_of[0].w[i + 4];
                a[3] = rows_of[1].w[i + 4];
            }
        const i32 b[2] = {mine[block].q[t], mine[block].q[t + 4]};
        i32 low[4] = {0, 0, 0, 0}, high[4] = {0, 0, 0, 0};
        if (F == Q6_K) {
            const i32 front[4] = {a[0], a[1], 0, 0}, back[4] = {0, 0, a[2], a[3]};
            mma_bytes(low, front, b);
            mma_bytes(high, back, b);
        } else {
            mma_bytes(low, a, b);
        }
#pragma unroll
        for (u32 e = 0; e < 4; ++e) {
            const Columns<F>& c = rows_of[e / 2];
            sums[e] = sums[e] + term<F>(low[e], high[e], c.d, c.m, sides[e % 2][block]);
        }
    }
#pragma unroll
    for (u32 e = 0; e < 4; ++e) {
        const u64 row = first + 2 * t + e % 2, column = (u64)blockIdx.x * 16 + g + 8 * (e / 2);
        if (row < rows && column < n) out[row * n + column] = sums[e];
    }
}

// Many rows by a weight of halves: 64 rows by four panels a block of 256 threads, 4 x 4 a thread.
template <int F>
FN void halves_by_many(const u8* w, const Floats* x, float* out, u64 rows, u64 n, u32 blocks,
                       u64 panel_bytes) {
    typedef typename ColumnsOf<F>::C::Half Half;
    __shared__ float ws[32][65];
    __shared__ float xs[32][65];
    const u32 column = threadIdx.x % 16, row = threadIdx.x / 16;
    const u64 panels = (n + 15) / 16, first = (u64)blockIdx.y * 64, panel = (u64)blockIdx.x * 4;
    float sums[4][4];
#pragma unroll
    for (u32 e = 0; e < 16; ++e) sums[e / 4][e % 4] = 0.0f;
    for (u32 block = 0; block < blocks; ++block) {
        // Unrolled whole, so that all loads are under way at once: by fours it took more registers,
        // and spilled.
#pragma unroll 8
        for (u32 e = threadIdx.x; e < 2048; e += 256) {
            const u64 p = panel + e / 512, r = first + e / 32;
            const Half* tile = (const Half*)(w + p * panel_bytes) + (u64)block * 512;
            ws[e % 512 / 16][e / 512 * 16 + e % 16] = p < panels ? widen(tile[e % 512]) : 0.0f;
            xs[e % 32][e / 32] = r < rows ? x[r * blocks + block].x[e % 32] : 0.0f;
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
        const u64 r = first + row + e / 4 * 16, c = (panel + e % 4) * 16 + column;
        if (r < rows && c < n) out[r * n + c] = sums[e / 4][e % 4];
    }
}

// Halves row by row into panels: a thread for each.
FN void pack_halves(const u16* x, u16* out, u64 rows, u64 columns, u64 count) {
    const u64 i = (u64)blockIdx.x * 256 + threadIdx.x, row = i / (16 * columns) * 16 + i % 16;
    if (i < count) out[i] = row < rows ? x[row * columns + i / 16 % columns] : (u16)0;
}

template <int F> FN float weight_of(const Columns<F>& c, u32 i) {
    const i32 q = c.w[i / 4] >> 8 * (i % 4) & 0xff;
    if (F == Q8_0) return (float)((q ^ 128) - 128) * c.d;
    if (F == Q4_0) return c.d * ((float)q - 8.0f);
    if (F == Q6_K) return (i < 16 ? c.d : c.m) * ((float)q - 32.0f);
    return c.d * (float)q + c.m;
}
template <class H> FN float weight_of(const HalfColumns<H>& c, u32 i) { return c.w[i]; }

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
