//! What users hold: futures, tensors, devices, operators, reads.

mod activations;
pub(crate) mod attention;
pub(crate) mod barrier;
pub(crate) mod barriers;
pub(crate) mod benchmark;
pub(crate) mod block_on;
mod budget;
pub(crate) mod build;
#[cfg(feature = "serve")]
pub(crate) mod completed;
pub(crate) mod conv;
pub(crate) mod creation;
pub(crate) mod custom;
pub(crate) mod device;
pub(crate) mod dims;
mod display;
pub(crate) mod einsum;
pub(crate) mod future;
pub(crate) mod generator;
pub(crate) mod gradient;
mod indexing;
mod initial;
pub(crate) mod interpolate;
pub(crate) mod losses;
mod methods;
mod more;
pub(crate) mod operand;
pub(crate) mod pad;
pub(crate) mod pool;
mod products;
pub(crate) mod read;
pub(crate) mod record;
pub(crate) mod region;
mod running;
mod scatter;
pub(crate) mod scope;
pub(crate) mod simulated;
mod stats;
pub(crate) mod timeline;
pub(crate) mod views;
pub(crate) mod watch;

/// Handles may cross a `catch_unwind`: a value is immutable and is written whole or fails, and no lock of ours is left
/// half done by a panic of the caller's.
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
    barrier::WaitAll,
    barrier::WaitEverything,
    barrier::Ready,
    barrier::Admit,
    barrier::Permit,
    barrier::Shutdown,
    generator::Generator,
    record::Recording,
    read::Shown,
    read::NonZero,
    simulated::Simulation,
);
impl<T: crate::dtype::Element> std::panic::UnwindSafe for read::ToVec<T> {}
impl<T: crate::dtype::Element> std::panic::RefUnwindSafe for read::ToVec<T> {}
impl<T: crate::dtype::Element> std::panic::UnwindSafe for read::Item<T> {}
impl<T: crate::dtype::Element> std::panic::RefUnwindSafe for read::Item<T> {}
