//! Barriers over a device and over all devices, and backpressure.

use super::future::{At, TensorFuture};
use super::watch;
use crate::engine::port::counters::Detached;
use crate::engine::port::{self, Port};
use crate::engine::pressure::Turn;
use crate::error::{Error, ErrorKind, Result};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Queues a marker that is reached when all earlier work is done; `None` if it already is.
fn marker(port: &'static Port, at: At) -> Option<TensorFuture> {
    if port.pressure.queued().0 == 0 {
        return None;
    }
    Some(TensorFuture::new(port.enqueue_marker(at)))
}

fn result_of(log: Detached) -> Result<()> {
    match Error::several(log.kept, log.more) {
        None => Ok(()),
        Some(error) => Err(error),
    }
}

/// The future of [`Device::waitall`](crate::Device::waitall).
#[must_use = "futures do nothing unless awaited"]
#[derive(Debug)]
pub struct WaitAll {
    port: &'static Port,
    at: At,
    marker: Option<TensorFuture>,
}

impl WaitAll {
    pub(crate) fn on(port: &'static Port, at: At) -> WaitAll {
        WaitAll { port, at, marker: marker(port, at) }
    }
}

impl WaitAll {
    /// Completes when the marker is reached, or with the error of a scope that denies the wait.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        match &mut self.marker {
            Some(marker) => marker.poll_await(cx, "waitall", self.at),
            None if watch::is_on() => {
                Poll::Ready(watch::at_once(self.port, "waitall", self.at, cx))
            }
            None => Poll::Ready(Ok(())),
        }
    }
}

impl Future for WaitAll {
    type Output = Result<()>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        std::task::ready!(self.poll_end(cx))?;
        Poll::Ready(result_of(self.port.log.take()))
    }
}

/// The future of [`waitall`]: joins every device.
#[must_use = "futures do nothing unless awaited"]
#[derive(Debug)]
pub struct WaitEverything {
    devices: Vec<WaitAll>,
    /// The number of waits that have completed.
    ended: usize,
}

/// Waits until all work that was enqueued on any device before this call is done.
///
/// ```
/// # tokio_test::block_on(async {
/// (futensor::Device::cpu().ones([2]) + 1.0).detach();
/// futensor::waitall().await?;
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
///
/// # Errors
/// The errors of detached work on any device since that device's last `waitall`.
#[track_caller]
pub fn waitall() -> WaitEverything {
    let at = std::panic::Location::caller();
    WaitEverything {
        devices: port::all().into_iter().map(|port| WaitAll::on(port, at)).collect(),
        ended: 0,
    }
}

impl Future for WaitEverything {
    type Output = Result<()>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        while self.ended < self.devices.len() {
            let ended = self.ended;
            std::task::ready!(self.devices[ended].poll_end(cx))?;
            self.ended += 1;
        }
        let mut log = Detached::default();
        for all in &self.devices {
            let one = all.port.log.take();
            log.kept.extend(one.kept);
            log.more += one.more;
        }
        Poll::Ready(result_of(log))
    }
}

/// The future of [`Device::ready`](crate::Device::ready).
#[must_use = "futures do nothing unless awaited"]
#[derive(Debug)]
pub struct Ready {
    port: &'static Port,
    id: Option<u64>,
}

impl Ready {
    pub(crate) fn on(port: &'static Port) -> Ready {
        Ready { port, id: None }
    }
}

impl Future for Ready {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let port = self.port;
        if port.is_ready(&mut self.id, cx.waker()) { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            self.port.pressure.forget_ready(id);
        }
    }
}

/// The future of [`Device::admit`](crate::Device::admit).
#[must_use = "futures do nothing unless awaited"]
#[derive(Debug)]
pub struct Admit {
    port: &'static Port,
    key: Option<u64>,
}

impl Admit {
    pub(crate) fn on(port: &'static Port) -> Admit {
        Admit { port, key: Some(port.pressure.ask()) }
    }
}

impl Future for Admit {
    type Output = Permit;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Permit> {
        let port = self.port;
        match self.key.map(|key| port.turn(key, cx.waker())) {
            Some(Turn::Waiting) => Poll::Pending,
            _ => {
                self.key = None;
                Poll::Ready(Permit::on(port))
            }
        }
    }
}

impl Drop for Admit {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.port.pressure.withdraw(key);
        }
    }
}

/// The right to queue work; dropping it admits the next producer.
#[must_use = "a permit that is dropped immediately admits the next producer"]
#[derive(Debug)]
pub struct Permit {
    port: &'static Port,
}

impl Permit {
    pub(crate) fn on(port: &'static Port) -> Permit {
        Permit { port }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.port.pressure.release();
    }
}

/// The future of [`Device::trim_wait`](crate::Device::trim_wait).
#[must_use = "futures do nothing unless awaited"]
#[derive(Debug)]
pub struct TrimWait {
    port: &'static Port,
    at: At,
    trim: Trimming,
}

#[derive(Debug)]
enum Trimming {
    /// Behind all that was queued or dropped before: what was is freed once this is reached.
    Queued(TensorFuture),
    /// The number of the trim, and the key under which its end is waited for.
    Asked(u64, Option<u64>),
}

impl TrimWait {
    pub(crate) fn on(port: &'static Port, at: At) -> TrimWait {
        let marker = TensorFuture::new(port.enqueue_marker(at));
        TrimWait { port, at, trim: Trimming::Queued(marker) }
    }
}

impl Future for TrimWait {
    type Output = Result<()>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let (port, at) = (self.port, self.at);
        loop {
            self.trim = match &mut self.trim {
                Trimming::Queued(marker) => {
                    std::task::ready!(marker.poll_await(cx, "trim_wait", at))?;
                    Trimming::Asked(port.runner.ask_trim(), None)
                }
                Trimming::Asked(number, key) => {
                    return match port.runner.is_trimmed(*number, key, cx.waker()) {
                        true => Poll::Ready(Ok(())),
                        false => Poll::Pending,
                    };
                }
            };
        }
    }
}

impl Drop for TrimWait {
    fn drop(&mut self) {
        if let Trimming::Asked(_, Some(key)) = self.trim {
            self.port.runner.forget_trim(key);
        }
    }
}

/// The future of [`Device::shutdown`](crate::Device::shutdown).
#[must_use = "futures do nothing unless awaited"]
#[derive(Debug)]
pub struct Shutdown(WaitAll);

impl Shutdown {
    pub(crate) fn on(port: &'static Port, at: At) -> Shutdown {
        Shutdown(WaitAll::on(port, at))
    }
}

impl Future for Shutdown {
    type Output = Result<()>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let result = std::task::ready!(Pin::new(&mut self.0).poll(cx));
        let port = self.0.port;
        port.life.end(ErrorKind::Shutdown, "the device was shut down");
        port.pressure.open_gate();
        // Work that was queued at the same time may wait in the task table for inputs that never
        // complete: a visit of the engine ends it.
        drop(port.enqueue_marker(std::panic::Location::caller()));
        port.runner.abandon();
        Poll::Ready(result)
    }
}

impl std::fmt::Debug for Port {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Port({})", self.profile.name)
    }
}
