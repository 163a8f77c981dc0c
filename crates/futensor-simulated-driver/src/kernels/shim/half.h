// Half-precision conversions, the hook for kernels that use inline `cvt` PTX: under FUTENSOR_SIM a source
// calls these instead.
//
//     #ifdef FUTENSOR_SIM
//     #define F16_TO_F32(x) futsim_f16_to_f32(x)        // unsigned short -> float, exact
//     #define F32_TO_F16(x) futsim_f32_to_f16(x)        // cvt.rn.f16.f32: nearest, halves to even
//     #else ... asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h)); ...
//     #endif
//
// Also futsim_bf16_to_f32, futsim_f32_to_bf16 (cvt.rn.bf16.f32: NaN becomes 0x7fff), futsim_f64_to_f16 and
// futsim_f64_to_bf16 (rounded once, from the double).

// Rounds a finite or infinite double once, to nearest even, to a format with `fraction` stored bits,
// smallest normal exponent `low` and largest `high`. The result holds exponent and fraction, no sign.
static inline unsigned futsim_round_to(double x, int fraction, int low, int high) {
    unsigned infinity = (unsigned)(high - low + 2) << fraction;
    if (x == 0) return 0;
    if (__builtin_isinf(x)) return infinity;
    int e;
    frexp(x, &e);                                  // x = m * 2^e with m in [0.5, 1)
    e = e - 1 < low ? low : e - 1;
    double scaled = ldexp(x, fraction - e);        // exact: only the exponent moves
    unsigned long long whole = (unsigned long long)__builtin_rint(scaled);
    unsigned long long bits = ((unsigned long long)(e - low) << fraction) + whole;
    return bits >= infinity ? infinity : (unsigned)bits;
}
static inline unsigned short futsim_f64_to_f16(double x) {
    unsigned sign = __builtin_signbit(x) ? 0x8000 : 0;
    if (x != x) return 0x7fff;
    return (unsigned short)(sign | futsim_round_to(__builtin_fabs(x), 10, -14, 15));
}
static inline unsigned short futsim_f64_to_bf16(double x) {
    unsigned sign = __builtin_signbit(x) ? 0x8000 : 0;
    if (x != x) return 0x7fff;
    return (unsigned short)(sign | futsim_round_to(__builtin_fabs(x), 7, -126, 127));
}
static inline unsigned short futsim_f32_to_f16(float x) { return futsim_f64_to_f16((double)x); }
static inline unsigned short futsim_f32_to_bf16(float x) { return futsim_f64_to_bf16((double)x); }
static inline float futsim_bf16_to_f32(unsigned short h) { return futsim_bits<float>((unsigned)h << 16); }
static inline float futsim_f16_to_f32(unsigned short h) {
    unsigned sign = (h & 0x8000u) << 16, e = h >> 10 & 31, f = h & 1023;
    if (e == 31) return futsim_bits<float>(sign | 0x7f800000u | f << 13);
    if (e) return futsim_bits<float>(sign | (e + 112) << 23 | f << 13);
    float tiny = (float)f * 5.9604644775390625e-8f;  // 2^-24
    return sign ? -tiny : tiny;
}
