//! The waiters of one value: their wakers, each at a place of its own, so that leaving costs the
//! same however many wait.
//!
//! The value's completion holds the list under a lock and takes it once, at the end; a later leave
//! finds nothing. A waker that leaves the list is returned, and dropped outside of locks.

use crate::concurrent::live_counts::{LiveCount, WAKERS};
use std::task::Waker;

pub(crate) struct Waiters {
    places: Vec<Place>,
    /// The first free place, from which a chain leads through the others.
    vacant: u32,
}

enum Place {
    Taken(Waker, LiveCount<WAKERS>),
    /// The next free one.
    Vacant(u32),
}

/// No free place.
const FULL: u32 = u32::MAX;

impl Default for Waiters {
    fn default() -> Waiters {
        Waiters { places: Vec::new(), vacant: FULL }
    }
}

impl Waiters {
    /// Puts a waker in, at its owner's place if there is one. Returns the waker that was there.
    pub fn put(&mut self, id: &mut Option<u32>, waker: Waker) -> Option<Waker> {
        if let Some(Place::Taken(old, _)) = id.and_then(|id| self.places.get_mut(id as usize)) {
            return Some(std::mem::replace(old, waker));
        }
        let at = match self.places.get_mut(self.vacant as usize) {
            None => {
                self.places.push(Place::Taken(waker, LiveCount::new()));
                self.places.len() as u32 - 1
            }
            Some(place) => {
                let at = self.vacant;
                if let Place::Vacant(next) =
                    std::mem::replace(place, Place::Taken(waker, LiveCount::new()))
                {
                    self.vacant = next;
                }
                at
            }
        };
        *id = Some(at);
        None
    }

    /// Gives a place back.
    pub fn leave(&mut self, id: u32) -> Option<Waker> {
        let place = self.places.get_mut(id as usize).filter(|p| matches!(p, Place::Taken(..)))?;
        let before = std::mem::replace(place, Place::Vacant(self.vacant));
        self.vacant = id;
        match before {
            Place::Taken(waker, _) => Some(waker),
            Place::Vacant(_) => None,
        }
    }

    /// True where this waker is there.
    pub fn has(&self, id: u32, waker: &Waker) -> bool {
        let place = self.places.get(id as usize);
        matches!(place, Some(Place::Taken(known, _)) if known.will_wake(waker))
    }

    /// The number of places, free ones included.
    #[cfg(all(test, not(futensor_loom)))]
    pub fn places(&self) -> usize {
        self.places.len()
    }

    pub fn into_wakers(self) -> impl Iterator<Item = Waker> {
        self.places.into_iter().filter_map(|place| match place {
            Place::Taken(waker, _) => Some(waker),
            Place::Vacant(_) => None,
        })
    }
}
