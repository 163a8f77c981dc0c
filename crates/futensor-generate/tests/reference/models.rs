//! Log-probabilities beside `transformers` in float64, of folders and of GGUF files with the same
//! weights.

use super::files::{self, Folder, names};
use super::{answer, cases};
use futensor::gguf::Value as Gguf;
use futensor::{CpuOptions, Device, TensorFuture, block_on, safetensors};
use futensor_generate::{Engine, Llama, Options, Request};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::Path;

/// Keys and values are kept as float16.
const BOUND: f64 = 0.03;

fn tensors(device: &Device) -> HashMap<String, TensorFuture> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/models.safetensors");
    block_on(safetensors::load(path, device).all()).unwrap().into_iter().collect()
}

/// The weights of a case, by Hugging Face's names.
fn weights(all: &HashMap<String, TensorFuture>, case: &Value) -> Vec<(String, TensorFuture)> {
    let family = format!("{}.", case["weights"].as_str().unwrap());
    all.iter()
        .filter_map(|(name, x)| Some((name.strip_prefix(&family)?.to_owned(), x.clone())))
        .collect()
}

/// The same by GGUF's: pairs that are turned are neighbours there, and half a head apart here.
fn for_gguf(weights: Vec<(String, TensorFuture)>, head: usize) -> Vec<(String, TensorFuture)> {
    let parts = [
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
        ("model.layers.", "blk."),
    ];
    let together = |x: TensorFuture| {
        let width = x.dims()[1];
        x.reshape([x.dims()[0] / head, 2, head / 2, width])
            .permute([0, 2, 1, 3])
            .reshape([x.dims()[0], width])
    };
    let renamed = |(name, x): (String, TensorFuture)| {
        let turned = name.contains("q_proj") || name.contains("k_proj");
        let name = parts.iter().fold(name, |name, (from, to)| name.replace(from, to));
        (name, if turned { together(x) } else { x })
    };
    weights.into_iter().map(renamed).collect()
}

/// How far a model's log-probabilities are from those of a case, at most.
fn off(model: Llama, case: &Value, all: &HashMap<String, TensorFuture>) -> f64 {
    let expected = &all[&format!("logprobs.{}", case["name"].as_str().unwrap())];
    let (positions, count) = (expected.dims()[0], expected.dims()[1]);
    let expected = block_on(expected.to_vec::<f32>()).unwrap();
    let prompt: Vec<u32> =
        case["prompt"].as_array().unwrap().iter().map(|t| t.as_u64().unwrap() as u32).collect();
    let engine =
        Engine::start(model, Options { slots: 2, page: 8, chunk: 9, ..Options::default() })
            .unwrap();
    let mut worst = 0f64;
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
        assert!((least - best[19]).abs() < BOUND as f32, "the likeliest are told of");
        assert!(row[token.id as usize] > best[0] - BOUND as f32, "the likeliest is chosen");
    }
    worst
}

fn case(name: &str) -> Value {
    cases()["models"].as_array().unwrap().iter().find(|c| c["name"] == name).unwrap().clone()
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
    let (first, second): (Vec<_>, Vec<_>) =
        weights(all, case).into_iter().partition(|(name, _)| name.contains("q_proj"));
    for (name, tensors) in [("model-1.safetensors", first), ("model-2.safetensors", second)] {
        block_on(safetensors::save(folder.0.join(name), tensors)).unwrap();
    }
    folder
}

#[test]
fn folders_say_what_transformers_says() {
    let device = Device::cpu_with(CpuOptions::default());
    let all = tensors(&device);
    for case in cases()["models"].as_array().unwrap() {
        let folder = folder(case, &all);
        let off = off(block_on(Llama::from_folder(&device, &folder.0)).unwrap(), case, &all);
        assert!(off < BOUND, "{}: {off} off", case["name"]);
    }
}

/// What a file's metadata say of a case, beside sizes.
fn said(case: &Value) -> Vec<(&'static str, Gguf)> {
    let c = &case["config"];
    let number = |value: &Value| Gguf::F32(value.as_f64().unwrap() as f32);
    let mut more = vec![("llama.attention.layer_norm_rms_epsilon", number(&c["rms_norm_eps"]))];
    let base = c["rope_theta"].as_f64().or(c["rope_parameters"]["rope_theta"].as_f64()).unwrap();
    // Left out where it is what everybody takes it for.
    if base != 10_000.0 {
        more.push(("llama.rope.freq_base", Gguf::F32(base as f32)));
    }
    if c["rope_scaling"]["rope_type"] == "linear" {
        more.push(("llama.rope.scaling.type", "linear".into()));
        more.push(("llama.rope.scaling.factor", number(&c["rope_scaling"]["factor"])));
    }
    if let Some(head) = c["head_dim"].as_u64() {
        more.push(("llama.rope.dimension_count", Gguf::U32(head as u32)));
        more.push(("llama.attention.key_length", Gguf::U32(head as u32)));
    }
    more
}

fn of_gguf(device: &Device, case: &Value, all: &HashMap<String, TensorFuture>) -> Llama {
    let c = &case["config"];
    let kv_heads = c["num_key_value_heads"].as_u64().unwrap() as u32;
    let head = c["head_dim"].as_u64().unwrap_or(8) as usize;
    let mut tensors = for_gguf(weights(all, case), head);
    if c["tie_word_embeddings"] == true {
        // Such a file has none: one that has a head means it.
        tensors.retain(|(name, _)| name != "output.weight");
    }
    if let Some(factors) = case["factors"].as_array() {
        let factors: Vec<f32> = factors.iter().map(|f| f.as_f64().unwrap() as f32).collect();
        let shape = [factors.len()];
        tensors.push(("rope_freqs.weight".into(), device.from_vec(factors, shape)));
    }
    let metadata = files::metadata([2, 256, 32, 48, 4, kv_heads], 48, said(case));
    files::load(device, metadata, tensors).unwrap()
}

#[test]
fn gguf_files_say_what_transformers_says() {
    let device = Device::cpu_with(CpuOptions::default());
    let all = tensors(&device);
    for case in cases()["models"].as_array().unwrap() {
        let off = off(of_gguf(&device, case, &all), case, &all);
        assert!(off < BOUND, "{}: {off} off", case["name"]);
    }
}

/// So that a case shows what it is about: without it, its log-probabilities are others by far.
#[test]
fn each_option_makes_a_difference_that_is_seen() {
    let device = Device::cpu_with(CpuOptions::default());
    let all = tensors(&device);
    for name in ["tied", "base", "linear", "llama3", "epsilon"] {
        let off = off_unchecked(&all, name, "plain");
        assert!(off > 5.0 * BOUND, "{name}: {off}");
    }
}

fn off_unchecked(all: &HashMap<String, TensorFuture>, a: &str, b: &str) -> f64 {
    assert_eq!(case(a)["prompt"], case(b)["prompt"]);
    let of = |name: &str| all[&format!("logprobs.{name}")].clone();
    block_on((of(a) - of(b)).abs().max_all().item::<f32>()).unwrap().into()
}
