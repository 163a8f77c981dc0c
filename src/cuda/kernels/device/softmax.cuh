// Rows that are read once, held in registers, and written: softmax, its logarithms, and the norms.
//
// X threads (a warp or a block) take a row; each holds K packs of V neighbouring elements. K = 0 is
// for rows that do not fit: they are read once for their statistics, and once more to be written.

namespace ft {

// A row: element j at p[j * step], of n.
template <class T> struct Row {
    const T* p;
    i64 step, n;
};

// Places in a row: one that is held is short.
template <int K> struct Places { typedef i32 I; };
template <> struct Places<0> { typedef i64 I; };

template <class T, int X, int K, int V> struct Held {
    typedef typename Stored<T>::C C;
    typedef typename Places<K>::I I;
    C x[K > 0 ? K : 1][V];
    const T* p;
    i64 step;
    I n;

    FN_MEMBER Held(const Row<T>& row, bool alive) {
        p = row.p;
        step = row.step;
        n = alive ? (I)row.n : 0;
#pragma unroll
        for (int k = 0; k < K; ++k)
            if (place(k) < n) read(x[k], place(k));
    }
    FN_MEMBER I place(int k) const { return ((I)k * X + (I)threadIdx.x) * V; }
    FN_MEMBER void read(C (&to)[V], I j) const {
        if (V > 1) {
            const Vec<T, V> pack = load_full<V>(p, j);
#pragma unroll
            for (int v = 0; v < V; ++v) to[v] = load(pack.v[v]);
        } else {
            to[0] = load(p[j * step]);
        }
    }
    // Calls f(pack, the place of its first element) for every pack of this thread.
    template <class F> FN_MEMBER void packs(const F& f) const {
        if (K > 0) {
#pragma unroll
            for (int k = 0; k < K; ++k)
                if (place(k) < n) f(x[k], place(k));
        } else {
            for (I j = place(0); j < n; j += X * V) {
                C pack[V];
                read(pack, j);
                f(pack, j);
            }
        }
    }
    // Calls f(element) for every element of this thread.
    template <class F> FN_MEMBER void each(const F& f) const {
        packs([&](const C (&pack)[V], I) {
#pragma unroll
            for (int v = 0; v < V; ++v) f(pack[v]);
        });
    }
    // Writes the result of f(pack, place, result) for each pack to q[j * step].
    template <class F> FN_MEMBER void write(T* q, i64 step, const F& f) const {
        packs([&](const C (&pack)[V], I j) {
            C made[V];
            f(pack, j, made);
            if (V > 1) {
                Vec<T, V> out;
#pragma unroll
                for (int v = 0; v < V; ++v) out.v[v] = As<T>::of(made[v]);
                *(Vec<T, V>*)(q + j) = out;
            } else {
                q[j * step] = As<T>::of(made[0]);
            }
        });
    }
};

template <class C> struct Largest {
    typedef C A;
    static FN_MEMBER A join(A a, A b) { return maximum(a, b); }
};

// ---- softmax, log_softmax, logsumexp -------------------------------------------------------

enum { SOFTMAX, SAFE_SOFTMAX, LOG_SOFTMAX, LOGSUMEXP };

// The last step of each, from the row's maximum and the sum of e^(x - maximum).
template <int kind, class C> FN C soften(C x, C most, C sum, C log_sum) {
    if (kind > SAFE_SOFTMAX) return (x - most) - log_sum;
    return kind == SAFE_SOFTMAX && most == -inf(C()) ? (C)0 : exp(x - most) / sum;
}
// Of a row whose maximum is infinite, that is the logarithm too.
template <class C> FN C log_total(C most, C log_sum) {
    return is_inf(most) ? most : most + log_sum;
}

template <int kind, class T, int X, int K, int V>
FN void softmax_row(const Row<T>& row, T* out, i64 step, bool alive) {
    typedef typename Stored<T>::C C;
    const Held<T, X, K, V> held(row, alive);
    C most = -inf(C()), sum = 0;
    if (K > 0) {
        held.each([&](C x) { most = maximum(most, x); });
        most = join_all<Largest<C>, X>(most);
        held.each([&](C x) { sum = sum + exp(x - most); });
    } else {
        // The sum is over the largest so far, and corrected where that rises.
        held.packs([&](const C (&pack)[V], i64) {
            const C before = most;
#pragma unroll
            for (int v = 0; v < V; ++v) most = maximum(most, pack[v]);
            if (most == -inf(C())) return;
            if (most != before) sum = sum * exp(before - most);
#pragma unroll
            for (int v = 0; v < V; ++v) sum = sum + exp(pack[v] - most);
        });
        const C own = most;
        most = join_all<Largest<C>, X>(own);
        if (own != most) sum = sum * exp(own - most);
    }
    sum = join_all<Sum<C>, X>(sum);
    C log_sum = kind > SAFE_SOFTMAX ? log(sum) : (C)0;
    if (kind == LOGSUMEXP) {
        if (alive && threadIdx.x == 0) out[0] = As<T>::of(log_total(most, log_sum));
    } else {
        held.write(out, step, [&](const C (&pack)[V], i64, C (&made)[V]) {
#pragma unroll
            for (int v = 0; v < V; ++v) made[v] = soften<kind>(pack[v], most, sum, log_sum);
        });
    }
}

// Rows that lie side by side (a dimension other than the last): X of them a block, Y threads each,
// every Yth element a thread's, in fours. Read once for their statistics, once more to be written.
template <int kind, class T, int X, int Y>
FN void softmax_column(const Row<T>& row, T* out, i64 step, bool alive) {
    typedef typename Stored<T>::C C;
    const i64 n = alive ? row.n : 0, first = Y > 1 ? (i64)threadIdx.y : 0;
    C most = -inf(C()), sum = 0;
    for (i64 j = first; j < n; j += 4 * Y) {
        C x[4];
#pragma unroll
        for (int u = 0; u < 4; ++u)
            x[u] = j + u * Y < n ? (C)load(row.p[(j + u * Y) * row.step]) : -inf(C());
        const C before = most;
#pragma unroll
        for (int u = 0; u < 4; ++u) most = maximum(most, x[u]);
        if (most == -inf(C())) continue;
        if (most != before) sum = sum * exp(before - most);
#pragma unroll
        for (int u = 0; u < 4; ++u) sum = sum + exp(x[u] - most);
    }
    if (Y > 1) {
        __shared__ C mosts[Y][X], sums[Y][X];
        mosts[threadIdx.y][threadIdx.x] = most;
        sums[threadIdx.y][threadIdx.x] = sum;
        __syncthreads();
        for (int y = 0; y < Y; ++y) most = maximum(most, mosts[y][threadIdx.x]);
        sum = 0;
        for (int y = 0; y < Y; ++y) {
            const C own = mosts[y][threadIdx.x];
            if (own == -inf(C())) continue;
            sum =
                sum + (own == most ? sums[y][threadIdx.x] : sums[y][threadIdx.x] * exp(own - most));
        }
    }
    C log_sum = kind > SAFE_SOFTMAX ? log(sum) : (C)0;
    if (kind == LOGSUMEXP) {
        if (alive && first == 0) out[0] = As<T>::of(log_total(most, log_sum));
    } else {
#pragma unroll 4
        for (i64 j = first; j < n; j += Y)
            out[j * step] =
                As<T>::of(soften<kind>((C)load(row.p[j * row.step]), most, sum, log_sum));
    }
}

// ---- norms ---------------------------------------------------------------------------------

// The mean of a row, and that of its squared distances from it; rms takes no mean.
template <bool rms, class T, int X, int K, int V>
FN void moments(const Held<T, X, K, V>& held, typename Stored<T>::C n, typename Stored<T>::C& mean,
                typename Stored<T>::C& square) {
    typedef typename Stored<T>::C C;
    mean = square = 0;
    if (K > 0 || rms) {
        if (!rms) {
            held.each([&](C x) { mean = mean + x; });
            mean = join_all<Sum<C>, X>(mean) / n;
        }
        held.each([&](C x) { square = square + (x - mean) * (x - mean); });
    } else {
        // Pack by pack, from the statistics of two parts (Chan, Golub and LeVeque 1979).
        C count = 0;
        held.packs([&](const C (&pack)[V], i64) {
            C own = 0, apart = 0;
#pragma unroll
            for (int v = 0; v < V; ++v) own = own + pack[v];
            own = own / (C)V;
#pragma unroll
            for (int v = 0; v < V; ++v) apart = apart + (pack[v] - own) * (pack[v] - own);
            const C part = (C)V / (count + (C)V), off = own - mean;
            mean = mean + off * part;
            square = square + (apart + off * off * count * part);
            count = count + (C)V;
        });
        const C own = mean;
        mean = join_all<Sum<C>, X>(own * count) / n;
        if (count > (C)0) square = square + count * (own - mean) * (own - mean);
    }
    square = join_all<Sum<C>, X>(square) / n;
}

// (x - mean) / sqrt(variance + eps) * weight + bias. Null for no weight or bias; both lie as a
// row's packs want.
template <bool rms, class T, int X, int K, int V>
FN void norm_row(const Row<T>& row, const T* weight, const T* bias, T* out,
                 typename Stored<T>::C eps, bool alive) {
    typedef typename Stored<T>::C C;
    const Held<T, X, K, V> held(row, alive);
    C mean, square;
    moments<rms>(held, (C)row.n, mean, square);
    const C scale = (C)1 / sqrt(square + eps);
    held.write(out, 1, [&](const C (&pack)[V], i64 j, C (&made)[V]) {
#pragma unroll
        for (int v = 0; v < V; ++v) made[v] = (pack[v] - mean) * scale;
        if (weight) {
            const Vec<T, V> by = load_full<V>(weight, j);
#pragma unroll
            for (int v = 0; v < V; ++v) made[v] = made[v] * load(by.v[v]);
        }
        if (bias) {
            const Vec<T, V> more = load_full<V>(bias, j);
#pragma unroll
            for (int v = 0; v < V; ++v) made[v] = made[v] + load(more.v[v]);
        }
    });
}

}  // namespace ft
