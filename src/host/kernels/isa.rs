//! Bodies with captured state, compiled for the widest vectors of this machine.
//!
//! [`simd`](super::simd) knows the levels and instantiates plain functions; here it is closures,
//! and values with a generic method for bodies that must know the level. Knows nothing of what they
//! compute.

use super::simd::{Baseline, Level, Simd, level};

/// Runs a body as compiled for the level in use. What it calls takes part only where it is inlined.
///
/// A macro, so that there is a closure for each level, with one caller: one that all levels call is
/// compiled once, for none of them, wherever it is too long to be inlined (a softmax of bfloat16
/// rows took five times as long for that).
///
/// A loop that writes through a pointer takes it, and the numbers that it needs, along with `move`:
/// of what is only referred to, the compiler thinks that each write may change it, and computes one
/// element at a time.
macro_rules! vectorize {
    (|| $body:expr) => {
        $crate::host::kernels::isa::vectorize!(@ [] $body)
    };
    (move || $body:expr) => {
        $crate::host::kernels::isa::vectorize!(@ [move] $body)
    };
    (@ [$($by:tt)?] $body:expr) => {{
        use $crate::host::kernels::{isa, simd::Level};
        match $crate::host::kernels::simd::level() {
            Level::Avx512 => isa::within_avx512($($by)? || $body),
            Level::Avx2 => isa::within_avx2($($by)? || $body),
            Level::Baseline => isa::within_baseline($($by)? || $body),
        }
    }};
}
pub(super) use vectorize;

struct Plain<F>(F);

impl<R, F: FnOnce() -> R> Levelled for Plain<F> {
    type Out = R;
    #[inline(always)]
    fn run<S: Simd>(self) -> R {
        (self.0)()
    }
}

/// Runs a closure as compiled for AVX-512, which is the level in use.
#[inline(always)]
#[allow(unsafe_code)]
pub(super) fn within_avx512<R>(body: impl FnOnce() -> R) -> R {
    assert_eq!(level(), Level::Avx512, "what is run has been chosen by the level");
    // SAFETY: a `Level` is only made where the machine has it.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        on_avx512(Plain(body))
    }
    #[cfg(not(target_arch = "x86_64"))]
    body()
}

/// Runs a closure as compiled for AVX2, which is the level in use.
#[inline(always)]
#[allow(unsafe_code)]
pub(super) fn within_avx2<R>(body: impl FnOnce() -> R) -> R {
    assert_eq!(level(), Level::Avx2, "what is run has been chosen by the level");
    // SAFETY: as above.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        on_avx2(Plain(body))
    }
    #[cfg(not(target_arch = "x86_64"))]
    body()
}

/// Runs a closure as compiled for the architecture.
#[inline(always)]
pub(super) fn within_baseline<R>(body: impl FnOnce() -> R) -> R {
    on_baseline(Plain(body))
}

/// A body that is told its level.
pub(super) trait Levelled {
    type Out;
    /// Mark it, and all it calls, `#[inline(always)]`.
    fn run<S: Simd>(self) -> Self::Out;
}

/// Runs a body as compiled for the level in use.
#[inline(always)]
#[allow(unsafe_code)]
pub(super) fn at_level<B: Levelled>(body: B) -> B::Out {
    match level() {
        // SAFETY: a `Level` is only made where the machine has it.
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => unsafe { on_avx512(body) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => unsafe { on_avx2(body) },
        _ => on_baseline(body),
    }
}

/// A function of its own, as those of the other levels are: within its caller, and its caller's
/// callers, the body would be optimised once again in each.
#[inline(never)]
fn on_baseline<B: Levelled>(body: B) -> B::Out {
    body.run::<Baseline>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,bmi2,avx512f,avx512dq,avx512bw,avx512vl")]
fn on_avx512<B: Levelled>(body: B) -> B::Out {
    body.run::<super::simd::Avx512>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
fn on_avx2<B: Levelled>(body: B) -> B::Out {
    body.run::<super::simd::Avx2>()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_vectorised_body_computes_what_the_plain_one_does() {
        let x: Vec<f32> = (0..1000).map(|i| i as f32 * 0.37).collect();
        let plain: Vec<f32> = x.iter().map(|v| v * 3.0 + 1.0).collect();
        let mut wide = vec![0.0; x.len()];
        vectorize!(|| wide.iter_mut().zip(&x).for_each(|(w, v)| *w = v * 3.0 + 1.0));
        assert_eq!(plain, wide);
    }
}
