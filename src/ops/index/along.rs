//! Elements at places along some dimensions that are known when the op is called: padding with a
//! value's own elements, and interpolation by the nearest ones. Only host devices are asked for it;
//! elsewhere the places are made on the device, and picked one dimension after the other.

use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};
use crate::host::kernels::index::picked;
use crate::{Backward, DType};

/// The elements that [`pad_mode`](crate::TensorFuture::pad_mode) adds around a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
pub enum PadMode {
    /// The elements in reverse, without the one at the edge.
    Reflect,
    /// The element at the edge.
    Replicate,
    /// The elements from the other end.
    Circular,
}

#[derive(Clone, Debug)]
pub(crate) struct Along {
    /// What it is, or is a part of, as errors have it.
    pub name: &'static str,
    pub axes: Vec<Axis>,
}

/// A dimension of which elements are picked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Axis {
    pub dim: usize,
    pub input: usize,
    pub output: usize,
    pub by: Rule,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Rule {
    /// So many are added before the first; a negative number is taken away.
    Padded(PadMode, i64),
    /// The element at a position: those of two neighbours are `scale` apart, and the first is so
    /// many times that.
    Nearest { scale: f64, first: f64 },
}

impl Axis {
    /// The place of each element of the result, computed in the type that PyTorch computes it in.
    pub fn places(&self, dtype: DType) -> Vec<usize> {
        let (n, output) = (self.input as i64, self.output as i64);
        let place = |i: i64| match self.by {
            Rule::Nearest { scale, first } => {
                let at = match dtype {
                    DType::F64 => ((i as f64 + first) * scale) as i64,
                    _ => ((i as f32 + first as f32) * scale as f32) as i64,
                };
                at.clamp(0, n - 1)
            }
            Rule::Padded(mode, before) => {
                let (at, after) = (i - before, output - n - before);
                match mode {
                    // Folded at 0, then at the last element.
                    PadMode::Reflect => (n - 1) - ((n - 1) - at.abs()).abs(),
                    PadMode::Replicate => at.clamp(0, n - 1),
                    PadMode::Circular => {
                        let left = n + before.min(0) + after.min(0);
                        let skipped = (-before).max(0);
                        (at - skipped).rem_euclid(left.max(1)) + skipped
                    }
                }
            }
        };
        let mut all = crate::room::with_capacity(self.output);
        all.extend((0..output).map(|i| place(i) as usize));
        all
    }
}

impl Operation for Along {
    fn name(&self) -> &str {
        self.name
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        let mut meta = inputs[0].clone();
        for axis in &self.axes {
            if meta.shape.get(axis.dim) != Some(&axis.input) {
                let text = format!("{} has no dimension of {}", meta.shape, axis.input);
                return Err(Refusal::shape(text));
            }
            meta.shape.dims_mut()[axis.dim] = axis.output;
        }
        Ok(meta)
    }

    fn estimate_ns(&self, _: &[&Meta], output: &Meta) -> u64 {
        let places: u64 = self.axes.iter().map(|axis| axis.output as u64).sum();
        200u64.saturating_add(places).saturating_add(output.shape.numel() as u64 / 2)
    }

    fn gradient_needs(&self, _: &[bool]) -> Needs {
        Needs::NOTHING.as_they_are()
    }

    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        call.give(0, |call| {
            let mut sums = call.upstream().clone();
            if sums.numel() == 0 {
                // A size beside one of 0 may be any.
                return call.zeros(0);
            }
            // What becomes shorter by whole rows comes first: it leaves less to the last dimension,
            // whose elements move one by one. What becomes longer by rows comes last.
            let mut axes: Vec<&Axis> = self.axes.iter().collect();
            axes.sort_by_key(|axis| match axis.input < axis.output {
                true => (0, axis.dim),
                false => (1, usize::MAX - axis.dim),
            });
            for axis in axes {
                let places = axis.places(call.meta(0).dtype).into_iter().map(|p| p as i64);
                let mut along = vec![1; sums.rank()];
                along[axis.dim] = axis.output;
                let index = sums.device().from_vec(places.collect(), &along[..]);
                let mut shape = sums.shape().clone();
                shape.dims_mut()[axis.dim] = axis.input;
                let zeros = sums.device().zeros_dtype(shape.dims(), sums.dtype());
                sums = zeros.scatter_add(axis.dim as isize, index.expand(sums.dims()), sums);
            }
            sums
        });
        Ok(())
    }

    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let x = run.inputs[0];
        if run.output.numel() == 0 {
            return Ok(());
        }
        let mut places = Vec::new();
        for axis in &self.axes {
            places.push((axis.dim, axis.places(x.dtype)));
        }
        picked(x, &places, &run.output, run.parallel);
        Ok(())
    }
}
