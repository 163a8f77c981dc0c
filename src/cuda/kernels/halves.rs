//! Products with weights that are halves, in tensor cores: see `device/halves.cuh`.
//!
//! Each row is first cut into halves, in scratch memory. Then up to 16 rows meet a panel of weights
//! a block, whose warps share the columns, so that one row has as many blocks as 16 rows; up to 64
//! meet two panels, and more than that eight. The order of a sum is the same in all of them: a
//! row's bits do not depend on the number of rows.
//!
//! Of the machine code for sm_90 a product of 16 x 8 x 16 costs 5 other instructions in the widest
//! tiles, and in plain arithmetic, for the bits of a CPU, some 4,600. Nothing of it was timed.

use super::generate::storage;
use super::quantized::{self, OUT, input};
use super::source::{KernelSource, Part};
use super::{Arg, GRID_YZ_MAX, Kernel, Launch, Plan, grid};
use crate::dtype::DType;
use crate::format::{Packing, ROWS};
use smallvec::smallvec;

/// Most rows that one block takes, its warps beside each other over the columns.
const FEW: usize = 16;
/// Rows of a block of tiles.
const TILE: usize = 64;

/// How a GPU multiplies with half weights (a [`Quantized`] in F16 or BF16). The bits of a row do
/// not depend on the other rows, whichever is chosen. [`Quantized::grouped_linear`] is always
/// [`Exact`](HalfProducts::Exact). Products of dense tensors are cuBLAS's, which promises no such
/// thing.
///
/// ```
/// use futensor::{Device, cuda::{CudaOptions, HalfProducts}};
/// let options = CudaOptions::default().half_products(HalfProducts::Rounded);
/// assert!(Device::cuda_with(99, options).is_err());
/// assert_eq!(HalfProducts::default(), HalfProducts::Split);
/// ```
///
/// [`Quantized`]: crate::quant::Quantized
/// [`Quantized::grouped_linear`]: crate::quant::Quantized::grouped_linear
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum HalfProducts {
    /// On tensor cores. An activation is the sum of two halves: 16 of its bits count beside
    /// bfloat16, 22 beside float16. With `n` inputs, a result is within `2^-16 + n 2^-23` (beside
    /// float16 `2^-22 + n 2^-23`) of the exact one, relative to the sum of its products'
    /// magnitudes. Beside float16, what is below `2^-39` of the largest activation in its row does
    /// not count.
    #[default]
    Split,
    /// On tensor cores. Activations are rounded to the weights' type, as PyTorch does: a result is
    /// within `2^-8 + n 2^-23` (beside float16 `2^-11 + n 2^-23`). Half of the products of `Split`.
    Rounded,
    /// The bits of a CPU: activations are float32, and no tensor cores are used. Slow for many
    /// rows.
    Exact,
}

/// Names a compiled kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Key {
    pub dtype: DType,
    /// Halves that an activation is the sum of.
    pub pieces: u8,
    pub work: Work,
}

/// What a kernel does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Work {
    Cut,
    Few,
    /// By so many panels.
    Tiles(u8),
}

/// `x w^T` for so many rows that lie without gaps, by halves packed so.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Product {
    pub packing: Packing,
    pub rows: usize,
}

/// The launches of a product. `None` where there are more than four million rows, or other weights.
pub(crate) fn plan(product: Product, how: HalfProducts) -> Option<Plan> {
    let Product { packing, rows } = product;
    let dtype = packing.format.dtype()?;
    let pieces = match how {
        _ if dtype == DType::F32 => return quantized::plan(packing, rows),
        HalfProducts::Split => 2,
        HalfProducts::Rounded => 1,
        HalfProducts::Exact => return quantized::plan(packing, rows),
    };
    let mut plan = Plan::default();
    if rows * packing.rows == 0 {
        return Some(plan);
    }
    let (panels, filled) = (packing.rows.div_ceil(ROWS), rows.next_multiple_of(16));
    let (work, high, wide) = match rows {
        1..=FEW => (Work::Few, FEW, 1),
        ..=TILE => (Work::Tiles(2), TILE, 2),
        _ => (Work::Tiles(8), TILE, 8),
    };
    if rows.div_ceil(high) > GRID_YZ_MAX {
        return None;
    }
    // The halves, and what each row is to be multiplied by.
    let bytes = (filled * packing.columns * 2 * pieces as usize).next_multiple_of(256);
    plan.scratch = bytes + 4 * rows;
    let (halves, by) = (Arg::Scratch(0), Arg::Scratch(bytes));
    let [count, n, panel] = [rows, packing.rows, packing.panel_bytes()].map(|n| Arg::U64(n as u64));
    let blocks = Arg::U32((packing.columns / 32) as u32);
    let launch = |work, [x, y]: [usize; 2], args| Launch {
        kernel: Kernel::Halves(Key { dtype, pieces, work }),
        grid: grid(x, y, 1),
        block: [256, 1, 1],
        shared: 0,
        args,
    };
    let cut = smallvec![input(0), halves.clone(), by.clone(), count.clone(), blocks.clone()];
    plan.launches.push(launch(Work::Cut, [filled, 1], cut));
    let args = smallvec![input(1), halves, by, OUT, count, n, blocks, panel];
    plan.launches.push(launch(work, [panels.div_ceil(wide), rows.div_ceil(high)], args));
    Some(plan)
}

impl Key {
    /// The kernel as CUDA C.
    pub fn source(&self) -> KernelSource {
        const PARTS: &[Part] = &[Part::Base, Part::Tensor, Part::Halves];
        let (t, pieces) = (storage(self.dtype), self.pieces);
        let name = match self.work {
            Work::Cut => {
                let params = "const float* x, u32* out, float* by, u64 rows, u32 blocks";
                let code =
                    format!("    ft::pieces_of_rows<{t}, {pieces}>(x, out, by, rows, blocks);\n");
                return KernelSource::new("halves_cut", PARTS, 256, &[params.into()], &code);
            }
            Work::Few => format!("by_few<{t}, {pieces}>"),
            // Warps below each other, and for each so many times 16 rows by so many panels.
            Work::Tiles(2) => format!("by_tiles<{t}, {pieces}, 4, 1, 1>"),
            Work::Tiles(_) => format!("by_tiles<{t}, {pieces}, 2, 2, 2>"),
        };
        let params = "const u8* w, const ft::Fragment* x, const float* by, float* out, u64 rows, \
                      u64 n, u32 blocks, u64 bytes";
        let code = format!("    ft::halves_{name}(w, x, by, out, rows, n, blocks, bytes);\n");
        KernelSource::new("halves", PARTS, 256, &[params.into()], &code).with_blocks(256, 2)
    }
}
