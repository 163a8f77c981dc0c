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
            for address in self.drain(shard, class, (bytes - sum).div_ceil(size(class))) {
                sum += size(class);
                taken.push((class, address));
            }
        }
        taken
    }

    /// So many of a list, or as many as there are: another thread may have taken all of them since
    /// somebody saw them.
    fn drain(&self, shard: usize, class: usize, n: usize) -> Vec<usize> {
        let mut lists = lock(&self.shards[shard].0);
        let Some(List { addresses, .. }) = lists.get_mut(class) else { return Vec::new() };
        let n = n.min(addresses.len());
        addresses.drain(..n).collect()
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

    #[test]
    fn a_list_that_another_thread_took_meanwhile_has_nothing() {
        let freed = Freed::default();
        freed.put_in(3, 7, 10);
        assert_eq!(freed.take_all().map(|(_, list)| list.len()).sum::<usize>(), 1);
        assert!(freed.drain(3, 7, 1).is_empty());
        freed.put_in(3, 9, 20);
        assert!(freed.drain(3, 7, 1).is_empty());
        assert_eq!(freed.drain(3, 9, 2), [20]);
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
