//! Rows by a matrix in panels: the kernel of products of several rows that are not the library's.
//!
//! Called for weights that are packed once ([`packed`](super::packed)), for operands that are
//! packed at each product ([`by_panels`](super::by_panels)) and for tiles ([`Tile`](super::Tile)).
//! Panels are two or three [`Line`]s of columns (one, where the matrix has no more), as even as can
//! be, each contiguous along k; rows are read as they lie, or in groups ([`Order`]). It goes block
//! by block of k, so that errors grow with k / DEPTH and that data stays in the second-level cache
//! until it is read again: the rows' part while a [`BUNDLE`] of panels passes, a panel's part while
//! the rows do. The next operands are fetched meanwhile. Knows no threads.

use super::super::isa::vectorize;
use super::super::load::Load;
use super::super::nest::{Shared, slice_of};
#[cfg(target_arch = "x86_64")]
use super::super::simd::Level;
use super::super::simd::level;
#[cfg(target_arch = "x86_64")]
use super::lanes::{Avx2, Avx512, Pairs};
use super::lanes::{Lanes, Plain};
use crate::dtype::Element;
use ::half::{bf16, f16};
use std::mem::MaybeUninit;
use std::ops::Range;

/// Most lines of columns of a panel: three 512-bit registers of f32.
pub(super) const LINES_MAX: usize = 3;
/// Columns of a line.
pub(in super::super) const LINE: usize = 16;
/// Most depth after which a block of sums is put aside, so that errors grow with k / DEPTH.
const DEPTH: usize = 512;
/// Rows of a block, at most: of a block of k they take 128 KiB.
pub(super) const BLOCK: usize = 64;
/// Panels that are multiplied by one block of k of the rows before the next block of k begins. With
/// one panel at a time the rows as a whole, 1 MiB at k = 4096, would have to stay in the cache: on
/// two cores of a Xeon n = 4096 reached 300 to 320 GFLOP/s, and 340 to 360 so.
pub(in super::super) const BUNDLE: usize = 4;
/// From one row of sums that wait to the next.
pub(in super::super) const SUMS: usize = LINES_MAX * LINE;
/// Rows that are taken together, at most.
pub(super) const ROWS_MAX: usize = 8;
/// The same without AVX-512.
const ROWS_FEW: usize = 6;
/// Steps along k between two looks at where the operands are: to walk each row by each step took a
/// seventh of the time (150 and 172 GFLOP/s on one thread, of 210), and to walk each row, instead
/// of the first alone, a twentieth.
const UNROLLED: usize = 4;

/// Length of the blocks of k, as even as can be; the last may be shorter.
pub(super) fn depth(k: usize) -> usize {
    k.div_ceil(k.div_ceil(DEPTH).max(1))
}

/// A cache line of f32, half a one of halves.
pub(super) type Line<T> = [T; LINE];

/// An element of panels.
pub(super) trait Stored: Load<f32> + Element {
    /// A register of them, widened.
    ///
    /// # Safety
    /// As [`Lanes`] says.
    unsafe fn register<L: Lanes>(from: *const Self) -> L::Register;
}

macro_rules! stored {
    ($($t:ident $load:ident)*) => {$(
        impl Stored for $t {
            #[inline(always)]
            unsafe fn register<L: Lanes>(from: *const $t) -> L::Register {
                // SAFETY: by the caller's promise.
                unsafe { L::$load(from) }
            }
        }
    )*};
}
stored! { f32 load f16 load_f16 bf16 load_bf16 }

/// A `[k, n]` matrix in panels, one after the other.
pub(super) struct Panels<'a, T> {
    pub lines: &'a [Line<T>],
    pub k: usize,
    pub n: usize,
    /// Whether an element, here and of the rows, is a pair of bfloat16 (see
    /// [`pairs`](super::pairs)).
    pub pairs: bool,
}

/// Rows of f32 from an address on, [`BLOCK`] at most, each as long as the matrix is deep and `step`
/// elements after the one before, and where their products go, a row `apart` from the next.
pub(super) struct Rows<T> {
    pub from: Shared<f32>,
    pub step: isize,
    pub high: usize,
    pub to: Shared<T>,
    pub apart: usize,
}

/// Panels of a matrix of `n` columns.
pub(in super::super) fn panels_of(n: usize) -> usize {
    n.div_ceil(LINE).div_ceil(LINES_MAX)
}

/// The lines of columns of a panel. One of 64 columns has twice two, not three and one: a line
/// alone has too few sums to keep the machine busy.
pub(in super::super) fn columns_of(n: usize, panel: usize) -> Range<usize> {
    slice_of(n.div_ceil(LINE), panels_of(n), panel)
}

impl<T: Stored> Panels<'_, T> {
    /// A block of k of a panel.
    fn part(&self, panel: usize, k: Range<usize>) -> &[Line<T>] {
        let columns = columns_of(self.n, panel);
        let (first, lines) = (columns.start * self.k, columns.len());
        &self.lines[first + k.start * lines..first + k.end * lines]
    }

    /// Multiplies rows by some of the panels; `then` is what comes after them.
    ///
    /// # Safety
    /// There are at most [`BLOCK`] rows of `k` elements each and [`BUNDLE`] panels; the rows are
    /// valid for reads, and the panels' columns of their products for writes.
    pub unsafe fn multiply<O: Load<f32>>(
        &self,
        rows: &Rows<O>,
        some: Range<usize>,
        then: Option<usize>,
    ) {
        debug_assert!(rows.high <= BLOCK && some.len() <= BUNDLE);
        let mut sums = [[[MaybeUninit::<f32>::uninit(); SUMS]; BLOCK]; BUNDLE];
        let (k, deep) = (self.k, depth(self.k).max(1));
        // At least one block of k, since without any the sums are zeros all the same.
        for from in (0..k.max(1)).step_by(deep) {
            let here = from..(from + deep).min(k);
            for (i, sums) in some.clone().zip(&mut sums) {
                let next = match (i + 1 < some.end, here.end < k) {
                    (true, _) => self.part(i + 1, here.clone()),
                    (_, true) => self.part(some.start, here.end..(here.end + deep).min(k)),
                    _ => then.map_or(&[][..], |panel| self.part(panel, 0..deep.min(k))),
                };
                let columns = columns_of(self.n, i);
                let first = columns.start * LINE;
                let wide = (columns.len() * LINE).min(self.n - first);
                let out = rows.to.at(first as isize);
                let is_last = here.end == k;
                let panel = Panel {
                    pairs: self.pairs,
                    lines: self.part(i, here.clone()),
                    next,
                    rows: Shared::new(rows.from.at(from as isize)),
                    order: Order::Rows(rows.step),
                    high: rows.high,
                    k: here.len(),
                    wide,
                    sums: Shared::new(sums.as_mut_ptr()),
                    adds: from > 0,
                    out: (is_last && O::IS_WIDE).then_some((Shared::new(out), rows.apart)),
                };
                panel.run();
                if is_last && !O::IS_WIDE {
                    // Sums of halves are rounded once, from a block of f32: the kernel knows no
                    // element types.
                    vectorize!(|| for row in 0..rows.high {
                        for c in 0..wide {
                            // SAFETY: the panel's own columns of its rows, whose sums the kernel
                            // has written.
                            unsafe {
                                out.add(row * rows.apart + c)
                                    .write(O::store(sums[row][c].assume_init()))
                            }
                        }
                    });
                }
            }
        }
    }
}

impl<T: Stored> Panels<'_, T> {
    /// The products of some rows by the only panel, added to `sums` that lie [`SUMS`] apart, if
    /// they are there already. They go to `out`, or where the sums are.
    ///
    /// # Safety
    /// There are `high` rows of `k` elements in this order, valid for reads, as many sums, and the
    /// panel's columns of as many rows of results, for writes.
    pub unsafe fn add(
        &self,
        (rows, order, high): (Shared<f32>, Order, usize),
        (sums, adds): (Shared<f32>, bool),
        out: Option<(Shared<f32>, usize)>,
    ) {
        debug_assert_eq!(panels_of(self.n), 1);
        let (lines, next) = (self.part(0, 0..self.k), &[][..]);
        let (k, wide, pairs) = (self.k, self.n, self.pairs);
        Panel { pairs, lines, next, rows, order, high, k, wide, sums, adds, out }.run();
    }
}

/// What is multiplied next, as far as it has not been fetched.
struct Next<T> {
    lines: Range<*const Line<T>>,
    /// Lines that [`UNROLLED`] steps along k fetch. (Known to the compiler, it made eight kernels
    /// of three.)
    ahead: usize,
}

/// Lines to fetch in [`UNROLLED`] steps for a panel of so many, evenly: along k it is walked so
/// often. All in the first third they came too many at once for a Xeon to keep in flight (n = 4096:
/// 390 and 365 ms).
fn ahead(lines: usize, walks: usize) -> usize {
    match (lines, walks) {
        (1, _) => 4,
        (2, 0..=1) => 8,
        (2, 2 | 3) => 4,
        (2, _) => 2,
        (_, 0..=1) => 12,
        (_, 2) => 6,
        (_, 3..=5) => 4,
        (_, _) => 2,
    }
}

/// A block of rows by a block of k of one panel.
struct Panel<'a, T> {
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    pairs: bool,
    lines: &'a [Line<T>],
    /// What is multiplied next, to be fetched meanwhile.
    next: &'a [Line<T>],
    /// The first row, how they lie, how many there are, and how long.
    rows: Shared<f32>,
    order: Order,
    high: usize,
    k: usize,
    /// Columns of the result.
    wide: usize,
    /// Where sums wait for the next block's, each row [`SUMS`] after the one before, and whether
    /// those of the blocks before are there.
    sums: Shared<f32>,
    adds: bool,
    /// Of the last block, where the results go, and the step from one row to the next. Without it
    /// they stay where sums wait.
    out: Option<(Shared<f32>, usize)>,
}

/// How many of `left` rows are taken together, `most` at most: as even as can be, so 9 are 5 and 4,
/// not 8 and 1.
#[inline(always)]
pub(super) fn group(left: usize, most: usize) -> usize {
    left.div_ceil(left.div_ceil(most))
}

/// How rows lie.
#[derive(Clone, Copy)]
pub(super) enum Order {
    /// Each side by side, and so far from the one before.
    Rows(isize),
    /// In [`group`]s of [`ROWS_MAX`] at most, one after the other: of each place along k the
    /// elements of all its rows. For f32 with AVX-512.
    Groups,
    /// The elements of a place along k side by side, so far from those of the place before. For f32
    /// with AVX-512.
    Columns(isize),
}

impl<T: Stored> Panel<'_, T> {
    fn run(&self) {
        match level() {
            // SAFETY: pairs are only made where the machine multiplies them. Each is as large as an
            // f32.
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 if const { T::IS_WIDE } && self.pairs => unsafe { self.on_pairs() },
            // SAFETY: a `Level` is only made where the machine has it.
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => unsafe { self.on_avx512() },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => unsafe { self.on_avx2() },
            _ => self.block::<Plain, ROWS_FEW>(),
        }
    }

    // 8 rows by 3 registers are 24 sums of the 32 registers; by 2 they are 16.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c,bmi2,avx512f,avx512dq,avx512bw,avx512vl")]
    fn on_avx512(&self) {
        self.block::<Avx512, ROWS_MAX>();
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c,bmi2,avx512f,avx512dq,avx512bw,avx512vl,avx512bf16")]
    fn on_pairs(&self) {
        self.block::<Pairs, ROWS_MAX>();
    }

    // 6 rows by 2 registers are 12 sums of 16. (So are 4 by 3, but then the operands take all other
    // registers, and the compiler puts a sum into memory at each step: half the speed.)
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c,bmi2")]
    fn on_avx2(&self) {
        self.block::<Avx2, ROWS_FEW>();
    }

    // Guards are `const` so that what cannot be is not compiled either, and `steps` is loops, not
    // calls with closures: their copies are a tenth of the crate's code. (`group` with loops in
    // their place took 3.25 ms for [4096, 384] by [384, 384] instead of 3.15.)
    #[inline(always)]
    fn block<L: Lanes, const ROWS: usize>(&self) {
        let lines = self.wide.div_ceil(LINE);
        match lines {
            1 if const { L::WIDTH == LINE } => self.groups::<L, ROWS, 1, 1>(),
            2 if const { L::WIDTH == LINE } => self.groups::<L, ROWS, 2, 2>(),
            _ if const { L::WIDTH == LINE } => self.groups::<L, ROWS, 3, 3>(),
            1 => self.groups::<L, ROWS, 1, 2>(),
            2 => self.groups::<L, ROWS, 2, 2>(),
            _ => self.groups::<L, ROWS, 3, 2>(),
        }
    }

    #[inline(always)]
    fn groups<L: Lanes, const ROWS: usize, const LINES: usize, const REGS: usize>(&self) {
        let across = (LINES * LINE).div_ceil(REGS * L::WIDTH);
        let walks = self.high.div_ceil(ROWS) * across;
        let mut next = Next { lines: self.next.as_ptr_range(), ahead: ahead(LINES, walks) };
        let mut row = 0;
        while row < self.high {
            let high = group(self.high - row, ROWS);
            let next = &mut next;
            match high {
                1 => self.group::<L, 1, LINES, REGS>(row, next),
                2 => self.group::<L, 2, LINES, REGS>(row, next),
                3 => self.group::<L, 3, LINES, REGS>(row, next),
                4 => self.group::<L, 4, LINES, REGS>(row, next),
                5 => self.group::<L, 5, LINES, REGS>(row, next),
                6 => self.group::<L, 6, LINES, REGS>(row, next),
                7 if const { ROWS == ROWS_MAX } => self.group::<L, 7, LINES, REGS>(row, next),
                _ if const { ROWS == ROWS_MAX } => {
                    self.group::<L, ROWS_MAX, LINES, REGS>(row, next)
                }
                _ => unreachable!("of groups of {ROWS} rows at most: {high}"),
            }
            row += high;
        }
    }

    /// `M` rows by the whole panel, `REGS` registers wide at a time.
    #[inline(always)]
    fn group<L: Lanes, const M: usize, const LINES: usize, const REGS: usize>(
        &self,
        row: usize,
        next: &mut Next<T>,
    ) {
        match self.order {
            Order::Groups if const { T::IS_WIDE && L::WIDTH == LINE } => {
                let rows = self.rows.at((row * self.k) as isize);
                self.sums::<L, M, LINES, REGS, true>(row, (rows, M as isize), next);
            }
            Order::Columns(step) if const { T::IS_WIDE && L::WIDTH == LINE } => {
                let rows = self.rows.at(row as isize);
                self.sums::<L, M, LINES, REGS, true>(row, (rows, step), next);
            }
            Order::Rows(step) => {
                let rows = self.rows.at(row as isize * step);
                self.sums::<L, M, LINES, REGS, false>(row, (rows, step), next);
            }
            _ => unreachable!("columns are for f32 with AVX-512"),
        }
    }

    #[inline(always)]
    fn sums<
        L: Lanes,
        const M: usize,
        const LINES: usize,
        const REGS: usize,
        const GROUPED: bool,
    >(
        &self,
        row: usize,
        (rows, step): (*mut f32, isize),
        next: &mut Next<T>,
    ) {
        for first in (0..self.wide).step_by(REGS * L::WIDTH) {
            // SAFETY: the features of `L` are enabled where this is inlined, and all addresses lie
            // within the rows, the panel, the sums, which the first block of k has written, and the
            // results.
            unsafe {
                let mut aside = [std::ptr::null_mut::<f32>(); M];
                for r in 0..M {
                    aside[r] = self.sums.at(((row + r) * SUMS + first) as isize);
                }
                let mut out = None;
                if let Some((to, step)) = self.out {
                    let mut all = aside;
                    for r in 0..M {
                        all[r] = to.at(((row + r) * step + first) as isize);
                    }
                    out = Some(all);
                }
                if let Some(out) = out {
                    fetch_results::<L, M, REGS>(out);
                }
                let mut acc = [[L::splat(0.0); REGS]; M];
                let mut b = self.lines.as_ptr().cast::<T>().add(first);
                let mut a = rows.cast_const();
                for _ in 0..self.k / UNROLLED {
                    steps::<T, L, M, REGS, LINES, UNROLLED, GROUPED>(
                        &mut acc, &mut a, step, &mut b, next,
                    );
                }
                for _ in 0..self.k % UNROLLED {
                    steps::<T, L, M, REGS, LINES, 1, GROUPED>(&mut acc, &mut a, step, &mut b, next);
                }
                if self.adds {
                    for r in 0..M {
                        for c in 0..REGS {
                            acc[r][c] = L::add(L::load(aside[r].add(c * L::WIDTH)), acc[r][c]);
                        }
                    }
                }
                let there = (self.wide - first).min(REGS * L::WIDTH);
                let is_whole = there == REGS * L::WIDTH;
                let to = match out {
                    Some(out) if is_whole => out,
                    _ => aside,
                };
                for r in 0..M {
                    for c in 0..REGS {
                        L::store(to[r].add(c * L::WIDTH), acc[r][c]);
                    }
                }
                if let (Some(out), false) = (out, is_whole) {
                    for r in 0..M {
                        std::ptr::copy_nonoverlapping(aside[r], out[r], there);
                    }
                }
            }
        }
    }
}

/// Asks for the lines of the result that are written next, so that they come while their sums are
/// made. Of `gemm`'s speed beside it, on two threads: [4096, 384] by [384, 1536] 0.86 without and
/// 1.0 with, by [384, 384] 0.88 and 0.98.
///
/// # Safety
/// As for the functions of `L`.
#[inline(always)]
unsafe fn fetch_results<L: Lanes, const M: usize, const REGS: usize>(rows: [*mut f32; M]) {
    for row in rows {
        for c in 0..REGS {
            // SAFETY: by the caller's promise; what is beyond the last column is asked for in vain.
            unsafe { L::fetch_near(row.wrapping_add(c * L::WIDTH)) };
        }
    }
}

/// `STEPS` steps along k: `M` rows by some registers of a panel, whose lines of one step are
/// `LINES`. They fetch some lines of what comes next, until all are: a few at once, since a look at
/// each step has [16, 384] by [384, 1536] take 149 us, not 107.
///
/// # Safety
/// As for the functions of `L`; the rows and the panel go on for so many steps.
#[inline(always)]
unsafe fn steps<
    T: Stored,
    L: Lanes,
    const M: usize,
    const REGS: usize,
    const LINES: usize,
    const STEPS: usize,
    const GROUPED: bool,
>(
    acc: &mut [[L::Register; REGS]; M],
    rows: &mut *const f32,
    step: isize,
    panel: &mut *const T,
    next: &mut Next<T>,
) {
    if next.lines.start < next.lines.end {
        for _ in 0..(STEPS * next.ahead).div_ceil(UNROLLED) {
            // SAFETY: a line beyond the last is asked for in vain.
            unsafe { L::fetch(next.lines.start.cast()) };
            next.lines.start = next.lines.start.wrapping_add(1);
        }
    }
    for p in 0..STEPS {
        // SAFETY: by the caller's promise.
        unsafe {
            let mut line = [L::splat(0.0); REGS];
            for c in 0..REGS {
                line[c] = T::register::<L>(panel.add(p * LINES * LINE + c * L::WIDTH));
            }
            for r in 0..M {
                let at = match GROUPED {
                    true => r as isize,
                    false => r as isize * step + p as isize,
                };
                let x = L::splat(rows.offset(at).read_unaligned());
                for c in 0..REGS {
                    acc[r][c] = L::fma(x, line[c], acc[r][c]);
                }
            }
            if GROUPED {
                *rows = rows.wrapping_offset(step);
            }
        }
    }
    // SAFETY: as above.
    unsafe {
        *rows = rows.add(if GROUPED { 0 } else { STEPS });
        *panel = panel.add(STEPS * LINES * LINE);
    }
}
