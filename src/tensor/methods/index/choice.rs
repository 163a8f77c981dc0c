//! Weighted choice, with the same result on every device: weights are summed as integers, so the
//! sums do not depend on the order.

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

/// # Weighted choice
///
/// Weights are non-negative numbers with any sum: probabilities, or `exp` of logits after the
/// largest was subtracted (and after a division by a temperature, if wanted). Rows of weights run
/// along the last dimension, of size at most 2^24.
impl TensorFuture {
    /// Keeps the largest weights of each row whose sum reaches the share `p` of the row's sum, and
    /// sets the others to zero. Nucleus sampling (Holtzman et al. 2020, arXiv:1904.09751) is
    /// [`categorical`](Self::categorical) of the result. `p` is a number, or one number for each
    /// row, `[.., 1]`.
    ///
    /// Equal weights are kept in the order of their positions, and the largest weight is always
    /// kept. A row stays unchanged if `p` is 1 or more, or if all its weights are 0. Nothing is
    /// sorted. The result is the same on every device.
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

    /// Draws positions by weight, as int64. `draws` is `[.., any]`, uniform in [0, 1). Each draw
    /// gives the first position at which the running sum of the row's weights exceeds the draw
    /// times the row's sum.
    ///
    /// [`Generator::categorical`] draws the random numbers as well. With a draw of its own for each
    /// row, the choice in one row does not depend on the other rows. A row whose weights are all 0,
    /// or contain NaN, gives the row's length, which is not a position. The result is the same on
    /// every device.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let weights = device.from_vec(vec![1.0f32, 0.0, 3.0], [3]);
    /// let draws = device.from_vec(vec![0.0f32, 0.24, 0.25, 0.99], [4]);
    /// assert_eq!(weights.categorical(draws).to_vec::<i64>().await?, [0, 0, 2, 2]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[doc(alias = "multinomial")]
    #[track_caller]
    pub fn categorical(&self, draws: impl AsRef<TensorFuture>) -> TensorFuture {
        let (draws, at) = (draws.as_ref(), Location::caller());
        let _within = build::within("categorical", at);
        let lead = self.rank().saturating_sub(1);
        let refusal = match weights(&self.node.meta) {
            Err(refusal) => Some(refusal),
            Ok(()) if self.dims()[lead] == 0 => Some(Refusal::argument("a row without weights")),
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
    /// Draws `n` positions for each row of weights, with replacement: see
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
