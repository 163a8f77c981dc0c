//! Addresses of freed blocks by size class, a shard for each thread: the last that a thread freed
//! is the first that it uses, since its core still has it. With one list for all, two chains of
//! products of 32x32 took 1.10 of one after the other, and so 1.03. What makes room is of the sizes
//! that nobody has asked for longest.
//!
//! Called by [`Memory`](super::Memory), which counts bytes and knows what a class is.

use crate::sync::plain::{AtomicUsize, Ordering::Relaxed};
use crate::sync::threads::thread_local;
use crate::sync::{Mutex, lock, statics};

/// As many as threads that free at once, as a rule; more share.
const SHARDS: usize = 8;

#[derive(Default)]
pub(super) struct Freed {
    shards: [Shard; SHARDS],
    /// Blocks that were ever put in: the time, for [`List::used`].
    puts: AtomicUsize,
}

/// Lists by class; none until a block is freed.
#[derive(Default)]
#[repr(align(128))] // Two share no cache line, nor a pair that is fetched together.
struct Shard(Mutex<Vec<List>>);

#[derive(Clone, Default)]
struct List {
    addresses: Vec<usize>,
    /// When a block was put in last.
    used: usize,
}

thread_local! {
    static SHARD: usize = {
        statics! { static THREADS: AtomicUsize = AtomicUsize::new(0); }
        THREADS.fetch_add(1, Relaxed) % SHARDS
    };
}

/// The calling thread's shard; of one that is ending, the first.
fn own_shard() -> usize {
    SHARD.try_with(|shard| *shard).unwrap_or(0)
}

impl Freed {
    pub fn put(&self, class: usize, address: usize) {
        self.put_in(own_shard(), class, address);
    }

    /// The calling thread's last, or else another's.
    pub fn take(&self, class: usize) -> Option<usize> {
        self.take_from(own_shard(), class)
    }

    /// All of them, list by list.
    pub fn take_all(&self) -> impl Iterator<Item = (usize, Vec<usize>)> {
        let lists = |shard: &Shard| std::mem::take(&mut *lock(&shard.0)).into_iter().enumerate();
        self.shards.iter().flat_map(lists).map(|(class, list)| (class, list.addresses))
    }

    /// So many bytes of those that were put in longest ago, or all: their classes and addresses.
    /// `size` is that of a class.
    pub fn take_idle(&self, bytes: usize, size: impl Fn(usize) -> usize) -> Vec<(usize, usize)> {
        let (mut taken, mut sum) = (Vec::new(), 0);
        while sum < bytes {
            let oldest = |shard: usize| {
                let lists = lock(&self.shards[shard].0);
                let some = lists.iter().enumerate().filter(|(_, list)| !list.addresses.is_empty());
                some.map(|(class, list)| (list.used, shard, class)).min()
            };
            let Some((_, shard, class)) = (0..SHARDS).filter_map(oldest).min() else { break };
            let mut lists = lock(&self.shards[shard].0);
            // Another thread may have taken all of them meanwhile.
            let Some(List { addresses: list, .. }) = lists.get_mut(class) else { continue };
            let n = (bytes - sum).div_ceil(size(class)).min(list.len());
            sum += n * size(class);
            taken.extend(list.drain(..n).map(|address| (class, address)));
        }
        taken
    }

    fn put_in(&self, shard: usize, class: usize, address: usize) {
        let mut lists = lock(&self.shards[shard].0);
        if lists.len() <= class {
            lists.resize(class + 1, List::default());
        }
        lists[class].addresses.push(address);
        lists[class].used = self.puts.fetch_add(1, Relaxed);
    }

    fn take_from(&self, shard: usize, class: usize) -> Option<usize> {
        let mut shards = (0..SHARDS).map(|i| &self.shards[(shard + i) % SHARDS]);
        shards.find_map(|shard| lock(&shard.0).get_mut(class)?.addresses.pop())
    }
}

#[cfg(all(test, not(futensor_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_uses_what_it_freed_last_itself_and_else_what_another_did() {
        let freed = Freed::default();
        for (shard, address) in [(3, 10), (3, 20), (4, 30), (2, 40)] {
            freed.put_in(shard, 7, address);
        }
        assert_eq!(freed.take_from(3, 6), None, "of another class");
        let taken: Vec<_> = (0..5).map(|_| freed.take_from(3, 7)).collect();
        assert_eq!(taken, [Some(20), Some(10), Some(30), Some(40), None]);
    }

    #[test]
    fn what_was_put_in_longest_ago_makes_room_as_much_as_is_needed() {
        let freed = Freed::default();
        for (shard, class, address) in [(0, 5, 1), (1, 5, 2), (1, 2, 3), (0, 5, 4), (3, 9, 5)] {
            freed.put_in(shard, class, address);
        }
        // Sizes are ten times the classes. The first's list has been used since.
        assert_eq!(freed.take_idle(0, |_| 10), []);
        assert_eq!(freed.take_idle(51, |class| 10 * class), [(5, 2), (2, 3)]);
        assert_eq!(freed.take_idle(50, |class| 10 * class), [(5, 1)]);
        assert_eq!(freed.take_idle(usize::MAX, |class| 10 * class), [(5, 4), (9, 5)]);
    }

    /// Each block is taken once, and no thread stumbles over what another one took.
    #[test]
    fn what_makes_room_may_be_taken_by_another_thread_meanwhile() {
        let (freed, turns) = (Freed::default(), 20_000);
        let taken = AtomicUsize::new(0);
        let done = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for turn in 0..turns {
                    freed.put_in(turn % SHARDS, turn % 3, turn);
                    taken.fetch_add(freed.take_idle(1, |_| 1).len(), Relaxed);
                }
                done.store(1, Relaxed);
            });
            while done.load(Relaxed) == 0 {
                let all: usize = freed.take_all().map(|(_, list)| list.len()).sum();
                taken.fetch_add(all, Relaxed);
            }
        });
        let rest: usize = freed.take_all().map(|(_, list)| list.len()).sum();
        assert_eq!(taken.into_inner() + rest, turns);
    }

    #[test]
    fn what_any_thread_freed_is_among_all_of_them_once() {
        let freed = Freed::default();
        freed.put(2, 10);
        std::thread::scope(|scope| scope.spawn(|| freed.put(5, 20)).join().unwrap());
        let mut all: Vec<_> = freed.take_all().filter(|(_, list)| !list.is_empty()).collect();
        all.sort();
        assert_eq!(all, [(2, vec![10]), (5, vec![20])]);
        assert_eq!((freed.take(2), freed.take(5)), (None, None));
    }
}
