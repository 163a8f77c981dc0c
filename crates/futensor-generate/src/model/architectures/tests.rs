//! What a `config.json` and a file's metadata say: read, or refused by its name.

use super::*;
use crate::model::Scaling;
use serde_json::json;

fn llama() -> Value {
    json!({ "model_type": "llama", "hidden_size": 64, "num_attention_heads": 4,
        "num_key_value_heads": 2, "num_hidden_layers": 2, "intermediate_size": 96,
        "max_position_embeddings": 128, "rms_norm_eps": 1e-5 })
}

fn config(json: &Value) -> Result<Config> {
    Ok(of_folder(json)?.0)
}

#[test]
fn a_configuration_is_read_and_what_cannot_be_is_refused() {
    let read = config(&llama()).unwrap();
    assert_eq!((read.head, read.rope.base, read.rope.scaling), (16, 10_000.0, Scaling::None));
    for (key, value, says) in [
        ("model_type", json!("gpt2"), "\"gpt2\""),
        ("model_type", json!("deepseek_v3"), "latent attention"),
        ("hidden_size", json!(null), "no hidden_size"),
        ("hidden_size", json!("64"), "hidden_size is \"64\", no size"),
        ("num_key_value_heads", json!(3), "4 heads cannot share 3"),
        ("head_dim", json!(7), "7 elements"),
        ("head_dim", json!(1u64 << 60), "sizes"),
        ("num_hidden_layers", json!(0), "sizes"),
        ("rope_scaling", json!({ "rope_type": "dynamic" }), "\"dynamic\""),
        ("rope_scaling", json!({ "rope_type": "linear", "factor": 2.0, "x": 1 }), "rope_scaling.x"),
        ("hidden_act", json!("relu"), "hidden_act is \"relu\""),
        ("quantization_config", json!({ "quant_method": "gptq" }), "quantised by \"gptq\""),
        ("new_key", json!(1), "new_key is not known"),
        ("partial_rotary_factor", json!(0.1), "1 element of 16"),
        ("rope_theta", json!(-1.0), "turned by -1"),
    ] {
        let mut json = llama();
        json["rope_scaling"] = json!({
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192 });
        json[key] = value;
        let error = config(&json).unwrap_err();
        assert!(error.is_model() && error.to_string().contains(says), "{error}");
    }
    let mut json = llama();
    json["sliding_window"] = json!(32);
    let read = config(&json).unwrap();
    assert_eq!(
        (read.context, read.window_of(0)),
        (32, None),
        "readers differ, but for a text so long"
    );
    json["model_type"] = json!("mistral");
    let read = config(&json).unwrap();
    assert_eq!((read.context, read.window_of(1)), (128, Some(32)));
}

#[test]
fn llama_3s_frequencies_are_stretched_where_they_are_slow() {
    let mut json = llama();
    json["rope_scaling"] = json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192 });
    let scaled = config(&json).unwrap().rope.frequencies();
    let plain = config(&llama()).unwrap().rope.frequencies();
    assert_eq!(scaled[0], plain[0], "8192 / 2 pi turns are fast");
    json["rope_scaling"]["original_max_position_embeddings"] = json!(1.0);
    let all = config(&json).unwrap().rope.frequencies();
    all.iter().zip(&plain).for_each(|(a, b)| assert!((a - b / 8.0).abs() < 1e-12));
}
