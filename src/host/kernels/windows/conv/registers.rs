//! Registers of what convolutions are computed in, for sums that must stay in them.

use super::Real;
use crate::host::kernels::isa::vectorize;
#[cfg(target_arch = "x86_64")]
use crate::host::kernels::matmul::{Avx2, Avx512};
use crate::host::kernels::matmul::{Lanes, Plain};
#[cfg(target_arch = "x86_64")]
use crate::host::kernels::simd::{Level, level};

/// A register.
///
/// # Safety of its functions
/// As for [`Lanes`].
pub(super) trait Registers<W> {
    type Register: Copy;
    const WIDTH: usize;
    unsafe fn splat(x: W) -> Self::Register;
    unsafe fn load(from: *const W) -> Self::Register;
    unsafe fn store(to: *mut W, x: Self::Register);
    /// `a * b + c`
    unsafe fn fma(a: Self::Register, b: Self::Register, c: Self::Register) -> Self::Register;
    /// The first `n` lanes, and zeros.
    unsafe fn first(x: Self::Register, n: usize) -> Self::Register;
    /// The sum of the lanes.
    unsafe fn sum(x: Self::Register) -> W;
}

impl<L: Lanes> Registers<f32> for L {
    type Register = L::Register;
    const WIDTH: usize = L::WIDTH;
    #[inline(always)]
    unsafe fn splat(x: f32) -> L::Register {
        // SAFETY: by the caller's promise.
        unsafe { L::splat(x) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> L::Register {
        // SAFETY: by the caller's promise.
        unsafe { L::load(from) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, x: L::Register) {
        // SAFETY: by the caller's promise.
        unsafe { L::store(to, x) }
    }
    #[inline(always)]
    unsafe fn fma(a: L::Register, b: L::Register, c: L::Register) -> L::Register {
        // SAFETY: by the caller's promise.
        unsafe { L::fma(a, b, c) }
    }
    #[inline(always)]
    unsafe fn first(x: L::Register, n: usize) -> L::Register {
        // SAFETY: by the caller's promise.
        unsafe { L::first(x, n) }
    }
    #[inline(always)]
    unsafe fn sum(x: L::Register) -> f32 {
        // SAFETY: by the caller's promise.
        unsafe { L::sum(x) }
    }
}

/// Four f64, as the compiler likes.
pub(super) struct Four;

impl Registers<f64> for Four {
    type Register = [f64; 4];
    const WIDTH: usize = 4;
    #[inline(always)]
    unsafe fn splat(x: f64) -> [f64; 4] {
        [x; 4]
    }
    #[inline(always)]
    unsafe fn load(from: *const f64) -> [f64; 4] {
        // SAFETY: by the caller's promise.
        unsafe { from.cast::<[f64; 4]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f64, x: [f64; 4]) {
        // SAFETY: by the caller's promise.
        unsafe { to.cast::<[f64; 4]>().write_unaligned(x) }
    }
    #[inline(always)]
    unsafe fn fma(a: [f64; 4], b: [f64; 4], c: [f64; 4]) -> [f64; 4] {
        let of = |i: usize| a[i] * b[i] + c[i];
        [of(0), of(1), of(2), of(3)]
    }
    #[inline(always)]
    unsafe fn first(x: [f64; 4], n: usize) -> [f64; 4] {
        let of = |i: usize| if i < n { x[i] } else { 0.0 };
        [of(0), of(1), of(2), of(3)]
    }
    #[inline(always)]
    unsafe fn sum([a, b, c, d]: [f64; 4]) -> f64 {
        (a + c) + (b + d)
    }
}

/// What is computed in registers. Mark it, and all it calls, `#[inline(always)]`.
pub(super) trait Body<W> {
    fn run<R: Registers<W>>(self);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,bmi2,avx512f,avx512dq,avx512bw,avx512vl")]
fn on_avx512<B: Body<f32>>(body: B) {
    body.run::<Avx512>();
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
fn on_avx2<B: Body<f32>>(body: B) {
    body.run::<Avx2>();
}

impl Real for f32 {
    const TILED: bool = true;

    fn at_level<B: Body<f32>>(body: B) {
        #[cfg(target_arch = "x86_64")]
        match level() {
            // SAFETY: a `Level` is only made where the machine has it.
            Level::Avx512 => return unsafe { on_avx512(body) },
            // SAFETY: as above.
            Level::Avx2 => return unsafe { on_avx2(body) },
            Level::Baseline => {}
        }
        body.run::<Plain>();
    }
}

impl Real for f64 {
    // Errors of f64 are those of sums in order.
    const TILED: bool = false;

    fn at_level<B: Body<f64>>(body: B) {
        vectorize!(|| body.run::<Four>());
    }
}
