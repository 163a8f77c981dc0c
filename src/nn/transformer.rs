//! Transformer encoder layers.

use super::activation::Relu;
use super::attention::MultiheadAttention;
use super::dropout::Dropout;
use super::linear::Linear;
use super::module::{Module, Part};
use super::norm::LayerNorm;
use crate::tensor::device::Device;
use crate::tensor::future::TensorFuture;
use crate::tensor::methods::attention::scaled::AttentionOptions;

/// A transformer encoder layer (Vaswani et al. 2017, arXiv:1706.03762, section 3.1) over `[...,
/// places, width]`: a block of self-attention, and a block of two linear layers with an activation
/// between them, each with a residual connection and a layer norm. PyTorch's with `batch_first`,
/// and PyTorch's names; dropout is 0 by default.
///
/// ```
/// use futensor::{Device, nn, nn::Module};
/// let device = Device::cpu();
/// // As in BERT: 4 heads, 64 in the middle.
/// let layer = nn::TransformerEncoderLayer::new(16, 4, 64, &device).activation(nn::Gelu)
///     .eps(1e-12);
/// assert_eq!(layer.forward(&device.ones([2, 5, 16])).dims(), [2, 5, 16]);
/// assert_eq!(layer.parameter("self_attn.in_proj_weight").unwrap().value().dims(), [48, 16]);
/// assert_eq!(layer.parameter("linear1.weight").unwrap().value().dims(), [64, 16]);
/// ```
pub struct TransformerEncoderLayer {
    self_attn: MultiheadAttention,
    linear1: Linear,
    linear2: Linear,
    norm1: LayerNorm,
    norm2: LayerNorm,
    activation: Box<dyn Module>,
    dropouts: [Dropout; 3],
    norm_first: bool,
}

impl TransformerEncoderLayer {
    /// A layer with this width and number of heads, and width `middle` between its linear layers.
    /// The activation is [`Relu`], and the norms' `eps` is 1e-5.
    ///
    /// # Errors
    /// As [`MultiheadAttention::new`].
    #[track_caller]
    pub fn new(
        width: usize,
        heads: usize,
        middle: usize,
        device: &Device,
    ) -> TransformerEncoderLayer {
        TransformerEncoderLayer {
            self_attn: MultiheadAttention::new(width, heads, device),
            linear1: Linear::new(width, middle, device),
            linear2: Linear::new(middle, width, device),
            norm1: LayerNorm::new([width], device),
            norm2: LayerNorm::new([width], device),
            activation: Box::new(Relu),
            dropouts: [(); 3].map(|()| Dropout::new(0.0)),
            norm_first: false,
        }
    }

    /// Sets the activation between the linear layers.
    pub fn activation(self, activation: impl Module + 'static) -> TransformerEncoderLayer {
        TransformerEncoderLayer { activation: Box::new(activation), ..self }
    }

    /// Sets `eps` of both norms.
    pub fn eps(self, eps: f64) -> TransformerEncoderLayer {
        TransformerEncoderLayer { norm1: self.norm1.eps(eps), norm2: self.norm2.eps(eps), ..self }
    }

    /// Sets the dropout probability in training: for attention weights, activations, and the
    /// outputs of both blocks.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, nn, nn::Module};
    /// let device = Device::cpu();
    /// let layer = nn::TransformerEncoderLayer::new(8, 2, 16, &device).dropout(0.5);
    /// let x = device.randn([4, 8]);
    /// let apart = |a, b: futensor::TensorFuture| (b - a).abs().max_all();
    /// assert!(apart(layer.forward(&x), layer.forward(&x)).item::<f32>().await? > 0.0);
    /// layer.eval();
    /// assert_eq!(apart(layer.forward(&x), layer.forward(&x)).item::<f32>().await?, 0.0);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    pub fn dropout(self, p: f64) -> TransformerEncoderLayer {
        TransformerEncoderLayer {
            self_attn: self.self_attn.dropout(p),
            dropouts: [(); 3].map(|()| Dropout::new(p)),
            ..self
        }
    }

    /// Puts each norm before its block instead of after it (PyTorch's `norm_first`; Xiong et al.
    /// 2020, arXiv:2002.04745).
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, nn, nn::Module};
    /// let device = Device::cpu();
    /// let layer = nn::TransformerEncoderLayer::new(8, 2, 16, &device).norm_first(true);
    /// for (_, parameter) in layer.named_parameters() {
    ///     parameter.set(parameter.value() * 0.0);
    /// }
    /// let x = device.randn([4, 8]);                        // passes through unchanged
    /// assert_eq!(layer.forward(&x).to_vec::<f32>().await?, x.to_vec::<f32>().await?);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    pub fn norm_first(self, first: bool) -> TransformerEncoderLayer {
        TransformerEncoderLayer { norm_first: first, ..self }
    }

    /// The result with attention options, such as a mask: see [`MultiheadAttention::forward_with`].
    ///
    /// ```
    /// use futensor::{AttentionOptions, Device, nn};
    /// let device = Device::cpu();
    /// let layer = nn::TransformerEncoderLayer::new(8, 2, 16, &device);
    /// let y = layer
    ///     .forward_with(&device.ones([3, 5, 8]), AttentionOptions::default().causal(true));
    /// assert_eq!(y.dims(), [3, 5, 8]);
    /// ```
    #[track_caller]
    pub fn forward_with(
        &self,
        x: &TensorFuture,
        options: impl Into<AttentionOptions>,
    ) -> TensorFuture {
        let [inner, after_attention, after] = &self.dropouts;
        let options = options.into();
        if self.norm_first {
            let found = self.self_attn.forward_with(&self.norm1.forward(x), options);
            let x = after_attention.forward(&found) + x;
            let made = self.fed(&self.norm2.forward(&x), inner);
            return after.forward(&made) + x;
        }
        let found = self.self_attn.forward_with(x, options);
        let x = self.norm1.forward(&(after_attention.forward(&found) + x));
        let made = self.fed(&x, inner);
        self.norm2.forward(&(after.forward(&made) + x))
    }

    /// The two linear layers, with the activation between them.
    #[track_caller]
    fn fed(&self, x: &TensorFuture, inner: &Dropout) -> TensorFuture {
        let wide = self.activation.forward(&self.linear1.forward(x));
        self.linear2.forward(&inner.forward(&wide))
    }
}

impl Module for TransformerEncoderLayer {
    #[track_caller]
    fn forward(&self, x: &TensorFuture) -> TensorFuture {
        self.forward_with(x, ())
    }
    fn parts(&self, visit: &mut dyn FnMut(&str, Part<'_>)) {
        visit("self_attn", Part::Module(&self.self_attn));
        visit("linear1", Part::Module(&self.linear1));
        visit("linear2", Part::Module(&self.linear2));
        visit("norm1", Part::Module(&self.norm1));
        visit("norm2", Part::Module(&self.norm2));
        visit("activation", Part::Module(&*self.activation));
        for (dropout, name) in self.dropouts.iter().zip(["dropout", "dropout1", "dropout2"]) {
            visit(name, Part::Module(dropout));
        }
    }
}
