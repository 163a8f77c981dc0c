//! The weights of a model, dense or quantised.

use crate::error::Result;
use futensor::quant::{Quantized, Weight};
use futensor::{TensorFuture, cat};

/// A matrix, and what is added to its products.
pub struct Linear {
    pub weight: Weight,
    pub bias: Option<TensorFuture>,
}

impl Linear {
    pub fn linear(&self, x: &TensorFuture) -> TensorFuture {
        let product = self.weight.linear(x);
        match &self.bias {
            Some(bias) => product + bias,
            None => product,
        }
    }

    fn bytes(&self) -> usize {
        self.weight.bytes() + bytes(&self.bias)
    }
}

fn bytes<'a>(tensors: impl IntoIterator<Item = &'a TensorFuture>) -> usize {
    tensors.into_iter().map(|x| Weight::from(x).bytes()).sum()
}

/// Matrices that the same rows are multiplied by: one of them all, where they are of one kind.
pub struct Several {
    parts: Vec<Linear>,
    /// Columns of each result.
    sizes: Vec<usize>,
}

impl Several {
    pub fn new(parts: Vec<Linear>) -> Result<Several> {
        let sizes: Vec<usize> = parts.iter().map(|w| w.weight.dims()[0]).collect();
        let dense: Option<Vec<&TensorFuture>> = parts.iter().map(|p| dense(&p.weight)).collect();
        let quantized: Option<Vec<&Quantized>> =
            parts.iter().map(|p| quantized(&p.weight)).collect();
        let joined = match (dense, quantized) {
            (Some(all), _) => Some(Weight::Dense(cat(&all, 0))),
            // Formats may differ: then each is by itself.
            (_, Some(all)) => Quantized::join(&all).ok().map(Weight::Quantized),
            _ => None,
        };
        let Some(weight) = joined else { return Ok(Several { parts, sizes }) };
        let none = |part: &Linear, size: usize| {
            part.bias.clone().unwrap_or_else(|| part.weight.device().zeros([size]))
        };
        let bias = parts.iter().any(|part| part.bias.is_some()).then(|| {
            let each: Vec<TensorFuture> =
                parts.iter().zip(&sizes).map(|(part, &size)| none(part, size)).collect();
            cat(&each.iter().collect::<Vec<_>>(), 0)
        });
        Ok(Several { parts: vec![Linear { weight, bias }], sizes })
    }

    /// Of a matrix that has them all, with so many rows each.
    pub fn of(all: Linear, sizes: Vec<usize>) -> Several {
        Several { parts: vec![all], sizes }
    }

    /// True where something is added to a product.
    pub fn biased(&self) -> bool {
        self.parts.iter().any(|part| part.bias.is_some())
    }

    /// Rows `[n, in]` to one `[n, out]` for each matrix.
    pub fn linear(&self, x: &TensorFuture) -> Vec<TensorFuture> {
        match &self.parts[..] {
            [joined] => joined.linear(x).split_with_sizes(&self.sizes[..], 1),
            each => each.iter().map(|part| part.linear(x)).collect(),
        }
    }
}

fn dense(weight: &Weight) -> Option<&TensorFuture> {
    if let Weight::Dense(x) = weight { Some(x) } else { None }
}

fn quantized(weight: &Weight) -> Option<&Quantized> {
    if let Weight::Quantized(x) = weight { Some(x) } else { None }
}

/// RMSNorm, or LayerNorm where it is centred.
pub struct Norm {
    pub weight: TensorFuture,
    pub bias: Option<TensorFuture>,
    pub centred: bool,
    pub epsilon: f64,
}

impl Norm {
    /// Of the last dimension.
    pub fn of(&self, x: &TensorFuture) -> TensorFuture {
        match (&self.bias, self.centred) {
            (_, false) => x.rms_norm(&self.weight, self.epsilon),
            (None, true) => x.layer_norm_weighted(&self.weight, self.epsilon),
            (Some(bias), true) => x.layer_norm(&self.weight, bias, self.epsilon),
        }
    }

    fn bytes(&self) -> usize {
        bytes([&self.weight].into_iter().chain(&self.bias))
    }
}

/// A layer's.
pub struct Layer {
    pub before_attention: Option<Norm>,
    pub query_key_value: Several,
    pub query_norm: Option<Norm>,
    pub key_norm: Option<Norm>,
    pub output: Linear,
    pub after_attention: Option<Norm>,
    pub before_feed_forward: Option<Norm>,
    /// One matrix where there is no gate.
    pub gate_up: Several,
    pub down: Linear,
    pub after_feed_forward: Option<Norm>,
}

impl Layer {
    fn matrices(&self) -> impl Iterator<Item = &Linear> {
        let several = [&self.query_key_value, &self.gate_up].into_iter().flat_map(|s| &s.parts);
        several.chain([&self.output, &self.down])
    }

    fn is_dense(&self) -> bool {
        self.matrices().any(|matrix| dense(&matrix.weight).is_some())
    }

    fn bytes(&self) -> usize {
        let norms = [
            &self.before_attention,
            &self.query_norm,
            &self.key_norm,
            &self.after_attention,
            &self.before_feed_forward,
            &self.after_feed_forward,
        ];
        let norms: usize = norms.into_iter().flatten().map(Norm::bytes).sum();
        norms + self.matrices().map(Linear::bytes).sum::<usize>()
    }
}

/// A model's.
pub struct Weights {
    pub embedding: Weight,
    pub layers: Vec<Layer>,
    pub norm: Norm,
    /// `None`: the embedding is used.
    pub head: Option<Linear>,
}

impl Weights {
    /// Bytes of the device's memory.
    pub fn bytes(&self) -> usize {
        let head = self.head.as_ref().map_or(0, Linear::bytes);
        let layers: usize = self.layers.iter().map(Layer::bytes).sum();
        self.embedding.bytes() + self.norm.bytes() + head + layers
    }

    pub fn vocabulary(&self) -> usize {
        self.embedding.dims()[0]
    }

    /// True where a matrix that rows are multiplied by is a tensor, which is of float32.
    pub fn is_dense(&self) -> bool {
        let head = self.head.as_ref().map_or(&self.embedding, |head| &head.weight);
        dense(head).is_some() || self.layers.iter().any(Layer::is_dense)
    }
}
