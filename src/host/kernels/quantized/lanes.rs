//! Sixteen lanes, one a row of a quantised weight: the registers of its product.
//!
//! Products of bytes are summed up in integers, which is exact; floats are multiplied and then
//! added, or in one rounding where that is asked for. So every instruction set gives the same bits.
//! Knows nothing of formats.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Registers of sixteen integers and floats.
///
/// # Safety of its functions
/// The machine has the instructions; addresses are valid for what is read or written there, in any
/// alignment.
pub(super) trait Lanes {
    type Int: Copy;
    type Float: Copy;
    /// Rows of activations that meet a weight while it is in registers.
    const MANY: usize;
    /// [`dot_signed`](Lanes::dot_signed) takes weights as 128 more than they are.
    const OFFSET: bool;
    unsafe fn zero() -> Self::Int;
    /// 64 bytes.
    unsafe fn load(from: *const u8) -> Self::Int;
    /// The same four bytes in each lane.
    unsafe fn splat(bytes: u32) -> Self::Int;
    unsafe fn and(a: Self::Int, b: Self::Int) -> Self::Int;
    unsafe fn or(a: Self::Int, b: Self::Int) -> Self::Int;
    /// Shifts lanes right by `n`; zeros come in.
    unsafe fn right(a: Self::Int, n: u32) -> Self::Int;
    unsafe fn left<const N: u32>(a: Self::Int) -> Self::Int;
    /// Lanes as signed integers, with the sign that comes in from bit 31.
    unsafe fn right_signed<const N: u32>(a: Self::Int) -> Self::Int;
    unsafe fn plus(a: Self::Int, b: Self::Int) -> Self::Int;
    /// Adds the products of a lane's four bytes: `w` is unsigned, `x` is -127 to 127. `few` may be
    /// sums of two products in 16 bits. It starts as zero, and the caller adds no more words than
    /// those have room for.
    unsafe fn few(few: Self::Int, w: Self::Int, x: *const i8) -> Self::Int;
    /// The sum that [`few`](Lanes::few) has made, as one integer a lane.
    unsafe fn whole(few: Self::Int) -> Self::Int;
    /// Signed bytes as [`dot_signed`](Lanes::dot_signed) takes them.
    unsafe fn signed(w: Self::Int) -> Self::Int;
    /// `sum + w0 x0 + w1 x1 + w2 x2 + w3 x3` of signed bytes, -128 to 127, and those of `x`.
    unsafe fn dot_signed(sum: Self::Int, w: Self::Int, x: *const i8) -> Self::Int;
    unsafe fn floats(a: Self::Int) -> Self::Float;
    /// Sixteen half floats.
    unsafe fn halves(from: *const u8) -> Self::Float;
    /// Sixteen bfloat16.
    unsafe fn bhalves(from: *const u8) -> Self::Float;
    /// Sixteen float32.
    unsafe fn singles(from: *const u8) -> Self::Float;
    unsafe fn splat_float(x: f32) -> Self::Float;
    unsafe fn mul(a: Self::Float, b: Self::Float) -> Self::Float;
    unsafe fn add(a: Self::Float, b: Self::Float) -> Self::Float;
    unsafe fn sub(a: Self::Float, b: Self::Float) -> Self::Float;
    /// `a * b + c` in one rounding.
    unsafe fn fma(a: Self::Float, b: Self::Float, c: Self::Float) -> Self::Float;
    unsafe fn store(to: *mut f32, x: Self::Float);
}

/// Functions whose callers keep the promise of [`Lanes`].
macro_rules! by_promise {
    ($(fn $name:ident$(<const $N:ident>)?($($x:ident: $t:ty),*) -> $r:ty { $($body:tt)* })*) => {$(
        #[inline(always)]
        #[allow(unused_unsafe)]
        unsafe fn $name$(<const $N: u32>)?($($x: $t),*) -> $r {
            // SAFETY: by the caller's promise.
            unsafe { $($body)* }
        }
    )*};
}

/// What the compiler makes of arrays.
pub(super) struct Plain;

impl Lanes for Plain {
    type Int = [u32; 16];
    type Float = [f32; 16];
    const MANY: usize = 4;
    const OFFSET: bool = false;
    by_promise! {
        fn zero() -> [u32; 16] { [0; 16] }
        fn load(from: *const u8) -> [u32; 16] {
            from.cast::<[u32; 16]>().read_unaligned().map(u32::from_le)
        }
        fn splat(bytes: u32) -> [u32; 16] { [bytes; 16] }
        fn and(a: [u32; 16], b: [u32; 16]) -> [u32; 16] { std::array::from_fn(|i| a[i] & b[i]) }
        fn or(a: [u32; 16], b: [u32; 16]) -> [u32; 16] { std::array::from_fn(|i| a[i] | b[i]) }
        fn right(a: [u32; 16], n: u32) -> [u32; 16] { a.map(|a| a >> n) }
        fn left<const N>(a: [u32; 16]) -> [u32; 16] { a.map(|a| a << N) }
        fn right_signed<const N>(a: [u32; 16]) -> [u32; 16] { a.map(|a| (a as i32 >> N) as u32) }
        fn plus(a: [u32; 16], b: [u32; 16]) -> [u32; 16] {
            std::array::from_fn(|i| a[i].wrapping_add(b[i]))
        }
        fn few(few: [u32; 16], w: [u32; 16], x: *const i8) -> [u32; 16] {
            // Bytes below 128 are themselves as signed ones.
            Self::dot_signed(few, w, x)
        }
        fn whole(few: [u32; 16]) -> [u32; 16] { few }
        fn signed(w: [u32; 16]) -> [u32; 16] { w }
        fn dot_signed(sum: [u32; 16], w: [u32; 16], x: *const i8) -> [u32; 16] {
            let x = x.cast::<[i8; 4]>().read_unaligned().map(i32::from);
            std::array::from_fn(|i| {
                let byte = |n: u32| (w[i] << (24 - 8 * n)) as i32 >> 24;
                let sum = sum[i] as i32 + byte(0) * x[0] + byte(1) * x[1];
                (sum + byte(2) * x[2] + byte(3) * x[3]) as u32
            })
        }
        fn floats(a: [u32; 16]) -> [f32; 16] { a.map(|a| a as i32 as f32) }
        fn halves(from: *const u8) -> [f32; 16] {
            let bits = from.cast::<[u16; 16]>().read_unaligned();
            bits.map(|bits| super::super::math::widen_f16(u16::from_le(bits)))
        }
        fn bhalves(from: *const u8) -> [f32; 16] {
            let bits = from.cast::<[u16; 16]>().read_unaligned();
            bits.map(|bits| super::super::math::widen_bf16(u16::from_le(bits)))
        }
        fn singles(from: *const u8) -> [f32; 16] {
            from.cast::<[u32; 16]>().read_unaligned().map(|bits| f32::from_bits(u32::from_le(bits)))
        }
        fn splat_float(x: f32) -> [f32; 16] { [x; 16] }
        fn mul(a: [f32; 16], b: [f32; 16]) -> [f32; 16] { std::array::from_fn(|i| a[i] * b[i]) }
        fn add(a: [f32; 16], b: [f32; 16]) -> [f32; 16] { std::array::from_fn(|i| a[i] + b[i]) }
        fn sub(a: [f32; 16], b: [f32; 16]) -> [f32; 16] { std::array::from_fn(|i| a[i] - b[i]) }
        fn fma(a: [f32; 16], b: [f32; 16], c: [f32; 16]) -> [f32; 16] {
            std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
        }
        fn store(to: *mut f32, x: [f32; 16]) -> () { to.cast::<[f32; 16]>().write_unaligned(x) }
    }
}

/// A pair of AVX2's registers.
#[cfg(target_arch = "x86_64")]
pub(super) struct Avx2;

#[cfg(target_arch = "x86_64")]
macro_rules! both {
    // No closure: it would be compiled for no instructions in particular.
    (|$($x:ident),*| $e:expr) => {
        [{ $(let $x = $x[0];)* $e }, { $(let $x = $x[1];)* $e }]
    };
}

#[cfg(target_arch = "x86_64")]
impl Lanes for Avx2 {
    type Int = [__m256i; 2];
    type Float = [__m256; 2];
    const MANY: usize = 4;
    const OFFSET: bool = false;
    by_promise! {
        fn zero() -> Self::Int { [_mm256_setzero_si256(); 2] }
        fn load(from: *const u8) -> Self::Int {
            [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(32).cast())]
        }
        fn splat(bytes: u32) -> Self::Int { [_mm256_set1_epi32(bytes as i32); 2] }
        fn and(a: Self::Int, b: Self::Int) -> Self::Int { both!(|a, b| _mm256_and_si256(a, b)) }
        fn or(a: Self::Int, b: Self::Int) -> Self::Int { both!(|a, b| _mm256_or_si256(a, b)) }
        fn left<const N>(a: Self::Int) -> Self::Int {
            both!(|a| _mm256_sll_epi32(a, _mm_cvtsi32_si128(N as i32)))
        }
        fn right_signed<const N>(a: Self::Int) -> Self::Int {
            both!(|a| _mm256_sra_epi32(a, _mm_cvtsi32_si128(N as i32)))
        }
        fn right(a: Self::Int, n: u32) -> Self::Int {
            both!(|a| _mm256_srl_epi32(a, _mm_cvtsi32_si128(n as i32)))
        }
        fn plus(a: Self::Int, b: Self::Int) -> Self::Int { both!(|a, b| _mm256_add_epi32(a, b)) }
        fn few(few: Self::Int, w: Self::Int, x: *const i8) -> Self::Int {
            let x = _mm256_set1_epi32(x.cast::<i32>().read_unaligned());
            both!(|few, w| _mm256_add_epi16(few, _mm256_maddubs_epi16(w, x)))
        }
        fn whole(few: Self::Int) -> Self::Int {
            let ones = _mm256_set1_epi16(1);
            both!(|few| _mm256_madd_epi16(few, ones))
        }
        fn signed(w: Self::Int) -> Self::Int { w }
        fn dot_signed(sum: Self::Int, w: Self::Int, x: *const i8) -> Self::Int {
            let x = _mm256_set1_epi32(x.cast::<i32>().read_unaligned());
            let ones = _mm256_set1_epi16(1);
            // |w| times x with w's sign: a pair is at most 2 * 128 * 127, which 16 bits hold.
            both!(|sum, w| {
                let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
                _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones))
            })
        }
        fn floats(a: Self::Int) -> Self::Float { both!(|a| _mm256_cvtepi32_ps(a)) }
        fn halves(from: *const u8) -> Self::Float {
            [
                _mm256_cvtph_ps(_mm_loadu_si128(from.cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(from.add(16).cast())),
            ]
        }
        fn bhalves(from: *const u8) -> Self::Float {
            let wide = [_mm_loadu_si128(from.cast()), _mm_loadu_si128(from.add(16).cast())];
            both!(|wide| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(wide))))
        }
        fn singles(from: *const u8) -> Self::Float {
            [_mm256_loadu_ps(from.cast()), _mm256_loadu_ps(from.add(32).cast())]
        }
        fn splat_float(x: f32) -> Self::Float { [_mm256_set1_ps(x); 2] }
        fn mul(a: Self::Float, b: Self::Float) -> Self::Float { both!(|a, b| _mm256_mul_ps(a, b)) }
        fn add(a: Self::Float, b: Self::Float) -> Self::Float { both!(|a, b| _mm256_add_ps(a, b)) }
        fn sub(a: Self::Float, b: Self::Float) -> Self::Float { both!(|a, b| _mm256_sub_ps(a, b)) }
        fn fma(a: Self::Float, b: Self::Float, c: Self::Float) -> Self::Float {
            both!(|a, b, c| _mm256_fmadd_ps(a, b, c))
        }
        fn store(to: *mut f32, x: Self::Float) -> () {
            _mm256_storeu_ps(to, x[0]);
            _mm256_storeu_ps(to.add(8), x[1]);
        }
    }
}

/// A register of AVX-512, with VNNI's products of bytes.
#[cfg(target_arch = "x86_64")]
pub(super) struct Vnni;

#[cfg(target_arch = "x86_64")]
impl Lanes for Vnni {
    type Int = __m512i;
    type Float = __m512;
    const MANY: usize = 8;
    const OFFSET: bool = true;
    by_promise! {
        fn zero() -> __m512i { _mm512_setzero_si512() }
        fn load(from: *const u8) -> __m512i { _mm512_loadu_si512(from.cast()) }
        fn splat(bytes: u32) -> __m512i { _mm512_set1_epi32(bytes as i32) }
        fn and(a: __m512i, b: __m512i) -> __m512i { _mm512_and_si512(a, b) }
        fn or(a: __m512i, b: __m512i) -> __m512i { _mm512_or_si512(a, b) }
        fn left<const N>(a: __m512i) -> __m512i { _mm512_slli_epi32::<N>(a) }
        fn right_signed<const N>(a: __m512i) -> __m512i { _mm512_srai_epi32::<N>(a) }
        fn right(a: __m512i, n: u32) -> __m512i {
            _mm512_srl_epi32(a, _mm_cvtsi32_si128(n as i32))
        }
        fn plus(a: __m512i, b: __m512i) -> __m512i { _mm512_add_epi32(a, b) }
        fn few(few: __m512i, w: __m512i, x: *const i8) -> __m512i {
            _mm512_dpbusd_epi32(few, w, _mm512_set1_epi32(x.cast::<i32>().read_unaligned()))
        }
        fn whole(few: __m512i) -> __m512i { few }
        fn signed(w: __m512i) -> __m512i { _mm512_xor_si512(w, _mm512_set1_epi8(-128)) }
        fn dot_signed(sum: __m512i, w: __m512i, x: *const i8) -> __m512i { Self::few(sum, w, x) }
        fn floats(a: __m512i) -> __m512 { _mm512_cvtepi32_ps(a) }
        fn halves(from: *const u8) -> __m512 { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
        fn bhalves(from: *const u8) -> __m512 {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
        fn singles(from: *const u8) -> __m512 { _mm512_loadu_ps(from.cast()) }
        fn splat_float(x: f32) -> __m512 { _mm512_set1_ps(x) }
        fn mul(a: __m512, b: __m512) -> __m512 { _mm512_mul_ps(a, b) }
        fn add(a: __m512, b: __m512) -> __m512 { _mm512_add_ps(a, b) }
        fn sub(a: __m512, b: __m512) -> __m512 { _mm512_sub_ps(a, b) }
        fn fma(a: __m512, b: __m512, c: __m512) -> __m512 { _mm512_fmadd_ps(a, b, c) }
        fn store(to: *mut f32, x: __m512) -> () { _mm512_storeu_ps(to, x) }
    }
}
