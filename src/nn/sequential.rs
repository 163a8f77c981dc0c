//! A sequence of modules.

use super::module::{Module, Part};
use crate::tensor::build::called_from;
use crate::tensor::future::TensorFuture;
use std::ops::Index;
use std::panic::Location;

/// A sequence of modules, indexed as `net[0]`. Parameter names begin with the index.
///
/// ```
/// use futensor::{Device, nn, nn::Module};
/// let device = Device::cpu();
/// let net = nn::Sequential::new().then(nn::Linear::new(4, 2, &device)).then(nn::Relu);
/// assert_eq!((net.len(), net[0].parameters().len()), (2, 2));
/// assert_eq!(net.forward(&device.ones([3, 4])).dims(), [3, 2]);
/// ```
#[derive(Default)]
pub struct Sequential(Vec<Box<dyn Module>>);

impl Sequential {
    /// An empty sequence: the identity.
    pub fn new() -> Sequential {
        Sequential::default()
    }

    /// Appends a module, by value.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, nn, nn::Module};
    /// let net = nn::Sequential::new().then(nn::Relu).then(nn::from_fn(|x| x + 1.0));
    /// let x = Device::cpu().from_vec(vec![-2.0f32, 3.0], [2]);
    /// assert_eq!(net.forward(&x).to_vec::<f32>().await?, [1.0, 4.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[doc(alias = "add_module")]
    pub fn then(mut self, module: impl Module + 'static) -> Sequential {
        self.0.push(Box::new(module));
        self
    }

    /// Appends a module, for example in a loop; otherwise use [`then`](Self::then).
    ///
    /// ```
    /// use futensor::{Device, nn, nn::Module};
    /// let (device, mut net) = (Device::cpu(), nn::Sequential::new());
    /// for width in [8, 4, 2] {
    ///     net.push(nn::LazyLinear::new(width));
    ///     net.push(nn::Relu);
    /// }
    /// assert_eq!(net.forward(&device.ones([1, 16])).dims(), [1, 2]);
    /// ```
    #[doc(alias = "append")]
    pub fn push(&mut self, module: impl Module + 'static) {
        self.0.push(Box::new(module));
    }

    /// The number of modules.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if there are no modules.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The modules, in order.
    ///
    /// ```
    /// use futensor::{Device, nn, nn::Module};
    /// let device = Device::cpu();
    /// let net = nn::Sequential::new().then(nn::Linear::new(4, 2, &device)).then(nn::Relu);
    /// let counts: Vec<usize> = net.iter().map(|module| module.parameters().len()).collect();
    /// assert_eq!(counts, [2, 0]);
    /// ```
    pub fn iter(&self) -> impl Iterator<Item = &dyn Module> {
        self.0.iter().map(|module| &**module)
    }
}

impl Index<usize> for Sequential {
    type Output = dyn Module;
    fn index(&self, i: usize) -> &(dyn Module + 'static) {
        &*self.0[i]
    }
}

impl Module for Sequential {
    #[track_caller]
    fn forward(&self, x: &TensorFuture) -> TensorFuture {
        called_from(Location::caller(), || {
            self.0.iter().fold(x.clone(), |x, module| module.forward(&x))
        })
    }
    fn parts(&self, visit: &mut dyn FnMut(&str, Part<'_>)) {
        for (i, module) in self.0.iter().enumerate() {
            visit(&i.to_string(), Part::Module(&**module));
        }
    }
}
