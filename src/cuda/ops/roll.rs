//! `roll` on CUDA.

use super::{OnCuda, operand};
use crate::cuda::kernels::{Operand, copy};
use crate::graph::device_run::{CudaRun, CudaView};
use crate::graph::operation::Refusal;
use crate::ops::shaping::roll::Roll;
use crate::shape::contiguous_strides;
use smallvec::SmallVec;

/// Shifted around along dimensions: a copy for each of the parts that stay together.
fn roll(cuda: &mut CudaRun<'_>, shifts: &[(usize, i64)]) -> Result<(), Refusal> {
    let (x, out) = (cuda.inputs()[0], cuda.output());
    if out.numel() == 0 {
        return Ok(());
    }
    // How far each dimension moves, towards higher places.
    let mut moves: SmallVec<[usize; 8]> = SmallVec::from_elem(0, x.shape.len());
    for &(dim, by) in shifts {
        let n = x.shape[dim] as i64;
        moves[dim] = (moves[dim] as i64 + by.rem_euclid(n)).rem_euclid(n) as usize;
    }
    let rolled: SmallVec<[usize; 8]> = (0..moves.len()).filter(|&d| moves[d] > 0).collect();
    let to = contiguous_strides(out.shape);
    for part in 0..1usize << rolled.len() {
        let mut shape: SmallVec<[usize; 8]> = SmallVec::from_slice(x.shape);
        let (mut from, mut at) = (0isize, 0isize);
        for (bit, &d) in rolled.iter().enumerate() {
            let (n, by) = (x.shape[d], moves[d]);
            // The head moves up by `by`; the last `by` come to the front.
            if part >> bit & 1 == 0 {
                shape[d] = n - by;
                at += by as isize * to[d];
            } else {
                shape[d] = by;
                from += (n - by) as isize * x.strides[d];
            }
        }
        let size = x.dtype.size();
        let ptr = x.ptr.wrapping_add_signed((from * size as isize) as i64);
        let view = CudaView { ptr, shape: &shape, ..x };
        let place = Operand::at(out.ptr, &to);
        let plan = copy::plan(size, &shape, operand(&view), place, at as usize * size);
        super::run(cuda, plan, &[view], &[out])?;
    }
    Ok(())
}

impl OnCuda for Roll {
    fn queue(&self, run: &mut CudaRun<'_>) -> Result<(), Refusal> {
        let rank = run.inputs()[0].shape().len();
        roll(run, &self.of_rank(rank))
    }
}
