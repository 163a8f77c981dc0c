//! Transforms along several dimensions: one after the other.

use super::{Kind, Norm, of_values, sizes, transformed};
use crate::error::number_of;
use crate::graph::operation::Refusal;
use crate::tensor::build::{self, At};
use crate::tensor::device::Device;
use crate::tensor::dims::Dims;
use crate::tensor::future::TensorFuture;
use std::panic::Location;

/// # Fourier transforms along several dimensions
///
/// With the feature `fft`. `sizes` has the number of elements that is transformed for each of
/// `dims`; `()`, or -1, stands for those that are there. `dims` of `()` are the last ones that
/// `sizes` has numbers for; if that is `()` as well, they are all dimensions, or the last two.
///
/// Errors are those of a transform along one dimension, and an argument error for a dimension that
/// is named twice, or for more or fewer sizes than dimensions.
impl TensorFuture {
    /// The transform of complex values along two dimensions.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, fft::Norm};
    /// let x = Device::cpu().ones([4, 8, 2]);
    /// let y = x.fft2((), (), Norm::Backward);
    /// assert_eq!(y.i((0, 0)).to_vec::<f32>().await?, [32.0, 32.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn fft2(&self, sizes: impl Dims, dims: impl Dims, norm: Norm) -> TensorFuture {
        let along = Along::two(&sizes, &dims);
        along.transformed("fft2", [Kind::Forward; 2], self, norm, Location::caller())
    }

    /// The inverse of [`fft2`](Self::fft2).
    ///
    /// ```
    /// use futensor::{Device, fft::Norm};
    /// let x = Device::cpu().ones([3, 4, 8, 2]);
    /// assert_eq!(x.ifft2([6, -1], (), Norm::Backward).dims(), [3, 6, 8, 2]);
    /// ```
    #[track_caller]
    pub fn ifft2(&self, sizes: impl Dims, dims: impl Dims, norm: Norm) -> TensorFuture {
        let along = Along::two(&sizes, &dims);
        along.transformed("ifft2", [Kind::Inverse; 2], self, norm, Location::caller())
    }

    /// The transform of complex values along several dimensions, or all of them.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, fft::Norm};
    /// let x = Device::cpu().ones([2, 2, 2, 2]);
    /// let y = x.fftn((), (), Norm::Ortho);
    /// assert!((y.i((0, 0, 0, 0)).item::<f32>().await? - 8f32.sqrt()).abs() < 1e-6);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn fftn(&self, sizes: impl Dims, dims: impl Dims, norm: Norm) -> TensorFuture {
        let along = Along::all(&sizes, &dims);
        along.transformed("fftn", [Kind::Forward; 2], self, norm, Location::caller())
    }

    /// The inverse of [`fftn`](Self::fftn).
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, fft::Norm};
    /// let x = Device::cpu().arange(0., 24., 1.).reshape([3, 4, 2]);
    /// let y = x.fftn((), (), Norm::Backward).ifftn((), (), Norm::Backward);
    /// assert!((y - x).abs().max_all().item::<f32>().await? < 1e-5);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn ifftn(&self, sizes: impl Dims, dims: impl Dims, norm: Norm) -> TensorFuture {
        let along = Along::all(&sizes, &dims);
        along.transformed("ifftn", [Kind::Inverse; 2], self, norm, Location::caller())
    }

    /// The transform of real values along two dimensions: `n / 2 + 1` complex values along the last
    /// of them, as by [`rfft`](Self::rfft).
    ///
    /// ```
    /// use futensor::{Device, fft::Norm};
    /// let x = Device::cpu().ones([4, 8]);
    /// assert_eq!(x.rfft2((), (), Norm::Backward).dims(), [4, 5, 2]);
    /// ```
    #[track_caller]
    pub fn rfft2(&self, sizes: impl Dims, dims: impl Dims, norm: Norm) -> TensorFuture {
        let along = Along::two(&sizes, &dims);
        along.transformed("rfft2", [Kind::ToBins, Kind::Forward], self, norm, Location::caller())
    }

    /// The inverse of [`rfft2`](Self::rfft2). Along the last dimension `n` is by default even, as
    /// by [`irfft`](Self::irfft).
    ///
    /// ```
    /// use futensor::{Device, fft::Norm};
    /// let x = Device::cpu().ones([4, 5, 2]);
    /// assert_eq!(x.irfft2((), (), Norm::Backward).dims(), [4, 8]);
    /// assert_eq!(x.irfft2([4, 9], (), Norm::Backward).dims(), [4, 9]);
    /// ```
    #[track_caller]
    pub fn irfft2(&self, sizes: impl Dims, dims: impl Dims, norm: Norm) -> TensorFuture {
        let along = Along::two(&sizes, &dims);
        along.transformed("irfft2", [Kind::FromBins, Kind::Inverse], self, norm, Location::caller())
    }

    /// [`rfft2`](Self::rfft2) along several dimensions, or all of them.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, fft::Norm};
    /// let x = Device::cpu().ones([2, 3, 4]);
    /// let y = x.rfftn((), [0, 2], Norm::Backward);
    /// assert_eq!(y.dims(), [2, 3, 3, 2]);
    /// assert_eq!(y.i((0, 1, 0)).to_vec::<f32>().await?, [8.0, 0.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn rfftn(&self, sizes: impl Dims, dims: impl Dims, norm: Norm) -> TensorFuture {
        let along = Along::all(&sizes, &dims);
        along.transformed("rfftn", [Kind::ToBins, Kind::Forward], self, norm, Location::caller())
    }

    /// [`irfft2`](Self::irfft2) along several dimensions, or all of them.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, fft::Norm};
    /// let x = Device::cpu().arange(0., 30., 1.).reshape([2, 3, 5]);
    /// let y = x.rfftn((), (), Norm::Ortho).irfftn([2, 3, 5], (), Norm::Ortho);
    /// assert!((y - x).abs().max_all().item::<f32>().await? < 1e-5);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn irfftn(&self, sizes: impl Dims, dims: impl Dims, norm: Norm) -> TensorFuture {
        let along = Along::all(&sizes, &dims);
        along.transformed("irfftn", [Kind::FromBins, Kind::Inverse], self, norm, Location::caller())
    }
}

/// Refuses more or fewer sizes than dimensions.
fn more(sizes: usize, dims: usize) -> Refusal {
    let sizes = number_of(sizes, "size", "sizes");
    Refusal::argument(format!("{sizes} for {}", number_of(dims, "dimension", "dimensions")))
}

/// Dimensions as a caller names them, and how many elements to transform.
struct Along {
    sizes: Vec<isize>,
    dims: Option<Vec<isize>>,
}

impl Along {
    fn two(sizes: &impl Dims, dims: &impl Dims) -> Along {
        let along = Along::all(sizes, dims);
        Along { dims: along.dims.or(Some(vec![-2, -1])), ..along }
    }

    fn all(sizes: &impl Dims, dims: &impl Dims) -> Along {
        let dims = dims.dims().to_vec();
        Along { sizes: sizes.dims().to_vec(), dims: Some(dims).filter(|dims| !dims.is_empty()) }
    }

    /// The dimensions, counted from the first, and the elements of a transform along each.
    fn named(
        &self,
        [last, rest]: [Kind; 2],
        x: &TensorFuture,
    ) -> Result<Vec<(isize, usize)>, Refusal> {
        let (rank, given) = (of_values(last, x)?.rank(), self.sizes.len());
        let dims = match &self.dims {
            Some(dims) => dims.clone(),
            None if given > rank => {
                return Err(more(given, rank));
            }
            None => (if given > 0 { rank - given } else { 0 }..rank).map(|d| d as isize).collect(),
        };
        if given > 0 && given != dims.len() {
            return Err(more(given, dims.len()));
        }
        if dims.is_empty() && last != rest {
            return Err(Refusal::argument("a transform along no dimension"));
        }
        let mut all: Vec<(isize, usize)> = Vec::new();
        for (k, &dim) in dims.iter().enumerate() {
            // What real values have along the other dimensions is as many as they have now.
            let is_last = k + 1 == dims.len() || !last.takes_complex();
            let n = match self.sizes.get(k) {
                None | Some(-1) => None,
                Some(&n) => Some(usize::try_from(n).unwrap_or(0)),
            };
            let (d, n) = sizes(if is_last { last } else { rest }, x, n, dim)?;
            if all.iter().any(|&(other, _)| other == d) {
                return Err(Refusal::argument(format!("dimension {dim} is named twice")));
            }
            all.push((d, n));
        }
        Ok(all)
    }

    /// The transform of one kind along the last dimension, and of another along the rest of them.
    #[track_caller]
    fn transformed(
        &self,
        name: &'static str,
        kinds: [Kind; 2],
        x: &TensorFuture,
        norm: Norm,
        at: At,
    ) -> TensorFuture {
        let _within = build::within(name, at);
        let all = match self.named(kinds, x) {
            Ok(all) => all,
            Err(refusal) => return build::refused(name, x, refusal, at),
        };
        let Some((last, rest)) = all.split_last() else { return x.clone() };
        // A value of a GPU goes to the host and back once.
        let stays = x.port().profile.in_memory || x.error().is_some();
        let here = if stays { x.clone() } else { x.to_device(&Device::cpu()) };
        let one = |kind: Kind, x: &TensorFuture, &(dim, n): &(isize, usize)| {
            transformed(name, kind, x, Some(n), dim, norm, at)
        };
        let [of_last, of_rest] = kinds;
        let others = |x: TensorFuture| rest.iter().fold(x, |x, along| one(of_rest, &x, along));
        // What is complex on one side only is so beside the rest.
        let y = match of_last {
            Kind::FromBins => one(of_last, &others(here), last),
            Kind::Forward | Kind::Inverse | Kind::ToBins => others(one(of_last, &here, last)),
        };
        if stays { y } else { y.to_device(&x.device()) }
    }
}
