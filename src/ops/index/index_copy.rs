//! `index_copy`: a value with slices along a dimension replaced, at places that are data; in place
//! where nobody else looks.

use crate::dtype::DType;
use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};
use crate::host::kernels::index;
use crate::ops::check::{checked, dim_of, indices, out_of_range, put_ns};
use crate::{Backward, own};

/// Of `(value, index, source)`, a row of indices; of several slices for one place the last stays.
#[derive(Clone, Copy)]
pub(crate) struct IndexCopy {
    pub dim: isize,
    /// What it is a part of, as errors have it.
    pub name: &'static str,
    /// Negative indices count from the end; otherwise they are out of range.
    pub from_end: bool,
}

impl Operation for IndexCopy {
    fn name(&self) -> &str {
        self.name
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        let (x, index, source) = (inputs[0], inputs[1], inputs[2]);
        indices(index)?;
        let mut part = x.shape.clone();
        part.dims_mut()[dim_of(&x.shape, self.dim)?] = index.shape.numel();
        if index.shape.rank() != 1 || source.shape != part {
            let text = format!(
                "slices of shape {} at {} for shape {}",
                source.shape, index.shape, x.shape
            );
            return Err(Refusal::shape(text));
        }
        if x.dtype != source.dtype {
            return Err(Refusal::dtype(format!("types differ: {} and {}", x.dtype, source.dtype)));
        }
        Ok(x.clone())
    }

    fn estimate_ns(&self, inputs: &[&Meta], _: &Meta) -> u64 {
        put_ns(inputs[0], inputs[2])
    }

    fn reuses(&self) -> Option<usize> {
        Some(0)
    }

    fn gradient_needs(&self, _: &[bool]) -> Needs {
        Needs::inputs(&[1]).as_they_are()
    }

    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        let (dim, index) = (self.dim, call.input(1).clone());
        call.give(0, |call| {
            let (device, of) = (call.upstream().device(), call.meta(2));
            let nothing = device.zeros_dtype((), of.dtype).expand(of.shape.dims());
            own(*self, &[call.upstream(), &index, &nothing])
        });
        call.give(2, |call| {
            // Of several that came to one place, the last one stayed.
            let picked = call.upstream().slices(dim, &index, self.from_end);
            let (device, d) = (picked.device(), checked(dim, picked.rank()));
            let numbers = device.arange(0, index.numel() as i64, 1);
            let places = device.zeros_dtype([call.meta(0).shape[d]], DType::I64);
            let last = own(IndexCopy { dim: 0, ..*self }, &[&places, &index, &numbers]);
            let stayed = last.slices(0, &index, self.from_end).eq(numbers);
            let mut shape = vec![1; picked.rank()];
            shape[d] = index.numel();
            stayed.reshape(shape).where_cond(picked, 0.0)
        });
        Ok(())
    }

    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let dim = checked(self.dim, run.output.shape.len());
        let [index, source] = [1, 2].map(|i| run.inputs[i]);
        index::index_copy(dim, self.from_end, index, source, &run.output, run.parallel)
            .map_err(out_of_range)
    }
}
