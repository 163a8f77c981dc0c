//! The two networks.

use futensor::nn::{BatchNorm, Conv2d, Dropout, Flatten, LazyLinear, Linear, MaxPool2d, Relu, Sequential};
use futensor::{ConvOptions, Device};

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
        let padded = || ConvOptions::default().padding(1);
        match self {
            Model::Mlp => Sequential::new()
                .then(Flatten)
                .then(Linear::new(64, 128, device))
                .then(Relu)
                .then(Dropout::new(0.2))
                .then(Linear::new(128, 64, device))
                .then(Relu)
                .then(Linear::new(64, 10, device)),
            Model::Cnn => Sequential::new()
                .then(Conv2d::without_bias(1, 16, 3, padded(), device))
                .then(BatchNorm::new(16, device))
                .then(Relu)
                .then(Conv2d::new(16, 32, 3, padded(), device))
                .then(Relu)
                .then(MaxPool2d::new(2))
                .then(Flatten)
                .then(Dropout::new(0.2))
                .then(LazyLinear::new(10)),
        }
    }
}
