//! Who asked for an op: the `tracing` span that was current at the call.
//!
//! A node holds it until it lets its inputs go, and the span of its step says that it follows from
//! it (`engine/events`). The span is held open meanwhile: that of a function which only queues work
//! would else be over, and forgotten by its subscriber, before the work begins. Without the feature
//! an asker has no size; while nobody listens to steps it is a look at a level.

#[cfg(feature = "tracing")]
mod on {
    use tracing::{Level, Span};

    pub(crate) type Asker = Option<Box<Span>>;

    /// True where a subscriber wants spans of steps.
    #[inline(always)]
    pub(crate) fn steps_are_seen() -> bool {
        tracing::span_enabled!(target: "futensor::step", Level::DEBUG)
    }

    /// The current span, where a subscriber wants spans of steps.
    #[inline(always)]
    pub(crate) fn asker() -> Asker {
        if steps_are_seen() { current() } else { None }
    }

    #[cold]
    fn current() -> Asker {
        let span = Span::current();
        (!span.is_disabled()).then(|| Box::new(span))
    }
}
#[cfg(feature = "tracing")]
pub(crate) use on::*;

#[cfg(not(feature = "tracing"))]
mod off {
    #[derive(Default)]
    pub(crate) struct Asker();

    #[allow(dead_code)] // For devices that take times only where somebody looks.
    #[inline(always)]
    pub(crate) fn steps_are_seen() -> bool {
        false
    }
    #[inline(always)]
    pub(crate) fn asker() -> Asker {
        Asker()
    }
}
#[cfg(not(feature = "tracing"))]
pub(crate) use off::*;
