//! `Slot`: holds the outcome of an await of a group.

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

/// The outcome of an await: the protocol's, with the engine's value; or this rank's own
/// error.
pub(crate) type Outcome = Result<(Ended, Option<Value>), Trouble>;

#[derive(Clone, Debug)]
pub(crate) enum Trouble {
    Fault(Fault),
    /// The error of this rank's own operand, which it keeps.
    Own(Error),
}

#[derive(Default)]
struct State {
    value: Option<Value>,
    own: Option<Error>,
    outcome: Option<Result<Ended, Fault>>,
    /// The node whose value this slot supplies, if any.
    node: Option<NodeLink>,
    waker: Option<Waker>,
    /// The awaiting side has taken the outcome, or has given it up.
    is_taken: bool,
}

#[derive(Default)]
pub(crate) struct Slot(Mutex<State>);

impl Slot {
    /// Sets the value for a successful end.
    pub fn bring(&self, value: Option<Value>) {
        lock(&self.0).value = value;
    }

    /// Sets the error that prevents a successful end.
    pub fn fail(&self, error: Error) {
        lock(&self.0).own = Some(error);
    }

    /// Sets the node that this slot supplies: the thread that ends the slot publishes the value
    /// directly.
    pub fn brings(&self, node: NodeLink) {
        let mut state = lock(&self.0);
        let late = if state.outcome.is_none() { state.node.replace(node) } else { Some(node) };
        drop(state);
        drop(late);
    }

    /// Ends the slot. The waiter is woken outside every lock. Returns a new group that nobody
    /// awaits.
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
        // If another thread was polling at that moment, it polls again.
        if let Some(waker) = waker {
            waker.wake();
        }
        unwanted
    }

    /// Gives up the await; returns a new group that was not taken.
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

/// The future of a slot's end.
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
