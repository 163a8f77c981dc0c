//! Loop nests over strided operands: sizes and the steps of each operand, walked in row-major
//! order.
//!
//! Every kernel that takes strides builds one, merges what can be merged, and walks what is left.
//! Pure arithmetic, but for [`Shared`], the address that the parts of a parallel kernel hold.

use crate::view::Parallel;
use smallvec::SmallVec;
use std::ops::Range;

/// One loop of a nest: its length and how far each operand moves a turn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Dim<const N: usize> {
    pub size: usize,
    pub step: [isize; N],
}

/// Loops over `N` operands, outermost first. None at all is a single turn.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Nest<const N: usize> {
    pub dims: SmallVec<[Dim<N>; 4]>,
}

impl<const N: usize> Nest<N> {
    /// The nest of a shape, without its dimensions of one element.
    pub fn new(shape: &[usize], strides: [&[isize]; N]) -> Nest<N> {
        let dims = shape.iter().enumerate().filter(|(_, n)| **n != 1);
        Nest { dims: dims.map(|(i, &size)| Dim { size, step: strides.map(|s| s[i]) }).collect() }
    }

    /// Turns of the whole nest.
    pub fn numel(&self) -> usize {
        // Sizes beside a size of 0 may be any.
        match self.dims.iter().any(|d| d.size == 0) {
            true => 0,
            false => self.dims.iter().fold(1, |n, d| n.saturating_mul(d.size)),
        }
    }

    /// Joins neighbours that every operand walks as one loop. The order of turns stays.
    pub fn merged(mut self) -> Nest<N> {
        let mut out: SmallVec<[Dim<N>; 4]> = SmallVec::new();
        for d in self.dims.drain(..) {
            match out.last_mut() {
                Some(o) if (0..N).all(|i| o.step[i] == d.step[i].wrapping_mul(d.size as isize)) => {
                    *o = Dim { size: o.size.saturating_mul(d.size), step: d.step };
                }
                _ => out.push(d),
            }
        }
        Nest { dims: out }
    }

    /// Where the operands are at a turn, as offsets in elements from their first.
    pub fn at(&self, mut turn: usize) -> [isize; N] {
        let mut offset = [0; N];
        for d in self.dims.iter().rev() {
            let i = (turn % d.size) as isize;
            turn /= d.size;
            (0..N).for_each(|n| offset[n] += i * d.step[n]);
        }
        offset
    }

    /// The number of each turn of a range, in order, and the offsets there. An iterator rather than
    /// a function of a closure: the body of a loop is compiled once, in the function it stands in.
    #[inline(always)]
    pub fn turns(&self, turns: Range<usize>) -> Turns<'_, N> {
        // Of nothing, no size may be asked.
        let walk = match turns.is_empty() {
            true => Walk { index: SmallVec::new(), offset: [0; N] },
            false => self.walk_from(turns.start),
        };
        Turns { nest: self, walk, turns }
    }

    /// Where a walk begins at a turn. Compiled once, not with each body.
    #[inline(never)]
    fn walk_from(&self, turn: usize) -> Walk<N> {
        let mut index: SmallVec<[usize; 4]> = SmallVec::from_elem(0, self.dims.len());
        let mut rest = turn;
        for (i, d) in self.dims.iter().enumerate().rev() {
            index[i] = rest % d.size;
            rest /= d.size;
        }
        Walk { index, offset: self.at(turn) }
    }

    /// Goes on to the next turn: mostly one step of the innermost loop.
    #[inline(always)]
    fn step(&self, walk: &mut Walk<N>) {
        let Some((d, i)) = self.dims.last().zip(walk.index.last_mut()) else { return };
        *i += 1;
        (0..N).for_each(|n| walk.offset[n] = walk.offset[n].wrapping_add(d.step[n]));
        if *i == d.size {
            self.carry(walk);
        }
    }

    /// Loops that have come to their end begin anew, and the one around them goes on.
    #[inline(never)]
    fn carry(&self, walk: &mut Walk<N>) {
        let mut inner = true;
        for (d, i) in self.dims.iter().zip(&mut walk.index).rev() {
            if !std::mem::take(&mut inner) {
                *i += 1;
                (0..N).for_each(|n| walk.offset[n] = walk.offset[n].wrapping_add(d.step[n]));
            }
            if *i < d.size {
                break;
            }
            *i = 0;
            let back = |step: isize| step.wrapping_mul(d.size as isize);
            (0..N).for_each(|n| walk.offset[n] = walk.offset[n].wrapping_sub(back(d.step[n])));
        }
    }
}

/// The turns of a nest that are left.
pub(super) struct Turns<'a, const N: usize> {
    nest: &'a Nest<N>,
    walk: Walk<N>,
    turns: Range<usize>,
}

impl<const N: usize> Iterator for Turns<'_, N> {
    type Item = (usize, [isize; N]);
    #[inline(always)]
    fn next(&mut self) -> Option<(usize, [isize; N])> {
        let next = (self.turns.next()?, self.walk.offset);
        self.nest.step(&mut self.walk);
        Some(next)
    }
}

/// How far a nest has been walked.
struct Walk<const N: usize> {
    index: SmallVec<[usize; 4]>,
    offset: [isize; N],
}

/// Part `i` of `parts` nearly equal ranges of `0..n`.
pub(super) fn slice_of(n: usize, parts: usize, i: usize) -> Range<usize> {
    let (base, more) = (n / parts, n % parts);
    let start = i * base + i.min(more);
    start..start + base + (i < more) as usize
}

/// How many parts `n` units of work make, when fewer than `least` units are not worth waking a
/// thread (some 20 us: the bench `hand_over` shows it, and each kernel's own figures stand at its
/// constant), and fewer than a quarter of them no thread that is awake.
pub(super) fn parts_of(n: usize, least: usize, par: &dyn Parallel) -> usize {
    match par.threads() {
        0 | 1 => 1,
        threads => even(n / least_part(n, least, par), threads),
    }
}

/// The least part of `n` units of work: `least`, or a quarter of it where that is needed for all
/// threads to have one, and another thread is awake.
pub(super) fn least_part(n: usize, least: usize, par: &dyn Parallel) -> usize {
    let (least, quarter) = (least.max(1), least.div_ceil(AWAKE).max(1));
    let is_small = n >= 2 * quarter && n < least.saturating_mul(par.threads());
    if is_small && par.is_awake() { quarter } else { least }
}

/// By how much less work pays where the other thread is awake.
const AWAKE: usize = 4;

/// How many parts `threads` take, if there could be so many. A few for each thread, so that one
/// that starts late does not leave the others waiting; as many for each, so that none has the last
/// one alone.
pub(super) fn even(parts: usize, threads: usize) -> usize {
    match parts {
        0 | 1 => 1,
        few if few < threads => few,
        many => (many / threads).min(4) * threads,
    }
}

/// Calls `f` with each of the ranges that `0..n` is cut into: see [`parts_of`].
pub(super) fn in_parts(
    n: usize,
    least: usize,
    par: &dyn Parallel,
    f: &(dyn Fn(Range<usize>) + Sync),
) {
    match parts_of(n, least, par) {
        1 => f(0..n),
        parts => par.run(parts, &|i| f(slice_of(n, parts, i))),
    }
}

/// An address that the parts of a kernel share; each part touches elements of its own.
pub(super) struct Shared<T>(*mut T);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Shared<T> {}

// SAFETY: it is a number until someone dereferences it, which is unsafe and argued there.
#[allow(unsafe_code)]
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl<T> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// Takes a pointer of any type as the address of `T`s.
    pub fn new<U>(ptr: *mut U) -> Shared<T> {
        Shared(ptr.cast())
    }
    /// The address of element `i` from here.
    #[inline(always)]
    pub fn at(self, i: isize) -> *mut T {
        self.0.wrapping_offset(i)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Threads;
    use super::*;

    #[test]
    fn a_walk_visits_the_offsets_of_every_turn_in_order() {
        let nest = Nest::new(&[3, 1, 4, 2], [&[-8, 5, 2, 1], &[0, 0, 3, -1]]);
        let mut seen = 0;
        for (turn, offset) in nest.turns(5..24) {
            assert_eq!(turn, 5 + seen);
            assert_eq!(offset, nest.at(turn));
            seen += 1;
        }
        assert_eq!(seen, 19);
        assert_eq!(nest.clone().merged().dims.len(), 3);
        assert_eq!(Nest::new(&[2, 3, 4], [&[12, 4, 1]]).merged().dims.len(), 1);
    }

    #[test]
    fn slices_cover_everything_once() {
        for (n, parts) in [(10, 3), (2, 5), (0, 1), (7, 7)] {
            let all: Vec<usize> = (0..parts).flat_map(|i| slice_of(n, parts, i)).collect();
            assert_eq!(all, (0..n).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_quarter_of_the_work_is_a_part_where_a_thread_is_awake() {
        let parts = |n, threads, seed| parts_of(n, 100, &Threads { threads, seed });
        let (asleep, awake) = (1, 0);
        for (n, of_sleepers, of_the_awake) in
            [(49, 1, 1), (50, 1, 2), (199, 1, 6), (200, 2, 2), (10_000, 8, 8)]
        {
            assert_eq!((parts(n, 2, asleep), parts(n, 2, awake)), (of_sleepers, of_the_awake));
        }
        assert_eq!((parts(1500, 16, asleep), parts(1500, 16, awake)), (15, 48));
        assert_eq!(parts(1500, 1, awake), 1);
    }

    #[test]
    fn no_thread_has_the_last_part_alone() {
        for threads in 2..=16 {
            for parts in 0..200 {
                let made = even(parts, threads);
                assert!((1..=parts.max(1)).contains(&made) && made <= 4 * threads);
                assert!(made < threads || made.is_multiple_of(threads), "{made} for {threads}");
            }
        }
    }
}
