//! How positions turn queries and keys, by what a file says of it.

use super::keys::Keys;
use crate::error::{Error, Result, number_of};
use crate::model::config::{Config, Rope, Scaling};
use serde_json::Value;
use std::f64::consts::TAU;

/// What a file says, into `config.rope`.
pub fn read(keys: &Keys, config: &mut Config) -> Result<()> {
    config.rope = if keys.gguf() { of_gguf(keys, config)? } else { of_folder(keys, config)? };
    Ok(())
}

fn of_gguf(keys: &Keys, config: &Config) -> Result<Rope> {
    let mut rope = config.rope.clone();
    let key = |name: &'static str| (name, "");
    rope.base = keys.number_of(key("rope.freq_base"))?.unwrap_or(rope.base);
    rope.turned = keys.size_of(key("rope.dimension_count"))?.unwrap_or(rope.turned);
    let linear = keys.number_of(key("rope.scale_linear"))?;
    let factor = keys.number_of(key("rope.scaling.factor"))?.or(linear);
    let old = keys.number_of(key("rope.scaling.original_context_length"))?;
    let own = keys.number_of(key("rope.scaling.attn_factor"))?;
    keys.get(key("rope.scaling.finetuned"));
    // A factor without a word of its kind is linear.
    let kind = keys.text_of(key("rope.scaling.type"))?;
    let kind = kind.unwrap_or(if factor.is_some() { "linear" } else { "none" }.into());
    rope.magnitude = own.unwrap_or(1.0);
    let told = |name: &'static str| keys.missing(key(name));
    match &kind[..] {
        "none" => {}
        // Without a factor there is nothing to stretch.
        "linear" if factor.is_none_or(|factor| factor == 0.0) => {}
        "linear" => rope.scaling = Scaling::Linear(factor.unwrap_or(1.0)),
        "yarn" => {
            let yarn = Yarn {
                factor: factor.ok_or_else(|| told("rope.scaling.factor"))?,
                old: old.unwrap_or(config.context as f64),
                fast: keys.number_of(key("rope.scaling.yarn_beta_fast"))?.unwrap_or(32.0),
                slow: keys.number_of(key("rope.scaling.yarn_beta_slow"))?.unwrap_or(1.0),
                truncate: true,
            };
            keys.only(key("rope.scaling.yarn_ext_factor"), 1.0.into())?;
            let more = keys.number_of(key("rope.scaling.yarn_attn_factor"))?.unwrap_or(1.0);
            rope.magnitude *= yarn.magnitude(1.0) * more;
            rope.scaling = yarn.scaling(&rope)?;
        }
        // Its factors are tensors.
        "longrope" => {}
        other => return Err(unknown(other)),
    }
    Ok(rope)
}

fn unknown(kind: &str) -> Error {
    Error::model(format!("positions scaled by {kind:?} are not supported"))
}

fn of_folder(keys: &Keys, config: &mut Config) -> Result<Rope> {
    let mut rope = config.rope.clone();
    let parameters = keys.get(("", "rope_parameters"));
    let scaling = keys.get(("", "rope_scaling"));
    // Newer files have it all in one.
    let both = if scaling.is_object() { &scaling } else { &parameters };
    let theta = keys.number_of(("", "rope_theta"))?;
    let theta = theta.or(parameters["rope_theta"].as_f64());
    rope.base = theta.or(scaling["rope_theta"].as_f64()).unwrap_or(rope.base);
    let part = keys.number_of(("", "partial_rotary_factor"))?;
    if let Some(part) = part.or(both["partial_rotary_factor"].as_f64()) {
        rope.turned = (config.head as f64 * part) as usize;
    }
    // Newer files have those of each kind of layer.
    let both = if both["full_attention"].is_object() { &both["full_attention"] } else { both };
    rope.base = both["rope_theta"].as_f64().unwrap_or(rope.base);
    let old = keys.number_of(("", OLD))?;
    let rope = of_parameters(both, rope, old, config.context)?;
    if let (Some("longrope" | "su"), Some(old)) = (kind_of(both), both[OLD].as_f64().or(old)) {
        // Longer texts have other factors, and would have them from their first token on.
        config.context = config.context.min(old as usize);
    }
    Ok(rope)
}

fn kind_of(json: &Value) -> Option<&str> {
    json["rope_type"].as_str().or(json["type"].as_str())
}

/// Of `rope_scaling` or `rope_parameters` in a `config.json`.
pub fn of_parameters(
    json: &Value,
    mut rope: Rope,
    old: Option<f64>,
    context: usize,
) -> Result<Rope> {
    let kind = kind_of(json).unwrap_or("default");
    let number = |key: &str| {
        json[key].as_f64().ok_or_else(|| Error::model(format!("rope_scaling says no {key}")))
    };
    let known: &[&str] = match kind {
        "default" => &[],
        "linear" => &["factor"],
        "llama3" => &["factor", "low_freq_factor", "high_freq_factor", OLD],
        "yarn" => &[
            "factor",
            "attention_factor",
            "beta_fast",
            "beta_slow",
            "mscale",
            "mscale_all_dim",
            "truncate",
            "finetuned",
            OLD,
        ],
        "longrope" | "su" => &["factor", "attention_factor", "short_factor", "long_factor", OLD],
        other => return Err(unknown(other)),
    };
    let common = ["rope_type", "type", "rope_theta", "partial_rotary_factor"];
    let others = json.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    if let Some((key, _)) = others
        .map(|(key, value)| (key.as_str(), value))
        .find(|(key, _)| !known.contains(key) && !common.contains(key))
    {
        return Err(Error::model(format!("rope_scaling.{key} of {kind:?} is not supported")));
    }
    let old = json[OLD].as_f64().or(old);
    match kind {
        "linear" => rope.scaling = Scaling::Linear(number("factor")?),
        "llama3" => {
            let (low, high) = (number("low_freq_factor")?, number("high_freq_factor")?);
            let (factor, old) = (number("factor")?, number(OLD)?);
            let of = |frequency: f64| {
                let turns = old * frequency / TAU;
                // From all of the factor, where there is less than a turn, to none of it.
                let smooth = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                1.0 / ((1.0 - smooth) / factor + smooth)
            };
            rope.scaling = Scaling::Each(plain(&rope)?.into_iter().map(of).collect());
        }
        "yarn" => {
            let old = old.unwrap_or(context as f64);
            let yarn = Yarn {
                factor: json["factor"].as_f64().unwrap_or(context as f64 / old),
                old,
                fast: json["beta_fast"].as_f64().unwrap_or(32.0),
                slow: json["beta_slow"].as_f64().unwrap_or(1.0),
                truncate: json["truncate"] != false,
            };
            let of = |key: &str| json[key].as_f64().filter(|scale| *scale != 0.0);
            rope.magnitude = match (json["attention_factor"].as_f64(), of("mscale"), of(ALL)) {
                (Some(own), ..) => own,
                (_, Some(one), Some(all)) => yarn.magnitude(one) / yarn.magnitude(all),
                _ => yarn.magnitude(1.0),
            };
            rope.scaling = yarn.scaling(&rope)?;
        }
        "longrope" | "su" => {
            let old = old.unwrap_or(context as f64);
            let factor = json["factor"].as_f64().unwrap_or(context as f64 / old);
            let long = if factor > 1.0 { (1.0 + factor.ln() / old.ln()).sqrt() } else { 1.0 };
            rope.magnitude = json["attention_factor"].as_f64().unwrap_or(long);
            let factors = json["short_factor"].as_array().into_iter().flatten();
            rope.scaling = Scaling::Each(factors.filter_map(Value::as_f64).collect());
        }
        _ => {}
    }
    Ok(rope)
}

const OLD: &str = "original_max_position_embeddings";
const ALL: &str = "mscale_all_dim";

/// Frequencies before they are changed; of a head that there can be.
fn plain(rope: &Rope) -> Result<Vec<f64>> {
    if rope.turned > 1 << 16 {
        let elements = number_of(rope.turned, "element", "elements");
        return Err(Error::model(format!("{elements} of a head are turned")));
    }
    Ok(Rope { scaling: Scaling::None, ..rope.clone() }.frequencies())
}

/// YaRN (Peng et al. 2023, arXiv:2309.00071).
struct Yarn {
    factor: f64,
    /// Tokens of the context before.
    old: f64,
    /// Turns in it of the first pair that is stretched, and of the first that is so by all of the
    /// factor.
    fast: f64,
    slow: f64,
    /// Both pairs are whole ones.
    truncate: bool,
}

impl Yarn {
    fn magnitude(&self, scale: f64) -> f64 {
        if self.factor > 1.0 { 0.1 * scale * self.factor.ln() + 1.0 } else { 1.0 }
    }

    fn scaling(&self, rope: &Rope) -> Result<Scaling> {
        let width = rope.turned as f64;
        let pair = |turns: f64| width * (self.old / (turns * TAU)).ln() / (2.0 * rope.base.ln());
        let (mut low, mut high) = (pair(self.fast), pair(self.slow));
        if self.truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        let (low, mut high) = (low.max(0.0), high.min(width - 1.0));
        if low == high {
            high += 0.001;
        }
        let of = |k: usize| {
            let stretched = ((k as f64 - low) / (high - low)).clamp(0.0, 1.0);
            1.0 / (stretched / self.factor + (1.0 - stretched))
        };
        Ok(Scaling::Each((0..plain(rope)?.len()).map(of).collect()))
    }
}
