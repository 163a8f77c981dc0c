//! The arguments of an op's CUDA kernels, and the op's way to name its launches.
//!
//! The device's counterpart of `CpuRun`. Descriptions only: addresses are numbers here, and a trait
//! hides the device that carries a launch out. The crate's own ops hand over plans of their own
//! through [`CudaRun::work`]; an op from outside brings CUDA C.

use super::refusal::Refusal;
use crate::dtype::DType;
use crate::shape::contiguous_strides;
use std::any::Any;

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

/// No address: the elements of an input that is changed in place are in the output.
const NOWHERE: u64 = u64::MAX;

impl<'a> CudaView<'a> {
    /// The same shape and type, without the elements.
    pub(crate) fn without_elements(self) -> CudaView<'a> {
        CudaView { ptr: NOWHERE, ..self }
    }

    /// Device address of the element at index (0, 0, ...).
    ///
    /// # Panics
    /// Of the input that [`Operation::reuses`](crate::custom::Operation::reuses) names: its
    /// elements are in the output, and no other view is there. (The panic fails the op's value.)
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

    /// Distance in elements from one index to the next, a dimension; 0 repeats.
    pub fn strides(&self) -> &'a [isize] {
        self.strides
    }

    /// How many elements there are.
    pub fn numel(&self) -> usize {
        crate::shape::numel(self.shape)
    }

    /// True where elements lie row by row without gaps.
    pub fn is_contiguous(&self) -> bool {
        let rows = contiguous_strides(self.shape);
        let mut each = self.shape.iter().zip(self.strides).zip(&rows);
        self.shape.contains(&0) || each.all(|((&n, s), row)| n == 1 || s == row)
    }
}

/// Where a CUDA kernel writes: contiguous, row-major, exclusively its own.
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

    /// How many elements there are.
    pub fn numel(&self) -> usize {
        crate::shape::numel(self.shape)
    }
}

/// CUDA C that an op brings: a translation unit, and the `extern "C" __global__` function to
/// launch.
///
/// It is compiled on first use for the device's architecture, and kept in memory and on disk by its
/// text: what is the same from run to run is compiled once on a machine. No headers can be
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

    /// Name of the function that is launched.
    pub const fn entry(&self) -> &'a str {
        self.entry
    }

    /// The CUDA C.
    pub const fn source(&self) -> &'a str {
        self.source
    }
}

/// How many threads a launch has: blocks of a grid, threads of a block, bytes of dynamic shared
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
    /// A grid of blocks, each of so many threads.
    pub const fn new(grid: [u32; 3], block: [u32; 3]) -> CudaGrid {
        CudaGrid { grid, block, shared: 0 }
    }

    /// As many blocks of `threads` in one dimension as give `n` threads or more; at least one
    /// block.
    pub const fn cover(n: usize, threads: u32) -> CudaGrid {
        let blocks = n.div_ceil(if threads == 0 { 1 } else { threads } as usize);
        let blocks = if blocks == 0 { 1 } else { blocks };
        CudaGrid::new(
            [if blocks > u32::MAX as usize { u32::MAX } else { blocks as u32 }, 1, 1],
            [threads, 1, 1],
        )
    }

    /// With so many bytes of dynamic shared memory a block.
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

/// A queue that carries launches out, on one stream, in order. The device implements it. The device
/// remembers a fault beyond the op itself (memory, the device), and answers with any refusal.
pub(crate) trait CudaQueue {
    fn launch(
        &mut self,
        kernel: CudaKernel<'_>,
        grid: CudaGrid,
        args: &[CudaArg<'_>],
    ) -> Result<(), Refusal>;
    fn scratch(&mut self, bytes: usize) -> Result<u64, Refusal>;
    /// Copies elements in row-major order to contiguous memory that does not overlap.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    fn copy(&mut self, from: CudaView<'_>, to: CudaViewMut<'_>) -> Result<(), Refusal>;
    /// Zeroes memory of the step's own. A fault fails the step, whatever the op answers.
    fn zero(&mut self, ptr: u64, bytes: usize);
    /// Work in the crate's own terms, which only its ops and `cuda/` know.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    fn work(
        &mut self,
        work: &dyn Any,
        inputs: &[CudaView<'_>],
        outputs: &[CudaViewMut<'_>],
    ) -> Result<(), Refusal>;
    /// Whether such work is done here; of some kinds a library may do it, and may not be there.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    fn takes(&mut self, work: &dyn Any) -> Result<bool, Refusal>;
}

/// The arguments of an op's CUDA side: the places of the operands and of the result, and a way to
/// launch.
///
/// Launches run one after the other, on the op's stream, after everything that the operands are
/// made by. Nothing is computed yet when
/// [`Operation::run_cuda`](super::operation::Operation::run_cuda) runs: the operands' elements
/// cannot be looked at from here.
pub struct CudaRun<'a> {
    pub(crate) inputs: &'a [CudaView<'a>],
    pub(crate) output: CudaViewMut<'a>,
    pub(crate) in_place: bool,
    /// An op from outside has not asked for its output yet, and old memory lies there.
    pub(crate) fresh: bool,
    pub(crate) queue: &'a mut dyn CudaQueue,
}

impl<'a> CudaRun<'a> {
    /// The operands, in order. The one that [`Operation::reuses`](crate::custom::Operation::reuses)
    /// names has shape and type here, and its elements in the output alone.
    pub fn inputs(&self) -> &'a [CudaView<'a>] {
        self.inputs
    }

    /// Where the result goes: zeros, or the elements of the input that
    /// [`Operation::reuses`](crate::custom::Operation::reuses) names. An op that returns without
    /// having asked for it fails.
    pub fn output(&mut self) -> CudaViewMut<'a> {
        if std::mem::take(&mut self.fresh) {
            let bytes = self.output.numel() * self.output.dtype.size();
            self.queue.zero(self.output.ptr, bytes);
        }
        self.output
    }

    /// Where the result goes, with whatever was there before: for kernels that write all of it,
    /// which saves the zeros.
    ///
    /// # Safety
    /// The launches of this run write every element, whatever the elements of the operands are.
    #[allow(unsafe_code)]
    pub unsafe fn output_unwritten(&mut self) -> CudaViewMut<'a> {
        self.fresh = false;
        self.output
    }

    /// True where the output is the memory of the input that
    /// [`Operation::reuses`](crate::custom::Operation::reuses) names; false where it is a copy.
    pub fn in_place(&self) -> bool {
        self.in_place
    }

    /// Device memory for this run alone, aligned to 256 bytes and not initialised. It is given back
    /// by itself when the launches are through.
    ///
    /// # Errors
    /// Where there is no memory; the engine may run the op again later: nothing is launched before
    /// it has returned. Hand the error on.
    pub fn scratch(&mut self, bytes: usize) -> Result<u64, Refusal> {
        self.queue.scratch(bytes)
    }

    /// Queues one launch.
    ///
    /// # Errors
    /// Where the source does not compile (the compiler's log is in the message) or has no such
    /// function; and while it is being compiled: the engine then runs the op again. Hand the error
    /// on.
    ///
    /// # Safety
    /// The arguments have to be what the kernel's parameters are, in number, order and type, and
    /// the kernel may read only its operands and write only the output and scratch memory of this
    /// run, inside their bounds. A bool is written as 0 or 1.
    #[allow(unsafe_code)]
    pub unsafe fn launch(
        &mut self,
        kernel: CudaKernel<'_>,
        grid: CudaGrid,
        args: &[CudaArg<'_>],
    ) -> Result<(), Refusal> {
        self.queue.launch(kernel, grid, args)
    }

    /// Queues work of the crate's own.
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
