//! The model: the CNN of `examples/train_digits`, with the weights that its `--save` wrote.

#[path = "../../train_digits/cnn.rs"]
mod cnn;

use super::Outcome;
use cnn::cnn;
use futensor::nn::{Module, Sequential};
use futensor::serve::rows;
use futensor::{Device, TensorFuture, no_grad, safetensors};
use std::borrow::Cow;

/// One image of 8 x 8, row by row, from 0 (paper) to 16 (ink).
pub type Pixels = [f32; 64];

pub struct Model {
    device: Device,
    net: Sequential,
}

impl Model {
    /// The model from a safetensors file, with its weights on the device.
    pub async fn load(device: &Device, file: Cow<'static, [u8]>) -> Outcome<Model> {
        let net = cnn(device);
        net.load_state(safetensors::load_bytes(file, device).all().await?)?;
        net.eval();
        // The first request does not wait for the weights.
        for (_, value) in net.state() {
            value.await?;
        }
        Ok(Model { device: device.clone(), net })
    }

    /// Queues a batch: the probabilities of each image, a row of 10. Waits for nothing.
    pub fn forward(&self, images: &[Pixels]) -> Vec<TensorFuture> {
        let x =
            self.device.from_slice(images.as_flattened(), [images.len(), 1, 8, 8]) * (1.0 / 16.0);
        rows(&no_grad(|| self.net.forward(&x)).softmax(-1))
    }
}
