//! Ops that move elements or leave them out: triangles, `roll`, `flip`.

use crate::error::number_of;
use crate::graph::operation::Refusal;
use crate::ops::shaping::roll::Roll;
use crate::ops::shaping::triangle::Triangle;
use crate::tensor::build::{self, custom};
use crate::tensor::dims::Dims;
use crate::tensor::future::TensorFuture;
use std::panic::Location;
use std::sync::Arc;

/// Ops that move elements.
impl TensorFuture {
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

    /// Shifts the elements along dimensions; elements that leave at one end come back at the other.
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
            let shifts = number_of(by.len(), "shift", "shifts");
            let text = format!("{shifts} for {}", number_of(dims.len(), "dimension", "dimensions"));
            return build::refused("roll", self, Refusal::argument(text), at);
        }
        if let Some(shift) = by.iter().find(|&&by| by == isize::MAX) {
            return build::refused(
                "roll",
                self,
                Refusal::argument(format!("a shift of {shift} or more")),
                at,
            );
        }
        let shifts = dims.iter().zip(&by).map(|(&d, &b)| (d, b as i64)).collect();
        custom(Arc::new(Roll { shifts }), &[self], at)
    }

    /// Reverses the elements along dimensions, each named once; a view.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().arange(0, 3, 1);
    /// assert_eq!(x.flip(0).to_vec::<i64>().await?, [2, 1, 0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[doc(alias("fliplr", "flipud"))]
    #[track_caller]
    pub fn flip(&self, dims: impl Dims) -> TensorFuture {
        self.reversed(&dims.dims(), Location::caller())
    }
}
