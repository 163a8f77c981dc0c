//! The weights of a model, dense or quantised.

use crate::error::Result;
use futensor::quant::{Quantized, Weight};
use futensor::{TensorFuture, cat};

/// Matrices that the same rows are multiplied by: one of them all, where they are of one kind.
pub struct Several {
    weights: Vec<Weight>,
    /// Columns of each result.
    sizes: Vec<usize>,
}

impl Several {
    pub fn new(weights: Vec<Weight>) -> Result<Several> {
        let sizes = weights.iter().map(|w| w.dims()[0]).collect();
        let dense: Option<Vec<&TensorFuture>> = weights.iter().map(dense).collect();
        let quantized: Option<Vec<&Quantized>> = weights.iter().map(quantized).collect();
        let joined = match (dense, quantized) {
            (Some(all), _) => Some(Weight::Dense(cat(&all, 0))),
            // Formats may differ: then each is by itself.
            (_, Some(all)) => Quantized::join(&all).ok().map(Weight::Quantized),
            _ => None,
        };
        Ok(Several { weights: joined.map_or(weights, |joined| vec![joined]), sizes })
    }

    /// Rows `[n, in]` to one `[n, out]` for each matrix.
    pub fn linear(&self, x: &TensorFuture) -> Vec<TensorFuture> {
        match &self.weights[..] {
            [joined] => joined.linear(x).split_with_sizes(&self.sizes[..], 1),
            each => each.iter().map(|weight| weight.linear(x)).collect(),
        }
    }
}

impl Layer {
    fn bytes(&self) -> usize {
        let several = [&self.query_key_value, &self.gate_up].into_iter().flat_map(|s| &s.weights);
        let norms =
            [&self.attention_norm, &self.feed_forward_norm].map(|x| Weight::from(x).bytes());
        several.chain([&self.output, &self.down]).map(Weight::bytes).chain(norms).sum()
    }
}

fn dense(weight: &Weight) -> Option<&TensorFuture> {
    if let Weight::Dense(x) = weight { Some(x) } else { None }
}

fn quantized(weight: &Weight) -> Option<&Quantized> {
    if let Weight::Quantized(x) = weight { Some(x) } else { None }
}

/// A layer's.
pub struct Layer {
    pub attention_norm: TensorFuture,
    pub query_key_value: Several,
    pub output: Weight,
    pub feed_forward_norm: TensorFuture,
    pub gate_up: Several,
    pub down: Weight,
}

/// A model's.
pub struct Weights {
    pub embedding: Weight,
    pub layers: Vec<Layer>,
    pub norm: TensorFuture,
    /// `None`: the embedding is used.
    pub head: Option<Weight>,
}

impl Weights {
    /// Bytes of the device's memory.
    pub fn bytes(&self) -> usize {
        let rest = [Some(&self.embedding), Some(&Weight::from(&self.norm)), self.head.as_ref()];
        let rest: usize = rest.into_iter().flatten().map(Weight::bytes).sum();
        rest + self.layers.iter().map(Layer::bytes).sum::<usize>()
    }

    pub fn vocabulary(&self) -> usize {
        self.embedding.dims()[0]
    }

    pub fn head(&self) -> &Weight {
        self.head.as_ref().unwrap_or(&self.embedding)
    }
}
