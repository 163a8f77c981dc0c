//! `scatter` and `scatter_reduce`: a value with a source's elements put at given indices, or
//! combined with what is there. (Sums are `scatter_add`'s.)

use crate::dtype::DType;
use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};
use crate::host::kernels::index;
use crate::op::ScatterMode;
use crate::ops::check::checked;
use crate::ops::check::{dim_of, indices, out_of_range, put_ns, with_zeros_beyond, within};
use crate::ops::order::others::others_of_place;
use crate::{Backward, TensorFuture};

/// Of `(value, index, source)`; where a place is named more than once, in the order of the indices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scatter {
    pub dim: isize,
    pub mode: ScatterMode,
    /// What it is a part of, as errors have it.
    pub name: &'static str,
}

impl Operation for Scatter {
    fn name(&self) -> &str {
        self.name
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        let (x, index, source) = (inputs[0], inputs[1], inputs[2]);
        indices(index)?;
        within(&index.shape, &x.shape, dim_of(&x.shape, self.dim)?)?;
        within(&index.shape, &source.shape, usize::MAX)?;
        if x.dtype != source.dtype {
            return Err(Refusal::dtype(format!("types differ: {} and {}", x.dtype, source.dtype)));
        }
        if x.dtype.is_storage() && self.mode != ScatterMode::Assign {
            return Err(Refusal::storage(x.dtype));
        }
        Ok(x.clone())
    }

    fn estimate_ns(&self, inputs: &[&Meta], _: &Meta) -> u64 {
        put_ns(inputs[0], inputs[1])
    }

    fn reuses(&self) -> Option<usize> {
        Some(0)
    }

    fn gradient_needs(&self, _: &[bool]) -> Needs {
        match self.mode {
            ScatterMode::Assign | ScatterMode::Sum => Needs::inputs(&[1]).as_they_are(),
            ScatterMode::Prod => Needs::inputs(&[0, 1, 2]),
            ScatterMode::Max | ScatterMode::Min => {
                Needs::inputs(&[0, 1, 2]).and_output().as_they_are()
            }
        }
    }

    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        call.give(0, |call| self.flow(call).0);
        call.give(2, |call| with_zeros_beyond(self.flow(call).1, &call.meta(2).shape));
        Ok(())
    }

    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let dim = checked(self.dim, run.output.shape.len());
        let [index, source] = [1, 2].map(|i| run.inputs[i]);
        index::scatter(dim, self.mode, false, index, source, &run.output, run.parallel)
            .map_err(out_of_range)
    }
}

impl Scatter {
    /// What flows to the value, and to the part of the source that was read. Only what is used of
    /// it is computed.
    fn flow(&self, call: &Backward<'_>) -> (TensorFuture, TensorFuture) {
        let Scatter { dim, mode, .. } = *self;
        let (g, index) = (call.upstream(), call.input(1));
        let picked = |x: &TensorFuture| x.gather(dim, index);
        let read = || {
            let part = |s: TensorFuture, d: usize| s.narrow(d as isize, 0, index.dims()[d]);
            (0..index.rank()).fold(call.input(2).clone(), part)
        };
        match mode {
            ScatterMode::Sum => (g.clone(), picked(g)),
            ScatterMode::Assign => {
                let device = g.device();
                // Of several that came to one place, the last one stayed.
                let own = device.arange(0, index.numel() as i64, 1).reshape(index.dims());
                let stayed = device.zeros_dtype(g.dims(), DType::I64).scatter(dim, index, &own);
                let nothing = device.zeros_dtype(index.dims(), g.dtype());
                (g.scatter(dim, index, nothing), picked(&stayed).eq(own).where_cond(picked(g), 0.0))
            }
            // Equals share.
            ScatterMode::Max | ScatterMode::Min => {
                let y = call.output();
                let (there, came) = (call.input(0).eq(y), read().eq(picked(y)));
                let g = g.wide();
                let count = |chosen: &TensorFuture| chosen.to_dtype(g.dtype());
                let share = g.div(count(&there).scatter_add(dim, index, count(&came)));
                // What became NaN is no reason for a gradient of zero.
                let rest = y.isnan().where_cond(y.stop_gradient(), 0.0);
                (there.where_cond(&share, &rest), came.where_cond(picked(&share), picked(&rest)))
            }
            ScatterMode::Prod if call.keeps_graph() => {
                let (x, s) = (call.input(0), read());
                let ones = g.device().full_dtype(g.dims(), 1, g.dtype());
                let others = others_of_place(&s, &index.to_dtype(DType::I64), dim);
                (g.mul(ones.scatter_reduce(dim, index, &s, mode)), picked(&g.mul(x)).mul(others))
            }
            // The product of the others: with one zero it is there alone, with two nowhere.
            ScatterMode::Prod => {
                let (x, s) = (call.input(0), read());
                let (x_zero, s_zero) = (x.eq(0), s.eq(0));
                let (x_other, s_other) = (x_zero.where_cond(1.0, x), s_zero.where_cond(1.0, &s));
                let count = |zero: &TensorFuture| zero.to_dtype(DType::I64);
                let zeros = count(&x_zero).scatter_add(dim, index, count(&s_zero));
                let product = g.mul(x_other.scatter_reduce(dim, index, &s_other, mode));
                let at_zero = zeros.eq(1).where_cond(&product, 0.0);
                let elsewhere = zeros.eq(0).where_cond(&product, 0.0);
                let to_value = x_zero.where_cond(&at_zero, elsewhere.div(x_other));
                (to_value, s_zero.where_cond(picked(&at_zero), picked(&elsewhere).div(s_other)))
            }
        }
    }
}
