// Attention over keys and values in pages. A block takes one query of one head over one span of its
// keys, by position; spans meet in their order. So a result depends on its own query and keys
// alone.

namespace ft {

// Strides: queries over batch, query and head; keys and values over page, place and head; the table
// over batch and page; lengths over batch.
struct Paged {
    i64 queries, heads, group, page, pages, most, width, wide, spans;
    i64 q[3], q_step, k[3], k_step, v[3], v_step, table[2], lengths;
    i64 causal;
    double scale;
};

enum { SPAN = 512, SPAN_THREADS = 128 };

template <class C> struct LargestScore {
    typedef C A;
    static FN_MEMBER A join(A a, A b) { return maximum(a, b); }
};
template <class C> struct SumOfPowers {
    typedef C A;
    static FN_MEMBER A join(A a, A b) { return a + b; }
};

// Of each span the largest score, the sum of powers, and the sum of values.
template <class T, class K, class J, class L>
FN void attend_span(const T* q, const K* k, const K* v, const J* table, const L* lengths,
                    typename Stored<T>::C* parts, IndexError* error, const Paged& a) {
    typedef typename Stored<T>::C C;
    __shared__ C powers[SPAN];
    const i64 unit = blockIdx.x, span = blockIdx.y;
    const i64 head = unit % a.heads, query = unit / a.heads % a.queries,
              b = unit / a.heads / a.queries;
    C* to = parts + (unit * a.spans + span) * (a.wide + 2);
    i64 length = (i64)lengths[b * a.lengths];
    const i64 room = a.most * a.page;
    if ((u64)length > (u64)room) {
        if (threadIdx.x == 0 && span == 0) report(error, (u64)b, length, (u64)room + 1);
        length = 0;
    }
    const i64 limit = a.causal ? length - a.queries + query + 1 : length, first = span * SPAN;
    if (first >= limit) {
        if (threadIdx.x == 0) {
            to[0] = -inf(C());
            to[1] = 0;
        }
        return;
    }
    const i64 n = limit - first < SPAN ? limit - first : SPAN;
    const i64 row = b * a.q[0] + query * a.q[1] + head * a.q[2], shared = head / a.group;
    // The place of a key, below 0 where its page is not there.
    auto place = [&](i64 key, const i64 (&steps)[3]) -> i64 {
        const i64 page = (i64)table[b * a.table[0] + key / a.page * a.table[1]];
        if ((u64)page >= (u64)a.pages) {
            report(error, (u64)(b * a.most + key / a.page), page, (u64)a.pages);
            return -1;
        }
        return page * steps[0] + key % a.page * steps[1] + shared * steps[2];
    };
    C most = -inf(C());
    for (i64 j = threadIdx.x; j < n; j += SPAN_THREADS) {
        const i64 at = place(first + j, a.k);
        C score = 0;
        if (at >= 0)
            for (i64 c = 0; c < a.width; ++c)
                score = score + load(q[row + c * a.q_step]) * load(k[at + c * a.k_step]);
        powers[j] = score = score * (C)a.scale;
        most = maximum(most, score);
    }
    most = join_all<LargestScore<C>, SPAN_THREADS>(most);
    C total = 0;
    for (i64 j = threadIdx.x; j < n; j += SPAN_THREADS) {
        powers[j] = most == -inf(C()) ? (C)0 : exp(powers[j] - most);
        total = total + powers[j];
    }
    total = join_all<SumOfPowers<C>, SPAN_THREADS>(total);
    if (threadIdx.x == 0) {
        to[0] = most;
        to[1] = total;
    }
    for (i64 c = threadIdx.x; c < a.wide; c += SPAN_THREADS) {
        C found = 0;
        for (i64 j = 0; j < n; ++j) {
            const i64 at = place(first + j, a.v);
            if (at >= 0) found = found + powers[j] * load(v[at + c * a.v_step]);
        }
        to[2 + c] = found;
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
