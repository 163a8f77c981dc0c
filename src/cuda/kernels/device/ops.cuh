// The functions that the CUDA column of the op table calls: one overload a type, one meaning on
// every device.
//
// Float functions are the compiler's own without fast-math; their bounds in ulp are those of the
// CUDA C++ Programming Guide, "Mathematical Functions": exp log log1p expm1 log2 1, exp2 log10 sin
// cos erf tanh asin acos atan cosh 2, atan2 sinh asinh atanh 3, acosh tan pow erfc 4; sqrt and
// division are correctly rounded.

namespace ft {

template <class T> struct Unsigned { typedef T type; };
template <> struct Unsigned<i32> { typedef u32 type; };
template <> struct Unsigned<i64> { typedef u64 type; };

// ---- numbers: integers wrap, so they are computed unsigned ----------------------------------

template <class T> FN T neg(T x) {
    return (T)((typename Unsigned<T>::type)0 - (typename Unsigned<T>::type)x);
}
template <> FN_SPECIAL float neg(float x) { return -x; }
template <> FN_SPECIAL double neg(double x) { return -x; }

template <class T> FN T add(T a, T b) {
    return (T)((typename Unsigned<T>::type)a + (typename Unsigned<T>::type)b);
}
template <> FN_SPECIAL bool add(bool a, bool b) { return a || b; }

template <class T> FN T sub(T a, T b) {
    return (T)((typename Unsigned<T>::type)a - (typename Unsigned<T>::type)b);
}

template <class T> FN T mul(T a, T b) {
    return (T)((typename Unsigned<T>::type)a * (typename Unsigned<T>::type)b);
}
template <> FN_SPECIAL bool mul(bool a, bool b) { return a && b; }

template <class T> FN T abs(T x) { return x < (T)0 ? neg(x) : x; }
template <> FN_SPECIAL float abs(float x) { return ::fabsf(x); }
template <> FN_SPECIAL double abs(double x) { return ::fabs(x); }

template <class T> FN T sign(T x) { return (T)((x > (T)0) - (x < (T)0)); }
template <class T> FN T relu(T x) { return x <= (T)0 ? (T)0 : x; }
template <class T> FN T maximum(T a, T b) { return a != a || a > b ? a : b; }
template <class T> FN T minimum(T a, T b) { return a != a || a < b ? a : b; }
template <class T> FN bool truth(T x) { return x != (T)0; }
template <class T> FN bool is_inf(T) { return false; }
template <> FN_SPECIAL bool is_inf(float x) { return ::fabsf(x) == inf(x); }
template <> FN_SPECIAL bool is_inf(double x) { return ::fabs(x) == inf(x); }
template <class T> FN bool is_finite(T) { return true; }
template <> FN_SPECIAL bool is_finite(float x) { return ::fabsf(x) < inf(x); }
template <> FN_SPECIAL bool is_finite(double x) { return ::fabs(x) < inf(x); }

// ---- power, remainders ---------------------------------------------------------------------

template <class T> FN T pow(T a, T b) {
    typedef typename Unsigned<T>::type U;
    if (b < (T)0) {
        if (a == (T)1) return (T)1;
        if (a == (T)-1) return (b & 1) ? (T)-1 : (T)1;
        return (T)0;
    }
    U r = 1, x = (U)a;
    for (U e = (U)b; e != 0; e >>= 1) {
        if (e & 1) r = (U)(r * x);
        x = (U)(x * x);
    }
    return (T)r;
}
template <> FN_SPECIAL float pow(float a, float b) { return ::powf(a, b); }
template <> FN_SPECIAL double pow(double a, double b) { return ::pow(a, b); }

// -1 divides everything, and the smallest integer divided by it would overflow.
template <class T> FN T fmod(T a, T b) { return b == (T)0 || b == (T)-1 ? (T)0 : (T)(a % b); }
template <> FN_SPECIAL u8 fmod(u8 a, u8 b) { return b == 0 ? 0 : (u8)(a % b); }
template <> FN_SPECIAL float fmod(float a, float b) { return ::fmodf(a, b); }
template <> FN_SPECIAL double fmod(double a, double b) { return ::fmod(a, b); }

template <class T> FN T remainder(T a, T b) {
    T r = fmod(a, b);
    return r != (T)0 && (r < (T)0) != (b < (T)0) ? (T)(r + b) : r;
}

// Whole quotients; of an integer and zero they are 0, and by -1 the smallest one wraps.
template <class T> FN T trunc_divide(T a, T b) {
    return b == (T)0 ? (T)0 : b == (T)-1 ? neg(a) : (T)(a / b);
}
template <> FN_SPECIAL u8 trunc_divide(u8 a, u8 b) { return b == 0 ? 0 : (u8)(a / b); }
template <> FN_SPECIAL float trunc_divide(float a, float b) { return ::truncf(a / b); }
template <> FN_SPECIAL double trunc_divide(double a, double b) { return ::trunc(a / b); }

template <class T> FN T floor_divide(T a, T b) {
    T r = fmod(a, b), q = trunc_divide(a, b);
    return r != (T)0 && (r < (T)0) != (b < (T)0) ? sub(q, (T)1) : q;
}
// Without the remainder the rest divides nearly exactly.
template <class T> FN T floor_divide_float(T a, T b) {
    if (b == (T)0) return a / b;
    T r = fmod(a, b), whole = (a - r) / b;
    if (r != (T)0 && (r < (T)0) != (b < (T)0)) whole -= (T)1;
    if (whole == (T)0) return (T)::copysign(0.0, (double)(a / b));
    T below = (T)::floor((double)whole);
    return whole - below > (T)0.5 ? below + (T)1 : below;
}
template <> FN_SPECIAL float floor_divide(float a, float b) { return floor_divide_float(a, b); }
template <> FN_SPECIAL double floor_divide(double a, double b) { return floor_divide_float(a, b); }

// ---- functions of floats -------------------------------------------------------------------

#define FT_FLOAT_FUNCTION(name) \
    FN float name(float x) { return ::name##f(x); } \
    FN double name(double x) { return ::name(x); }
FT_FLOAT_FUNCTION(sqrt)
FT_FLOAT_FUNCTION(exp)
FT_FLOAT_FUNCTION(exp2)
FT_FLOAT_FUNCTION(expm1)
FT_FLOAT_FUNCTION(log)
FT_FLOAT_FUNCTION(log2)
FT_FLOAT_FUNCTION(log10)
FT_FLOAT_FUNCTION(log1p)
FT_FLOAT_FUNCTION(sin)
FT_FLOAT_FUNCTION(cos)
FT_FLOAT_FUNCTION(tan)
FT_FLOAT_FUNCTION(asin)
FT_FLOAT_FUNCTION(acos)
FT_FLOAT_FUNCTION(atan)
FT_FLOAT_FUNCTION(sinh)
FT_FLOAT_FUNCTION(cosh)
FT_FLOAT_FUNCTION(tanh)
FT_FLOAT_FUNCTION(asinh)
FT_FLOAT_FUNCTION(acosh)
FT_FLOAT_FUNCTION(atanh)
FT_FLOAT_FUNCTION(erf)
FT_FLOAT_FUNCTION(erfc)
#undef FT_FLOAT_FUNCTION
FN float hypot(float a, float b) { return ::hypotf(a, b); }
FN double hypot(double a, double b) { return ::hypot(a, b); }
FN float lgamma(float x) { return (float)::lgamma((double)x); }
FN double lgamma(double x) { return ::lgamma(x); }
FN float atan2(float a, float b) { return ::atan2f(a, b); }
FN double atan2(double a, double b) { return ::atan2(a, b); }
FN float fma(float a, float b, float c) { return ::fmaf(a, b, c); }
FN double fma(double a, double b, double c) { return ::fma(a, b, c); }

// The inverse of the error function, by the host's quotients of polynomials (Wichura 1988).
FN double ratio(double x, const double* above, const double* below) {
    double a = 0, b = 0;
    for (int i = 0; i < 8; ++i) {
        a = a * x + above[i];
        b = b * x + below[i];
    }
    return a / b;
}
FN double erfinv(double x) {
    const double middle[2][8] = {
        {2.5090809287301226727e3, 3.3430575583588128105e4, 6.7265770927008700853e4,
         4.5921953931549871457e4, 1.3731693765509461125e4, 1.9715909503065514427e3,
         1.3314166789178437745e2, 3.3871328727963666080e0},
        {5.2264952788528545610e3, 2.8729085735721942674e4, 3.9307895800092710610e4,
         2.1213794301586595867e4, 5.3941960214247511077e3, 6.8718700749205790830e2,
         4.2313330701600911252e1, 1.0}};
    const double near[2][8] = {
        {7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1,
         1.27045825245236838258e0, 3.64784832476320460504e0, 5.76949722146069140550e0,
         4.63033784615654529590e0, 1.42343711074968357734e0},
        {1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2,
         1.48103976427480074590e-1, 6.89767334985100004550e-1, 1.67638483018380384940e0,
         2.05319162663775882187e0, 1.0}};
    const double far[2][8] = {
        {2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.24266094738807843860e-3,
         2.65321895265761230930e-2, 2.96560571828504891230e-1, 1.78482653991729133580e0,
         5.46378491116411436990e0, 6.65790464350110377720e0},
        {2.04426310338993978564e-15, 1.42151175831644588870e-7, 1.84631831751005468180e-5,
         7.86869131145613259100e-4, 1.48753612908506148525e-2, 1.36929880922735805310e-1,
         5.99832206555887937690e-1, 1.0}};
    const double half_root = 0.70710678118654752;
    double away = ::fabs(x);
    if (!(away < 1.0)) return away == 1.0 ? x / 0.0 : nan(x);
    if (away <= 0.85) {
        double r = 0.180625 - 0.25 * x * x;
        return 0.5 * half_root * x * ratio(r, middle[0], middle[1]);
    }
    double r = ::sqrt(-::log(0.5 * (1.0 - away)));
    double y = r <= 5.0 ? ratio(r - 1.6, near[0], near[1]) : ratio(r - 5.0, far[0], far[1]);
    return ::copysign(half_root * y, x);
}
FN float erfinv(float x) { return (float)erfinv((double)x); }

// The slope of lgamma, as on the host.
FN double digamma(double x) {
    if (x == 0.0) return -1.0 / x;
    double sum = 0.0, y = x;
    if (x < 0.0) {
        double whole = ::trunc(x);
        if (x == whole) return nan(x);
        sum = -3.14159265358979323846 / ::tan(3.14159265358979323846 * (x - whole));
        y = 1.0 - x;
    }
    for (; y < 10.0; y += 1.0) sum -= 1.0 / y;
    double s = 1.0 / (y * y);
    double series = s * (1.0 / 12 - s * (1.0 / 120 - s * (1.0 / 252 - s * (1.0 / 240 -
        s * (1.0 / 132 - s * (691.0 / 32760 - s / 12))))));
    return sum + (::log(y) - 0.5 / y - series);
}
FN float digamma(float x) { return (float)digamma((double)x); }

// Rounding to whole numbers; integers are whole.
#define FT_WHOLE(name) \
    template <class T> FN T name(T x) { return x; } \
    template <> FN_SPECIAL float name(float x) { return ::name##f(x); } \
    template <> FN_SPECIAL double name(double x) { return ::name(x); }
FT_WHOLE(floor)
FT_WHOLE(ceil)
FT_WHOLE(rint)
FT_WHOLE(trunc)
#undef FT_WHOLE

// The exponential never overflows: e^-|x| is at most 1.
template <class T> FN T sigmoid(T x) {
    T e = exp(-abs(x));
    return (x < (T)0 ? e : (T)1) / ((T)1 + e);
}

template <class T> FN T softplus(T x) { return x > (T)20 ? x : log1p(exp(x)); }

// e^-(a + b) for an upper and a lower half: the tail of an activation takes its relative precision
// from the absolute one of the exponent. Doubles would say the same, at a conversion each.
FN float exp_of_negative(float a, float b) {
    float e = expf(-a);
    return fma(-b, e, e);
}

// x Phi(x) with the normal distribution Phi(-t) = e^(-t^2/2) g(t), g the quotient of polynomials of
// the CPU's: in the left tail, where 1 + erf would cancel, it keeps its digits. Measured beside f64
// with the host's expf: 6.3 ulp, at -5.6; to the right of -1 it is within 4.
FN float gelu(float x) {
    float t = ::fminf(::fabsf(x), 14.5f);  // there it is below half the smallest float
    const float c[5] = {0.004116295f, 0.040633135f, 0.18323487f, 0.43829459f, 0.5f},
                d[6] = {0.010317902f, 0.10185861f, 0.4694699f, 1.202502f, 1.6744741f, 1.0f};
    float above = c[0], below = d[0];
#pragma unroll
    for (int i = 1; i < 5; ++i) above = fma(above, t, c[i]);
#pragma unroll
    for (int i = 1; i < 6; ++i) below = fma(below, t, d[i]);
    // The square is exact as two floats.
    float a = 0.5f * t * t, b = fma(0.5f * t, t, -a);
    // Of -inf NaN, as in the formula.
    float tail = (x > 0.0f ? t : x) * (above / below) * exp_of_negative(a, b);
    return x > 0.0f ? x - tail : tail;
}
// By erfc. `lost` is the rounding error of x / sqrt 2, times the slope of erfc.
FN double gelu(double x) {
    const double high = 0.70710678118654757, low = -4.8336466567264567e-17;
    if (is_inf(x)) return x > 0 ? x : nan(x);
    double z = -x * high;
    double lost = fma(-x, low, fma(-x, high, -z));
    double c = erfc(z) - lost * 1.1283791670955126 * exp(-z * z);
    return 0.5 * x * c;
}

// 1 + tanh(u) is 2 / (1 + e^-2u), which does not cancel. Here 2u, of |x|, is a sum of two floats,
// by sums and products whose rounding errors are kept (Dekker 1971). Measured as above: 3.8 ulp.
FN float gelu_tanh(float x) {
    const double K = 2.0 * 0.7978845608028654, L = K * 0.044715;
    const float k = (float)K, k_low = (float)(K - (double)k), l = (float)L,
                l_low = (float)(L - (double)l);
    float y = ::fabsf(x);
    y = y > 20.0f ? 20.0f : y;  // there the exponential is 0
    float square = y * y, square_low = fma(y, y, -square);
    float more = l * square, more_low = fma(l, square, -more) + fma(l, square_low, l_low * square);
    float slope = k + more, came = slope - k;
    float slope_low = (k - (slope - came)) + (more - came) + (more_low + k_low);
    float t = y * slope, t_low = fma(y, slope, -t) + y * slope_low;
    if (x < 0.0f && t > 80.0f) {
        // In the far tail the exponential alone would be rounded to nothing before its product with
        // x is.
        float root = t > 220.0f ? 0.0f : exp_of_negative(0.5f * t, 0.5f * t_low);
        return x * root * root;
    }
    float e = exp_of_negative(t, t_low);
    return x * ((x > 0.0f ? 1.0f : e) / (1.0f + e));
}
// The same in one type.
FN double twice_u(double x) {
    return x * fma(x * x, 2.0 * 0.7978845608028654 * 0.044715, 2.0 * 0.7978845608028654);
}
FN double gelu_tanh(double x) { return x * sigmoid(twice_u(x)); }

}  // namespace ft
