// Attention over keys and values in pages. A block takes one query of a few heads that share their
// keys over one span of these, by position; spans meet in their order. So a result depends on its
// own query and keys alone.

namespace ft {

// Strides: queries over batch, query and head; keys and values over page, place and head; the table
// over batch and page; lengths over batch.
struct Paged {
    i64 queries, heads, group, page, pages, most, width, wide, spans;
    i64 q[3], q_step, k[3], k_step, v[3], v_step, table[2], lengths;
    i64 causal, window;
    double scale, cap;
};

enum { SPAN = 512, SPAN_THREADS = 128, COLUMNS_MAX = 512 };

// Of a key whose page is not there.
FN i64 nowhere() { return (i64)(1ull << 63); }

// True where rows at these steps can be read 16 bytes at a time.
template <class K> FN bool by_sixteen(const K* x, const i64 (&steps)[3], i64 step, i64 columns) {
    const i64 v = 16 / sizeof(K);
    const bool even = ((steps[0] | steps[1] | steps[2] | columns) & (v - 1)) == 0;
    return step == 1 && even && ((u64)x & 15) == 0;
}

template <class C> struct LargestScore {
    typedef C A;
    static FN_MEMBER A join(A a, A b) { return maximum(a, b); }
};
template <class C> struct SumOfPowers {
    typedef C A;
    static FN_MEMBER A join(A a, A b) { return a + b; }
};

// Of each span the largest score, the sum of powers, and the sum of values, for H heads or fewer
// that share their keys: each is read once for all. The places of keys and values are found once.
// Eight threads read a key, four keys at a time; a thread reads 16 bytes of every n-th value. The
// order of the sums depends on the width and the type alone. Scores are capped by a tanh, or not. A
// query sees the last keys alone, as many as its window has.
template <int H, bool CAPPED, class T, class K, class J, class L>
FN void attend_span(const T* q, const K* k, const K* v, const J* table, const L* lengths,
                    typename Stored<T>::C* parts, IndexError* error, const Paged& a) {
    typedef typename Stored<T>::C C;
    enum { V = 16 / sizeof(K), TEAM = 8, TEAMS = SPAN_THREADS / TEAM, AT_ONCE = 4 };
    __shared__ i64 keys[SPAN], values[SPAN];
    __shared__ C powers[H][SPAN], queries[H][COLUMNS_MAX], sums[SPAN_THREADS * V];
    // There are fewer than 2^31 units, and a span ends before 2^25: a grid has no more.
    const u32 group = (u32)a.group, some = (group + H - 1) / H,
              sharing = blockIdx.x / some % ((u32)a.heads / group),
              rest = blockIdx.x / some / ((u32)a.heads / group), query = rest % (u32)a.queries,
              from = blockIdx.x % some * H, head = sharing * group + from;
    const int heads = group - from < H ? group - from : H;
    const i64 b = rest / (u32)a.queries, step = a.spans * (a.wide + 2);
    C* to = parts + ((i64)(rest * (u32)a.heads + head) * a.spans + blockIdx.y) * (a.wide + 2);
    i64 length = (i64)lengths[b * a.lengths];
    const i64 room = a.most * a.page;
    if ((u64)length > (u64)room) {
        if (threadIdx.x == 0 && blockIdx.y == 0) report(error, (u64)b, length, (u64)room + 1);
        length = 0;
    }
    const i64 limit = a.causal ? length - a.queries + query + 1 : length;
    const i64 least = limit > a.window ? limit - a.window : 0, span = (i64)blockIdx.y * SPAN,
              from_key = span < least ? least : span,
              to_key = limit - span < SPAN ? limit : span + SPAN;
    const u32 first = (u32)from_key;
    if (from_key >= to_key) {
        if (threadIdx.x < heads) {
            to[threadIdx.x * step] = -inf(C());
            to[threadIdx.x * step + 1] = 0;
        }
        return;
    }
    const u32 n = (u32)(to_key - from_key);
    const i64 row = b * a.q[0] + query * a.q[1] + head * a.q[2];
    const u32 page_size = a.page < (1 << 30) ? (u32)a.page : 1u << 30;
    for (u32 j = threadIdx.x; j < n; j += SPAN_THREADS) {
        const u32 at = (first + j) / page_size, in = first + j - at * page_size;
        const i64 page = (i64)table[b * a.table[0] + at * a.table[1]];
        const bool there = (u64)page < (u64)a.pages;
        if (!there) report(error, (u64)(b * a.most + at), page, (u64)a.pages);
        keys[j] = there ? page * a.k[0] + in * a.k[1] + sharing * a.k[2] : nowhere();
        values[j] = there ? page * a.v[0] + in * a.v[1] + sharing * a.v[2] : nowhere();
    }
    for (u32 c = threadIdx.x; c < a.width && c < COLUMNS_MAX; c += SPAN_THREADS)
#pragma unroll
        for (int h = 0; h < H; ++h)
            queries[h][c] = h < heads ? load(q[row + h * a.q[2] + c * a.q_step]) : (C)0;
    __syncthreads();
    C most[H];
#pragma unroll
    for (int h = 0; h < H; ++h) most[h] = -inf(C());
    if (a.width <= COLUMNS_MAX && by_sixteen(k, a.k, a.k_step, a.width)) {
        const u32 lane = threadIdx.x % TEAM, team = threadIdx.x / TEAM, width = (u32)a.width;
        for (u32 j0 = 0; j0 < n; j0 += TEAMS * AT_ONCE) {
            const K* key[AT_ONCE];
            C score[AT_ONCE][H];
#pragma unroll
            for (int u = 0; u < AT_ONCE; ++u) {
                const u32 j = j0 + u * TEAMS + team;
                const i64 at = j < n ? keys[j] : nowhere();
                key[u] = at == nowhere() ? 0 : k + at;
#pragma unroll
                for (int h = 0; h < H; ++h) score[u][h] = 0;
            }
            for (u32 c = lane * V; c < width; c += TEAM * V) {
                Vec<K, V> part[AT_ONCE] = {};
#pragma unroll
                for (int u = 0; u < AT_ONCE; ++u)
                    if (key[u]) part[u] = load_full<V>(key[u], c);
#pragma unroll
                for (int i = 0; i < V; ++i)
#pragma unroll
                    for (int h = 0; h < H; ++h) {
                        const C by = queries[h][c + i];
#pragma unroll
                        for (int u = 0; u < AT_ONCE; ++u)
                            score[u][h] = fma(by, load(part[u].v[i]), score[u][h]);
                    }
            }
#pragma unroll
            for (int u = 0; u < AT_ONCE; ++u) {
                const u32 j = j0 + u * TEAMS + team;
#pragma unroll
                for (int h = 0; h < H; ++h) {
                    C whole = score[u][h];
#pragma unroll
                    for (int d = 1; d < TEAM; d *= 2) whole = whole + lane_xor(whole, d);
                    if (j >= n) continue;
                    whole = whole * (C)a.scale;
                    if (CAPPED) whole = (C)a.cap * tanh(whole / (C)a.cap);
                    if (lane == 0) powers[h][j] = whole;
                    most[h] = maximum(most[h], whole);
                }
            }
        }
    } else {
        for (u32 j = threadIdx.x; j < n; j += SPAN_THREADS)
            for (int h = 0; h < heads; ++h) {
                const i64 at = keys[j], own = row + h * a.q[2];
                C score = 0;
                if (at != nowhere())
                    for (i64 c = 0; c < a.width; ++c)
                        score = score + load(q[own + c * a.q_step]) * load(k[at + c * a.k_step]);
                score = score * (C)a.scale;
                if (CAPPED) score = (C)a.cap * tanh(score / (C)a.cap);
                powers[h][j] = score;
#pragma unroll
                for (int other = 0; other < H; ++other)
                    if (other == h) most[other] = maximum(most[other], score);
            }
    }
#pragma unroll
    for (int h = 0; h < H; ++h) {
        if (h >= heads) break;
        const C largest = join_all<LargestScore<C>, SPAN_THREADS>(most[h]);
        C total = 0;
        for (u32 j = threadIdx.x; j < n; j += SPAN_THREADS) {
            powers[h][j] = largest == -inf(C()) ? (C)0 : exp(powers[h][j] - largest);
            total = total + powers[h][j];
        }
        total = join_all<SumOfPowers<C>, SPAN_THREADS>(total);
        if (threadIdx.x == 0) {
            to[h * step] = largest;
            to[h * step + 1] = total;
        }
    }
    __syncthreads();
    if (!by_sixteen(v, a.v, a.v_step, a.wide)) {
        for (i64 c = threadIdx.x; c < a.wide; c += SPAN_THREADS)
            for (int h = 0; h < heads; ++h) {
                C found = 0;
                for (u32 j = 0; j < n; ++j) {
                    const i64 at = values[j];
                    if (at != nowhere()) found = found + powers[h][j] * load(v[at + c * a.v_step]);
                }
                to[h * step + 2 + c] = found;
            }
        return;
    }
    const u32 packs = (u32)a.wide / V;
    for (u32 c0 = 0; c0 < packs; c0 += SPAN_THREADS) {
        const u32 here = packs - c0 < SPAN_THREADS ? packs - c0 : SPAN_THREADS,
                  groups = SPAN_THREADS / here, c = threadIdx.x % here,
                  mine = threadIdx.x / here;
        C found[H][V] = {};
        if (mine < groups) {
#pragma unroll 4
            for (u32 j = mine; j < n; j += groups) {
                const i64 at = values[j];
                if (at == nowhere()) continue;
                const Vec<K, V> part = load_full<V>(v + at, (c0 + c) * V);
#pragma unroll
                for (int i = 0; i < V; ++i)
#pragma unroll
                    for (int h = 0; h < H; ++h)
                        found[h][i] = fma(powers[h][j], load(part.v[i]), found[h][i]);
            }
        }
#pragma unroll
        for (int h = 0; h < H; ++h) {
            if (h >= heads) break;
            __syncthreads();  // earlier sums are read
#pragma unroll
            for (int i = 0; i < V; ++i) sums[threadIdx.x * V + i] = found[h][i];
            __syncthreads();
            for (u32 i = threadIdx.x; i < here * V; i += SPAN_THREADS) {
                C all = 0;
                for (u32 g = 0; g < groups; ++g) all = all + sums[g * here * V + i];
                to[h * step + 2 + c0 * V + i] = all;
            }
        }
    }
}

// A thread for each element of the result.
template <class T>
FN void meet_spans(const typename Stored<T>::C* parts, T* out, i64 n, i64 spans, i64 wide) {
    typedef typename Stored<T>::C C;
    const i64 i = (i64)blockIdx.x * 256 + threadIdx.x, step = wide + 2;
    if (i >= n) return;
    const C* from = parts + i / wide * spans * step;
    C most = -inf(C()), total = 0, sum = 0;
    for (i64 s = 0; s < spans; ++s) most = maximum(most, from[s * step]);
    for (i64 s = 0; s < spans; ++s) {
        const C* part = from + s * step;
        if (part[0] == -inf(C())) continue;
        const C by = part[0] == most ? (C)1 : exp(part[0] - most);
        total = total + part[1] * by;
        sum = sum + part[2 + i % wide] * by;
    }
    out[i] = As<T>::of(total == 0 ? (C)0 : sum / total);
}

}  // namespace ft
