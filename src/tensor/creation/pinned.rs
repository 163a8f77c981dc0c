//! Host memory for data that goes to a device, or comes from it (`read/pinned`): page-locked where
//! the device is a GPU, which then copies it without a staging copy in between.
//!
//! The memory is made by a thread of the device's, since a driver may wait for running work there.
//! Knows nothing of drivers: the runner has the memory.

#![allow(unsafe_code)]

use super::check_elements;
use crate::dtype::{DType, Element};
use crate::engine::port::Port;
use crate::error::{Error, ErrorKind, Result};
use crate::graph::operation::Refusal;
use crate::graph::value::{Buffer, Storage, Value};
use crate::guard::{caught, wake_all};
use crate::shape::Shape;
use crate::sync::{Mutex, lock};
use crate::tensor::build;
use crate::tensor::device::Device;
use crate::tensor::future::TensorFuture;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::panic::Location;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// A slice of host memory for [`Device::from_pinned`] and [`TensorFuture::to_pinned`]: see
/// [`Device::pinned`].
///
/// Dropping it gives the memory back to the device's cache, and waits for nothing.
pub struct Pinned<T: Element> {
    /// This is its only owner.
    buffer: Arc<dyn Buffer>,
    n: usize,
    of: PhantomData<T>,
}

impl<T: Element> Pinned<T> {
    pub(in crate::tensor) fn first(&self) -> NonNull<T> {
        self.buffer.host().and_then(|at| NonNull::new(at.cast())).unwrap_or(NonNull::dangling())
    }

    /// The memory, for what fills it while nobody else has the slice.
    pub(in crate::tensor) fn place(&self) -> Arc<dyn Buffer> {
        self.buffer.clone()
    }
}

impl<T: Element> Deref for Pinned<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: the buffer has `n` elements of this type, aligned and written (`of_buffer`), and
        // nobody else has the buffer.
        unsafe { std::slice::from_raw_parts(self.first().as_ptr(), self.n) }
    }
}

impl<T: Element> DerefMut for Pinned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.first().as_ptr(), self.n) }
    }
}

impl<T: Element> fmt::Debug for Pinned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pinned({} of {})", self.n, T::DTYPE)
    }
}

type Answer<T> = Mutex<(Option<Result<Pinned<T>>>, Option<Waker>)>;

/// The future of [`Device::pinned`].
#[must_use = "futures do nothing unless awaited"]
pub struct Pinning<T: Element>(Arc<Answer<T>>);

impl<T: Element> fmt::Debug for Pinning<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pinning({})", T::DTYPE)
    }
}

impl<T: Element> Future for Pinning<T> {
    type Output = Result<Pinned<T>>;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Pinned<T>>> {
        // A waker is the user's: it is cloned and dropped outside the lock.
        let mut waker = Some(cx.waker().clone());
        let mut answer = lock(&self.0);
        match answer.0.take() {
            Some(made) => Poll::Ready(made),
            None => {
                std::mem::swap(&mut answer.1, &mut waker);
                drop(answer);
                Poll::Pending
            }
        }
    }
}

impl Device {
    /// Host memory for `n` elements, to be filled and handed over by
    /// [`from_pinned`](Self::from_pinned), or for elements that come back
    /// ([`to_pinned`](TensorFuture::to_pinned)). For a GPU it is page-locked: the GPU reads and
    /// writes it where it lies, while data of [`from_vec`](Self::from_vec) is first copied to
    /// page-locked memory by the host's threads. For other devices it is plain memory.
    ///
    /// The elements are zeros, or what an earlier owner has left. Page-locking takes milliseconds
    /// and takes the memory from the rest of the computer, so the memory of dropped buffers and of
    /// tensors that are on the GPU is kept for the next call of the same size, up to a power of
    /// two, until [`trim`](Self::trim) or the end of a device on that GPU. It counts towards no
    /// limit of a GPU device; on other devices it counts as the memory of a value.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::try_gpu(0);
    /// let mut rows = device.pinned::<f32>(6).await?;
    /// rows.copy_from_slice(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    /// let x = device.from_pinned(rows, [2, 3]);
    /// assert_eq!(x.sum(1).to_vec::<f32>().await?, [6.0, 15.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// An out-of-memory error if the system or the driver has no such memory; a device error if the
    /// GPU cannot be used.
    ///
    /// # Cancel safety
    /// If the future is dropped, the memory goes to the cache.
    #[doc(alias("pin_memory", "page_locked"))]
    #[track_caller]
    pub fn pinned<T: Element>(&self, n: usize) -> Pinning<T> {
        let (port, at) = (self.port, Location::caller());
        let answer: Arc<Answer<T>> = Arc::new(Mutex::new((None, None)));
        let to = answer.clone();
        port.aside(move || {
            let bytes = n.saturating_mul(size_of::<T>());
            let made =
                caught(|| memory(port, bytes).map(|(buffer, is_new)| of_buffer(buffer, n, is_new)));
            // A panic is an answer too, or its future would wait for ever.
            let made = made
                .unwrap_or_else(|message| Err(Refusal { kind: ErrorKind::Device, message }))
                .map_err(|Refusal { kind, message }| Error::new(kind, "pinned", message, at));
            let waker = {
                let mut answer = lock(&to);
                answer.0 = Some(made);
                answer.1.take()
            };
            wake_all(waker);
        });
        Pinning(answer)
    }

    /// A tensor of the elements of a buffer of [`pinned`](Self::pinned), without a copy on the
    /// host. The tensor owns the buffer; a GPU gives it back once the copy has ended, whatever
    /// becomes of the tensor meanwhile.
    ///
    /// The device may be another one than the buffer's: any device takes it as it takes other host
    /// data, and any GPU reads it where it lies.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let pinned = device.pinned::<i32>(3).await?;
    /// assert!(device.from_pinned(pinned, [2]).error().unwrap().is_shape());
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// A shape error if the shape has another number of elements.
    #[track_caller]
    pub fn from_pinned<T: Element>(
        &self,
        data: Pinned<T>,
        shape: impl Into<Shape>,
    ) -> TensorFuture {
        let at = build::seen(Location::caller());
        let (shape, name) = (shape.into(), build::named("from_pinned"));
        let value = check_elements::<T>(data.n, &shape, name, at).map(|()| {
            let value = Value::contiguous(Storage::Shared(data.buffer));
            self.port.runner.receive(value, &shape, T::DTYPE)
        });
        TensorFuture::new(self.port.given(shape, T::DTYPE, at, value))
    }
}

/// Memory for so many bytes that a device reads where it lies, and whether it is new.
fn memory(
    port: &'static Port,
    bytes: usize,
) -> std::result::Result<(Arc<dyn Buffer>, bool), Refusal> {
    if let Some(locked) = port.runner.page_locked(bytes) {
        return locked;
    }
    let block = port.memory.alloc(bytes).ok_or_else(|| Refusal::no_host_memory(bytes))?;
    Ok((block as Arc<dyn Buffer>, true))
}

/// Elements in a buffer that nobody else has. All bytes of a new one are made zeros; an earlier
/// owner's bytes are elements of any type but `bool`.
fn of_buffer<T: Element>(buffer: Arc<dyn Buffer>, n: usize, is_new: bool) -> Pinned<T> {
    let pinned = Pinned { buffer, n, of: PhantomData };
    if is_new || T::DTYPE == DType::Bool {
        let bytes = pinned.buffer.bytes();
        // SAFETY: the buffer has so many bytes and no other owner; zero bytes are an element.
        unsafe { pinned.first().cast::<u8>().write_bytes(0, bytes) };
    }
    pinned
}
