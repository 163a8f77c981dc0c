//! A queue between a thread that may block and a task that may not, with a bound on its weight.
//!
//! One end is a reader or writer of files on a separate thread, the other a future. One sender, one
//! receiver; either end can close the queue, without waiting for the other end.

use crate::guard::wake_all;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

struct State<T> {
    queue: VecDeque<(T, usize)>,
    /// The sum of the weights in the queue.
    weight: usize,
    /// The sender is gone: no more items will come.
    ended: bool,
    /// The receiver is gone: items are dropped.
    unwanted: bool,
    /// The waker of the end that is a future.
    waker: Option<Waker>,
}

/// One end of the queue. A waiting end is woken by the other end's actions or drop.
pub(crate) struct Handoff<T> {
    state: Arc<(Mutex<State<T>>, Condvar)>,
    /// The most weight in the queue; a heavier item passes alone.
    weight_max: usize,
    sends: bool,
}

/// A sender and a receiver.
pub(crate) fn handoff<T>(weight_max: usize) -> (Handoff<T>, Handoff<T>) {
    let state =
        State { queue: VecDeque::new(), weight: 0, ended: false, unwanted: false, waker: None };
    let state = Arc::new((Mutex::new(state), Condvar::new()));
    (
        Handoff { state: state.clone(), weight_max, sends: true },
        Handoff { state, weight_max, sends: false },
    )
}

impl<T> State<T> {
    fn has_room(&self, weight: usize, weight_max: usize) -> bool {
        self.queue.is_empty() || self.weight.saturating_add(weight) <= weight_max
    }

    fn push(&mut self, item: T, weight: usize) {
        self.weight = self.weight.saturating_add(weight);
        self.queue.push_back((item, weight));
    }

    fn pop(&mut self) -> Option<T> {
        let (item, weight) = self.queue.pop_front()?;
        self.weight -= weight;
        Some(item)
    }
}

impl<T> Handoff<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the other end, thread or task.
    fn wake(&self, mut state: MutexGuard<'_, State<T>>) {
        let waker = state.waker.take();
        drop(state);
        self.state.1.notify_one();
        wake_all(waker);
    }

    /// Waits for the other end.
    fn register(&self, mut state: MutexGuard<'_, State<T>>, fresh: Waker) {
        let before = state.waker.replace(fresh);
        drop(state);
        drop(before);
    }

    /// Waits for room, on a thread that may block; false if the receiver is gone.
    pub fn send_blocking(&self, item: T, weight: usize) -> bool {
        let mut state = self.lock();
        while !state.unwanted && !state.has_room(weight, self.weight_max) {
            state = self.state.1.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.unwanted {
            return false;
        }
        state.push(item, weight);
        self.wake(state);
        true
    }

    /// The next item, or `None` at the end.
    pub fn poll_receive(&self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let fresh = cx.waker().clone();
        let mut state = self.lock();
        match state.pop() {
            Some(item) => {
                self.wake(state);
                Poll::Ready(Some(item))
            }
            None if state.ended => Poll::Ready(None),
            None => {
                self.register(state, fresh);
                Poll::Pending
            }
        }
    }

    /// Waits for an item, on a thread that may block; `None` at the end.
    pub fn receive_blocking(&self) -> Option<T> {
        let mut state = self.lock();
        loop {
            if let Some(item) = state.pop() {
                self.wake(state);
                return Some(item);
            }
            if state.ended {
                return None;
            }
            state = self.state.1.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Sends the item in the slot, and takes it out, once there is room. Ready with false if the
    /// receiver is gone.
    pub fn poll_send(
        &self,
        cx: &mut Context<'_>,
        item: &mut Option<T>,
        weight: usize,
    ) -> Poll<bool> {
        let fresh = cx.waker().clone();
        let mut state = self.lock();
        if state.unwanted {
            return Poll::Ready(false);
        }
        if !state.has_room(weight, self.weight_max) {
            self.register(state, fresh);
            return Poll::Pending;
        }
        if let Some(item) = item.take() {
            state.push(item, weight);
        }
        self.wake(state);
        Poll::Ready(true)
    }

    /// Ends the queue, before this end is dropped.
    pub fn is_unwanted(&self) -> bool {
        self.lock().unwanted
    }
}

impl<T> Drop for Handoff<T> {
    fn drop(&mut self) {
        let mut state = self.lock();
        let mut rest = VecDeque::new();
        if self.sends {
            state.ended = true;
        } else {
            state.unwanted = true;
            std::mem::swap(&mut rest, &mut state.queue);
            state.weight = 0;
        }
        self.wake(state);
        // Unreceived items are dropped outside the lock.
        drop(rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;

    #[test]
    fn a_sender_waits_for_room_and_the_order_stays() {
        let (send, receive) = handoff(10);
        let thread = std::thread::spawn(move || (0..100u32).all(|i| send.send_blocking(i, 4)));
        let mut seen = Vec::new();
        while let Some(i) =
            futures::executor::block_on(std::future::poll_fn(|cx| receive.poll_receive(cx)))
        {
            assert!(receive.lock().weight <= 10);
            seen.push(i);
        }
        assert_eq!(seen, (0..100).collect::<Vec<_>>());
        assert!(thread.join().unwrap());
    }

    #[test]
    fn a_receiver_that_goes_frees_a_sender_that_waits() {
        let (send, receive) = handoff(1);
        assert!(send.send_blocking(1, 1));
        let thread = std::thread::spawn(move || send.send_blocking(2, 1));
        drop(receive);
        assert!(!thread.join().unwrap());
    }

    #[test]
    fn an_item_heavier_than_the_limit_goes_through_alone() {
        let (send, receive) = handoff(1);
        let mut cx = Context::from_waker(Waker::noop());
        assert_eq!(send.poll_send(&mut cx, &mut Some(7), 100), Poll::Ready(true));
        assert_eq!(send.poll_send(&mut cx, &mut Some(8), 1), Poll::Pending);
        assert_eq!(receive.receive_blocking(), Some(7));
        assert_eq!(send.poll_send(&mut cx, &mut Some(8), 1), Poll::Ready(true));
        drop(send);
        assert_eq!((receive.receive_blocking(), receive.receive_blocking()), (Some(8), None));
    }
}
