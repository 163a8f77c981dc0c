//! Sharded counters: many threads count, few threads read.
//!
//! Each thread counts in a row of its own by plain stores: a locked access takes 5 ns, and an
//! awaited op has four such counts. A reader adds the rows up. Threads without a row share one.
//! Knows nothing of the counted things.

use crate::sync::plain::{AtomicUsize, Mutex};
use crate::sync::threads::thread_local;
use crate::sync::{AtomicU64, CachePadded, Ordering, lock_plain, statics};
use std::cell::Cell;

/// Rows; the last is shared.
const ROWS: usize = if cfg!(futensor_loom) {
    1
} else if cfg!(futensor_shuttle) {
    // Some threads of a program share one.
    3
} else {
    32
};
const SHARED: usize = ROWS - 1;

/// `N` counters, which wrap around.
pub(crate) struct ShardedCounters<const N: usize>(Box<[CachePadded<[AtomicU64; N]>]>);

impl<const N: usize> Default for ShardedCounters<N> {
    fn default() -> ShardedCounters<N> {
        ShardedCounters(
            (0..ROWS).map(|_| CachePadded(std::array::from_fn(|_| AtomicU64::new(0)))).collect(),
        )
    }
}

impl<const N: usize> ShardedCounters<N> {
    #[inline]
    pub fn add(&self, what: usize, n: u64) {
        self.add_in(my_row(), what, n);
    }

    /// As [`add`](Self::add); and in one order with all accesses that are SeqCst.
    #[inline]
    pub fn add_in_order(&self, what: usize, n: u64) {
        self.0[my_row()][what].fetch_add(n, Ordering::SeqCst);
    }

    /// Only for the owner of this row, unless it is the shared one.
    #[inline]
    fn add_in(&self, row: usize, what: usize, n: u64) {
        let count = &self.0[row][what];
        // Release: a reader that sees the count sees everything before it.
        if row == SHARED {
            count.fetch_add(n, Ordering::Release);
        } else {
            count.store(count.load(Ordering::Relaxed).wrapping_add(n), Ordering::Release);
        }
    }

    /// The sum over all threads. A reader that has seen any act of a thread after its count sees
    /// that count.
    pub fn sum(&self, what: usize) -> u64 {
        // Relaxed: a reader that has seen a count of a new row has seen that the row is there.
        let rows = (0..HANDED_OUT.load(Ordering::Relaxed)).chain([SHARED]);
        rows.fold(0, |sum: u64, row| sum.wrapping_add(self.0[row][what].load(Ordering::SeqCst)))
    }
}

statics! {
    /// The number of rows, from the first, that have had an owner.
    static HANDED_OUT: AtomicUsize = AtomicUsize::new(0);
    /// Rows that have no owner any more.
    static LEFT: Mutex<Vec<usize>> = Mutex::new(Vec::new());
}

thread_local! {
    static MINE: Cell<Option<usize>> = const { Cell::new(None) };
    static OWNER: Owner = const { Owner };
}

/// Gives the thread's row back as the thread ends. Later counts of the thread go to the shared row.
struct Owner;

impl Drop for Owner {
    fn drop(&mut self) {
        if let Some(row) = MINE.replace(Some(SHARED))
            && row != SHARED
        {
            lock_plain(&LEFT).push(row);
        }
    }
}

#[inline]
fn my_row() -> usize {
    // Loom's threads are one to the system.
    if cfg!(futensor_loom) { SHARED } else { MINE.get().unwrap_or_else(take_row) }
}

#[cold]
fn take_row() -> usize {
    let mut left = lock_plain(&LEFT);
    let row = match left.pop() {
        Some(row) => row,
        None if HANDED_OUT.load(Ordering::Relaxed) < SHARED => {
            HANDED_OUT.fetch_add(1, Ordering::Relaxed)
        }
        None => SHARED,
    };
    // If the thread is ending already, nobody would give the row back.
    let row = if OWNER.try_with(|_| ()).is_ok() {
        row
    } else {
        if row != SHARED {
            left.push(row);
        }
        SHARED
    };
    MINE.set(Some(row));
    row
}

#[cfg(all(test, not(futensor_loom)))]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn what_more_threads_than_rows_count_in_turn_and_at_once_is_all_there() {
        let counters = ShardedCounters::<2>::default();
        for _ in 0..3 {
            thread::scope(|scope| {
                for _ in 0..2 * ROWS {
                    scope.spawn(|| (0..1000).for_each(|k| counters.add((k % 4 == 0) as usize, 1)));
                }
            });
        }
        assert_eq!(
            (counters.sum(0), counters.sum(1)),
            (3 * 2 * ROWS as u64 * 750, 3 * 2 * ROWS as u64 * 250)
        );
    }

    #[test]
    fn what_a_thread_counts_as_it_ends_is_there() {
        struct CountsAsItGoes(&'static ShardedCounters<1>);
        impl Drop for CountsAsItGoes {
            fn drop(&mut self) {
                self.0.add(0, 1);
            }
        }
        thread_local!(static LAST: Cell<Option<CountsAsItGoes>> = const { Cell::new(None) });
        let counters: &'static ShardedCounters<1> = Box::leak(Box::default());
        let threads: Vec<_> = (0..100)
            .map(|k| {
                thread::spawn(move || {
                    // Before its row is there, or after: so its end comes after the row's, or
                    // before.
                    if k % 2 == 0 {
                        counters.add(0, 1);
                    }
                    LAST.set(Some(CountsAsItGoes(counters)));
                    counters.add(0, 1);
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(counters.sum(0), 250);
    }
}
