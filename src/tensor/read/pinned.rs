//! Reads into memory of [`Device::pinned`](crate::Device::pinned): a GPU copies to where the
//! elements are read, without a staging copy in between.
//!
//! The future and the queued step share the buffer. The step fills it, the future hands it out once
//! the step has ended, and a copy that is under way keeps the memory by itself.

use super::Reading;
use crate::dtype::Element;
use crate::error::{Error, ErrorKind, Result, number_of};
use crate::graph::node::{Room, Sink};
use crate::graph::operation::Refusal;
use crate::graph::value::Buffer;
use crate::host::kernels::copy;
use crate::sync::{Mutex, lock};
use crate::tensor::build;
use crate::tensor::creation::pinned::Pinned;
use crate::tensor::future::TensorFuture;
use crate::view::{Parallel, View, ViewMut};
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A sink that fills a buffer which nobody looks at before the step has ended.
struct Fill<T: Element>(Arc<Mutex<Option<Pinned<T>>>>);

impl<T: Element> Sink for Fill<T> {
    fn take(&self, view: View<'_>, parallel: &dyn Parallel) -> Result<(), Error> {
        let ptr = lock(&self.0).as_ref().map(|buffer| buffer.first().as_ptr().cast());
        if let Some(ptr) = ptr {
            let (dtype, shape) = (T::DTYPE, view.shape);
            copy::copy(view, &ViewMut { ptr, dtype, shape, life: PhantomData }, parallel);
        }
        Ok(())
    }
    fn name(&self) -> &'static str {
        "to_pinned"
    }
    fn room(&self) -> Option<Result<Room, Refusal>> {
        let (ptr, place) = {
            let buffer = lock(&self.0);
            let buffer = buffer.as_ref()?;
            (buffer.first().as_ptr().cast(), buffer.place())
        };
        Some(Ok(Room { ptr, full: Box::new(move || drop(place)) }))
    }
    fn place(&self) -> Option<Arc<dyn Buffer>> {
        lock(&self.0).as_ref().map(Pinned::place)
    }
}

enum How<T: Element> {
    Step(Reading<Pinned<T>>),
    Wrong(Option<Error>),
}

/// The future of [`TensorFuture::to_pinned`].
#[must_use = "futures do nothing unless awaited"]
pub struct ToPinned<T: Element>(How<T>);

impl<T: Element> Unpin for ToPinned<T> {}

impl<T: Element> fmt::Debug for ToPinned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ToPinned({})", T::DTYPE)
    }
}

impl<T: Element> Future for ToPinned<T> {
    type Output = Result<Pinned<T>>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Pinned<T>>> {
        match &mut self.0 {
            How::Step(reading) => reading.poll(cx),
            How::Wrong(error) => {
                error.take().map_or(Poll::Pending, |error| Poll::Ready(Err(error)))
            }
        }
    }
}

impl TensorFuture {
    /// All elements in row-major order, in a buffer of [`Device::pinned`](crate::Device::pinned).
    /// A GPU copies them to where they lie in the buffer, while those of [`to_vec`](Self::to_vec)
    /// come by way of page-locked memory of the device's. Any device fills any device's buffer.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::try_gpu(0);
    /// let x = device.arange(0, 6, 1) * 2;
    /// let buffer = device.pinned::<i64>(6).await?;
    /// let mut buffer = x.to_pinned(buffer).await?;
    /// assert_eq!(*buffer, [0, 2, 4, 6, 8, 10]);
    /// buffer = (x + 1).to_pinned(buffer).await?;       // the same memory again
    /// assert_eq!(buffer[5], 11);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// A dtype error if the tensor has another element type, a shape error if it has another number
    /// of elements; the tensor's own error if it failed. The buffer's memory then goes back to the
    /// device's cache.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the read; a copy that has not begun is skipped. The memory goes
    /// to the device's cache, once a copy that is under way has ended.
    #[track_caller]
    pub fn to_pinned<T: Element>(&self, buffer: Pinned<T>) -> ToPinned<T> {
        let (at, name) = (Location::caller(), "to_pinned");
        let wrong = |kind, text| ToPinned(How::Wrong(Some(Error::new(kind, name, text, at))));
        if let Some(error) = self.error() {
            return ToPinned(How::Wrong(Some(error)));
        }
        if self.dtype() != T::DTYPE {
            let text = format!("the tensor is {}, not {}", self.dtype(), T::DTYPE);
            return wrong(ErrorKind::DType, text);
        }
        if self.numel() != buffer.len() {
            let text = format!(
                "a tensor of shape {} has {}, and the buffer has {}",
                self.shape(),
                number_of(self.numel(), "element", "elements"),
                buffer.len()
            );
            return wrong(ErrorKind::Shape, text);
        }
        let buffer = Arc::new(Mutex::new(Some(buffer)));
        let sink = Fill(buffer.clone());
        ToPinned(How::Step(Reading::of(name, self, build::seen(at), Arc::new(sink), buffer)))
    }
}
