//! Convolutions: their options, and the methods that bring one dimension to two.

use super::build::{self, At};
use super::dims::Dims;
use super::future::TensorFuture;
use crate::graph::operation::Refusal;
use crate::ops::conv::{Conv, Role, Walk};
use smallvec::{SmallVec, smallvec};
use std::panic::Location;
use std::sync::Arc;

/// A number for each spatial dimension, or one for all of them.
pub(super) type Sizes = SmallVec<[isize; 8]>;

/// Stride, padding, dilation and groups of a convolution; PyTorch's defaults (1, 0, 1, 1).
///
/// ```
/// use futensor::{ConvOptions, Device};
/// let device = Device::cpu();
/// let (x, w) = (device.ones([1, 4, 8, 8]), device.ones([6, 2, 3, 3]));
/// let y = x.conv2d(&w, None, ConvOptions::default().stride(2).padding([1, 0]).groups(2));
/// assert_eq!(y.dims(), [1, 6, 4, 3]);
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConvOptions {
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    output_padding: Sizes,
    groups: usize,
}

impl Default for ConvOptions {
    fn default() -> ConvOptions {
        let [zero, one]: [Sizes; 2] = [smallvec![0], smallvec![1]];
        let (stride, dilation, output_padding) = (one.clone(), one, zero.clone());
        ConvOptions { stride, padding: zero, dilation, output_padding, groups: 1 }
    }
}

impl From<()> for ConvOptions {
    fn from(_: ()) -> ConvOptions {
        ConvOptions::default()
    }
}

impl ConvOptions {
    /// How far the kernel moves: one number, or one for each spatial dimension.
    pub fn stride(mut self, stride: impl Dims) -> ConvOptions {
        self.stride = stride.dims();
        self
    }

    /// Zeros around the input, on both sides.
    pub fn padding(mut self, padding: impl Dims) -> ConvOptions {
        self.padding = padding.dims();
        self
    }

    /// Distance of the kernel's taps.
    pub fn dilation(mut self, dilation: impl Dims) -> ConvOptions {
        self.dilation = dilation.dims();
        self
    }

    /// Rows and columns that a *transposed* convolution has more on one side: with a stride above 1 several
    /// sizes lead to the same output, and this tells them apart.
    pub fn output_padding(mut self, padding: impl Dims) -> ConvOptions {
        self.output_padding = padding.dims();
        self
    }

    /// Groups of channels that do not see each other.
    pub fn groups(mut self, groups: usize) -> ConvOptions {
        self.groups = groups;
        self
    }

    /// The shape of a layer's weight, over two dimensions.
    pub(crate) fn weight_shape(
        &self,
        inputs: usize,
        outputs: usize,
        kernel: &[isize],
    ) -> Result<[usize; 4], Refusal> {
        let [height, width] = pair("a kernel", kernel, 2, 1, 1)?;
        let groups = self.walk(2)?.0.groups;
        if !inputs.is_multiple_of(groups) || !outputs.is_multiple_of(groups) {
            let text = format!("{inputs} channels to {outputs} do not divide into {groups} groups");
            return Err(Refusal::argument(text));
        }
        Ok([outputs, inputs / groups, height, width])
    }

    /// As pairs, for so many spatial dimensions; of one, the height is walked by the neutral element.
    fn walk(&self, spatial: usize) -> Result<(Walk, [usize; 2]), Refusal> {
        let walk = Walk {
            stride: pair("a stride", &self.stride, spatial, 1, 1)?,
            padding: pair("a padding", &self.padding, spatial, 0, 0)?,
            dilation: pair("a dilation", &self.dilation, spatial, 1, 1)?,
            groups: self.groups,
        };
        if self.groups == 0 {
            return Err(Refusal::argument("there is at least one group"));
        }
        Ok((walk, pair("an output padding", &self.output_padding, spatial, 0, 0)?))
    }
}

/// One number for all, or one each, of at least `least`; with one dimension the height has `neutral`.
pub(super) fn pair(
    what: &str,
    given: &[isize],
    spatial: usize,
    least: isize,
    neutral: usize,
) -> Result<[usize; 2], Refusal> {
    let of = |d: isize| match usize::try_from(d) {
        // Beyond any memory, and products of two of these do not overflow.
        Ok(n) if d >= least && n <= i32::MAX as usize => Ok(n),
        _ => Err(Refusal::argument(format!("{what} of {d}"))),
    };
    match (given, spatial) {
        (&[d], 1) => Ok([neutral, of(d)?]),
        (&[d], _) => Ok([of(d)?; 2]),
        (&[a, b], 2) => Ok([of(a)?, of(b)?]),
        _ => Err(Refusal::argument(format!("{what} of {given:?} for {spatial} dimensions"))),
    }
}

/// Which op is asked for.
#[derive(Clone, Copy)]
struct Asked {
    name: &'static str,
    spatial: usize,
    transposed: bool,
}

/// Brings operands to `[n, c, h, w]`, queues the op, and takes the result back.
#[track_caller]
fn convolve(
    asked: Asked,
    x: &TensorFuture,
    w: &TensorFuture,
    bias: Option<&TensorFuture>,
    options: &ConvOptions,
) -> TensorFuture {
    let at: At = Location::caller();
    let refuse =
        |refusal: Refusal| match [Some(x), Some(w), bias].into_iter().flatten().find_map(|t| t.node.error()) {
            // What failed before is the root, whatever shape it was given.
            Some(root) => build::failed(x.port(), x.node.meta(), root.clone(), at),
            None => build::refused(asked.name, x, refusal, at),
        };
    let _within = build::within(asked.name, at);
    let spatial = asked.spatial;
    // Without a batch, as PyTorch: one image.
    let alone = x.rank() == spatial + 1;
    if !alone && x.rank() != spatial + 2 || w.rank() != spatial + 2 {
        return refuse(Refusal::shape(format!(
            "an input of {} and a weight of {}: {} dimensions are needed, of an input without a batch {}",
            x.shape(),
            w.shape(),
            spatial + 2,
            spatial + 1
        )));
    }
    let (walk, more) = match options.walk(spatial) {
        Ok(walk) => walk,
        Err(refusal) => return refuse(refusal),
    };
    let lifted = |t: &TensorFuture| if spatial == 1 { t.unsqueeze(-2) } else { t.clone() };
    let mut image = lifted(x);
    if alone {
        image = image.unsqueeze(0);
    }
    let kernel = lifted(w);
    if image.rank() != 4 || kernel.rank() != 4 {
        // They had failed, and a view of such a value has its shape.
        return refuse(Refusal::shape(format!("an input of {} and a weight of {}", x.shape(), w.shape())));
    }
    let mut operands: SmallVec<[&TensorFuture; 3]> = smallvec![&image, &kernel];
    operands.extend(bias);
    let role = match asked.transposed {
        true => transposed(&walk, more, image.dims(), kernel.dims()),
        false => Ok(Role::Output),
    };
    let y = match role {
        Ok(role) => build::custom(Arc::new(Conv { walk, role }), &operands, at),
        Err(refusal) => return refuse(refusal),
    };
    if y.node.error().is_some() {
        return y;
    }
    let y = if spatial == 1 { y.squeeze(-2) } else { y };
    if alone { y.squeeze(0) } else { y }
}

/// The size that a transposed convolution has.
fn transposed(walk: &Walk, more: [usize; 2], x: &[usize], w: &[usize]) -> Result<Role, Refusal> {
    let mut size = [0; 2];
    for a in 0..2 {
        if more[a] >= walk.stride[a].max(walk.dilation[a]) {
            let text = format!("an output padding of {more:?} beside a stride of {:?}", walk.stride);
            return Err(Refusal::argument(text));
        }
        let span = |n: usize, step: usize| n.saturating_sub(1).checked_mul(step);
        let all = || {
            let reach = span(w[2 + a], walk.dilation[a])?.checked_add(1 + more[a])?;
            span(x[2 + a], walk.stride[a])?.checked_add(reach)?.checked_sub(2 * walk.padding[a])
        };
        size[a] = all().filter(|&n| n > 0 && n < isize::MAX as usize && x[2 + a] > 0).ok_or_else(|| {
            Refusal::shape(format!(
                "nothing, or more than any memory, is left of {x:?} under {w:?} with a padding of {:?}",
                walk.padding
            ))
        })?;
    }
    if x[1] != w[0] {
        return Err(Refusal::shape(format!("a weight of {w:?} does not fit an input of {x:?}")));
    }
    Ok(Role::Input(size))
}

/// Convolutions, in PyTorch's sense: cross-correlations of `[batch, channels, height, width]` (or without the
/// batch) with a weight `[out, channels / groups, height, width]`. Floating point only, all operands of one
/// type; halves are accumulated in float32. Nothing waits.
impl TensorFuture {
    /// Convolution over one dimension: `[batch, channels, length]` with `[out, channels / groups, length]`.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let x = device.from_vec(vec![1.0f32, 2.0, 3.0, 4.0], [1, 1, 4]);
    /// let w = device.from_vec(vec![1.0f32, -1.0], [1, 1, 2]);
    /// assert_eq!(x.conv1d(&w, None, ()).to_vec::<f32>().await?, [-1.0, -1.0, -1.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn conv1d(
        &self,
        weight: impl AsRef<TensorFuture>,
        bias: Option<&TensorFuture>,
        options: impl Into<ConvOptions>,
    ) -> TensorFuture {
        let asked = Asked { name: "conv1d", spatial: 1, transposed: false };
        convolve(asked, self, weight.as_ref(), bias, &options.into())
    }

    /// Convolution over two dimensions. `bias` has one number a channel.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{ConvOptions, Device};
    /// let device = Device::cpu();
    /// let (x, w) = (device.ones([1, 1, 3, 3]), device.ones([1, 1, 3, 3]));
    /// assert_eq!(x.conv2d(&w, None, ()).to_vec::<f32>().await?, [9.0]);
    /// let same = x.conv2d(&w, None, ConvOptions::default().padding(1));
    /// assert_eq!(same.to_vec::<f32>().await?, [4.0, 6.0, 4.0, 6.0, 9.0, 6.0, 4.0, 6.0, 4.0]);
    /// assert!(x.conv2d(&device.ones([1, 2, 3, 3]), None, ()).error().unwrap().is_shape());
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn conv2d(
        &self,
        weight: impl AsRef<TensorFuture>,
        bias: Option<&TensorFuture>,
        options: impl Into<ConvOptions>,
    ) -> TensorFuture {
        let asked = Asked { name: "conv2d", spatial: 2, transposed: false };
        convolve(asked, self, weight.as_ref(), bias, &options.into())
    }

    /// Transposed convolution over one dimension, with a weight `[channels, out / groups, length]`.
    #[track_caller]
    pub fn conv_transpose1d(
        &self,
        weight: impl AsRef<TensorFuture>,
        bias: Option<&TensorFuture>,
        options: impl Into<ConvOptions>,
    ) -> TensorFuture {
        let asked = Asked { name: "conv_transpose1d", spatial: 1, transposed: true };
        convolve(asked, self, weight.as_ref(), bias, &options.into())
    }

    /// Transposed convolution over two dimensions, with a weight `[channels, out / groups, height, width]`: what
    /// flows back through [`conv2d`](Self::conv2d).
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{ConvOptions, Device};
    /// let device = Device::cpu();
    /// let x = device.from_vec(vec![1.0f32, 2.0], [1, 1, 1, 2]);
    /// let y = x.conv_transpose2d(&device.ones([1, 1, 1, 2]), None, ConvOptions::default().stride(2));
    /// assert_eq!(y.to_vec::<f32>().await?, [1.0, 1.0, 2.0, 2.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn conv_transpose2d(
        &self,
        weight: impl AsRef<TensorFuture>,
        bias: Option<&TensorFuture>,
        options: impl Into<ConvOptions>,
    ) -> TensorFuture {
        let asked = Asked { name: "conv_transpose2d", spatial: 2, transposed: true };
        convolve(asked, self, weight.as_ref(), bias, &options.into())
    }
}
