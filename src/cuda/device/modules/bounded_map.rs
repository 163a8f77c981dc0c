//! A bounded map for things that can be made again: kernels by their keys.

use std::collections::HashMap;
use std::hash::Hash;

/// A bounded map: when it is full, the half that was not used for longest falls out.
pub(crate) struct BoundedMap<K, V> {
    slots: HashMap<K, (V, u64)>,
    most: usize,
    clock: u64,
    /// The clock at the last sweep.
    swept: u64,
}

impl<K: Hash + Eq + Clone, V> BoundedMap<K, V> {
    pub fn new(most: usize) -> BoundedMap<K, V> {
        BoundedMap { slots: HashMap::new(), most, clock: 0, swept: 0 }
    }

    pub fn get(&mut self, key: &K) -> Option<&mut V> {
        self.clock += 1;
        let (value, used) = self.slots.get_mut(key)?;
        *used = self.clock;
        Some(value)
    }

    /// Takes out the values that were not used since the last sweep, but for those that `keep`
    /// names.
    pub fn sweep(&mut self, keep: impl Fn(&V) -> bool) -> Vec<V> {
        let before = std::mem::replace(&mut self.swept, self.clock);
        let old: Vec<K> = self
            .slots
            .iter()
            .filter(|(_, (value, used))| *used <= before && !keep(value))
            .map(|(k, _)| k.clone())
            .collect();
        old.iter().filter_map(|k| self.slots.remove(k)).map(|(v, _)| v).collect()
    }

    pub fn remove(&mut self, key: &K) {
        self.slots.remove(key);
    }

    /// Empties it.
    pub fn clear(&mut self) {
        self.slots.clear();
    }

    /// Puts a value in, and hands back the values that fell out.
    pub fn put(&mut self, key: K, value: V) -> Vec<V> {
        let mut out = Vec::new();
        if self.slots.len() >= self.most && !self.slots.contains_key(&key) {
            let mut uses: Vec<u64> = self.slots.values().map(|(_, used)| *used).collect();
            let middle = uses.len() / 2;
            let (_, &mut median, _) = uses.select_nth_unstable(middle);
            let old: Vec<K> = self
                .slots
                .iter()
                .filter(|(_, (_, used))| *used <= median)
                .map(|(k, _)| k.clone())
                .collect();
            out.extend(old.iter().filter_map(|k| self.slots.remove(k)).map(|(v, _)| v));
        }
        self.clock += 1;
        out.extend(self.slots.insert(key, (value, self.clock)).map(|(v, _)| v));
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_takes_what_was_not_used_since_the_one_before() {
        let mut map = BoundedMap::new(8);
        for k in 0..4 {
            map.put(k, k);
        }
        assert!(map.sweep(|_| false).is_empty());
        map.get(&1);
        map.put(4, 4);
        let mut out = map.sweep(|&v| v == 3);
        out.sort();
        assert_eq!(out, [0, 2]);
        assert!(map.get(&1).is_some() && map.get(&3).is_some() && map.get(&4).is_some());
    }

    #[test]
    fn a_full_map_keeps_what_was_used_last() {
        let mut map = BoundedMap::new(8);
        for k in 0..8 {
            assert!(map.put(k, k).is_empty());
        }
        for k in 0..4 {
            map.get(&k);
        }
        let mut out = map.put(100, 100);
        out.sort();
        assert_eq!(out, [0, 4, 5, 6, 7]);
        assert!(map.get(&3).is_some() && map.get(&100).is_some() && map.get(&4).is_none());
        assert_eq!(map.put(3, 33), [3]);
    }
}
