//! Random numbers: a seed and a position that is reserved at the call.

use super::build::intercept::Sequence;
use super::build::{self, At};
use super::device::Device;
use super::future::TensorFuture;
use super::gradient::repeat;
use crate::dtype::DType;
use crate::engine::port::Port;
use crate::error::{Error, ErrorKind};
use crate::graph::node::Op;
use crate::graph::operation::Meta;
use crate::shape::Shape;
use crate::sync::Mutex;
use std::panic::Location;
use std::sync::Arc;

/// Queues a draw and reserves its positions now: a skipped draw has used its positions, a draw that
/// fails here reserves none.
pub(crate) fn draw(
    port: &'static Port,
    sequence: &Sequence,
    shape: Shape,
    dtype: DType,
    normal: bool,
    at: At,
) -> TensorFuture {
    if !dtype.is_float() {
        let text = format!("random numbers are floating point, not {dtype}");
        let op = if normal { "randn" } else { "rand" };
        return build::failed(
            port,
            Meta { shape, dtype },
            Error::new(ErrorKind::DType, op, text, at),
            at,
        );
    }
    let (seed, offset) = match build::fits(&shape, dtype) {
        Ok(()) => repeat::drawn(|| {
            // 32-bit words: one per element, two for float64; in whole blocks of four.
            let words = shape.numel() as u64 * if dtype == DType::F64 { 2 } else { 1 };
            sequence.draw(words.next_multiple_of(4))
        }),
        // The draw fails below, and uses no numbers.
        Err(_) => (0, 0),
    };
    build::create(port, Op::Random { normal, seed, offset }, shape, dtype, at)
}

/// A separate sequence of random numbers. Give each task its own generator, and its draws do not
/// depend on those of other tasks. The generator is counter-based (Philox 4x32-10): a number
/// depends only on seed and position, on every device and in any order of streams. Clones share the
/// sequence.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, Generator};
/// let device = Device::cpu();
/// let a = Generator::new(3).randn(&device, [4]).to_vec::<f32>().await?;
/// let b = Generator::new(3).randn(&device, [4]).to_vec::<f32>().await?;
/// assert_eq!(a, b);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Generator(Arc<Mutex<(u64, u64)>>);

impl Generator {
    /// The sequence of this seed, from its beginning.
    #[doc(alias("manual_seed", "default_rng"))]
    pub fn new(seed: u64) -> Generator {
        Generator(Arc::new(Mutex::new((seed, 0))))
    }

    /// Uniform numbers in [0, 1), float32.
    #[track_caller]
    pub fn rand(&self, device: &Device, shape: impl Into<Shape>) -> TensorFuture {
        draw(
            device.port,
            &Sequence::Own(self.0.clone()),
            shape.into(),
            DType::F32,
            false,
            Location::caller(),
        )
    }

    /// Standard normal numbers, float32.
    #[track_caller]
    pub fn randn(&self, device: &Device, shape: impl Into<Shape>) -> TensorFuture {
        draw(
            device.port,
            &Sequence::Own(self.0.clone()),
            shape.into(),
            DType::F32,
            true,
            Location::caller(),
        )
    }

    /// Uniform numbers in [0, 1) of a floating point type.
    #[track_caller]
    pub fn rand_dtype(
        &self,
        device: &Device,
        shape: impl Into<Shape>,
        dtype: DType,
    ) -> TensorFuture {
        draw(
            device.port,
            &Sequence::Own(self.0.clone()),
            shape.into(),
            dtype,
            false,
            Location::caller(),
        )
    }

    /// Standard normal numbers of a floating point type.
    #[track_caller]
    pub fn randn_dtype(
        &self,
        device: &Device,
        shape: impl Into<Shape>,
        dtype: DType,
    ) -> TensorFuture {
        draw(
            device.port,
            &Sequence::Own(self.0.clone()),
            shape.into(),
            dtype,
            true,
            Location::caller(),
        )
    }
}
