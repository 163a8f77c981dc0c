//! The tensors of a model, by GGUF's names and by Hugging Face's: all that there are become its
//! weights.

use super::config::{Config, Experts, HeadNorms};
use super::weights::{FeedForward, Layer, Linear, Mixture, Norm, Several, SharedExpert, Weights};
use crate::error::{Error, Result};
use futensor::quant::{Format, Quantized, Weight};
use futensor::{DType, TensorFuture};
use futensor_models::Tensors;

/// A part of a model, or of each layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Part {
    Embedding,
    Norm,
    Head,
    AttentionNorm,
    Query,
    Key,
    Value,
    /// The three in one.
    QueryKeyValue,
    QueryNorm,
    KeyNorm,
    Output,
    AfterAttention,
    FeedForwardNorm,
    Gate,
    Up,
    /// Both in one.
    GateUp,
    Down,
    AfterFeedForward,
    /// What picks experts.
    Router,
    // Of experts; a folder has each by itself.
    GateOfExperts,
    UpOfExperts,
    DownOfExperts,
    // Of the expert that every token sees, and how much of it.
    SharedShare,
    SharedGate,
    SharedUp,
    SharedDown,
}

/// Rows of a matrix in memory that stand beside each other, so that none has rows of two experts.
const ROWS: usize = 16;

impl Part {
    /// Hugging Face's name, of Llama where there is one.
    fn of_folder(self) -> &'static str {
        match self {
            Part::Embedding => "model.embed_tokens",
            Part::Norm => "model.norm",
            Part::Head => "lm_head",
            Part::AttentionNorm => "input_layernorm",
            Part::Query => "self_attn.q_proj",
            Part::Key => "self_attn.k_proj",
            Part::Value => "self_attn.v_proj",
            Part::QueryKeyValue => "self_attn.qkv_proj",
            Part::QueryNorm => "self_attn.q_norm",
            Part::KeyNorm => "self_attn.k_norm",
            Part::Output => "self_attn.o_proj",
            Part::AfterAttention => "post_attention_layernorm",
            Part::FeedForwardNorm => "post_attention_layernorm",
            Part::Gate => "mlp.gate_proj",
            Part::Up => "mlp.up_proj",
            Part::GateUp => "mlp.gate_up_proj",
            Part::Down => "mlp.down_proj",
            Part::AfterFeedForward => "post_feedforward_layernorm",
            Part::Router => "mlp.gate",
            Part::GateOfExperts => "mlp.experts.#.gate_proj",
            Part::UpOfExperts => "mlp.experts.#.up_proj",
            Part::DownOfExperts => "mlp.experts.#.down_proj",
            Part::SharedShare => "mlp.shared_expert_gate",
            Part::SharedGate => "mlp.shared_expert.gate_proj",
            Part::SharedUp => "mlp.shared_expert.up_proj",
            Part::SharedDown => "mlp.shared_expert.down_proj",
        }
    }

    /// GGUF's name.
    fn of_gguf(self) -> &'static str {
        match self {
            Part::Embedding => "token_embd",
            Part::Norm => "output_norm",
            Part::Head => "output",
            Part::AttentionNorm => "attn_norm",
            Part::Query => "attn_q",
            Part::Key => "attn_k",
            Part::Value => "attn_v",
            Part::QueryKeyValue => "attn_qkv",
            Part::QueryNorm => "attn_q_norm",
            Part::KeyNorm => "attn_k_norm",
            Part::Output => "attn_output",
            Part::AfterAttention => "post_attention_norm",
            Part::FeedForwardNorm => "ffn_norm",
            Part::Gate => "ffn_gate",
            Part::Up | Part::GateUp => "ffn_up",
            Part::Down => "ffn_down",
            Part::AfterFeedForward => "post_ffw_norm",
            Part::Router => "ffn_gate_inp",
            Part::GateOfExperts => "ffn_gate_exps",
            Part::UpOfExperts => "ffn_up_exps",
            Part::DownOfExperts => "ffn_down_exps",
            Part::SharedShare => "ffn_gate_inp_shexp",
            Part::SharedGate => "ffn_gate_shexp",
            Part::SharedUp => "ffn_up_shexp",
            Part::SharedDown => "ffn_down_shexp",
        }
    }
}

/// See the module.
pub struct Parts {
    pub tensors: Tensors,
    /// They have GGUF's names.
    pub gguf: bool,
    /// Names that differ from Llama's, of Hugging Face's.
    pub names: &'static [(Part, &'static str)],
}

impl Parts {
    /// The name of a part, of this layer. In it, `#` stands for the number of an expert.
    pub fn name(&self, part: Part, layer: Option<usize>) -> String {
        let other = self.names.iter().find(|(p, _)| *p == part).map(|(_, name)| *name);
        let name = if self.gguf { part.of_gguf() } else { other.unwrap_or(part.of_folder()) };
        match layer {
            Some(k) if self.gguf => format!("blk.{k}.{name}"),
            Some(k) => format!("model.layers.{k}.{name}"),
            None => name.to_owned(),
        }
    }

    /// A matrix with its bias, where it has one.
    fn linear(&mut self, part: Part, layer: Option<usize>, dims: [usize; 2]) -> Result<Linear> {
        let name = self.name(part, layer);
        let weight = self.matrix(&format!("{name}.weight"), dims)?;
        Ok(Linear { weight, bias: self.vector(&format!("{name}.bias"), dims[0])? })
    }

    /// A matrix. Halves stay halves; what else is dense is used as float32.
    fn matrix(&mut self, name: &str, dims: [usize; 2]) -> Result<Weight> {
        Ok(match self.tensors.want(name, &dims)? {
            Weight::Dense(x) => {
                let halves =
                    [Format::F16, Format::BF16].into_iter().find(|f| f.dtype() == Some(x.dtype()));
                // Rows that are no whole blocks are none that a format has.
                let packed = halves.and_then(|format| Quantized::from_tensor(&x, format).ok());
                packed.map_or_else(|| x.to_dtype(DType::F32).into(), Weight::from)
            }
            weight => weight,
        })
    }

    fn vector(&mut self, name: &str, width: usize) -> Result<Option<TensorFuture>> {
        let found = self.tensors.take(name, &[width])?;
        Ok(found.map(|found| found.dense().to_dtype(DType::F32)))
    }

    fn norm(
        &mut self,
        part: Part,
        layer: Option<usize>,
        width: usize,
        config: &Config,
    ) -> Result<Norm> {
        let name = self.name(part, layer);
        let weight = self.tensors.want(&format!("{name}.weight"), &[width])?;
        let weight = weight.dense().to_dtype(DType::F32);
        let offset = config.variant.norm_offset;
        let bias = match config.variant.centred {
            true => self.vector(&format!("{name}.bias"), width)?,
            false => None,
        };
        Ok(Norm {
            weight: if offset != 0.0 { weight + offset } else { weight },
            bias,
            centred: config.variant.centred,
            epsilon: config.epsilon,
        })
    }

    fn layer(&mut self, k: usize, config: &Config) -> Result<Layer> {
        let (width, variant) = (config.width, &config.variant);
        let (queries, keys) = (config.heads * config.head, config.kv_heads * config.head);
        let layer = Some(k);
        let mut norm = |part, wanted: bool, width| {
            wanted.then(|| self.norm(part, layer, width, config)).transpose()
        };
        let (before, after) = (variant.norms_before, variant.norms_after);
        let before_attention = norm(Part::AttentionNorm, before, width)?;
        let after_attention = norm(Part::AfterAttention, after, width)?;
        let before_feed_forward = norm(Part::FeedForwardNorm, before && !variant.parallel, width)?;
        let after_feed_forward = norm(Part::AfterFeedForward, after, width)?;
        let sizes = match variant.head_norms {
            HeadNorms::None => None,
            HeadNorms::Each => Some([config.head; 2]),
            HeadNorms::All => Some([queries, keys]),
        };
        let [query_norm, key_norm] = match sizes {
            Some([query, key]) => {
                [norm(Part::QueryNorm, true, query)?, norm(Part::KeyNorm, true, key)?]
            }
            None => [None, None],
        };
        let query_key_value = if variant.fused_attention {
            let all = self.linear(Part::QueryKeyValue, layer, [queries + 2 * keys, width])?;
            Several::of(all, vec![queries, keys, keys])
        } else {
            let sizes = [(Part::Query, queries), (Part::Key, keys), (Part::Value, keys)];
            let each = sizes.map(|(part, out)| self.linear(part, layer, [out, width]));
            Several::new(each.into_iter().collect::<Result<_>>()?)?
        };
        let first = if variant.fused_attention { Part::QueryKeyValue } else { Part::Query };
        self.as_told(first, layer, query_key_value.biased(), variant.attention_biased)?;
        let feed_forward = match &variant.experts {
            Some(experts) => FeedForward::Experts(Box::new(self.mixture(k, width, experts)?)),
            None => self.feed_forward(k, config)?,
        };
        Ok(Layer {
            before_attention,
            query_key_value,
            query_norm,
            key_norm,
            output: self.linear(Part::Output, layer, [width, queries])?,
            after_attention,
            before_feed_forward,
            feed_forward,
            after_feed_forward,
        })
    }

    fn feed_forward(&mut self, k: usize, config: &Config) -> Result<FeedForward> {
        let (width, inner, variant) = (config.width, config.feed_forward, &config.variant);
        let layer = Some(k);
        let gate_up = if !variant.gated {
            Several::new(vec![self.linear(Part::Up, layer, [inner, width])?])?
        } else if variant.fused_gate {
            Several::of(self.linear(Part::GateUp, layer, [2 * inner, width])?, vec![inner; 2])
        } else {
            self.gate_up([Part::Gate, Part::Up], layer, [inner, width])?
        };
        let first = if variant.fused_gate { Part::GateUp } else { Part::Up };
        self.as_told(first, layer, gate_up.biased(), variant.feed_forward_biased)?;
        let down = self.linear(Part::Down, layer, [width, inner])?;
        Ok(FeedForward::Whole { gate_up, down })
    }

    fn gate_up(
        &mut self,
        parts: [Part; 2],
        layer: Option<usize>,
        sizes: [usize; 2],
    ) -> Result<Several> {
        let each = parts.map(|part| self.linear(part, layer, sizes));
        Several::new(each.into_iter().collect::<Result<_>>()?)
    }

    fn mixture(&mut self, k: usize, width: usize, experts: &Experts) -> Result<Mixture> {
        let (layer, count, inner) = (Some(k), experts.count, experts.feed_forward);
        let mut stack = |part, out, into| self.stack(part, layer, [count, out, into]);
        let gate = stack(Part::GateOfExperts, inner, width)?;
        let up = stack(Part::UpOfExperts, inner, width)?;
        let down = stack(Part::DownOfExperts, width, inner)?;
        let shared = match experts.shared {
            Some(inner) => {
                let name = format!("{}.weight", self.name(Part::SharedShare, layer));
                // A row of a matrix, or a vector.
                self.tensors.reshape(&name, &[width]);
                let share = self.tensors.want(&name, &[width])?.dense().to_dtype(DType::F32);
                let parts = [Part::SharedGate, Part::SharedUp];
                let gate_up = self.gate_up(parts, layer, [inner, width])?;
                let down = self.linear(Part::SharedDown, layer, [width, inner])?;
                Some(SharedExpert { share, gate_up, down })
            }
            None => None,
        };
        let router = self.linear(Part::Router, layer, [count, width])?;
        Ok(Mixture { router, gate, up, down, shared })
    }

    /// A matrix of each expert, one below the other.
    fn stack(
        &mut self,
        part: Part,
        layer: Option<usize>,
        [count, out, into]: [usize; 3],
    ) -> Result<Quantized> {
        let name = format!("{}.weight", self.name(part, layer));
        let gguf = self.gguf;
        let mut one = |name: &str, out: usize| {
            self.tensors.reshape(name, &[out, into]);
            match self.matrix(name, [out, into])? {
                Weight::Quantized(weight) => Ok(weight),
                Weight::Dense(x) => Quantized::from_tensor(&x, Format::F32)
                    .map_err(|e| Error::model(format!("{name}: {}", e.message()))),
            }
        };
        if !out.is_multiple_of(ROWS) {
            let text = format!("{name}: experts of {out} rows, which are no multiple of {ROWS}");
            return Err(Error::model(text));
        }
        if gguf {
            return one(&name, count * out);
        }
        let each = (0..count).map(|expert| one(&name.replace('#', &expert.to_string()), out));
        let each = each.collect::<Result<Vec<Quantized>>>()?;
        Quantized::join(&each.iter().collect::<Vec<_>>())
            .map_err(|e| Error::model(format!("{name}: {}", e.message())))
    }

    /// Refuses biases that are there or not, unlike what the file says.
    fn as_told(
        &self,
        part: Part,
        layer: Option<usize>,
        biased: bool,
        told: Option<bool>,
    ) -> Result<()> {
        let name = self.name(part, layer);
        match told {
            Some(true) if !biased => Err(Error::model(format!("there is no {name}.bias"))),
            Some(false) if biased => {
                Err(Error::model(format!("there is a {name}.bias, and the file says of none")))
            }
            _ => Ok(()),
        }
    }

    /// All of them, with none left over.
    pub fn all(mut self, config: &Config) -> Result<Weights> {
        let width = config.width;
        let name = format!("{}.weight", self.name(Part::Embedding, None));
        let rows = self.tensors.dims(&name).and_then(|dims| dims.first().copied());
        let vocabulary = rows.unwrap_or(0);
        let embedding = self.matrix(&name, [vocabulary, width])?;
        let layers = (0..config.layers).map(|k| self.layer(k, config));
        let layers = layers.collect::<Result<_>>()?;
        let head = self.name(Part::Head, None);
        let name = format!("{head}.weight");
        let own = self.tensors.dims(&name).is_some();
        let head = match config.variant.tied {
            // A head beside it is nobody's.
            Some(true) => {
                self.tensors.remove(&name);
                None
            }
            Some(false) if !own => {
                return Err(Error::model(format!(
                    "there is no {name}, and tie_word_embeddings is not true"
                )));
            }
            _ if own => Some(self.linear(Part::Head, None, [vocabulary, width])?),
            _ => None,
        };
        let norm = self.norm(Part::Norm, None, width, config)?;
        // What says again what the configuration says.
        self.tensors.end(|name| name.ends_with(".rotary_emb.inv_freq"))?;
        Ok(Weights::new(embedding, layers, norm, head))
    }
}
