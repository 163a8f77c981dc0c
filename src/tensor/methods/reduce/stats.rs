//! Variance, standard deviation and norms. Each is composed of ops of the table, which fuse into
//! the final reduction.

use crate::graph::operation::Refusal;
use crate::op::ReduceOp;
use crate::shape::Shape;
use crate::tensor::build::{self, At, mixed};
use crate::tensor::dims::Dims;
use crate::tensor::future::TensorFuture;
use smallvec::SmallVec;
use std::panic::Location;

/// The dimensions to reduce; `None` for all.
type Over = Option<SmallVec<[isize; 8]>>;

/// The named dimensions, each once; all dimensions if none is named.
fn resolved(x: &TensorFuture, over: &Over) -> Result<SmallVec<[isize; 8]>, Refusal> {
    match over {
        Some(dims) if !dims.is_empty() => {
            Ok(build::named_dims(x, dims)?.into_iter().map(|d| d as isize).collect())
        }
        _ => Ok((0..x.rank() as isize).collect()),
    }
}

/// Refuses a value whose type is not floating point.
pub(crate) fn float(x: &TensorFuture) -> Result<(), Refusal> {
    match x.dtype().is_float() {
        true => Ok(()),
        false => Err(Refusal::not_float(x.dtype())),
    }
}

/// The mean of the squared distances from the mean, with `n - correction` in place of `n`.
#[track_caller]
fn variance(
    name: &'static str,
    x: &TensorFuture,
    over: Over,
    correction: f64,
    keepdim: bool,
) -> TensorFuture {
    let at: At = Location::caller();
    let dims = match float(x).and_then(|()| resolved(x, &over)) {
        Ok(dims) => dims,
        Err(refusal) => return build::refused(name, x, refusal, at),
    };
    let n = dims.iter().map(|&d| x.dims()[d as usize]).collect::<Shape>().numel();
    let _within = build::within(name, at);
    let x = x.wide();
    let mean = build::reduce(ReduceOp::Mean, &x, Some(&dims), true, at);
    let distance = (&x - mean).square();
    let sum = build::reduce(ReduceOp::Sum, &distance, Some(&dims), keepdim, at);
    sum / (n as f64 - correction).max(0.0)
}

/// A root, whose slope at 0 is infinite: no gradient flows back from a sum of 0, as in PyTorch.
#[track_caller]
pub(in crate::tensor::methods) fn rooted(
    sum: &TensorFuture,
    root: impl Fn(&TensorFuture) -> TensorFuture,
) -> TensorFuture {
    let nothing = sum.eq(0.0);
    nothing.where_cond(0.0, root(&nothing.where_cond(1.0, sum)))
}

/// `|x|^p`. No gradient flows back to 0, where the slope, or a power in it, is infinite.
#[track_caller]
fn power(x: &TensorFuture, p: f64) -> TensorFuture {
    let nothing = x.eq(0.0);
    let at_nothing = if p > 0.0 { 0.0 } else { f64::INFINITY };
    nothing.where_cond(at_nothing, nothing.where_cond(1.0, x).abs().pow(p))
}

#[track_caller]
fn deviation(x: &TensorFuture, over: Over, correction: f64, keepdim: bool) -> TensorFuture {
    let _within = build::within("std", Location::caller());
    rooted(&variance("std", x, over, correction, keepdim), |var| var.sqrt()).to_dtype(x.dtype())
}

#[track_caller]
fn norm(x: &TensorFuture, p: f64, over: Over, keepdim: bool) -> TensorFuture {
    let at: At = Location::caller();
    if let Some(x) = mixed::widened(x, at) {
        return norm(&x, p, over, keepdim);
    }
    let checked = float(x).and_then(|()| match p.is_nan() {
        true => Err(Refusal::argument("a norm of NaN")),
        false => resolved(x, &over),
    });
    let dims = match checked {
        Ok(dims) => dims,
        Err(refusal) => return build::refused("norm", x, refusal, at),
    };
    if p < 0.0 && dims.iter().any(|&d| x.dims()[d as usize] == 0) {
        let text = format!("a norm of power {p} needs elements, and shape {} has none", x.shape());
        return build::refused("norm", x, Refusal::shape(text), at);
    }
    let _within = build::within("norm", at);
    let reduce = |op, of: &TensorFuture| build::reduce(op, of, Some(&dims), keepdim, at);
    let y = x.wide();
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
    } else if p > 0.0 {
        rooted(&reduce(ReduceOp::Sum, &power(&y, p)), |sum| sum.pow(1.0 / p))
    } else {
        reduce(ReduceOp::Sum, &power(&y, p)).pow(1.0 / p)
    };
    out.to_dtype(x.dtype())
}

/// Variance and norms. Floating point only; halves are computed in float32. Nothing waits.
impl TensorFuture {
    /// Variance over dimensions. `correction` is subtracted from the number of elements in the
    /// divisor: 1 for a sample (PyTorch's default), 0 for a population. A single element with a
    /// correction of 1 gives NaN.
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

    /// `(sum |x|^p)^(1/p)` over dimensions. A `p` of infinity gives the largest magnitude, minus
    /// infinity the smallest, and 0 the number of nonzero elements. PyTorch's `linalg.vector_norm`.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().from_vec(vec![3.0f32, -4.0], [2]);
    /// assert_eq!(x.norm(2.0, 0).item::<f32>().await?, 5.0);
    /// assert_eq!(x.norm_all(f64::INFINITY).item::<f32>().await?, 4.0);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[doc(alias = "vector_norm")]
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
}
