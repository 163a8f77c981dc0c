//! Pooling to a given size: each output position takes an interval of its own, one axis after the
//! other. `interpolate` by areas, and without aliasing, works the same way.

use super::conv::{Sizes, each};
use crate::error::number_of;
use crate::graph::operation::Refusal;
use crate::ops::windows::adaptive::AdaptiveMax;
use crate::ops::windows::resample::{By, Intervals, Resample};
use crate::tensor::build::{self, At};
use crate::tensor::dims::Dims;
use crate::tensor::future::TensorFuture;
use crate::tensor::methods::reduce::stats::float;
use crate::window::{Cells, triple};
use std::ops::Range;
use std::panic::Location;
use std::sync::Arc;

impl Intervals {
    /// Intervals that cover an axis of `input` elements evenly: of one weight each.
    fn even(input: usize, output: usize) -> Intervals {
        let all: Vec<Range<usize>> =
            (0..output).map(|i| Cells::interval(input, output, i)).collect();
        let weights = all.iter().map(|of| vec![1.0 / of.len() as f64; of.len()]).collect();
        Intervals { first: all.iter().map(|of| of.start).collect(), weights }
    }

    /// The elements of each interval along a dimension, `[.., output, most, ..]`, and for each
    /// whether it is one of the interval, and its weight: `[output, most, 1, ..]`.
    #[track_caller]
    fn taken(&self, x: &TensorFuture, dim: usize) -> [TensorFuture; 3] {
        let (n, output) = (x.dims()[dim], self.first.len());
        let most = self.weights.iter().map(Vec::len).max().unwrap_or(1).max(1);
        let (mut places, mut weights) = (Vec::new(), Vec::new());
        for (&first, own) in self.first.iter().zip(&self.weights) {
            for k in 0..most {
                places.push((first + k).min(n - 1) as i64);
                weights.push(own.get(k).copied().unwrap_or(0.0));
            }
        }
        let device = x.device();
        let mut shape = vec![1; x.rank() + 1 - dim];
        (shape[0], shape[1]) = (output, most);
        let counts: Vec<bool> =
            self.weights.iter().flat_map(|own| (0..most).map(|k| k < own.len())).collect();
        let places = device.from_vec(places, [output * most]);
        let all = x.index_select(dim as isize, places).unflatten(dim as isize, [output, most]);
        let weights = device.from_vec(weights, &shape[..]).to_dtype(x.dtype().wide());
        [all, device.from_vec(counts, &shape[..]), weights]
    }

    /// The weighed sums of the intervals along a dimension: one op on a host.
    #[track_caller]
    pub(super) fn sums(self, x: &TensorFuture, dim: usize) -> TensorFuture {
        let (input, output, all) = (x.dims()[dim], self.first.len(), Arc::new(self));
        let (name, by) = (build::named("interpolate"), By::Intervals(all.clone()));
        let one = Resample { name, dim, input, output, by, back: false };
        if input.max(output) <= i32::MAX as usize && x.port().runner.has_kernel(&one) {
            return build::custom(Arc::new(one), &[x], Location::caller());
        }
        let [all, counts, weights] = all.taken(x, dim);
        (counts.where_cond(all, 0.0) * weights).sum(dim as isize + 1)
    }
}

/// The mean of the area that each output position covers, over the dimensions from `first` on.
#[track_caller]
pub(super) fn areas(x: &TensorFuture, first: usize, sizes: &[usize]) -> TensorFuture {
    let axes = sizes.iter().enumerate();
    axes.fold(x.clone(), |x, (i, &size)| means(&x, first + i, size))
}

/// The means of as many intervals of an axis.
#[track_caller]
fn means(x: &TensorFuture, dim: usize, output: usize) -> TensorFuture {
    let input = x.dims()[dim];
    if input == output {
        return x.clone();
    }
    if input.is_multiple_of(output) {
        let parts = x.unflatten(dim as isize, [output, input / output]);
        return parts.mean(dim as isize + 1);
    }
    Intervals::even(input, output).sums(x, dim)
}

/// What is made of the elements of a cell.
#[derive(Clone, Copy, PartialEq)]
enum Of {
    Mean,
    Largest,
}

/// Pooling to a given size.
impl TensorFuture {
    /// The mean of as many intervals along the last dimension as `size` says, which cover it
    /// evenly.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().from_vec(vec![1.0f32, 2.0, 6.0], [1, 3]);
    /// assert_eq!(x.adaptive_avg_pool1d(2).to_vec::<f32>().await?, [1.5, 4.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn adaptive_avg_pool1d(&self, size: impl Dims) -> TensorFuture {
        self.adapted("adaptive_avg_pool1d", 1, size.dims(), Of::Mean, Location::caller())
    }

    /// The mean of rectangles that cover the last two dimensions evenly; `size` is one number, or
    /// one for each dimension.
    ///
    /// ```
    /// let x = futensor::Device::cpu().ones([1, 3, 7, 9]);
    /// assert_eq!(x.adaptive_avg_pool2d([2, 1]).dims(), [1, 3, 2, 1]);
    /// ```
    #[track_caller]
    pub fn adaptive_avg_pool2d(&self, size: impl Dims) -> TensorFuture {
        self.adapted("adaptive_avg_pool2d", 2, size.dims(), Of::Mean, Location::caller())
    }

    /// As [`adaptive_avg_pool2d`](Self::adaptive_avg_pool2d), over three dimensions.
    #[track_caller]
    pub fn adaptive_avg_pool3d(&self, size: impl Dims) -> TensorFuture {
        self.adapted("adaptive_avg_pool3d", 3, size.dims(), Of::Mean, Location::caller())
    }

    /// The largest element of as many intervals along the last dimension as `size` says, which
    /// cover it evenly.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().from_vec(vec![1.0f32, 2.0, 6.0], [1, 3]);
    /// assert_eq!(x.adaptive_max_pool1d(2).to_vec::<f32>().await?, [2.0, 6.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn adaptive_max_pool1d(&self, size: impl Dims) -> TensorFuture {
        self.adapted("adaptive_max_pool1d", 1, size.dims(), Of::Largest, Location::caller())
    }

    /// The largest element of rectangles that cover the last two dimensions evenly.
    #[track_caller]
    pub fn adaptive_max_pool2d(&self, size: impl Dims) -> TensorFuture {
        self.adapted("adaptive_max_pool2d", 2, size.dims(), Of::Largest, Location::caller())
    }

    /// As [`adaptive_max_pool2d`](Self::adaptive_max_pool2d), over three dimensions.
    #[track_caller]
    pub fn adaptive_max_pool3d(&self, size: impl Dims) -> TensorFuture {
        self.adapted("adaptive_max_pool3d", 3, size.dims(), Of::Largest, Location::caller())
    }
}

impl TensorFuture {
    #[track_caller]
    fn adapted(
        &self,
        name: &'static str,
        spatial: usize,
        size: Sizes,
        of: Of,
        at: At,
    ) -> TensorFuture {
        let checked = float(self).and_then(|()| {
            let lead = self.rank().wrapping_sub(spatial);
            let few = self.dims().get(lead..).unwrap_or(&[]);
            if !(1..=2).contains(&lead) || few.contains(&0) {
                let dimensions = number_of(spatial, "dimension", "dimensions");
                let text = format!(
                    "{dimensions} with elements, behind channels and perhaps a batch, are needed, \
                     not {}",
                    self.shape()
                );
                return Err(Refusal::shape(text));
            }
            Ok(each("a size", &size, spatial, 1, 1)?[3 - spatial..].to_vec())
        });
        let sizes = match checked {
            Ok(sizes) => sizes,
            Err(refusal) => return build::refused(name, self, refusal, at),
        };
        let _within = build::within(name, at);
        let first = self.rank() - spatial;
        if self.numel() == 0 {
            let shape = [&self.dims()[..first], &sizes].concat();
            return self.reshape(shape);
        }
        if self.dims()[first..] == sizes {
            return self.clone();
        }
        match of {
            Of::Mean => self.rounded_once(|x| areas(x, first, &sizes)),
            Of::Largest => {
                let input = triple(&self.dims()[first..], 1);
                let cells = Cells { spatial, input, output: triple(&sizes, 1) };
                let largest = AdaptiveMax { name, cells, position: false };
                build::custom(Arc::new(largest), &[self], at)
            }
        }
    }
}
