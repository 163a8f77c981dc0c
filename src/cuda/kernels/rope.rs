//! Pairs of numbers turned by angles: a thread a pair.

use super::generate::{computed, storage};
use super::geometry::{Geometry, RANK_MAX};
use super::source::{KernelSource, Part};
use super::{Arg, Kernel, Launch, Plan, grid};
use crate::dtype::DType;
use smallvec::smallvec;

/// Names a compiled kernel, of this type.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Key(pub DType);

/// The launch for a value and its two tables, by the shape and the strides that they have. `None`
/// where more than eight dimensions are left after merging, or there are more pairs than a grid has
/// threads.
pub(crate) fn plan(
    dtype: DType,
    shape: &[usize],
    strides: [&[isize]; 3],
    interleaved: bool,
) -> Option<Plan> {
    let mut plan = Plan::default();
    let lead = shape.len() - 1;
    let half = shape[lead] / 2;
    // From one of a pair to the other, and to the next pair.
    let (apart, next) = if interleaved { (1, 2) } else { (half, 1) };
    let (mut pairs, mut x) = (shape.to_vec(), strides[0].to_vec());
    let step = x[lead];
    pairs[lead] = half;
    x[lead] *= next as isize;
    let g = Geometry::new(&pairs, &[&x, strides[1], strides[2]]);
    let n = g.numel();
    if g.rank() > RANK_MAX || n.div_ceil(256) > i32::MAX as usize {
        return None;
    }
    if n == 0 {
        return Some(plan);
    }
    let [n64, half, next, away, apart] =
        [n as u64, half as u64, next as u64, (apart as isize * step) as u64, apart as u64]
            .map(Arg::U64);
    let [x, cosine, sine] = [0, 1, 2].map(|index| Arg::In { index, bytes: 0 });
    plan.launches.push(Launch {
        kernel: Kernel::Rope(Key(dtype)),
        grid: grid(n.div_ceil(256), 1, 1),
        block: [256, 1, 1],
        shared: 0,
        args: smallvec![
            x,
            cosine,
            sine,
            Arg::Out { index: 0, bytes: 0 },
            n64,
            half,
            next,
            away,
            apart,
            g.arg(true)
        ],
    });
    Some(plan)
}

impl Key {
    /// The kernel as CUDA C.
    pub fn source(&self) -> KernelSource {
        let (t, c) = (storage(self.0), computed(self.0));
        let params = [
            format!("const {t}* x, const {c}* cosine, const {c}* sine, {t}* out"),
            "u64 n, u64 half, u64 next, i64 away, u64 apart, ft::Geo64<3> geo".into(),
        ];
        let code = format!(
            "    const u64 i = (u64)blockIdx.x * 256 + threadIdx.x;\n    if (i >= n) return;\n    \
             i64 off[3];\n    \
             ft::offsets<3, ft::Geo64>(geo, i, off);\n    \
             const {c} a = ft::load(x[off[0]]), b = ft::load(x[off[0] + away]);\n    \
             const {c} c = cosine[off[1]], s = sine[off[2]];\n    \
             out += i / half * 2 * half + i % half * next;\n    \
             out[0] = ft::As<{t}>::of(a * c - b * s);\n    \
             out[apart] = ft::As<{t}>::of(a * s + b * c);\n"
        );
        KernelSource::new("rope", &[Part::Base], 256, &params, &code)
    }
}
