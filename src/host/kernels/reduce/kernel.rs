//! The loops of a reduction, once for each fold, behind plain function pointers.
//!
//! The walks in [`rows`](super::rows) and [`columns`](super::columns) are compiled once. Only the
//! code here is compiled for every fold, element type and vector width. Between the two an
//! accumulator is a word.

use super::super::isa::{Levelled, at_level};
use super::super::simd::Simd;
use super::accumulators::Bits;
use super::fold::{BLOCK, Fold, LANES, fold_exactly, fold_row};
use super::{LEVELS, STRIP};
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// Rows of `n` elements side by side.
#[derive(Clone, Copy)]
pub(super) struct RowsCall {
    pub x: *const u8,
    /// From one row to the next, in elements.
    pub step: isize,
    pub rows: usize,
    pub n: usize,
    pub to: To,
}

/// Where results go.
#[derive(Clone, Copy)]
pub(super) enum To {
    /// Accumulators, one word each.
    Words(*mut u64),
    /// Finished results, so many elements apart. A mean divides by its count.
    Results { out: *mut u8, step: isize, mean: Option<usize> },
}

/// One block of up to [`BLOCK`] rows of `n` neighbouring results.
pub(super) struct BlockCall<'a> {
    pub rows: &'a [*const u8],
    pub n: usize,
    /// Accumulators, level by level: first the lanes' tree, then the blocks'.
    pub levels: *mut u8,
    /// Accumulators of a level.
    pub width: usize,
    /// Blocks before this one.
    pub blocks: usize,
}

/// A fold as the walks call it.
#[derive(Clone, Copy)]
pub(super) struct Kernel {
    /// Bytes of an element.
    pub size: usize,
    /// Bytes of an accumulator.
    pub acc: usize,
    /// True where the order of elements does not show in the result.
    pub any_order: bool,
    /// Folds rows.
    ///
    /// # Safety
    /// The rows are valid for reads, the results for writes.
    pub rows: unsafe fn(RowsCall),
    /// Folds a block of neighbouring results.
    ///
    /// # Safety
    /// Each row is valid for `n` elements, `n` is at most `width`, and there are levels enough.
    pub block: unsafe fn(BlockCall<'_>),
    /// Brings the first `n` of the levels after `blocks` blocks to an end.
    ///
    /// # Safety
    /// The levels are those that `block` wrote, `to` is valid for `n` results.
    pub finish: unsafe fn(levels: *const u8, width: usize, blocks: usize, n: usize, to: To),
    /// Joins two accumulators.
    pub join: fn(u64, u64) -> u64,
    /// Writes the result of one accumulator, or of nothing.
    ///
    /// # Safety
    /// The address is valid for a result.
    pub end: unsafe fn(Option<u64>, *mut u8, Option<usize>),
}

impl Kernel {
    pub const fn of<F: Fold>(any_order: bool) -> Kernel {
        Kernel {
            size: size_of::<F::In>(),
            acc: size_of::<F::Acc>(),
            any_order,
            rows: rows::<F>,
            block: block::<F>,
            finish: finish::<F>,
            join: |a, b| F::join(F::Acc::of_bits(a), F::Acc::of_bits(b)).into_bits(),
            end: end::<F>,
        }
    }
}

unsafe fn end<F: Fold>(acc: Option<u64>, out: *mut u8, mean: Option<usize>) {
    let acc = acc.map_or(F::start(), F::Acc::of_bits);
    // SAFETY: by the caller's promise.
    unsafe { out.cast::<F::Out>().write(F::end(acc, mean)) }
}

impl To {
    /// Writes result `i`.
    ///
    /// # Safety
    /// There is room for it.
    #[inline(always)]
    unsafe fn put<F: Fold>(self, i: usize, acc: F::Acc) {
        // SAFETY: by the caller's promise.
        unsafe {
            match self {
                To::Words(out) => out.add(i).write(acc.into_bits()),
                To::Results { out, step, mean } => {
                    out.cast::<F::Out>().offset(i as isize * step).write(F::end(acc, mean));
                }
            }
        }
    }
}

unsafe fn rows<F: Fold>(call: RowsCall) {
    at_level(Rows::<F>(call, PhantomData));
}

/// Rows whose caller keeps the promise of [`Kernel::rows`].
struct Rows<F>(RowsCall, PhantomData<F>);

impl<F: Fold> Levelled for Rows<F> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let RowsCall { x, step, rows, n, to } = self.0;
        let x = x.cast::<F::In>();
        // SAFETY: by the caller's promise, in each loop.
        macro_rules! short {
            ($n:literal) => {
                for r in 0..rows {
                    unsafe {
                        let row = &*x.offset(r as isize * step).cast::<[F::In; $n]>();
                        to.put::<F>(r, fold_exactly::<F, $n>(row));
                    }
                }
            };
        }
        match n {
            1 => short!(1),
            2 => short!(2),
            3 => short!(3),
            4 => short!(4),
            8 => short!(8),
            _ => {
                for r in 0..rows {
                    unsafe {
                        let row = std::slice::from_raw_parts(x.offset(r as isize * step), n);
                        to.put::<F>(r, fold_row::<F, S>(row));
                    }
                }
            }
        }
    }
}

unsafe fn block<F: Fold>(call: BlockCall<'_>) {
    at_level(Block::<F>(call, PhantomData));
}

/// A block whose caller keeps the promise of [`Kernel::block`].
struct Block<'a, F>(BlockCall<'a>, PhantomData<F>);

impl<F: Fold> Levelled for Block<'_, F> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let BlockCall { rows, n, levels, width, blocks } = self.0;
        let levels = levels.cast::<F::Acc>();
        // For AVX-512 the compiler regroups strips of whole numbers until no vector is left: loops
        // take a third of the time and an eighth of the code. (Of bytes they are five to ten times
        // slower; for AVX2 1.4 to 1.9 times.)
        let in_loops = F::WHOLE && S::LINE && const { size_of::<F::In>() >= 4 };
        let group = match n {
            _ if in_loops => 1,
            STRIP.. => GROUP / rows.len().div_ceil(LANES).next_power_of_two().min(GROUP),
            _ => 4,
        };
        let lane = |i: usize| i.reverse_bits() >> (usize::BITS as usize - LEVELS);
        for first in (0..LANES).step_by(group) {
            let mut from = [[std::ptr::null::<F::In>(); BLOCK / LANES]; GROUP];
            let mut turns = [0; GROUP];
            for g in 0..group {
                while let Some(row) = rows.get(lane(first + g) + turns[g] * LANES) {
                    from[g][turns[g]] = row.cast();
                    turns[g] += 1;
                }
            }
            // The last lane of a block ends it: its value goes on into the blocks' tree.
            let level = match first + group {
                LANES => LEVELS + blocks.trailing_ones() as usize,
                next => next.trailing_zeros() as usize,
            };
            let from: [&[*const F::In]; GROUP] = std::array::from_fn(|g| &from[g][..turns[g]]);
            macro_rules! in_strips {
                ($strip:expr, $group:literal) => {
                    lanes_in_strips::<F, S, { $strip }, $group>(&from, n, levels, width, level)
                };
            }
            // SAFETY: `n` neighbours, for which rows and levels have room.
            unsafe {
                match (n, group) {
                    _ if in_loops => lane_in_loops::<F>(from[0], n, levels, width, level),
                    (STRIP.., 1) => in_strips!(STRIP, 1),
                    (STRIP.., 2) => in_strips!(STRIP, 2),
                    (STRIP.., 4) => in_strips!(STRIP, 4),
                    (STRIP.., _) => in_strips!(STRIP, 8),
                    (4.., _) => in_strips!(4, 4),
                    _ => in_strips!(1, 4),
                }
            }
        }
    }
}

/// Rows that are read side by side, at most (of narrow ones 32): a machine fetches ahead in few.
/// Lanes that are folded together meet in registers. A lane of a block of 512 rows has eight rows,
/// and is folded alone.
/// On two cores of a Zen 4, 1, 2, 4 and 8 lanes at a time took 196, 145, 121 and 104 us for 64 rows
/// of 50000 float32, and 152, 268, 460 and 438 for 512 rows of 8000.
const GROUP: usize = 8;

/// Folds `G` lanes of `n` results, `N` at a time, and joins them with what waits on the levels
/// below. Strips overlap rather than leave a rest: what is done twice comes out the same.
///
/// # Safety
/// Each of the first `G` of `from` is valid for reads of `n` elements, at least `N`, and each level
/// up to `level` has that many.
#[inline(always)]
unsafe fn lanes_in_strips<F: Fold, S: Simd, const N: usize, const G: usize>(
    from: &[&[*const F::In]; GROUP],
    n: usize,
    levels: *mut F::Acc,
    width: usize,
    level: usize,
) {
    let mut w = 0;
    while w < n {
        w = w.min(n - N);
        // SAFETY: by the caller's promise.
        unsafe {
            let mut acc = match G {
                1 => strip::<F, S, N>(from[0], w),
                2 => two::<F, S, N>(from, 0, w),
                4 => four::<F, S, N>(from, 0, w),
                _ => both::<F, N>(four::<F, S, N>(from, 0, w), four::<F, S, N>(from, 4, w)),
            };
            for l in G.ilog2() as usize..level {
                acc = both::<F, N>(*levels.add(l * width + w).cast::<[F::Acc; N]>(), acc);
            }
            levels.add(level * width + w).cast::<[F::Acc; N]>().write(acc);
        }
        w += N;
    }
}

/// Two neighbouring lanes as [`strip`] has them, from one on.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn two<F: Fold, S: Simd, const N: usize>(
    rows: &[&[*const F::In]; GROUP],
    first: usize,
    from: usize,
) -> [F::Acc; N] {
    // SAFETY: by the caller's promise.
    unsafe {
        both::<F, N>(strip::<F, S, N>(rows[first], from), strip::<F, S, N>(rows[first + 1], from))
    }
}

/// Four of them.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn four<F: Fold, S: Simd, const N: usize>(
    rows: &[&[*const F::In]; GROUP],
    first: usize,
    from: usize,
) -> [F::Acc; N] {
    // SAFETY: by the caller's promise.
    unsafe {
        both::<F, N>(two::<F, S, N>(rows, first, from), two::<F, S, N>(rows, first + 2, from))
    }
}

/// A lane of `N` results, from the one with this number on. (A function, since a closure may be
/// compiled without the instructions of the function that it is in.)
///
/// # Safety
/// Each row is valid for reads of so many elements from there on.
#[inline(always)]
unsafe fn strip<F: Fold, S: Simd, const N: usize>(
    rows: &[*const F::In],
    from: usize,
) -> [F::Acc; N] {
    let mut acc = [F::start(); N];
    for row in rows {
        // SAFETY: by the caller's promise.
        let row = unsafe { row.add(from) };
        if F::LOADS {
            // SAFETY: as above.
            acc = both::<F, N>(acc, unsafe { F::lift_some::<S, N>(row) });
            continue;
        }
        // SAFETY: as above.
        let row = unsafe { &*row.cast::<[F::In; N]>() };
        for i in 0..N {
            acc[i] = F::beside(acc[i], F::lift(row[i]));
        }
    }
    acc
}

/// Two lanes of `N` results.
#[inline(always)]
fn both<F: Fold, const N: usize>(mut a: [F::Acc; N], b: [F::Acc; N]) -> [F::Acc; N] {
    for i in 0..N {
        a[i] = F::beside(a[i], b[i]);
    }
    a
}

/// The same by loops over some results at a time. They are kept in memory that meets no other, so
/// that the loops need not ask.
///
/// # Safety
/// As above.
#[inline(always)]
unsafe fn lane_in_loops<F: Fold>(
    from: &[*const F::In],
    n: usize,
    levels: *mut F::Acc,
    width: usize,
    level: usize,
) {
    const ROOM: usize = 128;
    for w in (0..n).step_by(ROOM) {
        let n = ROOM.min(n - w);
        let mut acc = [MaybeUninit::<F::Acc>::uninit(); ROOM];
        // SAFETY: by the caller's promise, throughout; the first loop writes what the others read.
        unsafe {
            let (first, rest) = from.split_at(from.len().min(1));
            match first {
                [a] => (0..n).for_each(|i| _ = acc[i].write(F::lift(*a.add(w + i)))),
                _ => acc[..n].fill(MaybeUninit::new(F::start())),
            }
            let (pairs, last) = rest.as_chunks::<2>();
            for [a, b] in pairs {
                for i in 0..n {
                    let one = F::join(acc[i].assume_init(), F::lift(*a.add(w + i)));
                    acc[i].write(F::join(one, F::lift(*b.add(w + i))));
                }
            }
            for a in last {
                (0..n).for_each(|i| {
                    _ = acc[i].write(F::join(acc[i].assume_init(), F::lift(*a.add(w + i))))
                });
            }
            for l in 0..level {
                let left = levels.add(l * width + w);
                (0..n).for_each(|i| _ = acc[i].write(F::join(*left.add(i), acc[i].assume_init())));
            }
            levels.add(level * width + w).copy_from_nonoverlapping(acc.as_ptr().cast(), n);
        }
    }
}

unsafe fn finish<F: Fold>(levels: *const u8, width: usize, blocks: usize, n: usize, to: To) {
    at_level(Finish::<F> { levels: levels.cast(), width, blocks, n, to });
}

/// Columns whose caller keeps the promise of [`Kernel::finish`].
struct Finish<F: Fold> {
    levels: *const F::Acc,
    width: usize,
    blocks: usize,
    n: usize,
    to: To,
}

impl<F: Fold> Levelled for Finish<F> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        for w in 0..self.n {
            let (mut acc, mut rest) = (None, self.blocks);
            while rest != 0 {
                let level = LEVELS + rest.trailing_zeros() as usize;
                // SAFETY: the bit is set, so the level has been written.
                let run = unsafe { *self.levels.add(level * self.width + w) };
                acc = Some(acc.map_or(run, |right| F::join(run, right)));
                rest &= rest - 1;
            }
            // SAFETY: by the caller's promise.
            unsafe { self.to.put::<F>(w, acc.unwrap_or(F::start())) };
        }
    }
}
