//! Lines, planes or volumes, all of them "planes", that the kernels of windows walk over.

use crate::host::kernels::nest::{Nest, Shared};
use crate::view::View;
use crate::window::triple;

/// Elements below which a further thread does not pay (two such parts, the largest of 2 x 2 in
/// planes of 32 x 32: 57.5, 32.4, 35.1 us).
pub(super) const LEAST: usize = if cfg!(all(test, debug_assertions)) { 200 } else { 16 << 10 };

/// Planes of a value, and the steps within one.
pub(super) struct Planes<T> {
    nest: Nest<1>,
    at: Shared<T>,
    pub steps: [isize; 3],
}

impl<T> Planes<T> {
    pub fn new(view: &View<'_>, spatial: usize) -> Planes<T> {
        let lead = view.shape.len() - spatial;
        let nest = Nest::new(&view.shape[..lead], [&view.strides[..lead]]).merged();
        let steps = triple(&view.strides[lead..], 0);
        Planes { nest, at: Shared::new(view.ptr.cast_mut()), steps }
    }

    pub fn numel(&self) -> usize {
        self.nest.numel()
    }

    /// Where a plane begins.
    pub fn plane(&self, i: usize) -> Shared<T> {
        Shared::new(self.at.at(self.nest.at(i)[0]))
    }
}

/// Calls a kernel that is generic over an element and what it is computed in, for a number.
macro_rules! by_number {
    ($dtype:expr, $f:ident($($arg:expr),*)) => {
        match $dtype {
            $crate::dtype::DType::I32 => $f::<i32, i64>($($arg),*),
            $crate::dtype::DType::I64 => $f::<i64, i64>($($arg),*),
            $crate::dtype::DType::U8 => $f::<u8, i64>($($arg),*),
            float => $crate::host::kernels::load::by_float!(float, $f($($arg),*)),
        }
    };
}
pub(super) use by_number;
