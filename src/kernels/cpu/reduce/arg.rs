//! Positions of the largest and smallest elements.
//!
//! Rows are folded block by block as `max` and `min` are, keeping the block in which the best one was
//! first seen; one look into that block then finds the position. Columns carry positions along.

use super::super::isa::vectorize;
use super::super::load::Load;
use super::super::nest::{Nest, Shared, in_parts, slice_of};
use super::fold::{BLOCK, Fold, Max, Min, Wide, fold_block};
use super::rows::{chunk_of, tiles};
use super::{Input, Task, least};
use crate::dtype::DType;
use half::{bf16, f16};
use std::ops::Range;

pub(super) fn by_dtype<const MAX: bool>(task: &Task<'_>) {
    match task.dtype {
        DType::F32 => all::<f32, f32, MAX>(task),
        DType::F64 => all::<f64, f64, MAX>(task),
        DType::F16 => all::<f16, f32, MAX>(task),
        DType::BF16 => all::<bf16, f32, MAX>(task),
        DType::I32 => all::<i32, i32, MAX>(task),
        DType::I64 => all::<i64, i64, MAX>(task),
        DType::U8 | DType::Bool => all::<u8, u8, MAX>(task),
    }
}

/// A candidate: its value and its position among the elements of its result.
type Best<W> = (W, usize);

/// Whether `a`, which comes later, takes the place of `b`.
#[inline(always)]
fn beats<W: Wide, const MAX: bool>(a: W, b: W) -> bool {
    (if MAX { a > b } else { a < b }) | (a.is_nan() & !b.is_nan())
}

/// The best of candidates in the order of their positions.
fn first_best<W: Wide, const MAX: bool>(candidates: impl Iterator<Item = Best<W>>) -> i64 {
    let best = candidates.reduce(|b, a| if beats::<W, MAX>(a.0, b.0) { a } else { b });
    best.map_or(0, |(_, at)| at as i64)
}

fn all<T: Load<W>, W: Wide, const MAX: bool>(task: &Task<'_>) {
    if task.kept.numel() == 0 || task.count == 0 {
        return;
    }
    match task.column() {
        Some(column) if task.count < u32::MAX as usize => columns::<T, W, MAX>(task, column),
        _ => rows::<T, W, MAX>(task),
    }
}

fn rows<T: Load<W>, W: Wide, const MAX: bool>(task: &Task<'_>) {
    let (results, count) = (task.kept.numel(), task.count);
    let (input, output) = (task.input::<T>(), task.output.cast::<i64>());
    let chunk = chunk_of(count, results, least::<T>(), task.par.threads());
    let row = |offset, range| match MAX {
        true => vectorize(|| one_row::<T, W, Max<T, W, T>, MAX>(&task.reduced, input, offset, range)),
        false => vectorize(|| one_row::<T, W, Min<T, W, T>, MAX>(&task.reduced, input, offset, range)),
    };
    if chunk >= count {
        in_parts(results, (least::<T>() / count).max(1), task.par, &|part| {
            task.kept.each(part, |_, [at, offset]| {
                // SAFETY: `at` is an index of the output.
                unsafe { output.at(at).write(row(offset, 0..count).1 as i64) };
            });
        });
        return;
    }
    let chunks = count.div_ceil(chunk);
    let mut partials = vec![(W::ZERO, 0); results * chunks];
    let to = Shared::<Best<W>>::new(partials.as_mut_ptr());
    task.par.run(results * chunks, &|i| {
        let first = (i % chunks) * chunk;
        let best = row(task.kept.at(i / chunks)[1], first..(first + chunk).min(count));
        // SAFETY: each part writes its own.
        unsafe { to.at(i as isize).write(best) };
    });
    task.kept.each(0..results, |p, [at, _]| {
        let best = first_best::<W, MAX>(partials[p * chunks..(p + 1) * chunks].iter().copied());
        // SAFETY: `at` is an index of the output.
        unsafe { output.at(at).write(best) };
    });
}

/// The best of the elements `range` of one result. There is one.
#[inline(always)]
fn one_row<T: Load<W>, W: Wide, F: Fold<In = T, Acc = W>, const MAX: bool>(
    reduced: &Nest<1>,
    input: Input<'_, T>,
    offset: isize,
    range: Range<usize>,
) -> Best<W> {
    let mut best: Option<Best<W>> = None;
    tiles(reduced, input, offset, range.clone(), |first, tile| {
        for (i, block) in tile.chunks(BLOCK).enumerate() {
            let value = fold_block::<F>(block);
            if best.is_none_or(|(b, _)| beats::<W, MAX>(value, b)) {
                best = Some((value, first + i * BLOCK));
            }
        }
    });
    let (value, first) = best.unwrap_or((W::ZERO, range.start));
    let mut at = first;
    tiles(reduced, input, offset, first..(first + BLOCK).min(range.end), |_, block| {
        let is_it = |x: &T| x.load() == value || value.is_nan() && x.load().is_nan();
        at = first + block.iter().position(is_it).unwrap_or(0);
    });
    (value, at)
}

/// Results that are looked at side by side.
const WIDTH: usize = 1024;

fn columns<T: Load<W>, W: Wide, const MAX: bool>(task: &Task<'_>, column: usize) {
    let mut outer = task.kept.clone();
    let along = outer.dims.remove(column);
    let cuts = along.size.div_ceil(WIDTH);
    let units = outer.numel() * cuts;
    let (input, output, count) = (task.input::<T>(), task.output.cast::<i64>(), task.count);
    let width = along.size.div_ceil(cuts);
    let strip = |unit: usize| {
        let ([at, offset], cut) = (outer.at(unit / cuts), slice_of(along.size, cuts, unit % cuts));
        (at + cut.start as isize * along.step[0], offset + cut.start as isize, cut.len())
    };
    let chunk = chunk_of(count, units, least::<T>() / width, task.par.threads());
    let chunks = count.div_ceil(chunk);
    let mut partials = vec![(W::ZERO, 0u32); if chunks == 1 { 0 } else { units * chunks * width }];
    let to = Shared::<(W, u32)>::new(partials.as_mut_ptr());
    let part = |range: Range<usize>| {
        let (mut values, mut places) = (vec![W::ZERO; width], vec![0u32; width]);
        let mut evaluated = Vec::<T>::with_capacity(if input.read.is_some() { width } else { 0 });
        for i in range {
            let (at, offset, n) = strip(i / chunks);
            let first = (i % chunks) * chunk;
            let rows = first..(first + chunk).min(count);
            vectorize(|| {
                task.reduced.each(rows, |r, [row]| {
                    // SAFETY: `n` elements of the input, for which there is room.
                    let row = unsafe {
                        std::slice::from_raw_parts(input.run(offset + row, n, evaluated.as_mut_ptr()), n)
                    };
                    let (values, places) = (&mut values[..n], &mut places[..n]);
                    for ((&x, value), place) in row.iter().zip(values).zip(places) {
                        let x = x.load();
                        let better = (r == first) | beats::<W, MAX>(x, *value);
                        *value = if better { x } else { *value };
                        *place = if better { r as u32 } else { *place };
                    }
                });
            });
            for w in 0..n {
                // SAFETY: an index of the output, or this part's own place among the partial results.
                unsafe {
                    match chunks {
                        1 => output.at(at + w as isize * along.step[0]).write(places[w] as i64),
                        _ => to.at((i * width + w) as isize).write((values[w], places[w])),
                    }
                }
            }
        }
    };
    if chunks == 1 {
        in_parts(units, (least::<T>() / (width * count)).max(1), task.par, &part);
        return;
    }
    task.par.run(units * chunks, &|i| part(i..i + 1));
    for unit in 0..units {
        let (at, _, n) = strip(unit);
        for w in 0..n {
            let of = |c: usize| partials[(unit * chunks + c) * width + w];
            let best = first_best::<W, MAX>((0..chunks).map(|c| (of(c).0, of(c).1 as usize)));
            // SAFETY: an index of the output.
            unsafe { output.at(at + w as isize * along.step[0]).write(best) };
        }
    }
}
