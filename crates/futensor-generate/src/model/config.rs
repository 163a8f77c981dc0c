//! The sizes of a model, as its file states them.

use crate::error::{Error, Result, number_of};
use futensor::gguf;
use serde_json::Value;

/// Sizes and constants of a Llama-like model.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Elements of a hidden state.
    pub width: usize,
    /// Layers.
    pub layers: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values; each is shared by some heads of queries.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head: usize,
    /// Elements between the two halves of a feed-forward block.
    pub feed_forward: usize,
    /// Tokens that it was trained on at most.
    pub context: usize,
    /// Of the norms.
    pub epsilon: f64,
    /// How positions turn queries and keys.
    pub rope: Rope,
}

/// Rotary positions (Su et al. 2021, arXiv:2104.09864).
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Its frequencies are powers of one over it.
    pub base: f64,
    /// How they are stretched for longer texts.
    pub scaling: Scaling,
    /// Pairs are neighbours (as GGUF has Llama's weights), not halves apart (as Hugging Face has).
    pub neighbours: bool,
}

/// How the frequencies of [`Rope`] are changed.
#[derive(Clone, Debug, PartialEq)]
pub enum Scaling {
    /// Not at all.
    None,
    /// All divided by a factor.
    Linear(f64),
    /// Each divided by a factor of its own: the file's, or those of Llama 3.1.
    Each(Vec<f64>),
}

impl Rope {
    /// The frequency of each pair of a head, in radians a token.
    pub fn frequencies(&self, head: usize) -> Vec<f64> {
        let plain = |k: usize| self.base.powf(-2.0 * k as f64 / head as f64);
        let factor = |k: usize| match &self.scaling {
            Scaling::None => 1.0,
            Scaling::Linear(factor) => *factor,
            Scaling::Each(factors) => factors[k],
        };
        (0..head / 2).map(|k| plain(k) / factor(k)).collect()
    }
}

impl Config {
    /// Of Hugging Face's `config.json`.
    pub(crate) fn from_json(json: &Value) -> Result<Config> {
        let kind = json["model_type"].as_str().unwrap_or("");
        if !matches!(kind, "llama" | "mistral") {
            return Err(Error::model(format!(
                "a model of type {kind:?} is not known: \"llama\" is"
            )));
        }
        let missing = |key: &str| Error::model(format!("config.json says no {key}"));
        let size = |key: &str| json[key].as_u64().map(|n| n as usize).ok_or_else(|| missing(key));
        let (width, heads) = (size("hidden_size")?, size("num_attention_heads")?);
        for key in ["attention_bias", "mlp_bias"] {
            if json[key] == true {
                return Err(Error::model(format!("{key} is not supported")));
            }
        }
        if !json["sliding_window"].is_null() {
            return Err(Error::model("attention in a sliding window is not supported"));
        }
        let head = size("head_dim").unwrap_or(width / heads.max(1));
        // Newer files have it all in one.
        let base = json["rope_theta"].as_f64().or(json["rope_parameters"]["rope_theta"].as_f64());
        let base = base.unwrap_or(10_000.0);
        let scaling = if json["rope_scaling"].is_object() {
            &json["rope_scaling"]
        } else {
            &json["rope_parameters"]
        };
        let mut config = Config {
            width,
            layers: size("num_hidden_layers")?,
            heads,
            kv_heads: size("num_key_value_heads").unwrap_or(heads),
            head,
            feed_forward: size("intermediate_size")?,
            context: size("max_position_embeddings")?,
            epsilon: json["rms_norm_eps"].as_f64().ok_or_else(|| missing("rms_norm_eps"))?,
            rope: Rope { base, scaling: Scaling::None, neighbours: false },
        };
        // Before anything is made that is as large as a size says.
        config.check()?;
        config.rope.scaling = scaling_of(scaling, base, head)?;
        Ok(config)
    }

    /// Of a GGUF file's metadata.
    pub(crate) fn from_gguf(metadata: &gguf::Metadata) -> Result<Config> {
        let kind = metadata.get("general.architecture").and_then(|v| v.as_str()).unwrap_or("");
        if kind != "llama" {
            return Err(Error::model(format!(
                "a model of architecture {kind:?} is not known: \"llama\" is"
            )));
        }
        let value = |key: &str| metadata.get(&format!("llama.{key}"));
        let missing = |key: &str| Error::model(format!("the file says no llama.{key}"));
        let size = |key: &str| {
            let size = value(key).and_then(|v| v.as_u64()).and_then(|n| usize::try_from(n).ok());
            size.ok_or_else(|| missing(key))
        };
        let number = |key: &str| value(key).and_then(|v| v.as_f64());
        if value("expert_count").and_then(|v| v.as_u64()).is_some_and(|n| n > 0) {
            return Err(Error::model("mixtures of experts are not supported"));
        }
        let (width, heads) = (size("embedding_length")?, size("attention.head_count")?);
        let head = size("rope.dimension_count").unwrap_or(width / heads.max(1));
        if size("attention.key_length").is_ok_and(|n| n != head) {
            return Err(Error::model("heads of which only a part is turned are not supported"));
        }
        let scaling = match value("rope.scaling.type").and_then(|v| v.as_str()).unwrap_or("none") {
            "none" => Scaling::None,
            "linear" => Scaling::Linear(
                number("rope.scaling.factor").ok_or_else(|| missing("rope.scaling.factor"))?,
            ),
            other => {
                return Err(Error::model(format!(
                    "positions scaled by {other:?} are not supported"
                )));
            }
        };
        let base = number("rope.freq_base").unwrap_or(10_000.0);
        let epsilon = "attention.layer_norm_rms_epsilon";
        Ok(Config {
            width,
            layers: size("block_count")?,
            heads,
            kv_heads: size("attention.head_count_kv").unwrap_or(heads),
            head,
            feed_forward: size("feed_forward_length")?,
            context: size("context_length")?,
            epsilon: number(epsilon).ok_or_else(|| missing(epsilon))?,
            rope: Rope { base, scaling, neighbours: true },
        })
    }

    pub(crate) fn check(&self) -> Result<()> {
        let sizes = [
            self.width,
            self.layers,
            self.heads,
            self.kv_heads,
            self.head,
            self.feed_forward,
            self.context,
        ];
        let wrong = |text: String| Err(Error::model(text));
        if sizes.iter().any(|&n| n == 0 || n > 1 << 24) {
            return wrong(format!(
                "a model of such sizes cannot be: width, layers, heads, heads of keys, size of a \
                 head, of the feed-forward layer, and of the context are {sizes:?}"
            ));
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return wrong(format!(
                "{} cannot share {}",
                number_of(self.heads, "head", "heads"),
                self.kv_heads
            ));
        }
        if !self.head.is_multiple_of(2) {
            return wrong(format!(
                "a head of {} has no pairs",
                number_of(self.head, "element", "elements")
            ));
        }
        match &self.rope.scaling {
            Scaling::Each(factors) if factors.len() != self.head / 2 => wrong(format!(
                "{} for heads of {}",
                number_of(factors.len(), "factor of frequencies", "factors of frequencies"),
                self.head
            )),
            _ => Ok(()),
        }
    }
}

/// Of `rope_scaling` in a `config.json`.
fn scaling_of(json: &Value, base: f64, head: usize) -> Result<Scaling> {
    let kind = json["rope_type"].as_str().or(json["type"].as_str()).unwrap_or("default");
    let number = |key: &str| {
        json[key].as_f64().ok_or_else(|| Error::model(format!("rope_scaling says no {key}")))
    };
    Ok(match kind {
        "default" => Scaling::None,
        "linear" => Scaling::Linear(number("factor")?),
        "llama3" => {
            let (low, high) = (number("low_freq_factor")?, number("high_freq_factor")?);
            let (factor, old) = (number("factor")?, number("original_max_position_embeddings")?);
            let plain = Rope { base, scaling: Scaling::None, neighbours: false };
            let of = |frequency: f64| {
                let turns = old * frequency / std::f64::consts::TAU;
                // From all of the factor, where there is less than a turn, to none of it.
                let smooth = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                1.0 / ((1.0 - smooth) / factor + smooth)
            };
            Scaling::Each(plain.frequencies(head).into_iter().map(of).collect())
        }
        other => {
            return Err(Error::model(format!("positions scaled by {other:?} are not supported")));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn llama() -> Value {
        json!({ "model_type": "llama", "hidden_size": 64, "num_attention_heads": 4,
            "num_key_value_heads": 2, "num_hidden_layers": 2, "intermediate_size": 96,
            "max_position_embeddings": 128, "rms_norm_eps": 1e-5 })
    }

    #[test]
    fn a_configuration_is_read_and_what_cannot_be_is_refused() {
        let config = Config::from_json(&llama()).unwrap();
        assert_eq!(
            (config.head, config.rope.base, config.rope.scaling),
            (16, 10_000.0, Scaling::None)
        );
        for (key, value, says) in [
            ("model_type", json!("gpt2"), "\"gpt2\""),
            ("hidden_size", json!(null), "no hidden_size"),
            ("num_key_value_heads", json!(3), "4 heads cannot share 3"),
            ("head_dim", json!(7), "7 elements"),
            ("head_dim", json!(1u64 << 60), "sizes"),
            ("num_hidden_layers", json!(0), "sizes"),
            ("rope_scaling", json!({ "rope_type": "yarn" }), "\"yarn\""),
            ("attention_bias", json!(true), "attention_bias"),
        ] {
            let mut json = llama();
            json["rope_scaling"] = json!({
                "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 8192 });
            json[key] = value;
            let error = Config::from_json(&json).unwrap_err();
            assert!(error.is_model() && error.to_string().contains(says), "{error}");
        }
    }

    #[test]
    fn llama_3s_frequencies_are_stretched_where_they_are_slow() {
        let mut json = llama();
        json["rope_scaling"] = json!({
                "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192 });
        let scaled = Config::from_json(&json).unwrap().rope.frequencies(16);
        let plain = Config::from_json(&llama()).unwrap().rope.frequencies(16);
        assert_eq!(scaled[0], plain[0], "8192 / 2 pi turns are fast");
        json["rope_scaling"]["original_max_position_embeddings"] = json!(1.0);
        let all = Config::from_json(&json).unwrap().rope.frequencies(16);
        all.iter().zip(&plain).for_each(|(a, b)| assert!((a - b / 8.0).abs() < 1e-12));
    }
}
