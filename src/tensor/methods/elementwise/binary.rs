//! Elementwise ops of two operands (rows of the table), and of three.

use crate::dtype::DType;
use crate::graph::infer;
use crate::graph::node::Op;
use crate::graph::operation::{Meta, Refusal};
use crate::op::{BinaryOp, for_each_binary};
use crate::tensor::build;
use crate::tensor::future::TensorFuture;
use crate::tensor::methods::aliases::aliased;
use crate::tensor::operand::operators::binary;
use crate::tensor::operand::{Operand, OperandRef};
use std::panic::Location;

macro_rules! binary_methods {
    ($($name:ident: $Variant:ident {
        doc: $text:literal,
        $($columns:tt)*
    })*) => {
        /// # Of two operands
        ///
        /// Elementwise. The operands are broadcast against each other and promoted to a common
        /// type; `b` may be a number. Nothing waits. Shapes that do not broadcast make a failed
        /// value.
        // The operators are there too; these take any operand.
        #[allow(clippy::should_implement_trait)]
        impl TensorFuture {
            $(aliased! { $name
                #[doc = $text]
                #[track_caller]
                pub fn $name(&self, b: impl Operand) -> TensorFuture {
                    binary(BinaryOp::$Variant, self, b, Location::caller())
                }
            })*
        }
    };
}
for_each_binary!(binary_methods);

/// Elementwise ops with a condition or limits.
impl TensorFuture {
    /// `a` where this condition is true, `b` elsewhere; all three are broadcast. PyTorch's `where`,
    /// which is a keyword in Rust.
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
        // A number takes the type of the other branch, if that is a tensor; two numbers keep their
        // own types.
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
            let dtype = infer::chosen((a.dtype(), a.rank()), (b.dtype(), b.rank()))?;
            Ok(Meta { shape, dtype })
        };
        build::apply(Op::Where, &[self, &a, &b], rule, at)
    }

    /// `value` where `mask` (bool, broadcast) is true, this value elsewhere.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().arange(0, 3, 1);
    /// assert_eq!(x.masked_fill(x.gt(0), 9).to_vec::<i64>().await?, [0, 9, 9]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn masked_fill(
        &self,
        mask: impl AsRef<TensorFuture>,
        value: impl crate::tensor::operand::Operand,
    ) -> TensorFuture {
        let _within = build::within("masked_fill", Location::caller());
        mask.as_ref().where_cond(value, self).to_dtype(self.dtype())
    }

    /// Clamps the elements to `min..=max`; NaN stays NaN. A limit outside the range of an integer
    /// type has no effect.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().from_vec(vec![1u8, 200], [2]);
    /// assert_eq!(x.clamp(-5, 300).to_vec::<u8>().await?, [1, 200]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[doc(alias = "clip")]
    #[track_caller]
    pub fn clamp(&self, min: impl Operand, max: impl Operand) -> TensorFuture {
        let at = Location::caller();
        let _within = build::within("clamp", at);
        let low = binary(BinaryOp::Maximum, self, min, at);
        binary(BinaryOp::Minimum, &low, max, at)
    }

    /// Clamps the elements to at least `min`; NaN stays NaN.
    #[track_caller]
    pub fn clamp_min(&self, min: impl Operand) -> TensorFuture {
        let _within = build::within("clamp_min", Location::caller());
        self.maximum(min)
    }

    /// Clamps the elements to at most `max`; NaN stays NaN.
    #[track_caller]
    pub fn clamp_max(&self, max: impl Operand) -> TensorFuture {
        let _within = build::within("clamp_max", Location::caller());
        self.minimum(max)
    }
}
