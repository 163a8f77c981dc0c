// Attention of halves up to 128 wide in tensor cores: four warps, each with 16 own rows M times.
// `attention.cuh` says what is made.

namespace ft {

// Eight neighbours of a row, zeros where there is none.
template <class T> FN Vec<T, 8> eight(const Sheet<T>& x, i32 row, i32 column) {
    Vec<T, 8> r;
    const T* p = x.p + (i64)row * x.step + column;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        r.v[i].bits = 0;
        if (row < x.rows && column + i < x.width) r.v[i] = p[i];
    }
    return r;
}
// N rows, D wide, into shared memory, by all threads. They lie 16 bytes farther from each other
// than they are wide, so that eight neighbours lie in different banks.
template <int N, int D, class T>
FN void lay(Vec<T, 8> (*to)[D / 8 + 1], const Sheet<T>& x, i32 first, bool whole) {
    const i32 WIDE = D / 8;
    if (whole) {
#pragma unroll
        for (i32 e = 0; e < N * WIDE; e += 128) {
            const i32 i = e + (i32)threadIdx.x, r = i / WIDE, c = i % WIDE;
            if (e + 128 > N * WIDE && i >= N * WIDE) break;
            const bool there = first + r < x.rows && 8 * c < x.width;
            const i64 at = (i64)(first + r) * x.step + 8 * c;
            copy_async(&to[r][c], x.p + (there ? at : 0), there);
        }
    } else {
#pragma unroll 1
        for (i32 i = threadIdx.x; i < N * WIDE; i += 128)
            to[i / WIDE][i % WIDE] = eight(x, first + i / WIDE, i % WIDE * 8);
    }
}
// Own rows as left operands, M times 16 of each warp's, from shared memory.
template <int M, int D, class T>
FN void take_rows(u32 (&to)[M][D / 16][4], Vec<T, 8> (*rows)[D / 8 + 1], const Sheet<T>& x,
                  i32 first, bool whole) {
    const i32 lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 * M + lane % 16;
    __syncthreads();  // what lay there was read
    lay<64 * M, D>(rows, x, first, whole);
    await_copies();
    __syncthreads();
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
        for (int k = 0; k < D / 16; ++k)
            fragments<false>(to[m][k], &rows[row + 16 * m][2 * k + lane / 16]);
}
// Where a lane finds its part of a right operand whose columns are rows in shared memory; the first
// two matrices of `fragments` are for eight of these rows, the others for the next eight.
template <int D, class T> FN const Vec<T, 8>* right_of(const Vec<T, 8> (*rows)[D / 8 + 1]) {
    const i32 lane = threadIdx.x % 32, row = lane % 8 + lane / 16 * 8, half = lane / 8 % 2;
    return &rows[row][half];
}
// s[M * 16, N] = own rows times those in shared memory.
template <int M, int N, int D, class T>
FN void rows_product(float (&s)[M][N / 8][4], const u32 (&own)[M][D / 16][4],
                     const Vec<T, 8> (*rows)[D / 8 + 1]) {
    const Vec<T, 8>* const right = right_of<D>(rows);
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
        for (int n = 0; n < N / 8; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) s[m][n][e] = 0;
#pragma unroll
    for (int k = 0; k < D / 16; ++k)
#pragma unroll
        for (int n = 0; n < N / 8; n += 2) {
            u32 b[4];
            fragments<false>(b, right + 8 * n * (D / 8 + 1) + 2 * k);
#pragma unroll
            for (int m = 0; m < M; ++m) {
                mma(s[m][n], own[m][k], {b[0], b[1]}, T());
                mma(s[m][n + 1], own[m][k], {b[2], b[3]}, T());
            }
        }
}
// Scores from products, of a lane whose first own row and first walked one these are.
template <class B, bool MASKED, int M, int N, int ROLE, class T, class K>
FN void scores(float (&s)[M][N / 8][4], const Walk<ROLE, T>& walk, bool open, i32 own, i32 walked,
               const K* mask, const Attended& a) {
    const float by = (float)a.scale * B::factor();
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
        for (int n = 0; n < N / 8; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                float& to = s[m][n][e];
                if (MASKED)
                    to = score<B, ROLE, MASKED>(to, walk, open, own + 16 * m + e / 2 * 8,
                                                walked + 8 * n + e % 2, mask, a);
                else
                    to = to * by;
            }
    if (MASKED || open) return;
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const i32 row = own + 16 * m + 8 * h, from = walk.meets_from(row, a) - walked,
                      to = walk.meets_to(row, a) - walked;
#pragma unroll
            for (int n = 0; n < N / 8; ++n)
#pragma unroll
                for (int e = 0; e < 2; ++e)
                    if (8 * n + e < from || 8 * n + e >= to) s[m][n][2 * h + e] = -inf(0.0f);
        }
}
// acc[M * 16, D] += weights s[M * 16, N] of the rows in shared memory times these.
template <int M, int N, int D, class T>
FN void weigh_rows(float (&acc)[M][D / 8][4], const float (&s)[M][N / 8][4],
                   const Vec<T, 8> (*rows)[D / 8 + 1]) {
    const i32 lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < N / 16; ++j) {
        u32 p[M][4];
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float* from = s[m][2 * j + i / 2] + i % 2 * 2;
                p[m][i] = pair_of<T>(from[0], from[1]);
            }
#pragma unroll
        for (int n = 0; n < D / 8; n += 2) {
            u32 b[4];
            fragments<true>(b, &rows[16 * j + lane % 16][n + lane / 16]);
#pragma unroll
            for (int m = 0; m < M; ++m) {
                mma(acc[m][n], p[m], {b[0], b[1]}, T());
                mma(acc[m][n + 1], p[m], {b[2], b[3]}, T());
            }
        }
    }
}

// While a tile of N rows is worked on, the next one is on its way. A role walks over two sheets: of
// its three, two are the same. Its own rows are queries.
template <int ROLE, class T, class K, bool MASKED, int D, int N, int M>
FN void attend_tensor(const T* q, const T* k, const T* v, const T* up, const float* stats,
                      const K* mask, const i64* lengths, void* out, const Attended& a,
                      const Geo64<6>& batches) {
    typedef OfTwo B;
    const bool TWO = Walk<ROLE, T>::TWO, whole = a.whole != 0;
    // Two tiles of two sheets; before, the own rows.
    const i32 ROWS = 4 * N > 64 * M ? 4 * N : 64 * M;
    __shared__ Vec<T, 8> tiles[ROWS][D / 8 + 1];
    const Walk<ROLE, T> walk(q, k, v, up, lengths, a, batches, 64 * M);
    if (stats) stats += 2 * walk.batch * a.rows;
    const i32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const i32 own = walk.first + (i32)(threadIdx.x / 32 * 16 * M + g);
    u32 x[M][D / 16][4], y[TWO ? M : 1][D / 16][4];
    take_rows<M, D>(x, tiles, walk.x, walk.first, whole);
    if constexpr (TWO) take_rows<M, D>(y, tiles, walk.y, walk.first, whole);
    float acc[M][D / 8][4];
    Sofar<float, B> sofar[M][2];
#pragma unroll
    for (int m = 0; m < M; ++m) {
        sofar[m][0] = sofar[m][1] = {-inf(0.0f), 0.0f, 0.0f};
#pragma unroll
        for (int n = 0; n < D / 8; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) acc[m][n][e] = 0;
    }
    const Sheet<T> second = TWO ? walk.u : walk.w;
    __syncthreads();
    lay<N, D>(tiles, walk.r, walk.begin, whole);
    lay<N, D>(tiles + N, second, walk.begin, whole);
    i32 half = 0;
    for (i32 start = walk.begin; start < walk.end; start += N) {
        const bool open = walk.open(64 * M, start, N, a);
        Vec<T, 8>(*const rs)[D / 8 + 1] = tiles + half, (*const us)[D / 8 + 1] = rs + N;
        await_copies();
        __syncthreads();  // this tile is there, and the one before was read
        half = 2 * N - half;
        if (start + N < walk.end) {
            lay<N, D>(tiles + half, walk.r, start + N, whole);
            lay<N, D>(tiles + half + N, second, start + N, whole);
        }
        float s[M][N / 8][4], d[TWO ? M : 1][N / 8][4];
        rows_product<M, N, D>(s, x, rs);
        if constexpr (TWO) rows_product<M, N, D>(d, y, us);
        scores<B, MASKED, M, N>(s, walk, open, own, start + 2 * t, mask, a);
#pragma unroll
        for (int m = 0; m < M; ++m) {
            if (ROLE <= STATS) {
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    Sofar<float, B>& to = sofar[m][h];
                    float most = to.most, sum = 0, mean = 0;
#pragma unroll
                    for (int n = 0; n < N / 8; ++n)
                        most = maximum(maximum(most, s[m][n][2 * h]), s[m][n][2 * h + 1]);
                    const float by = to.rise(largest_of(most, 4));
                    // Soon the largest score is no longer found in every tile.
                    if (by != 1.0f) {
#pragma unroll
                        for (int n = 0; n < D / 8; ++n) {
                            acc[m][n][2 * h] = acc[m][n][2 * h] * by;
                            acc[m][n][2 * h + 1] = acc[m][n][2 * h + 1] * by;
                        }
                    }
                    // Where nothing was seen yet, all powers are zeros.
                    const float base = to.most == -inf(0.0f) ? 0.0f : to.most;
#pragma unroll
                    for (int n = 0; n < N / 8; ++n)
#pragma unroll
                        for (int e = 2 * h; e < 2 * h + 2; ++e) {
                            s[m][n][e] = B::power(s[m][n][e] - base);
                            sum = sum + s[m][n][e];
                            if (TWO) mean = mean + s[m][n][e] * d[m][n][e];
                        }
                    to.sum = to.sum + sum_of(sum, 4);
                    if (TWO) to.mean = to.mean + sum_of(mean, 4);
                }
            } else {
#pragma unroll
                for (int n = 0; n < N / 8; ++n)
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        const i32 query = own + 16 * m + e / 2 * 8;
                        Vec<float, 2> of = {0.0f, 0.0f};
                        if (query < a.rows) of = ((const Vec<float, 2>*)stats)[query];
                        s[m][n][e] = B::power(s[m][n][e] - of.v[0] * B::factor()) *
                                     (d[m][n][e] - of.v[1]);
                    }
            }
        }
        if (ROLE == STATS) continue;
        weigh_rows<M, N, D>(acc, s, ROLE == TO_QUERY ? rs : us);
    }
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const i32 r = own + 16 * m + 8 * h;
            const i64 row = walk.batch * walk.x.rows + r;
            if (r >= walk.x.rows) continue;
            if (ROLE == STATS) {
                if (t == 0) sofar[m][h].put((float*)out + 2 * row);
                continue;
            }
            if (ROLE == SPANS) {
                float* to = span_of((float*)out, row, walk.w.width);
                if (t == 0) sofar[m][h].put_span(to);
#pragma unroll
                for (int n = 0; n < D / 8; ++n)
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        const i32 c = 8 * n + 2 * t + e;
                        if (c < walk.w.width) to[2 + c] = acc[m][n][2 * h + e];
                    }
                continue;
            }
            float by = (float)a.scale;
            if (ROLE == OUTPUT) by = sofar[m][h].sum == 0.0f ? 0.0f : 1.0f / sofar[m][h].sum;
#pragma unroll
            for (int n = 0; n < D / 8; ++n)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const i32 c = 8 * n + 2 * t + e;
                    if (c < walk.w.width)
                        ((T*)out)[row * walk.w.width + c] = As<T>::of(acc[m][n][2 * h + e] * by);
                }
        }
}

}  // namespace ft
