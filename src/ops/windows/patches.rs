//! Windows over images as columns, or the sums of columns at their places: each is the other's way
//! back, since both are linear. Only host devices are asked for it; elsewhere elements are picked
//! and added at places that are data.

use crate::Backward;
use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};
use crate::host::kernels::windows::patches;
use crate::window::Window;

/// A window, with its output's size, that was checked when the op was called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Patches {
    /// The function that was called.
    pub name: &'static str,
    pub window: Window,
    /// `[.., taps, windows]` becomes an image, instead of the other way round.
    pub sums: bool,
}

impl Operation for Patches {
    fn name(&self) -> &str {
        self.name
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        let (x, window) = (inputs[0], &self.window);
        let columns = [window.taps(), window.places()];
        let image = &window.input[3 - window.spatial..];
        let (from, to) = if self.sums { (&columns[..], image) } else { (image, &columns[..]) };
        match x.shape.strip_suffix(from) {
            Some(lead) if x.dtype.is_float() || x.dtype.is_int() => {
                let shape = lead.iter().chain(to).copied().collect();
                Ok(Meta { shape, dtype: x.dtype })
            }
            _ => Err(Refusal::shape(format!("{} of {} for {from:?}", x.dtype, x.shape))),
        }
    }

    fn estimate_ns(&self, inputs: &[&Meta], output: &Meta) -> u64 {
        let all = inputs[0].shape.numel().max(output.shape.numel()) as u64;
        all.saturating_add(200)
    }

    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let (x, out, par) = (run.inputs[0], &run.output, run.parallel);
        match self.sums {
            true => patches::fold(&self.window, x, out, par),
            false => patches::unfold(&self.window, x, out, par),
        }
        Ok(())
    }

    fn gradient_needs(&self, _: &[bool]) -> Needs {
        Needs::NOTHING
    }

    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        let back = Patches { sums: !self.sums, ..*self };
        call.give(0, |call| crate::own(back, &[call.upstream()]));
        Ok(())
    }
}
