//! Small models as files.

use futensor::gguf::{self, Array, Value};
use futensor::quant::Weight;
use futensor::{Device, TensorFuture, block_on};
use futensor_generate::Llama;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A folder that goes with its test.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Folder {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name =
            format!("futensor-reference-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The names of a vocabulary without text: one character each, of GPT-2's alphabet.
pub fn names(count: usize) -> Vec<String> {
    (0..count)
        .map(|k| {
            char::from_u32(if k < 94 { 0x21 + k as u32 } else { 0x100 + k as u32 })
                .unwrap()
                .to_string()
        })
        .collect()
}

/// A GGUF file's metadata: these sizes, a vocabulary of so many tokens, and `more`.
pub fn metadata(
    sizes: [u32; 6],
    count: usize,
    more: Vec<(&'static str, Value)>,
) -> Vec<(String, Value)> {
    let [layers, context, width, inner, heads, kv_heads] = sizes;
    let mut all = vocabulary(count);
    let own: Vec<(&str, Value)> = vec![
        ("general.architecture", "llama".into()),
        ("llama.block_count", Value::U32(layers)),
        ("llama.context_length", Value::U32(context)),
        ("llama.embedding_length", Value::U32(width)),
        ("llama.feed_forward_length", Value::U32(inner)),
        ("llama.attention.head_count", Value::U32(heads)),
        ("llama.attention.head_count_kv", Value::U32(kv_heads)),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
    ];
    for (key, value) in own.into_iter().chain(more) {
        all.retain(|(other, _)| *other != key);
        all.push((key.to_owned(), value));
    }
    all
}

/// What it says of a vocabulary of so many tokens.
pub fn vocabulary(count: usize) -> Vec<(String, Value)> {
    let all: Vec<(&str, Value)> = vec![
        ("tokenizer.ggml.model", "gpt2".into()),
        ("tokenizer.ggml.pre", "smollm".into()),
        ("tokenizer.ggml.tokens", Value::Array(Array::String(names(count)))),
        ("tokenizer.ggml.merges", Value::Array(Array::String(Vec::new()))),
        ("tokenizer.ggml.eos_token_id", Value::U32(0)),
    ];
    all.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// A model of a GGUF file with these.
pub fn load(
    device: &Device,
    metadata: Vec<(String, Value)>,
    tensors: Vec<(String, TensorFuture)>,
) -> futensor_generate::Result<Llama> {
    let folder = Folder::new();
    let path = folder.0.join("model.gguf");
    let tensors = tensors.into_iter().map(|(name, x)| (name, Weight::from(x)));
    block_on(gguf::save(&path, metadata, tensors)).unwrap();
    block_on(Llama::from_gguf(device, &path))
}

/// A model that says what follows by the last token alone: `logits[last][next]`. Its one layer adds
/// nothing, its embedding is the identity.
pub fn table(device: &Device, logits: &[Vec<f32>], more: Vec<(&'static str, Value)>) -> Llama {
    let n = logits.len();
    let scale = (n as f32).sqrt();
    let head = (0..n)
        .flat_map(|next| logits.iter().map(move |row| row[next] / scale))
        .collect::<Vec<f32>>();
    let mut tensors = vec![
        ("token_embd.weight".to_string(), device.eye(n)),
        ("output.weight".into(), device.from_vec(head, [n, n])),
        ("output_norm.weight".into(), device.ones([n])),
    ];
    for (name, shape) in [
        ("attn_q", vec![16, n]),
        ("attn_k", vec![16, n]),
        ("attn_v", vec![16, n]),
        ("attn_output", vec![n, 16]),
        ("ffn_gate", vec![16, n]),
        ("ffn_up", vec![16, n]),
        ("ffn_down", vec![n, 16]),
    ] {
        tensors.push((format!("blk.0.{name}.weight"), device.zeros(&shape[..])));
    }
    for name in ["attn_norm", "ffn_norm"] {
        tensors.push((format!("blk.0.{name}.weight"), device.ones([n])));
    }
    let epsilon = ("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-12));
    let sizes = [("llama.attention.key_length", Value::U32(16)), epsilon];
    let more = sizes.into_iter().chain(more).collect();
    load(device, metadata([1, 512, n as u32, 16, 1, 1], n, more), tensors).unwrap()
}
