//! Qwen: version 2 (Yang et al. 2024, arXiv:2407.10671) has biases of queries, keys and values,
//! version 3 (Yang et al. 2025, arXiv:2505.09388) norms of queries and keys in each head.

use super::{Architecture, Given};
use crate::model::config::HeadNorms;

pub const QWEN2: Architecture = Architecture {
    gguf: &["qwen2"],
    folder: &["qwen2"],
    read: |keys| {
        let mut config = keys.config(Given::default())?;
        config.variant.attention_biased = Some(true);
        keys.windows(&mut config, None)?;
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
        keys.windows(&mut config, None)?;
        Ok(config)
    },
    names: &[],
};
