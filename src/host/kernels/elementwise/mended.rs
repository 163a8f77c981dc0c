//! Loops of functions that are fast for all but rare elements: sine, cosine and tangent of large
//! angles, the gamma function's relatives of what is not positive, remainders of large quotients.
//!
//! A vectorised pass over a block in the first cache, and one that mends what is rare in it; where
//! all elements can be vectorised, but the usual ones with fewer instructions, one pass of either
//! kind. See `loops.rs` for the promises about pointers.

#![allow(unsafe_code)]

use super::forms::{AHEAD, FIRST, Instances, LANES, NONE, SECOND};
use crate::host::kernels::load::Load;
use crate::host::kernels::math::{self, Lane, Real};
use crate::host::kernels::simd::{Body, Simd, instances};
use crate::host::kernels::stream::{copy_line, prefetch_second};
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// A function of f32 that is free of branches, but for rare elements.
pub(super) trait Rare1 {
    fn fast<S: Simd>(x: f32) -> f32;
    fn is_rare(x: f32) -> bool;
    fn rare(x: f32) -> f32;
}

/// Sine, cosine or tangent.
pub(super) struct Trig<const WHICH: u8>;

impl<const WHICH: u8> Rare1 for Trig<WHICH> {
    #[inline(always)]
    fn fast<S: Simd>(x: f32) -> f32 {
        match WHICH {
            0 => math::sin_fast::<S>(x),
            1 => math::cos_fast::<S>(x),
            _ => math::tan_fast::<S>(x),
        }
    }
    #[inline(always)]
    fn is_rare(x: f32) -> bool {
        math::is_rare(x)
    }
    #[inline(always)]
    fn rare(x: f32) -> f32 {
        match WHICH {
            0 => math::sin_rare(x),
            1 => math::cos_rare(x),
            _ => math::tan_rare(x),
        }
    }
}

/// `lgamma` or `digamma`.
pub(super) struct Gamma<const WHICH: u8>;

impl<const WHICH: u8> Rare1 for Gamma<WHICH> {
    #[inline(always)]
    fn fast<S: Simd>(x: f32) -> f32 {
        match WHICH {
            0 => math::lgamma_fast::<S>(x),
            _ => math::digamma_fast::<S>(x),
        }
    }
    #[inline(always)]
    fn is_rare(x: f32) -> bool {
        match WHICH {
            0 => math::is_rare_lgamma(x),
            _ => math::is_rare_digamma(x),
        }
    }
    #[inline(always)]
    fn rare(x: f32) -> f32 {
        match WHICH {
            0 => math::lgamma_rare(x),
            _ => math::digamma_rare(x),
        }
    }
}

/// What is computed before the first of it is written, so that what is rare can be mended, also
/// where the destination is an operand.
const BLOCK: usize = 4 * LANES;

/// `dst[i] = F(a[i])`: a vectorised pass over a block, and one that mends what is rare in it.
pub(super) struct Mended<F, E, const STREAM: bool>(PhantomData<(F, E)>);

impl<F: Rare1, E: Load<f32>, const STREAM: bool> Mended<F, E, STREAM> {
    /// # Safety
    /// There are `n` elements, at most a block.
    #[inline(always)]
    unsafe fn block<S: Simd>(dst: *mut E, a: *const E, n: usize) {
        let (mut block, mut rare) = ([const { MaybeUninit::<E>::uninit() }; BLOCK], false);
        // SAFETY: the caller's promise; where the loop streams, `dst` is aligned to lines and has
        // whole ones.
        unsafe {
            for (i, y) in block[..n].iter_mut().enumerate() {
                let x = (*a.add(i)).load();
                y.write(E::store(F::fast::<S>(x)));
                rare |= F::is_rare(x);
            }
            if rare {
                for (i, y) in block[..n].iter_mut().enumerate() {
                    let x = (*a.add(i)).load();
                    if F::is_rare(x) {
                        y.write(E::store(F::rare(x)));
                    }
                }
            }
            if STREAM {
                for line in (0..n).step_by(LANES) {
                    prefetch_second(a.add(line).cast::<u8>().wrapping_add(AHEAD));
                    copy_line::<S>(block.as_ptr().add(line).cast(), dst.add(line).cast());
                }
            } else {
                std::ptr::copy_nonoverlapping(block.as_ptr().cast(), dst, n);
            }
        }
    }
}

impl<F: Rare1, E: Load<f32>, const STREAM: bool> Body for Mended<F, E, STREAM> {
    #[inline(always)]
    unsafe fn run<S: Simd>(dst: *mut u8, a: *const u8, _: *const u8, _: *const u8, n: usize) {
        let (dst, a) = (dst.cast::<E>(), a.cast::<E>());
        let whole = n - n % BLOCK;
        // SAFETY: the planner passes places of n elements.
        unsafe {
            for at in (0..whole).step_by(BLOCK) {
                Self::block::<S>(dst.add(at), a.add(at), BLOCK);
            }
            Self::block::<S>(dst.add(whole), a.add(whole), n - whole);
        }
    }
}

/// A function of f32 that takes fewer instructions for usual elements, with the same bits.
pub(super) trait Usual1 {
    fn is_usual(x: f32) -> bool;
    fn usual<S: Simd>(x: f32) -> f32;
    fn any<S: Simd>(x: f32) -> f32;
}

macro_rules! usual {
    ($($(#[$doc:meta])* $Name:ident: $is:path, $usual:path, $any:ident;)*) => {$(
        $(#[$doc])*
        pub(super) struct $Name;
        impl Usual1 for $Name {
            #[inline(always)]
            fn is_usual(x: f32) -> bool {
                $is(x)
            }
            #[inline(always)]
            fn usual<S: Simd>(x: f32) -> f32 {
                $usual(x)
            }
            #[inline(always)]
            fn any<S: Simd>(x: f32) -> f32 {
                Lane::<S, f32>::new(x).$any().0
            }
        }
    )*};
}
usual! {
    /// Results that one multiplication scales are usual.
    Exp: math::has_usual_exp, math::usual_exp::<S>, exp;
    /// The same.
    Exp2: math::has_usual_exp2, math::usual_exp2::<S>, exp2;
    /// Positive, normal numbers are usual.
    Log: math::is_normal, math::log_of_normal::<S>, log;
    /// The same.
    Log2: math::is_normal, math::log2_of_normal::<S>, log2;
    /// The same.
    Log10: math::is_normal, math::log10_of_normal::<S>, log10;
}

/// `dst[i] = F(a[i])`, block by block in one of the two ways.
pub(super) struct Chosen<F, const STREAM: bool>(PhantomData<F>);

impl<F: Usual1, const STREAM: bool> Chosen<F, STREAM> {
    /// # Safety
    /// There are `N` elements.
    #[inline(always)]
    unsafe fn block<S: Simd, const N: usize>(dst: *mut f32, a: *const f32) {
        // SAFETY: the caller's promise; where the loop streams, `dst` is aligned to lines and has
        // whole ones.
        unsafe {
            let x = a.cast::<[f32; N]>().read_unaligned();
            let (mut y, mut rare) = ([0f32; N], false);
            for x in x {
                rare |= !F::is_usual(x);
            }
            if rare {
                for i in 0..N {
                    y[i] = F::any::<S>(x[i]);
                }
            } else {
                for i in 0..N {
                    y[i] = F::usual::<S>(x[i]);
                }
            }
            if STREAM {
                for line in (0..N).step_by(LANES) {
                    prefetch_second(a.add(line).cast::<u8>().wrapping_add(AHEAD));
                    copy_line::<S>(y.as_ptr().add(line).cast(), dst.add(line).cast());
                }
            } else {
                dst.cast::<[f32; N]>().write_unaligned(y);
            }
        }
    }
}

impl<F: Usual1, const STREAM: bool> Body for Chosen<F, STREAM> {
    #[inline(always)]
    unsafe fn run<S: Simd>(dst: *mut u8, a: *const u8, _: *const u8, _: *const u8, n: usize) {
        let (dst, a) = (dst.cast::<f32>(), a.cast::<f32>());
        let (blocks, lines) = (n - n % BLOCK, n - n % LANES);
        // SAFETY: the planner passes places of n elements.
        unsafe {
            for at in (0..blocks).step_by(BLOCK) {
                Self::block::<S, BLOCK>(dst.add(at), a.add(at));
            }
            for at in (blocks..lines).step_by(LANES) {
                Self::block::<S, LANES>(dst.add(at), a.add(at));
            }
            for at in lines..n {
                dst.add(at).write(F::any::<S>(*a.add(at)));
            }
        }
    }
}

/// `fmod`, `remainder` or `floor_divide` of f32: as [`Mended`].
struct Rest<const WHICH: u8, const SPLAT: u8>;

impl<const WHICH: u8, const SPLAT: u8> Rest<WHICH, SPLAT> {
    #[inline(always)]
    fn of<S: Simd>(a: f32, b: f32, rest: f32) -> f32 {
        let (a, b, rest) = (Lane::<S, f32>::new(a), Lane::new(b), Lane::new(rest));
        match WHICH {
            0 => rest,
            1 => rest.towards(b),
            _ => a.whole(rest, b),
        }
        .0
    }

    /// # Safety
    /// There are `n` elements, at most a block.
    #[inline(always)]
    unsafe fn block<S: Simd>(dst: *mut f32, a: *const f32, b: *const f32, n: usize) {
        let (mut block, mut far) = ([0f32; BLOCK], false);
        // SAFETY: the caller's promise, and a splat is one element.
        let at = |i: usize| unsafe {
            (
                *a.add(if SPLAT == FIRST { 0 } else { i }),
                *b.add(if SPLAT == SECOND { 0 } else { i }),
            )
        };
        for (i, y) in block[..n].iter_mut().enumerate() {
            let (a, b) = at(i);
            *y = Self::of::<S>(a, b, math::fmod_fast(a, b));
            far |= math::is_far(a, b);
        }
        if far {
            for (i, y) in block[..n].iter_mut().enumerate() {
                let (a, b) = at(i);
                if math::is_far(a, b) {
                    *y = Self::of::<S>(a, b, a % b);
                }
            }
        }
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(block.as_ptr(), dst, n) }
    }
}

impl<const WHICH: u8, const SPLAT: u8> Body for Rest<WHICH, SPLAT> {
    #[inline(always)]
    unsafe fn run<S: Simd>(dst: *mut u8, a: *const u8, b: *const u8, _: *const u8, n: usize) {
        let (dst, a, b) = (dst.cast::<f32>(), a.cast::<f32>(), b.cast::<f32>());
        let next =
            |at: usize| (if SPLAT == FIRST { 0 } else { at }, if SPLAT == SECOND { 0 } else { at });
        let whole = n - n % BLOCK;
        // SAFETY: the planner passes places of n floats, of one where it is a splat.
        unsafe {
            for at in (0..whole).step_by(BLOCK) {
                let (i, j) = next(at);
                Self::block::<S>(dst.add(at), a.add(i), b.add(j), BLOCK);
            }
            let (i, j) = next(whole);
            Self::block::<S>(dst.add(whole), a.add(i), b.add(j), n - whole);
        }
    }
}

pub(super) const fn rest<const WHICH: u8>() -> Option<[Instances; 3]> {
    Some([
        instances::<Rest<WHICH, NONE>>(),
        instances::<Rest<WHICH, SECOND>>(),
        instances::<Rest<WHICH, FIRST>>(),
    ])
}
