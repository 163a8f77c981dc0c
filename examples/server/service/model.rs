//! The model: 64 pixels, 96 hidden units, 10 digits.

use super::Outcome;
use futensor::serve::rows;
use futensor::{Device, Tensor, TensorFuture};
use safetensors::{Dtype, SafeTensors};

/// One image of 8 x 8, row by row, from 0 (paper) to 16 (ink).
pub type Pixels = [f32; 64];

pub struct Model {
    device: Device,
    /// Weights as PyTorch keeps them, `[out, in]`, and biases.
    layers: [(Tensor, Tensor); 2],
}

impl Model {
    /// The model from a safetensors file, with its weights on the device.
    pub async fn load(device: &Device, file: &[u8]) -> Outcome<Model> {
        let tensors = SafeTensors::deserialize(file)?;
        let tensor = |name: &str| -> Outcome<TensorFuture> {
            let view = tensors.tensor(name)?;
            if view.dtype() != Dtype::F32 {
                return Err(format!("{name} is {:?}, not F32", view.dtype()).into());
            }
            let data = view.data().as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
            Ok(device.from_vec::<f32>(data, view.shape()))
        };
        let mut layers = Vec::new();
        for name in ["0", "2"] {
            layers.push((tensor(&format!("{name}.weight"))?.await?, tensor(&format!("{name}.bias"))?.await?));
        }
        let layers: [_; 2] = layers.try_into().map_err(|_| "two layers")?;
        let (first, last) = (layers[0].0.dims(), layers[1].0.dims());
        if first.len() != 2 || first[1] != 64 || last.len() != 2 || last != [10, first[0]] {
            return Err(format!("weights of {first:?} and {last:?} do not classify digits").into());
        }
        Ok(Model { device: device.clone(), layers })
    }

    /// Queues a batch: the probabilities of each image, a row of 10. Waits for nothing.
    pub fn forward(&self, images: Vec<Pixels>) -> Vec<TensorFuture> {
        let n = images.len();
        let x = self.device.from_vec(images.into_flattened(), [n, 64]) * (1.0 / 16.0);
        let [(w0, b0), (w1, b1)] = &self.layers;
        let hidden = (x.matmul(w0.t()) + b0).relu();
        let logits = hidden.matmul(w1.t()) + b1;
        rows(&logits.softmax(-1))
    }
}
