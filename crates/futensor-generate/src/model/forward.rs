//! The network: packed rows of tokens at their positions to the hidden states that the next tokens
//! are chosen from. Llama (Touvron et al. 2023, arXiv:2302.13971) with grouped heads.

use super::Llama;
use futensor::region::{Flat, Tensors};
use futensor::{DType, TensorFuture};

/// The type of keys and values in their pages.
pub const KEPT: DType = DType::F16;

/// What steps hand on to each other; it changes in place.
pub struct State {
    /// Keys and values of each layer, `[pages, page, kv_heads, head]`.
    pub keys: Vec<TensorFuture>,
    pub values: Vec<TensorFuture>,
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
    /// `[n]`: where its key and value go, of all places in all pages.
    pub places: TensorFuture,
    /// `[n, pages]`: the pages of its sequence.
    pub tables: TensorFuture,
    /// `[n, 1, head / 2]`: by what angle its pairs are turned.
    pub cosine: TensorFuture,
    pub sine: TensorFuture,
}

/// Sines and cosines of each position, `[context, head / 2]`.
pub struct Angles {
    pub cosine: TensorFuture,
    pub sine: TensorFuture,
}

impl Angles {
    pub fn new(model: &Llama, context: usize) -> Angles {
        let frequencies = model.config.rope.frequencies(model.config.head);
        let shape = [context, frequencies.len()];
        let of = |f: fn(f64) -> f64| {
            let row = |at: usize| frequencies.iter().map(move |w| f(at as f64 * w) as f32);
            model.device.from_vec((0..context).flat_map(row).collect(), shape)
        };
        Angles { cosine: of(f64::cos), sine: of(f64::sin) }
    }
}

impl State {
    pub fn new(model: &Llama, [pages, page]: [usize; 2], slots: usize) -> State {
        let all = || {
            let shape = [pages, page, model.config.kv_heads, model.config.head];
            (0..model.config.layers).map(|_| model.device.zeros_dtype(shape, KEPT)).collect()
        };
        State { keys: all(), values: all(), last: model.device.zeros_dtype([slots + 1], DType::I64) }
    }
}

impl Llama {
    /// Hidden states `[n, width]` of rows, whose keys and values go into the state.
    pub(super) fn forward(&self, state: &mut State, rows: &Rows) -> TensorFuture {
        let (n, config) = (rows.tokens.dims()[0], &self.config);
        let mut x = self.weights.embedding.embedding(&rows.tokens);
        let kept = std::mem::take(&mut state.keys).into_iter().zip(std::mem::take(&mut state.values));
        for (layer, (keys, values)) in self.weights.layers.iter().zip(kept) {
            let h = x.rms_norm(&layer.attention_norm, config.epsilon);
            let heads = |x: &TensorFuture| x.reshape([n, x.dims()[1] / config.head, config.head]);
            let [query, key, value] = &layer.query_key_value.linear(&h)[..] else {
                unreachable!("three weights")
            };
            let turn = |x: &TensorFuture| heads(x).rope(&rows.cosine, &rows.sine, config.rope.neighbours);
            let (query, key) = (turn(query), turn(key));
            let (keys, values) = (put(keys, &rows.places, key), put(values, &rows.places, heads(value)));
            let seen = query.paged_attention(&keys, &values, &rows.tables, &rows.lengths, ());
            state.keys.push(keys);
            state.values.push(values);
            x = x + layer.output.linear(seen.reshape([n, config.heads * config.head]));
            let h = x.rms_norm(&layer.feed_forward_norm, config.epsilon);
            let [gate, up] = &layer.gate_up.linear(&h)[..] else { unreachable!("two weights") };
            x = &x + layer.down.linear(gate.silu() * up);
        }
        x
    }
}

/// Puts rows into their places, in place.
fn put(kept: TensorFuture, places: &TensorFuture, rows: TensorFuture) -> TensorFuture {
    let (pages, flat) = (kept.dims().to_vec(), kept.flatten(0, 1));
    // The last handle but for this view.
    drop(kept);
    flat.index_copy(0, places, rows.to_dtype(KEPT)).reshape(&pages[..])
}
