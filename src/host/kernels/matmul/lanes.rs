//! Registers of f32, for the one kernel whose sums must stay in them.
//!
//! In loops over arrays the compiler decides which values live in registers; a product of matrices
//! that spills its sums runs at a thirtieth of its speed (measured). Knows nothing of matrices.

use super::super::load::Load;
use super::super::simd::{Baseline, Simd};
use ::half::{bf16, f16};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// A register of [`WIDTH`](Lanes::WIDTH) floats.
///
/// # Safety of its functions
/// The machine has the instructions, and the caller is compiled for them, or they are called as
/// functions, which is slow; addresses are valid for `WIDTH` floats of any alignment.
pub(in super::super) trait Lanes {
    type Register: Copy;
    const WIDTH: usize;
    unsafe fn splat(x: f32) -> Self::Register;
    unsafe fn load(from: *const f32) -> Self::Register;
    /// Halves, widened.
    unsafe fn load_f16(from: *const f16) -> Self::Register;
    unsafe fn load_bf16(from: *const bf16) -> Self::Register;
    unsafe fn store(to: *mut f32, x: Self::Register);
    unsafe fn add(a: Self::Register, b: Self::Register) -> Self::Register;
    /// `a * b + c`, in one rounding where the machine has that.
    unsafe fn fma(a: Self::Register, b: Self::Register, c: Self::Register) -> Self::Register;
    /// The first `n` lanes, and zeros.
    unsafe fn first(x: Self::Register, n: usize) -> Self::Register;
    /// The sum of the lanes, half by half.
    unsafe fn sum(x: Self::Register) -> f32;
    /// Asks for a line of the second-level cache.
    #[inline(always)]
    unsafe fn fetch(_line: *const f32) {}
    /// Asks for a line of the first-level cache.
    #[inline(always)]
    unsafe fn fetch_near(_line: *const f32) {}
}

/// Four floats, as the compiler likes: a register of SSE2 or NEON.
pub(in super::super) struct Plain;

impl Lanes for Plain {
    type Register = [f32; 4];
    const WIDTH: usize = 4;
    #[inline(always)]
    unsafe fn splat(x: f32) -> [f32; 4] {
        [x; 4]
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> [f32; 4] {
        // SAFETY: by the caller's promise.
        unsafe { from.cast::<[f32; 4]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const f16) -> [f32; 4] {
        // SAFETY: by the caller's promise.
        unsafe { from.cast::<[f16; 4]>().read_unaligned() }.map(Load::load)
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> [f32; 4] {
        // SAFETY: by the caller's promise.
        unsafe { from.cast::<[bf16; 4]>().read_unaligned() }.map(Load::load)
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, x: [f32; 4]) {
        // SAFETY: by the caller's promise.
        unsafe { to.cast::<[f32; 4]>().write_unaligned(x) }
    }
    #[inline(always)]
    unsafe fn add(a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        [a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3]]
    }
    #[inline(always)]
    unsafe fn fma(a: [f32; 4], b: [f32; 4], c: [f32; 4]) -> [f32; 4] {
        let of =
            |i: usize| if Baseline::FMA { a[i].mul_add(b[i], c[i]) } else { a[i] * b[i] + c[i] };
        [of(0), of(1), of(2), of(3)]
    }
    #[inline(always)]
    unsafe fn first(x: [f32; 4], n: usize) -> [f32; 4] {
        std::array::from_fn(|i| if i < n { x[i] } else { 0.0 })
    }
    #[inline(always)]
    unsafe fn sum([a, b, c, d]: [f32; 4]) -> f32 {
        (a + c) + (b + d)
    }
}

/// Bits of lanes that stay, and of lanes that do not.
#[cfg(target_arch = "x86_64")]
static MASKS: [u32; 32] = {
    let mut masks = [0; 32];
    let mut lane = 0;
    while lane < 16 {
        masks[lane] = u32::MAX;
        lane += 1;
    }
    masks
};

#[cfg(target_arch = "x86_64")]
macro_rules! lanes {
    ($(
        $(#[$doc:meta])* $Name:ident $t:ident $width:literal
        $splat:ident $load:ident $store:ident $add:ident $fma:ident
        $read:ident $f16:ident $wide:ident $shift:ident $cast:ident $and:ident $sum:ident;
    )*) => {$(
        $(#[$doc])*
        pub(in super::super) struct $Name;

        // SAFETY: in each function, by the caller's promise.
        impl Lanes for $Name {
            type Register = $t;
            const WIDTH: usize = $width;
            #[inline(always)]
            unsafe fn splat(x: f32) -> $t { unsafe { $splat(x) } }
            #[inline(always)]
            unsafe fn load(from: *const f32) -> $t { unsafe { $load(from) } }
            #[inline(always)]
            unsafe fn load_f16(from: *const f16) -> $t { unsafe { $f16($read(from.cast())) } }
            #[inline(always)]
            unsafe fn load_bf16(from: *const bf16) -> $t {
                unsafe { $cast($shift::<16>($wide($read(from.cast())))) }
            }
            #[inline(always)]
            unsafe fn store(to: *mut f32, x: $t) { unsafe { $store(to, x) } }
            #[inline(always)]
            unsafe fn add(a: $t, b: $t) -> $t { unsafe { $add(a, b) } }
            #[inline(always)]
            unsafe fn fma(a: $t, b: $t, c: $t) -> $t { unsafe { $fma(a, b, c) } }
            #[inline(always)]
            unsafe fn first(x: $t, n: usize) -> $t {
                // SAFETY: so many lanes on from there are masks too.
                unsafe { $and(x, $load(MASKS.as_ptr().add(16 - n).cast())) }
            }
            // SAFETY: as above.
            #[inline(always)]
            unsafe fn sum(x: $t) -> f32 { unsafe { $sum(x) } }
            #[inline(always)]
            unsafe fn fetch(line: *const f32) {
                unsafe { _mm_prefetch::<_MM_HINT_T1>(line.cast()) }
            }
            #[inline(always)]
            unsafe fn fetch_near(line: *const f32) {
                unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) }
            }
        }
    )*};
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn sum_256(x: __m256) -> f32 {
    // SAFETY: by the caller's promise.
    unsafe {
        let four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
    }
}

#[cfg(target_arch = "x86_64")]
lanes! {
    /// A 256-bit register.
    Avx2 __m256 8 _mm256_set1_ps _mm256_loadu_ps _mm256_storeu_ps _mm256_add_ps _mm256_fmadd_ps
        _mm_loadu_si128 _mm256_cvtph_ps _mm256_cvtepu16_epi32 _mm256_slli_epi32
        _mm256_castsi256_ps _mm256_and_ps sum_256;
    /// A 512-bit register.
    Avx512 __m512 16 _mm512_set1_ps _mm512_loadu_ps _mm512_storeu_ps _mm512_add_ps _mm512_fmadd_ps
        _mm256_loadu_si256 _mm512_cvtph_ps _mm512_cvtepu16_epi32 _mm512_slli_epi32
        _mm512_castsi512_ps _mm512_and_ps _mm512_reduce_add_ps;
}

/// A 512-bit register of sums in f32; what is multiplied are pairs of bfloat16, whose two products
/// are added to a sum one after the other. What is next to nothing is taken for zero.
#[cfg(target_arch = "x86_64")]
pub(in super::super) struct Pairs;

#[cfg(target_arch = "x86_64")]
impl Lanes for Pairs {
    type Register = __m512;
    const WIDTH: usize = Avx512::WIDTH;
    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        // SAFETY: by the caller's promise.
        unsafe { Avx512::splat(x) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m512 {
        // SAFETY: by the caller's promise.
        unsafe { Avx512::load(from) }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const f16) -> __m512 {
        // SAFETY: by the caller's promise.
        unsafe { Avx512::load_f16(from) }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> __m512 {
        // SAFETY: by the caller's promise.
        unsafe { Avx512::load_bf16(from) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, x: __m512) {
        // SAFETY: by the caller's promise.
        unsafe { Avx512::store(to, x) }
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        // SAFETY: by the caller's promise.
        unsafe { Avx512::add(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: by the caller's promise.
        unsafe {
            let pairs = |x: __m512| std::mem::transmute::<__m512, __m512bh>(x);
            _mm512_dpbf16_ps(c, pairs(a), pairs(b))
        }
    }
    #[inline(always)]
    unsafe fn first(x: __m512, n: usize) -> __m512 {
        // SAFETY: by the caller's promise.
        unsafe { Avx512::first(x, n) }
    }
    #[inline(always)]
    unsafe fn sum(x: __m512) -> f32 {
        // SAFETY: by the caller's promise.
        unsafe { Avx512::sum(x) }
    }
    #[inline(always)]
    unsafe fn fetch(line: *const f32) {
        // SAFETY: by the caller's promise.
        unsafe { Avx512::fetch(line) }
    }
    #[inline(always)]
    unsafe fn fetch_near(line: *const f32) {
        // SAFETY: by the caller's promise.
        unsafe { Avx512::fetch_near(line) }
    }
}
