//! Creation: constants, ranges, random numbers, host data, and data from a future.

mod brought;
pub(crate) mod dlpack;
pub(crate) mod pinned;

#[cfg(all(feature = "ranks", unix))]
pub(crate) use brought::Arrival;
pub(crate) use brought::sourced;

use super::build::intercept::Sequence;
use super::build::{self, At};
use super::device::Device;
use super::future::TensorFuture;
use super::generator::{GeneratorState, draw};
use crate::dtype::{DType, Element, Scalar};
use crate::engine::port::Port;
use crate::error::{Error, ErrorKind, bytes_of, number_of};
use crate::graph::node::Op;
use crate::graph::operation::Meta;
use crate::graph::value::{INLINE_BYTES, Storage, Value};
use crate::memory::HostData;
use crate::shape::Shape;
use std::fmt::Display;
use std::future::Future;
use std::panic::Location;

/// Creation of tensors. The type is float32 by default; each function has a `_dtype` form or takes
/// the type of its data. Nothing waits.
impl Device {
    /// Zeros, float32.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().zeros([2, 2]);
    /// assert_eq!(x.to_vec::<f32>().await?, [0.0; 4]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn zeros(&self, shape: impl Into<Shape>) -> TensorFuture {
        self.filled("zeros", shape.into(), Scalar::Float(0.0), DType::F32, Location::caller())
    }

    /// Zeros of an element type.
    #[track_caller]
    pub fn zeros_dtype(&self, shape: impl Into<Shape>, dtype: DType) -> TensorFuture {
        self.filled("zeros_dtype", shape.into(), Scalar::Int(0), dtype, Location::caller())
    }

    /// Ones, float32.
    #[track_caller]
    pub fn ones(&self, shape: impl Into<Shape>) -> TensorFuture {
        self.filled("ones", shape.into(), Scalar::Float(1.0), DType::F32, Location::caller())
    }

    /// Ones of an element type.
    #[track_caller]
    pub fn ones_dtype(&self, shape: impl Into<Shape>, dtype: DType) -> TensorFuture {
        self.filled("ones_dtype", shape.into(), Scalar::Int(1), dtype, Location::caller())
    }

    /// A tensor with every element equal to `value`. The type follows the number: bool, int64 or
    /// float32.
    ///
    /// ```
    /// use futensor::{DType, Device};
    /// assert_eq!(Device::cpu().full([2], 7).dtype(), DType::I64);
    /// assert_eq!(Device::cpu().full([2], 7.0).dtype(), DType::F32);
    /// ```
    #[doc(alias = "fill")]
    #[track_caller]
    pub fn full(&self, shape: impl Into<Shape>, value: impl Into<Scalar>) -> TensorFuture {
        let value = value.into();
        self.filled("full", shape.into(), value, value.default_dtype(), Location::caller())
    }

    /// A tensor of an element type with every element equal to `value`.
    #[track_caller]
    pub fn full_dtype(
        &self,
        shape: impl Into<Shape>,
        value: impl Into<Scalar>,
        dtype: DType,
    ) -> TensorFuture {
        self.filled("full_dtype", shape.into(), value.into(), dtype, Location::caller())
    }

    fn filled(
        &self,
        name: &'static str,
        shape: Shape,
        value: Scalar,
        dtype: DType,
        at: At,
    ) -> TensorFuture {
        build::create_named(Some(name), self.port, Op::Fill(value), shape, dtype, at)
    }

    /// `start, start + step, ...` up to and excluding `end`: int64 if all three are integers,
    /// otherwise float32.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// assert_eq!(device.arange(0, 5, 2).to_vec::<i64>().await?, [0, 2, 4]);
    /// assert_eq!(device.arange(1.0, 0.0, -0.5).to_vec::<f32>().await?, [1.0, 0.5]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// An argument error if `step` is zero or leads away from `end`.
    #[track_caller]
    pub fn arange(
        &self,
        start: impl Into<Scalar>,
        end: impl Into<Scalar>,
        step: impl Into<Scalar>,
    ) -> TensorFuture {
        let at = Location::caller();
        let (start, end, step) = (start.into(), end.into(), step.into());
        let whole = [start, end, step].iter().all(|s| !matches!(s, Scalar::Float(_)));
        let dtype = if whole { DType::I64 } else { DType::F32 };
        let len = if whole {
            // A double does not tell large integers apart.
            let [from, to, by] = [start, end, step].map(|s| i128::from(s.as_i64()));
            let way = (to - from) * by.signum();
            (by != 0 && way >= 0).then(|| way.unsigned_abs().div_ceil(by.unsigned_abs()))
        } else {
            let [from, to, by] = [start, end, step].map(Scalar::as_f64);
            let finite = [from, to, by].iter().all(|x| x.is_finite());
            let leads = if by > 0.0 { from <= to } else { by < 0.0 && from >= to };
            (finite && leads).then(|| ((to - from) / by).ceil() as u128)
        };
        let Some(len) = len else {
            let text = format!("no range leads from {start} to {end} in steps of {step}");
            return self.refused("arange", ErrorKind::Argument, text, dtype, at);
        };
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        build::create(self.port, Op::Arange { start, step }, len.into(), dtype, at)
    }

    /// [`arange`](Self::arange) of an element type.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{DType, Device};
    /// let x = Device::cpu().arange_dtype(0, 5, 2, DType::U8);
    /// assert_eq!(x.to_vec::<u8>().await?, [0, 2, 4]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`arange`](Self::arange).
    #[track_caller]
    pub fn arange_dtype(
        &self,
        start: impl Into<Scalar>,
        end: impl Into<Scalar>,
        step: impl Into<Scalar>,
        dtype: DType,
    ) -> TensorFuture {
        let at = Location::caller();
        let _within = build::within("arange_dtype", at);
        let (start, step) = (start.into(), step.into());
        let plain = self.arange(start, end, step);
        if dtype != DType::F64 || plain.error().is_some() {
            return plain.to_dtype(dtype);
        }
        let places = self.arange(0, plain.numel() as i64, 1).to_dtype(DType::F64);
        places * step.as_f64() + start.as_f64()
    }

    /// [`linspace`](Self::linspace) of a floating point type.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{DType, Device};
    /// let x = Device::cpu().linspace_dtype(0.0, 0.3, 4, DType::F64);
    /// assert_eq!(x.to_vec::<f64>().await?, [0.0, 0.3 / 3.0, 0.3 - 0.3 / 3.0, 0.3]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn linspace_dtype(&self, start: f64, end: f64, n: usize, dtype: DType) -> TensorFuture {
        let at = Location::caller();
        let _within = build::within("linspace_dtype", at);
        if !dtype.is_float() {
            let text = format!("evenly spaced numbers are floating point, not {dtype}");
            return self.refused("linspace_dtype", ErrorKind::DType, text, dtype, at);
        }
        if dtype != DType::F64 || n < 2 {
            return self.linspace(start, end, n).to_dtype(dtype);
        }
        let step = (end - start) / (n - 1) as f64;
        let places = self.arange(0, n as i64, 1);
        let rest = (n as i64 - 1) - &places;
        let wide = |x: &TensorFuture| x.to_dtype(DType::F64);
        let (up, down) = (start + wide(&places) * step, end - wide(&rest) * step);
        places.lt((n / 2) as i64).where_cond(up, down)
    }

    /// `n` evenly spaced numbers from `start` to `end`, both included; float32.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().linspace(0.0, 1.0, 5);
    /// assert_eq!(x.to_vec::<f32>().await?, [0.0, 0.25, 0.5, 0.75, 1.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn linspace(&self, start: f64, end: f64, n: usize) -> TensorFuture {
        let at = Location::caller();
        // As PyTorch does: the second half counts back from the end, so that both ends are exact.
        let (a, b) = (start as f32, end as f32);
        let step = if n > 1 { (b - a) / (n - 1) as f32 } else { 0.0 };
        let value = move |i: usize| {
            if i < n / 2 { a + step * i as f32 } else { b - step * (n - 1 - i) as f32 }
        };
        match n {
            0 | 1 => self.handed("linspace", vec![a; n], n.into(), at),
            // The caller's thread does no device-sized work: the device computes long ones.
            2..=1024 => {
                self.handed("linspace", (0..n).map(value).collect::<Vec<_>>(), n.into(), at)
            }
            _ => {
                let _within = build::within("linspace", at);
                let numbers = |start: usize, step: i64, dtype: DType| {
                    let (start, step) = (Scalar::Int(start as i64), Scalar::Int(step));
                    build::create(self.port, Op::Arange { start, step }, n.into(), dtype, at)
                };
                let up = numbers(0, 1, DType::F32) * step + a;
                let down = f64::from(b) - numbers(n - 1, -1, DType::F32) * step;
                let place = if n <= i32::MAX as usize { DType::I32 } else { DType::I64 };
                numbers(0, 1, place).lt((n / 2) as i64).where_cond(up, down)
            }
        }
    }

    /// Ones on the diagonal, zeros elsewhere, float32: an identity matrix for one size, a matrix of
    /// rows and columns for two.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// assert_eq!(device.eye(2).to_vec::<f32>().await?, [1.0, 0.0, 0.0, 1.0]);
    /// assert_eq!(device.eye([1, 3]).to_vec::<f32>().await?, [1.0, 0.0, 0.0]);
    /// assert!(device.eye([1, 2, 3]).error().unwrap().is_shape());
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[doc(alias = "identity")]
    #[track_caller]
    pub fn eye(&self, shape: impl Into<Shape>) -> TensorFuture {
        self.diagonal("eye", shape.into(), 0, DType::F32, Location::caller())
    }

    /// [`eye`](Self::eye) of an element type.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{DType, Device};
    /// assert_eq!(Device::cpu().eye_dtype(2, DType::U8).to_vec::<u8>().await?, [1, 0, 0, 1]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn eye_dtype(&self, shape: impl Into<Shape>, dtype: DType) -> TensorFuture {
        self.diagonal("eye_dtype", shape.into(), 0, dtype, Location::caller())
    }

    /// [`eye`](Self::eye) with the ones on another diagonal: `diagonal` columns to the right, or
    /// `-diagonal` rows down. NumPy's `eye` with `k`.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{DType, Device};
    /// let x = Device::cpu().eye_diagonal([2, 3], 1, DType::I64);
    /// assert_eq!(x.to_vec::<i64>().await?, [0, 1, 0, 0, 0, 1]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn eye_diagonal(
        &self,
        shape: impl Into<Shape>,
        diagonal: i64,
        dtype: DType,
    ) -> TensorFuture {
        self.diagonal("eye_diagonal", shape.into(), diagonal, dtype, Location::caller())
    }

    fn diagonal(
        &self,
        op: &'static str,
        shape: Shape,
        diagonal: i64,
        dtype: DType,
        at: At,
    ) -> TensorFuture {
        let _within = build::within(op, at);
        let (rows, columns) = match shape[..] {
            [n] => (n, n),
            [n, m] => (n, m),
            _ => {
                let text = format!("a matrix has one size or two, not {shape}");
                return self.refused(op, ErrorKind::Shape, text, dtype, at);
            }
        };
        // A diagonal beyond the corners is empty as well; the clamp avoids an overflow.
        let size = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let diagonal = diagonal.clamp(-size(rows), size(columns));
        // Twice as many numbers of 32 bits are compared at once.
        let last = size(rows).saturating_add(size(columns));
        let numbers = if i32::try_from(last).is_ok() { DType::I32 } else { DType::I64 };
        let count = |n: usize, first: i64| {
            let all = Op::Arange { start: Scalar::Int(first), step: Scalar::Int(1) };
            build::create(self.port, all, n.into(), numbers, at)
        };
        let row = count(columns, 0);
        let column =
            if rows == columns && diagonal == 0 { row.clone() } else { count(rows, diagonal) };
        build::binary(crate::op::BinaryOp::Eq, &column.unsqueeze(1), &row, at).to_dtype(dtype)
    }

    /// Uniform numbers in [0, 1), float32, from the device's generator. The call reserves positions
    /// in the generator's sequence, so the numbers do not depend on when or where they are
    /// computed.
    #[track_caller]
    pub fn rand(&self, shape: impl Into<Shape>) -> TensorFuture {
        draw(
            self.port,
            &Sequence::Device(self.port),
            shape.into(),
            DType::F32,
            false,
            Location::caller(),
        )
    }

    /// Standard normal numbers, float32, from the device's generator.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu_with(Default::default());
    /// device.seed(7);
    /// let a = device.randn([3]).to_vec::<f32>().await?;
    /// device.seed(7);
    /// assert_eq!(device.randn([3]).to_vec::<f32>().await?, a);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn randn(&self, shape: impl Into<Shape>) -> TensorFuture {
        draw(
            self.port,
            &Sequence::Device(self.port),
            shape.into(),
            DType::F32,
            true,
            Location::caller(),
        )
    }

    /// Restarts the device's [generator](Self::generator) with this seed.
    #[doc(alias = "manual_seed")]
    pub fn seed(&self, seed: u64) {
        self.generator().set_state(GeneratorState { seed, position: 0 });
    }

    /// A tensor of host data, without a copy.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let x = device.from_vec(vec![1i32, 2, 3, 4], [2, 2]);
    /// assert_eq!(x.t().to_vec::<i32>().await?, [1, 3, 2, 4]);
    /// assert!(device.from_vec(vec![1i32], [2]).error().unwrap().is_shape());
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[doc(alias("tensor", "asarray", "from_numpy"))]
    #[track_caller]
    pub fn from_vec<T: Element>(&self, data: Vec<T>, shape: impl Into<Shape>) -> TensorFuture {
        self.handed("from_vec", data, shape.into(), Location::caller())
    }

    /// A tensor of host data, which this call copies.
    #[doc(alias("array", "frombuffer"))]
    #[track_caller]
    pub fn from_slice<T: Element>(&self, data: &[T], shape: impl Into<Shape>) -> TensorFuture {
        self.handed("from_slice", data.to_vec(), shape.into(), Location::caller())
    }

    pub(crate) fn handed<T: Element, D: HostData<T>>(
        &self,
        name: &'static str,
        data: D,
        shape: Shape,
        at: At,
    ) -> TensorFuture {
        let at = build::seen(at);
        let value = adopt(self.port, data, &shape, build::named(name), at);
        TensorFuture::new(self.port.given(shape, T::DTYPE, at, value))
    }

    /// A tensor whose elements are the result of a future: a download, a decoder, a channel. The
    /// engine polls the future, starting now; nobody needs to await the tensor. Dropping the last
    /// handle drops the future.
    ///
    /// The future is polled on a dedicated thread of the device, outside any runtime. A future that
    /// needs a runtime has to be spawned there; pass its join handle. A slow poll delays only
    /// values computed from this one (and other futures, if four polls are slow at once). A panic
    /// in the future becomes the error of this value.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let download = tokio::spawn(async { vec![1.0f32, 2.0] });
    /// let x = device.from_future([2], download);
    /// assert_eq!((&x + 1.0).to_vec::<f32>().await?, [2.0, 3.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn from_future<T, E, F>(&self, shape: impl Into<Shape>, future: F) -> TensorFuture
    where
        T: Element,
        E: Display,
        F: Future<Output = Result<Vec<T>, E>> + Send + 'static,
    {
        let (port, at, shape) = (self.port, Location::caller(), shape.into());
        let wanted = shape.clone();
        let value = async move {
            match future.await {
                Ok(data) => adopt(port, data, &wanted, "from_future", at),
                Err(error) => {
                    Err(Error::new(ErrorKind::Source, "from_future", error.to_string(), at))
                }
            }
        };
        sourced(port, "from_future", false, shape, T::DTYPE, value, at)
    }

    /// A failed value without operands.
    pub(crate) fn refused(
        &self,
        op: &str,
        kind: ErrorKind,
        text: String,
        dtype: DType,
        at: At,
    ) -> TensorFuture {
        let (meta, at) = (Meta { shape: 0.into(), dtype }, build::seen(at));
        build::failed(self.port, meta, Error::new(kind, build::named(op), text, at), at)
    }
}

/// Whether so many elements are those of a shape.
fn check_elements<T: Element>(n: usize, shape: &Shape, op: &str, at: At) -> Result<(), Error> {
    if n != shape.numel() {
        let elements = number_of(n, "element", "elements");
        let text = format!("{elements} for shape {shape}");
        return Err(Error::new(ErrorKind::Shape, op, text, at));
    }
    build::fits(shape, T::DTYPE)
        .map_err(|refusal| Error::new(refusal.kind, op, refusal.message, at))
}

/// Makes a value of a device from host data.
fn adopt<T: Element, D: HostData<T>>(
    port: &'static Port,
    data: D,
    shape: &Shape,
    op: &str,
    at: At,
) -> Result<Value, Error> {
    let elements = data.as_ref();
    check_elements::<T>(elements.len(), shape, op, at)?;
    let bytes = std::mem::size_of_val(elements);
    let received = |storage| Ok(port.runner.receive(Value::contiguous(storage), shape, T::DTYPE));
    if bytes <= INLINE_BYTES {
        return received(Storage::Inline(small(elements)));
    }
    match port.memory.adopt(data) {
        Some(buffer) => received(Storage::Shared(buffer)),
        None => {
            let [bytes, live] = [bytes, port.memory.bytes().live].map(bytes_of);
            let text = format!("out of memory: {bytes} ({live} live)");
            Err(Error::new(ErrorKind::OutOfMemory, op, text, at))
        }
    }
}

#[allow(unsafe_code)]
fn small<T: Element>(data: &[T]) -> [u64; INLINE_BYTES / 8] {
    let mut words = [0u64; INLINE_BYTES / 8];
    let bytes = std::mem::size_of_val(data).min(INLINE_BYTES);
    // SAFETY: both are plain memory of at least `bytes` bytes, and elements are plain data.
    unsafe {
        std::ptr::copy_nonoverlapping(
            data.as_ptr() as *const u8,
            words.as_mut_ptr() as *mut u8,
            bytes,
        )
    };
    words
}
