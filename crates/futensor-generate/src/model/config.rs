//! The sizes of a model, and how its layers are put together: what an architecture reads from a
//! file.

use crate::error::{Error, Result, number_of};
use futensor::TensorFuture;

/// Sizes and constants of a model.
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
    /// Where it differs from Llama.
    pub variant: Variant,
}

/// Where an architecture differs from Llama, which is [`Variant::default`].
#[derive(Clone, Debug, PartialEq)]
pub struct Variant {
    /// Of the feed-forward blocks.
    pub activation: Activation,
    /// Norms take the mean away first, and may have biases: LayerNorm, not RMSNorm.
    pub centred: bool,
    /// What the file's weights of norms lack.
    pub norm_offset: f64,
    /// Norms of what goes into attention and the feed-forward block.
    pub norms_before: bool,
    /// Norms of what comes out of them.
    pub norms_after: bool,
    /// Norms of queries and keys.
    pub head_norms: HeadNorms,
    /// Queries, keys and values are one tensor.
    pub fused_attention: bool,
    /// Gate and up are one tensor.
    pub fused_gate: bool,
    /// The feed-forward block has a gate.
    pub gated: bool,
    /// The feed-forward block sees what attention sees.
    pub parallel: bool,
    /// The feed-forward block is one of experts.
    pub experts: Option<Experts>,
    /// Queries, keys and values have biases; `None`: as they do.
    pub attention_biased: Option<bool>,
    /// The same of feed-forward blocks.
    pub feed_forward_biased: Option<bool>,
    /// What embeddings are multiplied by.
    pub embedding_scale: f64,
    /// What each block's result is multiplied by, before it is added.
    pub residual_scale: f64,
    /// What scores are multiplied by; `None`: one over the square root of a head's elements.
    pub attention_scale: Option<f64>,
    /// What scores are bent to stay below, by a hyperbolic tangent.
    pub attention_cap: Option<f64>,
    /// How many of the last tokens each layer sees, `None` all of them; empty where all layers see
    /// all.
    pub windows: Vec<Option<usize>>,
    /// What logits are multiplied by.
    pub logits_scale: f64,
    /// What logits are bent to stay below, by a hyperbolic tangent.
    pub logits_cap: Option<f64>,
    /// How each layer turns queries and keys, `None` not at all; empty where all do as the model's
    /// [`Rope`] says.
    pub turns: Vec<Option<Rope>>,
    /// The embedding is the head; `None`: where there is no head.
    pub tied: Option<bool>,
}

impl Default for Variant {
    fn default() -> Variant {
        Variant {
            activation: Activation::Silu,
            centred: false,
            norm_offset: 0.0,
            norms_before: true,
            norms_after: false,
            head_norms: HeadNorms::None,
            fused_attention: false,
            fused_gate: false,
            gated: true,
            parallel: false,
            experts: None,
            attention_biased: None,
            feed_forward_biased: None,
            embedding_scale: 1.0,
            residual_scale: 1.0,
            attention_scale: None,
            attention_cap: None,
            windows: Vec::new(),
            logits_scale: 1.0,
            logits_cap: None,
            turns: Vec::new(),
            tied: None,
        }
    }
}

/// Feed-forward blocks of which each token sees some.
#[derive(Clone, Debug, PartialEq)]
pub struct Experts {
    /// Of a layer.
    pub count: usize,
    /// That a token sees: those that a router finds likeliest.
    pub used: usize,
    /// Elements between the two halves of each.
    pub feed_forward: usize,
    /// The shares of those that a token sees add up to one.
    pub normalised: bool,
    /// Elements between the two halves of one that every token sees.
    pub shared: Option<usize>,
}

/// What is between the two halves of a feed-forward block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// `x` times the normal distribution's share below it.
    Gelu,
    /// The same by a hyperbolic tangent.
    GeluTanh,
}

impl Activation {
    /// Of each element.
    pub(crate) fn of(self, x: &TensorFuture) -> TensorFuture {
        match self {
            Activation::Silu => x.silu(),
            Activation::Gelu => x.gelu(),
            Activation::GeluTanh => x.gelu_tanh(),
        }
    }
}

/// Norms of queries and keys, before they are turned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum HeadNorms {
    /// None.
    None,
    /// Of each head.
    Each,
    /// Of all heads together.
    All,
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
    /// So many elements of a head are turned, the first ones.
    pub turned: usize,
    /// What they are multiplied by.
    pub magnitude: f64,
}

/// How the frequencies of [`Rope`] are changed.
#[derive(Clone, Debug, PartialEq)]
pub enum Scaling {
    /// Not at all.
    None,
    /// All divided by a factor.
    Linear(f64),
    /// Each divided by a factor of its own.
    Each(Vec<f64>),
}

impl Rope {
    /// The frequency of each pair of a head, in radians a token.
    pub fn frequencies(&self) -> Vec<f64> {
        let plain = |k: usize| self.base.powf(-2.0 * k as f64 / self.turned as f64);
        let factor = |k: usize| match &self.scaling {
            Scaling::None => 1.0,
            Scaling::Linear(factor) => *factor,
            Scaling::Each(factors) => factors[k],
        };
        (0..self.turned / 2).map(|k| plain(k) / factor(k)).collect()
    }

    fn check(&self, head: usize) -> Result<()> {
        let wrong = |text: String| Err(Error::model(text));
        if !self.turned.is_multiple_of(2) || self.turned == 0 || self.turned > head {
            return wrong(format!(
                "{} of {head} that are turned in pairs",
                number_of(self.turned, "element", "elements"),
            ));
        }
        let factors = match &self.scaling {
            Scaling::None => &[][..],
            Scaling::Linear(factor) => std::slice::from_ref(factor),
            Scaling::Each(factors) if factors.len() != self.turned / 2 => {
                return wrong(format!(
                    "{} for {} of a head",
                    number_of(factors.len(), "factor of frequencies", "factors of frequencies"),
                    number_of(self.turned, "element", "elements"),
                ));
            }
            Scaling::Each(factors) => factors,
        };
        let numbers = [self.base, self.magnitude];
        match numbers.iter().chain(factors).find(|x| !(x.is_finite() && **x > 0.0)) {
            Some(x) => wrong(format!("positions cannot be turned by {x}")),
            None => Ok(()),
        }
    }
}

impl Config {
    /// How a layer turns queries and keys.
    pub fn rope_of(&self, layer: usize) -> Option<&Rope> {
        match self.variant.turns.get(layer) {
            Some(own) => own.as_ref(),
            None => Some(&self.rope),
        }
    }

    /// How many of the last tokens a layer sees; `None` all of them.
    pub fn window_of(&self, layer: usize) -> Option<usize> {
        self.variant.windows.get(layer).copied().flatten()
    }

    /// Has each layer turn in its own way.
    pub(crate) fn turn(&mut self, of: impl Fn(usize) -> Option<Rope>) {
        // More layers than these are refused.
        self.variant.turns = (0..self.layers.min(1 << 16)).map(of).collect();
    }

    /// Refuses sizes that cannot be.
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
        if sizes.iter().any(|&n| n == 0 || n > 1 << 24) || self.layers > 1 << 16 {
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
        if let Some(experts) = &self.variant.experts {
            let (count, used) = (experts.count, experts.used);
            let widths = [Some(experts.feed_forward), experts.shared];
            if used == 0 || used > count || count > 1 << 16 {
                let count = number_of(count, "expert", "experts");
                return wrong(format!("a token cannot see {used} of {count}"));
            }
            if let Some(inner) = widths.into_iter().flatten().find(|n| *n == 0 || *n > 1 << 24) {
                return wrong(format!("an expert of size {inner} cannot be"));
            }
        }
        let turns = self.variant.turns.iter().flatten();
        turns.chain([&self.rope]).try_for_each(|rope| rope.check(self.head))
    }
}
