// Reads and writes at places that are data. A place out of range is reported and never touched.

namespace ft {

// The first bad index of a step, by position; the host reads it when the step is done.
struct IndexError {
    u32 lock, found;
    u64 position;
    i64 index;
    u64 size;
};

// Where every index is bad, only those that come before all that were seen take the lock: one or a
// few of millions. `position` only falls, and is there before `found` says so.
FN void report(IndexError* error, u64 position, i64 index, u64 size) {
    volatile IndexError* e = error;
    for (bool done = false; !done;) {
        if (e->found) {
            __threadfence();
            if (e->position <= position) return;
        }
        if (atomicCAS(&error->lock, 0u, 1u) == 0u) {
            __threadfence();
            if (!e->found || position < e->position) {
                e->position = position;
                e->index = index;
                e->size = size;
                __threadfence();
                e->found = 1;
            }
            __threadfence();
            atomicExch(&error->lock, 0u);
            done = true;
        }
    }
}

// A negative index counts from the end where `lift` is the size; where that is 0, it stays out of
// range.
FN i64 lifted(i64 index, i64 lift) { return index < 0 ? index + lift : index; }

// out[i] = x[.., index[..], ..]. geo's operands: x without the indexed dimension, the index, and
// the position in the index.
template <class T, class J, template <int> class Geo>
FN void gather(const T* x, const J* index, T* out, IndexError* error, typename Geo<3>::Index n,
               const Geo<3>& geo, i64 step, u64 size, i64 lift) {
    typedef typename Geo<3>::Index I;
    I i = (I)blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    typename Geo<3>::Stride off[3];
    offsets<3, Geo>(geo, i, off);
    i64 at = lifted((i64)index[off[1]], lift);
    if ((u64)at >= size) {
        report(error, (u64)off[2], (i64)index[off[1]], size);
        at = 0;
    }
    T none = {};
    out[i] = size > 0 ? x[off[0] + at * step] : none;
}

// The old value and a new one, joined by op::ScatterMode in its order. Halves are joined in float,
// and rounded when all have come; a value that only takes the place moves as it is.
template <int HOW, class T> struct Join {
    typedef typename Stored<T>::C C;
    static FN_MEMBER C from(T x) { return load(x); }
    static FN_MEMBER T to(C x) { return As<T>::of(x); }
    static FN_MEMBER C of(C there, C comes) {
        if (HOW == 1) return add(there, comes);
        if (HOW == 2) return mul(there, comes);
        if (HOW == 3) return maximum(there, comes);
        return minimum(there, comes);
    }
};
template <class T> struct Join<0, T> {
    typedef T C;
    static FN_MEMBER T from(T x) { return x; }
    static FN_MEMBER T to(T x) { return x; }
    static FN_MEMBER T of(T, T comes) { return comes; }
};

// out[.., index[j], ..] joined with source[.., j, ..] along lines of one dimension. A line's
// elements of one residue modulo `owners` belong to one thread, which walks the line in order: no
// atomics, and results are those of a plain loop. geo's operands: out, source, index, position.
template <int HOW, class T, class J, template <int> class Geo>
FN void scatter(const T* source, const J* index, T* out, IndexError* error,
                typename Geo<4>::Index lines, const Geo<4>& geo, i64 length, u64 size, i64 lift,
                u32 owners, i64 out_step, i64 source_step, i64 index_step, i64 position_step) {
    typedef typename Geo<4>::Index I;
    typedef Join<HOW, T> By;
    I line = (I)blockIdx.x * 256 + threadIdx.x;
    if (line >= lines) return;
    typename Geo<4>::Stride off[4];
    offsets<4, Geo>(geo, line, off);
    u32 mine = blockIdx.y;
    for (i64 j = 0; j < length; ++j) {
        i64 named = (i64)index[off[2] + j * index_step], at = lifted(named, lift);
        if ((u64)at % owners != mine) continue;
        if ((u64)at >= size) {
            report(error, (u64)(off[3] + j * position_step), named, size);
            continue;
        }
        T* p = out + (off[0] + at * out_step);
        *p = By::to(By::of(By::from(*p), By::from(source[off[1] + j * source_step])));
    }
}

// The same for long lines, whose indices are sorted first. A row of them is shared by all lines for
// which they repeat. Here each becomes a key, the place that it names; one out of range comes after
// all others.
template <class J>
FN void scatter_keys(const J* index, u32* keys, u32* places, IndexError* error, u64 row,
                     const Geo64<2>& rows, u32 n, u32 size, i64 lift, i64 index_step,
                     i64 position_step) {
    const u32 j = blockIdx.x * 256 + threadIdx.x;
    if (j >= n) return;
    i64 off[2];
    offsets<2, Geo64>(rows, row, off);
    const i64 named = (i64)index[off[0] + j * index_step], at = lifted(named, lift);
    if ((u64)at >= size) report(error, (u64)(off[1] + j * position_step), named, size);
    keys[j] = (u64)at < size ? (u32)at : size;
    places[j] = j;
}

// A thread for each line and each run of equal keys, which begins where the key before is another.
// It takes eight at a time, whose loads do not wait for each other, and joins them in order: where
// the source goes in several parts, those of a part first, and then these (`runs` in
// src/host/kernels/index/scatter.rs).
template <int HOW, class T>
FN void scatter_runs(const T* source, const u32* keys, const u32* places, T* out, u64 row,
                     const Geo64<2>& rows, const Geo64<2>& shared, u64 lines, u32 n, u32 size,
                     i64 out_step, i64 source_step, u32 parts) {
    const u64 i = (u64)blockIdx.x * 256 + threadIdx.x;
    u32 p = (u32)(i / lines);
    if (p >= n) return;
    const u32 key = keys[p];
    if (key >= size || (p > 0 && keys[p - 1] == key)) return;
    i64 off[2];
    offsets<2, Geo64>(rows, row, off);
    walk<2, Geo64>(shared, i % lines, off);
    source += off[1];
    T* to = out + (off[0] + (i64)key * out_step);
    typedef Join<HOW, T> By;
    typename By::C sum = By::from(*to), part = sum;
    // Of the source, where its part ends; the first `n % parts` have one element more.
    u32 end = 0, ended = 0;
    bool begun = false;
    for (bool more = true; more; p += 8) {
        T comes[8];
        bool mine[8];
#pragma unroll
        for (int u = 0; u < 8; ++u) {
            mine[u] = p + u < n && keys[p + u] == key;
            if (mine[u]) comes[u] = source[(i64)places[p + u] * source_step];
        }
#pragma unroll
        for (int u = 0; u < 8; ++u) {
            if (!mine[u]) continue;
            if (parts == 1) {
                sum = By::of(sum, By::from(comes[u]));
                continue;
            }
            const bool first = places[p + u] >= end;
            if (first && begun) sum = By::of(sum, part);
            while (places[p + u] >= end) {
                end += n / parts + (ended < n % parts);
                ++ended;
            }
            part = first ? By::from(comes[u]) : By::of(part, By::from(comes[u]));
            begun = true;
        }
        more = mine[7];
    }
    if (begun) sum = By::of(sum, part);
    *to = By::to(sum);
}

// out[i, c] = index[i] == c, as i64.
template <class J, template <int> class Geo>
FN void one_hot(const J* index, i64* out, IndexError* error, typename Geo<1>::Index n,
                const Geo<1>& geo, u64 classes) {
    typedef typename Geo<1>::Index I;
    I i = (I)blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    typename Geo<1>::Stride off[1];
    I row = i / (I)classes, c = i % (I)classes;
    offsets<1, Geo>(geo, row, off);
    i64 at = (i64)index[off[0]];
    if (c == 0 && (u64)at >= classes) report(error, (u64)row, at, classes);
    out[i] = at == (i64)c;
}

}  // namespace ft
