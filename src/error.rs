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
    NotFinite,
    /// The member of a group that is gone, by its rank there.
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

    /// True if shapes do not fit each other or the op.
    ///
    /// ```
    /// let device = futensor::Device::cpu();
    /// let wrong = device.ones([2, 3]) * device.ones([4]);
    /// assert!(wrong.error().unwrap().is_shape());
    /// ```
    pub fn is_shape(&self) -> bool {
        self.kind() == ErrorKind::Shape
    }

    /// True if an element type does not fit the op or the read.
    ///
    /// ```
    /// # futensor::block_on(async {
    /// let x = futensor::Device::cpu().ones([2]);
    /// assert!(x.to_vec::<i64>().await.unwrap_err().is_dtype());
    /// # });
    /// ```
    pub fn is_dtype(&self) -> bool {
        self.kind() == ErrorKind::DType
    }

    /// True if the operands are on different devices, or the device does not exist.
    ///
    /// ```
    /// use futensor::Device;
    /// let other = Device::cpu_with(Default::default());
    /// let wrong = Device::cpu().ones([2]) + other.ones([2]);
    /// assert!(wrong.error().unwrap().is_device());
    /// assert!(Device::cuda(1000).unwrap_err().is_device());
    /// ```
    pub fn is_device(&self) -> bool {
        self.kind() == ErrorKind::Device
    }

    /// True if an index or a dimension is out of range.
    ///
    /// ```
    /// let x = futensor::Device::cpu().ones([2, 3]);
    /// assert!(x.sum(5).error().unwrap().is_index());
    /// ```
    pub fn is_index(&self) -> bool {
        self.kind() == ErrorKind::Index
    }

    /// True if another argument is invalid.
    ///
    /// ```
    /// let x = futensor::Device::cpu().ones([2, 3]);
    /// assert!(x.sum([0, 0]).error().unwrap().is_argument());
    /// ```
    pub fn is_argument(&self) -> bool {
        self.kind() == ErrorKind::Argument
    }

    /// True if the memory for the result, or for its kernel to work in, could not be allocated.
    ///
    /// ```
    /// # futensor::block_on(async {
    /// use futensor::{CpuOptions, Device};
    /// let device = Device::cpu_with(CpuOptions::default().bytes_max(1 << 20));
    /// let large = device.ones([1 << 20]) + 1.0;
    /// assert!(large.await.unwrap_err().is_out_of_memory());
    /// # });
    /// ```
    pub fn is_out_of_memory(&self) -> bool {
        self.kind() == ErrorKind::OutOfMemory
    }

    /// True if the op's kernel panicked or said that it failed.
    ///
    /// ```
    /// # futensor::block_on(async {
    /// use futensor::{DType, Device, custom::{Meta, Refusal, custom_fn}};
    /// let x = Device::cpu().ones([2]);
    /// let meta = Meta::new([2], DType::F32);
    /// let failed = custom_fn("fails", &[&x], move |_| Ok(meta.clone()), |_| {
    ///     Err(Refusal::kernel("no luck"))
    /// });
    /// assert!(failed.await.unwrap_err().is_kernel());
    /// # });
    /// ```
    pub fn is_kernel(&self) -> bool {
        self.kind() == ErrorKind::Kernel
    }

    /// True if the device is lost, with all work that was pending on it: after a fault, a
    /// disconnect, or a timeout of the watchdog.
    ///
    /// ```
    /// use futensor::{Device, sim::SimOptions};
    /// let (device, simulation) = Device::simulated(SimOptions::new(1).device_loss_at(Some(1)));
    /// let y = device.ones([2]) + 1.0;
    /// assert!(simulation.block_on(y).unwrap().unwrap_err().is_device_lost());
    /// ```
    pub fn is_device_lost(&self) -> bool {
        self.kind() == ErrorKind::DeviceLost
    }

    /// True if the device was shut down before the op was taken up.
    ///
    /// ```
    /// # futensor::block_on(async {
    /// let device = futensor::Device::cpu_with(Default::default());
    /// device.shutdown().await?;
    /// assert!((device.ones([2]) + 1.0).await.unwrap_err().is_shutdown());
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    pub fn is_shutdown(&self) -> bool {
        self.kind() == ErrorKind::Shutdown
    }

    /// True if the future or file that was to supply the data failed.
    ///
    /// ```
    /// # futensor::block_on(async {
    /// let brings = async { Err::<Vec<f32>, _>("the file is gone") };
    /// let x = futensor::Device::cpu().from_future([2], brings);
    /// assert!(x.await.unwrap_err().is_source());
    /// # });
    /// ```
    pub fn is_source(&self) -> bool {
        self.kind() == ErrorKind::Source
    }

    /// True of an await inside [`deny_barriers`](crate::barrier::deny_barriers), and inside a
    /// kernel.
    ///
    /// ```
    /// # futensor::block_on(async {
    /// let x = futensor::Device::cpu().ones([2]);
    /// let waits = futensor::barrier::deny_barriers(&x);
    /// assert!(waits.await.unwrap_err().is_barrier());
    /// # });
    /// ```
    pub fn is_barrier(&self) -> bool {
        self.kind() == ErrorKind::Barrier
    }

    /// True if a queue was full or closed: try again later, or elsewhere.
    ///
    /// ```
    /// assert!(!futensor::Error::custom("parse", "an error of your own").is_refused());
    /// ```
    pub fn is_refused(&self) -> bool {
        self.kind() == ErrorKind::Refused
    }

    /// True if an op made a NaN or an infinity of operands that had none, on a device or in a
    /// task that is checked for that: see [`finite`](crate::finite).
    ///
    /// ```
    /// # futensor::block_on(async {
    /// use futensor::{CpuOptions, Device};
    /// let device = Device::cpu_with(CpuOptions::default().check_finite(true));
    /// let wrong = device.zeros([2]).log();
    /// assert!(wrong.await.unwrap_err().is_not_finite());
    /// # });
    /// ```
    pub fn is_not_finite(&self) -> bool {
        self.kind() == ErrorKind::NotFinite
    }

    /// True if a member of a group of ranks is gone, or did not come:
    /// [`lost_rank`](Self::lost_rank) says which.
    ///
    /// ```
    /// let error = futensor::Error::custom("parse", "an error of your own");
    /// assert!(!error.is_peer_lost() && error.lost_rank().is_none());
    /// ```
    pub fn is_peer_lost(&self) -> bool {
        self.lost_rank().is_some()
    }

    /// The rank, in the group of the op that failed, that was lost.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The kind after this one: a new kind does not compile until it has a place here.
    fn next(kind: ErrorKind) -> Option<ErrorKind> {
        Some(match kind {
            ErrorKind::Shape => ErrorKind::DType,
            ErrorKind::DType => ErrorKind::Device,
            ErrorKind::Device => ErrorKind::Index,
            ErrorKind::Index => ErrorKind::Argument,
            ErrorKind::Argument => ErrorKind::OutOfMemory,
            ErrorKind::OutOfMemory => ErrorKind::Kernel,
            ErrorKind::Kernel => ErrorKind::DeviceLost,
            ErrorKind::DeviceLost => ErrorKind::Shutdown,
            ErrorKind::Shutdown => ErrorKind::Source,
            ErrorKind::Source => ErrorKind::Barrier,
            ErrorKind::Barrier => ErrorKind::Refused,
            ErrorKind::Refused => ErrorKind::NotFinite,
            ErrorKind::NotFinite => ErrorKind::PeerLost(7),
            ErrorKind::PeerLost(_) => return None,
        })
    }

    /// The predicate of a kind.
    fn predicate(kind: ErrorKind) -> fn(&Error) -> bool {
        match kind {
            ErrorKind::Shape => Error::is_shape,
            ErrorKind::DType => Error::is_dtype,
            ErrorKind::Device => Error::is_device,
            ErrorKind::Index => Error::is_index,
            ErrorKind::Argument => Error::is_argument,
            ErrorKind::OutOfMemory => Error::is_out_of_memory,
            ErrorKind::Kernel => Error::is_kernel,
            ErrorKind::DeviceLost => Error::is_device_lost,
            ErrorKind::Shutdown => Error::is_shutdown,
            ErrorKind::Source => Error::is_source,
            ErrorKind::Barrier => Error::is_barrier,
            ErrorKind::Refused => Error::is_refused,
            ErrorKind::NotFinite => Error::is_not_finite,
            ErrorKind::PeerLost(_) => Error::is_peer_lost,
        }
    }

    #[test]
    fn each_kind_has_a_predicate_that_is_true_of_it_alone() {
        let kinds: Vec<_> =
            std::iter::successors(Some(ErrorKind::Shape), |&kind| next(kind)).collect();
        assert_eq!(kinds.len(), 14);
        for &kind in &kinds {
            let error = Error::new(kind, "op", "words", Location::caller());
            for &other in &kinds {
                assert_eq!(predicate(other)(&error), kind == other, "{kind:?}, {other:?}");
            }
            assert_eq!(error.lost_rank(), (kind == ErrorKind::PeerLost(7)).then_some(7));
        }
    }
}
