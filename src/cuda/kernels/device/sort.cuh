// Stable sorts of rows. An element is a key whose unsigned order is the wanted one, with its place to
// break ties; NaN is the largest, as in PyTorch.

namespace ft {

// An order-preserving key: sign-magnitude floats become unsigned (Herf, "Radix tricks", 2001).
FN u32 key_of(float x) {
    if (x != x) return 0xffffffffu;
    u32 b = bits(x == 0.0f ? 0.0f : x);
    return b & 0x80000000u ? ~b : b | 0x80000000u;
}
FN u64 key_of(double x) {
    if (x != x) return 0xffffffffffffffffull;
    u64 b = bits(x == 0.0 ? 0.0 : x);
    return b >> 63 ? ~b : b | 0x8000000000000000ull;
}
FN u32 key_of(i32 x) { return (u32)x ^ 0x80000000u; }
FN u64 key_of(i64 x) { return (u64)x ^ 0x8000000000000000ull; }
FN u32 key_of(u8 x) { return x; }
FN u32 key_of(bool x) { return x; }

template <class K> FN bool comes_before(K a, u32 at, K b, u32 bt) { return a < b || (a == b && at < bt); }

// Sorts up to N elements of a row in shared memory by Batcher's bitonic network, N / 2 threads a row.
// Elements `first`.. of the row; `put(j, key, place)` takes the sorted ones.
template <class K, class T, int N, class Put>
FN void sort_tile(const T* x, i64 step, i64 first, i64 n, bool descending, const Put& put) {
    __shared__ K key[N];
    __shared__ u32 place[N];
    for (u32 j = threadIdx.x; j < N; j += N / 2) {
        i64 at = first + j;
        K k = at < n ? (K)key_of(load(x[at * step])) : (K)0;
        key[j] = at < n ? (descending ? (K)~k : k) : (K)~(K)0;
        place[j] = at < n ? (u32)at : 0xffffffffu;
    }
    for (u32 width = 2; width <= N; width *= 2) {
        for (u32 d = width / 2; d > 0; d /= 2) {
            __syncthreads();
            u32 a = 2 * threadIdx.x - (threadIdx.x & (d - 1)), b = a + d;
            bool up = (a & width) == 0;
            K ka = key[a], kb = key[b];
            u32 pa = place[a], pb = place[b];
            if (comes_before(kb, pb, ka, pa) == up) {
                key[a] = kb; key[b] = ka;
                place[a] = pb; place[b] = pa;
            }
        }
    }
    __syncthreads();
    for (u32 j = threadIdx.x; j < N; j += N / 2)
        if (first + j < n) put(first + j, key[j], place[j]);
}

// Merges runs of `width` in pairs: an element's new place is its own in its run plus how many of the
// other run come before it.
template <class K>
FN void merge_runs(const K* key, const u32* place, K* key_out, u32* place_out, i64 n, i64 width) {
    i64 i = (i64)blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    K k = key[i];
    u32 p = place[i];
    i64 run = i / width, start = (run ^ 1) * width;
    i64 low = start < n ? start : n, high = start + width < n ? start + width : n;
    i64 none = low;
    while (low < high) {
        i64 middle = (low + high) / 2;
        if (comes_before(key[middle], place[middle], k, p)) low = middle + 1;
        else high = middle;
    }
    i64 to = (run & ~(i64)1) * width + (i - run * width) + (low - none);
    key_out[to] = k;
    place_out[to] = p;
}

}  // namespace ft
