//! The network: packed rows of tokens at their positions to the hidden states that the next tokens
//! are chosen from. Llama (Touvron et al. 2023, arXiv:2302.13971) with grouped heads.

use super::Llama;
use futensor::region::{Flat, Tensors};
use futensor::{DType, TensorFuture};

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
    pub(super) fn forward(&self, state: State, rows: &Rows) -> (TensorFuture, State) {
        let (n, config) = (rows.tokens.dims()[0], &self.config);
        let State { mut keys, mut values, last } = state;
        let (layers, each) = (keys.dims()[0], keys.dims()[1] * keys.dims()[2]);
        let firsts = self.device.arange(0, layers as i64, 1) * each as i64;
        let places = firsts.unsqueeze(1) + &rows.places;
        let mut x = self.weights.embedding.embedding(&rows.tokens);
        for (l, layer) in self.weights.layers.iter().enumerate() {
            let h = x.rms_norm(&layer.attention_norm, config.epsilon);
            let heads = |x: &TensorFuture| x.reshape([n, x.dims()[1] / config.head, config.head]);
            let [query, key, value] = &layer.query_key_value.linear(&h)[..] else {
                unreachable!("a product for each of three weights")
            };
            let turn =
                |x: &TensorFuture| heads(x).rope(&rows.cosine, &rows.sine, config.rope.neighbours);
            let (query, key) = (turn(query), turn(key));
            (keys, values) = (put(keys, places.i(l), key), put(values, places.i(l), heads(value)));
            let seen =
                query.paged_attention(keys.i(l), values.i(l), &rows.tables, &rows.lengths, ());
            x = x + layer.output.linear(seen.reshape([n, config.heads * config.head]));
            let h = x.rms_norm(&layer.feed_forward_norm, config.epsilon);
            let [gate, up] = &layer.gate_up.linear(&h)[..] else {
                unreachable!("a product for each of two weights")
            };
            x = &x + layer.down.linear(gate.silu() * up);
        }
        (x, State { keys, values, last })
    }
}

/// Puts rows into their places, in place.
fn put(kept: TensorFuture, places: TensorFuture, rows: TensorFuture) -> TensorFuture {
    let (shape, flat) = (kept.dims().to_vec(), kept.flatten(0, 2));
    // The last handle but for this view.
    drop(kept);
    flat.index_copy(0, places, rows.to_dtype(KEPT)).reshape(&shape[..])
}
