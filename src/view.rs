//! Host memory for kernels: views for reading, a view for writing, and a way to use threads.
//!
//! Shared by kernels, ops and custom ops. Knows nothing of nodes or engines: the creator of a view
//! promises that the memory is valid.

#![allow(unsafe_code)]

use crate::dtype::{DType, Element};
use crate::room;
use crate::shape::contiguous_strides;
use std::marker::PhantomData;

/// A value as a CPU kernel reads it: sizes, strides in elements, and the memory behind them.
#[derive(Clone, Copy)]
pub struct View<'a> {
    /// Address of the element at index (0, 0, ...). Valid for reads at every index of the shape.
    /// Null for an input of a custom op whose elements are in the output.
    pub(crate) ptr: *const u8,
    pub(crate) dtype: DType,
    pub(crate) shape: &'a [usize],
    pub(crate) strides: &'a [isize],
}

// SAFETY: a `View` is a shared reference to plain elements that are not written while it lives.
unsafe impl Send for View<'_> {}
// SAFETY: as above.
unsafe impl Sync for View<'_> {}

impl<'a> View<'a> {
    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Sizes of the dimensions.
    pub fn shape(&self) -> &'a [usize] {
        self.shape
    }

    /// The distance in elements between neighbouring indices, for each dimension; 0 repeats.
    pub fn strides(&self) -> &'a [isize] {
        self.strides
    }

    /// The number of elements.
    pub fn numel(&self) -> usize {
        if self.shape.contains(&0) { 0 } else { self.shape.iter().product() }
    }

    /// True if the elements are stored in row-major order without gaps.
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
                step = step.wrapping_mul(n as isize);
            }
        }
        true
    }

    /// The same shape and type, without the elements, which may be written through another view.
    pub(crate) fn without_elements(self) -> View<'a> {
        View { ptr: std::ptr::null(), ..self }
    }

    fn has_elements_of<T: Element>(&self) -> bool {
        T::DTYPE == self.dtype && (!self.ptr.is_null() || self.numel() == 0)
    }

    /// The elements as a slice, if they are contiguous and of type `T`. Also `None` for the
    /// input that [`Operation::reuses`](crate::custom::Operation::reuses) names: its elements are
    /// in the output.
    pub fn as_slice<T: Element>(&self) -> Option<&'a [T]> {
        if !self.has_elements_of::<T>() || !self.is_contiguous() {
            return None;
        }
        let n = self.numel();
        if n == 0 {
            return Some(&[]);
        }
        // SAFETY: contiguous, so the n elements from `ptr` are exactly those of the shape; the
        // maker of the view promised that they can be read and are valid (a bool is 0 or 1), and
        // buffers are aligned to their element.
        Some(unsafe { std::slice::from_raw_parts(self.ptr as *const T, n) })
    }

    /// A copy of the elements in row-major order, if they are of type `T`. Also `None` for the
    /// input that [`Operation::reuses`](crate::custom::Operation::reuses) names: its elements are
    /// in the output. Without memory for the copy the kernel ends here, and its value fails with an
    /// out-of-memory error.
    pub fn to_vec<T: Element>(&self) -> Option<Vec<T>> {
        if !self.has_elements_of::<T>() {
            return None;
        }
        if let Some(slice) = self.as_slice() {
            let mut copy = room::with_capacity(slice.len());
            copy.extend_from_slice(slice);
            return Some(copy);
        }
        let rows = contiguous_strides(self.shape);
        let at = |i: usize| {
            let index = self.shape.iter().zip(&rows).map(|(&n, &r)| i / r as usize % n);
            let offset: isize = index.zip(self.strides).map(|(i, &s)| i as isize * s).sum();
            // SAFETY: every coordinate is inside the shape, for which reads are promised.
            unsafe { *(self.ptr as *const T).offset(offset) }
        };
        let mut copy = room::with_capacity(self.numel());
        copy.extend((0..self.numel()).map(at));
        Some(copy)
    }
}

/// The memory that a CPU kernel writes: contiguous, row-major, possibly uninitialised, exclusive.
pub struct ViewMut<'a> {
    /// Address of the first element. Valid for writes of all elements.
    pub(crate) ptr: *mut u8,
    pub(crate) dtype: DType,
    pub(crate) shape: &'a [usize],
    pub(crate) life: PhantomData<&'a mut [u8]>,
}

// SAFETY: a `ViewMut` is an exclusive reference to plain elements.
unsafe impl Send for ViewMut<'_> {}
// SAFETY: kernels share it between threads only to write disjoint elements.
unsafe impl Sync for ViewMut<'_> {}

impl ViewMut<'_> {
    /// The number of elements.
    pub fn numel(&self) -> usize {
        if self.shape.contains(&0) { 0 } else { self.shape.iter().product() }
    }

    /// Fills all elements from an iterator, in row-major order. False if the type differs or the
    /// iterator ends early; the elements are then unspecified.
    pub fn fill_from<T: Element>(&mut self, values: impl IntoIterator<Item = T>) -> bool {
        if T::DTYPE != self.dtype {
            return false;
        }
        let mut values = values.into_iter();
        for i in 0..self.numel() {
            match values.next() {
                // SAFETY: `i` is below the number of elements, which may be written.
                Some(v) => unsafe { (self.ptr as *mut T).add(i).write(v) },
                None => return false,
            }
        }
        true
    }
}

/// The output of a custom CPU kernel: the elements of the result, contiguous and row-major.
///
/// The old contents of the memory are not accessible: an op writes all elements with
/// [`fill_from`](Self::fill_from), or takes them as a slice of zeros. If it
/// [reuses](crate::custom::Operation::reuses) an input, they are that input's elements. An
/// unwritten element fails the value.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, custom::{Meta, Refusal, custom_fn}};
/// let x = Device::cpu().arange(0.0, 4.0, 1.0);
/// let infer = |inputs: &[&Meta]| Ok(inputs[0].clone());
/// let every_other = custom_fn("every_other", &[&x], infer, |run| {
///     let x = run.inputs()[0].to_vec::<f32>().ok_or_else(|| Refusal::dtype("float32 only"))?;
///     let out = run.output().into_slice::<f32>().ok_or_else(|| Refusal::dtype("float32 only"))?;
///     for (out, x) in out.iter_mut().zip(x).step_by(2) {
///         *out = x + 1.0;
///     }
///     Ok(())
/// });
/// assert_eq!(every_other.to_vec::<f32>().await?, [1.0, 0.0, 3.0, 0.0]);
/// let short = custom_fn("short", &[&x], infer, |run| {
///     run.output().fill_from([1.0f32, 2.0]);
///     Ok(())
/// });
/// assert_eq!(short.await.unwrap_err().message(), "it wrote 2 of 4 elements of its result");
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
pub struct Output<'r> {
    view: ViewMut<'r>,
    /// The number of elements, from the first, that are initialised.
    written: &'r mut usize,
}

impl<'r> Output<'r> {
    /// The first `written` elements of the view are initialised.
    pub(crate) fn new(view: ViewMut<'r>, written: &'r mut usize) -> Output<'r> {
        Output { view, written }
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.view.dtype
    }

    /// Sizes of the dimensions.
    pub fn shape(&self) -> &'r [usize] {
        self.view.shape
    }

    /// The number of elements.
    pub fn numel(&self) -> usize {
        self.view.numel()
    }

    /// Writes the elements from an iterator, in row-major order. False if the type differs, which
    /// writes nothing, or if the iterator ends early.
    pub fn fill_from<T: Element>(self, values: impl IntoIterator<Item = T>) -> bool {
        /// Counts the written elements even if the iterator panics.
        struct Count<'r>(usize, &'r mut usize);
        impl Drop for Count<'_> {
            fn drop(&mut self) {
                *self.1 = self.0.max(*self.1);
            }
        }
        if T::DTYPE != self.view.dtype {
            return false;
        }
        let n = self.numel();
        let mut count = Count(0, self.written);
        for value in values.into_iter().take(n) {
            // SAFETY: `take` gives no more than n, so it is below the number of elements, which may
            // be written.
            unsafe { (self.view.ptr as *mut T).add(count.0).write(value) };
            count.0 += 1;
        }
        count.0 == n
    }

    /// The elements as a slice: those written before, then zeros; or the input's elements, if the
    /// op [reuses](crate::custom::Operation::reuses) one. `None` if they are not of type `T`.
    pub fn into_slice<T: Element>(self) -> Option<&'r mut [T]> {
        if T::DTYPE != self.view.dtype {
            return None;
        }
        let n = self.numel();
        if n == 0 {
            return Some(&mut []);
        }
        let first = self.view.ptr as *mut T;
        // SAFETY: n elements from `first` are exclusively ours, for as long as the run is borrowed.
        // The first `written` are initialised, and zero is a valid value of every element type.
        unsafe {
            std::ptr::write_bytes(first.add(*self.written), 0, n - *self.written);
            *self.written = n;
            Some(std::slice::from_raw_parts_mut(first, n))
        }
    }
}

/// Runs the parts of a kernel on several threads. Implemented by the device.
pub trait Parallel: Sync {
    /// The number of available threads, including the caller's.
    fn threads(&self) -> usize;
    /// Calls `part(0)` ... `part(parts - 1)`, each once, on any thread, and returns when all are
    /// done.
    fn run(&self, parts: usize, part: &(dyn Fn(usize) + Sync));
    /// True if another thread is awake, so that parts of a quarter of the usual work are worth a
    /// hand-over, or if a step asked shortly before, so that threads had better stay awake. Ask
    /// only where the answer matters.
    #[doc(hidden)]
    fn is_awake(&self) -> bool {
        false
    }
}

/// Runs all parts on the caller's thread.
pub(crate) struct Serial;

impl Parallel for Serial {
    fn threads(&self) -> usize {
        1
    }
    fn run(&self, parts: usize, part: &(dyn Fn(usize) + Sync)) {
        (0..parts).for_each(part);
    }
}
