// Scans: running sums, products and largest elements, by OP, the number of a row of op/scan.rs,
// whose columns `join` and `nothing` are. "Sum" below is any of them. A row is scanned by a block
// that carries the sum along, line by line, and moves all of it once; few long rows are cut into
// chunks, a block each, whose sums are scanned between two passes. Sizes and types alone decide the
// order.

namespace ft {

FN float lane_below(float x, u32 d) { return __shfl_up_sync(0xffffffffu, x, d); }
FN double lane_below(double x, u32 d) { return __shfl_up_sync(0xffffffffu, x, d); }
FN i64 lane_below(i64 x, u32 d) { return __shfl_up_sync(0xffffffffu, x, d); }

// Sum of the values of the threads before this one in a block of 256, and the total: within warps,
// then over the eight of them.
template <int OP, class A> FN A before(A x, A& total) {
    __shared__ A part[8];
    u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    A run = x;
#pragma unroll
    for (u32 d = 1; d < 32; d *= 2) {
        A low = lane_below(run, d);
        if (lane >= d) run = join<OP>(low, run);
    }
    __syncthreads();  // an earlier call's readers are done
    if (lane == 31) part[warp] = run;
    __syncthreads();
    A below = nothing<OP, A>();
    total = nothing<OP, A>();
#pragma unroll
    for (u32 w = 0; w < 8; ++w) {
        if (w == warp) below = total;
        total = join<OP>(total, part[w]);
    }
    A low = lane_below(run, 1);
    return lane == 0 ? below : join<OP>(below, low);
}

enum { PER_THREAD = 8, CHUNK = 256 * PER_THREAD };

// Sums of the chunks of a row: sums[row * chunks + chunk].
template <int OP, class A, class T> FN void chunk_sum(const T* x, i64 step, i64 n, A* sum) {
    i64 first = (i64)blockIdx.y * CHUNK + threadIdx.x * PER_THREAD;
    A a = nothing<OP, A>(), total;
    for (int k = 0; k < PER_THREAD; ++k)
        if (first + k < n) a = join<OP>(a, (A)load(x[(first + k) * step]));
    before<OP>(a, total);
    if (threadIdx.x == 0) *sum = total;
}

// Turns each row of `sums` into the sums before; a block a row.
template <int OP, class A> FN void scan_sums(A* sums, i64 n) {
    A run = nothing<OP, A>();
    for (i64 at = 0; at < n; at += 256) {
        i64 i = at + threadIdx.x;
        A total, x = i < n ? sums[i] : nothing<OP, A>();
        A low = before<OP>(x, total);
        if (i < n) sums[i] = join<OP>(run, low);
        run = join<OP>(run, total);
    }
}

// The running sums of one chunk, on top of `run`.
template <int OP, class A, class T, class S>
FN void chunk_scan(const T* x, i64 step, i64 n, A run, S* out, i64 out_step) {
    i64 first = (i64)blockIdx.y * CHUNK + threadIdx.x * PER_THREAD;
    A v[PER_THREAD], a = nothing<OP, A>(), total;
#pragma unroll
    for (int k = 0; k < PER_THREAD; ++k) {
        v[k] = first + k < n ? (A)load(x[(first + k) * step]) : nothing<OP, A>();
        a = join<OP>(a, v[k]);
    }
    run = join<OP>(run, before<OP>(a, total));
#pragma unroll
    for (int k = 0; k < PER_THREAD; ++k) {
        run = join<OP>(run, v[k]);
        if (first + k < n) out[(first + k) * out_step] = As<S>::of(run);
    }
}

// V neighbours of a row; `whole` promises that they can be moved at once, and the row ends with
// some.
template <int V, class T> FN Vec<T, V> some_of(const T* x, i64 step, i64 first, i64 n, bool whole) {
    Vec<T, V> r = {};
    if (whole) {
        if (first < n) r = load_full<V>(x, first);
    } else {
#pragma unroll
        for (int v = 0; v < V; ++v)
            if (first + v < n) r.v[v] = x[(first + v) * step];
    }
    return r;
}

// The running sums of a row, V neighbours a thread. A line is on its way while the one before is
// added up. Of `whole` bit 0 is for the input, bit 1 for the output.
template <int OP, int V, class A, class T, class S>
FN void row_scan(const T* x, i64 step, i64 n, S* out, i64 out_step, u32 whole) {
    __shared__ A part[2][8];
    const int W = V * sizeof(S) > 16 ? 16 / sizeof(S) : V;
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    i64 first = threadIdx.x * V;
    Vec<T, V> next = some_of<V>(x, step, first, n, whole & 1);
    A sofar = nothing<OP, A>();
    u32 turn = 0;
    for (i64 line = 0; line < n; line += 256 * V, first += 256 * V, turn ^= 1) {
        const Vec<T, V> now = next;
        next = some_of<V>(x, step, first + 256 * V, n, whole & 1);
        A own[V], sum = nothing<OP, A>();
#pragma unroll
        for (int v = 0; v < V; ++v) {
            own[v] = first + v < n ? (A)load(now.v[v]) : nothing<OP, A>();
            sum = join<OP>(sum, own[v]);
        }
#pragma unroll
        for (u32 d = 1; d < 32; d *= 2) {
            const A low = lane_below(sum, d);
            if (lane >= d) sum = join<OP>(low, sum);
        }
        // Who is a line ahead writes the other half, and nobody is two ahead.
        if (lane == 31) part[turn][warp] = sum;
        __syncthreads();
        A below = nothing<OP, A>(), total = nothing<OP, A>();
#pragma unroll
        for (u32 w = 0; w < 8; ++w) {
            if (w == warp) below = total;
            total = join<OP>(total, part[turn][w]);
        }
        const A low = lane_below(sum, 1);
        A run = join<OP>(sofar, lane == 0 ? below : join<OP>(below, low));
        sofar = join<OP>(sofar, total);
        S sums[V];
#pragma unroll
        for (int v = 0; v < V; ++v) sums[v] = As<S>::of(run = join<OP>(run, own[v]));
        if (whole & 2) {
#pragma unroll
            for (int v = 0; v < V; v += W) {
                Vec<S, W> together;
#pragma unroll
                for (int w = 0; w < W; ++w) together.v[w] = sums[v + w];
                if (first < n) *(Vec<S, W>*)(out + first + v) = together;
            }
        } else {
#pragma unroll
            for (int v = 0; v < V; ++v)
                if (first + v < n) out[(first + v) * out_step] = sums[v];
        }
    }
}

// A thread a row, where rows lie side by side.
template <int OP, class A, class T, class S>
FN void column_scan(const T* x, i64 step, i64 n, S* out, i64 out_step) {
    A run = nothing<OP, A>();
    for (i64 j = 0; j < n; ++j) {
        run = join<OP>(run, (A)load(x[j * step]));
        out[j * out_step] = As<S>::of(run);
    }
}

}  // namespace ft
