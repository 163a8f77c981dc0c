// Reads and writes at places that are data. A place out of range is reported and never touched.

namespace ft {

// The first bad index of a step, by position; the host reads it when the step is done.
struct IndexError {
    u32 lock, found;
    u64 position;
    i64 index;
    u64 size;
};

FN void report(IndexError* error, u64 position, i64 index, u64 size) {
    volatile IndexError* e = error;
    for (bool done = false; !done;) {
        if (atomicCAS(&error->lock, 0u, 1u) == 0u) {
            __threadfence();
            if (!e->found || position < e->position) {
                e->found = 1;
                e->position = position;
                e->index = index;
                e->size = size;
            }
            __threadfence();
            atomicExch(&error->lock, 0u);
            done = true;
        }
    }
}

// out[i] = x[.., index[..], ..]. geo's operands: x without the indexed dimension, the index, and the
// position in the index.
template <class T, class J, template <int> class Geo>
FN void gather(const T* x, const J* index, T* out, IndexError* error, typename Geo<3>::Index n, const Geo<3>& geo,
               i64 step, u64 size) {
    typedef typename Geo<3>::Index I;
    I i = (I)blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    typename Geo<3>::Stride off[3];
    offsets<3, Geo>(geo, i, off);
    i64 at = (i64)index[off[1]];
    if ((u64)at >= size) {
        report(error, (u64)off[2], at, size);
        at = 0;
    }
    T none = {};
    out[i] = size > 0 ? x[off[0] + at * step] : none;
}

// out[.., index[j], ..] += source[.., j, ..] along lines of one dimension. A line's elements of one
// residue modulo `owners` belong to one thread, which walks the line in order: no atomics, and sums
// are those of a plain loop. geo's operands: out, source, index, position.
template <class T, class J, template <int> class Geo>
FN void scatter_add(const T* source, const J* index, T* out, IndexError* error, typename Geo<4>::Index lines,
                    const Geo<4>& geo, i64 length, u64 size, u32 owners, i64 out_step, i64 source_step,
                    i64 index_step, i64 position_step) {
    typedef typename Geo<4>::Index I;
    I line = (I)blockIdx.x * 256 + threadIdx.x;
    if (line >= lines) return;
    typename Geo<4>::Stride off[4];
    offsets<4, Geo>(geo, line, off);
    u32 mine = blockIdx.y;
    for (i64 j = 0; j < length; ++j) {
        i64 at = (i64)index[off[2] + j * index_step];
        if ((u64)at % owners != mine) continue;
        if ((u64)at >= size) {
            report(error, (u64)(off[3] + j * position_step), at, size);
            continue;
        }
        T* p = out + (off[0] + at * out_step);
        *p = As<T>::of(add(load(*p), load(source[off[1] + j * source_step])));
    }
}

// out[i, c] = index[i] == c, as i64.
template <class J, template <int> class Geo>
FN void one_hot(const J* index, i64* out, IndexError* error, typename Geo<1>::Index n, const Geo<1>& geo, u64 classes) {
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
