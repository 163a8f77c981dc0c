//! The check for what is not finite on CUDA: what was found is looked at as an index into one byte,
//! so that only 0 is in range.
//!
//! The host reads the index in the step's error record (`cuda/device/index_check`).

use super::{OnCuda, index};
use crate::dtype::Scalar;
use crate::graph::device_run::CudaRun;
use crate::graph::operation::Refusal;
use crate::ops::checks::finite::CheckFinite;

impl OnCuda for CheckFinite {
    fn queue(&self, run: &mut CudaRun<'_>) -> Result<(), Refusal> {
        let (found, out) = (run.inputs()[0], run.output());
        index::look(run, found, 1, false)?;
        super::fill(run, Scalar::Int(0), out)
    }
}
