//! The streams as timelines: how far each has been given work, and the order between them.
//!
//! The device's thread uses them alone. A lane counts its work in submissions; a [`Mark`] is a
//! point on it. A lane records an event only where somebody waits for a mark, and calls
//! `cuStreamWaitEvent` only where neither the host nor the waiting lane already knows that the mark
//! is behind it: the order needs each call. (A test leaves out each wait in turn, and the simulated
//! driver's race check has to report it.) Events stand behind some 20 us of work, and at the end of
//! a burst.

#![allow(unsafe_code)]

use super::libraries::nvidia::{Event, Events, Idle, Raw};
use super::{Stream, Trouble};
use smallvec::SmallVec;
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Acquire};

/// A point on a lane: its first `at` submissions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mark {
    pub lane: u16,
    pub at: u64,
}

/// For each lane, up to where it is ordered before.
type Clock = SmallVec<[u64; 8]>;

#[derive(Debug)]
struct Recorded {
    at: u64,
    event: Event,
    clock: Clock,
}

#[derive(Debug)]
struct Lane {
    raw: Raw,
    /// Submissions that have been queued.
    queued: u64,
    /// The next submission is ordered after these.
    known: Clock,
    /// Events that the host has not seen reached.
    recorded: VecDeque<Recorded>,
    /// Something was queued, or is to be, as part of the next submission.
    begun: Cell<bool>,
    /// Memory was freed behind the last submission: no event says when that is through.
    freed: Cell<bool>,
    /// The last submission with an event at or behind it.
    covered: u64,
}

#[derive(Debug)]
pub(crate) struct Lanes {
    lanes: Vec<Lane>,
    /// How far the host has seen each lane come.
    reached: Arc<[AtomicU64]>,
    events: Arc<Events>,
    /// Waits of one stream for another, so far.
    pub waits: u64,
}

impl Lanes {
    pub fn new(streams: &[Raw], reached: Arc<[AtomicU64]>, events: Arc<Events>) -> Lanes {
        let lane = |&raw: &Raw| Lane {
            raw,
            queued: 0,
            known: SmallVec::from_elem(0, streams.len()),
            recorded: VecDeque::new(),
            begun: Cell::new(false),
            freed: Cell::new(false),
            covered: 0,
        };
        Lanes { lanes: streams.iter().map(lane).collect(), reached, events, waits: 0 }
    }

    pub fn raw(&self, lane: usize) -> Raw {
        self.lanes[lane].raw
    }

    pub fn stream(&self, lane: usize) -> Stream {
        Stream { raw: self.lanes[lane].raw, number: lane }
    }

    /// The mark of the submission that is being queued on a lane.
    pub fn next(&self, lane: usize) -> Mark {
        self.lanes[lane].begun.set(true);
        Mark { lane: lane as u16, at: self.lanes[lane].queued + 1 }
    }

    /// The mark of the last submission that was queued on a lane.
    pub fn last(&self, lane: usize) -> Mark {
        Mark { lane: lane as u16, at: self.lanes[lane].queued }
    }

    /// True where something belongs to a submission that is not queued as a whole.
    pub fn is_begun(&self, lane: usize) -> bool {
        self.lanes[lane].begun.get()
    }

    /// That submission is queued.
    pub fn advance(&mut self, lane: usize) -> Mark {
        self.lanes[lane].queued += 1;
        self.lanes[lane].begun.set(false);
        self.lanes[lane].freed.set(false);
        Mark { lane: lane as u16, at: self.lanes[lane].queued }
    }

    /// Memory is freed behind all that is queued on a lane: other lanes have it once this one has
    /// come past that.
    pub fn freed(&self, lane: usize) {
        self.lanes[lane].freed.set(true);
    }

    /// True where memory was freed on a lane and no submission has followed.
    pub fn has_freed(&self, lane: usize) -> bool {
        self.lanes[lane].freed.get()
    }

    /// True where the host has seen the mark reached.
    pub fn is_reached(&self, mark: Mark) -> bool {
        self.reached[mark.lane as usize].load(Acquire) >= mark.at
    }

    /// True where the host has seen everything on the lane reached.
    pub fn is_through(&self, lane: usize) -> bool {
        self.is_reached(self.last(lane))
    }

    /// Where the host has seen everything on all lanes reached, that nothing is under way.
    pub fn idle(&self) -> Option<Idle<'_>> {
        // SAFETY: all that is queued stands on a lane, and while the lanes are lent nothing is.
        (0..self.lanes.len()).all(|lane| self.is_through(lane)).then(|| unsafe { Idle::new() })
    }

    /// True where later work on `lane` comes after the mark.
    pub fn is_ordered(&self, lane: usize, mark: Mark) -> bool {
        mark.lane as usize == lane
            || self.lanes[lane].known[mark.lane as usize] >= mark.at
            || self.is_reached(mark)
    }

    /// Puts later work on `lane` behind all of the marks, with as few waits as
    /// that takes: a mark that another one comes after needs none. Events that had to be recorded
    /// for it are handed to `reap`, with the submissions that they stand behind.
    pub fn order(
        &mut self,
        lane: usize,
        after: &[Mark],
        reap: &mut dyn FnMut(usize, u64, Event),
    ) -> Result<(), Trouble> {
        let mut open: SmallVec<[Mark; 8]> = SmallVec::from_slice(after);
        loop {
            open.retain(|mark| !self.is_ordered(lane, *mark));
            let covers = |mark: &Mark| {
                let clock = self.clock_at(*mark);
                open.iter().filter(|other| clock[other.lane as usize] >= other.at).count()
            };
            let Some(&next) = open.iter().max_by_key(|mark| (covers(mark), mark.at)) else {
                return Ok(());
            };
            self.wait(lane, next, reap)?;
        }
    }

    /// The points that the event behind a mark comes after, or would if it were recorded now.
    fn clock_at(&self, mark: Mark) -> &Clock {
        let from = &self.lanes[mark.lane as usize];
        from.recorded.iter().find(|r| r.at >= mark.at).map_or(&from.known, |r| &r.clock)
    }

    fn wait(
        &mut self,
        lane: usize,
        after: Mark,
        reap: &mut dyn FnMut(usize, u64, Event),
    ) -> Result<(), Trouble> {
        let from = after.lane as usize;
        self.forget_reached(from);
        let found =
            self.lanes[from].recorded.iter().find(|r| r.at >= after.at).map(|r| (r.event, r.at));
        let (event, at) = match found {
            Some(found) => found,
            None => {
                let at = self.lanes[from].queued;
                let event = self.record(from)?;
                reap(from, at, event);
                (event, at)
            }
        };
        self.lanes[lane].raw.wait(event)?;
        self.waits += 1;
        let clock = self.lanes[from].recorded.iter().find(|r| r.at == at).map(|r| r.clock.clone());
        let known = &mut self.lanes[lane].known;
        for (mine, theirs) in known.iter_mut().zip(clock.unwrap_or_default()) {
            *mine = (*mine).max(theirs);
        }
        known[from] = known[from].max(at);
        Ok(())
    }

    fn forget_reached(&mut self, lane: usize) {
        let reached = self.reached[lane].load(Acquire);
        let recorded = &mut self.lanes[lane].recorded;
        while recorded.front().is_some_and(|r| r.at <= reached) {
            recorded.pop_front();
        }
    }

    /// Records an event behind all queued work of a lane.
    fn record(&mut self, lane: usize) -> Result<Event, Trouble> {
        let event = self.events.take()?;
        let this = &mut self.lanes[lane];
        this.raw.record(event)?;
        this.covered = this.queued;
        this.recorded.push_back(Recorded { at: this.queued, event, clock: this.known.clone() });
        Ok(event)
    }

    /// Sees to it that an event stands behind all that is queued on a lane.
    pub fn cover(
        &mut self,
        lane: usize,
        reap: &mut dyn FnMut(usize, u64, Event),
    ) -> Result<(), Trouble> {
        if self.lanes[lane].covered < self.lanes[lane].queued {
            self.forget_reached(lane);
            let at = self.lanes[lane].queued;
            let event = self.record(lane)?;
            reap(lane, at, event);
        }
        Ok(())
    }
}
