//! Reads: copies of elements to the host, awaited, never blocking.
//!
//! A read is queued, and takes its snapshot, at the call (values are immutable, so the handle is
//! the snapshot). The poll copies a few bytes itself; a larger read is a queued step.

pub(crate) mod pinned;

use super::build;
use super::display;
use super::future::{Tensor, TensorFuture};
use crate::dtype::{DType, Element, with_any_dtype};
use crate::engine::port::Port;
use crate::error::{Error, ErrorKind, Result, bytes_of, number_of};
use crate::graph::node::{Op, Room, Sink};
use crate::graph::operation::{Meta, Refusal};
use crate::graph::value::{Buffer, Storage, Value};
use crate::host::kernels::copy;
use crate::shape::Shape;
use crate::sync::{Mutex, lock};
use crate::view::{Parallel, View, ViewMut};
use std::future::Future;
use std::marker::PhantomData;
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// The most bytes that a poll copies itself.
const COPIED_BY_POLL: usize = 4 << 10;

/// A sink that fills a slot.
struct Slot<R, F> {
    name: &'static str,
    at: build::At,
    taken: Arc<Mutex<Option<R>>>,
    take: F,
    #[allow(dead_code)] // Host devices have all elements at once.
    room: Option<MakeRoom<R>>,
}

/// Memory for all elements, and a function that makes the result once the memory is filled.
pub(crate) type Unfilled<R> = (*mut u8, Box<dyn FnOnce() -> R + Send>);
pub(crate) type MakeRoom<R> = Box<dyn Fn() -> Result<Unfilled<R>, Refusal> + Send + Sync>;

impl<R, F> Sink for Slot<R, F>
where
    R: Send + 'static,
    F: Fn(View<'_>, &dyn Parallel) -> Result<R, Refusal> + Send + Sync,
{
    fn room(&self) -> Option<Result<Room, Refusal>> {
        let make = self.room.as_ref()?;
        let taken = self.taken.clone();
        Some(make().map(|(ptr, full)| {
            let full = move || {
                let filled = full();
                *lock(&taken) = Some(filled);
            };
            Room { ptr, full: Box::new(full) }
        }))
    }
    fn take(&self, view: View<'_>, parallel: &dyn Parallel) -> Result<(), Error> {
        match (self.take)(view, parallel) {
            Ok(taken) => {
                *lock(&self.taken) = Some(taken);
                Ok(())
            }
            Err(refusal) => Err(Error::new(refusal.kind, self.name, refusal.message, self.at)),
        }
    }
    fn name(&self) -> &'static str {
        self.name
    }
}

/// A queued read, and the slot for its result.
#[derive(Debug)]
pub(crate) struct Reading<R> {
    name: &'static str,
    step: TensorFuture,
    taken: Arc<Mutex<Option<R>>>,
}

impl<R: Send + 'static> Reading<R> {
    pub(crate) fn queue(
        name: &'static str,
        x: &TensorFuture,
        at: build::At,
        take: impl Fn(View<'_>, &dyn Parallel) -> Result<R, Refusal> + Send + Sync + 'static,
        room: Option<MakeRoom<R>>,
    ) -> Reading<R> {
        let taken = Arc::new(Mutex::new(None));
        let sink = Slot { name, at, taken: taken.clone(), take, room };
        Reading::of(name, x, at, Arc::new(sink), taken)
    }

    /// The read of a sink, whose result is in a slot once its step has ended.
    pub(super) fn of(
        name: &'static str,
        x: &TensorFuture,
        at: build::At,
        sink: Arc<dyn Sink>,
        taken: Arc<Mutex<Option<R>>>,
    ) -> Reading<R> {
        let rule = || Ok(Meta { shape: ().into(), dtype: DType::Bool });
        Reading { name, step: build::apply(Op::Sink(sink), &[x], rule, at), taken }
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<R>> {
        ready!(self.step.poll_await(cx, self.name, self.step.node.at))?;
        self.taken()
    }

    /// For the engine: no user waits, so it does not count as a barrier.
    pub(crate) fn poll_arrival(&mut self, cx: &mut Context<'_>) -> Poll<Result<R>> {
        ready!(self.step.poll_done(cx));
        self.taken()
    }

    fn taken(&self) -> Poll<Result<R>> {
        if let Some(error) = self.step.node.error() {
            return Poll::Ready(Err(error.clone()));
        }
        let taken = lock(&self.taken).take();
        Poll::Ready(
            taken.ok_or_else(|| {
                self.step.node.fail(ErrorKind::Argument, "the read was awaited twice")
            }),
        )
    }
}

/// Host memory for `n` elements.
fn reserve<T: Element>(n: usize) -> Result<Vec<T>, Refusal> {
    let mut out: Vec<T> = Vec::new();
    out.try_reserve_exact(n).map_err(|_| Refusal::no_host_memory(n * size_of::<T>()))?;
    Ok(out)
}

/// All elements of a view, in row-major order.
fn elements<T: Element>(view: View<'_>, parallel: &dyn Parallel) -> Result<Vec<T>, Refusal> {
    let n = view.numel();
    let mut out = reserve::<T>(n)?;
    let to = ViewMut {
        ptr: out.as_mut_ptr() as *mut u8,
        dtype: T::DTYPE,
        shape: view.shape,
        life: PhantomData,
    };
    copy::copy(view, &to, parallel);
    #[allow(unsafe_code)]
    // SAFETY: the copy has written all n elements of the reserved memory.
    unsafe {
        out.set_len(n)
    };
    Ok(out)
}

/// The same for elements that a device writes.
fn unfilled<T: Element>(n: usize) -> Result<Unfilled<Vec<T>>, Refusal> {
    let mut out = reserve::<T>(n)?;
    let ptr = out.as_mut_ptr().cast();
    #[allow(unsafe_code)]
    let full = move || {
        // SAFETY: the function is called once all n elements are written.
        unsafe { out.set_len(n) };
        out
    };
    Ok((ptr, Box::new(full)))
}

/// Host memory that a device accounts for, of this many bytes.
fn memory_of(port: &'static Port, bytes: usize) -> Result<(*mut u8, Value), Refusal> {
    let block = port.memory.alloc(bytes).ok_or_else(|| Refusal {
        kind: ErrorKind::OutOfMemory,
        message: format!("out of memory: {} on {}", bytes_of(bytes), port.profile.name),
    })?;
    let ptr = block.host().unwrap_or(std::ptr::null_mut());
    Ok((ptr, Value::contiguous(Storage::Shared(block))))
}

/// Queues a copy of a value to the host memory of another device.
pub(crate) fn to_memory(x: &TensorFuture, to: &'static Port, at: build::At) -> Reading<Value> {
    let (dtype, bytes) = (x.dtype(), x.node.bytes());
    let take = move |view: View<'_>, parallel: &dyn Parallel| {
        let (ptr, value) = memory_of(to, bytes)?;
        copy::copy(view, &ViewMut { ptr, dtype, shape: view.shape, life: PhantomData }, parallel);
        Ok(value)
    };
    let room = move || {
        let (ptr, value) = memory_of(to, bytes)?;
        let full: Box<dyn FnOnce() -> Value + Send> = Box::new(move || value);
        Ok((ptr, full))
    };
    Reading::queue("to_device", x, at, take, Some(Box::new(room)))
}

/// The view of a complete value in host memory, lent to a closure.
fn with_view<R>(x: &TensorFuture, look: impl FnOnce(View<'_>) -> R) -> Option<R> {
    let value = x.node.value()?;
    let base = value.host()?;
    let layout = value.layout(x.shape());
    #[allow(unsafe_code)]
    // SAFETY: the offset of a layout lies in its storage, which the handle keeps.
    let ptr = unsafe { base.add(layout.offset * x.dtype().size()) };
    Some(look(View { ptr, dtype: x.dtype(), shape: &layout.shape, strides: &layout.strides }))
}

enum How<R> {
    /// Wait for the value, then copy in the poll.
    Few(TensorFuture, &'static str, build::At),
    /// Wait for a step that copies.
    Step(Reading<R>),
    Wrong(Option<Error>),
}

macro_rules! named_read {
    ($(#[$doc:meta])* $Name:ident<$T:ident>, $R:ty) => {
        $(#[$doc])*
        #[must_use = "futures do nothing unless awaited"]
        pub struct $Name<$T: Element>(How<Vec<$T>>);
        impl<$T: Element> Unpin for $Name<$T> {}
        impl<$T: Element> std::fmt::Debug for $Name<$T> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!(stringify!($Name), "({})"), $T::DTYPE)
            }
        }
    };
}

named_read!(
    /// The future of [`TensorFuture::to_vec`].
    ToVec<T>, Vec<T>
);
named_read!(
    /// The future of [`TensorFuture::item`].
    Item<T>, T
);

impl<T: Element> How<Vec<T>> {
    fn new(name: &'static str, x: &TensorFuture, at: build::At) -> How<Vec<T>> {
        if let Some(error) = x.error() {
            return How::Wrong(Some(error));
        }
        if x.dtype() != T::DTYPE {
            let text = format!("the tensor is {}, not {}", x.dtype(), T::DTYPE);
            return How::Wrong(Some(Error::new(ErrorKind::DType, name, text, at)));
        }
        if x.node.bytes() <= COPIED_BY_POLL && x.port().profile.in_memory {
            return How::Few(x.clone(), name, at);
        }
        let n = x.numel();
        How::Step(Reading::queue(
            name,
            x,
            at,
            elements::<T>,
            Some(Box::new(move || unfilled::<T>(n))),
        ))
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Vec<T>>> {
        match self {
            How::Few(x, name, at) => {
                ready!(x.poll_await(cx, name, at))?;
                if let Some(error) = x.node.error() {
                    return Poll::Ready(Err(error.clone()));
                }
                let read = with_view(x, |view| view.to_vec::<T>()).flatten();
                Poll::Ready(
                    read.ok_or_else(|| x.node.fail(ErrorKind::DType, "the value cannot be read")),
                )
            }
            How::Step(reading) => reading.poll(cx),
            How::Wrong(error) => match error.take() {
                Some(error) => Poll::Ready(Err(error)),
                None => Poll::Pending,
            },
        }
    }
}

impl<T: Element> Future for ToVec<T> {
    type Output = Result<Vec<T>>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Vec<T>>> {
        self.0.poll(cx)
    }
}

impl<T: Element> Future for Item<T> {
    type Output = Result<T>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T>> {
        if let How::Few(x, name, at) = &mut self.0 {
            // A single element, without a vector.
            ready!(x.poll_await(cx, name, at))?;
            if let Some(error) = x.node.error() {
                return Poll::Ready(Err(error.clone()));
            }
            #[allow(unsafe_code)]
            // SAFETY: one element of this type; its view is valid for reads.
            let one = with_view(x, |view| unsafe { *(view.ptr as *const T) });
            return Poll::Ready(
                one.ok_or_else(|| x.node.fail(ErrorKind::DType, "the value cannot be read")),
            );
        }
        self.0.poll(cx).map(|read| read.map(|v| v[0]))
    }
}

/// # Reading
///
/// Each read is queued at the call and returns its result when awaited; nothing blocks.
impl TensorFuture {
    /// All elements in row-major order.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().arange(0, 3, 1);
    /// assert_eq!(x.to_vec::<i64>().await?, [0, 1, 2]);
    /// let error = x.to_vec::<f32>().await.unwrap_err();
    /// assert_eq!(error.message(), "the tensor is int64, not float32");
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// A dtype error if the tensor has another element type; the tensor's own error if it failed.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the read; a copy that has not begun is skipped.
    #[doc(alias("numpy", "tolist"))]
    #[track_caller]
    pub fn to_vec<T: Element>(&self) -> ToVec<T> {
        ToVec(How::new("to_vec", self, Location::caller()))
    }

    /// The element of a tensor with exactly one element.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// assert_eq!(device.ones([2, 2]).sum_all().item::<f32>().await?, 4.0);
    /// assert!(device.ones([2]).item::<f32>().await.unwrap_err().is_shape());
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// A shape error if the tensor does not have exactly one element; otherwise as
    /// [`to_vec`](Self::to_vec).
    #[track_caller]
    pub fn item<T: Element>(&self) -> Item<T> {
        let at = Location::caller();
        if self.numel() != 1 && self.error().is_none() {
            let text = format!(
                "a tensor of shape {} has {}, not one",
                self.shape(),
                number_of(self.numel(), "element", "elements")
            );
            return Item(How::Wrong(Some(Error::new(ErrorKind::Shape, "item", text, at))));
        }
        Item(How::new("item", self, at))
    }

    /// The elements as text, in PyTorch's format; only the edges of a large tensor are copied.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().ones([1, 2]) * 3.0;
    /// assert_eq!(x.display().await?, "tensor([[3., 3.]])");
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// The tensor's own error if it failed.
    #[doc(alias("print", "repr"))]
    #[track_caller]
    pub fn display(&self) -> Shown {
        let at = Location::caller();
        let (device, shape) = (self.port().profile.name.clone(), self.shape().clone());
        let sink = move |view: View<'_>, _: &dyn Parallel| Ok(show(&shape, &device, view));
        Shown(Reading::queue("display", self, at, sink, None))
    }

    /// The indices of the nonzero elements, one row each, in row-major order: int64 `[n, rank]`.
    /// Returns a future of a [`Tensor`], since the shape depends on the data.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().from_vec(vec![0, 5, 0, 7], [2, 2]);
    /// let at = x.nonzero().await?;
    /// assert_eq!((at.dims(), at.to_vec::<i64>().await?), (&[2, 2][..], vec![0, 1, 1, 1]));
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[doc(alias = "argwhere")]
    #[track_caller]
    pub fn nonzero(&self) -> NonZero {
        let at = Location::caller();
        let sink = |view: View<'_>, parallel: &dyn Parallel| {
            crate::ops::index::nonzero::nonzero(view, parallel)
        };
        let refused = self
            .dtype()
            .is_storage()
            .then(|| build::refused("nonzero", self, Refusal::storage(self.dtype()), at));
        let of = refused.as_ref().unwrap_or(self);
        NonZero { reading: Reading::queue("nonzero", of, at, sink, None), rank: self.rank(), at }
    }

    /// All elements as an `ndarray` array.
    ///
    /// # Errors
    /// As [`to_vec`](Self::to_vec).
    #[doc(alias = "numpy")]
    #[cfg(feature = "ndarray")]
    #[track_caller]
    pub fn to_ndarray<T: Element>(&self) -> ToNdarray<T> {
        ToNdarray(How::new("to_ndarray", self, Location::caller()), self.shape().clone())
    }
}

/// The text of a value. Only the elements that are shown are read.
fn show(shape: &Shape, device: &str, view: View<'_>) -> String {
    // An empty value shows no elements, however large its other sizes are.
    let window = if shape.numel() == 0 { Default::default() } else { display::window(shape) };
    let mut offsets = if shape.numel() == 0 { Vec::new() } else { vec![0isize] };
    for (ranges, &stride) in window.iter().zip(view.strides) {
        let steps: Vec<isize> =
            ranges.iter().flat_map(|r| r.clone()).map(|i| i as isize * stride).collect();
        offsets = offsets.iter().flat_map(|o| steps.iter().map(move |s| o + s)).collect();
    }
    fn each<T: Element, R>(view: View<'_>, offsets: &[isize], f: impl Fn(T) -> R) -> Vec<R> {
        #[allow(unsafe_code)]
        // SAFETY: every offset belongs to an index inside the shape, for which the view promises
        // reads.
        offsets.iter().map(|&o| f(unsafe { *(view.ptr as *const T).offset(o) })).collect()
    }
    let values = match view.dtype {
        DType::Bool => display::Values::Bool(each(view, &offsets, |x: bool| x)),
        DType::U64 => display::Values::Int(each(view, &offsets, |x: u64| x.into())),
        d if d.is_differentiable() => with_any_dtype!(d, T => {
            display::Values::Float(each(view, &offsets, T::to_f64))
        }),
        d => with_any_dtype!(d, T => {
            display::Values::Int(each(view, &offsets, |x: T| x.to_i64().into()))
        }),
    };
    display::format(shape, view.dtype, (!device.starts_with("cpu")).then_some(device), &values)
}

/// The future of [`TensorFuture::display`].
#[must_use = "futures do nothing unless awaited"]
#[derive(Debug)]
pub struct Shown(Reading<String>);

impl Future for Shown {
    type Output = Result<String>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<String>> {
        self.0.poll(cx)
    }
}

/// The future of [`TensorFuture::nonzero`].
#[must_use = "futures do nothing unless awaited"]
#[derive(Debug)]
pub struct NonZero {
    reading: Reading<(usize, Vec<i64>)>,
    rank: usize,
    at: build::At,
}

impl Future for NonZero {
    type Output = Result<Tensor>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Tensor>> {
        let (rows, indices) = ready!(self.reading.poll(cx))?;
        let (rank, at, device) = (self.rank, self.at, self.reading.step.device());
        Poll::Ready(device.handed("nonzero", indices, [rows, rank].into(), at).outcome())
    }
}

/// The future of [`TensorFuture::to_ndarray`].
#[cfg(feature = "ndarray")]
#[must_use = "futures do nothing unless awaited"]
pub struct ToNdarray<T: Element>(How<Vec<T>>, crate::shape::Shape);

#[cfg(feature = "ndarray")]
impl<T: Element> Unpin for ToNdarray<T> {}

#[cfg(feature = "ndarray")]
impl<T: Element> Future for ToNdarray<T> {
    type Output = Result<ndarray::ArrayD<T>>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let data = ready!(self.0.poll(cx))?;
        let shape = ndarray::IxDyn(self.1.dims());
        let array = ndarray::ArrayD::from_shape_vec(shape, data);
        Poll::Ready(array.map_err(|e| Error::custom("to_ndarray", e.to_string())))
    }
}
