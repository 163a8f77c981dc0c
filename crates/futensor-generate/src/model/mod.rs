//! The model: weights on a device, and one step of it over packed rows.
//!
//! `forward` is the network, `choose` draws tokens from its last values, `steps` turns a step of
//! the planner's into one call of a region.

mod architectures;
mod choose;
mod config;
mod forward;
mod load;
mod parts;
mod steps;
#[cfg(test)]
mod tests;
mod weights;

use crate::batch_planner::{Limits, Step};
use crate::error::{Error, Result, number_of};
use crate::options::Options;
use crate::sampling::Sampling;
use crate::template::Template;
use crate::tokenizer::Tokenizer;
pub use config::{Activation, Config, Experts, HeadNorms, Rope, Scaling, Variant};
use futensor::Device;
use std::future::Future;
use std::sync::Arc;
pub use steps::Steps;
use weights::Weights;

/// What runs steps: the model, or what a test puts in its place. Steps run in the order in which
/// they are queued.
pub trait Runner: Send + 'static {
    /// What the step's choosing rows chose, in their order.
    type Flight: Future<Output = Result<Vec<Choice>>> + Send + Unpin;

    /// Queues a step, with a wish for each row that chooses. It waits for nothing.
    fn queue(&mut self, step: &Step, wishes: &[Wish]) -> Self::Flight;

    /// Begins anew, behind a step that failed: what pages held is lost.
    fn reset(&mut self);
}

/// How one token is to be chosen.
#[derive(Clone, Debug, Default)]
pub struct Wish {
    pub sampling: Arc<Sampling>,
    /// A random number in [0, 1).
    pub draw: f32,
    /// Tokens before the row's own that are to be penalised.
    pub recent: Vec<u32>,
    /// Tokens with a bias, or with a count, or both: how often the answer has them, but for the
    /// row's own token.
    pub listed: Vec<(u32, f32, u32)>,
    /// The row's own token is one of the answer's.
    pub answered: bool,
    /// The tokens that may be chosen, a bit each.
    pub mask: Option<Vec<u32>>,
    /// So many alternatives are to be told of.
    pub logprobs: Option<usize>,
}

/// A token that was chosen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Choice {
    pub token: u32,
    /// 0 where it was not asked for.
    pub logprob: f32,
    pub alternatives: Vec<(u32, f32)>,
}

/// A language model with its tokenizer: Llama (grouped heads, rotary positions, RMS norms, gated
/// feed-forward blocks), or one that differs from it as its [`Variant`] says.
pub struct Llama {
    device: Device,
    config: Config,
    weights: Weights,
    tokenizer: Arc<Tokenizer>,
    template: Option<Template>,
}

impl Llama {
    fn new(
        device: &Device,
        config: Config,
        weights: Weights,
        tokenizer: Tokenizer,
        template: Option<Template>,
    ) -> Result<Llama> {
        let vocabulary = weights.vocabulary();
        if tokenizer.len() > vocabulary {
            let tokens = number_of(tokenizer.len(), "token", "tokens");
            let text = format!("a tokenizer of {tokens} for a model of {vocabulary}");
            return Err(Error::model(text));
        }
        let tokenizer = Arc::new(tokenizer);
        Ok(Llama { device: device.clone(), config, weights, tokenizer, template })
    }

    /// Where it runs.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Its sizes.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Bytes of the device's memory that its weights take: as many as in its file, but that halves
    /// and quantised weights have rows filled up to a multiple of sixteen.
    pub fn bytes(&self) -> usize {
        self.weights.bytes()
    }

    /// Tokens that it tells apart.
    pub fn vocabulary(&self) -> usize {
        self.weights.vocabulary()
    }

    /// Its tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// How conversations are written for it, where its file says so.
    pub fn template(&self) -> Option<&Template> {
        self.template.as_ref()
    }

    /// What its steps share.
    pub(crate) fn limits(&self, options: &Options) -> Result<Limits> {
        let page = options.page.clamp(1, 1024);
        let bytes = 2
            * self.config.layers
            * self.config.kv_heads
            * self.config.head
            * page
            * forward::KEPT.size();
        let context = options.context.min(self.config.context);
        let slots = options.slots.clamp(1, 1024);
        // More than all slots could fill is of no use.
        let pages = (options.pages_bytes / bytes).min(slots * context.div_ceil(page));
        if pages == 0 {
            let all = number_of(options.pages_bytes, "byte", "bytes");
            let text = format!("{all} for keys and values, and a page has {bytes}");
            return Err(Error::request(text));
        }
        // Nor are more rows than all slots have tokens.
        let tokens = slots * context;
        let beside = options.chunk_beside.clamp(1, tokens);
        let rows = options.chunk.min(tokens).max(slots + beside);
        Ok(Limits { slots, rows, rows_beside: beside, pages, page, context })
    }
}

impl std::fmt::Debug for Llama {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Llama")
            .field("device", &self.device)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}
