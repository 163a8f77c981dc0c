//! The race check: vector clocks over streams, events and the host.
//!
//! The order that a program requests is known when work is enqueued, so the check is made then: it
//! does not depend on the actual order of execution, and finds a missing wait even if the result is
//! right. A point is a stream and a position in it. A clock holds, for each stream, the position up
//! to which the stream's work is ordered before. Every access to an allocation is a point; a later
//! conflicting access must have the point in its clock (the epochs of FastTrack, Flanagan and
//! Freund 2009).
//!
//! The host is another party: work that it has waited for is ordered before everything it enqueues
//! afterwards. By default all host threads are one party, because the check does not see the locks
//! and channels between them; with `per_thread` each thread is its own party.

use std::collections::BTreeMap;
use std::sync::Arc;

/// A stream and a position in it.
pub type Point = (u64, u64);

/// For each stream, the position up to which its work is ordered before.
pub type Clock = BTreeMap<u64, u64>;

/// Joins `other` into `clock`.
pub fn join(clock: &mut Clock, other: &Clock) {
    for (&stream, &position) in other {
        let mine = clock.entry(stream).or_insert(0);
        *mine = (*mine).max(position);
    }
}

/// The clocks of all parties.
#[derive(Default)]
pub struct Race {
    streams: BTreeMap<u64, Clock>,
    hosts: BTreeMap<u64, Clock>,
    /// Whether each host thread is its own party.
    pub per_thread: bool,
}

impl Race {
    fn host_key(&self) -> u64 {
        thread_local! {
            static KEY: u64 = {
                static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
                NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
            };
        }
        if self.per_thread { KEY.with(|key| *key) } else { 0 }
    }

    /// Work takes position `at` of a stream: it comes after the stream's earlier work, and after
    /// work that the host has waited for.
    pub fn enter(&mut self, stream: u64, at: u64) {
        let host = self.hosts.get(&self.host_key());
        let clock = self.streams.entry(stream).or_default();
        if let Some(host) = host {
            join(clock, host);
        }
        clock.insert(stream, at);
    }

    /// The stream's later work comes after everything in `clock`.
    pub fn stream_waits(&mut self, stream: u64, clock: &Clock) {
        join(self.streams.entry(stream).or_default(), clock);
    }

    /// The host knows that everything in `clock` has run.
    pub fn host_waits(&mut self, clock: &Clock) {
        let key = self.host_key();
        join(self.hosts.entry(key).or_default(), clock);
    }

    /// The clock of work that is ordered before the stream's next work.
    pub fn clock_of(&self, stream: u64) -> Clock {
        self.streams.get(&stream).cloned().unwrap_or_default()
    }

    /// True if the point is ordered before the stream's next work.
    pub fn ordered(&self, stream: u64, point: (u64, u64)) -> bool {
        stream == point.0
            || self
                .streams
                .get(&stream)
                .and_then(|c| c.get(&point.0))
                .is_some_and(|&at| at >= point.1)
    }

    /// True if the host has waited for the point.
    pub fn host_knows(&self, point: (u64, u64)) -> bool {
        let host = self.hosts.get(&self.host_key());
        host.and_then(|clock| clock.get(&point.0)).is_some_and(|&at| at >= point.1)
    }
}

/// An access to a part of an allocation.
#[derive(Clone)]
pub struct Access {
    /// The range of bytes in the allocation.
    pub range: std::ops::Range<usize>,
    /// Whether the access writes.
    pub write: bool,
    /// The stream and position of the access.
    pub point: (u64, u64),
    /// The name of the work, for the report.
    pub label: Arc<str>,
}

impl Access {
    fn verb(&self) -> &'static str {
        if self.write { "writes" } else { "reads" }
    }
}

/// The accesses to one allocation that later accesses must still be compared with.
#[derive(Default)]
pub struct History(Vec<Access>);

impl History {
    /// Adds an access, and reports earlier accesses that conflict with it and are not ordered
    /// before it.
    pub fn touch(&mut self, race: &Race, access: Access) -> Vec<String> {
        let mut found = Vec::new();
        let (from, to) = (access.range.start, access.range.end);
        for earlier in &self.0 {
            let overlap = earlier.range.start < to && from < earlier.range.end;
            let conflict = overlap && (access.write || earlier.write);
            if conflict && !race.ordered(access.point.0, earlier.point) {
                found.push(format!(
                    "{} {} what {} {}, and nothing orders it after that",
                    access.label,
                    access.verb(),
                    earlier.label,
                    earlier.verb()
                ));
            }
        }
        // An earlier access that this one covers is dropped: later accesses are compared with this
        // one.
        self.0.retain(|earlier| {
            let covered = from <= earlier.range.start && earlier.range.end <= to;
            let same = earlier.point.0 == access.point.0 && !earlier.write;
            !(covered && (access.write || same))
        });
        if self.0.len() >= 64 {
            self.0.retain(|earlier| !race.host_knows(earlier.point));
        }
        self.0.push(access);
        found
    }

    /// Accesses that the host has not waited for.
    pub fn unknown_to_host(&self, race: &Race) -> Option<&Access> {
        self.0.iter().find(|access| !race.host_knows(access.point))
    }
}
