//! Pooling: its options and methods.

use super::build::{self, At};
use super::conv::{Sizes, pair};
use super::dims::Dims;
use super::future::TensorFuture;
use crate::graph::operation::Refusal;
use crate::kernels::cpu::pool::Divisor;
use crate::kernels::cpu::window::Window;
use crate::ops::pool::{Pool, Pooled};
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
    padding: Sizes,
    dilation: Sizes,
    ceil: bool,
    divisor: Divisor,
}

impl PoolOptions {
    /// A window of a size: one number, or height and width.
    pub fn new(kernel: impl Dims) -> PoolOptions {
        let kernel = kernel.dims();
        let (zero, one) = (smallvec![0], smallvec![1]);
        let (stride, divisor) = (kernel.clone(), Divisor::Padded);
        PoolOptions { kernel, stride, padding: zero, dilation: one, ceil: false, divisor }
    }

    /// How far the window moves.
    pub fn stride(mut self, stride: impl Dims) -> PoolOptions {
        self.stride = stride.dims();
        self
    }

    /// What lies around the input on both sides: nothing for a maximum, zeros for a mean. At most half of
    /// the window.
    pub fn padding(mut self, padding: impl Dims) -> PoolOptions {
        self.padding = padding.dims();
        self
    }

    /// Distance of the window's elements; for a maximum only.
    pub fn dilation(mut self, dilation: impl Dims) -> PoolOptions {
        self.dilation = dilation.dims();
        self
    }

    /// A last window that begins on the input counts even where it reaches beyond; PyTorch's `ceil_mode`.
    pub fn ceil(mut self, ceil: bool) -> PoolOptions {
        self.ceil = ceil;
        self
    }

    /// Whether a mean counts the zeros of the padding (it does by default); PyTorch's `count_include_pad`.
    pub fn count_padding(mut self, count: bool) -> PoolOptions {
        self.divisor = if count { Divisor::Padded } else { Divisor::Met };
        self
    }

    /// The number that a mean's sum is divided by, whatever the window meets; PyTorch's `divisor_override`.
    pub fn divisor(mut self, divisor: usize) -> PoolOptions {
        self.divisor = Divisor::Fixed(divisor);
        self
    }

    fn window(&self, x: &TensorFuture, mean: bool) -> Result<Window, Refusal> {
        if x.rank() != 3 && x.rank() != 4 {
            return Err(Refusal::shape(format!("three or four dimensions are needed, not {}", x.shape())));
        }
        let input = [x.dims()[x.rank() - 2], x.dims()[x.rank() - 1]];
        let kernel = pair("a window", &self.kernel, 2, 1, 1)?;
        let stride = pair("a stride", &self.stride, 2, 1, 1)?;
        let padding = pair("a padding", &self.padding, 2, 0, 0)?;
        let dilation = pair("a dilation", &self.dilation, 2, 1, 1)?;
        if mean && dilation != [1, 1] {
            return Err(Refusal::argument("a mean's window is not dilated"));
        }
        if self.divisor == Divisor::Fixed(0) {
            return Err(Refusal::argument("a divisor of 0"));
        }
        let mut output = [0; 2];
        for a in 0..2 {
            if padding[a] > kernel[a] / 2 {
                let text = format!("a padding of {padding:?} is more than half of the window {kernel:?}");
                return Err(Refusal::argument(text));
            }
            let reach = dilation[a] * (kernel[a] - 1) + 1;
            let over = if self.ceil { stride[a] - 1 } else { 0 };
            // A failed value may have any sizes.
            let padded = input[a].checked_add(2 * padding[a] + over).filter(|&n| n < isize::MAX as usize);
            let room = padded.and_then(|padded| padded.checked_sub(reach));
            let too_large = || {
                Refusal::shape(format!("a window of {kernel:?} is larger than {input:?} padded by {padding:?}"))
            };
            output[a] = room.map(|room| room / stride[a] + 1).ok_or_else(too_large)?;
            // The last window begins on the input or the padding before it.
            if self.ceil && (output[a] - 1) * stride[a] >= input[a] + padding[a] {
                output[a] -= 1;
            }
            if output[a] == 0 || input[a] == 0 {
                return Err(too_large());
            }
        }
        Ok(Window { input, kernel, output, stride, padding, dilation })
    }
}

impl From<usize> for PoolOptions {
    fn from(kernel: usize) -> PoolOptions {
        PoolOptions::new(kernel)
    }
}

impl From<[usize; 2]> for PoolOptions {
    fn from(kernel: [usize; 2]) -> PoolOptions {
        PoolOptions::new(kernel)
    }
}

fn pooled(name: &str, x: &TensorFuture, options: &PoolOptions, what: Pooled, at: At) -> TensorFuture {
    match options.window(x, matches!(what, Pooled::Mean(_))) {
        Ok(window) => build::custom(Arc::new(Pool { window, what }), &[x], at),
        Err(refusal) => build::refused(name, x, refusal, at),
    }
}

/// Pooling of `[batch, channels, height, width]`, or without the batch. Nothing waits.
impl TensorFuture {
    /// The largest element under a window; NaN if one is NaN.
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
        pooled("max_pool2d", self, &options.into(), Pooled::Max, Location::caller())
    }

    /// [`max_pool2d`](Self::max_pool2d) and where the largest elements are: row times width plus column of
    /// their plane, as int64.
    #[track_caller]
    pub fn max_pool2d_with_positions(&self, options: impl Into<PoolOptions>) -> (TensorFuture, TensorFuture) {
        let (options, at) = (options.into(), Location::caller());
        let of = |what| pooled("max_pool2d", self, &options, what, at);
        (of(Pooled::Max), of(Pooled::MaxPosition))
    }

    /// The mean under a window, the zeros of the padding included unless the options say otherwise.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().arange(0.0, 16.0, 1.0).reshape([1, 4, 4]);
    /// assert_eq!(x.avg_pool2d(2).to_vec::<f32>().await?, [2.5, 4.5, 10.5, 12.5]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn avg_pool2d(&self, options: impl Into<PoolOptions>) -> TensorFuture {
        let options = options.into();
        pooled("avg_pool2d", self, &options, Pooled::Mean(options.divisor), Location::caller())
    }
}
