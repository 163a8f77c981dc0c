//! Picking whose result has a shape that depends on data.

use crate::dtype::DType;
use crate::graph::operation::Refusal;
use crate::shape::Shape;
use crate::tensor::build::{self, At};
use crate::tensor::future::TensorFuture;
use crate::tensor::later::Later;
use crate::view::{Parallel, View};
use std::panic::Location;

/// # Data-dependent shapes
///
/// The shape of these results depends on data, so each is a future of values: it ends when the
/// shape is known. Gradients flow back to the elements that were picked. A
/// [region](crate::region::Region) refuses them.
impl TensorFuture {
    /// The elements at which `mask` (bool) is true, as a vector; both are broadcast.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().arange(0, 4, 1);
    /// assert_eq!(x.masked_select(x.gt(1)).await?.to_vec::<i64>().await?, [2, 3]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// A type error if `mask` is not bool; a shape error if the shapes do not broadcast.
    #[doc(alias = "boolean_mask")]
    #[track_caller]
    pub fn masked_select(&self, mask: impl AsRef<TensorFuture>) -> Later {
        let (mask, at): (_, At) = (mask.as_ref(), Location::caller());
        let refusal = match self.shape().broadcast(mask.shape()) {
            _ if mask.dtype() != DType::Bool => not_bool(mask),
            None => {
                let (own, other) = (self.shape(), mask.shape());
                Refusal::shape(format!("cannot broadcast {own} with {other}"))
            }
            Some(shape) => {
                let _within = build::within("masked_select", at);
                let (x, mask) = (self.expand(shape.dims()), mask.expand(shape.dims()));
                let pick = move |places| x.reshape(-1).index_select(0, places);
                return Later::at_true("masked_select", &mask, at, pick);
            }
        };
        Later::refused("masked_select", self, refusal, at)
    }

    /// The parts of the value at which `mask` (bool) is true: PyTorch's `x[mask]`. The mask has the
    /// first dimensions of the value; one dimension of the result replaces them.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let x = device.arange(0, 6, 1).reshape([3, 2]);
    /// let rows = x.index_mask(device.from_vec(vec![true, false, true], [3])).await?;
    /// assert_eq!((rows.dims(), rows.to_vec::<i64>().await?), (&[2, 2][..], vec![0, 1, 4, 5]));
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// A type error if `mask` is not bool; a shape error if it does not have the first dimensions
    /// of the value.
    #[track_caller]
    pub fn index_mask(&self, mask: impl AsRef<TensorFuture>) -> Later {
        let (mask, at): (_, At) = (mask.as_ref(), Location::caller());
        let refusal = if mask.dtype() != DType::Bool {
            not_bool(mask)
        } else if !self.dims().starts_with(mask.dims()) {
            Refusal::shape(format!("a mask of {} for {}", mask.shape(), self.shape()))
        } else {
            let _within = build::within("index_mask", at);
            let behind = &self.dims()[mask.rank()..];
            let rows = self.reshape([&[mask.numel()], behind].concat());
            let pick = move |places| rows.index_select(0, places);
            return Later::at_true("index_mask", mask, at, pick);
        };
        Later::refused("index_mask", self, refusal, at)
    }

    /// The different elements in ascending order; for each element of this value the position of
    /// its equal among them, in the shape of this value; and how often each occurs. Each NaN is
    /// different from the others.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().from_vec(vec![3, 1, 3, 2], [2, 2]);
    /// let (values, inverse, counts) = x.unique().await?;
    /// assert_eq!(values.to_vec::<i32>().await?, [1, 2, 3]);
    /// assert_eq!(inverse.to_vec::<i64>().await?, [2, 0, 2, 1]);
    /// assert_eq!(counts.to_vec::<i64>().await?, [1, 1, 2]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn unique(&self) -> Later<(TensorFuture, TensorFuture, TensorFuture)> {
        let at: At = Location::caller();
        let _within = build::within("unique", at);
        let (flat, n, dims) =
            (self.stop_gradient().reshape(-1), self.numel(), self.dims().to_vec());
        let order = flat.argsort(0, false);
        let sorted = flat.index_select(0, &order);
        // The first element is different from what is before it.
        let before = sorted.roll(1, 0);
        let is_first = sorted.device().arange(0, n as i64, 1).eq(0);
        let is_new = sorted.ne(before).logical_or(is_first);
        let ranks = is_new.to_dtype(DType::I64).cumsum(0) - 1;
        Later::at_true("unique", &is_new, at, move |starts| {
            let (device, k) = (starts.device(), starts.numel());
            let inverse = device.zeros_dtype([n], DType::I64).scatter(0, &order, &ranks);
            let end = device.full([1], n as i64);
            let ends = crate::cat(&[&starts, &end], 0).narrow(0, 1, k);
            (sorted.index_select(0, &starts), inverse.reshape(dims), ends - starts)
        })
    }

    /// How often each number from 0 on occurs in this vector of integers, or the sums of `weights`
    /// at each number; `length` numbers at least. Counts are int64.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().from_vec(vec![3i64, 1, 3], [3]);
    /// assert_eq!(x.bincount(None, 0).await?.to_vec::<i64>().await?, [0, 1, 0, 2]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// A type error for floats and bool; a shape error if this is no vector, or if `weights` has
    /// another shape; an argument error for negative numbers.
    #[track_caller]
    pub fn bincount(&self, weights: Option<&TensorFuture>, length: usize) -> Later {
        let at: At = Location::caller();
        let refusal = if !self.dtype().is_int() {
            Refusal::dtype(format!("integers are counted, not {}", self.dtype()))
        } else if self.rank() != 1 {
            Refusal::shape(format!("a vector is counted, not {}", self.shape()))
        } else if let Some(w) = weights.filter(|w| w.shape() != self.shape()) {
            Refusal::shape(format!("weights of {} for {}", w.shape(), self.shape()))
        } else {
            let _within = build::within("bincount", at);
            let weights = match weights {
                None => self.device().full_dtype((), 1, DType::I64).expand(self.dims()),
                Some(w) if w.dtype().is_float() => w.clone(),
                Some(w) => w.to_dtype(DType::F64),
            };
            let x = self.to_dtype(DType::I64);
            let look = |view: View<'_>, _: &dyn Parallel| match largest(&whole(view)?) {
                Ok(n) => Ok(n),
                Err(x) => Err(Refusal::argument(format!("{x} is negative"))),
            };
            let ends = [x.max_initial_all(-1), x.min_initial_all(0)];
            return Later::after("bincount", &crate::stack(&ends, 0), at, look, move |n| {
                let nothing = x.device().zeros_dtype([n.max(length)], weights.dtype());
                nothing.scatter_add(0, &x, &weights)
            });
        };
        Later::refused("bincount", self, refusal, at)
    }

    /// Repeats each slice along `dim` as often as the vector of integers `times` says for it; one
    /// number counts for all. See [`repeat_interleave`](Self::repeat_interleave).
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let (x, times) = (device.arange(0, 3, 1), device.from_vec(vec![2i64, 0, 1], [3]));
    /// assert_eq!(x.repeat_interleave_by(times, 0).await?.to_vec::<i64>().await?, [0, 0, 2]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// A shape error if there is not a number for each slice; an argument error for negative
    /// numbers.
    #[track_caller]
    pub fn repeat_interleave_by(&self, times: impl AsRef<TensorFuture>, dim: isize) -> Later {
        const NAME: &str = "repeat_interleave_by";
        let (times, at): (_, At) = (times.as_ref(), Location::caller());
        let refusal = match self.shape().dim(dim).map(|d| self.dims()[d]) {
            None => build::dim_refusal(dim, self.shape()),
            Some(_) if !times.dtype().is_int() => {
                Refusal::dtype(format!("numbers of times are integers, not {}", times.dtype()))
            }
            Some(n) if times.numel() != 1 && times.dims() != [n] => {
                Refusal::shape(format!("{} numbers for {n} slices", times.shape()))
            }
            Some(n) => {
                let _within = build::within(NAME, at);
                let times = times.to_dtype(DType::I64).reshape(-1).expand([n]);
                let x = self.clone();
                let look = |view: View<'_>, _: &dyn Parallel| repeated(&whole(view)?);
                return Later::after(NAME, &times, at, look, move |places| {
                    let n = Shape::from(places.len());
                    x.index_select(dim, x.device().handed(NAME, places, n, at))
                });
            }
        };
        Later::refused(NAME, self, refusal, at)
    }
}

fn not_bool(mask: &TensorFuture) -> Refusal {
    Refusal::dtype(format!("a mask is bool, not {}", mask.dtype()))
}

fn whole(view: View<'_>) -> Result<Vec<i64>, Refusal> {
    view.to_vec::<i64>().ok_or_else(|| Refusal::dtype("int64 only"))
}

/// How many numbers there are from 0 to the largest; or a negative one.
fn largest(ends: &[i64]) -> Result<usize, i64> {
    match *ends {
        [_, least] if least < 0 => Err(least),
        [most, _] => Ok((most.saturating_add(1)) as usize),
        _ => Ok(0),
    }
}

/// Each position as often as it is to be repeated.
fn repeated(times: &[i64]) -> Result<Vec<i64>, Refusal> {
    if let Some(wrong) = times.iter().find(|&&n| n < 0) {
        return Err(Refusal::argument(format!("cannot repeat {wrong} times")));
    }
    let total = times.iter().fold(0usize, |sum, &n| sum.saturating_add(n as usize));
    let mut places = Vec::new();
    places.try_reserve_exact(total).map_err(|_| Refusal {
        kind: crate::error::ErrorKind::OutOfMemory,
        message: format!("out of memory on the host: {total} positions"),
    })?;
    for (place, &n) in times.iter().enumerate() {
        places.extend(std::iter::repeat_n(place as i64, n as usize));
    }
    Ok(places)
}
