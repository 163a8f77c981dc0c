//! Products of vectors, and distances between them.

use crate::error::number_of;
use crate::graph::operation::Refusal;
use crate::tensor::build::{self, At, mixed};
use crate::tensor::future::TensorFuture;
use crate::tensor::methods::reduce::stats::{float, rooted};
use std::panic::Location;

/// Products of vectors, and distances between them.
impl TensorFuture {
    /// The sum of the products of two vectors of the same size.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().from_vec(vec![1.0f32, 2.0], [2]);
    /// assert_eq!(x.dot(&x).item::<f32>().await?, 5.0);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[doc(alias = "vdot")]
    #[track_caller]
    pub fn dot(&self, other: impl AsRef<TensorFuture>) -> TensorFuture {
        let (other, at): (_, At) = (other.as_ref(), Location::caller());
        if let (&[n], &[m]) = (self.dims(), other.dims())
            && n != m
        {
            let size = |n| number_of(n, "element", "elements");
            let text = format!("vectors of {} and {}", size(n), size(m));
            return build::refused("dot", self, Refusal::shape(text), at);
        }
        if self.rank() != 1 || other.rank() != 1 {
            let text = format!("{} and {}: not two vectors", self.shape(), other.shape());
            return build::refused("dot", self, Refusal::shape(text), at);
        }
        let _within = build::within("dot", at);
        self.matmul(other)
    }

    /// The product of each element of a vector with each of another: a matrix.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().from_vec(vec![1.0f32, 2.0], [2]);
    /// assert_eq!(x.outer(&x).to_vec::<f32>().await?, [1.0, 2.0, 2.0, 4.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[doc(alias = "ger")]
    #[track_caller]
    pub fn outer(&self, other: impl AsRef<TensorFuture>) -> TensorFuture {
        let (other, at): (_, At) = (other.as_ref(), Location::caller());
        if self.rank() != 1 || other.rank() != 1 {
            let text = format!("{} and {}: not two vectors", self.shape(), other.shape());
            return build::refused("outer", self, Refusal::shape(text), at);
        }
        let _within = build::within("outer", at);
        self.unsqueeze(1).mul(other)
    }

    /// The sums of products over the last dimension of both: the result has the other dimensions of
    /// `self`, then those of `other`. A 0-d value is a factor.
    ///
    /// ```
    /// let device = futensor::Device::cpu();
    /// assert_eq!(device.ones([2, 4]).inner(device.ones([3, 5, 4])).dims(), [2, 3, 5]);
    /// ```
    #[track_caller]
    pub fn inner(&self, other: impl AsRef<TensorFuture>) -> TensorFuture {
        let (other, at): (_, At) = (other.as_ref(), Location::caller());
        let _within = build::within("inner", at);
        let (&[ref a @ .., k], &[ref b @ .., k2]) = (self.dims(), other.dims()) else {
            return self.mul(other);
        };
        if k != k2 {
            let text = format!("{} and {} end differently", self.shape(), other.shape());
            return build::refused("inner", self, Refusal::shape(text), at);
        }
        let rows = |x: &TensorFuture, lead: &[usize]| {
            x.reshape([lead.iter().fold(1usize, |n, &size| n.saturating_mul(size)), k])
        };
        let shape = [a, b].concat();
        rows(self, a).matmul_turned(false, &rows(other, b), true).reshape(shape)
    }

    /// The cosine of the angle between two vectors along `dim`; the operands are broadcast. A norm
    /// below `eps` counts as `eps` (PyTorch's default is 1e-8).
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let x = device.from_vec(vec![3.0f32, 4.0], [2]);
    /// let y = device.from_vec(vec![0.0f32, 2.0], [2]);
    /// assert!((x.cosine_similarity(&y, 0, 1e-8).item::<f32>().await? - 0.8).abs() < 1e-6);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[doc(alias = "CosineSimilarity")]
    #[track_caller]
    pub fn cosine_similarity(
        &self,
        other: impl AsRef<TensorFuture>,
        dim: isize,
        eps: f64,
    ) -> TensorFuture {
        let (other, at): (_, At) = (other.as_ref(), Location::caller());
        if let Some(x) = mixed::widened(self, at) {
            return x.cosine_similarity(other, dim, eps);
        }
        if let Err(refusal) = float(self).and_then(|()| float(other)) {
            return build::refused("cosine_similarity", self, refusal, at);
        }
        let _within = build::within("cosine_similarity", at);
        let dtype = self.dtype().promote_ranked(self.rank(), other.dtype(), other.rank());
        let wide = dtype.wide();
        let Some(shape) = self.shape().broadcast(other.shape()) else {
            let text = format!("cannot broadcast {} with {}", self.shape(), other.shape());
            return build::refused("cosine_similarity", self, Refusal::shape(text), at);
        };
        let unit = |x: &TensorFuture| {
            let x = x.to_dtype(wide).expand(shape.dims());
            let norm = x.norm_keepdim(2.0, dim);
            // As PyTorch does: the slope is that of the norm, though it counts as `eps`.
            let more = (eps - norm.stop_gradient()).clamp_min(0);
            x * (norm + more).recip()
        };
        (unit(self) * unit(other)).sum(dim).to_dtype(dtype)
    }

    /// The distance between each row of `self` `[.., n, width]` and each row of `other`
    /// `[.., m, width]`, by the norm of power `p`: `[.., n, m]`. Batches are broadcast.
    ///
    /// With `p` 2 and more than 25 rows on a side, a product of matrices gives the squares of the
    /// distances, as in PyTorch. These have the rounding error of the rows' own squares: a distance
    /// that is small beside its rows has few digits, and that of a row from itself may not be 0.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let (x, y) = (device.zeros([1, 2]), device.from_vec(vec![3.0f32, 4.0, 0.0, 1.0], [2, 2]));
    /// assert_eq!(x.cdist(&y, 2.0).to_vec::<f32>().await?, [5.0, 1.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[doc(alias = "pairwise_distance")]
    #[track_caller]
    pub fn cdist(&self, other: impl AsRef<TensorFuture>, p: f64) -> TensorFuture {
        let (other, at): (_, At) = (other.as_ref(), Location::caller());
        if let Some(x) = mixed::widened(self, at) {
            return x.cdist(other, p);
        }
        let refuse = |refusal| build::refused("cdist", self, refusal, at);
        if let Err(refusal) = float(self).and_then(|()| float(other)) {
            return refuse(refusal);
        }
        let fits = matches!((self.dims(), other.dims()), (&[.., _, k], &[.., _, k2]) if k == k2);
        if !fits {
            let text = format!("rows of {} and of {}", self.shape(), other.shape());
            return refuse(Refusal::shape(text));
        }
        if p.is_nan() || p < 0.0 {
            return refuse(Refusal::argument(format!("a norm of power {p} is no distance")));
        }
        let _within = build::within("cdist", at);
        let dtype = self.dtype().promote(other.dtype());
        let [x, y] = [self, other].map(|x| x.to_dtype(dtype.wide()));
        let rows = self.dims()[self.rank() - 2].max(other.dims()[other.rank() - 2]);
        if p == 2.0 && rows > FEW {
            return apart(&x, &y).to_dtype(dtype);
        }
        let apart = x.unsqueeze(-2) - y.unsqueeze(-3);
        // Of no elements there is no largest, but rows of none lie on each other.
        let apart = if self.dims().ends_with(&[0]) { apart.sum(-1) } else { apart.norm(p, -1) };
        apart.to_dtype(dtype)
    }
}

/// Up to so many rows on either side, distances are computed from differences (PyTorch's number).
const FEW: usize = 25;

/// Distances by a product of matrices: `|x|^2 + |y|^2 - 2 x y`.
#[track_caller]
fn apart(x: &TensorFuture, y: &TensorFuture) -> TensorFuture {
    let square = |x: &TensorFuture| x.square().sum_keepdim(-1);
    let squares = square(x) + square(y).transpose(-1, -2);
    let squares = squares - x.matmul_turned(false, y, true) * 2.0;
    // Rounding may leave a little less than nothing.
    rooted(&squares.clamp_min(0), |square| square.sqrt())
}

#[cfg(test)]
mod tests {
    use crate::Device;

    #[test]
    fn a_row_is_near_itself_where_rounding_leaves_less_than_nothing() {
        let all: Vec<f32> = (0..40 * 7).map(|i| (i as f32 * 1.7).sin()).collect();
        let x = Device::cpu().from_vec(all, [40, 7]);
        let apart = crate::block_on(x.cdist(&x, 2.0).to_vec::<f32>()).unwrap();
        let own: Vec<f32> = apart.iter().step_by(41).copied().collect();
        assert!(own.len() == 40 && own.iter().all(|&d| d < 1e-2), "{own:?}");
    }
}
