//! `Examples`: a data set in host memory.

use crate::dtype::Element;
use crate::error::{Error, ErrorKind, Result, number_of};
use crate::shape::Shape;
use crate::tensor::device::Device;
use crate::tensor::future::TensorFuture;
use std::panic::Location;
use std::sync::Arc;

/// A data set in host memory whose examples have one shape and type. A handle: clones share the
/// elements.
#[doc(alias = "TensorDataset")]
#[derive(Clone, Debug)]
pub struct Examples<T> {
    data: Arc<[T]>,
    shape: Shape,
    each: usize,
}

impl<T: Element> Examples<T> {
    /// Examples of a shape; `()` if each is one number.
    ///
    /// # Errors
    /// If the elements are not a whole number of examples, or an example has no elements.
    #[track_caller]
    pub fn new(data: Vec<T>, shape: impl Into<Shape>) -> Result<Examples<T>> {
        let shape = shape.into();
        let each = shape.numel();
        if each == 0 || !data.len().is_multiple_of(each) {
            let elements = number_of(data.len(), "element", "elements");
            let text = format!("{elements} are not a whole number of examples of shape {shape}");
            return Err(Error::new(ErrorKind::Shape, "Examples::new", text, Location::caller()));
        }
        Ok(Examples { data: data.into(), shape, each })
    }

    /// The number of examples.
    pub fn len(&self) -> usize {
        self.data.len() / self.each
    }

    /// True if there are no examples.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// The elements of one example.
    ///
    /// # Panics
    /// If the example does not exist.
    ///
    /// ```
    /// use futensor::data::Examples;
    /// let examples = Examples::new(vec![1, 2, 3, 4, 5, 6], [2])?;
    /// assert_eq!((examples.len(), examples.example(1)), (3, &[3, 4][..]));
    /// assert!(Examples::new(vec![1, 2, 3], [2]).unwrap_err().is_shape());
    /// # Ok::<(), futensor::Error>(())
    /// ```
    #[track_caller]
    pub fn example(&self, i: usize) -> &[T] {
        let example = self.data.chunks_exact(self.each).nth(i);
        example.unwrap_or_else(|| panic!("there is no example {i} among {}", self.len()))
    }

    /// These examples as one tensor `[number, ...]` on a device. The call copies them, so make it
    /// on a loader's thread.
    ///
    /// # Panics
    /// If an example does not exist; a [`Loader`](super::Loader) turns the panic into an error of
    /// the batch.
    #[track_caller]
    pub fn pick(&self, at: &[usize], device: &Device) -> TensorFuture {
        let mut data = Vec::with_capacity(at.len() * self.each);
        for &i in at {
            data.extend_from_slice(self.example(i));
        }
        let shape: Shape = std::iter::once(at.len()).chain(self.shape.iter().copied()).collect();
        device.from_vec(data, shape)
    }
}
