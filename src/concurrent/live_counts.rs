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
static LIVE: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];

/// A field of each counted object.
pub(crate) struct LiveCount<const WHAT: usize>;

impl<const WHAT: usize> LiveCount<WHAT> {
    #[inline(always)]
    pub fn new() -> LiveCount<WHAT> {
        #[cfg(all(debug_assertions, not(futensor_shuttle)))]
        LIVE[WHAT].fetch_add(1, Relaxed);
        LiveCount
    }
}

#[cfg(all(debug_assertions, not(futensor_shuttle)))]
impl<const WHAT: usize> Drop for LiveCount<WHAT> {
    fn drop(&mut self) {
        LIVE[WHAT].fetch_sub(1, Relaxed);
    }
}

/// The number of live objects; 0 where nothing is counted.
pub(crate) fn count(what: usize) -> usize {
    #[cfg(all(debug_assertions, not(futensor_shuttle)))]
    return LIVE[what].load(Relaxed);
    #[cfg(not(all(debug_assertions, not(futensor_shuttle))))]
    return what - what;
}
