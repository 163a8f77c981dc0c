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
//     TO_KEYS     k   v   q  up       the same of w = r for keys, and the sum of p u for values
//                                     (`attention_keys.cuh`)
//
// Each sum has one order, by sizes alone. A query that sees nothing has L = 0 and scores of minus
// infinity.

namespace ft {

enum { OUTPUT, SPANS, STATS, TO_QUERY, TO_KEYS };

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
    static const bool TWO = ROLE >= STATS;
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
        w = ROLE <= SPANS ? vs : ks;
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

// ---- any type, any width: tiles of 64 x 64, 4 x 4 a thread ----

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

// acc[4][4 * W] += the transposed 64 x 64 of s, by way of `ps`, times rows of w and W times 64
// columns from `column` on.
template <int W, class C, class T>
FN void weigh_tile(C (&acc)[4][4 * W], const C (&s)[4][4], const Sheet<T>& w, i32 w0, i32 column,
                   Vec<C, 4> (*bs)[17], Vec<C, 4> (*ps)[17]) {
    const i32 DEEP = Tiles<C>::DEEP, tr = threadIdx.x / 16, tc = threadIdx.x % 16;
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
                const bool there = w0 + k0 + r < w.rows && c0 + n < w.width;
                ((C*)bs[r])[n] =
                    there ? (C)load(w.p[(i64)(w0 + k0 + r) * w.step + c0 + n]) : (C)0;
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
                    const i32 query = own + i;
                    const bool there = query < a.rows;
                    s[i][j] = exp(s[i][j] - (there ? stats[2 * query] : (C)0)) *
                              (d[i][j] - (there ? stats[2 * query + 1] : (C)0));
                }
            }
        }
        if (ROLE == STATS) continue;
        weigh_tile<W>(acc, s, walk.w, start, column, tiles.b, ps);
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
#pragma unroll
        for (int j = 0; j < 4 * W; ++j) {
            const i32 c = column + j / 4 * 64 + 4 * tc + j % 4;
            C x = acc[i][j] * (C)a.scale;
            if (ROLE == OUTPUT) x = sofar[i].sum == (C)0 ? (C)0 : acc[i][j] / sofar[i].sum;
            if (c < walk.w.width) ((T*)out)[row * walk.w.width + c] = As<T>::of(x);
        }
    }
}

}  // namespace ft
