//! `block_on`: a plain thread waits for a future.

use std::future::IntoFuture;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{Thread, park};

struct Unpark(Thread, AtomicBool);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        if !self.1.swap(true, Release) {
            self.0.unpark();
        }
    }
}

/// Runs a future to its end on this thread, which sleeps while there is nothing to do: for `main`, tests and
/// threads of your own. Inside an async task use `.await`: this would block the executor's thread.
///
/// ```
/// let device = futensor::Device::cpu();
/// let sum = futensor::block_on((device.ones([3]) + 1.0).sum_all().item::<f32>());
/// assert_eq!(sum.unwrap(), 6.0);
/// ```
pub fn block_on<F: IntoFuture>(future: F) -> F::Output {
    let mut future = pin!(future.into_future());
    let unpark = Arc::new(Unpark(std::thread::current(), AtomicBool::new(false)));
    let waker = Waker::from(unpark.clone());
    let mut cx = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        while !unpark.1.swap(false, Acquire) {
            park();
        }
    }
}
