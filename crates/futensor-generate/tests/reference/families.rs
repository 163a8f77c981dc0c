//! Families of models of which people have GGUF files: each loads and is right on a small file of
//! its architecture, with its tokenizer's name, and its types of weights are among those of
//! `kinds.rs`; or it is refused by a sentence that says why.

use super::files;
use super::kinds::KINDS;
use super::models::{BOUND, case, metadata, of_gguf, off, tensors};
use futensor::gguf::{Array, Value};
use futensor::{CpuOptions, Device};

/// A family: its name, the case of `models.json` that has its architecture, its tokenizer (the name
/// of how words are cut, or `spm`), and the types of its files' weights.
const LOADED: [(&str, &str, &str, &str); 73] = [
    ("Llama 1", "plain", "spm", "Q4_0"),
    ("Llama 2", "plain", "spm", "Q4_K Q6_K"),
    ("Vicuna 1.5", "linear", "spm", "Q4_0"),
    ("Code Llama", "base", "spm", "Q5_K Q6_K"),
    ("TinyLlama", "plain", "spm", "Q4_K Q6_K"),
    ("Llama 3", "plain", "llama-bpe", "Q4_K Q6_K"),
    ("Llama 3.1", "llama3", "llama-bpe", "Q4_K Q6_K"),
    ("Llama 3.2", "llama3", "llama-bpe", "Q4_K Q6_K"),
    ("Llama 3.3", "llama3", "llama-bpe", "IQ4_XS Q6_K"),
    ("Llama Guard 3", "llama3", "llama-bpe", "Q8_0"),
    ("Llama 3.1 Nemotron", "llama3", "llama-bpe", "Q5_K Q6_K"),
    ("Hermes 3", "llama3", "llama-bpe", "Q4_K Q6_K"),
    ("Tülu 3", "llama3", "llama-bpe", "Q8_0"),
    ("Dolphin 3", "llama3", "llama-bpe", "Q5_K Q6_K"),
    ("DeepSeek R1 Distill Llama", "llama3", "llama-bpe", "Q4_K Q6_K"),
    ("Falcon 3", "plain", "falcon3", "Q4_K Q6_K"),
    ("Mistral 7B 0.1", "plain", "spm", "Q4_K Q6_K"),
    ("Mistral 7B 0.3", "base", "spm", "Q8_0"),
    ("Mistral Nemo", "wide heads", "tekken", "Q4_K Q6_K"),
    ("Mistral Small 3", "mistral", "tekken", "Q4_K Q6_K"),
    ("Ministral", "mistral", "tekken", "Q5_K Q6_K"),
    ("Codestral", "base", "spm", "Q4_K Q6_K"),
    ("Zephyr", "plain", "spm", "Q5_K Q6_K"),
    ("OpenChat", "plain", "spm", "Q4_K Q6_K"),
    ("Solar", "plain", "spm", "Q4_K Q6_K"),
    ("Yi 1.5", "base", "spm", "Q4_K Q6_K"),
    ("SmolLM", "tied", "smollm", "Q8_0"),
    ("SmolLM2", "tied", "smollm", "Q4_1 Q8_0"),
    ("SmolLM3", "smollm3 as it is", "llama-bpe", "Q4_K Q6_K"),
    ("DeepSeek LLM", "plain", "deepseek-llm", "Q4_K Q6_K"),
    ("DeepSeek Coder", "linear", "deepseek-coder", "Q4_K Q6_K"),
    ("Seed-Coder", "plain", "seed-coder", "Q8_0"),
    ("Viking", "plain", "viking", "Q4_K Q6_K"),
    ("Poro 2", "llama3", "llama-bpe", "Q8_0"),
    ("Llama with biases", "biases", "spm", "F16"),
    ("Llama with YaRN", "yarn", "spm", "Q4_0"),
    ("InternLM 2.5", "internlm2", "spm", "Q4_K Q6_K"),
    ("XVERSE", "xverse", "spm", "Q4_0"),
    ("Granite 3.3", "granite", "refact", "Q4_K Q6_K"),
    ("MiniCPM", "minicpm", "spm", "Q4_K Q6_K"),
    ("ERNIE 4.5", "ernie", "spm", "BF16"),
    ("EXAONE 3.5", "exaone", "exaone", "Q4_K Q6_K"),
    ("EXAONE 4 1.2B", "exaone4", "exaone4", "Q4_K Q6_K"),
    ("EXAONE 4 32B", "exaone4 with windows", "exaone4", "IQ4_XS Q6_K"),
    ("Qwen 1.5", "qwen2", "qwen2", "Q4_0"),
    ("Qwen 2", "qwen2", "qwen2", "Q4_K Q6_K"),
    ("Qwen 2.5", "qwen2", "qwen2", "Q4_K Q6_K Q5_0 Q8_0"),
    ("Qwen 2.5 Coder", "qwen2", "qwen2", "Q2_K Q3_K Q6_K"),
    ("QwQ", "qwen2", "qwen2", "IQ4_NL Q6_K"),
    ("DeepSeek R1 Distill Qwen", "qwen2", "deepseek-r1-qwen", "Q4_K Q6_K"),
    ("Qwen 3", "qwen3", "qwen2", "Q4_K Q6_K"),
    ("Phi 3", "phi3", "spm", "Q4_K Q6_K Q5_K"),
    ("Phi 3.5", "phi3 long", "spm", "Q4_K Q6_K Q5_K"),
    ("Phi 4", "phi3", "dbrx", "Q4_K Q6_K Q5_K"),
    ("Phi 4 mini", "phi3 in part", "gpt-4o", "Q4_K Q6_K Q5_K"),
    ("Gemma", "gemma", "spm", "Q4_K Q6_K"),
    ("CodeGemma", "gemma", "spm", "Q8_0"),
    ("Gemma 2", "gemma2", "spm", "Q4_K Q6_K"),
    ("Gemma 3", "gemma3", "spm", "Q4_0 F16"),
    ("Mixtral 8x7B", "mixtral", "spm", "Q4_K Q6_K Q8_0"),
    ("Mixtral 8x22B", "mixtral", "spm", "Q4_K Q6_K"),
    ("Qwen 3 30B-A3B", "qwen3moe", "qwen2", "Q4_K Q6_K"),
    ("Qwen 3 Coder 30B-A3B", "qwen3moe", "qwen2", "Q4_K Q6_K"),
    ("Qwen 1.5 MoE A2.7B", "qwen2moe", "qwen2", "Q4_K Q8_0"),
    ("OLMoE", "olmoe", "olmo", "Q4_K Q6_K"),
    ("OLMo 2", "olmo2", "dbrx", "Q4_K Q6_K"),
    ("GLM-4 0414", "glm4", "glm4", "Q4_K Q6_K"),
    ("StableLM 2", "stablelm", "stablelm2", "Q4_K Q6_K"),
    ("StableLM 2 12B", "stablelm side by side", "stablelm2", "Q5_1 Q8_0"),
    ("StarCoder 2", "starcoder2", "starcoder", "Q4_K Q6_K"),
    ("Command R", "cohere", "command-r", "Q4_K Q6_K"),
    ("Command R7B", "cohere2", "command-r", "Q4_K Q6_K"),
    ("Aya Expanse", "cohere", "command-r", "Q5_K Q6_K"),
];

/// Another family: its name, its architecture, and what the refusal says.
const REFUSED: [(&str, &str, &str); 32] = [
    ("gpt-oss", "gpt-oss", "MXFP4"),
    ("Llama 4", "llama4", "needs experts of another kind"),
    ("Phi 3.5 MoE", "phimoe", "needs experts of another kind"),
    ("Granite 3 MoE", "granitemoe", "needs experts of another kind"),
    ("DBRX", "dbrx", "needs experts of another kind"),
    ("Grok", "grok", "needs experts of another kind"),
    ("GLM 4.5", "glm4moe", "needs experts of another kind"),
    ("ERNIE 4.5 21B", "ernie4_5-moe", "needs experts of another kind"),
    ("DeepSeek V3", "deepseek2", "needs latent attention"),
    ("Kimi K2", "deepseek2", "needs latent attention"),
    ("MiniCPM 3", "minicpm3", "needs latent attention"),
    ("Mamba", "mamba", "a state in place of attention"),
    ("RWKV 7", "rwkv7", "a state in place of attention"),
    ("Jamba", "jamba", "a state in place of attention"),
    ("Falcon H1", "falcon-h1", "a state in place of attention"),
    ("Granite 4", "granitehybrid", "a state in place of attention"),
    ("LFM2", "lfm2", "a state in place of attention"),
    ("Nemotron H", "nemotron_h", "a state in place of attention"),
    ("Qwen 3 Next", "qwen3next", "a state in place of attention"),
    ("Gemma 3n", "gemma3n", "embeddings for each layer"),
    ("Qwen 2 VL", "qwen2vl", "needs pictures"),
    ("Qwen 3 VL", "qwen3vl", "needs pictures"),
    ("BERT", "bert", "does not generate"),
    ("T5", "t5", "does not generate"),
    ("Falcon", "falcon", "\"falcon\" is not supported"),
    ("GPT-2", "gpt2", "\"gpt2\" is not supported"),
    ("GPT-NeoX", "gptneox", "\"gptneox\" is not supported"),
    ("MPT", "mpt", "\"mpt\" is not supported"),
    ("BLOOM", "bloom", "\"bloom\" is not supported"),
    ("Phi 2", "phi2", "\"phi2\" is not supported"),
    ("Nemotron 4", "nemotron", "\"nemotron\" is not supported"),
    ("BitNet", "bitnet", "\"bitnet\" is not supported"),
];

/// What a file says of its tokenizer.
fn vocabulary(name: &str) -> Vec<(String, Value)> {
    let mut said = files::vocabulary(48);
    let mut say = |key: &str, value: Value| {
        let key = format!("tokenizer.ggml.{key}");
        said.retain(|(other, _)| *other != key);
        said.push((key, value));
    };
    if name == "spm" {
        say("model", "llama".into());
        say("scores", Value::Array(Array::F32((0..48).map(|k| -(k as f32)).collect())));
    } else {
        say("pre", name.into());
    }
    say("add_bos_token", Value::Bool(false));
    said
}

#[test]
fn a_family_is_right_or_is_refused_by_a_sentence() {
    const { assert!(LOADED.len() >= 55 && LOADED.len() + REFUSED.len() >= 80) }
    let device = Device::cpu_with(CpuOptions::default());
    let all = tensors(&device);
    for (name, of, tokenizer, types) in LOADED {
        let case = case(of);
        let model = of_gguf(&device, &case, &all, vocabulary(tokenizer));
        let model = model.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(off(model, &case, &all) < BOUND, "{name}");
        let unknown = types.split(' ').find(|kind| !KINDS.contains(kind));
        assert!(unknown.is_none(), "{name}: {unknown:?}");
    }
    for (name, architecture, says) in REFUSED {
        let said = vec![("general.architecture".to_owned(), architecture.into())];
        let error = files::load(&device, said, Vec::new()).unwrap_err();
        assert!(error.is_model() && error.to_string().contains(says), "{name}: {error}");
    }
    // Experts of another kind.
    let mut said = metadata(&case("qwen3"));
    said.push(("qwen3.expert_count".into(), Value::U32(8)));
    let error = files::load(&device, said, Vec::new()).unwrap_err();
    assert!(error.to_string().contains("experts"), "{error}");
}
