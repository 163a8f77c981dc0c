//! The arithmetic. Kernels take views of host memory and a way to run in parallel; they know no
//! nodes, no engine and no devices, and never allocate results.

pub(crate) mod cpu;
pub(crate) mod cuda;
pub(crate) mod philox;

use crate::dtype::DType;
use std::marker::PhantomData;

/// A value as a CPU kernel reads it: a pointer to its first element, sizes, strides in elements.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    /// Address of the element at index (0, 0, ...). Valid for reads at every index of the shape.
    pub ptr: *const u8,
    pub dtype: DType,
    pub shape: &'a [usize],
    pub strides: &'a [isize],
}

// SAFETY: a `View` is a shared reference to plain elements that nobody writes while it lives.
#[allow(unsafe_code)]
unsafe impl Send for View<'_> {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl Sync for View<'_> {}

impl View<'_> {
    /// How many elements there are.
    pub fn numel(&self) -> usize {
        self.shape.iter().product()
    }

    /// True where elements lie row by row without gaps.
    pub fn is_contiguous(&self) -> bool {
        let mut step = 1isize;
        for (&n, &s) in self.shape.iter().zip(self.strides).rev() {
            if n == 0 {
                return true;
            }
            if n != 1 {
                if s != step {
                    return false;
                }
                step *= n as isize;
            }
        }
        true
    }
}

/// Where a CPU kernel writes: contiguous, row-major, possibly uninitialised, exclusively its own.
pub(crate) struct ViewMut<'a> {
    /// Address of the first element. Valid for writes of all elements.
    pub ptr: *mut u8,
    pub dtype: DType,
    pub shape: &'a [usize],
    pub life: PhantomData<&'a mut [u8]>,
}

// SAFETY: a `ViewMut` is an exclusive reference to plain elements.
#[allow(unsafe_code)]
unsafe impl Send for ViewMut<'_> {}
// SAFETY: kernels share it between threads only to write disjoint elements.
#[allow(unsafe_code)]
unsafe impl Sync for ViewMut<'_> {}

impl ViewMut<'_> {
    /// How many elements there are.
    pub fn numel(&self) -> usize {
        self.shape.iter().product()
    }
}

/// A way to run the parts of a kernel on several threads. The backend brings it.
pub(crate) trait Parallel: Sync {
    /// How many threads can be had, the caller's included.
    fn threads(&self) -> usize;
    /// Calls `part(0)` ... `part(parts - 1)`, each once, on any thread, and returns when all are done.
    fn run(&self, parts: usize, part: &(dyn Fn(usize) + Sync));
}

/// The caller's thread alone.
pub(crate) struct Serial;

impl Parallel for Serial {
    fn threads(&self) -> usize {
        1
    }
    fn run(&self, parts: usize, part: &(dyn Fn(usize) + Sync)) {
        (0..parts).for_each(part);
    }
}
