//! BERT's encoder (Devlin et al. 2018, arXiv:1810.04805), with mean pooling for sentence embeddings
//! (Reimers and Gurevych 2019, arXiv:1908.10084), made of `futensor::nn`'s modules.

use crate::error::{Error, Result};
use crate::folder::Folder;
use crate::tensors::Tensors;
use futensor::nn::{self, Module, Part};
use futensor::safetensors::Progress;
use futensor::{AttentionOptions, DType, Device, TensorFuture, cat, no_grad};
use serde::Deserialize;
use std::path::Path;

/// What a BERT's `config.json` says of its sizes, by the names that the file has for them.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[non_exhaustive]
pub struct BertConfig {
    /// Tokens that it tells apart.
    pub vocab_size: usize,
    /// Elements of a hidden state.
    pub hidden_size: usize,
    /// Elements between the two linear layers of a block.
    pub intermediate_size: usize,
    /// Heads of attention.
    pub num_attention_heads: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Tokens of a row at most.
    pub max_position_embeddings: usize,
    /// Types of tokens in the file, of which the first is used.
    #[serde(default = "two")]
    pub type_vocab_size: usize,
    /// `eps` of the norms.
    #[serde(default = "tiny")]
    pub layer_norm_eps: f64,
    /// The activation between the linear layers: `gelu`, `gelu_new`, `gelu_pytorch_tanh`, `relu` or
    /// `silu`.
    #[serde(default = "gelu")]
    pub hidden_act: String,
}

// As `transformers` has them where a file says nothing.
fn two() -> usize {
    2
}
fn tiny() -> f64 {
    1e-12
}
fn gelu() -> String {
    "gelu".into()
}

impl BertConfig {
    fn of(folder: &Folder) -> Result<BertConfig> {
        let json = folder.config();
        let kind = json["model_type"].as_str().unwrap_or("");
        if kind != "bert" {
            return Err(folder.wrong(format!("a model of architecture {kind:?}, not \"bert\"")));
        }
        let plain = [
            ("position_embedding_type", "absolute".into()),
            ("is_decoder", false.into()),
            ("quantization_config", serde_json::Value::Null),
        ];
        for (key, plain) in plain {
            let value = &json[key];
            if !value.is_null() && *value != plain {
                return Err(folder.wrong(format!("{key} is {value}, which is not supported")));
            }
        }
        let config = BertConfig::deserialize(json).map_err(|e| folder.wrong(e))?;
        let sizes = [
            config.vocab_size,
            config.hidden_size,
            config.intermediate_size,
            config.num_attention_heads,
            config.max_position_embeddings,
            config.type_vocab_size,
        ];
        if sizes.iter().any(|&n| n == 0 || n > 1 << 24) || config.num_hidden_layers > 1 << 12 {
            return Err(folder.wrong(format!("a model of such sizes cannot be: {config:?}")));
        }
        if !config.hidden_size.is_multiple_of(config.num_attention_heads) {
            return Err(folder.wrong(format!(
                "hidden_size {} does not divide into {} of num_attention_heads",
                config.hidden_size, config.num_attention_heads
            )));
        }
        match config.activation() {
            Some(_) => Ok(config),
            None => {
                Err(folder.wrong(format!("hidden_act {:?} is not supported", config.hidden_act)))
            }
        }
    }

    fn activation(&self) -> Option<Box<dyn Module>> {
        Some(match &self.hidden_act[..] {
            "gelu" => Box::new(nn::Gelu),
            "gelu_new" | "gelu_pytorch_tanh" => Box::new(nn::from_fn(|x| x.gelu_tanh())),
            "relu" => Box::new(nn::Relu),
            "silu" => Box::new(nn::Silu),
            _ => return None,
        })
    }
}

/// Token ids to hidden states. Its modules are `nn`'s, which have other names than the file.
struct Encoder {
    word_embeddings: nn::Embedding,
    /// Positions, with the embedding of the one token type that is used.
    position_embeddings: nn::Embedding,
    norm: nn::LayerNorm,
    layers: Vec<nn::TransformerEncoderLayer>,
}

impl Encoder {
    fn new(config: &BertConfig, device: &Device) -> Encoder {
        let (width, eps) = (config.hidden_size, config.layer_norm_eps);
        let layer = || {
            let (heads, inner) = (config.num_attention_heads, config.intermediate_size);
            let activation = config.activation().unwrap_or_else(|| Box::new(nn::Gelu));
            nn::TransformerEncoderLayer::new(width, heads, inner, device)
                .activation(activation)
                .eps(eps)
        };
        Encoder {
            word_embeddings: nn::Embedding::new(config.vocab_size, width, device),
            position_embeddings: nn::Embedding::new(config.max_position_embeddings, width, device),
            norm: nn::LayerNorm::new([width], device).eps(eps),
            layers: (0..config.num_hidden_layers).map(|_| layer()).collect(),
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

/// The file's tensors, by the names that `transformers` has for them.
struct Weights {
    tensors: Tensors,
    /// What a model with a head has before each name.
    prefix: &'static str,
}

impl Weights {
    fn new(tensors: Tensors) -> Weights {
        let whole = tensors.dims("bert.embeddings.word_embeddings.weight").is_some();
        Weights { tensors, prefix: if whole { "bert." } else { "" } }
    }

    fn get(&mut self, name: &str, dims: &[usize]) -> Result<TensorFuture> {
        let found = self.tensors.want(&format!("{}{name}", self.prefix), dims)?;
        Ok(found.dense().to_dtype(DType::F32))
    }

    /// Weight and bias of a norm, which old files call gamma and beta.
    fn norm(&mut self, name: &str, width: usize) -> Result<[TensorFuture; 2]> {
        let old = self.tensors.dims(&format!("{}{name}.gamma", self.prefix)).is_some();
        let [weight, bias] = if old { ["gamma", "beta"] } else { ["weight", "bias"] };
        Ok([
            self.get(&format!("{name}.{weight}"), &[width])?,
            self.get(&format!("{name}.{bias}"), &[width])?,
        ])
    }

    fn linear(&mut self, name: &str, [out, into]: [usize; 2]) -> Result<[TensorFuture; 2]> {
        let weight = self.get(&format!("{name}.weight"), &[out, into])?;
        Ok([weight, self.get(&format!("{name}.bias"), &[out])?])
    }

    /// The encoder's state: all tensors, with none left over.
    fn state(mut self, config: &BertConfig) -> Result<Vec<(String, TensorFuture)>> {
        let (width, inner) = (config.hidden_size, config.intermediate_size);
        let [words, positions, types] = ["word", "position", "token_type"]
            .map(|part| format!("embeddings.{part}_embeddings.weight"));
        let words = self.get(&words, &[config.vocab_size, width])?;
        let positions = self.get(&positions, &[config.max_position_embeddings, width])?;
        let kind = self.get(&types, &[config.type_vocab_size, width])?.i(0);
        let mut state = vec![
            ("word_embeddings.weight".to_owned(), words),
            ("position_embeddings.weight".to_owned(), positions + kind),
        ];
        let mut add = |own: &str, [weight, bias]: [TensorFuture; 2]| {
            state.push((format!("{own}.weight"), weight));
            state.push((format!("{own}.bias"), bias));
        };
        add("norm", self.norm("embeddings.LayerNorm", width)?);
        // What scores are divided by is part of the weights: attention is asked for with a scale of
        // one.
        let scale = ((width / config.num_attention_heads) as f64).sqrt().recip();
        let mut all_in = Vec::new();
        for k in 0..config.num_hidden_layers {
            let (own, theirs) = (format!("layers.{k}"), format!("encoder.layer.{k}"));
            let mut part =
                |part: &str| self.linear(&format!("{theirs}.attention.self.{part}"), [width; 2]);
            let ([q, q_bias], [k, k_bias], [v, v_bias]) =
                (part("query")?, part("key")?, part("value")?);
            all_in.push((format!("{own}.self_attn.in_proj_weight"), cat(&[q * scale, k, v], 0)));
            let bias = cat(&[q_bias * scale, k_bias, v_bias], 0);
            all_in.push((format!("{own}.self_attn.in_proj_bias"), bias));
            let output = self.linear(&format!("{theirs}.attention.output.dense"), [width; 2])?;
            add(&format!("{own}.self_attn.out_proj"), output);
            let norm = self.norm(&format!("{theirs}.attention.output.LayerNorm"), width)?;
            add(&format!("{own}.norm1"), norm);
            let wide = self.linear(&format!("{theirs}.intermediate.dense"), [inner, width])?;
            add(&format!("{own}.linear1"), wide);
            let narrow = self.linear(&format!("{theirs}.output.dense"), [width, inner])?;
            add(&format!("{own}.linear2"), narrow);
            add(&format!("{own}.norm2"), self.norm(&format!("{theirs}.output.LayerNorm"), width)?);
        }
        state.extend(all_in);
        // What BERT was trained with besides, and places that the configuration says as well.
        let head = |name: &str| name.starts_with("cls.") || name.contains("pooler.dense.");
        self.tensors.end(|name| head(name) || name.ends_with("embeddings.position_ids"))?;
        Ok(state)
    }
}

/// BERT's encoder: rows of token ids to hidden states, and to sentence embeddings as all-MiniLM and
/// its like have them. Weights have `transformers`' names: those of a `BertModel`, or of a model
/// that adds a head, which is not used.
///
/// ```no_run
/// # futensor::block_on(async {
/// use futensor::{DType, Device};
/// use futensor_models::Bert;
/// let bert = Bert::from_folder(&Device::cpu(), "all-MiniLM-L6-v2", DType::F32).await?;
/// let vectors = bert.embed(&[vec![101, 1037, 4937, 102], vec![101, 7592, 102]]);
/// assert_eq!(vectors.dims(), [2, 384]);
/// # Ok::<(), futensor_models::Error>(()) }).unwrap();
/// ```
pub struct Bert {
    device: Device,
    config: BertConfig,
    encoder: Encoder,
}

impl std::fmt::Debug for Bert {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Bert { device, config, .. } = self;
        f.debug_struct("Bert")
            .field("device", device)
            .field("config", config)
            .finish_non_exhaustive()
    }
}

impl Bert {
    /// The model of a folder, as [`Folder::open`] takes it. Its weights are kept and used as
    /// `dtype`: float32, bfloat16 or float16. It waits until they are on the device.
    ///
    /// # Errors
    /// As [`Folder::open`] and [`Folder::load`]; if the folder is of another architecture, or asks
    /// for what is not supported; if a tensor is missing, is left over or has another shape. The
    /// error names the file and the tensor.
    ///
    /// # Cancel safety
    /// Dropping the future drops what was loaded.
    pub async fn from_folder(
        device: &Device,
        folder: impl AsRef<Path>,
        dtype: DType,
    ) -> Result<Bert> {
        Bert::from_folder_with(device, &Folder::open(folder).await?, dtype, |_| {}).await
    }

    /// The model of an open folder. `progress` is called whenever a tensor has been received.
    ///
    /// # Errors
    /// As [`from_folder`](Self::from_folder).
    ///
    /// # Cancel safety
    /// Dropping the future drops what was loaded.
    pub async fn from_folder_with(
        device: &Device,
        folder: &Folder,
        dtype: DType,
        progress: impl FnMut(Progress) + Send + 'static,
    ) -> Result<Bert> {
        let config = BertConfig::of(folder)?;
        if !dtype.is_float() {
            return Err(Error::model(format!("weights are no {dtype}")));
        }
        let tensors = folder.load(device).on_progress(progress).all().await?;
        let state = Weights::new(tensors).state(&config)?;
        let encoder = Encoder::new(&config, device);
        encoder.to_dtype(dtype);
        encoder.load_state(state)?;
        encoder.eval();
        for parameter in encoder.parameters() {
            parameter.value().wait_to_read().await?;
        }
        Ok(Bert { device: device.clone(), encoder, config })
    }

    /// Where it runs.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Its sizes.
    pub fn config(&self) -> &BertConfig {
        &self.config
    }

    /// The last hidden states `[tokens, hidden]` of rows of token ids, in float32. The rows lie one
    /// after the other, without padding: those of the second begin where the first ends. All tokens
    /// are of the first type. Nothing waits, and nothing is recorded for gradients.
    ///
    /// # Errors
    /// The value fails if an id is not in the vocabulary, or a row is longer than
    /// `max_position_embeddings`.
    pub fn hidden(&self, rows: &[Vec<u32>]) -> TensorFuture {
        no_grad(|| {
            let lengths: Vec<usize> = rows.iter().map(Vec::len).collect();
            let list = |values: Vec<i64>| {
                let n = values.len();
                self.device.from_vec(values, [n])
            };
            let ids = list(rows.iter().flatten().map(|&id| id as i64).collect());
            let places = list(lengths.iter().flat_map(|&n| 0..n as i64).collect());
            let options = AttentionOptions::default().scale(1.0).sequences(&lengths[..]);
            self.encoder.encode(&ids, &places, &options).to_dtype(DType::F32)
        })
    }

    /// The embeddings `[rows, hidden]` of rows of token ids, in float32: the mean of each row's
    /// hidden states, divided by its length, so that the product of two is their cosine. Nothing
    /// waits. Rows of one length are best side by side.
    ///
    /// # Errors
    /// As [`hidden`](Self::hidden), and if there are no rows. An empty row's embedding is NaN.
    pub fn embed(&self, rows: &[Vec<u32>]) -> TensorFuture {
        no_grad(|| {
            let x = self.hidden(rows);
            let mut from = 0;
            let means: Vec<TensorFuture> = rows
                .chunk_by(|a, b| a.len() == b.len())
                .map(|same| {
                    let (count, length) = (same.len(), same[0].len());
                    from += count * length;
                    x.narrow(0, from - count * length, count * length)
                        .reshape([count, length, self.config.hidden_size])
                        .mean(1)
                })
                .collect();
            let mean = cat(&means, 0);
            &mean / (&mean * &mean).sum_keepdim(-1).sqrt()
        })
    }
}
