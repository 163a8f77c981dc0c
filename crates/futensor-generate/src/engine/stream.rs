//! A channel of tokens from the thread to the reader of a stream.

use super::{Command, Shared};
use crate::error::Result;
use crate::helpers::Helpers;
use crate::lock::lock;
use crate::request::Token;
use futures_core::Stream;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

#[derive(Default)]
struct State {
    unread: VecDeque<Result<Token>>,
    /// How many were read.
    read: u64,
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
    /// Hands a token out; with `end` it is the last. Whom to wake is a helper's to do: that is the
    /// reader's code.
    pub fn send(&self, token: Result<Token>, end: bool, helpers: &Helpers) {
        let waker = {
            let state = &mut *lock(&self.0);
            state.unread.push_back(token);
            state.ended |= end;
            state.waker.take()
        };
        if let Some(waker) = waker {
            helpers.push(move || waker.wake());
        }
    }

    /// How many more there is room for, and how many were read; where those are not more than are
    /// `pending` the reader will ring.
    pub fn room(&self, buffer: usize, pending: usize) -> (usize, u64) {
        let state = &mut *lock(&self.0);
        let room = buffer.saturating_sub(state.unread.len());
        state.waits = room <= pending;
        (room, state.read)
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

impl Tokens {
    /// What is there to be read: a token, or the end.
    fn next(&self) -> Option<Option<Result<Token>>> {
        let state = &mut *lock(&self.channel.0);
        let token = state.unread.pop_front();
        state.read += token.is_some() as u64;
        if token.is_some() && std::mem::take(&mut state.waits) {
            self.shared.unparker.unpark();
        }
        (token.is_some() || state.ended).then_some(token)
    }
}

impl Stream for Tokens {
    type Item = Result<Token>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Token>>> {
        if let Some(next) = self.next() {
            return Poll::Ready(next);
        }
        // Wakers are copied and dropped while nobody else needs the lock: both are the reader's
        // code.
        let waker = cx.waker().clone();
        let before = {
            let state = &mut *lock(&self.channel.0);
            if state.unread.is_empty() && !state.ended {
                state.waker.replace(waker)
            } else {
                Some(waker)
            }
        };
        drop(before);
        self.next().map_or(Poll::Pending, Poll::Ready)
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Wake;

    /// Looks at the channel as it goes, and panics where it is woken.
    struct Hostile(Arc<Channel>);

    impl Wake for Hostile {
        fn wake(self: Arc<Self>) {
            panic!("a waker of the reader's");
        }
    }

    impl Drop for Hostile {
        fn drop(&mut self) {
            self.0.room(1, 0);
        }
    }

    #[test]
    fn a_readers_waker_may_panic_and_look_and_harms_nobody() {
        let channel = Arc::new(Channel::default());
        let mut tokens = Tokens::new(0, channel.clone(), Arc::new(Shared::default()));
        for _ in 0..2 {
            let waker = Waker::from(Arc::new(Hostile(channel.clone())));
            assert!(Pin::new(&mut tokens).poll_next(&mut Context::from_waker(&waker)).is_pending());
        }
        let helpers = Helpers::looked_after();
        channel.send(Err(crate::Error::ended()), true, &helpers);
        helpers.see_through();
        let mut cx = Context::from_waker(Waker::noop());
        assert!(matches!(Pin::new(&mut tokens).poll_next(&mut cx), Poll::Ready(Some(Err(_)))));
        assert!(matches!(Pin::new(&mut tokens).poll_next(&mut cx), Poll::Ready(None)));
    }
}
