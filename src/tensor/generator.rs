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
use crate::sync::{Mutex, lock};
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
pub struct Generator(Sequence);

/// Where a sequence of random numbers stands: what a checkpoint keeps, so that a run which is
/// resumed draws what it would have drawn.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, Generator, GeneratorState, safetensors};
/// let device = Device::cpu_with(Default::default());
/// device.rand([100]).detach();                           // the run so far
/// let state = device.generator().state();
/// # let path = std::env::temp_dir()
/// #     .join(format!("futensor-generator-{}.safetensors", std::process::id()));
/// safetensors::save(&path, [("generator", device.from_slice(&state.to_bytes(), [16]))]).await?;
/// let next = device.randn([4]).to_vec::<f32>().await?;
///
/// // The run that goes on, in another process or on another device.
/// let saved = safetensors::load(&path, &device).all().await?;
/// let bytes = saved["generator"].to_vec::<u8>().await?;
/// let state = GeneratorState::from_bytes(bytes.try_into().expect("16 bytes"));
/// device.generator().set_state(state);
/// assert_eq!(device.randn([4]).to_vec::<f32>().await?, next);
/// # std::fs::remove_file(&path).unwrap();
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct GeneratorState {
    /// The sequence.
    pub seed: u64,
    /// How many words of 32 bits are drawn or reserved: a multiple of four.
    pub position: u64,
}

impl GeneratorState {
    /// Seed and position, little-endian.
    pub fn to_bytes(self) -> [u8; 16] {
        (u128::from(self.seed) | u128::from(self.position) << 64).to_le_bytes()
    }

    /// What [`to_bytes`](Self::to_bytes) gave.
    pub fn from_bytes(bytes: [u8; 16]) -> GeneratorState {
        let both = u128::from_le_bytes(bytes);
        GeneratorState { seed: both as u64, position: (both >> 64) as u64 }
    }

    /// As sequences hold it. Draws begin with whole blocks: a position within one goes to the next.
    fn parts(self) -> (u64, u64) {
        (self.seed, self.position.wrapping_add(3) & !3)
    }
}

impl Device {
    /// The generator that [`rand`](Device::rand), [`randn`](Device::randn) and
    /// [`dropout`](TensorFuture::dropout) draw from on this device: to keep its
    /// [state](Generator::state), or to hand it on.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu_with(Default::default());
    /// let before = device.generator().state();
    /// let first = device.rand([3]).to_vec::<f32>().await?;
    /// device.generator().set_state(before);
    /// assert_eq!(device.generator().rand(&device, [3]).to_vec::<f32>().await?, first);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[doc(alias("default_generator", "get_rng_state", "set_rng_state"))]
    pub fn generator(&self) -> Generator {
        Generator(Sequence::Device(self.port))
    }
}

impl Generator {
    /// The sequence of this seed, from its beginning.
    #[doc(alias("manual_seed", "default_rng"))]
    pub fn new(seed: u64) -> Generator {
        Generator::from_state(GeneratorState { seed, position: 0 })
    }

    /// A sequence of its own that goes on from here.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, Generator};
    /// let (device, generator) = (Device::cpu(), Generator::new(3));
    /// generator.randn(&device, [7]).detach();
    /// let twin = Generator::from_state(generator.state());
    /// let next = generator.rand(&device, [2]).to_vec::<f32>().await?;
    /// assert_eq!(twin.rand(&device, [2]).to_vec::<f32>().await?, next);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    pub fn from_state(state: GeneratorState) -> Generator {
        Generator(Sequence::Own(Arc::new(Mutex::new(state.parts()))))
    }

    /// Where it stands. Positions are reserved at the call of a draw, so this waits for nothing and
    /// counts what is queued; a draw that is skipped has used its positions up.
    #[doc(alias("get_state", "get_rng_state"))]
    pub fn state(&self) -> GeneratorState {
        let (seed, position) = *lock(self.0.state());
        GeneratorState { seed, position }
    }

    /// Goes on from here: the next draw, of each clone, is what came next where the state was
    /// taken. What is drawn already stays.
    #[doc(alias = "set_rng_state")]
    pub fn set_state(&self, state: GeneratorState) {
        *lock(self.0.state()) = state.parts();
    }

    /// Uniform numbers in [0, 1), float32.
    #[track_caller]
    pub fn rand(&self, device: &Device, shape: impl Into<Shape>) -> TensorFuture {
        draw(device.port, &self.0, shape.into(), DType::F32, false, Location::caller())
    }

    /// Standard normal numbers, float32.
    #[track_caller]
    pub fn randn(&self, device: &Device, shape: impl Into<Shape>) -> TensorFuture {
        draw(device.port, &self.0, shape.into(), DType::F32, true, Location::caller())
    }

    /// Uniform numbers in [0, 1) of a floating point type.
    #[track_caller]
    pub fn rand_dtype(
        &self,
        device: &Device,
        shape: impl Into<Shape>,
        dtype: DType,
    ) -> TensorFuture {
        draw(device.port, &self.0, shape.into(), dtype, false, Location::caller())
    }

    /// Standard normal numbers of a floating point type.
    #[track_caller]
    pub fn randn_dtype(
        &self,
        device: &Device,
        shape: impl Into<Shape>,
        dtype: DType,
    ) -> TensorFuture {
        draw(device.port, &self.0, shape.into(), dtype, true, Location::caller())
    }
}
