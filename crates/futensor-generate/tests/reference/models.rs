//! Log-probabilities beside `transformers` in float64, of folders and of GGUF files with the same
//! weights.

use super::answer;
use super::files::{self, Folder, names};
use futensor::gguf::{self, Array, Value as Gguf};
use futensor::{CpuOptions, DType, Device, TensorFuture, block_on, safetensors};
use futensor_generate::{Engine, Llama, Options, Request};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Keys and values are kept as float16.
pub const BOUND: f64 = 0.03;

pub fn tensors(device: &Device) -> HashMap<String, TensorFuture> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/models.safetensors");
    block_on(safetensors::load(path, device).all()).unwrap().into_iter().collect()
}

fn is_of_expert(name: &str) -> bool {
    name.contains(".experts.")
}

/// The weights of a case, by Hugging Face's names.
fn weights(all: &HashMap<String, TensorFuture>, case: &Value) -> Vec<(String, TensorFuture)> {
    let family = format!("{}.", case["weights"].as_str().unwrap());
    all.iter()
        .filter_map(|(name, x)| Some((name.strip_prefix(&family)?, x)))
        // Those of experts stay halves.
        .map(|(name, x)| {
            (name.to_owned(), if is_of_expert(name) { x.clone() } else { x.to_dtype(DType::F32) })
        })
        .collect()
}

/// The same as a GGUF file has them.
fn for_gguf(weights: Vec<(String, TensorFuture)>, case: &Value) -> Vec<(String, TensorFuture)> {
    let (gguf, c) = (&case["gguf"], &case["config"]);
    let size = |key: &str| c[key].as_u64().map(|n| n as usize);
    let head = size("head_dim")
        .unwrap_or_else(|| size("hidden_size").unwrap() / size("num_attention_heads").unwrap());
    // Pairs that are turned are neighbours there, and half a head apart here.
    let together = |x: TensorFuture| {
        let shape = x.dims().to_vec();
        let pairs = x.reshape([shape[0] / head, 2, head / 2, shape[1..].iter().product()]);
        pairs.permute([0, 2, 1, 3]).reshape(&shape[..])
    };
    let renamed = |(name, x): (String, TensorFuture)| {
        let turned = ["q_proj", "k_proj"].iter().any(|part| name.contains(part));
        let x = if turned && gguf["neighbours"] == true { together(x) } else { x };
        let x = if x.rank() == 1 && gguf["added"] == true { x + 1.0 } else { x };
        Some((gguf["names"][&name].as_str()?.to_owned(), x))
    };
    let mut all: Vec<(String, TensorFuture)> = Vec::new();
    let mut experts: BTreeMap<String, BTreeMap<usize, TensorFuture>> = BTreeMap::new();
    for (name, x) in weights {
        let Some((gguf, x)) = renamed((name.clone(), x)) else { continue };
        match name.split(".experts.").nth(1) {
            Some(rest) => {
                let number = rest.split('.').next().unwrap().parse().unwrap();
                experts.entry(gguf).or_default().insert(number, x);
            }
            None => all.push((gguf, x)),
        }
    }
    let whole = |each: BTreeMap<usize, TensorFuture>| {
        futensor::stack(&each.values().collect::<Vec<_>>(), 0)
    };
    all.extend(experts.into_iter().map(|(name, each)| (name, whole(each))));
    all
}

/// How far a model's log-probabilities are from those of a case, at most.
pub fn off(model: Llama, case: &Value, all: &HashMap<String, TensorFuture>) -> f64 {
    let expected = &all[&format!("logprobs.{}", case["name"].as_str().unwrap())];
    let prompt: Vec<u32> =
        case["prompt"].as_array().unwrap().iter().map(|t| t.as_u64().unwrap() as u32).collect();
    off_from(model, &prompt, expected, BOUND)
}

/// The same from these, of what follows the last tokens of a prompt; those that are so near each
/// other may change places.
pub fn off_from(model: Llama, prompt: &[u32], expected: &TensorFuture, bound: f64) -> f64 {
    let (positions, count) = (expected.dims()[0], expected.dims()[1]);
    let expected = block_on(expected.to_vec::<f32>()).unwrap();
    let engine =
        Engine::start(model, Options { slots: 2, page: 8, chunk: 9, ..Options::default() })
            .unwrap();
    let (mut worst, bound) = (0f64, bound as f32);
    for (k, row) in expected.chunks(count).enumerate() {
        let text = prompt[..prompt.len() - positions + 1 + k].to_vec();
        let mut request = Request::new(text).tokens_max(1).logprobs(20);
        request.ignore_end = true;
        let token = answer(&engine, request).remove(0);
        let told = token.logprobs.unwrap();
        assert_eq!(told.alternatives.len(), 20);
        for &(id, logprob) in told.alternatives.iter().chain(&[(token.id, told.chosen)]) {
            worst = worst.max((logprob - row[id as usize]).abs().into());
        }
        let mut best: Vec<f32> = row.to_vec();
        best.sort_by(|a, b| b.total_cmp(a));
        let least = told.alternatives.last().unwrap().1;
        assert!((least - best[19]).abs() < bound, "the likeliest are told of");
        assert!(row[token.id as usize] > best[0] - bound, "the likeliest is chosen");
    }
    worst
}

/// What `models.py` wrote.
fn cases() -> Vec<Value> {
    serde_json::from_str(include_str!("models.json")).unwrap()
}

pub fn case(name: &str) -> Value {
    cases().into_iter().find(|c| c["name"] == name).unwrap()
}

/// A folder as Hugging Face has them; its tensors in two files.
fn folder(case: &Value, all: &HashMap<String, TensorFuture>) -> Folder {
    let folder = Folder::new();
    let write =
        |name: &str, value: &Value| std::fs::write(folder.0.join(name), value.to_string()).unwrap();
    write("config.json", &case["config"]);
    let words: serde_json::Map<_, _> =
        names(48).into_iter().zip(0..).map(|(name, k)| (name, json!(k))).collect();
    let model = json!({ "type": "BPE", "vocab": words, "merges": [] });
    let level = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true,
    });
    write(
        "tokenizer.json",
        &json!({ "version": "1.0", "added_tokens": [], "normalizer": null,
            "pre_tokenizer": level, "decoder": level,
            "post_processor": null, "truncation": null, "padding": null, "model": model }),
    );
    let weights = weights(all, case).into_iter();
    // Weights that no file of such a model has.
    let weights = weights.filter(|(name, _)| {
        !(case["config"]["tie_word_embeddings"] == true && name.starts_with("lm_head"))
    });
    let (first, second): (Vec<_>, Vec<_>) = weights.partition(|(name, _)| name.contains("q_proj"));
    let mut index = serde_json::Map::new();
    for (file, tensors) in [("model-1.safetensors", first), ("model-2.safetensors", second)] {
        index.extend(tensors.iter().map(|(name, _)| (name.clone(), file.into())));
        block_on(safetensors::save(folder.0.join(file), tensors)).unwrap();
    }
    write("model.safetensors.index.json", &json!({ "weight_map": index }));
    folder
}

#[test]
fn folders_say_what_transformers_says() {
    let device = Device::cpu_with(CpuOptions::default());
    let all = tensors(&device);
    for case in &cases() {
        let folder = folder(case, &all);
        let opened = block_on(futensor_generate::Folder::open(&folder.0)).unwrap();
        let (seen, told) = (Arc::new(AtomicU64::new(0)), opened.bytes());
        let own = seen.clone();
        let progress = move |p: futensor_generate::Progress| own.store(p.bytes, Relaxed);
        let model = block_on(Llama::from_folder_with(&device, &opened, progress));
        assert_eq!(seen.load(Relaxed), told);
        let off = off(model.unwrap_or_else(|e| panic!("{}: {e}", case["name"])), case, &all);
        assert!(off < BOUND, "{}: {off} off", case["name"]);
    }
}

/// What a file's metadata say of a case, and of a vocabulary.
pub fn metadata(case: &Value) -> Vec<(String, Gguf)> {
    files::vocabulary(48).into_iter().chain(said(case)).collect()
}

fn said(case: &Value) -> Vec<(String, Gguf)> {
    let architecture = case["gguf"]["architecture"].as_str().unwrap();
    let mut all = vec![("general.architecture".into(), architecture.into())];
    let value = |value: &Value| match value {
        Value::String(text) => Gguf::String(text.clone()),
        Value::Bool(flag) => Gguf::Bool(*flag),
        n if n.is_u64() => Gguf::U32(n.as_u64().unwrap() as u32),
        n => Gguf::F32(n.as_f64().unwrap() as f32),
    };
    let keys = case["gguf"]["keys"].as_object().unwrap();
    all.extend(keys.iter().map(|(key, v)| (format!("{architecture}.{key}"), value(v))));
    all
}

/// What a GGUF file of a case has, beside what its metadata say of a vocabulary.
pub fn of_gguf(
    device: &Device,
    case: &Value,
    all: &HashMap<String, TensorFuture>,
    vocabulary: Vec<(String, Gguf)>,
) -> futensor_generate::Result<Llama> {
    let mut tensors = for_gguf(weights(all, case), case);
    for (name, factors) in case["gguf"]["factors"].as_object().unwrap() {
        let factors = factors.as_array().unwrap().iter();
        let factors: Vec<f32> = factors.map(|f| f.as_f64().unwrap() as f32).collect();
        let shape = [factors.len()];
        tensors.push((name.clone(), device.from_vec(factors, shape)));
    }
    files::load(device, vocabulary.into_iter().chain(said(case)).collect(), tensors)
}

#[test]
fn gguf_files_say_what_transformers_says() {
    let device = Device::cpu_with(CpuOptions::default());
    let all = tensors(&device);
    for case in cases().iter().filter(|case| !case["gguf"].is_null()) {
        let model = of_gguf(&device, case, &all, files::vocabulary(48));
        let off = off(model.unwrap_or_else(|e| panic!("{}: {e}", case["name"])), case, &all);
        assert!(off < BOUND, "{}: {off} off", case["name"]);
    }
}

/// So that a case shows what it is about: without it, its log-probabilities are others by far.
#[test]
fn each_option_makes_a_difference_that_is_seen() {
    let device = Device::cpu_with(CpuOptions::default());
    let all = tensors(&device);
    for name in ["tied", "base", "linear", "llama3", "epsilon", "yarn", "gelu"] {
        let off = off_unchecked(&all, name, "plain");
        assert!(off > 5.0 * BOUND, "{name}: {off}");
    }
}

fn off_unchecked(all: &HashMap<String, TensorFuture>, a: &str, b: &str) -> f64 {
    assert_eq!(case(a)["prompt"], case(b)["prompt"]);
    let of = |name: &str| all[&format!("logprobs.{name}")].clone();
    block_on((of(a) - of(b)).abs().max_all().item::<f32>()).unwrap().into()
}

/// Every key and tensor of a file is used, or named in a refusal.
#[test]
fn what_changes_the_numbers_is_used_or_refused_by_name() {
    let device = Device::cpu_with(CpuOptions::default());
    let (all, plain) = (tensors(&device), case("plain"));
    let refused = |error: futensor_generate::Error, name: &str| {
        assert!(error.is_model() && error.to_string().contains(name), "{name}: {error}");
    };
    for (key, value) in [
        ("rope.dimension_count", Gguf::U32(7)),
        ("rope.scaling.type", "dynamic".into()),
        ("attention.scale", Gguf::F32(2.0)),
        ("attention.value_length", Gguf::U32(4)),
        ("attention.head_count_kv", Gguf::Array(Array::I32(vec![2, 1]))),
        ("attention.clamp_kqv", Gguf::F32(8.0)),
        ("attention.causal", Gguf::Bool(false)),
        ("final_logit_softcapping", Gguf::F32(30.0)),
        ("logit_scale", Gguf::F32(0.5)),
        ("new_key", Gguf::U32(1)),
    ] {
        let mut metadata = metadata(&plain);
        let name = format!("llama.{key}");
        metadata.retain(|(other, _)| *other != name);
        metadata.push((name, value));
        let weights = for_gguf(weights(&all, &plain), &plain);
        let word = match key {
            "rope.dimension_count" => "7 elements of 8",
            "rope.scaling.type" => "\"dynamic\"",
            key => key,
        };
        refused(files::load(&device, metadata, weights).unwrap_err(), word);
    }
    for name in ["blk.1.attn_q_norm.weight", "blk.0.ffn_gate_inp.weight", "blk.0.attn_sinks"] {
        let mut weights = for_gguf(weights(&all, &plain), &plain);
        weights.push((name.into(), device.ones([8])));
        refused(files::load(&device, metadata(&plain), weights).unwrap_err(), name);
    }
    for (change, name) in [
        (json!({ "quantization_config": { "quant_method": "awq" } }), "quantization_config"),
        (json!({ "hidden_act": "relu" }), "hidden_act"),
        (json!({ "logit_scale": 2 }), "logit_scale"),
        (json!({ "attention_bias": true }), "q_proj.bias"),
        (json!({ "mlp_bias": true }), "up_proj.bias"),
    ] {
        let mut case = plain.clone();
        let config = case["config"].as_object_mut().unwrap();
        config.extend(change.as_object().unwrap().clone());
        let folder = folder(&case, &all);
        refused(block_on(Llama::from_folder(&device, &folder.0)).unwrap_err(), name);
    }
    // Of weights, what a configuration does not tell of.
    for (weights, name) in [("D", "q_proj.bias"), ("F", "k_norm")] {
        let mut case = plain.clone();
        case["weights"] = json!(weights);
        if weights == "F" {
            case["config"]["head_dim"] = json!(16);
        }
        let folder = folder(&case, &all);
        refused(block_on(Llama::from_folder(&device, &folder.0)).unwrap_err(), name);
    }
    // A head that is to be there.
    let mut untied = plain.clone();
    untied["config"]["tie_word_embeddings"] = json!(true);
    let folder = folder(&untied, &all);
    let path = folder.0.join("config.json");
    std::fs::write(&path, plain["config"].to_string()).unwrap();
    refused(block_on(Llama::from_folder(&device, &folder.0)).unwrap_err(), "lm_head.weight");
    // A part of each head.
    let mut part = plain;
    part["config"]["partial_rotary_factor"] = json!(0.5);
    let folder = self::folder(&part, &all);
    let model = block_on(Llama::from_folder(&device, &folder.0)).unwrap();
    assert_eq!(model.config().rope.turned, 4);
}

#[test]
fn a_model_in_several_files_is_one() {
    let device = Device::cpu_with(CpuOptions::default());
    let (all, case, folder) = (tensors(&device), case("qwen2"), Folder::new());
    let tensors = for_gguf(weights(&all, &case), &case);
    let path = |k: usize| folder.0.join(format!("model-{:05}-of-00003.gguf", k + 1));
    let number = |key: &str, n: usize| (key.to_owned(), Gguf::U16(n as u16));
    let write = |k: usize, no: usize| {
        let mut said = vec![number("split.no", no), number("split.count", 3)];
        said.push(("split.tensors.count".into(), Gguf::I32(tensors.len() as i32)));
        if k == 0 {
            said.extend(metadata(&case));
        }
        let own = tensors.iter().skip(k).step_by(3).map(|(name, x)| (name.clone(), x.clone()));
        block_on(gguf::save(path(k), said, own)).unwrap();
    };
    (0..3).for_each(|k| write(k, k));
    let whole = block_on(Llama::from_gguf(&device, path(0))).unwrap();
    assert!(off(whole, &case, &all) < BOUND);
    let refused = |from: usize, says: &str| {
        let error = block_on(Llama::from_gguf(&device, path(from))).unwrap_err();
        assert!(error.is_model() && error.to_string().contains(says), "{error}");
    };
    refused(1, "which ends in -00001-of-00003.gguf");
    write(2, 1);
    refused(0, "another file than its name says");
    std::fs::remove_file(path(2)).unwrap();
    refused(0, "model-00003-of-00003.gguf");
}
