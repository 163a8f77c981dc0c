//! The architectures that there are: each is a row that says what its files are named, how it reads
//! their keys, and where it differs from Llama. The layers know none of them.

mod gemma;
mod given;
mod keys;
mod llama;
mod others;
mod qwen;
mod rope;

use super::config::Config;
use super::parts::Part;
use crate::error::{Error, Result};
use futensor::gguf;
use given::Given;
use keys::Keys;
use serde_json::Value;

/// A family of models.
pub struct Architecture {
    /// `general.architecture` of GGUF files.
    pub gguf: &'static [&'static str],
    /// `model_type` of a `config.json`.
    pub folder: &'static [&'static str],
    pub read: fn(&Keys) -> Result<Config>,
    /// Parts that have another name than Llama's in Hugging Face's folders.
    pub names: &'static [(Part, &'static str)],
}

const ALL: [&Architecture; 24] = [
    &llama::LLAMA,
    &llama::MISTRAL,
    &llama::MIXTRAL,
    &llama::EXAONE,
    &llama::ERNIE,
    &llama::SMOLLM3,
    &llama::GRANITE,
    &llama::MINICPM,
    &qwen::QWEN2,
    &qwen::QWEN2MOE,
    &qwen::QWEN3,
    &qwen::QWEN3MOE,
    &gemma::GEMMA,
    &gemma::GEMMA2,
    &gemma::GEMMA3,
    &others::PHI3,
    &others::OLMO2,
    &others::OLMOE,
    &others::EXAONE4,
    &others::GLM4,
    &others::STABLELM,
    &others::STARCODER2,
    &others::COHERE,
    &others::COHERE2,
];

/// What those need that are known not to be here.
const NEEDS: [(&str, &[&str]); 7] = [
    (
        "experts of another kind",
        &[
            "phimoe",
            "granitemoe",
            "dbrx",
            "grok",
            "llama4",
            "glm4moe",
            "glm4_moe",
            "ernie4_5-moe",
            "hunyuan-moe",
            "dots1",
            "bailingmoe",
            "smallthinker",
            "minimax-m2",
        ],
    ),
    ("experts, attention with sinks, and weights in MXFP4", &["gpt-oss", "gpt_oss"]),
    ("latent attention", &["deepseek2", "deepseek_v2", "deepseek_v3", "minicpm3", "plm"]),
    (
        "layers with a state in place of attention",
        &[
            "mamba",
            "mamba2",
            "rwkv6",
            "rwkv7",
            "rwkv6qwen2",
            "arwkv7",
            "jamba",
            "falcon-h1",
            "falcon_h1",
            "granitehybrid",
            "granitemoehybrid",
            "lfm2",
            "nemotron_h",
            "plamo2",
            "qwen3next",
            "qwen3_next",
            "qwen35",
            "qwen3_5",
            "zamba2",
            "bamba",
            "recurrentgemma",
        ],
    ),
    ("embeddings for each layer", &["gemma3n", "gemma3n_text", "gemma4", "gemma4_text"]),
    ("pictures", &["gemma3_mm", "mllama", "qwen2vl", "qwen2_vl", "qwen3vl", "qwen3_vl", "clip"]),
    (
        "an encoder, which does not generate",
        &["bert", "nomic-bert", "jina-bert-v2", "modern-bert", "t5", "t5encoder", "roberta"],
    ),
];

fn known(
    kind: &str,
    names: impl Fn(&Architecture) -> &'static [&'static str],
) -> Result<&'static Architecture> {
    if let Some(found) = ALL.into_iter().find(|a| names(a).contains(&kind)) {
        return Ok(found);
    }
    let need = NEEDS.iter().find(|(_, kinds)| kinds.contains(&kind));
    let need = need.map_or(String::new(), |(need, _)| format!(", since it needs {need}"));
    let all: Vec<&str> = ALL.into_iter().flat_map(names).copied().collect();
    Err(Error::model(format!(
        "a model of architecture {kind:?} is not supported{need}; these are: {}",
        all.join(", ")
    )))
}

/// Of a GGUF file's metadata.
pub fn of_gguf(metadata: &gguf::Metadata) -> Result<(Config, &'static Architecture)> {
    let text = |key: &str| metadata.get(key).and_then(|v| v.as_str());
    if let Some(kind) = text("general.type").filter(|kind| *kind != "model") {
        return Err(Error::model(format!("the file is of type {kind:?}, and is no model")));
    }
    let kind = text("general.architecture").unwrap_or("");
    let architecture = known(kind, |a| a.gguf)?;
    read(architecture, &Keys::of_gguf(metadata, kind))
}

/// Of Hugging Face's `config.json`.
pub fn of_folder(json: &Value) -> Result<(Config, &'static Architecture)> {
    let kind = json["model_type"].as_str().unwrap_or("");
    if let Some(how) = json.get("quantization_config").filter(|how| !how.is_null()) {
        let how = how["quant_method"].as_str().unwrap_or("some way");
        return Err(Error::model(format!(
            "quantization_config: weights that are quantised by {how:?} are not supported"
        )));
    }
    read(known(kind, |a| a.folder)?, &Keys::of_folder(json))
}

fn read(
    architecture: &'static Architecture,
    keys: &Keys,
) -> Result<(Config, &'static Architecture)> {
    let config = (architecture.read)(keys)?;
    keys.left_over()?;
    config.check()?;
    Ok((config, architecture))
}

#[cfg(test)]
mod tests;
