// Windows that move over planes: the columns of a convolution and their way back, pooling.

namespace ft {

// Heights and widths; one dimension is a height of one.
struct Window {
    i64 ih, iw, kh, kw, oh, ow, sh, sw, ph, pw, dh, dw;
};
struct Steps { i64 v[4]; };

// out[image, group, row, place]: the element that a place meets under a row's channel and tap, 0 in the padding;
// after the channels a row of ones (what a bias is multiplied by), then zeros.
template <class S, class D>
FN void columns(const S* x, D* out, u64 n, const Window& w, i64 channels, i64 groups, i64 rows, const Steps& from,
                i64 to_image, i64 to_group, i64 to_row) {
    const u64 i = (u64)blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    const i64 places = w.oh * w.ow, taps = w.kh * w.kw;
    const i64 place = (i64)(i % (u64)places);
    i64 r = (i64)(i / (u64)places);
    const i64 row = r % rows;
    r /= rows;
    const i64 group = r % groups, image = r / groups;
    typename Stored<D>::C v = 0;
    if (row < channels * taps) {
        const i64 c = row / taps, tap = row % taps;
        const i64 y = place / w.ow * w.sh - w.ph + tap / w.kw * w.dh;
        const i64 z = place % w.ow * w.sw - w.pw + tap % w.kw * w.dw;
        if (y >= 0 && y < w.ih && z >= 0 && z < w.iw) {
            const i64 at = image * from.v[0] + (group * channels + c) * from.v[1] + y * from.v[2] + z * from.v[3];
            v = (typename Stored<D>::C)load(x[at]);
        }
    } else if (row == channels * taps) {
        v = 1;
    }
    out[image * to_image + group * to_group + row * to_row + place] = As<D>::of(v);
}

// What columns [image, group, channel and tap, place] bring to each input element, and its channel's bias.
template <bool BIAS, class S, class D>
FN void fold(const S* cols, const D* bias, D* out, u64 n, const Window& w, i64 channels, i64 groups) {
    const u64 i = (u64)blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    const i64 x = (i64)(i % (u64)w.iw), y = (i64)(i / (u64)w.iw % (u64)w.ih);
    const i64 plane = (i64)(i / (u64)(w.iw * w.ih));
    const i64 places = w.oh * w.ow, taps = w.kh * w.kw;
    typename Stored<S>::C sum = 0;
    if (BIAS) sum = (typename Stored<S>::C)load(bias[plane % (channels * groups)]);
    // A plane of the input is a channel: its taps lie one after the other.
    const S* from = cols + plane * taps * places;
    for (i64 ky = 0; ky < w.kh; ++ky) {
        const i64 ty = y + w.ph - ky * w.dh;
        if (ty < 0 || ty % w.sh != 0 || ty / w.sh >= w.oh) continue;
        for (i64 kx = 0; kx < w.kw; ++kx) {
            const i64 tx = x + w.pw - kx * w.dw;
            if (tx < 0 || tx % w.sw != 0 || tx / w.sw >= w.ow) continue;
            sum += load(from[(ky * w.kw + kx) * places + ty / w.sh * w.ow + tx / w.sw]);
        }
    }
    out[i] = As<D>::of(sum);
}

// Where a window's plane and corner are.
struct Corner { i64 plane, y, x; };
FN Corner corner(const Window& w, u64 i) {
    const i64 ox = (i64)(i % (u64)w.ow), oy = (i64)(i / (u64)w.ow % (u64)w.oh);
    return {(i64)(i / (u64)(w.ow * w.oh)), oy * w.sh - w.ph, ox * w.sw - w.pw};
}
FN i64 start(const Steps& from, i64 plane, i64 inner) {
    return plane / inner * from.v[0] + plane % inner * from.v[1];
}

// What is written of the largest element.
template <bool PLACE> struct Chosen {
    template <class S> static FN_MEMBER void write(S best, i64, S* out) { *out = best; }
};
template <> struct Chosen<true> {
    template <class S> static FN_MEMBER void write(S, i64 place, i64* out) { *out = place; }
};

// The largest element of each window, or its place in the plane: of equals the first, of NaN the last.
template <bool PLACE, class S, class D>
FN void pool_max(const S* x, D* out, u64 n, const Window& w, i64 inner, const Steps& from) {
    const u64 i = (u64)blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    const Corner at = corner(w, i);
    const S* plane = x + start(from, at.plane, inner);
    S best = {};
    i64 place = -1;
    for (i64 ky = 0; ky < w.kh; ++ky) {
        const i64 y = at.y + ky * w.dh;
        if (y < 0 || y >= w.ih) continue;
        for (i64 kx = 0; kx < w.kw; ++kx) {
            const i64 z = at.x + kx * w.dw;
            if (z < 0 || z >= w.iw) continue;
            const S v = plane[y * from.v[2] + z * from.v[3]];
            if (place < 0 || load(v) > load(best) || load(v) != load(v)) {
                best = v;
                place = y * w.iw + z;
            }
        }
    }
    Chosen<PLACE>::write(best, place, out + i);
}

// By what a window's sum is divided: the elements it meets (0), those of the padding too (1), a number (2).
template <class C> FN C divisor(const Window& w, const Corner& at, u32 mode, u64 fixed) {
    if (mode == 2) return (C)fixed;
    i64 y1 = at.y + w.kh, x1 = at.x + w.kw, y0 = at.y, x0 = at.x;
    y1 = y1 < w.ih + w.ph ? y1 : w.ih + w.ph;
    x1 = x1 < w.iw + w.pw ? x1 : w.iw + w.pw;
    if (mode == 0) {
        y1 = y1 < w.ih ? y1 : w.ih;
        x1 = x1 < w.iw ? x1 : w.iw;
        y0 = y0 > 0 ? y0 : 0;
        x0 = x0 > 0 ? x0 : 0;
    }
    return (C)((y1 - y0) * (x1 - x0));
}

template <class S>
FN void pool_mean(const S* x, S* out, u64 n, const Window& w, i64 inner, const Steps& from, u32 mode, u64 fixed) {
    typedef typename Stored<S>::C C;
    const u64 i = (u64)blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    const Corner at = corner(w, i);
    const S* plane = x + start(from, at.plane, inner);
    C sum = 0;
    for (i64 ky = 0; ky < w.kh; ++ky) {
        const i64 y = at.y + ky;
        if (y < 0 || y >= w.ih) continue;
        for (i64 kx = 0; kx < w.kw; ++kx) {
            const i64 z = at.x + kx;
            if (z >= 0 && z < w.iw) sum += load(plane[y * from.v[2] + z * from.v[3]]);
        }
    }
    out[i] = As<S>::of(sum / divisor<C>(w, at, mode, fixed));
}

// The way back of the means: what each input element gets from the windows that it lies under.
template <class S>
FN void pool_spread(const S* dy, S* out, u64 n, const Window& w, i64 inner, const Steps& from, u32 mode, u64 fixed) {
    typedef typename Stored<S>::C C;
    const u64 i = (u64)blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    const i64 x = (i64)(i % (u64)w.iw), y = (i64)(i / (u64)w.iw % (u64)w.ih);
    const S* plane = dy + start(from, (i64)(i / (u64)(w.iw * w.ih)), inner);
    C sum = 0;
    for (i64 ky = 0; ky < w.kh; ++ky) {
        const i64 ty = y + w.ph - ky;
        if (ty < 0 || ty % w.sh != 0 || ty / w.sh >= w.oh) continue;
        for (i64 kx = 0; kx < w.kw; ++kx) {
            const i64 tx = x + w.pw - kx;
            if (tx < 0 || tx % w.sw != 0 || tx / w.sw >= w.ow) continue;
            const i64 oy = ty / w.sh, ox = tx / w.sw;
            const Corner at = {0, oy * w.sh - w.ph, ox * w.sw - w.pw};
            sum += load(plane[oy * from.v[2] + ox * from.v[3]]) / divisor<C>(w, at, mode, fixed);
        }
    }
    out[i] = As<S>::of(sum);
}

}  // namespace ft
