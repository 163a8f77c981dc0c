//! Products of matrices of which either may be read with rows and columns changed: what gradients
//! of products are made of, and linear layers, without a view for each change. Only host devices
//! are asked for it; elsewhere the views are taken.
//!
//! A view is an op: an awaited layer of `[16, 16]` took 5.1 us by `x.matmul(w.t())` and 4.0 so, a
//! training step of a small net 136 and 127. The public `matmul` cannot look through a view by
//! itself: somebody may ask for the view's gradient. Beside it the kernel turns what it is given
//! transposed, and a weight that stays is packed: see `matmul`.

use super::matmul::MatMul;
use crate::Backward;
use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};
use crate::view::View;

/// `a b`, `a^T b`, `a b^T` or `a^T b^T` of two matrices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Turned {
    pub a: bool,
    pub b: bool,
    pub of: MatMul,
}

fn turned(meta: &Meta, turn: bool) -> Meta {
    let mut meta = meta.clone();
    if turn {
        meta.shape.dims_mut().reverse();
    }
    meta
}

impl Operation for Turned {
    fn name(&self) -> &str {
        "matmul"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        if inputs.iter().any(|meta| meta.shape.rank() != 2) {
            return Err(Refusal::shape("two matrices are needed"));
        }
        self.of.infer(&[&turned(inputs[0], self.a), &turned(inputs[1], self.b)])
    }

    fn estimate_ns(&self, inputs: &[&Meta], output: &Meta) -> u64 {
        self.of.estimate_ns(&[&turned(inputs[0], self.a), &turned(inputs[1], self.b)], output)
    }

    fn takes_epilogue(&self) -> bool {
        true
    }

    fn gradient_needs(&self, wanted: &[bool]) -> Needs {
        self.of.gradient_needs(wanted)
    }

    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        let Turned { a: ta, b: tb, .. } = *self;
        // As in `matmul`'s rule.
        let up = call.upstream().to_dtype(call.meta(0).dtype);
        let product = |a: bool, b: bool, of: [&crate::TensorFuture; 2]| {
            crate::own(Turned { a, b, of: MatMul::default() }, &of)
        };
        call.give(0, |call| match ta {
            false => product(false, !tb, [&up, call.input(1)]),
            true => product(tb, true, [call.input(1), &up]),
        });
        call.give(1, |call| match tb {
            false => product(!ta, false, [call.input(0), &up]),
            true => product(true, ta, [&up, call.input(0)]),
        });
        Ok(())
    }

    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let (a, b) = (run.inputs[0], run.inputs[1]);
        let swap = |n: &[usize], s: &[isize], turn: bool| match turn {
            true => ([n[1], n[0]], [s[1], s[0]]),
            false => ([n[0], n[1]], [s[0], s[1]]),
        };
        let (a_lies, b_lies) = (swap(a.shape, a.strides, self.a), swap(b.shape, b.strides, self.b));
        let inputs = [
            View { shape: &a_lies.0, strides: &a_lies.1, ..a },
            View { shape: &b_lies.0, strides: &b_lies.1, ..b },
        ];
        self.of.run_cpu(&mut CpuRun {
            inputs: &inputs,
            output: run.output_again(),
            parallel: run.parallel,
            in_place: false,
            written: 0,
            buffers: run.buffers,
        })
    }
}
