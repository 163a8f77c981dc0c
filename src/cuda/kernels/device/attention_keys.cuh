// The gradients of keys and values in one walk over the queries, so that scores and what flows to
// the weights are made once for both. A block owns keys; `attention.cuh` says what is made.

namespace ft {

// ---- any type, any width ----

// W times 64 columns of both results, those of blockIdx.y.
template <class T, class M, bool MASKED, int W>
FN void attend_keys(const T* q, const T* k, const T* v, const T* up,
                    const typename Stored<T>::C* stats, const M* mask, T* to_keys, T* to_values,
                    const Attended& a, const Geo64<6>& batches) {
    typedef typename Stored<T>::C C;
    const i32 DEEP = Tiles<C>::DEEP, tr = threadIdx.x / 16, tc = threadIdx.x % 16;
    __shared__ Vec<C, 4> as[DEEP][17], bs[DEEP][17], ps[64][17];
    const Tiles<C> tiles = {as, bs};
    const Walk<TO_KEYS, T> walk(q, k, v, up, 0, a, batches, 64);
    stats += 2 * walk.batch * a.rows;
    const i32 own = walk.first + 4 * tr, column = (i32)blockIdx.y * 64 * W;
    C keys[4][4 * W] = {}, values[4][4 * W] = {};
    for (i32 start = walk.begin; start < walk.end; start += 64) {
        const bool open = walk.open(64, start, 64, a);
        C s[4][4] = {}, d[4][4] = {};
        tile_product(s, walk.x, walk.first, walk.r, start, tiles);
        tile_product(d, walk.y, walk.first, walk.u, start, tiles);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const i32 query = start + 4 * tc + j;
            const bool there = query < a.rows;
            const C most = there ? stats[2 * query] : (C)0,
                    mean = there ? stats[2 * query + 1] : (C)0;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                s[i][j] = exp(score<OfE<C>, TO_KEYS, MASKED>(s[i][j], walk, open, own + i, query,
                                                             mask, a) -
                              most);
                d[i][j] = s[i][j] * (d[i][j] - mean);
            }
        }
        // Columns that one of the results has not are no work: its blocks end earlier.
        if (column < walk.u.width)
            weigh_tile<W>(values, s, walk.u, start, column, tiles.b, ps);
        if (column < walk.r.width)
            weigh_tile<W>(keys, d, walk.r, start, column, tiles.b, ps);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if (own + i >= walk.x.rows) continue;
        const i64 row = walk.batch * walk.x.rows + own + i;
#pragma unroll
        for (int j = 0; j < 4 * W; ++j) {
            const i32 c = column + j / 4 * 64 + 4 * tc + j % 4;
            if (c < walk.x.width)
                to_keys[row * walk.x.width + c] = As<T>::of(keys[i][j] * (C)a.scale);
            if (c < walk.y.width) to_values[row * walk.y.width + c] = As<T>::of(values[i][j]);
        }
    }
}

// ---- halves up to 128 wide: tensor cores, four warps, each with 16 keys ----

// s[16, N] = own rows times others, both in shared memory.
template <int N, int D, class T>
FN void kept_product(float (&s)[1][N / 8][4], const Vec<T, 8> (*own)[D / 8 + 1],
                     const Vec<T, 8> (*rows)[D / 8 + 1]) {
    const i32 lane = threadIdx.x % 32;
    const Vec<T, 8>* const right = right_of<D>(rows);
    const Vec<T, 8>* const at = &own[threadIdx.x / 32 * 16 + lane % 16][lane / 16];
#pragma unroll
    for (int n = 0; n < N / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) s[0][n][e] = 0;
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
        u32 x[4];
        fragments<false>(x, at + 2 * k);
#pragma unroll
        for (int n = 0; n < N / 8; n += 2) {
            u32 b[4];
            fragments<false>(b, right + 8 * n * (D / 8 + 1) + 2 * k);
            mma(s[0][n], x, {b[0], b[1]}, T());
            mma(s[0][n + 1], x, {b[2], b[3]}, T());
        }
    }
}
template <int D, class T>
FN void put_rows(T* out, const float (&acc)[1][D / 8][4], float by, i64 batch, i32 own,
                 const Sheet<T>& like) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const i32 r = own + 8 * h;
        if (r >= like.rows) continue;
        T* const to = out + (batch * like.rows + r) * like.width;
#pragma unroll
        for (int n = 0; n < D / 8; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const i32 c = 8 * n + 2 * ((i32)threadIdx.x % 4) + e;
                if (c < like.width) to[c] = As<T>::of(acc[0][n][2 * h + e] * by);
            }
    }
}

// While a tile of N queries is worked on, the next one is on its way. Both sums of rows of 128 fill
// the registers, so that the keys of wide rows stay in shared memory.
template <class T, class K, bool MASKED, int D, int N>
FN void attend_keys_tensor(const T* q, const T* k, const T* v, const T* up, const float* stats,
                           const K* mask, T* to_keys, T* to_values, const Attended& a,
                           const Geo64<6>& batches) {
    typedef OfTwo B;
    const bool KEPT = D > 64, whole = a.whole != 0;
    const i32 LAID = 4 * N > 64 || KEPT ? 4 * N : 64;
    __shared__ Vec<T, 8> room[LAID + (KEPT ? 64 : 0)][D / 8 + 1];
    Vec<T, 8>(*const kept)[D / 8 + 1] = room + LAID;
    const Walk<TO_KEYS, T> walk(q, k, v, up, 0, a, batches, 64);
    stats += 2 * walk.batch * a.rows;
    const i32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const i32 own = walk.first + (i32)(threadIdx.x / 32 * 16 + g);
    u32 x[1][D / 16][4], y[1][D / 16][4];
    if constexpr (KEPT) {
        take_rows<1, D>(y, kept, walk.y, walk.first, whole);
        __syncthreads();
        lay<64, D>(kept, walk.x, walk.first, whole);
    } else {
        take_rows<1, D>(x, room, walk.x, walk.first, whole);
        take_rows<1, D>(y, room, walk.y, walk.first, whole);
        __syncthreads();
    }
    float keys[1][D / 8][4], values[1][D / 8][4];
#pragma unroll
    for (int n = 0; n < D / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) keys[0][n][e] = values[0][n][e] = 0;
    lay<N, D>(room, walk.r, walk.begin, whole);
    lay<N, D>(room + N, walk.u, walk.begin, whole);
    i32 half = 0;
    for (i32 start = walk.begin; start < walk.end; start += N) {
        const bool open = walk.open(64, start, N, a);
        Vec<T, 8>(*const rs)[D / 8 + 1] = room + half, (*const us)[D / 8 + 1] = rs + N;
        await_copies();
        __syncthreads();  // these queries are there, and the ones before were read
        half = 2 * N - half;
        if (start + N < walk.end) {
            lay<N, D>(room + half, walk.r, start + N, whole);
            lay<N, D>(room + half + N, walk.u, start + N, whole);
        }
        float s[1][N / 8][4], d[1][N / 8][4];
        if constexpr (KEPT) kept_product<N, D>(s, kept, rs);
        else rows_product<1, N, D>(s, x, rs);
        scores<B, MASKED, 1, N>(s, walk, open, own, start + 2 * t, mask, a);
        const Vec<float, 2>* const of = (const Vec<float, 2>*)stats + start + 2 * t;
#pragma unroll
        for (int n = 0; n < N / 8; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const bool there = start + 8 * n + 2 * t + e < a.rows;
                const float most = there ? of[8 * n + e].v[0] * B::factor() : 0.0f;
                s[0][n][e] = B::power(s[0][n][e] - most);
                s[0][n][2 + e] = B::power(s[0][n][2 + e] - most);
            }
        weigh_rows<1, N, D>(values, s, us);
        rows_product<1, N, D>(d, y, us);
#pragma unroll
        for (int n = 0; n < N / 8; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const bool there = start + 8 * n + 2 * t + e < a.rows;
                const float mean = there ? of[8 * n + e].v[1] : 0.0f;
                s[0][n][e] = s[0][n][e] * (d[0][n][e] - mean);
                s[0][n][2 + e] = s[0][n][2 + e] * (d[0][n][2 + e] - mean);
            }
        weigh_rows<1, N, D>(keys, s, rs);
    }
    put_rows<D>(to_keys, keys, (float)a.scale, walk.batch, own, walk.x);
    put_rows<D>(to_values, values, 1.0f, walk.batch, own, walk.y);
}

}  // namespace ft
