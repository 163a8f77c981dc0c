//! Positions of the largest and smallest elements.
//!
//! Rows are folded block by block as `max` and `min` are, keeping the block in which the best one
//! was first seen; one look into that block then finds the position. Columns carry positions along.

use super::super::isa::vectorize;
use super::super::load::Load;
use super::super::nest::{Shared, in_parts};
use super::columns::Columns;
use super::fold::{BLOCK, Wide};
use super::gather::Tiles;
use super::kernel::Kernel;
use super::rows::{blocks, chunk_of};
use super::{Scratch, Task, least};
use crate::dtype::DType;
use crate::room;
use half::{bf16, f16};
use std::ops::Range;

/// What finding a position needs beyond a fold: once for each type and direction.
struct Finder {
    /// Whether the value `a`, which comes later, takes the place of `b`.
    beats: fn(u64, u64) -> bool,
    /// The first of `n` elements with a value.
    ///
    /// # Safety
    /// The elements are valid for reads.
    first: unsafe fn(*const u8, n: usize, value: u64) -> usize,
    /// Looks at rows of neighbouring results, the first of which has a number; if it has none yet,
    /// it is the best so far.
    ///
    /// # Safety
    /// Each row is valid for `n` elements, as are values and places.
    look: unsafe fn(
        rows: &[*const u8],
        n: usize,
        first: u32,
        start: bool,
        values: *mut u8,
        places: *mut u32,
    ),
    /// A value as a word.
    ///
    /// # Safety
    /// There is one at the address.
    word: unsafe fn(*const u8) -> u64,
}

impl Finder {
    const fn of<T: Load<W>, W: Wide, const MAX: bool>() -> Finder {
        Finder {
            beats: |a, b| beats::<W, MAX>(W::of_bits(a), W::of_bits(b)),
            first: first::<T, W>,
            look: look::<T, W, MAX>,
            // SAFETY: by the caller's promise.
            word: |at| unsafe { *at.cast::<W>() }.into_bits(),
        }
    }
}

#[inline(always)]
fn beats<W: Wide, const MAX: bool>(a: W, b: W) -> bool {
    (if MAX { a > b } else { a < b }) | (a.is_nan() & !b.is_nan())
}

unsafe fn first<T: Load<W>, W: Wide>(x: *const u8, n: usize, value: u64) -> usize {
    let value = W::of_bits(value);
    // SAFETY: by the caller's promise.
    let x = unsafe { std::slice::from_raw_parts(x.cast::<T>(), n) };
    x.iter().position(|x| x.load() == value || value.is_nan() && x.load().is_nan()).unwrap_or(0)
}

unsafe fn look<T: Load<W>, W: Wide, const MAX: bool>(
    rows: &[*const u8],
    n: usize,
    first: u32,
    start: bool,
    values: *mut u8,
    places: *mut u32,
) {
    vectorize!(|| {
        // SAFETY: by the caller's promise.
        let (values, places) = unsafe {
            (
                std::slice::from_raw_parts_mut(values.cast::<W>(), n),
                std::slice::from_raw_parts_mut(places, n),
            )
        };
        for (r, row) in rows.iter().enumerate() {
            // SAFETY: as above.
            let row = unsafe { std::slice::from_raw_parts(row.cast::<T>(), n) };
            let (fresh, place) = (start && r == 0, first + r as u32);
            for ((&x, value), at) in row.iter().zip(&mut *values).zip(&mut *places) {
                let x = x.load();
                let better = fresh | beats::<W, MAX>(x, *value);
                *value = if better { x } else { *value };
                *at = if better { place } else { *at };
            }
        }
    });
}

fn finder(dtype: DType, max: bool) -> &'static Finder {
    macro_rules! by_type {
        ($($dtype:pat => $T:ident in $W:ident;)*) => {
            match (dtype, max) {
                $(($dtype, true) => const { &Finder::of::<$T, $W, true>() },
                ($dtype, false) => const { &Finder::of::<$T, $W, false>() },)*
                (stored, _) => stored.never_computed(),
            }
        };
    }
    by_type! {
        DType::F32 => f32 in f32;
        DType::F64 => f64 in f64;
        DType::F16 => f16 in f32;
        DType::BF16 => bf16 in f32;
        DType::I32 => i32 in i32;
        DType::I64 => i64 in i64;
        DType::U8 | DType::Bool => u8 in u8;
    }
}

/// A candidate: its value and its position among the elements of its result.
type Best = (u64, usize);

pub(super) fn find(task: &Task<'_>, kernel: &Kernel, max: bool) {
    let finder = finder(task.dtype, max);
    match task.column() {
        _ if task.count == 0 => {}
        Some(column) if task.count < u32::MAX as usize => columns(task, kernel, finder, column),
        _ => rows(task, kernel, finder),
    }
}

/// Writes a position.
fn write(task: &Task<'_>, at: isize, position: usize) {
    // SAFETY: `at` is an index of the output, which is of int64.
    unsafe { task.result(at).cast::<i64>().write(position as i64) }
}

/// The best of candidates in the order of their positions.
fn first_best(finder: &Finder, candidates: impl Iterator<Item = Best>) -> usize {
    let best = candidates.reduce(|b, a| if (finder.beats)(a.0, b.0) { a } else { b });
    best.map_or(0, |(_, at)| at)
}

fn rows(task: &Task<'_>, kernel: &Kernel, finder: &Finder) {
    let (results, count) = (task.kept.numel(), task.count);
    let chunk = chunk_of(count, results, least(kernel.size), task.par);
    if chunk >= count {
        in_parts(results, (least(kernel.size) / count).max(1), task.par, &|part| {
            for (_, [at, offset]) in task.kept.turns(part) {
                write(task, at, one_row(task, kernel, finder, offset, 0..count).1);
            }
        });
        return;
    }
    let chunks = count.div_ceil(chunk);
    let mut partials: Vec<Best> = room::filled(results * chunks, (0, 0));
    let to = Shared::<Best>::new(partials.as_mut_ptr());
    task.par.run(results * chunks, &|i| {
        let first = (i % chunks) * chunk;
        let [_, offset] = task.kept.at(i / chunks);
        let best = one_row(task, kernel, finder, offset, first..(first + chunk).min(count));
        // SAFETY: each part writes its own.
        unsafe { to.at(i as isize).write(best) };
    });
    for (p, [at, _]) in task.kept.turns(0..results) {
        write(task, at, first_best(finder, partials[p * chunks..(p + 1) * chunks].iter().copied()));
    }
}

/// The best of the elements `range` of one result. There is one.
fn one_row(
    task: &Task<'_>,
    kernel: &Kernel,
    finder: &Finder,
    offset: isize,
    range: Range<usize>,
) -> Best {
    let mut best: Option<Best> = None;
    blocks(task, kernel, offset, range.clone(), |first, value| {
        if best.is_none_or(|(b, _)| (finder.beats)(value, b)) {
            best = Some((value, first));
        }
    });
    let (value, first) = best.unwrap_or((0, range.start));
    let mut block = Tiles::new(task, kernel.size, offset, first..(first + BLOCK).min(range.end));
    // SAFETY: the tile has `n` elements.
    let within = block.next().map_or(0, |(_, x, n)| unsafe { (finder.first)(x, n, value) });
    (value, first + within)
}

fn columns(task: &Task<'_>, kernel: &Kernel, finder: &Finder, column: usize) {
    let columns = Columns::new(task, column, kernel.size);
    let (units, width, count) = (columns.units(), columns.width(), task.count);
    let least = (least(kernel.size) / width).max(1);
    let chunk = chunk_of(count, units, least, task.par);
    let chunks = count.div_ceil(chunk);
    let mut partials: Vec<Best> =
        room::filled(if chunks == 1 { 0 } else { units * chunks * width }, (0, 0));
    let to = Shared::<Best>::new(partials.as_mut_ptr());
    let part = |range: Range<usize>| {
        let (mut values, mut places) = (Scratch::new(width * kernel.acc), vec![0u32; width]);
        let values = values.ptr();
        for i in range {
            let (at, offset, n) = columns.strip(i / chunks);
            let first = (i % chunks) * chunk;
            columns.blocks(kernel.size, offset, n, first..(first + chunk).min(count), |r, rows| {
                // SAFETY: rows of `n` elements; there is room for `width` values and places.
                unsafe {
                    (finder.look)(rows, n, r as u32, r == first, values, places.as_mut_ptr())
                };
            });
            for (w, &place) in places[..n].iter().enumerate() {
                if chunks == 1 {
                    write(task, at + w as isize * columns.step(), place as usize);
                } else {
                    // SAFETY: a value that was written, and this part's own place among the partial
                    // results.
                    unsafe {
                        let value = (finder.word)(values.add(w * kernel.acc));
                        to.at((i * width + w) as isize).write((value, place as usize));
                    }
                }
            }
        }
    };
    if chunks == 1 {
        in_parts(units, (least / count).max(1), task.par, &part);
        return;
    }
    task.par.run(units * chunks, &|i| part(i..i + 1));
    for unit in 0..units {
        let (at, _, n) = columns.strip(unit);
        for w in 0..n {
            let of = |c: usize| partials[(unit * chunks + c) * width + w];
            write(task, at + w as isize * columns.step(), first_best(finder, (0..chunks).map(of)));
        }
    }
}
