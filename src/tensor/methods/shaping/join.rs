//! Splitting, repeating and joining values along dimensions.

use crate::error::{ErrorKind, number_of};
use crate::graph::node::{Node, Op};
use crate::graph::operation::{Meta, Refusal};
use crate::memory::DeviceMemory;
use crate::ops::shaping::cat::Cat;
use crate::shape::Shape;
use crate::tensor::build::{self, At};
use crate::tensor::dims::Dims;
use crate::tensor::future::TensorFuture;
use std::panic::Location;
use std::sync::Arc;

/// Splitting and repeating.
impl TensorFuture {
    /// Repeats the value `times[d]` times along each dimension `d`, as PyTorch's `repeat`: new
    /// dimensions come first.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().arange(0, 2, 1);
    /// assert_eq!(x.repeat([2, 2]).to_vec::<i64>().await?, [0, 1, 0, 1, 0, 1, 0, 1]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn repeat(&self, times: impl Dims) -> TensorFuture {
        let (times, at) = (times.dims(), Location::caller());
        let refuse = |refusal| build::refused("repeat", self, refusal, at);
        let Some(lead) = times.len().checked_sub(self.rank()) else {
            return refuse(Refusal::shape(format!(
                "{} for shape {}",
                number_of(times.len(), "count", "counts"),
                self.shape()
            )));
        };
        let _within = build::within("repeat", at);
        // Each repeated dimension gets a dimension before it, of that size and stride 0.
        let (mut apart, mut repeated, mut shape) = (Vec::new(), Vec::new(), Vec::new());
        for (d, &n) in times.iter().enumerate() {
            let Ok(n) = usize::try_from(n) else {
                return refuse(Refusal::argument(format!("cannot repeat {n} times")));
            };
            let own = if d < lead { 1 } else { self.dims()[d - lead] };
            if n != 1 && own > 1 {
                apart.push(1);
                repeated.push(n);
            }
            apart.push(own);
            repeated.push(if own == 1 { n } else { own });
            shape.push(own.saturating_mul(n));
        }
        let shape: Shape = shape.into_iter().collect();
        if let Err(refusal) = build::fits(&shape, self.dtype()) {
            return refuse(refusal);
        }
        self.reshape(apart).expand(repeated).reshape(shape.dims())
    }

    /// Consecutive parts of `size` along `dim`, as views; the last one is smaller if `size` does
    /// not divide the dimension.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let parts = futensor::Device::cpu().arange(0, 5, 1).split(2, 0);
    /// assert_eq!(parts.len(), 3);
    /// assert_eq!(parts[2].to_vec::<i64>().await?, [4]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// One failed value if `size` is 0, `dim` is out of range, or memory has no room for so many
    /// parts.
    #[track_caller]
    pub fn split(&self, size: usize, dim: isize) -> Vec<TensorFuture> {
        self.parts("split", dim, size, |n| (size, n.div_ceil(size).max(1)))
    }

    /// Consecutive parts of these sizes along `dim`, as views. The sizes must add up to the size of
    /// the dimension.
    ///
    /// ```
    /// let x = futensor::Device::cpu().ones([2, 5]);
    /// let parts = x.split_with_sizes([2, 3], 1);
    /// assert_eq!((parts[0].dims(), parts[1].dims()), (&[2, 2][..], &[2, 3][..]));
    /// ```
    #[track_caller]
    pub fn split_with_sizes(&self, sizes: impl Dims, dim: isize) -> Vec<TensorFuture> {
        let (sizes, at): (_, At) = (sizes.dims(), Location::caller());
        let checked =
            self.shape().dim(dim).ok_or_else(|| build::dim_refusal(dim, self.shape())).and_then(
                |d| {
                    let n = self.dims()[d];
                    match sizes.iter().all(|&s| s >= 0)
                        && sizes.iter().map(|&s| s as i128).sum::<i128>() == n as i128
                    {
                        true => Ok(()),
                        false => Err(Refusal::argument(format!("{sizes:?} do not add up to {n}"))),
                    }
                },
            );
        if let Err(refusal) = checked {
            let failed = build::refused("split_with_sizes", self, refusal, at);
            return vec![failed; sizes.len()];
        }
        if let Err(refusal) = room_for(sizes.len(), self) {
            return vec![build::refused("split_with_sizes", self, refusal, at)];
        }
        let _within = build::within("split_with_sizes", at);
        let mut start = 0;
        let mut part = |&n: &isize| {
            start += n as usize;
            self.narrow(dim, start - n as usize, n as usize)
        };
        sizes.iter().map(&mut part).collect()
    }

    /// At most `chunks` parts along `dim`, as PyTorch's `chunk`, as views.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let parts = futensor::Device::cpu().arange(0, 5, 1).chunk(2, 0);
    /// assert_eq!(parts[0].to_vec::<i64>().await?, [0, 1, 2]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`split`](Self::split).
    #[doc(alias = "array_split")]
    #[track_caller]
    pub fn chunk(&self, chunks: usize, dim: isize) -> Vec<TensorFuture> {
        self.parts("chunk", dim, chunks, |n| match n {
            // An empty dimension gives as many parts as were asked for, as in PyTorch.
            0 => (0, chunks),
            n => (n.div_ceil(chunks), n.div_ceil(n.div_ceil(chunks))),
        })
    }

    /// Splits into parts whose size and number depend on the size of the dimension; `asked` is
    /// not 0.
    #[track_caller]
    fn parts(
        &self,
        name: &'static str,
        dim: isize,
        asked: usize,
        sizes: impl FnOnce(usize) -> (usize, usize),
    ) -> Vec<TensorFuture> {
        let at = Location::caller();
        let refuse = |refusal| vec![build::refused(name, self, refusal, at)];
        let Some(d) = self.shape().dim(dim) else {
            return refuse(build::dim_refusal(dim, self.shape()));
        };
        if asked == 0 {
            return refuse(Refusal::argument(
                "there is at least one part, of at least one element",
            ));
        }
        let _within = build::within(name, at);
        let n = self.dims()[d];
        let (size, parts) = sizes(n);
        if let Err(refusal) = room_for(parts, self) {
            return refuse(refusal);
        }
        (0..parts).map(|i| self.narrow(dim, i * size, size.min(n - i * size))).collect()
    }
}

/// Whether host memory has room for so many parts.
pub(super) fn room_for(parts: usize, x: &TensorFuture) -> Result<(), Refusal> {
    /// Up to this many parts, the system is not asked.
    const FEW: usize = 1 << 18;
    if parts <= FEW {
        return Ok(());
    }
    // A handle and a node for each part, doubled to cover what these allocate.
    let bytes = parts.checked_mul(2 * size_of::<(TensorFuture, Node)>());
    match (bytes, DeviceMemory::of_computer()) {
        (Some(bytes), DeviceMemory { free: Some(free), .. }) if bytes <= free => Ok(()),
        (Some(bytes), DeviceMemory { free: None, .. }) if bytes <= isize::MAX as usize => Ok(()),
        _ => {
            let parts = number_of(parts, "part", "parts");
            let message = format!("out of memory: {parts} of {}", x.shape());
            Err(Refusal { kind: ErrorKind::OutOfMemory, message })
        }
    }
}

/// Joins tensors along an existing dimension. All other sizes must agree; types are promoted to the
/// common type.
///
/// ```
/// # tokio_test::block_on(async {
/// let device = futensor::Device::cpu();
/// let x = futensor::cat(&[device.ones([1, 2]), device.zeros([2, 2])], 0);
/// assert_eq!(x.to_vec::<f32>().await?, [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
///
/// # Errors
/// A shape error if other sizes differ; an argument error without tensors (on
/// [`Device::cpu`](crate::Device::cpu)).
#[doc(alias("concat", "concatenate", "hstack", "vstack"))]
#[track_caller]
pub fn cat(tensors: &[impl AsRef<TensorFuture>], dim: isize) -> TensorFuture {
    if tensors.is_empty() {
        return build::of_nothing("cat", Location::caller());
    }
    joined(tensors.iter().map(|t| t.as_ref().clone()).collect(), dim, Location::caller())
}

impl TensorFuture {
    /// [`cat`] of this value and another, for gradient rules, which cannot import `cat`.
    #[track_caller]
    pub(crate) fn followed_by(&self, next: &TensorFuture, dim: isize) -> TensorFuture {
        cat(&[self, next], dim)
    }
}

/// Casts to the common type, then joins. A type for storage has none with another.
fn joined(tensors: Vec<TensorFuture>, dim: isize, at: At) -> TensorFuture {
    let dtype = tensors.iter().map(|t| t.dtype()).reduce(|a, b| a.promote(b));
    let cast = |t: TensorFuture| match dtype {
        Some(dtype) if dtype != t.dtype() && !dtype.is_storage() => {
            let rule = || Ok(Meta { shape: t.shape().clone(), dtype });
            build::apply(Op::Cast, &[&t], rule, at)
        }
        _ => t,
    };
    let tensors: Vec<TensorFuture> = tensors.into_iter().map(cast).collect();
    let operands: Vec<&TensorFuture> = tensors.iter().collect();
    build::custom(Arc::new(Cat { dim }), &operands, at)
}

/// Joins tensors of one shape along a new dimension.
///
/// ```
/// let device = futensor::Device::cpu();
/// let x = futensor::stack(&[device.ones([2]), device.zeros([2])], 0);
/// assert_eq!(x.dims(), [2, 2]);
/// ```
///
/// # Errors
/// A shape error if the shapes differ; an argument error without tensors (on
/// [`Device::cpu`](crate::Device::cpu)).
#[track_caller]
pub fn stack(tensors: &[impl AsRef<TensorFuture>], dim: isize) -> TensorFuture {
    let at = Location::caller();
    let Some(first) = tensors.first().map(|t| t.as_ref()) else {
        return build::of_nothing("stack", at);
    };
    let _within = build::within("stack", at);
    if let Some(other) = tensors.iter().find(|t| t.as_ref().shape() != first.shape()) {
        let text = format!("shapes differ: {} and {}", first.shape(), other.as_ref().shape());
        return build::refused("stack", first, Refusal::shape(text), at);
    }
    if !(-(first.rank() as isize) - 1..=first.rank() as isize).contains(&dim) {
        return build::refused("stack", first, build::dim_refusal(dim, first.shape()), at);
    }
    let mut rows = Vec::with_capacity(tensors.len());
    for t in tensors {
        rows.push(t.as_ref().unsqueeze(dim));
    }
    joined(rows, dim, at)
}
