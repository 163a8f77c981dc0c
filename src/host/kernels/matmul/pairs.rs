//! Products of bfloat16 where the machine has an instruction for them (`vdpbf16ps`): it multiplies
//! two elements along k at once and adds both products to a sum in f32.
//!
//! Two neighbours along k are one word, of the rows and of the columns alike; where k is odd, the
//! last word has a zero. So they are multiplied as the f32 of half as deep a product are, in the
//! same panels ([`panel`]); a packed weight lies so too, and its sums are the same.

use super::super::copy::tile;
use super::super::isa::vectorize;
use super::super::load::Load;
use super::super::nest::{Shared, slice_of};
use super::panel::{BLOCK, BUNDLE, LINE, LINES_MAX, Panels, Rows, columns_of, panels_of};
use super::{Cut, Matrix, Product};
use crate::sync::threads::thread_local;
use crate::view::Parallel;
use ::half::bf16;
use std::cell::RefCell;

thread_local! {
    /// Rows and columns of a piece, as words. As large as the largest were.
    static WORDS: RefCell<[Vec<f32>; 2]> = const { RefCell::new([Vec::new(), Vec::new()]) };
}

/// Words of columns that lie in the second-level cache while all rows go by.
const LAID: usize = 192 << 10;
/// Rows that are copied at a time, where they have to be.
const ROWS: usize = 512;

/// Whether the machine has the instruction, the level in use may take it, and it is worth it. By
/// published tables an AMD Zen starts one where it starts a multiply-add of f32, and so makes twice
/// the products; a Xeon starts one in the time of four (1024^3 took 28 ms with it, and takes 15.5).
pub(super) fn are_multiplied() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        use super::super::simd::{Level, level};
        // An extension that AMD's processors alone have.
        let is_zen = || cfg!(test) || std::is_x86_feature_detected!("sse4a");
        level() == Level::Avx512 && std::is_x86_feature_detected!("avx512bf16") && is_zen()
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

pub(super) fn multiply<O: Load<f32>>(
    p: &Product,
    a: *const u8,
    b: *const u8,
    out: *mut u8,
    par: &dyn Parallel,
) {
    let (a, b, out) = (
        Shared::<bf16>::new(a.cast_mut()),
        Shared::<bf16>::new(b.cast_mut()),
        Shared::<O>::new(out),
    );
    let k = p.k.div_ceil(2);
    Cut::new(p, [BLOCK, LINES_MAX * LINE], par).run(par, &|matrix, rows, cols| {
        let ([_, a, b], [o, ..]) = (p.at(matrix, a, b, a), p.at(matrix, out, out, out));
        WORDS.with_borrow_mut(|[row_words, words]| {
            let some = if is_there(a, p.k) { rows.len() } else { ROWS };
            for first in rows.clone().step_by(some.max(1)) {
                let high = some.min(rows.end - first);
                let a = Matrix { at: Shared::new(a.from(first, 0)), ..a };
                // SAFETY: rows of the operand.
                let (from, step) = unsafe { self::rows(a, [high, p.k], row_words) };
                let panels = panels_of(cols.len());
                let fit = (LAID / (k * LINES_MAX * LINE).max(1)).clamp(1, BUNDLE);
                let bundles = panels.div_ceil(fit);
                for bundle in (0..bundles).map(|i| slice_of(panels, bundles, i)) {
                    let start = columns_of(cols.len(), bundle.start).start * LINE;
                    let end = columns_of(cols.len(), bundle.end - 1).end * LINE;
                    let n = end.min(cols.len()) - start;
                    crate::room::at_least(words, k * n.next_multiple_of(LINE), 0.0);
                    let b = Matrix { at: Shared::new(b.from(0, cols.start + start)), ..b };
                    // SAFETY: columns of the operand, for which there is room.
                    unsafe { pack_pairs(b, [p.k, n], words.as_mut_ptr().cast()) };
                    let lines = &words.as_chunks::<LINE>().0[..k * n.div_ceil(LINE)];
                    let by = Panels::<f32> { lines, k, n, pairs: true };
                    for row in (0..high).step_by(BLOCK) {
                        let rows = Rows {
                            from: Shared::new(from.at(row as isize * step)),
                            step,
                            high: BLOCK.min(high - row),
                            to: Shared::new(o.from(first + row, cols.start + start)),
                            apart: p.n,
                        };
                        // SAFETY: the rows have so many words, and the results are this part's own.
                        unsafe { by.multiply::<O>(&rows, 0..panels_of(n), None) };
                    }
                }
            }
        });
    });
}

/// Whether rows are words where they lie.
fn is_there(rows: Matrix<bf16>, k: usize) -> bool {
    rows.cols == 1 && rows.rows % 2 == 0 && k.is_multiple_of(2)
}

/// Rows as words, where they lie or copied, and the step from one to the next.
///
/// # Safety
/// The rows are valid for reads.
pub(super) unsafe fn rows(
    from: Matrix<bf16>,
    [m, k]: [usize; 2],
    room: &mut Vec<f32>,
) -> (Shared<f32>, isize) {
    if is_there(from, k) {
        return (Shared::new(from.at.at(0)), from.rows / 2);
    }
    let words = k.div_ceil(2);
    crate::room::at_least(room, m * words, 0.0);
    vectorize!(|| for (r, row) in room.chunks_exact_mut(words.max(1)).take(m).enumerate() {
        for (i, word) in row.iter_mut().enumerate() {
            // SAFETY: elements of the row.
            let of = |k| unsafe { *from.from(r, k) };
            let second = if 2 * i + 1 < k { of(2 * i + 1) } else { bf16::ZERO };
            *word = f32::from_bits(paired(of(2 * i), second));
        }
    });
    (Shared::new(room.as_mut_ptr()), words as isize)
}

/// The word of two neighbours.
#[inline(always)]
fn paired(first: bf16, second: bf16) -> u32 {
    u32::from(first.to_bits()) | u32::from(second.to_bits()) << 16
}

/// Writes a `[k, n]` matrix in panels of words; what is near in memory is read one after the other.
///
/// # Safety
/// The matrix is valid for reads, and there is room for its panels.
pub(super) unsafe fn pack_pairs(from: Matrix<bf16>, [k, n]: [usize; 2], to: *mut u32) {
    let words = k.div_ceil(2);
    for panel in 0..panels_of(n) {
        let columns = columns_of(n, panel);
        let (to, first) = (to.wrapping_add(columns.start * LINE * words), columns.start * LINE);
        let wide = columns.len() * LINE;
        let there = wide.min(n - first);
        vectorize!(|| {
            // SAFETY: elements of the matrix, by the caller's promise, and words of the panel.
            unsafe {
                if from.rows == 1 && there > 1 {
                    // Words lie one after the other along k: they are turned, tile by tile.
                    for c in (0..there).step_by(LINE) {
                        let many = LINE.min(there - c);
                        for p in (0..k / 2).step_by(LINE) {
                            let deep = LINE.min(k / 2 - p);
                            let x = from.from(2 * p, first + c).cast_const().cast::<[u16; 2]>();
                            turn(to.add(p * wide + c), wide, x, from.cols, deep, many);
                        }
                    }
                } else {
                    for p in 0..k / 2 {
                        let (one, two) = (from.from(2 * p, first), from.from(2 * p + 1, first));
                        let line = to.add(p * wide);
                        if from.cols == 1 {
                            let one = std::slice::from_raw_parts(one, there);
                            let two = std::slice::from_raw_parts(two, there);
                            let line = std::slice::from_raw_parts_mut(line, there);
                            let both = one.iter().zip(two);
                            line.iter_mut().zip(both).for_each(|(o, (a, b))| *o = paired(*a, *b));
                        } else {
                            (0..there as isize).for_each(|c| {
                                let at = c * from.cols;
                                line.offset(c).write(paired(*one.offset(at), *two.offset(at)));
                            });
                        }
                    }
                }
                if !k.is_multiple_of(2) {
                    let line = to.add((words - 1) * wide);
                    (0..there).for_each(|c| {
                        line.add(c).write(paired(*from.from(k - 1, first + c), bf16::ZERO));
                    });
                }
                for p in (0..words).filter(|_| there < wide) {
                    (there..wide).for_each(|c| to.add(p * wide + c).write(0));
                }
            }
        });
    }
}

/// `to[p * wide + c]` is word `p` of column `c`, whose elements begin `step` after those of the one
/// before.
///
/// # Safety
/// Words of `deep` rows and `many` columns, a tile at most, may be read and written.
#[inline(always)]
unsafe fn turn(
    to: *mut u32,
    wide: usize,
    from: *const [u16; 2],
    step: isize,
    deep: usize,
    many: usize,
) {
    // In halves a column may begin anywhere.
    let mut words = [[0u32; LINE]; LINE];
    for (c, line) in words[..many].iter_mut().enumerate() {
        let column = from.cast::<u16>().wrapping_offset(c as isize * step).cast::<u32>();
        // SAFETY: by the caller's promise.
        unsafe {
            std::ptr::copy_nonoverlapping(column.cast::<u8>(), line.as_mut_ptr().cast(), 4 * deep)
        };
    }
    // SAFETY: as above.
    unsafe {
        match (deep, many) {
            (LINE, LINE) => {
                tile(to, words.as_ptr().cast(), wide as isize, LINE as isize, LINE, LINE)
            }
            _ => tile(to, words.as_ptr().cast(), wide as isize, LINE as isize, deep, many),
        }
    }
}
