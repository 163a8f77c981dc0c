//! Scaled dot-product attention.

use crate::dtype::DType;
use crate::error::number_of;
use crate::graph::operation::Refusal;
use crate::ops::attention::paged::PagedAttention;
use crate::ops::attention::rope::Rope;
use crate::ops::attention::scaled::{Attention, takes_mask, weights, within_lengths};
use crate::ops::check::indices;
use crate::shape::Shape;
use crate::tensor::build::{self, At, custom, mixed};
use crate::tensor::future::TensorFuture;
use crate::tensor::gradient::taped::is_taping;
use crate::tensor::methods::reduce::stats::float;
use crate::tensor::methods::shaping::join::cat;
use std::panic::Location;
use std::sync::Arc;

/// Options of an attention, with PyTorch's names.
///
/// ```
/// use futensor::{AttentionOptions, Device};
/// let device = Device::cpu();
/// let q = device.ones([2, 5, 8]);
/// let y = q.scaled_dot_product_attention(&q, &q, AttentionOptions::default().causal(true)
///     .scale(0.5));
/// assert_eq!(y.dims(), [2, 5, 8]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct AttentionOptions {
    mask: Option<TensorFuture>,
    causal: bool,
    scale: Option<f64>,
    cap: Option<f64>,
    window: Option<usize>,
    dropout: f64,
    grouped: bool,
    lengths: Option<TensorFuture>,
    sequences: Option<Vec<usize>>,
}

impl From<()> for AttentionOptions {
    fn from(_: ()) -> AttentionOptions {
        AttentionOptions::default()
    }
}

impl AttentionOptions {
    /// The attention mask: bool (true means that the query sees the key), or numbers that are added
    /// to the scores. Broadcast to `[..., queries, keys]`.
    pub fn mask(mut self, mask: impl AsRef<TensorFuture>) -> AttentionOptions {
        self.mask = Some(mask.as_ref().clone());
        self
    }

    /// Query `i` sees only keys `0..=i`.
    pub fn causal(mut self, causal: bool) -> AttentionOptions {
        self.causal = causal;
        self
    }

    /// The factor of the scores; one over the square root of the width by default.
    pub fn scale(mut self, scale: f64) -> AttentionOptions {
        self.scale = Some(scale);
        self
    }

    /// Bends scores, before the mask, so that they stay between `-cap` and `cap`: `cap * tanh(score
    /// / cap)`, as Gemma 2 does. It is finite and above zero.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{AttentionOptions, Device};
    /// let q = Device::cpu().from_vec(vec![9.0f32, -9.0], [2, 1]);
    /// let options = AttentionOptions::default().cap(1e-4);
    /// let found = q.scaled_dot_product_attention(&q, &q, options);
    /// assert!(found.abs().max_all().item::<f32>().await? < 0.01, "scores are nearly equal");
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    pub fn cap(mut self, cap: f64) -> AttentionOptions {
        self.cap = Some(cap);
        self
    }

    /// Refuses a cap that is none.
    fn bends(&self) -> std::result::Result<(), Refusal> {
        match self.cap {
            Some(cap) if !cap.is_finite() || cap <= 0.0 => {
                Err(Refusal::argument(format!("takes a finite cap above zero, not {cap}")))
            }
            _ => Ok(()),
        }
    }

    /// Over pages, a query sees only the last `keys` of the keys that it would see otherwise, as in
    /// Mistral, and in some layers of Gemma.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{AttentionOptions, DType, Device};
    /// let device = Device::cpu();
    /// let values = device.arange(0.0, 6.0, 1.0).reshape([1, 6, 1, 1]);
    /// let (keys, table) = (device.zeros([1, 6, 1, 1]), device.zeros_dtype([1, 1], DType::I64));
    /// let lengths = device.full_dtype([1], 5, DType::I64);
    /// let options = AttentionOptions::default().window(2);
    /// let found = device.ones([1, 1, 1])
    ///     .paged_attention(&keys, &values, &table, &lengths, options);
    /// assert_eq!(found.to_vec::<f32>().await?, [(3.0 + 4.0) / 2.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    pub fn window(mut self, keys: usize) -> AttentionOptions {
        self.window = Some(keys);
        self
    }

    /// Grouped-query attention: consecutive query heads share a head of keys and values. Heads are
    /// the dimension before the last two. PyTorch's `enable_gqa`.
    pub fn grouped(mut self, grouped: bool) -> AttentionOptions {
        self.grouped = grouped;
        self
    }

    /// The number of keys for each row of the first dimensions, usually `[batch]`: keys beyond it
    /// are neither seen nor computed. Integers; a length above the number of keys means all keys, a
    /// negative one means none.
    pub fn lengths(mut self, lengths: impl AsRef<TensorFuture>) -> AttentionOptions {
        self.lengths = Some(lengths.as_ref().clone());
        self
    }

    /// The probability of dropping a weight.
    pub fn dropout(mut self, p: f64) -> AttentionOptions {
        self.dropout = p;
        self
    }

    /// The rows are sequences of these lengths, one after the other, and a query sees only keys of
    /// its own sequence. This is a batch of texts without padding, so the rest of the model
    /// computes no padding either. Adjacent sequences of equal length share a step. It cannot be
    /// combined with a mask or with lengths.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{AttentionOptions, Device};
    /// let q = Device::cpu().zeros([4, 1]);
    /// let v = Device::cpu().arange(0.0, 4.0, 1.0).unsqueeze(1);
    /// let found = q
    ///     .scaled_dot_product_attention(&q, &v, AttentionOptions::default().sequences([1, 3]));
    /// assert_eq!(found.to_vec::<f32>().await?, [0.0, 2.0, 2.0, 2.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    pub fn sequences(mut self, lengths: impl Into<Vec<usize>>) -> AttentionOptions {
        self.sequences = Some(lengths.into());
        self
    }
}

/// Refuses operands that do not fit each other.
fn checked(q: &TensorFuture, k: &TensorFuture, v: &TensorFuture) -> Result<(), Refusal> {
    float(q)?;
    if k.dtype() != q.dtype() || v.dtype() != q.dtype() {
        return Err(Refusal::dtype(format!(
            "types differ: {}, {} and {}",
            q.dtype(),
            k.dtype(),
            v.dtype()
        )));
    }
    let ends = |x: &TensorFuture| match x.dims() {
        [.., rows, width] => Some((*rows, *width)),
        _ => None,
    };
    match (ends(q), ends(k), ends(v)) {
        (Some((_, wide)), Some((keys, other)), Some((values, _)))
            if wide == other && keys == values =>
        {
            Ok(())
        }
        _ => Err(Refusal::shape(format!("{}, {} and {}", q.shape(), k.shape(), v.shape()))),
    }
}

/// The dimensions before the last two.
fn lead(x: &TensorFuture) -> Shape {
    Shape::from(&x.dims()[..x.rank().saturating_sub(2)])
}

/// Lengths as int64, one for each batch element; their dimensions are the first dimensions of the
/// batch.
fn lengths_of(lengths: &TensorFuture, all: [&TensorFuture; 3]) -> Result<TensorFuture, Refusal> {
    indices(&lengths.node.meta)?;
    let [q, k, v] = all.map(lead);
    let batch = q.broadcast(&k).and_then(|batch| batch.broadcast(&v));
    let batch = batch.ok_or_else(|| Refusal::shape(format!("batches {q}, {k} and {v}")))?;
    let mut shape = lengths.dims().to_vec();
    shape.resize(shape.len().max(batch.rank()), 1);
    Ok(lengths.to_dtype(DType::I64).reshape(shape).expand(batch.dims()))
}

/// Queries, keys, values and a mask with heads in groups: a group is the query heads of one key
/// head.
fn in_groups(
    [q, k, v]: [&TensorFuture; 3],
    mask: Option<&TensorFuture>,
) -> Result<([TensorFuture; 3], Option<TensorFuture>), Refusal> {
    let heads = |x: &TensorFuture| x.rank().checked_sub(3).map(|d| x.dims()[d]);
    let (own, shared) = match [q, k, v].map(heads) {
        [Some(own), Some(k), Some(v)] if k == v && k > 0 && own % k == 0 => (own, k),
        _ => {
            let text = format!(
                "heads of {}, {} and {} do not form groups",
                q.shape(),
                k.shape(),
                v.shape()
            );
            return Err(Refusal::shape(text));
        }
    };
    let split = |x: &TensorFuture, n: usize| {
        let (mut shape, at) = (x.dims().to_vec(), x.rank() - 3);
        shape.splice(at..at + 1, if n == 1 { [1, 1] } else { [shared, own / shared] });
        x.reshape(shape)
    };
    let mask = mask.map(|mask| heads(mask).map_or_else(|| mask.clone(), |n| split(mask, n)));
    Ok(([split(q, own), k.unsqueeze(-3), v.unsqueeze(-3)], mask))
}

/// Size of the scores in bytes from which a host computes them in blocks even on the tape. Smaller
/// scores fit in its caches, and are kept for the gradient, which would have to recompute them: 64
/// heads of 64 by 64, forward and backward, took 520 us, and 1,020 us in blocks.
const BLOCKED_FROM: usize = 4 << 20;

/// The number of queries that is worth a block of a GPU, and of keys that one block may process for
/// fewer queries.
const QUERIES: usize = 16;
const KEYS: usize = 512;

/// The operands as one batch, if a kernel that never stores all scores exists and is worthwhile.
fn blocked(
    op: &Attention,
    q: &TensorFuture,
    k: &TensorFuture,
    v: &TensorFuture,
    mask: Option<&TensorFuture>,
    lengths: Option<&TensorFuture>,
) -> Option<Vec<TensorFuture>> {
    let (rows, keys) = (q.dims()[q.rank() - 2], k.dims()[k.rank() - 2]);
    let mut batch = lead(q).broadcast(&lead(k))?.broadcast(&lead(v))?;
    if let Some(mask) = mask {
        let fits = takes_mask(q.dtype(), mask.dtype());
        if !fits || !mask.shape().broadcast(&Shape::from([rows, keys]))?.ends_with(&[rows, keys]) {
            return None;
        }
        batch = batch.broadcast(&lead(mask))?;
    }
    let scores =
        batch.numel().saturating_mul(rows.saturating_mul(keys)).saturating_mul(q.dtype().size());
    let worth = match q.port().profile.in_memory {
        // For a single query, keys and values are read in place: a copy into blocks takes twice
        // the time.
        true => {
            rows > 1
                && (scores >= BLOCKED_FROM || !is_for_gradient([Some(q), Some(k), Some(v), mask]))
        }
        false => rows >= QUERIES || keys <= KEYS,
    };
    // Only the block kernels leave out keys beyond the lengths.
    if !(worth || op.lengths) || batch.rank() > 14 || !q.port().runner.has_kernel(op) {
        return None;
    }
    let full = |x: &TensorFuture, tail: [usize; 2]| {
        let shape: Vec<usize> = batch.iter().copied().chain(tail).collect();
        x.expand(shape)
    };
    let tail = |x: &TensorFuture| [x.dims()[x.rank() - 2], x.dims()[x.rank() - 1]];
    let mut out = vec![full(q, tail(q)), full(k, tail(k)), full(v, tail(v))];
    out.extend(mask.map(|mask| full(mask, [rows, keys])));
    out.extend(lengths.map(|lengths| lengths.expand(batch.dims())));
    Some(out)
}

/// Whether results of these operands go on the tape.
fn is_for_gradient(of: [Option<&TensorFuture>; 4]) -> bool {
    is_taping() && of.into_iter().flatten().any(TensorFuture::is_on_tape)
}

/// Attention.
impl TensorFuture {
    /// `softmax(self key^T * scale + mask) value`, for queries `[..., queries, width]`, keys `[...,
    /// keys, width]` and values `[..., keys, out]` (Vaswani et al. 2017, arXiv:1706.03762). A query
    /// that sees no key gives zeros, as in PyTorch. A large matrix of scores is never stored as a
    /// whole, and neither is that of the gradient, unless the gradient has a gradient itself, the
    /// mask has one, or scores have a [`cap`](AttentionOptions::cap). (On the tape of a host a
    /// small one is kept for the gradient, and the last bits may differ from those off the tape.)
    /// [`grouped`](AttentionOptions::grouped) lets several heads share keys and values,
    /// [`lengths`](AttentionOptions::lengths) skips the padding of each row.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{AttentionOptions, Device};
    /// let device = Device::cpu();
    /// let (q, v) = (device.zeros([2, 1]), device.from_vec(vec![1.0f32, 3.0], [2, 1]));
    /// let all = q.scaled_dot_product_attention(&q, &v, ());
    /// assert_eq!(all.to_vec::<f32>().await?, [2.0, 2.0]);
    /// let causal = q
    ///     .scaled_dot_product_attention(&q, &v, AttentionOptions::default().causal(true));
    /// assert_eq!(causal.to_vec::<f32>().await?, [1.0, 2.0]);
    ///
    /// // Two rows, with one and two keys; four query heads on two key heads.
    /// let (q, v) = (device.zeros([2, 4, 1, 1]), v.expand([2, 2, 2, 1]));
    /// let options = AttentionOptions::default().grouped(true).lengths(device.arange(1, 3, 1));
    /// let found = q.scaled_dot_product_attention(device.zeros([2, 2, 2, 1]), &v, options);
    /// assert_eq!(found.to_vec::<f32>().await?, [1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn scaled_dot_product_attention(
        &self,
        key: impl AsRef<TensorFuture>,
        value: impl AsRef<TensorFuture>,
        options: impl Into<AttentionOptions>,
    ) -> TensorFuture {
        let (key, value, options) = (key.as_ref(), value.as_ref(), options.into());
        let at: At = Location::caller();
        if let Some([q, k, v]) = &mixed::each_narrowed(&[self, key, value], at).as_deref() {
            return q.scaled_dot_product_attention(k, v, options);
        }
        if let Err(refusal) = checked(self, key, value) {
            return build::refused("scaled_dot_product_attention", self, refusal, at);
        }
        let _within = build::within("scaled_dot_product_attention", at);
        let refused =
            |refusal: Refusal| build::refused("scaled_dot_product_attention", self, refusal, at);
        if options.window.is_some() {
            return refused(Refusal::argument("takes a window over pages alone"));
        }
        if let Err(refusal) = options.bends() {
            return refused(refusal);
        }
        if options.grouped {
            return match in_groups([self, key, value], options.mask.as_ref()) {
                Ok(([q, k, v], mask)) => {
                    let options = AttentionOptions { grouped: false, mask, ..options };
                    q.scaled_dot_product_attention(k, v, options).flatten(-4, -3)
                }
                Err(refusal) => refused(refusal),
            };
        }
        if let Some(lengths) = &options.sequences {
            return self.by_sequence(key, value, lengths, &options).unwrap_or_else(refused);
        }
        let lengths = match options.lengths.as_ref().map(|of| lengths_of(of, [self, key, value])) {
            Some(Err(refusal)) => return refused(refusal),
            lengths => lengths.and_then(Result::ok),
        };
        let width = self.dims()[self.rank() - 1];
        let scale = options.scale.unwrap_or_else(|| scale_of(width));
        let op = Attention { scale, causal: options.causal, lengths: lengths.is_some() };
        let at_once =
            |q: &TensorFuture, k: &TensorFuture, v: &TensorFuture, mask: Option<&TensorFuture>| {
                let operands = (options.dropout == 0.0 && options.cap.is_none())
                    .then(|| blocked(&op, q, k, v, mask, lengths.as_ref()))??;
                let operands: Vec<&TensorFuture> = operands.iter().collect();
                Some(build::custom(Arc::new(op), &operands, at).to_dtype(self.dtype()))
            };
        // A GPU takes halves as they are.
        if !self.port().profile.in_memory
            && let Some(found) = at_once(self, key, value, options.mask.as_ref())
        {
            return found;
        }
        let (q, k, v) = (self.wide(), key.wide(), value.wide());
        let mut mask = options.mask.as_ref().map(TensorFuture::wide);
        if let Some(found) = at_once(&q, &k, &v, mask.as_ref()) {
            return found;
        }
        if let Some(lengths) = &lengths {
            mask = Some(within_lengths(mask.as_ref(), lengths, key.dims()[key.rank() - 2]));
        }
        let weights = weights(&q, &k, mask.as_ref(), (scale, options.cap), options.causal);
        let weights =
            if options.dropout > 0.0 { weights.dropout(options.dropout) } else { weights };
        weights.matmul(v).to_dtype(self.dtype())
    }

    /// Attention within each sequence; adjacent sequences of equal length run together.
    #[track_caller]
    fn by_sequence(
        &self,
        key: &TensorFuture,
        value: &TensorFuture,
        lengths: &[usize],
        options: &AttentionOptions,
    ) -> Result<TensorFuture, Refusal> {
        if options.mask.is_some() || options.lengths.is_some() {
            return Err(Refusal::argument("takes neither a mask nor lengths beside sequences"));
        }
        let [queries, keys] = [self, key].map(|x| x.dims()[x.rank() - 2]);
        let all = lengths.iter().try_fold(0usize, |n, &length| n.checked_add(length));
        if [queries, keys].map(Some) != [all; 2] {
            let all = all.map_or_else(|| "more".into(), |all| all.to_string());
            let (queries, keys) =
                (number_of(queries, "query", "queries"), number_of(keys, "key", "keys"));
            let text = format!("sequences of {all} together, beside {queries} and {keys}");
            return Err(Refusal::shape(text));
        }
        let options = AttentionOptions { sequences: None, ..options.clone() };
        let (mut from, mut found) = (0, Vec::new());
        for same in lengths.chunk_by(|a, b| a == b) {
            let (n, length) = (same.len(), same[0]);
            let part = |x: &TensorFuture| {
                let mut dims = x.dims().to_vec();
                dims.splice(x.rank() - 2..x.rank() - 1, [n, length]);
                x.narrow(-2, from, n * length).reshape(dims)
            };
            let part =
                part(self).scaled_dot_product_attention(part(key), part(value), options.clone());
            found.push(part.flatten(-3, -2));
            from += n * length;
        }
        Ok(match &found[..] {
            [] => self.scaled_dot_product_attention(key, value, options),
            [one] => one.clone(),
            all => cat(all, -2),
        })
    }

    /// Rotary position embedding (Su et al. 2021, arXiv:2104.09864): rotates pairs of numbers in
    /// the last dimension, `(a, b)` to `(a cos - b sin, a sin + b cos)`. A pair is an element of
    /// the first half with its counterpart in the second half, as in Llama files from Hugging Face;
    /// or two adjacent elements if `interleaved`, as in the paper.
    ///
    /// `cosine` and `sine` have half the width and are broadcast, for example one row per position:
    /// `[length, width / 2]` for `[batch, heads, length, width]`. The caller may thus scale the
    /// frequencies. Halves are computed in float32.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let x = device.from_vec(vec![1.0f32, 2.0, 3.0, 4.0], [1, 4]);
    /// // Rotates one pair by a right angle, and the other not at all.
    /// let (cosine, sine) =
    ///     (device.from_vec(vec![0.0f32, 1.0], [2]), device.from_vec(vec![1.0f32, 0.0], [2]));
    /// assert_eq!(x.rope(&cosine, &sine, false).to_vec::<f32>().await?, [-3.0, 2.0, 1.0, 4.0]);
    /// assert_eq!(x.rope(&cosine, &sine, true).to_vec::<f32>().await?, [-2.0, 1.0, 3.0, 4.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[doc(alias = "rotary")]
    #[track_caller]
    pub fn rope(
        &self,
        cosine: impl AsRef<TensorFuture>,
        sine: impl AsRef<TensorFuture>,
        interleaved: bool,
    ) -> TensorFuture {
        let at: At = Location::caller();
        let _within = build::within("rope", at);
        let mut shape = self.dims().to_vec();
        if let Some(width) = shape.last_mut() {
            *width /= 2;
        }
        let table = |of: &TensorFuture| of.to_dtype(self.dtype().wide()).expand(&shape[..]);
        let tables = [table(cosine.as_ref()), table(sine.as_ref())];
        custom(Arc::new(Rope { interleaved }), &[self, &tables[0], &tables[1]], at)
    }

    /// Attention over keys and values `[pages, page, key heads, width]` that are stored in pages,
    /// as in a cache of many sequences. `self` is `[batch, queries, heads, width]`, or `[batch,
    /// heads, width]` with one query each; consecutive heads share a key head. Row `b` of `table`,
    /// `[batch, most]`, names the pages of a sequence of `lengths[b]` keys; pages beyond the length
    /// are not read. With one page per row this is a batch of plain caches.
    ///
    /// With `causal`, query `j` of `n` is at key `lengths[b] - n + j` and sees no later key. A
    /// query that sees no key gives zeros. Keys and values may be halves when the queries are
    /// float32. The bits of a query's result do not depend on other queries, on pages, or on
    /// threads.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// // Three pages of two keys; a sequence of three keys in pages 2 and 0.
    /// let values = device.arange(0.0, 6.0, 1.0).reshape([3, 2, 1, 1]);
    /// let keys = device.zeros([3, 2, 1, 1]);
    /// let table = device.from_vec(vec![2i64, 0], [1, 2]);
    /// let lengths = device.full_dtype([1], 3, futensor::DType::I64);
    /// let found = device.ones([1, 1, 1]).paged_attention(&keys, &values, &table, &lengths, ());
    /// assert_eq!(found.to_vec::<f32>().await?, [(4.0 + 5.0 + 0.0) / 3.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// The value fails if shapes or types do not fit each other; if the options have a mask,
    /// lengths, dropout, or a cap that is not above zero; if a length exceeds the room in its row
    /// of the table; or if a page does not exist.
    #[track_caller]
    pub fn paged_attention(
        &self,
        key: impl AsRef<TensorFuture>,
        value: impl AsRef<TensorFuture>,
        table: impl AsRef<TensorFuture>,
        lengths: impl AsRef<TensorFuture>,
        options: impl Into<AttentionOptions>,
    ) -> TensorFuture {
        let (at, options): (At, AttentionOptions) = (Location::caller(), options.into());
        let _within = build::within("paged_attention", at);
        let hides =
            options.mask.is_some() || options.lengths.is_some() || options.sequences.is_some();
        if hides || options.dropout != 0.0 {
            let refusal =
                Refusal::argument("has its own lengths, and takes no mask and no dropout");
            return build::refused("paged_attention", self, refusal, at);
        }
        if let Err(refusal) = options.bends() {
            return build::refused("paged_attention", self, refusal, at);
        }
        let one = self.rank() == 3;
        let q = if one { self.wide().unsqueeze(1) } else { self.wide() };
        let width = self.dims().last().copied().unwrap_or(1);
        let scale = options.scale.unwrap_or_else(|| scale_of(width));
        let AttentionOptions { cap, window, causal, .. } = options;
        let op = PagedAttention { scale, cap, window, causal };
        let found = custom(
            Arc::new(op),
            &[&q, key.as_ref(), value.as_ref(), table.as_ref(), lengths.as_ref()],
            at,
        );
        let found = if one { found.squeeze(1) } else { found };
        found.to_dtype(self.dtype())
    }
}

/// The default factor of the scores. Rows of width 0 have score zero.
fn scale_of(width: usize) -> f64 {
    1.0 / (width.max(1) as f64).sqrt()
}

#[cfg(test)]
#[path = "scaled_tests.rs"]
mod tests;
