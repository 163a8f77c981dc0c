// Matrix products that the vendor's library does not take: integers, and strides it cannot express.

namespace ft {

template <class T> struct Accumulator { typedef typename Stored<T>::C A; };
template <> struct Accumulator<u8> { typedef u32 A; };
template <> struct Accumulator<i32> { typedef u32 A; };
template <> struct Accumulator<i64> { typedef u64 A; };

FN u32 multiply_add(u32 a, u32 b, u32 c) { return a * b + c; }
FN u64 multiply_add(u64 a, u64 b, u64 c) { return a * b + c; }
FN float multiply_add(float a, float b, float c) { return fma(a, b, c); }
FN double multiply_add(double a, double b, double c) { return fma(a, b, c); }

// out[m, n] = a[m, k] b[k, n]: a tile of 64 x 64 a block of 256 threads, 4 x 4 a thread, k in
// order. Integers wrap; halves are added in float and rounded once, where O is a half. blockIdx.z
// is a batch, batch.z on.
template <class T, class O, template <int> class Geo>
FN void matmul_tile(const T* a, const T* b, O* out, u64 first, i64 m, i64 n, i64 k, i64 am, i64 ak,
                    i64 bk, i64 bn, const Geo<2>& batches) {
    typedef typename Accumulator<T>::A A;
    const int TILE = 64, DEEP = 16;
    __shared__ A as[DEEP][TILE + 1];
    __shared__ A bs[DEEP][TILE + 1];
    typedef typename Geo<2>::Index I;
    u64 batch = first + blockIdx.z;
    typename Geo<2>::Stride off[2];
    offsets<2, Geo>(batches, (I)batch, off);
    a += off[0];
    b += off[1];
    out += batch * (u64)m * (u64)n;
    i64 r0 = (i64)blockIdx.y * TILE, c0 = (i64)blockIdx.x * TILE;
    u32 tr = threadIdx.x / 16, tc = threadIdx.x % 16;
    A acc[4][4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) acc[i][j] = 0;
    for (i64 k0 = 0; k0 < k; k0 += DEEP) {
        // Neighbouring threads read along the operand's smaller stride.
        for (u32 e = threadIdx.x; e < TILE * DEEP; e += 256) {
            u32 r = ak <= am ? e / DEEP : e % TILE, q = ak <= am ? e % DEEP : e / TILE;
            as[q][r] = r0 + r < m && k0 + q < k ? (A)load(a[(r0 + r) * am + (k0 + q) * ak]) : (A)0;
            u32 c = bk < bn ? e / DEEP : e % TILE, p = bk < bn ? e % DEEP : e / TILE;
            bs[p][c] = c0 + c < n && k0 + p < k ? (A)load(b[(k0 + p) * bk + (c0 + c) * bn]) : (A)0;
        }
        __syncthreads();
        u32 deep = (u32)(k - k0 < DEEP ? k - k0 : DEEP);
        for (u32 q = 0; q < deep; ++q) {
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    acc[i][j] = multiply_add(as[q][tr + 16 * i], bs[q][tc + 16 * j], acc[i][j]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            i64 r = r0 + tr + 16 * i, c = c0 + tc + 16 * j;
            if (r < m && c < n) out[r * n + c] = As<O>::of(acc[i][j]);
        }
}

}  // namespace ft
