//! Spread and size of values: variance, standard deviation, norms, and normalisation over a batch. Each is
//! composed of ops of the table, which fuse into the reduction that ends them.

use super::build::{self, At};
use super::dims::Dims;
use super::future::TensorFuture;
use crate::dtype::DType;
use crate::graph::operation::Refusal;
use crate::op::ReduceOp;
use crate::shape::Shape;
use smallvec::SmallVec;
use std::panic::Location;

/// Dimensions to reduce; all of them for `None`.
type Over = Option<SmallVec<[isize; 8]>>;

/// The dimensions that are named, each once; all of them where none is.
fn resolved(x: &TensorFuture, over: &Over) -> Result<SmallVec<[isize; 8]>, Refusal> {
    match over {
        Some(dims) if !dims.is_empty() => {
            Ok(build::named_dims(x, dims)?.into_iter().map(|d| d as isize).collect())
        }
        _ => Ok((0..x.rank() as isize).collect()),
    }
}

/// Refuses what is not a floating point value.
pub(super) fn float(x: &TensorFuture) -> Result<(), Refusal> {
    match x.dtype().is_float() {
        true => Ok(()),
        false => Err(Refusal::dtype(format!("needs a floating point type, not {}", x.dtype()))),
    }
}

/// The value in a type in which sums can be made: halves in float32.
#[track_caller]
pub(super) fn wide(x: &TensorFuture) -> TensorFuture {
    match x.dtype() {
        DType::F16 | DType::BF16 => x.to_dtype(DType::F32),
        _ => x.clone(),
    }
}

/// The mean of the squared distances from the mean, with `n - correction` in place of `n`.
#[track_caller]
fn variance(name: &'static str, x: &TensorFuture, over: Over, correction: f64, keepdim: bool) -> TensorFuture {
    let at: At = Location::caller();
    let dims = match float(x).and_then(|()| resolved(x, &over)) {
        Ok(dims) => dims,
        Err(refusal) => return build::refused(name, x, refusal, at),
    };
    let n = dims.iter().map(|&d| x.dims()[d as usize]).collect::<Shape>().numel();
    let _within = build::within(name, at);
    let x = wide(x);
    let mean = build::reduce(ReduceOp::Mean, &x, Some(&dims), true, at);
    let distance = (&x - mean).square();
    let sum = build::reduce(ReduceOp::Sum, &distance, Some(&dims), keepdim, at);
    sum / (n as f64 - correction).max(0.0)
}

/// A root, whose slope at 0 is infinite: where there is nothing, nothing flows back, as in PyTorch.
#[track_caller]
fn rooted(sum: &TensorFuture, root: impl Fn(&TensorFuture) -> TensorFuture) -> TensorFuture {
    let nothing = sum.eq(0.0);
    nothing.where_cond(sum, root(&nothing.where_cond(1.0, sum)))
}

#[track_caller]
fn deviation(x: &TensorFuture, over: Over, correction: f64, keepdim: bool) -> TensorFuture {
    let _within = build::within("std", Location::caller());
    rooted(&variance("std", x, over, correction, keepdim), |var| var.sqrt()).to_dtype(x.dtype())
}

#[track_caller]
fn norm(x: &TensorFuture, p: f64, over: Over, keepdim: bool) -> TensorFuture {
    let at: At = Location::caller();
    let checked = float(x).and_then(|()| match p.is_nan() {
        true => Err(Refusal::argument("a norm of NaN")),
        false => resolved(x, &over),
    });
    let dims = match checked {
        Ok(dims) => dims,
        Err(refusal) => return build::refused("norm", x, refusal, at),
    };
    let _within = build::within("norm", at);
    let reduce = |op, of: &TensorFuture| build::reduce(op, of, Some(&dims), keepdim, at);
    let y = wide(x);
    let out = if p == f64::INFINITY {
        reduce(ReduceOp::Max, &y.abs())
    } else if p == f64::NEG_INFINITY {
        reduce(ReduceOp::Min, &y.abs())
    } else if p == 0.0 {
        reduce(ReduceOp::Sum, &y.ne(0.0).to_dtype(y.dtype()))
    } else if p == 1.0 {
        reduce(ReduceOp::Sum, &y.abs())
    } else if p == 2.0 {
        rooted(&reduce(ReduceOp::Sum, &y.square()), |sum| sum.sqrt())
    } else {
        rooted(&reduce(ReduceOp::Sum, &y.abs().pow(p)), |sum| sum.pow(1.0 / p))
    };
    out.to_dtype(x.dtype())
}

/// Spread and size. Floating point only; halves are computed in float32. Nothing waits.
impl TensorFuture {
    /// Variance over dimensions. `correction` is taken off the number of elements: 1 for a sample (PyTorch's
    /// default), 0 for the whole; NaN where nothing is left.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().from_vec(vec![1.0f32, 2.0, 3.0, 6.0], [2, 2]);
    /// assert_eq!(x.var(1, 1.0).to_vec::<f32>().await?, [0.5, 4.5]);
    /// assert_eq!(x.var_all(0.0).item::<f32>().await?, 3.5);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn var(&self, dims: impl Dims, correction: f64) -> TensorFuture {
        variance("var", self, Some(dims.dims()), correction, false).to_dtype(self.dtype())
    }

    /// As [`var`](Self::var), with the dimensions kept at size 1.
    #[track_caller]
    pub fn var_keepdim(&self, dims: impl Dims, correction: f64) -> TensorFuture {
        variance("var", self, Some(dims.dims()), correction, true).to_dtype(self.dtype())
    }

    /// As [`var`](Self::var) over everything: a 0-d result.
    #[track_caller]
    pub fn var_all(&self, correction: f64) -> TensorFuture {
        variance("var", self, None, correction, false).to_dtype(self.dtype())
    }

    /// Standard deviation: the root of [`var`](Self::var).
    #[track_caller]
    pub fn std(&self, dims: impl Dims, correction: f64) -> TensorFuture {
        deviation(self, Some(dims.dims()), correction, false)
    }

    /// As [`std`](Self::std), with the dimensions kept at size 1.
    #[track_caller]
    pub fn std_keepdim(&self, dims: impl Dims, correction: f64) -> TensorFuture {
        deviation(self, Some(dims.dims()), correction, true)
    }

    /// As [`std`](Self::std) over everything: a 0-d result.
    #[track_caller]
    pub fn std_all(&self, correction: f64) -> TensorFuture {
        deviation(self, None, correction, false)
    }

    /// `(sum |x|^p)^(1/p)` over dimensions; for infinity the largest magnitude, for minus infinity the
    /// smallest, for 0 how many elements are not zero. PyTorch's `linalg.vector_norm`.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().from_vec(vec![3.0f32, -4.0], [2]);
    /// assert_eq!(x.norm(2.0, 0).item::<f32>().await?, 5.0);
    /// assert_eq!(x.norm_all(f64::INFINITY).item::<f32>().await?, 4.0);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn norm(&self, p: f64, dims: impl Dims) -> TensorFuture {
        norm(self, p, Some(dims.dims()), false)
    }

    /// As [`norm`](Self::norm), with the dimensions kept at size 1.
    #[track_caller]
    pub fn norm_keepdim(&self, p: f64, dims: impl Dims) -> TensorFuture {
        norm(self, p, Some(dims.dims()), true)
    }

    /// As [`norm`](Self::norm) over everything: a 0-d result.
    #[track_caller]
    pub fn norm_all(&self, p: f64) -> TensorFuture {
        norm(self, p, None, false)
    }

    /// `(x - mean) / sqrt(var + eps) * weight + bias` with a mean, a variance, a weight and a bias for each
    /// channel (dimension 1): a batch norm that has been trained (Ioffe and Szegedy 2015, arXiv:1502.03167).
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
        normalised(self, mean, var, weight, bias, eps)
    }

    /// A batch norm in training: the mean and the (biased) variance are those of this batch, over all
    /// dimensions but the channels. Beside the result it gives that mean and the *unbiased* variance, which
    /// PyTorch puts into its running averages; both in float32 for halves.
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
            0 | 1 => Err(Refusal::shape(format!("{} has one value a channel, and no spread", self.shape()))),
            _ => Ok(()),
        });
        if let Err(refusal) = checked {
            let failed = build::refused("batch_norm_train", self, refusal, at);
            return (failed.clone(), failed.clone(), failed);
        }
        let _within = build::within("batch_norm_train", at);
        let over: SmallVec<[isize; 8]> = (0..self.rank() as isize).filter(|&d| d != 1).collect();
        let x = wide(self);
        let mean = build::reduce(ReduceOp::Mean, &x, Some(&over), true, at);
        let biased = build::reduce(ReduceOp::Mean, &(&x - &mean).square(), Some(&over), false, at);
        let mean = mean.reshape(-1);
        let y = normalised(self, &mean, &biased, weight, bias, eps);
        let unbiased = biased * (n as f64 / (n - 1) as f64);
        (y, mean, unbiased)
    }
}

/// Refuses a value without channels, and parameters that have not one number for each.
fn channels<'a>(x: &TensorFuture, mut of: impl Iterator<Item = &'a TensorFuture>) -> Result<(), Refusal> {
    float(x)?;
    let Some(&channels) = x.dims().get(1) else {
        return Err(Refusal::shape(format!("{} has no channels, dimension 1", x.shape())));
    };
    match of.find(|p| p.dims() != [channels]) {
        None => Ok(()),
        Some(p) => Err(Refusal::shape(format!("{} for {channels} channels", p.shape()))),
    }
}

/// The formula of [`TensorFuture::batch_norm`]; one pass over `x`.
#[track_caller]
fn normalised(
    x: &TensorFuture,
    mean: &TensorFuture,
    var: &TensorFuture,
    weight: Option<&TensorFuture>,
    bias: Option<&TensorFuture>,
    eps: f64,
) -> TensorFuture {
    let mut shape: SmallVec<[isize; 8]> = SmallVec::from_elem(1, x.rank());
    shape[1] = -1;
    let mut scale = (wide(var) + eps).rsqrt();
    if let Some(weight) = weight {
        scale = scale * wide(weight);
    }
    let mut y = (wide(x) - wide(mean).reshape(&shape[..])) * scale.reshape(&shape[..]);
    if let Some(bias) = bias {
        y = y + wide(bias).reshape(&shape[..]);
    }
    y.to_dtype(x.dtype())
}

#[cfg(test)]
mod tests {
    use crate::Device;

    /// Three numbers a channel beside a value of several tiles: each is read once and kept, and none is in
    /// another's way.
    #[tokio::test]
    async fn a_batch_norm_of_many_images_is_that_of_each() {
        let device = Device::cpu();
        let x = device.randn([64, 8, 8, 8]);
        let per_channel = |k: f64| device.arange(k, k + 8.0, 1.0);
        let (mean, var, weight, bias) =
            (per_channel(0.0), per_channel(1.0), per_channel(2.0), per_channel(3.0));
        let all = x.batch_norm(&mean, &var, Some(&weight), Some(&bias), 1e-5).to_vec::<f32>().await.unwrap();
        for i in 0..64 {
            let one = x.narrow(0, i, 1).batch_norm(&mean, &var, Some(&weight), Some(&bias), 1e-5);
            assert_eq!(one.to_vec::<f32>().await.unwrap(), all[i * 512..(i + 1) * 512], "image {i}");
        }
    }
}
