//! Products with quantised weights and with halves, their rows, and quantising.
//!
//! Called by the ops of `ops/quantized`, which have checked shapes and types. A weight lies in
//! panels of sixteen rows ([`format`](crate::format)); activations are quantised to 8 bits a block
//! of 32, each row by itself; beside halves they stay as they are. Few rows take the time in which
//! the weight comes from memory: it is read once for all of them. Of many, a few rows at a time
//! meet a panel, which stays in cache.
//!
//! **Results.** The bits of a row depend on that row alone: not on how many others there are, nor
//! on threads, nor on the instruction set (see [`panel`]).

mod lanes;
mod panel;
#[cfg(test)]
mod tests;
mod words;

use self::lanes::{Lanes, Plain};
use self::panel::{Activations, Elements, Kind, Q2K, Q4_0, Q4_1, Q4K, Q5K, Q6K, Q8_0};
use super::index::OutOfRange;
use super::isa::{Levelled, at_level};
use super::nest::{Shared, in_parts};
use super::simd::Simd;
#[cfg(target_arch = "x86_64")]
use super::simd::{Level, level};
use crate::dtype::Element;
use crate::format::{Format, Packing, ROWS, dequantize_block, quantize_block};
use crate::room;
use crate::sync::threads::thread_local;
use crate::view::{Parallel, View, ViewMut};
use half::{bf16, f16};
use std::cell::Cell;
use std::ops::Range;

/// Columns that share a scale of activations.
const BLOCK: usize = 32;

/// Bytes of a weight below which a second thread costs more than it brings, with one row.
const PART: usize = 64 << 10;

/// What a thread multiplies in the time in which it reads a byte of a weight.
const PRODUCTS_A_BYTE: usize = 8;

/// What a row is quantised to. NaN and infinities make the block's scale NaN or infinite.
struct QuantizeRow<'a> {
    x: &'a [f32],
    to: &'a mut [Activations],
}

// No closure: those of the levels, being alike, became one function that had the instructions of
// none.
impl Levelled for QuantizeRow<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        /// Halfway between the numbers whose unit in the last place is 1: adding it rounds, halves
        /// to even, and the low byte of the sum is the number's.
        const ROUND: f32 = 12_582_912.0;
        for (x, to) in self.x.as_chunks::<BLOCK>().0.iter().zip(self.to) {
            // As integers: of NaN, the largest.
            let most = x.iter().fold(0u32, |m, x| m.max(x.to_bits() & 0x7fff_ffff));
            let most = f32::from_bits(most);
            // So small that its reciprocal has no number, it counts as zero.
            let id = if most < 127.0 * f32::MIN_POSITIVE { 0.0 } else { 127.0 / most };
            let mut q = [0i8; BLOCK];
            for i in 0..BLOCK {
                q[i] = (x[i] * id + ROUND).to_bits() as i8;
            }
            let sum = |q: &[i8]| q.iter().map(|&q| q as i32).sum::<i32>() as f32;
            (to.low, to.high) = (sum(&q[..16]), sum(&q[16..]));
            to.q = q;
            to.sum = to.low + to.high;
            to.d = if id == 0.0 { if most.is_finite() { 0.0 } else { most } } else { most / 127.0 };
        }
    }
}

thread_local! {
    /// Of the last product that this thread led: as large as it ever was.
    static QUANTIZED: Cell<Vec<Activations>> = const { Cell::new(Vec::new()) };
}

/// `x w^T`: `x` is `[rows.., columns]` of float32, `weight` the bytes of a packed weight.
pub(crate) fn linear(
    x: View<'_>,
    weight: View<'_>,
    packing: Packing,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    if out.numel() == 0 {
        return;
    }
    let copy;
    let x = match x.as_slice::<f32>() {
        Some(x) => x,
        None => {
            copy = x.to_vec::<f32>().expect("float32, as the op has checked");
            &copy[..]
        }
    };
    let rows = out.numel() / packing.rows;
    with_activations(x, packing, par, |activations| {
        let (panels, out) = (Shared::new(weight.ptr.cast_mut()), Shared::new(out.ptr));
        let product = Product { packing, panels, activations, rows, out, places: None };
        in_parts(packing.rows.div_ceil(ROWS), least(packing, rows), par, &|panels| {
            product.run(panels);
        });
    });
}

/// Panels that are worth a thread, by so many rows.
fn least(packing: Packing, rows: usize) -> usize {
    let panel = packing.panel_bytes() + rows * packing.columns * ROWS / PRODUCTS_A_BYTE;
    (PART / panel.max(1)).max(1)
}

/// Lends rows as the format meets them.
fn with_activations(
    x: &[f32],
    packing: Packing,
    par: &dyn Parallel,
    multiply: impl FnOnce(Shared<u8>),
) {
    if packing.format.dtype().is_some() {
        return multiply(Shared::new(x.as_ptr().cast_mut()));
    }
    let (rows, blocks) = (x.len() / packing.columns.max(1), packing.columns / BLOCK);
    let mut lent = QUANTIZED.take();
    let nothing = Activations { q: [0; BLOCK], d: 0.0, sum: 0.0, low: 0.0, high: 0.0 };
    room::at_least(&mut lent, rows * blocks, nothing);
    let to = Shared::<Activations>::new(lent.as_mut_ptr());
    in_parts(rows, (32 << 10) / packing.columns.max(1), par, &|part| {
        let at = |row: usize| row * packing.columns;
        // SAFETY: these rows' activations, which no other part writes.
        let to = unsafe {
            std::slice::from_raw_parts_mut(
                to.at((part.start * blocks) as isize),
                part.len() * blocks,
            )
        };
        at_level(QuantizeRow { x: &x[at(part.start)..at(part.end)], to });
    });
    multiply(Shared::new(lent.as_mut_ptr()));
    QUANTIZED.set(lent);
}

/// Row `i` of `x` `[rows, columns]` by the matrix that `which[i]` names, of `groups` equal ones of
/// whole panels in a weight. The rows of a matrix meet it together: it is read once for all.
pub(crate) fn grouped(
    x: View<'_>,
    weight: View<'_>,
    which: View<'_>,
    (packing, groups): (Packing, usize),
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) -> Result<(), OutOfRange> {
    let which = super::index::places(which, groups)?;
    if out.numel() == 0 {
        return Ok(());
    }
    let columns = packing.columns;
    let mut order: Vec<usize> = room::with_capacity(which.len());
    order.extend(0..which.len());
    order.sort_unstable_by_key(|&row| (which[row], row));
    let given = x.to_vec::<f32>().expect("float32, as the op has checked");
    let mut x: Vec<f32> = room::with_capacity(given.len());
    order.iter().for_each(|&row| x.extend(&given[row * columns..][..columns]));
    let groups: Vec<&[usize]> = order.chunk_by(|&a, &b| which[a] == which[b]).collect();
    let panels = packing.rows / ROWS;
    with_activations(&x, packing, par, |activations| {
        let row = if packing.format.dtype().is_some() {
            columns * size_of::<f32>()
        } else {
            columns / BLOCK * size_of::<Activations>()
        };
        let firsts: Vec<usize> = groups
            .iter()
            .scan(0, |first, group| Some(std::mem::replace(first, *first + group.len())))
            .collect();
        let (weight, out) = (Shared::<u8>::new(weight.ptr.cast_mut()), Shared::new(out.ptr));
        let least = least(packing, which.len().div_ceil(groups.len()));
        in_parts(groups.len() * panels, least, par, &|units| {
            let mut unit = units.start;
            while unit < units.end {
                let (at, from) = (unit / panels, unit % panels);
                let to = panels.min(from + units.end - unit);
                let (group, matrix) = (groups[at], which[groups[at][0]]);
                let product = Product {
                    packing,
                    panels: Shared::new(weight.at((matrix * packing.bytes()) as isize)),
                    activations: Shared::new(activations.at((firsts[at] * row) as isize)),
                    rows: group.len(),
                    out,
                    places: Some(group),
                };
                product.run(from..to);
                unit += to - from;
            }
        });
    });
    Ok(())
}

/// One product, as its parts see it.
struct Product<'a> {
    packing: Packing,
    panels: Shared<u8>,
    /// As the format has them.
    activations: Shared<u8>,
    rows: usize,
    out: Shared<f32>,
    /// Which of the result's rows they make, if not the first ones.
    places: Option<&'a [usize]>,
}

impl Product<'_> {
    fn run(&self, panels: Range<usize>) {
        match self.packing.format {
            Format::Q8_0 => self.of::<Q8_0>(panels),
            Format::Q4_0 => self.of::<Q4_0>(panels),
            Format::Q4_1 => self.of::<Q4_1>(panels),
            Format::Q4_K => self.of::<Q4K>(panels),
            Format::Q5_K => self.of::<Q5K>(panels),
            Format::Q6_K => self.of::<Q6K>(panels),
            Format::Q2_K => self.of::<Q2K>(panels),
            Format::F16 => self.of::<Elements<f16>>(panels),
            Format::BF16 => self.of::<Elements<bf16>>(panels),
            Format::F32 => self.of::<Elements<f32>>(panels),
        }
    }

    fn of<K: Kind>(&self, panels: Range<usize>) {
        debug_assert_eq!(K::FORMAT, self.packing.format);
        // SAFETY: in each, the machine has the instructions, as was asked.
        #[cfg(target_arch = "x86_64")]
        match level() {
            Level::Avx512 if is_x86_feature_detected!("avx512vnni") => {
                return unsafe { on_vnni::<K>(self, panels) };
            }
            Level::Avx512 | Level::Avx2 => return unsafe { on_avx2::<K>(self, panels) },
            Level::Baseline => {}
        }
        on_baseline::<K>(self, panels);
    }

    /// # Safety
    /// As [`Lanes`] says.
    #[inline(always)]
    unsafe fn with<L: Lanes, K: Kind>(&self, panels: Range<usize>) {
        for panel in panels {
            let mut row = 0;
            // SAFETY: by the caller's promise; rows below all of them.
            unsafe {
                if L::MANY == 8 {
                    while row + 8 <= self.rows {
                        self.some::<L, K, 8>(panel, row);
                        row += 8;
                    }
                }
                while row + 4 <= self.rows {
                    self.some::<L, K, 4>(panel, row);
                    row += 4;
                }
                while row < self.rows {
                    self.some::<L, K, 1>(panel, row);
                    row += 1;
                }
            }
        }
    }

    /// A panel by `R` rows from `first` on.
    ///
    /// # Safety
    /// As [`Lanes`] says; there are so many rows.
    #[inline(always)]
    unsafe fn some<L: Lanes, K: Kind, const R: usize>(&self, panel: usize, first: usize) {
        let (n, a_row, tile) =
            (self.packing.rows, self.packing.columns / BLOCK, ROWS * K::FORMAT.block_bytes());
        let mut weights: *const u8 = self.panels.at((panel * self.packing.panel_bytes()) as isize);
        let mut rows = [std::ptr::null::<K::X>(); R];
        for r in 0..R {
            rows[r] = self.activations.at(0).cast::<K::X>().wrapping_add((first + r) * a_row);
        }
        // SAFETY: by the caller's promise; the weight has all its panels and activations all rows.
        // The results of this panel are this part's own.
        unsafe {
            let mut sums = [L::splat_float(0.0); R];
            for _ in 0..self.packing.blocks() {
                K::tile::<L, R>(weights, rows, &mut sums);
                weights = weights.add(tile);
                for row in &mut rows {
                    *row = row.add(K::FORMAT.block() / BLOCK);
                }
            }
            let wide = ROWS.min(n - panel * ROWS);
            for (r, &sums) in sums.iter().enumerate() {
                let row = self.places.map_or(first + r, |places| places[first + r]);
                let to = self.out.at((row * n + panel * ROWS) as isize);
                if wide == ROWS {
                    L::store(to, sums);
                } else {
                    let mut line = [0f32; ROWS];
                    L::store(line.as_mut_ptr(), sums);
                    std::ptr::copy_nonoverlapping(line.as_ptr(), to, wide);
                }
            }
        }
    }
}

#[inline(never)]
fn on_baseline<K: Kind>(product: &Product<'_>, panels: Range<usize>) {
    // SAFETY: it needs no instructions of its own.
    unsafe { product.with::<Plain, K>(panels) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
unsafe fn on_avx2<K: Kind>(product: &Product<'_>, panels: Range<usize>) {
    // SAFETY: this function has the instructions.
    unsafe { product.with::<lanes::Avx2, K>(panels) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,bmi2,avx512f,avx512dq,avx512bw,avx512vl,avx512vnni")]
unsafe fn on_vnni<K: Kind>(product: &Product<'_>, panels: Range<usize>) {
    // SAFETY: as above.
    unsafe { product.with::<lanes::Vnni, K>(panels) }
}

/// The bytes of a packed weight. It may be a view, which lies without gaps all the same.
fn panels<'a>(weight: View<'a>) -> &'a [u8] {
    weight.as_slice::<u8>().expect("the bytes of a weight, as the op has checked")
}

/// A row's weights from block `first` on.
fn dequantize(panels: &[u8], packing: Packing, row: usize, to: &mut [f32]) {
    let mut block = [0u8; 210];
    let block = &mut block[..packing.format.block_bytes()];
    for (i, to) in to.chunks_exact_mut(packing.format.block()).enumerate() {
        packing.unpack_block(panels, row, i, block);
        dequantize_block(packing.format, block, to);
    }
}

/// Rows of a weight in float32, by index.
pub(crate) fn embedding(
    weight: View<'_>,
    index: View<'_>,
    packing: Packing,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) -> Result<(), OutOfRange> {
    let index = super::index::places(index, packing.rows)?;
    rows(weight, packing, out, par, &|i| index[i]);
    Ok(())
}

/// The whole weight in float32.
pub(crate) fn dequantized(
    weight: View<'_>,
    packing: Packing,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    rows(weight, packing, out, par, &|i| i);
}

fn rows(
    weight: View<'_>,
    packing: Packing,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
    which: &(dyn Fn(usize) -> usize + Sync),
) {
    if out.numel() == 0 {
        return;
    }
    let (panels, to) = (panels(weight), Shared::<f32>::new(out.ptr));
    let columns = packing.columns;
    in_parts(out.numel() / columns, (16 << 10) / columns, par, &|part| {
        for i in part {
            // SAFETY: a row of the result, which this part alone writes.
            let to =
                unsafe { std::slice::from_raw_parts_mut(to.at((i * columns) as isize), columns) };
            dequantize(panels, packing, which(i), to);
        }
    });
}

/// A matrix as a packed weight: of float32, or of the halves that it is to be.
pub(crate) fn quantize(x: View<'_>, packing: Packing, out: &ViewMut<'_>, par: &dyn Parallel) {
    fn copy<T: Copy, const N: usize>(bytes: fn(T) -> [u8; N]) -> impl Fn(&[T], &mut [u8]) {
        move |x, to| to.as_chunks_mut().0.iter_mut().zip(x).for_each(|(to, &x)| *to = bytes(x))
    }
    match packing.format {
        Format::F16 => pack(x, packing, out, par, copy(f16::to_le_bytes)),
        Format::BF16 => pack(x, packing, out, par, copy(bf16::to_le_bytes)),
        Format::F32 => pack(x, packing, out, par, copy(f32::to_le_bytes)),
        format => pack(x, packing, out, par, |x, to| quantize_block(format, x, to)),
    }
}

fn pack<T: Element>(
    x: View<'_>,
    packing: Packing,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
    write: impl Fn(&[T], &mut [u8]) + Sync,
) {
    if out.numel() == 0 {
        return;
    }
    let (block, size) = (packing.format.block(), packing.format.block_bytes());
    let x = x.to_vec::<T>().expect("of this type, as the op has checked");
    let to = Shared::<u8>::new(out.ptr);
    in_parts(
        packing.rows.div_ceil(ROWS),
        (16 << 10) / (ROWS * packing.columns.max(1)),
        par,
        &|part| {
            for panel in part {
                let some = panel * ROWS..packing.rows.min((panel + 1) * ROWS);
                let mut blocks = room::filled(some.len() * packing.row_bytes(), 0u8);
                let x = &x[some.start * packing.columns..some.end * packing.columns];
                for (x, to) in x.chunks_exact(block).zip(blocks.chunks_exact_mut(size)) {
                    write(x, to);
                }
                let size = packing.panel_bytes();
                // SAFETY: this panel, which no other part writes.
                let to = unsafe {
                    let to = to.at((panel * size) as isize);
                    to.write_bytes(0, size);
                    std::slice::from_raw_parts_mut(to, size)
                };
                packing.pack(&blocks, to);
            }
        },
    );
}
