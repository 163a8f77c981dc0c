//! The arguments of an op's CUDA kernels, and how the op names its launches.
//!
//! The device's counterpart of `CpuRun`. Descriptions only: addresses are numbers here, and a trait
//! hides the device that executes a launch. The crate's own ops pass plans through
//! [`CudaRun::work`]; a custom op brings CUDA C.

use super::refusal::Refusal;
use crate::dtype::DType;
use crate::shape::contiguous_strides;
use std::any::Any;
use std::ffi::c_void;

/// A value in device memory as a kernel reads it: address, element type, sizes, strides in
/// elements.
#[derive(Clone, Copy, Debug)]
pub struct CudaView<'a> {
    /// Address of the element at index (0, 0, ...).
    pub(crate) ptr: u64,
    pub(crate) dtype: DType,
    pub(crate) shape: &'a [usize],
    /// In elements; 0 repeats.
    pub(crate) strides: &'a [isize],
}

/// No address: an input that is changed in place has its elements in the output.
const NOWHERE: u64 = u64::MAX;

impl<'a> CudaView<'a> {
    /// The same shape and type, without the elements.
    pub(crate) fn without_elements(self) -> CudaView<'a> {
        CudaView { ptr: NOWHERE, ..self }
    }

    /// Device address of the element at index (0, 0, ...).
    ///
    /// # Panics
    /// For the input that [`Operation::reuses`](crate::custom::Operation::reuses) names: only the
    /// output has its elements. (The panic fails the op's value.)
    pub fn address(&self) -> u64 {
        assert_ne!(
            self.ptr, NOWHERE,
            "the elements of this input are in the output, which reuses it"
        );
        self.ptr
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Sizes of the dimensions.
    pub fn shape(&self) -> &'a [usize] {
        self.shape
    }

    /// The distance in elements between neighbouring indices, for each dimension; 0 repeats.
    pub fn strides(&self) -> &'a [isize] {
        self.strides
    }

    /// The number of elements.
    pub fn numel(&self) -> usize {
        crate::shape::numel(self.shape)
    }

    /// True if the elements are stored in row-major order without gaps.
    pub fn is_contiguous(&self) -> bool {
        let rows = contiguous_strides(self.shape);
        let mut each = self.shape.iter().zip(self.strides).zip(&rows);
        self.shape.contains(&0) || each.all(|((&n, s), row)| n == 1 || s == row)
    }
}

/// The memory that a CUDA kernel writes: contiguous, row-major, exclusive.
#[derive(Clone, Copy, Debug)]
pub struct CudaViewMut<'a> {
    pub(crate) ptr: u64,
    pub(crate) dtype: DType,
    pub(crate) shape: &'a [usize],
}

impl<'a> CudaViewMut<'a> {
    /// Device address of the first element.
    pub fn address(&self) -> u64 {
        self.ptr
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Sizes of the dimensions.
    pub fn shape(&self) -> &'a [usize] {
        self.shape
    }

    /// The number of elements.
    pub fn numel(&self) -> usize {
        crate::shape::numel(self.shape)
    }
}

/// CUDA C of a custom op: a translation unit, and the `extern "C" __global__` function to
/// launch.
///
/// The source is compiled on first use for the device's architecture, and cached in memory and on
/// disk by its text: unchanged source is compiled once per machine. No headers can be
/// included. Pointers that are only read should be `const T*`.
///
/// ```
/// use futensor::cuda::CudaKernel;
/// let kernel = CudaKernel::new(
///     "reverse",
///     r#"extern "C" __global__ void reverse(const float* x, float* out, long long n) {
///         long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
///         if (i < n) out[i] = x[n - 1 - i];
///     }"#,
/// );
/// assert_eq!(kernel.entry(), "reverse");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CudaKernel<'a> {
    entry: &'a str,
    source: &'a str,
}

impl<'a> CudaKernel<'a> {
    /// The function `entry` of the translation unit `source`.
    pub const fn new(entry: &'a str, source: &'a str) -> CudaKernel<'a> {
        CudaKernel { entry, source }
    }

    /// The name of the function to launch.
    pub const fn entry(&self) -> &'a str {
        self.entry
    }

    /// The CUDA C source.
    pub const fn source(&self) -> &'a str {
        self.source
    }
}

/// The dimensions of a launch: blocks of the grid, threads of a block, and bytes of dynamic shared
/// memory.
///
/// ```
/// use futensor::cuda::CudaGrid;
/// assert_eq!(CudaGrid::cover(1000, 256).blocks(), [4, 1, 1]);
/// assert_eq!(CudaGrid::new([2, 3, 1], [32, 8, 1]).shared(1024).threads(), [32, 8, 1]);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CudaGrid {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared: u32,
}

impl CudaGrid {
    /// A grid of blocks of threads.
    pub const fn new(grid: [u32; 3], block: [u32; 3]) -> CudaGrid {
        CudaGrid { grid, block, shared: 0 }
    }

    /// Enough blocks of `threads` in one dimension for at least `n` threads; at least one
    /// block.
    pub const fn cover(n: usize, threads: u32) -> CudaGrid {
        let blocks = n.div_ceil(if threads == 0 { 1 } else { threads } as usize);
        let blocks = if blocks == 0 { 1 } else { blocks };
        CudaGrid::new(
            [if blocks > u32::MAX as usize { u32::MAX } else { blocks as u32 }, 1, 1],
            [threads, 1, 1],
        )
    }

    /// Sets the bytes of dynamic shared memory per block.
    pub const fn shared(mut self, bytes: u32) -> CudaGrid {
        self.shared = bytes;
        self
    }

    /// Blocks of the grid.
    pub const fn blocks(&self) -> [u32; 3] {
        self.grid
    }

    /// Threads of a block.
    pub const fn threads(&self) -> [u32; 3] {
        self.block
    }
}

/// One argument of a launch, in the order of the kernel's parameters.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum CudaArg<'a> {
    /// A device address: of an input, of the output, or of scratch memory.
    Address(u64),
    /// `int`.
    I32(i32),
    /// `unsigned int`.
    U32(u32),
    /// `long long`.
    I64(i64),
    /// `unsigned long long`.
    U64(u64),
    /// `float`.
    F32(f32),
    /// `double`.
    F64(f64),
    /// A struct by value, as its bytes; at most eight-byte alignment.
    Bytes(&'a [u8]),
}

/// A function of a user's that is given a stream's handle.
pub(crate) type StreamCall = Box<dyn FnOnce(*mut c_void) + Send>;

/// A queue that executes launches in order, on one stream. The device implements it. The device
/// remembers a fault beyond the op itself (memory, the device), and returns any refusal.
pub(crate) trait CudaQueue {
    fn launch(
        &mut self,
        kernel: CudaKernel<'_>,
        grid: CudaGrid,
        args: &[CudaArg<'_>],
    ) -> Result<(), Refusal>;
    fn scratch(&mut self, bytes: usize) -> Result<u64, Refusal>;
    /// Calls a function between the launches, with the stream.
    fn call(&mut self, f: StreamCall);
    /// Copies elements in row-major order to contiguous memory that does not overlap.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    fn copy(&mut self, from: CudaView<'_>, to: CudaViewMut<'_>) -> Result<(), Refusal>;
    /// Zeroes memory that belongs to the step. A fault fails the step, whatever the op returns.
    fn zero(&mut self, ptr: u64, bytes: usize);
    /// Work in a form that only the crate's ops and `cuda/` know.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    fn work(
        &mut self,
        work: &dyn Any,
        inputs: &[CudaView<'_>],
        outputs: &[CudaViewMut<'_>],
    ) -> Result<(), Refusal>;
    /// Whether the device can do such work; some kinds need a library, which may be missing.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    fn takes(&mut self, work: &dyn Any) -> Result<bool, Refusal>;
}

/// The arguments of a CUDA op: the addresses of the operands and of the result, and a way to launch
/// kernels.
///
/// Launches run one after the other on the op's stream, after the operands are complete. When
/// [`Operation::run_cuda`](super::operation::Operation::run_cuda) runs, the operands may not be
/// computed yet, so it cannot look at their elements.
pub struct CudaRun<'a> {
    pub(crate) inputs: &'a [CudaView<'a>],
    pub(crate) output: CudaViewMut<'a>,
    pub(crate) in_place: bool,
    /// A custom op has not asked for its output yet, and the memory has old contents.
    pub(crate) fresh: bool,
    pub(crate) queue: &'a mut dyn CudaQueue,
}

impl<'a> CudaRun<'a> {
    /// The operands, in order. The operand that
    /// [`Operation::reuses`](crate::custom::Operation::reuses) names has only shape and type here;
    /// its elements are in the output.
    pub fn inputs(&self) -> &'a [CudaView<'a>] {
        self.inputs
    }

    /// The output, filled with zeros, or with the elements of the input that
    /// [`Operation::reuses`](crate::custom::Operation::reuses) names. An op that returns without
    /// asking for its output fails.
    pub fn output(&mut self) -> CudaViewMut<'a> {
        if std::mem::take(&mut self.fresh) {
            let bytes = self.output.numel() * self.output.dtype.size();
            self.queue.zero(self.output.ptr, bytes);
        }
        self.output
    }

    /// The output without the zeros, with the old contents of the memory: cheaper, for kernels that
    /// write every element.
    ///
    /// # Safety
    /// The launches of this run write every element, whatever the elements of the operands are.
    #[allow(unsafe_code)]
    pub unsafe fn output_unwritten(&mut self) -> CudaViewMut<'a> {
        self.fresh = false;
        self.output
    }

    /// True if the output is the memory of the input that
    /// [`Operation::reuses`](crate::custom::Operation::reuses) names; false if it is a copy.
    pub fn in_place(&self) -> bool {
        self.in_place
    }

    /// Device memory for this run alone, aligned to 256 bytes and uninitialised. It is freed
    /// automatically when the launches have completed.
    ///
    /// # Errors
    /// If there is no memory. Return the error: the engine may run the op again later, since
    /// nothing is launched before the op returns.
    pub fn scratch(&mut self, bytes: usize) -> Result<u64, Refusal> {
        self.queue.scratch(bytes)
    }

    /// Queues one launch.
    ///
    /// # Errors
    /// If the source does not compile (the message has the compiler's log) or lacks the function;
    /// and while it is being compiled, in which case the engine runs the op again. Return the
    /// error.
    ///
    /// # Safety
    /// The arguments must match the kernel's parameters in number, order and type. The kernel may
    /// read only its operands and write only the output and scratch memory of this run, within
    /// their bounds. A bool must be written as 0 or 1.
    #[allow(unsafe_code)]
    pub unsafe fn launch(
        &mut self,
        kernel: CudaKernel<'_>,
        grid: CudaGrid,
        args: &[CudaArg<'_>],
    ) -> Result<(), Refusal> {
        self.queue.launch(kernel, grid, args)
    }

    /// Queues a call of `f` between the launches: `f` gets the op's stream, a `CUstream` of the
    /// current context. On it, `f` may queue work of another library, have the stream wait for an
    /// event of other code (`cuStreamWaitEvent`), or record one (`cuEventRecord`).
    ///
    /// `f` runs on the device's thread and must not wait. If it panics, the op's value fails. A
    /// region with such an op does not become a CUDA graph.
    ///
    /// # Safety
    /// The work that `f` queues may read only the operands and write only the output and scratch
    /// memory of this run. `f` must leave the thread's context, and the stream's capture mode, as
    /// they are, and must not keep the stream.
    #[allow(unsafe_code)]
    pub unsafe fn call(&mut self, f: impl FnOnce(*mut c_void) + Send + 'static) {
        self.queue.call(Box::new(f));
    }

    /// Queues work of one of the crate's ops.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(crate) fn work(
        &mut self,
        work: &dyn Any,
        inputs: &[CudaView<'_>],
        outputs: &[CudaViewMut<'_>],
    ) -> Result<(), Refusal> {
        self.queue.work(work, inputs, outputs)
    }
}
