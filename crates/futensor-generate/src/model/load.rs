//! Models from files.

use super::architectures;
use super::parts::Parts;
use super::{Llama, Scaling};
use crate::error::{Error, Result, number_of};
use crate::helpers::outside;
use crate::template::Template;
use crate::tokenizer::{Tokenizer, Vocabulary};
use futensor::{DType, Device, gguf};
use futensor_models::{Folder, Progress, Tensors};
use std::path::{Path, PathBuf};
use std::sync::Arc;

impl Llama {
    /// Of a folder as Hugging Face has them, or of the hub's cache (see [`Folder::open`]):
    /// `config.json`, `tokenizer.json`, tensors, and the chat template of `tokenizer_config.json`
    /// or `chat_template.jinja`. One that cannot be read refuses conversations.
    ///
    /// # Errors
    /// Where a file is missing or broken, the model is none that is known, or its parts do not fit
    /// each other.
    pub async fn from_folder(device: &Device, folder: impl AsRef<Path>) -> Result<Llama> {
        Llama::from_folder_with(device, &Folder::open(folder).await?, |_| {}).await
    }

    /// Of an open folder. `progress` is called whenever a tensor has been received.
    ///
    /// ```no_run
    /// # futensor::block_on(async {
    /// use futensor::Device;
    /// use futensor_generate::{Folder, Llama};
    /// let folder = Folder::open("models--HuggingFaceTB--SmolLM2-135M-Instruct").await?;
    /// let device = Device::try_gpu(0);
    /// let model = Llama::from_folder_with(&device, &folder, |progress| {
    ///     eprint!("\r{:3.0} %", progress.fraction() * 100.0);
    /// });
    /// assert!(model.await?.template().is_some());
    /// # Ok::<(), futensor_generate::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`from_folder`](Self::from_folder).
    pub async fn from_folder_with(
        device: &Device,
        folder: &Folder,
        progress: impl FnMut(Progress) + Send + 'static,
    ) -> Result<Llama> {
        let (config, architecture) =
            architectures::of_folder(folder.config()).map_err(|e| folder.wrong(e))?;
        let path = folder.path().to_owned();
        let (tokenizer, template) = outside().work(move || of_texts(&path)).await?;
        let tensors = folder.load(device).on_progress(progress).all().await?;
        let weights = Parts { tensors, gguf: false, names: architecture.names }.all(&config)?;
        Llama::new(device, config, weights, tokenizer, template)
    }

    /// Of a GGUF file: its weights as they are, its tokenizer, its chat template. Of a model in
    /// several files it is the first, and the others are beside it.
    ///
    /// # Errors
    /// Where the file is missing or broken, the model is none that is known, or its parts do not
    /// fit each other.
    pub async fn from_gguf(device: &Device, path: impl AsRef<Path>) -> Result<Llama> {
        let path = path.as_ref();
        // It names the file.
        let wrong = |e: futensor::Error| Error::model(e.message().to_owned());
        let file = gguf::open(path).await.map_err(wrong)?;
        let parts = Split::of(path, file.metadata())?;
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
        let shown = |path: &Path| -> Arc<str> { path.display().to_string().into() };
        let mut tensors = Tensors::new(shown(path));
        for (name, tensor) in file.load(device).all().await.map_err(wrong)? {
            tensors.insert(name, tensor, &shown(path))?;
        }
        for (k, path) in parts.others.iter().enumerate() {
            let other = gguf::open(path).await.map_err(wrong)?;
            parts.check(path, k + 1, other.metadata())?;
            for (name, tensor) in other.load(device).all().await.map_err(wrong)? {
                tensors.insert(name, tensor, &shown(path))?;
            }
        }
        if parts.tensors.is_some_and(|count| count != tensors.len() as u64) {
            let found = number_of(tensors.len(), "tensor", "tensors");
            return Err(Error::model(format!("the files have {found}, and say otherwise")));
        }
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

/// The files of a model in several.
struct Split {
    /// All but the first.
    others: Vec<PathBuf>,
    /// Of all files.
    tensors: Option<u64>,
}

/// Files of a model at most.
const FILES_MAX: u64 = 999;

impl Split {
    /// By what the first file says.
    fn of(path: &Path, metadata: &gguf::Metadata) -> Result<Split> {
        let number = |key: &str| metadata.get(key).and_then(|v| v.as_u64());
        let count = number("split.count").unwrap_or(1);
        let tensors = number("split.tensors.count").filter(|_| count > 1);
        if count <= 1 {
            return Ok(Split { others: Vec::new(), tensors });
        }
        let wrong = |text: String| Err(Error::model(format!("{}: {text}", path.display())));
        if count > FILES_MAX {
            return wrong(format!("a model in {count} files, of {FILES_MAX} at most"));
        }
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let first = format!("-00001-of-{count:05}.gguf");
        let Some(stem) = name.strip_suffix(&first) else {
            return wrong(format!(
                "the first of {count} files is to be named, which ends in {first}"
            ));
        };
        let other = |k: u64| path.with_file_name(format!("{stem}-{k:05}-of-{count:05}.gguf"));
        Ok(Split { others: (2..=count).map(other).collect(), tensors })
    }

    /// Refuses a file that is another one, counted from zero.
    fn check(&self, path: &Path, at: usize, metadata: &gguf::Metadata) -> Result<()> {
        let number = |key: &str| metadata.get(key).and_then(|v| v.as_u64());
        let own = [number("split.no"), number("split.count")];
        if own == [Some(at as u64), Some(self.others.len() as u64 + 1)] {
            return Ok(());
        }
        Err(Error::model(format!("{}: it is another file than its name says", path.display())))
    }
}

/// What a folder has beside its configuration and its tensors.
fn of_texts(folder: &Path) -> Result<(Tokenizer, Option<Template>)> {
    let tokenizer = Tokenizer::from_file(folder.join("tokenizer.json"))?;
    let source = match std::fs::read(folder.join("chat_template.jinja")) {
        Ok(text) => Some(String::from_utf8_lossy(&text).into_owned()),
        Err(_) => std::fs::read(folder.join("tokenizer_config.json"))
            .ok()
            .and_then(|text| serde_json::from_slice(&text).ok())
            .and_then(|config: serde_json::Value| source(&config["chat_template"])),
    };
    let template = source.map(|source| template(&source, &tokenizer));
    Ok((tokenizer, template))
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

    use crate::model::Config;
    use crate::model::parts::Part;
    use futensor::quant::Weight;
    use std::collections::BTreeMap;

    /// The names of a model's tensors: GGUF's and Hugging Face's.
    pub fn names(layers: usize) -> Vec<(String, String)> {
        use Part::*;
        let of_layers = [AttentionNorm, Query, Key, Value, Output, FeedForwardNorm, Gate, Up, Down];
        let all = (0..layers).flat_map(|k| of_layers.map(|part| (part, Some(k))));
        let all = all.chain([(Embedding, None), (Norm, None)]);
        let [gguf, folder] =
            [true, false].map(|gguf| Parts { tensors: Tensors::new("none"), gguf, names: &[] });
        let name = |parts: &Parts, part, layer| format!("{}.weight", parts.name(part, layer));
        all.map(|(part, layer)| (name(&gguf, part, layer), name(&folder, part, layer))).collect()
    }

    /// A model of these tensors, by GGUF's names.
    pub fn llama(
        device: &Device,
        config: Config,
        of: BTreeMap<String, Weight>,
        tokenizer: Tokenizer,
    ) -> Result<Llama> {
        let mut tensors = Tensors::new("the file");
        for (name, tensor) in of {
            tensors.insert(name, tensor, &"the file".into())?;
        }
        let weights = Parts { tensors, gguf: true, names: &[] }.all(&config)?;
        Llama::new(device, config, weights, tokenizer, None)
    }
}
