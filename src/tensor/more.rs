//! Methods of the ops outside the table: rows, indices, order.

use super::build::{self, custom};
use super::dims::Dims;
use super::future::TensorFuture;
use crate::dtype::DType;
use crate::graph::operation::Refusal;
use crate::ops::cumsum::CumSum;
use crate::ops::embedding::Embedding;
use crate::ops::gather::Gather;
use crate::ops::index_select::IndexSelect;
use crate::ops::logsumexp::LogSumExp;
use crate::ops::norm::Norm;
use crate::ops::one_hot::OneHot;
use crate::ops::roll::Roll;
use crate::ops::scatter_add::ScatterAdd;
use crate::ops::softmax::Softmax;
use crate::ops::sort::Sort;
use crate::ops::topk::TopK;
use crate::ops::triangle::Triangle;
use crate::shape::Shape;
use std::panic::Location;
use std::sync::Arc;

/// Ops over rows. Floating point only; halves are accumulated in float32. Nothing waits.
impl TensorFuture {
    /// `e^x / sum e^x` along `dim`, computed with the largest element taken off.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().zeros([2, 4]);
    /// assert_eq!(x.softmax(-1).to_vec::<f32>().await?, [0.25; 8]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn softmax(&self, dim: isize) -> TensorFuture {
        custom(Arc::new(Softmax { dim, log: false }), &[self], Location::caller())
    }

    /// The logarithm of [`softmax`](Self::softmax).
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().zeros([2, 1]);
    /// assert_eq!(x.log_softmax(-1).to_vec::<f32>().await?, [0.0; 2]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn log_softmax(&self, dim: isize) -> TensorFuture {
        custom(Arc::new(Softmax { dim, log: true }), &[self], Location::caller())
    }

    /// `log sum e^x` over dimensions, which go.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().full([2, 3], 5.0);
    /// assert_eq!(x.logsumexp(0).dims(), [3]);
    /// let all = x.logsumexp([0, 1]).item::<f32>().await?;
    /// assert!((all - (5.0 + 6f32.ln())).abs() < 1e-5);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn logsumexp(&self, dims: impl Dims) -> TensorFuture {
        self.logsumexp_over(&dims.dims(), false, Location::caller())
    }

    /// As [`logsumexp`](Self::logsumexp), with the dimensions kept at size 1.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().zeros([2, 3]);
    /// assert_eq!(x.logsumexp_keepdim(0).dims(), [1, 3]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn logsumexp_keepdim(&self, dims: impl Dims) -> TensorFuture {
        self.logsumexp_over(&dims.dims(), true, Location::caller())
    }

    #[track_caller]
    fn logsumexp_over(&self, dims: &[isize], keepdim: bool, at: build::At) -> TensorFuture {
        if let &[dim] = dims {
            return custom(Arc::new(LogSumExp { dim, keepdim }), &[self], at);
        }
        let gone: Vec<usize> = match build::named_dims(self, dims) {
            // None stands for all, as in other reductions.
            Ok(named) if named.is_empty() => (0..self.rank()).collect(),
            Ok(named) => named.to_vec(),
            Err(refusal) => return build::refused("logsumexp", self, refusal, at),
        };
        let _within = build::within("logsumexp", at);
        // Several dimensions as one, at the end.
        let kept: Vec<usize> = (0..self.rank()).filter(|d| !gone.contains(d)).collect();
        let order: Vec<usize> = kept.iter().chain(&gone).copied().collect();
        let mut shape: Vec<usize> = kept.iter().map(|&d| self.dims()[d]).collect();
        shape.push(gone.iter().map(|&d| self.dims()[d]).collect::<Shape>().numel());
        let x = self.permute(&order[..]).reshape(&shape[..]);
        let y = custom(Arc::new(LogSumExp { dim: -1, keepdim: false }), &[&x], at);
        if !keepdim {
            return y;
        }
        let out: Vec<usize> =
            (0..self.rank()).map(|d| if gone.contains(&d) { 1 } else { self.dims()[d] }).collect();
        y.reshape(&out[..])
    }

    /// `(x - mean) / sqrt(variance + eps) * weight + bias` over the last dimensions, as many as `weight`
    /// has; the variance is the biased one (Ba et al. 2016, arXiv:1607.06450).
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let x = device.from_vec(vec![1.0f32, 3.0], [1, 2]);
    /// let y = x.layer_norm(&device.full([2], 10.0), &device.ones([2]), 0.0);
    /// assert_eq!(y.to_vec::<f32>().await?, [-9.0, 11.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn layer_norm(&self, weight: &TensorFuture, bias: &TensorFuture, eps: f64) -> TensorFuture {
        let op = Norm { trailing: weight.rank(), eps, weight: true, bias: true, centred: true };
        custom(Arc::new(op), &[self, weight, bias], Location::caller())
    }

    /// [`layer_norm`](Self::layer_norm) without a bias.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let x = device.from_vec(vec![1.0f32, 3.0], [1, 2]);
    /// assert_eq!(x.layer_norm_weighted(&device.full([2], 10.0), 0.0).to_vec::<f32>().await?, [-10.0, 10.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn layer_norm_weighted(&self, weight: &TensorFuture, eps: f64) -> TensorFuture {
        let op = Norm { trailing: weight.rank(), eps, weight: true, bias: false, centred: true };
        custom(Arc::new(op), &[self, weight], Location::caller())
    }

    /// [`layer_norm`](Self::layer_norm) over the last `trailing` dimensions without weight and bias.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let x = device.from_vec(vec![1.0f32, 3.0], [1, 2]);
    /// assert_eq!(x.layer_norm_plain(1, 0.0).to_vec::<f32>().await?, [-1.0, 1.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn layer_norm_plain(&self, trailing: usize, eps: f64) -> TensorFuture {
        let op = Norm { trailing, eps, weight: false, bias: false, centred: true };
        custom(Arc::new(op), &[self], Location::caller())
    }

    /// `x / sqrt(mean(x^2) + eps) * weight` over the last dimensions, as many as `weight` has (Zhang and
    /// Sennrich 2019, arXiv:1910.07467).
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let x = device.full([1, 4], 3.0);
    /// assert_eq!(x.rms_norm(&device.full([4], 2.0), 0.0).to_vec::<f32>().await?, [2.0; 4]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn rms_norm(&self, weight: &TensorFuture, eps: f64) -> TensorFuture {
        let op = Norm { trailing: weight.rank(), eps, weight: true, bias: false, centred: false };
        custom(Arc::new(op), &[self, weight], Location::caller())
    }

    /// [`rms_norm`](Self::rms_norm) over the last `trailing` dimensions without a weight.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().full([1, 4], 3.0);
    /// assert_eq!(x.rms_norm_plain(1, 0.0).to_vec::<f32>().await?, [1.0; 4]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn rms_norm_plain(&self, trailing: usize, eps: f64) -> TensorFuture {
        let op = Norm { trailing, eps, weight: false, bias: false, centred: false };
        custom(Arc::new(op), &[self], Location::caller())
    }
}

/// Picking by index. Indices are int64, int32 or uint8; negative ones count from the end (but not numbers of words and
/// classes, in [`embedding`](TensorFuture::embedding) and [`one_hot`](TensorFuture::one_hot)). One that is out of range
/// fails the value, never the device.
impl TensorFuture {
    /// Elements along `dim`: `out[i][j] = x[index[i][j]][j]` for `dim` 0. A 0-d value or index counts as a row of one.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let x = device.from_vec(vec![1, 2, 3, 4], [2, 2]);
    /// let index = device.from_vec(vec![0i64, 0, 1, 0], [2, 2]);
    /// assert_eq!(x.gather(1, &index).to_vec::<i32>().await?, [1, 1, 4, 3]);
    /// assert_eq!(x.gather(1, &index - 1).to_vec::<i32>().await?, [2, 2, 3, 4]);    // -1 is the last
    /// let error = x.gather(1, device.full([2, 2], 2)).await.unwrap_err();
    /// assert_eq!(error.message(), "index 2 at position 0 is out of range for size 2");
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn gather(&self, dim: isize, index: impl AsRef<TensorFuture>) -> TensorFuture {
        let (index, at) = (index.as_ref(), Location::caller());
        if (self.rank() == 0 || index.rank() == 0) && self.rank() <= 1 && index.rank() <= 1 {
            let _within = build::within("gather", at);
            return self.reshape(-1).gather(dim, index.reshape(-1)).reshape(index.dims());
        }
        let op = Gather { dim, name: build::named("gather") };
        custom(Arc::new(op), &[self, index], at)
    }

    /// Whole slices along `dim`, for a row of indices. One number is a row of one, as what is picked from or as an index.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let x = device.arange(0, 6, 1).reshape([3, 2]);
    /// let rows = x.index_select(0, device.from_vec(vec![2i64, 0], [2]));
    /// assert_eq!(rows.to_vec::<i64>().await?, [4, 5, 0, 1]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn index_select(&self, dim: isize, index: impl AsRef<TensorFuture>) -> TensorFuture {
        let (index, at) = (index.as_ref(), Location::caller());
        let _within = build::within("index_select", at);
        if build::is_row_of_one(self, dim) {
            if index.rank() > 1 || index.numel() != 1 {
                let text = format!("indices of shape {} for one number", index.shape());
                return build::refused("index_select", self, Refusal::shape(text), at);
            }
            return self.reshape(1).index_select(0, index).squeeze(0);
        }
        let one = (index.rank() == 0).then(|| index.reshape(1));
        let op = IndexSelect { dim, name: build::named("index_select") };
        custom(Arc::new(op), &[self, one.as_ref().unwrap_or(index)], at)
    }

    /// Rows of this table `[n, width]`, for indices of any shape.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let table = device.arange(0, 6, 1).reshape([3, 2]);
    /// let words = device.from_vec(vec![2i64, 0, 2], [1, 3]);
    /// assert_eq!(table.embedding(&words).dims(), [1, 3, 2]);
    /// assert_eq!(table.embedding(&words).to_vec::<i64>().await?, [4, 5, 0, 1, 4, 5]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn embedding(&self, index: impl AsRef<TensorFuture>) -> TensorFuture {
        custom(Arc::new(Embedding), &[self, index.as_ref()], Location::caller())
    }

    /// This with `source`'s elements added at `index` along `dim`; in the order of the indices, so the sums
    /// are the same every time. A 0-d value counts as a row of one.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let index = device.from_vec(vec![1i64, 1, 0], [3]);
    /// let sums = device.zeros([2]).scatter_add(0, &index, device.from_vec(vec![1.0f32, 2.0, 4.0], [3]));
    /// assert_eq!(sums.to_vec::<f32>().await?, [4.0, 3.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn scatter_add(
        &self,
        dim: isize,
        index: impl AsRef<TensorFuture>,
        source: impl AsRef<TensorFuture>,
    ) -> TensorFuture {
        let (index, source, at) = (index.as_ref(), source.as_ref(), Location::caller());
        let operands = [self, index, source];
        // One number counts as a row of one, in any of them.
        if operands.iter().any(|x| x.rank() == 0) && operands.iter().all(|x| x.rank() <= 1) {
            let _within = build::within("scatter_add", at);
            let [x, index, source] = operands.map(|x| if x.rank() == 0 { x.reshape(1) } else { x.clone() });
            return x.scatter_add(dim, index, source).reshape(self.dims());
        }
        custom(Arc::new(ScatterAdd { dim }), &operands, at)
    }

    /// For each of these class numbers a row of `classes` zeros with a one; int64.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let classes = futensor::Device::cpu().from_vec(vec![2i64, 0], [2]);
    /// assert_eq!(classes.one_hot(3).to_vec::<i64>().await?, [0, 0, 1, 1, 0, 0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn one_hot(&self, classes: usize) -> TensorFuture {
        custom(Arc::new(OneHot { classes }), &[self], Location::caller())
    }
}

/// Order.
impl TensorFuture {
    /// The elements along `dim` in order. Stable; NaN counts as largest.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().from_vec(vec![3, 1, 2], [3]);
    /// assert_eq!(x.sort(0, true).to_vec::<i32>().await?, [3, 2, 1]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn sort(&self, dim: isize, descending: bool) -> TensorFuture {
        if build::is_row_of_one(self, dim) {
            return self.clone();
        }
        let op = Sort { dim, descending, positions: false };
        custom(Arc::new(op), &[self], Location::caller())
    }

    /// The positions of the elements along `dim` in order, as int64.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().from_vec(vec![3.0f32, 1.0, 2.0], [3]);
    /// assert_eq!(x.argsort(0, false).to_vec::<i64>().await?, [1, 2, 0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn argsort(&self, dim: isize, descending: bool) -> TensorFuture {
        if build::is_row_of_one(self, dim) {
            return self.unsqueeze(0).argsort(0, descending).squeeze(0);
        }
        let op = Sort { dim, descending, positions: true };
        custom(Arc::new(op), &[self], Location::caller())
    }

    /// The `k` largest (or smallest) along `dim`, in order: values, and positions as int64. Of one number it is that
    /// number, at 0.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().from_vec(vec![3, 1, 2], [3]);
    /// let (values, positions) = x.topk(2, 0, true);
    /// assert_eq!(values.to_vec::<i32>().await?, [3, 2]);
    /// assert_eq!(positions.to_vec::<i64>().await?, [0, 2]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn topk(&self, k: usize, dim: isize, largest: bool) -> (TensorFuture, TensorFuture) {
        let at = Location::caller();
        if build::is_row_of_one(self, dim) && k <= 1 {
            return (self.clone(), self.argsort(0, false));
        }
        let op = |positions| Arc::new(TopK { dim, k, largest, positions });
        (custom(op(false), &[self], at), custom(op(true), &[self], at))
    }

    /// Running sums along `dim`; integers and bool are added in int64. One number is its own.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().arange(1, 4, 1);
    /// assert_eq!(x.cumsum(0).to_vec::<i64>().await?, [1, 3, 6]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn cumsum(&self, dim: isize) -> TensorFuture {
        if build::is_row_of_one(self, dim) {
            let dtype = if self.dtype().is_float() { self.dtype() } else { DType::I64 };
            return self.to_dtype(dtype);
        }
        custom(Arc::new(CumSum { dim }), &[self], Location::caller())
    }

    /// The elements on and below a diagonal of the last two dimensions, zeros above.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().ones([2, 2]);
    /// assert_eq!(x.tril(0).to_vec::<f32>().await?, [1.0, 0.0, 1.0, 1.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn tril(&self, diagonal: i64) -> TensorFuture {
        custom(Arc::new(Triangle { diagonal, upper: false }), &[self], Location::caller())
    }

    /// The elements on and above a diagonal of the last two dimensions, zeros below.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().ones([2, 2]);
    /// assert_eq!(x.triu(1).to_vec::<f32>().await?, [0.0, 1.0, 0.0, 0.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn triu(&self, diagonal: i64) -> TensorFuture {
        custom(Arc::new(Triangle { diagonal, upper: true }), &[self], Location::caller())
    }

    /// Shifted along dimensions; what leaves at one end comes back at the other.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().arange(0, 4, 1);
    /// assert_eq!(x.roll(1, 0).to_vec::<i64>().await?, [3, 0, 1, 2]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn roll(&self, shifts: impl Dims, dims: impl Dims) -> TensorFuture {
        let at = Location::caller();
        let (by, dims) = (shifts.dims(), dims.dims());
        if by.len() != dims.len() {
            let text = format!("{} shifts for {} dimensions", by.len(), dims.len());
            return build::refused("roll", self, Refusal::argument(text), at);
        }
        if let Some(shift) = by.iter().find(|&&by| by == isize::MAX) {
            return build::refused("roll", self, Refusal::argument(format!("a shift of {shift} or more")), at);
        }
        let shifts = dims.iter().zip(&by).map(|(&d, &b)| (d, b as i64)).collect();
        custom(Arc::new(Roll { shifts }), &[self], at)
    }

    /// The elements along dimensions, each named once, in reverse; a view.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().arange(0, 3, 1);
    /// assert_eq!(x.flip(0).to_vec::<i64>().await?, [2, 1, 0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn flip(&self, dims: impl Dims) -> TensorFuture {
        self.reversed(&dims.dims(), Location::caller())
    }

    /// `value` where `mask` (bool, broadcast) is true.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().arange(0, 3, 1);
    /// assert_eq!(x.masked_fill(x.gt(0), 9).to_vec::<i64>().await?, [0, 9, 9]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn masked_fill(
        &self,
        mask: impl AsRef<TensorFuture>,
        value: impl super::operand::Operand,
    ) -> TensorFuture {
        let _within = build::within("masked_fill", Location::caller());
        mask.as_ref().where_cond(value, self).to_dtype(self.dtype())
    }

    /// Repeated as often along each dimension, as PyTorch's `repeat`: new dimensions come in front.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().arange(0, 2, 1);
    /// assert_eq!(x.repeat([2, 2]).to_vec::<i64>().await?, [0, 1, 0, 1, 0, 1, 0, 1]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn repeat(&self, times: impl Dims) -> TensorFuture {
        let (times, at) = (times.dims(), Location::caller());
        let refuse = |refusal| build::refused("repeat", self, refusal, at);
        let Some(lead) = times.len().checked_sub(self.rank()) else {
            return refuse(Refusal::shape(format!("{} counts for shape {}", times.len(), self.shape())));
        };
        let _within = build::within("repeat", at);
        // Each dimension that is repeated gets one in front of it, of that size and no stride.
        let (mut apart, mut repeated, mut shape) = (Vec::new(), Vec::new(), Vec::new());
        for (d, &n) in times.iter().enumerate() {
            let Ok(n) = usize::try_from(n) else {
                return refuse(Refusal::argument(format!("cannot repeat {n} times")));
            };
            let own = if d < lead { 1 } else { self.dims()[d - lead] };
            if n != 1 && own > 1 {
                apart.push(1);
                repeated.push(n);
            }
            apart.push(own);
            repeated.push(if own == 1 { n } else { own });
            shape.push(own.saturating_mul(n));
        }
        let shape: Shape = shape.into_iter().collect();
        if let Err(refusal) = build::fits(&shape, self.dtype()) {
            return refuse(refusal);
        }
        self.reshape(apart).expand(repeated).reshape(shape.dims())
    }

    /// Consecutive parts of `size` along `dim`, the last one shorter where it does not divide; views.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let parts = futensor::Device::cpu().arange(0, 5, 1).split(2, 0);
    /// assert_eq!(parts.len(), 3);
    /// assert_eq!(parts[2].to_vec::<i64>().await?, [4]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// Where `size` is 0 or `dim` is out of range: one failed value, since there is no number of parts.
    #[track_caller]
    pub fn split(&self, size: usize, dim: isize) -> Vec<TensorFuture> {
        self.parts("split", dim, size, |_| size)
    }

    /// Parts of a size that may depend on how many elements there are; `asked` is not 0.
    #[track_caller]
    fn parts(
        &self,
        name: &'static str,
        dim: isize,
        asked: usize,
        size: impl FnOnce(usize) -> usize,
    ) -> Vec<TensorFuture> {
        let at = Location::caller();
        let refuse = |refusal| vec![build::refused(name, self, refusal, at)];
        let Some(d) = self.shape().dim(dim) else { return refuse(build::dim_refusal(dim, self.shape())) };
        if asked == 0 {
            return refuse(Refusal::argument("there is at least one part, of at least one element"));
        }
        let _within = build::within(name, at);
        let n = self.dims()[d];
        let size = size(n);
        (0..n.div_ceil(size).max(1)).map(|i| self.narrow(dim, i * size, size.min(n - i * size))).collect()
    }

    /// At most `chunks` parts along `dim`, as PyTorch's `chunk`; views.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let parts = futensor::Device::cpu().arange(0, 5, 1).chunk(2, 0);
    /// assert_eq!(parts[0].to_vec::<i64>().await?, [0, 1, 2]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`split`](Self::split).
    #[track_caller]
    pub fn chunk(&self, chunks: usize, dim: isize) -> Vec<TensorFuture> {
        self.parts("chunk", dim, chunks, |n| n.div_ceil(chunks).max(1))
    }
}
