//! Choosing by weight, with the same choice on every device: weights are counted as whole numbers,
//! whose sums do not depend on an order.

use crate::dtype::DType;
use crate::graph::operation::Refusal;
use crate::host::kernels::index::WHOLE;
use crate::ops::index::top_p::{TopP, weights};
use crate::tensor::build::{self, At, custom};
use crate::tensor::device::Device;
use crate::tensor::future::TensorFuture;
use crate::tensor::generator::Generator;
use crate::tensor::operand::{Operand, OperandRef};
use std::panic::Location;
use std::sync::Arc;

/// # Choosing by weight
///
/// Weights are numbers of 0 and above, of any sum: probabilities, or what `exp` makes of logits
/// that the largest was subtracted from (by a temperature, where one is wished for). They lie in
/// rows along the last dimension, of at most 2^24.
impl TensorFuture {
    /// Each row with zeros for all but the largest weights that together have the share `p` of the
    /// whole, the last of them included: nucleus sampling (Holtzman et al. 2020, arXiv:1904.09751)
    /// is [`categorical`](Self::categorical) of it. `p` is a number, or one for each row, `[..,
    /// 1]`.
    ///
    /// Of equal weights those at lower places come first, and the first of all is always there. A
    /// share of 1 or more leaves the row as it is, as does one without weight. Nothing is sorted.
    /// The result is the same on every device.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let weights = device.from_vec(vec![1.0f32, 4.0, 3.0, 2.0], [4]);
    /// assert_eq!(weights.top_p(0.7).to_vec::<f32>().await?, [0.0, 4.0, 3.0, 0.0]);
    /// assert_eq!(weights.top_p(0.71).to_vec::<f32>().await?, [0.0, 4.0, 3.0, 2.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn top_p(&self, p: impl Operand) -> TensorFuture {
        let at: At = Location::caller();
        let _within = build::within("top_p", at);
        let mut shape = self.dims().to_vec();
        if let Some(n) = shape.last_mut() {
            *n = 1;
        }
        let share = match p.operand() {
            OperandRef::Tensor(p) => p.to_dtype(DType::F64).expand(shape),
            OperandRef::Scalar(p) => self.device().full_dtype(shape, p, DType::F64),
        };
        custom(Arc::new(TopP), &[self, &share], at)
    }

    /// Places drawn by weight, as int64: for each number in `draws`, `[.., any]` and uniform in [0,
    /// 1), the first place where the sum of the row's weights so far is above that share of the
    /// whole.
    ///
    /// [`Generator::categorical`] draws the numbers as well. A number of one's own for each row
    /// makes a row's choice independent of who else is drawn for. A row without weight, or with one
    /// that is not a number, gives its length, which no place has. The result is the same on every
    /// device.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let weights = device.from_vec(vec![1.0f32, 0.0, 3.0], [3]);
    /// let draws = device.from_vec(vec![0.0f32, 0.24, 0.25, 0.99], [4]);
    /// assert_eq!(weights.categorical(draws).to_vec::<i64>().await?, [0, 0, 2, 2]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn categorical(&self, draws: impl AsRef<TensorFuture>) -> TensorFuture {
        let (draws, at) = (draws.as_ref(), Location::caller());
        let _within = build::within("categorical", at);
        let lead = self.rank().saturating_sub(1);
        let refusal = match weights(&self.node.meta) {
            Err(refusal) => Some(refusal),
            Ok(()) if self.dims()[lead] == 0 => Some(Refusal::argument("a row of no weights")),
            Ok(()) if !draws.dtype().is_float() => {
                Some(Refusal::dtype(format!("draws are floats, not {}", draws.dtype())))
            }
            Ok(()) if draws.rank() != lead + 1 || draws.dims()[..lead] != self.dims()[..lead] => {
                let text = format!("draws of shape {} for weights {}", draws.shape(), self.shape());
                Some(Refusal::shape(text))
            }
            Ok(()) => None,
        };
        if let Some(refusal) = refusal {
            return build::refused("categorical", self, refusal, at);
        }
        let wide = self.stop_gradient().to_dtype(DType::F64);
        let scale = WHOLE as f64 / wide.max_keepdim(-1).clamp_min(0);
        let parts = (wide * scale).clamp_min(0).minimum(WHOLE as i64);
        let sums = parts.to_dtype(DType::I64).cumsum(-1);
        let total = sums.narrow(-1, self.dims()[lead] - 1, 1);
        // No draw reaches the end of the last weight, however the product is rounded.
        let target = (draws.to_dtype(DType::F64) * &total).to_dtype(DType::I64);
        let target = target.minimum(total - 1).clamp_min(0);
        sums.unsqueeze(-2).le(target.unsqueeze(-1)).sum(-1)
    }
}

impl Generator {
    /// `n` places for each row of weights, drawn by weight and with replacement: see
    /// [`TensorFuture::categorical`].
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, Generator};
    /// let weights = Device::cpu().from_vec(vec![1.0f32, 0.0, 1.0], [3]);
    /// let places = Generator::new(5).categorical(&weights, 1000).to_vec::<i64>().await?;
    /// let last = places.iter().filter(|&&place| place == 2).count();
    /// assert!((450..550).contains(&last) && !places.contains(&1));
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn categorical(&self, weights: impl AsRef<TensorFuture>, n: usize) -> TensorFuture {
        let weights = weights.as_ref();
        let _within = build::within("categorical", Location::caller());
        let mut shape = weights.dims().to_vec();
        if let Some(last) = shape.last_mut() {
            *last = n;
        }
        let device: &Device = &weights.device();
        weights.categorical(self.rand(device, shape))
    }
}

#[cfg(test)]
mod tests {
    use crate::{DType, Device, Generator, TensorFuture};

    async fn counts(places: TensorFuture, n: usize) -> Vec<f64> {
        let mut counts = vec![0.0; n];
        places
            .to_vec::<i64>()
            .await
            .unwrap()
            .iter()
            .for_each(|&place| counts[place as usize] += 1.0);
        counts
    }

    #[tokio::test]
    async fn places_are_drawn_as_often_as_their_weights_say() {
        let device = Device::cpu();
        let weights = [4.0f32, 0.0, 1.0, 0.5, 2.5, 1e-3, 0.0, 1.999];
        let total: f64 = weights.iter().map(|&w| w as f64).sum();
        let row = device.from_vec(weights.to_vec(), [8]);
        // Even draws: each place takes its share of them, but for the one that a border may lie in.
        let even = device.arange(0, 100_000, 1).to_dtype(DType::F64) / 100_000.0;
        for (place, count) in counts(row.categorical(even), 8).await.into_iter().enumerate() {
            let want = weights[place] as f64 / total * 1e5;
            assert!((count - want).abs() <= 1.0, "{place}: {count}, {want}");
        }
        // Random ones: chi-square of six free counts is above 27 once in 10,000 times.
        for dtype in [DType::F32, DType::F64, DType::BF16] {
            let row = row.to_dtype(dtype);
            let drawn = counts(Generator::new(11).categorical(&row, 100_000), 8).await;
            let exact = row.to_dtype(DType::F64).to_vec::<f64>().await.unwrap();
            let total: f64 = exact.iter().sum();
            let distance = |(count, weight): (&f64, &f64)| match weight / total * 1e5 {
                0.0 => count * 1e9,
                want => (count - want).powi(2) / want,
            };
            let sum: f64 = drawn.iter().zip(&exact).map(distance).sum();
            assert!(sum < 27.0, "{dtype}: {sum}");
        }
    }

    #[tokio::test]
    async fn a_rows_choice_does_not_depend_on_the_others() {
        let device = Device::cpu();
        let weights = Generator::new(3).rand(&device, [50, 700]).top_p(0.6);
        let draws = Generator::new(4).rand(&device, [50, 2]);
        let all = weights.categorical(&draws).to_vec::<i64>().await.unwrap();
        let of = weights.to_vec::<f32>().await.unwrap();
        for row in 0..50 {
            let one = weights.i(row as isize).categorical(draws.i(row as isize));
            let places = one.to_vec::<i64>().await.unwrap();
            assert_eq!(places, all[2 * row..2 * row + 2]);
            assert!(places.iter().all(|&place| of[row * 700 + place as usize] > 0.0));
        }
    }

    #[tokio::test]
    async fn rows_without_weight_give_no_place() {
        let device = Device::cpu();
        for wrong in [[0.0f32, 0.0], [-1.0, -2.0], [1.0, f32::NAN]] {
            let row = device.from_vec(wrong.to_vec(), [2]);
            let place = row.categorical(device.zeros([1]));
            assert_eq!(place.item::<i64>().await.unwrap(), 2, "{wrong:?}");
            assert!(row.gather(0, place).await.unwrap_err().is_index());
        }
    }
}
