//! `pad`: adds elements around a value.

use crate::dtype::{DType, Scalar};
use crate::error::number_of;
use crate::graph::node::Op;
use crate::graph::operation::Refusal;
use crate::ops::index::along::Along;
use crate::ops::index::places::{Axis, PadMode, Rule};
use crate::ops::shaping::slice_assign::SliceAssign;
use crate::shape::Shape;
use crate::tensor::build::{self, At};
use crate::tensor::dims::{Dims, Index, resolve};
use crate::tensor::future::TensorFuture;
use std::panic::Location;
use std::sync::Arc;

/// Pairs of counts for the last dimensions, starting with the last one.
fn pairs(x: &TensorFuture, counts: &[isize]) -> Result<Vec<(usize, [isize; 2])>, Refusal> {
    if !counts.len().is_multiple_of(2) || counts.len() / 2 > x.rank() {
        return Err(Refusal::argument(format!(
            "{counts:?} are not pairs for the dimensions of {}",
            x.shape()
        )));
    }
    // The limit is far beyond any memory; sums of counts below it do not overflow.
    if let Some(count) = counts.iter().find(|c| c.unsigned_abs() > isize::MAX as usize / 4) {
        return Err(Refusal::argument(format!("a count of {count} is too large")));
    }
    let mut out = Vec::new();
    for (i, pair) in counts.chunks(2).enumerate() {
        let d = x.rank() - 1 - i;
        if x.dims()[d] > isize::MAX as usize / 4 {
            return Err(Refusal::shape(format!(
                "dimension {d} of {} is larger than any memory",
                x.shape()
            )));
        }
        if (x.dims()[d] as isize)
            .checked_add(pair[0])
            .and_then(|n| n.checked_add(pair[1]))
            .is_none_or(|n| n < 0)
        {
            return Err(Refusal::shape(format!(
                "nothing is left of dimension {d} of {}",
                x.shape()
            )));
        }
        out.push((d, [pair[0], pair[1]]));
    }
    Ok(out)
}

/// Padding. Nothing waits.
impl TensorFuture {
    /// Adds `value` around the elements: two counts, before and after, for the last dimension, then
    /// two for the dimension before it, and so on, as PyTorch's `pad`. Negative counts remove
    /// elements.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().ones([1, 2]);
    /// let y = x.pad([1, 0, 0, 1], 0.0);
    /// assert_eq!(y.dims(), [2, 3]);
    /// assert_eq!(y.to_vec::<f32>().await?, [0.0, 1.0, 1.0, 0.0, 0.0, 0.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn pad(&self, counts: impl Dims, value: impl Into<Scalar>) -> TensorFuture {
        let at: At = Location::caller();
        let pairs = match pairs(self, &counts.dims()) {
            Ok(pairs) => pairs,
            Err(refusal) => return build::refused("pad", self, refusal, at),
        };
        let _within = build::within("pad", at);
        let mut x = self.clone();
        let mut shape = self.shape().clone();
        let mut place: Vec<Index> = vec![Index::ALL; self.rank()];
        for &(d, [before, after]) in &pairs {
            let n = self.dims()[d] as isize;
            let (start, end) = ((-before).max(0), n - (-after).max(0));
            // A negative count may exceed the size, and then removes padding of the other side.
            let (first, last) = (start.min(n), end.max(0).max(start.min(n)));
            x = x.narrow(d as isize, first as usize, (last - first) as usize);
            shape.dims_mut()[d] = (n + before + after) as usize;
            let from = before.max(0).min(n + before + after);
            place[d] = Index::from(from..from + (last - first));
        }
        if shape == *x.shape() && pairs.iter().all(|(_, c)| c[0] <= 0 && c[1] <= 0) {
            return x;
        }
        let whole = build::create(self.port(), Op::Fill(value.into()), shape, self.dtype(), at);
        let op = SliceAssign::new(whole.dims(), &place, |index, n| {
            let (start, len, step) = resolve(index, n)?;
            Some((start, len, step, true))
        });
        build::custom(Arc::new(op), &[&whole, &x], at)
    }

    /// Adds elements of the value itself around it; counts are as for [`pad`](Self::pad). Elements
    /// that a negative count removes do not appear in the padding at the other end.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::PadMode;
    /// let x = futensor::Device::cpu().arange(0, 4, 1);
    /// assert_eq!(x.pad_mode([2, 1], PadMode::Reflect).to_vec::<i64>().await?,
    ///     [2, 1, 0, 1, 2, 3, 2]);
    /// assert_eq!(x.pad_mode([2, 1], PadMode::Replicate).to_vec::<i64>().await?,
    ///     [0, 0, 0, 1, 2, 3, 3]);
    /// assert_eq!(x.pad_mode([2, 1], PadMode::Circular).to_vec::<i64>().await?,
    ///     [2, 3, 0, 1, 2, 3, 0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn pad_mode(&self, counts: impl Dims, mode: PadMode) -> TensorFuture {
        let at: At = Location::caller();
        let checked = pairs(self, &counts.dims()).and_then(|pairs| {
            for &(d, [before, after]) in &pairs {
                let n = self.dims()[d] as isize;
                let most = match mode {
                    PadMode::Reflect => n - 1,
                    // The size after negative counts.
                    PadMode::Circular => n + before.min(0) + after.min(0),
                    PadMode::Replicate if n > 0 => isize::MAX,
                    PadMode::Replicate => 0,
                };
                if before.max(after) > most && before.max(after) > 0 {
                    let most = number_of(most.max(0) as usize, "element", "elements");
                    let text = format!(
                        "{} around dimension {d} of {}, which has {most} for it",
                        before.max(after),
                        self.shape()
                    );
                    return Err(Refusal::argument(text));
                }
            }
            Ok(pairs)
        });
        let pairs = match checked {
            Ok(pairs) => pairs,
            Err(refusal) => return build::refused("pad_mode", self, refusal, at),
        };
        if pairs.is_empty() {
            return self.clone();
        }
        let _within = build::within("pad_mode", at);
        let axis = |(dim, [before, after]): (usize, [isize; 2])| {
            let input = self.dims()[dim];
            let output = (input as isize + before + after) as usize;
            Axis { dim, input, output, by: Rule::Padded(mode, before as i64) }
        };
        let along = Along { name: "pad_mode", axes: pairs.iter().copied().map(axis).collect() };
        if self.port().runner.has_kernel(&along) {
            return build::custom(Arc::new(along), &[self], at);
        }
        let mut x = self.clone();
        for (d, [before, after]) in pairs {
            let n = self.dims()[d] as i64;
            let (skipped, left) =
                ((-before).max(0) as i64, n + before.min(0) as i64 + after.min(0) as i64);
            let arange = Op::Arange { start: Scalar::Int(-before as i64), step: Scalar::Int(1) };
            let count = Shape::from((n as isize + before + after) as usize);
            let places = build::create(self.port(), arange, count, DType::I64, at);
            let from = match mode {
                // Folded at 0, then at the last element.
                PadMode::Reflect => (n - 1) - ((n - 1) - places.abs()).abs(),
                PadMode::Replicate => places.clamp(0, n - 1),
                PadMode::Circular => (places - skipped).remainder(left.max(1)) + skipped,
            };
            x = x.index_select(d as isize, &from);
        }
        x
    }
}
