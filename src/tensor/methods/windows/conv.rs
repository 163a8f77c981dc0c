//! Convolutions: their options and methods.

use crate::error::number_of;
use crate::graph::operation::Refusal;
use crate::ops::windows::conv::{Conv, Role, Walk};
use crate::shape::Shape;
use crate::tensor::build::{self, At, mixed};
use crate::tensor::dims::Dims;
use crate::tensor::future::TensorFuture;
use crate::window::{padding_shown, triple};
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
    padding: [Sizes; 2],
    dilation: Sizes,
    output_padding: Sizes,
    groups: usize,
}

impl Default for ConvOptions {
    fn default() -> ConvOptions {
        let [zero, one]: [Sizes; 2] = [smallvec![0], smallvec![1]];
        let (stride, dilation, output_padding) = (one.clone(), one, zero.clone());
        ConvOptions { stride, padding: [zero.clone(), zero], dilation, output_padding, groups: 1 }
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
        self.padding = [padding.dims(), padding.dims()];
        self
    }

    /// Zeros before and after the input, if the two differ: each is one number, or one for each
    /// spatial dimension.
    ///
    /// ```
    /// use futensor::{ConvOptions, Device};
    /// let device = Device::cpu();
    /// let (x, w) = (device.ones([1, 1, 9]), device.ones([1, 1, 3]));
    /// // A causal convolution sees only earlier elements.
    /// assert_eq!(x.conv1d(&w, None, ConvOptions::default().padding_sides(2, 0)).dims(),
    ///     [1, 1, 9]);
    /// ```
    pub fn padding_sides(mut self, before: impl Dims, after: impl Dims) -> ConvOptions {
        self.padding = [before.dims(), after.dims()];
        self
    }

    /// The distance between the kernel's taps.
    pub fn dilation(mut self, dilation: impl Dims) -> ConvOptions {
        self.dilation = dilation.dims();
        self
    }

    /// Extra rows and columns on one side of the output of a *transposed* convolution. With a
    /// stride above 1, a convolution maps inputs of several sizes to the same output size; this
    /// selects one of them.
    pub fn output_padding(mut self, padding: impl Dims) -> ConvOptions {
        self.output_padding = padding.dims();
        self
    }

    /// The number of groups of channels; groups are independent of each other.
    pub fn groups(mut self, groups: usize) -> ConvOptions {
        self.groups = groups;
        self
    }

    /// The shape of a layer's weight, for this number of spatial dimensions.
    pub(crate) fn weight_shape(
        &self,
        spatial: usize,
        inputs: usize,
        outputs: usize,
        kernel: &[isize],
    ) -> Result<Shape, Refusal> {
        let kernel = each("a kernel", kernel, spatial, 1, 1)?;
        let groups = self.walk(spatial)?.0.groups;
        if !inputs.is_multiple_of(groups) || !outputs.is_multiple_of(groups) {
            let (channels, groups) =
                (number_of(inputs, "channel", "channels"), number_of(groups, "group", "groups"));
            let text = format!("{channels} to {outputs} do not divide into {groups}");
            return Err(Refusal::argument(text));
        }
        Ok([outputs, inputs / groups]
            .into_iter()
            .chain(kernel[3 - spatial..].iter().copied())
            .collect())
    }

    /// The options as triples, and the output padding.
    pub(super) fn walk(&self, spatial: usize) -> Result<(Walk, [usize; 3]), Refusal> {
        let walk = Walk {
            spatial,
            stride: each("a stride", &self.stride, spatial, 1, 1)?,
            padding: sides(&self.padding, spatial)?,
            dilation: each("a dilation", &self.dilation, spatial, 1, 1)?,
            groups: self.groups,
        };
        if self.groups == 0 {
            return Err(Refusal::argument("at least one group is needed"));
        }
        Ok((walk, each("an output padding", &self.output_padding, spatial, 0, 0)?))
    }
}

/// Expands one number, or one for each spatial dimension, each at least `least`, to depth, height
/// and width; missing dimensions get `neutral`.
pub(super) fn each(
    what: &str,
    given: &[isize],
    spatial: usize,
    least: isize,
    neutral: usize,
) -> Result<[usize; 3], Refusal> {
    if given.len() != 1 && given.len() != spatial {
        return Err(Refusal::argument(format!(
            "{what} of {given:?} for {}",
            number_of(spatial, "dimension", "dimensions")
        )));
    }
    let mut all = [neutral; 3];
    for (i, size) in all[3 - spatial..].iter_mut().enumerate() {
        let d = given[if given.len() == 1 { 0 } else { i }];
        *size = match usize::try_from(d) {
            // The limit is beyond any memory, and products of two such numbers do not overflow.
            Ok(n) if d >= least && n <= i32::MAX as usize => n,
            _ => return Err(Refusal::argument(format!("{what} of {d}"))),
        };
    }
    Ok(all)
}

/// The padding before and after each spatial dimension.
pub(super) fn sides(
    [before, after]: &[Sizes; 2],
    spatial: usize,
) -> Result<[[usize; 2]; 3], Refusal> {
    let of = |given: &Sizes| each("a padding", given, spatial, 0, 0);
    let (before, after) = (of(before)?, of(after)?);
    Ok(std::array::from_fn(|a| [before[a], after[a]]))
}

/// The op that was called.
#[derive(Clone, Copy)]
struct Asked {
    name: &'static str,
    spatial: usize,
    transposed: bool,
}

/// Queues the op; an input without a batch dimension becomes a batch of one.
#[track_caller]
fn convolve(
    asked: Asked,
    x: &TensorFuture,
    w: &TensorFuture,
    bias: Option<&TensorFuture>,
    options: &ConvOptions,
) -> TensorFuture {
    let at: At = Location::caller();
    if let Some([Some(x), Some(w), bias]) = mixed::narrowed([Some(x), Some(w), bias], at) {
        return convolve(asked, &x, &w, bias.as_ref(), options);
    }
    let refuse = |refusal: Refusal| match [Some(x), Some(w), bias]
        .into_iter()
        .flatten()
        .find_map(|t| t.node.error())
    {
        // An operand that failed is the root error, whatever its shape.
        Some(root) => build::failed(x.port(), x.node.meta.clone(), root.clone(), at),
        None => build::refused(asked.name, x, refusal, at),
    };
    let _within = build::within(asked.name, at);
    let spatial = asked.spatial;
    // One image without a batch dimension, as in PyTorch.
    let alone = x.rank() == spatial + 1;
    if !alone && x.rank() != spatial + 2 || w.rank() != spatial + 2 {
        return refuse(Refusal::shape(format!(
            "an input of {} and a weight of {}: {} dimensions are needed, of an input without a \
             batch {}",
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
    // Not in a closure, which would lose the caller's line.
    let mut image = if alone { &x.unsqueeze(0) } else { x };
    if image.rank() != spatial + 2 || w.rank() != spatial + 2 {
        // The operands had failed; a view of a failed value keeps its shape.
        return refuse(Refusal::shape(format!(
            "an input of {} and a weight of {}",
            x.shape(),
            w.shape()
        )));
    }
    let role = match asked.transposed {
        true => transposed(&walk, more, image.dims(), w.dims()),
        false => Ok(Role::Output),
    };
    // Output padding is less than a stride. Each full stride beyond that equals one more zero in
    // the input.
    let behind: Sizes =
        (3 - spatial..3).rev().flat_map(|a| [0, (more[a] / walk.stride[a]) as isize]).collect();
    let longer;
    if asked.transposed && role.is_ok() && behind.iter().any(|&n| n > 0) {
        longer = image.pad(&behind[..], 0.0);
        image = &longer;
    }
    let mut operands: SmallVec<[&TensorFuture; 3]> = smallvec![image, w];
    operands.extend(bias);
    let y = match role {
        Ok(role) => build::custom(Arc::new(Conv { walk, role }), &operands, at),
        Err(refusal) => return refuse(refusal),
    };
    if alone && y.node.error().is_none() { y.squeeze(0) } else { y }
}

/// The output size of a transposed convolution.
fn transposed(walk: &Walk, more: [usize; 3], x: &[usize], w: &[usize]) -> Result<Role, Refusal> {
    let (input, kernel) = (triple(&x[2..], 1), triple(&w[2..], 1));
    let mut size = [0; 3];
    for a in 0..3 {
        if more[a] >= walk.stride[a].max(walk.dilation[a]) {
            let text = format!(
                "an output padding of {:?} beside a stride of {:?} and a dilation of {:?}",
                walk.own(&more),
                walk.own(&walk.stride),
                walk.own(&walk.dilation)
            );
            return Err(Refusal::argument(text));
        }
        // `None` if the size is not positive, or overflows.
        let left = || {
            let reach =
                kernel[a].saturating_sub(1).checked_mul(walk.dilation[a])?.checked_add(1)?;
            let walked = input[a].checked_sub(1)?.checked_mul(walk.stride[a])?;
            let all = walked.checked_add(reach)?.checked_add(more[a])?;
            let left = all.checked_sub(walk.padding[a][0] + walk.padding[a][1])?;
            (left > 0 && left < isize::MAX as usize).then_some(left)
        };
        size[a] = left().ok_or_else(|| {
            let padding = padding_shown(walk.own(&walk.padding));
            Refusal::shape(format!(
                "{x:?} under {w:?} with a padding of {padding} gives no valid size"
            ))
        })?;
    }
    if x[1] != w[0] {
        return Err(Refusal::shape(format!("a weight of {w:?} does not fit an input of {x:?}")));
    }
    Ok(Role::Input(size))
}

/// # Convolution, pooling
///
/// Convolutions in PyTorch's sense, that is, cross-correlations: of `[batch, channels, ..]` (or
/// `[channels, ..]`), over one to three spatial dimensions, with a weight `[out, channels / groups,
/// ..]`. Floating point only, with all operands of one type; halves are accumulated in float32.
/// Nothing waits.
///
/// On the CPU, kernels of 3 x 3 with a stride of 1 and at least 48 channels a group on both sides
/// are computed by tiles of 2 x 2 results (Winograd's F(2 x 2, 3 x 3)), in float32 and halves,
/// transposed and for gradients of the input too. A result's error is then relative to the largest
/// element and the largest weight that it meets, and not to the largest of their products.
impl TensorFuture {
    /// Convolution over one dimension: `[batch, channels, length]` with `[out, channels / groups,
    /// length]`.
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

    /// Convolution over two dimensions. `bias` has one number per output channel.
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

    /// Convolution over three dimensions: `[batch, channels, depth, height, width]` with `[out,
    /// channels / groups, depth, height, width]`.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{ConvOptions, Device};
    /// let device = Device::cpu();
    /// let (x, w) = (device.ones([1, 1, 3, 4, 5]), device.ones([2, 1, 2, 2, 2]));
    /// let y = x.conv3d(&w, None, ConvOptions::default().stride([1, 2, 1]));
    /// assert_eq!(y.dims(), [1, 2, 2, 2, 4]);
    /// assert_eq!(y.max_all().item::<f32>().await?, 8.0);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn conv3d(
        &self,
        weight: impl AsRef<TensorFuture>,
        bias: Option<&TensorFuture>,
        options: impl Into<ConvOptions>,
    ) -> TensorFuture {
        let asked = Asked { name: "conv3d", spatial: 3, transposed: false };
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

    /// Transposed convolution over two dimensions, with a weight `[channels, out / groups, height,
    /// width]`: the gradient of [`conv2d`](Self::conv2d) with respect to its input.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{ConvOptions, Device};
    /// let device = Device::cpu();
    /// let x = device.from_vec(vec![1.0f32, 2.0], [1, 1, 1, 2]);
    /// let y = x.conv_transpose2d(&device.ones([1, 1, 1, 2]), None, ConvOptions::default()
    ///     .stride(2));
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

    /// Transposed convolution over three dimensions, with a weight `[channels, out / groups, depth,
    /// height, width]`.
    ///
    /// ```
    /// use futensor::{ConvOptions, Device};
    /// let device = Device::cpu();
    /// let (x, w) = (device.ones([1, 2, 3, 3, 3]), device.ones([2, 4, 2, 2, 2]));
    /// let y = x.conv_transpose3d(&w, None, ConvOptions::default().stride(2)
    ///     .output_padding([1, 0, 0]));
    /// assert_eq!(y.dims(), [1, 4, 7, 6, 6]);
    /// ```
    #[track_caller]
    pub fn conv_transpose3d(
        &self,
        weight: impl AsRef<TensorFuture>,
        bias: Option<&TensorFuture>,
        options: impl Into<ConvOptions>,
    ) -> TensorFuture {
        let asked = Asked { name: "conv_transpose3d", spatial: 3, transposed: true };
        convolve(asked, self, weight.as_ref(), bias, &options.into())
    }
}
