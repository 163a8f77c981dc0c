//! Methods of the ops outside the table: rows, indices, order.

use super::build::{self, custom};
use super::dims::Dims;
use super::future::TensorFuture;
use super::views::cat;
use crate::graph::node::Op;
use crate::graph::operation::Refusal;
use crate::ops::arrange::Arrange;
use crate::ops::pick::Pick;
use crate::ops::rows::{LogSumExp, Norm, Softmax};
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
    #[track_caller]
    pub fn log_softmax(&self, dim: isize) -> TensorFuture {
        custom(Arc::new(Softmax { dim, log: true }), &[self], Location::caller())
    }

    /// `log sum e^x` over dimensions, which go.
    #[track_caller]
    pub fn logsumexp(&self, dims: impl Dims) -> TensorFuture {
        self.logsumexp_over(&dims.dims(), false, Location::caller())
    }

    /// As [`logsumexp`](Self::logsumexp), with the dimensions kept at size 1.
    #[track_caller]
    pub fn logsumexp_keepdim(&self, dims: impl Dims) -> TensorFuture {
        self.logsumexp_over(&dims.dims(), true, Location::caller())
    }

    #[track_caller]
    fn logsumexp_over(&self, dims: &[isize], keepdim: bool, at: build::At) -> TensorFuture {
        if let &[dim] = dims {
            return custom(Arc::new(LogSumExp { dim, keepdim }), &[self], at);
        }
        let found: Option<Vec<usize>> = dims.iter().map(|&d| self.shape().dim(d)).collect();
        let gone = match found {
            Some(gone) if (1..gone.len()).all(|i| !gone[..i].contains(&gone[i])) => gone,
            _ => {
                let text = format!("dimensions {dims:?} of shape {}", self.shape());
                return build::refused("logsumexp", self, Refusal::index(text), at);
            }
        };
        // Several dimensions as one, at the end.
        let kept: Vec<usize> = (0..self.rank()).filter(|d| !gone.contains(d)).collect();
        let order: Vec<usize> = kept.iter().chain(&gone).copied().collect();
        let mut shape: Vec<usize> = kept.iter().map(|&d| self.dims()[d]).collect();
        shape.push(gone.iter().map(|&d| self.dims()[d]).product());
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
    #[track_caller]
    pub fn layer_norm(&self, weight: &TensorFuture, bias: &TensorFuture, eps: f64) -> TensorFuture {
        let op = Norm { trailing: weight.rank(), eps, weight: true, bias: true, centred: true };
        custom(Arc::new(op), &[self, weight, bias], Location::caller())
    }

    /// [`layer_norm`](Self::layer_norm) over the last `trailing` dimensions without weight and bias.
    #[track_caller]
    pub fn layer_norm_plain(&self, trailing: usize, eps: f64) -> TensorFuture {
        let op = Norm { trailing, eps, weight: false, bias: false, centred: true };
        custom(Arc::new(op), &[self], Location::caller())
    }

    /// `x / sqrt(mean(x^2) + eps) * weight` over the last dimensions, as many as `weight` has (Zhang and
    /// Sennrich 2019, arXiv:1910.07467).
    #[track_caller]
    pub fn rms_norm(&self, weight: &TensorFuture, eps: f64) -> TensorFuture {
        let op = Norm { trailing: weight.rank(), eps, weight: true, bias: false, centred: false };
        custom(Arc::new(op), &[self, weight], Location::caller())
    }

    /// [`rms_norm`](Self::rms_norm) over the last `trailing` dimensions without a weight.
    #[track_caller]
    pub fn rms_norm_plain(&self, trailing: usize, eps: f64) -> TensorFuture {
        let op = Norm { trailing, eps, weight: false, bias: false, centred: false };
        custom(Arc::new(op), &[self], Location::caller())
    }
}

/// Picking by index. Indices are int64 or int32 and not negative; one that is out of range fails the
/// value, never the device.
impl TensorFuture {
    /// Elements along `dim`: `out[i][j] = x[index[i][j]][j]` for `dim` 0.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let x = device.from_vec(vec![1, 2, 3, 4], [2, 2]);
    /// let index = device.from_vec(vec![0i64, 0, 1, 0], [2, 2]);
    /// assert_eq!(x.gather(1, &index).to_vec::<i32>().await?, [1, 1, 4, 3]);
    /// let error = x.gather(1, device.full([2, 2], 2)).await.unwrap_err();
    /// assert_eq!(error.message(), "index 2 at position 0 is out of range for size 2");
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn gather(&self, dim: isize, index: impl AsRef<TensorFuture>) -> TensorFuture {
        custom(Arc::new(Pick::Gather { dim }), &[self, index.as_ref()], Location::caller())
    }

    /// Whole slices along `dim`, for a row of indices.
    #[track_caller]
    pub fn index_select(&self, dim: isize, index: impl AsRef<TensorFuture>) -> TensorFuture {
        custom(Arc::new(Pick::IndexSelect { dim }), &[self, index.as_ref()], Location::caller())
    }

    /// Rows of this table `[n, width]`, for indices of any shape.
    #[track_caller]
    pub fn embedding(&self, index: impl AsRef<TensorFuture>) -> TensorFuture {
        custom(Arc::new(Pick::Embedding), &[self, index.as_ref()], Location::caller())
    }

    /// This with `source`'s elements added at `index` along `dim`; in the order of the indices, so the sums
    /// are the same every time.
    #[track_caller]
    pub fn scatter_add(
        &self,
        dim: isize,
        index: impl AsRef<TensorFuture>,
        source: impl AsRef<TensorFuture>,
    ) -> TensorFuture {
        let operands = [self, index.as_ref(), source.as_ref()];
        custom(Arc::new(Pick::ScatterAdd { dim }), &operands, Location::caller())
    }

    /// For each of these class numbers a row of `classes` zeros with a one; int64.
    #[track_caller]
    pub fn one_hot(&self, classes: usize) -> TensorFuture {
        custom(Arc::new(Pick::OneHot { classes }), &[self], Location::caller())
    }
}

/// Order.
impl TensorFuture {
    /// The elements along `dim` in order. Stable; NaN counts as largest.
    #[track_caller]
    pub fn sort(&self, dim: isize, descending: bool) -> TensorFuture {
        if self.rank() == 0 && matches!(dim, 0 | -1) {
            return self.clone();
        }
        let op = Arrange::Sort { dim, descending, positions: false };
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
        if self.rank() == 0 && matches!(dim, 0 | -1) {
            return self.unsqueeze(0).argsort(0, descending).squeeze(0);
        }
        let op = Arrange::Sort { dim, descending, positions: true };
        custom(Arc::new(op), &[self], Location::caller())
    }

    /// The `k` largest (or smallest) along `dim`, in order: values, and positions as int64.
    #[track_caller]
    pub fn topk(&self, k: usize, dim: isize, largest: bool) -> (TensorFuture, TensorFuture) {
        let at = Location::caller();
        let op = |positions| Arc::new(Arrange::TopK { dim, k, largest, positions });
        (custom(op(false), &[self], at), custom(op(true), &[self], at))
    }

    /// Running sums along `dim`; integers and bool are added in int64.
    #[track_caller]
    pub fn cumsum(&self, dim: isize) -> TensorFuture {
        custom(Arc::new(Arrange::CumSum { dim }), &[self], Location::caller())
    }

    /// The elements on and below a diagonal of the last two dimensions, zeros above.
    #[track_caller]
    pub fn tril(&self, diagonal: i64) -> TensorFuture {
        custom(Arc::new(Arrange::Triangle { diagonal, upper: false }), &[self], Location::caller())
    }

    /// The elements on and above a diagonal of the last two dimensions, zeros below.
    #[track_caller]
    pub fn triu(&self, diagonal: i64) -> TensorFuture {
        custom(Arc::new(Arrange::Triangle { diagonal, upper: true }), &[self], Location::caller())
    }

    /// Shifted along dimensions; what leaves at one end comes back at the other.
    #[track_caller]
    pub fn roll(&self, shifts: impl Dims, dims: impl Dims) -> TensorFuture {
        let at = Location::caller();
        let (by, dims) = (shifts.dims(), dims.dims());
        if by.len() != dims.len() {
            let text = format!("{} shifts for {} dimensions", by.len(), dims.len());
            return build::apply(
                Op::Custom(Arc::new(Arrange::Roll { shifts: Vec::new() })),
                &[self],
                || Err(Refusal::argument(text)),
                at,
            );
        }
        let shifts = dims.iter().zip(&by).map(|(&d, &b)| (d, b as i64)).collect();
        custom(Arc::new(Arrange::Roll { shifts }), &[self], at)
    }

    /// The elements along dimensions in reverse; a view.
    #[track_caller]
    pub fn flip(&self, dims: impl Dims) -> TensorFuture {
        self.reversed(&dims.dims(), Location::caller())
    }

    /// `value` where `mask` (bool, broadcast) is true.
    #[track_caller]
    pub fn masked_fill(
        &self,
        mask: impl AsRef<TensorFuture>,
        value: impl super::operand::Operand,
    ) -> TensorFuture {
        mask.as_ref().where_cond(value, self).to_dtype(self.dtype())
    }

    /// Repeated as often along each dimension, as PyTorch's `repeat`: new dimensions come in front.
    #[track_caller]
    pub fn repeat(&self, times: impl Dims) -> TensorFuture {
        let times = times.dims();
        if times.len() < self.rank() {
            let text = format!("{} counts for shape {}", times.len(), self.shape());
            return build::apply(Op::Cast, &[self], || Err(Refusal::shape(text)), Location::caller());
        }
        let lead = times.len().saturating_sub(self.rank());
        let mut x = self.clone();
        for _ in 0..lead {
            x = x.unsqueeze(0);
        }
        for (d, &n) in times.iter().enumerate() {
            match usize::try_from(n) {
                Ok(1) => {}
                Ok(0) => x = x.narrow(d as isize, 0, 0),
                Ok(n) => x = cat(&vec![x; n], d as isize),
                Err(_) => {
                    let rule = || Err(Refusal::argument(format!("cannot repeat {n} times")));
                    return build::apply(Op::Cast, &[self], rule, Location::caller());
                }
            }
        }
        x
    }

    /// Consecutive parts of `size` along `dim`, the last one shorter where it does not divide; views.
    ///
    /// # Panics
    /// Where `size` is 0 or `dim` is out of range: there is no number of parts to return.
    #[track_caller]
    pub fn split(&self, size: usize, dim: isize) -> Vec<TensorFuture> {
        let d = self.shape().dim(dim).expect("the dimension is in range");
        assert!(size > 0, "parts have at least one element");
        let n = self.dims()[d];
        (0..n.div_ceil(size).max(1)).map(|i| self.narrow(dim, i * size, size.min(n - i * size))).collect()
    }

    /// At most `chunks` parts along `dim`, as PyTorch's `chunk`; views.
    ///
    /// # Panics
    /// As [`split`](Self::split).
    #[track_caller]
    pub fn chunk(&self, chunks: usize, dim: isize) -> Vec<TensorFuture> {
        let d = self.shape().dim(dim).expect("the dimension is in range");
        assert!(chunks > 0, "there is at least one part");
        self.split(self.dims()[d].div_ceil(chunks).max(1), dim)
    }
}
