// Attention of few queries: a block takes one query of one head over one span of its keys.
// Neighbouring threads share a row, sixteen bytes each, so that keys and values are read once, line
// by line, and four rows a thread are on their way at a time. The span alone orders its sums.

namespace ft {

enum { FEW_THREADS = 128, FEW_AT_ONCE = 4 };

// How L neighbouring threads share rows of T.
template <class T, int L> struct Few {
    enum {
        V = 16 / sizeof(T),
        TEAMS = FEW_THREADS / L,
        WARPS = FEW_THREADS / 32,
    };
};

// Sixteen bytes of a row, zeros where there is none.
template <bool WHOLE, int V, class T>
FN Vec<T, V> sixteen(const Sheet<T>& x, i32 row, i32 column) {
    Vec<T, V> r = {};
    const T* p = x.p + (i64)row * x.step + column;
    if (WHOLE) {
        if (row < x.rows && column < x.width) r = *(const Vec<T, V>*)p;
    } else {
#pragma unroll
        for (int i = 0; i < V; ++i)
            if (row < x.rows && column + i < x.width) r.v[i] = p[i];
    }
    return r;
}

// `use(j, row)` for the rows of a span that this thread's team takes, j from the span's first one.
template <bool WHOLE, int L, class T, class Use>
FN void for_rows(const Sheet<T>& x, i32 begin, const Use& use) {
    typedef Few<T, L> F;
    const i32 team = threadIdx.x / L, column = threadIdx.x % L * F::V;
#pragma unroll 1
    for (i32 j = team; j < KEYS_OF_A_SPAN; j += FEW_AT_ONCE * F::TEAMS) {
        Vec<T, F::V> rows[FEW_AT_ONCE];
#pragma unroll
        for (int i = 0; i < FEW_AT_ONCE; ++i)
            rows[i] = sixteen<WHOLE, F::V>(x, begin + j + i * F::TEAMS, column);
#pragma unroll
        for (int i = 0; i < FEW_AT_ONCE; ++i) use(j + i * F::TEAMS, rows[i]);
    }
}

template <bool WHOLE, class T, class M, bool MASKED, int L>
FN void few(const Walk<SPANS, T>& walk, const M* mask, typename Stored<T>::C* to,
                   const Attended& a) {
    typedef typename Stored<T>::C C;
    typedef Few<T, L> F;
    const int V = F::V;
    __shared__ C powers[KEYS_OF_A_SPAN], part[F::WARPS], sums[F::WARPS][L * V];
    const i32 lane = threadIdx.x % L, column = lane * V, warp = threadIdx.x / 32;
    const Vec<T, V> query = sixteen<WHOLE, V>(walk.x, walk.first, column);
    C x[V], most = -inf(C());
#pragma unroll
    for (int i = 0; i < V; ++i) x[i] = load(query.v[i]);
    for_rows<WHOLE, L>(walk.r, walk.begin, [&](i32 j, const Vec<T, V>& key) {
        C dot = 0;
#pragma unroll
        for (int i = 0; i < V; ++i) dot = fma(x[i], load(key.v[i]), dot);
        const C s = score<SPANS, MASKED>(sum_of(dot, L), walk, false, walk.first, walk.begin + j,
                                         mask, a);
        if (lane == 0) powers[j] = s;
        most = maximum(most, s);
    });
    most = largest_of(most, 32);
    if (threadIdx.x % 32 == 0) part[warp] = most;
    __syncthreads();
    for (int w = 0; w < F::WARPS; ++w) most = maximum(most, part[w]);
    C total = 0;
    for (i32 j = threadIdx.x; j < KEYS_OF_A_SPAN; j += FEW_THREADS) {
        powers[j] = power(powers[j], most);
        total = total + powers[j];
    }
    total = sum_of(total, 32);
    __syncthreads();  // the largest was read, and all powers are there
    if (threadIdx.x % 32 == 0) part[warp] = total;
    C acc[V];
#pragma unroll
    for (int i = 0; i < V; ++i) acc[i] = 0;
    for_rows<WHOLE, L>(walk.w, walk.begin, [&](i32 j, const Vec<T, V>& value) {
#pragma unroll
        for (int i = 0; i < V; ++i) acc[i] = fma(powers[j], load(value.v[i]), acc[i]);
    });
#pragma unroll
    for (int i = 0; i < V; ++i) {
#pragma unroll
        for (int d = L; d < 32; d *= 2) acc[i] = acc[i] + __shfl_xor_sync(0xffffffffu, acc[i], d);
        if (threadIdx.x % 32 < L) sums[warp][column + i] = acc[i];
    }
    __syncthreads();
    for (i32 c = threadIdx.x; c < walk.w.width; c += FEW_THREADS) {
        C sum = 0;
        for (int w = 0; w < F::WARPS; ++w) sum = sum + sums[w][c];
        to[2 + c] = sum;
    }
    if (threadIdx.x == 0) {
        total = 0;
        for (int w = 0; w < F::WARPS; ++w) total = total + part[w];
        to[0] = most;
        to[1] = total;
    }
}

// As `attend` and `attend_tensor` for SPANS. L threads, 4 to 32, hold a row of keys, and of values.
template <class T, class M, bool MASKED, int L>
FN void attend_few(const T* q, const T* k, const T* v, const M* mask, const i64* lengths,
                   typename Stored<T>::C* out, const Attended& a, const Geo64<6>& batches) {
    typedef typename Stored<T>::C C;
    const Walk<SPANS, T> walk(q, k, v, (const T*)0, lengths, a, batches, 1);
    C* to = span_of(out, walk.batch * walk.x.rows + walk.first, walk.w.width);
    if (walk.begin >= walk.end) {  // nobody looks at the rest
        if (threadIdx.x == 0) {
            to[0] = -inf(C());
            to[1] = 0;
        }
    } else if (a.whole) {
        few<true, T, M, MASKED, L>(walk, mask, to, a);
    } else {
        few<false, T, M, MASKED, L>(walk, mask, to, a);
    }
}

}  // namespace ft
