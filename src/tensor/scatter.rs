//! Elements put where indices say.

use super::build::custom;
use super::future::TensorFuture;
use crate::op::ScatterMode;
use crate::ops::scatter::Scatter;
use std::panic::Location;
use std::sync::Arc;

/// Putting by index: see [`scatter_add`](TensorFuture::scatter_add), whose rules for shapes and
/// indices these share.
impl TensorFuture {
    /// This with `source`'s elements at `index` along `dim`: `out[index[i][j]][j] = source[i][j]`
    /// for `dim` 0. Of several that go to one place, the last in the order of the indices stays, on
    /// every device; the gradient is its.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let index = device.from_vec(vec![1i64, -1], [2]);
    /// let x = device.zeros([4]).scatter(0, &index, device.from_vec(vec![5.0f32, 6.0], [2]));
    /// assert_eq!(x.to_vec::<f32>().await?, [0.0, 5.0, 0.0, 6.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn scatter(
        &self,
        dim: isize,
        index: impl AsRef<TensorFuture>,
        source: impl AsRef<TensorFuture>,
    ) -> TensorFuture {
        self.scatter_reduce(dim, index, source, ScatterMode::Assign)
    }

    /// This with `source`'s elements joined to what is at `index` along `dim`, in the order of the
    /// indices. PyTorch's `scatter_reduce` with `include_self`.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::ScatterMode;
    /// let device = futensor::Device::cpu();
    /// let index = device.from_vec(vec![1i64, 1, 0], [3]);
    /// let source = device.from_vec(vec![4.0f32, 7.0, 1.0], [3]);
    /// let x = device.full([2], 3.0);
    /// assert_eq!(x.scatter_reduce(0, &index, &source, ScatterMode::Max).to_vec::<f32>().await?, [3.0, 7.0]);
    /// assert_eq!(x.scatter_reduce(0, &index, &source, ScatterMode::Prod).to_vec::<f32>().await?, [3.0, 84.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// The value fails where an index names no place, where the three have not as many dimensions, where
    /// `index` is larger than `source`, or than this in another dimension than `dim`, and where the
    /// types of this and `source` differ.
    #[track_caller]
    pub fn scatter_reduce(
        &self,
        dim: isize,
        index: impl AsRef<TensorFuture>,
        source: impl AsRef<TensorFuture>,
        mode: ScatterMode,
    ) -> TensorFuture {
        let (index, source) = (index.as_ref(), source.as_ref());
        if mode == ScatterMode::Sum {
            return self.scatter_add(dim, index, source);
        }
        // One number counts as a row of one, as in PyTorch.
        if [self, index, source].iter().all(|x| x.rank() == 0) && matches!(dim, 0 | -1) {
            let row = |x: &TensorFuture| x.reshape(1);
            return row(self).scatter_reduce(dim, row(index), row(source), mode).reshape(());
        }
        custom(Arc::new(Scatter { dim, mode }), &[self, index, source], Location::caller())
    }
}
