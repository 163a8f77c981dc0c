//! Elements that are rearranged by windows and by grids: patches, shuffled pixels, samples.

use super::conv::{ConvOptions, each};
use crate::error::number_of;
use crate::graph::operation::Refusal;
use crate::host::kernels::windows::around::{Around, Beyond, Taken};
use crate::ops::windows::patches as op;
use crate::ops::windows::sample::{Flow, Sample, mirrored};
use crate::tensor::build::{self, At};
use crate::tensor::device::Device;
use crate::tensor::dims::Dims;
use crate::tensor::future::TensorFuture;
use crate::tensor::methods::reduce::stats::float;
use crate::window::Window;
use std::panic::Location;
use std::sync::Arc;

/// Windows over an image: its size and that of the padded one, of the window, and how many there
/// are.
struct Patches {
    image: [usize; 2],
    padding: [[usize; 2]; 2],
    padded: [usize; 2],
    kernel: [usize; 2],
    count: [usize; 2],
    stride: [usize; 2],
    dilation: [usize; 2],
}

impl Patches {
    fn new(image: [usize; 2], kernel: &[isize], options: &ConvOptions) -> Result<Patches, Refusal> {
        let (walk, _) = options.walk(2)?;
        let two = |of: [usize; 3]| [of[1], of[2]];
        let kernel = two(each("a window", kernel, 2, 1, 1)?);
        let (stride, dilation) = (two(walk.stride), two(walk.dilation));
        let padding = [walk.padding[1], walk.padding[2]];
        let sum = |a: usize, b: usize| a.saturating_add(b);
        let padded = [0, 1].map(|a| sum(sum(image[a], padding[a][0]), padding[a][1]));
        let reach = [0, 1].map(|a| dilation[a].saturating_mul(kernel[a] - 1) + 1);
        if (0..2).any(|a| reach[a] > padded[a]) {
            let text =
                format!("a window of {kernel:?} is larger than {padded:?}, the padded image");
            return Err(Refusal::shape(text));
        }
        let count = [0, 1].map(|a| (padded[a] - reach[a]) / stride[a] + 1);
        Ok(Patches { image, padding, padded, kernel, count, stride, dilation })
    }

    /// The position in the padded image of each element of a window, in each window:
    /// `[elements * windows]`.
    #[track_caller]
    fn places(&self, device: &Device) -> TensorFuture {
        let axis = |a: usize| {
            let along = |n: usize, by: usize| device.arange(0, n as i64, 1) * by;
            let taps = along(self.kernel[a], self.dilation[a]).unsqueeze(1);
            taps + along(self.count[a], self.stride[a])
        };
        let (rows, columns) = (axis(0) * self.padded[1], axis(1));
        // [kernel rows, kernel columns, rows, columns]
        let rows = rows.unsqueeze(1).unsqueeze(3);
        (rows + columns.unsqueeze(1).unsqueeze(0)).reshape(-1)
    }

    /// Columns of images, or their sums, as one op, if the device has it for elements of this type.
    #[track_caller]
    fn at_once(&self, name: &'static str, x: &TensorFuture, sums: bool) -> Option<TensorFuture> {
        let three = |[a, b]: [usize; 2]| [1, a, b];
        let window = Window {
            spatial: 2,
            input: three(self.image),
            kernel: three(self.kernel),
            output: three(self.count),
            stride: three(self.stride),
            padding: [[0; 2], self.padding[0], self.padding[1]],
            dilation: three(self.dilation),
        };
        let one = op::Patches { name, window, sums };
        let knows =
            (x.dtype().is_float() || x.dtype().is_int()) && x.port().runner.has_kernel(&one);
        knows.then(|| build::custom(Arc::new(one), &[x], Location::caller()))
    }

    fn elements(&self) -> usize {
        self.kernel[0] * self.kernel[1]
    }

    fn area(&self) -> usize {
        self.padded[0].saturating_mul(self.padded[1])
    }

    fn windows(&self) -> usize {
        self.count[0].saturating_mul(self.count[1])
    }
}

/// How [`grid_sample`](TensorFuture::grid_sample) takes elements beyond the ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum GridPadding {
    /// They are 0; PyTorch's default.
    #[default]
    Zeros,
    /// The nearest element at an end.
    Border,
    /// The ends are mirrors.
    Reflection,
}

/// Options of [`grid_sample`](TensorFuture::grid_sample); PyTorch's defaults.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GridOptions {
    padding: GridPadding,
    nearest: bool,
    cubic: bool,
    align_corners: bool,
}

impl From<()> for GridOptions {
    fn from(_: ()) -> GridOptions {
        GridOptions::default()
    }
}

impl GridOptions {
    /// What is beyond the ends.
    pub fn padding(mut self, padding: GridPadding) -> GridOptions {
        self.padding = padding;
        self
    }

    /// Takes the nearest element, instead of a weighted mean of the elements around.
    pub fn nearest(mut self, nearest: bool) -> GridOptions {
        self.nearest = nearest;
        self
    }

    /// Takes a weighted sum of two elements on either side along each dimension, by the cubic
    /// convolution of Keys (1981): PyTorch's `bicubic`. `nearest` comes before it.
    pub fn cubic(mut self, cubic: bool) -> GridOptions {
        self.cubic = cubic;
        self
    }

    /// Whether -1 and 1 are the centres of the first and the last element, instead of their outer
    /// edges.
    pub fn align_corners(mut self, align: bool) -> GridOptions {
        self.align_corners = align;
        self
    }
}

/// Patches, pixels and samples.
impl TensorFuture {
    /// The windows over images `[batch, channels, height, width]` as columns `[batch, channels *
    /// window, windows]`: PyTorch's `nn.functional.unfold`. A single image has no batch on either
    /// side. `options` has stride, padding and dilation.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().arange(0, 6, 1).reshape([1, 1, 2, 3]);
    /// let columns = x.unfold([2, 2], ());
    /// assert_eq!(columns.dims(), [1, 4, 2]);
    /// assert_eq!(columns.to_vec::<i64>().await?, [0, 1, 1, 2, 3, 4, 4, 5]);
    /// assert_eq!(x.squeeze(0).unfold([2, 2], ()).dims(), [4, 2]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[doc(alias = "im2col")]
    #[track_caller]
    pub fn unfold(&self, kernel: impl Dims, options: impl Into<ConvOptions>) -> TensorFuture {
        let at: At = Location::caller();
        let _within = build::within("unfold", at);
        let alone = self.rank() == 3;
        let images = if alone { &self.unsqueeze(0) } else { self };
        let &[batch, channels, height, width] = images.dims() else {
            let text = format!(
                "an image with channels, or a batch of them, is needed, not {}",
                self.shape()
            );
            return build::refused("unfold", self, Refusal::shape(text), at);
        };
        let patches = match Patches::new([height, width], &kernel.dims(), &options.into()) {
            Ok(patches) => patches,
            Err(refusal) => return build::refused("unfold", self, refusal, at),
        };
        let all = patches.at_once("unfold", images, false).unwrap_or_else(|| {
            let [rows, columns] = patches.padding.map(|side| side.map(|n| n as isize));
            let padded = images.pad([columns[0], columns[1], rows[0], rows[1]], 0);
            let flat = padded.reshape([batch, channels, patches.area()]);
            flat.index_select(2, patches.places(&self.device()))
        });
        let rows = channels.saturating_mul(patches.elements());
        let all = all.reshape([batch, rows, patches.windows()]);
        if alone { all.squeeze(0) } else { all }
    }

    /// The sums of the columns of [`unfold`](Self::unfold) at their places in images of this size:
    /// PyTorch's `nn.functional.fold`. Without a batch they are a single image.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let columns = futensor::Device::cpu().ones([1, 4, 2]);
    /// let sums = columns.fold([2, 3], [2, 2], ());
    /// assert_eq!(sums.to_vec::<f32>().await?, [1.0, 2.0, 1.0, 1.0, 2.0, 1.0]);
    /// assert_eq!(columns.squeeze(0).fold([2, 3], [2, 2], ()).dims(), [1, 2, 3]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[doc(alias = "col2im")]
    #[track_caller]
    pub fn fold(
        &self,
        size: impl Dims,
        kernel: impl Dims,
        options: impl Into<ConvOptions>,
    ) -> TensorFuture {
        let at: At = Location::caller();
        let _within = build::within("fold", at);
        let alone = self.rank() == 2;
        let columns = if alone { &self.unsqueeze(0) } else { self };
        let refuse = |refusal| build::refused("fold", self, refusal, at);
        let patches = each("a size", &size.dims(), 2, 1, 1).and_then(|size| {
            Ok((
                [size[1], size[2]],
                Patches::new([size[1], size[2]], &kernel.dims(), &options.into())?,
            ))
        });
        let ([height, width], patches) = match patches {
            Ok(patches) => patches,
            Err(refusal) => return refuse(refusal),
        };
        let (elements, windows) = (patches.elements(), patches.windows());
        let &[batch, rows, count] = columns.dims() else {
            return refuse(Refusal::shape(format!("columns are needed, not {}", self.shape())));
        };
        if count != windows || !rows.is_multiple_of(elements) {
            let windows = number_of(windows, "window", "windows");
            let text = format!("columns of {} for {windows} of size {elements}", self.shape());
            return refuse(Refusal::shape(text));
        }
        let channels = rows / elements;
        let parts = columns.reshape([batch, channels, elements, windows]);
        if let Some(images) = patches.at_once("fold", &parts, true) {
            return if alone { images.squeeze(0) } else { images };
        }
        let [high, wide] = patches.padded;
        let source = columns.reshape([batch, channels, elements.saturating_mul(windows)]);
        let zeros = self.device().zeros_dtype([batch, channels, patches.area()], self.dtype());
        let sums = zeros.index_add(2, patches.places(&self.device()), source, 1);
        let sums = sums.reshape([batch, channels, high, wide]);
        let [rows, columns] = patches.padding;
        let images = sums.narrow(2, rows[0], height).narrow(3, columns[0], width);
        if alone { images.squeeze(0) } else { images }
    }

    /// Moves channels into space: `[.., channels * factor^2, height, width]` becomes
    /// `[.., channels, height * factor, width * factor]` (Shi et al. 2016, arXiv:1609.05158).
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().arange(0, 4, 1).reshape([4, 1, 1]);
    /// assert_eq!(x.pixel_shuffle(2).to_vec::<i64>().await?, [0, 1, 2, 3]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn pixel_shuffle(&self, factor: usize) -> TensorFuture {
        let at: At = Location::caller();
        let _within = build::within("pixel_shuffle", at);
        let square = factor.saturating_mul(factor);
        let &[ref lead @ .., channels, height, width] = self.dims() else {
            return self.no_image("pixel_shuffle", at);
        };
        if factor == 0 || !channels.is_multiple_of(square) {
            let channels = number_of(channels, "channel", "channels");
            let text = format!("{channels} by a factor of {factor}");
            return build::refused("pixel_shuffle", self, Refusal::shape(text), at);
        }
        let n = lead.len();
        let parts = [lead, &[channels / square, factor, factor, height, width]].concat();
        let order: Vec<usize> = (0..n).chain([0, 3, 1, 4, 2].map(|d| n + d)).collect();
        let by = |n: usize| n.saturating_mul(factor);
        let shape = [lead, &[channels / square, by(height), by(width)]].concat();
        self.reshape(parts).permute(order).reshape(shape)
    }

    /// Moves space into channels: the inverse of [`pixel_shuffle`](Self::pixel_shuffle).
    ///
    /// ```
    /// let x = futensor::Device::cpu().ones([2, 3, 8, 6]);
    /// assert_eq!(x.pixel_unshuffle(2).dims(), [2, 12, 4, 3]);
    /// ```
    #[track_caller]
    pub fn pixel_unshuffle(&self, factor: usize) -> TensorFuture {
        let at: At = Location::caller();
        let _within = build::within("pixel_unshuffle", at);
        let &[ref lead @ .., channels, height, width] = self.dims() else {
            return self.no_image("pixel_unshuffle", at);
        };
        if factor == 0 || !height.is_multiple_of(factor) || !width.is_multiple_of(factor) {
            let text = format!("{height} by {width} by a factor of {factor}");
            return build::refused("pixel_unshuffle", self, Refusal::shape(text), at);
        }
        let n = lead.len();
        let (rows, columns) = (height / factor, width / factor);
        let parts = [lead, &[channels, rows, factor, columns, factor]].concat();
        let order: Vec<usize> = (0..n).chain([0, 2, 4, 1, 3].map(|d| n + d)).collect();
        let wide = channels.saturating_mul(factor).saturating_mul(factor);
        self.reshape(parts).permute(order).reshape([lead, &[wide, rows, columns]].concat())
    }

    #[track_caller]
    fn no_image(&self, name: &'static str, at: At) -> TensorFuture {
        let text = format!("images with channels are needed, not {}", self.shape());
        build::refused(name, self, Refusal::shape(text), at)
    }

    /// The elements of images `[batch, channels, height, width]` at the points of a grid `[batch,
    /// rows, columns, 2]`, or of volumes with one more dimension and three numbers. A point is `(x,
    /// y)` or `(x, y, z)`; -1 and 1 are the ends. PyTorch's `grid_sample`, bilinear, bicubic or
    /// nearest.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let x = device.from_vec(vec![1.0f32, 2.0, 3.0, 4.0], [1, 1, 2, 2]);
    /// let middle = device.zeros([1, 1, 1, 2]);
    /// assert_eq!(x.grid_sample(&middle, ()).to_vec::<f32>().await?, [2.5]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn grid_sample(
        &self,
        grid: impl AsRef<TensorFuture>,
        options: impl Into<GridOptions>,
    ) -> TensorFuture {
        let (grid, options, at): (_, GridOptions, At) =
            (grid.as_ref(), options.into(), Location::caller());
        let refuse = |refusal| build::refused("grid_sample", self, refusal, at);
        if let Err(refusal) = float(self) {
            return refuse(refusal);
        }
        if self.dtype() != grid.dtype() {
            let text = format!("types differ: {} and {}", self.dtype(), grid.dtype());
            return refuse(Refusal::dtype(text));
        }
        let spatial = self.rank().wrapping_sub(2);
        let fits = (2..=3).contains(&spatial)
            && grid.rank() == self.rank()
            && grid.dims()[0] == self.dims()[0]
            && grid.dims()[spatial + 1] == spatial
            && !self.dims()[2..].contains(&0);
        if !fits {
            let text = format!("a grid of {} for {}", grid.shape(), self.shape());
            return refuse(Refusal::shape(text));
        }
        let _within = build::within("grid_sample", at);
        let (batch, channels) = (self.dims()[0], self.dims()[1]);
        if self.numel() == 0 || grid.numel() == 0 {
            let shape = [&[batch, channels][..], &grid.dims()[1..=spatial]].concat();
            return self.device().zeros_dtype(shape, self.dtype());
        }
        let sizes = &self.dims()[2..];
        let (x, points) = (self.wide(), grid.wide());
        let count: usize = grid.dims()[1..=spatial].iter().product();
        // Of each axis the point in elements: the last number of a point is the first axis.
        let place = |a: usize| {
            let p = points.index_dim(spatial + 1, (spatial - 1 - a).into());
            options.placed(&p.reshape([batch, count]), sizes[a])
        };
        let places: Vec<TensorFuture> = (0..spatial).map(place).collect();
        let mut taken = Taken { spatial, sizes: [1; 3], by: options.around() };
        taken.sizes[..spatial].copy_from_slice(sizes);
        let one = Sample { taken, flow: Flow::Samples };
        let mut all: Vec<&TensorFuture> = places.iter().collect();
        let samples = if x.port().runner.has_kernel(&one) {
            all.push(&x);
            build::custom(Arc::new(one), &all, at)
        } else {
            one.composed(&all, &x)
        };
        let shape = [&[batch, channels][..], &grid.dims()[1..=spatial]].concat();
        samples.reshape(shape).to_dtype(self.dtype())
    }
}

impl GridOptions {
    /// Points of an axis, from -1 to 1, in elements; those beyond the ends are moved as the padding
    /// says.
    #[track_caller]
    fn placed(&self, p: &TensorFuture, size: usize) -> TensorFuture {
        let n = size as f64;
        let place = match self.align_corners {
            true => (p + 1.0) / 2.0 * (n - 1.0),
            false => ((p + 1.0) * n - 1.0) / 2.0,
        };
        match (self.around(), self.padding) {
            // Of cubic weights each element is moved.
            (Around::Cubic(_), _) | (_, GridPadding::Zeros) => place,
            (_, GridPadding::Border) => place.clamp(0.0, n - 1.0),
            (_, GridPadding::Reflection) => mirrored(&place, size, self.align_corners),
        }
    }

    fn around(&self) -> Around {
        match (self.nearest, self.cubic) {
            (true, _) => Around::Nearest,
            (false, false) => Around::Linear,
            (false, true) => Around::Cubic(match self.padding {
                GridPadding::Zeros => Beyond::Zeros,
                GridPadding::Border => Beyond::Border,
                GridPadding::Reflection => Beyond::Mirrors { centres: self.align_corners },
            }),
        }
    }
}
