//! Multi-head attention.

use super::init::uniform;
use super::linear::Linear;
use super::module::{Mode, Module, Part};
use super::parameter::Parameter;
use crate::dtype::DType;
use crate::error::{ErrorKind, number_of};
use crate::tensor::device::Device;
use crate::tensor::future::TensorFuture;
use crate::tensor::methods::attention::scaled::AttentionOptions;
use std::panic::Location;

/// Multi-head attention (Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2) over `[..., places,
/// width]`: PyTorch's with `batch_first`, and PyTorch's names. `in_proj_weight` `[3 width, width]`
/// has the rows of queries, keys and values one after the other, so that self-attention takes one
/// product.
///
/// In [`Module::forward`] every place attends to every place; [`forward_with`](Self::forward_with)
/// takes a mask.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{AttentionOptions, Device, nn, nn::Module};
/// let device = Device::cpu();
/// let attention = nn::MultiheadAttention::new(8, 2, &device);
/// let names: Vec<String> = attention.named_parameters().into_iter().map(|(name, _)| name)
///     .collect();
/// assert_eq!(names, ["in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"]);
///
/// let x = device.randn([2, 5, 8]);
/// assert_eq!(attention.forward(&x).dims(), [2, 5, 8]);
/// // Padded rows of lengths 5 and 3: the mask of the keys, for all heads and queries.
/// let lengths = device.from_vec(vec![5i64, 3], [2, 1, 1, 1]);
/// let seen = device.arange(0, 5, 1).lt(lengths);
/// let y = attention.forward_with(&x, AttentionOptions::default().mask(seen));
/// let alone = attention.forward(&x.narrow(0, 1, 1).narrow(1, 0, 3));
/// let apart = (y.narrow(0, 1, 1).narrow(1, 0, 3) - alone).abs().max_all();
/// assert!(apart.item::<f32>().await? < 1e-5);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
#[derive(Debug)]
pub struct MultiheadAttention {
    in_proj_weight: Parameter,
    in_proj_bias: Option<Parameter>,
    out_proj: Linear,
    width: usize,
    heads: usize,
    dropout: f64,
    mode: Mode,
}

impl MultiheadAttention {
    /// A layer whose heads are `width / heads` wide, with PyTorch's initial values from the
    /// device's generator.
    ///
    /// # Errors
    /// If `width` is not divisible by `heads`, the weights and the layer's results are failed
    /// values.
    ///
    /// ```
    /// use futensor::{Device, nn, nn::Module};
    /// let device = Device::cpu();
    /// let wrong = nn::MultiheadAttention::new(8, 3, &device);
    /// let error = wrong.forward(&device.ones([1, 4, 8])).error().unwrap();
    /// assert_eq!((error.op(), error.message()),
    ///     ("MultiheadAttention", "a width of 8 does not divide into 3 heads"));
    /// ```
    #[track_caller]
    pub fn new(width: usize, heads: usize, device: &Device) -> MultiheadAttention {
        MultiheadAttention::made(width, heads, true, device)
    }

    /// A layer without biases.
    ///
    /// ```
    /// use futensor::{Device, nn, nn::Module};
    /// let attention = nn::MultiheadAttention::without_bias(8, 2, &Device::cpu());
    /// assert_eq!(attention.parameters().len(), 2);
    /// ```
    ///
    /// # Errors
    /// As [`new`](Self::new).
    #[track_caller]
    pub fn without_bias(width: usize, heads: usize, device: &Device) -> MultiheadAttention {
        MultiheadAttention::made(width, heads, false, device)
    }

    #[track_caller]
    fn made(width: usize, heads: usize, bias: bool, device: &Device) -> MultiheadAttention {
        let (weight, at) = (|value: TensorFuture| Parameter::new(value), Location::caller());
        if heads == 0 || !width.is_multiple_of(heads) || width.checked_mul(3).is_none() {
            let message = format!(
                "a width of {width} does not divide into {}",
                number_of(heads, "head", "heads")
            );
            let failed = || {
                weight(device.refused(
                    "MultiheadAttention",
                    ErrorKind::Argument,
                    message.clone(),
                    DType::F32,
                    at,
                ))
            };
            return MultiheadAttention {
                in_proj_weight: failed(),
                in_proj_bias: bias.then(failed),
                out_proj: Linear::from_parameters(failed(), bias.then(failed)),
                width,
                heads: 1,
                dropout: 0.0,
                mode: Mode::default(),
            };
        }
        // Glorot and Bengio 2010, "Understanding the difficulty of training deep feedforward neural
        // networks", of `width` inputs and three times as many outputs: sqrt(6 / (4 width)).
        let glorot = (1.5 / width.max(1) as f64).sqrt();
        let zeros = |n: usize| bias.then(|| weight(device.zeros([n])));
        let out = uniform(device, [width, width], super::init::bound(width));
        MultiheadAttention {
            in_proj_weight: weight(uniform(device, [3 * width, width], glorot)),
            in_proj_bias: zeros(3 * width),
            out_proj: Linear::from_parameters(weight(out), zeros(width)),
            width,
            heads,
            dropout: 0.0,
            mode: Mode::default(),
        }
    }

    /// Drops attention weights in training, each with this probability.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, nn, nn::Module};
    /// let device = Device::cpu();
    /// let attention = nn::MultiheadAttention::new(4, 1, &device).dropout(0.5);
    /// let x = device.randn([64, 4]);
    /// let differ = (attention.forward(&x) - attention.forward(&x)).abs().max_all();
    /// assert!(differ.item::<f32>().await? > 0.0);
    /// attention.eval();
    /// let differ = (attention.forward(&x) - attention.forward(&x)).abs().max_all();
    /// assert_eq!(differ.item::<f32>().await?, 0.0);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    pub fn dropout(self, p: f64) -> MultiheadAttention {
        MultiheadAttention { dropout: p, ..self }
    }

    /// Self-attention with options: every place of `x` `[..., places, width]` attends to the places
    /// that it sees. The mask is broadcast to `[batch, heads, places, places]`, where `batch` is
    /// all dimensions before the places, merged. As in
    /// [`scaled_dot_product_attention`](TensorFuture::scaled_dot_product_attention), true means
    /// seen, and a place that sees nothing gives zeros. The dropout probability is the layer's own.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{AttentionOptions, Device, nn};
    /// let device = Device::cpu();
    /// let attention = nn::MultiheadAttention::new(8, 2, &device);
    /// let x = device.randn([1, 5, 8]);
    /// let y = attention.forward_with(&x, AttentionOptions::default().causal(true));
    /// let first = attention.forward_with(&x.narrow(1, 0, 1), ());  // sees only itself
    /// assert!((y.narrow(1, 0, 1) - first).abs().max_all().item::<f32>().await? < 1e-6);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn forward_with(
        &self,
        x: &TensorFuture,
        options: impl Into<AttentionOptions>,
    ) -> TensorFuture {
        let (batch, places) = match self.sizes(x) {
            Ok(sizes) => sizes,
            Err(failed) => return failed,
        };
        let rows = x.reshape([batch.saturating_mul(places), self.width]);
        let (weight, bias) = (&self.in_proj_weight, &self.in_proj_bias);
        let all = rows.linear(weight.value(), bias.as_ref().map(Parameter::value).as_ref());
        if all.error().is_some() {
            return all;
        }
        let heads = all
            .reshape([batch, places, 3, self.heads, self.width / self.heads])
            .permute([2, 0, 3, 1, 4]);
        self.mixed([&heads.i(0), &heads.i(1), &heads.i(2)], x, options.into())
    }

    /// Cross-attention, as in a decoder: `query` is `[..., queries, width]`, `key` and `value` are
    /// `[..., keys, width]`. The mask is broadcast to `[batch, heads, queries, keys]`.
    ///
    /// ```
    /// use futensor::{Device, nn};
    /// let device = Device::cpu();
    /// let attention = nn::MultiheadAttention::new(8, 2, &device);
    /// let (query, memory) = (device.ones([2, 3, 8]), device.ones([2, 7, 8]));
    /// assert_eq!(attention.attend(&query, &memory, &memory, ()).dims(), [2, 3, 8]);
    /// ```
    #[track_caller]
    pub fn attend(
        &self,
        query: &TensorFuture,
        key: &TensorFuture,
        value: &TensorFuture,
        options: impl Into<AttentionOptions>,
    ) -> TensorFuture {
        let (weight, bias) =
            (self.in_proj_weight.value(), self.in_proj_bias.as_ref().map(Parameter::value));
        let mut heads = Vec::with_capacity(3);
        for (part, x) in [query, key, value].into_iter().enumerate() {
            let (batch, places) = match self.sizes(x) {
                Ok(sizes) => sizes,
                Err(failed) => return failed,
            };
            let own = |all: &TensorFuture| all.narrow(0, part * self.width, self.width);
            let rows = x.reshape([batch.saturating_mul(places), self.width]);
            let made = rows.linear(own(&weight), bias.as_ref().map(own).as_ref());
            if made.error().is_some() {
                return made;
            }
            let split = [batch, places, self.heads, self.width / self.heads];
            heads.push(made.reshape(split).permute([0, 2, 1, 3]));
        }
        self.mixed([&heads[0], &heads[1], &heads[2]], query, options.into())
    }

    /// Batch and places of an operand; a failed value if it has too few dimensions or another
    /// width.
    #[track_caller]
    fn sizes(&self, x: &TensorFuture) -> Result<(usize, usize), TensorFuture> {
        let at = Location::caller();
        match x.dims() {
            _ if x.error().is_some() => Err(x.clone()),
            [batch @ .., places, width] if *width == self.width => Ok((product_of(batch), *places)),
            _ => {
                let message = format!("needs [..., places, {}], not {}", self.width, x.shape());
                Err(x.device().refused(
                    "MultiheadAttention",
                    ErrorKind::Shape,
                    message,
                    x.dtype(),
                    at,
                ))
            }
        }
    }

    /// Attends with heads `[batch, heads, places, width / heads]`, and merges them into a result
    /// shaped like `like`.
    #[track_caller]
    fn mixed(
        &self,
        [q, k, v]: [&TensorFuture; 3],
        like: &TensorFuture,
        options: AttentionOptions,
    ) -> TensorFuture {
        let p = if self.mode.is_training() { self.dropout } else { 0.0 };
        let found = q.scaled_dot_product_attention(k, v, options.dropout(p));
        if found.error().is_some() {
            return found;
        }
        // Concatenates the heads.
        let joined = found.permute([0, 2, 1, 3]);
        let rows = product_of(&like.dims()[..like.rank() - 1]);
        self.out_proj.forward(&joined.reshape([rows, self.width])).reshape(like.dims())
    }
}

/// The product of the sizes; saturates for an empty value with huge sizes, so that a reshape
/// refuses it.
fn product_of(dims: &[usize]) -> usize {
    dims.iter().fold(1, |n, &d| n.saturating_mul(d))
}

impl Module for MultiheadAttention {
    #[track_caller]
    fn forward(&self, x: &TensorFuture) -> TensorFuture {
        self.forward_with(x, ())
    }
    fn parts(&self, visit: &mut dyn FnMut(&str, Part<'_>)) {
        visit("in_proj_weight", Part::Parameter(&self.in_proj_weight));
        if let Some(bias) = &self.in_proj_bias {
            visit("in_proj_bias", Part::Parameter(bias));
        }
        visit("out_proj", Part::Module(&self.out_proj));
        visit("mode", Part::Mode(&self.mode));
    }
}
