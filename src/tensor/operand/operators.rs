//! The operators, and ops with a number on the left. Operators do not dereference, so they are
//! written once over [`Operand`].

use super::{Operand, OperandRef};
use crate::dtype::Scalar;
use crate::op::BinaryOp;
use crate::tensor::build;
use crate::tensor::future::{Tensor, TensorFuture};
use std::ops::{Add, Div, Mul, Neg, Rem, Sub};
use std::panic::Location;

/// A binary op of a tensor and any right operand.
pub(crate) fn binary(
    op: BinaryOp,
    a: &TensorFuture,
    b: impl Operand,
    at: build::At,
) -> TensorFuture {
    ask(op, a, &b, at).without(b)
}

fn ask(op: BinaryOp, a: &TensorFuture, b: &impl Operand, at: build::At) -> build::Asked {
    match b.operand() {
        OperandRef::Tensor(b) => build::ask_binary(op, a, b, at),
        OperandRef::Scalar(scalar) => build::ask_with_scalar(op, a, scalar, false, at),
    }
}

/// Ops with a number as the first operand, for ops without an operator: PyTorch's `torch.pow(2,
/// x)`. An operator takes a number or a [`Scalar`] on the left directly (`2.0 - &x`). Nothing
/// waits.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, Scalar};
/// let x = Device::cpu().from_vec(vec![1.0f32, 2.0, 3.0], [3]);
/// assert_eq!(Scalar::from(2).pow(&x).to_vec::<f32>().await?, [2.0, 4.0, 8.0]);
/// assert_eq!(Scalar::from(7.5).fmod(&x).to_vec::<f32>().await?, [0.5, 1.5, 1.5]);
/// assert_eq!(Scalar::from(-7).floor_divide(&x).to_vec::<f32>().await?, [-7.0, -4.0, -3.0]);
/// assert_eq!(Scalar::from(-7).trunc_divide(&x).to_vec::<f32>().await?, [-7.0, -3.0, -2.0]);
/// assert_eq!(Scalar::from(0).atan2(&x).to_vec::<f32>().await?, [0.0; 3]);
/// assert_eq!((Scalar::from(true) + &x).to_vec::<f32>().await?, [2.0, 3.0, 4.0]);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
impl Scalar {
    /// This number to the power of each element; see [`TensorFuture::pow`].
    #[track_caller]
    pub fn pow(self, x: impl AsRef<TensorFuture>) -> TensorFuture {
        build::ask_with_scalar(BinaryOp::Pow, x.as_ref(), self, true, Location::caller()).without(x)
    }

    /// The remainder of this number by each element, with this number's sign; see
    /// [`TensorFuture::fmod`].
    #[track_caller]
    pub fn fmod(self, x: impl AsRef<TensorFuture>) -> TensorFuture {
        build::ask_with_scalar(BinaryOp::Fmod, x.as_ref(), self, true, Location::caller())
            .without(x)
    }

    /// This number divided by each element, rounded down; see [`TensorFuture::floor_divide`].
    #[track_caller]
    pub fn floor_divide(self, x: impl AsRef<TensorFuture>) -> TensorFuture {
        build::ask_with_scalar(BinaryOp::FloorDivide, x.as_ref(), self, true, Location::caller())
            .without(x)
    }

    /// This number divided by each element, rounded towards zero; see
    /// [`TensorFuture::trunc_divide`].
    #[track_caller]
    pub fn trunc_divide(self, x: impl AsRef<TensorFuture>) -> TensorFuture {
        build::ask_with_scalar(BinaryOp::TruncDivide, x.as_ref(), self, true, Location::caller())
            .without(x)
    }

    /// The angle of the point `(x, self)` for each element, in radians; see
    /// [`TensorFuture::atan2`].
    #[track_caller]
    pub fn atan2(self, x: impl AsRef<TensorFuture>) -> TensorFuture {
        build::ask_with_scalar(BinaryOp::Atan2, x.as_ref(), self, true, Location::caller())
            .without(x)
    }

    /// [`TensorFuture::xlogy`].
    #[track_caller]
    pub fn xlogy(self, x: impl AsRef<TensorFuture>) -> TensorFuture {
        build::ask_with_scalar(BinaryOp::Xlogy, x.as_ref(), self, true, Location::caller())
            .without(x)
    }
}

macro_rules! operators {
    ($($Trait:ident $method:ident $op:ident),* $(,)?) => {$(
        operators!(@tensor $Trait $method $op; TensorFuture, &TensorFuture, Tensor, &Tensor);
        // On the left only one float and one integer type: with two, the type of `(1.0 - &x).exp()`
        // would be ambiguous.
        operators!(@scalar $Trait $method $op; f64, i64, Scalar; TensorFuture, &TensorFuture,
            Tensor, &Tensor);
    )*};
    (@tensor $Trait:ident $method:ident $op:ident; $($T:ty),*) => {$(
        impl<R: Operand> $Trait<R> for $T {
            type Output = TensorFuture;
            #[track_caller]
            fn $method(self, right: R) -> TensorFuture {
                let asked = ask(BinaryOp::$op, self.as_ref(), &right,
                    std::panic::Location::caller());
                asked.without((self, right))
            }
        }
    )*};
    (@scalar $Trait:ident $method:ident $op:ident; $($S:ty),*; $($T:ty),*) => {
        operators!(@cross $Trait $method $op; [$($S),*]; [$($T),*]);
    };
    (@cross $Trait:ident $method:ident $op:ident; [$($S:ty),*]; $Ts:tt) => {$(
        operators!(@left $Trait $method $op; $S; $Ts);
    )*};
    (@left $Trait:ident $method:ident $op:ident; $S:ty; [$($T:ty),*]) => {$(
        impl $Trait<$T> for $S {
            type Output = TensorFuture;
            #[track_caller]
            fn $method(self, right: $T) -> TensorFuture {
                let at = std::panic::Location::caller();
                build::ask_with_scalar(BinaryOp::$op, right.as_ref(), Scalar::from(self), true, at)
                    .without(right)
            }
        }
    )*};
}
operators!(Add add Add, Sub sub Sub, Mul mul Mul, Div div Div, Rem rem Remainder);

macro_rules! negate {
    ($($T:ty),*) => {$(
        impl Neg for $T {
            type Output = TensorFuture;
            #[track_caller]
            fn neg(self) -> TensorFuture {
                let asked =
                    build::ask_unary(crate::op::UnaryOp::Neg, self.as_ref(),
                        std::panic::Location::caller());
                asked.without(self)
            }
        }
    )*};
}
negate!(TensorFuture, &TensorFuture, Tensor, &Tensor);
