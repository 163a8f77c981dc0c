//! A small model of random weights as a GGUF file, for the tests.

use futensor::gguf::{self, Array};
use futensor::quant::{Format, Quantized, Weight};
use futensor::{CpuOptions, Device, Generator};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

const TEMPLATE: &str = "{{ bos_token }}{% for t in tools or [] %}{{ t['function']['name'] }} \
    {% endfor %}{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ \
    m['content'] }}<|im_end|>\n\
    {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// Writes the model once: every byte is a token, and three mark something.
pub fn model() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let folder = std::env::temp_dir().join(format!("futensor-chat-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("tiny.gguf");
        // On a thread that drives no tasks: some of these tests do.
        std::thread::scope(|scope| scope.spawn(|| futensor::block_on(write(&path))).join())
            .unwrap();
        path
    })
}

async fn write(path: &Path) {
    let (device, random) = (Device::cpu_with(CpuOptions::default()), Generator::new(3));
    let printable = |b: u32| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut others = 0x100..;
    let alphabet = (0..256u32).map(|b| if printable(b) { b } else { others.next().unwrap() });
    let mut tokens: Vec<String> =
        ["<|im_start|>", "<|im_end|>", "<|begin|>"].map(String::from).to_vec();
    tokens.extend(alphabet.map(|c| char::from_u32(c).unwrap().to_string()));
    let count = tokens.len();
    let types: Vec<i32> = (0..count).map(|k| if k < 3 { 3 } else { 1 }).collect();
    let metadata: Vec<(&str, gguf::Value)> = vec![
        ("general.architecture", "llama".into()),
        ("llama.block_count", gguf::Value::U32(2)),
        ("llama.context_length", gguf::Value::U32(512)),
        ("llama.embedding_length", gguf::Value::U32(64)),
        ("llama.feed_forward_length", gguf::Value::U32(96)),
        ("llama.attention.head_count", gguf::Value::U32(4)),
        ("llama.attention.head_count_kv", gguf::Value::U32(2)),
        ("llama.attention.layer_norm_rms_epsilon", gguf::Value::F32(1e-5)),
        ("tokenizer.ggml.model", "gpt2".into()),
        ("tokenizer.ggml.pre", "smollm".into()),
        ("tokenizer.ggml.tokens", gguf::Value::Array(Array::String(tokens))),
        ("tokenizer.ggml.token_type", gguf::Value::Array(Array::I32(types))),
        ("tokenizer.ggml.merges", gguf::Value::Array(Array::String(Vec::new()))),
        ("tokenizer.ggml.eos_token_id", gguf::Value::U32(1)),
        ("tokenizer.ggml.bos_token_id", gguf::Value::U32(2)),
        ("tokenizer.ggml.add_bos_token", gguf::Value::Bool(true)),
        ("tokenizer.chat_template", TEMPLATE.into()),
    ];
    let matrix = |out: usize, into: usize| {
        let x = random.randn(&device, [out, into]) * (into as f64).sqrt().recip() * 1.5;
        Weight::from(Quantized::from_tensor(&x, Format::Q8_0).unwrap())
    };
    let norm = || Weight::from(device.ones([64]));
    let mut tensors = vec![
        ("token_embd.weight".to_string(), matrix(count, 64)),
        ("output_norm.weight".into(), norm()),
    ];
    for k in 0..2 {
        for (name, out, into) in [
            ("attn_q", 64, 64),
            ("attn_k", 32, 64),
            ("attn_v", 32, 64),
            ("attn_output", 64, 64),
            ("ffn_gate", 96, 64),
            ("ffn_up", 96, 64),
            ("ffn_down", 64, 96),
        ] {
            tensors.push((format!("blk.{k}.{name}.weight"), matrix(out, into)));
        }
        tensors.push((format!("blk.{k}.attn_norm.weight"), norm()));
        tensors.push((format!("blk.{k}.ffn_norm.weight"), norm()));
    }
    gguf::save(path, metadata, tensors).await.unwrap();
}
