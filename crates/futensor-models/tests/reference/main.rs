//! BERT beside `transformers`, and folders in every layout of the hub's, whole and broken.

mod bert;
mod folder;

use futensor::{CpuOptions, Device, TensorFuture, block_on, safetensors};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A folder of its own that goes with its owner.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let (process, count) = (std::process::id(), COUNT.fetch_add(1, Relaxed));
        let path = std::env::temp_dir().join(format!("futensor-models-{process}-{count}"));
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    fn write(&self, name: &str, value: &Value) {
        write(&self.0.join(name), &value.to_string());
    }

    /// Writes tensors to a file.
    fn save(&self, name: &str, tensors: impl IntoIterator<Item = (String, TensorFuture)>) {
        block_on(safetensors::save(self.0.join(name), tensors)).unwrap();
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Writes a file, in folders that may not be there yet.
fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

fn device() -> Device {
    Device::cpu_with(CpuOptions::default())
}

/// A model that `make.py` wrote.
struct Case {
    config: Value,
    rows: Vec<Vec<u32>>,
    tensors: BTreeMap<String, TensorFuture>,
}

impl Case {
    fn new(name: &str, device: &Device) -> Case {
        let cases: Vec<Value> = serde_json::from_str(include_str!("bert.json")).unwrap();
        let case = cases.into_iter().find(|case| case["name"] == name).unwrap();
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/bert.safetensors");
        let all = block_on(safetensors::load(path, device).all()).unwrap();
        let own = |(key, x): (String, TensorFuture)| Some((key.strip_prefix(name)?[1..].into(), x));
        Case {
            config: case["config"].clone(),
            rows: serde_json::from_value(case["rows"].clone()).unwrap(),
            tensors: all.into_iter().filter_map(own).collect(),
        }
    }

    fn weights(&self) -> Vec<(String, TensorFuture)> {
        let own = self.tensors.iter();
        own.filter_map(|(key, x)| Some((key.strip_prefix("weights.")?.to_owned(), x.clone())))
            .collect()
    }

    /// A plain folder with these weights.
    fn folder(&self, weights: Vec<(String, TensorFuture)>) -> Scratch {
        let folder = Scratch::new();
        folder.write("config.json", &self.config);
        folder.save("model.safetensors", weights);
        folder
    }
}
