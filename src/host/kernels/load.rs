//! Elements and the types that they are computed in: halves in f32, small integers in wider ones.
//!
//! Called by kernels that accumulate. Conversions are free of branches, so loops over them
//! vectorise; for those of f16 there are instructions, which take several at once.

#![allow(unsafe_code)]

use super::math::{narrow_bf16, narrow_f16, narrow_f16s, widen_bf16, widen_f16, widen_f16s};
use super::simd::Simd;
use half::{bf16, f16};

/// An element that is computed in `W`. `bool` is read as the byte that it is.
pub(super) trait Load<W>: Copy + Send + Sync + 'static {
    /// Whether it is that type itself.
    const IS_WIDE: bool = std::mem::size_of::<Self>() == std::mem::size_of::<W>();
    /// Whether an instruction of F16C converts them: where it is there, several at once are faster
    /// than a loop over elements, which the compiler vectorises. So it pays to convert a row once.
    const IS_F16: bool = false;
    fn load(self) -> W;
    fn store(wide: W) -> Self;
    /// [`load`](Load::load) of elements that lie side by side.
    ///
    /// # Safety
    /// There are `N`, and the machine has what the level says.
    unsafe fn load_some<S: Simd, const N: usize>(from: *const Self) -> [W; N];
    /// [`store`](Load::store) of elements side by side.
    ///
    /// # Safety
    /// There is room for `N`, and the machine has what the level says.
    unsafe fn store_some<S: Simd, const N: usize>(wide: [W; N], to: *mut Self);
}

/// How many elements are loaded and stored at once.
const SEVERAL: usize = 16;

/// What is done with each element of a row.
pub(super) trait Row {
    /// Does it with `N` elements from `i` on. It reads all of them before it writes any: for all
    /// that the compiler knows, they might be the same.
    ///
    /// # Safety
    /// The row has so many, and the machine has what the level says.
    unsafe fn some<S: Simd, const N: usize>(&self, i: usize);
}

/// Goes over a row: by several elements where that is faster for `T`, and by one.
///
/// # Safety
/// It has `n` elements, and the machine has what the level says.
#[inline(always)]
pub(super) unsafe fn over<T: Load<W>, W, S: Simd>(n: usize, row: impl Row) {
    let mut done = 0;
    // SAFETY: by the caller's promise.
    unsafe {
        if T::IS_F16 && S::F16C {
            while done + SEVERAL <= n {
                row.some::<S, SEVERAL>(done);
                done += SEVERAL;
            }
        }
        for i in done..n {
            row.some::<S, 1>(i);
        }
    }
}

/// Goes over columns side by side as [`over`] does, but over a few, as high columns have them, all
/// at once: a loop over so few would end before it comes to its widest vectors.
///
/// # Safety
/// As for [`over`].
#[inline(always)]
pub(super) unsafe fn over_columns<T: Load<W>, W, S: Simd>(n: usize, row: impl Row) {
    // SAFETY: by the caller's promise.
    unsafe {
        match n {
            8 => row.some::<S, 8>(0),
            16 => row.some::<S, 16>(0),
            32 => row.some::<S, 32>(0),
            _ => over::<T, W, S>(n, row),
        }
    }
}

/// [`Load::load`] of elements that lie side by side.
pub(super) struct Widened<T, W> {
    pub from: *const T,
    pub to: *mut W,
}

impl<T: Load<W>, W> Row for Widened<T, W> {
    #[inline(always)]
    unsafe fn some<S: Simd, const N: usize>(&self, i: usize) {
        // SAFETY: by the caller's promise.
        unsafe { self.to.add(i).cast::<[W; N]>().write(T::load_some::<S, N>(self.from.add(i))) }
    }
}

/// [`Load::store`] of elements that lie side by side.
pub(super) struct Narrowed<W, T> {
    pub from: *const W,
    pub to: *mut T,
}

impl<W, T: Load<W>> Row for Narrowed<W, T> {
    #[inline(always)]
    unsafe fn some<S: Simd, const N: usize>(&self, i: usize) {
        // SAFETY: by the caller's promise.
        unsafe {
            let wide = self.from.add(i).cast::<[W; N]>().read();
            T::store_some::<S, N>(wide, self.to.add(i));
        }
    }
}

macro_rules! load {
    ($($t:ident in $w:ident: $load:expr, $store:expr;)*) => {$(
        impl Load<$w> for $t {
            #[inline(always)] fn load(self) -> $w { ($load)(self) }
            #[inline(always)] fn store(wide: $w) -> $t { ($store)(wide) }
            #[inline(always)]
            unsafe fn load_some<S: Simd, const N: usize>(from: *const $t) -> [$w; N] {
                let mut all = [$w::default(); N];
                for i in 0..N {
                    // SAFETY: by the caller's promise.
                    all[i] = unsafe { *from.add(i) }.load();
                }
                all
            }
            #[inline(always)]
            unsafe fn store_some<S: Simd, const N: usize>(wide: [$w; N], to: *mut $t) {
                for i in 0..N {
                    // SAFETY: by the caller's promise.
                    unsafe { to.add(i).write(<$t as Load<$w>>::store(wide[i])) };
                }
            }
        }
    )*};
}
load! {
    f32 in f32: |x| x, |x| x;
    f64 in f64: |x| x, |x| x;
    bf16 in f32: |x: bf16| widen_bf16(x.to_bits()), |x| bf16::from_bits(narrow_bf16(x));
    i64 in i64: |x| x, |x| x;
    i32 in i64: |x| x as i64, |x| x as i32;
    u8 in i64: |x| x as i64, |x| x as u8;
    i32 in i32: |x| x, |x| x;
    u8 in u8: |x| x, |x| x;
}

impl Load<f32> for f16 {
    const IS_F16: bool = true;
    #[inline(always)]
    fn load(self) -> f32 {
        widen_f16(self.to_bits())
    }
    #[inline(always)]
    fn store(wide: f32) -> f16 {
        f16::from_bits(narrow_f16(wide))
    }
    #[inline(always)]
    unsafe fn load_some<S: Simd, const N: usize>(from: *const f16) -> [f32; N] {
        // SAFETY: by the caller's promise.
        unsafe { widen_f16s::<S, N>(from.cast()) }
    }
    #[inline(always)]
    unsafe fn store_some<S: Simd, const N: usize>(wide: [f32; N], to: *mut f16) {
        // SAFETY: by the caller's promise.
        unsafe { narrow_f16s::<S, N>(wide, to.cast()) }
    }
}

/// Calls a kernel that is generic over an element and what it is computed in, for a float type.
macro_rules! by_float {
    ($dtype:expr, $($f:ident)::+($($arg:expr),*)) => {
        match $dtype {
            $crate::dtype::DType::F32 => $($f)::+::<f32, f32>($($arg),*),
            $crate::dtype::DType::F64 => $($f)::+::<f64, f64>($($arg),*),
            $crate::dtype::DType::F16 => $($f)::+::<::half::f16, f32>($($arg),*),
            $crate::dtype::DType::BF16 => $($f)::+::<::half::bf16, f32>($($arg),*),
            other => {
                unreachable!("{} of {other}, which the shape rule refuses", stringify!($($f)::+))
            }
        }
    };
}
pub(super) use by_float;
