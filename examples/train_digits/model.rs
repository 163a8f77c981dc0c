//! The two networks.

use crate::cnn::cnn;
use futensor::Device;
use futensor::nn::{BatchNorm, Dropout, Flatten, Linear, Relu, Sequential};

/// Which network is trained, and how long.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Model {
    Mlp,
    Cnn,
}

impl Model {
    pub const BOTH: [Model; 2] = [Model::Mlp, Model::Cnn];

    pub fn name(self) -> &'static str {
        match self {
            Model::Mlp => "mlp",
            Model::Cnn => "cnn",
        }
    }

    pub fn epochs(self) -> usize {
        match self {
            Model::Mlp => 40,
            Model::Cnn => 20,
        }
    }

    /// Held-out accuracy that it reaches.
    pub fn accuracy_wanted(self) -> f64 {
        match self {
            Model::Mlp => 0.97,
            Model::Cnn => 0.98,
        }
    }

    pub fn made(self, device: &Device) -> Sequential {
        match self {
            Model::Mlp => Sequential::new()
                .then(Flatten)
                .then(Linear::new(64, 256, device))
                .then(BatchNorm::new(256, device))
                .then(Relu)
                .then(Dropout::new(0.3))
                .then(Linear::new(256, 128, device))
                .then(BatchNorm::new(128, device))
                .then(Relu)
                .then(Dropout::new(0.3))
                .then(Linear::new(128, 10, device)),
            Model::Cnn => cnn(device),
        }
    }
}
