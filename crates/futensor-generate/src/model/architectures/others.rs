//! Architectures with norms in other places, of another kind, or with parts in one tensor.

use super::keys::last_of;
use super::{Architecture, Given, Keys};
use crate::error::Result;
use crate::model::config::{Activation, Config, HeadNorms};
use crate::model::parts::Part;
use serde_json::Value;

/// Microsoft's Phi-3 and 4: queries, keys and values are one tensor, as are gate and up.
pub const PHI3: Architecture = Architecture {
    gguf: &["phi3"],
    folder: &["phi3"],
    read: |keys| {
        let mut config = keys.config(Given::default())?;
        keys.windows(&mut config, |_| false)?;
        // Longer texts have other factors, and would have them from their first token on.
        let old = keys.size_of(("rope.scaling.original_context_length", ""))?;
        config.context = old.unwrap_or(config.context).min(config.context);
        (config.variant.fused_attention, config.variant.fused_gate) = (true, true);
        Ok(config)
    },
    names: &[],
};

/// Norms of what comes out of blocks, in place of those of what goes in.
fn norms_after(keys: &Keys, head_norms: HeadNorms) -> Result<Config> {
    let mut config = keys.config(Given::default())?;
    (config.variant.norms_before, config.variant.norms_after) = (false, true);
    config.variant.head_norms = head_norms;
    Ok(config)
}

/// AI2's OLMo 2 (2025, arXiv:2501.00656).
pub const OLMO2: Architecture = Architecture {
    gguf: &["olmo2"],
    folder: &["olmo2"],
    read: |keys| norms_after(keys, HeadNorms::All),
    names: &[],
};

/// AI2's OLMoE (2024, arXiv:2409.02060): experts.
pub const OLMOE: Architecture = Architecture {
    gguf: &["olmoe"],
    folder: &["olmoe"],
    read: |keys| {
        let mut config = keys.config(Given { experts: true, ..Given::default() })?;
        keys.only(("attention.clamp_kqv", "clip_qkv"), Value::Null)?;
        config.variant.head_norms = HeadNorms::All;
        config.variant.experts = keys.experts(false)?;
        Ok(config)
    },
    names: &[],
};

/// LG's EXAONE 4: layers that see all do not turn, where there are others.
pub const EXAONE4: Architecture = Architecture {
    gguf: &["exaone4"],
    folder: &["exaone4"],
    read: |keys| {
        let mut config = norms_after(keys, HeadNorms::Each)?;
        keys.windows(&mut config, last_of(4))?;
        let (rope, windows) = (config.rope.clone(), config.variant.windows.clone());
        if windows.iter().any(Option::is_some) {
            config.turn(|k| windows[k].map(|_| rope.clone()));
        }
        Ok(config)
    },
    names: &[],
};

/// Zhipu's GLM-4 0414: norms of what goes in and of what comes out.
pub const GLM4: Architecture = Architecture {
    gguf: &["glm4"],
    folder: &["glm4"],
    read: |keys| {
        let given = Given { neighbours: true, head: Some(128), part: 0.5, ..Given::default() };
        let mut config = keys.config(given)?;
        let variant = &mut config.variant;
        variant.norms_after = true;
        variant.fused_gate = true;
        if keys.get(("", "attention_bias")).is_null() {
            variant.attention_biased = (!keys.gguf()).then_some(true);
        }
        Ok(config)
    },
    names: &[
        (Part::AfterAttention, "post_self_attn_layernorm"),
        (Part::AfterFeedForward, "post_mlp_layernorm"),
    ],
};

/// StableLM 2: LayerNorm.
pub const STABLELM: Architecture = Architecture {
    gguf: &["stablelm"],
    folder: &["stablelm"],
    read: |keys| {
        let epsilon = ("attention.layer_norm_epsilon", "layer_norm_eps");
        let mut config = keys.config(Given { epsilon, part: 0.25, ..Given::default() })?;
        keys.only(("", "qk_layernorm"), false.into())?;
        config.variant.centred = true;
        config.variant.attention_biased = keys.biased("use_qkv_bias")?;
        config.variant.parallel = keys.flag(("use_parallel_residual", "use_parallel_residual"))?;
        Ok(config)
    },
    names: &[],
};

/// StarCoder 2 (Lozhkov et al. 2024, arXiv:2402.19173): LayerNorm, and no gate.
pub const STARCODER2: Architecture = Architecture {
    gguf: &["starcoder2"],
    folder: &["starcoder2"],
    read: |keys| {
        let epsilon = ("attention.layer_norm_epsilon", "norm_epsilon");
        let activation = Activation::GeluTanh;
        let given = Given { epsilon, activation, tied: true, ..Given::default() };
        let mut config = keys.config(given)?;
        keys.windows(&mut config, |_| false)?;
        let biased = match keys.get(("", "use_bias")).as_bool() {
            told if !keys.gguf() => Some(told.unwrap_or(true)),
            _ => None,
        };
        let variant = &mut config.variant;
        (variant.centred, variant.gated) = (true, false);
        (variant.attention_biased, variant.feed_forward_biased) = (biased, biased);
        Ok(config)
    },
    names: &[(Part::Up, "mlp.c_fc"), (Part::Down, "mlp.c_proj")],
};

/// Command R: LayerNorm, and the feed-forward block beside attention.
fn command(keys: &Keys) -> Result<Config> {
    let epsilon = ("attention.layer_norm_epsilon", "layer_norm_eps");
    let given = Given { epsilon, neighbours: true, tied: true, ..Given::default() };
    let mut config = keys.config(given)?;
    let scale = keys.number_of(("logit_scale", "logit_scale"))?;
    let variant = &mut config.variant;
    (variant.centred, variant.parallel) = (true, true);
    variant.logits_scale = scale.unwrap_or(if keys.gguf() { 1.0 } else { 0.0625 });
    Ok(config)
}

pub const COHERE: Architecture = Architecture {
    gguf: &["command-r"],
    folder: &["cohere"],
    read: |keys| {
        keys.only(("", "use_qk_norm"), false.into())?;
        command(keys)
    },
    names: &[],
};

/// Command R7B: layers that see all do not turn.
pub const COHERE2: Architecture = Architecture {
    gguf: &["cohere2"],
    folder: &["cohere2"],
    read: |keys| {
        let mut config = command(keys)?;
        keys.windows(&mut config, last_of(4))?;
        let (rope, windows) = (config.rope.clone(), config.variant.windows.clone());
        config.turn(|k| windows[k].map(|_| rope.clone()));
        Ok(config)
    },
    names: &[],
};
