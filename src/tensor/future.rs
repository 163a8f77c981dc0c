//! `TensorFuture`: a value that is being computed, and awaiting it; `Tensor`: a complete value.

mod families;

use super::budget;
use crate::concurrent::completion::{AWAITED, DETACHED, Phase, TRACED};
use crate::dtype::DType;
use crate::engine::port::Port;
use crate::error::{Error, Result};
use crate::graph::claim::refuse_traced;
use crate::graph::node::{INLINE_NS, Node, NodeHandle};
use crate::graph::tape::TapeHandle;
use crate::shape::Shape;
use crate::sync::clock::Instant;
use crate::sync::threads::spin_loop;
use families::families;
use std::fmt;
use std::future::{Future, IntoFuture};
use std::ops::Deref;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll};

/// The line of a call in the caller's source.
pub(crate) type At = &'static Location<'static>;

/// A tensor that is being computed, or will be. Every op returns one immediately.
///
/// Shape, element type and device are known now; the elements are not. The op is already queued and
/// runs without being polled; `.await` waits for this one value and returns a [`Tensor`]. The
/// handle is a plain value: it can be cloned, sent to other threads, and awaited by many tasks, any
/// number of times.
///
/// Unobserved values may be skipped: if the last handle is dropped before the op starts, the op
/// does not run. [`detach`](Self::detach) makes it run anyway.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::Device;
/// let device = Device::cpu();
/// let x = device.ones([2, 3]);
/// let y = &x * 2.0 + 1.0;                      // queued, nothing has waited
/// assert_eq!(y.shape(), &[2, 3].into());       // known at once
/// assert_eq!(y.await?.to_vec::<f32>().await?, vec![3.0; 6]);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
///
/// # Cancel safety
///
/// Dropping an await (for example in the branch of a `select!` that lost) gives up only the wait:
/// while another handle lives, the value is computed and can be awaited again.
///
/// # Methods by family
///
/// Reductions also have a `_keepdim` and an `_all` form.
///
#[doc = families!()]
#[must_use = "an unobserved tensor is not computed: await it, keep it, or `detach` it"]
pub struct TensorFuture {
    pub(crate) node: NodeHandle,
    waiting: Option<Box<Waiting>>,
    /// The value's place on the gradient tape, if it has one.
    pub(crate) tape: Option<TapeHandle>,
}

/// This file, which is the caller's location if a poll is called through a `dyn Future`.
pub(crate) const FILE: &str = file!();

/// One await that has not ended.
struct Waiting {
    id: Option<u32>,
    since: Instant,
    /// Ops in the device's queue when the wait began, if a barrier report is being collected.
    queued: Option<usize>,
}

/// The device's port, from a node.
pub(crate) fn port_of(node: &Node) -> &'static Port {
    Port::of(node)
}

/// # Awaiting
///
/// `.await` on a value, or on a reference to one, waits for it and returns a [`Tensor`].
impl TensorFuture {
    /// Waits until this value is complete: MXNet's `wait_to_read`. Like `(&x).await`, but returns
    /// `()`.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().ones([2]) + 1.0;
    /// x.wait_to_read().await?;                     // this value alone
    /// assert!(x.is_ready());
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// The root error of this value: its own, or the error of a value that it is computed from.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the wait; the handle keeps the value.
    #[track_caller]
    pub fn wait_to_read(&self) -> Wait {
        Wait(self.clone(), Location::caller())
    }

    /// Fire and forget: this value and the values it depends on are computed even if all handles
    /// are dropped. If the value fails, its error is returned by the device's next
    /// [`waitall`](crate::Device::waitall).
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu_with(Default::default());
    /// (device.ones([2]) + 1.0).detach();
    /// device.waitall().await?;
    /// assert_eq!(device.stats().skipped, 0);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    pub fn detach(&self) {
        let before = self.node.completion.set(DETACHED);
        if before.phase() == Phase::Failed
            && !before.has(DETACHED)
            && let Some(error) = self.node.error()
        {
            self.port().log.note(error);
        }
    }

    /// True once the value is complete or has failed. Does not wait.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().ones([2]);
    /// x.wait_to_read().await?;
    /// assert!(x.is_ready());
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[doc(alias = "query")]
    pub fn is_ready(&self) -> bool {
        self.node.completion.state().is_complete()
    }

    /// The error, if the op is known to have failed. Does not wait, and does not consume the error.
    ///
    /// ```
    /// let device = futensor::Device::cpu();
    /// let wrong = device.ones([2, 3]) + device.ones([4]);
    /// assert!(wrong.error().unwrap().is_shape());
    /// ```
    pub fn error(&self) -> Option<Error> {
        self.node.error().cloned()
    }
}

/// # What is known at once
///
/// Metadata is available before the elements are computed.
impl TensorFuture {
    /// The sizes of the dimensions.
    pub fn shape(&self) -> &Shape {
        &self.node.shape
    }

    /// The sizes of the dimensions, as a slice.
    #[doc(alias = "size")]
    pub fn dims(&self) -> &[usize] {
        self.node.shape.dims()
    }

    /// The number of dimensions.
    #[doc(alias("dim", "ndim", "ndimension"))]
    pub fn rank(&self) -> usize {
        self.node.shape.rank()
    }

    /// The number of elements.
    #[doc(alias("nelement", "len"))]
    pub fn numel(&self) -> usize {
        self.node.numel()
    }

    /// The element type.
    #[doc(alias = "type")]
    pub fn dtype(&self) -> DType {
        self.node.dtype
    }
}

impl TensorFuture {
    pub(crate) fn new(node: NodeHandle) -> TensorFuture {
        TensorFuture { node, waiting: None, tape: None }
    }

    /// A value on the gradient tape.
    pub(crate) fn taped(node: NodeHandle, tape: TapeHandle) -> TensorFuture {
        TensorFuture { node, waiting: None, tape: Some(tape) }
    }

    pub(crate) fn port(&self) -> &'static Port {
        port_of(&self.node)
    }

    /// When this handle began to wait, if it waits.
    pub(crate) fn waits_since(&self) -> Option<Instant> {
        self.waiting.as_ref().map(|w| w.since)
    }

    /// The depth of the queue when the wait began, if it was recorded.
    pub(crate) fn queued_then(&self) -> Option<usize> {
        self.waiting.as_ref().and_then(|w| w.queued)
    }

    /// Records the depth of the queue, for the report at the end of the wait.
    pub(crate) fn note_queued(&mut self, queued: usize) {
        if let Some(waiting) = &mut self.waiting {
            waiting.queued = Some(queued);
        }
    }

    /// Waits for the value, for the engine: ready once the node is complete.
    pub(crate) fn poll_done(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_ended(cx, false)
    }

    /// Waits for the value; counted as a barrier where a user waits.
    pub(super) fn poll_ended(&mut self, cx: &mut Context<'_>, counted: bool) -> Poll<()> {
        if self.node.completion.state().is_complete() || self.run_inline() {
            // A value that ran inline is returned by the next poll.
            if !budget::spend(self.node.cost_ns()) {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let port = self.port();
            if counted {
                port.polls.ended_barrier();
            }
            if let Some(waiting) = self.waiting.take() {
                let waited = if counted { waiting.since.elapsed().as_nanos() as u64 } else { 0 };
                port.polls.waited(waited);
                if let Some(id) = waiting.id {
                    self.node.completion.deregister(id);
                }
            }
            return Poll::Ready(());
        }
        let node = &self.node;
        let waiting = self.waiting.get_or_insert_with(|| {
            Box::new(Waiting { id: None, since: Instant::now(), queued: None })
        });
        let before = node.completion.set(AWAITED);
        if before.has(TRACED) {
            refuse_traced(node);
        }
        if node.completion.register(&mut waiting.id, cx.waker()) {
            return self.poll_ended(cx, counted);
        }
        port_of(node).runner.awaits();
        if !before.has(AWAITED) && before.phase() == Phase::Pending {
            // The engine may have held the op back to fuse it: an awaited op is not held back.
            port_of(node).schedule_awaited(node.link());
        }
        // Only here: a value that completed at the last moment counts against the budget of a loop
        // that has not yielded.
        budget::rest();
        Poll::Pending
    }

    /// Runs a small step on this thread if the device allows it; true if the value is then
    /// complete.
    fn run_inline(&mut self) -> bool {
        let node = &mut self.node;
        let port = port_of(node);
        if !port.profile.inline || node.is_long() {
            return false;
        }
        if !node.is_left_by_polls() && port.runner.run_inline(port, node, INLINE_NS) {
            return true;
        }
        // The engine may be writing the value right now: that takes less time than a hand-over.
        for _ in 0..64 {
            if node.completion.state().is_complete() {
                return true;
            }
            if node.completion.state().phase() != Phase::Writing {
                return false;
            }
            spin_loop();
        }
        false
    }

    /// The complete value as a `Tensor`, or its error.
    pub(crate) fn outcome(&mut self) -> Result<Tensor> {
        match self.node.completion.get() {
            Some(Ok(_)) => {
                let (node, tape) = (self.node.clone_mut(), self.tape.clone());
                Ok(Tensor::known(TensorFuture { node, waiting: None, tape }))
            }
            Some(Err(error)) => Err(error.clone()),
            None => unreachable!("asked for only once the node is complete"),
        }
    }
}

impl Clone for TensorFuture {
    fn clone(&self) -> TensorFuture {
        TensorFuture { node: self.node.clone(), waiting: None, tape: self.tape.clone() }
    }
}

impl Drop for TensorFuture {
    fn drop(&mut self) {
        if let Some(id) = self.waiting.take().and_then(|w| w.id) {
            self.node.completion.deregister(id);
        }
    }
}

impl Future for TensorFuture {
    type Output = Result<Tensor>;
    // The caller is the line of the `.await`.
    #[track_caller]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Tensor>> {
        let waited = std::task::ready!(self.poll_await(cx, "await", Location::caller()));
        Poll::Ready(waited.and_then(|()| self.outcome()))
    }
}

impl IntoFuture for &TensorFuture {
    type Output = Result<Tensor>;
    type IntoFuture = TensorFuture;
    #[track_caller]
    fn into_future(self) -> TensorFuture {
        self.clone()
    }
}

impl fmt::Debug for TensorFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (dtype, shape, name) = (self.dtype(), self.shape(), &self.port().profile.name);
        write!(f, "TensorFuture({dtype} {shape} on {name}, ")?;
        match (self.node.error(), self.is_ready()) {
            (Some(error), _) => write!(f, "failed: {error})"),
            (None, true) => f.write_str("ready)"),
            (None, false) => f.write_str("pending)"),
        }
    }
}

/// Shape, type, device and state; of a failed value the error. Elements are read by
/// [`display`](TensorFuture::display), which is awaited.
///
/// ```
/// let device = futensor::Device::cpu();
/// let wrong = device.ones([2, 3]) * device.ones([4]);
/// let text = "TensorFuture(float32 [2, 3] on cpu, failed: mul: cannot broadcast [2, 3] with [4] ";
/// assert!(wrong.to_string().starts_with(text));
/// ```
impl fmt::Display for TensorFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The future of [`TensorFuture::wait_to_read`].
#[must_use = "futures do nothing unless awaited"]
#[derive(Debug)]
pub struct Wait(TensorFuture, &'static Location<'static>);

impl Future for Wait {
    type Output = Result<()>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let site = self.1;
        let waited = std::task::ready!(self.0.poll_await(cx, "wait_to_read", site));
        Poll::Ready(waited.and_then(|()| match self.0.node.error() {
            None => Ok(()),
            Some(error) => Err(error.clone()),
        }))
    }
}

/// A complete value: the result of awaiting a [`TensorFuture`].
///
/// A tensor can do everything that a future can: it dereferences to a [`TensorFuture`] for methods,
/// and operators and `await` accept it directly.
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

    /// The same value as a future, for code that expects one.
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
        write!(f, "Tensor({} {} on {})", self.dtype(), self.shape(), &self.port().profile.name)
    }
}

/// Shape, type and device, and a hint how to read the elements: a read is a barrier, so it is
/// awaited.
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
        let (dtype, shape, name) = (self.dtype(), self.shape(), &self.port().profile.name);
        write!(f, "Tensor({dtype} {shape} on {name}; for the elements: `x.display().await`)")
    }
}
