//! `interpolate`: a value seen at other places than its elements', one spatial dimension after the
//! other.
//!
//! An axis is some elements picked for each place (one, two or four) and their weighted sum: ops
//! that are there, so that gradients and devices need nothing of their own. Places and weights are
//! made on the device.

use super::conv::{Sizes, each};
use crate::dtype::DType;
use crate::error::number_of;
use crate::graph::operation::Refusal;
use crate::tensor::build;
use crate::tensor::device::Device;
use crate::tensor::dims::Dims;
use crate::tensor::future::TensorFuture;
use smallvec::{SmallVec, smallvec};
use std::panic::Location;

/// What [`interpolate`](TensorFuture::interpolate) makes of the elements around a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum InterpolateMode {
    /// The element at the place, rounded down; PyTorch's default.
    #[default]
    Nearest,
    /// The element whose middle is nearest; PyTorch's `nearest-exact`.
    NearestExact,
    /// A weighted mean of two an axis: PyTorch's `linear`, `bilinear` and `trilinear`, by the
    /// dimensions there are.
    Linear,
    /// Cubic convolution of four an axis: PyTorch's `bicubic`.
    Cubic,
}

/// How large a value becomes, and how.
#[derive(Clone, PartialEq, Debug)]
enum Target {
    Size(Sizes),
    Scale(SmallVec<[f64; 3]>),
}

/// Size and mode of an [`interpolate`](TensorFuture::interpolate).
///
/// ```
/// use futensor::{Device, InterpolateMode, InterpolateOptions};
/// let x = Device::cpu().ones([1, 3, 8, 8]);
/// assert_eq!(x.interpolate([12, 16]).dims(), [1, 3, 12, 16]);
/// let twice = InterpolateOptions::scale(2.0).mode(InterpolateMode::Linear).align_corners(true);
/// assert_eq!(x.interpolate(twice).dims(), [1, 3, 16, 16]);
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct InterpolateOptions {
    target: Target,
    mode: InterpolateMode,
    align_corners: bool,
}

impl InterpolateOptions {
    fn new(target: Target) -> InterpolateOptions {
        InterpolateOptions { target, mode: InterpolateMode::Nearest, align_corners: false }
    }

    /// To this size: one number, or one for each spatial dimension.
    pub fn size(size: impl Dims) -> InterpolateOptions {
        InterpolateOptions::new(Target::Size(size.dims()))
    }

    /// To so many times the size, rounded down. Places are found by this factor, not by the two
    /// sizes' ratio, as PyTorch's `scale_factor` does.
    pub fn scale(factor: f64) -> InterpolateOptions {
        InterpolateOptions::new(Target::Scale(smallvec![factor]))
    }

    /// As [`scale`](Self::scale), with a factor for each spatial dimension.
    pub fn scales(factors: &[f64]) -> InterpolateOptions {
        InterpolateOptions::new(Target::Scale(factors.into()))
    }

    /// What is made of the elements around a place.
    pub fn mode(mut self, mode: InterpolateMode) -> InterpolateOptions {
        self.mode = mode;
        self
    }

    /// Whether the first and the last element keep their places, instead of the outer edges of the
    /// two; for linear and cubic modes.
    pub fn align_corners(mut self, align: bool) -> InterpolateOptions {
        self.align_corners = align;
        self
    }

    /// Each axis of a value that has been checked.
    fn axes(&self, x: &TensorFuture) -> Result<SmallVec<[Axis; 3]>, Refusal> {
        let spatial = x.rank().wrapping_sub(2);
        if !(1..=3).contains(&spatial) {
            let text = format!(
                "one to three dimensions behind batch and channels are needed, not {}",
                x.shape()
            );
            return Err(Refusal::shape(text));
        }
        let smooth = matches!(self.mode, InterpolateMode::Linear | InterpolateMode::Cubic);
        if smooth && !x.dtype().is_float() {
            return Err(Refusal::dtype(format!("needs a floating point type, not {}", x.dtype())));
        }
        if self.align_corners && !smooth {
            return Err(Refusal::argument("the nearest element has no corners to align"));
        }
        let planes = spatial == 2 && self.mode == InterpolateMode::Nearest;
        let mut axes = SmallVec::new();
        for (i, &input) in x.dims()[2..].iter().enumerate() {
            let (output, factor) = match &self.target {
                Target::Size(size) => (each("a size", size, spatial, 1, 1)?[3 - spatial + i], None),
                Target::Scale(factors) => {
                    if factors.len() != 1 && factors.len() != spatial {
                        let text = format!(
                            "factors {factors:?} for {}",
                            number_of(spatial, "dimension", "dimensions")
                        );
                        return Err(Refusal::argument(text));
                    }
                    let factor = factors[if factors.len() == 1 { 0 } else { i }];
                    let output = (input as f64 * factor).floor();
                    if !(1.0..=i32::MAX as f64).contains(&output) {
                        return Err(Refusal::argument(format!(
                            "a size of {input} by a factor of {factor}"
                        )));
                    }
                    (output as usize, Some(factor))
                }
            };
            if input == 0 {
                return Err(Refusal::shape(format!(
                    "{} has no elements to interpolate",
                    x.shape()
                )));
            }
            let scale = match factor {
                _ if self.align_corners => {
                    if output > 1 {
                        (input - 1) as f64 / (output - 1) as f64
                    } else {
                        0.0
                    }
                }
                // PyTorch counts planes by their sizes where one is the other, or twice it.
                Some(_) if planes && (output == input || output == input.saturating_mul(2)) => {
                    input as f64 / output as f64
                }
                Some(factor) => 1.0 / factor,
                None => input as f64 / output as f64,
            };
            axes.push(Axis { dim: 2 + i, input, output, scale, align: self.align_corners });
        }
        Ok(axes)
    }
}

impl From<usize> for InterpolateOptions {
    fn from(size: usize) -> InterpolateOptions {
        InterpolateOptions::size(size)
    }
}

impl<const N: usize> From<[usize; N]> for InterpolateOptions {
    fn from(size: [usize; N]) -> InterpolateOptions {
        InterpolateOptions::size(size)
    }
}

/// One dimension: `scale` is the distance of two places, in elements of the input.
struct Axis {
    dim: usize,
    input: usize,
    output: usize,
    scale: f64,
    align: bool,
}

impl Axis {
    /// Each place times the distance. That is data, as sizes below are: a number would be part of
    /// the kernel, and a GPU would compile one for each.
    #[track_caller]
    fn walked(&self, device: &Device, dtype: DType, first: f64) -> TensorFuture {
        let all = device.arange(0, self.output as i64, 1).to_dtype(dtype);
        let all = if first == 0.0 { all } else { all + first };
        match dtype {
            DType::F64 => all * device.from_vec(vec![self.scale], [1]),
            _ => all * device.from_vec(vec![self.scale as f32], [1]),
        }
    }

    /// Where each place lies, in elements of the input and in this type.
    #[track_caller]
    fn places(&self, device: &Device, dtype: DType) -> TensorFuture {
        if self.align {
            self.walked(device, dtype, 0.0)
        } else {
            self.walked(device, dtype, 0.5) - 0.5
        }
    }

    /// The elements of `x` at these positions along the axis; those beyond its ends are the ones at
    /// them.
    #[track_caller]
    fn pick(&self, x: &TensorFuture, at: &TensorFuture) -> TensorFuture {
        // A failed value may have any size.
        let last = i64::try_from(self.input).unwrap_or(i64::MAX) - 1;
        let last = x.device().from_vec(vec![last], [1]);
        x.index_select(self.dim as isize, at.to_dtype(DType::I64).clamp_min(0).minimum(last))
    }

    /// Weights of the axis, to be multiplied with a value.
    #[track_caller]
    fn along(&self, weights: TensorFuture, x: &TensorFuture) -> TensorFuture {
        let mut shape: SmallVec<[usize; 3]> = smallvec![1; x.rank() - self.dim];
        shape[0] = self.output;
        weights.reshape(&shape[..])
    }

    #[track_caller]
    fn apply(&self, x: &TensorFuture, mode: InterpolateMode) -> TensorFuture {
        // Places are counted as PyTorch counts them: in float32, but for float64.
        let dtype = if x.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        let device = x.device();
        match mode {
            InterpolateMode::Nearest | InterpolateMode::NearestExact => {
                let first = if mode == InterpolateMode::Nearest { 0.0 } else { 0.5 };
                self.pick(x, &self.walked(&device, dtype, first))
            }
            InterpolateMode::Linear => {
                let place = self.places(&device, dtype).clamp_min(0);
                let first = place.floor();
                let second = self.along((&place - &first).clamp(0, 1), x);
                self.pick(x, &first) * (1 - &second) + self.pick(x, &(&first + 1)) * &second
            }
            InterpolateMode::Cubic => {
                let place = self.places(&device, dtype);
                let first = place.floor();
                let t = self.along((&place - &first).clamp(0, 1), x);
                let before = self.pick(x, &(&first - 1.0)) * far(&t + 1.0);
                let here = self.pick(x, &first) * near(t.clone());
                let next = self.pick(x, &(&first + 1.0)) * near(1.0 - &t);
                let behind = self.pick(x, &(&first + 2.0)) * far(2.0 - &t);
                before + here + next + behind
            }
        }
    }
}

/// Cubic convolution's parameter, PyTorch's choice.
const A: f64 = -0.75;

/// Weights of elements at distances below 1.
#[track_caller]
fn near(d: TensorFuture) -> TensorFuture {
    ((&d * (A + 2.0) - (A + 3.0)) * &d) * &d + 1.0
}

/// And at those below 2.
#[track_caller]
fn far(d: TensorFuture) -> TensorFuture {
    ((&d * A - 5.0 * A) * &d + 8.0 * A) * &d - 4.0 * A
}

/// Sizes of images, and their like. Nothing waits.
impl TensorFuture {
    /// This `[batch, channels, ..]`, over the one, two or three dimensions that follow, at another
    /// size: PyTorch's `interpolate`. The nearest element of any type; linear and cubic modes of
    /// floats, halves in float32 and rounded once.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, InterpolateMode, InterpolateOptions};
    /// let x = Device::cpu().from_vec(vec![0.0f32, 4.0], [1, 1, 2]);
    /// assert_eq!(x.interpolate(4).to_vec::<f32>().await?, [0.0, 0.0, 4.0, 4.0]);
    /// let linear = InterpolateOptions::size(4).mode(InterpolateMode::Linear);
    /// assert_eq!(x.interpolate(linear.clone()).to_vec::<f32>().await?, [0.0, 1.0, 3.0, 4.0]);
    /// let corners = InterpolateOptions::size(5).mode(InterpolateMode::Linear).align_corners(true);
    /// assert_eq!(x.interpolate(corners).to_vec::<f32>().await?, [0.0, 1.0, 2.0, 3.0, 4.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// A shape error where there are no dimensions behind batch and channels, or more than three,
    /// or nothing in them; an argument error for sizes below 1, and for corners of the nearest; a
    /// type error for means of integers.
    #[track_caller]
    pub fn interpolate(&self, options: impl Into<InterpolateOptions>) -> TensorFuture {
        let options = options.into();
        let mut axes = match options.axes(self) {
            Ok(axes) => axes,
            Err(refusal) => {
                return build::refused("interpolate", self, refusal, Location::caller());
            }
        };
        let smooth = matches!(options.mode, InterpolateMode::Linear | InterpolateMode::Cubic);
        let mut x = if smooth { self.wide() } else { self.clone() };
        // What shrinks comes first and what grows last, so that there is little between.
        let growth = |a: &Axis| a.output as f64 / a.input as f64;
        axes.sort_by(|a, b| growth(a).total_cmp(&growth(b)));
        for axis in axes {
            // Of the same size each element is at its own place; by a factor a little off 1 all
            // modes but the linear one move it.
            if axis.input != axis.output
                || options.mode != InterpolateMode::Linear && axis.scale != 1.0
            {
                x = axis.apply(&x, options.mode);
            }
        }
        x.to_dtype(self.dtype())
    }
}
