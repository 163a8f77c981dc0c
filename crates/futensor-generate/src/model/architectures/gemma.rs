//! Gemma (Gemma Team 2024, arXiv:2403.08295), and version 3 (2025, arXiv:2503.19786), which has
//! norms behind its blocks and of queries and keys, and layers that see a window.

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

pub const GEMMA3: Architecture = Architecture {
    gguf: &["gemma3"],
    folder: &["gemma3_text"],
    read: |keys| {
        let mut config = common(keys, 1_000_000.0)?;
        let told = keys.get(("rope.freq_base", "rope_theta"));
        if keys.gguf() && told.is_null() {
            config.rope.base = 1_000_000.0;
        }
        let windowed = keys.windows(&mut config, Some(6))?;
        let scalar = keys.number_of(("", "query_pre_attn_scalar"))?.unwrap_or(256.0);
        // The 27 B alone has another scale than its heads' width has it.
        let scalar = match (keys.gguf(), config.layers) {
            (true, 62) => config.width as f64 / config.heads as f64,
            (true, _) => config.head as f64,
            (false, _) => scalar,
        };
        let cap = keys.number_of(("final_logit_softcapping", "final_logit_softcapping"))?;
        keys.only(("attn_logit_softcapping", "attn_logit_softcapping"), 0.0.into())?;
        keys.only(("", "use_bidirectional_attention"), false.into())?;
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
        let variant = &mut config.variant;
        variant.norms_after = true;
        variant.head_norms = HeadNorms::Each;
        variant.attention_scale = Some(scalar.sqrt().recip());
        variant.logits_cap = cap.filter(|cap| *cap != 0.0);
        let global = config.rope.clone();
        let local_of = |k: usize| windowed.get(k) == Some(&true);
        config.turn(|k| Some(if local_of(k) { local.clone() } else { global.clone() }));
        Ok(config)
    },
    names: &[(Part::FeedForwardNorm, "pre_feedforward_layernorm")],
};
