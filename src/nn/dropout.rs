//! Dropout.

use super::module::{Mode, Module, Part};
use crate::tensor::future::TensorFuture;
use crate::tensor::generator::Generator;

/// In training, [`dropout`](TensorFuture::dropout); in evaluation, the identity.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, nn, nn::Module};
/// let (dropout, x) = (nn::Dropout::new(0.5), Device::cpu().ones([100]));
/// let dropped = dropout.forward(&x).to_vec::<f32>().await?;
/// assert!(dropped.iter().all(|&v| v == 0.0 || v == 2.0));
/// dropout.eval();
/// assert_eq!(dropout.forward(&x).to_vec::<f32>().await?, [1.0; 100]);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
#[derive(Debug)]
pub struct Dropout {
    p: f64,
    generator: Option<Generator>,
    mode: Mode,
}

impl Dropout {
    /// Drops with probability `p`, with random numbers from the input's device.
    pub fn new(p: f64) -> Dropout {
        Dropout { p, generator: None, mode: Mode::default() }
    }

    /// Drops with random numbers from a given generator.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, Generator, nn, nn::Module};
    /// let x = Device::cpu().ones([100]);
    /// let drawn = |seed| nn::Dropout::with_generator(0.5, Generator::new(seed)).forward(&x);
    /// assert_eq!(drawn(3).to_vec::<f32>().await?, drawn(3).to_vec::<f32>().await?);
    /// assert_ne!(drawn(3).to_vec::<f32>().await?, drawn(4).to_vec::<f32>().await?);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    pub fn with_generator(p: f64, generator: Generator) -> Dropout {
        Dropout { p, generator: Some(generator), mode: Mode::default() }
    }
}

impl Module for Dropout {
    #[track_caller]
    fn forward(&self, x: &TensorFuture) -> TensorFuture {
        match (&self.generator, self.mode.is_training()) {
            (_, false) => x.clone(),
            (None, true) => x.dropout(self.p),
            (Some(generator), true) => x.dropout_with(self.p, generator),
        }
    }
    fn parts(&self, visit: &mut dyn FnMut(&str, Part<'_>)) {
        visit("mode", Part::Mode(&self.mode));
    }
}
