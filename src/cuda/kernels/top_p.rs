//! The largest weights of rows that together have a share: a block a row. See `device/top_p.cuh`.

use super::generate::storage;
use super::geometry::{Geometry, RANK_MAX};
use super::source::{KernelSource, Part};
use super::{Arg, Kernel, Launch, Plan, grid};
use crate::dtype::DType;
use smallvec::smallvec;

/// Names a compiled kernel, of this type.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Key(pub DType);

/// The launch for weights of a shape and the shares of their rows, by the strides of both. `None`
/// where more than eight dimensions are left after merging, or there are more rows than a grid has
/// blocks.
pub(crate) fn plan(dtype: DType, shape: &[usize], strides: [&[isize]; 2]) -> Option<Plan> {
    let mut plan = Plan::default();
    let lead = shape.len() - 1;
    let g = Geometry::new(&shape[..lead], &strides.map(|s| &s[..lead]));
    if g.rank() > RANK_MAX || g.numel() > i32::MAX as usize {
        return None;
    }
    if shape.contains(&0) {
        return Some(plan);
    }
    plan.launches.push(Launch {
        kernel: Kernel::TopP(Key(dtype)),
        grid: grid(g.numel(), 1, 1),
        block: [256, 1, 1],
        shared: 0,
        args: smallvec![
            Arg::In { index: 0, bytes: 0 },
            Arg::In { index: 1, bytes: 0 },
            Arg::Out { index: 0, bytes: 0 },
            Arg::U64(shape[lead] as u64),
            Arg::U64(strides[0][lead] as u64),
            g.arg(true)
        ],
    });
    Some(plan)
}

impl Key {
    /// The kernel as CUDA C.
    pub fn source(&self) -> KernelSource {
        let t = storage(self.0);
        let params = [format!(
            "const {t}* x, const double* shares, {t}* out, i64 n, i64 step, ft::Geo64<2> geo"
        )];
        let code = "    i64 off[2];\n    ft::offsets<2, ft::Geo64>(geo, blockIdx.x, off);\n    \
                    ft::top_p(x + off[0], n, step, shares[off[1]], out + blockIdx.x * n);\n";
        let parts = &[Part::Base, Part::Ops, Part::Scan, Part::TopP];
        KernelSource::new("top_p", parts, 256, &params, code).with_registers(256)
    }
}
