//! What every architecture says of itself, in its own way.

use super::keys::{Key, Keys};
use super::rope;
use crate::error::{Error, Result};
use crate::model::config::{Activation, Config, Rope, Scaling, Variant};
use serde_json::Value;

/// What differs among architectures in how a file says it, and where it says nothing.
pub struct Given {
    /// Of the norms' epsilon.
    pub epsilon: Key,
    /// Pairs that are turned are neighbours.
    pub neighbours: bool,
    pub activation: Activation,
    pub activation_key: &'static str,
    // Of a `config.json` that does not say.
    pub tied: bool,
    pub head: Option<usize>,
    pub base: f64,
    /// How much of a head is turned.
    pub part: f64,
    /// It may have experts, and reads what a file says of them.
    pub experts: bool,
}

/// RMSNorm's epsilon.
const RMS: Key = ("attention.layer_norm_rms_epsilon", "rms_norm_eps");

impl Default for Given {
    fn default() -> Given {
        Given {
            epsilon: RMS,
            neighbours: false,
            activation: Activation::Silu,
            activation_key: "hidden_act",
            tied: false,
            head: None,
            base: 10_000.0,
            part: 1.0,
            experts: false,
        }
    }
}

/// By the name that a `config.json` has for it.
pub fn activation_of(name: &str) -> Result<Activation> {
    Ok(match name {
        "silu" | "swish" => Activation::Silu,
        "gelu" => Activation::Gelu,
        "gelu_new" | "gelu_fast" | "gelu_pytorch_tanh" => Activation::GeluTanh,
        other => {
            return Err(Error::model(format!("hidden_act is {other:?}, which is not supported")));
        }
    })
}

impl Keys<'_> {
    /// What every architecture has.
    pub fn config(&self, given: Given) -> Result<Config> {
        let width = self.size(("embedding_length", "hidden_size"))?;
        let heads = self.size(("attention.head_count", "num_attention_heads"))?;
        let kv_heads = self.size_of(("attention.head_count_kv", "num_key_value_heads"))?;
        let head = self.size_of(("attention.key_length", "head_dim"))?;
        let head = head.or(given.head.filter(|_| !self.gguf()));
        let head = head.unwrap_or(width / heads.max(1));
        self.only(("attention.value_length", ""), head.into())?;
        if !given.experts && self.experts(false)?.is_some() {
            return Err(Error::model("mixtures of experts are not supported"));
        }
        self.only(("attention.causal", ""), true.into())?;
        let mut config = Config {
            width,
            layers: self.size(("block_count", "num_hidden_layers"))?,
            heads,
            kv_heads: kv_heads.unwrap_or(heads),
            head,
            feed_forward: self.size(("feed_forward_length", "intermediate_size"))?,
            context: self.size(("context_length", "max_position_embeddings"))?,
            epsilon: self.number(given.epsilon)?,
            rope: Rope {
                base: if self.gguf() { 10_000.0 } else { given.base },
                scaling: Scaling::None,
                neighbours: given.neighbours,
                turned: if self.gguf() { head } else { (head as f64 * given.part) as usize },
                magnitude: 1.0,
            },
            variant: Variant { activation: given.activation, ..Variant::default() },
        };
        // Before anything is made that is as large as a size says.
        config.check()?;
        if let Some(activation) = self.text_of(("", given.activation_key))? {
            config.variant.activation = activation_of(&activation)?;
        }
        if !self.gguf() {
            let tied = self.of_kind(("", "tie_word_embeddings"), "truth value", Value::as_bool)?;
            config.variant.tied = Some(tied.unwrap_or(given.tied));
        }
        config.variant.attention_biased = self.biased("attention_bias")?;
        rope::read(self, &mut config)?;
        Ok(config)
    }
}
