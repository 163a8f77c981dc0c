//! The encoder: BERT (Devlin et al. 2018, arXiv:1810.04805) with mean pooling (Reimers and Gurevych
//! 2019, arXiv:1908.10084), made of `nn`'s modules. Nothing in `embed` waits.

use super::Outcome;
use futensor::nn::{self, Module, Part};
use futensor::{AttentionOptions, DType, Device, TensorFuture, cat, no_grad, safetensors};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// What the model's `config.json` says of its sizes.
#[derive(Clone, Debug, Deserialize)]
pub struct Sizes {
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_attention_heads: usize,
    pub num_hidden_layers: usize,
    pub max_position_embeddings: usize,
    pub layer_norm_eps: f64,
}

/// Token ids to hidden states, by BERT's own names where `nn` has no other.
struct Encoder {
    word_embeddings: nn::Embedding,
    /// Positions, with the embedding of the one token type that is used.
    position_embeddings: nn::Embedding,
    norm: nn::LayerNorm,
    layers: Vec<nn::TransformerEncoderLayer>,
}

impl Encoder {
    fn new(sizes: &Sizes, device: &Device) -> Encoder {
        let (width, eps) = (sizes.hidden_size, sizes.layer_norm_eps);
        let layer = || {
            nn::TransformerEncoderLayer::new(
                width,
                sizes.num_attention_heads,
                sizes.intermediate_size,
                device,
            )
            .activation(nn::Gelu)
            .eps(eps)
        };
        Encoder {
            word_embeddings: nn::Embedding::new(sizes.vocab_size, width, device),
            position_embeddings: nn::Embedding::new(sizes.max_position_embeddings, width, device),
            norm: nn::LayerNorm::new([width], device).eps(eps),
            layers: (0..sizes.num_hidden_layers).map(|_| layer()).collect(),
        }
    }

    /// Hidden states `[tokens, hidden]` of ids at these places of theirs.
    fn encode(
        &self,
        ids: &TensorFuture,
        places: &TensorFuture,
        options: &AttentionOptions,
    ) -> TensorFuture {
        let x = self.word_embeddings.forward(ids) + self.position_embeddings.forward(places);
        self.layers
            .iter()
            .fold(self.norm.forward(&x), |x, layer| layer.forward_with(&x, options.clone()))
    }
}

impl Module for Encoder {
    fn forward(&self, ids: &TensorFuture) -> TensorFuture {
        let places = ids.device().arange(0, ids.dims()[ids.rank() - 1], 1);
        self.encode(ids, &places, &AttentionOptions::default())
    }
    fn parts(&self, visit: &mut dyn FnMut(&str, Part<'_>)) {
        visit("word_embeddings", Part::Module(&self.word_embeddings));
        visit("position_embeddings", Part::Module(&self.position_embeddings));
        visit("norm", Part::Module(&self.norm));
        for (k, layer) in self.layers.iter().enumerate() {
            visit(&format!("layers.{k}"), Part::Module(layer));
        }
    }
}

/// The names of a layer's weights: `nn`'s, and the file's.
const NAMES: [(&str, &str); 5] = [
    ("self_attn.out_proj", "attention.output.dense"),
    ("norm1", "attention.output.LayerNorm"),
    ("linear1", "intermediate.dense"),
    ("linear2", "output.dense"),
    ("norm2", "output.LayerNorm"),
];

pub struct Bert {
    pub device: Device,
    pub sizes: Sizes,
    encoder: Encoder,
}

/// The file's tensors by name, on the device.
struct Weights(BTreeMap<String, TensorFuture>);

impl Weights {
    fn get(&self, name: &str) -> Outcome<TensorFuture> {
        let found = self.0.get(name).ok_or_else(|| format!("there is no tensor {name}"))?;
        if found.dtype() != DType::F32 {
            return Err(format!("{name} is {}, not float32", found.dtype()).into());
        }
        Ok(found.clone())
    }

    /// The encoder's state.
    fn state(&self, sizes: &Sizes) -> Outcome<Vec<(String, TensorFuture)>> {
        let kind = self.get("embeddings.token_type_embeddings.weight")?.i(0);
        let positions = self.get("embeddings.position_embeddings.weight")? + kind;
        let mut state = vec![
            ("word_embeddings.weight".into(), self.get("embeddings.word_embeddings.weight")?),
            ("position_embeddings.weight".into(), positions),
        ];
        for what in ["weight", "bias"] {
            state
                .push((format!("norm.{what}"), self.get(&format!("embeddings.LayerNorm.{what}"))?));
        }
        // What scores are divided by is part of the weights: attention is asked for with a scale of
        // one.
        let scale = ((sizes.hidden_size / sizes.num_attention_heads) as f64).sqrt().recip();
        for k in 0..sizes.num_hidden_layers {
            let (own, theirs) = (format!("layers.{k}"), format!("encoder.layer.{k}"));
            for what in ["weight", "bias"] {
                let part = |part: &str| self.get(&format!("{theirs}.attention.self.{part}.{what}"));
                let all = cat(&[part("query")? * scale, part("key")?, part("value")?], 0);
                state.push((format!("{own}.self_attn.in_proj_{what}"), all));
                for (name, of_file) in NAMES {
                    state.push((
                        format!("{own}.{name}.{what}"),
                        self.get(&format!("{theirs}.{of_file}.{what}"))?,
                    ));
                }
            }
        }
        Ok(state)
    }
}

impl Bert {
    /// The model of a folder with `config.json` and `model.safetensors`; weights are kept and used
    /// as `dtype`.
    pub async fn load(device: &Device, folder: &Path, dtype: DType) -> Outcome<Bert> {
        let (config, weights) = (folder.join("config.json"), folder.join("model.safetensors"));
        let tensors = safetensors::load(&weights, device).all().await?;
        let sizes = tokio::task::spawn_blocking(move || -> Outcome<Sizes> {
            let of = |e: &dyn std::fmt::Display| format!("{}: {e}", config.display());
            let text = std::fs::read(&config).map_err(|e| of(&e))?;
            Ok(serde_json::from_slice(&text).map_err(|e| of(&e))?)
        });
        let sizes = sizes.await??;
        let encoder = Encoder::new(&sizes, device);
        encoder.to_dtype(dtype);
        let of = |e: &dyn std::fmt::Display| format!("{}: {e}", weights.display());
        let state = Weights(tensors).state(&sizes).map_err(|e| of(&e))?;
        encoder.load_state(state).map_err(|e| of(&e))?;
        encoder.eval();
        for parameter in encoder.parameters() {
            parameter.value().wait_to_read().await?;
        }
        Ok(Bert { device: device.clone(), encoder, sizes })
    }

    /// Queues the embeddings of these rows of token ids, `[rows, hidden]`, each of length 1,
    /// float32. The rows lie one after the other, without padding.
    ///
    /// Every id has to be in the vocabulary, and no row longer than the positions.
    pub fn embed(&self, rows: &[Vec<u32>]) -> TensorFuture {
        no_grad(|| self.queued(rows))
    }

    fn queued(&self, rows: &[Vec<u32>]) -> TensorFuture {
        let lengths: Vec<usize> = rows.iter().map(Vec::len).collect();
        let list = |values: Vec<i64>| {
            let n = values.len();
            self.device.from_vec(values, [n])
        };
        let ids = list(rows.iter().flatten().map(|&id| id as i64).collect());
        let places = list(lengths.iter().flat_map(|&n| 0..n as i64).collect());
        let options = AttentionOptions::default().scale(1.0).sequences(&lengths[..]);
        let x = self.encoder.encode(&ids, &places, &options).to_dtype(DType::F32);
        let mut from = 0;
        let means: Vec<TensorFuture> = lengths
            .chunk_by(|a, b| a == b)
            .map(|same| {
                let all = same.len() * same[0];
                from += all;
                x.narrow(0, from - all, all)
                    .reshape([same.len(), same[0], self.sizes.hidden_size])
                    .mean(1)
            })
            .collect();
        let mean = cat(&means, 0);
        &mean / (&mean * &mean).sum_keepdim(-1).sqrt()
    }
}
