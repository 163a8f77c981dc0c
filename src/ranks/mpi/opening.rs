//! Opens the communicator of a group, on a separate thread.
//!
//! Opening one waits for all members inside the library, and if a member dies meanwhile the wait
//! may never end (in Open MPI 5's `PMIx_Group_construct`). Such a thread is abandoned, asleep, and
//! everything else goes on. Sometimes the wait never ends although all members live (in
//! `ompi_comm_activate`, for 3 of 100 groups that were opened beside a death). So a member that
//! waits for long starts another attempt, under another name, beside the one that hangs. More than
//! one attempt may succeed in the end: the first member decides which one is used.

use crate::engine::exchange::{Call, Key, Words};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// How long to wait for the first attempt before a second one; twice as long for the second, and so
/// on.
const PATIENCE: Duration = Duration::from_secs(1);

/// A library that opens communicators.
pub(super) trait Opens: Send + Sync + 'static {
    type Made: Send;

    /// Whether it is initialised, so that a second thread may use it while one hangs.
    fn is_ready(&self) -> bool;

    /// Opens the communicator of these ranks of the world; `me` is this rank's index. Waits for all
    /// of them.
    fn open(&self, ranks: &[usize], me: usize, name: &str) -> Result<Self::Made, String>;
}

pub(super) struct Opening<L: Opens> {
    library: Arc<L>,
    /// The groups that are awaited.
    waited: Vec<Waited<L::Made>>,
    /// The number of threads that have not returned.
    threads: usize,
    tried: (Sender<Tried<L::Made>>, Receiver<Tried<L::Made>>),
    words: Vec<(Key, Words)>,
}

/// The ticket, the number of the attempt, and its result.
type Tried<M> = (Key, u32, Result<M, String>);

struct Waited<M> {
    call: Call,
    ranks: Arc<[usize]>,
    me: usize,
    tries: u32,
    /// The time of the next attempt.
    again: Instant,
    made: Vec<(u32, M)>,
    errors: Vec<String>,
    /// The attempt that is used.
    taken: Option<u32>,
}

impl<L: Opens> Opening<L> {
    pub fn new(library: L) -> Opening<L> {
        let (library, tried) = (Arc::new(library), channel());
        Opening { library, waited: Vec::new(), threads: 0, tried, words: Vec::new() }
    }

    /// Starts to open a call's group of these ranks; `me` is this rank's index.
    pub fn start(&mut self, call: Call, ranks: &[usize], me: usize, now: Instant) {
        let (made, errors) = (Vec::new(), Vec::new());
        let mut waited = Waited {
            call,
            ranks: ranks.into(),
            me,
            tries: 0,
            again: now,
            made,
            errors,
            taken: None,
        };
        self.begin(&mut waited);
        self.waited.push(waited);
    }

    fn begin(&mut self, waited: &mut Waited<L::Made>) {
        let (ticket, group, attempt) = (waited.call.ticket, waited.call.group, waited.tries);
        waited.again += PATIENCE * 2u32.saturating_pow(attempt);
        waited.tries += 1;
        let (library, ranks, me) = (self.library.clone(), waited.ranks.clone(), waited.me);
        let tried = self.tried.0.clone();
        let opens = move || {
            let name = format!("futensor-{}-{:x}-{attempt}", group.0, group.1);
            let _ = tried.send((ticket, attempt, library.open(&ranks, me, &name)));
        };
        match std::thread::Builder::new().name("futensor-opens".into()).spawn(opens) {
            Ok(_) => self.threads += 1,
            Err(error) => {
                waited.errors.push(format!("cannot start a thread to open a group: {error}"))
            }
        }
    }

    /// The groups that were opened or have failed since the last call, except those that were given
    /// up.
    pub fn ended(&mut self, now: Instant) -> Vec<(Call, Result<L::Made, String>)> {
        while let Ok((ticket, attempt, tried)) = self.tried.1.try_recv() {
            self.threads -= 1;
            if let Some(waited) = self.waited.iter_mut().find(|waited| waited.call.ticket == ticket)
            {
                match tried {
                    Ok(made) => waited.made.push((attempt, made)),
                    Err(text) => waited.errors.push(text),
                }
            }
        }
        let mut ended = Vec::new();
        for mut waited in std::mem::take(&mut self.waited) {
            if let (None, Some((attempt, _))) = (waited.taken, waited.made.first())
                && waited.ranks.first() == Some(&waited.me)
            {
                waited.taken = Some(*attempt);
                self.words.push((waited.call.group, attempt.to_le_bytes().into()));
            }
            if let Some(at) =
                waited.made.iter().position(|(attempt, _)| Some(*attempt) == waited.taken)
            {
                ended.push((waited.call, Ok(waited.made.swap_remove(at).1)));
            } else if waited.errors.len() == waited.tries as usize {
                ended.push((waited.call, Err(waited.errors.swap_remove(0))));
            } else {
                if waited.made.is_empty() && now >= waited.again && self.library.is_ready() {
                    self.begin(&mut waited);
                }
                self.waited.push(waited);
            }
        }
        ended
    }

    /// The words for the other members of the groups, since the last call.
    pub fn words(&mut self) -> Vec<(Key, Words)> {
        std::mem::take(&mut self.words)
    }

    /// Receives the first member's decision. Every member has begun before any attempt succeeds, so
    /// the receiver is waiting.
    pub fn hear(&mut self, group: Key, words: Words) {
        let Ok(attempt) = <[u8; 4]>::try_from(words) else { return };
        let waited = self.waited.iter_mut().find(|waited| waited.call.group == group);
        waited.into_iter().for_each(|waited| waited.taken = Some(u32::from_le_bytes(attempt)));
    }

    /// Gives this group up.
    pub fn give_up(&mut self, group: Key) {
        self.waited.retain(|waited| waited.call.group != group);
    }

    pub fn waited_for(&self) -> usize {
        self.waited.len()
    }

    /// Whether the library is initialised, and no thread is inside it.
    pub fn is_whole(&self) -> bool {
        !self.is_stuck() && self.library.is_ready()
    }

    pub fn is_stuck(&self) -> bool {
        self.threads > 0
    }
}

#[cfg(all(test, not(futensor_loom)))]
mod tests {
    use super::*;
    use crate::DType;
    use crate::engine::exchange::What;
    use std::sync::{Condvar, Mutex};

    /// A stand-in that opens communicators when told to, by the last letter of the name.
    #[derive(Default)]
    struct Doors(Mutex<Vec<(char, Result<(), String>)>>, Condvar);

    impl Opens for Arc<Doors> {
        type Made = char;

        fn is_ready(&self) -> bool {
            true
        }

        fn open(&self, _: &[usize], _: usize, name: &str) -> Result<char, String> {
            let of = name.chars().last().expect("a name");
            let mut doors = self.0.lock().unwrap();
            loop {
                if let Some(at) = doors.iter().position(|door| door.0 == of) {
                    return doors.swap_remove(at).1.map(|()| of);
                }
                doors = self.1.wait(doors).unwrap();
            }
        }
    }

    impl Doors {
        fn tell(&self, of: char, how: Result<(), &str>) {
            self.0.lock().unwrap().push((of, how.map_err(String::from)));
            self.1.notify_all();
        }
    }

    const GROUP: Key = Key(0, 7);

    /// One of two members, with ranks 3 and 5, that has begun.
    fn member(me: usize) -> (Opening<Arc<Doors>>, Arc<Doors>, Instant) {
        let doors = Arc::new(Doors::default());
        let (mut opening, began) = (Opening::new(doors.clone()), Instant::now());
        let (dtype, ticket, what) = (DType::F32, Key(0, 1), What::Open(vec![3, 5], me));
        let call =
            Call { ticket, group: GROUP, what, dtype, reads: 0, writes: 0, from: None, to: None };
        opening.start(call, &[3, 5], me, began);
        (opening, doors, began)
    }

    /// Polls until this number of threads is left inside, and once more.
    fn until_inside(
        opening: &mut Opening<Arc<Doors>>,
        threads: usize,
        now: Instant,
    ) -> Vec<Result<char, String>> {
        let mut ended = opening.ended(now);
        while opening.threads > threads {
            std::thread::yield_now();
            ended.extend(opening.ended(now));
        }
        ended.into_iter().map(|(_, made)| made).collect()
    }

    #[test]
    fn a_try_that_hangs_has_another_beside_it_and_the_first_member_says_which_is_taken() {
        let (mut first, its_doors, began) = member(3);
        let (mut other, others_doors, _) = member(5);
        for opening in [&mut first, &mut other] {
            assert!(opening.ended(began + PATIENCE / 2).is_empty());
            assert_eq!(opening.threads, 1, "it is early");
            assert!(opening.ended(began + PATIENCE * 2).is_empty());
            assert_eq!(opening.threads, 2, "one more try");
        }
        let now = began + PATIENCE * 2;
        // Both attempts succeed at the other member, in this order.
        others_doors.tell('0', Ok(()));
        assert!(until_inside(&mut other, 1, now).is_empty(), "nobody has said which");
        others_doors.tell('1', Ok(()));
        assert!(until_inside(&mut other, 0, now).is_empty() && other.words().is_empty());
        its_doors.tell('1', Ok(()));
        assert_eq!(until_inside(&mut first, 1, now), [Ok('1')]);
        for (group, words) in first.words() {
            other.hear(group, words);
        }
        assert_eq!(until_inside(&mut other, 0, now), [Ok('1')]);
        assert!(first.is_stuck() && other.is_whole());
        // Too late: it is not reported, and the thread is no longer stuck.
        its_doors.tell('0', Ok(()));
        assert!(until_inside(&mut first, 0, now).is_empty() && first.words().is_empty());
    }

    #[test]
    fn a_group_that_cannot_be_opened_says_why_once_no_try_is_left() {
        let (mut opening, doors, began) = member(3);
        let now = began + PATIENCE;
        assert!(opening.ended(now).is_empty());
        doors.tell('0', Err("no such rank"));
        assert!(until_inside(&mut opening, 1, now).is_empty(), "the second may come through");
        doors.tell('1', Err("no more"));
        assert_eq!(until_inside(&mut opening, 0, now), [Err("no such rank".into())]);
        assert_eq!(opening.waited_for(), 0);
        let (mut opening, doors, began) = member(5);
        opening.give_up(GROUP);
        doors.tell('0', Ok(()));
        assert!(until_inside(&mut opening, 0, began).is_empty());
    }
}
