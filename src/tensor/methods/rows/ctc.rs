//! The loss of a sequence without an alignment.

use super::losses::{LossOptions, Reduction, reduced};
use crate::dtype::DType;
use crate::error::number_of;
use crate::graph::operation::Refusal;
use crate::tensor::build::{self, At, mixed};
use crate::tensor::future::TensorFuture;
use crate::tensor::methods::reduce::stats::float;
use std::panic::Location;

/// The logarithm of a chance that is none: finite, since a difference of infinities has no slope.
const NEVER: f64 = -1e30;

/// Connectionist temporal classification.
impl TensorFuture {
    /// Minus the log probability of `targets` `[batch, length]` given these log probabilities
    /// `[steps, batch, classes]`, over all alignments (Graves et al. 2006). Between and around
    /// labels an alignment may have the class `blank`; equal labels that follow each other have
    /// one between them. `steps` and `lengths` are vectors with the numbers of each sequence that
    /// count; the loss fails where one is negative or more than there are.
    ///
    /// A sequence without an alignment has an infinite loss, and NaN for its gradient, as in
    /// PyTorch; `zero_infinity` makes both 0. One of no steps and no labels has a loss of 0. A mean
    /// divides each loss by the length of its target first, as PyTorch's.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let logs = device.zeros([2, 1, 2]).log_softmax(-1);
    /// let one = |n: i64| device.from_vec(vec![n], [1]);
    /// let targets = device.from_vec(vec![1i64], [1, 1]);
    /// // "1 1", "1 blank" and "blank 1", of four
    /// let loss = logs.ctc_loss(&targets, one(2), one(1), 0, false, ());
    /// assert!((loss.item::<f32>().await? + 0.75f32.ln()).abs() < 1e-6);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[doc(alias = "CTCLoss")]
    #[track_caller]
    pub fn ctc_loss(
        &self,
        targets: impl AsRef<TensorFuture>,
        steps: impl AsRef<TensorFuture>,
        lengths: impl AsRef<TensorFuture>,
        blank: usize,
        zero_infinity: bool,
        options: impl Into<LossOptions>,
    ) -> TensorFuture {
        let (targets, steps, lengths) = (targets.as_ref(), steps.as_ref(), lengths.as_ref());
        let (options, at): (LossOptions, At) = (options.into(), Location::caller());
        if let Some(x) = mixed::widened(self, at) {
            return x.ctc_loss(targets, steps, lengths, blank, zero_infinity, options);
        }
        let refuse = |refusal| build::refused("ctc_loss", self, refusal, at);
        if let Err(refusal) = float(self) {
            return refuse(refusal);
        }
        if let Some(wrong) = [targets, steps, lengths].iter().find(|x| !x.dtype().is_int()) {
            let text = format!("labels and lengths are integers, not {}", wrong.dtype());
            return refuse(Refusal::dtype(text));
        }
        let (&[time, batch, classes], &[rows, width]) = (self.dims(), targets.dims()) else {
            let text = format!("targets of {} for {}", targets.shape(), self.shape());
            return refuse(Refusal::shape(text));
        };
        if rows != batch || steps.dims() != [batch] || lengths.dims() != [batch] || time == 0 {
            let (steps, lengths) = (steps.shape(), lengths.shape());
            let text = format!(
                "targets of {} with lengths of {steps} and {lengths} for {}",
                targets.shape(),
                self.shape()
            );
            return refuse(Refusal::shape(text));
        }
        if blank >= classes {
            let classes = number_of(classes, "class", "classes");
            let text = format!("the blank {blank} is not one of {classes}");
            return refuse(Refusal::argument(text));
        }
        let _within = build::within("ctc_loss", at);
        let device = self.device();
        let whole = |x: &TensorFuture| x.to_dtype(DType::I64);
        // A length that is longer than there can be is an index that is out of range.
        let up_to = |most: usize, x: &TensorFuture| {
            device.arange(0, most as i64 + 1, 1).unsqueeze(1).embedding(whole(x)).squeeze(1)
        };
        let (steps, lengths) = (&up_to(time, steps), &up_to(width, lengths));
        // Padding may have any label.
        let inside = device.arange(0, width as i64, 1).lt(whole(lengths).unsqueeze(1));
        let labels = inside.where_cond(whole(targets), blank as i64);
        // A blank before each label, and one behind the last: a state each.
        let blanks = device.full_dtype([batch, width], blank as i64, DType::I64);
        let pairs = crate::stack(&[&blanks, &labels], 2).reshape([batch, 2 * width]);
        let last = device.full_dtype([batch, 1], blank as i64, DType::I64);
        let states = crate::cat(&[&pairs, &last], 1);
        let count = 2 * width + 1;
        // A label may follow another one at once, if that is another.
        let skips = states.ne(states.roll(2, 1)).logical_and(states.ne(blank as i64));
        let skips = skips.logical_and(device.arange(0, count as i64, 1).ge(2));
        let index = states.unsqueeze(0).expand([time, batch, count]);
        let emitted = self.wide().gather(2, index).clamp_min(NEVER);
        let never = device.full_dtype([batch, 2.min(count)], NEVER, emitted.dtype());
        let behind = |x: &TensorFuture, by: usize| {
            let by = by.min(count);
            crate::cat(&[&never.narrow(1, 0, by), &x.narrow(1, 0, count - by)], 1)
        };
        let starts = device.arange(0, count as i64, 1).lt(2);
        let mut chance = starts.where_cond(emitted.i(0), NEVER);
        let steps = whole(steps).unsqueeze(1);
        // Before any step it is in the first state, for certain.
        let first = device.arange(0, count as i64, 1).lt(1);
        let none = first.where_cond(chance.zeros_like(), NEVER);
        chance = steps.gt(0).where_cond(&chance, none);
        for t in 1..time {
            let follows = skips.where_cond(behind(&chance, 2), NEVER);
            let next = chance.logaddexp(behind(&chance, 1)).logaddexp(follows);
            let next = (next + emitted.i(t as isize)).clamp_min(NEVER);
            chance = steps.gt(t as i64).where_cond(next, chance);
        }
        // The last label, or the blank behind it.
        let end = whole(lengths).unsqueeze(1) * 2;
        let label = chance.gather(1, (&end - 1).clamp_min(0));
        let label = end.gt(0).where_cond(label, NEVER);
        let loss = -chance.gather(1, &end).logaddexp(label).squeeze(1);
        let endless = loss.gt(-NEVER / 2.0);
        let mut loss = match zero_infinity {
            true => endless.where_cond(0.0, loss),
            false => endless.where_cond(1.0, loss) / self.nothing_where(&endless, &steps),
        };
        if options.reduction == Reduction::Mean {
            loss = loss / whole(lengths).clamp_min(1).to_dtype(self.dtype().wide());
        }
        reduced(&loss, options.reduction, self.dtype())
    }

    /// 1 for each sequence, and 0 where it is `endless`: what flows back through a division by that
    /// is NaN, at each of its steps.
    #[track_caller]
    fn nothing_where(&self, endless: &TensorFuture, steps: &TensorFuture) -> TensorFuture {
        if self.tape.is_none() {
            return endless.where_cond(0.0, self.device().ones_dtype((), self.dtype().wide()));
        }
        let counted = self.device().arange(0, self.dims()[0] as i64, 1).unsqueeze(1);
        let lost = counted.lt(steps.squeeze(1)).logical_and(endless).unsqueeze(2);
        // Finite, whatever the logarithms are; and no -0.
        let any = lost.where_cond(self.wide().tanh(), 0.0).sum([0, 2]);
        endless.where_cond(any.square() * 0.0, 1.0)
    }
}
