//! The next tokens, from logits, on the device: the host need not know them for the step that
//! follows.
//!
//! A token is drawn from its candidates by one random number, which the host makes from the
//! request's seed. Rows do not see each other.

use crate::sampling::{ALTERNATIVES, CANDIDATES};
use futensor::{TensorFuture, cat};

/// What the choosing rows are told, on the device.
pub struct Wishes {
    /// `[m, 1]` each.
    pub temperature: TensorFuture,
    pub top_p: TensorFuture,
    pub draw: TensorFuture,
    pub penalty: TensorFuture,
    /// `[m, 1]`: of so many candidates.
    pub top_k: TensorFuture,
    /// `[m, any]`: tokens to be penalised.
    pub recent: TensorFuture,
    /// `[m, vocabulary]`: the tokens that may be chosen.
    pub mask: Option<TensorFuture>,
}

/// The likeliest token of each row `[m, vocabulary]`; of equals the first.
pub fn likeliest(logits: &TensorFuture) -> TensorFuture {
    logits.argmax(-1)
}

/// A token for each row, as it wishes.
pub fn choose(logits: &TensorFuture, wishes: &Wishes) -> TensorFuture {
    let candidates = CANDIDATES.min(logits.dims()[1]);
    let recent = logits.gather(1, &wishes.recent);
    let penalised = recent.gt(0.0).where_cond(&recent / &wishes.penalty, &recent * &wishes.penalty);
    let mut logits = logits.scatter(1, &wishes.recent, penalised);
    if let Some(mask) = &wishes.mask {
        logits = mask.where_cond(logits, f32::NEG_INFINITY);
    }
    let (values, tokens) = logits.topk(candidates, -1, true);
    let order = logits.device().arange(0, candidates as i64, 1).reshape([1, -1]);
    let greedy = wishes.temperature.eq(0.0);
    let top_k = greedy.where_cond(1, &wishes.top_k);
    let temperature = greedy.where_cond(1.0, &wishes.temperature);
    let weights = ((&values - values.narrow(1, 0, 1)) / temperature).exp();
    let weights = order.lt(top_k).where_cond(weights, 0.0);
    let place = weights.top_p(&wishes.top_p).categorical(&wishes.draw);
    // A row whose logits are no numbers spoils its own token alone.
    tokens.gather(1, place.clamp_max(candidates as i64 - 1)).reshape([-1])
}

/// Log-probabilities: of the chosen ones `[m]`, and the likeliest tokens with theirs, `[m,
/// ALTERNATIVES]` each.
pub fn logprobs(logits: &TensorFuture, chosen: &TensorFuture) -> [TensorFuture; 3] {
    let total = logits.logsumexp_keepdim(-1);
    let (values, tokens) = logits.topk(ALTERNATIVES.min(logits.dims()[1]), -1, true);
    let own = logits.gather(1, chosen.reshape([-1, 1])) - &total;
    [own.reshape([-1]), values - &total, tokens]
}

/// The last token of each row beside what is told of those before it.
pub fn with_last(recent: &TensorFuture, last: &TensorFuture) -> TensorFuture {
    cat(&[recent, &last.reshape([-1, 1])], 1)
}
