//! The operands of an op: futures and tensors, owned or borrowed, and numbers.

pub(crate) mod operators;
pub(crate) mod rows;

use crate::dtype::Scalar;
use crate::tensor::future::TensorFuture;

pub(in crate::tensor) mod sealed {
    pub trait Sealed {}
}

/// An operand as the ops see it.
#[doc(hidden)]
#[derive(Clone, Copy)]
pub enum OperandRef<'a> {
    /// A tensor.
    Tensor(&'a TensorFuture),
    /// A number, weakly typed.
    Scalar(Scalar),
}

/// A tensor or a number: `TensorFuture`, `Tensor`, references to them, `f32 f64 i32 i64 u8 u32
/// usize bool`.
///
/// Numbers are weakly typed as in PyTorch: for an integer tensor, `&x + 2` keeps the type and `&x +
/// 2.0` is float32. Sealed.
///
/// ```
/// use futensor::{DType, Device};
/// let x = Device::cpu().arange(0, 3, 1);
/// assert_eq!(x.add(2).dtype(), DType::I64);
/// assert_eq!(x.add(2.5).dtype(), DType::F32);
/// assert_eq!((1.0 - &x).dtype(), DType::F32);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is neither a tensor nor a number",
    note = "data becomes a tensor by `device.from_slice(&data, shape)`, a parameter is read by \
        `parameter.value()`"
)]
pub trait Operand: sealed::Sealed {
    /// The operand as the ops see it.
    #[doc(hidden)]
    fn operand(&self) -> OperandRef<'_>;
}

impl<T: AsRef<TensorFuture>> sealed::Sealed for T {}
impl<T: AsRef<TensorFuture>> Operand for T {
    fn operand(&self) -> OperandRef<'_> {
        OperandRef::Tensor(self.as_ref())
    }
}

macro_rules! scalar_operands {
    ($($t:ty),*) => {$(
        impl sealed::Sealed for $t {}
        impl Operand for $t {
            fn operand(&self) -> OperandRef<'_> {
                OperandRef::Scalar(Scalar::from(*self))
            }
        }
    )*};
}
scalar_operands!(f32, f64, i32, i64, u8, u32, usize, bool);
impl sealed::Sealed for OperandRef<'_> {}
impl Operand for OperandRef<'_> {
    fn operand(&self) -> OperandRef<'_> {
        *self
    }
}
impl sealed::Sealed for Scalar {}
impl Operand for Scalar {
    fn operand(&self) -> OperandRef<'_> {
        OperandRef::Scalar(*self)
    }
}
