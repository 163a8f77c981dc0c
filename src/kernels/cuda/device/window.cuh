// Windows that move over planes: pooling, and what turns convolutions into matrix products.
//
// No thread writes where another does, and each adds its terms in order: results repeat bit by bit.

namespace ft {

// Height and width of input, kernel, output; stride, padding, dilation.
struct Window { i32 ih, iw, kh, kw, oh, ow, sh, sw, ph, pw, dh, dw; };
// Steps of four dimensions, in elements.
struct Steps4 { i64 n, c, h, w; };

// The output along an axis that meets input i under tap k; -1 where none does.
FN i32 output_at(i32 i, i32 k, i32 stride, i32 padding, i32 dilation, i32 outputs) {
    i32 at = i + padding - k * dilation;
    if (at < 0 || at % stride != 0) return -1;
    at /= stride;
    return at < outputs ? at : -1;
}

// The elements under each output, a row for each channel and tap: row r of batch b begins at
// b * batch_step + r * row_step, and has an element for each place of the output.
template <class T, class I>
FN void im2col(const T* x, T* columns, I n, i32 channels, const Window& w, const Steps4& step, u64 row_step,
               u64 batch_step) {
    I i = (I)blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    I places = (I)w.oh * w.ow, taps = (I)w.kh * w.kw, rows = taps * channels;
    I p = i % places, rest = i / places, r = rest % rows, b = rest / rows;
    i32 tap = (i32)(r % taps), c = (i32)(r / taps);
    i32 y = (i32)(p / w.ow) * w.sh - w.ph + tap / w.kw * w.dh;
    i32 z = (i32)(p % w.ow) * w.sw - w.pw + tap % w.kw * w.dw;
    T value = {};
    if (y >= 0 && y < w.ih && z >= 0 && z < w.iw) value = x[(i64)b * step.n + c * step.c + y * step.h + z * step.w];
    columns[b * batch_step + r * row_step + p] = value;
}

// The way back: each element of the input is the sum of the columns' elements that were copied from it,
// tap by tap. The columns are [batch, channels * taps, places], the result [batch, channels, height, width].
template <class A, class T, class I>
FN void col2im(const A* columns, T* out, I n, i32 channels, const Window& w) {
    typedef typename Stored<A>::C C;
    I i = (I)blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    I places = (I)w.oh * w.ow, taps = (I)w.kh * w.kw;
    i32 z = (i32)(i % w.iw), y = (i32)(i / w.iw % w.ih);
    I plane = i / w.iw / w.ih;  // batch and channel
    const A* from = columns + (u64)plane * taps * places;
    C sum = 0;
    for (i32 k = 0; k < w.kh; ++k) {
        i32 oy = output_at(y, k, w.sh, w.ph, w.dh, w.oh);
        if (oy < 0) continue;
        for (i32 l = 0; l < w.kw; ++l) {
            i32 ox = output_at(z, l, w.sw, w.pw, w.dw, w.ow);
            if (ox >= 0) sum = sum + load(from[(u64)(k * w.kw + l) * places + (u64)oy * w.ow + ox]);
        }
    }
    out[i] = As<T>::of(sum);
}

// A convolution, a thread an output: for groups, where a product of matrices is not worth it. `depth` and
// `outs` are channels of a group; with `adds`, sums begin with what is there.
template <class T, class I>
FN void convolve(const T* x, const T* weight, T* out, I n, i32 groups, i32 depth, i32 outs, bool adds,
                 const Window& w, const Steps4& xs, const Steps4& ws) {
    typedef typename Stored<T>::C C;
    I i = (I)blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    i32 ox = (i32)(i % w.ow), oy = (i32)(i / w.ow % w.oh);
    I plane = i / w.ow / w.oh;
    i32 o = (i32)(plane % ((I)groups * outs)), g = o / outs;
    i64 b = (i64)(plane / ((I)groups * outs));
    C sum = 0;
    if (adds) sum = load(out[i]);
    for (i32 c = 0; c < depth; ++c)
        for (i32 k = 0; k < w.kh; ++k) {
            i32 y = oy * w.sh - w.ph + k * w.dh;
            if (y < 0 || y >= w.ih) continue;
            for (i32 l = 0; l < w.kw; ++l) {
                i32 z = ox * w.sw - w.pw + l * w.dw;
                if (z < 0 || z >= w.iw) continue;
                sum = fma(load(x[b * xs.n + (i64)(g * depth + c) * xs.c + y * xs.h + z * xs.w]),
                          load(weight[o * ws.n + c * ws.c + k * ws.h + l * ws.w]), sum);
            }
        }
    out[i] = As<T>::of(sum);
}

// The way back of `convolve` to its input, a thread an element of that.
template <class T, class I>
FN void convolve_back(const T* dy, const T* weight, T* out, I n, i32 groups, i32 depth, i32 outs, bool adds,
                      const Window& w, const Steps4& ds, const Steps4& ws) {
    typedef typename Stored<T>::C C;
    I i = (I)blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    i32 z = (i32)(i % w.iw), y = (i32)(i / w.iw % w.ih);
    I plane = i / w.iw / w.ih;
    i32 channel = (i32)(plane % ((I)groups * depth)), g = channel / depth, c = channel % depth;
    i64 b = (i64)(plane / ((I)groups * depth));
    C sum = 0;
    if (adds) sum = load(out[i]);
    for (i32 o = g * outs; o < (g + 1) * outs; ++o)
        for (i32 k = 0; k < w.kh; ++k) {
            i32 oy = output_at(y, k, w.sh, w.ph, w.dh, w.oh);
            if (oy < 0) continue;
            for (i32 l = 0; l < w.kw; ++l) {
                i32 ox = output_at(z, l, w.sw, w.pw, w.dw, w.ow);
                if (ox < 0) continue;
                sum = fma(load(dy[b * ds.n + o * ds.c + oy * ds.h + ox * ds.w]),
                          load(weight[o * ws.n + c * ws.c + k * ws.h + l * ws.w]), sum);
            }
        }
    out[i] = As<T>::of(sum);
}

// ---- pooling ---------------------------------------------------------------------------------

// By what the sum under a window is divided: `fixed` where that is not 0, else the elements that it meets,
// those of the padding too where `padded`.
FN i32 divisor(const Window& w, i32 oy, i32 ox, i64 fixed, bool padded) {
    if (fixed != 0) return (i32)fixed;
    i32 y = oy * w.sh - w.ph, z = ox * w.sw - w.pw;
    i32 bottom = y + w.kh < w.ih + w.ph ? y + w.kh : w.ih + w.ph;
    i32 right = z + w.kw < w.iw + w.pw ? z + w.kw : w.iw + w.pw;
    if (padded) return (bottom - y) * (right - z);
    bottom = bottom < w.ih ? bottom : w.ih;
    right = right < w.iw ? right : w.iw;
    return (bottom - (y > 0 ? y : 0)) * (right - (z > 0 ? z : 0));
}

// The largest element under each window (NaN if one is NaN), or where it is in its plane: of equals the
// first, of NaNs the last. `planes` holds where each plane begins.
template <bool POSITION, class T, class O, class I>
FN void pool_max(const T* x, O* out, I n, const Window& w, const Geo64<1>& planes, i64 row, i64 column) {
    typedef typename Stored<T>::C C;
    I i = (I)blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    i32 ox = (i32)(i % w.ow), oy = (i32)(i / w.ow % w.oh);
    i64 off[1];
    offsets<1, Geo64>(planes, (u64)(i / w.ow / w.oh), off);
    C best = C();
    i64 at = -1;
    for (i32 k = 0; k < w.kh; ++k) {
        i32 y = oy * w.sh - w.ph + k * w.dh;
        if (y < 0 || y >= w.ih) continue;
        for (i32 l = 0; l < w.kw; ++l) {
            i32 z = ox * w.sw - w.pw + l * w.dw;
            if (z < 0 || z >= w.iw) continue;
            C value = load(x[off[0] + y * row + z * column]);
            if (at < 0 || value > best || value != value) {
                best = value;
                at = (i64)y * w.iw + z;
            }
        }
    }
    // One of them is what O is; the other is not compiled to anything.
    if (POSITION) *(i64*)&out[i] = at;
    else *(T*)&out[i] = As<T>::of(best);
}

template <class T, class I>
FN void pool_mean(const T* x, T* out, I n, const Window& w, const Geo64<1>& planes, i64 row, i64 column, i64 fixed,
                  bool padded) {
    typedef typename Stored<T>::C C;
    I i = (I)blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    i32 ox = (i32)(i % w.ow), oy = (i32)(i / w.ow % w.oh);
    i64 off[1];
    offsets<1, Geo64>(planes, (u64)(i / w.ow / w.oh), off);
    C sum = 0;
    for (i32 k = 0; k < w.kh; ++k) {
        i32 y = oy * w.sh - w.ph + k * w.dh;
        if (y < 0 || y >= w.ih) continue;
        for (i32 l = 0; l < w.kw; ++l) {
            i32 z = ox * w.sw - w.pw + l * w.dw;
            if (z >= 0 && z < w.iw) sum = sum + load(x[off[0] + y * row + z * column]);
        }
    }
    out[i] = As<T>::of(sum / (C)divisor(w, oy, ox, fixed, padded));
}

// The way back of `pool_mean`.
template <class T, class I>
FN void pool_spread(const T* dy, T* out, I n, const Window& w, const Geo64<1>& planes, i64 row, i64 column, i64 fixed,
                    bool padded) {
    typedef typename Stored<T>::C C;
    I i = (I)blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    i32 z = (i32)(i % w.iw), y = (i32)(i / w.iw % w.ih);
    i64 off[1];
    offsets<1, Geo64>(planes, (u64)(i / w.iw / w.ih), off);
    C sum = 0;
    for (i32 k = 0; k < w.kh; ++k) {
        i32 oy = output_at(y, k, w.sh, w.ph, w.dh, w.oh);
        if (oy < 0) continue;
        for (i32 l = 0; l < w.kw; ++l) {
            i32 ox = output_at(z, l, w.sw, w.pw, w.dw, w.ow);
            if (ox >= 0)
                sum = sum + load(dy[off[0] + oy * row + ox * column]) / (C)divisor(w, oy, ox, fixed, padded);
        }
    }
    out[i] = As<T>::of(sum);
}

}  // namespace ft
