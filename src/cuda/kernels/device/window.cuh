// Windows that move over lines, planes and volumes: pooling, and what turns convolutions into matrix products.
//
// No thread writes where another does, and each adds its terms in order: results repeat bit by bit.

namespace ft {

// Depth, height and width each: of the input, the kernel and the output, of strides, padding before and after the input,
// and of the distance of taps.
struct Window { i32 in[3], kernel[3], out[3], stride[3], before[3], after[3], dilation[3]; };
// Steps along depth, height and width, in elements; and before them those between images and channels.
struct Steps3 { i64 at[3]; };
struct Steps5 { i64 n, c, at[3]; };

// A number as coordinates of such a size. Most have no depth: then two divisions are enough.
struct Place { i32 at[3]; };
template <class I>
FN Place place(I i, const i32* size) {
    Place p;
    p.at[2] = (i32)(i % size[2]);
    i /= size[2];
    p.at[0] = size[0] == 1 ? 0 : (i32)(i / size[1]);
    p.at[1] = size[0] == 1 ? (i32)i : (i32)(i % size[1]);
    return p;
}

template <class I>
FN I numel(const i32* size) { return (I)size[0] * size[1] * size[2]; }

FN i64 offset(i32 z, i32 y, i32 x, const i64* step) { return z * step[0] + y * step[1] + x * step[2]; }

// The output along an axis that meets input i under tap k; -1 where none does.
FN i32 output_at(const Window& w, i32 axis, i32 i, i32 k) {
    i32 at = i + w.before[axis] - k * w.dilation[axis];
    if (at < 0 || at % w.stride[axis] != 0) return -1;
    at /= w.stride[axis];
    return at < w.out[axis] ? at : -1;
}

// The taps along an axis that output o may meet the input with: a window may be far larger than its input.
struct Taps { i32 begin, end; };
FN Taps taps_of(const Window& w, i32 axis, i32 o) {
    i32 start = o * w.stride[axis] - w.before[axis], d = w.dilation[axis], room = w.in[axis] - start;
    i32 end = room <= 0 ? 0 : (room - 1) / d + 1;
    return {start < 0 ? (d - 1 - start) / d : 0, end < w.kernel[axis] ? end : w.kernel[axis]};
}

// And those with which input i may be met by an output.
FN Taps taps_at(const Window& w, i32 axis, i32 i) {
    i32 reach = i + w.before[axis], d = w.dilation[axis], last = reach - (w.out[axis] - 1) * w.stride[axis];
    i32 end = reach / d + 1;
    return {last > 0 ? (last - 1) / d + 1 : 0, end < w.kernel[axis] ? end : w.kernel[axis]};
}

// The elements under each output, a row for each channel and tap: row r of batch b begins at
// b * batch_step + r * row_step, and has an element for each place of the output.
template <class T, class I>
FN void im2col(const T* x, T* columns, I n, i32 channels, const Window& w, const Steps5& step, u64 row_step,
               u64 batch_step) {
    I i = (I)blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    I places = numel<I>(w.out), taps = numel<I>(w.kernel), rows = taps * channels;
    I p = i % places, rest = i / places, r = rest % rows, b = rest / rows;
    i32 c = (i32)(r / taps);
    Place to = place<I>(p, w.out), tap = place<I>(r % taps, w.kernel);
    bool met = true;
    i64 at = (i64)b * step.n + c * step.c;
    for (i32 a = 0; a < 3; ++a) {
        i32 y = to.at[a] * w.stride[a] - w.before[a] + tap.at[a] * w.dilation[a];
        met = met && y >= 0 && y < w.in[a];
        at += y * step.at[a];
    }
    T value = {};
    if (met) value = x[at];
    columns[b * batch_step + r * row_step + p] = value;
}

// The way back: each element of the input is the sum of the columns' elements that were copied from it,
// tap by tap. The columns are [batch, channels * taps, places], the result [batch, channels, ..]; with `adds`,
// sums begin with what is there.
template <class A, class T, class I>
FN void col2im(const A* columns, T* out, I n, i32 channels, bool adds, const Window& w) {
    typedef typename Stored<A>::C C;
    I i = (I)blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    I places = numel<I>(w.out), taps = numel<I>(w.kernel), room = numel<I>(w.in);
    I plane = i / room;  // batch and channel
    Place p = place<I>(i % room, w.in);
    const A* from = columns + (u64)plane * taps * places;
    Taps js = taps_at(w, 0, p.at[0]), ks = taps_at(w, 1, p.at[1]), ls = taps_at(w, 2, p.at[2]);
    C sum = 0;
    if (adds) sum = load(out[i]);
    for (i32 j = js.begin; j < js.end; ++j) {
        i32 oz = output_at(w, 0, p.at[0], j);
        if (oz < 0) continue;
        for (i32 k = ks.begin; k < ks.end; ++k) {
            i32 oy = output_at(w, 1, p.at[1], k);
            if (oy < 0) continue;
            for (i32 l = ls.begin; l < ls.end; ++l) {
                i32 ox = output_at(w, 2, p.at[2], l);
                if (ox < 0) continue;
                u64 tap = ((u64)j * w.kernel[1] + k) * w.kernel[2] + l;
                sum = sum + load(from[tap * places + ((u64)oz * w.out[1] + oy) * w.out[2] + ox]);
            }
        }
    }
    out[i] = As<T>::of(sum);
}

// A convolution, a thread an output: for groups, where a product of matrices is not worth it. `depth` and
// `outs` are channels of a group; with `adds`, sums begin with what is there.
template <class T, class I>
FN void convolve(const T* x, const T* weight, T* out, I n, i32 groups, i32 depth, i32 outs, bool adds,
                 const Window& w, const Steps5& xs, const Steps5& ws) {
    typedef typename Stored<T>::C C;
    I i = (I)blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    I places = numel<I>(w.out), plane = i / places;
    Place p = place<I>(i % places, w.out);
    Taps js = taps_of(w, 0, p.at[0]), ks = taps_of(w, 1, p.at[1]), ls = taps_of(w, 2, p.at[2]);
    i32 o = (i32)(plane % ((I)groups * outs)), g = o / outs;
    i64 b = (i64)(plane / ((I)groups * outs));
    C sum = 0;
    if (adds) sum = load(out[i]);
    for (i32 c = 0; c < depth; ++c)
        for (i32 j = js.begin; j < js.end; ++j)
            for (i32 k = ks.begin; k < ks.end; ++k)
                for (i32 l = ls.begin; l < ls.end; ++l) {
                    i32 z = p.at[0] * w.stride[0] - w.before[0] + j * w.dilation[0];
                    i32 y = p.at[1] * w.stride[1] - w.before[1] + k * w.dilation[1];
                    i32 at = p.at[2] * w.stride[2] - w.before[2] + l * w.dilation[2];
                    sum = fma(load(x[b * xs.n + (i64)(g * depth + c) * xs.c + offset(z, y, at, xs.at)]),
                              load(weight[o * ws.n + c * ws.c + offset(j, k, l, ws.at)]), sum);
                }
    out[i] = As<T>::of(sum);
}

// The way back of `convolve` to its input, a thread an element of that.
template <class T, class I>
FN void convolve_back(const T* dy, const T* weight, T* out, I n, i32 groups, i32 depth, i32 outs, bool adds,
                      const Window& w, const Steps5& ds, const Steps5& ws) {
    typedef typename Stored<T>::C C;
    I i = (I)blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    I room = numel<I>(w.in), plane = i / room;
    Place p = place<I>(i % room, w.in);
    Taps js = taps_at(w, 0, p.at[0]), ks = taps_at(w, 1, p.at[1]), ls = taps_at(w, 2, p.at[2]);
    i32 channel = (i32)(plane % ((I)groups * depth)), g = channel / depth, c = channel % depth;
    i64 b = (i64)(plane / ((I)groups * depth));
    C sum = 0;
    if (adds) sum = load(out[i]);
    for (i32 o = g * outs; o < (g + 1) * outs; ++o)
        for (i32 j = js.begin; j < js.end; ++j) {
            i32 oz = output_at(w, 0, p.at[0], j);
            if (oz < 0) continue;
            for (i32 k = ks.begin; k < ks.end; ++k) {
                i32 oy = output_at(w, 1, p.at[1], k);
                if (oy < 0) continue;
                for (i32 l = ls.begin; l < ls.end; ++l) {
                    i32 ox = output_at(w, 2, p.at[2], l);
                    if (ox < 0) continue;
                    sum = fma(load(dy[b * ds.n + o * ds.c + offset(oz, oy, ox, ds.at)]),
                              load(weight[o * ws.n + c * ws.c + offset(j, k, l, ws.at)]), sum);
                }
            }
        }
    out[i] = As<T>::of(sum);
}

// ---- pooling ---------------------------------------------------------------------------------

// By what the sum under a window is divided: `fixed` where that is not 0, else the elements that it meets,
// those of the padding too where `padded`.
FN i64 divisor(const Window& w, i32 oz, i32 oy, i32 ox, i64 fixed, bool padded) {
    if (fixed != 0) return fixed;
    const i32 o[3] = {oz, oy, ox};
    i64 all = 1;
    for (i32 a = 0; a < 3; ++a) {
        i32 start = o[a] * w.stride[a] - w.before[a], d = w.dilation[a];
        i32 room = w.in[a] + (padded ? w.after[a] : 0) - start;
        i32 end = room <= 0 ? 0 : (room - 1) / d + 1;
        if (end > w.kernel[a]) end = w.kernel[a];
        all *= end - (padded || start >= 0 ? 0 : (d - 1 - start) / d);
    }
    return all;
}

// The largest element under each window (NaN if one is NaN), or where it is in its plane: of equals the
// first, of NaNs the last. `planes` holds where each plane begins.
template <bool POSITION, class T, class O, class I>
FN void pool_max(const T* x, O* out, I n, const Window& w, const Geo64<1>& planes, const Steps3& step) {
    typedef typename Stored<T>::C C;
    I i = (I)blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    I places = numel<I>(w.out);
    Place p = place<I>(i % places, w.out);
    Taps js = taps_of(w, 0, p.at[0]), ks = taps_of(w, 1, p.at[1]), ls = taps_of(w, 2, p.at[2]);
    i64 off[1];
    offsets<1, Geo64>(planes, (u64)(i / places), off);
    C best = C();
    i64 at = -1;
    for (i32 j = js.begin; j < js.end; ++j) {
        i32 z = p.at[0] * w.stride[0] - w.before[0] + j * w.dilation[0];
        for (i32 k = ks.begin; k < ks.end; ++k) {
            i32 y = p.at[1] * w.stride[1] - w.before[1] + k * w.dilation[1];
            for (i32 l = ls.begin; l < ls.end; ++l) {
                i32 here = p.at[2] * w.stride[2] - w.before[2] + l * w.dilation[2];
                C value = load(x[off[0] + offset(z, y, here, step.at)]);
                if (at < 0 || value > best || value != value) {
                    best = value;
                    at = ((i64)z * w.in[1] + y) * w.in[2] + here;
                }
            }
        }
    }
    // One of them is what O is; the other is not compiled to anything.
    if (POSITION) *(i64*)&out[i] = at;
    else *(T*)&out[i] = As<T>::of(best);
}

template <class T, class I>
FN void pool_mean(const T* x, T* out, I n, const Window& w, const Geo64<1>& planes, const Steps3& step, i64 fixed,
                  bool padded) {
    typedef typename Stored<T>::C C;
    I i = (I)blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    I places = numel<I>(w.out);
    Place p = place<I>(i % places, w.out);
    Taps js = taps_of(w, 0, p.at[0]), ks = taps_of(w, 1, p.at[1]), ls = taps_of(w, 2, p.at[2]);
    i64 off[1];
    offsets<1, Geo64>(planes, (u64)(i / places), off);
    C sum = 0;
    for (i32 j = js.begin; j < js.end; ++j) {
        i32 z = p.at[0] * w.stride[0] - w.before[0] + j * w.dilation[0];
        for (i32 k = ks.begin; k < ks.end; ++k) {
            i32 y = p.at[1] * w.stride[1] - w.before[1] + k * w.dilation[1];
            for (i32 l = ls.begin; l < ls.end; ++l) {
                i32 here = p.at[2] * w.stride[2] - w.before[2] + l * w.dilation[2];
                sum = sum + load(x[off[0] + offset(z, y, here, step.at)]);
            }
        }
    }
    out[i] = As<T>::of(sum / (C)divisor(w, p.at[0], p.at[1], p.at[2], fixed, padded));
}

// The way back of `pool_mean`.
template <class T, class I>
FN void pool_spread(const T* dy, T* out, I n, const Window& w, const Geo64<1>& planes, const Steps3& step, i64 fixed,
                    bool padded) {
    typedef typename Stored<T>::C C;
    I i = (I)blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    I room = numel<I>(w.in);
    Place p = place<I>(i % room, w.in);
    Taps js = taps_at(w, 0, p.at[0]), ks = taps_at(w, 1, p.at[1]), ls = taps_at(w, 2, p.at[2]);
    i64 off[1];
    offsets<1, Geo64>(planes, (u64)(i / room), off);
    C sum = 0;
    for (i32 j = js.begin; j < js.end; ++j) {
        i32 oz = output_at(w, 0, p.at[0], j);
        if (oz < 0) continue;
        for (i32 k = ks.begin; k < ks.end; ++k) {
            i32 oy = output_at(w, 1, p.at[1], k);
            if (oy < 0) continue;
            for (i32 l = ls.begin; l < ls.end; ++l) {
                i32 ox = output_at(w, 2, p.at[2], l);
                if (ox < 0) continue;
                C by = (C)divisor(w, oz, oy, ox, fixed, padded);
                sum = sum + load(dy[off[0] + offset(oz, oy, ox, step.at)]) / by;
            }
        }
    }
    out[i] = As<T>::of(sum);
}

}  // namespace ft
