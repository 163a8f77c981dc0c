// Types, conversions and index arithmetic that every kernel shares.
//
// No #include: the run-time compiler comes without headers. FUTENSOR_SIM is defined where a C++
// compiler for the host builds the same source for a simulated device; only the PTX differs.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;

// The halves are stored as their bits and computed in float.
struct f16 { u16 bits; };
struct bf16 { u16 bits; };

// Floats of eight bits are only stored, as i8, i16, u16, u32 and u64 are: moved, and converted.
struct f8e4m3 { u8 bits; };
struct f8e5m2 { u8 bits; };

// Function templates and plain functions are FN, members FN_MEMBER, specialisations FN_SPECIAL.
#ifdef FUTENSOR_SIM
#define FN static inline
#define FN_MEMBER inline
#define FN_SPECIAL inline
#else
#define FN static __device__ __forceinline__
#define FN_MEMBER __device__ __forceinline__
#define FN_SPECIAL __device__ __forceinline__
#endif

namespace ft {

// ---- bits ----------------------------------------------------------------------------------

#ifdef FUTENSOR_SIM
FN u32 bits(float x) { u32 r; __builtin_memcpy(&r, &x, 4); return r; }
FN u64 bits(double x) { u64 r; __builtin_memcpy(&r, &x, 8); return r; }
FN float as_float(u32 x) { float r; __builtin_memcpy(&r, &x, 4); return r; }
FN double as_double(u64 x) { double r; __builtin_memcpy(&r, &x, 8); return r; }
FN u32 mul_high(u32 a, u32 b) { return (u32)(((u64)a * b) >> 32); }
#else
FN u32 bits(float x) { return __float_as_uint(x); }
FN u64 bits(double x) { return (u64)__double_as_longlong(x); }
FN float as_float(u32 x) { return __uint_as_float(x); }
FN double as_double(u64 x) { return __longlong_as_double((i64)x); }
FN u32 mul_high(u32 a, u32 b) { return __umulhi(a, b); }
#endif

FN float inf(float) { return as_float(0x7f800000u); }
FN double inf(double) { return as_double(0x7ff0000000000000ull); }
FN float nan(float) { return as_float(0x7fc00000u); }
FN double nan(double) { return as_double(0x7ff8000000000000ull); }

// ---- halves --------------------------------------------------------------------------------

#ifdef FUTENSOR_SIM
FN float widen(f16 h) {
    u32 sign = (u32)(h.bits & 0x8000) << 16, e = (h.bits >> 10) & 31, m = h.bits & 1023;
    if (e == 31) return as_float(sign | 0x7f800000u | (m << 13));
    if (e == 0) { float r = (float)m * 5.9604644775390625e-8f; return sign ? -r : r; }
    return as_float(sign | ((e + 112) << 23) | (m << 13));
}
FN void narrow(float x, f16& h) {
    u32 b = bits(x), sign = (b >> 16) & 0x8000, a = b & 0x7fffffffu, r;
    if (a > 0x7f800000u) r = 0x7e00;
    else if (a >= 0x477ff000u) r = 0x7c00;                               // 65520 and above
    // the adder rounds at 2^-24
    else if (a < 0x38800000u) r = bits(as_float(a) + 0.5f) - 0x3f000000u;
    else r = (a - 0x38000000u + 0xfffu + ((a >> 13) & 1)) >> 13;
    h.bits = (u16)(sign | r);
}
FN void narrow(float x, bf16& h) {
    u32 b = bits(x);
    h.bits = x != x ? 0x7fc0 : (u16)((b + 0x7fffu + ((b >> 16) & 1)) >> 16);
}
#else
FN float widen(f16 h) { float r; asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(h.bits)); return r; }
FN void narrow(float x, f16& h) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h.bits) : "f"(x)); }
FN void narrow(float x, bf16& h) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h.bits) : "f"(x)); }
#endif
FN float widen(bf16 h) { return as_float((u32)h.bits << 16); }

// ---- floats of eight bits: as src/float8.rs ------------------------------------------------

FN float widen(f8e4m3 h) {
    u32 a = h.bits & 0x7f, sign = (u32)(h.bits & 0x80) << 24;
    // A product with 2^120 sets the exponent right.
    u32 r = a == 0x7f ? 0x7fc00000u : bits(as_float(a << 20) * as_float(247u << 23));
    return as_float(sign | r);
}
FN float widen(f8e5m2 h) {
    u32 a = h.bits & 0x7f, sign = (u32)(h.bits & 0x80) << 24;
    u32 r = a == 0x7c  ? 0x7f800000u
            : a > 0x7c ? 0x7fc00000u
                       : bits(as_float(a << 21) * as_float(239u << 23));
    return as_float(sign | r);
}
// A magnitude rounded to a float of so many bits of mantissa and this bias.
template <int MANTISSA, int BIAS> FN u32 rounded_to(u32 a) {
    const u32 cut = 23 - MANTISSA, place = (128 - BIAS + cut) << 23;
    if (a < (128u - BIAS) << 23) return bits(as_float(a) + as_float(place)) - place;
    return (a - ((127u - BIAS) << 23) + ((1u << (cut - 1)) - 1) + ((a >> cut) & 1)) >> cut;
}
FN void narrow(float x, f8e4m3& h) {
    u32 b = bits(x), a = b & 0x7fffffffu, r = rounded_to<3, 7>(a);
    h.bits = (u8)((b >> 24 & 0x80) | (a > 0x7f800000u ? 0x7f : r > 0x7e ? 0x7e : r));
}
FN void narrow(float x, f8e5m2& h) {
    u32 b = bits(x), a = b & 0x7fffffffu, r = rounded_to<2, 15>(a);
    h.bits = (u8)((b >> 24 & 0x80) | (a > 0x7f800000u ? 0x7f : r > 0x7c ? 0x7c : r));
}

// The nearest half of a double. First to float, rounded to odd: then the second rounding sees on
// which side of a tie the double lay (Boldo and Melquiond, "When double rounding is odd", 2005).
FN float to_odd(double x) {
    float f = (float)x;
    if (x != x || (double)f == x) return f;
    u32 b = bits(f);
    double low = f < 0 ? -(double)f : (double)f, mag = x < 0 ? -x : x;
    if (low > mag) b -= 1;
    return as_float(b | 1);
}

// ---- storage and the type computed in ------------------------------------------------------

template <class S> struct Stored { typedef S C; };
template <> struct Stored<f16> { typedef float C; };
template <> struct Stored<bf16> { typedef float C; };

FN float load(f16 x) { return widen(x); }
FN float load(bf16 x) { return widen(x); }
FN float load(float x) { return x; }
FN double load(double x) { return x; }
FN i32 load(i32 x) { return x; }
FN i64 load(i64 x) { return x; }
FN u8 load(u8 x) { return x; }
FN bool load(bool x) { return x; }
// What is only stored is loaded as it is, and is a number where it is converted.
FN i8 load(i8 x) { return x; }
FN i16 load(i16 x) { return x; }
FN u16 load(u16 x) { return x; }
FN u32 load(u32 x) { return x; }
FN u64 load(u64 x) { return x; }
FN f8e4m3 load(f8e4m3 x) { return x; }
FN f8e5m2 load(f8e5m2 x) { return x; }
FN float number(f8e4m3 x) { return widen(x); }
FN float number(f8e5m2 x) { return widen(x); }

// A computed value as it is stored in an S; exact where it has been rounded to S before.
template <class S> struct As { template <class C> static FN_MEMBER S of(C x) { return (S)x; } };
template <> struct As<f16> { static FN_MEMBER f16 of(float x) { f16 h; narrow(x, h); return h; } };
template <> struct As<bf16> {
    static FN_MEMBER bf16 of(float x) {
        bf16 h;
        narrow(x, h);
        return h;
    }
};

// A computed value rounded to a value that an S can hold, still in the type computed in.
template <class S, class C> FN typename Stored<S>::C rounded(C x) { return load(As<S>::of(x)); }

// ---- casts: as Rust's `as`, to bool `!= 0` -------------------------------------------------

template <class F> FN i64 to_i64(F x) {
    if (x != x) return 0;
    if (x >= (F)9223372036854775808.0) return 0x7fffffffffffffffll;
    if (x < (F)-9223372036854775808.0) return -0x7fffffffffffffffll - 1;
    return (i64)x;
}
template <class F> FN i32 to_i32(F x) {
    i64 r = to_i64(x);
    return r > 0x7fffffffll ? 0x7fffffff : r < -0x80000000ll ? -0x7fffffff - 1 : (i32)r;
}
template <class To> struct Cast {
    template <class C> static FN_MEMBER To of(C x) { return (To)x; }
};
template <> struct Cast<bool> {
    template <class C> static FN_MEMBER bool of(C x) { return x != (C)0; }
};
template <> struct Cast<i32> {
    template <class C> static FN_MEMBER i32 of(C x) { return (i32)x; }
    static FN_MEMBER i32 of(float x) { return to_i32(x); }
    static FN_MEMBER i32 of(double x) { return to_i32(x); }
};
template <> struct Cast<i64> {
    template <class C> static FN_MEMBER i64 of(C x) { return (i64)x; }
    static FN_MEMBER i64 of(float x) { return to_i64(x); }
    static FN_MEMBER i64 of(double x) { return to_i64(x); }
};
// Narrower integers keep the low bits.
template <class To> struct CastLow {
    template <class C> static FN_MEMBER To of(C x) { return (To)x; }
    static FN_MEMBER To of(float x) { return (To)to_i64(x); }
    static FN_MEMBER To of(double x) { return (To)to_i64(x); }
};
template <> struct Cast<u8> : CastLow<u8> {};
template <> struct Cast<i8> : CastLow<i8> {};
template <> struct Cast<i16> : CastLow<i16> {};
template <> struct Cast<u16> : CastLow<u16> {};
template <> struct Cast<u32> : CastLow<u32> {};
template <> struct Cast<u64> {
    template <class C> static FN_MEMBER u64 of(C x) { return (u64)x; }
    static FN_MEMBER u64 of(float x) { return of((double)x); }
    static FN_MEMBER u64 of(double x) {
        if (!(x >= 9223372036854775808.0)) return (u64)to_i64(x);
        return x >= 18446744073709551616.0 ? ~0ull : (u64)x;
    }
};
template <class To> struct CastFloat8 {
    template <class C> static FN_MEMBER To of(C x) { return of(to_odd((double)x)); }
    static FN_MEMBER To of(float x) { To h; narrow(x, h); return h; }
};
template <> struct Cast<f8e4m3> : CastFloat8<f8e4m3> {};
template <> struct Cast<f8e5m2> : CastFloat8<f8e5m2> {};
template <> struct Cast<f16> {
    template <class C> static FN_MEMBER float of(C x) { return rounded<f16>(to_odd((double)x)); }
    static FN_MEMBER float of(float x) { return rounded<f16>(x); }
};
template <> struct Cast<bf16> {
    template <class C> static FN_MEMBER float of(C x) { return rounded<bf16>(to_odd((double)x)); }
    static FN_MEMBER float of(float x) { return rounded<bf16>(x); }
};

// ---- immediates: eight bytes each ----------------------------------------------------------

template <int K> struct Imm { u64 v[K]; };
FN void take(u64 v, float& x) { x = as_float((u32)v); }
FN void take(u64 v, double& x) { x = as_double(v); }
FN void take(u64 v, i32& x) { x = (i32)v; }
FN void take(u64 v, i64& x) { x = (i64)v; }
FN void take(u64 v, u64& x) { x = v; }
FN void take(u64 v, u8& x) { x = (u8)v; }
FN void take(u64 v, bool& x) { x = v != 0; }
FN void take(u64 v, i8& x) { x = (i8)v; }
FN void take(u64 v, i16& x) { x = (i16)v; }
FN void take(u64 v, u16& x) { x = (u16)v; }
FN void take(u64 v, u32& x) { x = (u32)v; }
FN void take(u64 v, f8e4m3& x) { x.bits = (u8)v; }
FN void take(u64 v, f8e5m2& x) { x.bits = (u8)v; }
template <class C> FN C imm(u64 v) { C x; take(v, x); return x; }

// ---- several elements at once --------------------------------------------------------------

// V neighbouring elements, moved by one instruction where they fill 2, 4, 8 or 16 bytes.
template <class T, int V> struct alignas(sizeof(T) * V) Vec { T v[V]; };

template <int V, class T, class I> FN Vec<T, V> load_full(const T* p, I i) {
    return *(const Vec<T, V>*)(p + i);
}
// ---- index arithmetic ----------------------------------------------------------------------

// Division by an invariant as a multiplication (Granlund and Montgomery, PLDI 1994); n < 2^31.
struct Axis32 { u32 size, mul, shift; };
struct Axis64 { u64 size; };
FN u32 quotient(const Axis32& a, u32 n) { return (mul_high(n, a.mul) + n) >> a.shift; }
FN u64 quotient(const Axis64& a, u64 n) { return n / a.size; }

// Sizes and strides (in elements) of up to 8 dimensions, innermost first, for K operands.
template <int K> struct Geo32 {
    typedef u32 Index;
    typedef i32 Stride;
    u32 rank;
    Axis32 axis[8];
    i32 stride[K][8];
};
template <int K> struct Geo64 {
    typedef u64 Index;
    typedef i64 Stride;
    u64 rank;
    Axis64 axis[8];
    i64 stride[K][8];
};

// Adds to `off` where the element at linear position i lies in each operand.
template <int K, template <int> class Geo>
FN void walk(const Geo<K>& g, typename Geo<K>::Index i, typename Geo<K>::Stride* off) {
    typedef typename Geo<K>::Index I;
    typedef typename Geo<K>::Stride S;
#pragma unroll
    for (int d = 0; d < 8; ++d) {
        if (d >= g.rank) break;
        // The remainder at the outermost dimension is its coordinate: one dimension costs no
        // division.
        I q = 0;
        if (d + 1 < g.rank) q = quotient(g.axis[d], i);
        S r = (S)(i - q * g.axis[d].size);
        i = q;
#pragma unroll
        for (int k = 0; k < K; ++k) off[k] += r * g.stride[k][d];
    }
}
template <int K, template <int> class Geo>
FN void offsets(const Geo<K>& g, typename Geo<K>::Index i, typename Geo<K>::Stride* off) {
#pragma unroll
    for (int k = 0; k < K; ++k) off[k] = 0;
    walk<K, Geo>(g, i, off);
}

}  // namespace ft
