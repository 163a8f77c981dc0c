//! Models from files.

use super::weights::{Layer, Weight, Weights};
use super::{Config, Llama};
use crate::error::{Error, Result};
use crate::template::Template;
use crate::tokenizer::Tokenizer;
use futensor::{DType, Device, TensorFuture, safetensors};
use std::collections::HashMap;
use std::path::Path;

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

/// The tensors of a file, by what they are, with their shapes checked.
struct Parts<W, V> {
    weight: W,
    vector: V,
}

impl<W, V> Parts<W, V>
where
    W: FnMut(Part) -> Result<Option<Weight>>,
    V: FnMut(Part) -> Result<Option<TensorFuture>>,
{
    fn weight(&mut self, part: Part, out: usize, into: usize) -> Result<Weight> {
        let weight = (self.weight)(part)?.ok_or_else(|| Error::model(format!("there is no {part:?}")))?;
        match weight.dims() {
            dims if dims == [out, into] => Ok(weight),
            dims => Err(Error::model(format!("{part:?} is {dims:?}, not {:?}", [out, into]))),
        }
    }

    fn norm(&mut self, part: Part, width: usize) -> Result<TensorFuture> {
        let norm = (self.vector)(part)?.ok_or_else(|| Error::model(format!("there is no {part:?}")))?;
        match norm.dims() {
            &[n] if n == width => Ok(norm.to_dtype(DType::F32)),
            dims => Err(Error::model(format!("{part:?} is {dims:?}, not {:?}", [width]))),
        }
    }

    fn all(mut self, config: &Config) -> Result<Weights> {
        let (width, inner) = (config.width, config.feed_forward);
        let (queries, keys) = (config.heads * config.head, config.kv_heads * config.head);
        let embedding = (self.weight)(Part::Embedding)?.ok_or_else(|| Error::model("there is no embedding"))?;
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
                query: self.weight(Part::Query(k), queries, width)?,
                key: self.weight(Part::Key(k), keys, width)?,
                value: self.weight(Part::Value(k), keys, width)?,
                output: self.weight(Part::Output(k), width, queries)?,
                feed_forward_norm: self.norm(Part::FeedForwardNorm(k), width)?,
                gate: self.weight(Part::Gate(k), inner, width)?,
                up: self.weight(Part::Up(k), inner, width)?,
                down: self.weight(Part::Down(k), width, inner)?,
            })
        });
        let layers = layers.collect::<Result<_>>()?;
        let head = match (self.weight)(Part::Head)? {
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
        let folder = folder.as_ref();
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
            Err(_) => {
                json("tokenizer_config.json").ok().and_then(|c| c["chat_template"].as_str().map(String::from))
            }
        };
        let mut tensors: HashMap<String, TensorFuture> = HashMap::new();
        let files =
            std::fs::read_dir(folder).map_err(|e| Error::model(format!("{}: {e}", folder.display())))?;
        for file in
            files.flatten().map(|f| f.path()).filter(|p| p.extension().is_some_and(|e| e == "safetensors"))
        {
            let loaded = safetensors::load(&file, device).all().await;
            let loaded = loaded.map_err(|e| Error::model(format!("{}: {}", file.display(), e.message())))?;
            tensors.extend(loaded.into_iter().map(|(name, tensor)| (name, tensor)));
        }
        let tied = config_json["tie_word_embeddings"] == true;
        let find =
            |part: Part| tensors.get(&hugging_face(part)).filter(|_| !(tied && matches!(part, Part::Head)));
        let parts = Parts {
            weight: |part| match find(part) {
                Some(x) if x.rank() == 2 => Ok(Some(Weight::Dense(x.to_dtype(DType::F32)))),
                Some(x) => Err(Error::model(format!("{part:?} is {:?}, no matrix", x.dims()))),
                None => Ok(None),
            },
            vector: |part| Ok(find(part).cloned()),
        };
        let weights = parts.all(&config)?;
        let template = source.map(|source| template(&source, &tokenizer)).transpose()?;
        Llama::new(device, config, weights, tokenizer, template)
    }
}

fn template(source: &str, tokenizer: &Tokenizer) -> Result<Template> {
    let name = |token: Option<u32>| token.and_then(|t| tokenizer.name(t)).unwrap_or_default();
    Template::new(source, &name(tokenizer.begin()), &name(tokenizer.ends().first().copied()))
}
