//! Matrix products that the vendor's library does not take: integers, and strides it cannot
//! express.
//!
//! One kernel a type, any strides, batches that broadcast. `cuda/device/launch/product` asks the
//! library first.

use super::generate::storage;
use super::geometry::{Geometry, RANK_MAX};
use super::source::{KernelSource, Part};
use super::{Arg, GRID_YZ_MAX, Kernel, Launch, Plan, grid};
use crate::dtype::DType;
use crate::shape::{Shape, Strides};
use smallvec::smallvec;

/// Rows and columns of the result that a block computes.
const TILE: usize = 64;

/// Names a compiled kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Key {
    pub dtype: DType,
    /// The result's.
    pub to: DType,
}

/// A product as an op asks for it: `out[batch.., m, n] = a[batch.., m, k] b[batch.., k, n]`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Product {
    pub dtype: DType,
    /// The result's type: the operands', or of halves the one that their sums are kept in.
    pub to: DType,
    pub batch: Shape,
    pub m: usize,
    pub k: usize,
    pub n: usize,
    /// Strides over the batch (0 where it repeats), then over the matrix.
    pub a: Strides,
    pub b: Strides,
    /// The result is added to the output's old value, before it is rounded.
    pub adds: bool,
}

impl Product {
    /// The launches of our own kernel, which adds to nothing; see [`plan`].
    pub fn plan(&self) -> Option<Plan> {
        plan([self.dtype, self.to], &self.batch, [self.m, self.k, self.n], &self.a, &self.b)
    }
}

/// The launches of `out[batch.., m, n] = a[batch.., m, k] b[batch.., k, n]`. `a` and `b` are
/// strides over `batch` (0 where they repeat) and then over their matrix; the output is contiguous.
/// `None` where more than eight batch dimensions are left after merging, or m is above 4 million.
pub(crate) fn plan(
    [dtype, to]: [DType; 2],
    batch: &[usize],
    [m, k, n]: [usize; 3],
    a: &[isize],
    b: &[isize],
) -> Option<Plan> {
    let mut plan = Plan::default();
    let g = Geometry::new(batch, &[&a[..batch.len()], &b[..batch.len()]]);
    if g.rank() > RANK_MAX || m.div_ceil(TILE) > GRID_YZ_MAX {
        return None;
    }
    let batches = g.numel();
    if batches * m * n == 0 {
        return Some(plan);
    }
    let [am, ak] = [a[batch.len()], a[batch.len() + 1]];
    let [bk, bn] = [b[batch.len()], b[batch.len() + 1]];
    for first in (0..batches).step_by(GRID_YZ_MAX) {
        let mut args = smallvec![
            Arg::In { index: 0, bytes: 0 },
            Arg::In { index: 1, bytes: 0 },
            Arg::Out { index: 0, bytes: 0 },
            Arg::U64(first as u64),
        ];
        args.extend([m as i64, n as i64, k as i64].map(|x| Arg::U64(x as u64)));
        args.extend([am, ak, bk, bn].map(|x| Arg::U64(x as u64)));
        args.push(g.arg(true));
        plan.launches.push(Launch {
            kernel: Kernel::Matmul(Key { dtype, to }),
            grid: grid(n.div_ceil(TILE), m.div_ceil(TILE), (batches - first).min(GRID_YZ_MAX)),
            block: [256, 1, 1],
            shared: 0,
            args,
        });
    }
    Some(plan)
}

impl Key {
    /// The kernel as CUDA C.
    pub fn source(&self) -> KernelSource {
        let (t, to) = (storage(self.dtype), storage(self.to));
        let params = [
            format!("const {t}* a"),
            format!("const {t}* b"),
            format!("{to}* out"),
            "u64 first, i64 m, i64 n, i64 k, i64 am, i64 ak, i64 bk, i64 bn, ft::Geo64<2> batches"
                .into(),
        ];
        let code = format!(
            "    ft::matmul_tile<{t}, {to}, ft::Geo64>(a, b, out, first, m, n, k, am, ak, bk, bn, \
             batches);\n"
        );
        KernelSource::new("matmul", &[Part::Base, Part::Ops, Part::Matmul], 256, &params, &code)
    }
}
