//! Where the largest elements under windows and of cells are, and what flows back to these places.
//! Only host devices are asked for it; elsewhere it is a `scatter_add` at positions.

use crate::dtype::DType;
use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};
use crate::host::kernels::windows::adaptive;
use crate::host::kernels::windows::pool;
use crate::window::{Cells, Window};
use crate::{Backward, TensorFuture, own};

/// Of which parts of a plane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Parts {
    Windows(Window),
    Cells(Cells),
}

impl Parts {
    /// The sizes of a plane before and after.
    fn sizes(&self) -> [&[usize]; 2] {
        let (spatial, sizes) = match self {
            Parts::Windows(window) => (window.spatial, [&window.input, &window.output]),
            Parts::Cells(cells) => (cells.spatial, [&cells.input, &cells.output]),
        };
        sizes.map(|size| &size[3 - spatial..])
    }

    /// A plane's dimensions as one.
    #[track_caller]
    pub fn planes(&self, x: &TensorFuture) -> TensorFuture {
        x.flatten(-(self.sizes()[0].len() as isize), -1)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Largest {
    /// The function that was called.
    pub name: &'static str,
    pub parts: Parts,
    /// What flows back to an input, of it and the outputs' gradient, instead of places as int64.
    pub back: bool,
}

impl Largest {
    /// What flows back to a call's input: by this op, or where a device has no kernel of it, by a
    /// `scatter_add` at the places.
    #[track_caller]
    pub fn of(
        self,
        call: &Backward<'_>,
        places: impl FnOnce(&TensorFuture) -> TensorFuture,
    ) -> TensorFuture {
        let (x, g) = (call.input(0), call.upstream());
        if x.port().runner.has_kernel(&self) {
            return own(self, &[x, g]);
        }
        let planes = |x: &TensorFuture| self.parts.planes(x);
        let sums = planes(&call.zeros(0)).scatter_add(-1, planes(&places(x)), planes(g));
        sums.reshape(call.meta(0).shape.dims())
    }
}

impl Operation for Largest {
    fn name(&self) -> &str {
        self.name
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        let (x, [from, to]) = (inputs[0], self.parts.sizes());
        let Some(lead) = x.shape.strip_suffix(from).filter(|_| x.dtype.is_float()) else {
            return Err(Refusal::shape(format!("{} of {} for {from:?}", x.dtype, x.shape)));
        };
        let outputs = Meta::new([lead, to].concat(), if self.back { x.dtype } else { DType::I64 });
        match self.back {
            false => Ok(outputs),
            true if *inputs[1] == outputs => Ok(x.clone()),
            true => Err(Refusal::shape(format!("{} for {}", inputs[1].shape, outputs.shape))),
        }
    }

    fn estimate_ns(&self, inputs: &[&Meta], output: &Meta) -> u64 {
        let outputs = if self.back { inputs[1] } else { output };
        let met = match self.parts {
            Parts::Windows(window) => outputs.shape.numel().saturating_mul(window.taps()),
            Parts::Cells(_) => outputs.shape.numel(),
        };
        (met as u64).saturating_add(2 * inputs[0].shape.numel() as u64).saturating_add(200)
    }

    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let (out, par) = (&run.output, run.parallel);
        match (self.parts, run.inputs) {
            (Parts::Windows(of), &[x, dy]) => pool::max_back(&of, [x, dy], out, par),
            (Parts::Windows(of), _) => pool::max_positions(&of, run.inputs[0], out, par),
            (Parts::Cells(of), &[x, dy]) => adaptive::max_back(&of, [x, dy], out, par),
            (Parts::Cells(of), _) => adaptive::max_positions(&of, run.inputs[0], out, par),
        }
        Ok(())
    }

    fn gradient_needs(&self, _: &[bool]) -> Needs {
        let needs = if self.back { Needs::inputs(&[0]) } else { Needs::NOTHING };
        needs.as_they_are()
    }

    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        if self.back {
            call.give(1, |call| {
                let places = own(Largest { back: false, ..*self }, &[call.input(0)]);
                let planes = |x: &TensorFuture| self.parts.planes(x);
                let taken = planes(call.upstream()).gather(-1, planes(&places));
                taken.reshape(call.meta(1).shape.dims())
            });
        }
        Ok(())
    }
}
