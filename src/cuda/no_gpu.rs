//! GPUs in a build without the feature `cuda`: there are none.

use crate::tensor::device::Device;

pub(crate) fn shared(_: usize) -> Result<Device, String> {
    Err("this build of futensor is without the feature `cuda`".into())
}

pub(crate) fn count() -> usize {
    0
}
