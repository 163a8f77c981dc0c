//! Llama (Touvron et al. 2023, arXiv:2302.13971) with grouped heads, and those that differ from it
//! in numbers alone.

use super::{Architecture, Given, Keys};
use crate::error::Result;
use crate::model::config::Config;
use crate::model::parts::Part;

/// Llama, with pairs as they are in such a file.
fn with(keys: &Keys, neighbours: bool) -> Result<Config> {
    let experts = keys.gguf();
    let mut config = keys.config(Given { neighbours, experts, ..Given::default() })?;
    // Mixtral's files are of that name as well.
    config.variant.experts = if experts { keys.experts(true)? } else { None };
    config.variant.feed_forward_biased = keys.biased("mlp_bias")?;
    keys.within_window(&mut config)?;
    Ok(config)
}

pub const LLAMA: Architecture = Architecture {
    gguf: &["llama", "mistral3", "internlm2", "xverse"],
    folder: &["llama"],
    // GGUF has the rows of queries and keys such that pairs are neighbours.
    read: |keys| with(keys, keys.gguf()),
    names: &[],
};

/// Mistral (Jiang et al. 2023, arXiv:2310.06825): layers see a window. Files of GGUF call it
/// `llama`, and say of no window.
pub const MISTRAL: Architecture = Architecture {
    gguf: &[],
    folder: &["mistral", "ministral"],
    read: |keys| {
        let mut config = keys.config(Given::default())?;
        keys.windows(&mut config, |_| false)?;
        Ok(config)
    },
    names: &[],
};

/// Mixtral (Jiang et al. 2024, arXiv:2401.04088): Mistral with experts.
pub const MIXTRAL: Architecture = Architecture {
    gguf: &[],
    folder: &["mixtral"],
    read: |keys| {
        let mut config = keys.config(Given { experts: true, ..Given::default() })?;
        config.variant.experts = keys.experts(true)?;
        keys.windows(&mut config, |_| false)?;
        Ok(config)
    },
    names: &[
        (Part::Router, "block_sparse_moe.gate"),
        (Part::GateOfExperts, "block_sparse_moe.experts.#.w1"),
        (Part::UpOfExperts, "block_sparse_moe.experts.#.w3"),
        (Part::DownOfExperts, "block_sparse_moe.experts.#.w2"),
    ],
};

/// LG's EXAONE 3: as Llama, with pairs half a head apart.
pub const EXAONE: Architecture =
    Architecture { gguf: &["exaone"], folder: &[], read: |keys| with(keys, false), names: &[] };

/// Baidu's ERNIE 4.5.
pub const ERNIE: Architecture = Architecture {
    gguf: &["ernie4_5"],
    folder: &["ernie4_5"],
    read: |keys| {
        let given = Given { neighbours: true, tied: true, base: 500_000.0, ..Given::default() };
        let mut config = keys.config(given)?;
        config.variant.attention_biased = keys.biased("use_bias")?;
        config.variant.feed_forward_biased = config.variant.attention_biased;
        Ok(config)
    },
    names: &[],
};

/// SmolLM3: some layers do not turn.
pub const SMOLLM3: Architecture = Architecture {
    gguf: &["smollm3"],
    folder: &["smollm3"],
    read: |keys| {
        let given =
            Given { neighbours: keys.gguf(), tied: true, base: 2_000_000.0, ..Given::default() };
        let mut config = keys.config(given)?;
        config.variant.feed_forward_biased = keys.biased("mlp_bias")?;
        keys.within_window(&mut config)?;
        let every = keys.size_of(("", "no_rope_layer_interval"))?.unwrap_or(4).max(1);
        // 1 where a layer turns.
        let told = keys.get(("", "no_rope_layers"));
        let turns = |k: usize| told[k].as_u64().map_or(!(k + 1).is_multiple_of(every), |n| n != 0);
        let rope = config.rope.clone();
        config.turn(|k| turns(k).then(|| rope.clone()));
        Ok(config)
    },
    names: &[],
};

/// IBM's Granite, and MiniCPM: multipliers of embeddings, blocks, scores and logits.
pub const GRANITE: Architecture = Architecture {
    gguf: &["granite"],
    folder: &["granite"],
    read: |keys| {
        let mut config = with(keys, keys.gguf())?;
        let number =
            |key| -> Result<Option<f64>> { Ok(keys.number_of(key)?.filter(|x| *x != 0.0)) };
        let variant = &mut config.variant;
        variant.embedding_scale =
            number(("embedding_scale", "embedding_multiplier"))?.unwrap_or(1.0);
        variant.residual_scale = number(("residual_scale", "residual_multiplier"))?.unwrap_or(1.0);
        variant.attention_scale = number(("attention.scale", "attention_multiplier"))?;
        if !keys.gguf() {
            variant.attention_scale = variant.attention_scale.or(Some(1.0));
        }
        variant.logits_scale = number(("logit_scale", "logits_scaling"))?.map_or(1.0, f64::recip);
        Ok(config)
    },
    names: &[],
};

pub const MINICPM: Architecture = Architecture {
    gguf: &["minicpm"],
    folder: &[],
    read: |keys| {
        let mut config = with(keys, true)?;
        let number =
            |key, default| -> Result<f64> { Ok(keys.number_of((key, ""))?.unwrap_or(default)) };
        let (width, layers) = (config.width as f64, config.layers as f64);
        let variant = &mut config.variant;
        variant.embedding_scale = number("embedding_scale", 12.0)?;
        variant.residual_scale = number("residual_scale", 1.4 / layers.sqrt())?;
        variant.logits_scale = number("logit_scale", width / 256.0)?.recip();
        Ok(config)
    },
    names: &[],
};
