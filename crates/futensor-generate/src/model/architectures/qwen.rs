//! Qwen: version 2 (Yang et al. 2024, arXiv:2407.10671) has biases of queries, keys and values,
//! version 3 (Yang et al. 2025, arXiv:2505.09388) norms of queries and keys in each head. Either
//! has models with experts, of which version 2 has one that every token sees.

use super::{Architecture, Given, Keys};
use crate::error::Result;
use crate::model::config::{Config, Experts, HeadNorms};

/// The last layers see a window, where a file says so.
fn windows(keys: &Keys, config: &mut Config) -> Result<()> {
    let windowed = keys.gguf() || keys.flag(("", "use_sliding_window"))?;
    let first = keys.size_of(("", "max_window_layers"))?.unwrap_or(28);
    keys.windows(config, |k| !windowed || k < first && !keys.gguf())
}

pub const QWEN2: Architecture = Architecture {
    gguf: &["qwen2"],
    folder: &["qwen2"],
    read: |keys| {
        let mut config = keys.config(Given::default())?;
        config.variant.attention_biased = Some(true);
        windows(keys, &mut config)?;
        Ok(config)
    },
    names: &[],
};

pub const QWEN3: Architecture = Architecture {
    gguf: &["qwen3"],
    folder: &["qwen3"],
    read: |keys| {
        let mut config = keys.config(Given { head: Some(128), ..Given::default() })?;
        config.variant.head_norms = HeadNorms::Each;
        windows(keys, &mut config)?;
        Ok(config)
    },
    names: &[],
};

pub const QWEN2MOE: Architecture = Architecture {
    gguf: &["qwen2moe"],
    folder: &["qwen2_moe"],
    read: |keys| {
        let mut config = keys.config(Given { experts: true, ..Given::default() })?;
        config.variant.attention_biased = Some(keys.gguf() || keys.get(("", "qkv_bias")) != false);
        let key = ("expert_shared_feed_forward_length", "shared_expert_intermediate_size");
        let shared = keys.size_of(key)?.unwrap_or(config.feed_forward);
        let experts =
            keys.experts(false)?.ok_or_else(|| keys.missing(("expert_count", "num_experts")))?;
        config.variant.experts = Some(Experts { shared: Some(shared), ..experts });
        windows(keys, &mut config)?;
        Ok(config)
    },
    names: &[],
};

pub const QWEN3MOE: Architecture = Architecture {
    gguf: &["qwen3moe"],
    folder: &["qwen3_moe"],
    read: |keys| {
        let given = Given { experts: true, ..Given::default() };
        let mut config = keys.config(given)?;
        config.variant.head_norms = HeadNorms::Each;
        config.variant.experts = keys.experts(keys.gguf())?;
        windows(keys, &mut config)?;
        Ok(config)
    },
    names: &[],
};
