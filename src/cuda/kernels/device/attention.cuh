// Attention and its gradients without the matrix of scores: a block owns rows of the result, walks
// over the rows that these meet, and makes scores anew tile by tile, with a softmax that is
// corrected as larger ones come along (Milakov and Gimelshein 2018, arXiv:1805.02867; Dao 2023,
// arXiv:2307.08691).
//
// Five results are one walk. With x and y the block's own rows and r, u, w those that it walks
// over:
//
//     result      x   y   r  u   w    s = x r^T, the score of a query and a key;  d = y u^T
//     OUTPUT      q       k      v    the sum of e^(s - most) w, by the sum of e^(s - most)
//     SPANS       q       k      v    for one span of keys: most, both sums
//     STATS       q   up  k  v        a query has L = most + log of that sum, and the mean of d
//                                     under its weights
//     TO_QUERY    q   up  k  v   k    with weights p = e^(s - L): the sum of p (d - mean) w scale
//     TO_KEY      k   v   q  up  q    the same
//     TO_VALUE    k       q      up   the sum of p w
//
// Each sum has one order, by sizes alone. A query that sees nothing has L = 0 and scores of minus
// infinity.

namespace ft {

enum { OUTPUT, SPANS, STATS, TO_QUERY, TO_KEY, TO_VALUE };

enum { KEYS_OF_A_SPAN = 256 };

// Sizes, and steps between rows in elements; between elements of a row there is none but the
// mask's.
struct Attended {
    i64 rows, keys, width, wide, q, k, v, up, mask_row, mask_key;
    u64 causal, whole;
    double scale;
};

// Rows of one operand.
template <class T> struct Sheet {
    const T* p;
    i64 step;
    i32 rows, width;
};

// All that a block works on. `first` is its first own row, it walks from `begin` to
// `end`; `keys` are those of its batch, which may be fewer.
template <int ROLE, class T> struct Walk {
    static const bool BY_QUERY = ROLE <= TO_QUERY;
    static const bool TWO = ROLE == STATS || ROLE == TO_QUERY || ROLE == TO_KEY;
    Sheet<T> x, y, r, u, w;
    i64 batch, mask;
    i32 first, begin, end, keys;

    // `tile` own rows a block, of one batch; blocks that walk far come first.
    FN_MEMBER Walk(const T* q, const T* k, const T* v, const T* up, const i64* lengths,
                   const Attended& a, const Geo64<6>& batches, i32 tile) {
        const i32 blocks = (i32)(((BY_QUERY ? a.rows : a.keys) + tile - 1) / tile),
                  block = (i32)blockIdx.x % blocks;
        batch = (i32)blockIdx.x / blocks;
        i64 off[6];
        offsets<6, Geo64>(batches, (u64)batch, off);
        keys = (i32)a.keys;
        if (BY_QUERY && lengths) {
            const i64 length = lengths[off[5]];
            keys = length < 0 ? 0 : length < a.keys ? (i32)length : keys;
        }
        const i32 rows = (i32)a.rows, width = (i32)a.width, wide = (i32)a.wide;
        const Sheet<T> qs = {q + off[0], a.q, rows, width}, ks = {k + off[1], a.k, keys, width};
        const Sheet<T> vs = {v + off[2], a.v, keys, wide}, ups = {up + off[3], a.up, rows, wide};
        mask = off[4];
        first = (BY_QUERY ? blocks - 1 - block : block) * tile;
        begin = !BY_QUERY && a.causal ? first : 0;
        end = BY_QUERY ? keys : rows;
        if (BY_QUERY && a.causal && end > first + tile) end = first + tile;
        if (ROLE == SPANS) {
            begin = (i32)blockIdx.z * KEYS_OF_A_SPAN;
            if (end > begin + KEYS_OF_A_SPAN) end = begin + KEYS_OF_A_SPAN;
        }
        x = BY_QUERY ? qs : ks;
        y = BY_QUERY ? ups : vs;
        r = BY_QUERY ? ks : qs;
        u = BY_QUERY ? vs : ups;
        w = ROLE <= SPANS ? vs : ROLE == TO_QUERY ? ks : ROLE == TO_KEY ? qs : ups;
    }
    FN_MEMBER i32 query(i32 own, i32 walked) const { return BY_QUERY ? own : walked; }
    FN_MEMBER i32 key(i32 own, i32 walked) const { return BY_QUERY ? walked : own; }
    // True where all of a tile is there, and seen as far as it depends on places.
    FN_MEMBER bool open(i32 tile, i32 start, i32 n, const Attended& a) const {
        const i32 causal_end = BY_QUERY ? start + n - 1 - first : first + tile - 1 - start;
        return first + tile <= x.rows && start + n <= r.rows && (!a.causal || causal_end <= 0);
    }
    // Where in the walk an own row begins to meet others, and where it ends.
    FN_MEMBER i32 meets_from(i32 own, const Attended& a) const {
        return !BY_QUERY && a.causal ? own : 0;
    }
    FN_MEMBER i32 meets_to(i32 own, const Attended& a) const {
        if (own >= x.rows) return 0;
        return BY_QUERY && a.causal && own < r.rows ? own + 1 : r.rows;
    }
};

// What scores are exponents of: e, or two, where they were made larger by a factor.
template <class C> struct OfE {
    static FN_MEMBER C factor() { return (C)1; }
    static FN_MEMBER C back() { return (C)1; }
    static FN_MEMBER C power(C x) { return exp(x); }
};
struct OfTwo {
    static FN_MEMBER float factor() { return 1.44269504f; }
    static FN_MEMBER float back() { return 0.693147182f; }
    static FN_MEMBER float power(float x) { return power_of_two(x); }
};

template <class C> FN C shown(C score, bool visible, C) { return visible ? score : -inf(C()); }
template <class C, class M> FN C shown(C score, M more, C by) { return score + (C)more * by; }

// A score from a product: scaled and masked; outside the rows it is minus infinity.
template <class B, int ROLE, bool MASKED, class T, class M, class C>
FN C score(C dot, const Walk<ROLE, T>& walk, bool open, i32 own, i32 walked, const M* mask,
           const Attended& a) {
    const i32 query = walk.query(own, walked), key = walk.key(own, walked);
    if (!open && (query >= a.rows || key >= walk.keys || (a.causal && key > query)))
        return -inf(C());
    C s = dot * ((C)a.scale * B::factor());
    if (MASKED)
        s = shown(s, load(mask[walk.mask + (i64)query * a.mask_row + (i64)key * a.mask_key]),
                  B::factor());
    return s;
}

// The sums of a query so far: its largest score, the sum of the powers over it, and that of d under
// them.
template <class C, class B = OfE<C>> struct Sofar {
    C most, sum, mean;
    // Brings the sums to a largest score that is no smaller; the factor for the other sums.
    FN_MEMBER C rise(C larger) {
        const C by = larger == most ? (C)1 : B::power(most - larger);
        most = larger;
        sum = sum * by;
        mean = mean * by;
        return by;
    }
    FN_MEMBER void put(C* to) const {
        const bool blind = most == -inf(C());
        to[0] = blind ? (C)0 : most * B::back() + log(sum);
        to[1] = blind ? (C)0 : mean / sum;
    }
    FN_MEMBER void put_span(C* to) const {
        to[0] = most * B::back();
        to[1] = sum;
    }
};

// The result of this block's span for a query, among all spans: its largest score, the sum of
// powers, the sum of values.
template <class C> FN C* span_of(C* out, i64 row, i32 width) {
    return out + (row * gridDim.z + blockIdx.z) * (width + 2);
}

// e^(s - most); where nothing was seen yet, nothing.
template <class C> FN C power(C s, C most) { return most == -inf(C()) ? (C)0 : exp(s - most); }

// The largest or the sum of the values of `lanes` neighbouring lanes.
template <class C> FN C largest_of(C x, int lanes) {
    for (int d = 1; d < lanes; d *= 2) x = maximum(x, __shfl_xor_sync(0xffffffffu, x, d));
    return x;
}
template <class C> FN C sum_of(C x, int lanes) {
    for (int d = 1; d < lanes; d *= 2) x = x + __shfl_xor_sync(0xffffffffu, x, d);
    return x;
}

// ---- any type, any width: tiles of 64 x 64, 4 x 4 a thread
// ---------------------------------------------

template <class C> struct Tiles {
    enum { DEEP = 64 / sizeof(C) };
    Vec<C, 4> (*a)[17], (*b)[17];
};

// d[4][4] += 64 rows of x times as many of y.
template <class C, class T>
FN void tile_product(C (&d)[4][4], const Sheet<T>& x, i32 x0, const Sheet<T>& y, i32 y0,
                     const Tiles<C>& to) {
    const i32 DEEP = Tiles<C>::DEEP, tr = threadIdx.x / 16, tc = threadIdx.x % 16;
    for (i32 k0 = 0; k0 < x.width; k0 += DEEP) {
        for (i32 e = threadIdx.x; e < 64 * DEEP; e += 256) {
            const i32 r = e / DEEP, k = e % DEEP;
            const bool deep = k0 + k < x.width;
            ((C*)to.a[k])[r] =
                deep && x0 + r < x.rows ? (C)load(x.p[(i64)(x0 + r) * x.step + k0 + k]) : (C)0;
            ((C*)to.b[k])[r] =
                deep && y0 + r < y.rows ? (C)load(y.p[(i64)(y0 + r) * y.step + k0 + k]) : (C)0;
        }
        __syncthreads();
        for (i32 k = 0; k < DEEP; ++k) {
            const Vec<C, 4> a = to.a[k][tr], b = to.b[k][tc];
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j) d[i][j] = fma(a.v[i], b.v[j], d[i][j]);
        }
        __syncthreads();
    }
}

// W times 64 columns of the result, those of blockIdx.y.
template <int ROLE, class T, class M, bool MASKED, int W>
FN void attend(const T* q, const T* k, const T* v, const T* up, const typename Stored<T>::C* stats,
               const M* mask, const i64* lengths, void* out, const Attended& a,
               const Geo64<6>& batches) {
    typedef typename Stored<T>::C C;
    const i32 DEEP = Tiles<C>::DEEP, tr = threadIdx.x / 16, tc = threadIdx.x % 16;
    __shared__ Vec<C, 4> as[DEEP][17], bs[DEEP][17], ps[ROLE == STATS ? 1 : 64][17];
    const Tiles<C> tiles = {as, bs};
    const Walk<ROLE, T> walk(q, k, v, up, lengths, a, batches, 64);
    if (stats) stats += 2 * walk.batch * a.rows;
    const i32 own = walk.first + 4 * tr, column = (i32)blockIdx.y * 64 * W;
    Sofar<C> sofar[4];
    C acc[4][4 * W];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        sofar[i] = {-inf(C()), (C)0, (C)0};
#pragma unroll
        for (int j = 0; j < 4 * W; ++j) acc[i][j] = 0;
    }
    for (i32 start = walk.begin; start < walk.end; start += 64) {
        const bool open = walk.open(64, start, 64, a);
        C s[4][4] = {}, d[4][4] = {};
        tile_product(s, walk.x, walk.first, walk.r, start, tiles);
        if (Walk<ROLE, T>::TWO) tile_product(d, walk.y, walk.first, walk.u, start, tiles);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
            for (int j = 0; j < 4; ++j)
                s[i][j] =
                    score<OfE<C>, ROLE, MASKED>(s[i][j], walk, open, own + i, start + 4 * tc + j,
                                                mask, a);
            if (ROLE <= STATS) {
                C most = sofar[i].most, sum = 0, mean = 0;
#pragma unroll
                for (int j = 0; j < 4; ++j) most = maximum(most, s[i][j]);
                const C by = sofar[i].rise(largest_of(most, 16));
#pragma unroll
                for (int j = 0; j < 4 * W; ++j) acc[i][j] = acc[i][j] * by;
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    s[i][j] = power(s[i][j], sofar[i].most);
                    sum = sum + s[i][j];
                    mean = mean + s[i][j] * d[i][j];
                }
                sofar[i].sum = sofar[i].sum + sum_of(sum, 16);
                if (ROLE == STATS) sofar[i].mean = sofar[i].mean + sum_of(mean, 16);
            } else {
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const i32 query = walk.query(own + i, start + 4 * tc + j);
                    const bool there = query < a.rows;
                    s[i][j] = exp(s[i][j] - (there ? stats[2 * query] : (C)0));
                    if (Walk<ROLE, T>::TWO)
                        s[i][j] = s[i][j] * (d[i][j] - (there ? stats[2 * query + 1] : (C)0));
                }
            }
        }
        if (ROLE == STATS) continue;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            Vec<C, 4> p;
#pragma unroll
            for (int i = 0; i < 4; ++i) p.v[i] = s[i][j];
            ps[4 * tc + j][tr] = p;
        }
        for (i32 k0 = 0; k0 < 64; k0 += DEEP) {
#pragma unroll
            for (int c = 0; c < W; ++c) {
                const i32 c0 = column + 64 * c;
                for (i32 e = threadIdx.x; e < 64 * DEEP; e += 256) {
                    const i32 n = e % 64, r = e / 64;
                    const bool there = start + k0 + r < walk.w.rows && c0 + n < walk.w.width;
                    ((C*)bs[r])[n] =
                        there ? (C)load(walk.w.p[(i64)(start + k0 + r) * walk.w.step + c0 + n])
                              : (C)0;
                }
                __syncthreads();
#pragma unroll 4
                for (i32 r = 0; r < DEEP; ++r) {
                    const Vec<C, 4> p = ps[k0 + r][tr], b = bs[r][tc];
#pragma unroll
                    for (int i = 0; i < 4; ++i)
#pragma unroll
                        for (int j = 0; j < 4; ++j)
                            acc[i][4 * c + j] = fma(p.v[i], b.v[j], acc[i][4 * c + j]);
                }
                __syncthreads();
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if (own + i >= walk.x.rows) continue;
        const i64 row = walk.batch * walk.x.rows + own + i;
        if (ROLE == STATS) {
            if (tc == 0) sofar[i].put((C*)out + 2 * row);
            continue;
        }
        if (ROLE == SPANS) {
            C* to = span_of((C*)out, row, walk.w.width);
            if (tc == 0 && blockIdx.y == 0) sofar[i].put_span(to);
#pragma unroll
            for (int j = 0; j < 4 * W; ++j) {
                const i32 c = column + j / 4 * 64 + 4 * tc + j % 4;
                if (c < walk.w.width) to[2 + c] = acc[i][j];
            }
            continue;
        }
        const C by = ROLE == TO_VALUE ? (C)1 : (C)a.scale;
#pragma unroll
        for (int j = 0; j < 4 * W; ++j) {
            const i32 c = column + j / 4 * 64 + 4 * tc + j % 4;
            C x = acc[i][j] * by;
            if (ROLE == OUTPUT) x = sofar[i].sum == (C)0 ? (C)0 : acc[i][j] / sofar[i].sum;
            if (c < walk.w.width) ((T*)out)[row * walk.w.width + c] = As<T>::of(x);
        }
    }
}

// ---- halves up to 128 wide: tensor cores, four warps, each with 16 own rows M times
// ----------------------

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
// s[M * 16, N] = own rows times those in shared memory.
template <int M, int N, int D, class T>
FN void rows_product(float (&s)[M][N / 8][4], const u32 (&own)[M][D / 16][4],
                     const Vec<T, 8> (*rows)[D / 8 + 1]) {
    const i32 lane = threadIdx.x % 32, row = lane % 8 + lane / 16 * 8, half = lane / 8 % 2;
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
            fragments<false>(b, &rows[8 * n + row][2 * k + half]);
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
// its three, two are the same.
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
                        const i32 query =
                            walk.query(own + 16 * m + e / 2 * 8, start + 8 * n + 2 * t + e % 2);
                        Vec<float, 2> of = {0.0f, 0.0f};
                        if (query < a.rows) of = ((const Vec<float, 2>*)stats)[query];
                        s[m][n][e] = B::power(s[m][n][e] - of.v[0] * B::factor());
                        if (TWO) s[m][n][e] = s[m][n][e] * (d[m][n][e] - of.v[1]);
                    }
            }
        }
        if (ROLE == STATS) continue;
        weigh_rows<M, N, D>(acc, s, ROLE == TO_QUERY || ROLE == TO_KEY ? rs : us);
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
            float by = ROLE == TO_VALUE ? 1.0f : (float)a.scale;
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
