//! Scans along a dimension: the rows of `op/scan`; [`run`] is that of `scan_places` as well.
//!
//! Floats are computed in the next wider type and rounded at each element; integers and bool in
//! int64. Elements are joined in their order; long lines, where there are few, in pieces.

use super::super::isa::vectorize;
use super::super::load::Load;
use super::super::nest::{Nest, Shared, in_parts, slice_of};
use super::{PICKED, SUMMED};
use crate::dtype::DType;
use crate::op::{Scan, for_each_scan};
use crate::room;
use crate::view::{Parallel, View, ViewMut};
use half::{bf16, f16};
use std::ops::Range;

/// A type that scans are computed in.
pub(super) trait Running: Copy + Send + Sync {
    const ZERO: Self;
    const ONE: Self;
    const LOWEST: Self;
    const HIGHEST: Self;
    fn plus(self, b: Self) -> Self;
    fn times(self, b: Self) -> Self;
    /// The larger; NaN if either is NaN.
    fn larger(self, b: Self) -> Self;
    /// The smaller; NaN if either is NaN.
    fn smaller(self, b: Self) -> Self;
    /// Whether it is at least as large as the largest so far; NaN always is.
    fn is_largest(self, so_far: Self) -> bool;
    /// Whether it is at least as small as the smallest so far; NaN always is.
    fn is_smallest(self, so_far: Self) -> bool;
}

macro_rules! floats {
    ($($F:ty),*) => {$(
        impl Running for $F {
            const ZERO: $F = 0.0;
            const ONE: $F = 1.0;
            const LOWEST: $F = <$F>::NEG_INFINITY;
            const HIGHEST: $F = <$F>::INFINITY;
            #[inline(always)]
            fn plus(self, b: $F) -> $F {
                self + b
            }
            #[inline(always)]
            fn times(self, b: $F) -> $F {
                self * b
            }
            #[inline(always)]
            fn larger(self, b: $F) -> $F {
                if self.is_nan() || self > b { self } else { b }
            }
            #[inline(always)]
            fn smaller(self, b: $F) -> $F {
                if self.is_nan() || self < b { self } else { b }
            }
            #[inline(always)]
            fn is_largest(self, so_far: $F) -> bool {
                self.is_nan() || self >= so_far
            }
            #[inline(always)]
            fn is_smallest(self, so_far: $F) -> bool {
                self.is_nan() || self <= so_far
            }
        }
    )*};
}
floats!(f32, f64);

impl Running for i64 {
    const ZERO: i64 = 0;
    const ONE: i64 = 1;
    const LOWEST: i64 = i64::MIN;
    const HIGHEST: i64 = i64::MAX;
    #[inline(always)]
    fn plus(self, b: i64) -> i64 {
        self.wrapping_add(b)
    }
    #[inline(always)]
    fn times(self, b: i64) -> i64 {
        self.wrapping_mul(b)
    }
    #[inline(always)]
    fn larger(self, b: i64) -> i64 {
        Ord::max(self, b)
    }
    #[inline(always)]
    fn smaller(self, b: i64) -> i64 {
        Ord::min(self, b)
    }
    #[inline(always)]
    fn is_largest(self, so_far: i64) -> bool {
        self >= so_far
    }
    #[inline(always)]
    fn is_smallest(self, so_far: i64) -> bool {
        self <= so_far
    }
}

macro_rules! scans {
    ($($name:ident: $Variant:ident {
        gradient: $gradient:ident,
        nothing: $nothing:ident, cpu: |$a:ident, $b:ident| $e:expr,
        $($columns:tt)*
    })*) => {
        /// `out[.., i, ..] = input[.., 0, ..]` joined with all up to `input[.., i, ..]`; the
        /// output's type is that of a sum.
        pub(crate) fn scan(
            scan: Scan,
            x: View<'_>,
            dim: usize,
            out: &ViewMut<'_>,
            par: &dyn Parallel,
        ) {
            match scan {$(
                Scan::$Variant => {
                    macro_rules! run {
                        ($T:ty as $W:ty, $O:ty, $wide:expr, $end:expr) => {{
                            let nothing = <$W as Running>::$nothing;
                            let join = |$a: $W, $b: $W| -> $W { $e };
                            let wide = |x: $T, _: usize| ($wide)(x);
                            let how = How { nothing, wide, join, end: $end };
                            // SAFETY: its promise is the caller's.
                            let some = |lines: &Lines<$T, $O>, sums: &mut _, writes| unsafe {
                                together(lines, sums, writes, how)
                            };
                            run::<$T, $W, $O>(x, dim, out, par, how, some)
                        }};
                    }
                    match x.dtype {
                        DType::F32 => run!(f32 as f64, f32, |x: f32| x as f64, |s| s as f32),
                        DType::F64 => run!(f64 as f64, f64, |x: f64| x, |s| s),
                        DType::F16 => run!(f16 as f32, f16, Load::<f32>::load, Load::<f32>::store),
                        DType::BF16 => {
                            run!(bf16 as f32, bf16, Load::<f32>::load, Load::<f32>::store)
                        }
                        DType::I32 => run!(i32 as i64, i64, |x: i32| x as i64, |s| s),
                        DType::I64 => run!(i64 as i64, i64, |x: i64| x, |s| s),
                        DType::U8 | DType::Bool => run!(u8 as i64, i64, |x: u8| x as i64, |s| s),
                        stored => stored.never_computed(),
                    }
                }
            )*}
        }
    };
}
for_each_scan!(scans);

/// How an element at a place of its line becomes what is joined, and this a result.
#[derive(Clone, Copy)]
pub(super) struct How<W, Wide, Join, End> {
    pub nothing: W,
    pub wide: Wide,
    pub join: Join,
    pub end: End,
}

/// Some lines, or pieces of lines, of `n` elements a step apart: where the first element and the
/// first result of each lie, and its place in its line.
pub(super) struct Lines<'a, T, O> {
    pub at: &'a [(Shared<T>, Shared<O>)],
    pub starts: &'a [usize; LINES],
    pub step: isize,
    pub n: usize,
}

/// Columns that are worked on side by side: at least so many, and at most.
const COLUMNS: Range<usize> = 64..512;
/// Columns that one turn of the innermost loop holds in registers.
const STRIP: usize = 16;
/// Lines that are worked on in turns: each waits for its own last sum, not for another's. (Of eight
/// lines a power of two apart, what is read and written falls on the same few places of the first
/// cache: rows of 1024 took 8.8 ms, and 3.5 by fours.)
pub(super) const LINES: usize = 4;
/// Elements of a line that are turned over at a time.
const BLOCK: usize = 4;
/// A line is cut into pieces of at least so many elements, where there are few lines.
pub(super) const LONG: usize = 2048;

/// Scans along a dimension. `some` scans some lines, each from its own result so far on, and leaves
/// the last ones there; it writes results where it is told to.
pub(super) fn run<T: Copy + Send + Sync, W: Copy + Send + Sync, O: Copy + Send + Sync>(
    x: View<'_>,
    dim: usize,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
    how: How<
        W,
        impl Fn(T, usize) -> W + Copy + Sync,
        impl Fn(W, W) -> W + Copy + Sync,
        impl Fn(W) -> O + Copy + Sync,
    >,
    some: impl Fn(&Lines<'_, T, O>, &mut [W; LINES], bool) + Sync,
) {
    if out.numel() == 0 {
        return;
    }
    let (n, step) = (x.shape[dim], x.strides[dim]);
    let inner = crate::shape::numel(&x.shape[dim + 1..]);
    let outer = Nest::new(&x.shape[..dim], [&x.strides[..dim]]).merged();
    let (from, to) = (Shared::<T>::new(x.ptr.cast_mut()), Shared::<O>::new(out.ptr));
    if inner > 1 {
        let columns = Nest::new(&x.shape[dim + 1..], [&x.strides[dim + 1..]]).merged();
        return Columns { outer, columns, n, step, inner, from, to }.run(par, how);
    }
    let lines = outer.numel();
    let cuts = if lines < 2 * LINES { (n / LONG).clamp(1, 64) } else { 1 };
    if cuts == 1 {
        return in_parts(lines.div_ceil(LINES), (PICKED / (n * LINES)).max(1), par, &|groups| {
            for group in groups {
                let own = group * LINES..lines.min((group + 1) * LINES);
                let mut at = [(from, to); LINES];
                for (line, [offset]) in outer.turns(own.clone()) {
                    let y = to.at((line * n) as isize);
                    at[line - own.start] = (Shared::new(from.at(offset)), Shared::new(y));
                }
                // Lines of the input, and this part's own of the output.
                let at = &at[..own.len()];
                let lines = Lines { at, starts: &[0; LINES], step, n };
                some(&lines, &mut [how.nothing; LINES], true);
            }
        });
    }
    // What comes before each piece of a line is found first. How many pieces there are depends on
    // the shape alone, and so do the bits.
    let mut before = room::filled(lines * cuts, how.nothing);
    let sums = Shared::<W>::new(before.as_mut_ptr());
    let least = (PICKED * cuts / n / LINES).max(1);
    let pass = |writes: bool| {
        in_parts((lines * cuts).div_ceil(LINES), least, par, &|groups| {
            for group in groups {
                let own = group * LINES..(lines * cuts).min((group + 1) * LINES);
                for run in
                    own.clone().collect::<smallvec::SmallVec<[usize; LINES]>>().chunk_by(|a, b| {
                        slice_of(n, cuts, a % cuts).len() == slice_of(n, cuts, b % cuts).len()
                    })
                {
                    let (mut at, mut starts) = ([(from, to); LINES], [0; LINES]);
                    let mut sum = [how.nothing; LINES];
                    let len = slice_of(n, cuts, run[0] % cuts).len();
                    for (k, &i) in run.iter().enumerate() {
                        let (line, first) = (i / cuts, slice_of(n, cuts, i % cuts).start);
                        let offset = outer.at(line)[0] + first as isize * step;
                        let y = to.at((line * n + first) as isize);
                        (at[k], starts[k]) =
                            ((Shared::new(from.at(offset)), Shared::new(y)), first);
                        if writes {
                            // SAFETY: it has been found.
                            sum[k] = unsafe { *sums.at(i as isize) };
                        }
                    }
                    // Pieces of the input's lines, and this part's own of the output.
                    let lines = Lines { at: &at[..run.len()], starts: &starts, step, n: len };
                    some(&lines, &mut sum, writes);
                    if !writes {
                        for (&i, sum) in run.iter().zip(sum) {
                            // SAFETY: the vector has one for each piece.
                            unsafe { sums.at(i as isize).write(sum) }
                        }
                    }
                }
            }
        });
    };
    pass(false);
    for line in 0..lines {
        let mut sum = how.nothing;
        for i in line * cuts..(line + 1) * cuts {
            // SAFETY: the vector has one for each piece, and nobody else uses it now.
            let own = unsafe { sums.at(i as isize).replace(sum) };
            sum = (how.join)(sum, own);
        }
    }
    pass(true);
}

/// Scans some lines of `n` elements, each from its own sum and place on, and leaves their sums
/// there.
///
/// # Safety
/// Each line's elements lie a step apart, and, where it `writes`, it has room for as many results.
unsafe fn together<T: Copy, W: Copy, O: Copy>(
    lines: &Lines<'_, T, O>,
    sums: &mut [W; LINES],
    writes: bool,
    how: How<W, impl Fn(T, usize) -> W + Copy, impl Fn(W, W) -> W + Copy, impl Fn(W) -> O + Copy>,
) {
    // SAFETY: by the caller's promise.
    vectorize!(|| unsafe {
        match lines.at.len() {
            1 => in_turns::<T, W, O, 1>(lines, 0, sums, writes, how),
            2 => in_turns::<T, W, O, 2>(lines, 0, sums, writes, how),
            LINES => in_turns::<T, W, O, LINES>(lines, 0, sums, writes, how),
            n => (0..n).for_each(|k| in_turns::<T, W, O, 1>(lines, k, sums, writes, how)),
        }
    });
}

/// Scans `N` lines from number `from` on, an element of each in turn. A block of them is turned
/// over in registers: what is joined at once lies side by side there.
///
/// # Safety
/// As [`together`].
#[inline(always)]
unsafe fn in_turns<T: Copy, W: Copy, O: Copy, const N: usize>(
    &Lines { at, starts, step, n }: &Lines<'_, T, O>,
    from: usize,
    sums: &mut [W; LINES],
    writes: bool,
    how: How<W, impl Fn(T, usize) -> W + Copy, impl Fn(W, W) -> W + Copy, impl Fn(W) -> O + Copy>,
) {
    let mut own = [how.nothing; N];
    own.copy_from_slice(&sums[from..from + N]);
    let blocks = if step == 1 { n / BLOCK } else { 0 };
    // SAFETY: by the caller's promise.
    unsafe {
        for i in (0..blocks).map(|block| BLOCK * block) {
            let read = |r: usize| at[from + r].0.at(i as isize).cast::<[T; BLOCK]>();
            let mut rows = [read(0).read_unaligned(); N];
            for r in 1..N {
                rows[r] = read(r).read_unaligned();
            }
            let mut ends = [[(how.end)(own[0]); N]; BLOCK];
            for c in 0..BLOCK {
                for r in 0..N {
                    own[r] = (how.join)(own[r], (how.wide)(rows[r][c], starts[from + r] + i + c));
                }
                for r in 0..N {
                    ends[c][r] = (how.end)(own[r]);
                }
            }
            if !writes {
                continue;
            }
            for r in 0..N {
                let mut row = [ends[0][r]; BLOCK];
                for c in 1..BLOCK {
                    row[c] = ends[c][r];
                }
                at[from + r].1.at(i as isize).cast::<[O; BLOCK]>().write_unaligned(row);
            }
        }
        for i in BLOCK * blocks..n {
            for r in 0..N {
                let (x, y) = at[from + r];
                let x = *x.at(i as isize * step);
                own[r] = (how.join)(own[r], (how.wide)(x, starts[from + r] + i));
                if writes {
                    y.at(i as isize).write((how.end)(own[r]));
                }
            }
        }
    }
    sums[from..from + N].copy_from_slice(&own);
}

/// Lines that lie side by side.
struct Columns<T, O> {
    outer: Nest<1>,
    columns: Nest<1>,
    n: usize,
    step: isize,
    inner: usize,
    from: Shared<T>,
    to: Shared<O>,
}

impl<T: Copy + Send + Sync, O: Copy + Send + Sync> Columns<T, O> {
    fn run<W: Copy + Send + Sync>(
        &self,
        par: &dyn Parallel,
        how: How<
            W,
            impl Fn(T, usize) -> W + Copy + Sync,
            impl Fn(W, W) -> W + Copy + Sync,
            impl Fn(W) -> O + Copy + Sync,
        >,
    ) {
        let (n, inner, from) = (self.n, self.inner, self.from);
        let wanted = (4 * par.threads()).div_ceil(self.outer.numel());
        let cuts = inner.div_ceil((inner / wanted).clamp(COLUMNS.start, COLUMNS.end));
        in_parts(self.outer.numel() * cuts, (SUMMED * cuts / (n * inner)).max(1), par, &|units| {
            for unit in units {
                let (cut, [x]) = (slice_of(inner, cuts, unit % cuts), self.outer.at(unit / cuts));
                let first = unit / cuts * n * inner + cut.start;
                let mut at = [0isize; COLUMNS.end];
                let at = &mut at[..cut.len()];
                for ((_, [offset]), at) in self.columns.turns(cut.clone()).zip(&mut *at) {
                    *at = x + offset;
                }
                let beside = at.windows(2).all(|w| w[1] == w[0] + 1);
                let mut sums = [how.nothing; COLUMNS.end];
                vectorize!(|| for r in 0..n {
                    let (row, y) =
                        (r as isize * self.step, self.to.at((first + r * inner) as isize));
                    let mut c = 0;
                    // SAFETY: elements of the input, and the same indices of the output.
                    unsafe {
                        while beside && c + STRIP <= at.len() {
                            let x = from.at(at[c] + row).cast::<[T; STRIP]>().read_unaligned();
                            let mut strip: [W; STRIP] = std::array::from_fn(|i| sums[c + i]);
                            for i in 0..STRIP {
                                strip[i] = (how.join)(strip[i], (how.wide)(x[i], r));
                            }
                            let ends: [O; STRIP] = std::array::from_fn(|i| (how.end)(strip[i]));
                            y.add(c).cast::<[O; STRIP]>().write_unaligned(ends);
                            sums[c..c + STRIP].copy_from_slice(&strip);
                            c += STRIP;
                        }
                        while c < at.len() {
                            sums[c] = (how.join)(sums[c], (how.wide)(*from.at(at[c] + row), r));
                            y.add(c).write((how.end)(sums[c]));
                            c += 1;
                        }
                    }
                });
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::*;
    use super::*;

    #[test]
    fn a_long_line_in_pieces_is_one_line() {
        let mut rng = Rng::new(63);
        for _ in turns(12) {
            let shape = [1 + rng.below(4), 2 * LONG + rng.below(5 * LONG)];
            let floats = Value::<f32>::random(&mut rng, &shape, |r| r.unit() as f32);
            let whole = Value::<i32>::random(&mut rng, &shape, |r| r.word() as i32);
            let run = |threads: usize| {
                let par = Threads { threads, seed: threads as u64 };
                let sums =
                    filled::<f32>(&shape, |out| scan(Scan::Sum, floats.view(), 1, out, &par));
                let counts =
                    filled::<i64>(&shape, |out| scan(Scan::Sum, whole.view(), 1, out, &par));
                let most =
                    filled::<f32>(&shape, |out| scan(Scan::Max, floats.view(), 1, out, &par));
                (sums, counts, most)
            };
            let (sums, counts, most) = run(1);
            assert_eq!((&sums, &counts, &most), (&run(2).0, &run(3).1, &run(4).2));
            for (line, at) in (0..shape[0]).map(|line| (line, line * shape[1])) {
                let (mut sum, mut count, mut largest) = (0.0f64, 0i64, f32::NEG_INFINITY);
                for i in 0..shape[1] {
                    sum += floats.get(&[line, i]) as f64;
                    count += whole.get(&[line, i]) as i64;
                    largest = largest.max(floats.get(&[line, i]));
                    assert!((sums[at + i] as f64 - sum).abs() <= 1e-7 * sum.abs() + 1e-9);
                    assert_eq!((counts[at + i], most[at + i]), (count, largest));
                }
            }
        }
    }

    at_every_level! {
        a_long_line_in_pieces_is_one_line
    }
}
