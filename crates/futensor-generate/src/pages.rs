//! The pool of pages that keys and values lie in: bookkeeping alone, no tensor and no clock.
//!
//! A page has room for some tokens of one sequence, in all layers. A page that is full of tokens
//! that are known can be shared: whoever begins with the same tokens takes it instead of computing
//! it again. What follows is written to pages of one's own, so a shared page never changes. A page
//! that nobody uses any more keeps its content until its room is needed, the longest unused first.

use std::collections::{BTreeMap, HashMap};

/// The number of a page. Page 0 is nobody's: rows that only fill a step up are written there.
pub type Page = u32;

/// Names what a page holds: everything before it, and its own tokens. Compared in full, so that no
/// two beginnings are ever taken for each other.
type Key = (u64, Box<[u32]>);

/// The serial number of the empty beginning.
pub const BEGINNING: u64 = 0;

#[derive(Default)]
struct Entry {
    users: u32,
    /// What it is known to hold, and the serial number of that beginning.
    holds: Option<(Key, u64)>,
    /// When it was last let go, where nobody uses it.
    idle_since: u64,
}

/// The pages of one device.
pub struct Pages {
    size: usize,
    entries: Vec<Entry>,
    /// Pages without content.
    free: Vec<Page>,
    /// Pages with content and without users, by age.
    idle: BTreeMap<u64, Page>,
    known: HashMap<Key, Page>,
    serial: u64,
    clock: u64,
}

impl Pages {
    /// `count` pages of `size` tokens each, beside page 0.
    pub fn new(count: usize, size: usize) -> Pages {
        Pages {
            size,
            entries: (0..=count).map(|_| Entry::default()).collect(),
            free: (1..=count as Page).rev().collect(),
            idle: BTreeMap::new(),
            known: HashMap::new(),
            serial: BEGINNING,
            clock: 0,
        }
    }

    /// Tokens a page.
    pub fn size(&self) -> usize {
        self.size
    }

    /// All pages that sequences can have.
    pub fn count(&self) -> usize {
        self.entries.len() - 1
    }

    /// Pages that somebody uses.
    pub fn used(&self) -> usize {
        self.count() - self.free.len() - self.idle.len()
    }

    /// Pages that nobody uses.
    pub fn available(&self) -> usize {
        self.free.len() + self.idle.len()
    }

    /// The page that follows the beginning `after` with these tokens, with the serial number of the
    /// longer beginning.
    pub fn find(&self, after: u64, tokens: &[u32]) -> Option<(Page, u64)> {
        let page = *self.known.get(&(after, tokens.into()))?;
        self.entries[page as usize].holds.as_ref().map(|(_, serial)| (page, *serial))
    }

    /// True where `find` gave a page that nobody uses: sharing it takes one from those available.
    pub fn is_idle(&self, page: Page) -> bool {
        self.entries[page as usize].users == 0
    }

    /// One user more of a page that [`find`](Self::find) gave.
    pub fn share(&mut self, page: Page) {
        let entry = &mut self.entries[page as usize];
        if entry.users == 0 {
            self.idle.remove(&entry.idle_since);
        }
        entry.users += 1;
    }

    /// A page of one's own, without content; none where all are used.
    pub fn take(&mut self) -> Option<Page> {
        let page = self.free.pop().or_else(|| {
            let (_, page) = self.idle.pop_first()?;
            self.forget(page);
            Some(page)
        })?;
        self.entries[page as usize].users = 1;
        Some(page)
    }

    /// Says what a page has come to hold: these tokens after the beginning `after`. Gives the
    /// serial number of the longer beginning, which is another's where the same is known already.
    pub fn learn(&mut self, page: Page, after: u64, tokens: &[u32]) -> u64 {
        debug_assert_eq!(tokens.len(), self.size);
        if let Some((_, serial)) = self.find(after, tokens) {
            return serial;
        }
        self.serial += 1;
        let key: Key = (after, tokens.into());
        self.known.insert(key.clone(), page);
        self.entries[page as usize].holds = Some((key, self.serial));
        self.serial
    }

    /// One user less.
    pub fn release(&mut self, page: Page) {
        let entry = &mut self.entries[page as usize];
        entry.users -= 1;
        if entry.users > 0 {
            return;
        }
        if entry.holds.is_some() {
            self.clock += 1;
            entry.idle_since = self.clock;
            self.idle.insert(self.clock, page);
        } else {
            self.free.push(page);
        }
    }

    /// Nothing that pages hold is of use any more: their memory was lost.
    pub fn forget_all(&mut self) {
        for page in 1..self.entries.len() as Page {
            self.forget(page);
        }
        self.free.extend(std::mem::take(&mut self.idle).into_values());
    }

    fn forget(&mut self, page: Page) {
        if let Some((key, _)) = self.entries[page as usize].holds.take() {
            self.known.remove(&key);
        }
    }

    /// Every page is in one place, and as often used as these tables say.
    #[cfg(test)]
    pub fn check(&self, tables: &[&[Page]]) {
        let mut users = vec![0; self.entries.len()];
        tables.iter().flat_map(|t| t.iter()).for_each(|&page| users[page as usize] += 1);
        assert_eq!(users[0], 0, "page 0 is nobody's");
        for (page, entry) in self.entries.iter().enumerate().skip(1) {
            assert_eq!(entry.users, users[page], "users of page {page}");
            let free = self.free.iter().filter(|&&p| p as usize == page).count();
            let idle = self.idle.values().filter(|&&p| p as usize == page).count();
            let expected = match (entry.users, entry.holds.is_some()) {
                (0, true) => (0, 1),
                (0, false) => (1, 0),
                _ => (0, 0),
            };
            assert_eq!((free, idle), expected, "page {page}");
            if let Some((key, _)) = &entry.holds {
                assert_eq!(self.known[key], page as Page);
            }
        }
        assert_eq!(self.known.len(), self.entries.iter().filter(|e| e.holds.is_some()).count());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beginning_is_found_again_and_only_that_one() {
        let mut pages = Pages::new(4, 2);
        let (a, b) = (pages.take().unwrap(), pages.take().unwrap());
        let one = pages.learn(a, BEGINNING, &[1, 2]);
        let two = pages.learn(b, one, &[3, 4]);
        assert_eq!(pages.find(BEGINNING, &[1, 2]), Some((a, one)));
        assert_eq!(pages.find(one, &[3, 4]), Some((b, two)));
        assert_eq!(pages.find(BEGINNING, &[3, 4]), None, "the same tokens after another beginning");
        assert_eq!(pages.find(one, &[3, 5]), None);
        pages.check(&[&[a, b]]);
    }

    #[test]
    fn what_nobody_uses_stays_until_its_room_is_needed_the_oldest_first() {
        let mut pages = Pages::new(2, 1);
        let (a, b) = (pages.take().unwrap(), pages.take().unwrap());
        assert_eq!(pages.take(), None);
        let one = pages.learn(a, BEGINNING, &[1]);
        pages.learn(b, one, &[2]);
        pages.release(b);
        pages.release(a);
        assert_eq!((pages.used(), pages.available()), (0, 2));
        assert!(pages.find(one, &[2]).is_some());
        assert_eq!(pages.take(), Some(b));
        assert!(pages.find(one, &[2]).is_none() && pages.find(BEGINNING, &[1]).is_some());
        pages.check(&[&[b]]);
    }

    #[test]
    fn what_is_shared_is_given_to_nobody_else() {
        let mut pages = Pages::new(2, 1);
        let a = pages.take().unwrap();
        pages.learn(a, BEGINNING, &[1]);
        pages.release(a);
        pages.share(a);
        assert_eq!(pages.available(), 1);
        assert!(pages.take().is_some_and(|page| page != a) && pages.take().is_none());
    }
}
