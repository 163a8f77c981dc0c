// Stable sorts of rows. An element is a key whose unsigned order is the wanted one, with its place
// to break ties; NaN is the largest, as in PyTorch.
//
// A row that fits a tile is sorted in shared memory by one block. The rest is sorted by eight bits
// a pass, from the lowest: count digits a block, add the counts up, move (Satish, Harris and
// Garland 2009). The first k of many are selected from the highest bits down, and only those are
// sorted (Alabi et al. 2012).

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
FN u32 key_of_half(u32 b, u32 infinity) {
    if ((b & 0x7fffu) > infinity) return 0xffffu;
    if (b == 0x8000u) b = 0;
    return b & 0x8000u ? b ^ 0xffffu : b | 0x8000u;
}
FN u32 key_of(f16 x) { return key_of_half(x.bits, 0x7c00u); }
FN u32 key_of(bf16 x) { return key_of_half(x.bits, 0x7f80u); }
FN u32 key_of(i32 x) { return (u32)x ^ 0x80000000u; }
FN u64 key_of(i64 x) { return (u64)x ^ 0x8000000000000000ull; }
FN u32 key_of(u8 x) { return x; }
FN u32 key_of(bool x) { return x; }

// A key with the order turned round where that is asked for, in as many bits.
template <class K, class T> FN K ordered(T x, bool descending) {
    const K k = (K)key_of(x);
    return descending ? k ^ (K)~(K)0 >> (sizeof(K) > sizeof(T) ? 8 * (sizeof(K) - sizeof(T)) : 0)
                      : k;
}

template <class K> FN bool comes_before(K a, u32 at, K b, u32 bt) {
    return a < b || (a == b && at < bt);
}

// Sorts n elements, at most N, by Batcher's bitonic network, N / 2 threads. `get(j, key, place)`
// brings them, `put` takes the sorted ones.
template <class K, int N, class Get, class Put>
FN void sort_tile(u32 n, const Get& get, const Put& put) {
    __shared__ K key[N];
    __shared__ u32 place[N];
    for (u32 j = threadIdx.x; j < N; j += N / 2) {
        key[j] = (K)~(K)0;
        place[j] = 0xffffffffu;
        if (j < n) get(j, key[j], place[j]);
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
    for (u32 j = threadIdx.x; j < N && j < n; j += N / 2) put(j, key[j], place[j]);
}

// ---- by digits of eight bits; 256 threads, each of 2048 elements a block
// ------------------------------------

#ifdef FUTENSOR_SIM
FN u32 count_bits(u32 x) { return (u32)__builtin_popcount(x); }
#else
FN u32 count_bits(u32 x) { return (u32)__popc(x); }
#endif

template <class K> FN u32 digit(K key, u32 shift) { return (u32)(key >> shift) & 255u; }

// The sum over the threads before, of 256, and over all.
FN u32 sum_before(u32 x, u32& all) {
    __shared__ u32 part[8];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 sum = x, before = 0;
    for (u32 d = 1; d < 32; d *= 2) {
        const u32 other = __shfl_up_sync(0xffffffffu, sum, d);
        if (lane >= d) sum += other;
    }
    __syncthreads();  // an earlier call's readers are done
    if (lane == 31) part[warp] = sum;
    __syncthreads();
    all = 0;
    for (u32 w = 0; w < 8; ++w) {
        if (w == warp) before = all;
        all += part[w];
    }
    return before + sum - x;
}

// How often each digit comes in a block: counts[digit][block].
template <class K> FN void radix_count(const K* keys, u32* counts, u32 n, u32 blocks, u32 shift) {
    __shared__ u32 count[256];
    count[threadIdx.x] = 0;
    __syncthreads();
    for (u32 i = 0; i < 8; ++i) {
        const u32 j = blockIdx.x * 2048 + i * 256 + threadIdx.x;
        if (j < n) atomicAdd(&count[digit(keys[j], shift)], 1u);
    }
    __syncthreads();
    counts[threadIdx.x * blocks + blockIdx.x] = count[threadIdx.x];
}

// A block a digit: its counts become those of the blocks before, and its total.
FN void radix_sum(u32* counts, u32* totals, u32 blocks) {
    u32 sum = 0, all;
    for (u32 start = 0; start < blocks; start += 256) {
        const u32 b = start + threadIdx.x;
        u32* mine = counts + blockIdx.x * blocks + b;
        const u32 before = sum_before(b < blocks ? *mine : 0, all);
        if (b < blocks) *mine = sum + before;
        sum += all;
    }
    if (threadIdx.x == 0) totals[blockIdx.x] = sum;
}

// Elements to where their digit says, in order: a warp takes 256 neighbours, 32 at a time.
template <class K>
FN void radix_move(const K* keys, const u32* places, const u32* counts, const u32* totals,
                   K* keys_out, u32* places_out, u32 n, u32 blocks, u32 shift) {
    __shared__ u32 count[8][256];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32,
              first = blockIdx.x * 2048 + warp * 256 + lane;
    for (u32 w = 0; w < 8; ++w) count[w][threadIdx.x] = 0;
    __syncthreads();
    K key[8];
    u32 rank[8];
#pragma unroll
    for (u32 i = 0; i < 8; ++i) {
        const bool there = first + 32 * i < n;
        key[i] = there ? keys[first + 32 * i] : (K)0;
        const u32 mine = there ? digit(key[i], shift) : 256u;
        const u32 same = __match_any_sync(0xffffffffu, mine),
                  before = count_bits(same & ((1u << lane) - 1));
        const u32 earlier = there ? count[warp][mine] : 0;
        __syncwarp();
        if (there && before == 0) count[warp][mine] = earlier + count_bits(same);
        __syncwarp();
        rank[i] = earlier + before;
    }
    __syncthreads();
    u32 all, at = sum_before(totals[threadIdx.x], all) + counts[threadIdx.x * blocks + blockIdx.x];
    for (u32 w = 0; w < 8; ++w) {
        const u32 here = count[w][threadIdx.x];
        count[w][threadIdx.x] = at;
        at += here;
    }
    __syncthreads();
#pragma unroll
    for (u32 i = 0; i < 8; ++i) {
        if (first + 32 * i >= n) break;
        const u32 to = count[warp][digit(key[i], shift)] + rank[i];
        keys_out[to] = key[i];
        places_out[to] = places[first + 32 * i];
    }
}

// ---- the first k, by digits of the key and then of the place, the highest first
// ---------------------------

// The last of them after some passes, as far as it is known: the high digits of its key, then those
// of its place. Passes number `keys` and `places`.
template <class K> struct Last {
    K key;
    u32 place, keys, places;

    // From how often each digit came in the passes that were. 256 threads.
    FN_MEMBER void find(const u32* counts, u32 passes, u32 k) {
        __shared__ u32 found[2];
        key = 0;
        place = 0;
        for (u32 p = 0; p < passes; ++p) {
            const u32 count = counts[p * 256 + threadIdx.x];
            u32 all;
            const u32 before = sum_before(count, all);
            if (before < k && k <= before + count) {
                found[0] = threadIdx.x;
                found[1] = k - before;
            }
            __syncthreads();
            if (p < keys) key |= (K)found[0] << 8 * (keys - 1 - p);
            else place |= found[0] << 8 * (keys + places - 1 - p);
            k = found[1];
            __syncthreads();
        }
    }
    // The next digit of an element that is like it so far; 256 of one that is not.
    FN_MEMBER u32 next(K k, u32 at, u32 pass) const {
        if (pass < keys) {
            const u32 shift = 8 * (keys - 1 - pass);
            return pass > 0 && (k ^ key) >> shift >> 8 ? 256u : digit(k, shift);
        }
        const u32 shift = 8 * (keys + places - 1 - pass);
        return k != key || (pass > keys && (at ^ place) >> shift >> 8) ? 256u : digit(at, shift);
    }
};

// One pass over a row, `span` elements a block.
template <class K, class T>
FN void select_count(const T* x, i64 step, u32* counts, u32 n, u32 span, u32 k, bool descending,
                     Last<K> last, u32 pass) {
    __shared__ u32 count[256];
    last.find(counts, pass, k);
    count[threadIdx.x] = 0;
    __syncthreads();
    const u32 end = n - blockIdx.x * span < span ? n : (blockIdx.x + 1) * span;
    for (u32 j = blockIdx.x * span + threadIdx.x; j < end; j += 256) {
        const u32 d = last.next(ordered<K>(x[j * step], descending), j, pass);
        if (d < 256) atomicAdd(&count[d], 1u);
    }
    __syncthreads();
    if (count[threadIdx.x] > 0) atomicAdd(&counts[pass * 256 + threadIdx.x], count[threadIdx.x]);
}

// The k that come first, in any order: sorting them looks at places, too.
template <class K, class T>
FN void select_take(const T* x, i64 step, const u32* counts, u32* taken, K* keys, u32* places,
                    u32 n, u32 span, u32 k, bool descending, Last<K> last) {
    last.find(counts, last.keys + last.places, k);
    const u32 end = n - blockIdx.x * span < span ? n : (blockIdx.x + 1) * span;
    for (u32 j = blockIdx.x * span + threadIdx.x; j < end; j += 256) {
        const K key = ordered<K>(x[j * step], descending);
        if (comes_before(last.key, last.place, key, j)) continue;
        const u32 to = atomicAdd(taken, 1u);
        keys[to] = key;
        places[to] = j;
    }
}

}  // namespace ft
