//! The machine's own wakers, which schedule a node for another visit.

use crate::engine::port::Port;
use crate::graph::node::NodeLink;
use crate::sync::{Mutex, lock};
use std::sync::Arc;
use std::task::Wake;

/// Schedules a node when it ends elsewhere.
pub(super) struct NodeWaker(pub NodeLink, pub &'static Port);

impl Wake for NodeWaker {
    fn wake(self: Arc<Self>) {
        self.1.schedule(self.0.clone());
    }
}

/// Schedules a source's node when its future is to be polled. The future may keep the waker for
/// ever, so the waker lets the node go with the entry.
pub(super) struct SourceWaker(Mutex<Option<NodeLink>>, &'static Port);

impl SourceWaker {
    pub fn new(node: NodeLink, port: &'static Port) -> SourceWaker {
        SourceWaker(Mutex::new(Some(node)), port)
    }

    /// Lets the node go.
    pub fn take(&self) -> Option<NodeLink> {
        lock(&self.0).take()
    }
}

impl Wake for SourceWaker {
    fn wake(self: Arc<Self>) {
        let node = lock(&self.0).clone();
        if let Some(node) = node {
            self.1.schedule(node);
        }
    }
}
