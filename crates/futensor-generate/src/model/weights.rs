//! The weights of a model, dense or quantised.

use super::config::{Activation, Experts};
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

/// Experts of a layer: a router picks some for each row (Shazeer et al. 2017, arXiv:1701.06538),
/// and the rows of an expert meet its weights together.
pub struct Mixture {
    pub router: Linear,
    /// Of all experts, one below the other.
    pub gate: Quantized,
    pub up: Quantized,
    pub down: Quantized,
    /// What every row sees as well.
    pub shared: Option<SharedExpert>,
}

/// An expert that every row sees, as much as the row says.
pub struct SharedExpert {
    /// `[width]`.
    pub share: TensorFuture,
    pub gate_up: Several,
    pub down: Linear,
}

impl Mixture {
    /// Bytes of the experts that are picked.
    pub fn bytes(&self) -> usize {
        [&self.gate, &self.up, &self.down].into_iter().map(Quantized::bytes).sum()
    }

    /// Rows `[n, width]` to as many.
    pub fn of(&self, x: &TensorFuture, config: &Experts, activation: Activation) -> TensorFuture {
        let ([n, width], used) = ([x.dims()[0], x.dims()[1]], config.used);
        let all = self.router.linear(x).softmax(-1);
        let (mut shares, which) = all.topk(used, -1, true);
        if config.normalised {
            shares = &shares / shares.sum_keepdim(-1);
        }
        // A row for each of its experts.
        let rows = x.unsqueeze(1).expand([n, used, width]).reshape([n * used, width]);
        let which = which.reshape([n * used]);
        let by = |w: &Quantized, x: &TensorFuture| w.grouped_linear(x, &which, config.count);
        let inner = activation.of(&by(&self.gate, &rows)) * by(&self.up, &rows);
        let found = by(&self.down, &inner).reshape([n, used, width]) * shares.unsqueeze(2);
        let found = found.sum(1);
        let Some(shared) = &self.shared else { return found };
        let [gate, up] = &shared.gate_up.linear(x)[..] else {
            unreachable!("a product for each of two weights")
        };
        let all = shared.down.linear(&(activation.of(gate) * up));
        found + all * (x * &shared.share).sum_keepdim(-1).sigmoid()
    }
}

/// What is behind attention.
pub enum FeedForward {
    Whole {
        /// One matrix where there is no gate.
        gate_up: Several,
        down: Linear,
    },
    Experts(Box<Mixture>),
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
    pub feed_forward: FeedForward,
    pub after_feed_forward: Option<Norm>,
}

impl Layer {
    fn matrices(&self) -> impl Iterator<Item = &Linear> {
        let (gate_up, down, router) = match &self.feed_forward {
            FeedForward::Whole { gate_up, down } => (Some(gate_up), Some(down), None),
            FeedForward::Experts(all) => {
                let shared = all.shared.as_ref();
                (shared.map(|s| &s.gate_up), shared.map(|s| &s.down), Some(&all.router))
            }
        };
        let several = [Some(&self.query_key_value), gate_up].into_iter().flatten();
        let single = [Some(&self.output), down, router].into_iter().flatten();
        several.flat_map(|s| &s.parts).chain(single)
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
        let experts = match &self.feed_forward {
            FeedForward::Whole { .. } => 0,
            FeedForward::Experts(all) => {
                all.bytes() + bytes(all.shared.as_ref().map(|shared| &shared.share))
            }
        };
        norms + experts + self.matrices().map(Linear::bytes).sum::<usize>()
    }
}

/// A model's.
pub struct Weights {
    pub embedding: Weight,
    pub layers: Vec<Layer>,
    pub norm: Norm,
    /// `None`: the embedding is used.
    pub head: Option<Linear>,
    /// A matrix that rows are multiplied by is a tensor, which is of float32.
    pub is_dense: bool,
}

impl Weights {
    pub fn new(embedding: Weight, layers: Vec<Layer>, norm: Norm, head: Option<Linear>) -> Weights {
        let last = head.as_ref().map_or(&embedding, |head| &head.weight);
        let is_dense = dense(last).is_some() || layers.iter().any(Layer::is_dense);
        Weights { embedding, layers, norm, head, is_dense }
    }

    /// Bytes of the device's memory.
    pub fn bytes(&self) -> usize {
        let head = self.head.as_ref().map_or(0, Linear::bytes);
        let layers: usize = self.layers.iter().map(Layer::bytes).sum();
        self.embedding.bytes() + self.norm.bytes() + head + layers
    }

    pub fn vocabulary(&self) -> usize {
        self.embedding.dims()[0]
    }
}
