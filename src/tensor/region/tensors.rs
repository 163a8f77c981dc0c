//! What a region takes and gives: one tensor, or several in a tuple, an array or a `Vec`.

use crate::tensor::future::TensorFuture;

/// One or several tensors: what the closure of a [`Region`](super::Region) takes and gives.
///
/// Implemented for [`TensorFuture`], arrays and `Vec`s of it, and tuples of up to eight.
pub trait Tensors: Sized {
    /// The tensors, in order.
    fn into_list(self) -> Vec<TensorFuture>;

    /// The same from a list; `None` where the list is not as long as it has to be.
    fn from_list(list: Vec<TensorFuture>) -> Option<Self>;
}

impl Tensors for TensorFuture {
    fn into_list(self) -> Vec<TensorFuture> {
        vec![self]
    }
    fn from_list(mut list: Vec<TensorFuture>) -> Option<TensorFuture> {
        list.pop().filter(|_| list.is_empty())
    }
}

impl Tensors for Vec<TensorFuture> {
    fn into_list(self) -> Vec<TensorFuture> {
        self
    }
    fn from_list(list: Vec<TensorFuture>) -> Option<Vec<TensorFuture>> {
        Some(list)
    }
}

impl<const N: usize> Tensors for [TensorFuture; N] {
    fn into_list(self) -> Vec<TensorFuture> {
        self.into()
    }
    fn from_list(list: Vec<TensorFuture>) -> Option<[TensorFuture; N]> {
        list.try_into().ok()
    }
}

macro_rules! tuples {
    ($($name:ident)*) => {
        impl Tensors for ($(tuples!(@of $name),)*) {
            #[allow(non_snake_case)]
            fn into_list(self) -> Vec<TensorFuture> {
                let ($($name,)*) = self;
                vec![$($name),*]
            }
            #[allow(non_snake_case)]
            fn from_list(list: Vec<TensorFuture>) -> Option<Self> {
                let [$($name),*] = <[TensorFuture; tuples!(@count $($name)*)]>::try_from(list).ok()?;
                Some(($($name,)*))
            }
        }
    };
    (@of $name:ident) => { TensorFuture };
    (@count) => { 0 };
    (@count $first:ident $($rest:ident)*) => { 1 + tuples!(@count $($rest)*) };
}

tuples!();
tuples!(a);
tuples!(a b);
tuples!(a b c);
tuples!(a b c d);
tuples!(a b c d e);
tuples!(a b c d e f);
tuples!(a b c d e f g);
tuples!(a b c d e f g h);
