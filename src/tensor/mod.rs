//! What users hold: futures, tensors, devices, operators, reads.

// rustdoc shows the methods of a type by the order of its modules here. So the page of
// `TensorFuture` opens with awaiting and reading, then has the ops. (rustfmt sorts within a group,
// so groups are kept apart by empty lines.)

// Awaiting and reading.
pub(crate) mod future;

pub(crate) mod read;

mod display;
pub(crate) mod watch;

// The ops.
pub(crate) mod methods;

// Devices: what they are asked, and creation.
pub(crate) mod device;

pub(crate) mod creation;

pub(crate) mod barrier;
pub(crate) mod barriers;
pub(crate) mod chance;
pub(crate) mod generator;
pub(crate) mod in_hand;
pub(crate) mod recorder;
pub(crate) mod region;
pub(crate) mod simulated;

pub(crate) mod gradient;

// What has no methods on either.
pub(crate) mod block_on;
mod budget;
pub(crate) mod build;
pub(crate) mod custom;
pub(crate) mod dims;
pub(crate) mod later;
pub(crate) mod operand;
pub(crate) mod scope;
pub(crate) mod timeline;

/// Handles may cross a `catch_unwind`: a value is immutable and is written whole or fails, and no
/// lock of ours is left half done by a panic of the caller's.
macro_rules! unwind_safe {
    ($($handle:ty),* $(,)?) => {$(
        impl std::panic::UnwindSafe for $handle {}
        impl std::panic::RefUnwindSafe for $handle {}
    )*};
}
unwind_safe!(
    device::Device,
    future::TensorFuture,
    future::Wait,
    future::Tensor,
    barrier::TrimWait,
    barrier::WaitAll,
    barrier::WaitEverything,
    barrier::Ready,
    barrier::Admit,
    barrier::Permit,
    barrier::Shutdown,
    generator::Generator,
    recorder::Recorder,
    read::Shown,
    read::NonZero,
    simulated::Simulation,
);
impl<T: crate::dtype::Element> std::panic::UnwindSafe for read::ToVec<T> {}
impl<T: crate::dtype::Element> std::panic::RefUnwindSafe for read::ToVec<T> {}
impl<T: crate::dtype::Element> std::panic::UnwindSafe for read::Item<T> {}
impl<T: crate::dtype::Element> std::panic::RefUnwindSafe for read::Item<T> {}
impl<R> std::panic::UnwindSafe for later::Later<R> {}
impl<R> std::panic::RefUnwindSafe for later::Later<R> {}
