// Many rows by the matrix that each names, so that the rows of one matrix share a reading of it:
// the rows are brought into tiles, each of one matrix, and a block works on a tile. Which rows
// share a tile shows in no result (`quantized.cuh`).

namespace ft {

// The most matrices that are told apart in shared memory, and what a tile has where it is not full.
enum { GROUPS = 1024 };
enum { NO_ROW = 0xffffffff };

// The sum over all 256 threads, for all.
FN u32 sum_of_block(u32 x, u32 (*parts)[8]) {
    const u32 sum = (u32)all_lanes((i32)x, 32);
    if (threadIdx.x % 32 == 0) (*parts)[threadIdx.x / 32] = sum;
    __syncthreads();
    u32 all = 0;
#pragma unroll
    for (u32 w = 0; w < 8; ++w) all += (*parts)[w];
    __syncthreads();
    return all;
}

// A block for each matrix, which finds the matrix's rows, in their order, and the tiles of the
// matrices before. `order` has the rows of each tile, `owners` its matrix.
template <int TILE, class J>
FN void rows_by_group(const J* which, u32* order, u32* owners, IndexError* error, u32 rows,
                      u32 groups, u32 tiles) {
    __shared__ u32 counts[GROUPS], parts[8];
    const u32 own = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (u32 i = threadIdx.x; i < groups; i += 256) counts[i] = 0;
    __syncthreads();
    for (u32 i = threadIdx.x; i < rows; i += 256) {
        const i64 matrix = (i64)which[i];
        if ((u64)matrix < groups) atomicAdd(&counts[matrix], 1u);
        else if (own == 0) report(error, i, matrix, groups);
    }
    __syncthreads();
    u32 before = 0, all = 0;
    for (u32 i = threadIdx.x; i < groups; i += 256) {
        const u32 its = (counts[i] + TILE - 1) / TILE;
        all += its;
        if (i < own) before += its;
    }
    before = sum_of_block(before, &parts);
    all = sum_of_block(all, &parts);
    const u32 first = before * TILE, last = first + counts[own],
              end = (before + (counts[own] + TILE - 1) / TILE) * TILE;
    u32 done = first;
    for (u32 from = 0; from < rows; from += 256) {
        const u32 i = from + threadIdx.x;
        const bool is_own = i < rows && (i64)which[i] == (i64)own;
        const u32 votes = __ballot_sync(0xffffffffu, is_own);
        if (lane == 0) parts[warp] = (u32)__popc(votes);
        __syncthreads();
        u32 at = done + (u32)__popc(votes & ((1u << lane) - 1u));
#pragma unroll
        for (u32 w = 0; w < 8; ++w) {
            if (w < warp) at += parts[w];
            done += parts[w];
        }
        if (is_own) order[at] = i;
        __syncthreads();
    }
    for (u32 i = last + threadIdx.x; i < end; i += 256) order[i] = NO_ROW;
    for (u32 i = before + threadIdx.x; i < end / TILE; i += 256) owners[i] = own;
    if (own + 1 == groups)
        for (u32 i = all + threadIdx.x; i < tiles; i += 256) owners[i] = NO_ROW;
}

// The rows of a tile, in shared memory.
struct Listed {
    const u32* rows;
    FN_MEMBER u64 at(u32 r) const { return rows[r]; }
    FN_MEMBER bool has(u32 r) const { return rows[r] != NO_ROW; }
};

// A tile of rows by its matrix: of eight rows by a panel, or of 64 by eight panels, of plain
// elements by four.
template <int F, int TILE>
FN void product_of_tiles(const u8* w, const typename ColumnsOf<F>::C::X* x, const u32* order,
                         const u32* owners, float* out, u64 n, u32 blocks, u64 panel_bytes) {
    __shared__ u32 rows[TILE];
    const u32 owner = owners[blockIdx.y];
    if (owner == NO_ROW) return;
    if (threadIdx.x < TILE) rows[threadIdx.x] = order[blockIdx.y * TILE + threadIdx.x];
    __syncthreads();
    w += (u64)owner * (n / 16) * panel_bytes;
    const Listed own = {rows};
    if constexpr (TILE == 8) product_of_few<F, 8>(w, x, out, own, n, blocks, panel_bytes);
    else if constexpr (F >= F16) elements_by_many<F>(w, x, out, own, n, blocks, panel_bytes);
    else product_of_many<F, 4, 1>(w, x, out, own, n, blocks, panel_bytes);
}

}  // namespace ft
