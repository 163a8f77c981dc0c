//! `interpolate`: resamples a value, one spatial dimension after the other.
//!
//! An axis is some elements picked for each place (one, two or four) and their weighted sum: one op
//! on a host, and elsewhere ops that are there. Places and weights are made on the device.

use super::adaptive::areas;
use super::conv::{Sizes, each};
use crate::dtype::DType;
use crate::error::number_of;
use crate::graph::operation::Refusal;
use crate::ops::index::along::Along;
use crate::ops::index::places::{self, Rule};
use crate::ops::windows::resample::{A, By, Intervals, Resample};
use crate::tensor::build;
use crate::tensor::device::Device;
use crate::tensor::dims::Dims;
use crate::tensor::future::TensorFuture;
use smallvec::{SmallVec, smallvec};
use std::panic::Location;
use std::sync::Arc;

/// How [`interpolate`](TensorFuture::interpolate) combines the elements around a position.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum InterpolateMode {
    /// The element at the position, rounded down; PyTorch's default.
    #[default]
    Nearest,
    /// The element whose centre is nearest; PyTorch's `nearest-exact`.
    NearestExact,
    /// A weighted mean of two elements per axis: PyTorch's `linear`, `bilinear` or `trilinear`, by
    /// the number of spatial dimensions.
    Linear,
    /// Cubic convolution of four elements per axis: PyTorch's `bicubic`.
    Cubic,
    /// The mean of the elements that an output position covers: PyTorch's `area`.
    Area,
}

/// The output size, and how it was given.
#[derive(Clone, PartialEq, Debug)]
enum Target {
    Size(Sizes),
    Scale(SmallVec<[f64; 3]>),
}

/// Size and mode for [`interpolate`](TensorFuture::interpolate).
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
    antialias: bool,
}

impl InterpolateOptions {
    fn new(target: Target) -> InterpolateOptions {
        let mode = InterpolateMode::Nearest;
        InterpolateOptions { target, mode, align_corners: false, antialias: false }
    }

    /// Resizes to this size: one number, or one for each spatial dimension.
    pub fn size(size: impl Dims) -> InterpolateOptions {
        InterpolateOptions::new(Target::Size(size.dims()))
    }

    /// Resizes by this factor; the size is rounded down. Positions are computed from the factor,
    /// not from the ratio of the sizes, as with PyTorch's `scale_factor`.
    pub fn scale(factor: f64) -> InterpolateOptions {
        InterpolateOptions::new(Target::Scale(smallvec![factor]))
    }

    /// As [`scale`](Self::scale), with a factor for each spatial dimension.
    pub fn scales(factors: &[f64]) -> InterpolateOptions {
        InterpolateOptions::new(Target::Scale(factors.into()))
    }

    /// How the elements around a position are combined.
    pub fn mode(mut self, mode: InterpolateMode) -> InterpolateOptions {
        self.mode = mode;
        self
    }

    /// Whether the centres of the first and last elements keep their positions, instead of their
    /// outer edges; for linear and cubic modes.
    pub fn align_corners(mut self, align: bool) -> InterpolateOptions {
        self.align_corners = align;
        self
    }

    /// Whether a value that shrinks takes the mean of all elements in reach, each weighted by its
    /// distance, instead of a few; for linear and cubic modes.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, InterpolateMode, InterpolateOptions};
    /// let x = Device::cpu().from_vec(vec![0.0f32, 0.0, 6.0, 0.0], [1, 1, 4]);
    /// let one = InterpolateOptions::size(1).mode(InterpolateMode::Linear).antialias(true);
    /// // Weights of 0.625, 0.875, 0.875 and 0.625, over their sum of 3.
    /// assert!((x.interpolate(one).item::<f32>().await? - 1.75).abs() < 1e-6);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    pub fn antialias(mut self, antialias: bool) -> InterpolateOptions {
        self.antialias = antialias;
        self
    }

    /// The axes of a value, after a check.
    fn axes(&self, x: &TensorFuture) -> Result<SmallVec<[Axis; 3]>, Refusal> {
        let spatial = x.rank().wrapping_sub(2);
        if !(1..=3).contains(&spatial) {
            let text = format!(
                "one to three dimensions after batch and channels are needed, not {}",
                x.shape()
            );
            return Err(Refusal::shape(text));
        }
        let smooth = matches!(self.mode, InterpolateMode::Linear | InterpolateMode::Cubic);
        if (smooth || self.mode == InterpolateMode::Area) && !x.dtype().is_float() {
            return Err(Refusal::not_float(x.dtype()));
        }
        if self.antialias && !smooth {
            return Err(Refusal::argument("antialias needs a linear or cubic mode"));
        }
        if self.align_corners && !smooth {
            return Err(Refusal::argument("align_corners needs a linear or cubic mode"));
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
                // PyTorch uses the ratio of the sizes for planes of the same size or twice the
                // size.
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

    /// The op of the nearest modes, where an element moves.
    fn nearest(&self, axes: &[Axis]) -> Option<Along> {
        let first = match self.mode {
            InterpolateMode::Nearest => 0.0,
            InterpolateMode::NearestExact => 0.5,
            _ => return None,
        };
        let axis = |a: &Axis| places::Axis {
            dim: a.dim,
            input: a.input,
            output: a.output,
            by: Rule::Nearest { scale: a.scale, first },
        };
        let axes: Vec<_> = axes.iter().filter(|a| a.moves(self.mode)).map(axis).collect();
        (!axes.is_empty()).then_some(Along { name: "interpolate", axes })
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

/// One dimension: `scale` is the distance between two positions, in elements of the input.
struct Axis {
    dim: usize,
    input: usize,
    output: usize,
    scale: f64,
    align: bool,
}

impl Axis {
    /// Whether anything is elsewhere afterwards. At the same size each element keeps its position;
    /// with a factor slightly off 1 all modes but the linear one move it.
    fn moves(&self, mode: InterpolateMode) -> bool {
        let stays = matches!(mode, InterpolateMode::Linear | InterpolateMode::Area);
        self.input != self.output || !stays && self.scale != 1.0
    }

    /// Each output position times the distance. The distance is data, as the sizes below are: a
    /// constant would be part of the kernel, and a GPU would compile a kernel for each.
    #[track_caller]
    fn walked(&self, device: &Device, dtype: DType, first: f64) -> TensorFuture {
        let all = device.arange(0, self.output as i64, 1).to_dtype(dtype);
        let all = if first == 0.0 { all } else { all + first };
        match dtype {
            DType::F64 => all * device.from_vec(vec![self.scale], [1]),
            _ => all * device.from_vec(vec![self.scale as f32], [1]),
        }
    }

    /// Each output position in elements of the input, in this type.
    #[track_caller]
    fn places(&self, device: &Device, dtype: DType) -> TensorFuture {
        if self.align {
            self.walked(device, dtype, 0.0)
        } else {
            self.walked(device, dtype, 0.5) - 0.5
        }
    }

    /// The elements of `x` at these positions along the axis; positions are clamped to its ends.
    #[track_caller]
    fn pick(&self, x: &TensorFuture, at: &TensorFuture) -> TensorFuture {
        // A failed value may have any size.
        let last = i64::try_from(self.input).unwrap_or(i64::MAX) - 1;
        let last = x.device().from_vec(vec![last], [1]);
        x.index_select(self.dim as isize, at.to_dtype(DType::I64).clamp_min(0).minimum(last))
    }

    /// Weights of the axis, reshaped to be multiplied with a value.
    #[track_caller]
    fn along(&self, weights: TensorFuture, x: &TensorFuture) -> TensorFuture {
        let mut shape: SmallVec<[usize; 3]> = smallvec![1; x.rank() - self.dim];
        shape[0] = self.output;
        weights.reshape(&shape[..])
    }

    /// The elements in reach of each output position, with weights by their distances: as PyTorch's
    /// kernels with antialiasing have them.
    fn reach(&self, cubic: bool) -> Intervals {
        let wide = self.scale.max(1.0);
        let reach = if cubic { 2.0 } else { 1.0 } * wide;
        let weight = |d: f64| match d.abs() {
            d if cubic && d < 1.0 => ((1.5 * d) - 2.5) * d * d + 1.0,
            d if cubic && d < 2.0 => ((-0.5 * d + 2.5) * d - 4.0) * d + 2.0,
            d if !cubic && d < 1.0 => 1.0 - d,
            _ => 0.0,
        };
        let mut found = Intervals { first: Vec::new(), weights: Vec::new() };
        for i in 0..self.output {
            let centre = self.scale * (i as f64 + 0.5);
            let from = ((centre - reach + 0.5) as usize).min(self.input - 1);
            let to = ((centre + reach + 0.5) as usize).clamp(from + 1, self.input);
            let each = (from..to).map(|j| weight((j as f64 - centre + 0.5) / wide));
            let each: Vec<f64> = each.collect();
            let sum: f64 = each.iter().sum();
            found.first.push(from);
            found.weights.push(each.into_iter().map(|w| w / sum).collect());
        }
        found
    }

    #[track_caller]
    fn apply(&self, x: &TensorFuture, mode: InterpolateMode) -> TensorFuture {
        // Positions are computed as in PyTorch: in float64 for float64, otherwise in float32.
        let dtype = if x.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        let device = x.device();
        let &Axis { dim, input, output, scale, align } = self;
        let cubic = mode == InterpolateMode::Cubic;
        let (name, by) = (build::named("interpolate"), By::Around { scale, align, cubic });
        let one = Resample { name, dim, input, output, by, back: false };
        let smooth = cubic || mode == InterpolateMode::Linear;
        if smooth && input.max(output) <= i32::MAX as usize && x.port().runner.has_kernel(&one) {
            return build::custom(Arc::new(one), &[x], Location::caller());
        }
        match mode {
            InterpolateMode::Nearest | InterpolateMode::NearestExact => {
                let first = if mode == InterpolateMode::Nearest { 0.0 } else { 0.5 };
                self.pick(x, &self.walked(&device, dtype, first))
            }
            InterpolateMode::Area => areas(x, dim, &[output]),
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

/// Weights of elements at distances below 1.
#[track_caller]
fn near(d: TensorFuture) -> TensorFuture {
    ((&d * (A + 2.0) - (A + 3.0)) * &d) * &d + 1.0
}

/// Weights of elements at distances from 1 to 2.
#[track_caller]
fn far(d: TensorFuture) -> TensorFuture {
    ((&d * A - 5.0 * A) * &d + 8.0 * A) * &d - 4.0 * A
}

/// Resizing. Nothing waits.
impl TensorFuture {
    /// Resizes `[batch, channels, ..]` over its one to three spatial dimensions: PyTorch's
    /// `interpolate`. The nearest modes take any type; the linear and cubic modes take floats, and
    /// compute halves in float32 and round once.
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
    /// A shape error if there are no spatial dimensions, more than three, or empty ones; an
    /// argument error for sizes below 1, and for `align_corners` in a nearest mode; a type error
    /// for integers in a linear or cubic mode.
    #[doc(alias("upsample", "resize"))]
    #[track_caller]
    pub fn interpolate(&self, options: impl Into<InterpolateOptions>) -> TensorFuture {
        let options = options.into();
        let mut axes = match options.axes(self) {
            Ok(axes) => axes,
            Err(refusal) => {
                return build::refused("interpolate", self, refusal, Location::caller());
            }
        };
        if self.numel() == 0 && (options.antialias || options.mode == InterpolateMode::Area) {
            let mut shape = self.shape().clone();
            axes.iter().for_each(|axis| shape.dims_mut()[axis.dim] = axis.output);
            return self.reshape(shape.dims());
        }
        if let Some(nearest) = options.nearest(&axes)
            && self.port().runner.has_kernel(&nearest)
        {
            return build::custom(Arc::new(nearest), &[self], Location::caller());
        }
        let smooth = matches!(options.mode, InterpolateMode::Linear | InterpolateMode::Cubic);
        let wide = smooth || options.mode == InterpolateMode::Area;
        let mut x = if wide { self.wide() } else { self.clone() };
        // What shrinks comes first and what grows last, so that there is little between; of two
        // alike the one that lies along memory, whose elements take longer.
        let growth = |a: &Axis| a.output as f64 / a.input as f64;
        axes.reverse();
        axes.sort_by(|a, b| growth(a).total_cmp(&growth(b)));
        for axis in axes {
            if axis.moves(options.mode) {
                x = match options.antialias {
                    true => axis.reach(options.mode == InterpolateMode::Cubic).sums(&x, axis.dim),
                    false => axis.apply(&x, options.mode),
                };
            }
        }
        x.to_dtype(self.dtype())
    }
}
