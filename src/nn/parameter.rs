//! `Parameter`: a cell that holds a module's value, which an optimizer replaces.

use crate::dtype::DType;
use crate::error::ErrorKind;
use crate::shape::Shape;
use crate::sync::{Mutex, MutexGuard, lock};
use crate::tensor::device::Device;
use crate::tensor::future::TensorFuture;
use crate::tensor::gradient::Leaf;
use smallvec::SmallVec;
use std::cell::RefCell;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

/// A weight of a module, or a buffer such as a running mean: a cell that holds a value. Values are
/// immutable; [`set`](Self::set) and [`update`](Self::update) replace the value in the cell. Clones
/// share the cell, so an optimizer updates the module's own parameters, and
/// two modules can tie their weights.
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
    value: Option<TensorFuture>,
    trained: bool,
    /// The known properties of a parameter without a value.
    lazy: Lazy,
}

impl Slot {
    /// Replaces the value; returns the old one, to be dropped outside the lock.
    fn put(&mut self, value: &TensorFuture) -> Option<TensorFuture> {
        let value = if self.trained { value.requires_grad() } else { value.stop_gradient() };
        self.value.replace(value)
    }
}

/// The known properties of a parameter before it has a value.
#[derive(Clone, Default)]
struct Lazy {
    sizes: SmallVec<[Option<usize>; 4]>,
    device: Option<Device>,
    dtype: Option<DType>,
}

impl Lazy {
    /// The sizes as a shape, with `?` for unknown ones.
    fn shape(&self) -> String {
        let sizes: Vec<String> =
            self.sizes.iter().map(|n| n.map_or("?".into(), |n| n.to_string())).collect();
        format!("[{}]", sizes.join(", "))
    }
}

thread_local! {
    /// Substitutes for parameters' values on this thread, by cell: see [`substituted`].
    static STAND_INS: RefCell<Vec<(usize, TensorFuture)>> = const { RefCell::new(Vec::new()) };
}

impl Parameter {
    /// A weight with this value, which becomes a leaf of the gradient tape.
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
        Parameter(Arc::new(Mutex::new(Slot { value: Some(value), trained, lazy: Lazy::default() })))
    }

    /// A weight without a value yet, whose sizes may be partly known: PyTorch's
    /// `UninitializedParameter`. Optimizers accept it, and skip it until [`set`](Self::set) or
    /// [`load_state`](super::Module::load_state) sets its value. Until then [`value`](Self::value)
    /// is a failed value without elements, and [`to`](Self::to) and [`to_dtype`](Self::to_dtype)
    /// are remembered.
    ///
    /// ```
    /// use futensor::{Device, nn::Parameter, optim::{Optimizer, Sgd}};
    /// let w = Parameter::lazy([Some(2), None]);
    /// let sgd = Sgd::new(vec![w.clone()], 0.1);
    /// assert!(w.is_lazy() && w.value().error().unwrap().is_argument());
    /// w.set(Device::cpu().ones([2, 3]));
    /// assert_eq!(sgd.parameters()[0].value().dims(), [2, 3]);
    /// ```
    pub fn lazy(sizes: impl IntoIterator<Item = Option<usize>>) -> Parameter {
        let lazy = Lazy { sizes: sizes.into_iter().collect(), ..Lazy::default() };
        Parameter(Arc::new(Mutex::new(Slot { value: None, trained: true, lazy })))
    }

    /// True if it has no value yet.
    pub fn is_lazy(&self) -> bool {
        self.stand_in().is_none() && lock(&self.0).value.is_none()
    }

    /// The device; `None` for a lazy parameter whose device is not set yet.
    ///
    /// ```
    /// use futensor::{Device, nn::Parameter};
    /// let w = Parameter::lazy([None]);
    /// assert_eq!(w.device(), None);
    /// w.to(&Device::cpu());
    /// assert_eq!(w.device(), Some(Device::cpu()));
    /// ```
    pub fn device(&self) -> Option<Device> {
        if let Some(value) = self.stand_in() {
            return Some(value.device());
        }
        let slot = lock(&self.0);
        slot.value.as_ref().map(TensorFuture::device).or_else(|| slot.lazy.device.clone())
    }

    /// The type that was set before there is a value.
    pub(super) fn lazy_dtype(&self) -> DType {
        lock(&self.0).lazy.dtype.unwrap_or(DType::F32)
    }

    /// The sizes that are known of one without a value, as a shape shows them; `None` where there
    /// is a value.
    pub(super) fn lazy_shape(&self) -> Option<String> {
        self.is_lazy().then(|| lock(&self.0).lazy.shape())
    }

    /// Whether a first value may have this shape; otherwise the expected shape.
    pub(super) fn takes(&self, shape: &Shape) -> Result<(), String> {
        let slot = lock(&self.0);
        let own = match &slot.value {
            Some(value) if value.shape() == shape => return Ok(()),
            Some(value) => value.shape().to_string(),
            None => {
                let sizes = &slot.lazy.sizes;
                let fits = |(want, n): (&Option<usize>, &usize)| want.is_none_or(|want| want == *n);
                if sizes.len() == shape.rank() && sizes.iter().zip(shape.iter()).all(fits) {
                    return Ok(());
                }
                slot.lazy.shape()
            }
        };
        Err(own)
    }

    /// Takes over the value of another parameter, with its place on the tape.
    pub(super) fn take_from(&self, other: &Parameter) {
        lock(&self.0).value = lock(&other.0).value.clone();
    }

    fn stand_in(&self) -> Option<TensorFuture> {
        STAND_INS.with_borrow(|all| {
            all.iter()
                .rev()
                .find(|(cell, _)| *cell == self.address())
                .map(|(_, value)| value.clone())
        })
    }

    fn address(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }

    /// The current value. A weight's value is a leaf of the gradient tape, for
    /// [`grad`](crate::grad). A [`lazy`](Self::lazy) parameter without a value gives a failed
    /// value.
    #[track_caller]
    pub fn value(&self) -> TensorFuture {
        if let Some(value) = self.stand_in() {
            return value;
        }
        let slot = lock(&self.0);
        if let Some(value) = &slot.value {
            return value.clone();
        }
        let Lazy { device, dtype, .. } = slot.lazy.clone();
        drop(slot);
        let text = "it has no value before the first forward pass, or `load_state`".into();
        let (device, dtype) = (device.unwrap_or_else(Device::cpu), dtype.unwrap_or(DType::F32));
        device.refused("parameter", ErrorKind::Argument, text, dtype, Location::caller())
    }

    /// Replaces the value. The new value is taken off its tape, and becomes a leaf if the parameter
    /// is trained. Values computed from the old value do not change.
    pub fn set(&self, value: impl AsRef<TensorFuture>) {
        let value = value.as_ref();
        if self.stand_in().is_some() {
            return;
        }
        let old = lock(&self.0).put(value);
        drop(old);
    }

    /// Replaces the value by `f` of it; `f` gets the value off the tape. Concurrent updates are not
    /// lost: if another value was set meanwhile, `f` is called again with that value. So `f` should
    /// only queue work. A [`lazy`](Self::lazy) weight without a value is unchanged.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, nn::Parameter};
    /// let count = Parameter::buffer(Device::cpu().zeros([1]));
    /// std::thread::scope(|scope| {
    ///     for _ in 0..4 {
    ///         scope.spawn(|| (0..25).for_each(|_| count.update(|count| count + 1.0)));
    ///     }
    /// });
    /// assert_eq!(count.value().item::<f32>().await?, 100.0);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn update(&self, mut f: impl FnMut(TensorFuture) -> TensorFuture) {
        while self.stand_in().is_none() {
            let Some(old) = lock(&self.0).value.as_ref().map(TensorFuture::stop_gradient) else {
                break;
            };
            // `f` is the caller's code: no lock is held around it.
            let new = f(old.clone());
            if Parameter::exchange(&[(self, old, new)]) {
                return;
            }
        }
        drop(f(self.value().stop_gradient()));
    }

    /// Replaces all of these values atomically, each with its expected old value. If one of the old
    /// values is no longer current, nothing changes and the result is false. The locks are held
    /// only while handles are swapped, and always taken in the same order.
    pub(crate) fn exchange(all: &[(&Parameter, TensorFuture, TensorFuture)]) -> bool {
        let mut all: SmallVec<[_; 8]> =
            all.iter().filter(|(cell, ..)| cell.stand_in().is_none()).collect();
        all.sort_by_key(|(cell, ..)| cell.address());
        // A parameter that is named twice is replaced once.
        all.dedup_by_key(|(cell, ..)| cell.address());
        let mut slots: SmallVec<[_; 8]> = all.iter().map(|(cell, ..)| lock(&cell.0)).collect();
        let is_there = |(slot, (_, old, _)): (&MutexGuard<'_, Slot>, &&(_, TensorFuture, _))| {
            slot.value.as_ref().is_some_and(|now| std::ptr::eq(&*now.node, &*old.node))
        };
        if !slots.iter().zip(&all).all(is_there) {
            return false;
        }
        let gone: SmallVec<[_; 8]> =
            slots.iter_mut().zip(&all).map(|(slot, (.., new))| slot.put(new)).collect();
        drop(slots);
        drop(gone);
        true
    }

    /// True if it is trained, that is, has gradients.
    pub fn is_trained(&self) -> bool {
        lock(&self.0).trained
    }

    /// Freezes a weight, or makes it trainable again.
    ///
    /// ```
    /// use futensor::{Device, nn, nn::Module, optim::{Optimizer, Sgd}};
    /// let net = nn::Linear::new(3, 1, &Device::cpu());
    /// net.parameter("weight").unwrap().train(false);
    /// assert_eq!(Sgd::new(net.parameters(), 0.1).parameters().len(), 1);  // the bias
    /// ```
    #[doc(alias = "requires_grad_")]
    pub fn train(&self, on: bool) {
        let mut slot = lock(&self.0);
        slot.trained = on;
        let turned =
            |value: TensorFuture| if on { value.requires_grad() } else { value.stop_gradient() };
        slot.value = slot.value.take().map(turned);
    }

    /// Moves the value to a device; queued, without waiting. A lazy parameter remembers the device.
    #[track_caller]
    pub fn to(&self, device: &Device) {
        if self.is_lazy() {
            lock(&self.0).lazy.device = Some(device.clone());
            return;
        }
        if self.value().device() != *device {
            self.update(|value| value.to_device(device));
        }
    }

    /// Converts the value, and so its gradients, to another floating point type; integers and bool
    /// are unchanged. Queued, without waiting.
    ///
    /// ```
    /// use futensor::{DType, Device, nn::Parameter};
    /// let device = Device::cpu();
    /// let (weight, count) =
    ///     (Parameter::new(device.ones([2])), Parameter::buffer(device.full((), 3)));
    /// weight.to_dtype(DType::BF16);
    /// count.to_dtype(DType::BF16);
    /// assert_eq!((weight.value().dtype(), count.value().dtype()), (DType::BF16, DType::I64));
    /// ```
    #[track_caller]
    pub fn to_dtype(&self, dtype: DType) {
        if self.is_lazy() {
            lock(&self.0).lazy.dtype = Some(dtype);
            return;
        }
        let own = self.value().dtype();
        if own != dtype && own.is_differentiable() {
            self.update(|value| value.to_dtype(dtype));
        }
    }

    /// True if both are the same cell.
    pub fn is(&self, other: &Parameter) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Leaf for Parameter {
    #[track_caller]
    fn leaf(&self) -> TensorFuture {
        self.value()
    }
}
impl Leaf for &Parameter {
    #[track_caller]
    fn leaf(&self) -> TensorFuture {
        self.value()
    }
}

// A panic leaves either a value or none: the cell is never partly written.
impl std::panic::UnwindSafe for Parameter {}
impl std::panic::RefUnwindSafe for Parameter {}

impl fmt::Debug for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_lazy() {
            true => write!(f, "Parameter(lazy {})", lock(&self.0).lazy.shape()),
            false => write!(f, "Parameter({})", self.value()),
        }
    }
}

/// The values of parameters, as [`grad`](crate::grad) takes them.
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

/// Calls `f` with substitutes for parameters' values, on this thread only, so that one module can
/// run on several devices. A value that is set meanwhile (a running mean) is dropped.
pub(crate) fn substituted<R>(values: &[(Parameter, TensorFuture)], f: impl FnOnce() -> R) -> R {
    /// Removes the substitutes, also after a panic.
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
