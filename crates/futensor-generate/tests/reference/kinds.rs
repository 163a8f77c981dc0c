//! Weights of every type that is read, in files that gguf-py wrote, beside `transformers` in
//! float64 of what gguf-py dequantises them to (`kinds.py` made them).

use super::models::off_from;
use futensor::{CpuOptions, Device, block_on, gguf, safetensors};
use futensor_generate::Llama;
use std::collections::BTreeSet;
use std::path::Path;

/// The types of weights in the files.
pub const KINDS: [&str; 15] = [
    "BF16", "F16", "F32", "IQ4_NL", "IQ4_XS", "Q2_K", "Q3_K", "Q4_0", "Q4_1", "Q4_K", "Q5_0",
    "Q5_1", "Q5_K", "Q6_K", "Q8_0",
];

#[test]
fn weights_of_every_type_say_what_transformers_says() {
    let device = Device::cpu_with(CpuOptions::default());
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference");
    let expected = block_on(safetensors::load(folder.join("kinds.safetensors"), &device).all());
    let (expected, mut kinds) = (expected.unwrap(), BTreeSet::new());
    for name in ["a", "b", "c", "d", "e"] {
        let path = folder.join(format!("kinds_{name}.gguf"));
        let file = block_on(gguf::open(&path)).unwrap();
        kinds.extend(file.tensors().iter().map(|t| t.kind.to_string().to_uppercase()));
        let model = block_on(Llama::from_gguf(&device, &path)).unwrap();
        let prompt: Vec<u32> = (0..40).map(|k| (k * 7 + k * k / 3) % 48).collect();
        let off = off_from(model, &prompt, &expected[&format!("logprobs.{name}")], 0.2);
        // Products round what they multiply to 8 bits.
        assert!(off < 0.2, "{name}: {off}");
    }
    let short = |kind: String| match &kind[..] {
        "FLOAT32" => "F32".to_owned(),
        "FLOAT16" => "F16".to_owned(),
        "BFLOAT16" => "BF16".to_owned(),
        _ => kind,
    };
    let kinds: BTreeSet<String> = kinds.into_iter().map(short).collect();
    assert_eq!(kinds, KINDS.map(String::from).into());
}
