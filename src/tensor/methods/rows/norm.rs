//! Normalisation over rows, and over a batch.

use crate::Backward;
use crate::error::number_of;
use crate::graph::operation::{Needs, Refusal};
use crate::ops::rows::channels::Channels;
use crate::ops::rows::norm::Norm;
use crate::tensor::build::{self, At, custom, mixed};
use crate::tensor::future::TensorFuture;
use crate::tensor::gradient::ruled::ruled;
use crate::tensor::methods::reduce::stats::float;
use smallvec::SmallVec;
use std::panic::Location;
use std::sync::Arc;

/// # Normalisation
///
/// Floating point only; halves are accumulated in float32. Nothing waits.
impl TensorFuture {
    /// `(x - mean) / sqrt(variance + eps) * weight + bias`. Mean and biased variance are over as
    /// many of the last dimensions as `weight` has (Ba et al. 2016, arXiv:1607.06450).
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let x = device.from_vec(vec![1.0f32, 3.0], [1, 2]);
    /// let y = x.layer_norm(&device.full([2], 10.0), &device.ones([2]), 0.0);
    /// assert_eq!(y.to_vec::<f32>().await?, [-9.0, 11.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn layer_norm(&self, weight: &TensorFuture, bias: &TensorFuture, eps: f64) -> TensorFuture {
        let op = Norm { trailing: weight.rank(), eps, weight: true, bias: true, centred: true };
        custom(Arc::new(op), &[self, weight, bias], Location::caller())
    }

    /// [`layer_norm`](Self::layer_norm) without a bias.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let x = device.from_vec(vec![1.0f32, 3.0], [1, 2]);
    /// assert_eq!(x.layer_norm_weighted(&device.full([2], 10.0), 0.0).to_vec::<f32>().await?,
    ///     [-10.0, 10.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn layer_norm_weighted(&self, weight: &TensorFuture, eps: f64) -> TensorFuture {
        let op = Norm { trailing: weight.rank(), eps, weight: true, bias: false, centred: true };
        custom(Arc::new(op), &[self, weight], Location::caller())
    }

    /// [`layer_norm`](Self::layer_norm) over the last `trailing` dimensions, without weight and
    /// bias.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let x = device.from_vec(vec![1.0f32, 3.0], [1, 2]);
    /// assert_eq!(x.layer_norm_plain(1, 0.0).to_vec::<f32>().await?, [-1.0, 1.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn layer_norm_plain(&self, trailing: usize, eps: f64) -> TensorFuture {
        let op = Norm { trailing, eps, weight: false, bias: false, centred: true };
        custom(Arc::new(op), &[self], Location::caller())
    }

    /// `x / sqrt(mean(x^2) + eps) * weight`. The mean is over as many of the last dimensions as
    /// `weight` has (Zhang and Sennrich 2019, arXiv:1910.07467).
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let x = device.full([1, 4], 3.0);
    /// assert_eq!(x.rms_norm(&device.full([4], 2.0), 0.0).to_vec::<f32>().await?, [2.0; 4]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn rms_norm(&self, weight: &TensorFuture, eps: f64) -> TensorFuture {
        let op = Norm { trailing: weight.rank(), eps, weight: true, bias: false, centred: false };
        custom(Arc::new(op), &[self, weight], Location::caller())
    }

    /// [`rms_norm`](Self::rms_norm) over the last `trailing` dimensions, without a weight.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().full([1, 4], 3.0);
    /// assert_eq!(x.rms_norm_plain(1, 0.0).to_vec::<f32>().await?, [1.0; 4]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn rms_norm_plain(&self, trailing: usize, eps: f64) -> TensorFuture {
        let op = Norm { trailing, eps, weight: false, bias: false, centred: false };
        custom(Arc::new(op), &[self], Location::caller())
    }

    /// Batch norm in inference: `(x - mean) / sqrt(var + eps) * weight + bias`, with a mean, a
    /// variance, a weight and a bias for each channel (dimension 1) (Ioffe and Szegedy 2015,
    /// arXiv:1502.03167).
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let x = device.from_vec(vec![1.0f32, 2.0, 3.0, 4.0], [2, 2]);
    /// let (mean, var) = (device.ones([2]), device.full([2], 4.0));
    /// let y = x.batch_norm(&mean, &var, None, None, 0.0);
    /// assert_eq!(y.to_vec::<f32>().await?, [0.0, 0.5, 1.0, 1.5]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn batch_norm(
        &self,
        mean: impl AsRef<TensorFuture>,
        var: impl AsRef<TensorFuture>,
        weight: Option<&TensorFuture>,
        bias: Option<&TensorFuture>,
        eps: f64,
    ) -> TensorFuture {
        let (mean, var) = (mean.as_ref(), var.as_ref());
        let checked = [Some(mean), Some(var), weight, bias].into_iter().flatten();
        if let Err(refusal) = channels(self, checked) {
            return build::refused("batch_norm", self, refusal, Location::caller());
        }
        let _within = build::within("batch_norm", Location::caller());
        normalised("batch_norm", self, [mean, var], [weight, bias], eps)
    }

    /// Batch norm in training: the mean and the (biased) variance are those of this batch, over all
    /// dimensions except the channels. Returns the result, the mean, and the *unbiased* variance,
    /// which PyTorch adds to its running averages; mean and variance are float32 for halves.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().from_vec(vec![1.0f32, 2.0, 3.0, 6.0], [2, 2]);
    /// let (y, mean, var) = x.batch_norm_train(None, None, 0.0);
    /// assert_eq!(y.to_vec::<f32>().await?, [-1.0, -1.0, 1.0, 1.0]);
    /// assert_eq!(mean.to_vec::<f32>().await?, [2.0, 4.0]);
    /// assert_eq!(var.to_vec::<f32>().await?, [2.0, 8.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn batch_norm_train(
        &self,
        weight: Option<&TensorFuture>,
        bias: Option<&TensorFuture>,
        eps: f64,
    ) -> (TensorFuture, TensorFuture, TensorFuture) {
        let at: At = Location::caller();
        let n = self.numel() / self.dims().get(1).copied().unwrap_or(1).max(1);
        let checked = channels(self, [weight, bias].into_iter().flatten()).and_then(|()| match n {
            0 | 1 => Err(Refusal::shape(format!(
                "{} has one value per channel, so no variance",
                self.shape()
            ))),
            _ => Ok(()),
        });
        if let Err(refusal) = checked {
            let failed = build::refused("batch_norm_train", self, refusal, at);
            return (failed.clone(), failed.clone(), failed);
        }
        let _within = build::within("batch_norm_train", at);
        let (mean, biased) = two(&channel_stats(self));
        let y = normalised("batch_norm_train", self, [&mean, &biased], [weight, bias], eps);
        let unbiased = biased * (n as f64 / (n - 1) as f64);
        (y, mean, unbiased)
    }

    /// [`layer_norm_plain`](Self::layer_norm_plain) of each group of neighbouring channels
    /// (dimension 1) with all that comes behind them, then a weight and a bias for each channel (Wu
    /// and He 2018, arXiv:1803.08494).
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().from_vec(vec![1.0f32, 3.0, 10.0, 30.0], [1, 4]);
    /// let y = x.group_norm(2, None, None, 0.0);
    /// assert_eq!(y.to_vec::<f32>().await?, [-1.0, 1.0, -1.0, 1.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn group_norm(
        &self,
        groups: usize,
        weight: Option<&TensorFuture>,
        bias: Option<&TensorFuture>,
        eps: f64,
    ) -> TensorFuture {
        let at: At = Location::caller();
        if let Some(x) = mixed::widened(self, at) {
            return x.group_norm(groups, weight, bias, eps);
        }
        self.grouped_norm("group_norm", groups, [weight, bias], eps, at)
    }

    /// [`group_norm`](Self::group_norm) of each channel alone (Ulyanov et al. 2016,
    /// arXiv:1607.08022).
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().from_vec(vec![1.0f32, 3.0, 10.0, 30.0], [1, 2, 2]);
    /// let y = x.instance_norm(None, None, 0.0);
    /// assert_eq!(y.to_vec::<f32>().await?, [-1.0, 1.0, -1.0, 1.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// A shape error if a channel has one element, and so no variance.
    #[track_caller]
    pub fn instance_norm(
        &self,
        weight: Option<&TensorFuture>,
        bias: Option<&TensorFuture>,
        eps: f64,
    ) -> TensorFuture {
        let at: At = Location::caller();
        let spatial = self.dims().get(2..).unwrap_or(&[]);
        if spatial.iter().all(|&n| n == 1) {
            let text = format!("a channel of {} has one element, so no variance", self.shape());
            return build::refused("instance_norm", self, Refusal::shape(text), at);
        }
        let groups = self.dims().get(1).copied().unwrap_or(1);
        self.grouped_norm("instance_norm", groups, [weight, bias], eps, at)
    }

    #[track_caller]
    fn grouped_norm(
        &self,
        name: &'static str,
        groups: usize,
        [weight, bias]: [Option<&TensorFuture>; 2],
        eps: f64,
        at: At,
    ) -> TensorFuture {
        let checked = channels(self, [weight, bias].into_iter().flatten()).and_then(|()| {
            let channels = self.dims()[1];
            match groups > 0 && channels.is_multiple_of(groups) {
                true => Ok(channels / groups),
                false => Err(Refusal::shape(format!(
                    "{} do not divide into {}",
                    number_of(channels, "channel", "channels"),
                    number_of(groups, "group", "groups")
                ))),
            }
        });
        let own = match checked {
            Ok(own) => own,
            Err(refusal) => return build::refused(name, self, refusal, at),
        };
        let _within = build::within(name, at);
        if self.numel() == 0 {
            return self.clone();
        }
        let width = self.dims()[2..].iter().product::<usize>() * own;
        self.rounded_once(|x| {
            let rows = x.reshape([self.dims()[0], groups, width]);
            let mut y = rows.layer_norm_plain(1, eps).reshape(self.dims());
            if let Some(weight) = weight {
                y = y * of_channel(&weight.wide(), self.rank());
            }
            if let Some(bias) = bias {
                y = y + of_channel(&bias.wide(), self.rank());
            }
            y
        })
    }
}

/// Refuses a value without channels, and parameters that do not have one number per channel.
fn channels<'a>(
    x: &TensorFuture,
    mut of: impl Iterator<Item = &'a TensorFuture>,
) -> Result<(), Refusal> {
    float(x)?;
    let Some(&channels) = x.dims().get(1) else {
        return Err(Refusal::shape(format!("{} has no channels, dimension 1", x.shape())));
    };
    match of.find(|p| p.dims() != [channels]) {
        None => Ok(()),
        Some(p) => Err(Refusal::shape(format!(
            "{} for {}",
            p.shape(),
            number_of(channels, "channel", "channels")
        ))),
    }
}

/// The means of the channels, then their biased variances, at least in float32.
#[track_caller]
fn channel_stats(x: &TensorFuture) -> TensorFuture {
    let needs = Needs::inputs(&[0]).and_output().as_they_are();
    let compute = || {
        if x.port().runner.has_kernel(&Channels::Stats) {
            return crate::own(Channels::Stats, &[x]);
        }
        let (x, over) = (x.wide(), all_but_channels(x));
        let mean = x.mean_keepdim(&over[..]);
        let var = (x - &mean).square().mean(&over[..]);
        crate::stack(&[&mean.reshape(-1), &var], 0)
    };
    ruled("batch_norm_train", &[x], needs, compute, stats_back)
}

/// Of `n` elements a channel: `dx = (dmean + 2 (x - mean) dvariance) / n`.
fn stats_back(call: &mut Backward<'_>) {
    let (mean_flow, variance_flow) = two(call.upstream());
    call.give(0, |call| {
        let x = call.input(0).wide();
        let n = (x.numel() / x.dims()[1].max(1)) as f64;
        let of_channel = |number: &TensorFuture| of_channel(number, x.rank());
        // A gradient of this one goes to the mean as well, since the result is on the tape.
        let mean = of_channel(&two(call.output()).0);
        let slope = of_channel(&(variance_flow * (2.0 / n)));
        of_channel(&(mean_flow / n)) + (&x - mean) * slope
    });
}

/// Both rows of a value.
#[track_caller]
fn two(both: &TensorFuture) -> (TensorFuture, TensorFuture) {
    let row = |i: usize| both.narrow(0, i, 1).squeeze(0);
    (row(0), row(1))
}

fn all_but_channels(x: &TensorFuture) -> SmallVec<[isize; 8]> {
    (0..x.rank() as isize).filter(|&d| d != 1).collect()
}

/// A number for each channel, with the rank of a value.
#[track_caller]
fn of_channel(number: &TensorFuture, rank: usize) -> TensorFuture {
    let shape: SmallVec<[isize; 8]> = (0..rank).map(|d| if d == 1 { -1 } else { 1 }).collect();
    number.reshape(&shape[..])
}

/// The sums of `g` over each channel, then those of `g (x - mean)`, at least in float32.
#[track_caller]
fn channel_sums(call: &Backward<'_>) -> (TensorFuture, TensorFuture) {
    let (g, x, mean) = (call.upstream(), call.input(0), call.input(1));
    let alike = g.dtype() == x.dtype();
    if alike && !call.keeps_graph() && g.port().runner.has_kernel(&Channels::Sums) {
        return two(&crate::own(Channels::Sums, &[g, x, mean]));
    }
    let (g, over) = (g.wide(), all_but_channels(x));
    let centred = x.wide() - of_channel(&mean.wide(), x.rank());
    (g.sum(&over[..]), (g * centred).sum(&over[..]))
}

/// With `scale = 1 / sqrt(variance + eps)` and `d = g weight`: `dx = d scale`, `dmean = -scale
/// sum(d)`, `dvariance = -scale^3 sum(d (x - mean)) / 2`, `dweight = scale sum(g (x - mean))`,
/// `dbias = sum(g)`, over all but the channels.
fn batch_norm_back(call: &mut Backward<'_>, eps: f64, has_weight: bool, has_bias: bool) {
    let scale = (call.input(2).wide() + eps).rsqrt();
    let factor = if has_weight { &scale * call.input(3).wide() } else { scale.clone() };
    call.give(0, |call| {
        let g = call.upstream().wide();
        let rank = g.rank();
        g * of_channel(&factor, rank)
    });
    if !(1..call.operands()).any(|i| call.wants(i)) {
        return;
    }
    let (plain, product) = channel_sums(call);
    call.give(1, |_| -(&plain * &factor));
    call.give(2, |_| &product * &factor * scale.square() * -0.5);
    if has_weight {
        call.give(3, |_| product * scale);
    }
    if has_bias {
        call.give(3 + has_weight as usize, |_| plain);
    }
}

/// The formula of [`TensorFuture::batch_norm`], in one pass over `x`, with its rule.
#[track_caller]
fn normalised(
    name: &'static str,
    x: &TensorFuture,
    [mean, var]: [&TensorFuture; 2],
    [weight, bias]: [Option<&TensorFuture>; 2],
    eps: f64,
) -> TensorFuture {
    let compute = || {
        let of_channel = |v: &TensorFuture| of_channel(v, x.rank());
        let mut scale = (var.wide() + eps).rsqrt();
        if let Some(weight) = weight {
            scale = scale * weight.wide();
        }
        let mut y = (x.wide() - of_channel(&mean.wide())) * of_channel(&scale);
        if let Some(bias) = bias {
            y = y + of_channel(&bias.wide());
        }
        y.to_dtype(x.dtype())
    };
    let operands = [Some(x), Some(mean), Some(var), weight, bias];
    let operands: SmallVec<[&TensorFuture; 5]> = operands.into_iter().flatten().collect();
    let (has_weight, has_bias) = (weight.is_some(), bias.is_some());
    let needs = Needs::inputs(if has_weight { &[0, 1, 2, 3] } else { &[0, 1, 2] });
    ruled(name, &operands, needs.as_they_are(), compute, move |call| {
        batch_norm_back(call, eps, has_weight, has_bias);
    })
}

#[cfg(test)]
mod tests {
    use crate::Device;

    /// Three numbers a channel beside a value of several tiles: each is read once and kept, and
    /// none is in another's way.
    #[tokio::test]
    async fn a_batch_norm_of_many_images_is_that_of_each() {
        let device = Device::cpu();
        let x = device.randn([64, 8, 8, 8]);
        let per_channel = |k: f64| device.arange(k, k + 8.0, 1.0);
        let (mean, var, weight, bias) =
            (per_channel(0.0), per_channel(1.0), per_channel(2.0), per_channel(3.0));
        let all = x
            .batch_norm(&mean, &var, Some(&weight), Some(&bias), 1e-5)
            .to_vec::<f32>()
            .await
            .unwrap();
        for i in 0..64 {
            let one = x.narrow(0, i, 1).batch_norm(&mean, &var, Some(&weight), Some(&bias), 1e-5);
            assert_eq!(
                one.to_vec::<f32>().await.unwrap(),
                all[i * 512..(i + 1) * 512],
                "image {i}"
            );
        }
    }
}
