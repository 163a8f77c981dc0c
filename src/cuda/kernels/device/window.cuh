// Windows that move over lines, planes and volumes: pooling, and the matrices that turn
// convolutions into products.
//
// No thread writes where another does, and each adds its terms in order: results repeat bit by bit.

namespace ft {

// Depth, height and width each: of the input, the kernel and the output, of padding before and
// after the input; by how much the taps that one element of the input meets differ, and the outputs
// that it meets there; of strides, and of the distance of taps. Last the kernel's height. Divisors
// are Axis32.
struct Window {
    i32 in[3], kernel[3], out[3], before[3], after[3], tap_step[3], out_step[3];
    Axis32 stride[3], dilation[3], height;
};
FN i32 stride(const Window& w, i32 axis) { return (i32)w.stride[axis].size; }
FN i32 dilation(const Window& w, i32 axis) { return (i32)w.dilation[axis].size; }
// For n of 0 and more.
FN i32 over(const Axis32& by, i32 n) { return (i32)quotient(by, (u32)n); }

// Steps along depth, height and width, in elements; and before them those between images and
// channels.
struct Steps3 { i64 at[3]; };
struct Steps5 { i64 n, c, at[3]; };

// How a number is cut into coordinates: width, height, depth, channels of a group, groups; the rest
// is an image.
template <class I> struct Split { Axis32 axis[5]; };
template <> struct Split<u64> { Axis64 axis[5]; };
template <class I> struct Cut {
    I image;
    i32 at[3], channel, group;
};
template <class I> FN Cut<I> cut(I i, const Split<I>& s) {
    i32 part[5];
#pragma unroll
    for (int a = 0; a < 5; ++a) {
        const I q = quotient(s.axis[a], i);
        part[a] = (i32)(i - q * s.axis[a].size);
        i = q;
    }
    return {i, {part[2], part[1], part[0]}, part[3], part[4]};
}

template <class I>
FN I numel(const i32* size) { return (I)size[0] * size[1] * size[2]; }

FN i64 offset(i32 z, i32 y, i32 x, const i64* step) {
    return z * step[0] + y * step[1] + x * step[2];
}

// The taps along an axis that output o may meet the input with: a window may be far larger than its
// input.
struct Taps { i32 begin, end; };
FN Taps taps_of(const Window& w, i32 axis, i32 o) {
    i32 start = o * stride(w, axis) - w.before[axis], room = w.in[axis] - start;
    i32 begin = start < 0 ? over(w.dilation[axis], dilation(w, axis) - 1 - start) : 0;
    i32 end = room <= 0 ? 0 : over(w.dilation[axis], room - 1) + 1;
    return {begin, end < w.kernel[axis] ? end : w.kernel[axis]};
}

// The taps under which an output meets input i, the first with its output; the next is `next` on.
struct Met {
    i32 tap, out, end;
    FN_MEMBER bool any() const { return tap < end; }
    FN_MEMBER void next(const Window& w, i32 axis) {
        tap += w.tap_step[axis];
        out -= w.out_step[axis];
    }
};
FN Met met_by(const Window& w, i32 axis, i32 i) {
    i32 reach = i + w.before[axis], last = reach - (w.out[axis] - 1) * stride(w, axis);
    i32 end = over(w.dilation[axis], reach) + 1,
        tap = last > 0 ? over(w.dilation[axis], last - 1) + 1 : 0;
    if (end > w.kernel[axis]) end = w.kernel[axis];
    // One of so many begins at an output, or none does.
    for (i32 tries = w.tap_step[axis]; tries > 0 && tap < end; --tries, ++tap) {
        i32 at = reach - tap * dilation(w, axis), out = over(w.stride[axis], at);
        if (out * stride(w, axis) == at) return {tap, out, end};
    }
    return {end, 0, end};
}

// The elements under each output, a row for each channel and tap: row r of batch b begins at b *
// batch_step + r * row_step, and has an element for each place of the output. A thread takes a
// place of a channel, for a row of the kernel after the other.
template <class T, class I>
FN void im2col(const T* x, T* columns, I n, const Window& w, const Split<I>& split,
               const Steps5& step, u64 row_step, u64 batch_step) {
    I i = (I)blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    const Cut<I> to = cut(i, split);
    const i64 plane = (i64)to.image * step.n + to.channel * step.c;
    const u64 place = ((u64)to.at[0] * w.out[1] + to.at[1]) * w.out[2] + to.at[2];
    columns += to.image * batch_step + to.channel * numel<u64>(w.kernel) * row_step + place;
    i32 start[3];
    for (i32 a = 0; a < 3; ++a) start[a] = to.at[a] * stride(w, a) - w.before[a];
    for (u32 r = blockIdx.y; r < (u32)w.kernel[0] * w.kernel[1]; r += gridDim.y) {
        const i32 j = over(w.height, r), k = (i32)r - j * w.kernel[1];
        const i32 z = start[0] + j * dilation(w, 0), y = start[1] + k * dilation(w, 1);
        const bool met = z >= 0 && z < w.in[0] && y >= 0 && y < w.in[1];
        const i64 line = plane + z * step.at[0] + y * step.at[1];
        for (i32 l = 0; l < w.kernel[2]; ++l) {
            const i32 at = start[2] + l * dilation(w, 2);
            T value = {};
            if (met && at >= 0 && at < w.in[2]) value = x[line + at * step.at[2]];
            columns[((u64)r * w.kernel[2] + l) * row_step] = value;
        }
    }
}

// The way back: each element of the input is the sum of the columns' elements that were copied from
// it, tap by tap. The columns are [batch, channels * taps, places], the result [batch, channels,
// ..]; with `adds`, sums begin with the old value.
template <class A, class T, class I>
FN void col2im(const A* columns, T* out, I n, bool adds, const Window& w, const Split<I>& split) {
    typedef typename Stored<A>::C C;
    I i = (I)blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    const Cut<I> p = cut(i, split);  // whose image is one of a batch and a channel
    const u64 places = numel<u64>(w.out);
    const A* from = columns + p.image * numel<u64>(w.kernel) * places;
    const Met first = met_by(w, 1, p.at[1]), left = met_by(w, 2, p.at[2]);
    C sum = 0;
    if (adds) sum = load(out[i]);
    for (Met z = met_by(w, 0, p.at[0]); z.any(); z.next(w, 0))
        for (Met y = first; y.any(); y.next(w, 1))
            for (Met x = left; x.any(); x.next(w, 2)) {
                u64 tap = ((u64)z.tap * w.kernel[1] + y.tap) * w.kernel[2] + x.tap;
                sum = sum +
                      load(from[tap * places + ((u64)z.out * w.out[1] + y.out) * w.out[2] + x.out]);
            }
    out[i] = As<T>::of(sum);
}

// A convolution, a thread an output: for groups, where a product of matrices is not worth it.
// `depth` are the channels of a group that are summed over; with `adds`, sums begin with the
// old value.
template <class T, class I>
FN void convolve(const T* x, const T* weight, T* out, I n, i32 depth, bool adds, const Window& w,
                 const Split<I>& split, const Steps5& xs, const Steps5& ws) {
    typedef typename Stored<T>::C C;
    I i = (I)blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    const Cut<I> p = cut(i, split);
    const i32 outs = (i32)split.axis[3].size;
    const Taps js = taps_of(w, 0, p.at[0]), ks = taps_of(w, 1, p.at[1]),
               ls = taps_of(w, 2, p.at[2]);
    const i64 right = xs.at[2] * dilation(w, 2);
    x += (i64)p.image * xs.n + (i64)p.group * depth * xs.c
         + (p.at[2] * stride(w, 2) - w.before[2] + ls.begin * dilation(w, 2)) * xs.at[2];
    weight += ((i64)p.group * outs + p.channel) * ws.n + ls.begin * ws.at[2];
    C sum = 0;
    if (adds) sum = load(out[i]);
    for (i32 c = 0; c < depth; ++c, x += xs.c, weight += ws.c)
        for (i32 j = js.begin; j < js.end; ++j)
            for (i32 k = ks.begin; k < ks.end; ++k) {
                i32 z = p.at[0] * stride(w, 0) - w.before[0] + j * dilation(w, 0);
                i32 y = p.at[1] * stride(w, 1) - w.before[1] + k * dilation(w, 1);
                i64 from = z * xs.at[0] + y * xs.at[1], by = j * ws.at[0] + k * ws.at[1];
                for (i32 l = ls.begin; l < ls.end; ++l, from += right, by += ws.at[2])
                    sum = fma(load(x[from]), load(weight[by]), sum);
            }
    out[i] = As<T>::of(sum);
}

// The way back of `convolve` to its input, a thread an element of that; `outs` are summed over.
template <class T, class I>
FN void convolve_back(const T* dy, const T* weight, T* out, I n, i32 outs, bool adds,
                      const Window& w, const Split<I>& split, const Steps5& ds, const Steps5& ws) {
    typedef typename Stored<T>::C C;
    I i = (I)blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    const Cut<I> p = cut(i, split);
    const Met front = met_by(w, 0, p.at[0]), first = met_by(w, 1, p.at[1]),
              left = met_by(w, 2, p.at[2]);
    dy += (i64)p.image * ds.n + (i64)p.group * outs * ds.c;
    weight += (i64)p.group * outs * ws.n + p.channel * ws.c;
    C sum = 0;
    if (adds) sum = load(out[i]);
    for (i32 o = 0; o < outs; ++o, dy += ds.c, weight += ws.n)
        for (Met z = front; z.any(); z.next(w, 0))
            for (Met y = first; y.any(); y.next(w, 1))
                for (Met x = left; x.any(); x.next(w, 2))
                    sum = fma(load(dy[offset(z.out, y.out, x.out, ds.at)]),
                              load(weight[offset(z.tap, y.tap, x.tap, ws.at)]), sum);
    out[i] = As<T>::of(sum);
}

// ---- pooling ---------------------------------------------------------------------------------

// The divisor of the sum under a window: `fixed` where that is not 0, else the elements that it
// meets, those of the padding too where `padded`.
FN i64 divisor(const Window& w, i32 oz, i32 oy, i32 ox, i64 fixed, bool padded) {
    if (fixed != 0) return fixed;
    const i32 o[3] = {oz, oy, ox};
    i64 all = 1;
    for (i32 a = 0; a < 3; ++a) {
        i32 start = o[a] * stride(w, a) - w.before[a];
        i32 room = w.in[a] + (padded ? w.after[a] : 0) - start;
        i32 end = room <= 0 ? 0 : over(w.dilation[a], room - 1) + 1;
        if (end > w.kernel[a]) end = w.kernel[a];
        all *= end - (padded || start >= 0 ? 0 : over(w.dilation[a], dilation(w, a) - 1 - start));
    }
    return all;
}

// The largest of the elements that it sees (NaN if one is NaN), or where that is: of equals the
// first, of NaNs the last.
template <bool POSITION, class T, class O>
struct Largest {
    typedef typename Stored<T>::C C;
    C best;
    i64 at;
    bool any;
    FN_MEMBER Largest() : best(C()), at(-1), any(false) {}
    FN_MEMBER void see(C value, i64 place) {
        if (!any || value > best || value != value) {
            best = value;
            any = true;
            if (POSITION) at = place;
        }
    }
    // O is the type of one of them; the other is not compiled to anything.
    FN_MEMBER void put(O* out) const {
        if (POSITION) *(i64*)out = at;
        else *(T*)out = As<T>::of(best);
    }
};

// The largest element under each window, or where it is in its plane. `planes` holds where each
// plane begins.
template <bool POSITION, class T, class O, class I>
FN void pool_max(const T* x, O* out, I n, const Window& w, const Split<I>& split,
                 const Geo64<1>& planes, const Steps3& step) {
    I i = (I)blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    const Cut<I> p = cut(i, split);  // whose image is a plane
    Taps js = taps_of(w, 0, p.at[0]), ks = taps_of(w, 1, p.at[1]), ls = taps_of(w, 2, p.at[2]);
    i64 off[1];
    offsets<1, Geo64>(planes, (u64)p.image, off);
    Largest<POSITION, T, O> found;
    for (i32 j = js.begin; j < js.end; ++j) {
        i32 z = p.at[0] * stride(w, 0) - w.before[0] + j * dilation(w, 0);
        for (i32 k = ks.begin; k < ks.end; ++k) {
            i32 y = p.at[1] * stride(w, 1) - w.before[1] + k * dilation(w, 1);
            for (i32 l = ls.begin; l < ls.end; ++l) {
                i32 here = p.at[2] * stride(w, 2) - w.before[2] + l * dilation(w, 2);
                found.see(load(x[off[0] + offset(z, y, here, step.at)]),
                          ((i64)z * w.in[1] + y) * w.in[2] + here);
            }
        }
    }
    found.put(&out[i]);
}

// Depth, height and width each, of the input and of the output: cells that cover an axis evenly, of
// which neighbours may have an element in common.
struct Cells { i32 in[3], out[3]; };
struct Interval { i32 begin, end; };
FN Interval interval(const Cells& c, i32 axis, i32 cell) {
    const i64 in = c.in[axis], out = c.out[axis];
    return {(i32)(cell * in / out), (i32)(((cell + 1) * in + out - 1) / out)};
}

// The largest element of each cell, or where it is in its plane.
template <bool POSITION, class T, class O, class I>
FN void cells_max(const T* x, O* out, I n, const Cells& cells, const Split<I>& split,
                  const Geo64<1>& planes, const Steps3& step) {
    I i = (I)blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    const Cut<I> p = cut(i, split);  // whose image is a plane
    const Interval zs = interval(cells, 0, p.at[0]), ys = interval(cells, 1, p.at[1]),
                   xs = interval(cells, 2, p.at[2]);
    i64 off[1];
    offsets<1, Geo64>(planes, (u64)p.image, off);
    Largest<POSITION, T, O> found;
    for (i32 z = zs.begin; z < zs.end; ++z)
        for (i32 y = ys.begin; y < ys.end; ++y)
            for (i32 here = xs.begin; here < xs.end; ++here)
                found.see(load(x[off[0] + offset(z, y, here, step.at)]),
                          ((i64)z * cells.in[1] + y) * cells.in[2] + here);
    found.put(&out[i]);
}

template <class T, class I>
FN void pool_mean(const T* x, T* out, I n, const Window& w, const Split<I>& split,
                  const Geo64<1>& planes, const Steps3& step, i64 fixed, bool padded) {
    typedef typename Stored<T>::C C;
    I i = (I)blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    const Cut<I> p = cut(i, split);  // whose image is a plane
    Taps js = taps_of(w, 0, p.at[0]), ks = taps_of(w, 1, p.at[1]), ls = taps_of(w, 2, p.at[2]);
    i64 off[1];
    offsets<1, Geo64>(planes, (u64)p.image, off);
    C sum = 0;
    for (i32 j = js.begin; j < js.end; ++j) {
        i32 z = p.at[0] * stride(w, 0) - w.before[0] + j * dilation(w, 0);
        for (i32 k = ks.begin; k < ks.end; ++k) {
            i32 y = p.at[1] * stride(w, 1) - w.before[1] + k * dilation(w, 1);
            for (i32 l = ls.begin; l < ls.end; ++l) {
                i32 here = p.at[2] * stride(w, 2) - w.before[2] + l * dilation(w, 2);
                sum = sum + load(x[off[0] + offset(z, y, here, step.at)]);
            }
        }
    }
    out[i] = As<T>::of(sum / (C)divisor(w, p.at[0], p.at[1], p.at[2], fixed, padded));
}

// The way back of `pool_mean`.
template <class T, class I>
FN void pool_spread(const T* dy, T* out, I n, const Window& w, const Split<I>& split,
                    const Geo64<1>& planes, const Steps3& step, i64 fixed, bool padded) {
    typedef typename Stored<T>::C C;
    I i = (I)blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    const Cut<I> p = cut(i, split);
    const Met first = met_by(w, 1, p.at[1]), left = met_by(w, 2, p.at[2]);
    i64 off[1];
    offsets<1, Geo64>(planes, (u64)p.image, off);
    C sum = 0;
    for (Met z = met_by(w, 0, p.at[0]); z.any(); z.next(w, 0))
        for (Met y = first; y.any(); y.next(w, 1))
            for (Met x = left; x.any(); x.next(w, 2)) {
                C by = (C)divisor(w, z.out, y.out, x.out, fixed, padded);
                sum = sum + load(dy[off[0] + offset(z.out, y.out, x.out, step.at)]) / by;
            }
    out[i] = As<T>::of(sum);
}

}  // namespace ft
