//! The way of tokens from the thread to whoever reads them.

use super::{Command, Shared, lock};
use crate::error::Result;
use crate::request::Token;
use futures_core::Stream;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

#[derive(Default)]
struct State {
    unread: VecDeque<Result<Token>>,
    waker: Option<Waker>,
    /// Nothing more will come.
    ended: bool,
    /// The thread goes on with this request once there is room.
    waits: bool,
}

/// One request's tokens on their way.
#[derive(Default)]
pub struct Channel(Mutex<State>);

impl Channel {
    /// Hands a token out; with `end` it is the last.
    pub fn send(&self, token: Result<Token>, end: bool) {
        let waker = {
            let state = &mut *lock(&self.0);
            state.unread.push_back(token);
            state.ended |= end;
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// How many more there is room for, beside `pending` that will come; where there is none the
    /// reader will ring.
    pub fn room(&self, buffer: usize, pending: usize) -> usize {
        let state = &mut *lock(&self.0);
        let room = buffer.saturating_sub(state.unread.len());
        state.waits = room <= pending;
        room
    }
}

/// The tokens of an answer: a `Stream` that ends with the first error, or behind the token whose
/// [`end`](Token::end) is set. Dropping it ends the request.
#[must_use = "streams do nothing unless polled, and dropping this one ends its request"]
pub struct Tokens {
    id: u64,
    channel: Arc<Channel>,
    shared: Arc<Shared>,
}

impl Tokens {
    pub(super) fn new(id: u64, channel: Arc<Channel>, shared: Arc<Shared>) -> Tokens {
        Tokens { id, channel, shared }
    }
}

impl Stream for Tokens {
    type Item = Result<Token>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Token>>> {
        let state = &mut *lock(&self.channel.0);
        match state.unread.pop_front() {
            Some(token) => {
                if std::mem::take(&mut state.waits) {
                    self.shared.bell.ring();
                }
                Poll::Ready(Some(token))
            }
            None if state.ended => Poll::Ready(None),
            None => {
                state.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for Tokens {
    fn drop(&mut self) {
        let waker = {
            let state = &mut *lock(&self.channel.0);
            if state.ended {
                return;
            }
            state.waker.take()
        };
        drop(waker);
        self.shared.send(Command::HangUp(self.id));
    }
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tokens({})", self.id)
    }
}
