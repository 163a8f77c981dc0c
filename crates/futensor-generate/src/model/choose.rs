//! The next tokens, from logits, on the device: the host need not know them for the step that
//! follows.
//!
//! A token is drawn from its candidates by one random number, which the host makes from the
//! request's seed. Rows do not see each other.

use crate::sampling::ALTERNATIVES;
use futensor::{DType, TensorFuture, cat};

/// What the choosing rows are told, on the device.
pub struct Wishes {
    /// `[m, 1]` each.
    pub temperature: TensorFuture,
    pub top_p: TensorFuture,
    pub min_p: TensorFuture,
    pub draw: TensorFuture,
    pub repetition: TensorFuture,
    pub frequency: TensorFuture,
    pub presence: TensorFuture,
    /// `[m, 1]`: of so many; 0 is all.
    pub top_k: TensorFuture,
    /// Of which no row asks for more than this.
    pub largest: usize,
    /// `[m, 1]`: the row's own token, which is the last one so far, and 1 where the answer has it.
    pub last: TensorFuture,
    pub answered: TensorFuture,
    /// `[m, any]`: tokens before the last that are penalised as repeated; -1 is none.
    pub recent: TensorFuture,
    /// `[m, any]`: tokens that are biased, or that the answer has; how much, and how often.
    pub listed: Option<[TensorFuture; 3]>,
    /// `[m, vocabulary]`: the tokens that may be chosen.
    pub mask: Option<TensorFuture>,
}

/// The likeliest token of each row `[m, vocabulary]`; of equals the first.
pub fn likeliest(logits: &TensorFuture) -> TensorFuture {
    logits.argmax(-1)
}

/// A token for each row, as it wishes. What is computed for a row's wish is the same whatever the
/// others ask for: stages that it has no wish for leave its numbers as they are.
pub fn choose(logits: &TensorFuture, wishes: &Wishes) -> TensorFuture {
    let count = logits.dims()[1];
    let mut logits = changed(logits, wishes);
    if let Some(mask) = &wishes.mask {
        logits = mask.where_cond(logits, f32::NEG_INFINITY);
    }
    let likeliest = likeliest(&logits).reshape([-1, 1]);
    let greedy = wishes.temperature.eq(0.0);
    let temperature = greedy.where_cond(1.0, &wishes.temperature);
    let largest = logits.max_keepdim(-1);
    let mut weights = ((&logits - &largest) / temperature).exp();
    weights = weights.ge(&wishes.min_p).where_cond(weights, 0.0);
    if wishes.largest > 0 {
        // The last of the largest, and its place: equals are kept in the order of their numbers.
        let (values, places) = logits.topk(wishes.largest.min(count), -1, true);
        let at = (&wishes.top_k - 1).clamp_min(0);
        let (value, place) = (values.gather(1, &at), places.gather(1, &at));
        let order = logits.device().arange(0, count as i64, 1).reshape([1, -1]);
        let kept = logits.gt(&value).logical_or(logits.eq(&value).logical_and(order.le(place)));
        weights = kept.logical_or(wishes.top_k.eq(0)).where_cond(weights, 0.0);
    }
    let drawn = weights.top_p(&wishes.top_p).categorical(&wishes.draw);
    // A row whose logits are no numbers spoils its own token alone.
    let token = greedy.where_cond(likeliest, drawn.clamp_max(count as i64 - 1));
    token.reshape([-1])
}

/// Logits with penalties and biases.
fn changed(logits: &TensorFuture, wishes: &Wishes) -> TensorFuture {
    // Places that are over stand for the last token again: one is penalised once.
    let recent = wishes.recent.ge(0).where_cond(&wishes.recent, &wishes.last);
    let recent = cat(&[&recent, &wishes.last], 1);
    let own = logits.gather(1, &recent);
    let penalty = &wishes.repetition;
    let penalised = own.gt(0.0).where_cond(&own / penalty, &own * penalty);
    let logits = logits.scatter(1, &recent, penalised);
    let Some([tokens, biases, counts]) = &wishes.listed else { return logits };
    // The last token is counted here: the host may not know it yet.
    let counted = tokens.eq(&wishes.last).logical_and(counts.gt(0.0));
    let known = counted.to_dtype(DType::F32).max_keepdim(-1);
    let counts = counts + counted.to_dtype(DType::F32) * &wishes.answered;
    let last = (1.0 - known) * &wishes.answered;
    let penalty = |counts: &TensorFuture| {
        counts * &wishes.frequency + counts.gt(0.0).to_dtype(DType::F32) * &wishes.presence
    };
    let changes = cat(&[biases - penalty(&counts), -penalty(&last)], 1);
    let tokens = cat(&[tokens, &wishes.last], 1);
    // Apart from the logits, so that a token's changes are summed alike in any order.
    logits.device().zeros(logits.dims().to_vec()).scatter_add(1, tokens, changes) + logits
}

/// Log-probabilities: of the chosen ones `[m]`, and the likeliest tokens with theirs, `[m,
/// ALTERNATIVES]` each.
pub fn logprobs(logits: &TensorFuture, chosen: &TensorFuture) -> [TensorFuture; 3] {
    let total = logits.logsumexp_keepdim(-1);
    let (values, tokens) = logits.topk(ALTERNATIVES.min(logits.dims()[1]), -1, true);
    let own = logits.gather(1, chosen.reshape([-1, 1])) - &total;
    [own.reshape([-1]), values - &total, tokens]
}
