//! Values from outside the engine: the result of a user's future, and a copy of a value of
//! another device.

use crate::concurrent::completion::{AWAITED, Phase, TRACED};
use crate::dtype::DType;
use crate::engine::port::Port;
use crate::engine::sources::Held;
use crate::error::{Error, ErrorKind};
use crate::graph::claim::refuse_traced;
use crate::graph::node::{Op, Source};
use crate::graph::operation::Meta;
use crate::graph::tape::Made;
use crate::graph::value::Value;
use crate::guard::{caught, discard, discard_unlocked};
use crate::shape::Shape;
use crate::sync::{Mutex, lock};
use crate::tensor::build::{self, At};
use crate::tensor::device::Device;
use crate::tensor::future::TensorFuture;
use crate::tensor::gradient::taped::{is_taping, taped};
use crate::tensor::read;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// A future that supplies a node's value.
struct Brought {
    port: &'static Port,
    name: &'static str,
    at: At,
    ours: bool,
    stage: Mutex<Stage>,
}

/// A future, and the guard that counts it; fields are dropped in this order.
type Bringing = (Pin<Box<dyn Future<Output = Result<Value, Error>> + Send>>, Held);

enum Stage {
    Waiting(Bringing),
    /// A thread is polling the future. The waker is that of a poll that came meanwhile, and has to
    /// be repeated.
    Polled(Option<Waker>),
    Over,
}

impl Source for Brought {
    fn poll(&self, context: &mut Context<'_>) -> Poll<Result<Value, Error>> {
        let mut future = {
            let mut stage = lock(&self.stage);
            match std::mem::replace(&mut *stage, Stage::Polled(None)) {
                Stage::Waiting(future) => future,
                Stage::Polled(_) => {
                    // The waker is the engine's: no user code is called under the lock.
                    *stage = Stage::Polled(Some(context.waker().clone()));
                    return Poll::Pending;
                }
                Stage::Over => {
                    *stage = Stage::Over;
                    return Poll::Pending;
                }
            }
        };
        let result = match caught(|| future.0.as_mut().poll(context)) {
            Ok(Poll::Pending) => {
                let meanwhile = std::mem::replace(&mut *lock(&self.stage), Stage::Waiting(future));
                if let Stage::Polled(Some(waker)) = meanwhile {
                    waker.wake();
                }
                return Poll::Pending;
            }
            Ok(Poll::Ready(result)) => result,
            Err(words) => {
                let text = format!("the future panicked: {words}");
                Err(Error::new(ErrorKind::Source, self.name, text, self.at))
            }
        };
        *lock(&self.stage) = Stage::Over;
        discard(future);
        Poll::Ready(result)
    }
    fn is_ours(&self) -> bool {
        self.ours
    }
    fn name(&self) -> &'static str {
        self.name
    }
}

impl Drop for Brought {
    fn drop(&mut self) {
        let stage = std::mem::replace(&mut *lock(&self.stage), Stage::Over);
        match stage {
            // The thread that drops the last link must not wait for user code.
            Stage::Waiting(future) if !self.ours => self.port.aside(move || discard(future)),
            stage => discard_unlocked(stage),
        }
    }
}

/// A node whose value a future supplies. `ours` means that the future is the library's own, with
/// short polls.
pub(crate) fn sourced(
    port: &'static Port,
    name: &'static str,
    ours: bool,
    shape: Shape,
    dtype: DType,
    value: impl Future<Output = Result<Value, Error>> + Send + 'static,
    at: At,
) -> TensorFuture {
    let bringing: Bringing = (Box::pin(value), port.sources.hold());
    let source = Brought { port, name, at, ours, stage: Mutex::new(Stage::Waiting(bringing)) };
    build::create(port, Op::Source(Arc::new(source)), shape, dtype, at)
}

/// The value of a node on another device, for the engine. No user waits for it, so it does not
/// count as a barrier.
pub(crate) struct Arrival {
    from: TensorFuture,
    registration: Option<u32>,
    to: &'static Port,
    at: At,
    /// The elements have to be in row-major order.
    plain: bool,
    /// The device can copy them into that order.
    packs: bool,
    /// The copy to host memory, if the value takes that path.
    reading: Option<read::Reading<Value>>,
}

impl Arrival {
    /// A copy from another device to the host is queued now, behind the op that computes the value.
    pub fn new(x: &TensorFuture, to: &'static Port, plain: bool, at: At) -> Arrival {
        let reading = (!x.port().profile.in_memory && to.profile.in_memory)
            .then(|| read::to_memory(x, to, at));
        let packs = plain && !to.profile.in_memory && std::ptr::eq(x.port(), to);
        Arrival { from: x.stop_gradient(), registration: None, to, at, plain, packs, reading }
    }

    fn hang_up(&mut self) {
        if let Some(registration) = self.registration.take() {
            self.from.node.completion.deregister(registration);
        }
    }
}

impl Future for Arrival {
    type Output = Result<Value, Error>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Value, Error>> {
        let Arrival { from, registration, to, at, plain, packs, reading } = &mut *self;
        let (shape, dtype) = (from.shape(), from.dtype());
        let received = |value| to.runner.receive(value, shape, dtype);
        if let Some(reading) = reading {
            let read = std::task::ready!(reading.poll_arrival(cx));
            return Poll::Ready(read.map(received));
        }
        let node = &from.node;
        if node.completion.get().is_none() {
            let before = node.completion.set(AWAITED);
            if before.has(TRACED) {
                refuse_traced(node);
            }
            if !node.completion.register(registration, cx.waker()) {
                if !before.has(AWAITED) && before.phase() == Phase::Pending {
                    // The engine may have held the op back to fuse it: an awaited op is not held
                    // back.
                    from.port().schedule(node.link());
                }
                return Poll::Pending;
            }
        }
        let value = match node.completion.get() {
            Some(Ok(value)) => value,
            Some(Err(error)) => return Poll::Ready(Err(error.clone())),
            None => unreachable!("it was complete"),
        };
        if let Some(value) = from.port().runner.lend(value, shape, &*to.runner)
            && (!*plain || value.layout(shape).is_contiguous())
        {
            return Poll::Ready(Ok(received(value)));
        }
        if std::mem::take(packs) && value.buffer().is_some() {
            let copy =
                build::apply(Op::Cast, &[from], || Ok(Meta { shape: shape.clone(), dtype }), at);
            self.hang_up();
            self.from = copy;
            return self.poll(cx);
        }
        let mut read = read::to_memory(from, to, at);
        let polled = read.poll_arrival(cx).map(|read| read.map(received));
        *reading = Some(read);
        polled
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        self.hang_up();
    }
}

/// Copies between devices.
impl TensorFuture {
    /// The same values on another device. The copy is asynchronous; a value that is already on the
    /// device is returned as it is.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::Device;
    /// let (a, b) = (Device::cpu(), Device::cpu_with(Default::default()));
    /// let x = a.ones([2]).to_device(&b);
    /// assert_eq!(x.device(), b);
    /// assert!((a.ones([2]) + &x).error().unwrap().is_device());
    /// assert_eq!((b.ones([2]) + &x).to_vec::<f32>().await?, [2.0, 2.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[doc(alias("cuda", "cpu", "to"))]
    #[track_caller]
    pub fn to_device(&self, device: &Device) -> TensorFuture {
        if std::ptr::eq(self.port(), device.port) {
            return self.clone();
        }
        let (to, at) = (device.port, Location::caller());
        let value = Arrival::new(self, to, false, at);
        let moved =
            sourced(device.port, "to_device", true, self.shape().clone(), self.dtype(), value, at);
        if self.tape.is_some() && self.dtype().is_differentiable() && is_taping() {
            return taped(Made::Moved, &[self], moved.node.clone());
        }
        moved
    }
}
