//! Spans and events for the `tracing` crate. With its feature off, all of this is empty and free.
//!
//! Targets: `futensor::op` (an op is queued, at TRACE), `futensor::step` (a span around each step
//! that runs on a stream, at DEBUG; an event for each small step, at TRACE), `futensor::barrier`
//! (an await of a value, a read or a device has ended, at DEBUG). Nothing here waits, and no text
//! is formatted unless a subscriber listens.

use super::step::Step;
use crate::graph::node::Node;
use std::panic::Location;
use std::time::Duration;

#[cfg(feature = "tracing")]
mod on {
    use super::*;
    use tracing::Level;

    pub(crate) fn barriers_are_seen() -> bool {
        tracing::event_enabled!(target: "futensor::barrier", Level::DEBUG)
    }

    pub(crate) fn op(device: &str, node: &Node) {
        tracing::trace!(
            target: "futensor::op",
            op = node.op.name(),
            shape = %node.shape,
            dtype = %node.dtype,
            device = %device,
            file = node.at.file(),
            line = node.at.line(),
            "queued"
        );
    }

    pub(crate) fn step(device: &str, step: &Step) -> tracing::span::EnteredSpan {
        let names = || step.nodes().map(|n| n.op.name()).collect::<Vec<_>>().join(" ");
        let at = || step.nodes().last().map_or(("", 0), |n| (n.at.file(), n.at.line()));
        tracing::debug_span!(
            target: "futensor::step",
            "step",
            ops = names(),
            device = %device,
            stream = step.at.stream,
            point = step.at.point,
            waits = step.waits.len(),
            file = at().0,
            line = at().1,
        )
        .entered()
    }

    pub(crate) fn small(device: &str, node: &Node, fused: usize, by_poll: bool) {
        tracing::trace!(
            target: "futensor::step",
            op = node.op.name(),
            fused,
            by_poll,
            device = %device,
            file = node.at.file(),
            line = node.at.line(),
            "small step"
        );
    }

    pub(crate) fn barrier(
        device: &str,
        what: &str,
        site: &Location<'_>,
        waited: Option<Duration>,
        queued: usize,
        ran_dry: bool,
    ) {
        tracing::debug!(
            target: "futensor::barrier",
            what,
            file = site.file(),
            line = site.line(),
            device = %device,
            waited_us = waited.map_or(0, |w| w.as_micros() as u64),
            had_to_wait = waited.is_some(),
            queued,
            ran_dry,
            "barrier"
        );
    }
}
#[cfg(feature = "tracing")]
pub(crate) use on::*;

#[cfg(not(feature = "tracing"))]
mod off {
    use super::*;

    /// Stands for a span.
    pub(crate) struct NoSpan;

    #[inline(always)]
    pub(crate) fn barriers_are_seen() -> bool {
        false
    }
    #[inline(always)]
    pub(crate) fn op(_: &str, _: &Node) {}
    #[inline(always)]
    pub(crate) fn step(_: &str, _: &Step) -> NoSpan {
        NoSpan
    }
    #[inline(always)]
    pub(crate) fn small(_: &str, _: &Node, _: usize, _: bool) {}
    #[inline(always)]
    pub(crate) fn barrier(
        _: &str,
        _: &str,
        _: &Location<'_>,
        _: Option<Duration>,
        _: usize,
        _: bool,
    ) {
    }
}
#[cfg(not(feature = "tracing"))]
pub(crate) use off::*;
