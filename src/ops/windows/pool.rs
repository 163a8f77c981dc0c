//! Pooling over the last one, two or three dimensions: the largest element or its position, the
//! mean, and the mean's way back. The way back of the largest is [`Largest`], or a `scatter_add` at
//! its position.

use super::largest::{Largest, Parts};
use crate::dtype::DType;
use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};
use crate::host::kernels::windows::pool::{self, Divisor};
use crate::window::Window;
use crate::{Backward, TensorFuture, own};

/// What is wanted of each window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pooled {
    /// Its largest element.
    Max,
    /// Where that is in its line, plane or volume, as int64.
    MaxPosition,
    /// Its mean.
    Mean(Divisor),
    /// Of the outputs' gradient that of the input: the means' way back.
    Spread(Divisor),
}

/// A window, with its output's size, that was checked when the op was called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pool {
    pub window: Window,
    pub what: Pooled,
}

const MAX: [&str; 3] = ["max_pool1d", "max_pool2d", "max_pool3d"];

impl Operation for Pool {
    fn name(&self) -> &str {
        let [one, two, three] = match self.what {
            Pooled::Max => MAX,
            Pooled::MaxPosition => [
                "max_pool1d_with_positions",
                "max_pool2d_with_positions",
                "max_pool3d_with_positions",
            ],
            Pooled::Mean(_) => ["avg_pool1d", "avg_pool2d", "avg_pool3d"],
            Pooled::Spread(_) => ["avg_pool1d_spread", "avg_pool2d_spread", "avg_pool3d_spread"],
        };
        match self.window.spatial {
            1 => one,
            2 => two,
            _ => three,
        }
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        let x = inputs[0];
        let means = matches!(self.what, Pooled::Mean(_) | Pooled::Spread(_));
        if means && !x.dtype.is_float() || x.dtype == DType::Bool {
            return Err(Refusal::dtype(format!("not defined on {}", x.dtype)));
        }
        let (from, to) = match self.what {
            Pooled::Spread(_) => (self.window.output, self.window.input),
            _ => (self.window.input, self.window.output),
        };
        let spatial = self.window.spatial;
        let (from, to) = (&from[3 - spatial..], &to[3 - spatial..]);
        let Some(lead) = x.shape.strip_suffix(from) else {
            return Err(Refusal::shape(format!("{} does not end in {from:?}", x.shape)));
        };
        let shape = lead.iter().chain(to).copied().collect();
        let dtype = if self.what == Pooled::MaxPosition { DType::I64 } else { x.dtype };
        Ok(Meta { shape, dtype })
    }

    fn estimate_ns(&self, inputs: &[&Meta], output: &Meta) -> u64 {
        let (a, b) = (inputs[0].shape.numel() as u64, output.shape.numel() as u64);
        // Windows may leave most of the larger side out; its elements are read or written all the
        // same.
        let taps = a.min(b).saturating_mul(self.window.taps() as u64);
        taps.max(a.max(b) / 2).saturating_add(200)
    }

    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let (x, out, par) = (run.inputs[0], &run.output, run.parallel);
        if out.numel() == 0 {
            return Ok(());
        }
        match self.what {
            Pooled::Max => pool::max(&self.window, x, out, par),
            Pooled::MaxPosition => pool::max_positions(&self.window, x, out, par),
            Pooled::Mean(divisor) => pool::mean(&self.window, divisor, x, out, par),
            Pooled::Spread(divisor) => pool::spread(&self.window, divisor, x, out, par),
        }
        Ok(())
    }

    fn gradient_needs(&self, _: &[bool]) -> Needs {
        let needs = if self.what == Pooled::Max { Needs::inputs(&[0]) } else { Needs::NOTHING };
        needs.as_they_are()
    }

    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        let window = self.window;
        let pool = |what: Pooled, x: &TensorFuture| own(Pool { window, what }, &[x]);
        match self.what {
            Pooled::Max => call.give(0, |call| {
                let (name, parts) = (MAX[window.spatial - 1], Parts::Windows(window));
                Largest { name, parts, back: true }.of(call, |x| pool(Pooled::MaxPosition, x))
            }),
            Pooled::MaxPosition => {}
            Pooled::Mean(divisor) => {
                call.give(0, |call| pool(Pooled::Spread(divisor), call.upstream()))
            }
            Pooled::Spread(divisor) => {
                call.give(0, |call| pool(Pooled::Mean(divisor), call.upstream()))
            }
        }
        Ok(())
    }
}
