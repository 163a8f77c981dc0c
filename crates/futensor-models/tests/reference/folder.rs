//! Folders in the hub's layouts: which files are read, how far, and what is refused.

use super::{Case, Scratch, device, write};
use futensor::{DType, Device, TensorFuture, block_on};
use futensor_models::{Bert, Folder, Progress};
use serde_json::{Map, Value, json};
use std::sync::{Arc, Mutex};

/// Writes the weights as three shards with an index.
fn shards(case: &Case, folder: &Scratch) {
    folder.write("config.json", &case.config);
    let mut index = Map::new();
    let weights = case.weights();
    for k in 0..3 {
        let file = format!("model-{:05}-of-00003.safetensors", k + 1);
        let own: Vec<_> = weights.iter().skip(k).step_by(3).cloned().collect();
        index.extend(own.iter().map(|(name, _)| (name.clone(), file.clone().into())));
        folder.save(&file, own);
    }
    let index = json!({ "metadata": { "total_size": 1 }, "weight_map": index });
    folder.write("model.safetensors.index.json", &index);
}

fn is_right(case: &Case, bert: &Bert) {
    let off = bert.embed(&case.rows[..1]).i(0) - &case.tensors["embedding.0"];
    assert!(block_on(off.abs().max_all().item::<f32>()).unwrap() < 1e-5);
}

fn refused(path: &std::path::Path, says: &str) {
    let error = block_on(async { Folder::open(path).await?.load(&Device::cpu()).all().await });
    let error = error.unwrap_err();
    assert!(error.is_model());
    assert_eq!(error.to_string(), format!("{}{says}", path.display()));
}

#[test]
fn shards_are_one_model_and_their_progress_is_told() {
    let device = device();
    let (case, scratch) = (Case::new("plain", &device), Scratch::new());
    shards(&case, &scratch);
    let folder = block_on(Folder::open(&scratch.0)).unwrap();
    let bytes: usize = case.weights().iter().map(|(_, x)| x.dims().iter().product::<usize>()).sum();
    assert_eq!((folder.bytes(), folder.files().count()), (4 * bytes as u64, 3));
    let seen: Arc<Mutex<Vec<Progress>>> = Arc::default();
    let own = seen.clone();
    let told = move |progress| own.lock().unwrap().push(progress);
    let bert = block_on(Bert::from_folder_with(&device, &folder, DType::F32, told)).unwrap();
    is_right(&case, &bert);
    let seen = seen.lock().unwrap();
    let count = case.weights().len();
    assert_eq!(seen.len(), count);
    assert!(seen.is_sorted_by(|a, b| a.bytes < b.bytes && a.tensors + 1 == b.tensors));
    let all = |p: &Progress| (p.tensors_all, p.bytes_all) == (count, folder.bytes());
    assert!(seen.iter().all(all), "{seen:?}");
    let last = seen.last().unwrap();
    assert_eq!((last.tensors, last.bytes, last.fraction()), (count, folder.bytes(), 1.0));
}

#[test]
fn a_stream_of_one_file_has_all_tensors_and_their_number() {
    let device = device();
    let case = Case::new("tanh", &device);
    let scratch = case.folder(case.weights());
    let folder = block_on(Folder::open(&scratch.0)).unwrap();
    assert_eq!(folder.config(), &case.config);
    let mut loading = folder.load(&device);
    let mut names = Vec::new();
    block_on(async {
        while let Some(next) = loading.next().await {
            let (name, tensor) = next.unwrap();
            assert_eq!(tensor.dims(), case.tensors[&format!("weights.{name}")].dims());
            names.push(name);
        }
    });
    let progress = loading.progress();
    assert_eq!((progress.tensors, progress.tensors_all), (names.len(), case.weights().len()));
    assert_eq!((progress.bytes, progress.bytes_all), (folder.bytes(), folder.bytes()));
    assert!(block_on(loading.next()).is_none());
}

/// The hub's cache: `models--organisation--name/snapshots/COMMIT`, and `refs` that name commits.
#[test]
fn the_hubs_cache_is_opened_by_its_references() {
    let device = device();
    let (case, cache) = (Case::new("plain", &device), Scratch::new());
    let snapshot = |commit: &str| {
        let folder = cache.0.join("snapshots").join(commit);
        std::fs::create_dir_all(&folder).unwrap();
        let scratch = std::mem::ManuallyDrop::new(Scratch(folder));
        shards(&case, &scratch);
    };
    snapshot("aaaa");
    let open = |revision: Option<&str>| {
        let folder = block_on(async {
            match revision {
                Some(revision) => Folder::open_revision(&cache.0, revision).await,
                None => Folder::open(&cache.0).await,
            }
        })?;
        assert!(folder.path().join("config.json").is_file());
        let commit = folder.path().file_name().unwrap().to_string_lossy().into_owned();
        Ok::<String, futensor_models::Error>(commit)
    };
    // The only one needs no reference.
    assert_eq!(open(None).unwrap(), "aaaa");
    snapshot("bbbb");
    let several = open(None).unwrap_err().to_string();
    assert!(several.contains("there are several snapshots"), "{several}");
    write(&cache.0.join("refs/main"), "bbbb\n");
    write(&cache.0.join("refs/refs/pr/1"), "aaaa");
    write(&cache.0.join("refs/old"), "cccc");
    write(&cache.0.join("refs/out"), "../..");
    assert_eq!(open(None).unwrap(), "bbbb");
    assert_eq!(open(Some("aaaa")).unwrap(), "aaaa");
    assert_eq!(open(Some("refs/pr/1")).unwrap(), "aaaa");
    let shown = cache.0.display();
    for (revision, says) in [
        ("v1.0", format!("{shown}: there is no revision v1.0")),
        ("../snapshots/aaaa", format!("{shown}: there is no revision ../snapshots/aaaa")),
        ("old", format!("{shown}/refs/old: there is no snapshot \"cccc\"")),
        ("out", format!("{shown}/refs/out: there is no snapshot \"../..\"")),
    ] {
        assert_eq!(open(Some(revision)).unwrap_err().to_string(), says);
    }
    let bert = block_on(Bert::from_folder(&device, &cache.0, DType::F32)).unwrap();
    is_right(&case, &bert);
}

#[test]
fn what_is_missing_or_elsewhere_is_refused_by_the_names_of_file_and_tensor() {
    let device = device();
    let (case, scratch) = (Case::new("plain", &device), Scratch::new());
    let path = |name: &str| scratch.0.join(name);
    refused(&path("none"), "/config.json: No such file or directory (os error 2)");
    scratch.write("config.json", &case.config);
    refused(&scratch.0, ": there is neither model.safetensors nor model.safetensors.index.json");
    shards(&case, &scratch);
    let index_file = path("model.safetensors.index.json");
    let index: Value = serde_json::from_slice(&std::fs::read(&index_file).unwrap()).unwrap();
    let with = |change: &dyn Fn(&mut Map<String, Value>)| {
        let mut index = index.clone();
        change(index["weight_map"].as_object_mut().unwrap());
        scratch.write("model.safetensors.index.json", &index);
    };
    // All is well to begin with.
    block_on(Bert::from_folder(&device, &scratch.0, DType::F32)).unwrap();
    with(&|map| drop(map.insert("extra".into(), "../model.safetensors".into())));
    refused(
        &scratch.0,
        "/model.safetensors.index.json: tensor extra is said to be in \"../model.safetensors\", \
         not a file of the folder",
    );
    with(&|map| map.clear());
    refused(&scratch.0, "/model.safetensors.index.json: it names no tensor");
    with(&|map| drop(map.insert("extra".into(), "model-00001-of-00003.safetensors".into())));
    refused(
        &scratch.0,
        "/model-00001-of-00003.safetensors: there is no tensor extra, of which \
         model.safetensors.index.json says so",
    );
    with(&|map| drop(map.remove("embeddings.word_embeddings.weight")));
    let file = index["weight_map"]["embeddings.word_embeddings.weight"].as_str().unwrap();
    refused(
        &scratch.0,
        &format!(
            "/{file}: tensor embeddings.word_embeddings.weight is not said to be here by \
             model.safetensors.index.json"
        ),
    );
    with(&|_| {});
    let second = path("model-00002-of-00003.safetensors");
    let whole = std::fs::read(&second).unwrap();
    std::fs::write(&second, &whole[..whole.len() - 1]).unwrap();
    let error = block_on(Bert::from_folder(&device, &scratch.0, DType::F32)).unwrap_err();
    let shown = second.display().to_string();
    assert!(error.is_model() && error.to_string().starts_with(&shown), "{error}");
    assert!(error.to_string().contains("truncated"), "{error}");
    std::fs::remove_file(&second).unwrap();
    let map = index["weight_map"].as_object().unwrap();
    let first = map.iter().filter(|(_, file)| *file == "model-00002-of-00003.safetensors");
    let first = first.map(|(name, _)| name).min().unwrap();
    refused(
        &scratch.0,
        &format!(
            "/model-00002-of-00003.safetensors: there is no such file, and \
             model.safetensors.index.json says that it has {first}"
        ),
    );
    write(&path("config.json"), "{");
    let error = block_on(Folder::open(&scratch.0)).unwrap_err().to_string();
    let shown = path("config.json").display().to_string();
    assert!(error.starts_with(&shown) && error.contains("EOF"), "{error}");
}

#[test]
fn a_tensor_in_two_files_is_refused() {
    let mut tensors = futensor_models::Tensors::new("index");
    let x: TensorFuture = Device::cpu().ones([1]);
    tensors.insert("w".into(), x.clone(), &"a".into()).unwrap();
    let error = tensors.insert("w".into(), x, &"b".into()).unwrap_err();
    assert_eq!(error.to_string(), "b: tensor w is in a as well");
}
