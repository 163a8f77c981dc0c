//! Elementwise ops of one operand: rows of the table.

use crate::dtype::DType;
use crate::op::{UnaryOp, for_each_unary};
use crate::tensor::build;
use crate::tensor::future::TensorFuture;
use crate::tensor::methods::aliases::aliased;
use std::panic::Location;

macro_rules! unary_methods {
    ($($name:ident: $Variant:ident {
        doc: $text:literal,
        page: $page:ident, $($columns:tt)*
    })*) => {
        /// # Of one operand
        ///
        /// Elementwise. Integers and bool are computed as float32 where the op needs a floating
        /// point type. Nothing waits.
        impl TensorFuture {
            $(on_page! { $page {} { aliased! { $name
                #[doc = $text]
                #[track_caller]
                pub fn $name(&self) -> TensorFuture {
                    build::unary(UnaryOp::$Variant, self, Location::caller())
                }
            }}})*
        }
    };
}
for_each_unary!(unary_methods);

/// Composed of other rows.
impl TensorFuture {
    /// Inverts each bit of an integer; logical not for bool.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().from_vec(vec![0i32, 5], [2]);
    /// assert_eq!(x.bitwise_not().to_vec::<i32>().await?, [-1, -6]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[doc(alias = "invert")]
    #[track_caller]
    pub fn bitwise_not(&self) -> TensorFuture {
        let _within = build::within("bitwise_not", Location::caller());
        match self.dtype() {
            DType::Bool => self.logical_not(),
            DType::U8 => self.bitwise_xor(255),
            _ => self.bitwise_xor(-1),
        }
    }
}
