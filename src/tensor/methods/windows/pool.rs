//! Pooling: options and methods.

use super::conv::{Sizes, each, sides};
use crate::graph::operation::Refusal;
use crate::host::kernels::windows::pool::Divisor;
use crate::ops::windows::pool::{Pool, Pooled};
use crate::tensor::build::{self, At};
use crate::tensor::dims::Dims;
use crate::tensor::future::TensorFuture;
use crate::window::{Steps, Window, padding_shown, places, triple};
use smallvec::smallvec;
use std::panic::Location;
use std::sync::Arc;

/// The window of a pooling op. The stride is the window's size unless it is set, as in PyTorch.
///
/// ```
/// use futensor::{Device, PoolOptions};
/// let x = Device::cpu().ones([1, 3, 8, 8]);
/// assert_eq!(x.max_pool2d(2).dims(), [1, 3, 4, 4]);
/// let options = PoolOptions::new([3, 2]).stride(1).padding([1, 0]);
/// assert_eq!(x.avg_pool2d(options).dims(), [1, 3, 8, 7]);
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PoolOptions {
    kernel: Sizes,
    stride: Sizes,
    padding: [Sizes; 2],
    dilation: Sizes,
    ceil: bool,
    divisor: Divisor,
}

impl PoolOptions {
    /// A window of this size: one number, or one for each spatial dimension.
    pub fn new(kernel: impl Dims) -> PoolOptions {
        let kernel = kernel.dims();
        let [zero, one]: [Sizes; 2] = [smallvec![0], smallvec![1]];
        let (stride, divisor) = (kernel.clone(), Divisor::Padded);
        PoolOptions {
            kernel,
            stride,
            padding: [zero.clone(), zero],
            dilation: one,
            ceil: false,
            divisor,
        }
    }

    /// How far the window moves.
    pub fn stride(mut self, stride: impl Dims) -> PoolOptions {
        self.stride = stride.dims();
        self
    }

    /// The padding on both sides of the input: ignored by a maximum, zeros for a mean. It must be
    /// smaller than the window's extent, so that each window overlaps the input.
    pub fn padding(mut self, padding: impl Dims) -> PoolOptions {
        self.padding = [padding.dims(), padding.dims()];
        self
    }

    /// The padding before and after the input, if the two differ: each is one number, or one for
    /// each spatial dimension.
    ///
    /// ```
    /// use futensor::{Device, PoolOptions};
    /// let x = Device::cpu().ones([1, 3, 8]);
    /// let same = PoolOptions::new(2).stride(1).padding_sides(0, 1);
    /// assert_eq!(x.max_pool1d(same).dims(), [1, 3, 8]);
    /// ```
    pub fn padding_sides(mut self, before: impl Dims, after: impl Dims) -> PoolOptions {
        self.padding = [before.dims(), after.dims()];
        self
    }

    /// The distance between the window's elements.
    pub fn dilation(mut self, dilation: impl Dims) -> PoolOptions {
        self.dilation = dilation.dims();
        self
    }

    /// Whether a last window that begins on the input but extends beyond it counts; PyTorch's
    /// `ceil_mode`.
    pub fn ceil(mut self, ceil: bool) -> PoolOptions {
        self.ceil = ceil;
        self
    }

    /// Whether a mean counts the zeros of the padding (it does by default); PyTorch's
    /// `count_include_pad`.
    pub fn count_padding(mut self, count: bool) -> PoolOptions {
        if !matches!(self.divisor, Divisor::Fixed(_)) {
            self.divisor = if count { Divisor::Padded } else { Divisor::Met };
        }
        self
    }

    /// The divisor of a mean, instead of the number of elements, whichever count; PyTorch's
    /// `divisor_override`.
    ///
    /// ```
    /// use futensor::PoolOptions;
    /// let options = PoolOptions::new(2).count_padding(false).divisor(3);
    /// assert_eq!(options, PoolOptions::new(2).divisor(3).count_padding(false));
    /// ```
    pub fn divisor(mut self, divisor: usize) -> PoolOptions {
        self.divisor = Divisor::Fixed(divisor);
        self
    }

    fn window(&self, x: &TensorFuture, spatial: usize) -> Result<Window, Refusal> {
        if x.rank() != spatial + 1 && x.rank() != spatial + 2 {
            let (few, many) = (spatial + 1, spatial + 2);
            return Err(Refusal::shape(format!(
                "{few} or {many} dimensions are needed, not {}",
                x.shape()
            )));
        }
        let last = &x.dims()[x.rank() - spatial..];
        let (input, padding) = (triple(last, 1), sides(&self.padding, spatial)?);
        let kernel = each("a window", &self.kernel, spatial, 1, 1)?;
        let stride = each("a stride", &self.stride, spatial, 1, 1)?;
        let dilation = each("a dilation", &self.dilation, spatial, 1, 1)?;
        if self.divisor == Divisor::Fixed(0) {
            return Err(Refusal::argument("the divisor is 0"));
        }
        let mut output = [1; 3];
        for a in 0..3 {
            let own = 3 - spatial;
            let reach = dilation[a] * (kernel[a] - 1) + 1;
            if padding[a].iter().any(|&side| side >= reach) {
                let (padding, kernel) = (padding_shown(&padding[own..]), &kernel[own..]);
                let text = format!(
                    "a padding of {padding} is not smaller than the extent of the window {kernel:?}"
                );
                return Err(Refusal::argument(text));
            }
            let found = places(input[a], kernel[a], stride[a], padding[a], dilation[a], self.ceil);
            output[a] = found.filter(|&n| n > 0 && input[a] > 0).ok_or_else(|| {
                let (padding, kernel) = (padding_shown(&padding[own..]), &kernel[own..]);
                Refusal::shape(format!(
                    "a window of {kernel:?} is larger than {last:?} padded by {padding}"
                ))
            })?;
            // Taps that are further apart than the input is long may miss it, and an empty window
            // has no maximum.
            let (by, before) = (dilation[a], padding[a][0]);
            let first = before.div_ceil(by) * by - before;
            // The position of the first tap on or after the input, by output; it repeats after `by`
            // outputs.
            let taps = Steps { first, stride: stride[a], by };
            if by > input[a] && taps.reaches(input[a], output[a].min(by)) {
                let dilation = &dilation[own..];
                return Err(Refusal::shape(format!(
                    "a window dilated by {dilation:?} passes over {last:?}"
                )));
            }
        }
        Ok(Window { spatial, input, kernel, output, stride, padding, dilation })
    }
}

impl From<usize> for PoolOptions {
    fn from(kernel: usize) -> PoolOptions {
        PoolOptions::new(kernel)
    }
}

impl<const N: usize> From<[usize; N]> for PoolOptions {
    fn from(kernel: [usize; N]) -> PoolOptions {
        PoolOptions::new(kernel)
    }
}

/// The op that was called.
#[derive(Clone, Copy)]
struct Asked(&'static str, usize);

fn pooled(
    asked: Asked,
    x: &TensorFuture,
    options: &PoolOptions,
    what: Pooled,
    at: At,
) -> TensorFuture {
    let Asked(name, spatial) = asked;
    match options.window(x, spatial) {
        Ok(window) => build::custom(Arc::new(Pool { window, what }), &[x], at),
        Err(refusal) => build::refused(name, x, refusal, at),
    }
}

#[track_caller]
fn largest(asked: Asked, x: &TensorFuture, options: PoolOptions) -> TensorFuture {
    pooled(asked, x, &options, Pooled::Max, Location::caller())
}

#[track_caller]
fn with_positions(
    asked: Asked,
    x: &TensorFuture,
    options: PoolOptions,
) -> (TensorFuture, TensorFuture) {
    let of = |what, at| pooled(asked, x, &options, what, at);
    let at = Location::caller();
    (of(Pooled::Max, at), of(Pooled::MaxPosition, at))
}

#[track_caller]
fn mean(asked: Asked, x: &TensorFuture, options: PoolOptions) -> TensorFuture {
    pooled(asked, x, &options, Pooled::Mean(options.divisor), Location::caller())
}

/// Pooling of `[batch, channels, ..]` or `[channels, ..]` over one to three spatial dimensions.
/// Nothing waits.
impl TensorFuture {
    /// The largest element under a window over `[batch, channels, length]`; NaN if one is NaN.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().arange(0.0, 6.0, 1.0).reshape([1, 6]);
    /// assert_eq!(x.max_pool1d(2).to_vec::<f32>().await?, [1.0, 3.0, 5.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn max_pool1d(&self, options: impl Into<PoolOptions>) -> TensorFuture {
        largest(Asked("max_pool1d", 1), self, options.into())
    }

    /// The largest element under a window over `[batch, channels, height, width]`; NaN if one is
    /// NaN.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().arange(0.0, 16.0, 1.0).reshape([1, 4, 4]);
    /// assert_eq!(x.max_pool2d(2).to_vec::<f32>().await?, [5.0, 7.0, 13.0, 15.0]);
    /// assert!(x.max_pool2d(5).error().unwrap().is_shape());
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn max_pool2d(&self, options: impl Into<PoolOptions>) -> TensorFuture {
        largest(Asked("max_pool2d", 2), self, options.into())
    }

    /// The largest element under a window over `[batch, channels, depth, height, width]`; NaN if
    /// one is NaN.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().arange(0.0, 8.0, 1.0).reshape([1, 2, 2, 2]);
    /// assert_eq!(x.max_pool3d([2, 1, 2]).to_vec::<f32>().await?, [5.0, 7.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn max_pool3d(&self, options: impl Into<PoolOptions>) -> TensorFuture {
        largest(Asked("max_pool3d", 3), self, options.into())
    }

    /// [`max_pool1d`](Self::max_pool1d), and the positions of the largest elements in their row, as
    /// int64.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().from_vec(vec![1.0, f32::NAN, 3.0, 2.0], [1, 4]);
    /// let (largest, at) = x.max_pool1d_with_positions(2);
    /// let largest = largest.to_vec::<f32>().await?;
    /// assert!(largest[0].is_nan() && x.max_pool1d(2).to_vec::<f32>().await?[0].is_nan());
    /// assert_eq!((largest[1], at.to_vec::<i64>().await?), (3.0, vec![1, 2]));
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn max_pool1d_with_positions(
        &self,
        options: impl Into<PoolOptions>,
    ) -> (TensorFuture, TensorFuture) {
        with_positions(Asked("max_pool1d", 1), self, options.into())
    }

    /// [`max_pool2d`](Self::max_pool2d), and the positions of the largest elements in their plane
    /// (row times width plus column), as int64.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().arange(0.0, 16.0, 1.0).reshape([1, 4, 4]);
    /// let (_, positions) = x.max_pool2d_with_positions(2);
    /// assert_eq!(positions.to_vec::<i64>().await?, [5, 7, 13, 15]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn max_pool2d_with_positions(
        &self,
        options: impl Into<PoolOptions>,
    ) -> (TensorFuture, TensorFuture) {
        with_positions(Asked("max_pool2d", 2), self, options.into())
    }

    /// [`max_pool3d`](Self::max_pool3d), and the row-major positions of the largest elements in
    /// their volume, as int64.
    #[track_caller]
    pub fn max_pool3d_with_positions(
        &self,
        options: impl Into<PoolOptions>,
    ) -> (TensorFuture, TensorFuture) {
        with_positions(Asked("max_pool3d", 3), self, options.into())
    }

    /// The mean under a window over `[batch, channels, length]`, the zeros of the padding included
    /// unless the options say otherwise.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().arange(0.0, 6.0, 1.0).reshape([1, 6]);
    /// assert_eq!(x.avg_pool1d(3).to_vec::<f32>().await?, [1.0, 4.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// A type error for integers and bool. A shape or an argument error if
    /// the window does not fit.
    #[track_caller]
    pub fn avg_pool1d(&self, options: impl Into<PoolOptions>) -> TensorFuture {
        mean(Asked("avg_pool1d", 1), self, options.into())
    }

    /// The mean under a window over `[batch, channels, height, width]`, the zeros of the padding
    /// included unless the options say otherwise.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().arange(0.0, 16.0, 1.0).reshape([1, 4, 4]);
    /// assert_eq!(x.avg_pool2d(2).to_vec::<f32>().await?, [2.5, 4.5, 10.5, 12.5]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// A type error for integers and bool. A shape or an argument error if
    /// the window does not fit.
    #[track_caller]
    pub fn avg_pool2d(&self, options: impl Into<PoolOptions>) -> TensorFuture {
        mean(Asked("avg_pool2d", 2), self, options.into())
    }

    /// The mean under a window over `[batch, channels, depth, height, width]`, the zeros of the
    /// padding included unless the options say otherwise.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().arange(0.0, 8.0, 1.0).reshape([1, 2, 2, 2]);
    /// assert_eq!(x.avg_pool3d(2).to_vec::<f32>().await?, [3.5]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// A type error for integers and bool. A shape or an argument error if
    /// the window does not fit.
    #[track_caller]
    pub fn avg_pool3d(&self, options: impl Into<PoolOptions>) -> TensorFuture {
        mean(Asked("avg_pool3d", 3), self, options.into())
    }
}
