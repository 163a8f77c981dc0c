// The largest weights of a row that together have a share of the whole, as the host's kernel has
// them to the bit: weights are whole numbers, in parts of the largest, and the last weight is found
// by digits of eight bits of a word that has the weight and the place.

namespace ft {

enum { PLACE_BITS = 24 };
FN i64 whole_weight() { return 1ll << 39; }

// The part of the largest that a weight is.
FN i64 part_of(double x, double scale) {
    const i64 part = to_i64(x * scale);
    return part < 0 ? 0 : part > whole_weight() ? whole_weight() : part;
}

// A block of 256 for a row.
template <class T>
FN void top_p(const T* x, i64 n, i64 step, double share, T* out) {
    __shared__ double most[256];
    __shared__ i64 sums[256];
    __shared__ i64 found[2];
    double largest = 0;
    for (i64 j = threadIdx.x; j < n; j += 256) {
        const double w = load(x[j * step]);
        if (w > largest || w != w) largest = w;
    }
    most[threadIdx.x] = largest;
    __syncthreads();
    for (u32 half = 128; half > 0; half /= 2) {
        if (threadIdx.x < half) {
            const double a = most[threadIdx.x], b = most[threadIdx.x + half];
            most[threadIdx.x] = b > a || b != b ? b : a;
        }
        __syncthreads();
    }
    const double scale = (double)whole_weight() / most[0];
    i64 sum = 0, total;
    for (i64 j = threadIdx.x; j < n; j += 256) sum += part_of(load(x[j * step]), scale);
    before<0>(sum, total);
    // The word of the last that is kept.
    u64 last = ~0ull;
    if (share < 1.0 && total > 0) {
        i64 need = to_i64(ceil(share * (double)total));
        if (need < 1) need = 1;
        last = 0;
        for (i32 shift = 56; shift >= 0; shift -= 8) {
            sums[threadIdx.x] = 0;
            __syncthreads();
            for (i64 j = threadIdx.x; j < n; j += 256) {
                const i64 part = part_of(load(x[j * step]), scale);
                const u64 word = (u64)(whole_weight() - part) << PLACE_BITS | (u64)j;
                if (shift == 56 || (word ^ last) >> (shift + 8) == 0)
                    atomicAdd((u64*)&sums[word >> shift & 255], (u64)part);
            }
            __syncthreads();
            i64 all;
            const i64 own = sums[threadIdx.x], low = before<0>(own, all);
            if (low < need && need <= low + own) {
                found[0] = threadIdx.x;
                found[1] = need - low;
            }
            __syncthreads();
            last |= (u64)found[0] << shift;
            need = found[1];
        }
    }
    for (i64 j = threadIdx.x; j < n; j += 256) {
        const T own = x[j * step];
        const u64 word = (u64)(whole_weight() - part_of(load(own), scale)) << PLACE_BITS | (u64)j;
        T kept = {};
        if (word <= last) kept = own;
        out[j] = kept;
    }
}

}  // namespace ft
