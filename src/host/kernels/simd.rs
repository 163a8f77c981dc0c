//! Which vector instructions this machine has, and loops compiled once for each set.
//!
//! A plain `cargo build` targets the oldest machine of its architecture. Here a loop body is
//! written once, generic over a [`Simd`] marker, and instantiated inside functions that have more
//! instructions enabled; LLVM vectorises each instance for its own width. The instance that runs is
//! chosen once, at run time. This file knows nothing of what the loops compute.
//!
//! **Differences between levels.** `+ - * /`, square root, comparisons, conversions and
//! everything built from those alone give the same bits at every level: nothing is contracted or
//! reassociated. Elementary functions (`exp`, `sin`...) evaluate polynomials with fused
//! multiply-adds where the level has them, so they may differ between levels in the last place,
//! within their stated bounds. On one level everything is a pure function of the element: lanes,
//! remainders and tiles change nothing.
//!
//! `FUTENSOR_SIMD=baseline|avx2|avx512` forces a level that the machine has; it is read once. The
//! `gemm` crate does not know of it and chooses for itself.
//!
//! **arm64.** The baseline there is NEON with FMA. The library's tests were built for it. Those of
//! `math`, `elementwise`, `softmax`, `random`, `reduce` and `index` passed under qemu-user, and of
//! `matmul` all but the packed weight's and the larger ones, which are too slow there. The rest is
//! checked by the compiler alone (`.ci/run`); no speed was measured.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU8, Ordering};

/// A set of vector instructions, ordered by width.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub(crate) enum Level {
    /// What the architecture guarantees: SSE2 on x86-64, NEON with FMA on arm64.
    Baseline,
    /// AVX2 and FMA (x86-64-v3).
    Avx2,
    /// AVX-512 F, DQ, BW, VL (x86-64-v4).
    Avx512,
}

/// How many levels there are: the length of a table of instances.
pub(crate) const LEVELS: usize = 3;

impl Level {
    /// The name that `FUTENSOR_SIMD` takes.
    pub const fn name(self) -> &'static str {
        match self {
            Level::Baseline => "baseline",
            Level::Avx2 => "avx2",
            Level::Avx512 => "avx512",
        }
    }

    /// True where this machine can run the level.
    pub fn is_available(self) -> bool {
        match self {
            Level::Baseline => true,
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
                    && is_x86_feature_detected!("bmi2")
            }
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => {
                Level::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }

    /// Every level that this machine has, for tests.
    pub fn available() -> impl Iterator<Item = Level> {
        [Level::Baseline, Level::Avx2, Level::Avx512].into_iter().filter(|l| l.is_available())
    }
}

#[cfg(test)]
thread_local! {
    /// The level of this thread's test, where it tries one after the other.
    pub(crate) static FORCED: std::cell::Cell<Option<Level>> = const { std::cell::Cell::new(None) };
}

/// The level in use: the widest there is, unless `FUTENSOR_SIMD` names another that there is.
#[inline(always)]
pub(crate) fn level() -> Level {
    #[cfg(test)]
    if let Some(level) = FORCED.get() {
        return level;
    }
    // Plus one; 0 is "not looked yet". Threads that race here find the same answer.
    static CHOSEN: AtomicU8 = AtomicU8::new(0);
    match CHOSEN.load(Ordering::Relaxed) {
        1 => Level::Baseline,
        2 => Level::Avx2,
        3 => Level::Avx512,
        _ => {
            let level = choose(std::env::var("FUTENSOR_SIMD").ok().as_deref());
            CHOSEN.store(level as u8 + 1, Ordering::Relaxed);
            level
        }
    }
}

#[cold]
fn choose(forced: Option<&str>) -> Level {
    let widest = Level::available().last().unwrap_or(Level::Baseline);
    forced.and_then(|name| Level::available().find(|l| l.name() == name)).unwrap_or(widest)
}

/// A marker type: the level for which a generic body is being compiled.
pub(crate) trait Simd: Copy + Default + Send + Sync + 'static {
    /// Whether a fused multiply-add is one instruction. Without it `f32::mul_add` is a call into
    /// libm.
    const FMA: bool;
    /// Whether a register holds a cache line.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    const LINE: bool;
    /// Whether an instruction of F16C converts halves.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    const F16C: bool;
}

macro_rules! markers {
    ($($(#[$doc:meta])* $Marker:ident $fma:expr, $line:expr, $f16c:expr;)*) => {$(
        $(#[$doc])*
        #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
        #[derive(Clone, Copy, Default)]
        pub(crate) struct $Marker;
        impl Simd for $Marker {
            const FMA: bool = $fma;
            const LINE: bool = $line;
            const F16C: bool = $f16c;
        }
    )*};
}
markers! {
    /// Marks bodies compiled for [`Level::Baseline`].
    Baseline cfg!(any(target_arch = "aarch64", target_feature = "fma")), false, false;
    /// Marks bodies compiled for [`Level::Avx2`].
    Avx2 true, false, true;
    /// Marks bodies compiled for [`Level::Avx512`].
    Avx512 true, true, true;
}

/// A loop over `n` elements: `(dst, a, b, c, n)`. What the pointers mean is the body's affair.
pub(crate) type Loop = unsafe fn(*mut u8, *const u8, *const u8, *const u8, usize);

/// A loop, before it is instantiated for a level.
pub(crate) trait Body {
    /// Runs the loop. Mark it, and all it calls, `#[inline(always)]`: only what is inlined is
    /// compiled for the level.
    ///
    /// # Safety
    /// The body says what the pointers must be.
    unsafe fn run<S: Simd>(dst: *mut u8, a: *const u8, b: *const u8, c: *const u8, n: usize);
}

unsafe fn on_baseline<B: Body>(dst: *mut u8, a: *const u8, b: *const u8, c: *const u8, n: usize) {
    // SAFETY: the caller keeps the body's promise.
    unsafe { B::run::<Baseline>(dst, a, b, c, n) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
unsafe fn on_avx2<B: Body>(dst: *mut u8, a: *const u8, b: *const u8, c: *const u8, n: usize) {
    // SAFETY: the caller keeps the body's promise.
    unsafe { B::run::<Avx2>(dst, a, b, c, n) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,bmi2,avx512f,avx512dq,avx512bw,avx512vl")]
unsafe fn on_avx512<B: Body>(dst: *mut u8, a: *const u8, b: *const u8, c: *const u8, n: usize) {
    // SAFETY: the caller keeps the body's promise.
    unsafe { B::run::<Avx512>(dst, a, b, c, n) }
}

/// The instances of a body, indexed by level. To call one needs its level and the body's promise.
#[cfg(target_arch = "x86_64")]
pub(crate) const fn instances<B: Body>() -> [Loop; LEVELS] {
    [on_baseline::<B>, on_avx2::<B>, on_avx512::<B>]
}

/// The instances of a body, indexed by level. There is only one here.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) const fn instances<B: Body>() -> [Loop; LEVELS] {
    [on_baseline::<B>; LEVELS]
}

/// Makes `fn name(level, args) -> R` that runs a generic `#[inline(always)] fn body<S: Simd>(args)
/// -> R` as compiled for `level`.
macro_rules! multiversion {
    (
        $(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $t:ty),* $(,)?)
        $(-> $r:ty)? = $body:ident
    ) => {
        $(#[$meta])*
        #[allow(unsafe_code)]
        $vis fn $name(level: $crate::host::kernels::simd::Level, $($arg: $t),*) $(-> $r)? {
            use $crate::host::kernels::simd;
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c,bmi2")]
            fn on_avx2($($arg: $t),*) $(-> $r)? { $body::<simd::Avx2>($($arg),*) }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c,bmi2,avx512f,avx512dq,avx512bw,avx512vl")]
            fn on_avx512($($arg: $t),*) $(-> $r)? { $body::<simd::Avx512>($($arg),*) }
            match level {
                // SAFETY: a `Level` is only made where the machine has it: see `level` and
                // `available`.
                #[cfg(target_arch = "x86_64")]
                simd::Level::Avx2 => unsafe { on_avx2($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                simd::Level::Avx512 => unsafe { on_avx512($($arg),*) },
                _ => $body::<simd::Baseline>($($arg),*),
            }
        }
    };
}
pub(crate) use multiversion;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forced_level_is_taken_only_if_the_machine_has_it() {
        let widest = Level::available().last().unwrap();
        assert_eq!(choose(None), widest);
        assert_eq!(choose(Some("no such level")), widest);
        for level in Level::available() {
            assert_eq!(choose(Some(level.name())), level);
        }
        assert!(level().is_available());
    }

    #[inline(always)]
    fn dot<S: Simd>(a: &[f32], b: &[f32]) -> f32 {
        a.iter().zip(b).map(|(a, b)| if S::FMA { a.mul_add(*b, 0.0) } else { a * b }).sum()
    }
    multiversion! { fn dot_at(a: &[f32], b: &[f32]) -> f32 = dot }

    #[test]
    fn every_level_runs_a_multiversioned_body() {
        for level in Level::available() {
            assert_eq!(dot_at(level, &[1.0, 2.0], &[3.0, 4.0]), 11.0);
        }
    }
}
