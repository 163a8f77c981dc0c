//! Products whose right operand is put into panels as they are computed.
//!
//! Called for halves, and for f32 where that is ahead of the `gemm` crate ([`pays`]). Each piece of
//! the output goes tile by tile, and within a tile block by block of k: the rows' part is laid in
//! f32, unless it can be read as it lies; then a [`BUNDLE`] of panels is packed at a time, which
//! stays in the second-level cache while all rows of the tile pass. Sums are added in the order in
//! which a packed weight's are ([`panel`](super::panel)), for any cut, so that a product is the
//! same to the bit once its weight is packed. Halves are widened once a tile and rounded once, or
//! not at all where the result is in f32. (`gemm` has a kernel for f16, but it rounds between
//! blocks of k, and none for bf16.)

use super::super::copy::{TILE, tile};
use super::super::isa::{Levelled, at_level, vectorize};
use super::super::load::{Load, Narrowed, over};
use super::super::nest::{Shared, slice_of};
use super::super::simd::{Level, Simd, level};
use super::super::stream::{prefetch_all, prefetch_all_second};
use super::panel::{
    BLOCK, BUNDLE, LINE, Line, Order, Panels, ROWS_MAX, SUMS, columns_of, depth, group, panels_of,
};
use super::{Cut, Matrix, Product, can_be_packed};
use crate::dtype::DType;
use crate::sync::threads::thread_local;
use crate::view::Parallel;
use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Most rows and columns of a tile: with a block of k its rows take 2 MiB at most, and its sums
/// 4 MiB where they wait for another block. Rows are laid once for all columns of a tile, and
/// columns are packed once for all its rows.
const ROWS: usize = 1024;
const COLS: usize = 21 * SUMS;

thread_local! {
    /// Panels, rows and sums of a tile. As large as the largest were.
    static ROOM: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Whether a product of f32 is computed here. With gradients, which have a transposed operand each,
/// products of `[256, 256]` and of `[512, 768]` by `[768, 768]` take 0.90 and 0.91 of what the
/// library takes for them. Where no operand is transposed it packs as fast, and few rows or few
/// terms are not worth the panels (64 products of `[128, 64]` by `[64, 128]` 522 us, and 442).
pub(super) fn pays(p: &Product) -> bool {
    let is_turned = |steps: [isize; 2]| steps[0] == 1 && steps[1] != 1;
    let (rows, terms) = match (is_turned(p.a), is_turned(p.b)) {
        (_, true) => (ROWS_MAX, 64),
        (true, false) => (64, 64),
        (false, false) => (128, 128),
    };
    let enough = level() == Level::Avx512 && p.m >= rows && p.k >= terms;
    // The others the library adds in orders of its own.
    enough && can_be_packed(DType::F32, [p.m, p.k, p.n], p.b)
}

/// Most panels by which columns of f32 are multiplied as they lie: by more they are laid once.
const COLUMNS_MAX: usize = 2 * BUNDLE;

pub(super) fn multiply<T: Load<f32>, O: Load<f32>>(
    p: &Product,
    a: *const u8,
    b: *const u8,
    out: *mut u8,
    par: &dyn Parallel,
) {
    let (a, b, out) =
        (Shared::<T>::new(a.cast_mut()), Shared::<T>::new(b.cast_mut()), Shared::<O>::new(out));
    let cut = Cut::new(p, [ROWS_MAX, LINE], par);
    cut.run(par, &|matrix, rows, cols| {
        let ([_, a, b], [o, ..]) = (p.at(matrix, a, b, a), p.at(matrix, out, out, out));
        let (down, across) = (rows.len().div_ceil(ROWS), cols.len().div_ceil(COLS));
        for i in 0..down * across {
            let (r, c) =
                (slice_of(rows.len(), down, i / across), slice_of(cols.len(), across, i % across));
            let (row, col) = (rows.start + r.start, cols.start + c.start);
            let tile = Tile {
                out: Matrix { at: Shared::new(o.from(row, col)), ..o },
                a: Matrix { at: Shared::new(a.from(row, 0)), ..a },
                b: Matrix { at: Shared::new(b.from(0, col)), ..b },
                sizes: [r.len(), c.len(), p.k],
            };
            // SAFETY: the tile lies within the output and is this part's own.
            ROOM.with_borrow_mut(|room| unsafe { tile.multiply(room) });
        }
    });
}

/// A tile of the output, with the rows and the columns that it is made of: `[m, n, k]`.
struct Tile<T, O> {
    out: Matrix<O>,
    a: Matrix<T>,
    b: Matrix<T>,
    sizes: [usize; 3],
}

/// Panels of some columns of a tile, one after the other.
struct Bundle {
    packed: *mut f32,
    panels: Range<usize>,
    /// Columns of the tile, and elements along k.
    n: usize,
    deep: usize,
}

impl Bundle {
    /// Where a panel lies, its first column, and how many it has.
    fn place(&self, panel: usize) -> (*mut f32, usize, usize) {
        let (base, lines) = (columns_of(self.n, self.panels.start), columns_of(self.n, panel));
        let (first, end) = (lines.start * LINE, self.n.min(lines.end * LINE));
        let before = (lines.start - base.start) * LINE * self.deep;
        (self.packed.wrapping_add(before), first, end - first)
    }

    /// Packs the columns of a matrix.
    ///
    /// # Safety
    /// The matrix is valid over `n` columns, and there is room for the panels.
    unsafe fn pack<T: Load<f32>>(&self, from: Matrix<T>) {
        for (to, first, wide) in self.panels.clone().map(|i| self.place(i)) {
            let from = Matrix { at: Shared::new(from.from(0, first)), ..from };
            let apart = wide.next_multiple_of(LINE);
            // SAFETY: the caller's promise.
            unsafe {
                spread(from, (to, apart), self.deep, wide);
                for row in (0..self.deep).filter(|_| wide < apart) {
                    std::slice::from_raw_parts_mut(to.add(row * apart), apart)[wide..].fill(0.0);
                }
            }
        }
    }

    /// A panel, once it is packed.
    ///
    /// # Safety
    /// It has been.
    unsafe fn panel(&self, i: usize) -> Panels<'_, f32> {
        let (at, _, n) = self.place(i);
        let lines = n.div_ceil(LINE) * self.deep;
        // SAFETY: the caller's promise.
        let lines = unsafe { std::slice::from_raw_parts(at.cast_const().cast(), lines) };
        Panels { lines, k: self.deep, n, pairs: false }
    }
}

impl<T: Load<f32>, O: Load<f32>> Tile<T, O> {
    /// # Safety
    /// The operands are valid for reads over these sizes, and the output for writes.
    unsafe fn multiply(&self, room: &mut Vec<f32>) {
        let [m, n, k] = self.sizes;
        let (deep, panels) = (depth(k).max(1), panels_of(n));
        let lies = self.lies();
        // Without a second block of k, sums of f32 wait nowhere.
        let waits = deep < k || !O::IS_WIDE;
        let sums_of = if waits { panels * m * SUMS } else { BLOCK * SUMS };
        let rows_of = if lies.is_some() { 0 } else { m * deep };
        crate::room::at_least(room, BUNDLE * SUMS * deep + LINE + rows_of + sums_of, 0.0);
        // Panels begin with a cache line.
        let first = room.as_ptr().align_offset(size_of::<Line<f32>>()).min(LINE);
        let (packed, rest) = room[first..].split_at_mut(BUNDLE * SUMS * deep);
        let (laid, sums) = rest.split_at_mut(rows_of);
        // At least one block of k, since without any the sums are zeros all the same.
        for from in (0..k.max(1)).step_by(deep) {
            let deep = deep.min(k - from);
            let is_last = from + deep == k;
            let part = Matrix { at: Shared::new(self.a.from(0, from)), ..self.a };
            let (rows, order) = match lies {
                Some(order) => (Shared::<f32>::new(part.at.at(0)), order),
                // SAFETY: the caller's promise.
                None => unsafe {
                    let order = lay(part, laid, m, deep);
                    (Shared::new(laid.as_mut_ptr()), order)
                },
            };
            for some in (0..panels).step_by(BUNDLE) {
                let some = some..panels.min(some + BUNDLE);
                let packed = packed.as_mut_ptr();
                let bundle = Bundle { packed, panels: some.clone(), n, deep };
                // SAFETY: the caller's promise; there is room for so many panels.
                unsafe { bundle.pack(Matrix { at: Shared::new(self.b.from(from, 0)), ..self.b }) };
                for row in (0..m).step_by(BLOCK) {
                    let high = BLOCK.min(m - row);
                    let at = match order {
                        Order::Rows(step) => row as isize * step,
                        Order::Groups => (row * deep) as isize,
                        Order::Columns(_) => row as isize,
                    };
                    if matches!(order, Order::Columns(_)) && some.start == 0 {
                        for p in 0..deep {
                            prefetch_all_second(part.from(row, p).cast_const(), high);
                        }
                    }
                    for i in some.clone() {
                        let (_, first, wide) = bundle.place(i);
                        let (out, apart) = (self.out.from(row, first), self.out.rows as usize);
                        let place = if waits { (i * m + row) * SUMS } else { 0 };
                        let sums = &mut sums[place..][..high * SUMS];
                        let rows = (Shared::new(rows.at(at)), order, high);
                        let to = (is_last && O::IS_WIDE).then_some((Shared::new(out), apart));
                        let before = (Shared::new(sums.as_mut_ptr()), from > 0);
                        // SAFETY: the caller's promise; sums are there for as many rows, and the
                        // panel was packed just now.
                        unsafe { bundle.panel(i).add(rows, before, to) };
                        if is_last && !O::IS_WIDE {
                            at_level(Round { sums, wide, out, apart });
                        }
                    }
                }
            }
        }
    }

    /// How rows of f32 lie that are read as they do: in rows, or column by column, where few panels
    /// meet them and columns are not whole pages apart: lines that are have few places in a cache.
    fn lies(&self) -> Option<Order> {
        let Matrix { rows, cols, .. } = self.a;
        let few = reads_columns::<T>() && panels_of(self.sizes[1]) <= COLUMNS_MAX;
        let apart = cols.unsigned_abs() * size_of::<T>();
        match (rows, cols) {
            _ if !T::IS_WIDE => None,
            (_, 1) => Some(Order::Rows(rows)),
            (1, 2..) if few && !apart.is_multiple_of(4096) => Some(Order::Columns(cols)),
            _ => None,
        }
    }
}

/// Sums of a panel that go to results of another type.
struct Round<'a, O> {
    sums: &'a [f32],
    wide: usize,
    out: *mut O,
    apart: usize,
}

impl<O: Load<f32>> Levelled for Round<'_, O> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        for (row, sums) in self.sums.chunks(SUMS).enumerate() {
            let line =
                Narrowed { from: sums.as_ptr(), to: self.out.wrapping_add(row * self.apart) };
            // SAFETY: the panel's own columns of its rows.
            unsafe { over::<O, f32, S>(self.wide, line) };
        }
    }
}

/// Whether columns are read as they lie, or laid in groups without shuffles.
fn reads_columns<T: Load<f32>>() -> bool {
    T::IS_WIDE && level() == Level::Avx512
}

/// Writes rows in f32: in groups, if they lie column by column and can be read so, else row by row.
///
/// # Safety
/// The matrix is valid over `rows` and `cols`.
unsafe fn lay<T: Load<f32>>(from: Matrix<T>, to: &mut [f32], rows: usize, cols: usize) -> Order {
    let to = to[..rows * cols].as_mut_ptr();
    if reads_columns::<T>() && from.rows == 1 && from.cols != 1 {
        // SAFETY: the caller's promise, and there is room.
        vectorize!(move || unsafe { groups(from, to, rows, cols) });
        return Order::Groups;
    }
    // SAFETY: as above.
    unsafe { spread(from, (to, cols), rows, cols) };
    Order::Rows(cols as isize)
}

/// Lays columns in [`Order::Groups`], block by block: copies without shuffles.
///
/// # Safety
/// As for [`lay`]; the elements of a column lie side by side.
#[inline(always)]
unsafe fn groups<T: Load<f32>>(from: Matrix<T>, to: *mut f32, rows: usize, cols: usize) {
    for first in (0..rows).step_by(BLOCK) {
        let high = BLOCK.min(rows - first);
        // Groups are of eight where that comes out even: only else are they divided up.
        let eights = if high.is_multiple_of(ROWS_MAX) { high / ROWS_MAX } else { 0 };
        for p in 0..cols {
            let x = from.from(first, p).cast_const();
            prefetch_all(from.from(first, p + AHEAD).cast_const(), high);
            let to = to.wrapping_add(first * cols);
            for g in 0..eights {
                // SAFETY: by the caller's promise.
                unsafe {
                    let (line, x) = (to.add((g * cols + p) * ROWS_MAX), x.add(g * ROWS_MAX));
                    let all: [f32; ROWS_MAX] = std::array::from_fn(|r| (*x.add(r)).load());
                    line.cast::<[f32; ROWS_MAX]>().write(all);
                }
            }
            let mut row = eights * ROWS_MAX;
            while row < high {
                let some = group(high - row, ROWS_MAX);
                // SAFETY: by the caller's promise.
                unsafe {
                    let (line, x) = (to.add(row * cols + p * some), x.add(row));
                    (0..some).for_each(|r| *line.add(r) = (*x.add(r)).load());
                }
                row += some;
            }
        }
    }
}

/// Writes a matrix in f32 row by row, each row so far from the one before.
///
/// # Safety
/// The matrix is valid over `rows` and `cols`, and there is room for it.
unsafe fn spread<T: Load<f32>>(
    from: Matrix<T>,
    (to, apart): (*mut f32, usize),
    rows: usize,
    cols: usize,
) {
    at_level(Spread { from, to, apart, rows, cols });
}

struct Spread<T> {
    from: Matrix<T>,
    to: *mut f32,
    apart: usize,
    rows: usize,
    cols: usize,
}

impl<T: Load<f32>> Levelled for Spread<T> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let Spread { from, to, apart, rows, cols } = self;
        // SAFETY: elements of the matrix, and of the room, by the promise to `spread`.
        unsafe {
            if from.rows == 1 && from.cols != 1 {
                return self.tiles::<S>();
            }
            for row in 0..rows {
                let (to, x) = (to.add(row * apart), from.from(row, 0).cast_const());
                if from.cols == 1 {
                    prefetch_all(from.from(row + AHEAD, 0).cast_const(), cols);
                    widen::<T, S>(x, to, cols);
                } else {
                    (0..cols as isize)
                        .for_each(|p| *to.offset(p) = (*x.offset(p * from.cols)).load());
                }
            }
        }
    }
}

impl<T: Load<f32>> Spread<T> {
    /// Columns that lie along memory.
    ///
    /// # Safety
    /// As for [`spread`].
    #[inline(always)]
    unsafe fn tiles<S: Simd>(&self) {
        let Spread { from, to, apart, rows, cols } = *self;
        for col in (0..cols).step_by(TILE) {
            for row in (0..rows).step_by(TILE) {
                let (wide, high) = (TILE.min(rows - row), TILE.min(cols - col));
                let (to, x) =
                    (to.wrapping_add(row * apart + col), from.from(row, col).cast_const());
                // SAFETY: by the caller's promise.
                unsafe {
                    if T::IS_WIDE {
                        tile(to, x.cast(), apart as isize, from.cols, wide, high);
                        continue;
                    }
                    let mut turned = MaybeUninit::<[[T; TILE]; TILE]>::uninit();
                    let lines = turned.as_mut_ptr().cast::<T>();
                    tile(lines, x, TILE as isize, from.cols, wide, high);
                    for r in 0..wide {
                        widen::<T, S>(lines.add(r * TILE), to.add(r * apart), high);
                    }
                }
            }
        }
    }
}

/// Elements side by side, in lines of a known length as far as there are.
///
/// # Safety
/// There are `n` for reads and for writes, and the machine has what the level says.
#[inline(always)]
unsafe fn widen<T: Load<f32>, S: Simd>(from: *const T, to: *mut f32, n: usize) {
    let whole = n / LINE * LINE;
    // SAFETY: by the caller's promise.
    unsafe {
        for i in (0..whole).step_by(LINE) {
            to.add(i).cast::<Line<f32>>().write_unaligned(T::load_some::<S, LINE>(from.add(i)));
        }
        (whole..n).for_each(|i| *to.add(i) = (*from.add(i)).load());
    }
}

/// Places along k before its turn at which a part of a row is asked for.
const AHEAD: usize = 16;
