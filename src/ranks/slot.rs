//! Where an await of a group finds what it ended with.

use super::protocol::Ended;
use super::protocol::message::{Fault, GroupId};
use crate::engine::port::Port;
use crate::error::Error;
use crate::graph::node::NodeLink;
use crate::graph::value::Value;
use crate::sync::lock_plain as lock;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

/// How an await ended: by the protocol, with what the engine brought; or with this rank's own
/// error.
pub(crate) type Outcome = Result<(Ended, Option<Value>), Trouble>;

#[derive(Clone, Debug)]
pub(crate) enum Trouble {
    Fault(Fault),
    /// Its own operand's, which stays with it.
    Own(Error),
}

#[derive(Default)]
struct State {
    value: Option<Value>,
    own: Option<Error>,
    outcome: Option<Result<Ended, Fault>>,
    /// The value that this brings, if it is one's.
    node: Option<NodeLink>,
    waker: Option<Waker>,
    /// Whoever asked has had the end of it, or does not wait for it.
    is_taken: bool,
}

#[derive(Default)]
pub(crate) struct Slot(Mutex<State>);

impl Slot {
    /// What the call gives, should it end well.
    pub fn bring(&self, value: Option<Value>) {
        lock(&self.0).value = value;
    }

    /// Why it cannot end well.
    pub fn fail(&self, error: Error) {
        lock(&self.0).own = Some(error);
    }

    /// The value that this brings: whoever ends the slot publishes it, without a hand-over.
    pub fn brings(&self, node: NodeLink) {
        let mut state = lock(&self.0);
        let late = if state.outcome.is_none() { state.node.replace(node) } else { Some(node) };
        drop(state);
        drop(late);
    }

    /// It has ended. Whoever waits is woken, outside of every lock. A group that nobody waits for
    /// is given back.
    #[must_use]
    pub fn end(&self, outcome: Result<Ended, Fault>) -> Option<GroupId> {
        let (node, waker, unwanted) = {
            let mut state = lock(&self.0);
            state.outcome.get_or_insert(outcome);
            let unwanted = if state.is_taken { state.group() } else { None };
            (state.node.take(), state.waker.take(), unwanted)
        };
        if let Some(node) = node {
            let port = Port::of(&node);
            port.poll_source(node, Waker::noop());
        }
        // Where another thread polled it at that moment, it is asked again.
        if let Some(waker) = waker {
            waker.wake();
        }
        unwanted
    }

    /// Nobody waits any more: the group that it has brought, if nobody has taken it.
    #[must_use]
    pub fn give_up(&self) -> Option<GroupId> {
        let mut state = lock(&self.0);
        let untaken = !std::mem::replace(&mut state.is_taken, true);
        state.group().filter(|_| untaken)
    }
}

impl State {
    fn group(&self) -> Option<GroupId> {
        match &self.outcome {
            Some(Ok(Ended::Group(id, _))) => Some(*id),
            _ => None,
        }
    }
}

/// The end of a slot.
pub(crate) struct End(pub Arc<Slot>);

impl Future for End {
    type Output = Outcome;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let mut state = lock(&self.0.0);
        let Some(outcome) = state.outcome.clone() else {
            let before = state.waker.replace(cx.waker().clone());
            drop(state);
            drop(before);
            return Poll::Pending;
        };
        state.is_taken = true;
        Poll::Ready(match outcome {
            Ok(ended) => Ok((ended, state.value.take())),
            Err(fault) => Err(state.own.take().map_or(Trouble::Fault(fault), Trouble::Own)),
        })
    }
}
