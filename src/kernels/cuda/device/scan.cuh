// Running sums and what is made of them: cumsum, and the places of nonzero elements. Chunks are scanned
// by a block each; where there are several, their sums are scanned between two passes.

namespace ft {

FN float lane_below(float x, u32 d) { return __shfl_up_sync(0xffffffffu, x, d); }
FN double lane_below(double x, u32 d) { return __shfl_up_sync(0xffffffffu, x, d); }
FN i64 lane_below(i64 x, u32 d) { return __shfl_up_sync(0xffffffffu, x, d); }
FN u64 lane_below(u64 x, u32 d) { return __shfl_up_sync(0xffffffffu, x, d); }

// Sum of the values of the threads before this one in a block of 256, and the total: within warps,
// then over the eight of them.
template <class A> FN A before(A x, A& total) {
    __shared__ A part[8];
    u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    A run = x;
#pragma unroll
    for (u32 d = 1; d < 32; d *= 2) {
        A low = lane_below(run, d);
        if (lane >= d) run = add(low, run);
    }
    __syncthreads();  // an earlier call's readers are done
    if (lane == 31) part[warp] = run;
    __syncthreads();
    A below = 0;
    total = 0;
#pragma unroll
    for (u32 w = 0; w < 8; ++w) {
        if (w == warp) below = total;
        total = add(total, part[w]);
    }
    A low = lane_below(run, 1);
    return lane == 0 ? below : add(below, low);
}

enum { PER_THREAD = 8, CHUNK = 256 * PER_THREAD };

// Sums of the chunks of a row: sums[row * chunks + chunk].
template <class A, class T> FN void chunk_sum(const T* x, i64 step, i64 n, A* sum) {
    i64 first = (i64)blockIdx.y * CHUNK + threadIdx.x * PER_THREAD;
    A a = 0, total;
    for (int k = 0; k < PER_THREAD; ++k)
        if (first + k < n) a = add(a, (A)load(x[(first + k) * step]));
    before(a, total);
    if (threadIdx.x == 0) *sum = total;
}

// Turns each row of `sums` into the sums before; a block a row.
template <class A> FN void scan_sums(A* sums, i64 n, A* end) {
    A run = 0;
    for (i64 at = 0; at < n; at += 256) {
        i64 i = at + threadIdx.x;
        A total, x = i < n ? sums[i] : (A)0;
        A low = before(x, total);
        if (i < n) sums[i] = add(run, low);
        run = add(run, total);
    }
    if (end && threadIdx.x == 0) *end = run;
}

// The running sums of one chunk, on top of `run`.
template <class A, class T, class S> FN void chunk_scan(const T* x, i64 step, i64 n, A run, S* out, i64 out_step) {
    i64 first = (i64)blockIdx.y * CHUNK + threadIdx.x * PER_THREAD;
    A v[PER_THREAD], a = 0, total;
#pragma unroll
    for (int k = 0; k < PER_THREAD; ++k) {
        v[k] = first + k < n ? (A)load(x[(first + k) * step]) : (A)0;
        a = add(a, v[k]);
    }
    run = add(run, before(a, total));
#pragma unroll
    for (int k = 0; k < PER_THREAD; ++k) {
        run = add(run, v[k]);
        if (first + k < n) out[(first + k) * out_step] = As<S>::of(run);
    }
}

// A thread a row, where rows lie side by side.
template <class A, class T, class S> FN void column_scan(const T* x, i64 step, i64 n, S* out, i64 out_step) {
    A run = 0;
    for (i64 j = 0; j < n; ++j) {
        run = add(run, (A)load(x[j * step]));
        out[j * out_step] = As<S>::of(run);
    }
}

// ---- nonzero -------------------------------------------------------------------------------

// The shape as the caller sees it, outermost first: results are coordinates in it.
struct Dims {
    u64 rank, numel;
    u64 size[16];
    i64 stride[16];
};

FN i64 offset_of(const Dims& d, u64 i) {
    i64 off = 0;
    for (int k = (int)d.rank - 1; k >= 0; --k) {
        off += (i64)(i % d.size[k]) * d.stride[k];
        i /= d.size[k];
    }
    return off;
}

template <class T> FN u32 nonzero_bits(const T* x, const Dims& d, u64 first) {
    u32 set = 0;
    for (int k = 0; k < PER_THREAD; ++k)
        if (first + k < d.numel && truth(load(x[offset_of(d, first + k)]))) set |= 1u << k;
    return set;
}
FN u64 count_bits(u32 x) {
    u64 n = 0;
    for (; x; x &= x - 1) ++n;
    return n;
}
template <class T> FN void nonzero_count(const T* x, const Dims& d, u64* counts) {
    u64 total, first = (u64)blockIdx.x * CHUNK + threadIdx.x * PER_THREAD;
    before(count_bits(nonzero_bits(x, d, first)), total);
    if (threadIdx.x == 0) counts[blockIdx.x] = total;
}
template <class T> FN void nonzero_write(const T* x, const Dims& d, const u64* starts, i64* out) {
    u64 total, first = (u64)blockIdx.x * CHUNK + threadIdx.x * PER_THREAD;
    u32 set = nonzero_bits(x, d, first);
    u64 at = starts[blockIdx.x] + before(count_bits(set), total);
    for (int k = 0; k < PER_THREAD; ++k) {
        if (!(set >> k & 1)) continue;
        u64 i = first + k;
        for (int c = (int)d.rank - 1; c >= 0; --c) {
            out[at * d.rank + c] = (i64)(i % d.size[c]);
            i /= d.size[c];
        }
        ++at;
    }
}

}  // namespace ft
