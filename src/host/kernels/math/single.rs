//! The elementary functions of f32, gathered into [`Real`].
//!
//! Every function is within 2 units of the correctly rounded result over all floats, most within 1,
//! but the left tail of `gelu`, which is within 7;
//! `tests.rs` holds them to it.

use super::{Lane, Real, exp, gamma, log, special, trig};
use crate::host::kernels::simd::Simd;

macro_rules! real {
    (
        plain { $($name:ident $f:path;)* }
        rare { $($rarely:ident $is_rare:path, $fast:path, $rare:path;)* }
    ) => {
        impl<S: Simd> Real for Lane<S, f32> {
            #[inline(always)]
            fn one(self) -> Self { Lane::new(1.0) }
            #[inline(always)]
            fn div(self, b: Self) -> Self { Lane::new(self.0 / b.0) }
            #[inline(always)]
            fn atan2(self, x: Self) -> Self { Lane::new(trig::atan2::<S>(self.0, x.0)) }
            #[inline(always)]
            fn hypot(self, b: Self) -> Self { Lane::new(special::hypot(self.0, b.0)) }
            $(
                #[inline(always)]
                fn $name(self) -> Self { Lane::new($f(self.0)) }
            )*
            $(
                #[inline(always)]
                fn $rarely(self) -> Self {
                    Lane::new(if $is_rare(self.0) { $rare(self.0) } else { $fast(self.0) })
                }
            )*
        }
    };
}
real! {
    plain {
    sqrt f32::sqrt;
    exp exp::exp::<S>;
    exp2 exp::exp2::<S>;
    expm1 exp::expm1::<S>;
    log log::log::<S>;
    log2 log::log2::<S>;
    log10 log::log10::<S>;
    log1p log::log1p::<S>;
    asin trig::asin::<S>;
    acos trig::acos::<S>;
    atan trig::atan::<S>;
    sinh exp::sinh::<S>;
    cosh exp::cosh::<S>;
    tanh exp::tanh::<S>;
    asinh log::asinh::<S>;
    acosh log::acosh::<S>;
    atanh log::atanh::<S>;
    sigmoid exp::sigmoid::<S>;
    softplus exp::softplus::<S>;
    erf special::erf::<S>;
    erfinv special::erfinv::<S>;
    gelu special::gelu::<S>;
    gelu_tanh special::gelu_tanh::<S>;
    hardswish special::hardswish;
    floor f32::floor;
    ceil f32::ceil;
    round f32::round_ties_even;
    trunc f32::trunc;
    }
    rare {
    sin trig::is_rare, trig::sin_fast::<S>, trig::sin_rare;
    cos trig::is_rare, trig::cos_fast::<S>, trig::cos_rare;
    tan trig::is_rare, trig::tan_fast::<S>, trig::tan_rare;
    lgamma gamma::is_rare_lgamma, gamma::lgamma_fast::<S>, gamma::lgamma_rare;
    digamma gamma::is_rare_digamma, gamma::digamma_fast::<S>, gamma::digamma_rare;
    }
}
