//! Run-time choice of the instruction set: one body, compiled for each width.
//!
//! Kernels wrap a loop in [`vectorize`]; the loop is inlined into a function that may use what this
//! machine has, and the compiler vectorises it there. Nothing here knows what the loop computes.
//! FMA is never fused in silently: Rust does not contract `a * b + c`, so results do not depend on
//! the instruction set unless a body says `mul_add`.

use std::sync::atomic::{AtomicU8, Ordering};

/// What the machine can do; each level includes the ones before.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub(super) enum Level {
    /// What the crate was compiled for.
    Base = 1,
    /// AVX2, FMA and F16C.
    V3 = 2,
    /// AVX-512 F, BW, CD, DQ, VL.
    V4 = 3,
}

/// The level of this machine, looked up once.
#[inline]
pub(super) fn level() -> Level {
    static LEVEL: AtomicU8 = AtomicU8::new(0);
    match LEVEL.load(Ordering::Relaxed) {
        3 => Level::V4,
        2 => Level::V3,
        1 => Level::Base,
        _ => {
            let level = detect();
            LEVEL.store(level as u8, Ordering::Relaxed);
            level
        }
    }
}

#[cold]
fn detect() -> Level {
    #[cfg(target_arch = "x86_64")]
    {
        macro_rules! has { ($($f:tt)*) => { true $(&& std::is_x86_feature_detected!($f))* } }
        let v3 = has!("avx2" "fma" "f16c" "bmi1" "bmi2" "lzcnt" "popcnt");
        if v3 && has!("avx512f" "avx512bw" "avx512cd" "avx512dq" "avx512vl") {
            return Level::V4;
        }
        if v3 {
            return Level::V3;
        }
    }
    Level::Base
}

/// Runs a body compiled for the widest vectors that this machine has. What the body calls takes part
/// only where it is inlined.
#[inline(always)]
#[allow(unsafe_code)]
pub(super) fn vectorize<R>(body: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    match level() {
        // SAFETY: `level` says that the machine has these features.
        Level::V4 => return unsafe { v4(body) },
        // SAFETY: as above.
        Level::V3 => return unsafe { v3(body) },
        Level::Base => {}
    }
    body()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn v4<R>(body: impl FnOnce() -> R) -> R {
    body()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn v3<R>(body: impl FnOnce() -> R) -> R {
    body()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vectorised_body_computes_what_the_plain_one_does() {
        let x: Vec<f32> = (0..1000).map(|i| i as f32 * 0.37).collect();
        let plain: Vec<f32> = x.iter().map(|v| v * 3.0 + 1.0).collect();
        let mut wide = vec![0.0; x.len()];
        vectorize(|| wide.iter_mut().zip(&x).for_each(|(w, v)| *w = v * 3.0 + 1.0));
        assert_eq!(plain, wide);
    }
}
