//! The network: packed rows of tokens at their positions to the hidden states that the next tokens
//! are chosen from. What an architecture has, and what it has not, is in its configuration and in
//! its weights.

use super::Llama;
use super::config::Rope;
use super::weights::{FeedForward, Norm};
use futensor::region::{Flat, Tensors};
use futensor::{AttentionOptions, DType, TensorFuture, cat};

/// The type of keys and values in their pages.
pub const KEPT: DType = DType::F16;

/// What steps hand on to each other; it changes in place.
pub struct State {
    /// Keys and values of all layers, `[layers, pages, page, kv_heads, head]`: few tensors, since
    /// each that a call hands on costs the thread that queues it.
    pub keys: TensorFuture,
    pub values: TensorFuture,
    /// The last token of each slot; the last place is nobody's.
    pub last: TensorFuture,
}

impl Tensors for State {
    fn into_flat(self, flat: &mut Flat) {
        self.keys.into_flat(flat);
        self.values.into_flat(flat);
        self.last.into_flat(flat);
    }
    fn from_flat(flat: &mut Flat) -> Option<State> {
        let (keys, values) = (Tensors::from_flat(flat)?, Tensors::from_flat(flat)?);
        Some(State { keys, values, last: Tensors::from_flat(flat)? })
    }
}

/// A step's rows, on the device.
pub struct Rows {
    /// `[n]`: token numbers.
    pub tokens: TensorFuture,
    /// `[n]`: how many tokens each sees, itself included.
    pub lengths: TensorFuture,
    /// `[n]`: where its key and value go, of a layer's places in all pages.
    pub places: TensorFuture,
    /// `[n, pages]`: the pages of its sequence.
    pub tables: TensorFuture,
    /// By what angles their pairs are turned, in each way that the model has.
    pub turns: Vec<Turn>,
}

/// Cosines and sines: of each position, `[context, turned / 2]`, or of each row, `[n, 1, turned /
/// 2]`.
pub struct Turn {
    cosine: TensorFuture,
    sine: TensorFuture,
    neighbours: bool,
}

impl Turn {
    fn new(model: &Llama, rope: &Rope, context: usize) -> Turn {
        let frequencies = rope.frequencies();
        let shape = [context, frequencies.len()];
        let of = |f: fn(f64) -> f64| {
            let value = |at: usize, w: &f64| (f(at as f64 * w) * rope.magnitude) as f32;
            let row = |at: usize| frequencies.iter().map(move |w| value(at, w));
            model.device.from_vec((0..context).flat_map(row).collect(), shape)
        };
        Turn { cosine: of(f64::cos), sine: of(f64::sin), neighbours: rope.neighbours }
    }

    /// Those of rows at these positions.
    pub fn at(&self, positions: &TensorFuture) -> Turn {
        let of = |all: &TensorFuture| all.index_select(0, positions).unsqueeze(1);
        Turn { cosine: of(&self.cosine), sine: of(&self.sine), ..*self }
    }

    /// Heads `[n, heads, head]`, of which the first elements may be all.
    fn turn(&self, x: &TensorFuture) -> TensorFuture {
        let (turned, head) = (2 * self.cosine.dims()[2], x.dims()[2]);
        if turned == head {
            return x.rope(&self.cosine, &self.sine, self.neighbours);
        }
        let some = x.narrow(2, 0, turned).rope(&self.cosine, &self.sine, self.neighbours);
        cat(&[&some, &x.narrow(2, turned, head - turned)], 2)
    }
}

/// The ways in which a model's layers turn queries and keys.
pub struct Turns {
    pub all: Vec<Turn>,
    /// Of each layer, which it is.
    of_layers: Vec<Option<usize>>,
}

impl Turns {
    pub fn new(model: &Llama, context: usize) -> Turns {
        let mut ropes: Vec<&Rope> = Vec::new();
        let mut of = |rope| {
            ropes.iter().position(|r| *r == rope).unwrap_or_else(|| {
                ropes.push(rope);
                ropes.len() - 1
            })
        };
        let of_layers =
            (0..model.config.layers).map(|k| model.config.rope_of(k).map(&mut of)).collect();
        let all = ropes.into_iter().map(|rope| Turn::new(model, rope, context)).collect();
        Turns { all, of_layers }
    }
}

impl State {
    pub fn new(model: &Llama, [pages, page]: [usize; 2], slots: usize) -> State {
        let all = || {
            let (config, device) = (&model.config, &model.device);
            device.zeros_dtype([config.layers, pages, page, config.kv_heads, config.head], KEPT)
        };
        State {
            keys: all(),
            values: all(),
            last: model.device.zeros_dtype([slots + 1], DType::I64),
        }
    }
}

impl Llama {
    /// Hidden states `[n, width]` of rows, and the state with their keys and values.
    pub(super) fn forward(
        &self,
        state: State,
        rows: &Rows,
        turns: &Turns,
    ) -> (TensorFuture, State) {
        let (n, config) = (rows.tokens.dims()[0], &self.config);
        let variant = &config.variant;
        let State { mut keys, mut values, last } = state;
        let (layers, each) = (keys.dims()[0], keys.dims()[1] * keys.dims()[2]);
        let firsts = self.device.arange(0, layers as i64, 1) * each as i64;
        let places = firsts.unsqueeze(1) + &rows.places;
        let mut x = scaled(self.weights.embedding.embedding(&rows.tokens), variant.embedding_scale);
        for (l, layer) in self.weights.layers.iter().enumerate() {
            let h = normed(&layer.before_attention, &x);
            let [query, key, value] = &layer.query_key_value.linear(&h)[..] else {
                unreachable!("a product for each of three weights")
            };
            let heads = |x: &TensorFuture| x.reshape([n, x.dims()[1] / config.head, config.head]);
            let ready = |x: &TensorFuture, norm: &Option<Norm>| {
                // A norm is of a head, or of all of them.
                let x = match norm {
                    Some(norm) if norm.weight.dims() == [config.head] => norm.of(&heads(x)),
                    norm => heads(&normed(norm, x)),
                };
                turns.of_layers[l].map_or_else(|| x.clone(), |turn| rows.turns[turn].turn(&x))
            };
            let (query, key) = (ready(query, &layer.query_norm), ready(key, &layer.key_norm));
            (keys, values) = (put(keys, places.i(l), key), put(values, places.i(l), heads(value)));
            let mut options = AttentionOptions::default();
            if let Some(scale) = variant.attention_scale {
                options = options.scale(scale);
            }
            if let Some(cap) = variant.attention_cap {
                options = options.cap(cap);
            }
            if let Some(window) = config.window_of(l) {
                options = options.window(window);
            }
            let (tables, lengths) = (&rows.tables, &rows.lengths);
            let seen = query.paged_attention(keys.i(l), values.i(l), tables, lengths, options);
            let seen = layer.output.linear(&seen.reshape([n, config.heads * config.head]));
            let seen = scaled(normed(&layer.after_attention, &seen), variant.residual_scale);
            let y = &x + seen;
            let h = if variant.parallel { h } else { normed(&layer.before_feed_forward, &y) };
            let found = match (&layer.feed_forward, &variant.experts) {
                (FeedForward::Experts(all), Some(experts)) => {
                    all.of(&h, experts, variant.activation)
                }
                (FeedForward::Whole { gate_up, down }, _) => {
                    down.linear(&match &gate_up.linear(&h)[..] {
                        [gate, up] => variant.activation.of(gate) * up,
                        [up] => variant.activation.of(up),
                        _ => unreachable!("a product for each of one or two weights"),
                    })
                }
                _ => unreachable!("experts are of a configuration that has them"),
            };
            let found = normed(&layer.after_feed_forward, &found);
            x = &y + scaled(found, variant.residual_scale);
        }
        (x, State { keys, values, last })
    }

    /// Logits `[m, vocabulary]` of hidden states, in float32.
    pub(super) fn logits(&self, hidden: &TensorFuture) -> TensorFuture {
        let (hidden, variant) = (self.weights.norm.of(hidden), &self.config.variant);
        let logits = match &self.weights.head {
            Some(head) => head.linear(&hidden),
            None => self.weights.embedding.linear(&hidden),
        };
        let logits = scaled(logits.to_dtype(DType::F32), variant.logits_scale);
        match variant.logits_cap {
            Some(cap) => (logits / cap).tanh() * cap,
            None => logits,
        }
    }
}

fn normed(norm: &Option<Norm>, x: &TensorFuture) -> TensorFuture {
    norm.as_ref().map_or_else(|| x.clone(), |norm| norm.of(x))
}

fn scaled(x: TensorFuture, by: f64) -> TensorFuture {
    if by == 1.0 { x } else { x * by }
}

/// Puts rows into their places, in place.
fn put(kept: TensorFuture, places: TensorFuture, rows: TensorFuture) -> TensorFuture {
    let (shape, flat) = (kept.dims().to_vec(), kept.flatten(0, 2));
    // The last handle but for this view.
    drop(kept);
    flat.index_copy(0, places, rows.to_dtype(KEPT)).reshape(&shape[..])
}
