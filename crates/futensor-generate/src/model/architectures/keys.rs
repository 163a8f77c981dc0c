//! The keys of a file, by GGUF's names and by Hugging Face's: what is read is marked, so that what
//! is left over can be refused.

use crate::error::{Error, Result};
use crate::model::config::{Config, Experts};
use futensor::gguf;
use serde_json::Value;
use std::cell::RefCell;
use std::collections::BTreeSet;

/// A key's name in GGUF, behind the architecture's, and in a `config.json`; empty where there is
/// none.
pub type Key = (&'static str, &'static str);

/// Keys of GGUF that do not change what a model computes, behind the architecture's name.
const IDLE_IN_GGUF: [&str; 2] = ["vocab_size", "tensor_data_layout"];

/// The same of a `config.json`.
const IDLE_IN_FOLDERS: &[&str] = &[
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "attn_pdrop",
    "auto_map",
    "bos_token_id",
    "cache_implementation",
    "chunk_size_feed_forward",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "embd_pdrop",
    "embedding_dropout",
    "encoder_no_repeat_ngram_size",
    "eos_token_id",
    "hidden_dropout",
    "id2label",
    "initializer_range",
    "is_llama_config",
    "keys_to_ignore_at_inference",
    "label2id",
    "length_penalty",
    "max_length",
    "max_window_layers",
    "min_length",
    "model_type",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "pad_token_id",
    "pretraining_tp",
    "pruned_heads",
    "repetition_penalty",
    "resid_pdrop",
    "residual_dropout",
    "return_dict",
    "sep_token_id",
    "temperature",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "transformers.js_config",
    "transformers_version",
    "typical_p",
    "unk_token_id",
    "unsloth_fixed",
    "unsloth_version",
    "use_cache",
    "vocab_size",
];

enum Source<'a> {
    /// Metadata, and the architecture's name.
    Gguf(&'a gguf::Metadata, &'a str),
    Folder(&'a Value),
}

/// See the module.
pub struct Keys<'a> {
    source: Source<'a>,
    read: RefCell<BTreeSet<String>>,
}

/// A value of a GGUF file as JSON has it; of arrays that they are there.
fn plain(value: &gguf::Value) -> Value {
    use gguf::Value::*;
    match value {
        Bool(flag) => (*flag).into(),
        F32(_) | F64(_) => value.as_f64().into(),
        String(text) => text.as_str().into(),
        Array(gguf::Array::Bool(all)) => all.clone().into(),
        Array(gguf::Array::U32(all)) => all.clone().into(),
        Array(gguf::Array::I32(all)) => all.clone().into(),
        Array(_) => Value::Array(Vec::new()),
        U64(n) => (*n).into(),
        _ => value.as_i64().into(),
    }
}

impl<'a> Keys<'a> {
    pub fn of_gguf(metadata: &'a gguf::Metadata, architecture: &'a str) -> Keys<'a> {
        Keys { source: Source::Gguf(metadata, architecture), read: RefCell::default() }
    }

    pub fn of_folder(json: &'a Value) -> Keys<'a> {
        Keys { source: Source::Folder(json), read: RefCell::default() }
    }

    /// True of a GGUF file.
    pub fn gguf(&self) -> bool {
        matches!(self.source, Source::Gguf(..))
    }

    fn name(&self, key: Key) -> String {
        match &self.source {
            Source::Gguf(_, architecture) => format!("{architecture}.{}", key.0),
            Source::Folder(_) => key.1.to_owned(),
        }
    }

    /// What a key says; null where there is none.
    pub fn get(&self, key: Key) -> Value {
        let name = self.name(key);
        let value = match &self.source {
            Source::Gguf(metadata, _) => metadata.get(&name).map_or(Value::Null, plain),
            Source::Folder(json) => json[&name].clone(),
        };
        self.read.borrow_mut().insert(name);
        value
    }

    /// Whether a file has a key, if only to say that it is null.
    pub fn says(&self, key: Key) -> bool {
        match &self.source {
            Source::Gguf(metadata, _) => metadata.contains_key(&self.name(key)),
            Source::Folder(json) => json.get(self.name(key)).is_some(),
        }
    }

    pub fn missing(&self, key: Key) -> Error {
        let source = if self.gguf() { "the file" } else { "config.json" };
        Error::model(format!("{source} says no {}", self.name(key)))
    }

    /// What a key says, where it does, of the kind that it is to be.
    pub fn of_kind<T>(
        &self,
        key: Key,
        kind: &str,
        of: fn(&Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let value = self.get(key);
        match of(&value) {
            None if !value.is_null() => {
                Err(Error::model(format!("{} is {value}, no {kind}", self.name(key))))
            }
            found => Ok(found),
        }
    }

    pub fn size_of(&self, key: Key) -> Result<Option<usize>> {
        self.of_kind(key, "size", |v| v.as_u64().and_then(|n| usize::try_from(n).ok()))
    }

    pub fn size(&self, key: Key) -> Result<usize> {
        self.size_of(key)?.ok_or_else(|| self.missing(key))
    }

    pub fn number_of(&self, key: Key) -> Result<Option<f64>> {
        self.of_kind(key, "number", Value::as_f64)
    }

    pub fn number(&self, key: Key) -> Result<f64> {
        self.number_of(key)?.ok_or_else(|| self.missing(key))
    }

    pub fn flag(&self, key: Key) -> Result<bool> {
        Ok(self.of_kind(key, "truth value", Value::as_bool)?.unwrap_or(false))
    }

    /// Whether there are to be biases; a GGUF file has those that it has.
    pub fn biased(&self, key: &'static str) -> Result<Option<bool>> {
        Ok(if self.gguf() { None } else { Some(self.flag(("", key))?) })
    }

    pub fn text_of(&self, key: Key) -> Result<Option<String>> {
        self.of_kind(key, "text", |v| v.as_str().map(String::from))
    }

    pub fn unsupported<T>(&self, key: Key) -> Result<T> {
        let (name, value) = (self.name(key), self.get(key));
        Err(Error::model(format!("{name} is {value}, which is not supported")))
    }

    /// Refuses a key that says anything but this.
    pub fn only(&self, key: Key, as_this: Value) -> Result<()> {
        match self.get(key) {
            Value::Null => Ok(()),
            value if value == as_this => Ok(()),
            _ => self.unsupported(key),
        }
    }

    /// Refuses a file that says what nobody has read, and what may change what it computes.
    pub fn left_over(&self) -> Result<()> {
        let read = self.read.borrow();
        let unknown = match &self.source {
            Source::Gguf(metadata, architecture) => {
                let own = |key: &&String| {
                    let name = key.strip_prefix(architecture).and_then(|n| n.strip_prefix('.'));
                    name.is_some_and(|name| !IDLE_IN_GGUF.contains(&name))
                };
                metadata.keys().filter(own).find(|key| !read.contains(*key))
            }
            Source::Folder(json) => {
                let says = |(_, value): &(&String, &Value)| {
                    !value.is_null() && **value != Value::Bool(false)
                };
                let mut names = json.as_object().into_iter().flatten().filter(says).map(|(k, _)| k);
                names.find(|k| !IDLE_IN_FOLDERS.contains(&k.as_str()) && !read.contains(*k))
            }
        };
        match unknown {
            Some(key) => Err(Error::model(format!(
                "{key} is not known, and may change what the model computes"
            ))),
            None => Ok(()),
        }
    }

    /// Experts, whose shares add up to one where a file says so, or says nothing and this does.
    pub fn experts(&self, normalised: bool) -> Result<Option<Experts>> {
        let count = self.size_of(("expert_count", "num_experts"))?;
        let count = count.or(self.size_of(("", "num_local_experts"))?);
        let used = self.size_of(("expert_used_count", "num_experts_per_tok"))?;
        let Some(count) = count.filter(|count| *count > 0) else { return Ok(None) };
        let own = self.size_of(("expert_feed_forward_length", "moe_intermediate_size"))?;
        let all = self.size_of(("feed_forward_length", "intermediate_size"))?;
        let key = ("expert_weights_norm", "norm_topk_prob");
        let told = self.of_kind(key, "truth value", Value::as_bool)?;
        // A softmax, of all layers.
        self.only(("expert_gating_func", ""), 1.into())?;
        self.only(("expert_weights_scale", ""), 1.0.into())?;
        self.only(("", "decoder_sparse_step"), 1.into())?;
        self.only(("", "mlp_only_layers"), Value::Array(Vec::new()))?;
        // Of training.
        for key in ["router_aux_loss_coef", "router_jitter_noise", "output_router_logits"] {
            self.get(("", key));
        }
        Ok(Some(Experts {
            count,
            used: used.unwrap_or(0),
            feed_forward: own.or(all).unwrap_or(0),
            normalised: told.unwrap_or(normalised),
            shared: None,
        }))
    }

    /// The window of layers that have one.
    fn window(&self) -> Result<Option<usize>> {
        let window = self.size_of(("attention.sliding_window", "sliding_window"))?;
        Ok(window.filter(|&window| window > 0))
    }

    /// Lets each layer see the last tokens alone, or all where the file says so, or where it says
    /// nothing of the layer and this does. None has a window where there is no number.
    pub fn windows(&self, config: &mut Config, sees_all: impl Fn(usize) -> bool) -> Result<()> {
        let (window, off) = (self.window()?, self.get(("", "use_sliding_window")) == false);
        let kinds = self.get(("", "layer_types"));
        let pattern = self.get(("attention.sliding_window_pattern", "sliding_window_pattern"));
        let one = |k: usize| {
            let all = match (&kinds[k], &pattern[k], &pattern) {
                (Value::String(kind), ..) if kind == "full_attention" => true,
                (Value::String(kind), ..) if kind == "sliding_attention" => false,
                (Value::String(kind), ..) => {
                    return Err(Error::model(format!("layers of {kind:?} are not supported")));
                }
                (_, Value::Bool(windowed), _) => !windowed,
                (_, _, Value::Number(every)) => last_of(every.as_u64().unwrap_or(0) as usize)(k),
                _ => sees_all(k),
            };
            Ok(window.filter(|_| !all && !off))
        };
        // More layers than these are refused.
        config.variant.windows = (0..config.layers.min(1 << 16)).map(one).collect::<Result<_>>()?;
        Ok(())
    }

    /// Keeps the context within a window whose layers are not known: those that read such files
    /// differ, but for a text that is no longer.
    pub fn within_window(&self, config: &mut Config) -> Result<()> {
        let off = self.get(("", "use_sliding_window")) == false;
        // Said of layers that have none.
        self.get(("", "layer_types"));
        if let Some(window) = self.window()?.filter(|_| !off) {
            config.context = config.context.min(window);
        }
        Ok(())
    }
}

/// Of layers, the last one of every so many.
pub fn last_of(every: usize) -> impl Fn(usize) -> bool {
    move |k| (k + 1).is_multiple_of(every.max(1))
}
