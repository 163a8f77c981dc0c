//! The weights of a model, dense or quantised.

use futensor::TensorFuture;

/// A matrix `[out, in]` that rows are multiplied by.
pub enum Weight {
    Dense(TensorFuture),
}

impl Weight {
    /// Rows `[n, in]` to `[n, out]`.
    pub fn apply(&self, x: &TensorFuture) -> TensorFuture {
        match self {
            Weight::Dense(weight) => x.matmul(weight.t()),
        }
    }

    /// Its rows of these numbers.
    pub fn rows(&self, numbers: &TensorFuture) -> TensorFuture {
        match self {
            Weight::Dense(weight) => weight.embedding(numbers),
        }
    }

    pub fn dims(&self) -> [usize; 2] {
        match self {
            Weight::Dense(weight) => [weight.dims()[0], weight.dims()[1]],
        }
    }
}

/// A layer's.
pub struct Layer {
    pub attention_norm: TensorFuture,
    pub query: Weight,
    pub key: Weight,
    pub value: Weight,
    pub output: Weight,
    pub feed_forward_norm: TensorFuture,
    pub gate: Weight,
    pub up: Weight,
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
    pub fn vocabulary(&self) -> usize {
        self.embedding.dims()[0]
    }

    pub fn head(&self) -> &Weight {
        self.head.as_ref().unwrap_or(&self.embedding)
    }
}
