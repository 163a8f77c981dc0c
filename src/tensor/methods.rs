//! Methods that the op table names, and those beside them: cast, where, reductions, products.

use super::build;
use super::dims::Dims;
use super::future::TensorFuture;
use super::operand::{Operand, OperandRef, binary};
use crate::dtype::DType;
use crate::graph::infer;
use crate::graph::node::Op;
use crate::graph::operation::{Meta, Refusal};
use crate::op::{BinaryOp, ReduceOp, UnaryOp, for_each_binary, for_each_unary};
use crate::ops::matmul::MatMul;
use crate::ops::turned::Turned;
use std::panic::Location;
use std::sync::Arc;

macro_rules! unary_methods {
    ($($text:literal, $name:ident, $Variant:ident, $class:ident, |$x:ident| $e:expr $(, $other:tt)*;)*) => {
        /// Elementwise ops of one operand. Integers and bool are computed as float32 where the op needs a
        /// floating point type. Nothing waits.
        impl TensorFuture {
            $(
                #[doc = $text]
                #[track_caller]
                pub fn $name(&self) -> TensorFuture {
                    build::unary(UnaryOp::$Variant, self, Location::caller())
                }
            )*
        }
    };
}
for_each_unary!(unary_methods);

macro_rules! binary_methods {
    ($($text:literal, $name:ident, $Variant:ident, $class:ident, |$a:ident, $b:ident| $e:expr $(, $other:tt)*;)*) => {
        /// Elementwise ops of two operands, which are broadcast against each other and promoted to a common
        /// type; `b` may be a number. Nothing waits. Shapes that do not broadcast make a failed value.
        #[allow(clippy::should_implement_trait)] // The operators are there too; these take any operand.
        impl TensorFuture {
            $(
                #[doc = $text]
                #[track_caller]
                pub fn $name(&self, b: impl Operand) -> TensorFuture {
                    binary(BinaryOp::$Variant, self, b, Location::caller())
                }
            )*
        }
    };
}
for_each_binary!(binary_methods);

macro_rules! reduce_methods {
    ($($name:ident $keep:ident $all:ident $Variant:ident $text:literal;)*) => {
        /// Reductions. `dims` is one dimension or several (`0`, `[0, -1]`), negative from the end; they go
        /// from the shape, or stay with size 1 in the `_keepdim` form. `()` and an empty list are PyTorch's `dim=()`:
        /// everything is reduced, but by `any` and `all`, which then reduce nothing. Nothing waits.
        impl TensorFuture {
            $(
                #[doc = $text]
                #[track_caller]
                pub fn $name(&self, dims: impl Dims) -> TensorFuture {
                    build::reduce(ReduceOp::$Variant, self, Some(&dims.dims()), false, Location::caller())
                }
                #[doc = concat!("As [`", stringify!($name), "`](Self::", stringify!($name), "), with the dimensions kept at size 1.")]
                #[track_caller]
                pub fn $keep(&self, dims: impl Dims) -> TensorFuture {
                    build::reduce(ReduceOp::$Variant, self, Some(&dims.dims()), true, Location::caller())
                }
                #[doc = concat!("As [`", stringify!($name), "`](Self::", stringify!($name), ") over everything: a 0-d result.")]
                #[track_caller]
                pub fn $all(&self) -> TensorFuture {
                    build::reduce(ReduceOp::$Variant, self, None, false, Location::caller())
                }
            )*
        }
    };
}
reduce_methods! {
    sum sum_keepdim sum_all Sum "Sum; integers and bool are added in int64. Floats are added pairwise.";
    prod prod_keepdim prod_all Prod "Product; integers and bool in int64.";
    mean mean_keepdim mean_all Mean "Arithmetic mean of floats; NaN where there is nothing.";
    max max_keepdim max_all Max "Largest element; NaN if one is NaN. An error where there is nothing.";
    min min_keepdim min_all Min "Smallest element; NaN if one is NaN. An error where there is nothing.";
    any any_keepdim any_all Any "True where any element is not zero.";
    all all_keepdim all_all All "True where all elements are not zero.";
}

impl TensorFuture {
    /// Position of the largest element along `dim`, the first of equals, as int64; NaN counts as largest.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().from_vec(vec![1.0f32, 5.0, 2.0], [3]);
    /// assert_eq!(x.argmax(0).item::<i64>().await?, 1);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn argmax(&self, dim: isize) -> TensorFuture {
        build::reduce(ReduceOp::ArgMax, self, Some(&[dim]), false, Location::caller())
    }

    /// As [`argmax`](Self::argmax) over all elements in row-major order: a 0-d result.
    #[track_caller]
    pub fn argmax_all(&self) -> TensorFuture {
        build::reduce(ReduceOp::ArgMax, self, None, false, Location::caller())
    }

    /// Position of the smallest element along `dim`, the first of equals, as int64; NaN counts as
    /// smallest.
    #[track_caller]
    pub fn argmin(&self, dim: isize) -> TensorFuture {
        build::reduce(ReduceOp::ArgMin, self, Some(&[dim]), false, Location::caller())
    }

    /// As [`argmin`](Self::argmin) over all elements in row-major order: a 0-d result.
    #[track_caller]
    pub fn argmin_all(&self) -> TensorFuture {
        build::reduce(ReduceOp::ArgMin, self, None, false, Location::caller())
    }

    /// The same values in another element type; itself where it has that type already. Floats become
    /// integers by truncation: int32 and int64 saturate, uint8 keeps the lowest eight bits of what int64 has, as
    /// narrower integers do of wider ones (PyTorch's `c10::convert` goes through int64 as well). Anything becomes
    /// bool by `!= 0`.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{DType, Device};
    /// let x = Device::cpu().from_vec(vec![1.9f32, -0.5], [2]);
    /// assert_eq!(x.to_dtype(DType::I32).to_vec::<i32>().await?, [1, 0]);
    /// let y = Device::cpu().from_vec(vec![-1.0f32, 258.0], [2]);
    /// assert_eq!(y.to_dtype(DType::U8).to_vec::<u8>().await?, [255, 2]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[doc(alias("to", "float", "half", "cast"))]
    #[track_caller]
    pub fn to_dtype(&self, dtype: DType) -> TensorFuture {
        if dtype == self.dtype() {
            return self.clone();
        }
        let rule = || Ok(Meta { shape: self.shape().clone(), dtype });
        build::apply(Op::Cast, &[self], rule, Location::caller())
    }

    /// `a` where this condition is true, else `b`; all three are broadcast. PyTorch's `where`, which is a
    /// keyword in Rust.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().from_vec(vec![-1.0f32, 2.0], [2]);
    /// let y = x.gt(0.0).where_cond(&x, 0.0);
    /// assert_eq!(y.to_vec::<f32>().await?, [0.0, 2.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[doc(alias = "where")]
    #[track_caller]
    pub fn where_cond(&self, a: impl Operand, b: impl Operand) -> TensorFuture {
        let at = Location::caller();
        // A number takes the other branch's type, if that is a tensor; two numbers their own.
        let other = |x: OperandRef<'_>| match x {
            OperandRef::Tensor(t) => Some(t.dtype()),
            OperandRef::Scalar(_) => None,
        };
        let (a, b) = (a.operand(), b.operand());
        let (ta, tb) = (other(a), other(b));
        let tensor = |x: OperandRef<'_>, beside: Option<DType>| match x {
            OperandRef::Tensor(t) => t.clone(),
            OperandRef::Scalar(s) => {
                let dtype = beside.map_or(s.default_dtype(), |t| t.promote_scalar(s));
                build::create(self.port(), Op::Fill(s), ().into(), dtype, at)
            }
        };
        let (a, b) = (tensor(a, tb), tensor(b, ta));
        let rule = || {
            if self.dtype() != DType::Bool {
                return Err(Refusal::dtype(format!("the condition is {}, not bool", self.dtype())));
            }
            let shape = infer::broadcast(&infer::broadcast(self.shape(), a.shape())?, b.shape())?;
            let dtype = a.dtype().promote_ranked(a.rank(), b.dtype(), b.rank());
            Ok(Meta { shape, dtype })
        };
        build::apply(Op::Where, &[self, &a, &b], rule, at)
    }

    /// `self` limited to `min..=max`; NaN stays NaN. Numbers beyond what an integer type holds limit nothing.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().from_vec(vec![1u8, 200], [2]);
    /// assert_eq!(x.clamp(-5, 300).to_vec::<u8>().await?, [1, 200]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn clamp(&self, min: impl Operand, max: impl Operand) -> TensorFuture {
        let at = Location::caller();
        let _within = build::within("clamp", at);
        let low = binary(BinaryOp::Maximum, self, min, at);
        binary(BinaryOp::Minimum, &low, max, at)
    }

    /// Matrix product, as PyTorch's `matmul`: the last two dimensions are multiplied, the others are
    /// broadcast; a vector is a row on the left and a column on the right.
    ///
    /// Halves are accumulated in float32 and rounded once at the end. Both operands have the same type.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let a = device.from_vec(vec![1.0f32, 2.0, 3.0, 4.0], [2, 2]);
    /// assert_eq!(a.matmul(&a).to_vec::<f32>().await?, [7.0, 10.0, 15.0, 22.0]);
    /// assert!(a.matmul(&device.ones([3])).error().unwrap().is_shape());
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[doc(alias = "dot")]
    #[track_caller]
    pub fn matmul(&self, other: impl AsRef<TensorFuture>) -> TensorFuture {
        build::custom(Arc::new(MatMul), &[self, other.as_ref()], Location::caller())
    }

    /// [`matmul`](Self::matmul) with the last two dimensions of either operand changed.
    #[track_caller]
    pub(crate) fn matmul_turned(&self, a: bool, other: &TensorFuture, b: bool) -> TensorFuture {
        let at = Location::caller();
        let _within = build::within("matmul", at);
        if self.rank() == 2 && other.rank() == 2 && self.port().host && (a || b) {
            return build::custom(Arc::new(Turned { a, b }), &[self, other], at);
        }
        let turned = |x: &TensorFuture, turn: bool| if turn { x.transpose(-1, -2) } else { x.clone() };
        build::custom(Arc::new(MatMul), &[&turned(self, a), &turned(other, b)], at)
    }
}
