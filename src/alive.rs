//! Counts of live objects in the process, for the tests that look for leaks.
//!
//! Counting is on where debug assertions are, as in tests. A release counts nothing, and the count
//! takes no room in the objects. Knows nothing of the objects.

#[cfg(all(debug_assertions, not(futensor_shuttle)))]
use crate::sync::plain::{AtomicUsize, Ordering::Relaxed};

/// Nodes of the graph, on all devices.
pub(crate) const NODES: usize = 0;
/// Wakers on the lists of values.
pub(crate) const WAKERS: usize = 1;

#[cfg(all(debug_assertions, not(futensor_shuttle)))]
static ALIVE: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];

/// A part of one thing that is counted.
pub(crate) struct Alive<const WHAT: usize>;

impl<const WHAT: usize> Alive<WHAT> {
    #[inline(always)]
    pub fn new() -> Alive<WHAT> {
        #[cfg(all(debug_assertions, not(futensor_shuttle)))]
        ALIVE[WHAT].fetch_add(1, Relaxed);
        Alive
    }
}

#[cfg(all(debug_assertions, not(futensor_shuttle)))]
impl<const WHAT: usize> Drop for Alive<WHAT> {
    fn drop(&mut self) {
        ALIVE[WHAT].fetch_sub(1, Relaxed);
    }
}

/// How many there are; 0 where nothing is counted.
pub(crate) fn count(what: usize) -> usize {
    #[cfg(all(debug_assertions, not(futensor_shuttle)))]
    return ALIVE[what].load(Relaxed);
    #[cfg(not(all(debug_assertions, not(futensor_shuttle))))]
    return what - what;
}
