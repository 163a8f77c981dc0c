// Copies between strided places, by element size alone.

namespace ft {

struct alignas(16) Pack16 { u64 a, b; };

// Element i of an iteration goes from `from` to `to`; geo's operands are those two.
template <class T, template <int> class Geo>
FN void copy_strided(const T* from, T* to, typename Geo<2>::Index n, const Geo<2>& geo) {
    typedef typename Geo<2>::Index I;
    I i = (I)blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    typename Geo<2>::Stride off[2];
    offsets<2, Geo>(geo, i, off);
    to[off[1]] = from[off[0]];
}

// A transpose by tiles of 32 x 32, so that both sides move neighbours. `from` has stride 1 over
// `rows` and `from_step` over `columns`, `to` the other way round. blockDim is (32, 8); blockIdx.z
// is a batch.
template <class T, template <int> class Geo>
FN void transpose(const T* from, T* to, u32 rows, u32 columns, i64 from_step, i64 to_step,
                  const Geo<2>& batch) {
    __shared__ T tile[32][33];  // a column more keeps lanes in different banks
    typename Geo<2>::Stride off[2];
    offsets<2, Geo>(batch, blockIdx.z, off);
    u32 r = blockIdx.x * 32, c = blockIdx.y * 32;
#pragma unroll
    for (u32 k = threadIdx.y; k < 32; k += 8)
        if (r + threadIdx.x < rows && c + k < columns)
            tile[k][threadIdx.x] = from[off[0] + (i64)(c + k) * from_step + (r + threadIdx.x)];
    __syncthreads();
#pragma unroll
    for (u32 k = threadIdx.y; k < 32; k += 8)
        if (r + k < rows && c + threadIdx.x < columns)
            to[off[1] + (i64)(r + k) * to_step + (c + threadIdx.x)] = tile[threadIdx.x][k];
}

// The part of each matrix on one side of diagonal k; the rest is zero.
template <class T, template <int> class Geo>
FN void triangle(const T* x, T* out, typename Geo<1>::Index n, const Geo<1>& geo, u64 rows,
                 u64 columns, i64 k, bool upper) {
    typedef typename Geo<1>::Index I;
    I i = (I)blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    typename Geo<1>::Stride off[1];
    offsets<1, Geo>(geo, i, off);
    i64 r = (i64)(i / (I)columns % (I)rows), c = (i64)(i % (I)columns);
    bool keep = upper ? c - r >= k : c - r <= k;
    T none = {};
    out[i] = keep ? x[off[0]] : none;
}

}  // namespace ft
