//! Models from files.

use super::architectures::{self, Architecture};
use super::parts::Parts;
use super::{Config, Llama, Scaling};
use crate::error::{Error, Result};
use crate::helpers::outside;
use crate::template::Template;
use crate::tokenizer::{Tokenizer, Vocabulary};
use futensor::quant::Weight;
use futensor::{DType, Device, gguf, safetensors};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

impl Llama {
    /// Of a folder as Hugging Face has them: `config.json`, `tokenizer.json`, `*.safetensors`, and
    /// the chat template of `tokenizer_config.json` or `chat_template.jinja`. One that cannot be
    /// read refuses conversations.
    ///
    /// # Errors
    /// Where a file is missing or broken, the model is none that is known, or its parts do not fit
    /// each other.
    pub async fn from_folder(device: &Device, folder: impl AsRef<Path>) -> Result<Llama> {
        let folder = folder.as_ref().to_owned();
        let Folder { config, architecture, tokenizer, template, files } =
            outside().work(move || Folder::read(&folder)).await?;
        let mut tensors = BTreeMap::new();
        for file in files {
            let loaded = safetensors::load(&file, device).all().await;
            let loaded = loaded.map_err(|e| Error::model(e.message().to_owned()))?;
            for (name, tensor) in loaded {
                if tensors.insert(name.clone(), Weight::Dense(tensor)).is_some() {
                    return Err(Error::model(format!("two files have a tensor {name}")));
                }
            }
        }
        let weights = Parts { tensors, gguf: false, names: architecture.names }.all(&config)?;
        Llama::new(device, config, weights, tokenizer, template)
    }

    /// Of a GGUF file: its weights as they are, its tokenizer, its chat template.
    ///
    /// # Errors
    /// Where the file is missing or broken, the model is none that is known, or its parts do not
    /// fit each other.
    pub async fn from_gguf(device: &Device, path: impl AsRef<Path>) -> Result<Llama> {
        let path = path.as_ref();
        // It names the file.
        let wrong = |e: futensor::Error| Error::model(e.message().to_owned());
        let file = gguf::open(path).await.map_err(wrong)?;
        let (mut config, architecture) = architectures::of_gguf(file.metadata())?;
        let vocabulary = Vocabulary::from_gguf(file.metadata())?;
        let source = file
            .metadata()
            .get("tokenizer.chat_template")
            .and_then(|s| s.as_str().map(String::from));
        let made = outside().work(move || {
            let tokenizer = vocabulary.tokenizer()?;
            let template = source.map(|source| template(&source, &tokenizer));
            Ok((tokenizer, template))
        });
        let (tokenizer, template) = made.await?;
        let mut tensors = file.load(device).all().await.map_err(wrong)?;
        // Those of longer texts are for contexts that no model is given here.
        let long = tensors.remove("rope_factors_long.weight").is_some();
        for name in ["rope_freqs.weight", "rope_factors_short.weight"] {
            let Some(factors) = tensors.remove(name) else { continue };
            let factors = factors.dense().to_dtype(DType::F64).to_vec::<f64>().await?;
            if config.rope.scaling != Scaling::None || !config.variant.turns.is_empty() {
                return Err(Error::model(format!("{name} beside other factors of positions")));
            }
            config.rope.scaling = Scaling::Each(factors);
        }
        if long && config.rope.scaling == Scaling::None {
            return Err(Error::model("rope_factors_long.weight without rope_factors_short.weight"));
        }
        config.check()?;
        let weights = Parts { tensors, gguf: true, names: architecture.names }.all(&config)?;
        Llama::new(device, config, weights, tokenizer, template)
    }
}

/// What a folder has beside its tensors.
struct Folder {
    config: Config,
    architecture: &'static Architecture,
    tokenizer: Tokenizer,
    template: Option<Template>,
    /// With tensors.
    files: Vec<PathBuf>,
}

impl Folder {
    fn read(folder: &Path) -> Result<Folder> {
        let read = |name: &str| {
            let path = folder.join(name);
            std::fs::read(&path).map_err(|e| Error::model(format!("{}: {e}", path.display())))
        };
        let json = |name: &str| -> Result<serde_json::Value> {
            serde_json::from_slice(&read(name)?).map_err(|e| Error::model(format!("{name}: {e}")))
        };
        let (config, architecture) = architectures::of_folder(&json("config.json")?)?;
        let tokenizer = Tokenizer::from_file(folder.join("tokenizer.json"))?;
        let source = match read("chat_template.jinja") {
            Ok(text) => Some(String::from_utf8_lossy(&text).into_owned()),
            Err(_) => json("tokenizer_config.json").ok().and_then(|c| source(&c["chat_template"])),
        };
        let template = source.map(|source| template(&source, &tokenizer));
        let files = std::fs::read_dir(folder)
            .map_err(|e| Error::model(format!("{}: {e}", folder.display())))?;
        let has_tensors = |path: &PathBuf| path.extension().is_some_and(|e| e == "safetensors");
        let files = files.flatten().map(|f| f.path()).filter(has_tensors).collect();
        Ok(Folder { config, architecture, tokenizer, template, files })
    }
}

/// A template's source: itself, or of several the one that is named so.
fn source(json: &serde_json::Value) -> Option<String> {
    let of_list = || json.as_array()?.iter().find(|t| t["name"] == "default");
    json.as_str().or_else(|| of_list()?["template"].as_str()).map(String::from)
}

/// A template that cannot be read refuses conversations, and not the model.
fn template(source: &str, tokenizer: &Tokenizer) -> Template {
    let name = |token: Option<u32>| token.and_then(|t| tokenizer.name(t)).unwrap_or_default();
    Template::new(source, &name(tokenizer.begin()), &name(tokenizer.ends().first().copied()))
        .unwrap_or_else(|error| Template::refusing(&error))
}

#[cfg(test)]
pub mod testing {
    use super::*;

    use crate::model::parts::Part;

    /// The names of a model's tensors: GGUF's and Hugging Face's.
    pub fn names(layers: usize) -> Vec<(String, String)> {
        use Part::*;
        let of_layers = [AttentionNorm, Query, Key, Value, Output, FeedForwardNorm, Gate, Up, Down];
        let all = (0..layers).flat_map(|k| of_layers.map(|part| (part, Some(k))));
        let all = all.chain([(Embedding, None), (Norm, None)]);
        let [gguf, folder] =
            [true, false].map(|gguf| Parts { tensors: BTreeMap::new(), gguf, names: &[] });
        let name = |parts: &Parts, part, layer| format!("{}.weight", parts.name(part, layer));
        all.map(|(part, layer)| (name(&gguf, part, layer), name(&folder, part, layer))).collect()
    }

    /// A model of these tensors, by GGUF's names.
    pub fn llama(
        device: &Device,
        config: Config,
        tensors: BTreeMap<String, Weight>,
        tokenizer: Tokenizer,
    ) -> Result<Llama> {
        let weights = Parts { tensors, gguf: true, names: &[] }.all(&config)?;
        Llama::new(device, config, weights, tokenizer, None)
    }
}
