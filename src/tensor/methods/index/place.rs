//! Putting elements at indices, and finding where they belong.

use crate::dtype::{DType, Scalar};
use crate::graph::operation::Refusal;
use crate::op::ScatterMode;
use crate::tensor::build::{self, At};
use crate::tensor::future::TensorFuture;
use crate::tensor::methods::reduce::stats::float;
use std::panic::Location;

/// How [`scatter_reduce`](TensorFuture::scatter_reduce) combines elements: a [`ScatterMode`], or a
/// mean, with or without the element that is there.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, ScatterMode, op_options::ScatterOptions};
/// let device = Device::cpu();
/// let (x, index) = (device.full([2], 9.0), device.from_vec(vec![0i64, 0], [2]));
/// let source = device.from_vec(vec![1.0f32, 2.0], [2]);
/// let mean = ScatterOptions::mean();
/// assert_eq!(x.scatter_reduce(0, &index, &source, mean).to_vec::<f32>().await?, [4.0, 9.0]);
/// let alone = ScatterOptions::from(ScatterMode::Max).include_self(false);
/// assert_eq!(x.scatter_reduce(0, &index, &source, alone).to_vec::<f32>().await?, [2.0, 9.0]);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScatterOptions {
    /// `None` for a mean.
    mode: Option<ScatterMode>,
    own: bool,
}

impl From<ScatterMode> for ScatterOptions {
    fn from(mode: ScatterMode) -> ScatterOptions {
        ScatterOptions { mode: Some(mode), own: true }
    }
}

impl ScatterOptions {
    /// The mean; of integers it is rounded down.
    pub fn mean() -> ScatterOptions {
        ScatterOptions { mode: None, own: true }
    }

    /// Whether the element that is there takes part (it does by default), or is only a place for
    /// the new ones. Elements without new ones stay as they are.
    pub fn include_self(mut self, include: bool) -> ScatterOptions {
        self.own = include;
        self
    }
}

/// The number that a reduction starts from.
fn nothing(mode: Option<ScatterMode>, dtype: DType) -> Scalar {
    let ends = match dtype {
        DType::I64 => (i64::MIN, i64::MAX),
        DType::I32 => (i32::MIN as i64, i32::MAX as i64),
        DType::U8 => (0, 255),
        DType::Bool => (0, 1),
        _ if mode == Some(ScatterMode::Max) => return Scalar::Float(f64::NEG_INFINITY),
        _ if mode == Some(ScatterMode::Min) => return Scalar::Float(f64::INFINITY),
        _ => (0, 0),
    };
    Scalar::Int(match mode {
        Some(ScatterMode::Prod) => 1,
        Some(ScatterMode::Max) => ends.0,
        Some(ScatterMode::Min) => ends.1,
        Some(ScatterMode::Assign | ScatterMode::Sum) | None => 0,
    })
}

/// Putting, and finding.
impl TensorFuture {
    /// Combines the elements of `source` with the elements at `index` along `dim` (by sum, product,
    /// mean, maximum, ...), in the order of the indices. `options` is a
    /// [`ScatterMode`](crate::ScatterMode), or
    /// [`ScatterOptions`](crate::op_options::ScatterOptions).
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::ScatterMode;
    /// let device = futensor::Device::cpu();
    /// let index = device.from_vec(vec![1i64, 1, 0], [3]);
    /// let source = device.from_vec(vec![4.0f32, 7.0, 1.0], [3]);
    /// let x = device.full([2], 3.0);
    /// assert_eq!(x.scatter_reduce(0, &index, &source, ScatterMode::Max).to_vec::<f32>().await?,
    ///     [3.0, 7.0]);
    /// assert_eq!(x.scatter_reduce(0, &index, &source, ScatterMode::Prod).to_vec::<f32>().await?,
    ///     [3.0, 84.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// The value fails if an index is out of range, if the ranks of the three operands differ, if
    /// `index` is larger than `source`, or larger than this value in a dimension other than `dim`,
    /// or if the types of this value and `source` differ.
    #[track_caller]
    pub fn scatter_reduce(
        &self,
        dim: isize,
        index: impl AsRef<TensorFuture>,
        source: impl AsRef<TensorFuture>,
        options: impl Into<ScatterOptions>,
    ) -> TensorFuture {
        let (index, source, options) = (index.as_ref(), source.as_ref(), options.into());
        let _within = build::within("scatter_reduce", Location::caller());
        if let ScatterOptions { mode: Some(mode), own: true } = options {
            return self.scattered_by(dim, index, source, mode);
        }
        if self.dtype() != source.dtype() {
            // Refused there; a mean would convert them first.
            return self.scattered_by(dim, index, source, ScatterMode::Prod);
        }
        let full =
            |number: Scalar, dtype: DType| self.device().full_dtype(index.dims(), number, dtype);
        let base = match options.own {
            true => self.clone(),
            false => {
                self.scatter(dim, index, full(nothing(options.mode, self.dtype()), self.dtype()))
            }
        };
        if let Some(mode) = options.mode {
            return base.scattered_by(dim, index, source, mode);
        }
        let (base, source) = (base.wide(), source.wide());
        let own = self.device().full_dtype(self.dims(), options.own as i64, base.dtype());
        let ones = full(Scalar::Int(1), base.dtype());
        let count = own.scatter_add(dim, index, ones).clamp_min(1);
        let sum = base.scatter_add(dim, index, source);
        match self.dtype().is_float() {
            true => sum.div(count).to_dtype(self.dtype()),
            false => sum.floor_divide(count),
        }
    }

    /// Adds `alpha` times the slices of `source` to those along `dim` that a vector of indices
    /// names, in the order of the indices: `out[index[j]] += alpha * source[j]` for `dim` 0.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let index = device.from_vec(vec![2i64, 0, 2], [3]);
    /// let sums = device.zeros([3]).index_add(0, &index, device.ones([3]), 2);
    /// assert_eq!(sums.to_vec::<f32>().await?, [2.0, 0.0, 4.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn index_add(
        &self,
        dim: isize,
        index: impl AsRef<TensorFuture>,
        source: impl AsRef<TensorFuture>,
        alpha: impl Into<Scalar>,
    ) -> TensorFuture {
        self.slices_added(dim, index.as_ref(), source.as_ref(), alpha.into(), false)
    }

    /// [`index_add`](Self::index_add), where negative indices may count `from_end`.
    #[track_caller]
    fn slices_added(
        &self,
        dim: isize,
        index: &TensorFuture,
        source: &TensorFuture,
        alpha: Scalar,
        from_end: bool,
    ) -> TensorFuture {
        let at: At = Location::caller();
        let _within = build::within("index_add", at);
        let refuse = |refusal| build::refused("index_add", self, refusal, at);
        if source.rank() == 0 && build::is_row_of_one(self, dim) {
            let (one, source) = (self.reshape(1), source.reshape(1));
            return one.slices_added(0, index, &source, alpha, from_end).reshape(());
        }
        let Some(d) = self.shape().dim(dim) else {
            return refuse(build::dim_refusal(dim, self.shape()));
        };
        let mut wanted = self.dims().to_vec();
        wanted[d] = index.numel();
        if index.rank() > 1 || source.dims() != wanted {
            let text = format!(
                "slices of {} at indices of {} in {}",
                source.shape(),
                index.shape(),
                self.shape()
            );
            return refuse(Refusal::shape(text));
        }
        if self.dtype() != source.dtype() {
            let text = format!("types differ: {} and {}", self.dtype(), source.dtype());
            return refuse(Refusal::dtype(text));
        }
        let mut along = vec![1; self.rank()];
        along[d] = index.numel();
        let places = index.reshape(along).expand(source.dims());
        if alpha.as_f64() == 1.0 {
            return self.scatter_added(dim, &places, source, from_end);
        }
        if !self.dtype().is_float() && matches!(alpha, Scalar::Float(x) if x.fract() != 0.0) {
            let text = format!("a factor of {alpha} beside {}", self.dtype());
            return refuse(Refusal::argument(text));
        }
        let alpha = if self.dtype().is_float() { alpha } else { Scalar::Int(alpha.as_i64()) };
        let source = source.wide() * alpha;
        self.wide().scatter_added(dim, &places, &source, from_end).to_dtype(self.dtype())
    }

    /// Sets the slices along `dim` that a vector of indices names to a number. Takes `self` by
    /// value, as [`index_copy`](Self::index_copy).
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let index = device.from_vec(vec![2i64, 0], [2]);
    /// assert_eq!(device.zeros([3]).index_fill(0, &index, 5).to_vec::<f32>().await?,
    ///     [5.0, 0.0, 5.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn index_fill(
        self,
        dim: isize,
        index: impl AsRef<TensorFuture>,
        value: impl Into<Scalar>,
    ) -> TensorFuture {
        let (index, at): (_, At) = (index.as_ref(), Location::caller());
        let _within = build::within("index_fill", at);
        let mut shape = self.shape().clone();
        if let Some(d) = shape.dim(dim) {
            shape.dims_mut()[d] = index.numel();
        }
        let fill = self.device().full_dtype((), value, self.dtype());
        self.slices_copied(dim, index, fill.expand(shape.dims()), true)
    }

    /// Puts `values` where the tensors of `indices` say, as [`index`](Self::index) picks them:
    /// PyTorch's `x[i, :, j] = values`. The values are broadcast. They are added to the elements if
    /// `accumulate` is true, in the order of the indices; otherwise the last of several wins.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let i = device.from_vec(vec![0i64, 1, 0], [3]);
    /// let x = device.zeros([2]).index_put(&[Some(&i)], device.ones([3]), true);
    /// assert_eq!(x.to_vec::<f32>().await?, [2.0, 1.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn index_put(
        &self,
        indices: &[Option<&TensorFuture>],
        values: impl AsRef<TensorFuture>,
        accumulate: bool,
    ) -> TensorFuture {
        let (values, at): (_, At) = (values.as_ref(), Location::caller());
        let _within = build::within("index_put", at);
        let refuse = |refusal| build::refused("index_put", self, refusal, at);
        let named = match self.named_places(indices) {
            Ok(Some(named)) => named,
            Ok(None) => return refuse(Refusal::argument("no dimension has an index")),
            Err(refusal) => return refuse(refusal),
        };
        if self.dtype() != values.dtype() {
            let text = format!("types differ: {} and {}", self.dtype(), values.dtype());
            return refuse(Refusal::dtype(text));
        }
        let (permuted, lead) = (self.permute(&named.order[..]), named.lead as isize);
        let mut parts = named.merged.clone();
        parts[named.lead] = named.flat.numel();
        let source = values.expand(&named.out[..]).reshape(&parts[..]);
        let rows = permuted.reshape(&named.merged[..]);
        let put = match accumulate {
            true => rows.slices_added(lead, &named.flat, &source, 1.into(), true),
            false => rows.slices_copied(lead, &named.flat, source, true),
        };
        let mut back = vec![0; self.rank()];
        named.order.iter().enumerate().for_each(|(to, &from)| back[from] = to);
        put.reshape(permuted.dims()).permute(back)
    }

    /// For each value the first position in this ascending row (the last dimension) at which it
    /// could stand, as int64; behind equals if `right` is true. Rows and values have the same first
    /// dimensions, or there is one row. PyTorch's `searchsorted`, and `bucketize`.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let row = device.from_vec(vec![1.0f32, 3.0, 5.0], [3]);
    /// let values = device.from_vec(vec![0.0f32, 3.0, 9.0], [3]);
    /// assert_eq!(row.searchsorted(&values, false).to_vec::<i64>().await?, [0, 1, 3]);
    /// assert_eq!(row.searchsorted(&values, true).to_vec::<i64>().await?, [0, 2, 3]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[doc(alias("bucketize", "digitize"))]
    #[track_caller]
    pub fn searchsorted(&self, values: impl AsRef<TensorFuture>, right: bool) -> TensorFuture {
        let (values, at): (_, At) = (values.as_ref(), Location::caller());
        let _within = build::within("searchsorted", at);
        let one_row = self.rank() == 1;
        let fits = match (self.dims(), values.dims()) {
            _ if one_row => true,
            (&[ref a @ .., _], &[ref b @ .., _]) => a == b,
            _ => false,
        };
        if !fits {
            let text = format!("rows of {} for values of {}", self.shape(), values.shape());
            return build::refused("searchsorted", self, Refusal::shape(text), at);
        }
        let (rows, values) = (self.stop_gradient(), values.stop_gradient());
        let n = self.dims()[self.rank() - 1] as i64;
        let mut below = self.device().zeros_dtype(values.dims(), DType::I64);
        // How many elements are smaller, a bit after the other.
        let mut step = if n == 0 { 0 } else { 1i64 << n.ilog2() };
        while step > 0 {
            let next = &below + step;
            let place = next.minimum(n) - 1;
            let there = if one_row { rows.take(&place) } else { rows.gather(-1, &place) };
            let stays = if right { there.gt(&values) } else { there.ge(&values) };
            below = stays.logical_or(next.gt(n)).where_cond(&below, &next);
            step /= 2;
        }
        below
    }

    /// How many elements lie in each of `bins` intervals of the same width between `min` and `max`,
    /// in the type of this value; the last one contains `max`. If both are equal, the smallest and
    /// the largest element take their places: if one of these is not finite, no count is a number.
    /// Otherwise NaN and what lies outside is not counted.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().from_vec(vec![1.0f32, 2.0, 1.0, 9.0], [4]);
    /// assert_eq!(x.histc(4, 0.0, 3.0).to_vec::<f32>().await?, [0.0, 2.0, 1.0, 0.0]);
    /// assert_eq!(x.histc(2, 0.0, 0.0).to_vec::<f32>().await?, [3.0, 1.0]);
    /// assert!(x.recip().log().log().histc(1, 0.0, 0.0).item::<f32>().await?.is_nan());
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[doc(alias = "histogram")]
    #[track_caller]
    pub fn histc(&self, bins: usize, min: f64, max: f64) -> TensorFuture {
        let at: At = Location::caller();
        let _within = build::within("histc", at);
        let checked = float(self).and_then(|()| {
            let right = bins > 0 && min <= max && min.is_finite() && max.is_finite();
            let text = || format!("{bins} intervals from {min} to {max}");
            if right { Ok(()) } else { Err(Refusal::argument(text())) }
        });
        if let Err(refusal) = checked {
            return build::refused("histc", self, refusal, at);
        }
        let (x, device) = (self.stop_gradient().wide().reshape(-1), self.device());
        let nothing = device.zeros_dtype([bins], x.dtype());
        if x.numel() == 0 {
            return nothing.to_dtype(self.dtype());
        }
        let (mut low, mut high) = match min == max {
            true => (x.min_all(), x.max_all()),
            false => (device.full_dtype((), min, x.dtype()), device.full_dtype((), max, x.dtype())),
        };
        let flat = low.eq(&high);
        low = flat.where_cond(&low - 1, &low);
        high = flat.where_cond(&high + 1, &high);
        let inside = x.ge(&low).logical_and(x.le(&high));
        let place = (inside.where_cond(&x, &low) - &low) * bins / (&high - &low);
        let place = place.to_dtype(DType::I64).minimum(bins as i64 - 1);
        let counts = nothing.scatter_add(0, place, inside.to_dtype(x.dtype()));
        // A width that is no number, or none that is finite, makes NaN of them all.
        (counts + (high - low) * 0.0).to_dtype(self.dtype())
    }
}
