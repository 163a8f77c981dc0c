//! A step's convolutions by a library: whether a library takes them, and the call.

use super::launcher::Launcher;
use crate::cuda::convolution::Convolution;
use crate::cuda::device::libraries::handles::Use;
use crate::cuda::device::libraries::library_call::{ConvolutionCall, LibraryCall};
use crate::cuda::device::{Site, Trouble};

impl Launcher {
    /// True where a library computes such convolutions: [`convolution`](Self::convolution) then
    /// queues one.
    ///
    /// # Errors
    /// [`Trouble::Later`] where it is being asked.
    pub(crate) fn convolves(
        &mut self,
        site: &dyn Site,
        asked: &Convolution,
    ) -> Result<bool, Trouble> {
        if !self.convolutions.wanted || self.convolutions.decided(asked)?.is_err() {
            return Ok(false);
        }
        self.convolutions.handles.ready(Use::of(site)).map(|()| true)
    }

    /// Queues a convolution of whole values without gaps: both operands and the result by address.
    ///
    /// # Errors
    /// See [`Trouble`].
    pub(crate) fn convolution(
        &mut self,
        site: &dyn Site,
        asked: &Convolution,
        [a, b, out]: [u64; 3],
    ) -> Result<(), Trouble> {
        let plan = self.convolutions.decided(asked)??;
        let workspace = if plan.bytes[3] > 0 { site.scratch(plan.bytes[3])? } else { out };
        self.library(
            site,
            LibraryCall::Convolution(ConvolutionCall { plan, at: [a, b, out, workspace] }),
        );
        Ok(())
    }
}
