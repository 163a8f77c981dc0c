//! The small CNN: `train_digits` trains it, and `examples/server` serves what was trained.

use futensor::nn::{
    BatchNorm, Conv2d, Dropout, Flatten, LazyLinear, MaxPool2d, Module, Relu, Sequential,
};
use futensor::{ConvOptions, Device, no_grad};

/// From images `[n, 1, 8, 8]` of 0 to 1 to the logits of ten digits.
pub fn cnn(device: &Device) -> Sequential {
    let padded = || ConvOptions::default().padding(1);
    let net = Sequential::new()
        .then(Conv2d::without_bias(1, 16, 3, padded(), device))
        .then(BatchNorm::new(16, device))
        .then(Relu)
        .then(Conv2d::new(16, 32, 3, padded(), device))
        .then(Relu)
        .then(MaxPool2d::new(2))
        .then(Flatten)
        .then(Dropout::new(0.2))
        .then(LazyLinear::new(10));
    // The lazy layer is made by the first image that it sees; in use, so that nothing is learnt
    // from that one.
    net.eval();
    drop(no_grad(|| net.forward(&device.zeros([1, 1, 8, 8]))));
    net.train();
    net
}
