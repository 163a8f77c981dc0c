//! `slice_assign`: a value with a part of it replaced, in place where nobody else looks.

use crate::Backward;
use crate::dtype::Scalar;
use crate::error::number_of;
use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};
use crate::host::kernels::copy;
use crate::ops::check::put_ns;
use crate::shape::{Layout, Shape};
use crate::view::View;
use std::marker::PhantomData;

pub(crate) struct SliceAssign {
    /// The part that is replaced, as a layout of the result; or why there is none.
    pub part: Result<Layout, Refusal>,
    /// First position, length and step in each dimension, and whether the source has it.
    spans: Vec<(usize, usize, isize, bool)>,
}

impl SliceAssign {
    /// `resolve` turns an index and a size into first position, length, step, and whether the
    /// dimension stays.
    pub fn new<I: Copy + std::fmt::Debug>(
        dims: &[usize],
        indices: &[I],
        resolve: impl Fn(I, usize) -> Option<(usize, usize, isize, bool)>,
    ) -> SliceAssign {
        if indices.len() > dims.len() {
            let text =
                format!("{} for shape {dims:?}", number_of(indices.len(), "index", "indices"));
            return SliceAssign { part: Err(Refusal::index(text)), spans: Vec::new() };
        }
        let mut spans: Vec<_> = dims.iter().map(|&n| (0, n, 1, true)).collect();
        let mut layout = Layout::contiguous(Shape::from(dims));
        let mut stays = vec![true; dims.len()];
        for (d, &index) in indices.iter().enumerate() {
            match resolve(index, dims[d]) {
                Some((start, len, step, keeps)) => {
                    layout = layout.slice(d, start, len, step);
                    stays[d] = keeps;
                    spans[d] = (start, len, step, keeps);
                }
                None => {
                    let text = format!("index {index:?} is not in a dimension of {}", dims[d]);
                    return SliceAssign { part: Err(Refusal::index(text)), spans: Vec::new() };
                }
            }
        }
        let order: Vec<usize> = (0..dims.len()).filter(|&d| stays[d]).collect();
        SliceAssign { part: Ok(layout.permute(&order)), spans }
    }
}

impl Operation for SliceAssign {
    fn name(&self) -> &str {
        "slice_assign"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        let part = self.part.as_ref().map_err(Clone::clone)?;
        let (whole, source) = (inputs[0], inputs[1]);
        if whole.dtype != source.dtype {
            return Err(Refusal::dtype(format!(
                "types differ: {} and {}",
                whole.dtype, source.dtype
            )));
        }
        if source.shape.broadcast(&part.shape).as_ref() != Some(&part.shape) {
            return Err(Refusal::shape(format!(
                "cannot broadcast {} to {}",
                source.shape, part.shape
            )));
        }
        Ok(whole.clone())
    }

    fn estimate_ns(&self, inputs: &[&Meta], _: &Meta) -> u64 {
        put_ns(inputs[0], inputs[1])
    }

    fn reuses(&self) -> Option<usize> {
        Some(0)
    }

    fn gradient_needs(&self, _: &[bool]) -> Needs {
        Needs::NOTHING.as_they_are()
    }

    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        call.give(0, |call| {
            let g = call.upstream();
            let zero = g.device().full_dtype((), Scalar::Int(0), g.dtype());
            crate::own(
                SliceAssign { part: self.part.clone(), spans: self.spans.clone() },
                &[g, &zero],
            )
        });
        call.give(1, |call| {
            let mut part = call.upstream().clone();
            let mut shape = Vec::new();
            for (d, &(start, len, step, stays)) in self.spans.iter().enumerate() {
                part = part.stepped(d, start, len, step);
                shape.extend(stays.then_some(len));
            }
            part.reshape(shape)
        });
        Ok(())
    }

    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let part = self.part.as_ref().map_err(Clone::clone)?;
        let source = run.inputs[1];
        let lead = part.shape.rank() - source.shape.len();
        let own =
            |i: usize| (i >= lead && source.shape[i - lead] != 1).then(|| source.strides[i - lead]);
        let strides: crate::shape::Strides =
            (0..part.shape.rank()).map(|i| own(i).unwrap_or(0)).collect();
        let source = View { shape: &part.shape, strides: &strides, ..source };
        let ptr = run.output.ptr.wrapping_add(part.offset * run.output.dtype.size());
        let window = copy::Window { ptr, strides: &part.strides, life: PhantomData };
        copy::copy_into(source, &window, run.parallel);
        Ok(())
    }
}
