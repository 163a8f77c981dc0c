//! Models from files.

use super::weights::{Layer, Several, Weights};
use super::{Config, Llama, Scaling};
use crate::error::{Error, Result};
use crate::helpers::outside;
use crate::template::Template;
use crate::tokenizer::{Tokenizer, Vocabulary};
use futensor::quant::{Format, Quantized, Weight};
use futensor::{DType, Device, TensorFuture, gguf, safetensors};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A tensor that is asked for.
#[derive(Clone, Copy, Debug)]
enum Part {
    Embedding,
    Norm,
    Head,
    AttentionNorm(usize),
    Query(usize),
    Key(usize),
    Value(usize),
    Output(usize),
    FeedForwardNorm(usize),
    Gate(usize),
    Up(usize),
    Down(usize),
}

/// Hugging Face's names.
fn hugging_face(part: Part) -> String {
    use Part::*;
    let layer = |k: usize, name: &str| format!("model.layers.{k}.{name}.weight");
    match part {
        Embedding => "model.embed_tokens.weight".into(),
        Norm => "model.norm.weight".into(),
        Head => "lm_head.weight".into(),
        AttentionNorm(k) => layer(k, "input_layernorm"),
        Query(k) => layer(k, "self_attn.q_proj"),
        Key(k) => layer(k, "self_attn.k_proj"),
        Value(k) => layer(k, "self_attn.v_proj"),
        Output(k) => layer(k, "self_attn.o_proj"),
        FeedForwardNorm(k) => layer(k, "post_attention_layernorm"),
        Gate(k) => layer(k, "mlp.gate_proj"),
        Up(k) => layer(k, "mlp.up_proj"),
        Down(k) => layer(k, "mlp.down_proj"),
    }
}

/// GGUF's names.
fn of_gguf(part: Part) -> String {
    use Part::*;
    let layer = |k: usize, name: &str| format!("blk.{k}.{name}.weight");
    match part {
        Embedding => "token_embd.weight".into(),
        Norm => "output_norm.weight".into(),
        Head => "output.weight".into(),
        AttentionNorm(k) => layer(k, "attn_norm"),
        Query(k) => layer(k, "attn_q"),
        Key(k) => layer(k, "attn_k"),
        Value(k) => layer(k, "attn_v"),
        Output(k) => layer(k, "attn_output"),
        FeedForwardNorm(k) => layer(k, "ffn_norm"),
        Gate(k) => layer(k, "ffn_gate"),
        Up(k) => layer(k, "ffn_up"),
        Down(k) => layer(k, "ffn_down"),
    }
}

/// The tensors of a file, each taken once, with their shapes checked.
struct Parts {
    tensors: BTreeMap<String, Weight>,
    name: fn(Part) -> String,
}

impl Parts {
    fn weight(&mut self, part: Part, out: usize, into: usize) -> Result<Weight> {
        let weight = self
            .find(part)?
            .ok_or_else(|| Error::model(format!("there is no {}", (self.name)(part))))?;
        match &weight.dims()[..] {
            dims if dims == [out, into] => Ok(weight),
            dims => Err(Error::model(format!(
                "{} is {dims:?}, not {:?}",
                (self.name)(part),
                [out, into]
            ))),
        }
    }

    /// A matrix. Halves stay halves; what else is dense is used as float32.
    fn find(&mut self, part: Part) -> Result<Option<Weight>> {
        Ok(match self.tensors.remove(&(self.name)(part)) {
            Some(weight) if weight.dims().len() != 2 => {
                return Err(Error::model(format!(
                    "{} is {:?}, no matrix",
                    (self.name)(part),
                    weight.dims()
                )));
            }
            Some(Weight::Dense(x)) => {
                let halves =
                    [Format::F16, Format::BF16].into_iter().find(|f| f.dtype() == Some(x.dtype()));
                // Rows that are no whole blocks are none that a format has.
                let packed = halves.and_then(|format| Quantized::from_tensor(&x, format).ok());
                Some(packed.map_or_else(|| x.to_dtype(DType::F32).into(), Weight::from))
            }
            weight => weight,
        })
    }

    fn norm(&mut self, part: Part, width: usize) -> Result<TensorFuture> {
        let name = (self.name)(part);
        let norm = self
            .tensors
            .remove(&name)
            .ok_or_else(|| Error::model(format!("there is no {name}")))?;
        match norm.dense().dims() {
            &[n] if n == width => Ok(norm.dense().to_dtype(DType::F32)),
            dims => Err(Error::model(format!("{name} is {dims:?}, not {:?}", [width]))),
        }
    }

    fn all(mut self, config: &Config) -> Result<Weights> {
        let (width, inner) = (config.width, config.feed_forward);
        let (queries, keys) = (config.heads * config.head, config.kv_heads * config.head);
        let embedding =
            self.find(Part::Embedding)?.ok_or_else(|| Error::model("there is no embedding"))?;
        if embedding.dims()[1] != width {
            return Err(Error::model(format!(
                "the embedding is {:?} for a width of {width}",
                embedding.dims()
            )));
        }
        let vocabulary = embedding.dims()[0];
        let layers = (0..config.layers).map(|k| {
            Ok(Layer {
                attention_norm: self.norm(Part::AttentionNorm(k), width)?,
                query_key_value: Several::new(vec![
                    self.weight(Part::Query(k), queries, width)?,
                    self.weight(Part::Key(k), keys, width)?,
                    self.weight(Part::Value(k), keys, width)?,
                ])?,
                output: self.weight(Part::Output(k), width, queries)?,
                feed_forward_norm: self.norm(Part::FeedForwardNorm(k), width)?,
                gate_up: Several::new(vec![
                    self.weight(Part::Gate(k), inner, width)?,
                    self.weight(Part::Up(k), inner, width)?,
                ])?,
                down: self.weight(Part::Down(k), width, inner)?,
            })
        });
        let layers = layers.collect::<Result<_>>()?;
        let head = match self.find(Part::Head)? {
            Some(head) if head.dims() != [vocabulary, width] => {
                return Err(Error::model(format!(
                    "the head is {:?}, not {:?}",
                    head.dims(),
                    [vocabulary, width]
                )));
            }
            head => head,
        };
        Ok(Weights { embedding, layers, norm: self.norm(Part::Norm, width)?, head })
    }
}

impl Llama {
    /// Of a folder as Hugging Face has them: `config.json`, `tokenizer.json`, `*.safetensors`, and
    /// the chat template of `tokenizer_config.json` or `chat_template.jinja`.
    ///
    /// # Errors
    /// Where a file is missing or broken, the model is none that is known, or its parts do not fit
    /// each other.
    pub async fn from_folder(device: &Device, folder: impl AsRef<Path>) -> Result<Llama> {
        let folder = folder.as_ref().to_owned();
        let Folder { config, tied, tokenizer, template, files } =
            outside().work(move || Folder::read(&folder)).await?;
        let mut tensors = BTreeMap::new();
        for file in files {
            let loaded = safetensors::load(&file, device).all().await;
            let loaded = loaded.map_err(|e| Error::model(e.message().to_owned()))?;
            tensors.extend(loaded.into_iter().map(|(name, tensor)| (name, Weight::Dense(tensor))));
        }
        if tied {
            tensors.remove(&hugging_face(Part::Head));
        }
        let weights = Parts { tensors, name: hugging_face }.all(&config)?;
        Llama::new(device, config, weights, tokenizer, template)
    }

    /// Of a GGUF file: its weights as they are, its tokenizer, its chat template.
    ///
    /// # Errors
    /// Where the file is missing or broken, the model is none that is known, or its parts do not
    /// fit each other.
    pub async fn from_gguf(device: &Device, path: impl AsRef<Path>) -> Result<Llama> {
        let path = path.as_ref();
        // It names the file.
        let wrong = |e: futensor::Error| Error::model(e.message().to_owned());
        let file = gguf::open(path).await.map_err(wrong)?;
        let mut config = Config::from_gguf(file.metadata())?;
        let vocabulary = Vocabulary::from_gguf(file.metadata())?;
        let source = file
            .metadata()
            .get("tokenizer.chat_template")
            .and_then(|s| s.as_str().map(String::from));
        let made = outside().work(move || {
            let tokenizer = vocabulary.tokenizer()?;
            let template = source.map(|source| template(&source, &tokenizer)).transpose()?;
            Ok((tokenizer, template))
        });
        let (tokenizer, template) = made.await?;
        let mut tensors = file.load(device).all().await.map_err(wrong)?;
        if let Some(factors) = tensors.remove("rope_freqs.weight") {
            let factors = factors.dense().to_dtype(DType::F64).to_vec::<f64>().await?;
            config.rope.scaling = Scaling::Each(factors);
        }
        config.check()?;
        let weights = Parts { tensors, name: of_gguf }.all(&config)?;
        Llama::new(device, config, weights, tokenizer, template)
    }
}

/// What a folder has beside its tensors.
struct Folder {
    config: Config,
    /// The embedding is the head.
    tied: bool,
    tokenizer: Tokenizer,
    template: Option<Template>,
    /// With tensors.
    files: Vec<PathBuf>,
}

impl Folder {
    fn read(folder: &Path) -> Result<Folder> {
        let read = |name: &str| {
            let path = folder.join(name);
            std::fs::read(&path).map_err(|e| Error::model(format!("{}: {e}", path.display())))
        };
        let json = |name: &str| -> Result<serde_json::Value> {
            serde_json::from_slice(&read(name)?).map_err(|e| Error::model(format!("{name}: {e}")))
        };
        let config_json = json("config.json")?;
        let config = Config::from_json(&config_json)?;
        let tokenizer = Tokenizer::from_file(folder.join("tokenizer.json"))?;
        let source = match read("chat_template.jinja") {
            Ok(text) => Some(String::from_utf8_lossy(&text).into_owned()),
            Err(_) => json("tokenizer_config.json")
                .ok()
                .and_then(|c| c["chat_template"].as_str().map(String::from)),
        };
        let template = source.map(|source| template(&source, &tokenizer)).transpose()?;
        let files = std::fs::read_dir(folder)
            .map_err(|e| Error::model(format!("{}: {e}", folder.display())))?;
        let has_tensors = |path: &PathBuf| path.extension().is_some_and(|e| e == "safetensors");
        let files = files.flatten().map(|f| f.path()).filter(has_tensors).collect();
        let tied = config_json["tie_word_embeddings"] == true;
        Ok(Folder { config, tied, tokenizer, template, files })
    }
}

fn template(source: &str, tokenizer: &Tokenizer) -> Result<Template> {
    let name = |token: Option<u32>| token.and_then(|t| tokenizer.name(t)).unwrap_or_default();
    Template::new(source, &name(tokenizer.begin()), &name(tokenizer.ends().first().copied()))
}

#[cfg(test)]
pub mod testing {
    use super::*;

    /// The names of a model's tensors: GGUF's and Hugging Face's.
    pub fn names(layers: usize) -> Vec<(String, String)> {
        use Part::*;
        let of_layers = [AttentionNorm, Query, Key, Value, Output, FeedForwardNorm, Gate, Up, Down];
        let all = (0..layers).flat_map(|k| of_layers.map(|part| part(k))).chain([Embedding, Norm]);
        all.map(|part| (of_gguf(part), hugging_face(part))).collect()
    }

    /// A model of these tensors, by GGUF's names.
    pub fn llama(
        device: &Device,
        config: Config,
        tensors: BTreeMap<String, Weight>,
        tokenizer: Tokenizer,
    ) -> Result<Llama> {
        let weights = Parts { tensors, name: of_gguf }.all(&config)?;
        Llama::new(device, config, weights, tokenizer, None)
    }
}
