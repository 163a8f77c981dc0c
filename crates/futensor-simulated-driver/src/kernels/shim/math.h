// Arithmetic of the device library. libm stands in for the device's functions, so results agree within
// the documented ulp of the CUDA Programming Guide's mathematical appendix, not bit by bit, except for the
// _rn intrinsics, which are IEEE 754 on both.

#define FUTSIM_M1(name)                                                    \
    extern "C" double name(double) noexcept;                               \
    extern "C" float name##f(float) noexcept;                              \
    static inline float name(float x) { return name##f(x); }
#define FUTSIM_M2(name)                                                    \
    extern "C" double name(double, double) noexcept;                       \
    extern "C" float name##f(float, float) noexcept;                       \
    static inline float name(float x, float y) { return name##f(x, y); }
FUTSIM_M1(sin) FUTSIM_M1(cos) FUTSIM_M1(tan) FUTSIM_M1(asin) FUTSIM_M1(acos) FUTSIM_M1(atan)
FUTSIM_M1(sinh) FUTSIM_M1(cosh) FUTSIM_M1(tanh) FUTSIM_M1(asinh) FUTSIM_M1(acosh) FUTSIM_M1(atanh)
FUTSIM_M1(exp) FUTSIM_M1(exp2) FUTSIM_M1(exp10) FUTSIM_M1(expm1) FUTSIM_M1(log) FUTSIM_M1(log2)
FUTSIM_M1(log10) FUTSIM_M1(log1p) FUTSIM_M1(sqrt) FUTSIM_M1(cbrt) FUTSIM_M1(fabs) FUTSIM_M1(floor)
FUTSIM_M1(ceil) FUTSIM_M1(trunc) FUTSIM_M1(round) FUTSIM_M1(rint) FUTSIM_M1(nearbyint) FUTSIM_M1(erf)
FUTSIM_M1(erfc) FUTSIM_M1(tgamma) FUTSIM_M1(lgamma) FUTSIM_M1(logb) FUTSIM_M1(j0) FUTSIM_M1(j1)
FUTSIM_M2(pow) FUTSIM_M2(atan2) FUTSIM_M2(fmod) FUTSIM_M2(remainder) FUTSIM_M2(copysign) FUTSIM_M2(hypot)
FUTSIM_M2(fdim) FUTSIM_M2(fmax) FUTSIM_M2(fmin) FUTSIM_M2(nextafter)
extern "C" double fma(double, double, double) noexcept;
extern "C" float fmaf(float, float, float) noexcept;
static inline float fma(float a, float b, float c) { return fmaf(a, b, c); }
extern "C" double ldexp(double, int) noexcept;
extern "C" float ldexpf(float, int) noexcept;
extern "C" double scalbn(double, int) noexcept;
extern "C" float scalbnf(float, int) noexcept;
extern "C" double frexp(double, int*) noexcept;
extern "C" float frexpf(float, int*) noexcept;
extern "C" double modf(double, double*) noexcept;
extern "C" float modff(float, float*) noexcept;
extern "C" int ilogbf(float) noexcept;
extern "C" void sincos(double, double*, double*) noexcept;
extern "C" void sincosf(float, float*, float*) noexcept;
extern "C" long lrintf(float) noexcept;
extern "C" long lrint(double) noexcept;
extern "C" long long llrintf(float) noexcept;
extern "C" long long llrint(double) noexcept;
extern "C" int abs(int) noexcept;
extern "C" long long llabs(long long) noexcept;
static inline long long abs(long long x) { return llabs(x); }
static inline long abs(long x) { return x < 0 ? -x : x; }
static inline float abs(float x) { return fabsf(x); }
static inline double abs(double x) { return fabs(x); }
static inline float rsqrtf(float x) { return (float)(1.0 / __builtin_sqrt((double)x)); }
static inline double rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }
static inline float rsqrt(float x) { return rsqrtf(x); }
static inline float normcdff(float x) { return (float)(0.5 * erfc(-(double)x * 0.70710678118654752440)); }
static inline double normcdf(double x) { return 0.5 * erfc(-x * 0.70710678118654752440); }
static inline void sincospif(float x, float* s, float* c) {
    double a = (double)x * 3.14159265358979323846;
    *s = (float)sin(a), *c = (float)cos(a);
}
static inline float cospif(float x) { return (float)cos((double)x * 3.14159265358979323846); }
static inline float sinpif(float x) { return (float)sin((double)x * 3.14159265358979323846); }
#undef isnan
#undef isinf
#undef isfinite
#undef signbit
static inline bool isnan(float x) { return x != x; }
static inline bool isnan(double x) { return x != x; }
static inline bool isinf(float x) { return __builtin_isinf(x); }
static inline bool isinf(double x) { return __builtin_isinf(x); }
static inline bool isfinite(float x) { return __builtin_isfinite(x); }
static inline bool isfinite(double x) { return __builtin_isfinite(x); }
static inline bool signbit(float x) { return __builtin_signbit(x); }
static inline bool signbit(double x) { return __builtin_signbit(x); }

#define FUTSIM_MINMAX(T)                                                   \
    static inline T min(T a, T b) { return b < a ? b : a; }                \
    static inline T max(T a, T b) { return a < b ? b : a; }
FUTSIM_MINMAX(int) FUTSIM_MINMAX(unsigned) FUTSIM_MINMAX(long) FUTSIM_MINMAX(unsigned long)
FUTSIM_MINMAX(long long) FUTSIM_MINMAX(unsigned long long)
static inline unsigned min(int a, unsigned b) { return min((unsigned)a, b); }
static inline unsigned min(unsigned a, int b) { return min(a, (unsigned)b); }
static inline unsigned max(int a, unsigned b) { return max((unsigned)a, b); }
static inline unsigned max(unsigned a, int b) { return max(a, (unsigned)b); }
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }
static inline double min(float a, double b) { return fmin(a, b); }
static inline double max(float a, double b) { return fmax(a, b); }
static inline double min(double a, float b) { return fmin(a, b); }
static inline double max(double a, float b) { return fmax(a, b); }

// Fast intrinsics: computed exactly here; a GPU is allowed to be less exact.
static inline float __expf(float x) { return expf(x); }
static inline float __exp10f(float x) { return exp10f(x); }
static inline float __logf(float x) { return logf(x); }
static inline float __log2f(float x) { return log2f(x); }
static inline float __log10f(float x) { return log10f(x); }
static inline float __sinf(float x) { return sinf(x); }
static inline float __cosf(float x) { return cosf(x); }
static inline float __tanf(float x) { return tanf(x); }
static inline float __powf(float x, float y) { return powf(x, y); }
static inline float __tanhf(float x) { return tanhf(x); }
static inline void __sincosf(float x, float* s, float* c) { sincosf(x, s, c); }
static inline float __fdividef(float a, float b) { return a / b; }
static inline float fdividef(float a, float b) { return a / b; }
static inline float __saturatef(float x) { return x > 0 ? (x < 1 ? x : 1.0f) : 0.0f; }

static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __frcp_rn(float a) { return 1.0f / a; }
static inline float __fsqrt_rn(float a) { return __builtin_sqrtf(a); }
static inline float __frsqrt_rn(float a) { return rsqrtf(a); }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dsub_rn(double a, double b) { return a - b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __ddiv_rn(double a, double b) { return a / b; }
static inline double __drcp_rn(double a) { return 1.0 / a; }
static inline double __dsqrt_rn(double a) { return __builtin_sqrt(a); }
static inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }

template <class To, class From> static inline To futsim_bits(From v) {
    static_assert(sizeof(To) == sizeof(From), "same size");
    To to;
    memcpy(&to, &v, sizeof to);
    return to;
}
static inline int __float_as_int(float x) { return futsim_bits<int>(x); }
static inline unsigned __float_as_uint(float x) { return futsim_bits<unsigned>(x); }
static inline float __int_as_float(int x) { return futsim_bits<float>(x); }
static inline float __uint_as_float(unsigned x) { return futsim_bits<float>(x); }
static inline long long __double_as_longlong(double x) { return futsim_bits<long long>(x); }
static inline double __longlong_as_double(long long x) { return futsim_bits<double>(x); }
static inline int __double2hiint(double x) { return (int)(futsim_bits<unsigned long long>(x) >> 32); }
static inline int __double2loint(double x) { return (int)futsim_bits<unsigned long long>(x); }
static inline double __hiloint2double(int hi, int lo) {
    return futsim_bits<double>((unsigned long long)(unsigned)hi << 32 | (unsigned)lo);
}

// Conversions to integers saturate and take NaN to 0 (PTX ISA, cvt), as the hardware does. (For a double
// to a 64-bit integer PTX gives 0x8000000000000000 for NaN; so do we.)
template <class T> static inline T futsim_whole(double x, double low, double past, T smallest, T largest, T nan) {
    if (x != x) return nan;
    if (x < low) return smallest;
    if (x >= past) return largest;
    return (T)x;
}
static inline int futsim_i32(double x) { return futsim_whole<int>(x, -2147483648.0, 2147483648.0, (-0x7fffffff - 1), 0x7fffffff, 0); }
static inline unsigned futsim_u32(double x) { return futsim_whole<unsigned>(x, 0.0, 4294967296.0, 0, 0xffffffffu, 0); }
static inline long long futsim_i64(double x, long long nan) { return futsim_whole<long long>(x, -9223372036854775808.0, 9223372036854775808.0, (-0x7fffffffffffffffLL - 1), 0x7fffffffffffffffLL, nan); }
static inline unsigned long long futsim_u64(double x, unsigned long long nan) { return futsim_whole<unsigned long long>(x, 0.0, 18446744073709551616.0, 0, 0xffffffffffffffffULL, nan); }
#define FUTSIM_TO_WHOLE(suffix, how)                                                                        \
    static inline int __float2int_##suffix(float x) { return futsim_i32(how((double)x)); }                  \
    static inline unsigned __float2uint_##suffix(float x) { return futsim_u32(how((double)x)); }            \
    static inline long long __float2ll_##suffix(float x) { return futsim_i64(how((double)x), 0x8000000000000000ULL); } \
    static inline unsigned long long __float2ull_##suffix(float x) { return futsim_u64(how((double)x), 0x8000000000000000ULL); } \
    static inline int __double2int_##suffix(double x) { return futsim_i32(how(x)); }                        \
    static inline unsigned __double2uint_##suffix(double x) { return futsim_u32(how(x)); }                  \
    static inline long long __double2ll_##suffix(double x) { return futsim_i64(how(x), 0x8000000000000000ULL); } \
    static inline unsigned long long __double2ull_##suffix(double x) { return futsim_u64(how(x), 0x8000000000000000ULL); }
FUTSIM_TO_WHOLE(rn, __builtin_rint)
FUTSIM_TO_WHOLE(rz, __builtin_trunc)
FUTSIM_TO_WHOLE(ru, __builtin_ceil)
FUTSIM_TO_WHOLE(rd, __builtin_floor)
static inline float __int2float_rn(int x) { return (float)x; }
static inline float __uint2float_rn(unsigned x) { return (float)x; }
static inline float __ll2float_rn(long long x) { return (float)x; }
static inline float __ull2float_rn(unsigned long long x) { return (float)x; }
static inline double __int2double_rn(int x) { return x; }
static inline double __uint2double_rn(unsigned x) { return x; }
static inline double __ll2double_rn(long long x) { return (double)x; }
static inline double __ull2double_rn(unsigned long long x) { return (double)x; }
static inline float __double2float_rn(double x) { return (float)x; }

static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline unsigned __brev(unsigned x) {
    unsigned r = 0;
    for (int i = 0; i < 32; i++) r |= (x >> i & 1) << (31 - i);
    return r;
}
static inline unsigned long long __brevll(unsigned long long x) {
    return (unsigned long long)__brev((unsigned)x) << 32 | __brev((unsigned)(x >> 32));
}
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned s) {
    unsigned long long both = (unsigned long long)b << 32 | a;
    unsigned r = 0;
    for (int i = 0; i < 4; i++) {
        unsigned byte = (unsigned)(both >> (s >> 4 * i & 7) * 8) & 0xff;
        if (s >> 4 * i & 8) byte = byte & 0x80 ? 0xff : 0;
        r |= byte << 8 * i;
    }
    return r;
}
static inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned s) {
    return (unsigned)(((unsigned long long)hi << 32 | lo) << (s & 31) >> 32);
}
static inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned s) {
    return (unsigned)(((unsigned long long)hi << 32 | lo) >> (s & 31));
}
static inline int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
static inline long long __mul64hi(long long a, long long b) { return (long long)((__int128)a * b >> 64); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
static inline int __mul24(int a, int b) { return (a << 8 >> 8) * (b << 8 >> 8); }
static inline unsigned __umul24(unsigned a, unsigned b) { return (a & 0xffffff) * (b & 0xffffff); }
static inline unsigned __sad(int a, int b, unsigned c) { return c + (unsigned)(a > b ? a - b : b - a); }
static inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; i++) c += (int)(signed char)(a >> 8 * i) * (signed char)(b >> 8 * i);
    return c;
}
