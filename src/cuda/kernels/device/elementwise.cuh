// Moves of several neighbouring elements, flat and strided.

namespace ft {

// Strides (0 or 1) of the inputs of a flat walk.
template <int K> struct Steps { u32 s[K]; };

// Innermost strides of the inputs of a strided walk, and a bit for each that may be moved whole.
template <class S, int K> struct Inner { S s[K], vector; };

// Elements i.. of p, those below n; `step` 0 repeats the first element.
template <int V, class T, class I> FN Vec<T, V> load_flat(const T* p, I i, I n, u32 step) {
    Vec<T, V> r;
    if (step == 0) {
        T x = p[0];
#pragma unroll
        for (int v = 0; v < V; ++v) r.v[v] = x;
    } else if (n - i >= V) {
        r = load_full<V>(p, i);
    } else {
#pragma unroll
        for (int v = 0; v < V; ++v) r.v[v] = p[i + v < n ? i + v : i];
    }
    return r;
}
template <int V, class T, class I> FN void store_flat(T* p, I i, I n, const Vec<T, V>& x) {
    if (n - i >= V) {
        *(Vec<T, V>*)(p + i) = x;
    } else {
#pragma unroll
        for (int v = 0; v < V; ++v)
            if (i + v < n) p[i + v] = x.v[v];
    }
}

// V elements from p on, `stride` apart; `whole` promises neighbours and alignment.
template <int V, class T, class S> FN Vec<T, V> load_strided(const T* p, S stride, bool whole) {
    Vec<T, V> r;
    if (whole) {
        r = *(const Vec<T, V>*)p;
    } else {
#pragma unroll
        for (int v = 0; v < V; ++v) r.v[v] = p[v * stride];
    }
    return r;
}

}  // namespace ft
