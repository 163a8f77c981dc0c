//! Folders of models: what `config.json` and an index of shards say.

use super::Target;
use super::values::device;
use futensor::{DType, block_on, safetensors};
use futensor_models::Bert;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The names and shapes of a small BERT's tensors.
fn tensors() -> Vec<(String, Vec<usize>)> {
    let mut all: Vec<(String, Vec<usize>)> = ["word", "position", "token_type"]
        .map(|part| (format!("embeddings.{part}_embeddings.weight"), vec![8, 4]))
        .into();
    let mut pair = |name: String, dims: &[usize]| {
        all.push((format!("{name}.weight"), dims.to_vec()));
        all.push((format!("{name}.bias"), vec![dims[0]]));
    };
    pair("embeddings.LayerNorm".into(), &[4]);
    let layer = |name: &str| format!("encoder.layer.0.{name}");
    for name in ["self.query", "self.key", "self.value", "output.dense"] {
        pair(layer(&format!("attention.{name}")), &[4, 4]);
    }
    pair(layer("attention.output.LayerNorm"), &[4]);
    pair(layer("intermediate.dense"), &[6, 4]);
    pair(layer("output.dense"), &[4, 6]);
    pair(layer("output.LayerNorm"), &[4]);
    all
}

const FILES: [&str; 2] = ["a.safetensors", "b.safetensors"];

/// A folder with two shards, for all inputs in turn.
fn shared() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let path = std::env::temp_dir().join(format!("futensor-untrusted-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder is made");
        for (k, file) in FILES.into_iter().enumerate() {
            let own = tensors().into_iter().skip(k).step_by(2);
            let own = own.map(|(name, dims)| (name, device().ones(&dims[..])));
            block_on(safetensors::save(path.join(file), own)).expect("a file is written");
        }
        path
    })
}

/// Loads a model of a folder: the first line is its `config.json`, the others are its index.
fn folder(bytes: &[u8]) -> bool {
    let mut texts = bytes.splitn(2, |&b| b == b'\n');
    let path = shared();
    for name in ["config.json", "model.safetensors.index.json"] {
        let text = texts.next().unwrap_or_default();
        std::fs::write(path.join(name), text).expect("a file is written");
    }
    match block_on(Bert::from_folder(device(), path, DType::F32)) {
        Ok(bert) => block_on(bert.embed(&[vec![1, 2], vec![7]]).wait_to_read()).is_ok(),
        Err(error) => {
            assert!(error.is_model() && !error.to_string().contains("panicked"), "{error}");
            false
        }
    }
}

pub const FOLDER: Target = Target {
    name: "folder",
    run: folder,
    corpus: || {
        let config = json!({ "model_type": "bert", "vocab_size": 8, "hidden_size": 4,
            "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 6,
            "max_position_embeddings": 8, "type_vocab_size": 8, "hidden_act": "relu",
            "layer_norm_eps": 1e-12 });
        let map: Map<String, Value> = tensors()
            .into_iter()
            .enumerate()
            .map(|(k, (name, _))| (name, FILES[k % 2].into()))
            .collect();
        let index = json!({ "metadata": { "total_size": 1 }, "weight_map": map });
        vec![format!("{config}\n{index}").into_bytes()]
    },
    words: &["null", "-1", "1e99", "99999999999", "../a.safetensors", "\"gelu\"", "config.json"],
    inputs: 400,
    memory: (8 << 20, 64),
};
