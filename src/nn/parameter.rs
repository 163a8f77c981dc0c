//! `Parameter`: a cell that holds a module's value, which an optimizer replaces.

use crate::dtype::DType;
use crate::sync::{Mutex, lock};
use crate::tensor::device::Device;
use crate::tensor::future::TensorFuture;
use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

/// A weight of a module, or a buffer (a running mean, say): a cell with a value in it. Values themselves never
/// change; [`set`](Self::set) puts another one in. Clones share the cell, so that an optimizer sees the
/// module's own, and two modules can tie their weights.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, nn::Parameter};
/// let w = Parameter::new(Device::cpu().ones([2]));
/// let before = w.value();
/// w.set(before.stop_gradient() * 3.0);
/// assert_eq!(w.value().to_vec::<f32>().await?, [3.0, 3.0]);
/// assert_eq!(before.to_vec::<f32>().await?, [1.0, 1.0]);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct Parameter(Arc<Mutex<Slot>>);

struct Slot {
    value: TensorFuture,
    trained: bool,
}

thread_local! {
    /// Values that stand in for parameters' own on this thread, by cell: see [`substituted`].
    static STAND_INS: RefCell<Vec<(usize, TensorFuture)>> = const { RefCell::new(Vec::new()) };
}

impl Parameter {
    /// A weight with this value, which becomes a leaf of the tape.
    pub fn new(value: impl AsRef<TensorFuture>) -> Parameter {
        Parameter::with(value.as_ref().requires_grad(), true)
    }

    /// A value that is not trained: it has no gradient.
    ///
    /// ```
    /// use futensor::{Device, nn::Parameter};
    /// let mean = Parameter::buffer(Device::cpu().zeros([2]));
    /// assert!(!mean.is_trained());
    /// ```
    pub fn buffer(value: impl AsRef<TensorFuture>) -> Parameter {
        Parameter::with(value.as_ref().stop_gradient(), false)
    }

    fn with(value: TensorFuture, trained: bool) -> Parameter {
        Parameter(Arc::new(Mutex::new(Slot { value, trained })))
    }

    fn address(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }

    /// The value now. Of a weight it is a leaf of the tape: ask [`grad`](crate::grad) with it.
    pub fn value(&self) -> TensorFuture {
        let stand_in = STAND_INS.with_borrow(|all| {
            all.iter().rev().find(|(cell, _)| *cell == self.address()).map(|(_, value)| value.clone())
        });
        stand_in.unwrap_or_else(|| lock(&self.0).value.clone())
    }

    /// Puts another value in, off the tape it came from: a leaf again, where this is trained. What was made
    /// from the old value stays what it is.
    pub fn set(&self, value: impl AsRef<TensorFuture>) {
        let value = value.as_ref();
        if STAND_INS.with_borrow(|all| all.iter().any(|(cell, _)| *cell == self.address())) {
            return;
        }
        let mut slot = lock(&self.0);
        let value = if slot.trained { value.requires_grad() } else { value.stop_gradient() };
        let old = std::mem::replace(&mut slot.value, value);
        drop(slot);
        drop(old);
    }

    /// True where it has gradients.
    pub fn is_trained(&self) -> bool {
        lock(&self.0).trained
    }

    /// Freezes a weight, or lets it be trained again.
    ///
    /// ```
    /// use futensor::{Device, nn, nn::Module, optim::{Optimizer, Sgd}};
    /// let net = nn::Linear::new(3, 1, &Device::cpu());
    /// net.parameter("weight").unwrap().train(false);
    /// assert_eq!(Sgd::new(net.parameters(), 0.1).parameters().len(), 1);  // the bias
    /// ```
    pub fn train(&self, on: bool) {
        let mut slot = lock(&self.0);
        slot.trained = on;
        slot.value = if on { slot.value.requires_grad() } else { slot.value.stop_gradient() };
    }

    /// Moves the value to a device; queued, not waited for.
    #[track_caller]
    pub fn to(&self, device: &Device) {
        let value = self.value();
        if value.device() != *device {
            self.set(value.stop_gradient().to_device(device));
        }
    }

    /// Turns the value into another floating point type, and gradients with it; integers and truth values stay as
    /// they are. Queued, not waited for.
    ///
    /// ```
    /// use futensor::{DType, Device, nn::Parameter};
    /// let device = Device::cpu();
    /// let (weight, count) = (Parameter::new(device.ones([2])), Parameter::buffer(device.full((), 3)));
    /// weight.to_dtype(DType::BF16);
    /// count.to_dtype(DType::BF16);
    /// assert_eq!((weight.value().dtype(), count.value().dtype()), (DType::BF16, DType::I64));
    /// ```
    #[track_caller]
    pub fn to_dtype(&self, dtype: DType) {
        let value = self.value();
        if value.dtype() != dtype && value.dtype().is_float() {
            self.set(value.stop_gradient().to_dtype(dtype));
        }
    }

    /// True where both are the same cell.
    pub fn is(&self, other: &Parameter) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Parameter({})", self.value())
    }
}

/// The values of parameters, as [`grad`](crate::grad) wants them.
///
/// ```
/// use futensor::{Device, grad, nn, nn::Module};
/// let device = Device::cpu();
/// let net = nn::Linear::new(3, 1, &device);
/// let weights = nn::values(&net.parameters());
/// let gradients = grad(&net.forward(&device.ones([2, 3])).sum_all(), &weights);
/// assert_eq!(gradients[0].dims(), [1, 3]);
/// ```
pub fn values(parameters: &[Parameter]) -> Vec<TensorFuture> {
    parameters.iter().map(Parameter::value).collect()
}

/// Calls `f` with values that stand in for parameters' own, on this thread only: how one module runs on
/// several devices. A value that is set meanwhile (a running mean) is dropped.
pub(crate) fn substituted<R>(values: &[(Parameter, TensorFuture)], f: impl FnOnce() -> R) -> R {
    /// Takes the stand-ins off, after a panic too.
    struct Off(usize);
    impl Drop for Off {
        fn drop(&mut self) {
            let gone = STAND_INS.with_borrow_mut(|all| all.split_off(self.0));
            drop(gone);
        }
    }
    let stand_ins = values.iter().map(|(cell, value)| (cell.address(), value.clone()));
    let _off = STAND_INS.with_borrow_mut(|all| {
        let off = Off(all.len());
        all.extend(stand_ins);
        off
    });
    f()
}
