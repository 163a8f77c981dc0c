//! `Tensor`: a `TensorFuture` that is known to be complete.

use super::future::TensorFuture;
use crate::error::Result;
use std::fmt;
use std::future::IntoFuture;
use std::ops::Deref;

/// A value that is there: what awaiting a [`TensorFuture`] gives.
///
/// Everything that a future can do, a tensor can: it dereferences to one for methods, and operators
/// and `await` take it as it is.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, Tensor};
/// let x: Tensor = Device::cpu().arange(0, 3, 1).await?;
/// assert!(x.is_ready());
/// assert_eq!((&x + &x).to_vec::<i64>().await?, [0, 2, 4]);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct Tensor(TensorFuture);

impl Tensor {
    pub(crate) fn known(future: TensorFuture) -> Tensor {
        Tensor(future)
    }

    /// The same value as a future, for places that want one.
    pub fn into_future_value(self) -> TensorFuture {
        self.0
    }
}

impl Deref for Tensor {
    type Target = TensorFuture;
    fn deref(&self) -> &TensorFuture {
        &self.0
    }
}

impl From<Tensor> for TensorFuture {
    fn from(tensor: Tensor) -> TensorFuture {
        tensor.0
    }
}

impl AsRef<TensorFuture> for Tensor {
    fn as_ref(&self) -> &TensorFuture {
        &self.0
    }
}

impl AsRef<TensorFuture> for TensorFuture {
    fn as_ref(&self) -> &TensorFuture {
        self
    }
}

impl IntoFuture for Tensor {
    type Output = Result<Tensor>;
    type IntoFuture = TensorFuture;
    fn into_future(self) -> TensorFuture {
        self.0
    }
}

impl IntoFuture for &Tensor {
    type Output = Result<Tensor>;
    type IntoFuture = TensorFuture;
    fn into_future(self) -> TensorFuture {
        self.0.clone()
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({} {} on {})", self.dtype(), self.shape(), &self.port().name)
    }
}

/// Shape, type and device, and the word for the elements: reading them is a barrier, and so it is awaited.
///
/// ```
/// # tokio_test::block_on(async {
/// let x = futensor::Device::cpu().ones([2]).await?;
/// assert_eq!(x.display().await?, "tensor([1., 1.])");
/// assert!(x.to_string().ends_with("for the elements: `x.display().await`)"));
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (dtype, shape, name) = (self.dtype(), self.shape(), &self.port().name);
        write!(f, "Tensor({dtype} {shape} on {name}; for the elements: `x.display().await`)")
    }
}
