//! The reason why an op refuses its operands.

use crate::dtype::DType;
use crate::error::{ErrorKind, bytes_of};

/// Why an op refuses its operands, or why its kernel failed: a kind and a message. The
/// engine adds the op's name and the caller's line.
///
/// ```
/// use futensor::custom::Refusal;
/// let refusal = Refusal::shape("length 7 is not a power of two");
/// assert_eq!(refusal.to_string(), "length 7 is not a power of two");
/// ```
#[derive(Clone, Debug)]
pub struct Refusal {
    pub(crate) kind: ErrorKind,
    pub(crate) message: String,
}

macro_rules! refusals {
    ($($(#[$doc:meta])* $name:ident $kind:ident;)*) => {$(
        $(#[$doc])*
        pub fn $name(message: impl Into<String>) -> Refusal {
            Refusal { kind: ErrorKind::$kind, message: message.into() }
        }
    )*};
}

impl Refusal {
    refusals! {
        /// The shapes do not fit.
        shape Shape;
        /// An element type does not fit.
        dtype DType;
        /// An index or dimension is out of range.
        index Index;
        /// Another argument is invalid.
        argument Argument;
        /// The kernel failed.
        kernel Kernel;
    }
}

impl Refusal {
    /// The refusal of memory of the host's.
    pub(crate) fn no_host_memory(bytes: usize) -> Refusal {
        let message = format!("out of memory: {} on the host", bytes_of(bytes));
        Refusal { kind: ErrorKind::OutOfMemory, message }
    }

    /// The refusal of an op that computes, of a type that is only stored.
    pub(crate) fn storage(dtype: DType) -> Refusal {
        Refusal::dtype(format!(
            "{dtype} is for storage and has no arithmetic: convert with to_dtype"
        ))
    }

    /// The refusal of an op that computes in floating point types alone.
    pub(crate) fn not_float(dtype: DType) -> Refusal {
        Refusal::dtype(format!("needs a floating point type, not {dtype}"))
    }

    /// The same refusal of operands of these types. That of a type for storage says what to do.
    pub(crate) fn of_types(mut self, mut types: impl Iterator<Item = DType>) -> Refusal {
        const WHAT_TO_DO: &str = ": convert with to_dtype";
        let is_told = self.kind != ErrorKind::DType || self.message.ends_with(WHAT_TO_DO);
        if !is_told && types.any(DType::is_storage) {
            self.message += WHAT_TO_DO;
        }
        self
    }

    /// The refusal of an op without a gradient.
    pub(crate) fn no_gradient() -> Refusal {
        Refusal::argument("this op has no gradient rule")
    }

    /// The refusal of an op without a kernel for this kind of device.
    pub(crate) fn no_kernel(name: &str) -> Refusal {
        Refusal::kernel(format!(
            "{name} has no CUDA kernel: copy its operands to the CPU with to_device"
        ))
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}
