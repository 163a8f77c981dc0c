//! An axis of a value seen at other places: what interpolation, and pooling to a given size, are
//! made of where elements are weighted. Only host devices are asked for it; elsewhere elements are
//! picked and added by ops that are there. Each is the other way's gradient, since both are linear.

use crate::Backward;
use crate::dtype::DType;
use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};
use crate::host::kernels::windows::resample::{Taps, resample};
use std::sync::Arc;

/// Cubic convolution's parameter, PyTorch's choice.
pub(crate) const A: f64 = -0.75;

/// `input` elements of a dimension become `output`, or, as `back`, what flows to these flows to
/// those.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Resample {
    /// What it is a part of, as errors have it.
    pub name: &'static str,
    pub dim: usize,
    pub input: usize,
    pub output: usize,
    pub by: By,
    pub back: bool,
}

/// Of what each new element is made.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum By {
    /// Of a few elements around its place.
    Around {
        /// The distance of two places, in elements of the input.
        scale: f64,
        /// Whether the first and the last keep their places.
        align: bool,
        /// Four elements by cubic convolution, not two by their distance.
        cubic: bool,
    },
    Intervals(Arc<Intervals>),
}

/// For each output position of an axis the first element that it takes, and the weights of that and
/// the following ones.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Intervals {
    pub first: Vec<usize>,
    pub weights: Vec<Vec<f64>>,
}

macro_rules! taps {
    ($W:ident, $of:expr) => {{
        let of: &Resample = $of;
        let last = of.input as i64 - 1;
        let at = |place: $W| (place as i64).clamp(0, last) as usize;
        let made = match &of.by {
            By::Intervals(all) => {
                Taps::intervals(all.first.iter().copied().zip(all.weights.iter().map(|w| &w[..])))
            }
            By::Around { scale, align, cubic } => {
                let scale = *scale as $W;
                let place = |i: usize| match align {
                    true => i as $W * scale,
                    false => (i as $W + 0.5) * scale - 0.5,
                };
                match cubic {
                    false => Taps::<$W>::new(of.output, |i| {
                        let place = place(i).max(0.0);
                        let first = place.floor();
                        let t = (place - first).clamp(0.0, 1.0);
                        [(at(first), 1.0 - t), (at(first + 1.0), t)]
                    }),
                    true => Taps::<$W>::new(of.output, |i| {
                        let (a, place) = (A as $W, place(i));
                        let first = place.floor();
                        let t = (place - first).clamp(0.0, 1.0);
                        // Of elements at distances below 1, and at those below 2.
                        let near = |d: $W| ((d * (a + 2.0) - (a + 3.0)) * d) * d + 1.0;
                        let far = |d: $W| ((d * a - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a;
                        [
                            (at(first - 1.0), far(t + 1.0)),
                            (at(first), near(t)),
                            (at(first + 1.0), near(1.0 - t)),
                            (at(first + 2.0), far(2.0 - t)),
                        ]
                    }),
                }
            }
        };
        if of.back { made.turned(of.output, of.input) } else { made }
    }};
}

impl Operation for Resample {
    fn name(&self) -> &str {
        self.name
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        let mut meta = inputs[0].clone();
        let [from, to] = match self.back {
            false => [self.input, self.output],
            true => [self.output, self.input],
        };
        let fits = matches!(meta.dtype, DType::F32 | DType::F64)
            && meta.shape.get(self.dim) == Some(&from);
        if !fits {
            return Err(Refusal::shape(format!("{} of {} for {from}", meta.dtype, meta.shape)));
        }
        meta.shape.dims_mut()[self.dim] = to;
        Ok(meta)
    }

    fn estimate_ns(&self, inputs: &[&Meta], output: &Meta) -> u64 {
        let all = inputs[0].shape.numel().max(output.shape.numel()) as u64;
        all.saturating_add(200).saturating_add(20 * self.output as u64)
    }

    fn gradient_needs(&self, _: &[bool]) -> Needs {
        Needs::NOTHING
    }

    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        let back = Resample { back: !self.back, ..self.clone() };
        call.give(0, |call| crate::own(back, &[call.upstream()]));
        Ok(())
    }

    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let (x, out, par) = (run.inputs[0], &run.output, run.parallel);
        match x.dtype {
            DType::F64 => resample(x, self.dim, &taps!(f64, self), out, par),
            _ => resample(x, self.dim, &taps!(f32, self), out, par),
        }
        Ok(())
    }
}
