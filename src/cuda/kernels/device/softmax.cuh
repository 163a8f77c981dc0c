// Rows that are read once, held in registers, and written: softmax, its logarithms, and the norms.
//
// X threads (a warp or a block) take a row; each holds K packs of V neighbouring elements. K = 0 is for
// rows that do not fit: they are read again for every pass.

namespace ft {

// What a row is: element j at p[j * step], of n.
template <class T> struct Row {
    const T* p;
    i64 step, n;
};

template <class T, int X, int K, int V> struct Held {
    typedef typename Stored<T>::C C;
    C x[K > 0 ? K * V : 1];
    Row<T> row;

    FN_MEMBER i64 place(int k) const { return ((i64)k * X + threadIdx.x) * V; }
    FN_MEMBER void read() {
#pragma unroll
        for (int k = 0; k < K; ++k) {
            i64 j = place(k);
            if (V > 1) {
                if (j < row.n) {
                    Vec<T, V> pack = load_full<V>(row.p, j);
#pragma unroll
                    for (int v = 0; v < V; ++v) x[k * V + v] = load(pack.v[v]);
                }
            } else if (j < row.n) {
                x[k] = load(row.p[j * row.step]);
            }
        }
    }
    // Calls f(element, its place) for every element of this thread.
    template <class F> FN_MEMBER void each(const F& f) const {
        if (K > 0) {
#pragma unroll
            for (int k = 0; k < K; ++k) {
                i64 j = place(k);
                if (j < row.n) {
#pragma unroll
                    for (int v = 0; v < V; ++v) f(x[k * V + v], j + v);
                }
            }
        } else {
            for (i64 j = threadIdx.x; j < row.n; j += X) f(load(row.p[j * row.step]), j);
        }
    }
    // Writes f(element, its place) to q[j * step].
    template <class F> FN_MEMBER void write(T* q, i64 step, const F& f) const {
        if (K > 0 && V > 1) {
#pragma unroll
            for (int k = 0; k < K; ++k) {
                i64 j = place(k);
                if (j < row.n) {
                    Vec<T, V> pack;
#pragma unroll
                    for (int v = 0; v < V; ++v) pack.v[v] = As<T>::of(f(x[k * V + v], j + v));
                    *(Vec<T, V>*)(q + j) = pack;
                }
            }
        } else {
            each([&](C e, i64 j) { q[j * step] = As<T>::of(f(e, j)); });
        }
    }
};

template <class C> struct Largest {
    typedef C A;
    static FN_MEMBER A join(A a, A b) { return maximum(a, b); }
};

// ---- softmax, log_softmax, logsumexp -------------------------------------------------------

enum { SOFTMAX, LOG_SOFTMAX, LOGSUMEXP };

// The last step of each, from the row's maximum and the sum of e^(x - maximum).
template <int kind, class C> FN C soften(C x, C most, C sum, C log_sum) {
    return kind == SOFTMAX ? exp(x - most) / sum : (x - most) - log_sum;
}
// Of a row whose maximum is infinite, that is the logarithm too.
template <class C> FN C log_total(C most, C log_sum) { return is_inf(most) ? most : most + log_sum; }

template <int kind, class T, int X, int K, int V> FN void softmax_row(Row<T> row, T* out, i64 step, bool alive) {
    typedef typename Stored<T>::C C;
    Held<T, X, K, V> held;
    held.row = row;
    if (!alive) held.row.n = 0;
    held.read();
    C most = -inf(C()), sum = 0;
    held.each([&](C x, i64) { most = maximum(most, x); });
    most = join_all<Largest<C>, X>(most);
    held.each([&](C x, i64) { sum = sum + exp(x - most); });
    sum = join_all<Sum<C>, X>(sum);
    C log_sum = kind == SOFTMAX ? (C)0 : log(sum);
    if (kind == LOGSUMEXP) {
        if (alive && threadIdx.x == 0) out[0] = As<T>::of(log_total(most, log_sum));
    } else {
        held.write(out, step, [&](C x, i64) { return soften<kind>(x, most, sum, log_sum); });
    }
}

// A thread a row, for rows that lie side by side (a dimension other than the last): three reads.
template <int kind, class T> FN void softmax_column(Row<T> row, T* out, i64 step) {
    typedef typename Stored<T>::C C;
    C most = -inf(C()), sum = 0;
    for (i64 j = 0; j < row.n; ++j) most = maximum(most, (C)load(row.p[j * row.step]));
    for (i64 j = 0; j < row.n; ++j) sum = sum + exp(load(row.p[j * row.step]) - most);
    C log_sum = kind == SOFTMAX ? (C)0 : log(sum);
    if (kind == LOGSUMEXP) {
        out[0] = As<T>::of(log_total(most, log_sum));
    } else {
        for (i64 j = 0; j < row.n; ++j)
            out[j * step] = As<T>::of(soften<kind>((C)load(row.p[j * row.step]), most, sum, log_sum));
    }
}

// ---- norms ---------------------------------------------------------------------------------

// (x - mean) / sqrt(variance + eps) * weight + bias; rms takes no mean. Null for no weight or bias.
template <bool rms, class T, int X, int K, int V>
FN void norm_row(Row<T> row, const T* weight, const T* bias, T* out, typename Stored<T>::C eps, bool alive) {
    typedef typename Stored<T>::C C;
    Held<T, X, K, V> held;
    held.row = row;
    C n = (C)row.n;
    if (!alive) held.row.n = 0;
    held.read();
    C mean = 0, square = 0;
    if (!rms) {
        held.each([&](C x, i64) { mean = mean + x; });
        mean = join_all<Sum<C>, X>(mean) / n;
    }
    held.each([&](C x, i64) { square = square + (x - mean) * (x - mean); });
    square = join_all<Sum<C>, X>(square) / n;
    C scale = (C)1 / sqrt(square + eps);
    held.write(out, 1, [&](C x, i64 j) {
        C y = (x - mean) * scale;
        if (weight) y = y * load(weight[j]);
        if (bias) y = y + load(bias[j]);
        return y;
    });
}

}  // namespace ft
