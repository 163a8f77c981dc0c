//! Fourier transforms: [`fft`](TensorFuture::fft), [`ifft`](TensorFuture::ifft),
//! [`rfft`](TensorFuture::rfft), [`irfft`](TensorFuture::irfft), and each along two dimensions
//! ([`fft2`](TensorFuture::fft2)) or several ([`fftn`](TensorFuture::fftn)).
//!
//! A complex value is a real one with a last dimension of 2, the real and the imaginary part, as
//! PyTorch's `view_as_real` has it. Dimensions are counted without it: of a value `[8, 5, 2]` the
//! dimension -1 is that of 5.
//!
//! The types are float32 and float64. Transforms have gradients of any order. The crates `rustfft`
//! and `realfft` compute them on the threads of the CPU device; the values of a GPU are copied
//! there and back without a wait.
//!
//! ```
//! # tokio_test::block_on(async {
//! use futensor::{Device, fft::Norm};
//! let device = Device::cpu();
//! let turns = device.arange(0., 8., 1.) * (std::f64::consts::TAU * 2. / 8.);
//! let wave = turns.cos();                                    // two periods in eight samples
//! let bins = wave.rfft(None, -1, Norm::Backward);            // bins 0 to 4, [5, 2]
//! let sizes = bins.norm(2., -1).round().to_vec::<f32>().await?;
//! assert_eq!(sizes, [0., 0., 4., 0., 0.]);
//! let again = bins.irfft(8, -1, Norm::Backward);
//! assert!((again - wave).abs().max_all().item::<f32>().await? < 1e-6);
//! # Ok::<(), futensor::Error>(()) }).unwrap();
//! ```

mod kernel;
mod several;
mod transform;

use crate::dtype::DType;
use crate::graph::operation::Refusal;
use crate::hosted::hosted;
use crate::shape::Shape;
use crate::tensor::build::{self, At};
use crate::tensor::custom::custom;
use crate::tensor::future::TensorFuture;
use kernel::{Kind, Transform};
use std::cmp::Ordering;
use std::panic::Location;

/// By what a transform of `n` elements is multiplied.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Norm {
    /// The inverse transform by `1 / n`; PyTorch's default.
    #[default]
    Backward,
    /// Both by `1 / sqrt(n)`.
    Ortho,
    /// The forward transform by `1 / n`.
    Forward,
}

/// # Fourier transforms
///
/// With the feature `fft`. [`fft`](crate::fft) says how complex values lie. `n` is the number of
/// elements that is transformed: by default those that are there. Others are cut off at the end, or
/// zeros are added.
///
/// Each is a type error for other types than float32 and float64, a shape error for a complex value
/// without a last dimension of 2, an index error for a dimension that is not there, and an argument
/// error for a transform of no elements.
impl TensorFuture {
    /// The transform of complex values along `dim`.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, fft::Norm};
    /// let x = Device::cpu().from_vec(vec![1.0f32, 0.0, 0.0, 1.0], [2, 2]); // 1, i
    /// let y = x.fft(None, -1, Norm::Backward);
    /// assert_eq!(y.to_vec::<f32>().await?, [1.0, 1.0, 1.0, -1.0]);         // 1 + i, 1 - i
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn fft(&self, n: impl Into<Option<usize>>, dim: isize, norm: Norm) -> TensorFuture {
        transformed("fft", Kind::Forward, self, n.into(), dim, norm, Location::caller())
    }

    /// The inverse of [`fft`](Self::fft).
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, fft::Norm};
    /// let x = Device::cpu().from_vec(vec![1.0f32, 1.0, 1.0, -1.0], [2, 2]);
    /// let y = x.ifft(None, -1, Norm::Backward);
    /// assert_eq!(y.to_vec::<f32>().await?, [1.0, 0.0, 0.0, 1.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn ifft(&self, n: impl Into<Option<usize>>, dim: isize, norm: Norm) -> TensorFuture {
        transformed("ifft", Kind::Inverse, self, n.into(), dim, norm, Location::caller())
    }

    /// The transform of real values along `dim`: `n / 2 + 1` complex values, since the others
    /// mirror them.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, fft::Norm};
    /// let x = Device::cpu().from_vec(vec![1.0f32, 2.0, 3.0, 2.0], [4]);
    /// let y = x.rfft(None, -1, Norm::Backward);
    /// assert_eq!(y.dims(), [3, 2]);
    /// assert_eq!(y.to_vec::<f32>().await?, [8.0, 0.0, -2.0, 0.0, 0.0, 0.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn rfft(&self, n: impl Into<Option<usize>>, dim: isize, norm: Norm) -> TensorFuture {
        transformed("rfft", Kind::ToBins, self, n.into(), dim, norm, Location::caller())
    }

    /// The inverse of [`rfft`](Self::rfft): `n` real values of `n / 2 + 1` complex ones. By default
    /// `n` is even: `2 * (bins - 1)`. The imaginary parts of the first bin, and of the last where
    /// `n` is even, do not count.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, fft::Norm};
    /// let x = Device::cpu().from_vec(vec![8.0f32, 0.0, -2.0, 0.0, 0.0, 0.0], [3, 2]);
    /// let y = x.irfft(4, -1, Norm::Backward);
    /// assert_eq!(y.to_vec::<f32>().await?, [1.0, 2.0, 3.0, 2.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn irfft(&self, n: impl Into<Option<usize>>, dim: isize, norm: Norm) -> TensorFuture {
        transformed("irfft", Kind::FromBins, self, n.into(), dim, norm, Location::caller())
    }
}

fn transformed(
    name: &'static str,
    kind: Kind,
    x: &TensorFuture,
    n: Option<usize>,
    dim: isize,
    norm: Norm,
    at: At,
) -> TensorFuture {
    let _within = build::within(name, at);
    let (dim, n) = match sizes(kind, x, n, dim) {
        Ok(sizes) => sizes,
        Err(refusal) => return build::refused(name, x, refusal, at),
    };
    let scale = match norm {
        Norm::Ortho => (n as f64).sqrt().recip(),
        Norm::Forward if !kind.is_inverse() => (n as f64).recip(),
        Norm::Backward if kind.is_inverse() => (n as f64).recip(),
        Norm::Forward | Norm::Backward => 1.0,
    };
    let (is, needed) = (x.dims()[dim as usize], kind.elements(n));
    let x = match is.cmp(&needed) {
        Ordering::Less => {
            let mut missing = x.shape().clone();
            missing.dims_mut()[dim as usize] = needed - is;
            x.followed_by(&x.device().zeros_dtype(missing, x.dtype()), dim)
        }
        Ordering::Equal => x.clone(),
        Ordering::Greater => x.narrow(dim, 0, needed),
    };
    // The dimension is the last but for the parts of complex values.
    let last = |is_complex: bool| if is_complex { -2 } else { -1 };
    let op = Transform { name, kind, n, ends: scale, inner: scale };
    let x = x.transpose(dim, last(kind.takes_complex()));
    let [y] = hosted(&op, &[&x], |x| [custom(op, x)]);
    let last = last(kind.makes_complex());
    y.transpose(dim, last)
}

/// The dimension that is transformed, and how many elements there are to a transform.
fn sizes(
    kind: Kind,
    x: &TensorFuture,
    n: Option<usize>,
    dim: isize,
) -> Result<(isize, usize), Refusal> {
    let shape = of_values(kind, x)?;
    let d = shape.dim(dim).ok_or_else(|| build::dim_refusal(dim, &shape))?;
    let n = n.unwrap_or(match kind {
        Kind::FromBins => 2 * shape[d].saturating_sub(1),
        Kind::Forward | Kind::Inverse | Kind::ToBins => shape[d],
    });
    match n {
        0 => Err(Refusal::argument("a transform of no elements")),
        n => Ok((d as isize, n)),
    }
}

/// The shape of real or complex values, if they are such.
fn of_values(kind: Kind, x: &TensorFuture) -> Result<Shape, Refusal> {
    if !matches!(x.dtype(), DType::F32 | DType::F64) {
        return Err(Refusal::dtype(format!("needs float32 or float64, not {}", x.dtype())));
    }
    match (kind.takes_complex(), x.dims()) {
        (false, all) => Ok(Shape::from(all)),
        (true, [of_complex @ .., 2]) => Ok(Shape::from(of_complex)),
        (true, _) => {
            let text = format!("complex values have a last dimension of 2, unlike {}", x.shape());
            Err(Refusal::shape(text))
        }
    }
}
