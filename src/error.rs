//! The error type: opaque, cheap to clone, with the caller's line.
//!
//! An error stays with its value: every value computed from a failed one fails with the same root
//! error. So an [`Error`] is an `Arc`, and cloning one increments a count. Predicates
//! (`is_shape`...) tell the kinds apart; the message names the op, the shapes, the device and the
//! caller's line.

use std::{panic::Location, sync::Arc};

/// `Result` with futensor's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A count with its noun, singular or plural.
pub(crate) fn number_of(n: usize, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

/// A number of bytes, likewise.
pub(crate) fn bytes_of(n: usize) -> String {
    number_of(n, "byte", "bytes")
}

/// The kind of error. Private: callers use the predicates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ErrorKind {
    Shape,
    DType,
    Device,
    Index,
    Argument,
    OutOfMemory,
    Kernel,
    DeviceLost,
    Shutdown,
    Source,
    Barrier,
    Refused,
    /// The lost member of a group, by its rank in the group.
    #[allow(dead_code)] // Made where there are ranks.
    PeerLost(u32),
}

/// Why a value could not be computed.
///
/// Displays as `op: what happened (file:line)`.
///
/// ```
/// # fn main() { futures::executor::block_on(async {
/// use futensor::Device;
/// let device = Device::cpu();
/// let failed = device.ones([2, 3]) * device.ones([4]);
/// let error = failed.await.unwrap_err();
/// assert!(error.is_shape());
/// assert!(error.to_string().starts_with("mul: cannot broadcast [2, 3] with [4] ("));
/// # }) }
/// ```
#[derive(Clone, thiserror::Error)]
#[error("{}: {} ({}:{})", .0.op, .0.message, .0.at.file(), .0.at.line())]
pub struct Error(Arc<Inner>);

struct Inner {
    kind: ErrorKind,
    op: String,
    message: String,
    at: &'static Location<'static>,
    /// Each error of a `waitall` that returns several.
    several: Vec<Error>,
}

impl Error {
    #[cold]
    pub(crate) fn new(
        kind: ErrorKind,
        op: impl Into<String>,
        message: impl Into<String>,
        at: &'static Location<'static>,
    ) -> Error {
        Error(Arc::new(Inner {
            kind,
            op: op.into(),
            message: message.into(),
            at,
            several: Vec::new(),
        }))
    }

    /// An error for a custom op: `op` names the op, `message` says what went wrong. The error gets
    /// the line where the op was called, if the engine knows it, otherwise the line of this call.
    ///
    /// ```
    /// let error = futensor::Error::custom("fft", "length 7 is not a power of two");
    /// assert!(error.to_string().starts_with("fft: length 7 is not a power of two"));
    /// ```
    #[track_caller]
    pub fn custom(op: &str, message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Kernel, op, message, Location::caller())
    }

    /// One error made of several; `more` were counted but not kept.
    pub(crate) fn several(kept: Vec<Error>, more: usize) -> Option<Error> {
        let first = kept.first()?.clone();
        if kept.len() + more == 1 {
            return Some(first);
        }
        let message =
            format!("{} detached ops failed; the first: {}", kept.len() + more, first.message());
        let (kind, op, at) = (first.kind(), first.op().to_string(), first.location());
        Some(Error(Arc::new(Inner { kind, op, message, at, several: kept })))
    }

    /// All errors that a `waitall` returned together (64 are kept, the rest are counted in the
    /// message). Any other error returns itself alone.
    pub fn errors(&self) -> &[Error] {
        if self.0.several.is_empty() { std::slice::from_ref(self) } else { &self.0.several }
    }

    pub(crate) fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The name of the operation that failed first.
    pub fn op(&self) -> &str {
        &self.0.op
    }

    /// What went wrong, without the op and the source line.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The line of the caller's source that called the failed operation.
    pub fn location(&self) -> &'static Location<'static> {
        self.0.at
    }

    /// The shapes do not fit each other or the op.
    pub fn is_shape(&self) -> bool {
        self.kind() == ErrorKind::Shape
    }
    /// An element type does not fit the op or the read.
    pub fn is_dtype(&self) -> bool {
        self.kind() == ErrorKind::DType
    }
    /// The operands are on different devices, or the device does not exist.
    pub fn is_device(&self) -> bool {
        self.kind() == ErrorKind::Device
    }
    /// An index or a dimension is out of range.
    pub fn is_index(&self) -> bool {
        self.kind() == ErrorKind::Index
    }
    /// Another argument is invalid.
    pub fn is_argument(&self) -> bool {
        self.kind() == ErrorKind::Argument
    }
    /// The memory for the result could not be allocated.
    pub fn is_out_of_memory(&self) -> bool {
        self.kind() == ErrorKind::OutOfMemory
    }
    /// The op's kernel panicked or reported a failure.
    pub fn is_kernel(&self) -> bool {
        self.kind() == ErrorKind::Kernel
    }
    /// The device is lost, with all work that was pending on it: after a fault, a disconnect, or a
    /// timeout of the watchdog.
    pub fn is_device_lost(&self) -> bool {
        self.kind() == ErrorKind::DeviceLost
    }
    /// The device was shut down before the op started.
    pub fn is_shutdown(&self) -> bool {
        self.kind() == ErrorKind::Shutdown
    }
    /// The future that was to supply the data failed.
    pub fn is_source(&self) -> bool {
        self.kind() == ErrorKind::Source
    }
    /// A barrier inside [`deny_barriers`](crate::barrier::deny_barriers).
    pub fn is_barrier(&self) -> bool {
        self.kind() == ErrorKind::Barrier
    }
    /// A queue was full or closed: try again later, or elsewhere.
    pub fn is_refused(&self) -> bool {
        self.kind() == ErrorKind::Refused
    }

    /// A member of a group of ranks was lost or did not join: [`lost_rank`](Self::lost_rank) says
    /// which.
    pub fn is_peer_lost(&self) -> bool {
        self.lost_rank().is_some()
    }
    /// The rank of the lost member, in the group of the failed op.
    pub fn lost_rank(&self) -> Option<usize> {
        match self.kind() {
            ErrorKind::PeerLost(rank) => Some(rank as usize),
            _ => None,
        }
    }

    /// True if both errors have the same root, not merely equal texts.
    pub fn same_root(&self, other: &Error) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Error({:?}, {self})", self.0.kind)
    }
}
