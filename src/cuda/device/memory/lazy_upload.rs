//! Elements that were handed in from elsewhere (the host, another GPU); the step that first needs
//! them copies them.
//!
//! So a value that waits in the queue costs the host memory it was handed in with, and no device
//! memory. Any thread may hand values in; the device's thread copies them.

use super::heap::DeviceBuffer;
use crate::dtype::DType;
use crate::graph::value::{Buffer, Storage, Value};
use crate::shape::{Layout, Shape};
use crate::sync::{Mutex, MutexGuard, lock};
use std::any::Any;
use std::sync::Arc;

/// Where the elements are now.
#[derive(Debug)]
pub(crate) enum Residency {
    /// Where they came from: host memory, or another device's.
    Elsewhere(Value),
    /// The copy to this device is being made, a chunk at a time.
    InTransit,
    Resident(Arc<DeviceBuffer>),
}

/// A buffer whose elements are elsewhere until they are needed; here they will be contiguous.
#[derive(Debug)]
pub(crate) struct LazyUpload {
    /// The value's, but 1 where it repeats.
    pub shape: Shape,
    pub dtype: DType,
    state: Mutex<Residency>,
}

impl LazyUpload {
    /// A value of this device from a complete one of another. Constants stay constants.
    pub fn value(value: Value, shape: &Shape, dtype: DType) -> Value {
        if let Storage::Inline(_) = value.storage
            && value.layout(shape).strides.iter().zip(shape.iter()).all(|(&s, &n)| s == 0 || n == 1)
        {
            return value;
        }
        // A repeated element is brought once.
        let (strides, mut own) = (value.strides(shape), shape.clone());
        let repeats = |d: usize| strides[d] == 0 && shape[d] > 1;
        (0..shape.rank()).filter(|&d| repeats(d)).for_each(|d| own.dims_mut()[d] = 1);
        let mut layout = Layout { shape: shape.clone(), ..Layout::contiguous(own.clone()) };
        (0..shape.rank()).filter(|&d| repeats(d)).for_each(|d| layout.strides[d] = 0);
        let state = Mutex::new(Residency::Elsewhere(value));
        Value::placed(Storage::Shared(Arc::new(LazyUpload { shape: own, dtype, state })), &layout)
    }

    pub fn residency(&self) -> MutexGuard<'_, Residency> {
        lock(&self.state)
    }
}

impl Buffer for LazyUpload {
    fn host(&self) -> Option<*mut u8> {
        None
    }
    fn bytes(&self) -> usize {
        self.shape.numel() * self.dtype.size()
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}
