//! Results in the order of their completion: [`completed`].

use crate::error::Result;
use crate::sync::lock_plain as lock;
use crate::tensor::future::{Tensor, TensorFuture};
use futures_core::Stream;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

/// The values that have woken the stream, and the task to wake.
#[derive(Default)]
struct Board {
    rung: Mutex<(VecDeque<usize>, Option<Waker>)>,
}

struct BoardWaker(usize, Arc<Board>);

impl Wake for BoardWaker {
    fn wake(self: Arc<Self>) {
        let waker = {
            let (rung, waker) = &mut *lock(&self.1.rung);
            rung.push_back(self.0);
            waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The stream of [`completed`].
#[must_use = "streams do nothing unless polled"]
pub struct Completed {
    values: Vec<Option<(TensorFuture, Waker)>>,
    board: Arc<Board>,
    left: usize,
}

/// A stream of the results of these values as they complete: pairs of a value's index and its
/// result.
///
/// Each completion wakes the stream's task once, and a poll looks only at values that have
/// completed. Values that are already complete come first, in the order given.
///
/// ```
/// # tokio_test::block_on(async {
/// use futures::StreamExt;
/// let device = futensor::Device::cpu();
/// let mut results = futensor::serve::completed((0..4).map(|i| device.ones([1000]) * i));
/// let mut seen = Vec::new();
/// while let Some((number, result)) = results.next().await {
///     result?;
///     seen.push(number);
/// }
/// seen.sort();
/// assert_eq!(seen, [0, 1, 2, 3]);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
///
/// # Cancel safety
/// Dropping the stream gives up the waits, and drops its handles.
#[doc(alias = "as_completed")]
pub fn completed(values: impl IntoIterator<Item = impl Into<TensorFuture>>) -> Completed {
    let board = Arc::new(Board::default());
    let values: Vec<_> = values
        .into_iter()
        .enumerate()
        .map(|(i, value)| Some((value.into(), Waker::from(Arc::new(BoardWaker(i, board.clone()))))))
        .collect();
    let left = values.len();
    lock(&board.rung).0.extend(0..left);
    Completed { values, board, left }
}

impl Stream for Completed {
    type Item = (usize, Result<Tensor>);

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let this = &mut *self;
        // Only values that woke before this poll: a value whose poll yields wakes again.
        let fresh = cx.waker().clone();
        let (count, before) = {
            let (rung, waker) = &mut *lock(&this.board.rung);
            (rung.len(), waker.replace(fresh))
        };
        drop(before);
        for _ in 0..count {
            let Some(i) = lock(&this.board.rung).0.pop_front() else { break };
            let Some((value, waker)) = &mut this.values[i] else { continue };
            if let Poll::Ready(result) = Pin::new(value).poll(&mut Context::from_waker(waker)) {
                this.values[i] = None;
                this.left -= 1;
                return Poll::Ready(Some((i, result)));
            }
        }
        if !lock(&this.board.rung).0.is_empty() {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl std::fmt::Debug for Completed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Completed({} left)", self.left)
    }
}
