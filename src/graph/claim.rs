//! Proofs of the right to read a node's inputs: while a proof lives the inputs stay, and only its
//! owner lets them go.
//!
//! A step is such a proof as well (`engine/step`).

#![allow(unsafe_code)]

use super::asker::Asker;
use super::node::{Inputs, Node, NodeLink};
use super::value::{Storage, Value};
use crate::concurrent::completion::{ENTERED, Phase, State};
use crate::error::{Error, ErrorKind};

/// The right to write a node that was pending and in no task table: nobody else writes its value,
/// or reads or lets go of what it is made from. To be used up; a node whose claim is only dropped
/// never ends.
#[must_use]
pub(crate) struct Claim<'n>(&'n Node);

impl Node {
    /// Claims it, where it is pending and not in the engine's task table.
    pub fn claim(&self) -> Option<Claim<'_>> {
        self.completion.claim(Phase::Writing, ENTERED).then_some(Claim(self))
    }
}

// SAFETY (of all below): the claim is the right to write, and those that use it up take it.
impl<'n> Claim<'n> {
    pub fn node(&self) -> &'n Node {
        self.0
    }

    pub fn inputs(&self) -> &[NodeLink] {
        // SAFETY: see above.
        unsafe { self.0.inputs() }
    }

    #[cfg_attr(not(feature = "tracing"), allow(dead_code))]
    pub fn asker(&self) -> &Asker {
        // SAFETY: see above.
        unsafe { self.0.asker() }
    }

    pub fn let_go(&mut self) -> Inputs {
        // SAFETY: see above.
        unsafe { self.0.let_go() }
    }

    /// [`let_go`](Self::let_go), one at a time.
    #[inline]
    pub fn let_go_each(&mut self, each: impl FnMut(NodeLink)) {
        // SAFETY: see above.
        unsafe { self.0.let_go_each(each) }
    }

    /// Puts a value in that lies in the node itself, and has its elements written there; false
    /// where `fill` says so, and has not.
    #[inline]
    pub fn fill_in(&mut self, fill: impl FnOnce(*mut u8) -> bool) -> bool {
        let to_words = |value: &mut Result<Value, Error>| match value {
            Ok(Value { storage: Storage::Inline(words), .. }) => fill(words.as_mut_ptr().cast()),
            _ => false,
        };
        // SAFETY: see above.
        unsafe { self.0.completion.fill_in(Ok(Value::nothing()), to_words) }
    }

    /// See [`Completion::publish`]: something was filled in.
    pub fn publish(self) {
        // SAFETY: see above.
        unsafe { self.0.completion.publish() }
    }

    /// See [`Completion::publish_alone`]: something was filled in.
    ///
    /// # Safety
    /// The caller has the node's one owner, and lends it to nobody.
    pub unsafe fn publish_alone(self) {
        // SAFETY: see above, and the caller's promise.
        unsafe { self.0.completion.publish_alone() }
    }

    /// Gives the right back.
    pub fn unclaim(self) -> State {
        // SAFETY: see above.
        unsafe { self.0.completion.unclaim() }
    }
}

/// Nodes of a trace, which are never computed: what they are made from stays as long as this.
#[derive(Clone, Copy)]
pub(crate) struct Traced<'a>(&'a [NodeLink]);

impl<'a> Traced<'a> {
    /// # Safety
    /// The nodes are claimed, and nobody lets their inputs go while this is there.
    pub unsafe fn new(nodes: &'a [NodeLink]) -> Traced<'a> {
        Traced(nodes)
    }

    pub fn nodes(self) -> &'a [NodeLink] {
        self.0
    }

    pub fn inputs(self, k: usize) -> &'a [NodeLink] {
        // SAFETY: the maker has promised it.
        unsafe { self.0[k].inputs() }
    }
}

/// The error of a value of a region that is waited for while the region's closure runs.
pub(crate) fn unready(node: &Node) -> Error {
    let text = "a value of a region has no elements while the region's closure runs: return it, \
                and await the result of a call";
    node.fail(ErrorKind::Argument, text)
}

/// A task waits for a traced value, or for a value made from it elsewhere: it fails,
/// since it will never be there.
#[cold]
pub(crate) fn refuse_traced(node: &Node) {
    if node.completion.begin_writing() {
        // Its inputs stay: the trace may be looking at them.
        // SAFETY: the right to write was just taken.
        unsafe { node.completion.write(Err(unready(node)), true) };
    }
}
