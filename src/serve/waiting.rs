//! `Waiting`: the requests that wait for a batch, in the order of arrival and by key.
//!
//! Every operation costs the logarithm of the number of requests: finding the oldest, finding the
//! keys with a full batch, removing a request. Called by the queue, under its lock. Knows nothing
//! of time, and drops no requests.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;

pub(super) struct Waiting<K, T> {
    /// The size of a full batch.
    batch_max: usize,
    /// Requests by key, then by number; numbers increase.
    keys: HashMap<K, BTreeMap<u64, T>>,
    /// The key of each number.
    numbers: BTreeMap<u64, K>,
    /// The oldest request of each key that has a full batch.
    full: BTreeSet<u64>,
    next: u64,
}

impl<K: Copy + Eq + Hash, T> Waiting<K, T> {
    pub fn new(batch_max: usize) -> Waiting<K, T> {
        let (keys, numbers, full) = (HashMap::new(), BTreeMap::new(), BTreeSet::new());
        Waiting { batch_max, keys, numbers, full, next: 0 }
    }

    pub fn len(&self) -> usize {
        self.numbers.len()
    }

    /// The oldest request, and its key.
    pub fn oldest(&self) -> Option<(&T, K)> {
        let (number, key) = self.numbers.first_key_value()?;
        Some((self.keys.get(key)?.get(number)?, *key))
    }

    /// A key with a full batch; of several, the one with the oldest request.
    pub fn full(&self) -> Option<K> {
        self.numbers.get(self.full.first()?).copied()
    }

    /// Adds a request; returns its number.
    pub fn push(&mut self, key: K, it: T) -> u64 {
        let number = self.next;
        self.next += 1;
        self.numbers.insert(number, key);
        self.change(key, |line| line.insert(number, it));
        number
    }

    /// Removes a request; `None` if it is gone.
    pub fn remove(&mut self, number: u64) -> Option<T> {
        let key = self.numbers.remove(&number)?;
        self.change(key, |line| line.remove(&number))
    }

    /// Removes a batch: the oldest requests of this key, at most a full batch.
    pub fn take(&mut self, key: K) -> Vec<T> {
        let most = self.batch_max;
        let batch: Vec<(u64, T)> =
            self.change(key, |line| std::iter::from_fn(|| line.pop_first()).take(most).collect());
        batch
            .into_iter()
            .map(|(number, it)| {
                self.numbers.remove(&number);
                it
            })
            .collect()
    }

    /// Changes the requests of a key, and updates whether it has a full batch and which is the
    /// oldest.
    fn change<R>(&mut self, key: K, f: impl FnOnce(&mut BTreeMap<u64, T>) -> R) -> R {
        let line = self.keys.entry(key).or_default();
        if let Some((first, _)) = line.first_key_value() {
            self.full.remove(first);
        }
        let result = f(line);
        match line.first_key_value() {
            Some((&first, _)) if line.len() >= self.batch_max => drop(self.full.insert(first)),
            Some(_) => {}
            None => drop(self.keys.remove(&key)),
        }
        result
    }
}

#[cfg(all(test, not(futensor_loom)))]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::hash::Hasher;

    thread_local!(static LOOKS: Cell<usize> = const { Cell::new(0) });

    /// A key that counts its comparisons.
    #[derive(Clone, Copy, Debug)]
    struct Counted(u64);
    impl PartialEq for Counted {
        fn eq(&self, other: &Counted) -> bool {
            LOOKS.set(LOOKS.get() + 1);
            self.0 == other.0
        }
    }
    impl Eq for Counted {}
    impl Hash for Counted {
        fn hash<H: Hasher>(&self, state: &mut H) {
            LOOKS.set(LOOKS.get() + 1);
            self.0.hash(state);
        }
    }

    /// An operation on a request costs the same however many wait.
    #[test]
    fn a_request_among_ten_thousand_costs_what_one_among_ten_does() {
        let mut looks = [10, 10_000].map(|others| {
            let mut waiting = Waiting::new(8);
            // Pairs with one key, none of which is a full batch.
            for i in 0..others {
                waiting.push(Counted(i / 2), i);
            }
            LOOKS.set(0);
            let number = waiting.push(Counted(1 << 40), 0);
            assert!(waiting.full().is_none() && waiting.oldest().is_some());
            waiting.remove(number);
            assert_eq!(waiting.take(Counted(0)), [0, 1]);
            LOOKS.get()
        });
        // A few keys may share a slot of the hash table.
        looks[0] += 8;
        assert!(looks[1] <= looks[0], "{looks:?}");
    }

    /// Behaves like a list that is scanned from its beginning.
    #[test]
    fn who_waits_is_what_a_plain_list_says() {
        let mut state = 7u64;
        let mut random = |n: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % n
        };
        for batch_max in [1, 3, 8] {
            let mut waiting = Waiting::new(batch_max);
            let mut list: Vec<(u64, u64)> = Vec::new();
            for _ in 0..4000 {
                match random(5) {
                    0..3 => {
                        let key = random(6);
                        let number = waiting.push(key, key * 100);
                        assert!(list.last().is_none_or(|(last, _)| *last < number));
                        list.push((number, key));
                    }
                    3 if !list.is_empty() => {
                        let (number, key) = list.remove(random(list.len() as u64) as usize);
                        assert_eq!(waiting.remove(number), Some(key * 100));
                        assert_eq!(waiting.remove(number), None);
                    }
                    _ => {
                        let key = random(6);
                        let want = list.iter().filter(|(_, k)| *k == key).take(batch_max).count();
                        assert_eq!(waiting.take(key), vec![key * 100; want]);
                        let mut left = want;
                        list.retain(|(_, k)| {
                            let stays = *k != key || left == 0;
                            left -= usize::from(!stays);
                            stays
                        });
                    }
                }
                let has = |key: u64| list.iter().filter(|(_, k)| *k == key).count();
                assert_eq!(
                    waiting.full(),
                    list.iter().map(|(_, key)| *key).find(|key| has(*key) >= batch_max)
                );
                let oldest = waiting.oldest().map(|(it, key)| (*it, key));
                assert_eq!(oldest, list.first().map(|(_, key)| (key * 100, *key)));
                assert_eq!(waiting.len(), list.len());
                assert_eq!(
                    waiting.keys.len(),
                    list.iter().map(|(_, k)| k).collect::<BTreeSet<_>>().len()
                );
            }
        }
    }
}
