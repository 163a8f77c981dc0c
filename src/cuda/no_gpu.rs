//! GPUs in a build without the feature `cuda`: there are none.

use crate::engine::port::Port;
use crate::graph::value::Value;
use crate::tensor::device::{Device, DeviceMemory};

pub(crate) fn shared(_: usize) -> Result<Device, String> {
    Err("this build of futensor is without the feature `cuda`".into())
}

pub(crate) fn count() -> usize {
    0
}

pub(crate) fn memory(_: &'static Port) -> Option<DeviceMemory> {
    None
}

/// A value of this port's device from one that lies in host memory.
pub(crate) fn received(
    _: &'static Port,
    value: Value,
    _: &crate::shape::Shape,
    _: crate::dtype::DType,
) -> Value {
    value
}

/// A complete value as one of another device, where that needs no copy through the host.
pub(crate) fn direct(_: &crate::tensor::future::TensorFuture, _: &Value, _: &'static Port) -> Option<Value> {
    None
}
