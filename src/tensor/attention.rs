//! Scaled dot-product attention.

use super::build::{self, At};
use super::future::TensorFuture;
use super::stats::{float, wide};
use crate::dtype::{DType, Scalar};
use crate::graph::node::Op;
use crate::graph::operation::Refusal;
use std::panic::Location;

/// Options of an attention, by PyTorch's names.
///
/// ```
/// use futensor::{AttentionOptions, Device};
/// let device = Device::cpu();
/// let q = device.ones([2, 5, 8]);
/// let y = q.scaled_dot_product_attention(&q, &q, AttentionOptions::default().causal(true).scale(0.5));
/// assert_eq!(y.dims(), [2, 5, 8]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct AttentionOptions {
    mask: Option<TensorFuture>,
    causal: bool,
    scale: Option<f64>,
    dropout: f64,
}

impl From<()> for AttentionOptions {
    fn from(_: ()) -> AttentionOptions {
        AttentionOptions::default()
    }
}

impl AttentionOptions {
    /// Which keys each query sees: bool (true is seen), or numbers that are added to the scores. Broadcast to
    /// `[..., queries, keys]`.
    pub fn mask(mut self, mask: impl AsRef<TensorFuture>) -> AttentionOptions {
        self.mask = Some(mask.as_ref().clone());
        self
    }

    /// Query `i` sees keys `0..=i` alone.
    pub fn causal(mut self, causal: bool) -> AttentionOptions {
        self.causal = causal;
        self
    }

    /// What scores are multiplied by; one over the root of the width by default.
    pub fn scale(mut self, scale: f64) -> AttentionOptions {
        self.scale = Some(scale);
        self
    }

    /// The probability with which a weight is dropped.
    pub fn dropout(mut self, p: f64) -> AttentionOptions {
        self.dropout = p;
        self
    }
}

/// Refuses operands that do not belong together.
fn checked(q: &TensorFuture, k: &TensorFuture, v: &TensorFuture) -> Result<(), Refusal> {
    float(q)?;
    if k.dtype() != q.dtype() || v.dtype() != q.dtype() {
        return Err(Refusal::dtype(format!("types differ: {}, {} and {}", q.dtype(), k.dtype(), v.dtype())));
    }
    let ends = |x: &TensorFuture| match x.dims() {
        [.., rows, width] => Some((*rows, *width)),
        _ => None,
    };
    match (ends(q), ends(k), ends(v)) {
        (Some((_, wide)), Some((keys, other)), Some((values, _))) if wide == other && keys == values => Ok(()),
        _ => Err(Refusal::shape(format!("{}, {} and {}", q.shape(), k.shape(), v.shape()))),
    }
}

impl TensorFuture {
    /// `softmax(self key^T * scale + mask) value`: what these queries `[..., queries, width]` find among keys
    /// `[..., keys, width]` and values `[..., keys, out]` (Vaswani et al. 2017, arXiv:1706.03762). A query that
    /// sees no key finds zeros, as in PyTorch.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{AttentionOptions, Device};
    /// let device = Device::cpu();
    /// let (q, v) = (device.zeros([2, 1]), device.from_vec(vec![1.0f32, 3.0], [2, 1]));
    /// let all = q.scaled_dot_product_attention(&q, &v, ());
    /// assert_eq!(all.to_vec::<f32>().await?, [2.0, 2.0]);
    /// let causal = q.scaled_dot_product_attention(&q, &v, AttentionOptions::default().causal(true));
    /// assert_eq!(causal.to_vec::<f32>().await?, [1.0, 2.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn scaled_dot_product_attention(
        &self,
        key: impl AsRef<TensorFuture>,
        value: impl AsRef<TensorFuture>,
        options: impl Into<AttentionOptions>,
    ) -> TensorFuture {
        let (key, value, options) = (key.as_ref(), value.as_ref(), options.into());
        let at: At = Location::caller();
        if let Err(refusal) = checked(self, key, value) {
            return build::refused("scaled_dot_product_attention", self, refusal, at);
        }
        let (rows, width) = (self.dims()[self.rank() - 2], self.dims()[self.rank() - 1]);
        let keys = key.dims()[key.rank() - 2];
        let scale = options.scale.unwrap_or(1.0 / (width as f64).sqrt());
        let mut scores = (wide(self) * scale).matmul(wide(key).transpose(-2, -1));
        if options.causal {
            let places = |n: usize| {
                let op = Op::Arange { start: Scalar::Int(0), step: Scalar::Int(1) };
                build::create(self.port(), op, n.into(), DType::I64, at)
            };
            scores = places(rows).unsqueeze(1).ge(places(keys)).where_cond(&scores, f64::NEG_INFINITY);
        }
        let weights = match &options.mask {
            None => scores.softmax(-1),
            Some(mask) => {
                let scores = match mask.dtype() {
                    DType::Bool => mask.where_cond(&scores, f64::NEG_INFINITY),
                    _ => scores + wide(mask),
                };
                if keys == 0 {
                    scores
                } else {
                    // A row of nothing but minus infinity has no softmax: it is of zeros.
                    let blind = scores.max_keepdim(-1).eq(f64::NEG_INFINITY);
                    blind.where_cond(0.0, blind.where_cond(0.0, &scores).softmax(-1))
                }
            }
        };
        let weights = if options.dropout > 0.0 { weights.dropout(options.dropout) } else { weights };
        weights.matmul(wide(value)).to_dtype(self.dtype())
    }
}
