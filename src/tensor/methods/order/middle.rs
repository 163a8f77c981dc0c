//! The element of a rank in the order along a dimension: `kthvalue`, medians and quantiles. Each
//! sorts once.

use crate::error::number_of;
use crate::graph::operation::Refusal;
use crate::tensor::build::{self, At};
use crate::tensor::future::TensorFuture;
use crate::tensor::methods::reduce::stats::float;
use std::panic::Location;

/// Which element a [`quantile`](TensorFuture::quantile) between two elements is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Between {
    /// On the line between them; PyTorch's default.
    #[default]
    Linear,
    /// The smaller.
    Lower,
    /// The larger.
    Higher,
    /// Their mean.
    Midpoint,
    /// The nearer; of two as near, the one at an even position.
    Nearest,
}

/// Ranks in an order.
impl TensorFuture {
    /// The `k`th smallest element along `dim` (the smallest is the first), and its position as
    /// int64; `dim` is removed. NaN counts as largest; of equal elements the earlier counts as
    /// smaller.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().from_vec(vec![5, 1, 3], [3]);
    /// let (value, position) = x.kthvalue(2, 0);
    /// assert_eq!((value.item::<i32>().await?, position.item::<i64>().await?), (3, 2));
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn kthvalue(&self, k: usize, dim: isize) -> (TensorFuture, TensorFuture) {
        let at = Location::caller();
        let _within = build::within("kthvalue", at);
        if build::is_row_of_one(self, dim) {
            let (values, positions) = self.reshape(1).kthvalue(k, 0);
            return (values, positions);
        }
        let checked = self.length("an order", dim).and_then(|n| match k {
            1.. if k <= n => Ok(()),
            _ => {
                let elements = number_of(n, "element", "elements");
                Err(Refusal::argument(format!("rank {k} of {elements}")))
            }
        });
        if let Err(refusal) = checked {
            let failed = build::refused("kthvalue", self, refusal, at);
            return (failed.clone(), failed);
        }
        let position = self.argsort(dim, false).narrow(dim, k - 1, 1);
        (self.gather(dim, &position).squeeze(dim), position.squeeze(dim))
    }

    /// The median along `dim`, the lower one of an even number of elements, and its position as
    /// int64; `dim` is removed. A row with NaN has the median NaN.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().from_vec(vec![5, 1, 3, 4], [4]);
    /// let (value, position) = x.median(0);
    /// assert_eq!((value.item::<i32>().await?, position.item::<i64>().await?), (3, 2));
    /// assert_eq!(x.median_all().item::<i32>().await?, 3);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn median(&self, dim: isize) -> (TensorFuture, TensorFuture) {
        let at = Location::caller();
        let _within = build::within("median", at);
        if build::is_row_of_one(self, dim) {
            return self.reshape(1).median(0);
        }
        let checked = self.length("a median", dim);
        let n = match checked {
            Ok(n) => n,
            Err(refusal) => {
                let failed = build::refused("median", self, refusal, at);
                return (failed.clone(), failed);
            }
        };
        let order = self.argsort(dim, false);
        let mut position = order.narrow(dim, (n - 1) / 2, 1);
        if self.dtype().is_float() {
            // NaN comes last.
            let last = order.narrow(dim, n - 1, 1);
            let is_nan = self.stop_gradient().gather(dim, &last).isnan();
            position = is_nan.where_cond(last, position);
        }
        (self.gather(dim, &position).squeeze(dim), position.squeeze(dim))
    }

    /// The median of all elements, 0-d.
    #[track_caller]
    pub fn median_all(&self) -> TensorFuture {
        let _within = build::within("median", Location::caller());
        self.reshape(-1).median(0).0
    }

    /// The element below which the share `q` of the elements along `dim` lies, which is removed;
    /// `between` says what is between two elements. A row with NaN gives NaN.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, op_options::Between};
    /// let x = Device::cpu().from_vec(vec![1.0f32, 2.0, 4.0, 8.0], [4]);
    /// assert_eq!(x.quantile(0.5, 0, Between::Linear).item::<f32>().await?, 3.0);
    /// assert_eq!(x.quantile(0.5, 0, Between::Lower).item::<f32>().await?, 2.0);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[doc(alias = "percentile")]
    #[track_caller]
    pub fn quantile(&self, q: f64, dim: isize, between: Between) -> TensorFuture {
        let at: At = Location::caller();
        let _within = build::within("quantile", at);
        if build::is_row_of_one(self, dim) {
            return self.reshape(1).quantile(q, 0, between);
        }
        let checked = float(self).and_then(|()| match (0.0..=1.0).contains(&q) {
            true if self.numel() == 0 => Err(Refusal::shape("a quantile of no elements")),
            true => self.length("a quantile", dim),
            false => Err(Refusal::argument(format!("a share of {q} is out of range"))),
        });
        let n = match checked {
            Ok(n) => n,
            Err(refusal) => return build::refused("quantile", self, refusal, at),
        };
        let rank = q * (n - 1) as f64;
        let (below, part) = (rank.floor(), rank - rank.floor());
        let order = self.argsort(dim, false);
        let last = order.narrow(dim, n - 1, 1);
        let is_nan = self.stop_gradient().gather(dim, &last).isnan();
        let at = |place: f64| {
            let place = order.narrow(dim, (place as usize).min(n - 1), 1);
            self.gather(dim, is_nan.where_cond(&last, place)).squeeze(dim)
        };
        match between {
            _ if part == 0.0 => at(below),
            Between::Lower => at(below),
            Between::Higher => at(below + 1.0),
            Between::Nearest => at(rank.round_ties_even()),
            Between::Linear => at(below).lerp(at(below + 1.0), part),
            Between::Midpoint => at(below).lerp(at(below + 1.0), 0.5),
        }
    }

    /// How many elements a dimension has; at least one.
    fn length(&self, what: &str, dim: isize) -> Result<usize, Refusal> {
        let d = self.shape().dim(dim).ok_or_else(|| build::dim_refusal(dim, self.shape()))?;
        match self.dims()[d] {
            0 => Err(Refusal::shape(format!("{what} of no elements"))),
            n => Ok(n),
        }
    }
}
