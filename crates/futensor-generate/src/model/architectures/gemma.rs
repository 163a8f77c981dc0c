//! Gemma (Gemma Team 2024, arXiv:2403.08295); version 2 (2024, arXiv:2408.00118), which has norms
//! behind its blocks, caps of scores and logits, and layers that see a window; and version 3 (2025,
//! arXiv:2503.19786), which has norms of queries and keys in place of the cap of scores.

use super::keys::last_of;
use super::rope::of_parameters;
use super::{Architecture, Given, Keys};
use crate::error::Result;
use crate::model::config::{Activation, Config, HeadNorms, Rope, Scaling};
use crate::model::parts::Part;

fn common(keys: &Keys, base: f64) -> Result<Config> {
    let mut config = keys.config(Given {
        activation: Activation::GeluTanh,
        activation_key: "hidden_activation",
        tied: true,
        head: Some(256),
        base,
        ..Given::default()
    })?;
    // What the first files named it was never meant.
    keys.get(("", "hidden_act"));
    config.variant.embedding_scale = (config.width as f64).sqrt();
    // Files of GGUF have it added.
    config.variant.norm_offset = if keys.gguf() { 0.0 } else { 1.0 };
    Ok(config)
}

pub const GEMMA: Architecture = Architecture {
    gguf: &["gemma"],
    folder: &["gemma"],
    read: |keys| common(keys, 10_000.0),
    names: &[],
};

/// What versions 2 and 3 have in common; of layers the last of so many sees all. The largest model
/// alone, of so many layers, has another scale than its heads' width has it.
fn with_windows(keys: &Keys, config: &mut Config, every: usize, largest: usize) -> Result<()> {
    keys.windows(config, last_of(every))?;
    let scalar = keys.number_of(("", "query_pre_attn_scalar"))?.unwrap_or(256.0);
    let scalar = match keys.gguf() {
        true if config.layers == largest => config.width as f64 / config.heads as f64,
        true => config.head as f64,
        false => scalar,
    };
    keys.only(("", "use_bidirectional_attention"), false.into())?;
    config.variant.norms_after = true;
    config.variant.attention_scale = Some(scalar.sqrt().recip());
    Ok(())
}

/// A cap of scores or of logits, or what it is where a file does not say.
fn cap(keys: &Keys, name: &'static str, default: Option<f64>) -> Result<Option<f64>> {
    let told = keys.number_of((name, name))?.filter(|cap| *cap != 0.0);
    // Zero, and in a `config.json` null, is none.
    Ok(if keys.says((name, name)) { told } else { default })
}

pub const GEMMA2: Architecture = Architecture {
    gguf: &["gemma2"],
    folder: &["gemma2"],
    read: |keys| {
        let mut config = common(keys, 10_000.0)?;
        with_windows(keys, &mut config, 2, 46)?;
        config.variant.attention_cap = cap(keys, "attn_logit_softcapping", Some(50.0))?;
        config.variant.logits_cap = cap(keys, "final_logit_softcapping", Some(30.0))?;
        Ok(config)
    },
    names: &[(Part::FeedForwardNorm, "pre_feedforward_layernorm")],
};

pub const GEMMA3: Architecture = Architecture {
    gguf: &["gemma3"],
    folder: &["gemma3_text"],
    read: |keys| {
        let mut config = common(keys, 1_000_000.0)?;
        let told = keys.get(("rope.freq_base", "rope_theta"));
        if keys.gguf() && told.is_null() {
            config.rope.base = 1_000_000.0;
        }
        with_windows(keys, &mut config, 6, 62)?;
        keys.only(("attn_logit_softcapping", "attn_logit_softcapping"), 0.0.into())?;
        let base = keys.number_of(("rope.freq_base_swa", "rope_local_base_freq"))?;
        let local = Rope {
            base: base.unwrap_or(10_000.0),
            scaling: Scaling::None,
            magnitude: 1.0,
            ..config.rope.clone()
        };
        let parameters = &keys.get(("", "rope_parameters"))["sliding_attention"];
        let local = match parameters["rope_theta"].as_f64() {
            Some(base) => of_parameters(parameters, Rope { base, ..local }, None, config.context)?,
            None => local,
        };
        config.variant.head_norms = HeadNorms::Each;
        config.variant.logits_cap = cap(keys, "final_logit_softcapping", None)?;
        let (global, windows) = (config.rope.clone(), config.variant.windows.clone());
        config.turn(|k| Some(if windows[k].is_some() { &local } else { &global }.clone()));
        Ok(config)
    },
    names: &[(Part::FeedForwardNorm, "pre_feedforward_layernorm")],
};
