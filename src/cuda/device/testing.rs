//! Parts that the tests of launches share: a device with a stream, values on both sides,
//! comparisons.

#![allow(unsafe_code)]

use super::background::Background;
use super::driver_context::DriverContext;
use super::lanes::Mark;
use super::launch::launcher::Launcher;
use super::libraries::nvidia::{self, Allocation, Idle, Span};
use super::memory::download::CHUNK_BYTES;
use super::memory::pinned::{Pinned, PinnedBlock, Retained};
use super::memory::pool::Pool;
use super::modules::cache::Disk;
use super::modules::store::Fusion;
use super::{DeviceView, DeviceViewMut, Gpu, Site, Stream, Trouble};
use crate::cuda::kernels::source::INDEX_ERROR_BYTES;
use crate::dtype::{DType, Element, with_dtype};
use crate::graph::node::Op;
use crate::graph::operation::{CpuRun, Meta, Operation, Refusal};
use crate::host::kernels::copy;
use crate::memory::Memory;
use crate::shape::{Shape, contiguous_strides};
use crate::view::{Serial, View, ViewMut};
use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard};

/// One test at a time: they count in the driver.
static ALONE: Mutex<()> = Mutex::new(());

/// The device, a stream, and all memory that a test takes.
pub(super) struct Rig {
    /// Taken by the drop alone.
    context: Option<DriverContext>,
    gpu: Gpu,
    pub stream: Stream,
    pool: Arc<Pool>,
    drivers: nvidia::Pool,
    pinned: Arc<Pinned>,
    retained: RefCell<Retained>,
    owned: RefCell<Vec<Allocation>>,
    error: Cell<u64>,
    pub scratched: Cell<usize>,
    _alone: MutexGuard<'static, ()>,
}

impl Rig {
    pub fn new() -> Rig {
        let alone = ALONE.lock().unwrap_or_else(|p| p.into_inner());
        let context = DriverContext::open(0, 1, None).unwrap_or_else(|why| panic!("{why}"));
        let stream = Stream { raw: context.streams[0], number: 0 };
        Rig {
            gpu: context.gpu,
            pool: Pool::new(context.pool, 0, Memory::new(usize::MAX)),
            drivers: context.pool,
            context: Some(context),
            stream,
            pinned: Arc::new(Pinned::of(0)),
            retained: RefCell::default(),
            owned: RefCell::default(),
            error: Cell::new(0),
            scratched: Cell::new(0),
            _alone: alone,
        }
    }

    /// Waits for all that is queued.
    pub fn idle(&self) -> Idle<'_> {
        self.stream.raw.sleep().unwrap();
        // SAFETY: a test has this one stream, and does one thing after the other.
        unsafe { Idle::new() }
    }

    pub fn launcher(&self, fusion: Fusion) -> Launcher {
        let me = std::thread::current();
        let background = Background::new(self.gpu.context, Arc::new(move || me.unpark()));
        Launcher::with(self.gpu, self.drivers, fusion, Disk::from_environment(), background)
    }

    /// Runs like a step: again until all is there, then its launches.
    pub fn run<T>(
        &self,
        launcher: &mut Launcher,
        mut step: impl FnMut(&mut Launcher) -> Result<T, Trouble>,
    ) -> Result<T, Trouble> {
        loop {
            let scratched = self.scratched.get();
            match step(launcher) {
                Err(Trouble::Later(_)) => {
                    launcher.forget();
                    self.scratched.set(scratched);
                    std::thread::park_timeout(std::time::Duration::from_secs(1));
                }
                Err(trouble) => {
                    launcher.forget();
                    return Err(trouble);
                }
                Ok(done) => {
                    let mark = Mark { lane: 0, at: 1 };
                    launcher.blas.works(self.stream, &self.pool, mark).unwrap();
                    launcher.send(self)?;
                    return Ok(done);
                }
            }
        }
    }

    fn room(&self, bytes: usize) -> Span {
        let memory = self.pool.allocate(self.stream, bytes.max(1)).unwrap();
        let span = memory.span().part(0, bytes);
        self.owned.borrow_mut().push(memory);
        span
    }

    pub fn alloc(&self, bytes: usize) -> u64 {
        self.room(bytes).ptr()
    }

    /// Page-locked memory; where there is none, earlier copies arrive first.
    fn block(&self, bytes: usize) -> PinnedBlock {
        self.pinned.take(bytes).unwrap_or_else(|_| {
            self.idle();
            self.retained.take();
            self.pinned.take(bytes).unwrap()
        })
    }

    pub fn upload(&self, bytes: &[u8]) -> u64 {
        let to = self.room(bytes.len());
        for (k, chunk) in bytes.chunks(CHUNK_BYTES).enumerate() {
            let block = self.block(chunk.len());
            let shape = [chunk.len()];
            let from = View { ptr: chunk.as_ptr(), dtype: DType::U8, shape: &shape, strides: &[1] };
            copy::copy(
                from,
                &ViewMut { ptr: block.ptr(), dtype: DType::U8, shape: &shape, life: PhantomData },
                &Serial,
            );
            let part = to.part((k * CHUNK_BYTES) as u64, chunk.len());
            self.retained.borrow_mut().upload(part, block, self.stream.raw).unwrap();
        }
        to.ptr()
    }

    pub fn download(&self, ptr: u64, bytes: usize) -> Vec<u8> {
        // SAFETY: tests ask for memory that they were given.
        let from = unsafe { Span::new(ptr, bytes) };
        let mut all = Vec::new();
        for at in (0..bytes).step_by(CHUNK_BYTES) {
            let n = CHUNK_BYTES.min(bytes - at);
            let block = self.block(n);
            let part = from.part(at as u64, n);
            let block = self.retained.borrow_mut().download(block, part, self.stream.raw).unwrap();
            self.idle();
            let view = View { ptr: block.ptr(), dtype: DType::U8, shape: &[n], strides: &[1] };
            all.extend(view.to_vec::<u8>().unwrap());
        }
        all
    }

    /// The record of a bad index: position, index, size.
    pub fn bad_index(&self) -> Option<(u64, i64, u64)> {
        let at = self.error.take();
        if at == 0 {
            return None;
        }
        let bytes = self.download(at, INDEX_ERROR_BYTES);
        let word = |k: usize| u64::from_ne_bytes(bytes[8 * k..8 * k + 8].try_into().unwrap());
        (word(0) >> 32 != 0).then(|| (word(1), word(2) as i64, word(3)))
    }
}

impl Site for Rig {
    fn stream(&self) -> Stream {
        self.stream
    }
    fn scratch(&self, bytes: usize) -> Result<u64, Trouble> {
        self.scratched.set(self.scratched.get() + 1);
        Ok(self.alloc(bytes))
    }
    fn index_error(&self) -> Result<u64, Trouble> {
        if self.error.get() == 0 {
            self.error.set(self.upload(&[0; INDEX_ERROR_BYTES]));
        }
        Ok(self.error.get())
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let owned = self.owned.take();
        owned.into_iter().try_for_each(|memory| self.stream.raw.free(memory)).unwrap();
        let idle = self.idle();
        self.retained.take();
        self.pinned.close(&idle);
        // SAFETY: a test takes no handle with it.
        self.context.take().into_iter().for_each(|context| unsafe { context.close(&[]) });
    }
}

/// SplitMix64 (Steele, Lea and Flood 2014).
pub(super) struct Rng(pub u64);

impl Rng {
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub fn below(&mut self, n: usize) -> usize {
        (self.word() % n as u64) as usize
    }
}

/// A value on both sides.
#[derive(Clone)]
pub(super) struct Value {
    dtype: DType,
    pub shape: Vec<usize>,
    strides: Vec<isize>,
    offset: usize,
    bytes: Vec<u8>,
}

pub(super) fn bytes_of<T: Element>(values: &[T]) -> Vec<u8> {
    // SAFETY: plain elements, read as bytes.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }.to_vec()
}

impl Value {
    pub fn of<T: Element>(shape: &[usize], values: &[T]) -> Value {
        assert_eq!(shape.iter().product::<usize>(), values.len());
        let strides = contiguous_strides(shape).to_vec();
        Value {
            dtype: T::DTYPE,
            shape: shape.to_vec(),
            strides,
            offset: 0,
            bytes: bytes_of(values),
        }
    }

    /// Small numbers of any type.
    pub fn drawn(rng: &mut Rng, dtype: DType, shape: &[usize]) -> Value {
        let n = shape.iter().product();
        with_dtype!(dtype, T => {
            let draw = |_| match T::DTYPE.is_float() {
                true => T::from_f64((rng.word() >> 40) as f64 / (1 << 21) as f64 - 4.0),
                false => {
                    let least = if T::DTYPE == DType::U8 { 0 } else { -3 };
                    T::from_i64(least + rng.below(7) as i64)
                }
            };
            Value::of(shape, &(0..n).map(draw).collect::<Vec<T>>())
        })
    }

    /// The same elements seen with dimensions in another order.
    pub fn permuted(mut self, order: &[usize]) -> Value {
        self.shape = order.iter().map(|&d| self.shape[d]).collect();
        self.strides = order.iter().map(|&d| self.strides[d]).collect();
        self
    }

    /// Walked backwards along a dimension.
    pub fn flipped(mut self, dim: usize) -> Value {
        self.offset += (self.shape[dim] - 1) * self.strides[dim] as usize;
        self.strides[dim] = -self.strides[dim];
        self
    }

    /// Repeated along a dimension of one.
    pub fn repeated(mut self, dim: usize, n: usize) -> Value {
        assert_eq!(self.shape[dim], 1);
        (self.shape[dim], self.strides[dim]) = (n, 0);
        self
    }

    pub fn view(&self) -> View<'_> {
        let ptr = self.bytes.as_ptr().wrapping_add(self.offset * self.dtype.size());
        View { ptr, dtype: self.dtype, shape: &self.shape, strides: &self.strides }
    }

    pub fn meta(&self) -> Meta {
        Meta { shape: Shape::from(&self.shape[..]), dtype: self.dtype }
    }

    pub fn on<'a>(&'a self, rig: &Rig) -> DeviceView<'a> {
        let ptr = rig.upload(&self.bytes) + (self.offset * self.dtype.size()) as u64;
        DeviceView { ptr, dtype: self.dtype, shape: &self.shape, strides: &self.strides }
    }
}

/// Runs an op on both sides and hands back the bytes: the CPU's, then the device's.
pub(super) fn both(
    rig: &Rig,
    launcher: &mut Launcher,
    op: impl Operation,
    inputs: &[&Value],
) -> Result<(DType, Vec<u8>, Vec<u8>), Refusal> {
    let metas: Vec<Meta> = inputs.iter().map(|v| v.meta()).collect();
    let out = op.infer(&metas.iter().collect::<Vec<_>>())?;
    let mut cpu = vec![0u64; out.bytes().div_ceil(8) + 1];
    let views: Vec<View<'_>> = inputs.iter().map(|v| v.view()).collect();
    let buffers = vec![None; inputs.len()];
    let output = ViewMut {
        ptr: cpu.as_mut_ptr().cast(),
        dtype: out.dtype,
        shape: &out.shape,
        life: PhantomData,
    };
    if let Some(i) = op.reuses() {
        copy::copy(views[i], &output, &Serial);
    }
    op.run_cpu(&mut CpuRun {
        inputs: &views,
        output,
        parallel: &Serial,
        in_place: false,
        written: 0,
        buffers: &buffers,
    })?;
    let views: Vec<DeviceView<'_>> = inputs.iter().map(|v| v.on(rig)).collect();
    let ptr = rig.alloc(out.bytes());
    let to = DeviceViewMut { ptr, dtype: out.dtype, shape: &out.shape };
    let name = op.name().to_owned();
    let op = Op::Custom(Arc::new(op));
    rig.run(launcher, |launcher| launcher.node(rig, &op, &views, to, false))
        .unwrap_or_else(|trouble| panic!("{name} {:?}: {trouble:?}", metas));
    assert_eq!(rig.bad_index(), None, "{name}");
    let cpu = bytes_of(&cpu.iter().map(|&w| w as i64).collect::<Vec<_>>())[..out.bytes()].to_vec();
    Ok((out.dtype, cpu, rig.download(ptr, out.bytes())))
}

pub(super) fn numbers(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    with_dtype!(dtype, T => {
        let size = size_of::<T>();
        let read = |c: &[u8]| {
            // SAFETY: so many bytes of a value that a kernel wrote.
            unsafe { c.as_ptr().cast::<T>().read_unaligned() }.to_f64()
        };
        bytes.chunks(size).map(read).collect()
    })
}

pub(super) fn same(what: &str, (dtype, cpu, cuda): (DType, Vec<u8>, Vec<u8>)) {
    if cpu != cuda {
        panic!("{what}: {:?} is not {:?}", numbers(dtype, &cuda), numbers(dtype, &cpu));
    }
}

pub(super) fn near(what: &str, (dtype, cpu, cuda): (DType, Vec<u8>, Vec<u8>), tolerance: f64) {
    for (i, (got, want)) in numbers(dtype, &cuda).into_iter().zip(numbers(dtype, &cpu)).enumerate()
    {
        let fits = got == want
            || (got.is_nan() && want.is_nan())
            || (got - want).abs() <= tolerance * want.abs().max(1.0);
        assert!(fits, "{what} {i}: {got} is not {want}");
    }
}
