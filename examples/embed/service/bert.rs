//! The encoder: BERT (Devlin et al. 2018, arXiv:1810.04805) with mean pooling (Reimers and Gurevych 2019,
//! arXiv:1908.10084), as plain tensor ops. Nothing in `embed` waits.

use super::Outcome;
use futensor::{DType, Device, Tensor, TensorFuture, cat};
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;
use std::path::Path;

/// What the model's `config.json` says of its sizes.
#[derive(Clone, Debug, Deserialize)]
pub struct Sizes {
    pub hidden_size: usize,
    pub num_attention_heads: usize,
    pub num_hidden_layers: usize,
    pub max_position_embeddings: usize,
    pub layer_norm_eps: f64,
}

/// A product with a weight `[out, in]`, and a bias.
struct Linear {
    weight: Tensor,
    bias: Tensor,
}

impl Linear {
    fn of(&self, x: &TensorFuture) -> TensorFuture {
        x.matmul(self.weight.t()) + &self.bias
    }
}

struct Norm {
    weight: Tensor,
    bias: Tensor,
    eps: f64,
}

impl Norm {
    fn of(&self, x: &TensorFuture) -> TensorFuture {
        x.layer_norm(&self.weight, &self.bias, self.eps)
    }
}

struct Layer {
    /// Query, key and value in one product; the query's part is scaled by `1 / sqrt(width of a head)`.
    qkv: Linear,
    out: Linear,
    after_attention: Norm,
    up: Linear,
    down: Linear,
    after: Norm,
}

pub struct Bert {
    pub device: Device,
    pub sizes: Sizes,
    dtype: DType,
    words: Tensor,
    /// Positions, with the embedding of the one token type that is used.
    positions: Tensor,
    norm: Norm,
    layers: Vec<Layer>,
}

/// The file's tensors by name, on the device.
struct Weights<'a> {
    device: &'a Device,
    dtype: DType,
    file: SafeTensors<'a>,
}

impl Weights<'_> {
    /// A tensor as it lies in the file: float32.
    fn raw(&self, name: &str) -> Outcome<TensorFuture> {
        let view = self.file.tensor(name)?;
        if view.dtype() != Dtype::F32 {
            return Err(format!("{name} is {:?}, not F32", view.dtype()).into());
        }
        let data: Vec<f32> = view.data().as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        Ok(self.device.from_vec(data, view.shape()))
    }

    /// A tensor as the model computes with it.
    async fn ready(&self, x: TensorFuture) -> Outcome<Tensor> {
        Ok(x.to_dtype(self.dtype).await?)
    }

    async fn linear(&self, name: &str) -> Outcome<Linear> {
        let (weight, bias) = (self.raw(&format!("{name}.weight"))?, self.raw(&format!("{name}.bias"))?);
        Ok(Linear { weight: self.ready(weight).await?, bias: self.ready(bias).await? })
    }

    async fn norm(&self, name: &str, eps: f64) -> Outcome<Norm> {
        let Linear { weight, bias } = self.linear(name).await?;
        Ok(Norm { weight, bias, eps })
    }

    async fn layer(&self, name: &str, sizes: &Sizes) -> Outcome<Layer> {
        let scale = ((sizes.hidden_size / sizes.num_attention_heads) as f64).sqrt().recip();
        let mut parts = [Vec::new(), Vec::new()];
        for (part, scale) in [("query", scale), ("key", 1.0), ("value", 1.0)] {
            for (list, what) in parts.iter_mut().zip(["weight", "bias"]) {
                list.push(self.raw(&format!("{name}.attention.self.{part}.{what}"))? * scale);
            }
        }
        let [weight, bias] = parts;
        Ok(Layer {
            qkv: Linear { weight: self.ready(cat(&weight, 0)).await?, bias: self.ready(cat(&bias, 0)).await? },
            out: self.linear(&format!("{name}.attention.output.dense")).await?,
            after_attention: self
                .norm(&format!("{name}.attention.output.LayerNorm"), sizes.layer_norm_eps)
                .await?,
            up: self.linear(&format!("{name}.intermediate.dense")).await?,
            down: self.linear(&format!("{name}.output.dense")).await?,
            after: self.norm(&format!("{name}.output.LayerNorm"), sizes.layer_norm_eps).await?,
        })
    }
}

impl Bert {
    /// The model of a folder with `config.json` and `model.safetensors`; weights are kept and used as `dtype`.
    pub async fn load(device: &Device, folder: &Path, dtype: DType) -> Outcome<Bert> {
        let text = |name: &str| {
            std::fs::read(folder.join(name)).map_err(|e| format!("{}: {e}", folder.join(name).display()))
        };
        let sizes: Sizes = serde_json::from_slice(&text("config.json")?)?;
        let bytes = text("model.safetensors")?;
        let weights = Weights { device, dtype, file: SafeTensors::deserialize(&bytes)? };
        let kind = weights.raw("embeddings.token_type_embeddings.weight")?.i(0);
        let positions = weights.raw("embeddings.position_embeddings.weight")? + kind;
        let words = weights.raw("embeddings.word_embeddings.weight")?;
        let mut layers = Vec::new();
        for k in 0..sizes.num_hidden_layers {
            layers.push(weights.layer(&format!("encoder.layer.{k}"), &sizes).await?);
        }
        Ok(Bert {
            device: device.clone(),
            dtype,
            words: weights.ready(words).await?,
            positions: weights.ready(positions).await?,
            norm: weights.norm("embeddings.LayerNorm", sizes.layer_norm_eps).await?,
            layers,
            sizes,
        })
    }

    /// Queues the embeddings of these rows of token ids, `[rows, hidden]`, each of length 1, float32. Rows
    /// are padded to the longest, and the padding does not count.
    ///
    /// Every id has to be in the vocabulary, and no row longer than the positions.
    pub fn embed(&self, rows: &[Vec<u32>]) -> TensorFuture {
        let (b, t) = (rows.len(), rows.iter().map(Vec::len).max().unwrap_or(0));
        let (h, heads) = (self.sizes.hidden_size, self.sizes.num_attention_heads);
        let mut ids = vec![0i64; b * t];
        for (k, row) in rows.iter().enumerate() {
            ids[k * t..][..row.len()].iter_mut().zip(row).for_each(|(to, &id)| *to = id as i64);
        }
        let mask = Mask::of(rows, t, &self.device);
        let hidden = self.words.embedding(self.device.from_vec(ids, [b, t])) + self.positions.narrow(0, 0, t);
        let mut x = self.norm.of(&hidden).reshape([b * t, h]);
        for layer in &self.layers {
            let qkv = layer.qkv.of(&x).reshape([b, t, 3, heads, h / heads]).permute([2, 0, 3, 1, 4]);
            let mut scores = qkv.i(0).matmul(qkv.i(1).transpose(-1, -2));
            if let Some(mask) = &mask {
                scores = scores + mask.scores.to_dtype(self.dtype);
            }
            let mixed = scores.softmax(-1).matmul(qkv.i(2)).permute([0, 2, 1, 3]).reshape([b * t, h]);
            x = layer.after_attention.of(&(layer.out.of(&mixed) + &x));
            let wide = layer.up.of(&x).gelu();
            x = layer.after.of(&(layer.down.of(&wide) + &x));
        }
        let x = x.to_dtype(DType::F32).reshape([b, t, h]);
        let mean = match &mask {
            Some(mask) => (x * &mask.weights).sum(1),
            None => x.mean(1),
        };
        &mean / (&mean * &mean).sum_keepdim(-1).sqrt()
    }
}

/// Which tokens of a padded batch count.
struct Mask {
    /// Added to the scores, `[b, 1, 1, t]`: 0, or so much that nothing is left of it.
    scores: TensorFuture,
    /// Of each token in its row's mean, `[b, t, 1]`.
    weights: TensorFuture,
}

impl Mask {
    /// None where all rows are of one length.
    fn of(rows: &[Vec<u32>], t: usize, device: &Device) -> Option<Mask> {
        if rows.iter().all(|row| row.len() == t) {
            return None;
        }
        let each = |counts: &dyn Fn(usize) -> f32, else_: f32| -> Vec<f32> {
            let value = |row: &Vec<u32>, k| if k < row.len() { counts(row.len()) } else { else_ };
            rows.iter().flat_map(|row| (0..t).map(move |k| value(row, k))).collect()
        };
        let b = rows.len();
        Some(Mask {
            // Within what float16 holds.
            scores: device.from_vec(each(&|_| 0.0, -6e4), [b, 1, 1, t]),
            weights: device.from_vec(each(&|n| 1.0 / n as f32, 0.0), [b, t, 1]),
        })
    }
}
