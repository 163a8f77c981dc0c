//! Pointers as they come over the C boundary, and handles.
//!
//! The entry points take `Out`, `In` and `Text` where the C prototypes have pointers (same
//! representation), so that the promise "null, or valid as the API says" is written, and relied on,
//! in this file alone. Handles are numbers that no pointer can have: using a stale one is an error
//! code, never a stray access.

use crate::status::{INVALID_HANDLE, INVALID_VALUE, Outcome};
use std::ffi::{CStr, c_char};

/// An opaque handle or a device address, as wide as a pointer.
pub type Handle = usize;

/// A place for one result: null, or valid for a write of `T`.
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Writes the result; `INVALID_VALUE` for null.
    pub fn set(&self, value: T) -> Outcome {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller of the C function promises that a non-null out-pointer is valid for
        // this write.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }
    /// Writes the result where there is a place.
    pub fn set_if_asked(&self, value: T) {
        if !self.0.is_null() {
            let _ = self.set(value);
        }
    }
    /// Reads what is there (for values that are both argument and result).
    pub fn get(&self) -> Outcome<T>
    where
        T: Copy,
    {
        In(self.0 as *const T).get()
    }
    /// True for a null pointer.
    pub fn is_null(&self) -> bool {
        self.0.is_null()
    }
    /// Writes consecutive results. The caller of the C function gave room for `values.len()`.
    pub fn set_all(&self, values: &[T]) -> Outcome
    where
        T: Copy,
    {
        if self.0.is_null() && !values.is_empty() {
            return Err(INVALID_VALUE);
        }
        for (i, value) in values.iter().enumerate() {
            // SAFETY: the caller of the C function promises room for the length it gave, and the
            // entry point passes no more than that.
            unsafe { self.0.add(i).write_unaligned(*value) };
        }
        Ok(())
    }
}

/// Arguments in memory: null, or valid for reads of `T`.
#[repr(transparent)]
pub struct In<T>(*const T);

impl<T: Copy> In<T> {
    /// Reads the argument; `INVALID_VALUE` for null.
    pub fn get(&self) -> Outcome<T> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller of the C function promises that a non-null in-pointer is valid for
        // this read.
        Ok(unsafe { self.0.read_unaligned() })
    }
    /// Reads `n` consecutive arguments.
    pub fn list(&self, n: usize) -> Outcome<Vec<T>> {
        if self.0.is_null() && n > 0 {
            return Err(INVALID_VALUE);
        }
        // SAFETY: as in `get`, for the number of elements the same caller gave.
        Ok((0..n).map(|i| unsafe { self.0.add(i).read_unaligned() }).collect())
    }
    /// Arguments at an address that stood in a struct of the caller's, under the same promise.
    pub fn at(address: usize) -> In<T> {
        In(address as *const T)
    }
}

/// A C string: null, or nul-terminated.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Text(*const c_char);

impl Text {
    /// No string.
    pub const fn null() -> Text {
        Text(std::ptr::null())
    }
    /// A literal that ends in a nul.
    pub fn fixed(text: &'static str) -> Text {
        debug_assert!(text.ends_with('\0'));
        Text(text.as_ptr().cast())
    }
    /// Its bytes as text; `INVALID_VALUE` for null.
    pub fn read(&self) -> Outcome<String> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller of the C function promises a nul-terminated string.
        Ok(unsafe { CStr::from_ptr(self.0) }.to_string_lossy().into_owned())
    }
}

/// Copies `text` and a nul into `room` bytes at `to`, cut where it does not fit. Returns the bytes
/// of text.
pub fn copy_text(text: &str, to: *mut c_char, room: usize) -> usize {
    if !to.is_null() && room > 0 {
        let n = text.len().min(room - 1);
        // SAFETY: the caller of the C function promises `room` writable bytes at `to`.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), to.cast::<u8>(), n);
            to.add(n).write(0);
        }
    }
    text.len()
}

/// What a handle stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Kind {
    Context = 1,
    Stream,
    Event,
    Module,
    Function,
    Pool,
    Graph,
    GraphExec,
    GraphNode,
    Blas,
    BlasLt,
    Dnn,
    Nccl,
    Program,
}

const TAG: usize = 0xF5 << 56;

/// The handle of object `id`. Not an address of user space, so that a client that follows it stops
/// at once.
pub fn handle(kind: Kind, id: u64) -> Handle {
    TAG | (kind as usize) << 48 | id as usize
}

/// The object's number; `INVALID_HANDLE` for anything that is not a handle of this kind.
pub fn id(kind: Kind, handle: Handle) -> Outcome<u64> {
    let expected = TAG | (kind as usize) << 48;
    if handle >> 48 == expected >> 48 {
        Ok((handle & 0xFFFF_FFFF_FFFF) as u64)
    } else {
        Err(INVALID_HANDLE)
    }
}
