//! Elementary functions of f64: the standard library's, and `libm`'s where it has none or loses
//! digits near an edge.
//!
//! Called through [`Real`] only. Not vectorised: double precision is rarely what a CPU tensor is
//! for.

use super::{Lane, Real};
use crate::host::kernels::simd::Simd;
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

fn sigmoid(x: f64) -> f64 {
    // e^-|x| cannot overflow, and keeps the relative precision of the left tail.
    let e = (-x.abs()).exp();
    (if x < 0.0 { e } else { 1.0 }) / (1.0 + e)
}

fn gelu(x: f64) -> f64 {
    // (1 + erf(y)) / 2 = erfc(-y) / 2, which keeps its precision where 1 + erf(y) would cancel.
    x * (0.5 * libm::erfc(-x * FRAC_1_SQRT_2))
}

#[inline(always)]
fn hardswish(x: f64) -> f64 {
    let factor = x + 3.0;
    let factor = if factor > 6.0 { 6.0 } else { factor };
    let factor = if factor < 0.0 { 0.0 } else { factor };
    x * (factor * (1.0 / 6.0))
}

fn gelu_tanh(x: f64) -> f64 {
    // (1 + tanh(u)) / 2 = sigmoid(2u).
    let u = FRAC_2_SQRT_PI * FRAC_1_SQRT_2 * (x + 0.044715 * x * x * x);
    x * sigmoid(2.0 * u)
}

fn softplus(x: f64) -> f64 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

fn acosh(x: f64) -> f64 {
    // Below 1 `libm` makes numbers of some.
    if x < 1.0 { f64::NAN } else { libm::acosh(x) }
}

/// A quotient of polynomials of the same degree, the highest coefficient first.
fn ratio(x: f64, above: [f64; 8], below: [f64; 8]) -> f64 {
    let of = |c: [f64; 8]| c.iter().fold(0.0, |y, c| y * x + c);
    of(above) / of(below)
}

/// By the normal quantile of Wichura 1988 (algorithm AS 241), within 1e-16.
pub(super) fn erfinv(x: f64) -> f64 {
    let away = x.abs();
    if away >= 1.0 || x.is_nan() {
        return if away == 1.0 { f64::INFINITY.copysign(x) } else { f64::NAN };
    }
    if away <= 0.85 {
        let r = 0.180625 - 0.25 * x * x;
        return 0.5 * FRAC_1_SQRT_2 * x * ratio(r, MIDDLE[0], MIDDLE[1]);
    }
    let r = (-(0.5 * (1.0 - away)).ln()).sqrt();
    let y = match r <= 5.0 {
        true => ratio(r - 1.6, NEAR[0], NEAR[1]),
        false => ratio(r - 5.0, FAR[0], FAR[1]),
    };
    (FRAC_1_SQRT_2 * y).copysign(x)
}

const MIDDLE: [[f64; 8]; 2] = [
    [
        2.509_080_928_730_122_7e3,
        3.343_057_558_358_813e4,
        6.726_577_092_700_87e4,
        4.592_195_393_154_987e4,
        1.373_169_376_550_946e4,
        1.971_590_950_306_551_3e3,
        1.331_416_678_917_843_8e2,
        3.387_132_872_796_366_5,
    ],
    [
        5.226_495_278_852_854_6e3,
        2.872_908_573_572_194_3e4,
        3.930_789_580_009_271e4,
        2.121_379_430_158_659_7e4,
        5.394_196_021_424_751e3,
        6.871_870_074_920_579e2,
        4.231_333_070_160_091e1,
        1.0,
    ],
];
const NEAR: [[f64; 8]; 2] = [
    [
        7.745_450_142_783_414e-4,
        2.272_384_498_926_918_4e-2,
        2.417_807_251_774_506e-1,
        1.270_458_252_452_368_4,
        3.647_848_324_763_204_5,
        5.769_497_221_460_691,
        4.630_337_846_156_546,
        1.423_437_110_749_683_5,
    ],
    [
        1.050_750_071_644_416_9e-9,
        5.475_938_084_995_345e-4,
        1.519_866_656_361_645_7e-2,
        1.481_039_764_274_800_8e-1,
        6.897_673_349_851e-1,
        1.676_384_830_183_803_8,
        2.053_191_626_637_759,
        1.0,
    ],
];
const FAR: [[f64; 8]; 2] = [
    [
        2.010_334_399_292_288_1e-7,
        2.711_555_568_743_487_6e-5,
        1.242_660_947_388_078_4e-3,
        2.653_218_952_657_612_4e-2,
        2.965_605_718_285_048_7e-1,
        1.784_826_539_917_291_3,
        5.463_784_911_164_114,
        6.657_904_643_501_103,
    ],
    [
        2.044_263_103_389_939_8e-15,
        1.421_511_758_316_446e-7,
        1.846_318_317_510_054_8e-5,
        7.868_691_311_456_133e-4,
        1.487_536_129_085_061_5e-2,
        1.369_298_809_227_358e-1,
        5.998_322_065_558_88e-1,
        1.0,
    ],
];

/// By the recurrence up to 10, then the series there; below 0 by reflection.
pub(super) fn digamma(x: f64) -> f64 {
    if x == 0.0 {
        return f64::INFINITY.copysign(-x);
    }
    let mut sum = 0.0;
    let mut y = x;
    if x < 0.0 {
        if x == x.trunc() {
            return f64::NAN;
        }
        let part = x - x.trunc();
        sum = -std::f64::consts::PI / (std::f64::consts::PI * part).tan();
        y = 1.0 - x;
    }
    while y < 10.0 {
        sum -= 1.0 / y;
        y += 1.0;
    }
    let s = 1.0 / (y * y);
    let series = s
        * (1.0 / 12.0
            - s * (1.0 / 120.0
                - s * (1.0 / 252.0
                    - s * (1.0 / 240.0 - s * (1.0 / 132.0 - s * (691.0 / 32760.0 - s / 12.0))))));
    sum + (y.ln() - 0.5 / y - series)
}

macro_rules! real {
    ($($name:ident $f:path;)*) => {
        impl<S: Simd> Real for Lane<S, f64> {
            #[inline(always)]
            fn one(self) -> Self { Lane::new(1.0) }
            #[inline(always)]
            fn div(self, b: Self) -> Self { Lane::new(self.0 / b.0) }
            #[inline(always)]
            fn atan2(self, x: Self) -> Self { Lane::new(self.0.atan2(x.0)) }
            #[inline(always)]
            fn hypot(self, b: Self) -> Self { Lane::new(self.0.hypot(b.0)) }
            $(
                #[inline(always)]
                fn $name(self) -> Self { Lane::new($f(self.0)) }
            )*
        }
    };
}
real! {
    sqrt f64::sqrt;
    exp f64::exp;
    exp2 f64::exp2;
    expm1 f64::exp_m1;
    log f64::ln;
    log2 f64::log2;
    log10 f64::log10;
    log1p f64::ln_1p;
    sin f64::sin;
    cos f64::cos;
    tan f64::tan;
    asin f64::asin;
    acos f64::acos;
    atan f64::atan;
    sinh f64::sinh;
    cosh f64::cosh;
    tanh f64::tanh;
    asinh libm::asinh;
    acosh acosh;
    atanh libm::atanh;
    sigmoid sigmoid;
    softplus softplus;
    erf libm::erf;
    erfinv erfinv;
    lgamma libm::lgamma;
    digamma digamma;
    gelu gelu;
    gelu_tanh gelu_tanh;
    hardswish hardswish;
    floor f64::floor;
    ceil f64::ceil;
    round f64::round_ties_even;
    trunc f64::trunc;
}
