// Products of rows of floats with weights that are halves, in tensor cores. A row has the same bits
// however many rows there are.
//
// A row becomes P halves for each float, which add up to it, the largest first. Beside float16 it
// is first made as large as float16 holds, by a power of two that the result is divided by: so none
// overflows, and the second half does not vanish.
//
// The order of a sum is by columns alone: of 64 neighbours, 16 after 16, and of these the larger
// halves before the smaller ones, from zero in a tensor core; the sums of 64 one after the other.
// What shares the work differs with the number of rows, and that order does not.

namespace ft {

// Halves of 16 rows by 16 columns lie as lanes hold them (`mma` in tensor.cuh), 16 bytes a lane.
typedef Vec<u32, 4> Fragment;

// What lies where, in fragments: tiles of 16 rows, in these steps of 16 columns, in these P pieces,
// in these lanes.
template <int P> FN u64 fragment_at(u64 tile, u32 step, u32 steps) {
    return (tile * steps + step) * P * 32;
}

template <class T> struct IsNarrow { enum { V = 0 }; };
template <> struct IsNarrow<f16> { enum { V = 1 }; };

// What is left of a number beside its half; nothing of one that has become infinite.
template <class T> FN float beside(float x, T half) {
    const float near = load(half);
    return (bits(near) & 0x7f800000u) == 0x7f800000u ? 0.0f : x - near;
}

// A block for each row, and for those that fill up the last sixteen, which are zeros.
template <class T, int P>
FN void pieces_of_rows(const float* x, u32* out, float* by, u64 rows, u32 blocks) {
    const u64 row = blockIdx.x;
    const u32 columns = blocks * 32;
    const bool there = row < rows;
    const float* mine = x + (there ? row * columns : 0);
    float to = 1.0f, back = 1.0f;
    if (IsNarrow<T>::V) {
        __shared__ u32 largest[8];
        u32 most = 0;
        for (u32 i = threadIdx.x; there && i < columns; i += 256) {
            const u32 b = bits(mine[i]) & 0x7fffffffu;
            most = b > most ? b : most;
        }
        for (int d = 1; d < 32; d *= 2) {
            const u32 other = __shfl_xor_sync(0xffffffffu, most, d);
            most = other > most ? other : most;
        }
        if (threadIdx.x % 32 == 0) largest[threadIdx.x / 32] = most;
        __syncthreads();
        for (u32 i = 0; i < 8; ++i) most = largest[i] > most ? largest[i] : most;
        // The largest is between 2^14 and 2^15 then, unless it is below 2^-112.
        const u32 exponent = most >> 23 < 15 ? 253 : 268 - (most >> 23);
        to = as_float(exponent << 23);
        back = as_float((254 - exponent) << 23);
    }
    for (u32 i = threadIdx.x; i < columns / 2; i += 256) {
        float low = there ? mine[2 * i] * to : 0.0f, high = there ? mine[2 * i + 1] * to : 0.0f;
        const u32 lane = (u32)(row % 8) * 4 + i % 4, word = (u32)(row % 16) / 8 + i % 8 / 4 * 2;
        u32* at = out + 4 * (fragment_at<P>(row / 16, i / 8, 2 * blocks) + lane) + word;
#pragma unroll
        for (int p = 0; p < P; ++p) {
            const T a = As<T>::of(low), b = As<T>::of(high);
            at[128 * p] = pair(a, b);
            low = beside(low, a);
            high = beside(high, b);
        }
    }
    if (threadIdx.x == 0 && there) by[row] = back;
}

// Where a half panel's 16 bytes lie in shared memory: of column k the outputs from 8 h on. Eight
// neighbours of k lie in different banks.
FN u32 place_of(u32 k, u32 h) { return 2 * k + (h ^ (k >> 2 & 1)); }

// d[16, 16] += a[16, 16] of a panel's 16 columns.
template <class T> FN void by_panel(float (&d)[2][4], const Fragment& a, const u32 (&b)[4]) {
    mma(d[0], a.v, {b[0], b[1]}, T());
    mma(d[1], a.v, {b[2], b[3]}, T());
}

// Up to 16 rows by a panel a block: each of eight warps has every eighth 64 columns, and their sums
// are added in the order of the columns.
template <class T, int P>
FN void halves_by_few(const u8* w, const Fragment* x, const float* by, float* out, u64 rows, u64 n,
                      u32 blocks, u64 panel_bytes) {
    __shared__ Fragment ws[2][8][128];
    __shared__ float terms[8][16][16];
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const u32 steps = 2 * blocks, parts = (blocks + 1) / 2;
    const u8* panel = w + blockIdx.x * panel_bytes;
    auto lay = [&](u32 part, u32 half) {
#pragma unroll
        for (u32 i = lane; i < 128; i += 32) {
            const u32 k = i / 2;
            const bool there = part * 64 + k < blocks * 32;
            const u64 at = there ? (u64)part * 2048 + 16 * i : 0;
            copy_async(&ws[half][warp][place_of(k, i % 2)], panel + at, there);
        }
    };
    float sum = 0.0f;
    lay(warp, 0);
    for (u32 from = 0, half = 0; from < parts; from += 8, half ^= 1) {
        const u32 first = 4 * (from + warp), deep = first < steps ? steps - first : 0;
        Fragment a[4][P];
#pragma unroll
        for (u32 s = 0; s < 4; ++s)
#pragma unroll
            for (u32 p = 0; p < P; ++p) {
                a[s][p] = {0, 0, 0, 0};
                if (s < deep && g < rows)
                    a[s][p] = x[fragment_at<P>(0, first + s, steps) + 32 * p + lane];
            }
        await_copies();
        __syncthreads();  // these columns are there, and the sums before were read
        if (from + 8 < parts) lay(from + 8 + warp, half ^ 1);
        float d[2][4] = {};
#pragma unroll
        for (u32 s = 0; s < 4; ++s) {
            if (s >= deep) break;
            u32 b[4];
            fragments<true>(b, &ws[half][warp][place_of(16 * s + lane % 16, lane / 16)]);
#pragma unroll
            for (u32 p = 0; p < P; ++p) by_panel<T>(d, a[s][p], b);
        }
#pragma unroll
        for (u32 e = 0; e < 8; ++e)
            terms[warp][g + e / 2 % 2 * 8][e / 4 * 8 + 2 * t + e % 2] = d[e / 4][e % 4];
        __syncthreads();
        for (u32 i = 0; i < 8 && from + i < parts; ++i)
            sum = sum + terms[i][threadIdx.x / 16][threadIdx.x % 16];
    }
    const u64 row = threadIdx.x / 16, column = (u64)blockIdx.x * 16 + threadIdx.x % 16;
    if (row < rows && column < n) out[row * n + column] = sum * by[row];
}

// 64 rows by some panels a block: HIGH warps one below the other, each with M times 16 rows by N
// panels. While 32 columns are worked on, the next ones are on their way.
template <class T, int P, int HIGH, int M, int N>
FN void halves_by_tiles(const u8* w, const Fragment* x, const float* by, float* out, u64 rows,
                        u64 n, u32 blocks, u64 panel_bytes) {
    const u32 TILES = HIGH * M, PANELS = 8 / HIGH * N, STAGE = 2 * P * 32;
    __shared__ Fragment xs[2][TILES][STAGE];
    __shared__ Fragment ws[2][PANELS][64];
    const u32 lane = threadIdx.x % 32, high = threadIdx.x / 32 % HIGH * M,
              wide = threadIdx.x / 32 / HIGH * N;
    const u64 tile = (u64)blockIdx.y * TILES, tiles = (rows + 15) / 16;
    const u64 panel = (u64)blockIdx.x * PANELS, panels = (n + 15) / 16;
    // What each thread brings of 32 columns, of the first ones.
    const u32 XS = (TILES * STAGE + 255) / 256, WS = (PANELS * 64 + 255) / 256;
    const Fragment* from_x[XS];
    const u8* from_w[WS];
#pragma unroll
    for (u32 i = 0; i < XS; ++i) {
        const u32 e = 256 * i + threadIdx.x;
        const u64 at = fragment_at<P>(tile + e / STAGE, 0, 2 * blocks) + e % STAGE;
        from_x[i] = x + (tile + e / STAGE < tiles ? at : 0);
    }
#pragma unroll
    for (u32 i = 0; i < WS; ++i) {
        const u32 e = 256 * i + threadIdx.x;
        const u64 at = (panel + e / 64) * panel_bytes + e % 64 * 16;
        from_w[i] = w + (panel + e / 64 < panels ? at : 0);
    }
    auto lay = [&](u32 block, u32 half) {
#pragma unroll
        for (u32 i = 0; i < XS; ++i) {
            const u32 e = 256 * i + threadIdx.x;
            if (e < TILES * STAGE)
                copy_async(&xs[half][e / STAGE][e % STAGE], from_x[i] + (u64)block * STAGE,
                           tile + e / STAGE < tiles);
        }
#pragma unroll
        for (u32 i = 0; i < WS; ++i) {
            const u32 e = 256 * i + threadIdx.x;
            if (e < PANELS * 64)
                copy_async(&ws[half][e / 64][place_of(e % 64 / 2, e % 2)],
                           from_w[i] + (u64)block * 1024, panel + e / 64 < panels);
        }
    };
    float sums[M][N][2][4] = {};
    if (blocks > 0) lay(0, 0);
    for (u32 first = 0; first < blocks; first += 2) {
        float d[M][N][2][4] = {};
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            if (first + half == blocks) break;
            await_copies();
            __syncthreads();  // these columns are there, and those before were read
            if (first + half + 1 < blocks) lay(first + half + 1, half ^ 1);
#pragma unroll
            for (u32 s = 0; s < 2; ++s) {
                u32 b[N][4];
#pragma unroll
                for (u32 j = 0; j < N; ++j)
                    fragments<true>(b[j],
                                    &ws[half][wide + j][place_of(16 * s + lane % 16, lane / 16)]);
#pragma unroll
                for (u32 p = 0; p < P; ++p)
#pragma unroll
                    for (u32 m = 0; m < M; ++m) {
                        const Fragment a = xs[half][high + m][(s * P + p) * 32 + lane];
#pragma unroll
                        for (u32 j = 0; j < N; ++j) by_panel<T>(d[m][j], a, b[j]);
                    }
            }
        }
#pragma unroll
        for (u32 i = 0; i < M * N * 8; ++i) {
            float& to = sums[i / 8 / N][i / 8 % N][i / 4 % 2][i % 4];
            to = to + d[i / 8 / N][i / 8 % N][i / 4 % 2][i % 4];
        }
    }
#pragma unroll
    for (u32 m = 0; m < M; ++m)
#pragma unroll
        for (u32 h = 0; h < 2; ++h) {
            const u64 row = (tile + high + m) * 16 + lane / 4 + 8 * h;
            if (row >= rows) continue;
            const float back = by[row];
#pragma unroll
            for (u32 j = 0; j < N; ++j)
#pragma unroll
                for (u32 e = 0; e < 4; ++e) {
                    const u64 column =
                        (panel + wide + j) * 16 + e / 2 * 8 + lane % 4 * 2 + e % 2;
                    if (column < n)
                        out[row * n + column] = sums[m][j][e / 2][2 * h + e % 2] * back;
                }
        }
}

}  // namespace ft
