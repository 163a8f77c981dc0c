//! Device time: the launches between two timed events, and the times of the events.
//!
//! A sample of steps is timed, and only while somebody records. The events are read once their
//! submission is known to be through, so nothing ever waits for them. A lane's times hang together:
//! each is counted from the one before, since a difference of two events is a single-precision
//! number of milliseconds and would lose its microseconds over hours.

use super::Trouble;
use super::libraries::nvidia::{Event, Events, Raw};
use std::sync::Arc;
use std::time::Instant;

/// The events around one launch.
#[derive(Debug)]
pub(crate) struct Timed {
    begin: Event,
    end: Event,
    /// The GPU cannot have begun before.
    launched: Instant,
}

/// The device's thread's side: chooses launches, and records.
#[derive(Debug)]
pub(crate) struct Timing {
    /// One launch in this many; 0 for none.
    every: u32,
    since: u32,
    events: Arc<Events>,
    /// Of the launch that is being prepared: its first event, and when that was recorded.
    open: Option<(Event, Option<Instant>)>,
    /// Somebody records.
    recording: bool,
}

impl Timing {
    pub fn new(every: u32, events: Arc<Events>) -> Timing {
        Timing { every, since: 0, events, open: None, recording: false }
    }

    /// A launch is about to be prepared: it is timed if somebody records and it is its turn.
    pub fn arm(&mut self, recording: bool) -> Result<(), Trouble> {
        if let Some((_, begun)) = &mut self.open {
            // Left over from a launch that was deferred.
            *begun = None;
            return Ok(());
        }
        self.recording = recording && self.every > 0;
        if self.recording && self.since + 1 >= self.every {
            self.open = Some((self.events.take()?, None));
        }
        Ok(())
    }

    /// The launch's waits for other streams have been queued.
    pub fn begin(&mut self, raw: Raw) -> Result<(), Trouble> {
        match &mut self.open {
            Some((event, begun)) if begun.is_none() => {
                *begun = Some(Instant::now());
                raw.record(*event)
            }
            // A launch of several parts begins with its first.
            _ => Ok(()),
        }
    }

    /// The launch is queued.
    pub fn end(&mut self, raw: Raw) -> Result<Option<Timed>, Trouble> {
        self.since = if self.open.is_some() { 0 } else { self.since + u32::from(self.recording) };
        let Some((begin, begun)) = self.open.take() else { return Ok(None) };
        let Some(launched) = begun else {
            self.events.give_back(begin);
            return Ok(None);
        };
        let end = self.events.take()?;
        raw.record(end)?;
        Ok(Some(Timed { begin, end, launched }))
    }

    /// A point of a lane that has nothing queued: its times are counted from there.
    pub fn anchor(&self, raw: Raw) -> Result<Option<Anchor>, Trouble> {
        if self.every == 0 {
            return Ok(None);
        }
        let event = self.events.take()?;
        raw.record(event)?;
        Ok(Some(Anchor { event, at: Instant::now() }))
    }
}

/// An event of a lane, and when the lane reached it.
#[derive(Debug)]
pub(crate) struct Anchor {
    event: Event,
    at: Instant,
}

impl Anchor {
    /// When a launch that is through began and ended on the device; the next one is counted from
    /// its end.
    pub fn read(&mut self, timed: Timed, events: &Events) -> Option<(Instant, Instant)> {
        let Timed { begin, end, launched } = timed;
        let times = match (begin.since(self.event), end.since(begin)) {
            (Some(before), Some(took)) => self.at.checked_add(before).and_then(|began| {
                // Where the clocks drift apart, the host's counts.
                let began = began.max(launched);
                Some((began, began.checked_add(took)?))
            }),
            _ => None,
        };
        events.give_back(begin);
        match times {
            Some((_, ended)) => {
                events.give_back(std::mem::replace(&mut self.event, end));
                self.at = ended;
            }
            None => events.give_back(end),
        }
        times
    }

    /// The lane is over.
    pub fn close(self, events: &Events) {
        events.give_back(self.event);
    }
}
