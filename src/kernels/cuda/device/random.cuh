// Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): the same
// words as on the CPU. The counter is the block index in words 0 and 1, the key the seed.

namespace ft {

struct Block { u32 w[4]; };

FN Block philox(u64 seed, u64 index) {
    u32 k0 = (u32)seed, k1 = (u32)(seed >> 32);
    u32 c0 = (u32)index, c1 = (u32)(index >> 32), c2 = 0, c3 = 0;
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        u32 h0 = mul_high(0xD2511F53u, c0), l0 = 0xD2511F53u * c0;
        u32 h1 = mul_high(0xCD9E8D57u, c2), l1 = 0xCD9E8D57u * c2;
        c0 = h1 ^ c1 ^ k0; c1 = l1;
        c2 = h0 ^ c3 ^ k1; c3 = l0;
        k0 += 0x9E3779B9u; k1 += 0xBB67AE85u;
    }
    Block b;
    b.w[0] = c0; b.w[1] = c1; b.w[2] = c2; b.w[3] = c3;
    return b;
}

// `start + i * step`, in double or in wrapping i64.
FN double arange(double start, double step, u64 i) { return start + (double)i * step; }
FN i64 arange(i64 start, i64 step, u64 i) { return (i64)((u64)start + i * (u64)step); }

}  // namespace ft
