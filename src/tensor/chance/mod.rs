//! Draws from distributions, made of the uniform and the normal numbers of a generator by ops that
//! have one result: so the same seed gives the same bits on every device.

pub(crate) mod distributions;

use super::build;
use super::device::Device;
use super::future::TensorFuture;
use super::generator::Generator;
use super::methods::reduce::stats::float;
use crate::dtype::DType;
use crate::error::ErrorKind;
use crate::graph::operation::Refusal;
use crate::shape::Shape;
use std::panic::Location;

/// Draws of a generator. Where halves or float64 are wanted, convert the result.
impl Generator {
    /// Whole numbers from `low` up to and excluding `high`, int64, each as likely (but for 2^-53).
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, Generator};
    /// let x = Generator::new(5).randint(&Device::cpu(), 3, 6, [100]).to_vec::<i64>().await?;
    /// assert!(x.iter().all(|x| (3..6).contains(x)) && x.contains(&3) && x.contains(&5));
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// An argument error if there is no such number, or if there are more than 2^53.
    #[track_caller]
    pub fn randint(
        &self,
        device: &Device,
        low: i64,
        high: i64,
        shape: impl Into<Shape>,
    ) -> TensorFuture {
        let at = Location::caller();
        let many = i128::from(high) - i128::from(low);
        if !(1..=1 << 53).contains(&many) {
            let text = format!("no numbers are drawn from {low} to {high}");
            return device.refused("randint", ErrorKind::Argument, text, DType::I64, at);
        }
        let _within = build::within("randint", at);
        let part = self.rand_dtype(device, shape, DType::F64) * many as f64;
        part.to_dtype(DType::I64).minimum(many as i64 - 1) + low
    }

    /// The numbers from 0 up to and excluding `n` in an order by chance, int64.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, Generator};
    /// let mut x = Generator::new(5).randperm(&Device::cpu(), 100).to_vec::<i64>().await?;
    /// assert_ne!(x[..4], [0, 1, 2, 3]);
    /// x.sort();
    /// assert_eq!(x, (0..100).collect::<Vec<i64>>());
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn randperm(&self, device: &Device, n: usize) -> TensorFuture {
        let _within = build::within("randperm", Location::caller());
        self.rand_dtype(device, [n], DType::F64).argsort(0, false)
    }

    /// Numbers from `low` up to `high`, float32, each as likely.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, Generator};
    /// let x = Generator::new(5).uniform(&Device::cpu(), 2.0, 3.0, [100]).to_vec::<f32>().await?;
    /// assert!(x.iter().all(|x| (2.0..3.0).contains(x)));
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn uniform(
        &self,
        device: &Device,
        low: f64,
        high: f64,
        shape: impl Into<Shape>,
    ) -> TensorFuture {
        let _within = build::within("uniform", Location::caller());
        self.rand(device, shape) * (high - low) + low
    }

    /// Normal numbers of a mean and a standard deviation, float32.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, Generator};
    /// let x = Generator::new(5).normal(&Device::cpu(), 2.0, 0.5, [10_000]);
    /// assert!((x.mean_all().item::<f32>().await? - 2.0).abs() < 0.02);
    /// assert!((x.std_all(1.0).item::<f32>().await? - 0.5).abs() < 0.02);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn normal(
        &self,
        device: &Device,
        mean: f64,
        std: f64,
        shape: impl Into<Shape>,
    ) -> TensorFuture {
        let _within = build::within("normal", Location::caller());
        self.randn(device, shape) * std + mean
    }

    /// Numbers of the exponential distribution of this rate, float32: half the sum of the squares
    /// of two normal numbers, over the rate.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, Generator};
    /// let x = Generator::new(5).exponential(&Device::cpu(), 2.0, [10_000]);
    /// assert!((x.mean_all().item::<f32>().await? - 0.5).abs() < 0.02);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// An argument error if the rate is not positive.
    #[track_caller]
    pub fn exponential(&self, device: &Device, rate: f64, shape: impl Into<Shape>) -> TensorFuture {
        let at = Location::caller();
        if rate.is_nan() || rate <= 0.0 {
            let text = format!("a rate of {rate} is not positive");
            return device.refused("exponential", ErrorKind::Argument, text, DType::F32, at);
        }
        let _within = build::within("exponential", at);
        let shape = shape.into();
        let both = [(); 2].map(|()| self.randn(device, shape.clone()).square());
        let [a, b] = both;
        (a + b) / (2.0 * rate)
    }

    /// 1 with these probabilities, 0 otherwise, in their type.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, Generator};
    /// let p = Device::cpu().from_vec(vec![0.0f32, 1.0], [2]);
    /// assert_eq!(Generator::new(5).bernoulli(&p).to_vec::<f32>().await?, [0.0, 1.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn bernoulli(&self, probabilities: impl AsRef<TensorFuture>) -> TensorFuture {
        let (p, at) = (probabilities.as_ref(), Location::caller());
        if let Err(refusal) = float(p) {
            return build::refused("bernoulli", p, refusal, at);
        }
        let _within = build::within("bernoulli", at);
        self.rand_dtype(&p.device(), p.shape(), p.dtype().wide())
            .lt(p.stop_gradient().wide())
            .to_dtype(p.dtype())
    }

    /// Draws `n` positions for each row of weights, with or without replacement, as int64: see
    /// [`categorical`](Self::categorical). Without replacement a row needs as many weights that are
    /// not 0; otherwise the value fails.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, Generator};
    /// let weights = Device::cpu().from_vec(vec![1.0f32, 0.0, 1.0], [3]);
    /// let mut both = Generator::new(5).multinomial(&weights, 2, false).to_vec::<i64>().await?;
    /// both.sort();
    /// assert_eq!(both, [0, 2]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn multinomial(
        &self,
        weights: impl AsRef<TensorFuture>,
        n: usize,
        replacement: bool,
    ) -> TensorFuture {
        let (weights, at) = (weights.as_ref(), Location::caller());
        let _within = build::within("multinomial", at);
        if replacement {
            return self.categorical(weights, n);
        }
        let width = weights.dims().last().copied().unwrap_or(0);
        if n == 0 || n > width {
            let text = format!("{n} different positions of {width}");
            return build::refused("multinomial", weights, Refusal::argument(text), at);
        }
        let mut left = weights.stop_gradient();
        let mut drawn = Vec::with_capacity(n);
        for _ in 0..n {
            let one = self.categorical(&left, 1);
            left = left.scatter(-1, &one, one.zeros_like().to_dtype(left.dtype()));
            drawn.push(one);
        }
        // The last draw as well fails if there was nothing to draw from.
        let places = crate::cat(&drawn, -1);
        let there = weights.gather(-1, &places).stop_gradient();
        build::predicated(&places, &[there], at)
    }
}

/// Draws of the device's [generator](Device::generator).
impl Device {
    /// [`Generator::randint`] of the device's generator.
    #[track_caller]
    pub fn randint(&self, low: i64, high: i64, shape: impl Into<Shape>) -> TensorFuture {
        self.generator().randint(self, low, high, shape)
    }

    /// [`Generator::randperm`] of the device's generator.
    #[track_caller]
    pub fn randperm(&self, n: usize) -> TensorFuture {
        self.generator().randperm(self, n)
    }

    /// [`Generator::uniform`] of the device's generator.
    #[track_caller]
    pub fn uniform(&self, low: f64, high: f64, shape: impl Into<Shape>) -> TensorFuture {
        self.generator().uniform(self, low, high, shape)
    }

    /// [`Generator::normal`] of the device's generator.
    #[track_caller]
    pub fn normal(&self, mean: f64, std: f64, shape: impl Into<Shape>) -> TensorFuture {
        self.generator().normal(self, mean, std, shape)
    }

    /// [`Generator::exponential`] of the device's generator.
    #[track_caller]
    pub fn exponential(&self, rate: f64, shape: impl Into<Shape>) -> TensorFuture {
        self.generator().exponential(self, rate, shape)
    }
}

#[cfg(test)]
mod tests {
    use crate::{DType, Device, Generator, TensorFuture};

    async fn mean(x: &TensorFuture) -> f64 {
        x.to_dtype(DType::F64).mean_all().item::<f64>().await.unwrap()
    }

    /// Each number of a million draws lies within five deviations of what it should be.
    #[tokio::test]
    async fn draws_have_the_moments_of_their_distributions() {
        const N: usize = 1 << 20;
        let (device, generator) = (Device::cpu(), Generator::new(7));
        let near = |got: f64, want: f64, deviation: f64, what: &str| {
            let slack = 5.0 * deviation / (N as f64).sqrt();
            assert!((got - want).abs() < slack, "{what}: {got}, and not {want}");
        };
        let x = generator.uniform(&device, -1.0, 3.0, [N]);
        near(mean(&x).await, 1.0, 4.0 / 12f64.sqrt(), "uniform");
        let x = generator.normal(&device, 2.0, 3.0, [N]);
        near(mean(&x).await, 2.0, 3.0, "normal");
        near(mean(&(x - 2.0).square()).await, 9.0, 9.0 * 2f64.sqrt(), "normal, squared");
        let x = generator.exponential(&device, 0.5, [N]);
        near(mean(&x).await, 2.0, 2.0, "exponential");
        near(mean(&x.square()).await, 8.0, 8.0 * 5f64.sqrt(), "exponential, squared");
        near(mean(&x.gt(2.0 * 2f64.ln()).to_dtype(DType::F64)).await, 0.5, 0.5, "its median");
        let x = generator.randint(&device, -3, 4, [N]);
        for k in -3..4 {
            near(mean(&x.eq(k)).await, 1.0 / 7.0, 0.35, "randint");
        }
        let x = generator.bernoulli(device.full([N], 0.3));
        near(mean(&x).await, 0.3, 0.46, "bernoulli");
    }

    #[tokio::test]
    async fn without_replacement_no_position_comes_twice_and_the_first_follows_the_weights() {
        let (device, generator) = (Device::cpu(), Generator::new(9));
        let weights = device.from_vec(vec![1.0f32, 3.0, 0.0, 4.0], [4]).expand([4096, 4]);
        let places = generator.multinomial(&weights, 3, false);
        let sorted = places.sort(-1, false).to_vec::<i64>().await.unwrap();
        assert!(sorted.chunks(3).all(|row| row == [0, 1, 3]));
        let first = mean(&places.narrow(-1, 0, 1).eq(3)).await;
        assert!((first - 0.5).abs() < 0.04, "{first}");
        let none = generator.multinomial(&weights, 4, false);
        assert!(none.await.unwrap_err().is_index());
    }
}
