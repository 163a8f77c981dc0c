//! Spans and events for the `tracing` crate. With its feature off, all of this is empty and free.
//!
//! Targets: `futensor::op` (an op is queued, at TRACE), `futensor::step` (a span around each step
//! that runs on a stream, at DEBUG; an event for each small step, at TRACE), `futensor::batch` (a
//! span around a batcher's function, at DEBUG), `futensor::barrier` (an await of a value, a read or
//! a device has ended, at DEBUG). Nothing here waits, and no text is formatted unless a subscriber
//! listens.
//!
//! A step's span follows from the spans in which its ops were asked for, a batch's from those of
//! its requests: so the time of a step can be told to a request.

use super::step::Step;
use crate::graph::asker::Asker;
use crate::graph::claim::Claim;
use crate::graph::node::Node;
use std::panic::Location;
use std::time::Duration;

#[cfg(feature = "tracing")]
mod on {
    use super::*;
    use crate::sync::clock::Instant;
    use smallvec::SmallVec;
    use tracing::{Id, Level, Span, field, span::EnteredSpan};

    /// The most spans that one span follows from.
    const ASKERS_MAX: usize = 64;

    /// The span of a step, on the thread that runs it: it ends, and has its time, with the run.
    pub(crate) struct Running(EnteredSpan, Option<Instant>);

    /// The span of a step that runs on a GPU: nobody is in it, and it ends as the step is through.
    /// With those that it follows from, which are held open until it has its time.
    #[allow(dead_code)] // For devices whose streams run by themselves.
    pub(crate) struct Launched(Span, SmallVec<[Span; 2]>);

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

    /// A step's span, of which the time is still to come.
    fn step(device: &str, step: &Step) -> Span {
        let names = || step.nodes().map(|n| n.op.name()).collect::<Vec<_>>().join(" ");
        let at = || step.nodes().last().map_or(("", 0), |n| (n.at.file(), n.at.line()));
        let span = tracing::debug_span!(
            target: "futensor::step",
            parent: None,
            "step",
            ops = names(),
            device = %device,
            stream = step.at.stream,
            point = step.at.point,
            waits = step.waits.len(),
            file = at().0,
            line = at().1,
            took_ns = field::Empty,
        );
        follow(&span, step.askers());
        span
    }

    /// A span follows from each of these, once.
    fn follow<'a>(span: &Span, askers: impl Iterator<Item = &'a Asker>) {
        if span.is_disabled() {
            return;
        }
        let mut told: SmallVec<[Id; 4]> = SmallVec::new();
        for asker in askers.filter_map(|asker| asker.as_ref()?.id()) {
            if told.len() < ASKERS_MAX && !told.contains(&asker) {
                span.follows_from(&asker);
                told.push(asker);
            }
        }
    }

    /// A step begins on this thread.
    pub(crate) fn running(device: &str, step: &Step) -> Running {
        let span = self::step(device, step);
        let began = (!span.is_disabled()).then(Instant::now);
        Running(span.entered(), began)
    }

    impl Drop for Running {
        fn drop(&mut self) {
            if let Some(began) = self.1 {
                self.0.record("took_ns", began.elapsed().as_nanos() as u64);
            }
        }
    }

    /// A step is launched.
    #[allow(dead_code)] // The same.
    pub(crate) fn launched(device: &str, step: &Step) -> Launched {
        let span = self::step(device, step);
        let askers = match span.is_disabled() {
            true => SmallVec::new(),
            false => step.askers().flatten().map(|asker| Span::clone(asker)).collect(),
        };
        Launched(span, askers)
    }

    impl Launched {
        /// The step is through; its time, where the GPU took it.
        #[allow(dead_code)] // The same.
        pub(crate) fn landed(self, took: Option<Duration>) {
            if let Some(took) = took {
                self.0.record("took_ns", took.as_nanos() as u64);
            }
        }
    }

    /// A batcher's function is called, for requests that came in these spans.
    #[allow(dead_code)] // For batchers.
    pub(crate) fn batch<'a>(
        requests: usize,
        askers: impl Iterator<Item = &'a Asker>,
    ) -> EnteredSpan {
        let span = tracing::debug_span!(target: "futensor::batch", parent: None, "batch", requests);
        follow(&span, askers);
        span.entered()
    }

    pub(crate) fn small(device: &str, claim: &Claim<'_>, fused: usize, by_poll: bool) {
        let node = claim.node();
        tracing::trace!(
            target: "futensor::step",
            parent: claim.asker().as_ref().and_then(|asker| asker.id()),
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

    #[allow(dead_code)] // For devices whose steps outlive their launch.
    pub(crate) type Launched = NoSpan;

    impl NoSpan {
        #[allow(dead_code)] // For devices whose streams run by themselves.
        #[inline(always)]
        pub(crate) fn landed(self, _: Option<Duration>) {}
    }

    #[inline(always)]
    pub(crate) fn barriers_are_seen() -> bool {
        false
    }
    #[inline(always)]
    pub(crate) fn op(_: &str, _: &Node) {}
    #[inline(always)]
    pub(crate) fn running(_: &str, _: &Step) -> NoSpan {
        NoSpan
    }
    #[allow(dead_code)] // For devices whose streams run by themselves.
    #[inline(always)]
    pub(crate) fn launched(_: &str, _: &Step) -> NoSpan {
        NoSpan
    }
    #[allow(dead_code)] // For batchers.
    #[inline(always)]
    pub(crate) fn batch<'a>(_: usize, _: impl Iterator<Item = &'a Asker>) -> NoSpan {
        NoSpan
    }
    #[inline(always)]
    pub(crate) fn small(_: &str, _: &Claim<'_>, _: usize, _: bool) {}
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
