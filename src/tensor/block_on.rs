//! `block_on`: blocks a plain thread until a future completes.

use crate::guard::Kernel;
use crate::sync::plain::{AtomicBool, Ordering::*};
use crate::sync::threads::{Thread, current, park, thread_local};
use std::cell::Cell;
use std::future::IntoFuture;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

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

thread_local! {
    /// This thread is inside `block_on`.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Marks the thread until it is dropped, also by a panic.
struct Inside;

impl Inside {
    #[track_caller]
    fn enter() -> Inside {
        assert!(
            !Kernel::is_on(),
            "futensor::block_on inside a kernel would block the device that it may wait for: take \
             what it needs as an input"
        );
        #[cfg(feature = "tokio")]
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            // Only tokio knows which threads may block (a thread of `spawn_blocking` may, a worker
            // may not): its own `block_on` of an empty future panics on a thread that may not.
            runtime.block_on(std::future::ready(()));
        }
        let nested = INSIDE.replace(true);
        assert!(
            !nested,
            "futensor::block_on inside a task would block the thread that runs the task: use .await"
        );
        Inside
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(false);
    }
}

/// Runs a future to completion on this thread, which sleeps while the future is pending: for
/// `main`, tests and threads of your own. Inside an async task use `.await`: `block_on` would block
/// the executor's thread, and every other task on it.
///
/// ```
/// let device = futensor::Device::cpu();
/// let sum = futensor::block_on((device.ones([3]) + 1.0).sum_all().item::<f32>());
/// assert_eq!(sum.unwrap(), 6.0);
/// ```
///
/// # Panics
/// - Inside a task that `block_on` runs.
/// - Inside the kernel of a [custom op](crate::custom); its value fails with the panic.
/// - With the feature `tokio` (a default feature), where tokio's own `block_on` panics: in tokio
///   tasks, but not in `spawn_blocking` and `block_in_place`.
///
/// **Tasks of other executors are not recognised**: `block_on` blocks them silently. Nor is another
/// executor's `block_on` inside a kernel. There an await of a value completes with an error
/// ([`Error::is_barrier`](crate::Error::is_barrier)), but a wait for a channel or a lock may never
/// end.
///
/// ```should_panic
/// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
/// runtime.block_on(async {
///     futensor::block_on(futensor::Device::cpu().ones([3])).unwrap();      // `.await` is meant
/// });
/// ```
#[track_caller]
pub fn block_on<F: IntoFuture>(future: F) -> F::Output {
    let _inside = Inside::enter();
    let mut future = pin!(future.into_future());
    let unpark = Arc::new(Unpark(current(), AtomicBool::new(false)));
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

#[cfg(all(test, not(futensor_loom)))]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    fn refuses(f: impl FnOnce()) -> String {
        let panic = catch_unwind(AssertUnwindSafe(f)).expect_err("it refuses");
        let text = panic.downcast_ref::<&str>().map(|s| s.to_string());
        text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
    }

    #[test]
    fn a_task_of_its_own_is_refused_and_the_thread_may_block_again_after_that() {
        let words = refuses(|| block_on(async { block_on(async {}) }));
        assert!(words.contains("use .await"), "{words}");
        assert_eq!(block_on(async { 7 }), 7);
    }

    #[cfg(feature = "tokio")]
    #[test]
    fn workers_of_tokio_are_refused_and_threads_that_may_block_are_not() {
        let one = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let words = refuses(|| one.block_on(async { block_on(async {}) }));
        assert!(words.contains("runtime"), "{words}");
        let many = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        many.block_on(async {
            assert!(tokio::spawn(async { block_on(async {}) }).await.unwrap_err().is_panic());
            assert_eq!(tokio::task::spawn_blocking(|| block_on(async { 7 })).await.unwrap(), 7);
            let inside =
                tokio::spawn(async { tokio::task::block_in_place(|| block_on(async { 8 })) });
            assert_eq!(inside.await.unwrap(), 8);
        });
        // A thread that merely knows a runtime may block as well.
        let _guard = many.enter();
        assert_eq!(block_on(async { 9 }), 9);
    }
}
