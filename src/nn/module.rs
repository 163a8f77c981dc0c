//! The trait of layers, and the methods of every module.

use super::parameter::Parameter;
use super::summary::Summary;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind};
use crate::tensor::build::called_from;
use crate::tensor::device::Device;
use crate::tensor::future::TensorFuture;
use std::collections::HashMap;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Whether a module is in training, for layers such as dropout and batch norm. Training is the
/// default.
#[derive(Debug)]
pub struct Mode(AtomicBool);

impl Default for Mode {
    fn default() -> Mode {
        Mode(AtomicBool::new(true))
    }
}

impl Mode {
    /// True in training.
    pub fn is_training(&self) -> bool {
        self.0.load(Relaxed)
    }

    /// Switches between training and evaluation.
    pub fn set(&self, training: bool) {
        self.0.store(training, Relaxed);
    }
}

/// A part of a module, as [`Module::parts`] names it.
pub enum Part<'a> {
    /// A weight.
    Parameter(&'a Parameter),
    /// A value that is saved with the weights but not trained.
    Buffer(&'a Parameter),
    /// An inner module.
    Module(&'a dyn Module),
    /// The switch between training and evaluation.
    Mode(&'a Mode),
}

/// A layer, or a model made of layers. Implement `forward` and `parts`, the names of its parts; the
/// other methods follow from these.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, TensorFuture, nn};
/// use nn::{Module, Part};
///
/// struct Mlp {
///     hidden: nn::Linear,
///     out: nn::Linear,
/// }
///
/// impl Module for Mlp {
///     fn forward(&self, x: &TensorFuture) -> TensorFuture {
///         self.out.forward(&self.hidden.forward(x).relu())
///     }
///     fn parts(&self, visit: &mut dyn FnMut(&str, Part<'_>)) {
///         visit("hidden", Part::Module(&self.hidden));
///         visit("out", Part::Module(&self.out));
///     }
/// }
///
/// let device = Device::cpu();
/// let net = Mlp { hidden: nn::Linear::new(4, 8, &device), out: nn::Linear::new(8, 2, &device) };
/// assert_eq!(net.forward(&device.ones([3, 4])).dims(), [3, 2]);
/// assert_eq!(net.named_parameters()[1].0, "hidden.bias");
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
pub trait Module: Send + Sync {
    /// The result for an input. Queued like any op: nothing waits, and an invalid input makes a
    /// failed value.
    fn forward(&self, x: &TensorFuture) -> TensorFuture;

    /// Names the parts, in order. None by default.
    #[doc(alias("children", "named_modules"))]
    fn parts(&self, visit: &mut dyn FnMut(&str, Part<'_>)) {
        let _ = visit;
    }

    /// What [`summary`](Self::summary) calls it: the name of its type.
    ///
    /// ```
    /// use futensor::{Device, nn, nn::Module};
    /// assert_eq!(nn::LayerNorm::new([3], &Device::cpu()).kind(), "LayerNorm");
    /// ```
    fn kind(&self) -> String {
        let name = std::any::type_name::<Self>();
        let name = name.split('<').next().unwrap_or(name);
        name.rsplit("::").next().unwrap_or(name).to_owned()
    }

    /// Its tree, to be printed: each part by the name that weight files have for it, with its type
    /// or its shape, and how many parameters there are. Nothing is read, and nothing waits.
    ///
    /// ```
    /// use futensor::{Device, nn, nn::Module};
    /// let device = Device::cpu();
    /// let net = nn::Sequential::new()
    ///     .then(nn::Linear::new(784, 16, &device))
    ///     .then(nn::Relu)
    ///     .then(nn::Linear::new(16, 10, &device));
    /// assert_eq!(net.summary().to_string(), "\
    /// Sequential                       12,730
    ///   0           Linear             12,560
    ///     0.weight  [16, 784] float32  12,544
    ///     0.bias    [16] float32           16
    ///   1           Relu                    0
    ///   2           Linear                170
    ///     2.weight  [10, 16] float32      160
    ///     2.bias    [10] float32           10
    /// 12,730 parameters, 50,920 bytes");
    /// ```
    #[doc(alias("print", "repr", "torchinfo", "count_parameters"))]
    fn summary(&self) -> Summary {
        let mut summary = Summary::default();
        let whole = summary.begin("", 0, self.kind());
        self.parts(&mut |name, part| describe(name, 1, &part, &mut summary));
        summary.end(whole);
        summary
    }

    /// Weights by name; those of inner modules are named `outer.inner.weight`, as in PyTorch.
    fn named_parameters(&self) -> Vec<(String, Parameter)> {
        let mut found = Vec::new();
        self.parts(&mut |name, part| {
            walk(name, &part, &mut |name, part| {
                if let Part::Parameter(p) = part {
                    found.push((name.to_string(), Parameter::clone(p)));
                }
            })
        });
        found
    }

    /// Values that are saved with the weights but not trained, by name.
    fn named_buffers(&self) -> Vec<(String, Parameter)> {
        let mut found = Vec::new();
        self.parts(&mut |name, part| {
            walk(name, &part, &mut |name, part| {
                if let Part::Buffer(p) = part {
                    found.push((name.to_string(), Parameter::clone(p)));
                }
            })
        });
        found
    }

    /// The weights, each once, in the order of their names.
    fn parameters(&self) -> Vec<Parameter> {
        let mut found: Vec<Parameter> = Vec::new();
        for (_, parameter) in self.named_parameters() {
            if !found.iter().any(|p| p.is(&parameter)) {
                found.push(parameter);
            }
        }
        found
    }

    /// The weight or buffer with this name.
    fn parameter(&self, name: &str) -> Option<Parameter> {
        let mut all = self.named_parameters().into_iter().chain(self.named_buffers());
        all.find(|(own, _)| own == name).map(|(_, parameter)| parameter)
    }

    /// The device of the first parameter; `None` without parameters, or if a lazy parameter has no
    /// device yet.
    fn device(&self) -> Option<Device> {
        self.parameters().iter().find_map(Parameter::device)
    }

    /// Moves all parameters and buffers to a device. The copies are queued; nothing waits. Lazy
    /// parameters remember the device.
    ///
    /// ```
    /// use futensor::{Device, nn, nn::Module};
    /// let (a, b) = (Device::cpu(), Device::cpu_with(Default::default()));
    /// let net = nn::Linear::new(2, 1, &a);
    /// net.to(&b);
    /// assert_eq!(net.weight().device(), b);
    /// assert_eq!(net.device(), Some(b));
    /// ```
    #[doc(alias("cuda", "cpu"))]
    #[track_caller]
    fn to(&self, device: &Device) {
        for (_, parameter) in self.named_parameters().into_iter().chain(self.named_buffers()) {
            parameter.to(device);
        }
    }

    /// [`to`](Self::to), under the name of the method of values.
    #[track_caller]
    fn to_device(&self, device: &Device) {
        self.to(device);
    }

    /// Converts all floating point parameters and buffers to another floating point type;
    /// [`load_state`](Self::load_state) then converts loaded values to it too. Nothing waits.
    ///
    /// ```
    /// use futensor::{DType, Device, nn, nn::Module};
    /// let device = Device::cpu();
    /// let net = nn::Linear::new(2, 1, &device);
    /// net.to_dtype(DType::BF16);
    /// assert_eq!(net.forward(&device.ones_dtype([3, 2], DType::BF16)).dtype(), DType::BF16);
    /// ```
    #[track_caller]
    fn to_dtype(&self, dtype: DType) {
        for (_, parameter) in self.named_parameters().into_iter().chain(self.named_buffers()) {
            parameter.to_dtype(dtype);
        }
    }

    /// Switches to training, the default: dropout drops, and batch norms update their averages.
    fn train(&self) {
        self.parts(&mut |name, part| switch(name, &part, true));
    }

    /// Switches to evaluation: dropout does nothing, and batch norms use their running averages.
    fn eval(&self) {
        self.parts(&mut |name, part| switch(name, &part, false));
    }

    /// The values of all parameters and buffers, by name, to be saved. [Lazy](Parameter::lazy)
    /// parameters without a value give failed values, so that an incomplete model is not saved.
    #[doc(alias = "state_dict")]
    fn state(&self) -> Vec<(String, TensorFuture)> {
        let all = self.named_parameters().into_iter().chain(self.named_buffers());
        all.map(|(name, parameter)| (name, parameter.value().stop_gradient())).collect()
    }

    /// Loads values by name, with PyTorch's names: from [`state`](Self::state), or from a file of
    /// weights. Each value is moved to the device of its parameter and converted to its type.
    /// Nothing waits. A [lazy](Parameter::lazy) parameter gets its value, and needs no forward
    /// pass.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, nn, nn::Module};
    /// let device = Device::cpu();
    /// let (a, b) = (nn::Linear::new(2, 1, &device), nn::Linear::new(2, 1, &device));
    /// b.load_state(a.state())?;
    /// assert_eq!(a.weight().to_vec::<f32>().await?, b.weight().to_vec::<f32>().await?);
    /// assert!(b.load_state([("wieght".to_string(), device.ones([1, 2]))]).is_err());
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// If a name is missing or unknown, or a shape differs; then nothing is changed.
    #[doc(alias = "load_state_dict")]
    #[track_caller]
    fn load_state(
        &self,
        state: impl IntoIterator<Item = (String, TensorFuture)>,
    ) -> Result<(), Error>
    where
        Self: Sized,
    {
        load(self, state.into_iter().collect())
    }
}

impl<M: Module + ?Sized> Module for Box<M> {
    #[track_caller]
    fn forward(&self, x: &TensorFuture) -> TensorFuture {
        called_from(Location::caller(), || (**self).forward(x))
    }
    fn parts(&self, visit: &mut dyn FnMut(&str, Part<'_>)) {
        (**self).parts(visit);
    }
    fn kind(&self) -> String {
        (**self).kind()
    }
}

impl<M: Module + ?Sized> Module for std::sync::Arc<M> {
    #[track_caller]
    fn forward(&self, x: &TensorFuture) -> TensorFuture {
        called_from(Location::caller(), || (**self).forward(x))
    }
    fn parts(&self, visit: &mut dyn FnMut(&str, Part<'_>)) {
        (**self).parts(visit);
    }
    fn kind(&self) -> String {
        (**self).kind()
    }
}

/// Visits a part and its inner parts, with full names.
fn walk(name: &str, part: &Part<'_>, visit: &mut dyn FnMut(&str, &Part<'_>)) {
    visit(name, part);
    if let Part::Module(module) = part {
        module.parts(&mut |inner, part| walk(&format!("{name}.{inner}"), &part, visit));
    }
}

/// Lines of a part, and of those of a module in it.
fn describe(name: &str, depth: usize, part: &Part<'_>, summary: &mut Summary) {
    match part {
        Part::Parameter(cell) => summary.cell(name.to_owned(), depth, cell, false),
        Part::Buffer(cell) => summary.cell(name.to_owned(), depth, cell, true),
        Part::Module(module) => {
            let open = summary.begin(name, depth, module.kind());
            module.parts(&mut |inner, part| {
                describe(&format!("{name}.{inner}"), depth + 1, &part, summary);
            });
            summary.end(open);
        }
        Part::Mode(_) => {}
    }
}

/// Switches a part and its inner parts between training and evaluation.
fn switch(name: &str, part: &Part<'_>, training: bool) {
    walk(name, part, &mut |_, part| {
        if let Part::Mode(mode) = part {
            mode.set(training);
        }
    });
}

/// Sets values by name: all of them, or none.
#[track_caller]
fn load(module: &impl Module, state: Vec<(String, TensorFuture)>) -> Result<(), Error> {
    let at = Location::caller();
    let error = |kind, text: String| Err(Error::new(kind, "load_state", text, at));
    let mut given: HashMap<String, TensorFuture> = state.into_iter().collect();
    let mut found: Vec<(Parameter, TensorFuture)> = Vec::new();
    for (name, parameter) in module.named_parameters().into_iter().chain(module.named_buffers()) {
        let Some(value) = given.remove(&name) else {
            return error(ErrorKind::Argument, format!("there is no value for {name}"));
        };
        if let Err(own) = parameter.takes(value.shape()) {
            let text = format!("{name} has shape {own}, but the value has {}", value.shape());
            return error(ErrorKind::Shape, text);
        }
        let device = parameter.device().unwrap_or_else(|| value.device());
        let dtype =
            if parameter.is_lazy() { parameter.lazy_dtype() } else { parameter.value().dtype() };
        found.push((parameter, value.to_device(&device).to_dtype(dtype)));
    }
    let mut names: Vec<String> = given.into_keys().collect();
    names.sort();
    if !names.is_empty() {
        return error(
            ErrorKind::Argument,
            format!("the module has nothing named {}", names.join(", ")),
        );
    }
    for (parameter, value) in found {
        parameter.set(value);
    }
    Ok(())
}
