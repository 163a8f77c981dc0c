//! Uniform and normal numbers as a pure function of (seed, position).
//!
//! A sequence is the words of Philox blocks 0, 1, 2...: word `w` is lane `w % 4` of block `w / 4`.
//! A tensor's numbers begin at word `offset`, a multiple of 4. Called by the elementwise executor
//! for any range of a tensor; any cut gives the same numbers. Every step below is one IEEE
//! operation in the order that is written, where `fma(a, b, c)` is one too, so f32 numbers are
//! bitwise the same at every SIMD level, and on any device that follows the formula. Polynomials
//! are by Horner, each step an fma.
//!
//! **Uniform.** f32 element i is `(w >> 8) * 2^-24` of word `w = offset + i`. f64 element i takes
//! the words `lo = offset + 2i` and `hi = lo + 1`: `((hi << 32 | lo) >> 11) * 2^-53`. 16-bit
//! elements are the f32 number rounded toward zero, so that 1 does not occur.
//!
//! **Normal**, by Box and Muller (1958): of the lanes (0, 1) and (2, 3) of a block, `(a, b)`, come
//! elements `r cos t` and `r sin t` with
//!
//! - `u = f32(a) * 2^-32 + 2^-33` (`f32(a)` rounds to nearest; u is in (0, 1]), `r = sqrt(-2 log
//!   u)`;
//! - `v = b >> 8`, `q = (v + 2^21) >> 22`, `f = f32(v - q 2^22) * 2^-22`: f quarter turns, |f| <=
//!   1/2, after q whole ones; `t = (q + f) pi / 2`, exactly.
//! - `log u`, with `u = 2^k (1 + x)` and `sqrt(1/2) <= 1 + x < sqrt 2`: `p` the polynomial [`LOG`]
//!   by Horner, `fma(k, LN2_HIGH, x + fma(-0.5, x*x, fma(x (x*x), p, k LN2_LOW)))`.
//! - `z = f*f`; `sin = fma(f, S(z), 1.5 f)`, `cos = fma(z, C(z), 1)` with [`SIN`], [`COS`]; then by
//!   q: swap where it is odd, and change signs.
//!
//! Against exact arithmetic a number is off by less than 3 units in the last place. 16-bit elements
//! are the f32 number rounded. f64 elements 2j and 2j + 1 come of block `offset / 4 + j`:
//! `u = (k + 1) 2^-53` and `v` of the 53 upper bits of its lower and upper two words, and the
//! standard library's logarithm, sine and cosine: between platforms they agree within 4 units in
//! the last place.
//!
//! The CUDA source says the same formulas and is compiled with `--fmad=false`. `tests/nvrtc`
//! compares it bit by bit as host code; on the simulated GPU a test allows 2 units in the last
//! place; no real GPU has been asked yet.

#![allow(unsafe_code)]

use crate::dtype::DType;
use crate::host::kernels::simd::{Level, Simd, multiversion};
use crate::philox::blocks;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// Blocks a step: enough for long loops, few enough to stay in the first cache.
const STEP: usize = 64;
/// Words a step.
const WORDS: usize = 4 * STEP;

/// 2^-22, 2^-24, 2^-32, 2^-53.
const UNIT22: f32 = 1.0 / 4194304.0;
const UNIT24: f32 = 1.0 / 16777216.0;
const UNIT32: f32 = 1.0 / 4294967296.0;
const UNIT53: f64 = 1.0 / 9007199254740992.0;

/// Coefficients of `(log(1 + x) - x + x^2/2) / x^3`, lowest first.
const LOG: [f32; 9] = [
    0.33333313,
    -0.25000009,
    0.20002134,
    -0.16668007,
    0.14219226,
    -0.12405136,
    0.118903145,
    -0.116796345,
    0.06746585,
];
const LN2_HIGH: f32 = 0.693145751953125;
const LN2_LOW: f32 = 1.428_606_8e-6;
/// Coefficients of `sin(f pi/2) / f - 1.5` in `f^2`: 1.5 f is exact, so the rest may err.
const SIN: [f32; 4] = [0.07079632, -0.64596343, 0.07968003, -0.00460165];
/// Coefficients of `(cos(f pi/2) - 1) / f^2` in `f^2`.
const COS: [f32; 4] = [-1.2337005, 0.25366923, -0.020860288, 0.00090402039];

/// `a * b + c`, rounded once.
#[inline(always)]
fn fma<S: Simd>(a: f32, b: f32, c: f32) -> f32 {
    if S::FMA { a.mul_add(b, c) } else { fused(a, b, c) }
}

/// [`fma`] for a machine that has not got it, on normal numbers. In f64 the product is exact; the
/// sum is rounded to odd, after which rounding it again is as good as rounding once (Boldo and
/// Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to
/// odd", IEEE Transactions on Computers 57, 2008).
#[inline(always)]
fn fused(a: f32, b: f32, c: f32) -> f32 {
    let (product, c) = (a as f64 * b as f64, c as f64);
    let sum = product + c;
    // What the sum lacks: Knuth's TwoSum.
    let of_c = sum - product;
    let rest = (product - (sum - of_c)) + (c - of_c);
    let bits = sum.to_bits();
    let away =
        if (rest > 0.0) == (sum > 0.0) { bits.wrapping_add(1) } else { bits.wrapping_sub(1) };
    let odd = if rest != 0.0 && bits & 1 == 0 { away } else { bits };
    f64::from_bits(odd) as f32
}

#[inline(always)]
fn horner<S: Simd, const N: usize>(x: f32, c: [f32; N]) -> f32 {
    let mut y = c[N - 1];
    for i in (0..N - 1).rev() {
        y = fma::<S>(y, x, c[i]);
    }
    y
}

/// Changes the sign where bit 1 is set.
#[inline(always)]
fn flip(x: f32, quarters: u32) -> f32 {
    f32::from_bits(x.to_bits() ^ ((quarters & 2) << 30))
}

/// Two normal numbers of two words: see the head of the file.
#[inline(always)]
fn box_muller<S: Simd>(a: u32, b: u32) -> (f32, f32) {
    let u = a as f32 * UNIT32 + UNIT32 / 2.0; // The product is exact.
    let k = u.to_bits().wrapping_sub(0x3f35_04f3).cast_signed() >> 23;
    let x = f32::from_bits(u.to_bits().wrapping_sub(k.cast_unsigned() << 23)) - 1.0;
    let k = k as f32;
    let xx = x * x;
    let log = fma::<S>(x * xx, horner::<S, 9>(x, LOG), k * LN2_LOW);
    let log = fma::<S>(k, LN2_HIGH, x + fma::<S>(-0.5, xx, log));
    let r = (-2.0 * log).sqrt();

    let v = b >> 8;
    let q = (v + (1 << 21)) >> 22;
    let f = v.wrapping_sub(q << 22).cast_signed() as f32 * UNIT22;
    let z = f * f;
    let sin = fma::<S>(f, horner::<S, 4>(z, SIN), 1.5 * f);
    let cos = fma::<S>(z, horner::<S, 4>(z, COS), 1.0);
    let odd = q & 1 != 0;
    let (s, c) = if odd { (cos, sin) } else { (sin, cos) };
    (r * flip(c, q + 1), r * flip(s, q))
}

/// Two f64 normal numbers of a block.
fn box_muller_f64(words: [u32; 4]) -> [f64; 2] {
    let bits = |lo: u32, hi: u32| ((hi as u64) << 32 | lo as u64) >> 11;
    let u = (bits(words[0], words[1]) + 1) as f64 * 2f64.powi(-53);
    let r = (-2.0 * u.ln()).sqrt();
    let v = bits(words[2], words[3]);
    let q = (v + (1 << 50)) >> 51;
    let f = v.wrapping_sub(q << 51).cast_signed() as f64 * 2f64.powi(-51);
    let (sin, cos) = (f * std::f64::consts::FRAC_PI_2).sin_cos();
    let (sin, cos) = match q & 3 {
        0 => (sin, cos),
        1 => (cos, -sin),
        2 => (-sin, -cos),
        _ => (-cos, sin),
    };
    [r * cos, r * sin]
}

/// A distribution: how the words of a step become `N` elements. A trait, since a closure would not
/// be compiled for the level of the loop around it.
trait Draw<const N: usize> {
    type Out: Copy + Default;
    fn draw(&self, words: &[[u32; STEP]; 4], out: &mut [MaybeUninit<Self::Out>; N]);
}

/// Uniform f32; bits outside of the mask are cut off.
struct Uniform32 {
    mask: u32,
}

impl Draw<WORDS> for Uniform32 {
    type Out = f32;
    #[inline(always)]
    fn draw(&self, words: &[[u32; STEP]; 4], out: &mut [MaybeUninit<f32>; WORDS]) {
        for j in 0..STEP {
            for lane in 0..4 {
                let x = (words[lane][j] >> 8).cast_signed() as f32 * UNIT24;
                out[4 * j + lane].write(f32::from_bits(x.to_bits() & self.mask));
            }
        }
    }
}

struct Uniform64;

impl Draw<{ WORDS / 2 }> for Uniform64 {
    type Out = f64;
    #[inline(always)]
    fn draw(&self, words: &[[u32; STEP]; 4], out: &mut [MaybeUninit<f64>; WORDS / 2]) {
        for j in 0..STEP {
            for pair in 0..2 {
                let bits = (words[2 * pair + 1][j] as u64) << 32 | words[2 * pair][j] as u64;
                out[2 * j + pair].write((bits >> 11).cast_signed() as f64 * UNIT53);
            }
        }
    }
}

struct Normal32<S>(PhantomData<S>);

impl<S: Simd> Draw<WORDS> for Normal32<S> {
    type Out = f32;
    #[inline(always)]
    fn draw(&self, words: &[[u32; STEP]; 4], out: &mut [MaybeUninit<f32>; WORDS]) {
        let mut z = [[0f32; STEP]; 4];
        for pair in [0, 2] {
            for j in 0..STEP {
                (z[pair][j], z[pair + 1][j]) = box_muller::<S>(words[pair][j], words[pair + 1][j]);
            }
        }
        for j in 0..STEP {
            for lane in 0..4 {
                out[4 * j + lane].write(z[lane][j]);
            }
        }
    }
}

struct Normal64;

impl Draw<{ WORDS / 2 }> for Normal64 {
    type Out = f64;
    #[inline(always)]
    fn draw(&self, words: &[[u32; STEP]; 4], out: &mut [MaybeUninit<f64>; WORDS / 2]) {
        for j in 0..STEP {
            let pair = box_muller_f64([words[0][j], words[1][j], words[2][j], words[3][j]]);
            out[2 * j].write(pair[0]);
            out[2 * j + 1].write(pair[1]);
        }
    }
}

/// Writes elements `start..start + dst.len()` of a sequence. The ends that do not fill a step go
/// through a buffer.
#[inline(always)]
fn steps<D: Draw<N>, const N: usize>(
    draw: D,
    dst: &mut [MaybeUninit<D::Out>],
    seed: u64,
    offset: u64,
    start: u64,
) {
    let per_block = (N / STEP) as u64;
    let mut block = (offset / 4).wrapping_add(start / per_block);
    let mut skip = (start % per_block) as usize;
    let mut rest = dst;
    let mut words = [[0; STEP]; 4];
    while !rest.is_empty() {
        blocks(seed, block, &mut words);
        let taken = match rest.first_chunk_mut::<N>() {
            Some(whole) if skip == 0 => {
                draw.draw(&words, whole);
                N
            }
            _ => {
                let mut buffer = [MaybeUninit::new(D::Out::default()); N];
                draw.draw(&words, &mut buffer);
                let taken = rest.len().min(N - skip);
                rest[..taken].copy_from_slice(&buffer[skip..skip + taken]);
                taken
            }
        };
        // A step that was begun in the middle was used to its end, or nothing is left to do.
        rest = &mut rest[taken..];
        block = block.wrapping_add(STEP as u64);
        skip = 0;
    }
}

type Out32<'a> = &'a mut [MaybeUninit<f32>];
type Out64<'a> = &'a mut [MaybeUninit<f64>];

#[inline(always)]
fn uniform_f32<S: Simd>(dst: Out32<'_>, seed: u64, offset: u64, start: u64, mask: u32) {
    steps(Uniform32 { mask }, dst, seed, offset, start);
}
#[inline(always)]
fn uniform_f64<S: Simd>(dst: Out64<'_>, seed: u64, offset: u64, start: u64) {
    steps(Uniform64, dst, seed, offset, start);
}
#[inline(always)]
fn normal_f32<S: Simd>(dst: Out32<'_>, seed: u64, offset: u64, start: u64) {
    steps(Normal32::<S>(PhantomData), dst, seed, offset, start);
}
#[inline(always)]
fn normal_f64<S: Simd>(dst: Out64<'_>, seed: u64, offset: u64, start: u64) {
    steps(Normal64, dst, seed, offset, start);
}

multiversion! {
    fn uniform_f32_at(dst: Out32<'_>, seed: u64, offset: u64, start: u64, mask: u32) = uniform_f32
}
multiversion! {
    fn uniform_f64_at(dst: Out64<'_>, seed: u64, offset: u64, start: u64) = uniform_f64
}
multiversion! { fn normal_f32_at(dst: Out32<'_>, seed: u64, offset: u64, start: u64) = normal_f32 }
multiversion! { fn normal_f64_at(dst: Out64<'_>, seed: u64, offset: u64, start: u64) = normal_f64 }

/// Writes elements `start..start + n` of a tensor of uniform numbers in [0, 1) whose sequence
/// begins at word `offset`. 16-bit types are written as f32 that they can hold.
///
/// # Safety
/// `dst` is valid for writes of `n` elements: f64 for `DType::F64`, else f32.
pub(crate) unsafe fn uniform(
    level: Level,
    dtype: DType,
    seed: u64,
    offset: u64,
    start: usize,
    dst: *mut u8,
    n: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        if dtype == DType::F64 {
            let dst = std::slice::from_raw_parts_mut(dst.cast(), n);
            return uniform_f64_at(level, dst, seed, offset, start as u64);
        }
        // Multiples of 2^-24 have no bits below those of a 16-bit type but the ones cut off here,
        // also where they are subnormal f16.
        let mask = match dtype {
            DType::F16 => !0x1fff,
            DType::BF16 => !0xffff,
            _ => !0,
        };
        uniform_f32_at(
            level,
            std::slice::from_raw_parts_mut(dst.cast(), n),
            seed,
            offset,
            start as u64,
            mask,
        )
    }
}

/// Writes elements `start..start + n` of a tensor of standard normal numbers whose sequence begins
/// at word `offset`. 16-bit types are written as f32 that are yet to be rounded.
///
/// # Safety
/// `dst` is valid for writes of `n` elements: f64 for `DType::F64`, else f32.
pub(crate) unsafe fn normal(
    level: Level,
    dtype: DType,
    seed: u64,
    offset: u64,
    start: usize,
    dst: *mut u8,
    n: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        if dtype == DType::F64 {
            normal_f64_at(
                level,
                std::slice::from_raw_parts_mut(dst.cast(), n),
                seed,
                offset,
                start as u64,
            )
        } else {
            normal_f32_at(
                level,
                std::slice::from_raw_parts_mut(dst.cast(), n),
                seed,
                offset,
                start as u64,
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::kernels::simd::Baseline;
    use crate::philox::block;

    fn f32s(
        level: Level,
        is_normal: bool,
        dtype: DType,
        seed: u64,
        offset: u64,
        start: usize,
        n: usize,
    ) -> Vec<f32> {
        let mut out = vec![f32::NAN; n];
        let f = if is_normal { normal } else { uniform };
        // SAFETY: n floats.
        unsafe { f(level, dtype, seed, offset, start, out.as_mut_ptr().cast(), n) };
        out
    }
    fn f64s(
        level: Level,
        is_normal: bool,
        seed: u64,
        offset: u64,
        start: usize,
        n: usize,
    ) -> Vec<f64> {
        let mut out = vec![f64::NAN; n];
        let f = if is_normal { normal } else { uniform };
        // SAFETY: n doubles.
        unsafe { f(level, DType::F64, seed, offset, start, out.as_mut_ptr().cast(), n) };
        out
    }

    #[test]
    fn uniform_numbers_are_their_words() {
        let (seed, offset) = (0xfeed_0000_beef, 12);
        let word = |w: u64| block(seed, w / 4)[(w % 4) as usize];
        for level in Level::available() {
            let x = f32s(level, false, DType::F32, seed, offset, 0, 1000);
            let half = f32s(level, false, DType::F16, seed, offset, 0, 1000);
            let brain = f32s(level, false, DType::BF16, seed, offset, 0, 1000);
            let y = f64s(level, false, seed, offset, 0, 1000);
            for i in 0..1000u64 {
                let exact = (word(offset + i) >> 8) as f32 / 16777216.0;
                assert_eq!(x[i as usize], exact);
                // Rounded toward zero: a 16-bit number, not above, and less than one unit away.
                let (h, b) = (half[i as usize], brain[i as usize]);
                assert_eq!(half::f16::from_f32(h).to_f32(), h);
                assert_eq!(half::bf16::from_f32(b).to_f32(), b);
                assert!(h <= exact && exact - h < exact * 2f32.powi(-10) + 1e-9 && h < 1.0);
                assert!(b <= exact && exact - b < exact * 2f32.powi(-7) + 1e-9 && b < 1.0);
                let (lo, hi) = (word(offset + 2 * i), word(offset + 2 * i + 1));
                assert_eq!(
                    y[i as usize],
                    (((hi as u64) << 32 | lo as u64) >> 11) as f64 / 9007199254740992.0
                );
            }
        }
    }

    #[test]
    fn any_cut_gives_the_same_numbers_at_every_level() {
        let (seed, offset, n) = (7, 4 * (u32::MAX as u64 - 20), 777);
        for is_normal in [false, true] {
            let whole = f32s(Level::Baseline, is_normal, DType::F32, seed, offset, 0, n);
            let whole64 = f64s(Level::Baseline, is_normal, seed, offset, 0, n);
            for level in Level::available() {
                for cut in [0, 1, 2, 3, 5, 63, 64, 65, 66, 127, 129, 400, 776] {
                    let bits = |x: Vec<f32>| x.into_iter().map(f32::to_bits).collect::<Vec<_>>();
                    let bits64 = |x: Vec<f64>| x.into_iter().map(f64::to_bits).collect::<Vec<_>>();
                    let part = f32s(level, is_normal, DType::F32, seed, offset, cut, n - cut);
                    assert_eq!(bits(part), bits(whole[cut..].to_vec()), "{level:?} {cut}");
                    let part = f64s(level, is_normal, seed, offset, cut, n - cut);
                    assert_eq!(bits64(part), bits64(whole64[cut..].to_vec()), "{level:?} {cut}");
                }
            }
        }
    }

    #[test]
    fn normal_numbers_are_within_three_ulp_of_exact_arithmetic() {
        let (seed, offset) = (42, 0);
        let mut worst = 0f64;
        let check = |a: u32, b: u32, got: (f32, f32), worst: &mut f64| {
            let u = (a as f32 * 2f32.powi(-32) + 2f32.powi(-33)) as f64;
            let r = (-2.0 * u.ln()).sqrt();
            let t = (b >> 8) as f64 * (std::f64::consts::TAU / 16777216.0);
            for (got, exact) in [(got.0, r * t.cos()), (got.1, r * t.sin())] {
                let ulp = 2f64.powi((exact.abs().max(1e-30).log2().floor() as i32) - 23);
                // The reference itself is off by 1e-15 in the angle.
                let e = ((got as f64 - exact).abs() - 1e-14).max(0.0) / ulp;
                *worst = worst.max(e);
                assert!(e <= 3.0, "{a:#x} {b:#x}: {got:e} is not {exact:e}, off by {e}");
            }
        };
        let x = f32s(Level::Baseline, true, DType::F32, seed, offset, 0, 400_000);
        for i in 0..100_000 {
            let w = block(seed, i as u64);
            check(w[0], w[1], (x[4 * i], x[4 * i + 1]), &mut worst);
            check(w[2], w[3], (x[4 * i + 2], x[4 * i + 3]), &mut worst);
        }
        for a in [0, 1, 2, 1 << 31, u32::MAX, u32::MAX - 127, u32::MAX - 128, u32::MAX - 1000] {
            for b in (0..=32).map(|i| ((i as u64 * (1 << 27)) as u32).wrapping_sub(256)).chain([
                0,
                1 << 29,
                1 << 30,
                1 << 31,
                3 << 30,
                256,
            ]) {
                check(a, b, box_muller::<Baseline>(a, b), &mut worst);
            }
        }
        println!("worst: {worst} ulp");
    }

    /// On a machine with the instruction this compares with it, elsewhere with libm.
    #[test]
    fn the_sum_of_a_product_is_rounded_once_without_the_instruction_too() {
        let seed = 2026;
        println!("seed {seed}");
        let float = |w: u32, spread: u32| {
            f32::from_bits((w & 0x807f_ffff) | (127 - spread / 2 + (w >> 23) % spread) << 23)
        };
        for i in 0..2_000_000u64 {
            let [a, b, c, near] = block(seed, i);
            let (a, b) = (float(a, 8), float(b, 8));
            // Any size, what the product nearly cancels, and what lies halfway between two floats.
            let c = match near % 3 {
                0 => float(c, 80),
                1 => -a * b * (1.0 + ((c % 9) as f32 - 4.0) * f32::EPSILON),
                _ => a * b * 2f32.powi((c % 60) as i32 - 30),
            };
            assert_eq!(fused(a, b, c).to_bits(), a.mul_add(b, c).to_bits(), "{a:e} {b:e} {c:e}");
        }
        // Halfway but for the smallest trace, up and down.
        for tiny in [2f32.powi(-60), -2f32.powi(-60)] {
            let half = 1.0 + f32::EPSILON;
            assert_eq!(fused(half, half, tiny), half.mul_add(half, tiny));
            assert_eq!(
                fused(1.0, f32::EPSILON / 2.0, 1.0 + tiny),
                (1.0f32).mul_add(f32::EPSILON / 2.0, 1.0 + tiny)
            );
            assert_eq!(fused(tiny, 1.0, 1.0 + f32::EPSILON), tiny.mul_add(1.0, 1.0 + f32::EPSILON));
        }
        assert_eq!(fused(3.0, -2.0, 6.0).to_bits(), 0f32.to_bits());
    }

    #[test]
    fn normal_numbers_have_the_moments_of_their_distribution() {
        let n = 1 << 20;
        let x: Vec<f64> = f32s(Level::Baseline, true, DType::F32, 3, 0, 0, n)
            .into_iter()
            .map(f64::from)
            .collect();
        for x in [x, f64s(Level::Baseline, true, 3, 0, 0, n)] {
            let moment = |k: i32| x.iter().map(|x| x.powi(k)).sum::<f64>() / n as f64;
            // Standard errors of the first four moments are 1, 1.4, 3.9 and 9.8 thousandths.
            let moments = [moment(1), moment(2) - 1.0, moment(3), moment(4) - 3.0];
            for (m, sigma) in moments.into_iter().zip([1.0, 1.4, 3.9, 9.8]) {
                assert!(m.abs() < 5e-3 * sigma, "{moments:?}");
            }
            let inside = x.iter().filter(|x| x.abs() < 1.0).count() as f64 / n as f64;
            assert!((inside - 0.682689).abs() < 2.5e-3, "{inside}");
        }
    }
}
