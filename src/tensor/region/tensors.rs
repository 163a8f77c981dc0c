//! The inputs and outputs of a region: one tensor, or several in nested tuples, arrays and `Vec`s.

use crate::error::number_of;
use crate::tensor::future::TensorFuture;
use std::collections::VecDeque;

/// One or several tensors: the inputs or outputs of a [`Region`](super::Region)'s closure.
///
/// Implemented for [`TensorFuture`], and for arrays, `Vec`s and tuples (of up to eight) of types
/// that implement it. A `usize` or `bool` among the inputs is a *key*: the closure is traced for
/// each of its values, as for each shape, so it may branch on it.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, TensorFuture as T};
/// let device = Device::cpu();
/// // Weights in a `Vec`, beside a pair of inputs.
/// let net = device.region(|(weights, (x, shift)): (Vec<T>, (T, T))| {
///     let layers: Vec<T> = weights.iter().map(|w| x.matmul(w) + &shift).collect();
///     (layers[0].sum_all(), layers)
/// });
/// let (x, weights) = (device.ones([1, 2]), vec![device.ones([2, 2]), device.eye(2)]);
/// let (sum, layers) = net.call((weights, (x, device.ones([]))));
/// assert_eq!((sum.item::<f32>().await?, layers.len()), (6.0, 2));
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, TensorFuture};
/// let device = Device::cpu();
/// let power = device.region(|(x, n, turned): (TensorFuture, usize, bool)| {
///     let y = (1..n).fold(x.clone(), |y, _| y * &x);
///     if turned { 1.0 / y } else { y }
/// });
/// let x = device.full([], 2.0);
/// assert_eq!(power.call((x.clone(), 3, false)).item::<f32>().await?, 8.0);
/// assert_eq!(power.call((x, 2, true)).item::<f32>().await?, 0.25);
/// assert_eq!(power.traces(), 2);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
///
/// A struct of your own is flattened and rebuilt field by field, in the same order:
///
/// ```
/// use futensor::{TensorFuture, region::{Flat, Tensors}};
/// struct Cache { key: TensorFuture, values: Vec<TensorFuture> }
/// impl Tensors for Cache {
///     fn into_flat(self, flat: &mut Flat) {
///         self.key.into_flat(flat);
///         self.values.into_flat(flat);
///     }
///     fn from_flat(flat: &mut Flat) -> Option<Cache> {
///         Some(Cache { key: Tensors::from_flat(flat)?, values: Tensors::from_flat(flat)? })
///     }
/// }
/// let device = futensor::Device::cpu();
/// let step = device.region(|c: Cache| Cache { key: &c.key + 1.0, values: vec![c.key] });
/// let next = step.call(Cache { key: device.ones([3]), values: Vec::new() });
/// assert_eq!((next.key.dims(), next.values.len()), (&[3][..], 1));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not made of tensors",
    label = "a region takes and gives `TensorFuture`s: one, or several in tuples, arrays and \
        `Vec`s, nested as you like",
    note = "a reference becomes one by `.clone()` and a `Tensor` by `.into()`; numbers that stay \
            the same are captured by the closure, a `usize` or `bool` is traced for each of its \
            values, others go in as tensors"
)]
pub trait Tensors: Sized {
    /// Adds the tensors, in order, to the end of `flat`.
    fn into_flat(self, flat: &mut Flat);

    /// Rebuilds the value from the front of `flat`; `None` if too few tensors are left.
    fn from_flat(flat: &mut Flat) -> Option<Self>;
}

/// A flat list of tensors: see [`Tensors`].
#[derive(Default)]
pub struct Flat {
    tensors: VecDeque<TensorFuture>,
    /// The length of each `Vec`, from the outside in, and the keys.
    lengths: VecDeque<usize>,
}

impl Flat {
    /// The tensors of a value, and the lengths and keys that describe its structure.
    pub(super) fn of(tensors: impl Tensors) -> (Vec<TensorFuture>, Vec<usize>) {
        let mut flat = Flat::default();
        tensors.into_flat(&mut flat);
        (flat.tensors.into(), flat.lengths.into())
    }

    /// Rebuilds a value.
    pub(super) fn put_together<T: Tensors>(tensors: Vec<TensorFuture>, lengths: &[usize]) -> T {
        let mut flat = Flat { tensors: tensors.into(), lengths: lengths.iter().copied().collect() };
        let all = T::from_flat(&mut flat).filter(|_| flat.tensors.is_empty());
        all.expect("`Tensors::from_flat` takes what `into_flat` gave")
    }
}

impl std::fmt::Debug for Flat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Flat({})", number_of(self.tensors.len(), "tensor", "tensors"))
    }
}

impl Tensors for TensorFuture {
    fn into_flat(self, flat: &mut Flat) {
        flat.tensors.push_back(self);
    }
    fn from_flat(flat: &mut Flat) -> Option<TensorFuture> {
        flat.tensors.pop_front()
    }
}

/// A key.
impl Tensors for usize {
    fn into_flat(self, flat: &mut Flat) {
        flat.lengths.push_back(self);
    }
    fn from_flat(flat: &mut Flat) -> Option<usize> {
        flat.lengths.pop_front()
    }
}

/// A key.
impl Tensors for bool {
    fn into_flat(self, flat: &mut Flat) {
        flat.lengths.push_back(self as usize);
    }
    fn from_flat(flat: &mut Flat) -> Option<bool> {
        flat.lengths.pop_front().map(|key| key != 0)
    }
}

impl<T: Tensors> Tensors for Vec<T> {
    fn into_flat(self, flat: &mut Flat) {
        flat.lengths.push_back(self.len());
        self.into_iter().for_each(|x| x.into_flat(flat));
    }
    fn from_flat(flat: &mut Flat) -> Option<Vec<T>> {
        let length = flat.lengths.pop_front()?;
        (0..length).map(|_| T::from_flat(flat)).collect()
    }
}

impl<T: Tensors, const N: usize> Tensors for [T; N] {
    fn into_flat(self, flat: &mut Flat) {
        self.into_iter().for_each(|x| x.into_flat(flat));
    }
    fn from_flat(flat: &mut Flat) -> Option<[T; N]> {
        let all: Option<Vec<T>> = (0..N).map(|_| T::from_flat(flat)).collect();
        all?.try_into().ok()
    }
}

macro_rules! tuples {
    ($($name:ident)*) => {
        impl<$($name: Tensors),*> Tensors for ($($name,)*) {
            #[allow(non_snake_case, unused_variables)]
            fn into_flat(self, flat: &mut Flat) {
                let ($($name,)*) = self;
                $($name.into_flat(flat);)*
            }
            #[allow(unused_variables)]
            fn from_flat(flat: &mut Flat) -> Option<Self> {
                Some(($($name::from_flat(flat)?,)*))
            }
        }
    };
}

tuples!();
tuples!(A);
tuples!(A B);
tuples!(A B C);
tuples!(A B C D);
tuples!(A B C D E);
tuples!(A B C D E F);
tuples!(A B C D E F G);
tuples!(A B C D E F G H);
