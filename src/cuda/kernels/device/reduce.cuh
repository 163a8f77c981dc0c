// Reductions in a fixed order: the shape and the type of the reduced value alone decide the
// elements that are added together, and the order in which their sums are joined, with any strides,
// so a result repeats bit by bit. No float atomics.
//
// A row is shared by a team of 1 to 256 members. Sums run in 4 or more chains a member, each chain
// in blocks of 16 steps that are added up on their own, then in a tree over 32 members, then over
// the 32s and over splits: the error grows with the logarithm of the length and a sixteenth of a
// member's share. `reduce_rows` has a thread for each member; `reduce_turned`, for rows that lie
// side by side, lets neighbouring threads take neighbouring rows, and does a member's work, and
// joins, as the other does.

namespace ft {

// An operation: `A` is the accumulator, `none` its neutral element, `take` joins an element to one,
// and where it stands in its row.
template <class T> struct Sum {
    typedef T A;
    static FN_MEMBER A none() { return (A)0; }
    template <class C> static FN_MEMBER void take(A& a, C x, u64) { a = join(a, (A)x); }
    static FN_MEMBER A join(A a, A b) { return add(a, b); }
};
template <class T> struct Prod {
    typedef T A;
    static FN_MEMBER A none() { return (A)1; }
    template <class C> static FN_MEMBER void take(A& a, C x, u64) { a = join(a, (A)x); }
    static FN_MEMBER A join(A a, A b) { return mul(a, b); }
};
struct Any {
    typedef bool A;
    static FN_MEMBER A none() { return false; }
    template <class C> static FN_MEMBER void take(A& a, C x, u64) { a = join(a, truth(x)); }
    static FN_MEMBER A join(A a, A b) { return a || b; }
};
struct All {
    typedef bool A;
    static FN_MEMBER A none() { return true; }
    template <class C> static FN_MEMBER void take(A& a, C x, u64) { a = join(a, truth(x)); }
    static FN_MEMBER A join(A a, A b) { return a && b; }
};

// `sign` 1 finds the largest, -1 the smallest. NaN beats all, the first of equals wins. (Of whole
// numbers the second half of the question is not asked.)
template <class T, int sign> FN bool beats(T a, T b) {
    return !(sign > 0 ? a <= b : a >= b) && b == b;
}
// What beats nothing.
FN float last(float x, int sign) { return sign > 0 ? -inf(x) : inf(x); }
FN double last(double x, int sign) { return sign > 0 ? -inf(x) : inf(x); }
FN i32 last(i32, int sign) { return sign > 0 ? -0x7fffffff - 1 : 0x7fffffff; }
FN i64 last(i64, int sign) { return sign > 0 ? -0x7fffffffffffffffll - 1 : 0x7fffffffffffffffll; }
FN u8 last(u8, int sign) { return sign > 0 ? 0 : 255; }
FN bool last(bool, int sign) { return sign < 0; }

template <class T, int sign> struct Best {
    typedef T A;
    static FN_MEMBER A none() { return last(T(), sign); }
    static FN_MEMBER void take(A& a, T x, u64) { a = join(a, x); }
    static FN_MEMBER A join(A a, A b) { return beats<T, sign>(b, a) ? b : a; }
};

// An element and where it stands, the number of an I; none stands at its largest. What beats
// nothing is never taken: where there is none in the end, all are that, and the first one won.
template <class T, class I> struct Place {
    T x;
    I at;
    FN_MEMBER i64 found() const { return at == (I)~(I)0 ? 0 : (i64)at; }
};
template <class T, int sign, class I> struct ArgBest {
    typedef Place<T, I> A;
    static FN_MEMBER A none() { return {last(T(), sign), (I)~(I)0}; }
    // Of a thread's elements the later ones stand behind.
    static FN_MEMBER void take(A& a, T x, I at) {
        if (beats<T, sign>(x, a.x)) a = {x, at};
    }
    static FN_MEMBER A join(A a, A b) {
        const bool equal = !beats<T, sign>(a.x, b.x) && b.at < a.at;
        return beats<T, sign>(b.x, a.x) || equal ? b : a;
    }
};

// ---- lanes of a warp -----------------------------------------------------------------------

FN float lane_xor(float x, int d) { return __shfl_xor_sync(0xffffffffu, x, d); }
FN double lane_xor(double x, int d) { return __shfl_xor_sync(0xffffffffu, x, d); }
FN i32 lane_xor(i32 x, int d) { return __shfl_xor_sync(0xffffffffu, x, d); }
FN i64 lane_xor(i64 x, int d) { return __shfl_xor_sync(0xffffffffu, x, d); }
FN u8 lane_xor(u8 x, int d) { return (u8)__shfl_xor_sync(0xffffffffu, (i32)x, d); }
FN bool lane_xor(bool x, int d) { return __shfl_xor_sync(0xffffffffu, (i32)x, d) != 0; }
FN u32 lane_xor(u32 x, int d) { return (u32)lane_xor((i32)x, d); }
FN u64 lane_xor(u64 x, int d) { return (u64)lane_xor((i64)x, d); }
template <class T, class I> FN Place<T, I> lane_xor(Place<T, I> p, int d) {
    return {lane_xor(p.x, d), lane_xor(p.at, d)};
}

// Joins the values of `lanes` neighbouring threads of a warp, 1, 2, 4 ... or 32, or of a whole
// block of X threads; all get the result.
template <class Op, int X> FN typename Op::A join_all(typename Op::A a, u32 lanes) {
    typedef typename Op::A A;
#pragma unroll
    for (u32 d = 1; d < 32; d *= 2) {
        if (d >= lanes) break;
        A b = lane_xor(a, d);
        // The lower lane's value comes first for both, so that both get the same bits.
        a = (threadIdx.x & d) ? Op::join(b, a) : Op::join(a, b);
    }
    if (X > 32) {
        __shared__ A part[X / 32];
        __syncthreads();  // an earlier call's readers are done
        if ((threadIdx.x & 31) == 0) part[threadIdx.x / 32] = a;
        __syncthreads();
        a = part[0];
#pragma unroll
        for (int w = 1; w < X / 32; ++w) a = Op::join(a, part[w]);
    }
    return a;
}
template <class Op, int X> FN typename Op::A join_all(typename Op::A a) {
    return join_all<Op, X>(a, 32);
}

// ---- one output, many threads --------------------------------------------------------------

// The part of a reduction that one thread carries: elements first, first + step... below end, V at
// a time. `at(j, acc)` joins elements j..j+V into acc[0..V].
template <class Op, int V, class I, class At>
FN typename Op::A carry(I first, I step, I end, const At& at) {
    typedef typename Op::A A;
    const int U = V >= 4 ? 1 : 4 / V;  // independent chains hide latency
    A total[U * V];
#pragma unroll
    for (int c = 0; c < U * V; ++c) total[c] = Op::none();
    for (I j = first; j < end;) {
        A block[U * V];
#pragma unroll
        for (int c = 0; c < U * V; ++c) block[c] = Op::none();
        for (int t = 0; t < 16 && j < end; ++t) {
#pragma unroll
            for (int u = 0; u < U; ++u)
                if (j + u * step < end) at(j + u * step, block + u * V);
            j += U * step;
        }
#pragma unroll
        for (int c = 0; c < U * V; ++c) total[c] = Op::join(total[c], block[c]);
    }
#pragma unroll
    for (int d = 1; d < U * V; d *= 2)
#pragma unroll
        for (int c = 0; c + d < U * V; c += 2 * d) total[c] = Op::join(total[c], total[c + d]);
    return total[0];
}

// A row by a thread for each member of its team: blockDim is (team, rows of a block), and X the
// largest team; blockIdx.y is the split of the row. `row(r)` gives an `at`, `put(r, split, a)`
// takes the result.
template <class Op, int V, int X, class I, class Row, class Put>
FN void reduce_rows(I rows, I len, I chunk, u32 team, const Row& row, const Put& put) {
    I r = (I)blockIdx.x * blockDim.y + threadIdx.y;
    I begin = (I)blockIdx.y * chunk;
    I end = len - begin < chunk ? len : begin + chunk;
    typename Op::A a = Op::none();
    if (r < rows) a = carry<Op, V, I>(begin + (I)threadIdx.x * V, (I)team * V, end, row(r));
    a = join_all<Op, X>(a, team < 32 ? team : 32);
    if (r < rows && threadIdx.x == 0) put(r, blockIdx.y, a);
}

// Neighbouring threads take neighbouring rows; blockDim is (rows of a block, Y), at most 1024
// threads, and each of Y threads does the work of team / Y neighbouring members, at most 16.
template <class Op, int V, class I, class Row, class Put>
FN void reduce_turned(I rows, I len, I chunk, u32 team, const Row& row, const Put& put) {
    typedef typename Op::A A;
    __shared__ A part[1024];
    I r = (I)blockIdx.x * blockDim.x + threadIdx.x;
    I begin = (I)blockIdx.y * chunk;
    I end = len - begin < chunk ? len : begin + chunk;
    u32 members = team / blockDim.y;
    A a = Op::none();
    if (r < rows) {
        const auto at = row(r);
        // Results of pairs, fours... of members that have no partner yet.
        A left[5];
        for (u32 i = 0; i < members; ++i) {
            a = carry<Op, V, I>(begin + (I)(threadIdx.y * members + i) * V, (I)team * V, end, at);
            bool open = true;
#pragma unroll
            for (int l = 0; l < 5; ++l) {
                if (open && (i >> l & 1)) {
                    a = Op::join(left[l], a);
                } else if (open) {
                    left[l] = a;
                    open = false;
                }
            }
        }
    }
    u32 me = threadIdx.y * blockDim.x + threadIdx.x;
    part[me] = a;
    // The tree over 32 members, as lanes of a warp join; then from 32 to 32.
    u32 group = (team < 32 ? team : 32) / members;
    for (u32 d = 1; d < group; d *= 2) {
        __syncthreads();
        if (threadIdx.y % (2 * d) == 0) part[me] = a = Op::join(a, part[me + d * blockDim.x]);
    }
    __syncthreads();
    if (r < rows && threadIdx.y == 0) {
        for (u32 y = group; y < blockDim.y; y += group)
            a = Op::join(a, part[y * blockDim.x + threadIdx.x]);
        put(r, blockIdx.y, a);
    }
}

}  // namespace ft
