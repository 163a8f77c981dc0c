//! Files of NumPy and PyTorch (`tests/reference/python_files.py` writes them, and what they hold):
//! values come as they are, broken and hostile files are refused, and nothing in them runs.

use futensor::float8::{Float8E4M3, Float8E5M2};
use futensor::{DType, Device, TensorFuture, npy, pth};
use futures::executor::block_on;
use half::{bf16, f16};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("reference/python_files")
}

/// What each file holds, by its name.
fn held() -> BTreeMap<String, Value> {
    serde_json::from_slice(&std::fs::read(folder().join("held.json")).unwrap()).unwrap()
}

async fn values(x: &TensorFuture) -> Vec<f64> {
    macro_rules! read {
        ($t:ty, $each:expr) => {
            x.to_vec::<$t>().await.unwrap().into_iter().map($each).collect()
        };
    }
    match x.dtype() {
        DType::F32 => read!(f32, f64::from),
        DType::F64 => read!(f64, |x| x),
        DType::F16 => read!(f16, f64::from),
        DType::BF16 => read!(bf16, f64::from),
        DType::I32 => read!(i32, f64::from),
        DType::I64 => read!(i64, |x| x as f64),
        DType::U8 => read!(u8, f64::from),
        DType::Bool => read!(bool, f64::from),
        DType::I8 => read!(i8, f64::from),
        DType::I16 => read!(i16, f64::from),
        DType::U16 => read!(u16, f64::from),
        DType::U32 => read!(u32, f64::from),
        DType::U64 => read!(u64, |x| x as f64),
        DType::F8E4M3 => read!(Float8E4M3, |x| x.to_f32().into()),
        DType::F8E5M2 => read!(Float8E5M2, |x| x.to_f32().into()),
    }
}

async fn same(file: &str, found: &BTreeMap<String, TensorFuture>, held: &Value) {
    let mut held = held.as_object().unwrap().clone();
    held.remove("metadata");
    assert!(found.keys().eq(held.keys().collect::<BTreeSet<_>>()), "{file}: {found:?}");
    for (name, x) in found {
        let known = &held[name];
        let shape: Vec<usize> = serde_json::from_value(known["shape"].clone()).unwrap();
        assert_eq!((x.dtype().name(), x.dims()), (known["dtype"].as_str().unwrap(), &shape[..]));
        let wanted: Vec<f64> = serde_json::from_value(known["values"].clone()).unwrap();
        let found = values(x).await;
        assert_eq!(found.len(), wanted.len());
        // The JSON reader rounds the last bit of a float64.
        let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-15 * b.abs();
        assert!(found.iter().zip(&wanted).all(near), "{file}: {name}: {found:?} {wanted:?}");
    }
}

/// Loads a file of any of the formats.
async fn load(bytes: Vec<u8>, kind: &str) -> futensor::Result<BTreeMap<String, TensorFuture>> {
    let device = Device::cpu();
    match kind {
        "npy" => {
            let x = npy::load_bytes(bytes, &device).await?;
            Ok(BTreeMap::from([("array".to_string(), x)]))
        }
        "npz" => npy::load_npz_bytes(bytes, &device).all().await,
        _ => pth::load_bytes(bytes, &device).all().await,
    }
}

#[tokio::test]
async fn what_numpy_and_pytorch_wrote_comes_as_it_is() {
    let mut files = 0;
    for (file, held) in held() {
        let (path, device) = (folder().join(&file), Device::cpu());
        let bytes = std::fs::read(&path).unwrap();
        let kind = file.rsplit('.').next().unwrap();
        same(&file, &load(bytes, kind).await.unwrap(), &held).await;
        let from_disk = match kind {
            "npy" => {
                BTreeMap::from([("array".to_string(), npy::load(&path, &device).await.unwrap())])
            }
            "npz" => npy::load_npz(&path, &device).all().await.unwrap(),
            _ => pth::load(&path, &device).all().await.unwrap(),
        };
        same(&file, &from_disk, &held).await;
        files += 1;
    }
    assert!(files >= 18, "{files}");
    assert!(
        !Path::new("python_files_ran").exists() && !folder().join("../python_files_ran").exists()
    );
}

#[tokio::test]
async fn plain_values_of_a_checkpoint_are_its_metadata() {
    let known = &held()["checkpoint.pth"]["metadata"];
    let mut load = pth::load(folder().join("checkpoint.pth"), &Device::cpu());
    let metadata = load.metadata().await.unwrap();
    for (name, value) in known.as_object().unwrap() {
        assert_eq!(metadata[name], value.as_str().unwrap(), "{name}");
    }
    assert!(!metadata.contains_key("none") && !metadata.contains_key("seed"));
    assert!(load.all().await.unwrap().contains_key("optimizer.state.0.exp_avg"));
}

#[tokio::test]
async fn only_the_wanted_tensors_are_read() {
    let options = pth::LoadOptions::default().only(|name| name == "1.weight");
    let mut load = pth::load_with(folder().join("state_dict.pth"), &Device::cpu(), options);
    let (name, x) = load.next().await.unwrap().unwrap();
    assert_eq!((&name[..], x.dims()), ("1.weight", &[4][..]));
    assert_eq!((load.progress().tensors_all, load.progress().bytes_all), (1, 16));
    assert!(load.next().await.is_none());
    // An array of objects that nobody asks for keeps no other array from being read.
    let options = npy::LoadOptions::default().only(|name| name == "b");
    let path = folder().join("objects_refused.npz");
    let all = npy::load_npz_with(path, &Device::cpu(), options).all().await.unwrap();
    assert_eq!(all.keys().collect::<Vec<_>>(), ["b"]);
}

#[tokio::test]
async fn what_futensor_does_not_have_is_refused_by_name() {
    let mut words = BTreeMap::from([
        ("complex_refused.npy", "elements of type <c8"),
        ("text_refused.npy", "elements of type <U2"),
        ("fields_refused.npy", "fields"),
        ("objects_refused.npy", "Python objects"),
        ("objects_refused.npz", "a.npy: the array has Python objects"),
        ("whole_model_refused.pth", "a torch.nn.modules.container.Sequential, not a dictionary"),
        ("old_refused.pth", "before PyTorch 1.6"),
        ("sparse_refused.pth", "tensor a: a tensor of the kind sparse_tensor"),
        ("float8_fnuz_refused.pth", "tensor a: it is of float8_e5m2fnuz"),
        ("complex_refused.pth", "tensor a: it is of ComplexFloat"),
        ("namespace_refused.pth", "args is a argparse.Namespace with tensors in it"),
        ("script_refused.pth", "not a dictionary of tensors"),
    ]);
    for entry in std::fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        let file = path.file_name().unwrap().to_str().unwrap().to_string();
        if !file.contains("_refused") {
            continue;
        }
        let words = words.remove(&file[..]).unwrap_or_else(|| panic!("no words for {file}"));
        let kind = file.rsplit('.').next().unwrap();
        let error = load(std::fs::read(&path).unwrap(), kind).await.unwrap_err();
        assert!(error.is_source() && error.op() == "load", "{error}");
        assert!(error.message().contains(words), "{file}: {error}");
    }
    assert!(words.is_empty(), "{words:?}");
}

/// Every cut and every changed byte: an error or a value, no panic, and no value of other sizes.
#[test]
fn a_damaged_file_is_refused_or_read() {
    for file in ["float64_big.npy", "compressed.npz", "plain.npz", "views.pth", "checkpoint.pth"] {
        let bytes = std::fs::read(folder().join(file)).unwrap();
        let kind = file.rsplit('.').next().unwrap();
        let step = (bytes.len() / 150).max(1);
        for at in (0..bytes.len()).step_by(step) {
            let cut = block_on(load(bytes[..at].to_vec(), kind));
            let error = cut.expect_err("a file without its end");
            assert!(!error.message().contains("panicked"), "{file} to {at}: {error}");
            let mut changed = bytes.clone();
            changed[at] ^= 1 << (at % 8);
            if let Err(error) = block_on(load(changed, kind)) {
                assert!(!error.message().contains("panicked"), "{file} at {at}: {error}");
            }
        }
    }
}

#[test]
fn a_changed_element_in_an_archive_is_found_by_its_checksum() {
    let ones = [1f32, 1.0].map(f32::to_le_bytes).concat();
    for (file, element) in [("plain.npz", 7i64.to_le_bytes().to_vec()), ("state_dict.pth", ones)] {
        let mut bytes = std::fs::read(folder().join(file)).unwrap();
        let at = bytes.windows(8).position(|w| w == element).unwrap();
        bytes[at] ^= 1;
        let error = block_on(load(bytes, file.rsplit('.').next().unwrap())).unwrap_err();
        assert!(error.message().contains("hecksum"), "{file}: {error}");
    }
}

#[tokio::test]
async fn what_is_saved_is_loaded() {
    let device = Device::cpu();
    let path = std::env::temp_dir().join(format!("futensor-saved-{}.npz", std::process::id()));
    let x = device.randn([3, 5]);
    let all = [
        ("x", x.clone()),
        ("turned", x.t()),
        ("half", x.to_dtype(DType::F16)),
        ("double", x.to_dtype(DType::F64)),
        ("layer/n", device.from_slice(&[1i64, -2], [2])),
        ("i", device.from_slice(&[7i32], ())),
        ("u", device.zeros([2, 0]).to_dtype(DType::U8)),
        ("b", x.gt(0.0)),
    ];
    npy::save_npz(&path, all.iter().map(|(name, x)| (*name, x))).await.unwrap();
    let loaded = npy::load_npz(&path, &device).all().await.unwrap();
    assert_eq!(loaded.len(), all.len());
    for (name, x) in &all {
        assert_eq!((loaded[*name].dtype(), loaded[*name].dims()), (x.dtype(), x.dims()));
        assert_eq!(values(&loaded[*name]).await, values(x).await, "{name}");
    }
    npy::save(&path, &all[1].1).await.unwrap();
    assert_eq!(values(&npy::load(&path, &device).await.unwrap()).await, values(&all[1].1).await);
    // No archive of nothing, and none with a type that NumPy lacks or a name twice.
    npy::save_npz(&path, [("x", &x); 0]).await.unwrap();
    assert!(npy::load_npz(&path, &device).all().await.unwrap().is_empty());
    let brain = x.to_dtype(DType::BF16);
    for (tensors, words) in
        [(vec![("a", &x), ("h", &brain)], "bfloat16"), (vec![("a", &x), ("a", &x)], "named a")]
    {
        let error = npy::save_npz(&path, tensors).await.unwrap_err();
        assert!(error.message().contains(words), "{error}");
    }
    std::fs::remove_file(&path).unwrap();
}
