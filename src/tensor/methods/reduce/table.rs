//! Reductions: rows of the table, and positions of the largest and smallest elements.

use crate::dtype::DType;
use crate::op::{ReduceOp, for_each_reduce};
use crate::ops::rows::logsumexp::LogSumExp;
use crate::shape::Shape;
use crate::tensor::build::{self, custom, mixed};
use crate::tensor::dims::Dims;
use crate::tensor::future::TensorFuture;
use crate::tensor::methods::aliases::aliased;
use std::panic::Location;
use std::sync::Arc;

/// The methods of a row. Positions have their own methods below, since they reduce one dimension.
macro_rules! methods_of {
    (index, $($of_one_dim:tt)*) => {};
    (sum, $($row:tt)*) => { methods_of! { $($row)* } };
    (float, $($row:tt)*) => { methods_of! { $($row)* } };
    (same, $($row:tt)*) => { methods_of! { $($row)* } };
    (test, $($row:tt)*) => { methods_of! { $($row)* } };
    ($Variant:ident, $name:ident $keepdim:ident $everything:ident $text:literal) => {
        aliased! { $name
            #[doc = $text]
            #[track_caller]
            pub fn $name(&self, dims: impl Dims) -> TensorFuture {
                let at = Location::caller();
                build::reduce(ReduceOp::$Variant, self, Some(&dims.dims()), false, at)
            }
        }
        #[doc = concat!("As [`", stringify!($name), "`](Self::", stringify!($name), "), with the ")]
        #[doc = "dimensions kept at size 1."]
        #[track_caller]
        pub fn $keepdim(&self, dims: impl Dims) -> TensorFuture {
            let at = Location::caller();
            build::reduce(ReduceOp::$Variant, self, Some(&dims.dims()), true, at)
        }
        #[doc = concat!("As [`", stringify!($name), "`](Self::", stringify!($name), ") over ")]
        #[doc = "everything: a 0-d result."]
        #[track_caller]
        pub fn $everything(&self) -> TensorFuture {
            build::reduce(ReduceOp::$Variant, self, None, false, Location::caller())
        }
    };
}

macro_rules! reduce_methods {
    ($($name:ident: $Variant:ident {
        doc: $text:literal,
        keepdim: $keepdim:ident, everything: $everything:ident,
        class: $class:ident, cost: $cost:ident, rounds: $rounds:ident, of_nothing: $nothing:ident,
        of_no_dims: $no_dims:ident, domain: $domain:ident,
        gradient: $gradient:tt,
    })*) => {
        /// # Reductions
        ///
        /// `dims` is one dimension or several (`0`, `[0, -1]`); negative numbers count from the
        /// end. The dimensions are removed, or keep size 1 in the `_keepdim` form. `()` and an
        /// empty list are PyTorch's `dim=()`: all dimensions are reduced, except by `any` and
        /// `all`, which then reduce none. Nothing waits.
        impl TensorFuture {
            $(methods_of! { $class, $Variant, $name $keepdim $everything $text })*
        }
    };
}
for_each_reduce!(reduce_methods);

/// Positions, and the logarithm of a sum of exponentials.
impl TensorFuture {
    /// The position of the largest element along `dim` as int64; the first one of equal elements.
    /// NaN counts as largest.
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

    /// As [`argmax`](Self::argmax), with the dimension kept at size 1.
    #[track_caller]
    pub fn argmax_keepdim(&self, dim: isize) -> TensorFuture {
        build::reduce(ReduceOp::ArgMax, self, Some(&[dim]), true, Location::caller())
    }

    /// As [`argmax`](Self::argmax) over all elements in row-major order: a 0-d result.
    #[track_caller]
    pub fn argmax_all(&self) -> TensorFuture {
        build::reduce(ReduceOp::ArgMax, self, None, false, Location::caller())
    }

    /// The position of the smallest element along `dim` as int64; the first one of equal elements.
    /// NaN counts as smallest.
    #[track_caller]
    pub fn argmin(&self, dim: isize) -> TensorFuture {
        build::reduce(ReduceOp::ArgMin, self, Some(&[dim]), false, Location::caller())
    }

    /// As [`argmin`](Self::argmin), with the dimension kept at size 1.
    #[track_caller]
    pub fn argmin_keepdim(&self, dim: isize) -> TensorFuture {
        build::reduce(ReduceOp::ArgMin, self, Some(&[dim]), true, Location::caller())
    }

    /// As [`argmin`](Self::argmin) over all elements in row-major order: a 0-d result.
    #[track_caller]
    pub fn argmin_all(&self) -> TensorFuture {
        build::reduce(ReduceOp::ArgMin, self, None, false, Location::caller())
    }

    /// `log sum e^x` over dimensions, which are removed. Integers and bool are computed in float32.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().full([2, 3], 5.0);
    /// assert_eq!(x.logsumexp(0).dims(), [3]);
    /// let all = x.logsumexp([0, 1]).item::<f32>().await?;
    /// assert!((all - (5.0 + 6f32.ln())).abs() < 1e-5);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn logsumexp(&self, dims: impl Dims) -> TensorFuture {
        self.logsumexp_over(&dims.dims(), false, Location::caller())
    }

    /// As [`logsumexp`](Self::logsumexp), with the dimensions kept at size 1.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().zeros([2, 3]);
    /// assert_eq!(x.logsumexp_keepdim(0).dims(), [1, 3]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn logsumexp_keepdim(&self, dims: impl Dims) -> TensorFuture {
        self.logsumexp_over(&dims.dims(), true, Location::caller())
    }

    #[track_caller]
    fn logsumexp_over(&self, dims: &[isize], keepdim: bool, at: build::At) -> TensorFuture {
        if !self.dtype().is_float() && !self.dtype().is_storage() {
            let _within = build::within("logsumexp", at);
            return self.to_dtype(DType::F32).logsumexp_over(dims, keepdim, at);
        }
        if let &[dim] = dims {
            return custom(Arc::new(LogSumExp { dim, keepdim }), &[self], at);
        }
        if let Some(x) = mixed::widened(self, at) {
            return x.logsumexp_over(dims, keepdim, at);
        }
        let gone: Vec<usize> = match build::named_dims(self, dims) {
            // No dimensions means all, as in other reductions.
            Ok(named) if named.is_empty() => (0..self.rank()).collect(),
            Ok(named) => named.to_vec(),
            Err(refusal) => return build::refused("logsumexp", self, refusal, at),
        };
        let _within = build::within("logsumexp", at);
        // Merges several dimensions into one, at the end.
        let kept: Vec<usize> = (0..self.rank()).filter(|d| !gone.contains(d)).collect();
        let order: Vec<usize> = kept.iter().chain(&gone).copied().collect();
        let mut shape: Vec<usize> = kept.iter().map(|&d| self.dims()[d]).collect();
        shape.push(gone.iter().map(|&d| self.dims()[d]).collect::<Shape>().numel());
        let x = self.permute(&order[..]).reshape(&shape[..]);
        let y = custom(Arc::new(LogSumExp { dim: -1, keepdim: false }), &[&x], at);
        if !keepdim {
            return y;
        }
        let out: Vec<usize> =
            (0..self.rank()).map(|d| if gone.contains(&d) { 1 } else { self.dims()[d] }).collect();
        y.reshape(&out[..])
    }
}
