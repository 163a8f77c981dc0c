//! A language model of random weights on a GPU, for `tests/gpu/run`: tokens a second, as one line
//! of JSON for each question. `tests/gpu/peers.py` asks PyTorch the same.
//!
//! ```text
//! cargo run --profile bench -p futensor-generate --example random_model -- [--quick]
//! ```
//!
//! The sizes are those of Llama 3.2 1B with a smaller vocabulary, in bfloat16. A folder is written
//! and read, as no model is made in any other way. Each answer is the better of two, behind one
//! for which plans are made.

use futensor::{DType, Device, TensorFuture, block_on, safetensors};
use futensor_generate::{Engine, Llama, Options, Request};
use futures::StreamExt;
use serde_json::{Map, Value, json};
use std::path::Path;
use std::time::Instant;

struct Sizes {
    width: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    feed_forward: usize,
    vocabulary: usize,
    /// Of a request's prompt, and of its answer.
    prompt: usize,
    answer: usize,
    /// Requests at the same time.
    many: usize,
}

const WHOLE: Sizes = Sizes {
    width: 2048,
    layers: 16,
    heads: 32,
    kv_heads: 8,
    feed_forward: 8192,
    vocabulary: 32_000,
    prompt: 512,
    answer: 128,
    many: 32,
};
const QUICK: Sizes = Sizes {
    width: 64,
    layers: 2,
    heads: 4,
    kv_heads: 2,
    feed_forward: 96,
    vocabulary: 320,
    prompt: 20,
    answer: 4,
    many: 3,
};

/// The tensors by Hugging Face's names.
fn tensors(device: &Device, s: &Sizes) -> Vec<(String, TensorFuture)> {
    let matrix = |out: usize, into: usize| {
        (device.randn([out, into]) * (into as f64).sqrt().recip()).to_dtype(DType::BF16)
    };
    let norm = || (device.ones([s.width]) + 0.0).to_dtype(DType::BF16);
    let mut all = vec![
        ("model.embed_tokens.weight".to_owned(), matrix(s.vocabulary, s.width)),
        ("lm_head.weight".to_owned(), matrix(s.vocabulary, s.width)),
        ("model.norm.weight".to_owned(), norm()),
    ];
    let kept = s.width / s.heads * s.kv_heads;
    for k in 0..s.layers {
        for (name, out, into) in [
            ("self_attn.q_proj", s.width, s.width),
            ("self_attn.k_proj", kept, s.width),
            ("self_attn.v_proj", kept, s.width),
            ("self_attn.o_proj", s.width, s.width),
            ("mlp.gate_proj", s.feed_forward, s.width),
            ("mlp.up_proj", s.feed_forward, s.width),
            ("mlp.down_proj", s.width, s.feed_forward),
        ] {
            all.push((format!("model.layers.{k}.{name}.weight"), matrix(out, into)));
        }
        for name in ["input_layernorm", "post_attention_layernorm"] {
            all.push((format!("model.layers.{k}.{name}.weight"), norm()));
        }
    }
    all
}

/// A tokenizer whose tokens are the letters of bytes, and names.
fn tokenizer(vocabulary: usize) -> Value {
    let printable = |b: u32| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut others = 0x100..;
    let letters = (0..256u32).map(|b| if printable(b) { b } else { others.next().expect("more") });
    let letters = letters.map(|c| char::from_u32(c).expect("a letter").to_string());
    let names = letters.chain((256..vocabulary).map(|k| format!("token{k}")));
    let vocabulary: Map<String, Value> = names.zip(0..).map(|(name, k)| (name, k.into())).collect();
    let bytes = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
        "use_regex": true });
    json!({ "version": "1.0", "added_tokens": [], "pre_tokenizer": bytes, "decoder": bytes,
        "model": { "type": "BPE", "vocab": vocabulary, "merges": [] } })
}

async fn write(device: &Device, s: &Sizes, folder: &Path) {
    std::fs::create_dir_all(folder).expect("a folder");
    let config = json!({ "model_type": "llama", "hidden_size": s.width,
        "num_attention_heads": s.heads, "num_key_value_heads": s.kv_heads,
        "num_hidden_layers": s.layers, "intermediate_size": s.feed_forward,
        "vocab_size": s.vocabulary, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": false });
    let texts = [("config.json", config), ("tokenizer.json", tokenizer(s.vocabulary))];
    for (name, text) in texts {
        std::fs::write(folder.join(name), text.to_string()).expect("a file");
    }
    let file = folder.join("model.safetensors");
    safetensors::save(file, tensors(device, s)).await.expect("a file of tensors");
}

fn row(name: &str, value: f64) {
    let row = json!({ "name": name, "who": "futensor", "value": value, "unit": "tokens/s" });
    println!("{row}");
}

/// So many requests: the seconds until the last of the first tokens, and from then on to the end;
/// and the first request's tokens.
async fn ask(engine: &Engine, s: &Sizes, requests: usize, salt: usize) -> ([f64; 2], Vec<u32>) {
    let begin = Instant::now();
    let follow = |k: usize| async move {
        // Another prompt each time, so that no pages are shared.
        let token = |i: usize| ((i * 37 + (salt * 64 + k) * 101) % s.vocabulary) as u32;
        let mut request = Request::new((0..s.prompt).map(token).collect()).tokens_max(s.answer);
        request.ignore_end = true;
        let mut tokens = engine.generate(request).expect("a stream");
        let (mut first, mut all) = (0.0, Vec::new());
        while let Some(token) = tokens.next().await {
            all.push(token.expect("a token").id);
            if all.len() == 1 {
                first = begin.elapsed().as_secs_f64();
            }
        }
        assert_eq!(all.len(), s.answer);
        (first, all)
    };
    let mut done = futures::future::join_all((0..requests).map(follow)).await;
    let first = done.iter().map(|done| done.0).fold(0.0, f64::max);
    ([first, begin.elapsed().as_secs_f64() - first], done.swap_remove(0).1)
}

fn main() {
    let device = match Device::cuda(0) {
        Ok(device) => device,
        Err(error) => {
            eprintln!("no GPU, nothing measured: {error}");
            std::process::exit(std::env::var_os("FUTENSOR_DEMAND_GPU").is_some() as i32);
        }
    };
    let s = if std::env::args().any(|a| a == "--quick") { QUICK } else { WHOLE };
    let folder = std::env::temp_dir().join(format!("futensor-random-{}", std::process::id()));
    block_on(async {
        write(&device, &s, &folder).await;
        let model = Llama::from_folder(&device, &folder).await;
        std::fs::remove_dir_all(&folder).expect("the folder goes");
        let options = Options {
            slots: s.many,
            context: 2048,
            pages_bytes: 4 << 30,
            chunk: 512,
            ..Options::default()
        };
        let engine = Engine::start(model.expect("a model"), options).expect("an engine");
        // The best of the prompt, of the answer behind it, and of both.
        let best = async |requests: usize| {
            let mut best = [f64::INFINITY; 3];
            for turn in 0..3 {
                let ([first, rest], _) = ask(&engine, &s, requests, turn + 3 * requests).await;
                let all = [first, rest, first + rest];
                best = if turn == 0 { best } else { [0, 1, 2].map(|i| all[i].min(best[i])) };
            }
            best
        };
        let [prompt, answer, _] = best(1).await;
        row("language model, a prompt", s.prompt as f64 / prompt);
        row("language model, an answer", (s.answer - 1) as f64 / answer);
        let [.., all] = best(s.many).await;
        // Whoever else is there, a request has the same tokens.
        let [(_, among), (_, alone)] =
            [ask(&engine, &s, s.many, 1000).await, ask(&engine, &s, 1, 1000).await];
        assert_eq!(among, alone, "a request has other tokens beside others");
        row("language model, many answers, prompts included", (s.many * s.answer) as f64 / all);
    });
}
